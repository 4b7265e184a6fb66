"""Format text for people: make hostile strings harmless, quote words for a shell, show numbers with units.

Text from a log passes through :func:`sanitize` before a terminal, page or file shows it. Messages, tables and
pages format numbers with :func:`quantity`, :func:`duration` and :func:`percent`. This module imports only the
standard library, so that all other modules can use it.
"""

from __future__ import annotations

import locale
import math
import re
import shlex
import unicodedata
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

# The whole escape sequence is removed, because "[31m" without its ESC byte would remain as noise. The length
# of each alternative is limited, so that a hostile string can neither slow the search nor remove the text
# after it.
_ESCAPE = re.compile(
    # CSI sequences: colours and cursor moves.
    r"(?:\x1b\[|\x9b)[0-?]{0,64}[ -/]{0,8}[@-~]"
    # OSC, DCS and similar sequences: titles and links.
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c\n]{0,4096}(?:\x07|\x1b\\|\x9c)"
    # Any other escape sequence.
    r"|\x1b[ -/]{0,8}[0-~]?"
)
_SPACE = re.compile(r"\s+")
_FORMAT_KEPT = {"\u200d"}  # The zero-width joiner joins emoji, and is harmless on its own.
# Matches characters that no word of a command can contain. Python reads the undecodable bytes of a name as
# U+DC80 to U+DCFF, which are therefore allowed.
_IN_NO_WORD = re.compile(r"[\x00\ud800-\udc7f\udd00-\udfff]")
ELLIPSIS = "…"
"""Text at the end of a text that was cut."""
NOTHING = "\N{EN DASH}"
"""Text in place of a missing value."""
# Names of units that mean that there is no unit.
_PLAIN = frozenset({"1", "fraction"})
# The minus sign of shown numbers.
_MINUS = "\N{MINUS SIGN}"


def utf8_locale() -> dict[str, str]:
    """Return ``LC_ALL`` with a locale in which Ansible starts, or nothing if the present locale is usable.

    Ansible does not start in a locale that is not UTF-8, or that is not installed.
    """
    # The locale belongs to the whole process, and decides how files without a stated encoding are read.
    before = locale.setlocale(locale.LC_ALL)
    try:
        locale.setlocale(locale.LC_ALL, "")
        is_utf8 = locale.nl_langinfo(locale.CODESET) == "UTF-8"
    except locale.Error:
        is_utf8 = False
    finally:
        locale.setlocale(locale.LC_ALL, before)
    return {} if is_utf8 else {"LC_ALL": "C.UTF-8"}


def _harmless_or_empty(character: str, newlines: bool) -> str:
    """Return the character, a space for white space, or "" if the character could deceive or do damage.

    ``newlines`` is whether a line feed is kept.
    """
    if newlines and character == "\n":
        return character
    category = unicodedata.category(character)
    if character in "\t\n\v\f\r" or category in ("Zl", "Zp", "Zs"):
        return " "
    # Cc control, Cf format (bidi overrides, zero width, tags), Cs surrogates, Co private, Cn unassigned
    # (U+FFFE and U+FFFF are forbidden in XML).
    if category in ("Cc", "Cs", "Co", "Cn") or (category == "Cf" and character not in _FORMAT_KEPT):
        return ""
    return character


def sanitize(text: object, limit: int = 500, *, newlines: bool = False) -> str:
    """Remove escape sequences, and control, bidi and invisible characters from a text.

    Args:
        text: The value to show, as ``str(text)``.
        limit: The largest number of characters to return. A longer text ends with an ellipsis. Only the
            first ``8 * limit + 4096`` characters of the text are read.
        newlines: Whether to keep line ends as ``\\n``. Otherwise, all white space becomes single spaces.
    """
    # Cut first, so that a huge hostile text takes no longer than a limited one.
    whole = str(text)
    raw = whole[: 8 * limit + 4096]
    is_cut = bool(whole[len(raw) :].strip())
    if raw.isascii() and raw.isprintable():
        clean = raw
    else:
        clean = _ESCAPE.sub("", raw.replace("\r\n", "\n").replace("\r", "\n"))
        clean = "".join(_harmless_or_empty(character, newlines) for character in clean)
    clean = clean.strip() if newlines else _SPACE.sub(" ", clean).strip()
    return clean if len(clean) <= limit and not is_cut else clean[: max(limit - 1, 0)].rstrip() + ELLIPSIS


def shell_word(text: str) -> str:
    """Return a text as one word of a command for bash or zsh, without line ends and control characters.

    A path may contain any bytes. In a table or a message, some bytes would break the line, or be removed. A
    character that no word can contain (NUL, and a surrogate without a byte) is shown as U+FFFD.
    """
    text = _IN_NO_WORD.sub("\N{REPLACEMENT CHARACTER}", text)
    if text.isprintable():
        return shlex.quote(text)
    # Escape bytes and not characters, because a name that is not UTF-8 cannot be split into characters.
    letters = [
        chr(byte) if 32 <= byte < 127 and byte not in b"'\\" else f"\\{byte:03o}"
        for byte in text.encode("utf-8", "surrogateescape")
    ]
    return f"$'{''.join(letters)}'"


def shell_command(words: Iterable[str]) -> str:
    """Return the words of a command as one line that a user can type."""
    return " ".join(map(shell_word, words))


def whole_number(text: str) -> int | None:
    """Return the number that a text of ASCII digits states, or None for another text.

    A number has at most 17 digits. More may not fit into 64 bits, and int() refuses thousands of digits.
    """
    # isdigit() alone accepts superscripts and digits of other scripts, which int() may refuse.
    return int(text) if text.isascii() and text.isdigit() and len(text) < 18 else None


def number(value: float | None) -> str:
    """Format a number for reading: ``12,346``, ``123.5``, ``1.235``, ``0.0012``, ``1.235e-4``.

    Numbers from 1 on are rounded to four digits or more, and smaller ones to four decimal places. Numbers
    below 0.001, and from 1e15 on, have an exponent. NaN is shown as ``NaN``, infinity as ``∞``, and None as a
    dash.
    """
    if value is None:
        return NOTHING
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "∞" if value > 0 else f"{_MINUS}∞"
    text = _short_decimal(value)
    return text.replace("-", _MINUS) if text.startswith("-") else text


def _short_decimal(value: float) -> str:
    """Return a finite number as :func:`number` does, but with ``-`` as its minus sign."""
    size = abs(value)
    if size >= 1e15 or 0 < size < 1e-3:
        digits, exponent = f"{value:.3e}".split("e")
        return f"{digits.rstrip('0').rstrip('.')}e{int(exponent)}"
    # Zeros at the end of a whole number belong to it. Only those after a decimal point are removed.
    if value == int(value) or round(size, 1) >= 1000:
        return f"{value:,.0f}"
    if size >= 100:
        return f"{value:.1f}"
    text = f"{value:.{3 if size >= 1 else 4}f}"
    return text.rstrip("0").rstrip(".")


def unit_text(unit: str) -> str:
    """Return a unit for display, or "" for a unit that means a plain number."""
    return "" if unit in _PLAIN else sanitize(unit, 40)


def quantity(value: float | None, unit: str = "") -> str:
    """Format a number with its unit. Bytes become a size, and small values get a smaller unit.

    Args:
        value: The number, or None, which becomes a dash.
        unit: The unit, or "" for a plain number.
    """
    if value is not None and unit in ("bytes", "B", "byte") and math.isfinite(value):
        return size(value)
    if value is not None:
        value, unit = _fitting(value, unit)
    unit = unit_text(unit)
    return f"{number(value)} {unit}" if unit and value is not None else number(value)


def amount(count: int, noun: str, plural: str = "") -> str:
    """Format a number of things: ``1 node``, ``18 nodes``.

    The function does no I/O.

    Args:
        count: The number of things.
        noun: The word for one thing.
        plural: The word for several things, or "" if it is the noun with an ``s``.
    """
    return f"{count} {noun if count == 1 else plural or f'{noun}s'}"


def stop_rule(job: str, failures: int) -> str:
    """Describe for a plan in waves at how many failed nodes the waves of a playbook stop.

    The function does no I/O.

    Args:
        job: The playbook's job, which begins the names of its variables.
        failures: The number of nodes that may fail.
    """
    return f"no further wave starts if more than {amount(failures, 'node')} fail ({job}_max_failures)"


_SMALLER = {
    "TB/s": "GB/s", "GB/s": "MB/s", "MB/s": "kB/s", "TFLOP/s": "GFLOP/s", "GFLOP/s": "MFLOP/s", "s": "ms",
    "ms": "µs", "µs": "ns",
}  # fmt: skip
"""The next smaller unit of a speed or a time. The factor is 1,000."""


def _fitting(value: float, unit: str) -> tuple[float, str]:
    """Convert a speed or a time below 0.1 to a smaller unit. 0.0093 TB/s becomes 9.3 GB/s."""
    while unit in _SMALLER and 0 < abs(value) < 0.1:
        value, unit = value * 1000, _SMALLER[unit]
    return value, unit


def size(value: float) -> str:
    """Format a number of bytes with binary units, up to PiB: ``8 MiB``."""
    if isinstance(value, float) and not math.isfinite(value):
        return f"{number(value)} B"
    # A number in a log may be of any length, but float() is limited.
    scaled = float(max(min(value, 1e300), -1e300))
    for unit in ("B", "KiB", "MiB", "GiB", "TiB", "PiB"):
        # 1023.97 would be shown as 1024.0.
        if round(abs(scaled), 1) < 1024 or unit == "PiB":
            break
        scaled /= 1024
    if abs(scaled) >= 1024:
        return f"{number(scaled)} {unit}"
    return f"{scaled:.0f} {unit}" if scaled == int(scaled) else f"{scaled:.1f} {unit}"


def percent(fraction: float | None, *, sign: bool = True) -> str:
    """Format a fraction in per cent, by default with its sign: 0.035 becomes ``+3.5 %``.

    None, NaN and infinity become a dash.
    """
    if fraction is None or not math.isfinite(fraction):
        return NOTHING
    hundred = fraction * 100
    places = 0 if abs(hundred) >= 1000 else 1 if abs(hundred) >= 1 or hundred == 0 else 2
    text = f"{hundred:{'+' if sign else ''},.{places}f} %"
    return text.replace("-", _MINUS)


def duration(seconds: float | None) -> str:
    """Format seconds for reading: ``3.1 s``, ``2 min 05 s``, ``4 h 10 min``.

    None, NaN and infinity become a dash.
    """
    if seconds is None or not math.isfinite(seconds):
        return NOTHING
    # 59.97 would be shown as 60.0 s.
    if round(seconds, 1) < 60:
        return f"{seconds:.1f} s"
    minutes, left_s = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {left_s:02d} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min"


def moment(when: datetime | None) -> str:
    """Format a time in UTC, as in ``2026-11-21 10:35:18 UTC``. None becomes a dash.

    A time without a zone is taken as UTC. A time that UTC cannot show, because its year there is before 1 or
    after 9999, keeps its own zone.
    """
    if when is None:
        return NOTHING
    try:
        when = when.replace(tzinfo=UTC) if when.tzinfo is None else when.astimezone(UTC)
    except OverflowError:
        return when.isoformat(" ", "seconds")
    return f"{when:%Y-%m-%d %H:%M:%S} UTC"


def elapsed(start: datetime | None, end: datetime | None) -> timedelta | None:
    """Return the time between two moments, or None if it is unknown.

    The time is unknown if a moment is None, if only one of the moments has a zone, or if the end is before
    the start.
    """
    if start is None or end is None or (start.tzinfo is None) != (end.tzinfo is None) or end < start:
        return None
    return end - start


def width(text: str) -> int:
    """Return the number of terminal cells that a sanitized text needs."""
    cells = 0
    for character in text:
        if unicodedata.combining(character) or character == "\u200d":
            continue
        cells += 2 if unicodedata.east_asian_width(character) in "WF" else 1
    return cells


def slug(text: str, limit: int = 60) -> str:
    """Return a text for a file name or an id, with only ASCII letters, digits, ``.``, ``_`` and ``-``.

    Each sequence of other characters becomes one ``-``. The result has at most ``limit`` characters, and may
    be empty.
    """
    clean = re.sub(r"[^A-Za-z0-9._-]+", "-", sanitize(text, 4 * limit))
    return clean.strip("-._")[:limit].rstrip("-._")
