"""List in tables which answers of a node are needed to judge its night.

Begin with :data:`NODE_EVIDENCE`, :data:`GPU_EVIDENCE`, :data:`PORT_EVIDENCE` and :data:`TOOL_EVIDENCE`.
``health_checks.check_node`` evaluates these tables before any check, and reports each lacking piece. The node
is then unproven (or fails, if a tool hangs in the driver), because a missing reading may hide a fault.

A row names a field of the snapshot, or a tool of the gatherer, and a test compares these names. If a machine
may lack some evidence, the row states when it is needed, or why its absence is harmless. The module does no
I/O.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from ipaddress import ip_address
from typing import Any

from rackproof.core.evidence import (
    EvidenceState,
    LackingEvidence,
    RequiredEvidence,
    state_of_tool,
    state_of_value,
)
from rackproof.core.gpu_models import (
    DRIVER_WITH_REPAIRS,
    MODELS_WITH_ALL,
    MODELS_WITH_REPAIRS,
    MODELS_WITHOUT_REPAIRS,
    is_one_of,
)
from rackproof.core.records import Verdict
from rackproof.core.untrusted import leading_number
from rackproof.nodes.health_subjects import GpuSubject, NodeSubject, PortSubject, service_units
from rackproof.nodes.snapshot_records import GpuSnapshot, NodeSnapshot
from rackproof.nodes.usual_values import DRIVER_COMPONENTS, link_reading, version_reading

_SMI = "nvidia-smi -q -x"
_LINK_STATUS, _LINK_ERRORS = "nvidia-smi nvlink -s", "nvidia-smi nvlink -e"
_SYSFS_PORT = "/sys/class/infiniband"
_ASK_AGAIN = "run it by hand, then validate the node again"
_READ_AGAIN = "look at it on the node, then validate the node again"

WITHOUT_ROOT = "queried without root"
USE_ROOT = "use -b, or set ansible_become"
_ROOT_REMEDIES: Mapping[tuple[str, EvidenceState], str] = {
    (
        "kernel_log",
        EvidenceState.FAILED,
    ): f"{WITHOUT_ROOT}, add its user to the groups adm and systemd-journal, or {USE_ROOT}",
    ("serial", EvidenceState.ABSENT): f"{WITHOUT_ROOT}, {USE_ROOT}",
}
"""The remedy for evidence that only root may be able to read, by its name and its state without root."""

DRIVER_TOOLS = ("nvidia_smi_xml", "nvlink_status", "nvlink_errors", "nvidia_smi_list", "nvidia_smi_query")
"""Tools that query the driver. If one hangs in the driver, it cannot be killed, and only a reboot ends it."""

GPU_READINGS: Mapping[str, tuple[str, ...]] = {
    "ecc": (
        *("ecc_enabled", "ecc_enabled_next", "sram_uncorrectable", "sram_threshold", "sram_correctable"),
        *("dram_uncorrectable", "dram_correctable"),
    ),
    "row_remapping": ("remap_pending", "remap_failure"),
    "pcie_link": ("pcie_width", "pcie_width_max", "pcie_generation", "pcie_generation_max"),
    "temperature": ("temperature_c",),
    "throttling": ("throttled",),
    "power_limit": ("power_limit_w", "power_default_w"),
    "recovery_action": ("recovery_action",),
    "memory": ("memory_total_bytes", "memory_used_bytes"),
    "fabric": ("fabric_state", "fabric_status"),
    "nvlink_domain": ("fabric_clique", "fabric_cluster"),
}
"""Fields of each reading that a driver can report of a GPU. A SKU lists the readings of its GPUs."""


def _state(value: Any) -> EvidenceState:
    """Return the state of a plain value. A negative number is damaged."""
    if isinstance(value, int | float) and not isinstance(value, bool) and value < 0:
        return EvidenceState.DAMAGED
    return state_of_value(value)


def _numbers_state(values: Iterable[Any]) -> EvidenceState:
    """Return the state of several numbers. Each must be finite and not negative."""
    numbers = list(values)
    if not numbers:
        return EvidenceState.ABSENT
    is_whole = all(math.isfinite(number) and number >= 0 for number in numbers)
    return EvidenceState.THERE if is_whole else EvidenceState.DAMAGED


# Evidence of the node.


def tool_state(snapshot: NodeSnapshot, tool: str) -> EvidenceState:
    """Return the state of a tool's answer. A truncated answer is a finding of its own (``truncated``)."""
    status = snapshot.tools.get(tool, "")
    return EvidenceState.NOT_ASKED if status == "not_asked" else state_of_tool(status)


def root_remedy(snapshot: NodeSnapshot, lacking: LackingEvidence) -> str:
    """Return the remedy if a node may lack the evidence because it was queried without root, or ""."""
    if snapshot.asked_as_root is not False:
        return ""
    return _ROOT_REMEDIES.get((lacking.name, lacking.state), "")


def is_driver_hung(snapshot: NodeSnapshot) -> bool:
    """Return whether a tool hung in the driver.

    The other tools of the driver were then not called, and need no findings.
    """
    return any(snapshot.tools.get(tool) == "hung" for tool in DRIVER_TOOLS)


def _answered(tool: str) -> Callable[[NodeSubject], EvidenceState]:
    """Return a function that returns the state of a tool's answer."""
    return lambda node: tool_state(node.snapshot, tool)


def _has_gpus(node: NodeSubject) -> bool:
    """Return whether the node may have GPUs, so that their evidence is needed."""
    return node.wants_gpus


def _is_judged(node: NodeSubject) -> bool:
    """Return whether the node's SKU expects GPUs. The node's system must then be known as well."""
    return bool(node.expected.gpus)


def _is_host(node: NodeSubject) -> bool:
    """Return whether clock and services are the node's own, and not perhaps those of a container's host."""
    return _is_judged(node) and not node.snapshot.container


def _has_systemd(node: NodeSubject) -> bool:
    """Return whether systemd runs. A container that can list units can also list failed ones."""
    tools = node.snapshot.tools
    # Every night queries both. If there is no answer about failed units at all, it was lost.
    runs = tools.get("units") == "ok" and tools.get("failed_units") != "absent"
    return _is_host(node) or (_is_judged(node) and runs)


def _always(node: NodeSubject) -> bool:
    """Return True, because every node needs the evidence."""
    return True


def _needs_smi(node: NodeSubject) -> bool:
    """Return whether nvidia-smi must answer. If it does not reach the driver, another check reports that."""
    return node.wants_gpus and node.snapshot.tools.get("nvidia_smi_xml") != "no_driver"


def _smi_answers(node: NodeSubject) -> bool:
    """Return whether nvidia-smi answered, so that its values must be there."""
    return node.wants_gpus and node.snapshot.tools.get("nvidia_smi_xml") == "ok"


def _has_links(node: NodeSubject) -> bool:
    """Return whether nvidia-smi must report NVLinks."""
    usual = [*(gpu.usual for gpu in node.snapshot.gpus), *node.snapshot.absent_gpus.values()]
    known = any(gpu.links for gpu in usual)
    # If the SKU states no number of links, they need not be queried. A failed query is different.
    unasked = tool_state(node.snapshot, "nvlink_status") in (EvidenceState.NOT_ASKED, EvidenceState.ABSENT)
    return bool(node.expected.nvlinks) or known or (_is_judged(node) and not unasked)


def _has_links_up(node: NodeSubject) -> bool:
    """Return whether any NVLink is up, so that its errors must be known."""
    return any(any(gpu.links.values()) for gpu in node.snapshot.gpus)


def _unless_stuck(needed: Callable[[NodeSubject], bool]) -> Callable[[NodeSubject], bool]:
    """Return a function that is false if a driver tool hung, because the others were then not called."""
    return lambda node: needed(node) and not is_driver_hung(node.snapshot)


def _needs_services(node: NodeSubject) -> bool:
    """Return whether systemd must report services."""
    return bool(node.expected.services) or _is_host(node)


def _needs_controller(node: NodeSubject) -> bool:
    """Return whether the node must run slurmd, which needs a controller."""
    return any("slurmd.service" in service_units(service) for service in node.expected.services)


def _needs_slurm_name(node: NodeSubject) -> bool:
    """Return whether slurmd must state its name, because it runs and its controller answers the node."""
    running = (node.snapshot.services or {}).get("slurmd.service") == "active"
    return _needs_controller(node) and node.snapshot.reaches_slurm is True and running


def _needs_hostname(node: NodeSubject) -> bool:
    """Return whether the inventory gives a hostname to compare with."""
    return bool(node.expected.hostname) and not is_address(node.expected.hostname)


def is_address(name: str) -> bool:
    """Return whether a name is an address, which is never a machine's own name."""
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def _knew_boot(node: NodeSubject) -> bool:
    """Return whether an earlier night read the boot id, which is missing tonight."""
    return "boot_id" in node.snapshot.lost_readings


def _mounted_state(node: NodeSubject) -> EvidenceState:
    """Return the state of the list of mounts. A node without mounts is possible."""
    mounts = node.snapshot.mounts
    return EvidenceState.ABSENT if mounts is None else EvidenceState.THERE


def _disk_state(node: NodeSubject) -> EvidenceState:
    """Return the state of the sizes of file systems. A missing size is cut, a negative one damaged."""
    disks = node.snapshot.disk.values()
    if not disks:
        return EvidenceState.ABSENT
    if any(disk.get("free_bytes") is None or not disk.get("total_bytes") for disk in disks):
        return EvidenceState.CUT
    return _numbers_state(value for disk in disks for value in disk.values())


def _seconds_state(node: NodeSubject) -> EvidenceState:
    """Return the state of the duration of nvidia-smi's answer."""
    return _state(node.snapshot.seconds.get("nvidia_smi_xml"))


def _versions_state(node: NodeSubject) -> EvidenceState:
    """Return the state of the versions of the driver and of its components.

    The version of a component is only missing if an earlier night read it, because not every node has every
    component.
    """
    if not node.snapshot.versions.get("driver"):
        return EvidenceState.ABSENT
    # If the SKU requires a version, the check that compares it also reports it as missing.
    missed = (name for name in DRIVER_COMPONENTS if name not in node.expected.versions)
    lost = any(version_reading(name) in node.snapshot.lost_readings for name in missed)
    return EvidenceState.CUT if lost else EvidenceState.THERE


def _needs_versions(node: NodeSubject) -> bool:
    """Return whether the driver's version must be known here.

    If the SKU requires a version, another check reports a missing one.
    """
    return _is_judged(node) and bool(node.snapshot.gpus) and "driver" not in node.expected.versions


def _needs_card_links(node: NodeSubject) -> bool:
    """Return whether the PCIe links of network cards must be known."""
    has_cards = any(port.device.startswith("mlx") for port in node.snapshot.ports)
    return _is_judged(node) and has_cards


def _card_links_state(node: NodeSubject) -> EvidenceState:
    """Return the state of the PCIe links. Each must have a current value and a maximum, or neither (a VM).

    A value of 0 or without a number is missing.
    """
    if not node.snapshot.links:
        return EvidenceState.ABSENT
    states = (
        _card_link_state(node, address, quantity)
        for address in node.snapshot.links
        for quantity in ("width", "speed")
    )
    return next((state for state in states if state is not EvidenceState.THERE), EvidenceState.THERE)


def _card_link_state(node: NodeSubject, address: str, quantity: str) -> EvidenceState:
    """Return the state of the width or speed of a network card's PCIe link."""
    link = node.snapshot.links[address]
    text = link.get(f"current_link_{quantity}", "")
    current, highest = (
        leading_number(value) or 0.0 for value in (text, link.get(f"max_link_{quantity}", ""))
    )
    if current:
        # Nothing is below a maximum that is missing or not a number.
        return EvidenceState.THERE if current <= highest else EvidenceState.DAMAGED
    # The SKU's number of lanes is a maximum, too, if the system shows any value.
    wanted = node.expected.card_pcie_width if quantity == "width" and text else 0
    was_read = link_reading(address, quantity) in node.snapshot.lost_readings
    # A VM may show neither number.
    return EvidenceState.CUT if highest or wanted or was_read else EvidenceState.THERE


def _statfs_state(node: NodeSubject) -> EvidenceState:
    """Return the state of the answers about file systems. It is hung if one of them hung."""
    names = (tool for tool in node.snapshot.tools if tool.startswith("statfs "))
    states = {tool_state(node.snapshot, tool) for tool in names} - {EvidenceState.THERE}
    if EvidenceState.HUNG in states:
        return EvidenceState.HUNG
    return next(iter(sorted(states)), EvidenceState.THERE)


def _kept(name: str) -> RequiredEvidence[NodeSubject]:
    """Return the row for a field that comes from earlier nights."""
    return _row(
        name, "earlier nights", harmless="it comes from earlier nights, which a first night does not have"
    )


def _row(
    name: str,
    read_from: str,
    code: str = "system_unknown",
    *,
    state: Callable[[NodeSubject], EvidenceState] | None = None,
    needed: Callable[[NodeSubject], bool] = _is_judged,
    verdicts: Mapping[EvidenceState, Verdict] | None = None,
    harmless: str = "",
    remedy: str = "",
) -> RequiredEvidence[NodeSubject]:
    """Return the row for a field of the node's snapshot, or, with a ``state`` of its own, for a tool.

    Without a remedy of its own, the row names the usual remedy for a file or for a command.
    """
    return RequiredEvidence(
        name=name,
        read_from=read_from,
        state=state or (lambda node: _state(getattr(node.snapshot, name))),
        code=code,
        remedy=remedy or (_READ_AGAIN if read_from.startswith("/") else _ASK_AGAIN),
        needed=needed,
        verdicts=verdicts or {},
        harmless=harmless,
    )


_BY_TOOL = "the row of tool {} covers its value and the tool's answer"


def _by_tool(name: str, tool: str) -> RequiredEvidence[NodeSubject]:
    """Return the row for a field that the row of its tool covers."""
    return _row(name, tool, harmless=_BY_TOOL.format(tool))


NODE_EVIDENCE: tuple[RequiredEvidence[NodeSubject], ...] = (
    _row("node", "the inventory", harmless="it is not an answer of the node"),
    _row("sku", "the inventory", harmless="a node without one has a finding of its own (sku_unknown)"),
    _row("hardware_key", "serial and UUIDs", harmless="its parts have their own rows"),
    _row("hostname", "uname", "hostname_unknown", needed=_needs_hostname),
    _row(
        "serial",
        "the firmware's table (DMI)",
        "machine_unknown",
        needed=lambda node: bool(node.snapshot.identity_serial),
    ),
    _kept("identity_serial"),
    _kept("identity_gpus"),
    _row("identity_accepted", "the command", harmless="it is not an answer of the node"),
    _row("foreign_parts", "other nodes", harmless="it may be empty, and its parts have their own rows"),
    _row("epoch", "the node's clock"),
    _row("booted", "/proc/1/stat", harmless="without it no fault counts as repaired by a boot"),
    _row("boot_id", "/proc/sys/kernel/random/boot_id", needed=_knew_boot),
    _row("loaded", "the gatherer", harmless="an idle link may be slow, a link under load may not"),
    _row("asked_as_root", "the gatherer", harmless="without it the answer counts as root's"),
    _row("container", "/run/systemd/container", harmless="a node that is not a container must prove more"),
    _row("gpus", _SMI, "gpus_unknown", needed=_smi_answers),
    _row("attached_gpus", _SMI, needed=lambda node: _is_judged(node) and bool(node.snapshot.gpus)),
    _row("unlisted_gpus", _LINK_STATUS, harmless=_BY_TOOL.format("nvlink_status")),
    _row("smi_remarks", "nvidia-smi, beside its answers", harmless="it may be empty, each line is a finding"),
    _row("ports", _SYSFS_PORT, harmless="how many there are is compared with the SKU and earlier nights"),
    _kept("gone_gpus"),
    _kept("gone_ports"),
    _kept("absent_gpus"),
    _kept("lost_readings"),
    _row(
        "links",
        "/sys/bus/pci/devices of network cards",
        state=_card_links_state,
        needed=_needs_card_links,
    ),
    _row("xids", "the kernel's log", harmless=_BY_TOOL.format("kernel_log")),
    _row("hardware_events", "the kernel's log", harmless=_BY_TOOL.format("kernel_log")),
    _row("declared_lines", "the kernel's log", harmless="an operator's declarations are only shown"),
    _row("journal_lost_before", "the journal", harmless="a log that lost messages is cut (answer_cut)"),
    _row("next_log_since", "the gatherer", harmless="without it the next night reads more of the log"),
    _row("late_lines", "the kernel's log", harmless="without them the next night counts lines again"),
    _kept("reboots"),
    _row("versions", "the driver and its tools", state=_versions_state, needed=_needs_versions),
    _row("tools", "the gatherer", harmless="each tool has a row of its own"),
    _row(
        "seconds",
        _SMI,
        state=_seconds_state,
        needed=lambda node: _is_judged(node) and _smi_answers(node),
    ),
    _row("truncated", "the gatherer", harmless="it may be empty, each entry is a finding (answer_cut)"),
    _row(
        "mounts",
        "/proc/self/mountinfo",
        "mounts_unknown",
        state=_mounted_state,
        needed=lambda node: bool(node.expected.mounts),
    ),
    _by_tool("failed_units", "failed_units"),
    _row("idle_units", "systemctl show", harmless=_BY_TOOL.format("units")),
    _by_tool("services", "units"),
    _by_tool("reaches_slurm", "slurm_controller"),
    _by_tool("slurm_name", "slurmd_status"),
    _row("mount_table", "/proc/self/mountinfo", "mounts_unknown"),
    _kept("writable_mounts"),
    _kept("lost_mounts"),
    _row("disk", "statvfs", state=_disk_state, needed=lambda node: bool(node.limits.disk_free)),
    _row(
        "memory_bytes",
        "/proc/meminfo",
        state=lambda node: _state(node.snapshot.memory_bytes or None),
        needed=lambda node: bool(node.expected.memory_bytes),
    ),
    _row(
        "memlock_bytes",
        "the limit of locked memory",
        # -1 means that there is no limit.
        state=lambda node: _state(node.snapshot.memlock_bytes if node.snapshot.memlock_bytes != -1 else 0),
        needed=lambda node: bool(node.limits.memlock_bytes),
    ),
    _row("shm_bytes", "statvfs of shared memory", needed=lambda node: bool(node.limits.shm_bytes)),
    _row(
        "clock_offset_s",
        "the clocks of node and controller",
        state=lambda node: state_of_value(node.snapshot.clock_offset_s),
        needed=_always,
    ),
    _by_tool("clock_synchronized", "clock"),
)
"""A row for each field of :class:`NodeSnapshot`."""

_NOT_EVERYWHERE = "not every node has it, and a version that the SKU lists is missed where it is compared"
_NO_VERSION: Mapping[EvidenceState, Verdict] = {
    EvidenceState.FAILED: Verdict.UNPROVEN,
    EvidenceState.HUNG: Verdict.UNPROVEN,
}
"""A tool that is installed but cannot even print its version may not work for jobs either."""
_HUNG_FAILS: Mapping[EvidenceState, Verdict] = {EvidenceState.HUNG: Verdict.FAIL}


def _tool(
    name: str,
    read_from: str,
    code: str = "system_unknown",
    *,
    needed: Callable[[NodeSubject], bool] = _has_gpus,
    value: str = "",
    verdicts: Mapping[EvidenceState, Verdict] | None = None,
    harmless: str = "",
) -> RequiredEvidence[NodeSubject]:
    """Return the row of a tool.

    If the tool gives a single ``value``, that value proves that the tool answered.
    """

    def is_needed(node: NodeSubject) -> bool:
        # A hung tool counts even if it is not needed, because it shows a fault of the node.
        return needed(node) or node.snapshot.tools.get(name) == "hung"

    def state(node: NodeSubject) -> EvidenceState:
        answered = tool_state(node.snapshot, name)
        if not value:
            return answered
        if getattr(node.snapshot, value) is not None:
            return EvidenceState.THERE
        return EvidenceState.ABSENT if answered is EvidenceState.THERE else answered

    return _row(name, read_from, code, state=state, needed=is_needed, verdicts=verdicts, harmless=harmless)


TOOL_EVIDENCE: tuple[RequiredEvidence[NodeSubject], ...] = (
    _tool("nvidia_smi_xml", _SMI, "gpus_unknown", needed=_needs_smi, verdicts=_HUNG_FAILS),
    _tool(
        "nvlink_status",
        _LINK_STATUS,
        "nvlink_status_unknown",
        needed=_unless_stuck(_has_links),
        verdicts=_HUNG_FAILS,
    ),
    _tool(
        "nvlink_errors",
        _LINK_ERRORS,
        "nvlink_errors_unknown",
        needed=_unless_stuck(_has_links_up),
        verdicts=_HUNG_FAILS,
    ),
    _tool("kernel_log", "journalctl, else dmesg", "kernel_log_unknown"),
    _tool("failed_units", "systemctl list-units --failed", needed=_has_systemd, value="failed_units"),
    _tool("units", "systemctl show", "services_unknown", needed=_needs_services, value="services"),
    _tool("clock", "timedatectl show", needed=_is_host, value="clock_synchronized"),
    _tool(
        "slurm_controller",
        "scontrol ping",
        "slurm_controller_unknown",
        needed=_needs_controller,
        value="reaches_slurm",
    ),
    _tool(
        "slurmd_status",
        "scontrol show slurmd",
        "slurm_name_unknown",
        needed=_needs_slurm_name,
        value="slurm_name",
    ),
    _row("statfs", "statvfs", "disk_unknown", state=_statfs_state, needed=_always),
    *(
        _tool(name, command, "tool_failed", needed=_always, verdicts=_NO_VERSION, harmless=_NOT_EVERYWHERE)
        for name, command in (
            ("fabricmanager", "nv-fabricmanager --version"),
            ("ofed_info", "ofed_info -s"),
            ("slurm", "sinfo --version"),
            ("docker", "docker --version"),
            ("enroot", "enroot version"),
            ("nvidia_ctk", "nvidia-ctk --version"),
        )
    ),
)
"""A row for each tool that the gatherer calls (``rackproof_facts``, subset ``health``)."""


# Evidence of a GPU.

_READING_OF = {field: reading for reading, fields in GPU_READINGS.items() for field in fields}


def can_report(gpu: GpuSnapshot, reading: str) -> bool:
    """Return whether a GPU may report a reading. Some models and divided GPUs (MIG) lack row remapping."""
    return reading != "row_remapping" or not (gpu.mig or is_one_of(gpu.name, MODELS_WITHOUT_REPAIRS))


def missing_readings(gpu: GpuSnapshot, readings: Iterable[str]) -> list[str]:
    """Return the fields of some readings (:data:`GPU_READINGS`) that the driver did not report of a GPU.

    Job validate calls this function before it accepts that a drained node is repaired.
    """
    readings = [reading for reading in readings if can_report(gpu, reading)]
    fields = [name for reading in readings for name in GPU_READINGS[reading]]
    if gpu.ecc_enabled is False:
        # Error counters are not maintained while ECC is off.
        fields = [name for name in fields if name not in GPU_READINGS["ecc"]]
    # A sensor that shows 0 °C does not work.
    zero_is_none = ("temperature_c",)
    return [
        name
        for name in fields
        if getattr(gpu, name) in (None, "") or (name in zero_is_none and not getattr(gpu, name))
    ]


def _is_reported(subject: GpuSubject, name: str) -> bool:
    """Return whether the same driver reported a field in an earlier night, or now of another such GPU."""
    now = subject.gpu
    alike = (gpu for gpu in subject.node.snapshot.gpus if gpu.name == now.name and gpu.uuid != now.uuid)
    is_lost = name in now.usual.lost_readings
    return is_lost or any(getattr(gpu, name) not in (None, "", {}) for gpu in alike)


def _is_asked_of_sku(subject: GpuSubject, name: str) -> bool:
    """Return whether the SKU requires a field of this GPU."""
    expected, reading = subject.node.expected, _READING_OF.get(name)
    if not expected.gpus or reading is None or not can_report(subject.gpu, reading):
        return False
    # Error counters are not maintained while ECC is off.
    if reading == "ecc" and subject.gpu.ecc_enabled is False:
        return False
    wanted = {"fabric": expected.fabric, "nvlink_domain": expected.nvlink_domain}
    return reading in expected.gpu_readings or wanted.get(reading, False)


def _is_of_model(subject: GpuSubject, models: Iterable[str], since_driver: float = 0) -> bool:
    """Return whether a GPU must report a field, because of its model and driver.

    A model is a whole word of the product name, so ``H200`` does not mean GH200. If the number of GPUs that
    the node should have is unknown, no GPU must report the field.
    """
    driver = leading_number(subject.node.snapshot.versions.get("driver", ""))
    # A driver of unknown version must report everything that the newest reports.
    is_older = driver is not None and driver < since_driver
    return bool(subject.node.expected.gpus) and is_one_of(subject.gpu.name, models) and not is_older


def _is_wanted(subject: GpuSubject, name: str, models: Iterable[str], since_driver: float = 0) -> bool:
    """Return whether a GPU must report a field.

    The SKU, the model, and the driver's other readings decide.
    """
    by_model = _is_of_model(subject, models, since_driver)
    return _is_asked_of_sku(subject, name) or by_model or _is_reported(subject, name)


def _gpu_row(
    name: str,
    read_from: str = _SMI,
    code: str = "gpu_readings_missing",
    *,
    state: Callable[[Any], EvidenceState] = _state,
    needed: Callable[[GpuSubject], bool] | None = None,
    models: tuple[str, ...] = (),
    since_driver: float = 0,
    harmless: str = "",
) -> RequiredEvidence[GpuSubject]:
    """Return the row of a field. An impossible value counts even if the field is not needed."""

    def is_needed(subject: GpuSubject) -> bool:
        wanted = needed(subject) if needed else _is_wanted(subject, name, models, since_driver)
        return wanted or state(getattr(subject.gpu, name)) is EvidenceState.DAMAGED

    return RequiredEvidence(
        name=name,
        read_from=read_from,
        state=lambda subject: state(getattr(subject.gpu, name)),
        code=code,
        remedy=_ASK_AGAIN,
        needed=is_needed,
        harmless=harmless,
    )


def _known_state(value: Any) -> EvidenceState:
    """Return the state of a list that may be empty. None means unknown."""
    return EvidenceState.ABSENT if value is None else EvidenceState.THERE


def _warm_state(value: Any) -> EvidenceState:
    """Return the state of a temperature. A sensor that shows 0 °C does not work."""
    state = _state(value)
    return EvidenceState.DAMAGED if state is EvidenceState.THERE and value == 0 else state


def _counts_state(counts: Mapping[str, float]) -> EvidenceState:
    """Return the state of numbers by name."""
    return _numbers_state(counts.values())


def _reads_links(subject: GpuSubject) -> bool:
    """Return whether links must be known. If the SKU gives a number of links, a check compares it."""
    node = subject.node
    answered = tool_state(node.snapshot, "nvlink_status") is EvidenceState.THERE
    return answered and not node.expected.nvlinks and not subject.gpu.mig and _is_reported(subject, "links")


def _lacks_speeds(subject: GpuSubject) -> bool:
    """Return whether the speed of an active link is missing."""
    links, speeds = subject.gpu.links, subject.gpu.link_gb_s
    return any(up and link not in speeds for link, up in links.items())


def _counts_link_errors(subject: GpuSubject) -> bool:
    """Return whether a GPU with active links must report counters of errors."""
    answered = tool_state(subject.node.snapshot, "nvlink_errors") is EvidenceState.THERE
    return answered and any(subject.gpu.links.values())


def _of_whole_gpu(name: str) -> RequiredEvidence[GpuSubject]:
    """Return the row of a field that the driver does not show of a GPU that is divided (MIG)."""
    return _gpu_row(name, needed=lambda subject: not subject.gpu.mig and _is_wanted(subject, name, ()))


def _with_maximum(name: str) -> RequiredEvidence[GpuSubject]:
    """Return the row of the maximum of a field. It must be known if the present value is."""
    most = f"{name}_max"
    return _gpu_row(
        most,
        needed=lambda subject: bool(getattr(subject.gpu, name)) or _is_wanted(subject, most, ()),
    )


def _always_of_gpu(subject: GpuSubject) -> bool:
    """Return True, because every GPU needs the evidence."""
    return True


_EMPTY_IS_WELL = "an empty value is healthy, and each entry is a finding"

GPU_EVIDENCE: tuple[RequiredEvidence[GpuSubject], ...] = (
    _gpu_row("uuid", needed=_always_of_gpu),
    _gpu_row("serial"),
    _gpu_row("index", harmless="it is only the GPU's place in a list"),
    _gpu_row("bus_id", needed=lambda subject: bool(subject.node.expected.gpus)),
    _gpu_row("module", harmless="it is only the GPU's place in the machine"),
    _gpu_row(
        "name", harmless="GPUs without a product name are a finding where the SKU has one (sku_differs)"
    ),
    _gpu_row("vbios"),
    _gpu_row("gsp"),
    *(_gpu_row(name) for name in GPU_READINGS["ecc"] if name != "ecc_enabled"),
    _gpu_row("ecc_enabled"),
    _of_whole_gpu("remap_pending"),
    _of_whole_gpu("remap_failure"),
    _gpu_row("memory_unrepairable"),
    _gpu_row(
        "repairs_pending", state=_known_state, models=MODELS_WITH_REPAIRS, since_driver=DRIVER_WITH_REPAIRS
    ),
    _gpu_row("mig", models=MODELS_WITH_ALL),
    _gpu_row("mig_next", models=MODELS_WITH_ALL),
    _gpu_row("memory_total_bytes"),
    _gpu_row("recovery_action"),
    _gpu_row("pcie_generation"),
    _with_maximum("pcie_generation"),
    _gpu_row("pcie_width"),
    _with_maximum("pcie_width"),
    _gpu_row("pcie_replays"),
    _of_whole_gpu("utilisation"),
    _gpu_row("throttled", state=_known_state),
    _gpu_row("slowdown_s", code="slowdown_unknown", state=_counts_state),
    _gpu_row("temperature_c", state=_warm_state),
    _gpu_row("margin_c", state=state_of_value),
    _gpu_row("memory_c", state=_warm_state, models=MODELS_WITH_ALL),
    _gpu_row("power_limit_w"),
    _gpu_row("power_default_w"),
    _gpu_row("clock_max_mhz"),
    _gpu_row("memory_clock_max_mhz"),
    _of_whole_gpu("applications_clock_mhz"),
    _of_whole_gpu("applications_memory_clock_mhz"),
    _of_whole_gpu("bar1_mib"),
    _gpu_row("compute_mode"),
    _gpu_row("persistence_mode"),
    _of_whole_gpu("spent_banks"),
    _of_whole_gpu("remapped_rows"),
    _gpu_row("memory_used_bytes"),
    _gpu_row("fabric_state"),
    _gpu_row("fabric_status"),
    _gpu_row("fabric_health"),
    _gpu_row("fabric_clique"),
    _gpu_row("fabric_cluster"),
    _gpu_row("links", _LINK_STATUS, needed=_reads_links),
    _gpu_row("link_gb_s", _LINK_STATUS, state=_counts_state, needed=_lacks_speeds),
    _gpu_row("link_errors", _LINK_ERRORS, "nvlink_errors_unknown", needed=_counts_link_errors),
    _gpu_row("errors", harmless=_EMPTY_IS_WELL),
    _gpu_row("unknown_values", harmless=_EMPTY_IS_WELL),
    _gpu_row("lacking_beside", harmless=_EMPTY_IS_WELL),
    _gpu_row("usual", "earlier nights", harmless="it is kept of earlier nights"),
)
"""A row for each field of :class:`GpuSnapshot`."""


# Evidence of a port.


def _port_row(
    name: str,
    read_from: str,
    *,
    state: Callable[[PortSubject], EvidenceState] | None = None,
    needed: Callable[[PortSubject], bool] = lambda port: True,
    harmless: str = "",
) -> RequiredEvidence[PortSubject]:
    """Return the row for a field of a port."""
    return RequiredEvidence(
        name=name,
        read_from=f"{_SYSFS_PORT}, {read_from}",
        state=state or (lambda subject: _state(getattr(subject.port, name))),
        code="port_unknown",
        remedy=_ASK_AGAIN,
        needed=needed,
        harmless=harmless,
    )


def _counters_state(subject: PortSubject) -> EvidenceState:
    """Return the state of the counters: cut if one of an earlier night is missing."""
    return EvidenceState.CUT if subject.port.lost_counters else EvidenceState.THERE


def _may_manage_nvswitches(subject: PortSubject) -> bool:
    """Return whether a port counts as a compute port, but may only manage the NVSwitches of an HGX."""
    node = subject.node
    return bool(node.expected.ports) and subject.use == "compute" and node.has_switch_bridges


PORT_EVIDENCE: tuple[RequiredEvidence[PortSubject], ...] = (
    _port_row("device", "name", harmless="a port under another name is a missing port and a new one"),
    _port_row("port", "name", harmless="a port under another name is a missing port and a new one"),
    _port_row("state", "state"),
    _port_row("physical", "phys_state", harmless="it only describes a port that is down"),
    _port_row("rate_gbps", "rate", needed=lambda subject: subject.port.state in ("", "active")),
    _port_row("usual_gbps", "earlier nights", harmless="it is kept of earlier nights"),
    _port_row("was_active", "earlier nights", harmless="it is kept of earlier nights"),
    _port_row("layer", "link_layer", needed=lambda subject: bool(subject.node.expected.port_layer)),
    _port_row("nvswitch", "device/vpd", needed=_may_manage_nvswitches),
    _port_row("counters", "counters", state=_counters_state),
    _port_row("lost_counters", "earlier nights", harmless="each entry is a missing reading of counters"),
)
"""A row for each field of :class:`PortSnapshot`."""
