"""Read the nodes of a Slurm cluster from slurm.conf, or from output of scontrol and sinfo. No I/O.

``rackproof adopt`` reads the files, and calls :func:`read_slurm_listing` with their texts.

Except for lines of sinfo, a statement begins with ``NodeName=``, ``NodeSet=``, ``PartitionName=``,
``SwitchName=``, ``BlockName=`` or ``SlurmctldHost``. ``scontrol show`` breaks a statement into several
lines. In slurm.conf, a backslash continues a line. The sources are the manual pages slurm.conf(5),
topology.conf(5), scontrol(1) and sinfo(1) of releases 21.08 to 25.05.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from rackproof.core.errors import RackproofError
from rackproof.core.hostlist import expand_hostlist, hostlist_problem
from rackproof.core.text import sanitize

MOST_NODES = 10_000
"""No inventory has more nodes. A longer list is a mistake, or hostile."""
SINFO_FORMAT = "%N|%R|%G|%f"
"""A line of ``sinfo --Node --noheader --format=…`` has these fields, which are node, partition, generic
resources and features."""

_BEGIN = re.compile(
    r"(NodeName|NodeSet|PartitionName|SwitchName|BlockName|SlurmctldHost|ControlMachine)\b(?:\[\d+\])?\s*=",
    re.I,
)
_PAIR = re.compile(r"(?:^|\s)([A-Za-z][A-Za-z0-9_/-]*)=(\"[^\"]*\"|\S*)")
_GPUS = re.compile(
    r"(?:gres/)?gpu(?::([A-Za-z0-9_.+-]*[A-Za-z_][A-Za-z0-9_.+-]*))?[:=](\d{1,4})(?![\dKMGkmg])"
)
_EMPTY = frozenset({"", "(null)", "n/a", "none"})
_ONLY_SCONTROL = frozenset({"arch", "cpualloc", "cputot"})
"""Only scontrol prints these keys of a node, and then a Gres in each case. slurm.conf may have none."""
_NO_GRES = "no gres"
_DEFAULT = "default"


class SlurmListingError(RackproofError):
    """A text that is not a list of Slurm's nodes. The message gives the place and the problem."""


@dataclass(frozen=True)
class SlurmNode:
    """A node as Slurm describes it. Unknown fields are empty.

    Attributes:
        name: NodeName.
        address: NodeAddr, if it differs from the name.
        hostname: NodeHostname, if it differs from the name.
        gpus: The number of GPUs by type in Gres. The type is "" if Gres has none.
        features: Its features.
        partitions: Its partitions.
        gpus_known: Whether Slurm states its GPUs. It is false if the text is cut off before or in Gres.
        switch: Its leaf switch or its block in the topology.
        sizes: The values of CPUs, Sockets, CoresPerSocket, ThreadsPerCore and RealMemory (MB) that Slurm
            states, by the keys of :data:`_SIZES`.
    """

    name: str
    address: str = ""
    hostname: str = ""
    gpus: Mapping[str, int] = field(default_factory=dict)
    features: tuple[str, ...] = ()
    partitions: tuple[str, ...] = ()
    gpus_known: bool = True
    switch: str = ""
    sizes: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class SlurmListing:
    """All nodes of a text, the host of slurmctld ("" if unknown), and the lines that were not read."""

    nodes: tuple[SlurmNode, ...]
    controller: str = ""
    remarks: tuple[str, ...] = ()


def read_slurm_listing(text: str, source: str) -> SlurmListing:
    """Return the nodes in a text.

    Args:
        text: One or several files or outputs.
        source: The name of the text in messages.

    Raises:
        SlurmListingError: The text contains no node, too many nodes, or an invalid host list.
    """
    reader = _Reader(source)
    for statement in _statements(text):
        reader.read(statement)
    for line in text.splitlines():
        reader.read_sinfo(line)
    return reader.listing(re.findall(r"(?im)^\s*include\s+(\S+)", text))


def _statements(text: str) -> Iterator[str]:
    """Yield each statement as one line. Lines that belong to no statement are skipped."""
    statement = ""
    for line in re.sub(r"\\\r?\n", " ", text).splitlines():
        # In scontrol's output, the sign in `OS=Linux 5.15.0 #104-Ubuntu` does not start a comment.
        ends = "#" if line.lstrip().startswith("#") else "\0" if " OS=" in line else " #"
        bare = line.split(ends)[0]
        if _BEGIN.match(bare.lstrip()):
            if statement:
                yield statement
            statement = bare.strip()
        elif statement and bare[:1] in (" ", "\t") and bare.strip():
            # scontrol breaks a statement over indented lines.
            statement += f" {bare.strip()}"
        elif statement:
            yield statement
            statement = ""
    if statement:
        yield statement


class _Reader:
    """The nodes, partitions and switches read so far, from statements in any order."""

    def __init__(self, source: str) -> None:
        self._place = source
        self._nodes: dict[str, dict[str, str]] = {}
        self._partitions: dict[str, list[str]] = {}
        self._switches: dict[str, str] = {}
        self._sets: dict[str, tuple[tuple[str, ...], str]] = {}
        self._defaults: dict[str, dict[str, str]] = {"nodename": {}, "partitionname": {}}
        self._controller = ""

    def read(self, statement: str) -> None:
        """Read a statement of slurm.conf or of scontrol."""
        pairs: dict[str, str] = {}
        for name, value in _PAIR.findall(re.sub(r"\s*=\s*", "=", statement, count=1)):
            # The first value is used, because a reason or comment at the end may contain anything.
            pairs.setdefault(name.lower(), value.strip('"'))
        kind = statement.partition("=")[0].strip().lower().partition("[")[0]
        if kind in ("slurmctldhost", "controlmachine"):
            match = re.search(r"=\s*\"?([^\s(\"]+)", statement)
            self._controller = self._controller or (match[1] if match else "")
        elif kind in ("switchname", "blockname"):
            for node in self._hosts(pairs.get("nodes", "")):
                self._switches.setdefault(node, pairs[kind])
        elif kind == "nodeset":
            self._sets[pairs[kind]] = (self._hosts(pairs.get("nodes", "")), pairs.get("feature", ""))
        elif pairs.get(kind, "").lower() == _DEFAULT:
            self._defaults[kind].update({name: value for name, value in pairs.items() if name != kind})
        else:
            self._read_named(kind, {**self._defaults[kind], **pairs})

    def _read_named(self, kind: str, pairs: Mapping[str, str]) -> None:
        """Read a statement about nodes or a partition that it names."""
        if kind == "partitionname":
            nodes = pairs.get("nodes", "")
            hosts = ["ALL"] if nodes.upper() == "ALL" else self._hosts(nodes)
            self._partitions.setdefault(pairs[kind], []).extend(hosts)
            return
        names = self._hosts(pairs[kind])
        # The list of addresses is as long as the list of names.
        own = {key: self._hosts(pairs.get(key, "")) for key in ("nodeaddr", "nodehostname")}
        for at, name in enumerate(names):
            about = dict(pairs)
            for key, values in own.items():
                about[key] = values[at] if len(values) == len(names) else ""
            self._keep(name, about)

    def read_sinfo(self, line: str) -> None:
        """Read a line of ``sinfo --Node --noheader --format=%N|%R|%G|%f``. Skip any other line."""
        parts = [part.strip() for part in line.split("|")]
        if len(parts) == 4 and re.fullmatch(r"[\w.-]+", parts[0]) and not _BEGIN.match(line):
            node, partition, gres, features = parts
            self._keep(node, {"gres": gres, "activefeatures": features})
            self._partitions.setdefault(partition.rstrip("*"), []).append(node)

    def _keep(self, name: str, about: Mapping[str, str]) -> None:
        """Add facts of a node. The first value of each is used."""
        if len(self._nodes) >= MOST_NODES and name not in self._nodes:
            raise SlurmListingError(f"{self._place} lists more than {MOST_NODES:,} nodes")
        known = self._nodes.setdefault(name, {})
        for key, value in about.items():
            if value.lower() not in _EMPTY:
                known.setdefault(key, value)
            elif key == "gres":
                known.setdefault(_NO_GRES, value)

    def _hosts(self, text: str) -> tuple[str, ...]:
        """Return the hosts in a list, or none if Slurm writes a word for an empty list."""
        if text.lower() in _EMPTY:
            return ()
        if problem := hostlist_problem(text, MOST_NODES):
            raise SlurmListingError(
                f"{self._place}: {sanitize(text, 80)} is not a list of hosts: {problem}; correct it there"
            )
        return expand_hostlist(text)

    def listing(self, includes: Iterable[str]) -> SlurmListing:
        """Return the parsed nodes.

        Raises:
            SlurmListingError: The text lists no nodes.
        """
        read = {PurePosixPath(file).name for file in self._place.split(", ")}
        others = [path for path in includes if PurePosixPath(path).name not in read]
        unread = ", ".join(f"Include {sanitize(path, 100)}" for path in others)
        remarks = [f"{self._place}: not read: {unread}; name these files, too"] if unread else []
        if not self._nodes:
            raise SlurmListingError(
                remarks[0]
                if remarks
                else f"{self._place} lists no node: it needs lines with NodeName=, as in slurm.conf and in "
                "what scontrol show node prints, or those of sinfo --Node --noheader "
                f"--format='{SINFO_FORMAT}'"
            )
        of_node: dict[str, list[str]] = {}
        for partition, members in self._partitions.items():
            for node in dict.fromkeys(self._members(members)):
                of_node.setdefault(node, []).append(partition)
        if strangers := sorted(set(of_node) - set(self._nodes)):
            shown = sanitize(", ".join(strangers[:5]), 200)
            remarks.append(f"{self._place}: partitions name {shown} that no NodeName has")
        return SlurmListing(
            nodes=tuple(
                self._node(name, about, of_node.get(name, ())) for name, about in self._nodes.items()
            ),
            controller=sanitize(self._controller, 253),
            remarks=tuple(remarks),
        )

    def _members(self, members: Iterable[str]) -> Iterator[str]:
        """Yield the nodes of a partition, which may name all nodes, single nodes and sets of nodes."""
        for member in members:
            if member == "ALL":
                yield from self._nodes
            elif member in self._sets:
                nodes, feature = self._sets[member]
                yield from nodes
                yield from (
                    name for name, about in self._nodes.items() if feature and feature in _features(about)
                )
            else:
                yield member

    def _node(self, name: str, about: Mapping[str, str], partitions: Iterable[str]) -> SlurmNode:
        """Return a node from all facts about it."""
        address, hostname = about.get("nodeaddr", ""), about.get("nodehostname", "")
        gpus = read_gres(about.get("gres", "")) or read_gres(about.get("cfgtres", ""))
        mine = [*_split(about.get("partitions", "")), *partitions]
        return SlurmNode(
            name=name,
            address=address if address != name else "",
            hostname=hostname if hostname != name else "",
            gpus=gpus,
            gpus_known=bool(gpus) or _states_gpus(about),
            features=tuple(dict.fromkeys(sanitize(feature, 60) for feature in _features(about))),
            partitions=tuple(dict.fromkeys(sanitize(partition, 60) for partition in mine)),
            switch=sanitize(self._switches.get(name, ""), 60),
            sizes=_sizes(about),
        )


def _features(about: Mapping[str, str]) -> list[str]:
    """Return the features of a node, or the possible ones if none is active."""
    keys = ("activefeatures", "availablefeatures", "feature", "features")
    return _split(next((about[key] for key in keys if key in about), ""))


def _states_gpus(about: Mapping[str, str]) -> bool:
    """Return whether Slurm states that a node without a number of GPUs has no GPU."""
    if "gres" not in about:
        return _NO_GRES in about or not about.keys() & _ONLY_SCONTROL
    parts = _plain_gres(about["gres"]).split(",")
    return not any(re.match(r"gpu(?:[:=]|\Z)", part) and not _GPUS.search(part) for part in parts)


_SIZES: Mapping[str, tuple[str, ...]] = {
    "cpus": ("cputot", "cpus"),
    "sockets": ("sockets",),
    "cores_per_socket": ("corespersocket",),
    "threads": ("threadspercore",),
    "real_memory_mb": ("realmemory",),
}


def _sizes(about: Mapping[str, str]) -> dict[str, int]:
    """Return the sizes of a node that Slurm states."""
    stated = {
        key: next((about[name] for name in names if name in about), "") for key, names in _SIZES.items()
    }
    sizes = {key: int(text) for key, text in stated.items() if re.fullmatch(r"[0-9]{1,9}", text)}
    parts = [sizes.get(key) for key in ("sockets", "cores_per_socket", "threads")]
    if "cpus" not in sizes and all(parts):
        # slurmctld computes the number in this way, too.
        sizes["cpus"] = math.prod(part or 0 for part in parts)
    return sizes


def _split(text: str) -> list[str]:
    """Return the words of a list. sinfo marks the default partition by a star, which is left out."""
    return [part.rstrip("*") for part in text.split(",") if part.lower() not in _EMPTY]


def read_gres(text: str) -> dict[str, int]:
    """Return the GPUs in a Gres or TRES by type. ``gpu:h100:8(S:0-1)`` gives ``{"h100": 8}``. No I/O.

    The type in ``gpu:8`` is "". If CfgTRES counts all GPUs in addition to each type, only the types are
    returned.
    """
    counts: dict[str, int] = {}
    for kind, count in _GPUS.findall(_plain_gres(text)):
        if int(count):
            counts[kind.lower()] = counts.get(kind.lower(), 0) + int(count)
    return {kind: count for kind, count in counts.items() if kind} or counts


def _plain_gres(text: str) -> str:
    """Return a Gres without sockets and flags."""
    return re.sub(r"\([^)]*\)|:no_consume", "", text)
