"""Run the tasks select, plan, record and report of bench.yml.

The action of each task (plugins/action/rackproof_bench_*) calls the function of that task, in this order:
:func:`select_benchmarks`, :func:`plan_runs`, :func:`record_run` and :func:`report_plan`. The action of record
also calls :func:`abandoned_results`, after which the playbook omits repeats of an invalid result. The actions
check the arguments, and turn :class:`BenchError` into a failed task. Raw facts are a node's answer as the
module rackproof_facts returns it.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from rackproof.analysis.compare.naming import published_system
from rackproof.analysis.compare.systems import compare_systems, systems_of
from rackproof.core import definitions
from rackproof.core.advised_commands import add_results
from rackproof.core.definitions import DefinitionError, Matrix, Parameters, Scalar
from rackproof.core.errors import RackproofError
from rackproof.core.judging import SkuReference, parse_sku_reference
from rackproof.core.records import Finding, Node, Record, Run, Verdict
from rackproof.core.task_failures import failure_reasons
from rackproof.core.text import amount, sanitize
from rackproof.jobs.bench import node_setup, plan_text, planning, runtime_needs
from rackproof.jobs.bench import record as bench_record
from rackproof.jobs.bench.launch_slurm import Site
from rackproof.jobs.bench.machine_use import busy_reason, read_machine_use, runs_elsewhere
from rackproof.jobs.bench.mlperf_checks import score_repeats
from rackproof.jobs.bench.node_setup import ExperimentConfig
from rackproof.jobs.bench.planning import NodeSku, Plan, PlannedRun
from rackproof.jobs.bench.required_evidence import Evidence
from rackproof.logs import FORMATS
from rackproof.nodes.facts import findings_from_facts, node_from_facts, sku_findings
from rackproof.report import write_plan_reports, write_run_reports
from rackproof.report.comparison import write_comparison
from rackproof.report.view import overall_verdict, speeds_not_judged
from rackproof.store import host_claims
from rackproof.store.history.client import History
from rackproof.store.known_parts import parts_of_others, without_parts
from rackproof.store.night_store import night_folders
from rackproof.store.run_evidence import log_objections
from rackproof.store.run_folder import RECORD_NAME, ResultsError, why_unwritable

SIDE_BY_SIDE = 18
"""Largest number of systems in the comparison table.

No rack contains more nodes, and more columns are hard to read. `rackproof compare` compares any two systems.
"""

_LARGEST_VALUE = 2**63
"""Bound for integer parameters, because most programs read integers of 64 bits."""
_NAMES = {"port": "bench_meet_port", "secrets": "bench_secret_environment"}
"""Variables of the inventory whose names are not ``bench_`` and the name of a field."""


class BenchError(RackproofError):
    """An error that the operator must fix. The message gives the cause and the remedy."""


class Choice(Record):
    """The operator's validated selection of benchmarks."""

    benchmarks: tuple[str, ...]
    suite: str
    parameters: Matrix
    definitions: str
    results: str
    programs: tuple[str, ...] = Field(default=(), description="Programs that nodes have to have.")
    imports: dict[str, tuple[str, ...]] = Field(
        default={}, description="Modules that a configured interpreter has to find, by runtime."
    )


@dataclass(frozen=True)
class Requirements:
    """The requirements to judge a speed.

    ``references`` is whether a measurement needs a reference. ``idle`` is whether no other process may have
    used the nodes.
    """

    references: bool
    idle: bool = True


class NodeAnswer(Record):
    """The facts of one node that answered."""

    facts: dict[str, Any] = Field(description="Raw facts, as the module returns them.")
    variables: Parameters = Field(description="Variables that definitions may use.")
    pythons: dict[str, str] = Field(description="By runtime, the Python that already has it.")
    slurm: dict[str, Any] = Field(default={}, description="The cluster, as launch_slurm.Site has it.")
    experiment: dict[str, Any] = Field(
        default={}, description="Storages and networks, as node_setup.ExperimentConfig has it."
    )


class PlanOutcome(Record):
    """The plan to carry out, as the playbook gets it."""

    plan: Plan
    resumed: bool
    given_up: dict[str, str] = Field(description="Benchmarks whose repeats were given up, and why.")
    remaining: dict[str, tuple[dict[str, Any], ...]] = Field(
        description="Runs still to be made, by inventory host, with the data to start them."
    )
    workers: tuple[str, ...] = Field(
        default=(),
        description="Hosts that need the workloads; for a Slurm job, only the host that submits.",
    )
    runtimes: dict[str, tuple[dict[str, Any], ...]] = Field(
        default={}, description="Runtimes of runs that nodes start together, by inventory host."
    )
    mounts: dict[str, tuple[dict[str, Any], ...]] = Field(
        default={},
        description="Mounts that the role storage makes for these runs, by inventory host.",
    )
    lacking: tuple[str, ...] = Field(
        default=(), description="Obstacles that prevent the runs, each listed once."
    )
    description: str


class PlanReport(Record):
    """The outcome of a plan, with its verdict, message and report."""

    verdict: Verdict
    gates: bool
    message: str
    report: str
    runs: tuple[str, ...] = ()
    """Ids of all recorded runs of the plan, also from earlier calls."""


def select_benchmarks(
    folder: Path,
    results: Path,
    *,
    suite: str,
    benchmarks: Sequence[str],
    parameters: Mapping[str, Any],
    sku_references: Sequence[Mapping[str, Any]],
    hosts: Sequence[str],
    owner_pid: int | None,
    workloads: Path | None = None,
    variables: Mapping[str, Any] | None = None,
) -> Choice:
    """Check the request before anything is changed, and claim the hosts.

    Args:
        folder: The folder with the definitions.
        results: The results folder.
        suite: The requested suite. If benchmarks are given, it is ignored.
        benchmarks: The names of the requested benchmarks.
        parameters: The operator's value, or list of values, for each parameter.
        sku_references: The references of the SKU.
        hosts: The hosts that ``--limit`` selects.
        owner_pid: The process whose end releases the claim. None claims nothing (a dry run).
        workloads: The folder of the workloads on this machine, which has the needs of their runtimes.
        variables: Variables of the command line, perhaps with a parameter among them by mistake.

    Raises:
        BenchError: A name is unknown, a definition, parameter or reference is wrong, a parameter is given
            as a variable, a host is claimed, or the results folder is not writable.
    """
    try:
        chosen = definitions.select_benchmarks(
            definitions.load_definitions(folder, log_formats=FORMATS, names=benchmarks),
            suite=suite,
            benchmarks=benchmarks,
        )
        suite = "" if benchmarks else suite
        _refuse_parameters_as_variables(chosen, variables or {})
        overrides = {name: _values(name, value) for name, value in parameters.items()}
        _check_points(chosen, suite, overrides)
        # Check the references here, so that a wrong one is not noticed only after hours of training.
        _sku_references(sku_references)
        # Claim last, so that a refused request leaves no claim behind.
        if owner_pid is not None:
            host_claims.claim_hosts(results, hosts, owner_pid)
    except (DefinitionError, ResultsError, host_claims.HostClaimedError) as error:
        raise BenchError(str(error)) from error
    return Choice(
        benchmarks=tuple(loaded.name for loaded in chosen),
        suite=suite,
        parameters=overrides,
        definitions=str(folder),
        results=str(results),
        programs=_programs(chosen, suite, overrides),
        imports=_imports(chosen, workloads) if workloads is not None else {},
    )


def _refuse_parameters_as_variables(
    chosen: Iterable[definitions.LoadedDefinition], variables: Mapping[str, Any]
) -> None:
    """Refuse a parameter that is given as a variable, because it would have no effect.

    Raises:
        DefinitionError: A parameter is given as a variable.
    """
    for loaded in chosen:
        for name in sorted(variables.keys() & loaded.definition.parameters.keys()):
            value = json.dumps({"bench_parameters": {name: _plain(variables[name])}}, default=str)
            raise DefinitionError(
                f"{name} is a parameter of {loaded.name}, and no variable: type -e '{value}' instead of "
                f"-e {name}=..."
            )


def _plain(value: Any) -> Any:
    """Return a value of the command line with its intended type, because `-e name=8` gives text."""
    try:
        return json.loads(value) if isinstance(value, str) else value
    except ValueError:
        return value


def _programs(
    chosen: Sequence[definitions.LoadedDefinition], suite: str, overrides: Mapping[str, tuple[Scalar, ...]]
) -> tuple[str, ...]:
    """Return the programs in the commands of definitions, for each point that the request selects.

    A program that depends on a variable, or on the folder in which it starts, is left out.
    """
    programs: dict[str, None] = {}
    for loaded in chosen:
        program = (*loaded.definition.launch.command, "")[0]
        if not program:
            continue
        fitting = planning.fitting_overrides(loaded, dict(overrides), chosen)
        for point in loaded.definition.points(suite, fitting) if "{{" in program else ({},):
            with contextlib.suppress(DefinitionError):
                programs[definitions.substitute_variables(program, point)] = None
    return tuple(program for program in programs if not program.startswith("."))


def _imports(chosen: Iterable[definitions.LoadedDefinition], workloads: Path) -> dict[str, tuple[str, ...]]:
    """Return the modules that an interpreter must find for each runtime of the definitions."""
    runtimes = {loaded.definition.launch.runtime for loaded in chosen} - {""}
    return {
        name: tuple(needs.imports) for name, needs in runtime_needs.read_needs(workloads, runtimes).items()
    }


def _check_points(
    chosen: Sequence[definitions.LoadedDefinition], suite: str, overrides: Mapping[str, tuple[Scalar, ...]]
) -> None:
    """Check each point that the request selects.

    Raises:
        DefinitionError: A value is not allowed for its parameter, or is out of bounds.
    """
    for loaded in chosen:
        fitting = planning.fitting_overrides(loaded, dict(overrides), chosen)
        for point in loaded.definition.points(suite, fitting):
            loaded.definition.check_bounds(point)


def plan_runs(
    choice: Choice,
    *,
    hosts: Sequence[str],
    answered: Mapping[str, NodeAnswer],
    resume: bool,
    dry_run: bool,
    assumed: Mapping[str, NodeAnswer] | None = None,
    racks: Mapping[str, str] | None = None,
    sku_references: Sequence[Mapping[str, Any]] = (),
    workloads: Path | None = None,
) -> PlanOutcome:
    """Plan the runs for the nodes that answered, or continue the interrupted plan.

    Args:
        choice: The selection that :func:`select_benchmarks` returned.
        hosts: All requested hosts.
        answered: The facts about each node that answered.
        resume: Whether to continue an interrupted plan of the same request.
        dry_run: Whether to write nothing.
        assumed: Nodes that did not answer, without facts. A dry run plans a rack's runs with these nodes.
        racks: The rack of each host in the inventory. A host without an answer and without a rack may be in
            any rack.
        sku_references: The references of the SKU, to show which of them judge the runs.
        workloads: The folder of the workloads on this machine, which has the needs of their runtimes.

    Raises:
        BenchError: A definition or reference is wrong, a definition uses an unknown variable, a node lacks a
            variable or has an invalid one, a record of the continued plan is damaged, or the plan cannot be
            written.
    """
    assumed = assumed or {}
    _check_variables({**answered, **assumed})
    experiments = {host: _experiment(host, answer.experiment) for host, answer in answered.items()}
    results = Path(choice.results)
    try:
        plan = _with_obstacles(
            _make_plan(choice, hosts, answered, assumed, experiments, racks or {}, dry_run=dry_run), answered
        )
        resumed = False
        if not dry_run:
            plan, resumed = planning.resume_or_keep(plan, results, resume=resume)
        done_runs = plan.done(results)
    except (DefinitionError, ResultsError) as error:
        raise BenchError(str(error)) from error
    given_up = plan.given_up(done_runs)
    to_do = list(plan.remaining_runs(done_runs, given_up))
    # Recorded runs need no time, and are not started again.
    remaining_plan = plan.model_copy(update={"runs": tuple(to_do)}) if resumed else plan
    description = plan_text.describe_plan(remaining_plan, _sku_references(sku_references))
    if resumed:
        description = (
            f"Going on with {plan.plan_id}: {len(done_runs)} of {len(plan.runs)} done.\n{description}"
        )
    lacking = _lacking_for_runtimes(to_do, answered, workloads) if workloads is not None else []
    # Without this check, a run would fail at its first write, after the nodes were prepared.
    obstacle = why_unwritable(results) if dry_run else ""
    lacking += [f"{obstacle}; set bench_results to another folder"] if obstacle else []
    description = "\n".join([description, *lacking])
    # How a run is started is read from its lead, which in a dry run may not have answered.
    startable = [run for run in to_do if run.lead in answered]
    return PlanOutcome(
        plan=plan,
        resumed=resumed,
        given_up=given_up,
        remaining=_starts_by_host(startable, answered, plan),
        workers=_workers(startable),
        runtimes=_runtimes(startable, answered),
        mounts=_mounts(startable, experiments),
        lacking=tuple(plan_text.lacking(plan)),
        description=add_results(description, results),
    )


def _check_variables(answered: Mapping[str, NodeAnswer]) -> None:
    """Check that no node lacks a variable that every run needs.

    Raises:
        BenchError: A node lacks a variable.
    """
    for host, answer in answered.items():
        lacking = [name for name in ("bench_home", "bench_workloads") if name not in answer.variables]
        if lacking:
            raise BenchError(f"{host}: set {', '.join(lacking)}; see roles/bench/defaults/main.yml")


def _starts_by_host(
    runs: Sequence[PlannedRun], answered: Mapping[str, NodeAnswer], plan: Plan
) -> dict[str, tuple[dict[str, Any], ...]]:
    """Return the data to start the runs with, by starting host, in the order of the plan."""
    starts: dict[str, list[dict[str, Any]]] = {}
    names = plan.result_names()
    for run in runs:
        start = {**_to_start(run, answered, plan.plan_id), "result": names[run.run_id]}
        starts.setdefault(run.lead, []).append(start)
    return {host: tuple(runs) for host, runs in starts.items()}


def _make_plan(
    choice: Choice,
    hosts: Sequence[str],
    answered: Mapping[str, NodeAnswer],
    assumed: Mapping[str, NodeAnswer],
    experiments: Mapping[str, ExperimentConfig],
    racks: Mapping[str, str],
    *,
    dry_run: bool,
) -> Plan:
    """Return a new plan for the request.

    Raises:
        BenchError: The value of a variable of the Slurm cluster is invalid.
        DefinitionError: A definition is wrong or uses an unknown variable, or a node lacks a variable.
    """
    answers = {**answered, **assumed}
    sites = {host: _site(host, answer.slurm) for host, answer in answers.items()}
    history = History(Path(choice.results))
    nodes = {
        host: node_from_facts(host, answer.facts, sku=str(answer.variables.get("bench_sku", "")))
        for host, answer in answered.items()
    }
    loaded = definitions.load_definitions(
        Path(choice.definitions), log_formats=FORMATS, names=choice.benchmarks
    )
    return planning.make_plan(
        definitions.select_benchmarks(loaded, benchmarks=choice.benchmarks),
        nodes,
        {host: answer.variables for host, answer in answers.items()},
        suite=choice.suite,
        overrides=choice.parameters,
        unreached=[host for host in hosts if host not in nodes],
        assumed=list(assumed),
        # A dry run creates no history, but uses one that exists.
        estimate=history.estimate if history.exists or not dry_run else (lambda *_: None),
        sites=sites,
        racks=racks,
        experiments=experiments,
        addresses={
            host: node_setup.node_address(answer.facts, experiments[host].fabric_interface)
            for host, answer in answered.items()
        },
    )


def _with_obstacles(plan: Plan, answered: Mapping[str, NodeAnswer]) -> Plan:
    """Return the plan, with a reason at each run whose node lacks its program or interpreter."""
    runs = [
        run if run.unproven_because else run.model_copy(update={"unproven_because": _obstacle(run, answered)})
        for run in plan.runs
    ]
    return plan.model_copy(update={"runs": tuple(runs)})


def _obstacle(run: PlannedRun, answered: Mapping[str, NodeAnswer]) -> str:
    """Return why a run cannot start on one of its nodes, or "" if no reason is known."""
    for node in run.nodes:
        if node not in answered:
            continue
        facts, pythons = answered[node].facts, answered[node].pythons
        why = ""
        # A job with its own PATH may find programs that the facts module did not find.
        if run.program == planning.RUN_COMMAND and run.arguments and "PATH" not in run.environment:
            why = runtime_needs.program_obstacle(run.arguments[0], facts)
        elif run.runtime in pythons:
            why = runtime_needs.interpreter_obstacle(run.runtime, pythons[run.runtime], facts)
        if why:
            return f"{node}: {why}"
    return ""


def _workers(runs: Sequence[PlannedRun]) -> tuple[str, ...]:
    """Return the hosts that need the workloads. With launcher slurm, only the submitting host needs them."""
    workers: dict[str, None] = {}
    for run in runs:
        workers.update(dict.fromkeys([run.lead] if run.launcher == "slurm" else run.nodes))
    return tuple(workers)


def _lacking_for_runtimes(
    runs: Sequence[PlannedRun], answered: Mapping[str, NodeAnswer], workloads: Path
) -> list[str]:
    """Return lines about the requirements of the runs' runtimes that nodes do not meet."""
    places = {
        (node, run.runtime): None
        for run in runs
        for node in run.nodes
        if run.runtime and node in answered and run.runtime not in answered[node].pythons
    }
    needs = runtime_needs.read_needs(workloads, {runtime for _, runtime in places})
    return [
        line
        for node, runtime in places
        if runtime in needs
        for line in runtime_needs.describe_lacking(node, runtime, needs[runtime], answered[node].facts)
    ]


def _runtimes(
    runs: Sequence[PlannedRun], answered: Mapping[str, NodeAnswer]
) -> dict[str, tuple[dict[str, Any], ...]]:
    """Return the runtimes of the runs that nodes start together, by host, without duplicates."""
    names: dict[str, dict[str, None]] = {}
    for run, host in _setups(runs):
        names.setdefault(host, {})[run.runtime] = None
    return {
        host: tuple(
            {"name": name, "arguments": _runtime_arguments(name, answered[host])} for name in runtimes if name
        )
        for host, runtimes in names.items()
    }


def _mounts(
    runs: Sequence[PlannedRun], experiments: Mapping[str, ExperimentConfig]
) -> dict[str, tuple[dict[str, Any], ...]]:
    """Return the mounts of the role storage for runs that nodes start together, by host."""
    points: dict[str, list[Parameters]] = {}
    for run, host in _setups(runs):
        points.setdefault(host, []).append(run.parameters)
    mounts = {
        host: tuple(node_setup.storage_mounts(of_host, experiments[host])) for host, of_host in points.items()
    }
    return {host: entries for host, entries in mounts.items() if entries}


def _setups(runs: Sequence[PlannedRun]) -> Iterator[tuple[PlannedRun, str]]:
    """Yield each run that sets up nodes, together with each of its nodes."""
    for run in runs:
        if run.setup is not None and not run.unproven_because:
            for host in run.nodes:
                yield run, host


def planned_run(results: Path, plan_id: str, run_id: str) -> PlannedRun:
    """Return one run of a stored plan.

    Raises:
        BenchError: The plan does not exist or is damaged, or the plan lacks the run.
    """
    try:
        for run in planning.read_plan(results, plan_id).runs:
            if run.run_id == run_id:
                return run
    except ResultsError as error:
        raise BenchError(str(error)) from error
    raise BenchError(f"{results / plan_id}: has no run {run_id}")


def record_run(
    results: Path,
    plan_id: str,
    run_id: str,
    *,
    facts: Mapping[str, Mapping[str, Any]],
    sku: str,
    sku_gpus: int = 0,
    sku_references: Sequence[Mapping[str, Any]],
    required: Requirements,
    job: Mapping[str, Any],
    failure: str,
    command: Sequence[str],
    texts: Mapping[str, str],
    reports: Mapping[str, Any] | None = None,
    jobs: Mapping[str, Any] | None = None,
) -> bench_record.RecordedRun:
    """Record one run whose logs are in ``results/RUN_ID/logs``.

    Args:
        results: The results folder.
        plan_id: The id of the plan.
        run_id: The id of the run.
        facts: The raw facts of the nodes that took part. A value that is no mapping counts as empty.
        sku: The SKU of the lead node. The plan states the SKUs of the other nodes.
        sku_gpus: The number of GPUs required of the lead, or 0 if unknown.
        sku_references: References of the SKU. If one is wrong, none is used, and the run is unproven.
        required: The conditions for judging a speed.
        job: The final state of the job, or empty if none was started.
        failure: The reason why no job was started, or "".
        command: The command line of the job.
        texts: The operator's description, notes, storage and network.
        reports: Each node's report about its setup, if the run needs one.
        jobs: The final state of each node's part of the job, except the lead's.

    Raises:
        BenchError: The plan or its run cannot be read, the results folder cannot be listed, or the record
            cannot be written.
    """
    planned = planned_run(results, plan_id, run_id)
    # The facts of a node that was lost during the run are missing, but the run must be recorded.
    facts = {name: raw if isinstance(raw, Mapping) else {} for name, raw in facts.items()}
    baselines, baseline_findings = _usable_sku_references(sku_references)
    setup = node_setup.SetupEvidence()
    if planned.setup is not None and not planned.unproven_because:
        setup = node_setup.judge_setup(planned.setup, planned.lead, reports or {}, jobs or {}, bool(job))
    skus = _skus_of_nodes(planned, facts, NodeSku(sku=sku, gpus=sku_gpus, gpu_name=planned.sku_gpu_name))
    nodes = tuple(node_from_facts(name, raw, sku=skus[name].sku) for name, raw in facts.items())
    nodes, claims = _without_parts_of_others(results, nodes)
    watched: dict[str, Mapping[str, Any]] = {}
    if not runs_elsewhere(planned.launcher, planned.arguments):
        watched = {planned.lead: job, **_jobs_of_others(jobs)}
    uses = read_machine_use(watched)
    evidence = Evidence(
        nodes=nodes,
        job=dict(job),
        findings=(
            *_facts_findings(facts, skus),
            *claims,
            *_findings_of_sku(nodes, skus),
            *baseline_findings,
            *setup.findings,
            *bench_record.part_findings(run_id, (jobs or {}) if job else {}),
        ),
        could_not_start=failure or planned.unproven_because,
        command=tuple(command),
        measurements=setup.measurements,
        machine_use=uses,
        busy=busy_reason(uses, watched) if required.idle else "",
        **_with_observed_texts(texts, setup),
    )
    try:
        return bench_record.write_record(
            planned,
            evidence,
            results / run_id,
            plan_id=plan_id,
            sku_references=baselines,
            require_references=required.references,
        )
    except (ResultsError, OSError) as error:
        raise BenchError(f"run {run_id} could not be recorded completely: {error}") from error


def _jobs_of_others(jobs: Mapping[str, Any] | None) -> dict[str, Mapping[str, Any]]:
    """Return the state of the job on each node but the lead, without nodes that reported none."""
    return {name: state for name, state in (jobs or {}).items() if isinstance(state, Mapping)}


def _skus_of_nodes(planned: PlannedRun, names: Iterable[str], of_lead: NodeSku) -> dict[str, NodeSku]:
    """Return the SKU of each node from the plan, or the lead's SKU if the plan states none."""
    # The lead's SKU is from the playbook, because it may have been corrected since the plan was made.
    known_skus = {**planned.node_skus, planned.lead: of_lead}
    return {name: known_skus.get(name, of_lead) for name in names}


def _facts_findings(facts: Mapping[str, Mapping[str, Any]], skus: Mapping[str, NodeSku]) -> list[Finding]:
    """Return the findings from the facts of a run's nodes, in the order of the nodes."""
    findings: list[Finding] = []
    for name, raw in facts.items():
        findings += findings_from_facts(name, raw, expected_gpus=skus[name].gpus)
    return findings


def _without_parts_of_others(results: Path, nodes: Sequence[Node]) -> tuple[tuple[Node, ...], list[Finding]]:
    """Return the nodes without parts of other nodes, and a finding for each node with such parts.

    The history is kept by hardware, so numbers under another node's serial number would count for
    that node.

    Raises:
        BenchError: The results folder cannot be listed.
    """
    try:
        past = night_folders(results)
    except ResultsError as error:
        raise BenchError(str(error)) from error
    own_nodes, findings = [], []
    for node in nodes:
        claimed = parts_of_others(past, node)
        if claimed:
            parts_text = ", ".join(f"{part} of {owner}" for part, owner in list(claimed.items())[:4])
            message = f"{node.name} reports parts that nights found only in another node: {parts_text}"
            findings.append(
                Finding(code="foreign_parts", verdict=Verdict.UNPROVEN, message=sanitize(message, 1000))
            )
        own_nodes.append(without_parts(node, claimed))
    return tuple(own_nodes), findings


def _findings_of_sku(nodes: Sequence[Node], skus: Mapping[str, NodeSku]) -> list[Finding]:
    """Return findings if the nodes do not match their SKU, or are not all of one SKU."""
    findings: list[Finding] = []
    for node in nodes:
        node_sku = skus[node.name]
        findings += sku_findings(
            node.name, node.gpus, sku=node_sku.sku, gpu_name=node_sku.gpu_name, expected_gpus=node_sku.gpus
        )
    if len({sku.sku for sku in skus.values()}) > 1:
        named = ", ".join(f"{name} is {sku.sku or 'of no SKU'}" for name, sku in skus.items())
        message = f"the nodes are of several SKUs, which share no reference: {named}; select nodes of one SKU"
        findings.append(Finding(code="skus_differ", verdict=Verdict.UNPROVEN, message=message[:4000]))
    return findings


def _usable_sku_references(raw: Sequence[Mapping[str, Any]]) -> tuple[list[SkuReference], list[Finding]]:
    """Return the SKU's references, or none and a finding if they are wrong."""
    try:
        return _sku_references(raw), []
    except BenchError as error:
        # At the start, the references of only one host were checked. The run is made and must not be lost.
        finding = Finding(code="sku_references", verdict=Verdict.UNPROVEN, message=str(error)[:4000])
        return [], [finding]


def _with_observed_texts(texts: Mapping[str, str], setup: node_setup.SetupEvidence) -> dict[str, str]:
    """Return the operator's texts, with network and storage replaced by the nodes' reports."""
    observed = {"network": setup.network, "storage": setup.storage}
    return {**texts, **{name: text for name, text in observed.items() if text}}


def abandoned_results(results: Path, plan_id: str) -> dict[str, str]:
    """Return a plan's results that can no longer become valid, with the reasons.

    The keys are names of :meth:`Plan.result_names`.

    Raises:
        BenchError: The plan or one of its records cannot be read.
    """
    try:
        plan = planning.read_plan(results, plan_id)
        return plan.given_up(plan.recorded(results))
    except ResultsError as error:
        raise BenchError(str(error)) from error


def report_plan(results: Path, plan_id: str) -> PlanReport:
    """Write the plan's report, and return the verdict over all its runs.

    Raises:
        BenchError: The plan or one of its records cannot be read, or the report cannot be written.
    """
    try:
        plan = planning.read_plan(results, plan_id)
        recorded = plan.recorded(results)
        runs = [recorded[run.run_id] for run in plan.runs if run.run_id in recorded]
        given_up = plan.given_up(recorded)
        scores = _scores(plan, recorded, given_up, results)
        judged = [(text, verdict) for text, verdict in scores.items() if verdict is not None]
        missing = _missing(plan, recorded, given_up, results)
        remarks = _write_other_pages(plan, runs, results)
        pages = write_plan_reports(
            runs,
            results / plan_id,
            plan.title,
            link=lambda run: f"../{run.run_id}/report.html",
            missing=missing,
            left_out=[
                *(f"{point.benchmark} on {point.node}: {point.reason}" for point in plan.skipped),
                *plan_text.idle_lines(plan),
            ],
            scores=judged,
        )
    except (ResultsError, OSError) as error:
        raise BenchError(f"the report of {plan_id} could not be written: {error}") from error
    # A missing run gates like an unproven one, because the plan proves nothing without it.
    verdict = overall_verdict(runs, missing, judged)
    lines = [
        f"{plan.title}: {verdict.value} ({len(runs)} of {amount(len(plan.runs), 'run')} recorded)",
        # The command is typed in the folder of the playbook, and finds the folder `results` there.
        *filter(None, [add_results(speeds_not_judged(runs, plan_id), results)]),
        *(f"fail: {text}" for text in _with_verdict(scores, Verdict.FAIL)),
        *(f"unproven: {text}" for text in [*missing, *_with_verdict(scores, Verdict.UNPROVEN)]),
        *(f"degraded: {text}" for text in _with_verdict(scores, Verdict.DEGRADED)),
        *_with_verdict(scores, None, Verdict.PASS),
        *plan_text.idle_lines(plan),
        *filter(None, remarks),
        f"report: {pages['html']}",
    ]
    return PlanReport(
        verdict=verdict,
        gates=verdict.gates,
        message="\n".join(lines),
        report=str(pages["html"]),
        runs=tuple(run.run_id for run in runs),
    )


def _with_verdict(scores: Mapping[str, Verdict | None], *verdicts: Verdict | None) -> list[str]:
    """Return the texts of :func:`_scores` whose verdict is in the given verdicts."""
    return [text for text, verdict in scores.items() if verdict in verdicts]


def _write_other_pages(plan: Plan, runs: Sequence[Run], results: Path) -> list[str]:
    """Write the other pages of the plan. Return lines with their paths or errors."""
    remarks = [_mend_page(run, results / run.run_id) for run in runs]
    judge = all(run.published_references for run in plan.runs)
    return [*remarks, _comparison(runs, results / plan.plan_id, judge)]


def _changed_logs(plan: Plan, recorded: Mapping[str, Run], results: Path) -> list[str]:
    """Describe the runs whose logs changed after they were judged."""
    changed = []
    for run in plan.runs:
        record = recorded.get(run.run_id)
        if record and (objections := log_objections(record, results / run.run_id)):
            title = f"{run.title} on {run.lead}: {'; '.join(objections)}"
            changed.append(f"{title}; move its folder {run.run_id} out of the results and start again")
    return changed


def _missing(
    plan: Plan, recorded: Mapping[str, Run], given_up: Mapping[str, str], results: Path
) -> list[str]:
    """Describe the reasons why the plan is incomplete.

    A plan lacks runs without a record, runs with changed logs, and repeats that were given up. It also
    lacks hosts that did not answer, or on which nothing could run.
    """
    missing = [
        f"{run.title} on {run.lead}: has no record; start again"
        for run in plan.remaining_runs(recorded, given_up)
    ]
    missing += _changed_logs(plan, recorded, results)
    missing += [f"{result}: the other repeats were not made: {reason}" for result, reason in given_up.items()]
    missing += [f"{host}: not reached; see its error above" for host in plan.unreached]
    missing += [f"{host}: nothing could be run on it: {reason}" for host, reason in plan.unused.items()]
    return missing


def _scores(
    plan: Plan, recorded: Mapping[str, Run], given_up: Mapping[str, str], results: Path
) -> dict[str, Verdict | None]:
    """Return the verdict on each result's repeats, by the line with their score.

    Without a verdict (None), the line is a remark (:func:`score_repeats`).
    """
    scores: dict[str, Verdict | None] = {}
    names = plan.result_names()
    for members in _repeat_groups(plan, names, given_up):
        # A score of only some repeats would not be a result. Another line names the missing repeats.
        if all(run.run_id in recorded for run in members):
            verdict, score_text = score_repeats(members, results)
            scores[f"{names[members[0].run_id]}: {score_text}"] = verdict
    return scores


def _repeat_groups(
    plan: Plan, names: Mapping[str, str], given_up: Mapping[str, str]
) -> list[list[PlannedRun]]:
    """Return the repeats of each result that can still become valid. ``names`` has each run's result."""
    groups: dict[tuple[str, tuple[str, ...], str], list[PlannedRun]] = {}
    for run in plan.runs:
        if run.repeats > 1 and names[run.run_id] not in given_up:
            groups.setdefault(run.result_key, []).append(run)
    return list(groups.values())


def _comparison(runs: Sequence[Run], folder: Path, judge: bool) -> str:
    """Write a page that compares the systems, if there are several. Return a line with its path, or "".

    Args:
        runs: The runs of a plan.
        folder: The folder of the plan.
        judge: Whether published systems serve as references (``bench_published_references``).
    """
    systems = systems_of(runs)
    # One system alone cannot be compared.
    if not 2 <= len(systems) <= SIDE_BY_SIDE:
        return ""
    systems_named = {published_system(str(run.parameters.get("system", ""))) for run in runs}
    try:
        # Runs from several published systems share no reference.
        reference = systems_named.pop() if len(systems_named) == 1 else None
        pages = write_comparison(compare_systems(systems, reference=reference, judge=judge), folder)
    except Exception as error:  # An extra page must not hide the verdict.
        return f"the systems could not be compared: {error}"
    return f"side by side: {pages['html']}"


def _mend_page(run: Run, folder: Path) -> str:
    """Write the page of a run if it is missing or older than the record. Return the error, or ""."""
    page = folder / "report.html"
    try:
        # The record is written first, so an older page is incomplete or shows an earlier verdict.
        if not page.is_file() or page.stat().st_mtime_ns < (folder / RECORD_NAME).stat().st_mtime_ns:
            write_run_reports(run, folder)
    except Exception as error:  # A missing page must not hide the verdict.
        return f"the page of {run.run_id} could not be written: {error}"
    return ""


def failure_message(task: str, result: Mapping[str, Any]) -> str:
    """Return why a task failed: the reason of its first failed item, sanitized for terminals and pages."""
    return f"{task}: {sanitize(failure_reasons(result)[0], 4000, newlines=True)}"


def _site(host: str, raw: Mapping[str, Any]) -> Site:
    """Return the cluster that a host's variables describe.

    Raises:
        BenchError: The value of a variable is invalid.
    """
    try:
        return Site.model_validate(raw)
    except ValidationError as error:
        problem = error.errors()[0]
        name = _variable_at(problem["loc"])
        # The error is not chained to the original one, whose text contains the values.
        raise BenchError(f"{host}: {name}: {problem['msg']}; see docs/using/mlperf.md") from None


def _experiment(host: str, raw: Mapping[str, Any]) -> ExperimentConfig:
    """Return a host's variables that concern experiments.

    Raises:
        BenchError: The value of a variable is invalid.
    """
    try:
        return ExperimentConfig.model_validate(raw)
    except ValidationError as error:
        problem = error.errors()[0]
        name = _variable_at(problem["loc"])
        raise BenchError(f"{host}: {name}: {problem['msg']}; see docs/using/experiments.md") from error


def _variable_at(place: Sequence[int | str]) -> str:
    """Return the variable of the inventory at a place in Site or ExperimentConfig.

    The place ``("storages", "x", "kind")`` is ``bench_storages.x.kind``.
    """
    if not place:  # pydantic does so for a name that is not valid Unicode.
        return "the name of a variable"
    first, *others = (str(part) for part in place)
    return ".".join([_NAMES.get(first, f"bench_{first}"), *others])


def _to_start(run: PlannedRun, answered: Mapping[str, NodeAnswer], plan_id: str) -> dict[str, Any]:
    """Return the data that the playbook needs to start a run, as plain values."""
    answer = answered[run.lead]
    home = answer.variables["bench_home"]
    # The programs of these launchers store the benchmark's code (config and run script), which is fetched.
    on_cluster = run.launcher in ("docker", "slurm")
    shared = answer.slurm.get("shared", "")
    if run.launcher == "docker":
        shared = f"{shared if len(run.nodes) > 1 else home}/docker"
    return {
        # The rules stay in the plan. No task needs them, and Ansible would template them.
        **run.model_dump(mode="json", exclude={"result"}),
        "format": run.result.format,
        "parts": [_part(run, rank, answered[name]) for rank, name in enumerate(run.nodes) if run.setup],
        "arguments": _start_arguments(run, plan_id),
        "title": run.title,
        "is_slurm_job": run.is_slurm_job,
        "runtime_arguments": _runtime_arguments(run.runtime, answer) if run.runtime else [],
        "code": f"{shared}/runs/{run.run_id}/code" if on_cluster else "",
    }


def _start_arguments(run: PlannedRun, plan_id: str) -> list[str]:
    """Return a program's arguments with the ids, which are unknown while plans are compared."""
    arguments = list(run.arguments)
    if run.launcher in ("docker", "slurm"):
        arguments.append(f"--id={run.run_id}")
    if run.launcher == "slurm":
        arguments.append(f"--plan={plan_id}")
    return arguments


def _part(run: PlannedRun, rank: int, answer: NodeAnswer) -> dict[str, Any]:
    """Return the data to start one node's part of a run that nodes start together."""
    home, workloads = answer.variables["bench_home"], answer.variables["bench_workloads"]
    folder = f"{home}/runs/{run.run_id}"
    arguments = [f"{workloads}/rendezvous.py", f"--folder={folder}", f"--node-rank={rank}"]
    if run.setup is not None:
        arguments += [f"--port={run.setup.port}", *(["--only-first"] if run.setup.only_first else [])]
    return {
        "node": run.nodes[rank],
        "rank": rank,
        "home": home,
        "folder": folder,
        "workloads": workloads,
        "rendezvous": arguments,
    }


def _runtime_arguments(runtime: str, answer: NodeAnswer) -> list[str]:
    """Return the arguments of make_runtime.py on a node."""
    home, workloads = answer.variables["bench_home"], answer.variables["bench_workloads"]
    arguments = [f"--runtime={workloads}/{runtime}", f"--folder={home}/runtimes/{runtime}"]
    return arguments + ([f"--python={answer.pythons[runtime]}"] if runtime in answer.pythons else [])


def _values(name: object, value: Any) -> tuple[Scalar, ...]:
    """Return the values that an operator gave for a parameter.

    Raises:
        BenchError: The name is no text, there is no value, a value is neither text nor a finite number, or an
            integer does not fit into 64 bits.
    """
    if not isinstance(name, str):
        raise BenchError(f"bench_parameters: no parameter `{name}`: a parameter's name is text")
    values = value if isinstance(value, list | tuple) else [value]
    # With an empty list the matrix gives no point, and the benchmark would silently be left out.
    if not values:
        raise BenchError(f"bench_parameters: {name}: an empty list would run nothing; give a value")
    return tuple(_scalar(name, scalar) for scalar in values)


def _scalar(name: str, value: Any) -> Scalar:
    """Return an operator's value. ``-e`` passes text, so text that is a number becomes one."""
    # NaN is not equal to itself, so runs with it could never be compared.
    if isinstance(value, bool | int) and abs(value) < _LARGEST_VALUE:
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    if isinstance(value, str):
        number = _number_in_text(value)
        # Ansible passes text as its own subclass of str.
        return str(value) if number is None else number
    raise BenchError(f"bench_parameters: {name}: a value is text or a finite number, not {value!r}")


def _number_in_text(text: str) -> int | float | None:
    """Return the finite number in a text (an int if it is a whole number), or None.

    A whole number that :func:`_scalar` refuses stays text, because a float would be another number.
    """
    # Python would read "8_00" as 800, and accept digits of all scripts. Here, these stay text.
    if "_" in text or not text.isascii():
        return None
    for kind in (int, float):
        try:
            number = kind(text)
            if isinstance(number, int) and abs(number) >= _LARGEST_VALUE:
                return None
            if math.isfinite(number):
                return number
        except (ValueError, OverflowError):
            # The text is no number of this kind, or too long.
            continue
    return None


def _sku_references(raw: Sequence[Mapping[str, Any]]) -> list[SkuReference]:
    """Return the references of the SKU.

    Raises:
        BenchError: A reference is wrong.
    """
    references = []
    for number, reference in enumerate(raw, 1):
        entry = f"bench_sku_references: entry {number}"
        if not isinstance(reference, Mapping):
            raise BenchError(
                f"{entry}: is {type(reference).__name__}, not a mapping; see docs/using/benchmarks.md"
            )
        try:
            references.append(parse_sku_reference(reference))
        except ValidationError as error:
            problem = error.errors()[0]
            place = ".".join(str(part) for part in problem["loc"])
            raise BenchError(f"{entry}: {place}: {problem['msg']}; see docs/using/benchmarks.md") from error
    return references
