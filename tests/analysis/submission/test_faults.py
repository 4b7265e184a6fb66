"""Test that each fault of a submission is reported with its run, file and remedy, and nothing is written.

An entry of the table spoils the results folder or the system file in one way.
:func:`rackproof.analysis.submission.build_submission` must then return an issue with the entry's code,
message and remedy, and must leave no package.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from rackproof.analysis.submission import Issue, Submission, build_submission, load_system_file
from rackproof.core.records import Verdict
from rackproof.store.run_folder import write_run
from rackproof.store.sealed_json import open_sealed, seal_json

from .corpus import PRINTED, all_runs, make_run, make_runs, node


@dataclass(frozen=True)
class Fault:
    """A change of the results folder or of the system file, and the issue that must result."""

    code: str
    message: str
    remedy: str
    verdict: Verdict
    runs: int
    """The number of runs that the message names, or 0 if it names none."""
    spoil: Callable[[Path], object] = make_runs
    system: tuple[tuple[str, Any], ...] = ()
    ruleset: str = "5.1.0"


def _nine(results: Path) -> None:
    make_runs(results, 9)


def _eleven(results: Path) -> None:
    make_runs(results, 11)


def _two_failed(results: Path) -> None:
    make_runs(results, 8)
    make_runs(results, 2, first=8, status="aborted", verdict=Verdict.FAIL)


def _two_cut_off(results: Path) -> None:
    make_runs(results, 8)
    make_runs(results, 2, first=8, status=None, verdict=Verdict.UNPROVEN)


def _two_slow(results: Path) -> None:
    make_runs(results, 8)
    make_runs(results, 2, first=8, verdict=Verdict.DEGRADED)


def _open_division(results: Path) -> None:
    make_runs(results, 9)
    make_run(results, 9, division="open")


def _changed_log(results: Path) -> None:
    make_runs(results)
    log = sorted(results.glob("*/logs/*.log"))[3]
    log.write_text(log.read_text().replace("10.3", "9.3") + "\n")


def _missing_log(results: Path) -> None:
    make_runs(results)
    sorted(results.glob("*/logs/*.log"))[3].unlink()


def _copied_log(results: Path) -> None:
    make_runs(results, 9)
    make_run(results, 10, nodes=(node("n1"), node("n2")))
    first, *_, last = all_runs(results)
    data = (first[1] / first[0].logs[0].path).read_bytes()
    log = last[0].logs[0]
    (last[1] / log.path).write_bytes(data)
    _record_log(last[1], log.sha256, first[0].logs[0].sha256)


def _record_log(folder: Path, before: str, after: str) -> None:
    """Put another digest of a log into a record, as if the run had ended with that log."""
    record = folder / "run.json"
    text = open_sealed(record.read_bytes()).decode()
    record.write_bytes(seal_json(text.replace(before, after)))


def _batch_size(results: Path) -> None:
    make_runs(results, 9)
    make_run(results, 9, settings={"global_batch_size": 16})


def _a_gpu_less(results: Path) -> None:
    make_runs(results, 9)
    make_run(results, 9, nodes=(node("n1"), node("n2", gpus=7)))


def _other_script(results: Path) -> None:
    make_runs(results, 9)
    make_run(results, 9, scripts={"config_B200_2x8.sh": "export DGXNNODES=2 LR=1\n"})


def _without_node_facts(results: Path) -> None:
    make_runs(results, nodes=(), printed=None)


def _three_nodes_in_the_log(results: Path) -> None:
    make_runs(results, 9)
    make_run(results, 9, printed=PRINTED | {"number_of_nodes": "3"})


def _two_descriptions(results: Path) -> None:
    make_runs(results, 9)
    run = make_run(results, 9)
    log = run.logs[0]
    path = results / run.run_id / log.path
    second = f":::SYSJSON {json.dumps(PRINTED | {'number_of_nodes': '3'})}\n"
    data = path.read_bytes() + second.encode()
    path.write_bytes(data)
    changed = log.model_copy(update={"sha256": hashlib.sha256(data).hexdigest(), "size_bytes": len(data)})
    write_run(run.model_copy(update={"logs": (changed,)}), results / run.run_id)


def _too_fast(results: Path) -> None:
    make_runs(results, samples=1536)


def _rules_elsewhere(results: Path) -> None:
    make_runs(results, 9)
    make_run(results, 9, division="../../../../tmp/evil")


def _a_name_that_is_a_path(results: Path) -> None:
    make_runs(results, 9)
    make_run(results, 9, settings={"submission_benchmark": "../../evil"})


def _died_at_once(results: Path) -> None:
    """Cut the log of the tenth run, because the official checker crashes on a log without a batch size."""
    make_runs(results, 9)
    run = make_run(results, 9, verdict=Verdict.FAIL)
    log = results / run.run_id / run.logs[0].path
    log.write_text("".join(log.read_text().splitlines(keepends=True)[:5]))
    _record_log(log.parents[1], run.logs[0].sha256, hashlib.sha256(log.read_bytes()).hexdigest())


FAULTS = {
    "nine logs": Fault("run_count", "9 runs .* exactly 10", "make 1 more", Verdict.UNPROVEN, 0, _nine),
    "eleven logs": Fault("run_count", "11 runs .* exactly 10", "leave 1 out", Verdict.UNPROVEN, 0, _eleven),
    "two failed runs": Fault(
        "run_refused", "status 'aborted'.*verdict is fail", "make new runs", Verdict.FAIL, 2, _two_failed
    ),
    "two logs cut off": Fault(
        "run_refused", "no run_stop.*verdict is unproven", "make new runs", Verdict.FAIL, 2, _two_cut_off
    ),
    "two slow runs": Fault(
        "run_refused", "verdict is degraded", "make new runs", Verdict.UNPROVEN, 2, _two_slow
    ),
    "wrong division": Fault(
        "division", "division 'open', .* 'closed'", "correct division in", Verdict.FAIL, 1, _open_division
    ),
    "wrong division in the description": Fault(
        "division",
        "'closed', .* 'open'",
        "correct division",
        Verdict.FAIL,
        10,
        system=(("division", "open"),),
    ),
    "accelerators in the logs are others": Fault(
        "description_contradicted",
        "accelerators_per_node is '8' .* '4'",
        "correct accelerators_per_node in",
        Verdict.FAIL,
        10,
        system=(("accelerators_per_node", 4),),
    ),
    "accelerators of another name": Fault(
        "description_contradicted",
        "'NVIDIA B200' .* 'NVIDIA GB200'",
        "correct accelerator_model_name in",
        Verdict.FAIL,
        10,
        system=(("accelerator_model_name", "NVIDIA GB200"),),
    ),
    "another framework": Fault(
        "description_contradicted",
        "'PyTorch Release 26.01' in the log, 'MXNet' in the",
        "correct framework in",
        Verdict.FAIL,
        10,
        system=(("framework", "MXNet"),),
    ),
    "more nodes in a log": Fault(
        "description_contradicted", "'3' in the log", "choose runs", Verdict.FAIL, 1, _three_nodes_in_the_log
    ),
    "a node with a GPU less": Fault(
        "nodes_unlike", "not alike.*n1 / n2", "mend the node", Verdict.FAIL, 1, _a_gpu_less
    ),
    "a missing key": Fault(
        "key_missing",
        "the system's cooling",
        "write `cooling: …`",
        Verdict.UNPROVEN,
        0,
        system=(("cooling", None),),
    ),
    "facts that nothing shows": Fault(
        "description_unproven",
        "neither .* number_of_nodes, accelerators_per_node",
        ":::SYSJSON",
        Verdict.UNPROVEN,
        10,
        _without_node_facts,
        (("number_of_nodes", 2), ("accelerators_per_node", 8), ("accelerator_model_name", "NVIDIA B200")),
    ),
    "a log that describes two systems": Fault(
        "description_not_compared",
        "several :::SYSJSON lines, which differ in number_of_nodes",
        "another run",
        Verdict.UNPROVEN,
        1,
        _two_descriptions,
    ),
    "a changed log": Fault("log_changed", "SHA-256", "restore the log", Verdict.FAIL, 1, _changed_log),
    "a missing log": Fault("log_missing", "No such file", "restore", Verdict.UNPROVEN, 1, _missing_log),
    "the same run twice": Fault("same_run_twice", "copy", "another run", Verdict.FAIL, 1, _copied_log),
    "another batch size": Fault("batch_size", "is 16, .* 8$", "one batch size", Verdict.FAIL, 1, _batch_size),
    "another configuration": Fault(
        "code_differs", "differs from", "one configuration", Verdict.FAIL, 1, _other_script
    ),
    "too fast to be true": Fault(
        "convergence", "1536 samples .* too fast", "hyperparameters", Verdict.FAIL, 0, _too_fast
    ),
    "a benchmark that the round does not have": Fault(
        "benchmark_not_in_round",
        "round 5.0.0 has no gpt_oss_20b; it has bert",
        "--ruleset",
        Verdict.FAIL,
        0,
        lambda results: make_runs(results, benchmark="gpt_oss_20b"),
        ruleset="5.0.0",
    ),
    "a log that leads to rules elsewhere": Fault(
        "checker_gave_no_answer", "not a plain name", "another run", Verdict.UNPROVEN, 1, _rules_elsewhere
    ),
    "a benchmark's name that is a path": Fault(
        "benchmark_name",
        "'../../evil' is not the name of a benchmark",
        "another run",
        Verdict.FAIL,
        1,
        _a_name_that_is_a_path,
    ),
    "a run that died at once": Fault(
        "checker_gave_no_answer",
        "crashed: KeyError.*result_9.txt logs no seed",
        "another run",
        Verdict.UNPROVEN,
        1,
        _died_at_once,
    ),
}


def outcome(fault: Fault, folder: Path, system_file: Callable[..., Path]) -> Submission:
    """Return the submission that is built from spoilt runs."""
    fault.spoil(folder / "spoilt")
    said = load_system_file(system_file(**dict(fault.system)))
    return build_submission(all_runs(folder / "spoilt"), said, folder / "out", ruleset=fault.ruleset)


@pytest.mark.slow
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_named_with_its_remedy(
    name: str, tmp_path: Path, system_file: Callable[..., Path]
) -> None:
    fault = FAULTS[name]
    made = outcome(fault, tmp_path, system_file)
    found = [issue for issue in made.issues if issue.code == fault.code]
    assert found, made.issues
    for issue in found:
        assert re.search(fault.message, issue.message), issue
        assert fault.remedy in issue.remedy
        assert issue.verdict is fault.verdict
        assert issue.file or fault.runs or issue.code.startswith("checker")
    assert len({issue.run for issue in found if issue.run}) == fault.runs
    assert made.verdict.gates
    assert made.folder == ""
    assert not (tmp_path / "out").exists()
    assert list(tmp_path.glob(".out*")) == []


@pytest.mark.slow
def test_a_run_whose_log_shows_no_end_is_no_failed_run(tmp_path: Path, system_file: Any) -> None:
    """The end may be missing because the log was cut, so the log does not show that the run failed."""
    results = tmp_path / "results"
    make_runs(results, 9)
    make_run(results, 9, status=None, verdict=Verdict.FAIL)
    made = build_submission(all_runs(results), load_system_file(system_file()), tmp_path / "out")
    assert made.verdict is Verdict.UNPROVEN
    assert "failure_not_shown" in {issue.code for issue in made.issues}


@pytest.mark.slow
def test_one_failed_run_is_packed_and_named(tmp_path: Path, system_file: Any) -> None:
    """Olympic scoring drops the slowest run, and a failed run counts as the slowest."""
    results = tmp_path / "results"
    make_runs(results, 9)
    bad = make_run(results, 9, status="aborted", verdict=Verdict.FAIL)
    made = build_submission(all_runs(results), load_system_file(system_file()), tmp_path / "out")
    assert made.verdict is Verdict.PASS, made.issues
    assert made.benchmarks[0].minutes == pytest.approx(sum(10 + number / 10 for number in range(1, 9)) / 8)
    (issue,) = [issue for issue in made.issues if issue.code == "run_counts_as_slowest"]
    assert (issue.run, issue.verdict) == (bad.run_id, None)
    assert (tmp_path / "out").is_dir()


def test_every_code_is_documented(root: Path) -> None:
    text = (root / "docs/using/submission.md").read_text()
    sources = (root / "src/rackproof/analysis/submission").glob("*.py")
    codes = {code for path in sources for code in re.findall(r'code="(\w+)"', path.read_text())}
    assert {fault.code for fault in FAULTS.values()} < codes
    assert {code for code in codes if f"`{code}`" not in text} == set()


def test_an_issue_names_where_and_what_to_do() -> None:
    issue = Issue(code="x", message="it is wrong", remedy="mend it", run="r", file="f")
    assert (issue.place, issue.text) == ("run r, f", "it is wrong. To do: mend it")
