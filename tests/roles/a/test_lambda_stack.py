"""Test role lambda_stack, which installs the NVIDIA driver, Fabric Manager and DCGM on a node.

A flavour is the source of these packages: Lambda Stack, NVIDIA's own repository, or none. The tests show
which packages each flavour requires on each operating system, and when a node already has them. They also
show which of the operator's versions the flavour does not use, so that the role can report it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.roles.a.typed_playbook import play_on

from .conftest import SYSTEMS, Renderer, node

ROLE = "lambda_stack"
BY_OS = "id"
FLAVOURS = ["", "lambda_stack", "nvidia", "none"]
ASKED = ["lambda_stack_chosen", "lambda_stack_wanted", "lambda_stack_unmet", "lambda_stack_packaged"]
ASKED += ["lambda_stack_running", "lambda_stack_persists", "lambda_stack_needs_reboot"]
ASKED += ["lambda_stack_umad_due"]
ASKED += ["lambda_stack_idle_units", "lambda_stack_fabric_fits", "lambda_stack_dropped"]
# Packages that every flavour but "none" requires: headers of the running kernel, and DCGM of any epoch.
HEADERS = {"linux-headers-6.1.0-30-amd64": ""}
DCGM = {"datacenter-gpu-manager-4-core": "*:4.4.1-*"}

pytestmark = pytest.mark.playbook


def installed(**versions: str) -> dict[str, dict[str, Any]]:
    """Return held packages, as the fact lists them. An underscore in a name becomes a hyphen."""
    return {name.replace("_", "-"): {"version": version, "held": True} for name, version in versions.items()}


WHOLE = installed(
    nvidia_open="580.95.05-1",
    nvidia_driver_cuda="580.95.05-1",
    nvidia_fabricmanager="580.95.05-1",
    datacenter_gpu_manager_4_core="1:4.4.1-1",
)
ANSWER = {"status": "ok", "stdout": "0, GPU-a, 580.95.05, Enabled\n1, GPU-b, 580.95.05, Enabled\n"}
UP = {"active": True, "enabled": True, "failed": False}


def provisioned(**changes: Any) -> dict[str, Any]:
    """Return a node that has all that the role requires, except for ``changes`` in its fact."""
    given = {
        "container": True,
        "packages": WHOLE,
        "commands": {"nvidia_smi_query": ANSWER},
        "services": {
            "nvidia-persistenced.service": UP,
            "nvidia-fabricmanager.service": UP,
            "nvidia-dcgm.service": UP,
        },
    }
    return {
        "rackproof_node": node(**{**given, **changes}),
        "lambda_stack_fabric_manager": True,
    }


@pytest.fixture(scope="module")
def rendered(render: Renderer) -> dict[str, dict[str, Any]]:
    """Return the role's variables of each case: bare nodes, and provisioned nodes with one difference."""
    cases = {
        f"{system}-{flavour or 'default'}": {
            "rackproof_node": node(system),
            "lambda_stack_flavour": flavour,
            "lambda_stack_version": "0.1.16~jammy1",
            "lambda_stack_fabric_manager": True,
        }
        for system in SYSTEMS
        for flavour in FLAVOURS
    }
    cases |= {
        f"{system}-{flavour or 'default'}-driver": {
            "rackproof_node": node(system),
            "lambda_stack_flavour": flavour,
            "lambda_stack_driver_version": "570.172.08",
        }
        for system in SYSTEMS
        for flavour in FLAVOURS
    }
    loose = {name: {**one, "held": False} for name, one in WHOLE.items()}
    off = {"active": True, "enabled": False, "failed": False}
    said = {"status": "no_driver", "stdout": "Failed to initialize NVML: Driver/library version mismatch\n"}
    cases |= {
        "whole": provisioned(),
        "not held": provisioned(packages=loose),
        "older": provisioned(packages={**WHOLE, **installed(nvidia_open="580.95.04-1")}),
        "other dcgm": provisioned(packages={**WHOLE, **installed(datacenter_gpu_manager_4_core="1:4.3.0-1")}),
        # 4.4.10 begins like 4.4.1, but is another version.
        "longer dcgm": provisioned(
            packages={**WHOLE, **installed(datacenter_gpu_manager_4_core="1:4.4.10-1")}
        ),
        "other fabric": provisioned(packages={**WHOLE, **installed(nvidia_fabricmanager="570.172.08-1")}),
        "mismatch": provisioned(commands={"nvidia_smi_query": said}),
        "idle": provisioned(services={"nvidia-persistenced.service": off, "nvidia-dcgm.service": UP}),
        "b200": {**provisioned(), "lambda_stack_nvlsm": True},
        "b200 without driver": {**provisioned(), "lambda_stack_nvlsm": True, "lambda_stack_flavour": "none"},
        "volatile": provisioned(
            commands={
                "nvidia_smi_query": {**ANSWER, "stdout": ANSWER["stdout"].replace("Enabled", "Disabled")}
            }
        ),
    }
    return render(cases, ASKED)


@pytest.mark.parametrize("system", SYSTEMS)
def test_the_default_flavour(rendered: dict[str, dict[str, Any]], system: str) -> None:
    expected = "lambda_stack" if system.startswith("ubuntu") else "nvidia"
    assert rendered[f"{system}-default"]["lambda_stack_chosen"] == expected


@pytest.mark.parametrize("system", SYSTEMS)
def test_what_each_flavour_wants(rendered: dict[str, dict[str, Any]], system: str) -> None:
    assert rendered[f"{system}-none"]["lambda_stack_wanted"] == {}
    assert rendered[f"{system}-lambda_stack"]["lambda_stack_wanted"] == {
        "lambda-stack-cuda": "0.1.16~jammy1",
        **HEADERS,
        **DCGM,
    }
    debian = {"nvidia-open": "580.95.05-1", "nvidia-driver-cuda": "580.95.05-1"}
    ubuntu = {"nvidia-open": "580.95.05-0ubuntu*"}
    assert rendered[f"{system}-nvidia"]["lambda_stack_wanted"] == {
        **(ubuntu if system.startswith("ubuntu") else debian),
        "nvidia-fabricmanager": "580.95.05-1*" if system.startswith("ubuntu") else "580.95.05-1",
        **HEADERS,
        **DCGM,
    }
    bare = rendered[f"{system}-nvidia"]
    assert set(bare["lambda_stack_unmet"]) == set(bare["lambda_stack_wanted"])


@pytest.mark.parametrize("system", SYSTEMS)
@pytest.mark.parametrize("flavour", [one or "default" for one in FLAVOURS])
def test_a_version_that_the_flavour_drops_is_named(
    rendered: dict[str, dict[str, Any]], system: str, flavour: str
) -> None:
    for suffix, name, installs in (
        ("", "lambda_stack_version", "lambda_stack"),
        ("-driver", "lambda_stack_driver_version", "nvidia"),
    ):
        case = rendered[f"{system}-{flavour}{suffix}"]
        assert case["lambda_stack_dropped"] == ([] if case["lambda_stack_chosen"] == installs else [name])


def test_a_chosen_driver_is_wanted_in_its_version(rendered: dict[str, dict[str, Any]]) -> None:
    assert rendered["debian-13-nvidia-driver"]["lambda_stack_wanted"]["nvidia-open"] == "570.172.08-1"
    assert (
        rendered["ubuntu-22.04-nvidia-driver"]["lambda_stack_wanted"]["nvidia-open"] == "570.172.08-0ubuntu*"
    )
    assert rendered["whole"]["lambda_stack_dropped"] == []


def test_a_node_that_has_it_all_is_left_alone(rendered: dict[str, dict[str, Any]]) -> None:
    whole = rendered["whole"]
    assert whole["lambda_stack_unmet"] == []
    assert whole["lambda_stack_idle_units"] == []
    assert whole["lambda_stack_running"] == whole["lambda_stack_packaged"] == "580.95.05"
    assert whole["lambda_stack_persists"] is True
    assert whole["lambda_stack_needs_reboot"] is False
    assert whole["lambda_stack_fabric_fits"] is True


@pytest.mark.parametrize(
    ("case", "names"),
    [
        ("not held", set(WHOLE)),
        ("older", {"nvidia-open"}),
        ("other dcgm", {"datacenter-gpu-manager-4-core"}),
        ("longer dcgm", {"datacenter-gpu-manager-4-core"}),
        ("other fabric", {"nvidia-fabricmanager"}),
        ("mismatch", set()),
    ],
)
def test_what_a_node_lacks(rendered: dict[str, dict[str, Any]], case: str, names: set[str]) -> None:
    assert set(rendered[case]["lambda_stack_unmet"]) == names


def test_an_hgx_b200_needs_the_subnet_manager_of_its_nvlinks(rendered: dict[str, dict[str, Any]]) -> None:
    assert rendered["b200"]["lambda_stack_wanted"]["nvlsm"] == ""
    assert rendered["b200"]["lambda_stack_unmet"] == ["nvlsm"]
    assert rendered["b200"]["lambda_stack_umad_due"] is True
    assert rendered["b200 without driver"]["lambda_stack_wanted"] == {}
    assert rendered["b200 without driver"]["lambda_stack_umad_due"] is False
    assert "nvlsm" not in rendered["whole"]["lambda_stack_wanted"]
    assert rendered["whole"]["lambda_stack_umad_due"] is False


def test_what_else_is_seen(rendered: dict[str, dict[str, Any]]) -> None:
    assert rendered["mismatch"]["lambda_stack_needs_reboot"] is True
    assert rendered["other fabric"]["lambda_stack_fabric_fits"] is False
    # The unit runs, but is not enabled at boot. A unit that the node does not have is not required.
    assert rendered["idle"]["lambda_stack_idle_units"] == ["nvidia-persistenced.service"]
    assert rendered["volatile"]["lambda_stack_persists"] is False


def test_a_kernel_without_ib_umad_fails_with_the_remedy(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    modprobe = tmp_path / "modprobe"
    modprobe.write_text('#!/bin/sh\necho "modprobe: FATAL: Module $1 not found" >&2\nexit 1\n')
    modprobe.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    host = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable, **provisioned()}
    (tmp_path / "hosts.json").write_text(json.dumps({"all": {"hosts": {"n1": host}}}))
    role = {"name": "lambda_stack", "rolespec_validate": False}
    play = {"hosts": "all", "gather_facts": False, "tasks": [{"ansible.builtin.import_role": role}]}
    (tmp_path / "play.json").write_text(json.dumps([play]))
    # The tasks before would write to this machine.
    options = ("--start-at-task", "Load ib_umad", "-e", '{"lambda_stack_umad_due": true}')
    printed = " ".join(play_on(tmp_path / "hosts.json", tmp_path / "play.json", root, *options).split())
    assert "cannot be loaded: modprobe: FATAL: Module ib_umad not found." in printed
    assert "install its package linux-modules-extra, and run provision.yml again." in printed
