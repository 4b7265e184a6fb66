"""Test the acceptance of reimage.yml with ``reimage_acceptance``, which may list probes and pair.

A re-imaged node must pass its health checks before it is resumed. With ``probes``, the playbook also measures
the node by ssh, because Slurm starts no job on a drained node. With ``pair``, it measures the node together
with a partner that passed a night and is in service. The tests show that wrong results, or a missing partner
or interpreter, keep the node drained.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml

from rackproof.jobs.reimage import run_files, tasks
from rackproof.store.night_store import night_folders, read_night
from rackproof.store.probe_results import read_probes

if TYPE_CHECKING:
    from .conftest import Rack

pytestmark = pytest.mark.playbook
OURS = "rackproof-reimage: gets a new image"
"""Reason of a drain by reimage.yml."""
PROVE = ("-e", '{"reimage_acceptance": ["probes", "pair"], "bench_require_references": false}')


def half(name: str) -> subprocess.Popen[bytes]:
    """Start a process that looks like a node's half of a pair while it waits for the other half."""
    folder = Path(tempfile.gettempdir(), name)
    folder.mkdir(exist_ok=True)
    process = subprocess.Popen(["sleep", "300"], cwd=folder, start_new_session=True)
    (folder / "pid").write_text(str(process.pid))
    return process


def test_a_node_that_computes_or_reduces_wrongly_stays_drained(rack: Rack) -> None:
    """Run a night first, so that n04 is known to be good. It is the only possible partner."""
    done = rack.fleet.validate(
        "-l",
        "n01,n02,n03,n04",
        "-e",
        '{"bench_require_references": false, "validate_probe_gpu_minutes": 1000}',
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rack.fleet.probes(n02={"fabric": True}, n03={"1": "bits"})
    before = len(rack.fleet.jobs)
    # One process was left on n01 by a killed run, and has to be ended. The other one is of an unknown node.
    left = [half(name) for name in ("rackproof-night.n01.x", "rackproof-night.other.x")]
    done = rack.reimage("-l", "n01,n02,n03", *PROVE, "-e", "reimage_canary=0")
    assert [process.poll() is None for process in left] == [False, True]
    left[1].kill()
    shutil.rmtree(Path(tempfile.gettempdir(), "rackproof-night.other.x"))
    assert done.returncode == 2, done.stdout + done.stderr
    found = {one.node: one.progress for one in tasks.read_progress(rack.results)}
    assert {name: one.state for name, one in found.items()} == {
        "n01": "returned",
        "n02": "failed",
        "n03": "failed",
    }, done.stdout
    assert "sums of values were wrong" in found["n02"].reason
    assert "gave other bits" in found["n03"].reason
    assert rack.drained() == dict.fromkeys(["n02", "n03"], OURS)
    # Only the partner got jobs, for n01 and for n02. n03 failed its probes, so it was not paired.
    assert rack.fleet.jobs[before:] == ["n04", "n04"]
    probed = read_probes(night_folders(rack.results)[0])
    assert probed is not None
    assert set(probed.measured) == {"n01", "n02", "n03"}
    assert {one.nodes: one.passed for one in probed.pairs} == {("n01", "n04"): True, ("n02", "n04"): False}
    assert {one.node: one.measured for one in read_night(night_folders(rack.results)[0]).nodes}["n01"]

    # The faults are gone. Only a new attempt can prove that.
    rack.fleet.probes()
    done = rack.reimage("-l", "n02,n03", *PROVE)
    assert done.returncode == 0, done.stdout + done.stderr
    assert rack.drained() == {}
    found_left = {path.name for path in Path(tempfile.gettempdir()).glob("rackproof-night.*.*")}
    assert not {name for name in found_left if name.split(".")[1] in ("n01", "n02", "n03")}


def test_without_a_partner_or_an_interpreter_nothing_is_proven(rack: Rack) -> None:
    done = rack.reimage("-l", "n01", "-e", '{"reimage_acceptance": ["all"]}')
    assert done.returncode == 2
    assert "reimage_acceptance has to be a list of probes and pair" in done.stdout
    assert run_files.run_folders(rack.results) == []
    path = rack.folder / "hosts.yml"
    inventory = yaml.safe_load(path.read_text())
    hosts = inventory["all"]["children"]["sku_gb300"]["children"]["rack-one"]["hosts"]
    hosts["n02"]["validate_probe_python"] = "/nonexistent/python"
    path.write_text(yaml.safe_dump(inventory))
    done = rack.reimage("-l", "n01,n02", *PROVE, "-e", "reimage_canary=0")
    assert done.returncode == 2, done.stdout + done.stderr
    found = {one.node: one.progress for one in tasks.read_progress(rack.results)}
    assert "no other node of its SKU and partition is in service and passed" in found["n01"].reason
    assert "python ended with 127" in found["n02"].reason
    assert rack.drained() == dict.fromkeys(["n01", "n02"], OURS)
    # If the operator leaves a part out, the node is resumed, and the output names the unproven part.
    done = rack.reimage(
        "-l", "n01", "-e", '{"reimage_acceptance": ["probes"], "bench_require_references": false}'
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "not proven: its fabric (reimage_acceptance leaves pair out)" in " ".join(done.stdout.split())
