"""Imitate Slurm's host and its nodes, for tests of the measurements of a night.

A probe is a short measurement of one node, and a pair one of two nodes. Rackproof starts them as Slurm jobs
through a shell on Slurm's host. :class:`Slurm` answers these shell commands, and the other functions return
the logs of jobs.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from rackproof.nodes.probe_slurm_jobs import MARK, JobRunner, ProbePlan

ROOT = Path(__file__).resolve().parents[3]
# A rack of 18 nodes with four GPUs each, and the folder of the jobs' files on Slurm's host.
RACK = tuple(f"r1-n{number:02d}" for number in range(1, 19))
GPUS = 4
SPOOL = "/tmp/rackproof-night.test"


def gpu(node: str, slot: int) -> str:
    return f"GPU-{int(node[-2:]):08x}-0000-0000-0000-{slot:012x}"


def line(key: str, value: object, kind: str = "POINT_IN_TIME", **metadata: object) -> str:
    """Return a line of an MLPerf log."""
    moment_ms = 1795318443480 + {"init_start": -1000, "run_stop": 5000}.get(key, 0)
    about = {"namespace": "", "time_ms": moment_ms, "event_type": kind, "key": key, "value": value}
    return ":::MLLOG " + json.dumps(about | {"metadata": {"file": "probe.py", "lineno": 1} | metadata})


def log(*events: str) -> str:
    """Return a log that ended well."""
    return "\n".join(
        [
            line("init_start", None, "INTERVAL_START"),
            line("submission_benchmark", "probe"),
            line("init_stop", None, "INTERVAL_END"),
            line("run_start", None, "INTERVAL_START"),
            *events,
            line("run_stop", None, "INTERVAL_END", status="success"),
        ]
    )


def measurement(name: str, value: float, unit: str, direction: str, **labels: str) -> str:
    about = {"name": name, "value": value, "unit": unit, "direction": direction, "labels": labels}
    return line("measurement", about)


def digest(node: str, slot: int, bits: str = "a" * 64) -> str:
    """Return the line with the digest of a GPU's training step. Equal GPUs have the same digest."""
    labels = {"gpu": gpu(node, slot), "gpu_index": str(slot)}
    return line("training_digest", {"digest": bits, "loss": 1.0, "alike": "H200, torch 2", "labels": labels})


def section(name: str, text: str, status: int | None = 0) -> str:
    """Return a program's output between its marks. With status None, the program did not end."""
    end = "" if status is None else f"\n{MARK}end {status}\n"
    return f"{MARK}begin {name}\n{text}{end}"


def node_says(node: str, *, wrong: int = 0, bits: dict[int, str] | None = None, speed: float = 790.0) -> str:
    """Return the output of a node's job.

    Args:
        node: The node.
        wrong: The number of wrong values of GPU 2.
        bits: Digests of training steps by slot, if they differ from the fleet's.
        speed: The speed of GPU 0 in TFLOP/s.
    """
    slots = range(GPUS)
    gemm = [
        measurement("gemm_best", speed + slot, "TFLOP/s", "higher", dtype="bf16", gpu=gpu(node, slot))
        for slot in slots
    ]
    errors = [
        measurement("wrong_values", wrong if slot == 2 else 0, "1", "lower", gpu=gpu(node, slot))
        for slot in slots
    ]
    steps = [digest(node, slot, (bits or {}).get(slot, "a" * 64)) for slot in slots]
    return "\n".join(
        [section("python", ""), section("gemm", log(*gemm, *errors)), section("training-step", log(*steps))]
    )


def pair_says(value: float = 380.0, wrong: int = 0) -> str:
    """Return the output of a pair's job, with its bandwidth in GB/s and the number of wrong sums."""
    labels = {"size_bytes": str(1 << 30), "nodes": "2"}
    numbers = [
        measurement("fabric_busbw", value, "GB/s", "higher", **labels),
        measurement("wrong_values", wrong, "1", "lower", **labels),
    ]
    return section("python", "") + section("fabric", log(*numbers))


Answer = Callable[[tuple[str, ...]], "tuple[str, int | None, float]"]
"""The output of a job on some nodes, its exit status (None: it hangs), and its seconds."""


@dataclass
class Slurm:
    """A shell on Slurm's host. Time passes only during :meth:`sleep`.

    ``most`` is the largest number of nodes that had a job at once. From ``silent_from`` on, in seconds, the
    host does not answer.
    """

    answer: Answer
    now: float = 0.0
    most: int = 0
    jobs: dict[str, tuple[tuple[str, ...], float, str, int | None]] = field(default_factory=dict)
    started: list[tuple[str, ...]] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)
    silent_from: float = float("inf")

    def shell(self, command: str) -> tuple[int, str, str]:
        if self.now >= self.silent_from:
            return 255, "", "ssh: connect to host ctl: Connection timed out"
        if command.startswith("mktemp"):
            return 0, SPOOL + "\n", ""
        if "setsid" in command:
            words = shlex.split(shlex.split(command)[shlex.split(command).index("-c") + 1])
            nodes = tuple(
                next(one for one in words if one.startswith("--nodelist=")).split("=")[1].split(",")
            )
            number = re.search(rf"{SPOOL}/(\d+)\.rc", command)[1]
            said, status, seconds = self.answer(nodes)
            self.started.append(nodes)
            self.jobs[number] = (nodes, self.now + seconds, said, status)
            self.most = max(self.most, sum(len(one[0]) for one in self.jobs.values()))
        elif "scancel" in command:
            self.cancelled.append(shlex.split(command)[2])
        elif "*.rc" in command:
            ended = [
                f"{number}.rc {one[3]}"
                for number, one in self.jobs.items()
                if one[1] <= self.now and one[3] is not None
            ]
            return 0, "\n".join([*ended, *(f"{number}.out" for number in self.jobs)]), ""
        elif "tail -c" in command:
            number = re.search(r"(\d{5})\.out", command)[1]
            return 0, self.jobs.pop(number)[2], ""
        return 0, "", ""

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def sound(nodes: tuple[str, ...]) -> tuple[str, int | None, float]:
    """Return the answer of a healthy node or pair."""
    return (node_says(nodes[0]) if len(nodes) == 1 else pair_says(), 0, 45.0)


def plan(**changes: object) -> ProbePlan:
    """Return a plan with a large budget. Jobs may use a quarter of a partition at a time."""
    return ProbePlan(
        **(  # type: ignore[arg-type]
            {
                "minutes": 2000.0,
                "share": 0.25,
                "python": "python3",
                "workloads": ROOT / "workloads",
                "benchmarks": ROOT / "benchmarks",
                "chosen": ("gemm", "training-step", "fabric"),
            }
            | changes
        )
    )


def runner(slurm: Slurm, how: ProbePlan, nodes: tuple[str, ...] = RACK) -> JobRunner:
    made = JobRunner(
        slurm.shell,
        how,
        {"batch": len(nodes)},
        dict.fromkeys(nodes, ("batch",)),
        clock=lambda: slurm.now,
        sleep=slurm.sleep,
    )
    made.begin()
    return made
