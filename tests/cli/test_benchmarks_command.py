"""``rackproof benchmarks``, tables without a terminal, and parameters of a wrong type."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from rackproof.core.definitions import DefinitionError, Scalar, load_definitions
from rackproof.logs import FORMATS

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.parametrize("suite", ["quick", "probes", "collectives"])
def test_benchmarks_of_a_suite_are_listed(run: Callable[..., Result], suite: str) -> None:
    listed = json.loads(run("benchmarks", "--definitions", FOLDER, "--suite", suite, "--json").stdout)
    assert listed
    assert all(suite in one["suites"] for one in listed)
    assert len(json.loads(run("benchmarks", "--definitions", FOLDER, "--json").stdout)) > len(listed)


def test_a_row_is_one_line_without_a_terminal(
    run: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS")
    lines = run("benchmarks", "--definitions", FOLDER).stdout.splitlines()
    names = load_definitions(FOLDER, log_formats=FORMATS)
    assert [line.split()[0] for line in lines[2:]] == list(names)
    monkeypatch.setenv("COLUMNS", "60")
    assert len(run("benchmarks", "--definitions", FOLDER).stdout.splitlines()) > len(lines)


@pytest.mark.parametrize(
    ("which", "name", "value", "words"),
    [
        ("gemm", "seconds", "many", "it has to be a number"),
        ("mnist-lenet", "batch_size", "big", "it has to be a number"),
        ("mnist-lenet", "batch_size", True, "it has to be a number"),
        ("all-reduce", "gpus", "two", ""),  # its own value is the word `all`: the program says what it takes
        ("gemm", "seconds", 2.5, ""),
        ("mnist-lenet", "gpus", "all", ""),
    ],
)
def test_a_parameter_of_a_wrong_type_is_refused_before_anything_runs(
    which: str, name: str, value: Scalar, words: str
) -> None:
    definition = load_definitions(FOLDER, log_formats=FORMATS)[which].definition
    assert name in definition.parameters
    if not words:
        assert list(definition.points("", {name: (value,)}, gpus=2))
        return
    with pytest.raises(DefinitionError, match=f"{which}: parameter `{name}` is .*: {words}"):
        list(definition.points("", {name: (value,)}))
