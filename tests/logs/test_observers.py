"""Test the observers of :func:`rackproof.logs.parse`, which get each line of a log while it is parsed.

Job bench reads the output of a Slurm job with a parser and observers at once, so that a large log is read
only once. These tests check that each observer gets every line with its number, and that observers do not
change the result of the parser.
"""

from __future__ import annotations

import builtins
import io
from pathlib import Path
from typing import Any

import pytest

from rackproof import logs
from rackproof.core.records import Verdict
from rackproof.logs import _reading, run_sub, run_sub06
from tests.logs import log_samples as samples


class Lines:
    """An observer that keeps all lines."""

    def __init__(self) -> None:
        self.lines: list[tuple[int, bytes]] = []

    def line(self, number: int, raw: bytes) -> None:
        self.lines.append((number, raw))


class CountingStream(io.BytesIO):
    """A stream that counts the bytes that are read from it."""

    bytes_read = 0

    def read(self, size: int | None = -1) -> bytes:
        data = super().read(size)
        self.bytes_read += len(data)
        return data

    def readline(self, size: int | None = -1) -> bytes:
        data = super().readline(size)
        self.bytes_read += len(data)
        return data


@pytest.mark.parametrize("name", sorted(samples.PASSING))
def test_observers_change_nothing_and_get_every_line(name: str) -> None:
    data = samples.PASSING[name]
    observer = Lines()
    assert logs.parse(io.BytesIO(data), observers=[observer]) == logs.parse(io.BytesIO(data))
    assert observer.lines == [
        (number, line.removesuffix(b"\n")) for number, line in enumerate(io.BytesIO(data), 1)
    ]


def test_a_stream_is_read_once_for_all_observers() -> None:
    data = samples.PASSING["mllog"]
    stream = CountingStream(data)
    first, second = Lines(), Lines()
    logs.parse(stream, observers=[first, second])
    assert stream.bytes_read == len(data)
    assert first.lines == second.lines != []


def test_a_file_is_opened_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "job.log"
    path.write_bytes(b"RUNANDTIME_START 1700000000\n" + samples.PASSING["mllog"] + b"ERR: a complaint\n")
    opened: list[object] = []
    real_open = builtins.open

    def counting_open(file: Any, *arguments: Any, **options: Any) -> Any:
        opened.append(file)
        return real_open(file, *arguments, **options)

    monkeypatch.setattr(builtins, "open", counting_open)
    launcher, round06 = run_sub.RunSubReader(), run_sub06.RunSub06Reader()
    parsed, _ = logs.read_log_file(path, "logs/job.log", observers=[launcher, round06])
    monkeypatch.undo()
    assert opened == [path]
    assert parsed.verdict is Verdict.PASS
    assert launcher.result().times == {"RUNANDTIME_START": 1700000000}
    assert round06.result().errors == ((parsed.lines, "ERR: a complaint"),)
    assert launcher.result() == run_sub.read_run_sub(path)
    assert round06.result() == run_sub06.read_run_sub06(path)


@pytest.mark.parametrize("size", [_reading.BLOCK - 1, _reading.BLOCK, 3 * _reading.LONGEST_LINE])
@pytest.mark.parametrize("end", [b"", b"\n", b"\nlast", b"\n\nlast\n"])
def test_lines_keep_their_numbers_across_blocks(size: int, end: bytes) -> None:
    data = b"first\n" + b"x" * size + end
    observer = Lines()
    logs.parse(io.BytesIO(data), observers=[observer])
    expected = [line.removesuffix(b"\n") for line in io.BytesIO(data)]
    assert [number for number, _ in observer.lines] == list(range(1, len(expected) + 1))
    for (_, raw), line in zip(observer.lines, expected, strict=True):
        # A line of more than 1 MiB comes with its beginning only.
        assert raw == line[: len(raw)]
        assert len(raw) == len(line) or len(raw) >= _reading.LONGEST_LINE
