"""Find the parts that are missing in nvidia-smi's description of a GPU.

:data:`PARTS` lists what ``nvidia-smi -q`` prints for every GPU, by the names of its XML (``-x``)::

    <ecc_mode><current_ecc>Enabled</current_ecc> ...      the part ecc_mode/current_ecc

The parsers of its text and of its XML compare each GPU of a log with this list, because a missing part may
hide a fault: the log was edited or damaged. The module does no I/O.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

from rackproof.core.gpu_models import (
    DRIVER_WITH_REPAIRS,
    MODELS_WITH_ALL,
    MODELS_WITH_ECC,
    MODELS_WITH_REMAPPING,
    MODELS_WITH_REPAIRS,
    is_card,
    is_one_of,
    is_virtual,
)


class Described(Protocol):
    """The description of a GPU, or a section of it."""

    @property
    def tag(self) -> str:
        """Return the name of this element."""

    @property
    def children(self) -> Sequence[Described]:
        """Return the elements below this one."""

    @property
    def text(self) -> Sequence[str]:
        """Return the text of this element."""

    def find(self, path: str) -> Described | None:
        """Return the first element at a path of tags, or None."""

    def get(self, path: str) -> str:
        """Return the cleaned text at a path, or "" for a missing element or ``N/A``."""


@dataclass(frozen=True)
class Part:
    """A part that nvidia-smi prints below a section of a GPU's description.

    A section whose only text is N/A contains no parts.

    Attributes:
        section: The path of the section, or "" for the GPU itself.
        tags: The names of the part in different drivers and notations. One of them must be there.
        since_driver: The first major version of the driver that prints the part, or 0 for every version.
        models: The GPU models for which the part is printed. Empty means every model.
    """

    section: str
    tags: tuple[str, ...]
    since_driver: float = 0
    models: tuple[str, ...] = ()

    @property
    def paths(self) -> tuple[str, ...]:
        """Return the possible paths of this part."""
        return tuple(f"{self.section}/{tag}" if self.section else tag for tag in self.tags)


def _below(section: str, *names: str, since: float = 0, models: tuple[str, ...] = ()) -> tuple[Part, ...]:
    """Return the parts of one section. Alternative names of a part are separated by bars."""
    return tuple(Part(section, tuple(name.split("|")), since, models) for name in names)


def _reasons(section: str, prefix: str) -> tuple[Part, ...]:
    """Return the parts of a section with reasons for slow clocks, by their names in XML and text output."""
    names = ("hw_slowdown", "sw_power_cap", "sw_thermal_slowdown")
    # In the text output, these two are below hw_slowdown.
    nested = ("hw_thermal_slowdown", "hw_power_brake_slowdown")
    return _below(
        section,
        *(f"{prefix}{name}|{name}" for name in names),
        *(f"{prefix}{name}|hw_slowdown/{name}" for name in nested),
    )


_LINK = "pci/pci_gpu_link_info"
PARTS: tuple[Part, ...] = (
    *_below(
        "",
        *("product_name", "uuid", "serial", "vbios_version", "performance_state", "pci", "fb_memory_usage"),
        *("utilization", "ecc_mode", "ecc_errors", "retired_pages", "temperature", "clocks", "processes"),
        "clocks_event_reasons|clocks_throttle_reasons",
        "gpu_power_readings|power_readings",
    ),
    *_below("", "mig_mode", "remapped_rows", since=510),
    *_below("", "fabric", since=525),
    *_below("", "gpu_recovery_action", since=570),
    *_below("", "clocks_event_reasons_counters", since=580),
    *_below("pci", "pci_gpu_link_info", "pci_bus_id|bus_id"),
    *_below(_LINK, "pcie_gen", "link_widths"),
    *_below(f"{_LINK}/pcie_gen", "current_link_gen", "max_link_gen"),
    *_below(f"{_LINK}/link_widths", "current_link_width", "max_link_width"),
    *_reasons("clocks_event_reasons", "clocks_event_reason_"),
    *_reasons("clocks_throttle_reasons", "clocks_throttle_reason_"),
    *_below("fb_memory_usage", "total", "used", "free"),
    *_below("fb_memory_usage", "reserved", since=525),
    *_below("utilization", "gpu_util"),
    *_below("mig_mode", "current_mig"),
    *_below("ecc_mode", "current_ecc", "pending_ecc"),
    *_below("ecc_errors", "volatile", "aggregate"),
    *_below("ecc_errors", "channel_repair_pending", since=DRIVER_WITH_REPAIRS, models=MODELS_WITH_REPAIRS),
    *_below("ecc_errors", "tpc_repair_pending", since=DRIVER_WITH_REPAIRS, models=MODELS_WITH_REPAIRS),
    *_below("ecc_errors", "unrepairable_memory", since=590, models=MODELS_WITH_REPAIRS),
    *(
        part
        for section in ("ecc_errors/volatile", "ecc_errors/aggregate")
        for part in _below(
            section,
            *("sram_correctable|single_bit", "dram_correctable|single_bit", "dram_uncorrectable|double_bit"),
            # Up to driver 535 there was one count. Later drivers print two counts and a threshold.
            "sram_uncorrectable_parity|sram_uncorrectable|double_bit",
            "sram_uncorrectable_secded|sram_uncorrectable|double_bit",
        )
    ),
    *_below("ecc_errors/aggregate", "sram_threshold_exceeded|sram_uncorrectable|double_bit"),
    *_below("retired_pages", "pending_retirement|pending_blacklist"),
    *_below("remapped_rows", "remapped_row_pending", "remapped_row_failure"),
    *_below("remapped_rows", "remapped_row_corr|correctable_error", "remapped_row_unc|uncorrectable_error"),
    *_below("temperature", "gpu_temp", "memory_temp"),
    *_below("temperature", "gpu_temp_tlimit", since=525),
    *_below("gpu_power_readings", "current_power_limit|power_limit|gpu_ceiling_power_limit"),
    *_below("gpu_power_readings", "default_power_limit|gpu_ceiling_power_limit"),
    *_below("gpu_power_readings", "instant_power_draw|power_draw"),
    *_below("power_readings", "power_draw"),
    # Driver 610 and later nest these parts one level deeper.
    *_below("gpu_power_readings/gpu_ceiling_power_limit", "current_power_limit", "default_power_limit"),
    *_below("power_readings", "power_limit", "default_power_limit"),
    *_below("clocks", "sm_clock"),
    *_below("fabric", "state", "status"),
    *_below("fabric", "health", since=570),
)
"""The parts that every examined answer has, of drivers 418 to 610 and of GeForce, Quadro and data center
GPUs. If a GPU lacks a feature, the driver prints N/A, so the part itself is still there.
"""


@dataclass(frozen=True)
class KnownReading:
    """A reading that every GPU of some models has. ``N/A`` in its place may hide a fault.

    Attributes:
        paths: The paths of the reading in different drivers. One of them must have a value.
        columns: The columns of a query with the reading. One of those that are queried must have a value.
        models: The GPU models that have the reading.
        since_driver: The first major version of the driver that shows the reading, or 0 for every version.
        of_cards: Whether cards of these models have it, too.
    """

    paths: tuple[str, ...]
    columns: tuple[str, ...]
    models: tuple[str, ...]
    since_driver: float = 0
    of_cards: bool = True


_VOLATILE, _COLUMN = "ecc_errors/volatile", "ecc.errors.uncorrected.volatile"
KNOWN_READINGS: tuple[KnownReading, ...] = (
    KnownReading(("ecc_mode/current_ecc",), ("ecc.mode.current",), MODELS_WITH_ECC),
    KnownReading(("ecc_mode/pending_ecc",), ("ecc.mode.pending",), MODELS_WITH_ECC),
    KnownReading(
        (f"{_VOLATILE}/dram_uncorrectable", f"{_VOLATILE}/double_bit/device_memory"),
        (f"{_COLUMN}.dram", f"{_COLUMN}.device_memory"),
        MODELS_WITH_ECC,
    ),
    *(
        KnownReading(
            (f"{_VOLATILE}/sram_uncorrectable_{kind}", f"{_VOLATILE}/sram_uncorrectable"),
            (f"{_COLUMN}.sram.{kind}", f"{_COLUMN}.sram"),
            MODELS_WITH_REMAPPING,
        )
        for kind in ("parity", "secded")
    ),
    KnownReading((), (f"{_COLUMN}.total",), MODELS_WITH_ECC),
    *(
        KnownReading(
            (f"remapped_rows/remapped_row_{state}",), (f"remapped_rows.{state}",), MODELS_WITH_REMAPPING
        )
        for state in ("pending", "failure")
    ),
    KnownReading(("temperature/memory_temp",), ("temperature.memory",), MODELS_WITH_ALL, of_cards=False),
    KnownReading(
        ("gpu_recovery_action",),
        ("gpu_recovery_action",),
        MODELS_WITH_REPAIRS,
        DRIVER_WITH_REPAIRS,
        of_cards=False,
    ),
)
"""Readings that all examined answers of these models have, unless ECC is off or MIG is on."""

_JUDGED_PATHS: tuple[str, ...] = tuple(
    f"{section}/{name}" if section else name
    for section, names in (
        ("", ("gpu_recovery_action", "vbios_version")),
        ("temperature", ("gpu_temp", "gpu_temp_tlimit", "memory_temp")),
        ("fabric", ("state", "status", "cliqueId", "clusterUuid", "cliqueid", "clusteruuid")),
        (
            "fabric/health",
            (
                *("summary", "bandwidth", "route_recovery_in_progress", "route_unhealthy"),
                *("access_timeout_recovery", "incorrect_configuration"),
            ),
        ),
        ("ecc_mode", ("current_ecc",)),
        ("mig_mode", ("current_mig",)),
        ("fb_memory_usage", ("total",)),
        (
            "ecc_errors",
            (
                *("unrepairable_memory", "channel_repair_pending", "tpc_repair_pending"),
                *("aggregate/sram_threshold_exceeded", "volatile/dram_uncorrectable"),
                *(f"volatile/sram_uncorrectable{kind}" for kind in ("", "_parity", "_secded")),
            ),
        ),
        ("remapped_rows", ("remapped_row_pending", "remapped_row_failure")),
        ("retired_pages", ("pending_retirement", "pending_blacklist")),
        (f"{_LINK}/pcie_gen", ("current_link_gen", "max_link_gen")),
        (f"{_LINK}/link_widths", ("current_link_width", "max_link_width")),
        ("gpu_power_readings", ("current_power_limit", "default_power_limit")),
        ("clocks", ("sm_clock",)),
    )
    for name in names
)
"""Paths of the judged readings. If a GPU has such a reading, all GPUs of its model in the machine have it."""
_LISTS = frozenset(
    {
        *("processes", "accounted_processes", "mig_devices", "mig_device", "retired_pagelist"),
        "supported_clocks",
    }
)
"""Elements whose content differs between healthy GPUs of one model, or that are long and never judged."""
_MOST_LEVELS, _LONGEST_TAG = 6, 60
"""Limits of a path against hostile text. No driver prints deeper levels or longer names."""


def _is_printed(gpu: Described, part: Part) -> bool:
    """Return whether the output has a part, even as N/A, or lacks the part's whole section."""
    section = gpu.find(part.section) if part.section else gpu
    # PARTS lists a needed section as a part of its own, so its parts are not reported, too. If "N/A" is all
    # that a section has, the driver printed it in place of the parts.
    if section is None or (not section.children and "".join(section.text).strip()):
        return True
    positions = (section.find(tag) for tag in part.tags)
    # The driver prints N/A for a missing value, so an empty field lost its text. Only the list of processes
    # may be empty.
    return any(
        position is not None
        and (position.children or "".join(position.text).strip() or part.tags == ("processes",))
        for position in positions
    )


def missing_parts(gpu: Described, driver: float | None) -> list[str]:
    """Return the missing parts of a GPU's description.

    Args:
        gpu: The description of the GPU.
        driver: The first number of the driver's version, or None if unknown, which is treated as new.
    """
    name = gpu.get("product_name")
    return [
        part.paths[0]
        for part in PARTS
        if (driver is None or driver >= part.since_driver)
        and (not part.models or is_one_of(name, part.models))
        and not _is_printed(gpu, part)
    ]


@lru_cache(maxsize=64)
def known_readings(
    name: str, driver: float | None, *, mig: str = "", ecc: str = ""
) -> tuple[KnownReading, ...]:
    """Return the readings that a GPU must have because of its model.

    The driver shows less of a GPU that is divided (MIG), or a part of another GPU. It counts no errors while
    ECC is off, which is a finding of its own.

    Args:
        name: The product name of the GPU.
        driver: The first number of the driver's version, or None if unknown, which is treated as new.
        mig: Whether MIG is on, as nvidia-smi prints it.
        ecc: Whether ECC is on, as nvidia-smi prints it.
    """
    if mig == "Enabled" or ecc == "Disabled" or is_virtual(name):
        return ()
    return tuple(
        reading
        for reading in KNOWN_READINGS
        if is_one_of(name, reading.models)
        and (driver is None or driver >= reading.since_driver)
        and (reading.of_cards or not is_card(name))
    )


def not_available(gpu: Described, driver: float | None) -> list[str]:
    """Return the paths of the readings with N/A that every GPU of the model has.

    Args:
        gpu: The description of the GPU.
        driver: The first number of the driver's version, or None if unknown.
    """
    known = known_readings(
        gpu.get("product_name"),
        driver,
        mig=gpu.get("mig_mode/current_mig"),
        ecc=gpu.get("ecc_mode/current_ecc"),
    )
    return [
        reading.paths[0]
        for reading in known
        if reading.paths
        and not any(gpu.get(path) for path in reading.paths)
        and any(_is_printed_empty(gpu, path) for path in reading.paths)
    ]


def _is_printed_empty(gpu: Described, path: str) -> bool:
    """Return whether a text without a value is printed at a path, or in place of a section above it."""
    while path:
        if (element := gpu.find(path)) is not None:
            return not element.children and bool("".join(element.text).strip())
        path = path.rpartition("/")[0]
    return False


def readings_to_compare(gpu: Described) -> list[str]:
    """Return the printed lines and the judged values of a GPU, for :func:`lacking_beside`.

    One driver prints the same lines for each GPU of a model, with N/A if it has no value.
    """
    # A line with N/A in place of a value is still printed, so lines and values are compared separately.
    return [*_printed_paths(gpu), *(f"value of {path}" for path in _JUDGED_PATHS if gpu.get(path))]


def _printed_paths(element: Described, above: str = "", level: int = 1) -> Iterator[str]:
    """Yield the path of each element that is printed, without the content of lists."""
    for child in element.children:
        path = f"{above}{child.tag[:_LONGEST_TAG]}"
        yield path
        if child.tag not in _LISTS and level < _MOST_LEVELS:
            yield from _printed_paths(child, f"{path}/", level + 1)


def lacking_beside(gpus: Sequence[tuple[str, Collection[str]]]) -> Iterator[tuple[int, list[str]]]:
    """Yield each GPU that lacks readings of another GPU of its product: its index, and these readings.

    Args:
        gpus: The product name and the readings of each GPU.
    """
    others_readings: dict[str, dict[str, None]] = {}
    for name, readings in gpus:
        others_readings.setdefault(name, {}).update(dict.fromkeys(readings))
    for index, (name, readings) in enumerate(gpus):
        if lacking := [reading for reading in others_readings[name] if reading not in readings]:
            yield index, lacking
