"""Write the reports of jobs and commands as HTML pages, Markdown, JUnit XML, JSON, and terminal tables.

Jobs call :func:`write_run_reports` and :func:`write_plan_reports`, and ``rackproof report`` calls
:func:`render`. A run is one execution of a benchmark, and a plan is the runs that one command requested.
Matplotlib and Jinja2 are imported only when a page is written.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from rackproof.core.last_lines import read_last_lines
from rackproof.core.records import KEPT_RECORD, Run, Verdict
from rackproof.report.terminal import terminal_table

__all__ = [
    "FORMATS",
    "render",
    "render_markdown",
    "terminal_table",
    "write_plan_reports",
    "write_run_reports",
]

_LOG_END_LINES = 20
"""Number of lines at the end of a log that a page shows."""
FORMATS = ("html", "md", "junit", "json")
_NAMES = {"html": "report.html", "md": "report.md", "junit": "report.junit.xml"}


def render_markdown(runs: Sequence[Run], title: str = "Runs", results: Path | None = None) -> str:
    """Return the Markdown report on one run, or on a plan of several.

    ``title`` is the heading of a plan's report. Commands in the report name the folder ``results``, if it is
    given.
    """
    from rackproof.report.markdown import plan_markdown, run_markdown

    if len(runs) == 1:
        return run_markdown(runs[0], results)
    return plan_markdown(runs, title, results=results)


def render(
    runs: Sequence[Run],
    form: str,
    title: str = "Runs",
    link: Callable[[Run], str] | None = None,
    folder: Path | None = None,
    results: Path | None = None,
) -> bytes:
    """Return a report on one run (its own page) or on several runs (the plan's page).

    Args:
        runs: One or more runs.
        form: One of :data:`FORMATS`.
        title: The heading of a plan's report, and the name of a JUnit document.
        link: A function that returns the relative link from a plan's page to a run's. Only HTML has links.
        folder: The folder of a single run. The run's page takes the end of the log from there.
        results: The results folder that commands in the report name, or None.

    Returns:
        The file's content in UTF-8. As ``json``, it is the run's record, or a list of records.

    Raises:
        ValueError: The form is unknown.
    """
    if form == "html":
        from rackproof.report.html import plan_page, run_page

        if len(runs) == 1:
            return run_page(runs[0], read_log_end(runs[0], folder) if folder else (), results).encode()
        return plan_page(runs, title, link, results=results).encode()
    if form == "md":
        return render_markdown(runs, title, results).encode()
    if form == "junit":
        from rackproof.report.junit import junit

        return junit(runs, title)
    if form == "json":
        from rackproof.store.run_folder import dump_run

        if len(runs) == 1:
            return dump_run(runs[0])
        # Each record is written as in its own run.json, so that NaN and times are written in only one way.
        return b"[\n" + b",\n".join(dump_run(run).rstrip() for run in runs) + b"\n]\n"
    raise ValueError(f"no report format {form!r}; there are {', '.join(FORMATS)}")


def read_log_end(run: Run, folder: Path) -> tuple[str, ...]:
    """Return the sanitized last lines of the first log of a run that failed or is unproven.

    The result is empty for other verdicts, for a night, and for a log that is not in the run's folder.
    """
    if (
        run.verdict not in (Verdict.FAIL, Verdict.UNPROVEN)
        or not run.logs
        or run.logs[0].format == KEPT_RECORD
    ):
        return ()
    path = folder / run.logs[0].path
    try:
        # A record may contain any path. Only files stored with the run are shown.
        if not path.resolve().is_relative_to(folder.resolve()) or not path.is_file():
            return ()
    except (OSError, ValueError):  # ValueError for a NUL in the path
        return ()
    return read_last_lines(path, _LOG_END_LINES)


def write_run_reports(run: Run, folder: Path) -> dict[str, Path]:
    """Write report.html, report.md and report.junit.xml of a run into its folder.

    Commands in the reports name the parent folder as the results folder.

    Returns:
        The paths of the files by form: ``html``, ``md``, ``junit``.

    Raises:
        OSError: A file cannot be written into the folder.
    """
    return {
        form: _write(folder / name, render([run], form, run.title, folder=folder, results=folder.parent))
        for form, name in _NAMES.items()
    }


def write_plan_reports(
    runs: Sequence[Run],
    folder: Path,
    title: str,
    link: Callable[[Run], str] | None = None,
    missing: Sequence[str] = (),
    left_out: Sequence[str] = (),
    scores: Sequence[tuple[str, Verdict]] = (),
) -> dict[str, Path]:
    """Write the reports on several runs, with overall verdict, all runs, sweep table and curves.

    Args:
        runs: The runs in the plan's order. There may be one or none.
        folder: The folder, which is created if it does not exist. Commands name its parent folder as the
            results folder.
        title: The heading.
        link: A function that returns the relative link from this page to a run's own.
        missing: Texts about requested runs that are missing. The plan is then at best unproven.
        left_out: Texts about benchmarks that the nodes cannot run, and about nodes without a run. Neither is
            a fault. Only the page shows them.
        scores: The scores of repeats as texts with their verdicts, which count for the plan's verdict.

    Returns:
        The paths of the files by form: ``html``, ``md``, ``junit``.

    Raises:
        OSError: The folder cannot be created, or a file cannot be written into it.
    """
    from rackproof.report.html import plan_page
    from rackproof.report.junit import junit
    from rackproof.report.markdown import plan_markdown

    folder.mkdir(parents=True, exist_ok=True)
    contents = {
        "html": plan_page(runs, title, link, missing, left_out, folder.parent, scores).encode(),
        "md": plan_markdown(runs, title, link, missing, folder.parent, scores).encode(),
        "junit": junit(runs, title, missing, scores),
    }
    return {form: _write(folder / name, contents[form]) for form, name in _NAMES.items()}


def _write(path: Path, content: bytes) -> Path:
    """Write a file completely or not at all."""
    # The name contains the process id, because two commands that write the same page must not share a
    # draft.
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_bytes(content)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    return path
