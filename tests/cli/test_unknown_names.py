"""Test that a name that exists nowhere is an error with similar names, in every command that accepts one.

Names are those of nodes, benchmarks, SKUs, suites, runs and plans. Otherwise a misspelt name would look like
one of which nothing is known yet.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from rackproof.core.near_names import near_text

Call = Callable[..., Result]


@pytest.mark.parametrize(
    ("name", "known", "expected"),
    [
        ("gem", ["gemm", "llm"], "; did you mean `gemm`?"),
        ("GEMM", ["gemm", "llm"], "; did you mean `gemm`?"),
        ("zzz", ["b", "a"], "; there is: a, b"),
        ("zzz", [], "; there is: none"),
        ("zzz", [f"node{number:02}" for number in range(42)], "node38, node39 and 2 more"),
    ],
)
def test_a_suggestion_is_a_near_name_or_the_known_ones(name: str, known: list[str], expected: str) -> None:
    assert near_text(name, known).endswith(expected)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("status", "n22"), "n22: not known here; did you mean `n2`"),
        (("status", "n1", "rack-9"), "rack-9: not known here; there is: n1, n2, n3, n4"),
        (("status", "n22", "--json"), "did you mean `n2`"),
        (("explain", "n22"), "did you mean `n2`"),
        (("audit", "--node", "n33"), "did you mean `n3`"),
        (("audit", "--node", "20261121T1-gem"), "did you mean `20261121T1-gemm`"),
        (("reimage", "status", "n9"), "n9: never imaged from here"),
        (("reimage", "status", "n[08-09]", "x"), "n08, n09, x: never imaged from here"),
    ],
)
def test_an_unknown_node_is_an_error(
    run: Call, fleet: Path, arguments: tuple[str, ...], expected: str
) -> None:
    result = run(*arguments)
    assert expected in result.stderr
    assert result.exit_code == 1


def test_known_nodes_are_shown_beside_an_unknown_one(run: Call, fleet: Path) -> None:
    result = run("status", "n1", "n9", "--json")
    assert ([row["node"] for row in json.loads(result.stdout)], result.exit_code) == (["n1"], 1)
    # A name in Slurm's notation names several nodes.
    result = run("status", "n[1-3]", "--json")
    assert ([row["node"] for row in json.loads(result.stdout)], result.exit_code) == (["n1", "n2", "n3"], 0)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("history", "--benchmark", "mnist-lenett"), "did you mean `mnist-lenet`"),
        (("history", "--node", "node-02"), "did you mean `node-01`"),
        (("history", "--benchmark", "mnist-lenett", "--json"), "did you mean `mnist-lenet`"),
        (("references", "--benchmark", "mnist-lenett"), "did you mean `mnist-lenet`"),
        (("references", "--sku", "h800"), "h800: no run is of such a SKU"),
        (("accept", "20991231"), "did you mean `{kept}`"),
        (("accept", "plan-20991231"), "no plan plan-20991231"),
        (("withdraw", "20991231"), "no reference comes from 20991231"),
        (("report", "20991231"), "did you mean `{kept}`"),
        (("compare", "20991231", "20991231"), "did you mean `{kept}`"),
        (("benchmarks", "--suite", "quik"), "did you mean `quick`"),
    ],
)
def test_an_unknown_benchmark_node_sku_or_run_is_an_error(
    run: Call, kept: str, arguments: tuple[str, ...], expected: str
) -> None:
    near = kept[:-1] + "0"
    arguments = tuple(near if one == "20991231" and "{kept}" in expected else one for one in arguments)
    if arguments[0] == "benchmarks":
        arguments += ("--definitions", str(Path(__file__).parents[2] / "benchmarks"))
    result = run(*arguments)
    assert expected.format(kept=kept) in result.output
    assert result.exit_code == 1


def test_a_withdrawn_name_is_suggested(run: Call, kept: str) -> None:
    assert run("accept", kept).exit_code == 0
    assert f"did you mean `{kept}`" in run("withdraw", kept[:-1] + "0").output


@pytest.mark.parametrize("name", ["gemm", "soak"])
def test_a_benchmark_that_did_not_run_yet_is_no_mistake(
    run: Call, kept: str, name: str, tmp_path: Path
) -> None:
    (tmp_path / "benchmarks").symlink_to(Path(__file__).parents[2] / "benchmarks")
    result = run("history", "--benchmark", name)
    assert ("no such runs" in result.output, result.exit_code) == (True, 0)
