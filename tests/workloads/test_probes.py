"""Test the probes of workloads/ on the CPU. A probe is a short measurement of one node.

The tests show what each probe reports and which options it refuses, and that its checks catch wrong values
and another process on the same GPU (a neighbour).
"""

from __future__ import annotations

import os
import socket
import subprocess
from pathlib import Path

import pytest

from .test_supervision import ending
from .test_training import run, values

pytestmark = pytest.mark.torch

CPU = {"device": "cpu"}


@pytest.mark.parametrize(
    ("program", "arguments", "unit", "expected"),
    [
        # A probe with its arguments, the unit of its speeds, and the number of measurements of each name.
        (
            "probe_gemm.py",
            ["--seconds", "0.5", "--sizes", "64,128", "--dtypes", "fp32"],
            "TFLOP/s",
            {"gemm": 2, "gemm_best": 1, "max_relative_error": 1, "wrong_values": 1},
        ),
        (
            "probe_memory_bandwidth.py",
            ["--seconds", "0.5", "--size-mib", "16"],
            "TB/s",
            {"memory_copy": 1, "memory_triad": 1, "wrong_values": 1},
        ),
        (
            "probe_all_reduce.py",
            ["--seconds", "0.5", "--sizes-mib", "1,2", "--ranks", "2"],
            "GB/s",
            {"all_reduce_busbw": 2, "wrong_values": 2},
        ),
    ],
    ids=["gemm", "memory", "all-reduce"],
)
def test_a_probe_logs_its_measurements(
    root: Path, torch_python: str, program: str, arguments: list[str], unit: str, expected: dict[str, int]
) -> None:
    done = run(torch_python, root, program, *arguments)
    assert done.returncode == 0, done.stderr
    assert ending(done.stdout)["status"] == "success"
    measured = values(done.stdout, "measurement")
    counts = {
        name: sum(one["name"] == name for one in measured) for name in {one["name"] for one in measured}
    }
    assert counts == expected
    for one in measured:
        assert one["labels"].items() >= CPU.items()
        if one["name"] == "wrong_values":
            assert one["value"] == 0
            assert one["direction"] == "lower"
        elif one["name"] == "max_relative_error":
            assert 0 < one["value"] < 1e-5
        else:
            assert one["value"] > 0
            assert one["unit"] == unit
            assert one["direction"] == "higher"
            assert one["spread"]["count"] >= 5
            assert one["spread"]["low"] <= one["spread"]["median"] == one["value"] <= one["spread"]["high"]


def test_a_sustained_load_is_logged_every_second(root: Path, torch_python: str) -> None:
    done = run(torch_python, root, "probe_soak.py", "--seconds", "8")
    assert done.returncode == 0, done.stderr
    measured = {one["name"]: one["value"] for one in values(done.stdout, "measurement")}
    # A node without GPUs has no readings or counters of a GPU.
    assert set(measured) == {
        "soak", "soak_elapsed", "soak_seconds", "soak_stalls", "soak_step_p50", "soak_step_p99",
        "wrong_values",
    }  # fmt: skip
    assert measured["wrong_values"] == 0
    assert measured["soak_seconds"] >= 8
    assert measured["soak"] > 0
    (soak,) = (one for one in values(done.stdout, "measurement") if one["name"] == "soak")
    assert soak["spread"]["count"] >= 3
    assert len(values(done.stdout, "gpu_sample")) >= 3


@pytest.mark.parametrize(
    ("program", "arguments", "status", "message"),
    [
        # A probe with its arguments, the exit status (2 wrong usage, 4 no GPU), and a part of the message.
        ("probe_gemm.py", ["--device", "gpu"], 4, "all GPUs requested, 0 exist"),
        ("probe_gemm.py", ["--dtypes", "fp5"], 2, "fp5"),
        ("probe_gemm.py", ["--sizes", "100"], 2, "multiples of 16"),
        ("probe_memory_bandwidth.py", ["--size-mib", "0"], 2, "at least 1"),
        ("probe_host_device_bandwidth.py", [], 4, "0 exist"),
        ("probe_host_device_bandwidth.py", ["--device", "cpu"], 2, "without a GPU"),
        ("probe_host_device_bandwidth.py", ["--gpus", "0"], 2, "without a GPU"),
        ("probe_peer_bandwidth.py", ["--gpus", "2"], 4, "2 GPUs requested, 0 exist"),
        ("probe_peer_bandwidth.py", ["--device", "cpu"], 2, "without GPUs"),
        ("probe_all_reduce.py", ["--ranks", "1"], 2, "at least 2 ranks"),
        ("probe_all_reduce.py", ["--sizes-mib", "8,x"], 2, "not positive whole numbers"),
    ],
)
def test_a_probe_refuses_options_that_it_cannot_use(
    root: Path, torch_python: str, program: str, arguments: list[str], status: int, message: str
) -> None:
    done = run(torch_python, root, program, *arguments)
    assert done.returncode == status
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert ending(done.stdout)["status"] == "aborted"


# Code that gives wrong values to the checks of three probes.
CHECKS = """
import math, sys, torch
import probe_all_reduce, probe_gemm, probe_memory_bandwidth
from common import Rank
from pathlib import Path

a, b = torch.rand(1000), torch.rand(1000)
for scale, other, good in ((0.0, None, a), (3.0, b, a + 3 * b)):
    assert probe_memory_bandwidth.count_wrong(good.clone(), a, other, scale) == 0
    bad = good.clone(); bad[3] += 0.5; bad[7] = math.nan
    assert probe_memory_bandwidth.count_wrong(bad, a, other, scale) == 2

ranks = [Rank(index, 3, Path(), 0.0) for index in range(3)]
parts = [torch.empty(500) for _ in ranks]
for part, rank in zip(parts, ranks):
    probe_all_reduce.fill(part, rank, 1)
assert not torch.equal(parts[0], parts[1])
total = sum(parts)
assert probe_all_reduce.count_wrong(total, ranks[0], 1) == 0
total[9] += 1; total[20] = math.nan
assert probe_all_reduce.count_wrong(total, ranks[2], 1) == 2

real = torch.mm
def broken(left, right, out):
    real(left, right, out=out)
    out[5] += 100.0
    out[6, 6] = math.nan
torch.mm = broken
_, error, wrong = probe_gemm.measure("fp32", 64, torch.device("cpu"), 0.0)
assert wrong >= 65, wrong
assert not error < 1e-3, error
print("caught")
"""


# Code that checks the 95th percentile of times, and then measures products beside a neighbour.
SUSTAINED = """
import torch
import probe_gemm

times = [1.0] * 18 + [3.0, 2.0]
assert probe_gemm.slow_seconds(times) == 3.0
assert probe_gemm.slow_seconds([1.0] * 95 + [2.0] * 5) == 2.0
assert probe_gemm.slow_seconds([1.0] * 96 + [2.0] * 4) == 1.0
assert probe_gemm.slow_seconds([4.0]) == 4.0

# On this fake GPU, a product takes 0.02 s, and every tenth one 0.04 s, as if a neighbour used the GPU.
now = [0.0]
class Event:
    def __init__(self, enable_timing):
        self.at = None
    def record(self):
        self.at = now[0]
    def elapsed_time(self, other):
        return (other.at - self.at) * 1e3
real, calls = torch.mm, [0]
def timed(left, right, out):
    calls[0] += 1
    now[0] += 0.02 if calls[0] % 10 else 0.04
    return real(left, right, out=out)
torch.mm = timed
torch.cuda.Event, torch.cuda.synchronize = Event, lambda device: None
probe_gemm.common.median_seconds = lambda call, device, seconds: 0.02
mean, slow, _ = probe_gemm.sustained("fp32", 64, torch.device("cpu"))
alone = 2.0 * 64**3 / 1e12 / 0.02
assert abs(mean / alone - 1 / 1.1) < 1e-6, mean / alone
assert abs(slow / alone - 0.5) < 1e-6, slow / alone
print("seen")
"""


def test_products_back_to_back_show_a_neighbour(root: Path, torch_python: str) -> None:
    environment = {**os.environ, "PYTHONPATH": str(root / "workloads"), "RACKPROOF_WORKLOAD_RANK": "0"}
    done = subprocess.run(
        [torch_python, "-c", SUSTAINED], capture_output=True, text=True, timeout=120, env=environment
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "seen"


def test_checks_catch_wrong_values(root: Path, torch_python: str) -> None:
    environment = {**os.environ, "PYTHONPATH": str(root / "workloads"), "RACKPROOF_WORKLOAD_RANK": "0"}
    done = subprocess.run(
        [torch_python, "-c", CHECKS], capture_output=True, text=True, timeout=120, env=environment
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "caught"


def test_the_training_step_gives_the_same_bits_again(root: Path, torch_python: str) -> None:
    """A night compares the GPUs of a fleet by this digest. Another seed gives another digest."""
    found = []
    for seed in ("1", "1", "2"):
        done = run(
            torch_python,
            root,
            "probe_training_step.py",
            "--width",
            "32",
            "--steps",
            "2",
            "--seed",
            seed,
        )
        assert done.returncode == 0, done.stderr
        (one,) = values(done.stdout, "training_digest")
        assert one["labels"] == CPU
        found.append(one["digest"])
    assert found[0] == found[1] != found[2]


def test_two_nodes_reduce_together(root: Path, torch_python: str) -> None:
    """Both nodes are this machine. The bandwidth has another name than on one node."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = ["--device", "cpu", "--ranks", "1", "--sizes-mib", "1", "--seconds", "0.2", "--nodes", "2"]
    words += ["--rendezvous", f"127.0.0.1:{port}", "--time-limit", "60", "--node-rank"]
    program = root / "workloads/probe_all_reduce.py"
    both = [
        subprocess.Popen([torch_python, program, *words, str(rank)], stdout=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    first, second = (one.communicate(timeout=300)[0] for one in both)
    assert [one.returncode for one in both] == [0, 0], first + second
    measured = values(first, "measurement")
    assert {one["name"] for one in measured} == {"fabric_busbw", "wrong_values"}
    assert all(one["labels"]["nodes"] == "2" for one in measured)
    assert not values(second, "measurement")


def test_several_nodes_need_a_rendezvous(root: Path, torch_python: str) -> None:
    done = run(torch_python, root, "probe_all_reduce.py", "--nodes", "2")
    assert done.returncode == 2
    assert "--rendezvous" in done.stderr


@pytest.mark.parametrize("seconds", ["-3", "0", "inf", "nan", "many"])
def test_a_probe_refuses_a_time_that_is_not_a_positive_finite_number(
    root: Path, torch_python: str, seconds: str
) -> None:
    done = run(torch_python, root, "probe_memory_bandwidth.py", "--seconds", seconds)
    assert done.returncode == 2
    assert "--seconds" in done.stderr
