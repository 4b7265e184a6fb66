"""Test packages and settings of slurm, storage, enroot_pyxis and node_tuning on each operating system.

Each system has another release of Slurm. The tests show the settings for each release, and that a node whose
release cannot work with the controller's is reported before it is changed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from .conftest import FACTS, Renderer

pytestmark = pytest.mark.playbook

# By system: the release of its Slurm, the plugins that track and bind jobs, and whether cgroup v2 is used.
SLURM = {
    "debian-12": ("22.05", "proctrack/cgroup", "task/cgroup,task/affinity", True),
    "debian-13": ("24.11", "proctrack/cgroup", "task/cgroup,task/affinity", True),
    "ubuntu-22.04": ("21.08", "proctrack/linuxproc", "task/affinity", False),
    "ubuntu-24.04": ("23.11", "proctrack/cgroup", "task/cgroup,task/affinity", True),
    # A system that the role does not know: any release, with keys that all releases since 22.05 accept.
    "debian-99": ("", "proctrack/cgroup", "task/cgroup,task/affinity", True),
}
# By node and controller: why they cannot be in one cluster ("": they can).
MISFITS = {
    "debian-13 under debian-12": "it is newer than its controller",
    "ubuntu-24.04 under ubuntu-22.04": "it is newer than its controller",
    "debian-12 under ubuntu-24.04": "",
    "ubuntu-22.04 under debian-12": "",
    "ubuntu-24.04 under debian-13": "",
    "debian-12 under debian-13": "it is 4 releases older than its controller, and 3 are allowed",
    "ubuntu-22.04 under ubuntu-24.04": "it is 3 releases older than its controller, and 2 are allowed",
    # Of an installed controller, the version counts. A pin sets the version of node and controller.
    "installed": "it is newer than its controller",
    "pinned": "",
    # The release that debian-99 would install is unknown. Slurm itself reports a mismatch.
    "debian-99 under debian-12": "",
    "debian-12 under debian-99": "",
}
ASKED = [
    "slurm_node_packages",
    "slurm_login_packages",
    "slurm_controller_packages",
    "slurm_own_version",
    "slurm_controller_runs",
    "slurm_unfit",
    "slurm_cluster_files",
]
CLUSTER = {
    "slurm_controller_host": "head",
    "slurm_racks": ["rack"],
    "bench_sku_gpus": 4,
    "slurm_sku_cpus": 144,
    "slurm_sku_sockets": 2,
    "slurm_sku_cores_per_socket": 72,
    "slurm_sku_threads": 1,
    "slurm_sku_real_memory_mb": 880000,
    "slurm_sku_gpu_type": "gb300",
}


def host(system: str, **more: Any) -> dict[str, Any]:
    """Return the fact ``rackproof_node`` of a host with an operating system such as debian-12."""
    name, _, version = system.partition("-")
    return {**FACTS, "os": {"id": name, "version_id": version, "name": system}, **more}


@pytest.fixture(scope="module")
def slurm(render: Renderer, root: Path) -> dict[str, dict[str, Any]]:
    """Return the values of ASKED for nodes of each system, under controllers of the same and some others."""
    role = root / "roles/slurm"

    def case(system: str, head: str, **more: Any) -> dict[str, Any]:
        def loaded(name: str) -> dict[str, Any]:
            path = role / "vars" / f"{name}.yml"
            return yaml.safe_load((path if path.is_file() else role / "vars/default.yml").read_text())

        return {
            **CLUSTER,
            **loaded(system),
            "slurm_controller_state": host(head),
            "slurm_controller_host": head,
            "rackproof_node": host(system),
            # Ansible sets this variable in a role.
            "role_path": str(role),
            **more,
        }

    cases = {system: case(system, system) for system in SLURM}
    cases |= {name: case(*name.split(" under ")) for name in MISFITS if " under " in name}
    installed = {"packages": {"slurmctld": {"version": "22.05.8-4+deb12u3", "held": False}}}
    heads = {system: {"rackproof_node": host(system)} for system in SLURM}
    cases["installed"] = case("debian-13", "debian-12", slurm_controller_state=host("debian-12") | installed)
    cases["pinned"] = case("debian-12", "debian-13", slurm_version="24.11.5*")
    groups = {"rack": {"hosts": {"n1": CLUSTER}}, "heads": {"hosts": heads}}
    return render("slurm", ASKED, cases, groups)


@pytest.mark.parametrize("system", SLURM)
def test_slurm_of_each_system(slurm: dict[str, dict[str, Any]], system: str) -> None:
    release, proctrack, task, cgroups = SLURM[system]
    found, version = slurm[system], f"{release}*"
    node = {"munge": "", "slurmd": version, "slurm-client": version, "libpmix-dev": ""}
    assert found["slurm_node_packages"] == node
    assert found["slurm_login_packages"] == {"munge": "", "slurm-client": version}
    assert found["slurm_controller_packages"] == {
        "munge": "",
        "slurmctld": version,
        "slurm-client": version,
        "slurmdbd": version,
        "mariadb-server": "",
    }
    files = {file["path"]: file["content"].splitlines() for file in found["slurm_cluster_files"]}
    assert f"ProctrackType={proctrack}" in files["/etc/slurm/slurm.conf"]
    assert f"TaskPlugin={task}" in files["/etc/slurm/slurm.conf"]
    assert ("CgroupPlugin=autodetect" in files["/etc/slurm/cgroup.conf"]) is cgroups
    assert found["slurm_unfit"] == ""


@pytest.mark.parametrize("case", MISFITS)
def test_a_node_whose_slurm_cannot_join_is_known_before(slurm: dict[str, dict[str, Any]], case: str) -> None:
    assert slurm[case]["slurm_unfit"] == MISFITS[case]
    if case == "installed":
        assert slurm[case]["slurm_controller_runs"] == "22.05.8-4+deb12u3"
        assert slurm[case]["slurm_own_version"] == "24.11*"


SYSTEMS = ("debian-12", "debian-13", "ubuntu-22.04", "ubuntu-24.04")
# By role: its variables, and the packages that it has to install, with the same names on all four systems.
PACKAGES: dict[str, tuple[dict[str, Any], str, Any]] = {
    "storage": (
        {
            "storage_mounts": [
                {"path": "/data", "kind": "nfs", "source": "nas:/export"},
                {"path": "/mnt/bucket", "kind": "s3fs", "source": "bucket"},
                {"path": "/scratch", "kind": "device", "source": "LABEL=scratch", "type": "xfs"},
            ]
        },
        "storage_packages",
        ["nfs-common", "s3fs", "fuse3", "xfsprogs"],
    ),
    "enroot_pyxis": (
        {},
        "enroot_pyxis_packages",
        {"enroot": "4.0.1-1", "enroot+caps": "4.0.1-1", "nvslurm-plugin-pyxis": "0.21.0-1"},
    ),
    "node_tuning": ({}, "node_tuning_packages", ["python3-dev", "python3-venv", "unzip"]),
}


@pytest.mark.parametrize("role", PACKAGES)
def test_packages_of_each_system(render: Renderer, root: Path, role: str) -> None:
    given, name, expected = PACKAGES[role]
    cases = {system: {**given, "rackproof_node": host(system)} for system in SYSTEMS}
    found = render(role, [name], cases)
    assert {system: found[system][name] for system in SYSTEMS} == dict.fromkeys(SYSTEMS, expected)
