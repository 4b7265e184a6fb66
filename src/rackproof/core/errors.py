"""The error that operators see."""

from __future__ import annotations


class RackproofError(Exception):
    """What an operator has to know: which node or file, what happened, what to do.

    The message is shown as it is; a traceback is shown for every other exception, which is a defect.
    """
