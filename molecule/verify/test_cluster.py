"""Check that a provisioned node takes Slurm jobs, with GPUs and containers, and has its mounts."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture
def name(host: Any, expected: Any) -> str:
    """Return the node's name in Slurm. Skip the test if the node has no slurmd."""
    if not host.package("slurmd").is_installed:
        pytest.skip("the scenario is not about Slurm")
    return str(host.check_output("hostname -s"))


def test_munge_and_slurmd_run(host: Any, name: str) -> None:
    for service in ("munge", "slurmd"):
        assert host.service(service).is_running
        assert host.service(service).is_enabled


def test_the_node_can_take_work(host: Any, name: str) -> None:
    assert host.check_output("sinfo -h -N -n %s -o %%T", name).split()[0] in ("idle", "mixed", "allocated")


def test_a_job_gets_its_gpus(host: Any, expected: Any, name: str) -> None:
    gpus = expected("bench_sku_gpus")
    said = host.check_output("srun -w %s -N1 --gpus-per-node=%s -t 2 nvidia-smi -L", name, str(gpus))
    assert said.count("UUID: ") == gpus


def test_locked_memory_is_without_limit_in_a_job(host: Any, name: str) -> None:
    assert host.check_output("systemctl show slurmd --property LimitMEMLOCK --value") == "infinity"
    # If root may not raise limits, as in a container, only the requested limit can be proven.
    if host.run("prlimit --pid $$ --memlock=unlimited").rc == 0:
        assert host.check_output("srun -w %s -N1 -t 2 bash -c 'ulimit -l'", name) == "unlimited"


def test_slurm_knows_containers(host: Any, name: str) -> None:
    assert "--container-image" in host.check_output("srun --help")


def test_mounts_are_there(host: Any, expected: Any) -> None:
    for mount in expected("storage_mounts"):
        if mount["kind"] == "folder":
            assert host.file(mount["path"]).is_directory, mount["path"]
        else:
            assert host.mount_point(mount["path"]).exists, mount["path"]
