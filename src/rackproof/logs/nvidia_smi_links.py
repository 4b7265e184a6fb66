"""Parse ``nvidia-smi nvlink --status`` and ``topo -m``, for :func:`rackproof.logs.parse`.

The first lists the NVLinks of each GPU. The second is a matrix of the connections between GPUs:

    GPU 0: NVIDIA H200 (UUID: GPU-00000000-0000-4000-8000-000000000001)
             Link 0: 26.562 GB/s

            GPU0    GPU1    CPU Affinity
    GPU0     X      NV18    0-63
    GPU1    NV18     X      0-63

``NV18`` means 18 NVLinks. Other words mean a path over PCIe (:data:`_KINDS`).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import ClassVar

from rackproof.core.gpu_models import (
    SLOW_LINK_SHARE,
    has_own_links,
    least_link_gb_s,
    links_of,
    most_link_gb_s,
)
from rackproof.core.records import Direction, Measurement, ParsedLog, Verdict
from rackproof.logs._nvidia_smi import (
    MAX_GPUS,
    find_missing_indexes,
    find_mixed_models,
    find_remark,
    find_twice,
)
from rackproof.logs._reading import Log, LogParser, clean, number

_GPU_LINE = re.compile(r"^GPU (\d{1,4}): (.{1,100}) \(UUID: (GPU-[0-9A-Fa-f-]{1,60})\)")
_LINK_LINE = re.compile(r"^\s*Link (\d{1,3}): (?:(\d.{0,59})|.{0,60})\s*$")
"""Pattern of a link: its number, and its speed in one direction, or words such as ``<inactive>``."""
_SPEED = re.compile(r"(\d[\d.]{0,20}) GB/s\s*")
_NO_LINK_LINE = re.compile(
    r"(?:NVML: .{0,80}|unable to retrieve .{0,40})(?:links are inactive|NVLink)|"
    r"(?P<lacks>Device does not have or support Nvlink)|"
    r"(?P<divided>Nvlink queries are not supported for .{0,20}MIG)",
    re.IGNORECASE,
)
"""Pattern of the words in place of a list of links, below a heading."""
_NVLINK_HEAD = re.compile(
    rb"GPU \d+: [^\n]{1,100} \(UUID: GPU-[^\n]{1,60}\)[ \t\r]*\n"
    rb"[ \t]*(?:Link \d+: (?![^\n]*Errors)|NVML: [^\n]{0,80}NVLink|Device does not [^\n]{0,20}NVLink|"
    rb"NVLink queries are not )",
    re.IGNORECASE,
)
"""Pattern of a GPU's heading above a list of links, or above words in its place."""


@dataclass
class _Gpu:
    """The links of one GPU in the list, and the line and product name of its heading."""

    line: int
    name: str
    speeds: list[float] = field(default_factory=list)
    """Speed in GB/s of each active link."""
    down: list[tuple[str, int, str]] = field(default_factory=list)
    """Inactive links: number, line and text."""
    numbers: set[int] = field(default_factory=set)
    """Numbers of all listed links."""
    lacks_links: bool = False
    """True if the driver states that the device has no NVLink."""
    is_divided: bool = False
    """True if the driver shows no links because the GPU is divided (MIG)."""


class NvlinkStatusParser(LogParser):
    """The parser of ``nvidia-smi nvlink --status``."""

    format: ClassVar[str] = "nvlink_status"
    description: ClassVar[str] = "nvidia-smi nvlink --status"

    @staticmethod
    def recognises(head: bytes) -> bool:
        """Return whether the bytes contain a list of NVLinks, or state that none of a GPU's is active."""
        return _NVLINK_HEAD.search(head) is not None

    def __init__(self, log: Log) -> None:
        super().__init__(log)
        self.gpus: dict[str, _Gpu] = {}
        """Each GPU by its UUID."""
        self.indexes: set[str] = set()
        self.of_gpu: set[str] = set()
        """Numbers of the links below the current heading."""
        self.uuid = ""
        """UUID of the current heading, or "" if it cannot be read."""

    def line(self, at: int, text: str) -> None:
        """Read a GPU's heading or a link."""
        if match := _GPU_LINE.match(text):
            self._heading(at, text, *match.groups())
        elif match := _LINK_LINE.match(text):
            self._link(at, text, match[1], match[2])
        elif match := _NO_LINK_LINE.search(text):
            self._no_links(at, text, match)
        else:
            self._other(at, text)

    def _no_links(self, at: int, text: str, match: re.Match[str]) -> None:
        """Read the words in place of a list of links."""
        if self.of_gpu:
            message = f"links of {self.uuid} are listed, and none of them can be retrieved"
            self.log.find("nvlink_unclear", message, Verdict.UNPROVEN, line=at, excerpt=text)
        if gpu := self.gpus.get(self.uuid):
            gpu.lacks_links, gpu.is_divided = bool(match["lacks"]), bool(match["divided"])

    def _other(self, at: int, text: str) -> None:
        """Read a line that is no link: a heading without a UUID, or a message of nvidia-smi."""
        is_heading = text.startswith("GPU ")
        if is_heading:
            # Do not add the links to the previous GPU.
            self.uuid = ""
        if not find_remark(self.log, at, text) and is_heading:
            self.log.find("gpu_lost", "a GPU has no UUID", Verdict.UNPROVEN, line=at, excerpt=text)

    def _heading(self, at: int, text: str, index: str, name: str, uuid: str) -> None:
        """Begin the list of a GPU's links."""
        self.uuid = uuid
        self.of_gpu.clear()
        if uuid in self.gpus or index in self.indexes:
            find_twice(self.log, at, f"{uuid} ({index})", text)
        self.indexes.add(index)
        if len(self.gpus) < MAX_GPUS:
            self.gpus.setdefault(uuid, _Gpu(at, name))
        self.log.tag("device", name)

    def _link(self, at: int, text: str, link: str, shown: str | None) -> None:
        """Record a link. Words in place of a speed, or 0 GB/s, mean that it is down."""
        if self.uuid not in self.gpus:
            return
        if link in self.of_gpu:
            find_twice(self.log, at, f"{self.uuid}, link {link}", text)
        self.of_gpu.add(link)
        gpu = self.gpus[self.uuid]
        if len(gpu.numbers) < 200:
            gpu.numbers.add(int(link))
        stated = _SPEED.fullmatch(shown or "")
        speed = number(stated[1]) if stated else None
        if shown and speed is None:
            message = f"link {link} of {self.uuid}: its speed cannot be read: list the links again"
            self.log.find("damaged_line", message, Verdict.UNPROVEN, line=at, excerpt=text)
        elif speed is None or speed <= 0:
            if len(gpu.down) < 200:
                gpu.down.append((link, at, text))
        elif len(gpu.speeds) < 200:
            gpu.speeds.append(speed)
            self._judge_speed(at, text, f"link {link} of {self.uuid}: {speed:g} GB/s", gpu.name, speed)

    def _judge_speed(self, at: int, text: str, shown: str, name: str, speed: float) -> None:
        """Judge a link's speed by the slowest and the fastest links of the GPU's model."""
        least = least_link_gb_s(name)
        if speed < SLOW_LINK_SHARE * least:
            message = f"{shown}, a link of {name} has {least:g} or more"
            self.log.find("nvlink_slow", message, Verdict.FAIL, line=at, excerpt=text)
        most = most_link_gb_s(name)
        if most is not None and speed > most:
            message = f"{shown}, a link of {name} has at most {most:g}"
            self.log.find("impossible_value", message, Verdict.UNPROVEN, line=at, excerpt=text)

    def finish(self) -> ParsedLog:
        """Return the log with the number of active links of each GPU, and the sum of their speeds in GB/s."""
        measurements = []
        for uuid, gpu in self.gpus.items():
            for name, value, unit in (
                ("nvlink_links", float(len(gpu.speeds)), ""),
                ("nvlink_bandwidth", sum(gpu.speeds), "GB/s"),
            ):
                measurements.append(
                    self.measure(name, value, unit, Direction.HIGHER, gpu.line, labels={"gpu": uuid})
                )
        if self.log.ends_in_line:
            self.log.find("cut_off", "the list ends in mid-line", Verdict.UNPROVEN)
        self._judge_numbers()
        self._judge_whole()
        self._judge_speeds()
        return self.log.parsed(self.format, Verdict.PASS if self.gpus else Verdict.UNPROVEN, measurements)

    def _judge_numbers(self) -> None:
        """Record GPUs without links, and GPUs whose number of links differs from their neighbours'."""
        if not self.gpus:
            self.log.find("nvlink_absent", "no GPU in the list", Verdict.UNPROVEN)
        linked = {gpu.name for gpu in self.gpus.values() if gpu.speeds}
        for uuid, gpu in self.gpus.items():
            self._judge_down(uuid, gpu, linked)
            if not gpu.speeds:
                self._judge_unlinked(uuid, gpu, linked)
        counts = {(gpu.name, len(gpu.speeds)) for gpu in self.gpus.values() if gpu.speeds}
        if len(counts) > len(linked):
            message = f"GPUs have different numbers of links: {sorted({count for _name, count in counts})}"
            self.log.find("nvlink_uneven", message, Verdict.FAIL)

    def _judge_down(self, uuid: str, gpu: _Gpu, linked: Set[str]) -> None:
        """Record inactive links. ``linked`` has the models of which a GPU has an active link."""
        is_unbridged = has_own_links(gpu.name) is False and gpu.name not in linked
        for link, at, text in gpu.down:
            # A card without a bridge shows its links in this way. Other words never mean a sound link.
            if not (is_unbridged and "<inactive>" in text):
                message = f"link {link} of {uuid} is down"
                self.log.find("nvlink_down", message, Verdict.FAIL, line=at, excerpt=text)

    def _judge_unlinked(self, uuid: str, gpu: _Gpu, linked: Set[str]) -> None:
        """Record a GPU without an active link. A card may have none if no other of its model has one."""
        if gpu.is_divided:
            message = f"no NVLink of {uuid} is shown, because the GPU is divided (MIG)"
            self.log.find("nvlink_unclear", message, Verdict.UNPROVEN, line=gpu.line)
        elif gpu.name in linked:
            message = f"no NVLink of {uuid} is up, and some of another {gpu.name}: reset the GPU"
            self.log.find("nvlink_missing", message, Verdict.FAIL, line=gpu.line)
        elif has_own_links(gpu.name) is not False and not (gpu.lacks_links and links_of(gpu.name) is None):
            message = f"no NVLink of {uuid} ({gpu.name}) is up: that is right only for a single GPU"
            self.log.find("nvlink_absent", message, Verdict.UNPROVEN, line=gpu.line)

    def _judge_whole(self) -> None:
        """Record links and GPUs that the list lacks, links beyond the model's, and several models."""
        for uuid, gpu in self.gpus.items():
            expected = links_of(gpu.name) or 0
            if not gpu.numbers or (
                gpu.numbers == set(range(len(gpu.numbers))) and len(gpu.numbers) == expected
            ):
                continue
            lacking = sorted(set(range(max(expected, *(link + 1 for link in gpu.numbers)))) - gpu.numbers)
            if lacking or (expected and len(gpu.numbers) > expected):
                missing = (
                    f"no link {', '.join(map(str, lacking[:6]))}" if lacking else f"more than {expected}"
                )
                message = f"{uuid} ({gpu.name}): {len(gpu.numbers)} links are listed, {missing}"
                self.log.find("nvlink_unclear", message, Verdict.UNPROVEN, line=gpu.line)
        find_missing_indexes(self.log, "the list", map(int, self.indexes))
        find_mixed_models(self.log, (gpu.name for gpu in self.gpus.values()))

    def _judge_speeds(self) -> None:
        """Record links that are much slower than the fastest link of a GPU of the model."""
        fastest: dict[str, float] = {}
        for gpu in self.gpus.values():
            fastest[gpu.name] = max([fastest.get(gpu.name, 0.0), *gpu.speeds])
        for uuid, gpu in self.gpus.items():
            slowest = min(gpu.speeds, default=fastest[gpu.name])
            if slowest < SLOW_LINK_SHARE * fastest[gpu.name]:
                beside = fastest[gpu.name]
                message = f"a link of {uuid} has {slowest:g} GB/s, others {beside:g}: reset the GPU"
                self.log.find("nvlink_slow", message, Verdict.FAIL, line=gpu.line)


_TOPO_HEAD = re.compile(
    rb"\t(?:\x1b\[[0-9;]*m)?GPU0(?:\tGPU\d+)*\t"
    # Blanks, as in a copy from a terminal, only count at the start, because program logs contain such tables.
    rb"|\A(?:[^\n]*\n){0,3}(?:  +|\t)GPU0(?:(?:  +|\t)GPU\d+)*(?:  |\t|\s*\n)"
)
_KINDS = re.compile(r"NV[1-9]\d?|PIX|PXB|PHB|NODE|SYS|SOC|C2C")
"""Pattern of the ways in which two GPUs can be connected: NVLinks with their number, PCIe (from near to far),
or C2C. Old drivers print SOC for SYS."""
_ACCESS = frozenset({"OK", "CNS", "GNS", "TNS", "NS", "DR", "U"})
"""The words of ``nvidia-smi topo -p2p``, whose matrix shows which GPUs may access each other."""
_MOST_LINKS = 18
"""Largest number of NVLinks of a GPU. If those to its peers add up to more, they lead through switches."""
_QUAD_OF_DGX1 = [[1, 1, 2], [1, 1, 2], [1, 2, 2], [1, 2, 2]]
"""NVLinks of each of four V100 of a DGX-1 to the others. A virtual machine with half a DGX-1 has them."""


class NvidiaSmiTopoParser(LogParser):
    """The parser of ``nvidia-smi topo -m``, which shows how each pair of GPUs is connected."""

    format: ClassVar[str] = "nvidia_smi_topo"
    description: ClassVar[str] = "nvidia-smi topo -m"

    @staticmethod
    def recognises(head: bytes) -> bool:
        """Return whether the bytes contain a topology matrix."""
        return _TOPO_HEAD.search(head) is not None

    def __init__(self, log: Log) -> None:
        super().__init__(log)
        self.columns: list[str] = []
        """Cells of the header, with "" above the names of the rows."""
        self.pairs: dict[tuple[int, int], tuple[str, int]] = {}
        """Kind of connection (``NV18``) and line, by the GPUs of row and column."""
        self.rows: set[int] = set()
        self.own: set[str] = set()
        """Text where the row and column of the same GPU cross."""

    def block(self, data: bytes) -> None:
        """Read the lines, whose columns are separated by tabs or, in copies from a terminal, by blanks."""
        for offset, raw in enumerate(data.split(b"\n")):
            text = re.sub(r"\x1b\[[0-9;]*m", "", raw[:8192].decode("utf-8", "replace"))
            cells = [cell.strip() for cell in re.split(r"\t" if "\t" in text else r"\s{2,}", text)]
            at = self.log.lines + offset + 1
            if match := re.fullmatch(r"GPU(\d{1,4})", cells[0]):
                if self.columns:
                    self._row(at, int(match[1]), cells)
            elif not self.columns and "GPU0" in cells:
                self.columns = cells
                if twice := [name for name in cells if cells.count(name) > 1 and name.startswith("GPU")]:
                    find_twice(self.log, at, f"the column of {twice[0]}", text)
            else:
                find_remark(self.log, at, text)

    def _row(self, at: int, row: int, cells: list[str]) -> None:
        """Read how one GPU is connected to each other one."""
        if row in self.rows:
            # The later row would hide the connections in the earlier one.
            find_twice(self.log, at, f"the row of GPU{row}", "  ".join(cells))
        self.rows.add(row)
        # The columns after those of the GPUs are for NICs and CPU affinity.
        for name, cell in zip(self.columns, cells, strict=False):
            column_gpu = re.fullmatch(r"GPU(\d{1,4})", name)
            if column_gpu and int(column_gpu[1]) == row:
                self.own.add(clean(cell, 20))
            elif column_gpu and len(self.pairs) < 70_000:
                self.pairs[row, int(column_gpu[1])] = (clean(cell, 20), at)

    def finish(self) -> ParsedLog:
        """Return the log with the number of NVLinks of each pair, and a verdict on the whole matrix."""
        measurements: list[Measurement] = []
        for (first, second), (kind, at) in self.pairs.items():
            # Each pair appears in the rows of both its GPUs.
            if first < second:
                self.log.tag(f"GPU{first}-GPU{second}", kind)
                labels = {"pair": f"{first}-{second}"}
                links = float(_links(kind))
                measurements.append(
                    self.measure("nvlinks_between", links, "", Direction.HIGHER, at, labels=labels)
                )
        self._judge_matrix()
        return self.log.parsed(self.format, Verdict.PASS if self.rows else Verdict.UNPROVEN, measurements)

    def _judge_matrix(self) -> None:
        """Record an incomplete matrix, and pairs with connections that are not those of a sound machine."""
        column_gpus = {int(name[3:]) for name in self.columns if re.fullmatch(r"GPU\d{1,4}", name)}
        find_missing_indexes(self.log, "the matrix", self.rows)
        if (
            not self.rows
            or self.rows != column_gpus
            or len(self.pairs) != len(column_gpus) * (len(column_gpus) - 1)
        ):
            self.log.find("cut_off", "the matrix is not whole", Verdict.UNPROVEN)
        elif doubt := self._doubt_of_kinds():
            self.log.find("topology_unknown", doubt, Verdict.UNPROVEN)
        elif fault := _topology_fault({pair: _links(kind) for pair, (kind, _at) in self.pairs.items()}):
            self.log.find("topology_uneven", fault, Verdict.DEGRADED)

    def _doubt_of_kinds(self) -> str:
        """Return why the cells do not show how the GPUs are connected, or "" if they do."""
        kinds = {kind for kind, _at in self.pairs.values()}
        if kinds and kinds <= _ACCESS:
            return "this is topo -p2p, which does not show how GPUs are connected: save topo -m"
        unknown = sorted(kind for kind in kinds if not _KINDS.fullmatch(kind)) + sorted(self.own - {"X"})
        return (
            f"pairs have the unknown connection {', '.join(kind or 'nothing' for kind in unknown[:5])}"
            if unknown
            else ""
        )


def _links(kind: str) -> int:
    """Return the number of NVLinks of a pair: 18 for ``NV18``, 0 for any other text."""
    return int(kind[2:]) if re.fullmatch(r"NV\d{1,2}", kind) else 0


def _topology_fault(links: Mapping[tuple[int, int], int]) -> str:
    """Return the fault in the NVLinks of all pairs, or "" if machines are built in this way.

    Through switches, each GPU reaches all others by equally many links. Without switches, GPUs are linked in
    pairs, rings or meshes with equal links for each GPU, as bridged cards and a DGX-1 are. Pairs without
    NVLink differ by their PCIe switch and socket, which is irrelevant.

    Args:
        links: The number of NVLinks of each pair, in both orders.
    """
    for first, second in links:
        if links[first, second] != links[second, first]:
            return f"GPU{first} and GPU{second} are connected in two ways, by their rows"
    gpus = sorted({first for first, _second in links})
    links_of_gpu = {gpu: sorted(links[gpu, other] for other in gpus if other != gpu) for gpu in gpus}
    has_switches = max((sum(counts) for counts in links_of_gpu.values()), default=0) > _MOST_LINKS
    if has_switches:
        return _switched_fault(links_of_gpu, max(links.values()))
    return _direct_fault(links_of_gpu)


def _direct_fault(links_of_gpu: Mapping[int, list[int]]) -> str:
    """Return a text about GPUs whose NVLinks differ from those of most GPUs without switches, or ""."""
    if not links_of_gpu or sorted(links_of_gpu.values()) == _QUAD_OF_DGX1:
        return ""
    usual, _count = Counter(map(tuple, links_of_gpu.values())).most_common(1)[0]
    odd = [gpu for gpu, counts in links_of_gpu.items() if tuple(counts) != usual]
    return f"{_named(odd)} reach their neighbours by other NVLinks than the others do" if odd else ""


def _switched_fault(links_of_gpu: Mapping[int, list[int]], most: int) -> str:
    """Return a text about GPUs that reach others by fewer than the ``most`` NVLinks of a pair, or ""."""
    # No connection of the GPU that lost links is complete. Its neighbours lost only the connection to it.
    odd = [gpu for gpu, counts in links_of_gpu.items() if counts[-1] < most]
    odd = odd or [gpu for gpu, counts in links_of_gpu.items() if counts[0] < most]
    return (
        f"each pair is connected by NV{most} through switches, except those of {_named(odd)}" if odd else ""
    )


def _named(gpus: Sequence[int]) -> str:
    return ", ".join(f"GPU{gpu}" for gpu in gpus[:8])
