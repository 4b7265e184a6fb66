"""Test store/run_folder.py: run ids, the record of a run (`run.json`), and the list of runs.

`run.json` is the only authoritative record of a run. After an error, the old record must be unchanged. After
a kill, the old or the new record must be whole. An error names the file, the damaged field and the remedy.
"""

from __future__ import annotations

import errno
import json
import math
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest

from rackproof.core.records import SCHEMA_VERSION, Measurement, Node, Run, Verdict
from rackproof.store import run_folder
from rackproof.store.run_folder import (
    ResultsError,
    dump_run,
    iter_runs,
    new_run_id,
    read_run,
    run_folders,
    stamp_of,
    write_file,
    write_run,
)

RUN = Run(
    run_id="20261101T023000Z-probe-abcdef",
    benchmark="probe",
    started=datetime(2026, 11, 1, 2, 30, tzinfo=UTC),
    parameters={"batch_size": 128, "lr": 0.1, "until": "target", "compile": True, "none": None},
    nodes=(Node(name="node01"),),
    measurements=(
        Measurement(name="loss", value=math.nan, unit=""),
        Measurement(name="speed", value=math.inf, unit="TB/s", labels={"text": "\0\x1b[31m<ü漢"}),
    ),
    verdict=Verdict.FAIL,
)


class TestRunIds:
    """Tests of run ids, which sort by time and are safe file names."""

    @pytest.mark.parametrize(
        ("name", "slug"),
        [
            ("mnist-lenet", "mnist-lenet"),
            ("llama2_70b_lora", "llama2_70b_lora"),
            ("MNIST LeNet", "mnist-lenet"),
            ("../../etc/passwd", "etc-passwd"),
            ("\x1b[31m", "31m"),
            ("漢字", "run"),
            ("", "run"),
            (".", "run"),
            ("a" * 500, "a" * 60),
        ],
    )
    def test_an_id_is_a_safe_file_name_whatever_the_benchmark(self, name: str, slug: str) -> None:
        made = new_run_id(name, now=datetime(2026, 11, 21, 10, 35, 21, tzinfo=UTC))
        assert re.fullmatch(rf"20261121T103521Z-{re.escape(slug)}-[0-9a-f]{{6}}", made)
        assert Run(run_id=made, benchmark="b").run_id == made

    def test_ids_sort_by_time_and_differ(self) -> None:
        start = datetime(2026, 12, 31, 23, 59, 58, tzinfo=UTC)
        made = [new_run_id("b", now=start + timedelta(seconds=second)) for second in range(5)]
        assert sorted(made) == made
        assert len({new_run_id("b", now=start) for _ in range(100)}) == 100

    def test_the_stamp_is_in_utc_whatever_the_time_zone(self) -> None:
        abroad = datetime(2026, 11, 21, 12, 0, tzinfo=timezone(timedelta(hours=2)))
        made = new_run_id("b", now=abroad)
        assert stamp_of(made) == abroad
        assert abs(datetime.now(UTC) - (stamp_of(new_run_id("b")) or abroad)) < timedelta(minutes=20)

    @pytest.mark.parametrize("run_id", ["", "x", "run-1", "20261399T000000Z-b-1", "2026"])
    def test_other_ids_have_no_stamp(self, run_id: str) -> None:
        assert stamp_of(run_id) is None


def test_a_written_run_is_read_back_the_same_by_folder_and_by_file(tmp_path: Path) -> None:
    folder = tmp_path / "results" / RUN.run_id
    path = write_run(RUN, folder)
    assert path == folder / "run.json"
    # NaN is not equal to itself, so the texts are compared.
    for place in (folder, path):
        assert dump_run(read_run(place)) == dump_run(RUN)
    assert [one.name for one in folder.iterdir()] == ["run.json"]
    assert json.loads(path.read_text())["measurements"][0]["value"] == "NaN"


def test_writing_again_replaces(tmp_path: Path) -> None:
    write_run(RUN, tmp_path)
    write_run(RUN.model_copy(update={"notes": "second"}), tmp_path)
    assert read_run(tmp_path).notes == "second"
    assert len(list(tmp_path.iterdir())) == 1


def test_a_run_with_bytes_that_are_not_utf_8_is_written(tmp_path: Path) -> None:
    write_run(RUN.model_copy(update={"command": ("run", "\udcff.txt")}), tmp_path)
    assert read_run(tmp_path).command == ("run", "\N{REPLACEMENT CHARACTER}.txt")


WHOLE = RUN.model_dump(mode="json")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "damaged: it is not whole JSON"),
        (json.dumps(WHOLE).encode()[:-40], "damaged: it is not whole JSON"),
        (b"\xff\xfe\x00", "damaged: it is not whole JSON"),
        (b"[]", "holds no JSON object"),
        (json.dumps({**WHOLE, "schema_version": SCHEMA_VERSION + 1, "new": 1}).encode(), "newer Rackproof"),
        (json.dumps({**WHOLE, "verdict": "splendid"}).encode(), "damaged: verdict: "),
        (json.dumps({**WHOLE, "run_id": "../x"}).encode(), "damaged: run_id: "),
        (json.dumps({**WHOLE, "surprise": 1}).encode(), "damaged: surprise: "),
        (json.dumps({**WHOLE, "sur\x1b[31mprise": 1}).encode(), r"damaged: sur\?\[31mprise: "),
        (json.dumps({**WHOLE, "measurements": [{"name": "x"}]}).encode(), r"measurements\.0\.value: "),
        (json.dumps({"a": 1, "b": 2, "c": 3}).encode(), r"\(and 2 more\)"),
        (b'{"run_id": "x", "benchmark": "b", "seeds": ' + b"[" * 100_000, "damaged: it is not whole JSON"),
    ],
)
def test_a_damaged_record_is_an_error_that_names_file_and_field(
    tmp_path: Path, content: bytes, message: str
) -> None:
    (tmp_path / "run.json").write_bytes(content)
    with pytest.raises(ResultsError, match=message) as caught:
        read_run(tmp_path)
    assert str(tmp_path / "run.json") in str(caught.value)
    assert "\x1b" not in str(caught.value)


def test_a_missing_record_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    for place in (tmp_path, tmp_path / "nowhere", tmp_path / "nowhere.json"):
        with pytest.raises(ResultsError, match="does not exist"):
            read_run(place)


def test_an_oversized_record_is_refused_unread(tmp_path: Path) -> None:
    with (tmp_path / "run.json").open("wb") as stream:
        stream.truncate(run_folder.RECORD_LIMIT_BYTES + 1)
    with pytest.raises(ResultsError, match="more than"):
        read_run(tmp_path)


def test_runs_are_listed_by_time_without_links_hidden_folders_and_other_files(tmp_path: Path) -> None:
    names = ["20261103T000000Z-b-1", "20261101T000000Z-b-2", "20261102T000000Z-b-3"]
    for name in names:
        write_run(RUN.model_copy(update={"run_id": name}), tmp_path / name)
    write_run(RUN, tmp_path / ".spool")
    (tmp_path / "latest").symlink_to(tmp_path / names[0])
    (tmp_path / "notes").mkdir()
    (tmp_path / "history.sqlite").write_text("")
    assert [one.run_id for one in iter_runs(tmp_path)] == sorted(names)
    assert [one.name for one in run_folders(tmp_path)] == sorted(names)
    assert list(iter_runs(tmp_path / "nowhere")) == []


def test_a_damaged_run_among_others_is_reported_or_raised(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        write_run(RUN.model_copy(update={"run_id": name}), tmp_path / name)
    (tmp_path / "b/run.json").write_text("{")
    errors: list[ResultsError] = []
    assert [one.run_id for one in iter_runs(tmp_path, on_error=errors.append)] == ["a", "c"]
    assert len(errors) == 1
    with pytest.raises(ResultsError, match=r"b/run\.json is damaged"):
        list(iter_runs(tmp_path))


@pytest.mark.parametrize(
    ("number", "message"),
    [
        (errno.ENOSPC, "the disk is full.*Free space there.*nothing half-written"),
        (errno.EDQUOT, "the quota is used up"),
        (errno.EROFS, "read-only file system"),
        (errno.EACCES, r"not permitted\. Give this user the right"),
        (errno.EIO, "Input/output error"),
    ],
)
@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_failing_disk_leaves_the_old_record_and_nothing_half_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, message: str, call: str
) -> None:
    write_run(RUN, tmp_path)

    def fails(*_words: object) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patched:
        patched.setattr(os, call, fails)
        with pytest.raises(ResultsError, match=message) as caught:
            write_run(RUN.model_copy(update={"notes": "second"}), tmp_path)
    assert str(tmp_path / "run.json") in str(caught.value)
    assert read_run(tmp_path).notes == ""
    assert [one.name for one in tmp_path.iterdir()] == ["run.json"]


@pytest.mark.parametrize(
    ("mode", "words"),
    [(0o500, "is your own, but its mode is 500"), (0o555, "but its mode is 555"), (0o700, ""), (0o755, "")],
)
def test_for_a_folder_of_this_user_the_mode_is_named_and_not_the_owner(
    tmp_path: Path, mode: int, words: str
) -> None:
    """The note names the mode. If the mode allows writing, neither owner nor mode explains the error."""
    tmp_path.chmod(mode)
    note = run_folder._owner_note(tmp_path / "run.json")
    tmp_path.chmod(0o700)
    assert words in note
    assert bool(note) == bool(words)
    assert "belongs to" not in note


def test_a_file_in_the_way_is_named(tmp_path: Path) -> None:
    (tmp_path / "results").write_text("")
    with pytest.raises(ResultsError, match="there is a file where a folder is needed"):
        write_run(RUN, tmp_path / "results" / RUN.run_id)


# The program imports these modules before it changes its user. Another user may have no right to read the
# checkout and the interpreter.
WITHOUT_RIGHTS = """
import pathlib, resource, sys, tempfile
from rackproof.core import records
from rackproof.store import run_folder
"""


def unprivileged(program: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a program without root's rights. If root runs it, its user is 65534, because no mode stops root."""
    drop = "import os\nif os.geteuid() == 0:\n    os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
    return subprocess.run(
        [
            sys.executable,
            "-c",
            WITHOUT_RIGHTS + drop + textwrap.dedent(program),
            *words,
        ],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_a_folder_that_is_not_writable_is_named_with_its_owner(tmp_path: Path) -> None:
    # Both folders belong to root.
    closed = Path("/proc/sys") if os.geteuid() != 0 else tmp_path
    done = unprivileged(
        """
        run = records.Run(run_id="r", benchmark="b")
        try:
            run_folder.write_run(run, pathlib.Path(sys.argv[1]) / "results" / "r")
        except run_folder.ResultsError as error:
            print(error)
        """,
        str(closed),
    )
    assert "cannot write" in done.stdout, done.stderr
    assert "belongs to root" in done.stdout
    assert "name another folder" in done.stdout


def test_a_full_disk_leaves_the_old_file() -> None:
    done = unprivileged(
        """
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "run.json"
            run_folder.write_file(path, b"whole")
            try:
                run_folder.write_file(path, b"x" * 5000)
            except run_folder.ResultsError as error:
                print(error)
            print(path.read_bytes(), [one.name for one in path.parent.iterdir()])
        """
    )
    first, second = done.stdout.splitlines()
    assert "the disk is full" in first
    assert second == "b'whole' ['run.json']"


def test_a_kill_while_writing_leaves_a_whole_record(tmp_path: Path) -> None:
    """Each file has one number, many times. After a kill, the file must not mix two numbers."""
    program = """
import itertools, pathlib, sys
from rackproof.store.run_folder import write_file
for number in itertools.count():
    write_file(pathlib.Path(sys.argv[1]) / "run.json", str(number).encode() * 200_000)
    print(number, flush=True)
"""
    for turn in range(3):
        writer = subprocess.Popen(
            [sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, text=True
        )
        assert writer.stdout is not None
        writer.stdout.readline()
        time.sleep(0.004 * (turn + 1))
        writer.send_signal(signal.SIGKILL)
        writer.communicate()
        data = (tmp_path / "run.json").read_bytes()
        length = len(data) // 200_000
        assert data == data[:length] * 200_000


def test_write_file_makes_the_folders(tmp_path: Path) -> None:
    write_file(tmp_path / "a/b/c.json", b"{}")
    assert (tmp_path / "a/b/c.json").read_bytes() == b"{}"


@pytest.mark.parametrize("below", ["results", "a/results", "a/b/results"])
def test_a_folder_below_one_that_is_closed_to_this_user_is_not_permitted(tmp_path: Path, below: str) -> None:
    closed = tmp_path / "closed"
    closed.mkdir()
    closed.chmod(0o600)
    done = unprivileged("print(run_folder.why_unwritable(pathlib.Path(sys.argv[1])))", str(closed / below))
    closed.chmod(0o700)
    assert f"cannot write {closed / below}: not permitted" in done.stdout, done.stderr
