"""What the inventory expects of nodes, read from its variables and checked. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from rackproof.core.judging import SkuReference, SkuReferenceError
from rackproof.jobs.validate.errors import ValidateError
from rackproof.nodes.health_checks import (
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
        made: dict[str, Any] = {
            name: tuple(map(str, value))
            if name == "mounts"
            else {str(what): str(version) for what, version in value.items()}
            if name == "versions"
            else float(value)
            if name in ("port_gbps", "power_limit_w")
            else int(value)
            for name, value in values.items()
        }
        return Expectation(**made)
    except (TypeError, ValueError, AttributeError) as error:
        raise ValidateError(f"validate_expect of {node}: {error}; docs/using/validate.md shows it") from error


def parse_limits(node: str, values: Mapping[str, float]) -> Limits:
    """Return the bounds that hold for a node.

    Raises:
        ValidateError: An unknown key, or no number.
    """
    known = {one.name for one in fields(Limits)}
    for name, value in values.items():
        # YAML's yes is True, which is 1 to Python: a bound that nobody meant.
        if name not in known or isinstance(value, bool) or not isinstance(value, int | float):
            raise ValidateError(
                f"validate_limits of {node}: {name}: {value!r}; numbers for {', '.join(sorted(known))}"
            )
    return Limits(**values)  # type: ignore[arg-type]  # names and numbers were checked above


def references_by_sku(snapshots: Mapping[str, StoredSnapshot]) -> dict[str, list[SkuReference]]:
    """Return the baselines of each SKU, as the inventory gave them for the night's snapshots.

    Raises:
        ValidateError: One is none.
    """
    try:
        return {kept.snapshot.sku: kept.sku_references() for kept in snapshots.values()}
    except SkuReferenceError as error:
        raise ValidateError(str(error)) from error
