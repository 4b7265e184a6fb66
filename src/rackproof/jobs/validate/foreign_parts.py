"""Parts that two nodes name in one night, of which one is known by them: the other's answer is not believed.

A node that names another's serial number or GPUs would else decide about them: its faults, its numbers and
its history would be theirs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from rackproof.core.records import Verdict
from rackproof.core.text import sanitize
from rackproof.nodes.health_subjects import HealthFinding
from rackproof.store import night_store
from rackproof.store.night_store import StoredSnapshot


def settle_foreign_parts(
    folder: Path, past: Sequence[Path], snapshots: Mapping[str, StoredSnapshot]
) -> dict[str, StoredSnapshot]:
    """Return a night's snapshots, and store them, without the parts that another node is known by.

    Args:
        folder: The night's.
        past: Earlier nights, newest first.
        snapshots: Tonight's, by node.

    Raises:
        ResultsError: A snapshot cannot be written.
    """
    settled = dict(snapshots)
    for name, parts in _foreign_parts(past, snapshots).items():
        settled[name] = _without(snapshots[name], parts)
        night_store.write_snapshot(folder, name, settled[name])
    return settled


def foreign_parts_finding(name: str, parts: Sequence[str]) -> HealthFinding:
    """Return the finding of a node that names parts of others."""
    shown = ", ".join(sanitize(part, 60) for part in parts[:4])
    more = f" and {len(parts) - 4} more" if len(parts) > 4 else ""
    return HealthFinding(
        node=name,
        code="foreign_parts",
        verdict=Verdict.UNPROVEN,
        action="inspect",
        evidence=f"it names {shown}{more}, by which another node that answers tonight is known: two names "
        "lead to one machine (ansible_host, the name server), or it does not tell the truth; "
        "nothing that it says was believed",
    )


def _foreign_parts(past: Sequence[Path], snapshots: Mapping[str, StoredSnapshot]) -> dict[str, list[str]]:
    """Return, by node, the parts that it names and exactly one other node is known by, or accepted with."""
    accepted = {name for name, kept in snapshots.items() if kept.snapshot.identity_accepted}
    shared = _shared_parts(snapshots)
    # Earlier nights are read of these nodes alone: there are none as a rule.
    known = {name: _known_parts(past, name) for names in shared.values() for name in names}
    foreign: dict[str, list[str]] = {}
    for part, names in shared.items():
        # Of several that are known by it, or none, only an operator can tell whose it is.
        owners = accepted & set(names) or {name for name in names if part in known[name]}
        if len(owners) == 1:
            for name in set(names) - owners:
                foreign.setdefault(name, []).append(part)
    return foreign


def _shared_parts(snapshots: Mapping[str, StoredSnapshot]) -> dict[str, list[str]]:
    """Return, by part, the nodes that name it, of parts that several name."""
    namers: dict[str, list[str]] = {}
    for name, kept in snapshots.items():
        for part in _parts(kept):
            namers.setdefault(part, []).append(name)
    return {part: names for part, names in namers.items() if len(names) > 1}


def _parts(kept: StoredSnapshot) -> set[str]:
    return {kept.snapshot.serial, *(gpu.uuid for gpu in kept.snapshot.gpus)} - {""}


def _known_parts(past: Sequence[Path], name: str) -> set[str]:
    previous = night_store.last_snapshot(past, name)
    if previous is None:
        return set()
    before = previous.snapshot
    return {before.identity_serial or before.serial, *before.identity_gpus} | {
        gpu.uuid for gpu in before.gpus
    }


def _without(kept: StoredSnapshot, parts: Sequence[str]) -> StoredSnapshot:
    """Return what is left of a snapshot: what it says of these parts is nobody's."""
    seen, about = kept.snapshot, kept.about
    if seen.serial in parts:
        # With it goes what else would name the hardware: the node is then known by its own name alone.
        about = about.model_copy(update={"serial": "", "chassis_serial": ""})
    about = about.model_copy(update={"gpus": tuple(gpu for gpu in about.gpus if gpu.uuid not in parts)})
    own = {
        "hardware_key": about.hardware_key,
        "serial": about.serial,
        "identity_serial": "" if seen.identity_serial in parts else seen.identity_serial,
        "identity_gpus": tuple(one for one in seen.identity_gpus if one not in parts),
        "gpus": tuple(gpu for gpu in seen.gpus if gpu.uuid not in parts),
        "xids": tuple(one for one in seen.xids if one.uuid not in parts),
        "hardware_events": tuple(one for one in seen.hardware_events if one.uuid not in parts),
        "foreign_parts": tuple(dict.fromkeys([*seen.foreign_parts, *parts])),
    }
    return kept.model_copy(update={"snapshot": seen.model_copy(update=own), "about": about})
