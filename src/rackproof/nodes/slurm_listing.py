"""Read the nodes of a Slurm cluster from slurm.conf and gres.conf, or from scontrol and sinfo.

``rackproof adopt`` reads the files, or runs ``scontrol``, and calls :func:`read_slurm_listing` with the
texts. Role slurm calls :func:`lost_nodes` through the filter ``slurm_lost_nodes``.

Except for lines of sinfo, a statement begins with ``NodeName=``, ``NodeSet=``, ``PartitionName=``,
``SwitchName=``, ``BlockName=``, ``SlurmctldHost`` or ``ControlMachine``. In gres.conf, it may also begin with
``Name=gpu``. ``scontrol show`` breaks a statement into several lines. In slurm.conf, a backslash continues a
line. The formats are from the manual pages slurm.conf(5), topology.conf(5), scontrol(1) and sinfo(1) of
releases 21.08 to 25.05. The module does no I/O.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from rackproof.core.errors import RackproofError
from rackproof.core.hostlist import compress_hostlist, expand_hostlist, hostlist_problem
from rackproof.core.text import amount, sanitize
from rackproof.nodes.slurm_gres import GresConf, has_uncounted_gpus, read_gres
from rackproof.nodes.slurm_sinfo import SINFO_FORMAT, SinfoTable

MOST_NODES = 10_000
"""Largest number of nodes in a list. A longer one is a mistake, or hostile."""

_BEGIN = re.compile(
    r"(?:(NodeName|NodeSet|PartitionName|SwitchName|BlockName|SlurmctldHost|ControlMachine)\b(?:\[\d+\])?"
    r"\s*=|Name\s*=\s*gpu\b)",
    re.I,
)
"""Pattern of the beginning of a statement, such as ``NodeName=n[01-16]``. ``SlurmctldHost[1]`` is the second
of several hosts."""
_PAIR = re.compile(r"(?:^|\s)([A-Za-z][A-Za-z0-9_/-]*)=(\"[^\"]*\"|\S*)")
"""Pattern of a key with its value, such as ``CPUs=128`` or ``Reason="fan failed"``."""
_INCLUDE = re.compile(r"(?im)^\s*include\s+(\S+)")
"""Pattern of a line of slurm.conf that includes another file."""
_EMPTY = frozenset({"", "(null)", "n/a", "none"})
"""Words that Slurm writes in place of a missing value."""
_ONLY_SCONTROL = frozenset({"arch", "cpualloc", "cputot"})
"""Keys of a node that only scontrol prints. scontrol also prints a Gres for each node, so the text of a node
with these keys but without a Gres is cut off. slurm.conf need not state a Gres."""
_NO_GRES = "no gres"
"""Key of a node for which Slurm states that it has no generic resources."""
_CUT_OFF = "cut off"
"""Key of a node whose entry is cut off. The missing part may state GPUs."""
_NO_END = " \N{HORIZONTAL ELLIPSIS}"
"""Mark at the end of a text whose last line has no end, because that line may be cut off."""
_DEFAULT = "default"
_SPELLED = {"nodeaddr": "NodeAddr", "nodehostname": "NodeHostname"}
_SPELLED_TAKEN = _SPELLED | {
    "gres": "Gres",
    "cpus": "CPUs",
    "cputot": "CPUTot",
    "sockets": "Sockets",
    "corespersocket": "CoresPerSocket",
    "threadspercore": "ThreadsPerCore",
    "realmemory": "RealMemory",
}
"""Keys of a node, by their names in lower case, that may have only one value."""
_ABSENT: Mapping[frozenset[str], str] = {
    frozenset({"FUTURE"}): "their state is FUTURE, so they need not exist yet",
    frozenset({"POWER", "POWERED_DOWN", "POWERING_DOWN"}): "they are nodes of a cloud, and may not run",
}
"""States of nodes that may not answer, with their meaning."""


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
        gpus_known: Whether Slurm states the GPUs of the node. It is False if the text is cut off before or in
            Gres, if Gres has only parts of GPUs (shard, mps), or if sinfo printed no column of generic
            resources.
        switch: Its leaf switch or its block in the topology.
        state: Its state, such as ``FUTURE``.
        instance_type: The cloud's type of the instance.
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
    state: str = ""
    instance_type: str = ""
    sizes: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class SlurmListing:
    """All nodes of a text, the host of slurmctld and its address ("" if unknown), and remarks."""

    nodes: tuple[SlurmNode, ...]
    controller: str = ""
    controller_address: str = ""
    remarks: tuple[str, ...] = ()


def join_slurm_texts(texts: Iterable[str]) -> str:
    """Return several files or outputs as one text in which a last line without an end is marked."""
    return "\n\n".join(text if text[-1:] in ("", "\n") else f"{text}{_NO_END}" for text in texts)


def read_slurm_listing(text: str, source: str) -> SlurmListing:
    """Return the nodes in a text.

    Args:
        text: A file or output, or several (:func:`join_slurm_texts`).
        source: The name of the text in messages.

    Raises:
        SlurmListingError: The text contains no node, too many nodes, or an invalid host list.
    """
    reader = _Reader(source)
    for statement in _statements(text):
        reader.read(statement)
    for line in text.splitlines():
        reader.read_sinfo(line)
    return reader.listing(_INCLUDE.findall(text))


def has_slurm_lines(text: str) -> bool:
    """Return whether a text has a statement, or a line with a bar, which may be a line of sinfo."""
    return next(_statements(text), "") != "" or any("|" in line for line in text.splitlines())


def lost_nodes(text: str, place: str, nodes: Collection[str]) -> str:
    """Return which nodes a slurm.conf has beside the given ones, or why that is unknown, or "".

    Args:
        text: The content of the file.
        place: The name of the file in messages.
        nodes: The names of the nodes that a new file would have.
    """
    if includes := _INCLUDE.findall(text):
        return f"{place} includes {sanitize(', '.join(includes), 200)}, which was not read"
    reader = _Reader(place)
    try:
        for statement in _statements(text):
            if statement.lower().startswith("nodename"):
                reader.read(statement)
    except SlurmListingError as error:
        return str(error)
    lost = [name for name in reader.names() if name not in nodes]
    return f"{place} has {sanitize(compress_hostlist(lost), 1000)}" if lost else ""


def _plain_lines(text: str) -> Iterator[str]:
    """Yield the lines without comments. A line that ends with a backslash is joined with the next one."""
    begun = ""
    for line in text.splitlines():
        # In scontrol's output, the sign in `OS=Linux 5.15.0 #104-Ubuntu` does not start a comment.
        bare = line if " OS=" in line else re.split(r"(?<!\\)#", line, maxsplit=1)[0]
        if bare.endswith("\\"):
            begun += f"{bare[:-1]} "
        else:
            yield begun + bare
            begun = ""
    # The next line of the last statement is missing.
    yield f"{begun.rstrip()}{_NO_END}" if begun.strip() else ""


def _statements(text: str) -> Iterator[str]:
    """Yield each statement as one line. Lines that belong to no statement are skipped."""
    statement = ""
    for bare in _plain_lines(text):
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


def _is_gres(statement: str) -> bool:
    """Return whether a statement is a line of gres.conf, such as ``NodeName=n1 Name=gpu Type=h100``."""
    # The reason or comment of a node at its end may contain the same words.
    stated = re.split(r"\s(?:Reason|Comment|Extra)=", statement, maxsplit=1, flags=re.I)[0]
    return any(key.lower() in ("name", "autodetect") for key, _ in _PAIR.findall(stated))


def _is_cut_off(statement: str, keys: Collection[str]) -> bool:
    """Return whether an entry of a node is cut off after its first line, or in a word before its value."""
    if set(keys) == {"nodename", "corespersocket"}:
        # This is the first line that scontrol prints about a node that never registered.
        return True
    if _ONLY_SCONTROL.intersection(keys):
        # scontrol prints values of several words, such as that of OS, and empty values.
        return False
    stated = re.split(r"\s(?:Reason|Comment|Extra)=", statement, maxsplit=1, flags=re.I)[0]
    return any("=" not in word[:-1] for word in re.sub(r"\"[^\"]*\"", "text", stated).split())


class _Reader:
    """The nodes, partitions and switches read so far, from statements in any order."""

    def __init__(self, source: str) -> None:
        self._place = source
        self._nodes: dict[str, dict[str, str]] = {}
        self._partitions: dict[str, list[str]] = {}
        self._switches: dict[str, str] = {}
        self._sets: dict[str, tuple[tuple[str, ...], str]] = {}
        self._defaults: dict[str, dict[str, str]] = {"nodename": {}, "partitionname": {}}
        self._controller = self._controller_address = ""
        self._gres = GresConf()
        self._sinfo = SinfoTable()
        self._remarks: list[str] = []
        self._differing: dict[str, dict[str, tuple[str, str]]] = {}

    def read(self, statement: str) -> None:
        """Read a statement of slurm.conf, gres.conf, topology.conf or scontrol.

        Raises:
            SlurmListingError: A list of hosts is invalid, or there are too many nodes.
        """
        pairs: dict[str, str] = {}
        has_end, statement = not statement.endswith(_NO_END), statement.removesuffix(_NO_END)
        # In slurm.conf, blanks may stand before each sign. A blank after a later sign may end an empty value
        # of scontrol.
        statement = re.sub(r"\s+=\s*", "=", re.sub(r"\s*=\s*", "=", statement, count=1))
        for name, value in _PAIR.findall(statement):
            # The first value is used, because a reason or comment at the end may contain anything.
            pairs.setdefault(name.lower(), value.strip('"'))
        # "SlurmctldHost[1]" is the second one. Other keys have no number.
        kind = re.sub(r"^(slurmctldhost)\[\d+\]$", r"\1", statement.partition("=")[0].strip().lower())
        if kind in ("slurmctldhost", "controlmachine"):
            self._read_controller(statement)
        elif kind in ("switchname", "blockname"):
            for node in self._hosts(pairs.get("nodes", "")):
                self._switches.setdefault(node, pairs[kind])
        elif kind not in pairs:
            self._remarks.append(f"{sanitize(statement, 80)}: this line is not read")
        elif kind == "name" or _is_gres(statement):
            self._gres.read(self._hosts(pairs.get("nodename", "")), pairs)
        elif kind == "nodeset":
            self._sets[pairs[kind]] = (self._hosts(pairs.get("nodes", "")), pairs.get("feature", ""))
        elif kind == "nodename" and (not has_end or _is_cut_off(statement, pairs)):
            given = {name: value for name, value in pairs.items() if name != "gres" or value}
            self._read_statement(kind, {**given, _CUT_OFF: "yes"})
        else:
            self._read_statement(kind, pairs)

    def _read_statement(self, kind: str, pairs: Mapping[str, str]) -> None:
        """Read a statement about nodes or partitions, or about the defaults of later ones."""
        if pairs[kind].lower() == _DEFAULT:
            self._defaults[kind].update({name: value for name, value in pairs.items() if name != kind})
        else:
            self._read_named(kind, {**self._defaults[kind], **pairs})

    def names(self) -> tuple[str, ...]:
        """Return the names of the nodes."""
        return tuple(self._nodes)

    def _read_controller(self, statement: str) -> None:
        """Read the first host of slurmctld, with its address, from ``SlurmctldHost=name(address)``."""
        match = re.search(r"=\s*\"?([^\s(\"]+)(?:\(([^\s)]+)\))?", statement)
        if match and not self._controller:
            self._controller, self._controller_address = match[1], match[2] or ""

    def _read_named(self, kind: str, pairs: Mapping[str, str]) -> None:
        """Read a statement about nodes or a partition that it names."""
        if kind == "partitionname":
            nodes = pairs.get("nodes", "")
            hosts = ["ALL"] if nodes.upper() == "ALL" else self._hosts(nodes)
            self._partitions.setdefault(pairs[kind], []).extend(hosts)
            return
        names = self._hosts(pairs[kind])
        # The list of addresses is as long as the list of names.
        hosts_of_key = {key: self._hosts(pairs.get(key, "")) for key in _SPELLED}
        self._remarks += [
            f"{sanitize(pairs[kind], 80)}: {_SPELLED[key]} names {amount(len(values), 'host')} for "
            f"{amount(len(names), 'node')}, and is not taken"
            for key, values in hosts_of_key.items()
            if len(values) not in (0, len(names))
        ]
        for index, name in enumerate(names):
            node_fields = dict(pairs)
            for key, values in hosts_of_key.items():
                node_fields[key] = values[index] if len(values) == len(names) else ""
            self._keep(name, node_fields)

    def read_sinfo(self, line: str) -> None:
        """Read a line of sinfo, whose fields bars separate. Skip any other line.

        Raises:
            SlurmListingError: The fields have an unexpected form, the list of hosts is invalid, or there are
                too many nodes.
        """
        if "|" not in line or _BEGIN.match(line):
            return
        has_end = not line.endswith(_NO_END)
        try:
            fields = self._sinfo.read(line.removesuffix(_NO_END))
        except ValueError as error:
            raise SlurmListingError(f"{self._place}: {sanitize(line, 80)}: {error}") from None
        if fields is None:
            self._remarks.append(f"{sanitize(line, 80)}: this line of sinfo cannot be read")
            return
        for node in self._hosts(fields.get("node", "")):
            # Without the column of generic resources, a node may have GPUs.
            gres = fields.get("gres", "gpu:") or ("" if has_end else "gpu:")
            self._keep(node, {"gres": gres, "activefeatures": fields.get("features", "")})
            if "partition" in fields:
                self._partitions.setdefault(fields["partition"].rstrip("*"), []).append(node)

    def _keep(self, name: str, values_read: Mapping[str, str]) -> None:
        """Add facts of a node. Of several values of a key, the first one is used, and a remark names others.

        Raises:
            SlurmListingError: There are too many nodes.
        """
        if len(self._nodes) >= MOST_NODES and name not in self._nodes:
            raise SlurmListingError(f"{self._place} lists more than {MOST_NODES:,} nodes")
        node_fields = self._nodes.setdefault(name, {})
        for key, value in values_read.items():
            first = node_fields.get(key, node_fields.get(_NO_GRES, "") if key == "gres" else "")
            if key in _SPELLED_TAKEN and _contradicts(key, first, value):
                self._differing.setdefault(key, {}).setdefault(name, (first, value))
            if value.lower() not in _EMPTY:
                node_fields.setdefault(key, value)
            elif key == "gres":
                node_fields.setdefault(_NO_GRES, value)

    def _hosts(self, text: str) -> tuple[str, ...]:
        """Return the hosts in a list, or none if Slurm writes a word for an empty list.

        Raises:
            SlurmListingError: The text is not a list of hosts, or names too many.
        """
        if text.lower() in _EMPTY:
            return ()
        if problem := hostlist_problem(text, MOST_NODES):
            raise SlurmListingError(
                f"{self._place}: {sanitize(text, 80)} is not a list of hosts: {problem}; correct it there"
            )
        return expand_hostlist(text)

    def listing(self, includes: Iterable[str]) -> SlurmListing:
        """Return the parsed nodes.

        Args:
            includes: The paths of Include lines. A remark names the paths whose files were not read.

        Raises:
            SlurmListingError: The text lists no nodes.
        """
        read_names = {PurePosixPath(file).name for file in self._place.split(", ")}
        unread_paths = [path for path in includes if PurePosixPath(path).name not in read_names]
        unread = ", ".join(f"Include {sanitize(path, 100)}" for path in unread_paths)
        remarks = [f"{self._place}: not read: {unread}; name these files, too"] if unread else []
        remarks += [f"{self._place}: {text}" for text in (*self._remarks, *self._gres_remarks())]
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
            names_text = sanitize(", ".join(strangers[:5]), 200)
            remarks.append(f"{self._place}: partitions name {names_text} that no NodeName has")
        nodes = [
            self._node(name, node_fields, of_node.get(name, ())) for name, node_fields in self._nodes.items()
        ]
        return SlurmListing(
            nodes=tuple(nodes),
            controller=sanitize(self._controller, 253),
            controller_address=sanitize(self._controller_address, 253),
            remarks=(
                *remarks,
                *self._differing_remarks(),
                *self._cut_off_remarks(nodes),
                *_absent_remarks(nodes, self._place),
            ),
        )

    def _differing_remarks(self) -> Iterator[str]:
        """Yield a remark on each key for which a node has several values."""
        for key, values_of_node in self._differing.items():
            names_text = sanitize(compress_hostlist(values_of_node), 200)
            first, later = (sanitize(value, 60) for value in next(iter(values_of_node.values())))
            spelled = _SPELLED_TAKEN[key]
            yield (
                f"{self._place}: {names_text}: {spelled} has several values ({first}, later {later}); the "
                "first is taken; correct the other one"
            )

    def _cut_off_remarks(self, nodes: Iterable[SlurmNode]) -> Iterator[str]:
        """Yield a remark on the nodes that may have GPUs in the missing part of their entries."""
        names = [node.name for node in nodes if not node.gpus_known and _CUT_OFF in self._nodes[node.name]]
        if names:
            names_text = sanitize(compress_hostlist(names), 200)
            yield (
                f"{self._place}: {names_text}: the entry is cut off or its line has no end, so it may have "
                "GPUs; copy the file again, or end its last line"
            )

    def _gres_remarks(self) -> list[str]:
        """Return the remark on nodes that only gres.conf names. Add these nodes if there are no others."""
        unknown_hosts = [host for host in self._gres.hosts if host not in self._nodes]
        hosts_text = sanitize(compress_hostlist(unknown_hosts), 200)
        if not unknown_hosts:
            return []
        if self._nodes:
            return [f"left out: {hosts_text}: gres.conf names them, and no NodeName of slurm.conf does"]
        for host in unknown_hosts:
            self._keep(host, {"gres": "gpu:"})
        return ["gres.conf lists only nodes with GPUs; name slurm.conf, too, for other nodes and partitions"]

    def _members(self, members: Iterable[str]) -> Iterator[str]:
        """Yield the nodes of a partition, which may name all nodes, single nodes and sets of nodes.

        A member with ``-`` before it is left out.
        """
        members = tuple(members)
        removed = {*self._included(name[1:] for name in members if name.startswith("-"))}
        included = self._included(name for name in members if not name.startswith("-"))
        yield from (name for name in included if name not in removed)

    def _included(self, members: Iterable[str]) -> Iterator[str]:
        """Yield the nodes that members of a partition name."""
        for member in members:
            if member.upper() == "ALL":
                yield from self._nodes
            elif member in self._sets:
                nodes, feature = self._sets[member]
                yield from nodes
                yield from (
                    name
                    for name, node_fields in self._nodes.items()
                    if feature and feature in _features(node_fields)
                )
            else:
                yield member

    def _node(self, name: str, node_fields: Mapping[str, str], partitions: Iterable[str]) -> SlurmNode:
        """Return a node from all facts about it."""
        address, hostname = node_fields.get("nodeaddr", ""), node_fields.get("nodehostname", "")
        stated = read_gres(node_fields.get("gres", "")) or read_gres(node_fields.get("cfgtres", ""))
        gpus = self._gres.complete(name, stated)
        partition_names = [*_split(node_fields.get("partitions", "")), *partitions]
        return SlurmNode(
            name=name,
            address=address if address != name else "",
            hostname=hostname if hostname != name else "",
            gpus=gpus,
            gpus_known=bool(gpus) or _states_gpus(node_fields),
            features=tuple(dict.fromkeys(sanitize(feature, 60) for feature in _features(node_fields))),
            partitions=tuple(dict.fromkeys(sanitize(partition, 60) for partition in partition_names)),
            switch=sanitize(self._switches.get(name, ""), 60),
            state=node_fields.get("state", ""),
            instance_type=sanitize(node_fields.get("instancetype", ""), 60),
            sizes=_sizes(node_fields),
        )


def _contradicts(key: str, first: str, later: str) -> bool:
    """Return whether two values of a key exclude each other. "" is no value."""
    if key != "gres":
        return "" not in (first, later) and first.lower() != later.lower()
    if "" in (first, later) or has_uncounted_gpus(f"{first},{later}"):
        return False
    gpus = read_gres(first), read_gres(later)
    is_typed = not any("" in counts for counts in gpus)
    return (gpus[0] != gpus[1]) if is_typed else sum(gpus[0].values()) != sum(gpus[1].values())


def _absent_remarks(nodes: Iterable[SlurmNode], place: str) -> Iterator[str]:
    """Yield remarks about nodes that need not exist or run, by their states."""
    for states, meaning in _ABSENT.items():
        names = [node.name for node in nodes if _words_of_state(node.state) & states]
        if names:
            names_text = sanitize(compress_hostlist(names), 200)
            yield f"{place}: {names_text}: {meaning}; --exclude leaves nodes out"


def _words_of_state(state: str) -> set[str]:
    """Return the words of a state. A node in the cloud without another state may be off."""
    words = {word.strip("*~#$@^! ").upper() for word in state.split("+")}
    return words if words != {"CLOUD"} else {"POWERED_DOWN"}


def _features(node_fields: Mapping[str, str]) -> list[str]:
    """Return the features of a node, or the possible ones if none is active."""
    keys = ("activefeatures", "availablefeatures", "feature", "features")
    return _split(next((node_fields[key] for key in keys if key in node_fields), ""))


def _states_gpus(node_fields: Mapping[str, str]) -> bool:
    """Return whether Slurm states that a node without a number of GPUs has no GPU."""
    if has_uncounted_gpus(f"{node_fields.get('gres', '')},{node_fields.get('cfgtres', '')}"):
        return False
    if _CUT_OFF in node_fields:
        return _NO_GRES in node_fields
    is_of_scontrol = node_fields.keys() & _ONLY_SCONTROL
    return "gres" in node_fields or _NO_GRES in node_fields or not is_of_scontrol


_SIZES: Mapping[str, tuple[str, ...]] = {
    "cpus": ("cputot", "cpus"),
    "sockets": ("sockets",),
    "cores_per_socket": ("corespersocket",),
    "threads": ("threadspercore",),
    "real_memory_mb": ("realmemory",),
}
"""Keys of :attr:`SlurmNode.sizes`, each with Slurm's keys in lower case. The first existing key is used."""


def _sizes(node_fields: Mapping[str, str]) -> dict[str, int]:
    """Return the sizes of a node that Slurm states."""
    stated = {
        key: next((node_fields[name] for name in names if name in node_fields), "")
        for key, names in _SIZES.items()
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
