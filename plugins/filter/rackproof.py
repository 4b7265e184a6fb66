"""Filters over the package: they check types, call it, and translate its errors.

The errors are raised `from None`: Ansible would show the cause's text besides, which says the same at length.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from io import BytesIO
from typing import Any

from ansible.errors import AnsibleFilterError
from pydantic import ValidationError

from rackproof import logs
from rackproof.judging import judge
from rackproof.records import Measurement, Reference, worst
from rackproof.records import Verdict as VerdictWord
from rackproof.scoring.scaling import scaling_efficiency as efficiency


def because(error: ValueError) -> str:
    """Return an error on one line; of several mistakes in data, the first."""
    if not isinstance(error, ValidationError):
        return str(error)
    first = error.errors()[0]
    place = ".".join(str(part) for part in first["loc"])
    return f"{place}: {first['msg']}" if place else str(first["msg"])


def parse_log(text: Any, format: str = "auto") -> dict[str, Any]:
    """Parse the text of a log."""
    if not isinstance(text, str | bytes):
        raise AnsibleFilterError(f"parse_log needs the text of a log, not {type(text).__name__}")
    data = text.encode(errors="surrogateescape") if isinstance(text, str) else text
    try:
        return logs.parse(BytesIO(data), format=format).model_dump(mode="json")
    except ValueError as error:
        raise AnsibleFilterError(f"parse_log: {error}") from None


def verdict(value: Any, reference: Any, unit: str = "", direction: str = "higher") -> dict[str, Any]:
    """Judge one number against a reference."""
    if not isinstance(reference, Mapping):
        raise AnsibleFilterError("verdict needs a reference: {value, low, high, warn, unit, source}")
    if isinstance(value, bool):
        raise AnsibleFilterError("verdict needs a number, not a boolean")
    bad_side = "high" if direction == "lower" else "low"
    if reference.get(bad_side) is None and reference.get("warn") is None:
        raise AnsibleFilterError(f"verdict: give {bad_side} or warn in the reference, or nothing can fail")
    given = {"name": "number", "value": value, "unit": unit or reference.get("unit", "")}
    try:
        measured = Measurement.model_validate({**given, "direction": direction})
    except ValueError as error:
        raise AnsibleFilterError(f"verdict: {because(error)}") from None
    try:
        judgement = judge(measured, Reference.model_validate({"unit": "", "source": "playbook", **reference}))
    except ValueError as error:
        raise AnsibleFilterError(f"verdict: reference: {because(error)}") from None
    return {"verdict": judgement.verdict.value, "reason": judgement.reason}


def worst_verdict(verdicts: Any) -> str:
    """Return the worst of several verdicts."""
    if isinstance(verdicts, str) or not isinstance(verdicts, Sequence):
        raise AnsibleFilterError("worst_verdict needs a list of verdicts")
    try:
        return worst(VerdictWord(one) for one in verdicts).value
    except ValueError as error:
        raise AnsibleFilterError(f"worst_verdict: {error}") from None


def scaling_efficiency(rates: Any, base: Any = None) -> list[dict[str, Any]]:
    """Return efficiency over GPUs."""
    if not isinstance(rates, Mapping):
        raise AnsibleFilterError(
            "scaling_efficiency needs a dict of GPUs to rate, as in {1: 326.6, 8: 2544.1}"
        )
    try:
        # Not int(1.5): half a GPU is a mistake, not one GPU. A text is one rate, not a list of characters.
        by_gpus = {
            int(str(gpus)): float(rate) if isinstance(rate, str) else rate for gpus, rate in rates.items()
        }
        points = efficiency(by_gpus, base=None if base is None else int(str(base)))
    except (TypeError, ValueError) as error:
        raise AnsibleFilterError(f"scaling_efficiency: {error}") from None
    if len(by_gpus) < len(rates):
        raise AnsibleFilterError("scaling_efficiency: a number of GPUs is given twice")
    return [point.model_dump(mode="json") for point in points]


class FilterModule:
    """The filters by name; each is documented in a file of its name beside this one."""

    def filters(self) -> dict[str, Any]:
        """Return them."""
        return {
            "parse_log": parse_log,
            "verdict": verdict,
            "worst_verdict": worst_verdict,
            "scaling_efficiency": scaling_efficiency,
        }
