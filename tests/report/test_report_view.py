"""Test rackproof.report.view, which makes the tables, headlines and reasons that all forms of a report share.

The tests show which numbers lead a report, that one bad value among good ones is shown, how deviations and
bounds look, and how a sweep of trainings is compared with the CPU.
"""

from __future__ import annotations

import math

import pytest

from rackproof import report
from rackproof.analysis.compare.naming import THROUGHPUT
from rackproof.core.records import (
    Direction,
    Judgement,
    Measurement,
    Node,
    Reference,
    Run,
    Spread,
    Verdict,
)
from rackproof.core.text import NOTHING
from rackproof.report import html, view
from tests.report import example_runs


def judgement(value: float | None, reference: Reference | None = None, **more: object) -> Judgement:
    """Return a judgement of a value."""
    values = {"metric": "m", "value": value, "verdict": Verdict.PASS, "reason": "r", "reference": reference}
    return Judgement.model_validate(values | more)


def reference(**bounds: float) -> Reference:
    """Return a reference of 100, with bounds as shares of it."""
    return Reference.model_validate({"value": 100, "unit": "", "source": "s"} | bounds)


@pytest.mark.parametrize(
    ("one", "expected"),
    [
        (judgement(93, reference()), -0.07),
        (judgement(93, Reference(value=-100, unit="", source="")), 1.93),
        (judgement(1, Reference(value=0, unit="", source="")), None),
        (judgement(math.nan, reference()), None),
        (judgement(math.inf, reference()), None),
        (judgement(None, reference()), None),
        (judgement(1), None),
    ],
)
def test_the_deviation_is_relative_to_the_reference(one: Judgement, expected: float | None) -> None:
    assert view.relative_deviation(one) == (None if expected is None else pytest.approx(expected))


@pytest.mark.parametrize(
    ("bounds", "shown"),
    [
        ({"low": -0.07, "high": 0.25}, "93 to 125"),
        ({"low": 0.0}, "≥ 100"),
        ({"high": 0.0}, "≤ 100"),
        ({"low": 0.0, "high": 0.0}, "exactly 100"),
        ({}, ""),
    ],
)
def test_bounds_are_shown_as_values(bounds: dict[str, float], shown: str) -> None:
    assert view.bounds_text(reference(**bounds)) == shown


@pytest.mark.parametrize(
    ("value", "inside"),
    [(100, True), (93.5, True), (92, False), (124, True), (126, False), (1e9, False), (-1e9, False)],
)
def test_the_gauge_shows_whether_a_value_is_within_its_bounds(value: float, inside: bool) -> None:
    gauge = view.judgement_gauge(judgement(value, reference(low=-0.07, high=0.25)))
    assert gauge is not None
    assert (gauge.low <= gauge.value <= gauge.high) is inside
    assert 0 <= gauge.value <= 100


@pytest.mark.parametrize(
    ("value", "bounds"),
    [(150, {"low": 0.0}), (50, {"high": 0.0}), (150, {}), (50, {}), (150, {"low": -0.07})],
)
def test_a_gauge_has_room_on_a_side_without_a_bound(value: float, bounds: dict[str, float]) -> None:
    gauge = view.judgement_gauge(judgement(value, reference(**bounds)))
    assert gauge is not None
    assert 0 < gauge.reference < 100
    assert 0 < gauge.value < 100


def test_a_value_without_a_reference_or_range_has_no_gauge() -> None:
    assert view.judgement_gauge(judgement(1)) is None
    assert view.judgement_gauge(judgement(100, reference(low=0.0, high=0.0))) is None


def test_worst_judgements_come_first_and_those_that_do_not_count_last() -> None:
    order = [row[0].text for row in view.judgement_table(example_runs.hostile()).rows]
    assert order == ["fail", "unproven", "fail"]
    assert view.judgement_table(example_runs.hostile()).rows[-1][0].note == "does not count"


def test_of_several_gpus_the_lowest_stands_for_all() -> None:
    run = example_runs.healthy(
        judgements=(),
        measurements=tuple(
            Measurement(
                name="gemm_best",
                value=value,
                unit="TFLOP/s",
                direction=Direction.HIGHER,
                labels={"gpu": str(gpu)},
            )
            for gpu, value in enumerate((790.0, 650.0, 788.0))
        ),
    )
    (headline,) = view.main_measurements(run)
    assert (headline.value, headline.note) == ("650 TFLOP/s", "of 3: gpu 1")


def test_of_several_sizes_the_largest_stands_for_all() -> None:
    (headline, *_) = view.main_measurements(example_runs.rack().model_copy(update={"judgements": ()}))
    assert headline.note.startswith("of 22: 8 GiB")


def test_of_several_formats_the_lowest_gpu_of_the_fastest_stands_for_all() -> None:
    values = {("bf16", 0): 790.0, ("bf16", 1): 740.0, ("fp32", 0): 50.0, ("fp32", 1): 51.0}
    run = example_runs.healthy(
        judgements=(),
        measurements=tuple(
            Measurement(
                name="gemm_best",
                value=value,
                unit="TFLOP/s",
                direction=Direction.HIGHER,
                labels={"dtype": dtype, "gpu": str(gpu)},
            )
            for (dtype, gpu), value in values.items()
        ),
    )
    (headline,) = view.main_measurements(run)
    assert (headline.value, headline.note) == ("740 TFLOP/s", "of 4: dtype bf16, gpu 1")


@pytest.mark.parametrize("direction", [None, Direction.LOWER])
def test_one_wrong_value_is_not_hidden_by_right_ones(direction: Direction | None) -> None:
    run = example_runs.healthy(
        judgements=(),
        measurements=tuple(
            Measurement(
                name="wrong_values", value=value, unit="1", direction=direction, labels={"dtype": dtype}
            )
            for dtype, value in (("bf16", 0), ("fp16", 3), ("fp32", 0))
        ),
    )
    assert view.main_measurements(run)[0].value == "3"


def test_nan_is_not_hidden_by_good_numbers() -> None:
    values = (1.0, math.nan, 2.0)
    run = example_runs.healthy(
        judgements=(), measurements=tuple(Measurement(name="loss", value=value, unit="") for value in values)
    )
    assert view.main_measurements(run)[0].value == "NaN"


def test_judged_numbers_come_first() -> None:
    names = [one.name for one in view.main_measurements(example_runs.healthy())]
    assert names[:2] == ["samples per second", "eval accuracy"]
    assert len(names) == 4


@pytest.mark.parametrize("throughput", THROUGHPUT)
def test_time_to_train_and_throughput_of_a_training_come_first(throughput: str) -> None:
    numbers = {"seconds_per_epoch": 3.0, "all_else": 1.0, throughput: 2.0, "time_to_train": 1.0}
    measured = tuple(Measurement(name=name, value=value, unit="") for name, value in numbers.items())
    run = example_runs.healthy(measurements=measured, judgements=())
    assert [one.name for one in view.main_measurements(run)][:2] == [
        "time to train",
        view.metric_words(throughput),
    ]


def test_a_probe_has_no_time_to_train() -> None:
    numbers = {"memory_copy": 3.0, "time_to_train": 0.05, "startup_time": 2.0}
    measured = tuple(Measurement(name=name, value=value, unit="x") for name, value in numbers.items())
    run = Run(run_id="r", benchmark="b", measurements=measured)
    assert [one.name for one in view.main_measurements(run)] == ["memory copy", "startup time"]


@pytest.mark.parametrize("verdict", list(Verdict))
def test_every_verdict_has_a_reason(verdict: Verdict) -> None:
    bare = Run(run_id="r", benchmark="b", verdict=verdict, reasons=("", "\x1b[31m"))
    assert all(view.verdict_reasons(bare))
    assert view.verdict_reasons(bare)


def test_reasons_fall_back_on_judgements() -> None:
    bad = judgement(1, verdict=Verdict.FAIL, reason="too slow")
    run = Run(run_id="r", benchmark="b", verdict=Verdict.FAIL, judgements=(bad, judgement(2)))
    assert view.verdict_reasons(run) == ("m: too slow",)


def test_a_driver_that_differs_is_named_with_its_node() -> None:
    rows = {(row[1].text, row[2].text): row[3].text for row in view.software_table(example_runs.rack()).rows}
    assert rows["driver", "575.57.08"] == "1 of 18: gb300-18"
    assert rows["cuda", "13.0"] == "every node"


@pytest.mark.parametrize(
    ("path", "href"),
    [
        ("logs/log.txt", "./logs/log.txt"),
        ("logs/a b.txt", "./logs/a%20b.txt"),
        ("javascript:alert(1)", "./javascript%3Aalert%281%29"),
        ("//example.org/x", ""),
        ("/etc/passwd", ""),
        ("../other", ""),
        ("logs/../../x", ""),
        ("logs/\x1b[31m", ""),
        ("", ""),
    ],
)
def test_log_links_stay_in_the_folder(path: str, href: str) -> None:
    assert view.log_href(path) == href


def test_long_tables_say_what_they_leave_out() -> None:
    many = tuple(Measurement(name=f"m{index}", value=index, unit="") for index in range(view.MAX_ROWS + 7))
    table = view.measurement_table(example_runs.healthy(measurements=many))
    assert (len(table.rows), table.omitted) == (view.MAX_ROWS, 7)


def test_nodes_asked_for_but_not_used_are_named() -> None:
    facts = dict(view.fact_pairs(example_runs.healthy(asked_nodes=("node-01", "node-02"))))
    assert facts["Requested, not used"].text == "node-02"


def test_the_sweep_table_has_the_columns_people_publish() -> None:
    table = view.sweep_table(list(reversed(example_runs.sweep())))
    by_point = {(row[2].text, row[3].text, row[4].text): row for row in table.rows}
    assert len(by_point) == 48
    row = [cell.text for cell in by_point["lenet", "128", "1"]]
    assert row == [
        "pass",
        "h200 (1 \N{MULTIPLICATION SIGN} NVIDIA H200)",
        "lenet",
        "128",
        "1",
        "0.9917",
        "12",
        "0.6687",
        "89,720",
        "16.5",
        "35,888",
        "6.1",
    ]
    assert [row[3].text for row in table.rows[:5]] == ["64", "64", "64", "64", "128"]
    assert ("mlp", "64", "0 (CPU)") in by_point


def times_cpu(runs: list[Run]) -> list[str]:
    """Return the column "times CPU" of a sweep."""
    table = view.sweep_table(runs)
    return [row[list(table.columns).index("times CPU")].text for row in table.rows]


def test_a_rate_is_compared_with_that_of_the_same_cpu() -> None:
    axes = ("network", "gpus", "batch_size")
    sweep = {tuple(run.parameters[axis] for axis in axes): run for run in example_runs.sweep()}
    cpu, gpu = sweep["lenet", 0, 64], sweep["lenet", 1, 64]
    assert times_cpu([cpu, gpu]) == ["1.0", "16.5"]
    # Repeats on the CPU count by their mean, whatever their seeds are.
    seeded = cpu.model_copy(update={"parameters": {**cpu.parameters, "seed": 2}})
    assert times_cpu([cpu, seeded, gpu])[-1] == "16.5"
    other_node = cpu.model_copy(update={"nodes": (Node(name="node-09"),)})
    for base in (
        sweep["lenet", 0, 128],
        sweep["mlp", 0, 64],
        other_node,
        cpu.model_copy(update={"verdict": Verdict.FAIL}),
        cpu.model_copy(update={"verdict": Verdict.UNPROVEN}),
        cpu.model_copy(update={"measurements": ()}),
        cpu.model_copy(update={"parameters": {**cpu.parameters, "learning_rate": 0.07}}),
    ):
        found = times_cpu([base, gpu])
        assert NOTHING in found
        assert set(found) <= {NOTHING, "1.0"}
    # A run that failed is not compared.
    assert times_cpu([cpu, gpu.model_copy(update={"verdict": Verdict.FAIL})]) == ["1.0", NOTHING]


@pytest.mark.parametrize("rates", [(1.0, -1.0), (0.0, 0.0), (-5.0, -6.0)])
def test_a_rate_is_not_compared_with_one_that_is_not_positive(rates: tuple[float, float]) -> None:
    axes = ("network", "gpus", "batch_size")
    sweep = {tuple(run.parameters[axis] for axis in axes): run for run in example_runs.sweep()}
    cpu, gpu = sweep["lenet", 0, 64], sweep["lenet", 1, 64]
    runs = []
    for seed, rate in enumerate(rates):
        measured = [one.model_copy(update={"value": rate}) for one in cpu.measurements]
        point = {**cpu.parameters, "seed": seed}
        runs.append(cpu.model_copy(update={"measurements": tuple(measured), "parameters": point}))
    assert set(times_cpu([*runs, gpu])) == {NOTHING}


def test_points_are_sorted_by_number_even_among_other_values() -> None:
    values = ["huge", 10**400, 512, math.nan, 64, 128.0, None]
    runs = [example_runs.healthy(parameters={"batch_size": value}) for value in values]
    shown = [row[3].text for row in view.sweep_table(runs).rows]
    assert shown[:3] == ["64", "128.0", "512"]
    assert len(shown) == len(values)


def test_a_single_point_is_no_sweep() -> None:
    run = example_runs.healthy()
    assert not view.is_training_sweep([run, run])
    assert view.is_training_sweep(example_runs.sweep())


def test_a_plan_with_a_missing_run_is_unproven() -> None:
    runs = [example_runs.healthy()]
    assert view.overall_verdict(runs) is Verdict.PASS
    assert view.overall_verdict(runs, ["gemm on node-02"]) is Verdict.UNPROVEN
    assert view.plan_reasons(runs, ["gemm on node-02"]) == ("missing: gemm on node-02",)
    assert view.overall_verdict([]) is Verdict.UNPROVEN
    assert view.plan_reasons([]) == ("Nothing ran, so nothing is proven.",)


def test_reasons_of_a_plan_are_bounded() -> None:
    bad = [example_runs.healthy(verdict=Verdict.FAIL, reasons=("slow",))] * 40
    said = view.plan_reasons(bad)
    assert len(said) == 13
    assert said[-1] == "… and 28 more"


def test_a_speed_is_shown_with_the_spread_of_its_samples() -> None:
    spread = Spread(count=200, low=96, median=100, high=102)
    measured = Measurement(name="gemm_best", value=100, unit="TFLOP/s", spread=spread)
    judged = judgement(100.0, reference(), metric="gemm_best", unit="TFLOP/s", spread=spread)
    run = example_runs.healthy(measurements=(measured,), judgements=(judged,))
    assert view.main_measurements(run)[0].value == "100 TFLOP/s ±3 %"
    for table, column in ((view.judgement_table(run), "Measured"), (view.measurement_table(run), "Value")):
        assert table.rows[0][table.columns.index(column)].note == "96 to 102 (200 samples)"
    assert "100 TFLOP/s ±3 %" in report.terminal_table([run], 200)
    page = html.run_page(run)
    assert "±3 %" in page
    assert "96 to 102 (200 samples)" in page


@pytest.mark.parametrize(
    "spread",
    [None, Spread(count=9, low=100, median=100.1, high=100.2), Spread(count=9, low=0, median=0, high=0)],
)
def test_a_missing_or_tiny_spread_is_not_shown_in_short(spread: Spread | None) -> None:
    measured = Measurement(name="gemm_best", value=100, unit="TFLOP/s", spread=spread)
    run = example_runs.healthy(measurements=(measured,), judgements=())
    assert view.main_measurements(run)[0].value == "100 TFLOP/s"
