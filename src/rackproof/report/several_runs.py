"""Build the tables that compare more than two single runs (``rackproof compare RUN RUN RUN``).

:mod:`rackproof.report.comparison` calls :func:`tables_of_runs` with the result of
:mod:`rackproof.analysis.compare.several_runs`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from rackproof.analysis.compare.several_runs import MeasurementOfRuns, SeveralRuns
from rackproof.core.records import Direction
from rackproof.core.text import NOTHING, percent, quantity, sanitize
from rackproof.report import view
from rackproof.report.view import Cell, Table

_BETTER = {Direction.HIGHER: "higher", Direction.LOWER: "lower", None: ""}


def tables_of_runs(compared: SeveralRuns) -> tuple[tuple[str, str, Table], ...]:
    """Return the tables of the runs and of their measurements as (id of the section, heading, table)."""
    return (
        ("s-runs", "Runs", runs_table(compared)),
        ("s-measurements", "Measurements", measurements_table(compared)),
    )


def runs_table(compared: SeveralRuns) -> Table:
    """Return the table of the runs, numbered from 1. The columns of measurements have these numbers."""
    rows = [
        (
            Cell(str(number), "number"),
            view.verdict_cell(run.verdict),
            Cell(sanitize(run.title, 160)),
            Cell(sanitize(", ".join(run.nodes), 120)),
            Cell(sanitize(run.when, 60)),
            Cell(sanitize(run.run_id, 130), "code"),
        )
        for number, run in enumerate(compared.runs, start=1)
    ]
    columns = ("No.", "Verdict", "Benchmark", "Ran on", "When", "Run")
    return view.build_table("The runs, by their numbers in the next table", columns, rows)


def measurements_table(compared: SeveralRuns) -> Table:
    """Return the table with a row for each measurement and a column for each run."""
    columns = ("Metric", "Better", *(f"Run {number}" for number in range(1, len(compared.runs) + 1)))
    caption = "Every measurement; below it, its difference from the first run that has it"
    return view.build_table(
        caption, columns, (tuple(_row(measurement)) for measurement in compared.measurements)
    )


def _row(measurement_of_runs: MeasurementOfRuns) -> Iterator[Cell]:
    """Yield the cells of a measurement, with the difference from the first run that measured it as a note."""
    yield Cell(view.metric_words(measurement_of_runs.name), note=view.label_text(measurement_of_runs.labels))
    yield Cell(_BETTER[measurement_of_runs.direction])
    base = next((value.value for value in measurement_of_runs.values if value.value is not None), None)
    is_first = True
    for value_of_run in measurement_of_runs.values:
        if value_of_run.value is None:
            yield Cell(NOTHING, "number")
            continue
        note = "" if is_first else _difference(value_of_run.value, base)
        yield Cell(quantity(value_of_run.value, measurement_of_runs.unit), "number", note=note)
        is_first = False


def _difference(value: float, base: float | None) -> str:
    """Return the relative difference of a value from the first, or "" if it is 0 or undefined."""
    if not base or value == base or not math.isfinite(base) or not math.isfinite(value):
        return ""
    return percent((value - base) / abs(base))
