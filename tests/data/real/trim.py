"""Make the logs of this folder from the published ones, and check that the parsers find the same in both.

    PYTHONPATH=src python tests/data/real/trim.py PUBLISHED [DESTINATION]

Run it by hand after a new log was added, or after the rules below were changed. README.md in this folder
lists the logs and their origin.

PUBLISHED is a folder with whole logs, laid out as this one. DESTINATION is the folder to write, which is this
folder if none is given. The logs of rounds 0.6 and 5.1 of MLPerf Training are trimmed: a line is kept or left
out, but never changed. Of one study (ddl-benchmarking.md), only headings and tables are kept. All other files
of PUBLISHED, and JSON files, are kept whole. A file of more than 20 kB is then compressed.

The parsers must find the same in a trimmed log as in the whole one: format, verdict, measurements, tags and
findings, and each of them on a line with the same text. Only curves and the numbers of bytes and lines may
differ. The program prints the size of each file before and after.
"""

from __future__ import annotations

import io
import json
import lzma
import re
import sys
from pathlib import Path
from typing import Any

from rackproof import logs

TRIMMED = ("mlperf-0.6", "mlperf-5.1")
"""Folders below PUBLISHED whose logs are trimmed."""
LARGEST_PLAIN = 20_000
"""Largest size in bytes of a file that is not compressed."""
ENDS = 10
"""Number of lines at the start and at the end of a log that :data:`KEPT` need not match."""
KEPT = re.compile(
    # Events and notes, the run script's times and results,
    rb":::|RESULT,|(?:RUNANDTIME|EXPERIMENT|PROLOG|NCCL_TEST)_ST|^\+? ?(?:export )?SEED=|Beginning trial"
    # what throughput of round 0.6 is computed from,
    rb"|avg\. samples / sec: |MLPERF METRIC|Speed: [^ ]+ samples/sec|Performance: Epoch"
    rb"|generated \d+ batches in |epoch time |Iteration time: "
    # and what failures look like.
    rb"|ut of memory|Traceback \(most recent|: error: |Watchdog caught collective|NVRM: Xid"
    rb"|No space left on device|(?i:loss[^,]{0,40}\bnan\b)"
)
"""Pattern of the other lines of a log that are kept."""
STATISTICS = re.compile(rb'"key": "tracked_stats", "value": \{(.*?)\}')
"""Pattern of a line with statistics. Its group contains their names and values."""
SPEED = re.compile(rb"train_step_time|throughput")
"""Pattern of the names of statistics that are all kept, because throughput is computed from them."""
FEW = 5
"""Number of lines with one kind of statistics that are kept at the start and at the end of a log."""


def thinned(lines: list[bytes]) -> list[bytes]:
    """Return the lines of a log without the middle of each kind of statistics, such as losses.

    Lines are of one kind if they have the same names in the same order. The first and the last
    :data:`FEW` lines of each kind remain, and all lines with a throughput or the time of a step.
    """
    kinds: dict[tuple[bytes, ...], list[int]] = {}
    for at, line in enumerate(lines):
        found = STATISTICS.search(line)
        if found and not SPEED.search(found[1]):
            kinds.setdefault(tuple(re.findall(rb'"(\w+)":', found[1])), []).append(at)
    dropped = {at for places in kinds.values() for at in places[FEW:-FEW]}
    return [line for at, line in enumerate(lines) if at not in dropped]


def trim(data: bytes) -> bytes:
    """Return the log of a training without the lines that no parser needs."""
    lines = re.findall(rb"[^\n]*\n|[^\n]+", data)
    some = [
        line for at, line in enumerate(lines) if at < ENDS or at >= len(lines) - ENDS or KEPT.search(line)
    ]
    return b"".join(thinned(some))


def tables(data: bytes) -> bytes:
    """Return the headings, tables and empty lines of a Markdown document.

    The notes at the end, below a line of equals signs, are left out.
    """
    lines = data.partition(b"\n=====")[0].splitlines(keepends=True)
    return b"".join(line for line in lines if line.startswith((b"#", b"|", b"\n")))


def findings_at_text(data: bytes) -> dict[str, Any]:
    """Return the result of parsing a log, in which each line number is replaced by the text of the line."""
    lines = data.split(b"\n")

    def placed(one: Any) -> Any:
        """Return a part of the result with texts in place of line numbers."""
        if isinstance(one, dict):
            return {key: text(value) if key == "line" else placed(value) for key, value in one.items()}
        return [placed(item) for item in one] if isinstance(one, list) else one

    def text(line: int | None) -> str | None:
        """Return the text of a line, counted from 1."""
        return None if line is None else lines[line - 1].decode("utf-8", "replace")

    parsed = json.loads(logs.parse(io.BytesIO(data)).model_dump_json())
    # Trimming changes the points of curves, and the numbers of bytes and lines.
    return placed(
        {key: value for key, value in parsed.items() if key not in ("series", "size_bytes", "lines")}
    )


def main() -> None:
    """Write the files. If the parsers find a difference, print it and end with status 1."""
    published = Path(sys.argv[1])
    destination = Path(sys.argv[2]) if len(sys.argv) > 2 else Path(__file__).resolve().parent
    total = 0
    for source in sorted(path for path in published.rglob("*") if path.is_file()):
        name = source.relative_to(published)
        data = source.read_bytes()
        if name.parts[0] in TRIMMED and source.suffix != ".json":
            whole, data = data, trim(data)
            before, after = findings_at_text(whole), findings_at_text(data)
            for key in before:
                if before[key] != after[key]:
                    print(f"{name}: {key} differ:\n  {before[key]}\n  {after[key]}")
                    sys.exit(1)
        elif source.name == "ddl-benchmarking.md":
            data = tables(data)
        target = destination / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if len(data) > LARGEST_PLAIN:
            target = target.with_name(target.name + ".xz")
            data = lzma.compress(data, preset=9 | lzma.PRESET_EXTREME)
        target.write_bytes(data)
        total += len(data)
        print(f"{source.stat().st_size:8} {len(data):7} {target.relative_to(destination)}")
    print(f"{total} bytes")


if __name__ == "__main__":
    main()
