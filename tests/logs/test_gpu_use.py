"""Test the states of GPUs in a log, which show whether another program used them.

Rackproof's probes and trainings log the state of each GPU before and after they use it
(:mod:`rackproof.logs.gpu_use`): memory in use, utilisation, and processes. If a GPU is not idle at these
moments, the run is unproven, because another program may have slowed it down. These tests check that:

- readings within the limits are those of an idle GPU, and readings beyond them leave the run unproven
- a reading that is missing, damaged or impossible never counts as that of an idle GPU
- lowered clocks are a remark
- states are read from events, and from lines in logs without events.
"""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

from rackproof import logs
from rackproof.core.records import ParsedLog, Verdict
from rackproof.logs.gpu_use import STATE_LINE, gpus_with_states, read_gpu_state
from tests.logs.log_samples import IDLE_GPU, PASSING, TF_CNN, dcgm_json, event, mllog, nccl_json

UUID = "GPU-9c3f5a52-4a2d-5c9b-9a55-1f3ac6f4b9a1"
IDLE = {"moment": "begin", "gpu": UUID, **IDLE_GPU}
"""The state of an idle GPU before a run."""
# The tag that a parsed log has if that state was read.
TAG = f"gpu_state.begin.{UUID}"


def read(value: Any) -> ParsedLog:
    """Return a parsed log with one ``gpu_state`` event."""
    return logs.parse(io.BytesIO(mllog(event("gpu_state", value, 60))))


def codes(parsed: ParsedLog) -> dict[str, Verdict | None]:
    """Return the codes of the findings about GPUs, with their verdicts."""
    return {one.code: one.verdict for one in parsed.findings if one.code.startswith("gpu_")}


def test_the_state_of_an_idle_gpu_gives_a_tag_and_no_finding() -> None:
    parsed = read(IDLE)
    assert codes(parsed) == {}
    assert parsed.tags[TAG] == "read"


@pytest.mark.parametrize(
    "changes",
    [
        # At most 256 MiB in use, and a utilisation below 5 %. Other readings may be missing.
        {"memory_used_mib": 4},
        {"memory_used_mib": 256},
        {"utilisation_percent": 4.9},
        {"throttle": None, "sm_clock_mhz": None, "temperature_c": None, "power_w": None},
    ],
)
def test_readings_within_the_limits_are_those_of_an_idle_gpu(changes: dict[str, Any]) -> None:
    assert codes(read({**IDLE, **changes})) == {}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        # Three GPUs that another program used, as nvidia-smi showed them.
        ({"memory_used_mib": 723, "utilisation_percent": 6}, ["723 MiB", "busy 6 %"]),
        ({"memory_used_mib": 720, "utilisation_percent": 43}, ["720 MiB", "busy 43 %"]),
        ({"memory_used_mib": 714}, ["714 MiB"]),
        # Readings at the bounds or above, and compute processes.
        ({"utilisation_percent": 10}, ["busy 10 %"]),
        ({"utilisation_percent": 5}, ["busy 5 %"]),
        ({"memory_used_mib": 256.1}, ["256.1 MiB"]),
        ({"processes": [{"pid": 4711, "memory_mib": 8, "name": "python"}]}, ["4711 (python)"]),
        ({"processes": [{"pid": None, "name": None}]}, ["compute process"]),
        ({"processes": ["?"]}, ["compute processes: ?"]),
        ({"processes": [{"pid": at, "name": "a"} for at in range(9)]}, ["3 (a) and 5 more"]),
        ({"processes": [{"pid": 1, "name": "\x1b[2Jowned"}]}, ["1 (owned)"]),
    ],
)
def test_a_shared_gpu_is_unproven(changes: dict[str, Any], words: list[str]) -> None:
    parsed = read({**IDLE, **changes})
    assert codes(parsed) == {"gpu_shared": Verdict.UNPROVEN}
    (finding,) = [one for one in parsed.findings if one.code == "gpu_shared"]
    assert finding.source.line
    for text in (*words, UUID, "before the run", "run the benchmark again"):
        assert text in finding.message


def test_a_state_after_run_stop_is_judged_and_is_not_an_event_of_another_run() -> None:
    text = mllog(after=event("gpu_state", {**IDLE, "moment": "end"}, 3))
    parsed = logs.parse(io.BytesIO(text))
    assert codes(parsed) == {}
    assert "events_after_run_stop" not in {one.code for one in parsed.findings}
    busy = mllog(after=event("gpu_state", {**IDLE, "moment": "end", "utilisation_percent": 45}, 3))
    assert codes(logs.parse(io.BytesIO(busy))) == {"gpu_shared": Verdict.UNPROVEN}


INVALID: list[Any] = [None, "0", "nan", "", True, {}, -1, "[N/A]"]
"""Values that are neither a number in a reading's range nor a list of processes."""
DAMAGED = [
    (key, value) for key in ("memory_used_mib", "utilisation_percent", "processes") for value in INVALID
]
DAMAGED += [("memory_used_mib", []), ("utilisation_percent", [])]


@pytest.mark.parametrize(("key", "value"), DAMAGED)
@pytest.mark.parametrize("base", [IDLE, {**IDLE, "memory_used_mib": 720, "utilisation_percent": 43}])
def test_a_missing_or_invalid_reading_is_unproven(key: str, value: Any, base: dict[str, Any]) -> None:
    """Check a reading that is absent, null or of another type, of an idle GPU and of a GPU in use."""
    absent = {name: one for name, one in base.items() if name != key}
    for damaged in ({**base, key: value}, absent):
        parsed = read(damaged)
        assert Verdict.UNPROVEN in codes(parsed).values()
        assert TAG not in parsed.tags


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 101, 1e999])
def test_an_impossible_utilisation_is_unproven(value: float) -> None:
    assert Verdict.UNPROVEN in codes(read({**IDLE, "utilisation_percent": value})).values()


@pytest.mark.parametrize(
    "value",
    [
        None,
        [],
        "x",
        3,
        {},
        {**IDLE, "gpu": None},
        {**IDLE, "gpu": ""},
        {**IDLE, "moment": "middle"},
        {"gpu": UUID},
    ],
    ids=repr,
)
def test_a_state_without_a_gpu_or_a_known_moment_is_unproven(value: Any) -> None:
    parsed = read(value)
    assert codes(parsed) == {"gpu_use_unknown": Verdict.UNPROVEN}
    assert not [tag for tag in parsed.tags if tag.startswith("gpu_state")]


def test_a_state_whose_moment_is_a_list_is_not_read() -> None:
    assert read_gpu_state({**IDLE, "moment": ["begin"]}) is None


def test_a_second_state_does_not_hide_the_first() -> None:
    text = mllog(event("gpu_state", {**IDLE, "utilisation_percent": 45}, 60), event("gpu_state", IDLE, 61))
    assert codes(logs.parse(io.BytesIO(text))) == {"gpu_shared": Verdict.UNPROVEN}


# The first three entries are reasons that NVML calls slowdowns. 0x1 is an idle GPU, and 0x4 a power cap.
@pytest.mark.parametrize(
    ("bits", "words"),
    [
        (0x8, "hardware slowdown"),
        (0x20, "software thermal slowdown"),
        (0xC0, "hardware thermal slowdown, power brake"),
        (0x1, ""),
        (0x4, ""),
        (None, ""),
        ("0x8", ""),
        (float("nan"), ""),
        (1e300, ""),
    ],
)
def test_lowered_clocks_are_a_remark(bits: Any, words: str) -> None:
    parsed = read({**IDLE, "throttle": bits})
    assert codes(parsed) == ({"gpu_slowed": None} if words else {})
    if words:
        assert words in next(one.message for one in parsed.findings if one.code == "gpu_slowed")


def test_the_tag_with_eight_gpus_is_not_shortened() -> None:
    uuids = ",".join(UUID[:-1] + str(number) for number in range(8))
    parsed = logs.parse(io.BytesIO(mllog(event("facts", {"gpus": uuids, "python": "3" * 999}, 2))))
    assert parsed.tags["software.gpus"] == uuids
    assert len(parsed.tags["software.python"]) == 200


def state_line(value: Any) -> bytes:
    """Return the line with a state that the launcher of a training without events prints."""
    return f"{STATE_LINE}{value if isinstance(value, str) else json.dumps(value)}\n".encode()


END = {**IDLE, "moment": "end"}
"""The state of an idle GPU after a run."""
# A process whose name has words that the parsers of MXNet and tf_cnn_benchmarks look for.
NAMED = {"pid": 1, "memory_mib": 8, "name": "Epoch[0] Train-accuracy=nan num_epochs=1 images/sec OOM"}


SAMPLES = {name: PASSING[name] for name in ("mxnet", "tf_cnn", "nccl_tests", "nvbandwidth", "gpu_burn")}
"""Logs of programs that do not state the use of GPUs themselves. Their launcher prints the states."""


@pytest.mark.parametrize(
    ("name", "sample"),
    [*SAMPLES.items(), ("nccl_tests", nccl_json() + b"\n"), ("dcgmi_diag", dcgm_json() + b"\n")],
)
@pytest.mark.parametrize(
    ("before", "after", "found"),
    [
        (state_line(IDLE), state_line(END), {}),
        # A log that another program wrote has no states, and passes without them.
        (b"", b"", {}),
        (state_line({**IDLE, "memory_used_mib": 723}), state_line(END), {"gpu_shared": Verdict.UNPROVEN}),
        (state_line(IDLE), state_line({**END, "processes": [NAMED]}), {"gpu_shared": Verdict.UNPROVEN}),
        (state_line({**IDLE, "processes": None}), b"", {"gpu_use_unknown": Verdict.UNPROVEN}),
        (state_line(IDLE), state_line(END)[:-20], {"gpu_use_unknown": Verdict.UNPROVEN}),
        (state_line("NaN"), b"", {"gpu_use_unknown": Verdict.UNPROVEN}),
        (state_line("[" * 9999), b"", {"gpu_use_unknown": Verdict.UNPROVEN}),
    ],
)
def test_states_on_lines_of_a_log_without_events_are_judged(
    name: str, sample: bytes, before: bytes, after: bytes, found: dict[str, Verdict]
) -> None:
    parsed = logs.parse(io.BytesIO(before + sample + after), format=name)
    assert codes(parsed) == found
    assert parsed.verdict is (Verdict.UNPROVEN if found else Verdict.PASS)
    assert {one.code for one in parsed.findings} - {"waived"} == set(found)
    assert gpus_with_states(parsed.tags) == ({UUID} if b'"processes": []' in before else set())


def test_the_states_of_128_gpus_are_all_stored_as_tags() -> None:
    uuids = {f"GPU-{number:032x}" for number in range(128)}
    both = [[state_line({**one, "gpu": uuid}) for uuid in sorted(uuids)] for one in (IDLE, END)]
    parsed = logs.parse(io.BytesIO(b"".join([*both[0], TF_CNN, *both[1]])), format="tf_cnn")
    assert sum(tag.startswith("gpu_state.") for tag in parsed.tags) == 2 * len(uuids)
    assert parsed.verdict is Verdict.PASS
