"""The error of the validate job."""

from __future__ import annotations

from rackproof.core.errors import RackproofError


class ValidateError(RackproofError):
    """Something an operator has to mend; the message names what and how."""
