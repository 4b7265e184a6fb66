"""validate.yml on the test rack: a fault is found, its node drained and returned; strangers are left alone.

Two provisioned nodes: of a rack that runs already those of RACKPROOF_RACK_NODES, where it names two.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rackproof.fleet.record import NodeNight, nights, read_night

pytestmark = [pytest.mark.rack, pytest.mark.slow]
CONTROLLER = "gb300-r01-ctl"
BAD, THEIRS = os.environ.get("RACKPROOF_RACK_NODES", "gb300-r01-n01,gb300-r01-n02").split(",")
STRANGER = "bob: waits for a cable"
Done = subprocess.CompletedProcess[str]
Command = Callable[..., Done]


@pytest.fixture(scope="module")
def slurm(request: pytest.FixtureRequest, root: Path) -> Command:
    """Run a command on Slurm's controller, which knows both nodes."""
    if "RACKPROOF_RACK_NODES" not in os.environ:
        request.getfixturevalue("nodes")

    def run(command: str) -> Done:
        return subprocess.run(
            ["ssh", "-o", "ConnectTimeout=5", CONTROLLER, command],
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip

    if run(f"scontrol show node {BAD} && scontrol show node {THEIRS}").returncode != 0:
        play(root, "provision.yml", timeout=900)
    return run


def play(root: Path, name: str, *words: str, timeout: float = 120) -> Done:
    return subprocess.run(
        [Path(sys.executable).with_name("ansible-playbook"), name, "-l", f"{BAD},{THEIRS}", *words],
        cwd=root,
        env=os.environ | {"ANSIBLE_NOCOLOR": "1", "COLUMNS": "400"},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def reason(slurm: Command, node: str) -> str:
    """Return why Slurm keeps a node out of service; none where it does not."""
    return slurm(f"sinfo --noheader --Node --nodes {node} --format %E").stdout.strip()


@pytest.fixture
def sound(slurm: Command, driver: Command) -> Iterator[None]:
    """Leave both nodes without fault and in service."""
    yield
    driver("fault", BAD, "link-trained-down", "--off")
    slurm(f"scontrol update nodename={BAD},{THEIRS} state=resume")


@pytest.mark.usefixtures("sound")
def test_a_bad_node_is_found_drained_and_returned(
    root: Path, tmp_path: Path, slurm: Command, driver: Command
) -> None:
    """Three nights in one test: each needs what the one before left."""
    results = tmp_path / "results"
    acting = ("-e", f"validate_results={results}", "-e", "validate_drain=true", "-e", "validate_return=true")

    def night() -> tuple[Done, dict[str, NodeNight]]:
        done = play(root, "validate.yml", *acting)
        assert nights(results), done.stdout + done.stderr
        return done, {one.node: one for one in read_night(nights(results)[0]).nodes}

    assert driver("fault", BAD, "link-trained-down", "--gpu", "2").returncode == 0
    assert slurm(f"scontrol update nodename={THEIRS} state=drain reason='{STRANGER}'").returncode == 0
    done, found = night()
    assert done.returncode == 2, done.stdout
    assert found[THEIRS].verdict.value == "pass", found[THEIRS].says()
    assert found[BAD].verdict.value == "fail"
    (why,) = [one for one in found[BAD].findings if one.verdict.value == "fail"]
    assert (why.part, why.place[:5]) == ("gpu", "GPU 2")
    assert found[BAD].did == "drained"
    assert reason(slurm, BAD).startswith("rackproof-night:")
    assert "GPU 2" in reason(slurm, BAD)
    assert reason(slurm, THEIRS) == STRANGER

    assert driver("fault", BAD, "link-trained-down", "--off").returncode == 0
    done, found = night()
    assert done.returncode == 0, done.stdout
    assert "passed 1 of 2 times" in found[BAD].why
    assert reason(slurm, BAD).startswith("rackproof-night:")
    done, found = night()
    assert found[BAD].did == "returned to service", done.stdout
    assert reason(slurm, BAD) == "none"
    assert reason(slurm, THEIRS) == STRANGER
