#!/usr/bin/env python3
"""Train LeNet or an MLP on MNIST with PyTorch, on the CPU, on one GPU, or with DDP on several GPUs.

The benchmarks mnist-lenet and mnist-mlp start this program. The networks are as in MXNet's train_mnist.py.
Every epoch is validated on all 10,000 test images. The log contains MLPerf's events, which common.Log writes.

Exit status: 0 done, 1 error, 2 usage, 3 loss not finite, 4 GPU requested but absent, 5 data missing or
damaged, 6 target not reached (with --until target), 124 time limit, 128+N stopped by signal N.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import math
import struct
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import common
from common import HIGHER, LOWER, Log, Rank, Refusal

if common.IS_RANK:
    import torch
    from torch import nn

EXIT_TARGET = 6
CLASSES = 10
SIDE = 28
MEAN, DEVIATION = 0.1307, 0.3081
"""Mean and standard deviation of MNIST's training pixels, scaled to 0..1."""

MOMENTUM = 0.9
WEIGHT_DECAY = 1e-4
BASE_BATCH = 128
BASE_LR = {"lenet": 0.05, "mlp": 0.05}
"""Default of the learning rate by network, for batches of :data:`BASE_BATCH` images."""

WARM_UP_STEPS = 12
"""Number of steps before the measurement. DDP needs 11 before a graph can capture its backward pass."""

VALIDATION_CHUNK = {"cpu": 500, "cuda": 2500}
"""Number of images that are validated together. On a CPU they fit into its caches."""

LOG_INTERVAL_S = 0.5
"""Least time between two readings of the loss in an epoch, each of which makes the host wait for the GPU."""

DDP_TIMEOUT_S = 300
"""Seconds after which a rank ends if an exchange with the other ranks does not finish."""


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line.

    Flags that are also in MXNet's train_mnist.py are named alike.
    """
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = arguments.add_argument
    add("--data", type=Path, required=True, help="folder that stage_mnist.py filled")
    add("--network", choices=("lenet", "mlp"), default="lenet", help="default: %(default)s")
    add(
        "--batch-size",
        type=common.positive_count,
        default=BASE_BATCH,
        help="over all GPUs together (default: %(default)s)",
    )
    add("--gpus", type=common.gpu_count, default=0, help="how many GPUs, or 'all'; 0 means CPU (default)")
    common.add_nodes(arguments)
    add("--num-epochs", type=common.positive_count, default=12, help="default: %(default)s")
    add("--lr", type=float, help="learning rate (default: fits the network and the batch size)")
    add(
        "--lr-step-epochs",
        type=common.epoch_list,
        default="10",
        help="epochs after which it is multiplied by --lr-factor",
    )
    add("--lr-factor", type=float, default=0.1, help="default: %(default)s")
    add("--target", type=float, help="validation accuracy to reach (default: 0.99 lenet, 0.978 mlp)")
    add("--until", choices=("target", "epochs"), default="epochs", help="when to stop (default: %(default)s)")
    add("--seed", type=int, default=1, help="default: %(default)s")
    add(
        "--disp-batches",
        type=common.positive_count,
        default=50,
        help="batches between log lines (default: %(default)s)",
    )
    add(
        "--precision",
        choices=("fp32", "tf32", "bf16"),
        default="tf32",
        help="of products; the CPU has no tf32 and takes fp32 (default: %(default)s)",
    )
    add(
        "--compile",
        choices=("auto", "on", "off"),
        default="auto",
        help="torch.compile (default: %(default)s)",
    )
    common.add_time_limit(arguments)
    return arguments


def default_lr(network: str, batch_size: int) -> float:
    """Return the default learning rate, which grows with the square root of the batch size."""
    return BASE_LR[network] * math.sqrt(batch_size / BASE_BATCH)


def plan(options: argparse.Namespace) -> int:
    """Check the options without PyTorch. Return the number of ranks."""
    read_manifest(options.data)
    ranks = max(1, len(common.choose_gpus(options.gpus)))
    common.check_nodes(options)
    every = ranks * options.nodes
    if options.batch_size < every:
        unit = "GPUs" if options.gpus != 0 else "nodes"
        raise Refusal(
            common.EXIT_USAGE,
            f"--batch-size {options.batch_size} is less than one for each of {every} {unit}",
        )
    return ranks


# Data


def read_manifest(folder: Path) -> dict[str, Any]:
    """Read stage_mnist.py's description of the data."""
    try:
        described = json.loads((folder / "dataset.json").read_text())
        return {**described, "files": dict(described["files"])}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Refusal(
            common.EXIT_DATA, f"no staged MNIST in {folder} ({error}); run stage_mnist.py --data {folder}"
        ) from error


def read_idx(folder: Path, name: str, manifest: dict[str, Any]) -> tuple[tuple[int, ...], bytearray]:
    """Read an IDX file of bytes, and check it against the manifest. Return its shape and contents."""
    try:
        data = bytearray((folder / name).read_bytes())
        right = hashlib.sha256(data).hexdigest() == manifest["files"][name]
        dimensions = data[3]
        shape = struct.unpack(f">{dimensions}I", data[4 : 4 + 4 * dimensions])
        body = data[4 + 4 * dimensions :]
        right = right and data[:3] == b"\0\0\x08" and math.prod(shape) == len(body) > 0
        problem = "" if right else "wrong checksum, or not an IDX file of bytes"
    except (OSError, KeyError, IndexError, struct.error) as error:
        problem = repr(error)
    if problem:
        raise Refusal(
            common.EXIT_DATA,
            f"{folder / name} is missing or damaged ({problem}); run stage_mnist.py --data {folder} again",
        )
    return shape, body


def load(folder: Path, part: str, device: torch.device, manifest: dict[str, Any]) -> tuple[Any, Any]:
    """Return images (N, 1, 28, 28) as normalised float32 and labels (N,) as int64, on the device."""
    shape, pixels = read_idx(folder, f"{part}-images-idx3-ubyte", manifest)
    label_shape, labels = read_idx(folder, f"{part}-labels-idx1-ubyte", manifest)
    if shape[1:] != (SIDE, SIDE) or label_shape != shape[:1] or max(labels) >= CLASSES:
        raise Refusal(
            common.EXIT_DATA, f"images {shape} and labels {label_shape} in {folder} do not belong together"
        )
    images = (
        torch.frombuffer(pixels, dtype=torch.uint8).to(device).float().div_(255).sub_(MEAN).div_(DEVIATION)
    )
    return images.view(-1, 1, SIDE, SIDE), torch.frombuffer(labels, dtype=torch.uint8).to(device).long()


# Networks


def build(network: str) -> nn.Sequential:
    """Return the network with the layers of MXNet's train_mnist.py, and Xavier weights.

    LeNet pools before tanh instead of after it. Since tanh rises, the result is the same, and three quarters
    of the tanh are saved.
    """
    if network == "lenet":
        layers = [nn.Conv2d(1, 20, 5), nn.MaxPool2d(2), nn.Tanh()]
        layers += [nn.Conv2d(20, 50, 5), nn.MaxPool2d(2), nn.Tanh()]
        layers += [nn.Flatten(), nn.Linear(800, 500), nn.Tanh(), nn.Linear(500, CLASSES)]
    else:
        layers = [nn.Flatten(), nn.Linear(SIDE * SIDE, 128), nn.ReLU()]
        layers += [nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, CLASSES)]
    model = nn.Sequential(*layers)
    for layer in model:
        if isinstance(layer, (nn.Conv2d, nn.Linear)):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)
    return model


# Training


class Trainer:
    """Everything that a rank needs to train. Data, order, loss and learning rate stay on its device."""

    def __init__(self, options: argparse.Namespace, rank: Rank, device: torch.device) -> None:
        """Load the data, build the network and bring the step to full speed."""
        self.options, self.rank, self.device = options, rank, device
        if device.type == "cuda":
            # All work uses one stream, because DDP can be captured only on the stream that it was built on,
            # and the default stream cannot be captured.
            self.stream = torch.cuda.Stream()
            torch.cuda.set_stream(self.stream)
        manifest = read_manifest(options.data)
        self.images, self.labels = load(options.data, "train", device, manifest)
        self.test_images, self.test_labels = load(options.data, "t10k", device, manifest)
        self.samples = len(self.labels)
        # If a batch does not divide evenly, some ranks train one image more: 64 on 3 are 21, 21 and 22.
        begin, end = (options.batch_size * at // rank.count for at in (rank.index, rank.index + 1))
        self.part, self.batch = slice(begin, end), end - begin
        # Gradients and losses are averaged over ranks, weighted by the number of images of each rank.
        self.share = self.batch * rank.count / options.batch_size
        self.steps = self.samples // options.batch_size
        if self.steps == 0:
            raise Refusal(
                common.EXIT_USAGE,
                f"--batch-size {options.batch_size} is more than the {self.samples} samples",
            )
        torch.manual_seed(options.seed)
        self.random = torch.Generator().manual_seed(options.seed)
        # In measurements, channels last doubled the speed on a CPU, and cost 15 % on a GPU.
        layout = torch.channels_last if device.type == "cpu" else torch.contiguous_format
        self.model = build(options.network).to(device, memory_format=layout)
        self.lr = torch.zeros((), device=device)
        self.optimizer = torch.optim.SGD(
            self.model.parameters(), lr=self.lr, momentum=MOMENTUM, weight_decay=WEIGHT_DECAY, fused=True
        )
        self.loss_function = nn.CrossEntropyLoss()
        self.order = torch.zeros(self.steps, self.batch, dtype=torch.long, device=device)
        self.position = torch.zeros(1, dtype=torch.long, device=device)
        self.loss_sum = torch.zeros((), device=device)
        self.next_order = self.draw_order()
        self.notes: dict[str, str] = {}
        self.graph: Any = None
        self.step = self.prepare_step()

    def draw_order(self) -> Any:
        """Draw the next epoch's random order. Each rank gets its part (steps, batch) of every batch."""
        used = torch.randperm(self.samples, generator=self.random)[: self.steps * self.options.batch_size]
        mine = used.view(self.steps, self.options.batch_size)[:, self.part].contiguous()
        return mine.pin_memory() if self.device.type == "cuda" else mine

    def prepare_step(self) -> Callable[[], Any]:
        """Return a function that trains on the next batch, compiled and captured where that pays."""
        model: Any = self.model
        wanted = self.options.compile
        compiled = wanted == "on" or (
            wanted == "auto" and self.device.type == "cuda" and self.options.network == "lenet"
        )
        if compiled:
            model = torch.compile(model)
        if self.rank.count > 1:
            model = nn.parallel.DistributedDataParallel(
                model,
                device_ids=[self.device.index] if self.device.type == "cuda" else None,
                gradient_as_bucket_view=True,
            )
        bf16 = self.options.precision == "bf16"

        def step() -> None:
            """Train on the batch at ``self.position`` of the epoch's order."""
            rows = self.order.index_select(0, self.position).view(-1)
            self.position.add_(1)
            images = self.images.index_select(0, rows)
            with torch.autocast(self.device.type, torch.bfloat16, enabled=bf16):
                scores = model(images)
            loss = self.loss_function(scores.float(), self.labels.index_select(0, rows))
            (loss if self.share == 1 else loss * self.share).backward()
            self.optimizer.step()
            self.loss_sum.add_(loss.detach())
            self.optimizer.zero_grad(set_to_none=True)

        self.notes["compile"] = "on" if compiled else "off"
        weights = [parameter.detach().clone() for parameter in self.model.parameters()]
        run = self.warm_up(step)
        with torch.no_grad():
            for weight, original in zip(self.model.parameters(), weights, strict=True):
                weight.copy_(original)
            for state in self.optimizer.state.values():
                state["momentum_buffer"].zero_()
        return run

    def warm_up(self, step: Callable[[], None]) -> Callable[[], Any]:
        """Train a few batches, which the caller undoes. On a GPU, capture the step in a CUDA graph."""

        def several(count: int) -> None:
            for _ in range(count):
                self.position.zero_()
                step()

        self.order.copy_(self.next_order)
        if self.device.type != "cuda":
            several(2)
            return step
        several(WARM_UP_STEPS)
        self.validate()
        torch.cuda.synchronize()
        self.graph, state = common.capture_graph(step, self.stream, self.rank, self.device)
        self.notes["cuda_graph"] = state
        return self.graph.replay if state == "on" else step

    def close(self) -> None:
        """Release the captured step, because NCCL cannot shut down while a graph holds its work."""
        if self.graph is not None:
            torch.cuda.synchronize()
            self.graph.reset()

    def train_epoch(self, lr: float, report: Callable[[int, Callable[[], float]], None]) -> float:
        """Train one epoch, and return the mean loss over all ranks.

        Args:
            lr: Learning rate.
            report: A function that is called after every step with the number of steps done and with another
                function, which waits for the device, and returns this rank's mean loss since its last call.
        """
        self.order.copy_(self.next_order, non_blocking=True)
        self.position.zero_()
        self.loss_sum.zero_()
        self.lr.fill_(lr)
        seen = [0, 0.0]

        for step in range(1, self.steps + 1):
            self.step()

            def loss(at_step: int = step) -> float:
                total = float(self.loss_sum.item())
                mean = (total - seen[1]) / (at_step - seen[0])
                seen[:] = [at_step, total]
                return mean

            report(step, loss)
        # Draw the next order while the GPU still works on the steps queued above.
        self.next_order = self.draw_order()
        mean = self.loss_sum * (self.share / self.steps)
        if self.rank.count > 1:
            # Gloo cannot average.
            torch.distributed.all_reduce(mean)
            mean /= self.rank.count
        return float(mean.item())

    @property
    def validate_part(self) -> slice:
        """Return the part of the test images that this rank validates."""
        total, count, index = len(self.test_labels), self.rank.count, self.rank.index
        return slice(total * index // count, total * (index + 1) // count)

    def validate(self) -> tuple[float, float]:
        """Return accuracy and mean loss over all test images."""
        totals = torch.zeros(2, device=self.device, dtype=torch.float64)
        images, labels = self.test_images[self.validate_part], self.test_labels[self.validate_part]
        bf16 = self.options.precision == "bf16"
        chunk = VALIDATION_CHUNK[self.device.type]
        with torch.inference_mode():
            for image, truth in zip(images.split(chunk), labels.split(chunk), strict=True):
                with torch.autocast(self.device.type, torch.bfloat16, enabled=bf16):
                    scores = self.model(image).float()
                totals[0] += (scores.argmax(1) == truth).sum()
                totals[1] += self.loss_function(scores, truth) * len(truth)
        if self.rank.count > 1:
            torch.distributed.all_reduce(totals)
        correct, loss = totals.tolist()
        return correct / len(self.test_labels), loss / len(self.test_labels)


def set_precision(precision: str) -> None:
    """Allow TF32 for float32 products only if requested."""
    tf32 = precision == "tf32"
    torch.backends.cuda.matmul.allow_tf32 = tf32
    torch.backends.cudnn.allow_tf32 = tf32
    # Shapes never change, so the fastest convolution is looked for once.
    torch.backends.cudnn.benchmark = True


def require_finite(loss: float, epoch: int, options: argparse.Namespace) -> None:
    """Refuse to go on with a loss that is NaN or infinite."""
    if not math.isfinite(loss):
        raise Refusal(
            common.EXIT_NON_FINITE,
            f"loss is {loss} in epoch {epoch}: training diverged. Lower the learning rate "
            f"(--lr {options.lr:g}); if it diverges with the default, suspect the hardware",
        )


def train(options: argparse.Namespace, rank: Rank, log: Log) -> None:
    """Train as one rank. Rank 0 logs."""
    on_gpu = options.gpus != 0
    if options.lr is None:
        options.lr = default_lr(options.network, options.batch_size)
    if options.target is None:
        options.target = 0.99 if options.network == "lenet" else 0.978
    with contextlib.ExitStack() as stack:
        device = torch.device("cpu")
        if not on_gpu and options.precision == "tf32":
            options.precision = "fp32"
        if on_gpu:
            common.require_cuda()
            device = torch.device("cuda", rank.local)
            torch.cuda.set_device(device)
            set_precision(options.precision)
        if rank.count > 1:
            common.join(rank, "nccl" if on_gpu else "gloo", device, DDP_TIMEOUT_S)
            stack.callback(torch.distributed.destroy_process_group)
        trainer = Trainer(options, rank, device)
        stack.callback(trainer.close)
        if rank.index == 0:
            log_settings(trainer, log)
        startup = common.mark_start(rank, log)
        run_epochs(trainer, log if rank.index == 0 else None, startup)


def log_settings(trainer: Trainer, log: Log) -> None:
    """Log the network and the devices."""
    options = trainer.options
    manifest = read_manifest(options.data)
    used = common.gpu_uuids(common.choose_gpus(options.gpus))
    log.event("facts", {**common.facts(), **trainer.notes, "gpus": used})
    log.event(
        "dataset", {key: manifest[key] for key in ("name", "source", "objects", "size_bytes", "sha256")}
    )
    log.event("seed", options.seed)
    log.event("nodes", options.nodes)
    log.event("global_batch_size", options.batch_size)
    log.event("train_samples", trainer.samples)
    log.event("eval_samples", len(trainer.test_labels))
    log.event("opt_name", "sgd")
    log.event("opt_base_learning_rate", options.lr)
    log.event("opt_learning_rate_decay_steps", list(options.lr_step_epochs))
    log.event("opt_learning_rate_decay_factor", options.lr_factor)
    common.say(
        f"{options.network} batch {options.batch_size} on "
        + (f"{trainer.rank.count} GPU(s)" if trainer.device.type == "cuda" else "CPU")
        + f", {options.precision}, lr {options.lr:g}, "
        + ", ".join(f"{key} {value}" for key, value in trainer.notes.items())
    )


def run_epochs(trainer: Trainer, log: Log | None, startup: float) -> None:
    """Train and validate until the requested end, and log results. ``log`` is None on ranks other than 0."""
    options, rank = trainer.options, trainer.rank
    started = time.time()
    times: list[tuple[float, float]] = []
    best = accuracy = 0.0
    for epoch in range(1, options.num_epochs + 1):
        lr = options.lr * options.lr_factor ** sum(epoch > step for step in options.lr_step_epochs)
        began = time.perf_counter()
        if log:
            log.start("epoch_start", epoch_num=epoch)
        loss = trainer.train_epoch(lr, Reporter(trainer, log, epoch))
        trained = time.perf_counter() - began
        require_finite(loss, epoch, options)
        accuracy, validation_loss = trainer.validate()
        whole = time.perf_counter() - began
        require_finite(validation_loss, epoch, options)
        times.append((trained, whole))
        best = max(best, accuracy)
        if log:
            rate = trainer.steps * options.batch_size / trained
            log.end("epoch_stop", epoch_num=epoch)
            stats = {"train_loss": loss, "throughput": rate, "train_step_time": trained / trainer.steps}
            log.event("tracked_stats", stats, epoch_num=epoch, step=epoch * trainer.steps)
            log.event("eval_accuracy", accuracy, epoch_num=epoch)
            common.say(
                f"epoch {epoch}/{options.num_epochs} loss {loss:.4f} "
                f"accuracy {accuracy:.4f} {rate:,.0f} samples/s"
            )
        if options.until == "target" and accuracy >= options.target:
            break
    stopped = common.mark_stop(rank)
    if log:
        log_results(trainer, log, times, accuracy, best, startup, stopped - started)
    if options.until == "target" and accuracy < options.target:
        raise Refusal(
            EXIT_TARGET,
            f"target {options.target} not reached in {options.num_epochs} epochs: best accuracy {best:.4f}",
        )


class Reporter:
    """A log of loss and throughput in an epoch, every ``--disp-batches`` and at most every LOG_INTERVAL_S."""

    def __init__(self, trainer: Trainer, log: Log | None, epoch: int) -> None:
        self.trainer, self.log, self.epoch = trainer, log, epoch
        self._show(0)
        self.at, self.done = time.perf_counter(), 0

    def __call__(self, step: int, loss: Callable[[], float]) -> None:
        """Log if enough steps and time have passed."""
        options, steps = self.trainer.options, self.trainer.steps
        if self.log is None or step % options.disp_batches or step == steps:
            return
        if time.perf_counter() - self.at < LOG_INTERVAL_S:
            return
        mean = loss()
        require_finite(mean, self.epoch, options)
        now = time.perf_counter()
        step_time = (now - self.at) / (step - self.done)
        self.at, self.done = now, step
        stats = {
            "train_loss": mean,
            "throughput": options.batch_size / step_time,
            "train_step_time": step_time,
        }
        self.log.event("tracked_stats", stats, epoch_num=self.epoch, step=(self.epoch - 1) * steps + step)
        self._show(step)

    def _show(self, step: int) -> None:
        """Log the current step and, if the training ends at a target, the target."""
        options = self.trainer.options
        if self.log:
            target = options.target if options.until == "target" else None
            self.log.progress("train", step, self.trainer.steps, self.epoch, options.num_epochs, target)


def log_results(
    trainer: Trainer,
    log: Log,
    times: list[tuple[float, float]],
    accuracy: float,
    best: float,
    startup: float,
    run_time: float,
) -> None:
    """Log the measurements.

    Steady numbers leave out the first epoch if there is another one. ``samples_per_second`` counts only
    training, and ``seconds_per_epoch`` training and validation.
    """
    steady = times[1:] or times
    samples = trainer.steps * trainer.options.batch_size
    training = sum(trained for trained, _ in steady)
    log.measurement("eval_accuracy", accuracy, "fraction", HIGHER)
    log.measurement("best_accuracy", best, "fraction", HIGHER)
    speeds = common.spread_of(trained for trained, _ in steady).speeds(samples)
    rate = samples * len(steady) / training
    log.sampled("samples_per_second", rate, "samples/s", HIGHER, speeds)
    log.measurement(
        "samples_per_second_with_startup", samples * len(times) / (startup + run_time), "samples/s", HIGHER
    )
    whole = [one for _, one in steady]
    epoch = common.spread_of(whole)
    log.sampled("seconds_per_epoch", sum(whole) / len(whole), "s", LOWER, epoch)
    log.measurement("startup_time", startup, "s", LOWER)
    log.measurement("epochs", len(times), "epochs")


if __name__ == "__main__":
    sys.exit(
        common.run(
            lambda options: f"mnist_{options.network}", parser(), plan, train, sampled=True, gpu_states=True
        )
    )
