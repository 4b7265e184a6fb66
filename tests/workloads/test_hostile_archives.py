"""Test that archives and downloads made by an attacker harm no node.

Three programs of workloads/ read archives (docker_run.py, stage_tf_cnn.py, imagenet_archives.py), and
stage_mnist.py downloads a file. The tests show that nothing is written outside the folder of an archive, and
that no header, size or endless answer fills the disk or the memory.
"""

from __future__ import annotations

import bz2
import gzip
import hashlib
import importlib
import io
import lzma
import os
import stat
import struct
import tarfile
import tracemalloc
import zlib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.workloads.programs import load_program

Member = tuple[str, dict[str, Any], bytes]


@pytest.fixture
def docker_run(root: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(root / "workloads")
    return importlib.import_module("docker_run")


def file(name: str, data: bytes = b"x", **about: Any) -> Member:
    """Return a member of an archive. ``about`` sets fields of its header."""
    return name, about, data


def link(name: str, target: str, kind: bytes = tarfile.SYMTYPE) -> Member:
    """Return a link as a member of an archive."""
    return name, {"type": kind, "linkname": target}, b""


def packed(*members: Member) -> bytes:
    """Return a compressed archive of members."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w:gz") as archive:
        for name, about, data in members:
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            for key, value in about.items():
                setattr(entry, key, value)
            archive.addfile(entry, io.BytesIO(data))
    return raw.getvalue()


def unpack(docker_run: ModuleType, folder: Path, archive: bytes) -> None:
    """Unpack an archive with docker_run.py into deep/sources of a folder."""

    class Sources(docker_run.Docker):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            self.spec = {"sources": "evil.tar.gz"}

    (folder / "evil.tar.gz").write_bytes(archive)
    (folder / "deep/sources").mkdir(parents=True)
    Sources().unpack(folder / "evil.tar.gz", folder / "deep/sources")


# By their text, the links of these archives stay inside. Only through another link do they lead outside.
UP = (file("top/a/b/x"), link("top/a/b/c", "../.."))


@pytest.mark.parametrize(
    "members",
    [
        (*UP, link("top/a/b/c/l", "../.."), file("top/l/escaped")),
        (*UP, link("top/up", "a/b/c/.."), file("top/up/escaped")),
        (link("top/up", "a/b/c/.."), *UP, file("top/x")),
        (link("top/l", "x"), file("top/l"), file("top/x")),
        (link("top/l", "/etc"), file("top/x")),
        (link("top/l", "../.."), file("top/x")),
        (file("top/x"), link("top/h", "top/x", tarfile.LNKTYPE)),
        (file("top//etc/escaped"), file("top/x")),
        (file("top/x/../../../escaped"), file("top/x")),
    ],
    ids=[
        *("link_in_link", "write_through_chain", "chain_that_is_only_read", "write_over_link", "absolute"),
        *("link_up", "hard", "absolute_name", "dots"),
    ],
)
def test_a_member_that_leads_outside_in_any_way_is_refused(
    docker_run: ModuleType, tmp_path: Path, members: tuple[Member, ...]
) -> None:
    with pytest.raises(docker_run.Refusal) as refused:
        unpack(docker_run, tmp_path, packed(*members))
    assert "leads outside" in str(refused.value)
    assert not list(tmp_path.rglob("escaped"))


def test_links_inside_are_kept(docker_run: ModuleType, tmp_path: Path) -> None:
    unpack(docker_run, tmp_path, packed(file("top/a/x"), link("top/a/l", "x"), link("top/b", "a")))
    assert (tmp_path / "deep/sources/b/l").read_bytes() == b"x"


@pytest.mark.parametrize(
    ("about", "mode"),
    [
        ({"mode": 0o4755}, 0o755),
        ({"mode": 0o2775}, 0o755),
        ({"mode": 0o666}, 0o644),
        ({"mode": 0}, 0o600),
        ({"mode": 0o644, "uid": 4711, "gid": 4711, "uname": "daemon", "gname": "daemon"}, 0o644),
    ],
    ids=["setuid", "setgid", "everybody_writes", "unreadable", "another_user"],
)
def test_an_archive_decides_neither_owner_nor_rights(
    docker_run: ModuleType, tmp_path: Path, about: dict[str, Any], mode: int
) -> None:
    unpack(docker_run, tmp_path, packed(file("top/run.sub", **about), file("top/x")))
    found = (tmp_path / "deep/sources/run.sub").stat()
    assert (stat.S_IMODE(found.st_mode), found.st_uid) == (mode, os.geteuid())


@pytest.mark.parametrize("kind", [tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE])
def test_devices_and_pipes_are_left_out(docker_run: ModuleType, tmp_path: Path, kind: bytes) -> None:
    device = ("top/dev", {"type": kind, "devmajor": 1, "devminor": 3}, b"")
    unpack(docker_run, tmp_path, packed(file("top/x"), device))
    assert os.listdir(tmp_path / "deep/sources") == ["x"]


@pytest.mark.parametrize(
    "members",
    [
        (file("top/big", bytes(1 << 20)), file("top/x")),
        tuple(file(f"top/{number}", bytes(1 << 17)) for number in range(9)),
        tuple(file(f"top/{number}", b"") for number in range(40)),
    ],
    ids=["one", "together", "empty"],
)
def test_an_archive_that_unpacks_to_more_than_sources_have_is_refused(
    docker_run: ModuleType, tmp_path: Path, members: tuple[Member, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(docker_run, "MOST_UNPACKED_BYTES", 1 << 20)
    with pytest.raises(docker_run.Refusal) as refused:
        unpack(docker_run, tmp_path, packed(*members))
    assert "the limit for sources" in str(refused.value)
    assert os.listdir(tmp_path / "deep/sources") == []


def test_an_archive_without_end_is_not_fetched_whole(
    docker_run: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Sources(docker_run.Docker):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            self.spec = {"sources": "/dev/zero"}

    monkeypatch.setattr(docker_run, "MOST_ARCHIVE_BYTES", 1 << 21)
    with pytest.raises(docker_run.Refusal) as refused:
        Sources().fetch(tmp_path / "archive")
    assert "the limit for sources" in str(refused.value)
    assert (tmp_path / "archive").stat().st_size == 3 << 20


@pytest.mark.parametrize("sizes", [[1 << 17], [40_000, 40_000], [60_000, 1, 10_000]])
def test_sources_that_unpack_to_more_than_an_archive_may_have_are_refused(
    sizes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    staging = load_program("stage_tf_cnn")
    monkeypatch.setattr(staging, "MOST_UNPACKED_BYTES", 1 << 16)
    members = [file(f"{staging.PART}/{number}.py", bytes(size)) for number, size in enumerate(sizes)]
    with pytest.raises(staging.StagingError, match="unpacks to more than 65,536 bytes"):
        staging.from_archive(packed(*members), "evil.tar.gz")


def header(name: str, kind: bytes, size: int, **about: Any) -> bytes:
    """Return the header of a member, whatever size it states."""
    entry = tarfile.TarInfo(name)
    entry.type, entry.size = kind, size
    for key, value in about.items():
        setattr(entry, key, value)
    return entry.tobuf(tarfile.GNU_FORMAT)


def keys(count: int) -> bytes:
    """Return the content of a header with many keys, filled to whole blocks of 512 bytes."""
    text = b"".join(b"10 %04d=1\n" % key for key in range(count))
    return text.ljust(-(-len(text) // 512) * 512, b"\0")


SPARSE = (
    b"22 GNU.sparse.major=1\n22 GNU.sparse.minor=0\n29 GNU.sparse.realsize=99999\n25 GNU.sparse.name=top/x\n"
)
# Headers that state 64 MiB of names, many keys or headers, or a size that cannot be.
HOSTILE: dict[str, Callable[[], bytes]] = {
    "long_name": lambda: header("top/x", tarfile.GNUTYPE_LONGNAME, 64 << 20) + bytes(64 << 20),
    "long_link": lambda: header("top/x", tarfile.GNUTYPE_LONGLINK, 64 << 20) + bytes(64 << 20),
    "pax_header": lambda: header("top/x", tarfile.XHDTYPE, 64 << 20) + bytes(64 << 20),
    "global_header": lambda: header("top/x", tarfile.XGLTYPE, 64 << 20) + bytes(64 << 20),
    "many_keys": lambda: header("top/x", tarfile.XGLTYPE, 10 * 5000) + keys(5000),
    "many_headers": lambda: (header("top/x", tarfile.XHDTYPE, 10) + keys(1)) * 3000,
    "sparse_map": lambda: header("top/x", tarfile.XHDTYPE, len(SPARSE)) + SPARSE.ljust(512, b"\0")
    + header("top/x", tarfile.REGTYPE, 512) + b"999999999\n".ljust(512, b"1"),
    "sparse": lambda: header("top/x", tarfile.GNUTYPE_SPARSE, 0),
    "negative_size": lambda: header("top/x", tarfile.REGTYPE, -512),
}  # fmt: skip


@pytest.mark.parametrize("program", ["docker_run", "stage_tf_cnn", "imagenet_archives"])
@pytest.mark.parametrize("kind", HOSTILE)
def test_a_header_that_no_honest_archive_has_is_an_error_and_fills_no_memory(
    kind: str, program: str, tmp_path: Path, docker_run: ModuleType
) -> None:
    first = header("top/first", tarfile.REGTYPE, 0)
    archive = gzip.compress(first + HOSTILE[kind]() + header("top/x", tarfile.REGTYPE, 0) + bytes(1024), 1)
    tracemalloc.start()
    if program == "docker_run":
        with pytest.raises(docker_run.Refusal, match="is not a whole archive"):
            unpack(docker_run, tmp_path, archive)
    elif program == "stage_tf_cnn":
        staging = load_program(program)
        with pytest.raises(staging.StagingError, match="not an archive that can be read"):
            staging.from_archive(archive, "evil.tar.gz")
    else:
        archives = load_program(program)
        with pytest.raises(tarfile.ReadError):
            archives.read_devkit(io.BytesIO(archive), "devkit")
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    # Less than a hostile header states, so it was not read into memory.
    assert most < 24 << 20


@pytest.mark.parametrize("program", ["docker_run", "stage_tf_cnn", "imagenet_archives"])
def test_an_archive_with_members_without_end_is_refused(
    program: str, tmp_path: Path, docker_run: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = packed(*(file(f"top/{number}", b"") for number in range(40)))
    staging = docker_run if program == "docker_run" else load_program(program)
    name = "MOST_UNPACKED_DEVKIT_BYTES" if program == "imagenet_archives" else "MOST_UNPACKED_BYTES"
    monkeypatch.setattr(staging, name, 1 << 20)
    calls: dict[str, Callable[[], object]] = {
        "docker_run": lambda: unpack(docker_run, tmp_path, archive),
        "stage_tf_cnn": lambda: staging.from_archive(archive, "evil.tar.gz"),
        "imagenet_archives": lambda: staging.read_devkit(io.BytesIO(archive), "devkit"),
    }
    with pytest.raises(Exception, match="more than") as refused:
        calls[program]()
    assert type(refused.value).__name__ in ("Refusal", "StagingError", "TooLargeError")


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_an_honest_archive_in_every_format_is_unpacked(
    docker_run: ModuleType, tmp_path: Path, form: int
) -> None:
    name = f"top/{'a' * 90}/{'b' * 90}" + ("/ü" * 200 if form != tarfile.USTAR_FORMAT else "")
    raw = io.BytesIO()
    comment = {"comment": "f" * 40} if form == tarfile.PAX_FORMAT else {}
    with tarfile.open(fileobj=raw, mode="w:gz", format=form, pax_headers=comment) as archive:
        archive.addfile(tarfile.TarInfo(name))
        archive.addfile(tarfile.TarInfo("top/x"))
    unpack(docker_run, tmp_path, raw.getvalue())
    assert (tmp_path / "deep/sources" / name.removeprefix("top/")).is_file()


class Endless(io.RawIOBase):
    """A server's answer, or a file, that never ends. It counts the bytes that were read."""

    status = 200
    given = 0

    def read(self, size: int = -1) -> bytes:
        assert size > 0
        self.given += size
        assert self.given < 100 << 20, "the download was read beyond its limit"
        return bytes(size)


def test_a_download_is_read_no_further_than_one_byte_too_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    staging, answer = load_program("stage_mnist"), Endless()
    monkeypatch.setattr(staging, "open_limited", lambda *_, **__: answer)
    with pytest.raises(staging.StagingError, match="wrong checksum"):
        staging.download(
            "http://mirror/data.whl",
            tmp_path / "data.whl",
            {"size_bytes": 5, "sha256": "0" * 64},
            staging.Limits(),
        )
    assert (answer.given, list(tmp_path.iterdir())) == (6, [])


@pytest.mark.parametrize("size", [11, 1 << 20, 64 << 20])
def test_a_packed_file_is_unpacked_no_further_than_one_byte_too_many(
    tmp_path: Path, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    staging = load_program("stage_mnist")
    written: list[int] = []
    monkeypatch.setattr(
        staging.HashingWriter,
        "write",
        lambda self, data: written.append(len(data)) or self.sha256.update(data),
    )
    (tmp_path / staging.STAGING).mkdir()
    (tmp_path / "images.gz").write_bytes(gzip.compress(bytes(size)))
    wanted = {"name": "images", "size_bytes": 10, "sha256": hashlib.sha256(bytes(10)).hexdigest()}
    with pytest.raises(staging.StagingError, match="wrong checksum"):
        staging.copy_from(tmp_path, tmp_path, wanted)
    assert (sum(written), (tmp_path / "images").exists()) == (11, False)


def test_a_development_kit_fills_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    archives = load_program("imagenet_archives")
    monkeypatch.setattr(archives, "MOST_DEVKIT_BYTES", 1 << 16)
    bomb = zlib.compress(bytes(1 << 20))
    element = struct.pack("<II", archives._COMPRESSED, len(bomb)) + bomb
    with pytest.raises(zlib.error, match="too large, or cut off"):
        list(archives.mat_elements(element))
    given: list[bytes] = []
    monkeypatch.setattr(archives, "leaves", lambda content, _archive: given.append(content) or {})
    kit = packed(file(f"kit/{archives._META}", bytes(1 << 20)), file(f"kit/{archives._TRUTH}", b""))
    archives.read_devkit(io.BytesIO(kit), "devkit")
    assert len(given[0]) == 1 << 16


def gzip_of(data: bytes) -> bytes:
    """Return gzip with a block in its middle that is of no known type."""
    packer = zlib.compressobj(wbits=31)
    half = len(data) // 2
    first = packer.compress(data[:half]) + packer.flush(zlib.Z_FULL_FLUSH)
    return first + b"\x07" * 8 + packer.compress(data[half:]) + packer.flush()


def changed(packed_data: bytes) -> bytes:
    """Return compressed bytes of which some in the middle were changed."""
    middle = len(packed_data) // 2
    return packed_data[:middle] + b"\xff" * 200 + packed_data[middle + 200 :]


@pytest.mark.parametrize(
    "damaged",
    [
        gzip_of,
        lambda data: gzip.compress(data)[:-3000],
        lambda data: changed(bz2.compress(data)),
        lambda data: bz2.compress(data)[:-3000],
        lambda data: changed(lzma.compress(data)),
        lambda data: lzma.compress(data)[:-3000],
    ],
    ids=["gz", "short gz", "bz2", "short bz2", "xz", "short xz"],
)
@pytest.mark.parametrize("program", ["docker_run", "stage_tf_cnn"])
def test_a_damaged_archive_is_named(
    docker_run: ModuleType, tmp_path: Path, program: str, damaged: Callable[[bytes], bytes]
) -> None:
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as archive:
        for number in range(4):
            entry = tarfile.TarInfo(f"top/scripts/tf_cnn_benchmarks/{number}.py")
            content = b"".join(hashlib.sha256(b"%d %d" % (number, one)).digest() for one in range(600))
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    data = damaged(raw.getvalue())
    if program == "docker_run":
        with pytest.raises(docker_run.Refusal, match="is not a whole archive"):
            unpack(docker_run, tmp_path, data)
        return
    stage_tf_cnn = load_program("stage_tf_cnn")
    with pytest.raises(stage_tf_cnn.StagingError, match="not an archive that can be read"):
        stage_tf_cnn.from_archive(data, "archive")


@pytest.mark.parametrize(
    "damaged",
    [
        gzip_of,
        lambda data: gzip.compress(data)[:-3000],
        lambda data: changed(gzip.compress(data)),
        lambda data: b"no gzip" + gzip.compress(data),
    ],
)
def test_a_damaged_packed_file_is_named(tmp_path: Path, damaged: Callable[[bytes], bytes]) -> None:
    stage_mnist = load_program("stage_mnist")
    content = b"".join(hashlib.sha256(b"%d" % one).digest() for one in range(600))
    (tmp_path / "images.gz").write_bytes(damaged(content))
    (tmp_path / "data/.staging").mkdir(parents=True)
    wanted = {"name": "images", "sha256": hashlib.sha256(content).hexdigest(), "size_bytes": len(content)}
    with pytest.raises(stage_mnist.StagingError, match=r"images\.gz is damaged .*copy it again"):
        stage_mnist.copy_from(tmp_path, tmp_path / "data", wanted)
