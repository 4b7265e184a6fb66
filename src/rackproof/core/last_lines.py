"""Read the last lines of a log, and select those that may explain why its program ended.

Job bench adds these lines to a finding about an early end, and a report shows them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from rackproof.core.text import sanitize

_MOST_BYTES = 16 * 1024
"""Largest number of bytes that are read from the end of a log."""
_MOST_CHARACTERS = 200
"""Largest number of characters of each of the lines that :func:`last_words` returns."""
# Matches events, which are not for people, and the line in which Rackproof's programs repeat the exit status.
_NOT_WORDS = re.compile(r":::MLL|:::RACKPROOF|rackproof: \S+ ended with exit status")


def read_last_lines(path: Path, most: int) -> tuple[str, ...]:
    """Return up to ``most`` last lines of a file, sanitized and cut to 300 characters each.

    A line whose beginning is further from the end than :data:`_MOST_BYTES` is left out, unless it is the
    last one. If the file cannot be read, return none.
    """
    try:
        with path.open("rb") as stream:
            begin = max(path.stat().st_size - _MOST_BYTES, 0)
            stream.seek(begin)
            lines = stream.read(_MOST_BYTES).decode("utf-8", "replace").splitlines()
    except OSError:
        return ()
    if begin and len(lines) > 1:
        del lines[0]
    return tuple(sanitize(line, 300, newlines=True) for line in lines[-most:])


def last_words(lines: Sequence[str]) -> str:
    """Return the last two lines that are text for people, as one line, or "" if there are none.

    The function does no I/O.
    """
    readable = [line.strip() for line in lines if line.strip() and not _NOT_WORDS.search(line)]
    return " / ".join(sanitize(line, _MOST_CHARACTERS) for line in readable[-2:])
