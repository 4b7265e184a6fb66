"""Test the four jobs of Rackproof on two bare nodes of the test rack, in the order of a node's life.

Each test runs a command of an operator: provision, bench, validate, and reimage. Each needs the state that
the one before left, so run the whole file. The gate (`make test`) runs it on a new rack, which has two bare
nodes, a Slurm controller that is bare too, and a host with the fake mirror, registry and storage. You can
read the file as a tour.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rackproof.jobs.reimage import tasks
from rackproof.store.night_store import NodeNight, night_folders, read_night
from rackproof.store.run_folder import iter_runs
from testrack.tests.on_rack import CONTROLLER, Command, Done, changes, play, state_in_slurm
from tests.e2e.rack.fake_boots import FakeBoots

pytestmark = [pytest.mark.rack, pytest.mark.slow, pytest.mark.timeout(1800)]
# The first node gets a fault in test 4 and a new image in test 5.
BAD, GOOD = NODES = ["gb300-r01-n01", "gb300-r01-n02"]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder for the results of all four jobs. Each job reads the results of the others."""
    return tmp_path_factory.mktemp("results")


@pytest.fixture(scope="module")
def job(root: Path) -> Callable[..., Done]:
    """Return a function that runs one of the four playbooks on nodes, with variables as with `-e`."""
    return lambda playbook, nodes, *options, **given: play(
        root, playbook, nodes, *options, given=given, timeout=1500
    )


def test_1_provision_makes_cluster_nodes_of_bare_ones(
    rack: Command, driver: Command, job: Callable[..., Done]
) -> None:
    """ansible-playbook provision.yml -l gb300-r01-n01,gb300-r01-n02"""
    if rack(BAD, "command -v slurmd").returncode == 0:
        done = driver("renew", *NODES)
        assert done.returncode == 0, done.stdout + done.stderr
    done = job("provision.yml", NODES)
    assert done.returncode == 0, done.stdout
    jobs = rack(CONTROLLER, "srun --nodes 2 --gpus-per-node 4 nvidia-smi --list-gpus").stdout
    assert len(set(re.findall(r"UUID: (GPU-\S+)\)", jobs))) == 8, jobs


def test_2_provision_again_changes_nothing(job: Callable[..., Done]) -> None:
    done = job("provision.yml", NODES)
    assert done.returncode == 0, done.stdout
    assert [changes(done, node) for node in NODES] == [0, 0]


def test_3_bench_runs_a_training_on_both_and_judges_it(results: Path, job: Callable[..., Done]) -> None:
    """ansible-playbook bench.yml -l gb300-r01-n01,gb300-r01-n02 -e benchmark=llama31_8b"""
    # Seconds that the fake training takes.
    environment = {"STANDIN_SECONDS": "12"}
    given = {"benchmark": "llama31_8b", "bench_results": str(results), "bench_environment": environment}
    dry_run = job("bench.yml", NODES, "--check", **given)
    assert dry_run.returncode == 0, dry_run.stdout
    assert "llama31_8b-amd:20251008 is sha256:" in dry_run.stdout, "nodes ask the registry in a dry run"
    done = job("bench.yml", NODES, **given)
    assert done.returncode == 0, done.stdout
    (run,) = iter_runs(results)
    assert (run.verdict.value, run.launcher, [node.name for node in run.nodes]) == ("pass", "slurm", NODES)
    names = {one.name for one in run.measurements}
    assert names >= {"eval_accuracy", "time_to_train", "nccl_preflight_busbw"}


def validate(job: Callable[..., Done], results: Path) -> tuple[Done, dict[str, NodeNight]]:
    """Run validate.yml on both nodes, as every night does. Return its output, and the record of each node."""
    done = job(
        "validate.yml",
        NODES,
        validate_results=str(results),
        validate_drain=True,
        validate_resume=True,
        # By default, nights that are less than 12 hours apart count as one. The nights here are minutes
        # apart.
        validate_resume_hours=0,
    )
    assert night_folders(results), done.stdout
    return done, {one.node: one for one in read_night(night_folders(results)[0]).nodes}


def test_4_a_night_finds_the_planted_fault_and_drains_its_node(
    results: Path, rack: Command, driver: Command, job: Callable[..., Done]
) -> None:
    """ansible-playbook validate.yml -l gb300-r01-n01,gb300-r01-n02 -e validate_drain=true"""
    done, found = validate(job, results)
    assert done.returncode == 0, done.stdout
    assert {one.verdict.value for one in found.values()} == {"pass"}
    # From now on, the PCIe link of the third GPU has half of its lanes.
    assert driver("fault", BAD, "link-trained-down", "--gpu", "2").returncode == 0
    done, found = validate(job, results)
    assert done.returncode == 2, done.stdout
    assert (found[BAD].verdict.value, found[BAD].did) == ("fail", "drained")
    assert found[GOOD].verdict.value == "pass"
    (why,) = [one for one in found[BAD].findings if one.verdict.value == "fail"]
    assert (why.code, why.place[:5]) == ("pcie_width", "GPU 2")
    assert re.match("drained .*rackproof-night: pcie_width GPU 2", state_in_slurm(rack, BAD))
    assert state_in_slurm(rack, GOOD) == "idle none"


@pytest.fixture
def boots(root: Path, tmp_path: Path, driver: Command, rack: Command) -> Iterator[FakeBoots]:
    """Yield a fake BMC and boot host for the node that will be imaged."""
    boots = FakeBoots(root, tmp_path, driver, BAD)
    yield boots
    boots.close()


def test_5_reimage_by_its_bmc_makes_it_again_and_a_night_resumes_it(
    root: Path, results: Path, rack: Command, job: Callable[..., Done], boots: FakeBoots
) -> None:
    """ansible-playbook reimage.yml -l gb300-r01-n01"""
    boot = "cat /proc/sys/kernel/random/boot_id"
    before = rack(BAD, boot).stdout
    serial = rack(BAD, "dmidecode --string system-serial-number").stdout.strip()
    given = {"reimage_results": str(results), "reimage_acceptance": []} | boots.variables(serial)
    inventories = ("-i", "inventory/hosts.yml", "-i", str(boots.folder / "boothost.json"))
    path = f"{boots.folder / 'bin'}:{os.environ['PATH']}"
    done = play(root, "reimage.yml", [BAD], *inventories, given=given, timeout=1500, PATH=path)
    assert done.returncode == 0, done.stdout
    assert rack(BAD, boot).stdout not in ("", before)
    (found,) = tasks.read_progress(results)
    assert (found.node, found.progress.state) == (BAD, "returned")
    assert boots.ramdisk.signed == {BAD}
    assert "written to /dev/vda (D1) in 1 s" in found.progress.remarks
    # A night drained the node. It stays drained until the link has passed twice: in the acceptance of this
    # re-imaging, and in the next night.
    assert "rackproof-night: pcie_width" in state_in_slurm(rack, BAD)
    done, nights = validate(job, results)
    assert done.returncode == 0, done.stdout
    assert nights[BAD].did == "returned to service"
    assert state_in_slurm(rack, BAD) == "idle none"
