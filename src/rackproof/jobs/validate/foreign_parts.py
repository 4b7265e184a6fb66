"""Find parts that two nodes report in one night, although only one of them owns the part.

The measuring and the judging of a night call :func:`settle_foreign_parts` before they use the snapshots. The
faults and numbers of a node that reports the serial number or a GPU of another node would count for that
other node. The part is therefore removed from the reporting node's snapshot. A part is the serial number of a
machine or the UUID of a GPU. A node's identity is the set of parts that earlier nights found in it, or that
an operator accepted for it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import chain
from pathlib import Path

from rackproof.core.records import Verdict
from rackproof.core.text import sanitize
from rackproof.nodes.health_subjects import HealthFinding
from rackproof.store import night_store
from rackproof.store.known_parts import identity_parts, without_parts
from rackproof.store.night_store import StoredSnapshot


def settle_foreign_parts(
    folder: Path, past: Sequence[Path], snapshots: Mapping[str, StoredSnapshot]
) -> dict[str, StoredSnapshot]:
    """Return a night's snapshots without the parts that identify another node, and store the changed ones.

    Args:
        folder: The folder of the night.
        past: The folders of earlier nights, newest first.
        snapshots: The snapshots of tonight, by node.

    Raises:
        ResultsError: A snapshot cannot be written.
    """
    settled = dict(snapshots)
    for name, parts in _foreign_parts(past, snapshots).items():
        settled[name] = _without(snapshots[name], parts)
        night_store.write_snapshot(folder, name, settled[name])
    return settled


def foreign_parts_finding(name: str, parts: Sequence[str]) -> HealthFinding:
    """Return the finding about a node that reports parts of others."""
    listed = ", ".join(sanitize(part, 60) for part in parts[:4])
    more = f" and {len(parts) - 4} more" if len(parts) > 4 else ""
    return HealthFinding(
        node=name,
        code="foreign_parts",
        verdict=Verdict.UNPROVEN,
        action="inspect",
        evidence=f"it reports {listed}{more} of another node that answers tonight: two names lead to one "
        "machine (check ansible_host and the name server), or it reports wrong values; none of its values "
        "was used",
    )


def _foreign_parts(past: Sequence[Path], snapshots: Mapping[str, StoredSnapshot]) -> dict[str, list[str]]:
    """Return the parts that a node reports but that only one other node may own, by the reporting node."""
    accepted = {name for name, stored in snapshots.items() if stored.snapshot.identity_accepted}
    shared = _shared_parts(snapshots)
    # Earlier nights are read only for these nodes. Usually there are none.
    before = {
        name: night_store.last_snapshot(past, name) for name in set(chain.from_iterable(shared.values()))
    }
    foreign: dict[str, list[str]] = {}
    for part, names in shared.items():
        owners = _owners(part, names, accepted, before)
        # If the part identifies several nodes or none, only an operator can decide which node owns it.
        if len(owners) == 1:
            for name in set(names) - owners:
                foreign.setdefault(name, []).append(part)
    return foreign


def _owners(
    part: str,
    names: Collection[str],
    accepted: Collection[str],
    before: Mapping[str, StoredSnapshot | None],
) -> set[str]:
    """Return the nodes that may own a part, or an empty set if the part identifies no node.

    These rules decide, in this order: an operator accepted the node's identity, the part belongs to the
    node's identity, or the node's last snapshot has the GPU. The identity comes before the last snapshots,
    because an owner that was off has reported nothing since.
    """
    owners = set(names)
    owners_of_parts = (
        set(accepted),
        {name for name in names if part in identity_parts(before[name])},
        {name for name in names if part in _last_gpus(before[name])},
    )
    for owned in owners_of_parts:
        owners = owners & owned or owners
    return owners if owners <= set().union(*owners_of_parts) else set()


def _last_gpus(previous: StoredSnapshot | None) -> set[str]:
    """Return the UUIDs of the GPUs in an earlier snapshot."""
    return {gpu.uuid for gpu in previous.snapshot.gpus} if previous else set()


def _shared_parts(snapshots: Mapping[str, StoredSnapshot]) -> dict[str, list[str]]:
    """Return the reporting nodes of each part that several nodes report, by part."""
    namers: dict[str, list[str]] = {}
    for name, stored in snapshots.items():
        for part in {stored.snapshot.serial, *(gpu.uuid for gpu in stored.snapshot.gpus)} - {""}:
            namers.setdefault(part, []).append(name)
    return {part: names for part, names in namers.items() if len(names) > 1}


def _without(stored: StoredSnapshot, parts: Sequence[str]) -> StoredSnapshot:
    """Return a snapshot without the given parts and their events. The field ``foreign_parts`` lists them."""
    snapshot, node = stored.snapshot, stored.about
    node = without_parts(node, parts)
    own_parts = {
        "hardware_key": node.hardware_key,
        "serial": node.serial,
        "identity_serial": "" if snapshot.identity_serial in parts else snapshot.identity_serial,
        "identity_gpus": tuple(
            identity_gpu for identity_gpu in snapshot.identity_gpus if identity_gpu not in parts
        ),
        "gpus": tuple(gpu for gpu in snapshot.gpus if gpu.uuid not in parts),
        "xids": tuple(xid for xid in snapshot.xids if xid.uuid not in parts),
        "hardware_events": tuple(
            hardware_event for hardware_event in snapshot.hardware_events if hardware_event.uuid not in parts
        ),
        "foreign_parts": tuple(dict.fromkeys([*snapshot.foreign_parts, *parts])),
    }
    return stored.model_copy(update={"snapshot": snapshot.model_copy(update=own_parts), "about": node})
