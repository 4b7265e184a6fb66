"""Measure nodes during a night of validate.yml.

The action plugin ``rackproof_validate_probe`` calls :func:`measure_night`, which measures idle nodes with
Slurm jobs. Nodes that nights hold drained are measured without Slurm (:func:`direct_script`,
:func:`store_direct_output`). The numbers become a run of benchmark ``probes`` in the results folder,
which the night judges like any other run. Faults that need no comparison with other numbers (wrong values,
bits or sums, failed pairs, programs that do not end) are in the night's ``probes.json``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from rackproof import __version__
from rackproof.analysis.anomaly import AnomalyPolicy, judge_night
from rackproof.core.definitions import DefinitionError
from rackproof.core.judging import SkuReferenceError
from rackproof.core.records import Measurement, Node, Run, Verdict
from rackproof.core.text import amount, sanitize
from rackproof.jobs.validate.errors import ValidateError
from rackproof.jobs.validate.fleet import drain_policy
from rackproof.jobs.validate.fleet.node_readings import ProbeTarget, program_points, wanted_probes
from rackproof.jobs.validate.fleet.optional_tests import smallest_job_minutes
from rackproof.jobs.validate.fleet.probe_scheduler import describe_probes, probe_night, unmeasured_night
from rackproof.jobs.validate.fleet.retest import SuspectFinder
from rackproof.jobs.validate.foreign_parts import settle_foreign_parts
from rackproof.jobs.validate.inventory import parse_node_expectation, references_by_sku
from rackproof.jobs.validate.measurements import night_reason
from rackproof.nodes.probe_slurm_jobs import (
    FABRIC,
    PROBES,
    JobResult,
    JobRunner,
    ProbeError,
    ProbePlan,
    Shell,
    classify_exit,
    job_script,
)
from rackproof.store import night_store
from rackproof.store.history.client import History
from rackproof.store.known_parts import parts_of_others
from rackproof.store.night_store import NightContext, NightReason, StoredSnapshot
from rackproof.store.probe_results import BENCHMARK, DIRECT, ProbeNight, read_probes, write_probes
from rackproof.store.run_folder import ResultsError, new_run_id, write_file, write_run

_SUSPECT_NIGHTS = 14
"""Largest number of earlier nights that are read to find the nodes that failed or were degraded."""


def check_probe_plan(
    *,
    minutes: float,
    share: float,
    python: str,
    checkout: Path,
    chosen: Sequence[str] = (),
    device: str = "gpu",
    node_limit_s: int = 600,
    pair_limit_s: int = 180,
    srun: Sequence[str] = (),
) -> ProbePlan:
    """Check the settings of a night's measurements, and return them as a plan.

    Args:
        minutes: The GPU-minutes of the night. One of them is one minute of one GPU.
        share: The largest share of a partition that is measured at once.
        python: The interpreter on the nodes that provides PyTorch and mlperf-logging.
        checkout: The path of the checkout, with workloads/ and benchmarks/.
        chosen: The names of probes. Empty means all that run by default.
        device: The device, which is gpu or cpu.
        node_limit_s: The number of seconds that a node's job may take.
        pair_limit_s: The number of seconds that a pair's job may take.
        srun: Additional options for srun.

    Raises:
        ValidateError: A setting is unusable.
    """
    probe_names = (*(probe.name for probe in PROBES), FABRIC)
    if unknown := [name for name in chosen if name not in probe_names]:
        raise ValidateError(
            f"validate_probes: unknown {', '.join(unknown)}; there are {', '.join(probe_names)}"
        )
    if device not in ("gpu", "cpu"):
        raise ValidateError(f"validate_probe_device: gpu or cpu, not {device}")
    if not 0 < share <= 1:
        raise ValidateError(f"validate_probe_share: a fraction above 0 and up to 1, not {share}")
    if min(node_limit_s, pair_limit_s) < 30:
        raise ValidateError("validate_probe_node_s, validate_probe_pair_s: at least 30 seconds")
    if not python.strip():
        raise ValidateError("validate_probe_python: name the interpreter on the nodes that holds PyTorch")
    return ProbePlan(
        minutes=minutes,
        share=share,
        python=python,
        workloads=checkout / "workloads",
        benchmarks=checkout / "benchmarks",
        chosen=tuple(chosen) or (*(probe.name for probe in PROBES if not probe.optional), FABRIC),
        device=device,
        node_limit_s=node_limit_s,
        pair_limit_s=pair_limit_s,
        srun=tuple(srun),
    )


def check_budget(plan: ProbePlan, gpus: Mapping[str, object]) -> None:
    """Check that the smallest job of the night fits into the budget. No I/O.

    Args:
        plan: The plan of the night's measurements.
        gpus: The inventory's number of GPUs of each node. A node of unknown number counts as one with a
            single GPU, so that no budget is refused by mistake.

    Raises:
        ValidateError: No job fits. The message gives the smallest budget that is enough for one.
    """
    least = smallest_job_minutes(plan, [ProbeTarget(name, _count(number)) for name, number in gpus.items()])
    if least > plan.minutes:
        raise ValidateError(
            f"validate_probe_gpu_minutes is {plan.minutes:g}, but the smallest job of this night may take "
            f"{least:g}: set it to {math.ceil(least)} at least, or to 0 to measure nothing"
        )


def _count(number: object) -> int:
    """Return a number of GPUs from the inventory, or 1 if it is no whole number."""
    return int(str(number)) if re.fullmatch("[0-9]{1,6}", str(number)) else 1


def measure_night(
    context: NightContext,
    plan: ProbePlan,
    *,
    slurm: Mapping[str, Any] | None,
    members: str,
    remark: str,
    shell: Shell,
    jobs: Callable[..., JobRunner] = JobRunner,
) -> tuple[str, ...]:
    """Measure the nodes with a snapshot, store the results, and return lines about them.

    If there is no Slurm, or Slurm's host fails, the stored record states that nothing was measured.

    Args:
        context: The context of the night.
        plan: The plan of the measurements.
        slurm: The state of each node, or None if Slurm did not answer or does not exist.
        members: The output of ``sinfo --noheader --Node --format=%N|%R|%E``.
        remark: The reason why Slurm did not answer, or "".
        shell: A function that runs a command line on Slurm's host.
        jobs: A function that creates the runner of the jobs.

    Raises:
        ValidateError: The results cannot be stored, the results folder cannot be listed, a definition cannot
            be read, or an expectation or a reference of the inventory is unusable.
    """
    folder, results = Path(context.folder), Path(context.results)
    snapshots = _read_snapshots(folder)
    try:
        earlier_folders = night_store.night_folders(results, before=context.night_id)
        # Settle parts before anything is measured. A number from another node's GPU belongs to that node.
        snapshots = settle_foreign_parts(folder, earlier_folders, snapshots)
        past_results = [results for results in map(read_probes, earlier_folders) if results is not None]
        if slurm is None:
            why = remark or "there is no Slurm to run jobs (slurm_controller_host is empty)"
            write_probes(folder, unmeasured_night(plan.minutes, snapshots, why))
            return describe_probes(read_probes(folder))
        sizes = drain_policy.drained_by_partition(members)
        partitions = _partitions_by_node(sizes)
        strangers = nodes_with_parts_of_others(earlier_folders, snapshots)
        suspects = _suspect_nodes(earlier_folders, snapshots)
        targets = [
            replace(
                _target(name, stored, slurm.get(name), partitions, name in strangers),
                suspect=name in suspects,
            )
            for name, stored in snapshots.items()
        ]
        run = jobs(shell, plan, {name: len(some) for name, some in sizes.items()}, partitions)
        # The programs of such a node may have measured another node's GPUs, also without Slurm.
        direct = _direct_results(folder, snapshots.keys() - strangers)
        numbers: tuple[Measurement, ...] = ()
        try:
            run.begin()
            night, numbers = probe_night(
                plan, targets, past_results, run, direct, _suspect_finder(results, snapshots, plan.benchmarks)
            )
        except ProbeError as error:
            night = _failed_night(plan, targets, direct, error, run.spent)
        finally:
            run.end()
        if numbers:
            keep_numbers(results, night, numbers, {name: snapshots[name].about for name in snapshots})
        write_probes(folder, night)
    except (ResultsError, DefinitionError, SkuReferenceError) as error:
        raise ValidateError(str(error)) from error
    return describe_probes(night)


def _read_snapshots(folder: Path) -> dict[str, StoredSnapshot]:
    """Return tonight's snapshots by node."""
    return {
        path.stem: stored
        for path in sorted(night_store.snapshots_folder(folder).glob("*.json"))
        if (stored := night_store.read_snapshot(folder, path.stem)) is not None
    }


def _partitions_by_node(members: Mapping[str, Iterable[str]]) -> dict[str, tuple[str, ...]]:
    """Return the partitions of each node."""
    partitions: dict[str, tuple[str, ...]] = {}
    for name, nodes in members.items():
        for node in nodes:
            partitions[node] = (*partitions.get(node, ()), name)
    return partitions


def _failed_night(
    plan: ProbePlan, targets: Sequence[ProbeTarget], direct: Collection[str], error: ProbeError, spent: float
) -> ProbeNight:
    """Return the record of a night without measurements, because Slurm's host failed."""
    # Include the drained nodes that were measured without Slurm, because their results are not stored.
    names = [target.name for target in targets if not target.busy or target.name in direct]
    # The minutes were used even without a result, so the budget counts them.
    return unmeasured_night(plan.minutes, names, str(error)).model_copy(update={"spent": spent})


def nodes_with_parts_of_others(earlier: Sequence[Path], snapshots: Mapping[str, StoredSnapshot]) -> set[str]:
    """Return the nodes that report parts which another node has tonight or had in an earlier night.

    If an operator accepted the parts of a node, its parts in earlier nights do not count.

    Args:
        earlier: The folders of earlier nights, newest first.
        snapshots: The settled snapshots of tonight (:func:`settle_foreign_parts`), by node.
    """
    return {
        name
        for name, stored in snapshots.items()
        if stored.snapshot.foreign_parts
        or (not stored.snapshot.identity_accepted and parts_of_others(earlier, stored.about))
    }


def _suspect_nodes(earlier: Sequence[Path], names: Iterable[str]) -> set[str]:
    """Return the nodes that failed or were degraded in their last night.

    Only a few earlier nights are read (:data:`_SUSPECT_NIGHTS`). A node that is in none of them is not
    suspect.
    """
    known_nights, _ = night_store.last_known(earlier[:_SUSPECT_NIGHTS], names)
    return {
        name
        for name, night_node in known_nights.items()
        if night_node.verdict in (Verdict.FAIL, Verdict.DEGRADED)
    }


def _target(
    name: str,
    stored: StoredSnapshot,
    state: object,
    partitions: Mapping[str, tuple[str, ...]],
    has_parts_of_others: bool,
) -> ProbeTarget:
    """Return a node as a target of measurements. If it is not measured, ``busy`` is the reason."""
    slurm_answer = state if isinstance(state, Mapping) else {}
    gpus, expected = len(stored.snapshot.gpus), parse_node_expectation(name, stored.expected)
    busy = ""
    if has_parts_of_others:
        busy = "not measured: it names parts of another node"
    elif 0 < expected.gpus < gpus:
        # Minutes are counted by GPU, so such a node would use minutes that other nodes need.
        busy = f"not measured: it lists {amount(gpus, 'GPU')}, and its SKU has {expected.gpus}"
    elif slurm_answer.get("known") is not True or name not in partitions:
        busy = "it is not in Slurm, or in no partition"
    elif slurm_answer.get("drained_by") != "none":
        busy = "out of service"
    elif slurm_answer.get("jobs"):
        busy = "at work"
    elif slurm_answer.get("in_service") is not True:
        busy = f"Slurm gives it no work: {sanitize(slurm_answer.get('state_after'), 60)}"
    return ProbeTarget(
        name=name,
        gpus=gpus,
        uuids=frozenset(gpu.uuid for gpu in stored.snapshot.gpus),
        sku=stored.snapshot.sku,
        rack=stored.rack,
        partitions=partitions.get(name, ()),
        references=tuple(stored.sku_references()),
        busy=busy,
        nvlink_domain=expected.nvlink_domain,
    )


def _suspect_finder(
    results: Path, snapshots: Mapping[str, StoredSnapshot], benchmarks: Path
) -> SuspectFinder:
    """Return a function that finds suspect numbers as the night will judge them, by floors and fleet.

    A suspicion of drift, or of a loss on many nodes, is left out, because a second measurement does not help.
    """
    from rackproof.store.history.readings import readings_of
    from rackproof.store.history.store import HistoryError, open_store

    references = references_by_sku(snapshots, program_points(benchmarks))
    nodes = [stored.about for stored in snapshots.values()]

    def doubts(numbers: Sequence[Measurement]) -> dict[int, NightReason]:
        """Return the reasons to measure again, by the index of the number in ``numbers``."""
        if not numbers:
            return {}
        run = _run(BENCHMARK, numbers, nodes)
        readings = readings_of([run], datetime.now(UTC) + timedelta(seconds=1))
        try:
            with open_store(results / "history.sqlite") as store:
                accepted = store.accepted(readings)
        except HistoryError:
            # The night will report this error, and also judge without the references.
            accepted = []
        night = judge_night(
            readings, references, accepted=accepted, policy=AnomalyPolicy(require_references=False)
        )
        reasons: dict[int, NightReason] = {}
        for why in (why for node in night.nodes for why in node.reasons):
            is_worse = why.verdict in (Verdict.FAIL, Verdict.DEGRADED) and not why.fleetwide
            if is_worse and why.check in ("floor", "fleet"):
                # The worst reason is first. Among equally bad reasons, the floor is first.
                reasons.setdefault(why.row, night_reason(why))
        return reasons

    return doubts


def keep_numbers(
    results: Path, night: ProbeNight, numbers: Sequence[Measurement], nodes: Mapping[str, Node]
) -> None:
    """Store the numbers as a run, which the night judges with all others.

    Args:
        results: The results folder.
        night: The record of the measurements.
        numbers: The measured numbers.
        nodes: The nodes with a snapshot. The nodes that were measured become the nodes of the run.

    Raises:
        ResultsError: The run cannot be written.
    """
    labelled = {value for number in numbers for value in number.labels.values()}
    # A node whose job failed after some programs is not in ``measured``, but has numbers, which need an
    # owner.
    names_of_run = [
        name
        for name, hardware in nodes.items()
        if name in night.measured or name in labelled or any(gpu.uuid in labelled for gpu in hardware.gpus)
    ]
    run = _run(new_run_id(BENCHMARK, now=datetime.now(UTC)), numbers, [nodes[name] for name in names_of_run])
    folder = results / run.run_id
    write_run(run, folder)
    History(results).keep(folder)


def _run(run_id: str, numbers: Sequence[Measurement], nodes: Sequence[Node]) -> Run:
    """Return numbers as a run. The run's own verdict is unproven, because the night judges the numbers."""
    now = datetime.now(UTC)
    return Run(
        run_id=run_id,
        benchmark=BENCHMARK,
        description="what a night measured by itself",
        started=now,
        ended=now,
        nodes=tuple(nodes),
        asked_nodes=tuple(node.name for node in nodes),
        measurements=tuple(numbers),
        verdict=Verdict.UNPROVEN,
        reasons=("it is judged by its night",),
        rackproof_version=__version__,
    )


def direct_script(context: NightContext, plan: ProbePlan, node: str) -> str:
    """Return the script that measures a node that nights hold drained.

    Return "" if the node has no snapshot, or if no program suits it.

    Raises:
        ValidateError: The programs cannot be read.
    """
    stored = night_store.read_snapshot(Path(context.folder), node)
    if stored is None:
        return ""
    target = ProbeTarget(name=node, gpus=len(stored.snapshot.gpus))
    programs = wanted_probes(plan, target)
    try:
        return job_script(plan, programs, [node], plan.job_limit_s(programs)) if programs else ""
    except ProbeError as error:
        raise ValidateError(str(error)) from error


def store_direct_output(context: NightContext, node: str, text: str, status: int) -> None:
    """Store the output of a drained node that was measured without Slurm.

    Args:
        context: The context of the night.
        node: The node's name in the inventory.
        text: The output of the script, or the reason why it did not end.
        status: The exit status of the script.

    Raises:
        ValidateError: The output cannot be stored.
    """
    try:
        path = night_store.snapshot_path(Path(context.folder), node).parent.with_name(DIRECT)
        path.mkdir(exist_ok=True)
        write_file(path / f"{node}.log", f"{text}\n:::STATUS {status}\n".encode(errors="replace"))
    except (ResultsError, OSError) as error:
        raise ValidateError(str(error)) from error


def _direct_results(folder: Path, names: Iterable[str]) -> dict[str, JobResult]:
    """Return how the measurements without Slurm ended, by node.

    The input is the files of :func:`store_direct_output`. A node without a file was not measured, and is left
    out.
    """
    results = {}
    for name in names:
        try:
            text = (folder / DIRECT / f"{name}.log").read_text(errors="replace")
        except OSError:
            continue
        # The last mark is Rackproof's. Earlier output of the node may contain one too.
        text, _, status = text.rpartition("\n:::STATUS ")
        results[name] = classify_exit(text, status.strip(), 0.0)
    return results
