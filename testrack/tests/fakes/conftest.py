"""Provide a node of fake hardware in a temporary folder to the tests of the fakes.

Tests call its tools, such as nvidia-smi or lspci, as `node("nvidia-smi -q")`. The tools run in the test's own
process, which is faster than a process for each call.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from testrack.tests.fakes.fake_paths import FAKES


@dataclass(frozen=True)
class Answer:
    """The exit status and the output of a tool."""

    rc: int
    out: str
    err: str

    @property
    def both(self) -> str:
        """Return standard output and standard error together."""
        return self.out + self.err


class Node:
    """A fake node. Its files are below a folder, and its tools are called in this process."""

    def __init__(self, root: Path, capture: pytest.CaptureFixture[str]) -> None:
        self.root = root
        self.capture = capture

    def __call__(self, command: str | list[str]) -> Answer:
        """Call a tool by its name."""
        from rackhardware.main import main

        words = command.split() if isinstance(command, str) else command
        self.capture.readouterr()
        with pytest.raises(SystemExit) as ended:
            main([f"/usr/bin/{words[0]}", *words[1:]])
        said = self.capture.readouterr()
        code = ended.value.code
        return Answer(code if isinstance(code, int) else 1, said.out, said.err)

    def ok(self, command: str | list[str]) -> str:
        """Call a tool that must succeed. Return its output."""
        answer = self(command)
        assert answer.rc == 0, f"{command}: {answer}"
        return answer.out

    def init(self, sku: str = "gb300", seed: str = "gb300-r01-n01") -> Node:
        """Make the hardware of a SKU, and boot."""
        self.ok(["hardware", "--init", sku, "--seed", seed])
        self.ok("hardware --boot")
        return self

    def install(self, name: str, version: str = "", depends: tuple[str, ...] = ()) -> None:
        """Install a kernel module, as the package of a driver does."""
        path = self.root / f"usr/lib/rack/modules/{name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"version": version, "depends": list(depends)}))

    def package(self, name: str, version: str) -> Node:
        """Record a package as installed in dpkg's database."""
        path = self.root / "var/lib/dpkg/status"
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as stream:
            stream.write(f"Package: {name}\nStatus: install ok installed\nVersion: {version}\n\n")
        return self

    def drive(self, version: str = "580.95.05") -> Node:
        """Install the kernel modules of the GPU driver, and load ``nvidia``."""
        self.install("nvidia", version)
        self.install("nvidia-uvm", version, ("nvidia",))
        self.install("nvidia-peermem", version, ("nvidia", "ib_core"))
        self.ok("modprobe nvidia")
        return self

    def runs(self, *daemons: str) -> Node:
        """Record daemons as running, so that the driver is in use."""
        folder = self.root / "run/rack/holds-nvidia"
        folder.mkdir(parents=True, exist_ok=True)
        for daemon in daemons:
            (folder / daemon).write_text(f"{os.getpid()}\n")
        return self

    @property
    def state(self) -> dict[str, Any]:
        """Return the content of the state file."""
        return json.loads((self.root / "var/lib/rack/hardware.json").read_text())

    def process(self, command: list[str], **more: Any) -> subprocess.Popen[str]:
        """Start a tool as a separate process, through a link with its name as packages install it."""
        link = self.root / "usr/bin" / command[0]
        link.parent.mkdir(parents=True, exist_ok=True)
        if not link.is_symlink():
            link.symlink_to(FAKES / "hardware")
        return subprocess.Popen(
            [sys.executable, "-I", str(link), *command[1:]],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "RACK_ROOT": str(self.root)},
            **more,
        )


@pytest.fixture
def kernel_files() -> bool:
    """Let the fakes write the 300 files in /sys and /proc, for tests that read them."""
    return True


@pytest.fixture
def bare(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Iterator[Node]:
    """Yield a node without hardware state."""
    import signal

    monkeypatch.syspath_prepend(str(FAKES))
    monkeypatch.setenv("RACK_ROOT", str(tmp_path))
    monkeypatch.delenv("RACK_STATE", raising=False)
    # Device nodes need a privilege that tests may lack, so only one test makes them.
    monkeypatch.setattr(os, "mknod", lambda path, *_: Path(path).touch())
    if "kernel_files" not in request.fixturenames:
        monkeypatch.setattr("rackhardware.kernel_files.write", lambda _state: None)
    before = signal.getsignal(signal.SIGPIPE)
    yield Node(tmp_path, capsys)
    signal.signal(signal.SIGPIPE, before)


@pytest.fixture
def node(bare: Node) -> Node:
    """Return a GB300 node with its driver and daemons."""
    node = bare.init().drive().runs("nvidia-persistenced", "nv-hostengine")
    node.ok("nvidia-smi -pm 1")
    return node


@pytest.fixture
def make(bare: Node) -> Callable[..., Node]:
    """Return a function that makes a node of a SKU, with its driver and daemons."""

    def made(sku: str, version: str = "580.95.05") -> Node:
        daemons = ("nvidia-persistenced", "nv-hostengine", "nv-fabricmanager")
        node = bare.init(sku, f"{sku}-r01-n01").drive(version).runs(*daemons)
        node.ok("nvidia-smi -pm 1")
        return node

    return made


@pytest.fixture(scope="session")
def real() -> Path:
    """Return the folder with real tools' output on a machine with two H200. Identifiers are replaced."""
    return Path(__file__).parent / "real"
