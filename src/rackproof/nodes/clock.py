"""A node's clock: how far it is off, and whether something disciplines it. No I/O."""

from __future__ import annotations

import re

from rackproof.core.untrusted import as_float

_SYNCHRONIZED = re.compile(r"^NTPSynchronized=(yes|no)$", re.MULTILINE)


def clock_offset(asked: float, answered: float, begin: object, end: object) -> float | None:
    """Return how far a node's clock is off for certain, in seconds: 0 while its times fit between ours.

    The delay of a busy controller's query is not a fault of the node's clock.

    Args:
        asked: The moment of the query, by the controller's clock.
        answered: The moment of the answer, by the controller's clock.
        begin: The beginning of the node's answer, by the node's clock.
        end: The end of the node's answer; None is returned if one of the two is not a number, or if the
            end is before the beginning.
    """
    first, last = as_float(begin), as_float(end)
    if first is None or last is None or last < first:
        return None
    return first - asked if first < asked else max(0.0, last - answered)


def read_synchronized(timedatectl: str, *, container: bool) -> bool | None:
    """Return whether something disciplines a clock, or None if that is not known.

    Args:
        timedatectl: The output of ``timedatectl show --property=NTPSynchronized``.
        container: Whether the node is a container, which has its host's clock.
    """
    match = _SYNCHRONIZED.search(timedatectl)
    return None if match is None or container else match[1] == "yes"
