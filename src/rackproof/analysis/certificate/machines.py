"""Recognize a machine under another name, and parts that are in another node. No I/O.

A certificate is about machines, but runs and nights name nodes. A machine with a new name keeps its history,
and a part can be in one node only. :mod:`.gathering` and :mod:`.answering` call this module. The inputs are
the records of nodes, as they were at the times of runs and nights.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

from rackproof.analysis.certificate.models import EvidencePiece, hardware_doubt, uuids_of
from rackproof.core.records import Node
from rackproof.store.known_parts import parts_of


def shared_serials(records: Iterable[Sequence[Node]]) -> set[str]:
    """Return the serial numbers that several nodes of one record have, such as those of a common chassis.

    Such a number identifies no machine. Each item of ``records`` has the nodes of one run or night.
    """
    counts = (Counter(node.serial for node in nodes if node.serial) for nodes in records)
    return {serial for count in counts for serial, number in count.items() if number > 1}


def is_same_machine(then: Node, now: Node) -> bool:
    """Return whether two records that have a common part describe one machine with all its parts."""
    return not hardware_doubt(then, now)


def common_part(one: Node, other: Node) -> str:
    """Return a GPU that two records have in common, or "" if there is none.

    If one of them lists no GPUs, the serial number takes their place. It does not if both have GPUs, because
    several machines of a chassis may report one serial number.
    """
    ones, others = uuids_of(one), uuids_of(other)
    if ones and others:
        return min(ones & others, default="")
    return one.serial if one.serial == other.serial else ""


class PartIndex:
    """Some nodes by their parts.

    Args:
        nodes: The nodes.
        unusable: Serial numbers that identify no machine (:func:`shared_serials`).
    """

    def __init__(self, nodes: Iterable[Node], unusable: Collection[str]) -> None:
        self._unusable = unusable
        self._nodes: dict[str, list[Node]] = {}
        for node in nodes:
            for part in self._parts(node):
                self._nodes.setdefault(part, []).append(node)

    def _parts(self, node: Node) -> list[str]:
        return sorted(part for part in parts_of(node) if part not in self._unusable)

    def related(self, node: Node) -> list[Node]:
        """Return the nodes that have a part in common with a node, perhaps itself among them."""
        candidates = {
            candidate.name: candidate
            for part in self._parts(node)
            for candidate in self._nodes.get(part, ())
            if common_part(node, candidate)
        }
        return list(candidates.values())

    def present_name(self, node: Node) -> str:
        """Return the name that a machine has now, or its name in the record if it is not among the nodes."""
        names = [other.name for other in self.related(node) if is_same_machine(node, other)]
        return node.name if node.name in names or not names else names[0]


def under_present_names(piece: EvidencePiece, index: PartIndex) -> EvidencePiece:
    """Return a piece of evidence with the present names of its machines.

    A machine without another name now keeps its name, unless another machine of the piece has this name now.
    The nodes of such a machine are left out.
    """
    names = {node.name: index.present_name(node) for node in piece.nodes}
    renamed = {then: now for then, now in names.items() if then != now}
    if not renamed:
        return piece
    taken = set(renamed.values())
    kept = {then: now for then, now in names.items() if then in renamed or then not in taken}
    old_names = ", ".join(f"{now} had the name {then}" for then, now in sorted(renamed.items()))
    return piece.model_copy(
        update={
            "nodes": tuple(
                node.model_copy(update={"name": kept[node.name]}) for node in piece.nodes if node.name in kept
            ),
            "findings": tuple(
                finding.model_copy(update={"node": kept.get(finding.node, "")})
                for finding in piece.findings
                if not finding.node or finding.node in kept
            ),
            "reasons": (old_names, *piece.reasons),
            **{
                field: _renamed(getattr(piece, field), kept)
                for field in ("verdicts", "reads", "expected", "limits")
            },
        }
    )


def _renamed(values: Mapping[str, object], names: Mapping[str, str]) -> dict[str, object]:
    """Return values by node with the nodes' present names."""
    return {names[name]: value for name, value in values.items() if name in names}
