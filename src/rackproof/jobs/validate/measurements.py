"""Judge a night's numbers from runs and probes on its nodes, and find new faults in them.

:mod:`rackproof.jobs.validate.judge` calls :func:`judge_measurements`, which returns the reasons by node. The
judged numbers come from the history. They come from the run folders if the history cannot be read, or if a
dry run finds none. :func:`runs_since_last_night` always reads the run folders.

A number is a measurement of a run or probe, such as the speed of a GPU. Readings are the numbers of some
nights as arrays: each row has a node, a part, a quantity, a value, and a night, counted backwards in periods
of 24 hours (0 is tonight). The hardware key identifies a machine, whatever its name, usually by its serial
number (:attr:`rackproof.core.records.Node.hardware_key`).
"""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from pydantic import Field

from rackproof.analysis.anomaly import AnomalyPolicy, Conditions, Night, Reason
from rackproof.core.definitions import Parameters
from rackproof.core.records import Record, Run, Verdict, worst
from rackproof.core.text import sanitize
from rackproof.jobs.validate.fleet.healing import PROGRAMS, SOAK
from rackproof.jobs.validate.fleet.pair_runner import unproven_pairs
from rackproof.jobs.validate.inventory import references_by_sku
from rackproof.nodes.health_subjects import HealthFinding
from rackproof.nodes.snapshot_records import GpuSnapshot
from rackproof.store import night_store
from rackproof.store.night_store import NightReason, StoredSnapshot
from rackproof.store.probe_results import BENCHMARK as PROBES_BENCHMARK
from rackproof.store.probe_results import ProbeNight, read_probes
from rackproof.store.run_folder import ResultsError, stamp_of

DRIFT_NIGHTS = 15
"""Number of nights that are read from the history: tonight, and the fourteen earlier nights that drift uses.
Without the history, only tonight's numbers are judged."""
ELSEWHERE_DAYS = 60
"""Number of days for which a GPU's failure in another chassis counts."""
SOAK_S = 600
"""Shortest duration of a soak that shows how a GPU is cooled, in seconds. Nights and the suites with the
benchmark use this duration."""


@dataclass(frozen=True)
class SuspectNumbers:
    """The suspect numbers of tonight and the last two days, as pairs of benchmark and hardware key.

    Attributes:
        once: The numbers that were measured only once.
        twice: The numbers that were measured twice. Only the better value of each is judged.
    """

    once: Collection[tuple[str, str]] = ()
    twice: Collection[tuple[str, str]] = ()


class NightNumbers(Record):
    """The judged numbers of a night, as reasons and verdicts by node.

    Attributes:
        nodes: The nodes with a number from the last 24 hours.
        reasons: The reasons why a judged node does not pass.
        verdicts: The verdict of each judged node.
        link_reasons: The reasons why links and groups of nodes do not pass.
        elsewhere: The findings about GPUs that failed in another chassis.
        remarks: Remarks that change no verdict.
        compared: The comparisons that were made for the numbers of each node that nights hold drained.
    """

    nodes: tuple[str, ...] = ()
    reasons: dict[str, tuple[NightReason, ...]] = Field(default={})
    verdicts: dict[str, Verdict] = Field(default={})
    link_reasons: tuple[NightReason, ...] = ()
    elsewhere: tuple[HealthFinding, ...] = ()
    remarks: tuple[str, ...] = ()
    compared: dict[str, tuple[str, ...]] = Field(default={})


def judge_measurements(
    results: Path,
    snapshots: Mapping[str, StoredSnapshot],
    now: datetime,
    required: bool,
    policy: AnomalyPolicy,
    dry: bool,
    suspects: SuspectNumbers,
    conditions: Sequence[Conditions],
    held: Mapping[str, int],
    points: Mapping[str, Parameters],
) -> NightNumbers:
    """Judge the measurements of the last 24 hours' runs on these nodes.

    Args:
        results: The results folder.
        snapshots: The snapshots of tonight's nodes.
        now: The end of the 24 hours.
        required: Whether a node without any number is unproven.
        policy: The limits of the judgement.
        dry: Whether this is a dry run, which creates no history and moves no files.
        suspects: The suspect numbers that were measured once or twice.
        conditions: The nodes' firmware and rack, one mapping for each night, tonight first.
        held: The nodes that nights hold drained, with the number of days since then.
        points: The parameters of the night's programs, as
            :func:`rackproof.jobs.validate.inventory.references_by_sku` needs them.

    Raises:
        ValidateError: A reference of the inventory is invalid.
    """
    from rackproof.analysis.anomaly import judge_night
    from rackproof.analysis.drained_comparisons import comparisons

    readings, accepted, failed_elsewhere, remarks = _read_numbers(results, snapshots, now, dry)
    nodes_by_key = _nodes_by_hardware_key(snapshots)
    night = judge_night(
        readings,
        references_by_sku(snapshots, points),
        requested=[stored.about for stored in snapshots.values()] if required else (),
        accepted=accepted,
        policy=policy,
        once=suspects.once,
        twice=suspects.twice,
        conditions=conditions,
    )
    judged = _judged_nodes(night, nodes_by_key)
    measured_keys = _measured_tonight(readings)
    nights_held = {snapshots[name].about.hardware_key: nights for name, nights in held.items()}
    compared = comparisons(readings, nights_held, policy) if nights_held else {}
    return NightNumbers(
        nodes=tuple(name for key, names in nodes_by_key.items() if key in measured_keys for name in names),
        reasons={name: reasons for name, (_, reasons) in judged.items()},
        verdicts={name: verdict for name, (verdict, _) in judged.items()},
        link_reasons=_link_reasons(night, snapshots),
        elsewhere=tuple(failed_elsewhere),
        remarks=(*remarks, *night.notes),
        compared={
            name: tuple(sorted(names)) for key, names in compared.items() for name in nodes_by_key[key]
        },
    )


def _nodes_by_hardware_key(snapshots: Mapping[str, StoredSnapshot]) -> dict[str, list[str]]:
    """Return the nodes by the key of their hardware. Trays with the same serial number share a key."""
    nodes_by_key: dict[str, list[str]] = {}
    for name, stored in snapshots.items():
        nodes_by_key.setdefault(stored.about.hardware_key, []).append(name)
    return nodes_by_key


def _judged_nodes(
    night: Night, nodes_by_key: Mapping[str, list[str]]
) -> dict[str, tuple[Verdict, tuple[NightReason, ...]]]:
    """Return the verdict and the reasons of each node in this night."""
    judged: dict[str, tuple[Verdict, tuple[NightReason, ...]]] = {}
    for node in night.nodes:
        if node.kind == "node" and node.key in nodes_by_key:
            names = nodes_by_key[node.key]
            reasons = tuple(map(night_reason, node.reasons))
            judged |= dict.fromkeys(names, _shared_verdict(names, node.verdict, reasons))
    return judged


def _link_reasons(night: Night, snapshots: Mapping[str, StoredSnapshot]) -> tuple[NightReason, ...]:
    """Return the reasons why links and groups do not pass, if their names list only nodes of this night."""
    return tuple(
        night_reason(reason).model_copy(update={"part": sanitize(node.name, 200)})
        for node in night.nodes
        if node.kind != "node" and _nodes_in_name(node.name) <= set(snapshots)
        for reason in node.reasons
    )


def _read_numbers(
    results: Path, snapshots: Mapping[str, StoredSnapshot], now: datetime, dry: bool
) -> tuple[Any, Any, list[HealthFinding], list[str]]:
    """Return readings, accepted references, GPUs that failed elsewhere, and remarks.

    Without a history, the last three are empty, apart from a remark about the error.
    """
    from rackproof.store.history.store import HistoryError

    database = results / "history.sqlite"
    url = os.environ.get("RACKPROOF_DATABASE_URL", "").strip()
    try:
        if dry and not url and not database.exists():
            # A dry run does not create a history.
            return _readings_from_folders(results, now), (), [], []
        return _readings_from_history(results, database, snapshots, now, dry)
    except (HistoryError, ResultsError) as error:
        remark = (
            f"the history cannot be queried: {sanitize(error, 300)}; "
            "tonight's measurements are judged by floors and the rest of the fleet only"
        )
        return _readings_from_folders(results, now), (), [], [remark]


def _shared_verdict(
    names: Sequence[str], verdict: Verdict, reasons: tuple[NightReason, ...]
) -> tuple[Verdict, tuple[NightReason, ...]]:
    """Return verdict and reasons of each of the nodes that share one hardware key.

    If there are several such nodes, a verdict that gates becomes unproven for all of them.
    """
    if len(names) < 2 or not verdict.gates:
        return verdict, reasons
    # Trays may share their only serial number. One of them is bad, but it is unknown which.
    shared = tuple(reason.model_copy(update={"verdict": Verdict.UNPROVEN}) for reason in reasons)
    return Verdict.UNPROVEN, shared


def _measured_tonight(readings: Any) -> set[str]:
    """Return the hardware keys with a reading of tonight. Rows of links and groups have a negative node."""
    tonight = set(readings.node[readings.night == 0].tolist())
    return {readings.parts[node].key for node in tonight if node >= 0}


def night_reason(reason: Reason) -> NightReason:
    """Return a reason in the form that a night stores."""
    return NightReason(
        check=reason.check,
        verdict=reason.verdict,
        metric=sanitize(reason.metric, 200),
        part=sanitize(reason.part, 200),
        text=sanitize(reason.text, 500),
        deviation=reason.deviation if math.isfinite(reason.deviation) else None,
        fleetwide=reason.fleetwide,
    )


def _nodes_in_name(name: str) -> set[str]:
    """Return the nodes in the name of a link (``A>B``) or group (``A+B``).

    The name of a large group has only the first nodes, such as ``A+B+6 more``.
    """
    return {node for node in name.replace(">", "+").split("+") if not node.endswith(" more")}


def runs_since_last_night(
    results: Path, past: Sequence[Path], names: Collection[str], now: datetime
) -> list[tuple[list[Run], list[str]]]:
    """Return the runs that began since the last night of some nodes ended, without the nights' own records.

    If the record of the last night is damaged, the runs since that night began are returned. The records of
    nights themselves are left out, but the runs of the nights' probes are included. A night judges the
    numbers of 24 hours, so it may judge a number that the last night already judged. Such a number does not
    show that a drained node is good again.

    Args:
        results: The results folder.
        past: The folders of earlier nights, newest first.
        names: The nodes.
        now: The time of the night.

    Returns:
        The runs, each time with the nodes whose last night was the same one.
    """
    if not names:
        return []
    names_by_end: dict[datetime, list[str]] = {}
    for name, end in _ends_of_last_nights(past, names, now).items():
        names_by_end.setdefault(end, []).append(name)
    runs = [run for run in _recent_runs(results, now) if run.started is not None]
    return [
        ([run for run in runs if run.started and run.started > end], of_end)
        for end, of_end in names_by_end.items()
    ]


def _ends_of_last_nights(past: Sequence[Path], names: Collection[str], now: datetime) -> dict[str, datetime]:
    """Return when the last night that included each node ended. A night of other nodes does not count."""
    ends: dict[str, datetime] = {}
    for folder in past:
        missing = set(names) - ends.keys()
        stamp = stamp_of(folder.name)
        # Runs of two days are read, and a night may take hours.
        if not missing or (stamp is not None and now - stamp > timedelta(days=3)):
            break
        try:
            night = night_store.read_night(folder)
        except ResultsError:  # A remark about the damaged night exists. It may have included every node.
            return ends | dict.fromkeys(missing, stamp or datetime.min.replace(tzinfo=UTC))
        ends |= dict.fromkeys(missing & {node.node for node in night.nodes}, night.ended)
    return dict.fromkeys(names, datetime.min.replace(tzinfo=UTC)) | ends


def measured_in(
    runs: Sequence[Run],
    probed: ProbeNight | None,
    snapshots: Mapping[str, StoredSnapshot],
    soaked: Mapping[str, Collection[str]],
    now: datetime,
) -> dict[str, tuple[str, ...]]:
    """Return the names of the quantities measured on each node, and of the programs that found no fault.

    Args:
        runs: The runs since the last night (:func:`runs_since_last_night`).
        probed: The night's own measurements, or None if none were requested.
        snapshots: The snapshots of the nodes.
        soaked: The GPUs of each node that passed a soak (:func:`soaked_gpus`). If a node has such a GPU, its
            result contains :data:`SOAK`.
        now: The time of the night.
    """
    from rackproof.analysis.anomaly import quantity_name
    from rackproof.store.history.readings import readings_of

    readings = readings_of(runs, now + timedelta(seconds=1), nights=DRIFT_NIGHTS)
    measured: dict[str, set[str]] = {}
    for node, number in set(zip(readings.node.tolist(), readings.quantity.tolist(), strict=True)):
        if node >= 0:
            measured.setdefault(readings.parts[node].key, set()).add(
                quantity_name(readings.quantities[number])
            )
    programs = probed.sound if probed else {}
    names: dict[str, tuple[str, ...]] = {}
    for name, stored in snapshots.items():
        # A soak that found a fault measured a speed, too, and the quantity has the name of the program.
        quantities = measured.get(stored.about.hardware_key, set()) - PROGRAMS
        has_soaked = {SOAK} if soaked[name] else set()
        names[name] = tuple(sorted({*programs.get(name, ()), *quantities, *has_soaked}))
    return names


def soaked_gpus(
    runs: Sequence[Run], probed: ProbeNight | None, snapshots: Mapping[str, StoredSnapshot]
) -> dict[str, frozenset[str]]:
    """Return the UUIDs of the GPUs of each node that passed a soak of the usual length, or of a longer one.

    A soak counts if ``bench.yml`` ran it and it passed, or if a night ran it and found no fault. The
    arguments are the same as for :func:`measured_in`.
    """
    passed = _gpus_with_soak(run for run in runs if _is_passed_soak(run))
    by_night = _gpus_with_soak(run for run in runs if run.benchmark == PROBES_BENCHMARK)
    soaked: dict[str, frozenset[str]] = {}
    for name, stored in snapshots.items():
        # The numbers of a night are one run for all nodes, and only `sound` shows whose soak found no fault.
        is_sound = probed is not None and SOAK in probed.sound.get(name, ())
        gpu_uuids = {gpu.uuid for gpu in stored.snapshot.gpus}
        soaked[name] = frozenset(gpu_uuids & (passed | by_night if is_sound else passed))
    return soaked


def _is_passed_soak(run: Run) -> bool:
    """Return whether a run of `bench.yml` is a soak that passed, and that was long enough to heat a GPU."""
    seconds = run.parameters.get("seconds")
    return (
        run.benchmark == SOAK
        and run.provenance == "ran"
        and run.verdict is Verdict.PASS
        and isinstance(seconds, int | float)
        and seconds >= SOAK_S
    )


def _gpus_with_soak(runs: Iterable[Run]) -> frozenset[str]:
    """Return the UUIDs of the GPUs whose speed under the load of a soak was measured."""
    return frozenset(
        number.labels["gpu"]
        for run in runs
        for number in run.measurements
        if number.name == SOAK and "gpu" in number.labels
    )


def nodes_measured_once(past: Sequence[Path], probed: ProbeNight | None, now: datetime) -> set[str]:
    """Return the nodes with suspect numbers that were measured only once, in nights of the last two days.

    If tonight's measurements of a node are suspect, only they count, and measurements of earlier nights do
    not.

    Args:
        past: The folders of earlier nights, newest first.
        probed: Tonight's own measurements, or None if none were requested.
        now: The time of the night.
    """
    names: set[str] = set()
    for folder in past:
        stamp = stamp_of(folder.name)
        # Search more than 24 hours, because a night's numbers are newer than the time in the night's id.
        if stamp is None or now - stamp > timedelta(days=2):
            break
        probes = read_probes(folder)
        names |= set(probes.unconfirmed if probes else ())
    if probed is not None:
        names = (names - set(probed.suspected)) | set(probed.unconfirmed)
    return names


def add_probe_reasons(
    measured: NightNumbers, probed: ProbeNight | None, seen: set[str], require_references: bool
) -> NightNumbers:
    """Return the judged numbers with the faults from the night's own measurements added.

    The faults can only make a verdict worse.

    Args:
        measured: The judged numbers.
        probed: The night's own measurements, or None if none were requested.
        seen: The nodes with a snapshot.
        require_references: Whether the speed of a pair is unproven if nothing was compared with it.
    """
    if probed is None:
        return measured
    reasons, verdicts = dict(measured.reasons), dict(measured.verdicts)
    unproven, remarks = unproven_pairs(probed, require_references)
    for name in seen & (set(probed.reasons) | set(unproven)):
        added = (*probed.reasons.get(name, ()), *unproven.get(name, ()))
        if added:
            reasons[name] = (*added, *reasons.get(name, ()))
            verdicts[name] = worst(
                [*([verdicts[name]] if name in verdicts else []), *(reason.verdict for reason in added)]
            )
    return measured.model_copy(
        update={
            "reasons": reasons,
            "verdicts": verdicts,
            "link_reasons": (*measured.link_reasons, *probed.between),
            "remarks": (*measured.remarks, *probed.remarks, *remarks),
        }
    )


def _readings_from_history(
    results: Path, path: Path, snapshots: Mapping[str, StoredSnapshot], now: datetime, dry: bool
) -> tuple[Any, Any, list[HealthFinding], list[str]]:
    """Return the nights' readings, accepted references, GPUs that failed elsewhere, and remarks."""
    import numpy as np

    from rackproof.store.history.client import lost_acceptances
    from rackproof.store.history.store import drain_spool, open_store

    # Numbers that waited for the database belong to this night. A dry run moves no files.
    if not dry:
        drain_spool(path, results / ".spool")
    with open_store(path) as store:
        # The end is excluded. Add a second, so that a run of this second counts.
        readings = store.readings(now + timedelta(seconds=1), nights=DRIFT_NIGHTS)
        # Leave out the records of nights (temperatures, counters). Their health checks judged these numbers.
        from_programs = np.array(
            [quantity.benchmark != night_store.BENCHMARK for quantity in readings.quantities], dtype=bool
        )
        readings = readings.chosen(from_programs[readings.quantity]) if len(readings) else readings
        failures = store.failures_elsewhere(now - timedelta(days=ELSEWHERE_DAYS))
        lost = lost_acceptances(results, store)
        remarks = [f"not all references are known: {lost}"] if lost else []
        return readings, store.accepted(readings), _gpus_failed_elsewhere(failures, snapshots), remarks


def _readings_from_folders(results: Path, now: datetime) -> Any:
    """Return tonight's readings from the run folders, which outlive any database."""
    from rackproof.store.history.readings import readings_of

    return readings_of(_recent_runs(results, now), now + timedelta(seconds=1))


def _recent_runs(results: Path, now: datetime) -> list[Run]:
    """Return the readable runs of the last two days, without the records of nights themselves."""
    from rackproof.store.run_folder import read_run, run_folders

    runs = []
    for folder in run_folders(results):
        stamp = stamp_of(folder.name)
        # A folder's name begins with the start of its run. A run that took a day ended within the last 24
        # hours.
        if stamp is None or now - stamp > timedelta(days=2) or night_store.is_night(folder.name):
            continue
        try:
            runs.append(read_run(folder))
        except ResultsError:
            continue
    return runs


def _gpus_failed_elsewhere(
    failures: Sequence[Any], snapshots: Mapping[str, StoredSnapshot]
) -> list[HealthFinding]:
    """Return a finding for each GPU of tonight that failed in another chassis, with its latest failure.

    ``failures`` are the failures in the history, newest first.
    """
    nodes_by_gpu = {
        gpu.uuid: (name, gpu) for name, stored in snapshots.items() for gpu in stored.snapshot.gpus
    }
    latest: dict[str, HealthFinding] = {}
    for failure in failures:
        if failure.gpu in nodes_by_gpu and failure.gpu not in latest:
            name, gpu = nodes_by_gpu[failure.gpu]
            when = f"{failure.moment:%Y-%m-%d}"
            latest[failure.gpu] = failed_elsewhere_finding(
                name, gpu, failure.metric, when, failure.then, failure.reason
            )
    return list(latest.values())


def failed_elsewhere_finding(
    name: str, gpu: GpuSnapshot, quantity: str, when: str, other_node: str, reason: str
) -> HealthFinding:
    """Return the finding about a GPU that failed in another node, as a hint, not a reason to drain."""
    return HealthFinding(
        node=name,
        code="gpu_failed_elsewhere",
        part="gpu",
        name=gpu.uuid,
        place=gpu.place,
        verdict=Verdict.DEGRADED,
        action="watch",
        confidence="hint",
        evidence=sanitize(f"failed {quantity} on {when} in another node, {other_node}: {reason}", 400),
    )
