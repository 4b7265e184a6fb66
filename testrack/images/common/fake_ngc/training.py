"""Run the training of a rank, with real gradients that are averaged over all ranks.

The training programs of the images call :func:`run`. The log is written by MLCommons' mllog.
"""

from __future__ import annotations

import logging
import math
import os
import signal
import socket
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
from mlperf_logging import mllog

from fake_ngc import faults
from fake_ngc.benchmarks import BATCH, BENCHMARKS, STEPS, Benchmark
from fake_ngc.learning import Adam
from fake_ngc.ranks import LostRankError, Ranks

EASY_STEPS = 2.4
"""The fault too-fast makes this many times the optimizer steps per sample that it reports."""
SLOW = 2.5
"""A slow node takes this many times as long for a step."""


def global_batch_size(environment: Mapping[str, str]) -> int:
    """Return the batch size that a config file requests."""

    def number(*names: str, default: int = 1) -> int:
        return next((int(environment[name]) for name in names if environment.get(name)), default)

    groups = number("DGXNNODES") * number("DGXNGPU")
    # The two language models name the same settings differently.
    groups //= number("TENSOR_MODEL_PARALLEL", "TP") * number("PIPELINE_MODEL_PARALLEL", "PP")
    groups //= number("CONTEXT_PARALLEL", "CP")
    # BATCHSIZE of flux1 is for all GPUs.
    return max(1, number("BATCHSIZE", default=0) or groups * number("MINIBS"))


def gpus_of_rank(ranks: Ranks, environment: Mapping[str, str]) -> int:
    """Return the number of GPUs that a rank represents. A single rank on a node represents all its GPUs."""
    tasks = max(1, ranks.size // max(1, len(set(ranks.nodes))))
    return max(1, int(environment.get("DGXNGPU") or 1) // tasks)


class Events:
    """MLPerf's log, written by rank 0 only."""

    def __init__(self, rank: int) -> None:
        self.speaks = rank == 0
        self.logger = mllog.get_mllogger()
        logging.getLogger("mllog_default").handlers[0].setStream(sys.stdout)

    def _write(self, how: Any, key: str, value: Any, metadata: Mapping[str, Any]) -> None:
        if self.speaks:
            how(key=key, value=value, metadata=dict(metadata), stack_offset=3)
            sys.stdout.flush()

    def event(self, key: str, value: Any = None, **metadata: Any) -> None:
        """Write a point in time."""
        self._write(self.logger.event, key, value, metadata)

    def start(self, key: str, **metadata: Any) -> None:
        """Write the start of an interval."""
        self._write(self.logger.start, key, None, metadata)

    def end(self, key: str, **metadata: Any) -> None:
        """Write the end of an interval."""
        self._write(self.logger.end, key, None, metadata)

    def stats(self, values: Mapping[str, float], **metadata: Any) -> None:
        """Write the values that are tracked but not judged."""
        self.event("tracked_stats", dict(values), **metadata)


class Training:
    """One trial on one rank."""

    def __init__(
        self, benchmark: Benchmark, ranks: Ranks, root: Path, environment: Mapping[str, str]
    ) -> None:
        self.benchmark, self.ranks, self.environment = benchmark.with_config(environment), ranks, environment
        self.events = Events(ranks.rank)
        self.batch = global_batch_size(environment)
        self.seed = int(environment.get("SEED") or 1)
        self.gpus = gpus_of_rank(ranks, environment)
        self.seconds = float(environment.get("STANDIN_SECONDS") or 24)
        self.root, self.started = root, time.time()
        text = faults.wanted(root / benchmark.data, environment)
        self.fault = faults.fault(text, ranks.nodes)
        self.done = 0
        self.busy = 0.0

    # -- the parts of a run -----------------------------------------------------------------------

    def run(self) -> int:
        """Run from init_start to run_stop, and return the exit status."""
        self.begin()
        self.events.start("run_start")
        status, step = self.blocks()
        if self.fault.name == "no-run-stop":
            # The process ends between its last evaluation and the end of its log.
            return 0
        self.events.end("run_stop", step=step, samples_count=step * self.batch, status=status)
        return 0

    def begin(self) -> None:
        """Log the facts before training, read the data, and make the model."""
        one, events, began = self.benchmark, self.events, time.monotonic()
        events.start("init_start")
        events.event("submission_benchmark", one.name)
        events.event(
            "submission_org", self.environment.get("MLPERF_SUBMISSION_ORG", "SUBMISSION_ORG_PLACEHOLDER")
        )
        events.event("submission_division", "closed")
        events.event("submission_status", "onprem")
        platform = self.environment.get("MLPERF_SUBMISSION_PLATFORM", "SUBMISSION_PLATFORM_PLACEHOLDER")
        events.event("submission_platform", f"{len(set(self.ranks.nodes))}x{platform}")
        events.event("target_accuracy", one.target)
        for key, value in one.keys.items():
            events.event(key, value)
        events.event("global_batch_size", self.batch)
        events.event("train_samples", one.train_samples)
        events.event("eval_samples", one.eval_samples)
        events.event("gradient_accumulation_steps", 1)
        events.event("seed", self.seed)
        if self.events.speaks:
            print("-" * 100)
            print("distributed_backend=tcp")
            processes = self.ranks.size * self.gpus
            print(f"All distributed processes registered. Starting with {processes} processes")
            print("-" * 100, flush=True)
        first = self.ranks.rank * self.gpus
        print(f"GLOBAL_RANK: {first}, MEMBER: {first + 1}/{self.ranks.size * self.gpus}", flush=True)
        self.model = one.open(self.root)
        # All ranks draw the same numbers and use their share of them.
        self.generator = np.random.default_rng(self.seed)
        self.vector = self.model.start(self.generator)
        self.optimizer = Adam(self.model.size, one.rate)
        events.stats({"warmup_time": time.monotonic() - began}, step=0)
        self.ranks.sum(np.zeros(1))
        events.stats({"init_finished": 0.0003}, step=0)
        events.end("init_stop")

    def blocks(self) -> tuple[str, int]:
        """Train and evaluate until the target is reached. Return how it ended and the number of steps."""
        one, step = self.benchmark, 0
        for until in one.evaluations(self.batch):
            began, length = time.monotonic(), until - step
            self.events.start("block_start", samples_count=length * self.batch, step=step)
            self.train(step, until)
            self.events.stats(
                {"train_step_time": (time.monotonic() - began) / length}, samples_count=length * self.batch
            )
            self.events.end("block_stop", samples_count=length * self.batch, step=until)
            step = until
            samples = step * self.batch
            self.events.start("eval_start", samples_count=samples, step=step)
            began = time.monotonic()
            value = one.metric(self.evaluate())
            self.events.event("eval_accuracy", value, samples_count=samples)
            self.events.stats({"validation_time": time.monotonic() - began}, step=step)
            self.events.end("eval_stop", samples_count=samples, step=step)
            self.report_slow_ranks()
            if value <= one.target:
                return "success", step
        return "aborted", step

    # -- learning ---------------------------------------------------------------------------------

    def due(self, step: int) -> int:
        """Return the number of the small model's steps at a step of the reference."""
        share = step * self.batch / self.benchmark.reference_samples(self.batch)
        return round(STEPS * share * (EASY_STEPS if self.fault.name == "too-fast" else 1))

    def train(self, step: int, until: int) -> None:
        """Train the small model up to the reference's step `until`."""
        first, last, logged = self.done, self.due(until), step
        while self.done < last:
            self.done += 1
            loss = self.one_step()
            now = step + (until - step) * (self.done - first) // max(1, last - first)
            if now // self.benchmark.log_every > logged // self.benchmark.log_every:
                logged = now
                self.events.stats(
                    {self.benchmark.loss_name: loss},
                    samples_count=now * self.batch,
                    lr=float(self.benchmark.keys["opt_base_learning_rate"]),
                    step=now,
                )

    def one_step(self) -> float:
        """Take one step together with the other ranks. Return the mean loss before it."""
        rank, size = self.ranks.rank, self.ranks.size
        chosen = self.generator.integers(0, self.model.samples, BATCH)
        noise = self.generator.random((BATCH, self.model.NOISE))
        began = time.monotonic()
        worked = time.process_time()
        own = chosen[rank::size]
        loss, gradient = 0.0, np.zeros(self.model.size)
        if len(own):
            loss, gradient = self.model.learn(self.vector, own, noise[rank::size])
        self.misbehave(gradient)
        # Wait for the time that a GPU would compute. Without it, the run would end before it can be
        # watched.
        pace = self.seconds / STEPS / (EASY_STEPS if self.fault.name == "too-fast" else 1)
        if self.fault.here("slow-node", rank):
            pace *= SLOW
        time.sleep(max(0.0, pace - (time.monotonic() - began)))
        # Count the work of a GPU, not the time that its fake waits for a core of a busy host.
        self.busy += max(pace, time.process_time() - worked)
        total = self.ranks.sum(np.append(gradient, loss)) / BATCH
        self.vector = self.optimizer.step(self.vector, total[:-1])
        return float(total[-1])

    def evaluate(self) -> float:
        """Return the loss on the evaluation data. Each rank measures its share."""
        own = np.arange(self.model.eval_samples)[self.ranks.rank :: self.ranks.size]
        loss = self.model.measure(self.vector, own) if len(own) else 0.0
        return float(self.ranks.sum(np.array([loss]))[0]) / self.model.eval_samples

    def report_slow_ranks(self) -> None:
        """Print the slowest ranks, as NeMo's straggler detection does if it is switched on."""
        times, self.busy = self.ranks.gather(self.busy), 0.0
        if not self.events.speaks or len(times) < 2:
            return
        usual = sorted(times)[(len(times) - 1) // 2]
        scores = sorted((min(1.0, usual / max(one, 1e-9)), rank) for rank, one in enumerate(times))
        print(f"GPU relative performance:\n Worst performing {min(5, len(scores))}/{len(scores)} ranks:")
        for score, rank in scores[:5]:
            print(f"  Rank={rank} Node={self.ranks.nodes[rank]} Score={score:.2f}")
        slow = [f"{rank} ({self.ranks.nodes[rank]})" for score, rank in scores if score < 0.7]
        if slow:
            print(
                "STRAGGLER DETECTION WARNING: Some GPUs have worse relative performance. "
                f"Affected ranks: {', '.join(slow)}"
            )
        sys.stdout.flush()

    # -- misbehaviour -----------------------------------------------------------------------------

    def misbehave(self, gradient: np.ndarray) -> None:
        """Apply the requested fault from a third of the run on, if it is on this rank.

        ``gradient`` is changed in place.
        """
        if self.done < STEPS // 3 or self.fault.rank != self.ranks.rank:
            return
        rank, node = self.ranks.rank * self.gpus, self.ranks.node
        if self.fault.name == "nan":
            gradient[0] = math.nan
        elif self.fault.name == "rank-killed":
            os.kill(os.getpid(), signal.SIGKILL)
        elif self.fault.name == "hang":
            print(f"[rank{rank}] {node}: waiting for the data loader", flush=True)
            while True:
                time.sleep(3600)
        elif self.fault.name == "oom-exit-0":
            print(f"[rank{rank}]: Traceback (most recent call last):")
            print(f'[rank{rank}]:   File "{self.benchmark.script}", line 1, in <module>')
            print(
                f"[rank{rank}]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 3.50 GiB. "
                "GPU 0 has a total capacity of 277.04 GiB of which 1.06 GiB is free.",
                flush=True,
            )
            self.claim_success()
            raise SystemExit(0)

    def claim_success(self) -> None:
        """Print, on rank 0, the output of a wrapper that ignores the failure of its training."""
        if self.ranks.rank == 0:
            took, stamp = (
                int(time.time() - self.started),
                time.strftime("%Y-%m-%d %I:%M:%S %p", time.gmtime()),
            )
            print(f"+ ret_code=0\nRESULT,{self.benchmark.name.upper()},,{took},nvidia,{stamp}", flush=True)


def run(name: str, root: Path | None = None, environment: Mapping[str, str] = os.environ) -> int:
    """Run a benchmark's training on this rank, and return the exit status."""
    root = root or Path(environment.get("STANDIN_ROOT") or "/")

    def stop(_signal: int, _frame: FrameType | None) -> None:
        print(f"[rank: {environment.get('SLURM_PROCID', '0')}] Received SIGTERM: 15", flush=True)
        os._exit(143)

    signal.signal(signal.SIGTERM, stop)
    try:
        ranks = Ranks.join(environment)
    except LostRankError as error:
        print(f"DistStoreError: {socket.gethostname()}: {error}", file=sys.stderr, flush=True)
        return 1
    training = Training(BENCHMARKS[name], ranks, root, environment)
    try:
        return training.run()
    except LostRankError as error:
        if training.fault.name == "oom-exit-0":
            training.claim_success()
            return 0
        print(f"[rank{ranks.rank}]: Traceback (most recent call last):", file=sys.stderr)
        print(
            f"[rank{ranks.rank}]: torch.distributed.DistBackendError: NCCL error: remote process exited or "
            f"there was a network error: {error}",
            file=sys.stderr,
            flush=True,
        )
        return 1
    finally:
        ranks.close()
