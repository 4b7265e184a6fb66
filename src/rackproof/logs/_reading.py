"""Provide the base of all log parsers, and the functions that they share: reading, limits, cleaning of text.

:func:`rackproof.logs.parse` reads a log once, in blocks of about 256 KiB that end at a line end, so memory
does not grow with the log. For each block, it calls :meth:`Log.begin`, :meth:`Log.scan`, the parser's
:meth:`LogParser.block`, and :meth:`Log.end`. ``scan`` finds the texts of failures that any log may have (out
of memory, traceback, cancelled job). It searches only lines that do not resemble earlier harmless ones
(:class:`KnownShapes`), and all of them at once, because a search of every line would take longer than
everything else.

Begin with :class:`LogParser`, the base of all parsers, and :class:`Log`, which collects their findings. An
*event* is a line of MLPerf's logger, ``:::MLLOG {"key": "run_start", ...}``.
"""

from __future__ import annotations

import ctypes
import json
import math
import re
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate
from itertools import accumulate, chain, filterfalse, islice
from math import isfinite
from operator import le
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, Protocol

import orjson

from rackproof.core.records import (
    WORST_FIRST,
    Direction,
    Finding,
    Measurement,
    ParsedLog,
    Series,
    Source,
    Verdict,
    worst,
)
from rackproof.core.spread import spread_of
from rackproof.logs._launchers import rank_of_label, split_label
from rackproof.logs.declared_lines import DeclaredLines
from rackproof.logs.fault_texts import MEANING, NO_NUMBERS, OF_THE_MACHINE, SEARCHED, SHAPES, read_fault
from rackproof.logs.printed_system import NODE_LIST, printed_systems_of

BLOCK = 1 << 18
"""Number of bytes to read at once. It is small enough for a core's cache while the block is searched a
dozen times."""
LONGEST_LINE = 1 << 20
"""Largest number of bytes that are added to a block to complete its last line. The rest of a longer line is
read as part of the next block."""
MAX_LINE = 1 << 16
"""Largest number of bytes of one line that parsers of single lines read."""
# The limits below bound the record of a log, whatever the log contains.
MAX_FINDINGS_PER_CODE = 5
"""Largest number of findings with one code. The last one states how many more there are."""
MAX_CODES = 60
"""Largest number of different codes of a log's findings. If there are more, the mildest ones are left out."""
MAX_POINTS = 2000
"""Number of points at which a curve is thinned, and largest number of stored intervals of :class:`Steps`."""
MAX_TAGS = 600
"""Largest number of a log's tags. A training on 16 nodes has two states of each of its 128 GPUs."""
MAX_MEASUREMENTS = 4000
MAX_EXCERPT = 200
"""Largest number of characters of an excerpt and of a tag's value."""

_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
"""Pattern of a terminal's escape sequence: a colour, a window's title, or a single command."""
_LONGEST_LABEL = 400
"""Largest number of bytes of a launcher's label."""
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff]")
"""Pattern of characters that change how a text is shown, such as bidi marks. Tabs are not among them."""
_ANSI_BYTES = re.compile(rb"\x1b\[[0-?]*[ -/]*[@-~]|[\x00-\x08\x0e-\x1f\x7f]")
"""Pattern of a colour or a control character in bytes. Tabs and line ends are not among them."""

# This is stricter than float(), which accepts "8_00" as 800, and digits of every script.
_NUMBER = re.compile(
    r"\s*[+-]?(?:[0-9]+(?:\.[0-9]*)?(?:e[+-]?[0-9]+)?|\.[0-9]+(?:e[+-]?[0-9]+)?|nan|inf|infinity)\s*",
    re.IGNORECASE | re.ASCII,
)


def clean(raw: bytes | str, limit: int = MAX_EXCERPT) -> str:
    """Return log text of at most ``limit`` characters that is safe to show.

    Escape sequences, control and bidi characters are removed. A longer text ends with an ellipsis.
    """
    text = raw[: limit * 8].decode("utf-8", "replace") if isinstance(raw, bytes) else raw[: limit * 8]
    if len(text) <= limit and text.isascii() and text.isprintable():
        return text.strip()  # Nearly all text is like this. The patterns take twenty times as long.
    text = _CONTROL.sub("", _ANSI.sub("", text)).replace("\t", " ").strip()
    # Lone surrogates (from JSON escapes) cannot be encoded as UTF-8.
    text = text.encode("utf-8", "replace").decode("utf-8")
    return text if len(text) <= limit else text[: limit - 1] + "…"


def text_of(value: object, limit: int = MAX_EXCERPT) -> str:
    """Return a decoded JSON value as cleaned text, or an ellipsis for one that Python cannot print."""
    try:
        text = value if isinstance(value, str) else str(value)
    except (RecursionError, ValueError):  # ValueError is for integers with thousands of digits.
        text = "…"
    return clean(text, limit)


def number(value: object) -> float | None:
    """Return a JSON value as a float, which may be infinite or NaN, else None.

    A text of at most 40 characters may be a number. A boolean is no number.
    """
    if type(value) is float:
        return value
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, int | float) or (
        isinstance(value, str) and len(value) <= 40 and _NUMBER.fullmatch(value)
    ):
        try:
            return float(value)
        except (ValueError, OverflowError):
            return None
    return None


def distinct_members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object. Raise a ValueError if it has a key twice, because either value may be meant."""
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("a key occurs twice")
    return members


def document_of(
    text: bytes | bytearray,
    members: Callable[[list[tuple[str, Any]]], dict[str, Any]] = distinct_members,
) -> Any:
    """Return the value of a JSON text.

    Args:
        text: The text.
        members: The function that checks the members of each object, and raises a ValueError for wrong ones.
            The default allows each key only once. What the function returns is not used.

    Raises:
        ValueError: The text is no JSON, or ``members`` raised the error.
        RecursionError: The text is nested too deeply.
    """
    document = orjson.loads(text)
    # orjson keeps the last of two values with one key.
    json.loads(text, object_pairs_hook=members)
    return document


def whole(value: object) -> int | None:
    """Return a JSON value, cut to a whole number of 0 to 1e18, else None."""
    as_float = number(value)
    if as_float is None or not isfinite(as_float) or as_float < 0 or as_float > 1e18:
        return None
    return int(as_float)


def asctime_moment(text: str) -> datetime | None:
    """Return the time of a text such as ``Fri Nov 27 13:00:00 2026``, as UTC, or None.

    The day of the week may be missing. strptime would expect the names of the process's locale, and Ansible
    sets the operator's. The parser of e-mails only reads English names.
    """
    parts = parsedate(text)
    if parts is None:
        return None
    try:
        return datetime(*parts[:6], tzinfo=UTC)
    except (ValueError, OverflowError):
        return None


def rank_of(prefix: bytes) -> int | None:
    """Return the rank that a launcher wrote before a line (`` 0: ``, ``[1,0]<stdout>:``), or None."""
    label, _rest = split_label(prefix[:_LONGEST_LABEL].decode("latin-1"))
    return rank_of_label(label)


class Curve:
    """A curve of fewer than ``MAX_POINTS`` points. With that number, it drops every other point.

    ``x`` is a time in most curves. It is made non-decreasing, and points that are not finite are left out.
    The parser of events also reads and sets ``last``, ``position``, ``count`` and ``skip`` itself, because
    a call of :meth:`add` for each statistic takes too long.
    """

    def __init__(self, name: str, unit: str, x_unit: str) -> None:
        self.name, self.unit, self.x_unit = name, unit, x_unit
        self.labels: dict[str, str] = {}
        self.above, self.below = 0.0, math.inf
        """Exclusive limits for the log's values. The parser judges values outside."""
        self.last = math.nan
        """Last value, stored or not."""
        self.position: int | None = None
        """Position of the last value in the current block."""
        self.count = 0
        """Number of values so far, stored or not."""
        self.skip = 0
        """Number of points to leave out before the next stored one."""
        self.x: list[float] = []
        self.y: list[float] = []
        self._stride = 1
        """Number of points of which one is stored. It doubles each time that the curve is full."""

    def add(self, x: float, y: float) -> None:
        """Add one point. Only every stride-th point is stored."""
        if self.skip:
            self.skip -= 1
            return
        if isfinite(x) and isfinite(y):
            self.keep(x, y)

    def keep(self, x: float, y: float) -> None:
        """Store one point of finite numbers. The caller already skipped points if needed."""
        self.skip = self._stride - 1
        xs = self.x
        xs.append(x if not xs or x >= xs[-1] else xs[-1])
        self.y.append(y)
        if len(xs) >= MAX_POINTS:
            self.x, self.y = self.x[::2], self.y[::2]
            self._stride *= 2
            self.skip = self._stride - 1

    def extend(self, x: list[float], y: list[float]) -> None:
        """Add points as :meth:`add` does.

        The points of an empty curve are stored at once if they are few, finite and in order.
        """
        in_order = all(map(le, x, islice(x, 1, None))) and all(map(isfinite, chain(x, y)))
        if self.x or len(y) >= MAX_POINTS or self.skip or not in_order:
            for point in zip(x, y, strict=True):
                self.add(*point)
        else:
            self.x, self.y = list(x), list(y)

    def series(self) -> Series:
        """Return the curve as a record."""
        return Series(
            name=self.name,
            unit=self.unit,
            x_unit=self.x_unit,
            x=tuple(self.x),
            y=tuple(self.y),
            labels=self.labels,
        )


class Steps:
    """A number that increases by equal steps from line to line, such as steps, batches or epochs.

    The first step may be shorter than the others, because programs print their first line early.
    """

    MOST = 1.75
    """Largest size of a step, relative to the usual one. A larger one shows that a line is missing."""

    def __init__(self) -> None:
        self.last: float | None = None
        self.gaps: list[float] = []
        """The first ``MAX_POINTS`` steps of more than 0 between the numbers."""
        self.largest: tuple[float, int] = (0.0, 0)
        """Largest of these steps, and the line after it."""
        self.back: int | None = None
        """Line of the first number that is not higher than the number before it."""

    def take(self, value: float, line: int) -> None:
        """Add the number of the next line."""
        before, self.last = self.last, value
        if before is None:
            return
        gap = value - before
        if gap <= 0:
            self.back = self.back or line
            return
        if len(self.gaps) < MAX_POINTS:
            self.gaps.append(gap)
        if gap > self.largest[0]:
            self.largest = gap, line

    @property
    def usual(self) -> float:
        """Return the lower median of the steps, or 0 if there are none."""
        return sorted(self.gaps)[(len(self.gaps) - 1) // 2] if self.gaps else 0.0

    def problem(self, of: str) -> tuple[str, int] | None:
        """Return the fault in the numbers and its line, or None.

        Args:
            of: The objects that are counted, as a plural noun.
        """
        if self.back is not None:
            return f"{of} go back, or are printed twice: two runs, or lines that were moved", self.back
        gap, line = self.largest
        if self.usual and gap > self.MOST * self.usual:
            return (
                f"{gap:g} {of} lie between two lines, where {self.usual:g} are usual: lines are missing",
                line,
            )
        return None


class Mean:
    """A running mean of values, with their number, the last value and its line."""

    __slots__ = ("count", "last", "line", "total")

    def __init__(self) -> None:
        self.total = 0.0
        self.count = 0
        self.last = math.nan
        self.line = 1

    def add(self, value: float, line: int) -> None:
        """Add one value, found at a line."""
        self.total += value
        self.count += 1
        self.last = value
        self.line = line

    @property
    def value(self) -> float:
        """Return the sum of all values divided by their number, or NaN if there are no values."""
        return self.total / self.count if self.count else math.nan


@dataclass(slots=True)
class Mark:
    """A failure's text in a log: its line, the text around it, and the rank that wrote it, if it is known."""

    line: int
    excerpt: str
    rank: int | None


TASK_FAILED = "task_failed"
"""Code of a task that ended with an error. It does no harm before the first event of an MLPerf log."""


@dataclass(slots=True)
class Marks:
    """The first marks of one code, with the number of all lines with such a mark and the last one.

    Attributes:
        kept: The first marks. Those before the first event of MLPerf and those after it are limited
            separately if the code is ``TASK_FAILED``.
        count: The number of all marks.
        early: The number of all marks of ``TASK_FAILED`` before the first event of MLPerf.
        last_line: The line of the last mark.
    """

    kept: list[Mark] = field(default_factory=list)
    count: int = 0
    early: int = 0
    last_line: int = 0


def _finders() -> tuple[Callable[[bytes, bytes], list[int]], Callable[[bytes, bytes], list[int]]]:
    """Return a fast and a portable function that return the positions of a literal in a text.

    The C library's ``memmem`` searches a block at 8 GB/s, and ``bytes.find`` at 2 to 3 GB/s.
    """

    def portable(text: bytes, literal: bytes) -> list[int]:
        places, place = [], text.find(literal)
        while place >= 0:
            places.append(place)
            place = text.find(literal, place + len(literal))
        return places

    try:
        memmem = ctypes.CDLL(None).memmem
    except (OSError, AttributeError, TypeError):  # not Unix, or a C library without memmem
        return portable, portable
    memmem.restype = ctypes.c_void_p
    memmem.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_size_t]

    def fast(text: bytes, literal: bytes) -> list[int]:
        """Return the positions of the literal in the text."""
        size, length = len(text), len(literal)
        position = memmem(text, size, literal, length)
        if not position:
            return []
        start = (
            ctypes.cast(ctypes.c_char_p(text), ctypes.c_void_p).value or 0
        )  # `text` outlives the loop, so its address stays valid
        places = []
        while position:
            places.append(position - start)
            following = position + length
            position = memmem(following, start + size - following, literal, length)
        return places

    return fast, portable


find_all, find_all_portably = _finders()

EVENT_TOKEN = b":::ML"
"""Beginning of an event in every round of MLPerf."""
_EVENT = re.compile(rb":::ML(?:LOG[ \t]*\{|L [\d.+-]|Pv0\.5\.)")
"""Pattern of an event's beginning, which a command that only names the token does not match."""
_SCALE = re.compile(rb"loss scale to ([0-9.eE+-]{1,40})")
"""Pattern of a new loss scale: "Gradient overflow.  Skipping step, ... reducing loss scale to 1024.0"."""
_RESULT = re.compile(rb"^RESULT,([^,\r\n]{1,80}),([^\r\n]{0,200})")
"""Pattern of the line in which NVIDIA's run script prints a training's wall time in seconds (here 640):
``RESULT,SINGLE_STAGE_DETECTOR,,640,nvidia,2019-12-07 03:51:54 PM``."""

TINY_LOSS_SCALE = 1e-4
"""Smallest healthy automatic loss scale. Below it, gradients overflow at any scale, and the training is
lost."""


_LOSS_SCALE, _RESULT_LINE = b"gradient overflow", b"result,"
"""Lower-case texts of a loss scale and a RESULT line, which :class:`Log` reads itself."""


_WORD_GOES_ON = re.compile(rb"(?!inity)[a-z]")
"""Pattern of a letter after "nan" or "inf", which shows another word (nano, info). "infinity" is no other."""


_SHAPE = bytes(range(256)).lower().translate(bytes.maketrans(b"123456789", b"000000000"))
"""Table that turns a line into its shape (:class:`KnownShapes`)."""


class KnownShapes:
    """A cache of the shapes of lines that were already searched for failures.

    Nearly every line of a log resembles an earlier one. A shape is a line in lower case with each digit
    replaced by 0. If a line contains a text, its shape contains the text's shape, so a harmless shape
    proves that its lines are harmless. The findings do not depend on this cache.
    """

    MOST_BYTES = 8 << 20
    """Size of the stored shapes at which all are dropped."""
    BYTES_OF_SHAPE = 150
    """Bytes that Python needs for a text and its place in a table, in addition to its letters."""

    def __init__(self, literals: Sequence[bytes]) -> None:
        self._literals = [(literal.translate(_SHAPE), literal) for literal in literals]
        self._harmless: set[bytes] = set()
        self._suspects: dict[bytes, tuple[bytes, ...]] = {}
        self._size = 0

    @property
    def kept(self) -> Iterator[bytes]:
        """Return an iterator over the stored shapes."""
        return chain(self._harmless, self._suspects)

    def literals_in(self, text: bytes) -> tuple[set[bytes], int]:
        """Return the literals that the lines of a text may contain. No literal in the text is missing.

        Returns:
            The literals, and the number of the text's line feeds.
        """
        lines = text.translate(_SHAPE).split(b"\n")
        shapes = set(filterfalse(self._harmless.__contains__, lines))
        literals: set[bytes] = set()
        new = []
        for shape in shapes:
            known_literals = self._suspects.get(shape)
            if known_literals is None:
                new.append(shape)
            else:
                literals.update(known_literals)
        if new:
            literals.update(self._search(new))
        return literals, len(lines) - 1

    def _search(self, new: list[bytes]) -> list[bytes]:
        """Return the literals in shapes that are not yet known, and store these shapes."""
        # Search all new lines at once, because most blocks contain no suspicious one.
        text = b"\n".join(new)
        present = [(literal, name) for literal, name in self._literals if _holds(text, literal)]
        self._size += len(text) + self.BYTES_OF_SHAPE * len(new)
        if self._size > self.MOST_BYTES:
            self._harmless.clear()
            self._suspects.clear()
            self._size = 0
        elif present:
            for shape in new:
                names_held = tuple([name for literal, name in present if _holds(shape, literal)])
                if names_held:
                    self._suspects[shape] = names_held
            self._harmless.update(shape for shape in new if shape not in self._suspects)
        else:
            self._harmless.update(new)
        return [name for _literal, name in present]


def _holds(text: bytes, literal: bytes) -> bool:
    """Return whether a lower-case text contains a literal. "nan" and "inf" must not begin another word."""
    places = find_all(text, literal)
    if literal not in NO_NUMBERS:
        return bool(places)
    return any(not _WORD_GOES_ON.match(text, at + len(literal)) for at in places)


SEARCHED_IN_TEXT = (_LOSS_SCALE, _RESULT_LINE, *SEARCHED)
"""Literals that every text outside of events is searched for, in lower case."""
_KNOWN = KnownShapes(SEARCHED_IN_TEXT)
"""Cache of the whole process, because logs of one program resemble each other."""


def _hits(text: bytes, ignored: frozenset[bytes] = frozenset()) -> tuple[list[tuple[int, bytes]], int]:
    """Return the literals in a text that may belong to a failure, and the number of line feeds.

    Each literal comes with its position. They are in order of position. Ignored literals are left out.
    """
    literals, newlines = _KNOWN.literals_in(text)
    literals -= ignored
    if not literals:
        return [], newlines
    lowered = text.lower()
    hits: list[tuple[int, bytes]] = []
    for literal in literals:
        if literal == b"inf":
            # Search the text itself and not the one in lower case, because every line of NCCL contains INFO.
            places = sorted([*find_all(text, b"inf"), *find_all(text, b"Inf")])
        elif literal in SHAPES:
            places = find_all(text.translate(_SHAPE), literal)
        else:
            places = find_all(lowered, literal)
        if literal in NO_NUMBERS:
            places = [place for place in places if not _WORD_GOES_ON.match(lowered, place + len(literal))]
        hits += [(place, literal) for place in places]
    hits.sort()  # so that lines are counted forwards
    return hits, newlines


_BRACE = ord("}")


def _end_of_event(piece: bytes, end: int) -> int:
    """Return the end of an event, which is after the last brace of its line, or 0 if the line has none.

    Text after that brace is of another rank, and is searched for failures.
    """
    return end if piece.endswith(b"}\r", 0, end) else piece.rfind(b"}", 0, end) + 1


_TEXT_FOLLOWS = re.compile(rb"""\}[ \t\r}\]]*(?:[^,}\]\s]|,[ \t]*[^"'{\[\s])""")
"""Pattern of a brace after which no JSON goes on. An event ends there or before, unless a text in it has the
brace."""
_DECODER = json.JSONDecoder()


def _end_before_text(piece: bytes, end: int, brace: int) -> int:
    """Return the end of an event before text in its line that also has a brace.

    Args:
        piece: The text from the event on.
        end: The end of the line's last brace.
        brace: The position of the first brace after which no JSON goes on.
    """
    begin = max(0, piece.find(b"{", 0, end))
    try:
        _value, length = _DECODER.raw_decode(
            piece[begin:end].decode("latin-1")
        )  # one character for each byte
    except (ValueError, RecursionError):
        return brace + 1
    return begin + length


def _as_printed(before: bytes, after: bytes) -> tuple[bytes, bytes]:
    """Return both parts of a line without colours, up to the nearest carriage return on each side.

    A progress bar prints several texts with carriage returns in one line. A failure's text is in one of them.
    """
    if b"\x1b" in before or b"\x1b" in after:
        before, after = _ANSI_BYTES.sub(b"", before), _ANSI_BYTES.sub(b"", after)
    return before[before.rfind(b"\r") + 1 :], after.partition(b"\r")[0]


def _mildness(verdict: Verdict | None) -> int:
    """Return a number that is higher for a milder verdict, and highest for a remark, which has none."""
    return len(WORST_FIRST) if verdict is None else WORST_FIRST.index(verdict)


class Log:
    """The state of one log during reading: size, lines, findings, tags and marks of failure."""

    def __init__(self, name: str = "") -> None:
        self.name = name
        self.declared: DeclaredLines | None = None
        """Lines of a kernel log that the operator declared harmless."""
        self.size = 0
        self.lines = 0
        """Number of line feeds in the blocks before the current one."""
        self.ends_in_line = False
        """True if the last block ended without a line end."""
        self.findings: dict[str, list[Finding]] = {}
        """Stored findings of each code."""
        self.counts: dict[str, int] = {}
        """Number of findings of each code, stored or not."""
        self.tags: dict[str, str] = {}
        self.printed: dict[str, Any] = {}
        """The first description of the system that a run script printed (``:::SYSJSON``)."""
        self.stated_nodes: int | None = None
        """The largest number of nodes that a run script stated (``:::DLPAL``)."""
        self.marks: dict[str, Marks] = {}
        """Failure texts of each code of :data:`rackproof.logs.fault_texts.MEANING`."""
        self.reads_line: Callable[[bytes], bool] | None = None
        """A function that returns True if the parser judges a line by its own rules. Failure texts in
        such a line are ignored."""
        self.ignored: frozenset[bytes] = frozenset()
        """Entries of :data:`SEARCHED_IN_TEXT` whose lines the parser judges by its own rules, all of them."""
        self.marks_are_judged = False
        """True after :meth:`marks_as_findings`."""
        self.lines_of_other_tools: list[int] = []
        """Lines that tools other than that of the log's format printed."""
        self.smallest_scale = math.inf
        """Smallest loss scale so far."""
        self.results: list[tuple[int, float, str]] = []
        """The first few ``RESULT`` lines, as (line, seconds, name)."""
        self.pieces: list[bytes] = []
        """The current block, split at every event token. The first piece is before all events."""
        self.ends: list[int] = []
        """The end of the event in each piece except the first, which is a line end or the next token."""
        self.first_event = math.inf
        """Position of the first event in the current block, 0 after its block, and infinity before it."""
        self._block = b""
        self._newlines = 0
        self._counted_to = 0
        self._line = 1

    # -- position ---------------------------------------------------------------------------------

    def begin(self, block: bytes) -> None:
        """Start a block of whole lines."""
        self._block = block
        self.pieces = block.split(EVENT_TOKEN)
        self.ends = [end if (end := piece.find(b"\n")) >= 0 else len(piece) for piece in self.pieces[1:]]
        if self.first_event < math.inf:
            self.first_event = 0
        elif self.ends and (event := _EVENT.search(block)):
            self.first_event = event.start()
        self._counted_to = 0
        self._line = self.lines + 1
        self._take_system(block)

    def _take_system(self, block: bytes) -> None:
        """Store the system and the number of nodes that a run script printed."""
        if b":::SYSJSON " in block and not self.printed:
            self.printed = next(iter(printed_systems_of(block)), {})
        if b":::DLPAL " in block:
            counts = [int(listed[1]) for listed in NODE_LIST.finditer(block)]
            self.stated_nodes = max([*counts, self.stated_nodes or 0]) or None

    def end(self) -> None:
        """Close the block, and add its lines and bytes to the totals."""
        block = self._block
        self.lines += self._newlines
        self.size += len(block)
        self._block = b""
        if block:
            self.ends_in_line = not block.endswith((b"\n", b"\r"))

    @property
    def line_after_last(self) -> int:
        """Return the number of the line after the last one, which may lack a line feed."""
        return self.lines + (2 if self.ends_in_line else 1)

    def line_at(self, position: int) -> int:
        """Return the line number (from 1) of a byte position in the current block.

        Lines are counted from the nearest known position, which is the last request, or the start or end
        of the block.
        """
        block, counted_to = self._block, self._counted_to
        if position >= counted_to:
            if position - counted_to <= len(block) - position:
                self._line += block.count(b"\n", counted_to, position)
            else:
                self._line = self.lines + 1 + self._newlines - block.count(b"\n", position)
        elif counted_to - position < position:
            self._line -= block.count(b"\n", position, counted_to)
        else:
            self._line = self.lines + 1 + block.count(b"\n", 0, position)
        self._counted_to = position
        return self._line

    def line_text(self, position: int) -> tuple[bytes, bytes]:
        """Return the text before and after a position in its line, each of at most 4096 bytes."""
        block = self._block
        start = block.rfind(b"\n", max(0, position - 4096), position) + 1 or max(0, position - 4096)
        end = block.find(b"\n", position, position + 4096)
        return block[start:position], block[position : end if end >= 0 else position + 4096]

    # -- collecting -------------------------------------------------------------------------------

    def find(
        self,
        code: str,
        message: str,
        verdict: Verdict | None = None,
        *,
        line: int | None = None,
        rank: int | None = None,
        excerpt: bytes | str = "",
    ) -> None:
        """Store a finding. Only the first few of one code are stored, and the rest are counted.

        A finding without a verdict is a remark. If the code's places are full, a finding whose verdict none
        of them has takes the place of the mildest one, if the mildest one is milder. So the worst verdict
        stays.
        """
        self.counts[code] = self.counts.get(code, 0) + 1
        if code not in self.findings and not self._has_place(verdict):
            return
        findings = self.findings.setdefault(code, [])
        if len(findings) >= MAX_FINDINGS_PER_CODE:
            if any(finding.verdict is verdict for finding in findings):
                return
            mildness, place = max((_mildness(finding.verdict), at) for at, finding in enumerate(findings))
            if _mildness(verdict) > mildness:
                return
            del findings[place]
        findings.append(
            Finding(
                code=code,
                message=clean(message, 500),
                verdict=verdict,
                source=Source(file=self.name or None, line=line, rank=rank),
                excerpt=clean(excerpt),
            )
        )

    def _has_place(self, verdict: Verdict | None) -> bool:
        """Return whether a new code has a place. If needed, drop a code whose findings are all milder."""
        if len(self.findings) < MAX_CODES:
            return True
        mildest, code = max(
            (min(_mildness(finding.verdict) for finding in findings), code)
            for code, findings in self.findings.items()
        )
        if _mildness(verdict) >= mildest:
            return False
        del self.findings[code]
        return True

    def tag(self, key: str, value: object, *, limit: int = MAX_EXCERPT) -> None:
        """Store a tag, which is a text that the log states. Later values of its key are ignored.

        The number of tags and their length are limited.
        """
        key = clean(key, 100)
        if key and key not in self.tags and len(self.tags) < MAX_TAGS:
            self.tags[key] = text_of(value, limit)

    def source(self, line: int | None, rank: int | None = None) -> Source:
        """Return the place where something was read."""
        return Source(file=self.name or None, line=line, rank=rank)

    def mark(self, code: str, position: int) -> None:
        """Record the text of a failure, once for each line. The parser decides at the end what it means."""
        marks = self.marks.get(code)
        if marks is None:
            marks = self.marks[code] = Marks()
        line = self.line_at(position)
        if line == marks.last_line:
            return  # another text of the same failure
        is_early = code == TASK_FAILED and position < self.first_event
        marks.count += 1
        marks.early += is_early
        marks.last_line = line
        if (marks.early if is_early else marks.count - marks.early) <= MAX_FINDINGS_PER_CODE:
            before, after = self.line_text(position)
            # The excerpt begins near the marker, so that a long line before it cannot displace it.
            marks.kept.append(Mark(line, clean(before[-80:] + after), rank_of(before)))

    def scan(self, block: bytes) -> None:
        """Search the current block for texts of failures that any format may show, and count its lines.

        Events are skipped, because they are a third of the bytes and their parser reads them anyway.
        """
        pieces = self.pieces
        ends = [
            # Nearly every event ends with its line, which saves a call.
            end if end and piece[end - 1] == _BRACE else _end_of_event(piece, end)
            for piece, end in zip(islice(pieces, 1, None), self.ends, strict=True)
        ]
        self._end_events_before_text(block, ends)
        texts = pieces[:1] + [piece[end:] for piece, end in zip(islice(pieces, 1, None), ends, strict=True)]
        unread_text = b"".join(texts) if ends else block
        hits, self._newlines = _hits(unread_text, self.ignored)  # no event holds a line feed
        if not hits:
            return
        text_begins = [0, *accumulate(map(len, texts))]
        piece_begins = [0, *accumulate(map(len, pieces))]
        for place, literal in hits:
            # Turn the place in the text without events into a position in the block. Of the pieces that begin
            # here, only the last one is not empty.
            index = bisect_right(text_begins, place) - 1
            skipped = ends[index - 1] if index else 0
            position = piece_begins[index] + index * len(EVENT_TOKEN) + skipped + place - text_begins[index]
            self._hit(literal, position, position - (place - text_begins[index]) if index else 0)

    def _end_events_before_text(self, block: bytes, ends: list[int]) -> None:
        """Correct the ends of events whose line goes on with text that has a brace, too."""
        pieces, begins, index = self.pieces, [0], -1
        for match in _TEXT_FOLLOWS.finditer(block, len(pieces[0])) if ends else ():
            if len(begins) == 1:
                begins = list(accumulate(len(piece) + len(EVENT_TOKEN) for piece in pieces))
            before, index = index, bisect_right(begins, match.start()) - 1
            brace = match.start() - begins[index]
            # The first brace of an event is enough, so that a long line is decoded only once.
            if index != before and brace < ends[index] - 1:
                ends[index] = _end_before_text(pieces[index + 1], ends[index], brace)

    def _hit(self, literal: bytes, position: int, begin: int) -> None:
        """Record a literal in its line, if the line reports a failure.

        Args:
            literal: The literal.
            position: The position of the literal in the block.
            begin: The end of an event before it, or 0. The event is not part of the text.
        """
        if literal == _LOSS_SCALE:
            # These lines are read before the work below, because automatic loss scaling writes tens of
            # thousands.
            self._loss_scale(position)
            return
        before, after = self.line_text(position)
        if literal == _RESULT_LINE:
            self._result(position, after)
            return
        before = before[max(0, begin - position + len(before)) :]
        if self.reads_line is not None and self.reads_line(before + after):
            return
        before, after = _as_printed(before, after)
        for code in read_fault(literal, before, after[:400]):
            self.mark(code, position)

    def _loss_scale(self, position: int) -> None:
        """Keep the smallest loss scale, and mark the line where it becomes tiny."""
        match = _SCALE.search(self._block, position, position + 200)
        if not match:
            return
        scale = number(match[1].decode("ascii"))
        if scale is not None and scale < self.smallest_scale:
            if scale < TINY_LOSS_SCALE <= self.smallest_scale:
                self.mark("loss_scale", position)
            self.smallest_scale = scale

    def _result(self, position: int, after: bytes) -> None:
        """Keep the line, seconds and benchmark of a RESULT line. At most 64 are kept."""
        match = _RESULT.match(after)
        if not match or len(self.results) >= 64:
            return
        # Field positions vary by model. The seconds are the last plain number before the date.
        numbers = [int(text) for text in match[2].split(b",") if re.fullmatch(rb"\s*\d{1,9}\s*", text)]
        if numbers:
            self.results.append((self.line_at(position), float(numbers[-1]), clean(match[1], 80)))

    # -- the end ----------------------------------------------------------------------------------

    def marks_as_findings(self, ended_well_at: int | None) -> None:
        """Turn marks into findings.

        Args:
            ended_well_at: The line that proves a good end (a successful ``run_stop``, a printed total),
                or ``None``. Texts after it, up to the first line of another tool, become remarks, except for
                the codes of :data:`rackproof.logs.fault_texts.OF_THE_MACHINE`.
        """
        self.marks_are_judged = True
        shutdown_ends = self._line_of_tool_after(ended_well_at)
        for code, marks in self.marks.items():
            message, fatal, fatal_even_if_well = MEANING[code]
            at_any_time = fatal_even_if_well if code in OF_THE_MACHINE else None
            extra = marks.count - len(marks.kept)
            for index, mark in enumerate(marks.kept):
                # Text after a proven end belongs to the shutdown and does no harm, unless a part is broken,
                # or another tool began to print before it.
                verdict = at_any_time
                if ended_well_at is None:
                    verdict = fatal
                elif not ended_well_at <= mark.line < shutdown_ends:
                    verdict = fatal_even_if_well
                more = f" ({extra} more, the last in line {marks.last_line})" if not index and extra else ""
                if code == "loss_scale":
                    more = f" (down to {self.smallest_scale:.3g})"
                self.find(code, message + more, verdict, line=mark.line, rank=mark.rank, excerpt=mark.excerpt)

    def _line_of_tool_after(self, ended_well_at: int | None) -> float:
        """Return the first line of another tool after the line of a good end, or infinity."""
        later = (line for line in self.lines_of_other_tools if line > (ended_well_at or 0))
        return min(later, default=math.inf)

    def parsed(
        self,
        format_name: str,
        base: Verdict,
        measurements: list[Measurement],
        curves: list[Curve] | None = None,
    ) -> ParsedLog:
        """Return the record. Its verdict is the worst of ``base`` and all findings."""
        if not self.marks_are_judged:
            # The format's parser did not judge the end, so judge it here. No format may ignore a failure's
            # text.
            self.marks_as_findings(self.line_after_last if base is Verdict.PASS else None)
        if self.size == 0:
            self.find("empty", "the log is empty", Verdict.UNPROVEN)
        if len(measurements) > MAX_MEASUREMENTS:
            self.find(
                "too_many_measurements", f"only the first {MAX_MEASUREMENTS} of {len(measurements)} kept"
            )
        findings = self._counted_findings()
        return ParsedLog(
            format=format_name,
            file=self.name,
            size_bytes=self.size,
            lines=self.lines + (1 if self.ends_in_line else 0),
            measurements=tuple(measurements[:MAX_MEASUREMENTS]),
            series=tuple(curve.series() for curve in curves or [] if curve.x),
            findings=tuple(findings),
            tags=self.tags,
            verdict=worst([base, *(finding.verdict for finding in findings if finding.verdict)]),
        )

    def _counted_findings(self) -> list[Finding]:
        """Return the findings. The last one of each code states how many more were found."""
        findings: list[Finding] = []
        for code, of_code in self.findings.items():
            extra = self.counts[code] - len(of_code)
            if extra > 0:
                last = of_code[-1]
                of_code = [
                    *of_code[:-1],
                    last.model_copy(update={"message": f"{last.message} (and {extra} more)"}),
                ]
            findings.extend(of_code)
        return findings


class LogParser(ABC):
    """The base of parsers. A parser receives blocks of whole lines, and then returns the record.

    Each block was already searched for failures by :meth:`Log.scan`. A parser of single lines overrides
    :meth:`line`, and a parser of whole blocks overrides :meth:`block`. To judge the failure texts of some
    lines by its own rules, a parser sets ``log.reads_line``.
    """

    format: ClassVar[str]
    """Name of the format, as used in definitions and commands."""
    description: ClassVar[str]
    """Description of the format on one line."""

    def __init__(self, log: Log) -> None:
        self.log = log
        log.reads_line = None
        log.ignored = frozenset()

    @staticmethod
    @abstractmethod
    def recognises(head: bytes) -> bool:
        """Return whether some bytes of a log, at first those of its beginning, show this format."""

    def block(self, data: bytes) -> None:
        """Read one block of whole lines, and call :meth:`line` for each line that is not empty.

        A line with carriage returns is passed on in its parts.
        """
        number_of = self.log.lines
        # `splitlines` would also split at form feeds. Bare carriage returns are from progress bars.
        for raw in data.split(b"\n"):
            number_of += 1
            if not raw:
                continue
            for part in raw.split(b"\r") if b"\r" in raw else (raw,):
                if part:
                    text = part[:MAX_LINE]
                    if not text.isascii() or _ANSI_BYTES.search(text):
                        text = _ANSI_BYTES.sub(b"", text)
                    self.line(number_of, text.decode("utf-8", "replace"))

    def line(self, at: int, text: str) -> None:  # noqa: B027  (parsers of whole blocks do not use it)
        """Read one line, without its line end, colours and control characters.

        Args:
            at: The number of the line, from 1.
            text: The first ``MAX_LINE`` bytes of the line, or of a part between carriage returns.
        """

    @abstractmethod
    def finish(self) -> ParsedLog:
        """Return the record of the log."""

    def measure(
        self,
        name: str,
        value: float,
        unit: str,
        direction: Direction | None,
        line: int | None,
        rank: int | None = None,
        labels: dict[str, str] | None = None,
        samples: Iterable[float] = (),
    ) -> Measurement:
        """Return a measurement with the place where it was read, and the spread of its samples.

        ``direction`` is the direction in which a value is better, or None if no value is.
        """
        return Measurement(
            name=name,
            value=value,
            unit=unit,
            direction=direction,
            labels=labels or {},
            spread=spread_of(samples),
            source=self.log.source(line, rank),
        )


def blocks(stream: BinaryIO) -> Iterator[bytes]:
    """Yield blocks of the stream that end at a line end, except the last block and very long lines."""
    while block := stream.read(BLOCK):
        yield block if block.endswith(b"\n") else block + stream.readline(LONGEST_LINE)


class LineObserver(Protocol):
    """An observer that reads the lines of a log in the same pass as its parser."""

    def line(self, number: int, raw: bytes) -> None:
        """Process one line.

        Args:
            number: The line's number, from 1.
            raw: The bytes of the line without the line feed. If the line is longer than about 1 MiB, it
                is only the beginning.
        """


class LineFeed:
    """A feed that cuts blocks into lines for observers."""

    def __init__(self, observers: Sequence[LineObserver]) -> None:
        self._observers = observers
        self._number = 0
        self._in_line = False

    def feed(self, block: bytes) -> None:
        """Pass the lines of the next block to every observer, in order."""
        lines = block.split(b"\n")
        if not lines[-1]:
            lines.pop()  # the block ends at a line end
        for raw in lines:
            if self._in_line:
                # The beginning of this line, which is too long for one block, was already passed on.
                self._in_line = False
                continue
            self._number += 1
            for observer in self._observers:
                observer.line(self._number, raw)
        self._in_line = not block.endswith(b"\n")


def observe_path(path: Path, observers: Sequence[LineObserver]) -> None:
    """Read a file only for observers, without parsing it. The file must not be compressed.

    Raises:
        OSError: The file cannot be read.
    """
    feed = LineFeed(observers)
    with path.open("rb") as stream:
        for block in blocks(stream):
            feed.feed(block)
