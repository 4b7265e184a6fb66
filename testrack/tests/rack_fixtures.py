"""Provide fixtures that start the test rack, push its images, provision nodes and run commands on hosts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from driver import overlay

from testrack.tests.on_rack import CONTROLLER, NAMED, PROVISIONED, SHARED, Command, play

RACK = Path(__file__).resolve().parents[1]


def run(*command: str, timeout: float = 300) -> subprocess.CompletedProcess[str]:
    """Run a command, and return its output and status."""
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)


def idle(rack: Command) -> list[str]:
    """Return the nodes of PROVISIONED that are idle in Slurm."""
    # `sinfo --states idle` would also list idle nodes that are drained.
    lines = rack(CONTROLLER, "sinfo --noheader -N -o '%N %T'").stdout.split("\n")
    return [node for node in PROVISIONED if f"{node} idle" in lines]


@pytest.fixture(scope="session")
def driver() -> Command:
    """Return a function that runs testrack/rack.py."""
    return lambda *words, timeout=1200: run(sys.executable, str(RACK / "rack.py"), *words, timeout=timeout)


@pytest.fixture(scope="session")
def root_here() -> None:
    """Skip the test if this process is not root on Linux, which a rack needs. In CI, fail instead."""
    if os.geteuid() != 0 or sys.platform != "linux":
        if os.environ.get("CI") == "true":
            pytest.fail("the test rack needs root on Linux")
        pytest.skip("the test rack needs root on Linux")


@pytest.fixture(scope="session")
def rack(root_here: None, driver: Command) -> Command:
    """Return a function that runs a command on a host of the rack by ssh.

    The first two nodes are started, unless RACK_TEST_NODES names nodes (NAMED). The rack continues to run
    afterwards.
    """
    # If the rack was started from another checkout, this checkout does not have the rack's values yet.
    overlay.lay(RACK.parent)
    if not NAMED:
        done = driver("up", "--nodes", "2")
        assert done.returncode == 0, done.stdout + done.stderr
    return lambda host, *words, timeout=60: run(
        "ssh", "-o", "ConnectTimeout=30", host, *words, timeout=timeout
    )


@pytest.fixture(scope="session")
def images(root: Path, rack: Command) -> None:
    """Build the fake images and push them to the rack's registry, unless RACK_TEST_NODES is set (NAMED)."""
    programs, kept = root / "testrack/images", str(root / ".rackproof/rack/images")
    if not NAMED:
        for words in (
            ["build.py", "--out", kept],
            ["push.py", "--registry", "gb300-r01-svc:5000", "--images", kept],
        ):
            done = run(sys.executable, str(programs / words[0]), *words[1:], timeout=600)
            assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def nodes(root: Path, rack: Command, images: None) -> list[str]:
    """Return the idle nodes of PROVISIONED. If fewer than two are idle, provision PROVISIONED first."""
    if len(idle(rack)) < 2:
        done = play(root, "provision.yml", PROVISIONED, timeout=1200)
        assert done.returncode == 0, done.stdout
    return idle(rack)


@pytest.fixture(scope="module")
def shared_torch(rack: Command, nodes: list[str], torch_python: str) -> str:
    """Return a Python on the nodes with PyTorch, from a copy of this machine's libraries."""
    return _shared(rack, nodes[0], "torch", torch_python, "import torch, mlperf_logging; torch.__version__")


@pytest.fixture(scope="module")
def shared_tensorflow(rack: Command, nodes: list[str], tensorflow_python: str) -> str:
    """Return a Python on the nodes with TensorFlow, from a copy of this machine's libraries."""
    return _shared(rack, nodes[0], "tensorflow", tensorflow_python, "import tensorflow")


def _shared(rack: Command, node: str, name: str, python_here: str, check: str) -> str:
    """Return the path of a Python in the shared folder. If its check fails, copy the libraries first."""
    python = f"{SHARED}/{name}/bin/python"
    if rack(node, f"{python} -c '{check}'").returncode:
        copied = subprocess.run(  # noqa: S602  (needs a pipe; no outside input)
            f"tar -C {Path(python_here).parents[1]} -cf - lib | ssh {node} "
            f"'rm -rf {SHARED}/{name}; mkdir -p {SHARED}/{name}/bin; cd {SHARED}/{name}; tar -xf -; "
            'ln -s /usr/bin/python3 bin/python; echo "home = /usr/bin" > pyvenv.cfg\'',
            shell=True,
            check=False,
        )
        assert copied.returncode == 0
    return python
