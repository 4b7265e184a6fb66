"""Collectives, agreement and stragglers with processes on the CPU: what each fault is named by."""

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


def with_fault(python: str, root: Path, folder: Path, program: str, fault: str, *words: str) -> list[Any]:
    """Return the measurements of a program with a fault in it, which RANK knows."""
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
    return values(done.stdout, "measurement")


def of_ranks(measured: list[Any], name: str, **labels: str) -> dict[str, float]:
    return {
        one["labels"]["rank"]: one["value"]
        for one in measured
        if one["name"] == name and labels.items() <= one["labels"].items()
    }


@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
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
class Corrupt:
    def __init__(self, work, buffers):
        self.work, self.buffers = work, buffers
    def wait(self):
        self.work.wait()
        {change}
real = program.Buffers.queue
if RANK == {rank}:
    program.Buffers.queue = lambda buffers: Corrupt(real(buffers), buffers)
"""


@pytest.mark.parametrize(
    ("rank", "change"),
    [
        (1, "self.buffers.got[0, 5] += 1"),
        (2, "self.buffers.got[-1, -1] = float('nan')"),
        (0, "self.buffers.got[0, :2] = self.buffers.got[0, :2].flip(0) + 0.5"),
        (2, "self.buffers.got.zero_()"),
    ],
)
def test_a_wrong_value_names_its_rank(
    root: Path, torch_python: str, tmp_path: Path, rank: int, change: str
) -> None:
    fault = CORRUPT.format(rank=rank, change=change)
    words = ("--ranks", "3", "--sizes-kib", "8", "--straggler-seconds", "0")
    measured = with_fault(torch_python, root, tmp_path, "probe_collectives", fault, *words)
    for name in COLLECTIVES:
        wrong = of_ranks(measured, "wrong_values", collective=name)
        assert {one for one, count in wrong.items() if count} == {str(rank)}, name


NOT_DONE = """
real = program.Buffers.queue
class Done:
    def wait(self):
        pass
program.Buffers.queue = lambda buffers: Done() if buffers.name == {name!r} else real(buffers)
"""


@pytest.mark.parametrize("name", COLLECTIVES)
def test_a_collective_that_does_nothing_is_wrong(
    root: Path, torch_python: str, tmp_path: Path, name: str
) -> None:
    """What an earlier collective left in memory is no result; a broadcast's root has its own."""
    words = ("--ranks", "2", "--sizes-kib", "8", "--straggler-seconds", "0")
    measured = with_fault(
        torch_python, root, tmp_path, "probe_collectives", NOT_DONE.format(name=name), *words
    )
    wrong = of_ranks(measured, "wrong_values", collective=name)
    assert {one for one, count in wrong.items() if count} == ({"1"} if name == "broadcast" else {"0", "1"})


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
        ("1.0", [0, 0, 0]),
        ("1.1 if RANK == 1 else 1.0", [0, 0.1, 0]),
        ("1.05 if RANK == 0 else 1.0", [0.05, 0, 0]),
        ("1.0 + RANK / 10", [0, 0.1, 0.2]),
    ],
    ids=["none", "a-tenth", "the-first", "two"],
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
        (4, "False", set(), set()),
        (4, "RANK == 3", {"3"}, set()),
        (3, "RANK == 0 and size == 32", {"0"}, set()),
        (2, "RANK == 1", set(), {"0", "1"}),
        (4, "RANK > 1", set(), {"0", "1", "2", "3"}),
        (3, "True", set(), {"0", "1", "2"}),
    ],
    ids=["none", "last", "one-size", "two-gpus", "half", "all"],
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


UNSTABLE = """
real, calls = program.probe_gemm.product, [0]
def product(*words):
    left, right, multiply = real(*words)
    def broken(out):
        calls[0] += 1
        multiply(out)
        if RANK == 1 and calls[0] {when}:
            {change}
    return left, right, broken
program.probe_gemm.product = product
"""


@pytest.mark.parametrize(
    ("when", "change"),
    [
        ("== 2", "out[3, 3] += 1"),
        (">= 3", "out[0].mul_(-1)"),
        ("== 1", "out[15, 15] = float('nan')"),
        ("== 3", "out.view(-1)[7] = -0.0"),
    ],
)
def test_a_gpu_whose_repeats_differ_is_named_by_itself(
    root: Path, torch_python: str, tmp_path: Path, when: str, change: str
) -> None:
    fault = UNSTABLE.format(when=when, change=change)
    words = ("--ranks", "2", "--sizes", "16", "--dtypes", "fp32")
    measured = with_fault(torch_python, root, tmp_path, "probe_gpu_agreement", fault, *words)
    assert {one for one, count in of_ranks(measured, "unstable_values").items() if count} == {"1"}


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
        ("probe_gpu_agreement.py", ["--gpus", "2"], 0, ""),
    ],
)
def test_refuses(
    root: Path, torch_python: str, program: str, words: list[str], status: int, message: str
) -> None:
    done = run(torch_python, root, program, *words, *(("--seconds", "0.1") if not status else ()))
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

rows = list(collectives.nccl_tests_rows(open(sys.argv[1]).read()))
assert rows and all(apart > 0 and here > 0 for _, apart, here, _ in rows)
print(*rows[-1])
"""


def pure(root: Path, python: str, text: str, *words: str, path: str = "") -> str:
    environment = {**os.environ, "PYTHONPATH": str(root / "workloads"), "RACKPROOF_WORKLOAD_RANK": "0"}
    environment["PATH"] = path or environment["PATH"]
    done = subprocess.run(
        [python, "-c", text, *words], capture_output=True, text=True, timeout=120, env=environment
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_factors_pairs_and_tables(root: Path, torch_python: str) -> None:
    real = root / "tests/data/real/nccl/b200-8gpu-all_reduce.txt"
    last = [line.split() for line in real.read_text().splitlines() if line.split()[:1] and "float" in line][
        -1
    ]
    said = pure(root, torch_python, PURE, str(real)).split()
    assert [float(one) for one in said[:3]] == [float(last[0]), float(last[7]), float(last[11])]


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
