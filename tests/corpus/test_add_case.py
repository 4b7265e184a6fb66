"""Test tools/add-corpus-case, which makes a case of the corpus from a results folder.

These tests make new cases from the results of old ones. They check that a new case is judged like the old
one, that a night needs the answers of its nodes, of which host names and addresses are left out, and that a
case which is refused leaves no file.
"""

from __future__ import annotations

import importlib.util
import json
import lzma
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType

import pytest

from tests.corpus import judging


@pytest.fixture
def tool(root: Path) -> ModuleType:
    """Return the program as a module."""
    loader = SourceFileLoader("add_corpus_case", str(root / "tools/add-corpus-case"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))
    loader.exec_module(module)
    return module


def add(tool: ModuleType, monkeypatch: pytest.MonkeyPatch, *words: object) -> int:
    """Call the program with some arguments, and return its exit status."""
    fixed = ["--what", "a case made of another", "--source", "the corpus"]
    monkeypatch.setattr(sys, "argv", ["add-corpus-case", *map(str, words), *fixed])
    return tool.main()


def results_of(name: str, folder: Path) -> Path:
    """Return the results folder of a case, as bench.yml or validate.yml leaves it."""
    folder.mkdir()
    judging.judge_case(name, folder)
    (record,) = folder.glob("2*/run.json")
    return record.parent


# Options for logs that do not state other uses of their GPUs, and for the runs of a test's own definition.
OLD = ["--result", "{states_gpu_use: false}"]
OWN = ["--no-references", "--definitions", "tests/data/real/runs/definitions"]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("h100-x2-gemm-alone", ["--healthy", "--sku", "h100,h100_x2", *OLD]),
        ("h200-d-gemm-half", ["--faulty", "--sku", "h200,h200_x1", *OLD]),
        ("h200-d-gemm-half", ["--faulty", "--sku", "h200", "--sku", "h200_x1", *OLD]),
        ("gb300-x72-llama2-failed", ["--faulty", "--sku", "gb300"]),
        # Its log has lines of the GPUs' states at the end, which are no record of Slurm.
        ("h200-x2-nccl-tests-alltoall", ["--healthy", "--sku", "h200,h200_x2", "--no-references"]),
        ("own-local-02-fail", ["--faulty", *OWN]),
        ("own-local-05-fail", ["--faulty", *OWN]),
    ],
)
def test_a_run_becomes_a_case(
    tool: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, words: list[str]
) -> None:
    run, expected = results_of(name, tmp_path / "results"), judging.read_case(name).expected
    monkeypatch.setattr(judging, "CORPUS", tmp_path / "corpus")
    assert add(tool, monkeypatch, run, "new", *words) == 0
    case = judging.read_case("new")
    assert (case.expected, case.healthy) == (expected, "--healthy" in words)
    text = (tmp_path / "corpus/cases/new" / judging.CASE_FILE).read_text()
    assert text.startswith("---\n# tests/corpus/README.md describes the keys.\n")
    again = judging.judge_case("new", tmp_path / "again")
    assert (again.verdict, again.codes) == (expected.verdict, expected.codes)
    # An existing case is not overwritten.
    assert add(tool, monkeypatch, run, "new", *words) == 1


def test_a_night_needs_what_its_nodes_answered(
    tool: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    night = results_of("h100-x1-night", tmp_path / "results")
    answer = judging.machine_answer("h100-vm-x1")["health"]
    monkeypatch.setattr(judging, "CORPUS", tmp_path / "corpus")
    words = [night, "new", "--healthy", "--sku", "h100,h100_x1"]
    assert add(tool, monkeypatch, *words) == 1
    assert not (tmp_path / "corpus/cases/new").exists()
    (tmp_path / "answers").mkdir()
    named = {**answer["facts"], "addresses": ["192.0.2.7"], "hostname": "secret-name"}
    (tmp_path / "answers/localhost").write_text(json.dumps({"gathered": {**answer, "facts": named}}))
    assert add(tool, monkeypatch, *words, "--answers", tmp_path / "answers") == 0
    assert judging.read_case("new").expected.verdict == "pass"
    (kept,) = (tmp_path / "corpus/machines").rglob("answer.json.xz")
    text = lzma.decompress(kept.read_bytes()).decode()
    assert "secret-name" not in text
    assert "192.0.2.7" not in text


def test_a_run_of_an_unknown_benchmark_leaves_nothing(
    tool: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = results_of("own-local-01-pass", tmp_path / "results")
    monkeypatch.setattr(judging, "CORPUS", tmp_path / "corpus")
    assert add(tool, monkeypatch, run, "new", "--healthy") == 1
    assert "toy.yml" in capsys.readouterr().err
    assert not [path for path in (tmp_path / "corpus").rglob("*") if path.is_file()]


@pytest.mark.parametrize("name", ["new-other", "new-localhost"])
def test_the_machine_of_another_case_stays(
    tool: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    name: str,
) -> None:
    """A case that is refused leaves the machines of cases whose names begin like its own."""
    run = results_of("own-local-01-pass", tmp_path / "results")
    monkeypatch.setattr(judging, "CORPUS", tmp_path / "corpus")
    kept = tmp_path / "corpus/machines" / name / "machine.yml"
    kept.parent.mkdir(parents=True)
    kept.write_text("of another case")
    assert add(tool, monkeypatch, run, "new", "--healthy") == 1
    assert kept.read_text() == "of another case"
    assert ("new-localhost exists already" in capsys.readouterr().err) is (name == "new-localhost")
