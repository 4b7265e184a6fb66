"""Describe the limits and expectations by which the nights of a certificate judged its nodes. No I/O.

An operator can relax limits (``validate_limits``) and expect less of a node (``validate_expect``).
:mod:`rackproof.report.certificate` shows both to the customer as tables, and ``rackproof evidence make``
prints :func:`limits_text`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from rackproof.analysis.certificate.models import Certificate
from rackproof.core.hostlist import compress_hostlist
from rackproof.core.text import sanitize, size
from rackproof.report.view import Cell, Table, build_table

_NOT_KNOWN = "not known"


def limit_table(certificate: Certificate) -> Table:
    """Return the limits that differ from the defaults, by groups of nodes."""
    rows = [
        (Cell(nodes), Cell(sanitize(name, 100), "code"), Cell(value), Cell(default))
        for nodes, (name, value, default) in _grouped(_limit_cells(certificate))
    ]
    columns = ("Nodes", "Limit", "Value", "Default")
    return build_table("Limits that differ from the defaults", columns, rows)


def limits_text(certificate: Certificate) -> str:
    """Return a text about changed and unknown limits of a certificate's nights, or "" if there are none."""
    names = sorted({name for _, (name, _, _) in _grouped(_limit_cells(certificate))})
    changed = [sanitize(name, 100) for name in names if name != _NOT_KNOWN]
    texts = []
    if changed:
        texts.append(f"Limits that differ from the defaults: {', '.join(changed)}. The page lists them.")
    if _NOT_KNOWN in names:
        texts.append("The limits of some nights are not known.")
    return " ".join(texts)


def expectation_table(certificate: Certificate) -> Table:
    """Return the table of what the inventory expected of the nodes, by groups of nodes."""
    rows = [
        (Cell(nodes), Cell(sanitize(name, 100), "code"), Cell(sanitize(value, 1000)))
        for nodes, (name, value) in _grouped(_expectation_cells(certificate))
    ]
    columns = ("Nodes", "Expectation", "Value")
    return build_table("What the inventory expected, and the nights compared with", columns, rows)


def _grouped(pairs: Iterable[tuple[str, tuple[str, ...]]]) -> list[tuple[str, tuple[str, ...]]]:
    """Return the cells of pairs of node and cells, each with a list of the nodes that have these cells."""
    nodes: dict[tuple[str, ...], set[str]] = {}
    for name, cells in pairs:
        nodes.setdefault(cells, set()).add(name)
    return [(sanitize(compress_hostlist(names), 1000), cells) for cells, names in sorted(nodes.items())]


def _limit_cells(certificate: Certificate) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield each node with name, value and default of each changed limit, or a row for unknown limits."""
    for piece in certificate.evidence:
        for node, limits in piece.limits.items():
            if limits is None:
                yield node, (_NOT_KNOWN, "an older version made the snapshot", "")
            for limit in limits or ():
                values = (_limit_value(limit.name, value) for value in (limit.value, limit.default))
                yield node, (limit.name, *values)


def _limit_value(name: str, value: float) -> str:
    # A page can be forged with any number.
    is_whole = math.isfinite(value) and value == int(value)
    exact = sanitize(int(value) if is_whole else value, 40)
    return f"{exact} ({size(value)})" if name.endswith("_bytes") else exact


def _expectation_cells(certificate: Certificate) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield each node with name and value of each expectation that states something."""
    for piece in certificate.evidence:
        for node, expected in piece.expected.items():
            for name, value in expected.items():
                # Each node expects its own hostname. The names themselves would fill the table.
                is_own = (name, value) == ("hostname", node)
                if text := "its name in the inventory" if is_own else _value_text(value):
                    yield node, (name, text)


def _value_text(value: Any) -> str:
    """Return a value of an inventory as text, such as ``a, b`` for a list and ``key=value`` for a mapping."""
    if isinstance(value, Mapping):
        return " ".join(f"{key}={_value_text(inner)}" for key, inner in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(_value_text, value))
    return value if isinstance(value, str) else json.dumps(value)
