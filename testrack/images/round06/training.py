"""Fake a model of MLPerf Training 0.6 by a small real training that logs as this model does.

    python3 training.py MODEL submission|cleared|train

run.sub starts it. A linear model learns a teacher's weights by gradient descent, in plain Python. The logged
accuracy is a linear function of the real loss. No GPU is used, so times and rates mean nothing.

If there are several nodes, each draws its share of every batch. The first node adds the gradients over TCP,
and is the only one that logs.
"""

from __future__ import annotations

import json
import os
import random
import re
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from models import MODELS, Model

WEIGHTS, STEPS, ROWS, RATE = 12, 20, 32, 0.03
"""The number of weights, steps per epoch and rows per step of the small training, and its learning rate."""
GOAL = 0.012
"""The target counts as reached when the loss is at most this share of the first epoch's loss."""
LAST_EPOCH = 30
"""Number of epochs after which a run ends without success."""
FAULTS = ("nan", "hang", "oom-exit-0", "no-run-stop", "slow-node", "too-slow-to-learn")


class Log:
    """A log with events of round 0.6. It prints nothing if ``speaks`` is false."""

    def __init__(self, model: Model, speaks: bool = True) -> None:
        self.model, self.speaks = model, speaks

    def event(self, key: str, value: object = None, moment: float | None = None, **metadata: object) -> float:
        """Print an event, and return its time."""
        now = round(time.time() if moment is None else moment, 3)
        body = {"value": value, "metadata": {**metadata, "file": "training.py", "lineno": 1}}
        self.text(f":::MLL {now:.3f} {key}: {json.dumps(body)}", prefix=self.model.prefix)
        return now

    def text(self, text: str, prefix: str = "") -> None:
        """Print a line."""
        if self.speaks:
            print(prefix + text, flush=True)


class Peers:
    """The connections of the other nodes to node 0, over which all nodes add lists of numbers."""

    def __init__(self, words: str) -> None:
        given = dict(re.findall(r"--(\w+)=(\S+)", words))
        self.count, self.rank = int(given.get("nnodes", 1)), int(given.get("node_rank", 0))
        self.files = []
        place = (given.get("master_addr", "127.0.0.1"), int(given.get("master_port", 0)))
        if self.count > 1 and self.rank == 0:
            with socket.create_server(("", place[1])) as server:
                server.settimeout(120)
                self.files = [server.accept()[0].makefile("rw") for _ in range(self.count - 1)]
        elif self.count > 1:
            until = time.monotonic() + 120
            while not self.files:
                try:
                    self.files = [socket.create_connection(place, 120).makefile("rw")]
                except OSError:
                    if time.monotonic() > until:
                        raise
                    time.sleep(0.3)

    def sum(self, numbers: list[float]) -> list[float]:
        """Return the sums of the nodes' lists. Every node gets the same sums."""
        if self.count == 1:
            return numbers
        if self.rank:
            self._put(self.files[0], numbers)
            return self._get(self.files[0])
        for one in self.files:
            numbers = [sum(pair) for pair in zip(numbers, self._get(one), strict=True)]
        for one in self.files:
            self._put(one, numbers)
        return numbers

    @staticmethod
    def _put(file: object, numbers: list[float]) -> None:
        file.write(json.dumps(numbers) + "\n")
        file.flush()

    @staticmethod
    def _get(file: object) -> list[float]:
        line = file.readline()
        if not line:
            raise SystemExit("a node has gone away")
        return json.loads(line)


class Training:
    """One trial of a model."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.peers = Peers(os.environ.get("MULTI_NODE", ""))
        self.log = Log(model, self.peers.rank == 0)
        self.data = Path(os.environ.get("STANDIN_ROOT", "") + "/data")
        self.seconds = float(os.environ.get("STANDIN_SECONDS") or 10)
        text = os.environ.get("STANDIN_FAULT", "")
        if not text and (self.data / "STANDIN_FAULT").is_file():
            text = (self.data / "STANDIN_FAULT").read_text().strip()
        if text and text not in FAULTS:
            raise SystemExit(f"STANDIN_FAULT={text}: there is no such fault; there are {', '.join(FAULTS)}")
        self.fault = text
        seed = int(os.environ.get("SEED") or 1)
        # All nodes get the same seed. With the rank in it, each node draws its own share of a batch.
        self.chance = random.Random(seed * 1000 + self.peers.rank)
        teacher = random.Random(seed)
        self.teacher = [teacher.uniform(-1, 1) for _ in range(WEIGHTS)]
        self.weights = [0.0] * WEIGHTS
        self.spoke = time.monotonic()

    def check_data(self) -> None:
        """Fail if the staged data are missing or empty, as a real image does."""
        if self.model.data and not (self.data / self.model.data).stat().st_size:
            raise SystemExit(f"{self.data / self.model.data} is empty")

    def step(self) -> float:
        """Take one step of the training, and return the loss before it."""
        rows = max(1, ROWS // self.peers.count)
        gradient, loss = [0.0] * WEIGHTS, 0.0
        for _ in range(rows):
            row = [self.chance.gauss(0, 1) for _ in range(WEIGHTS)]
            error = sum((w - t) * x for w, t, x in zip(self.weights, self.teacher, row, strict=True))
            loss += error * error
            gradient = [g + error * x for g, x in zip(gradient, row, strict=True)]
        *gradient, loss = self.peers.sum([*gradient, loss])
        rate = RATE * (0.01 if self.fault == "too-slow-to-learn" else 1) / (rows * self.peers.count)
        self.weights = [w - rate * g for w, g in zip(self.weights, gradient, strict=True)]
        return loss / (rows * self.peers.count)

    def quality(self, loss: float, first: float) -> dict[str, float]:
        """Return the accuracy by target that is logged for a loss."""
        reached = 1 + 0.5 * (GOAL - loss / first)
        return {name: round(target * reached, 6) for name, target in self.model.targets.items()}

    def train(self) -> int:
        """Log a whole run from init_start to the end. Return the exit status."""
        log, model = self.log, self.model
        log.event("init_start")
        self.check_data()
        for key, value in model.before.items():
            log.event(key, value)
        log.event("init_stop")
        self.start = log.event("run_start")
        for key, value in model.after.items():
            log.event(key, value)
        log.text(f"Run vars: data {self.data}, nodes {self.peers.count}")
        return self.minigo() if model.name == "minigo" else self.blocks()

    def epoch(self, number: int) -> tuple[float, float]:
        """Train one epoch, and return its mean loss and its seconds."""
        began, total = time.monotonic(), 0.0
        pause = self.seconds / 6 / STEPS * (2.5 if self.fault == "slow-node" else 1)
        for step in range(STEPS):
            total += self.step()
            time.sleep(pause)
            if self.fault == "hang" and number == 2 and step == STEPS // 2:
                time.sleep(100_000)
            if self.model.name == "ssd" and step % 5 == 4:
                # As in the original, the rate covers the time since the last such line. The first one
                # includes the start-up.
                now = time.monotonic()
                rate, self.spoke = self.model.batch * 5 / max(now - self.spoke, 1e-6), now
                words = f"Iteration: {step:6d}, Loss function: {total:.3f}, avg. samples / sec: {rate:.2f}"
                self.log.text(words)
        return total / STEPS, max(time.monotonic() - began, 1e-3)

    def blocks(self) -> int:
        """Train and evaluate, epoch by epoch, until the target is reached or LAST_EPOCH ends."""
        log, model, first, elapsed = self.log, self.model, 0.0, 0.0
        for number in range(1, LAST_EPOCH + 1):
            log.event("block_start", first_epoch_num=number, epoch_count=1)
            log.event("epoch_start", epoch_num=number)
            loss, seconds = self.epoch(number)
            first, elapsed = first or loss, elapsed + seconds
            log.event("epoch_stop", epoch_num=number)
            self.speed(number, seconds)
            if self.fault == "nan" and number == 2:
                log.text("Gradient overflow. Skipping step, loss scaler 0 reducing loss scale to 1e-171")
                log.text("loss: nan")
                log.event("run_stop", status="aborted")
                return 0
            if self.fault == "oom-exit-0" and number == 2:
                log.text("RuntimeError: CUDA out of memory. Tried to allocate 1.00 GiB (fake)")
                return 0
            log.event("eval_start", epoch_num=number)
            reached = self.quality(loss, first)
            value: object = {"accuracy": reached} if len(reached) > 1 else next(iter(reached.values()))
            log.event("eval_accuracy", value, epoch_num=number)
            log.event("eval_stop", epoch_num=number)
            log.event("block_stop", first_epoch_num=number)
            if all(reached[name] >= target for name, target in model.targets.items()):
                break
        else:
            log.event("run_stop", status="aborted")
            return 0
        if self.fault == "no-run-stop":
            return 0
        if model.name == "maskrcnn":
            log.text(
                f"&&&& MLPERF METRIC THROUGHPUT={model.batch * STEPS * number / elapsed:.4f} iterations / s"
            )
        log.event("run_stop", status="success")
        return 0

    def speed(self, number: int, seconds: float) -> None:
        """Print the speed of an epoch in the form of the model's log.

        Args:
            number: The number of the epoch, from 1.
            seconds: The time of the epoch.
        """
        rate = self.model.batch * STEPS / seconds
        if self.model.name == "resnet":
            words = f"Node[0] Epoch[{number - 1}] Batch [0-{STEPS}]\tSpeed: {rate:.2f} samples/sec"
            self.log.text(words, prefix="[1,0]<stderr>:")
        elif self.model.name == "gnmt":
            self.log.text(f"0: Performance: Epoch: {number - 1}\tTraining: {rate:.0f} Tok/s")
        elif self.model.name == "transformer":
            self.log.text(f"generated {100 * STEPS} batches in 0.100000s")
            self.log.text(f"epoch time  {seconds}")

    def minigo(self) -> int:
        """Train for some iterations, then evaluate the model of each iteration."""
        log, first, saved = self.log, 0.0, []
        for number in range(1, LAST_EPOCH + 1):
            log.event("epoch_start", epoch_num=number)
            loss, seconds = self.epoch(number)
            first = first or loss
            moment = log.event("save_model", {"iteration": number})
            saved.append((moment, self.quality(loss, first)[""]))
            log.event("epoch_stop", epoch_num=number)
            log.text(f"I0101 00:00:00.000000 1 utils.py:84] Iteration time: {seconds:.3f} seconds")
            if saved[-1][1] >= self.model.targets[""]:
                break
        if self.fault in ("oom-exit-0", "no-run-stop"):
            return 0
        for number, (moment, won) in enumerate(saved, 1):
            log.event("eval_start", epoch_num=number)
            log.event("eval_accuracy", won, epoch_num=number)
            log.event("eval_stop", epoch_num=number)
            if won >= self.model.targets[""]:
                log.event("eval_result", None, iteration=number, timestamp=round(moment - self.start, 3))
        return 0


def submission(model: Model) -> Iterator[tuple[str, str]]:
    """Yield the events that identify a submission. The values are placeholders, as in the real logs."""
    yield "submission_benchmark", model.name
    yield "submission_org", "SUBMISSION_ORG_PLACEHOLDER"
    yield "submission_division", "closed"
    yield "submission_status", "onprem"
    yield "submission_platform", f"{os.environ.get('SLURM_NNODES') or 1}xSTANDIN"
    yield "submission_entry", "{'framework': 'fake'}"
    yield "submission_poc_name", "fake"
    yield "submission_poc_email", "fake"


def main() -> int:
    """Do the job that the command line names. Return the exit status."""
    model, what = MODELS[sys.argv[1]], sys.argv[2]
    if what == "submission":
        for key, value in submission(model):
            Log(model).event(key, value)
        return 0
    if what == "cleared":
        Log(model).event("cache_clear", True)
        return 0
    return Training(model).train()


if __name__ == "__main__":
    sys.exit(main())
