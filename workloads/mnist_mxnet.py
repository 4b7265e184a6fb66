#!/usr/bin/env python3
"""Train LeNet or an MLP on MNIST with MXNet 1.9.1, as its example train_mnist.py does.

The benchmarks mnist-lenet-mxnet and mnist-mlp-mxnet start this program. Networks, flags and log lines are
as in the example. The lines of MXNet's Python code are on standard output. On GPUs, the training is a
child process, so that this process can print the other uses of the GPUs before and after it (state_gpus.py).

Exit status: 0 done, 1 error, 2 usage, 3 not finite, 4 GPU requested but absent, 5 data missing or damaged.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import logging
import math
import os
import struct
import sys
from pathlib import Path
from typing import Any

import common
import state_gpus

EXIT_ERROR = 1
EXIT_USAGE = 2
EXIT_NON_FINITE = 3
EXIT_NO_GPU = 4
EXIT_DATA = 5
CLASSES = 10
SIDE = 28
PARENT = "RACKPROOF_MXNET_PARENT"
"""Environment variable with the process ID of the parent, which waits for a training on GPUs."""


class Stop(Exception):  # noqa: N818  (carries an exit status, like SystemExit)
    """A reason why training cannot continue, with the remedy and an exit status."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = arguments.add_argument
    add("--data", type=Path, required=True, help="folder that stage_mnist.py filled")
    add("--network", choices=("lenet", "mlp"), default="lenet", help="default: %(default)s")
    add("--gpus", default="", help="indices of GPUs, e.g. 0,1; empty means CPU (default)")
    add("--gpu-count", type=int, help="number of GPUs, from the first, in the place of --gpus; 0 means CPU")
    add("--kv-store", choices=("local", "device", "nccl"), default="device", help="default: %(default)s")
    add("--batch-size", type=int, default=64, help="over all GPUs together (default: %(default)s)")
    add("--num-epochs", type=int, default=12, help="default: %(default)s")
    add("--lr", type=float, default=0.05, help="default: %(default)s")
    add("--lr-factor", type=float, default=0.1, help="default: %(default)s")
    add(
        "--lr-step-epochs", default="10", help="epochs after which --lr-factor applies (default: %(default)s)"
    )
    add(
        "--disp-batches",
        type=int,
        default=50,
        help="batches between log lines; a third of an epoch that has fewer (default: %(default)s)",
    )
    add("--target", type=float, help="requested validation accuracy; printed at the end, not enforced")
    add("--seed", type=int, default=1, help="default: %(default)s")
    return arguments


def read_idx(folder: Path, name: str, files: dict[str, str]) -> tuple[tuple[int, ...], bytes]:
    """Read an IDX file of bytes. Return its shape and contents, checked against the manifest."""
    try:
        data = (folder / name).read_bytes()
    except OSError as error:
        raise Stop(EXIT_DATA, f"{error}; run stage_mnist.py --data {folder} again") from error
    if hashlib.sha256(data).hexdigest() != files.get(name):
        raise Stop(EXIT_DATA, f"{folder / name}: wrong checksum; run stage_mnist.py --data {folder} again")
    shape = struct.unpack_from(f">{data[3]}I", data, 4)
    return shape, data[4 + 4 * data[3] :]


def load(folder: Path, part: str) -> tuple[Any, Any]:
    """Return images (N, 1, 28, 28) as float32 in 0..1 and labels (N,), both numpy."""
    import numpy as np

    try:
        files = json.loads((folder / "dataset.json").read_text())["files"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Stop(
            EXIT_DATA, f"no staged MNIST in {folder} ({error}); run stage_mnist.py --data {folder}"
        ) from error
    shape, pixels = read_idx(folder, f"{part}-images-idx3-ubyte", files)
    label_shape, labels = read_idx(folder, f"{part}-labels-idx1-ubyte", files)
    if shape[1:] != (SIDE, SIDE) or label_shape != shape[:1]:
        raise Stop(EXIT_DATA, f"images {shape} and labels {label_shape} in {folder} do not belong together")
    images = np.frombuffer(pixels, dtype=np.uint8).reshape(shape[0], 1, SIDE, SIDE)
    return images.astype(np.float32) / 255, np.frombuffer(labels, dtype=np.uint8).astype(np.float32)


def lenet(mx: Any) -> Any:
    """Return the symbol of LeNet, with the layers of MXNet's example."""
    data = mx.sym.var("data")
    for filters in (20, 50):
        data = mx.sym.Convolution(data, kernel=(5, 5), num_filter=filters)
        data = mx.sym.Activation(data, act_type="tanh")
        data = mx.sym.Pooling(data, pool_type="max", kernel=(2, 2), stride=(2, 2))
    data = mx.sym.FullyConnected(mx.sym.Flatten(data), num_hidden=500)
    data = mx.sym.Activation(data, act_type="tanh")
    data = mx.sym.FullyConnected(data, num_hidden=CLASSES)
    return mx.sym.SoftmaxOutput(data, name="softmax")


def mlp(mx: Any) -> Any:
    """Return the symbol of the multi-layer perceptron of MXNet's example."""
    data = mx.sym.Flatten(mx.sym.var("data"))
    for width in (128, 64):
        data = mx.sym.Activation(mx.sym.FullyConnected(data, num_hidden=width), act_type="relu")
    data = mx.sym.FullyConnected(data, num_hidden=CLASSES)
    return mx.sym.SoftmaxOutput(data, name="softmax")


def indices_of(gpus: str) -> list[int]:
    """Return the indices in ``--gpus``."""
    indices = [gpu.strip() for gpu in gpus.split(",") if gpu.strip()]
    if not all(index.isdigit() for index in indices):
        raise Stop(EXIT_USAGE, f"--gpus {gpus!r}: not a comma-separated list of indices")
    return [int(index) for index in indices]


def devices(mx: Any, gpus: str) -> list[Any]:
    """Return MXNet's contexts for ``--gpus``."""
    indices = indices_of(gpus)
    exist = mx.context.num_gpus()
    if any(index >= exist for index in indices):
        raise Stop(
            EXIT_NO_GPU,
            f"GPUs {gpus} requested, {exist} usable by this build of MXNet; "
            "leave --gpus empty to use the CPU",
        )
    return [mx.gpu(index) for index in indices] or [mx.cpu()]


def fit(options: argparse.Namespace) -> None:
    """Train the network. MXNet writes the log."""
    import mxnet as mx
    import numpy as np

    context = devices(mx, options.gpus)
    # MXNet itself divides a batch unevenly if necessary. 64 images on 3 GPUs are 21, 21 and 22.
    if options.batch_size < len(context):
        raise Stop(
            EXIT_USAGE, f"--batch-size {options.batch_size} is less than one for each of {len(context)} GPUs"
        )
    try:
        steps = [int(epoch) for epoch in options.lr_step_epochs.split(",") if epoch.strip()]
    except ValueError as error:
        raise Stop(EXIT_USAGE, f"--lr-step-epochs {options.lr_step_epochs!r}: {error}") from error
    mx.random.seed(options.seed)
    np.random.seed(options.seed)
    images, labels = load(options.data, "train")
    train = mx.io.NDArrayIter(images, labels, options.batch_size, shuffle=True)
    validation = mx.io.NDArrayIter(*load(options.data, "t10k"), options.batch_size)
    batches = math.ceil(len(labels) / options.batch_size)
    # MXNet prints no speed of an epoch with fewer batches than --disp-batches. With 2,048 images a batch, an
    # epoch has 30.
    every = options.disp_batches if options.disp_batches < batches else max(1, batches // 3)
    schedule = None
    if steps:
        schedule = mx.lr_scheduler.MultiFactorScheduler(
            [batches * step for step in steps], options.lr_factor, base_lr=options.lr
        )
    module = mx.mod.Module({"lenet": lenet, "mlp": mlp}[options.network](mx), context=context)
    accuracy = mx.metric.Accuracy()

    def require_finite(epoch: int, _: Any, arguments: dict[str, Any], __: Any) -> None:
        """Stop the training if a weight is not finite after an epoch."""
        # Check after every epoch, because MXNet would continue with NaN and report an accuracy of ten per
        # cent.
        if not all(np.isfinite(argument.asnumpy()).all() for argument in arguments.values()):
            raise Stop(
                EXIT_NON_FINITE,
                f"weights are not finite after epoch {epoch}: training diverged; lower --lr {options.lr:g}",
            )

    module.fit(
        train,
        eval_data=validation,
        eval_metric=accuracy,
        kvstore=options.kv_store,
        optimizer="sgd",
        optimizer_params={
            "learning_rate": options.lr,
            "momentum": 0.9,
            "wd": 0.0001,
            "lr_scheduler": schedule,
        },
        initializer=mx.init.Xavier(rnd_type="gaussian", factor_type="in", magnitude=2),
        num_epoch=options.num_epochs,
        batch_end_callback=mx.callback.Speedometer(options.batch_size, every),
        epoch_end_callback=require_finite,
    )
    if options.target is not None:
        reached = module.score(validation, accuracy)[0][1]
        print(f"target {options.target}: final validation accuracy {reached:.6f}", flush=True)


def watched_gpus(gpus: str) -> list[str]:
    """Return the UUIDs of the GPUs in ``--gpus``, or none in the training's own process."""
    if PARENT in os.environ:
        return []
    wanted = indices_of(gpus)
    return [gpu.uuid for gpu in common.gpus() if gpu.index in wanted] if wanted else []


def train(options: argparse.Namespace) -> int:
    """Train here, or on GPUs in a child process between two readings of their states.

    Return the exit status.
    """
    if parent := os.environ.get(PARENT):
        common.die_with_parent(int(parent))
    uuids = watched_gpus(options.gpus)
    if uuids:
        environment = {**os.environ, PARENT: str(os.getpid())}
        return state_gpus.run_between(
            lambda: state_gpus.run_child([sys.executable, *sys.argv], environment),
            lambda moment: state_gpus.print_states(moment, uuids),
        )
    # MXNet's own examples do this too. A reader of the log finds the required number of epochs here.
    logging.info("start with arguments %s", options)
    fit(options)
    return 0


def main() -> int:
    """Train as the command line requests. Return the exit status."""
    arguments = parser()
    options = arguments.parse_args()
    for name in ("batch_size", "num_epochs", "disp_batches"):
        if getattr(options, name) < 1:
            arguments.error(f"--{name.replace('_', '-')} must be at least 1")
    if options.gpu_count is not None:
        if options.gpus or options.gpu_count < 0:
            arguments.error("give --gpu-count (at least 0) or --gpus, not both")
        options.gpus = ",".join(map(str, range(options.gpu_count)))
    logging.basicConfig(level=logging.INFO, stream=sys.stdout)
    try:
        return train(options)
    except (Stop, common.Refusal) as stop:
        print(f"error: {stop}", file=sys.stderr, flush=True)
        return stop.status
    except ImportError as error:
        print(
            f"error: {sys.executable} cannot import MXNet ({error}); it needs mxnet 1.9.1 with numpy 1.23.5",
            file=sys.stderr,
        )
        return EXIT_ERROR


if __name__ == "__main__":
    sys.exit(main())
