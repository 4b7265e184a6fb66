"""Compile the regular expressions that an operator wrote.

RE2 searches a line in a time that grows no faster than the line, whatever the pattern is. Python's ``re`` can
take hours. :mod:`rackproof.core.line_rules` checks the patterns of definitions with this module.
:mod:`rackproof.logs.plain_lines` and :mod:`rackproof.logs.declared_lines` search logs with its patterns. The
module does no I/O.
"""

from __future__ import annotations

import re
from typing import Any

import re2

from rackproof.core.text import sanitize

_MOST_BYTES = 1 << 18
"""Largest memory of a compiled pattern in bytes.

The limit bounds the pattern's states, and therefore the time for each character of a line.
"""
_NO_LEAST = re.compile(r"(?<!\\)\{,\d+\}")
"""Pattern of a repeat without a smallest count (``x{,3}``), which Python reads as a repeat and RE2 as
text."""
_REMEDIES = (
    (r"^invalid perl operator: \(\?<?[=!]", "write the text that the line has, outside the number's group"),
    (r"^invalid perl operator: \(\?P|^invalid escape sequence: \\[1-9]", "write the text out again"),
    (r"^invalid perl operator|^bad repetition", "write it with (…), (?:…), |, *, + and ? only"),
    (r"^invalid escape sequence: \\Z", "write $"),
    (r"^invalid repetition size", "write counts that multiply to 1,000 at most, or * and +"),
    (r"^pattern too large", "write smaller counts, or * and +"),
    ("", "correct it; a special character that is meant literally needs a backslash"),
)
"""Pairs of a pattern for RE2's reason, and the operator's remedy. The first pair that matches counts."""


def compiled_pattern(text: str) -> Any:
    """Return an operator's pattern, compiled with :mod:`re2` to search lines that are bytes in UTF-8.

    Raises:
        ValueError: RE2 does not accept the pattern. The message completes a sentence that begins with the
            pattern, and gives the remedy.
    """
    if repeat := _NO_LEAST.search(text):
        least = repeat[0].replace("{", "{0")
        raise ValueError(f"has {repeat[0]}, which RE2 takes for text: write {least}, or \\{repeat[0]}")
    options = re2.Options()
    options.max_mem = _MOST_BYTES
    # RE2 would write its reason to the standard error, too.
    options.log_errors = False
    try:
        # Half a surrogate pair of UTF-16 raises no error here. A pattern with one matches no line.
        return re2.compile(text.encode("utf-8", "surrogatepass"), options)
    except re2.error as error:
        reason = error.args[0].decode("utf-8", "replace")
    remedy = next(remedy for fits, remedy in _REMEDIES if re.search(fits, reason))
    raise ValueError(f'is not a regular expression of RE2, which says "{sanitize(reason, 100)}": {remedy}')
