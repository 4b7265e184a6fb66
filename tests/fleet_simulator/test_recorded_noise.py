"""Test the noise that was recorded on real GPUs, for the fleet simulator (recorded_noise.json).

The tests check that each recording has its source, enough values, and deviations from each GPU's own median.
"""

import statistics

import pytest

from tests.fleet_simulator.recorded_noise import (
    as_recording,
    gpu_levels,
    recorded_metrics,
    recordings,
    series,
    session_residuals,
    shared_part,
    single_residuals,
)

BURSTS = ("gemm_bf16_tflops", "gemm_fp8_tflops", "hbm_copy_gbs", "h2d_gbs")
"""The metrics that were measured in short bursts. The power-limited matrix product is not among them."""


def test_every_recording_has_its_source_and_command() -> None:
    assert len(recordings()) >= 3
    for one in recordings():
        assert "NVIDIA" in one["source"]
        assert one["command"]


@pytest.mark.parametrize("metric", BURSTS)
def test_a_few_hundred_values_of_four_gpus_were_recorded_per_metric(metric: str) -> None:
    assert 100 <= len(single_residuals(metric)) <= 1000
    assert len(session_residuals(metric)) >= 50
    assert len(gpu_levels(metric)) == 4


@pytest.mark.parametrize("metric", recorded_metrics())
def test_deviations_are_from_each_gpus_own_median(metric: str) -> None:
    for host in series(metric):
        for gpu in host:
            assert statistics.median(value for session in gpu for value in session) == pytest.approx(
                0, abs=2e-6
            )


@pytest.mark.parametrize("metric", BURSTS)
def test_the_median_of_a_session_scatters_less_than_its_bursts(metric: str) -> None:
    single, session = single_residuals(metric), session_residuals(metric)
    assert session[0] >= single[0]
    assert session[-1] <= single[-1]


def test_two_gpus_of_a_host_share_the_noise_of_host_copies() -> None:
    assert shared_part("h2d_gbs") > 0.5
    assert shared_part("hbm_copy_gbs") < 0.3


def test_lines_of_measure_noise_become_a_recording() -> None:
    rows = [
        {
            "gpu": gpu,
            "session": session,
            "repeat": repeat,
            "metric": "m",
            "value": 100.0 + gpu + session + repeat,
        }
        for gpu in (0, 1)
        for session in (0, 1)
        for repeat in (0, 1, 2)
    ]
    recording = as_recording("here", "this", [*rows, {"gpu": 0, "session": 0, "smi": "no value"}])
    assert recording["source"] == "here"
    first, second = recording["metrics"]["m"]
    assert first["level"] == 101.5
    assert second["level"] == 102.5
    assert first["ppm"] == [[-14778, -4926, 4926], [-4926, 4926, 14778]]
