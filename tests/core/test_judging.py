"""Test how a run's measurements become a verdict: pass, degraded, fail or unproven.

core/judging.py compares a measurement with a reference, which is a value with bounds. The bounds are
fractions of the value: with 100 and low=-0.07, less than 93 fails. Too good a value is unproven, because it
is more likely wrong than fast. So is a missing, impossible or incomparable one. A run passes only if every
measurement that its benchmark requires is there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
from pydantic import ValidationError

from rackproof.core.definitions import JudgeRule
from rackproof.core.judging import NO_REFERENCE, SkuReference, judge, judge_run, parse_sku_reference
from rackproof.core.records import Direction, Finding, Measurement, ParsedLog, Reference, Verdict, worst

UP, DOWN = Direction.HIGHER, Direction.LOWER


def reference(value: float = 100, **bounds: float | None) -> Reference:
    """Return a reference of a value in GB/s. The bounds are fractions of the value."""
    return Reference(value=value, unit="GB/s", source="test", **bounds)


def measured(value: float, name: str = "copy", unit: str = "GB/s", **labels: str) -> Measurement:
    """Return a measurement, by default of a copy in GB/s."""
    return Measurement(name=name, value=value, unit=unit, labels=labels)


# The reference is 100 GB/s. With UP, more is better: below 93 fails, from 93 to 96.5 is degraded, above 125
# is too good. With DOWN, it is mirrored. Without a direction, both sides are bad.
@pytest.mark.parametrize(
    ("value", "direction", "bounds", "verdict"),
    [
        (100, UP, {"low": -0.07, "high": 0.25, "warn": -0.035}, "pass"),
        (96.5, UP, {"low": -0.07, "high": 0.25, "warn": -0.035}, "pass"),
        (96.4, UP, {"low": -0.07, "high": 0.25, "warn": -0.035}, "degraded"),
        (93, UP, {"low": -0.07, "high": 0.25, "warn": -0.035}, "degraded"),
        (92.9, UP, {"low": -0.07, "high": 0.25, "warn": -0.035}, "fail"),
        (125.1, UP, {"low": -0.07, "high": 0.25, "warn": -0.035}, "unproven"),
        (107.1, DOWN, {"low": -0.25, "high": 0.07, "warn": 0.035}, "fail"),
        (104, DOWN, {"low": -0.25, "high": 0.07, "warn": 0.035}, "degraded"),
        (100, DOWN, {"low": -0.25, "high": 0.07, "warn": 0.035}, "pass"),
        (74, DOWN, {"low": -0.25, "high": 0.07, "warn": 0.035}, "unproven"),
        (99, None, {"low": 0.0, "high": 0.0}, "fail"),
        (101, None, {"low": 0.0, "high": 0.0}, "fail"),
        (101, UP, {"low": 0.0, "high": 0.0}, "fail"),
        (99, UP, {"low": 0.0, "high": 0.0}, "fail"),
        (101, DOWN, {"low": 0.0, "high": 0.0}, "fail"),
        (99, DOWN, {"low": 0.0, "high": 0.0}, "fail"),
        (100, None, {"low": 0.0, "high": 0.0}, "pass"),
        (1e9, UP, {"low": 0.0}, "pass"),
        (math.nan, UP, {"low": -0.07}, "unproven"),
        (math.inf, UP, {"low": -0.07}, "unproven"),
        (-math.inf, DOWN, {"high": 0.07}, "unproven"),
    ],
)
def test_the_bounds_give_the_verdict(
    value: float, direction: Direction | None, bounds: dict[str, float], verdict: str
) -> None:
    assert judge(measured(value), reference(**bounds), direction=direction).verdict == verdict


@pytest.mark.parametrize(("value", "verdict"), [(0, "pass"), (1, "fail"), (-1, "fail")])
def test_a_reference_of_zero_is_exact(value: float, verdict: str) -> None:
    zero = Reference(value=0, low=0.0, high=0.0, unit="", source="test")
    assert judge(measured(value, unit=""), zero).verdict == verdict


@pytest.mark.parametrize(("unit", "expected"), [("GB/s", "pass"), ("MB/s", "unproven"), ("", "unproven")])
def test_another_unit_is_unproven(unit: str, expected: str) -> None:
    assert judge(measured(100, unit=unit), reference(low=-0.07), direction=UP).verdict == expected
    bare = Reference(value=100, low=-0.07, unit=unit, source="test")
    assert judge(measured(100), bare, direction=UP).verdict == expected


def test_no_reference_is_unproven() -> None:
    assert judge(measured(1), None).reason == NO_REFERENCE


@pytest.mark.parametrize(
    ("value", "direction", "bounds", "words"),
    [
        # With such a reference, nothing could fail, or a bound is not a number.
        (100, UP, {}, "no bound"),
        (100, None, {}, "no bound"),
        (100, UP, {"high": 0.2}, "no bound"),
        (100, DOWN, {"low": -0.2}, "no bound"),
        (100, UP, {"low": math.nan}, "not a finite number"),
        (100, UP, {"low": -math.inf}, "not a finite number"),
        (100, UP, {"low": -0.07, "high": math.nan}, "not a finite number"),
        (100, UP, {"low": -0.07, "warn": math.nan}, "not a finite number"),
        (0, UP, {"low": -0.07}, "a fraction of 0"),
        (0, DOWN, {"high": 0.07}, "a fraction of 0"),
        (0, UP, {"low": -0.07, "high": 0.25, "warn": -0.035}, "a fraction of 0"),
    ],
)
def test_a_reference_that_nothing_could_fail_is_unproven(
    value: float, direction: Direction | None, bounds: dict[str, float], words: str
) -> None:
    judged = judge(measured(max(value, 1)), reference(value, **bounds), direction=direction)
    assert judged.verdict == "unproven"
    assert words in judged.reason


# The reference is 100. For a time (us, s), a value above the warning is degraded, and for other units a value
# below.
@pytest.mark.parametrize(
    ("value", "unit", "warn", "expected"),
    [
        (100, "us", 0.035, "pass"),
        (104, "us", 0.035, "degraded"),
        (50, "s", 0.035, "pass"),
        (100, "GB/s", -0.035, "pass"),
        (96, "GB/s", -0.035, "degraded"),
        (200, "GB/s", -0.035, "pass"),
        (0, "GB/s", 0.035, "degraded"),
        (96, "", -0.035, "degraded"),
    ],
)
def test_without_a_direction_the_unit_decides_on_which_side_is_the_warning(
    value: float, unit: str, warn: float, expected: str
) -> None:
    given = reference(warn=warn).model_copy(update={"unit": unit})
    assert judge(measured(value, unit=unit), given).verdict == expected


@pytest.mark.parametrize(("value", "expected"), [(96.6, "pass"), (50, "degraded")])
def test_a_reference_may_only_warn(value: float, expected: str) -> None:
    assert judge(measured(value), reference(warn=-0.035), direction=UP).verdict == expected


def run(
    rules: Sequence[JudgeRule],
    measurements: Sequence[Measurement],
    *,
    log: str = "pass",
    findings: Sequence[Finding] = (),
    references: Sequence[Reference] = (),
    require: bool = True,
    logs: int = 1,
) -> tuple[str, tuple[str, ...]]:
    """Return the verdict and the reasons of a run with these rules and measurements."""
    parsed = [ParsedLog(format="mllog", measurements=tuple(measurements), verdict=Verdict(log))] * logs
    outcome = judge_run(
        rules,
        parsed,
        findings,
        lambda one: references,
        parameters={},
        require_references=require,
        source="bench.yml",
    )
    return outcome.verdict.value, outcome.reasons


QUALITY = JudgeRule(metric="accuracy", at_least=0.99)
SPEED = JudgeRule(metric="copy", direction=UP)
FAST = reference(low=-0.07, high=0.25)
ACCURATE = measured(0.995, "accuracy", "")


def test_a_candidate_counts_only_against_a_reference() -> None:
    """A candidate is for a figure that has no reference in most SKUs. NaN is unproven in any case."""
    rule = SPEED.model_copy(update={"candidate": True})
    accurate = [QUALITY, rule], [ACCURATE, measured(96)]
    assert run(*accurate)[0] == "pass"
    assert "kept as candidate" in run(*accurate)[1][0]
    assert run([QUALITY, SPEED], accurate[1])[0] == "unproven"
    assert run(*accurate, references=[FAST])[0] == "pass"
    assert run([QUALITY, rule], [ACCURATE, measured(50)], references=[FAST])[0] == "fail"
    assert run([QUALITY, rule], [ACCURATE], references=[FAST])[0] == "unproven"
    assert run([QUALITY, rule], [ACCURATE, measured(math.nan)])[0] == "unproven"


# `word` is a part of one of the reasons. `require` is whether a missing reference makes the run unproven.
@pytest.mark.parametrize(
    ("case", "expected", "word"),
    [
        (lambda: run([QUALITY], [ACCURATE]), "pass", None),
        (lambda: run([QUALITY], [measured(0.98, "accuracy", "")]), "fail", "below 0.99"),
        (lambda: run([QUALITY], []), "unproven", "no such measurement"),
        (lambda: run([], [ACCURATE]), "unproven", None),
        (lambda: run([QUALITY], [ACCURATE], logs=0), "unproven", "no log"),
        (lambda: run([QUALITY], [ACCURATE], log="fail"), "fail", None),
        (lambda: run([QUALITY], [ACCURATE], log="unproven"), "unproven", None),
        (lambda: run([QUALITY, SPEED], [ACCURATE, measured(100)]), "unproven", NO_REFERENCE),
        (lambda: run([QUALITY, SPEED], [ACCURATE, measured(100)], require=False), "pass", "candidate"),
        (lambda: run([SPEED], [measured(100)], require=False), "unproven", "candidate"),
        (lambda: run([QUALITY, SPEED], [ACCURATE], require=False), "unproven", "no such measurement"),
        (lambda: run([QUALITY, SPEED], [ACCURATE, measured(math.nan)], require=False), "unproven", "nan"),
        (lambda: run([SPEED], [measured(100)], references=[FAST]), "pass", None),
        (lambda: run([SPEED], [measured(80)], references=[FAST]), "fail", "below 93"),
        # There are two references: the run reaches that of the SKU, but not that of the node's history.
        (
            lambda: run([SPEED], [measured(96)], references=[FAST, reference(110, low=-0.07)]),
            "fail",
            "below 102",
        ),
        # The lowest GPU decides, not the mean.
        (
            lambda: run([SPEED], [measured(100, gpu="a"), measured(80, gpu="b")], references=[FAST]),
            "fail",
            "gpu=b",
        ),
        (
            lambda: run([QUALITY, JudgeRule(metric="fp8", optional=True)], [ACCURATE]),
            "pass",
            None,
        ),
        (
            lambda: run([JudgeRule(metric="copy", unit="TB/s", at_least=1)], [measured(100)]),
            "unproven",
            "TB/s",
        ),
        (
            lambda: run(
                [QUALITY],
                [ACCURATE],
                findings=[Finding(code="hung", verdict=Verdict.FAIL, message="it hung")],
            ),
            "fail",
            "it hung",
        ),
        (
            lambda: run([QUALITY], [ACCURATE], findings=[Finding(code="note", message="only a remark")]),
            "pass",
            None,
        ),
    ],
)
def test_a_run_passes_only_if_every_required_measurement_is_good(
    case, expected: str, word: str | None
) -> None:  # type: ignore[no-untyped-def]
    verdict, reasons = case()
    assert verdict == expected
    if word:
        assert any(word in reason for reason in reasons), reasons


@pytest.mark.parametrize(
    ("rules", "measurements", "log", "word"),
    [
        ([QUALITY], [ACCURATE], "unproven", "the log does not show"),
        ([QUALITY], [ACCURATE], "fail", "the log shows"),
        ([], [ACCURATE], "pass", "no measurement that counts was judged"),
        (
            [JudgeRule(metric="fp8", optional=True, at_least=1)],
            [ACCURATE],
            "pass",
            "no measurement that counts",
        ),
        (
            [JudgeRule(metric="accuracy", needs_gpus=1, at_least=0.9)],
            [ACCURATE],
            "pass",
            "no measurement that counts",
        ),
        ([SPEED], [measured(100)], "pass", "no measurement that counts was judged"),
    ],
)
def test_a_run_that_does_not_pass_has_a_reason(
    rules: list[JudgeRule], measurements: list[Measurement], log: str, word: str
) -> None:
    verdict, reasons = run(rules, measurements, log=log, require=False)
    assert verdict in ("unproven", "fail")
    assert word in reasons[0]


def test_one_bad_log_of_two_decides() -> None:
    good = ParsedLog(format="mllog", file="a.log", measurements=(ACCURATE,), verdict=Verdict.PASS)
    bad = ParsedLog(format="mllog", file="b.log", verdict=Verdict.UNPROVEN)
    outcome = judge_run([QUALITY], [good, bad], [], lambda one: [], parameters={}, require_references=False)
    assert outcome.verdict == "unproven"
    assert "b.log" in outcome.reasons[0]


@pytest.mark.parametrize("values", [(0.995, 0.5), (0.5, 0.995), (0.995, math.nan)])
def test_of_several_values_of_one_name_the_worst_decides(values: tuple[float, ...]) -> None:
    verdict, _ = run([QUALITY], [measured(value, "accuracy", "") for value in values], require=False)
    assert verdict != "pass"


@pytest.mark.parametrize(
    ("bound", "parameters", "words"),
    [
        ("{{ target }}", {}, "no variable `target`"),
        ("{{ target }}", {"target": "high"}, "'high' is not a number"),
        ("{{ target }}", {"target": "nan"}, "'nan' is not a finite number"),
        ("{{ target }}", {"target": "-inf"}, "'-inf' is not a finite number"),
    ],
)
def test_a_bound_that_is_not_a_number_is_unproven(bound: str, parameters: dict[str, str], words: str) -> None:
    log = ParsedLog(format="mllog", measurements=(ACCURATE,), verdict=Verdict.PASS)
    outcome = judge_run(
        [JudgeRule(metric="accuracy", at_least=bound)],
        [log],
        [],
        lambda one: [],
        parameters=parameters,  # type: ignore[arg-type]
        require_references=False,
    )
    assert outcome.verdict == "unproven"
    assert words in outcome.reasons[0]


@pytest.mark.parametrize(
    ("rule", "value", "expected"),
    [
        (JudgeRule(metric="copy", at_most=100), 101, "fail"),
        (JudgeRule(metric="copy", at_most=100, direction=UP), 101, "fail"),
        (JudgeRule(metric="copy", at_most=100), 99, "pass"),
        (JudgeRule(metric="copy", at_least=100, direction=DOWN), 99, "fail"),
        (JudgeRule(metric="copy", at_least=0), -1, "fail"),
        (JudgeRule(metric="copy", at_least=0), 1, "unproven"),
        (JudgeRule(metric="copy", at_least=-5), 1, "unproven"),
        (JudgeRule(metric="copy", at_least=0.001), 1, "pass"),
        (JudgeRule(metric="copy", equals=0), 1, "fail"),
        (JudgeRule(metric="copy", equals=0, direction=UP), 1, "fail"),
        (JudgeRule(metric="copy", equals=0, direction=DOWN), -1, "fail"),
    ],
)
def test_the_bounds_of_a_rule_decide(rule: JudgeRule, value: float, expected: str) -> None:
    assert run([rule], [measured(value)])[0] == expected


@pytest.mark.parametrize("stated", [UP, DOWN, None])
@pytest.mark.parametrize("value", [7, 9])
def test_a_value_beside_equals_fails_whatever_direction_the_measurement_states(
    value: float, stated: Direction | None
) -> None:
    measurement = measured(value).model_copy(update={"direction": stated})
    assert run([JudgeRule(metric="copy", equals=8)], [measurement])[0] == "fail"


def test_reasons_come_worst_first() -> None:
    _, reasons = run([SPEED, QUALITY], [measured(0.5, "accuracy", "")], references=[FAST])
    assert "below 0.99" in reasons[0]


@pytest.mark.parametrize(
    ("verdicts", "expected"),
    [
        ([], "unproven"),
        (["pass"], "pass"),
        (["pass", "degraded"], "degraded"),
        (["degraded", "unproven"], "unproven"),
        (["unproven", "fail", "pass"], "fail"),
    ],
)
def test_the_worst_verdict_counts(verdicts: list[str], expected: str) -> None:
    assert worst(Verdict(one) for one in verdicts) == expected


def test_only_fail_and_unproven_gate() -> None:
    assert [one.value for one in Verdict if one.gates] == ["fail", "unproven"]


# The run is gemm on 4 GPUs, and the measurement has dtype bf16. The reference must agree wherever it names
# something.
@pytest.mark.parametrize(
    ("labels", "parameters", "of", "fits"),
    [
        ({}, {}, "", True),
        ({"dtype": "bf16"}, {}, "gemm", True),
        ({"dtype": "fp8"}, {}, "", False),
        ({}, {"gpus": 4}, "", True),
        ({}, {"gpus": 8}, "", False),
        ({}, {}, "other", False),
    ],
)
def test_a_reference_of_a_sku_applies_only_to_the_measurements_that_it_names(
    labels: dict[str, str], parameters: dict[str, int], of: str, fits: bool
) -> None:
    sku_reference = SkuReference(
        metric="copy", labels=labels, parameters=parameters, benchmark=of, reference=FAST
    )
    assert sku_reference.fits("gemm", {"gpus": 4}, measured(1, dtype="bf16", gpu="x")) is fits


@pytest.mark.parametrize(
    ("bounds", "words"),
    [
        ({}, "low, high or warn"),
        ({"low": -7}, "fractions"),
        ({"low": -1}, "fractions"),
        ({"high": 25}, "fractions"),
        ({"low": math.nan}, "fractions"),
        ({"low": 0.1}, "at most 0"),
        ({"low": -0.1, "high": -0.2}, "at least 0"),
        ({"value": 0, "low": -0.07}, "0"),
        ({"value": 0, "low": 0.0}, "0"),
        ({"value": math.nan, "low": -0.1}, "finite"),
    ],
)
def test_a_reference_of_a_sku_that_makes_no_sense_is_refused(bounds: dict[str, float], words: str) -> None:
    whole = {"value": 100.0, "unit": "GB/s", "source": "test", **bounds}
    with pytest.raises(ValueError, match=words):
        SkuReference.model_validate({"metric": "copy", "reference": whole})


def test_a_reference_of_zero_faults_is_accepted() -> None:
    none = {"value": 0, "high": 0, "unit": "", "source": "test"}
    assert SkuReference.model_validate({"metric": "errors", "reference": none}).reference.value == 0


def verdict_with_references(measured_values: Sequence[Measurement], *sku_references: SkuReference) -> str:
    """Return the verdict of a gemm run whose SKU has these references. Only bf16 is not optional."""
    rules = [
        JudgeRule(metric="copy", labels={"dtype": "bf16"}, direction=UP),
        JudgeRule(metric="copy", labels={"dtype": "fp8"}, direction=UP, optional=True),
        JudgeRule(metric="preflight", direction=UP, optional=True),
    ]
    log = ParsedLog(format="test", measurements=tuple(measured_values), verdict=Verdict.PASS)

    def references(one: Measurement) -> list[Reference]:
        """Return the references of the SKU for a measurement."""
        return [
            sku_reference.reference for sku_reference in sku_references if sku_reference.fits("gemm", {}, one)
        ]

    return judge_run(
        rules, [log], [], references, parameters={}, require_references=True, sku_references=sku_references
    ).verdict.value


@pytest.mark.parametrize(
    ("extra", "verdict"),
    [
        ([], "pass"),
        # The SKU has a reference for a format, a metric or a size that the log does not have.
        ([{"metric": "copy", "labels": {"dtype": "fp8"}}], "unproven"),
        ([{"metric": "preflight"}], "unproven"),
        ([{"metric": "preflight", "labels": {"size_bytes": "8"}}], "unproven"),
        ([{"metric": "copy", "labels": {"dtype": "bf16", "size_bytes": "8"}}], "unproven"),
        # The benchmark need not measure what none of its rules judges.
        ([{"metric": "copy", "labels": {"dtype": "fp4"}}], "pass"),
        ([{"metric": "other"}], "pass"),
    ],
)
def test_a_reference_of_the_sku_requires_a_measurement(extra: list[dict[str, object]], verdict: str) -> None:
    sku_references = [
        SkuReference(metric="copy", labels={"dtype": "bf16"}, reference=reference(low=-0.1)),
        *(SkuReference.model_validate({**one, "reference": reference(low=-0.1)}) for one in extra),
    ]
    assert verdict_with_references([measured(100, dtype="bf16")], *sku_references) == verdict


DTYPES = [{"metric": "gemm_best", "labels": {"dtype": dtype}} for dtype in ("bf16", "fp8")]


# `logged` has the number formats that the log has a measurement for, with "cpu" if it is the processor's.
@pytest.mark.parametrize(
    ("logged", "references", "verdict"),
    [
        # In a run on GPUs, the rule of the processor requires none of the references of GPUs.
        (("bf16", "fp8"), DTYPES, "pass"),
        (("bf16", "fp8"), DTYPES[:1], "pass"),
        (("bf16", "fp8"), [{"metric": "gemm_best"}], "pass"),
        # The rules of the GPU still require them, even the optional one.
        (("bf16",), DTYPES, "unproven"),
        (("fp8",), DTYPES, "unproven"),
        (("fp8",), DTYPES[1:], "unproven"),
        (("bf16",), [{"metric": "gemm_best"}], "unproven"),
        ((), DTYPES, "unproven"),
        # A measurement of the processor does not count for the GPU, however fast it is.
        (("bf16", "fp8 cpu"), DTYPES, "unproven"),
        # The rule of the processor requires the references of the processor.
        (("bf16", "fp8"), [{"metric": "gemm_best", "labels": {"device": "cpu"}}], "unproven"),
        (
            ("bf16", "fp8"),
            [{"metric": "gemm_best", "labels": {"device": "cpu", "dtype": "fp32"}}],
            "unproven",
        ),
    ],
)
def test_the_rule_of_the_processor_requires_no_reference_of_gpus(
    logged: Sequence[str], references: Sequence[dict[str, object]], verdict: str
) -> None:
    rules = [
        JudgeRule(metric="gemm_best", labels={"dtype": "bf16"}, direction=UP, needs_gpus=1),
        JudgeRule(metric="gemm_best", labels={"dtype": "fp8"}, direction=UP, needs_gpus=1, optional=True),
        JudgeRule(metric="gemm_best", labels={"device": "cpu"}, direction=UP, optional=True),
    ]
    sku_references = [
        SkuReference.model_validate({**one, "reference": reference(low=-0.1)}) for one in references
    ]
    log = ParsedLog(
        format="test",
        measurements=tuple(
            measured(
                100, "gemm_best", **dict(zip(("dtype", "device"), one.split(), strict=False)), gpu="GPU-1"
            )
            for one in logged
        ),
        verdict=Verdict.PASS,
    )
    found = judge_run(
        rules,
        [log],
        [],
        lambda one: [each.reference for each in sku_references if each.fits("gemm", {}, one)],
        parameters={"gpus": 1},
        require_references=False,
        sku_references=sku_references,
    )
    assert found.verdict == verdict, found.reasons


# There is no reference, so a plausible number is only a candidate, and the run passes by its accuracy.
@pytest.mark.parametrize(
    ("value", "unit", "direction", "verdict"),
    [
        (0, "TFLOP/s", UP, "unproven"),
        (-5, "TFLOP/s", UP, "unproven"),
        (-1e-9, "GB/s", UP, "unproven"),
        (-0.0, "samples/s", None, "unproven"),
        (0, "s", DOWN, "unproven"),
        (-3, "min", DOWN, "unproven"),
        (-1, "", None, "unproven"),
        (0.001, "TFLOP/s", UP, "pass"),
        (0, "", DOWN, "pass"),
    ],
)
def test_a_speed_of_zero_or_less_is_never_a_candidate(
    value: float, unit: str, direction: Direction | None, verdict: str
) -> None:
    rules = [JudgeRule(metric="copy", direction=direction), QUALITY]
    found = run(rules, [measured(value, unit=unit), measured(1, "accuracy", "")], require=False)
    assert found[0] == verdict


@pytest.mark.parametrize(
    ("bounds", "direction"),
    [
        ({"low": -0.9999999}, UP),
        ({"low": -0.51}, UP),
        ({"low": -0.8, "warn": -0.03}, UP),
        ({"low": -0.99}, None),
        ({"high": 9.0}, DOWN),
        ({"high": 1.01}, DOWN),
        ({"warn": -0.9}, UP),
        ({"warn": -0.51, "high": 0.25}, UP),
        ({"warn": 9.0}, DOWN),
        ({"warn": -0.9}, None),
        ({"high": 5.0}, None),
    ],
)
def test_a_bound_that_accepts_half_the_speed_is_unproven(
    bounds: dict[str, float], direction: Direction | None
) -> None:
    assert judge(measured(100), reference(**bounds), direction=direction).verdict == "unproven"


@pytest.mark.parametrize(
    "slip",
    [
        {"low": -0.9999999},
        {"low": -0.51},
        {"low": None, "warn": -0.7},
        {"value": "8_00"},
        {"value": "٨٠٠"},
        {"value": True},
        {"low": "-0_1"},
        {"value": "0x10"},
        {"value": ""},
    ],
)
def test_an_implausible_entry_of_the_inventory_is_refused(slip: dict[str, object]) -> None:
    whole = {"metric": "copy", "value": 100, "low": -0.1, "unit": "GB/s", "source": "test", **slip}
    with pytest.raises(ValidationError):
        parse_sku_reference(whole)
    assert parse_sku_reference({**whole, "value": "8e2", "low": "-0.1", "warn": None}).reference.value == 800


@pytest.mark.parametrize(
    ("parameters", "applies"),
    [
        ({"gpus": 1}, True),
        ({"gpus": 1, "batch": ""}, True),
        ({"gpus": 1, "batch": 4}, False),
        ({"gpus": 1, "batch": "8"}, False),
        ({"gpus": 4}, False),
        ({}, False),
    ],
)
def test_an_empty_parameter_of_a_reference_is_for_runs_that_do_not_set_it(
    parameters: dict[str, object], applies: bool
) -> None:
    reference = parse_sku_reference(
        {
            "benchmark": "llm",
            "parameters": {"gpus": 1, "batch": ""},
            "metric": "tokens_per_second_per_gpu",
            "value": 69950,
            "low": -0.05,
            "unit": "tokens/s",
            "source": "own measurement",
        }
    )
    assert reference.applies("llm", parameters) is applies


@pytest.mark.parametrize(
    ("bounds", "value", "expected"),
    [
        # Less is better for a time, so only the upper bound finds a slow machine.
        ({"high": 5.0}, 500, "unproven"),
        ({"low": -0.07}, 500, "unproven"),
        ({"warn": 5.0}, 100, "unproven"),
        ({"high": 0.07}, 104, "pass"),
        ({"low": -0.25, "high": 0.07}, 108, "fail"),
        # A value on the good side is too good to be true, as with a stated direction.
        ({"low": -0.25, "high": 0.07}, 74, "unproven"),
        ({"low": 0.0, "high": 0.0}, 99, "fail"),
    ],
)
@pytest.mark.parametrize("unit", ["s", "us", "min"])
def test_a_time_without_a_direction_needs_an_upper_bound(
    bounds: dict[str, float], value: float, unit: str, expected: str
) -> None:
    given = reference(**bounds).model_copy(update={"unit": unit})
    assert judge(measured(value, unit=unit), given).verdict == expected


# Each value is within its bound. Times, counts and rates are never negative, a time is never 0 (a sum of
# seconds, such as slowed_seconds, may be), and a share or accuracy that is bounded from below is at most 1.
# Temperatures, decibels, losses and differences may be negative.
@pytest.mark.parametrize(
    ("name", "unit", "bound", "value", "expected"),
    [
        ("step_time", "s", {"at_most": 10}, -5, "unproven"),
        ("step_time", "s", {"at_most": 10}, 0, "unproven"),
        ("latency", "us", {"at_most": 10}, -0.5, "unproven"),
        ("lost_time", "s", {"at_most": 0}, -3, "unproven"),
        ("errors", "", {"at_most": 0}, -3, "unproven"),
        ("errors", "1", {"at_most": 8}, -1, "unproven"),
        ("retransmits", "1/s", {"at_most": 10}, -1, "unproven"),
        ("accuracy", "", {"at_least": 0.7}, 5.0, "unproven"),
        ("top_1_accuracy", "fraction", {"at_least": 0.7}, 75.9, "unproven"),
        ("hit_rate", "fraction", {"at_least": 0.5}, 1.5, "unproven"),
        # A healthy machine passes.
        ("step_time", "s", {"at_most": 10}, 4, "pass"),
        ("slowed_seconds", "s", {"at_most": 0}, 0, "pass"),
        ("slowed_seconds", "s", {"equals": 0}, 0, "pass"),
        ("errors", "", {"at_most": 0}, 0, "pass"),
        ("retransmits", "1/s", {"at_most": 10}, 0, "pass"),
        ("temperature", "°C", {"at_most": 80}, -5, "pass"),
        ("received_power", "dBm", {"at_most": 0}, -3, "pass"),
        ("train_loss", "", {"at_most": 0.5}, -0.25, "pass"),
        ("compute_lag", "fraction", {"at_most": 0.04}, -0.01, "pass"),
        ("margin", "", {"at_most": -3}, -5, "pass"),
        ("eval_accuracy", "", {"at_most": 3.34}, 3.3, "pass"),
        ("eval_accuracy", "", {"at_least": 24.0}, 24.5, "pass"),
        ("top_1_accuracy", "%", {"at_least": 0.7}, 75.9, "pass"),
        ("accuracy", "", {"at_least": 0.7}, 1.0, "pass"),
        ("speedup", "", {"at_least": 0.9}, 1.02, "pass"),
    ],
)
def test_an_impossible_value_within_a_bound_is_unproven(
    name: str, unit: str, bound: dict[str, float], value: float, expected: str
) -> None:
    rule = JudgeRule.model_validate({"metric": name, **bound})
    assert run([rule], [measured(value, name, unit)])[0] == expected


@pytest.mark.parametrize(
    ("value", "lowest", "expected"),
    [
        (-3, 0.0, "unproven"),
        (-0.5, 0.0, "unproven"),
        (0, 0.0, "pass"),
        (2, 0.0, "fail"),
        (-105, -100, "fail"),
    ],
)
def test_a_count_with_a_reference_of_zero_is_not_negative(value: float, lowest: float, expected: str) -> None:
    none_at_all = Reference(value=lowest, high=0.0, low=-0.01 if lowest else None, unit="", source="test")
    rule = JudgeRule(metric="faults", direction=None if lowest else DOWN)
    assert run([rule], [measured(value, "faults", "")], references=[none_at_all])[0] == expected


@pytest.mark.parametrize("verdict", ["fail", "unproven", "degraded"])
def test_a_finding_counts_even_if_its_log_says_pass(verdict: str) -> None:
    found = Finding(code="nan", message="loss is NaN", verdict=Verdict(verdict))
    log = ParsedLog(format="mllog", measurements=(ACCURATE,), findings=(found,), verdict=Verdict.PASS)
    outcome = judge_run([QUALITY], [log], [], lambda one: [], parameters={}, require_references=False)
    assert (outcome.verdict, outcome.reasons) == (verdict, ("loss is NaN",))
