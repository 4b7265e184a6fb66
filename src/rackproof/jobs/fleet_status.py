"""Build the rows of the table of all nodes, for ``rackproof status``.

The command calls :func:`read_rows` with the results folder, Slurm's answer (:func:`ask_slurm`), and the
progress of re-imaging. A row shows Slurm's state, the last night, provisioning, re-imaging, and the command
to type next. If Slurm did not answer, the row shows the node's state in Slurm at the end of its last night. A
node that had such a state, and that Slurm does not list now, is shown as not listed. ``rackproof explain``
and ``rackproof audit`` read only the names of the nodes from the rows.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Protocol

from rackproof.core.advised_commands import add_inventory, add_results
from rackproof.core.child_environment import SLURM_NEEDS, environment_of_tool
from rackproof.core.records import Record, Verdict
from rackproof.core.text import amount, sanitize
from rackproof.nodes.slurm_states import drain_owner, drain_prefix
from rackproof.store import night_store
from rackproof.store.audit_log import (
    AuditEntry,
    ProvisionRecord,
    is_drained,
    last_provisions,
    read_acts,
    read_provisions,
)
from rackproof.store.night_store import NightRecord, NodeNight
from rackproof.store.run_folder import ResultsError

_ASK = ("sinfo", "--noheader", "--Node", "--format=%N\t%T\t%u\t%E")
"""Command that prints a line for each node: its name, its state, the account that set the reason, and the
reason, such as ``n07``, ``drained``, ``root``, ``rackproof: 3 of 4 GPUs``, separated by tabs."""
_ASK_S = 60.0
"""Seconds after which sinfo counts as not answering."""
_NEXT_BY_PREFIX = {
    "rackproof-night:": "ansible-playbook validate.yml -l {node}",
    "rackproof:": "ansible-playbook provision.yml -l {node}",
    "rackproof-reimage:": "rackproof reimage status {node}",
}
"""The next command for a drained node, by :func:`drain_prefix`, because each job ends only its own drains."""
_SHOW = "scontrol show node {node}"
"""The next command for a drained node that Rackproof did not drain. The owner of the drain ends it."""


class Imaging(Protocol):
    """The progress of a node in reimage.yml."""

    @property
    def node(self) -> str:
        """Return the name of the node."""

    @property
    def text(self) -> str:
        """Return the node's progress, such as ``failed at image (2 h 05 min)``."""

    @property
    def next_command(self) -> str:
        """Return the command that continues the imaging, or "" while a playbook runs."""


_NOT_LISTED = "not listed"
"""State of a node that Slurm had in its last night, and that sinfo does not list now."""


class SlurmNow(Record):
    """The state of a node in Slurm.

    ``set_by`` is the account that set ``reason``. In the state at the end of a night, ``@`` and the time
    follow the account.
    """

    state: str
    reason: str = ""
    set_by: str = ""


class NodeRow(Record):
    """The row of one node in the table.

    ``night`` is the end of the node's last night (in UTC, without the year), and ``next`` the command to type
    next. An empty text means that a value is unknown or that there is none. ``health_only`` states whether
    this night reached the node but has no measurement of it.
    """

    node: str
    slurm: str = ""
    drained_by: str = ""
    reason: str = ""
    night: str = ""
    verdict: Verdict | None = None
    health_only: bool = False
    provisioned: str = ""
    imaging: str = ""
    next: str = ""


def ask_slurm(run: object = subprocess.run) -> tuple[dict[str, SlurmNow], str]:
    """Return the current state of each node by name, and a remark that Slurm did not answer, or "".

    ``run`` replaces :func:`subprocess.run` in tests.
    """
    try:
        process = run(  # type: ignore[operator]
            _ASK,
            capture_output=True,
            text=True,
            # A reason may be in any encoding.
            encoding="utf-8",
            errors="replace",
            timeout=_ASK_S,
            check=True,
            env=environment_of_tool(*SLURM_NEEDS),
        )
    except FileNotFoundError:
        return (
            {},
            "Slurm was not queried, because this machine has no sinfo; states are those of the last night",
        )
    except (OSError, subprocess.SubprocessError) as error:
        return {}, f"Slurm does not answer ({sanitize(error, 200)}); states are those of the last night"
    return read_sinfo(process.stdout), ""


def read_sinfo(listed: str) -> dict[str, SlurmNow]:
    """Return the state of each node in sinfo's list (:data:`_ASK`). No I/O.

    A node of several partitions is listed more than once, each time with the same state.
    """
    states = {}
    for line in listed.splitlines():
        name, state, user, reason = ([*line.split("\t", 3), "", "", ""])[:4]
        if name.strip():
            has_reason = reason.strip() not in ("", "none")
            states[sanitize(name, 200)] = SlurmNow(
                state=sanitize(state, 60).lower(),
                reason=sanitize(reason, 300) if has_reason else "",
                set_by=sanitize(user, 60) if has_reason else "",
            )
    return states


def read_rows(
    results: Path, slurm: Mapping[str, SlurmNow], imaging: Sequence[Imaging]
) -> tuple[list[NodeRow], list[str]]:
    """Return the rows of all nodes in Slurm, a night, a provisioning or an imaging, and remarks.

    The remarks state how many records and lines are damaged, why a night could not be read, and which night
    was interrupted.

    Args:
        results: The results folder.
        slurm: The result of :func:`ask_slurm`.
        imaging: The progress of nodes that are being re-imaged.

    Raises:
        ResultsError: The results folder, the claims of nights, the audit log or the folder of provisionings
            exists but cannot be read.
    """
    provisions, damaged = read_provisions(results)
    remarks = [amount(damaged, "damaged record") + " of provisioning"] if damaged else []
    acts, lost = read_acts(results)
    remarks += [amount(lost, "damaged line") + " of the audit log"] if lost else []
    folders = night_store.night_folders(results)
    nights, damaged_nights = _last_nights(folders)
    remarks += [*damaged_nights, *night_store.interrupted_nights(results)]
    imaging_by_node = {node.node: node for node in imaging}
    last = last_provisions(provisions)
    last_acts = {act.node: act for act in acts}
    last_nights = {name: (night.ended, node_night) for name, (night, node_night) in nights.items()}
    names = sorted({*slurm, *nights, *imaging_by_node, *last})
    rows = [
        build_row(
            name,
            slurm.get(name) or (_state_if_missing(nights.get(name)) if slurm else None),
            last_nights.get(name),
            last.get(name),
            imaging_by_node.get(name),
            last_acts.get(name),
        )
        for name in names
    ]
    # A node that was in no night is probably in the inventory of the newest night.
    newest = next((night.inventory for night, _ in nights.values()), ())
    steps = [
        add_inventory(
            add_results(row.next, results), nights[row.node][0].inventory if row.node in nights else newest
        )
        for row in rows
    ]
    return [row.model_copy(update={"next": step}) for row, step in zip(rows, steps, strict=True)], remarks


def _last_nights(folders: Sequence[Path]) -> tuple[dict[str, tuple[NightRecord, NodeNight]], list[str]]:
    """Return the newest night of each node, and a remark for each unreadable night.

    ``folders`` are in the order from the newest night to the oldest.
    """
    nights: dict[str, tuple[NightRecord, NodeNight]] = {}
    remarks = []
    for folder in folders:
        try:
            night = night_store.read_night(folder)
        except ResultsError as error:
            remarks.append(sanitize(error, 300))
            continue
        for node in night.nodes:
            nights.setdefault(node.node, (night, node))
    return nights, remarks


def build_row(
    name: str,
    slurm: SlurmNow | None,
    night: tuple[datetime | None, NodeNight] | None,
    provision: ProvisionRecord | None,
    imaging: Imaging | None,
    act: AuditEntry | None,
) -> NodeRow:
    """Return the row of one node. No I/O.

    Args:
        name: The name of the node.
        slurm: The current state, or None if Slurm was not queried, did not answer or does not list the node.
            The row then has the state at the end of the last night.
        night: The end of the last night that included the node, and the night's record of the node, or None.
        provision: The last provisioning that included the node, or None.
        imaging: The progress of the node's re-imaging, or None.
        act: The node's last act in the audit log, or None.
    """
    when, node_night = night if night is not None else (None, None)
    slurm = slurm or _slurm_of_night(node_night)
    reason = slurm.reason if slurm else ""
    drained = slurm is not None and is_drained(slurm.state)
    return NodeRow(
        node=name,
        slurm=slurm.state if slurm else "",
        drained_by=_drained_by(slurm, act) if slurm and drained else "",
        reason=reason,
        night=f"{when:%m-%d %H:%M}" if when else "",
        verdict=node_night.verdict if node_night is not None else None,
        health_only=node_night is not None and node_night.is_health_only,
        provisioned=_provision_text(name, provision),
        imaging=imaging.text if imaging is not None else "",
        next=_next(name, node_night, provision, imaging, slurm),
    )


def _state_if_missing(night: tuple[NightRecord, NodeNight] | None) -> SlurmNow | None:
    """Return the state of a node that Slurm's answer lacks. A state of its last night is no longer true."""
    return SlurmNow(state=_NOT_LISTED) if night and _slurm_of_night(night[1]) else None


def _slurm_of_night(node_night: NodeNight | None) -> SlurmNow | None:
    """Return a node's state in Slurm at the end of its last night, or None if that is unknown."""
    if node_night is None or node_night.slurm is None or not node_night.slurm.known:
        return None
    return SlurmNow(
        state=node_night.slurm.state.lower(), reason=node_night.slurm.reason, set_by=node_night.slurm.set_by
    )


def _drained_by(slurm: SlurmNow, act: AuditEntry | None) -> str:
    """Return the person with the playbook, the account, or the job that drained a node.

    For a drain by Rackproof, the audit log names the person. Slurm names only the account through which the
    playbook reached Slurm's controller.
    """
    if act is not None and act.act == "drain" and act.reason == slurm.reason:
        return f"{act.actor}, {act.playbook}"
    return slurm.set_by or drain_owner(slurm.reason)


def _provision_text(name: str, provision: ProvisionRecord | None) -> str:
    """Return the end and the outcome of a node's last provisioning (``11-27 18:02 3 changed``), or ""."""
    if provision is None:
        return ""
    outcome = provision.nodes[name]
    end = "failed" if outcome.failed else f"{len(outcome.changed)} changed"
    return f"{provision.ended:%m-%d %H:%M} {end}"


def _next(
    name: str,
    node_night: NodeNight | None,
    provision: ProvisionRecord | None,
    imaging: Imaging | None,
    slurm: SlurmNow | None,
) -> str:
    """Return the next command, or "" if none is needed.

    The first of these that needs a step decides: re-imaging, provisioning, the last night, and the state in
    Slurm.
    """
    if imaging is not None and imaging.next_command:
        return imaging.next_command
    if provision is not None and provision.nodes[name].failed:
        return f"ansible-playbook provision.yml -l {name}"
    if node_night is not None and node_night.verdict.gates:
        return f"rackproof explain {name}"
    return _next_by_slurm(name, slurm) if slurm is not None else ""


def _next_by_slurm(name: str, slurm: SlurmNow) -> str:
    """Return the next command for a drained or down node, or "" for another node.

    validate.yml judges a down node. For a drained node, the command depends on the job that drained it.
    """
    if is_drained(slurm.state):
        return _NEXT_BY_PREFIX.get(drain_prefix(slurm.reason), _SHOW).format(node=name)
    return f"ansible-playbook validate.yml -l {name}" if slurm.state.startswith("down") else ""
