"""Read lines of ``sinfo`` with bars between the fields, such as ``n07|gpu|gpu:h100:8|ib``. No I/O.

:mod:`rackproof.nodes.slurm_listing` gives each line to a :class:`SinfoTable`. The format is from the manual
page sinfo(1) of releases 21.08 to 25.05.
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
"""The name of each field by sinfo's headings. Columns with other headings are not read."""
_HOSTS = re.compile(r"(?=[\w.-])(?:[\w.,-]|\[[0-9,-]+\])+")
_PARTITION = re.compile(r"[\w.-]+\*?")
_GRES = re.compile(r"|\(null\)|n/a|[^:|]+:.+", re.I)


class SinfoTable:
    """The reader of sinfo's lines. A heading, if there is one, states the order of the fields."""

    def __init__(self) -> None:
        self._order: tuple[str, ...] = _FIELDS

    def read(self, line: str) -> dict[str, str] | None:
        """Return the fields of a line by their names in :data:`_FIELDS`.

        The result is empty for a heading, and None for a line whose fields cannot be read.

        Raises:
            ValueError: The line is sinfo's, but its fields are not in the expected order.
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
        """Return whether a line is a heading, whose order then counts for the next lines."""
        headings = [_HEADINGS.get(part.lower(), f"other {column}") for column, part in enumerate(parts)]
        if len(parts) < 2 or "node" not in headings:
            return False
        # Of two columns with the same meaning, the last one counts.
        self._order = tuple(
            name if name not in headings[column + 1 :] else f"other {column}"
            for column, name in enumerate(headings)
        )
        return True
