#!/usr/bin/env python3
"""Train a Llama-shaped network on random tokens. Measure its speed, and whether losses repeat bit by bit.

The benchmark llm and the optional test llm of a night start this program. There is one process per GPU.
Weights and tokens come from the seed, so nothing is downloaded. The first steps are trained twice from the
same weights, with kernels that give the same bits each time. The losses of both times are compared. Then the
speed is measured with the fastest kernels. The log contains MLPerf's events, which common.Log writes.

Exit status: 0 done, 1 error, 2 usage, 3 loss not finite, 4 GPU requested but absent, 124 time limit, 128+N
stopped by signal N.
"""

from __future__ import annotations

import argparse
import array
import contextlib
import hashlib
import itertools
import math
import os
import statistics
import sys
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

import common
import llm_shapes
from common import HIGHER, LOWER, Log, Rank, Refusal

# cuBLAS reads this when it starts. Without it, its results may differ from run to run.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
if common.IS_RANK:
    import llm_network
    import torch
    from torch import nn
    from torch._inductor import config as inductor
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.parallel import DistributedDataParallel

PARALLEL = ("ddp", "fsdp", "replicas")
WARM_UP_STEPS = 5
"""Number of steps between those trained twice and those measured, in which other kernels are compiled."""
KEPT_SHARE = 1 / 16
"""Largest share of a GPU's memory for gathered weights that FSDP keeps between forward and backward."""
QUEUED_STEPS = 2
"""Steps that the host may be ahead of the GPU."""
TIMEOUT_S = 600.0
"""Seconds that a rank waits for the others before it fails."""
BUCKET_MIB = 100
"""Size of the pieces in which DDP exchanges gradients."""
LORA_LR = 1e-3
"""Learning rate with LoRA."""
FASTEST_LR = 3e-3
"""Largest learning rate of a whole network. A wider network gets a smaller one."""
KEPT_STEPS = 500
"""Largest number of steps whose times and losses are logged."""


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = arguments.add_argument
    add("--size", choices=tuple(llm_shapes.SHAPES), help="default: 1b, on the CPU tiny")
    add("--layers", type=common.positive_count, help="number of layers (default: as the size has)")
    add("--sequence", type=common.positive_count, help="tokens of a sequence (default: 4096, of tiny 64)")
    add(
        "--batch", type=common.positive_count, help="sequences of a GPU's step (default: 8, of 8b and tiny 4)"
    )
    add("--dtype", choices=("bf16", "fp8"), default="bf16", help="of layers' products (default: %(default)s)")
    add("--mode", choices=("pretrain", "lora"), default="pretrain", help="default: %(default)s")
    add("--gpus", type=common.gpu_count, default=1, help="how many GPUs, or 'all'; 0 means CPU")
    add("--processes", type=common.positive_count, default=1, help="processes on the CPU, with --gpus 0")
    add(
        "--parallel",
        choices=PARALLEL,
        default="fsdp",
        help="several GPUs: ddp, fsdp, or replicas, each alone on the same data (default: %(default)s)",
    )
    add("--steps", type=common.positive_count, default=40, help="steps measured (default: %(default)s)")
    add(
        "--repeat",
        type=common.positive_count,
        default=8,
        help="steps trained twice first (default: %(default)s)",
    )
    add("--compile", choices=("auto", "off", "on"), default="auto", help="auto: on GPUs, where it works")
    add("--recompute", choices=("on", "off"), default="off", help="layers computed twice, to save memory")
    add(
        "--attention",
        choices=("auto", "flash", "cudnn"),
        default="auto",
        help="kernels of the measured steps; auto: cuDNN's on Hopper, where they work, otherwise flash",
    )
    add("--seed", type=int, default=1, help="seed (default: %(default)s)")
    common.add_time_limit(arguments)
    return arguments


def plan(options: argparse.Namespace) -> int:
    """Complete and check the options. Return the number of ranks.

    Raises:
        Refusal: The sizes do not fit the kernels, or fewer GPUs exist than requested.
    """
    complete(options)
    if options.sequence % 16:
        raise Refusal(common.EXIT_USAGE, f"--sequence {options.sequence} is not a multiple of 16")
    if options.gpus == 0:
        return int(options.processes)
    return len(common.choose_gpus(options.gpus))


def complete(options: argparse.Namespace) -> None:
    """Set the sizes that the command line leaves out. On a CPU they are small, so the run takes seconds."""
    options.size = options.size or ("tiny" if options.gpus == 0 else "1b")
    options.sequence = options.sequence or (64 if options.size == "tiny" else 4096)
    options.batch = options.batch or (8 if options.size == "1b" else 4)


def random_tokens(shape: Sequence[int], vocabulary: int, seed: int) -> Any:
    """Return tokens that only depend on their place and the seed, small ones more often than large ones.

    Only whole numbers are used, so that all processors make the same tokens. With evenly random tokens, the
    loss could not fall. With these tokens, it falls as soon as the network learned which are frequent.

    Args:
        shape: The shape of the result.
        vocabulary: The number of different tokens, all below it.
        seed: The seed. Another seed gives other tokens.
    """

    def mixed(values: Any) -> Any:
        # lowbias32, a bijection of 32 bits: https://github.com/skeeto/hash-prospector
        for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
            values = ((values ^ (values >> shift)) * factor) & 0xFFFFFFFF
        return values ^ (values >> 16)

    places = torch.arange(math.prod(shape), dtype=torch.int64)
    drawn = mixed(mixed(places & 0xFFFFFFFF) ^ mixed(torch.tensor((places.numel() >> 32) + seed)))
    shifts = mixed(drawn ^ 0x9E3779B9) % max(1, vocabulary.bit_length() - 1)
    return ((drawn % vocabulary) >> shifts).view(*shape)


def capability(device: torch.device) -> tuple[int, int]:
    """Return the GPU's compute capability."""
    return torch.cuda.get_device_capability(device)


def compiles(device: torch.device) -> str:
    """Return why torch.compile does not work here, or "" if it does.

    Triton builds its launcher with the node's C compiler, which may be missing.
    """
    try:
        got = torch.compile(lambda values: values.float().exp().sum())(torch.zeros(64, device=device))
    except Exception as error:
        return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
    return "" if got.item() == 64 else "a compiled sum is wrong"


class Trainer:
    """The state that one rank needs to train."""

    def __init__(self, options: argparse.Namespace, rank: Rank, device: torch.device) -> None:
        """Build the network and its data.

        Raises:
            Refusal: The GPU lacks fp8, or ``--compile on`` does not work here.
        """
        self.options, self.rank, self.device = options, rank, device
        self.shape = llm_shapes.shape_of(options.size, options.layers)
        self.exchanges = rank.count > 1 and options.parallel != "replicas"
        if options.dtype == "fp8" and device.type == "cuda" and capability(device) < (8, 9):
            raise Refusal(common.EXIT_USAGE, "--dtype fp8: this GPU has no products in fp8")
        self.notes: dict[str, str] = {}
        self.kernels: Any = contextlib.nullcontext()
        self.demand_same_bits(True)
        self.compile = self.choose_compile()
        total = options.repeat + WARM_UP_STEPS + options.steps
        torch.manual_seed(options.seed)
        first = rank.index if self.exchanges else 0
        tokens = (total, options.batch, options.sequence + 1)
        data = random_tokens(tokens, self.shape.vocabulary, options.seed * 1009 + first)
        self.data = data.to(device)
        self.model = self.build()
        self.learning = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        rate = LORA_LR if options.mode == "lora" else min(FASTEST_LR, 1.2 / self.shape.width)
        self.optimizer = torch.optim.AdamW(self.learning, lr=rate, betas=(0.9, 0.95), fused=True)
        self.losses = torch.zeros(total, device=device)

    def demand_same_bits(self, demand: bool) -> None:
        """Allow only kernels that give the same bits each time, or all kernels, if this is a GPU.

        Before all kernels are used, compiled code is dropped.
        """
        if self.device.type != "cuda":
            return
        torch.use_deterministic_algorithms(demand)
        # Otherwise new memory would be filled, which only helps to find mistakes.
        torch.utils.deterministic.fill_uninitialized_memory = False
        # Since PyTorch 2.10, this prevents the choice of kernels by their time if it could change a result.
        if hasattr(inductor, "deterministic"):
            inductor.deterministic = demand
        flash = [SDPBackend.FLASH_ATTENTION]
        if capability(self.device) < (8, 0):
            flash = [SDPBackend.MATH]
        self.kernels = sdpa_kernel(flash)
        if not demand:
            self.notes["attention"] = self.choose_attention()
            if self.notes["attention"] == "cudnn":
                self.kernels = sdpa_kernel([SDPBackend.CUDNN_ATTENTION, *flash], set_priority=True)
            torch._dynamo.reset()

    def choose_attention(self) -> str:
        """Return which kernels of attention the measured steps use, the same on all ranks.

        cuDNN's kernels are nearly twice as fast on Hopper, and slower elsewhere. They do not give the same
        bits again (PyTorch 2.11), so the steps that are compared use flash attention.

        Raises:
            Refusal: ``--attention cudnn`` does not work here.
        """
        wanted = self.options.attention
        if wanted == "flash" or (wanted == "auto" and capability(self.device)[0] != 9):
            return "flash"
        failed = self.try_cudnn()
        if common.holds_on_all_ranks(failed == "", self.rank, self.device):
            return "cudnn"
        if wanted == "cudnn":
            raise Refusal(common.EXIT_ERROR, f"--attention cudnn: {failed or 'not on another rank'}")
        return "flash"

    def try_cudnn(self) -> str:
        """Return why cuDNN's attention refuses this network's shapes, or "" if it does not."""
        shape, options = self.shape, self.options
        heads = shape.heads + 2 * shape.groups
        parts = torch.zeros(
            (options.batch, options.sequence, heads, shape.head_width),
            device=self.device,
            dtype=torch.bfloat16,
            requires_grad=True,
        )
        query, key, value = parts.split((shape.heads, shape.groups, shape.groups), 2)
        attend = torch.compile(llm_network.attend) if self.compile else llm_network.attend
        try:
            with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
                attend(query.clone(), key.clone(), value).sum().backward()
            torch.cuda.synchronize()
        except Exception as error:
            return (str(error).strip().splitlines() or ["unknown"])[0][:200]
        return ""

    def choose_compile(self) -> bool:
        """Return whether layers are compiled: on all ranks or on none.

        Raises:
            Refusal: ``--compile on`` does not work here.
        """
        wanted = self.options.compile
        self.notes["compile"] = "off"
        if wanted == "off" or (wanted == "auto" and self.device.type != "cuda"):
            return False
        failed = compiles(self.device)
        if common.holds_on_all_ranks(failed == "", self.rank, self.device):
            self.notes["compile"] = "on"
            return True
        if wanted == "on":
            raise Refusal(common.EXIT_ERROR, f"--compile on: {failed or 'another rank cannot compile'}")
        self.notes["not_compiled_because"] = failed or "another rank cannot compile"
        return False

    def build(self) -> Any:
        """Return the network, compiled if that was chosen, and sharded or replicated over several ranks."""
        options = self.options
        sharded = self.exchanges and options.parallel == "fsdp"
        mesh = init_device_mesh(self.device.type, (self.rank.count,)) if sharded else None
        reshard = self.device.type != "cuda" or self.too_large_to_keep()

        def finish(block: nn.Module) -> nn.Module:
            if self.compile:
                # Layers are compiled one by one, so that they share code and exchange gradients during the
                # computation.
                block.compile(fullgraph=True, dynamic=False)
            layer = llm_network.Layer(block, options.recompute == "on")
            return fully_shard(layer, mesh=mesh, reshard_after_forward=reshard) if sharded else layer

        loss_step = llm_network.loss_and_gradient
        if self.compile:
            loss_step = torch.compile(loss_step, fullgraph=True, dynamic=False)
        torch.set_default_dtype(torch.bfloat16)
        with self.device:
            model: Any = llm_network.Llama(
                self.shape,
                options.sequence,
                fp8=options.dtype == "fp8",
                lora=options.mode == "lora",
                finish=finish,
                loss_step=loss_step,
            )
        torch.set_default_dtype(torch.float32)
        if sharded:
            return fully_shard(model, mesh=mesh)
        if self.exchanges:
            return DistributedDataParallel(
                model,
                device_ids=[self.device.index] if self.device.type == "cuda" else None,
                gradient_as_bucket_view=True,
                bucket_cap_mb=BUCKET_MIB,
            )
        return model

    def too_large_to_keep(self) -> bool:
        """Return whether FSDP must release gathered weights after the forward pass of each layer."""
        memory = torch.cuda.get_device_properties(self.device).total_memory
        return 2 * self.shape.parameters > KEPT_SHARE * memory

    def local(self) -> list[Any]:
        """Return this rank's part of each trained weight."""
        return [
            parameter.to_local() if hasattr(parameter, "to_local") else parameter
            for parameter in self.learning
        ]

    def step(self, index: int) -> None:
        """Queue a whole step."""
        batch = self.data[index]
        loss = self.model(batch[:, :-1], batch[:, 1:])
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.losses[index] = loss.detach()

    def repeat_first_steps(self, log: Log) -> int:
        """Train the first steps twice from the same weights. Return how many losses differ."""
        steps = self.options.repeat
        with torch.no_grad(), self.kernels:
            kept = [parameter.to("cpu", copy=True) for parameter in self.local()]
            if self.exchanges and self.options.parallel == "ddp":
                # DDP packs its gradients again after its first step, and three ranks and more add them up in
                # another order then.
                self.step_with_gradients(0, log, "packing")
                self.begin_again(kept)
            for index in range(steps):
                self.step_with_gradients(index, log, "first steps")
            first = self.losses[:steps].clone()
            self.begin_again(kept)
            del kept
            for index in range(steps):
                self.step_with_gradients(index, log, "same steps")
        again = self.losses[:steps]
        return int((first.view(torch.int32) != again.view(torch.int32)).sum().item())

    def begin_again(self, weights: Sequence[Any]) -> None:
        """Set this rank's weights to these, and its optimizer to before the first step."""
        for parameter, before in zip(self.local(), weights, strict=True):
            parameter.copy_(before)
        for state in self.optimizer.state.values():
            for value in state.values():
                value.zero_()

    def step_with_gradients(self, index: int, log: Log, phase: str) -> None:
        """Do a step with gradients, although the caller switched them off, and wait for the step's end."""
        with torch.enable_grad():
            self.step(index)
        self.losses[index].item()
        if self.rank.index == 0:
            log.progress(phase, index + 1, self.options.repeat)

    def measure(self, log: Log) -> tuple[float, list[float]]:
        """Train the measured steps. Return their time in seconds, and the time of each."""
        self.demand_same_bits(False)
        with self.kernels:
            for index in range(WARM_UP_STEPS):
                self.step(self.options.repeat + index)
            return self.measure_warm(log)

    def measure_warm(self, log: Log) -> tuple[float, list[float]]:
        """Train the steps that are measured, with all that they need compiled and the GPU warm."""
        options = self.options
        first = options.repeat + WARM_UP_STEPS
        self.meet()
        marks: list[Any] = [common.mark_moment(self.device)]
        waiting: deque[Any] = deque()
        began = time.perf_counter()
        for step in range(1, options.steps + 1):
            self.step(first + step - 1)
            marks.append(common.mark_moment(self.device))
            waiting.append(marks[-1])
            if self.device.type == "cuda" and len(waiting) > QUEUED_STEPS:
                waiting.popleft().synchronize()
            if self.rank.index == 0:
                log.progress("train", step, options.steps)
        if self.device.type == "cuda":
            torch.cuda.synchronize()
            times = [mark.elapsed_time(two) / 1e3 for mark, two in itertools.pairwise(marks)]
        else:
            times = [two - mark for mark, two in itertools.pairwise(marks)]
        return time.perf_counter() - began, times

    def meet(self) -> None:
        """Wait until all ranks are here, and all devices are done."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        if self.rank.count > 1:
            torch.distributed.barrier()


def odd_steps(curves: Sequence[Sequence[int]]) -> list[int]:
    """Return for each replica in how many steps its loss differs from the majority's.

    A step without a majority counts for all replicas, because any of them may be wrong.

    Args:
        curves: The bits of each replica's losses.
    """
    odd = [0] * len(curves)
    for bits in zip(*curves, strict=True):
        usual = common.majority(bits)
        for index, bit in enumerate(bits):
            odd[index] += bit != usual
    return odd


def report(trainer: Trainer, log: Log, took: float, times: list[float], differ: int) -> None:
    """Log the measurements of this rank. Rank 0 also logs the measurements of all ranks together.

    Raises:
        Refusal: A loss is not finite.
    """
    options, rank, shape = trainer.options, trainer.rank, trainer.shape
    losses = [float(loss) for loss in trainer.losses.tolist()]
    if not all(math.isfinite(loss) for loss in losses):
        at = next(index for index, loss in enumerate(losses) if not math.isfinite(loss))
        raise Refusal(
            common.EXIT_NON_FINITE,
            f"the loss of step {at + 1} is {losses[at]} on rank {rank.index}: suspect the hardware",
        )
    bits = trainer.losses[: options.repeat].view(torch.int32).tolist()
    every = common.exchange_by_file([took, bits], rank, "llm", TIMEOUT_S)
    gpus = common.choose_gpus(options.gpus)
    size = f"{options.size}/{options.layers}" if options.layers else options.size
    kind = {"size": size, "dtype": options.dtype, "compile": trainer.notes["compile"]}
    if gpus:
        kind["attention"] = trainer.notes["attention"]
    labels = common.device_labels(gpus, rank)
    if not gpus:
        labels["rank"] = str(rank.index)
    tokens = options.steps * options.batch * options.sequence
    flop = shape.flop_per_token(options.sequence, options.mode)
    log.measurement("loss_repeat_differs", differ, "1", LOWER, **labels)
    if options.parallel == "replicas" and rank.count > 1:
        odd = odd_steps([bit for _, bit in every])
        log.measurement("loss_odd_steps", odd[rank.index], "1", LOWER, **labels)
    model = {"gpu_model": gpus[rank.local].name} if gpus else {}
    rate, speeds = tokens / took, common.spread_over_time(times, options.batch * options.sequence)
    log.sampled("tokens_per_second_per_gpu", rate, "tokens/s", HIGHER, speeds, **kind, **labels)
    log.measurement("model_flops", rate * flop / 1e12, "TFLOP/s", HIGHER, **kind, **model, **labels)
    if gpus:
        memory = torch.cuda.max_memory_allocated()
        log.measurement("device_memory_peak", memory, "bytes", LOWER, **labels)
    log_curve(trainer, log, losses, labels)
    if rank.index == 0:
        slowest = max(seconds for seconds, _ in every)
        where = {} if gpus else {"device": "cpu"}
        total = rank.count * tokens / slowest
        speeds = speeds.scaled(rank.count)
        log.sampled("tokens_per_second", total, "tokens/s", HIGHER, speeds, **kind, **where)
        log_times(times, losses, log)


def log_times(times: list[float], losses: list[float], log: Log) -> None:
    """Log the times of steps, their spread, and the first and last loss."""
    ordered = sorted(times)
    log.event("step_times", seconds=[round(seconds, 6) for seconds in times[:KEPT_STEPS]])
    log.measurement("step_time", statistics.median(times), "s", LOWER)
    log.measurement("step_time_p99", ordered[int(0.99 * (len(ordered) - 1))], "s", LOWER)
    log.measurement("step_time_deviation", statistics.pstdev(times) / statistics.mean(times), "1", LOWER)
    log.measurement("loss_begin", losses[0], "1")
    log.measurement("loss_end", losses[-1], "1", LOWER)
    log.measurement("loss_fall", losses[0] - losses[-1], "1", HIGHER)


def log_curve(trainer: Trainer, log: Log, losses: list[float], labels: dict[str, str]) -> None:
    """Log the losses, and a digest of the bits of the steps that were trained twice."""
    options, rank = trainer.options, trainer.rank
    held = array.array("f", losses[: options.repeat])
    gpus = common.choose_gpus(options.gpus)
    alike = [gpus[rank.local].name if gpus else torch.backends.cpu.get_cpu_capability()]
    alike += [f"{name} {value}" for name, value in sorted(common.facts().items())]
    names = ("size", "layers", "sequence", "batch", "dtype", "mode", "parallel", "recompute")
    alike += [f"{name} {getattr(options, name)}" for name in (*names, "repeat", "seed")]
    alike += [f"compile {trainer.notes['compile']}", f"rank {rank.index} of {rank.count}"]
    digest = hashlib.sha256(held.tobytes()).hexdigest()
    log.event("loss_curve", {"digest": digest, "alike": ", ".join(alike), "labels": labels})
    if rank.index == 0:
        for index, loss in enumerate(losses[:KEPT_STEPS]):
            log.event("tracked_stats", {"train_loss": loss}, step=index + 1)
        common.say(f"losses {losses[0]:.4f} to {losses[-1]:.4f}, digest {digest}")


def log_settings(trainer: Trainer, log: Log) -> None:
    """Log the network and the devices."""
    options, shape = trainer.options, trainer.shape
    used = common.gpu_uuids(common.choose_gpus(options.gpus))
    facts = {**common.facts(), **trainer.notes, "network_parameters": str(shape.parameters), "gpus": used}
    log.event("facts", facts)
    log.event(
        "dataset",
        {"name": "random tokens", "source": "made from the seed", "objects": 0, "size_bytes": 0},
    )
    log.event("seed", options.seed)
    log.event("global_batch_size", options.batch * trainer.rank.count)
    log.event("opt_name", "adamw")
    common.say(
        f"{options.size}, {shape.layers} layers, {shape.parameters / 1e9:.2f} B parameters, {options.dtype}, "
        f"{options.mode}, {trainer.rank.count} x {options.batch} x {options.sequence} tokens a step, "
        f"{shape.flop_per_token(options.sequence, options.mode) / 1e9:.2f} GFLOP a token, "
        + ", ".join(f"{key} {value}" for key, value in trainer.notes.items())
    )


def work(options: argparse.Namespace, rank: Rank, log: Log) -> None:
    """Do a rank's work. If its memory is too small, name the options that need less."""
    try:
        work_on(options, rank, log)
    except torch.cuda.OutOfMemoryError as error:
        message = str(error).strip().split(". ")[0]
        raise Refusal(
            common.EXIT_ERROR, f"{message}: lower --batch or --layers, or set --recompute on"
        ) from error


def work_on(options: argparse.Namespace, rank: Rank, log: Log) -> None:
    """Do the work of a rank."""
    complete(options)
    device = torch.device("cpu")
    with contextlib.ExitStack() as stack:
        if options.gpus != 0:
            common.require_cuda()
            device = torch.device("cuda", rank.local)
            torch.cuda.set_device(device)
        else:
            # The order of sums depends on the number of threads.
            torch.set_num_threads(1)
        if rank.count > 1:
            common.join(rank, "gloo" if options.gpus == 0 else "nccl", device, TIMEOUT_S)
            stack.callback(torch.distributed.destroy_process_group)
        trainer = Trainer(options, rank, device)
        if rank.index == 0:
            log_settings(trainer, log)
        startup = common.mark_start(rank, log)
        differ = trainer.repeat_first_steps(log)
        took, times = trainer.measure(log)
        report(trainer, log, took, times, differ)
        if rank.index == 0:
            log.measurement("startup_time", startup, "s", LOWER)
        common.mark_stop(rank)


if __name__ == "__main__":
    sys.exit(common.run("llm", parser(), plan, work, sampled=True, gpu_states=True))
