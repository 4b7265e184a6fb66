"""The error that operators see."""

from __future__ import annotations


class RackproofError(Exception):
    """An error that an operator must know: the node or file, what happened, what to do.

    The message is shown as it is; a traceback is shown for every other exception, which is a defect.
    """
