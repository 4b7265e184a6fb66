"""Judge measurements against references and tolerances.

Job bench calls :func:`judge_run` with the logs of a run, and job validate with the logs of a probe.
:func:`judge` judges one measurement, for the filter ``verdict``, comparisons, nights and accepted references.
:class:`SkuReference` is a reference from the inventory. :mod:`rackproof.analysis.anomaly` compares the many
numbers of a night with their references in arrays, and gives the verdicts of :func:`judge`.

A measurement is ``unproven``

* if it is missing, not finite, without a reference, or in another unit than its reference;
* if no value could fail its reference (no bound on the bad side, a fraction of 0), or if the bound on the
  bad side allows a loss of more than half of the speed;
* if it is impossible: a negative speed, time or count, a speed or time of zero, or an accuracy or share above
  1 that a rule bounds from below (a rule's own bound allows a rate of zero, such as errors per second, and a
  bound of 0 allows a time of zero; if it is judged by references, any negative value is impossible unless a
  reference is negative);
* if it is missing although the SKU states a reference for it, even if its rule is optional (a reference
  without the label ``device`` is for GPUs, so rules of other devices do not need it);
* if it is beyond the bound on the good side, because it is too good to be true;
* if it is a speed or a time, or is judged by references, and other processes used the machine;
* if it is a speed or a time, or is judged by references, does not fail, and its samples vary by a factor
  above :data:`~rackproof.core.spread.WIDEST_FACTOR`.

A measurement is ``fail`` beyond the bound on the bad side, and ``degraded`` between ``warn`` and that bound.
If several measurements match a rule (one per GPU), each is judged, so the worst decides.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from pydantic import Field, ValidationError, field_validator

from rackproof.core.definitions import DefinitionError, JudgeRule, Parameters
from rackproof.core.errors import RackproofError
from rackproof.core.finding_codes import MACHINE_BUSY
from rackproof.core.records import (
    WORST_FIRST,
    Direction,
    Finding,
    Judgement,
    Measurement,
    Name,
    ParsedLog,
    Record,
    Reference,
    Run,
    Verdict,
    worst,
)
from rackproof.core.spread import spread_doubt

NO_REFERENCE = "no reference yet"
"""Reason of a judgement without a reference. The history recognizes candidates by the words ``no reference``
in a reason."""
UNFIT_VERDICTS = (Verdict.FAIL, Verdict.UNPROVEN, Verdict.DEGRADED)
"""Verdicts that keep a number from becoming a reference. A degraded machine may be slow, too."""
_TOO_GOOD = "too good to be true, check the measurement"
"""End of the reason for a value beyond the bound on the good side."""
WIDEST_LOSS = 0.5
"""A bound may allow a loss of at most this fraction of a speed. A wider bound would find no fault."""
TIME_UNITS = frozenset({"s", "ms", "us", "ns", "min", "minutes", "h"})
"""Units of times. In these units, less is better, unless the measurement states a direction."""
_COUNT_UNITS = frozenset({"", "1", "count", "errors", "faults", "events", "values"})
"""Units of counts. A negative whole number in such a unit is impossible, unless the rule's bound is
negative."""
_OTHER_DEVICE = "device"
"""Name of the label of measurements on a device that is not a GPU (``device: cpu``).

Measurements of GPUs and links lack this label.
"""
# Matches "-0.07" and "1e3", but neither "8_00" nor "nan".
_DECIMAL = re.compile(r"\s*[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?\s*")


def is_unfit_for_reference(finding: Finding) -> bool:
    """Return whether a run with this finding must not become a reference.

    The finding is a fault, or states that the machine was busy, so that no speed of the run counts.
    """
    return finding.verdict in UNFIT_VERDICTS or finding.code == MACHINE_BUSY


def unfit_evidence(run: Run) -> Iterator[str]:
    """Yield each reason in a run's findings, logs and exit status why it must not become a reference."""
    for finding in run.findings:
        if is_unfit_for_reference(finding):
            yield finding.message or f"it has the finding {finding.code}, without a message"
    for log in run.logs:
        if log.verdict in UNFIT_VERDICTS:
            yield f"its log {log.path} is {log.verdict.value}"
    if run.exit_status not in (0, None):
        yield f"it ended with status {run.exit_status}"


class SkuReference(Record):
    """A SKU's reference from inventory/group_vars/sku_*.yml, and the runs to which it applies.

    Attributes:
        metric: The name of the measurements.
        benchmark: The benchmark of the runs, or "" for all benchmarks.
        parameters: The values that the runs must have, by parameter. The value "" is for runs that do not set
            the parameter.
        labels: The labels that the measurements must have.
        reference: The value and its bounds.
    """

    metric: Name
    benchmark: str = ""
    parameters: Parameters = Field(default={})
    labels: dict[str, str] = Field(default={})
    reference: Reference

    @field_validator("reference")
    @classmethod
    def _can_fail(cls, reference: Reference) -> Reference:
        """Refuse references that no value can fail.

        Examples are a percentage in place of a fraction, and 0 for an unknown SKU.
        """
        bounds = _stated_bounds(reference)
        if not bounds:
            raise ValueError("give low, high or warn: without a bound nothing can fail")
        if not all(-1 < bound <= 1 for bound in bounds):
            raise ValueError("low, high and warn are fractions: -0.07 allows 7 % less")
        if any(bound < -WIDEST_LOSS for bound in bounds):
            raise ValueError(f"low and warn are at least -{WIDEST_LOSS:g}: a lower one is useless")
        if _leaves_value_outside(reference):
            raise ValueError("low is at most 0, high is at least 0")
        # A fraction of 0 is 0, so such a reference can only mean "none at all" (high: 0).
        if reference.value == 0 and (reference.high is None or any(bounds)):
            raise ValueError(
                "no speed is within the bounds of a value of 0; for a count of faults give high: 0"
            )
        return reference

    def applies(self, benchmark: str, parameters: Mapping[str, object]) -> bool:
        """Return whether this reference applies to runs of a benchmark with these parameters."""
        return self.benchmark in ("", benchmark) and all(
            parameters.get(name, "") == value for name, value in self.parameters.items()
        )

    def fits(self, benchmark: str, parameters: Mapping[str, object], measurement: Measurement) -> bool:
        """Return whether this reference applies to a measurement of a run."""
        return (
            self.metric == measurement.name
            and self.labels.items() <= measurement.labels.items()
            and self.applies(benchmark, parameters)
        )


def parse_sku_reference(raw: Mapping[str, Any]) -> SkuReference:
    """Parse a SKU reference from group_vars, where one mapping contains the reference and its scope.

    ``{metric: gemm_best, labels: {dtype: bf16}, value: 700, unit: TFLOP/s, low: -0.07, source: …}`` is an
    example.

    Raises:
        ValidationError: A key or a value is invalid.
        TypeError: The reference is not a mapping.
    """
    if not isinstance(raw, Mapping):
        raise TypeError(f"a reference is a mapping of keys, not {raw!r:.60}")
    own_keys = {"metric", "benchmark", "parameters", "labels"}
    reference = {
        key: _decimal_or_nan(value) if key in ("value", "low", "high", "warn") else value
        for key, value in raw.items()
        if key not in own_keys
    }
    return SkuReference.model_validate(
        {**{key: value for key, value in raw.items() if key in own_keys}, "reference": reference}
    )


def _decimal_or_nan(value: object) -> object:
    """Return the value, or NaN if it is a boolean or text that is not a decimal.

    A reference cannot be NaN.
    """
    # Python would read "8_00" as 800, digits of other scripts as numbers, and `true` as 1.
    if isinstance(value, bool) or (isinstance(value, str) and _DECIMAL.fullmatch(value) is None):
        return math.nan
    return value


class SkuReferenceError(RackproofError):
    """A SKU's reference that cannot be used. The message names the SKU and the mistake."""


def sku_references(sku: str, raw: Iterable[Mapping[str, Any]]) -> list[SkuReference]:
    """Parse the references of a SKU from group_vars.

    Args:
        sku: The name of the SKU, for the message.
        raw: The value of ``bench_sku_references``.

    Raises:
        SkuReferenceError: A reference cannot be used.
    """
    return read_sku_references(f"SKU {sku}", raw)


def read_sku_references(owner: str, raw: Iterable[Mapping[str, Any]]) -> list[SkuReference]:
    """Parse a list of SKU references. ``owner`` is the SKU or node that has them, for the message.

    Raises:
        SkuReferenceError: A reference cannot be used. The message has the number of its entry.
    """
    references = []
    for number, entry in enumerate(raw, 1):
        try:
            references.append(parse_sku_reference(entry))
        except (ValidationError, TypeError) as error:
            raise SkuReferenceError(
                f"bench_sku_references of {owner}: entry {number}: {_first_problem(error)}; "
                "see docs/using/benchmarks.md"
            ) from error
    return references


def _first_problem(error: ValidationError | TypeError) -> str:
    """Return the first problem of a reference on one line, with the key that has it."""
    if isinstance(error, TypeError):
        return str(error)
    # A misspelt key is the cause if the right one is missing.
    problem = min(error.errors(), key=lambda item: item["type"] != "extra_forbidden")
    return f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}"


class Outcome(Record):
    """The outcome of judging a run: its judgements, verdict, and reasons in order of importance."""

    judgements: tuple[Judgement, ...]
    verdict: Verdict
    reasons: tuple[str, ...]


def judge(
    measurement: Measurement,
    reference: Reference | None,
    *,
    direction: Direction | None = None,
    gating: bool = True,
    lacking: str = NO_REFERENCE,
) -> Judgement:
    """Judge one measurement against one reference.

    Args:
        measurement: The measurement.
        reference: The reference, or None. The verdict without one is ``unproven``.
        direction: The better direction, or None to use the direction of the measurement. If that is None,
            too, less is better for a time, and both sides are bad for other numbers.
        gating: Whether the verdict counts for the run's verdict.
        lacking: The reason of the judgement if ``reference`` is None.
    """
    verdict, reason = _verdict_and_reason(measurement, reference, direction or measurement.direction, lacking)
    return Judgement(
        metric=measurement.name,
        labels=measurement.labels,
        value=measurement.value,
        unit=measurement.unit,
        spread=measurement.spread,
        reference=reference,
        verdict=verdict,
        gating=gating,
        reason=reason,
        source=measurement.source,
    )


def bounds_objection(judgement: Judgement) -> str:
    """Return why value and reference of a judgement contradict its verdict, or "".

    No value passes, or is only degraded, without a reference or beyond the hard bounds of its reference.
    """
    value, reference = judgement.value, judgement.reference
    if judgement.verdict.gates:
        return ""
    if value is None or reference is None or reference.unit != judgement.unit:
        return f"{judgement.metric} is {judgement.verdict.value} without a value and a reference in one unit"
    lowest, highest = _bound_value(reference, reference.low), _bound_value(reference, reference.high)
    is_within = (lowest is None or value >= lowest) and (highest is None or value <= highest)
    # NaN is neither within nor beyond any bound.
    if math.isfinite(value) and is_within:
        return ""
    shown = f"{value:.6g} {judgement.unit}".strip()
    return f"{judgement.metric} is {judgement.verdict.value}, although {shown} is beyond its bounds"


def _verdict_and_reason(
    measurement: Measurement, reference: Reference | None, better: Direction | None, lacking: str
) -> tuple[Verdict, str]:
    """Return verdict and reason. A measurement that cannot be compared is ``unproven``."""
    if not measurement.finite:
        return Verdict.UNPROVEN, f"{measurement.value} is not a number that can be judged"
    if reference is None:
        return Verdict.UNPROVEN, lacking[:4000]
    if reference.unit != measurement.unit:
        units = f"measured in {measurement.unit or 'no unit'}, reference in {reference.unit or 'no unit'}"
        return Verdict.UNPROVEN, units
    # Without a direction, less is better for a time.
    bad_side = Direction.LOWER if warns_above(better, measurement.unit) else better
    useless = _why_useless(reference, bad_side)
    if useless:
        return Verdict.UNPROVEN, f"the reference proves nothing: {useless}"
    return _compare(measurement, reference, bad_side)


def _compare(measurement: Measurement, reference: Reference, better: Direction | None) -> tuple[Verdict, str]:
    """Compare a finite value with the bounds of a reference in the same unit."""
    value = measurement.value
    lowest, highest = _bound_value(reference, reference.low), _bound_value(reference, reference.high)
    value_text = f"{value:.6g} {measurement.unit}".strip()
    # Equal bounds come from `equals`. Too much is then as wrong as too little, in any direction.
    is_exact = lowest == highest
    if lowest is not None and value < lowest:
        if better is Direction.LOWER and not is_exact:
            return Verdict.UNPROVEN, f"{value_text} is below {lowest:.6g}: {_TOO_GOOD}"
        return Verdict.FAIL, f"{value_text} is below {lowest:.6g}"
    if highest is not None and value > highest:
        if better is Direction.HIGHER and not is_exact:
            return Verdict.UNPROVEN, f"{value_text} is above {highest:.6g}: {_TOO_GOOD}"
        return Verdict.FAIL, f"{value_text} is above {highest:.6g}"
    above = warns_above(better, measurement.unit)
    return _compare_with_warning(value, value_text, _bound_value(reference, reference.warn), above)


def warns_above(better: Direction | None, unit: str) -> bool:
    """Return whether the warning is an upper bound: if less is better or, without a direction, for times."""
    return better is Direction.LOWER or (better is None and unit in TIME_UNITS)


def _compare_with_warning(
    value: float, shown: str, warning: float | None, above: bool
) -> tuple[Verdict, str]:
    """Return the verdict and reason for a value within the hard bounds, but perhaps beyond the warning."""
    if warning is not None:
        if above and value > warning:
            return Verdict.DEGRADED, f"{shown} is above {warning:.6g}, yet within the hard bound"
        if not above and value < warning:
            return Verdict.DEGRADED, f"{shown} is below {warning:.6g}, yet within the hard bound"
    return Verdict.PASS, "within bounds"


def _stated_bounds(reference: Reference) -> list[float]:
    """Return the bounds that a reference states, as fractions."""
    return [bound for bound in (reference.low, reference.high, reference.warn) if bound is not None]


def _bound_value(reference: Reference, fraction: float | None) -> float | None:
    """Return the value of a bound, or None if that side is open."""
    # The fraction is of the absolute value, so that -7 % is below a negative reference too.
    return None if fraction is None else reference.value + abs(reference.value) * fraction


def _leaves_value_outside(reference: Reference) -> bool:
    """Return whether the reference's own value is outside its bounds."""
    return (reference.low or 0) > 0 or (reference.high or 0) < 0


def _why_useless(reference: Reference, better: Direction | None) -> str:
    """Return the reason why no value could fail against a reference, or "" if one could."""
    bounds = _stated_bounds(reference)
    if not all(math.isfinite(bound) for bound in bounds):
        return "one of its bounds is not a finite number"
    if reference.value == 0 and any(bounds):
        return "a fraction of 0 is not a bound"
    if _allows_too_much(reference, better):
        return "its bound allows a loss of more than half of the speed"
    low, high = reference.low, reference.high
    bad_sides = {Direction.HIGHER: (low,), Direction.LOWER: (high,), None: (low, high)}[better]
    if all(bound is None for bound in (*bad_sides, reference.warn)):
        return "it has no bound on the bad side"
    return ""


def _allows_too_much(reference: Reference, better: Direction | None) -> bool:
    """Return whether the bound on the bad side allows a loss above :data:`WIDEST_LOSS`.

    Without a bound on that side, the warning takes its place. Without a direction, both sides are bad.
    """
    lowest = reference.warn if reference.low is None else reference.low
    highest = reference.warn if reference.high is None else reference.high
    # A run at half of the speed takes twice the time.
    is_too_high = highest is not None and highest > 1 / (1 - WIDEST_LOSS) - 1
    is_too_low = lowest is not None and lowest < -WIDEST_LOSS
    return {Direction.HIGHER: is_too_low, Direction.LOWER: is_too_high, None: is_too_low or is_too_high}[
        better
    ]


def judge_rule(
    rule: JudgeRule,
    measurements: Sequence[Measurement],
    references: Callable[[Measurement], Sequence[Reference]],
    *,
    parameters: Parameters,
    require_references: bool,
    source: str,
    trouble: str = "",
    sku_references: Sequence[SkuReference] = (),
    busy: str = "",
) -> list[Judgement]:
    """Judge each measurement that a rule applies to.

    Args:
        rule: The rule.
        measurements: All measurements of the run.
        references: A function that returns a measurement's references from the SKU, published results
            and the accepted history.
        parameters: The point of the matrix. A bound may use its values.
        require_references: Whether a missing reference gates the verdict, unless the rule says ``candidate``.
        source: Name of the rule's file, as the source of its bound.
        trouble: The reason why references may be missing, or "" if all could be read. With a reason, a
            missing reference gates.
        sku_references: The SKU's references that apply to this run. Each must have a measurement.
        busy: The reason why the speeds of this run do not count, or "" if the machine was idle.

    Returns:
        The judgements. There are none if the run has fewer GPUs than the rule needs, or if the rule is
        optional, no measurement matches, and no reference of the SKU requires one.
    """
    if not rule.applies_to(parameters):
        return []
    matching = _matching_measurements(rule, measurements)
    lacking = _lacking_measurements(rule, matching, sku_references)
    if not matching:
        # A rule without measurements does not pass, because the workload may no longer measure them.
        if rule.optional or lacking:
            return lacking
        return [_unproven(rule, rule.shortfall(parameters) or "the log has no such measurement")]
    try:
        bound = rule.bound(source, parameters)
    except DefinitionError as error:
        return [_unproven(rule, str(error)[:4000])]
    judgements = lacking
    for measurement in matching:
        if rule.unit and measurement.unit != rule.unit:
            # The unit of this empty reference is right, so that the reason contains both units.
            expected = Reference(value=0, unit=rule.unit, source=source)
            judgements.append(judge(measurement, expected, direction=rule.direction))
        elif bound is not None:
            judgements.append(_judge_by_bound(rule, measurement, bound, busy))
        else:
            of_speed = _judge_by_references(
                rule,
                measurement,
                references(measurement),
                require_references=require_references,
                trouble=trouble,
            )
            judgements += [_doubted(judged, busy) for judged in of_speed]
    return judgements


def _judge_by_bound(rule: JudgeRule, measurement: Measurement, bound: Reference, busy: str) -> Judgement:
    """Judge a measurement by its rule's bound.

    A coverage beyond its bound is unproven, and so is a value within its bound if the bound is useless or the
    value is impossible.
    """
    # A rule without a unit applies to the metric in any unit.
    same_unit = bound.model_copy(update={"unit": measurement.unit})
    judged = judge(measurement, same_unit, direction=rule.better)
    if rule.coverage and judged.verdict is Verdict.FAIL:
        return judged.model_copy(update={"verdict": Verdict.UNPROVEN})
    is_speed = measurement.unit in TIME_UNITS or measurement.unit.endswith("/s")
    if judged.verdict is Verdict.PASS and (reason := _why_no_pass(rule, measurement, bound, is_speed)):
        return judged.model_copy(update={"verdict": Verdict.UNPROVEN, "reason": reason})
    return _doubted(judged, busy) if is_speed else judged


def _why_no_pass(rule: JudgeRule, measurement: Measurement, bound: Reference, is_speed: bool) -> str:
    """Return why a value within its rule's bound proves nothing, or "" if it proves something."""
    if rule.at_least is None:
        is_impossible = _is_below_all(measurement, bound.value, is_speed)
    else:
        is_accuracy = measurement.name.endswith("accuracy")
        is_share = measurement.unit == "fraction" or (is_accuracy and measurement.unit in ("", "1"))
        if bound.value <= 0 and (is_speed or is_share or is_accuracy):
            return f"the bound proves nothing: no value is below {bound.value:g}"
        # An accuracy in per cent, or a score such as BLEU, has a bound above 1.
        is_impossible = is_share and bound.value <= 1 < measurement.value
    return _impossible_text(measurement.value, measurement.unit) if is_impossible else ""


def _is_below_all(measurement: Measurement, bound: float, is_speed: bool) -> bool:
    """Return whether a value is below all values that a machine can have.

    A rule with a bound below 0 allows negative values. Numbers other than speeds, times and counts may be
    negative in any rule, such as a temperature, a loss, or the lag of the fastest GPU.
    """
    value, unit = measurement.value, measurement.unit
    if bound < 0 or value > 0:
        return False
    if value == 0:
        # A rate of 0 is possible, such as errors per second. A time of 0 is impossible unless the bound is 0.
        return unit in TIME_UNITS and bound != 0
    return is_speed or (unit in _COUNT_UNITS and value.is_integer())


def _doubted(judged: Judgement, busy: str) -> Judgement:
    """Return the judgement of a speed, as unproven if the machine was busy or the samples differ too much."""
    # Another process may have caused the slow value, so it does not prove a fault.
    doubt = busy
    # If the machine was idle, a value that is too slow fails even if its samples vary widely.
    if not doubt and judged.verdict is not Verdict.FAIL:
        doubt = spread_doubt(judged.spread, judged.unit)
    return judged.model_copy(update={"verdict": Verdict.UNPROVEN, "reason": doubt}) if doubt else judged


def _lacking_measurements(
    rule: JudgeRule, matching: Sequence[Measurement], sku_references: Iterable[SkuReference]
) -> list[Judgement]:
    """Return a judgement for each of the SKU's references that the rule covers but no measurement matches.

    If the SKU states a reference for a format or a size, the SKU's hardware supports that format or size. The
    measurement must then exist, even if the rule is optional for other hardware. Rules for processors are
    left out, because a run on GPUs does not measure processors, and the GPU rules use the same references.
    """
    missing = []
    for reference in sku_references:
        if reference.metric != rule.metric or not _compatible(rule.labels, reference.labels):
            continue
        if not any(_applies_to_measurement(reference, measurement) for measurement in matching):
            text = "the log has no such measurement, but the SKU has a reference for it"
            labels = {**rule.labels, **reference.labels}
            missing.append(_unproven(rule, text).model_copy(update={"labels": labels}))
    return missing


def _applies_to_measurement(reference: SkuReference, measurement: Measurement) -> bool:
    """Return whether a reference applies to a measurement. A GPU's reference never applies to a processor."""
    if _OTHER_DEVICE in measurement.labels and _OTHER_DEVICE not in reference.labels:
        return False
    return reference.labels.items() <= measurement.labels.items()


def _compatible(of_rule: Mapping[str, str], of_reference: Mapping[str, str]) -> bool:
    """Return whether a rule and a reference can match the same measurement."""
    if _OTHER_DEVICE in of_rule and _OTHER_DEVICE not in of_reference:
        return False
    return all(of_reference.get(name, value) == value for name, value in of_rule.items())


def _matching_measurements(rule: JudgeRule, measurements: Iterable[Measurement]) -> list[Measurement]:
    """Return the measurements that match a rule, perhaps with more labels than the rule."""
    return [
        measurement
        for measurement in measurements
        if measurement.name == rule.metric and rule.labels.items() <= measurement.labels.items()
    ]


def _unproven(rule: JudgeRule, reason: str) -> Judgement:
    """Return an unproven judgement for a rule that could not be applied to any value."""
    return Judgement(
        metric=rule.metric, labels=rule.labels, unit=rule.unit, verdict=Verdict.UNPROVEN, reason=reason
    )


def _judge_by_references(
    rule: JudgeRule,
    measurement: Measurement,
    references: Sequence[Reference],
    *,
    require_references: bool,
    trouble: str,
) -> list[Judgement]:
    """Judge a measurement by each of its references, or record that it has none or is impossible."""
    impossible = _why_impossible(measurement, references, rule.direction or measurement.direction)
    if impossible:
        return [judge(measurement, None, direction=rule.direction, lacking=impossible)]
    if references:
        return [judge(measurement, reference, direction=rule.direction) for reference in references]
    # The first run of new hardware is kept as a candidate, so a missing reference need not gate.
    required = require_references and not rule.candidate
    gating = required or bool(trouble) or not measurement.finite
    lacking = f"no reference is known, because {trouble}" if trouble else NO_REFERENCE
    return [judge(measurement, None, direction=rule.direction, gating=gating, lacking=lacking)]


def _why_impossible(
    measurement: Measurement, references: Sequence[Reference], better: Direction | None
) -> str:
    """Return the reason why a number cannot be a speed or a time, or "" if it can.

    Args:
        measurement: The measurement.
        references: The references of the measurement. If one of them is 0, as for a number of faults, a value
            of 0 is possible. If one of them is negative, all values are possible.
        better: The better direction, or None if it is unknown.
    """
    value, unit = measurement.value, measurement.unit
    lowest = min((reference.value for reference in references), default=math.inf)
    if not measurement.finite or value > 0 or lowest < 0:
        return ""
    is_speed = better is Direction.HIGHER or "/s" in unit or unit in TIME_UNITS
    return _impossible_text(value, unit) if value < 0 or (is_speed and lowest > 0) else ""


def _impossible_text(value: float, unit: str) -> str:
    """Return the reason of a judgement whose value no machine can have."""
    return f"{value:.6g} {unit}".strip() + " cannot be a measured value; check the workload"


def judge_run(
    rules: Iterable[JudgeRule],
    logs: Sequence[ParsedLog],
    findings: Sequence[Finding],
    references: Callable[[Measurement], Sequence[Reference]],
    *,
    parameters: Parameters,
    require_references: bool,
    source: str = "",
    trouble: str = "",
    more: Sequence[Measurement] = (),
    sku_references: Sequence[SkuReference] = (),
    busy: str = "",
) -> Outcome:
    """Judge a run.

    The verdict combines the logs, the findings from other sources, and the rules.

    Args:
        rules: The rules of the definition.
        logs: The parsed logs of the run. A run without logs is at best unproven.
        findings: The findings that are not from a log, for example a hung job or an absent GPU.
        references: A function that returns the references of a measurement.
        parameters: The point of the matrix.
        require_references: Whether a missing reference gates the verdict.
        source: Name of the rules' file.
        trouble: The reason why references may be missing, or "" if all could be read.
        more: The measurements that are not from a log.
        sku_references: The SKU's references that apply to this run. Each must have a measurement.
        busy: The reason why the speeds of this run do not count, or "" if the machine was idle.
    """
    measurements = [*_logged_measurements(logs), *more]
    judgements: list[Judgement] = []
    for rule in rules:
        judgements += judge_rule(
            rule,
            measurements,
            references,
            parameters=parameters,
            require_references=require_references,
            source=source,
            trouble=trouble,
            sku_references=sku_references,
            busy=busy,
        )
    gating = [judgement for judgement in judgements if judgement.gating]
    reasons = _finding_reasons(logs, findings)
    reasons += _log_reasons(logs)
    reasons += _missing_proof_reasons(logs, findings, gating)
    reasons += [
        (judgement.verdict, _judgement_text(judgement))
        for judgement in gating
        if judgement.verdict is not Verdict.PASS
    ]
    # The sort is stable. Within one verdict, findings remain before logs, and logs before rules.
    ordered = [text for _, text in sorted(reasons, key=lambda pair: WORST_FIRST.index(pair[0]))]
    ordered += _open_questions(judgements)
    return Outcome(
        judgements=tuple(judgements),
        verdict=worst(_all_verdicts(logs, findings, gating)),
        # Several ranks may report the same failure. One sentence about it is enough.
        reasons=tuple(dict.fromkeys(ordered)),
    )


def _logged_measurements(logs: Iterable[ParsedLog]) -> list[Measurement]:
    """Return the measurements of all logs."""
    return [measurement for log in logs for measurement in log.measurements]


def _all_verdicts(
    logs: Sequence[ParsedLog], findings: Iterable[Finding], gating: Sequence[Judgement]
) -> list[Verdict]:
    """Return all verdicts that count for the run. A missing part counts as unproven."""
    verdicts = [log.verdict for log in logs] or [Verdict.UNPROVEN]
    # A log's verdict should include those of its findings, but a contradiction must not become a pass.
    all_findings = [*findings, *(finding for log in logs for finding in log.findings)]
    verdicts += [finding.verdict for finding in all_findings if finding.verdict is not None]
    verdicts += [judgement.verdict for judgement in gating] or [Verdict.UNPROVEN]
    return verdicts


def _finding_reasons(logs: Iterable[ParsedLog], findings: Iterable[Finding]) -> list[tuple[Verdict, str]]:
    """Return the verdicts and texts of the findings against the run, with causes before consequences."""
    all_findings = [*findings, *(finding for log in logs for finding in log.findings)]
    reasons: list[tuple[Verdict, str]] = []
    for finding in sorted(all_findings, key=lambda finding: finding.consequence):
        if finding.verdict is not None and finding.verdict is not Verdict.PASS:
            words = filter(None, [finding.message, str(finding.source)])
            reasons.append((finding.verdict, " ".join(words)))
    return reasons


def _log_reasons(logs: Iterable[ParsedLog]) -> list[tuple[Verdict, str]]:
    """Return a reason for each log that gates without a finding that explains it."""
    return [
        (log.verdict, _log_text(log)) for log in logs if log.verdict.gates and not _has_gating_finding(log)
    ]


def _missing_proof_reasons(
    logs: Sequence[ParsedLog], findings: Iterable[Finding], gating: Sequence[Judgement]
) -> list[tuple[Verdict, str]]:
    """Return a reason if there is no log, or no judged measurement that gates."""
    if not logs:
        # A finding with a verdict already names the cause of the missing log.
        if any(finding.verdict for finding in findings):
            return []
        return [(Verdict.UNPROVEN, "there is no log")]
    if not gating:
        return [(Verdict.UNPROVEN, "no measurement that counts was judged")]
    return []


def _open_questions(judgements: Iterable[Judgement]) -> list[str]:
    """Return one sentence for each reason why measurements do not pass and do not count for the verdict."""
    metrics: dict[str, list[str]] = {}
    for judgement in judgements:
        if not judgement.gating and judgement.verdict is not Verdict.PASS:
            why = judgement.reason
            lacking = f"{NO_REFERENCE}; kept as candidate" if why.startswith(NO_REFERENCE) else why
            metrics.setdefault(lacking, []).append(judgement.metric)
    return [
        f"unproven, does not count: {', '.join(dict.fromkeys(names))} ({why})"
        for why, names in metrics.items()
    ]


def _has_gating_finding(log: ParsedLog) -> bool:
    """Return whether a finding explains why a log gates."""
    return any(finding.verdict is not None and finding.verdict.gates for finding in log.findings)


def _log_text(log: ParsedLog) -> str:
    """Describe a log that does not show a run that ended well."""
    end = "shows a failure" if log.verdict is Verdict.FAIL else "does not show a run that ended well"
    return " ".join(filter(None, ("the log", log.file, end)))


def _judgement_text(judgement: Judgement) -> str:
    """Return a judgement as the reason of a verdict."""
    labels = " ".join(f"{key}={value}" for key, value in judgement.labels.items())
    return f"{judgement.metric}{f' [{labels}]' if labels else ''}: {judgement.reason}"
