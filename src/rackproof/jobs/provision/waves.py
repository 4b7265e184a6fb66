"""Plan the waves of provisioning, which limit how many nodes are out of service at a time. No I/O.

The action plugin ``rackproof_provision_plan`` calls :func:`plan_provision_waves` with the nodes, and with the
reasons why nodes of each partition are out of service. It gets the nodes of each wave. A wave is drained,
provisioned and resumed before the next one starts. If nodes are in service, the first wave (canary) tests the
change on a few nodes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from rackproof.core.errors import RackproofError
from rackproof.core.hostlist import compress_hostlist
from rackproof.core.text import amount, sanitize, stop_rule
from rackproof.nodes.slurm_states import IN_SERVICE, drain_owner


class WaveLimitError(RackproofError):
    """A limit of the waves that is out of bounds. The message names the variable."""


@dataclass(frozen=True)
class WaveLimits:
    """The limits for the number of nodes that may be out of service at a time.

    Attributes:
        batch: The largest number of nodes in one wave.
        share: Largest share of a partition that may be out of service at a time (above 0, up to 1). One node
            is always allowed.
        canary: The largest number of nodes in the first wave, if any node is in service. 0 means that there
            is no canary wave.
        failures: The number of nodes that may fail. If more fail, no further wave starts.
    """

    batch: int = 32
    share: float = 0.25
    canary: int = 1
    failures: int = 0

    def __post_init__(self) -> None:
        """Refuse limits that leave every wave empty or would take every node out of service."""
        rules = {
            "provision_batch: at least 1": self.batch >= 1,
            "provision_max_drain_fraction: above 0 and up to 1": 0 < self.share <= 1,
            "provision_canary: at least 0": self.canary >= 0,
            "provision_max_failures: at least 0": self.failures >= 0,
        }
        for rule, holds in rules.items():
            if not holds:
                raise WaveLimitError(rule)

    def most_out(self, size: int) -> int:
        """Return the number of nodes of a partition that may be out of service at a time.

        Args:
            size: The number of nodes in the partition.
        """
        # A product such as 0.29 * 100 is slightly too small, so a small number is added before rounding.
        return max(1, int(self.share * size + 1e-9))


@dataclass(frozen=True)
class Wave:
    """The nodes that are provisioned together.

    Attributes:
        nodes: The names of the nodes, in the order of the inventory.
        canary: Whether the wave tests the change on a few nodes first.
        left: For each partition that loses nodes to the wave, the number of nodes that remain in service, and
            the number of all nodes.
    """

    nodes: tuple[str, ...]
    canary: bool
    left: Mapping[str, tuple[int, int]]


class _Partitions:
    """The nodes of each partition that are out of service as the waves proceed.

    Attributes:
        size, most_out: For each partition, the number of nodes, and the number of nodes that may be out of
            service.
        of: The partitions of each node.
        out: The nodes of each partition that are out of service now.
        stays_out: The nodes that something other than provision.yml drained. provision.yml does not resume
            them.
    """

    def __init__(self, listed: Mapping[str, Mapping[str, str]], limits: WaveLimits) -> None:
        self.size = {name: len(members) for name, members in listed.items()}
        self.most_out = {name: limits.most_out(size) for name, size in self.size.items()}
        self.of: dict[str, list[str]] = {}
        self.out: dict[str, set[str]] = {name: set() for name in listed}
        self.stays_out: set[str] = set()
        for name, members in listed.items():
            for node, reason in members.items():
                self.of.setdefault(node, []).append(name)
                if reason == IN_SERVICE:
                    continue
                self.out[name].add(node)
                if drain_owner(reason) != "provision.yml":
                    self.stays_out.add(node)

    def serves(self, node: str) -> bool:
        """Return whether a node is in service, so that draining it reduces capacity."""
        return any(node not in self.out[name] for name in self.of.get(node, ()))

    def rank(self, node: str) -> int:
        """Return a node's place in the order.

        0 is a node that an earlier provision.yml drained, 1 a node in service, and 2 any other.
        """
        if self.serves(node):
            return 1
        return 0 if node in self.of and node not in self.stays_out else 2

    def fits(self, node: str, taken: Mapping[str, int]) -> bool:
        """Return whether a node may be drained in addition to a wave's nodes.

        ``taken`` is the number of nodes that the wave takes from each partition.
        """
        return all(
            taken.get(name, 0) < max(1, self.most_out[name] - len(self.out[name]))
            for name in self.of.get(node, ())
            if node not in self.out[name]
        )

    def taken_by(self, node: str) -> list[str]:
        """Return the partitions that lose a node if it is drained."""
        return [name for name in self.of.get(node, ()) if node not in self.out[name]]

    def finish(self, wave: Iterable[str]) -> None:
        """Mark a wave as done. Its nodes are then in service, except the nodes in ``stays_out``."""
        for node in wave:
            if node not in self.stays_out:
                for name in self.of.get(node, ()):
                    self.out[name].discard(node)


def plan_provision_waves(
    nodes: Sequence[str], partitions: Mapping[str, Mapping[str, str]], limits: WaveLimits
) -> list[Wave]:
    """Return the waves in which nodes are drained, provisioned and resumed.

    Each node is in one wave. A wave, together with nodes that are already out of service, takes at most the
    share of a partition. If the other nodes use up the share, the wave still takes one node, because the work
    would otherwise never end. Nodes that an earlier provision.yml left drained come first. Nodes that are out
    of service for another reason come last, because a faulty one would stop the others.

    Args:
        nodes: The names of the nodes to provision, in the order of the inventory.
        partitions: The nodes of each partition, each with the reason why it is out of service
            (:func:`rackproof.nodes.slurm_states.read_partitions`). Empty without a cluster.
        limits: The limits for nodes that are out of service at the same time.
    """
    state = _Partitions(partitions, limits)
    remaining = sorted(dict.fromkeys(nodes), key=state.rank)
    tries_first = limits.canary > 0 and any(state.serves(node) for node in remaining)
    waves: list[Wave] = []
    while remaining:
        canary = tries_first and not waves
        wave = _next_wave(remaining, state, min(limits.batch, limits.canary) if canary else limits.batch)
        lost = Counter(name for node in wave for name in state.taken_by(node))
        standing = {
            name: (state.size[name] - len(state.out[name]) - count, state.size[name])
            for name, count in sorted(lost.items())
        }
        waves.append(Wave(nodes=tuple(node for node in nodes if node in wave), canary=canary, left=standing))
        state.finish(wave)
        remaining = [node for node in remaining if node not in wave]
    return waves


def _next_wave(remaining: Sequence[str], state: _Partitions, most: int) -> set[str]:
    """Return the nodes of one wave.

    The wave contains as many as the limits allow, from the most crowded partitions first.
    """
    # A crowded partition needs the most waves. If that partition started last, it would need one small wave
    # after another.
    waiting = Counter(name for node in remaining for name in state.taken_by(node))
    weight = {name: -count / state.most_out[name] for name, count in waiting.items()}
    # Nodes that are out of service for another reason wait until the nodes in service are done.
    last_rank = max(1, state.rank(remaining[0]))
    ready = [node for node in remaining if state.rank(node) <= last_rank]
    # A node in several partitions is harder to place, so the last value puts it first.
    ready.sort(
        key=lambda node: (
            state.rank(node),
            [*sorted(weight[name] for name in state.taken_by(node)), float("inf")],
        )
    )
    wave: set[str] = set()
    taken_counts: Counter[str] = Counter()
    for node in ready:
        if state.fits(node, taken_counts):
            taken_counts.update(state.taken_by(node))
            wave.add(node)
        if len(wave) == most:
            break
    return wave


def describe_waves(waves: Sequence[Wave], limits: WaveLimits, remark: str = "") -> list[str]:
    """Describe the waves, one line for each, for the operator before they start.

    Args:
        waves: The waves, as :func:`plan_provision_waves` returns them.
        limits: The limits with which they were planned.
        remark: A text about unknown facts of the cluster.
    """
    lines = [remark] if remark else []
    for number, wave in enumerate(waves, 1):
        kind = ", canary" if wave.canary else ""
        lost = "; ".join(
            f"{sanitize(name, 100)} keeps {nodes_left} of {amount(size, 'node')} in service"
            for name, (nodes_left, size) in wave.left.items()
        )
        lines.append(
            f"wave {number} of {len(waves)}{kind}: {sanitize(compress_hostlist(wave.nodes), 4000)}"
            f" ({lost or 'takes no node out of service'})"
        )
    if len(waves) > 1:
        lines.append(stop_rule("provision", limits.failures))
    return lines
