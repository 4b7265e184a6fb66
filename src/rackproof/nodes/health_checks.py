"""Compare a node's snapshot with its expectations, and return the differences as findings.

Job validate calls :func:`check_node` for each node when it judges a night. A finding states the affected
part, the fault, the next action and the confidence. To add a check, write a function that yields
findings on a :class:`NodeSubject`, a :class:`GpuSubject` or a :class:`PortSubject`. Add it to
``NODE_CHECKS``, ``GPU_CHECKS`` or ``PORT_CHECKS`` at the end of this file. ``subject.finding(...)`` creates a
finding on the right part.

If the answer of a needed tool is missing, the node is unproven or fails, and never healthy. A finding remains
until a snapshot no longer shows it. The module does no I/O.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import islice

from rackproof.core.evidence import EvidenceState, LackingEvidence, lacking_evidence
from rackproof.core.gpu_models import (
    MODELS_WITH_SWITCH_BRIDGES,
    SLOW_LINK_SHARE,
    expected_model,
    has_own_links,
    is_one_of,
    least_link_gb_s,
    other_models,
)
from rackproof.core.records import WORST_FIRST, Verdict
from rackproof.core.text import amount, duration, number, percent, sanitize, size
from rackproof.core.untrusted import leading_number
from rackproof.logs._nvidia_smi import (
    INFOROM_REMEDY,
    MOST_REMAPPED_ROWS,
    fabric_fault,
    identifies_gpu,
    inforom_address,
    lost_address,
)
from rackproof.logs.kernel_events import verdict_of
from rackproof.logs.nvidia_smi import is_fabric_unhealthy, recovery_verdict
from rackproof.nodes.health_subjects import (
    Action,
    Confidence,
    Expectation,
    ExpectedMount,
    GpuSubject,
    HealthFinding,
    Limits,
    NodeSubject,
    PortSubject,
    PortUse,
    expected_ports,
    gpus_by_uuid,
    port_use,
    service_units,
)
from rackproof.nodes.kernel_log import (
    HardwareEvent,
    XidEvent,
    is_healed_by_boot,
    normalize_bus_id,
    resolved_by_boot,
)
from rackproof.nodes.night_evidence import (
    DRIVER_TOOLS,
    GPU_EVIDENCE,
    NODE_EVIDENCE,
    PORT_EVIDENCE,
    TOOL_EVIDENCE,
    USE_ROOT,
    WITHOUT_ROOT,
    is_address,
    root_remedy,
)
from rackproof.nodes.snapshot import reboot_counter_key
from rackproof.nodes.snapshot_records import GpuSnapshot, NodeSnapshot
from rackproof.nodes.usual_values import DISK_TYPES, memory_key, with_usual_values

MOST_FINDINGS = 200
"""Largest number of findings in a node's record, which has the worst first."""
REBOOTS_UNTIL_INSPECTION = 2
"""Number of reboots for the same XID of a GPU after which the hardware must be inspected."""

_BOUND_TO_DRIVER = ("fabricmanager", "gsp", "module.nvidia", "module.nvidia_peermem")
"""Components that are built for one driver version, and fail or misbehave with any other."""

_HARMLESS_THROTTLES = ("sw_power_cap", "sync_boost")
"""Reasons for which a healthy GPU under load is throttled, too."""

_COUNTER_LIMITS: Mapping[str, str] = {
    "symbol_error": "symbol_errors",
    "SymbolErrorCounter": "symbol_errors",
    "link_error_recovery": "link_recoveries",
    "LinkErrorRecoveryCounter": "link_recoveries",
    "link_downed": "link_downs",
    "LinkDownedCounter": "link_downs",
    "port_rcv_errors": "receive_errors",
    "PortRcvErrors": "receive_errors",
    "port_xmit_discards": "transmit_discards",
    "PortXmitDiscards": "transmit_discards",
}
"""The limit in :class:`Limits` of a counter, by the counter's name in /sys or perfquery."""
LIMIT_BY_CODE: Mapping[str, str] = {
    "clock": "clock_s",
    "disk_full": "disk_free",
    "ecc_dram_correctable": "dram_correctable",
    "ecc_sram_correctable": "sram_correctable",
    "inodes_full": "inodes_free",
    "memlock": "memlock_bytes",
    "memory": "memory_share",
    "memory_in_use": "foreign_memory_bytes",
    "memory_temperature": "memory_c",
    "pcie_replays": "pcie_replays",
    "shm": "shm_bytes",
    "slowed_down": "slowdown_s",
    "temperature": "margin_c",
    "too_hot": "gpu_c",
    "tool_slow": "tool_seconds",
    # A code has the lower-case name of its counter (:func:`code_name`).
    **{f"port_{name.lower()}": limit for name, limit in _COUNTER_LIMITS.items()},
}
"""The limit in :class:`Limits` with which the finding of a code compares. A finding of the code names it."""
_RARE_ON_PORTS = ("link_recoveries", "link_downs")
"""Limits of events of which a single one degrades a port. Only many of them fail the port, because a
restarted switch causes one."""
_RATES_OF_PACKETS = ("receive_errors", "transmit_discards")
"""Limits that are rates of many packets, so that one hour allows a 24th of the day's number."""


def check_sku(snapshot: NodeSnapshot, expected: Expectation) -> Iterator[HealthFinding]:
    """Find GPUs of another model than the SKU's, more GPUs than the SKU has, and an incomplete SKU.

    A SKU is incomplete if it is a skeleton, or has no number or no model of GPUs. Job validate adds these
    findings to those of :func:`check_node`. A node with more GPUs than its SKU belongs to another SKU, which
    may require more of each GPU. A slice with one GPU needs no NVLink, for example, but the whole machine
    needs all of them.
    """
    node = NodeSubject(snapshot, None, expected, {}, Limits(), False)
    if expected.skeleton:
        evidence = (
            f"SKU {snapshot.sku or '(none)'} is a skeleton: complete its group_vars, then take `skeleton` "
            "out of its validate_expect"
        )
        yield node.finding("sku_skeleton", Verdict.UNPROVEN, "configure", evidence, "certain")
    yield from _sku_size(node)
    yield from _sku_model(node)


def _sku_size(node: NodeSubject) -> Iterator[HealthFinding]:
    """Find a SKU without a number of GPUs, and a node with more GPUs than its SKU."""
    sku, size = node.snapshot.sku, node.expected.gpus
    if sku and not size:
        evidence = f"the number of GPUs of SKU {sku} is not known (bench_sku_gpus)"
        yield node.finding("sku_gpus_unknown", Verdict.UNPROVEN, "configure", evidence, "hint")
    elif sku and (count := len({gpu.uuid for gpu in node.snapshot.gpus})) > size:
        evidence = f"{amount(count, 'GPU')}, SKU {sku} has {size}: correct its SKU in the inventory"
        yield node.finding("sku_gpus_exceeded", Verdict.UNPROVEN, "configure", evidence, "likely")


def _sku_model(node: NodeSubject) -> Iterator[HealthFinding]:
    """Find a SKU without a GPU model, and GPUs of another model."""
    sku = node.snapshot.sku
    model = expected_model(sku, node.expected.gpu_name)
    if sku and not model:
        evidence = f"the GPU model of SKU {sku} is not known (bench_sku_gpu_name)"
        yield node.finding("sku_model_unknown", Verdict.UNPROVEN, "configure", evidence, "hint")
    if model and (other_names := other_models((gpu.name for gpu in node.snapshot.gpus), model)):
        names_text = ", ".join(name or "no product name" for name in other_names)
        evidence = f"its GPUs are {names_text}, not {model} as SKU {sku or '(none)'} has"
        yield node.finding("sku_differs", Verdict.UNPROVEN, "configure", evidence, "likely")


def check_node(
    snapshot: NodeSnapshot,
    *,
    previous: NodeSnapshot | None = None,
    expected: Expectation | None = None,
    majority: Mapping[str, str] | None = None,
    limits: Limits | None = None,
    idle: bool = False,
) -> tuple[HealthFinding, ...]:
    """Return the findings of a node, the worst first.

    If there are more than :data:`MOST_FINDINGS`, the worst are returned, then those about answers that are
    cut off, and a remark on the others.

    Args:
        snapshot: The node's snapshot of tonight.
        previous: The snapshot of last night, to find changes and growing counters.
        expected: The requirements of the SKU.
        majority: The versions on most nodes of the SKU (:func:`majority_versions`).
        limits: The limits that apply to every node.
        idle: Whether no job runs. If so, used GPU memory is a leftover.
    """
    node = NodeSubject(
        with_usual_values(snapshot, previous),
        previous,
        expected or Expectation(),
        majority or {},
        limits or Limits(),
        idle,
    )
    findings = [
        *_lacking(node),
        *(_with_limit(finding) for check in NODE_CHECKS for finding in check(node)),
    ]
    findings.sort(key=lambda finding: WORST_FIRST.index(finding.verdict))
    return tuple(_with_count(node, findings) if len(findings) > MOST_FINDINGS else findings)


def _with_limit(finding: HealthFinding) -> HealthFinding:
    """Return a finding whose evidence names the limit of the inventory that it compares with, if any."""
    if finding.code not in LIMIT_BY_CODE:
        return finding
    evidence = f"{finding.evidence} (validate_limits: {LIMIT_BY_CODE[finding.code]})"
    return finding.model_copy(update={"evidence": evidence})


def _with_count(node: NodeSubject, findings: Sequence[HealthFinding]) -> list[HealthFinding]:
    """Return the findings that are listed for a node with too many, and a remark on the others."""
    # A missing reading must remain visible even among findings on a thousand ports.
    cut = [*_truncated_answers(node)]
    listed = [*(finding for finding in findings if finding.code != "answer_cut")][
        : MOST_FINDINGS - 1 - len(cut)
    ] + cut
    more = f"{len(findings) - len(listed)} more findings are not listed: no node has so many faults"
    return [*listed, node.finding("more_findings", Verdict.UNPROVEN, "inspect", more, "hint")]


def majority_versions(snapshots: Iterable[NodeSnapshot], least: int = 3) -> dict[str, dict[str, str]]:
    """Return the majority's version of each component, by SKU and by the component's name.

    A majority is more than half of at least ``least`` nodes that report the component.
    """
    counts: dict[str, dict[str, Counter[str]]] = {}
    for snapshot in snapshots:
        for name, version in snapshot.versions.items():
            counts.setdefault(snapshot.sku, {}).setdefault(name, Counter())[version] += 1
    majorities: dict[str, dict[str, str]] = {}
    for sku, names in counts.items():
        majorities[sku] = {}
        for name, versions in names.items():
            version, count = versions.most_common(1)[0]
            if versions.total() >= least and 2 * count > versions.total():
                majorities[sku][name] = version
    return majorities


def mark_fleetwide(
    findings: Sequence[HealthFinding], nodes: int, *, share: float = 0.15, least: int = 3
) -> tuple[tuple[HealthFinding, ...], tuple[str, ...]]:
    """Mark a fleet's findings that affect too many nodes, and return remarks about them.

    If more than ``share`` of the nodes, and at least ``least``, have findings of one code, a tool or the
    fabric is probably at fault. A failure then becomes unproven, and drains no node. ``nodes`` is the number
    of all nodes.
    """
    nodes_by_code: dict[str, set[str]] = {}
    # The cause of a finding that only needs root is known, and is neither a tool nor the fabric.
    for finding in (finding for finding in findings if not finding.without_root):
        nodes_by_code.setdefault(finding.code, set()).add(finding.node)
    # With only a share, two nodes of a small rack would count as the whole fleet.
    most = max(share * nodes, least - 1)
    fleetwide = {code: len(names) for code, names in nodes_by_code.items() if len(names) > most}
    marked = tuple(
        _as_fleetwide(finding) if finding.code in fleetwide and not finding.without_root else finding
        for finding in findings
    )
    return marked, tuple(
        f"{code} on {fleetwide[code]} of {nodes} nodes: a fault of the tool or the fabric until proven "
        "otherwise"
        for code in sorted(fleetwide)
    )


def _as_fleetwide(finding: HealthFinding) -> HealthFinding:
    """Return a finding that drains no node. A failure becomes unproven."""
    return finding.model_copy(
        update={
            "verdict": Verdict.UNPROVEN if finding.verdict is Verdict.FAIL else finding.verdict,
            "action": "watch",
            "confidence": "hint",
            "fleetwide": True,
        }
    )


# Checks of tools: each must answer completely and in time.


def _lacking(node: NodeSubject) -> Iterator[HealthFinding]:
    """Find missing evidence for the night's verdict, before any other check."""
    of_node = lacking_evidence((*TOOL_EVIDENCE, *NODE_EVIDENCE), node)
    for lacking in _group_by_code(of_node):
        yield _with_root_remedy(node, lacking, node.finding(*_lacking_finding(lacking)))
    for gpu in _gpu_subjects(node):
        for lacking in _group_by_code(lacking_evidence(GPU_EVIDENCE, gpu)):
            yield gpu.finding(*_lacking_finding(lacking))
    for port in _port_subjects(node):
        for lacking in _group_by_code(lacking_evidence(PORT_EVIDENCE, port)):
            code, verdict, _, evidence, _ = _lacking_finding(lacking)
            yield port.finding(code, verdict, evidence)


def _with_root_remedy(
    node: NodeSubject, lacking: Sequence[LackingEvidence], finding: HealthFinding
) -> HealthFinding:
    """Return a finding on missing evidence, with its true remedy if the node may only lack root for it."""
    remedies = [root_remedy(node.snapshot, lack) for lack in lacking]
    if not all(remedies):
        return finding
    evidence = f"{finding.evidence.rpartition('; ')[0]}; {remedies[0]}"
    return finding.model_copy(update={"evidence": evidence, "without_root": True})


def _group_by_code(lacking: Iterable[LackingEvidence]) -> Iterable[Sequence[LackingEvidence]]:
    """Group missing evidence by code and verdict, so that each group becomes one finding."""
    alike: dict[tuple[str, Verdict], list[LackingEvidence]] = {}
    for lack in lacking:
        code = "tool_hung" if lack.state is EvidenceState.HUNG else lack.code
        alike.setdefault((code, lack.verdict), []).append(lack)
    return alike.values()


def _lacking_finding(lacking: Sequence[LackingEvidence]) -> tuple[str, Verdict, Action, str, Confidence]:
    """Return code, verdict, action, evidence and confidence of the finding on a group of missing evidence."""
    first_lacking = lacking[0]
    states = ", ".join(f"{lack.name}: {lack.state.value}" for lack in lacking)
    evidence = (
        first_lacking.message
        if len(lacking) == 1
        else f"{states}; {first_lacking.message.rpartition('; ')[2]}"
    )
    if first_lacking.state is not EvidenceState.HUNG:
        return (
            first_lacking.code,
            first_lacking.verdict,
            "configure" if first_lacking.code == "disk_unknown" else "watch",
            evidence,
            "hint",
        )
    if first_lacking.verdict is Verdict.FAIL:
        return "tool_hung", first_lacking.verdict, "reboot", evidence, "likely"
    return "tool_hung", first_lacking.verdict, "watch", evidence, "hint"


def _other_hung_tools(node: NodeSubject) -> Iterator[HealthFinding]:
    """Find hung tools without a row in TOOL_EVIDENCE. A hung query of the driver needs a reboot."""
    evidence_tools = {row.name for row in TOOL_EVIDENCE}
    for tool, status in node.snapshot.tools.items():
        if status != "hung" or tool in evidence_tools or tool.startswith("statfs "):
            continue
        evidence = f"{tool} gave no answer in time"
        if tool in DRIVER_TOOLS:
            yield node.finding("tool_hung", Verdict.FAIL, "reboot", evidence, "likely")
        else:
            yield node.finding("tool_hung", Verdict.DEGRADED, "watch", evidence, "hint")


def _unreached_driver(node: NodeSubject) -> Iterator[HealthFinding]:
    """Find a node with GPUs whose nvidia-smi does not reach the driver."""
    if node.wants_gpus and node.snapshot.tools.get("nvidia_smi_xml") == "no_driver":
        evidence = "nvidia-smi does not reach the driver: not loaded, or of another version"
        yield node.finding("no_driver", Verdict.FAIL, "configure", evidence, "likely")


def _slow_driver(node: NodeSubject) -> Iterator[HealthFinding]:
    """Find a driver that takes longer to answer than the limit."""
    taken_s = node.snapshot.seconds.get("nvidia_smi_xml", 0)
    limit_s = node.limits.tool_seconds
    if node.snapshot.tools.get("nvidia_smi_xml") == "ok" and taken_s > limit_s:
        evidence = f"nvidia-smi took {taken_s:.1f} s; more than {limit_s:g} s"
        action: Action = "reboot"
        # Without persistence mode, each query starts the driver again, and a reboot does not change that.
        if off := [gpu for gpu in node.snapshot.gpus if gpu.persistence_mode == "Disabled"]:
            evidence += f"; persistence mode is off on {amount(len(off), 'GPU')}: turn it on first"
            action = "configure"
        yield node.finding("tool_slow", Verdict.FAIL, action, evidence, "likely")


def _truncated_answers(node: NodeSubject) -> Iterator[HealthFinding]:
    """Find tools whose answers were cut off, so that a fault may be missing from them."""
    begin = node.snapshot.journal_lost_before
    for tool in node.snapshot.truncated:
        evidence = f"the answer of {tool} is cut off"
        if tool == "kernel_log" and begin:
            moment = f"{datetime.fromtimestamp(begin, UTC):%F %T} UTC"
            evidence = (
                f"the journal lost the kernel's messages before {moment}: "
                "set Storage=persistent and a larger SystemMaxUse in /etc/systemd/journald.conf"
            )
        yield node.finding("answer_cut", Verdict.UNPROVEN, "watch", evidence, "hint")


# Checks of the identity: this must be the node of the inventory and of earlier nights.

_ACCEPT = "-e validate_accept_identity=true accepts it"


def _hostname(node: NodeSubject) -> Iterator[HealthFinding]:
    """Find a node that reports another hostname than the inventory's."""
    expected, present = node.expected.hostname, node.snapshot.hostname
    if expected and present and not is_address(expected) and _short_name(present) != _short_name(expected):
        evidence = (
            f"it calls itself {present}, not {expected}: the wrong machine, or swapped names; if names "
            "differ by design, set validate_hostname"
        )
        yield node.finding("hostname_differs", Verdict.UNPROVEN, "configure", evidence, "likely")


def _short_name(name: str) -> str:
    """Return a hostname without its domain, in lower case."""
    return name.partition(".")[0].lower()


def _serial_number(node: NodeSubject) -> Iterator[HealthFinding]:
    """Find a serial number that differs from the node's accepted one."""
    earlier, present = node.snapshot.identity_serial, node.snapshot.serial
    if present and earlier != present:
        evidence = (
            f"its serial number is {present}, and was {earlier}: another machine, or a new board; {_ACCEPT}"
        )
        yield node.finding("machine_changed", Verdict.UNPROVEN, "configure", evidence, "likely")


def _lost_value(
    subject: GpuSubject | NodeSubject,
    code: str,
    evidence: str,
    action: Action = "inspect",
    confidence: Confidence = "certain",
) -> HealthFinding:
    """Return the finding on a value that was better in an earlier night.

    It fails until the value is back. In the night in which an operator accepts tonight's values, it is only
    degraded.
    """
    verdict, action, evidence = _unless_accepted(subject.where()[0], evidence, action)
    return subject.finding(code, verdict, action, evidence, confidence)


def _unless_accepted(snapshot: NodeSnapshot, evidence: str, action: Action) -> tuple[Verdict, Action, str]:
    """Return verdict, action and evidence of a value that was better in an earlier night."""
    if snapshot.identity_accepted:
        return Verdict.DEGRADED, "watch", f"{evidence}; accepted"
    return Verdict.FAIL, action, f"{evidence}; if it is to stay so, {_ACCEPT}"


def _changed_gpu(node: NodeSubject, gpu: GpuSnapshot, code: str, evidence: str) -> HealthFinding:
    """Return the finding on a new GPU, which is unproven until an operator accepts the GPU.

    A GPU of the node's identity is only degraded. Such a GPU was accepted, or fills an empty slot.
    """
    subject = GpuSubject(node, gpu)
    if gpu.uuid in node.snapshot.identity_gpus:
        return subject.finding(code, Verdict.DEGRADED, "watch", evidence)
    return subject.finding(code, Verdict.UNPROVEN, "configure", f"{evidence}; {_ACCEPT}", "likely")


# Checks of the presence of GPUs. If no GPU can be read, a single finding reports this, and no GPU counts as
# missing.


def _gone_gpus(node: NodeSubject) -> Iterator[HealthFinding]:
    """Find GPUs that the node had in an earlier night, and that are missing or replaced."""
    if not node.snapshot.gpus:
        return
    changes = node.gpu_changes
    for gpu in changes.gone:
        if successor := changes.replaced.get(gpu.uuid):
            when = _time_text(gpu.uuid in changes.last_night)
            evidence = f"{gpu.uuid} (serial {gpu.serial or 'unknown'}) was there {when}"
            yield _changed_gpu(node, successor, "gpu_replaced", evidence)
        else:
            yield GpuSubject(node, gpu).finding(
                "gpu_missing",
                Verdict.FAIL,
                "reboot",
                f"was there {_time_text(gpu.uuid in changes.last_night)}; "
                "reboot the node, and replace the GPU if it is still missing",
            )


def _new_gpus(node: NodeSubject) -> Iterator[HealthFinding]:
    """Find GPUs that earlier nights did not see, or that are not in the node's accepted identity."""
    changes = node.gpu_changes
    successors = {gpu.uuid for gpu in changes.replaced.values()}
    for gpu in changes.new:
        if gpu.uuid not in successors:
            yield _changed_gpu(node, gpu, "gpu_new", "was not there last night")
    # A GPU without an accepted identity stays unknown, even if it was present last night.
    identity, new = node.snapshot.identity_gpus, {gpu.uuid for gpu in changes.new}
    for uuid, gpu in gpus_by_uuid(node.snapshot.gpus).items():
        if identity and uuid not in identity and uuid not in new:
            yield _changed_gpu(node, gpu, "gpu_new", "is not in the node's accepted identity")


def _gpu_serials(node: NodeSubject) -> Iterator[HealthFinding]:
    """Find GPUs with the UUID of earlier nights but another serial number."""
    for gpu in gpus_by_uuid(node.snapshot.gpus).values():
        before = gpu.usual.serial
        if gpu.serial and before != gpu.serial:
            evidence = f"serial {gpu.serial}, before {before}"
            yield _lost_value(GpuSubject(node, gpu), "gpu_serial_changed", evidence)


def _gpu_count(node: NodeSubject) -> Iterator[HealthFinding]:
    """Find a node with fewer GPUs than its SKU, unless each missing GPU is a finding already."""
    count = len({gpu.uuid for gpu in node.snapshot.gpus})
    lacking = node.expected.gpus - count
    # A GPU with another one in its place is not missing.
    lost = [gpu for gpu in node.gpu_changes.gone if gpu.uuid not in node.gpu_changes.replaced]
    if count and lacking > 0 and len(lost) < lacking:
        evidence = f"{count} of {amount(node.expected.gpus, 'GPU')}"
        yield node.finding("gpus_missing", Verdict.FAIL, "reboot", evidence)


def _gpu_list(node: NodeSubject) -> Iterator[HealthFinding]:
    """Find a list of GPUs that differs from the driver's count, or lacks GPUs of the list of NVLinks."""
    attached, listed = node.snapshot.attached_gpus, len(node.snapshot.gpus)
    if attached is not None and attached != listed:
        evidence = f"nvidia-smi counts {amount(attached, 'GPU')} and lists {listed}"
        yield node.finding("gpu_list_contradictory", Verdict.UNPROVEN, "watch", evidence, "hint")
    if unlisted := node.snapshot.unlisted_gpus:
        uuids_text = ", ".join(sanitize(uuid, 60) for uuid in unlisted)
        evidence = f"nvidia-smi nvlink names {uuids_text}, which nvidia-smi -q does not list"
        yield node.finding("gpu_unlisted", Verdict.UNPROVEN, "inspect", evidence, "hint")


def _duplicate_gpus(node: NodeSubject) -> Iterator[HealthFinding]:
    """Find GPUs with the serial number or the address of another GPU: the list is wrong or combined."""
    gpus = node.snapshot.gpus
    serials = Counter(gpu.serial for gpu in gpus if identifies_gpu(gpu.serial, gpu.name))
    addresses = Counter(gpu.bus_id for gpu in gpus if gpu.bus_id)
    for property_name, counts in (("the serial number", serials), ("the address", addresses)):
        for value in sorted(value for value, count in counts.items() if count > 1):
            evidence = f"{counts[value]} GPUs have {property_name} {sanitize(value, 60)}"
            yield node.finding("gpu_twice", Verdict.UNPROVEN, "inspect", evidence, "hint")


def _smi_remarks(node: NodeSubject) -> Iterator[HealthFinding]:
    """Find the warnings that nvidia-smi prints in addition to its answer."""
    earlier = (*node.previous.gone_gpus, *node.previous.gpus) if node.previous else ()
    by_bus = {normalize_bus_id(gpu.bus_id): gpu for gpu in (*earlier, *node.snapshot.gpus)}
    for remark in node.snapshot.smi_remarks:
        if (lost := lost_address(remark)) is not None:
            yield _lost_gpu(node, remark, lost, by_bus.get(normalize_bus_id(lost)) if lost else None)
            continue
        address = inforom_address(remark)
        if address is None:
            evidence = f"nvidia-smi prints an unknown warning: {remark}"
            yield node.finding("tool_warning", Verdict.UNPROVEN, "watch", evidence, "hint")
            continue
        gpu = by_bus.get(normalize_bus_id(address)) if address else None
        subject = GpuSubject(node, gpu) if gpu else node
        evidence = f"nvidia-smi: {remark}: {INFOROM_REMEDY}"
        yield subject.finding("inforom_corrupted", Verdict.FAIL, "inspect", evidence, "likely")


def _lost_gpu(node: NodeSubject, remark: str, address: str, gpu: GpuSnapshot | None) -> HealthFinding:
    """Return the finding about a GPU that nvidia-smi cannot reach. Earlier nights may know the GPU."""
    return HealthFinding(
        node=node.snapshot.node,
        code="gpu_lost",
        part="gpu",
        name=gpu.uuid if gpu else "",
        place=gpu.place if gpu else address,
        verdict=Verdict.FAIL,
        action="reboot",
        confidence="likely",
        evidence=f"nvidia-smi: {remark}",
    )


# Checks of a GPU.


def _each_gpu(node: NodeSubject) -> Iterator[HealthFinding]:
    """Run the checks of GPU_CHECKS for each GPU."""
    for subject in _gpu_subjects(node):
        for check in GPU_CHECKS:
            yield from check(subject)


def _gpu_subjects(node: NodeSubject) -> Iterator[GpuSubject]:
    """Yield each GPU together with its state of last night."""
    before = gpus_by_uuid(reversed(node.previous.gpus)) if node.previous else {}
    for gpu in node.snapshot.gpus:
        yield GpuSubject(node, gpu, before.get(gpu.uuid))


def _unreadable_values(subject: GpuSubject) -> Iterator[HealthFinding]:
    """Find a GPU for which the driver reports errors in place of values."""
    errors = subject.gpu.errors
    if not errors:
        return
    evidence = f"the driver reports in place of values: {', '.join(errors)}"
    if any("reset" in error.lower() or "lost" in error.lower() for error in errors):
        yield subject.finding("gpu_unreadable", Verdict.FAIL, "reset", evidence, "likely")
    else:
        yield subject.finding("gpu_unreadable", Verdict.UNPROVEN, "watch", evidence, "hint")


def _unknown_values(subject: GpuSubject) -> Iterator[HealthFinding]:
    """Find values of nvidia-smi that this version of Rackproof cannot interpret."""
    if unknown := subject.gpu.unknown_values:
        evidence = f"unknown values: {', '.join(unknown)}"
        yield subject.finding("gpu_value_unknown", Verdict.UNPROVEN, "watch", evidence, "hint")


def _lacking_beside(subject: GpuSubject) -> Iterator[HealthFinding]:
    """Find readings and lines that nvidia-smi prints of the GPUs beside this one, and not of this one."""
    if lacking := subject.gpu.lacking_beside:
        evidence = f"nvidia-smi prints no {', '.join(lacking)}, and prints it for the GPUs beside it"
        yield subject.finding("gpu_readings_missing", Verdict.UNPROVEN, "watch", evidence, "hint")


def _uncorrectable_sram(subject: GpuSubject) -> Iterator[HealthFinding]:
    """Find uncorrectable errors in SRAM, and more errors in SRAM than the vendor allows."""
    gpu = subject.gpu
    if gpu.sram_uncorrectable or gpu.sram_threshold:
        exceeded = "; the threshold of the aggregate is exceeded" if gpu.sram_threshold else ""
        yield subject.finding(
            "ecc_sram_uncorrectable",
            Verdict.FAIL,
            # SRAM cannot be remapped. Above the vendor's threshold, the GPU must be returned.
            "rma" if gpu.sram_threshold else "reset",
            f"{amount(gpu.sram_uncorrectable or 0, 'uncorrectable error')} in SRAM{exceeded}",
        )


def _row_remapping(subject: GpuSubject) -> Iterator[HealthFinding]:
    """Find memory rows that were not or not yet remapped, and uncorrectable errors in DRAM."""
    gpu = subject.gpu
    if gpu.remap_failure:
        evidence = "a row of its memory could not be remapped"
        yield subject.finding("remap_failure", Verdict.FAIL, "rma", evidence)
    if gpu.remap_pending:
        evidence = "a row or page of its memory waits for a reset to be replaced"
        yield subject.finding("remap_pending", Verdict.FAIL, "reset", evidence)
    elif gpu.dram_uncorrectable:
        # The row is remapped, so the error is resolved.
        evidence = f"{amount(gpu.dram_uncorrectable, 'uncorrectable error')} in DRAM"
        yield subject.finding("ecc_dram_uncorrectable", Verdict.DEGRADED, "watch", evidence)


def _correctable_errors(subject: GpuSubject) -> Iterator[HealthFinding]:
    """Find more correctable errors in SRAM or DRAM than the limits allow."""
    gpu, limits = subject.gpu, subject.node.limits
    for errors, limit, memory in (
        (gpu.sram_correctable, limits.sram_correctable, "SRAM"),
        (gpu.dram_correctable, limits.dram_correctable, "DRAM"),
    ):
        if (errors or 0) > limit:
            evidence = f"{number(errors)} correctable errors in {memory}, more than {number(limit)}"
            yield subject.finding(f"ecc_{memory.lower()}_correctable", Verdict.DEGRADED, "watch", evidence)


def _ecc_mode(subject: GpuSubject) -> Iterator[HealthFinding]:
    """Find a GPU whose ECC is off."""
    if subject.gpu.ecc_enabled is False:
        yield subject.finding("ecc_off", Verdict.FAIL, "configure", "ECC is off")


def _ecc_after_reset(subject: GpuSubject) -> Iterator[HealthFinding]:
    """Find a GPU that loses ECC at its next reset."""
    if subject.gpu.ecc_enabled and subject.gpu.ecc_enabled_next is False:
        yield subject.finding("ecc_off", Verdict.FAIL, "configure", "ECC is off after the next reset")


def _memory_repairs(subject: GpuSubject) -> Iterator[HealthFinding]:
    """Find memory that cannot be repaired, and repairs that wait for a reset."""
    if subject.gpu.memory_unrepairable:
        evidence = "the driver has memory that cannot be repaired"
        yield subject.finding("memory_unrepairable", Verdict.FAIL, "rma", evidence)
    if pending := subject.gpu.repairs_pending:
        evidence = f"a repair waits for a reset: {', '.join(pending)}"
        yield subject.finding("repair_pending", Verdict.FAIL, "reset", evidence)


def _undeclared_mig(subject: GpuSubject) -> Iterator[HealthFinding]:
    """Find a GPU in MIG mode that the inventory does not declare."""
    gpu, expected = subject.gpu, subject.node.expected
    if (gpu.mig or gpu.mig_next) and expected.gpus and not expected.mig:
        when = "is on" if gpu.mig else "will be on after its next reset"
        evidence = (
            f"MIG {when}: no job gets it whole; if that is intended, set `mig: true` in validate_expect"
        )
        yield subject.finding("mig_on", Verdict.FAIL, "configure", evidence)


def _gpus_alike(subject: GpuSubject) -> list[GpuSnapshot]:
    """Return the node's GPUs of the same name, including this one."""
    return [gpu for gpu in subject.node.snapshot.gpus if gpu.name == subject.gpu.name]


def _memory_of_gpu(subject: GpuSubject) -> Iterator[HealthFinding]:
    """Find a GPU with less memory than in earlier nights, or less than other GPUs of the same name."""
    now = subject.gpu.memory_total_bytes
    if now is None:
        return
    beside = max((gpu.memory_total_bytes or 0 for gpu in _gpus_alike(subject)), default=0)
    before = subject.gpu.usual.values.get(memory_key(subject.gpu), 0)
    # The driver reserves some memory, and the size varies by less than 2 % between versions.
    if now < 0.98 * beside:
        evidence = f"{size(now)} of memory, but {size(beside)} beside it"
        yield subject.finding("gpu_memory", Verdict.FAIL, "rma", evidence, "likely")
    elif now < 0.98 * before:
        evidence = f"{size(now)} of memory, {size(before)} before"
        yield _lost_value(subject, "gpu_memory", evidence, "rma", "likely")


def _recovery_action(subject: GpuSubject) -> Iterator[HealthFinding]:
    """Find a GPU for which the driver itself requires a reset or reboot."""
    requested = subject.gpu.recovery_action
    if verdict := recovery_verdict(requested):
        action: Action = "reboot" if "reboot" in requested.lower() else "reset"
        evidence = f"the driver requires: {sanitize(requested, 60)}"
        is_certain = verdict is Verdict.FAIL
        yield subject.finding(
            "recovery_needed",
            verdict,
            action if is_certain else "watch",
            evidence,
            "certain" if is_certain else "hint",
        )


def _pcie_link(subject: GpuSubject) -> Iterator[HealthFinding]:
    """Find a PCIe link with lost lanes, or else with a lower generation or a contradictory width."""
    # Report one finding per fault, because a link that lost lanes is often slow too.
    if narrow := [*_pcie_width(subject)]:
        yield from narrow
        return
    yield from _pcie_generation(subject)
    yield from _lower_pcie_generation(subject)
    yield from _pcie_contradictions(subject)


def _pcie_width(subject: GpuSubject) -> Iterator[HealthFinding]:
    """Find a PCIe link with fewer lanes than the SKU states, or else than the GPU has or had."""
    gpu = subject.gpu
    # If a slot is built with fewer lanes than the card, the SKU states their number. A worn contact also
    # lowers the maximum, so the maximum of earlier nights counts, too.
    wanted = subject.node.expected.pcie_width or gpu.pcie_width_max or 0
    usual = 0 if subject.node.expected.pcie_width else gpu.usual.values.get("pcie_width_max", 0)
    if gpu.pcie_width is None or gpu.pcie_width >= max(wanted, usual):
        return
    evidence = f"PCIe x{gpu.pcie_width} of x{max(wanted, usual):g}, generation {gpu.pcie_generation}"
    if gpu.pcie_width < wanted:
        yield subject.finding("pcie_width", Verdict.FAIL, "inspect", evidence)
    else:
        yield _lost_value(subject, "pcie_width", evidence)


def _pcie_generation(subject: GpuSubject) -> Iterator[HealthFinding]:
    """Find a PCIe link below its highest generation, which counts only under load."""
    generation, highest = subject.gpu.pcie_generation, subject.gpu.pcie_generation_max
    if generation is not None and highest and generation < highest and _is_loaded(subject):
        evidence = f"PCIe generation {generation} of {highest} under load"
        yield subject.finding("pcie_generation", Verdict.FAIL, "inspect", evidence)


def _lower_pcie_generation(subject: GpuSubject) -> Iterator[HealthFinding]:
    """Find a GPU whose highest PCIe generation is lower than in earlier nights."""
    highest, before = subject.gpu.pcie_generation_max, subject.gpu.usual.values.get("pcie_generation_max", 0)
    if highest and highest < before:
        evidence = f"PCIe generation {highest} at most, {before:g} before"
        yield _lost_value(subject, "pcie_generation", evidence)


def _pcie_contradictions(subject: GpuSubject) -> Iterator[HealthFinding]:
    """Find a width above the GPU's own maximum, and a width below its neighbours' that no SKU declares."""
    gpu = subject.gpu
    if subject.node.expected.pcie_width or not gpu.pcie_width or not gpu.pcie_width_max:
        return
    widest = max((gpu.pcie_width_max or 0 for gpu in _gpus_alike(subject)), default=0)
    if gpu.pcie_width > gpu.pcie_width_max or gpu.pcie_width_max < widest:
        evidence = (
            f"PCIe x{gpu.pcie_width} of x{gpu.pcie_width_max}, x{widest} beside it; if slots differ by "
            "design, set `pcie_width` in validate_expect"
        )
        yield subject.finding("pcie_width_unproven", Verdict.UNPROVEN, "inspect", evidence, "likely")


def _is_loaded(subject: GpuSubject) -> bool:
    """Return whether a load ran on the GPU."""
    # On some models an idle link is slow by design.
    busy = (subject.gpu.utilisation or 0) >= subject.node.limits.loaded_percent
    return subject.node.snapshot.loaded or busy


def _pcie_replays(subject: GpuSubject) -> Iterator[HealthFinding]:
    """Find more PCIe replays since the last snapshot than the limit allows."""
    before = subject.before.pcie_replays if subject.before else None
    growth = _gpu_counter_growth(subject.node, subject.gpu.pcie_replays, before)
    if growth > subject.node.limits.pcie_replays:
        evidence = f"{growth} PCIe replays since the last snapshot"
        yield subject.finding("pcie_replays", Verdict.DEGRADED, "watch", evidence)


def _throttling(subject: GpuSubject) -> Iterator[HealthFinding]:
    """Find a GPU that is throttled for a reason that no healthy GPU reports."""
    reasons = [reason for reason in subject.gpu.throttled or () if reason not in _HARMLESS_THROTTLES]
    if not reasons:
        return
    by_hardware = any(reason.startswith("hw_") for reason in reasons)
    thermal = any("thermal" in reason for reason in reasons)
    yield subject.finding(
        "throttled",
        Verdict.FAIL if by_hardware else Verdict.DEGRADED,
        "inspect",
        f"slowed down: {', '.join(reasons)}; {_degrees_text(subject.gpu.temperature_c)}",
        "certain" if thermal else "likely",
    )


def _slowdowns(subject: GpuSubject) -> Iterator[HealthFinding]:
    """Find causes of slowdowns that lasted longer since the last snapshot than the limit per day."""
    if subject.before is None:
        return
    limit_s = subject.node.limits.slowdown_s * _days_between(subject.node.previous, subject.node.snapshot)
    for reason, now_s in subject.gpu.slowdown_s.items():
        before_s = subject.before.slowdown_s.get(reason)
        if before_s is None:
            continue
        # The counters restart when the driver is loaded, so after a boot the whole value is new.
        is_same_count = now_s >= before_s and not _was_booted(subject.node)
        slowed_s = now_s - before_s if is_same_count else now_s
        if slowed_s > limit_s:
            yield _slowdown_finding(subject, reason, slowed_s, "since the last snapshot")


def _first_slowdowns(subject: GpuSubject) -> Iterator[HealthFinding]:
    """Find causes of slowdowns without an earlier count, averaged per day since the boot."""
    booted, epoch = subject.node.snapshot.booted, subject.node.snapshot.epoch
    counted = subject.before.slowdown_s if subject.before else {}
    first_counts = {
        reason: now_s for reason, now_s in subject.gpu.slowdown_s.items() if reason not in counted
    }
    if not any(first_counts.values()):
        return
    if not booted or not epoch or epoch <= booted:
        evidence = "it was slowed down at times, and the time of the last boot is not known"
        yield subject.finding("slowdown_unknown", Verdict.UNPROVEN, "watch", evidence, "hint")
        return
    days = max((epoch - booted) / 86_400, 1 / 24)
    for reason, slowed_s in first_counts.items():
        if slowed_s > subject.node.limits.slowdown_s * days:
            yield _slowdown_finding(subject, reason, slowed_s, "since the driver was loaded")


def _slowdown_finding(subject: GpuSubject, reason: str, slowed_s: float, since: str) -> HealthFinding:
    """Return the finding on a GPU that was slowed down for one reason."""
    return subject.finding(
        "slowed_down",
        Verdict.FAIL if reason.startswith("hw_") else Verdict.DEGRADED,
        "inspect",
        f"{reason}: {number(slowed_s)} s {since}",
        "likely",
    )


def _was_booted(node: NodeSubject) -> bool:
    """Return whether the node was booted since the last snapshot. An unknown boot id counts as no boot."""
    before = node.previous.boot_id if node.previous else ""
    return bool(before and node.snapshot.boot_id and before != node.snapshot.boot_id)


def _temperature(subject: GpuSubject) -> Iterator[HealthFinding]:
    """Find a GPU that is close to the temperature at which it slows down."""
    margin_c = subject.gpu.margin_c
    if margin_c is not None and margin_c <= subject.node.limits.margin_c:
        yield subject.finding(
            "temperature",
            Verdict.FAIL if margin_c <= 0 else Verdict.DEGRADED,
            "inspect",
            f"{number(margin_c)} °C left until it slows down, at {_degrees_text(subject.gpu.temperature_c)}",
        )


def _absolute_temperature(subject: GpuSubject) -> Iterator[HealthFinding]:
    """Find a GPU that is hotter than any model may be.

    The driver's margin is not used, because some drivers report none.
    """
    if (subject.gpu.temperature_c or 0) >= subject.node.limits.gpu_c:
        evidence = f"at {_degrees_text(subject.gpu.temperature_c)}"
        yield subject.finding("too_hot", Verdict.FAIL, "inspect", evidence)


def _memory_temperature(subject: GpuSubject) -> Iterator[HealthFinding]:
    """Find GPU memory that is too hot."""
    memory_c, limit_c = subject.gpu.memory_c, subject.node.limits.memory_c
    if memory_c is not None and memory_c >= limit_c:
        verdict = Verdict.FAIL if memory_c >= limit_c + 10 else Verdict.DEGRADED
        yield subject.finding(
            "memory_temperature", verdict, "inspect", f"its memory is at {_degrees_text(memory_c)}"
        )


ALIKE_SETTINGS = 0.98
"""Clocks, limits and sizes of GPUs of one name are alike if each is at least this share of the largest."""


def _power_limit(subject: GpuSubject) -> Iterator[HealthFinding]:
    """Find a power limit below the SKU's, or else below the GPU's default."""
    limit_w = subject.gpu.power_limit_w
    wanted_w = subject.node.expected.power_limit_w or subject.gpu.power_default_w or 0
    if limit_w is not None and wanted_w and limit_w < 0.99 * wanted_w:
        evidence = f"limited to {number(limit_w)} W of {number(wanted_w)} W"
        yield subject.finding("power_limit", Verdict.FAIL, "configure", evidence)


def _compute_mode(subject: GpuSubject) -> Iterator[HealthFinding]:
    """Find a GPU that no program may use."""
    if subject.gpu.compute_mode == "Prohibited" and subject.node.expected.gpus:
        evidence = "no program may compute on it (compute mode Prohibited): nvidia-smi -c DEFAULT"
        yield subject.finding("compute_prohibited", Verdict.FAIL, "configure", evidence)


def _spare_memory(subject: GpuSubject) -> Iterator[HealthFinding]:
    """Find a GPU without spare memory rows, in one bank or at all."""
    gpu = subject.gpu
    if gpu.spent_banks:
        evidence = f"{gpu.spent_banks} banks of its memory have no spare row left"
    elif (gpu.remapped_rows or 0) >= MOST_REMAPPED_ROWS:
        evidence = f"{gpu.remapped_rows} rows of its memory are remapped, the most that a GPU can"
    else:
        return
    yield subject.finding("remap_spent", Verdict.DEGRADED, "rma", evidence)


def _lower_settings(subject: GpuSubject) -> Iterator[HealthFinding]:
    """Find a GPU with a lower limit or setting than others of its name."""
    alike = _gpus_alike(subject)
    for name, field, unit in (
        ("its SM clock is", "clock_max_mhz", " MHz at most"),
        ("its power limit is", "power_limit_w", " W"),
        ("its PCIe generation is", "pcie_generation_max", " at most"),
        ("its memory clock is", "memory_clock_max_mhz", " MHz at most"),
        ("its applications clock is", "applications_clock_mhz", " MHz"),
        ("its applications clock of memory is", "applications_memory_clock_mhz", " MHz"),
        ("its BAR1 has", "bar1_mib", " MiB"),
    ):
        own_value = getattr(subject.gpu, field)
        most = max((getattr(gpu, field) or 0 for gpu in alike), default=0)
        if own_value is not None and own_value < ALIKE_SETTINGS * most and not _is_explained(subject, field):
            evidence = f"{name} {number(own_value)}{unit}, {number(most)} beside it"
            yield subject.finding("gpus_unlike", Verdict.UNPROVEN, "watch", evidence, "hint")


def _unusual_modes(subject: GpuSubject) -> Iterator[HealthFinding]:
    """Find a GPU in another compute mode or persistence mode than most GPUs of its name."""
    alike = _gpus_alike(subject)
    for name, field, default in (
        ("compute mode", "compute_mode", "Default"),
        ("persistence mode", "persistence_mode", "Enabled"),
    ):
        own, counts = getattr(subject.gpu, field), Counter(getattr(gpu, field) for gpu in alike)
        # A missing value has a finding of its own. Of two equally frequent modes, the default counts.
        del counts[""]
        usual = max(counts, key=lambda mode: (counts[mode], mode == default), default="")
        if own and own != usual and not _is_explained(subject, field):
            evidence = f"its {name} is {sanitize(own, 60)}, {sanitize(usual, 60)} beside it"
            yield subject.finding("gpus_unlike", Verdict.UNPROVEN, "watch", evidence, "hint")


def _is_explained(subject: GpuSubject, field: str) -> bool:
    """Return whether a difference needs no finding: another check reports it, or a slot explains it."""
    if field == "power_limit_w":
        return any(_power_limit(subject))
    if field == "compute_mode":
        return any(_compute_mode(subject))
    return field == "pcie_generation_max" and has_own_links(subject.gpu.name) is False


def _links_down(gpu: GpuSnapshot) -> list[str]:
    """Return the numbers of a GPU's NVLinks that are down."""
    return sorted((link for link, up in gpu.links.items() if not up), key=int)


def _nvlinks(subject: GpuSubject) -> Iterator[HealthFinding]:
    """Find NVLinks that are down or missing. Report only the first such fault."""
    if subject.gpu.mig and not subject.gpu.links:
        # The driver prints "Nvlink queries are not supported for Devices in MIG mode", and no program uses
        # links there.
        return
    checks = (
        _nvlinks_down,
        _nvlinks_fewer_than_wanted,
        _nvlinks_fewer_than_others,
        _nvlinks_fewer_than_before,
        _nvlinks_inactive,
    )
    findings = (finding for check in checks for finding in check(subject))
    yield from islice(findings, 1)


def _nvlinks_down(subject: GpuSubject) -> Iterator[HealthFinding]:
    """Find NVLinks that were up in an earlier night, or that the SKU needs, and that are down."""
    links, down = subject.gpu.links, _links_down(subject.gpu)
    lost = [link for link in down if subject.gpu.usual.was_up(link)]
    evidence = f"NVLink {', '.join(lost or down)} down of {len(links)}"
    if down and len(links) - len(down) < subject.node.expected.nvlinks:
        yield subject.finding("nvlink_down", Verdict.FAIL, "reset", evidence, "likely")
    elif lost:
        yield _lost_value(subject, "nvlink_down", evidence, "reset", "likely")


def _nvlinks_fewer_than_wanted(subject: GpuSubject) -> Iterator[HealthFinding]:
    """Find a GPU with fewer active NVLinks than its SKU."""
    count, expected_count = sum(subject.gpu.links.values()), subject.node.expected.nvlinks
    if subject.node.snapshot.tools.get("nvlink_status") == "ok" and count < expected_count:
        evidence = f"{count} of {amount(expected_count, 'NVLink')}"
        yield subject.finding("nvlink_missing", Verdict.FAIL, "reset", evidence)


def _nvlinks_fewer_than_others(subject: GpuSubject) -> Iterator[HealthFinding]:
    """Find a GPU without active NVLinks, or with fewer NVLinks than another one of its name uses.

    The check applies if the SKU states no number of NVLinks.
    """
    links = subject.gpu.links
    count = sum(links.values())
    if subject.node.expected.nvlinks or not (beside := _most_links(subject)):
        return
    if not count or len(links) < beside:
        evidence = (
            f"{amount(count, 'NVLink')} up, {beside} of a GPU of its model beside it: see baseboard or bridge"
        )
        yield subject.finding("nvlink_missing", Verdict.FAIL, "reset", evidence, "likely")


def _nvlinks_fewer_than_before(subject: GpuSubject) -> Iterator[HealthFinding]:
    """Find NVLinks that were up in an earlier night and are not listed, if the SKU states no number."""
    node, links = subject.node, subject.gpu.links
    if node.expected.nvlinks or node.snapshot.tools.get("nvlink_status") != "ok":
        return
    usual = [link for link, was_up in subject.gpu.usual.links.items() if was_up]
    if gone := sorted((link for link in usual if link not in links), key=int):
        evidence = f"NVLink {', '.join(gone)} not listed, {amount(len(usual), 'NVLink')} up before"
        yield _lost_value(subject, "nvlink_missing", evidence, "reset", "likely")


def _nvlinks_inactive(subject: GpuSubject) -> Iterator[HealthFinding]:
    """Find inactive NVLinks, if the SKU states no number."""
    links, down = subject.gpu.links, _links_down(subject.gpu)
    if down and not subject.node.expected.nvlinks:
        # Bridges leave some links unused by design. Without the SKU's number, these look like broken
        # links.
        evidence = (
            f"NVLink {', '.join(down)} of {len(links)} inactive; `nvlinks` of validate_expect is not set"
        )
        yield subject.finding("nvlink_inactive", Verdict.DEGRADED, "watch", evidence, "hint")


def _most_links(subject: GpuSubject) -> int:
    """Return the largest number of active NVLinks among GPUs of the same name, or 0 if unreadable."""
    if subject.node.snapshot.tools.get("nvlink_status") != "ok":
        return 0
    return max((sum(gpu.links.values()) for gpu in _gpus_alike(subject)), default=0)


def _slow_nvlinks(subject: GpuSubject) -> Iterator[HealthFinding]:
    """Find active NVLinks that are slower than the model's, the neighbours' or their own earlier speed."""
    least = least_link_gb_s(subject.gpu.name)
    fastest = max([least, *(speed for gpu in _gpus_alike(subject) for speed in gpu.link_gb_s.values())])
    if slow := _links_below(subject.gpu, fastest):
        yield subject.finding("nvlink_slow", Verdict.FAIL, "reset", slow, "likely")
    elif slow := _links_below(subject.gpu, subject.gpu.usual.values.get("link_gb_s", 0)):
        yield _lost_value(subject, "nvlink_slow", slow, "reset", "likely")


def _links_below(gpu: GpuSnapshot, fastest_gb_s: float) -> str:
    """Return the active NVLinks that are slower than ``fastest_gb_s``, with the speed of the first, or ""."""
    now = gpu.link_gb_s
    slow = sorted((link for link, speed in now.items() if speed < SLOW_LINK_SHARE * fastest_gb_s), key=int)
    return (
        f"NVLink {', '.join(slow)} at {number(now[slow[0]])} of {number(fastest_gb_s)} GB/s" if slow else ""
    )


def _nvlink_errors(subject: GpuSubject) -> Iterator[HealthFinding]:
    """Find NVLink errors since the last snapshot."""
    before = subject.before.link_errors if subject.before else None
    if growth := _gpu_counter_growth(subject.node, subject.gpu.link_errors, before):
        evidence = f"{growth} NVLink errors since the last snapshot"
        yield subject.finding("nvlink_errors", Verdict.DEGRADED, "watch", evidence)


def _nvlink_fabric(subject: GpuSubject) -> Iterator[HealthFinding]:
    """Find a GPU whose NVLink fabric is not ready, unhealthy, or without the domain that the SKU needs."""
    gpu = subject.gpu
    in_domain = subject.node.expected.nvlink_domain
    if fault := fabric_fault(gpu.fabric_state, gpu.fabric_status, in_domain=in_domain):
        fabric_code, evidence, verdict = fault
        if is_one_of(gpu.name, MODELS_WITH_SWITCH_BRIDGES) and verdict is Verdict.FAIL:
            evidence += "; its fabric manager also needs the package nvlsm and the module ib_umad"
        yield subject.finding(fabric_code, verdict, "configure", evidence, "likely")
    elif in_domain and (lacking := _lacks_of_domain(gpu)):
        evidence = f"it is in no NVLink domain of several nodes: {lacking}"
        yield subject.finding("fabric_no_domain", Verdict.FAIL, "configure", evidence, "likely")
    # Inactive links make the fabric unhealthy and are a finding of their own.
    if is_fabric_unhealthy(gpu.fabric_health) and not _links_down(gpu):
        evidence = f"fabric health is {sanitize(gpu.fabric_health, 40)}"
        yield subject.finding("fabric_unhealthy", Verdict.FAIL, "reset", evidence, "likely")


def _lacks_of_domain(gpu: GpuSnapshot) -> str:
    """Return the fields that show that a GPU is in no NVLink domain.

    A field that was not read is missing evidence, and not reported here.
    """
    zeros = {"clique": gpu.fabric_clique, "cluster UUID": gpu.fabric_cluster}
    return ", ".join(f"its {name} is 0" for name, value in zeros.items() if value and not value.strip("0-"))


def _fabric_membership(node: NodeSubject) -> Iterator[HealthFinding]:
    """Find GPUs of one node in different NVLink cliques, or in another one than last night."""
    memberships = {(gpu.fabric_cluster, gpu.fabric_clique) for gpu in node.snapshot.gpus} - {("", "")}
    if len(memberships) > 1:
        evidence = f"its GPUs belong to {len(memberships)} different NVLink cliques"
        yield node.finding("fabric_split", Verdict.FAIL, "configure", evidence, "likely")
        return
    before = (
        {(gpu.fabric_cluster, gpu.fabric_clique) for gpu in node.previous.gpus} if node.previous else set()
    )
    before -= {("", "")}
    if memberships and before and memberships != before:
        ((cluster, clique),) = memberships
        evidence = f"cluster {sanitize(cluster, 40)}, clique {sanitize(clique, 20)}; another one last night"
        yield node.finding("fabric_changed", Verdict.DEGRADED, "watch", evidence, "hint")


def _leftover_memory(subject: GpuSubject) -> Iterator[HealthFinding]:
    """Find GPU memory in use on a node without a job."""
    used_bytes = subject.gpu.memory_used_bytes or 0
    if subject.node.idle and 0 < used_bytes >= subject.node.limits.foreign_memory_bytes:
        evidence = f"{size(used_bytes)} are in use while no job runs"
        yield subject.finding("memory_in_use", Verdict.FAIL, "reset", evidence, "likely")


# XIDs in the kernel log.


def _xids(node: NodeSubject) -> Iterator[HealthFinding]:
    """Find the XIDs of the kernel log."""
    for event in node.snapshot.xids:
        yield _xid_finding(node, event)


def _xid_finding(node: NodeSubject, event: XidEvent) -> HealthFinding:
    """Return the finding on an XID, whose verdict depends on the boots since then."""
    snapshot = node.snapshot
    action, confidence = _xid_action(event, snapshot.reboots)
    verdict = verdict_of(event.xid, event.text)
    if action in ("reset", "reboot", "isolate", "inspect"):
        verdict = Verdict.FAIL
    # A fault is resolved by a boot, unless earlier boots did not help.
    if resolved_by_boot(event) and action != "inspect":
        verdict, action = Verdict.DEGRADED, "watch"
    times = f", {amount(event.times, 'time')}" if event.times > 1 else ""
    evidence = _event_evidence(f"XID {event.xid}{times}: {event.text}", event)
    if action == "inspect":
        evidence += f"; {snapshot.reboots[reboot_counter_key(event)]} reboots for it have not helped"
    places = (gpu.place for gpu in (*snapshot.gpus, *snapshot.gone_gpus) if gpu.uuid == event.uuid)
    return HealthFinding(
        node=snapshot.node,
        code=f"xid_{event.xid}",
        part="gpu",
        # The log gives only the bus address. If no night recorded the GPU, its UUID is unknown.
        name=event.uuid or f"PCI {event.bus_id}",
        place=next(places, event.bus_id),
        verdict=verdict,
        action=action,
        confidence=confidence,
        evidence=evidence,
    )


def _event_evidence(text: str, event: XidEvent | HardwareEvent) -> str:
    """Return the text of an event, with a remark if it was reported before or the node was booted since."""
    evidence = text
    if event.carried and event.rebooted and not is_healed_by_boot(event):
        remedy = "after the repair, validate the node once with -e validate_accept_identity=true"
        return f"{evidence}; reported before, and a boot does not repair it: {remedy}"
    if event.carried:
        evidence += "; reported before and not acted upon"
    if event.rebooted:
        evidence += "; the node was booted since"
    return evidence


def _xid_action(event: XidEvent, reboots: Mapping[str, int]) -> tuple[Action, Confidence]:
    """Return the action for an XID, and how certain it is."""
    if event.action == "reboot" and reboots.get(reboot_counter_key(event), 0) >= REBOOTS_UNTIL_INSPECTION:
        return "inspect", "certain"
    actions: dict[str, Action] = {
        "watch": "watch",
        "reset": "reset",
        "reboot": "reboot",
        "isolate": "isolate",
    }
    if event.action not in actions:
        return "watch", "hint"
    # An XID that only needs watching can be caused by a program.
    return actions[event.action], "hint" if event.action == "watch" else "likely"


# The kernel log also reports faults of hardware without an XID.

_UNKNOWN_SHOWN = 5
"""Largest number of unknown errors that the finding on them lists."""


def _hardware_events(node: NodeSubject) -> Iterator[HealthFinding]:
    """Find the other hardware faults of the kernel log. Unknown errors become one finding."""
    unknown = []
    for event in node.snapshot.hardware_events:
        if event.code == "unknown_kernel_error":
            unknown.append(f"{amount(event.times, 'time')}: {event.text}" if event.times > 1 else event.text)
        else:
            yield _hardware_finding(node, event)
    if unknown:
        more = f"; and {len(unknown) - _UNKNOWN_SHOWN} more" if len(unknown) > _UNKNOWN_SHOWN else ""
        evidence = f"unknown errors of the kernel: {'; '.join(unknown[:_UNKNOWN_SHOWN])}{more}"
        yield node.finding("unknown_kernel_error", Verdict.UNPROVEN, "watch", evidence, "hint")


def _hardware_finding(node: NodeSubject, event: HardwareEvent) -> HealthFinding:
    """Return the finding on a hardware fault, whose verdict depends on the boots since then."""
    verdict, action = event.verdict, _hardware_action(event)
    # A boot resets GPUs and switches. A fault that requires an inspection remains.
    if verdict is Verdict.FAIL and event.rebooted and action == "reboot":
        verdict, action = Verdict.DEGRADED, "watch"
    times = f"{amount(event.times, 'time')}: " if event.times > 1 else ""
    return HealthFinding(
        node=node.snapshot.node,
        code="kernel_log_damaged" if event.code == "damaged_line" else event.code,
        part="gpu" if event.uuid else "node",
        name=event.uuid,
        place=event.bus_id,
        verdict=verdict,
        action=action,
        confidence="hint" if action == "watch" else "likely",
        evidence=_event_evidence(f"{times}{event.text}", event),
    )


def _hardware_action(event: HardwareEvent) -> Action:
    """Return the action for a hardware fault."""
    if event.verdict is not Verdict.FAIL:
        return "watch"
    return "reboot" if is_healed_by_boot(event) else "inspect"


# Ports and PCIe links of network cards.


def _missing_ports(node: NodeSubject) -> Iterator[HealthFinding]:
    """Find ports that were there in an earlier night.

    A port that was removed or renamed is found only in the first night without it.
    """
    for (device, port), recent in _lost_ports(node).items():
        yield HealthFinding(
            node=node.snapshot.node,
            code="port_missing",
            part="port",
            name=f"{device}/{port}",
            verdict=Verdict.FAIL,
            action="reboot",
            evidence=f"was there {_time_text(recent)}",
        )


def _lost_ports(node: NodeSubject) -> dict[tuple[str, str], bool]:
    """Return the ports that are missing tonight, each with whether it was there last night."""
    last_night = {(port.device, port.port) for port in node.previous.ports} if node.previous else set()
    present = {(port.device, port.port) for port in node.snapshot.ports}
    lacking = any(_lacking_ports(node, use) > 0 for use in ("compute", "other"))
    complete = bool(node.expected.ports) and not lacking
    missing = {port: port in last_night for port in sorted(node.known_ports.keys() - present)}
    if complete or len(present) >= len(node.known_ports):
        # Ports that are missing for more than a night were removed, or are named differently now.
        return {port: recent for port, recent in missing.items() if recent}
    return missing


def _lacking_ports(node: NodeSubject, use: PortUse) -> int:
    """Return how many ports of a use are missing, compared with the SKU. More ports give a number below 0."""
    return expected_ports(node.expected, use) - len(node.ports_by_use[use])


def _port_count(node: NodeSubject) -> Iterator[HealthFinding]:
    """Find a node with fewer ports than its SKU, unless each missing port is a finding already."""
    uses: tuple[tuple[PortUse, str], ...] = (("compute", "HCA ports"), ("other", "other ports"))
    lost_ports = [port_use(node.known_ports[port], node.expected) for port in _lost_ports(node)]
    for use, words in uses:
        if lost_ports.count(use) < _lacking_ports(node, use):
            evidence = f"{len(node.ports_by_use[use])} of {expected_ports(node.expected, use)} {words}"
            yield node.finding("ports_missing", Verdict.FAIL, "inspect", evidence)


def _each_port(node: NodeSubject) -> Iterator[HealthFinding]:
    """Run the checks of PORT_CHECKS for each port."""
    for subject in _port_subjects(node):
        for check in PORT_CHECKS:
            yield from check(subject)


def _port_subjects(node: NodeSubject) -> Iterator[PortSubject]:
    """Yield each port together with its state of an earlier night."""
    for port in node.snapshot.ports:
        yield PortSubject(node, port, node.known_ports.get((port.device, port.port)))


def _port_link(subject: PortSubject) -> Iterator[HealthFinding]:
    """Find a port that is not active, or else too slow."""
    port = subject.port
    if port.state and port.state != "active":
        yield from _port_down(subject)
    elif port.state and port.rate_gbps is not None:
        yield from _port_rate(subject, port.rate_gbps)


def _port_down(subject: PortSubject) -> Iterator[HealthFinding]:
    """Find a port that is down. It is unused if it was never up and enough ports of its use are active."""
    port, active = subject.port, subject.node.active_ports[subject.use]
    needed = expected_ports(subject.node.expected, subject.use)
    physical = f", physically {port.physical}" if port.physical else ""
    evidence = f"{port.state}{physical}"
    # A port counts no lost link if it was never up, for example without a cable.
    if port.lost_links:
        counter, count = port.lost_links
        evidence += f"; its link went down {amount(count, 'time')} ({counter})"
    if port.lost_links or (needed and active < needed):
        yield subject.finding("port_down", Verdict.FAIL, evidence)
    elif port.was_active:
        yield _lost_port_value(subject, "port_down", evidence)
    elif not subject.node.expected.ports:
        evidence += "; it was never active: state in validate_expect how many ports the node needs (ports)"
        yield subject.finding("port_down", Verdict.UNPROVEN, evidence)


def _port_rate(subject: PortSubject, rate_gbps: float) -> Iterator[HealthFinding]:
    """Find a port that is slower than the SKU's rate or than its own rate in earlier nights."""
    # The SKU states one rate for all ports of a use. A faster port is also compared with its earlier nights.
    wanted_gbps, usual_gbps = subject.expected_gbps, subject.port.usual_gbps or 0.0
    wanted = f"{number(rate_gbps)} of {number(wanted_gbps)} Gb/s"
    if rate_gbps < wanted_gbps and not _may_be_no_compute_port(subject):
        yield subject.finding("port_slow", Verdict.FAIL, wanted)
    elif rate_gbps < usual_gbps:
        evidence = f"{number(rate_gbps)} Gb/s, before {number(usual_gbps)}"
        yield _lost_port_value(subject, "port_slow", evidence)
    elif rate_gbps < wanted_gbps:
        wanted += "; enough other ports have this rate: if this one is no compute port, name the "
        wanted += "compute ports in validate_expect (port_layer, port_devices)"
        yield subject.finding("port_slow", Verdict.UNPROVEN, wanted)


def _may_be_no_compute_port(subject: PortSubject) -> bool:
    """Return whether the SKU does not name the compute ports, and enough other ports are fast enough."""
    expected = subject.node.expected
    if expected.port_layer or expected.port_devices or not expected.ports:
        return False
    return subject.node.fast_compute_ports >= expected.ports


def _lost_port_value(subject: PortSubject, code: str, evidence: str) -> HealthFinding:
    """Return the finding on a port that was better in an earlier night, as :func:`_lost_value` does."""
    verdict, action, evidence = _unless_accepted(subject.node.snapshot, evidence, "inspect")
    return subject.finding(code, verdict, evidence, action)


def _port_counters(subject: PortSubject) -> Iterator[HealthFinding]:
    """Find error counters of a port that grew: too much in a day, or at all if such an error is rare."""
    if subject.before is None:
        return
    days = _days_between(subject.node.previous, subject.node.snapshot)
    passed_s = _seconds_between(subject.node.previous, subject.node.snapshot)
    # The text has the true time, even if the limit applies to a longer time.
    when = "since the last snapshot" if passed_s is None else f"in {duration(passed_s)}"
    for name, limit_name in _COUNTER_LIMITS.items():
        growth = _counter_growth(subject.port.counters.get(name), subject.before.counters.get(name))
        # One error within an hour is one error, and not 24 per day.
        counted_days = days if limit_name in _RATES_OF_PACKETS else max(days, 1.0)
        allowed = getattr(subject.node.limits, limit_name) * counted_days
        if growth > allowed or (growth and limit_name in _RARE_ON_PORTS):
            verdict = Verdict.FAIL if growth > allowed else Verdict.DEGRADED
            action: Action = "inspect" if growth > allowed else "watch"
            evidence = f"{name}: {growth} more {when}, allowed are {number(allowed)}"
            yield subject.finding(f"port_{code_name(name)}", verdict, evidence, action)


def _counter_growth(now: int | None, before: int | None) -> int:
    """Return by how much a counter grew, or 0 if a value is missing."""
    if now is None or before is None:
        return 0
    # A counter that is lower than before was cleared, or restarted at a boot. Its whole value is new.
    return now - before if now >= before else now


def _gpu_counter_growth(node: NodeSubject, now: int | None, before: int | None) -> int:
    """Return by how much a counter of a GPU grew since the last snapshot or, after a boot, since the boot.

    Return 0 if a value is missing.
    """
    # The counters of a GPU restart at a boot, so after a boot the whole value is new.
    is_new_count = before is not None and _was_booted(node)
    return _counter_growth(now, 0 if is_new_count else before)


def _days_between(previous: NodeSnapshot | None, snapshot: NodeSnapshot) -> float:
    """Return the days for which limits apply, at least an hour. Return one day if a time is unknown."""
    passed_s = _seconds_between(previous, snapshot)
    # For two snapshots in quick succession, a limit near 0 would turn any event into a failure.
    return 1.0 if passed_s is None else max(passed_s / 86_400, 1 / 24)


def _seconds_between(previous: NodeSnapshot | None, snapshot: NodeSnapshot) -> float | None:
    """Return the seconds between two snapshots, or None if a time is unknown."""
    if previous and previous.epoch and snapshot.epoch and snapshot.epoch > previous.epoch:
        return snapshot.epoch - previous.epoch
    return None


def _network_card_links(node: NodeSubject) -> Iterator[HealthFinding]:
    """Find network cards whose PCIe link is slower or narrower than they support, or than the SKU states."""
    for address, link in node.snapshot.links.items():
        for quantity, prefix in (("width", "x"), ("speed", "")):
            now, highest = link.get(f"current_link_{quantity}", ""), link.get(f"max_link_{quantity}", "")
            if quantity == "width" and node.expected.card_pcie_width:
                highest = str(node.expected.card_pcie_width)
            # A value that is 0 or unreadable is missing evidence, and no slow link.
            present = _leading_number(now)
            if present and present < _leading_number(highest):
                yield HealthFinding(
                    node=node.snapshot.node,
                    code=f"link_{quantity}",
                    part="link",
                    name=address,
                    verdict=Verdict.FAIL,
                    action="inspect",
                    confidence="likely",
                    evidence=f"PCIe {prefix}{now} of {prefix}{highest}",
                )


# Versions.


def _expected_versions(node: NodeSubject) -> Iterator[HealthFinding]:
    """Find versions that are unknown, or differ from the versions that the SKU states."""
    for name, expected_version in sorted(node.expected.versions.items()):
        code, version = f"version_{code_name(name)}", node.snapshot.versions.get(name)
        if not version:
            evidence = f"{name} is unknown, not {expected_version}"
            yield node.finding(code, Verdict.UNPROVEN, "configure", evidence)
        elif version != expected_version:
            yield node.finding(
                code, Verdict.FAIL, "configure", f"{name} is {version}, not {expected_version}"
            )


def _unusual_versions(node: NodeSubject) -> Iterator[HealthFinding]:
    """Find versions that differ from most nodes of the SKU, if the SKU states none."""
    for name, usual in sorted(node.majority.items()):
        version = node.snapshot.versions.get(name)
        if name not in node.expected.versions and version and version != usual:
            evidence = f"{name} is {version}; most nodes of its model have {usual}"
            yield node.finding(
                f"version_{code_name(name)}", Verdict.DEGRADED, "configure", evidence, "likely"
            )


def _driver_mismatches(node: NodeSubject) -> Iterator[HealthFinding]:
    """Find components of another version than the driver that they belong to."""
    versions = node.snapshot.versions
    driver = versions.get("driver")
    for name in _BOUND_TO_DRIVER:
        version = versions.get(name)
        if driver and version and version != driver:
            evidence = f"{name} is {version}, the driver {driver}"
            yield node.finding(f"mismatch_{code_name(name)}", Verdict.FAIL, "configure", evidence)


# Checks of the system: memory, limits, mounts, disks, clock, units and Slurm.


def _locked_memory(node: NodeSubject) -> Iterator[HealthFinding]:
    """Find a limit of locked memory that is too low for RDMA."""
    limit, needed_bytes = node.snapshot.memlock_bytes, node.limits.memlock_bytes
    # -1 means that there is no limit.
    if limit is not None and 0 <= limit < needed_bytes:
        evidence = f"{size(limit)} may be locked, {size(needed_bytes)} are needed"
        if node.snapshot.asked_as_root is False:
            # The limit of a user's login is not the limit of a job.
            evidence += f"; {WITHOUT_ROOT}, this is only the limit of that user: {USE_ROOT}"
            finding = node.finding("memlock", Verdict.UNPROVEN, "watch", evidence, "hint")
            yield finding.model_copy(update={"without_root": True})
        else:
            yield node.finding("memlock", Verdict.FAIL, "configure", evidence)


def _shared_memory(node: NodeSubject) -> Iterator[HealthFinding]:
    """Find a /dev/shm that is too small."""
    shm_bytes, needed_bytes = node.snapshot.shm_bytes, node.limits.shm_bytes
    if shm_bytes is not None and shm_bytes < needed_bytes:
        evidence = f"shared memory is {size(shm_bytes)}, {size(needed_bytes)} are needed"
        yield node.finding("shm", Verdict.FAIL, "configure", evidence)


def _memory(node: NodeSubject) -> Iterator[HealthFinding]:
    """Find a node with less memory than its SKU."""
    memory_bytes, expected_bytes = node.snapshot.memory_bytes, node.expected.memory_bytes
    # Firmware and kernel reserve some memory for themselves.
    if expected_bytes and 0 < memory_bytes < node.limits.memory_share * expected_bytes:
        evidence = f"{size(memory_bytes)} of {size(expected_bytes)}: a module is missing?"
        yield node.finding("memory", Verdict.FAIL, "inspect", evidence, "likely")


def _mounts(node: NodeSubject) -> Iterator[HealthFinding]:
    """Find required mounts that are missing or differ."""
    mounts = node.snapshot.mounts
    for mount in expected_mounts(node.expected) if mounts is not None else ():
        if mount.path not in (mounts or ()):
            yield node.finding("mount_missing", Verdict.FAIL, "configure", f"{mount.path} is not mounted")
        else:
            yield from _mount_differences(node, mount)


def expected_mounts(expected: Expectation) -> tuple[ExpectedMount, ...]:
    """Return the required mounts. An entry that is only a path accepts any mount there."""
    return tuple(ExpectedMount(mount) if isinstance(mount, str) else mount for mount in expected.mounts)


_IN_MEMORY = ("tmpfs", "ramfs")
_USUALLY_IN_MEMORY = re.compile(r"/(?:$|(?:dev|run|tmp)(?:/|$))")
"""Paths that many systems keep in memory, such as ``/dev/shm``. On a node without a disk, ``/`` is, too."""


def _mount_differences(node: NodeSubject, wanted: ExpectedMount) -> Iterator[HealthFinding]:
    """Find the differences between a mount and the required one."""
    present = node.snapshot.mount_table.get(wanted.path)
    if present is None:
        if wanted.fstype or wanted.source or wanted.options:
            evidence = f"the mount at {wanted.path} is not known"
            yield node.finding("mounts_unknown", Verdict.UNPROVEN, "watch", evidence, "hint")
        return
    options = {*present["options"].split(","), *present["super_options"].split(",")}
    if evidence := _other_mount(present, wanted) or _lacking_options(options, wanted):
        yield node.finding("mount_differs", Verdict.FAIL, "configure", evidence)
    elif "ro" in options and "ro" not in wanted.options:
        evidence = f"{wanted.path} can only be read"
        yield node.finding("mount_read_only", Verdict.FAIL, "inspect", evidence)
    elif not (wanted.fstype or wanted.source) and _is_in_memory(present["type"], wanted.path):
        evidence = (
            f"{wanted.path} is in memory ({present['type']}), not on a storage. If this is wanted, state "
            f"{{path: {wanted.path}, fstype: {present['type']}}}"
        )
        yield node.finding("mount_differs", Verdict.UNPROVEN, "configure", evidence, "hint")


def _other_mount(present: Mapping[str, str], wanted: ExpectedMount) -> str:
    """Return the type and source of a mount if they are not the required ones, or ""."""
    is_source = not wanted.source or present["source"] == wanted.source
    if is_source and present["type"].startswith(wanted.fstype):
        return ""
    required = " ".join(filter(None, (wanted.source, wanted.fstype)))
    return f"{wanted.path} is {present['source']} ({present['type']}), not {required}"


def _lacking_options(options: Collection[str], wanted: ExpectedMount) -> str:
    """Return the required options that a mount lacks, or ""."""
    lacking = [option for option in wanted.options if option not in options]
    return f"{wanted.path} is mounted without {', '.join(lacking)}" if lacking else ""


def _is_in_memory(fstype: str, path: str) -> bool:
    """Return whether a mount is in memory, at a path that is usually on a disk."""
    return fstype in _IN_MEMORY and not _USUALLY_IN_MEMORY.match(path)


def _read_only_mounts(node: NodeSubject) -> Iterator[HealthFinding]:
    """Find disk file systems that are read-only because of an error, or that were writable before.

    Required mounts and file systems whose space is examined have checks of their own.
    """
    table = node.snapshot.mount_table
    # The space of a path is also read if nothing is mounted there any more.
    checked = {mount.path for mount in expected_mounts(node.expected)} | (node.snapshot.disk.keys() & table)
    for path in (path for path, mount in table.items() if mount["type"] in DISK_TYPES):
        system, options = (table[path][name].split(",") for name in ("super_options", "options"))
        # On an error, the kernel makes the file system read-only, but not the mount.
        if path not in checked and "ro" in system and "rw" in options:
            evidence = f"{path} is read-only: the kernel found an error of its file system"
            yield node.finding("mount_read_only", Verdict.FAIL, "inspect", evidence)
            checked.add(path)
    for path in (path for path in node.snapshot.lost_mounts if path not in checked):
        # Removing a damaged file system from the list of mounts does not repair it.
        present = "is read-only" if path in table else "was made read-only and is not mounted"
        yield _lost_value(node, "mount_read_only", f"{path} {present}; it was writable before")


def _disks(node: NodeSubject) -> Iterator[HealthFinding]:
    """Find file systems that are full, read-only, or without free inodes."""
    for path, disk in node.snapshot.disk.items():
        free = disk["free_bytes"] / disk["total_bytes"]
        if disk.get("read_only"):
            yield node.finding("disk_read_only", Verdict.FAIL, "inspect", f"{path} can only be read")
        if free < node.limits.disk_free:
            evidence = f"{path} has {size(disk['free_bytes'])} left ({percent(free, sign=False)})"
            yield node.finding("disk_full", Verdict.FAIL, "configure", evidence)
        elif _inodes_free(disk) < node.limits.inodes_free:
            evidence = (
                f"{path} has {number(disk['free_inodes'])} inodes left of {number(disk['total_inodes'])}"
            )
            yield node.finding("inodes_full", Verdict.FAIL, "configure", evidence)


def _inodes_free(disk: Mapping[str, float]) -> float:
    """Return the share of free inodes, or 1 if the file system creates inodes on demand."""
    total = disk.get("total_inodes", 0)
    return disk["free_inodes"] / total if total > 0 else 1.0


def _clock(node: NodeSubject) -> Iterator[HealthFinding]:
    """Find a clock that is off, or that nothing synchronizes."""
    offset_s = node.snapshot.clock_offset_s
    if offset_s is not None and abs(offset_s) > node.limits.clock_s:
        evidence = f"its clock is {number(offset_s)} s off the controller's"
        yield node.finding("clock", Verdict.FAIL, "configure", evidence)
    if node.snapshot.clock_synchronized is False:
        yield node.finding("clock_free", Verdict.DEGRADED, "configure", "nothing synchronizes its clock")


def _units(node: NodeSubject) -> Iterator[HealthFinding]:
    """Find systemd units that failed, or that are enabled and do not run."""
    for unit in node.snapshot.failed_units or ():
        yield node.finding("unit_failed", Verdict.DEGRADED, "configure", f"{unit} has failed")
    expected_units = {name for service in node.expected.services for name in service_units(service)}
    for unit in node.snapshot.idle_units:
        if unit in expected_units:
            continue  # The service is a finding of its own.
        evidence = f"{unit} is enabled and does not run"
        yield node.finding("unit_idle", Verdict.DEGRADED, "configure", evidence)


_SERVICE_RUNS = ("active", "reloading", "refreshing")
"""States of systemd in which a service works."""
_STARTING = ("activating", "deactivating", "maintenance", "unknown")
"""States that last only a while or are not known, so that they do not prove a failure."""


def _services(node: NodeSubject) -> Iterator[HealthFinding]:
    """Find required services that do not run."""
    services = node.snapshot.services
    for service in node.expected.services if services is not None else ():
        names = service_units(service)
        states = [(services or {}).get(name, "unknown") for name in names]
        if service.endswith("?"):
            # The unit is absent, or its condition does not hold on such a node.
            states = [state for state in states if state not in ("not-found", "condition")]
        if states and not any(state in _SERVICE_RUNS for state in states):
            yield _service_finding(node, names, states)


def _slurm_controller(node: NodeSubject) -> Iterator[HealthFinding]:
    """Find a Slurm node that does not reach its controller."""
    units = {unit for service in node.expected.services for unit in service_units(service)}
    if node.snapshot.reaches_slurm is False and "slurmd.service" in units:
        evidence = "`scontrol ping` on it reaches no controller: see munge, its key, clock and network"
        yield node.finding("slurm_unreachable", Verdict.UNPROVEN, "configure", evidence, "likely")


def _slurm_name(node: NodeSubject) -> Iterator[HealthFinding]:
    """Find a slurmd that was started under another name of the node."""
    present = node.snapshot.slurm_name
    if present is not None and _short_name(present) != _short_name(node.snapshot.node):
        evidence = (
            f"its slurmd runs under the name {present}: jobs on several nodes wait for a prolog that has "
            "ended; it started while the node had another name: systemctl restart slurmd"
        )
        yield node.finding("slurm_name_differs", Verdict.UNPROVEN, "configure", evidence, "likely")


def _service_finding(node: NodeSubject, names: Sequence[str], states: Sequence[str]) -> HealthFinding:
    """Return the finding on a service. A service that starts or stops at the moment is unproven."""
    code = f"service_{code_name(names[0].removesuffix('.service'))}"
    evidence = f"{' or '.join(names)} does not run: {', '.join(dict.fromkeys(states))}"
    if any(state in _STARTING for state in states):
        return node.finding(code, Verdict.UNPROVEN, "watch", evidence, "hint")
    return node.finding(code, Verdict.FAIL, "configure", evidence)


def _time_text(last_night: bool) -> str:
    return "last night" if last_night else "in an earlier night"


def _degrees_text(value: float | None) -> str:
    """Return a temperature in °C as text."""
    return "temperature unknown" if value is None else f"{number(value)} °C"


def code_name(name: str) -> str:
    """Return a name in lower case, with ``_`` in place of other characters, for a finding code."""
    return "".join(character if character.isalnum() else "_" for character in name).lower()


def _leading_number(text: str) -> float:
    """Return the number of a link's speed or width: 32 for ``32.0 GT/s PCIe``, 0 for unreadable text."""
    return leading_number(text) or 0.0


NODE_CHECKS: tuple[Callable[[NodeSubject], Iterable[HealthFinding]], ...] = (
    _other_hung_tools,
    _unreached_driver,
    _slow_driver,
    _truncated_answers,
    _hostname,
    _serial_number,
    _gone_gpus,
    _new_gpus,
    _gpu_serials,
    _gpu_count,
    _gpu_list,
    _duplicate_gpus,
    _smi_remarks,
    _each_gpu,
    _fabric_membership,
    _xids,
    _hardware_events,
    _missing_ports,
    _port_count,
    _each_port,
    _network_card_links,
    _expected_versions,
    _unusual_versions,
    _driver_mismatches,
    _locked_memory,
    _shared_memory,
    _memory,
    _mounts,
    _read_only_mounts,
    _disks,
    _clock,
    _services,
    _slurm_controller,
    _slurm_name,
    _units,
)
"""The checks of each node. Findings with the same verdict are shown in this order, so the most
informative check is first."""
GPU_CHECKS: tuple[Callable[[GpuSubject], Iterable[HealthFinding]], ...] = (
    _unreadable_values,
    _unknown_values,
    _lacking_beside,
    _uncorrectable_sram,
    _row_remapping,
    _correctable_errors,
    _ecc_mode,
    _ecc_after_reset,
    _memory_repairs,
    _undeclared_mig,
    _memory_of_gpu,
    _recovery_action,
    _pcie_link,
    _pcie_replays,
    _throttling,
    _slowdowns,
    _first_slowdowns,
    _temperature,
    _absolute_temperature,
    _memory_temperature,
    _power_limit,
    _compute_mode,
    _spare_memory,
    _lower_settings,
    _unusual_modes,
    _nvlinks,
    _slow_nvlinks,
    _nvlink_errors,
    _nvlink_fabric,
    _leftover_memory,
)
PORT_CHECKS: tuple[Callable[[PortSubject], Iterable[HealthFinding]], ...] = (
    _port_link,
    _port_counters,
)
