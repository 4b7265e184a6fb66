"""Test how workloads/slurm_run.py judges a config's batch size before it submits a job.

MLCommons publishes convergence points: the mean number of samples or epochs that a training needs to reach
its target at some batch sizes. A result with a batch size above all of these cannot be scored, so its config
is refused. For other batch sizes, the program prints the sizes with points, and nothing if there are none.

The tests also compute the batch size of published configs. It is BATCHSIZE, or else the number of GPUs
divided by those that share a model, times MINIBS. The last test reads the sizes with points from MLCommons'
package.
"""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from rackproof.analysis.mlperf.rounds import reference_points

# Variables of published configs: number of nodes, GPUs of a node, batch size (MINIBS: of one copy of the
# model; BATCHSIZE: of all GPUs), and numbers of GPUs that share a model (tensor, pipeline, context parallel).
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
        # An empty number of GPUs counts as 1.
        ({**LLAMA2, "CP": "", "DGXNNODES": "2"}, 8),
        ({"DGXNNODES": "1", "DGXNGPU": "8", "MINIBS": "4", "TP": "4"}, 8),
        # TENSOR_MODEL_PARALLEL has priority over TP.
        ({**LLAMA31, "TP": "8"}, 36),
        # Variables that are missing, not numbers, or impossible.
        ({**LLAMA2, "MINIBS": ""}, None),
        ({**LLAMA2, "MINIBS": "two"}, None),
        ({**LLAMA2, "CP": "0"}, None),
        ({**LLAMA2, "CP": "144"}, None),
        ({"DGXNNODES": "1"}, None),
        ({}, None),
    ],
)
def test_the_batch_size_of_a_config_is_computed_from_its_variables(
    slurm_run: ModuleType, variables: dict[str, str], size: int | None
) -> None:
    assert slurm_run.global_batch_size(variables) == size


def check(
    slurm_run: ModuleType, monkeypatch: pytest.MonkeyPatch, known: list[int] | None, variables: dict[str, str]
) -> list[str]:
    """Return the lines that the program prints about the batch size of a config.

    ``known`` are the batch sizes with reference points. None means that the round has none.
    """
    printed: list[str] = []
    monkeypatch.setattr(slurm_run, "print_event", lambda **what: printed.append(what["phase"]))
    spec: dict[str, Any] = {"repository": "a", "tag": "1", "shared": "/none", "benchmark": "big"}
    spec |= {"environment": {}, "reference_batches": known}
    slurm_run.Work(spec).check_batch(Path("config_X.sh"), variables)
    return printed


@pytest.mark.parametrize(
    ("known", "variables", "words"),
    [
        ([8, 16, 32], LLAMA2, "config_X.sh: global batch size 9; reference convergence points for 8, 16, 32"),
        ([512, 2048], FLUX1, "global batch size 2048"),
        ([16, 32], LLAMA2, "global batch size 9; valid if it converges no faster"),
        ([8, 16], {}, "is known when the job runs"),
    ],
)
def test_the_batch_size_and_those_with_reference_points_are_printed(
    slurm_run: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    known: list[int],
    variables: dict[str, str],
    words: str,
) -> None:
    (line,) = check(slurm_run, monkeypatch, known, variables)
    assert words in line


@pytest.mark.parametrize(
    ("known", "variables"), [([2, 8], LLAMA2), ([16, 32], LLAMA31), ([512, 1024], FLUX1)]
)
def test_a_batch_size_above_those_of_all_reference_points_is_refused(
    slurm_run: ModuleType, monkeypatch: pytest.MonkeyPatch, known: list[int], variables: dict[str, str]
) -> None:
    with pytest.raises(slurm_run.Refusal, match=r"batch size of \d+, and MLCommons has .* bench_config"):
        check(slurm_run, monkeypatch, known, variables)


@pytest.mark.parametrize("known", [None, []])
def test_nothing_is_printed_if_a_round_has_no_reference_points(
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
def test_batch_sizes_with_reference_points_are_read_from_the_package_of_mlcommons(
    benchmark_name: str, ruleset: str, sizes: set[int]
) -> None:
    assert set(reference_points(benchmark_name, ruleset)) == sizes
