"""Read the GPUs from Slurm's generic resources (Gres), and from lines of gres.conf. No I/O.

:mod:`rackproof.nodes.slurm_listing` calls :func:`read_gres` with a node's resources (``gpu:h100:8(S:0-1)``),
and gives lines of gres.conf (``Name=gpu Type=h100 File=/dev/nvidia[0-7]``) to :class:`GresConf`. The formats
are from the manual page gres.conf(5) of releases 21.08 to 25.05. The module does no I/O.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from rackproof.core.hostlist import expand_hostlist

_GPUS = re.compile(
    r"(?:gres/)?gpu(?::(?![0-9.+-]{1,64}[:=])([A-Za-z0-9_.+-]{1,64}))?[:=](\d{1,4})(?![\dKMGkmg])", re.I
)
"""Type (optional) and number of GPUs in ``gpu:h100:8``, ``gpu:8`` or ``gres/gpu:h100=8``."""

_GPU_OR_PART = re.compile(r"(?:gres/)?(?:gpu|shard|mps)(?:[:=]|\Z)", re.I)
"""Pattern of the resources that only a node with GPUs has. Slurm divides GPUs into shards or MPS shares."""
_COUNTED = re.compile(rf"{_GPUS.pattern}|[:=]0\Z", re.I)
"""Pattern of a resource that states the number of GPUs, or that there are none."""


def read_gres(text: str) -> dict[str, int]:
    """Return the GPUs by type in a node's Gres or trackable resources (TRES).

    ``gpu:h100:8(S:0-1)`` gives ``{"h100": 8}``. The type in ``gpu:8`` is "". CfgTRES may state the number of
    all GPUs in addition to the number of some types. GPUs that have none of these types get the type "".
    """
    counts: dict[str, int] = {}
    for kind, count in _GPUS.findall(_plain_gres(text)):
        if int(count):
            counts[kind.lower()] = counts.get(kind.lower(), 0) + int(count)
    typed = {kind: count for kind, count in counts.items() if kind}
    untyped = counts.get("", 0) - sum(typed.values())
    # AccountingStorageTRES may name a few of the types, and the number of all GPUs is then larger.
    return typed | ({"": untyped} if untyped > 0 else {})


def has_uncounted_gpus(text: str) -> bool:
    """Return whether Gres or TRES name GPUs without a readable number.

    They may be cut off, or name only parts of GPUs (``shard:h200:32``, ``mps:400``).
    """
    parts = _plain_gres(text).split(",")
    return any(_GPU_OR_PART.match(part) and not _COUNTED.search(part) for part in parts)


def _plain_gres(text: str) -> str:
    """Return a Gres without sockets and flags."""
    return re.sub(r"\([^()]*\)|:no_consume", "", text)


class GresConf:
    """The GPUs that the lines of gres.conf state for nodes. A line that names no node is for every node.

    Slurm reads the type of a GPU from gres.conf if slurm.conf states only a number.
    """

    def __init__(self) -> None:
        self._lines: dict[str, dict[str, int]] = {}

    def read(self, hosts: tuple[str, ...], pairs: Mapping[str, str]) -> None:
        """Add the GPUs of a line. A line with only AutoDetect states none, because Slurm then finds the GPUs.

        Args:
            hosts: The nodes that the line names.
            pairs: The values of the line by key in lower case, such as name, type, count and file.
        """
        for host in hosts or ("",):
            counts = self._lines.setdefault(host, {})
            if pairs.get("name", "").lower() == "gpu":
                kind = pairs.get("type", "").lower()
                counts[kind] = counts.get(kind, 0) + _count_of_line(pairs)

    @property
    def hosts(self) -> tuple[str, ...]:
        """Return the nodes that the lines name."""
        return tuple(host for host in self._lines if host)

    def complete(self, name: str, stated: Mapping[str, int]) -> dict[str, int]:
        """Return the GPUs of a node by type.

        If the Gres has a number without a type, the types come from the lines of gres.conf. The lines must
        have one type, or as many GPUs as the number. Otherwise, ``stated`` is returned. If the Gres has no
        GPUs, the GPUs of the lines that name the node are returned.

        Args:
            name: The node.
            stated: The GPUs that the Gres of the node states.
        """
        untyped = stated.get("", 0)
        if not stated:
            return _typed_first(self._lines.get(name, {}))
        if not untyped:
            return dict(stated)
        lines = self._lines.get(name) or self._lines.get("", {})
        typed = {kind: count for kind, count in lines.items() if kind}
        if len(typed) == 1:
            return dict.fromkeys(typed, untyped)
        return _typed_first(lines) if sum(typed.values()) == untyped else dict(stated)


def _typed_first(lines: Mapping[str, int]) -> dict[str, int]:
    """Return the GPUs with a type, or those without one if there are no others."""
    typed = {kind: count for kind, count in lines.items() if kind}
    return {kind: count for kind, count in (typed or lines).items() if count}


def _count_of_line(pairs: Mapping[str, str]) -> int:
    """Return the number of GPUs in a line: its Count, or else the number of its device files."""
    if re.fullmatch(r"[0-9]{1,4}", pairs.get("count", "")):
        return int(pairs["count"])
    return len(expand_hostlist(pairs.get("file", "")))
