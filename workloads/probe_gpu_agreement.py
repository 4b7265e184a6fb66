#!/usr/bin/env python3
"""Compare the bits of the same products on all GPUs of a node, and on each GPU over time.

The benchmark gpu-agreement starts this program. There is one process per GPU, and the processes do not
exchange data through a GPU. GPUs of one model with the same software compute the same bits. Of three or more
GPUs, the one that differs from the majority is at fault. If two GPUs differ, it is unknown which one is
right. A GPU whose own repeats differ is at fault.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import sys
import time
from typing import Any

import common
import probe_gemm
from common import LOWER, Log, Rank, Refusal

# cuBLAS reads this when it starts. Without it, its results may differ from run to run.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
if common.IS_RANK:
    import torch

GPU_SIZES = (4096, 8192)
CPU_SIZES = (128, 256)
TIMEOUT_S = 120.0
INTEGERS = {2: "int16", 4: "int32"}
"""Integer type by the bytes of a value. Bits are compared, so that NaN equals itself."""


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    arguments = common.probe_parser(__doc__, 5.0)
    add = arguments.add_argument
    add("--ranks", type=int, default=2, help="processes on the CPU (default: %(default)s)")
    add("--dtypes", default=",".join(probe_gemm.DTYPES), help="default: %(default)s, where the device has it")
    add("--sizes", help="comma-separated sizes of square matrices (default: by device)")
    return arguments


def plan(options: argparse.Namespace) -> int:
    """Check the options. Return the number of ranks."""
    probe_gemm.chosen(options)
    gpus = common.chosen_by_device(options.device, options.gpus)
    ranks = len(gpus) or options.ranks
    if ranks < 2:
        raise Refusal(
            common.EXIT_NO_GPU if gpus else common.EXIT_USAGE,
            f"agreement needs at least 2 ranks, {ranks} would run; use --device cpu --ranks 2 or more GPUs",
        )
    return ranks


def products(dtype: str, size: int, device: torch.device, seed: int, seconds: float) -> tuple[str, int, int]:
    """Compute one product again and again.

    Returns:
        The digest of the first result, the number of values in all later results that differ from it, and the
        number of results.
    """
    torch.manual_seed(seed)
    _, _, multiply = probe_gemm.product(dtype, size, device)
    first = torch.empty((size, size), device=device, dtype=probe_gemm._kind(dtype))
    again = torch.empty_like(first)
    bits = getattr(torch, INTEGERS[first.element_size()])
    multiply(first)
    differ = torch.zeros((), dtype=torch.int64, device=device)
    count = 1
    end = time.monotonic() + seconds
    while count < 3 or time.monotonic() < end:
        again.fill_(-1)
        multiply(again)
        differ += (again.view(bits) != first.view(bits)).sum()
        count += 1
        if count % 8 == 0 and device.type == "cuda":
            # Otherwise the host would queue far more than there is time for.
            torch.cuda.synchronize(device)
    data = first.view(torch.uint8).cpu().numpy().tobytes()
    return hashlib.sha256(data).hexdigest(), int(differ.item()), count


def dissenters(digests: list[str]) -> tuple[list[int], bool]:
    """Return the positions of digests that differ from the majority, and whether there is none. No I/O."""
    most = common.majority(digests)
    if most is None:
        return [], True
    return [index for index, digest in enumerate(digests) if digest != most], False


def compared(answers: list[dict[str, Any]], rank: int, key: str) -> tuple[list[int], list[int], bool]:
    """Return the ranks compared with this one, the differing ones, and whether there is no majority.

    Only GPUs of the same model compute the same bits.

    Args:
        answers: The message of each rank, with ``model``, and ``digests`` by product.
        rank: The number of this rank.
        key: The name of the product.
    """
    alike = [index for index, answer in enumerate(answers) if answer["model"] == answers[rank]["model"]]
    odd, disputed = dissenters([answers[index]["digests"].get(key, "") for index in alike])
    return alike, [alike[index] for index in odd], disputed


def probe(options: argparse.Namespace, rank: Rank, log: Log) -> None:
    """Compute as one rank, and compare with the others."""
    if not common.chosen_by_device(options.device, options.gpus):
        # The order of sums depends on the number of threads.
        torch.set_num_threads(1)
    device, gpus = common.begin_probe(options, rank, log)
    wanted, sizes = probe_gemm.chosen(options)
    sizes = sizes or list(GPU_SIZES if gpus else CPU_SIZES)
    dtypes = [dtype for dtype in wanted if probe_gemm.supported(dtype, device)]
    labels = {**common.device_labels(gpus, rank), "rank": str(rank.index)}
    digests: dict[str, str] = {}
    for index, dtype in enumerate(dtypes):
        unstable = 0
        for size in sizes:
            digest, differ, products_made = products(
                dtype, size, device, options.seed, options.seconds / len(dtypes) / len(sizes)
            )
            digests[f"{dtype} {size}"] = digest
            unstable += differ
            log.event(
                "product_digest",
                {"dtype": dtype, "size": size, "digest": digest, "products": products_made, "labels": labels},
            )
        log.measurement("unstable_values", unstable, "1", LOWER, dtype=dtype, **labels)
        if rank.index == 0:
            log.progress("products", index + 1, len(dtypes))
    model = gpus[rank.local].name if gpus else "cpu"
    mine = {"model": model, "name": labels.get("gpu", f"rank {rank.index}"), "digests": digests}
    answers = common.exchange_by_file(mine, rank, "agreement", TIMEOUT_S)
    report(answers, dtypes, sizes, rank, log, labels)
    if rank.index == 0 and (skipped := [dtype for dtype in wanted if dtype not in dtypes]):
        common.say(f"not supported here, so not compared: {', '.join(skipped)}")
    common.mark_stop(rank)


def report(
    answers: list[dict[str, Any]],
    dtypes: list[str],
    sizes: list[int],
    rank: Rank,
    log: Log,
    labels: dict[str, str],
) -> None:
    """Log the comparison of this rank's GPU with the others of its model.

    The measurements are the number of products in which it differs from the majority, the number of products
    without a majority, and the number of other GPUs.
    """
    for dtype in dtypes:
        odd_ones = disputes = 0
        for size in sizes:
            alike, odd, disputed = compared(answers, rank.index, f"{dtype} {size}")
            odd_ones += rank.index in odd
            disputes += disputed and len(alike) > 1
            if rank.index == min(alike):
                print_odd(answers, alike, odd, disputed, f"{dtype} {size}x{size}x{size}")
        log.measurement("odd_products", odd_ones, "1", LOWER, dtype=dtype, **labels)
        log.measurement("disputed_products", disputes, "1", LOWER, dtype=dtype, **labels)
    others = sum(answer["model"] == answers[rank.index]["model"] for answer in answers) - 1
    log.measurement("compared_with", others, "GPUs", **labels)


def print_odd(
    answers: list[dict[str, Any]], alike: list[int], odd: list[int], disputed: bool, product: str
) -> None:
    """Print which GPUs do not agree."""
    names = {index: str(answers[index]["name"]) for index in alike}
    for index in odd:
        common.say(
            f"{product}: {names[index]} computes other bits than the {len(alike) - len(odd)} that agree"
        )
    if disputed and len(alike) > 1:
        common.say(
            f"{product}: no majority agrees, which GPU is right is not known: {', '.join(names.values())}"
        )


if __name__ == "__main__":
    sys.exit(common.run("probe_gpu_agreement", parser(), plan, probe, gpu_states=True))
