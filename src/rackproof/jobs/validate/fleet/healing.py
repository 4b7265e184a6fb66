"""List the evidence that a drained node needs before a pass counts. No I/O.

A code names a failure, such as ``nvlink_down`` (of a health check) or ``floor:gemm_best`` (``CHECK:METRIC``,
of a measurement). Evidence is a reading that shows that the failure is over, such as ``health:nvlinks``.

Job validate calls :func:`healed_evidence` with the snapshot of a node that nights drained. The drain policy
then calls :func:`lacking_for` with each code of the drain. A night counts as a pass only if all evidence for
the codes was read, and no code was found again.

The table :data:`HEALED_BY` lists the evidence for each code that can drain a node and that a night can find
healed. After a code without a row or rule, the node remains drained until an operator resumes it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from rackproof.core.evidence import EvidenceState, RequiredEvidence, state_of_tool, state_of_value
from rackproof.core.gpu_models import MODELS_WITHOUT_REPAIRS, is_one_of
from rackproof.logs.kernel_events import requested_action
from rackproof.nodes.health_checks import check_node, code_name, expected_mounts
from rackproof.nodes.health_subjects import Expectation, PortUse, port_use, service_units
from rackproof.nodes.night_evidence import missing_readings
from rackproof.nodes.probe_slurm_jobs import PROBES
from rackproof.nodes.snapshot_records import GpuSnapshot, NodeSnapshot, PortSnapshot
from rackproof.nodes.usual_values import DISK_TYPES, is_read_only

PROGRAMS = frozenset(probe.name for probe in PROBES)
"""The names of all programs that a night may run on a node."""
SOAK = "soak"
"""Name of the program, the benchmark and the evidence of a load that makes GPUs hot. The program checks each
second whether the GPUs slow down."""
_MARK = "health:"
"""Prefix of the names of health evidence, which distinguishes them from metrics of the same name."""
_COMPARED = {"fleet": ", compared with other nodes", "drift": ", as before the drain beside other nodes"}
"""Checks that compare a number with other numbers. A night must repeat the comparison to heal a finding
of such a check. The text describes the comparison to the operator."""
_DRIVER_TOOLS = ("nvidia_smi", "nvlink_")
"""Prefixes of the tools that query the driver."""
_DATA_COUNTERS = ("port_rcv_data", "port_xmit_data")
"""Counters of a port's data in /sys/class/infiniband, in words of four bytes."""
_LEAST_WORDS = 250_000_000
"""Number of words (1 GB) that each port must send and receive to prove that packets arrive without errors. A
measurement of a pair of nodes moves more."""


@dataclass(frozen=True)
class DrainedNode:
    """A node that nights drained, with the snapshots to compare.

    Attributes:
        tonight: The snapshot of tonight.
        expected: The inventory's expectations of the node.
        idle: Whether no job uses the node.
        failed: The snapshot of the last night in which the node failed, or None if it is lost or if no stored
            night made the drain.
        before: The last snapshot before the night that drained the node, or None if lost or unknown.
        is_first: Whether it is known that no night before the drain stored a snapshot of the node.
        soaked: The UUIDs of the GPUs that passed a soak since the night before.
    """

    tonight: NodeSnapshot
    expected: Expectation
    idle: bool = False
    failed: NodeSnapshot | None = None
    before: NodeSnapshot | None = None
    is_first: bool = False
    soaked: Collection[str] = ()

    @property
    def counted(self) -> tuple[NodeSnapshot, ...]:
        """Return the earlier snapshots, which show the counters that the node's parts have."""
        return tuple(snapshot for snapshot in (self.before, self.failed) if snapshot is not None)

    @property
    def earlier(self) -> tuple[NodeSnapshot, ...]:
        """Return the earlier snapshots, which show the parts and readings that the node has.

        Without the last snapshot before the drain, there are none, unless the node had none. In the others,
        a part may already be missing.
        """
        return () if self.before is None and not self.is_first else self.counted

    @cached_property
    def codes_against_before(self) -> frozenset[str]:
        """Return the codes of tonight's health checks, compared with the last snapshot before the drain."""
        return frozenset(
            finding.code for finding in check_node(self.tonight, previous=self.before, expected=self.expected)
        )


def healed_evidence(node: DrainedNode) -> tuple[str, ...]:
    """Return the sorted names of the evidence that was read from a node tonight."""
    present = [row.name for row in EVIDENCE if row.state(node) is EvidenceState.THERE]
    # Each version and each service is evidence of its own.
    present += [f"version_{code_name(name)}" for name, text in node.tonight.versions.items() if text]
    present += [f"service_{name}" for name in _running_services(node)]
    return tuple(sorted({f"{_MARK}{name}" for name in present}))


def lacking_for(code: str, read: Collection[str]) -> tuple[str, ...] | None:
    """Return the evidence that must heal a code but was not read or measured tonight.

    Args:
        code: The cause of the drain, which is a finding's code or ``CHECK:METRIC``.
        read: The evidence that was read (:func:`healed_evidence`), the measurements since the night
            before, and their comparisons (:func:`rackproof.analysis.drained_comparisons.comparisons`).

    Returns:
        The names of the missing evidence. The tuple is empty if nothing is missing. None means that no
        evidence can heal the code.
    """
    check, colon, metric = code.partition(":")
    if colon:
        return _lacking_measurement(check, metric, read)
    needed = healing_evidence(code)
    return None if needed is None else tuple(name for name in needed if f"{_MARK}{name}" not in read)


def _lacking_measurement(check: str, metric: str, read: Collection[str]) -> tuple[str, ...] | None:
    """Return the measurement that must heal a code but was not made tonight, or None."""
    # If the stored nights are lost, the code comes from Slurm's reason, which contains only the first word of
    # a metric.
    benchmark = metric.partition(" ")[0]
    if check in _COMPARED or check == "floor":
        # Only the same comparison shows that a finding from a comparison no longer applies.
        mark = f"{check}:" if check in _COMPARED else ""
        quantities = {text.partition(" ")[0] for text in read if not text.startswith(_MARK)}
        is_read = f"{mark}{metric}" in read or (benchmark == metric and f"{mark}{benchmark}" in quantities)
        return () if is_read else (f"{metric}{_COMPARED.get(check, '')}",)
    if check not in ("bits", "probe"):
        return None
    program = "training-step" if check == "bits" else benchmark
    program = program if program in PROGRAMS else "job"
    return () if program in read else (f"probe {program}",)


def worse_than_before(read: Collection[str]) -> tuple[str, ...]:
    """Return the codes that a comparison with the night before the drain finds, or could not exclude.

    ``read`` is the evidence that was read (:func:`healed_evidence`).
    """
    return tuple(code for code in COMPARED_CODES if f"{_MARK}{code}_as_before" not in read)


def healing_evidence(code: str) -> tuple[str, ...] | None:
    """Return the names of the evidence that heals a health code, or None if none can heal it."""
    if code in HEALED_BY:
        return HEALED_BY[code]
    if code.startswith(("version_", "service_")):
        return (code,)
    if code.startswith("mismatch_"):
        return ("version_driver", code.replace("mismatch_", "version_", 1))
    if xid := re.fullmatch(r"s?xid_(\d{1,6})", code):
        return _xid_evidence(int(xid[1]), is_switch=code.startswith("s"))
    return None


def _xid_evidence(number: int, *, is_switch: bool) -> tuple[str, ...] | None:
    """Return the evidence that heals an XID or SXid, or None if its remedy is neither reset nor boot."""
    action = "reboot" if is_switch else requested_action(number, "")
    if action == "isolate":
        return None
    # XID 154 names the required reset, and remains open until the reset is done.
    needs_reset = action == "reset" or (number == 154 and not is_switch)
    return ("gpus", "kernel_log", "reset_or_booted" if needs_reset else "booted")


# The functions below return the state of a piece of evidence. "Return whether" means THERE if the condition
# holds, and otherwise ABSENT or the state of the answer that is missing.


def _state(is_there: bool) -> EvidenceState:
    """Return the state of evidence that is either there or absent."""
    return EvidenceState.THERE if is_there else EvidenceState.ABSENT


def _tool(name: str) -> Callable[[DrainedNode], EvidenceState]:
    """Return a function that returns the state of a tool's answer."""

    def state(node: DrainedNode) -> EvidenceState:
        if name in node.tonight.truncated:
            return EvidenceState.CUT
        return state_of_tool(node.tonight.tools.get(name, ""))

    return state


def _all_gpus(node: DrainedNode) -> EvidenceState:
    """Return whether the driver lists as many GPUs as are required, or else as were there before."""
    answer = _tool("nvidia_smi_xml")(node)
    if answer is not EvidenceState.THERE:
        return answer
    earlier_counts = [
        len({gpu.uuid for gpu in snapshot.gpus} | {gpu.uuid for gpu in snapshot.gone_gpus})
        for snapshot in node.earlier
    ]
    return _enough(len({gpu.uuid for gpu in node.tonight.gpus}), node.expected.gpus, earlier_counts)


def _enough(count: int, expected: int | None, earlier_counts: Sequence[int]) -> EvidenceState:
    """Return whether a node has as many parts as are required, or else as were there before."""
    least = expected or max((*earlier_counts, 1))
    return _state(count >= least and bool(expected or earlier_counts))


def _gpus(reads: Callable[[GpuSnapshot], bool]) -> Callable[[DrainedNode], EvidenceState]:
    """Return a function for the state of a reading that every GPU of the node must report."""

    def state(node: DrainedNode) -> EvidenceState:
        answer = _all_gpus(node)
        if answer is not EvidenceState.THERE:
            return answer
        return _state(all(reads(gpu) for gpu in node.tonight.gpus))

    return state


def _values(*fields: str, as_before: Iterable[str] = ()) -> Callable[[DrainedNode], EvidenceState]:
    """Return a function that checks whether every GPU reports these fields.

    A field in ``as_before`` is required only if a GPU of the node reported it in an earlier night. With such
    fields but without an earlier snapshot, the evidence is absent.
    """

    def state(node: DrainedNode) -> EvidenceState:
        if as_before and not node.earlier:
            return EvidenceState.ABSENT
        known = {
            name
            for name in as_before
            if any(_has(gpu, name) for earlier in node.earlier for gpu in earlier.gpus)
        }
        return _gpus(lambda gpu: all(_has(gpu, name) for name in (*fields, *known)))(node)

    return state


def _has(gpu: GpuSnapshot, field: str) -> bool:
    """Return whether a GPU reports a reading. No active reason for throttling is also a reading."""
    value = getattr(gpu, field)
    return value is not None if field == "throttled" else state_of_value(value) is EvidenceState.THERE


def _pending_repairs(node: DrainedNode) -> EvidenceState:
    """Return whether each GPU reports its pending repairs, unless its model never reports them."""
    reported = [gpu for gpu in node.tonight.gpus if gpu.repairs_pending is not None]
    silent = [gpu for gpu in node.tonight.gpus if gpu.repairs_pending is None]
    answer = _all_gpus(node)
    if answer is not EvidenceState.THERE:
        return answer
    return _state(bool(reported) and all(is_one_of(gpu.name, MODELS_WITHOUT_REPAIRS) for gpu in silent))


def _readings(node: DrainedNode) -> EvidenceState:
    """Return whether each GPU reports the readings that its SKU lists, without error texts."""
    return _gpus(lambda gpu: not gpu.errors and not missing_readings(gpu, node.expected.gpu_readings))(node)


def _driver_tools(node: DrainedNode) -> EvidenceState:
    """Return whether ``nvidia-smi`` answers, and each driver tool that answered or hung in an earlier night.

    Without an earlier snapshot, the evidence is absent.
    """
    tools = {
        tool
        for snapshot in node.earlier
        for tool, status in snapshot.tools.items()
        if tool.startswith(_DRIVER_TOOLS) and status in ("ok", "hung")
    }
    if not node.earlier:
        return EvidenceState.ABSENT
    states = [_tool(tool)(node) for tool in sorted({"nvidia_smi_xml", *tools})]
    return next((state for state in states if state is not EvidenceState.THERE), EvidenceState.THERE)


def _booted(node: DrainedNode) -> EvidenceState:
    """Return whether the node was booted since it failed. Some faults end only with a boot."""
    boot_id_then = node.failed.boot_id if node.failed else ""
    return _state(bool(boot_id_then and node.tonight.boot_id and boot_id_then != node.tonight.boot_id))


def _reset_or_booted(node: DrainedNode) -> EvidenceState:
    """Return whether the node was booted since it failed, or each GPU reports that it needs no recovery."""
    if _booted(node) is EvidenceState.THERE:
        return EvidenceState.THERE
    return _gpus(lambda gpu: gpu.recovery_action == "None")(node)


def _slowdowns(node: DrainedNode) -> EvidenceState:
    """Return whether each GPU has the counters of slowdowns that earlier snapshots have."""
    counted = {reason for snapshot in node.counted for gpu in snapshot.gpus for reason in gpu.slowdown_s}
    return _gpus(lambda gpu: bool(counted) and counted <= gpu.slowdown_s.keys())(node)


def _soaked(node: DrainedNode) -> EvidenceState:
    """Return whether each GPU passed a soak. An idle GPU is cool, so other readings prove no cooling."""
    return _gpus(lambda gpu: gpu.uuid in node.soaked)(node)


def _nvlinks(node: DrainedNode) -> EvidenceState:
    """Return whether each GPU has as many active NVLinks as are required, or else as before the drain."""
    answer = _tool("nvlink_status")(node)
    if answer is not EvidenceState.THERE:
        return answer
    past = [sum(gpu.links.values()) for gpu in (node.before.gpus if node.before else ())]
    expected_count = node.expected.nvlinks or max(past, default=0)

    def is_up(gpu: GpuSnapshot) -> bool:
        up = sum(gpu.links.values())
        # If the number of links is unknown, an inactive link may be the faulty one.
        return up >= expected_count if expected_count else bool(up) and all(gpu.links.values())

    return _gpus(is_up)(node)


def _idle_memory(node: DrainedNode) -> EvidenceState:
    """Return whether the used GPU memory was read while no job ran, or NOT_ASKED if a job may run."""
    return _values("memory_used_bytes")(node) if node.idle else EvidenceState.NOT_ASKED


def _ports(node: DrainedNode) -> EvidenceState:
    """Return whether as many ports of each use were read as are required, or else as were there before."""

    # Snapshots of earlier versions do not state which ports manage NVSwitches.
    bridges = {(port.device, port.port) for port in node.tonight.ports if port.nvswitch}

    def count(ports: Iterable[PortSnapshot], use: PortUse) -> int:
        of_use = {(port.device, port.port) for port in ports if port_use(port, node.expected) == use}
        return len(of_use - bridges)

    read = [port for port in node.tonight.ports if port.state and port.rate_gbps]
    earlier_others = [count(snapshot.ports, "other") for snapshot in node.earlier]
    if count(read, "other") < (node.expected.other_ports or max(earlier_others, default=0)):
        return EvidenceState.ABSENT
    earlier_counts = [count(snapshot.ports, "compute") for snapshot in node.earlier]
    return _enough(count(read, "compute"), node.expected.ports, earlier_counts)


def _port_counters(node: DrainedNode) -> EvidenceState:
    """Return whether each port has the error counters that earlier snapshots have."""
    counted = {name for snapshot in node.counted for port in snapshot.ports for name in port.counters}
    return _state(bool(counted) and all(counted <= port.counters.keys() for port in node.tonight.ports))


def _port_traffic(node: DrainedNode) -> EvidenceState:
    """Return whether each port sent and received much data after the night in which the node failed.

    Without packets, no error of a packet can occur. Errors of symbols and of the link also occur without
    data, because a link that is up always sends symbols.
    """
    if node.failed is None:
        return EvidenceState.ABSENT
    failed = {(port.device, port.port): port.counters for port in node.failed.ports}
    moved = [
        _growth(port.counters.get(name, 0), failed.get((port.device, port.port), {}).get(name, 0))
        for port in node.tonight.ports
        for name in _DATA_COUNTERS
    ]
    return _state(min(moved, default=0) >= _LEAST_WORDS)


def _growth(now: int, before: int) -> int:
    """Return by how much a counter grew. The counter restarts at a boot, or when an operator clears it."""
    return now - before if now >= before else now


def _card_links(node: DrainedNode) -> EvidenceState:
    """Return whether the PCIe links of all known network cards were read."""
    earlier_addresses = {address for snapshot in node.earlier for address in snapshot.links}
    keys = ("current_link_width", "max_link_width", "current_link_speed", "max_link_speed")
    addresses_read = {
        address
        for address, link in node.tonight.links.items()
        if all(re.match(r"\d", link.get(key, "")) for key in keys)
    }
    return _state(bool(node.earlier and addresses_read) and earlier_addresses <= addresses_read)


def _mounts(node: DrainedNode) -> EvidenceState:
    """Return whether the required mounts are present. If none is required, the evidence is ABSENT."""
    paths = {mount.path for mount in expected_mounts(node.expected)}
    mounts, table = set(node.tonight.mounts or ()), set(node.tonight.mount_table)
    return _state(bool(paths) and paths <= mounts and paths <= table)


def _writable_mounts(node: DrainedNode) -> EvidenceState:
    """Return whether the expected file systems, and file systems that were writable before, are writable.

    Without an earlier snapshot, the evidence is absent.
    """
    table = node.tonight.mount_table
    if not table or not node.earlier:
        return EvidenceState.ABSENT
    expected = expected_mounts(node.expected)
    read_only = {mount.path for mount in expected if "ro" in mount.options}
    if node.before is not None:
        read_only |= {path for path, mount in node.before.mount_table.items() if is_read_only(mount)}
    expected_paths = {mount.path for mount in expected}.union(
        *(_disk_mounts(snapshot.mount_table) for snapshot in node.earlier)
    )
    damaged = {path for path, mount in table.items() if is_read_only(mount)} - read_only
    return _state(
        expected_paths - read_only <= table.keys() and not damaged & (expected_paths | _disk_mounts(table))
    )


def _disk_mounts(table: Mapping[str, Mapping[str, str]]) -> set[str]:
    """Return the paths of the file systems on disks."""
    return {path for path, mount in table.items() if mount["type"] in DISK_TYPES}


def _disks(node: DrainedNode) -> EvidenceState:
    """Return whether the sizes of all known file systems were read."""
    earlier_paths = {path for snapshot in node.earlier for path in snapshot.disk}
    return _state(bool(node.earlier and node.tonight.disk) and earlier_paths <= node.tonight.disk.keys())


def _inodes(node: DrainedNode) -> EvidenceState:
    """Return whether the inodes of all known file systems were read."""
    counted = all({"total_inodes", "free_inodes"} <= disk.keys() for disk in node.tonight.disk.values())
    return _disks(node) if counted else EvidenceState.ABSENT


def _running_services(node: DrainedNode) -> Iterator[str]:
    """Yield the names of the services that run, as in the codes of findings."""
    services = node.tonight.services or {}
    for name, state in services.items():
        if state == "active":
            yield code_name(name.removesuffix(".service"))
    for service in node.expected.services:
        units = service_units(service)
        if any(services.get(unit) == "active" for unit in units):
            yield code_name(units[0].removesuffix(".service"))


def _as_before(code: str) -> Callable[[DrainedNode], EvidenceState]:
    """Return a function that checks that a comparison with the snapshot before the drain finds no such code.

    A comparison with last night is not enough: if a part is bad in both nights, the snapshots do not differ.
    If there is no snapshot before the drain, the evidence is there only if no earlier night stored one.
    """

    def state(node: DrainedNode) -> EvidenceState:
        if node.before is None:
            return _state(node.is_first)
        return _state(code not in node.codes_against_before)

    return state


COMPARED_CODES = (
    *("gpu_serial_changed", "gpu_memory", "pcie_width", "pcie_generation", "nvlink_down", "nvlink_slow"),
)
"""Codes of findings that come from a comparison with the night before. The comparison is repeated with the
snapshot before the drain."""


def _row(
    name: str, read_from: str, state: Callable[[DrainedNode], EvidenceState]
) -> RequiredEvidence[DrainedNode]:
    """Return the row for one kind of evidence.

    ``read_from`` is the origin, and ``state`` returns whether the evidence was read on a node.
    """
    # The rows have no code of a finding, because no finding is made from them. Only their names are shown, in
    # the reason why a node stays drained.
    return RequiredEvidence[DrainedNode](name, read_from, state, "", "see the node's page")


_FABRIC = "nvidia-smi -q, fabric"
_PCIE = "nvidia-smi -q, PCIe"
_TEMPERATURE = "nvidia-smi -q, temperature"
EVIDENCE: tuple[RequiredEvidence[DrainedNode], ...] = (
    _row("gpus", "nvidia-smi -q lists every GPU", _all_gpus),
    _row("driver_tools", "every call of nvidia-smi", _driver_tools),
    _row("gpu_readings", "nvidia-smi -q, without error texts", _readings),
    _row("gpu_serials", "nvidia-smi -q", _values("serial")),
    _row("gpu_memory", "nvidia-smi -q, memory", _values("memory_total_bytes")),
    _row("idle_memory", "nvidia-smi -q, memory, while no job runs", _idle_memory),
    _row("sram", "nvidia-smi -q, ECC", _values("sram_uncorrectable", as_before=("sram_threshold",))),
    _row("remap_failure", "nvidia-smi -q, remapped rows", _values("remap_failure")),
    _row("remap_pending", "nvidia-smi -q, remapped rows", _values("remap_pending")),
    _row("ecc_mode", "nvidia-smi -q, ECC mode", _values("ecc_enabled", as_before=("ecc_enabled_next",))),
    _row("unrepairable_memory", "nvidia-smi -q, ECC", _values("memory_unrepairable")),
    _row("pending_repairs", "nvidia-smi -q, ECC", _pending_repairs),
    _row("mig", "nvidia-smi -q, MIG mode", _values("mig", "mig_next")),
    _row("recovery", "nvidia-smi -q, recovery action", _values("recovery_action")),
    _row("pcie_width", _PCIE, _values("pcie_width", "pcie_width_max")),
    _row(
        "pcie_generation",
        f"{_PCIE}, at its highest",
        # An idle link is slow by design. Its possible speed is then not visible.
        _gpus(lambda gpu: 0 < (gpu.pcie_generation_max or 0) <= (gpu.pcie_generation or 0)),
    ),
    _row("throttling", "nvidia-smi -q, clocks", _values("throttled")),
    _row("slowdowns", "nvidia-smi -q, counters of slow-downs", _slowdowns),
    _row("margin", _TEMPERATURE, _values("margin_c", "temperature_c")),
    _row("temperature", _TEMPERATURE, _gpus(lambda gpu: not missing_readings(gpu, ("temperature",)))),
    _row("memory_temperature", _TEMPERATURE, _values("memory_c")),
    _row(SOAK, "a soak of minutes on each GPU", _soaked),
    _row(
        "power_limit",
        "nvidia-smi -q, power",
        lambda node: _values("power_limit_w", *(() if node.expected.power_limit_w else ("power_default_w",)))(
            node
        ),
    ),
    _row("compute_mode", "nvidia-smi -q, compute mode", _values("compute_mode")),
    _row("nvlinks", "nvidia-smi nvlink -s", _nvlinks),
    _row("fabric_state", _FABRIC, _gpus(lambda gpu: gpu.fabric_state == "Completed")),
    _row("fabric_status", _FABRIC, _gpus(lambda gpu: gpu.fabric_status == "Success")),
    _row("fabric_health", _FABRIC, _gpus(lambda gpu: gpu.fabric_health == "Healthy")),
    _row("fabric_clique", _FABRIC, _values("fabric_clique", "fabric_cluster")),
    *(
        _row(f"{code}_as_before", "the snapshot before the drain", _as_before(code))
        for code in COMPARED_CODES
    ),
    _row("kernel_log", "journalctl, or dmesg", _tool("kernel_log")),
    _row("booted", "the boot's id", _booted),
    _row("reset_or_booted", "the boot's id, or the GPUs' recovery action", _reset_or_booted),
    _row("ports", "/sys/class/infiniband", _ports),
    _row("port_counters", "/sys/class/infiniband", _port_counters),
    _row("port_traffic", "/sys/class/infiniband, counters of data", _port_traffic),
    _row("card_links", "/sys/bus/pci/devices", _card_links),
    _row("memlock", "the limits of a process", lambda node: state_of_value(node.tonight.memlock_bytes)),
    _row("shm", "statvfs of /dev/shm", lambda node: state_of_value(node.tonight.shm_bytes)),
    _row("memory", "/proc/meminfo", lambda node: _state((node.tonight.memory_bytes or 0) > 0)),
    _row("clock", "the node's clock", lambda node: state_of_value(node.tonight.clock_offset_s)),
    _row("mounts", "/proc/self/mountinfo", _mounts),
    _row("writable_mounts", "/proc/self/mountinfo", _writable_mounts),
    _row("disks", "statvfs", _disks),
    _row("inodes", "statvfs", _inodes),
)
"""The rows of all kinds of evidence, except versions and services. Each version and service is evidence with
a name of its own (:func:`healed_evidence`)."""

_OF_KERNEL_LOG = ("kernel_log", "booted")
"""The evidence that an error in the kernel log is over: the log was read, and the node was booted since."""
# Codes of port errors: errors of the link, and errors of packets, which occur only with traffic. Each counter
# has two known names.
_PORT_COUNTERS = (
    *("port_symbol_error", "port_symbolerrorcounter", "port_link_error_recovery"),
    *("port_linkerrorrecoverycounter", "port_link_downed", "port_linkdownedcounter"),
)
_PACKET_COUNTERS = (
    "port_port_rcv_errors",
    "port_portrcverrors",
    "port_port_xmit_discards",
    "port_portxmitdiscards",
)
HEALED_BY: Mapping[str, tuple[str, ...]] = {
    "tool_hung": ("gpus", "driver_tools"),
    "tool_slow": ("gpus", "driver_tools"),
    "no_driver": ("gpus",),
    "gpu_missing": ("gpus",),
    "gpus_missing": ("gpus",),
    "gpu_serial_changed": ("gpu_serials", "gpu_serial_changed_as_before"),
    "gpu_unreadable": ("gpu_readings",),
    "gpu_memory": ("gpu_memory", "gpu_memory_as_before"),
    "memory_in_use": ("idle_memory",),
    "ecc_sram_uncorrectable": ("sram",),
    "remap_failure": ("remap_failure",),
    "remap_pending": ("remap_pending",),
    "ecc_off": ("ecc_mode",),
    "memory_unrepairable": ("unrepairable_memory",),
    "repair_pending": ("pending_repairs",),
    # A corrected infoROM is loaded only with the driver, and a call without a warning proves no check.
    "inforom_corrupted": ("gpus", "driver_tools", "booted"),
    "mig_on": ("mig",),
    "compute_prohibited": ("compute_mode",),
    "recovery_needed": ("recovery",),
    "pcie_width": ("pcie_width", "pcie_width_as_before"),
    "pcie_generation": ("pcie_generation", "pcie_generation_as_before"),
    "throttled": ("throttling", SOAK),
    "slowed_down": ("slowdowns", SOAK),
    "temperature": ("margin", SOAK),
    "too_hot": ("temperature", SOAK),
    "memory_temperature": ("memory_temperature", SOAK),
    "power_limit": ("power_limit",),
    "nvlink_down": ("nvlinks", "nvlink_down_as_before"),
    "nvlink_missing": ("nvlinks",),
    "nvlink_slow": ("nvlinks", "nvlink_slow_as_before"),
    "fabric_incomplete": ("fabric_state",),
    "fabric_failed": ("fabric_state", "fabric_status"),
    "fabric_unhealthy": ("fabric_health",),
    "fabric_no_domain": ("fabric_state", "fabric_status", "fabric_clique"),
    "fabric_split": ("fabric_clique",),
    "gpu_lost": ("gpus", *_OF_KERNEL_LOG),
    "gpu_init_failed": ("gpus", *_OF_KERNEL_LOG),
    "gpu_driver_error": ("gpus", *_OF_KERNEL_LOG),
    "kernel_error": _OF_KERNEL_LOG,
    "port_missing": ("ports",),
    "ports_missing": ("ports",),
    "port_down": ("ports",),
    "port_slow": ("ports",),
    **dict.fromkeys(_PORT_COUNTERS, ("ports", "port_counters")),
    **dict.fromkeys(_PACKET_COUNTERS, ("ports", "port_counters", "port_traffic")),
    "link_width": ("card_links",),
    "link_speed": ("card_links",),
    "memlock": ("memlock",),
    "shm": ("shm",),
    "memory": ("memory",),
    "clock": ("clock",),
    "mount_missing": ("mounts",),
    "mount_differs": ("mounts",),
    "mount_read_only": ("writable_mounts",),
    "disk_read_only": ("disks",),
    "disk_full": ("disks",),
    "inodes_full": ("inodes",),
}
"""The evidence that heals each code. Codes that begin with ``version_``, ``mismatch_``,
``service_``, ``xid_`` or ``sxid_`` have rules instead (:func:`healing_evidence`). No evidence heals a
failed pair, an unknown code, or an identity that no operator has accepted.

A boot heals only kernel events whose remedy is a boot or a reset. It empties the log of a machine check, or
of a fatal error of PCIe, memory, a disk or a network card, but repairs none of them. Their remedy is an
inspection, and only the operator's resume shows that it is done.
"""
