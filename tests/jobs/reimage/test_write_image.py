"""Test roles/netboot/files/rackproof-write-image, which writes an image to a node's disk.

The program runs in a ramdisk on the node. It fetches the order, checks its signature and the machine's serial
number, writes the image block by block, and writes the first block last, so that an incomplete disk does not
boot. The tests use files as disks and a faulty image server. They check that no other disk, machine or order
is written, and that the program reports each refusal and failure.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import importlib.machinery
import importlib.util
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from rackproof.jobs.reimage.order_signature import sign_order
from rackproof.nodes import facts
from tests.workloads.test_slow_servers import DrippingServer

ROOT = Path(__file__).resolve().parents[3]
PROGRAM = ROOT / "roles/netboot/files/rackproof-write-image"


def load() -> Any:
    loader = importlib.machinery.SourceFileLoader("rackproof_write_image", str(PROGRAM))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


writer = load()
# The blocks are small, because the tests check the positions of written data, and not its amount.
writer.BLOCK = 64 * 1024
BLOCK = writer.BLOCK


class Server:
    """An image server with faults, which also serves an order and stores reports.

    ``faults`` are those of the next requests: ``503``, ``cut`` (half an answer) or ``whole`` (no range).
    """

    def __init__(self, image: bytes) -> None:
        self.image = image
        self.faults: list[str] = []
        self.asked: list[str] = []
        self.reports: list[dict[str, Any]] = []
        self.order = b""
        # This function returns the signature for a boot's request, or None if there is none yet.
        self.sign: Callable[[dict[str, Any]], str | None] = lambda asked: None
        self.places: list[str] = []
        self.answers = 204
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                if self.path == "/write.json":
                    self.send_response(200)
                    self.end_headers()
                    self.wfile.write(outer.order)
                    return
                if self.path == "/write.json.sig":
                    signature = outer.sign(outer.reports[-1])
                    self.send_response(404 if signature is None else 200)
                    self.end_headers()
                    self.wfile.write((signature or "").encode())
                    return
                outer.asked.append(self.headers["Range"])
                first, last = map(int, self.headers["Range"].removeprefix("bytes=").split("-"))
                fault = outer.faults.pop(0) if outer.faults else ""
                if fault == "503":
                    self.send_error(503)
                    return
                data = outer.image[first : last + 1]
                self.send_response(200 if fault == "whole" else 206)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data[: len(data) // 2] if fault == "cut" else data)

            def do_PUT(self) -> None:
                outer.reports.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                outer.places.append(self.path)
                self.send_response(outer.answers)
                self.end_headers()

            def log_message(self, *args: Any) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.http.serve_forever, args=(0.02,), daemon=True).start()
        self.url = f"http://127.0.0.1:{self.http.server_port}"


IMAGE = os.urandom(BLOCK) + bytes(BLOCK) + os.urandom(BLOCK) + os.urandom(12345)


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server(IMAGE)
    yield made
    made.http.shutdown()
    made.http.server_close()


def digests(image: bytes) -> list[str]:
    parts = [image[at : at + BLOCK] for at in range(0, len(image), BLOCK)]
    return ["0" if not part.strip(b"\0") else hashlib.sha256(part).hexdigest() for part in parts]


def order(server: Server, **changed: Any) -> dict[str, Any]:
    return {
        "node": "n1",
        "serial": "M1",
        "disk": {"serial": "D1"},
        "image": {
            "url": f"{server.url}/image",
            "bytes": len(IMAGE),
            "block": BLOCK,
            "blocks": digests(IMAGE),
        },
        "report": f"{server.url}/boot-reports",
        "regular_file_is_a_disk": True,
    } | changed


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """Return a machine's folder with three disks full of data, and the files of sysfs about them."""
    for name, serial, size in (("sda", "D1", 5), ("sdb", "D2", 5), ("nvme0n1", "D3", 1)):
        (tmp_path / "dev").mkdir(exist_ok=True)
        (tmp_path / "dev" / name).write_bytes(b"data" * (size * BLOCK // 4))
        folder = tmp_path / "sys/block" / name
        (folder / "device").mkdir(parents=True)
        (folder / "device/serial").write_text(f"{serial}  \n")
        (folder / "size").write_text(str(size * BLOCK // 512))
        (folder / "ro").write_text("0")
    (tmp_path / "sys/block/loop0").mkdir()
    links = tmp_path / "dev/disk/by-id"
    links.mkdir(parents=True)
    (links / "ata-D2").symlink_to("../../sdb")
    return tmp_path


def found(machine: Path) -> list[dict[str, Any]]:
    """Return the disks that the program finds."""
    return writer.disks(str(machine / "sys"), str(machine / "dev"), str(machine / "dev/disk"))


def content(machine: Path) -> dict[str, str]:
    """Return the digest of each disk."""
    return {
        name: hashlib.sha256((machine / "dev" / name).read_bytes()).hexdigest()
        for name in ("sda", "sdb", "nvme0n1")
    }


def carry_out(given: dict[str, Any], machine: Path, serial: str = "m1", mounted: tuple[str, ...] = ()) -> Any:
    return writer.carry_out(given, found(machine), serial, mounted, lambda done, of: None, pause=0.0)


def test_the_named_disk_gets_the_image_and_no_other_is_touched(server: Server, machine: Path) -> None:
    before = content(machine)
    disk, keys = carry_out(order(server), machine)
    assert (disk["serial"], keys) == ("D1", [])
    assert (machine / "dev/sda").read_bytes()[: len(IMAGE)] == IMAGE
    assert {k: v for k, v in content(machine).items() if k != "sda"} == {
        k: v for k, v in before.items() if k != "sda"
    }
    # The block of zeros is not fetched, and the first block comes last.
    assert [int(one[6:].split("-")[0]) // BLOCK for one in server.asked] == [2, 3, 0]


def test_a_disk_may_be_named_by_any_of_its_paths(server: Server, machine: Path) -> None:
    by_id = str(machine / "dev/disk/by-id/ata-D2")
    assert carry_out(order(server, disk={"path": by_id}), machine)[0]["path"] == str(machine / "dev/sdb")
    assert (machine / "dev/sdb").read_bytes()[: len(IMAGE)] == IMAGE


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"serial": "M2"}, "this machine's serial number is m1, the order is for M2"),
        ({"serial": ""}, "names no serial number of the machine"),
        ({"disk": {"serial": "D9"}}, r"there is no disk D9; there are: .*sda \(D1\)"),
        ({"disk": {}}, "or else by its path"),
        ({"disk": {"serial": "D1", "path": "/dev/sda"}}, "or else by its path"),
        ({"disk": {"serial": "D3"}}, "has 65536 bytes, the image"),
        ({"wipe": [{"serial": "D1"}]}, "both written and wiped"),
        ({"wipe": [{"serial": "D9"}]}, "there is no disk D9"),
        ({"image": {}}, "does not describe the image"),
        ({"image": {"bytes": 5, "block": BLOCK, "blocks": []}}, "0 digests for an image of 5"),
        ({"image": {"bytes": 5, "block": BLOCK, "blocks": ["x"]}}, "a digest that is not SHA-256"),
        ({"image": {"bytes": 5, "block": BLOCK, "blocks": ["0"], "timeout_s": 0}}, "time limit is no number"),
        (
            {"image": {"bytes": 5, "block": BLOCK, "blocks": ["0"], "timeout_s": "6h"}},
            "time limit is no number",
        ),
        (
            {"image": {"bytes": 5, "block": BLOCK, "blocks": ["0"], "timeout_s": None}},
            "time limit is no number",
        ),
    ],
)
def test_an_order_that_does_not_fit_is_refused_before_anything_is_written(
    server: Server, machine: Path, changed: dict[str, Any], why: str
) -> None:
    before = content(machine)
    with pytest.raises(writer.RefusedError, match=why):
        carry_out(order(server, **changed), machine)
    assert content(machine) == before


@pytest.mark.parametrize("serial", ["", "m10", "M"])
def test_a_machine_with_another_or_no_serial_number_is_not_written(
    server: Server, machine: Path, serial: str
) -> None:
    before = content(machine)
    with pytest.raises(writer.RefusedError, match="serial number"):
        carry_out(order(server), machine, serial=serial)
    assert content(machine) == before


def test_a_maker_s_filler_is_no_serial_number(server: Server, machine: Path) -> None:
    assert writer.FILLER == facts._FILLER
    before = content(machine)
    for filler in ("Default string", "To Be Filled By O.E.M.", "0123456789"):
        with pytest.raises(writer.RefusedError, match="is not a serial number"):
            carry_out(order(server, serial=filler), machine, serial=filler)
    assert content(machine) == before
    # A number without quotes in the inventory is a serial number.
    assert carry_out(order(server, serial=7007), machine, serial="7007")[0]["serial"] == "D1"


def test_a_hidden_path_to_a_disk_is_no_second_disk(server: Server, machine: Path) -> None:
    way = machine / "sys/block/nvme0c0n1"
    shutil.copytree(machine / "sys/block/sda", way)
    (way / "hidden").write_text("1\n")
    (machine / "sys/block/sda/hidden").write_text("0\n")
    assert carry_out(order(server), machine)[0]["path"].endswith("/sda")


def test_two_disks_of_one_serial_and_disks_in_use_are_refused(server: Server, machine: Path) -> None:
    before = content(machine)
    with pytest.raises(writer.RefusedError, match="in use"):
        carry_out(order(server), machine, mounted=(str(machine / "dev/sda1"),))
    (machine / "sys/block/sda/holders/dm-0").mkdir(parents=True)
    with pytest.raises(writer.RefusedError, match="in use"):
        carry_out(order(server), machine)
    (machine / "sys/block/sdb/device/serial").write_text("D1")
    with pytest.raises(writer.RefusedError, match="2 disks have the name D1"):
        carry_out(order(server), machine)
    (machine / "sys/block/nvme0n1/ro").write_text("1")
    with pytest.raises(writer.RefusedError, match="write-protected"):
        carry_out(order(server, disk={"serial": "D3"}), machine)
    assert content(machine) == before


@pytest.mark.parametrize(
    ("device", "disk", "used"),
    [
        ("/dev/sda", "/dev/sda", True),
        ("/dev/sda1", "/dev/sda", True),
        ("/dev/nvme0n1p2", "/dev/nvme0n1", True),
        ("/dev/mmcblk0p1", "/dev/mmcblk0", True),
        ("/dev/sdaa1", "/dev/sda", False),
        ("/dev/sdap1", "/dev/sda", False),
        ("/dev/nvme0n1", "/dev/nvme0n1p1", False),
        ("/dev/nvme0n10", "/dev/nvme0n1", False),
        ("/dev/nvme0n10p1", "/dev/nvme0n1", False),
        ("/dev/mmcblk01", "/dev/mmcblk0", False),
    ],
)
def test_a_mounted_neighbour_with_a_longer_name_is_another_disk(device: str, disk: str, used: bool) -> None:
    assert writer.in_use(device, disk) is used


@pytest.mark.parametrize(
    ("page", "serial"),
    [
        (b"\0\x80\0\x14S5XYZ1234567       ", "S5XYZ1234567"),  # SATA: filled with blanks
        (b"\0\x80\0\x08ZC18A0QB\0\0\0\0more", "ZC18A0QB"),  # SAS: the page may be longer than its number
        (b"\0\x80\0\x04vs-1", "vs-1"),  # virtio-scsi
        (b"\0\x80\0\x04    ", ""),
        (b"\0\x83\0\x04vs-1", ""),
        (b"\0", ""),
        (None, ""),
    ],
)
def test_a_scsi_disk_has_its_serial_number_in_a_page_of_its_own(
    server: Server, machine: Path, page: bytes | None, serial: str
) -> None:
    device = machine / "sys/block/sda/device"
    (device / "serial").unlink()
    if page is not None:
        (device / "vpd_pg80").write_bytes(page)
    assert [disk["serial"] for disk in found(machine) if disk["path"].endswith("sda")] == [serial]
    if serial:
        carry_out(order(server, disk={"serial": serial.lower()}), machine)
        assert (machine / "dev/sda").read_bytes()[: len(IMAGE)] == IMAGE


def test_only_disks_that_were_named_are_wiped_and_only_after_the_image(server: Server, machine: Path) -> None:
    before = content(machine)
    carry_out(order(server, wipe=[{"serial": "D2"}]), machine)
    wiped = (machine / "dev/sdb").read_bytes()
    assert not wiped[:BLOCK].strip(b"\0")
    assert not wiped[-BLOCK:].strip(b"\0")
    assert wiped[BLOCK:-BLOCK].strip(b"\0")
    assert content(machine)["nvme0n1"] == before["nvme0n1"]


@pytest.mark.parametrize("faults", [["503", "cut"], ["cut", "cut", "503"]])
def test_a_request_is_repeated_after_a_fault_of_the_server(
    server: Server, machine: Path, faults: list[str]
) -> None:
    server.faults = faults
    carry_out(order(server), machine)
    assert (machine / "dev/sda").read_bytes()[: len(IMAGE)] == IMAGE


@pytest.mark.parametrize(
    ("faults", "why"), [(["503"] * 5, "after 5 tries"), (["whole"], "does not serve parts")]
)
def test_a_server_that_keeps_failing_leaves_a_disk_that_does_not_boot(
    server: Server, machine: Path, faults: list[str], why: str
) -> None:
    server.faults = faults
    with pytest.raises(writer.WriteError, match=why):
        carry_out(order(server), machine)
    assert not (machine / "dev/sda").read_bytes()[:BLOCK].strip(b"\0")


@pytest.mark.parametrize(
    ("at_once", "call"),
    [
        (
            b"HTTP/1.1 206 OK\r\nContent-Length: 1000000\r\n\r\n",
            lambda url: writer.fetch(url, 0, 10**6, 0, 2),
        ),
        (b"HTTP/1.1 206 OK\r\nX: ", lambda url: writer.fetch(url, 0, 10**6, 0, 2)),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", lambda url: writer.fetch(url, tries=1)),
        (b"H", lambda url: writer.wait_for_signature(url, seconds=0.5, pause=0)),
    ],
)
def test_a_server_that_sends_byte_by_byte_is_given_up(
    monkeypatch: pytest.MonkeyPatch, at_once: bytes, call: Callable[[str], bytes]
) -> None:
    monkeypatch.setattr(writer, "ANSWER_S", 0.3)
    with DrippingServer(at_once) as slow, pytest.raises((writer.WriteError, writer.RefusedError)) as refused:
        call(slow.url)
    assert "no whole answer within 0.3 s" in str(refused.value)


def test_a_report_to_a_server_that_sends_byte_by_byte_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "ANSWER_S", 0.2)
    monkeypatch.setattr(writer, "TRIES", 1)
    with DrippingServer(b"HTTP/1.1 204 OK\r\nX: ") as slow:
        assert not writer.report(slow.url, {"status": "done"})


ODD_ANSWERS = [
    (b"garbage\r\n\r\n", "garbage"),
    (b"", "closed connection"),
    (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n64\r\nabc", "IncompleteRead"),
    (b"HTTP/1.1 200 OK\r\nX: " + b"x" * 70000 + b"\r\n\r\n", "more than 65536 bytes"),
    (b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nabc", "3 of 100 bytes"),
]


@pytest.fixture
def odd(request: pytest.FixtureRequest) -> Iterator[tuple[str, list[int]]]:
    """Return the address of a server that sends the same bytes for each request, and its list of requests."""
    listener = socket.create_server(("127.0.0.1", 0))
    asked: list[int] = []

    def answer() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                with connection:
                    asked.append(len(connection.recv(65536)))
                    connection.sendall(request.param)

    threading.Thread(target=answer, daemon=True).start()
    yield f"http://127.0.0.1:{listener.getsockname()[1]}/x", asked
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()


@pytest.mark.parametrize(("odd", "why"), ODD_ANSWERS, indirect=["odd"])
def test_a_request_is_repeated_after_an_odd_answer(odd: tuple[str, list[int]], why: str) -> None:
    url, asked = odd
    with pytest.raises(writer.WriteError, match=why):
        writer.fetch(url, pause=0.0, tries=3)
    assert len(asked) == 3


@pytest.mark.parametrize("odd", [answer for answer, _ in ODD_ANSWERS[:2]], indirect=True)
def test_a_report_is_sent_again_after_an_odd_answer(
    odd: tuple[str, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer.time, "sleep", lambda seconds: None)
    url, asked = odd
    assert writer.report(url, {"status": "begun"}) is False
    assert len(asked) == writer.TRIES


def test_an_image_that_does_not_come_whole_in_time_leaves_a_disk_that_does_not_boot(
    server: Server, machine: Path
) -> None:
    given = order(server)
    given["image"]["timeout_s"] = 1e-9
    with pytest.raises(writer.WriteError, match="of 4 blocks came within 1e-09 s"):
        carry_out(given, machine)
    assert not (machine / "dev/sda").read_bytes()[:BLOCK].strip(b"\0")


@pytest.mark.parametrize("number", [0, 2, 3])
def test_a_damaged_image_never_becomes_a_disk_that_boots(server: Server, machine: Path, number: int) -> None:
    at = number * BLOCK + 100
    server.image = IMAGE[:at] + bytes([IMAGE[at] ^ 1]) + IMAGE[at + 1 :]
    with pytest.raises(writer.WriteError, match=f"block {number} is damaged on the server"):
        carry_out(order(server), machine)
    assert not (machine / "dev/sda").read_bytes()[:BLOCK].strip(b"\0")


def test_a_power_cut_at_any_block_leaves_a_disk_that_does_not_boot(server: Server, machine: Path) -> None:
    class PowerCut(BaseException):
        pass

    for last in range(1, 4):

        def progress(done: int, of: int, last: int = last) -> None:
            if done == last:
                raise PowerCut

        with pytest.raises(PowerCut):
            writer.carry_out(order(server), found(machine), "M1", (), progress, pause=0.0)
        assert not (machine / "dev/sda").read_bytes()[:BLOCK].strip(b"\0")
    # The next attempt writes the whole image.
    carry_out(order(server), machine)
    assert (machine / "dev/sda").read_bytes()[: len(IMAGE)] == IMAGE


SEED = {"meta-data": "instance-id: one\n", "user-data": "#cloud-config\n{}\n"}


def seeded(server: Server, root: dict[str, int] | None, seed: Any = SEED) -> dict[str, Any]:
    given = order(server, seed=seed)
    given["image"]["root"] = root
    return given


def test_the_new_system_gets_its_identity_before_its_disk_can_boot(server: Server, machine: Path) -> None:
    seen = []

    def settle(path: str, image: dict[str, Any], seed: dict[str, str]) -> list[str]:
        disk = Path(path).read_bytes()
        # The whole image except the first block is on the disk.
        seen.append((path, seed, disk[:BLOCK].strip(b"\0"), disk[BLOCK : len(IMAGE)] == IMAGE[BLOCK:]))
        return ["ssh-ed25519 AAAA"]

    given = seeded(server, {"begin": BLOCK, "bytes": BLOCK})
    _, keys = writer.carry_out(
        given, found(machine), "M1", (), lambda done, of: None, pause=0.0, settle=settle
    )
    assert keys == ["ssh-ed25519 AAAA"]
    assert seen == [(str(machine / "dev/sda"), SEED, b"", True)]
    assert (machine / "dev/sda").read_bytes()[: len(IMAGE)] == IMAGE


@pytest.mark.parametrize(
    ("root", "seed", "why"),
    [
        (None, SEED, "names no root partition"),
        ({"begin": BLOCK - 1, "bytes": 1}, SEED, "names no root partition"),
        ({"begin": BLOCK, "bytes": len(IMAGE)}, SEED, "reaches beyond the image"),
        ({"begin": BLOCK, "bytes": BLOCK}, {"../passwd": "x"}, "not made of small files"),
        ({"begin": BLOCK, "bytes": BLOCK}, {"meta-data": 1}, "not made of small files"),
        ({"begin": BLOCK, "bytes": BLOCK}, ["meta-data"], "not made of small files"),
        ({"begin": BLOCK, "bytes": BLOCK}, {"meta-data": "\ud800"}, "not made of small files"),
    ],
)
def test_a_seed_without_a_valid_place_or_content_is_refused_before_anything_is_written(
    server: Server, machine: Path, root: Any, seed: Any, why: str
) -> None:
    before = content(machine)
    with pytest.raises(writer.RefusedError, match=why):
        carry_out(seeded(server, root, seed), machine)
    assert content(machine) == before


@pytest.mark.parametrize("broken", ["mount", "chroot", "umount"])
def test_a_system_that_cannot_be_given_its_identity_never_boots(
    server: Server, machine: Path, broken: str
) -> None:
    def call(words: list[str], **_: Any) -> None:
        if words[0] == broken:
            raise subprocess.CalledProcessError(32, words, "first\nit is broken")

    def settle(path: str, image: dict[str, Any], seed: dict[str, str]) -> Any:
        return writer.settle_in(path, image, seed, call)

    given = seeded(server, {"begin": BLOCK, "bytes": BLOCK})
    with pytest.raises((writer.WriteError, OSError)):
        writer.carry_out(given, found(machine), "M1", (), lambda done, of: None, pause=0.0, settle=settle)
    assert not (machine / "dev/sda").read_bytes()[:BLOCK].strip(b"\0")


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (FileNotFoundError(2, "No such file or directory", "mount"), "could not be given its identity"),
        (OSError(28, "No space left on device"), "could not be given its identity"),
        (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"), "could not be given its identity"),
        (subprocess.CalledProcessError(32, ["umount"], "umount: target is busy"), "umount: target is busy"),
    ],
)
@pytest.mark.parametrize("program", ["mount", "chroot", "umount"])
def test_an_error_of_the_new_system_blames_no_disk_and_is_no_refusal(
    server: Server,
    keys: Keys,
    machine: Path,
    monkeypatch: pytest.MonkeyPatch,
    program: str,
    error: Any,
    why: str,
) -> None:
    # The disk was written, so it no longer boots: this is a failure, whatever the error.
    def call(words: list[str], **_: Any) -> None:
        if words[0] == program:
            raise error

    monkeypatch.setattr(writer.settle_in, "__defaults__", (call,))
    image = order(server)["image"] | {"root": {"begin": BLOCK, "bytes": BLOCK}}
    serve(server, keys, seed=SEED, image=image)
    assert write_as_ordered(server, keys, machine, monkeypatch) == writer.FAILED
    assert server.reports[-1]["status"] == "failed"
    assert why in server.reports[-1]["reason"]
    assert "the disk is bad" not in server.reports[-1]["reason"]
    assert not (machine / "dev/sda").read_bytes()[:BLOCK].strip(b"\0")


@pytest.mark.parametrize(
    ("error", "bad"),
    [
        (OSError(5, "Input/output error"), True),
        (OSError(28, "No space left on device"), True),
        (OSError(6, "No such device or address"), True),
        (OSError(12, "Cannot allocate memory"), False),
        (ValueError("of a kind that no one expected"), False),
    ],
)
def test_a_disk_is_called_bad_only_for_errors_of_disks(
    server: Server, machine: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, bad: bool
) -> None:
    def pwrite(*_: Any) -> int:
        raise error

    monkeypatch.setattr(writer.os, "pwrite", pwrite)
    with pytest.raises(writer.WriteError) as failed:
        carry_out(order(server), machine)
    assert ("the disk is bad" in str(failed.value)) is bad


@pytest.mark.parametrize("name", ["sda", "sdb", "nvme0n1"])
def test_a_disk_that_cannot_be_opened_is_refused_before_anything_is_written(
    server: Server, machine: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    real, before = os.open, content(machine)

    def busy(path: Any, *given: Any, **more: Any) -> int:
        if path == str(machine / "dev" / name):
            raise OSError(16, "Device or resource busy")
        return real(path, *given, **more)

    monkeypatch.setattr(writer.os, "open", busy)
    begun: list[int] = []
    with pytest.raises(writer.RefusedError, match=f"{name} cannot be opened: Device or resource busy"):
        writer.carry_out(
            order(server, wipe=[{"serial": "D2"}, {"serial": "D3"}]),
            found(machine),
            "M1",
            (),
            lambda done, of: None,
            pause=0.0,
            begin=lambda: begun.append(1),
        )
    monkeypatch.undo()
    assert (content(machine), begun) == (before, [])


def test_a_disk_may_be_named_twice(server: Server, machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, opened = os.open, []

    def once(path: Any, *given: Any, **more: Any) -> int:
        if str(path).startswith(str(machine / "dev")):
            if path in opened:
                raise OSError(16, "Device or resource busy")
            opened.append(path)
        return real(path, *given, **more)

    monkeypatch.setattr(writer.os, "open", once)
    names = [
        {"serial": "D2"},
        {"path": str(machine / "dev/sdb")},
        {"path": str(machine / "dev/disk/by-id/ata-D2")},
    ]
    carry_out(order(server, wipe=names), machine)
    assert opened == [str(machine / "dev/sda"), str(machine / "dev/sdb")]


def test_ends_that_are_not_emptied_are_reported(
    server: Server, machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The kernel may write only a part at once. A disk may also drop what is written.
    real = os.pwrite
    monkeypatch.setattr(writer.os, "pwrite", lambda handle, data, at: real(handle, data[:10000], at))
    carry_out(order(server, wipe=[{"serial": "D2"}]), machine)
    assert (machine / "dev/sda").read_bytes()[: len(IMAGE)] == IMAGE
    wiped = (machine / "dev/sdb").read_bytes()
    assert not (wiped[:BLOCK] + wiped[-BLOCK:]).strip(b"\0")
    (machine / "dev/sdb").write_bytes(b"data" * (5 * BLOCK // 4))
    drops = next(disk for disk in found(machine) if disk["path"].endswith("sdb"))
    monkeypatch.setattr(writer.os, "pwrite", lambda handle, data, at: len(data))
    handle = os.open(drops["path"], os.O_RDWR)
    with pytest.raises(writer.WriteError, match="sdb was not emptied"):
        writer.empty(handle, drops)
    os.close(handle)


def test_only_the_public_halves_of_host_keys_are_reported(tmp_path: Path) -> None:
    """A folder imitates the mounted system, and the fake chroot writes a key pair."""
    called = []

    def call(words: list[str], **_: Any) -> None:
        called.append(words)
        if words[0] == "chroot":
            keys = Path(words[1]) / "etc/ssh"
            keys.mkdir(parents=True)
            (keys / "ssh_host_rsa_key").write_text("SECRET")
            (keys / "ssh_host_rsa_key.pub").write_text("ssh-rsa AAAA root@ramdisk\n")
            seed = Path(words[1]) / "var/lib/cloud/seed/nocloud"
            assert {path.name: path.read_text() for path in seed.iterdir()} == SEED
        if words[0] == "umount":
            shutil.rmtree(words[1])
            Path(words[1]).mkdir()

    image = {"root": {"begin": 3 * BLOCK, "bytes": 2 * BLOCK}}
    assert writer.settle_in("/dev/sda", image, SEED, call) == ["ssh-rsa AAAA"]
    assert called[0][:3] == ["mount", "-o", f"loop,noatime,offset={3 * BLOCK},sizelimit={2 * BLOCK}"]
    assert [words[0] for words in called] == ["mount", "chroot", "umount"]


def test_a_disk_that_reads_back_other_data_is_reported(
    server: Server, machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.pread
    monkeypatch.setattr(writer.os, "pread", lambda handle, size, at: bytes(len(real(handle, size, at))))
    with pytest.raises(writer.WriteError, match="differs from what was written: the disk is bad"):
        carry_out(order(server), machine)


class Keys:
    """The controller's private key with its public half, and an attacker's private key."""

    def __init__(self, folder: Path) -> None:
        self.public, self.private = folder / "order.pem", folder / "key.pem"
        self.other = folder / "other.pem"
        for path in (self.other, self.private):
            key = Ed25519PrivateKey.generate()
            pem = serialization.Encoding.PEM
            path.touch(0o600)
            path.write_bytes(
                key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
            )
            self.public.write_bytes(
                key.public_key().public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo)
            )


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    return Keys(tmp_path)


def serve(server: Server, keys: Keys, **changed: Any) -> None:
    """Serve an order, and sign it for each request, as the playbook does."""
    server.order = json.dumps(order(server, **changed)).encode()
    server.sign = lambda asked: sign_order(server.order.decode(), json.dumps(asked), keys.private)


def write_as_ordered(
    server: Server, keys: Keys, machine: Path, monkeypatch: pytest.MonkeyPatch, serial: str = "M1"
) -> int:
    """Run the program on a machine with three disks."""
    real = writer.text
    monkeypatch.setattr(writer, "text", lambda path: serial if "product_serial" in path else real(path))
    disks = found(machine)
    monkeypatch.setattr(writer, "disks", lambda: disks)
    monkeypatch.setattr(writer, "mounts", list)
    monkeypatch.setattr(writer.time, "sleep", lambda seconds: None)
    monkeypatch.setattr(writer.wait_for_signature, "__defaults__", (0.2, 0.0))
    return int(writer.main([f"{server.url}/write.json", "--key", str(keys.public)]))


def test_a_signed_order_is_carried_out(
    server: Server, keys: Keys, machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve(server, keys)
    assert write_as_ordered(server, keys, machine, monkeypatch) == 0
    assert (machine / "dev/sda").read_bytes()[: len(IMAGE)] == IMAGE
    assert [one["status"] for one in server.reports] == ["asked", "begun", "written"]
    # The next boot draws another nonce.
    assert writer.main([f"{server.url}/write.json", "--key", str(keys.public)]) == 0
    assert server.reports[0]["nonce"] != server.reports[3]["nonce"]


def replaced(signature: str, at: int) -> str:
    data = bytearray(base64.b64decode(signature))
    data[at] ^= 1
    return base64.b64encode(data).decode()


# Answers to the request for a signature that must not be accepted, with the reason that is reported.
NOT_SIGNED = "not signed by this site's controller for this boot"
FORGERIES: dict[str, tuple[Callable[[Server, Keys, dict[str, Any]], str | None], str]] = {
    "none": (lambda server, keys, asked: None, "did not sign the order"),
    "empty": (lambda server, keys, asked: "", NOT_SIGNED),
    "no base64": (lambda server, keys, asked: "%%%", "cannot be checked"),
    "changed": (
        lambda server, keys, asked: replaced(sign(server, asked, keys.private), 3),
        NOT_SIGNED,
    ),
    "truncated": (
        lambda server, keys, asked: sign(server, asked, keys.private)[:60],
        NOT_SIGNED,
    ),
    "too long": (
        lambda server, keys, asked: base64.b64encode(
            base64.b64decode(sign(server, asked, keys.private)) + b"x"
        ).decode(),
        NOT_SIGNED,
    ),
    "of another key": (lambda server, keys, asked: sign(server, asked, keys.other), NOT_SIGNED),
    "of an earlier boot": (
        lambda server, keys, asked: sign(server, asked | {"nonce": "0" * 32}, keys.private),
        NOT_SIGNED,
    ),
    "of another order": (
        lambda server, keys, asked: sign_order("{}", json.dumps(asked), keys.private),
        NOT_SIGNED,
    ),
    "of the order alone": (
        lambda server, keys, asked: base64.b64encode(
            serialization.load_pem_private_key(keys.private.read_bytes(), None).sign(  # type: ignore[union-attr, call-arg]
                server.order
            )
        ).decode(),
        NOT_SIGNED,
    ),
}


def sign(server: Server, asked: dict[str, Any], key: Path) -> str:
    return sign_order(server.order.decode(), json.dumps(asked), key)


@pytest.mark.parametrize("forgery", FORGERIES)
def test_without_a_signature_for_this_boot_no_byte_is_written(
    server: Server, keys: Keys, machine: Path, monkeypatch: pytest.MonkeyPatch, forgery: str
) -> None:
    before = content(machine)
    serve(server, keys)
    forge, why = FORGERIES[forgery]
    server.sign = lambda asked: forge(server, keys, asked)
    assert write_as_ordered(server, keys, machine, monkeypatch) == writer.REFUSED
    assert content(machine) == before
    assert server.asked == []
    assert [one["status"] for one in server.reports] == ["asked", "refused"]
    assert why in server.reports[-1]["reason"]


def digest_changed(given: dict[str, Any]) -> None:
    given["image"]["blocks"][2] = "a" * 64


@pytest.mark.parametrize(
    "change",
    [
        lambda given: given.update(disk={"serial": "D2"}),
        lambda given: given.update(wipe=[{"serial": "D2"}]),
        lambda given: given.update(serial="M2"),
        lambda given: given.update(seed=SEED),
        lambda given: given["image"].update(url="http://192.0.2.9/image"),
        digest_changed,
        lambda given: given.update(more=1),
    ],
    ids=["disk", "wipe", "serial", "seed", "url", "digest", "more"],
)
def test_an_order_that_was_changed_after_it_was_signed_is_refused(
    server: Server,
    keys: Keys,
    machine: Path,
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[dict[str, Any]], None],
) -> None:
    before = content(machine)
    serve(server, keys)
    genuine = server.order.decode()
    given = json.loads(genuine)
    change(given)
    server.order = json.dumps(given).encode()
    server.sign = lambda asked: sign_order(genuine, json.dumps(asked), keys.private)
    assert write_as_ordered(server, keys, machine, monkeypatch) == writer.REFUSED
    assert content(machine) == before
    assert NOT_SIGNED in server.reports[-1]["reason"]


def test_a_signed_order_of_another_machine_writes_nothing_and_nothing_has_begun(
    server: Server, keys: Keys, machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = content(machine)
    serve(server, keys, serial="nobody-has-this")
    assert write_as_ordered(server, keys, machine, monkeypatch) == writer.REFUSED
    assert content(machine) == before
    assert [one["status"] for one in server.reports] == ["asked", "refused"]
    assert server.reports[0]["node"] == "n1"
    assert "the order is for nobody-has-this" in server.reports[-1]["reason"]


def test_a_changed_block_of_a_signed_image_never_boots(
    server: Server, keys: Keys, machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve(server, keys)
    server.image = IMAGE[:100] + bytes([IMAGE[100] ^ 1]) + IMAGE[101:]
    assert write_as_ordered(server, keys, machine, monkeypatch) == writer.FAILED
    assert not (machine / "dev/sda").read_bytes()[:BLOCK].strip(b"\0")
    assert "block 0 is damaged" in server.reports[-1]["reason"]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff\xfe",
        b"[]",
        b"{}",
        b"[" * 100000,
        b'{"node": "n1", "report": 5}',
        b'{"node": ["n1"], "report": "http://127.0.0.1:1/"}',
    ],
)
def test_an_answer_that_is_no_order_is_refused(
    server: Server, keys: Keys, machine: Path, monkeypatch: pytest.MonkeyPatch, data: bytes
) -> None:
    before = content(machine)
    server.order = data
    assert write_as_ordered(server, keys, machine, monkeypatch) == writer.REFUSED
    assert content(machine) == before
    assert server.reports == []


@pytest.mark.parametrize("lost", ["openssl", "key"])
def test_a_ramdisk_that_cannot_check_signatures_writes_nothing(
    server: Server, keys: Keys, machine: Path, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    before = content(machine)
    serve(server, keys)
    if lost == "openssl":
        monkeypatch.setenv("PATH", str(machine))
    else:
        keys.public.unlink()
    assert write_as_ordered(server, keys, machine, monkeypatch) == writer.REFUSED
    assert content(machine) == before


def test_the_signature_may_come_late(
    server: Server, keys: Keys, machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve(server, keys)
    genuine, waited = server.sign, []

    def late(asked: dict[str, Any]) -> str | None:
        waited.append(asked)
        return genuine(asked) if len(waited) > 3 else None

    server.sign = late
    monkeypatch.setattr(writer.time, "monotonic", lambda: 0.0)
    assert write_as_ordered(server, keys, machine, monkeypatch) == 0
    assert len(waited) == 4


def test_the_program_as_it_is_started_refuses_without_a_key(server: Server, tmp_path: Path) -> None:
    server.order = json.dumps(order(server)).encode()
    server.sign = lambda asked: "AAAA"
    words = [PROGRAM, "--key", tmp_path / "none", "--", f"{server.url}/write.json"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == writer.REFUSED
    assert NOT_SIGNED in done.stdout


@pytest.fixture
def identity(machine: Path) -> dict[str, Any]:
    """Return the boot report of a machine with three disks, a card reader, and four network interfaces."""
    sysfs = machine / "sys"
    dmi = {"product_serial": "M1", "sys_vendor": "ACME", "product_name": "G8", "product_uuid": "u-1"}
    (sysfs / "class/dmi/id").mkdir(parents=True)
    for name, value in dmi.items():
        (sysfs / "class/dmi/id" / name).write_text(f"{value} \n")
    reader = sysfs / "block/sdc"
    reader.mkdir()
    (reader / "size").write_text("0")
    (sysfs / "block/sdb/removable").write_text("1")
    paths = machine / "dev/disk/by-path"
    paths.mkdir()
    (paths / "pci-1").symlink_to("../../sda")
    for name, address, carrier in (
        ("eth0", "52:54:00:AA:00:01", "1"),
        ("eth1", "52:54:00:aa:00:02", "0"),
        # This interface is down, so its link cannot be read.
        ("eth2", "52:54:00:aa:00:03", None),
        ("lo", "00:00:00:00:00:00", "1"),
        ("ib0", ":".join(["80"] * 20), "1"),
    ):
        folder = sysfs / "class/net" / name
        folder.mkdir(parents=True)
        (folder / "address").write_text(f"{address}\n")
        if carrier:
            (folder / "carrier").write_text(f"{carrier}\n")
    return dict(writer.about(str(sysfs), found(machine)))


def test_a_boot_report_has_firmware_interfaces_and_disks(identity: dict[str, Any], machine: Path) -> None:
    disks = identity.pop("disks")
    assert identity == {
        "serial": "M1",
        "manufacturer": "ACME",
        "model": "G8",
        "uuid": "u-1",
        "macs": {"52:54:00:aa:00:01": True, "52:54:00:aa:00:02": False, "52:54:00:aa:00:03": None},
    }
    dev = machine / "dev"
    assert disks == [
        {"serial": "D3", "bytes": BLOCK, "path": str(dev / "nvme0n1"), "by_path": ""},
        {
            "serial": "D1",
            "bytes": 5 * BLOCK,
            "path": str(dev / "sda"),
            "by_path": str(dev / "disk/by-path/pci-1"),
        },
    ]


def test_the_boot_report_of_many_disks_is_no_larger_than_the_server_takes(tmp_path: Path) -> None:
    one = {"serial": "S" * 40, "bytes": 1, "path": "/dev/sda", "removable": False}
    one["names"] = [f"/dev/disk/by-path/{'p' * 100}"]
    report = writer.about(str(tmp_path), [one] * 500)
    assert len(report["disks"]) == writer.MOST_REPORTED
    assert len(json.dumps(report)) < 60000


# A program that runs another one and prints Python's audit events of writing, running and removing.
WATCHED = """
import os, runpy, sys
def watch(event, args):
    if event == "open":
        path, mode, flags = args
        writes = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
        if (flags or 0) & writes or set(mode or "") & set("wax+"):
            print("WROTE", path, mode, flags)
    elif event.split(".")[0] in ("subprocess", "shutil", "tempfile") or event in (
        "os.system", "os.exec", "os.fork", "os.posix_spawn",
        "os.remove", "os.rename", "os.mkdir", "os.truncate",
    ):
        print("WROTE", event, args)
sys.dont_write_bytecode = True
sys.addaudithook(watch)
program, sys.argv = sys.argv[1], sys.argv[1:]
runpy.run_path(program, run_name="__main__")
"""


def test_a_boot_report_opens_nothing_for_writing_and_runs_nothing(server: Server, tmp_path: Path) -> None:
    # First check that the watch sees writes and processes.
    (tmp_path / "x.py").write_text(
        "import os\nos.open(os.devnull, os.O_RDWR)\nopen(os.devnull, 'w')\nos.system('true')"
    )
    seen = subprocess.run(
        [sys.executable, "-c", WATCHED, tmp_path / "x.py"], capture_output=True, text=True, check=True
    )
    assert seen.stdout.count("WROTE") == 3
    words = [PROGRAM, "--report", f"{server.url}/boot-reports/attempt/", "52:54:00:AA:00:01"]
    done = subprocess.run(
        [sys.executable, "-c", WATCHED, *words], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "WROTE" not in done.stdout
    assert server.places == ["/boot-reports/attempt/52-54-00-aa-00-01.json"]
    (report,) = server.reports
    assert set(report) == {"serial", "manufacturer", "model", "uuid", "macs", "disks"}
    # It requested no image.
    assert server.asked == []


def test_an_unexpected_error_of_the_program_is_reported_as_a_failure(
    server: Server, keys: Keys, machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def breaks(*given: Any, **more: Any) -> None:
        raise NameError("name 'FILLER' is not defined")

    monkeypatch.setattr(writer, "carry_out", breaks)
    serve(server, keys)
    assert write_as_ordered(server, keys, machine, monkeypatch) == writer.FAILED
    assert [one["status"] for one in server.reports] == ["asked", "failed"]
    assert "NameError" in server.reports[-1]["reason"]


@pytest.mark.parametrize(("status", "ends", "tries"), [(412, 0, 1), (409, 2, 1), (403, 2, 5), (500, 2, 5)])
def test_a_second_boot_report_succeeds_and_without_a_server_the_machine_stays_on(
    server: Server, monkeypatch: pytest.MonkeyPatch, status: int, ends: int, tries: int
) -> None:
    monkeypatch.setattr(writer.time, "sleep", lambda seconds: None)
    server.answers = status
    assert writer.main(["--report", f"{server.url}/boot-reports/attempt", "52:54:00:aa:00:01"]) == ends
    assert len(server.reports) == tries


def test_a_report_needs_a_mac_address_and_an_order_takes_none(server: Server) -> None:
    server.order = json.dumps(order(server)).encode()
    for words in (["--report"], [f"{server.url}/write.json", "x"], ["--report", f"{server.url}/write.json"]):
        done = subprocess.run([PROGRAM, *words], capture_output=True, text=True, check=False)
        assert done.returncode == 2
    assert server.reports == []
