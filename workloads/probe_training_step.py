#!/usr/bin/env python3
"""Train a small network for a few steps, the same on every device, and log a digest of the result.

Nights (validate.yml) start this program. There is one process per GPU, and they do not exchange data. Data
and first weights are made on the CPU from one seed, and only deterministic kernels run. Devices of one model
with the same software therefore end with the same bits. A device with other bits computes wrongly. The speed
is not measured.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import sys

import common
from common import Log, Rank

# cuBLAS reads this when it starts. Without it, its results may differ from run to run.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
if common.IS_RANK:
    import torch

GPU_WIDTH, CPU_WIDTH = 4096, 128
LAYERS = 4
BATCH = 512
CLASSES = 64


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    arguments = common.probe_parser(__doc__, 0.0)
    arguments.add_argument("--steps", type=int, default=20, help="steps of training (default: %(default)s)")
    arguments.add_argument("--width", type=int, help="width of the layers (default: 4096, on the CPU 128)")
    return arguments


def plan(options: argparse.Namespace) -> int:
    """Check the options. Return the number of ranks."""
    if options.steps < 1 or (options.width is not None and options.width < 1):
        raise common.Refusal(common.EXIT_USAGE, "--steps and --width must be at least 1")
    return max(1, len(common.chosen_by_device(options.device, options.gpus)))


def network(width: int) -> torch.nn.Sequential:
    """Return the network on the CPU, with products, norms and activation functions."""
    layers: list[torch.nn.Module] = []
    for _ in range(LAYERS):
        layers += [torch.nn.Linear(width, width), torch.nn.LayerNorm(width), torch.nn.GELU()]
    return torch.nn.Sequential(*layers, torch.nn.Linear(width, CLASSES))


def digest(model: torch.nn.Module) -> str:
    """Return a digest of every bit of the weights."""
    whole = hashlib.sha256()
    for value in model.parameters():
        whole.update(value.detach().cpu().contiguous().numpy().tobytes())
    return whole.hexdigest()


def train(device: torch.device, seed: int, steps: int, width: int) -> tuple[str, float]:
    """Train on one device. Return the digest of the weights and the last loss."""
    torch.use_deterministic_algorithms(True)
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.manual_seed(seed)
    model = network(width)
    inputs = torch.randn(BATCH, width)
    targets = torch.randint(CLASSES, (BATCH,))
    model, inputs, targets = model.to(device), inputs.to(device), targets.to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(steps):
        # Tensor cores do the products, as they do in training.
        with torch.autocast(device.type, torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return digest(model), float(loss.item())


def probe(options: argparse.Namespace, rank: Rank, log: Log) -> None:
    """Train as one rank, on one device."""
    if not common.chosen_by_device(options.device, options.gpus):
        # The order of sums depends on the number of threads.
        torch.set_num_threads(1)
    device, gpus = common.begin_probe(options, rank, log)
    width = options.width or (GPU_WIDTH if gpus else CPU_WIDTH)
    got, loss = train(device, options.seed, options.steps, width)
    # Correct devices may give different digests if these properties differ. Therefore, only devices with
    # equal properties are compared.
    alike = [gpus[rank.local].name if gpus else f"{torch.backends.cpu.get_cpu_capability()}, one thread"]
    alike += [f"{name} {value}" for name, value in sorted(common.facts().items())]
    alike += [f"width {width}", f"steps {options.steps}", f"seed {options.seed}"]
    labels = common.device_labels(gpus, rank)
    log.event("training_digest", {"digest": got, "loss": loss, "alike": ", ".join(alike), "labels": labels})
    common.say(f"digest {got} loss {loss:.6g}")
    common.mark_stop(rank)


if __name__ == "__main__":
    sys.exit(common.run("probe_training_step", parser(), plan, probe))
