"""Read the offset of a node's clock, and whether the clock is synchronized.

The preflight of the playbooks and job validate call :func:`clock_offset` and :func:`read_synchronized` with
the node's answers. All times are in seconds since 1970. The module does no I/O.
"""

from __future__ import annotations

import re

from rackproof.core.untrusted import as_float

_SYNCHRONIZED = re.compile(r"^NTPSynchronized=(yes|no)$", re.MULTILINE)


def clock_offset(asked: float, answered: float, begin: object, end: object) -> float | None:
    """Return the least number of seconds by which a node's clock is off, or None if it is unknown.

    The offset is unknown if ``begin`` or ``end`` is no number, or if ``end`` is before ``begin``. The offset
    is negative if the clock is behind. It is 0 if the node's time fits between the query and the answer on
    the controller's clock, because the delay of a busy controller is no fault of the node.

    Args:
        asked: The moment of the query, by the controller's clock.
        answered: The moment of the answer, by the controller's clock. Infinity, if this moment is unknown,
            hides a clock that is ahead.
        begin: The beginning of the node's answer, by the node's clock.
        end: The end of the node's answer, by the node's clock.
    """
    first, last = as_float(begin), as_float(end)
    if first is None or last is None or last < first:
        return None
    return first - asked if first < asked else max(0.0, last - answered)


def read_synchronized(timedatectl: str, *, container: bool) -> bool | None:
    """Return whether a clock is synchronized, or None if that is unknown.

    Args:
        timedatectl: The output of ``timedatectl show --property=NTPSynchronized``.
        container: Whether the node is a container, which uses its host's clock.
    """
    match = _SYNCHRONIZED.search(timedatectl)
    return None if match is None or container else match[1] == "yes"
