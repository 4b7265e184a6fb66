"""Define the models of MLPerf Training 0.6 for the fake of their sources: names, folders, logged values.

pack.py packs one folder of fake sources for each model, and training.py, the fake of the training, logs the
values. They replace NVIDIA's sources of round 0.6, whose models need GPUs and large data sets. training.py
trains a small linear model instead, so batches and learning rates are only values for the log. They satisfy
the rules of the round and do not influence the small training. The lines from which the speed is read are in
training.py.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Model:
    """One model, with the values in its log."""

    name: str
    """The name of the model in its events (``submission_benchmark``)."""
    folder: str
    """The model's folder below NVIDIA/benchmarks in the sources."""
    image: str
    """The name of the benchmark in the model's run.sub, and of the model's folder in the container image."""
    result: str
    """The name in the model's RESULT line."""
    data: str
    """A file of the training data below the mount /data, or "" if the model makes its own data."""
    batch: int
    """The global batch size, with which training.py computes the logged speed."""
    before: dict[str, Any] = field(default_factory=dict)
    """Events between init_start and init_stop, as keys with their values."""
    after: dict[str, Any] = field(default_factory=dict)
    """Events after run_start, as keys with their values."""
    targets: dict[str, float] = field(default_factory=dict)
    """The accuracies that an evaluation must reach, by name. A single target has the name ""."""
    prefix: str = ""
    """Text before each event on its line, as mpirun writes it for resnet."""


MODELS = {
    one.name: one
    for one in (
        Model(
            "ssd",
            "ssd/implementations/pytorch",
            "single_stage_detector",
            "SINGLE_STAGE_DETECTOR",
            "coco2017/annotations/instances_train2017.json",
            960,
            {
                "max_samples": 1,
                "model_bn_span": 120,
                "global_batch_size": 960,
                "opt_base_learning_rate": 0.0875,
                "opt_weight_decay": 0.00016,
                "opt_learning_rate_warmup_steps": 650,
                "opt_learning_rate_warmup_factor": 0,
            },
            targets={"": 0.23},
        ),
        Model(
            "maskrcnn",
            "maskrcnn/implementations/pytorch",
            "object_detection",
            "OBJECT_DETECTION",
            "coco2017/models/R-50.pkl",
            48,
            {
                "global_batch_size": 48,
                "num_image_candidates": 6000,
                "opt_base_learning_rate": 0.06,
                "opt_learning_rate_warmup_steps": 625,
                "opt_learning_rate_warmup_factor": 9.6e-05,
            },
            targets={"BBOX": 0.377, "SEGM": 0.339},
        ),
        Model(
            "resnet",
            "resnet/implementations/mxnet",
            "image_classification",
            "IMAGE_CLASSIFICATION",
            "train.rec",
            1664,
            {"model_bn_span": 208},
            {
                "opt_base_learning_rate": 5.0,
                "opt_learning_rate_warmup_epochs": 5,
                "lars_opt_learning_rate_decay_steps": 51590,
                "lars_opt_learning_rate_decay_poly_power": 2,
                "lars_opt_end_learning_rate": 0.0001,
                "opt_name": "lars",
                "lars_epsilon": 0,
                "lars_opt_weight_decay": 0.0002,
                "global_batch_size": 1664,
            },
            targets={"": 0.759},
            prefix="[1,0]<stdout>:",
        ),
        Model(
            "gnmt",
            "gnmt/implementations/pytorch",
            "rnn_translator",
            "RNN_TRANSLATOR",
            "train.tok.clean.bpe.32000.en",
            2048,
            {"opt_base_learning_rate": 0.002},
            {
                "max_sequence_length": 75,
                "global_batch_size": 2048,
                "opt_learning_rate_alt_decay_func": True,
                "opt_learning_rate_alt_warmup_func": True,
                "opt_learning_rate_decay_interval": 809,
                "opt_learning_rate_decay_factor": 0.5,
                "opt_learning_rate_decay_steps": 4,
                "opt_learning_rate_remain_steps": 6453,
                "opt_learning_rate_warmup_steps": 200,
            },
            targets={"": 24.0},
        ),
        Model(
            "transformer",
            "transformer/implementations/pytorch",
            "translation",
            "transformer",
            "train.en-de.bin",
            65536,
            {
                "global_batch_size": 65536,
                "opt_name": "adam",
                "opt_base_learning_rate": 0.001976,
                "opt_learning_rate_warmup_steps": 1000,
                "max_sequence_length": 80,
                "opt_adam_beta_1": 0.9,
                "opt_adam_beta_2": 0.98,
                "opt_adam_epsilon": 1e-09,
            },
            targets={"": 25.0},
        ),
        Model(
            "minigo",
            "minigo/implementations/tensorflow",
            "minigo",
            "REINFORCEMENT",
            "",
            8192,
            {
                "opt_base_learning_rate": [0.32, 0.032, 0.0032],
                "opt_learning_rate_decay_boundary_steps": [12500, 18750],
                "global_batch_size": 8192,
                "virtual_losses": 8,
            },
            targets={"": 0.5},
        ),
    )
}
"""The models by name. A model's values are in the order of the fields of :class:`Model`."""
