"""What the inventory expects of nodes, read from its variables and checked. No I/O."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from rackproof.core.judging import SkuReference, SkuReferenceError
from rackproof.jobs.validate.errors import ValidateError
from rackproof.nodes.health_checks import (
    GPU_READINGS,
    Expectation,
    Limits,
)
from rackproof.store.night_store import (
    StoredSnapshot,
)


def parse_node_expectation(node: str, values: Mapping[str, Any]) -> Expectation:
    """Return what a node has to have.

    Raises:
        ValidateError: An unknown key, or a value of another kind.
    """
    known = {one.name for one in fields(Expectation)}
    if unknown := sorted(set(values) - known):
        raise ValidateError(
            f"validate_expect of {node}: unknown {', '.join(unknown)}; there are {', '.join(sorted(known))}"
        )
    try:
        return Expectation(**{name: _expected_value(name, value) for name, value in values.items()})
    except (TypeError, ValueError, AttributeError) as error:
        raise ValidateError(f"validate_expect of {node}: {error}; docs/using/validate.md shows it") from error


def _expected_value(name: str, value: Any) -> Any:
    """Return a value of ``validate_expect`` as its check takes it.

    Raises:
        TypeError, ValueError, AttributeError: It is of another kind.
    """
    if name == "versions":
        return {str(what): str(version) for what, version in value.items()}
    if name in ("mounts", "gpu_readings"):
        if isinstance(value, str):
            raise TypeError(f"{name}: {value!r} is no list")
        names = tuple(map(str, value))
        if name == "gpu_readings" and (unknown := sorted(set(names) - set(GPU_READINGS))):
            raise ValueError(f"{name}: unknown {', '.join(unknown)}; there are {', '.join(GPU_READINGS)}")
        return names
    if name == "gpu_name":
        if not isinstance(value, str):
            raise TypeError(f"gpu_name: {value!r:.60} is no text")
        return str(value)
    if name == "fabric":
        if not isinstance(value, bool):
            raise TypeError(f"fabric: {value!r:.60} is neither true nor false")
        return value
    return _amount(name, value, whole=name not in ("port_gbps", "power_limit_w"))


def _amount(name: str, value: Any, *, whole: bool) -> float:
    # Python reads "8_00" as 800, and no number is less than NaN: neither may turn a check off.
    text = str(value)
    if isinstance(value, bool) or not re.fullmatch(
        r"[0-9]{1,15}" if whole else r"[0-9]{1,15}([.][0-9]{1,15})?", text
    ):
        raise ValueError(f"{name}: {text!r:.60} is no {'whole ' if whole else ''}number of 0 or more")
    return int(text) if whole else float(text)


def parse_limits(node: str, values: Mapping[str, float]) -> Limits:
    """Return the bounds that hold for a node.

    Raises:
        ValidateError: An unknown key, or no number.
    """
    known = {one.name for one in fields(Limits)}
    for name, value in values.items():
        # YAML's yes is True, which is 1 to Python: a bound that nobody meant.
        if name not in known or isinstance(value, bool) or not _is_limit(value):
            raise ValidateError(
                f"validate_limits of {node}: {name}: {value!r}; numbers for {', '.join(sorted(known))}"
            )
    # A night's bound of NaN, or below zero, would never or always be passed.
    return Limits(**values)  # type: ignore[arg-type]  # names and numbers were checked above


def _is_limit(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value) and value >= 0


def references_by_sku(snapshots: Mapping[str, StoredSnapshot]) -> dict[str, list[SkuReference]]:
    """Return the baselines of each SKU, as the inventory gave them for the night's snapshots.

    Raises:
        ValidateError: One is none.
    """
    try:
        return {kept.snapshot.sku: kept.sku_references() for kept in snapshots.values()}
    except SkuReferenceError as error:
        raise ValidateError(str(error)) from error
