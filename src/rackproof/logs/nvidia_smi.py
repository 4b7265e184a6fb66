"""Parse ``nvidia-smi -q``, as XML (``-x``) and text, for logs, and for the facts and snapshots of nodes.

Both notations become one tree of elements with the tags of the XML. A path such as
``fb_memory_usage/total`` names the element in

    <gpu id="00000000:00:06.0"> … <fb_memory_usage><total>143771 MiB</total> … </fb_memory_usage> … </gpu>

A GPU that is divided by MIG shows its instances. The fabric is the network of NVSwitches.
:func:`rackproof.logs.parse` creates the parsers. Facts of nodes call :func:`read_gpus`, and snapshots call
:func:`read_gpu_texts`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain
from typing import ClassVar, NamedTuple
from xml.parsers import expat

from rackproof.core.gpu_models import MODELS_OF_DOMAINS, MOST_SLOWDOWN_S, is_one_of
from rackproof.core.records import Direction, Gpu, Measurement, ParsedLog, Verdict
from rackproof.core.text import amount
from rackproof.logs._nvidia_smi import (
    MAX_GPUS,
    GpuReadings,
    fabric_fault,
    find_lacking_readings,
    find_not_available,
    find_remark,
    find_twice,
    is_no_answer,
    is_possible,
    judge_gpu,
    judge_neighbours,
    leading,
    tag_moment,
)
from rackproof.logs._reading import Log, LogParser, clean
from rackproof.logs.clock_reasons import CLOCK_REASONS
from rackproof.logs.gpu_description import (
    lacking_beside,
    missing_parts,
    not_available,
    readings_to_compare,
)
from rackproof.logs.gpu_values import NOT_REPORTED, WORDS, unknown_values

MAX_XML = 32 << 20
"""Largest number of bytes of an answer, in XML or text."""
MAX_DEPTH = 40
MAX_ELEMENTS = 200_000
"""Limits for nested elements, and for all elements or lines of text."""
_MAX_REREAD = 512 << 10
"""Largest XML whose tree is kept for the next reader; a node with eight GPUs writes a third of it."""
DOUBLE_BIT = "ecc_errors/volatile/double_bit"
DOUBLE_BIT_SRAM = tuple(
    f"{DOUBLE_BIT}/{place}"
    for place in ("register_file", "l1_cache", "l2_cache", "texture_memory", "texture_shm", "cbu")
)
"""Errors of two bits, as V100 and older GPUs count them, except those of ``device_memory``."""
PENDING_PAGES = ("retired_pages/pending_retirement", "retired_pages/pending_blacklist")
"""Paths of the flag that a page of memory waits for a reset, of GPUs before A100."""
_UNIT = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}


@dataclass(slots=True)
class _Element:
    """An element of an answer, with its line, and the pieces of its text."""

    tag: str
    line: int
    attributes: dict[str, str]
    children: list[_Element] = field(default_factory=list)
    text: list[str] = field(default_factory=list)

    def find(self, path: str) -> _Element | None:
        """Return the first element at a path of tags."""
        element: _Element | None = self
        for tag in path.split("/"):
            element = (
                next((child for child in element.children if child.tag == tag), None) if element else None
            )
        return element

    def get(self, path: str) -> str:
        """Return the cleaned text at a path, or "" for a missing element or ``N/A``."""
        element = self.find(path)
        text = clean("".join(element.text)[:2000]) if element else ""
        return "" if text in ("N/A", "[N/A]") else text


class _RefusedError(ValueError):
    """An error for a document that must not be read, even if it is well-formed."""


def _read_xml(data: bytes, above: int) -> _Element:
    """Return an element above the root of a document, without entities or external content.

    Args:
        data: The document.
        above: The number of lines above it.

    Raises:
        ValueError: The document cannot be parsed, or is refused.
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
        element = _Element(tag, parser.CurrentLineNumber + above, attributes)
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
    except (expat.ExpatError, LookupError) as error:  # LookupError is for an unknown encoding
        raise ValueError(f"not well-formed: {error}") from error
    return root


def _size(text: str) -> int:
    """Return the bytes of a size such as ``143771 MiB``, or 0 if the text is not a size."""
    match = re.fullmatch(r"(\d{1,15}) (B|KiB|MiB|GiB|TiB)", text)
    return int(match[1]) * _UNIT[match[2]] if match else 0


def _gpus_of(root: _Element) -> list[tuple[Gpu, _Element]]:
    """Return each GPU with its element. Raise a ValueError without an answer, or for too many GPUs."""
    log = root.find("nvidia_smi_log")
    if log is None:
        raise ValueError("no nvidia_smi_log element")
    gpus: list[tuple[Gpu, _Element]] = []
    for element in log.children:
        if element.tag != "gpu":
            continue
        if len(gpus) >= MAX_GPUS:
            raise _RefusedError("too many GPUs")
        gpu = Gpu(
            index=len(gpus),
            uuid=element.get("uuid"),
            name=element.get("product_name"),
            serial=element.get("serial"),
            bus_id=clean(element.attributes.get("id", "")),
            vbios=element.get("vbios_version"),
            memory_bytes=_size(element.get("fb_memory_usage/total")),
            power_limit_w=_power_limit(element),
        )
        gpus.append((gpu, element))
    return gpus


def _power_limit(element: _Element) -> float | None:
    """Return a GPU's power limit in watts, or None. Drivers moved the field three times.

    Drivers before 535 print the enforced limit, too. It may be the lower one.
    """
    paths = (
        "gpu_power_readings/current_power_limit",
        "gpu_power_readings/gpu_ceiling_power_limit/current_power_limit",
        "gpu_power_readings/power_limit",
        "power_readings/power_limit",
    )
    limits = [leading(element.get(path)) for path in paths]
    present = [limit for limit in limits if limit is not None and math.isfinite(limit)][:1]
    enforced = leading(element.get("power_readings/enforced_power_limit"))
    if enforced is not None and math.isfinite(enforced):
        present.append(enforced)
    return min(present, default=None)


_BEGINS = (b"<?xml", b"<!DOCTYPE", b"<nvidia_smi_log")
_END = b"</nvidia_smi_log>"


def _document(data: bytes) -> tuple[int, int]:
    """Return the positions of start and end of the XML in nvidia-smi's output. Warnings may surround it."""
    begin = next((at for mark in _BEGINS if (at := data.find(mark)) >= 0), 0)
    end = data.rfind(_END) + len(_END)
    # Text with "<" below the XML is part of a document that cannot be read.
    return begin, end if end > begin + len(_END) and b"<" not in data[end:] else len(data)


def lines_beside(data: bytes, above: int = 0) -> list[tuple[int, str]]:
    """Return number and text of the lines next to the XML of ``nvidia-smi -q -x``, at most 1000 on each side.

    ``above`` is the number of lines above the data.
    """
    begin, end = _document(data)
    below = data[:end].count(b"\n") + 1
    numbered = [*enumerate(data[:begin].split(b"\n"), start=above + 1)][-1000:]
    numbered += enumerate(data[end:].split(b"\n")[:1000], start=above + below)
    return [(at, raw[:2000].decode("utf-8", "replace")) for at, raw in numbered if raw.strip()]


def _read_document(data: bytes, above: int = 0) -> _Element:
    """Return the tree of the XML in nvidia-smi's output. Callers share it, and must not change it.

    ``above`` is the number of lines above the data.

    The tree of the last document is cached, because facts, snapshot and parser read the same answer of a
    node, one after the other. Reading it takes half of a night's processor time.

    Raises:
        ValueError: The document cannot be parsed, or is refused.
    """
    begin, end = _document(data)
    document, above = data[begin:end], above + data[:begin].count(b"\n")
    return _read_again(document, above) if len(document) <= _MAX_REREAD else _read_xml(document, above)


@lru_cache(maxsize=1)
def _read_again(document: bytes, above: int) -> _Element:
    return _read_xml(document, above)


def read_gpus(data: bytes) -> tuple[Gpu, ...]:
    """Return the GPUs in the XML of ``nvidia-smi -q -x``, in the same order.

    Args:
        data: The whole document, perhaps hostile, so that entity declarations and excessive sizes are
            refused.

    Raises:
        ValueError: The document cannot be read; the message gives the reason.
    """
    return tuple(gpu for gpu, _element in _gpus_of(_read_document(data)))


class GpuTexts(NamedTuple):
    """One GPU of a document, with what its element contains.

    Attributes:
        gpu: The GPU.
        text: A function that returns the cleaned text at a path of tags, or "" for a missing value or
            ``N/A``.
        unknown: The values that no check recognizes, as ``path: words``.
        lacking: The readings and lines that another GPU of its model has and this one lacks. It is empty for
            a GPU that is divided (MIG), because the driver shows less of it.
    """

    gpu: Gpu
    text: Callable[[str], str]
    unknown: tuple[str, ...]
    lacking: tuple[str, ...]


def read_gpu_texts(data: bytes) -> tuple[GpuTexts, ...]:
    """Return the GPUs as :func:`read_gpus` does, each with its texts.

    Args:
        data: The whole document.

    Raises:
        ValueError: The document cannot be read; the message gives the reason.
    """
    gpus = list(_gpus_of(_read_document(data)))
    lacking = {gpu.uuid: tuple(paths) for gpu, _element, paths in _lacking_gpus(gpus)}
    return tuple(
        GpuTexts(gpu, element.get, tuple(_unknown_values(element)), lacking.get(gpu.uuid, ()))
        for gpu, element in gpus
    )


_ABSOLUTE_LIMITS = ("temperature/gpu_temp_slow_threshold", "temperature/gpu_temp_max_threshold")
"""Paths of the temperatures at which a GPU slows down and shuts down. GPUs with a margin print other ones."""


def slowdown_margin(text: Callable[[str], str]) -> float | None:
    """Return the distance in °C until a GPU slows down or shuts down, or None if the GPU does not state it.

    The driver prints the distance itself (``GPU T.Limit Temp``) only for newer GPUs. An A100 prints its
    temperature, and those at which it slows down and shuts down.

    Args:
        text: A function that returns the text at a path of the GPU's element.
    """
    margin_c = leading(text("temperature/gpu_temp_tlimit"))
    if margin_c is not None:
        return margin_c
    temperature_c, *limits = (
        _possible_temperature(text(path)) for path in ("temperature/gpu_temp", *_ABSOLUTE_LIMITS)
    )
    known = [limit for limit in limits if limit is not None]
    return min(known) - temperature_c if known and temperature_c is not None else None


def _possible_temperature(text: str) -> float | None:
    """Return a temperature in °C, or None if the text is none or a sensor cannot show it."""
    value = leading(text)
    return value if value is not None and is_possible("gpu_temperature", value) else None


RECOVERY_WORDS = ("reset", "reboot", "drain")
"""Words of recovery actions that the driver requests: GPU Reset, Node Reboot, Drain P2P."""


def recovery_verdict(action: str) -> Verdict | None:
    """Return the verdict for the action that the driver requests (``Reset``), or None if it requests none.

    An unknown action is unproven.
    """
    if action.lower() in ("", "none"):
        return None
    return Verdict.FAIL if any(word in action.lower() for word in RECOVERY_WORDS) else Verdict.UNPROVEN


def is_fabric_unhealthy(summary: str) -> bool:
    """Return whether a summary of the fabric's health is not one of those that a working GPU reports."""
    return summary not in ("", "Healthy", "Not Supported")


WELL = frozenset(
    {
        *("No", "None", "False", "Full"),
        *NOT_REPORTED,
    }
)
"""Words that mean that nothing is wrong. They are accepted in unknown readings."""
_SCANNED = (
    "ecc_errors",
    "remapped_rows",
    "gpu_reset_status",
    "retired_pages",
)
"""Sections in which a future driver may report a fault with a new name."""
_HEALTH = "fabric/health"
"""Another such section. It is not searched if its summary is already a finding."""
_PROCESSES = ("processes", "accounted_processes")
"""Elements with names of programs, which may be any text."""
_LISTS = ("summary", "partition_assigned", "remapped_row_histogram")
"""Elements of these sections that are not searched for unknown words."""
_REASONS = ("clocks_event_reasons", "clocks_throttle_reasons")
"""Section of the reasons for low clocks, of new and of old drivers."""
_REASON_PREFIX = re.compile("clocks_(?:event|throttle)_reason_")
_KNOWN_REASONS = frozenset(
    {
        *(reason.name for reason in CLOCK_REASONS),
        # Names in the notation of the text output.
        *("idle", "sw_power_capping", "hw_power_brake", "display_clock_setting"),
    }
)


def _unknown_values(gpu: _Element) -> Iterator[str]:
    """Yield the values in a GPU's description that no check recognizes, as ``path: words``."""
    values = (f"{path}: {text:.60}" for path, text in unknown_values(gpu))
    found = (values, _unknown_sections(gpu), _unknown_reasons(gpu), _error_texts(gpu))
    yield from dict.fromkeys(chain.from_iterable(found))


def _error_texts(gpu: _Element, path: str = "") -> Iterator[str]:
    """Yield texts such as ``Unknown Error`` in place of any value. Names of processes are left out."""
    for child in gpu.children:
        where = f"{path}{child.tag}"
        text = clean("".join(child.text)[:2000])
        if not child.children and is_no_answer(text):
            yield f"{where}: {text:.60}"
        elif child.tag not in _PROCESSES:
            yield from _error_texts(child, f"{where}/")


def _unknown_sections(gpu: _Element) -> Iterator[str]:
    """Yield values directly in sections about faults that are neither numbers nor words for "no fault"."""
    # Another finding reports a bad health summary. Its parts only add detail.
    has_finding = is_fabric_unhealthy(gpu.get("fabric/health/summary"))
    for section in _SCANNED if has_finding else (*_SCANNED, _HEALTH):
        for tag, text in _plain_children(gpu, section):
            is_known = f"{section}/{tag}" in WORDS or text in WELL or leading(text) is not None
            if not is_known and tag not in _LISTS:
                yield f"{section}/{tag}: {text:.60}"


def _unknown_reasons(gpu: _Element) -> Iterator[str]:
    """Yield active reasons for low clocks that no check recognizes, and invalid states."""
    for section in _REASONS:
        for tag, text in _plain_children(gpu, section):
            reason = _REASON_PREFIX.sub("", tag, count=1)
            is_known = text == "Active" and reason in _KNOWN_REASONS
            if text not in ("", "Not Active") and not is_known:
                yield f"{section}/{reason}: {text:.60}"


def _plain_children(gpu: _Element, section: str) -> Iterator[tuple[str, str]]:
    """Yield tag and text of a section's elements without child elements."""
    element = gpu.find(section)
    for child in element.children if element else ():
        if not child.children:
            yield child.tag, element.get(child.tag) if element else ""


class _Whole(LogParser):
    """A base of parsers that collects a document of bounded size."""

    def __init__(self, log: Log) -> None:
        super().__init__(log)
        self.data = bytearray()
        self.above = 0
        """Number of lines in the blocks before the first stored one."""

    def block(self, data: bytes) -> None:
        """Store the block. After the block that exceeds the limit, store nothing."""
        if not self.data:
            self.above = self.log.lines
        if len(self.data) <= MAX_XML:
            self.data += data


class NvidiaSmiXmlParser(_Whole):
    """The parser of ``nvidia-smi -q -x``."""

    format: ClassVar[str] = "nvidia_smi_xml"
    description: ClassVar[str] = "nvidia-smi -q -x"

    @staticmethod
    def recognises(head: bytes) -> bool:
        """Return whether the bytes are the beginning of nvidia-smi's XML."""
        return b"<nvidia_smi_log" in head or b"<!DOCTYPE nvidia_smi_log" in head

    def finish(self) -> ParsedLog:
        """Return the log with temperatures, power, memory and faults of every GPU."""
        log = self.log
        measurements: list[Measurement] = []
        data = bytes(self.data)
        for at, text in lines_beside(data, self.above):
            find_remark(log, at, text)
        try:
            root = _read_document(data, self.above)
            gpus = _gpus_of(root)
        except ValueError as error:
            log.find("damaged_xml", str(error), Verdict.UNPROVEN)
            return log.parsed(self.format, Verdict.UNPROVEN, [])
        self.add_report(root, gpus, measurements)
        return log.parsed(self.format, Verdict.PASS, measurements)

    def add_report(
        self, root: _Element, gpus: list[tuple[Gpu, _Element]], measurements: list[Measurement]
    ) -> None:
        """Add the measurements and findings of one report on all GPUs."""
        log = self.log
        top = root.find("nvidia_smi_log") or root
        tag_moment(log, top.get("timestamp"))
        log.tag("driver_version", top.get("driver_version"))
        log.tag("cuda_version", top.get("cuda_version"))
        log.tag("gpus", len(gpus))
        if gpus:
            log.tag("device", gpus[0][0].name)
        attached = leading(top.get("attached_gpus"))
        if not gpus or attached != len(gpus):
            log.find(
                "gpu_missing",
                f"{amount(len(gpus), 'GPU')} described, {attached or 0:.0f} attached",
                Verdict.UNPROVEN,
            )
        driver = _driver_number(top.get("driver_version"))
        uuids: set[str] = set()
        for gpu, element in gpus:
            if missing := missing_parts(element, driver):
                message = f"GPU {gpu.index} {gpu.uuid}: its description is not whole: no {', '.join(missing)}"
                log.find("cut_off", message, Verdict.UNPROVEN, line=element.line)
            find_not_available(
                log, f"GPU {gpu.index} {gpu.uuid}", not_available(element, driver), element.line
            )
            if gpu.uuid in uuids:
                find_twice(log, element.line, gpu.uuid, gpu.uuid)
            uuids.add(gpu.uuid)
            self.add_gpu(gpu, element, measurements)
        readings = [(_readings(gpu, element), element.line) for gpu, element in gpus]
        for gpu_readings, line in readings:
            judge_gpu(log, gpu_readings, line)
        judge_neighbours(log, readings)
        for gpu, element, lacking in _lacking_gpus(gpus):
            find_lacking_readings(log, f"GPU {gpu.index} {gpu.uuid}", lacking, element.line)

    def add_gpu(self, gpu: Gpu, element: _Element, measurements: list[Measurement]) -> None:
        """Add the measurements and findings of one GPU."""
        log = self.log
        # A query of some sections (-d) names no GPU; what it lacks is a finding already.
        of_sections = element.find("uuid") is None and element.find("product_name") is None
        for part, is_there in (("UUID", gpu.uuid.startswith("GPU-")), ("product name", bool(gpu.name))):
            if not is_there and not of_sections:
                log.find("gpu_lost", f"GPU {gpu.index} has no {part}", Verdict.UNPROVEN, line=element.line)
        labels = {"gpu": gpu.uuid, "index": str(gpu.index)}
        for name, unit, direction, paths in _XML_VALUES:
            read = _first_value(element, paths)
            if read is not None:
                figure, line = read
                measurements.append(self.measure(name, figure, unit, direction, line, labels=labels))
        self.judge_state(gpu, element)
        for path, code, verdict, message in _XML_FAULTS:
            text = element.get(path)
            value = leading(text)
            # A fault is reported as a count, or simply as "Yes".
            if text == "Yes" or (value is not None and value > 0):
                place = element.find(path)
                log.find(
                    code,
                    f"GPU {gpu.index} {gpu.uuid}: {message} ({text})",
                    verdict,
                    line=place.line if place else None,
                )

    def judge_state(self, gpu: Gpu, element: _Element) -> None:
        """Judge the requested recovery, the fabric, slowdowns, MIG instances, and values that cannot be."""
        log = self.log
        self._recovery(gpu, element)
        self._fabric(gpu, element)
        # One finding is enough for each value.
        judged = self._impossible(gpu, element)
        for unknown in _unknown_values(element):
            if unknown.partition(": ")[0] not in judged:
                message = f"GPU {gpu.index} {gpu.uuid}: an unknown value: {unknown}"
                log.find("gpu_value_unknown", message, Verdict.UNPROVEN, line=element.line)
        for path in _SLOWED:
            if element.get(path) == "Active":
                message = f"GPU {gpu.index} {gpu.uuid}: slowed down ({path.rpartition('/')[2]})"
                log.find("slowed_down", message, Verdict.DEGRADED, line=element.line)
        for words in _links_without_maximum(element):
            message = f"GPU {gpu.index} {gpu.uuid}: {words}: the highest value is unknown"
            log.find("gpu_readings_missing", message, Verdict.UNPROVEN, line=element.line)
        for words in (*_contradictions(gpu, element), *_counter_faults(element)):
            message = f"GPU {gpu.index} {gpu.uuid}: {words}"
            log.find("impossible_value", message, Verdict.UNPROVEN, line=element.line)
        self._slowdowns(gpu, element)
        self._instances(gpu, element)

    def _slowdowns(self, gpu: Gpu, element: _Element) -> None:
        """Find slowdowns that lasted over a minute since the driver was loaded, at a time that is unknown."""
        for reason, slowed_s in _slowdown_counters(element):
            if reason not in _HARMLESS_COUNTERS and slowed_s is not None and slowed_s > MOST_SLOWDOWN_S:
                since = f"{reason} for {slowed_s:.0f} s since the driver was loaded, at an unknown time: "
                since += f"save nvidia-smi -q a day later, too ({MOST_SLOWDOWN_S:.0f} s a day are harmless)"
                message = f"GPU {gpu.index} {gpu.uuid}: {since}"
                self.log.find("slowdown_unknown", message, Verdict.UNPROVEN, line=element.line)

    def _instances(self, gpu: Gpu, element: _Element) -> None:
        """Judge the errors of MIG instances, which are counted separately."""
        for number, instance in enumerate(_instances_of(element)):
            name = f"GPU {gpu.index} {gpu.uuid}: MIG instance {number}"
            counts = list(_error_counts(instance))
            if not any("uncorrectable" in tag for tag, _text in counts):
                message = f"{name}: its description is not whole: no ECC errors"
                self.log.find("cut_off", message, Verdict.UNPROVEN, line=instance.line)
            for tag, text in counts:
                count = leading(text)
                if "uncorrectable" in tag and count is not None and count > 0:
                    self.log.find(
                        "ecc_uncorrected", f"{name}: {tag} ({text:.20})", Verdict.FAIL, line=instance.line
                    )
                elif (count is None and text not in WELL) or (count or 0) < 0:
                    message = f"{name}: an unknown value: {tag}: {text:.60}"
                    self.log.find("gpu_value_unknown", message, Verdict.UNPROVEN, line=instance.line)

    def _recovery(self, gpu: Gpu, element: _Element) -> None:
        """Judge the recovery action that the driver requests."""
        wanted = element.find("gpu_recovery_action")
        action = element.get("gpu_recovery_action")
        if wanted is not None and (verdict := recovery_verdict(action)):
            message = f"GPU {gpu.index} {gpu.uuid}: the driver requires: {action}"
            self.log.find("recovery_action", message, verdict, line=wanted.line)

    def _impossible(self, gpu: Gpu, element: _Element) -> set[str]:
        """Record impossible numbers, words in place of a temperature, and errors in place of any number.

        Return their paths.
        """
        judged = set()
        measured = ((name, paths) for name, _unit, _direction, paths in _XML_VALUES)
        for name, paths in (*measured, *_MORE_NUMBERS):
            path, text = next(((path, text) for path in paths if (text := element.get(path))), ("", ""))
            value = leading(text)
            # The driver writes other words for a value that it cannot read.
            is_wrong = text and value is None and name == "gpu_temperature"
            if is_no_answer(text) or is_wrong or (value is not None and not is_possible(name, value)):
                judged.add(path)
                message = f"GPU {gpu.index} {gpu.uuid}: {name} is {text:.60}"
                self.log.find("impossible_value", message, Verdict.UNPROVEN, line=element.line)
        return judged

    def _fabric(self, gpu: Gpu, element: _Element) -> None:
        """Judge whether a GPU is a member of its NVLink fabric, and the state of the membership."""
        place = element.find("fabric")
        line = place.line if place else element.line
        in_domain = is_one_of(element.get("product_name"), MODELS_OF_DOMAINS)
        state, status = element.get("fabric/state"), element.get("fabric/status")
        if fault := fabric_fault(state, status, in_domain=in_domain):
            fabric_code, words, verdict = fault
            self.log.find(fabric_code, f"GPU {gpu.index} {gpu.uuid}: {words}", verdict, line=line)
        summary = element.get("fabric/health/summary")
        if is_fabric_unhealthy(summary):
            message = f"GPU {gpu.index} {gpu.uuid}: fabric health is {summary:.40}"
            self.log.find("fabric_unhealthy", message, Verdict.FAIL, line=line)


def _contradictions(gpu: Gpu, element: _Element) -> Iterator[str]:
    """Yield a sentence for each contradiction in a GPU's description."""
    yield from _address_faults(gpu, element)
    yield from _draw_faults(gpu, element)
    yield from _memory_faults(gpu, element)


def _address_faults(gpu: Gpu, element: _Element) -> Iterator[str]:
    """Yield a sentence if a GPU has two bus addresses."""
    bus_id = element.get("pci/pci_bus_id") or element.get("pci/bus_id")
    if bus_id and bus_id.lower() != gpu.bus_id.lower():
        yield f"it is at {gpu.bus_id:.20}, and its PCI section has {bus_id:.20}"


def _draw_faults(gpu: Gpu, element: _Element) -> Iterator[str]:
    """Yield a sentence for each power far above the limit."""
    limit = gpu.power_limit_w or 0
    for draw in (_first_number(element, (path,)) for path in _POWER_DRAWS):
        if limit and draw is not None and draw > limit * _MOST_OVER_LIMIT:
            yield f"it draws {draw:g} W, and its power limit is {limit:g} W"


def _memory_faults(gpu: Gpu, element: _Element) -> Iterator[str]:
    """Yield a sentence if the parts of the memory are not the total, or too much is reserved."""
    texts = [element.get(f"fb_memory_usage/{name}") for name in ("reserved", "used", "free")]
    parts = [_size(text) for text in texts]
    total, mebibyte = gpu.memory_bytes, _UNIT["MiB"]
    is_whole = all(texts)
    # The memory of a MIG instance may be counted as the instance's own.
    if is_whole and abs(sum(parts) - total) > _ROUNDED_MIB * mebibyte and not _has_instances(element):
        shown = " + ".join(f"{part // mebibyte}" for part in parts)
        yield f"memory of {shown} MiB (reserved, used, free) is not its total of {total // mebibyte} MiB"
    if total and parts[0] > max(_MOST_RESERVED_SHARE * total, 1 << 30):
        yield f"{parts[0] // mebibyte} MiB of its memory are reserved: the driver takes less"


def _has_instances(element: _Element) -> bool:
    """Return whether a GPU is divided (MIG)."""
    return element.get("mig_mode/current_mig") == "Enabled"


def _instances_of(element: _Element) -> Iterator[_Element]:
    """Yield the MIG instances of a GPU, which are below ``mig_devices`` (XML) or the GPU itself (text)."""
    container = element.find("mig_devices")
    for child in (*element.children, *(container.children if container else ())):
        if child.tag == "mig_device":
            yield child


def _error_counts(instance: _Element) -> Iterator[tuple[str, str]]:
    """Yield kind and text of each count of ECC errors of a MIG instance (``volatile sram_uncorrectable``)."""
    for section in ("ecc_error_count", "ecc_errors"):
        section_element = instance.find(section)
        for kind in section_element.children if section_element else ():
            yield from ((f"{kind.tag} {count.tag}", kind.get(count.tag)) for count in kind.children)


def _slowdown_counters(element: _Element) -> Iterator[tuple[str, float | None]]:
    """Yield reasons for low clocks with their duration in seconds, or None if the text is not a duration."""
    for tag, text in _plain_children(element, "clocks_event_reasons_counters"):
        match = re.fullmatch(r"(\d{1,18}) us", text)
        if text:
            reason = tag.removeprefix("clocks_event_reasons_counters_")
            yield reason, int(match[1]) / 1e6 if match else None


def _counter_faults(element: _Element) -> Iterator[str]:
    """Yield a sentence for each slowdown count that is missing beside others."""
    counters = dict(_slowdown_counters(element))
    for name in ("sw_power_cap", "sw_therm", "hw_therm", "hw_power_brak") if counters else ():
        if not any(reason.startswith(name) for reason in counters):
            yield f"no count of {name} among those of the other slow-downs"


def _readings(gpu: Gpu, element: _Element) -> GpuReadings:
    """Return the judged readings of a GPU in the form that all notations share."""
    link = "pci/pci_gpu_link_info/"
    return GpuReadings(
        label=f"GPU {gpu.index} {gpu.uuid}",
        name=gpu.name,
        ecc=element.get("ecc_mode/current_ecc"),
        ecc_next=element.get("ecc_mode/pending_ecc"),
        memory_mib=gpu.memory_bytes / (1 << 20) or None,
        width=leading(element.get(f"{link}link_widths/current_link_width")),
        width_max=leading(element.get(f"{link}link_widths/max_link_width")),
        generation=leading(element.get(f"{link}pcie_gen/current_link_gen")),
        generation_max=leading(element.get(f"{link}pcie_gen/max_link_gen")),
        utilisation=leading(element.get("utilization/gpu_util")),
        temperature_c=leading(element.get("temperature/gpu_temp")),
        margin_c=slowdown_margin(element.get),
        memory_c=leading(element.get("temperature/memory_temp")),
        power_limit_w=gpu.power_limit_w,
        power_default_w=_first_number(element, _DEFAULT_LIMITS),
        clock_mhz=_first_number(element, ("clocks/sm_clock", "clocks/sm")),
        clock_max_mhz=_first_number(element, ("max_clocks/sm_clock", "max_clocks/sm")),
        mig=element.get("mig_mode/current_mig"),
        compute_mode=element.get("compute_mode"),
        serial=gpu.serial,
        spent_banks=_first_number(element, _SPENT_BANKS),
        remapped_rows=sum(_first_number(element, paths) or 0 for paths in _REMAPPED),
        sram_corrected=leading(element.get("ecc_errors/aggregate/sram_correctable")),
        dram_corrected=leading(element.get("ecc_errors/aggregate/dram_correctable")),
        fabric=_fabric_of(element),
        bus_id=gpu.bus_id,
    )


_POWER_DRAWS = tuple(
    f"{section}/{name}"
    for section in ("gpu_power_readings", "power_readings")
    for name in ("instant_power_draw", "average_power_draw", "power_draw")
)
_MOST_OVER_LIMIT = 1.3
"""Largest plausible ratio of a GPU's power to its limit. A GPU exceeds the limit only briefly, and none
of 31 real GPUs shows a higher ratio."""
_ROUNDED_MIB, _MOST_RESERVED_SHARE = 4, 0.1
"""Rounding of sizes in MiB, and the largest plausible share of reserved memory; real GPUs reserve
at most 1.3 %."""
_HARMLESS_COUNTERS = frozenset({"sw_power_cap", "sw_power_capping", "sync_boost"})
"""Reasons for low clocks that are no fault, however long they last."""

_DEFAULT_LIMITS = (
    "gpu_power_readings/default_power_limit",
    "gpu_power_readings/gpu_ceiling_power_limit/default_power_limit",
    "power_readings/default_power_limit",
)
"""Paths of the default power limit, which drivers moved."""
_SPENT_BANKS = (
    "remapped_rows/row_remapper_histogram/row_remapper_histogram_none",
    "remapped_rows/bank_remap_availability_histogram/none",
)
"""Paths of the number of memory banks without a spare row, in XML and text."""
_REMAPPED = (
    ("remapped_rows/remapped_row_corr", "remapped_rows/correctable_error"),
    ("remapped_rows/remapped_row_unc", "remapped_rows/uncorrectable_error"),
)
"""Paths of the rows that were remapped after correctable and after uncorrectable errors, in XML and text."""


def _fabric_of(element: _Element) -> str:
    """Return a GPU's NVLink cluster and clique, or "" if it belongs to none."""
    words = [
        next((text for path in paths if (text := element.get(path))), "")
        for paths in (
            ("fabric/clusterUuid", "fabric/clusteruuid"),
            ("fabric/cliqueId", "fabric/cliqueid"),
        )
    ]
    return "/".join(words) if all(words) else ""


def _first_number(element: _Element, paths: tuple[str, ...]) -> float | None:
    """Return the number at the first path with a number, or None."""
    first = _first_value(element, paths)
    return first[0] if first else None


def _lacking_gpus(gpus: Iterable[tuple[Gpu, _Element]]) -> Iterator[tuple[Gpu, _Element, list[str]]]:
    """Yield each GPU without readings that a GPU of its product beside it has, together with these readings.

    A GPU that is divided (MIG) is left out, because the driver shows less of it.
    """
    whole = [(gpu, element) for gpu, element in gpus if not _has_instances(element)]
    to_compare = [(element.get("product_name"), readings_to_compare(element)) for _gpu, element in whole]
    for place, lacking in lacking_beside(to_compare):
        yield *whole[place], lacking


def _links_without_maximum(element: _Element) -> Iterator[str]:
    """Yield a sentence for a PCIe width or generation whose highest value is unknown."""
    for name, path in (("width", "link_widths/{}_link_width"), ("generation", "pcie_gen/{}_link_gen")):
        texts = [element.get(f"pci/pci_gpu_link_info/{path.format(which)}") for which in ("current", "max")]
        # No link has 0 lanes. A GPU without a visible link shows neither of the two.
        present, highest = map(leading, texts)
        if present and not highest:
            yield f"the PCIe {name} is {texts[0] or 'N/A':.20} of {texts[1] or 'N/A':.20}"


def _driver_number(driver: str) -> float | None:
    """Return the first number of a driver's version, or None if there is none."""
    return leading(driver.replace(".", " ", 1).split(" ")[0]) if driver else None


def _first_value(element: _Element, paths: tuple[str, ...]) -> tuple[float, int] | None:
    """Return the number at the first path with a number, together with its line, or None."""
    for path in paths:
        value = leading(element.get(path))
        if value is not None:
            place = element.find(path)
            return value, place.line if place else element.line
    return None


_LOWER = Direction.LOWER
_MORE_NUMBERS = (
    ("memory_temperature", ("temperature/memory_temp",)),
    ("gpu_memory_total", ("fb_memory_usage/total",)),
    ("gpu_power", ("gpu_power_readings/current_power_limit",)),
    ("gpu_power", _DEFAULT_LIMITS),
    ("utilisation", ("utilization/gpu_util",)),
    ("pcie_link_width", ("pci/pci_gpu_link_info/link_widths/max_link_width",)),
)
"""Name and paths of numbers that are not used as measurements but must still be plausible."""
_SLOWED = tuple(
    f"{section}/{name}"
    for section, prefix in (
        ("clocks_event_reasons", "clocks_event_reason_"),
        ("clocks_throttle_reasons", "clocks_throttle_reason_"),
    )
    for reason in CLOCK_REASONS
    if reason.is_slowdown
    for name in (f"{prefix}{reason.name}", reason.name)
) + tuple(
    f"{section}/hw_slowdown/{reason}"
    for section in ("clocks_event_reasons", "clocks_throttle_reasons")
    for reason in ("hw_thermal_slowdown", "hw_power_brake_slowdown")
)
"""Places of the reasons for a GPU's low clocks, in the XML (old and new) and in the text."""
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
"""Name, unit, better direction and possible paths of each measurement."""
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
    (f"{DOUBLE_BIT}/device_memory", "ecc_dram_uncorrected", Verdict.DEGRADED, "DRAM errors of two bits"),
    *((path, "ecc_uncorrected", Verdict.FAIL, "SRAM errors of two bits") for path in DOUBLE_BIT_SRAM),
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
    ("gpu_reset_status/reset_required", "recovery_action", Verdict.FAIL, "the driver requires a reset"),
    (
        "gpu_reset_status/drain_and_reset_recommended",
        "recovery_action",
        Verdict.FAIL,
        "the driver recommends to drain and reset it",
    ),
    *(
        (path, "remap_pending", Verdict.FAIL, "a page waits for a reset to be retired")
        for path in PENDING_PAGES
    ),
)
"""Path, code of the finding, verdict and message of each fault that is a count above 0 or ``Yes``."""

_MOST_NAME = 200
"""Largest number of characters of a name in the text."""
_TEXT_GPU = re.compile(r"^GPU ([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9A-Fa-f])\s*$")
"""Pattern of the heading of a GPU in the text."""
_TEXT_PROCESSES = re.compile(r"( *)(?:Accounted )?Processes\b")
"""Pattern of the heading of a list of processes in the text, whose names may be any text."""
_TEXT_TAGS: dict[str, dict[str, str]] = {
    "gpu": {"serial_number": "serial", "gpu_uuid": "uuid"},
    "temperature": {
        "gpu_current_temp": "gpu_temp",
        "gpu": "gpu_temp",
        "gpu_t_limit_temp": "gpu_temp_tlimit",
        # Used since driver 610.
        "gpu_current_t_limit_temp": "gpu_temp_tlimit",
        "gpu_slowdown_temp": "gpu_temp_slow_threshold",
        "gpu_shutdown_temp": "gpu_temp_max_threshold",
        "memory_current_temp": "memory_temp",
    },
    "ecc_mode": {"current": "current_ecc", "pending": "pending_ecc"},
    "mig_mode": {"current": "current_mig", "pending": "pending_mig"},
    "utilization": {"gpu": "gpu_util"},
    "gpu_power_readings": {"instantaneous_power_draw": "instant_power_draw"},
    "clocks": {"sm": "sm_clock"},
    "pci": {"gpu_link_info": "pci_gpu_link_info"},
    "pci_gpu_link_info": {"pcie_generation": "pcie_gen", "link_width": "link_widths"},
    "pcie_gen": {"current": "current_link_gen", "max": "max_link_gen"},
    "link_widths": {"current": "current_link_width", "max": "max_link_width"},
    "volatile": {"sram_uncorrectable_sec_ded": "sram_uncorrectable_secded"},
    "aggregate": {"sram_uncorrectable_sec_ded": "sram_uncorrectable_secded"},
    "retired_pages": {"pending_page_blacklist": "pending_blacklist"},
    "remapped_rows": {
        "pending": "remapped_row_pending",
        "remapping_failure_occurred": "remapped_row_failure",
    },
}
"""The XML's tag by the parent's tag and the name in the text, with underscores, if both names differ."""
_BANNER = b"==NVSMI LOG=="


def _name_and_value(text: str) -> tuple[str, str] | None:
    """Return name and value in a line of the text without its indentation, or None if it has no name."""
    name, _colon, value = text.partition(" :")
    name = name.rstrip(" ")
    if not name or name[0].isspace() or len(name) > _MOST_NAME:
        return None
    return name, value.removeprefix(" ")


def _read_text(lines: list[tuple[int, str]]) -> _Element:
    """Return the tree that ``-q`` prints by indentation, with the tags of the XML.

    Raises:
        ValueError: The text is refused.
    """
    top = _Element("nvidia_smi_log", lines[0][0] if lines else 1, {})
    stack: list[tuple[int, _Element]] = [(-1, top)]
    if len(lines) > MAX_ELEMENTS:
        raise _RefusedError("more lines than nvidia-smi writes")
    for at, text in lines:
        content = text.rstrip().lstrip(" ")
        if (read := _name_and_value(content)) is None:
            continue
        words, value = read
        depth = len(text.rstrip()) - len(content)
        while stack[-1][0] >= depth:
            stack.pop()
        parent = stack[-1][1]
        gpu = _TEXT_GPU.match(text)
        name = re.sub(r"[^a-z0-9]+", "_", words.lower()).strip("_")
        tag = "gpu" if gpu else _TEXT_TAGS.get(parent.tag, {}).get(name, name)
        element = _Element(tag, at, {"id": gpu[1]} if gpu else {}, text=[value])
        parent.children.append(element)
        if len(stack) <= MAX_DEPTH:
            stack.append((depth, element))
    return _Element("", 0, {}, children=[top])


class NvidiaSmiTextParser(NvidiaSmiXmlParser):
    """The parser of ``nvidia-smi -q`` as text, printed once or in a loop."""

    format: ClassVar[str] = "nvidia_smi_text"
    description: ClassVar[str] = "nvidia-smi -q"

    @staticmethod
    def recognises(head: bytes) -> bool:
        """Return whether the bytes contain the banner of nvidia-smi's text."""
        return _BANNER in head

    def finish(self) -> ParsedLog:
        """Return the log with temperatures, power, memory and faults of every GPU of every report."""
        log = self.log
        measurements: list[Measurement] = []
        reports = self._reports()
        if not reports:
            log.find("no_rows", "no report of nvidia-smi", Verdict.UNPROVEN)
        try:
            for lines in reports:
                root = _read_text(lines)
                gpus = _gpus_of(root)
                self.add_report(root, gpus, measurements)
        except ValueError as error:
            log.find("damaged_text", str(error), Verdict.UNPROVEN)
        if log.ends_in_line:
            log.find("cut_off", "the text ends in mid-line", Verdict.UNPROVEN, line=log.lines + 1)
        return log.parsed(self.format, Verdict.PASS if reports else Verdict.UNPROVEN, measurements)

    def _reports(self) -> list[list[tuple[int, str]]]:
        """Return the numbered lines below each banner, and record GPUs that do not answer."""
        reports: list[list[tuple[int, str]]] = []
        processes_depth: int | None = None
        for at, raw in enumerate(bytes(self.data).split(b"\n"), start=self.above + 1):
            text = raw[:2000].decode("utf-8", "replace").rstrip("\r")
            if not text.strip():
                continue
            if reports and processes_depth is not None and text[: processes_depth + 1].isspace():
                reports[-1].append((at, text))
                continue
            heading = _TEXT_PROCESSES.match(text)
            processes_depth = len(heading[1]) if heading else None
            if _BANNER.decode() in text:
                reports.append([])
            elif not find_remark(self.log, at, text) and reports:
                reports[-1].append((at, text))
        if len(self.data) > MAX_XML:
            self.log.find("too_large", "more text than is read", Verdict.UNPROVEN)
        return reports
