"""nvidia-smi: ``-q`` as XML and text, ``--query-gpu=… --format=csv``, ``nvlink --status`` and ``topo -m``."""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import ClassVar
from xml.parsers import expat

from rackproof.core.records import Direction, Gpu, Measurement, ParsedLog, Verdict
from rackproof.logs._reading import Log, LogParser, clean, number

MAX_XML = 32 << 20
MAX_DEPTH = 40
MAX_ELEMENTS = 200_000
MAX_GPUS = 1024
_UNIT = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}


@dataclass(slots=True)
class _Element:
    tag: str
    line: int
    attributes: dict[str, str]
    children: list[_Element] = field(default_factory=list)
    text: list[str] = field(default_factory=list)

    def find(self, path: str) -> _Element | None:
        """Return the first element at a path of tags."""
        here: _Element | None = self
        for tag in path.split("/"):
            here = next((one for one in here.children if one.tag == tag), None) if here else None
        return here

    def get(self, path: str) -> str:
        """Return the cleaned text at a path; "" for an absent element and for ``N/A``."""
        found = self.find(path)
        text = clean("".join(found.text)[:2000]) if found else ""
        return "" if text in ("N/A", "[N/A]") else text


class _RefusedError(ValueError):
    """The document is well-formed, perhaps, but not one that is to be read."""


def _read_xml(data: bytes) -> _Element:
    """Parse XML without entities, without anything external, bounded in depth and number of elements.

    Raises:
        ValueError: it cannot be parsed, or is refused.
    """
    if len(data) > MAX_XML:
        raise _RefusedError(f"more than {MAX_XML >> 20} MiB of XML")
    root = _Element("", 0, {})
    stack = [root]
    count = 0
    parser = expat.ParserCreate()
    parser.SetParamEntityParsing(expat.XML_PARAM_ENTITY_PARSING_NEVER)

    def refuse(*_: object) -> None:
        raise _RefusedError("entity declarations are refused")

    def start(tag: str, attributes: dict[str, str]) -> None:
        nonlocal count
        count += 1
        if count > MAX_ELEMENTS or len(stack) > MAX_DEPTH:
            raise _RefusedError("too many or too deeply nested elements")
        element = _Element(tag, parser.CurrentLineNumber, attributes)
        stack[-1].children.append(element)
        stack.append(element)

    def end(_tag: str) -> None:
        stack.pop()

    def text(words: str) -> None:
        if words.strip() and len(stack[-1].text) < 100:
            stack[-1].text.append(words)

    parser.EntityDeclHandler = refuse
    parser.StartElementHandler = start
    parser.EndElementHandler = end
    parser.CharacterDataHandler = text
    try:
        parser.Parse(data, True)
    except expat.ExpatError as error:
        raise ValueError(f"not well-formed: {error}") from error
    return root


def _size(text: str) -> int:
    """Return bytes of ``143771 MiB``; 0 where it is no size."""
    found = re.fullmatch(r"(\d{1,15}) (B|KiB|MiB|GiB|TiB)", text)
    return int(found[1]) * _UNIT[found[2]] if found else 0


def _leading(text: str) -> float | None:
    """Return the number that a value begins with (``38 C``, ``1400.00 W``, ``16x``), if any."""
    return number(text.split(" ")[0].removesuffix("x")) if text else None


def _gpus_of(root: _Element) -> list[tuple[Gpu, _Element]]:
    log = root.find("nvidia_smi_log")
    if log is None:
        raise ValueError("no nvidia_smi_log element")
    found: list[tuple[Gpu, _Element]] = []
    for element in log.children:
        if element.tag != "gpu":
            continue
        if len(found) >= MAX_GPUS:
            raise _RefusedError("too many GPUs")
        gpu = Gpu(
            index=len(found),
            uuid=element.get("uuid"),
            name=element.get("product_name"),
            serial=element.get("serial"),
            bus_id=clean(element.attributes.get("id", "")),
            vbios=element.get("vbios_version"),
            memory_bytes=_size(element.get("fb_memory_usage/total")),
            power_limit_w=_power_limit(element),
        )
        found.append((gpu, element))
    return found


def _power_limit(element: _Element) -> float | None:
    """Return a GPU's power limit in watts; drivers have moved it twice."""
    for path in (
        "gpu_power_readings/current_power_limit",
        "gpu_power_readings/power_limit",
        "power_readings/power_limit",
    ):
        limit = _leading(element.get(path))
        if limit is not None and math.isfinite(limit):
            return limit
    return None


def read_gpus(data: bytes) -> tuple[Gpu, ...]:
    """Return the GPUs in the XML of ``nvidia-smi -q -x``, in its order.

    Args:
        data: the whole document. It may be hostile: entity declarations and excessive sizes are refused.

    Raises:
        ValueError: the document cannot be read; the message names the reason.
    """
    return tuple(gpu for gpu, _element in _gpus_of(_read_xml(data)))


def read_gpu_texts(data: bytes) -> tuple[tuple[Gpu, Callable[[str], str], tuple[str, ...]], ...]:
    """Return the GPUs as :func:`read_gpus` does, each with what gives the text at a path, and unknown values.

    The text at a path of tags is cleaned; "" for what is absent or ``N/A``. Unknown values are those of
    :func:`_unknown_values`.

    Args:
        data: the whole document.

    Raises:
        ValueError: the document cannot be read; the message names the reason.
    """
    return tuple(
        (gpu, element.get, tuple(_unknown_values(element))) for gpu, element in _gpus_of(_read_xml(data))
    )


RECOVERY_WORDS = ("reset", "reboot", "drain")
"""A recovery action that the driver asks for has one of these: GPU Reset, Node Reboot, Drain P2P."""


def recovery_verdict(action: str) -> Verdict | None:
    """Return what a GPU's recovery action means, None where it needs none; an unknown one is unproven."""
    if action.lower() in ("", "none"):
        return None
    return Verdict.FAIL if any(word in action.lower() for word in RECOVERY_WORDS) else Verdict.UNPROVEN


def fabric_fault(state: str, status: str) -> tuple[str, str] | None:
    """Return code and words of what keeps a GPU out of its NVLink fabric, None where nothing does."""
    if state not in ("", "Completed", "Not Supported"):
        return "fabric_incomplete", f"fabric is {state:.40}: does the fabric manager run?"
    if status not in ("", "Success", "Not Supported"):
        return "fabric_failed", f"the fabric's status is {status:.40}"
    return None


def is_fabric_unhealthy(summary: str) -> bool:
    """Return whether the fabric's health is none that a GPU at work has."""
    return summary not in ("", "Healthy", "Not Supported")


_YES_NO, _ON_OFF = frozenset({"Yes", "No"}), frozenset({"Enabled", "Disabled"})
_WORDS: Mapping[str, frozenset[str]] = {
    "ecc_mode/current_ecc": _ON_OFF,
    "ecc_mode/pending_ecc": _ON_OFF,
    "mig_mode/current_mig": _ON_OFF,
    "ecc_errors/unrepairable_memory": _YES_NO,
    "ecc_errors/channel_repair_pending": _YES_NO,
    "ecc_errors/tpc_repair_pending": _YES_NO,
    "ecc_errors/aggregate/sram_threshold_exceeded": _YES_NO,
    "remapped_rows/remapped_row_pending": _YES_NO,
    "remapped_rows/remapped_row_failure": _YES_NO,
}
"""Words that checks know, by path. What else stands there is no good value until somebody has looked."""
_WELL = frozenset(
    {
        *("", "No", "None", "False", "Full", "Not Supported"),
        "Requested functionality has been deprecated",
    }
)
"""Words of a reading that no check knows, and that says of itself that nothing is wrong."""
_SCANNED = (
    "ecc_errors",
    "remapped_rows",
    "gpu_reset_status",
    "retired_pages",
)
_HEALTH = "fabric/health"
"""Sections in which a driver to come may report a fault under a new name."""
_LISTS = ("summary", "partition_assigned", "remapped_row_histogram")
_REASONS = ("clocks_event_reasons", "clocks_throttle_reasons")
_KNOWN_REASONS = frozenset(
    {
        *("gpu_idle", "idle", "applications_clocks_setting", "sw_power_cap", "sw_power_capping"),
        *("hw_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown", "hw_power_brake"),
        *("sync_boost", "sw_thermal_slowdown", "display_clocks_setting", "display_clock_setting"),
    }
)


def _unknown_values(gpu: _Element) -> Iterator[str]:
    """Yield as ``path: words`` what a GPU's description says in words that no check knows."""
    for path, known in _WORDS.items():
        text = gpu.get(path)
        if text and text not in known:
            yield f"{path}: {text:.60}"
    # A health that is none has a finding, of which its parts only say more.
    is_told = is_fabric_unhealthy(gpu.get("fabric/health/summary"))
    for section in _SCANNED if is_told else (*_SCANNED, _HEALTH):
        for tag, text in _plain_children(gpu, section):
            is_known = f"{section}/{tag}" in _WORDS or text in _WELL or _leading(text) is not None
            if not is_known and tag not in _LISTS:
                yield f"{section}/{tag}: {text:.60}"
    for section in _REASONS:
        for tag, text in _plain_children(gpu, section):
            reason = tag.removeprefix("clocks_event_reason_").removeprefix("clocks_throttle_reason_")
            is_known = text == "Active" and reason in _KNOWN_REASONS
            if text not in ("", "Not Active") and not is_known:
                yield f"{section}/{reason}: {text:.60}"


def _plain_children(gpu: _Element, section: str) -> Iterator[tuple[str, str]]:
    """Yield tag and text of a section's elements that have no others below them."""
    found = gpu.find(section)
    for child in found.children if found else ():
        if not child.children:
            yield child.tag, found.get(child.tag) if found else ""


class _Whole(LogParser):
    """Gathers a document of bounded size."""

    def __init__(self, log: Log) -> None:
        super().__init__(log)
        self.data = bytearray()

    def block(self, data: bytes) -> None:
        """Keep the block; past the limit only the fact that there was more."""
        if len(self.data) <= MAX_XML:
            self.data += data


class NvidiaSmiXmlParser(_Whole):
    """``nvidia-smi -q -x``."""

    format: ClassVar[str] = "nvidia_smi_xml"
    description: ClassVar[str] = "nvidia-smi -q -x"

    @staticmethod
    def recognises(head: bytes) -> bool:
        """Whether the bytes begin the XML of nvidia-smi."""
        return b"<nvidia_smi_log" in head or b"<!DOCTYPE nvidia_smi_log" in head

    def finish(self) -> ParsedLog:
        """Return temperatures, power, memory and errors of every GPU."""
        log = self.log
        measurements: list[Measurement] = []
        data = bytes(self.data)
        begin = max(data.find(b"<?xml"), 0)
        for at, raw in enumerate(data[:begin].split(b"\n")[:1000], start=1):
            _find_no_answer(log, at, raw[:2000].decode("utf-8", "replace"))
        try:
            root = _read_xml(data[begin:])
            gpus = _gpus_of(root)
        except ValueError as error:
            log.find("damaged_xml", str(error), Verdict.UNPROVEN)
            return log.parsed(self.format, Verdict.UNPROVEN, [])
        self.report(root, gpus, measurements)
        return log.parsed(self.format, Verdict.PASS, measurements)

    def report(
        self, root: _Element, gpus: list[tuple[Gpu, _Element]], measurements: list[Measurement]
    ) -> None:
        """Add measurements and findings of one report on all GPUs."""
        log = self.log
        top = root.find("nvidia_smi_log") or root
        log.tag("driver_version", top.get("driver_version"))
        log.tag("cuda_version", top.get("cuda_version"))
        log.tag("gpus", len(gpus))
        if gpus:
            log.tag("device", gpus[0][0].name)
        attached = _leading(top.get("attached_gpus"))
        if not gpus or attached != len(gpus):
            log.find(
                "gpu_missing", f"{len(gpus)} GPUs described, {attached or 0:.0f} attached", Verdict.UNPROVEN
            )
        seen: set[str] = set()
        for gpu, element in gpus:
            if gpu.uuid in seen:
                _find_twice(log, element.line, gpu.uuid, gpu.uuid)
            seen.add(gpu.uuid)
            self.one(gpu, element, measurements)

    def one(self, gpu: Gpu, element: _Element, measurements: list[Measurement]) -> None:
        """Add measurements and findings of one GPU."""
        log = self.log
        if not gpu.uuid.startswith("GPU-"):
            log.find("gpu_lost", f"GPU {gpu.index} has no UUID", Verdict.UNPROVEN, line=element.line)
        labels = {"gpu": gpu.uuid, "index": str(gpu.index)}
        for name, unit, direction, paths in _XML_VALUES:
            read = _first_value(element, paths)
            if read is not None:
                figure, line = read
                measurements.append(self.measure(name, figure, unit, direction, line, labels=labels))
        self.state(gpu, element)
        for path, code, verdict, message in _XML_FAULTS:
            text = element.get(path)
            value = _leading(text)
            # A fault is a count, or a plain "Yes".
            if text == "Yes" or (value is not None and value > 0):
                place = element.find(path)
                log.find(
                    code,
                    f"GPU {gpu.index} {gpu.uuid}: {message} ({text})",
                    verdict,
                    line=place.line if place else None,
                )

    def state(self, gpu: Gpu, element: _Element) -> None:
        """Judge what the driver asks for, what slows the GPU down, and values that are an error's text."""
        log = self.log
        wanted = element.find("gpu_recovery_action")
        action = element.get("gpu_recovery_action")
        if wanted is not None and (verdict := recovery_verdict(action)):
            message = f"GPU {gpu.index} {gpu.uuid}: the driver asks for: {action}"
            log.find("recovery_action", message, verdict, line=wanted.line)
        self._fabric(gpu, element)
        for unknown in _unknown_values(element):
            message = f"GPU {gpu.index} {gpu.uuid}: a value that no check knows: {unknown}"
            log.find("gpu_value_unknown", message, Verdict.UNPROVEN, line=element.line)
        for path in _SLOWED:
            if element.get(path) == "Active":
                message = f"GPU {gpu.index} {gpu.uuid}: slowed down ({path.rpartition('/')[2]})"
                log.find("slowed_down", message, Verdict.DEGRADED, line=element.line)
        for name, _unit, _direction, paths in _XML_VALUES:
            text = next((text for path in paths if (text := element.get(path))), "")
            value = _leading(text)
            # Other words are the driver's, where it has no such value.
            if _NO_ANSWER.search(text) or (name == "gpu_temperature" and not _is_temperature(value, text)):
                message = f"GPU {gpu.index} {gpu.uuid}: {name} is {text:.60}"
                log.find("impossible_value", message, Verdict.UNPROVEN, line=element.line)

    def _fabric(self, gpu: Gpu, element: _Element) -> None:
        """Judge whether a GPU is a member of its NVLink fabric, and how that is."""
        place = element.find("fabric")
        line = place.line if place else element.line
        if fault := fabric_fault(element.get("fabric/state"), element.get("fabric/status")):
            fabric_code, words = fault
            self.log.find(fabric_code, f"GPU {gpu.index} {gpu.uuid}: {words}", Verdict.FAIL, line=line)
        summary = element.get("fabric/health/summary")
        if is_fabric_unhealthy(summary):
            message = f"GPU {gpu.index} {gpu.uuid}: fabric health is {summary:.40}"
            self.log.find("fabric_unhealthy", message, Verdict.FAIL, line=line)


def _is_temperature(value: float | None, text: str) -> bool:
    return not text or (value is not None and _COLDEST <= value <= _HOTTEST)


def _first_value(element: _Element, paths: tuple[str, ...]) -> tuple[float, int] | None:
    """Return the value at the first path that has one, with its line."""
    for path in paths:
        value = _leading(element.get(path))
        if value is not None:
            place = element.find(path)
            return value, place.line if place else element.line
    return None


_LOWER = Direction.LOWER
_COLDEST, _HOTTEST = -55.0, 150.0
"""What a GPU's sensor can show, in degrees Celsius."""
_SLOWED = tuple(
    f"{section}/{name}"
    for section, prefix in (
        ("clocks_event_reasons", "clocks_event_reason_"),
        ("clocks_throttle_reasons", "clocks_throttle_reason_"),
    )
    for reason in ("hw_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown", "sw_thermal_slowdown")
    for name in (f"{prefix}{reason}", reason)
) + tuple(
    f"{section}/hw_slowdown/{reason}"
    for section in ("clocks_event_reasons", "clocks_throttle_reasons")
    for reason in ("hw_thermal_slowdown", "hw_power_brake_slowdown")
)
"""Where the XML, old and new, and the text have why a GPU is slower than it was asked to be."""
_XML_VALUES: tuple[tuple[str, str, Direction | None, tuple[str, ...]], ...] = (
    ("gpu_temperature", "C", _LOWER, ("temperature/gpu_temp",)),
    ("gpu_temperature_margin", "C", Direction.HIGHER, ("temperature/gpu_temp_tlimit",)),
    (
        "gpu_power",
        "W",
        None,
        (
            "gpu_power_readings/instant_power_draw",
            "gpu_power_readings/power_draw",
            "power_readings/power_draw",
        ),
    ),
    ("gpu_memory_used", "MiB", _LOWER, ("fb_memory_usage/used",)),
    ("gpu_sm_clock", "MHz", None, ("clocks/sm_clock",)),
    ("pcie_link_generation", "", None, ("pci/pci_gpu_link_info/pcie_gen/current_link_gen",)),
    ("pcie_link_width", "", None, ("pci/pci_gpu_link_info/link_widths/current_link_width",)),
)
_XML_FAULTS: tuple[tuple[str, str, Verdict, str], ...] = (
    ("ecc_errors/volatile/sram_uncorrectable_parity", "ecc_uncorrected", Verdict.FAIL, "SRAM parity errors"),
    (
        "ecc_errors/volatile/sram_uncorrectable_secded",
        "ecc_uncorrected",
        Verdict.FAIL,
        "SRAM uncorrectable errors",
    ),
    ("ecc_errors/volatile/sram_uncorrectable", "ecc_uncorrected", Verdict.FAIL, "SRAM uncorrectable errors"),
    (
        "ecc_errors/aggregate/sram_threshold_exceeded",
        "ecc_uncorrected",
        Verdict.FAIL,
        "SRAM error threshold exceeded",
    ),
    (
        "ecc_errors/volatile/dram_uncorrectable",
        "ecc_dram_uncorrected",
        Verdict.DEGRADED,
        "DRAM uncorrectable errors",
    ),
    ("ecc_errors/unrepairable_memory", "memory_unrepairable", Verdict.FAIL, "unrepairable memory"),
    ("ecc_errors/channel_repair_pending", "repair_pending", Verdict.FAIL, "a channel repair is pending"),
    ("ecc_errors/tpc_repair_pending", "repair_pending", Verdict.FAIL, "a TPC repair is pending"),
    (
        "remapped_rows/remapped_row_pending",
        "remap_pending",
        Verdict.FAIL,
        "a row remap waits for a reset",
    ),
    ("remapped_rows/remapped_row_failure", "remap_failure", Verdict.FAIL, "a row could not be remapped"),
)

_TEXT_LINE = re.compile(r"^( *)(\S.{0,200}?) *(?:(?<= ): ?(.*))?$")
_TEXT_GPU = re.compile(r"^GPU ([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9A-Fa-f])\s*$")
_TEXT_TAGS: dict[str, dict[str, str]] = {
    # parent's tag: name in the text, with underscores, and the tag in the XML where it is another
    "gpu": {"serial_number": "serial", "gpu_uuid": "uuid"},
    "temperature": {
        "gpu_current_temp": "gpu_temp",
        "gpu": "gpu_temp",
        "gpu_t_limit_temp": "gpu_temp_tlimit",
    },
    "gpu_power_readings": {"instantaneous_power_draw": "instant_power_draw"},
    "clocks": {"sm": "sm_clock"},
    "pci": {"gpu_link_info": "pci_gpu_link_info"},
    "pci_gpu_link_info": {"pcie_generation": "pcie_gen", "link_width": "link_widths"},
    "pcie_gen": {"current": "current_link_gen"},
    "link_widths": {"current": "current_link_width"},
    "volatile": {"sram_uncorrectable_sec_ded": "sram_uncorrectable_secded"},
    "aggregate": {"sram_uncorrectable_sec_ded": "sram_uncorrectable_secded"},
    "remapped_rows": {
        "pending": "remapped_row_pending",
        "remapping_failure_occurred": "remapped_row_failure",
    },
}
_BANNER = b"==NVSMI LOG=="


def _read_text(lines: list[tuple[int, str]]) -> _Element:
    """Return the tree that ``-q`` shows by indentation, with the tags of the XML.

    Raises:
        ValueError: it is refused.
    """
    top = _Element("nvidia_smi_log", lines[0][0] if lines else 1, {})
    stack: list[tuple[int, _Element]] = [(-1, top)]
    if len(lines) > MAX_ELEMENTS:
        raise _RefusedError("more lines than nvidia-smi writes")
    for at, text in lines:
        found = _TEXT_LINE.match(text.rstrip())
        if found is None:
            continue
        depth = len(found[1])
        while stack[-1][0] >= depth:
            stack.pop()
        parent = stack[-1][1]
        gpu = _TEXT_GPU.match(text)
        name = re.sub(r"[^a-z0-9]+", "_", found[2].lower()).strip("_")
        tag = "gpu" if gpu else _TEXT_TAGS.get(parent.tag, {}).get(name, name)
        element = _Element(tag, at, {"id": gpu[1]} if gpu else {}, text=[found[3] or ""])
        parent.children.append(element)
        if len(stack) <= MAX_DEPTH:
            stack.append((depth, element))
    return _Element("", 0, {}, children=[top])


class NvidiaSmiTextParser(NvidiaSmiXmlParser):
    """``nvidia-smi -q`` as text, once or in a loop."""

    format: ClassVar[str] = "nvidia_smi_text"
    description: ClassVar[str] = "nvidia-smi -q"

    @staticmethod
    def recognises(head: bytes) -> bool:
        """Whether the bytes hold the banner of nvidia-smi's text."""
        return _BANNER in head

    def finish(self) -> ParsedLog:
        """Return temperatures, power, memory and errors of every GPU of every report."""
        log = self.log
        measurements: list[Measurement] = []
        reports = self._reports()
        if not reports:
            log.find("no_rows", "no report of nvidia-smi", Verdict.UNPROVEN)
        try:
            for lines in reports:
                root = _read_text(lines)
                gpus = _gpus_of(root)
                self._judge_whole(gpus)
                self.report(root, gpus, measurements)
        except ValueError as error:
            log.find("damaged_text", str(error), Verdict.UNPROVEN)
        if log.ends_in_line:
            log.find("cut_off", "the text ends in mid-line", Verdict.UNPROVEN, line=log.lines + 1)
        return log.parsed(self.format, Verdict.PASS if reports else Verdict.UNPROVEN, measurements)

    def _reports(self) -> list[list[tuple[int, str]]]:
        """Return the numbered lines of each report; note GPUs that do not answer."""
        reports: list[list[tuple[int, str]]] = []
        for at, raw in enumerate(bytes(self.data).split(b"\n"), start=1):
            text = raw[:2000].decode("utf-8", "replace").rstrip("\r")
            if _BANNER.decode() in text:
                reports.append([])
            elif not _find_no_answer(self.log, at, text) and reports and text.strip():
                reports[-1].append((at, text))
        if len(self.data) > MAX_XML:
            self.log.find("too_large", "more text than is read", Verdict.UNPROVEN)
        return reports

    def _judge_whole(self, gpus: list[tuple[Gpu, _Element]]) -> None:
        """Every GPU has the same sections, up to the last one: nothing else marks the end."""
        sections = {frozenset(one.tag for one in element.children) for _gpu, element in gpus}
        if len(sections) > 1 or not all("processes" in tags for tags in sections):
            message = "a GPU's description is not whole (of `nvidia-smi -q` without -d)"
            self.log.find("cut_off", message, Verdict.UNPROVEN)


_NO_ANSWER = re.compile(
    r"ERR!|GPU is lost|Unknown Error|Unable to determine the device handle|Failed to initialize NVML"
    r"|No devices were found|NVIDIA-SMI has failed|RmInitAdapter failed",
    re.IGNORECASE,
)
"""What nvidia-smi prints in the place of a GPU or of all: above, in or below what it prints of the others."""


def _find_no_answer(log: Log, at: int, text: str) -> bool:
    """Note a line in which nvidia-smi states that a GPU does not answer; return whether it is one."""
    if not _NO_ANSWER.search(text):
        return False
    log.find("gpu_lost", "a GPU does not answer", Verdict.FAIL, line=at, excerpt=text)
    return True


def _find_twice(log: Log, at: int, what: str, text: str) -> None:
    """Note a GPU or a link that a list has twice: it hides another one, or two lists were put together."""
    log.find("gpu_twice", f"{what} is listed twice", Verdict.UNPROVEN, line=at, excerpt=text)


_CSV_KEYS = frozenset({"index", "uuid", "gpu_uuid", "pci.bus_id", "gpu_bus_id"})
_CSV_NAMED = re.compile(r"[0-9A-Za-z]")
"""How what names a GPU begins, unlike `[N/A]`."""
_TO_THE_SECOND = len("2024/01/31 12:00:00")
_CSV_NAMES = {
    "temperature.gpu": ("gpu_temperature", _LOWER),
    "power.draw": ("gpu_power", None),
    "memory.used": ("gpu_memory_used", _LOWER),
    "clocks.current.sm": ("gpu_sm_clock", None),
    "pcie.link.gen.current": ("pcie_link_generation", None),
    "pcie.link.width.current": ("pcie_link_width", None),
}
_CSV_HEAD = re.compile(
    rb"(?:\A|\n)(?:index|name|uuid|timestamp|count|gpu_name|gpu_uuid)"
    rb"(?:, [a-z0-9_.]+(?: \[[^\]\n]{1,20}\])?){1,200}\r?\n"
)


class NvidiaSmiCsvParser(LogParser):
    """``nvidia-smi --query-gpu=… --format=csv`` with its header line."""

    format: ClassVar[str] = "nvidia_smi_csv"
    description: ClassVar[str] = "nvidia-smi --query-gpu=… --format=csv"

    @staticmethod
    def recognises(head: bytes) -> bool:
        """Whether the bytes hold the header line of a query."""
        return _CSV_HEAD.search(head) is not None

    def __init__(self, log: Log) -> None:
        super().__init__(log)
        self.columns: list[tuple[str, str]] = []
        self.moment = ""
        self.seen: set[tuple[str, str]] = set()
        """What rows named GPUs by, of one second: column and value."""
        self.measurements: list[Measurement] = []
        self.rows = 0
        self.last_line = 0

    def line(self, at: int, text: str) -> None:
        """Read the header or a row."""
        if not text.strip():
            return
        self.last_line = at
        cells = [cell.strip() for cell in next(csv.reader([text]), [])]
        is_unanswered = _find_no_answer(self.log, at, text)
        if not self.columns:
            if not is_unanswered:
                self._header(cells)
            return
        if len(cells) != len(self.columns):
            self.log.find(
                "damaged_line",
                f"{len(cells)} values for {len(self.columns)} columns",
                Verdict.UNPROVEN,
                line=at,
                excerpt=text,
            )
            return
        self.rows += 1
        self.row(at, {name: cell for (name, _unit), cell in zip(self.columns, cells, strict=True)}, cells)

    def _header(self, cells: list[str]) -> None:
        """Take names and units of the columns from the header line; what comes before it is no table."""
        if "uuid" in cells or "index" in cells or "name" in cells:
            for cell in cells[:200]:
                found = re.fullmatch(r"([a-z0-9_.]{1,80})(?: \[([^\]]{1,20})\])?", cell)
                # Kept without a name, so that the cells of each row stay in their places.
                self.columns.append((found[1], found[2] or "") if found else ("", ""))

    def row(self, at: int, values: dict[str, str], cells: list[str]) -> None:
        """Take one GPU's values."""
        self._check_once(at, values)
        gpu = clean(values.get("uuid") or values.get("index") or str(self.rows - 1), 80)
        if values.get("name"):
            self.log.tag("device", values["name"])
        if values.get("driver_version"):
            self.log.tag("driver_version", values["driver_version"])
        for (name, unit), cell in zip(self.columns, cells, strict=True):
            value = _leading(cell)
            if value is not None and math.isfinite(value):
                self._cell(at, gpu, name, unit, value)

    def _check_once(self, at: int, values: dict[str, str]) -> None:
        """Note a GPU that a table has twice; a query in a loop lists it again, at another second."""
        moment = values.get("timestamp", "")[:_TO_THE_SECOND]
        if moment != self.moment:
            self.moment = moment
            self.seen.clear()
        for column in _CSV_KEYS & values.keys():
            place = column, values[column]
            if place in self.seen:
                _find_twice(self.log, at, f"{column} {place[1]}", ", ".join(values.values()))
            elif _CSV_NAMED.match(place[1]) and len(self.seen) < 20_000:
                self.seen.add(place)

    def _cell(self, at: int, gpu: str, name: str, unit: str, value: float) -> None:
        if "uncorrected.volatile" in name and value > 0:
            self.log.find("ecc_uncorrected", f"GPU {gpu}: {name} is {value:g}", Verdict.FAIL, line=at)
        known = _CSV_NAMES.get(name)
        # A query in a loop writes a table of any length.
        if known and len(self.measurements) < 20_000:
            measurement, direction = known
            self.measurements.append(
                self.measure(measurement, value, unit, direction, at, labels={"gpu": gpu})
            )

    def finish(self) -> ParsedLog:
        """Return the values."""
        if not self.rows:
            self.log.find("no_rows", "no GPU in the table", Verdict.UNPROVEN)
        elif self.log.ends_in_line:
            self.log.find("cut_off", "the table ends in mid-line", Verdict.UNPROVEN, line=self.last_line)
        self.log.tag("gpus", self.rows)
        return self.log.parsed(
            self.format, Verdict.PASS if self.rows else Verdict.UNPROVEN, self.measurements
        )


_GPU_LINE = re.compile(r"^GPU (\d{1,4}): (.{1,100}) \(UUID: (GPU-[0-9A-Fa-f-]{1,60})\)")
_LINK_LINE = re.compile(r"^\s*Link (\d{1,3}): (?:(\d[\d.]{0,20}) GB/s|(.{0,60}))\s*$")
_NVLINK_HEAD = re.compile(rb"GPU \d+: [^\n]{1,100} \(UUID: GPU-[^\n]{1,60}\)\s*\n\s+Link \d+: ")


class NvlinkStatusParser(LogParser):
    """``nvidia-smi nvlink --status``."""

    format: ClassVar[str] = "nvlink_status"
    description: ClassVar[str] = "nvidia-smi nvlink --status"

    @staticmethod
    def recognises(head: bytes) -> bool:
        """Whether the bytes hold a list of NVLinks."""
        return _NVLINK_HEAD.search(head) is not None

    def __init__(self, log: Log) -> None:
        super().__init__(log)
        self.links: dict[str, list[float]] = {}
        self.lines: dict[str, int] = {}
        self.indexes: set[str] = set()
        self.of_gpu: set[str] = set()
        """Links that the present GPU's list has."""
        self.uuid = ""

    def line(self, at: int, text: str) -> None:
        """Read a GPU's heading or a link."""
        if found := _GPU_LINE.match(text):
            self.uuid = found[3]
            self.of_gpu.clear()
            if self.uuid in self.links or found[1] in self.indexes:
                _find_twice(self.log, at, f"{self.uuid} ({found[1]})", text)
            self.indexes.add(found[1])
            if len(self.links) < MAX_GPUS:
                self.links.setdefault(self.uuid, [])
                self.lines.setdefault(self.uuid, at)
            self.log.tag("device", found[2])
        elif (found := _LINK_LINE.match(text)) and self.uuid in self.links:
            if found[1] in self.of_gpu:
                _find_twice(self.log, at, f"{self.uuid}, link {found[1]}", text)
            self.of_gpu.add(found[1])
            speed = number(found[2])
            if speed is None or speed <= 0:
                self.log.find(
                    "nvlink_down",
                    f"link {found[1]} of {self.uuid} is down",
                    Verdict.FAIL,
                    line=at,
                    excerpt=text,
                )
            elif len(self.links[self.uuid]) < 200:
                self.links[self.uuid].append(speed)

    def finish(self) -> ParsedLog:
        """Return the number of links and their bandwidth (one direction) per GPU."""
        measurements = []
        for uuid, speeds in self.links.items():
            at = self.lines[uuid]
            measurements.append(
                self.measure(
                    "nvlink_links", float(len(speeds)), "", Direction.HIGHER, at, labels={"gpu": uuid}
                )
            )
            measurements.append(
                self.measure(
                    "nvlink_bandwidth", sum(speeds), "GB/s", Direction.HIGHER, at, labels={"gpu": uuid}
                )
            )
        if self.log.ends_in_line:
            self.log.find("cut_off", "the list ends in mid-line", Verdict.UNPROVEN)
        counts = {len(speeds) for speeds in self.links.values()}
        if not self.links or 0 in counts:
            self.log.find("nvlink_absent", "a GPU without NVLink, or no GPU", Verdict.UNPROVEN)
        elif len(counts) > 1:
            self.log.find(
                "nvlink_uneven", f"GPUs have different numbers of links: {sorted(counts)}", Verdict.FAIL
            )
        return self.log.parsed(self.format, Verdict.PASS if self.links else Verdict.UNPROVEN, measurements)


_TOPO_HEAD = re.compile(rb"\t(?:\x1b\[[0-9;]*m)?GPU0(?:\tGPU\d+)*\t")


class NvidiaSmiTopoParser(LogParser):
    """``nvidia-smi topo -m``: how each pair of GPUs is connected."""

    format: ClassVar[str] = "nvidia_smi_topo"
    description: ClassVar[str] = "nvidia-smi topo -m"

    @staticmethod
    def recognises(head: bytes) -> bool:
        """Whether the bytes hold a topology matrix."""
        return _TOPO_HEAD.search(head) is not None

    def __init__(self, log: Log) -> None:
        super().__init__(log)
        self.columns: list[str] = []
        self.pairs: dict[tuple[int, int], tuple[str, int]] = {}
        self.rows: set[int] = set()

    def block(self, data: bytes) -> None:
        """Read the lines; the columns are kept apart by tabs."""
        for offset, raw in enumerate(data.split(b"\n")):
            text = re.sub(r"\x1b\[[0-9;]*m", "", raw[:8192].decode("utf-8", "replace"))
            cells = [cell.strip() for cell in text.split("\t")]
            at = self.log.lines + offset + 1
            if not self.columns:
                if "GPU0" in cells:
                    self.columns = cells
            elif found := re.fullmatch(r"GPU(\d{1,4})", cells[0]):
                self._row(at, int(found[1]), cells)

    def _row(self, at: int, row: int, cells: list[str]) -> None:
        """Take how one GPU is connected to each other one."""
        self.rows.add(row)
        # The columns behind those of the GPUs are of NICs and of CPU affinity.
        for name, cell in zip(self.columns, cells, strict=False):
            other = re.fullmatch(r"GPU(\d{1,4})", name)
            if other and int(other[1]) != row and len(self.pairs) < 70_000:
                self.pairs[row, int(other[1])] = (clean(cell, 20), at)

    def finish(self) -> ParsedLog:
        """Return the NVLinks of each pair; pairs that differ from the others are found."""
        measurements = []
        for (first, second), (kind, at) in self.pairs.items():
            # Each pair is in the rows of both its GPUs.
            if first < second:
                self.log.tag(f"GPU{first}-GPU{second}", kind)
                links = number(kind[2:]) if kind.startswith("NV") else 0.0
                labels = {"pair": f"{first}-{second}"}
                measurements.append(
                    self.measure("nvlinks_between", links or 0.0, "", Direction.HIGHER, at, labels=labels)
                )
        self._judge_matrix()
        return self.log.parsed(self.format, Verdict.PASS if self.rows else Verdict.UNPROVEN, measurements)

    def _judge_matrix(self) -> None:
        """Note a matrix that is not whole, or pairs that are connected in different ways."""
        wanted = {int(name[3:]) for name in self.columns if re.fullmatch(r"GPU\d{1,4}", name)}
        kinds = {kind for kind, _at in self.pairs.values()}
        if not self.rows or self.rows != wanted or len(self.pairs) != len(wanted) * (len(wanted) - 1):
            self.log.find("cut_off", "the matrix is not whole", Verdict.UNPROVEN)
        # Without NVLink, pairs differ by the PCIe switch and socket that they are at.
        elif len(kinds) > 1 and any(kind.startswith("NV") for kind in kinds):
            self.log.find("topology_uneven", f"pairs differ: {', '.join(sorted(kinds))}", Verdict.DEGRADED)
