"""Interpret the states, drains and partitions that Slurm reports.

Jobs provision, reimage and validate parse the partitions here, and job validate calls
:func:`check_slurm_state`. Jobs provision and validate, and the commands status and explain, call
:func:`drain_owner`. The forms of a state are from releases 21.08 to 25.05: ``DOWN*+DRAIN``,
``DOWN+DRAIN+NOT_RESPONDING``, ``IDLE+DRAIN+INVALID_REG``, and the symbols at the end of sinfo's states. The
module does no I/O.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from rackproof.core.records import Verdict
from rackproof.core.text import sanitize
from rackproof.nodes.health_subjects import Action, HealthFinding

_SYMBOLS = {
    "*": "NOT_RESPONDING",
    "~": "POWERED_DOWN",
    "#": "POWERING_UP",
    "!": "POWER_DOWN",
    "%": "POWERING_DOWN",
    "$": "MAINT",
    "@": "REBOOT_REQUESTED",
    "^": "REBOOT_ISSUED",
    "-": "PLANNED",
}
"""Slurm's words for the symbols at the end of a state."""
_SILENT = (
    "its slurmd does not answer; check slurmd, munge and its key, the clock and the controller's address"
)
_NO_RESPONSE = frozenset(("NOT_RESPONDING", "NO_RESPOND"))
"""Words of a node whose slurmd does not answer."""
_FAILED = {
    "NOT_RESPONDING": _SILENT,
    "NO_RESPOND": _SILENT,
    "DOWN": "it takes no job",
    "ERROR": "it takes no job",
    "FAIL": "it is about to fail, and takes no job",
    "FAILING": "it is about to fail, and takes no new job",
    "INVAL": "it registered with other values than slurm.conf has",
    "INVALID_REG": "it registered with other values than slurm.conf has",
}
"""States of a node that Slurm considers broken, each with its explanation, the most informative first."""
_BASES = frozenset(
    (
        *("IDLE", "ALLOCATED", "ALLOC", "MIXED", "MIX", "COMPLETING", "COMP", "PLANNED", "PLND"),
        *("RESERVED", "RESV", "RES", "MAINT", "MAINTENANCE", "BLOCKED", "PERFCTRS", "NPC"),
    )
)
"""States in which a node accepts work, or would without a reservation. scontrol and sinfo spell some of them
differently."""
_SERVING = _BASES | {"CLOUD", "DYNAMIC_NORM", "DYNAMIC_FUTURE", "EXTERNAL", "RUN_EPILOG", "UNDRAIN", "RESUME"}
"""The states above, and flags that do not change whether a node accepts work."""
_DRAINED = frozenset(("DRAIN", "DRAINED", "DRAINING", "DRNG"))
"""Words of a drained node, as scontrol and sinfo write them."""
_REASONS_OF_SLURM = (
    *("Not responding", "Node unexpectedly rebooted", "Node silently failed", "Duplicate jobid"),
    *("Low CPUs", "Low RealMemory", "Low TmpDisk", "Low socket*core"),
    *(
        "reboot timed out",
        "ResumeTimeout reached",
        "NO NETWORK ADDRESS FOUND",
        "Kill task failed",
        "Prolog error",
    ),
    *(
        "Epilog error",
        "batch job complete failure",
        "health_check",
        "NHC",
        "SlurmdSpoolDir is full",
        "Reboot ",
    ),
)
"""Prefixes of the reasons that Slurm or one of its health checks writes, and no operator."""
_GRES_REASON = re.compile(r"gres/\S+ (?:count|type) ")
"""Pattern of Slurm's reasons about GPUs, such as ``gres/gpu count too low (7 < 8)``."""
_OWN_REASONS = ("rackproof-night:", "rackproof-reimage:")
"""Prefixes of the drain reasons of jobs that check a node before they resume it."""
_OWNERS = {
    "rackproof-night:": "a night of Rackproof",
    "rackproof-reimage:": "reimage.yml",
    "rackproof:": "provision.yml",
}
"""The owner of a drain, by the prefix of its reason."""

IN_SERVICE = "none"
"""Text of sinfo in place of a reason, for a node that is in service."""


def drain_prefix(reason: str) -> str:
    """Return the prefix with which a job of Rackproof marks its drains, or "" if no job made this drain."""
    return next((prefix for prefix in _OWNERS if reason.startswith(prefix)), "")


def drain_owner(reason: str) -> str:
    """Return the owner of a drain, from the prefix of its reason in Slurm, or "another owner"."""
    return _OWNERS.get(drain_prefix(reason), "another owner")


def is_reason_of_slurm(reason: str, set_by: str) -> bool:
    """Return whether Slurm or one of its health checks wrote the reason of a drain, and no operator."""
    by_slurm = reason.startswith(_REASONS_OF_SLURM) or _GRES_REASON.match(reason) is not None
    return by_slurm or set_by.startswith("slurm@")


def state_words(state: str) -> tuple[str, ...]:
    """Return the words of a state: DOWN, NOT_RESPONDING and DRAIN for ``DOWN*+DRAIN``."""
    words: list[str] = []
    for word in state.upper().replace(",", "+").split("+"):
        base = word.strip().rstrip("".join(_SYMBOLS))
        words += [base, *(_SYMBOLS[symbol] for symbol in word.strip()[len(base) :])]
    return tuple(dict.fromkeys(word for word in words if word))


def takes_jobs(state: str) -> bool:
    """Return whether a node in this state accepts jobs, or would without a reservation.

    A node without a known base state accepts no jobs. Unknown flags are ignored.
    """
    words = state_words(state)
    return bool(_BASES.intersection(words)) and not {*_FAILED, *_DRAINED}.intersection(words)


def check_slurm_state(
    node: str, state: str, *, known: bool, reason: str = "", set_by: str = "", member: bool = True
) -> Iterator[HealthFinding]:
    """Yield the finding on a node's state in Slurm, if there is one.

    The finding has the confidence hint, because slurmd, the network or the controller may be at fault. Slurm
    gives a broken or drained node no job anyway, so no night has to drain it.

    Args:
        node: The name in the inventory.
        state: The state that Slurm reports.
        known: Whether Slurm lists a node with this name.
        reason: The reason that Slurm stores.
        set_by: The user that set the reason, and the time, as ``USER@TIME``.
        member: Whether the inventory expects the node in the cluster.
    """
    if not known:
        if member:
            evidence = "Slurm has no node of this name; is it in slurm.conf? (validate_expect: slurm)"
            yield _finding(node, "slurm_node_unknown", Verdict.UNPROVEN, "configure", evidence)
        return
    words = state_words(state)
    if not words:
        yield _finding(
            node, "slurm_state_unknown", Verdict.UNPROVEN, "watch", "Slurm did not report its state"
        )
        return
    because = f" ({sanitize(reason, 200)})" if reason else ""
    state_text = f"Slurm shows it as {sanitize(state, 100)}{because}"
    yield from _state_findings(node, words, state_text, reason, set_by)


def _state_findings(
    node: str, words: Sequence[str], shown: str, reason: str, set_by: str
) -> Iterator[HealthFinding]:
    """Yield the finding on a node with these state words, if there is one."""
    failed = [word for word in _FAILED if word in words]
    ordinary = {*_FAILED, *_SERVING, *_DRAINED}
    if failed:
        yield _broken(node, shown, failed)
    elif not ordinary.issuperset(words) or not (_BASES | _DRAINED).intersection(words):
        evidence = f"{shown}: nothing proves that it can take work"
        yield _finding(node, "slurm_state_unproven", Verdict.UNPROVEN, "watch", evidence)
    elif _DRAINED.intersection(words):
        yield from _drain(node, shown, reason, set_by)


def _broken(node: str, shown: str, failed: Sequence[str]) -> HealthFinding:
    """Return the finding on a node that Slurm considers broken."""
    evidence, verdict = f"{shown}: {_FAILED[failed[0]]}", Verdict.FAIL
    # After a lost answer, Slurm waits for SlurmdTimeout. Then the node is DOWN.
    if _NO_RESPONSE.issuperset(failed):
        evidence += "; Slurm still waits for it, and sets it DOWN after SlurmdTimeout"
        verdict = Verdict.UNPROVEN
    return _finding(node, f"slurm_{failed[0].lower()}", verdict, "configure", evidence)


def _drain(node: str, shown: str, reason: str, set_by: str) -> Iterator[HealthFinding]:
    """Yield the finding on a drain. One by a night or reimage.yml needs no finding, because they end it."""
    if reason.startswith(_OWN_REASONS):
        return
    if is_reason_of_slurm(reason, set_by):
        yield _finding(
            node, "slurm_drained_itself", Verdict.FAIL, "inspect", f"{shown}: Slurm drained it by itself"
        )
    else:
        by_text = f" by {sanitize(set_by, 60)}" if set_by else ""
        yield _finding(
            node, "slurm_drained", Verdict.DEGRADED, "watch", f"{shown}{by_text}: it takes no new job"
        )


def missing_state(node: str, why: str) -> HealthFinding:
    """Return the finding about a node without a state from Slurm."""
    evidence = f"its state in Slurm is not known: {why}"
    return _finding(node, "slurm_state_unknown", Verdict.UNPROVEN, "watch", evidence)


def _finding(node: str, code: str, verdict: Verdict, action: Action, evidence: str) -> HealthFinding:
    """Return a finding with the confidence hint, because the node itself may be healthy."""
    return HealthFinding(
        node=node, code=code, verdict=verdict, action=action, confidence="hint", evidence=evidence
    )


def read_partitions(listed: str) -> dict[str, dict[str, str]]:
    """Return the reason of each node by partition and node. A node in service has :data:`IN_SERVICE`.

    Args:
        listed: The output of ``sinfo --noheader --Node --format=%N|%R|%E``.
    """
    partitions: dict[str, dict[str, str]] = {}
    for line in listed.splitlines():
        node, bar, fields = line.strip().partition("|")
        partition, _, reason = fields.partition("|")
        if bar and node and partition:
            partitions.setdefault(partition, {})[node] = reason.strip()
    return partitions
