"""Test which packages and files the roles ofed, peer_memory and nvidia_container choose for a node.

ofed installs network drivers, peer_memory connects them with GPU memory, and nvidia_container installs Docker
and the toolkit that gives GPUs to containers. The choice depends on the operating system, on the operator's
variables, and on what is installed already. The tests run only the tasks of the roles that choose (in check
mode), with made-up facts of nodes, and compare the resulting variables. One more test shows that each
variable of these roles begins with the name of its role.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

VENDOR = "https://content.mellanox.com/ofed"
"""URL of the vendor's server for the tarballs of MLNX_OFED."""
MIRROR = "http://mirror.example"
"""URL of a site's own server for packages (``apt_mirror_root``)."""
TOOLKIT = dict.fromkeys(
    [
        "nvidia-container-toolkit",
        "nvidia-container-toolkit-base",
        "libnvidia-container-tools",
        "libnvidia-container1",
    ],
    "1.18.0-1",
)
"""The packages of NVIDIA's container toolkit, each with the role's default version."""
INBOX = {"rdma-core": "", "infiniband-diags": "", "ibverbs-utils": ""}
"""The packages of the distribution's own network drivers. With version "", apt chooses the version."""
BOOKWORM = ("debian", "12")
"""Id and version of an operating system, as in /etc/os-release."""


def node(system: tuple[str, str], **state: Any) -> dict[str, Any]:
    """Return the fact ``rackproof_node`` of a node, on which nothing is installed by default.

    Args:
        system: The id and the version of the operating system.
        **state: Parts of the fact that are replaced. ``packages`` maps names of installed packages to their
            versions, all of which are held (apt does not change them). ``said`` maps commands to their
            output.
    """
    packages = {name: {"version": one, "held": True} for name, one in state.pop("packages", {}).items()}
    commands = {
        name: {"status": "ok", "rc": 0, "stdout": text} for name, text in state.pop("said", {}).items()
    }
    commands.setdefault("nvidia_smi_list", {"status": "absent"})
    commands.setdefault("nvidia_smi_query", {"status": "absent"})
    commands.setdefault("ofed_info", {"status": "absent"})
    return {
        "os": {"id": system[0], "version_id": system[1], "codename": "x", "name": "x"},
        "machine": "x86_64",
        "kernel": "6.8.0-48-generic",
        "kernels": ["6.8.0-48-generic"],
        "packages": packages,
        "modules": {},
        "services": {},
        "groups": {},
        "files": {},
        "unit_starts": {},
        "changed_at": {},
        "commands": commands,
        **state,
    }


# The name of a case begins with a key of ROLE_OF. A case consists of the fact of a node, the operator's
# variables, and the expected values of the role's variables.
CASES: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    # --- ofed: the packages, or the address of the tarball, for each operating system ---
    **{
        f"ofed-inbox-{name}-{version}": (
            node((name, version)),
            {},
            {"ofed_present": INBOX, "ofed_version_there": False, "ofed_held": True},
        )
        for name, version in (BOOKWORM, ("debian", "13"), ("ubuntu", "22.04"), ("ubuntu", "24.04"))
    },
    **{
        f"ofed-mlnx-{name}-{version}": (
            node((name, version)),
            {"ofed_flavour": "mlnx"},
            {
                "ofed_mlnx_address": f"{VENDOR}/MLNX_OFED-24.10-3.2.5.0/"
                f"MLNX_OFED_LINUX-24.10-3.2.5.0-{platform}-x86_64.tgz",
                "ofed_headers": "linux-headers-6.8.0-48-generic",
                "ofed_mlnx_checksum": "",
            },
        )
        for name, version, platform in (
            (*BOOKWORM, "debian12.5"),
            ("ubuntu", "22.04", "ubuntu22.04"),
            ("ubuntu", "24.04", "ubuntu24.04"),
        )
    },
    "ofed-mlnx-2019": (
        node(("ubuntu", "18.04")),
        {"ofed_flavour": "mlnx", "ofed_version": "4.4-1.0.0.0"},
        {
            "ofed_mlnx_address": f"{VENDOR}/MLNX_OFED-4.4-1.0.0.0/"
            "MLNX_OFED_LINUX-4.4-1.0.0.0-ubuntu18.04-x86_64.tgz",
            "ofed_mlnx_options": ["--force", "--add-kernel-support"],
        },
    ),
    "ofed-mlnx-mirror": (
        node(("ubuntu", "24.04"), machine="aarch64"),
        {"ofed_flavour": "mlnx", "apt_mirror_root": MIRROR, "ofed_mlnx_platform": "ubuntu18.04"},
        {
            "ofed_mlnx_address": f"{MIRROR}/mlnx/MLNX_OFED_LINUX-24.10-3.2.5.0-ubuntu18.04-aarch64.tgz",
            "ofed_mlnx_checksum": "",
        },
    ),
    "ofed-mlnx-own-address": (
        node(("ubuntu", "24.04")),
        {"ofed_flavour": "mlnx", "ofed_mlnx_url": "https://h.example/x.tgz", "ofed_kernel_headers": ""},
        {"ofed_mlnx_address": "https://h.example/x.tgz", "ofed_headers": ""},
    ),
    "ofed-doca": (
        node(("ubuntu", "24.04")),
        {"ofed_flavour": "doca", "ofed_version": "3.1.0"},
        {"ofed_present": {"doca-ofed": "3.1.0*"}, "ofed_version_there": False, "ofed_held": False},
    ),
    # --- ofed: whether the requested drivers are installed already ---
    "ofed-inbox-there": (
        node(BOOKWORM, packages=dict.fromkeys(INBOX, "44.0-2")),
        {},
        {"ofed_version_there": True, "ofed_openibd_runs": True},
    ),
    "ofed-inbox-other-version": (
        node(BOOKWORM, packages=dict.fromkeys(INBOX, "44.0-2")),
        {"ofed_version": "50.0"},
        {"ofed_version_there": False, "ofed_present": {**INBOX, "rdma-core": "50.0*"}},
    ),
    "ofed-mlnx-there": (
        node(BOOKWORM, said={"ofed_info": "MLNX_OFED_LINUX-24.10-3.2.5.0:\n"}),
        {"ofed_flavour": "mlnx"},
        {"ofed_version_there": True, "ofed_openibd_runs": False, "ofed_vendor_reported": True},
    ),
    "ofed-mlnx-longer-version": (
        node(BOOKWORM, said={"ofed_info": "MLNX_OFED_LINUX-24.10-3.2.5.01:\n"}),
        {"ofed_flavour": "mlnx"},
        {"ofed_version_there": False},
    ),
    "ofed-doca-there": (
        node(
            BOOKWORM,
            packages={"doca-ofed": "3.1.0-091000"},
            said={"ofed_info": "OFED-internal-25.07-0.9.7:\n"},
            services={"openibd.service": {"active": True, "enabled": True, "failed": False}},
            unit_starts={"openibd.service": 20.0},
            changed_at={"/var/lib/dpkg/info/ofed-scripts.list": 10.0},
        ),
        {"ofed_flavour": "doca", "ofed_version": "3.1.0"},
        {"ofed_version_there": True, "ofed_held": True, "ofed_openibd_runs": True, "ofed_modules_old": False},
    ),
    # A playbook ended after the installation, before it restarted openibd.
    "ofed-doca-not-loaded": (
        node(
            BOOKWORM,
            unit_starts={"openibd.service": 20.0},
            changed_at={"/var/lib/dpkg/info/ofed-scripts.list": 30.0},
        ),
        {"ofed_flavour": "doca"},
        {"ofed_modules_old": True},
    ),
    "ofed-doca-without-its-ofed": (
        node(
            BOOKWORM,
            packages={"doca-ofed": "3.1.0"},
            said={"ofed_info": "MLNX_OFED_LINUX-24.10-3.2.5.0:\n"},
        ),
        {"ofed_flavour": "doca"},
        {"ofed_version_there": False},
    ),
    "ofed-doca-of-another-release": (
        node(
            BOOKWORM,
            packages={"doca-ofed": "3.10.0"},
            said={"ofed_info": "OFED-internal-25.07-0.9.7:\n"},
        ),
        {"ofed_flavour": "doca", "ofed_version": "3.1"},
        {"ofed_version_there": False},
    ),
    # --- peer_memory: the method for a node, and the work that is left (see also test_peer_memory.py) ---
    "peer-dmabuf": (
        node(("ubuntu", "24.04"), packages={"nvidia-open": "570.172.08-1"}, modules={"nvidia": "570.172.08"}),
        {},
        {"peer_memory_choice": {"method": "dmabuf"}, "peer_memory_done": True},
    ),
    "peer-nvidia-peermem": (
        node(
            ("ubuntu", "22.04"),
            packages={"nvidia-driver-535": "535.261.03-0ubuntu1", "doca-ofed": "3.1.0"},
            modules={"nvidia": "535.261.03"},
        ),
        {},
        {
            "peer_memory_choice": {"method": "nvidia_peermem"},
            "peer_memory_loaded": False,
            "peer_memory_legacy_build": False,
        },
    ),
    "peer-legacy": (
        node(
            ("ubuntu", "18.04"),
            kernel="4.15.0-46-generic",
            packages={"nvidia-418": "418.88-0ubuntu1"},
            said={"ofed_info": "MLNX_OFED_LINUX-4.4-1.0.0.0:\n"},
        ),
        {},
        {
            "peer_memory_choice": {"method": "nv_peer_mem"},
            "peer_memory_legacy_build": True,
            "peer_memory_legacy_upstream": "1.0",
            "peer_memory_legacy_repository": "https://github.com/Mellanox/nv_peer_memory.git",
            "peer_memory_legacy_ref": "b5ede3b77beea0d6072e61e1551e58a64312f9a9",
            "peer_memory_headers": "linux-headers-4.15.0-46-generic",
        },
    ),
    "peer-legacy-mirror": (
        node(("ubuntu", "18.04")),
        {"apt_mirror_root": MIRROR},
        {"peer_memory_legacy_repository": f"{MIRROR}/git/nv_peer_memory.git"},
    ),
    "peer-legacy-left": (
        node(
            BOOKWORM,
            packages={"nvidia-open": "570.172.08-1", "nvidia-peer-memory": "1.0-8"},
            modules={"nvidia": "570.172.08", "nv_peer_mem": "1.0-8"},
        ),
        {},
        {"peer_memory_legacy_left": True, "peer_memory_done": False},
    ),
    "peer-unit-left": (
        node(
            BOOKWORM,
            packages={"nvidia-open": "570.172.08-1"},
            modules={"nvidia": "570.172.08"},
            files={"/etc/systemd/system/rackproof-peermem.service": "0" * 64},
        ),
        {},
        {"peer_memory_others_left": True, "peer_memory_done": False},
    ),
    "peer-none": (node(BOOKWORM), {"peer_memory_method": "none"}, {"peer_memory_done": True}),
    # --- nvidia_container: the packages for each operating system, and the settings of Docker ---
    **{
        f"container-{name}-{version}": (
            node((name, version)),
            {},
            {"nvidia_container_present": {**docker, **TOOLKIT}, "nvidia_container_proven": False},
        )
        for name, version, docker in (
            (*BOOKWORM, {"docker.io": ""}),
            ("debian", "13", {"docker.io": "", "docker-cli": ""}),
            ("ubuntu", "22.04", {"docker.io": ""}),
            ("ubuntu", "24.04", {"docker.io": ""}),
        )
    },
    "container-docker-ce": (
        node(("ubuntu", "24.04"), packages={"docker-ce": "5:28.1.1-1~ubuntu.24.04~noble"}),
        {"nvidia_container_docker": "docker-ce", "nvidia_container_docker_version": "5:28.1.1"},
        {
            "nvidia_container_present": {
                "docker-ce": "5:28.1.1*",
                "docker-ce-cli": "",
                "containerd.io": "",
                **TOOLKIT,
            },
            "nvidia_container_docker_number": "28.1.1",
            "nvidia_container_docker_cdi": True,
            "nvidia_container_configure_command": [
                "nvidia-ctk",
                "runtime",
                "configure",
                "--runtime=docker",
                "--config=/etc/docker/daemon.json",
                "--cdi.enabled",
            ],
        },
    ),
    "container-old-docker": (
        node(BOOKWORM, packages={"docker.io": "20.10.24+dfsg1-1+deb12u1"}),
        {"nvidia_container_insecure_registries": ["r:5000"], "nvidia_container_daemon": {"mtu": 9000}},
        {
            "nvidia_container_docker_cdi": False,
            "nvidia_container_settings": {
                "log-driver": "json-file",
                "log-opts": {"max-size": "100m", "max-file": "3"},
                "live-restore": True,
                "insecure-registries": ["r:5000"],
                "mtu": 9000,
            },
        },
    ),
    "container-docker-of-old-settings": (
        node(
            BOOKWORM,
            unit_starts={"docker.service": 20.0},
            changed_at={"/etc/docker/daemon.json": 30.0},
        ),
        {},
        {"nvidia_container_docker_outdated": True},
    ),
    "container-2019": (
        node(("ubuntu", "18.04")),
        {"nvidia_container_stack": "nvidia-docker2", "nvidia_container_toolkit_version": "1.13.5-1"},
        {
            "nvidia_container_present": {
                "docker.io": "",
                **dict.fromkeys(TOOLKIT, "1.13.5-1"),
                "nvidia-docker2": "2.13.0-1",
            }
        },
    ),
    "container-without-docker": (
        node(BOOKWORM, packages=TOOLKIT),
        {"nvidia_container_docker": "none", "nvidia_container_users": ["ubuntu"]},
        {
            "nvidia_container_present": TOOLKIT,
            "nvidia_container_lacking": [],
            "nvidia_container_docker_runs": True,
            "nvidia_container_users_missing": [],
        },
    ),
    "container-users": (
        node(BOOKWORM, groups={"docker": ["ada"]}, packages={"docker.io": "20.10.24", **TOOLKIT}),
        {"nvidia_container_users": ["ada", "bob"]},
        {"nvidia_container_users_missing": ["bob"], "nvidia_container_lacking": []},
    ),
    "container-driver": (
        node(
            BOOKWORM,
            said={
                "nvidia_smi_query": "0, GPU-aa, 570.172.08, Enabled\n1, GPU-bb, 570.172.08, Enabled\n",
                "nvidia_smi_list": "GPU 0: NVIDIA GB300 (UUID: GPU-aa)\nGPU 1: NVIDIA GB300 (UUID: GPU-bb)\n",
            },
        ),
        {},
        {"nvidia_container_driver": "570.172.08", "nvidia_container_gpus": ["GPU-aa", "GPU-bb"]},
    ),
}
ENTRIES = {"ofed": "system", "peer_memory": "choose", "nvidia_container": "system"}
"""The file of each role with the tasks that choose and change nothing, without its extension."""
ROLE_OF = {"ofed": "ofed", "peer": "peer_memory", "container": "nvidia_container"}
"""The role of a case, by the first word of the case's name."""
ANSWER = "{{ dict(asked | zip(query('ansible.builtin.vars', *asked))) }}"
"""Template of the requested variables, whose names are in the variable ``asked``, with their values."""


@pytest.fixture(scope="module")
def answers(root: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Run one playbook with a host for each case. Return the values of the requested variables, by case."""
    folder = tmp_path_factory.mktemp("tables")
    hosts = {
        name: {
            "rackproof_node": facts,
            "role": ROLE_OF[name.split("-")[0]],
            "ansible_connection": "local",
            "asked": list(asked),
        }
        | given
        for name, (facts, given, asked) in CASES.items()
    }
    (folder / "hosts.yml").write_text(json.dumps({"all": {"hosts": hosts}}))
    plays = []
    for role, entry in ENTRIES.items():
        plays.append(
            {
                "hosts": [name for name in CASES if ROLE_OF[name.split("-")[0]] == role],
                "gather_facts": False,
                "tasks": [
                    {"import_role": {"name": role, "tasks_from": entry}},
                    {"name": "Answer", "debug": {"msg": ANSWER}},
                ],
            }
        )
    (folder / "play.yml").write_text(json.dumps(plays))
    done = subprocess.run(
        [
            Path(sys.executable).with_name("ansible-playbook"),
            "-i",
            folder / "hosts.yml",
            folder / "play.yml",
            "--check",
        ],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
        env={
            **os.environ,
            "ANSIBLE_STDOUT_CALLBACK": "ansible.builtin.default",
            "ANSIBLE_CALLBACK_RESULT_FORMAT": "json",
            "ANSIBLE_NOCOLOR": "1",
            "ANSIBLE_FORKS": "2",
        },
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    found = {}
    for part in done.stdout.split("TASK [Answer]")[1:]:
        for answer in part.split("\nok: [")[1:]:
            name, answered, text = answer.partition("] => ")
            if not answered:
                continue  # a task of the next play
            found[name] = json.JSONDecoder().raw_decode(text)[0]["msg"]
    return found


@pytest.mark.playbook
@pytest.mark.parametrize("case", CASES)
def test_a_role_chooses_the_expected_values(answers: dict[str, dict[str, Any]], case: str) -> None:
    for name, expected in CASES[case][2].items():
        found = answers[case][name]
        if isinstance(expected, dict) and name == "peer_memory_choice":
            found = {key: found[key] for key in expected}
        assert found == expected, name


@pytest.mark.parametrize("role", ENTRIES)
def test_variables_begin_with_the_name_of_the_role(root: Path, role: str) -> None:
    paths = [path for part in ("defaults", "vars") for path in (root / "roles" / role / part).glob("*.yml")]
    assert paths
    for path in paths:
        assert all(name.startswith(f"{role}_") for name in yaml.safe_load(path.read_text())), path
