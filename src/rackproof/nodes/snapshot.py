"""Turn the data gathered on a node into a snapshot, which is its state in one night.

Job validate calls :func:`build_snapshot` with a node's answer, and stores the result. The next night compares
its own snapshot with it. Subset ``health`` of ``rackproof_facts`` gathers the answer in one call. Each of the
answer's three parts may be absent:

* ``facts``: facts in the form of subset ``record``. Their ``files`` contain the mounts (``mountinfo``).
* ``node``: ``container``, ``root`` and ``modules``. Job validate adds ``clock`` (``asked_at`` and ``epoch``),
  whose difference is the offset of the node's clock. The keys ``boot_id``, ``commands``, ``memory_bytes`` and
  ``space`` of subset ``provision`` are read, too.
* ``health``: all other facts, with the entries below.

Entries of ``health``:

* ``begin`` and ``epoch``: the times at which gathering began and ended, in seconds since 1970.
* ``since``: the time from which the log was requested, which is :func:`next_log_since` of the last night.
* ``booted``: the start of the first process, because a container's kernel is older than its boot.
* ``loaded``: whether a load ran on the GPUs meanwhile. ``rackproof_facts`` does not state it, so it is false.
  A PCIe link then counts as loaded only if its GPU is busy (``loaded_percent`` of the limits).
* ``tools``: an answer by name, as in ``facts.tools`` (see below).
* ``hca``: for each port of each device, ``state``, ``phys_state``, ``rate``, ``link_layer`` (texts of
  /sys/class/infiniband/DEVICE/ports/PORT), ``counters`` (numbers by name), and ``nvswitch``, which states
  whether the port only manages NVSwitches.
* ``pci``: for each address of a network card, ``current_link_speed``, ``max_link_speed``,
  ``current_link_width`` and ``max_link_width`` of /sys/bus/pci/devices/ADDRESS.
* ``disk``: for each path, ``total_bytes``, ``free_bytes``, ``total_inodes``, ``free_inodes`` and
  ``read_only``.

Answers in ``tools``:

* ``kernel_log``: ``journalctl -o short-unix _TRANSPORT=kernel --since=@LAST_SNAPSHOT`` with earlier boots,
  ``journalctl -k`` in the first night, or else ``dmesg``. Its ``errors`` are the lines of level error or
  worse, absent if the log states no levels. Only a journal has ``oldest``, the oldest message of this boot (a
  line of ``journalctl -k -o json``, or ""), and ``ring``, the first line of ``dmesg`` if it completed the
  log.
* ``nvidia_smi_xml``: ``nvidia-smi -q -x``.
* ``nvlink_status``, ``nvlink_errors``: ``nvidia-smi nvlink -s`` and ``-e``.
* ``failed_units``: ``systemctl list-units --failed --plain --no-legend``.
* ``units``: ``systemctl show``, with an empty line between two units.
* ``clock``: ``timedatectl show``.
* ``slurm_controller``, ``slurmd_status``: ``scontrol ping`` and ``scontrol show slurmd``.

Text from a node is hostile until it is sanitized. An absent value is empty or None, never a good value. A new
field of a snapshot also needs a row in :mod:`rackproof.nodes.night_evidence`. The module does no I/O.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from math import inf
from typing import Any, TypeVar

from rackproof.core.records import Gpu, Node, Verdict
from rackproof.core.text import sanitize
from rackproof.core.untrusted import (
    as_float,
    as_int,
    bounded,
    leading_number,
    mapping_at,
    stdout_of,
    text_at,
)
from rackproof.logs.declared_lines import DeclaredLines
from rackproof.logs.nvidia_smi import (
    DOUBLE_BIT,
    DOUBLE_BIT_SRAM,
    PENDING_PAGES,
    lines_beside,
    read_gpu_texts,
    slowdown_margin,
)
from rackproof.nodes.clock import read_synchronized
from rackproof.nodes.facts import inforom_warnings, lost_gpu_lines, node_from_facts, with_whole_answer
from rackproof.nodes.kernel_log import (
    HardwareEvent,
    KernelLogReading,
    XidEvent,
    is_healed_by_boot,
    late_line_digests,
    normalize_bus_id,
    read_kernel_log,
    resolved_by_boot,
    without_known_lines,
)
from rackproof.nodes.snapshot_records import GpuSnapshot, NodeSnapshot, PortSnapshot
from rackproof.nodes.usual_values import with_usual_values

_Event = TypeVar("_Event", XidEvent, HardwareEvent)
_VERSIONS = (
    "driver",
    "kernel",
    "cuda_driver",
    "ofed",
    "fabricmanager",
    "slurm",
    "docker",
    "enroot",
    "nvidia_ctk",
)
"""Names of the software whose versions nights compare. :func:`_versions` adds firmware and kernel modules."""
_DMESG = re.compile(r"\[\s*(\d{1,12}\.\d{1,9})\]")
"""Pattern of the time of a line of dmesg, in seconds since the boot: ``[   12.345678]``."""
_HEADING = re.compile(r"^GPU \d{1,4}: .{1,100} \(UUID: (GPU-[0-9A-Fa-f-]{1,60})\)")
"""Pattern of a heading of nvidia-smi nvlink: ``GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-0f…)``."""
_LINK = re.compile(r"^\s*Link (\d{1,3}): (.{1,60})$")
"""Pattern of a line of ``nvidia-smi nvlink -s``: ``Link 0: 26.562 GB/s`` or ``Link 0: <inactive>``."""
_LINK_ERRORS = re.compile(r"^\s*Link (\d{1,3}): \w[\w ]{0,40} Errors: (.{1,60})$")
"""Pattern of a line of ``nvidia-smi nvlink -e``: ``Link 0: Replay Errors: 0``."""
_MOMENT = re.compile(r"\[\s*\d{1,12}\.\d{1,9}\]|\d{9,12}(?:\.\d{1,9})? ")
"""Pattern of the time of a line of dmesg, or of a journal in seconds since 1970."""
MOST_CARDS = 64
"""Largest number of network cards that are read."""
MOST_GONE = 64
"""Largest number of missing GPUs, of missing ports and of incomplete answers that are stored."""
MOST_LINKS = 64
"""Largest number of a GPU's NVLinks to read. Real GPUs show less than a third of this number."""
MOST_UNLISTED = 8
"""Largest number of unlisted GPUs and of remarks that are stored, and of a GPU's errors, unknown values and
missing readings."""
MOST_LINES = 100_000
"""Largest number of lines of an answer that are read. A damaged or hostile node may send any number."""


def build_snapshot(
    name: str,
    gathered: Mapping[str, Any],
    *,
    sku: str = "",
    previous: NodeSnapshot | None = None,
    about: Node | None = None,
    whole: bool = True,
    accept_identity: bool = False,
    was_repaired: bool = False,
    declared: DeclaredLines | None = None,
) -> NodeSnapshot:
    """Return the state of a node.

    Args:
        name: The node's name in the inventory.
        gathered: The gathered data, in the form that the module's docstring describes.
        sku: The model that the inventory expects.
        previous: The last snapshot. XIDs that still need an action stay open, and counts of reboots go on.
        about: The node's record, if already read. Reading it is most of a snapshot's cost.
        whole: Whether the answer is complete. An incomplete answer proves nothing.
        accept_identity: Whether tonight's machine and GPUs become the node's identity, and their present
            values the usual ones.
        was_repaired: Whether an operator had the node out of service for its faults. After a boot, this or an
            accepted identity ends those of :func:`faults_to_repair`.
        declared: The kernel log lines that an operator declared harmless.
    """
    gathered, cut = bounded(gathered)
    facts, node, health = (mapping_at(gathered, part) for part in ("facts", "node", "health"))
    # If several gatherers called a tool, the last answer counts.
    tools = with_whole_answer(
        _without_texts_failed(
            {**mapping_at(facts, "tools"), **mapping_at(node, "commands"), **mapping_at(health, "tools")}
        )
    )
    files = mapping_at(facts, "files")
    record = about or node_from_facts(name, facts, sku)
    boot_id = _boot_id(facts, node)
    speeds = _nvlink_speeds(stdout_of(tools, "nvlink_status"))
    errors = _nvlink_errors(stdout_of(tools, "nvlink_errors"))
    gpus = _read_gpus(tools, speeds, errors)
    whole_log = stdout_of(tools, "kernel_log")
    clock = mapping_at(node, "clock")
    uptime = text_at(files, "uptime")
    log = _since(whole_log, health, uptime)
    error_lines = _error_lines(tools, health, uptime)
    epoch = as_float(health.get("epoch")) or as_float(clock.get("epoch"))
    booted = _boot_time(health, epoch)
    known_lines = previous.late_lines if previous else ()
    log_since, late_lines = _for_next_night(
        previous,
        _log_since(tools, health, epoch, clock) if whole else None,
        [*log.splitlines(), *(error_lines or "").splitlines()],
        _kernel_start(epoch, uptime),
        boot_id,
    )
    kernel = read_kernel_log(
        without_known_lines(log, known_lines, boot_id),
        booted or 0.0,
        _uuids_by_bus(gpus, previous),
        None if error_lines is None else without_known_lines(error_lines, known_lines, boot_id),
        declared,
        is_container=node.get("container") is True,
    )
    cards = mapping_at(health, "hca") or _ports_of_facts(facts)
    ports = _read_ports(cards)
    paths = {**mapping_at(facts, "paths"), **mapping_at(node, "space"), **mapping_at(health, "disk")}
    disk = _read_disks(paths, mapping_at(health, "disk"))
    failed_units = _failed_units(tools)
    lost_before = _lost_before(tools, health, uptime, is_container=node.get("container") is True)
    log_is_cut = any(
        (
            kernel.is_cut,
            lost_before is not None,
            _lost_journals(tools),
            _lacks_moments(whole_log),
        )
    )
    identity_serial, identity_gpus = _identity(record.serial, gpus, previous, accept_identity)
    open_xids, open_hardware_events = _open_events(
        kernel, gpus, boot_id, previous, was_repaired=was_repaired or accept_identity
    )
    snapshot = NodeSnapshot(
        node=name,
        sku=sku,
        hostname=sanitize(facts.get("hostname") or "", 253),
        serial=record.serial,
        identity_serial=identity_serial,
        identity_gpus=identity_gpus,
        identity_accepted=accept_identity,
        booted=booted,
        hardware_key=record.hardware_key,
        epoch=epoch,
        boot_id=boot_id,
        loaded=health.get("loaded") is True,
        asked_as_root=False if node.get("root") is False else True if node.get("root") is True else None,
        container=node.get("container") is True,
        gpus=gpus,
        attached_gpus=_attached_gpus(stdout_of(tools, "nvidia_smi_xml")),
        unlisted_gpus=_unlisted_gpus(gpus, {*speeds, *errors}),
        smi_remarks=_smi_remarks(tools),
        ports=ports,
        gone_gpus=_gone_gpus(gpus, previous),
        gone_ports=_gone_ports(ports, previous),
        links=_read_links(mapping_at(health, "pci")),
        xids=(*kernel.xids, *open_xids),
        hardware_events=(*kernel.hardware, *open_hardware_events),
        declared_lines=kernel.declared,
        journal_lost_before=lost_before or None,
        next_log_since=log_since,
        late_lines=late_lines,
        reboots=_count_reboots(boot_id, kernel.xids, previous),
        versions=_versions(record.software | record.firmware, gpus, mapping_at(node, "modules")),
        tools={**_missing_disks(paths, disk), **_tool_statuses(tools)},
        seconds=_tool_seconds(tools),
        truncated=_truncated_tools(tools, {*_cut_names(log_is_cut, whole, gpus, cards), *cut}),
        mounts=_read_mounts(text_at(files, "mountinfo")),
        failed_units=failed_units,
        idle_units=_idle_units(stdout_of(tools, "units"), failed_units or ()),
        services=_read_services(tools),
        reaches_slurm=_reaches_slurm(tools),
        slurm_name=_slurm_name(tools),
        mount_table=_read_mount_table(text_at(files, "mountinfo")),
        disk=disk,
        memory_bytes=record.memory_bytes or as_int(node.get("memory_bytes")) or 0,
        memlock_bytes=as_int(facts.get("memlock_bytes")),
        shm_bytes=as_int(facts.get("shm_bytes")),
        clock_offset_s=_clock_offset(clock),
        clock_synchronized=read_synchronized(
            stdout_of(tools, "clock"), container=bool(node.get("container"))
        ),
    )
    return with_usual_values(snapshot, previous, accepted=accept_identity)


def next_log_since(snapshot: NodeSnapshot | None) -> float:
    """Return the time from which the night after a snapshot reads the kernel log, or 0 for the whole boot."""
    if snapshot is None:
        return 0.0
    if snapshot.next_log_since is not None:
        return snapshot.next_log_since
    # A snapshot of an earlier version has only the end of gathering. No gathering takes longer than all its
    # tools one after another.
    begin = (snapshot.epoch or 0.0) - sum(snapshot.seconds.values())
    return max(0.0, begin - max(0.0, snapshot.clock_offset_s or 0.0))


def _log_since(
    tools: Mapping[str, Any], health: Mapping[str, Any], epoch: float | None, clock: Mapping[str, Any]
) -> float | None:
    """Return the time from which the next night reads the kernel log, or None if this night did not read it.

    The log is read when gathering begins. Until gathering ends, the kernel may log more.
    """
    if mapping_at(tools, "kernel_log").get("status") != "ok" or epoch is None:
        return None
    begin = as_float(health.get("begin"))
    if begin is None or not 0 < begin <= epoch:
        begin = epoch - sum(_tool_seconds(tools).values())
    # A clock that is ahead may be set back until the next night.
    return max(0.0, begin - max(0.0, _clock_offset(clock) or 0.0))


def _for_next_night(
    previous: NodeSnapshot | None,
    log_since: float | None,
    lines: Sequence[str],
    started: float | None,
    boot_id: str,
) -> tuple[float, tuple[str, ...]]:
    """Return from when the next night reads the kernel log, and the digests of lines that it reads again.

    If this night did not read the log, the next one reads from where the last reading began.
    """
    if log_since is None:
        return next_log_since(previous), previous.late_lines if previous else ()
    return log_since, late_line_digests(lines, log_since, started, boot_id)


def _kernel_start(epoch: float | None, uptime: str) -> float | None:
    """Return the time of the kernel's start, or None if it is unknown."""
    uptime_s = leading_number(uptime)
    return None if epoch is None or uptime_s is None else epoch - uptime_s


def _boot_time(health: Mapping[str, Any], epoch: float | None) -> float | None:
    """Return the time of the boot, or None if it is unknown or impossible."""
    booted = as_float(health.get("booted"))
    # A boot in the future would resolve every fault.
    return booted if booted and epoch is not None and booted <= epoch else None


def _boot_id(facts: Mapping[str, Any], node: Mapping[str, Any]) -> str:
    """Return the id of the boot, from the first part that states it."""
    return sanitize(facts.get("boot_id") or node.get("boot_id") or "", 60)


def _uuids_by_bus(gpus: tuple[GpuSnapshot, ...], previous: NodeSnapshot | None) -> dict[str, str]:
    """Return the UUIDs of GPUs by their address on the bus, for the XIDs of the kernel log."""
    return {normalize_bus_id(gpu.bus_id): gpu.uuid for gpu in _known_gpus(gpus, previous)}


def _cut_names(
    log_is_cut: bool, whole: bool, gpus: tuple[GpuSnapshot, ...], cards: Mapping[str, Any]
) -> set[str]:
    """Return the names of answers that this module found to be incomplete."""
    cut = {
        "kernel_log": log_is_cut,
        "rackproof_facts": not whole,
        "nvlink_status": any(len(gpu.links) >= MOST_LINKS for gpu in gpus),
        "hca": len(cards) > MOST_CARDS,
    }
    return {name for name, is_cut in cut.items() if is_cut}


def _truncated_tools(tools: Mapping[str, Any], overflowed: set[str]) -> tuple[str, ...]:
    """Return the names of all incomplete answers."""
    names = overflowed | {tool for tool in tools if mapping_at(tools, tool).get("truncated")}
    return tuple(sanitize(tool, 60) for tool in sorted(names)[:MOST_GONE])


def _known_gpus(gpus: tuple[GpuSnapshot, ...], previous: NodeSnapshot | None) -> tuple[GpuSnapshot, ...]:
    """Return all GPUs that can be identified by their bus, even if they were missing for some nights."""
    present = {normalize_bus_id(gpu.bus_id) for gpu in gpus}
    before = (*previous.gone_gpus, *previous.gpus) if previous else ()
    return (*gpus, *(gpu for gpu in before if normalize_bus_id(gpu.bus_id) not in present))


def _gone_gpus(gpus: tuple[GpuSnapshot, ...], previous: NodeSnapshot | None) -> tuple[GpuSnapshot, ...]:
    """Return the GPUs of earlier nights whose place is empty. If no GPU can be read, return all of them."""
    if previous is None:
        return ()
    present = {gpu.uuid for gpu in gpus}
    places = {normalize_bus_id(gpu.bus_id) for gpu in gpus}
    known = {gpu.uuid: gpu for gpu in (*previous.gone_gpus, *previous.gpus)}
    gone = [
        gpu
        for uuid, gpu in known.items()
        if uuid not in present and normalize_bus_id(gpu.bus_id) not in places
    ]
    return tuple(gone[:MOST_GONE])


def _gone_ports(ports: tuple[PortSnapshot, ...], previous: NodeSnapshot | None) -> tuple[PortSnapshot, ...]:
    """Return the missing ports of earlier nights, or none if the node has as many ports as it ever had.

    In that case, ports of another name replaced them.
    """
    if previous is None:
        return ()
    present = {(port.device, port.port) for port in ports}
    known = {(port.device, port.port): port for port in (*previous.gone_ports, *previous.ports)}
    if len(present) >= len(known):
        return ()
    return tuple(port for key, port in known.items() if key not in present)[:MOST_GONE]


def _read_gpus(
    tools: Mapping[str, Any], speeds: Mapping[str, dict[str, float]], errors: Mapping[str, dict[str, int]]
) -> tuple[GpuSnapshot, ...]:
    """Return the GPUs that nvidia-smi lists, or none if its answer cannot be read."""
    try:
        gpus = read_gpu_texts(stdout_of(tools, "nvidia_smi_xml").encode("utf-8", "replace"))
    except ValueError:
        return ()
    return tuple(
        _with_unknown(
            _read_gpu(gpu, text, speeds.get(gpu.uuid, {}), errors.get(gpu.uuid, {})),
            unknown,
            lacking,
        )
        for gpu, text, unknown, lacking in gpus
    )


def _with_unknown(gpu: GpuSnapshot, unknown: Sequence[str], lacking: Sequence[str]) -> GpuSnapshot:
    """Return a GPU with the values that no check recognizes (``path: text``), and the paths that it lacks.

    If such a text is an error, it becomes one of the GPU's errors, whatever its path.
    """
    texts = (value.partition(": ")[2] for value in unknown if _ERROR.search(value.partition(": ")[2]))
    errors = tuple(dict.fromkeys((*gpu.errors, *texts)))[:MOST_UNLISTED]
    others = tuple(value for value in unknown if value.partition(": ")[2] not in errors)
    return gpu.model_copy(
        update={
            "errors": errors,
            "unknown_values": others[:MOST_UNLISTED],
            "lacking_beside": tuple(lacking[:MOST_UNLISTED]),
        }
    )


def _unlisted_gpus(gpus: tuple[GpuSnapshot, ...], with_links: set[str]) -> tuple[str, ...]:
    """Return the GPUs that only the answers about NVLinks name."""
    listed = {gpu.uuid for gpu in gpus}
    # Without a list, nothing can be compared. Another finding reports that.
    return tuple(sorted(with_links - listed)[:MOST_UNLISTED]) if listed else ()


_SMI_TOOLS = ("nvidia_smi", "nvlink_")
"""Prefixes of the tools that call nvidia-smi."""


def _without_texts_failed(tools: Mapping[str, Any]) -> dict[str, Any]:
    """Mark tools with status ok but without an output as failed.

    Otherwise, the missing output would count as an empty one, which means that there are no faults.
    """
    return {
        name: {**mapping_at(tools, name), "status": "failed"}
        if mapping_at(tools, name).get("status") == "ok" and not isinstance(tools[name].get("stdout"), str)
        else answer
        for name, answer in tools.items()
    }


def _smi_remarks(tools: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the lines beside the XML, and lines of all nvidia-smi answers about infoROMs and lost GPUs."""
    xml = text_at(mapping_at(tools, "nvidia_smi_xml"), "stdout")
    remarks = [text for _at, text in lines_beside(xml.encode("utf-8", "replace"))] if "<" in xml else []
    for tool in sorted(tools):
        if tool.startswith(_SMI_TOOLS):
            answer = mapping_at(tools, tool)
            remarks += [*lost_gpu_lines(answer), *inforom_warnings(tool, answer)]
    return tuple(dict.fromkeys(sanitize(line.strip(), 200) for line in remarks))[:MOST_UNLISTED]


_ATTACHED = re.compile(r"<attached_gpus>\s*(\d{1,4})\s*</attached_gpus>")
_JOURNAL_LOST = re.compile(r"(?i)ignoring (?:journal )?file|corrupt|is truncated|bad message")


def _attached_gpus(xml: str) -> int | None:
    """Return the number of GPUs that the driver counts, or None if unknown."""
    match = _ATTACHED.search(xml)
    return int(match[1]) if match else None


def _lost_journals(tools: Mapping[str, Any]) -> bool:
    """Return whether journalctl skipped a journal file, as it reports only on stderr, with exit status 0."""
    stderr = mapping_at(tools, "kernel_log").get("stderr")
    return isinstance(stderr, str) and _JOURNAL_LOST.search(stderr) is not None


def _read_gpu(
    gpu: Gpu, text: Callable[[str], str], link_speeds: dict[str, float], link_errors: dict[str, int]
) -> GpuSnapshot:
    """Return a GPU. ``text`` returns the value at a path of ``nvidia-smi -q -x``, or ""."""
    pcie = "pci/pci_gpu_link_info/"
    used_mib, total_mib = (_whole_sum(text, f"fb_memory_usage/{part}") for part in ("used", "total"))
    return GpuSnapshot(
        uuid=gpu.uuid,
        serial=gpu.serial,
        index=gpu.index,
        bus_id=gpu.bus_id,
        module=text("platformInfo/module_id"),
        name=gpu.name,
        vbios=gpu.vbios,
        gsp=text("gsp_firmware_version"),
        # Drivers name these values differently. A value that is absent adds nothing.
        sram_uncorrectable=_whole_sum(
            text,
            "ecc_errors/volatile/sram_uncorrectable",
            "ecc_errors/volatile/sram_uncorrectable_parity",
            "ecc_errors/volatile/sram_uncorrectable_secded",
            *DOUBLE_BIT_SRAM,
        ),
        sram_threshold=_flag(text, "ecc_errors/aggregate/sram_threshold_exceeded", "Yes", "No"),
        sram_correctable=_whole_sum(text, "ecc_errors/aggregate/sram_correctable"),
        dram_uncorrectable=_whole_sum(
            text, "ecc_errors/volatile/dram_uncorrectable", f"{DOUBLE_BIT}/device_memory"
        ),
        dram_correctable=_whole_sum(
            text, "ecc_errors/aggregate/dram_correctable", "ecc_errors/aggregate/single_bit/device_memory"
        ),
        ecc_enabled=_flag(text, "ecc_mode/current_ecc", "Enabled", "Disabled"),
        remap_pending=_any_flag(text, "remapped_rows/remapped_row_pending", *PENDING_PAGES),
        remap_failure=_flag(text, "remapped_rows/remapped_row_failure", "Yes", "No"),
        memory_unrepairable=_flag(text, "ecc_errors/unrepairable_memory", "Yes", "No"),
        repairs_pending=_pending_repairs(text),
        ecc_enabled_next=_flag(text, "ecc_mode/pending_ecc", "Enabled", "Disabled"),
        mig=_flag(text, "mig_mode/current_mig", "Enabled", "Disabled"),
        mig_next=_flag(text, "mig_mode/pending_mig", "Enabled", "Disabled"),
        memory_total_bytes=None if total_mib is None else total_mib << 20,
        recovery_action=text("gpu_recovery_action"),
        pcie_generation=_whole_sum(text, pcie + "pcie_gen/current_link_gen"),
        pcie_generation_max=_whole_sum(text, pcie + "pcie_gen/max_link_gen"),
        pcie_width=_whole_sum(text, pcie + "link_widths/current_link_width"),
        pcie_width_max=_whole_sum(text, pcie + "link_widths/max_link_width"),
        pcie_replays=_whole_sum(text, "pci/replay_counter"),
        utilisation=leading_number(text("utilization/gpu_util")),
        throttled=_active_throttles(text),
        slowdown_s=_slowdown_seconds(text),
        temperature_c=leading_number(text("temperature/gpu_temp")),
        margin_c=slowdown_margin(text),
        memory_c=leading_number(text("temperature/memory_temp")),
        power_limit_w=gpu.power_limit_w,
        power_default_w=leading_number(text("gpu_power_readings/default_power_limit")),
        clock_max_mhz=leading_number(text("max_clocks/sm_clock")),
        memory_clock_max_mhz=leading_number(text("max_clocks/mem_clock")),
        applications_clock_mhz=leading_number(text("applications_clocks/graphics_clock")),
        applications_memory_clock_mhz=leading_number(text("applications_clocks/mem_clock")),
        bar1_mib=leading_number(text("bar1_memory_usage/total")),
        compute_mode=text("compute_mode"),
        persistence_mode=text("persistence_mode"),
        spent_banks=_whole_sum(text, "remapped_rows/row_remapper_histogram/row_remapper_histogram_none"),
        remapped_rows=_whole_sum(text, "remapped_rows/remapped_row_corr", "remapped_rows/remapped_row_unc"),
        memory_used_bytes=None if used_mib is None else used_mib << 20,
        fabric_state=text("fabric/state"),
        fabric_status=text("fabric/status"),
        fabric_health=text("fabric/health/summary"),
        fabric_clique=text("fabric/cliqueId"),
        fabric_cluster=text("fabric/clusterUuid"),
        links={link: speed > 0 for link, speed in link_speeds.items()},
        link_gb_s={link: speed for link, speed in link_speeds.items() if speed > 0},
        link_errors=_error_sum(link_speeds, link_errors),
        errors=_driver_errors(text),
    )


def _pending_repairs(text: Callable[[str], str]) -> tuple[str, ...] | None:
    """Return the repairs that wait for a reset, or None if unknown. Drivers before 575 do not report them."""
    parts = ("channel", "tpc")
    pending = {part: _flag(text, f"ecc_errors/{part}_repair_pending", "Yes", "No") for part in parts}
    waiting = tuple(part for part, state in pending.items() if state)
    # If one of the two is unknown, it is also unknown whether a repair is waiting.
    return None if not waiting and None in pending.values() else waiting


def _whole_sum(text: Callable[[str], str], *paths: str) -> int | None:
    """Return the sum of the numbers at the paths without fractions, or None if no path has a number."""
    numbers = [leading_number(text(path)) for path in paths]
    known = [int(number) for number in numbers if number is not None]
    return sum(known) if known else None


def _flag(text: Callable[[str], str], path: str, yes: str, no: str) -> bool | None:
    """Return whether the word at a path is ``yes``, or None if it is neither ``yes`` nor ``no``."""
    value = text(path)
    # An error text in place of a value ("Unknown Error") is not an answer.
    return value == yes if value in (yes, no) else None


def _any_flag(text: Callable[[str], str], *paths: str) -> bool | None:
    """Return whether any of several words is ``Yes``, or None if none of them is ``Yes`` or ``No``."""
    known = [flag for path in paths if (flag := _flag(text, path, "Yes", "No")) is not None]
    return any(known) if known else None


def _active_throttles(text: Callable[[str], str]) -> tuple[str, ...] | None:
    """Return why clocks are reduced now, or None if the driver does not report it."""
    known = {reason: _throttle_state(text, reason) for reason in _THROTTLES}
    # The versions of the driver list different reasons. All versions list these two.
    if known["hw_slowdown"] is None or known["sw_power_cap"] is None:
        return None
    return tuple(reason for reason, active in known.items() if active)


def _throttle_state(text: Callable[[str], str], reason: str) -> bool | None:
    """Return whether clocks are reduced for a reason, or None if unknown."""
    # Before driver 535, the field was called "throttle". Now it is called "event".
    for word in ("event", "throttle"):
        state = _flag(text, f"clocks_{word}_reasons/clocks_{word}_reason_{reason}", "Active", "Not Active")
        if state is not None:
            return state
    return None


def _slowdown_seconds(text: Callable[[str], str]) -> dict[str, float]:
    """Return the seconds for which the driver slowed the GPU down, by reason.

    Drivers before 570 do not count them.
    """
    seconds = {}
    for reason in _SLOWDOWNS:
        path = f"clocks_event_reasons_counters/clocks_event_reasons_counters_{reason}"
        microseconds = leading_number(text(path))
        if microseconds is not None:
            seconds[reason] = microseconds / 1e6
    return seconds


def _driver_errors(text: Callable[[str], str]) -> tuple[str, ...]:
    """Return the distinct error texts that the driver gives in place of values."""
    values = (sanitize(text(path), 60) for path in _ERROR_PATHS)
    return tuple(dict.fromkeys(value for value in values if _ERROR.search(value)))


_ERROR_PATHS = (
    "ecc_mode/current_ecc",
    "ecc_errors/volatile/sram_uncorrectable",
    "ecc_errors/volatile/sram_uncorrectable_parity",
    "ecc_errors/volatile/dram_uncorrectable",
    "remapped_rows/remapped_row_pending",
    "remapped_rows/remapped_row_failure",
    "fb_memory_usage/used",
    "pci/pci_gpu_link_info/pcie_gen/current_link_gen",
    "pci/pci_gpu_link_info/link_widths/current_link_width",
    "temperature/gpu_temp",
    "gpu_power_readings/current_power_limit",
    "performance_state",
)
"""Paths at which a faulty GPU shows an error text."""
_ERROR = re.compile(r"(?i)\berr!|unknown error|requires reset|is lost|timed? ?out|insufficient")
"""Pattern of an error text of the driver in place of a value, such as ``ERR!`` or ``GPU is lost``."""

_THROTTLES = (
    "hw_slowdown",
    "hw_thermal_slowdown",
    "hw_power_brake_slowdown",
    "sw_thermal_slowdown",
    "sw_power_cap",
    "sync_boost",
)
"""Reasons for reduced clocks, by the end of their names in the XML of nvidia-smi."""

_SLOWDOWNS = ("hw_therm_slowdown", "hw_power_brake", "sw_therm_slowdown")
"""Reasons whose duration the driver counts, by the end of their names in the XML of nvidia-smi."""


def _nvlink_speeds(text: str) -> dict[str, dict[str, float]]:
    """Return each NVLink's GB/s (0 if it is down) from ``nvidia-smi nvlink -s``, by UUID of the GPU."""
    speeds_by_gpu: dict[str, dict[str, float]] = {}
    speeds: dict[str, float] = {}
    for line in text.splitlines()[:MOST_LINES]:
        if heading := _HEADING.match(line):
            speeds = speeds_by_gpu.setdefault(heading[1], {})
        elif line.startswith("GPU "):
            # Do not add the links to the previous GPU.
            speeds = {}
        elif len(speeds) < MOST_LINKS and (link := _LINK.match(line)):
            # "Link 0: 50 GB/s" is up. "<inactive>" and 0 are not.
            speed = leading_number(link[2]) if link[2].endswith("GB/s") else None
            # If a link is listed twice, the worse value counts.
            speeds[link[1]] = min(max(speed or 0.0, 0.0), speeds.get(link[1], inf))
    return speeds_by_gpu


def _nvlink_errors(text: str) -> dict[str, dict[str, int]]:
    """Return each NVLink's sum of error counters (``nvidia-smi nvlink -e``), by UUID and number of the link.

    A link with an unreadable counter is left out.
    """
    errors_by_gpu: dict[str, dict[str, int]] = {}
    unread: set[tuple[str, str]] = set()
    uuid = ""
    for line in text.splitlines()[:MOST_LINES]:
        if heading := _HEADING.match(line):
            uuid = heading[1]
        elif line.startswith("GPU "):
            uuid = ""
        elif uuid and (counter := _LINK_ERRORS.match(line)):
            errors = errors_by_gpu.setdefault(uuid, {})
            count = counter[2].strip()
            if count.isascii() and count.isdecimal() and len(count) <= 18:
                errors[counter[1]] = errors.get(counter[1], 0) + int(count)
            else:
                unread.add((uuid, counter[1]))
    for gpu, link in unread:
        errors_by_gpu[gpu].pop(link, None)
    return errors_by_gpu


def _error_sum(speeds: Mapping[str, float], errors: Mapping[str, int]) -> int | None:
    """Return the sum of the links' counters, or None if an active link, or every link, lacks counters."""
    counts_all = errors and all(link in errors for link, speed in speeds.items() if speed > 0)
    return sum(errors.values()) if counts_all else None


def faults_to_repair(snapshot: NodeSnapshot) -> frozenset[str]:
    """Return the codes of the open faults of the kernel log that a boot does not heal."""
    xids = (f"xid_{event.xid}" for event in snapshot.xids if event.action == "isolate")
    failures = (event for event in snapshot.hardware_events if event.verdict is Verdict.FAIL)
    return frozenset((*xids, *(event.code for event in failures if not is_healed_by_boot(event))))


def _open_events(
    new: KernelLogReading,
    gpus: tuple[GpuSnapshot, ...],
    boot_id: str,
    previous: NodeSnapshot | None,
    *,
    was_repaired: bool,
) -> tuple[list[XidEvent], list[HardwareEvent]]:
    """Return the XIDs and hardware failures of last night that stay open, to repeat them each night.

    A boot ends the events that it heals. The others also need a repair, which no reading of a node shows. If
    the log shows an event again, the event of the log is used, because two events would give two findings.
    """
    if previous is None:
        return [], []
    booted = _has_rebooted(boot_id, previous)

    def carried(event: _Event) -> _Event:
        return event.model_copy(update={"carried": True, "rebooted": event.rebooted or booted})

    def is_over(event: _Event) -> bool:
        return event.rebooted and (was_repaired or is_healed_by_boot(event))

    repeated_xids = {(event.bus_id, event.xid) for event in new.xids}
    # A reset leaves no other trace than this.
    recovered = {gpu.uuid for gpu in gpus if gpu.recovery_action == "None"}
    # A milder event does not replace a failure.
    repeated = {(event.code, event.bus_id) for event in new.hardware if event.verdict is Verdict.FAIL}
    xids = [
        carried(event)
        for event in previous.xids
        if (event.bus_id, event.xid) not in repeated_xids and _awaits_action(event, recovered)
    ]
    failures = [
        carried(event)
        for event in previous.hardware_events
        if event.verdict is Verdict.FAIL and (event.code, event.bus_id) not in repeated
    ]
    return (
        [event for event in xids if not is_over(event)],
        [event for event in failures if not is_over(event)],
    )


def _has_rebooted(boot_id: str, previous: NodeSnapshot) -> bool:
    """Return whether the node was booted since, which a new boot ID proves."""
    return bool(boot_id and previous.boot_id and previous.boot_id != boot_id)


def _awaits_action(event: XidEvent, recovered: Collection[str]) -> bool:
    """Return whether an XID still needs its reset, reboot or isolation."""
    if event.action == "reset" and event.uuid in recovered:
        return False
    return event.action in ("reset", "reboot", "isolate") and not resolved_by_boot(event)


def _count_reboots(boot_id: str, new: tuple[XidEvent, ...], previous: NodeSnapshot | None) -> dict[str, int]:
    """Return the number of reboots of the node for each XID that requires one."""
    if previous is None:
        return {}
    counts = dict(previous.reboots)
    resolved = [event for event in new if resolved_by_boot(event)]
    if _has_rebooted(boot_id, previous):
        resolved += [event for event in previous.xids if not resolved_by_boot(event)]
    # Use a set, because several events of one XID give one reason for one reboot.
    for key in {reboot_counter_key(event) for event in resolved if event.action == "reboot"}:
        counts[key] = counts.get(key, 0) + 1
    return counts


def reboot_counter_key(event: XidEvent) -> str:
    """Return the key for counting reboots.

    The key consists of the GPU (independent of its slot) and the XID.
    """
    return f"{event.uuid or event.bus_id}/{event.xid}"


def _versions(
    known: Mapping[str, str], gpus: tuple[GpuSnapshot, ...], modules: Mapping[str, Any]
) -> dict[str, str]:
    """Return the versions that nights compare, by component."""
    versions = {name: known[name] for name in _VERSIONS if known.get(name)}
    versions |= {name: value for name, value in known.items() if name.startswith(("bios", "infiniband."))}
    # If the versions on a node's GPUs differ, the text combines them, and differs from other nodes.
    for name, values in (("vbios", {gpu.vbios for gpu in gpus}), ("gsp", {gpu.gsp for gpu in gpus})):
        if any(values):
            versions[name] = " ".join(sorted(filter(None, values)))
    return versions | _module_versions(modules)


def _module_versions(modules: Mapping[str, Any]) -> dict[str, str]:
    """Return the versions of the loaded modules. After an upgrade, they differ from the installed ones."""
    loaded = [module for module in ("nvidia_peermem", "nvidia") if module in modules]
    return {f"module.{module}": sanitize(modules[module] or "", 60) for module in loaded}


def _tool_statuses(tools: Mapping[str, Any]) -> dict[str, str]:
    """Return the status of each tool's answer."""
    return {
        sanitize(tool, 60): sanitize(mapping_at(tools, tool).get("status") or "", 20)
        for tool in sorted(tools)
    }


def _tool_seconds(tools: Mapping[str, Any]) -> dict[str, float]:
    """Return how many seconds each tool took."""
    seconds = {}
    for tool in sorted(tools):
        taken_s = as_float(mapping_at(tools, tool).get("seconds"))
        if taken_s is not None:
            seconds[sanitize(tool, 60)] = taken_s
    return seconds


def _missing_disks(paths: Mapping[str, Any], disk: Mapping[str, object]) -> dict[str, str]:
    """Return status "failed" for each path for which ``disk`` has no file system."""
    return {f"statfs {sanitize(path, 50)}": "failed" for path in paths if sanitize(path, 300) not in disk}


def _read_links(devices: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """Return the PCIe links of network cards by address, as texts of /sys (``32.0 GT/s PCIe``, ``16``)."""
    return {
        sanitize(address, 40): {key: sanitize(value, 60) for key, value in list(link.items())[:10]}
        for address, link in devices.items()
        if isinstance(link, Mapping)
    }


def _read_ports(devices: Mapping[str, Any]) -> tuple[PortSnapshot, ...]:
    """Return the ports of network cards."""
    ports = []
    for device in sorted(devices)[:MOST_CARDS]:
        for port, values in sorted(mapping_at(devices, device).items()):
            if isinstance(values, Mapping):
                ports.append(_read_port(device, port, values))
    return tuple(ports)


_PORT_TEXTS = ("state", "phys_state", "rate", "link_layer")


def _read_port(device: str, port: str, values: Mapping[str, Any]) -> PortSnapshot:
    """Return a port from the texts of /sys."""
    counters = mapping_at(values, "counters")
    # A value that is not text shows that the port was not read from /sys. Its state is unknown.
    is_text = all(isinstance(values.get(name), str | None) for name in _PORT_TEXTS)
    return PortSnapshot(
        device=sanitize(device, 60),
        port=sanitize(port, 10),
        # /sys states "4: ACTIVE" and "5: LinkUp".
        state=sanitize(str(values.get("state") or "").rpartition(":")[2], 40).lower() if is_text else "",
        physical=sanitize(str(values.get("phys_state") or "").rpartition(":")[2], 40).lower(),
        rate_gbps=leading_number(str(values.get("rate") or "")),
        layer=sanitize(values.get("link_layer") or "", 40),
        nvswitch=nvswitch if isinstance(nvswitch := values.get("nvswitch"), bool) else None,
        counters={
            sanitize(name, 60): value
            for name, value in list(counters.items())[:200]
            if isinstance(value, int) and value >= 0
        },
    )


def _ports_of_facts(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the ports from the facts, for answers without the part ``health``."""
    devices = mapping_at(facts, "infiniband")
    return {name: mapping_at(mapping_at(devices, name), "ports") for name in devices}


def _read_disks(paths: Mapping[str, Any], whole: Collection[str]) -> dict[str, dict[str, float]]:
    """Return the sizes of file systems by path. A path in ``whole`` is left out unless it has all values."""
    disks = {}
    for path in sorted(paths)[:100]:
        values = mapping_at(paths, path)
        total, free = as_float(values.get("total_bytes")), as_float(values.get("free_bytes"))
        inodes = {name: as_float(values.get(name)) for name in ("total_inodes", "free_inodes")}
        known = {name: value for name, value in inodes.items() if value is not None}
        # One number without the other states no share.
        pair = known if len(known) == len(inodes) else {}
        if path in whole and (len(known) < len(inodes) or not isinstance(values.get("read_only"), bool)):
            continue
        if total and free is not None:
            disks[sanitize(path, 300)] = {
                "total_bytes": total,
                "free_bytes": free,
                "read_only": float(values.get("read_only") is True),
                **pair,
            }
    return disks


def _since(log: str, health: Mapping[str, Any], uptime: str) -> str:
    """Return the lines since the last snapshot from a log that counts seconds since boot (``dmesg``).

    Lines without such a time are a journal's, and are kept. Without the times of the last snapshot
    and of the boot, all lines are kept.
    """
    since, epoch = as_float(health.get("since")), as_float(health.get("epoch"))
    uptime_s = leading_number(uptime)
    if not since or epoch is None or uptime_s is None:
        return log
    begin_s = since - (epoch - uptime_s)
    stamps = ((_DMESG.match(line), line) for line in log.splitlines())
    return "\n".join(line for stamp, line in stamps if stamp is None or float(stamp[1]) >= begin_s)


def _error_lines(tools: Mapping[str, Any], health: Mapping[str, Any], uptime: str) -> str | None:
    """Return the log lines of level error or worse, or None if the node could not filter by level."""
    answer = mapping_at(tools, "kernel_log")
    errors = answer.get("errors")
    return _since(errors, health, uptime) if isinstance(errors, str) else None


_START_S = 10.0
"""Seconds after its start within which a kernel logs its first message."""
_JOURNAL_START_S = 180.0
"""Seconds after the kernel's start within which journald starts. The kernel's ring may be full by then."""
_JOURNAL_TIME = re.compile(r'"(__REALTIME|_SOURCE_MONOTONIC)_TIMESTAMP"\s*:\s*"(\d{1,16})"')


def _lost_before(
    tools: Mapping[str, Any], health: Mapping[str, Any], uptime: str, *, is_container: bool
) -> float | None:
    """Return the time before which the log lost messages since the last snapshot or the boot, or None.

    The time is in seconds since 1970, or 0 if it is unknown.
    """
    answer, log = mapping_at(tools, "kernel_log"), stdout_of(tools, "kernel_log")
    if answer.get("status") != "ok":
        return None  # There is no log.
    if "oldest" not in answer:
        # The log is the kernel's ring, or an earlier version gathered it. If the entry was removed, the seal
        # of the answer shows that.
        return 0.0 if _is_wrapped(log, health, uptime) else None
    if _is_ring(ring := text_at(answer, "ring")) and not _is_wrapped(ring, health, uptime):
        return None
    booted, since = as_float(health.get("booted")) or 0.0, as_float(health.get("since")) or 0.0
    stored, source_s = _times_of_oldest(text_at(answer, "oldest"), booted, is_container=is_container)
    # A clock may be corrected during the start. The kernel's own count of seconds needs no correction.
    if source_s <= _JOURNAL_START_S or stored <= since:
        return None
    return stored if stored < inf else 0.0


def _times_of_oldest(message: str, booted: float, *, is_container: bool) -> tuple[float, float]:
    """Return when the journal stored its oldest message, and its seconds since the boot, or infinity."""
    times = {name: int(digits) / 1e6 for name, digits in _JOURNAL_TIME.findall(message)}
    stored, source_s = times.get("__REALTIME", inf), times.get("_SOURCE_MONOTONIC")
    # A container is younger than its kernel.
    return stored, stored - booted if source_s is None or is_container else source_s


def _is_ring(log: str) -> bool:
    """Return whether a log counts the seconds since boot, as the kernel's ring buffer does."""
    first = _first_moment(log)
    return first is not None and _DMESG.match(first) is not None


def _is_wrapped(log: str, health: Mapping[str, Any], uptime: str) -> bool:
    """Return whether the kernel's ring buffer lost messages since the last snapshot or the boot."""
    first = _first_moment(log)
    if first is None or not (stamp := _DMESG.match(first)):
        return False  # The line is a journal's, or there is no log.
    since, epoch = as_float(health.get("since")), as_float(health.get("epoch"))
    uptime_s = leading_number(uptime)
    begin_s = since - (epoch - uptime_s) if since and epoch is not None and uptime_s is not None else 0.0
    return float(stamp[1]) > max(begin_s, _START_S)


_JOURNAL_REMARK = re.compile(r"-- .* --\s*$")


def _lacks_moments(log: str) -> bool:
    """Return whether no message states a time, so that it is unknown which messages are missing."""
    # "-- No entries --" and similar lines are remarks of journalctl. In a quiet night, nothing is
    # missing.
    messages = (line for line in log.splitlines() if line.strip() and not _JOURNAL_REMARK.match(line))
    return any(messages) and _first_moment(log) is None


def _first_moment(log: str) -> str | None:
    """Return the first line that states its time, or None if no line does."""
    return next((line for line in log.splitlines() if _MOMENT.match(line)), None)


def _identity(
    serial: str, gpus: tuple[GpuSnapshot, ...], previous: NodeSnapshot | None, accepted: bool
) -> tuple[str, tuple[str, ...]]:
    """Return the serial number and UUIDs that identify the node (:attr:`NodeSnapshot.identity_gpus`).

    A night without readings changes neither.
    """
    present = tuple(dict.fromkeys(gpu.uuid for gpu in gpus))
    if previous is None:
        return serial, present
    known = previous.identity_gpus or tuple(gpu.uuid for gpu in (*previous.gone_gpus, *previous.gpus))
    known_serial = previous.identity_serial or previous.serial
    if accepted:
        return serial or known_serial, present or known
    # An additional GPU fills an empty slot. A GPU in place of a known one is foreign.
    return known_serial or serial, present if set(known) <= set(present) else known


def _clock_offset(clock: Mapping[str, Any]) -> float | None:
    """Return how far the node's clock is ahead of the controller's, in seconds, or None if unknown.

    The value is negative if the node's clock is behind.
    """
    asked_at, epoch = as_float(clock.get("asked_at")), as_float(clock.get("epoch"))
    return None if asked_at is None or epoch is None else epoch - asked_at


def _read_mounts(mountinfo: str) -> tuple[str, ...] | None:
    """Return the paths of all mounts, or None if unknown. The fifth field of a line of mountinfo is a path.

    ``36 35 8:1 / /data rw,noatime shared:1 - ext4 /dev/sda1 rw``
    """
    fields = (line.split() for line in mountinfo.splitlines())
    escaped = {field[4] for field in fields if len(field) > 5}
    return tuple(sorted(sanitize(_unescape(path), 300) for path in escaped)) if escaped else None


_TABLE_LEAVES_OUT = frozenset(
    (
        *(
            "proc",
            "sysfs",
            "cgroup",
            "cgroup2",
            "devpts",
            "mqueue",
            "nsfs",
            "securityfs",
            "debugfs",
            "tracefs",
        ),
        *(
            "bpf",
            "pstore",
            "configfs",
            "fusectl",
            "hugetlbfs",
            "autofs",
            "binfmt_misc",
            "efivarfs",
        ),
    )
)
"""Types of file systems without storage. A node with containers has thousands of such mounts."""
MOST_MOUNTS = 2000
"""Largest number of mounts that are stored in the table."""


def _read_mount_table(mountinfo: str) -> dict[str, dict[str, str]]:
    """Return the mounts by path (see :func:`_read_mounts`). Of several on a path, the last is visible."""
    table: dict[str, dict[str, str]] = {}
    for line in mountinfo.splitlines():
        before, separator, after = line.partition(" - ")
        mount, system = before.split(), after.split()
        if not separator or len(mount) < 6 or len(system) < 3 or system[0] in _TABLE_LEAVES_OUT:
            continue
        if len(table) >= MOST_MOUNTS:
            break
        table[sanitize(_unescape(mount[4]), 300)] = {
            "source": sanitize(_unescape(system[1]), 300),
            "type": sanitize(system[0], 40),
            "options": sanitize(mount[5], 500),
            "super_options": sanitize(system[2], 2000),
        }
    return table


def _unescape(path: str) -> str:
    """Return a path of mountinfo as it is. There, a space is written as ``\\040``, for example."""
    return re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), path)


def _read_services(tools: Mapping[str, Any]) -> dict[str, str] | None:
    """Return the states of the queried units by each of their names, or None if unknown."""
    if mapping_at(tools, "units").get("status") != "ok":
        return None
    services = {}
    for block in re.split(r"\n\s*\n", stdout_of(tools, "units")):
        unit = dict(line.partition("=")[::2] for line in block.splitlines())
        for name in {unit.get("Id", ""), *unit.get("Names", "").split()} - {""}:
            services[sanitize(name, 100)] = _service_state(unit)
    return services


# "Slurmctld(primary) at a is UP". Up to 17.11 one line had both controllers: "Slurmctld(primary/backup) at
# a/b are UP/DOWN".
_CONTROLLER = re.compile(r"^Slurmctld\(.{1,300} (?:is|are) (\S{1,40})", re.MULTILINE)


def _reaches_slurm(tools: Mapping[str, Any]) -> bool | None:
    """Return whether a Slurm controller answers the node (``scontrol ping``), or None if unknown."""
    states = _CONTROLLER.findall(text_at(mapping_at(tools, "slurm_controller"), "stdout"))
    # If scontrol prints no line, it lacks a configuration, but slurmd may get one in another way.
    return any("UP" in state.split("/") for state in states) if states else None


_SLURMD_NAME = re.compile(r"^Hostname[ \t]{1,60}= (\S{1,100})$", re.MULTILINE)


def _slurm_name(tools: Mapping[str, Any]) -> str | None:
    """Return the node's name in slurmd (``scontrol show slurmd``), or None if unknown."""
    match = _SLURMD_NAME.search(text_at(mapping_at(tools, "slurmd_status"), "stdout"))
    return sanitize(match[1], 100) if match else None


def _service_state(unit: Mapping[str, str]) -> str:
    """Return the state of a unit, as in :attr:`NodeSnapshot.services`."""
    loaded, active = unit.get("LoadState", ""), unit.get("ActiveState", "")
    if active == "active":
        return active
    if loaded != "loaded":
        return sanitize(loaded or "unknown", 20)
    # systemd tried to start the unit, but its condition is false, so it has nothing to do on this node.
    if unit.get("ConditionResult") == "no" and unit.get("ConditionTimestampMonotonic", "0") not in ("", "0"):
        return "condition"
    restarts = active == "activating" and unit.get("SubState") == "auto-restart"
    return "auto-restart" if restarts else sanitize(active or "unknown", 20)


def _failed_units(tools: Mapping[str, Any]) -> tuple[str, ...] | None:
    """Return the units that failed, or None if unknown."""
    if mapping_at(tools, "failed_units").get("status") != "ok":
        return None
    # systemctl marks a failed unit with a bullet.
    lines = stdout_of(tools, "failed_units").replace("\u25cf", " ").splitlines()
    return tuple(sorted(sanitize(line.split()[0], 100) for line in lines if line.strip()))


def _idle_units(shown: str, failed: Collection[str]) -> tuple[str, ...]:
    """Return the enabled units of ``systemctl show`` that are not running, without the failed ones."""
    idle = []
    for block in re.split(r"\n\s*\n", shown):
        unit = dict(line.partition("=")[::2] for line in block.splitlines())
        enabled = unit.get("UnitFileState", "").startswith("enabled") and unit.get("LoadState") == "loaded"
        if enabled and unit.get("ActiveState") not in ("active", "activating", "reloading", None):
            idle.append(sanitize(unit.get("Id", ""), 100))
    return tuple(sorted(unit for unit in idle if unit and unit not in failed))
