"""What nodes that reduced together prove: by their log, by floors, and compared with other pairs. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Collection, Sequence
from io import BytesIO

from rackproof import logs
from rackproof.analysis.anomaly import MAD_TO_SIGMA, AnomalyPolicy
from rackproof.core.judging import SkuReference, judge
from rackproof.core.records import ParsedLog, Verdict, worst
from rackproof.core.text import percent, quantity, sanitize
from rackproof.nodes.probe_slurm_jobs import FABRIC, JobResult, Section
from rackproof.store.probe_results import PairResult, ProbeNight

FABRIC_METRIC = "fabric_busbw"


def parse_section(section: Section) -> ParsedLog:
    """Return a program's log, parsed."""
    return logs.parse(BytesIO(section.text.encode()), format="mllog")


def read_pair(nodes: tuple[str, ...], done: JobResult, references: Sequence[SkuReference]) -> PairResult:
    """Return what nodes that reduced together say: wrong values, a hang and a value below a floor fail."""
    if done.how != "ok":
        return PairResult(nodes=nodes, passed=False, text=f"{done.how}: {done.text}")
    section = next((one for one in done.sections if one.name == FABRIC), Section(FABRIC, None, ""))
    log = parse_section(section)
    speeds = sorted(
        (one for one in log.measurements if one.name == FABRIC_METRIC),
        key=lambda one: int(one.labels.get("size_bytes", "0")),
    )
    wrong = [one for one in log.measurements if one.name == "wrong_values"]
    if any(one.value != 0 for one in wrong):
        return PairResult(nodes=nodes, passed=False, text="sums of values were wrong")
    if log.verdict is not Verdict.PASS or not speeds or not wrong:
        return PairResult(
            nodes=nodes, passed=False, text="its log proves nothing: cut off, or nothing measured"
        )
    if any(not one.finite or one.value <= 0 for one in speeds):
        return PairResult(nodes=nodes, passed=False, text="a bandwidth that is none was measured")
    best = speeds[-1]
    judged = [
        judge(one, reference.reference)
        for one in speeds
        for reference in references
        if reference.fits(FABRIC, {}, one)
    ]
    speed = worst([one.verdict for one in judged]) if judged else None
    why = next((one.reason for one in judged if one.verdict is speed), "")
    if speed is Verdict.FAIL:
        return PairResult(nodes=nodes, passed=False, value=best.value, text=sanitize(why, 300), speed=speed)
    told = f"{quantity(best.value, best.unit)}{f'; {why}' if why and speed is not Verdict.PASS else ''}"
    return PairResult(nodes=nodes, passed=True, value=best.value, text=sanitize(told, 300), speed=speed)


def compare_pairs(
    results: Sequence[PairResult], before: Sequence[float] = (), policy: AnomalyPolicy | None = None
) -> tuple[PairResult, ...]:
    """Return the results, those far below the others no pass: by robust z and by distance.

    Tonight's pairs are compared with each other; where they are too few, with those of earlier nights, too.
    Where all of these are too few, a speed that has no floor was compared with nothing.

    Args:
        results: Tonight's.
        before: Bandwidths of pairs of the same kind in earlier nights, in GB/s.
        policy: How strictly.
    """
    policy = policy or AnomalyPolicy()
    values = [one.value for one in results if one.passed and one.value is not None and len(one.nodes) == 2]
    whose = "tonight's pairs"
    if len(values) < policy.outlier_least:
        values, whose = [*values, *before], "tonight's pairs and those of earlier nights"
    if len(values) < policy.outlier_least:
        return tuple(results)
    middle = statistics.median(values)
    spread = MAD_TO_SIGMA * statistics.median([abs(one - middle) for one in values])
    spread = max(spread, policy.resolution * abs(middle))

    def look(one: PairResult) -> PairResult:
        if not one.passed or one.value is None or len(one.nodes) != 2:
            return one
        off = (one.value - middle) / middle
        if (one.value - middle) / spread >= policy.outlier_z or off >= policy.outlier_fails:
            # What a floor says of it (too good to be true, for one) is not taken back.
            return one if one.speed is not None else one.model_copy(update={"speed": Verdict.PASS})
        text = f"{one.text} is {percent(off)} off the median of {whose}, {quantity(middle, 'GB/s')}"
        return one.model_copy(update={"passed": False, "text": text, "speed": Verdict.FAIL})

    return tuple(look(one) for one in results)


def earlier_bandwidths(past: Sequence[ProbeNight], names: Collection[str]) -> list[float]:
    """Return what pairs of some nodes reached in the nights that a drift looks back, in GB/s."""
    return [
        one.value
        for night in past[: AnomalyPolicy().drift_nights]
        for one in night.pairs
        if one.passed and one.value is not None and len(one.nodes) == 2 and set(one.nodes) <= set(names)
    ]
