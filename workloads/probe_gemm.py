#!/usr/bin/env python3
"""Measure matrix products in every number format of the device, over a sweep of shapes, and check them.

The benchmark gemm and nights (validate.yml) start this program. It runs one process per GPU, all at the
same time. The data are normally distributed, because zeros run faster than real data.

The measurement ``gemm`` is the rate of each point of the sweep, ``gemm_best`` the best rate of each format,
and ``gemm_fixed`` the rate of a shape that is always the same. On GPUs, ``gemm_sustained`` and ``gemm_p95``
are for products that run without a pause for a second. Both show another process that takes a part of the
time. A product of an M x K and a K x N matrix counts as 2 M N K operations.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable
from typing import Any

import common
from common import HIGHER, LOWER, Log, Rank

if common.IS_RANK:
    import torch

DTYPES = ("fp32", "tf32", "bf16", "fp16", "fp8")
GPU_SIZES = (2048, 3072, 4096, 5120, 8192, 16384)
GPU_FIXED = 8192
CPU_SIZES = (256, 512, 1024, 2048)
CPU_FIXED = 1024
MOST_SECONDS = 0.05
"""Longest measuring time of a point on a GPU, which makes the burst short."""
PAUSE_S = 0.2
"""Pause before a GPU computes a point in a short burst. After a longer load, its power limit would set
the speed."""

SUSTAINED = {"fp32": GPU_FIXED, "bf16": 16384}
"""Format and size of the products without a pause. fp32 stays below the power limit."""
SUSTAINED_S = 1.0
"""Duration of the products without a pause."""
SLOW_SHARE = 0.05
"""The share of the slowest products. The fastest of them gives the rate ``gemm_p95``."""

ROWS_CHECKED = 64
"""Number of random rows of a product that are compared with float64."""
TOLERANCE = {"fp32": 1e-4, "tf32": 1e-2, "bf16": 5e-2, "fp16": 1e-2, "fp8": 2e-1}
"""The largest error of one value, in units of the square root of K (the spread of the products)."""


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    arguments = common.probe_parser(__doc__, 5.0)
    arguments.add_argument(
        "--dtypes", default=",".join(DTYPES), help="default: %(default)s, where the device has it"
    )
    arguments.add_argument("--sizes", help="comma-separated sizes of square matrices (default: by device)")
    return arguments


def chosen(options: argparse.Namespace) -> tuple[list[str], list[int] | None]:
    """Return the requested number formats and sizes.

    Raises:
        Refusal: A format or size does not exist.
    """
    return chosen_formats(options.dtypes), chosen_sizes(options.sizes or "") or None


def chosen_formats(words: str) -> list[str]:
    """Return the number formats of a list with commas.

    Raises:
        Refusal: No format is given, or one does not exist.
    """
    dtypes = [word for word in words.split(",") if word]
    unknown = [dtype for dtype in dtypes if dtype not in DTYPES]
    if unknown or not dtypes:
        raise common.Refusal(
            common.EXIT_USAGE, f"--dtypes: {unknown or 'nothing'} is not among {', '.join(DTYPES)}"
        )
    return dtypes


def chosen_sizes(words: str) -> list[int]:
    """Return the sizes in a list with commas. The eight-bit product needs multiples of 16.

    Raises:
        Refusal: A size is not a multiple of 16.
    """
    sizes = [word for word in words.split(",") if word]
    odd = [size for size in sizes if not size.isdigit() or int(size) % 16 or int(size) == 0]
    if odd:
        raise common.Refusal(common.EXIT_USAGE, f"--sizes: {odd} are not multiples of 16")
    return [int(size) for size in sizes]


def plan(options: argparse.Namespace) -> int:
    """Check the options. Return the number of ranks."""
    chosen(options)
    return max(1, len(common.chosen_by_device(options.device, options.gpus)))


def supported(dtype: str, device: torch.device) -> bool:
    """Return whether the device computes in this format (and does not only emulate it)."""
    if device.type == "cpu":
        if dtype == "bf16":
            return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
        return dtype == "fp32"
    capability = torch.cuda.get_device_capability(device)
    needed = {"tf32": (8, 0), "bf16": (8, 0), "fp8": (8, 9)}.get(dtype, (0, 0))
    return capability >= needed


def _kind(dtype: str) -> torch.dtype:
    """Return the type of the values of a product."""
    kinds = {"bf16": torch.bfloat16, "fp8": torch.bfloat16, "fp16": torch.float16}
    return kinds.get(dtype, torch.float32)


def product(dtype: str, size: int, device: torch.device) -> tuple[Any, Any, Callable[[Any], Any]]:
    """Return two random matrices and the function that multiplies them into a given output."""
    torch.backends.cuda.matmul.allow_tf32 = dtype == "tf32"
    left = torch.randn(size, size, device=device)
    right = torch.randn(size, size, device=device)
    if dtype == "fp8":
        left, right = left.to(torch.float8_e4m3fn), right.to(torch.float8_e4m3fn).t().contiguous().t()
        number = torch.ones((), device=device)

        def multiply(out: Any) -> Any:
            """Multiply the FP8 matrices into ``out``."""
            return torch._scaled_mm(
                left,
                right,
                scale_a=number,
                scale_b=number,
                out_dtype=torch.bfloat16,
                use_fast_accum=True,
                out=out,
            )

    else:
        left, right = left.to(_kind(dtype)), right.to(_kind(dtype))

        def multiply(out: Any) -> Any:
            """Multiply the matrices into ``out``."""
            return torch.mm(left, right, out=out)

    return left, right, multiply


def measure(dtype: str, size: int, device: torch.device, seconds: float) -> tuple[common.Spread, float, int]:
    """Time and check one product.

    Returns:
        The spread of the TFLOP/s, the relative error (norm of the difference over norm of the product in
        float64, on random rows), and the number of wrong values.
    """
    left, right, multiply = product(dtype, size, device)
    first = torch.full((size, size), math.nan, device=device, dtype=_kind(dtype))
    multiply(first)
    last = torch.full_like(first, math.nan)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        time.sleep(PAUSE_S)
        seconds = min(seconds, MOST_SECONDS)
    times_s = common.sample_seconds(lambda: multiply(last), device, seconds)
    rows = torch.randperm(size, device=device)[:ROWS_CHECKED]
    # float64 of fp8 goes through float32, because some devices lack a direct conversion.
    exact = left[rows].float().double() @ right.float().double()
    difference = first[rows].double() - exact
    bound = TOLERANCE[dtype] * math.sqrt(size)
    # With this order, NaN counts as wrong. The last product must equal the first one everywhere.
    wrong = int((~(difference.abs() <= bound)).sum()) + int((~((last - first).abs() <= bound)).sum())
    error = float(difference.norm() / exact.norm())
    return common.spread_of(times_s).speeds(2.0 * size**3 / 1e12), error, wrong


def slow_seconds(times_s: list[float]) -> float:
    """Return the 95th percentile of times in seconds. At least one in twenty took this long or longer."""
    return sorted(times_s)[len(times_s) - max(1, math.ceil(SLOW_SHARE * len(times_s)))]


def sustained(dtype: str, size: int, device: torch.device) -> tuple[float, float, common.Spread]:
    """Run products without a pause for :data:`SUSTAINED_S` on a GPU, each timed with events.

    Returns:
        TFLOP/s of all products together, TFLOP/s at the 95th percentile of times, and the spread of
        TFLOP/s.
    """
    _, _, multiply = product(dtype, size, device)
    out = torch.empty((size, size), device=device, dtype=_kind(dtype))
    for _ in range(3):
        multiply(out)
    torch.cuda.synchronize(device)
    # Queue them at once. Otherwise, a slow host has the same effect as another process on the GPU.
    count = max(20, min(2000, round(SUSTAINED_S / common.median_seconds(lambda: multiply(out), device, 0.0))))
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(count + 1)]
    marks[0].record()
    for mark in marks[1:]:
        multiply(out)
        mark.record()
    torch.cuda.synchronize(device)
    times_s = [marks[at].elapsed_time(marks[at + 1]) / 1e3 for at in range(count)]
    work = 2.0 * size**3 / 1e12
    return work * count / sum(times_s), work / slow_seconds(times_s), common.spread_of(times_s).speeds(work)


def log_sustained(dtype: str, device: torch.device, log: Log, labels: dict[str, str]) -> None:
    """Log the rates of products of one format without a pause, in their size in :data:`SUSTAINED`."""
    size = SUSTAINED[dtype]
    labels = {"dtype": dtype, "shape": f"{size}x{size}x{size}", **labels}
    mean, slow, speeds = sustained(dtype, size, device)
    log.sampled("gemm_sustained", mean, "TFLOP/s", HIGHER, speeds, **labels)
    log.measurement("gemm_p95", slow, "TFLOP/s", HIGHER, **labels)


def measure_format(
    dtype: str,
    sizes: list[int],
    fixed: int,
    device: torch.device,
    seconds: float,
    log: Log,
    labels: dict[str, str],
) -> None:
    """Measure one number format in all sizes. Log rates, the best rate, the worst error and wrong values."""
    rates, errors, wrong = [], [], 0
    for size in sizes:
        rate, error, bad = measure(dtype, size, device, seconds)
        shape = f"{size}x{size}x{size}"
        names = ("gemm", "gemm_fixed") if size == fixed else ("gemm",)
        for name in names:
            shown = {"dtype": dtype, "shape": shape, **labels}
            log.sampled(name, rate.median, "TFLOP/s", HIGHER, rate, **shown)
        rates.append(rate)
        errors.append(error)
        wrong += bad
    best = max(rates, key=lambda rate: rate.median)
    log.sampled("gemm_best", best.median, "TFLOP/s", HIGHER, best, dtype=dtype, **labels)
    # NaN is not less than anything, so max() could lose it.
    worst = math.nan if any(math.isnan(error) for error in errors) else max(errors)
    log.measurement("max_relative_error", worst, "1", LOWER, dtype=dtype, **labels)
    log.measurement("wrong_values", wrong, "1", LOWER, dtype=dtype, **labels)


def probe(options: argparse.Namespace, rank: Rank, log: Log) -> None:
    """Measure as one rank, on one device."""
    device, gpus = common.begin_probe(options, rank, log)
    labels = common.device_labels(gpus, rank)
    wanted, sizes = chosen(options)
    dtypes = [dtype for dtype in wanted if supported(dtype, device)]
    fixed = GPU_FIXED if gpus else CPU_FIXED
    sizes = sizes or list(GPU_SIZES if gpus else CPU_SIZES)
    seconds = options.seconds / max(1, len(dtypes) * len(sizes))
    for index, dtype in enumerate(dtypes):
        measure_format(dtype, sizes, fixed, device, seconds, log, labels)
        if gpus and SUSTAINED.get(dtype) in sizes:
            log_sustained(dtype, device, log, labels)
        log.progress("gemm", index + 1, len(dtypes))
    if skipped := [dtype for dtype in wanted if dtype not in dtypes]:
        common.say(f"not supported here, so not measured: {', '.join(skipped)}")
    common.mark_stop(rank)


if __name__ == "__main__":
    sys.exit(common.run("probe_gemm", parser(), plan, probe, gpu_states=True))
