"""Name tools whose output :func:`rackproof.logs.parse` does not read, with what to give instead. No I/O.

A log of no known format is unproven. Its finding then names the tool, so that an operator does not search the
log for damage.
"""

from __future__ import annotations

import re

_SPEED_ONLY = "measure with a definition that reads its lines (result.format: lines)"
_PORTS = "the nights of validate.yml check the ports of a node"
_GPUS = "save nvidia-smi -q instead"

_TOOLS: tuple[tuple[str, str, str], ...] = (
    (
        "Intel MPI Benchmarks (IMB)",
        r"^# {1,20}Intel\(R\) MPI Benchmarks|^ {1,20}#bytes {1,20}#repetitions "
        r"|^# {1,20}Benchmarking {1,20}[\w-]{1,60}[ \t\r]{0,20}\n(?:# {1,20}#processes = |[ #]{1,20}#bytes )",
        _SPEED_ONLY,
    ),
    ("OSU Micro-Benchmarks", r"^# OSU [A-Z]", _SPEED_ONLY),
    (
        "fio",
        r'^\{?\s{0,9}"fio version"\s*:|^fio-\d|^\S.{0,200}: \(groupid=\d+, jobs=\d+\): err=',
        _SPEED_ONLY,
    ),
    ("mdtest", r"^(?:-- started|mdtest-\d|SUMMARY rate:)", _SPEED_ONLY),
    ("IOR", r"^(?:IOR-\d|Max (?:Write|Read): +[\d.]+ MiB/sec)", _SPEED_ONLY),
    ("HPC Challenge (HPCC)", r"HPC Challenge Benchmark|^Begin of MPIRandomAccess section", _SPEED_ONLY),
    ("HPCG", r"^HPCG(?:-Benchmark| result)|^HPCG-NVIDIA", _SPEED_ONLY),
    ("HPL-MxP (HPL-AI)", r"\bHPL-(?:MxP|AI)\b", _SPEED_ONLY),
    ("GPCNeT", r"^(?:Network Tests|NetworkLoad Tests) v\d", _SPEED_ONLY),
    ("iperf3", r'^\{?\s{0,9}"start"\s*:\s*\{\s*"connected"|^\[ ID\] Interval  ', _SPEED_ONLY),
    (
        "the CUDA samples",
        r"^\[(?:CUDA Bandwidth Test|P2P \(Peer-to-Peer\) GPU Bandwidth)",
        "use nvbandwidth instead",
    ),
    ("ibstat", r"^CA '[\w.-]{1,60}'[ \t\r]*$", _PORTS),
    ("ibv_devinfo", r"^hca_id:\s", _PORTS),
    ("iblinkinfo", r"^CA: .{1,100}:\n +0x[0-9a-f]{8,16} ", _PORTS),
    (
        "mlxlink",
        r"^[ \t]{0,20}(?:Operational|Troubleshooting) Info[ \t\r]{0,20}\n-{5}",
        _PORTS,
    ),
    (
        "ibdiagnet",
        # Training logs and other tools have lines with -I- or -W- as well.
        r'^Loading IBDIAGNET from: |^(?:# )?Running version ?: {1,20}"IBDIAGNET |"IBDIAGNET_PLUGINS_PATH"'
        r"|^-I- Using port \d{1,3} as the local port"
        r"|^-I- Discovering \.\.\. {1,20}\d{1,9} nodes \(|^-W- Topology file is not specified\.",
        _PORTS,
    ),
    (
        "nvidia-smi nvlink --errorcounters",
        r"^[ \t]{1,20}Link \d+: (?:Replay|Recovery|CRC|Data|ECC|FLIT)[ \w]{0,20} Errors?: ",
        "counters since the driver's start prove nothing alone, and the nights of validate.yml compare them",
    ),
    ("nvidia-smi -L", r"^GPU \d+: .{1,100} \(UUID: GPU-", _GPUS),
    ("nvidia-smi pmon", r"^# ?gpu +pid +type ", _GPUS),
    ("dcgmi dmon", r"^# ?Entity  ", "save dcgmi diag instead"),
    (
        "dcgmi mndiag",
        r'^(?:Successfully ran m|M)ulti-node diagnostic[ .]|"DCGM Multi-Node Diagnostic"',
        "look for hosts that did not pass in it, and save dcgmi diag of each host",
    ),
    ("rocm-smi or amd-smi", r"ROCm System Management Interface|^\| AMD-SMI ", "only NVIDIA GPUs are judged"),
)
"""Name, pattern of lines that only the tool prints, and the remedy."""
_PATTERNS = tuple((name, re.compile(text.encode(), re.MULTILINE), remedy) for name, text, remedy in _TOOLS)


def unread_tool(block: bytes) -> str:
    """Return the name of the tool that printed some lines and what to give instead, or "" if unknown.

    Args:
        block: Whole lines of a log in which no format was recognised.
    """
    for name, pattern, remedy in _PATTERNS:
        if pattern.search(block):
            return f"it is the output of {name}, which parse does not read: {remedy}"
    return ""
