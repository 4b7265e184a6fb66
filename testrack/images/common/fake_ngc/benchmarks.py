"""Define the three fake benchmarks of MLPerf Training 5.1, and the metric, which is computed from a loss.

training.py and testrack/images/calibrate.py read the benchmarks. The metric is a straight line through the
loss of the small model, which is real: ``target + slope * (loss - goal)``. ``goal`` is the loss that the
small model reaches after 1.03 times the samples of the reference, on average. STEPS optimizer steps stand
for the samples of the reference. Their number was chosen freely. After a change of the data or models, start
`calibrate.py`, which computes the goals.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from fake_ngc.learning import Denoiser, FromScratch, LowRankAdapter, Model

STEPS = 240
"""Number of optimizer steps that stand for the samples of the reference."""
BATCH = 72
"""Number of samples in a step of the small model, over all ranks. A full rack has 72 GPUs."""
MOST_SAMPLES_FACTOR = 1.5
"""Multiple of the reference's samples after which a run ends without success."""


@dataclass(frozen=True)
class Benchmark:
    """A benchmark of MLPerf Training 5.1, and its small model.

    ``target`` is the value of the metric to reach. ``goal`` and ``slope`` are the numbers in the module's
    formula. ``loss_name`` is the key of the loss in the log. ``script`` is the program that a traceback
    names.
    """

    name: str
    target: float
    goal: float
    slope: float
    rate: float
    """Learning rate of the small model."""
    eval_every: int
    """Samples between evaluations. :meth:`evaluations` rounds them up to whole batches."""
    first_eval: int
    """The first evaluation happens after this many evaluation intervals."""
    reference: Mapping[int, float]
    """Samples to converge, by global batch size. They are means of MLCommons' reference points of 5.1."""
    train_samples: int
    eval_samples: int
    log_every: int
    """Steps of the reference between two lines with the loss."""
    loss_name: str
    script: str
    open: Callable[[Path], Model]
    """A function that reads the data below a root folder, and returns the model."""
    data: str
    """The path at which the data are mounted."""
    keys: Mapping[str, Any] = field(default_factory=dict)
    """Hyperparameters to log. They satisfy the rules, and do not affect the small model."""
    exports: Mapping[str, str] = field(default_factory=dict)
    """Keys of the log. The value of each is a variable of the config, or the difference of two variables."""

    def with_config(self, environment: Mapping[str, str]) -> Benchmark:
        """Return a copy of the benchmark with the values of a config, which the original also uses and logs.

        Raises:
            KeyError: The config does not export a variable of ``exports``. No default is used, because the
                original's defaults violate the rules of the round.
        """
        logged = {key: _exported(text, environment) for key, text in self.exports.items()}
        every = environment.get("VAL_CHECK_INTERVAL")
        return replace(
            self,
            eval_every=int(every) if every else self.eval_every,
            eval_samples=int(logged.pop("eval_samples", self.eval_samples)),
            keys={**self.keys, **logged},
        )

    def reference_samples(self, batch: int) -> float:
        """Return how many samples the reference needs with a global batch size."""
        points = sorted(self.reference.items())
        if batch <= points[0][0]:
            return points[0][1]
        for (low, less), (high, more) in pairwise(points):
            if batch <= high:
                return less + (more - less) * (batch - low) / (high - low)
        return points[-1][1]

    def evaluations(self, batch: int) -> list[int]:
        """Return the steps, as the reference counts them, after which the benchmark evaluates."""
        every = math.ceil(self.eval_every / batch)
        last = math.ceil(MOST_SAMPLES_FACTOR * self.reference_samples(batch) / (every * batch))
        return [every * number for number in range(self.first_eval, max(last, self.first_eval + 1) + 1)]

    def metric(self, loss: float) -> float:
        """Return the benchmark's metric for a loss of the small model."""
        return self.target + self.slope * (loss - self.goal)


def _exported(text: str, environment: Mapping[str, str]) -> float:
    """Return the number of a variable in the environment, or of a difference of two (``A - B``)."""
    first, *others = (float(environment[name]) for name in text.split(" - "))
    value = first - sum(others)
    return int(value) if value.is_integer() else value


BENCHMARKS = {
    benchmark.name: benchmark
    for benchmark in (
        Benchmark(
            name="llama2_70b_lora",
            target=0.925,
            goal=2.2927,
            slope=0.28,
            rate=0.01,
            eval_every=384,
            first_eval=4,
            reference={8: 3178.7, 16: 4032.0, 32: 5065.1, 128: 11264.0},
            train_samples=3901,
            eval_samples=173,
            log_every=10,
            loss_name="train_loss",
            script="/workspace/ft-llm/train.py",
            open=lambda root: LowRankAdapter(root / "data", root / "ckpt"),
            data="data",
            exports={"opt_base_learning_rate": "LR", "opt_learning_rate_training_steps": "MAX_STEPS"},
            keys={
                "opt_adamw_weight_decay": 0.0001,
                "opt_gradient_clip_norm": 0.3,
                "opt_learning_rate_warmup_factor": 0.0,
                "lora_rank": 16,
                "lora_alpha": 32,
            },
        ),
        Benchmark(
            name="llama31_8b",
            target=3.3,
            goal=2.9931,
            slope=3.6,
            rate=0.01,
            eval_every=12288,
            first_eval=1,
            reference={16: 161109.3, 32: 178858.7, 64: 226645.3, 96: 278640.0, 128: 344746.7},
            train_samples=1574207408,
            eval_samples=1024,
            log_every=32,
            loss_name="reduced_train_loss",
            script="/workspace/llm/pretrain.py",
            open=lambda root: FromScratch(root / "preproc_data", root / "workspace/llm/nemo_tokenizer"),
            data="preproc_data",
            exports={
                "eval_samples": "VAL_SAMPLES",
                "max_steps": "MAX_STEPS",
                "opt_base_learning_rate": "LR",
                "opt_learning_rate_warmup_steps": "WARMUP_STEPS",
                "opt_learning_rate_decay_steps": "OPT_LR_DECAY_STEPS - WARMUP_STEPS",
            },
            keys={
                "max_sequence_length": 8192,
                "init_checkpoint_step": 0,
                "opt_name": "adamw",
                "opt_adamw_beta_1": 0.9,
                "opt_adamw_beta_2": 0.95,
                "opt_adamw_epsilon": 1e-05,
                "opt_adamw_weight_decay": 0.1,
                "opt_gradient_clip_norm": 1.0,
                "opt_end_learning_rate": 8e-05,
                "opt_learning_rate_decay_schedule": "cosine with linear warmup",
            },
        ),
        Benchmark(
            name="flux1",
            target=0.586,
            goal=0.6716,
            slope=0.048,
            rate=0.003,
            eval_every=262144,
            first_eval=1,
            reference={512: 8170154.7, 1024: 8752696.9, 2048: 10733340.4, 4096: 15626695.1},
            train_samples=1099776,
            eval_samples=29696,
            log_every=10,
            loss_name="train_loss",
            script="/workspace/flux/train.py",
            open=lambda root: Denoiser(root / "dataset/energon"),
            data="dataset/energon",
            exports={
                "evaluation_frequency": "VAL_CHECK_INTERVAL",
                "opt_base_learning_rate": "LEARNING_RATE",
                "opt_learning_rate_warmup_steps": "WARMUP_STEPS",
            },
            keys={
                "opt_name": "adamw",
                "opt_adamw_beta_1": 0.9,
                "opt_adamw_beta_2": 0.95,
                "opt_adamw_epsilon": 1e-08,
                "opt_adamw_weight_decay": 0.1,
                "opt_gradient_clip_norm": 1.0,
                "opt_learning_rate_training_steps": -1,
            },
        ),
    )
}
