"""Read lines that ``sinfo`` prints with bars between the fields, such as ``n07|gpu|gpu:h100:8|ib``.

``rackproof adopt`` reads the nodes of a cluster. For it, :mod:`rackproof.nodes.slurm_listing` gives lines of
sinfo to a :class:`SinfoTable`. The format is from the manual page sinfo(1) of releases 21.08 to 25.05. The
module does no I/O.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

SINFO_FORMAT = "%N|%R|%G|%f"
"""The format for ``sinfo --Node --noheader --format=…``, with the fields node, partition, generic resources
and features."""
_FIELDS = ("node", "partition", "gres", "features")
_HEADINGS: Mapping[str, str] = {
    "nodelist": "node",
    "hostnames": "node",
    "partition": "partition",
    "gres": "gres",
    "avail_features": "features",
    "active_features": "features",
    "features": "features",
}
"""The names in :data:`_FIELDS` by sinfo's headings in lower case. Columns with other headings are skipped."""
_HOSTS = re.compile(r"(?=[\w.-])(?:[\w.,-]|\[[0-9,-]+\])+")
_PARTITION = re.compile(r"[\w.-]+\*?")
_GRES = re.compile(r"|\(null\)|n/a|[^:|]+:.+", re.I)
"""Patterns of a list of hosts, a partition (``*`` marks the default partition), and generic resources, which
may be empty."""


class SinfoTable:
    """The reader of the lines of one list. If the list has a heading, it sets the order of the fields."""

    def __init__(self) -> None:
        self._order: tuple[str, ...] = _FIELDS

    def read(self, line: str) -> dict[str, str] | None:
        """Return the fields of a line by their names in :data:`_FIELDS`.

        The result is empty for a heading, and None for a line whose fields cannot be read.

        Raises:
            ValueError: The line has a node, but its partition or generic resources have an unexpected form,
                for example because the fields are in another order.
        """
        parts = [part.strip() for part in line.split("|")]
        if self._is_heading(parts):
            return {}
        if len(parts) != len(self._order):
            return None
        fields = dict(zip(self._order, parts, strict=True))
        if not _HOSTS.fullmatch(fields["node"]):
            return None
        if not _GRES.fullmatch(fields.get("gres", "")) or not _PARTITION.fullmatch(
            fields.get("partition", "-")
        ):
            raise ValueError(
                "the fields of this line of sinfo have no heading, and are not those of "
                f"--format='{SINFO_FORMAT}'; print it again in this format, or without --noheader"
            )
        return {name: text for name, text in fields.items() if name in _FIELDS}

    def _is_heading(self, parts: list[str]) -> bool:
        """Return whether a line is a heading. If it is, use its order of fields for the next lines."""
        headings = [_HEADINGS.get(part.lower(), f"other {column}") for column, part in enumerate(parts)]
        if len(parts) < 2 or "node" not in headings:
            return False
        # Of two columns with the same meaning, the last one counts.
        self._order = tuple(
            name if name not in headings[column + 1 :] else f"other {column}"
            for column, name in enumerate(headings)
        )
        return True
