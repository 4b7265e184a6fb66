"""Define the error that operators see."""

from __future__ import annotations


class RackproofError(Exception):
    """Report an error to an operator.

    The message has the node or file, what happened, and the remedy. It is shown without a traceback. Any
    other exception is a defect, and is shown with one.
    """
