"""Draw charts as inline SVG.

A run's page shows its curves and its sweeps over message size (:func:`run_charts`). A plan's page shows the
sweep of a matrix (:func:`sweep_charts`), and the page of a comparison the ratios. Scaling studies and pages
of nights build their own :class:`Chart`. :func:`draw` and :func:`draw_ratios` return the SVG.

Matplotlib draws, and its output is then adapted to a page. Colours become variables of the style sheet,
so that dark mode and print follow the page. Ids become unique, and a title and description are added.
The same input gives the same bytes.
"""

from __future__ import annotations

import io
import logging
import math
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Literal
from xml.etree import ElementTree

from markupsafe import Markup

from rackproof.analysis.representative import SIZE_LABEL
from rackproof.core.records import Judgement, Reference, Run
from rackproof.core.text import number, quantity, sanitize, unit_text, whole_number
from rackproof.report.view import first_measurement, label_text, metric_words

# Largest number of charts of a run or a sweep.
MAX_CHARTS = 12
# The style sheet defines this many colours (--c0 to --c7), and DASHES this many patterns.
MAX_LINES = 8
# Largest number of points of a curve. A figure is 5.2 inches (374 points) wide, so more vertices would only
# make the page larger.
MAX_POINTS = 400
# A larger float cannot be placed on an axis, because margins overflow. Such a value counts as NaN.
_LARGEST = 1e300

# No theme uses these colours. Each is replaced by the style sheet's variable with its number.
_INK, _GRID, _MUTED = "#01fe01", "#01fe02", "#01fe03"
_LINES = tuple(f"#01fe1{digit}" for digit in range(MAX_LINES))
_VARIABLES = {
    _INK: "var(--ink)",
    _GRID: "var(--line)",
    _MUTED: "var(--muted)",
    **{colour: f"var(--c{index})" for index, colour in enumerate(_LINES)},
}
# Lines differ in more than their colour: in dashes, and in the markers of points.
DASHES = ("", "7 3", "2 2.5", "9 3 2 3", "12 4", "4 2", "9 3 2 3 2 3", "1 3")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
# The keys are matplotlib's own. With a hash salt and without a date, the bytes are reproducible.
_SETTINGS: dict[Any, Any] = {
    # Text remains text, which can be searched and selected, and uses the page's font.
    "svg.fonttype": "none",
    "svg.hashsalt": "rackproof",
    # A "$" in a label or a file name would start a formula.
    "text.parse_math": False,
    "text.usetex": False,
    "font.size": 9,
    # Curves are thinned before, with their extremes. matplotlib would thin by screen resolution.
    "path.simplify": False,
    "axes.unicode_minus": True,
}
_SVG = "http://www.w3.org/2000/svg"
_XLINK = "http://www.w3.org/1999/xlink"


@dataclass(frozen=True)
class Line:
    """One curve of a chart.

    ``x`` and ``y`` are of the same length. A ``y`` that is not finite, or above 1e300, is a gap.
    """

    label: str
    x: tuple[float, ...]
    y: tuple[float, ...]


@dataclass(frozen=True)
class Chart:
    """The data of a chart with one or more curves.

    Attributes:
        log_x: Whether the horizontal axis is logarithmic, with base 2.
        ticks_are_points: Whether each point has its own tick with a plain number. Otherwise, the ticks of a
            logarithmic axis are sizes in bytes.
        markers: Whether each point has a marker.
        level: The height of a horizontal line for a bound or an ideal, or None for no line.
        notes: Remarks below the chart.
    """

    title: str
    x_label: str
    y_label: str
    lines: tuple[Line, ...]
    log_x: bool = False
    ticks_are_points: bool = False
    markers: bool = False
    level: float | None = None
    level_label: str = ""
    notes: tuple[str, ...] = ()


RatioPoint = tuple[float | None, float | None, float | None]
"""A ratio and the lower and upper bound of its interval. A missing ratio or bound is ``None``."""

RatioLine = tuple[str, tuple[RatioPoint, ...]]
"""The name of a system, with its point in every row of the chart."""


@dataclass(frozen=True)
class Ratios:
    """The data of a chart of ratios, with one row per label and a line at 1."""

    title: str
    x_label: str
    labels: tuple[str, ...]
    lines: tuple[RatioLine, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Drawn:
    """A drawn chart, as pages include it.

    ``legend`` has the number of each line, which selects its colour and dashes, and its label.
    """

    title: str
    svg: Markup
    legend: tuple[tuple[int, str], ...]
    description: str
    level_label: str = ""
    notes: tuple[str, ...] = field(default=())


def _number(value: float) -> bool:
    """Return whether a value can be drawn."""
    return math.isfinite(value) and abs(value) <= _LARGEST


def thin(line: Line, points: int = MAX_POINTS) -> Line:
    """Thin a curve to about ``points`` points, up to half as many more if there are gaps.

    The extremes of each section remain, because a mean would hide a single slow step.
    """
    if len(line.x) <= points:
        return line
    # Each bucket contributes its lowest and its highest point, and its first gap.
    buckets = max(points // 2, 1)
    keep = {0, len(line.x) - 1}
    for bucket in range(buckets):
        start = bucket * len(line.x) // buckets
        stop = max((bucket + 1) * len(line.x) // buckets, start + 1)
        keep |= _extremes(line.y, start, stop)
    order = sorted(keep)
    return replace(line, x=tuple(line.x[i] for i in order), y=tuple(line.y[i] for i in order))


def _extremes(values: Sequence[float], start: int, stop: int) -> set[int]:
    """Return the indices of the lowest and the highest value of a section, and of its first gap."""
    numeric = [index for index in range(start, stop) if _number(values[index])]
    keep = {min(numeric, key=values.__getitem__), max(numeric, key=values.__getitem__)} if numeric else set()
    if len(numeric) < stop - start:
        keep.add(next(index for index in range(start, stop) if not _number(values[index])))
    return keep


def _bounded(lines: Sequence[Line]) -> tuple[tuple[Line, ...], tuple[str, ...]]:
    """Return at most MAX_LINES thinned lines, and notes on omitted lines and values that cannot be drawn."""
    notes = []
    if len(lines) > MAX_LINES:
        notes.append(f"{MAX_LINES} of {len(lines)} curves are drawn; run.json has all of them.")
    thinned = tuple(thin(line) for line in lines[:MAX_LINES])
    lost = sum(not _number(value) for line in lines for value in line.y)
    if lost:
        notes.append(f"{lost} point{'s are' if lost > 1 else ' is'} not a number: a gap in the curve.")
    return thinned, tuple(notes)


def _order(name: str) -> tuple[int, str]:
    """Return the sort key of a curve by its name: speeds first, and other curves at the end."""
    low = name.lower()
    # GPU samples come after the throughput that they explain.
    needles = (
        *("second", "throughput", "soak_rate", "stalled_steps"),
        *("gpu_utilisation", "gpu_power", "gpu_temperature", "loss", "accuracy"),
    )
    for index, needle in enumerate(needles):
        if needle in low:
            return index, name
    return len(needles), name


def _level(judgements: Iterable[Judgement], name: str, unit: str) -> tuple[float | None, str]:
    """Return the first bound against which a curve's metric was judged, and its text, or None and ""."""
    for judgement in judgements:
        reference = judgement.reference
        if judgement.metric != name or reference is None or reference.unit not in ("", unit):
            continue
        bound, side = _single_bound(reference)
        if bound is not None and _number(bound):
            return bound, f"{side} {quantity(bound, reference.unit)}"
    return None, ""


def _single_bound(reference: Reference) -> tuple[float | None, str]:
    """Return the lower bound of a reference, or else the upper, and its name. None means no bound."""
    fraction = reference.low if reference.low is not None else reference.high
    if fraction is None:
        return None, ""
    # The fraction is of the absolute value, as in view.bounds_text, so that chart and table show the same
    # bound.
    bound = reference.value + abs(reference.value) * fraction
    return bound, "at least" if reference.low is not None else "at most"


def run_charts(run: Run) -> tuple[Chart, ...]:
    """Return the charts of one run, at most MAX_CHARTS: curves over time or steps, then over message size."""
    groups = _curves(run)
    keys = sorted(groups, key=lambda key: (_order(key[0]), key))
    charts = [_curve_chart(run, *key, groups[key]) for key in keys]
    # Cut the list only after sorting, so that a run with dozens of curves still shows its throughput.
    return (*charts, *_size_charts(run))[:MAX_CHARTS]


def _curves(run: Run) -> dict[tuple[str, str, str], list[Line]]:
    """Return the curves of a run that can be drawn, by metric, its unit and the horizontal unit."""
    groups: dict[tuple[str, str, str], list[Line]] = {}
    for series in run.series:
        if series.name == "gpu_throttle":
            continue  # The values are sets of bits, which findings describe as text.
        # A record does not guarantee equal lengths. A value without a partner is not a point.
        count = min(len(series.x), len(series.y))
        pairs = [(x, y) for x, y in zip(series.x[:count], series.y[:count], strict=True) if _number(x)]
        # One point is not a curve, and it is already among the measurements.
        if len(pairs) >= 2 and any(_number(y) for _, y in pairs):
            line = Line(label_text(series.labels, 60), tuple(x for x, _ in pairs), tuple(y for _, y in pairs))
            groups.setdefault((series.name, series.unit, series.x_unit), []).append(line)
    return groups


def _curve_chart(run: Run, name: str, unit: str, x_unit: str, curves: Sequence[Line]) -> Chart:
    """Return the chart of one metric over time or steps."""
    lines, notes = _bounded(curves)
    level, level_label = _level(run.judgements, name, unit)
    title = f"{metric_words(name)} over {'time' if x_unit == 's' else sanitize(x_unit, 40)}"
    return Chart(
        title=_capitalized(title.replace("gpu ", "GPU ")),
        x_label=sanitize("seconds" if x_unit == "s" else x_unit, 60),
        y_label=unit_text(unit) or metric_words(name)[:60],
        lines=lines,
        # On a long curve, markers would overlap.
        markers=max(len(line.x) for line in lines) <= 40,
        level=level,
        level_label=level_label,
        notes=notes,
    )


def _capitalized(title: str) -> str:
    """Return a title with a capital first letter. Unlike ``capitalize``, leave the rest (GPU) unchanged."""
    return title[:1].upper() + title[1:]


def _size_charts(run: Run) -> list[Chart]:
    """Return a chart for every metric measured over message sizes, such as a collective's bus bandwidth.

    A curve needs three sizes. A metric whose value is constant gets no chart.
    """
    charts = []
    for (name, unit), points_by_label in sorted(_points_by_size(run).items()):
        lines = [_line_of_points(label, points) for label, points in points_by_label.items()]
        lines = [line for line in lines if len(line.x) >= 3 and any(map(_number, line.y))]
        # A value that is constant (no wrong value at any size) needs no curve.
        if len({y for line in lines for y in line.y}) > 1:
            shown_lines, notes = _bounded(lines)
            charts.append(
                Chart(
                    title=_capitalized(f"{metric_words(name)} over message size"),
                    x_label="message size",
                    y_label=unit_text(unit) or metric_words(name)[:60],
                    lines=shown_lines,
                    log_x=True,
                    markers=True,
                    notes=notes,
                )
            )
    return charts


def _points_by_size(run: Run) -> dict[tuple[str, str], dict[str, dict[float, float]]]:
    """Return the values by label and message size, for each metric and unit.

    The label is the text of all labels but the size. If a size has several values, the first is returned.
    """
    groups: dict[tuple[str, str], dict[str, dict[float, float]]] = {}
    for measured in run.measurements:
        size_bytes = _message_size(measured.labels)
        if size_bytes is None:
            continue
        other_labels = {key: value for key, value in measured.labels.items() if key != SIZE_LABEL}
        by_label = groups.setdefault((measured.name, measured.unit), {})
        by_label.setdefault(label_text(other_labels, 60), {}).setdefault(size_bytes, measured.value)
    return groups


def _message_size(labels: Mapping[str, str]) -> float | None:
    """Return the message size among labels, or None. A logarithmic axis cannot show 0."""
    size_bytes = whole_number(labels.get(SIZE_LABEL, ""))
    return float(size_bytes) if size_bytes else None


def _line_of_points(label: str, points: Mapping[float, float]) -> Line:
    """Return a curve through points in ascending order."""
    places = tuple(sorted(points))
    return Line(label, places, tuple(points[x] for x in places))


def sweep_charts(runs: Sequence[Run]) -> tuple[Chart, ...]:
    """Return the curves of a sweep.

    The curves show throughput and accuracy over batch size, for each benchmark. Each combination of the other
    parameters, such as the number of GPUs, has a line. Repeats of one point are averaged. A run without the
    metric adds no point. There are at most MAX_CHARTS charts.
    """
    charts: list[Chart] = []
    for benchmark in dict.fromkeys(run.benchmark for run in runs):
        batch_runs = [run for run in runs if run.benchmark == benchmark and _batch(run) is not None]
        # Colours depend on the position. Sort, so that the legend is in ascending order of GPUs for any
        # order of the plan.
        charts += _sweep_charts_of(benchmark, sorted(batch_runs, key=_gpus))
    return tuple(charts[:MAX_CHARTS])


def _sweep_charts_of(benchmark: str, points: Sequence[Run]) -> Iterator[Chart]:
    """Yield the charts of throughput and accuracy of one benchmark's sweep."""
    metrics = (
        ("Throughput", ("samples_per_second", "images_per_second")),
        ("Validation accuracy", ("eval_accuracy", "best_accuracy")),
    )
    for title, names in metrics:
        lines, unit = _sweep_lines(points, names)
        # A single batch size is a column of points, not a curve.
        if len({x for line in lines for x in line.x}) >= 2:
            full_title = f"{title} over batch size: {sanitize(benchmark, 80)}"
            yield _sweep_chart(full_title, unit_text(unit) or title.lower(), lines)


def _sweep_chart(title: str, y_label: str, lines: Sequence[Line]) -> Chart:
    """Return the chart of one metric over the batch size."""
    shown_lines, notes = _bounded(lines)
    return Chart(
        title=title,
        x_label="batch size",
        y_label=y_label,
        lines=shown_lines,
        log_x=True,
        ticks_are_points=True,
        markers=True,
        notes=notes,
    )


def _sweep_lines(points: Sequence[Run], names: Sequence[str]) -> tuple[list[Line], str]:
    """Return a metric's mean over the batch size, and its unit ("" if no run measured it).

    There is a line for each combination of the other parameters.
    """
    varying = _varying(points)
    repeats: dict[str, dict[float, list[float]]] = {}
    unit = ""
    for run in points:
        measured, batch = first_measurement(run, *names), _batch(run)
        if measured is None or batch is None or not _number(measured.value):
            continue
        unit = unit or measured.unit
        # An axis is in one unit, so a run with another unit is left out.
        if measured.unit == unit:
            by_batch = repeats.setdefault(_line_label(run, varying), {})
            by_batch.setdefault(batch, []).append(measured.value)
    lines = []
    for label, by_batch in repeats.items():
        means = {batch: sum(values) / len(values) for batch, values in by_batch.items()}
        lines.append(_line_of_points(label, means))
    return lines, unit


def _gpus(run: Run) -> int:
    """Return the number of GPUs of a run, or 0."""
    raw = run.parameters.get("gpus")
    return raw if isinstance(raw, int) else 0


def _batch(run: Run) -> float | None:
    """Return the batch size of a run, or None if it cannot be drawn."""
    raw = run.parameters.get("batch_size")
    # A logarithmic axis cannot show 0 or values that overflow it.
    return float(raw) if isinstance(raw, int | float) and 0 < raw < _LARGEST else None


def _varying(runs: Sequence[Run]) -> frozenset[str]:
    """Return the parameters that differ between runs, and so distinguish the lines, except the batch size."""
    names = {name for run in runs for name in run.parameters} - {"batch_size"}
    # Compare by repr: True, 1 and 1.0 are equal in Python but different settings of a workload.
    return frozenset(name for name in names if len({repr(run.parameters.get(name)) for run in runs}) > 1)


def _line_label(run: Run, varying: frozenset[str]) -> str:
    """Return the label of a run's line, from the parameters that differ between the runs."""
    parts: list[str] = []
    for name, value in run.parameters.items():
        if name == "gpus" and name in varying:
            parts.insert(0, "CPU" if value == 0 else f"{sanitize(value, 20)} GPU{'' if value == 1 else 's'}")
        elif name in varying:
            parts.append(f"{name}={value}")
    return sanitize(" ".join(parts), 60)


def describe(chart: Chart) -> str:
    """Describe a chart in words, for readers who cannot see it."""
    sentences = "; ".join(filter(None, map(_describe_line, chart.lines)))
    unit = f" in {chart.y_label}" if chart.y_label else ""
    level = f" Bound: {chart.level_label}." if chart.level is not None else ""
    return f"{chart.title}{unit}, over {chart.x_label}. {sentences}.{level}"


def _describe_line(line: Line) -> str:
    """Return the start, end and extremes of a curve, or "" without points."""
    values = [y for y in line.y if _number(y)]
    if not values:
        return ""
    name = f"{line.label}: " if line.label else ""
    span = f"from {number(values[0])} to {number(values[-1])}"
    return f"{name}{span}, lowest {number(min(values))}, highest {number(max(values))}"


def draw(chart: Chart, ident: str) -> Drawn:
    """Draw a chart as inline SVG.

    Args:
        chart: The chart, with sanitized texts, which are escaped here.
        ident: The prefix of every id in the SVG. It must be unique in the page.
    """
    with _drawing():
        # Matplotlib is slow to import. Import it only for a page with charts, and after silencing its output.
        from matplotlib.ticker import FuncFormatter, MaxNLocator

        figure, axes = _empty_figure(2.75, (0.125, 0.175, 0.85, 0.715), grid="y")
        _plot_lines(axes, chart)
        if chart.level is not None:
            axes.axhline(chart.level, color=_INK, linewidth=1.0, linestyle=(0, (1.5, 2.5)))
        _set_x_axis(axes, chart)
        axes.yaxis.set_major_locator(MaxNLocator(5))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: _tick(y)))
        axes.set_xlabel(chart.x_label, color=_MUTED, parse_math=False)
        # The unit is above its axis and upright, so that it is easy to read and needs no space.
        axes.text(-0.13, 1.06, chart.y_label, transform=axes.transAxes, color=_MUTED, parse_math=False)
        raw = _svg_bytes(figure)
    description = describe(chart)
    svg = _fit_for_page(raw, ident, chart.title, description)
    return Drawn(chart.title, svg, _legend(chart), description, chart.level_label, chart.notes)


def _legend(chart: Chart) -> tuple[tuple[int, str], ...]:
    """Return the number and label of each line.

    If there are several lines, one without a label is the total.
    """
    if len(chart.lines) > 1:
        return tuple((index, line.label or "all") for index, line in enumerate(chart.lines))
    return tuple((index, line.label) for index, line in enumerate(chart.lines) if line.label)


@contextmanager
def _drawing() -> Iterator[None]:
    """Apply :data:`_SETTINGS` to matplotlib instead of a user's matplotlibrc, and suppress its messages."""
    # Matplotlib's messages on font caches and folders do not concern the reader of a report.
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    from matplotlib import rc_context

    # If the font for measuring lacks a glyph, only the layout is approximate. The browser finds the glyph.
    with rc_context(_SETTINGS), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        yield


def _empty_figure(
    height: float, position: tuple[float, float, float, float], grid: Literal["x", "y"]
) -> tuple[Any, Any]:
    """Return a transparent figure, 5.2 inches wide and ``height`` inches high, and its axes without a frame.

    ``position`` is left, bottom, width and height of the axes as fractions of the figure.
    """
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    # Avoid pyplot, which retains every figure and chooses a backend by the display.
    figure = Figure(figsize=(5.2, height))
    # The page's own background remains visible, dark or light.
    figure.patch.set_alpha(0)
    FigureCanvasSVG(figure)
    axes = figure.add_axes(position)
    axes.patch.set_alpha(0)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(_MUTED)
    axes.tick_params(colors=_INK, length=0, labelsize=9)
    axes.grid(axis=grid, color=_GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    return figure, axes


def _svg_bytes(figure: Any) -> bytes:
    """Return a figure as SVG. The same figure gives the same bytes."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None}, transparent=True)
    return buffer.getvalue()


def _plot_lines(axes: Any, chart: Chart) -> None:
    """Draw the curves of a chart, with a gap for each missing value."""
    for index, line in enumerate(chart.lines):
        # NaN breaks a line, so that a gap is visible. Infinity would stretch the axis.
        heights = [value if _number(value) else math.nan for value in line.y]
        dashes = [float(part) for part in DASHES[index].split()]
        axes.plot(
            line.x,
            heights,
            color=_LINES[index],
            linewidth=1.8,
            # Matplotlib measures dashes in line widths, the page's legend in pixels.
            linestyle=(0, [part / 1.8 for part in dashes]) if dashes else "solid",
            marker=_MARKERS[index] if chart.markers else "",
            markersize=4.5,
            markeredgewidth=0,
        )


def _set_x_axis(axes: Any, chart: Chart) -> None:
    """Set the scale, the ticks and the tick labels of the horizontal axis."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

    if not chart.log_x:
        has_whole_numbers = all(x == int(x) for line in chart.lines for x in line.x)
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=has_whole_numbers))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: number(x)))
        return
    # Sizes of messages, batches and clusters double from point to point, so base 2 spaces them evenly.
    axes.set_xscale("log", base=2)
    positions = sorted({x for line in chart.lines for x in line.x})
    # With a tick for every size, the labels would overlap.
    if not chart.ticks_are_points and len(positions) > 6:
        positions = positions[:: math.ceil(len(positions) / 6)]
    axes.xaxis.set_major_locator(FixedLocator(positions[:16]))
    axes.xaxis.set_minor_locator(NullLocator())
    as_text: Callable[..., str] = (
        (lambda x, _: number(x)) if chart.ticks_are_points else (lambda x, _: quantity(x, "bytes"))
    )
    axes.xaxis.set_major_formatter(FuncFormatter(as_text))


def describe_ratios(chart: Ratios) -> str:
    """Describe a chart of ratios in words, for readers who cannot see it."""
    sentences = []
    for name, points in chart.lines:
        for label, (value, low, high) in zip(chart.labels, points, strict=True):
            if value is not None and _number(value):
                span = "" if low is None or high is None else f" ({number(low)} to {number(high)})"
                sentences.append(f"{label}, {name}: {number(value)}{span}")
    return f"{chart.title}, {chart.x_label}. {'; '.join(sentences)}."


def draw_ratios(chart: Ratios, ident: str) -> Drawn:
    """Draw ratios with their intervals as inline SVG, with a dotted line at 1.

    Args:
        chart: The lines. At most MAX_LINES are drawn.
        ident: The prefix of every id in the SVG. It must be unique in the page.
    """
    lines, rows = chart.lines[:MAX_LINES], len(chart.labels)
    with _drawing():
        from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator

        height = max(0.95 + 0.3 * rows * max(1.0, len(lines) / 2), 2.0)
        figure, axes = _empty_figure(height, (0.27, 0.55 / height, 0.69, 1 - 0.7 / height), grid="x")
        for index, (_, points) in enumerate(lines):
            # Several systems share a row, one below the other.
            shift = (index - (len(lines) - 1) / 2) * 0.6 / max(len(lines), 1)
            _plot_ratios(axes, index, points, shift)
        axes.axvline(1, color=_INK, linewidth=1.0, linestyle=(0, (1.5, 2.5)))
        # Invert the axis, so that the first row is at the top, as in the table beside the chart.
        axes.set_ylim(rows - 0.5, -0.5)
        axes.yaxis.set_major_locator(FixedLocator(range(rows)))
        label_texts = [sanitize(label, 26) for label in chart.labels]
        axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: label_texts[int(y)]))
        axes.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: number(x)))
        axes.set_xlabel(chart.x_label, color=_MUTED, parse_math=False)
        raw = _svg_bytes(figure)
    description = describe_ratios(chart)
    svg = _fit_for_page(raw, ident, chart.title, description)
    legend = tuple((index, name) for index, (name, _) in enumerate(lines))
    notes = chart.notes
    if len(chart.lines) > len(lines):
        notes = (*notes, f"{len(lines)} of {len(chart.lines)} systems are drawn.")
    return Drawn(chart.title, svg, legend, description, notes=notes)


def _plot_ratios(axes: Any, index: int, points: Iterable[RatioPoint], shift: float) -> None:
    """Draw the ratios of one system, each with its interval."""
    colour = _LINES[index]
    for row, (value, low, high) in enumerate(points):
        if value is None or not _number(value):
            continue
        if low is not None and high is not None and _number(high):
            axes.plot((low, high), (row + shift,) * 2, color=colour, linewidth=2.2, marker="|")
        axes.plot(value, row + shift, color=colour, marker=_MARKERS[index], markersize=6)


def _tick(value: float) -> str:
    """Format the number at a tick briefly: 1.2M, 40k, 0.991."""
    # Four digits are easy to read, so thousands are shortened only from 10,000.
    for factor, suffix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k")):
        if factor <= abs(value) < 1e15:
            scaled = value / (1e3 if suffix == "k" else factor)
            return f"{scaled:.4g}{suffix}"
    return number(value)


def _fit_for_page(raw: bytes, ident: str, title: str, description: str) -> Markup:
    """Return matplotlib's SVG as a fragment for an HTML page.

    Without a change, the SVG's ``<style>`` (a rule for ``*``) would affect the page, and its ids would repeat
    from chart to chart.
    """
    # Without these names, each tag would get a prefix (ns0:svg), and no HTML parser would recognize the
    # drawing.
    ElementTree.register_namespace("", _SVG)
    ElementTree.register_namespace("xlink", _XLINK)
    # matplotlib just wrote this text.
    root = ElementTree.fromstring(raw)  # noqa: S314  # nosec B314
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag.rpartition("}")[2] in ("metadata", "style"):
                parent.remove(child)
    for element in root.iter():
        _fit_attributes(element, ident)
    # With only a viewBox, the drawing fills the width of its column, on a phone and on paper.
    for name in ("width", "height", "version"):
        root.attrib.pop(name, None)
    # The SVG is one picture with a text. Without a role, screen readers would read every tick.
    root.set("role", "img")
    root.set("aria-labelledby", f"{ident}-title {ident}-desc")
    # Screen readers read title and description instead of the drawing. Both must come first.
    for index, (tag, text) in enumerate((("title", title), ("desc", description))):
        element = ElementTree.Element(f"{{{_SVG}}}{tag}", {"id": f"{ident}-{tag}"})
        element.text = text
        root.insert(index, element)
    # The serialiser escapes the text.
    return Markup(ElementTree.tostring(root, encoding="unicode"))  # noqa: S704  # nosec B704


def _fit_attributes(element: ElementTree.Element, ident: str) -> None:
    """Add the chart's prefix to an element's ids and to all references to ids."""
    for name, value in list(element.attrib.items()):
        if name == "id":
            element.set(name, f"{ident}-{value}")
        elif name == f"{{{_XLINK}}}href":
            # An SVG inside HTML needs no namespace for links.
            del element.attrib[name]
            element.set("href", value.replace("#", f"#{ident}-", 1))
        elif name in ("style", "clip-path"):
            element.set(name, _style(value, ident))


def _style(style: str, ident: str) -> str:
    """Return a style with the page's colours, ids and font."""
    style = re.sub(r"#01fe[01][0-9a-f]", lambda match: _VARIABLES.get(match[0], match[0]), style)
    style = style.replace("url(#", f"url(#{ident}-")
    # Matplotlib names the font that it used for measuring, which the reader's machine may lack.
    return re.sub(r"'DejaVu Sans'[^;]*", "system-ui, sans-serif", style)
