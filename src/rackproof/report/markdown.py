"""Write reports in GitHub-flavoured Markdown, with the same tables as the pages but without charts.

:mod:`rackproof.report` calls :func:`run_markdown` and :func:`plan_markdown`. Comparisons use
:func:`table_text`. The texts come from nodes and logs, so they must not become markup.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

from rackproof.core.advised_commands import add_results_everywhere
from rackproof.core.records import Run, Verdict
from rackproof.core.text import sanitize
from rackproof.report import study, view
from rackproof.report.next_step import step_after_plan, step_after_run
from rackproof.report.view import Cell, Table

# All characters that could start markup, HTML, a mention, an issue link or a table cell.
_SPECIAL = re.compile(r"([\\`*_{}\[\]()#+!|~<>&$@:])")


def escape(text: str) -> str:
    """Escape a text so that Markdown shows it literally, even in a table cell: ``a_b`` becomes ``a\\_b``."""
    # Write "<" as an entity, for renderers that pass raw HTML even after a backslash.
    escaped = _SPECIAL.sub(r"\\\1", sanitize(text, 2000))
    escaped = escaped.replace(r"\<", "&lt;").replace(r"\>", "&gt;").replace(r"\&", "&amp;")
    # Mentions and bare links work without markup, so break them at their beginning.
    escaped = escaped.replace(r"\@", "&#64;").replace(r"\:", "&#58;" if "//" in escaped else ":")
    # At the start of a line, "1." and "-" make a list, and "=" turns the line above into a heading.
    return re.sub(r"^(\d+)\.(?=\s|$)", r"\1\\.", re.sub(r"^([-=])", r"\\\1", escaped))


def code(text: str) -> str:
    """Return a code span that no backtick in the text can end, or "" for an empty text."""
    # In a code span nothing can be escaped, so backticks must be replaced.
    code_text = sanitize(text, 600).replace("`", "\N{MODIFIER LETTER GRAVE ACCENT}")
    return f"`{code_text}`" if code_text else ""


def cell_text(cell: Cell) -> str:
    """Return one cell as Markdown, with its link and its note in brackets."""
    if cell.verdict is not None:
        text = f"{view.SYMBOLS[cell.verdict]} {cell.verdict.value}"
    elif cell.kind == "code":
        # GitHub resolves "\\|" in a table before it reads code spans.
        text = code(cell.text).replace("|", "\\|")
    else:
        text = escape(cell.text)
    # A bracket or a blank in a link would end it early, so such a cell gets no link.
    if cell.href and re.fullmatch(r"[A-Za-z0-9._~/%-]+", cell.href):
        text = f"[{text}]({cell.href})"
    if cell.note:
        text += f" ({escape(cell.note)})" if text else escape(cell.note)
    return text


def table_text(table: Table) -> str:
    """Return a table as Markdown with its caption above, or "" without rows."""
    if not table.rows:
        return ""
    lines = [f"{escape(table.caption)}", ""]
    lines.append("| " + " | ".join(table.columns) + " |")
    lines.append(
        "|" + "|".join(" ---: " if i in table.numeric else " --- " for i in range(len(table.columns))) + "|"
    )
    lines += ["| " + " | ".join(cell_text(cell) for cell in row) + " |" for row in table.rows]
    if table.omitted:
        lines += ["", f"{table.omitted} more rows are in run.json."]
    return "\n".join(lines)


def run_markdown(run: Run, results: Path | None = None) -> str:
    """Return the report on one run."""
    point = view.point_text(run)
    parts = [
        f"# {view.SYMBOLS[run.verdict]} {run.verdict.value}: {escape(run.benchmark)}"
        + (f" ({escape(point)})" if point else ""),
        _reasons(view.verdict_reasons(run), results),
        _step(step_after_run(run, results)),
    ]
    sections = (
        ("Judgement", [view.judgement_table(run)]),
        ("Findings", [view.finding_table(run)]),
        (
            "What ran where",
            [_facts(run), view.node_table(run), view.gpu_table(run), view.software_table(run)],
        ),
        ("Measurements", [view.measurement_table(run)]),
        ("Raw logs", [view.log_table(run)]),
    )
    for name, tables in sections:
        texts = [text for text in map(table_text, tables) if text]
        if texts:
            parts += [f"## {name}", *texts]
    return "\n\n".join(filter(None, parts)) + "\n"


def _reasons(reasons: Sequence[str], results: Path | None) -> str:
    """Return reasons as a list, whose commands name the results folder."""
    return "\n".join(f"- {escape(add_results_everywhere(reason, results))}" for reason in reasons)


def _step(step: tuple[str, str]) -> str:
    """Return the next step, which is a pair of advice and command, as Markdown, or "" without a command."""
    advice, command = step
    return f"{escape(advice)} {code(command)}" if command else ""


def _facts(run: Run) -> Table:
    """Return the table of a run's facts."""
    return view.build_table(
        "The run", ("Fact", "Value"), ((Cell(name), cell) for name, cell in view.fact_pairs(run))
    )


def plan_markdown(
    runs: Sequence[Run],
    title: str,
    link: Callable[[Run], str] | None = None,
    missing: Sequence[str] = (),
    results: Path | None = None,
    scores: Sequence[tuple[str, Verdict]] = (),
) -> str:
    """Return the report on several runs: overall verdict, all runs, sweep table, and a study's tables.

    The arguments are the same as for :func:`rackproof.report.write_plan_reports`.
    """
    verdict = view.overall_verdict(runs, missing, scores)
    parts = [
        f"# {view.SYMBOLS[verdict]} {verdict.value}: {escape(title)}",
        f"{escape(view.summary_line(runs))}.",
        _reasons(view.plan_reasons(runs, missing, scores), results),
        _step(step_after_plan(runs, verdict, results)),
    ]
    tables = [view.overview_table(runs, link)]
    if view.is_training_sweep(runs):
        tables.append(view.sweep_table(runs))
    tables += study.tables(runs, link)
    parts += [text for text in map(table_text, tables) if text]
    return "\n\n".join(filter(None, parts)) + "\n"
