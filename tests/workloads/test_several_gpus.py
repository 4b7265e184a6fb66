"""Test the probes of several GPUs with processes on the CPU: collectives, agreement, and stragglers.

A collective is an operation between all ranks, such as all-reduce. Agreement means that GPUs of one model
compute the same bits. A straggler is a rank that is slower than the others. The tests inject faults, and show
that each is found and that its rank is named.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from .test_supervision import ending
from .test_training import run, values

pytestmark = pytest.mark.torch

COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "alltoall", "broadcast", "sendrecv")
SHORT = ("--device", "cpu", "--seconds", "0.1")


def with_fault(
    python: str, root: Path, folder: Path, program: str, fault: str, *words: str, key: str = "measurement"
) -> list[Any]:
    """Return the measurements, or other events, of a program with a fault. RANK is the rank in its code."""
    script = folder / "faulty.py"
    script.write_text(
        f"import os, sys\nsys.path.insert(0, {str(root / 'workloads')!r})\n"
        f"import common, {program} as program\n"
        "RANK = int(os.environ.get('RACKPROOF_WORKLOAD_RANK', -1))\n"
        f"{fault}\n"
        f"sys.exit(common.run('faulty', program.parser(), program.plan, program.probe))\n"
    )
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [python, str(script), *SHORT, *words], capture_output=True, text=True, timeout=120, env=environment
    )
    assert done.returncode == 0, done.stderr
    return values(done.stdout, key)


def of_ranks(measured: list[Any], name: str, **labels: str) -> dict[str, float]:
    """Return the value of a measurement on each rank, for those with the labels."""
    return {
        one["labels"]["rank"]: one["value"]
        for one in measured
        if one["name"] == name and labels.items() <= one["labels"].items()
    }


@pytest.mark.parametrize(("ranks", "dtype"), [(2, "float32"), (3, "bfloat16"), (4, "float32")])
def test_collectives_have_right_values(root: Path, torch_python: str, ranks: int, dtype: str) -> None:
    words = [
        *SHORT,
        "--ranks",
        str(ranks),
        "--dtype",
        dtype,
        "--sizes-kib",
        "8,100",
        "--straggler-seconds",
        "0",
    ]
    done = run(torch_python, root, "probe_collectives.py", *words)
    assert done.returncode == 0, done.stderr
    assert ending(done.stdout)["status"] == "success"
    measured = values(done.stdout, "measurement")
    for name in COLLECTIVES:
        wrong = of_ranks(measured, "wrong_values", collective=name)
        assert wrong == {str(rank): 0 for rank in range(ranks)}
        rates = [one for one in measured if one["name"] == f"{name}_busbw"]
        assert {one["labels"]["size_bytes"] for one in rates} == {"8192", "102400"}
        assert all(one["value"] > 0 and one["labels"]["ranks"] == str(ranks) for one in rates)
    assert [one["value"] for one in measured if one["name"] == "points_left_out"] == [0]
    assert values(done.stdout, "nccl_settings") == [{"NCCL_NVLS_ENABLE": "0"}]


CORRUPT = """
def plus_one(got): got[0, 5] += 1
def nan_at_the_end(got): got[-1, -1] = float("nan")
def negated(got): got.mul_(-1)
def nothing(got): got.zero_()
def swapped(got): got.copy_(got.flip(1))
def one_bit(got): got.view(program.torch.int32)[0, 9] ^= 1
FAULTS = {"all_reduce": (1, plus_one), "all_gather": (2, nan_at_the_end), "reduce_scatter": (0, negated),
          "alltoall": (1, nothing), "broadcast": (2, swapped), "sendrecv": (0, one_bit)}
class Corrupt:
    def __init__(self, work, buffers):
        self.work, self.buffers = work, buffers
    def wait(self):
        self.work.wait()
        rank, change = FAULTS[self.buffers.name]
        if rank == RANK:
            change(self.buffers.got)
real = program.Buffers.queue
program.Buffers.queue = lambda buffers: Corrupt(real(buffers), buffers)
"""


def test_a_wrong_value_names_its_rank(root: Path, torch_python: str, tmp_path: Path) -> None:
    words = ("--ranks", "3", "--sizes-kib", "8", "--straggler-seconds", "0")
    measured = with_fault(torch_python, root, tmp_path, "probe_collectives", CORRUPT, *words)
    named = {"all_reduce": "1", "all_gather": "2", "reduce_scatter": "0", "alltoall": "1"}
    named |= {"broadcast": "2", "sendrecv": "0"}
    for name in COLLECTIVES:
        wrong = of_ranks(measured, "wrong_values", collective=name)
        assert {one for one, count in wrong.items() if count} == {named[name]}, name


NOT_DONE = """
class Done:
    def wait(self):
        pass
program.Buffers.queue = lambda buffers: Done()
"""


def test_a_collective_that_does_nothing_is_wrong(root: Path, torch_python: str, tmp_path: Path) -> None:
    """Values of an earlier collective in memory do not count. A broadcast's root has its own values."""
    words = ("--ranks", "2", "--sizes-kib", "8", "--straggler-seconds", "0")
    measured = with_fault(torch_python, root, tmp_path, "probe_collectives", NOT_DONE, *words)
    for name in COLLECTIVES:
        wrong = of_ranks(measured, "wrong_values", collective=name)
        named = {one for one, count in wrong.items() if count}
        assert named == ({"1"} if name == "broadcast" else {"0", "1"}), name


SLOW = """
now = [0.0]
class Steps(program.Steps):
    def __init__(self, device):
        super().__init__(device)
        real = self.multiply
        def multiply(out):
            now[0] += {seconds}
            return real(out)
        self.multiply = multiply
    def mark(self):
        return now[0]
program.Steps = Steps
"""


@pytest.mark.parametrize(
    ("seconds", "lags"),
    [
        # Seconds of a product by rank, and how much longer than the fastest rank's they are, as a share.
        ("1.0", [0, 0, 0]),
        ("1.1 if RANK == 1 else 1.0", [0, 0.1, 0]),
        ("1.05 if RANK == 0 else 1.0 + RANK / 100", [1.05 / 1.01 - 1, 0, 1.02 / 1.01 - 1]),
    ],
    ids=["none", "a-tenth", "two"],
)
def test_a_straggler_is_named(
    root: Path, torch_python: str, tmp_path: Path, seconds: str, lags: list[float]
) -> None:
    words = ("--ranks", "3", "--collectives", "broadcast", "--sizes-kib", "8", "--straggler-seconds", "0.1")
    fault = SLOW.format(seconds=seconds)
    measured = with_fault(torch_python, root, tmp_path, "probe_collectives", fault, *words)
    for name in ("compute_lag", "compute_lag_p95"):
        found = of_ranks(measured, name)
        assert [found[str(rank)] for rank in range(3)] == pytest.approx(lags, abs=1e-6)


WRONG = """
real = program.Load.compare
def compare(self):
    real(self)
    self.out[0, 0] += 1
    self.differ += (self.out.view(self.bits) != self.first.view(self.bits)).sum()
program.Load.compare = compare
"""


def test_a_held_load_counts_values_that_differ(root: Path, torch_python: str, tmp_path: Path) -> None:
    measured = with_fault(torch_python, root, tmp_path, "probe_soak", WRONG, "--seconds", "6")
    (wrong,) = [one["value"] for one in measured if one["name"] == "wrong_values"]
    assert wrong >= 3


OTHER_BITS = """
real = program.products
def products(dtype, size, device, seed, seconds):
    digest, differ, made = real(dtype, size, device, seed, seconds)
    return (f"{{RANK}}" if {when} else digest), differ, made
program.products = products
"""


@pytest.mark.parametrize(
    ("ranks", "when", "odd", "disputed"),
    [
        (3, "RANK == 0 and size == 32", {"0"}, set()),
        (2, "RANK == 1", set(), {"0", "1"}),
    ],
    ids=["one-of-three", "two-gpus"],
)
def test_other_bits_name_the_odd_one(
    root: Path, torch_python: str, tmp_path: Path, ranks: int, when: str, odd: set[str], disputed: set[str]
) -> None:
    words = ("--ranks", str(ranks), "--sizes", "16,32", "--dtypes", "fp32")
    fault = OTHER_BITS.format(when=when)
    measured = with_fault(torch_python, root, tmp_path, "probe_gpu_agreement", fault, *words)
    assert {one for one, count in of_ranks(measured, "odd_products").items() if count} == odd
    assert {one for one, count in of_ranks(measured, "disputed_products").items() if count} == disputed
    assert of_ranks(measured, "compared_with") == {str(rank): ranks - 1 for rank in range(ranks)}


AGREEMENT = """
import torch
import probe_gpu_agreement as program

for digests, expected in (
    ("aa", ([], False)), ("ab", ([], True)), ("aab", ([2], False)), ("baa", ([0], False)),
    ("abc", ([], True)),
    ("aabb", ([], True)), ("aaab", ([3], False)), ("aabc", ([], True)), ("aaabc", ([3, 4], False)),
    ("aaaaaaab", ([7], False)), ("a", ([], False)),
):
    assert program.dissenters(list(digests)) == expected, digests
said = [{"model": model, "digests": {"fp32 16": digest}} for model, digest in ("Aa", "Bb", "Aa", "Bb", "Ac")]
assert program.compared(said, 0, "fp32 16") == ([0, 2, 4], [4], False)
assert program.compared(said, 1, "fp32 16") == ([1, 3], [], False)
# A product that one of them lacks is not the same.
assert program.compared(said[:3], 0, "fp8 16") == ([0, 2], [], False)
said[0]["digests"]["fp8 16"] = "a"
assert program.compared(said[:3], 0, "fp8 16") == ([0, 2], [], True)

real = program.probe_gemm.product
def plus_one(out): out[3, 3] += 1
def negated(out): out[0].mul_(-1)
def nan(out): out[15, 15] = float("nan")
def zero(out): out.view(-1)[7] = 0.0
def negative_zero(out): out.view(-1)[7] = -0.0
def found(dtype, faults):
    calls = [0]
    def product(*words):
        left, right, multiply = real(*words)
        def broken(out):
            calls[0] += 1
            multiply(out)
            faults.get(calls[0], lambda out: None)(out)
        return left, right, broken
    program.probe_gemm.product = product
    return program.products(dtype, 16, torch.device("cpu"), 1, 0.0)
for dtype in ("fp32", "bf16"):
    good, differ, made = found(dtype, {})
    assert (differ, made) == (0, 3)
    assert found(dtype, {})[0] == good, "the same seed gives the same bits"
    assert found(dtype, {2: plus_one})[1] == 1
    assert found(dtype, {3: negated})[1] == 16
    assert found(dtype, {1: nan})[1] == 2
    assert found(dtype, {1: zero, 2: negative_zero, 3: zero})[1] == 1
    assert found(dtype, {1: nan, 2: nan, 3: nan})[1] == 0
    assert found(dtype, {1: nan, 2: nan, 3: nan})[0] != good
print("seen")
"""


def test_digests_and_repeats_show_other_bits(root: Path, torch_python: str) -> None:
    assert pure(root, torch_python, AGREEMENT, rank="0").strip() == "seen"


@pytest.mark.parametrize(
    ("program", "words", "status", "message"),
    [
        ("probe_collectives.py", ["--ranks", "1"], 2, "at least 2 ranks"),
        ("probe_collectives.py", ["--collectives", "gather"], 2, "gather is not among"),
        ("probe_collectives.py", ["--collectives", ","], 2, "nothing is not among"),
        ("probe_collectives.py", ["--sizes-kib", "8,0"], 2, "not positive whole numbers"),
        ("probe_collectives.py", ["--device", "gpu"], 4, "0 exist"),
        ("probe_gpu_agreement.py", ["--ranks", "1"], 2, "at least 2 ranks"),
        ("probe_gpu_agreement.py", ["--dtypes", "fp5"], 2, "fp5"),
        ("probe_gpu_agreement.py", ["--device", "gpu", "--gpus", "2"], 4, "0 exist"),
    ],
)
def test_a_probe_refuses_options_that_it_cannot_use(
    root: Path, torch_python: str, program: str, words: list[str], status: int, message: str
) -> None:
    done = run(torch_python, root, program, *words)
    assert done.returncode == status, done.stderr
    assert message in done.stderr


PURE = """
import sys
import probe_collectives as collectives, probe_peer_bandwidth as peer
from common import Gpu

# The factors of nccl-tests (doc/PERFORMANCE.md), for 2, 4 and 8 ranks.
factors = {name: [one.factor(ranks) for ranks in (2, 4, 8)] for name, one in collectives.COLLECTIVES.items()}
part = [0.5, 0.75, 0.875]
assert factors == {"all_reduce": [1, 1.5, 1.75], "all_gather": part, "reduce_scatter": part, "alltoall": part,
                   "broadcast": [1, 1, 1], "sendrecv": [1, 1, 1]}, factors

gpus = [Gpu(index, f"GPU-{index}", "model") for index in range(4)]
pairs = peer.ordered_pairs(gpus)
assert len(pairs) == len(set(pairs)) == 12
assert peer.rounds(gpus, "all_at_once") == [pairs]
both = peer.rounds(gpus, "both_ways")
assert {pair for one in both for pair in one} == set(pairs)
assert all(len(one) == 2 and one[0] == one[1][::-1] for one in both)
assert peer.rounds(gpus[:1], "both_ways") == peer.rounds(gpus[:1], "all_at_once") == []
for slow in ("0-1", "3-2", "1-3"):
    rates = {peer.labels_of(pair)["pair"]: 400.0 for pair in pairs} | {slow: 300.0}
    assert peer.slowest_pair(rates) == (slow, 0.25)

text = open(sys.argv[1]).read()
assert list(collectives.nccl_tests_rows(text, False)) == [(40160460, 389.23, 0)]
assert list(collectives.nccl_tests_rows(text, True)) == [(40160460, 406.30, 0)]
"""


def pure(root: Path, python: str, text: str, *words: str, path: str = "", rank: str = "") -> str:
    """Return the output of Python code that may import the programs. A rank also has PyTorch."""
    environment = {**os.environ, "PYTHONPATH": str(root / "workloads")}
    environment |= {"RACKPROOF_WORKLOAD_RANK": rank} if rank else {}
    environment["PATH"] = path or environment["PATH"]
    done = subprocess.run(
        [python, "-c", text, *words], capture_output=True, text=True, timeout=120, env=environment
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_factors_pairs_and_tables(root: Path, torch_python: str) -> None:
    pure(root, torch_python, PURE, str(root / "tests/data/real/nccl/b200-8gpu-all_reduce.txt"))


# Code that times collectives on a host and a GPU that are made up. The result must be the GPU's time,
# whatever their speeds are.
HOST = """
import itertools
from types import SimpleNamespace as Made
import probe_all_reduce as program

agreed = lambda count, device, least, most: int(max(least, min(most, count)))


class Machine:
    # A host, and a GPU that does in turn what is queued; times are in seconds.

    def __init__(self, host_s, gpu_s, skew_s):
        self.host_s, self.gpu_s, self.skew_s = host_s, gpu_s, skew_s
        self.host = self.gpu = 0.0

    def queue(self, takes_s):
        self.gpu = max(self.gpu, self.host) + takes_s

    def start(self):
        self.host += self.host_s
        self.queue(self.gpu_s)
        return Made(wait=lambda: None)

    def meet(self, tensor):
        self.host += self.host_s
        self.queue(self.skew_s)

    def synchronize(self):
        self.host = max(self.host, self.gpu)

    def event(self, enable_timing):
        made = Made(at=0.0)
        made.record = lambda: self.queue(0) or setattr(made, "at", self.gpu)
        made.elapsed_time = lambda other: (other.at - made.at) * 1e3
        return made


for host_s, gpu_s, skew_s in itertools.product([1e-6, 70e-6, 2e-3], [5e-6, 48e-6, 45e-3], [0.0, 3e-3]):
    it = Machine(host_s, gpu_s, skew_s)
    sleep = lambda cycles: it.queue(cycles / program.CLOCK_HZ)
    program.agreed, program.time = agreed, Made(perf_counter=lambda: it.host)
    program.torch = Made(
        cuda=Made(Event=it.event, synchronize=it.synchronize, _sleep=sleep),
        distributed=Made(barrier=lambda: None, all_reduce=it.meet),
        zeros=lambda count, device: None,
    )
    taken = program.samples_s(it.start, lambda: None, Made(type="cuda"), 0.5, 100)
    assert len(taken) >= 5 and all(abs(one - gpu_s) < 1e-9 for one in taken), (host_s, gpu_s, skew_s, taken)
"""


def test_the_time_of_a_collective_is_the_gpus_however_slow_the_host(root: Path, torch_python: str) -> None:
    pure(root, torch_python, HOST, rank="0")


# Code that compares speeds of 100 GB/s with the table of a fake all_reduce_perf.
COMPARE = """
import common, probe_collectives as collectives
log = common.Log()
sizes = [8 << 20, 32 << 20]
medians = {("all_reduce", size): 100.0 for size in sizes}
collectives.compare(["all_reduce", "alltoall"], sizes, "float32", ["GPU-a", "GPU-b"], log, {}, medians)
"""
TABLE = """# size count type redop root time algbw busbw #wrong time algbw busbw #wrong
8388608 2097152 float sum      -1    90.1   93.1   80.0      0    84.5   99.2   {fast}      {wrong}
16777216 4194304 float sum      -1    90.1   93.1   80.0      0    84.5   99.2   90.0      0
33554432 8388608 float sum      -1    90.1   93.1   80.0      0    84.5   99.2   125.0      0
"""


@pytest.mark.parametrize(
    ("table", "status", "ratios", "wrong"),
    [
        (TABLE.format(fast="100.5", wrong=0), 0, [100 / 100.5, 0.8], [0, 0]),
        (TABLE.format(fast="100.5", wrong=7), 0, [100 / 100.5, 0.8], [7, 0]),
        (TABLE.format(fast="100.5", wrong="N/A"), 0, [100 / 100.5, 0.8], [1, 0]),
        (TABLE.format(fast="100.5", wrong=0), 3, [], []),
        ("all GPUs are busy\n", 0, [], []),
    ],
    ids=["good", "wrong", "not-checked", "failed", "no-table"],
)
def test_nccl_tests_are_compared(
    root: Path,
    torch_python: str,
    tmp_path: Path,
    table: str,
    status: int,
    ratios: list[float],
    wrong: list[int],
) -> None:
    program = tmp_path / "all_reduce_perf"
    program.write_text(f"#!/bin/sh\ncat <<'END'\n{table}END\nexit {status}\n")
    program.chmod(0o755)
    cat = Path(shutil.which("cat") or "/bin/cat").parent
    said = pure(root, torch_python, COMPARE, path=f"{tmp_path}:{cat}")
    measured = values(said, "measurement")
    assert [one["value"] for one in measured if one["name"] == "nccl_tests_ratio"] == pytest.approx(ratios)
    assert [one["value"] for one in measured if one["name"] == "nccl_tests_wrong_values"] == wrong
    states = {one["collective"]: one["state"] for one in values(said, "nccl_tests")}
    assert states == {"all_reduce": "ran" if ratios else "failed", "alltoall": "absent"}
