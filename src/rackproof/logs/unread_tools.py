"""Name the tools whose output :func:`rackproof.logs.parse` does not read, and what to use instead.

A log of no known format is unproven. Its finding names the tool (``# OSU MPI Latency Test`` is a line of the
OSU Micro-Benchmarks), so that an operator does not search the log for damage. The caller is
:mod:`rackproof.logs.other_tools`. The module does no I/O.
"""

from __future__ import annotations

import re
from itertools import islice

MOST_PLACES = 1000
"""Largest number of lines of one tool that are counted in a block."""
_SPEED_ONLY = "measure with a definition that reads its lines (result.format: lines)"
_PORTS = "the nights of validate.yml check the ports of a node"
_GPUS = "save nvidia-smi -q instead"

_OF_SOURCE = r"(?:ERROR|WARNING): .{1,300}\("
"""Pattern of the beginning of an error whose end names a file of the tool's source."""
FIO_TEXT = "fio"
"""Tool whose text is not read, although :mod:`rackproof.logs.fio` reads its JSON."""
_LINK_COUNTERS = "nvidia-smi nvlink --errorcounters"
_GPU_LIST = "nvidia-smi -L"
_GPU_PROCESSES = "nvidia-smi pmon"
_GPU_MONITOR = "dcgmi dmon"
_WITHOUT_RESULT = frozenset({_LINK_COUNTERS, _GPU_LIST, _GPU_PROCESSES, _GPU_MONITOR})
"""Tools whose output has no result that could be bad. Jobs print them about their node."""

_TOOLS: tuple[tuple[str, str, str], ...] = (
    (
        "Intel MPI Benchmarks (IMB)",
        r"# {1,20}Intel\(R\) MPI Benchmarks| {1,20}#bytes {1,20}#repetitions "
        r"|# {1,20}Benchmarking {1,20}[\w-]{1,60}[ \t\r]{0,20}\n(?:# {1,20}#processes = |[ #]{1,20}#bytes )",
        _SPEED_ONLY,
    ),
    ("OSU Micro-Benchmarks", r"# OSU [A-Z]", _SPEED_ONLY),
    (
        # The JSON is read (:mod:`rackproof.logs.fio`).
        FIO_TEXT,
        r"fio-\d|\S.{0,200}: \(groupid=\d+, jobs=\d+\): err="
        r"|\S.{0,200}: \(g=\d+\): rw=|fio: (?:io_u error on file |verify type mismatch|pid=\d+, err=)",
        "save the JSON of --output-format=json instead",
    ),
    (
        "mdtest",
        rf"-- started at |mdtest-\d|SUMMARY rate:|mdtest ERROR: |{_OF_SOURCE}mdtest\.c:\d",
        _SPEED_ONLY,
    ),
    (
        "IOR",
        r"IOR-\d|Max (?:Write|Read): +[\d.]+ MiB/sec|ior (?:ERROR|WARNING): |ERROR: data check errors"
        rf"|WARNING: [Ii]ncorrect data on |{_OF_SOURCE}(?:aiori[\w-]{{0,40}}|ior)\.c:\d",
        _SPEED_ONLY,
    ),
    ("HPC Challenge (HPCC)", r".{0,60}HPC Challenge Benchmark|Begin of MPIRandomAccess section", _SPEED_ONLY),
    ("HPCG", r"HPCG(?:-Benchmark| result)|HPCG-NVIDIA", _SPEED_ONLY),
    ("HPL-MxP (HPL-AI)", r"(?:[= -]{0,80}|NVIDIA )HPL-(?:MxP|AI)\b", _SPEED_ONLY),
    ("GPCNeT", r"(?:Network Tests|NetworkLoad Tests) v\d", _SPEED_ONLY),
    (
        "iperf3",
        r'\{?\s{0,9}"start"\s*:\s*\{\s*"connected"|\[ ID\] Interval  |iperf3: (?:error|interrupt) - '
        r"|Connecting to host \S{1,255}, port \d",
        _SPEED_ONLY,
    ),
    # The version in C, which parse reads, writes "STREAM version".
    ("STREAM in Fortran", r" {0,9}STREAM Version \$Revision: ", "run STREAM in C instead"),
    (
        "BabelStream",
        r"(?:BabelStream|GPU-STREAM)[ \t\r]{0,9}\nVersion: |Function {1,9}Mi?Bytes/sec {1,9}Min \(sec\)"
        r"|(?:phase,)?function,num_times,n_elements,sizeof,",
        _SPEED_ONLY,
    ),
    (
        "the CUDA samples",
        r"\[(?:CUDA Bandwidth Test|P2P \(Peer-to-Peer\) GPU Bandwidth)",
        "use nvbandwidth instead",
    ),
    ("ibstat", r"CA '[\w.-]{1,60}'[ \t\r]*$", _PORTS),
    ("ibv_devinfo", r"hca_id:\s", _PORTS),
    ("iblinkinfo", r"CA: .{1,100}:\n +0x[0-9a-f]{8,16} ", _PORTS),
    (
        "mlxlink",
        r"[ \t]{0,20}(?:Operational|Troubleshooting) Info[ \t\r]{0,20}\n-{5}",
        _PORTS,
    ),
    (
        "ibdiagnet",
        # Training logs and other tools have lines with -I- or -W- as well.
        r'Loading IBDIAGNET from: |(?:# )?Running version ?: {1,20}"IBDIAGNET '
        r'|.{0,60}"IBDIAGNET_PLUGINS_PATH"'
        r"|-I- Using port \d{1,3} as the local port"
        r"|-I- Discovering \.\.\. {1,20}\d{1,9} nodes \(|-W- Topology file is not specified\.",
        _PORTS,
    ),
    (
        _LINK_COUNTERS,
        r"[ \t]{1,20}Link \d+: (?:Replay|Recovery|CRC|Data|ECC|FLIT)[ \w]{0,20} Errors?: ",
        "counters since the driver's start prove nothing alone, and the nights of validate.yml compare them",
    ),
    (_GPU_LIST, r"GPU \d+: .{1,100} \(UUID: GPU-", _GPUS),
    (_GPU_PROCESSES, r"# ?gpu +pid +type ", _GPUS),
    (_GPU_MONITOR, r"# ?Entity  ", "save dcgmi diag instead"),
    (
        "dcgmi mndiag",
        r'(?:Successfully ran m|M)ulti-node diagnostic[ .]|[ \t{]{0,40}"DCGM Multi-Node Diagnostic"',
        "look for hosts that did not pass in it, and save dcgmi diag of each host",
    ),
    (
        "rocm-smi or amd-smi",
        r"=.{0,100} ROCm System Management Interface|\| AMD-SMI ",
        "only NVIDIA GPUs are judged",
    ),
)
"""Name of each tool, pattern of the beginning of lines that only this tool prints, and remedy."""
_LABEL = (
    r"(?:[^<>\n]{0,200}<std(?:out|err|diag)>: ?|[ \t]{0,20}\d{1,6}: "
    r"|\[[\w.,:/@-]{1,120}\]:? |[A-Za-z][\w.-]{0,120}: )?"
)
"""Pattern of the label that a launcher may write before each line."""


def _compiled(text: str) -> re.Pattern[bytes]:
    """Return a pattern of lines that begin with a pattern, with or without a launcher's label."""
    return re.compile(f"^{_LABEL}(?:{text})".encode(), re.MULTILINE)


_PATTERNS = tuple((name, _compiled(text), remedy) for name, text, remedy in _TOOLS)
_ANY = _compiled("|".join(text for _, text, _ in _TOOLS))
"""Pattern of all tools. One search finds that a block has none of them."""


def unread_tools(block: bytes) -> dict[str, list[int]]:
    """Return the tools that printed some lines, and the positions of those lines.

    Args:
        block: Whole lines of a log.
    """
    if not _ANY.search(block):
        return {}
    positions = {
        name: [match.start() for match in islice(pattern.finditer(block), MOST_PLACES)]
        for name, pattern, _ in _PATTERNS
    }
    return {name: places for name, places in positions.items() if places}


def has_result(name: str) -> bool:
    """Return whether the output of an unread tool has a result, so that it may show a failure."""
    return name not in _WITHOUT_RESULT


def reason_of(name: str) -> str:
    """Return why the output of an unread tool is not judged, and what to give instead."""
    remedy = next(remedy for tool, _, remedy in _PATTERNS if tool == name)
    return f"it is the output of {name}, which parse does not read: {remedy}"
