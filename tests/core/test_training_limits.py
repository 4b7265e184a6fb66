"""Test the limits that no run of MLPerf Training can exceed (core/training_limits.py).

A log that claims a higher speed than its GPUs can reach is wrong. The limit is the peak of the GPUs divided
by the work of the model, or a multiple of the fastest published result on the same GPUs.
"""

from __future__ import annotations

import re

import pytest

from rackproof.analysis.mlperf.published import find_published
from rackproof.core.gpu_models import PHYSICS
from rackproof.core.training_limits import (
    FASTER_THAN_FEW_RESULTS,
    FASTER_THAN_PUBLISHED_GPUS,
    MOST_OF_NODE,
    fastest_possible,
    fastest_published,
    gpus_of_log,
    gpus_of_platform,
    impossible_speeds,
    other_model,
    read_limits,
    read_speeds,
)


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("NVIDIA Blackwell Ultra GPU (GB300)", True),
        ("NVIDIA B200-SXM-180GB", True),
        ("NVIDIA H200-SXM5-141GB", True),
        ("AMD Instinct MI355X 288GB HBM3E", True),
        ("TPU-v4", False),
        ("NVIDIA H2000", False),
        ("", False),
    ],
)
def test_only_a_known_gpu_and_model_have_a_bound(name: str, known: bool) -> None:
    assert (fastest_possible("llama31_8b", name, 8) is not None) is known
    assert fastest_possible("a_new_one", name, 8) is None
    assert fastest_possible("llama31_8b", name, 0) is None


def test_a_bound_grows_with_the_gpus_and_falls_with_the_work() -> None:
    few, many = (fastest_possible("llama31_8b", "NVIDIA GB300", gpus) or 0 for gpus in (1, 72))
    assert many == pytest.approx(72 * few)
    assert few == pytest.approx(15_000 / 390)
    assert (fastest_possible("llama31_405b", "NVIDIA GB300", 1) or 0) < few / 40


def test_a_peak_is_at_least_that_of_the_gpu_models() -> None:
    for model, peak in read_limits()["gpu"].items():
        physics = PHYSICS.get(model.lower())
        assert physics is None or max(physics.tflops.values()) <= peak, model


def test_every_published_throughput_is_below_its_bound() -> None:
    judged = 0
    for result in find_published(kind="official"):
        bound = fastest_possible(result.benchmark, result.accelerator, result.accelerators)
        if bound and result.throughput and re.fullmatch(r"samples/s", result.throughput_unit or ""):
            judged += 1
            assert result.throughput < bound, (result.benchmark, result.accelerator)
    assert judged > 0


# 1.45 times the fastest published speed is still plausible (the bounds are 1.8, or 2.5 if few results are
# published). 2.9 times is not.
@pytest.mark.parametrize(
    ("training", "name", "gpus"),
    [
        ("llama2_70b_lora", "NVIDIA H100-SXM5-80GB", 8),
        ("bert", "NVIDIA H200-SXM5-141GB", 8),
        ("ssd", "NVIDIA H100-SXM5-80GB", 64),
        ("stable_diffusion", "NVIDIA H100-SXM5-80GB", 1024),
        ("gnn", "NVIDIA H200", 8),
        ("resnet", "NVIDIA H100 80GB HBM3", 3584),
        # GPUs with one or two published results.
        ("stable_diffusion", "TPU-trillium", 256),
        ("gpt3", "TPU-trillium", 512),
        ("gpt3", "TPU-v5p", 6144),
        ("gpt3", "Intel(R) Gaudi(R) 2 AI Accelerator", 1024),
        ("gnn", "NVIDIA Blackwell GPU (B200-SXM-180GB)", 8),
        ("unet3d", "NVIDIA L40S", 14),
        ("bert", "AMD Radeon RX 7900 XTX", 6),
    ],
)
def test_a_run_much_faster_than_every_published_one_of_its_gpus_is_found(
    training: str, name: str, gpus: int
) -> None:
    published = fastest_published(training, name, gpus) or 0.0
    for factor, found in ((1.0, False), (1.45, False), (1 / 0.35, True), (10, True)):
        speeds = (("trained", published * factor), ("states", published))
        assert bool([*impossible_speeds(training, (name, gpus), speeds)]) is found
    assert not [*impossible_speeds(training, None, (("trained", published * 10),))]


@pytest.mark.parametrize(
    ("training", "name", "gpus", "bound"),
    [
        ("stable_diffusion", "TPU-trillium", 256, FASTER_THAN_FEW_RESULTS),
        ("llama31_8b", "NVIDIA H100-SXM5-80GB", 64, FASTER_THAN_FEW_RESULTS),
        ("unet3d", "NVIDIA H200-SXM5-141GB", 8, FASTER_THAN_FEW_RESULTS),
        ("unet3d", "NVIDIA H100-SXM5-80GB", 8, FASTER_THAN_PUBLISHED_GPUS),
        ("gpt3", "TPU-v5p", 512, FASTER_THAN_PUBLISHED_GPUS),
    ],
)
def test_the_bound_is_wider_if_few_results_are_published(
    training: str, name: str, gpus: int, bound: float
) -> None:
    published = fastest_published(training, name, gpus) or 0.0
    for factor in (0.99, 1.01):
        speed = published * bound * factor
        found = [*impossible_speeds(training, (name, gpus), [("trained", speed)])]
        assert bool(found) is (factor > 1)
        # A speed that a log only states is compared only with the peaks.
        assert not [*impossible_speeds("gnn", (name, gpus), [("states", speed)])]


def test_every_published_result_has_a_bound() -> None:
    rows = find_published(kind="official")
    lacking = {
        (one.benchmark, one.accelerator)
        for one in rows
        if one.minutes and fastest_published(one.benchmark, one.accelerator, one.accelerators) is None
    }
    assert not lacking
    assert len({(one.benchmark, one.accelerator) for one in rows}) > 60


def test_published_speeds_are_possible_and_fall_with_the_number_of_gpus() -> None:
    for (benchmark, model), (speeds, results) in read_speeds().items():
        assert results > 0
        assert [*speeds] == sorted(speeds)
        assert [*speeds.values()] == sorted(speeds.values(), reverse=True)
        for gpus, speed in speeds.items():
            bound = fastest_possible(benchmark, model, gpus)
            assert bound is None or speed * gpus < bound
    assert fastest_published("bert", "NVIDIA H100", 1) is None
    assert fastest_published("bert", "TPU-v4", 8) is None


# A platform is NODESxMODELxGPUS. If it does not state the GPUs of a node, MOST_OF_NODE is assumed, which only
# makes the limit higher.
@pytest.mark.parametrize(
    ("platform", "gpus"),
    [
        ("1xXE9680Lx8B200-SXM-180GB", ("B200", 8)),
        ("2xXE9680Lx8H200-SXM-141GB", ("H200", 16)),
        ("16xXE9712x4GB200", ("GB200", 64)),
        ("1xSR680aV4-8xB300_SXM", ("B300", 8)),
        ("1xXE9785L_8xMI355X", ("MI355X", 8)),
        ("18xNVIDIA GB200", ("GB200", 18 * MOST_OF_NODE)),
        ("64xNVIDIA HGX H100", ("H100", 64 * MOST_OF_NODE)),
        ("8xB200", ("B200", 8 * MOST_OF_NODE)),
        # There is no limit if the number of nodes is missing, or if no table has the GPU.
        ("R7715x3H200-NVL-141GB", None),
        ("18xSUBMISSION_PLATFORM_PLACEHOLDER", None),
        ("1xXE7745x8RTXPro6000-PCIe-96GB", None),
        ("2xH2000", None),
        ("1xNODE968012H200", None),
        ("tpu-trillium", None),
        ("", None),
    ],
)
def test_a_platform_names_its_gpus_or_none(platform: str, gpus: tuple[str, int] | None) -> None:
    assert gpus_of_platform(platform) == gpus


def printed(nodes: str, gpus: str, model: str) -> dict[str, str]:
    """Return the description that a run script prints."""
    keys = ("number_of_nodes", "accelerators_per_node", "accelerator_model_name")
    return dict(zip(keys, (nodes, gpus, model), strict=True))


@pytest.mark.parametrize(
    ("platform", "description", "nodes", "gpus"),
    [
        ("18xSUBMISSION_PLATFORM_PLACEHOLDER", printed("18", "4", "NVIDIA GB300"), 18, ("GB300", 72)),
        ("GB300", printed("18", "4", "NVIDIA GB300"), None, ("GB300", 72)),
        ("1cc_n4", printed("4", "8", "NVIDIA H100 80GB HBM3"), 4, ("H100", 32)),
        # A script printed its default of one node.
        ("8xSUBMISSION_PLATFORM_PLACEHOLDER", printed("1", "8", "NVIDIA H200"), 8, ("H200", 64)),
        ("8xDGX", printed("1", "8", "NVIDIA H200"), None, ("H200", 64)),
        ("2xXE9680Lx8B200", printed("2", "", "NVIDIA B200"), None, ("B200", 2 * MOST_OF_NODE)),
        # nvidia-smi printed no known model, so the platform counts.
        ("2xXE9680Lx8B200", printed("2", "3", "No devices were found"), 2, ("B200", 16)),
        ("ARS-121GL", printed("18", "4", "NVIDIA Graphics Device"), 18, None),
        # Usual spellings without nodes, which are in other lines.
        ("NVIDIA GB300 NVL72", {}, 18, ("GB300", 18 * MOST_OF_NODE)),
        ("XE9640x4H100-SXM-80GB", {}, 1, ("H100", 4)),
        ("PRIMERGY-CDI-L40Sx16", {}, 1, ("L40S", MOST_OF_NODE)),
        ("GX2560M7_H100_SXM_80GBx4", {}, 2, ("H100", 2 * MOST_OF_NODE)),
        ("GB300", {}, None, None),
        ("", {}, 4, None),
        ("", printed("x", "y", "NVIDIA GB300"), None, None),
    ],
)
def test_a_log_states_its_gpus(
    platform: str, description: dict[str, str], nodes: int | None, gpus: tuple[str, int] | None
) -> None:
    assert gpus_of_log(platform, description, nodes) == gpus


@pytest.mark.parametrize(
    ("platform", "model", "contradicts"),
    [
        ("18xGB200", "NVIDIA GB300", True),
        ("2xXE9680x8H100", "NVIDIA H200", True),
        ("NVIDIA DGX A100", "NVIDIA H100 80GB HBM3", True),
        ("2xXE9680x8H200", "NVIDIA H200", False),
        ("2xXE9680x8H200", "No devices were found", False),
        ("8xSUBMISSION_PLATFORM_PLACEHOLDER", "NVIDIA H200", False),
    ],
)
def test_two_models_of_one_log_contradict(platform: str, model: str, contradicts: bool) -> None:
    assert bool(other_model(platform, printed("2", "8", model))) is contradicts
