"""Write a comparison of systems or runs as an HTML page, Markdown or text for a terminal.

``rackproof compare`` calls :func:`comparison_page`, :func:`comparison_markdown` or
:func:`comparison_terminal`. For two single runs as text, it calls :func:`comparison_text`. Task ``report`` of
bench.yml calls :func:`write_comparison` if a plan ran on 2 to 18 systems. The input is a
:class:`SystemComparison`, and for single runs also a :class:`Comparison` (two runs) or a
:class:`SeveralRuns` (more). Only the page has charts. The text for a terminal has fewer tables and columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rackproof import __version__
from rackproof.analysis.compare.runs import Comparison, Side
from rackproof.analysis.compare.several_runs import SeveralRuns
from rackproof.analysis.compare.systems import ComparedMetric, Kind, Ratio, SystemComparison
from rackproof.analysis.compare.systems import ComparisonCell as Value
from rackproof.core.records import Direction, Judgement, Reference, Verdict, worst
from rackproof.core.text import NOTHING, amount, number, percent, quantity, sanitize
from rackproof.report import charts, several_runs, view
from rackproof.report.markdown import escape, table_text
from rackproof.report.terminal import text_table
from rackproof.report.view import Cell, Table
from rackproof.store.run_folder import write_file

_HEADINGS: tuple[tuple[Kind, str], ...] = (
    ("throughput", "Training throughput (higher is better)"),
    ("minutes", "Minutes to solution (lower is better)"),
    ("other", "Other measurements"),
)
_MOST_IN_TITLE = 3
"""With more systems, the title has the first one and the number of the others."""
_MOST_WITH_COLUMNS = 2
"""With more systems, the ratio is a note below the value, and has no columns."""
_FAIRER = (
    "Throughput is the fairer measure, because the number of epochs depends on a run's seed. The epochs to "
    "target are beside the minutes."
)


def comparison_title(comparison: SystemComparison) -> str:
    """Return the heading of a comparison, with the names of its systems."""
    if len(comparison.systems) > _MOST_IN_TITLE:
        others = amount(len(comparison.systems) - 1, "system")
        return f"{others} beside {sanitize(comparison.systems[0], 200)}"
    return sanitize(" against ".join(comparison.systems), 300)


def _title(comparison: SystemComparison, several: SeveralRuns | None) -> str:
    """Return the heading of a page or text. For several single runs, it is the number of runs."""
    return amount(len(several.runs), "run") if several else comparison_title(comparison)


def worst_verdict(comparison: SystemComparison) -> Verdict | None:
    """Return the worst verdict of the cells that were judged against a publication, or None."""
    verdicts = [judgement.verdict for judgement in comparison.judgements]
    return worst(verdicts) if verdicts else None


def summary_sentence(comparison: SystemComparison) -> str:
    """Return a sentence with the number of judged cells by verdict."""
    judged = comparison.judgements
    if not judged:
        return "No cell was judged against a published result."
    totals = {verdict: sum(judgement.verdict is verdict for judgement in judged) for verdict in Verdict}
    counts = ", ".join(f"{count} {verdict.value}" for verdict, count in totals.items() if count)
    return f"{amount(len(judged), 'cell')} judged against published results: {counts}."


def table_remarks(comparison: SystemComparison) -> tuple[str, ...]:
    """Return the remarks that are shown above the tables, such as the number of runs that are left out."""
    remarks = []
    kinds = {row.kind for row in comparison.rows}
    if "minutes" in kinds:
        remarks.append(_FAIRER)
    if comparison.left_out:
        count = len(comparison.left_out)
        remarks.append(f"{count} run{'s enter' if count > 1 else ' enters'} no mean (listed below).")
    if comparison.unmatched:
        remarks.append(f"Not every system has: {sanitize(', '.join(comparison.unmatched), 600)}.")
    if not comparison.rows:
        remarks.append("The systems have no benchmark in common.")
    remarks += [
        f"{sanitize(row.benchmark, 80)}: {sanitize(note, 300)}."
        for row in comparison.rows
        for note in row.notes
    ]
    return tuple(remarks)


def _benchmark(row: ComparedMetric) -> Cell:
    """Return the cell with the name of a row's benchmark and its point."""
    name = sanitize(row.benchmark, 80)
    if row.kind == "other":
        name += f" {view.metric_words(row.metric)}"
    return Cell(name, note=sanitize(row.point, 120))


def _value(cell: Value) -> Cell:
    """Return the cell of a mean, with a note on its runs, its interval and the runs that were left out."""
    runs = amount(len(cell.values), "run")
    if cell.published:
        runs = "published mean" if cell.value is not None else ""
    if cell.low is not None and cell.high is not None:
        runs += f", {number(cell.low)} to {number(cell.high)}"
    if cell.left_out:
        runs += f", {cell.left_out} left out"
    return Cell(quantity(cell.value, cell.unit), "number", note=runs)


def _ratio(ratio: Ratio) -> tuple[Cell, Cell, Cell]:
    """Return the cells with a ratio, its interval (or "none") and the conclusion."""
    interval = "none"
    if ratio.low is not None and ratio.high is not None:
        interval = f"{number(ratio.low)} to {number(ratio.high)}"
    ratio_text = NOTHING if ratio.value is None else f"{ratio.value:.4f}"
    return (
        Cell(ratio_text, "number"),
        Cell(interval, "number"),
        Cell(ratio.conclusion, note=sanitize(ratio.reason, 200)),
    )


def means_table(comparison: SystemComparison, kind: Kind) -> Table:
    """Return the table of means, with ratio, interval and conclusion of each system but the first.

    A row is a benchmark at a point. With two systems, the ratio has columns, and with more it is a note below
    the value. ``kind`` is the kind of the rows to show, such as ``throughput``.
    """
    epochs = {(row.benchmark, row.point): row for row in comparison.rows if row.kind == "epochs"}
    base = sanitize(comparison.systems[0], 40)
    rows = []
    for row in comparison.rows:
        if row.kind != kind:
            continue
        cells = [_benchmark(row)]
        # The number of epochs depends on a run's seed, so minutes without the epochs would be misleading.
        if kind == "minutes":
            cells += _values_with_epochs(row, epochs.get((row.benchmark, row.point)))
        else:
            cells += [_value(value) for value in row.cells]
        if len(comparison.systems) > _MOST_WITH_COLUMNS:
            cells = _with_ratios(cells, row.ratios)
        else:
            for ratio in row.ratios:
                cells += _ratio(ratio)
        rows.append(cells)
    columns = _system_columns(comparison, kind)
    return view.build_table(f"Means over the runs that count, and their ratio to {base}", columns, rows)


def _with_ratios(cells: Sequence[Cell], ratios: Sequence[Ratio]) -> list[Cell]:
    """Return a row's cells, with ratio, interval and conclusion below each value but the first.

    Separate columns would make the table too wide for a window.
    """
    width = (len(cells) - 1) // (len(ratios) + 1)
    new_cells = list(cells)
    for column, ratio in enumerate(ratios, start=1):
        index = 1 + column * width
        shown, interval, conclusion = _ratio(ratio)
        parts = [f"ratio {shown.text}"] if ratio.value is not None else []
        parts += [interval.text] if interval.text != "none" else []
        parts += [conclusion.text, conclusion.note]
        note = ", ".join(part for part in (new_cells[index].note, *parts) if part)
        new_cells[index] = replace(new_cells[index], note=note)
    return new_cells


def _system_columns(comparison: SystemComparison, kind: Kind) -> list[str]:
    """Return the headings of the table of means."""
    columns = ["Benchmark"]
    for name in comparison.systems:
        columns.append(sanitize(name, 60))
        if kind == "minutes":
            columns.append("Epochs")
    if len(comparison.systems) <= _MOST_WITH_COLUMNS:
        base = sanitize(comparison.systems[0], 40)
        columns += [f"Ratio to {base}", f"{comparison.confidence:.0%} interval", "Conclusion"]
    return columns


def _values_with_epochs(row: ComparedMetric, epochs: ComparedMetric | None) -> list[Cell]:
    """Return the cells of a row of minutes, each followed by its number of epochs."""
    cells = []
    for column, value in enumerate(row.cells):
        count = epochs.cells[column] if epochs else Value()
        cells += [_value(value), Cell(number(count.value), "number")]
    return cells


def judged_table(comparison: SystemComparison) -> Table:
    """Return the table of the judged cells that have a reference, with deviation and verdict, worst first."""
    order = {Verdict.FAIL: 0, Verdict.UNPROVEN: 1, Verdict.DEGRADED: 2, Verdict.PASS: 3}
    judged_cells = []
    for row in comparison.rows:
        for name, cell in zip(comparison.systems, row.cells, strict=True):
            if cell.judgement is not None:
                judged_cells.append((order[cell.judgement.verdict], name, row, cell))
    judged_cells.sort(key=lambda entry: entry[0])
    rows = [
        _judged_row(name, row, cell, cell.judgement, cell.judgement.reference)
        for _, name, row, cell in judged_cells
        if cell.judgement is not None and cell.judgement.reference is not None
    ]
    columns = (
        "Verdict",
        "Benchmark",
        "System",
        "Measured",
        "Published",
        "Allowed",
        "Deviation",
        "By chance",
        "Reason",
        "Published in",
    )
    return view.build_table("Every cell that has a published counterpart, worst first", columns, rows)


def _judged_row(
    name: str, row: ComparedMetric, cell: Value, judgement: Judgement, reference: Reference
) -> tuple[Cell, ...]:
    """Return the row of one judged cell."""
    chance = NOTHING if cell.expected is None else f"±{percent(cell.expected, sign=False)}"
    return (
        view.verdict_cell(judgement.verdict),
        Cell(sanitize(row.benchmark, 80), note=view.metric_words(row.metric)),
        Cell(sanitize(name, 80)),
        Cell(quantity(judgement.value, judgement.unit), "number"),
        Cell(quantity(reference.value, reference.unit), "number"),
        Cell(view.bounds_text(reference), "number"),
        Cell(percent(view.relative_deviation(judgement)), "number", gauge=view.judgement_gauge(judgement)),
        Cell(chance, "number"),
        Cell(sanitize(judgement.reason, 300)),
        Cell(sanitize(reference.source, 300)),
    )


def left_out_table(comparison: SystemComparison) -> Table:
    """Return the table of the runs that no mean includes, each with the reason and its place in the log."""
    rows = [
        (
            view.verdict_cell(run.verdict),
            Cell(sanitize(run.system, 80)),
            Cell(sanitize(run.benchmark, 80)),
            Cell(sanitize(run.reason, 400)),
            Cell(sanitize(run.source, 200), "code"),
            Cell(sanitize(run.log, 300), "code"),
            Cell(sanitize(run.run_id, 130), "code"),
        )
        for run in comparison.left_out
    ]
    columns = ("Verdict", "System", "Benchmark", "Reason", "Place", "Log", "Run")
    return view.build_table("Runs that are not part of any mean", columns, rows)


def _counts_text(counted: int, left_out: int) -> str:
    """Return how many runs count, and how many do not."""
    counting = "1 run counts" if counted == 1 else f"{counted} runs count"
    return f"{counting}, {left_out} {'is' if left_out == 1 else 'are'} left out"


def counted_table(comparison: SystemComparison) -> Table:
    """Return the table of runs that are part of a mean, with their own numbers."""
    rows = [
        (
            Cell(sanitize(run.system, 80)),
            Cell(sanitize(run.benchmark, 80), note=sanitize(run.point, 120)),
            Cell(quantity(run.throughput, run.throughput_unit), "number"),
            Cell(number(run.minutes), "number"),
            Cell(number(run.epochs), "number"),
            Cell(number(run.wall_minutes), "number"),
            Cell(sanitize(run.log, 300), "code", note=sanitize(run.source, 200)),
            Cell(sanitize(run.run_id, 130), "code"),
        )
        for run in comparison.counted
    ]
    columns = ("System", "Benchmark", "Throughput", "Minutes", "Epochs", "RESULT line (min)", "Log", "Run")
    return view.build_table("Runs that are part of a mean", columns, rows)


def difference_table(runs: Comparison | None) -> Table:
    """Return the table of the differences between two single runs other than measurements."""
    rows = [
        (
            Cell(sanitize(difference.what, 100)),
            Cell(sanitize(difference.first, 300) or NOTHING, "code"),
            Cell(sanitize(difference.second, 300) or NOTHING, "code"),
        )
        for difference in (runs.differences if runs else ())
    ]
    return view.build_table("What else differs", ("What", "First", "Second"), rows)


def table_sections(
    comparison: SystemComparison, runs: Comparison | None = None, several: SeveralRuns | None = None
) -> tuple[tuple[str, str, tuple[Table, ...]], ...]:
    """Return all tables that have rows, each with the id of its section on the page and a heading.

    Each table is the only member of a tuple, because the template expects a tuple of tables.

    Args:
        comparison: The comparison of the systems.
        runs: The comparison of two single runs, or None.
        several: The comparison of more than two single runs, or None. Its tables replace the means and the
            list of runs, which would repeat the same numbers.
    """
    tables = [*several_runs.tables_of_runs(several)] if several else []
    if several is None:
        tables += [(f"s-{kind}", heading, means_table(comparison, kind)) for kind, heading in _HEADINGS]
    tables += [
        ("s-judged", "Against the published results", judged_table(comparison)),
        ("s-left-out", "Left out", left_out_table(comparison)),
        *([] if several else [("s-counted", "Run by run", counted_table(comparison))]),
        ("s-differences", "Surroundings", difference_table(runs)),
    ]
    return tuple((ident, heading, (table,)) for ident, heading, table in tables if table.rows)


def ratio_charts(comparison: SystemComparison) -> tuple[charts.Ratios, ...]:
    """Return a chart of the ratios and their intervals for each table of means that has a ratio."""
    base = sanitize(comparison.systems[0], 40)
    drawn = []
    for kind, heading in _HEADINGS:
        rows = [row for row in comparison.rows if row.kind == kind and _has_ratio(row)]
        if rows:
            drawn.append(
                charts.Ratios(
                    title=heading,
                    x_label=f"ratio to {base}{_better_side(rows)}",
                    labels=tuple(_benchmark(row).text for row in rows),
                    lines=_ratio_lines(comparison.systems[1:], rows),
                    notes=_chart_notes([ratio for row in rows for ratio in row.ratios]),
                )
            )
    return tuple(drawn)


def _has_ratio(row: ComparedMetric) -> bool:
    """Return whether a row has a ratio that a chart can show."""
    return any(ratio.value is not None for ratio in row.ratios)


def _ratio_lines(systems: Sequence[str], rows: Sequence[ComparedMetric]) -> tuple[charts.RatioLine, ...]:
    """Return a line for each system except the first, with its ratios to the first and their bounds."""
    lines = []
    for index, name in enumerate(systems):
        ratios = [row.ratios[index] for row in rows]
        points = tuple((ratio.value, ratio.low, ratio.high) for ratio in ratios)
        lines.append((sanitize(name, 60), points))
    return tuple(lines)


def _better_side(rows: Sequence[ComparedMetric]) -> str:
    """Return the better side of a chart as text for its axis, or "" if its rows have different directions.

    Without a direction, higher counts as better.
    """
    directions = {row.direction for row in rows}
    if len(directions) != 1:
        return ""
    direction = directions.pop() or Direction.HIGHER
    return {Direction.HIGHER: ", right is better", Direction.LOWER: ", left is better"}.get(direction, "")


def _chart_notes(ratios: Sequence[Ratio]) -> tuple[str, ...]:
    """Return the notes below a chart.

    They explain points without an interval, and rates that cannot be compared.
    """
    notes = []
    if any(ratio.value is not None and ratio.low is None for ratio in ratios):
        notes.append(
            "A point without a bar has no interval: it needs two repeats on each side, with different values."
        )
    if any(ratio.value is not None and ratio.conclusion == "not comparable" for ratio in ratios):
        notes.append(
            "Rates in batches that cannot be compared are drawn, too: their size differs or is not stated."
        )
    return tuple(notes)


def comparison_page(
    comparison: SystemComparison, runs: Comparison | None = None, several: SeveralRuns | None = None
) -> str:
    """Return the HTML page.

    ``runs`` adds the other differences of two single runs, and ``several`` every measurement of more
    than two.
    """
    # Importing Jinja2 takes a tenth of a second, and a terminal does not need it.
    from rackproof.report.html import environment, style

    return (
        environment()
        .get_template("comparison.html.j2")
        .render(
            kind="Comparison",
            when="",
            style=style(),
            title=_title(comparison, several),
            counts=_counts_text(len(comparison.counted), len(comparison.left_out)),
            verdict=worst_verdict(comparison),
            lead=summary_sentence(comparison),
            remarks=() if several else table_remarks(comparison),
            sections=table_sections(comparison, runs, several),
            drawn=[
                charts.draw_ratios(chart, f"chart{index}")
                for index, chart in enumerate(ratio_charts(comparison), start=1)
            ],
            method="times in UTC" if several else comparison.method,
            version=sanitize(__version__, 60),
        )
    )


def comparison_markdown(
    comparison: SystemComparison, runs: Comparison | None = None, several: SeveralRuns | None = None
) -> str:
    """Return title, summary, remarks and tables as GitHub-flavoured Markdown.

    The arguments are the same as for :func:`comparison_page`.
    """
    parts = [f"# {escape(_title(comparison, several))}", escape(summary_sentence(comparison))]
    remarks = () if several else table_remarks(comparison)
    parts.append("\n".join(f"- {escape(remark)}" for remark in remarks))
    for _, heading, tables in table_sections(comparison, runs, several):
        # Elsewhere, column heads are Rackproof's own words. Here they contain the systems' names.
        safe = (replace(table, columns=tuple(map(escape, table.columns))) for table in tables)
        parts += [f"## {escape(heading)}", *map(table_text, safe)]
    # The method describes means and intervals, which single runs do not have.
    parts.append("Times in UTC." if several else f"{escape(comparison.method)}.")
    return "\n\n".join(part for part in parts if part) + "\n"


def comparison_terminal(
    comparison: SystemComparison, width: int = 100, several: SeveralRuns | None = None
) -> str:
    """Return title, summary, remarks and tables as text of ``width`` terminal cells, at least 60.

    ``several`` is as in :func:`comparison_page`.
    """
    lines = [_title(comparison, several), summary_sentence(comparison)]
    if several is None:
        lines += [f"- {remark}" for remark in table_remarks(comparison)]
    for ident, heading, tables in table_sections(comparison, several=several):
        # The table of counted runs and the columns in _PAGE_COLUMNS are only on the page and in Markdown. In
        # the table of the runs, the column "Run" has the ids that the command compared.
        if ident == "s-counted":
            continue
        left_out = () if ident == "s-runs" else _PAGE_COLUMNS
        for table in tables:
            lines += ["", heading, *_table_lines(table, max(width, 60), left_out)]
    # The method describes means and intervals, which single runs do not have.
    method = [] if several else ["", comparison.method]
    return "\n".join([*lines, *method]) + "\n"


_PAGE_COLUMNS = ("Published in", "Run")
"""Columns of the page and of Markdown for which a terminal has no room."""


def _table_lines(shown: Table, width: int, left_out: Sequence[str]) -> list[str]:
    """Format a table for a terminal, without the columns in ``left_out``."""
    shown_columns = [column for column, name in enumerate(shown.columns) if name not in left_out]
    rows = [[_plain(row[column]) for column in shown_columns] for row in shown.rows]
    names = [shown.columns[column] for column in shown_columns]
    return text_table(names, rows, width, range(len(shown_columns)))


def _plain(cell: Cell) -> str:
    """Return a cell as text for a terminal, with its note in brackets."""
    text = f"{view.SYMBOLS[cell.verdict]} {cell.verdict.value}" if cell.verdict else cell.text
    return f"{text} ({cell.note})" if text and cell.note else text or cell.note


def write_comparison(comparison: SystemComparison, folder: Path) -> dict[str, Path]:
    """Write comparison.html and comparison.md into a folder, each completely or not at all.

    Returns:
        The paths of the files, by the form ``html`` or ``md``.

    Raises:
        ResultsError: The folder cannot be written.
    """
    contents: Sequence[tuple[str, str]] = (
        ("html", comparison_page(comparison)),
        ("md", comparison_markdown(comparison)),
    )
    paths = {form: folder / f"comparison.{form}" for form, _ in contents}
    for form, content in contents:
        write_file(paths[form], content.encode())
    return paths


def comparison_text(comparison: Comparison, width: int = 100) -> str:
    """Return a comparison of two single runs as text of ``width`` terminal cells."""
    lines = [_side_line("first", comparison.first), _side_line("second", comparison.second)]
    for heading, columns, rows, flexible in (
        _measurement_section(comparison),
        _refused_section(comparison),
        _unmatched_section(comparison),
        _difference_section(comparison),
    ):
        if rows:
            lines += ["", heading, *text_table(columns, rows, width, flexible)]
    if not comparison.measurements:
        lines += ["", "The runs have no measurement in common."]
    return "\n".join(lines) + "\n"


_Section = tuple[str, tuple[str, ...], list[tuple[str, ...]], tuple[int, ...]]
"""Heading, columns, rows, and the indices of the columns that become narrower in a narrow terminal."""


def _side_line(name: str, side: Side) -> str:
    """Return the line about one of two compared runs."""
    parts = (side.run_id, side.title, side.verdict.value, side.when, ", ".join(side.nodes))
    return f"{name + ':':8}" + sanitize("  ".join(part for part in parts if part), 400)


def _measurement_section(comparison: Comparison) -> _Section:
    """Return the section of the measurements that both runs have."""
    columns = ("Metric", "Of", "First", "Second", "Ratio", "Difference", "Better")
    rows: list[tuple[str, ...]] = [
        (
            sanitize(measurement.name, 200),
            view.label_text(measurement.labels),
            quantity(measurement.first, measurement.unit),
            quantity(measurement.second, measurement.unit),
            NOTHING if measurement.ratio is None else f"{measurement.ratio:.3f}",
            percent(measurement.difference),
            "" if measurement.better == "unknown" else measurement.better,
        )
        for measurement in comparison.measurements
    ]
    return "Measurements", columns, rows, (0, 1)


def _refused_section(comparison: Comparison) -> _Section:
    """Return the section of the measurements whose units differ."""
    rows: list[tuple[str, ...]] = [
        (
            sanitize(refused.name, 200),
            view.label_text(refused.labels),
            sanitize(refused.first_unit, 40),
            sanitize(refused.second_unit, 40),
        )
        for refused in comparison.refused
    ]
    return "Not compared: the units differ", ("Metric", "Of", "First unit", "Second unit"), rows, (0, 1)


def _unmatched_section(comparison: Comparison) -> _Section:
    """Return the section of the measurements without a unique counterpart in the other run."""
    rows: list[tuple[str, ...]] = [
        (
            sanitize(measurement.name, 200),
            view.label_text(measurement.labels),
            quantity(measurement.value, measurement.unit),
            measurement.only_in,
        )
        for measurement in comparison.unmatched
    ]
    return "Only one run has", ("Metric", "Of", "Value", "Only in"), rows, (0, 1)


def _difference_section(comparison: Comparison) -> _Section:
    """Return the section of the differences between the runs other than measurements."""
    rows: list[tuple[str, ...]] = [
        (
            sanitize(difference.what, 100),
            sanitize(difference.first, 200) or NOTHING,
            sanitize(difference.second, 200) or NOTHING,
        )
        for difference in comparison.differences
    ]
    return "What else differs", ("What", "First", "Second"), rows, (0, 1, 2)
