"""Read and write hostnames in Slurm's notation (``n[01-04]``).

Commands and messages show nodes in this notation. Commands, and readers of logs, Slurm's output and CSV files
expand it. Begin with :func:`compress_hostlist` and :func:`expand_hostlist`. For a list that may be wrong,
call :func:`hostlist_problem` first. The module does no I/O.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import islice, pairwise

# A number in brackets has at most 12 digits.
_HOST_NUMBER = re.compile(r"[0-9]{1,12}")
# Splits "rack1-n07" into "rack1-n" and "07". Of a longer number, the first digits belong to the name.
_NUMBERED = re.compile(r"(.*?)([0-9]{1,12})")
# Matches the parts "n[01-03,07]" and "m1" of "n[01-03,07],m1". A comma in brackets does not end a part.
_PARTS = re.compile(r"[^,\[\]]+(?:\[[^\[\]]*\][^,\[\]]*)*")
# Matches "[01-03,07]".
_RANGE = re.compile(r"\[([0-9,\-]+)\]")
# Matches "[01-03,07]", with its first number as a group.
_REST_OF_RANGE = re.compile(r"\[([0-9]+)[0-9,\-]*\]")
_MAX_TEXT, _MAX_RANGE, _MAX_HOSTS = 100_000, 10_000, 100_000
"""Limits of :func:`expand_hostlist`: characters of a host list, steps of one range, and hosts. The part
beyond a limit is dropped."""
_MAX_NAME = 255
"""Largest number of characters of a host's name, as in DNS. A name with ranges that is longer gives no
hosts."""


def expand_names(hostlists: Iterable[str]) -> list[str]:
    """Return the nodes of host lists, in the given order.

    A host list that gives no hosts counts as the name of a node.
    """
    return [name for hostlist in hostlists for name in expand_hostlist(hostlist) or [hostlist]]


def compress_hostlist(names: Iterable[str]) -> str:
    """Return host names in Slurm's notation. ``n01 n02 n03 x`` becomes ``n[01-03],x``."""
    groups: dict[tuple[str, int], list[int]] = {}
    unnumbered = []
    for name in sorted(set(names)):
        # The number of digits is part of the group, because n1 and n01 are different hosts. A part that
        # begins with a bracket is no host list, so names of digits only are not folded.
        if (match := _NUMBERED.fullmatch(name)) and match[1]:
            groups.setdefault((match[1], len(match[2])), []).append(int(match[2]))
        else:
            unnumbered.append(name)
    folded = []
    for (stem, width), numbers in groups.items():
        ranges = _ranges(sorted(numbers), width)
        folded.append(f"{stem}{ranges[0]}" if len(numbers) == 1 else f"{stem}[{','.join(ranges)}]")
    return ",".join(sorted(folded + unnumbered))


def _ranges(numbers: Sequence[int], width: int) -> list[str]:
    """Return sorted numbers as ranges without gaps: ``01-03``, ``07``."""
    starts, ends = [numbers[0]], []
    for number, next_number in pairwise(numbers):
        if next_number != number + 1:
            ends.append(number)
            starts.append(next_number)
    ends.append(numbers[-1])
    return [
        f"{first:0{width}d}" if first == last else f"{first:0{width}d}-{last:0{width}d}"
        for first, last in zip(starts, ends, strict=True)
    ]


def expand_hostlist(text: str) -> tuple[str, ...]:
    """Return the hosts of a host list in Slurm's notation, such as five for ``n[01-03,07],m1``.

    A name may contain several brackets. ``r[1-2]n[1-2]`` gives four hosts. Brackets with other characters
    than digits, "-" and "," remain in the name, and a range that makes no sense gives no hosts. Use
    :func:`hostlist_problem` to find both. The length of the text, the ranges and the number of hosts are
    limited, because the text may be hostile.
    """
    hosts: list[str] = []
    for part in _PARTS.findall(text[:_MAX_TEXT]):
        hosts += _expand_part(part, _MAX_HOSTS - len(hosts))
    return tuple(hosts)


def _expand_part(part: str, most: int) -> list[str]:
    """Return the hosts of one part of a host list.

    Args:
        part: A name, perhaps with ranges in brackets, such as ``n[01-03]``.
        most: The number of hosts that are still allowed. If the part has more hosts, one more than ``most``
            is returned, so that the caller can detect this. A negative number gives no hosts.
    """
    # Thousands of long names would fill the memory.
    if "[" in part and _is_too_long(part):
        return []
    names = [""]
    end = 0
    for brackets in _RANGE.finditer(part):
        head, end = part[end : brackets.start()], brackets.end()
        numbers: list[str] = []
        for piece in brackets[1].split(","):
            # Many large ranges would fill the memory, so the total is limited too.
            if len(numbers) <= most:
                numbers += _numbers_of_range(piece)
        names = list(islice((f"{name}{head}{number}" for name in names for number in numbers), most + 1))
    return [f"{name}{part[end:]}" for name in names] if most >= 0 else []


def _is_too_long(part: str) -> bool:
    """Return whether the first host of one part of a host list has more characters than a name may have."""
    return len(_REST_OF_RANGE.sub(r"\1", part)) > _MAX_NAME


def hostlist_problem(text: str, most: int) -> str:
    """Return why a host list is invalid or too large, or "" if it is usable.

    Args:
        text: The host list.
        most: The largest number of hosts.
    """
    if len(text) > _MAX_TEXT:
        return f"it has more than {_MAX_TEXT:,} characters"
    for brackets in re.findall(r"\[([^\[\]]*)\]", text):
        for piece in brackets.split(","):
            low, bar, high = piece.partition("-")
            if not _HOST_NUMBER.fullmatch(low) or (bar and not _HOST_NUMBER.fullmatch(high)):
                return f"{piece[:40]!r} in brackets is not a range of numbers"
            if bar and not 0 <= int(high) - int(low) < most:
                return f"[{piece}] is not a range of up to {most:,} hosts"
    if re.search(r"[\[\]]", re.sub(r"\[[^\[\]]*\]", "", text)):
        return "a bracket has no partner"
    if any(map(_is_too_long, _PARTS.findall(text))):
        return f"a name has more than {_MAX_NAME} characters"
    return "" if len(expand_hostlist(text)) <= most else f"it names more than {most:,} hosts"


def _numbers_of_range(piece: str) -> list[str]:
    """Return the numbers of ``08-10`` or ``7`` as written, or none if the text is not a range."""
    low, _, high = piece.partition("-")
    # Python refuses to convert a number with thousands of digits, which a hostile log may contain.
    if not _HOST_NUMBER.fullmatch(low) or (high and not _HOST_NUMBER.fullmatch(high)):
        return []
    last = min(int(high or low), int(low) + _MAX_RANGE)
    # The number of digits of the first number applies to all. n[08-10] is n08, n09, n10.
    return [f"{number:0{len(low)}}" for number in range(int(low), last + 1)]
