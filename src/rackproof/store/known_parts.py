"""Find out whether a node reports parts of another node: its serial number, or GPUs.

The jobs bench and validate call this module before they store numbers, so that no number is stored for
another node's GPU. The input is the record of a node as it reported itself, and earlier nights. A part is a
text: the serial number of a machine, or the UUID of a GPU. Begin with :func:`parts_of_others`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from rackproof.core.records import Node
from rackproof.store.night_store import StoredSnapshot, find_last_places, last_snapshot


def parts_of(about: Node) -> set[str]:
    """Return the serial number and the UUIDs of the GPUs that a node reports."""
    return {about.serial, *(gpu.uuid for gpu in about.gpus)} - {""}


def identity_parts(previous: StoredSnapshot | None) -> set[str]:
    """Return the parts that identify a node, as its latest snapshot stores them.

    These parts are from the node's first night, or an operator accepted them later. ``previous`` is the
    snapshot, or None for a node that was in no night yet. The result is then empty.
    """
    if previous is None:
        return set()
    before = previous.snapshot
    return {before.identity_serial or before.serial, *before.identity_gpus} - {""}


def parts_of_others(past: Sequence[Path], about: Node) -> dict[str, str]:
    """Return the parts of other nodes that a node reports, with the last node of each part.

    The result is empty for a node that was in no night yet, because its parts are not known.

    Args:
        past: Earlier nights, newest first.
        about: The record of the node, as it reported itself.
    """
    previous = last_snapshot(past, about.name)
    if previous is None:
        return {}
    strange = parts_of(about) - identity_parts(previous)
    # New parts are rare. Search the nights only if there are some, because this takes long.
    places = find_last_places(past, dict.fromkeys(strange, about.name)) if strange else {}
    return {part: last_node for part, (last_node, _) in sorted(places.items())}


def without_parts(about: Node, parts: Collection[str] | Mapping[str, str]) -> Node:
    """Return the record of a node without these parts. ``parts`` may be the result of parts_of_others."""
    if about.serial in parts:
        # Remove the serial number of the chassis, too, because it identifies the same hardware.
        about = about.model_copy(update={"serial": "", "chassis_serial": ""})
    return about.model_copy(update={"gpus": tuple(gpu for gpu in about.gpus if gpu.uuid not in parts)})
