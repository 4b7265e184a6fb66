"""Test that copies of a run, and runs that took longer than their logs state, are found.

A result needs several runs. MLPerf's tool checks each log by itself, so ten copies of one log comply as well.
These tests edit logs as a person with too few or too slow runs might. They check that
:mod:`rackproof.analysis.mlperf.repeats` finds copies, impossible times, overlapping runs of a node, speeds
beyond the GPUs' peak, and systems that differ.
"""

from __future__ import annotations

import io
import json
import math
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rackproof import logs
from rackproof.analysis.mlperf.described import DescribedSystem
from rackproof.analysis.mlperf.repeats import (
    RunTrace,
    compare_runs,
    trace_of_events,
    undescribed_findings,
)
from rackproof.analysis.mlperf.score import FolderScore, score_folder
from rackproof.analysis.mlperf.worker import _launcher_facts, read_description
from rackproof.core.records import Verdict
from rackproof.core.training_limits import fastest_possible, fastest_published

from .samples import START_MS, event, fill, result, write

Lines = list[str]
_EVALUATION = r'("eval_accuracy", "value": )([0-9.]+)'


def long_result(number: int = 0, *, seed: int | None = None, minutes: float = 10.0) -> Lines:
    """Return a log with statistics and evaluations as in a real log. Each number gives other values."""
    own = random.Random(number)
    lines = result(seed if seed is not None else number, minutes=minutes)
    # The statistics and earlier evaluations of the sample are replaced.
    lines = [line for line in lines if '"samples_count": 1728' not in line and "tracked_stats" not in line]
    start = START_MS + (seed if seed is not None else number) * 10_000_000
    step = minutes * 60_000 / 20
    inner = []
    for part in range(1, 19):
        at = start + round(step * part + own.uniform(-200, 200))
        inner.append(
            event(
                at, "tracked_stats", {"train_loss": own.uniform(4, 6), "throughput": 5.6 + own.random() / 3}
            )
        )
        if part % 3 == 0 and part > 9:
            count = round(3456 * part / 20 / 8) * 8
            inner.append(event(at + 5, "eval_start", samples_count=count))
            inner.append(event(at + 5, "eval_accuracy", 0.93 + own.random() / 50, samples_count=count))
            inner.append(event(at + 5, "eval_stop", samples_count=count))
    cut = next(index for index, line in enumerate(lines) if '"block_stop"' in line)
    lines = [*lines[:cut], *inner, *lines[cut:]]
    return [line.replace('"value": 0.92,', f'"value": {0.92 - own.random() / 100},') for line in lines]


def shifted(lines: Lines, milliseconds: float, **seed: int) -> Lines:
    """Return the log with its times moved, and with another seed if one is given."""
    moved = [
        re.sub(r'"time_ms": (\d+)', lambda match: f'"time_ms": {int(match[1]) + milliseconds}', line)
        for line in lines
    ]
    return (
        [re.sub(r'("seed", "value": )\d+', rf"\g<1>{seed['seed']}", line) for line in moved]
        if seed
        else moved
    )


def copies(change: Callable[[Lines, int], Lines]) -> Callable[[Path], None]:
    """Return a function that fills a folder with a log and nine altered copies of it."""

    def write_all(folder: Path) -> None:
        base = long_result(0)
        write(folder / "result_0.txt", base)
        for number in range(1, 10):
            write(folder / f"result_{number}.txt", change(list(base), number))

    return write_all


def reformatted(lines: Lines, number: int) -> Lines:
    """Return a later copy with another seed, and with other spaces and key orders in its events."""
    out = []
    for line in shifted(lines, number * 3_600_000, seed=number):
        head, token, body = line.partition(":::MLLOG ")
        if token:
            items = list(json.loads(body).items())
            random.Random(number).shuffle(items)
            body = json.dumps(dict(items), separators=(",", ":"))
        out.append(head + token + body)
    return out


def thinned(lines: Lines, number: int) -> Lines:
    """Return a copy without a third of its statistics."""
    own = random.Random(number)
    kept = [line for line in lines if "tracked_stats" not in line or own.random() > 0.33]
    return shifted(kept, number * 7_200_000, seed=number)


def stretched(lines: Lines, number: int) -> Lines:
    """Return a copy whose clock runs faster. A higher number makes it faster."""

    def later(match: re.Match[str]) -> str:
        elapsed = (int(match[1]) - START_MS) * (1 + number / 500)
        return f'"time_ms": {round(START_MS + elapsed) + number * 9_000_000}'

    return [re.sub(r'"time_ms": (\d+)', later, line) for line in shifted(lines, 0, seed=number)]


def other_losses(lines: Lines, number: int) -> Lines:
    """Return a later copy with other losses and accuracies at the same intervals."""
    own = random.Random(number)
    text = [re.sub(r'("train_loss": )[0-9.]+', rf"\g<1>{own.uniform(4, 6)}", line) for line in lines]
    text = [
        re.sub(r'("eval_accuracy", "value": )[0-9.]+', rf"\g<1>{0.92 - own.random() / 50}", line)
        for line in text
    ]
    return shifted(text, number * 3_600_000, seed=number)


def other_evaluations(folder: Path) -> None:
    """Fill a folder with ten runs, of which one has the evaluations of another."""
    genuine(folder)
    lines = [(folder / f"result_{number}.txt").read_text().splitlines() for number in range(2)]
    values = iter([re.findall(_EVALUATION, line)[0][1] for line in lines[0] if re.search(_EVALUATION, line)])
    copied = [re.sub(_EVALUATION, lambda found: found[1] + next(values, found[2]), line) for line in lines[1]]
    write(folder / "result_1.txt", copied)


def genuine(folder: Path) -> None:
    """Fill a folder with ten runs that differ as real runs do."""
    for number in range(10):
        write(folder / f"result_{number}.txt", long_result(number, minutes=10 + number / 50))


def score(folder: Path) -> FolderScore:
    """Return the score of a folder by the rules 5.1.0."""
    return score_folder(folder, ruleset="5.1.0")


def codes(found: FolderScore) -> set[str]:
    """Return the codes of the findings that gate the score."""
    return {one.code for one in found.findings if one.verdict is not None and one.verdict.gates}


def test_ten_genuine_runs_pass(tmp_path: Path) -> None:
    genuine(tmp_path)
    found = score(tmp_path)
    assert (found.verdict, [one.code for one in found.findings]) == (Verdict.PASS, ["no_description"])
    (reason,) = found.reasons
    assert "no systems/SYSTEM.json describes the accelerators" in reason


@pytest.mark.slow
@pytest.mark.parametrize(
    ("filling", "code"),
    [
        pytest.param(copies(lambda lines, n: shifted(lines, n)), "same_seed", id="a millisecond later"),
        pytest.param(
            copies(lambda lines, n: shifted(lines, n * 10**7, seed=n)), "same_run", id="other seeds"
        ),
        pytest.param(copies(reformatted), "same_run", id="keys in another order"),
        pytest.param(copies(thinned), "same_run", id="lines dropped"),
        pytest.param(copies(stretched), "same_run", id="a faster clock"),
        pytest.param(copies(other_losses), "same_run", id="other values at the same intervals"),
        pytest.param(
            copies(lambda lines, n: long_result(n) if n < 9 else shifted(lines, 10**8, seed=99)),
            "same_run",
            id="a single copy among ten",
        ),
        pytest.param(other_evaluations, "same_run", id="the evaluations of another run"),
    ],
)
def test_copies_of_one_run_are_unproven(tmp_path: Path, filling: Callable[[Path], None], code: str) -> None:
    filling(tmp_path)
    found = score(tmp_path)
    assert found.verdict is Verdict.UNPROVEN
    assert code in codes(found)


def each(change: Callable[[Lines], Lines]) -> Callable[[Path], None]:
    """Return a function that fills a folder with ten runs, each of them changed."""

    def write_all(folder: Path) -> None:
        for number in range(10):
            write(folder / f"result_{number}.txt", change(long_result(number, minutes=10 + number / 50)))

    return write_all


def at(lines: Lines, key: str) -> int:
    """Return the time of the first event with this key, in milliseconds."""
    line = next(line for line in lines if f'"key": "{key}"' in line)
    match = re.search(r'"time_ms": (\d+)', line)
    assert match
    return int(match[1])


def late_start(lines: Lines) -> Lines:
    """Return the log with its run_start a second before its end, but on its old line."""
    start = event(at(lines, "run_stop") - 1000, "run_start")
    return [start if '"run_start"' in line else line for line in lines]


def late_start_in_order(lines: Lines) -> Lines:
    """Return the log with its run_start a second before its end, with the lines in order of time."""
    stop = at(lines, "run_stop")
    start = event(stop - 1000, "run_start")
    lines = [line for line in lines if '"run_start"' not in line]
    place = next(i for i, line in enumerate(lines) if '"block_stop"' in line)
    return [*lines[:place], start, *lines[place:]]


def half_of_the_course(lines: Lines) -> Lines:
    """Return the log with its run_start in the middle, and without the training before it."""
    stop, begun = at(lines, "run_stop"), at(lines, "run_start")
    middle = (stop + begun) // 2
    out = []
    for line in lines:
        match = re.search(r'"time_ms": (\d+)', line)
        time = int(match[1]) if match else 0
        if '"run_start"' in line or '"block_start"' in line:
            line = re.sub(r'"time_ms": \d+', f'"time_ms": {middle}', line)
        elif begun <= time < middle:
            continue
        out.append(line)
    return out


def squeezed(lines: Lines) -> Lines:
    """Return the log as if the whole training had taken a second."""
    start, stop = at(lines, "run_start"), at(lines, "run_stop")

    def sooner(match: re.Match[str]) -> str:
        time = int(match[1])
        return f'"time_ms": {time if time < start else start + (time - start) * 1000 // (stop - start)}'

    return [re.sub(r'"time_ms": (\d+)', sooner, line) for line in lines]


def early_stop(lines: Lines) -> Lines:
    """Return the log with its run_stop 30 s before its last evaluation."""
    first = at(lines, "eval_accuracy")
    last = max(
        int(t) for line in lines if "eval_accuracy" in line for t in re.findall(r'"time_ms": (\d+)', line)
    )
    assert first <= last
    return [
        re.sub(r'"time_ms": \d+', f'"time_ms": {last - 30_000}', line) if '"run_stop"' in line else line
        for line in lines
    ]


def early_stop_in_order(lines: Lines) -> Lines:
    """Return the log with its run_stop before the last evaluation, with the lines in order of time."""
    moved = early_stop(lines)
    stop = next(line for line in moved if '"run_stop"' in line)
    others = [line for line in moved if line is not stop]
    place = next(i for i, line in enumerate(others) if '"block_stop"' in line)
    return [*others[:place], stop, *others[place:]]


def second_start(lines: Lines) -> Lines:
    """Return the log followed by a run that never stops."""
    return [*lines, event(at(lines, "run_stop") + 5000, "run_start")]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("filling", "expected"),
    [
        pytest.param(each(late_start), {"training_before_run_start"}, id="run_start late"),
        # MLPerf's own checker refuses these logs, so they fail without a finding.
        pytest.param(each(late_start_in_order), set(), id="run_start late, in order"),
        pytest.param(each(half_of_the_course), {"implausible_speed"}, id="half of the course removed"),
        pytest.param(each(squeezed), {"implausible_speed"}, id="all of it in a second"),
        pytest.param(each(early_stop), {"events_out_of_order"}, id="run_stop 30 s early"),
        pytest.param(each(early_stop_in_order), {"events_after_run_stop"}, id="run_stop early, in order"),
        pytest.param(each(second_start), {"several_runs"}, id="followed by a run that never stops"),
    ],
)
def test_impossible_times_do_not_pass(
    tmp_path: Path, filling: Callable[[Path], None], expected: set[str]
) -> None:
    filling(tmp_path)
    found = score(tmp_path)
    assert found.verdict is (Verdict.UNPROVEN if expected else Verdict.FAIL)
    assert expected <= codes(found)


@pytest.mark.slow
@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(lambda lines, n: [line for line in lines if '"seed"' not in line], id="no seeds at all"),
        pytest.param(
            lambda lines, n: [line for line in lines if n or '"seed"' not in line],
            id="one run without a seed",
        ),
        pytest.param(
            lambda lines, n: [re.sub(r'("seed", "value": )\d+', r"\g<1>7", line) for line in lines],
            id="one seed",
        ),
        pytest.param(
            lambda lines, n: [
                re.sub(r'("seed", "value": )\d+', r'\g<1>"7"' if n else r"\g<1>7.0", line) for line in lines
            ],
            id="one seed, written in two ways",
        ),
    ],
)
def test_missing_or_equal_seeds_do_not_pass(tmp_path: Path, spoil: Callable[[Lines, int], Lines]) -> None:
    for number in range(10):
        write(tmp_path / f"result_{number}.txt", spoil(long_result(number, minutes=10 + number / 50), number))
    found = score(tmp_path)
    assert found.verdict.gates
    assert codes(found) & {"no_seed", "same_seed"}


# -- findings in traces, without MLPerf's tool --------------------------------------------------------


def trace(file: str, *, start: float = 0.0, seconds: float = 600.0, **facts: Any) -> RunTrace:
    """Return the trace of a run with four evaluations. ``facts`` replace its attributes."""
    events: list[tuple[float, str, Any, dict[str, Any]]] = [(start, "run_start", None, {})]
    for part in (1, 2, 3, 4):
        count = {"samples_count": 1000 * part}
        events.append((start + seconds * part / 4 - 1, "eval_accuracy", 0.5, count))
    events.append((start + seconds, "run_stop", None, {}))
    one = trace_of_events(file, events)
    one.seeds = {file}
    for name, value in facts.items():
        setattr(one, name, value)
    return one


def found_in(traces: list[RunTrace], ruleset: str = "5.1.0") -> dict[str, Verdict | None]:
    """Return the verdicts of the findings, by code."""
    return {one.code: one.verdict for one in compare_runs(traces, ruleset=ruleset, usage="training")}


# Start of the second run in seconds, nodes of both runs, and whether they overlap. The first run starts at 0
# and takes 600 s.
@pytest.mark.parametrize(
    ("second", "first_nodes", "second_nodes", "found"),
    [
        (700.0, {"n1", "n2"}, {"n1", "n2"}, False),
        (300.0, {"n1", "n2"}, {"n2", "n3"}, True),
        (300.0, {"n1", "n2"}, {"n3", "n4"}, False),
        (599.0, {"n1"}, {"n1"}, True),
        (-300.0, {"n1"}, {"n1"}, True),
        (300.0, set(), {"n1"}, False),
    ],
)
def test_a_node_does_one_run_at_a_time(
    second: float, first_nodes: set[str], second_nodes: set[str], found: bool
) -> None:
    traces = [
        trace("a", nodes=frozenset(first_nodes)),
        trace("b", start=second, seconds=620, nodes=frozenset(second_nodes)),
    ]
    assert ("overlapping_runs" in found_in(traces)) is found


@pytest.mark.parametrize(
    ("ruleset", "seeds", "verdicts"),
    [
        ("0.7.0", {"0"}, {"same_seed": None}),
        ("1.0.0", {"0"}, {"same_seed": Verdict.UNPROVEN}),
        ("2.1.0", set(), {"no_seed": None}),
        ("3.0.0", set(), {"no_seed": None}),
        ("4.1.0", set(), {"no_seed": Verdict.UNPROVEN}),
        ("6.1.0", set(), {"no_seed": Verdict.UNPROVEN}),
    ],
)
def test_the_verdict_on_missing_or_equal_seeds_depends_on_the_round(
    ruleset: str, seeds: set[str], verdicts: dict[str, Verdict | None]
) -> None:
    traces = [trace("a", seeds=seeds), trace("b", start=1000, seconds=620, seeds=seeds)]
    assert found_in(traces, ruleset) == verdicts


# Stated samples per second, duration in seconds, and whether this is found. The run trains 4,000 samples.
@pytest.mark.parametrize(
    ("throughput", "seconds", "found"),
    [(7.0, 600.0, False), (6.0, 600.0, False), (5.0, 600.0, True), (7.0, 300.0, True), (None, 600.0, False)],
)
def test_a_run_is_no_faster_than_it_states(throughput: float | None, seconds: float, found: bool) -> None:
    assert ("implausible_speed" in found_in([trace("a", seconds=seconds, throughput=throughput)])) is found


@pytest.mark.parametrize(
    ("trained", "ruleset", "train_samples", "throughput", "found"),
    [
        # Before round 2.0, an epoch has 117,266 images, which logs of 0.6 do not state: 78 images/s.
        ("ssd", "0.6.0", None, 80.0, False),
        ("ssd", "0.6.0", None, 40.0, True),
        ("ssd", "1.1.0", 117_266.0, 80.0, False),
        ("ssd", "1.1.0", 117_266.0, 40.0, True),
        # Later, an epoch has 1,170,301 images, and logs state batches: 780 images/s, or 98 per process.
        ("ssd", "4.1.0", 4572.0, 790.0, False),
        ("ssd", "4.1.0", 4572.0, 98.0, False),
        ("ssd", "4.1.0", 4572.0, 40.0, True),
        ("retinanet", "5.1.0", 4572.0, 98.0, False),
        ("retinanet", "5.1.0", 4572.0, 40.0, True),
        # HugeCTR states half of its speed, which is 80 samples/s in these rows.
        ("dlrm", "2.1.0", 120_000.0, 42.0, False),
        ("dlrm", "2.1.0", 120_000.0, 32.0, True),
        # A log may also state more than its run trains, but only up to a limit of the benchmark.
        ("resnet", "4.0.0", 120_000.0, 100.0, False),
        ("resnet", "4.0.0", 120_000.0, 200.0, True),
        ("unet3d", "1.0.0", 120_000.0, 160.0, False),
    ],
)
def test_the_samples_of_a_run_are_those_of_its_round(
    trained: str, ruleset: str, train_samples: float | None, throughput: float, found: bool
) -> None:
    one = trace("a", seconds=6000.0, benchmark=trained, amount_kind="epoch_num", throughput=throughput)
    one.amounts = [(time, count / 1000) for time, count in one.amounts]
    one.train_samples, one.system = train_samples, ("1xXE9680x8H100", "", "")
    assert ("implausible_speed" in found_in([one], ruleset)) is found


@pytest.mark.parametrize("silent", [1, 2, 4])
@pytest.mark.parametrize("name", ["throughput", "amount_kind"])
def test_each_run_must_state_what_most_runs_state(name: str, silent: int) -> None:
    """A run without its throughput may hide that it is faster than it states."""
    traces = [trace(str(at), start=at * 1000, seconds=600 + at, throughput=7.0) for at in range(9)]
    assert not found_in(traces)
    for one in traces[:silent]:
        setattr(one, name, type(getattr(one, name))())
    assert found_in(traces)["course_incomplete"] is Verdict.UNPROVEN
    # If most runs lack the value, their code does not log it.
    for one in traces:
        setattr(one, name, type(getattr(one, name))())
    assert "course_incomplete" not in found_in(traces)


@pytest.mark.parametrize("others", [1, 2, 4])
def test_runs_with_progress_in_another_amount_do_not_hide_a_fast_run(others: int) -> None:
    traces = [trace(str(at), start=at * 1000, seconds=600 + at) for at in range(9)]
    fast = trace("fast", start=20_000, seconds=180)
    assert "implausible_speed" in found_in([*traces, fast])
    for one in traces[:others]:
        one.amount_kind = "epoch_num"
    found = found_in([*traces, fast])
    assert "implausible_speed" in found
    assert found["course_incomplete"] is Verdict.UNPROVEN


def course(file: str, values: list[float], seconds: float) -> RunTrace:
    """Return a run with these evaluations, of which the first comes after the given time."""
    events: list[tuple[float, str, Any, dict[str, Any]]] = [(0.0, "run_start", None, {})]
    events += [(seconds * part**1.01, "eval_accuracy", one, {}) for part, one in enumerate(values, 1)]
    run = trace_of_events(file, [*events, (seconds * 100, "run_stop", None, {})])
    run.seeds = {file}
    return run


# Evaluations of each run, the part that the second run takes from the first, and whether it is found.
@pytest.mark.parametrize(
    ("own", "taken", "same"),
    [
        (10, (0, 0), False),
        (10, (3, 4), False),
        (10, (0, 2), True),
        (10, (3, 5), True),
        (30, (25, 30), True),
        (60, (58, 60), True),
    ],
)
def test_a_run_that_is_joined_from_parts_of_others_is_found(
    own: int, taken: tuple[int, int], same: bool
) -> None:
    """Half of the evaluations, or fewer, are those of another run. All times and the seed are new."""
    chance = random.Random(7)
    first = [chance.random() for _ in range(own)]
    second = [chance.random() for _ in range(own)]
    second[slice(*taken)] = first[slice(*taken)]
    assert ("same_run" in found_in([course("a", first, 60.1), course("b", second, 61.7)])) is same


def test_the_message_on_a_joined_run_counts_the_pairs_of_successive_evaluations() -> None:
    chance = random.Random(7)
    first = [chance.random() for _ in range(10)]
    second = [chance.random() for _ in range(10)]
    second[1:3], second[6:8] = first[1:3], first[6:8]
    found = compare_runs(
        [course("a", first, 60.1), course("b", second, 61.7)], ruleset="5.1.0", usage="training"
    )
    messages = [one.message for one in found if one.code == "same_run"]
    assert messages == ["b is a copy of a: 2 pairs of successive evaluations"]


# Evaluations that two runs share, and whether the runs count as one.
@pytest.mark.parametrize(
    ("values", "same"),
    [
        ([0.9218765432], True),
        ([0.92188], False),
        ([24.129999160766602], False),
        ([0.92188, 0.93112, 0.94001], True),
        ([0.1, 0.2, 0.3, 0.4], False),
    ],
)
def test_equal_values_show_a_copy_if_they_have_many_digits(values: list[float], same: bool) -> None:
    assert ("same_run" in found_in([course("a", values, 60.1), course("b", values, 61.7)])) is same


def test_a_run_much_faster_than_the_others_is_found() -> None:
    traces = [trace(str(number), start=number * 1000, seconds=600 + number) for number in range(4)]
    assert not found_in(traces)
    assert "implausible_speed" in found_in([*traces, trace("fast", start=9000, seconds=350)])


def test_overlaps_are_read_from_the_launchers_lines(tmp_path: Path) -> None:
    genuine(tmp_path)
    for number, start in ((3, 0), (4, 60_000)):
        lines = long_result(number, minutes=10 + number / 50)
        lines = shifted(lines, start - number * 10_000_000)
        write(tmp_path / f"result_{number}.txt", ["0: Clearing cache on n17", *lines])
    found = score(tmp_path)
    assert found.verdict is Verdict.UNPROVEN
    assert "overlapping_runs" in codes(found)
    assert any("n17" in reason for reason in found.reasons)


TIME_LIMIT = "slurmstepd: error: *** STEP 4.0 ON n1 CANCELLED AT 2025-10-08T00:32:36 DUE TO TIME LIMIT ***"
CANCELLED = "slurmstepd: error: *** STEP 4.0 ON n1 CANCELLED AT 2025-10-08T00:32:36 ***"
MEMORY = "7: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.16 GiB"
FAILED_TASK = "srun: error: n1: task 3: Exited with exit code 137"


@pytest.mark.slow
@pytest.mark.parametrize("line", [TIME_LIMIT, CANCELLED, MEMORY, FAILED_TASK])
def test_parse_and_score_agree_on_a_run_that_ended_early(tmp_path: Path, line: str) -> None:
    genuine(tmp_path)
    lines = long_result(0)
    stop = next(index for index, one in enumerate(lines) if '"run_stop"' in one)
    write(tmp_path / "result_0.txt", [*lines[:stop], line, *lines[stop:]])
    with (tmp_path / "result_0.txt").open("rb") as stream:
        parsed = logs.parse(stream)
    assert parsed.verdict is not Verdict.PASS
    assert score(tmp_path).verdict.gates is parsed.verdict.gates


def test_synthetic_runs_with_few_events_are_distinguished(tmp_path: Path) -> None:
    assert score(fill(tmp_path)).verdict is Verdict.PASS


@pytest.mark.parametrize(
    ("key", "other"),
    [
        ("submission_platform", "another-machine"),
        ("submission_platform", ""),
        ("submission_org", "somebody else"),
        ("submission_division", "open"),
    ],
)
def test_a_run_of_another_system_is_found(key: str, other: str) -> None:
    stated = {"submission_platform": "box", "submission_org": "us", "submission_division": "closed"}

    def trace(number: int, about: dict[str, str]) -> RunTrace:
        events = [(1.0, name, value, {}) for name, value in about.items()]
        return trace_of_events(f"result_{number}.txt", [*events, (2.0, "seed", number, {})])

    traces = [trace(number, stated) for number in range(8)] + [trace(8, stated | {key: other})]
    found = [
        one for one in compare_runs(traces, ruleset="5.1.0", usage="training") if one.code == "systems_differ"
    ]
    assert [one.source.file for one in found if one.source] == ["result_8.txt"]
    assert found[0].verdict is Verdict.UNPROVEN


@pytest.mark.parametrize(
    "line",
    [
        lambda nodes: [f":::DLPAL /images/lora.sqsh 31 {nodes} n[01-{nodes}] '' GB300 18x4"],
        lambda nodes: [f"Clearing cache on n{at:02}" for at in range(nodes)],
        lambda nodes: [f"{at}: Hello from: n{at:02}" for at in range(nodes)],
    ],
)
@pytest.mark.parametrize(("odd", "usual"), [(17, 18), (18, 17), (1, 2)])
def test_a_run_on_another_number_of_nodes_is_found(
    line: Callable[[int], list[str]], odd: int, usual: int
) -> None:
    def messages(of_one: list[str]) -> str:
        printed = [of_one if number == 3 else line(usual) for number in range(10)]
        traces = [on_nodes(number, lines) for number, lines in enumerate(printed)]
        found = list(compare_runs(traces, ruleset="5.1.0", usage="training"))
        assert all(one.verdict is Verdict.UNPROVEN for one in found)
        return " ".join(one.message for one in found if one.code == "nodes_differ")

    assert f"ran on {odd} nodes, but the other runs ran on {usual}" in messages(line(odd))
    assert f"states no number of nodes, but the other runs ran on {usual}" in messages([])
    assert messages(line(usual)) == ""


def on_nodes(number: int, lines: list[str]) -> RunTrace:
    """Return the trace of a run, with the nodes that the worker reads from these lines of its launcher."""
    one = trace_of_lines(f"result_{number}.txt", long_result(number))
    one.nodes, one.node_count, one.stated_nodes, *_ = _launcher_facts(io.BytesIO("\n".join(lines).encode()))
    return one


def test_a_score_compares_the_numbers_of_nodes_of_its_runs(tmp_path: Path) -> None:
    for number in range(10):
        head = f":::DLPAL /images/lora.sqsh 31 {17 if number == 3 else 18} n[01-18] '' GB300 18x4"
        write(tmp_path / f"result_{number}.txt", [head, *long_result(number)])
    mixed = score(tmp_path)
    assert mixed.verdict is Verdict.UNPROVEN
    assert "ran on 17 nodes, but the other runs ran on 18" in " ".join(mixed.reasons)


@pytest.mark.parametrize(
    "line",
    [
        "Traceback (most recent call last):",
        "srun: error: gpu-153: task 0: Segmentation fault (core dumped)",
        "slurmstepd: error: *** STEP 15.1 ON n3 CANCELLED AT 2025-04-30T01:52:49 DUE TO TIME LIMIT ***",
        "srun: error: node014: task 0: Exited with exit code 143",
        "torch.cuda.OutOfMemoryError: CUDA out of memory.",
    ],
)
def test_a_crash_after_the_end_is_a_remark_in_parse_and_score(tmp_path: Path, line: str) -> None:
    for number in range(10):
        write(tmp_path / f"result_{number}.txt", [*long_result(number), *([line] if number == 2 else [])])
    parsed = logs.parse_path(tmp_path / "result_2.txt")
    (found,) = {one.code for one in parsed.findings if one.code != "ugly_line"}
    score = score_folder(tmp_path, ruleset="5.1.0")
    assert (parsed.verdict, found in {one.code for one in score.findings}) == (Verdict.PASS, True)
    assert any(reason.startswith("result_2.txt") for reason in score.reasons)
    assert not any(one.verdict for one in score.findings if one.code == found)


# -- copies as traces: fast tests without MLPerf's checker --------------------------------------------


def trace_of_lines(file: str, lines: Lines) -> RunTrace:
    """Return the trace of a log, with its seeds."""
    events = [json.loads(line.partition(":::MLLOG ")[2]) for line in lines if ":::MLLOG " in line]
    one = trace_of_events(
        file, [(e["time_ms"] / 1000, e["key"], e["value"], e.get("metadata") or {}) for e in events]
    )
    one.seeds = {str(e["value"]) for e in events if e["key"] == "seed"}
    return one


def clocked(lines: Lines, clock: Callable[[float], float], seed: int) -> Lines:
    """Return the log with the times of another clock, a function of the milliseconds since START_MS."""

    def moved(match: re.Match[str]) -> str:
        return f'"time_ms": {START_MS + round(clock(int(match[1]) - START_MS))}'

    return [re.sub(r'"time_ms": (\d+)', moved, line) for line in shifted(lines, 0, seed=seed)]


@pytest.mark.parametrize(
    "clock",
    [
        lambda ms, n: ms - n * 3_600_001,
        lambda ms, n: ms + n * 86_400_000 * 40,
        lambda ms, n: ms + n * 7_777_777.5,
        lambda ms, n: ms * (1 - n / 25) + n * 9_000_000,
        lambda ms, n: ms * 0.97**n + n * 9_000_000,
        lambda ms, n: ms * 1.003**n + n * 9_000_000,
        lambda ms, n: ms + 900 * math.sin(ms / 20_000 + n) + n * 9_000_000,
        lambda ms, n: min(ms, 300_000) + max(ms - 300_000, 0) * 0.8 + n * 9_000_000,
    ],
    ids=[
        *("earlier", "forty days later", "later by half milliseconds"),
        *("compressed", "compressed by powers", "stretched", "wavering", "second part compressed"),
    ],
)
@pytest.mark.parametrize("seeds", [(1, 2, 3), (4711, 815, 42), (2**31 - 1, 7_000_000_001, 10**12)])
def test_copies_with_another_clock_and_other_seeds_are_found(
    clock: Callable[[float, int], float], seeds: tuple[int, ...]
) -> None:
    base = long_result(0)
    traces = [trace_of_lines("a", base)]
    for number, seed in enumerate(seeds, 1):
        copy = clocked(base, lambda ms, n=number: clock(ms, n), seed)
        traces.append(trace_of_lines(f"copy-{number}", copy))
    found = list(compare_runs(traces, ruleset="5.1.0", usage="training"))
    # Each copy is found as a copy, and not only by its speed.
    assert {one.source.file for one in found if one.code == "same_run" and one.source} == {
        *("copy-1", "copy-2", "copy-3")
    }
    genuine_ones = [trace_of_lines(str(n), long_result(n, minutes=10 + n / 50)) for n in range(10)]
    assert list(compare_runs(genuine_ones, ruleset="5.1.0", usage="training")) == []


# Benchmark, GPUs and their number, speed as a multiple of their peak, and whether it is found.
@pytest.mark.parametrize(
    ("model", "gpus", "factor", "found"),
    [
        ("llama31_8b", ("NVIDIA B200-SXM-180GB", 8), 0.4, False),
        ("llama31_8b", ("NVIDIA B200-SXM-180GB", 8), 1.1, True),
        ("llama2_70b_lora", ("NVIDIA Blackwell Ultra GPU (GB300)", 72), 1.1, True),
        ("flux1", ("NVIDIA H200-SXM5-141GB", 8), 2.0, True),
        ("flux1", ("TPU-v4", 8), 2.0, False),
        ("a_new_one", ("NVIDIA H200-SXM5-141GB", 8), 2.0, False),
    ],
)
def test_no_run_is_faster_than_its_gpus_can_be(
    model: str, gpus: tuple[str, int], factor: float, found: bool
) -> None:
    bound = fastest_possible(model, *gpus) or 1000.0
    samples = bound * factor * 600
    run = RunTrace("result_0.txt", model, start=0.0, stop=600.0)
    run.seeds, run.amount_kind = {"1"}, "samples_count"
    run.amounts = [(200.0, samples / 3), (400.0, samples / 1.5), (600.0, samples)]
    messages = [
        one.message
        for one in compare_runs(
            [run], ruleset="5.1.0", usage="training", described=DescribedSystem(*gpus, nodes=1)
        )
    ]
    assert any("at their peak" in one for one in messages) is found
    stated = RunTrace("result_1.txt", model, start=0.0, stop=1e6, throughput=bound * factor)
    messages = [
        one.message
        for one in compare_runs(
            [stated], ruleset="5.1.0", usage="training", described=DescribedSystem(*gpus, nodes=1)
        )
    ]
    assert any("at their peak" in one for one in messages) is found


@pytest.mark.parametrize(
    ("training", "gpus", "metadata", "late"),
    [
        ("stable_diffusion", ("NVIDIA H100-SXM5-80GB", 8), {"samples_count": 4_096_000}, True),
        ("stable_diffusion", ("NVIDIA H100-SXM5-80GB", 8), {"samples_count": 4_096_000}, False),
        ("bert", ("NVIDIA H100-SXM5-80GB", 8), {"epoch_num": 4_096_000}, False),
        ("llama2_70b_lora", ("NVIDIA H100-SXM5-80GB", 8), {"samples_count": 3_072}, False),
        ("stable_diffusion", ("TPU-trillium", 256), {"samples_count": 2_560_000}, True),
        ("gpt3", ("TPU-trillium", 512), {"epoch_num": 1_207_959_552}, False),
        ("gpt3", ("TPU-v5p", 6144), {"epoch_num": 1_459_617_792}, False),
        ("gpt3", ("Intel(R) Gaudi(R) 2 AI Accelerator", 1024), {"samples_count": 1_253_376}, False),
    ],
)
def test_a_run_is_compared_with_published_results_of_its_gpus(
    training: str, gpus: tuple[str, int], metadata: dict[str, int], late: bool
) -> None:
    """The run states no throughput, so only published results show its speed. It may be evaluated later."""
    seconds = next(iter(metadata.values())) / (fastest_published(training, *gpus) or 1)
    for times, found in ((1.0, False), (0.35, True)):
        stop = seconds * times
        events = [
            (0.0, "run_start", None, {}),
            (stop + (600 if late else -1), "eval_accuracy", 0.7, metadata),
            (stop, "run_stop", None, {"status": "success"}),
        ]
        run = trace_of_events("result_0.txt", sorted(events, key=lambda one: one[0]), benchmark=training)
        run.seeds = {"1"}
        said = compare_runs(
            [run], ruleset="4.0.0", usage="training", described=DescribedSystem(*gpus, nodes=1)
        )
        assert any("fastest published result of" in one.message for one in said) is found


def test_the_description_of_a_system_is_read_from_the_folder_of_a_round(tmp_path: Path) -> None:
    folder = tmp_path / "Org/results/rack/llama31_8b"
    description = tmp_path / "Org/systems/rack.json"
    folder.mkdir(parents=True)
    assert read_description(folder) == (None, "")
    description.parent.mkdir()
    assert read_description(folder) == (None, "systems/rack.json is missing")
    content = {"number_of_nodes": "18", "accelerators_per_node": "4", "accelerator_model_name": "GB300"}
    description.write_text(json.dumps(content))
    assert read_description(folder) == (DescribedSystem("GB300", gpus=72, nodes=18), "")
    # Intel's systems of round 3.1 have no accelerators.
    description.write_text(json.dumps(content | {"accelerators_per_node": "0"}))
    assert read_description(folder) == (DescribedSystem("GB300", gpus=0, nodes=18), "")


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{", "null", "\x00", "[" * 100_000, '{"number_of_nodes": 2}']
    + [
        json.dumps(
            {"number_of_nodes": 2, "accelerators_per_node": 8, "accelerator_model_name": "H100"} | {key: bad}
        )
        for key in ("number_of_nodes", "accelerators_per_node")
        for bad in (None, "two", "", -1, "nan", "1e400", [2])
    ],
)
def test_an_unusable_description_is_reported(tmp_path: Path, text: str) -> None:
    folder = tmp_path / "Org/results/rack/bert"
    folder.mkdir(parents=True)
    (tmp_path / "Org/systems").mkdir()
    (tmp_path / "Org/systems/rack.json").write_text(text)
    described, problem = read_description(folder)
    assert described is None
    assert "systems/rack.json" in problem


def test_a_description_without_accelerators_is_reported() -> None:
    run = RunTrace("result_0.txt", "bert", start=0.0, stop=600.0)
    run.seeds, run.stated_nodes = {"1"}, 4
    described = DescribedSystem("N/A", gpus=0, nodes=4)
    found = compare_runs([run], ruleset="5.1.0", usage="training", described=described)
    assert [one.message[:41] for one in found] == ["the description states no accelerators: i"]


@pytest.mark.parametrize(
    ("platform", "words"),
    [
        ("2xXE9680Lx8B200-SXM-180GB", "at most 16 B200"),
        ("18xNVIDIA GB300", "at most 1296 GB300"),
        ("tpu-trillium", "names no known one"),
        ("", "names no known one"),
    ],
)
def test_without_a_description_the_assumed_accelerators_are_stated(platform: str, words: str) -> None:
    run = RunTrace("result_0.txt", "bert", start=0.0, stop=600.0)
    run.seeds, run.system = {"1"}, (platform, "Org", "closed")
    (found,) = undescribed_findings([run])
    assert (found.code, found.verdict, words in found.message) == ("no_description", None, True)


def described_codes(platform: str, dlpal: int | None, described: DescribedSystem | None) -> set[str]:
    """Return the codes of the findings when three runs are compared with a description."""
    runs = []
    for at in range(3):
        run = RunTrace(f"result_{at}.txt", "bert", start=1e4 * at, stop=1e4 * at + 600)
        run.seeds, run.system, run.stated_nodes = {str(at)}, (platform, "Org", "closed"), dlpal
        runs.append(run)
    found = compare_runs(runs, ruleset="5.1.0", usage="training", described=described)
    assert all(one.verdict is Verdict.UNPROVEN for one in found if one.code == "system_contradicts")
    return {one.code for one in found}


@pytest.mark.parametrize(
    ("platform", "dlpal", "gpu", "nodes", "gpus", "found"),
    [
        ("18xNVIDIA GB300", 18, "NVIDIA Blackwell Ultra GPU (GB300)", 18, 72, set()),
        ("2xXE9680Lx8B200-SXM-180GB", 2, "NVIDIA Blackwell GPU (B200-SXM-180GB)", 2, 16, set()),
        ("8xB200", None, "NVIDIA B200", 1, 8, set()),
        ("tpu-trillium", None, "TPU-trillium", 64, 256, set()),
        ("1x7920T_2xA5000", None, "NVIDIA RTX A5000", 1, 2, set()),
        ("", 4, "NVIDIA H100", 4, 32, set()),
        # The description is of another system, or of another number of nodes or GPUs.
        ("18xNVIDIA GB300", 18, "NVIDIA Blackwell Ultra GPU (GB300)", 36, 144, {"system_contradicts"}),
        ("18xNVIDIA GB300", None, "NVIDIA Blackwell Ultra GPU (GB300)", 9, 36, {"system_contradicts"}),
        ("tpu-trillium", 32, "TPU-trillium", 64, 256, {"system_contradicts"}),
        ("", 2, "NVIDIA H100", 4, 32, {"system_contradicts"}),
        ("2xXE9680Lx8B200-SXM-180GB", None, "NVIDIA B200", 2, 8, {"system_contradicts"}),
        ("2xXE9680Lx8B200-SXM-180GB", None, "NVIDIA B200", 2, 32, {"system_contradicts"}),
        ("2xXE9680Lx8B200-SXM-180GB", None, "NVIDIA B200", 4, 32, {"system_contradicts"}),
        ("1xNVIDIA HGX H100", None, "NVIDIA H100", 1, 80, {"system_contradicts"}),
        ("18xNVIDIA GB200", 18, "NVIDIA Blackwell Ultra GPU (GB300)", 18, 72, {"other_accelerator"}),
    ],
)
def test_a_description_is_compared_with_the_logs(
    platform: str, dlpal: int | None, gpu: str, nodes: int, gpus: int, found: set[str]
) -> None:
    codes = {"system_contradicts", "other_accelerator"}
    assert described_codes(platform, dlpal, DescribedSystem(gpu, gpus=gpus, nodes=nodes)) & codes == found
    assert not described_codes(platform, dlpal, None) & codes


@pytest.mark.parametrize(
    ("training", "platform", "gpus"),
    [
        ("stable_diffusion", "1xXE9680x8H100-SXM-80GB", ("H100", 8)),
        ("llama31_8b", "1xXE9680Lx8B200-SXM-180GB", ("B200", 8)),
        ("ssd", "1xSR680aV3-8xH200_SXM", ("H200", 8)),
        ("retinanet", "16xXE9712x4GB200", ("GB200", 64)),
    ],
)
def test_without_a_description_the_platform_names_the_gpus(
    training: str, platform: str, gpus: tuple[str, int]
) -> None:
    samples = 1e6
    seconds = samples / (fastest_published(training, *gpus) or 1)
    for times, found in ((1.0, False), (0.35, True)):
        run = RunTrace("result_0.txt", training, start=0.0, stop=seconds * times)
        run.seeds, run.system, run.amount_kind = {"1"}, (platform, "Org", "closed"), "samples_count"
        run.amounts = [(seconds * times, samples)]
        said = compare_runs([run], ruleset="5.1.0", usage="training")
        assert any("fastest published result of" in one.message for one in said) is found
