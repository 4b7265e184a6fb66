"""Test that workloads/probe_host_device_bandwidth.py is not misled by a host that is slow for a moment.

The probe measures the copies between host and GPU in several rounds. Other virtual machines on the same host
use its memory, too, and can slow down one round. The tests use a clock and copies that are made up.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.workloads.programs import load_program

HEALTHY_S, SLOW_S = 0.0195, 0.0222
"""Seconds of a copy of 1 GiB at 55 and at 48 GB/s."""


@pytest.fixture
def program() -> Any:
    """Return workloads/probe_host_device_bandwidth.py as a module."""
    return load_program("probe_host_device_bandwidth")


def measured(
    program: Any, monkeypatch: pytest.MonkeyPatch, gpus: int, slow: tuple[float, float]
) -> list[tuple[str, str, float]]:
    """Return name, GPU and value of each measurement. Copies that begin between the two seconds are slow."""
    clock = [0.0]

    def sample_seconds(call: Any, device: Any, seconds: float) -> list[float]:
        end, samples = clock[0] + seconds, []
        while clock[0] < end:
            samples.append(SLOW_S if slow[0] <= clock[0] < slow[1] else HEALTHY_S)
            clock[0] += samples[-1]
        return samples

    class Buffers(program.Copies):  # type: ignore[misc]
        def __init__(self, gpu: Any, size_bytes: int) -> None:
            self.gpu, self.device, self.to_host_s, self.to_device_s = gpu, None, [], []

        def wrong_bytes(self) -> int:
            return 0

    log: list[tuple[str, str, float]] = []
    monkeypatch.setattr(program, "Copies", Buffers)
    monkeypatch.setattr(
        program, "torch", SimpleNamespace(cuda=SimpleNamespace(set_device=lambda device: None)), raising=False
    )
    monkeypatch.setattr(program.common, "sample_seconds", sample_seconds)
    monkeypatch.setattr(
        program.common,
        "begin_probe",
        lambda options, rank, log: (None, [SimpleNamespace(labels={"gpu": f"GPU-{n}"}) for n in range(gpus)]),
    )
    monkeypatch.setattr(program.common, "mark_stop", lambda rank: None)
    program.probe(
        program.parser().parse_args(["--gpus", str(gpus), "--seconds", "5"]),
        None,
        SimpleNamespace(
            sampled=lambda name, value, unit, direction, spread, gpu: log.append((name, gpu, value)),
            measurement=lambda *values, gpu: log.append(("wrong_values", gpu, float(values[1]))),
            progress=lambda *values: None,
        ),
    )
    return log


# The slow six seconds begin within different rounds. Healthy copies have 55 GB/s, and slow ones 48 GB/s.
@pytest.mark.parametrize("begin_s", [0, 3.1, 6, 11, 14])
def test_a_host_that_is_slow_for_six_seconds_of_twenty_does_not_slow_a_gpu(
    program: Any, monkeypatch: pytest.MonkeyPatch, begin_s: float
) -> None:
    log = measured(program, monkeypatch, 4, (begin_s, begin_s + 6))
    assert sorted({name for name, _, _ in log}) == ["device_to_host", "host_to_device", "wrong_values"]
    assert {gpu for _, gpu, _ in log} == {f"GPU-{number}" for number in range(4)}
    assert min(value for name, _, value in log if name != "wrong_values") > 54


@pytest.mark.parametrize("gpus", [1, 4])
def test_a_host_that_is_slow_all_the_time_slows_every_gpu(
    program: Any, monkeypatch: pytest.MonkeyPatch, gpus: int
) -> None:
    log = measured(program, monkeypatch, gpus, (0, 10_000))
    assert max(value for name, _, value in log if name != "wrong_values") < 49
