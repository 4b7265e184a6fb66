"""From what was gathered on a node to a look: its state in one night, kept to compare the next with. Pure.

What is gathered, a mapping of three parts, each of which may be absent:

``facts``   what ``rackproof_facts`` returns, subset ``record``;
``node``    the same, subset ``provision``;
``health``  what the modules above do not gather:

    ``epoch``     seconds since 1970, when it was gathered; ``since`` the moment that the log begins at;
    ``booted``    the same, when the system began (its first process: a container's kernel is older);
    ``loaded``    whether a load ran on the GPUs meanwhile (PCIe links and clocks rest without one);
    ``tools``     by name an answer as in ``facts.tools``: ``kernel_log`` (``journalctl -o short-unix
                  _TRANSPORT=kernel --since=@LAST_LOOK``, earlier boots too; else ``dmesg``),
                  ``nvlink_status`` (``nvidia-smi nvlink -s``), ``nvlink_errors`` (``nvidia-smi nvlink -e``),
                  ``failed_units`` (``systemctl list-units --failed --plain --no-legend``), ``units``
                  (``systemctl show``, an empty line between two units), ``clock`` (``timedatectl show``);
    ``hca``       device to port to ``state``, ``phys_state``, ``rate``, ``link_layer`` (texts of /sys/class/
                  infiniband/DEVICE/ports/PORT) and ``counters`` (name to number);
    ``pci``       address to ``current_link_speed``, ``max_link_speed``, ``current_link_width``,
                  ``max_link_width`` of /sys/bus/pci/devices/ADDRESS, of network cards;
    ``disk``      path to ``total_bytes``, ``free_bytes``, ``read_only``.

Subset ``health`` gathers all of it in one call; instead of ``node.mounts`` it brings ``mountinfo`` among
``facts.files``, instead of ``node.services`` the answers of ``systemctl``.

A node's text is hostile until it is cleaned; what is absent is empty or None, never a good value.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from pydantic import Field

from rackproof.core.records import Node, Record
from rackproof.core.text import sanitize
from rackproof.logs.nvidia_smi import read_gpu_texts
from rackproof.logs.xid import ACTIONS
from rackproof.nodes.facts import node_from_facts

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
_XID = re.compile(r"NVRM: Xid \((?:PCI:)?([0-9A-Fa-f:.]{4,20})\): (\d{1,6})(?:, ?(.*))?$")
_MOMENT = re.compile(r"(\d{9,11}\.\d{1,9}) ")
_DMESG = re.compile(r"\[\s*(\d{1,12}\.\d{1,9})\]")
_RECOVERY = {"reset": "reset", "reboot": "reboot"}
_HEADING = re.compile(r"^GPU \d{1,4}: .{1,100} \(UUID: (GPU-[0-9A-Fa-f-]{1,60})\)")
_LINK = re.compile(r"^\s*Link (\d{1,3}): (.{1,60})$")
_LINK_ERRORS = re.compile(r"^\s*Link (\d{1,3}): (\w+) Errors: (\d{1,18})")
MOST_XIDS = 500
MOST_GONE = 64


class GpuSnapshot(Record):
    """A GPU; numbers are None and texts empty where ``nvidia-smi`` does not tell.

    Temperatures in °C, power in W, clocks in MHz, memory in bytes; ``margin_c`` is what is left until it
    slows down. ``throttled`` names the active reasons other than idling; ``links`` are the NVLinks, number to
    whether it is up; ``link_errors`` the sum of all their counters.
    """

    uuid: str
    serial: str = ""
    index: int = 0
    bus_id: str = ""
    module: str = ""
    name: str = ""
    vbios: str = ""
    gsp: str = ""
    sram_uncorrectable: int | None = None
    sram_threshold: bool | None = None
    sram_correctable: int | None = None
    dram_uncorrectable: int | None = None
    dram_correctable: int | None = None
    ecc_enabled: bool | None = None
    remap_pending: bool | None = None
    remap_failure: bool | None = None
    recovery_action: str = ""
    pcie_generation: int | None = None
    pcie_generation_max: int | None = None
    pcie_width: int | None = None
    pcie_width_max: int | None = None
    pcie_replays: int | None = None
    utilisation: float | None = None
    throttled: tuple[str, ...] = ()
    temperature_c: float | None = None
    margin_c: float | None = None
    power_limit_w: float | None = None
    power_default_w: float | None = None
    memory_used_bytes: int | None = None
    fabric_state: str = ""
    fabric_health: str = ""
    links: dict[str, bool] = Field(default={})
    link_errors: int | None = None
    errors: tuple[str, ...] = ()
    """What the driver says in place of a value: that is no value, and no "N/A" either."""

    @property
    def place(self) -> str:
        """Where it sits: index, bus and module."""
        module = f", module {self.module}" if self.module else ""
        return f"GPU {self.index}, {self.bus_id}{module}"


class PortSnapshot(Record):
    """A port of a network card; ``rate_gbps`` is its signalling rate, None where it is unknown.

    ``usual_gbps`` is the highest rate that it was ever seen with.
    """

    device: str
    port: str
    state: str = ""
    physical: str = ""
    rate_gbps: float | None = None
    usual_gbps: float | None = None
    layer: str = ""
    counters: dict[str, int] = Field(default={})


class XidEvent(Record):
    """An XID since the last look, or one still open from before (``carried``).

    Of one that was ``rebooted`` the node was booted after it was logged, and it has not come again since.
    """

    bus_id: str
    uuid: str = ""
    xid: int
    action: str
    times: int = 1
    text: str = ""
    carried: bool = False
    rebooted: bool = False


class NodeSnapshot(Record):
    """A node as it was in one night. ``answered`` names the tools that answered, the others have a status.

    ``reboots`` counts, by ``GPU/XID``, the reboots after which that XID was looked for again. ``gone_gpus``
    and ``gone_ports`` were there in an earlier night: what is missing is so until it is back.
    """

    node: str
    sku: str = ""
    hardware_key: str
    epoch: float | None = None
    boot_id: str = ""
    loaded: bool = False
    gpus: tuple[GpuSnapshot, ...] = ()
    ports: tuple[PortSnapshot, ...] = ()
    gone_gpus: tuple[GpuSnapshot, ...] = ()
    gone_ports: tuple[PortSnapshot, ...] = ()
    links: dict[str, dict[str, str]] = Field(default={})
    """PCIe of network cards: address to current and maximum speed and width."""
    xids: tuple[XidEvent, ...] = ()
    reboots: dict[str, int] = Field(default={})
    versions: dict[str, str] = Field(default={})
    tools: dict[str, str] = Field(default={})
    seconds: dict[str, float] = Field(default={})
    truncated: tuple[str, ...] = ()
    mounts: tuple[str, ...] | None = None
    failed_units: tuple[str, ...] | None = None
    idle_units: tuple[str, ...] = ()
    """Units that are to run, and do not."""
    disk: dict[str, dict[str, float]] = Field(default={})
    memory_bytes: int = 0
    memlock_bytes: int | None = None
    shm_bytes: int | None = None
    clock_offset_s: float | None = None
    clock_synchronized: bool | None = None


def build_snapshot(
    name: str,
    gathered: Mapping[str, Any],
    *,
    sku: str = "",
    previous: NodeSnapshot | None = None,
    about: Node | None = None,
) -> NodeSnapshot:
    """Return the state of a node.

    Args:
        name: Name in the inventory.
        gathered: As the module's text describes.
        sku: Model as the inventory expects it.
        previous: The last look: XIDs that nobody has acted upon stay open, reboots are counted on.
        about: The node's record where it was read already: reading is what a look costs.
    """
    facts, node, health = (_map(gathered, part) for part in ("facts", "node", "health"))
    tools = {**_map(facts, "tools"), **_map(node, "commands"), **_map(health, "tools")}
    about = about or node_from_facts(name, facts, sku)
    gpus = _gpus(tools)
    boot_id = sanitize(facts.get("boot_id") or node.get("boot_id") or "", 60)
    log = _since(_stdout(tools, "kernel_log"), health, _text(_map(facts, "files"), "uptime"))
    xids = _xids(
        log,
        _float(health.get("booted")) or 0,
        {normalize_bus_id(one.bus_id): one.uuid for one in _known(gpus, previous)},
    )
    clock = _map(node, "clock")
    asked, told = _float(clock.get("asked_at")), _float(clock.get("epoch"))
    synchronized = clock.get("synchronized", _disciplined(_stdout(tools, "clock"), node))
    idle, failed = _units(_stdout(tools, "units")), _failed_units(tools, node.get("services"))
    ports = _with_usual(_ports(_map(health, "hca") or _of_facts(facts)), previous)
    asked_of = {**_map(facts, "paths"), **_map(node, "space"), **_map(health, "disk")}
    disk = _disk(asked_of)
    return NodeSnapshot(
        node=name,
        sku=sku,
        hardware_key=about.hardware_key,
        epoch=_float(health.get("epoch")) or told,
        boot_id=boot_id,
        loaded=health.get("loaded") is True,
        gpus=gpus,
        ports=ports,
        gone_gpus=_gone_gpus(gpus, previous),
        gone_ports=_gone_ports(ports, previous),
        links={
            sanitize(address, 40): {key: sanitize(value, 60) for key, value in list(about_.items())[:10]}
            for address, about_ in _map(health, "pci").items()
            if isinstance(about_, Mapping)
        },
        xids=(*xids, *_still_open(xids, gpus, boot_id, previous)),
        reboots=_reboots(boot_id, xids, previous),
        versions=_versions(about.software | about.firmware, gpus, _map(node, "modules")),
        tools={
            # A path that was asked for, and has no file system to show, is no healthy disk.
            **{
                f"statfs {sanitize(path, 50)}": "failed"
                for path in asked_of
                if sanitize(path, 300) not in disk
            },
            **{
                sanitize(tool, 60): sanitize(_map(tools, tool).get("status") or "", 20)
                for tool in sorted(tools)
            },
        },
        seconds={
            sanitize(tool, 60): taken
            for tool in sorted(tools)
            if (taken := _float(_map(tools, tool).get("seconds"))) is not None
        },
        truncated=tuple(sanitize(tool, 60) for tool in sorted(tools) if _map(tools, tool).get("truncated")),
        mounts=_mounts(node, _text(_map(facts, "files"), "mountinfo")),
        failed_units=failed,
        idle_units=tuple(one for one in idle if one not in (failed or ())),
        disk=disk,
        memory_bytes=about.memory_bytes or _whole(node.get("memory_bytes")) or 0,
        memlock_bytes=_whole(facts.get("memlock_bytes")),
        shm_bytes=_whole(facts.get("shm_bytes")),
        clock_offset_s=None if asked is None or told is None else told - asked,
        clock_synchronized=synchronized if isinstance(synchronized, bool) else None,
    )


def normalize_bus_id(address: str) -> str:
    """Return a bus address in one form (``0008:06:00``): the driver's, the kernel's and the log's differ."""
    parts = address.lower().split(".")[0].split(":")
    return (
        ":".join([parts[0][-4:].rjust(4, "0"), *parts[1:]]) if len(parts) == 3 else ":".join(["0000", *parts])
    )


def requested_action(xid: int, text: str) -> str:
    """Return what an XID asks for: watch, reset, reboot or isolate; ``unknown`` where nobody says."""
    action = ACTIONS.get(xid, "unknown")
    if action == "nvlink":
        return "watch" if "Nonfatal" in text else "reset"
    if xid == 154:
        # The driver itself says what it needs.
        said = text.rpartition(" to ")[2].lower()
        return next((wanted for word, wanted in _RECOVERY.items() if word in said), "watch")
    return action


def _known(gpus: tuple[GpuSnapshot, ...], previous: NodeSnapshot | None) -> tuple[GpuSnapshot, ...]:
    """GPUs that can be named by their bus: those that are missing, too, for however many nights."""
    there = {normalize_bus_id(one.bus_id) for one in gpus}
    before = (*previous.gone_gpus, *previous.gpus) if previous else ()
    return (*gpus, *(one for one in before if normalize_bus_id(one.bus_id) not in there))


def _gone_gpus(gpus: tuple[GpuSnapshot, ...], previous: NodeSnapshot | None) -> tuple[GpuSnapshot, ...]:
    """Return GPUs of earlier nights whose place is empty; where none can be read, that is all of them."""
    if previous is None:
        return ()
    there, places = {one.uuid for one in gpus}, {normalize_bus_id(one.bus_id) for one in gpus}
    known = {one.uuid: one for one in (*previous.gone_gpus, *previous.gpus)}
    return tuple(
        one for uuid, one in known.items() if uuid not in there and normalize_bus_id(one.bus_id) not in places
    )[:MOST_GONE]


def _gone_ports(ports: tuple[PortSnapshot, ...], previous: NodeSnapshot | None) -> tuple[PortSnapshot, ...]:
    """Return ports of earlier nights that are missing, and that no port of another name has come for."""
    if previous is None:
        return ()
    there = {(one.device, one.port) for one in ports}
    known = {(one.device, one.port): one for one in (*previous.gone_ports, *previous.ports)}
    if len(there) >= len(known):
        return ()
    return tuple(one for key, one in known.items() if key not in there)[:MOST_GONE]


def _with_usual(ports: tuple[PortSnapshot, ...], previous: NodeSnapshot | None) -> tuple[PortSnapshot, ...]:
    """Return the ports with the highest rate each was seen with: slow is slow for longer than a night."""
    was = {
        (one.device, one.port): one.usual_gbps or one.rate_gbps or 0.0
        for one in ((*previous.gone_ports, *previous.ports) if previous else ())
    }
    return tuple(
        one.model_copy(
            update={"usual_gbps": max(was.get((one.device, one.port), 0.0), one.rate_gbps or 0.0) or None}
        )
        for one in ports
    )


def _gpus(tools: Mapping[str, Any]) -> tuple[GpuSnapshot, ...]:
    try:
        found = read_gpu_texts(_stdout(tools, "nvidia_smi_xml").encode("utf-8", "replace"))
    except ValueError:
        return ()
    links, errors = _nvlinks(_stdout(tools, "nvlink_status")), _nvlink_errors(_stdout(tools, "nvlink_errors"))
    looks = []
    for gpu, text in found:

        def whole(*paths: str, of: Any = text) -> int | None:
            values = [_whole_text(of(path)) for path in paths]
            known = [value for value in values if value is not None]
            return sum(known) if known else None

        def yes(path: str, word: str = "Yes", of: Any = text) -> bool | None:
            return of(path) == word if of(path) else None

        errors_of, reasons = "ecc_errors/volatile/", "clocks_event_reasons/clocks_event_reason_"
        used = whole("fb_memory_usage/used")
        looks.append(
            GpuSnapshot(
                uuid=gpu.uuid,
                serial=gpu.serial,
                index=gpu.index,
                bus_id=gpu.bus_id,
                module=text("platformInfo/module_id"),
                name=gpu.name,
                vbios=gpu.vbios,
                gsp=text("gsp_firmware_version"),
                # Drivers name these differently; what is absent adds nothing.
                sram_uncorrectable=whole(
                    *(errors_of + one for one in ("sram_uncorrectable", "sram_uncorrectable_parity")),
                    errors_of + "sram_uncorrectable_secded",
                ),
                sram_threshold=yes("ecc_errors/aggregate/sram_threshold_exceeded"),
                sram_correctable=whole("ecc_errors/aggregate/sram_correctable"),
                dram_uncorrectable=whole(errors_of + "dram_uncorrectable"),
                dram_correctable=whole("ecc_errors/aggregate/dram_correctable"),
                ecc_enabled=yes("ecc_mode/current_ecc", "Enabled"),
                remap_pending=yes("remapped_rows/remapped_row_pending"),
                remap_failure=yes("remapped_rows/remapped_row_failure"),
                recovery_action=text("gpu_recovery_action"),
                pcie_generation=whole("pci/pci_gpu_link_info/pcie_gen/current_link_gen"),
                pcie_generation_max=whole("pci/pci_gpu_link_info/pcie_gen/max_link_gen"),
                pcie_width=whole("pci/pci_gpu_link_info/link_widths/current_link_width"),
                pcie_width_max=whole("pci/pci_gpu_link_info/link_widths/max_link_width"),
                pcie_replays=whole("pci/replay_counter"),
                utilisation=_number(text("utilization/gpu_util")),
                throttled=tuple(one for one in _THROTTLES if text(reasons + one) == "Active"),
                temperature_c=_number(text("temperature/gpu_temp")),
                margin_c=_number(text("temperature/gpu_temp_tlimit")),
                power_limit_w=gpu.power_limit_w,
                power_default_w=_number(text("gpu_power_readings/default_power_limit")),
                memory_used_bytes=None if used is None else used << 20,
                fabric_state=text("fabric/state"),
                fabric_health=text("fabric/health/summary"),
                links=links.get(gpu.uuid, {}),
                link_errors=errors.get(gpu.uuid),
                errors=tuple(
                    dict.fromkeys(
                        said for path in _TELLING if _ERROR.search(said := sanitize(text(path), 60))
                    )
                ),
            )
        )
    return tuple(looks)


_TELLING = (
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
"""Values that a GPU which has fallen ill answers with an error."""
_ERROR = re.compile(r"(?i)\berr!|unknown error|requires reset|is lost|timed? ?out|insufficient")

_THROTTLES = (
    "hw_slowdown",
    "hw_thermal_slowdown",
    "hw_power_brake_slowdown",
    "sw_thermal_slowdown",
    "sw_power_cap",
    "sync_boost",
)


def _nvlinks(text: str) -> dict[str, dict[str, bool]]:
    found: dict[str, dict[str, bool]] = {}
    mine: dict[str, bool] = {}
    for line in text.splitlines()[:100_000]:
        if heading := _HEADING.match(line):
            mine = found.setdefault(heading[1], {})
        elif link := _LINK.match(line):
            mine[link[1]] = link[2].endswith("GB/s") and (_number(link[2]) or 0) > 0
    return found


def _nvlink_errors(text: str) -> dict[str, int]:
    found: dict[str, int] = {}
    uuid = ""
    for line in text.splitlines()[:100_000]:
        if heading := _HEADING.match(line):
            uuid = heading[1]
            found.setdefault(uuid, 0)
        elif (errors := _LINK_ERRORS.match(line)) and uuid:
            found[uuid] += int(errors[3])
    return found


def _xids(log: str, booted: float, uuids: Mapping[str, str]) -> tuple[XidEvent, ...]:
    found: dict[tuple[str, int, str], XidEvent] = {}
    for line in log.splitlines():
        match = _XID.search(line)
        if match is None:
            continue
        address, xid, text = normalize_bus_id(match[1]), int(match[2]), sanitize(match[3] or "", 300)
        key = (address, xid, requested_action(xid, text))
        # Seconds since 1970; dmesg, which tells those since boot, has none of an earlier boot.
        stamp = _MOMENT.match(line)
        before = stamp is not None and float(stamp[1]) < booted
        if key in found:
            now = {"times": found[key].times + 1, "rebooted": found[key].rebooted and before}
            found[key] = found[key].model_copy(update=now)
        elif len(found) < MOST_XIDS:
            found[key] = XidEvent(
                bus_id=address,
                uuid=uuids.get(address, ""),
                xid=xid,
                action=key[2],
                text=text,
                rebooted=before,
            )
    return tuple(found.values())


def _still_open(
    new: tuple[XidEvent, ...], gpus: tuple[GpuSnapshot, ...], boot_id: str, previous: NodeSnapshot | None
) -> list[XidEvent]:
    """Return what last night's XIDs asked for and nobody has done since: said until it is done."""
    # A boot that nobody can tell from the last one has mended nothing.
    if previous is None or (boot_id and previous.boot_id and previous.boot_id != boot_id):
        return []
    again = {(one.bus_id, one.xid) for one in new}
    sound = {one.uuid for one in gpus if one.recovery_action == "None"}
    return [
        one.model_copy(update={"carried": True})
        for one in previous.xids
        if one.action in ("reset", "reboot", "isolate")
        and not resolved_by_boot(one)
        and (one.bus_id, one.xid) not in again
        # A reset leaves no trace but this.
        and not (one.action == "reset" and one.uuid in sound)
    ]


def resolved_by_boot(one: XidEvent) -> bool:
    """Return whether what an XID asked for was done before anybody read it."""
    return one.rebooted and one.action in ("reset", "reboot")


def _reboots(boot_id: str, new: tuple[XidEvent, ...], previous: NodeSnapshot | None) -> dict[str, int]:
    if previous is None:
        return {}
    counts = dict(previous.reboots)
    acted = [one for one in new if resolved_by_boot(one)]
    if boot_id and previous.boot_id and boot_id != previous.boot_id:
        acted += [one for one in previous.xids if not resolved_by_boot(one)]
    for key in {reboot_counter_key(one) for one in acted if one.action == "reboot"}:
        counts[key] = counts.get(key, 0) + 1
    return counts


def reboot_counter_key(one: XidEvent) -> str:
    """Return how reboots for an XID are counted: the GPU, wherever it sits, and the XID."""
    return f"{one.uuid or one.bus_id}/{one.xid}"


def _versions(
    known: Mapping[str, str], gpus: tuple[GpuSnapshot, ...], modules: Mapping[str, Any]
) -> dict[str, str]:
    versions = {name: known[name] for name in _VERSIONS if known.get(name)}
    versions |= {name: value for name, value in known.items() if name.startswith(("bios", "infiniband."))}
    for name, values in (("vbios", {one.vbios for one in gpus}), ("gsp", {one.gsp for one in gpus})):
        if any(values):
            versions[name] = " ".join(sorted(filter(None, values)))
    for module in ("nvidia_peermem", "nvidia"):
        if module in modules:
            versions[f"module.{module}"] = sanitize(modules[module] or "", 60)
    return versions


def _ports(devices: Mapping[str, Any]) -> tuple[PortSnapshot, ...]:
    ports = []
    for device in sorted(devices)[:64]:
        for port, about in sorted(_map(devices, device).items()):
            if isinstance(about, Mapping):
                counters = _map(about, "counters")
                ports.append(
                    PortSnapshot(
                        device=sanitize(device, 60),
                        port=sanitize(port, 10),
                        # "4: ACTIVE" and "5: LinkUp" in /sys.
                        state=sanitize(str(about.get("state") or "").rpartition(":")[2], 40).lower(),
                        physical=sanitize(str(about.get("phys_state") or "").rpartition(":")[2], 40).lower(),
                        rate_gbps=_number(str(about.get("rate") or "")),
                        layer=sanitize(about.get("link_layer") or "", 40),
                        counters={
                            sanitize(name, 60): value
                            for name, value in list(counters.items())[:200]
                            if isinstance(value, int) and value >= 0
                        },
                    )
                )
    return tuple(ports)


def _of_facts(facts: Mapping[str, Any]) -> dict[str, Any]:
    devices = _map(facts, "infiniband")
    return {name: _map(_map(devices, name), "ports") for name in devices}


def _disk(paths: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    found = {}
    for path in sorted(paths)[:100]:
        about = _map(paths, path)
        total, free = _float(about.get("total_bytes")), _float(about.get("free_bytes"))
        if total and free is not None:
            found[sanitize(path, 300)] = {
                "total_bytes": total,
                "free_bytes": free,
                "read_only": float(about.get("read_only") is True),
            }
    return found


def _since(log: str, health: Mapping[str, Any], uptime: str) -> str:
    """Return the lines since the last look, of a log that tells seconds since boot (``dmesg``)."""
    since, epoch, running = _float(health.get("since")), _float(health.get("epoch")), _number(uptime)
    if not since or epoch is None or running is None:
        return log
    begin = since - (epoch - running)
    stamps = ((_DMESG.match(line), line) for line in log.splitlines())
    return "\n".join(line for stamp, line in stamps if stamp is None or float(stamp[1]) >= begin)


def _disciplined(clock: str, node: Mapping[str, Any]) -> bool | None:
    said = re.search(r"^NTPSynchronized=(yes|no)$", clock, re.MULTILINE)
    # A container's clock is its host's.
    return None if said is None or node.get("container") else said[1] == "yes"


def _mounts(node: Mapping[str, Any], mountinfo: str) -> tuple[str, ...] | None:
    if "mounts" in node:
        return tuple(sorted(sanitize(one, 300) for one in _map(node, "mounts")))
    found = {fields[4] for line in mountinfo.splitlines() if len(fields := line.split()) > 5}
    # The kernel writes a blank as \040.
    plain = (re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), one) for one in found)
    return tuple(sorted(sanitize(one, 300) for one in plain)) if found else None


def _failed_units(tools: Mapping[str, Any], services: object) -> tuple[str, ...] | None:
    if isinstance(services, Mapping):
        return tuple(sorted(sanitize(unit, 100) for unit, state in services.items() if _failed(state)))
    if _map(tools, "failed_units").get("status") != "ok":
        return None
    lines = _stdout(tools, "failed_units").replace("\u25cf", " ").splitlines()
    return tuple(sorted(sanitize(line.split()[0], 100) for line in lines if line.strip()))


def _units(shown: str) -> tuple[str, ...]:
    """Return the units that are enabled and do not run, of ``systemctl show``."""
    idle = []
    for block in re.split(r"\n\s*\n", shown):
        about = dict(line.partition("=")[::2] for line in block.splitlines())
        enabled = about.get("UnitFileState", "").startswith("enabled") and about.get("LoadState") == "loaded"
        if enabled and about.get("ActiveState") not in ("active", "activating", "reloading", None):
            idle.append(sanitize(about.get("Id", ""), 100))
    return tuple(sorted(filter(None, idle)))


def _failed(state: object) -> bool:
    return isinstance(state, Mapping) and state.get("failed") is True


def _stdout(tools: Mapping[str, Any], name: str) -> str:
    answer = _map(tools, name)
    text = answer.get("stdout")
    return text if answer.get("status") == "ok" and isinstance(text, str) else ""


def _text(value: Mapping[str, Any], key: str) -> str:
    found = value.get(key)
    return found if isinstance(found, str) else ""


def _map(value: object, key: str) -> Mapping[str, Any]:
    found = value.get(key) if isinstance(value, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def _float(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _number(text: str) -> float | None:
    match = re.match(r"\s*(-?\d{1,15}(?:\.\d{1,9})?)", text)
    return float(match[1]) if match else None


def _whole_text(text: str) -> int | None:
    number = _number(text)
    return None if number is None else int(number)
