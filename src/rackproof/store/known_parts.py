"""Find the parts (serial number and GPUs) that identify a node, and reported parts of other nodes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from rackproof.core.records import Node
from rackproof.store.night_store import StoredSnapshot, find_last_places, last_snapshot


def parts_of(about: Node) -> set[str]:
    """Return the serial number and the UUIDs of the GPUs that a node reports."""
    return {about.serial, *(gpu.uuid for gpu in about.gpus)} - {""}


def identity_parts(previous: StoredSnapshot | None) -> set[str]:
    """Return the parts that identify a node, from its first night or as an operator accepted them."""
    if previous is None:
        return set()
    before = previous.snapshot
    return {before.identity_serial or before.serial, *before.identity_gpus} - {""}


def parts_of_others(past: Sequence[Path], about: Node) -> dict[str, str]:
    """Return the parts of other nodes that a node reports, with the node that had each part last.

    If no night has the node yet, it has no known parts, and none is reported as foreign.

    Args:
        past: Earlier nights, newest first.
        about: The node's own description.
    """
    previous = last_snapshot(past, about.name)
    if previous is None:
        return {}
    strange = parts_of(about) - identity_parts(previous)
    # The nights are searched only if there are such parts, which is rare.
    places = find_last_places(past, dict.fromkeys(strange, about.name)) if strange else {}
    return {part: other for part, (other, _) in sorted(places.items())}


def without_parts(about: Node, parts: Collection[str] | Mapping[str, str]) -> Node:
    """Return a node without these parts."""
    if about.serial in parts:
        # The number of the chassis is dropped, too, because it identifies the same hardware.
        about = about.model_copy(update={"serial": "", "chassis_serial": ""})
    return about.model_copy(update={"gpus": tuple(gpu for gpu in about.gpus if gpu.uuid not in parts)})
