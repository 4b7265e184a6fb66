"""Test ``rackproof benchmarks``, which lists the definitions of benchmarks.

The tests show what the list has: the benchmarks of a suite, images without a digest, and files with mistakes.
They also show that a parameter of a wrong type is refused before anything runs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
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


# The digest of an image, which pins it.
PIN = f"@sha256:{'0' * 64}"


@pytest.mark.parametrize(
    ("images", "unpinned"),
    [
        ({"amd64": "mlperf/bert:1"}, ["mlperf/bert:1"]),
        ({"amd64": f"mlperf/bert:1{PIN}"}, []),
        ({"amd64": f"mlperf/bert{PIN}"}, []),
        ({"amd64": f"mlperf/bert:1{PIN}", "arm64": "mlperf/bert:2"}, ["mlperf/bert:2"]),
    ],
)
def test_images_without_a_digest_are_listed(
    run: Callable[..., Result], tmp_path: Path, images: dict[str, str], unpinned: list[str]
) -> None:
    definition = yaml.safe_load((FOLDER / "llama31_8b.yml").read_text())
    definition["container"]["images"] = images
    (tmp_path / "llama31_8b.yml").write_text(yaml.safe_dump(definition))
    listed = json.loads(run("benchmarks", "--definitions", tmp_path, "--unpinned", "--json").stdout)
    assert [one["unpinned_images"] for one in listed] == ([unpinned] if unpinned else [])
    text = run("benchmarks", "--definitions", tmp_path, "--unpinned").stdout
    assert all(name in text for name in unpinned) if unpinned else text == "no such benchmarks\n"


def test_each_shipped_image_without_a_digest_is_listed(run: Callable[..., Result]) -> None:
    listed = json.loads(run("benchmarks", "--definitions", FOLDER, "--unpinned", "--json").stdout)
    texts = {path.stem: path.read_text() for path in FOLDER.glob("*.yml")}
    assert {one["name"] for one in listed} == {
        name for name, one in texts.items() if re.search(r"^ +image: |^ +images:", one, re.M)
    }


@pytest.mark.parametrize("form", [[], ["--json"], ["--suite", "quick"]])
def test_a_wrong_file_is_named_beside_the_list_of_the_others(
    run: Callable[..., Result], tmp_path: Path, form: list[str]
) -> None:
    (tmp_path / "gemm.yml").write_text((FOLDER / "gemm.yml").read_text())
    (tmp_path / "half.yml").write_text("name: [")
    (tmp_path / "later.yml").write_text("")
    listed = run("benchmarks", "--definitions", tmp_path, *form)
    assert listed.exit_code == 1
    assert "gemm" in listed.stdout
    assert [name in listed.stderr for name in ("half.yml:1: not YAML", "later.yml:1: ")] == [True, True]
    assert "half" not in listed.stdout


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
        ("mnist-lenet", "batch_size", "big", "it has to be a whole number"),
        ("mnist-lenet", "batch_size", True, "it has to be a whole number"),
        ("all-reduce", "gpus", "two", "it has to be a whole number"),
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
