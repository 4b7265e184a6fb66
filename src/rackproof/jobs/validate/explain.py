"""Explain a node's state to an operator.

``rackproof explain NODE`` prints the :class:`Explanation`, and the pages of a night show it. The explanation
lists the findings, the actions so far, and the next commands, all from the nights' records. The node is not
contacted. :func:`code_text` describes a finding's code for ``rackproof explain CODE``.
:mod:`rackproof.jobs.validate.rma` makes the packet for a vendor.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from rackproof.core.advised_commands import add_inventory, add_results
from rackproof.core.errors import RackproofError
from rackproof.core.finding_codes import JOBS, FindingCode
from rackproof.core.records import Record, Verdict
from rackproof.core.text import amount, moment, percent, sanitize, shell_word, size
from rackproof.jobs.validate.fleet.drain_policy import DRAINING_OFF, NO_SLURM
from rackproof.jobs.validate.fleet.healing import SOAK, lacking_for
from rackproof.jobs.validate.inventory_advice import inventory_advice
from rackproof.jobs.validate.messages import ACT_NAMES, metrics_without_reference
from rackproof.logs.kernel_events import RECOVERY_ACTION_CHANGED, requested_action, verdict_of
from rackproof.nodes.health_checks import LIMIT_BY_CODE
from rackproof.nodes.health_subjects import HealthFinding, Limits
from rackproof.nodes.slurm_states import drain_owner, takes_jobs
from rackproof.store import night_store
from rackproof.store.night_store import NightRecord, NodeNight, SlurmState

_NIGHTS_SHOWN = 10
"""Largest number of nights that an explanation lists."""
_INSPECTED: Mapping[str, str] = {
    r"foreign_parts|gpu_serial_changed|gpu_twice": "serial numbers, and which machine answers to this name",
    r"more_findings|not_checked|gpu_unlisted": "its snapshot, and the tools that answered",
    r"memory|memory_error": "memory modules, their slots and the firmware's settings",
    r"machine_check": "processors, memory modules, and the event log of the BMC",
    r"inforom_corrupted": "infoROM: have it rewritten, or return the GPU",
    r"port_.*|ports_missing|network_card_error": "network card, cable, transceiver, switch",
    r"link_.*|pcie_.*": "seat, slot, riser",
    r"temperature|memory_temperature|too_hot|throttled|slowed_down": "cooling, power supply",
    r"disk_read_only|mount_read_only|storage_error": "disk, file system, storage server",
    r"slurm_drained_itself": "the reason in Slurm",
    r"xid_.*": "seat, power, cooling",
}
"""The parts to look at, by a pattern of the code of a finding that requires an inspection. The first pattern
that fits the whole code counts."""
_UUID = re.compile(r"GPU-[0-9A-Fa-f-]{8,60}")
"""Pattern of a GPU's UUID, the only name of a part that is put into a command to type."""


class ExplainError(RackproofError):
    """A node that is in no readable night. The message gives the searched folder and the remedy."""


class Explanation(Record):
    """The explanation of a node as lines.

    Attributes:
        night_id: The newest night that includes the node, to which ``verdict`` and ``when`` belong.
        service: Lines about the node's state in Slurm, and the night's plan for the node.
        wrong: The node's findings, and the measurements that do not pass.
        tried: How often the present failures occurred, and the earlier actions.
        next: The commands to type next, or advice where no command helps.
        nights: The time, verdict and first reason of each of the last nights, newest first.
    """

    node: str
    night_id: str
    verdict: Verdict
    when: str
    service: tuple[str, ...]
    wrong: tuple[str, ...]
    tried: tuple[str, ...]
    next: tuple[str, ...]
    nights: tuple[tuple[str, str, str], ...]
    damaged: tuple[str, ...] = ()
    """Nights that are unreadable or were interrupted, which may include a worse state of the node."""


def explain_node(results: Path, node: str) -> Explanation:
    """Explain a node from the nights' records.

    Args:
        results: The results folder.
        node: The name in the inventory.

    Raises:
        ExplainError: No readable night includes the node.
        ResultsError: The results cannot be listed.
    """
    damaged: list[str] = []
    nights = list(night_store.nights_of_node(night_store.night_folders(results), node, damaged))
    damaged += night_store.interrupted_nights(results, [node])
    if not nights:
        unread = f" that can be read ({'; '.join(damaged[:3])})" if damaged else ""
        raise ExplainError(
            f"no night in {results}{unread} covers {sanitize(node, 100)}: name the folder of the nights' "
            "results with --results, check the name against the inventory, or run ansible-playbook "
            f"validate.yml -l {sanitize(node, 100)}"
        )
    explanation = build_explanation(nights)
    inventory = nights[0][0].inventory
    steps = tuple(add_inventory(add_results(step, results), inventory) for step in explanation.next)
    return explanation.model_copy(update={"damaged": tuple(damaged), "next": steps})


def build_explanation(nights: Sequence[tuple[NightRecord, NodeNight]]) -> Explanation:
    """Explain a node from the nights that include it, newest first. There must be at least one. No I/O.

    The commands name no results folder and no inventory. The caller adds them.
    """
    night, node_night = nights[0]
    return Explanation(
        node=node_night.node,
        night_id=night.night_id,
        verdict=node_night.verdict,
        when=moment(night.ended),
        service=tuple(_service_lines(night, node_night)),
        wrong=tuple(_fault_lines(node_night)),
        tried=tuple(_history_lines(nights)),
        next=tuple(_next_commands(node_night)),
        nights=tuple(
            (
                moment(past_night.ended),
                past_node_night.verdict.value,
                sanitize((past_node_night.reason_texts() or ("",))[0], 200),
            )
            for past_night, past_node_night in nights[:_NIGHTS_SHOWN]
        ),
    )


def explanation_text(explanation: Explanation) -> str:
    """Return an explanation for a terminal."""
    lines = [
        f"{explanation.node}: {explanation.verdict.value} in the night {explanation.night_id} "
        f"({explanation.when})"
    ]
    for title, section in (
        ("In service?", explanation.service),
        ("Findings", explanation.wrong or ("nothing was found",)),
        ("Actions so far", explanation.tried),
        ("Next", explanation.next),
        ("Not read", explanation.damaged[:_NIGHTS_SHOWN]),
    ):
        if section:
            lines += ["", title, *(f"  {sanitize(line, 600)}" for line in section)]
    lines += [
        "",
        "Nights",
        *(f"  {when}  {verdict:9} {text}".rstrip() for when, verdict, text in explanation.nights),
    ]
    return "\n".join(lines) + "\n"


def code_text(code: str, entry: FindingCode) -> str:
    """Return the meaning of a finding's code for a terminal.

    Args:
        code: The code as the operator gave it, for example ``xid_79``.
        entry: Its entry in the registry, perhaps the entry of a family, such as ``xid_*``.
    """
    lines = [f"{code}: {entry.meaning}", ""]
    asks = f"{', '.join(entry.actions)} ({', '.join(entry.confidences)})" if entry.actions else ""
    verdicts = ", ".join(entry.verdicts)
    if number := re.fullmatch(r"xid_([0-9]{1,6})", code):
        action = requested_action(int(number[1]), "")
        of_number = "no documented action for this XID" if action == "unknown" else action
        asks = f"{of_number}, unless the line itself or earlier reboots change that"
        verdict = verdict_of(int(number[1]), "")
        drains = "drains" if verdict is Verdict.FAIL else "does not drain"
        verdicts = f"{verdict}: by itself it {drains} a node"
        if int(number[1]) == RECOVERY_ACTION_CHANGED:
            verdicts = "that of the recovery action that the line itself states, such as fail for a reset"
            asks = "the recovery action that the line itself states, unless earlier reboots change that"
    for title, text in (
        ("Verdict", verdicts),
        ("Action", asks),
        ("Read from", entry.reads),
        ("Limit", _limit_text(code)),
        ("Given by", "; ".join(JOBS[job] for job in entry.jobs)),
        ("All codes", "docs/using/codes.md"),
        ("Drained", "docs/using/drained.md"),
    ):
        if text:
            lines.append(f"{title + ':':<11}{sanitize(text, 600)}")
    return "\n".join(lines) + "\n"


def _limit_text(code: str) -> str:
    """Return the limit of the inventory that findings of a code compare with, and where to set it, or ""."""
    if code not in LIMIT_BY_CODE:
        return ""
    name = LIMIT_BY_CODE[code]
    value = getattr(Limits, name)
    readable = f", {size(value)}" if name.endswith("_bytes") else ""
    return (
        f"{name} of validate_limits (default {value:.15g}{readable}), in group_vars/all.yml for all nodes, "
        "or in the group_vars of a SKU in place of those. Other keys keep their defaults"
    )


def _service_lines(night: NightRecord, node_night: NodeNight) -> list[str]:
    """Return lines about the node's state in Slurm, and the night's plan for it."""
    state = node_night.slurm
    # Without Slurm, the text `why` already says so.
    lines = [] if node_night.why == NO_SLURM else _slurm_lines(state)
    if node_night.plan == "drain" and "drain" not in night.acts:
        lines.append(f"not drained: {DRAINING_OFF}; it would be drained for {node_night.why}")
    elif node_night.plan:
        allowed = node_night.plan in night.acts
        hint = "" if allowed else " (not allowed, a dry run)"
        lines.append(f"{ACT_NAMES[node_night.plan]}{hint}: {node_night.why}")
    elif node_night.why:
        lines.append(node_night.why)
    if node_night.did:
        lines.append(f"done: {node_night.did}")
    hold = node_night.hold
    is_held = state is None or state.drained_by == "ours"
    if is_held and hold and hold.since != night.night_id:
        lines.append(f"drained since the night {hold.since}, for {', '.join(hold.codes) or 'lost reasons'}")
    return lines


def _slurm_lines(state: SlurmState | None) -> list[str]:
    """Return lines about a node's state in Slurm."""
    if state is None:
        return ["Slurm was not queried, or did not answer."]
    if not state.known:
        return ["The node is not configured in Slurm."]
    drained_by_text = {
        "ours": "drained by Rackproof's night",
        "other": f"taken out of service by {drain_owner(state.reason)}",
    }.get(state.drained_by)
    if drained_by_text is None:
        return [f"Slurm's state was {state.state}."]
    reason = f": {state.reason}" if state.reason else ""
    return [
        f"Slurm's state was {state.state}, {drained_by_text}{reason}.",
        "docs/using/drained.md explains the reason, and how the node is resumed.",
    ]


def _fault_lines(node_night: NodeNight) -> list[str]:
    """Return a line for each finding and reason of the night."""
    lines = [node_night.unreached] if node_night.unreached else []
    for finding in node_night.findings:
        wide = "; on so many nodes that the tool or the fabric is suspected" if finding.fleetwide else ""
        lines.append(
            f"{finding.verdict.value}: {finding.code}: {night_store.part_prefix(finding)}{finding.evidence} "
            f"[{finding.action}, {finding.confidence}]{wide}"
        )
    for reason in node_night.reasons:
        off = f", {percent(reason.deviation)} off" if reason.deviation is not None else ""
        lines.append(
            f"{reason.verdict.value}: {reason.check} {reason.metric} on {reason.part or node_night.node}: "
            f"{reason.text}{off}"
        )
    return lines


def _history_lines(nights: Sequence[tuple[NightRecord, NodeNight]]) -> list[str]:
    """Return lines about how often the node's failures occurred, and about earlier actions."""
    _, node_night = nights[0]
    lines = []
    for code in node_night.codes() or (node_night.hold.codes if node_night.hold else ()):
        night_ids = [night.night_id for night, past_node_night in nights if code in past_node_night.codes()]
        if night_ids:
            count = f"in {len(night_ids)} of the last {len(nights)} nights, first {night_ids[-1]}"
            lines.append(f"{code}: failed {count if len(nights) > 1 else 'in the last night'}")
    lines += [
        f"{moment(night.ended)}: {past_node_night.did}"
        for night, past_node_night in nights[:_NIGHTS_SHOWN]
        if past_node_night.did
    ]
    if node_night.hold and node_night.hold.passes:
        lines.append(f"The failed checks have passed {amount(node_night.hold.passes, 'time')} since.")
    return lines


def _next_commands(node_night: NodeNight) -> list[str]:
    """Return the next commands to type, or advice where no command helps."""
    if node_night.unreached:
        return [f"ssh {node_night.node} true; then: ansible-playbook validate.yml -l {node_night.node}"]
    retry_command = f"ansible-playbook validate.yml -l {node_night.node}"
    steps = [_out_of_service_step(node_night), *_finding_steps(node_night), _reference_step(node_night)]
    faults = (Verdict.FAIL, Verdict.DEGRADED)
    if fault := next((reason for reason in node_night.reasons if reason.verdict in faults), None):
        steps.append(
            f"ansible-playbook bench.yml -l {node_night.node}  # measures {fault.metric or 'it'} again"
        )
    if wide := sorted({finding.code for finding in node_night.findings if _is_of_fleet(finding, node_night)}):
        steps.append(
            "check what these nodes share first (tool, fabric, limit or expectation of the inventory): "
            f"{', '.join(wide)}"
        )
    # The soak is a night, too. It replaces the night without a load, which would not count for heat.
    steps.append(_soak_step(node_night) or (retry_command if any(steps) else ""))
    return list(dict.fromkeys(filter(None, steps)))


def _reference_step(node_night: NodeNight) -> str:
    """Return how the speeds of a node without a reference get one, or "" if each has one."""
    metrics = metrics_without_reference(node_night)
    if not metrics:
        return ""
    return (
        f"rackproof history --node {node_night.node}  # no reference yet: {', '.join(metrics)}; look at the "
        "report of the run that measured this, then type `rackproof accept RUN` with its id"
    )


def _finding_steps(node_night: NodeNight) -> list[str]:
    """Return the commands and advice for a node's findings, each with the codes of the findings.

    For a fleet-wide finding, there is only advice about the inventory.
    """
    codes: dict[tuple[str, str], list[str]] = {}
    for finding in node_night.findings:
        command = inventory_advice(node_night.node, node_night.sku, finding), ""
        if not command[0] and not finding.fleetwide:
            command = _finding_command(node_night, finding)
        if command[0]:
            codes.setdefault(command, []).append(finding.code)
    return [
        f"{command}  # {', '.join(dict.fromkeys(of_command))}{remark}"
        for (command, remark), of_command in codes.items()
    ]


def _is_of_fleet(finding: HealthFinding, node_night: NodeNight) -> bool:
    """Return whether the cause of a finding is to be looked for in what the nodes share.

    A value of the inventory is often wrong for many nodes, which is no fault of a tool or the fabric.
    """
    return finding.fleetwide and not inventory_advice(node_night.node, node_night.sku, finding)


def _out_of_service_step(node_night: NodeNight) -> str:
    """Return how to take a node with a certain fault out of service by hand, or "" if there is no need.

    There is no need if the node takes no jobs already. Without Slurm, return the advice for that case. If the
    node's state in Slurm is unknown, return "".
    """
    if node_night.why == NO_SLURM:
        return NO_SLURM
    state, codes = node_night.slurm, node_night.codes()
    if node_night.verdict is not Verdict.FAIL or not codes or state is None:
        return ""
    if not state.known or state.drained_by != "none" or not takes_jobs(state.state):
        return ""
    reason = shell_word(sanitize("; ".join(codes), 200))
    return (
        f"scontrol update nodename={node_night.node} state=drain reason={reason}  "
        "# no new jobs; resume it by hand"
    )


def _soak_step(node_night: NodeNight) -> str:
    """Return the command that loads the GPUs of a node drained for heat, or "".

    It is "" if no load is missing, or if another cause needs the operator anyway.
    """
    codes = node_night.hold.codes if node_night.hold else ()
    lacking = [lacking_for(code, node_night.read_again) for code in codes]
    # A cause that no night clears keeps the node drained, whatever else passes.
    by_hand = None in lacking or any(code.startswith("pair:") for code in codes)
    if by_hand or not any(SOAK in (names or ()) for names in lacking):
        return ""
    return (
        f"ansible-playbook validate.yml -l {node_night.node} -e validate_resume=true "
        '-e validate_probe_gpu_minutes=240 -e \'{"validate_probes":["soak"]}\'  '
        "# heat shows only under load: it has to pass twice, and needs a reference of the SKU for soak, or "
        "-e bench_require_references=false"
    )


_NO_ROLE: Mapping[str, str] = {
    "compute_prohibited": "ssh {node} {sudo}nvidia-smi -c DEFAULT",
    "disk_full": "ssh {node} df -h; then free space, or change the limit in validate_limits",
    "inodes_full": "ssh {node} df -i; then remove small files",
    "ecc_off": "ssh {node} {sudo}nvidia-smi -e 1; then reboot",
    "mig_on": "ssh {node} {sudo}nvidia-smi -mig 0; then reboot, or, if MIG is intended, set `mig: true` in "
    "validate_expect",
    "mount_differs": "ssh {node} findmnt; then mount it as required, or change `mounts` in validate_expect",
    "mount_missing": "ssh {node} findmnt; then mount it, or change `mounts` in validate_expect",
    "power_limit": "ssh {node} nvidia-smi -q -d POWER; then set it with nvidia-smi -pl, or change "
    "`power_limit_w` in validate_expect",
    "shm": "ssh {node} df -h /dev/shm; then enlarge it (`size=` in /etc/fstab), or change the limit in "
    "validate_limits",
    "unit_failed": "ssh {node} systemctl --failed; then repair the unit, or disable it",
}
"""Steps for findings with the action ``configure`` that no role of provision.yml cures, by code."""


def _finding_command(node_night: NodeNight, finding: HealthFinding) -> tuple[str, str]:
    """Return the command or advice for a finding's action, or "" for actions that need none.

    The second text is the end of the remark after the command. The remark begins with the codes of the
    findings.
    """
    node = node_night.node
    sudo = "sudo " if node_night.asked_as_root is False else ""
    # An operator enters the command into a shell, and the name of the part comes from a node.
    gpu = finding.name if _UUID.fullmatch(finding.name) else ""
    place = f"{finding.name or node} {finding.place}".strip()
    if step := _NO_ROLE.get(finding.code):
        return step.format(node=node, sudo=sudo), ""
    commands = {
        "configure": (f"ansible-playbook provision.yml -l {node}", ""),
        "reset": (f"ssh {node} {sudo}nvidia-smi --gpu-reset -i {gpu or 'GPU'}", "; no job may run there"),
        # With nextstate=down, Slurm gives the node no job after the reboot, whatever its state was.
        "reboot": (f"scontrol reboot ASAP nextstate=down {node}", ""),
        "isolate": (
            f"scontrol update NodeName={node} State=DRAIN Reason={finding.code}",
            "; then power, cooling",
        ),
        "inspect": (f"look at {place}: {inspected_parts(finding.code)}", ""),
        "rma": (f"rackproof explain {node} --rma {node}-rma.md", ": the packet for the vendor"),
    }
    return commands.get(finding.action, ("", ""))


def inspected_parts(code: str) -> str:
    """Return the parts to look at for a finding that requires an inspection."""
    fitting = (parts for pattern, parts in _INSPECTED.items() if re.fullmatch(pattern, code))
    return next(fitting, "cable, seat, cooling")
