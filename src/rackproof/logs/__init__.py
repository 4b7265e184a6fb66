"""Log parsers: bytes of any known format in, a :class:`~rackproof.core.records.ParsedLog` out.

Nothing here raises because of what a log holds, and nothing takes more memory for a longer log.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from rackproof.core.records import ParsedLog, Verdict
from rackproof.logs import (
    gpu_burn,
    mll06,
    mllog,
    mlp05,
    mxnet,
    nccl_tests,
    nvbandwidth,
    nvidia_smi,
    perftest,
    tf_cnn,
    xid,
)
from rackproof.logs._reading import BLOCK, LineFeed, LineObserver, Log, LogParser, blocks
from rackproof.logs.nvidia_smi import read_gpus

__all__ = ["FORMATS", "Format", "LineObserver", "detect", "parse", "parse_path", "read_gpus"]


@dataclass(frozen=True, slots=True)
class Format:
    """A log format: name, one line about it, parser, recogniser of its bytes."""

    name: str
    description: str
    parser: type[LogParser]
    parse: Callable[[BinaryIO, str], ParsedLog]
    recognise: Callable[[bytes], bool]


def _formats() -> Mapping[str, Format]:
    # In the order of recognition: a job's log may hold a table of nccl-tests and an XID besides its
    # MLPerf events, and the events say what it is about.
    known = (
        (
            "mllog",
            "MLPerf training 4.x to 6.x and Rackproof's own workloads",
            mllog.Parser,
            mllog.parse,
            mllog.recognise,
        ),
        ("mll06", "MLPerf training 0.6", mll06.Parser, mll06.parse, mll06.recognise),
        ("mlp05", "MLPerf training 0.5", mlp05.Parser, mlp05.parse, mlp05.recognise),
        (
            "nvidia_smi_xml",
            "nvidia-smi -q -x",
            nvidia_smi.XmlParser,
            nvidia_smi.parse_xml,
            nvidia_smi.recognise_xml,
        ),
        ("mxnet", "MXNet's training log", mxnet.Parser, mxnet.parse, mxnet.recognise),
        (
            "nccl_tests",
            "nccl-tests, table or JSON of -J",
            nccl_tests.Parser,
            nccl_tests.parse,
            nccl_tests.recognise,
        ),
        (
            "nvbandwidth",
            "nvbandwidth, text or JSON of -j",
            nvbandwidth.Parser,
            nvbandwidth.parse,
            nvbandwidth.recognise,
        ),
        ("gpu_burn", "gpu_burn", gpu_burn.Parser, gpu_burn.parse, gpu_burn.recognise),
        (
            "ib_write_bw",
            "perftest: ib_write_bw, ib_read_bw, ib_send_bw",
            perftest.Parser,
            perftest.parse,
            perftest.recognise,
        ),
        (
            "nvidia_smi_csv",
            "nvidia-smi --query-gpu=… --format=csv",
            nvidia_smi.CsvParser,
            nvidia_smi.parse_csv,
            nvidia_smi.recognise_csv,
        ),
        (
            "nvlink_status",
            "nvidia-smi nvlink --status",
            nvidia_smi.NvlinkParser,
            nvidia_smi.parse_nvlink,
            nvidia_smi.recognise_nvlink,
        ),
        (
            "nvidia_smi_topo",
            "nvidia-smi topo -m",
            nvidia_smi.TopoParser,
            nvidia_smi.parse_topo,
            nvidia_smi.recognise_topo,
        ),
        ("tf_cnn", "tf_cnn_benchmarks", tf_cnn.Parser, tf_cnn.parse, tf_cnn.recognise),
        ("xid", "kernel log with XIDs of GPUs and SXids of switches", xid.Parser, xid.parse, xid.recognise),
    )
    return {row[0]: Format(*row) for row in known}


FORMATS: Mapping[str, Format] = _formats()
"""All formats by name, in the order in which they are tried."""

_STRONG = ("mllog", "mll06", "mlp05")


def detect(head: bytes) -> str | None:
    """Return the name of the format that the first bytes of a log (up to about 1 MiB) show, if any."""
    for name, one in FORMATS.items():
        if one.recognise(head):
            return name
    return None


def _checked(name: str) -> str:
    if name != "auto" and name not in FORMATS:
        near = difflib.get_close_matches(name, ["auto", *FORMATS], n=3, cutoff=0.5)
        hint = f"did you mean {' or '.join(near)}?" if near else f"known are auto, {', '.join(FORMATS)}"
        raise ValueError(f"unknown log format {name!r:.80}: {hint}")
    return name


def parse(
    stream: BinaryIO, *, format: str = "auto", name: str = "", observers: Sequence[LineObserver] = ()
) -> ParsedLog:
    """Parse one log.

    The stream is read once, in blocks of about 256 KiB. With ``auto`` the first block that shows a format
    decides; what came before it holds, by that very test, no line of any format and is only searched
    for failures. MLPerf events that turn up later override a weaker format (a job that begins with
    nccl-tests).

    Args:
        stream: open in binary mode; need not be seekable.
        format: a key of :data:`FORMATS`, or ``auto``.
        name: how findings and measurements call the file.
        observers: get every line in the same pass, so that a log that holds more than its format's own
            lines is read once.

    Returns:
        The record. Content never raises: what cannot be read is ``unproven`` with a reason.

    Raises:
        ValueError: the format is unknown; near names are offered.
        OSError: the stream cannot be read.
    """
    chosen = _checked(format)
    log = Log(name)
    parser = None if chosen == "auto" else FORMATS[chosen].parser(log)
    watching = chosen == "auto"
    feed = LineFeed(observers)
    for block in blocks(stream):
        log.begin(block)
        log.scan(block)
        if watching:
            parser = _watch(log, parser, block)
            watching = parser is None or parser.format not in _STRONG
        if parser is not None:
            parser.block(block)
        if observers:
            feed.feed(block)
        log.end()
    if parser is None:
        if log.size:
            log.find("unrecognised", "the log is of no known format", Verdict.UNPROVEN, line=1)
        log.marks_as_findings(None)
        return log.parsed("unknown", Verdict.UNPROVEN, [])
    return parser.finish()


def _watch(log: Log, parser: LogParser | None, block: bytes) -> LogParser | None:
    """Return the parser to go on with, given one more block."""
    if parser is None:
        found = detect(block)
        return FORMATS[found].parser(log) if found else None
    for name in _STRONG:
        if FORMATS[name].recognise(block):
            log.find("format_changed", f"{parser.format} until line {log.lines}, then {name}")
            return FORMATS[name].parser(log)
    return parser


def parse_path(
    path: str | Path, format: str = "auto", *, observers: Sequence[LineObserver] = ()
) -> ParsedLog:
    """Parse a file; its path as given names it in findings. Arguments as of :func:`parse`.

    Raises:
        ValueError: the format is unknown.
        OSError: the file cannot be read.
    """
    _checked(format)
    with open(path, "rb", buffering=BLOCK) as stream:
        return parse(stream, format=format, name=str(path), observers=observers)
