"""Test workloads/gpu_state.py, which reads whether other programs use a GPU before and after a run.

Such use would make a measured speed wrong, so the state of each GPU is in the log. The tests give any answer
of nvidia-smi: complete, damaged, late or none. A value that cannot be read must be missing, never 0. Other
tests show that probes and trainings log the states before their ranks use a GPU and after they ended.
"""

from __future__ import annotations

import importlib
import json
import os
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from rackproof.core.definitions import load_definition
from rackproof.logs import FORMATS
from rackproof.logs.gpu_use import STATE_LINE
from tests.logs.log_samples import IDLE_GPU
from tests.workloads.programs import load_program

UUID, OTHER = "GPU-9c3f5a52-4a2d-5c9b-9a55-1f3ac6f4b9a1", "GPU-0bd2a7c1-6d5f-51a0-b4f2-8f1e7c0a2d33"
# Answers of nvidia-smi: UUID, used memory (MiB), utilisation (%), SM clock (MHz), temperature (°C), power
# (W), and the reasons for a lowered clock, as bits.
IDLE = f"{UUID}, 0, 0, 345, 31, 77.36, 0x0000000000000001\n"
BUSY = f"{UUID}, 723, 45, 1980, 58, 473.11, 0x0000000000000000\n"


@pytest.fixture(scope="module")
def gpu_state() -> Any:
    """Return workloads/gpu_state.py as a module."""
    return load_program("gpu_state")


class FakeNvidiaSmi:
    """A fake of nvidia-smi that gives answers in order, the last one repeatedly. An exception is raised."""

    def __init__(self, rows: list[str | Exception], processes: str | Exception = "") -> None:
        self.rows, self.processes = rows, processes
        self.asked: list[list[str]] = []

    def __call__(self, options: list[str], seconds: float) -> str:
        self.asked.append(options)
        assert 0 < seconds <= 30
        answer = self.processes
        if "query-gpu" in options[0]:
            answer = self.rows.pop(0) if len(self.rows) > 1 else self.rows[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


def state_of(gpu_state: ModuleType, ask: Callable[[list[str], float], str], uuid: str = UUID) -> Any:
    """Return the state that the program reads of one GPU."""
    (state,) = gpu_state.read_states([uuid], ask, lambda _: None)
    return state


EVIDENCE = ("memory_used_mib", "utilisation_percent", "processes")


def test_the_state_of_an_idle_gpu_is_read(gpu_state: ModuleType) -> None:
    assert state_of(gpu_state, FakeNvidiaSmi([IDLE])) == {"gpu": UUID, **IDLE_GPU}


def test_processes_of_others_are_listed_with_or_without_a_name(gpu_state: ModuleType) -> None:
    own = f"{UUID}, 4711, 714, /opt/a, b/python3\n{OTHER}, 12, 8, x\n"
    state = state_of(gpu_state, FakeNvidiaSmi([BUSY], own))
    assert (state["memory_used_mib"], state["utilisation_percent"]) == (723.0, 45.0)
    assert state["processes"] == [{"pid": 4711, "memory_mib": 714.0, "name": "/opt/a, b/python3"}]
    # nvidia-smi prints this in a container in which it may not name the processes.
    hidden = state_of(gpu_state, FakeNvidiaSmi([BUSY], f"{UUID}, 4711, [N/A], [Not Found]\n"))
    assert hidden["processes"] == [{"pid": 4711, "memory_mib": None, "name": "[Not Found]"}]


def test_utilisation_is_the_median_of_the_readings(gpu_state: ModuleType) -> None:
    rows = [IDLE.replace(", 0, 0,", f", 0, {used},") for used in (100, 10, 0, 12, 11)]
    assert state_of(gpu_state, FakeNvidiaSmi(list(rows)))["utilisation_percent"] == 11
    # One reading that is missing is not a reading of 0.
    rows[3] = IDLE.replace(", 0, 0,", ", 0, [N/A],")
    assert state_of(gpu_state, FakeNvidiaSmi(list(rows)))["utilisation_percent"] is None


@pytest.mark.parametrize(
    ("rows", "missing"),
    [
        # Answers of nvidia-smi, and the values that are missing: (memory, utilisation), the second, or none.
        ("", EVIDENCE[:2]),
        ("\n\n", EVIDENCE[:2]),
        ("No devices were found\n", EVIDENCE[:2]),
        (IDLE.replace(UUID, OTHER), EVIDENCE[:2]),
        (IDLE + IDLE, EVIDENCE[:2]),
        (IDLE + BUSY, EVIDENCE[:2]),
        (IDLE.rpartition(",")[0], EVIDENCE[:2]),
        (IDLE.strip() + ", 7", EVIDENCE[:2]),
        (IDLE.replace(", 0, 0,", ", [N/A], [N/A],"), EVIDENCE[:2]),
        (IDLE.replace(", 0, 0,", ", 0, [N/A],"), EVIDENCE[1:2]),
        (IDLE.replace(", 0, 0,", ", nan, inf,"), EVIDENCE[:2]),
        (IDLE.replace(", 0, 0,", ", -1, 1e999,"), EVIDENCE[:2]),
        (IDLE.replace(", 0, 0,", ", 0 MiB, 0 %,"), EVIDENCE[:2]),
        (IDLE.replace(", 0, 0,", ", 1_0, ,"), EVIDENCE[:2]),
        (IDLE.replace(", 0, 0,", ", [Unknown Error], [GPU is lost],"), EVIDENCE[:2]),
        (IDLE.replace("0x0000000000000001", "0x" + "f" * 999), ()),
        (IDLE.replace("0x0000000000000001", "[N/A]"), ()),
        ("\x1b[2J" + IDLE, EVIDENCE[:2]),
    ],
)
def test_what_cannot_be_read_is_missing(gpu_state: ModuleType, rows: str, missing: tuple[str, ...]) -> None:
    state = state_of(gpu_state, FakeNvidiaSmi([rows]))
    assert tuple(key for key in EVIDENCE if state[key] is None) == missing


@pytest.mark.parametrize(
    "processes",
    [
        "garbage\n",
        f"{UUID}, x, 1, python\n",
        f"{UUID}, ², 1, python\n",
        f"{UUID}, 12\n",
        "[N/A], 12, 5, python\n",
        f"{UUID}, 12, 5, python\nInsufficient Permissions\n",
        subprocess.CalledProcessError(9, "nvidia-smi"),
    ],
)
def test_a_damaged_list_of_processes_is_no_empty_one(
    gpu_state: ModuleType, processes: str | Exception
) -> None:
    state = state_of(gpu_state, FakeNvidiaSmi([IDLE], processes))
    assert state["processes"] is None
    assert state["memory_used_mib"] == 0


@pytest.mark.parametrize(
    "error",
    [
        FileNotFoundError("nvidia-smi"),
        PermissionError("nvidia-smi"),
        subprocess.TimeoutExpired("nvidia-smi", 10),
        subprocess.CalledProcessError(255, "nvidia-smi"),
    ],
)
def test_without_nvidia_smi_all_is_missing(gpu_state: ModuleType, error: Exception) -> None:
    ask = FakeNvidiaSmi([error])
    state = state_of(gpu_state, ask)
    assert {key for key, value in state.items() if value is not None} == {"gpu"}
    # It tries both names of the field, and asks nothing else.
    assert len(ask.asked) == 2


def test_an_older_driver_has_another_name_for_the_reasons(gpu_state: ModuleType) -> None:
    ask = FakeNvidiaSmi([subprocess.CalledProcessError(2, "nvidia-smi"), IDLE])
    assert state_of(gpu_state, ask)["throttle"] == 1
    names = [options[0].rpartition(",")[2] for options in ask.asked if "query-gpu" in options[0]]
    assert names == ["clocks_event_reasons.active"] + ["clocks_throttle_reasons.active"] * 5


def test_a_tool_that_dies_between_two_readings_leaves_no_utilisation(gpu_state: ModuleType) -> None:
    ask = FakeNvidiaSmi([IDLE, subprocess.CalledProcessError(255, "nvidia-smi")])
    assert state_of(gpu_state, ask)["utilisation_percent"] is None


# Seconds that each call takes, the number of readings, and the missing values. After 4 s, three readings are
# enough. All calls together may take 30 s.
@pytest.mark.parametrize(
    ("call_s", "readings", "missing"),
    [(0.05, 5, ()), (1.5, 3, ()), (7.0, 3, ()), (12.0, 3, ("processes",)), (16.0, 2, EVIDENCE[1:])],
)
def test_all_calls_together_have_a_time_limit(
    gpu_state: ModuleType, call_s: float, readings: int, missing: tuple[str, ...]
) -> None:
    now = [0.0]
    ask = FakeNvidiaSmi([IDLE])

    def slow(options: list[str], seconds: float) -> str:
        now[0] += call_s
        return ask(options, seconds)

    (state,) = gpu_state.read_states([UUID], slow, lambda _: None, lambda: now[0])
    assert sum("query-gpu" in options[0] for options in ask.asked) == readings
    assert tuple(key for key in EVIDENCE if state[key] is None) == missing


def test_the_tool_itself_is_bounded(gpu_state: ModuleType, tmp_path: Path, monkeypatch: Any) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\nexec sleep 60\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    with pytest.raises(subprocess.TimeoutExpired):
        gpu_state.ask_nvidia_smi(gpu_state.GPU_QUERIES[0], 0.2)


SCRIPT = """
import argparse
import sys
sys.path.insert(0, {workloads!r})
import common

common.gpus = lambda: [common.Gpu(0, {uuid!r}, "NVIDIA H200")]

def work(options, rank, log):
    common.mark_start(rank, log)
    if options.seed == 3:
        raise ValueError("broken")
    common.mark_stop(rank)

def plan(options):
    return max(1, len(common.chosen_by_device(getattr(options, "device", "gpu"), options.gpus)))

arguments = common.probe_parser("", 1.0)
if "--training" in sys.argv:
    # A training has no --device.
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--training", action="store_true")
    arguments.add_argument("--gpus", type=common.gpu_count)
    arguments.add_argument("--seed", type=int)
sys.exit(common.run("probe", arguments, plan, work, gpu_states=True))
"""
TOOL = """#!/bin/sh
case "$1" in
--query-gpu=*clocks_event_reasons.active) echo '{idle}' ;;
--query-compute-apps=*) ;;
*) exit 2 ;;
esac
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "tool", "expected"),
    [
        ([], TOOL, ["begin 0.0", "init_stop", "run_stop", "end 0.0"]),
        # Without an answer, the run continues, and its log has no values.
        ([], "#!/bin/sh\nexit 9\n", ["begin None", "init_stop", "run_stop", "end None"]),
        # After a run that failed, no state is read.
        (["--seed", "3"], TOOL, ["begin 0.0", "init_stop", "run_stop"]),
        # A run on the CPU has no GPU.
        (["--device", "cpu"], TOOL, ["init_stop", "run_stop"]),
        (["--training", "--gpus", "all"], TOOL, ["begin 0.0", "init_stop", "run_stop", "end 0.0"]),
        (["--training", "--gpus", "0"], TOOL, ["init_stop", "run_stop"]),
    ],
    ids=["idle", "no answer", "failed", "cpu", "training", "training on the cpu"],
)
def test_a_probe_states_its_gpu_before_its_ranks_use_it_and_after_they_ended(
    root: Path, tmp_path: Path, arguments: list[str], tool: str, expected: list[str]
) -> None:
    path = tmp_path / "nvidia-smi"
    path.write_text(tool.format(idle=IDLE.strip()))
    path.chmod(0o755)
    script = tmp_path / "probe.py"
    script.write_text(SCRIPT.format(workloads=str(root / "workloads"), uuid=UUID))
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    command = [sys.executable, str(script), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode == (1 if "3" in arguments else 0), done.stderr
    found = []
    for line in done.stdout.splitlines():
        if line.startswith(":::MLLOG "):
            event = json.loads(line[len(":::MLLOG ") :])
            if event["key"] == "gpu_state":
                assert event["value"]["gpu"] == UUID
                found.append(f"{event['value']['moment']} {event['value']['memory_used_mib']}")
            elif event["key"] in ("init_stop", "run_stop"):
                found.append(event["key"])
    assert found == expected


MXNET = """
import sys
sys.path.insert(0, {workloads!r})
import common

common.gpus = lambda: [common.Gpu(0, {uuid!r}, "NVIDIA H200"), common.Gpu(1, "GPU-1", "NVIDIA H200")]
import mnist_mxnet

def fit(options):
    print("trained", flush=True)
    if options.seed == 3:
        raise mnist_mxnet.Stop(3, "diverged")
    if options.seed == 9:
        import os, signal
        os.kill(os.getppid(), signal.SIGTERM)
        signal.pause()

mnist_mxnet.fit = fit
sys.exit(mnist_mxnet.main())
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "status", "expected"),
    [
        (["--gpu-count", "1"], 0, ["begin 0.0", "trained", "end 0.0"]),
        (["--gpu-count", "1", "--seed", "3"], 3, ["begin 0.0", "trained"]),
        # A signal to the first process ends the training.
        (["--gpu-count", "1", "--seed", "9"], 128 + 15, ["begin 0.0", "trained"]),
        (["--gpu-count", "0"], 0, ["trained"]),
        (["--gpus", "x"], 2, []),
    ],
    ids=["idle", "failed", "ended", "cpu", "usage"],
)
def test_mxnet_states_its_gpus_before_its_training_and_after_it(
    root: Path, tmp_path: Path, arguments: list[str], status: int, expected: list[str]
) -> None:
    path = tmp_path / "nvidia-smi"
    path.write_text(TOOL.format(idle=IDLE.strip()))
    path.chmod(0o755)
    script = tmp_path / "mxnet_on_gpus.py"
    script.write_text(MXNET.format(workloads=str(root / "workloads"), uuid=UUID))
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    command = [sys.executable, str(script), "--data", str(tmp_path), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode == status, done.stderr
    prefix = load_program("state_gpus").PREFIX
    assert prefix == STATE_LINE
    found = []
    for line in done.stdout.splitlines():
        if line.startswith(prefix):
            state = json.loads(line.removeprefix(prefix))
            assert state["gpu"] == UUID
            found.append(f"{state['moment']} {state['memory_used_mib']}")
        elif line == "trained":
            found.append(line)
    assert found == expected
    assert done.stdout.count("start with arguments Namespace") == len(expected[:1])


BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.parametrize(
    "name",
    sorted(
        path.stem
        for path in BENCHMARKS.glob("*.yml")
        if {"  with: local", "  format: mllog"} <= set(path.read_text().splitlines())
    ),
)
def test_a_definition_promises_states_exactly_if_its_program_logs_them(
    root: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    definition = load_definition(BENCHMARKS / f"{name}.yml", log_formats=FORMATS).definition
    program = definition.launch.program
    monkeypatch.syspath_prepend(str(root / "workloads"))
    given: dict[str, Any] = {}
    monkeypatch.setattr(
        importlib.import_module("common"), "run", lambda *_, **options: given.update(options) or 0
    )
    with pytest.raises(SystemExit):
        runpy.run_path(str(root / "workloads" / program), run_name="__main__")
    assert given.get("gpu_states", False) is definition.result.states_gpu_use is True
