"""From benchmarks, nodes and parameters to a plan: the list of runs that one command asked for.

A plan is kept as ``results/PLAN_ID/plan.json``. The same request again, while runs of it are missing,
finds that plan and goes on with it, so an interrupted playbook loses nothing and starts nothing twice.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any

from pydantic import StringConstraints, ValidationError, field_validator

from rackproof.definitions import (
    LoadedDefinition,
    Matrix,
    Parameters,
    Scalar,
    arguments,
    substitute,
)
from rackproof.records import Node, Record, Run
from rackproof.results import RECORD_NAME, ResultsError, new_run_id, read_run, write_file
from rackproof.text import clean

PLAN_FILE = "plan.json"
RESUME_WITHIN = timedelta(days=2)
"""An interrupted plan older than this is left as it is; the same request then starts anew."""
STILL_RUNNING = "still_running"
"""Code of the finding in the record of a run whose job nobody saw end: it is followed, not repeated."""


class PlannedRun(Record):
    """One run to be made: everything that starting, following and judging it needs."""

    # It names folders here and on nodes.
    run_id: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,120}$")]
    benchmark: str
    suite: str = ""
    lead: str
    """The inventory host on which the launcher starts the job."""
    nodes: tuple[str, ...]
    parameters: Parameters
    runtime: str
    program: str
    arguments: tuple[str, ...]
    environment: dict[str, str]
    stage: tuple[dict[str, Any], ...] = ()
    timeout_s: int
    hang_s: int
    format: str
    definition_path: str
    """As the controller finds it; :attr:`definition_name` is what records say."""
    definition_sha256: str
    expected_s: float | None = None
    unproven_because: str = ""
    """Not empty: the run cannot be made (no such GPU); it is recorded as unproven without starting."""

    @property
    def definition_name(self) -> str:
        """Folder and name of the definition, the same on every machine."""
        return "/".join(Path(self.definition_path).parts[-2:])

    @property
    def title(self) -> str:
        """Benchmark and point on one line."""
        return " ".join([self.benchmark, *(f"{k}={v}" for k, v in self.parameters.items())])


class Skipped(Record):
    """A point of a suite that this node cannot run, which is not a fault: two GPUs asked, one there."""

    benchmark: str
    node: str
    reason: str


class Plan(Record):
    """The runs that one command asked for."""

    plan_id: str
    title: str
    created: datetime
    fingerprint: str
    runs: tuple[PlannedRun, ...]
    skipped: tuple[Skipped, ...] = ()
    unreached: tuple[str, ...] = ()
    """Nodes that were asked for and did not answer: what they would have shown is unproven."""

    @field_validator("runs")
    @classmethod
    def _each_once(cls, runs: tuple[PlannedRun, ...]) -> tuple[PlannedRun, ...]:
        if len({run.run_id for run in runs}) < len(runs):
            raise ValueError("a run is named twice")
        return runs

    def recorded(self, results: Path) -> dict[str, Run]:
        """Return the runs of this plan that have a record, by run id.

        Raises:
            ResultsError: A record is damaged, or another run's.
        """
        found = {}
        for planned in self.runs:
            folder = results / planned.run_id
            if not (folder / RECORD_NAME).is_file():
                continue
            run = read_run(folder)
            said = (run.run_id, run.benchmark, run.plan_id or self.plan_id)
            if said != (planned.run_id, planned.benchmark, self.plan_id):
                raise ResultsError(
                    f"{folder / RECORD_NAME} is the record of another run ({clean(run.run_id, 130)}); "
                    "move the folder out of the results folder"
                )
            found[planned.run_id] = run
        return found

    def done(self, results: Path) -> dict[str, Run]:
        """Return the recorded runs, by run id, without those whose job may still run.

        Raises:
            ResultsError: A record is damaged, or another run's.
        """
        return {
            run_id: run
            for run_id, run in self.recorded(results).items()
            if all(finding.code != STILL_RUNNING for finding in run.findings)
        }

    @property
    def unused(self) -> dict[str, str]:
        """Nodes on which nothing could be run, each with the reasons: nothing is proven about them."""
        reasons: dict[str, list[str]] = {}
        for one in self.skipped:
            if all(one.node not in run.nodes for run in self.runs):
                reasons.setdefault(one.node, []).append(f"{one.benchmark}: {one.reason}")
        return {node: "; ".join(dict.fromkeys(each)) for node, each in reasons.items()}

    @property
    def expected_s(self) -> float | None:
        """Seconds that earlier runs let expect for all of it, or None while some run has no history."""
        each = [planned.expected_s for planned in self.runs]
        known = [seconds for seconds in each if seconds is not None]
        return sum(known) if len(known) == len(each) else None


def make_plan(
    selected: Sequence[LoadedDefinition],
    nodes: Mapping[str, Node],
    variables: Mapping[str, Mapping[str, Scalar]],
    *,
    suite: str = "",
    overrides: Matrix | None = None,
    unreached: Sequence[str] = (),
    estimate: Callable[[str, Parameters, Node], float | None] = lambda benchmark, parameters, node: None,
    now: datetime | None = None,
) -> Plan:
    """Return the plan for every node and every point of the selected benchmarks.

    Args:
        selected: The definitions.
        nodes: The nodes that answered, by inventory name.
        variables: Per node the values that definitions may name (``bench_data`` …).
        suite: The suite whose matrix is swept; empty for each benchmark's own.
        overrides: Values set by the operator, in place of those that matrices have.
        unreached: Nodes that were asked for and did not answer.
        estimate: Gives the seconds that a run is expected to take, or None.
        now: The moment of planning.

    Raises:
        DefinitionError: An override is no parameter, or a definition names an unknown variable.
    """
    now = now or datetime.now(UTC)
    runs: list[PlannedRun] = []
    taken: set[str] = set()
    skipped: list[Skipped] = []
    overrides = dict(overrides or {})
    for name, node in nodes.items():
        for loaded in selected:
            definition = loaded.definition
            there = len(node.gpus)
            if definition.needs_gpus > there:
                skipped.append(
                    Skipped(
                        benchmark=loaded.name,
                        node=name,
                        reason=f"needs {definition.needs_gpus} GPUs, {name} has {there}",
                    )
                )
                continue
            own = fitting(loaded, overrides, selected)
            points = list(definition.points(suite, own, gpus=there))
            if not points:
                reason = f"its definition excludes every point asked for ({name} has {there} GPUs)"
                skipped.append(Skipped(benchmark=loaded.name, node=name, reason=reason))
            for point in points:
                gpus = point.get("gpus", 0)
                absent = isinstance(gpus, int) and gpus > there
                if absent and "gpus" not in overrides:
                    skipped.append(
                        Skipped(benchmark=loaded.name, node=name, reason=f"gpus={gpus}: {name} has {there}")
                    )
                    continue
                planned = _plan_run(loaded, point, name, {**variables[name], **point}, suite, now)
                # Six random digits are few for hundreds of runs that are planned in one second.
                while planned.run_id in taken:
                    planned = planned.model_copy(update={"run_id": new_run_id(loaded.name, now=now)})
                taken.add(planned.run_id)
                if absent:
                    reason = f"{gpus} GPUs asked for, {name} has {there}; give gpus={there} or fewer"
                    planned = planned.model_copy(update={"unproven_because": reason})
                planned = planned.model_copy(update={"expected_s": estimate(loaded.name, point, node)})
                runs.append(planned)
    title = suite or ", ".join(loaded.name for loaded in selected)
    # What makes two requests the same: all that a run is, but its id and what it is expected to take.
    same = [run.model_dump(mode="json", exclude={"run_id", "expected_s"}) for run in runs]
    return Plan(
        plan_id=f"plan-{now:%Y%m%dT%H%M%SZ}-{hashlib.sha256(os.urandom(16)).hexdigest()[:6]}",
        title=title,
        created=now,
        fingerprint=hashlib.sha256(json.dumps([title, same], sort_keys=True).encode()).hexdigest(),
        runs=tuple(runs),
        skipped=tuple(skipped),
        unreached=tuple(unreached),
    )


def fitting(loaded: LoadedDefinition, overrides: Matrix, chosen: Sequence[LoadedDefinition]) -> Matrix:
    """Return the overrides meant for one of several benchmarks.

    Those that only others have are left out; those that none has stay, so that it refuses them.
    """
    known = {name for one in chosen for name in one.definition.parameters}
    own = loaded.definition.parameters
    return {name: value for name, value in overrides.items() if name in own or name not in known}


def _plan_run(
    loaded: LoadedDefinition,
    point: Parameters,
    node: str,
    variables: Mapping[str, Scalar],
    suite: str,
    now: datetime,
) -> PlannedRun:
    definition = loaded.definition
    launch = definition.launch
    where = f"{loaded.path}: launch.arguments"
    return PlannedRun(
        run_id=new_run_id(loaded.name, now=now),
        benchmark=loaded.name,
        suite=suite,
        lead=node,
        nodes=(node,),
        # An empty value leaves an option to the workload; there is nothing to record or compare by.
        parameters={axis: value for axis, value in point.items() if value != ""},
        runtime=launch.runtime,
        program=launch.program,
        arguments=tuple(arguments(launch.arguments, variables, where)),
        environment={
            key: substitute(value, variables, f"{loaded.path}: launch.environment.{key}")
            for key, value in launch.environment.items()
        },
        stage=tuple(
            {
                "creates": stage.creates,
                "program": stage.program,
                "arguments": arguments(stage.arguments, variables, f"{loaded.path}: stage.arguments"),
            }
            for stage in definition.stage
        ),
        timeout_s=launch.timeout_s,
        hang_s=launch.hang_s,
        format=definition.result.format,
        definition_path=loaded.path,
        definition_sha256=loaded.sha256,
    )


def resume_or_keep(plan: Plan, results: Path, *, resume: bool = True) -> tuple[Plan, bool]:
    """Return the unfinished plan of the same request, if there is one, else keep and return the new one.

    Args:
        plan: The plan as it would be made now.
        results: The results folder.
        resume: False starts anew whatever was interrupted.

    Returns:
        The plan to carry out, and whether it is an earlier one that goes on.

    Raises:
        ResultsError: The results folder cannot be written.
    """
    if resume:
        for path in sorted(results.glob(f"plan-*/{PLAN_FILE}"), reverse=True):
            earlier = _read_plan(path)
            if earlier is None or plan.created - earlier.created > RESUME_WITHIN:
                continue
            if earlier.fingerprint == plan.fingerprint:
                if len(earlier.done(results)) < len(earlier.runs):
                    return earlier, True
                break
    write_file(results / plan.plan_id / PLAN_FILE, plan.model_dump_json(indent=1).encode() + b"\n")
    return plan, False


def read_plan(results: Path, plan_id: str) -> Plan:
    """Return a kept plan.

    Raises:
        ResultsError: There is none of that id, or it is damaged.
    """
    plan = _read_plan(results / plan_id / PLAN_FILE)
    if plan is None:
        raise ResultsError(f"{results / plan_id / PLAN_FILE}: missing or damaged; start the playbook again")
    return plan


def _read_plan(path: Path) -> Plan | None:
    """Return the plan in a file; None where it is missing or of another shape: it is then not resumed."""
    try:
        plan = Plan.model_validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return None
    return plan if plan.plan_id == path.parent.name else None


def describe(plan: Plan) -> str:
    """Return the plan in words: how many runs, where, how long, and what is left out."""
    lines = [f"{plan.title}: {len(plan.runs)} run{'' if len(plan.runs) == 1 else 's'}"]
    if plan.expected_s is not None:
        lines[0] += f", about {plan.expected_s:.0f} s by earlier runs"
    for run in plan.runs:
        expected = f" (about {run.expected_s:.0f} s)" if run.expected_s is not None else ""
        note = f"  UNPROVEN: {run.unproven_because}" if run.unproven_because else ""
        lines.append(f"  {run.lead}: {run.title}{expected}{note}")
    lines += [f"  left out on {one.node}: {one.benchmark}: {one.reason}" for one in plan.skipped]
    lines += [f"  not reached: {name}" for name in plan.unreached]
    return "\n".join(lines)
