"""From a look at a node to findings: which part, what is wrong, what to do, and how sure that is. Pure.

What the tools did not answer is unproven, never healthy. A finding stays until the next look lacks it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from rackproof.core.records import Record, Text, Verdict
from rackproof.core.text import number, percent, sanitize, size
from rackproof.logs.xid import verdict_of
from rackproof.nodes.snapshot import (
    GpuSnapshot,
    NodeSnapshot,
    XidEvent,
    normalize_bus_id,
    reboot_counter_key,
    resolved_by_boot,
)

GIB = 1 << 30
Action = Literal["none", "watch", "configure", "reset", "reboot", "isolate", "inspect", "rma"]
Confidence = Literal["certain", "likely", "hint"]
REBOOTS_UNTIL_INSPECTION = 2
"""After so many reboots for one XID of one GPU somebody has to look at the hardware."""

_COUNTERS_FAIL: Mapping[str, int] = {
    "symbol_error": 0,
    "SymbolErrorCounter": 0,
    "link_error_recovery": 0,
    "LinkErrorRecoveryCounter": 0,
    "link_downed": 0,
    "LinkDownedCounter": 0,
    "port_rcv_errors": 100,
    "PortRcvErrors": 100,
    "port_xmit_discards": 1000,
    "PortXmitDiscards": 1000,
}
"""More than so many since the last look (a day) fail; names of /sys and of perfquery."""


class HealthFinding(Record):
    """Something wrong with a part of a node.

    No :class:`rackproof.core.records.Finding`: that one is about a place in a log, and may be a mere remark.
    This one always names a part and an action, and is stored in ``night.json`` with these keys.

    ``part`` is node, gpu, port or link; ``name`` a GPU's UUID, ``DEVICE/PORT`` of a network card, a PCIe
    address, and empty for the node itself; ``place`` where the part sits. ``confidence`` says how surely
    this part is at fault.
    """

    node: str
    code: str
    part: Literal["node", "gpu", "port", "link"] = "node"
    name: str = ""
    place: str = ""
    verdict: Verdict
    action: Action
    confidence: Confidence = "certain"
    evidence: Text
    fleetwide: bool = False


@dataclass(frozen=True)
class Expectation:
    """What a SKU's node has to have; 0, None and empty are not checked.

    ``versions`` names versions as :attr:`NodeSnapshot.versions` does; ``port_gbps`` is a port's rate.
    """

    gpus: int = 0
    ports: int = 0
    port_gbps: float = 0
    nvlinks: int = 0
    power_limit_w: float = 0
    memory_bytes: int = 0
    versions: Mapping[str, str] = field(default_factory=dict)
    mounts: tuple[str, ...] = ()


@dataclass(frozen=True)
class Limits:
    """Bounds that hold on any node, as public health checks of fleets have them."""

    tool_seconds: float = 5
    memlock_bytes: int = 32 * GIB
    shm_bytes: int = 8 * GIB
    foreign_memory_bytes: int = 2 * GIB
    disk_free: float = 0.05
    clock_s: float = 2
    margin_c: float = 5
    memory_share: float = 0.95
    loaded_percent: float = 10
    sram_correctable: int = 10_000
    dram_correctable: int = 20_000_000
    pcie_replays: int = 100


def check_node(
    look: NodeSnapshot,
    *,
    previous: NodeSnapshot | None = None,
    expected: Expectation | None = None,
    majority: Mapping[str, str] | None = None,
    limits: Limits | None = None,
    idle: bool = False,
) -> tuple[HealthFinding, ...]:
    """Return what is wrong with a node, the worst first.

    Args:
        look: Tonight's.
        previous: Last night's: what has changed, and how fast counters grow.
        expected: What the SKU has to have.
        majority: Versions that most nodes of the SKU have (:func:`majority_versions`).
        limits: Bounds for any node.
        idle: Whether no job runs, so that used GPU memory is somebody's leftover.
    """
    expected, limits = expected or Expectation(), limits or Limits()
    found = [
        *_tools(look, expected, limits),
        *_presence(look, previous, expected),
        *(one for gpu in look.gpus for one in _gpu(look, gpu, previous, expected, limits, idle)),
        *_xids(look),
        *_ports(look, previous, expected),
        *_links(look),
        *_versions(look, expected, majority or {}),
        *_system(look, expected, limits),
    ]
    order = (Verdict.FAIL, Verdict.UNPROVEN, Verdict.DEGRADED, Verdict.PASS)
    return tuple(sorted(found, key=lambda one: order.index(one.verdict)))


def majority_versions(looks: Iterable[NodeSnapshot], least: int = 3) -> dict[str, dict[str, str]]:
    """Return by SKU the version of each thing that more than half of its nodes have; three nodes at least."""
    counts: dict[str, dict[str, Counter[str]]] = {}
    for one in looks:
        for name, version in one.versions.items():
            counts.setdefault(one.sku, {}).setdefault(name, Counter())[version] += 1
    return {
        sku: {
            name: most[0]
            for name, versions in names.items()
            for most in versions.most_common(1)
            if versions.total() >= least and 2 * most[1] > versions.total()
        }
        for sku, names in counts.items()
    }


def mark_fleetwide(
    findings: Sequence[HealthFinding], nodes: int, *, share: float = 0.15, least: int = 3
) -> tuple[tuple[HealthFinding, ...], tuple[str, ...]]:
    """Return a fleet's findings, those on too many nodes marked, and what to say about them.

    What more than ``share`` of ``nodes`` show (and at least ``least``) is a fault of the tool or the fabric
    until proven otherwise: it is unproven, and nothing is done to the nodes.
    """
    seen: dict[str, set[str]] = {}
    for one in findings:
        seen.setdefault(one.code, set()).add(one.node)
    wide = {code for code, some in seen.items() if len(some) >= least and len(some) > share * nodes}
    settled = tuple(
        one.model_copy(
            update={
                "verdict": Verdict.UNPROVEN if one.verdict is Verdict.FAIL else one.verdict,
                "action": "watch",
                "confidence": "hint",
                "fleetwide": True,
            }
        )
        if one.code in wide
        else one
        for one in findings
    )
    return settled, tuple(
        f"{code} on {len(seen[code])} of {nodes} nodes: a fault of the tool or the fabric until proven "
        "otherwise"
        for code in sorted(wide)
    )


def _tools(look: NodeSnapshot, expected: Expectation, limits: Limits) -> Iterator[HealthFinding]:
    asks_driver = ("nvidia_smi_xml", "nvlink_status", "nvlink_errors", "nvidia_smi_list", "nvidia_smi_query")
    for tool, status in look.tools.items():
        if status == "hung":
            driver = tool in asks_driver
            yield _of_node(
                look,
                "tool_hung",
                Verdict.FAIL if driver else Verdict.DEGRADED,
                "reboot" if driver else "watch",
                f"{tool} gave no answer in time",
                "likely" if driver else "hint",
            )
    state = look.tools.get("nvidia_smi_xml", "")
    wants_gpus = bool(expected.gpus) or bool(look.gpus) or state not in ("", "absent")
    if wants_gpus and state == "no_driver":
        yield _of_node(
            look,
            "no_driver",
            Verdict.FAIL,
            "configure",
            "nvidia-smi does not reach the driver: not loaded, or of another version",
            "likely",
        )
    elif wants_gpus and state != "hung" and not look.gpus:
        yield _of_node(
            look,
            "gpus_unknown",
            Verdict.UNPROVEN,
            "watch",
            f"nvidia-smi: {state or 'not asked'}, no GPU can be read",
            "hint",
        )
    if look.seconds.get("nvidia_smi_xml", 0) > limits.tool_seconds and state == "ok":
        taken = look.seconds["nvidia_smi_xml"]
        yield _of_node(
            look,
            "tool_slow",
            Verdict.FAIL,
            "reboot",
            f"nvidia-smi took {taken:.1f} s; more than {limits.tool_seconds:g} s",
            "likely",
        )
    needed = ["kernel_log"] if wants_gpus else []
    needed += ["nvlink_status"] if expected.nvlinks else []
    for tool in needed:
        answer = look.tools.get(tool, "not asked")
        if answer not in ("ok", "hung"):
            yield _of_node(look, f"{tool}_unknown", Verdict.UNPROVEN, "watch", f"{tool}: {answer}", "hint")
    for tool, answer in look.tools.items():
        if tool.startswith("statfs ") and answer not in ("ok", "hung"):
            yield _of_node(
                look,
                "disk_unknown",
                Verdict.UNPROVEN,
                "configure",
                f"{tool}: no file system can be seen",
                "hint",
            )
    for tool in look.truncated:
        yield _of_node(
            look, "answer_cut", Verdict.UNPROVEN, "watch", f"the answer of {tool} is cut off", "hint"
        )


def _presence(
    look: NodeSnapshot, previous: NodeSnapshot | None, expected: Expectation
) -> Iterator[HealthFinding]:
    if not look.gpus:
        return  # Said already: whether they are there is not known.
    there = {one.uuid: one for one in look.gpus}
    last = {one.uuid for one in previous.gpus} if previous else set()
    before = {one.uuid: one for one in (*previous.gone_gpus, *previous.gpus)} if previous else {}
    gone = [one for uuid, one in before.items() if uuid not in there]
    if expected.gpus and len(there) >= expected.gpus:
        # As many as there have to be: what was missing for longer than a night was taken out.
        gone = [one for one in gone if one.uuid in last]
    new = [one for uuid, one in there.items() if before and uuid not in before]
    taken = {normalize_bus_id(one.bus_id): one for one in new}
    for gpu in gone:
        other = taken.get(normalize_bus_id(gpu.bus_id))
        if other is not None:
            yield _of_gpu(
                look,
                other,
                "gpu_replaced",
                Verdict.DEGRADED,
                "watch",
                f"{gpu.uuid} (serial {gpu.serial or 'unknown'}) sat here last night",
            )
        else:
            yield _of_gpu(
                look,
                gpu,
                "gpu_missing",
                Verdict.FAIL,
                "reboot",
                f"was there {'last night' if gpu.uuid in last else 'in an earlier night'}; "
                "after a reboot it is back, or is to be replaced",
            )
    for gpu in new:
        if gpu.uuid not in {one.uuid for one in taken.values()} or not any(
            normalize_bus_id(one.bus_id) == normalize_bus_id(gpu.bus_id) for one in gone
        ):
            yield _of_gpu(look, gpu, "gpu_new", Verdict.DEGRADED, "watch", "was not there last night")
    for uuid, gpu in there.items():
        was = before.get(uuid)
        if was and was.serial and gpu.serial and was.serial != gpu.serial:
            yield _of_gpu(
                look,
                gpu,
                "gpu_serial_changed",
                Verdict.FAIL,
                "inspect",
                f"serial {gpu.serial}, last night {was.serial}",
            )
    if expected.gpus and len(there) < expected.gpus and len(gone) < expected.gpus - len(there):
        yield _of_node(look, "gpus_missing", Verdict.FAIL, "reboot", f"{len(there)} of {expected.gpus} GPUs")


def _gpu(
    look: NodeSnapshot,
    gpu: GpuSnapshot,
    previous: NodeSnapshot | None,
    expected: Expectation,
    limits: Limits,
    idle: bool,
) -> Iterator[HealthFinding]:
    def found(
        code: str, verdict: Verdict, action: Action, evidence: str, confidence: Confidence = "certain"
    ) -> HealthFinding:
        return _of_gpu(look, gpu, code, verdict, action, evidence, confidence)

    before = next((one for one in previous.gpus if one.uuid == gpu.uuid), None) if previous else None
    if gpu.errors:
        reset = any("reset" in one.lower() or "lost" in one.lower() for one in gpu.errors)
        yield found(
            "gpu_unreadable",
            Verdict.FAIL if reset else Verdict.UNPROVEN,
            "reset" if reset else "watch",
            f"the driver says in place of values: {', '.join(gpu.errors)}",
            "likely" if reset else "hint",
        )
    if gpu.sram_uncorrectable or gpu.sram_threshold:
        count = gpu.sram_uncorrectable or 0
        over = "; the threshold of the aggregate is exceeded" if gpu.sram_threshold else ""
        yield found(
            "ecc_sram_uncorrectable",
            Verdict.FAIL,
            "rma" if gpu.sram_threshold else "reset",
            f"{count} uncorrectable errors in SRAM{over}",
        )
    if gpu.remap_failure:
        yield found("remap_failure", Verdict.FAIL, "rma", "a row of its memory could not be remapped")
    if gpu.remap_pending:
        yield found(
            "remap_pending", Verdict.FAIL, "reset", "a row of its memory waits for a reset to be remapped"
        )
    elif gpu.dram_uncorrectable:
        yield found(
            "ecc_dram_uncorrectable",
            Verdict.DEGRADED,
            "watch",
            f"{gpu.dram_uncorrectable} uncorrectable errors in DRAM",
        )
    for errors, bound, name in (
        (gpu.sram_correctable, limits.sram_correctable, "SRAM"),
        (gpu.dram_correctable, limits.dram_correctable, "DRAM"),
    ):
        if (errors or 0) > bound:
            yield found(
                f"ecc_{name.lower()}_correctable",
                Verdict.DEGRADED,
                "watch",
                f"{number(errors)} correctable errors in {name}, more than {number(bound)}",
            )
    if gpu.ecc_enabled is False:
        yield found("ecc_off", Verdict.FAIL, "configure", "ECC is off")
    asked = gpu.recovery_action.lower()
    if asked not in ("", "none"):
        action: Action = "reboot" if "reboot" in asked else "reset"
        yield found(
            "recovery_needed",
            Verdict.FAIL,
            action,
            f"the driver asks for: {sanitize(gpu.recovery_action, 60)}",
        )
    yield from _pcie(found, look, gpu, before, limits)
    if gpu.throttled:
        bad = [one for one in gpu.throttled if one not in ("sw_power_cap", "sync_boost")]
        if bad:
            verdict = Verdict.FAIL if any(one.startswith("hw_") for one in bad) else Verdict.DEGRADED
            thermal = any("thermal" in one for one in bad)
            yield found(
                "throttled",
                verdict,
                "inspect",
                f"slowed down: {', '.join(bad)}; {_degrees(gpu.temperature_c)}",
                "certain" if thermal else "likely",
            )
    if gpu.margin_c is not None and gpu.margin_c <= limits.margin_c:
        verdict = Verdict.FAIL if gpu.margin_c <= 0 else Verdict.DEGRADED
        yield found(
            "temperature",
            verdict,
            "inspect",
            f"{number(gpu.margin_c)} °C left until it slows down, at {_degrees(gpu.temperature_c)}",
        )
    wanted = expected.power_limit_w or gpu.power_default_w or 0
    if gpu.power_limit_w is not None and wanted and gpu.power_limit_w < 0.99 * wanted:
        yield found(
            "power_limit",
            Verdict.FAIL,
            "configure",
            f"limited to {number(gpu.power_limit_w)} W of {number(wanted)} W",
        )
    down = sorted((link for link, up in gpu.links.items() if not up), key=int)
    if down:
        yield found(
            "nvlink_down",
            Verdict.FAIL,
            "reset",
            f"NVLink {', '.join(down)} down of {len(gpu.links)}",
            "likely",
        )
    elif expected.nvlinks and look.tools.get("nvlink_status") == "ok" and len(gpu.links) < expected.nvlinks:
        yield found(
            "nvlink_missing", Verdict.FAIL, "reset", f"{len(gpu.links)} of {expected.nvlinks} NVLinks"
        )
    if before and gpu.link_errors is not None and before.link_errors is not None:
        more = gpu.link_errors - before.link_errors
        if more > 0:
            yield found(
                "nvlink_errors", Verdict.DEGRADED, "watch", f"{more} NVLink errors since the last look"
            )
    if gpu.fabric_state not in ("", "Completed", "Not Supported"):
        yield found(
            "fabric_incomplete",
            Verdict.FAIL,
            "configure",
            f"fabric is {sanitize(gpu.fabric_state, 40)}: does the fabric manager run?",
            "likely",
        )
    if gpu.fabric_health not in ("", "Healthy", "Not Supported") and not down:
        yield found(
            "fabric_unhealthy",
            Verdict.FAIL,
            "reset",
            f"fabric health is {sanitize(gpu.fabric_health, 40)}",
            "likely",
        )
    if idle and (gpu.memory_used_bytes or 0) >= limits.foreign_memory_bytes:
        yield found(
            "memory_in_use",
            Verdict.FAIL,
            "reset",
            f"{size(gpu.memory_used_bytes or 0)} are in use while no job runs",
            "likely",
        )


def _pcie(
    found: Callable[..., HealthFinding],
    look: NodeSnapshot,
    gpu: GpuSnapshot,
    before: GpuSnapshot | None,
    limits: Limits,
) -> Iterator[HealthFinding]:
    if gpu.pcie_width is not None and gpu.pcie_width_max and gpu.pcie_width < gpu.pcie_width_max:
        yield found(
            "pcie_width",
            Verdict.FAIL,
            "inspect",
            f"PCIe x{gpu.pcie_width} of x{gpu.pcie_width_max}, generation {gpu.pcie_generation}",
        )
    elif (
        gpu.pcie_generation is not None
        and gpu.pcie_generation_max
        and gpu.pcie_generation < gpu.pcie_generation_max
        # A resting link is slow on purpose, on some models.
        and (look.loaded or (gpu.utilisation or 0) >= limits.loaded_percent)
    ):
        yield found(
            "pcie_generation",
            Verdict.FAIL,
            "inspect",
            f"PCIe generation {gpu.pcie_generation} of {gpu.pcie_generation_max} under load",
        )
    if before and None not in (gpu.pcie_replays, before.pcie_replays):
        more = (gpu.pcie_replays or 0) - (before.pcie_replays or 0)
        if more > limits.pcie_replays:
            yield found("pcie_replays", Verdict.DEGRADED, "watch", f"{more} PCIe replays since the last look")


def _xids(look: NodeSnapshot) -> Iterator[HealthFinding]:
    for one in look.xids:
        action, confidence = _xid_action(one, look.reboots)
        verdict = verdict_of(one.xid, one.text)
        if action in ("reset", "reboot", "isolate", "inspect"):
            verdict = Verdict.FAIL
        times = f", {one.times} times" if one.times > 1 else ""
        if resolved_by_boot(one) and action != "inspect":
            verdict, action = Verdict.DEGRADED, "watch"
        since = "; reported before and not acted upon" if one.carried else ""
        since += "; the node was booted since" if one.rebooted else ""
        again = ""
        if action == "inspect":
            again = f"; {look.reboots[reboot_counter_key(one)]} reboots for it have not helped"
        yield HealthFinding(
            node=look.node,
            code=f"xid_{one.xid}",
            part="gpu",
            name=one.uuid or f"PCI {one.bus_id}",
            place=next(
                (gpu.place for gpu in (*look.gpus, *look.gone_gpus) if gpu.uuid == one.uuid), one.bus_id
            ),
            verdict=verdict,
            action=action,
            confidence=confidence,
            evidence=f"XID {one.xid}{times}: {one.text}{since}{again}",
        )


def _xid_action(one: XidEvent, reboots: Mapping[str, int]) -> tuple[Action, Confidence]:
    if one.action == "reboot" and reboots.get(reboot_counter_key(one), 0) >= REBOOTS_UNTIL_INSPECTION:
        return "inspect", "certain"
    known: dict[str, Action] = {"watch": "watch", "reset": "reset", "reboot": "reboot", "isolate": "isolate"}
    if one.action not in known:
        return "watch", "hint"
    # A program can cause what only asks to be watched.
    return known[one.action], "hint" if one.action == "watch" else "likely"


def _ports(
    look: NodeSnapshot, previous: NodeSnapshot | None, expected: Expectation
) -> Iterator[HealthFinding]:
    last = {(one.device, one.port) for one in previous.ports} if previous else set()
    before = (
        {(one.device, one.port): one for one in (*previous.gone_ports, *previous.ports)} if previous else {}
    )
    there = {(one.device, one.port) for one in look.ports}
    enough = bool(expected.ports) and len(there) >= expected.ports
    for device, port in sorted(before.keys() - there):
        if (device, port) not in last and (enough or len(there) >= len(before)):
            continue  # It was taken out, or has another name now.
        yield HealthFinding(
            node=look.node,
            code="port_missing",
            part="port",
            name=f"{device}/{port}",
            verdict=Verdict.FAIL,
            action="reboot",
            evidence=f"was there {'last night' if (device, port) in last else 'in an earlier night'}",
        )
    if (
        expected.ports
        and len(there) < expected.ports
        and len(before.keys() - there) < expected.ports - len(there)
    ):
        yield _of_node(
            look, "ports_missing", Verdict.FAIL, "inspect", f"{len(there)} of {expected.ports} HCA ports"
        )
    for one in look.ports:

        def found(
            code: str, verdict: Verdict, evidence: str, name: str = f"{one.device}/{one.port}"
        ) -> HealthFinding:
            return HealthFinding(
                node=look.node,
                code=code,
                part="port",
                name=name,
                verdict=verdict,
                action="inspect",
                confidence="likely",
                evidence=evidence,
            )

        was = before.get((one.device, one.port))
        if not one.state:
            yield found("port_unknown", Verdict.UNPROVEN, "no state can be read")
        elif one.state != "active":
            physical = f", physically {one.physical}" if one.physical else ""
            yield found("port_down", Verdict.FAIL, f"{one.state}{physical}")
        elif expected.port_gbps and (one.rate_gbps or 0) < expected.port_gbps:
            yield found(
                "port_slow", Verdict.FAIL, f"{number(one.rate_gbps)} of {number(expected.port_gbps)} Gb/s"
            )
        elif was and one.rate_gbps and one.rate_gbps < (usual := was.usual_gbps or was.rate_gbps or 0.0):
            yield found("port_slow", Verdict.FAIL, f"{number(one.rate_gbps)} Gb/s, before {number(usual)}")
        if was is None:
            continue
        days = 1.0
        if look.epoch and previous and previous.epoch and look.epoch > previous.epoch:
            days = max((look.epoch - previous.epoch) / 86_400, 1 / 24)
        for name, bound in _COUNTERS_FAIL.items():
            now, then = one.counters.get(name), was.counters.get(name)
            # A counter that went back was cleared or began anew with a boot: what it shows is all since.
            more = None if now is None or then is None else now - then if now >= then else now
            if more is not None and more > bound * days:
                yield found(f"port_{_snake(name)}", Verdict.FAIL, f"{name}: {more} more in {days * 24:.1f} h")


def _links(look: NodeSnapshot) -> Iterator[HealthFinding]:
    for address, link in look.links.items():
        for what, short in (("width", "x"), ("speed", "")):
            now, most = link.get(f"current_link_{what}", ""), link.get(f"max_link_{what}", "")
            if now and most and _leading(now) < _leading(most):
                yield HealthFinding(
                    node=look.node,
                    code=f"link_{what}",
                    part="link",
                    name=address,
                    verdict=Verdict.FAIL,
                    action="inspect",
                    confidence="likely",
                    evidence=f"PCIe {short}{now} of {short}{most}",
                )


def _versions(
    look: NodeSnapshot, expected: Expectation, majority: Mapping[str, str]
) -> Iterator[HealthFinding]:
    have = look.versions
    for name, version in sorted(expected.versions.items()):
        if not have.get(name):
            yield _of_node(
                look,
                f"version_{_snake(name)}",
                Verdict.UNPROVEN,
                "configure",
                f"{name} is unknown, not {version}",
            )
        elif have[name] != version:
            yield _of_node(
                look,
                f"version_{_snake(name)}",
                Verdict.FAIL,
                "configure",
                f"{name} is {have[name]}, not {version}",
            )
    for name, version in sorted(majority.items()):
        if name not in expected.versions and have.get(name) and have[name] != version:
            yield _of_node(
                look,
                f"version_{_snake(name)}",
                Verdict.DEGRADED,
                "configure",
                f"{name} is {have[name]}; most nodes of its model have {version}",
                "likely",
            )
    driver = have.get("driver")
    # These are built for one driver and refuse, or misbehave with, any other.
    for name in ("fabricmanager", "gsp", "module.nvidia", "module.nvidia_peermem"):
        if driver and have.get(name) and have[name] != driver:
            yield _of_node(
                look,
                f"mismatch_{_snake(name)}",
                Verdict.FAIL,
                "configure",
                f"{name} is {have[name]}, the driver {driver}",
            )


def _system(look: NodeSnapshot, expected: Expectation, limits: Limits) -> Iterator[HealthFinding]:
    if look.memlock_bytes is not None and 0 <= look.memlock_bytes < limits.memlock_bytes:
        yield _of_node(
            look,
            "memlock",
            Verdict.FAIL,
            "configure",
            f"{size(look.memlock_bytes)} may be locked, {size(limits.memlock_bytes)} are needed",
        )
    if look.shm_bytes is not None and look.shm_bytes < limits.shm_bytes:
        yield _of_node(
            look,
            "shm",
            Verdict.FAIL,
            "configure",
            f"shared memory is {size(look.shm_bytes)}, {size(limits.shm_bytes)} are needed",
        )
    unknown = [
        name
        for name, value, asked in (
            ("memlock", look.memlock_bytes, limits.memlock_bytes),
            ("shared memory", look.shm_bytes, limits.shm_bytes),
            ("memory", look.memory_bytes or None, expected.memory_bytes),
            ("clock", look.clock_offset_s, True),
            ("disk", look.disk or None, limits.disk_free),
        )
        if asked and value is None
    ]
    if unknown:
        text = f"not gathered: {', '.join(unknown)}"
        yield _of_node(look, "system_unknown", Verdict.UNPROVEN, "watch", text, "hint")
    if expected.memory_bytes and 0 < look.memory_bytes < limits.memory_share * expected.memory_bytes:
        yield _of_node(
            look,
            "memory",
            Verdict.FAIL,
            "inspect",
            f"{size(look.memory_bytes)} of {size(expected.memory_bytes)}: a module is missing?",
            "likely",
        )
    if look.mounts is None and expected.mounts:
        yield _of_node(look, "mounts_unknown", Verdict.UNPROVEN, "watch", "mounts were not gathered", "hint")
    for path in expected.mounts if look.mounts is not None else ():
        if path not in (look.mounts or ()):
            yield _of_node(look, "mount_missing", Verdict.FAIL, "configure", f"{path} is not mounted")
    for path, about in look.disk.items():
        free = about["free_bytes"] / about["total_bytes"]
        if about.get("read_only"):
            yield _of_node(look, "disk_read_only", Verdict.FAIL, "inspect", f"{path} can only be read")
        if free < limits.disk_free:
            yield _of_node(
                look,
                "disk_full",
                Verdict.FAIL,
                "configure",
                f"{path} has {size(about['free_bytes'])} left ({percent(free, sign=False)})",
            )
    if look.clock_offset_s is not None and abs(look.clock_offset_s) > limits.clock_s:
        yield _of_node(
            look,
            "clock",
            Verdict.FAIL,
            "configure",
            f"its clock is {number(look.clock_offset_s)} s off the controller's",
        )
    if look.clock_synchronized is False:
        yield _of_node(look, "clock_free", Verdict.DEGRADED, "configure", "nothing disciplines its clock")
    for unit in look.failed_units or ():
        yield _of_node(look, "unit_failed", Verdict.DEGRADED, "configure", f"{unit} has failed")
    for unit in look.idle_units:
        yield _of_node(
            look, "unit_idle", Verdict.DEGRADED, "configure", f"{unit} is enabled and does not run"
        )


def _of_node(
    look: NodeSnapshot,
    code: str,
    verdict: Verdict,
    action: Action,
    evidence: str,
    confidence: Confidence = "certain",
) -> HealthFinding:
    return HealthFinding(
        node=look.node, code=code, verdict=verdict, action=action, confidence=confidence, evidence=evidence
    )


def _of_gpu(
    look: NodeSnapshot,
    gpu: GpuSnapshot,
    code: str,
    verdict: Verdict,
    action: Action,
    evidence: str,
    confidence: Confidence = "certain",
) -> HealthFinding:
    return HealthFinding(
        node=look.node,
        code=code,
        part="gpu",
        name=gpu.uuid,
        place=gpu.place,
        verdict=verdict,
        action=action,
        confidence=confidence,
        evidence=evidence,
    )


def _degrees(value: float | None) -> str:
    return "temperature unknown" if value is None else f"{number(value)} °C"


def _snake(name: str) -> str:
    return "".join(one if one.isalnum() else "_" for one in name).lower()


def _leading(text: str) -> float:
    try:
        return float(text.split()[0])
    except (ValueError, IndexError):
        return 0.0
