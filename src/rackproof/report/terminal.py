"""Format tables for a terminal, such as the table of runs at the end of a playbook.

Commands call :func:`text_table` for their tables. The summary of a playbook and ``rackproof import`` call
:func:`terminal_table` with their runs. Widths are in cells. A wide (East Asian) character takes two cells.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import zip_longest

from rackproof.core.records import Run, Verdict
from rackproof.core.text import NOTHING, sanitize, width
from rackproof.report import view

_COLOURS = {Verdict.PASS: "32", Verdict.DEGRADED: "33", Verdict.FAIL: "31", Verdict.UNPROVEN: "35"}
_GAP = "  "
_SHOWN_REASONS = 3
"""Largest number of a run's reasons in the table. No other output of a playbook shows them."""
_KEEP = "\N{NO-BREAK SPACE}"
"""The space between a number and its unit, at which no line breaks. It is printed as a space."""
_NARROWEST_REASON = 40
"""If the column of reasons has fewer cells, long reasons get lines of their own below the rows. Otherwise,
there would be one word on a line."""


def wrap(text: str, cells: int) -> list[str]:
    """Break a clean text into lines of at most ``cells`` terminal cells, at spaces where possible."""
    lines, line = [], ""
    # split() would also break at the no-break space, which keeps a number and its unit together.
    for word in text.split(" "):
        full, line, last_part = _break_word(line, word, cells)
        lines += full
        if line and width(line) + 1 + width(last_part) > cells:
            lines.append(line)
            line = last_part
        elif last_part:
            line = _joined(line, last_part)
    return [*lines, line] if line or not lines else lines


def _break_word(line: str, word: str, cells: int) -> tuple[list[str], str, str]:
    """Break a word that is longer than a line.

    Return the full lines, the line that is not yet full, and the rest of the word.
    """
    full: list[str] = []
    while width(word) > cells:
        room = cells - (width(line) + 1 if line else 0)
        # If only a few letters fit at the end of a line, the word begins on the next line.
        cut = _fit(word, room) if room > 4 or not line else 0
        if cut:
            line = _joined(line, word[:cut])
            word = word[cut:]
        full.append(line)
        line = ""
    return full, line, word


def _joined(line: str, word: str) -> str:
    """Return a line with another word."""
    return f"{line} {word}" if line else word


def _fit(text: str, cells: int) -> int:
    """Return how many characters of a text fit into so many cells, at least one."""
    used = 0
    for index, character in enumerate(text):
        used += width(character)
        if used > cells:
            return max(index, 1)
    return len(text)


def text_table(
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    total: int,
    flexible: Sequence[int],
    notes: Sequence[str] = (),
) -> list[str]:
    """Return the lines of a table that has a width of at most ``total`` cells.

    The ``flexible`` columns become narrower, but not below 12 cells, and their texts are wrapped. A table
    that is still too wide remains so.

    Args:
        columns: Headings.
        rows: The sanitized texts.
        total: The width of the terminal in cells.
        flexible: The indices of the columns that may become narrower, at least one.
        notes: A text for each row. The table shows it, indented, below the row if it is not empty.
    """
    widths = _column_widths(columns, rows, total, flexible)
    lines = [*_row_lines(columns, widths), _GAP.join("─" * size for size in widths)]
    for row, note in zip_longest(rows, notes, fillvalue=""):
        lines += _row_lines(row, widths)
        lines += [2 * _GAP + line for line in wrap(note, total - 2 * len(_GAP)) if note]
    return lines


def _column_widths(
    columns: Sequence[str], rows: Sequence[Sequence[str]], total: int, flexible: Sequence[int]
) -> list[int]:
    """Return the width of each column in cells, so that a row fits into the terminal if possible."""
    widths = [max([width(name), *(width(row[index]) for row in rows)]) for index, name in enumerate(columns)]
    spare = total - len(_GAP) * (len(columns) - 1)
    while sum(widths) > spare:
        # The widest column becomes narrower, but not below 12 cells. If the terminal is still too narrow, it
        # wraps the lines itself.
        wide = max(flexible, key=lambda index: widths[index])
        if widths[wide] <= 12:
            break
        widths[wide] -= 1
    return widths


def _row_lines(row: Sequence[str], widths: Sequence[int]) -> Iterator[str]:
    """Yield the lines of one row, each with a part of every cell that is not finished."""
    wrapped = [wrap(text, size) for text, size in zip(row, widths, strict=True)]
    for line in range(max(map(len, wrapped), default=0)):
        cells = [part[line] if line < len(part) else "" for part in wrapped]
        padded = (cell + " " * (size - width(cell)) for cell, size in zip(cells, widths, strict=True))
        yield _GAP.join(padded).rstrip()


def terminal_table(
    runs: Sequence[Run], width: int = 100, color: bool = False, *, with_total: bool = True
) -> str:
    """Return the table of runs, with verdict, benchmark, point, main measurements and reasons.

    If the column of reasons would be too narrow, the reasons are below the rows.

    Args:
        runs: The runs, in their order.
        width: The width of the terminal in cells. A width below 60 counts as 60.
        color: Whether to colour the verdicts (ANSI).
        with_total: Whether to end with the number of runs and their worst verdict.
    """
    columns = ("Verdict", "Benchmark", "Point", "Measured", "Reason")
    rows = [_terminal_row(run) for run in runs]
    # Five columns at their smallest width fill about 60 cells. A narrower terminal wraps the lines itself.
    total, flexible = max(width, 60), (1, 2, 3, 4)
    reasons = [row[-1] for row in rows]
    room = _column_widths(columns, rows, total, flexible)[-1]
    if room < _NARROWEST_REASON and any(len(reason) > 2 * room for reason in reasons):
        lines = text_table(columns[:-1], [row[:-1] for row in rows], total, flexible[:-1], reasons)
    else:
        lines = text_table(columns, rows, total, flexible)
    if color:
        # Colour the lines after the layout, because escape codes take no width but would be counted as cells.
        lines = [_coloured(line) for line in lines]
    if with_total:
        lines += ["", f"{view.run_total(runs)} → {view.overall_verdict(runs).value}"]
    return "\n".join(lines).replace(_KEEP, " ") + "\n"


def _terminal_row(run: Run) -> tuple[str, ...]:
    """Return a run as a row of the table."""
    headlines = view.main_measurements(run, 3)
    # A number and its unit stay on one line.
    main = "; ".join(
        headline.brief.replace(headline.amount, headline.amount.replace(" ", _KEEP)) for headline in headlines
    )
    # On a terminal, a pass without reasons needs no text.
    why = "" if run.verdict is Verdict.PASS and not run.reasons else _reason_text(view.verdict_reasons(run))
    verdict = _verdict_mark(run.verdict)
    return (verdict, sanitize(run.benchmark, 80), view.point_text(run, 80), main or NOTHING, why)


def _reason_text(reasons: Sequence[str]) -> str:
    """Return the first reasons of a run, and how many more there are."""
    more = len(reasons) - _SHOWN_REASONS
    return "; ".join((*reasons[:_SHOWN_REASONS], *([f"and {more} more"] if more > 0 else [])))


def _verdict_mark(verdict: Verdict) -> str:
    """Return a verdict with its symbol."""
    return f"{view.SYMBOLS[verdict]} {verdict.value}"


def _coloured(line: str) -> str:
    """Return a line with the verdict at its beginning coloured, if it begins with one."""
    for verdict, colour in _COLOURS.items():
        mark = _verdict_mark(verdict)
        if line.startswith(mark):
            return f"\x1b[{colour}m{mark}\x1b[0m{line[len(mark) :]}"
    return line
