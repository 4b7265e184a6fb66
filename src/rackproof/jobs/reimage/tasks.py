"""Run the tasks of reimage.yml, and read the progress of nodes for ``rackproof reimage status``.

The action plugins ``rackproof_reimage_*`` call :func:`begin_run` and :func:`end_run` once per run, and
:func:`write_step` at the start and end of each step of a node. :func:`open_machine` opens a BMC by its
protocol. ``run_files`` stores the files of a run, and ``hardware`` compares the hardware of its nodes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from rackproof import __version__
from rackproof.core.hostlist import compress_hostlist
from rackproof.core.records import Finding, Node, Record, Run, Source, Verdict, worst
from rackproof.core.text import amount, duration, sanitize, stop_rule
from rackproof.jobs.reimage import bmc, hardware, ipmi, lifecycle, redfish, run_files
from rackproof.jobs.reimage.bmc import Access, BmcError, Machine, MachineIdentity, Settings
from rackproof.jobs.reimage.lifecycle import Entry, Event, NodeProgress, Step
from rackproof.jobs.reimage.run_files import (
    BENCHMARK,
    CLAIMS,
    RUN_FILE,
    JournalError,
    ReimageContext,
    ReimageError,
    RunRequest,
    journal_path,
    newest_journals,
    next_run_id,
    read_run_file,
)
from rackproof.nodes.slurm_states import IN_SERVICE, read_partitions
from rackproof.store import host_claims
from rackproof.store.history.client import History
from rackproof.store.run_folder import ResultsError, write_file, write_run
from rackproof.store.sealed_json import seal_json

METHODS = ("image", "autoinstall", "rack")
"""Values of ``reimage_method``: write an image, run Ubuntu's installer, or recreate a test rack's node."""
UNKNOWN = "unknown"
"""Name of a partition for all nodes that Slurm does not list. Its limit holds for them together."""
MAX_REASONS = 50
"""Largest number of reasons in a run's record. The summary at the end shows all."""


class NodeStatus(Record):
    """The progress of a node according to its newest journal, also as ``text``, and the command to type."""

    node: str
    run_id: str
    progress: NodeProgress
    text: str
    next_command: str = ""


class RunSummary(Record):
    """The end of a run. ``message`` has a line for each node, and one if failures stopped the run.

    ``history`` is the reason why the history did not store the run, or "".
    """

    verdict: Verdict
    gates: bool
    message: tuple[str, ...]
    history: str = ""


@dataclass(frozen=True)
class _Takeover:
    """The steps of a node that a new run need not repeat, and the run that completed them.

    ``attempt`` is the number of the new attempt. ``earlier`` is the folder of that run if it has the record
    of the node's hardware from before the imaging, or None.
    """

    run_id: str = ""
    steps: tuple[Step, ...] = ()
    attempt: int = 1
    earlier: Path | None = None


@dataclass(frozen=True)
class _NodePlans:
    """The plan of a re-imaging: the steps and adopted results of each node, or why it is left out."""

    todo: dict[str, tuple[Step, ...]] = field(default_factory=dict)
    takeovers: dict[str, _Takeover] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)


def begin_run(
    results: Path,
    nodes: Mapping[str, Sequence[str]],
    *,
    method: str,
    owner_pid: int | None,
    at_once: int = 8,
    per_rack: int = 4,
    per_partition: int = 4,
    canary: int = 1,
    max_failures: int = 0,
    members: str = "",
    remark: str = "",
    limits_s: Mapping[str, float] | None = None,
    images: Mapping[str, str] | None = None,
    again: bool = False,
) -> ReimageContext:
    """Claim the nodes, read their progress, and plan their steps and the waves.

    Args:
        results: The results folder.
        nodes: Each node with its racks.
        method: The imaging method, one of :data:`METHODS`.
        owner_pid: The process whose lifetime limits the claims. None is a dry run, which writes nothing.
        at_once: The largest number of nodes that are out of service at a time.
        per_rack: The largest number of nodes of one rack.
        per_partition: The largest number of nodes of one Slurm partition.
        canary: The largest number of nodes in the first wave, unless Slurm shows all nodes out of service. 0
            means no such wave.
        max_failures: The number of nodes that may fail. If more fail, no further wave starts.
        members: The output of ``sinfo --noheader --Node --format=%N|%R|%E``. Nodes that it does not list
            count as one partition.
        remark: The reason why the partitions are unknown, to be shown in the plan.
        limits_s: The time limits of steps in seconds that differ from the defaults.
        images: The digest of the image that each node should get, if there is one. A node that got
            another image is imaged again.
        again: Whether to start from the first step, and ignore the journals.

    Raises:
        ReimageError: Another playbook works on one of the nodes, the options or a node's name are unusable,
            the results cannot be read, or a file cannot be written.
    """
    _check_method(method)
    images = images or {}
    try:
        # Check the names before anything is claimed or written, so that an invalid file name does not
        # end the run later.
        for name in nodes:
            journal_path(results, name)
        limits = lifecycle.step_limits(limits_s or {})
        if owner_pid is not None:
            _claim_nodes(results, nodes, owner_pid)
        # Read the journals after the claim. A playbook that just ended wrote its last entries before it
        # released its claim.
        plans = _plan_nodes(results, nodes, method, images, again)
        if max_failures < 0:
            raise ReimageError(f"reimage_max_failures: at least 0, not {max_failures}")
        groups = {"per_rack": per_rack, "per_partition": per_partition}
        waves = _plan_waves(nodes, plans.todo, members, at_once, groups, canary)
        run_id = next_run_id(results)
        run = ReimageContext(
            run_id=run_id,
            folder=str(results / run_id),
            results=str(results),
            waves=tuple(tuple(wave) for wave in waves),
            todo=plans.todo,
            refused=plans.refused,
            message=(*_plan_lines(waves, plans, max_failures), *([remark] if remark else [])),
        )
        if owner_pid is not None:
            request = RunRequest(
                run_id=run_id,
                started=datetime.now(UTC),
                method=method,
                nodes=tuple(nodes),
                waves=run.waves,
                limits_s={step.value: seconds for step, seconds in limits.items()},
                images=dict(images),
            )
            # Write the request last. A run without a request started nothing, and older journals count.
            _write_adopted(Path(run.folder), plans)
            write_file(Path(run.folder) / RUN_FILE, seal_json(request.model_dump_json(indent=1) + "\n"))
    except (ResultsError, host_claims.HostClaimedError, JournalError, ValueError) as error:
        raise ReimageError(str(error)) from error
    return run


def _check_method(method: str) -> None:
    """Refuse an unknown imaging method."""
    if method not in METHODS:
        raise ReimageError(
            f"reimage_method: {sanitize(method, 60)!r} is unknown; there are {', '.join(METHODS)} "
            "(rack recreates the test rack's nodes): see docs/using/reimage.md"
        )


def _claim_nodes(results: Path, nodes: Iterable[str], owner_pid: int) -> None:
    """Claim the nodes for this playbook, once for ``rackproof reimage status`` and once for all jobs."""
    # Make two claims. The first shows `rackproof reimage status` which nodes a running playbook works
    # on. The second excludes other jobs from them.
    host_claims.claim_hosts(results / CLAIMS, nodes, owner_pid, "re-imaged")
    host_claims.claim_hosts(results, nodes, owner_pid, "re-imaged")


def _plan_nodes(
    results: Path, nodes: Iterable[str], method: str, images: Mapping[str, str], again: bool
) -> _NodePlans:
    """Return the steps of each node, which continue from its newest journal."""
    plans = _NodePlans()
    newest = {} if again else newest_journals(results, nodes)
    for name in nodes:
        plans.todo[name], plans.takeovers[name] = lifecycle.STEPS, _Takeover()
        if name not in newest:
            continue
        try:
            # No other run works on the nodes, because this run claimed them.
            progress = lifecycle.replay(run_files.read_journal(newest[name]), alive=False)
            if progress.state == "returned":
                continue
            earlier = newest[name].parent.parent
            request = read_run_file(earlier)
            if Step.RECORD in progress.done:
                hardware.check_copied_files(earlier, name)
        except (JournalError, ReimageError) as error:
            # The node's progress is unknown, so an operator must decide.
            plans.refused[name] = str(error)
            del plans.todo[name], plans.takeovers[name]
            continue
        # Another installation method also means another image.
        same_image = (request.method, request.images.get(name, "")) == (method, images.get(name, ""))
        plans.todo[name], plans.takeovers[name] = _continue_node(earlier, progress, same_image)
    return plans


def _continue_node(
    earlier: Path, progress: NodeProgress, same_image: bool
) -> tuple[tuple[Step, ...], _Takeover]:
    """Return the steps that an earlier run did not finish on a node, and that run's results to adopt."""
    counted = progress if same_image else NodeProgress(state="interrupted", attempt=progress.attempt)
    steps = lifecycle.remaining_steps(counted)
    takeover = _Takeover(
        run_id=earlier.name,
        steps=tuple(step for step in counted.done if step not in steps),
        attempt=progress.attempt + 1,
        # Take the record even for another image, because only the interrupted run has the earlier hardware.
        earlier=earlier if Step.RECORD in progress.done else None,
    )
    return steps, takeover


def _plan_waves(
    nodes: Mapping[str, Sequence[str]],
    todo: Iterable[str],
    members: str,
    at_once: int,
    per_group: Mapping[str, int],
    canary: int,
) -> list[list[str]]:
    """Return the nodes of each wave, so that this run takes few nodes of a rack and partition at a time.

    Other nodes that are out of service do not count. Nodes that an earlier run left drained come first, so
    that a bad image is tried on them again, and not on a node in service.
    """
    partitions = read_partitions(members)
    reasons = {name: reason for listed in partitions.values() for name, reason in listed.items()}
    # A node that Slurm does not list may serve users in another way.
    serves = any(reasons.get(name, IN_SERVICE) == IN_SERVICE for name in todo)
    first = {name for name in todo if reasons.get(name, "").startswith(lifecycle.PREFIX)}
    groups = {
        name: {
            "per_rack": list(nodes[name]),
            "per_partition": [key for key, listed in partitions.items() if name in listed] or [UNKNOWN],
        }
        for name in todo
    }
    return lifecycle.plan_waves(groups, at_once, per_group, canary if serves else 0, first)


def _write_adopted(folder: Path, plans: _NodePlans) -> None:
    """Create the journal of each node, with the results adopted from an earlier run."""
    for name in plans.todo:
        takeover = plans.takeovers[name]
        if takeover.earlier is not None:
            hardware.copy_from_run(takeover.earlier, folder, name)
        entry = Entry(
            at=datetime.now(UTC),
            event="adopted",
            attempt=takeover.attempt,
            steps=takeover.steps,
            run_id=takeover.run_id,
            journal=run_files.journal_name(journal_path(folder, name)),
        )
        run_files.append_entry(journal_path(folder, name), entry, reserve=True)


def _plan_lines(waves: Sequence[Sequence[str]], plans: _NodePlans, max_failures: int) -> tuple[str, ...]:
    """Describe the plan for the operator."""
    largest = max((len(wave) for wave in waves), default=0)
    lines = [
        f"{amount(len(plans.todo), 'node')} in {amount(len(waves), 'wave')}, at most {largest} at a time"
    ]
    for number, wave in enumerate(waves, 1):
        by_steps: dict[tuple[Step, ...], list[str]] = {}
        for name in wave:
            by_steps.setdefault(plans.todo[name], []).append(name)
        for steps, names in by_steps.items():
            lines.append(f"wave {number}: {compress_hostlist(names)}: {', '.join(steps)}")
    if len(waves) > 1:
        lines.append(stop_rule("reimage", max_failures))
    lines += [f"{name} is left out: {sanitize(reason, 600)}" for name, reason in plans.refused.items()]
    return tuple(lines)


def write_step(
    run: ReimageContext,
    node: str,
    event: Event,
    step: Step | None = None,
    *,
    reason: str = "",
    remarks: Sequence[str] = (),
) -> NodeProgress:
    """Record that a step starts, is done, was skipped, or that the node failed.

    Return the node's progress.

    Args:
        run: The context of the run.
        node: The name of the node.
        event: The event. ``failed`` needs no step, because it applies to the current one.
        step: The step of the event.
        reason: The reason why it failed or was skipped.
        remarks: Texts about the node that are no reason to fail.

    Raises:
        ReimageError: The event cannot follow the node's state, or the journal cannot be read or written. Then
            the step must not start.
    """
    folder = Path(run.folder)
    try:
        path = journal_path(folder, node)
        before = lifecycle.replay(run_files.read_journal(path), alive=True)
        step = step or before.step
        _check_order(node, event, step, before)
        entry = Entry(
            at=datetime.now(UTC),
            event=event,
            step=step,
            attempt=before.attempt,
            limit_s=_limit_s(folder, event, step),
            reason=sanitize(reason, 1000),
            remarks=tuple(sanitize(text, 300) for text in (*remarks, *_late_remark(event, before))),
        )
        # Reserve the space for a step's end before it starts, so that a full disk stops a node before it
        # is changed.
        run_files.append_entry(path, entry, reserve=event == "begun")
        after = lifecycle.replay(run_files.read_journal(path), alive=True)
    except JournalError as error:
        raise ReimageError(str(error)) from error
    if after.state in ("returned", "failed"):
        run_files.release_reserve(path)
    return after


def _check_order(node: str, event: Event, step: Step | None, before: NodeProgress) -> None:
    """Refuse an event that cannot follow the node's current state."""
    if event in ("begun", "done", "skipped") and step is None:
        raise ReimageError(f"{node}: no step is named")
    if event == "done" and (before.state != "running" or before.step is not step):
        raise ReimageError(
            f"{node}: {step} cannot be done, it was not started (by its journal the node is {before.state})"
        )


def _limit_s(folder: Path, event: Event, step: Step | None) -> float:
    """Return the time limit in seconds of a step that starts, from the run's request, or 0."""
    if event != "begun" or step is None:
        return 0.0
    return read_run_file(folder).limits_s.get(step.value, 0.0)


def _late_remark(event: Event, before: NodeProgress) -> tuple[str, ...]:
    """Return a remark if a step took longer than its limit."""
    now = datetime.now(UTC)
    if event != "done" or before.since is None or not before.late(now):
        return ()
    took = duration((now - before.since).total_seconds())
    return (f"{before.step} took {took}, its limit is {duration(before.limit_s)}",)


def end_run(run: ReimageContext, *, keep_history: bool = True) -> RunSummary:
    """Write the run's record (``run.json``), store it in the history, and return every node's result.

    Raises:
        ReimageError: The request cannot be read, or the run's record cannot be written. A node's hardware
            record that cannot be read is only a remark.
    """
    folder, results = Path(run.folder), Path(run.results)
    request = read_run_file(folder)
    progress = {name: _final_progress(run, name) for name in request.nodes}
    # A dictionary keeps the order, and finds a name at once in a large fleet.
    not_started = dict.fromkeys(
        name
        for name in request.nodes
        if name not in run.refused and run_files.is_untouched(journal_path(folder, name))
    )
    hardware_records: list[Node] = []
    for name in request.nodes:
        try:
            hardware_records += _newest_record(folder, name)
        except ReimageError as error:
            remarks = (*progress[name].remarks, str(error))
            progress[name] = progress[name].model_copy(update={"remarks": remarks})
    record = _run_record(request, progress, hardware_records, not_started)
    try:
        # The record comes first, because the history reads it from the folder.
        write_run(record, folder)
        history = History(results).keep(folder) if keep_history else ""
        # Otherwise, nights would take these nodes for nodes whose imaging is unfinished.
        for name in not_started:
            run_files.discard_journal(journal_path(folder, name))
    except (ResultsError, OSError) as error:
        raise ReimageError(str(error)) from error
    return RunSummary(
        verdict=record.verdict,
        gates=record.verdict.gates,
        message=(
            *(
                sanitize(_not_started_line(name) if name in not_started else _summary_line(name, node), 1500)
                for name, node in progress.items()
            ),
            *_stopped_line(progress, {*run.refused}, not_started),
        ),
        history=history,
    )


def _not_started_line(node: str) -> str:
    """Return the line about a node on which the run began no step."""
    return f"{node}: not started, and as it was before"


def _stopped_line(
    progress: Mapping[str, NodeProgress], refused: Collection[str], not_started: Collection[str]
) -> Iterator[str]:
    """Yield the command that continues after failures ended the waves, if they did."""
    failed = [
        name
        for name, node in progress.items()
        if node.state != "returned" and name not in refused and name not in not_started
    ]
    if failed and not_started:
        yield (
            f"{amount(len(failed), 'node')} failed, so no further wave started (reimage_max_failures). Look "
            "for a cause that the other nodes share, such as the image, then run, with the same -e: "
            f"ansible-playbook reimage.yml -l {','.join([*failed, *not_started])}"
        )


def _run_record(
    request: RunRequest,
    progress: Mapping[str, NodeProgress],
    hardware_records: Sequence[Node],
    not_started: Collection[str],
) -> Run:
    """Return the run's record. A node that did not return to service makes the run fail.

    A node on which the run began no step is unproven.
    """
    open_nodes = {name: node for name, node in progress.items() if node.state != "returned"}
    failures = [f"{name}: {_failure(node)}" for name, node in open_nodes.items() if name not in not_started]
    verdicts = [
        *(Verdict.PASS for _ in range(len(progress) - len(open_nodes))),
        *(Verdict.FAIL for _ in failures),
        *(Verdict.UNPROVEN for _ in not_started),
    ]
    # Only some of the reasons are kept, so the reasons of failed nodes come first.
    reasons = [*failures, *map(_not_started_line, not_started)]
    return Run(
        run_id=request.run_id,
        benchmark=BENCHMARK,
        description=f"nodes re-imaged ({request.method})",
        started=request.started,
        ended=datetime.now(UTC),
        nodes=tuple(hardware_records),
        asked_nodes=request.nodes,
        findings=tuple(_remark_findings(progress)),
        verdict=worst(verdicts),
        reasons=tuple(reasons[:MAX_REASONS]),
        rackproof_version=__version__,
    )


def _newest_record(folder: Path, node: str) -> list[Node]:
    """Return a node's hardware from after imaging, or else from before, or nothing.

    Raises:
        ReimageError: A record cannot be read.
    """
    # For a node that failed half-way, no record from after imaging exists.
    record = hardware.read_record(folder, "after", node) or hardware.read_record(folder, "before", node)
    return [record] if record is not None else []


def _remark_findings(progress: Mapping[str, NodeProgress]) -> Iterator[Finding]:
    """Yield a finding without a verdict for each remark about a node."""
    # Leave the verdict out, because a remark about a returned node is no objection to it.
    for name, node in progress.items():
        for remark in node.remarks:
            yield Finding(code="reimaged", message=f"{name}: {remark}", source=Source(file=name))


def _final_progress(run: ReimageContext, node: str) -> NodeProgress:
    """Return the progress of a node at the end of the run."""
    if node in run.refused:
        return NodeProgress(state="failed", reason=run.refused[node])
    return _read_node_progress(journal_path(Path(run.folder), node), alive=False)


def _read_node_progress(path: Path, alive: bool) -> NodeProgress:
    """Return the progress in a journal. An unreadable journal is a failure with its reason."""
    try:
        return lifecycle.replay(run_files.read_journal(path), alive=alive)
    except JournalError as error:
        return NodeProgress(state="failed", reason=str(error))


def _failed_step(progress: NodeProgress) -> str:
    """Return the step at which a node failed."""
    return f"failed at {progress.step}" if progress.step else "failed"


def _failure(progress: NodeProgress) -> str:
    """Return the step at which a node failed, and the reason."""
    return f"{_failed_step(progress)}: {progress.reason or 'it was not finished'}"


def _summary_line(node: str, progress: NodeProgress) -> str:
    """Return the line about a node at the end of the run, with the next command."""
    if progress.state == "returned":
        remarks = f" ({'; '.join(progress.remarks)})" if progress.remarks else ""
        return f"{node}: returned to service{remarks}"
    # Before the end of the drain, the state is unknown, because the drain itself may have failed. It is also
    # unknown if the journal cannot be read.
    is_drained = progress.step not in (None, Step.DRAIN)
    drained = " and stays drained" if is_drained else "; whether it is drained, see sinfo -R"
    reason = progress.reason or "it was not finished"
    stop = "" if reason.endswith((".", "!", "?")) else "."
    return (
        f"{node}: {_failed_step(progress)}{drained}: {reason}{stop} "
        f"Next: {lifecycle.next_command(node, progress)}"
    )


def read_progress(
    results: Path, wanted: Iterable[str] | None = None, now: datetime | None = None
) -> list[NodeStatus]:
    """Return the progress of all nodes with a journal in the results folder, by name.

    Args:
        results: The results folder.
        wanted: The names of the nodes to return, or None for all.
        now: The current time.

    Raises:
        ReimageError: The results cannot be listed.
        JournalError: A wanted name cannot be used for a file.
        ResultsError: The host claims cannot be read.
    """
    moment = now or datetime.now(UTC)
    living = host_claims.claimed_hosts(results / CLAIMS)
    statuses = []
    for name, path in sorted(newest_journals(results, wanted, living).items()):
        progress = _read_node_progress(path, alive=name in living)
        statuses.append(
            NodeStatus(
                node=name,
                run_id=path.parent.parent.name,
                progress=progress,
                text=lifecycle.describe_progress(progress, moment),
                next_command=lifecycle.next_command(name, progress),
            )
        )
    return statuses


def unfinished_imaging(results: Path, wanted: Iterable[str]) -> dict[str, str]:
    """Return the nodes whose imaging is unfinished, and the progress of each.

    Args:
        results: The results folder.
        wanted: The names of the nodes.

    Raises:
        ReimageError, JournalError, ResultsError: The errors of :func:`read_progress`.
    """
    return {
        node.node: node.text for node in read_progress(results, wanted) if node.progress.state != "returned"
    }


def open_machine(node: str, access: Access) -> AbstractContextManager[Machine]:
    """Open a node's BMC by its protocol.

    Raises:
        BmcError: The BMC's address is missing, the program or library of the protocol is not installed, or
            the BMC does not answer, or refuses. Later requests may raise it too.
    """
    if not access.address:
        raise BmcError(f"{node}: {bmc.NO_ADDRESS}")
    if access.protocol == "ipmi":
        return ipmi.open_machine(node, access)
    return redfish.open_machine(node, access)


def list_systems(node: str, access: Access) -> tuple[MachineIdentity, ...]:
    """Return the machines that a BMC lists.

    Raises:
        BmcError: The program or library of the protocol is not installed, or the BMC does not answer, or
            refuses.
    """
    if access.protocol == "ipmi":
        return ipmi.list_systems(node, access)
    return redfish.list_systems(node, access)


def read_settings(node: str, access: Access, *, timeout_s: float = bmc.SETTINGS_S) -> Settings:
    """Return a node's BIOS settings and firmware, or the reason why each is unknown.

    Args:
        node: The name of the node.
        access: The access to its BMC.
        timeout_s: The number of seconds after which no further request is made. Some BMCs list a hundred
            pieces of firmware. The limit grows with the time that a call may take.
    """
    if access.protocol == "ipmi":
        return Settings.unknown(f"{node}: IPMI lists neither BIOS settings nor firmware")
    if not access.address:
        return Settings.unknown(f"{node}: {bmc.NO_ADDRESS}")
    limit_s = timeout_s * access.patience
    read_once = partial(redfish.read_settings, node, access, limit_s)
    return bmc.wait_for_settings(node, access, read_once, limit_s)
