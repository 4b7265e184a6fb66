"""Find the serial number and GPUs that identify a node, and those it names that are known as
another node's.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from rackproof.core.records import Node
from rackproof.store.night_store import StoredSnapshot, find_last_places, last_snapshot


def parts_of(about: Node) -> set[str]:
    """Return the serial number and the UUIDs of the GPUs that a node names."""
    return {about.serial, *(gpu.uuid for gpu in about.gpus)} - {""}


def identity_parts(previous: StoredSnapshot | None) -> set[str]:
    """Return the parts that identify a node: those of its first night, or those that an operator accepted."""
    if previous is None:
        return set()
    before = previous.snapshot
    return {before.identity_serial or before.serial, *before.identity_gpus} - {""}


def parts_of_others(past: Sequence[Path], about: Node) -> dict[str, str]:
    """Return the foreign parts that a node names, and the node in which each was seen last.

    A node that no night has seen has no parts of its own yet, and may have another's.

    Args:
        past: Earlier nights, newest first.
        about: The node's own statement.
    """
    previous = last_snapshot(past, about.name)
    if previous is None:
        return {}
    strange = parts_of(about) - identity_parts(previous)
    # Other nodes' nights are read only for these: usually there are none.
    places = find_last_places(past, dict.fromkeys(strange, about.name)) if strange else {}
    return {part: other for part, (other, _) in sorted(places.items())}


def without_parts(about: Node, parts: Collection[str] | Mapping[str, str]) -> Node:
    """Return a node without the numbers of these parts."""
    if about.serial in parts:
        # Everything else that identifies the hardware is dropped, too: the node is then known only by its
        # name.
        about = about.model_copy(update={"serial": "", "chassis_serial": ""})
    return about.model_copy(update={"gpus": tuple(gpu for gpu in about.gpus if gpu.uuid not in parts)})
