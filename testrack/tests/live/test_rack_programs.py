"""Test programs of the test rack: the wrapper of runc, the wrong clock, overlays of images, and faults."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import io
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from driver.faults import MACHINE, hardware_faults, silent_on_purpose
from driver.images import Entry, Overlay, folder_overlay, overlay_digest, overlay_tar


@pytest.fixture(scope="module")
def wrapper(root: Path) -> ModuleType:
    """Return the wrapper of runc (testrack/node/runc-rack) as a module."""
    loader = importlib.machinery.SourceFileLoader("runc_rack", str(root / "testrack/node/runc-rack"))
    spec = importlib.util.spec_from_loader("runc_rack", loader)
    assert spec
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def test_the_wrapper_takes_out_the_capability_and_nothing_else(wrapper: ModuleType) -> None:
    process = {
        "capabilities": {"bounding": ["CAP_CHOWN", "CAP_SYS_RESOURCE"], "ambient": None},
        "args": ["a"],
    }
    wrapper.lower(process)
    assert process == {"capabilities": {"bounding": ["CAP_CHOWN"], "ambient": []}, "args": ["a"]}


def test_the_wrapper_takes_out_limits_that_would_have_to_be_raised(
    wrapper: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wrapper.resource, "getrlimit", lambda _: (1024, 4096))
    limits: list[dict[str, Any]] = [
        {"type": "RLIMIT_NOFILE", "soft": 1024, "hard": 4096},
        {"type": "RLIMIT_NPROC", "soft": 1, "hard": 4097},
        {"type": "RLIMIT_MEMLOCK", "soft": -1, "hard": -1},
        {"type": "RLIMIT_OF_TOMORROW", "soft": 0, "hard": 0},
    ]
    process = {"rlimits": limits}
    wrapper.lower(process)
    assert [limit["type"] for limit in process["rlimits"]] == ["RLIMIT_NOFILE"]


@pytest.mark.parametrize(
    ("arguments", "value"),
    [
        (["--log", "x", "create", "--bundle", "/b", "id"], "/b"),
        (["create", "--bundle=/b", "id"], "/b"),
        (["run", "-b", "/b"], "/b"),
        (["run", "id"], None),
    ],
)
def test_the_wrapper_finds_the_bundle(wrapper: ModuleType, arguments: list[str], value: str | None) -> None:
    assert wrapper.value_of(arguments, "--bundle", "-b") == value


CLOCK = """
import threading, time
begun = time.monotonic()
time.sleep(0.2)
threading.Event().wait(0.2)
lock = threading.Lock(); lock.acquire(); lock.acquire(timeout=0.2)
print(time.time(), time.monotonic() - begun)
"""


@pytest.mark.parametrize("seconds", [-86400, 300])
def test_the_wrong_clock_is_wrong_by_that_much_and_waits_are_not(
    root: Path, tmp_path: Path, seconds: int
) -> None:
    source = (root / "testrack/node/clock.c").read_text()
    offset = tmp_path / "clock"
    offset.write_text(f"{seconds}\n")
    (tmp_path / "clock.c").write_text(source.replace("/etc/rack/clock", str(offset)))
    library = tmp_path / "clock.so"
    build = ["gcc", "-Wall", "-Wextra", "-Werror", "-O2", "-shared", "-fPIC", "-o", str(library)]
    subprocess.run([*build, str(tmp_path / "clock.c"), "-ldl"], check=True)
    begin = time.time()
    done = subprocess.run(
        [sys.executable, "-c", CLOCK],
        env={"LD_PRELOAD": str(library)},
        capture_output=True,
        text=True,
        check=True,
    )
    now, waited = map(float, done.stdout.split())
    assert begin < now - seconds < time.time()
    # If waits used the wrong clock, they would end at once, or ``seconds`` later.
    assert 0.6 <= waited < 300
    begin = time.time()
    date = subprocess.run(["date", "+%s"], env={"LD_PRELOAD": str(library)}, capture_output=True, check=True)
    assert begin - 1 < int(date.stdout) - seconds < time.time()


def test_an_overlay_becomes_a_tar_file(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "empty").mkdir()
    (tmp_path / "bin/tool").write_text("#!/bin/sh\n")
    (tmp_path / "bin/tool").chmod(0o700)
    (tmp_path / "plain").write_text("x")
    (tmp_path / "bin/link").symlink_to("tool")
    overlay: Overlay = folder_overlay(tmp_path, "/opt") | {"/etc/empty": Entry(mode=0o600)}
    with tarfile.open(fileobj=io.BytesIO(overlay_tar(overlay))) as archive:
        members = {one.name: one for one in archive.getmembers()}
    assert set(members) == {"opt/bin/tool", "opt/bin/link", "opt/plain", "opt/empty", "etc/empty"}
    assert members["opt/bin/tool"].mode == 0o755
    assert members["opt/plain"].mode == 0o644
    assert members["opt/bin/link"].linkname == "tool"
    assert members["opt/empty"].isdir()
    assert {one.uid for one in members.values()} == {0}


def test_an_images_name_follows_its_contents() -> None:
    one = {"/a": Entry(b"x")}
    assert overlay_digest(one) == overlay_digest({"/a": Entry(b"x")})
    others = [{"/a": Entry(b"y")}, {"/b": Entry(b"x")}, {"/a": Entry(b"x", 0o755)}, {"/a": Entry(link="x")}]
    assert len({overlay_digest(each) for each in [one, *others]}) == 5


def test_a_fault_has_one_home_and_a_line_in_the_document(root: Path) -> None:
    hardware = hardware_faults(root / "testrack")
    assert not set(hardware) & set(MACHINE)
    document = (root / "docs/extending/rack.md").read_text()
    for name in (*hardware, *MACHINE):
        assert f"| `{name}` |" in document, name


# Active faults, the state of the container, and whether `rack.py up` does not wait for the host's sshd.
@pytest.mark.parametrize(
    ("faults", "state", "silent"),
    [
        ({}, "running", False),
        ({"missing-gpu": {}}, "running", False),
        ({"dead-sshd": {}}, "running", True),
        ({"powered-off": {}}, "exited", True),
        ({"no-return": {}}, "running", False),
        ({"no-return": {}}, "exited", True),
    ],
)
def test_up_does_not_wait_for_hosts_that_are_silent_on_purpose(
    faults: dict[str, Any], state: str, silent: bool
) -> None:
    assert silent_on_purpose(faults, state) is silent
