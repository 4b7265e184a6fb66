"""Find the output of a second tool in a log. :mod:`rackproof.logs` calls :func:`other_tools`. No I/O.

:func:`rackproof.logs.parse` judges a log by one format. The output of another tool in the same log may
contain a fault that is not judged. Such a log is therefore unproven until each output is a file of its own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

MARKS: Mapping[str, re.Pattern[bytes]] = {
    "nccl_tests": re.compile(rb"(?m)^# (?:Collective test starting: |nThread \d+ nGpus \d+ minBytes )"),
    # The blanks are bounded. Otherwise, the pattern would read all following lines from each blank line.
    "nvbandwidth": re.compile(
        rb'(?m)^(?:nvbandwidth Version: |[ \t]{0,200}+(?:\{\s{0,200}+)?"nvbandwidth"\s{0,200}+:\s{0,200}+\{)'
    ),
    "gpu_burn": re.compile(rb"(?m)^(?:Tested \d+ GPUs:|\d[\d.]*%\s+proc'd: )"),
    "dcgmi_diag": re.compile(rb"(?m)^Successfully ran diagnostic for group\."),
    "ib_write_bw": re.compile(rb"(?m)^ *#bytes +#iterations +(?:BW |t_min)"),
    "nvidia_smi_xml": re.compile(rb"<nvidia_smi_log>"),
    "nvidia_smi_text": re.compile(rb"(?m)^=+NVSMI LOG=+"),
    "nvidia_smi_csv": re.compile(
        rb"(?m)^(?:timestamp|index|name|uuid|gpu_uuid|count)(?:, [a-z0-9_.]+(?: \[[^\]\n]{1,20}\])?)*, "
        rb"(?:temperature|power|clocks|clocks_\w+|utilization|memory|ecc|pcie|remapped_rows|retired_pages|fabric)\."
    ),
    "nvlink_status": re.compile(rb"(?m)^[ \t]{1,200}+Link \d+: (?:[\d.]+ GB/s|<inactive>)"),
    "nvidia_smi_topo": re.compile(rb"(?m)^GPU0\t *X *\t"),
    "hpl": re.compile(rb"(?m)^HPLinpack \d"),
    "stream": re.compile(rb"(?m)^STREAM version "),
}
"""Patterns of text that only one tool prints, by the tool's format. A training's log is not searched for
them, because its launcher may run tools."""


def other_tools(block: bytes, own: str) -> dict[str, int]:
    """Return the formats of other tools that a part of a log shows, and the position at which each begins.

    Args:
        block: Whole lines.
        own: The format by which the log is judged. If it is not the format of a tool in :data:`MARKS`, the
            result is empty.
    """
    if own not in MARKS:
        return {}
    marks = ((name, mark.search(block)) for name, mark in MARKS.items() if name != own)
    return {name: match.start() for name, match in marks if match}
