"""Test the comparison of more than two single runs (:mod:`rackproof.analysis.compare.several_runs`).

``rackproof compare RUN RUN RUN`` shows every measurement of the runs side by side. These tests check which
measurements share a row, the difference from the first run, and the page, Markdown and text of the command.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from click.testing import CliRunner

from rackproof.analysis.compare.several_runs import compare_several
from rackproof.cli.main import main
from rackproof.core.records import Direction, Measurement, Run
from rackproof.report import several_runs
from rackproof.store.run_folder import write_run

UUIDS = [f"GPU-{number:08d}-0000-4000-8000-000000000000" for number in range(3)]


def measured(value: float, name: str = "copy", unit: str = "GB/s", **labels: str) -> Measurement:
    return Measurement(name=name, value=value, unit=unit, direction=Direction.HIGHER, labels=labels)


def run(number: int, *measurements: Measurement) -> Run:
    return Run.model_validate({"run_id": f"r{number}", "benchmark": "b", "measurements": measurements})


def values(*runs: Run) -> dict[str, list[float | None]]:
    """Return the values of each row, by the row's name and labels."""
    return {
        " ".join([one.name, *one.labels.values()]): [each.value for each in one.values]
        for one in compare_several(runs).measurements
    }


def test_gpus_with_the_same_index_on_different_nodes_share_a_row() -> None:
    runs = [run(at, measured(at, gpu=uuid, gpu_index="0")) for at, uuid in enumerate(UUIDS)]
    assert list(values(*runs).values()) == [[0, 1, 2]]
    # The row is about three GPUs, and must not name the first as if it were all of them.
    assert compare_several(runs).measurements[0].labels == {"gpu_index": "0"}
    assert compare_several([runs[0], runs[0]]).measurements[0].labels == {"gpu": UUIDS[0], "gpu_index": "0"}


def test_gpus_without_an_index_are_distinguished_by_their_uuid() -> None:
    both = run(1, measured(1, gpu=UUIDS[0]), measured(2, gpu=UUIDS[1]))
    found = values(both, both, run(2, measured(3, gpu=UUIDS[2])))
    assert sorted(map(str, found.values())) == ["[1.0, 1.0, None]", "[2.0, 2.0, None]", "[None, None, 3.0]"]


def test_another_unit_is_another_row_and_an_absent_value_is_none() -> None:
    runs = [run(1, measured(1)), run(2, measured(2, unit="MB/s")), run(3)]
    assert [[each.value for each in one.values] for one in compare_several(runs).measurements] == [
        [1, None, None],
        [None, 2, None],
    ]


@pytest.mark.parametrize(
    ("first", "second", "shown"),
    [(100, 110, "+10.0 %"), (100, 100, ""), (0, 5, ""), (math.nan, 5, ""), (-2, -1, "+50.0 %")],
)
def test_a_row_shows_the_difference_from_the_first_run(first: float, second: float, shown: str) -> None:
    table = several_runs.measurements_table(
        compare_several([run(1, measured(first)), run(2, measured(second))])
    )
    assert table.rows[0][-1].note == shown


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """Return a results folder with six runs."""
    for number in range(6):
        write_run(
            run(number, measured(100 + number), measured(number, "odd", "<b>x")), tmp_path / f"r{number}"
        )
    return tmp_path


@pytest.mark.parametrize("form", ["text", "html", "md"])
def test_every_form_of_three_single_runs_has_their_number_and_no_method_of_means(
    results: Path, form: str
) -> None:
    command = ["compare", "r0", "r1", "r2", "--results", str(results), "--format", form]
    shown = CliRunner().invoke(main, command).stdout
    assert "3 runs" in shown
    assert not [words for words in ("against r1", "mean over repeats", "Not every") if words in shown]


def test_the_command_shows_every_measurement_of_six_runs(results: Path) -> None:
    names = [f"r{number}" for number in range(6)]
    shown = {}
    for form in ("text", "html", "md"):
        done = CliRunner().invoke(main, ["compare", *names, "--results", str(results), "--format", form])
        assert done.exit_code == 0, done.output
        shown[form] = done.stdout
    for text in shown.values():
        assert "against r" not in text
        assert all(f"r{number}" in text for number in range(6))
        assert "105 GB/s" in text
    assert "<b>" not in shown["html"]
    done = CliRunner().invoke(main, ["compare", *names, "--results", str(results), "--json"])
    found = json.loads(done.stdout)["runs"]["measurements"]
    assert [each["value"] for each in found[0]["values"]] == [100, 101, 102, 103, 104, 105]
