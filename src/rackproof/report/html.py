"""Write self-contained HTML pages on one run, or on a plan of several runs.

:mod:`rackproof.report` calls :func:`run_page` and :func:`plan_page`. The pages of nights, comparisons and
certificates use :func:`environment` and :func:`style`. The templates are in the folder ``templates``. A page
makes no request and runs no script. Its Content-Security-Policy would block both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from importlib import resources
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from rackproof import __version__
from rackproof.core.advised_commands import add_results_everywhere
from rackproof.core.records import Run, Verdict
from rackproof.core.text import moment, sanitize
from rackproof.report import charts, study, view
from rackproof.report.next_step import step_after_plan, step_after_run


@cache
def environment() -> Environment:
    """Return the Jinja environment of the templates, which escapes all values."""
    jinja = Environment(
        loader=PackageLoader("rackproof.report", "templates"),
        autoescape=True,
        # A misspelt name in a template is an error instead of a gap in a page.
        undefined=StrictUndefined,
        trim_blocks=True,
    )
    jinja.globals.update(symbols=view.SYMBOLS, dashes=charts.DASHES)
    return jinja


@cache
def style() -> Markup:
    """Return the style sheet of all pages."""
    # The style sheet is our own file without "</style>". CSS has no entities, so do not escape it.
    return Markup(resources.files("rackproof.report").joinpath("style.css").read_text("utf-8"))  # noqa: S704  # nosec B704


def _draw(requested: Sequence[charts.Chart]) -> list[charts.Drawn]:
    """Draw the charts as SVG, each with its own prefix for ids."""
    # Inline SVGs share the page's ids, and their clip paths refer to ids.
    return [charts.draw(chart, f"chart{number}") for number, chart in enumerate(requested, start=1)]


def run_page(run: Run, log_end: Sequence[str] = (), results: Path | None = None) -> str:
    """Return the HTML page of one run.

    Args:
        run: The run to show.
        log_end: The sanitized last lines of its log, or nothing (:func:`rackproof.report.read_log_end`).
        results: The results folder that commands on the page name, or None.
    """
    return (
        environment()
        .get_template("run.html.j2")
        .render(
            kind="Run report",
            when=moment(run.ended or run.started) if run.ended or run.started else "",
            style=style(),
            title=sanitize(run.benchmark, 200),
            point=view.point_text(run),
            hardware=view.hardware_text(run),
            verdict=run.verdict,
            meaning=add_results_everywhere(view.verdict_meaning(run), results),
            reasons=[
                add_results_everywhere(reason, results)
                for reason in view.verdict_reasons(run)
                if reason != view.verdict_meaning(run)
            ],
            headlines=view.main_measurements(run),
            judgements=view.judgement_table(run),
            drawn=_draw(charts.run_charts(run)),
            findings=view.finding_table(run),
            log_end="\n".join(log_end),
            next_step=step_after_run(run, results),
            facts=view.fact_pairs(run),
            nodes=view.node_table(run),
            gpus=view.gpu_table(run),
            software=view.software_table(run),
            measurements=view.measurement_table(run),
            logs=view.log_table(run),
            run_id=run.run_id,
            version=sanitize(run.rackproof_version or __version__, 60),
        )
    )


def plan_page(
    runs: Sequence[Run],
    title: str,
    link: Callable[[Run], str] | None = None,
    missing: Sequence[str] = (),
    left_out: Sequence[str] = (),
    results: Path | None = None,
    scores: Sequence[tuple[str, Verdict]] = (),
) -> str:
    """Return the HTML page of several runs, with overall verdict, runs, omissions, tables and curves.

    The arguments are the same as for :func:`rackproof.report.write_plan_reports`.
    """
    verdict = view.overall_verdict(runs, missing, scores)
    ends = [run.ended for run in runs if run.ended is not None]
    return (
        environment()
        .get_template("plan.html.j2")
        .render(
            kind="Plan report",
            # Sort as text, because records may state times with and without a time zone.
            when=max((moment(end) for end in ends), default=""),
            style=style(),
            title=sanitize(title, 200),
            counts=view.summary_line(runs),
            verdict=verdict,
            meaning=add_results_everywhere(
                view.plan_meaning(runs, verdict, runs[0].plan_id if runs else ""), results
            ),
            reasons=[
                add_results_everywhere(reason, results) for reason in view.plan_reasons(runs, missing, scores)
            ],
            next_step=step_after_plan(runs, verdict, results),
            overview=view.overview_table(runs, link),
            left_out=[sanitize(text, 400) for text in left_out],
            # The sweep of a single point would only repeat the overview.
            sweep=view.sweep_table(runs) if view.is_training_sweep(runs) else None,
            study=study.tables(runs, link),
            drawn=_draw([*study.scaling_charts(runs), *charts.sweep_charts(runs)]),
            version=__version__,
        )
    )
