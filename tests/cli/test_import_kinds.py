"""Test which files ``rackproof import`` and ``parse`` accept as logs.

Logs may be compressed. Archives, damaged files, and files that would need much memory or disk are named, and
the result is unproven. Pipes and devices are refused at once. A log without a date, and a file without a log
in it, are tested, too.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import socket
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from rackproof import logs
from rackproof.core.records import Verdict
from rackproof.jobs.bench.import_logs import import_logs
from rackproof.logs import opening
from tests.cli.conftest import mllog
from tests.logs import log_samples as samples

Log = Callable[..., Path]
# By the ending of a file: the function that compresses its content.
PACK: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.compress,
    ".xz": lzma.compress,
    ".bz2": bz2.compress,
}


@pytest.fixture(autouse=True)
def _own_history(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the history in the results folder."""
    monkeypatch.delenv("RACKPROOF_DATABASE_URL", raising=False)


@pytest.mark.parametrize("ending", PACK)
def test_a_compressed_log_is_read_and_kept_as_it_was_written(ending: str, tmp_path: Path) -> None:
    data = mllog().encode()
    path = tmp_path / f"logs/result_0.txt{ending}"
    path.parent.mkdir()
    path.write_bytes(PACK[ending](data))
    (done,) = import_logs(path.parent, tmp_path / "results").imported
    assert done.run.verdict is Verdict.PASS
    (kept,) = done.run.logs
    assert (kept.path, kept.size_bytes) == ("logs/result_0.txt", len(data))
    assert (Path(done.folder) / kept.path).read_bytes() == data
    assert logs.parse_path(path).verdict is Verdict.PASS


def test_a_failure_in_a_compressed_log_is_found(tmp_path: Path) -> None:
    for ending, pack in PACK.items():
        path = tmp_path / f"job.log{ending}"
        path.write_bytes(pack(mllog(status="aborted").encode()))
        assert logs.parse_path(path).verdict is Verdict.FAIL
        (done,) = import_logs(path, tmp_path / f"results{ending}").imported
        assert done.run.verdict is Verdict.FAIL


def test_a_compressed_copy_of_a_log_is_found_as_a_copy(log: Log, tmp_path: Path) -> None:
    data = log().read_bytes()
    (log().parent / "result_1.txt.gz").write_bytes(gzip.compress(data))
    first, second = import_logs(log().parent, tmp_path / "results").imported
    assert (first.run.verdict, second.run.verdict) == (Verdict.PASS, Verdict.UNPROVEN)
    assert "byte for byte the same log" in second.run.reasons[0]


@pytest.mark.parametrize("ending", PACK)
@pytest.mark.parametrize("damage", ["cut", "changed"])
def test_a_damaged_compressed_log_gives_no_pass(ending: str, damage: str, tmp_path: Path) -> None:
    data = PACK[ending](mllog().encode())
    half = len(data) // 2
    path = tmp_path / f"result_0.txt{ending}"
    path.write_bytes(
        data[: -len(data) // 3] if damage == "cut" else data[:half] + b"\xff" * 9 + data[half + 9 :]
    )
    found = logs.parse_path(path)
    assert found.verdict.gates
    assert "log_not_unpacked" in {one.code for one in found.findings}


def test_a_decompression_bomb_is_not_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "MOST_UNPACKED", 1 << 20)
    for ending, pack in PACK.items():
        path = tmp_path / f"bomb.log{ending}"
        path.write_bytes(pack(mllog().encode() + b"0\n" * (2 << 20)))
        found = logs.parse_path(path)
        assert found.verdict is Verdict.UNPROVEN
        assert found.size_bytes <= (1 << 20) + 1
        (problem,) = [one for one in found.findings if one.code == "log_not_unpacked"]
        assert "unpacks to more than" in problem.message


def _claims_memory(data: bytes, code: int) -> bytes:
    """Return an xz file whose first block claims a dictionary of another size, given by its code."""
    length = (data[12] + 1) * 4
    block = bytearray(data[12 : 12 + length])
    place = block.index(b"\x21\x01") + 2  # the filter's number, the size of its properties, the property
    block[place] = code
    block[-4:] = zlib.crc32(bytes(block[:-4])).to_bytes(4, "little")
    return data[:12] + bytes(block) + data[12 + length :]


@pytest.mark.parametrize("whole_first", [False, True])
def test_an_xz_file_that_claims_much_memory_is_not_unpacked(whole_first: bool, tmp_path: Path) -> None:
    packed = lzma.compress(mllog().encode())
    path = tmp_path / "result_0.txt.xz"
    path.write_bytes(_claims_memory(packed, packed[12 + 4]))
    for code, verdict in ((28, Verdict.PASS), (40, Verdict.UNPROVEN)):  # 64 MiB, as with -9, and 4 GiB
        data = _claims_memory(packed, code)
        path.write_bytes(packed + _claims_memory(lzma.compress(b"words\n"), code) if whole_first else data)
        found = logs.parse_path(path)
        assert found.verdict is verdict
        problems = [one.message for one in found.findings if one.code == "log_not_unpacked"]
        assert problems == [
            "the compressed log needs too much memory to be unpacked: unpack it yourself"
            for _ in range(code == 40)
        ]


@pytest.mark.parametrize("ending", PACK)
def test_a_lack_of_memory_is_no_crash(ending: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / f"result_0.txt{ending}"
    path.write_bytes(PACK[ending](mllog().encode()))

    def fail(*_: object) -> bytes:
        raise MemoryError

    with opening.open_log(path) as stream:
        monkeypatch.setattr(stream, "_stream", SimpleNamespace(read=fail, readline=fail))
        assert stream.read(10) == b""
        assert "too much memory" in stream.problem


@pytest.mark.parametrize("ending", PACK)
def test_joined_streams_are_read_completely_or_are_unproven(ending: str, tmp_path: Path) -> None:
    data, half = mllog().encode(), len(mllog()) // 2
    first, second = PACK[ending](data[:half]), PACK[ending](data[half:])
    path = tmp_path / f"result_0.txt{ending}"
    for padding in (b"", b"\0" * 4, b"\0" * 400_000):
        path.write_bytes(first + padding + second + padding)
        with opening.open_log(path) as stream:
            assert stream.read() == data
            assert not stream.problem
    for damaged in (b"x" + second[1:], second[:-9], b"some words"):
        # The damaged part could contain a fault.
        path.write_bytes(PACK[ending](data) + damaged)
        assert logs.parse_path(path).verdict is Verdict.UNPROVEN


def _tar(data: bytes) -> bytes:
    """Return a tar archive with a log."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        entry = tarfile.TarInfo("result_0.txt")
        entry.size = len(data)
        archive.addfile(entry, io.BytesIO(data))
    return stream.getvalue()


def _zip(data: bytes) -> bytes:
    """Return a zip file with a log."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("result_0.txt", data)
    return stream.getvalue()


# Files of logs that the operator has to unpack: zstd and lz4, by their first bytes, and archives.
UNREADABLE = {
    "result_1.txt.zst": b"\x28\xb5\x2f\xfd" + b"\x04" * 40,
    "result_1.txt.lz4": b"\x04\x22\x4d\x18" + b"\x04" * 40,
    "result_1.txt": b"\x28\xb5\x2f\xfd" + b"\x04" * 40,  # the content decides, not the name
    "logs.tar": _tar(mllog().encode()),
    "logs.tar.gz": gzip.compress(_tar(mllog().encode())),
    "logs.zip": _zip(mllog().encode()),
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_a_log_that_cannot_be_read_is_named_and_makes_the_import_unproven(
    name: str, log: Log, run: Callable[..., object]
) -> None:
    (log().parent / name).write_bytes(UNREADABLE[name])
    result = run("import", "logs")
    assert result.exit_code == 3, result.output  # type: ignore[attr-defined]
    assert f"{name}: " in result.output and "unpack it" in result.output  # type: ignore[attr-defined] # noqa: PT018
    alone = run("parse", f"logs/{name}")
    assert alone.exit_code == 1  # type: ignore[attr-defined]
    assert "unpack it" in alone.output  # type: ignore[attr-defined]


def test_fifos_and_sockets_are_named_and_never_opened(log: Log, tmp_path: Path) -> None:
    folder = log().parent
    os.mkfifo(folder / "job.log")
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(folder / "s.log"))
        done = import_logs(folder, tmp_path / "results")
    assert len(done.imported) == 1
    assert sorted(text.partition(",")[0].rpartition(": ")[2] for text in done.unread) == [
        "a FIFO",
        "a socket",
    ]


def test_a_fifo_alone_is_an_error(tmp_path: Path, run: Callable[..., object]) -> None:
    os.mkfifo(tmp_path / "pipe")
    for place in ("pipe", "/dev/null"):
        result = run("import", place)
        assert result.exit_code == 1  # type: ignore[attr-defined]
        assert "copy its output into a file" in result.output  # type: ignore[attr-defined]


@pytest.mark.parametrize("place", ["pipe", "socket", "/dev/zero", "/dev/null"])
@pytest.mark.parametrize(
    "command",
    [("parse",), ("import",), ("compare", "log.txt"), ("score",), ("parse", "log.txt", "--harmless")],
    ids="-".join,
)
def test_every_command_refuses_pipes_sockets_and_devices_at_once(
    command: tuple[str, ...], place: str, tmp_path: Path, run: Callable[..., object]
) -> None:
    (tmp_path / "log.txt").write_bytes(samples.PASSING["gpu_burn"])
    os.mkfifo(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(tmp_path / "socket"))
        result = run(*command, place)
    assert result.exit_code == 1  # type: ignore[attr-defined]
    assert place in result.output and "Traceback" not in result.output  # type: ignore[attr-defined] # noqa: PT018


@pytest.mark.parametrize("name", ["nccl_tests", "nvbandwidth", "gpu_burn", "ib_write_bw", "mxnet"])
def test_a_log_without_a_date_may_be_of_any_year(name: str, tmp_path: Path) -> None:
    path = tmp_path / "logs/job.log"
    path.parent.mkdir()
    path.write_bytes(samples.PASSING[name])
    for old, verdict in ((False, Verdict.UNPROVEN), (True, Verdict.PASS)):
        (done,) = import_logs(path, tmp_path / f"results{old}", old=old).imported
        assert done.run.verdict is verdict, done.run.reasons
        assert ("no_date" in {one.code for one in done.run.findings}) is not old


def test_an_import_states_that_speed_is_not_judged(log: Log, run: Callable[..., object]) -> None:
    log()
    result = run("import", "logs")
    assert result.exit_code == 0  # type: ignore[attr-defined]
    assert result.output.rstrip().endswith(  # type: ignore[attr-defined]
        "verdict of the logs: pass; speed not judged: no SKU named"
    )


# Parts of the output of fio, and of programs with MPI.
FIO_FAILED = (
    "seqread: (groupid=0, jobs=4): err= 5 (func=io_u error, error=Input/output error): pid=1: Fri Nov 27\n"
)
OSU = "# OSU MPI Bandwidth Test v7.4\n# Size      Bandwidth (MB/s)\n1      4.10\n"
ABORT = "MPI_ABORT was invoked on rank 0 in communicator MPI_COMM_WORLD\n"


@pytest.mark.parametrize(
    ("name", "text", "verdict"),
    [
        ("fio_err5.txt", FIO_FAILED, Verdict.FAIL),
        ("osu_abort.txt", OSU + ABORT, Verdict.FAIL),
        ("ior.txt", "IOR-4.0.0: MPI Coordinated Test of Parallel I/O\n", Verdict.UNPROVEN),
        ("osu", OSU, Verdict.UNPROVEN),
        ("osu.txt.gz", OSU, Verdict.UNPROVEN),
        ("fio.json", '{\n  "fio version" : "fio-3.16",\n', Verdict.UNPROVEN),
        ("job.txt", "step 1\nslurmstepd: error: *** JOB 1 ON n1 CANCELLED AT 2026-11-27 ***\n", Verdict.FAIL),
        ("training.txt", "step 1, loss: nan\n", Verdict.FAIL),
        ("crashed.txt", ABORT + "x" * 5000 + "\n" + "\0" * 5000, Verdict.FAIL),
    ],
)
def test_a_file_with_a_failure_or_the_output_of_a_tool_is_a_log_whatever_its_name(
    name: str, text: str, verdict: Verdict, log: Log, tmp_path: Path
) -> None:
    data = text.encode()
    (log().parent / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    result = import_logs(log().parent, tmp_path / "results")
    assert result.skipped == ()
    assert sorted(done.run.verdict.value for done in result.imported) == sorted(["pass", verdict.value])


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("README.txt", b"How to run fio: see below.\n"),
        ("README.txt", ABORT.encode()),
        ("NOTES.md", OSU.encode()),
        ("run.sh", b"# OSU MPI is run here\necho MPI_ABORT was invoked on rank 0\n"),
        ("train.py", b"raise SystemExit('MPI_ABORT was invoked on rank 0')\n"),
        ("data.csv", b"size,seconds\n1,2\n"),
        ("data.json", b'{"loss": 0.5}\n'),
        ("hosts.txt", b"node01\nnode02\n"),
        ("program", b"\x7fELF\x02\x01\0\0\0\nMPI_ABORT was invoked on rank\n"),
        ("__init__.txt.data", b""),
    ],
)
def test_a_file_without_a_log_is_passed_over(name: str, data: bytes, log: Log, tmp_path: Path) -> None:
    (log().parent / name).write_bytes(data)
    result = import_logs(log().parent, tmp_path / "results")
    assert [done.run.verdict for done in result.imported] == [Verdict.PASS]
    assert result.skipped == (f"{name}: no known log format in it",)
