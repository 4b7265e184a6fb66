"""Test `rackproof nightly` when it is killed, started twice, or lacks its database, disk space or nodes.

A timer starts this command, which runs validate.yml on the fleet. The tests show that such a night loses no
result, that it drains no node without a complete record, and that the next night continues. Four nodes of
fake hardware are on this machine, and n02 has a fault.
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml

from rackproof.jobs.validate.nightly import LOCK
from rackproof.store.history.store import open_store
from rackproof.store.night_store import NIGHT_FILE, is_night, night_folders, read_night
from rackproof.store.run_folder import RECORD_NAME

if TYPE_CHECKING:
    from .conftest import Fleet

pytestmark = pytest.mark.playbook
ROOT = Path(__file__).resolve().parents[3]
# The reason of each node's drain in Slurm, if no node is drained.
NOBODY = dict.fromkeys(["n01", "n02", "n03", "n04", "gone"], "")
BAD = ("--fault", "ecc-uncorrectable", "--gpu", "2")


def start(fleet: Fleet, *words: str, limit: str = "n01,n02", **environment: str) -> subprocess.Popen[str]:
    """Start `rackproof nightly` as its timer does, and do not wait for it."""
    program = "import sys; from rackproof.cli.main import main; sys.exit(main())"
    fixed = ["nightly", "--checkout", ROOT, "--results", fleet.results, "--limit", limit, "--drain"]
    return subprocess.Popen(
        [sys.executable, "-c", program, *fixed, "--share", "0.5", *words],
        env=os.environ
        | {
            "ANSIBLE_INVENTORY": str(fleet.folder / "hosts.yml"),
            "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
            "ANSIBLE_NOCOLOR": "1",
        }
        | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def run(fleet: Fleet, *words: str, limit: str = "n01,n02", **environment: str) -> tuple[int, str]:
    """Run `rackproof nightly` to its end. Return its status and output."""
    process = start(fleet, *words, limit=limit, **environment)
    said, _ = process.communicate(timeout=180)
    return process.returncode, said


def children(pid: int) -> list[int]:
    """Return the ids of a process's direct children."""
    found = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True, check=False)
    return [int(one) for one in found.stdout.split()]


def kill(process: subprocess.Popen[str]) -> None:
    """Kill the command, ansible-runner and the playbook, but not the playbook's workers.

    Each of them has its own session, so no signal reaches all of them.
    """
    runners = children(process.pid)
    for pid in (*(one for runner in runners for one in children(runner)), *runners, process.pid):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    process.communicate(timeout=30)


def refused_beside(first: subprocess.Popen[str], fleet: Fleet) -> str:
    """Run a second nightly while the first one runs. Check that it refuses, and return its output."""
    deadline = time.monotonic() + 60
    # A killed nightly leaves its process id in the file.
    while not (fleet.results / LOCK).exists() or (fleet.results / LOCK).read_text() != str(first.pid):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    code, said = run(fleet)
    assert code == 1, said
    assert f"another nightly is running (pid {first.pid})" in said
    return said


def test_killed_at_any_moment_the_next_night_is_whole_and_the_only_one(fleet: Fleet) -> None:
    fleet.hardware("n02", *BAD)
    # The same moments in each run of the test.
    dice = random.Random(11)
    for number in range(2):
        process = start(fleet)
        # A night takes about ten seconds here, and is killed once in each half. It may have ended before.
        time.sleep(1 + 5 * number + dice.uniform(0, 5))
        kill(process)
    last_one = start(fleet)
    said = refused_beside(last_one, fleet)
    told, _ = last_one.communicate(timeout=120)
    assert last_one.returncode == 2, told + said
    slurm = fleet.slurm["nodes"]
    assert slurm["n02"].startswith("rackproof-night: ecc_sram_uncorrectable GPU 2")
    assert {name: why for name, why in slurm.items() if name != "n02"} == {
        name: "" for name in NOBODY if name != "n02"
    }
    assert (fleet.results / LOCK).read_text() == ""
    kept = [one for one in fleet.results.iterdir() if is_night(one.name)]
    assert kept
    # At most the two killed nights and the complete one.
    assert len(kept) <= 3
    for folder in kept:
        assert {NIGHT_FILE, RECORD_NAME, "index.html"} <= {one.name for one in folder.iterdir()}, folder
        assert read_night(folder).closed
    with open_store(fleet.results / "history.sqlite") as store:
        assert {one.run_id for one in store.runs()} >= {one.name for one in kept}
    last = {one.node: one for one in read_night(night_folders(fleet.results)[0]).nodes}
    assert (last["n01"].verdict.value, last["n02"].verdict.value) == ("pass", "fail")


def test_a_killed_night_leaves_no_worker_that_measures_on(fleet: Fleet) -> None:
    """Ansible's workers outlive their playbook, and one of them would retry during the next night."""
    fleet.probes(n01={"hang": "probe_gemm.py"})
    path = f"{fleet.folder}/ctl/usr/bin:{os.environ['PATH']}"
    process = start(fleet, "--gpu-minutes", "1000", limit="n01", PATH=path)
    deadline = time.monotonic() + 90
    while not fleet.jobs:
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.2)
    kill(process)
    deadline = time.monotonic() + 30
    while subprocess.run(
        ["pgrep", "-f", f"ansible-playbook.*{fleet.results}"], capture_output=True, check=False
    ).stdout:
        assert time.monotonic() < deadline
        time.sleep(0.5)
    assert fleet.jobs == ["n01"]


def test_a_database_that_is_down_delays_the_history_and_a_half_lost_rack_drains_no_node(
    fleet: Fleet,
) -> None:
    """The second of two nights adds the first one to the history, whose database was down before.

    In the second night, three of five nodes cannot be reached. So it drains no further node.
    """
    fleet.hardware("n02", *BAD)
    code, said = run(fleet, RACKPROOF_DATABASE_URL="postgresql+psycopg://nobody@127.0.0.1:1/none")
    assert code == 2, said
    assert "the history cannot be queried" in said
    drained = fleet.slurm["nodes"]
    assert drained["n02"].startswith("rackproof-night:")
    assert not (fleet.results / "history.sqlite").exists()

    # With --share 0.5, a second node could be drained.
    fleet.hardware("n01", *BAD)
    inventory = yaml.safe_load((fleet.folder / "hosts.yml").read_text())
    hosts = inventory["all"]["children"]["sku_gb300"]["children"]["rack-one"]["hosts"]
    hosts["n03"] = hosts["n04"] = hosts["gone"]
    (fleet.folder / "hosts.yml").write_text(json.dumps(inventory))
    code, said = run(fleet, limit="n01,n02,n03,n04,gone")
    assert code == 2, said
    assert "3 of 5 nodes cannot be reached" in said
    assert "the history cannot be queried" not in said
    assert fleet.slurm["nodes"] == drained
    last = {one.node: one for one in read_night(night_folders(fleet.results)[0]).nodes}
    assert [last[name].verdict.value for name in ("n01", "n02", "n03")] == ["fail", "fail", "unproven"]
    assert last["n01"].why == "not drained: too many nodes cannot be reached"
    with open_store(fleet.results / "history.sqlite") as store:
        assert {one.run_id for one in store.runs()} == {one.name for one in night_folders(fleet.results)}
    assert len(night_folders(fleet.results)) == 2


def test_a_full_disk_drains_no_node_and_the_last_whole_night_counts(fleet: Fleet) -> None:
    fleet.results.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=16k", "none", fleet.results]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("a small file system can only be mounted by root")
    try:
        fleet.hardware("n02", *BAD)
        code, said = run(fleet)
        assert code == 1, said
        assert "No space left" in said or "disk is full" in said, said
        assert re.search(r"^failed: .*: n0", said, re.MULTILINE), said
        assert fleet.slurm["nodes"] == NOBODY
        assert not [one for one in night_folders(fleet.results) if read_night(one).closed]
        subprocess.run(["mount", "-o", "remount,size=64m", fleet.results], check=True)
        code, said = run(fleet)
        assert code == 2, said
        assert fleet.slurm["nodes"]["n02"].startswith("rackproof-night:")
        assert all(read_night(one).closed for one in night_folders(fleet.results))
    finally:
        subprocess.run(["umount", "--lazy", fleet.results], check=True)
