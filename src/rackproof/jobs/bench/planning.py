"""Plan the runs of one command from benchmarks, nodes and parameters.

Task ``plan`` of bench.yml calls :func:`make_plan`, and stores the result as ``results/PLAN_ID/plan.json``
with :func:`resume_or_keep`. If the same request is made within two days, while runs of an earlier plan are
missing, that plan is continued. An interrupted playbook therefore loses no result and starts no run twice.

A point is one combination of a benchmark's parameters, such as ``{"gpus": 8, "nodes": 2}``. The lead is the
node that starts the job of a run. A run is on one node, on the first nodes of a rack (parameter ``nodes``),
or on a whole rack through Slurm.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints, field_validator

from rackproof.core.definitions import (
    Definition,
    DefinitionError,
    JudgeRule,
    LoadedDefinition,
    Matrix,
    Parameters,
    Result,
    Scalar,
    command_options,
    load_definition,
    substitute_variables,
)
from rackproof.core.records import Finding, Node, Record, Run, Verdict
from rackproof.core.text import amount, sanitize
from rackproof.jobs.bench import launch_docker, launch_slurm, node_setup
from rackproof.jobs.bench.launch_docker import (
    describe_docker_launch,
    docker_environment,
    docker_obstacle,
    docker_specification,
)
from rackproof.jobs.bench.launch_slurm import (
    Site,
    describe_slurm_launch,
    program_arguments,
    slurm_environment,
    slurm_obstacles,
    slurm_specification,
)
from rackproof.jobs.bench.node_setup import ExperimentConfig, NodeSetup, Peer
from rackproof.logs import FORMATS
from rackproof.store.run_folder import (
    RECORD_LIMIT_BYTES,
    RECORD_NAME,
    ResultsError,
    new_run_id,
    read_file,
    read_run,
    write_file,
)
from rackproof.store.sealed_json import open_sealed, seal_json

PLAN_FILE = "plan.json"
REPORT_FILE = "report.html"
"""Names of the files in the folder of a plan."""
RESUME_WITHIN = timedelta(days=2)
"""Largest age of an interrupted plan that is resumed. Later, the same request gets a new plan."""
ALLOWED_FAILURES = 1
"""Number of a result's repeats that may fail.

The rule is MLPerf Training's, and Rackproof applies it to all benchmarks.
"""
COSTLY_TO_CHANGE = ("network", "storage")
"""Parameters whose change needs a new setup of nodes. Points are ordered so that these change least, above
all the first."""
NOT_LIMITED = "bench_launch_host is {}, which is not among the limited hosts that answered"
"""Reason against a run on a rack whose ``bench_launch_host`` cannot submit the job."""
SETTLED_NS = 2_000_000_000
"""Nanoseconds after a change of a file, after which another change certainly changes its ctime on every file
system in use."""
RUN_COMMAND = "run_command.py"
"""Program under workloads/ that runs a definition's command."""
START_FOLDER = "RACKPROOF_START_FOLDER"
STATE_GPUS = "RACKPROOF_STATE_GPUS"
"""Environment variables of that program: the folder in which the command starts, and the number of GPUs whose
use is stated."""
_NOT_THE_REQUEST = {"run_id", "expected_s", "definition_ctime_ns"}
"""Fields of a run that differ between plans of the same request."""
STILL_RUNNING = "still_running"
"""Code of the finding of a run whose job may still be running. The run is followed, not repeated."""


class NodeSku(Record):
    """The inventory's variables about a node's model."""

    sku: str = ""
    gpus: int = 0
    gpu_name: str = ""
    """Text that the product name of its GPUs must contain. Empty means the SKU's own name."""


class PlannedRun(Record):
    """One planned run, with all data needed to start, follow and judge it."""

    # The id is the name of folders on the controller and on nodes.
    run_id: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,120}$")]
    benchmark: str
    suite: str = ""
    lead: str
    """Inventory host on which the launcher starts the job."""
    nodes: tuple[str, ...]
    parameters: Parameters
    runtime: str
    program: str
    arguments: tuple[str, ...]
    environment: dict[str, str]
    stage: tuple[dict[str, Any], ...] = ()
    timeout_s: int
    hang_s: int
    """Seconds without growth of the log after which the supervisor ends the job."""
    grace_s: float = 10
    """Seconds between SIGTERM and SIGKILL."""
    launcher: str = "local"
    repeat: int = 0
    """The number of this repeat, from 1, or 0 if nothing is repeated."""
    repeats: int = 0
    """The number of repeats of the result, or 0 if nothing is repeated."""
    would: tuple[str, ...] = ()
    """Lines about the actions that the run would perform, such as the pull of an image."""
    published_references: bool = True
    container: str = ""
    sku: str = ""
    sku_gpus: int = 0
    sku_gpu_name: str = ""
    """Text that the product name of the SKU's GPUs must contain. Empty means the SKU's own name."""
    node_skus: dict[str, NodeSku] = {}  # noqa: RUF012  (pydantic copies defaults)
    """The SKU of each node. Old plans state none, and all their nodes are of the lead's SKU."""
    result: Result
    """Rules for reading and judging the run's log, as the definition had them at planning."""
    definition_path: str
    """The file's path on the controller. Records state :attr:`definition_name` instead."""
    definition_sha256: str
    definition_ctime_ns: int = 0
    """Change time of the definition's file at planning, or 0 if it cannot reveal a later change."""
    expected_s: float | None = None
    setup: NodeSetup | None = None
    """Setup of the nodes that start the run together, or None if a node is used as it is."""
    unproven_because: str = ""
    """The reason why the run cannot be made, such as a missing GPU. The run is then recorded as unproven
    and not started."""
    obstacles: tuple[str, ...] = ()
    """The separate reasons against a run under Slurm. ``unproven_because`` joins them."""

    @property
    def result_key(self) -> tuple[str, tuple[str, ...], str]:
        """Return the benchmark, the nodes and the point, which only repeats of one result share."""
        return self.benchmark, self.nodes, json.dumps(self.parameters, sort_keys=True)

    @property
    def is_slurm_job(self) -> bool:
        """Return whether Slurm runs the job, so that it continues without the process that follows it."""
        return self.launcher == "slurm" or (self.launcher == "docker" and len(self.nodes) > 1)

    @property
    def definition_name(self) -> str:
        """Return folder and name of the definition, which are the same on every machine."""
        return "/".join(Path(self.definition_path).parts[-2:])

    @property
    def title(self) -> str:
        """Return the benchmark and the point on one line."""
        repeat = [f"repeat {self.repeat} of {self.repeats}"] if self.repeats > 1 else []
        return " ".join([self.benchmark, *(f"{k}={v}" for k, v in self.parameters.items()), *repeat])


class Skipped(Record):
    """A point or benchmark that a node cannot run, which is no fault: it may lack a second GPU.

    If a rack cannot run the point, ``node`` is the rack's first node. If no node of the rack has a run of the
    benchmark, there is an entry for each node.
    """

    benchmark: str
    node: str
    reason: str


class Plan(Record):
    """The runs that one command requested."""

    plan_id: str
    title: str
    created: datetime
    fingerprint: str
    """Digest of title, runs, skipped points and nodes without a run, equal for plans of the same request.
    The digest does not cover missing programs and interpreters, which task ``plan`` adds later as obstacles.
    """
    runs: tuple[PlannedRun, ...]
    skipped: tuple[Skipped, ...] = ()
    unreached: tuple[str, ...] = ()
    """Requested nodes that did not answer. Their results are unproven."""
    idle: tuple[str, ...] = ()
    """Nodes that answered and have no run, because the requested runs need fewer nodes than the rack has."""
    sha256: str = Field(default="", exclude=True)
    """Unused: the digest in the file is checked and removed when the file is read."""

    @field_validator("runs")
    @classmethod
    def _each_once(cls, runs: tuple[PlannedRun, ...]) -> tuple[PlannedRun, ...]:
        if len({run.run_id for run in runs}) < len(runs):
            raise ValueError("a run is named twice")
        return runs

    def recorded(self, results: Path) -> dict[str, Run]:
        """Return the runs of this plan with a record, by run id.

        Raises:
            ResultsError: A record is damaged, or belongs to another run.
        """
        runs = {}
        for planned in self.runs:
            folder = results / planned.run_id
            if not (folder / RECORD_NAME).is_file():
                continue
            run = read_run(folder)
            # A folder that was copied or renamed by hand does not count as the planned run.
            identity = (run.run_id, run.benchmark, run.plan_id or self.plan_id)
            if identity != (planned.run_id, planned.benchmark, self.plan_id):
                raise ResultsError(
                    f"{folder / RECORD_NAME} is the record of another run ({sanitize(run.run_id, 130)}); "
                    "move the folder out of the results folder"
                )
            runs[planned.run_id] = run
        return runs

    def done(self, results: Path) -> dict[str, Run]:
        """Return the recorded runs by run id, except runs whose job may still be running.

        Raises:
            ResultsError: A record is damaged, or belongs to another run.
        """
        return {
            run_id: run
            for run_id, run in self.recorded(results).items()
            if all(finding.code != STILL_RUNNING for finding in run.findings)
        }

    def result_names(self) -> dict[str, str]:
        """Return the name of the result that each run repeats, by run id.

        If several nodes make the same benchmark separately, each gives its own result, and so does each
        point. A name has the parameters that differ between the points of its nodes.
        """
        groups: dict[tuple[str, tuple[str, ...]], list[PlannedRun]] = {}
        for run in self.runs:
            groups.setdefault((run.benchmark, run.nodes), []).append(run)
        places = Counter(benchmark for benchmark, _ in groups)
        names = {}
        for (benchmark, _), runs in groups.items():
            differing = _differing_parameters(runs)
            for run in runs:
                point = [f"{name}={value}" for name, value in run.parameters.items() if name in differing]
                place = [f"on {run.lead}"] if places[benchmark] > 1 else []
                names[run.run_id] = " ".join([benchmark, *point, *place])
        return names

    def remaining_runs(
        self, recorded: Mapping[str, Run], given_up: Mapping[str, str]
    ) -> Iterator[PlannedRun]:
        """Yield the runs without a record that do not repeat a result in :meth:`given_up`."""
        names = self.result_names()
        for run in self.runs:
            if run.run_id not in recorded and names[run.run_id] not in given_up:
                yield run

    def given_up(self, recorded: Mapping[str, Run]) -> dict[str, str]:
        """Return the results whose repeats can no longer become valid, with the reasons.

        The keys are names of :meth:`result_names`. One repeat may fail, and counts as the slowest
        (docs/using/scoring.md). With two failures, the result is invalid.
        """
        repeats: dict[tuple[str, tuple[str, ...], str], list[PlannedRun]] = {}
        for run in self.runs:
            if run.repeats > 1:
                repeats.setdefault(run.result_key, []).append(run)
        reasons, names = {}, self.result_names()
        for runs in repeats.values():
            failed = _failed_repeats(runs, recorded)
            if len(failed) > ALLOWED_FAILURES:
                reasons[names[runs[0].run_id]] = (
                    f"the result cannot become valid: repeats {', '.join(failed)} do not pass"
                )
        return reasons

    @property
    def unused(self) -> dict[str, str]:
        """Return the nodes of :attr:`skipped` that no run uses, with the reasons. They are unproven."""
        reasons: dict[str, list[str]] = {}
        for point in self.skipped:
            if all(point.node not in run.nodes for run in self.runs):
                reasons.setdefault(point.node, []).append(f"{point.benchmark}: {point.reason}")
        # Points of one benchmark are often skipped for the same reason, which is then shown once.
        return {node: "; ".join(dict.fromkeys(reason)) for node, reason in reasons.items()}


def _differing_parameters(runs: Sequence[PlannedRun]) -> set[str]:
    """Return the names of the parameters that some of the runs lack, or that have several values."""
    names = {name for run in runs for name in run.parameters}
    return {name for name in names if len({run.parameters.get(name) for run in runs}) > 1}


def _failed_repeats(runs: Sequence[PlannedRun], recorded: Mapping[str, Run]) -> list[str]:
    """Return the numbers and verdicts of the repeats that count as failed."""
    failed = []
    for run in runs:
        record = recorded.get(run.run_id)
        # Degraded repeats count for a result, because MLPerf's rules only ask whether the target was met.
        if record is not None and record.verdict in (Verdict.FAIL, Verdict.UNPROVEN):
            failed.append(f"{run.repeat} ({record.verdict.value})")
    return failed


def make_plan(
    selected: Sequence[LoadedDefinition],
    nodes: Mapping[str, Node],
    variables: Mapping[str, Mapping[str, Scalar]],
    *,
    suite: str = "",
    overrides: Matrix | None = None,
    unreached: Sequence[str] = (),
    assumed: Sequence[str] = (),
    estimate: Callable[[str, Parameters, Node], float | None] = lambda benchmark, parameters, node: None,
    now: datetime | None = None,
    sites: Mapping[str, Site] | None = None,
    racks: Mapping[str, str] | None = None,
    experiments: Mapping[str, ExperimentConfig] | None = None,
    addresses: Mapping[str, str] | None = None,
) -> Plan:
    """Return the plan for each node and each point of the selected benchmarks.

    Args:
        selected: The definitions.
        nodes: The nodes that answered, by inventory name.
        variables: The values for definitions (``bench_data`` …), by node.
        suite: The suite whose matrix is used, or "" for each benchmark's own.
        overrides: The operator's values, which replace values of the matrices.
        unreached: The requested nodes that did not answer.
        assumed: The nodes that did not answer but are planned as the inventory describes them. With
            these, a dry run can show a rack's plan before its nodes exist.
        estimate: A function that returns the expected seconds of a run, or None.
        now: The time of planning.
        sites: The rack, SKU and Slurm cluster of each node.
        racks: The racks of nodes without a site. A node without a known rack may be in any.
        experiments: The inventory's variables for experiments (storages, networks), by node.
        addresses: The address of each node on the training network.

    Raises:
        DefinitionError: An override is not a parameter or has a wrong value, a definition uses an unknown
            variable or lacks a part that its launcher needs, or a point's number of nodes is not positive.
    """
    now = now or datetime.now(UTC)
    planner = _Planner(
        selected=selected,
        nodes=nodes,
        variables=variables,
        sites=sites or {},
        racks={**(racks or {}), **{name: site.rack for name, site in (sites or {}).items()}},
        experiments=experiments or {},
        addresses=addresses or {},
        unreached=unreached,
        assumed=assumed,
        suite=suite,
        overrides=dict(overrides or {}),
        now=now,
    )
    planner.add_runs()
    runs = [
        run.model_copy(
            update={
                "expected_s": estimate(run.benchmark, run.parameters, nodes[run.nodes[0]])
                if run.nodes[0] in nodes
                else None,
                "sku_gpu_name": planner.sites.get(run.lead, Site()).sku_gpu_name,
                "node_skus": {
                    name: _node_sku(planner.sites[name]) for name in run.nodes if name in planner.sites
                },
            }
        )
        for run in order_runs(_each_named(planner.runs, now))
    ]
    title = suite or ", ".join(loaded.name for loaded in selected)
    return Plan(
        # Two controllers that share a results folder may plan in the same second.
        plan_id=f"plan-{now:%Y%m%dT%H%M%SZ}-{hashlib.sha256(os.urandom(16)).hexdigest()[:6]}",
        title=title,
        created=now,
        fingerprint=_request_fingerprint(title, runs, planner.skipped, [*unreached, *planner.idle]),
        runs=tuple(runs),
        skipped=tuple(planner.skipped),
        unreached=tuple(unreached),
        idle=tuple(planner.idle),
    )


def _node_sku(site: Site) -> NodeSku:
    """Return the inventory's variables about a node's model."""
    return NodeSku(sku=site.sku, gpus=site.sku_gpus, gpu_name=site.sku_gpu_name)


def _request_fingerprint(
    title: str, runs: Sequence[PlannedRun], skipped: Sequence[Skipped], others: Sequence[str]
) -> str:
    """Return the fingerprint of a request, which is the same for all plans of that request.

    Nodes without a run are part of the request. A plan that lacks them would not report them.
    """
    # The fingerprint covers all of a run except its id, its file's time and its expected time, which vary.
    requests = [run.model_dump(mode="json", exclude=_NOT_THE_REQUEST) for run in runs]
    without_run = [point.model_dump(mode="json") for point in skipped]
    request = [title, requests, without_run, sorted(others)]
    return hashlib.sha256(json.dumps(request, sort_keys=True).encode()).hexdigest()


def _each_named(runs: Sequence[PlannedRun], now: datetime) -> list[PlannedRun]:
    """Return the runs, each with a unique id.

    The six random digits of an id may be equal if hundreds of runs are planned in one second.
    """
    named: dict[str, PlannedRun] = {}
    for run in runs:
        run_id = run.run_id
        while run_id in named:
            run_id = new_run_id(run.benchmark, now=now)
        named[run_id] = run.model_copy(update={"run_id": run_id})
    return list(named.values())


def order_runs(runs: Sequence[PlannedRun]) -> list[PlannedRun]:
    """Return the runs, sorted so that :data:`COSTLY_TO_CHANGE` changes least on each host."""
    if not any(name in run.parameters for run in runs for name in COSTLY_TO_CHANGE):
        return list(runs)
    # Keep the order of first occurrence, because the operator chose the order of inventory and matrix.
    hosts = list(dict.fromkeys(run.lead for run in runs))
    values = {
        name: list(dict.fromkeys(str(run.parameters.get(name, "")) for run in runs))
        for name in COSTLY_TO_CHANGE
    }
    return sorted(
        runs,
        key=lambda run: (
            hosts.index(run.lead),
            *(known_values.index(str(run.parameters.get(name, ""))) for name, known_values in values.items()),
        ),
    )


@dataclass
class _Planner:
    """The runs and the skipped points of a request so far."""

    selected: Sequence[LoadedDefinition]
    nodes: Mapping[str, Node]
    variables: Mapping[str, Mapping[str, Scalar]]
    sites: Mapping[str, Site]
    racks: Mapping[str, str]
    experiments: Mapping[str, ExperimentConfig]
    addresses: Mapping[str, str]
    unreached: Sequence[str]
    assumed: Sequence[str]
    suite: str
    overrides: Matrix
    now: datetime
    runs: list[PlannedRun] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)

    def add_runs(self) -> None:
        """Add all runs of the request. The runs of single nodes come first."""
        for name in self.nodes:
            for loaded in self.selected:
                self._add_single_node_runs(loaded, name)
        for loaded in self.selected:
            self._add_multi_node_runs(loaded)

    def _add_single_node_runs(self, loaded: LoadedDefinition, name: str) -> None:
        """Add the runs of one benchmark that one node makes alone, or note why they are skipped."""
        if self._needs_whole_rack(loaded):
            return
        definition, gpus_there = loaded.definition, len(self.nodes[name].gpus)
        if definition.needs_gpus > gpus_there:
            self._skip(loaded, name, f"needs {amount(definition.needs_gpus, 'GPU')}, {name} has {gpus_there}")
            return
        points = list(definition.points(self.suite, self._own_overrides(loaded), gpus=gpus_there))
        if not points:
            reason = f"its definition excludes every requested point ({name} has {amount(gpus_there, 'GPU')})"
            self._skip(loaded, name, reason)
        for point in points:
            # A point with a number of nodes, even one, is planned for the rack.
            if point.get("nodes", "") == "":
                self._add_single_node_point(loaded, name, point, gpus_there)

    def _add_single_node_point(
        self, loaded: LoadedDefinition, name: str, point: Parameters, gpus_there: int
    ) -> None:
        """Add the run of one point on one node, or its repeats, or note why the point is skipped."""
        gpus, lacks_gpus = point.get("gpus", 0), _lacks_gpus(point, gpus_there)
        if lacks_gpus and "gpus" not in self.overrides:
            self._skip(loaded, name, f"gpus={gpus}: {name} has {gpus_there}")
            return
        if loaded.definition.launch.with_ == "docker":
            variables, site = {**self.variables[name], **point}, self.sites.get(name, Site())
            self.runs += _docker_runs(loaded, point, [name], variables, site, self.suite, self.now)
            return
        run = self._program_run(loaded, point, self._peers([name]))
        if lacks_gpus:
            # The operator gave this value. A request that cannot be met must appear as a result.
            reason = f"{amount(int(gpus), 'GPU')} requested, {name} has {gpus_there}"
            reason += f"; give gpus={gpus_there} or fewer"
            run = run.model_copy(update={"unproven_because": reason})
        self.runs.append(run)

    def _add_multi_node_runs(self, loaded: LoadedDefinition) -> None:
        """Add the runs that several nodes of a rack make together."""
        if self._needs_whole_rack(loaded):
            for members in self._racks([*self.nodes, *self.assumed]):
                self._add_rack_runs(loaded, members)
            return
        for members in self._racks(self.nodes):
            reasons = self._add_grouped_runs(loaded, members)
            self._skip_on_rack(loaded, members, reasons)

    def _add_grouped_runs(self, loaded: LoadedDefinition, members: Sequence[str]) -> list[str]:
        """Add the runs of points with a number of nodes. Return the reasons against the other points.

        Each run uses the first nodes of the rack.
        """
        # All ranks of a job use the same number of GPUs, so the node with the fewest sets the limit.
        gpus_there = min(len(self.nodes[name].gpus) for name in members)
        points = loaded.definition.points(self.suite, self._own_overrides(loaded), gpus=gpus_there)
        grouped = [point for point in points if point.get("nodes", "") != ""]
        reasons = [self._add_grouped_point(loaded, members, point, gpus_there) for point in grouped]
        return list(filter(None, reasons))

    def _add_grouped_point(
        self, loaded: LoadedDefinition, members: Sequence[str], point: Parameters, gpus_there: int
    ) -> str:
        """Add the run of one point on the first nodes of a rack, or return why it is skipped."""
        node_count, gpus = _node_count(loaded, point), point.get("gpus", 0)
        overrides = self._own_overrides(loaded)
        lacks_nodes, lacks_gpus = node_count > len(members), _lacks_gpus(point, gpus_there)
        # If the operator gave the values, the run is planned as unproven. Other points are skipped.
        if lacks_nodes and "nodes" not in overrides:
            return f"nodes={node_count}: there are {len(members)}"
        if lacks_gpus and "gpus" not in overrides:
            return f"gpus={gpus}: there are {gpus_there}"
        run = self._program_run(loaded, point, self._peers(members[:node_count]), node_count)
        # If the setup already reports too few nodes, its remedy comes first.
        if lacks_gpus and not run.unproven_because:
            reason = f"{amount(int(gpus), 'GPU')} requested, a node of these has {gpus_there}"
            reason += f"; give gpus={gpus_there} or fewer"
            run = run.model_copy(update={"unproven_because": reason})
        self.runs.append(run)
        return ""

    def _skip_on_rack(self, loaded: LoadedDefinition, members: Sequence[str], reasons: Sequence[str]) -> None:
        """Note the points that a rack cannot run, on all its nodes if none has a run of the benchmark."""
        used = {name for run in self.runs if run.benchmark == loaded.name for name in run.nodes}
        if not used.isdisjoint(members):
            for reason in reasons:
                self._skip(loaded, members[0], reason)
            return
        noted = {point.node for point in self.skipped if point.benchmark == loaded.name}
        for name in members:
            if name not in noted:
                # Without a reason, the points were excluded because of the node with the fewest GPUs.
                for reason in reasons or ["its definition excludes every requested point on its rack"]:
                    self._skip(loaded, name, reason)

    @property
    def idle(self) -> list[str]:
        """Return the nodes without a run that no skipped point names."""
        named = {name for run in self.runs for name in run.nodes} | {point.node for point in self.skipped}
        return [name for name in self.nodes if name not in named]

    def _add_rack_runs(self, loaded: LoadedDefinition, members: Sequence[str]) -> None:
        """Add the repeats of each point of a benchmark on a whole rack."""
        site = self.sites.get(members[0], Site())
        lead, obstacle = _rack_lead(site, members)
        silent = [name for name in self.unreached if self.racks.get(name, site.rack) == site.rack]
        points = list(loaded.definition.points(self.suite, self._own_overrides(loaded), gpus=site.sku_gpus))
        if not points:
            self._skip_on_rack(loaded, members, [])
        for point in points:
            variables = {**self.variables[lead], **point}
            if loaded.definition.launch.with_ == "docker":
                # With docker, the first node leads the run, and must be bench_launch_host.
                ordered = [lead, *(name for name in members if name != lead)]
                runs = _docker_runs(loaded, point, ordered, variables, site, self.suite, self.now, silent)
                why = runs[0].unproven_because or obstacle
                self.runs += [run.model_copy(update={"unproven_because": why}) for run in runs]
                continue
            rack_site, reasons = self._site_of_architecture(loaded, site, members, silent)
            run = self._slurm_run(loaded, point, members, lead, rack_site, variables)
            reasons = tuple(filter(None, (*reasons, obstacle)))
            against = {"unproven_because": "; ".join(reasons), "obstacles": reasons}
            self.runs += _repeats(run.model_copy(update=against), self.now)

    def _site_of_architecture(
        self, loaded: LoadedDefinition, site: Site, members: Sequence[str], silent: Sequence[str]
    ) -> tuple[Site, tuple[str, ...]]:
        """Return a rack's cluster with the architecture of its nodes, and the reasons against a run.

        The architecture is the SKU's only if no node answered. ``silent`` are the nodes without an answer.
        """
        names = launch_slurm.nodes_by_architecture(self.nodes[name] for name in members if name in self.nodes)
        names = names or ({site.sku_architecture: []} if site.sku_architecture else {})
        rack_site = site.model_copy(update={"architecture": next(iter(names)) if len(names) == 1 else ""})
        mixed = launch_slurm.architecture_obstacle(names)
        obstacles = slurm_obstacles(loaded, rack_site, silent, with_image=bool(names) and not mixed)
        return rack_site, (mixed, *obstacles)

    def _slurm_run(
        self,
        loaded: LoadedDefinition,
        point: Parameters,
        members: Sequence[str],
        lead: str,
        site: Site,
        variables: Mapping[str, Scalar],
    ) -> PlannedRun:
        """Return a run on a rack through Slurm."""
        specification = slurm_specification(loaded, site, members, variables)
        return PlannedRun(
            **_by_site(loaded, site, self.suite, self.now, "slurm"),
            lead=lead,
            nodes=tuple(members),
            parameters={
                "nodes": len(members),
                **{axis: value for axis, value in point.items() if value != ""},
                # Both values change the speed. As parameters, they separate histories and references.
                **({"precision": site.precision} if site.precision else {}),
                **({"config": site.config} if site.config else {}),
            },
            arguments=program_arguments(specification),
            environment=slurm_environment(loaded, site, variables),
            would=tuple(describe_slurm_launch(loaded, site, members)),
            container=f"{site.registry}/{specification['repository']}:{specification['tag']}",
        )

    def _program_run(
        self, loaded: LoadedDefinition, point: Parameters, peers: Sequence[Peer], node_count: int = 1
    ) -> PlannedRun:
        """Return one run of a program under workloads/, on one node or on several."""
        definition, lead = loaded.definition, peers[0].name
        launch = definition.launch
        experiment = self.experiments.get(lead, ExperimentConfig())
        variables = {
            **self.variables[lead],
            **point,
            "storage_folder": node_setup.data_folder(point, experiment),
        }
        setup, obstacle = None, ""
        # A run without a setup is started directly, without a rendezvous and its finding.
        if node_setup.needs_setup(point):
            # mpirun starts the ranks on the other nodes.
            setup = node_setup.plan_setup(
                point, experiment, peers, launch.timeout_s, only_first=launch.with_ == "mpirun"
            )
            obstacle = node_setup.setup_obstacle(point, experiment, peers, node_count)
        return PlannedRun(
            run_id=new_run_id(loaded.name, now=self.now),
            benchmark=loaded.name,
            suite=self.suite,
            lead=lead,
            nodes=tuple(peer.name for peer in peers),
            # With an empty value, the workload uses its own default. The value is neither recorded nor
            # compared.
            parameters={axis: value for axis, value in point.items() if value != ""},
            runtime=launch.runtime,
            program=RUN_COMMAND if launch.command else launch.program,
            arguments=_arguments(loaded, variables),
            environment={
                key: substitute_variables(value, variables, f"{loaded.path}: launch.environment.{key}")
                for key, value in {**launch.environment, **_command_environment(definition, point)}.items()
            }
            | self.sites.get(lead, Site()).hidden,
            stage=_staging_programs(loaded, variables),
            timeout_s=launch.timeout_s,
            hang_s=launch.hang_s,
            result=definition.result,
            **_definition_fields(loaded),
            launcher=launch.with_,
            setup=setup,
            unproven_because=obstacle or _shortfall(definition.result.judge, point),
        )

    def _needs_whole_rack(self, loaded: LoadedDefinition) -> bool:
        """Return whether a benchmark runs on all nodes of a rack together."""
        launcher = loaded.definition.launch.with_
        return launcher == "slurm" or (
            launcher == "docker" and any(site.together for site in self.sites.values())
        )

    def _own_overrides(self, loaded: LoadedDefinition) -> Matrix:
        """Return the operator's values that apply to a benchmark."""
        return fitting_overrides(loaded, self.overrides, self.selected)

    def _racks(self, names: Iterable[str]) -> list[list[str]]:
        """Return the nodes of each rack, in the given order."""
        racks: dict[str, list[str]] = {}
        for name in names:
            racks.setdefault(self.sites.get(name, Site()).rack, []).append(name)
        return list(racks.values())

    def _peers(self, names: Sequence[str]) -> list[Peer]:
        """Return nodes with their addresses on the training network."""
        return [Peer(name=name, address=self.addresses.get(name, "")) for name in names]

    def _skip(self, loaded: LoadedDefinition, node: str, reason: str) -> None:
        """Note a point or benchmark that a node cannot run."""
        self.skipped.append(Skipped(benchmark=loaded.name, node=node, reason=reason))


def _arguments(loaded: LoadedDefinition, variables: Mapping[str, Scalar]) -> tuple[str, ...]:
    """Return the arguments of a run's program, or the command itself."""
    launch = loaded.definition.launch
    if launch.command:
        place = f"{loaded.path}: launch.command"
        return tuple(substitute_variables(word, variables, place) for word in launch.command)
    return tuple(command_options(launch.arguments, variables, f"{loaded.path}: launch.arguments"))


def _command_environment(definition: Definition, point: Parameters) -> dict[str, str]:
    """Return the variables that give run_command.py the folder and the GPUs of a definition's command."""
    folder, is_stated = definition.launch.folder, definition.result.states_gpu_use
    if not definition.launch.command:
        return {}
    return ({START_FOLDER: folder} if folder else {}) | (
        {STATE_GPUS: str(point["gpus"])} if is_stated else {}
    )


def _lacks_gpus(point: Parameters, gpus_there: int) -> bool:
    """Return whether a point needs more GPUs than are present. The value ``all`` never does."""
    gpus = point.get("gpus", 0)
    return isinstance(gpus, int) and gpus > gpus_there


def _node_count(loaded: LoadedDefinition, point: Parameters) -> int:
    """Return the number of nodes that a point requests.

    Raises:
        DefinitionError: The number of nodes is not a positive integer.
    """
    count = point["nodes"]
    # True is an int, and would be planned as one node.
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        raise DefinitionError(f"{loaded.path}: nodes: {count!r} is not a number of nodes")
    return count


def _rack_lead(site: Site, members: Sequence[str]) -> tuple[str, str]:
    """Return the node that submits a rack's job, and the reason why the named node cannot, or ""."""
    if not site.launch_host:
        return members[0], ""
    if site.launch_host in members:
        return site.launch_host, ""
    # The run is planned, so that its record shows the obstacle and the remedy.
    return members[0], NOT_LIMITED.format(site.launch_host)


def _staging_programs(
    loaded: LoadedDefinition, variables: Mapping[str, Scalar]
) -> tuple[dict[str, Any], ...]:
    """Return the programs that download or generate a benchmark's data, in the order of its definition.

    ``creates`` is the file or folder whose presence shows that a program need not run.
    """
    programs = []
    for stage in loaded.definition.stage:
        arguments = command_options(stage.arguments, variables, f"{loaded.path}: stage.arguments")
        programs.append({"creates": stage.creates, "program": stage.program, "arguments": arguments})
    return tuple(programs)


def _docker_runs(
    loaded: LoadedDefinition,
    point: Parameters,
    nodes: Sequence[str],
    variables: Mapping[str, Scalar],
    site: Site,
    suite: str,
    now: datetime,
    unreached: Sequence[str] = (),
) -> list[PlannedRun]:
    """Return the repeats of a benchmark with a built image, on one node or on several together."""
    specification = docker_specification(loaded, site, nodes, variables)
    run = PlannedRun(
        **_by_site(loaded, site, suite, now, "docker"),
        lead=nodes[0],
        nodes=tuple(nodes),
        parameters={
            **({"nodes": len(nodes)} if site.together else {}),
            **{axis: value for axis, value in point.items() if value != ""},
            "system": str(specification["system"]),
        },
        arguments=program_arguments(specification),
        environment=docker_environment(loaded, site, variables),
        would=tuple(describe_docker_launch(loaded, site, nodes, variables)),
        container=f"{specification['image']} at {specification['ref']}",
        unproven_because=docker_obstacle(loaded, site, nodes, unreached, variables),
    )
    return _repeats(run, now)


def _by_site(
    loaded: LoadedDefinition, site: Site, suite: str, now: datetime, launcher: Literal["slurm", "docker"]
) -> dict[str, Any]:
    """Return the fields of PlannedRun that are set alike for launchers slurm and docker."""
    launcher_module = launch_slurm if launcher == "slurm" else launch_docker
    launch, result = loaded.definition.launch, loaded.definition.result
    return {
        "run_id": new_run_id(loaded.name, now=now),
        "benchmark": loaded.name,
        "suite": suite,
        # The interpreter and libraries of a training are in its container.
        "runtime": "",
        "program": launcher_module.PROGRAM,
        "timeout_s": launch.timeout_s,
        "hang_s": (site.hang_s or launch.hang_s) + launcher_module.SILENCE_BEYOND_S,
        "grace_s": launcher_module.GRACE_S,
        "launcher": launcher,
        "repeats": site.repeats or result.repeats,
        "published_references": site.published_references,
        "sku": site.sku,
        "sku_gpus": site.sku_gpus,
        "result": result,
        **_definition_fields(loaded),
    }


def _shortfall(rules: Iterable[JudgeRule], point: Parameters) -> str:
    """Return why a run at a point is too short for a measurement that its verdict needs, or ""."""
    needed = (rule for rule in rules if rule.applies_to(point) and not rule.optional)
    return next((reason for rule in needed if (reason := rule.shortfall(point))), "")


def _definition_fields(loaded: LoadedDefinition) -> dict[str, Any]:
    """Return a run's fields about its definition: its path, and the digest and time that reveal a change."""
    return {
        "definition_path": loaded.path,
        "definition_sha256": loaded.sha256,
        "definition_ctime_ns": _settled_ctime_ns(Path(loaded.path)),
    }


def _settled_ctime_ns(path: Path) -> int:
    """Return a file's change time, or 0 if another change now might not alter it.

    The clocks of file systems tick every few milliseconds or seconds. A file that just changed may change
    again within the same tick, so only an older time is proof.
    """
    try:
        ctime_ns = path.stat().st_ctime_ns
    except OSError:
        return 0
    return ctime_ns if time.time_ns() - ctime_ns > SETTLED_NS else 0


def definition_findings(planned: PlannedRun) -> list[Finding]:
    """Return a finding if the definition was changed or lost after the run was planned.

    The run is judged by the rules in its plan. It cannot be repeated, because the file no longer contains
    these rules. The file is read again only if its change time allows a change.
    """
    path = Path(planned.definition_path)
    try:
        # Use the change time, not the modification time: `touch` and `cp -p` can set the latter.
        if planned.definition_ctime_ns and path.stat().st_ctime_ns == planned.definition_ctime_ns:
            return []
    except OSError:
        pass  # Reading the file below reports the problem.
    try:
        if load_definition(path, log_formats=FORMATS).sha256 == planned.definition_sha256:
            return []
    except DefinitionError as error:
        return [Finding(code="definition_unreadable", verdict=Verdict.UNPROVEN, message=str(error)[:4000])]
    message = f"{path} was changed after this run was planned; run it again"
    return [Finding(code="definition_changed", verdict=Verdict.UNPROVEN, message=message[:4000])]


def _repeats(planned: PlannedRun, now: datetime) -> list[PlannedRun]:
    """Return a run as many times as its result is repeated."""
    return [
        planned.model_copy(update={"run_id": new_run_id(planned.benchmark, now=now), "repeat": repeat})
        for repeat in range(1, planned.repeats + 1)
    ]


def fitting_overrides(
    loaded: LoadedDefinition, overrides: Matrix, chosen: Sequence[LoadedDefinition]
) -> Matrix:
    """Return the overrides that apply to one of several benchmarks.

    An override of a parameter that is only in other benchmarks is left out. An override that fits no
    benchmark remains, so that it is refused.
    """
    # An override for one benchmark of a suite does not stop the others.
    known_parameters = {name for benchmark in chosen for name in benchmark.definition.parameters}
    parameters = loaded.definition.parameters
    return {
        name: value for name, value in overrides.items() if name in parameters or name not in known_parameters
    }


def resume_or_keep(plan: Plan, results: Path, *, resume: bool = True) -> tuple[Plan, bool]:
    """Return the unfinished plan of the same request, or store and return the new plan.

    The unfinished plan has the new plan's reasons against runs, and is stored again if they differ.

    Args:
        plan: The new plan.
        results: The results folder.
        resume: Whether to continue an interrupted plan.

    Returns:
        The plan to carry out, and whether it is an earlier one.

    Raises:
        ResultsError: A record of the earlier plan is damaged or belongs to another run, or the results folder
            cannot be written.
    """
    earlier_plan = _newest_of_request(plan, results) if resume else None
    if earlier_plan is not None and _is_unfinished(earlier_plan, results):
        mended_plan = _with_present_reasons(earlier_plan, plan)
        if mended_plan != earlier_plan:
            _store(mended_plan, results)
        return mended_plan, True
    # Store the plan before the first run, so that it is found after an interruption right then.
    _store(plan, results)
    return plan, False


def _store(plan: Plan, results: Path) -> None:
    """Write the file of a plan.

    Raises:
        ResultsError: The results folder cannot be written.
    """
    write_file(results / plan.plan_id / PLAN_FILE, seal_json(plan.model_dump_json(indent=1) + "\n"))


def _with_present_reasons(earlier_plan: Plan, plan: Plan) -> Plan:
    """Return an earlier plan of the same request, with the new plan's reasons against its runs.

    The operator may have installed a program that a node lacked. Plans of one request have the same runs in
    the same order. A run that had no reason in the earlier plan gets none, because its job may already run.
    """
    runs = tuple(
        run.model_copy(update={"unproven_because": present.unproven_because}) if run.unproven_because else run
        for run, present in zip(earlier_plan.runs, plan.runs, strict=True)
    )
    return earlier_plan.model_copy(update={"runs": runs})


def _newest_of_request(plan: Plan, results: Path) -> Plan | None:
    """Return the newest stored plan of the same request that is recent enough to be continued, or None."""
    # A plan's id begins with its time, so the newest comes first in the reverse order of names.
    for path in sorted(results.glob(f"plan-*/{PLAN_FILE}"), reverse=True):
        earlier_plan = _read_plan(path)
        if earlier_plan is None or plan.created - earlier_plan.created > RESUME_WITHIN:
            continue
        if earlier_plan.fingerprint == plan.fingerprint:
            return earlier_plan
    return None


def _is_unfinished(plan: Plan, results: Path) -> bool:
    """Return whether runs of a stored plan are missing, or the report of runs that are costly to repeat.

    Raises:
        ResultsError: A record is damaged, or belongs to another run.
    """
    finished = plan.done(results)
    if any(plan.remaining_runs(finished, plan.given_up(finished))):
        return True
    # If the plan was interrupted between the last run and the report, a rack's hours are not spent again.
    costly = any(run.launcher not in ("local", "mpirun") for run in plan.runs)
    return costly and not (results / plan.plan_id / REPORT_FILE).is_file()


def read_plan(results: Path, plan_id: str) -> Plan:
    """Return a stored plan.

    Raises:
        ResultsError: There is no plan with that id, or it is damaged.
    """
    plan = _read_plan(results / plan_id / PLAN_FILE)
    if plan is None:
        raise ResultsError(f"{results / plan_id / PLAN_FILE}: missing or damaged; start the playbook again")
    return plan


def _read_plan(path: Path) -> Plan | None:
    """Return the plan in a file, or None if the file is missing, damaged or in another plan's folder."""
    try:
        plan = Plan.model_validate_json(open_sealed(read_file(path, RECORD_LIMIT_BYTES)))
    except (OSError, ValueError):
        return None
    # If the folder was copied or renamed by hand, its runs name another plan's id.
    return plan if plan.plan_id == path.parent.name else None
