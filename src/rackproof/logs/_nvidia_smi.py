"""Judge the values of GPUs that nvidia-smi prints, whatever the notation of its output.

nvidia-smi prints the same values as a table, as text (``-q``), XML (``-x``) or CSV (``--query-gpu``). The
parser of each notation fills :class:`GpuReadings`, and calls :func:`judge_gpu` for each GPU and
:func:`judge_neighbours` for all GPUs of a log. :func:`find_remark` reads the warnings beside the values. The
parsers of gpu_burn, nvbandwidth and NVLinks, and the facts and health checks of nodes use single functions.
The module does no I/O.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime

from rackproof.core.gpu_models import (
    HOTTEST_GPU_C,
    HOTTEST_MEMORY_C,
    LEAST_MARGIN_C,
    MODELS_OF_DOMAINS,
    MODELS_WITH_ECC,
    MOST_DRAM_CORRECTED,
    MOST_SRAM_CORRECTED,
    has_own_links,
    is_one_of,
)
from rackproof.core.records import Verdict
from rackproof.logs._reading import Log, asctime_moment, number

MAX_GPUS = 1024
"""Largest number of GPUs that are read from a log."""
COLDEST_C, HOTTEST_C = 0.0, 150.0
"""Limits for temperatures in °C. A GPU at work is warmer than the first, and a sensor shows at most the
second."""
_MOST = {"gpu_power": 5000.0, "utilisation": 100.0}
"""Upper limits for a GPU's power in watts and its utilisation in per cent."""
_BUSY_PERCENT = 10.0
"""Utilisation from which a GPU is at work. The PCIe link of an idle GPU is slow by design."""
_MEMORY_SHARE = 0.98
"""Smallest ratio of the memory sizes of equal GPUs. The driver's own share of the memory varies by less than
0.02. Limits of clock, power and PCIe generation are compared with the same ratio."""
MOST_REMAPPED_ROWS = 512
"""Largest number of rows that a GPU can remap (NVIDIA, GPU memory error management)."""
_NAMED_GB = re.compile(r"(?<![A-Za-z0-9])(\d{1,4}) ?GB(?![A-Za-z0-9])")
"""Pattern of the memory size in a product's name: 80 in ``NVIDIA H100 80GB HBM3``."""
_NAMED_SHARE = 0.9
"""Smallest ratio of visible memory to the size in the product's name. ECC and the driver use up to
a tenth."""
_TWO_OF_ONE_SERIAL = ("GB300", "GB200", "K80", "M60", "M10")
"""Boards with several GPUs that all report the board's serial number."""
INFOROM_REMEDY = "inspect the GPU, have its infoROM written again or return it"
MEMORY_FAILS_C = HOTTEST_MEMORY_C + 10
"""Temperature of the memory in °C from which a GPU fails. From ``HOTTEST_MEMORY_C`` on, the GPU is
degraded."""

_NO_ANSWER = (
    *("err!", "gpu is lost", "unknown error", "gpu requires reset", "unable to determine the device handle"),
    *("failed to initialize nvml", "no devices were found", "nvidia-smi has failed", "rminitadapter failed"),
)
"""Lower-case texts that nvidia-smi prints in place of one or all GPUs, above, within or below its output."""
_INFOROM = re.compile(r"infoROM is corrupt(?:ed)?(?: at gpu ([0-9A-Fa-f:.]{5,20}))?", re.IGNORECASE)
"""Pattern of nvidia-smi's message about a corrupted infoROM, with the GPU's address if there is one. The exit
status is then 14."""
_LOST = re.compile(
    r"Unable to determine the device handle for GPU ?(?:\d{1,3}: ?)?"
    r"(?P<address>[0-9A-Fa-f]{3,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9A-Fa-f])?"
    r"|GPU is lost",
    re.IGNORECASE,
)
"""Pattern of nvidia-smi's messages about a GPU that fell off the bus, with its address if there is one."""
_WARNING = re.compile(r"(?:warning|error|fatal|failed)\b", re.IGNORECASE)
"""Pattern of the first word of a line in which nvidia-smi warns about something else."""


def identifies_gpu(serial: str, product: str) -> bool:
    """Return whether a serial number belongs to a single GPU.

    Some boards have several GPUs, which report the board's number. A number of zeros, or "", is unknown.
    """
    return bool(serial.strip("0")) and not is_one_of(product, _TWO_OF_ONE_SERIAL)


def inforom_address(text: str) -> str | None:
    """Return the bus address in a warning of a corrupted infoROM ("" without one), or None for other text."""
    match = _INFOROM.search(text)
    return (match[1] or "") if match else None


def lost_address(text: str) -> str | None:
    """Return the bus address of a GPU that nvidia-smi cannot reach ("" without one), or None for other text.

    ``Unable to determine the device handle for GPU0000:4E:00.0: Unknown Error`` is such a text.
    """
    match = _LOST.search(text)
    return (match["address"] or "") if match else None


def is_no_answer(text: str) -> bool:
    """Return whether a text is nvidia-smi's substitute for a GPU or a value that it could not read."""
    lowered = text.lower()  # a pattern with as many alternatives takes 20 times as long
    return any(words in lowered for words in _NO_ANSWER)


def find_no_answer(log: Log, at: int, text: str) -> bool:
    """Return whether a line of nvidia-smi reports that a GPU does not answer, and record such a line."""
    if not is_no_answer(text):
        return False
    address = lost_address(text)
    name = f"the GPU at {address}" if address else "a GPU"
    log.find("gpu_lost", f"{name} does not answer", Verdict.FAIL, line=at, excerpt=text)
    return True


def find_remark(log: Log, at: int, text: str) -> bool:
    """Return whether a line beside nvidia-smi's tables reports a fault, and record such a line."""
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
            "nvidia-smi prints an unknown warning: look it up",
            Verdict.UNPROVEN,
            line=at,
            excerpt=text,
        )
        return True
    return False


def tag_moment(log: Log, text: str) -> None:
    """Store the time of nvidia-smi's answer as the tag ``ended``, if the text is a time.

    nvidia-smi prints the node's local time without its zone. The tag treats it as UTC:
    ``2026-11-27T13:00:00+00:00``.
    """
    text = text.strip()[:40]
    moment = asctime_moment(text)
    for form in ("%Y/%m/%d %H:%M:%S.%f", "%Y/%m/%d %H:%M:%S"):
        with suppress(ValueError):
            moment = moment or datetime.strptime(text, form).replace(tzinfo=UTC)
    if moment is not None:
        log.tags["ended"] = moment.isoformat()


def find_twice(log: Log, at: int | None, name: str, text: str) -> None:
    """Record a duplicate GPU or link in a list: it hides another one, or two lists were combined."""
    log.find("gpu_twice", f"{name} is listed twice", Verdict.UNPROVEN, line=at, excerpt=text)


def leading(text: str) -> float | None:
    """Return the number at the start of a value (``38 C``, ``1400.00 W``, ``16x``), or None."""
    return number(text.split(" ")[0].removesuffix("x")) if text else None


def is_possible(measurement: str, value: float) -> bool:
    """Return whether a GPU that answers can report this number for a measurement, given by its name."""
    if not math.isfinite(value):
        return False
    if measurement == "gpu_temperature":
        return COLDEST_C < value <= HOTTEST_C
    if measurement == "gpu_temperature_margin":
        return -HOTTEST_C <= value <= HOTTEST_C
    if measurement == "gpu_memory_total":
        return value > 0
    return 0 <= value <= _MOST.get(measurement, math.inf)


@dataclass(frozen=True)
class GpuReadings:
    """The readings of one GPU in any notation of nvidia-smi. A missing reading is empty or None.

    ``label`` identifies the GPU in messages, and ``name`` is its product. ``ecc``, ``ecc_next`` (after the
    next reset), ``mig`` and the other texts are words as printed, such as Enabled and Disabled. ``width`` is
    the number of PCIe lanes, ``generation`` is the generation of PCIe, and ``utilisation`` is in per cent.
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
    margin_c: float | None = None
    """Distance in °C until the GPU slows down."""
    memory_c: float | None = None
    power_limit_w: float | None = None
    power_default_w: float | None = None
    clock_mhz: float | None = None
    clock_max_mhz: float | None = None
    mig: str = ""
    compute_mode: str = ""
    serial: str = ""
    spent_banks: float | None = None
    """Number of memory banks without a spare row."""
    remapped_rows: float | None = None
    sram_corrected: float | None = None
    """Number of errors that ECC corrected in the GPU's SRAM during its lifetime."""
    dram_corrected: float | None = None
    """Number of errors that ECC corrected in the GPU's DRAM during its lifetime."""
    fabric_state: str = ""
    fabric_status: str = ""
    fabric: str = ""
    """Cluster and clique of the GPU's NVLink domain."""
    bus_id: str = ""


def judge_gpu(log: Log, gpu: GpuReadings, at: int | None) -> None:
    """Record the faults that the values of one GPU show by themselves, without those of other GPUs."""
    _judge_settings(log, gpu, at)
    _judge_memory(log, gpu, at)
    in_domain = is_one_of(gpu.name, MODELS_OF_DOMAINS)
    if fault := fabric_fault(gpu.fabric_state, gpu.fabric_status, in_domain=in_domain):
        fabric_code, words, verdict = fault
        log.find(fabric_code, f"{gpu.label}: {words}", verdict, line=at)
    _judge_margin(log, gpu, at)
    _judge_corrected(log, gpu, at)
    _judge_heat(log, gpu, at)
    if (gpu.utilisation or 0) >= _BUSY_PERCENT and (gpu.generation or 0) < (gpu.generation_max or 0):
        message = f"{gpu.label}: PCIe generation {gpu.generation or 0:g} of {gpu.generation_max:g} under load"
        log.find("pcie_generation", message, Verdict.FAIL, line=at)
    if "Disabled" in (gpu.ecc, gpu.ecc_next) and is_one_of(gpu.name, MODELS_WITH_ECC):
        _find_ecc_off(log, gpu, at)


def _judge_heat(log: Log, gpu: GpuReadings, at: int | None) -> None:
    """Judge the temperatures of a GPU and of its memory."""
    if gpu.temperature_c is not None and HOTTEST_GPU_C <= gpu.temperature_c <= HOTTEST_C:
        log.find("too_hot", f"{gpu.label}: at {gpu.temperature_c:g} °C", Verdict.FAIL, line=at)
    if gpu.memory_c is not None and gpu.memory_c >= HOTTEST_MEMORY_C:
        verdict = Verdict.FAIL if gpu.memory_c >= MEMORY_FAILS_C else Verdict.DEGRADED
        log.find("memory_temperature", f"{gpu.label}: its memory is at {gpu.memory_c:g} °C", verdict, line=at)


def _judge_margin(log: Log, gpu: GpuReadings, at: int | None) -> None:
    """Judge a GPU's distance to its slowdown temperature, with the limit of the nightly health checks."""
    if gpu.margin_c is not None and gpu.margin_c <= LEAST_MARGIN_C:
        verdict = Verdict.FAIL if gpu.margin_c <= 0 else Verdict.DEGRADED
        message = f"{gpu.label}: {gpu.margin_c:g} °C left until it slows down"
        log.find("temperature", message, verdict, line=at)


def _judge_corrected(log: Log, gpu: GpuReadings, at: int | None) -> None:
    """Judge the number of errors that ECC corrected, with the limits of the nightly health checks."""
    for code, errors, most, memory in (
        ("ecc_sram_correctable", gpu.sram_corrected, MOST_SRAM_CORRECTED, "SRAM"),
        ("ecc_dram_correctable", gpu.dram_corrected, MOST_DRAM_CORRECTED, "DRAM"),
    ):
        if (errors or 0) > most:
            message = f"{gpu.label}: {errors:g} correctable errors in {memory}, more than {most}"
            log.find(code, message, Verdict.DEGRADED, line=at)


_NO_RESOURCES = "Insufficient Resources"
"""Fabric status of a GPU for which an NVLink domain of several nodes has no place."""


def fabric_fault(state: str, status: str, *, in_domain: bool) -> tuple[str, str, Verdict] | None:
    """Return what keeps a GPU out of its NVLink fabric as code, text and verdict, or None if nothing does.

    Args:
        state: The state of the fabric, as nvidia-smi reports it.
        status: The status of the fabric.
        in_domain: Whether the GPU must be in a domain of several nodes. The fabric of an HGX ends at
            the node.
    """
    if state not in ("", "Completed", "Not Supported"):
        return "fabric_incomplete", f"fabric is {state:.40}: does the fabric manager run?", Verdict.FAIL
    if status in ("", "Success", "Not Supported"):
        return None
    # NVML calls any status but Success an error. No published report of a healthy HGX has this status, but an
    # HGX may not need the domain that has no place for it. So its verdict is unproven.
    is_local = status == _NO_RESOURCES and state == "Completed" and not in_domain
    verdict = Verdict.UNPROVEN if is_local else Verdict.FAIL
    return "fabric_failed", f"the fabric's status is {status:.40}", verdict


def _judge_settings(log: Log, gpu: GpuReadings, at: int | None) -> None:
    """Judge the compute mode, the power limit and the SM clock of a GPU."""
    if gpu.compute_mode == "Prohibited":
        message = (
            f"{gpu.label}: no program may compute on it (compute mode Prohibited): nvidia-smi -c DEFAULT"
        )
        log.find("compute_prohibited", message, Verdict.UNPROVEN, line=at)
    if gpu.power_limit_w is not None and gpu.power_limit_w < (gpu.power_default_w or 0):
        message = f"{gpu.label}: its power is limited to {gpu.power_limit_w:g} W of {gpu.power_default_w:g} W"
        log.find("power_limit", message, Verdict.DEGRADED, line=at)
    if gpu.clock_mhz is not None and gpu.clock_max_mhz and gpu.clock_mhz > gpu.clock_max_mhz:
        message = f"{gpu.label}: an SM clock of {gpu.clock_mhz:g} MHz, and at most {gpu.clock_max_mhz:g} MHz"
        log.find("impossible_value", message, Verdict.UNPROVEN, line=at)


def _judge_memory(log: Log, gpu: GpuReadings, at: int | None) -> None:
    """Judge the remaining spare memory of a GPU, and whether its size matches its name."""
    if gpu.spent_banks:
        message = (
            f"{gpu.label}: {gpu.spent_banks:g} banks of its memory have no spare row left: plan its return"
        )
        log.find("remap_spent", message, Verdict.DEGRADED, line=at)
    elif (gpu.remapped_rows or 0) >= MOST_REMAPPED_ROWS:
        message = f"{gpu.label}: {gpu.remapped_rows:g} rows of its memory are remapped: plan its return"
        log.find("remap_spent", message, Verdict.DEGRADED, line=at)
    match = _NAMED_GB.search(gpu.name)
    if (
        match
        and gpu.memory_mib is not None
        and gpu.memory_mib < _NAMED_SHARE * int(match[1]) * 1000**3 / 2**20
    ):
        message = f"{gpu.label}: {gpu.memory_mib:g} MiB of memory, and its name states {match[1]} GB"
        log.find("gpu_memory", message, Verdict.UNPROVEN, line=at)


def _find_ecc_off(log: Log, gpu: GpuReadings, at: int | None) -> None:
    """Record that a GPU's ECC is off now, or will be after its next reset."""
    when = "" if gpu.ecc == "Disabled" else " after its next reset"
    log.find("ecc_off", f"{gpu.label}: ECC is off{when}: nvidia-smi -e 1", Verdict.FAIL, line=at)


def judge_neighbours(log: Log, gpus: Sequence[tuple[GpuReadings, int | None]]) -> None:
    """Compare the GPUs of one machine, each with its line.

    GPUs of one product name have the same ECC mode, memory, PCIe lanes, settings and limits. If the output
    has no product names, GPUs that differ may be of different models, so the findings are unproven.
    """
    by_name: dict[str, list[GpuReadings]] = {}
    for gpu, _at in gpus:
        by_name.setdefault(gpu.name, []).append(gpu)
    for gpu, at in gpus:
        alike = by_name[gpu.name]
        _judge_ecc_beside(log, gpu, at, alike)
        _judge_memory_beside(log, gpu, at, alike)
        _judge_width(log, gpu, at, alike)
        _judge_settings_beside(log, gpu, at, alike)
    _judge_serials(log, gpus)
    _judge_places(log, gpus)
    find_mixed_models(log, (gpu.name for gpu, _at in gpus))


def find_mixed_models(log: Log, names: Iterable[str]) -> None:
    """Record GPUs of several models in one machine. Such a list mixes parts of several logs or machines."""
    models = sorted({name for name in names if has_own_links(name)})
    if len(models) > 1:
        message = f"GPUs of several models in one machine: {', '.join(models[:4])}"
        log.find("gpus_unlike", message, Verdict.UNPROVEN)


def find_lacking_readings(log: Log, gpu: str, lacking: Sequence[str], at: int | None = None) -> None:
    """Record a GPU without readings that the other GPUs report."""
    message = f"{gpu}: no {', '.join(lacking[:6])}, which the GPUs beside it have"
    log.find("gpu_readings_missing", message, Verdict.UNPROVEN, line=at)


def find_not_available(log: Log, gpu: str, readings: Sequence[str], at: int | None) -> None:
    """Record a GPU that has N/A in place of readings that every GPU of its model has."""
    if readings:
        message = f"{gpu}: no value of {', '.join(readings[:6])}, which every GPU of this model has"
        log.find("gpu_readings_missing", message, Verdict.UNPROVEN, line=at)


def find_missing_indexes(log: Log, name: str, indexes: Iterable[int]) -> None:
    """Record a gap in the GPUs' numbers of the list ``name``. Such a list was filtered or truncated."""
    present = set(indexes)
    # A damaged number may be a billion. At most six missing numbers are named, and these are below this one.
    highest = min(max(present, default=0), len(present) + 6)
    lacking = [number for number in range(highest) if number not in present][:6]
    if lacking:
        message = f"{name} has no GPU {', '.join(map(str, lacking))}"
        log.find("gpu_missing", message, Verdict.UNPROVEN)


def _judge_serials(log: Log, gpus: Sequence[tuple[GpuReadings, int | None]]) -> None:
    """Record GPUs with the same serial number that are not on one board."""
    seen: dict[str, str] = {}
    for gpu, at in gpus:
        if not identifies_gpu(gpu.serial, gpu.name):
            continue
        # A query in a loop lists one GPU in many rows, with the same label.
        if seen.setdefault(gpu.serial, gpu.label) != gpu.label:
            find_twice(log, at, f"the serial number {gpu.serial}", gpu.label)


def _judge_places(log: Log, gpus: Sequence[tuple[GpuReadings, int | None]]) -> None:
    """Record GPUs with the same address, and GPUs of one machine in different NVLink cliques."""
    seen: dict[str, str] = {}
    for gpu, at in gpus:
        # A query in a loop lists one GPU in many rows, with the same label.
        if gpu.bus_id and seen.setdefault(gpu.bus_id, gpu.label) != gpu.label:
            find_twice(log, at, f"the address {gpu.bus_id}", gpu.label)
    if len(fabrics := sorted({gpu.fabric for gpu, _at in gpus} - {""})) > 1:
        message = f"the GPUs are in {len(fabrics)} NVLink cliques (cluster/clique): {', '.join(fabrics[:3])}"
        log.find("fabric_split", message, Verdict.FAIL)


def _judge_settings_beside(log: Log, gpu: GpuReadings, at: int | None, alike: Sequence[GpuReadings]) -> None:
    """Record a limit that is lower than on another GPU of the product, and MIG that is on here alone."""
    # The slots of a server may differ, and a card shows the lower generation of itself and its slot. So the
    # generations of cards are not compared.
    generation = None if has_own_links(gpu.name) is False else gpu.generation_max
    for name, value, unit, beside in (
        ("PCIe generation at most", generation, "", [other.generation_max for other in alike]),
        ("SM clock at most", gpu.clock_max_mhz, " MHz", [other.clock_max_mhz for other in alike]),
        ("power limit", gpu.power_limit_w, " W", [other.power_limit_w for other in alike]),
    ):
        most = max((value_beside for value_beside in beside if value_beside is not None), default=0.0)
        if value is not None and value < _MEMORY_SHARE * most:
            message = f"{gpu.label}: {name} {value:g}{unit}, {most:g}{unit} beside it"
            log.find("gpus_unlike", message, Verdict.UNPROVEN, line=at)
    if gpu.mig == "Enabled" and any(other.mig == "Disabled" for other in alike):
        message = f"{gpu.label}: MIG is on, and off beside it: nvidia-smi -i INDEX -mig 0"
        log.find("gpus_unlike", message, Verdict.UNPROVEN, line=at)


def _different(gpu: GpuReadings) -> Verdict:
    """Return the verdict of a GPU that differs from others, which may be of other models without names."""
    return Verdict.FAIL if gpu.name else Verdict.UNPROVEN


def _judge_ecc_beside(log: Log, gpu: GpuReadings, at: int | None, alike: Iterable[GpuReadings]) -> None:
    is_off_alone = gpu.ecc == "Disabled" and any(other.ecc == "Enabled" for other in alike)
    if is_off_alone and not is_one_of(gpu.name, MODELS_WITH_ECC):
        message = f"{gpu.label}: ECC is off, and on beside it: nvidia-smi -e 1"
        log.find("ecc_off", message, _different(gpu), line=at)


def _judge_memory_beside(log: Log, gpu: GpuReadings, at: int | None, alike: Iterable[GpuReadings]) -> None:
    most = max((other.memory_mib or 0 for other in alike), default=0)
    if gpu.memory_mib is not None and gpu.memory_mib < _MEMORY_SHARE * most:
        message = f"{gpu.label}: {gpu.memory_mib:g} MiB of memory, {most:g} beside it"
        log.find("gpu_memory", message, _different(gpu), line=at)


def _judge_width(log: Log, gpu: GpuReadings, at: int | None, alike: Iterable[GpuReadings]) -> None:
    """Judge the PCIe lanes.

    Fewer lanes than those of equal GPUs are a fault. Fewer than the GPU's maximum may be due to the slot.
    """
    if gpu.width is None:
        return
    alike = list(alike)
    beside = max((other.width or 0 for other in alike), default=0)
    most = max((other.width_max or 0 for other in alike), default=0)
    own_most = gpu.width_max or 0
    shown = f"{gpu.label}: PCIe x{gpu.width:g} of x{own_most or most:g}"
    if gpu.name and gpu.width < (min(beside, own_most) if own_most else beside):
        log.find("pcie_width", f"{shown}, x{beside:g} beside it", Verdict.FAIL, line=at)
    elif own_most and (gpu.width != own_most or own_most < most):
        message = f"{shown}: reseat the GPU, or see how many lanes its slot has"
        log.find("pcie_width_unproven", message, Verdict.UNPROVEN, line=at)
