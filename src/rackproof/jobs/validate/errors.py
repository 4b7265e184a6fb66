"""Define :class:`ValidateError`, which the modules of job validate raise for the operator."""

from __future__ import annotations

from rackproof.core.errors import RackproofError


class ValidateError(RackproofError):
    """A fault that the operator must fix. The message gives the fault and the remedy."""
