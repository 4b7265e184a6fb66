"""Measure one GPU several times, and print the values for ``recorded_noise.json``.

This program needs only PyTorch and an NVIDIA GPU with FP8. No test starts it. One process is one session,
which the simulator uses as one night: the context, the buffers and the pinned memory are new in each session.
Start a process for each GPU of a host at once, repeat this for each session, and collect the lines:

    for gpu in 0 1; do
      for session in $(seq 0 20); do python3 measure_noise.py $gpu $session >>gpu$gpu.jsonl; done &
    done; wait

``recorded_noise.py`` makes a recording of the data file from these lines.
"""

import json
import sys
import time
from collections.abc import Callable

import torch

# Rows and columns of the matrices, bytes of a copy on the device, and bytes of a copy from the host.
SIZE = 8192
BYTES_COPIED = 2**31
BYTES_FROM_HOST = 2**29
PAUSE_S = 0.1
"""Pause before each measurement, which is a short burst, as in a night's probes."""


def metrics() -> dict[str, tuple[Callable[[], object], int, float]]:
    """Return for each metric the function to repeat, the repetitions of a burst, and the work of a
    repetition.

    The work is in TFLOP or GB.
    """
    torch.manual_seed(1)
    left = torch.randn(SIZE, SIZE, device="cuda", dtype=torch.bfloat16)
    right = torch.randn(SIZE, SIZE, device="cuda", dtype=torch.bfloat16)
    left8, right8 = left.to(torch.float8_e4m3fn), right.to(torch.float8_e4m3fn).t()
    scale, product = torch.ones((), device="cuda"), torch.empty_like(left)
    source = torch.empty(BYTES_COPIED, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    host = torch.empty(BYTES_FROM_HOST, dtype=torch.uint8, pin_memory=True)
    work = 2 * SIZE**3 / 1e12
    return {
        "gemm_bf16_tflops": (lambda: torch.mm(left, right, out=product), 10, work),
        "gemm_fp8_tflops": (
            lambda: torch._scaled_mm(left8, right8, scale_a=scale, scale_b=scale, out_dtype=torch.bfloat16),
            15,
            work,
        ),
        "hbm_copy_gbs": (lambda: target.copy_(source), 8, 2 * BYTES_COPIED / 1e9),
        "h2d_gbs": (
            lambda: source[:BYTES_FROM_HOST].copy_(host, non_blocking=True),
            2,
            BYTES_FROM_HOST / 1e9,
        ),
    }


def rate(repeat_once: Callable[[], object], times: int, work: float) -> float:
    """Return the work per second over ``times`` repetitions, measured with events of the device."""
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    repeat_once()
    begin.record()
    for _ in range(times):
        repeat_once()
    end.record()
    torch.cuda.synchronize()
    return round(work * times * 1e3 / begin.elapsed_time(end), 3)


def main() -> None:
    """Print a JSON line for each value: all metrics in turn, ``repeats`` times, then the power-limited
    product.

    The arguments of the command line are the GPU's index, the session's number, and the repeats (default 8).
    """
    gpu, session = int(sys.argv[1]), int(sys.argv[2])
    repeats = int(sys.argv[3]) if len(sys.argv) > 3 else 8
    torch.cuda.set_device(gpu)
    measured = metrics()
    for repeat_once, _, _ in measured.values():
        for _ in range(3):
            repeat_once()
    torch.cuda.synchronize()
    row = {"gpu": gpu, "session": session}
    for repeat in range(repeats):
        for metric, (repeat_once, times, work) in measured.items():
            time.sleep(PAUSE_S)
            value = rate(repeat_once, times, work)
            print(json.dumps({**row, "repeat": repeat, "metric": metric, "value": value}), flush=True)
    repeat_once, _, work = measured["gemm_bf16_tflops"]
    rate(repeat_once, 500, work)  # 0.8 s, after which the power limit sets the speed
    for repeat in range(4):
        value = rate(repeat_once, 150, work)
        print(
            json.dumps({**row, "repeat": repeat, "metric": "gemm_bf16_sustained_tflops", "value": value}),
            flush=True,
        )


if __name__ == "__main__":
    main()
