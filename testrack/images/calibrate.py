#!/usr/bin/env python3
"""Find the goals in common/fake_ngc/benchmarks.py again, after a change to the data or to the models.

    PYTHONPATH=testrack/images/common .venv/bin/python testrack/images/calibrate.py [--runs 40]

Start it by hand. It trains without ranks and without waiting. For every benchmark, it prints the goal with
which runs need, on average, MARGIN times the samples of the reference, and how many runs take which number of
samples.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
from fake_ngc import data, flux_data
from fake_ngc.benchmarks import BATCH, BENCHMARKS, STEPS, Benchmark
from fake_ngc.learning import Adam

MARGIN = 1.03
"""Mean ratio of the samples that runs need to the samples that the reference needs.

The rules scale a result that is faster than the reference, and reject one that is much faster.
"""
BATCHES = {"llama2_70b_lora": (8, 9, 16), "llama31_8b": (16, 36), "flux1": (512, 1024, 2304)}


def lay_out(root: Path) -> None:
    """Write the data below the paths at which containers mount them."""
    parts = {"data": data.gov_report(), "ckpt": data.llama2_model(), "preproc_data": data.c4()}
    parts["workspace/llm/nemo_tokenizer"] = data.tokenizer()
    for folder, files in parts.items():
        for name, content in files.items():
            path = root / folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
    flux_data.lay_out(root / "dataset/energon")


def curve(benchmark: Benchmark, root: Path, seed: int) -> np.ndarray:
    """Return the evaluation loss of one run after each step.

    It is NaN in the first half of the steps, and after a step at which no batch size has an evaluation.
    """
    wanted = {
        steps_done(benchmark, step, batch)
        for batch in BATCHES[benchmark.name]
        for step in benchmark.evaluations(batch)
    }
    model = benchmark.open(root)
    generator = np.random.default_rng(seed)
    vector, optimizer = model.start(generator), Adam(model.size, benchmark.rate)
    everything, losses = np.arange(model.eval_samples), []
    for step in range(1, max(wanted) + 1):
        chosen = generator.integers(0, model.samples, BATCH)
        noise = generator.random((BATCH, model.NOISE))
        _loss, gradient = model.learn(vector, chosen, noise)
        vector = optimizer.step(vector, gradient / BATCH)
        at_evaluation = step in wanted and step > STEPS // 2
        losses.append(model.measure(vector, everything) / model.eval_samples if at_evaluation else np.nan)
    return np.array(losses)


def steps_done(benchmark: Benchmark, step: int, batch: int) -> int:
    """Return the number of steps of the small model for a step of the reference."""
    return round(STEPS * step * batch / benchmark.reference_samples(batch))


def needed(benchmark: Benchmark, losses: np.ndarray, batch: int, goal: float) -> int:
    """Return the samples that a run with this curve logs as needed, all if it does not reach the goal."""
    for step in benchmark.evaluations(batch):
        if losses[steps_done(benchmark, step, batch) - 1] <= goal:
            break
    return step * batch


def main() -> int:
    """Print the goals, and return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--runs", type=int, default=40)
    parser.add_argument("--benchmark", choices=BENCHMARKS, action="append", help="default: all")
    arguments = parser.parse_args()
    runs = arguments.runs
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        lay_out(root)
        for name in arguments.benchmark or BENCHMARKS:
            benchmark = BENCHMARKS[name]
            curves = [curve(benchmark, root, seed) for seed in range(runs)]
            low, high = min(map(np.nanmin, curves)), max(map(np.nanmax, curves))
            for _halving in range(40):
                goal = (low + high) / 2
                ratios = [
                    needed(benchmark, one, batch, goal) / benchmark.reference_samples(batch)
                    for one in curves
                    for batch in BATCHES[name]
                ]
                low, high = (goal, high) if np.mean(ratios) > MARGIN else (low, goal)
            print(f"{name}: goal={goal:.4f}")
            for batch in BATCHES[name]:
                counts = sorted(Counter(needed(benchmark, one, batch, goal) for one in curves).items())
                print(
                    f"  batch {batch}: reference {benchmark.reference_samples(batch):.0f}, "
                    f"runs {dict(counts)}"
                )
    return 0


if __name__ == "__main__":
    sys.exit(main())
