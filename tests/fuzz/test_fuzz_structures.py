"""Test the readers of other inputs than logs with damaged inputs, such as journals, answers and definitions.

tests/fuzz/structures.py describes the inputs and tries many more. The tests here also check single inputs,
and that the time of a reader is linear in the size of its input.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from rackproof.core import definitions
from rackproof.core.definitions import DefinitionError
from rackproof.core.judging import SkuReferenceError, sku_references
from rackproof.jobs.bench import tasks as bench_tasks
from rackproof.jobs.bench.tasks import BenchError
from rackproof.jobs.reimage import run_files
from rackproof.jobs.reimage.lifecycle import STEPS, Entry
from rackproof.jobs.reimage.run_files import JournalError, append_entry, encode_entry, parse_journal
from rackproof.logs import FORMATS
from rackproof.nodes.answer_seal import answer_is_whole, sealed_answer
from rackproof.nodes.health_checks import check_node
from rackproof.nodes.snapshot import build_snapshot
from tests.fuzz import night_evidence
from tests.fuzz.edits import edited, places
from tests.fuzz.samples import definition_of, healthy_answer, run_sub_log
from tests.fuzz.structures import BASES, STRUCTURES, Structure, check_health, check_journals


@pytest.mark.parametrize("structure", STRUCTURES, ids=lambda structure: structure.name)
def test_any_input_is_read_or_refused(structure: Structure) -> None:
    @settings(max_examples=150, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
    @given(structure.inputs())
    def one_input(drawn: Any) -> None:
        structure.check_in_time(drawn)

    one_input()


@pytest.mark.parametrize("entry", ["x", None, 7, ["metric"]])
def test_a_baseline_that_is_no_mapping_is_refused_in_words(entry: Any) -> None:
    with pytest.raises(SkuReferenceError, match="h200: entry 1: a reference is a mapping of keys"):
        sku_references("h200", [entry])


@pytest.mark.parametrize("value", [10**30, -(10**400), 2**63, [1, 2**64]])
def test_a_parameter_beyond_64_bits_is_refused(value: Any) -> None:
    with pytest.raises(BenchError, match="finite number"):
        bench_tasks._values("batch", value)


def test_a_number_of_hundreds_of_digits_in_text_stays_text() -> None:
    assert bench_tasks._values("batch", "9" * 400) == ("9" * 400,)


@pytest.mark.parametrize(
    "text",
    [
        'name: fuzzed\nsummary: "\\ud800"\n',
        "[" * 5000,
        "a: " + "{b: " * 3000,
        "name: " + "9" * 5000 + "\n",
    ],
)
def test_a_definition_of_any_characters_and_depth_is_refused_with_its_file(tmp_path: Path, text: str) -> None:
    path = tmp_path / "fuzzed.yml"
    path.write_text(text)
    with pytest.raises(DefinitionError, match=r"fuzzed\.yml"):
        definitions.load_definition(path, log_formats=FORMATS)


# If an answer lost the report of a fault on its way, the node would look healthy, so answers have a seal.


def test_whatever_an_answer_loses_is_found() -> None:
    answer = healthy_answer(0)
    assert answer_is_whole(answer)
    assert not check_node(build_snapshot("n1", answer, whole=answer_is_whole(answer)))
    for number, place in enumerate(places(answer)):
        for kind in (0, 1):
            damaged = edited(answer, [(number, kind, None)])
            if damaged in (answer, {key: value for key, value in answer.items() if key != "seal"}):
                continue
            assert not answer_is_whole(damaged), place
            snapshot = build_snapshot("n1", damaged, whole=False)
            assert "answer_cut" in {one.code for one in check_node(snapshot)}


def test_what_is_no_text_may_be_replaced_on_its_way() -> None:
    answer = sealed_answer({"name": "a\udcff\u20acb", "more": 1.5})
    assert answer_is_whole({**answer, "name": "a?\u20acb"})
    assert answer_is_whole({**answer, "name": "a\ufffd\u20acb"})
    assert not answer_is_whole({**answer, "name": "a\u20acb"})


@pytest.mark.parametrize("place", ["failed_units", "units", "clock", "kernel_log", "nvlink_status"])
def test_a_tool_s_answer_that_is_taken_away_never_makes_a_node_better(place: str) -> None:
    for base, answer in enumerate(BASES):
        number = next(number for number, one in enumerate(places(answer)) if one[-1] == place)
        for kind in (0, 1, 2):
            check_health((base, True, [(number, kind, None)]))


def test_less_evidence_of_a_night_is_never_a_better_verdict() -> None:
    assert night_evidence.try_mutations(seed=30, count=600) == []


# Journals.


def test_lines_that_are_lost_repeated_or_swapped_are_a_damage(tmp_path: Path) -> None:
    path = tmp_path / "n1.journal"
    at = datetime(2026, 11, 22, tzinfo=UTC)
    for step in STEPS[:5]:
        append_entry(path, Entry(at=at, event="begun", step=step))
    lines = path.read_bytes().splitlines(keepends=True)
    assert len(run_files.read_journal(path)) == 5
    for changed in (
        [*lines[:2], *lines[3:]],
        lines[1:],
        [*lines[:3], lines[2], *lines[3:]],
        [lines[0], lines[2], lines[1], *lines[3:]],
        [*lines, lines[0]],
    ):
        with pytest.raises(JournalError, match="is damaged in line"):
            parse_journal(b"".join(changed), "n1.journal")


def test_a_journal_of_an_earlier_version_is_read_and_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "n1.journal"
    at = datetime(2026, 11, 22, tzinfo=UTC)
    entries = [Entry(at=at, event="begun", step=step) for step in STEPS[:4]]
    path.write_bytes(b"".join(encode_entry(entry) for entry in entries[:2]))
    for entry in entries[2:]:
        append_entry(path, entry)
    assert list(run_files.read_journal(path)) == entries
    check_journals((True, [(3, 0, b"")]))


# The time of readers.


def _seconds(work: Any) -> float:
    """Return the processor seconds of the fastest of three calls."""
    best = 1e9
    for _ in range(3):
        begin = time.thread_time()
        work()
        best = min(best, time.thread_time() - begin)
    return best


def _log_of(lines: int) -> dict[str, Any]:
    answer = healthy_answer(0)
    text = "".join(
        f"179499{number:04d}.0 n kernel: NVRM: Xid (PCI:0000:06:00): 13, x\n" for number in range(lines)
    )
    answer["health"]["tools"]["kernel_log"]["stdout"] = text
    return answer


def _definition_with(rules: int, folder: Path) -> Path:
    import json

    base = definition_of(0)
    base["result"]["judge"] = [{"metric": f"m{number}", "at_least": 1} for number in range(rules)]
    path = folder / "fuzzed.yml"
    path.write_text(json.dumps(base))
    return path


@pytest.mark.parametrize("name", ["kernel_log", "journal", "definition", "run_sub"])
def test_twice_the_input_takes_twice_the_time(name: str, tmp_path: Path) -> None:
    from rackproof.logs.run_sub import RunSubReader, run_sub_findings

    at = datetime(2026, 11, 22, tzinfo=UTC)

    def work(size: int) -> Any:
        if name == "kernel_log":
            answer = _log_of(400 * size)
            return lambda: build_snapshot("n1", answer)
        if name == "journal":
            data = run_files.encode_entries(
                Entry(at=at, event="begun", step=STEPS[0]) for _ in range(200 * size)
            )
            return lambda: parse_journal(data, "x")
        if name == "definition":
            path = _definition_with(20 * size, tmp_path)
            return lambda: definitions.load_definition(path, log_formats=FORMATS)
        lines = run_sub_log().encode().splitlines() * (20 * size)

        def read() -> None:
            reader = RunSubReader()
            for number, line in enumerate(lines, 1):
                reader.line(number, line)
            run_sub_findings(reader.result(), ("n1", "n2", "n3"), 4)

        return read

    small, large = _seconds(work(2)), _seconds(work(16))
    # The input is eight times as large. Quadratic work would take 64 times as long.
    assert large < 24 * small + 0.05, (small, large)
