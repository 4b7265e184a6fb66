"""Test the journal of a node in ``rackproof.jobs.reimage.run_files``.

The journal is a file with the start and end of each step of re-imaging. The next run needs it to
continue, so it must be right after a crash. The tests cut it off at every byte, kill its writer, damage it,
and fill the disk. Whole entries must remain, damage must be an error, and a step must not begin if its end
cannot be written.
"""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from rackproof.jobs.reimage import run_files
from rackproof.jobs.reimage.lifecycle import STEPS, Entry, Step
from rackproof.jobs.reimage.run_files import (
    JournalError,
    append_entry,
    encode_entry,
    journal_path,
    parse_journal,
    read_journal,
)

ENTRIES = [
    Entry(at=datetime(2026, 11, 22, 2, number, tzinfo=UTC), event="begun", step=step, reason="ü\n\0" * 3)
    for number, step in enumerate(STEPS)
]


def test_after_a_cut_at_any_byte_whole_entries_remain_and_writing_continues(tmp_path: Path) -> None:
    some = ENTRIES[:3]
    whole = b"".join(map(encode_entry, some))
    ends = [0]
    for entry in some:
        ends.append(ends[-1] + len(encode_entry(entry)))
    path = tmp_path / "n1.journal"
    for cut in range(len(whole) + 1):
        path.write_bytes(whole[:cut])
        kept = sum(end <= cut for end in ends[1:])
        assert list(read_journal(path)) == ENTRIES[:kept]
        if cut % 7 == 0 or cut in ends:
            append_entry(path, ENTRIES[0])
            assert list(read_journal(path)) == [*ENTRIES[:kept], ENTRIES[0]]


def test_a_writer_that_is_killed_leaves_only_whole_entries(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from datetime import UTC, datetime\n"
        "from rackproof.jobs.reimage.run_files import append_entry\n"
        "from rackproof.jobs.reimage.lifecycle import Entry\n"
        "for n in range(100000):\n"
        "    entry = Entry(at=datetime.now(UTC), event='begun', step='boot', attempt=n + 1)\n"
        "    append_entry(Path(sys.argv[1]), entry)\n"
        "    print(n, flush=True)"
    )
    path = tmp_path / "n1.journal"
    process = subprocess.Popen([sys.executable, "-c", program, str(path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    said = 0
    for text in process.stdout:
        said = int(text)
        if said >= 20:
            break
    process.kill()
    process.communicate()
    found = read_journal(path)
    assert [one.attempt for one in found] == list(range(1, len(found) + 1))
    assert len(found) > said


@pytest.mark.parametrize("damage", [b"x", b"00000000", b"\n"])
def test_damage_before_the_end_is_an_error_with_a_remedy(tmp_path: Path, damage: bytes) -> None:
    first, second = encode_entry(ENTRIES[0]), encode_entry(ENTRIES[1])
    path = tmp_path / "n1.journal"
    path.write_bytes(damage + first[len(damage) :] + second)
    with pytest.raises(
        JournalError, match=r"n1.journal is damaged in line 1: .*drain it if it is not drained"
    ):
        read_journal(path)
    before = path.read_bytes()
    with pytest.raises(JournalError, match="damaged"):
        append_entry(path, ENTRIES[2])
    assert path.read_bytes() == before


def test_an_entry_with_a_changed_bit_is_never_read_as_another_entry() -> None:
    data = bytearray(encode_entry(ENTRIES[0]))
    for at in range(len(data) - 1):
        changed = bytes([*data[:at], data[at] ^ 1, *data[at + 1 :]])
        with contextlib.suppress(JournalError):
            assert parse_journal(changed, "j") in ((), (ENTRIES[0],))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Yield a file system of 64 KiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "none", folder], capture_output=True, check=False
    )
    if done.returncode != 0:
        pytest.skip("mounting a small file system needs root")
    yield folder
    subprocess.run(["umount", folder], check=True)


def fill(folder: Path) -> None:
    """Fill the file system of a folder."""
    with contextlib.suppress(OSError), open(folder / "ballast", "ab", buffering=0) as stream:
        while True:
            stream.write(b"\0" * 512)


def test_a_full_disk_stops_a_step_before_it_begins(small_disk: Path) -> None:
    fill(small_disk)
    with pytest.raises(JournalError, match=r"the disk is full; nothing was started.*Free space"):
        append_entry(small_disk / "n1.journal", ENTRIES[0], reserve=True)
    assert read_journal(small_disk / "n1.journal") == ()


def test_a_step_that_began_can_be_ended_on_a_disk_that_became_full(small_disk: Path) -> None:
    path = small_disk / "n1.journal"
    append_entry(path, ENTRIES[0], reserve=True)
    fill(small_disk)
    failed = Entry(at=datetime.now(UTC), event="failed", step=Step.DRAIN, reason="x" * 6000)
    append_entry(path, failed)
    assert read_journal(path) == (ENTRIES[0], failed)
    # The reserved space is used up, and the next step needs new space before it may begin.
    fill(small_disk)
    with pytest.raises(JournalError, match="nothing was started"):
        append_entry(path, ENTRIES[1], reserve=True)
    assert read_journal(path) == (ENTRIES[0], failed)


def test_a_write_that_stops_half_way_is_undone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "n1.journal"
    append_entry(path, ENTRIES[0])
    real = os.write

    def short(handle: int, data: bytes) -> int:
        if len(data) > 10:
            return real(handle, data[:10])
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(run_files.os, "write", short)
    with pytest.raises(JournalError, match=r"Input/output error; the node stays drained"):
        append_entry(path, ENTRIES[1])
    assert path.read_bytes() == encode_entry(ENTRIES[0])


@pytest.mark.parametrize("name", ["", "../n1", ".hidden", "a/b", "n\0", "x" * 300])
def test_a_node_name_that_cannot_be_a_file_name_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(JournalError, match="rename it in the inventory"):
        journal_path(tmp_path, name)
