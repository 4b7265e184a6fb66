"""Recognize the values of GPUs that nvidia-smi prints: numbers, and the words that checks know.

A check reads a value as a number or as a word. Any other text, such as ``Unknown`` in place of a count of
errors, may hide a fault, so it is unproven. The parsers of all notations and the snapshots of nodes use the
same tables. nvidia-smi prints ``N/A`` for a reading that a GPU lacks. The module does no I/O.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from rackproof.logs.gpu_description import Described

_YES_NO, _ON_OFF = frozenset({"Yes", "No"}), frozenset({"Enabled", "Disabled"})
_COMPUTE_MODES = frozenset(
    {
        *("Default", "Prohibited", "Exclusive_Process", "Exclusive_Thread"),
        *("Exclusive Process", "Exclusive Thread"),
    }
)
WORDS: Mapping[str, frozenset[str]] = {
    "ecc_mode/current_ecc": _ON_OFF,
    "ecc_mode/pending_ecc": _ON_OFF,
    "mig_mode/current_mig": _ON_OFF,
    "mig_mode/pending_mig": _ON_OFF,
    "compute_mode": _COMPUTE_MODES,
    "persistence_mode": _ON_OFF,
    "ecc_errors/unrepairable_memory": _YES_NO,
    "ecc_errors/channel_repair_pending": _YES_NO,
    "ecc_errors/tpc_repair_pending": _YES_NO,
    "ecc_errors/aggregate/sram_threshold_exceeded": _YES_NO,
    "remapped_rows/remapped_row_pending": _YES_NO,
    "remapped_rows/remapped_row_failure": _YES_NO,
}
"""Words that checks recognize, by path. Any other word is unproven until it is listed here."""
COLUMN_WORDS: Mapping[str, frozenset[str]] = {
    "ecc.mode.current": _ON_OFF,
    "ecc.mode.pending": _ON_OFF,
    "mig.mode.current": _ON_OFF,
    "mig.mode.pending": _ON_OFF,
    "compute_mode": _COMPUTE_MODES,
    "persistence_mode": _ON_OFF,
    "inforom.checksum_validation": frozenset({"valid", "invalid"}),
}
"""The same words by the column of a query."""
NOT_REPORTED = ("", "Not Supported", "Requested functionality has been deprecated")
"""Texts in place of a reading that a GPU or a driver lacks, besides ``N/A``."""

_LISTS = frozenset({"processes", "accounted_processes", "mig_devices", "mig_device", "supported_clocks"})
"""Elements that contain no reading of the GPU as a whole, or names of programs."""
_COUNTED = re.compile(
    r"ecc_errors/(?:volatile|aggregate|aggregate_uncorrectable_sram_sources)/.*"
    r"|remapped_rows/(?:remapped_row_(?:corr|unc)|correctable_error|uncorrectable_error|.*histogram/).*"
    r"|retired_pages/(?:.*/retired_count|(?:single|double)_bit_ecc)"
    r"|pci/replay_counter|pci/pci_gpu_link_info/(?:pcie_gen|link_widths)/.*"
)
"""Pattern of the paths of whole numbers."""
_MEASURED = re.compile(
    r"(?:gpu_)?power_readings/.*power_(?:draw|limit)|(?:max_|applications_)?clocks/.*"
    r"|(?:fb|bar1)_memory_usage/.*|utilization/(?:gpu|memory)_util"
)
"""Pattern of the paths of numbers from 0 on."""
_COUNT = re.compile(r"\d{1,18}(?:x| bank\(s\))?")
_MICROSECONDS = re.compile(r"\d{1,18} us")
_NUMBER = re.compile(r"\d{1,18}(?:\.\d{1,9})?(?: [A-Za-z%/]{1,6})?")


def is_count(text: str) -> bool:
    """Return whether a text is a whole number that counts something (``0``, ``16x``, ``640 bank(s)``)."""
    return _COUNT.fullmatch(text) is not None


def is_number(text: str) -> bool:
    """Return whether a text is a number from 0 on, with or without a unit (``77.49 W``)."""
    return _NUMBER.fullmatch(text) is not None


def _is_unknown(path: str, text: str) -> bool:
    """Return whether the text at a path is not a value of the kind that checks read there."""
    if path in WORDS:
        return bool(text) and text not in WORDS[path]
    return text not in NOT_REPORTED and not _has_form(path, text)


def _has_form(path: str, text: str) -> bool:
    """Return whether the text at a path is a number, or is at a path where no check reads a number."""
    if path.startswith("temperature/"):
        # The distance to a limit may be negative.
        return is_number(text.removeprefix("-"))
    if path.startswith("clocks_event_reasons_counters/"):
        return _MICROSECONDS.fullmatch(text) is not None
    if _COUNTED.fullmatch(path):
        return is_count(text)
    return _MEASURED.fullmatch(path) is None or is_number(text)


def unknown_values(gpu: Described, above: str = "") -> Iterator[tuple[str, str]]:
    """Yield path and text of each value of a GPU that is neither a number nor a word that checks know."""
    for child in gpu.children:
        path = f"{above}{child.tag}"
        if child.children:
            yield from () if child.tag in _LISTS else unknown_values(child, f"{path}/")
            continue
        # nvidia-smi prints N/A for a missing value, so an empty field lost its text.
        text = gpu.get(child.tag) if "".join(child.text).strip() else "empty"
        if _is_unknown(path, text):
            yield path, text
