"""Test workloads/samples.py, which samples GPUs and the network during a run, and how logs and charts use it.

NVML is the driver's library for readings of GPUs. A fake of it answers in these tests. They show that a value
that NVML does not give is left out, and that a driver that hangs does not hold up the run.
"""

from __future__ import annotations

import io
import json
import threading
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from rackproof.core.records import Run
from rackproof.logs import parse
from rackproof.report.charts import run_charts
from tests.workloads.programs import load_program


@pytest.fixture(scope="module")
def samples() -> Any:
    """Return workloads/samples.py as a module."""
    return load_program("samples")


HEALTHY_LINK = (0, 0, 0, 498, 1870)
"""Replays, recoveries, flits, data and ECC of a link of a healthy H100 after a soak of 80 s."""


class FakeNvml:
    """A fake of NVML that answers through pointers. The second GPU does not report its power."""

    def __init__(self, status: int = 0) -> None:
        self.status = status
        self.links, self.link_status = 6, 0
        self.link_errors: tuple[int, ...] = HEALTHY_LINK
        self.asked, self.hung = threading.Event(), threading.Event()

    def nvmlInit_v2(self) -> int:  # noqa: N802
        return self.status

    def nvmlDeviceGetHandleByUUID(self, uuid: bytes, handle: Any) -> int:  # noqa: N802
        handle._obj.value = int(uuid.decode().rpartition("-")[2])
        return 0

    def nvmlDeviceGetUtilizationRates(self, device: Any, answer: Any) -> int:  # noqa: N802
        answer._obj.gpu = 90 + device.value
        return 0

    def nvmlDeviceGetPowerUsage(self, device: Any, answer: Any) -> int:  # noqa: N802
        answer._obj.value = 650_500
        return 0 if device.value == 1 else 3

    def nvmlDeviceGetTemperature(self, device: Any, sensor: int, answer: Any) -> int:  # noqa: N802
        answer._obj.value = 60 + sensor
        return 0

    def nvmlDeviceGetClockInfo(self, device: Any, kind: int, answer: Any) -> int:  # noqa: N802
        answer._obj.value = 1980 if kind == 1 else 0
        return 0

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, device: Any, answer: Any) -> int:  # noqa: N802
        answer._obj.value = 0x44
        return 0

    def nvmlDeviceGetNvLinkErrorCounter(self, device: Any, link: int, counter: int, answer: Any) -> int:  # noqa: N802
        answer._obj.value = self.link_errors[counter] if self.link_errors else 0
        return 0 if self.link_errors and link < self.links else 3

    def nvmlDeviceGetNvLinkState(self, device: Any, link: int, answer: Any) -> int:  # noqa: N802
        answer._obj.value = 1
        return self.link_status or (0 if link < self.links else 2)

    def nvmlSystemGetDriverVersion(self, text: Any, size: int) -> int:  # noqa: N802
        text.value = b"580.159.03"[:size]
        return 0

    def nvmlDeviceGetEnforcedPowerLimit(self, device: Any, answer: Any) -> int:  # noqa: N802
        answer._obj.value = 700_000
        return 0

    def nvmlDeviceGetMaxClockInfo(self, device: Any, kind: int, answer: Any) -> int:  # noqa: N802
        answer._obj.value = 1980 if kind == 1 else 0
        return 0

    def nvmlDeviceGetApplicationsClock(self, device: Any, kind: int, answer: Any) -> int:  # noqa: N802
        answer._obj.value = 2619
        return 0 if kind == 2 else 3


def test_the_readings_of_nvml_are_returned_by_gpu(samples: ModuleType) -> None:
    first, second = samples.Nvml(["GPU-1", "GPU-2"], FakeNvml()).read()
    assert first == pytest.approx(
        {"gpu": 0, "utilisation": 91, "power": 650.5, "temperature": 60, "clock": 1980, "throttle": 0x44}
    )
    assert "power" not in second, "a failed answer is not 0"
    with pytest.raises(OSError, match="does not start"):
        samples.Nvml(["GPU-1"], FakeNvml(status=9))


@pytest.mark.parametrize(
    ("changes", "counters"),
    [
        # Changes of the fake, and the sum of errors over the links. One error on each of six links gives 6.
        ({}, {"nvlink": 0}),
        ({"link_errors": (1, 0, 0, 0, 0)}, {"nvlink": 6}),
        ({"link_errors": (0, 2, 0, 498, 0)}, {"nvlink": 12}),
        ({"link_errors": (0, 0, 3, 0, 1870)}, {"nvlink": 18}),
        # This is a PCIe card, for which NVML supports neither query.
        ({"links": 0, "link_status": 3}, {"nvlink": 0}),
        # If NVML does not show the errors of the links, or the GPU was lost, there is no sum.
        ({"link_errors": ()}, {}),
        ({"link_errors": (), "link_status": 15}, {}),
    ],
    ids=["corrected bits", "replays", "recoveries", "flits", "no links", "unread", "lost"],
)
def test_the_errors_of_all_nvlinks_are_added_up(
    samples: ModuleType, changes: dict[str, Any], counters: dict[str, int]
) -> None:
    library: Any = FakeNvml()
    vars(library).update(changes)
    library.nvmlDeviceGetTotalEccErrors = library.nvmlDeviceGetPcieReplayCounter = lambda *_: 3
    library.nvmlDeviceGetTotalEnergyConsumption = library.nvmlDeviceGetTemperatureThreshold = lambda *_: 3
    assert samples.Nvml(["GPU-1"], library).read_counters() == counters


def test_the_settings_of_the_first_gpu_are_read(samples: ModuleType) -> None:
    found = samples.Nvml(["GPU-1", "GPU-2"], FakeNvml()).read_settings()
    # The setting clock_set is left out, because NVML does not return it.
    assert found == {
        "driver": "580.159.03",
        "power_limit": "700",
        "highest_clock": "1980",
        "memory_clock_set": "2619",
    }


def test_nothing_is_sampled_without_gpus(samples: ModuleType) -> None:
    assert samples.start([], print) is None


def write_link(
    folder: Path, name: str, received: int, sent: int, speed: str = "1000", physical: bool = True
) -> None:
    """Write the kernel's files of a network interface: its counters of bytes, and its speed in Mbit/s."""
    (folder / name / "statistics").mkdir(parents=True, exist_ok=True)
    if physical:
        (folder / name / "device").mkdir(exist_ok=True)
    (folder / name / "speed").write_text(speed)
    (folder / name / "statistics/rx_bytes").write_text(str(received))
    (folder / name / "statistics/tx_bytes").write_text(str(sent))


def test_the_traffic_of_links_is_in_per_cent_of_their_speed(samples: ModuleType, tmp_path: Path) -> None:
    links = samples.Links(tmp_path)
    write_link(tmp_path, "eth0", 0, 0)
    write_link(tmp_path, "lo", 0, 0, physical=False)
    write_link(tmp_path, "eth1", 0, 0, speed="-1")
    assert links.read(10.0) == []
    write_link(tmp_path, "eth0", 125_000_000, 5)
    assert links.read(12.0) == [{"interface": "eth0", "use": 50.0}]


def test_the_traffic_of_a_link_that_only_sends_after_it_received_more_is_what_it_sends(
    samples: ModuleType, tmp_path: Path
) -> None:
    links = samples.Links(tmp_path)
    write_link(tmp_path, "eth0", 10**12, 0)
    assert links.read(10.0) == []
    write_link(tmp_path, "eth0", 10**12, 125_000_000)
    assert links.read(12.0) == [{"interface": "eth0", "use": 50.0}]
    # The driver was loaded again, so its counters begin at 0.
    write_link(tmp_path, "eth0", 0, 250_000_000)
    assert links.read(14.0) == []
    write_link(tmp_path, "eth0", 62_500_000, 375_000_000)
    assert links.read(16.0) == [{"interface": "eth0", "use": 50.0}]


def test_sampling_ends_on_request_even_if_the_driver_hangs(samples: ModuleType, tmp_path: Path) -> None:
    taken: list[dict[str, Any]] = []
    sampler = samples.Sampler(
        samples.Nvml(["GPU-1"], FakeNvml()), samples.Links(tmp_path), taken.append, every_s=0.01
    )
    while not taken:
        time.sleep(0.01)
    sampler.stop()
    sampler._thread.join()
    count = len(taken)
    assert taken[0]["gpus"][0]["utilisation"] == 91

    class Hung(FakeNvml):
        def nvmlDeviceGetUtilizationRates(self, device: Any, answer: Any) -> int:  # noqa: N802
            self.asked.set()
            self.hung.wait()
            return 1

    library = Hung()
    sampler = samples.Sampler(
        samples.Nvml(["GPU-1"], library), samples.Links(tmp_path), taken.append, every_s=0.01
    )
    library.asked.wait()
    sampler.stop()
    assert sampler._thread.is_alive()
    library.hung.set()
    sampler._thread.join()
    assert len(taken) == count


def line(key: str, value: object, second: float, kind: str = "POINT_IN_TIME", **metadata: object) -> str:
    """Return a line of MLPerf's log, some seconds after its start."""
    event = {"namespace": "", "time_ms": int(1_700_000_000_000 + second * 1000), "event_type": kind}
    return f":::MLLOG {json.dumps({**event, 'key': key, 'value': value, 'metadata': metadata})}\n"


def sample(second: float, *used: object) -> str:
    """Return a line with the utilisation of each GPU, in percent."""
    gpus = [{"gpu": index, "utilisation": one, "throttle": 4} for index, one in enumerate(used)]
    return line("gpu_sample", {"gpus": gpus, "links": [{"interface": "eth0", "use": 3.5}]}, second)


def test_samples_are_curves_that_begin_with_the_run() -> None:
    text = line("init_start", None, 0) + sample(1, 0, 0) + line("run_start", None, 10)
    for second in range(11, 15):
        text += line("tracked_stats", {"throughput": 100.0, "train_loss": 1.0}, second)
        text += sample(second + 0.5, 97, 55)
    text += sample(14.7, "nonsense", None) + line("gpu_sample", [1, {"gpus": 3}], 14.8)
    text += line("run_stop", None, 15, status="success")
    log = parse(io.BytesIO(text.encode()), format="mllog", name="log")
    assert log.verdict.value == "pass"
    found = {(one.name, *one.labels.values()): one for one in log.series}
    used = found["gpu_utilisation", "1"]
    assert (used.x, used.y, used.unit) == ((1.5, 2.5, 3.5, 4.5), (55, 55, 55, 55), "%")
    assert found["link_use", "eth0"].y[0] == 3.5
    run = Run(run_id="one", benchmark="resnet50", series=log.series)
    titles = [chart.title for chart in run_charts(run)]
    assert titles[:3] == ["Samples per second over time", "GPU utilisation over time", "Train loss over time"]
    assert not any("throttle" in title for title in titles)
