"""Identify the hardware that a measurement belongs to: a node, a GPU, a link or a group of nodes.

The history calls this module when it stores a run and when it searches for one. The input is the nodes
of the run and the labels of a measurement.

A hostname may change with a new image, so the history uses hardware keys. If the value of a label is hardware
(a GPU's UUID, a node of the run), ``*`` replaces it. The same measurement on 80,000 GPUs is therefore one
quantity on 80,000 pieces of hardware. The module does no I/O.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from rackproof.core.records import Gpu, Node
from rackproof.store.history.schema import KEY_LIMIT

PLACEHOLDER = "*"
"""The value that replaces hardware in the labels of a quantity."""

_CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=True)
# Matches "GPU-4a9c1e3b-…" and "MIG-…", as nvidia-smi prints them.
_UUID = re.compile(r"(GPU|MIG)-[0-9A-Fa-f][0-9A-Fa-f-]{7,}")
_NODE_LABELS = frozenset({"node", "host", "from", "to", "peer"})
"""Labels whose value may be the name of a node."""
_UNSTORABLE = re.compile("[\0\ud800-\udfff]")


class Kind(StrEnum):
    """The kinds of hardware that a measurement can belong to."""

    NODE = "node"
    GPU = "gpu"
    LINK = "link"
    GROUP = "group"


@dataclass(frozen=True)
class Part:
    """The identity of a piece of hardware.

    Attributes:
        kind: The kind of the hardware.
        key: The hardware key. It contains a name only if nothing else identifies a node uniquely.
        members: The ends of a link or the nodes of a group. Empty for a node and a GPU.
    """

    kind: Kind
    key: str
    members: tuple[Part, ...] = ()


@dataclass(frozen=True)
class Place:
    """The hardware that a measurement belongs to, and its labels.

    Attributes:
        labels: The labels as canonical JSON, with ``*`` in place of hardware.
        hardware: The hardware, or None if it is unknown.
        node: The node with the hardware, or None for a group, a link between nodes, a GPU of an unknown
            node, and unknown hardware.
    """

    labels: str
    hardware: Part | None
    node: Part | None


class Topology:
    """The hardware of one run, for the conversion of labels to places.

    Args:
        nodes: The nodes of the run. If the hardware keys of two nodes are the same, for example the serial
            number of a shared chassis, the name of each later node is added to its key.

    Attributes:
        nodes: The nodes of the run, by name.
        described: The record of each node, and of each GPU with a UUID.
        gpus: Each GPU with its node, by the GPU's UUID.
        whole: The node of a run on one node, the group of several nodes, or None without a known node.
    """

    def __init__(self, nodes: Iterable[Node]) -> None:
        self.nodes: dict[str, Part] = {}
        self.described: dict[Part, Node | Gpu] = {}
        self.gpus: dict[str, tuple[Part, Part]] = {}
        self._places: dict[tuple[tuple[str, str], ...], Place] = {}
        for node in nodes:
            self._add_node(node)
        # Sort by key, because the same nodes are one group in any order.
        members = tuple(sorted(self.nodes.values(), key=lambda part: part.key))
        self.whole: Part | None = None
        if len(members) == 1:
            self.whole = members[0]
        elif members:
            self.whole = Part(Kind.GROUP, bounded_key("+".join(part.key for part in members)), members)

    def _add_node(self, node: Node) -> None:
        """Add a node and its GPUs. If its hardware key is in use, add the node's name to the key."""
        part = Part(Kind.NODE, bounded_key(node.hardware_key))
        if part in self.described:
            part = Part(Kind.NODE, bounded_key(f"{node.hardware_key}/{node.name}"))
        self.nodes[node.name] = part
        self.described[part] = node
        for gpu in node.gpus:
            # A GPU without a UUID cannot be recognized later, so its numbers belong to the node.
            if gpu.uuid:
                chip = Part(Kind.GPU, bounded_key(gpu.uuid))
                self.gpus[gpu.uuid] = (chip, part)
                self.described[chip] = gpu

    @property
    def only_node(self) -> Part | None:
        """Return the node of a run on one node.

        Return ``None`` if there are several nodes or no known node.
        """
        return self.whole if self.whole is not None and self.whole.kind is Kind.NODE else None

    def place(self, labels: Mapping[str, str]) -> Place:
        """Return the place of a measurement with these labels."""
        # Keep the results, because the same labels appear in many measurements and judgements of a run.
        key = tuple(labels.items())
        if key not in self._places:
            self._places[key] = self._place(labels)
        return self._places[key]

    def _place(self, labels: Mapping[str, str]) -> Place:
        """Return the hardware that the labels contain, and the labels without it.

        If one label has hardware, this hardware is returned. If several have, the link between them is
        returned. Without any, the measurement belongs to all nodes of the run.
        """
        general_labels: dict[str, str] = {}
        ends: list[tuple[Part, Part | None]] = []
        # Sort by name, so that "from" is before "to". The two directions of a link are two links.
        for name in sorted(labels):
            end = self._part(name, labels[name])
            general_labels[name] = labels[name] if end is None else PLACEHOLDER
            if end is not None:
                ends.append(end)
        canonical = canonical_json(general_labels)
        if not ends:
            return Place(canonical, self.whole, self.only_node)
        if len(ends) == 1:
            return Place(canonical, *ends[0])
        return Place(canonical, *_link_between(ends))

    def _part(self, label: str, value: str) -> tuple[Part, Part | None] | None:
        """Return the hardware in a label and its node, or ``None`` for an ordinary label.

        The node is None if no node lists the hardware, unless the run has only one node.
        """
        if value in self.gpus:
            return self.gpus[value]
        if label in _NODE_LABELS and value in self.nodes:
            return self.nodes[value], self.nodes[value]
        if _UUID.fullmatch(value):
            # The node's facts do not list this GPU, for instance in an imported log.
            return Part(Kind.GPU, bounded_key(value)), self.only_node
        return None


def _link_between(ends: Sequence[tuple[Part, Part | None]]) -> tuple[Part, Part | None]:
    """Return the link between several ends, and the one node that has all of them, or None."""
    members = tuple(part for part, _ in ends)
    nodes = {node for _, node in ends}
    link = Part(Kind.LINK, bounded_key(">".join(part.key for part in members)), members)
    return link, nodes.pop() if len(nodes) == 1 else None


def storable_text(text: str, limit: int) -> str:
    """Return at most ``limit`` characters of a text, with U+FFFD in place of NUL and lone surrogates.

    The databases do not accept these characters.
    """
    return _UNSTORABLE.sub("\N{REPLACEMENT CHARACTER}", text)[:limit]


def bounded_key(key: str) -> str:
    """Return a key that fits into an indexed column.

    Characters that the databases refuse are replaced, and a long key is replaced by its digest.
    """
    clean = storable_text(key, len(key))
    return clean if len(clean) <= KEY_LIMIT else f"sha256:{digest_of(key)}"


def canonical_json(mapping: Mapping[str, Any]) -> str:
    """Return a mapping as JSON in ASCII with sorted keys, so that the order of the keys does not matter."""
    return _CANONICAL.encode(mapping)


def digest_of(*parts: str) -> str:
    """Return the SHA-256 of a list of texts. ("ab", "c") and ("a", "bc") have different digests."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()
