"""Fake mlperf-common's check of the mounts, with its command line, its table and its messages.

run.sub starts it in the container. The check compares the number of files and bytes of each mount with a
table in the image, and prints the result. A difference is only a warning: the status is 0 unless a path that
was passed does not exist. A mount of the table that no argument names is a warning, even on a complete
machine. Names that begin with a dot do not count.
"""

from __future__ import annotations

import argparse
import csv
import sys
from pathlib import Path

COLUMNS = ("key", "type", "relative_path", "num_files", "num_bytes")
Row = tuple[str, str, str, int, int]


def scan(key: str, root: Path, path: Path) -> list[Row]:
    """Return a row for a path and for each file and folder below it. A folder comes after its contents."""
    name = str(path.relative_to(root))
    if path.name.startswith("."):
        return []
    if path.is_file():
        return [(key, "file", name, 1, path.stat().st_size)]
    rows = [row for below in sorted(path.iterdir()) for row in scan(key, root, below)]
    files = [row for row in rows if row[1] == "file"]
    return [*rows, (key, "dir", name, len(files), sum(row[4] for row in files))]


def verify(table: Path, roots: dict[str, Path]) -> None:
    """Compare the mounts with a table, and print for each whether it agrees."""
    there = {row[:3]: row[3:] for key, root in roots.items() for row in scan(key, root, root)}
    with table.open(newline="") as stream:
        expected = [row for row in csv.DictReader(stream) if row["relative_path"] == "."]
    for row in expected:
        key, kind = row["key"], row["type"]
        if key not in roots:
            print(f"mountcheck WARNING missing key:path mapping in --mounts_to_verify for key={key!r}")
            continue
        if (key, kind, ".") not in there:
            print(f"mountcheck WARNING {kind} {roots[key]} does not exist!")
            continue
        files, size = there[key, kind, "."]
        for have, want, unit in (
            (size, int(row["num_bytes"]), "bytes"),
            (files, int(row["num_files"]), "files"),
        ):
            if have == want:
                print(f"mountcheck OK {roots[key]} {have} {unit}")
            else:
                print(f"mountcheck WARNING {roots[key]} num {unit} mismatch! expected={want} actual={have}")


def main() -> int:
    """Write the table (``--initialize``), or compare the mounts with it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--expected_mounts_csv", type=Path, default=Path("expected-mounts.csv"))
    parser.add_argument("--mounts_to_verify", nargs="*", default=[])
    parser.add_argument("--initialize", action="store_true")
    arguments = parser.parse_args()
    roots = {key: Path(path) for key, path in (one.split(":") for one in arguments.mounts_to_verify)}
    for key, root in roots.items():
        if not root.exists():
            raise RuntimeError(f"{root!r} for key={key!r} does not exists!")
    if arguments.initialize:
        rows = [row for key, root in roots.items() for row in scan(key, root, root)]
        arguments.expected_mounts_csv.write_text(table_of(rows))
    else:
        verify(arguments.expected_mounts_csv, roots)
    return 0


def table_of(rows: list[Row]) -> str:
    """Return rows as the text of a table."""
    return "\n".join([",".join(COLUMNS), *(",".join(map(str, row)) for row in rows), ""])


if __name__ == "__main__":
    sys.exit(main())
