"""Find the output of a second tool in a log, for :mod:`rackproof.logs`.

:func:`rackproof.logs.parse` judges a log by one format. The output of another tool in the same log may
contain a fault that is not judged. Such a log is therefore unproven until each output is a file of its own.
The module does no I/O.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import islice

from rackproof.core.records import Verdict
from rackproof.logs._reading import Log
from rackproof.logs.unread_tools import FIO_TEXT, MOST_PLACES, has_result, reason_of, unread_tools
from rackproof.logs.xid import without_kernel_lines

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
    "fio": re.compile(rb'(?m)^(?:\{\s{0,9})?"fio version"\s{0,9}:'),
    "hpl": re.compile(rb"(?m)^HPLinpack \d"),
    "stream": re.compile(rb"(?m)^STREAM version "),
}
"""Patterns of text that only one tool prints, by the tool's format. Logs of these formats and kernel logs are
searched for them. The log of a training is not, because its launcher may run tools. Logs of tf_cnn are an
exception (:data:`_TESTED_BEFORE`)."""


_TRAININGS: Mapping[str, re.Pattern[bytes]] = {
    "mxnet": re.compile(rb"Epoch\[\d+\] (?:Batch \[|Train-|Validation-)"),
    "tf_cnn": re.compile(rb"images/sec:"),
}
"""Patterns of the lines of trainings that may follow in a later block than a tool's output."""
_KERNEL_LOG = "xid"
_ABOUT_NODE = frozenset({"nvidia_smi_dmon", "nvidia_smi_table"})
"""Formats of descriptions of a node, which another format may replace in a later block."""
_NOT_YET_KNOWN = ""
"""Name of the format before a block shows one."""
_SEARCHED_FORMATS = frozenset({_NOT_YET_KNOWN, *MARKS, *_ABOUT_NODE, _KERNEL_LOG})
"""Formats of the logs that are searched for other tools."""
_TESTED_BEFORE = "tf_cnn"
"""Format of a training whose launcher runs no tools. Its log is searched only for tests of a node."""
_TESTS = ("nccl_tests", "nvbandwidth", "gpu_burn", "dcgmi_diag", "ib_write_bw", "fio", "hpl", "stream")
"""Tools of :data:`MARKS` that test a node. The others describe it, as many jobs do at their beginning."""


class OtherTools:
    """The tools whose output a log has beside that of its own format."""

    def __init__(self) -> None:
        self.lines_of: dict[str, list[int]] = {}
        """Numbers of the lines of each tool in :data:`MARKS`, by its format."""
        self.lines_of_unread: dict[str, list[int]] = {}
        """Numbers of the lines of each tool that no parser reads, by its name."""

    def block(self, log: Log, block: bytes, own: str) -> None:
        """Search the next block.

        Args:
            log: The log, before the lines of the block are counted.
            block: Whole lines.
            own: The format by which the block is judged, or "" if it is not known yet. The log of a training
                is not searched, except one of tf_cnn for tests of a node (``_TESTS``).
        """
        if own == _TESTED_BEFORE:
            _add(self.lines_of, log, block, _places_of(block, {name: MARKS[name] for name in _TESTS}))
        if own not in _SEARCHED_FORMATS:
            return
        # A message of the kernel may name a tool. A tool's own output has no prefix of the kernel.
        text = without_kernel_lines(block) if own == _KERNEL_LOG else block
        if text.isspace():
            return
        _add(self.lines_of_unread, log, text, unread_tools(text))
        if own in MARKS or own == _KERNEL_LOG:
            marks = {name: mark for name, mark in {**MARKS, **_TRAININGS}.items() if name != own}
            _add(self.lines_of, log, text, _places_of(text, marks))

    def unread_tool(self) -> tuple[str, str]:
        """Return the first tool that no parser reads, and why it is not judged, or two empty texts."""
        if not self.lines_of_unread:
            return "", ""
        name = next(iter(self.lines_of_unread))
        return name, reason_of(name)

    def add_to(self, log: Log, own: str) -> None:
        """Record each other tool as a finding, and its lines in the log.

        Args:
            log: The log.
            own: The format by which the log is judged.
        """
        if own not in _SEARCHED_FORMATS and own != _TESTED_BEFORE:
            return
        unread = {
            name: lines
            for name, lines in self.lines_of_unread.items()
            # fio prints its JSON and the text of the same run with --output-format=json,normal.
            if own != _TESTED_BEFORE and has_result(name) and not (own == "fio" and name == FIO_TEXT)
        }
        for name, lines in (self.lines_of | unread).items():
            message = f"judged as {own}; the output of {name} is not: give each tool's output its own file"
            log.find("second_tool", message, Verdict.UNPROVEN, line=lines[0])
            log.lines_of_other_tools += lines


def _places_of(text: bytes, marks: Mapping[str, re.Pattern[bytes]]) -> dict[str, list[int]]:
    """Return the positions of each mark, at most ``MOST_PLACES`` of them, by the mark's format."""
    places_of = {
        name: [match.start() for match in islice(mark.finditer(text), MOST_PLACES)]
        for name, mark in marks.items()
    }
    return {name: places for name, places in places_of.items() if places}


def _add(lines_of: dict[str, list[int]], log: Log, text: bytes, places_of: dict[str, list[int]]) -> None:
    """Add the lines of the tools in the next block of a log."""
    for name, places in places_of.items():
        lines_of.setdefault(name, []).extend(_lines(log, text, places))


def _lines(log: Log, text: bytes, places: list[int]) -> Iterator[int]:
    """Yield the line of each place in the next block of a log."""
    line, counted_to = log.lines + 1, 0
    for place in places:
        line += text.count(b"\n", counted_to, place)
        counted_to = place
        yield line
