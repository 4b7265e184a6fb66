"""Provide one headless Chromium for all tests of this folder, and the report pages that they open."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from rackproof.core.records import Run
from tests.e2e.browser.devtools import Page, chromium, find_chromium


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    """Yield a tab of Chromium. Skip the test if there is no Chromium, or fail in CI."""
    program = find_chromium()
    if program is None:
        if os.environ.get("CI") == "true":
            pytest.fail("Chromium is missing; apt-get install chromium")
        pytest.skip("no Chromium here; apt-get install chromium")
    with chromium(program, tmp_path_factory.mktemp("profile")) as page:
        yield page


@pytest.fixture(scope="session")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Write a report of every kind. Return the HTML files by name."""
    from rackproof.report import write_plan_reports, write_run_reports
    from tests.report import example_runs

    folder = tmp_path_factory.mktemp("reports")
    made = {}
    for name in ("healthy", "hostile", "rack"):
        (folder / name).mkdir()
        made[name] = write_run_reports(getattr(example_runs, name)(), folder / name)["html"]
    runs = [*example_runs.sweep(), example_runs.hostile()]
    plan = write_plan_reports(
        runs, folder / "sweep", "MNIST sweep", lambda run: f"../{run.run_id}/report.html"
    )
    return made | {
        "sweep": plan["html"],
        "comparison": _comparison(folder / "comparison"),
        "six": _six_runs(folder / "six.html"),
    }


def _six_runs(page: Path) -> Path:
    """Write a page that compares six runs: a healthy, a hostile and a rack run, each twice."""
    from rackproof.analysis.compare.several_runs import compare_several
    from rackproof.analysis.compare.systems import System, compare_systems
    from rackproof.report.comparison import comparison_page
    from tests.report import example_runs

    kinds = (example_runs.healthy, example_runs.hostile, example_runs.rack)
    runs = [
        kind().model_copy(update={"run_id": f"20261126T15534{place}Z-mnist-lenet-4f6e7{place}"})
        for place, kind in enumerate((*kinds, *kinds))
    ]
    systems = [System(name=run.run_id, runs=(run,), single_run=True) for run in runs]
    page.write_text(comparison_page(compare_systems(systems), several=compare_several(runs)))
    return page


def _comparison(folder: Path) -> Path:
    """Write a page on three systems with four repeats each. The first one also has a failed run.

    Two systems have the names of configs of MLPerf 0.6, for which results are published.
    """
    from rackproof.analysis.compare.systems import System, compare_systems
    from rackproof.core.records import LogFile, Verdict
    from rackproof.report.comparison import write_comparison
    from tests.report import example_runs

    healthy, hostile = example_runs.healthy(), example_runs.hostile()

    def repeat(number: int, factor: float) -> Run:
        """Return the healthy run again, with its values multiplied."""
        log = LogFile(path="l", sha256=f"{number:064x}", size_bytes=1, verdict=Verdict.PASS)
        measured = tuple(one.model_copy(update={"value": one.value * factor}) for one in healthy.measurements)
        changed = {"run_id": f"r{number}", "benchmark": "ssd", "logs": (log,), "measurements": measured}
        return healthy.model_copy(update=changed)

    systems = [
        System(
            name=name, runs=tuple(repeat(10 * at + number, 1 + at / 20 + number / 99) for number in range(4))
        )
        for at, name in enumerate(("DGX1", "LambdaHyperplaneBasic", "a machine with a rather long name"))
    ]
    broken = hostile.model_copy(update={"benchmark": "ssd"})
    systems[0] = systems[0].model_copy(update={"runs": (*systems[0].runs, broken)})
    return write_comparison(compare_systems(systems), folder)["html"]
