"""Define the error that most modules of job validate raise. Actions of validate.yml show its text."""

from __future__ import annotations

from rackproof.core.errors import RackproofError


class ValidateError(RackproofError):
    """A fault that the operator must fix. The message states the fault, or the rule that a value violates."""
