"""Test published scaling studies as systems of ``rackproof compare``.

Two publications have studies of ResNet-50, LeNet and others on P100 and K80 GPUs. A run is compared with the
row that names its parameters, such as GPUs and batch size. These tests check that every published row is in
the package, which row is compared with a run, and that no run is judged by such old hardware
(:mod:`rackproof.analysis.compare`).
"""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from rackproof.analysis.compare.selecting import NotFoundError, published
from rackproof.analysis.compare.systems import System, compare_systems
from rackproof.analysis.mlperf.published import find_published, study_points
from rackproof.cli.main import main
from rackproof.core.records import Direction, Measurement, Run, Verdict


def training(benchmark: str, rate: float, unit: str, **parameters: object) -> Run:
    """Return a run of a benchmark with its throughput."""
    name = "images_per_second" if unit == "images/s" else "samples_per_second"
    return Run.model_validate(
        {
            "run_id": "-".join([benchmark, *map(str, parameters.values())]),
            "benchmark": benchmark,
            "parameters": parameters,
            "measurements": (Measurement(name=name, value=rate, unit=unit, direction=Direction.HIGHER),),
            "verdict": Verdict.PASS,
        }
    )


def ours(*runs: Run) -> System:
    """Return a system with these runs."""
    return System(name="ours", runs=runs)


def test_every_row_of_both_documents_is_in_the_package(real_logs: Path) -> None:
    points = study_points()
    of_each = {
        system: sum(one.system == system for one in points)
        for system in dict.fromkeys(p.system for p in points)
    }
    assert of_each == {
        "p100-s3fs": 5,
        "p100-fp16": 3,
        "p100-calico": 4,
        "p100-host": 4,
        "p100-accuracy": 4,
        "p100-first": 2,
        "k80-1": 19,
        "k80-2": 3,
        "k80-3": 11,
        "k80-4": 5,
        "k80-5": 3,
    }
    names = ("ddl-benchmarking.md", "mxnet-multi-gpu.md")
    text = "".join((real_logs / "published" / name).read_text() for name in names)
    for one in points:
        if one.throughput is not None:
            unit = (
                "images/s"
                if one.system == "p100-first"
                else one.throughput_unit.replace("images/s", "images/sec")
            )
            assert f"{one.throughput:g} {unit}" in text, one
        for value in (one.top_1, one.top_5, one.accuracy):
            assert value is None or f"{value:.4f}".rstrip("0") in text, one


def test_rounds_of_mlperf_have_no_points_of_studies() -> None:
    rounds = find_published()
    assert rounds
    assert not any(one.point or one.study for one in rounds)
    # Of two HyperPlanes together only images per second of ssd were published.
    assert [one.system for one in rounds if one.minutes is None] == ["2xHyperPlane"]


def test_a_row_is_compared_with_the_point_that_has_its_parameters() -> None:
    lenet = [
        training("mnist-lenet", rate, "samples/s", gpus=gpus, batch_size=128, num_epochs=12, seed=1)
        for gpus, rate in ((1, 250_000), (2, 375_000))
    ]
    found = compare_systems([published("k80-1"), ours(*lenet)])
    assert [(row.point, row.ratios[0].value) for row in found.rows] == [
        ("batch_size=128 gpus=1 num_epochs=12 seed=1", 10.0),
        ("batch_size=128 gpus=2 num_epochs=12 seed=1", 10.0),
    ]
    assert "mnist-lenet batch_size=64 gpus=1" in found.unmatched
    # The reverse comparison gives the inverse ratios.
    back = compare_systems([ours(*lenet), published("k80-1")])
    assert [row.ratios[0].value for row in back.rows] == [0.1, 0.1]
    assert not found.judgements, "nothing is judged by hardware of another decade"


def test_the_most_particular_row_counts_and_an_ambiguous_one_does_not() -> None:
    common = {"gpus": 4, "batch_size": 2048}
    slow = training("mnist-lenet", 105_000, "samples/s", **common, learning_rate=0.07, lr_step_epochs=13)
    (row,) = compare_systems([ours(slow), published("k80-5")]).rows
    assert row.ratios[0].value == 1
    other = training("mnist-lenet", 210_000, "samples/s", **common, seed=1)
    found = compare_systems([published("k80-5"), ours(slow, other)])
    # The row without further parameters fits both runs, so it is compared with neither.
    assert "mnist-lenet batch_size=2048 gpus=4" in found.unmatched


def test_a_batch_that_was_not_published_has_no_counterpart() -> None:
    run = training("resnet50", 700, "images/s", gpus=4, batch_per_gpu=256)
    found = compare_systems([published("p100-s3fs"), ours(run)])
    assert found.rows == ()
    (row,) = compare_systems([published("p100-host"), ours(run)]).rows
    assert (row.cells[0].value, row.cells[1].value) == (764, 700)


def test_the_command_compares_published_systems_by_name(tmp_path: Path) -> None:
    done = CliRunner().invoke(
        main, ["compare", "published:p100-host", "published:P100-Calico", "--results", str(tmp_path)]
    )
    assert done.exit_code == 0, done.output
    assert "1,408" in done.output
    assert "1,240" in done.output
    with pytest.raises(NotFoundError, match=r"DGX-1.*p100-host"):
        published("p100-moon")
