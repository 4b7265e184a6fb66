"""Make the logs of this folder from the published ones, and check that the parsers find the same in both.

    PYTHONPATH=src python tests/data/real/trim.py PUBLISHED [DESTINATION]

PUBLISHED is a folder laid out as this one. DESTINATION is this folder unless another is named. The logs of
rounds 0.6 and 5.1 of MLPerf Training are trimmed: a line is kept or left out, but never changed. Of one study
(ddl-benchmarking.md), only headings and tables are kept. All other files of PUBLISHED are kept whole. A file
of more than 20 kB is then compressed. The parsers must find the same in a trimmed log as in the whole one:
verdict, measurements, tags and findings, and each at the same text.
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
"""Folders whose logs are trimmed."""
LARGEST_PLAIN = 20_000
"""Largest size in bytes of a file that is not compressed."""
ENDS = 10
"""Number of lines that are kept at the start and at the end of a log, whatever they contain."""
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
STATISTICS = re.compile(rb'"key": "tracked_stats", "value": \{(.*?)\}')
SPEED = re.compile(rb"train_step_time|throughput")
FEW = 5
"""Number of statistics of a kind that are kept at the start and at the end."""


def thinned(lines: list[bytes]) -> list[bytes]:
    """Return the lines without the middle of each kind of statistics, such as losses.

    A kind is the set of its names. The first and the last few of each kind remain, and all
    statistics with a throughput or the time of a step.
    """
    kinds: dict[tuple[bytes, ...], list[int]] = {}
    for at, line in enumerate(lines):
        found = STATISTICS.search(line)
        if found and not SPEED.search(found[1]):
            kinds.setdefault(tuple(re.findall(rb'"(\w+)":', found[1])), []).append(at)
    dropped = {at for places in kinds.values() for at in places[FEW:-FEW]}
    return [line for at, line in enumerate(lines) if at not in dropped]


def trim(data: bytes) -> bytes:
    """Return the lines of a training's log that carry information."""
    lines = re.findall(rb"[^\n]*\n|[^\n]+", data)
    some = [
        line for at, line in enumerate(lines) if at < ENDS or at >= len(lines) - ENDS or KEPT.search(line)
    ]
    return b"".join(thinned(some))


def tables(data: bytes) -> bytes:
    """Return headings and tables of a document, without the notes that it keeps for reference at its end."""
    lines = data.partition(b"\n=====")[0].splitlines(keepends=True)
    return b"".join(line for line in lines if line.startswith((b"#", b"|", b"\n")))


def findings_at_text(data: bytes) -> dict[str, Any]:
    """Return what the parsers find in a log. Each line number is replaced with the text of its line."""
    lines = data.split(b"\n")

    def placed(one: Any) -> Any:
        if isinstance(one, dict):
            return {key: text(value) if key == "line" else placed(value) for key, value in one.items()}
        return [placed(item) for item in one] if isinstance(one, list) else one

    def text(line: int | None) -> str | None:
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
