"""The driver of the test rack, imported from where it lies; and a rack that runs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

RACK = Path(__file__).resolve().parents[2] / "molecule/rack"
sys.path.insert(0, str(RACK))

Command = Callable[..., subprocess.CompletedProcess[str]]
CONTROLLER = "gb300-r01-ctl"
NAMED = [name for name in os.environ.get("RACK_TEST_NODES", "").split(",") if name]
"""Two nodes of a rack that others use, too: trainings keep to them, and the rack is taken as it is."""
PROVISIONED = NAMED or ["gb300-r01-n01", "gb300-r01-n02"]
"""Those that the tests of provision.yml leave provisioned; all others may be a scenario's."""


def run(*command: str, timeout: float = 300) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)


def idle(rack: Command) -> list[str]:
    """Return which of the two can take work."""
    # Asked for idle nodes only, sinfo lists idle ones that are drained, too.
    said = rack(CONTROLLER, "sinfo --noheader -N -o '%N %T'").stdout.split("\n")
    return [node for node in PROVISIONED if f"{node} idle" in said]


@pytest.fixture(scope="session")
def driver() -> Command:
    """Run molecule/rack/rack.py."""
    return lambda *words, timeout=1200: run(sys.executable, str(RACK / "rack.py"), *words, timeout=timeout)


@pytest.fixture(scope="session")
def root_here() -> None:
    """Skip where no rack can be; a CI without root fails."""
    if os.geteuid() != 0 or sys.platform != "linux":
        if os.environ.get("CI") == "true":
            pytest.fail("the test rack needs root on Linux")
        pytest.skip("the test rack needs root on Linux")


@pytest.fixture(scope="session")
def rack(root_here: None, driver: Command) -> Command:
    """Return what runs a command on a host of a rack with at least two nodes; it runs on afterwards."""
    if not NAMED:
        done = driver("up", "--nodes", "2")
        assert done.returncode == 0, done.stdout + done.stderr
    return lambda host, *words, timeout=60: run(
        "ssh", "-o", "ConnectTimeout=5", host, *words, timeout=timeout
    )


@pytest.fixture(scope="session")
def images(root: Path, rack: Command) -> None:
    """Have the stand-in images in the registry, which has them as long as its host lives."""
    programs, kept = root / "molecule/rack/images", str(root / ".rackproof/rack/images")
    if not NAMED:
        for words in (
            ["build.py", "--out", kept],
            ["push.py", "--registry", "gb300-r01-svc:5000", "--images", kept],
        ):
            done = run(sys.executable, str(programs / words[0]), *words[1:], timeout=600)
            assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def nodes(root: Path, rack: Command, images: None) -> list[str]:
    """Return two idle nodes of the Slurm cluster; provision them unless tests of provision.yml have."""
    if len(idle(rack)) < 2:
        done = subprocess.run(
            [
                Path(sys.executable).with_name("ansible-playbook"),
                "provision.yml",
                "-l",
                ",".join(PROVISIONED),
            ],
            cwd=root,
            capture_output=True,
            text=True,
            timeout=1200,
            check=False,
        )
        assert done.returncode == 0, done.stdout
    return idle(rack)
