"""Test rackproof.report.charts, which draws the curves of a run as SVG for its page.

The tests show which charts a run has, that extremes and gaps are kept, that the number of lines and points is
bounded, and that no number or text breaks the drawing.
"""

from __future__ import annotations

import io
import json
import math
import re
from xml.etree import ElementTree

import pytest

from rackproof import logs
from rackproof.core.records import Measurement, Series
from rackproof.report import charts, html
from rackproof.report.charts import Chart, Line
from tests.report import example_runs


def line(*heights: float, label: str = "") -> Line:
    """Return a line with these heights at 0, 1, 2 and so on."""
    return Line(label, tuple(float(x) for x in range(len(heights))), heights)


def drawn_points(svg: str) -> int:
    """Return how many points the longest path drawn in the first line's colour has."""
    paths = re.findall(r'<path d="([^"]+)"[^>]*stroke: var\(--c0\)', svg)
    return max((len(re.findall("[ML]", path)) for path in paths), default=0)


def test_a_run_has_a_chart_for_each_of_its_curves() -> None:
    titles = [chart.title for chart in charts.run_charts(example_runs.healthy())]
    assert titles == ["Samples per second over time", "Train loss over step", "Eval accuracy over epoch"]


@pytest.mark.parametrize("gap_s", [0, 3600])
@pytest.mark.parametrize("gpus", [1, 2, 8])
def test_a_soaks_page_has_the_curves_of_each_gpu(gpus: int, gap_s: int) -> None:
    """Check the curves of a soak, from its log to its page.

    After 40 s, one GPU slows down from 650 to 610 TFLOP/s, which its curve must show. After 30 s, the soak
    may be interrupted for ``gap_s``, and the curves must have a gap of this length.
    """
    start = 1795318443480

    def event(second: float, key: str, value: object, kind: str = "POINT_IN_TIME", **more: object) -> str:
        about = {"namespace": "", "time_ms": start + round(1000 * second), "event_type": kind, "key": key}
        return ":::MLLOG " + json.dumps(
            about | {"value": value, "metadata": {"file": "x", "lineno": 1, **more}}
        )

    def sample(gpu: int, second: int) -> dict[str, object]:
        sags = gpu == gpus - 1 and second >= 40
        figures = {"rate": 610.0 if sags else 650.0, "stalls": int(sags), "power": 697.0, "temperature": 70}
        return {"gpu": str(gpu), **figures, "clock": 1485, "throttle": 4}

    def at(second: int) -> dict[str, int]:
        return {"at_s": second + gap_s * (second > 30)} if gap_s else {}

    lines = [
        event(-2, "submission_benchmark", "probe_soak"),
        event(0, "run_start", None, "INTERVAL_START"),
        *(
            event(second, "gpu_sample", {"gpus": [sample(gpu, second)], "links": [], **at(second)})
            for second in range(1, 60)
            for gpu in range(gpus)
        ),
        event(61, "run_stop", None, "INTERVAL_END", status="success"),
    ]
    log = logs.parse(io.BytesIO("\n".join(lines).encode()), name="mllog")
    run = example_runs.healthy(series=log.series, measurements=())
    made = {chart.title: chart for chart in charts.run_charts(run)}
    assert list(made)[:2] == ["Soak rate over time", "Stalled steps over time"]
    assert {"GPU power over time", "GPU temperature over time", "GPU clock over time"} <= made.keys()
    for chart in made.values():
        assert len(chart.lines) == gpus
    for curve in made["Soak rate over time"].lines:
        assert (curve.x[0], curve.x[29], curve.x[30], curve.x[-1]) == (1, 30, 31 + gap_s, 59 + gap_s)
    lowest = [min(one.y) for one in made["Soak rate over time"].lines]
    assert sorted(lowest) == [610.0, *[650.0] * (gpus - 1)]
    page = html.run_page(run)
    assert page.count("Soak rate over time") >= 1
    assert "TFLOP/s" in page


def test_the_bound_that_was_judged_is_drawn() -> None:
    accuracy = charts.run_charts(example_runs.healthy())[2]
    assert accuracy.level == pytest.approx(0.99)
    assert accuracy.level_label == "at least 0.99"


def test_a_bandwidth_is_drawn_over_the_message_size() -> None:
    (chart,) = charts.run_charts(example_runs.rack())
    assert (chart.title, chart.log_x, len(chart.lines)) == ("All reduce busbw over message size", True, 2)
    assert len(chart.lines[0].x) == 11


def test_no_curve_for_what_is_the_same_at_every_size() -> None:
    zeros = tuple(
        Measurement(name="wrong_values", value=0, unit="1", labels={"size_bytes": str(1 << power)})
        for power in range(20, 30)
    )
    assert charts.run_charts(example_runs.healthy(series=(), measurements=zeros)) == ()


def test_the_curves_of_a_sweep_have_one_line_per_number_of_gpus() -> None:
    made = charts.sweep_charts(example_runs.sweep())
    assert [chart.title for chart in made] == [
        "Throughput over batch size: mnist-lenet",
        "Validation accuracy over batch size: mnist-lenet",
        "Throughput over batch size: mnist-mlp",
        "Validation accuracy over batch size: mnist-mlp",
    ]
    assert [one.label for one in made[0].lines] == ["CPU", "1 GPU", "2 GPUs", "4 GPUs"]
    assert made[0].lines[0].x == (64, 128, 256, 512, 1024, 2048)


def test_repeats_of_a_point_are_averaged_and_units_not_mixed() -> None:
    def run(batch: int, value: float, unit: str = "samples/s") -> object:
        measured = (Measurement(name="samples_per_second", value=value, unit=unit),)
        return example_runs.healthy(parameters={"batch_size": batch}, measurements=measured)

    runs = [run(1, 10), run(1, 30), run(2, 50), run(2, math.nan), run(4, 9, "it/s")]
    (chart,) = charts.sweep_charts(runs)  # type: ignore[arg-type]
    assert (chart.lines[0].x, chart.lines[0].y) == ((1.0, 2.0), (20.0, 50.0))


def test_thinning_keeps_the_extremes() -> None:
    heights = [1.0] * 10_000
    heights[1234], heights[7777], heights[5000] = 9.0, -9.0, math.nan
    thinned = charts.thin(line(*heights))
    assert len(thinned.x) <= 1.3 * charts.MAX_POINTS
    assert {9.0, -9.0} <= set(thinned.y)
    assert any(math.isnan(value) for value in thinned.y)
    assert list(thinned.x) == sorted(thinned.x)


def test_the_number_of_lines_and_points_is_bounded() -> None:
    series = tuple(
        Series(
            name="loss",
            unit="",
            x_unit="step",
            x=tuple(map(float, range(5000))),
            y=(1.0, 2.0) * 2500,
            labels={"rank": str(rank)},
        )
        for rank in range(20)
    )
    (chart,) = charts.run_charts(example_runs.healthy(series=series))
    assert len(chart.lines) == charts.MAX_LINES
    assert chart.notes == ("8 of 20 curves are drawn; run.json has all of them.",)
    drawn = charts.draw(chart, "c")
    assert 300 < drawn_points(drawn.svg) <= 1.3 * charts.MAX_POINTS


def test_the_number_of_charts_is_bounded() -> None:
    series = tuple(
        Series(name=f"s{index}", unit="", x_unit="s", x=(0.0, 1.0), y=(0.0, 1.0)) for index in range(50)
    )
    assert len(charts.run_charts(example_runs.healthy(series=series))) == charts.MAX_CHARTS


@pytest.mark.parametrize(
    "heights",
    [
        (1.0, math.nan, 3.0),
        (math.inf, 1.0, -math.inf),
        (1e308, -1e308, 1.0),
        (1e299, -1e299),
        (0.0, 0.0),
        (5e-324, 0.0),
        (1e-171, 1.0),
        (7.0,),
    ],
)
@pytest.mark.parametrize("log_x", [False, True])
def test_any_numbers_can_be_drawn(heights: tuple[float, ...], log_x: bool) -> None:
    chart = Chart(
        "t", "x", "y", (Line("", tuple(2.0**x for x in range(len(heights))), heights),), log_x=log_x
    )
    drawn = charts.draw(chart, "c")
    assert "nan" not in drawn.svg.lower().replace(drawn.description.lower(), "")
    ElementTree.fromstring(drawn.svg)


@pytest.mark.parametrize(
    "text", ["$\\frac{1}{0}$", "$x", "_hidden", "<b>&\"'", "日本", "\\N{BELL}", "%s {0}", "]]>", "url(#a)"]
)
def test_any_text_can_be_a_label(text: str) -> None:
    drawn = charts.draw(Chart(text, text, text, (line(1, 2, label=text),), level=1, level_label=text), "c")
    root = ElementTree.fromstring(drawn.svg)
    texts = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert texts.count(text) == 2
    assert drawn.legend == ((0, text),)


def test_two_charts_share_no_id_and_no_style_leaks() -> None:
    chart = Chart("t", "x", "y", (line(1, 2),))
    first, second = charts.draw(chart, "a").svg, charts.draw(chart, "b").svg
    ids = [set(re.findall(r'id="([^"]+)"', svg)) for svg in (first, second)]
    assert not ids[0] & ids[1]
    referred = set(re.findall(r"url\(#([^)]+)\)|href=\"#([^\"]+)\"", first))
    assert referred
    assert {one or other for one, other in referred} <= ids[0]
    assert "<style" not in first
    assert "<metadata" not in first
    assert "#01fe" not in first


def test_the_description_says_what_the_chart_shows() -> None:
    said = charts.describe(Chart("Loss over step", "step", "", (line(3, 1, 2, math.nan, label="rank 0"),)))
    assert said == "Loss over step, over step. rank 0: from 3 to 2, lowest 1, highest 3."
