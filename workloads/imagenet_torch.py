#!/usr/bin/env python3
"""Train ResNet-50 or VGG16 with PyTorch, with one process per GPU (DDP).

    --mode speed      train a number of steps, and measure the speed (without --data, on synthetic images)
    --mode train      train epochs, write a checkpoint, and evaluate this checkpoint as a second step
    --mode evaluate   only evaluate a checkpoint

The benchmarks resnet50, vgg16, and those whose names end in -accuracy start this program. Its log contains
MLPerf's events, which common.Log writes, and the measurements, which docs/extending/workloads.md defines.

Exit status: 0 done, 1 error, 2 usage, 3 loss not finite, 4 GPU requested but absent, 5 data or checkpoint
missing or damaged, 124 time limit, 128+N stopped by signal N.
"""

# common.run starts a process for each rank of this node. There, work() calls evaluate(), or builds a Trainer
# and calls measure_speed() or train_epochs().

from __future__ import annotations

import argparse
import collections
import contextlib
import hashlib
import math
import os
import pickle
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import common
import imagenet_data
from common import HIGHER, LOWER, Log, Rank, Refusal

if common.IS_RANK:
    import imagenet_networks
    import torch
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

MOMENTUM = 0.9
"""Momentum of SGD for both networks."""
WEIGHT_DECAY = {"resnet50": 1e-4, "vgg16": 5e-4}
"""Weight decay of SGD by network."""
BASE_LR = {"resnet50": 0.1, "vgg16": 0.01}
"""Default of the learning rate by network, for steps of 256 images over all GPUs. With other steps, the rate
is proportional to the number of images (Goyal et al., 2017)."""

WARM_UP_STEPS = 12
"""Number of steps on a GPU before the step is captured in a CUDA graph. DDP needs 11 steps before a graph can
capture its backward pass."""

IN_FLIGHT = 4
"""Number of steps that the host may be ahead of the GPU.

The number is large enough to hide the host's own work, and small enough to show a wait for data.
"""

LOG_INTERVAL_S = 1.0
"""Smallest number of seconds between two lines with the loss."""
LOCAL_STEPS = {"cpu": 3, "cuda": 20}
"""Number of steps without exchange that each rank times before the training, by the type of the device."""
KEPT_STEPS = 2000
"""Largest number of steps whose times are logged."""
DDP_TIMEOUT_S = 600
"""Seconds after which a rank ends if an exchange with the other ranks does not finish."""


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )

    def add(*names: str, **how: Any) -> None:
        if "help" in how:
            how["help"] += "" if how.get("default") in (None, "") else " (default: %(default)s)"
        arguments.add_argument(*names, **how)

    add("--network", choices=("resnet50", "vgg16"), default="resnet50", help="network to train")
    add("--mode", choices=("speed", "train", "evaluate"), default="speed", help="mode (see above)")
    add(
        "--data",
        type=Path,
        help="folder with images in train/CLASS and val/CLASS; without it, images are synthetic",
    )
    add("--gpus", type=common.gpu_count, default=1, help="number of GPUs of this node, or 'all'; 0 means CPU")
    add("--processes", type=common.positive_count, default=1, help="processes on the CPU, with --gpus 0")
    add(
        "--threads",
        type=common.positive_count,
        help="threads of each process on the CPU (default: its share of this host)",
    )
    common.add_nodes(arguments)
    add("--batch-per-gpu", type=common.positive_count, default=256, help="images per step on each GPU")
    add("--steps", type=common.positive_count, default=200, help="steps measured in mode speed")
    add("--num-epochs", type=common.positive_count, default=90, help="epochs in mode train")
    add("--image-size", type=common.positive_count, default=224, help="side of the images in pixels")
    add("--classes", type=common.positive_count, default=1000, help="number of classes of synthetic images")
    add("--width", type=float, default=1.0, help="channels as a share of the network's, for tests")
    add(
        "--precision",
        choices=("fp32", "tf32", "bf16"),
        default="bf16",
        help="precision of products; on a CPU, tf32 means fp32",
    )
    add(
        "--layout",
        choices=("channels_last", "contiguous"),
        default="channels_last",
        help="layout of images in memory",
    )
    add(
        "--compile",
        choices=("auto", "off", "default", "max-autotune"),
        default="auto",
        help="mode of torch.compile; auto means default on GPUs and off on the CPU",
    )
    add(
        "--cuda-graph",
        choices=("on", "off"),
        default="on",
        help="whether a step is captured as a CUDA graph, on GPUs",
    )
    add(
        "--exchange",
        choices=("auto", "ddp", "flat"),
        default="auto",
        help="exchange of gradients: ddp, bucket by bucket in fp32, or flat, all at once after the backward "
        "pass in the precision of products; auto is flat for a compiled network, otherwise ddp",
    )
    add("--workers", type=int, default=8, help="processes that read images, for each GPU")
    add("--lr", type=float, help="learning rate over all GPUs (default: fits network and batch)")
    add(
        "--lr-schedule",
        choices=("step", "cosine", "constant"),
        default="step",
        help="way in which the learning rate falls",
    )
    add(
        "--lr-step-epochs",
        type=common.epoch_list,
        default="30,60,80",
        help="epochs after which the learning rate falls (with step)",
    )
    add(
        "--lr-factor",
        type=float,
        default=0.1,
        help="factor by which the learning rate is multiplied after these epochs",
    )
    add("--warmup-epochs", type=float, default=0.0, help="epochs in which the learning rate rises from 0")
    add("--label-smoothing", type=float, default=0.0, help="share of each label given to all classes")
    add("--checkpoint", type=Path, help="file to write (train) or read (evaluate)")
    add(
        "--compare",
        choices=("none", "torchvision"),
        default="none",
        help="library whose network is timed afterwards, on one GPU in mode speed",
    )
    add("--seed", type=int, default=1, help="seed of weights, synthetic images and the order of images")
    common.add_time_limit(arguments)
    return arguments


def plan(options: argparse.Namespace) -> int:
    """Check the options without PyTorch. Return the number of ranks on this node.

    Raises:
        Refusal: An option cannot be used, data or checkpoint are missing, or there are too few GPUs.
    """
    if options.mode != "speed" and options.data is None:
        raise Refusal(common.EXIT_DATA, f"--mode {options.mode} needs --data: accuracy is of real images")
    if options.mode == "evaluate" and (options.checkpoint is None or not options.checkpoint.is_file()):
        raise Refusal(
            common.EXIT_DATA,
            f"no checkpoint at {options.checkpoint}; --mode train --checkpoint FILE writes it",
        )
    if options.data is not None:
        imagenet_data.check(options.data)
    common.check_nodes(options)
    if not 0 < options.width <= 1:
        raise Refusal(common.EXIT_USAGE, f"--width {options.width:g} is not above 0 and at most 1")
    if options.gpus == 0:
        return int(options.processes)
    return len(common.choose_gpus(options.gpus))


class Clock:
    """A clock for the steps of a training. It uses events of the GPU, or the host's clock on a CPU.

    ``steps`` lists the seconds of each step, with the wait before it. ``waits`` lists the seconds for which
    the device was idle before each step, because the data were missing, or the host launched the step too
    slowly.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.steps: list[float] = []
        self.waits: list[float] = []
        self._open: collections.deque[tuple[Any, Any]] = collections.deque()
        self._last: Any = None
        self._idle_since = time.perf_counter()

    def begin(self) -> Any:
        """Mark the start of a step, when its images are available."""
        if self.device.type != "cuda":
            now = time.perf_counter()
            self.waits.append(now - self._idle_since)
            return now
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def end(self, began: Any) -> None:
        """Mark the end of a step, and wait for the end of a step that is a few steps older."""
        if self.device.type != "cuda":
            now = time.perf_counter()
            self.steps.append(now - self._idle_since)
            self._idle_since = now
            return
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        self._open.append((began, event))
        if len(self._open) > IN_FLIGHT:
            self._take()

    def _take(self) -> None:
        """Wait for the end of the oldest open step on the GPU, and store its times."""
        began, ended = self._open.popleft()
        ended.synchronize()
        wait = 0.0 if self._last is None else self._last.elapsed_time(began) / 1e3
        self.waits.append(wait)
        self.steps.append(wait + began.elapsed_time(ended) / 1e3)
        self._last = ended

    def finish(self) -> None:
        """Wait for the end of every step. The next step begins a new measurement without a wait before it."""
        while self._open:
            self._take()
        self._last = None
        self._idle_since = time.perf_counter()


def _strides(parameter: Any, gradient: Any) -> tuple[int, ...]:
    """Return the strides of a gradient's part of the flat memory.

    They are the gradient's own strides if its elements are in the order of the parameter, and the parameter's
    strides otherwise. Along sides of length 1 (1 x 1 convolutions), strides may differ without a meaning. One
    tensor with other strides is enough to make PyTorch copy all tensors one by one. A gradient whose elements
    are in another order could be in different orders on different ranks.
    """
    same = all(
        length == 1 or mine == theirs
        for length, mine, theirs in zip(parameter.size(), parameter.stride(), gradient.stride(), strict=True)
    )
    return tuple((gradient if same else parameter).stride())


class Trainer:
    """The network, the optimizer, the data and the step of one rank.

    The images and labels of each step are copied to the same memory (``images``, ``labels``), as a CUDA graph
    requires. ``notes`` are facts for the log, such as ``compile`` and ``exchange``. ``local`` are the times
    of steps without exchange.
    """

    def __init__(self, options: argparse.Namespace, rank: Rank, device: torch.device) -> None:
        """Build the network, time steps without exchange, and prepare the step of the training."""
        self.options, self.rank, self.device = options, rank, device
        if device.type == "cuda":
            # All work uses one stream, because DDP can be captured only on the stream that it was built on,
            # and the default stream cannot be captured.
            self.stream = torch.cuda.Stream()
            torch.cuda.set_stream(self.stream)
        self.listing: imagenet_data.Listing | None = None
        self.notes: dict[str, str] = {"layout": options.layout, "precision": options.precision}
        classes = options.classes
        if options.data is not None:
            self.listing = imagenet_data.scan(options.data)
            classes = len(self.listing.classes)
            self.notes["decoder"], self.decode = imagenet_data.decoder(self.listing)
        self.classes = classes
        self.batch = options.batch_per_gpu
        self.global_batch = self.batch * rank.count
        torch.manual_seed(options.seed)
        self.layout = torch.channels_last if options.layout == "channels_last" else torch.contiguous_format
        self.model = imagenet_networks.build(options.network, classes, options.width)
        self.model.to(device, memory_format=self.layout)
        self.lr = torch.zeros((), device=device)
        self.optimizer = torch.optim.SGD(
            self.model.parameters(),
            lr=self.lr,
            momentum=MOMENTUM,
            weight_decay=WEIGHT_DECAY[options.network],
            fused=True,
        )
        self.loss_function = nn.CrossEntropyLoss(label_smoothing=options.label_smoothing)
        side = options.image_size
        random = torch.Generator().manual_seed(options.seed + 1000 * rank.index)
        self.images = torch.randint(0, 256, (self.batch, 3, side, side), dtype=torch.uint8, generator=random)
        self.images = self.images.to(device).contiguous(memory_format=self.layout)
        self.labels = torch.randint(0, classes, (self.batch,), generator=random).to(device)
        self.loss_sum = torch.zeros((), device=device)
        self.graph: Any = None
        self.clock = Clock(device)
        self.local: list[float] = []
        self.step = self.prepare_step()

    def prepare_step(self) -> Callable[[], Any]:
        """Return a function that does one step on the images in place, compiled and captured if requested.

        The times of steps without exchange are stored before the exchange is set up. At the end, weights and
        momentum are set back to their first values.
        """
        how = self.options.compile
        if how == "auto":
            how = "default" if self.device.type == "cuda" else "off"
        self.notes["compile"] = how
        compiled: Any = self.model
        if how != "off":
            # The compiler makes no CUDA graphs, because capture() makes one graph of the whole step, with the
            # exchange of gradients and the optimizer.
            compiled = torch.compile(
                self.model, mode="max-autotune-no-cudagraphs" if how == "max-autotune" else "default"
            )
        state = {name: tensor.detach().clone() for name, tensor in self.model.state_dict().items()}
        self.lr.fill_(1e-3)
        # Capture this like the real step. Otherwise the launch time would count as work of the device.
        self.local = self.time_alone(self.capture(self.make_step(compiled)))
        self.close()
        model = compiled
        exchange = self.options.exchange
        if exchange == "auto":
            # A compiled backward pass gives all gradients at its end, so DDP's buckets overlap with nothing.
            exchange = "ddp" if how == "off" else "flat"
        after_backward: Callable[[], None] | None = None
        if self.rank.count > 1:
            self.notes["exchange"] = exchange
            if exchange == "ddp":
                model = DistributedDataParallel(
                    compiled,
                    device_ids=[self.device.index] if self.device.type == "cuda" else None,
                    gradient_as_bucket_view=True,
                    # Each rank keeps its own statistics of batch normalization, as is usual. They are
                    # averaged before a checkpoint.
                    broadcast_buffers=False,
                )
            else:
                after_backward = self.flat_exchange()
        step = self.capture(self.make_step(model, after_backward))
        self.model.load_state_dict(state)
        with torch.no_grad():
            for held in self.optimizer.state.values():
                held["momentum_buffer"].zero_()
        self.loss_sum.zero_()
        return step

    def make_step(self, model: Any, after_backward: Callable[[], None] | None = None) -> Callable[[], None]:
        """Return a function that does a whole step: forward and backward pass, exchange, and optimizer.

        Args:
            model: The network, which may exchange gradients itself (DDP).
            after_backward: A function that exchanges the gradients after the backward pass, or None.
        """
        bf16 = self.options.precision == "bf16"

        def step() -> None:
            """Train on one batch, which is in ``self.images`` and ``self.labels``."""
            with torch.autocast(self.device.type, torch.bfloat16, enabled=bf16):
                scores = model(self.images)
            loss = self.loss_function(scores.float(), self.labels)
            loss.backward()
            if after_backward:
                after_backward()
            self.optimizer.step()
            self.loss_sum.add_(loss.detach())
            self.optimizer.zero_grad(set_to_none=True)

        return step

    def flat_exchange(self) -> Callable[[], None]:
        """Return a function that averages all gradients over the ranks in one piece of memory.

        In bf16, one piece moves half of the bytes that DDP moves. The exchange needs one collective instead
        of one for each bucket, and two copying kernels instead of one for each parameter. All ranks begin
        with the same weights, because their seed is the same.
        """
        parameters = list(self.model.parameters())
        kind = torch.bfloat16 if self.options.precision == "bf16" else torch.float32
        flat = torch.empty(sum(parameter.numel() for parameter in parameters), dtype=kind, device=self.device)
        parts: list[Any] = []

        def exchange() -> None:
            """Replace each gradient by its mean over all ranks, by one all-reduce."""
            gradients = [parameter.grad for parameter in parameters]
            if not parts:
                at = 0
                for one, gradient in zip(parameters, gradients, strict=True):
                    parts.append(torch.as_strided(flat, one.size(), _strides(one, gradient), at))
                    at += one.numel()
            torch._foreach_copy_(parts, gradients)
            if self.device.type == "cuda":
                torch.distributed.all_reduce(flat, torch.distributed.ReduceOp.AVG)
            else:
                # Gloo cannot average.
                torch.distributed.all_reduce(flat)
                flat.div_(self.rank.count)
            torch._foreach_copy_(gradients, parts)

        return exchange

    def time_alone(self, step: Callable[[], None]) -> list[float]:
        """Return the times in seconds of some steps without exchange, as the speed of this device alone.

        All ranks call this at the same time. With exchange, all ranks wait for the slowest one, so that their
        times are equal. Without exchange, only the slow rank has longer times.
        """
        for _ in range(2):
            step()
        clock = Clock(self.device)
        if self.rank.count > 1:
            torch.distributed.barrier()
        clock.finish()
        for _ in range(LOCAL_STEPS[self.device.type]):
            began = clock.begin()
            step()
            clock.end(began)
        clock.finish()
        return clock.steps

    def capture(self, step: Callable[[], None]) -> Callable[[], Any]:
        """Warm up, and capture the step in a CUDA graph on a GPU. Return a function that does the step."""
        if self.device.type != "cuda":
            step()
            return step
        for _ in range(WARM_UP_STEPS):
            step()
        torch.cuda.synchronize()
        if self.options.cuda_graph == "off":
            self.notes["cuda_graph"] = "off"
            return step
        self.graph, state = common.capture_graph(step, self.stream, self.rank, self.device)
        self.notes["cuda_graph"] = state
        return self.graph.replay if state == "on" else step

    def close(self) -> None:
        """Release the captured step, because NCCL cannot shut down while a graph holds its work."""
        if self.graph is not None:
            torch.cuda.synchronize()
            self.graph.reset()
            self.graph = None

    # Data

    def batches(self, epoch: int) -> Iterator[tuple[Any, Any]]:
        """Yield this rank's batches of an epoch, in an order drawn for all ranks together."""
        assert self.listing is not None  # noqa: S101
        options = self.options
        images = self.listing.train
        order = torch.randperm(len(images), generator=torch.Generator().manual_seed(options.seed + epoch))
        used = order[: self.steps_per_epoch * self.global_batch]
        mine = used.view(self.steps_per_epoch, self.rank.count, self.batch)[:, self.rank.index].tolist()
        torch.manual_seed(options.seed + 1000 * epoch + self.rank.index)
        yield from torch.utils.data.DataLoader(
            imagenet_data.Images(images, self.decode, options.image_size, train=True),
            batch_sampler=mine,
            num_workers=options.workers,
            pin_memory=self.device.type == "cuda",
            prefetch_factor=4 if options.workers else None,
        )

    @property
    def steps_per_epoch(self) -> int:
        """Return the number of steps of an epoch. The images of an incomplete last step are left out."""
        assert self.listing is not None  # noqa: S101
        steps = len(self.listing.train) // self.global_batch
        if steps == 0:
            raise Refusal(
                common.EXIT_USAGE,
                f"a step takes {self.global_batch} images over all GPUs, but there are only "
                f"{len(self.listing.train)}; lower --batch-per-gpu",
            )
        return steps

    def endless(self) -> Iterator[tuple[Any, Any]]:
        """Yield batches, epoch after epoch."""
        epoch = 1
        while True:
            yield from self.batches(epoch)
            epoch += 1

    # Training

    def train(
        self, steps: int, source: Iterator[tuple[Any, Any]] | None, report: Callable[[int], None]
    ) -> float:
        """Train this number of steps. Return their time in seconds on the slowest rank.

        Args:
            steps: The number of steps.
            source: The batches of this rank, or None to train on the images in memory.
            report: A function that is called after each step with the number of steps so far.
        """
        if self.rank.count > 1:
            torch.distributed.barrier()
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        self.clock.finish()
        started = time.perf_counter()
        for step in range(1, steps + 1):
            held = next(source) if source is not None else None
            began = self.clock.begin()
            if held is not None:
                self.images.copy_(held[0], non_blocking=True)
                self.labels.copy_(held[1], non_blocking=True)
            self.step()
            self.clock.end(began)
            report(step)
        self.clock.finish()
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        took = torch.tensor(time.perf_counter() - started, dtype=torch.float64, device=self.device)
        if self.rank.count > 1:
            torch.distributed.all_reduce(took, torch.distributed.ReduceOp.MAX)
        return float(took.item())

    def take_loss(self, steps: int, where: str) -> float:
        """Return the mean loss of the last steps on this rank, and set the sum of the losses to 0.

        Args:
            steps: The number of steps since the last call.
            where: The place in the training, for the message.

        Raises:
            Refusal: The loss is not finite.
        """
        mean = float(self.loss_sum.item()) / max(1, steps)
        self.loss_sum.zero_()
        if not math.isfinite(mean):
            raise Refusal(
                common.EXIT_NON_FINITE,
                f"loss is {mean} in {where}: training diverged. Lower the learning rate "
                f"(--lr {self.options.lr:g}); if it diverges with the default, suspect the hardware",
            )
        return mean

    def gathered(self, mine: list[float]) -> list[list[float]]:
        """Return the numbers of each rank, in the order of ranks. Each rank gives equally many numbers."""
        own = torch.tensor(mine, dtype=torch.float64, device=self.device)
        if self.rank.count == 1:
            return [mine]
        every = [torch.zeros_like(own) for _ in range(self.rank.count)]
        torch.distributed.all_gather(every, own)
        return [tensor.tolist() for tensor in every]

    def save(self, path: Path) -> None:
        """Average the ranks' statistics of batch normalization, and write the checkpoint.

        The file is written whole or not at all.

        Raises:
            Refusal: The checkpoint cannot be written.
        """
        for buffer in self.model.buffers():
            if self.rank.count > 1 and buffer.is_floating_point():
                torch.distributed.all_reduce(buffer)
                buffer.div_(self.rank.count)
        # Each node writes and evaluates a checkpoint. On a shared file system they replace each other.
        if self.rank.local == 0:
            options = self.options
            held = {
                "network": options.network,
                "width": options.width,
                "classes": list(self.listing.classes) if self.listing else self.classes,
                "image_size": options.image_size,
                "state": {name: tensor.cpu() for name, tensor in self.model.state_dict().items()},
            }
            temporary = path.with_name(f".{path.name}.{os.getpid()}")
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                torch.save(held, temporary)
                temporary.replace(path)
            except OSError as error:
                raise Refusal(
                    common.EXIT_DATA, f"the checkpoint {path} cannot be written: {error.strerror}"
                ) from error
            finally:
                with contextlib.suppress(OSError):
                    temporary.unlink()
        if self.rank.count > 1:
            torch.distributed.barrier()


class Reporter:
    """A function that logs loss, throughput and step time about once a second.

    Every rank calls it after each step, because the loss is checked on every rank. Only rank 0 has a log. At
    each report, the host waits for the device.
    """

    def __init__(self, trainer: Trainer, log: Log | None, steps: int, epoch: int, epochs: int) -> None:
        self.trainer, self.log, self.steps, self.epoch, self.epochs = trainer, log, steps, epoch, epochs
        self.at, self.done = time.perf_counter(), 0

    def __call__(self, done: int) -> None:
        """Check and log the loss if a second is over.

        ``done`` is the number of steps of this epoch so far. The caller logs the loss after the last step.
        """
        if time.perf_counter() - self.at < LOG_INTERVAL_S or done == self.steps:
            return
        mean = self.trainer.take_loss(done - self.done, f"epoch {self.epoch}, step {done}")
        now = time.perf_counter()
        step_time = (now - self.at) / (done - self.done)
        self.at, self.done = now, done
        if self.log is None:
            return
        stats = {
            "train_loss": mean,
            "throughput": self.trainer.global_batch / step_time,
            "train_step_time": step_time,
        }
        step = (self.epoch - 1) * self.steps + done
        self.log.event("tracked_stats", stats, epoch_num=self.epoch, step=step)
        self.log.progress("train", done, self.steps, self.epoch, self.epochs)


def work(options: argparse.Namespace, rank: Rank, log: Log) -> None:
    """Do the work of a rank.

    Raises:
        Refusal: An image cannot be read. The message names the image.
    """
    try:
        work_on(options, rank, log)
    except imagenet_data.BadImage as error:
        # The text of an error in a reading process begins with the traceback of that process.
        message = str(error).strip().splitlines()[-1]
        raise Refusal(common.EXIT_DATA, message.removeprefix("imagenet_data.BadImage: ")) from error


def work_on(options: argparse.Namespace, rank: Rank, log: Log) -> None:
    """Do the work of a rank in the requested mode. Only rank 0 logs."""
    on_gpu = options.gpus != 0
    if not on_gpu and options.precision == "tf32":
        options.precision = "fp32"
    if options.lr is None:
        options.lr = BASE_LR[options.network] * options.batch_per_gpu * rank.count / 256
    with contextlib.ExitStack() as stack:
        device = torch.device("cpu")
        if on_gpu:
            common.require_cuda()
            device = torch.device("cuda", rank.local)
            torch.cuda.set_device(device)
            tf32 = options.precision != "fp32"
            torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
            # Shapes never change, so cuDNN searches the fastest convolution only once.
            torch.backends.cudnn.benchmark = True
        else:
            share = max(1, (os.cpu_count() or 1) // (rank.count // options.nodes))
            torch.set_num_threads(options.threads or share)
        if rank.count > 1:
            common.join(rank, "nccl" if on_gpu else "gloo", device, DDP_TIMEOUT_S)
            stack.callback(torch.distributed.destroy_process_group)
        mine = log if rank.index == 0 else None
        if options.mode == "evaluate":
            if mine:
                mine.event("facts", {**common.facts(), "gpus": used_gpus(options)})
                mine.event("dataset", imagenet_data.scan(options.data, "val").described)
            common.mark_start(rank, log)
            evaluate(options, rank, device, mine, options.checkpoint)
            common.mark_stop(rank)
            return
        trainer = Trainer(options, rank, device)
        stack.callback(trainer.close)
        if mine:
            log_settings(trainer, mine)
        startup = common.mark_start(rank, log)
        (measure_speed if options.mode == "speed" else train_epochs)(trainer, mine, startup)


def used_gpus(options: argparse.Namespace) -> str:
    """Return the UUIDs of this node's GPUs that the run uses, as one text."""
    return common.gpu_uuids(common.choose_gpus(options.gpus))


def log_settings(trainer: Trainer, log: Log) -> None:
    """Log the network, the devices, the data and the hyperparameters."""
    options = trainer.options
    parameters = sum(parameter.numel() for parameter in trainer.model.parameters())
    log.event(
        "facts",
        {
            **common.facts(),
            **trainer.notes,
            "network_parameters": str(parameters),
            "gpus": used_gpus(options),
        },
    )
    synthetic = {
        "name": "synthetic",
        "source": "random pixels in device memory",
        "objects": 0,
        "size_bytes": 0,
    }
    log.event("dataset", trainer.listing.described if trainer.listing else synthetic)
    log.event("seed", options.seed)
    log.event("global_batch_size", trainer.global_batch)
    log.event("batch_per_gpu", trainer.batch)
    log.event("gpus", trainer.rank.count // options.nodes if trainer.device.type == "cuda" else 0)
    log.event("processes", trainer.rank.count // options.nodes)
    log.event("nodes", options.nodes)
    log.event("opt_name", "sgd")
    log.event("opt_base_learning_rate", options.lr)
    common.say(
        f"{options.network} batch {trainer.batch} x {trainer.rank.count} on {trainer.device.type}, "
        + ", ".join(f"{key} {value}" for key, value in trainer.notes.items())
    )


def measure_speed(trainer: Trainer, log: Log | None, startup: float) -> None:
    """Train for the number of steps in the options, and log the speed.

    Args:
        trainer: The rank's trainer.
        log: The log of rank 0, or None on other ranks.
        startup: The duration of start-up in seconds.
    """
    options = trainer.options
    trainer.lr.fill_(options.lr / 10)
    source = trainer.endless() if trainer.listing is not None else None
    report = Reporter(trainer, log, options.steps, 1, 1)
    took = trainer.train(options.steps, source, report)
    loss = trainer.take_loss(options.steps - report.done, "the last steps")
    log_speed(trainer, log, options.steps, took, startup, loss)
    if options.compare == "torchvision" and trainer.rank.count == 1 and log:
        compare_torchvision(trainer, log)
    common.mark_stop(trainer.rank)


def check_alike(trainer: Trainer) -> None:
    """Check that the networks of all ranks are equal after the training.

    Raises:
        Refusal: They differ, so the ranks did not train together.
    """
    if trainer.rank.count == 1:
        return
    parameters = torch.stack(
        [parameter.detach().double().abs().sum() for parameter in trainer.model.parameters()]
    )
    ends = torch.stack((parameters, -parameters))
    torch.distributed.all_reduce(ends, torch.distributed.ReduceOp.MAX)
    if not torch.equal(ends[0], -ends[1]):
        raise Refusal(
            common.EXIT_ERROR,
            "the ranks' networks differ after training: gradients were not exchanged alike "
            "(try --exchange ddp)",
        )


def log_speed(
    trainer: Trainer, log: Log | None, steps: int, took: float, startup: float, loss: float
) -> None:
    """Log the speed, the times of the steps, and each rank's share of waiting and its time without exchange.

    Args:
        trainer: The rank's trainer.
        log: The log of rank 0, or None on other ranks.
        steps: The number of measured steps.
        took: The time of these steps on the slowest rank in seconds.
        startup: The duration of start-up in seconds.
        loss: The mean loss of the last steps.
    """
    check_alike(trainer)
    clock, device = trainer.clock, trainer.device
    median = statistics.median(clock.steps)
    waited = sum(clock.waits) / max(1e-9, sum(clock.steps))
    memory = torch.cuda.max_memory_allocated() if device.type == "cuda" else 0
    every = trainer.gathered([statistics.median(trainer.local), waited, median, float(memory)])
    if log is None:
        return
    gpus = common.choose_gpus(trainer.options.gpus)
    log.event("step_times", seconds=[round(step, 6) for step in clock.steps[:KEPT_STEPS]])
    speeds = common.spread_over_time(clock.steps, trainer.global_batch)
    rate = steps * trainer.global_batch / took
    log.sampled("images_per_second", rate, "images/s", HIGHER, speeds)
    log.measurement("step_time", median, "s", LOWER)
    ordered = sorted(clock.steps)
    log.measurement("step_time_p99", ordered[int(0.99 * (len(ordered) - 1))], "s", LOWER)
    for index, (local, wait, _, held) in enumerate(every):
        node, rank = divmod(index, trainer.rank.count // trainer.options.nodes)
        labels = {"rank": str(index), **({"node_rank": str(node)} if trainer.options.nodes > 1 else {})}
        if not gpus:
            labels["device"] = "cpu"
        elif node == 0:
            # A rank has only the UUIDs of its own node's GPUs.
            labels.update(gpus[rank].labels)
        log.measurement("local_step_time", local, "s", LOWER, **labels)
        log.measurement("data_wait_share", wait, "fraction", LOWER, **labels)
        if held:
            log.measurement("device_memory_peak", held, "bytes", None, **labels)
    if trainer.rank.count > 1:
        slowest = max(local for local, *_ in every)
        exposed = max(0.0, 1 - slowest / median)
        log.measurement("exchange_share", exposed, "fraction", LOWER)
    log.measurement("train_loss", loss, "", LOWER)
    log.measurement("startup_time", startup, "s", LOWER)


def learning_rate(options: argparse.Namespace, epoch: float) -> float:
    """Return the learning rate at a moment. ``epoch`` is the number of epochs since the start, a fraction."""
    if epoch < options.warmup_epochs:
        return float(options.lr * epoch / options.warmup_epochs)
    if options.lr_schedule == "constant":
        return float(options.lr)
    if options.lr_schedule == "cosine":
        rest = max(1e-9, options.num_epochs - options.warmup_epochs)
        return float(options.lr * (1 + math.cos(math.pi * (epoch - options.warmup_epochs) / rest)) / 2)
    return float(options.lr * options.lr_factor ** sum(epoch >= step for step in options.lr_step_epochs))


def train_epochs(trainer: Trainer, log: Log | None, startup: float) -> None:
    """Train, write the checkpoint, and evaluate the checkpoint as a second step.

    Args:
        trainer: The rank's trainer.
        log: The log of rank 0, or None on other ranks.
        startup: The duration of start-up in seconds.
    """
    options, rank = trainer.options, trainer.rank
    path = options.checkpoint or rank.state / "checkpoint.pt"
    total, loss = 0.0, math.nan
    for epoch in range(1, options.num_epochs + 1):
        if log:
            log.start("epoch_start", epoch_num=epoch)
        steps, step_in = (
            trainer.steps_per_epoch,
            Reporter(trainer, log, trainer.steps_per_epoch, epoch, options.num_epochs),
        )
        set_at = [math.nan]

        def report(step: int, epoch: int = epoch, steps: int = steps, inner: Reporter = step_in) -> None:
            set_rate(step, epoch, steps)
            inner(step)

        def set_rate(step: int, epoch: int, steps: int, last: list[float] = set_at) -> None:
            rate = learning_rate(options, epoch - 1 + min(step, steps - 1) / steps)
            if rate != last[0]:
                trainer.lr.fill_(rate)
                last[0] = rate

        set_rate(0, epoch, steps)
        took = trainer.train(steps, trainer.batches(epoch), report)
        total += took
        loss = trainer.take_loss(steps - step_in.done, f"epoch {epoch}")
        if log:
            log.end("epoch_stop", epoch_num=epoch)
            rate = steps * trainer.global_batch / took
            stats = {"train_loss": loss, "throughput": rate, "train_step_time": took / steps}
            log.event("tracked_stats", stats, epoch_num=epoch, step=epoch * steps)
            common.say(f"epoch {epoch}/{options.num_epochs} loss {loss:.4f} {rate:,.0f} images/s")
    trainer.save(path)
    steps = options.num_epochs * trainer.steps_per_epoch
    log_speed(trainer, log, steps, total, startup, loss)
    if log:
        log.measurement("seconds_per_epoch", total / options.num_epochs, "s", LOWER)
        log.measurement("epochs", options.num_epochs, "epochs")
    trainer.close()
    evaluate(options, rank, trainer.device, log, path)
    common.mark_stop(rank)


def evaluate(
    options: argparse.Namespace, rank: Rank, device: torch.device, log: Log | None, path: Path
) -> None:
    """Evaluate a checkpoint from its file on all validation images, and log top-1 and top-5 accuracy.

    Args:
        options: The options of the program.
        rank: The rank. The ranks share the images.
        device: The device of the rank.
        log: The log of rank 0, or None on other ranks.
        path: The file of the checkpoint.

    Raises:
        Refusal: The checkpoint cannot be used, is for other classes, or not every image was evaluated.
    """
    try:
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        held = torch.load(path, map_location="cpu", weights_only=True)
        model = imagenet_networks.build(held["network"], len(held["classes"]), held["width"])
        model.load_state_dict(held["state"])
    except (
        OSError,
        EOFError,
        RuntimeError,
        KeyError,
        TypeError,
        ValueError,
        pickle.UnpicklingError,
    ) as error:
        message = (str(error).splitlines() or [type(error).__name__])[0]
        raise Refusal(
            common.EXIT_DATA, f"the checkpoint {path} cannot be used ({message}); --mode train writes one"
        ) from error
    listing = imagenet_data.scan(options.data, "val")
    if list(listing.classes) != held["classes"]:
        raise Refusal(
            common.EXIT_DATA,
            f"the checkpoint {path} has {len(held['classes'])} classes, and {options.data} has others; "
            "evaluate it on the data that it was trained on",
        )
    layout = torch.channels_last if options.layout == "channels_last" else torch.contiguous_format
    model.to(device, memory_format=layout).eval()
    _, decode = imagenet_data.decoder(listing)
    mine = listing.val[rank.index :: rank.count]
    loader = torch.utils.data.DataLoader(
        imagenet_data.Images(mine, decode, held["image_size"], train=False),
        batch_size=options.batch_per_gpu,
        num_workers=options.workers,
        pin_memory=device.type == "cuda",
    )
    if log:
        log.start("eval_start")
    started = time.perf_counter()
    totals = torch.zeros(3, dtype=torch.float64, device=device)
    best = min(5, len(listing.classes))
    with torch.inference_mode():
        for batch, (images, labels) in enumerate(loader, 1):
            images = images.to(device, non_blocking=True).contiguous(memory_format=layout)
            truth = labels.to(device, non_blocking=True)
            with torch.autocast(device.type, torch.bfloat16, enabled=options.precision == "bf16"):
                scores = model(images)
            right = scores.float().topk(best, 1).indices == truth[:, None]
            totals += torch.stack((right[:, 0].sum(), right.sum(), torch.tensor(len(truth), device=device)))
            if log:
                log.progress("evaluate", batch, len(loader))
    if rank.count > 1:
        torch.distributed.all_reduce(totals)
    first, five, seen = totals.tolist()
    took = time.perf_counter() - started
    if seen != len(listing.val):
        raise Refusal(
            common.EXIT_ERROR,
            f"{seen:g} images were evaluated, but there are {len(listing.val)}: no accuracy is logged",
        )
    if log:
        log.end("eval_stop")
        log.event("eval_samples", len(listing.val))
        log.event("checkpoint_sha256", digest)
        log.event("eval_accuracy", first / seen)
        log.measurement("top_1_accuracy", first / seen, "fraction", HIGHER)
        log.measurement("top_5_accuracy", five / seen, "fraction", HIGHER)
        log.measurement("evaluation_rate", seen / took, "images/s", HIGHER)


def compare_torchvision(trainer: Trainer, log: Log) -> None:
    """Time the steps of torchvision's network on the same images, and log its speed.

    It is compiled with torch.compile if Rackproof's network is compiled, and its step is not captured in a
    CUDA graph.
    """
    try:
        from torchvision import models
    except (ImportError, RuntimeError):
        common.say("torchvision is not installed here: nothing to compare with")
        log.event("compared_with", "nothing: torchvision is not installed")
        return
    options, device = trainer.options, trainer.device
    model: Any = getattr(models, options.network)(num_classes=trainer.classes)
    model.to(device, memory_format=trainer.layout)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=MOMENTUM, weight_decay=1e-4, fused=True)
    if trainer.notes["compile"] != "off":
        model = torch.compile(model)
    images = ((trainer.images.float() - 127) / 64).contiguous(memory_format=trainer.layout)

    def step() -> None:
        with torch.autocast(device.type, torch.bfloat16, enabled=options.precision == "bf16"):
            scores = model(images)
        trainer.loss_function(scores.float(), trainer.labels).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    for _ in range(WARM_UP_STEPS):
        step()
    clock = Clock(device)
    if device.type == "cuda":
        torch.cuda.synchronize()
    started = time.perf_counter()
    for _ in range(options.steps):
        began = clock.begin()
        step()
        clock.end(began)
    clock.finish()
    rate = options.steps * trainer.batch / (time.perf_counter() - started)
    log.event("compared_with", f"torchvision {models.__name__.split('.')[0]}")
    log.measurement(
        "torchvision_images_per_second", rate, "images/s", HIGHER, compile=trainer.notes["compile"]
    )


if __name__ == "__main__":
    sys.exit(common.run(lambda options: options.network, parser(), plan, work, sampled=True, gpu_states=True))
