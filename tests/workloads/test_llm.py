"""Test workloads/llm_torch.py, which trains a Llama-shaped network and checks that losses repeat bit by bit.

A GPU that computes a wrong bit now and then shows in a loss that differs from its repeat, or from the losses
of other GPUs with the same weights and tokens. The tests compare the numbers of parameters and FLOP per token
with sums by hand. On the CPU, they inject faults, and show that the faulty rank is named.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from .programs import load_program
from .test_several_gpus import of_ranks
from .test_supervision import ending
from .test_training import run, values

shapes = load_program("llm_shapes")

TINY = ("--gpus", "0", "--batch", "2", "--steps", "8", "--repeat", "2")
MEASURED = {
    "loss_repeat_differs", "tokens_per_second_per_gpu", "model_flops", "tokens_per_second", "step_time",
    "step_time_p99", "step_time_deviation", "loss_begin", "loss_end", "loss_fall", "startup_time",
}  # fmt: skip


@pytest.fixture(scope="module")
def program(root: Path) -> Any:
    """Return workloads/llm_torch.py as a module."""
    sys.path.insert(0, str(root / "workloads"))
    try:
        return load_program("llm_torch")
    finally:
        sys.path.remove(str(root / "workloads"))


@pytest.mark.parametrize(
    ("size", "parameters", "flop", "lora"),
    [
        # The number of parameters, and the FLOP per token of a whole training and of LoRA. By hand, N is 22
        # layers x 44.04e6 + 65.5e6 of the head. A whole training needs 6 N, and its attention 6 x 22 x 2048 x
        # 4096. LoRA needs 4 N, 6 x 10.45e6 of the adapters, and the same attention.
        ("1b", 1.1000e9, 7.3138e9, 5.3077e9),
        # N is 32 x 218.1e6 + 525.3e6, and the attention needs 6 x 32 x 4096 x 4096.
        ("8b", 8.0303e9, 48.25e9, 33.454e9),
    ],
)
def test_parameters_and_flop_per_token_are_those_by_hand(
    size: str, parameters: float, flop: float, lora: float
) -> None:
    shape = shapes.shape_of(size, None)
    assert shape.parameters == pytest.approx(parameters, rel=1e-4)
    assert shape.flop_per_token(4096, "pretrain") == pytest.approx(flop, rel=1e-3)
    assert shape.flop_per_token(4096, "lora") == pytest.approx(lora, rel=1e-3)
    half = shapes.shape_of(size, shape.layers // 2)
    layers = shape.parameters - 2 * shape.width * shape.vocabulary - shape.width
    assert shape.parameters - half.parameters == layers / 2


@given(st.lists(st.integers(0, 3), min_size=1, max_size=8), st.integers(3, 8), st.data())
def test_a_replica_that_differs_is_named(
    program: Any, bits: list[int], count: int, data: st.DataObject
) -> None:
    wrong = data.draw(st.integers(0, count - 1))
    at = data.draw(st.integers(0, len(bits) - 1))
    curves = [list(bits) for _ in range(count)]
    assert program.odd_steps(curves) == [0] * count
    curves[wrong][at] += 1
    assert program.odd_steps(curves) == [int(index == wrong) for index in range(count)]


def test_of_two_replicas_that_differ_both_are_odd(program: Any) -> None:
    assert program.odd_steps([[1, 2, 3], [1, 2, 4]]) == [1, 1]


@pytest.mark.parametrize("bits", [[1, 2, 3], [1, 1, 2, 2], [1, 1, 2, 3]])
def test_without_a_majority_all_replicas_are_odd(program: Any, bits: list[int]) -> None:
    assert program.odd_steps([[0, bit] for bit in bits]) == [1] * len(bits)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--sequence", "100"], "multiple of 16"),
        (["--sequence", "64"], "1 GPU requested, 0 exist"),
    ],
)
def test_what_does_not_fit_is_refused(root: Path, options: list[str], message: str) -> None:
    """The supervisor refuses it without importing a framework."""
    done = run(sys.executable, root, "llm_torch.py", *options)
    assert done.returncode in (2, 4)
    assert message in done.stderr


@pytest.mark.torch
@pytest.mark.parametrize(
    "options",
    [
        ["--dtype", "fp8"],
        ["--mode", "lora", "--recompute", "on"],
        ["--processes", "2", "--parallel", "fsdp", "--mode", "lora", "--dtype", "fp8"],
        # Four ranks, because the sum of two gradients does not depend on their order.
        ["--processes", "4", "--parallel", "ddp"],
    ],
    ids=" ".join,
)
def test_it_trains_and_repeats_every_bit(root: Path, torch_python: str, options: list[str]) -> None:
    done = run(torch_python, root, "llm_torch.py", *TINY, *options)
    assert done.returncode == 0, done.stderr
    assert ending(done.stdout)["status"] == "success"
    measured = values(done.stdout, "measurement")
    assert {one["name"] for one in measured} == MEASURED
    found = {one["name"]: one["value"] for one in measured}
    assert found["loss_fall"] > 0.02
    assert all(one["value"] == 0 for one in measured if one["name"] == "loss_repeat_differs")
    speeds = [one for one in measured if one["name"] == "tokens_per_second"]
    kind = "fp8" if "fp8" in options else "bf16"
    assert [one["labels"] for one in speeds] == [
        {"size": "tiny", "dtype": kind, "compile": "off", "device": "cpu"}
    ]
    assert "torch" in values(done.stdout, "facts")[0]
    # Eight measured steps, five that warm up, and two that are trained twice and counted once.
    assert len(values(done.stdout, "tracked_stats")) == 15


def curve(root: Path, python: str, *options: str) -> str:
    """Return the digest of the losses of a training's first rank."""
    done = run(python, root, "llm_torch.py", *TINY, *options)
    assert done.returncode == 0, done.stderr
    digests: list[str] = [
        one["digest"] for one in values(done.stdout, "loss_curve") if one["labels"]["rank"] == "0"
    ]
    return digests[0]


@pytest.mark.torch
def test_two_ranks_train_alike_however_they_exchange(root: Path, torch_python: str) -> None:
    """DDP's all-reduce and FSDP's reduce-scatter add the same two numbers."""
    both = [curve(root, torch_python, "--processes", "2", "--parallel", one) for one in ("ddp", "fsdp")]
    assert both[0] == both[1]
    assert both[0] != curve(root, torch_python, "--processes", "2", "--parallel", "ddp", "--seed", "2")


# Code that changes one rank of a training: a bit of a weight flips in one step, or whenever step 1 is
# trained, memory is short, or a loss is not finite.
FAULTS = {
    "once": """
real, calls = program.Trainer.step, [0]
def step(trainer, index):
    calls[0] += 1
    if calls[0] == 4 and RANK == 1:
        with program.torch.no_grad():
            trainer.model.head.view(program.torch.int16)[7, 7] ^= 1 << 12
    real(trainer, index)
program.Trainer.step = step
""",
    "always": """
real = program.Trainer.step
def step(trainer, index):
    if index == 1 and RANK == 1:
        with program.torch.no_grad():
            trainer.model.head.view(program.torch.int16)[7, 7] ^= 1 << 12
    real(trainer, index)
program.Trainer.step = step
""",
    "out of memory": """
real = program.Trainer.step
def step(trainer, index):
    if RANK == 2:
        raise program.torch.cuda.OutOfMemoryError("Tried to allocate 8 GiB. GPU 0 has 79 GiB.")
    real(trainer, index)
program.Trainer.step = step
""",
    "not a number": """
real = program.Trainer.step
def step(trainer, index):
    real(trainer, index)
    if index == 6 and RANK == 1:
        trainer.losses[index] = float("nan")
program.Trainer.step = step
""",
}


def with_fault(
    python: str, root: Path, folder: Path, fault: str, *words: str
) -> subprocess.CompletedProcess[str]:
    """Run a training of three replicas with a fault. Each replica trains the same weights and tokens."""
    (folder / "faulty.py").write_text(
        f"import os, sys\nsys.path.insert(0, {str(root / 'workloads')!r})\n"
        "import common, llm_torch as program\n"
        "RANK = int(os.environ.get('RACKPROOF_WORKLOAD_RANK', -1))\n"
        f"{FAULTS[fault]}\n"
        "sys.exit(common.run('faulty', program.parser(), program.plan, program.work))\n"
    )
    return run(python, folder, "../faulty.py", *TINY, "--processes", "3", "--parallel", "replicas", *words)


@pytest.mark.torch
@pytest.mark.parametrize(("fault", "repeats"), [("once", False), ("always", True)])
def test_a_wrong_bit_is_found_and_its_rank_named(
    root: Path, torch_python: str, tmp_path: Path, fault: str, repeats: bool
) -> None:
    """A value that is wrong once differs from its repeat. An always wrong value differs from replicas."""
    (tmp_path / "workloads").mkdir()
    done = with_fault(torch_python, root, tmp_path, fault)
    assert done.returncode == 0, done.stderr
    measured = values(done.stdout, "measurement")
    differs = of_ranks(measured, "loss_repeat_differs")
    odd = of_ranks(measured, "loss_odd_steps")
    assert {rank for rank, count in odd.items() if count} == {"1"}
    assert {rank for rank, count in differs.items() if count} == (set() if repeats else {"1"})


@pytest.mark.torch
@pytest.mark.parametrize(
    ("fault", "status", "reason"),
    [
        ("not a number", 3, "the loss of step 7 is nan on rank 1"),
        ("out of memory", 1, "Tried to allocate 8 GiB: lower --batch or --layers, or set --recompute on"),
    ],
)
def test_a_run_that_cannot_go_on_says_why(
    root: Path, torch_python: str, tmp_path: Path, fault: str, status: int, reason: str
) -> None:
    (tmp_path / "workloads").mkdir()
    done = with_fault(torch_python, root, tmp_path, fault)
    assert done.returncode == status
    assert reason in str(ending(done.stdout))


ARITHMETIC = """
import torch
import llm_network, llm_torch
from llm_shapes import Shape
torch.manual_seed(3)
functional = torch.nn.functional

# The loss in chunks, and its gradients, are those of PyTorch's own.
llm_network.LOSS_ROWS = 16
rows, head = torch.randn(40, 32, requires_grad=True), torch.randn(64, 32, requires_grad=True)
targets = torch.randint(64, (40,))
ours = llm_network._ChunkedLoss.apply(rows, head, targets, llm_network.loss_and_gradient)
mine = torch.autograd.grad(ours, (rows, head))
theirs = functional.cross_entropy(rows @ head.t(), targets)
for one, two in zip(mine, torch.autograd.grad(theirs, (rows, head)), strict=True):
    torch.testing.assert_close(one, two)
torch.testing.assert_close(ours, theirs)

# A product in fp8 and its gradients are those in bf16, within its three bits.
values = torch.randn(2, 16, 48, dtype=torch.bfloat16, requires_grad=True)
weight = torch.randn(32, 48, dtype=torch.bfloat16, requires_grad=True)
above = torch.randn(2, 16, 32, dtype=torch.bfloat16)
exact = functional.linear(values, weight)
small = llm_network._Fp8Product.apply(values, weight)
pairs = [(exact, small)]
pairs += zip(*(torch.autograd.grad(one, (values, weight), above) for one in (exact, small)), strict=True)
for one, two in pairs:
    assert one.shape == two.shape
    assert (one - two).float().norm() < 0.1 * one.float().norm()

# A token sees none that comes after it.
shape = Shape(32, 1, 4, 2, 64, 64)
block = llm_network.Block(shape, False, False)
stream, turn = torch.randn(1, 8, 32), torch.zeros(8, 1, 4)
before = block(stream, turn.cos(), turn.sin())
stream[0, 5] += 1
after = block(stream, turn.cos(), turn.sin())
assert torch.equal(before[0, :5], after[0, :5]) and not torch.equal(before[0, 5:], after[0, 5:])

# Tokens are the same on every machine.
tokens = llm_torch.random_tokens((3, 1000), 32000, 1)
assert tokens[0, :6].tolist() == [5533, 0, 2656, 147, 405, 917]
assert 0 <= tokens.min() and tokens.max() < 32000 and tokens.float().median() < 3200
assert not torch.equal(tokens, llm_torch.random_tokens((3, 1000), 32000, 2))
"""


CHOICES = """
from types import SimpleNamespace
import common, llm_torch

common.holds_on_all_ranks = lambda mine, rank, device: mine

def trainer(**options):
    device = SimpleNamespace(type="cuda")
    return SimpleNamespace(options=SimpleNamespace(**options), device=device, rank=None, notes={})

def refused(call, *arguments):
    try:
        call(*arguments)
    except common.Refusal as refusal:
        return str(refusal)

def attention(wanted, capability, failed=""):
    llm_torch.capability = lambda device: capability
    made = trainer(attention=wanted)
    made.try_cudnn = lambda: failed
    return llm_torch.Trainer.choose_attention(made)

# cuDNN's attention on Hopper alone, and where it fails only an explicit wish is refused.
assert attention("auto", (9, 0)) == attention("cudnn", (10, 0)) == "cudnn"
assert attention("auto", (9, 0), "no") == attention("auto", (10, 0)) == attention("flash", (9, 0)) == "flash"
assert refused(attention, "cudnn", (9, 0), "no kernel") == "--attention cudnn: no kernel"

def compiled(wanted, failed):
    llm_torch.compiles = lambda device: failed
    made = trainer(compile=wanted)
    return llm_torch.Trainer.choose_compile(made), made.notes

# Without a C compiler, it trains uncompiled and notes the reason, unless --compile on was given.
assert compiled("auto", "") == (True, {"compile": "on"})
assert compiled("auto", "no gcc") == (False, {"compile": "off", "not_compiled_because": "no gcc"})
assert compiled("off", "") == (False, {"compile": "off"})
assert refused(compiled, "on", "no gcc") == "--compile on: no gcc"
"""


@pytest.mark.torch
@pytest.mark.parametrize("code", [ARITHMETIC, CHOICES], ids=["arithmetic", "choices"])
def test_arithmetic_and_choices_of_kernels_are_right(root: Path, torch_python: str, code: str) -> None:
    code = f"import os\nos.environ['RACKPROOF_WORKLOAD_RANK'] = '0'\n{code}"
    done = subprocess.run(
        [torch_python, "-c", code], capture_output=True, text=True, cwd=root / "workloads", timeout=120
    )
    assert done.returncode == 0, done.stderr
