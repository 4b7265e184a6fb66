"""Test ``rackproof.jobs.bench.machine_use``, which checks that nothing else slowed a run down.

The supervisor of a job measures how much processor time other processes and the hypervisor took during the
job. If they took too much, or if the supervisor did not measure it, the run's speeds are unproven. Its
accuracy and wrong values still count, because they do not depend on the speed.
"""

from __future__ import annotations

from typing import Any

import pytest

from rackproof.core.definitions import JudgeRule
from rackproof.core.judging import judge_run
from rackproof.core.records import Direction, Measurement, ParsedLog, Reference, Verdict
from rackproof.jobs.bench.machine_use import busy_reason, read_machine_use, runs_elsewhere
from rackproof.jobs.bench.record import job_seal

# The use of a busy machine. Others took 110 processor seconds, and slowed the run down for 58 of 60 s.
USE: dict[str, Any] = {
    "cpus": 2,
    "seconds": 60.0,
    "disturbed_s": 58.0,
    "others_s": 110.0,
    "stolen_s": 0.0,
    "names": ["cc1", "stress\x1b[31m"],
    "begin": {
        "load": 28.1,
        "pressure": 99.0,
        "governor": "powersave",
        "mhz": 3000,
        "celsius": 70,
        "slowed": 0,
    },
    "end": None,
}


# A machine of two processors is busy from 6 s of 60 s on (a tenth), or if the hypervisor took (`stolen_s`)
# 12 processor seconds. A larger one is busy if it took 5 % of all processors. Below 1 processor second, no
# machine is busy.
@pytest.mark.parametrize(
    ("changes", "busy"),
    [
        ({}, True),
        ({"disturbed_s": 6.1}, True),
        ({"seconds": 1.1, "disturbed_s": 1.1, "others_s": 1.9}, True),  # a short run
        ({"others_s": 0.2, "stolen_s": 30.0}, True),
        ({"cpus": 64, "disturbed_s": 0.0, "others_s": 0.2, "stolen_s": 193.0}, True),  # 5 % all the time
        # One of 64 processors, as a healthy virtual machine with four H100 had it.
        ({"cpus": 64, "disturbed_s": 0.0, "others_s": 0.2, "stolen_s": 61.0}, False),
        ({"disturbed_s": 0.0, "others_s": 0.2, "stolen_s": 13.0}, True),  # a tenth of two processors
        ({"disturbed_s": 0.0, "others_s": 4.0}, False),
        ({"disturbed_s": 5.0}, False),  # a timer's script of some seconds
        ({"seconds": 1.0, "disturbed_s": 1.0, "others_s": 0.6}, False),
    ],
)
def test_a_machine_is_busy_if_others_slow_the_run_down(changes: dict[str, Any], busy: bool) -> None:
    uses = read_machine_use({"n1": {"machine": {**USE, **changes}}})
    assert bool(busy_reason(uses)) == busy


def test_the_reason_names_the_node_the_other_processes_and_the_remedy() -> None:
    quiet = {**USE, "disturbed_s": 0.0}
    reason = busy_reason(read_machine_use({"n1": {"machine": quiet}, "n2": {"machine": USE}}))
    assert reason.startswith("n2 was not idle: processes outside the job (cc1, stress")
    assert "used 1.8 of its 2 processors and slowed the run down for 58 of 60 s, load 28.1" in reason
    assert "run the benchmark again" in reason
    assert "\x1b" not in reason


ENDED = {"phase": "ended", "ended_by": "itself", "elapsed_s": 60.0}
QUIET = {**USE, "disturbed_s": 0.0, "others_s": 0.0}


# A supervisor has to state the use for at least half of the job's 60 s, in numbers that are possible.
@pytest.mark.parametrize(
    ("job", "said"),
    [
        (ENDED, "states no valid use by"),
        ({**ENDED, "machine": None}, "states no valid use by"),
        ({**ENDED, "machine": "x"}, "states no valid use by"),
        ({**ENDED, "machine": {**QUIET, "seconds": 0.0, "cpus": 0}}, "for only 0 of 60 s"),
        ({**ENDED, "machine": {**QUIET, "seconds": 20.0}}, "for only 20 of 60 s"),
        ({**ENDED, "machine": {**QUIET, "seconds": float("nan")}}, "states no valid use"),
        ({**ENDED, "machine": {**QUIET, "disturbed_s": float("nan")}}, "states no valid use"),
        ({**ENDED, "machine": {**QUIET, "disturbed_s": -5.0}}, "states no valid use"),
        ({**ENDED, "machine": {**QUIET, "others_s": -1e9}}, "states no valid use"),
        ({**ENDED, "machine": {**QUIET, "stolen_s": -1.0}}, "states no valid use"),
        ({**ENDED, "machine": {**QUIET, "seconds": float("inf")}}, "states no valid use"),
        ({**ENDED, "machine": {**QUIET, "seconds": 10**400}}, "states no valid use"),
        ({**ENDED, "machine": {**QUIET, "cpus": 10**400}}, "states no valid use"),
        ({**ENDED, "machine": {**QUIET, "cpus": -2}}, "states no valid use"),
        ({**ENDED, "machine": {**USE, "seconds": 1e9}}, "for 1e+09 s, but the job took 60 s"),
        ({"phase": "ended", "ended_by": "itself", "machine": QUIET}, "states no duration of the job"),
        ({**ENDED, "elapsed_s": None, "machine": {**QUIET, "seconds": 0.0}}, "states no duration of the job"),
        ({**ENDED, "elapsed_s": "60", "machine": {**QUIET, "seconds": 0.0}}, "states no duration of the job"),
        ({**ENDED, "elapsed_s": float("nan"), "machine": QUIET}, "states no duration of the job"),
        ({**ENDED, "elapsed_s": -60.0, "machine": QUIET}, "states no duration of the job"),
        ({**ENDED, "elapsed_s": 10**400, "machine": QUIET}, "states no duration of the job"),
        ({**ENDED, "machine": QUIET}, ""),
        ({**ENDED, "machine": {**QUIET, "seconds": 60.2}}, ""),  # it measures from before the job's start
        # Missing readings, such as the clock rate, do not make a machine busy.
        ({**ENDED, "machine": {**QUIET, "begin": None}}, ""),
        ({**ENDED, "elapsed_s": 0.04, "machine": {**QUIET, "seconds": 0.0}}, ""),
        # A job whose end is not known, or that did not end by itself, is judged by its end.
        ({}, ""),
        ({**ENDED, "phase": "running"}, ""),
        ({**ENDED, "ended_by": "supervisor_died"}, ""),
    ],
)
def test_a_machine_that_was_not_watched_is_not_known_to_be_idle(job: dict[str, Any], said: str) -> None:
    reason = busy_reason(read_machine_use({"n1": job}), {"n1": job})
    assert said in reason
    assert bool(reason) == bool(said)
    # Without a supervisor of Rackproof, there is no job to check.
    assert busy_reason(read_machine_use({"n1": job}), {}) == ""


@pytest.mark.parametrize("raw", [None, [], "x", {}, {"cpus": "many"}, {**USE, "more": 1}])
def test_an_invalid_state_is_left_out(raw: object) -> None:
    assert read_machine_use({"n1": {"machine": raw}, "n2": {"machine": USE}}).keys() == {"n2"}


@pytest.mark.parametrize(
    ("launcher", "arguments", "elsewhere"),
    [
        ("slurm", ["python3", "run.py"], True),
        ("docker", ["python3", "run.py"], True),
        ("local", ["/usr/bin/docker", "run", "--rm", "image"], True),
        ("local", ["sh", "-c", "sudo podman run image"], True),
        ("local", ["singularity", "exec", "docker.sif", "train"], False),  # it runs below its caller
        ("local", ["sudo", "-u", "ada", "docker", "run", "image"], True),
        ("local", ["env", "A=1", "timeout", "60", "/usr/bin/srun", "train"], True),
        ("local", ["bash", "-c", "cd /srv/data && docker run image"], True),
        ("mpirun", ["--gpus=4", "--command=/usr/bin/docker exec c tf_cnn_benchmarks"], True),
        ("local", ["python3", "train.py"], False),
        # A name such as docker in another argument, such as a folder or a text, starts no program.
        ("local", ["--data=/srv/docker"], False),
        ("local", ["python3", "train.py", "--data", "/srv/docker"], False),
        ("local", ["python3", "train.py", "slurm"], False),
        ("local", ["--gpus=4", "--note=compared with docker"], False),
        ("local", ["sh", "-c", "train --data /srv/podman"], False),
        ("mpirun", ["--command=tf_cnn_benchmarks --data /srv/slurm"], False),
        ("local", [], False),
        ("local", ["mpirun", "-np", "2", "hpl"], False),
    ],
)
def test_a_job_through_slurm_or_docker_runs_elsewhere(
    launcher: str, arguments: list[str], elsewhere: bool
) -> None:
    assert runs_elsewhere(launcher, arguments) == elsewhere


@pytest.mark.parametrize("change", [{}, {"machine": None}, {"machine": {**USE, "disturbed_s": 0.0}}])
def test_a_changed_machine_use_breaks_the_seal_of_the_job(change: dict[str, Any]) -> None:
    state = {"id": "r", "phase": "ended", "machine": USE}
    seal = job_seal(state)
    assert job_seal({**state, "machine": dict(reversed(USE.items()))}) == seal
    damaged = {**state, **change}
    if not change:
        del damaged["machine"]
    assert job_seal(damaged) != seal


RULES = (
    JudgeRule(metric="speed", unit="samples/s", direction=Direction.HIGHER),
    JudgeRule(metric="wait", unit="s", at_most=10),
    JudgeRule(metric="accuracy", unit="fraction", at_least=0.9),
    JudgeRule(metric="wrong_values", equals=0),
)


@pytest.mark.parametrize(
    ("values", "verdict"),
    [
        ({}, Verdict.UNPROVEN),
        ({"speed": 10.0}, Verdict.UNPROVEN),  # the other processes may have made it slow
        ({"wait": 99.0}, Verdict.UNPROVEN),
        ({"accuracy": 0.5}, Verdict.FAIL),
        ({"wrong_values": 3.0}, Verdict.FAIL),
        ({"accuracy": 0.5, "speed": 10.0}, Verdict.FAIL),
    ],
)
def test_on_a_busy_machine_speeds_are_unproven_and_quality_counts(
    values: dict[str, float], verdict: Verdict
) -> None:
    units = {"speed": "samples/s", "wait": "s", "accuracy": "fraction", "wrong_values": ""}
    good = {"speed": 100.0, "wait": 5.0, "accuracy": 0.95, "wrong_values": 0.0}
    measured = tuple(
        Measurement(name=name, value=values.get(name, good[name]), unit=unit) for name, unit in units.items()
    )
    log = ParsedLog(format="lines", file="a", measurements=measured, verdict=Verdict.PASS)

    def references(one: Measurement) -> list[Reference]:
        return [Reference(value=100, low=-0.1, unit=one.unit, source="s")] if one.name == "speed" else []

    options: dict[str, Any] = {"parameters": {}, "require_references": True}
    outcome = judge_run(RULES, [log], [], references, busy="n1 was not idle", **options)
    assert outcome.verdict is verdict
    of = {one.metric: one.verdict for one in outcome.judgements}
    assert of["speed"] is of["wait"] is Verdict.UNPROVEN
    assert any("n1 was not idle" in reason for reason in outcome.reasons)
    idle = judge_run(RULES, [log], [], references, **options)
    assert idle.verdict is (Verdict.PASS if not values else Verdict.FAIL)
