"""What nvidia-smi's notations share: lines beside its tables, and what its values mean. No I/O."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rackproof.core.gpu_models import (
    HOTTEST_GPU_C,
    HOTTEST_MEMORY_C,
    MODELS_WITH_ECC,
    is_one_of,
)
from rackproof.core.records import Verdict
from rackproof.logs._reading import Log, number

MAX_GPUS = 1024
COLDEST_C, HOTTEST_C = 0.0, 150.0
"""A GPU at work is warmer than the one; a sensor does not show more than the other."""
_MOST_W = 5000.0
"""No GPU draws as much."""
_BUSY_PERCENT = 10.0
"""A resting PCIe link is slow on purpose; from here on the GPU is at work."""
_MEMORY_SHARE = 0.98
"""The driver's own share of the memory differs between equal GPUs by less than the rest."""
INFOROM_REMEDY = "inspect the GPU, have its infoROM written again or return it"
MEMORY_FAILS_C = HOTTEST_MEMORY_C + 10

_NO_ANSWER = (
    *("err!", "gpu is lost", "unknown error", "gpu requires reset", "unable to determine the device handle"),
    *("failed to initialize nvml", "no devices were found", "nvidia-smi has failed", "rminitadapter failed"),
)
"""What nvidia-smi prints in the place of a GPU or of all: above, in or below what it prints of the others."""
_INFOROM = re.compile(r"infoROM is corrupt(?:ed)?(?: at gpu ([0-9A-Fa-f:.]{5,20}))?", re.IGNORECASE)
"""What nvidia-smi prints beside its answer, with a GPU's address; its exit status is 14 then."""
_WARNING = re.compile(r"(?:warning|error|fatal|failed)\b", re.IGNORECASE)


def inforom_address(text: str) -> str | None:
    """Return the bus address in a warning of a corrupted infoROM, empty without one; None of other text."""
    found = _INFOROM.search(text)
    return (found[1] or "") if found else None


def is_no_answer(text: str) -> bool:
    """Whether a text is what nvidia-smi prints in the place of a GPU or of a value that it could not get."""
    lowered = text.lower()  # a pattern with as many alternatives takes 20 times as long
    return any(words in lowered for words in _NO_ANSWER)


def find_no_answer(log: Log, at: int, text: str) -> bool:
    """Note a line in which nvidia-smi states that a GPU does not answer; return whether it is one."""
    if not is_no_answer(text):
        return False
    log.find("gpu_lost", "a GPU does not answer", Verdict.FAIL, line=at, excerpt=text)
    return True


def find_remark(log: Log, at: int, text: str) -> bool:
    """Note a line beside a table in which nvidia-smi states a fault; return whether it is one."""
    if find_no_answer(log, at, text):
        return True
    if (address := inforom_address(text)) is not None:
        where = f"the GPU at {address}" if address else "a GPU"
        message = f"the infoROM of {where} is corrupted: {INFOROM_REMEDY}"
        log.find("inforom_corrupted", message, Verdict.FAIL, line=at, excerpt=text)
        return True
    if _WARNING.match(text):
        log.find(
            "tool_warning",
            "nvidia-smi warns of something that no check knows: look it up",
            Verdict.UNPROVEN,
            line=at,
            excerpt=text,
        )
        return True
    return False


def find_twice(log: Log, at: int, what: str, text: str) -> None:
    """Note a GPU or a link that a list has twice: it hides another one, or two lists were put together."""
    log.find("gpu_twice", f"{what} is listed twice", Verdict.UNPROVEN, line=at, excerpt=text)


def leading(text: str) -> float | None:
    """Return the number that a value begins with (``38 C``, ``1400.00 W``, ``16x``), if any."""
    return number(text.split(" ")[0].removesuffix("x")) if text else None


def is_possible(measurement: str, value: float) -> bool:
    """Whether a number can be what a parser measures under a name, of a GPU that answers."""
    if not math.isfinite(value):
        return False
    if measurement == "gpu_temperature":
        return COLDEST_C < value <= HOTTEST_C
    if measurement == "gpu_temperature_margin":
        return -HOTTEST_C <= value <= HOTTEST_C
    return 0 <= value <= _MOST_W if measurement == "gpu_power" else value >= 0


@dataclass(frozen=True)
class GpuReadings:
    """What nvidia-smi reports of a GPU, in any of its notations; empty and None is what it does not report.

    ``label`` names the GPU in messages; ``name`` is its product. Of words ``ecc`` and ``ecc_next`` are as
    printed: Enabled, Disabled.
    """

    label: str
    name: str = ""
    ecc: str = ""
    ecc_next: str = ""
    memory_mib: float | None = None
    width: float | None = None
    width_max: float | None = None
    generation: float | None = None
    generation_max: float | None = None
    utilisation: float | None = None
    temperature_c: float | None = None
    memory_c: float | None = None


def judge_gpu(log: Log, gpu: GpuReadings, at: int | None) -> None:
    """Judge what needs no other GPU: heat, PCIe generation under load, ECC of a model that has it on."""
    if gpu.temperature_c is not None and HOTTEST_GPU_C <= gpu.temperature_c <= HOTTEST_C:
        log.find("too_hot", f"{gpu.label}: at {gpu.temperature_c:g} °C", Verdict.FAIL, line=at)
    if gpu.memory_c is not None and gpu.memory_c >= HOTTEST_MEMORY_C:
        verdict = Verdict.FAIL if gpu.memory_c >= MEMORY_FAILS_C else Verdict.DEGRADED
        log.find("memory_temperature", f"{gpu.label}: its memory is at {gpu.memory_c:g} °C", verdict, line=at)
    if (gpu.utilisation or 0) >= _BUSY_PERCENT and (gpu.generation or 0) < (gpu.generation_max or 0):
        message = f"{gpu.label}: PCIe generation {gpu.generation or 0:g} of {gpu.generation_max:g} under load"
        log.find("pcie_generation", message, Verdict.FAIL, line=at)
    if "Disabled" in (gpu.ecc, gpu.ecc_next) and is_one_of(gpu.name, MODELS_WITH_ECC):
        _find_ecc_off(log, gpu, at)


def _find_ecc_off(log: Log, gpu: GpuReadings, at: int | None) -> None:
    when = "" if gpu.ecc == "Disabled" else " after its next reset"
    log.find("ecc_off", f"{gpu.label}: ECC is off{when}: nvidia-smi -e 1", Verdict.FAIL, line=at)


def judge_neighbours(log: Log, gpus: Sequence[tuple[GpuReadings, int | None]]) -> None:
    """Judge GPUs side by side: ECC, memory and PCIe lanes of those of one product name are equal.

    Where the report has no product names, GPUs that differ may be of different models: that is unproven.
    """
    by_name: dict[str, list[GpuReadings]] = {}
    for gpu, _at in gpus:
        by_name.setdefault(gpu.name, []).append(gpu)
    for gpu, at in gpus:
        alike = by_name[gpu.name]
        _judge_ecc_beside(log, gpu, at, alike)
        _judge_memory_beside(log, gpu, at, alike)
        _judge_width(log, gpu, at, alike)


def _different(gpu: GpuReadings) -> Verdict:
    return Verdict.FAIL if gpu.name else Verdict.UNPROVEN


def _judge_ecc_beside(log: Log, gpu: GpuReadings, at: int | None, alike: Iterable[GpuReadings]) -> None:
    is_off_alone = gpu.ecc == "Disabled" and any(one.ecc == "Enabled" for one in alike)
    if is_off_alone and not is_one_of(gpu.name, MODELS_WITH_ECC):
        message = f"{gpu.label}: ECC is off, and on beside it: nvidia-smi -e 1"
        log.find("ecc_off", message, _different(gpu), line=at)


def _judge_memory_beside(log: Log, gpu: GpuReadings, at: int | None, alike: Iterable[GpuReadings]) -> None:
    most = max((one.memory_mib or 0 for one in alike), default=0)
    if gpu.memory_mib is not None and gpu.memory_mib < _MEMORY_SHARE * most:
        message = f"{gpu.label}: {gpu.memory_mib:g} MiB of memory, {most:g} beside it"
        log.find("gpu_memory", message, _different(gpu), line=at)


def _judge_width(log: Log, gpu: GpuReadings, at: int | None, alike: Iterable[GpuReadings]) -> None:
    """Judge the lanes: fewer than of equal GPUs are a fault, fewer than it can have may be its slot's."""
    if gpu.width is None:
        return
    alike = list(alike)
    beside = max((one.width or 0 for one in alike), default=0)
    most = max((one.width_max or 0 for one in alike), default=0)
    shown = f"{gpu.label}: PCIe x{gpu.width:g} of x{gpu.width_max or most:g}"
    if gpu.width < min(beside, gpu.width_max or beside) and gpu.name:
        log.find("pcie_width", f"{shown}, x{beside:g} beside it", Verdict.FAIL, line=at)
    elif gpu.width != (gpu.width_max or gpu.width) or (gpu.width_max or most) < most:
        message = f"{shown}: reseat the GPU, or see how many lanes its slot has"
        log.find("pcie_width_unproven", message, Verdict.UNPROVEN, line=at)
