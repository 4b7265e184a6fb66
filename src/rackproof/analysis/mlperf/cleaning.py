"""Copy an MLPerf result log in a form that ``mlperf-logging`` can read safely.

Here, the tool is the package ``mlperf-logging``. An event is a line such as
``:::MLLOG {"key": "run_start", "value": null, "time_ms": 1720000000000, …}``. The time that the tool's parser
takes grows with the square of a line's length. The parser crashes on lines that are valid JSON but not
events, and uses only the last of two events on one line. The tool's checker opens a rules file whose path
contains text of the log. For these reasons, the copy contains only checked events, one per line. An
unreadable event becomes a line that the parser reports as an ordinary error, so that the tool, not this
module, decides about a damaged log.

:mod:`rackproof.analysis.mlperf.worker` copies each log with :func:`clean_log`, and quotes log text with
:func:`safe_text`. The worker of submissions calls :func:`path_problem`.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rackproof.core.records import Finding, Source
from rackproof.core.text import sanitize
from rackproof.logs.opening import LogStream, open_log

# Longer lines are read in parts of this many bytes, so that memory does not grow with the length of a line.
_MAX_LINE = 1 << 20
# Lengths are in characters. The tool needs 20 ms for a line of 8,000, and 0.4 s for one of 32,000. In an
# event above _LONG_EVENT, texts are cut to _MAX_STRING, and lists to _MAX_LIST entries, because no rule reads
# long ones. If the event is then still above _MAX_EVENT, it counts as damaged.
_LONG_EVENT = 8_000
_DEEPEST = 50
"""Deepest nesting of a readable event. The tool's parser recurses, and published events have a depth of 3."""
_FIRST_MOMENT_S, _LAST_MOMENT_S = 0, 4_102_444_800
"""Earliest and latest readable time of an event, in seconds since 1970: 1970 and 2100."""
_MAX_EVENT = 32_000
_MAX_STRING = 500
_MAX_LIST = 100
_MAX_FINDINGS = 20
"""Largest number of remarks about one log."""

_DECODER = json.JSONDecoder()
_ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
# Matches the beginning of an event of round 0.6, after ":::MLL": "1560000000.123 run_start: ".
_MLL_06 = re.compile(r"(?P<head> ?\d+(?:\.\d*)? [A-Za-z0-9_]+ ?:\s+)")
# The values of these keys become part of the path of a rules file, whose contents the tool executes.
_PATH_KEYS = frozenset({"submission_benchmark", "submission_division", "opt_name"})


@dataclass
class CleanedLog:
    """The facts that :func:`clean_log` found while it copied a log.

    Attributes:
        sha256: The SHA-256 of the original's bytes.
        digest: The SHA-256 of the events, without the text around them. Copies of one run share it.
        lines: ``lines[i]`` is the number (from 1) of the original line of the copy's line ``i``.
        damaged: The number of unreadable events.
        findings: The remarks about damaged lines, at most 20.
    """

    sha256: str
    digest: str
    lines: list[int] = field(default_factory=list)
    damaged: int = 0
    findings: list[Finding] = field(default_factory=list)

    @property
    def events(self) -> int:
        """Return the number of readable events."""
        return len(self.lines) - self.damaged


def safe_text(text: str, limit: int = 300) -> str:
    """Return log text on one harmless line of at most ``limit`` characters.

    UTF-8 text that was read as Latin-1 (as the tool does) is corrected.
    """
    with contextlib.suppress(UnicodeEncodeError):
        text = text[: 8 * limit].encode("latin-1").decode("utf-8", "replace")
    return sanitize(text, limit)


def clean_log(source: Path, target: Path, *, ruleset: str) -> CleanedLog:
    """Copy the events of ``source`` to ``target``, one per line.

    Args:
        source: The path of a log, compressed or not, which is only read.
        target: The path of the copy. An existing file is replaced.
        ruleset: The round, which determines the format: ``:::MLL`` (seconds) for 0.6.0, and ``:::MLLOG``
            later.

    Raises:
        OSError: ``source`` cannot be read, or ``target`` cannot be written.
    """
    with source.open("rb") as raw:
        cleaned = CleanedLog(sha256=hashlib.file_digest(raw, "sha256").hexdigest(), digest="")
    token, read_event = (":::MLL", _read_06) if ruleset == "0.6.0" else (":::MLLOG ", _read_json)
    events = hashlib.sha256()
    # Read Latin-1, with a line end at a bare CR, as the tool does, to find the same events.
    with (
        open_log(source) as stream,
        target.open("w", encoding="latin-1", newline="\n") as copy,
    ):
        for number, line in _pieces(stream, token):
            for event in _events(line, token, read_event, number, cleaned):
                copy.write(f"{token}{event}\n")
                events.update(f"{event}\n".encode("latin-1"))
                cleaned.lines.append(number)
    cleaned.digest = events.hexdigest()
    return cleaned


def _pieces(stream: LogStream, token: str) -> Iterator[tuple[int, str]]:
    """Yield the number and the text of each line with the token.

    A line of more than 1 MiB may come in parts of at most about 2 MiB.
    """
    number, unfinished = 1, ""
    while chunk := stream.readline(_MAX_LINE).decode("latin-1"):
        ended = chunk.endswith("\n")
        if ended or len(chunk) < _MAX_LINE:
            text, unfinished = unfinished + chunk, ""
        else:
            text, unfinished = _cut(unfinished + chunk, token)
        if token in text:
            # The tool also ends a line at a bare CR.
            for part in text.split("\r"):
                if token in part:
                    yield number, part
        number += ended
    if token in unfinished:
        yield number, unfinished


def _cut(text: str, token: str) -> tuple[str, str]:
    """Split an unfinished line before its last event. Return the first part, and the rest.

    The caller adds more text to the rest.

    If the only event begins the line, the first value is the whole text. Without an event, the text is
    dropped, except an end that may be the beginning of a token.
    """
    cut = text.rfind(token)
    if cut < 0:
        # The token itself may span the end of the piece.
        return "", text[1 - len(token) :]
    if cut > 0:
        return text[:cut], text[cut:]
    return text, ""


def _events(line: str, token: str, read_event: Any, number: int, cleaned: CleanedLog) -> Iterator[str]:
    """Yield the events of one line as texts to put after the token, and record problems in ``cleaned``.

    ``read_event`` is :func:`_read_06` or :func:`_read_json`.
    """
    parts = line.split(token)[1:]
    for index, part in enumerate(parts):
        event, after_event, problem = read_event(part)
        last = index == len(parts) - 1
        if event is not None:
            yield event
            if last and _ANSI.sub("", after_event).strip():
                _note(cleaned, "glued_line", "text follows the event on its line", number, after_event)
        elif last:
            cleaned.damaged += 1
            _note(cleaned, "damaged_line", problem, number, part)
            yield f" unreadable event in line {number}"
        else:
            # The tool also drops any text before the last event of a line.
            _note(cleaned, "half_line", "a cut-off event is followed by another one", number, part)


def _note(cleaned: CleanedLog, code: str, message: str, number: int, excerpt: str) -> None:
    """Add a remark about a line to the findings, unless there are 20 already."""
    if len(cleaned.findings) < _MAX_FINDINGS:
        source = Source(line=number)
        cleaned.findings.append(
            Finding(code=code, message=message, source=source, excerpt=safe_text(excerpt, 200))
        )


def _read_json(text: str) -> tuple[str | None, str, str]:
    """Read an event of 0.7 or later. Return ``(event text or None, rest of the line, problem)``.

    The problem is "" if there is an event.
    """
    text = text.lstrip()
    try:
        event, end = _DECODER.raw_decode(text)
    except (ValueError, RecursionError) as error:
        return None, "", f"not JSON: {safe_text(str(error), 100)}"
    problem = _problem(event) or _nesting_problem(event)
    if problem:
        return None, "", problem
    raw = text[:end] if end <= _LONG_EVENT else json.dumps(_shortened(event))
    if len(raw) > _MAX_EVENT:
        return None, "", f"an event of {end} characters"
    return raw, text[end:], ""


def _read_06(text: str) -> tuple[str | None, str, str]:
    """Read an event of 0.6: `` SECONDS key: {"value": …, "metadata": {…}}``.

    Return the same three values as :func:`_read_json`.
    """
    head = _MLL_06.match(text)
    if head is None:
        return None, "", "no time and key"
    try:
        value, end = _DECODER.raw_decode(text, head.end())
    except (ValueError, RecursionError) as error:
        return None, "", f"not JSON: {safe_text(str(error), 100)}"
    seconds, key = head["head"].rstrip().rstrip(":").split()
    problem = path_problem(key, value.get("value") if isinstance(value, dict) else None)
    problem = problem or _moment_problem(float(seconds)) or _nesting_problem(value)
    if problem:
        return None, "", problem
    raw = text[:end] if end <= _LONG_EVENT else head["head"] + json.dumps(_shortened(value))
    if len(raw) > _MAX_EVENT:
        return None, "", f"an event of {end} characters"
    return raw, text[end:], ""


def _problem(event: Any) -> str:
    """Return the reason why an event would crash or mislead the tool, or ""."""
    if not isinstance(event, dict):
        return "not a JSON object"
    # The tool's parser reads these four without checking whether they exist.
    missing = [key for key in ("time_ms", "key", "value", "metadata") if key not in event]
    if missing:
        return f"no {', '.join(missing)}"
    if not isinstance(event["key"], str):
        return "the key is not text"
    if any(character < " " for character in event["key"]):
        return "the key has control characters"
    try:
        moment = float(event["time_ms"])
    except (TypeError, ValueError, OverflowError):
        return "the time is not a number"
    return _moment_problem(moment / 1000) or path_problem(event["key"], event["value"])


def _moment_problem(seconds: float) -> str:
    """Return why an event cannot have a time, or ""."""
    if not math.isfinite(seconds):
        return "the time is not finite"
    if not _FIRST_MOMENT_S <= seconds <= _LAST_MOMENT_S:
        return "the time is not between 1970 and 2100"
    return ""


def _nesting_problem(value: Any) -> str:
    """Return why the nesting of a value would crash the tool, or ""."""
    level = [value]
    for _ in range(_DEEPEST + 1):
        level = [item for holder in level for item in _items(holder)]
        if not level:
            return ""
    return f"nested deeper than {_DEEPEST} levels"


def _items(value: Any) -> Iterable[Any]:
    """Return the values in a dict or list, or nothing for any other value."""
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def path_problem(key: str, value: Any) -> str:
    """Return why a value would lead the tool to a rules file outside its own folder, or ""."""
    if key in _PATH_KEYS and isinstance(value, str) and ("/" in value or "\0" in value):
        return f"{key} is not a plain name"
    return ""


def _shortened(value: Any) -> Any:
    """Return the value with long texts and lists truncated at any depth."""
    if isinstance(value, str):
        return value[:_MAX_STRING]
    if isinstance(value, dict):
        return {key[:_MAX_STRING]: _shortened(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_shortened(item) for item in value[:_MAX_LIST]]
    return value
