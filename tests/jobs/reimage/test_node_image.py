"""Test roles/node_image/files/rackproof-build-image, which builds the nodes' image and the writing ramdisk.

The tests call its functions without building an image. They check that a wrong list is refused, the
partitions and the boot loader, files of the site, the digest of the inputs (which decides whether to build
again), the ramdisk's start script, and the signed file for Secure Boot.
"""

from __future__ import annotations

import argparse
import importlib.machinery
import importlib.util
import json
import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from rackproof.jobs.reimage.images import BLOCK_BYTES, describe_image

ROOT = Path(__file__).resolve().parents[3]
PROGRAM = ROOT / "roles/node_image/files/rackproof-build-image"
MIB = 2**20
# The list of an image, as the role writes it.
WANTED: dict[str, Any] = {
    "suite": "bookworm",
    "architecture": "amd64",
    "sources": ["deb http://mirror.example bookworm main"],
    "packages": ["systemd-sysv"],
    "ramdisk_packages": ["busybox"],
    "kernel": "linux-image-amd64",
    "epoch": 1735689600,
    "size_mib": 1024,
}


# Made-up keys, with which orders for nodes are signed.
PUBLIC = "-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n"
PRIVATE = "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"  # canary, made up


def load() -> ModuleType:
    loader = importlib.machinery.SourceFileLoader("rackproof_build_image", str(PROGRAM))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


builder = load()


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"suite": " "}, "suite is empty"),
        ({"kernel": None}, "kernel is empty"),
        ({"sources": None}, "sources is not a list"),
        ({"packages": "systemd"}, "packages lists nothing"),
        ({"epoch": 0}, "epoch has to be a positive number"),
        ({"size_mib": 200}, "200 MiB are too small for a system"),
        ({"architecture": "arm64"}, "only amd64 is built"),
    ],
)
def test_a_list_that_cannot_be_built_is_refused_before_anything_is_made(
    tmp_path: Path, changed: dict[str, Any], why: str
) -> None:
    (tmp_path / "wanted.json").write_text(json.dumps(WANTED | changed))
    done = subprocess.run(
        [
            sys.executable,
            PROGRAM,
            tmp_path / "wanted.json",
            tmp_path / "out",
            f"--writer={PROGRAM}",
            "--order-key=none",
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert why in done.stderr
    assert not (tmp_path / "out").exists()


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    if not (shutil.which("sfdisk") or Path("/usr/sbin/sfdisk").exists()):
        pytest.skip("sfdisk is not installed")
    path = tmp_path / "disk.raw"
    with path.open("wb") as stream:
        stream.truncate(WANTED["size_mib"] * MIB)
    builder.run("sfdisk", "--quiet", path, input=builder.table(WANTED))
    return path


def test_a_description_names_the_root_partition_that_the_builder_made(disk: Path) -> None:
    root = describe_image(disk).root
    assert root is not None
    assert root.begin == builder.ROOT_AT
    assert root.begin + root.bytes == WANTED["size_mib"] * MIB - builder.TAIL
    # The first block, which is written last, has only the partition table and the boot loader.
    assert builder.BIOS_AT + builder.BIOS_SIZE <= BLOCK_BYTES <= min(builder.ESP_AT, builder.ROOT_AT)


def test_a_disk_without_a_table_or_without_linux_has_no_root(disk: Path, tmp_path: Path) -> None:
    data = bytearray(disk.read_bytes()[: 2 * BLOCK_BYTES])
    assert describe_image(disk).root is not None
    for at, value in ((512, b"NO PART!"), (512 + 84, struct.pack("<I", 0)), (512 + 80, struct.pack("<I", 0))):
        broken = bytes(data[:at]) + value + bytes(data[at + len(value) :])
        (tmp_path / "broken").write_bytes(broken)
        assert describe_image(tmp_path / "broken").root is None


def test_an_equal_list_gives_an_equal_partition_table_and_another_list_does_not(disk: Path) -> None:
    assert builder.table(WANTED) == builder.table(json.loads(json.dumps(WANTED)))
    assert builder.table(WANTED) != builder.table(WANTED | {"packages": ["vim"]})


def test_the_boot_loader_gets_the_positions_of_its_parts() -> None:
    first, core = bytearray(512), bytearray(2048)
    struct.pack_into("<Q", first, 0x5C, 1)
    struct.pack_into("<Q", core, 0x1F4, 2)
    code, rest = builder.settled(bytes(first), bytes(core))
    at = builder.BIOS_AT // 512
    assert len(code) == 440  # the partition table's own bytes follow
    assert struct.unpack_from("<Q", code, 0x5C) == (at,)
    assert struct.unpack_from("<Q", rest, 0x1F4) == (at + 1,)
    with pytest.raises(builder.BuildError, match="unknown layout"):
        builder.settled(bytes(512), bytes(core))
    with pytest.raises(builder.BuildError, match="does not fit"):
        builder.settled(bytes(first), bytes(builder.BIOS_SIZE + 1))


def test_copying_keeps_the_holes_of_a_sparse_file(tmp_path: Path) -> None:
    part, whole = tmp_path / "part", tmp_path / "whole"
    part.write_bytes(b"a" * MIB + bytes(8 * MIB) + b"b" * 10)
    with whole.open("wb") as stream:
        stream.truncate(16 * MIB)
    builder.copy_into(str(part), str(whole), 2 * MIB)
    assert whole.read_bytes()[2 * MIB : 11 * MIB + 10] == part.read_bytes()
    assert whole.stat().st_blocks * 512 < 4 * MIB


def test_all_files_get_the_time_of_the_epoch(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "b/file").write_text("")
    (tmp_path / "a").symlink_to("nowhere")
    assert builder.same_times(str(tmp_path), 1000) == ["a", "b", "b/file"]
    assert {path.lstat().st_mtime for path in tmp_path.rglob("*")} == {1000}


def test_an_image_counts_as_built_only_if_its_files_are_complete(tmp_path: Path) -> None:
    assert builder.inputs_of_built(str(tmp_path)) == ""
    (tmp_path / "disk.raw").write_bytes(b"1234")
    (tmp_path / "built.json").write_text(
        json.dumps({"wanted": "w", "files": {"disk.raw": {"bytes": 4, "sha256": ""}}})
    )
    assert builder.inputs_of_built(str(tmp_path)) == "w"
    (tmp_path / "disk.raw").write_bytes(b"123")
    assert builder.inputs_of_built(str(tmp_path)) == ""


@pytest.mark.parametrize("last", ["disk.raw", "vmlinuz", "ramdisk", "built.json"])
def test_a_build_that_is_interrupted_leaves_no_image_that_counts_as_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, last: str
) -> None:
    # The files of the new image have the same sizes as those of the old one.
    def write(*given: Any) -> list[str]:
        for path in map(str, given):
            if path.endswith(("disk.raw", "vmlinuz", "ramdisk")):
                Path(path).write_bytes(os.urandom(8))
        return []

    monkeypatch.setattr(builder, "image", write)
    monkeypatch.setattr(builder, "ramdisk", write)
    builder.build({}, "old", str(tmp_path), "writer", "key", "")
    assert builder.inputs_of_built(str(tmp_path)) == "old"
    real = os.replace

    def replace(path: str, target: str) -> None:
        if target.endswith(last):
            raise KeyboardInterrupt
        real(path, target)

    monkeypatch.setattr(builder.os, "replace", replace)
    with pytest.raises(KeyboardInterrupt):
        builder.build({}, "new", str(tmp_path), "writer", "key", "")
    assert builder.inputs_of_built(str(tmp_path)) == ""
    monkeypatch.setattr(builder.os, "replace", real)
    builder.build({}, "new", str(tmp_path), "writer", "key", "")
    assert builder.inputs_of_built(str(tmp_path)) == "new"


@pytest.fixture
def overlay(tmp_path: Path) -> Path:
    folder = tmp_path / "overlay"
    (folder / "etc/site").mkdir(parents=True)
    (folder / "lib/systemd").mkdir(parents=True)
    (folder / "etc/site/program").write_text("#!/bin/sh\n")
    (folder / "etc/site/program").chmod(0o700)
    (folder / "etc/site.conf").write_text("of the site\n")
    (folder / "lib/systemd/unit").write_text("")
    (folder / "etc/masked").symlink_to("/dev/null")
    return folder


def test_files_of_the_site_replace_those_of_packages(overlay: Path, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "usr/lib").mkdir(parents=True)
    (tree / "etc").mkdir(mode=0o711)
    (tree / "lib").symlink_to("usr/lib")
    (tree / "etc/site.conf").symlink_to("elsewhere")
    builder.lay_over(str(tree), str(overlay))
    assert (tree / "etc/site.conf").read_text() == "of the site\n"
    assert not (tree / "etc/site.conf").is_symlink()
    assert (tree / "etc/masked").readlink() == Path("/dev/null")
    assert (tree / "usr/lib/systemd/unit").exists()
    assert [
        (tree / name).stat().st_mode & 0o777 for name in ("etc", "etc/site/program", "etc/site.conf")
    ] == [
        0o711,
        0o755,
        0o644,
    ]


def test_no_file_of_the_site_is_written_outside_of_the_image(overlay: Path, tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    (tmp_path / "outside").mkdir()
    (tmp_path / "tree/etc").symlink_to(tmp_path / "outside")
    with pytest.raises(builder.BuildError, match="leads out of it"):
        builder.lay_over(str(tmp_path / "tree"), str(overlay))
    assert not list((tmp_path / "outside").iterdir())


@pytest.mark.parametrize("change", ["content", "mode", "link", "gone"])
def test_changed_files_of_the_site_give_another_image(overlay: Path, change: str) -> None:
    before = builder.overlay_parts(str(overlay))
    assert builder.overlay_parts(str(overlay)) == before
    if change == "content":
        (overlay / "etc/site.conf").write_text("otherwise\n")
    elif change == "mode":
        (overlay / "etc/site.conf").chmod(0o755)
    elif change == "link":
        (overlay / "etc/masked").unlink()
        (overlay / "etc/masked").symlink_to("/dev/zero")
    else:
        (overlay / "lib/systemd/unit").unlink()
    assert builder.overlay_parts(str(overlay)) != before
    assert builder.overlay_parts("") == []


def test_a_folder_of_files_that_is_not_there_is_refused(tmp_path: Path) -> None:
    (tmp_path / "wanted.json").write_text(json.dumps(WANTED))
    (tmp_path / "key.pub").write_text(PUBLIC)
    words = [tmp_path / "wanted.json", tmp_path / "out", f"--writer={PROGRAM}", f"--overlay={tmp_path}/none"]
    words.append(f"--order-key={tmp_path}/key.pub")
    done = subprocess.run([sys.executable, PROGRAM, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "folder does not exist" in done.stderr
    assert not (tmp_path / "out").exists()


def test_another_key_for_orders_gives_another_ramdisk(tmp_path: Path) -> None:
    one, other = (
        builder.digest_of_inputs(WANTED, str(PROGRAM), key, "") for key in (PUBLIC, PUBLIC.replace("A", "B"))
    )
    assert one != other
    # The same list, program and key give the same digest.
    assert one == builder.digest_of_inputs(json.loads(json.dumps(WANTED)), str(PROGRAM), PUBLIC, "")


@pytest.mark.parametrize("text", ["", PRIVATE, PUBLIC + PRIVATE, "ssh-ed25519 AAAA"])
def test_only_a_public_key_is_accepted_for_the_ramdisk(tmp_path: Path, text: str) -> None:
    (tmp_path / "wanted.json").write_text(json.dumps(WANTED))
    (tmp_path / "key").write_text(text)
    words = [tmp_path / "wanted.json", tmp_path / "out", f"--writer={PROGRAM}", f"--order-key={tmp_path}/key"]
    done = subprocess.run([sys.executable, PROGRAM, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "no public key in PEM" in done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("rackproof.order=http://h/a quiet", "http://h/a"),
        ("quiet rackproof.order=http://h/a?b=c", "http://h/a?b=c"),
        # A greedy pattern would take the last one, or a part of another word.
        ("rackproof.order=http://h/a console=ttyS0 rackproof.order=http://evil/", "http://h/a"),
        ("x-rackproof.order=http://evil/ rackproof.order=http://h/a", "http://h/a"),
        ("rackproof-order=http://evil/ rackproof.order=*", "*"),
        ("rackproof.order", ""),
        ("", ""),
    ],
)
def test_the_ramdisk_reads_its_arguments_word_by_word(tmp_path: Path, line: str, value: str) -> None:
    (tmp_path / "cmdline").write_text(f"{line}\n")
    start, end = builder.INIT.index("argument() ("), builder.INIT.index("stay()")
    script = builder.INIT[start:end].replace("/proc/cmdline", str(tmp_path / "cmdline"))
    done = subprocess.run(
        ["sh", "-c", f"{script}\nargument rackproof.order; for one in {tmp_path}/*; do echo $one; done"],
        capture_output=True,
        text=True,
        check=True,
    )
    # The shell still expands patterns of file names afterwards.
    assert done.stdout == (f"{value}\n" if value else "") + f"{tmp_path}/cmdline\n"


# An output of objdump for the loader to which the signed file's parts are added.
OBJDUMP = """
/usr/lib/systemd/boot/efi/linuxx64.efi.stub:     file format pei-x86-64

Sections:
Idx Name          Size      VMA               LMA               File off  Algn
  0 .text         0000a1f0  0000000000005000  0000000000005000  00000400  2**4
                  CONTENTS, ALLOC, LOAD, READONLY, CODE
  1 .sdmagic      00000030  0000000000013000  0000000000013000  0000c000  2**2
                  CONTENTS, ALLOC, LOAD, READONLY, DATA
"""


def test_kernel_ramdisk_and_arguments_are_signed_as_one_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[list[str]] = []

    def run(*words: object, **_: Any) -> str:
        called.append([str(word) for word in words])
        return OBJDUMP

    monkeypatch.setattr(builder, "run", run)
    made = {name: str(tmp_path / name) for name in ("vmlinuz", "ramdisk", "boot.efi")}
    (tmp_path / "vmlinuz").write_bytes(b"k" * 5000)
    (tmp_path / "ramdisk").write_bytes(b"r" * 4096)
    given = {"arguments": "rackproof.server=http://h:1 quiet", "key": "k.pem", "certificate": "c.pem"}
    builder.signed_kernel(str(tmp_path), made, given)
    _, copied, signed = called
    places = {word.split("=")[0]: int(word.split("=")[1], 16) for word in copied if "=0x" in word}
    # The parts follow the existing ones, and each begins on its own page.
    assert sorted(places.values())[0] == 0x14000
    assert all(at % 4096 == 0 for at in places.values())
    assert places[".initrd"] - places[".linux"] == 8192 or places[".linux"] - places[".initrd"] == 4096
    assert {word.split("=")[0] for word in copied if "=/" in word} == {
        ".osrel",
        ".cmdline",
        ".linux",
        ".initrd",
    }
    assert (tmp_path / "section.cmdline").read_text() == given["arguments"]
    assert signed[:5] == ["sbsign", "--key", "k.pem", "--cert", "c.pem"]
    assert signed[-1] == copied[-1]
    assert signed[-2] == made["boot.efi"]


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"key": "k"}, "needs a key, a certificate"),
        ({"certificate": "c"}, "needs a key, a certificate"),
        ({"key": "k", "certificate": "c", "arguments": "quiet"}, "needs a key, a certificate"),
        ({"key": "k", "certificate": "c", "arguments": ""}, "needs a key, a certificate"),
    ],
)
def test_secure_boot_needs_all_of_its_parts(tmp_path: Path, given: dict[str, str], why: str) -> None:
    with pytest.raises(builder.BuildError, match=why):
        builder.secure_boot_of(secure_boot_options(**given))


def secure_boot_options(arguments: str = "", key: str = "", certificate: str = "") -> argparse.Namespace:
    return argparse.Namespace(
        boot_arguments=arguments, secure_boot_key=key, secure_boot_certificate=certificate
    )


def test_another_certificate_or_other_arguments_give_another_file(tmp_path: Path) -> None:
    assert builder.secure_boot_of(secure_boot_options("rackproof.server=http://h")) is None
    found = []
    for text, arguments in (("one", "a"), ("two", "a"), ("two", "b")):
        (tmp_path / "c.pem").write_text(text)
        options = secure_boot_options(f"rackproof.server=http://{arguments}", "k", str(tmp_path / "c.pem"))
        given = builder.secure_boot_of(options)
        found.append(builder.digest_of_inputs(WANTED, str(PROGRAM), PUBLIC, "", given))
    assert len(set(found)) == 3


# Fakes of the commands that the ramdisk's start script calls.
FAKES = """
ip() { :; }; sleep() { :; }
stay() { echo "stay: $1"; exit; }
busybox() {
  [ "$1" != udhcpc ] || return 0
  # timeout 30 busybox wget -q -O FILE URL
  shift 6; served=$FOLDER/served/${2##*/}
  [ -e "$served" ] && cp "$served" "$1"
}
"""


@pytest.mark.parametrize(
    ("served", "found"),
    [
        (
            {"52-54-00-00-00-02.ipxe": "kernel x rackproof.order=http://h/o rackproof.report=\n"},
            "eth1 52:54:00:00:00:02 http://h/o ",
        ),
        (
            {"report.ipxe": "kernel x rackproof.mac=${netX/mac} rackproof.report=http://h/r\n"},
            "eth1 52:54:00:00:00:02  http://h/r",
        ),
        # Other words of the boot script are ignored.
        (
            {"52-54-00-00-00-02.ipxe": "rackproof.mac=evil rackproof.order=http://h/$(id) rackproof.key=x"},
            "eth1 52:54:00:00:00:02 http://h/$(id) ",
        ),
        ({}, "stay: no network interface leads to http://h:8080, or it has nothing for this node"),
    ],
    ids=["order", "report", "hostile", "nothing"],
)
def test_a_ramdisk_that_secure_boot_started_finds_its_order_by_its_mac_address(
    tmp_path: Path, served: dict[str, str], found: str
) -> None:
    (tmp_path / "cmdline").write_text("rackproof.server=http://h:8080 console=ttyS0\n")
    for name, mac, carrier in (
        ("eth0", "52:54:00:00:00:01", "0"),
        ("eth1", "52:54:00:00:00:02", "1"),
        ("lo", "00:00:00:00:00:00", "1"),
    ):
        (tmp_path / "net" / name).mkdir(parents=True)
        (tmp_path / "net" / name / "address").write_text(f"{mac}\n")
        (tmp_path / "net" / name / "carrier").write_text(f"{carrier}\n")
    (tmp_path / "served").mkdir()
    for name, text in served.items():
        (tmp_path / "served" / name).write_text(text)
    init = builder.INIT
    script = init[init.index("argument() (") : init.index("stay()")] + FAKES
    script += init[init.index("lease()") : init.rindex('if [ -n "$report" ]')]
    for path, fake in (("/proc/cmdline", "cmdline"), ("/run/script", "script"), ("/sys/class/net", "net")):
        script = script.replace(path, f"{tmp_path}/{fake}")
    script = script.replace("/dev/console", str(tmp_path / "console"))
    script += '\necho "$interface $mac $order $report"'
    environment = {"FOLDER": str(tmp_path), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, env=environment, check=True)
    assert done.stdout.strip("\n") == found, done.stderr
