"""Test the comparison of systems over repeats (:mod:`rackproof.analysis.compare.systems`).

``rackproof compare`` shows systems side by side, by the throughput, minutes and epochs of each benchmark.
These tests check the ratios and their confidence intervals, which runs count, which points are compared, and
how a system is judged by the published results of round 0.6.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import pytest

from rackproof.analysis.compare.naming import published_system
from rackproof.analysis.compare.systems import (
    ComparedMetric,
    System,
    SystemComparison,
    compare_systems,
    exclusion_reason,
    systems_of,
)
from rackproof.analysis.mlperf.published import find_published
from rackproof.core.records import (
    Direction,
    Finding,
    Judgement,
    LogFile,
    Measurement,
    Node,
    Reference,
    Run,
    Series,
    Source,
    Verdict,
)

HIGHER, LOWER = Direction.HIGHER, Direction.LOWER
# Numbers of the runs, from which each run gets a different log.
_numbers = itertools.count()


def training(
    rate: float | None = 100.0,
    minutes: float | None = 20.0,
    *,
    benchmark: str = "ssd",
    unit: str = "samples/s",
    name: str = "samples_per_second",
    epochs: float = 10.0,
    **more: object,
) -> Run:
    """Return a run with its throughput, minutes and epochs."""
    number = next(_numbers)
    measured = [Measurement(name="epochs", value=epochs, unit="epochs", direction=LOWER)]
    if rate is not None:
        measured.append(Measurement(name=name, value=rate, unit=unit, direction=HIGHER))
    if minutes is not None:
        measured.append(Measurement(name="time_to_train", value=minutes, unit="min", direction=LOWER))
    log = LogFile(path="logs/log.txt", sha256=f"{number:064x}", size_bytes=1, verdict=Verdict.PASS)
    given = {
        "run_id": f"run-{number}",
        "benchmark": benchmark,
        "measurements": tuple(measured),
        "logs": (log,),
        "verdict": Verdict.PASS,
    }
    return Run.model_validate(given | more)


def versus(first: Sequence[Run], second: Sequence[Run], **options: object) -> SystemComparison:
    """Return the comparison of two systems with these runs."""
    systems = [System(name="a", runs=tuple(first)), System(name="b", runs=tuple(second))]
    return compare_systems(systems, **options)  # type: ignore[arg-type]


def row(comparison: SystemComparison, kind: str) -> ComparedMetric:
    """Return the only row of a kind."""
    (found,) = (one for one in comparison.rows if one.kind == kind)
    return found


class TestIntervals:
    def test_the_ratio_of_the_means_has_welchs_interval(self) -> None:
        compared = row(
            versus([training(x) for x in (100, 102, 98, 100)], [training(x) for x in (190, 192, 188, 190)]),
            "throughput",
        )
        (ratio,) = compared.ratios
        # The half width is 2.453 % on the logarithm, as in the test of scaling efficiency.
        assert ratio.value == pytest.approx(1.9)
        assert ratio.low == pytest.approx(1.9 * math.exp(-0.02453), rel=2e-4)
        assert ratio.high == pytest.approx(1.9 * math.exp(0.02453), rel=2e-4)
        assert ratio.conclusion == "better"
        assert [len(cell.values) for cell in compared.cells] == [4, 4]
        # With three degrees of freedom, Student's t is 3.182, and the half width is 3.182 * 1.633 / 2.
        assert compared.cells[0].low == pytest.approx(100 - 2.5985, abs=1e-3)

    def test_the_inverse_comparison_has_the_inverse_interval(self) -> None:
        one, two = [training(x) for x in (100, 103, 98)], [training(x) for x in (110, 113, 109)]
        (there,), (back,) = (row(versus(*pair), "throughput").ratios for pair in ((one, two), (two, one)))
        assert there.low is not None
        assert back.high is not None
        assert there.low * back.high == pytest.approx(1)
        assert (there.conclusion, back.conclusion) == ("better", "worse")

    def test_fewer_minutes_are_better_and_more_epochs_only_differ(self) -> None:
        compared = versus(
            [training(minutes=x, epochs=e) for x, e in ((20, 10), (20.2, 10.1))],
            [training(minutes=x, epochs=e) for x, e in ((10, 20), (10.1, 20.1))],
        )
        assert row(compared, "minutes").ratios[0].conclusion == "better"
        assert row(compared, "epochs").ratios[0].conclusion == "differs"

    def test_a_difference_smaller_than_the_scatter_is_not_shown(self) -> None:
        compared = versus([training(x) for x in (90, 110)], [training(x) for x in (95, 118)])
        assert row(compared, "throughput").ratios[0].conclusion == "no difference shown"

    @pytest.mark.parametrize(("left", "right"), [(1, 1), (1, 3), (3, 1)])
    def test_one_run_has_no_interval_and_reports_it(self, left: int, right: int) -> None:
        compared = versus([training(100 + x) for x in range(left)], [training(200 + x) for x in range(right)])
        (ratio,) = row(compared, "throughput").ratios
        assert (ratio.low, ratio.high, ratio.conclusion) == (None, None, "no interval")
        assert ratio.reason == f"{left} and {right} run{'s' * (right > 1)}; two of each are needed"
        assert ratio.value is not None

    def test_equal_repeats_have_no_interval(self) -> None:
        (ratio,) = row(versus([training(1), training(1)], [training(2), training(2)]), "throughput").ratios
        assert (ratio.conclusion, ratio.low) == ("no interval", None)
        assert "equal" in ratio.reason

    def test_a_higher_confidence_is_wider(self) -> None:
        runs = [training(x) for x in (100, 101, 102)], [training(x) for x in (110, 111, 113)]
        wide, narrow = (row(versus(*runs, confidence=one), "throughput").ratios[0] for one in (0.99, 0.8))
        assert (wide.low or 0) < (narrow.low or 0) < (narrow.high or 0) < (wide.high or 0)


class TestWhatCounts:
    def lying(self) -> Run:
        """Return a failed run with exit status 0 and better values than the others."""
        findings = (
            Finding(code="no_run_stop", message="no run_stop", verdict=Verdict.UNPROVEN),
            Finding(code="traceback", message="a traceback", verdict=Verdict.FAIL, source=Source(line=3)),
            Finding(
                code="out_of_memory", message="out of memory", verdict=Verdict.FAIL, source=Source(line=9)
            ),
        )
        return training(999.0, 1.0, findings=findings, verdict=Verdict.FAIL, exit_status=0)

    def test_a_failed_log_never_enters_a_mean(self) -> None:
        compared = versus([training(100), self.lying(), training(102)], [training(100)])
        cell = row(compared, "throughput").cells[0]
        assert (cell.value, cell.values, cell.left_out) == (101, (100, 102), 1)
        (left,) = compared.left_out
        assert (left.system, left.verdict, left.reason, left.source.line) == (
            "a",
            Verdict.FAIL,
            "out of memory",
            9,
        )
        assert len(compared.counted) == 3

    def test_a_failed_log_without_a_batch_size_is_counted_as_left_out(self) -> None:
        good = training(100, parameters={"batch_size": 8})
        compared = versus([good, self.lying()], [training(100, parameters={"batch_size": 8})])
        assert row(compared, "throughput").cells[0].left_out == 1

    def test_a_system_of_failures_has_no_value(self) -> None:
        compared = versus([self.lying()], [training(100)])
        first, second = row(compared, "throughput").cells
        assert (first.value, first.left_out, second.value) == (None, 1, 100)
        assert row(compared, "throughput").ratios[0].conclusion == "no ratio"

    def test_a_copied_log_does_not_count_in_the_second_system(self) -> None:
        run = training(100)
        compared = versus([run, training(104)], [run, training(108)])
        assert row(compared, "throughput").cells[1].values == (108,)
        assert "byte for byte the same log" in compared.left_out[0].reason
        assert compared.left_out[0].system == "b"

    @pytest.mark.parametrize("number", range(1, 4))
    def test_runs_may_share_an_empty_log(self, number: int) -> None:
        empty = LogFile(path="logs/empty.log", sha256="e" * 64, size_bytes=0, verdict=Verdict.PASS)
        runs = [training(100 + one) for one in range(number + 1)]
        runs = [run.model_copy(update={"logs": (*run.logs, empty)}) for run in runs]
        assert not versus(runs, [training(300)]).left_out
        full = empty.model_copy(update={"size_bytes": 9})
        runs = [run.model_copy(update={"logs": (*run.logs[:1], full)}) for run in runs]
        (*copies,) = versus(runs, [training(300)]).left_out
        assert len(copies) == number
        assert "as logs/empty.log (a)" in copies[0].reason

    @pytest.mark.parametrize("value", [1e200, 1e-200, 1.7e308])
    def test_speeds_that_no_float_can_square_are_compared(self, value: float) -> None:
        compared = versus([training(value), training(value)], [training(value), training(value)])
        assert row(compared, "throughput").cells[0].value == value

    def judged(self, verdict: Verdict, **bounds: float) -> Run:
        """Return a run with one judgement, by a reference with these bounds."""
        reference = Reference(value=100, unit="", source="s", **bounds)
        judgement = Judgement(metric="m", value=1, reference=reference, verdict=verdict, reason="why")
        return training(judgements=(judgement,), verdict=verdict)

    def test_a_slow_run_counts_and_a_wrong_one_does_not(self) -> None:
        assert exclusion_reason(self.judged(Verdict.FAIL, low=-0.07, warn=-0.035)) is None
        assert exclusion_reason(self.judged(Verdict.UNPROVEN, low=-0.07, warn=-0.035)) is None
        assert exclusion_reason(self.judged(Verdict.UNPROVEN, low=0)) is not None
        assert exclusion_reason(self.judged(Verdict.UNPROVEN, high=0)) is not None
        left = exclusion_reason(self.judged(Verdict.FAIL, low=0))
        assert left is not None
        assert left[:2] == (Verdict.FAIL, "m: why")

    @pytest.mark.parametrize(
        ("more", "verdict"),
        [
            ({"exit_status": 1}, Verdict.FAIL),
            ({"findings": (Finding(code="machine_busy", message="n1 was not idle"),)}, Verdict.UNPROVEN),
            ({"logs": (), "verdict": Verdict.UNPROVEN}, Verdict.UNPROVEN),
            (
                {"logs": (LogFile(path="l", sha256="0", size_bytes=0, verdict=Verdict.UNPROVEN),)},
                Verdict.UNPROVEN,
            ),
        ],
    )
    def test_a_failed_or_unproven_run_is_left_out(self, more: dict[str, object], verdict: Verdict) -> None:
        left = exclusion_reason(training(**more))  # type: ignore[arg-type]
        assert left is not None
        assert left[0] is verdict

    def test_nan_does_not_count_as_a_value(self) -> None:
        compared = versus([training(math.nan), training(50)], [training(50)])
        assert row(compared, "throughput").cells[0].values == (50,)


class TestMatching:
    def test_points_are_matched_and_the_rest_is_named(self) -> None:
        def at(size: int, rate: float) -> Run:
            return training(rate, benchmark="mnist", parameters={"batch_size": size})

        compared = versus([at(1, 10), at(2, 20)], [at(2, 30), at(4, 40)])
        assert [one.point for one in compared.rows if one.kind == "throughput"] == ["batch_size=2"]
        assert compared.unmatched == ("mnist batch_size=1", "mnist batch_size=4")

    @pytest.mark.parametrize("turned", [False, True])
    def test_points_of_either_system_alone_are_named(self, turned: bool) -> None:
        def at(size: object, rate: float) -> Run:
            return training(rate, benchmark="mnist", parameters={"batch_size": size})

        sides = [at(256, 10)], [at(256, 30), at(512, 40), at(1024, 50)]
        compared = versus(*(sides[::-1] if turned else sides))
        assert set(compared.unmatched) == {"mnist batch_size=512", "mnist batch_size=1024"}

    @pytest.mark.parametrize("size", ["\u00b2", "\u0663\u0662", "9" * 5000])
    def test_a_batch_size_that_is_no_number_is_shown_as_it_is(self, size: str) -> None:
        runs = [[training(10, parameters={"global_batch_size": one})] for one in (size, "32")]
        assert versus(*runs).rows

    def test_a_benchmark_of_one_system_is_named(self) -> None:
        compared = versus([training(), training(benchmark="gnmt")], [training()])
        assert compared.unmatched == ("gnmt",)

    def test_the_folders_name_of_round_0_6_is_the_benchmark(self) -> None:
        compared = versus([training(benchmark="translation")], [training(benchmark="transformer")])
        assert {one.benchmark for one in compared.rows} == {"transformer"}

    def test_batches_of_different_size_are_not_compared(self) -> None:
        def batches(size: int, rate: float) -> Run:
            return training(
                rate, name="batches_per_second", unit="batches/s", parameters={"batch_size": size}
            )

        compared = row(versus([batches(80, 10)], [batches(40, 18)]), "throughput")
        assert compared.ratios[0].conclusion == "not comparable"
        assert compared.notes == ("global batch sizes 80 and 40; times the rate: 800 and 720 per second",)
        same = row(versus([batches(80, 10)], [batches(80, 18)]), "throughput")
        assert same.ratios[0].conclusion == "no interval"

    def test_different_units_have_no_ratio(self) -> None:
        compared = row(versus([training(unit="samples/s")], [training(unit="tokens/s")]), "throughput")
        assert (compared.ratios[0].value, compared.ratios[0].conclusion) == (None, "not comparable")

    def test_a_probe_is_compared_by_its_worst_gpu(self) -> None:
        def probe(*rates: float) -> Run:
            measured = tuple(
                Measurement(name="copy", value=rate, unit="GB/s", direction=HIGHER, labels={"gpu": str(at)})
                for at, rate in enumerate(rates)
            )
            return training(benchmark="memory", measurements=measured)

        compared = row(versus([probe(10, 8)], [probe(9, 12)]), "other")
        assert [cell.value for cell in compared.cells] == [8, 9]

    def test_three_systems_are_each_compared_with_the_first(self) -> None:
        systems = [System(name=name, runs=(training(rate),)) for name, rate in (("a", 1), ("b", 2), ("c", 4))]
        assert [one.value for one in row(compare_systems(systems), "throughput").ratios] == [2, 4]

    def test_every_set_of_nodes_is_a_system(self) -> None:
        a, b = Node(name="a"), Node(name="b")
        runs = [training(nodes=nodes) for nodes in ((a,), (b,), (a,), (b, a), (a, b))]
        runs.append(training(asked_nodes=("c",)))
        assert [(one.name, len(one.runs)) for one in systems_of(runs)] == [
            ("a", 2),
            ("b", 1),
            ("a, b", 2),
            ("c", 1),
        ]

    @pytest.mark.parametrize(
        ("names", "options", "said"),
        [
            (("a",), {}, "two or more"),
            (("a", "a"), {}, "different names"),
            (("a", "b"), {"confidence": 1.0}, "between 0 and 1"),
            (
                ("a", "b"),
                {"reference": "Cray"},
                "no published system Cray; round 0.6 has .*DGX-1, .*HyperPlane",
            ),
        ],
    )
    def test_wrong_systems_and_options_are_refused(
        self, names: tuple[str, ...], options: dict[str, object], said: str
    ) -> None:
        systems = [System(name=name, runs=(training(),)) for name in names]
        with pytest.raises(ValueError, match=said):
            compare_systems(systems, **options)  # type: ignore[arg-type]


class TestPublished:
    @pytest.mark.parametrize(
        ("name", "published"),
        [
            ("DGX1", "DGX-1"),
            ("config_DGX1", "DGX-1"),
            # A config of Lambda's selects the published row of the tuned host, which was made with it.
            ("LambdaHyperplaneBasic", "HyperPlane-tuned"),
            ("config_LambdaHyperplaneBasic", "HyperPlane-tuned"),
            ("hyperplane", "HyperPlane"),
            ("DGX2", "DGX-2"),
            ("LambdaHyperplane16", "HyperPlane-16-tuned"),
            ("HyperPlane 16", "HyperPlane-16"),
            ("2xLambdaHyperplaneBasic", "2xHyperPlane"),
            ("LambdaQuad2080Ti", "Quad-2080Ti"),
            ("DGX100", None),
            ("DGX-2H", None),
            ("dgx2h_n1", None),
            ("DGX2 host 4", "DGX-2"),
            ("LambdaHyperplane160", None),
            ("3xLambdaHyperplaneBasic", None),
            ("2xDGX1", None),
            ("LambdaQuadBasic", None),
            ("h100-x1", None),
        ],
    )
    def test_a_name_selects_its_published_system(self, name: str, published: str | None) -> None:
        assert published_system(name) == published

    def against(self, *runs: Run, name: str = "DGX1") -> SystemComparison:
        """Return the comparison of a system of these runs with the published DGX-1."""
        published = tuple(one for one in find_published(round="0.6") if one.system == "DGX-1")
        return compare_systems([System(name=name, runs=runs), System(name="p", published=published)])

    @pytest.mark.parametrize(
        ("rate", "verdict"),
        [
            (4420.04, Verdict.PASS),
            (4420.04 * 0.95, Verdict.DEGRADED),
            (4420.04 * 0.92, Verdict.FAIL),
            (4420.04 * 1.4, Verdict.UNPROVEN),
        ],
    )
    def test_throughput_is_judged(self, rate: float, verdict: Verdict) -> None:
        compared = row(self.against(training(rate, 22.03)), "throughput")
        mine, published = compared.cells
        assert mine.judgement is not None
        assert mine.judgement.verdict is verdict
        assert mine.judgement.reference is not None
        assert mine.judgement.reference.value == 4420.04
        assert "Lambda, DGX-1, ssd; 1 run" in mine.judgement.reference.source
        assert (published.value, published.published, published.judgement) == (4420.04, True, None)
        assert compared.ratios[0].reason == "a published mean states no repeats"

    def test_published_systems_are_no_references_if_judge_is_false(self) -> None:
        systems = [System(name=name, runs=(training(9000.0, 22.03),)) for name in ("DGX1", "other")]
        assert row(compare_systems(systems), "throughput").cells[0].judgement is not None
        assert row(compare_systems(systems, judge=False), "throughput").cells[0].judgement is None

    def test_minutes_may_differ_by_one_evaluation(self) -> None:
        # With an evaluation at each tenth of the time, one run may end 10 % later by chance, four runs 5 %.
        def run(minutes: float) -> Run:
            times = tuple(60 * minutes * part for part in (0.8, 0.9, 1.0))
            curve = Series(name="eval_accuracy", unit="", x_unit="s", x=times, y=(0.1, 0.2, 0.3))
            return training(4420.0, minutes, series=(curve,))

        late = 22.03 * 1.09
        one = row(self.against(run(late)), "minutes").cells[0]
        four = row(self.against(*(run(late) for _ in range(4))), "minutes").cells[0]
        assert one.expected == pytest.approx(0.1)
        assert four.expected == pytest.approx(0.05)
        assert one.judgement is not None
        assert four.judgement is not None
        assert (one.judgement.verdict, four.judgement.verdict) == (Verdict.DEGRADED, Verdict.FAIL)
        assert one.judgement.reference is not None
        assert "±10.0%" in one.judgement.reference.source

    def test_evaluations_after_training_make_an_epoch_the_step(self) -> None:
        curve = Series(name="eval_accuracy", unit="", x_unit="s", x=(9000.0, 9100.0), y=(0.1, 0.6))
        run = training(
            0.6,
            27,
            benchmark="minigo",
            unit="epochs/min",
            name="epochs_per_minute",
            epochs=16,
            series=(curve,),
        )
        assert row(self.against(run), "minutes").cells[0].expected == pytest.approx(1 / 16)

    def test_more_batches_of_unstated_size_are_unproven(self) -> None:
        run = training(40.0, 20, benchmark="transformer", unit="batches/s", name="batches_per_second")
        cell = row(self.against(run), "throughput").cells[0]
        assert cell.judgement is not None
        assert cell.judgement.verdict is Verdict.UNPROVEN
        assert cell.judgement.reference is not None
        assert "size of its batches is not stated" in cell.judgement.reference.source
        assert row(self.against(run), "throughput").ratios[0].conclusion == "not comparable"

    def test_a_system_is_judged_by_its_own_published_row(self) -> None:
        compared = self.against(training(4280.86, 23.33), name="LambdaHyperplaneBasic")
        judgement = row(compared, "throughput").cells[0].judgement
        assert judgement is not None
        assert judgement.reference is not None
        assert judgement.reference.value == 4273.94

    def test_all_rows_of_both_tables_are_in_the_package(self) -> None:
        # These are the published tables: throughput, then minutes, in the order of the models.
        models = ("ssd", "maskrcnn", "resnet", "gnmt", "transformer", "minigo")
        printed = {
            "2xHyperPlane": "8310.40 x x x x x / x x x x x x",
            "DGX-2": ("8274.91 272.97 22361.42 1349928.90 84.86 x / 13.32 108.02 59.8 12.23 11.62 x"),
            "HyperPlane-16-tuned": (
                "8264.94 268.12 21879.38 1336200.98 84.09 x / 12.62 106.15 60.37 13.40 11.27 x"
            ),
            "HyperPlane-16": (
                "8040.79 257.07 21767.38 1313706.02 83.47 x / 14.05 109.01 61.48 12.97 13.01 x"
            ),
            "DGX-1": ("4420.04 132.2 11224 727808 33.82 0.61 / 22.03 207.48 115.22 20.55 20.34 27.39"),
            "HyperPlane-tuned": (
                "4273.94 139.65 10403.22 705040.75 40.04 0.66 / 23.17 197.06 124.82 21.37 23.19 24.82"
            ),
            "HyperPlane": (
                "4280.86 133.20 10861.43 696587.86 33.77 0.50 / 23.33 206.82 117.21 23.50 19.85 29.76"
            ),
            "Blade-2080Ti": (
                "2575.92 72.86 6301.29 326569.0 26.68 0.30 / 38.25 586.66 206.2 45.03 66.45 51.23"
            ),
            "Quad-2080Ti": (
                "1096.60 35.70 2739.52 147396.0 13.12 0.15 / 88.31 598.2 501.35 124.16 100.86 143.15"
            ),
            "Dual-2080Ti": "593.10 x 1455.81 86146.37 10.31 x / 162.95 x 1001.5 338.68 259.29 x",
        }
        found: dict[str, dict[str, tuple[float | None, float | None]]] = {}
        for one in find_published(round="0.6"):
            found.setdefault(one.system, {})[one.benchmark] = (one.throughput, one.minutes)
            assert "Lambda" in one.source
        assert set(found) == set(printed)
        for system, text in printed.items():
            rates, minutes = (half.split() for half in text.split("/"))
            for model, *cells in zip(models, rates, minutes, strict=True):
                wanted = tuple(None if cell == "x" else float(cell) for cell in cells)
                assert found[system].get(model, (None, None)) == wanted, (system, model)
