"""What reimage.yml's tasks call: begin, a step's beginning and end, the record of a node, the end.

A run's folder is ``results/RUN_ID/``: ``reimage.json`` says what was asked for, ``journal/`` holds one file
per node, ``before/`` and ``after/`` what each node was and is. A node's newest journal is where it stands; a
new run goes on from there.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from pydantic import AwareDatetime, Field, ValidationError

from rackproof import __version__
from rackproof.core.errors import RackproofError
from rackproof.core.records import Finding, Node, Record, Run, Source, Verdict, worst
from rackproof.core.text import duration, sanitize
from rackproof.jobs.reimage import journal, lifecycle
from rackproof.jobs.reimage.bmc_types import Settings
from rackproof.jobs.reimage.hardware_diff import (
    Change,
    Expectation,
    add_settings,
    check_expectation,
    compare_hardware,
)
from rackproof.jobs.reimage.journal import JournalError
from rackproof.jobs.reimage.lifecycle import Entry, Event, NodeProgress, Step
from rackproof.nodes.facts import node_from_facts
from rackproof.nodes.slurm_partitions import read_partitions
from rackproof.store import host_claims, night_store
from rackproof.store.history.client import History
from rackproof.store.run_folder import ResultsError, new_run_id, stamp_of, write_file, write_run

BENCHMARK = "reimage"
"""The name under which a run enters the history."""
RUN_FILE = "reimage.json"
CLAIMS = ".reimages"
METHODS = ("image", "autoinstall", "rack")
UNKNOWN = "unknown"
NO_BMC = "no address of its BMC is known: set reimage_bmc_address in the inventory"
_RUN_NAME = re.compile(rf"\d{{8}}T\d{{6}}Z-{BENCHMARK}-[0-9a-f]{{6}}")


class ReimageError(RackproofError):
    """Something an operator has to mend; the message says what and how."""


class RunRequest(Record):
    """A run as it was asked for, kept in ``reimage.json``."""

    run_id: str
    started: AwareDatetime
    method: str
    nodes: tuple[str, ...]
    waves: tuple[tuple[str, ...], ...] = ()
    limits_s: dict[str, float] = Field(default={})
    images: dict[str, str] = Field(default={})


class ReimageContext(Record):
    """A run that has begun. ``todo`` has the steps of each node that is taken, ``refused`` why one is not."""

    run_id: str
    folder: str
    results: str
    prefix: str = lifecycle.PREFIX
    waves: tuple[tuple[str, ...], ...] = ()
    todo: dict[str, tuple[Step, ...]] = Field(default={})
    refused: dict[str, str] = Field(default={})
    message: tuple[str, ...] = ()


class NodeStatus(Record):
    """Where a node stands, by its newest journal."""

    node: str
    run_id: str
    progress: NodeProgress
    text: str
    next_command: str = ""


class RunSummary(Record):
    """The end of a run. ``history`` is a remark, empty when all is well."""

    verdict: Verdict
    gates: bool
    message: tuple[str, ...]
    history: str = ""


def begin_run(
    results: Path,
    nodes: Mapping[str, Sequence[str]],
    *,
    method: str,
    owner_pid: int | None,
    at_once: int = 8,
    per_rack: int = 4,
    per_partition: int = 4,
    members: str = "",
    remark: str = "",
    limits_s: Mapping[str, float] | None = None,
    images: Mapping[str, str] | None = None,
    again: bool = False,
) -> ReimageContext:
    """Claim the nodes, see where each stands, and say what is to be done in which order.

    Args:
        results: The results folder.
        nodes: Node to its racks.
        method: How nodes are imaged, one of :data:`METHODS`.
        owner_pid: Process that the claims last as long as; None is a dry run, which keeps nothing.
        at_once: The most nodes that are out at a time.
        per_rack: The most of one rack.
        per_partition: The most of one Slurm partition.
        members: What ``sinfo --noheader --Node --format=%N|%R|%E`` prints; nodes that it does not list are
            taken to share one partition.
        remark: Why that is not known; stands in the plan.
        limits_s: Seconds by step, those that differ.
        images: By node the digest of the image that it is to get, where there is one. A node that got another
            one is imaged anew.
        again: Begin anew, whatever journals say.

    Raises:
        ReimageError: Another playbook works on one of the nodes, unusable options, or nothing can be written.
    """
    if method not in METHODS:
        raise ReimageError(
            f"reimage_method: {sanitize(method, 60)!r} cannot be done; there are {', '.join(METHODS)} "
            "(rack makes the test rack's nodes anew): see docs/using/reimage.md"
        )
    try:
        for name in nodes:
            journal.journal_path(results, name)
        limits = lifecycle.step_limits(limits_s or {})
        if owner_pid is not None:
            host_claims.claim_hosts(results / CLAIMS, nodes, owner_pid, "reimaged")
            host_claims.claim_hosts(results, nodes, owner_pid, "benchmarked")
        run_id = _next_id(results)
        todo, refused, held = _look_back(results, nodes, method, images or {}, again)
        partitions = read_partitions(members)
        groups = {
            name: {
                "per_rack": list(nodes[name]),
                "per_partition": [one for one, of in partitions.items() if name in of] or [UNKNOWN],
            }
            for name in todo
        }
        order = lifecycle.plan_waves(groups, at_once, {"per_rack": per_rack, "per_partition": per_partition})
        started = ReimageContext(
            run_id=run_id,
            folder=str(results / run_id),
            results=str(results),
            waves=tuple(tuple(wave) for wave in order),
            todo=todo,
            refused=refused,
            message=(*_plan_lines(order, todo, refused), *([remark] if remark else [])),
        )
        if owner_pid is not None:
            asked = RunRequest(
                run_id=run_id,
                started=datetime.now(UTC),
                method=method,
                nodes=tuple(nodes),
                waves=started.waves,
                limits_s={step.value: seconds for step, seconds in limits.items()},
                images=dict(images or {}),
            )
            _adopt(Path(started.folder), todo, held)
            write_file(Path(started.folder) / RUN_FILE, asked.model_dump_json(indent=1).encode() + b"\n")
    except (ResultsError, host_claims.HostClaimedError, JournalError, ValueError) as error:
        raise ReimageError(str(error)) from error
    return started


class _Held(Record):
    """What a new run takes over of a node: the steps that hold, and the run that they were done in."""

    run_id: str = ""
    steps: tuple[Step, ...] = ()
    attempt: int = 1
    before: bytes = b""
    boot: bytes = b""


def _look_back(
    results: Path, nodes: Iterable[str], method: str, images: Mapping[str, str], again: bool
) -> tuple[dict[str, tuple[Step, ...]], dict[str, str], dict[str, _Held]]:
    """Return what is to be done by node, who cannot be taken and why, and what is taken over."""
    todo: dict[str, tuple[Step, ...]] = {}
    refused: dict[str, str] = {}
    held: dict[str, _Held] = {}
    newest = dict.fromkeys(nodes, Path()) if again else newest_journals(results, nodes)
    for name in nodes:
        path = newest.get(name)
        if again or path is None:
            todo[name], held[name] = lifecycle.STEPS, _Held()
            continue
        try:
            stands = lifecycle.replay(journal.read_journal(path), alive=False)
            then = read_run_file(path.parent.parent)
        except (JournalError, ReimageError) as error:
            refused[name] = str(error)
            continue
        if stands.state == "returned":
            todo[name], held[name] = lifecycle.STEPS, _Held()
            continue
        before = boot = b""
        if Step.RECORD in stands.done:
            with contextlib.suppress(OSError):
                before = _record_path(path.parent.parent, "before", name).read_bytes()
            with contextlib.suppress(OSError):
                boot = _boot_path(path.parent.parent, name).read_bytes()
        if (then.method, then.images.get(name, "")) != (method, images.get(name, "")):
            # Another way to install is another image, too.
            stands = NodeProgress(state="interrupted", attempt=stands.attempt)
        steps = lifecycle.remaining_steps(stands)
        todo[name] = steps
        held[name] = _Held(
            run_id=path.parent.parent.name,
            steps=tuple(step for step in stands.done if step not in steps),
            attempt=stands.attempt + 1,
            before=before,
            boot=boot,
        )
    return todo, refused, held


def _adopt(folder: Path, todo: Iterable[str], held: Mapping[str, _Held]) -> None:
    for name in todo:
        of = held[name]
        if of.before:
            write_file(_record_path(folder, "before", name), of.before)
        if of.boot:
            write_file(_boot_path(folder, name), of.boot)
        entry = Entry(
            at=datetime.now(UTC), event="adopted", attempt=of.attempt, steps=of.steps, run_id=of.run_id
        )
        journal.append_entry(journal.journal_path(folder / "journal", name), entry, reserve=True)


def _plan_lines(
    order: Sequence[Sequence[str]], todo: Mapping[str, Sequence[Step]], refused: Mapping[str, str]
) -> tuple[str, ...]:
    from rackproof.core.hostlist import compress_hostlist

    most = max((len(one) for one in order), default=0)
    lines = [f"{len(todo)} nodes in {len(order)} waves, at most {most} at a time"]
    for number, wave in enumerate(order, 1):
        by_steps: dict[tuple[Step, ...], list[str]] = {}
        for name in wave:
            by_steps.setdefault(tuple(todo[name]), []).append(name)
        for steps, names in by_steps.items():
            lines.append(f"wave {number}: {compress_hostlist(names)}: {', '.join(steps)}")
    lines += [f"{name} is left out: {sanitize(why, 600)}" for name, why in refused.items()]
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
    """Write down that a step begins, is done, was skipped, or that the node failed; return where it stands.

    Args:
        run: The run.
        node: The node.
        event: What happens. ``failed`` needs no step: it is the one that runs.
        step: The step.
        reason: Why it failed or was skipped.
        remarks: What is to be reported of the node.

    Raises:
        ReimageError: The journal cannot be written: a step that was to begin must not begin.
    """
    path = journal.journal_path(Path(run.folder) / "journal", node)
    try:
        stands = lifecycle.replay(journal.read_journal(path), alive=True)
        if step is None:
            step = stands.step
        if event in ("begun", "done", "skipped") and step is None:
            raise ReimageError(f"{node}: no step is named")
        if event == "done" and (stands.state != "running" or stands.step is not step):
            raise ReimageError(
                f"{node}: {step} cannot be done, it was not begun (the journal says {stands.state})"
            )
        limit = 0.0
        if event == "begun" and step is not None:
            limit = read_run_file(Path(run.folder)).limits_s.get(step.value, 0.0)
        if event == "done" and stands.late(datetime.now(UTC)) and stands.since is not None:
            took = duration((datetime.now(UTC) - stands.since).total_seconds())
            remarks = [*remarks, f"{step} took {took}, its limit is {duration(stands.limit_s)}"]
        entry = Entry(
            at=datetime.now(UTC),
            event=event,
            step=step,
            attempt=stands.attempt,
            limit_s=limit,
            reason=sanitize(reason, 1000),
            remarks=tuple(sanitize(one, 300) for one in remarks),
        )
        journal.append_entry(path, entry, reserve=event == "begun")
        after = lifecycle.replay(journal.read_journal(path), alive=True)
    except JournalError as error:
        raise ReimageError(str(error)) from error
    if after.state in ("returned", "failed"):
        journal.release_reserve(path)
    return after


def record_hardware(
    run: ReimageContext,
    node: str,
    which: str,
    facts: Mapping[str, Any] | None,
    *,
    sku: str = "",
    serial: str = "",
    expected_gpus: int = 0,
    told: Settings | None = None,
    expected: Expectation | None = None,
) -> tuple[str, ...]:
    """Keep what a node is, before or after; return what is to be reported.

    Args:
        run: The run.
        node: The node.
        which: ``before`` or ``after``. A record from before is kept as it is once there: a retry finds the
            node in the middle of things.
        facts: What ``rackproof_facts`` gathered; None where the node did not answer.
        sku: Its model.
        serial: The serial number that the inventory gives it; empty is not said.
        expected_gpus: GPUs that its model has, to compare where nothing was known before.
        told: BIOS settings and firmware by its BMC; None where it has none that can be asked.
        expected: What of these its model has to have; counts after.

    Raises:
        ReimageError: It is another machine than the inventory says, parts are missing, something is not as it
            has to be or not known to be, or it cannot be kept.
    """
    folder, results = Path(run.folder), Path(run.results)
    remarks: list[str] = []
    about: Node | None = None
    boot = ""
    if facts is not None:
        about = node_from_facts(node, facts, sku)
        boot = sanitize(facts.get("boot_id") or "", 64)
    elif which == "before":
        try:
            kept = night_store.last_snapshot(night_store.nights(results), node)
        except ResultsError as error:
            raise ReimageError(str(error)) from error
        about = kept.about if kept else None
        remarks.append(
            "the node did not answer: recorded is what its last night knew"
            if about
            else "the node did not answer and no night knows it: what it was is not known"
        )
    else:
        raise ReimageError(f"{node} does not answer after its new image: nothing of it is proven")
    if serial:
        if about is None or not about.serial:
            remarks.append(f"its serial number is not known, the inventory says {sanitize(serial, 60)}")
        elif about.serial.lower() != serial.strip().lower():
            raise ReimageError(
                f"{node} is another machine: its serial number is {about.serial}, the inventory says "
                f"{sanitize(serial, 60)}. Nothing was written. Correct reimage_serial, or the name's address"
            )
    expected = expected or Expectation()
    if told is not None:
        remarks += [why for why in (told.bios_error, told.firmware_error) if why]
        if which == "before":
            # No failure yet: what was set through the BMC counts from the next boot on, and that comes.
            remarks += [
                f"before: {one.text()}" for one in check_expectation(expected, told) if one.kind == "wrong"
            ]
        about = add_settings(about, told, expected) if about is not None else None
    path = _record_path(folder, which, node)
    try:
        if about is not None and not (which == "before" and path.exists()):
            write_file(path, about.model_dump_json(indent=1).encode() + b"\n")
        if which == "before":
            # Also of a later attempt: what has to be new is the boot after this one.
            write_file(_boot_path(folder, node), boot.encode())
    except ResultsError as error:
        raise ReimageError(str(error)) from error
    if which == "before":
        return tuple(remarks)
    assert about is not None  # noqa: S101  (after without facts was refused above)
    changes = compare_hardware(read_record(folder, "before", node), about)
    bad = [one for one in changes if one.verdict is not None and one.verdict.gates]
    if bad:
        raise ReimageError(
            f"{node} is not what it was: {'; '.join(one.text() for one in bad)}. See it in the machine "
            "room, or in the BMC; if it was meant, start again with -e reimage_again=true"
        )
    if wrong := check_expectation(expected, told or Settings(bios_error=NO_BMC, firmware_error=NO_BMC)):
        raise ReimageError(
            f"{node} is not as its model has to be: {'; '.join(one.text() for one in wrong)}. Set it through "
            "the BMC, or correct reimage_expect, then start the same command again"
        )
    if expected_gpus and len(about.gpus) != expected_gpus:
        raise ReimageError(
            f"{node} lists {len(about.gpus)} GPUs, SKU {sku} has {expected_gpus}: "
            "see nvidia-smi and dmesg there"
        )
    return tuple(one.text() for one in changes) + tuple(remarks)


def check_first_boot(run: ReimageContext, node: str, facts: Mapping[str, Any]) -> tuple[str, ...]:
    """Return what is to be reported of a node's first boot.

    Args:
        run: The run.
        node: The node.
        facts: What ``rackproof_facts`` gathered after it.

    Raises:
        ReimageError: It still runs the system that was to be replaced.
    """
    now = sanitize(facts.get("boot_id") or "", 64)
    try:
        before = _boot_path(Path(run.folder), node).read_text().strip()
    except OSError:
        before = ""
    if not before or not now:
        return ("whether it was booted anew is not known: it did not say its boot before, or now",)
    if before == now:
        raise ReimageError(
            f"{node} still runs the system that was to be replaced: nothing was booted anew. See its console "
            "through the BMC, and whether its one-time boot was taken"
        )
    return ()


def hardware_changes(folder: Path, node: str) -> tuple[Change, ...]:
    """Return what changed in a node's hardware in a run, nothing where it has no record from after."""
    after = read_record(folder, "after", node)
    return compare_hardware(read_record(folder, "before", node), after) if after else ()


def read_record(folder: Path, which: str, node: str) -> Node | None:
    """Return the record of a node in a run, None where there is none.

    Raises:
        ReimageError: It is damaged.
    """
    path = _record_path(folder, which, node)
    try:
        return Node.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        raise ReimageError(f"cannot read {path}: {sanitize(error, 200)}") from None


def _record_path(folder: Path, which: str, node: str) -> Path:
    return folder / which / f"{node}.json"


def _boot_path(folder: Path, node: str) -> Path:
    return folder / "before" / f"{node}.boot_id"


def check_night_verdict(night_folder: Path, node: str) -> tuple[str, ...]:
    """Return what a night that passed a node says of it.

    Args:
        night_folder: The night's folder.
        node: The node.

    Raises:
        ReimageError: The night did not prove it.
    """
    try:
        night = night_store.read_night(night_folder)
    except ResultsError as error:
        raise ReimageError(f"{node} was not proven: {error}") from error
    mine = next((one for one in night.nodes if one.node == node), None)
    if mine is None:
        raise ReimageError(f"{node} was not proven: night {night.night_id} did not look at it")
    said = "; ".join(mine.says()[:5]) or mine.why or "no reason was kept"
    if mine.verdict.gates:
        raise ReimageError(
            f"{node} is {mine.verdict.value}: {sanitize(said, 600)}. See `rackproof explain {node}`"
        )
    return (f"{mine.verdict.value}: {sanitize(said, 200)}",) if mine.verdict is not Verdict.PASS else ()


def end_run(run: ReimageContext, *, keep_history: bool = True) -> RunSummary:
    """Write the run's record, which enters the history, and say how every node stands.

    Raises:
        ReimageError: It cannot be read or written.
    """
    folder, results = Path(run.folder), Path(run.results)
    asked = read_run_file(folder)
    verdicts: list[Verdict] = []
    lines, reasons, nodes, findings = [], [], [], []
    for name in asked.nodes:
        if name in run.refused:
            stands = NodeProgress(state="failed", reason=run.refused[name])
        else:
            try:
                stands = lifecycle.replay(
                    journal.read_journal(journal.journal_path(folder / "journal", name)), alive=False
                )
            except JournalError as error:
                stands = NodeProgress(state="failed", reason=str(error))
        returned = stands.state == "returned"
        verdicts.append(Verdict.PASS if returned else Verdict.FAIL)
        after = read_record(folder, "after", name) or read_record(folder, "before", name)
        if after is not None:
            nodes.append(after)
        findings += [
            Finding(code="reimaged", message=f"{name}: {remark}", source=Source(file=name))
            for remark in stands.remarks
        ]
        if returned:
            said = "; ".join(stands.remarks)
            lines.append(f"{name}: returned to service{f' ({said})' if said else ''}")
        else:
            what = f"failed at {stands.step}" if stands.step else "failed"
            why = stands.reason or "it was not finished"
            # Before that step has ended it is not known: what failed may be to drain it.
            out = (
                "; whether it is drained, Slurm says (sinfo -R)"
                if stands.step is Step.DRAIN
                else " and stays drained"
            )
            lines.append(f"{name}: {what}{out}: {why} Next: {lifecycle.next_command(name, stands)}")
            reasons.append(f"{name}: {what}: {why}")
    verdict = worst(verdicts) if verdicts else Verdict.UNPROVEN
    kept = Run(
        run_id=asked.run_id,
        benchmark=BENCHMARK,
        description=f"nodes imaged anew ({asked.method})",
        started=asked.started,
        ended=datetime.now(UTC),
        nodes=tuple(nodes),
        asked_nodes=asked.nodes,
        findings=tuple(findings),
        verdict=verdict,
        reasons=tuple(reasons)[:50],
        rackproof_version=__version__,
    )
    try:
        write_run(kept, folder)
        history = History(results).keep(folder) if keep_history else ""
    except (ResultsError, OSError) as error:
        raise ReimageError(str(error)) from error
    return RunSummary(
        verdict=verdict,
        gates=verdict.gates,
        message=tuple(sanitize(one, 1500) for one in lines),
        history=history,
    )


def read_run_file(folder: Path) -> RunRequest:
    """Return what a run was asked for.

    Raises:
        ReimageError: It is not there, or damaged.
    """
    path = folder / RUN_FILE
    try:
        return RunRequest.model_validate_json(path.read_bytes())
    except OSError as error:
        raise ReimageError(f"cannot read {path}: {error.strerror}") from None
    except ValidationError:
        raise ReimageError(f"{path} is damaged; start again with -e reimage_again=true") from None


def run_folders(results: Path) -> list[Path]:
    """Return the folders of runs, newest first; also of one that was killed as it began.

    Raises:
        ReimageError: The results folder cannot be listed.
    """
    try:
        names = [one.name for one in results.iterdir() if _RUN_NAME.fullmatch(one.name)]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise ReimageError(f"cannot list the results in {results}: {error.strerror}") from None
    return [results / name for name in sorted(names, reverse=True)]


def newest_journals(results: Path, wanted: Iterable[str] | None = None) -> dict[str, Path]:
    """Return the newest journal of each node, of all nodes unless some are named.

    A run that was killed before it was written down has begun nothing, and is passed over.
    """
    left = None if wanted is None else set(wanted)
    found: dict[str, Path] = {}
    for folder in run_folders(results):
        if left is not None and not left:
            break
        if not (folder / RUN_FILE).is_file():
            continue
        names = (
            [path.name.removesuffix(".journal") for path in (folder / "journal").glob("*.journal")]
            if left is None
            else [one for one in left if journal.journal_path(folder / "journal", one).is_file()]
        )
        for name in names:
            found.setdefault(name, journal.journal_path(folder / "journal", name))
        if left is not None:
            left.difference_update(names)
    return found


def read_progress(
    results: Path, wanted: Iterable[str] | None = None, now: datetime | None = None
) -> list[NodeStatus]:
    """Return where every node stands that was ever imaged from here, by name.

    Args:
        results: The results folder.
        wanted: Only these nodes.
        now: The present.

    Raises:
        ReimageError: Nothing can be read.
    """
    at = now or datetime.now(UTC)
    living = host_claims.held(results / CLAIMS)
    found = []
    for name, path in sorted(newest_journals(results, wanted).items()):
        try:
            stands = lifecycle.replay(journal.read_journal(path), alive=name in living)
        except JournalError as error:
            stands = NodeProgress(state="failed", reason=str(error))
        found.append(
            NodeStatus(
                node=name,
                run_id=path.parent.parent.name,
                progress=stands,
                text=lifecycle.describe_progress(stands, at),
                next_command=lifecycle.next_command(name, stands),
            )
        )
    return found


def unfinished_imaging(results: Path, wanted: Iterable[str]) -> dict[str, str]:
    """Return the nodes whose imaging has not come to its end, and how far it is.

    Args:
        results: The results folder.
        wanted: The nodes asked about.

    Raises:
        ReimageError: Nothing can be read.
    """
    return {
        node.node: node.text for node in read_progress(results, wanted) if node.progress.state != "returned"
    }


def _next_id(results: Path) -> str:
    """Return an id after all earlier runs', though the clock was put back: ids are their order."""
    now, before = datetime.now(UTC), next(iter(run_folders(results)), None)
    latest = stamp_of(before.name) if before else None
    return new_run_id(BENCHMARK, now=max(now, latest + timedelta(seconds=1)) if latest else now)
