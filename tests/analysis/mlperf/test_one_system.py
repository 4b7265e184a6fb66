"""Test the checks that the runs of one MLPerf result share a system and hyperparameters.

A result has several runs on one system, which the submission describes. A log states its system in several
places. Logs that contradict each other or the description are unproven. Published spellings that differ are
no contradiction (rackproof.analysis.mlperf.repeats and described). Seeds are tested here, too.
"""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

from rackproof.analysis.mlperf.described import DescribedSystem, description_findings
from rackproof.analysis.mlperf.repeats import RunTrace, compare_runs, trace_of_events
from rackproof.analysis.mlperf.score import RcpResult, RunScore, WorkerReport, score_of_report
from rackproof.analysis.mlperf.worker import _launcher_facts
from rackproof.core.records import Finding, Source, Verdict

PRINTED = {
    "division": "closed",
    "number_of_nodes": "8",
    "accelerators_per_node": "8",
    "accelerator_model_name": "NVIDIA H100 80GB HBM3",
}
"""The system that a run script prints into a log."""
DESCRIBED = DescribedSystem("NVIDIA H100-SXM5-80GB", gpus=64, nodes=8, division="closed")
STATED = {
    "submission_platform": "8xPLACEHOLDER",
    "submission_org": "us",
    "submission_division": "closed",
    "submission_status": "onprem",
}
"""The events of a log that state its submitter and its system, by key."""
SETTINGS = {
    "opt_base_learning_rate": 0.0004,
    "opt_learning_rate_training_steps": 1024,
    "opt_learning_rate_warmup_steps": 100,
    "gradient_accumulation_steps": 1,
    "opt_name": "adamw",
    "lora_rank": 16,
}


def run(
    number: int,
    lines: list[str] | None = None,
    *,
    benchmark: str = "llama2_70b_lora",
    seed: Any = None,
    **stated: Any,
) -> RunTrace:
    """Return the trace of a run whose log states these values, and whose launcher printed these lines."""
    values = STATED | SETTINGS | stated
    events = [(1.0, key, value, {}) for key, value in values.items() if value is not None]
    events.append((2.0, "seed", number if seed is None else seed, {}))
    trace = trace_of_events(f"result_{number}.txt", events, benchmark=benchmark)
    launch = _launcher_facts(io.BytesIO("\n".join(lines or []).encode()))
    trace.nodes, trace.node_count, trace.stated_nodes, _, trace.printed = launch
    return trace


def line(**changes: str) -> str:
    """Return the line that a run script prints about its system."""
    return f":::SYSJSON {json.dumps(PRINTED | changes)}"


def found_in(
    traces: list[RunTrace], described: DescribedSystem | None = None, ruleset: str = "5.1.0"
) -> list[tuple[str, str | None]]:
    """Return the code and the log of each finding that is not a remark."""
    found = compare_runs(traces, ruleset=ruleset, usage="training", described=described)
    assert all(one.verdict in (None, Verdict.UNPROVEN) for one in found)
    return [(one.code, one.source.file if one.source else None) for one in found if one.verdict]


@pytest.mark.parametrize(
    ("changes", "described"),
    [
        ({"number_of_nodes": "16"}, DESCRIBED),
        ({"number_of_nodes": "1"}, DESCRIBED),
        ({"accelerators_per_node": "4"}, DESCRIBED),
        ({}, DescribedSystem(DESCRIBED.gpu, gpus=32, nodes=8, division="closed")),
        ({"accelerator_model_name": "NVIDIA H200"}, DESCRIBED),
        ({"accelerator_model_name": "AMD Instinct MI300X"}, DESCRIBED),
        ({}, DescribedSystem("NVIDIA Blackwell GPU (GB200)", gpus=64, nodes=8, division="closed")),
        ({"division": "open"}, DESCRIBED),
    ],
)
def test_a_printed_system_unlike_the_description_is_unproven(
    changes: dict[str, str], described: DescribedSystem
) -> None:
    traces = [run(number, [line(**changes)]) for number in range(10)]
    assert found_in(traces, described) == [("system_contradicts", "result_0.txt")]
    assert found_in(traces) == []
    assert found_in([run(number, [line()]) for number in range(10)], DESCRIBED) == []
    assert found_in([run(number) for number in range(10)], DESCRIBED) == []


@pytest.mark.parametrize(
    ("count", "words"),
    [(1, "description closed: the system"), (2, ", as does 1 other log:"), (3, ", as do 2 other logs:")],
)
def test_a_message_counts_the_other_logs_with_the_same_contradiction(count: int, words: str) -> None:
    traces = [run(number, [line(division="open")]) for number in range(count)]
    (found,) = description_findings(traces, DESCRIBED)
    assert words in found.message
    # A log that prints two descriptions with this contradiction is still one log.
    other = line(division="open", framework="another")
    (found,) = description_findings([run(0, [line(division="open"), other]), *traces[1:]], DESCRIBED)
    assert words in found.message


@pytest.mark.parametrize(
    ("printed", "gpu"),
    [
        ("NVIDIA H200", "NVIDIA H200-SXM5-141GB"),
        ("NVIDIA B200", "NVIDIA Blackwell GPU (B200-SXM-180GB)"),
        ("Dell B200", "NVIDIA Blackwell GPU (B200-SXM-180GB)"),
        ("NVIDIA B300 SXM6 AC", "NVIDIA Blackwell Ultra GPU (B300-SXM-270GB)"),
        ("HGX GB200", "NVIDIA Blackwell GPU (GB200)"),
        ("NVIDIA GB300", "NVIDIA Blackwell Ultra GPU (GB300)"),
        ("Dell H200 NVL", "NVIDIA H200-NVL-141GB"),
        ("NVIDIA H100 NVL", "H100 NVL Tensor Core GPU (PCIe)"),
        # In one of the two texts, no model is recognised.
        ("NVIDIA Graphics Device", "NVIDIA Blackwell Ultra GPU (GB300)"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "NVIDIA RTX Pro 6000 SE PCIe 96GB"),
        ("UNKNOWN_GPU", "NVIDIA H100"),
    ],
)
def test_published_names_of_a_gpu_do_not_contradict_the_description(printed: str, gpu: str) -> None:
    traces = [run(number, [line(accelerator_model_name=printed)]) for number in range(3)]
    assert found_in(traces, DescribedSystem(gpu, gpus=64, nodes=8, division="closed")) == []


@pytest.mark.parametrize(
    ("platform", "lines", "described"),
    [
        # HPE's scripts of 5.0 and 5.1 print one node, and the launcher's line states the true number.
        ("box", [":::DLPAL /x.sqsh 31 8 n[1-8] HPE", line(number_of_nodes="1")], DESCRIBED),
        # Dell's machine of 5.0 has more GPUs than the run used. The platform states the number that it used.
        (
            "1xXE7745x4H200-NVL-141GB",
            [line(number_of_nodes="1", accelerator_model_name="Dell H200 NVL")],
            DescribedSystem("NVIDIA H200-NVL-141GB", gpus=4, nodes=1, division="closed"),
        ),
        # In Oracle's container of 5.0, nvidia-smi found no GPU, and the script counted its message as one.
        ("box", [line(accelerators_per_node="1", accelerator_model_name="No devices were found")], DESCRIBED),
        ("box", [line(number_of_nodes="", division="UNKNOWN_DIVISION")], DESCRIBED),
    ],
)
def test_the_output_of_published_scripts_is_no_contradiction(
    platform: str, lines: list[str], described: DescribedSystem
) -> None:
    traces = [run(number, lines, submission_platform=platform) for number in range(10)]
    assert found_in(traces, described) == []


@pytest.mark.parametrize(
    ("logged", "described", "contradicts"),
    [
        ("closed", "open", True),
        ("open", "closed", True),
        ("closed", "network", True),
        ("closed", "Closed", False),
        ("closed", "close", False),
        ("open", "Open", False),
        ("closed", "", False),
        (None, "open", False),
    ],
)
def test_a_division_unlike_the_description_is_unproven(
    logged: str | None, described: str, contradicts: bool
) -> None:
    traces = [run(number, submission_division=logged) for number in range(10)]
    found = found_in(traces, DescribedSystem("NVIDIA H100", gpus=64, nodes=8, division=described))
    assert found == [("system_contradicts", "result_0.txt")] * contradicts


@pytest.mark.parametrize(
    "changes",
    [
        {"number_of_nodes": "16"},
        {"number_of_nodes": ""},
        {"accelerators_per_node": "4"},
        {"accelerator_model_name": "NVIDIA H200"},
    ],
)
def test_a_run_that_prints_another_system_is_unproven(changes: dict[str, str]) -> None:
    traces = [run(number, [line(**changes) if number == 3 else line()]) for number in range(10)]
    assert found_in(traces) == [("systems_differ", "result_3.txt")]


@pytest.mark.parametrize(
    "second",
    [{"number_of_nodes": "16"}, {"accelerator_model_name": "NVIDIA H200"}, {"host_networking": "another"}],
)
def test_a_log_that_prints_two_systems_is_unproven(second: dict[str, str]) -> None:
    traces = [run(number, [line(), *[line(**second)] * (number == 3)]) for number in range(10)]
    assert found_in(traces) == [("system_contradicts", "result_3.txt")]
    # Several ranks may print the same line.
    assert found_in([run(number, [line(), f"0: {line()}", f"1: {line()}"]) for number in range(10)]) == []


@pytest.mark.parametrize("status", ["cloud", "preview", "", None])
def test_a_run_that_states_another_availability_is_unproven(status: str | None) -> None:
    traces = [run(number, **({"submission_status": status} if number == 3 else {})) for number in range(10)]
    assert found_in(traces) == [("systems_differ", "result_3.txt")]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("opt_base_learning_rate", 0.0006),
        ("opt_learning_rate_training_steps", 800),
        ("opt_learning_rate_warmup_steps", 50),
        ("gradient_accumulation_steps", 2),
        ("opt_name", "sgd"),
        ("lora_rank", 8),
    ],
)
def test_a_run_with_another_hyperparameter_is_unproven(key: str, value: Any) -> None:
    traces = [run(number, **({key: value} if number == 3 else {})) for number in range(10)]
    (found,) = compare_runs(traces, ruleset="5.1.0", usage="training")
    assert (found.code, found.verdict) == ("hyperparameters_differ", Verdict.UNPROVEN)
    assert f"states {key} {value} (theirs is {SETTINGS[key]}), unlike the other runs" in found.message
    # The hyperparameters of rounds before HYPERPARAMETERS_SINCE and of the open division are not judged.
    assert found_in(traces, ruleset="3.0.0") == []
    open_runs = [
        run(number, submission_division="open", **({key: value} if number == 3 else {}))
        for number in range(10)
    ]
    assert found_in(open_runs) == []


@pytest.mark.parametrize(
    ("training", "key", "value"),
    [
        ("llama2_70b_lora", "opt_base_learning_rate", "4e-4"),
        ("llama2_70b_lora", "opt_learning_rate_training_steps", 1024.0),
        ("llama2_70b_lora", "opt_name", None),
        ("llama2_70b_lora", "max_steps", 500),
        ("llama2_70b_lora", "train_samples", 7),
        # In Google's published result of 4.1, two runs differ in this value.
        ("stable_diffusion", "opt_learning_rate_warmup_steps", 99),
    ],
)
def test_harmless_differences_between_runs_are_no_finding(training: str, key: str, value: Any) -> None:
    traces = [
        run(number, benchmark=training, **({key: value} if number == 3 else {})) for number in range(10)
    ]
    assert found_in(traces) == []


@pytest.mark.parametrize("seed", ["x", "", "0x1f", "1.5", True, float("nan"), [1]])
def test_a_run_whose_seed_is_not_a_whole_number_is_unproven(seed: Any) -> None:
    traces = [run(number, seed=seed if number == 3 else None) for number in range(10)]
    (found,) = compare_runs(traces, ruleset="5.1.0", usage="training")
    assert (found.code, found.verdict) == ("no_seed", Verdict.UNPROVEN)
    assert "is not a whole number" in found.message
    assert str(found.source) == "result_3.txt"


@pytest.mark.parametrize("seed", ["1234", 1234.0, -5, 2**63])
def test_a_seed_may_be_written_in_several_ways(seed: Any) -> None:
    assert found_in([run(number, seed=seed if number == 3 else None) for number in range(10)]) == []


def damaged_report(damaged: int, rcp: RcpResult) -> WorkerReport:
    """Return a report on ten runs, of which one has some damaged lines."""
    runs = tuple(
        RunScore(
            file=f"result_{number}.txt",
            sha256=str(number),
            digest=str(number),
            minutes=10 + number / 10,
            status="success",
            compliant=True,
            events=9,
            benchmark="llama2_70b_lora",
        )
        for number in range(10)
    )
    findings = tuple(
        Finding(code="damaged_line", message="not JSON", source=Source(file="result_3.txt", line=40 + number))
        for number in range(damaged)
    )
    return WorkerReport(runs=runs, runs_needed=10, rcp=rcp, findings=findings)


@pytest.mark.parametrize("damaged", [1, 3, 5])
def test_a_damaged_line_is_the_first_reason_if_the_rcp_checker_crashes(damaged: int) -> None:
    crashed = RcpResult(applies=True, message="the RCP checker crashed: UnboundLocalError")
    score = score_of_report(damaged_report(damaged, crashed), folder="x", ruleset="5.1.0")
    assert score.verdict is Verdict.UNPROVEN
    assert score.reasons[0] == "result_3.txt:40: not JSON"
    assert score.reasons.count("result_3.txt:40: not JSON") == 1
    assert "UnboundLocalError" in score.reasons[min(damaged, 3)]


@pytest.mark.parametrize("damaged", [1, 3, 5])
def test_damaged_lines_alone_do_not_prevent_a_pass(damaged: int) -> None:
    report = damaged_report(damaged, RcpResult(applies=True, passed=True))
    assert score_of_report(report, folder="x", ruleset="5.1.0").verdict is Verdict.PASS


@pytest.mark.parametrize("key", ["accelerator_model_name", "division", "number_of_nodes"])
def test_an_object_in_place_of_a_printed_value_is_a_contradiction(key: str) -> None:
    text = f":::SYSJSON {json.dumps({**PRINTED, key: {'a': 'NVIDIA H200'}})}"
    traces = [run(number, [text]) for number in range(10)]
    assert {code for code, _ in found_in(traces, DESCRIBED)} == {"system_contradicts"}
