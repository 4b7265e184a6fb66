"""Parse the log of a benchmark or of a node's tool into a :class:`~rackproof.core.records.ParsedLog`.

A format is the output of one program or of one version of MLPerf's logger. Each format has a parser in a
module of this folder, and :data:`FORMATS` lists them. Job bench and the import of logs call
:func:`read_log_file`. ``rackproof parse`` and the scores call :func:`parse_path`. The facts of nodes, the
speeds of pairs, submissions and the filter ``parse_log`` call :func:`parse`. No content of a log may raise an
error, and memory does not grow with the length of a log. To add a format, write a parser that derives from
:class:`LogParser`, and add it to ``_PARSERS``.
"""

from __future__ import annotations

import codecs
import difflib
import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO, cast

from rackproof.core.line_rules import LineRules
from rackproof.core.records import LogFile, ParsedLog, Verdict
from rackproof.logs._reading import LineFeed, LineObserver, Log, LogParser, blocks
from rackproof.logs.dcgm_diag import DcgmDiagParser
from rackproof.logs.declared_lines import DeclaredLines
from rackproof.logs.encodings import HEAD_BYTES, encoding_problem
from rackproof.logs.fio import FioParser
from rackproof.logs.gpu_burn import GpuBurnParser
from rackproof.logs.gpu_use import take_state_lines
from rackproof.logs.known_programs import HplParser, StreamParser
from rackproof.logs.mll06 import Mll06Parser
from rackproof.logs.mllog import MllogParser
from rackproof.logs.mlp05 import Mlp05Parser
from rackproof.logs.mxnet import MxnetParser
from rackproof.logs.nccl_tests import NcclTestsParser
from rackproof.logs.nvbandwidth import NvbandwidthParser
from rackproof.logs.nvidia_smi import NvidiaSmiTextParser, NvidiaSmiXmlParser, read_gpus
from rackproof.logs.nvidia_smi_brief import NvidiaSmiDmonParser, NvidiaSmiTableParser, TableFaults
from rackproof.logs.nvidia_smi_csv import NvidiaSmiCsvParser
from rackproof.logs.nvidia_smi_links import NvidiaSmiTopoParser, NvlinkStatusParser
from rackproof.logs.opening import LogStream, open_log, with_problem
from rackproof.logs.other_mlperf import MlperfHpcParser, MlperfInferenceParser, named_by_suite
from rackproof.logs.other_tools import OtherTools
from rackproof.logs.perftest import PerftestParser
from rackproof.logs.plain_lines import PlainLinesParser, tag_program
from rackproof.logs.tf_cnn import TfCnnParser
from rackproof.logs.xid import XidParser

__all__ = [
    "FORMATS",
    "LineObserver",
    "LogParser",
    "detect",
    "parse",
    "parse_path",
    "read_gpus",
    "read_log_file",
]


_PARSERS: tuple[type[LogParser], ...] = (
    # The formats are tried in this order. A job's log may contain a table of nccl-tests and an XID beside
    # its MLPerf events, or beside the lines of a training. These show what the job is, so their formats come
    # first.
    MlperfInferenceParser,
    MllogParser,
    MlperfHpcParser,
    Mll06Parser,
    Mlp05Parser,
    NvidiaSmiXmlParser,
    MxnetParser,
    TfCnnParser,
    NcclTestsParser,
    NvbandwidthParser,
    GpuBurnParser,
    DcgmDiagParser,
    PerftestParser,
    NvidiaSmiTextParser,
    NvidiaSmiCsvParser,
    NvlinkStatusParser,
    NvidiaSmiTopoParser,
    HplParser,
    StreamParser,
    FioParser,
    XidParser,
    # Jobs print these tables before their own output.
    NvidiaSmiDmonParser,
    NvidiaSmiTableParser,
)

FORMATS: Mapping[str, type[LogParser]] = {parser.format: parser for parser in _PARSERS}
"""Parser of each format by the format's name, in the order of trial."""

UNREAD_TOOL = "unread_tool"
"""Tag with the name of the tool that printed a log of no known format, if the tool is known."""

_STRONG = (MlperfInferenceParser, MllogParser, Mll06Parser, Mlp05Parser)
"""Formats of MLPerf events. They replace any other format in the middle of a log, but not each other."""

_WEAK = (NvidiaSmiDmonParser, NvidiaSmiTableParser)
"""Formats that any other format replaces in the middle of a log. Jobs print these tables to show the state
of their node."""


def detect(head: bytes) -> str | None:
    """Return the name of the format that the first bytes of a log (up to about 1 MiB) show, or None."""
    for name, parser in FORMATS.items():
        if parser.recognises(head):
            return name
    return None


def _checked(name: str) -> str:
    """Return a name that is ``auto`` or a format's. Raise a ValueError with similar names for another one."""
    if name != "auto" and name not in FORMATS:
        near = difflib.get_close_matches(name, ["auto", *FORMATS], n=3, cutoff=0.5)
        hint = f"did you mean {' or '.join(near)}?" if near else f"known are auto, {', '.join(FORMATS)}"
        raise ValueError(f"unknown log format {name!r:.80}: {hint}")
    return name


def parse(
    stream: BinaryIO,
    *,
    format: str = "auto",
    name: str = "",
    observers: Sequence[LineObserver] = (),
    lines: LineRules | None = None,
    declared: DeclaredLines | None = None,
) -> ParsedLog:
    """Parse one log.

    The stream is read once, in blocks of about 256 KiB. With ``auto``, the first block that shows a format
    decides. Earlier blocks contain no line of any format by the same test, and are only searched for
    failures. MLPerf events that appear later override a weaker format, as in a job that starts with
    nccl-tests. Any other format overrides nvidia-smi's short tables. The new parser does not read the blocks
    before such a change.

    Args:
        stream: The stream in binary mode. It need not be seekable.
        format: A key of :data:`FORMATS`, or ``auto``. Ignored if ``lines`` are given.
        name: The name of the file in findings and measurements.
        observers: The objects that receive every line in the same pass. The file is then read only once
            if another reader needs its lines, too.
        lines: The rules for plain output. With them, no other format is tried.
        declared: The kernel log lines that an operator declared harmless.

    Returns:
        Measurements, findings and verdict. No content raises an error. A log that cannot be understood is
        ``unproven``, with a finding that gives the reason.

    Raises:
        ValueError: The format is unknown. The message suggests similar names.
        OSError: The stream cannot be read.
    """
    log = Log(name)
    log.declared = declared
    chosen = _checked(format) if lines is None else PlainLinesParser.format
    parser: LogParser | None = None
    if lines is not None:
        parser = PlainLinesParser(log, lines)
    elif chosen != "auto":
        parser = FORMATS[chosen](log)
    watching = chosen == "auto"
    head = b""
    others = OtherTools()
    tables = TableFaults()
    feed = LineFeed(observers)
    for block in _without_mark(stream, log):
        head = head or block[:HEAD_BYTES]
        block = block if isinstance(parser, _STRONG) else _without_own_lines(log, block)
        log.begin(block)
        if watching:
            parser = _watch(log, parser, block)
            watching = not isinstance(parser, _STRONG)
            others.block(log, block, parser.format if parser is not None else "")
        # Scan after the choice, because a kernel log is searched by its own rules.
        log.scan(block)
        tables.block(log, block)
        if parser is not None:
            parser.block(block)
        if observers:
            feed.feed(block)
        log.end()
    if not isinstance(parser, NvidiaSmiTableParser):
        tables.add_to(log)
    if parser is None:
        return _unrecognised(log, head, others)
    others.add_to(log, parser.format)
    parsed = parser.finish()
    return parsed if chosen == MlperfHpcParser.format else named_by_suite(parsed)


def _unrecognised(log: Log, head: bytes, others: OtherTools) -> ParsedLog:
    """Return the result of a log that no format recognizes. It is unproven, or fails by a fault's text.

    ``head`` has the first bytes of the log, and ``others`` the tools whose output was seen in it.
    """
    tool, reason = others.unread_tool()
    if tool:
        log.tag(UNREAD_TOOL, tool)
    if log.size:
        problem = encoding_problem(head) or reason
        message = f"the log is of no known format{': ' if problem else ''}{problem}"
        log.find("unrecognised", message, Verdict.UNPROVEN, line=1)
    log.marks_as_findings(None)
    return log.parsed("unknown", Verdict.UNPROVEN, [])


def _without_own_lines(log: Log, block: bytes) -> bytes:
    """Read the lines that Rackproof's launchers print around a program's output, and return the other lines.

    Empty lines are in their place. The lines still count in the log's size.
    """
    rest = take_state_lines(log, block)
    first, end, following = rest.partition(b"\n")
    if not log.lines and tag_program(log, first.decode("utf-8", "replace")):
        rest = end + following
    log.size += len(block) - len(rest)
    return rest


def _without_mark(stream: BinaryIO, log: Log) -> Iterator[bytes]:
    """Yield a log's blocks without the byte order mark that spreadsheets and PowerShell write.

    The mark still counts in the log's size.
    """
    for number, block in enumerate(blocks(stream)):
        text = block.removeprefix(codecs.BOM_UTF8) if number == 0 else block
        log.size += len(block) - len(text)
        yield text


_KEPT_BLANK_LINES = 16
_BLANK_LINES = re.compile(rb"\n(?:\n{%d,}+|(?:[ \t\r]*+\n){%d,}+)" % (_KEPT_BLANK_LINES, _KEPT_BLANK_LINES))
"""Pattern of more blank lines in a row than any format has."""


def _watch(log: Log, parser: LogParser | None, block: bytes) -> LogParser | None:
    """Return the parser to continue with, given another block.

    ``parser`` is the present one, or None as long as no block has shown a format.
    """
    if parser is None or isinstance(parser, _WEAK):
        # Long runs of blank lines are shortened, because the formats' patterns for the start of a line take
        # long at each blank line.
        name = detect(_BLANK_LINES.sub(b"\n" * _KEPT_BLANK_LINES, block))
        found = FORMATS[name] if name else None
        return parser if found is None or (parser and found in _WEAK) else _replaced(log, parser, found)
    found = next((strong for strong in _STRONG if strong.recognises(block)), None)
    return parser if found is None else _replaced(log, parser, found)


def _replaced(log: Log, parser: LogParser | None, new_parser: type[LogParser]) -> LogParser:
    """Return a parser of another format. If it replaces a parser, add a remark on the change of format."""
    if parser is not None:
        log.find("format_changed", f"{parser.format} until line {log.lines}, then {new_parser.format}")
    if isinstance(parser, _WEAK):
        parser.replace()
    return new_parser(log)


def parse_path(
    path: str | Path,
    format: str = "auto",
    *,
    name: str = "",
    declared: DeclaredLines | None = None,
) -> ParsedLog:
    """Parse a file, compressed or not. Findings give its path unless ``name`` is given.

    The arguments are those of :func:`parse`. A compressed file that is damaged or unpacks to too many bytes
    gets a finding.

    Raises:
        ValueError: The format is unknown.
        OSError: The file cannot be read.
    """
    _checked(format)
    with open_log(path) as stream:
        log = parse(
            cast("BinaryIO", stream),
            format=format,
            name=name or str(path),
            declared=declared,
        )
    return with_problem(log, stream.problem)


class _DigestingStream:
    """A stream that counts the bytes that pass through it, and computes their SHA-256."""

    def __init__(self, stream: LogStream) -> None:
        self._stream = stream
        self._digest = hashlib.sha256()
        self.size_bytes = 0

    def read(self, size: int = -1) -> bytes:
        return self._seen(self._stream.read(size))

    def readline(self, limit: int = -1) -> bytes:
        return self._seen(self._stream.readline(limit))

    def _seen(self, block: bytes) -> bytes:
        self._digest.update(block)
        self.size_bytes += len(block)
        return block

    @property
    def sha256(self) -> str:
        return self._digest.hexdigest()


def read_log_file(
    path: Path,
    name: str,
    *,
    format: str = "auto",
    observers: Sequence[LineObserver] = (),
    lines: LineRules | None = None,
) -> tuple[ParsedLog, LogFile]:
    """Return a parsed log and its entry in a run's record.

    The entry's digest (SHA-256) and size (bytes) are those of the uncompressed content. If the log cannot be
    unpacked completely, they are those of the part that was read.

    Args:
        path: The path of the log.
        name: The name in findings and in the record, relative to the run's folder.
        format: The name of a log format, or ``auto``. Ignored if ``lines`` are given.
        observers: The objects that receive every line in the same pass.
        lines: The rules for reading plain output, for the format ``lines``.

    Raises:
        ValueError: The format is unknown.
        OSError: The log cannot be read.
    """
    with open_log(path) as content:
        stream = _DigestingStream(content)
        # The parsers only call read() and readline(), until the end of the file.
        log = parse(cast("BinaryIO", stream), format=format, name=name, observers=observers, lines=lines)
    log = with_problem(log, content.problem)
    entry = LogFile(
        path=name,
        sha256=stream.sha256,
        size_bytes=stream.size_bytes,
        format=log.format,
        verdict=log.verdict,
    )
    return log, entry
