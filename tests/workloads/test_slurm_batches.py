"""Test what workloads/slurm_run.py reports about a config's batch size before it submits a job.

MLCommons publishes convergence points: the steps that a training needs at some batch sizes. A result with a
batch size beyond all of them cannot be scored, so its config is refused. The tests also compute the batch
size of published configs, which is the number of GPUs divided by those that share a model, times MINIBS.
"""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from rackproof.analysis.mlperf.rounds import reference_points

# Variables of published configs: nodes, GPUs of a node, batch of one copy of the model, and the numbers of
# GPUs that share a model (tensor, pipeline and context parallel).
LLAMA2 = {"DGXNNODES": "18", "DGXNGPU": "4", "MINIBS": "1", "TP": "1", "PP": "1", "CP": "8"}
LLAMA31 = {"DGXNNODES": "18", "DGXNGPU": "4", "MINIBS": "1", "TENSOR_MODEL_PARALLEL": "1"}
LLAMA31 |= {"PIPELINE_MODEL_PARALLEL": "1", "CONTEXT_PARALLEL": "2"}
FLUX1 = {"DGXNNODES": "128", "DGXNGPU": "4", "BATCHSIZE": "2048", "MBS": "16", "TP": "4"}


@pytest.mark.parametrize(
    ("variables", "size"),
    [
        # The published logs have 9 and 36: 72 GPUs, of which 8 or 2 share a model.
        (LLAMA2, 9),
        (LLAMA31, 36),
        (FLUX1, 2048),
        ({**LLAMA2, "CP": "", "DGXNNODES": "2"}, 8),
        ({"DGXNNODES": "1", "DGXNGPU": "8", "MINIBS": "4", "TP": "4"}, 8),
        ({**LLAMA31, "TP": "8"}, 36),
        ({**LLAMA2, "MINIBS": ""}, None),
        ({**LLAMA2, "MINIBS": "two"}, None),
        ({**LLAMA2, "CP": "0"}, None),
        ({**LLAMA2, "CP": "144"}, None),
        ({"DGXNNODES": "1"}, None),
        ({}, None),
    ],
)
def test_the_batch_size_of_a_published_config(
    slurm_run: ModuleType, variables: dict[str, str], size: int | None
) -> None:
    assert slurm_run.global_batch_size(variables) == size


def check(
    slurm_run: ModuleType, monkeypatch: pytest.MonkeyPatch, known: list[int] | None, variables: dict[str, str]
) -> list[str]:
    """Return what the program prints about the batch size of a config, with ``known`` reference points."""
    said: list[str] = []
    monkeypatch.setattr(slurm_run, "print_event", lambda **what: said.append(what["phase"]))
    spec: dict[str, Any] = {"repository": "a", "tag": "1", "shared": "/none", "benchmark": "big"}
    spec |= {"environment": {}, "reference_batches": known}
    slurm_run.Work(spec).check_batch(Path("config_X.sh"), variables)
    return said


@pytest.mark.parametrize(
    ("known", "variables", "words"),
    [
        ([8, 16, 32], LLAMA2, "config_X.sh: global batch size 9; reference convergence points for 8, 16, 32"),
        ([512, 2048], FLUX1, "global batch size 2048"),
        ([16, 32], LLAMA2, "global batch size 9; valid if it converges no faster"),
        ([8, 16], {}, "is known when the job runs"),
    ],
)
def test_a_batch_size_is_judged_before_the_job_is_submitted(
    slurm_run: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    known: list[int],
    variables: dict[str, str],
    words: str,
) -> None:
    (said,) = check(slurm_run, monkeypatch, known, variables)
    assert words in said


@pytest.mark.parametrize(
    ("known", "variables"), [([2, 8], LLAMA2), ([16, 32], LLAMA31), ([512, 1024], FLUX1)]
)
def test_one_beyond_all_reference_points_is_refused(
    slurm_run: ModuleType, monkeypatch: pytest.MonkeyPatch, known: list[int], variables: dict[str, str]
) -> None:
    with pytest.raises(slurm_run.Refusal, match=r"batch size of \d+, and MLCommons has .* bench_config"):
        check(slurm_run, monkeypatch, known, variables)


@pytest.mark.parametrize("known", [None, []])
def test_where_a_round_has_no_reference_points_nothing_is_said(
    slurm_run: ModuleType, monkeypatch: pytest.MonkeyPatch, known: list[int] | None
) -> None:
    assert check(slurm_run, monkeypatch, known, FLUX1) == []


@pytest.mark.parametrize(
    ("benchmark_name", "ruleset", "sizes"),
    [
        ("llama2_70b_lora", "5.1.0", {8, 16, 32, 128}),
        ("llama31_8b", "5.1.0", {16, 32, 64, 96, 128}),
        ("flux1", "5.1.0", {512, 1024, 2048, 4096}),
        ("llama31_8b", "9.9.0", set()),
        ("../llama31_8b", "5.1.0", set()),
        ("llama31_8b", "", set()),
    ],
)
def test_the_reference_points_are_those_of_mlcommons(
    benchmark_name: str, ruleset: str, sizes: set[int]
) -> None:
    assert set(reference_points(benchmark_name, ruleset)) == sizes
