"""Test how slurm_run.py and docker_run.py handle signals, lost answers of Slurm, and jobs that it forgot.

The other tests of these programs are slow, because they start processes. These tests call their functions,
with fake answers of Slurm. They show that no job remains without a launcher, and that no second one is
submitted.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

RUN = "20260101T000000Z-big-abcdef"
DISABLED = (1, "", "Slurm accounting storage is disabled\n")
DOWN = (1, "", "sacct: error: Problem talking to the database: Connection refused\n")
UNKNOWN_JOB = (1, "", "slurm_load_jobs error: Invalid job id specified\n")


class Slurm:
    """Fake answers of Slurm's programs. A list has one answer for each call, the last of which repeats."""

    def __init__(self) -> None:
        self.calls: list[list[str]] = []
        self.answers: dict[str, Any] = {}

    def __call__(self, command: list[str], **_: Any) -> tuple[int, str, str]:
        self.calls.append(list(command))
        answer = self.answers.get(command[0], (0, "", ""))
        if isinstance(answer, list):
            answer = answer.pop(0) if len(answer) > 1 else answer[0]
        made: tuple[int, str, str] = answer(command) if callable(answer) else answer
        return made

    def calls_of(self, name: str) -> list[list[str]]:
        """Return the calls of one program."""
        return [call for call in self.calls if call[0] == name]


@pytest.fixture
def slurm(slurm_run: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Slurm:
    fake = Slurm()
    monkeypatch.setattr(slurm_run, "run_command", fake)
    monkeypatch.setattr(slurm_run, "POLL_S", 0.01)
    monkeypatch.setattr(slurm_run, "SLURM_ANSWERS_S", 0.05)
    return fake


def spec_of(shared: Path, **changes: Any) -> dict[str, Any]:
    """Return the spec of a run on two nodes."""
    spec = {"repository": "a/b", "tag": "1", "registry": "svc", "shared": str(shared), "benchmark": "big"}
    spec |= {"environment": {}, "hosts": ["n1", "n2"], "seed_base": 1, "partition": "", "account": ""}
    return {**spec, "reservation": "", **changes}


@pytest.fixture
def work(slurm_run: ModuleType, tmp_path: Path) -> Any:
    """Return the work of one run, whose folder exists."""
    one = slurm_run.Work(spec_of(tmp_path), RUN)
    one.folder.mkdir(parents=True)
    return one


@pytest.fixture
def stoppable(work: Any) -> Iterator[Any]:
    """Return the work, which gets the signals to end of this process."""
    before = {one: signal.signal(one, work.stop) for one in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    yield work
    for one, handler in before.items():
        signal.signal(one, handler)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_during_a_check_cancels_the_job_of_the_step(
    slurm_run: ModuleType, stoppable: Any, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    cancelled: list[list[str]] = []
    monkeypatch.setattr(slurm_run.Work, "cancel_step", lambda self, command: cancelled.append(command))
    timer = threading.Timer(0.2, os.kill, (os.getpid(), number))
    timer.start()
    with pytest.raises(slurm_run.Stopped):
        stoppable.run_step(["sleep", "30"])
    timer.join()
    assert cancelled == [["sleep", "30"]]


@pytest.mark.parametrize("name", ["mpi", "devices", "domain"])
def test_the_step_s_job_is_cancelled_by_its_name(
    slurm_run: ModuleType, slurm: Slurm, work: Any, name: str
) -> None:
    def interrupted(_command: list[str]) -> tuple[int, str, str]:
        raise slurm_run.Stopped

    slurm.answers["srun"] = interrupted
    with pytest.raises(slurm_run.Stopped):
        work.run_step(work.srun(["n1"], name))
    assert [call[1] for call in slurm.calls_of("scancel")] == [f"--name={name}-{RUN}"]


def submit(work: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Submit the run's job, with a config that needs no image."""
    values = {"DGXNNODES": "2", "WALLTIME": "5", "DGXSYSTEM": "x", "DGXNGPU": "4"}
    monkeypatch.setattr(type(work), "choose_config", lambda self: Path("config_x.sh"))
    monkeypatch.setattr(type(work), "job_environment", lambda self, config: values)
    monkeypatch.setattr(type(work), "keep_scripts", lambda self, config: None)
    work.submit()


def signalled(work: Any, answer: tuple[int, str, str]) -> Callable[[list[str]], tuple[int, str, str]]:
    """Return an answer of sbatch during which two signals arrive."""

    def call(_command: list[str]) -> tuple[int, str, str]:
        work.stop(signal.SIGTERM, None)
        work.stop(signal.SIGTERM, None)
        return answer

    return call


@pytest.mark.parametrize(
    ("answer", "queue"),
    [
        # The answer of sbatch, and that of squeue afterwards.
        ((0, "4711\n", ""), ""),
        ((0, "", ""), "4711\n"),
        ((124, "", "no answer"), "4711\n"),
        ((-15, "", ""), "4711\n"),
        ((-2, "", ""), "4711\n"),
    ],
)
def test_a_signal_while_sbatch_runs_leaves_no_job_alone(
    slurm: Slurm, work: Any, monkeypatch: pytest.MonkeyPatch, answer: tuple[int, str, str], queue: str
) -> None:
    slurm.answers = {"squeue": [(0, "", ""), (0, queue, "")], "sbatch": signalled(work, answer)}
    submit(work, monkeypatch)
    assert work.job == "4711"
    assert json.loads((work.folder / "job.json").read_text()) == {"job": "4711"}
    work.cancel_if_stopping(SimpleNamespace(cancelled=False))
    assert slurm.calls_of("scancel") == [["scancel", "4711"]]


@pytest.mark.parametrize("answer", [(0, "", ""), (124, "", "no answer"), (-15, "", "")])
def test_a_signal_that_also_ended_sbatch_leaves_nothing(
    slurm_run: ModuleType, slurm: Slurm, work: Any, monkeypatch: pytest.MonkeyPatch, answer: Any
) -> None:
    work.secrets = {"KEY": "secret-of-the-operator"}
    slurm.answers = {"sbatch": signalled(work, answer), "sacct": DISABLED}
    with pytest.raises(slurm_run.Stopped):
        submit(work, monkeypatch)
    assert not work.secrets_file.exists()


@pytest.mark.parametrize("status", [1, -15])
def test_a_refusal_of_sbatch_is_reported_and_leaves_no_secret(
    slurm_run: ModuleType, slurm: Slurm, work: Any, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    work.secrets = {"KEY": "secret-of-the-operator"}
    slurm.answers = {"sbatch": (status, "", "Invalid account"), "sacct": DISABLED}
    with pytest.raises(slurm_run.Refusal, match=r"sbatch refused .*Invalid account"):
        submit(work, monkeypatch)
    assert not work.secrets_file.exists()


def test_before_a_job_a_signal_ends_the_launcher_once(slurm_run: ModuleType, work: Any) -> None:
    with pytest.raises(slurm_run.Stopped):
        work.stop(signal.SIGTERM, None)
    # A second signal would interrupt what the first one ends.
    work.stop(signal.SIGTERM, None)


@pytest.mark.parametrize(
    ("submitting", "training", "job", "ends"),
    [
        # What the launcher of MLPerf 0.6 does when a signal arrives, and whether the signal ends it at once.
        (False, None, "", True),
        (True, None, "", False),
        (False, "a process", "", False),
        (False, None, "4711", False),
    ],
)
def test_a_signal_while_a_training_starts_waits_for_its_process(
    slurm_run: ModuleType, tmp_path: Path, submitting: bool, training: Any, job: str, ends: bool
) -> None:
    docker_run = importlib.import_module("docker_run")
    work = docker_run.Docker(
        spec_of(tmp_path, home=str(tmp_path), image="a/b", ref="c", folder="d", data=str(tmp_path)), RUN
    )
    work.submitting, work.training, work.job = submitting, training, job
    with pytest.raises(slurm_run.Stopped) if ends else nullcontext():
        work.stop(signal.SIGTERM, None)
    assert work.stopping


@pytest.mark.parametrize(
    ("accounts", "memory", "state"),
    [
        # The answers of sacct and scontrol about a job that squeue does not know, and the state.
        (DISABLED, UNKNOWN_JOB, "FORGOTTEN"),
        ((0, "", ""), UNKNOWN_JOB, "FORGOTTEN"),
        ((127, "", "no such program"), UNKNOWN_JOB, "FORGOTTEN"),
        (DOWN, UNKNOWN_JOB, ""),
        (DOWN, (0, "JobId=4711 JobState=FAILED ExitCode=1:0", ""), "FAILED"),
        ((0, "COMPLETED|0:0|n[1-2]|1|2|1|2|x\n", ""), UNKNOWN_JOB, "COMPLETED"),
        ((0, "CANCELLED by 0|0:15|n[1-2]|1|2|1|2|x\n", ""), UNKNOWN_JOB, "CANCELLED"),
    ],
)
def test_a_job_that_slurm_forgot_is_not_a_slurm_that_does_not_answer(
    slurm: Slurm, work: Any, accounts: Any, memory: Any, state: str
) -> None:
    work.job = "4711"
    slurm.answers = {"squeue": UNKNOWN_JOB, "sacct": accounts, "scontrol": memory}
    assert work.state()[0] == state


@pytest.mark.parametrize(
    ("accounts", "silent_s", "words"),
    [
        (DISABLED, 61, r"job 4711 ended while no launcher followed it.*/slurm\.out\. Measure again"),
        (DISABLED, 59, ""),
        (DOWN, 61, ""),
        (DOWN, 901, "has not answered for 15 min; job 4711 was left: .*Problem talking to the database"),
    ],
)
def test_a_job_whose_end_is_not_known_is_unproven(
    slurm_run: ModuleType, slurm: Slurm, work: Any, accounts: Any, silent_s: float, words: str
) -> None:
    work.job = "4711"
    work.secrets_file.write_text("export KEY=secret")
    slurm.answers = {"squeue": UNKNOWN_JOB, "sacct": accounts, "scontrol": UNKNOWN_JOB}
    now = time.monotonic()
    watch = slurm_run.Watch(began=now)
    assert work.poll(watch, now) is False
    if not words:
        assert work.poll(watch, now + silent_s) is False
        return
    with pytest.raises(slurm_run.Refusal, match=words) as refused:
        work.poll(watch, now + silent_s)
    assert refused.value.status == 7
    assert work.secrets_file.exists() is (accounts is DOWN), "a running job may still need it"


@pytest.mark.parametrize(
    ("called_sbatch", "accounts", "job"),
    [
        # Whether an earlier launcher called sbatch, sacct's answers, and the job that is found.
        (False, [DOWN], ""),
        (False, [(0, "4711\n", "")], "4711"),
        (True, [DISABLED], ""),
        (True, [(127, "", "sacct: no such program")], ""),
        (True, [(0, "", "")], ""),
        (True, [DOWN, (124, "", "sacct: no answer in 60 s"), (0, "4711\n", "")], "4711"),
    ],
)
def test_a_job_that_left_the_queue_is_found(
    slurm: Slurm, work: Any, called_sbatch: bool, accounts: list[Any], job: str
) -> None:
    if called_sbatch:
        (work.folder / "asked.json").write_text("{}")
    slurm.answers = {"sacct": accounts}
    assert work.find_job() == job


@pytest.mark.parametrize("answer", [DOWN, (124, "", "no answer"), (1, "", "")])
def test_no_second_job_is_submitted_while_the_accounts_do_not_answer(
    slurm_run: ModuleType, slurm: Slurm, work: Any, monkeypatch: pytest.MonkeyPatch, answer: Any
) -> None:
    (work.folder / "asked.json").write_text("{}")
    slurm.answers = {"sacct": answer}
    with pytest.raises(slurm_run.Refusal, match="Slurm's accounts do not answer"):
        submit(work, monkeypatch)
    assert slurm.calls_of("sbatch") == []


@pytest.mark.parametrize(
    ("lines", "printed"),
    [
        # Lines of the job, and what is printed for the last one.
        ([b':::MLLOG {"key": "a"}'], b':::MLLOG {"key": "a"}'),
        ([b"RUNANDTIME_STOP 1", b':::MLLOG {"key": "a"}'], b'(quoted) MLLOG {"key": "a"}'),
        ([b':::RACKPROOF {"end": {}}'], b'(quoted) {"end": {}}'),
        ([b':::RACKPROOF {"x": ":::MLLOG"}'], b'(quoted) {"x": ":::MLLOG"}'),
        (
            [b"RUNANDTIME_STOP 1", b':::RACKPROOF {"end": {"x": ":::MLLOG"}}'],
            b'(quoted) {"end": {"x": "(quoted) MLLOG"}}',
        ),
        (
            [b"RUNANDTIME_STOP 1", b":::RACKPROOF :::RACKPROOF :::MLLOG :::MLLOG"],
            b"(quoted) (quoted) (quoted) MLLOG (quoted) MLLOG",
        ),
        ([b"RUNANDTIME_STOP 1 :::RACKPROOF :::MLLOG {}"], b"RUNANDTIME_STOP 1 (quoted) (quoted) MLLOG {}"),
    ],
)
def test_no_line_of_the_job_counts_as_the_launchers(
    slurm_run: ModuleType, tmp_path: Path, lines: list[bytes], printed: bytes
) -> None:
    tail = slurm_run.Tail(tmp_path / "slurm.out")
    assert [tail.line(line) for line in lines][-1] == printed
