"""Sample the GPUs and the network during a run.

common.py calls :func:`start`, which returns a :class:`Sampler`. The samples contain utilisation, power,
temperature, clocks and traffic. The supervisor samples in a separate thread through NVML, if the driver
provides NVML. Without GPUs, nothing is sampled. If a call hangs in the driver, only samples are missing.
probe_soak.py uses only :class:`Nvml`. The module needs only the standard library.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

EVERY_S = 1.0
"""Seconds between two samples at the start of a run."""
BEFORE_SLOWER = 512
"""Number of samples after which the time between two samples is doubled each time, so that a week's log stays
short."""

# Numbers that NVML gives to its clocks, sensors, thresholds, and counters of ECC errors.
_SM_CLOCK, _TEMPERATURE_GPU = 1, 0
_SLOWDOWN_THRESHOLD = 1
_CORRECTED, _UNCORRECTED, _SINCE_BOOT = 0, 1, 0
_MEMORY_CLOCK = 2
_MOST_LINKS = 18
"""Largest number of NVLinks of a GPU."""
_LINK_COUNTERS = (0, 1, 2)
"""NVML's counters of an NVLink's replays, recoveries, and flits with a wrong checksum, as in
``nvidia-smi nvlink -e``. Two others, of data (3) and ECC (4), count bits that the link itself corrected.
They grew by 6,000 and 30,000 on two healthy H100 in a soak of 80 s, while these three remained 0."""
_NO_LINK = (2, 3)
"""NVML's statuses for a link that a GPU does not have: an invalid argument or, if it has no links at all, not
supported."""
COUNTERS = ("ecc_corrected", "ecc_uncorrected", "pcie_replay", "nvlink")
"""Keys of :meth:`Nvml.read_counters` that only grow."""
_NETWORK = Path("/sys/class/net")


class _Utilisation(ctypes.Structure):
    _fields_ = [("gpu", ctypes.c_uint), ("memory", ctypes.c_uint)]


class Nvml:
    """A connection to NVML. Values that NVML does not return are left out.

    Raises:
        OSError: There is no NVML here, or it does not start.
    """

    def __init__(self, uuids: list[str], library: Any = None) -> None:
        self._library = library or ctypes.CDLL("libnvidia-ml.so.1")
        if self._library.nvmlInit_v2() != 0:
            raise OSError("NVML does not start")
        self._devices: list[Any] = []
        for uuid in uuids:
            handle = ctypes.c_void_p()
            if self._library.nvmlDeviceGetHandleByUUID(uuid.encode(), ctypes.byref(handle)) == 0:
                self._devices.append((len(self._devices), handle))

    def _ask(self, name: str, held: Any, *arguments: Any) -> Any:
        return held if getattr(self._library, name)(*arguments, ctypes.byref(held)) == 0 else None

    def read(self) -> list[dict[str, float]]:
        """Return utilisation (%), power (W), temperature (°C), clock (MHz), and why it is lower, by GPU."""
        values = []
        for index, device in self._devices:
            sample: dict[str, float] = {"gpu": index}
            used = self._ask("nvmlDeviceGetUtilizationRates", _Utilisation(), device)
            if used is not None:
                sample["utilisation"] = used.gpu
            for key, name, held, factor, more in (
                ("power", "nvmlDeviceGetPowerUsage", ctypes.c_uint(), 1e-3, ()),
                ("temperature", "nvmlDeviceGetTemperature", ctypes.c_uint(), 1, (_TEMPERATURE_GPU,)),
                ("clock", "nvmlDeviceGetClockInfo", ctypes.c_uint(), 1, (_SM_CLOCK,)),
                ("throttle", "nvmlDeviceGetCurrentClocksThrottleReasons", ctypes.c_ulonglong(), 1, ()),
            ):
                answer = self._ask(name, held, device, *more)
                if answer is not None:
                    sample[key] = answer.value * factor
            values.append(sample)
        return values

    def read_counters(self) -> dict[str, float]:
        """Return the first GPU's counters and constants (errors, energy in J, slowdown in °C).

        ``nvlink`` is the sum of errors of all its links, and 0 for a GPU without links. The sum is left out
        if there are links and NVML does not show their errors.
        """
        if not self._devices:
            return {}
        device = self._devices[0][1]
        counters: dict[str, float] = {}
        for key, name, held, factor, more in (
            (
                "ecc_corrected",
                "nvmlDeviceGetTotalEccErrors",
                ctypes.c_ulonglong(),
                1,
                (_CORRECTED, _SINCE_BOOT),
            ),
            (
                "ecc_uncorrected",
                "nvmlDeviceGetTotalEccErrors",
                ctypes.c_ulonglong(),
                1,
                (_UNCORRECTED, _SINCE_BOOT),
            ),
            ("pcie_replay", "nvmlDeviceGetPcieReplayCounter", ctypes.c_uint(), 1, ()),
            ("energy", "nvmlDeviceGetTotalEnergyConsumption", ctypes.c_ulonglong(), 1e-3, ()),
            (
                "slowdown_temperature",
                "nvmlDeviceGetTemperatureThreshold",
                ctypes.c_uint(),
                1,
                (_SLOWDOWN_THRESHOLD,),
            ),
        ):
            answer = self._ask(name, held, device, *more)
            if answer is not None:
                counters[key] = answer.value * factor
        errors = [
            answer.value
            for link in range(_MOST_LINKS)
            for counter in _LINK_COUNTERS
            if (
                answer := self._ask(
                    "nvmlDeviceGetNvLinkErrorCounter", ctypes.c_ulonglong(), device, link, counter
                )
            )
            is not None
        ]
        if errors or not self._may_have_links(device):
            counters["nvlink"] = sum(errors)
        return counters

    def _may_have_links(self, device: Any) -> bool:
        ask = self._library.nvmlDeviceGetNvLinkState
        answers = (ask(device, link, ctypes.byref(ctypes.c_uint())) for link in range(_MOST_LINKS))
        return any(answer not in _NO_LINK for answer in answers)

    def read_settings(self) -> dict[str, str]:
        """Return the driver, power limit (W) and clocks (MHz) of the first GPU, which determine its speed."""
        driver = ctypes.create_string_buffer(80)
        settings: dict[str, str] = {}
        if self._library.nvmlSystemGetDriverVersion(driver, len(driver)) == 0:
            settings["driver"] = driver.value.decode(errors="replace")
        for key, name, factor, more in (
            ("power_limit", "nvmlDeviceGetEnforcedPowerLimit", 1e-3, ()),
            ("highest_clock", "nvmlDeviceGetMaxClockInfo", 1, (_SM_CLOCK,)),
            ("clock_set", "nvmlDeviceGetApplicationsClock", 1, (_SM_CLOCK,)),
            ("memory_clock_set", "nvmlDeviceGetApplicationsClock", 1, (_MEMORY_CLOCK,)),
        ):
            answer = self._ask(name, ctypes.c_uint(), *(device for _, device in self._devices[:1]), *more)
            if answer is not None:
                settings[key] = f"{answer.value * factor:g}"
        return settings


class Links:
    """Traffic of the physical network interfaces, as a share of their links' rates."""

    def __init__(self, folder: Path = _NETWORK) -> None:
        self._folder = folder
        self._before: dict[str, tuple[float, list[int]]] = {}

    def read(self, now: float) -> list[dict[str, Any]]:
        """Return the traffic of up to 16 interfaces since the last call, in per cent of their speeds.

        The traffic is the number of bytes received or sent, whichever is larger. An interface whose speed is
        unknown, or whose counters were reset, is left out.
        """
        readings = []
        try:
            interfaces = sorted(path.name for path in self._folder.iterdir() if (path / "device").exists())
        except OSError:
            return []
        for name in interfaces[:16]:
            try:
                file = self._folder / name
                speed = int((file / "speed").read_text()) * 1e6 / 8
                counters = [int((file / "statistics" / f"{way}_bytes").read_text()) for way in ("rx", "tx")]
            except (OSError, ValueError):
                continue
            before, earlier = self._before.get(name, (now, counters))
            self._before[name] = (now, counters)
            pairs = zip(counters, earlier)  # noqa: B905  (Python 3.8)
            growth = [count - count_before for count, count_before in pairs]
            if speed > 0 and now > before and min(growth) >= 0:
                use = 100 * max(growth) / (now - before) / speed
                readings.append({"interface": name, "use": round(min(use, 1000.0), 2)})
        return readings


class Sampler:
    """A thread that samples until it is stopped. It calls ``say`` with each sample."""

    def __init__(
        self, nvml: Nvml, links: Links, say: Callable[[dict[str, Any]], None], every_s: float = EVERY_S
    ) -> None:
        self._nvml, self._links, self._say, self._every_s = nvml, links, say, every_s
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="samples", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        """Log a sample after each interval. The interval doubles after each :data:`BEFORE_SLOWER` samples."""
        every, count = self._every_s, 0
        while not self._end.wait(every):
            sample = {"gpus": self._nvml.read(), "links": self._links.read(time.monotonic())}
            if self._end.is_set():
                return
            self._say(sample)
            count += 1
            if count % BEFORE_SLOWER == 0:
                every *= 2

    def stop(self) -> None:
        """End the sampling. A thread that hangs in the driver is left behind."""
        self._end.set()
        self._thread.join(1.0)


def start(uuids: list[str], say: Callable[[dict[str, Any]], None]) -> Sampler | None:
    """Start sampling these GPUs. Return None if there are no GPUs or no NVML."""
    if not uuids:
        return None
    try:
        return Sampler(Nvml(uuids), Links(), say)
    except (OSError, AttributeError):
        return None
