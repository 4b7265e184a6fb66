"""A node's clock: how far it is off, and whether something disciplines it. No I/O."""

from __future__ import annotations

import re

from rackproof.core.untrusted import as_float

_SYNCHRONIZED = re.compile(r"^NTPSynchronized=(yes|no)$", re.MULTILINE)


def clock_offset(asked: float, answered: float, begin: object, end: object) -> float | None:
    """Return how far a node's clock is off for certain, in seconds: 0 while its times fit between ours.

    The time that a busy controller takes to ask is not a fault of the node's clock.

    Args:
        asked: When the controller asked, by its own clock.
        answered: When it had the answer.
        begin: When the node began to answer, by the node's clock.
        end: When the node ended its answer; None is returned where one of the two is not a number.
    """
    first, last = as_float(begin), as_float(end)
    if first is None or last is None:
        return None
    return first - asked if first < asked else max(0.0, last - answered)


def read_synchronized(timedatectl: str, *, container: bool) -> bool | None:
    """Return whether something disciplines a clock, None where that is not known.

    Args:
        timedatectl: What ``timedatectl show --property=NTPSynchronized`` printed.
        container: Whether the node is a container, whose clock is that of its host.
    """
    match = _SYNCHRONIZED.search(timedatectl)
    return None if match is None or container else match[1] == "yes"
