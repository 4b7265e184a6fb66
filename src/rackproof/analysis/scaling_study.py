"""Turn runs of one benchmark on different numbers of devices into a scaling study. No I/O.

Reports call :func:`studies` with recorded runs, and make tables and charts from the result
(:mod:`rackproof.report.study`). A study shows the rate, the scaling efficiency and the accuracy of each size.
For a size that scales badly, it adds the causes that the samples of its runs show.

A run that a comparison of systems excludes, such as a failed one, is listed, but its rate does not count
(:func:`.compare.systems.exclusion_reason`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Literal

from rackproof.analysis.compare.naming import THROUGHPUT
from rackproof.analysis.compare.systems import exclusion_reason
from rackproof.analysis.intervals import mean
from rackproof.analysis.mlperf.scaling import ScalingPoint, scaling_efficiency
from rackproof.core.records import Measurement, Record, Run, Series, Verdict, worst

CONFIDENCE = 0.95
"""Confidence level of the intervals of the efficiency."""
SIZES = frozenset({"gpus", "nodes", "processes"})
"""Parameters that set the number of devices. The points of one study differ in these."""
_NOT_THE_POINT = SIZES | {"seed"}

WAITING = 0.10
"""Smallest share of a device's time without work that counts as waiting."""
EXCHANGE = 0.05
"""Smallest share of a step for an exchange that no work hides, from which the network is the limit."""
SLOW_RANK = 0.05
"""Share by which a rank must exceed the median rank to count as slow."""
BUSY = 0.80
"""Mean utilisation below which a GPU does not count as busy."""
LINK_FULL = 0.85
"""Smallest mean utilisation of a link that explains a slow run."""
THROTTLED = 0.10
"""Smallest share of samples with reduced clocks that explains a slow run."""
SLOWER_CLOCK = 0.05
"""A GPU is slower if its clock is lower than the usual one by more than this share."""

# NVML's reasons for lower clocks (nvml.h, nvmlClocksEventReasons) are power cap, hardware slowdown,
# software thermal, hardware thermal and power brake. Idle, application clocks, sync boost and display are
# harmless.
_POWER_CAP = 0x4
REASONS: Mapping[int, str] = {
    _POWER_CAP: "power cap",
    0x8: "hardware slowdown",
    0x20: "temperature (software)",
    0x40: "temperature (hardware)",
    0x80: "power brake",
}

Cause = Literal[
    "waiting for data",
    "network limit",
    "slow rank",
    "clocks held back",
    "not busy",
    "too good to be true",
    "unknown",
]


class ScalingExplanation(Record):
    """An explanation of a run's speed from its samples, with the numbers that support it."""

    cause: Cause
    text: str
    evidence: tuple[str, ...] = ()


class StudyRow(Record):
    """One size of a study, with its repeats.

    Attributes:
        nodes: The largest number of nodes of a run.
        verdict: The worst verdict of all runs.
        rate: The mean throughput in ``unit`` of the runs that count, or None if no run counts.
        scaling: The comparison with the smallest size that counts, or None without a rate.
        top_1, top_5: The mean accuracies of all runs that measured one, between 0 and 1.
        runs: All runs, including the runs that do not count in ``rate``.
        left_out: The reasons why runs do not count in ``rate``.
        explanations: The causes of an efficiency that is too low or too high.
    """

    devices: int
    nodes: int
    verdict: Verdict
    rate: float | None = None
    unit: str = ""
    scaling: ScalingPoint | None = None
    top_1: float | None = None
    top_5: float | None = None
    runs: tuple[Run, ...]
    left_out: tuple[str, ...] = ()
    explanations: tuple[ScalingExplanation, ...] = ()


class Study(Record):
    """The runs of one benchmark that differ only in the number of devices."""

    benchmark: str
    point: dict[str, str]
    where: str
    """The node of all runs. Empty if it is unknown, or if any run of the benchmark used several nodes."""
    base: int | None
    """Number of devices of the smallest size with a rate that counts, or None if no size has one."""
    rows: tuple[StudyRow, ...]

    @property
    def scales(self) -> bool:
        """Return whether at least two sizes have a rate that counts, so that an efficiency exists."""
        return sum(row.scaling is not None for row in self.rows) >= 2


def rate_of(run: Run) -> Measurement | None:
    """Return the run's throughput, or None if no throughput was measured.

    The metric is the first of :data:`THROUGHPUT` that the run measured. If there are several measurements,
    the first without labels is returned, or the first if all are labelled. The value is in the metric's unit,
    and may be NaN or infinite.
    """
    for name in THROUGHPUT:
        values = [measurement for measurement in run.measurements if measurement.name == name]
        if values:
            return next((measurement for measurement in values if not measurement.labels), values[0])
    return None


def nodes_of(run: Run) -> int:
    """Return the number of nodes that a run used, at least 1.

    The parameter ``nodes`` counts if it is a positive integer. Otherwise, the recorded nodes are counted, or
    the requested nodes if none was recorded.
    """
    stated = run.parameters.get("nodes")
    if isinstance(stated, int) and not isinstance(stated, bool) and stated > 0:
        return stated
    return max(1, len(run.nodes) or len(run.asked_nodes))


def devices_of(run: Run) -> int:
    """Return the number of devices that a run used on all nodes.

    The parameter ``gpus`` or, without GPUs, ``processes`` is the number of devices of one node. Without both,
    each node counts as one device.
    """
    for name in ("gpus", "processes"):
        per_node = run.parameters.get(name)
        if isinstance(per_node, int) and not isinstance(per_node, bool) and per_node > 0:
            return per_node * nodes_of(run)
    return nodes_of(run)


def _point_of(run: Run) -> dict[str, str]:
    """Return the parameters of a run that all runs of its study share, as texts.

    A run with 0 GPUs has the additional entry ``device``.
    """
    left_out = set(_NOT_THE_POINT)
    if "batch_per_gpu" in run.parameters:
        # The batch size of all GPUs together then grows with their number.
        left_out.add("batch_size")
    point = {name: str(value) for name, value in sorted(run.parameters.items()) if name not in left_out}
    # A run on CPUs must not be the smallest size of a study of GPUs.
    return {**point, "device": "CPU"} if run.parameters.get("gpus") == 0 else point


def studies(runs: Sequence[Run]) -> tuple[Study, ...]:
    """Return the studies among runs, in the order of each study's first run in ``runs``.

    A benchmark gives studies if at least one of its runs measured a throughput (:func:`rate_of`). All its
    runs are then in a study, including failed ones. Runs are in the same study if their parameters are equal,
    apart from the sizes (``gpus``, ``nodes``, ``processes``) and the seed. If the batch per GPU is given,
    ``batch_size`` may differ, too. Runs with 0 GPUs are in studies of their own. If no run of a benchmark
    used several nodes, each node gets its own studies, so that a slow node is visible.
    """
    several = {run.benchmark for run in runs if nodes_of(run) > 1}
    trainings = {run.benchmark for run in runs if rate_of(run) is not None}
    groups: dict[tuple[object, ...], list[Run]] = {}
    for run in runs:
        if run.benchmark in trainings:
            where = "" if run.benchmark in several else _first_node(run)
            key = (run.benchmark, where, *sorted(_point_of(run).items()))
            groups.setdefault(key, []).append(run)
    return tuple(_study(members, str(key[1])) for key, members in groups.items())


def _first_node(run: Run) -> str:
    """Return the name of the first requested node, or else of the first recorded node, or ""."""
    names = run.asked_nodes or tuple(node.name for node in run.nodes)
    return names[0] if names else ""


def _study(runs: Sequence[Run], where: str) -> Study:
    """Return the study of runs that differ only in size. Its base is the smallest size whose rate counts."""
    by_size: dict[int, list[Run]] = {}
    for run in runs:
        by_size.setdefault(devices_of(run), []).append(run)
    sizes = dict(sorted(by_size.items()))
    unit = _first_unit(runs)
    rates = _rates_by_size(sizes, unit)
    points = {}
    if rates:
        points = {point.devices: point for point in scaling_efficiency(rates, confidence=CONFIDENCE)}
    base = min(rates, default=None)
    # The clocks of other sizes are compared with the clocks of the first run of the base that counts.
    base_runs = sizes.get(base or -1, ())
    reference = next((run for run in base_runs if _counted(run, unit) is not None), None)
    return Study(
        benchmark=runs[0].benchmark,
        point=_point_of(runs[0]),
        where=where,
        base=base,
        rows=tuple(
            _study_row(devices, members, unit, rates.get(devices), points.get(devices), reference)
            for devices, members in sizes.items()
        ),
    )


def _first_unit(runs: Sequence[Run]) -> str:
    """Return the unit of the first finite rate, or "" if there is none. Rates in other units do not count."""
    for run in runs:
        rate = rate_of(run)
        if rate is not None and rate.finite:
            return rate.unit
    return ""


def _rates_by_size(sizes: Mapping[int, Sequence[Run]], unit: str) -> dict[int, list[float]]:
    """Return the rates that count. A size without such a rate is left out."""
    rates = {}
    for devices, members in sizes.items():
        counted = [_counted(run, unit) for run in members]
        values = [rate.value for rate in counted if rate is not None]
        if values:
            rates[devices] = values
    return rates


def _study_row(
    devices: int,
    members: Sequence[Run],
    unit: str,
    rates: Sequence[float] | None,
    point: ScalingPoint | None,
    reference: Run | None,
) -> StudyRow:
    """Return the row of a study for a number of devices, with means over its runs."""
    return StudyRow(
        devices=devices,
        nodes=max(map(nodes_of, members)),
        verdict=worst(run.verdict for run in members),
        rate=mean(rates) if rates else None,
        unit=unit,
        scaling=point,
        top_1=_mean(members, "top_1_accuracy"),
        top_5=_mean(members, "top_5_accuracy"),
        runs=tuple(members),
        left_out=tuple(filter(None, (_why_not(run, unit) for run in members))),
        explanations=_explanations(point, members, reference),
    )


def _counted(run: Run, unit: str) -> Measurement | None:
    """Return a run's rate if it counts: positive, finite, in the unit, and of a run without a failure."""
    rate = rate_of(run)
    usable = rate is not None and rate.finite and rate.value > 0 and rate.unit == unit
    return rate if usable and exclusion_reason(run) is None else None


def _why_not(run: Run, unit: str) -> str:
    """Return the reason why a run does not count in the mean rate, or "" if it does.

    The run's accuracy counts in the mean accuracies in any case.
    """
    why = exclusion_reason(run)
    if why is not None:
        source = str(why[2])
        return f"{why[1]} ({source})" if source else why[1]
    return "" if _counted(run, unit) is not None else "it has no throughput that counts"


def _mean(runs: Iterable[Run], name: str) -> float | None:
    """Return the mean of all finite measurements of a name in all runs, or None if there is none."""
    values = [
        measurement.value
        for run in runs
        for measurement in run.measurements
        if measurement.name == name and math.isfinite(measurement.value)
    ]
    return mean(values) if values else None


BAD = 0.90
"""Efficiency below which a size needs an explanation. ResNet-50 on one node with NVLink reaches 0.97."""


TOO_GOOD = 1.10
"""Efficiency above which the base was probably slowed down, or a measurement is wrong."""


def _explanations(
    point: ScalingPoint | None, runs: Sequence[Run], base: Run | None
) -> tuple[ScalingExplanation, ...]:
    """Return the explanations of a size. There are none if it scales as it should, or has no rate."""
    if point is not None and point.efficiency > TOO_GOOD:
        text = (
            f"more than ideal: the base of {point.base} was slowed down, or a rate is wrong; run both again"
        )
        return (ScalingExplanation(cause="too good to be true", text=text),)
    if point is None or point.efficiency >= BAD:
        return ()
    return tuple(dict.fromkeys(cause for run in runs for cause in explain(run, base)))


def explain(run: Run, base: Run | None = None) -> tuple[ScalingExplanation, ...]:
    """Return the causes that a run's samples show for its slowness, the strongest first.

    The possible causes are devices that wait for data or for their host, an exchange of gradients that
    no work hides, one slow rank, reduced clocks, and GPUs that are not busy. If the samples show none,
    the result is one entry with the cause "unknown".

    Args:
        run: The run to explain.
        base: The run of the smallest size, used to compare clocks, or None.
    """
    weighted: _Found = []
    for rule in (_waits, _network, _slow_rank, _clocks, _busy):
        weighted += rule(run, base)
    # A GPU that is not busy is a symptom of the other causes, so report it only if there is no other.
    causes = [pair for pair in weighted if pair[1].cause != "not busy"] or weighted
    if causes:
        return tuple(explanation for _, explanation in sorted(causes, key=lambda pair: -pair[0]))
    return (_no_cause(run),)


def _no_cause(run: Run) -> ScalingExplanation:
    """Return the explanation that the cause is unknown, with the samples that show none."""
    sampled = {series.name for series in run.series if series.name.startswith(("gpu_", "link_"))}
    kinds = {"data_wait_share", "local_step_time", "exchange_share"}
    measured = {measurement.name for measurement in run.measurements if measurement.name in kinds}
    if not sampled and not measured:
        return ScalingExplanation(cause="unknown", text="nothing was sampled, so the cause is not known")
    evidence = (*sorted(sampled), *sorted(measured))
    return ScalingExplanation(cause="unknown", text="the samples show no cause", evidence=evidence)


_Found = list[tuple[float, ScalingExplanation]]
"""Causes with their weights, about the shares of time that they cost. The heaviest is shown first."""


def _labelled(run: Run, name: str) -> list[Measurement]:
    """Return the finite measurements of a name, such as one for each rank."""
    return [
        measurement for measurement in run.measurements if measurement.name == name and measurement.finite
    ]


def _device_name(labels: Mapping[str, str]) -> str:
    """Return the name of the rank or GPU of a measurement or series."""
    return " ".join(
        f"{word} {labels[key]}" for key, word in (("rank", "rank"), ("gpu", "GPU")) if key in labels
    ) or " ".join(f"{key} {value}" for key, value in labels.items())


def _waits(run: Run, base: Run | None) -> _Found:
    """Return the wait of the device that waits the longest, if its share reaches :data:`WAITING`."""
    waits = _labelled(run, "data_wait_share")
    high = max(waits, key=lambda wait: wait.value, default=None)
    if high is None or high.value < WAITING:
        return []
    synthetic = run.dataset is not None and run.dataset.name == "synthetic"
    waits_text = (
        "the host launches work too slowly (its images are synthetic)"
        if synthetic
        else "data arrives too slowly"
    )
    evidence = [f"{_device_name(high.labels)} had nothing to do for {high.value:.0%} of the time".strip()]
    evidence += [_mean_text(series) for series in _series(run, "gpu_utilisation")[:8]]
    if run.storage:
        evidence.append(f"storage: {run.storage}")
    text = f"GPU waiting for data: {waits_text}" if not synthetic else f"GPU waiting: {waits_text}"
    return [(high.value, ScalingExplanation(cause="waiting for data", text=text, evidence=tuple(evidence)))]


def _network(run: Run, base: Run | None) -> _Found:
    """Return the network as the cause if the exchange reaches :data:`EXCHANGE`, or a link :data:`LINK_FULL`.

    The first finite ``exchange_share`` of a run counts. ``link_use`` is a series in per cent.
    """
    shares = _labelled(run, "exchange_share")
    evidence = []
    weight = 0.0
    if shares and shares[0].value >= EXCHANGE:
        weight = shares[0].value
        evidence.append(f"{weight:.0%} of a step is exchange that no work hides")
    for series in _series(run, "link_use"):
        middle = mean(series.y)
        if middle >= LINK_FULL * 100:
            # The weights of the other causes are shares of lost time. A link's utilisation is larger,
            # so subtract one half to make it comparable.
            weight = max(weight, middle / 100 - 0.5)
            peak = max((value for value in series.y if math.isfinite(value)), default=0.0)
            used = f"used to {middle:.0f} % on average, {peak:.0f} % at most"
            evidence.append(f"{_device_name(series.labels)} {used}".strip())
    if not evidence:
        return []
    if run.network:
        evidence.append(f"network: {run.network}")
    text = "the network limits: ranks wait for each other's gradients"
    return [(weight, ScalingExplanation(cause="network limit", text=text, evidence=tuple(evidence)))]


def _slow_rank(run: Run, base: Run | None) -> _Found:
    """Return the slowest rank if its own step exceeds the median rank's by :data:`SLOW_RANK`."""
    step_times = _labelled(run, "local_step_time")
    if len(step_times) < 2:
        return []
    usual = median(time.value for time in step_times)
    slow = max(step_times, key=lambda time: time.value)
    over = slow.value / usual - 1 if usual > 0 else 0.0
    if over < SLOW_RANK:
        return []
    evidence = f"alone it takes {slow.value * 1e3:.4g} ms a step, the median rank {usual * 1e3:.4g} ms"
    text = f"one rank is slow by itself, and all wait for it: {_device_name(slow.labels)}"
    return [(over, ScalingExplanation(cause="slow rank", text=text, evidence=(evidence,)))]


def _clocks(run: Run, base: Run | None) -> _Found:
    """Return reduced clocks as the cause. A power cap alone, without a lower clock, does not count."""
    throttled = [reason for series in _series(run, "gpu_throttle") for reason in _throttle_reasons(series)]
    lower = _lower_clocks(run, base)
    # A power cap at full load is normal for these GPUs, and explains a slow run only with a lower clock.
    if not lower and all("power cap" in words for _, words in throttled):
        return []
    signs = (*throttled, *lower)
    weight = max(weight for weight, _ in signs)
    evidence = tuple(words for _, words in signs)[:16]
    return [
        (
            weight,
            ScalingExplanation(cause="clocks held back", text="clocks were held back", evidence=evidence),
        )
    ]


def _throttle_reasons(series: Series) -> list[tuple[float, str]]:
    """Return the reasons why a GPU's clocks were reduced, each with its weight and a description.

    The series has NVML's bits (:data:`REASONS`).
    """
    bits = [int(value) for value in series.y if math.isfinite(value)]
    if not bits:
        return []
    reasons = []
    for bit, words in REASONS.items():
        share = sum(bool(value & bit) for value in bits) / len(bits)
        if share >= THROTTLED:
            text = f"{_device_name(series.labels)}: {words} in {share:.0%} of the samples"
            reasons.append((share / 4 if bit == _POWER_CAP else share, text))
    return reasons


def _lower_clocks(run: Run, base: Run | None) -> list[tuple[float, str]]:
    """Return a weight and a description for each GPU whose median clock is lower than the usual clock.

    The usual clock is the median of the base run's GPUs or, without their clocks, of this run's GPUs. The
    weight is the difference as a fraction.
    """
    clocks = [(series, median(series.y)) for series in _series(run, "gpu_clock")]
    before = [median(series.y) for series in _series(base, "gpu_clock")] if base is not None else []
    # The median GPU of this run cannot show that all GPUs are equally slow, so the base run comes first.
    usual = _median_or_zero(before or [clock for _, clock in clocks])
    if usual <= 0:
        return []
    with_whom = "the base run" if before else "the median GPU"
    return [
        (
            1 - clock / usual,
            f"{_device_name(series.labels)} ran at {clock:.0f} MHz, {with_whom} at {usual:.0f} MHz",
        )
        for series, clock in clocks
        if clock < usual * (1 - SLOWER_CLOCK)
    ]


def _median_or_zero(values: Sequence[float]) -> float:
    return median(values) if values else 0.0


def _busy(run: Run, base: Run | None) -> _Found:
    """Return the GPUs whose mean utilisation is below :data:`BUSY`."""
    low = [series for series in _series(run, "gpu_utilisation") if series.y and mean(series.y) < BUSY * 100]
    if not low:
        return []
    text = "GPUs are not kept busy"
    weight = 1 - min(mean(series.y) for series in low) / 100
    evidence = tuple(_mean_text(series) for series in low[:8])
    return [(weight, ScalingExplanation(cause="not busy", text=text, evidence=evidence))]


def _series(run: Run, name: str) -> list[Series]:
    """Return the series of a name that have values, such as one for each GPU."""
    return [series for series in run.series if series.name == name and series.y]


def _mean_text(series: Series) -> str:
    return f"{_device_name(series.labels)}: utilisation {mean(series.y):.0f} % on average".strip()
