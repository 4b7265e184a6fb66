"""The error that operators see."""

from __future__ import annotations


class RackproofError(Exception):
    """An error for an operator: the node or file, the event, and the remedy.

    The message is shown as it is; a traceback is shown for every other exception, which is a defect.
    """
