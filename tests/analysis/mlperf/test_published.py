"""Test the published results in the package (:mod:`rackproof.analysis.mlperf.published`).

Comparisons and job bench use them as references. These tests compare the table with a list that was read from
MLCommons' repositories of rounds 4.1 to 5.1, and check the search for results and the bounds of references.
"""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from rackproof.analysis.mlperf.published import find_published


def test_every_published_row_is_in_the_package(real_logs: Path) -> None:
    with (real_logs / "published/mlperf-reference-results.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    found = {
        (one.round, one.benchmark, one.submitter, one.system): one for one in find_published(kind="official")
    }
    assert len(found) == len(find_published(kind="official")) == len(rows)
    for row in rows:
        one = found[row["round"], row["benchmark"], row["submitter"], row["system"]]
        assert (one.minutes, one.olympic_mean_minutes, one.rcp_scaling) == (
            float(row["score_min"]),
            float(row["olympic_min"]),
            float(row["rcp_scaling"]),
        )
        assert (one.nodes, one.accelerators) == (int(row["nodes"]), int(row["gpus"]))
        assert one.throughput == (float(row["samples_per_s"]) if row["samples_per_s"] else None)


# Search, submitters that must be found, and minutes of the first result.
@pytest.mark.parametrize(
    ("query", "submitters", "fastest"),
    [
        (
            {"benchmark": "llama2_70b_lora", "accelerator": "gb300", "accelerators": 72},
            {"NVIDIA", "Lambda"},
            1.2233,
        ),
        ({"benchmark": "llama31_8b", "accelerator": "GB300", "nodes": 18}, {"NVIDIA", "Lambda"}, 12.98),
        ({"benchmark": "llama31_8b", "kind": "unofficial"}, {"Lambda"}, 86.22),
        ({"benchmark": "flux1", "accelerators": 16, "kind": "unofficial"}, {"Lambda"}, 172.59),
        ({"benchmark": "resnet", "round": "0.6"}, {"Lambda"}, 59.8),
        ({"benchmark": "chess"}, set(), None),
        ({"accelerator": "gb300", "benchmark": "llama2_70b_lora", "accelerators": 71}, set(), None),
    ],
)
def test_a_search_finds_the_results_of_submitters(
    query: dict[str, object], submitters: set[str], fastest: float | None
) -> None:
    found = find_published(**query)  # type: ignore[arg-type]
    assert bool(found) == bool(submitters)
    assert submitters <= {one.submitter for one in found}
    assert (found[0].minutes if found else None) == (
        None if fastest is None else pytest.approx(fastest, abs=5e-3)
    )


def test_an_accelerator_is_matched_by_whole_words() -> None:
    assert {one.accelerator for one in find_published(accelerator="b200")} == {
        "NVIDIA Blackwell GPU (B200-SXM-180GB)"
    }
    assert all("GB200" in one.accelerator for one in find_published(accelerator="GB200"))


def test_the_newest_round_comes_first() -> None:
    rounds = [one.round for one in find_published(benchmark="llama2_70b_lora")]
    assert rounds == sorted(rounds, reverse=True)
    assert {"5.1", "5.0", "4.1"} == set(rounds)
    # A row without minutes comes last in its round.
    assert find_published(benchmark="ssd", round="0.6")[-1].minutes is None


def test_a_result_gives_references_for_minutes_and_throughput() -> None:
    (lambda_72,) = (
        one
        for one in find_published(benchmark="llama31_8b", accelerator="gb300", accelerators=72)
        if one.submitter == "Lambda"
    )
    minutes = lambda_72.reference()
    assert (minutes.value, minutes.unit, minutes.low, minutes.high, minutes.warn) == (
        14.2546,
        "min",
        -0.3,
        0.07,
        0.035,
    )
    rate = lambda_72.reference("throughput", tolerance=0.05)
    assert (rate.value, rate.unit, rate.low, rate.high, rate.warn) == (
        223.276,
        "samples/s",
        -0.05,
        0.3,
        -0.035,
    )
    assert (
        rate.source
        == "MLPerf Training 5.1, official, Lambda, gb300_n18_ngc25.04_nemo, llama31_8b, Available cloud"
    )
    ssd = next(
        one for one in find_published(benchmark="ssd", round="0.6") if one.system == "DGX-1"
    ).reference("throughput")
    assert (ssd.value, ssd.unit) == (4420.04, "samples/s")
    (flux,) = find_published(benchmark="flux1", kind="unofficial")
    with pytest.raises(ValueError, match="no throughput was published"):
        flux.reference("throughput")
