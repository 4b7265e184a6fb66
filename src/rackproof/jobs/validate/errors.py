"""The error of the validate job."""

from __future__ import annotations

from rackproof.core.errors import RackproofError


class ValidateError(RackproofError):
    """A fault that the operator must fix; the message has the fault and the remedy."""
