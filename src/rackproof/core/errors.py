"""Define the base of all errors that operators see."""

from __future__ import annotations


class RackproofError(Exception):
    """An error that an operator sees as a message, without a traceback.

    The message gives the node or file, what happened, and the remedy. Any other exception is a defect, and is
    shown with a traceback.
    """
