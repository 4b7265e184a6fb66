"""Test functions of workloads/common.py, which all trainings and probes share, without a framework.

test_supervision.py tests its supervisor with whole programs.
"""

from __future__ import annotations

import signal
import subprocess
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.workloads.programs import load_program

NO_DEVICE, NOT_PERMITTED, UNKNOWN = 100, 800, 999


@pytest.fixture(scope="module")
def common() -> Any:
    """Return the module."""
    return load_program("common")


class Driver:
    """A fake of the CUDA driver with two GPUs, of which some functions return an error."""

    def __init__(self, **errors: int) -> None:
        self.errors = errors

    def cuInit(self, _flags: int) -> int:  # noqa: N802  (the driver's name)
        return self.errors.get("cuInit", 0)

    def cuGetErrorString(self, _status: int, text: Any) -> int:  # noqa: N802
        text._obj.value = b"a reason"
        return 0

    def cuDeviceGetCount(self, count: Any) -> int:  # noqa: N802
        count._obj.value = 2
        return self.errors.get("cuDeviceGetCount", 0)

    def cuDeviceGet(self, device: Any, index: int) -> int:  # noqa: N802
        device._obj.value = index
        return self.errors.get("cuDeviceGet", 0) if index else 0

    def cuDeviceGetUuid(self, uuid: Any, device: Any) -> int:  # noqa: N802
        if device.value and "cuDeviceGetUuid" in self.errors:
            return self.errors["cuDeviceGetUuid"]
        uuid._obj.bytes[0] = 0xA0 + device.value
        return 0

    def cuDeviceGetName(self, name: Any, _size: int, device: Any) -> int:  # noqa: N802
        name.value = b"NVIDIA H200"
        return self.errors.get("cuDeviceGetName", 0) if device.value else 0


def fake_driver(common: ModuleType, monkeypatch: pytest.MonkeyPatch, driver: Driver) -> None:
    """Load the fake in place of libcuda.so.1."""
    monkeypatch.setattr(common.ctypes, "CDLL", lambda name: driver)


def test_the_gpus_of_the_driver_are_listed(common: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_driver(common, monkeypatch, Driver())
    first, second = common.gpus()
    assert (first.index, first.uuid) == (0, "GPU-a0000000-0000-0000-0000-000000000000")
    assert (second.index, second.uuid) == (1, "GPU-a1000000-0000-0000-0000-000000000000")
    assert second.name == "NVIDIA H200"


def test_a_driver_without_a_device_lists_none(common: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_driver(common, monkeypatch, Driver(cuInit=NO_DEVICE))
    assert common.gpus() == []


@pytest.mark.parametrize("status", [NOT_PERMITTED, UNKNOWN])
@pytest.mark.parametrize(
    "name", ["cuInit", "cuDeviceGetCount", "cuDeviceGet", "cuDeviceGetUuid", "cuDeviceGetName"]
)
def test_a_gpu_that_the_driver_cannot_name_is_no_gpu_of_zeros(
    common: ModuleType, monkeypatch: pytest.MonkeyPatch, name: str, status: int
) -> None:
    fake_driver(common, monkeypatch, Driver(**{name: status}))
    with pytest.raises(common.Refusal, match=rf"error {status} \(a reason\)") as refused:
        common.gpus()
    assert refused.value.status == 4
    assert ("for GPU 1" in str(refused.value)) is (name not in ("cuInit", "cuDeviceGetCount"))


@pytest.mark.parametrize(
    ("values", "expected"),
    [([], None), ((), None), ("", None), (["a"], "a"), (["a", "b"], None), (["a", "b", "a"], "a")],
)
def test_the_majority_of_values(common: ModuleType, values: Any, expected: str | None) -> None:
    assert common.majority(values) == expected


@pytest.mark.parametrize("ignored", ["", "TERM", "TERM INT HUP"])
@pytest.mark.parametrize("status", [0, 1])
def test_the_children_of_a_rank_that_ended_end_too(
    common: ModuleType, tmp_path: Path, ignored: str, status: int
) -> None:
    trap = f"trap '' {ignored}; " if ignored else ""
    script = f"({trap}echo $BASHPID > {tmp_path}/new; mv {tmp_path}/new {tmp_path}/pid; sleep 600) & "
    script += f"while ! [ -f {tmp_path}/pid ]; do sleep 0.01; done; exit {status}"
    rank = subprocess.Popen(["bash", "-c", script], start_new_session=True)
    assert rank.wait() == status
    child = int((tmp_path / "pid").read_text())
    common._end([rank])
    while is_alive(child):
        time.sleep(0.01)


def is_alive(pid: int) -> bool:
    """Return whether a process runs. One that ended, but was not collected, does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except OSError:
        return False


def test_a_rank_that_ignores_the_first_signal_gets_the_second(
    common: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(common, "_GRACE_S", 0.1)
    rank = subprocess.Popen(
        ["bash", "-c", "trap '' TERM; echo ready; sleep 600 & wait; sleep 600"],
        start_new_session=True,
        stdout=subprocess.PIPE,
    )
    assert rank.stdout is not None
    assert rank.stdout.readline() == b"ready\n"
    common._end([rank])
    assert rank.wait() == -signal.SIGKILL
