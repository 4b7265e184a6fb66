"""Define the error of the validate job."""

from __future__ import annotations

from rackproof.core.errors import RackproofError


class ValidateError(RackproofError):
    """Report a fault that the operator must fix. The message has the fault and the remedy."""
