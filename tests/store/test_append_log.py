"""Test the logs of acts: the audit log of drains and resumes, and the log of accepted references.

Each act is a line of JSON (store/append_log.py). A half-written line damages no other, a full disk is an
error, and a folder, pipe or link in the place of the log does not count as a log without acts.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from rackproof.store import acceptance_log, audit_log
from rackproof.store.run_folder import ResultsError


def drain(results: Path) -> None:
    audit_log.append_acts(results, [("n1", "drain", "why")], "validate.yml")


def accept(results: Path) -> None:
    acceptance_log.note_acceptance(results, "accept", "run", 3)


LOGS: list[tuple[Callable[[Path], None], str, Callable[[Path], tuple[list[Any], int]]]] = [
    (drain, audit_log.LOG_NAME, audit_log.read_acts),
    (accept, acceptance_log.LOG_NAME, acceptance_log.read_acceptances),
]
"""Each log: a function that adds an act, the name of the file, and its reader."""


@pytest.mark.parametrize(("act", "name", "read"), LOGS)
def test_half_a_line_damages_no_other_line(
    tmp_path: Path, act: Callable[[Path], None], name: str, read: Callable[[Path], tuple[list[Any], int]]
) -> None:
    act(tmp_path)
    log = tmp_path / name
    log.write_bytes(log.read_bytes()[:-20])
    act(tmp_path)
    acts, damaged = read(tmp_path)
    assert (len(acts), damaged) == (1, 1)
    assert datetime.now(UTC) >= acts[0].moment


@pytest.mark.parametrize(("act", "name", "read"), LOGS)
@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo, lambda path: path.symlink_to("/dev/zero")])
def test_a_log_that_is_not_a_file_is_an_error_and_not_an_empty_log(
    tmp_path: Path,
    act: Callable[[Path], None],
    name: str,
    read: Callable[[Path], tuple[list[Any], int]],
    make: Callable[[Path], None],
) -> None:
    assert read(tmp_path) == ([], 0)
    make(tmp_path / name)
    with pytest.raises(ResultsError, match="is not a file"):
        read(tmp_path)


@pytest.mark.parametrize(("act", "name", "read"), LOGS)
@pytest.mark.parametrize("size", [(256 << 20) + 1, 3 << 30])
def test_a_log_that_is_too_large_is_not_read(
    tmp_path: Path,
    act: Callable[[Path], None],
    name: str,
    read: Callable[[Path], tuple[list[Any], int]],
    size: int,
) -> None:
    act(tmp_path)
    os.truncate(tmp_path / name, size)
    with pytest.raises(ResultsError, match=f"it has {size} bytes, more than .*: move its oldest lines away"):
        read(tmp_path)


@pytest.mark.parametrize(("act", "name", "read"), LOGS)
@pytest.mark.parametrize(
    ("text", "damaged"),
    [("\n" * 10_000, 10_000), ("x" * 2_000_000, 1), ("\n" * 10_001, None), ("{}\n" * 3_000_000, None)],
)
def test_reading_ends_at_too_many_damaged_lines(
    tmp_path: Path,
    act: Callable[[Path], None],
    name: str,
    read: Callable[[Path], tuple[list[Any], int]],
    text: str,
    damaged: int | None,
) -> None:
    (tmp_path / name).write_text(text)
    act(tmp_path)
    if damaged is None:
        with pytest.raises(ResultsError, match="more than 10000 damaged lines"):
            read(tmp_path)
    else:
        assert (len(read(tmp_path)[0]), read(tmp_path)[1]) == (1, damaged)


def test_a_full_disk_is_an_error(tmp_path: Path) -> None:
    # As on a full disk, only a part of the line is written.
    program = (
        "import resource; from pathlib import Path; from rackproof.store.append_log import append_text\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (3, 3))\n"
        f"append_text(Path({str(tmp_path / 'log')!r}), 'line')"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert "OSError: [Errno 28] No space left" in done.stderr
