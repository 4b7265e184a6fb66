"""Reports: HTML pages, Markdown, JUnit XML, JSON, and the table for a terminal.

Matplotlib and Jinja2 are imported only where a page is written.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from rackproof.core.records import Run
from rackproof.report.terminal import terminal_table

__all__ = [
    "FORMATS",
    "render",
    "render_markdown",
    "terminal_table",
    "write_plan_reports",
    "write_run_reports",
]

FORMATS = ("html", "md", "junit", "json")
_NAMES = {"html": "report.html", "md": "report.md", "junit": "report.junit.xml"}


def render_markdown(runs: Sequence[Run], title: str = "Runs") -> str:
    """Return the Markdown of one run, or the plan's of several."""
    from rackproof.report.markdown import plan_markdown, run_markdown

    return run_markdown(runs[0]) if len(runs) == 1 else plan_markdown(runs, title)


def render(
    runs: Sequence[Run],
    form: str,
    title: str = "Runs",
    link: Callable[[Run], str] | None = None,
) -> bytes:
    """Return a report of one run (its own page) or of several (the plan's).

    Args:
        runs: One or more runs.
        form: One of :data:`FORMATS`.
        title: Heading of a plan's report.
        link: Gives the relative link from a plan's page to a run's.

    Raises:
        ValueError: The form is unknown.
    """
    if form == "html":
        from rackproof.report.html import plan_page, run_page

        return (run_page(runs[0]) if len(runs) == 1 else plan_page(runs, title, link)).encode()
    if form == "md":
        return render_markdown(runs, title).encode()
    if form == "junit":
        from rackproof.report.junit import junit

        return junit(runs, title)
    if form == "json":
        from rackproof.store.run_folder import dump_run

        if len(runs) == 1:
            return dump_run(runs[0])
        # Each record as its own run.json has it: one way of writing NaN and moments, not two.
        return b"[\n" + b",\n".join(dump_run(run).rstrip() for run in runs) + b"\n]\n"
    raise ValueError(f"no report format {form!r}; there are {', '.join(FORMATS)}")


def write_run_reports(run: Run, folder: Path) -> dict[str, Path]:
    """Write report.html, report.md and report.junit.xml of a run into its folder.

    Returns:
        The files by form: ``html``, ``md``, ``junit``.

    Raises:
        OSError: The folder cannot be written.
    """
    return {form: _write(folder / name, render([run], form, run.title)) for form, name in _NAMES.items()}


def write_plan_reports(
    runs: Sequence[Run],
    folder: Path,
    title: str,
    link: Callable[[Run], str] | None = None,
    missing: Sequence[str] = (),
) -> dict[str, Path]:
    """Write the reports of several runs: overall verdict, all runs, sweep table and curves.

    Args:
        runs: The runs, in the plan's order; one or none are fine.
        folder: Where to; made if absent.
        title: Heading.
        link: Gives the relative link from this page to a run's own.
        missing: What the plan asked for and did not get, in words; it makes the whole unproven.

    Returns:
        The files by form: ``html``, ``md``, ``junit``.

    Raises:
        OSError: The folder cannot be written.
    """
    from rackproof.report.html import plan_page
    from rackproof.report.junit import junit
    from rackproof.report.markdown import plan_markdown

    folder.mkdir(parents=True, exist_ok=True)
    contents = {
        "html": plan_page(runs, title, link, missing).encode(),
        "md": plan_markdown(runs, title, link, missing).encode(),
        "junit": junit(runs, title, missing),
    }
    return {form: _write(folder / name, contents[form]) for form, name in _NAMES.items()}


def _write(path: Path, content: bytes) -> Path:
    """Write a file whole or not at all."""
    # By process: two commands that write the same page must not write into one draft.
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_bytes(content)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    return path
