"""Log drains and resumes by playbooks in ``results/audit.jsonl``, and store the results of provisioning.

The callback of every playbook calls :func:`acts_of` and :func:`append_acts` after each task that reports
states of Slurm nodes (results of ``rackproof_slurm_node``). Drains by other means, such as an operator's
``scontrol`` or Slurm itself, are not logged. ``rackproof audit``, ``status`` and ``nightly`` read the log, as
does the end of provision.yml.

An entry has the user, the machine, the playbook, and for a drain its reason. Entries are only added, never
changed. The results of provisioning are in ``results/provisions``, with a file for each execution of
provision.yml that got as far as the open problems of a node. ``rackproof status`` and ``explain`` read them.
"""

from __future__ import annotations

import secrets
import socket
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from rackproof.core.records import Record
from rackproof.core.text import sanitize
from rackproof.store.append_log import acting_user, append_text, read_log_of_acts
from rackproof.store.run_folder import RECORD_LIMIT_BYTES, ResultsError, read_file, write_file

LOG_NAME = "audit.jsonl"
"""File of the log, in the results folder."""
PROVISIONS = "provisions"
"""Folder of the results of provisioning, in the results folder."""
_REASON = 400
"""Longest reason of a drain in the log, in characters."""
_UNKNOWN_STATES = ("", "unknown")
"""Values of ``state_after`` in results of ``rackproof_slurm_node`` for a node whose state in Slurm is
unknown. Such a node gets no act, neither a drain nor a resume."""


class AuditEntry(Record):
    """One act on one node: a drain or a resume.

    Attributes:
        moment: The time when the callback got the result of the task, in UTC.
        node: The name of the node in Slurm.
        reason: The reason of a drain, or "" for a resume.
        actor: The user who ran the playbook. Under sudo, it is the user who called sudo.
        host: The name of the machine where the playbook ran.
        playbook: The file name of the playbook.
    """

    moment: datetime
    act: Literal["drain", "resume"]
    node: str
    reason: str = ""
    actor: str
    host: str
    playbook: str


class NodeProvision(Record):
    """The result of provisioning a node.

    Attributes:
        changed: The names of the tasks that changed something.
        attention: Texts about open problems, such as a failed task. Empty if there are none.
        failed: Whether provisioning the node failed.
    """

    changed: tuple[str, ...] = ()
    attention: tuple[str, ...] = ()
    failed: bool = False


class ProvisionRecord(Record):
    """One execution of provision.yml that got as far as the open problems of at least one node.

    Attributes:
        provision_id: The name of the record's file, without ``.json``.
        began: The time when the playbook began, in UTC.
        ended: The time when the record was written, in UTC.
        actor: The user who ran the playbook. Under sudo, it is the user who called sudo.
        host: The name of the machine where the playbook ran.
        playbook: The file name of the playbook.
        limit: The value of ``-l``, or "" without it.
        nodes: The result for each node, by inventory host.
    """

    provision_id: str
    began: datetime
    ended: datetime
    actor: str
    host: str
    playbook: str
    limit: str = ""
    nodes: dict[str, NodeProvision]


def acts_of(nodes: object) -> list[tuple[str, Literal["drain", "resume"], str]]:
    """Return an act for each node that a task on Slurm nodes drained or resumed.

    An act is a tuple of the node's name, the kind of act, and the reason, which is "" for a resume. The
    function does no I/O.

    Args:
        nodes: The states by node, as ``rackproof_slurm_node`` returns them: ``state_before``,
            ``state_after`` and ``reason``.
    """
    acts: list[tuple[str, Literal["drain", "resume"], str]] = []
    for name, state in nodes.items() if isinstance(nodes, Mapping) else ():
        if not isinstance(state, Mapping):
            continue
        state_after = state.get("state_after")
        if not isinstance(state_after, str) or state_after in _UNKNOWN_STATES:
            continue
        before, after = is_drained(state.get("state_before")), is_drained(state_after)
        if before != after:
            reason = sanitize(state.get("reason") or "", _REASON) if after else ""
            acts.append((sanitize(name, 200), "drain" if after else "resume", reason))
    return acts


def is_drained(state: object) -> bool:
    """Return whether a state in Slurm means that the node is drained or draining, without I/O."""
    return isinstance(state, str) and any(word in state.upper() for word in ("DRAIN", "DRNG"))


def append_acts(
    results: Path, acts: Sequence[tuple[str, Literal["drain", "resume"], str]], playbook: str
) -> None:
    """Add acts of the current user to the log. Without acts, nothing is written.

    Args:
        results: The results folder.
        acts: The acts, as :func:`acts_of` returns them.
        playbook: The file name of the playbook that made them.

    Raises:
        ResultsError: The log cannot be written.
    """
    if not acts:
        return
    who, host, now = acting_user(), socket.gethostname(), datetime.now(UTC)
    lines = [
        AuditEntry(moment=now, act=act, node=node, reason=reason, actor=who, host=host, playbook=playbook)
        for node, act, reason in acts
    ]
    text = "".join(f"{line.model_dump_json()}\n" for line in lines)
    try:
        results.mkdir(parents=True, exist_ok=True)
        append_text(results / LOG_NAME, text)
    except OSError as error:
        raise ResultsError(f"{results / LOG_NAME} cannot be written: {error.strerror}") from error


def read_acts(results: Path) -> tuple[list[AuditEntry], int]:
    """Return the acts, oldest first, and the number of damaged lines in the log of a results folder.

    Raises:
        ResultsError: The log exists but cannot be read.
    """
    return read_log_of_acts(results / LOG_NAME, AuditEntry, "the list of acts")


def write_provision(
    results: Path, began: datetime, nodes: Mapping[str, NodeProvision], *, playbook: str, limit: str
) -> Path:
    """Store the outcome of one provisioning. Return the path of the file.

    Args:
        results: The results folder.
        began: The time when the playbook began, in UTC.
        nodes: The outcome of each node, by inventory host.
        playbook: The file name of the playbook.
        limit: The value of ``-l``, or "" without it.

    Raises:
        ResultsError: The outcome cannot be written.
    """
    provision_id = f"provision-{began:%Y%m%dT%H%M%SZ}-{secrets.token_hex(3)}"
    record = ProvisionRecord(
        provision_id=provision_id,
        began=began,
        ended=datetime.now(UTC),
        actor=acting_user(),
        host=socket.gethostname(),
        playbook=playbook,
        limit=sanitize(limit, 400),
        nodes=dict(nodes),
    )
    path = results / PROVISIONS / f"{provision_id}.json"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_file(path, record.model_dump_json(indent=1).encode())
    except OSError as error:
        raise ResultsError(f"{path} cannot be written: {error.strerror}") from error
    return path


def read_provisions(results: Path) -> tuple[list[ProvisionRecord], int]:
    """Return the provisionings of a results folder, oldest first, and the number of damaged records.

    Raises:
        ResultsError: The folder of the provisionings exists but cannot be listed.
    """
    provisions, damaged = [], 0
    folder = results / PROVISIONS
    try:
        paths = sorted(path for path in folder.iterdir() if path.match("provision-*.json"))
    except FileNotFoundError:
        return [], 0
    except OSError as error:
        raise ResultsError(f"cannot list the provisionings in {folder}: {error.strerror}") from None
    for path in paths:
        try:
            provisions.append(ProvisionRecord.model_validate_json(read_file(path, RECORD_LIMIT_BYTES)))
        except (OSError, ValidationError):
            damaged += 1
    return provisions, damaged


def last_provisions(provisions: Iterable[ProvisionRecord]) -> dict[str, ProvisionRecord]:
    """Return the last provisioning of each node.

    The provisionings are given oldest first. The function does no I/O.
    """
    return {node: provision for provision in provisions for node in provision.nodes}


def provision_of(
    changed: Mapping[str, Sequence[str]], attention: Mapping[str, Sequence[str]], failed: Collection[str]
) -> dict[str, NodeProvision]:
    """Return the outcome of a provisioning by node, with texts made safe to show.

    The function does no I/O.

    Args:
        changed: The tasks that changed something, by node.
        attention: The open problems by node. A node in neither mapping is left out.
        failed: The nodes that failed.
    """
    return {
        sanitize(node, 200): NodeProvision(
            changed=tuple(sanitize(task, 200) for task in changed.get(node, ())),
            attention=tuple(sanitize(remark, 600) for remark in attention.get(node, ())),
            failed=node in failed,
        )
        for node in sorted({*changed, *attention})
    }
