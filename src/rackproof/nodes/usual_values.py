"""Keep the best values that nights read of a node's parts, for comparison in later nights.

A value is compared with the usual value of its part, and not with last night's value. Otherwise, a loss in
two nights would be the value with which the third night is compared. :func:`with_usual_values` gives a
snapshot the usual values. :func:`rackproof.nodes.snapshot.build_snapshot` and the health checks call it.

A usual value ends with its part, such as a GPU of another UUID in its place, or when an operator accepts the
present values (``validate_accept_identity``). A value that was not read changes nothing. The module does no
I/O.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import inf
from typing import Any

from rackproof.core.untrusted import leading_number
from rackproof.nodes.snapshot_records import GpuSnapshot, GpuUsual, NodeSnapshot, PortSnapshot

DRIVER_COMPONENTS = ("fabricmanager", "gsp", "module.nvidia")
"""Components that belong to the driver, by their names in ``NodeSnapshot.versions``."""
DISK_TYPES = ("ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "zfs")
"""Types of file systems on disks. Others, such as squashfs, may be read-only by design."""
MOST_KEPT = 512
"""Largest number of missing readings, of disks and of absent GPUs that are stored for a node."""


def memory_key(gpu: GpuSnapshot) -> str:
    """Return the name of a GPU's memory in its usual values. On some models, ECC takes a part of it."""
    return f"memory, ECC {gpu.ecc_enabled}"


def with_usual_values(
    snapshot: NodeSnapshot, previous: NodeSnapshot | None, *, accepted: bool = False
) -> NodeSnapshot:
    """Return a snapshot with the usual values of its parts, from an earlier night and from its own values.

    Args:
        snapshot: The snapshot of tonight.
        previous: The snapshot of an earlier night, which may be from a version without usual values.
        accepted: Whether the values that were read tonight become the usual ones.
    """
    return snapshot.model_copy(
        update={
            **_gpus(snapshot, previous, accepted),
            "ports": _ports(snapshot, previous, accepted),
            **_disks(snapshot, previous, accepted),
            "lost_readings": _lost(
                (_earlier_readings(previous, snapshot),) if previous else (),
                snapshot.lost_readings,
                _node_readings(snapshot),
                snapshot.identity_accepted,
            ),
        }
    )


# GPUs.


def _gpus(snapshot: NodeSnapshot, previous: NodeSnapshot | None, accepted: bool) -> dict[str, Any]:
    """Return the GPUs with their usual values, and the usual values of absent GPUs of the node's identity."""
    known = _known_gpus(previous)
    links_read = snapshot.tools.get("nvlink_status") == "ok"
    gpus = []
    for gpu in snapshot.gpus:
        usual = _with_readings(gpu, known.get(gpu.uuid), snapshot)
        if accepted:
            usual = usual.replaced(_values_of(gpu), links_read=links_read and not gpu.mig)
        gpus.append(gpu.model_copy(update={"usual": usual}))
    present = {gpu.uuid for gpu in snapshot.gpus}
    absent = [uuid for uuid in snapshot.identity_gpus if uuid in known and uuid not in present]
    return {"gpus": tuple(gpus), "absent_gpus": {uuid: known[uuid] for uuid in absent[:MOST_KEPT]}}


def _known_gpus(previous: NodeSnapshot | None) -> dict[str, GpuUsual]:
    """Return the values that earlier nights read of each GPU, by UUID."""
    if previous is None:
        return {}
    known = dict(previous.absent_gpus)
    for gpu in (*previous.gone_gpus, *previous.gpus):
        usual = gpu.usual.joined(_values_of(gpu))
        readings = sorted({*usual.lost_readings, *_gpu_readings(gpu)})
        driver = usual.driver or previous.versions.get("driver", "")
        known[gpu.uuid] = usual.model_copy(update={"lost_readings": tuple(readings), "driver": driver})
    return known


def _with_readings(gpu: GpuSnapshot, known: GpuUsual | None, snapshot: NodeSnapshot) -> GpuUsual:
    """Return the usual values of a GPU, with the readings of earlier nights that it lacks tonight."""
    driver = snapshot.versions.get("driver", "")
    usual = gpu.usual.joined(_values_of(gpu))
    is_same = known is not None and (not driver or known.driver in (driver, ""))
    if known is not None:
        usual = known.joined(usual)
    return usual.model_copy(
        update={
            "driver": driver or usual.driver,
            "lost_readings": _lost(
                # Another driver version may report less.
                (usual.lost_readings,) if is_same else (),
                gpu.usual.lost_readings,
                _gpu_readings(gpu),
                snapshot.identity_accepted,
            ),
        }
    )


def _values_of(gpu: GpuSnapshot) -> GpuUsual:
    """Return the values that were read of a GPU in one night."""
    values = {
        "pcie_width_max": gpu.pcie_width_max,
        "pcie_generation_max": gpu.pcie_generation_max,
        "link_gb_s": max(gpu.link_gb_s.values(), default=None),
        memory_key(gpu): gpu.memory_total_bytes,
    }
    numbers = {name: float(value) for name, value in values.items() if value and 0 < value < inf}
    return GpuUsual(serial=gpu.serial, values=numbers, links=gpu.links)


def _gpu_readings(gpu: GpuSnapshot) -> set[str]:
    """Return the names of the fields that the driver reported of a GPU."""
    return {name for name, value in gpu if name != "usual" and value not in (None, "", {})}


# Ports, disks and readings of the node.


def _ports(snapshot: NodeSnapshot, previous: NodeSnapshot | None, accepted: bool) -> tuple[PortSnapshot, ...]:
    """Return the ports, each with its highest rate, whether it was ever active, and its lost counters."""
    before = (*previous.gone_ports, *previous.ports) if previous else ()
    known = {(port.device, port.port): port for port in before}
    return tuple(
        _port(port, known.get((port.device, port.port), port), snapshot.identity_accepted, accepted)
        for port in snapshot.ports
    )


def _port(port: PortSnapshot, known: PortSnapshot, readings_accepted: bool, accepted: bool) -> PortSnapshot:
    """Return a port with the best values that it ever had. ``known`` is the port in an earlier night."""
    rates = [known.usual_gbps, known.rate_gbps, port.usual_gbps, port.rate_gbps]
    highest_gbps = max((rate for rate in rates if rate), default=None)
    # A link can only go down after it was up, but a reboot clears the counter.
    was_active = known.was_active or known.state == "active" or port.was_active
    is_active = port.state == "active" or port.lost_links is not None
    if accepted:
        highest_gbps = port.rate_gbps or highest_gbps
        was_active = was_active and not port.state
    lost_counters = _lost(
        (known.lost_counters, known.counters), port.lost_counters, port.counters, readings_accepted
    )
    return port.model_copy(
        update={
            "usual_gbps": highest_gbps,
            "was_active": was_active or is_active,
            "lost_counters": lost_counters,
        }
    )


def _disks(snapshot: NodeSnapshot, previous: NodeSnapshot | None, accepted: bool) -> dict[str, Any]:
    """Return the paths of the file systems on disks that are writable, and of those that no longer are."""
    earlier = snapshot if previous is None else previous
    # A snapshot of an earlier version has only the table.
    writable = {*earlier.writable_mounts, *_disks_that(earlier, can_be_written=True)}
    lost = {*snapshot.lost_mounts, *earlier.lost_mounts}
    if snapshot.mount_table:
        writable_now = _disks_that(snapshot, can_be_written=True)
        lost = (lost | (writable & _disks_that(snapshot, can_be_written=False))) - writable_now
        lost = set() if accepted else lost
        writable = writable_now
    return {
        "writable_mounts": tuple(sorted(writable)[:MOST_KEPT]),
        "lost_mounts": tuple(sorted(lost)[:MOST_KEPT]),
    }


def _disks_that(snapshot: NodeSnapshot, *, can_be_written: bool) -> set[str]:
    """Return the paths of the file systems on disks that can be written, or of those that cannot."""
    return {
        path
        for path, mount in snapshot.mount_table.items()
        if mount["type"] in DISK_TYPES and is_read_only(mount) is not can_be_written
    }


def is_read_only(mount: Mapping[str, str]) -> bool:
    """Return whether a mount or its file system is read-only. After an error, only the file system is."""
    return "ro" in (*mount["options"].split(","), *mount["super_options"].split(","))


def _earlier_readings(previous: NodeSnapshot, snapshot: NodeSnapshot) -> set[str]:
    """Return the readings of earlier nights that the node must have tonight."""
    readings = {*previous.lost_readings, *_node_readings(previous)}
    driver, before = snapshot.versions.get("driver", ""), _last_drivers(previous)
    if driver and before and driver not in before:
        # Another driver version may have fewer components, as it may report less of a GPU.
        readings -= {version_reading(name) for name in DRIVER_COMPONENTS}
    return readings


def _last_drivers(previous: NodeSnapshot) -> set[str]:
    """Return the version of the driver of an earlier night, or of those that last reported the GPUs."""
    # In a night without a driver, nothing has its version.
    driver = previous.versions.get("driver")
    return {driver} if driver else {usual.driver for usual in _known_gpus(previous).values()} - {""}


def _node_readings(snapshot: NodeSnapshot) -> set[str]:
    """Return the names of the readings of a node that a later night must read again."""
    versions = {version_reading(name) for name in DRIVER_COMPONENTS if snapshot.versions.get(name)}
    links = {
        link_reading(address, quantity)
        for address, link in snapshot.links.items()
        for quantity in ("width", "speed")
        if leading_number(link.get(f"current_link_{quantity}", ""))
    }
    return versions | links | ({"boot_id"} if snapshot.boot_id else set())


def version_reading(component: str) -> str:
    """Return the name of a component's version in the readings of a node."""
    return f"version of {component}"


def link_reading(address: str, quantity: str) -> str:
    """Return the name of a network card's link width or speed in the readings of a node."""
    return f"{quantity} of {address}"


def _lost(
    earlier: Iterable[Iterable[str]],
    lost: Iterable[str],
    present: Iterable[str] | Mapping[str, Any],
    accepted: bool,
) -> tuple[str, ...]:
    """Return the sorted readings of earlier nights that are missing tonight.

    Args:
        earlier: The readings of earlier nights, in several groups.
        lost: The readings that are known to be missing tonight.
        present: The readings of tonight.
        accepted: Whether an operator accepts tonight's readings. If so, no reading is missing.
    """
    if accepted:
        return ()
    known = {*lost, *(name for names in earlier for name in names)}
    return tuple(sorted(known.difference(present))[:MOST_KEPT])
