"""Judge nodes that ran an all-reduce together. No I/O.

A pair is a short measurement of two nodes, which shows the network between them. Job validate calls this
module for the pairs of a night, and job reimage for the acceptance of a node. The input is the log of the
pair's job, the references of its SKU, and the bandwidths of other pairs.
"""

from __future__ import annotations

import statistics
from collections.abc import Collection, Iterable, Sequence
from io import BytesIO

from rackproof import logs
from rackproof.analysis.anomaly import MAD_TO_SIGMA, AnomalyPolicy
from rackproof.analysis.representative import SIZE_LABEL, message_size
from rackproof.core.judging import SkuReference, judge
from rackproof.core.records import Measurement, ParsedLog, Verdict, worst
from rackproof.core.text import percent, quantity, sanitize
from rackproof.nodes.probe_slurm_jobs import FABRIC, JobResult, Section
from rackproof.store.probe_results import PairResult, ProbeNight

FABRIC_METRIC = "fabric_busbw"
"""Metric of the all-reduce's bus bandwidth in GB/s, with the label ``size_bytes``."""


def parse_section(section: Section) -> ParsedLog:
    """Parse the log in MLPerf's format that a program wrote into its section of a job's output."""
    return logs.parse(BytesIO(section.text.encode()), format="mllog")


def read_pair(nodes: tuple[str, ...], result: JobResult, references: Sequence[SkuReference]) -> PairResult:
    """Return the result of nodes that ran an all-reduce together.

    The result fails if sums are wrong or were not checked, if the job or its log did not end well, if no
    valid bandwidth was measured, or if a speed fails a floor. A speed that is degraded or too good to be true
    does not fail the result. The result then has this verdict as ``speed``. ``value`` is the bandwidth at the
    largest size.

    Args:
        nodes: The names of the nodes, usually two.
        result: The end of their job. Only a job that ended with ``ok`` has a log to read.
        references: The references of the nodes' SKU.
    """
    if result.how != "ok":
        return PairResult(nodes=nodes, passed=False, text=f"{result.how}: {result.text}")
    section = next((section for section in result.sections if section.name == FABRIC), None)
    log = parse_section(section or Section(FABRIC, None, ""))
    speeds = _named(log, FABRIC_METRIC)
    if failure := _why_no_result(log, speeds):
        return PairResult(nodes=nodes, passed=False, text=failure)
    # Small messages measure latency. The largest size shows the bandwidth of a link.
    speeds.sort(key=lambda speed: message_size(speed) or 0)
    best = speeds[-1]
    speed, reason = _judge_speeds(speeds, references)
    if speed is Verdict.FAIL:
        text = sanitize(reason, 300)
        return PairResult(nodes=nodes, passed=False, value=best.value, text=text, speed=speed)
    # If the speed is degraded or too high, add the reason to the value.
    remark = f"; {reason}" if reason and speed is not Verdict.PASS else ""
    text = sanitize(f"{quantity(best.value, best.unit)}{remark}", 300)
    return PairResult(nodes=nodes, passed=True, value=best.value, text=text, speed=speed)


def _named(log: ParsedLog, name: str) -> list[Measurement]:
    return [measurement for measurement in log.measurements if measurement.name == name]


def _why_no_result(log: ParsedLog, speeds: Sequence[Measurement]) -> str:
    """Return why a log proves no bandwidth, or "" if it does."""
    wrong = _named(log, "wrong_values")
    # Check the sums first. A wrong sum is a failure, even if the log was cut off after it.
    if any(measurement.value != 0 for measurement in wrong):
        return "sums of values were wrong"
    # Without a count of wrong values, the sums were not checked, so the speed proves nothing.
    if log.verdict is not Verdict.PASS or not speeds or not wrong:
        return "its log proves nothing: cut off, or nothing measured"
    # Python reads "²" as a digit, and refuses thousands of digits.
    if any(SIZE_LABEL in speed.labels and message_size(speed) is None for speed in speeds):
        return f"its log proves nothing: {SIZE_LABEL} of a bandwidth is not a number"
    if any(not speed.finite or speed.value <= 0 for speed in speeds):
        return "a bandwidth that is not a number was measured"
    return ""


def _judge_speeds(
    speeds: Sequence[Measurement], references: Sequence[SkuReference]
) -> tuple[Verdict | None, str]:
    """Return the worst verdict by the floors that apply, with its reason, or ``None`` and ""."""
    judged = [
        judge(speed, reference.reference)
        for speed in speeds
        for reference in references
        if reference.fits(FABRIC, {}, speed)
    ]
    if not judged:
        return None, ""
    verdict = worst([judgement.verdict for judgement in judged])
    return verdict, next((judgement.reason for judgement in judged if judgement.verdict is verdict), "")


def compare_pairs(results: Sequence[PairResult], before: Sequence[float] = ()) -> tuple[PairResult, ...]:
    """Return the results with the pairs that are far below the others marked as failed.

    A pair is far below if both its robust z and its relative distance exceed their limits. All other pairs
    without a verdict of a floor pass. Results that failed already, or are of more than two nodes, are neither
    compared nor changed.

    If too few pairs passed tonight, pairs of earlier nights are added. If they are still too few, the results
    are returned unchanged.

    Args:
        results: The results of tonight.
        before: The bandwidths of similar pairs in earlier nights, in GB/s.
    """
    policy = AnomalyPolicy()
    values, whose = _pair_bandwidths(results), "tonight's pairs"
    if len(values) < policy.outlier_least:
        values, whose = [*values, *before], "tonight's pairs and those of earlier nights"
    if len(values) < policy.outlier_least:
        return tuple(results)
    # Use median and MAD, so that a slow pair does not widen the spread by which it is judged.
    middle = statistics.median(values)
    spread = MAD_TO_SIGMA * statistics.median([abs(value - middle) for value in values])
    # Equal values give a spread of 0, which would make every other pair an outlier.
    spread = max(spread, policy.resolution * abs(middle))
    return tuple(_compare_pair(result, middle, spread, whose, policy) for result in results)


def _compare_pair(
    result: PairResult, middle: float, spread: float, whose: str, policy: AnomalyPolicy
) -> PairResult:
    """Fail a pair far below the median (GB/s). Any other pair passes, unless it has a verdict already."""
    bandwidth = _pair_bandwidth(result)
    if bandwidth is None:
        return result
    off = (bandwidth - middle) / middle
    # Require both limits. In a uniform fleet, a large z may be a loss of one per cent. In a noisy fleet,
    # a large loss may be noise.
    if (bandwidth - middle) / spread >= policy.outlier_z or off >= policy.outlier_fails:
        # Keep the verdict of a floor, such as "too good to be true".
        return result if result.speed is not None else result.model_copy(update={"speed": Verdict.PASS})
    text = f"{result.text} is {percent(off)} off the median of {whose}, {quantity(middle, 'GB/s')}"
    return result.model_copy(update={"passed": False, "text": text, "speed": Verdict.FAIL})


def _pair_bandwidth(result: PairResult) -> float | None:
    """Return the bandwidth of a pair that passed, or None.

    Larger groups are not compared, because they share more links.
    """
    return result.value if result.passed and len(result.nodes) == 2 else None


def _pair_bandwidths(results: Iterable[PairResult]) -> list[float]:
    return [value for value in map(_pair_bandwidth, results) if value is not None]


def earlier_bandwidths(past: Sequence[ProbeNight], names: Collection[str]) -> list[float]:
    """Return the bandwidths in GB/s of earlier pairs that passed and whose nodes are both among ``names``.

    ``past`` has the earlier nights, the newest first. Only as many nights count as the judgement of a night
    uses.
    """
    nights = past[: AnomalyPolicy().nights]
    return _pair_bandwidths(pair for night in nights for pair in night.pairs if set(pair.nodes) <= set(names))
