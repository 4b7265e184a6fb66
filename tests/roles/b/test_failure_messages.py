"""Test what the roles peer_memory and imex print if a module or a service does not start.

The tests fill in the messages of the roles' tasks with values of made-up nodes.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jinja2
import pytest
import yaml

ENVIRONMENT = jinja2.Environment()  # noqa: S701  (not HTML)
# Tests and filters that Ansible adds to Jinja.
ENVIRONMENT.tests["search"] = lambda text, pattern: re.search(pattern, text) is not None
ENVIRONMENT.tests["changed"] = lambda result: bool(result.get("changed"))
ENVIRONMENT.filters["task_failure"] = lambda result: result["msg"]

NO_SYMBOL = "modprobe: ERROR: could not insert 'x': Unknown symbol in module"


def tasks_of(root: Path, file: str) -> list[dict[str, Any]]:
    tasks: list[dict[str, Any]] = yaml.safe_load((root / "roles" / file).read_text())
    return tasks


def reason_not_loaded(root: Path, method: str, journal: list[str]) -> str:
    """Return role peer_memory's message about a method's module, after these lines of the journal."""
    (block,) = [task for task in tasks_of(root, "peer_memory/tasks/load.yml") if "rescue" in task]
    (task,) = [one for one in block["rescue"] if "ansible.builtin.fail" in one]
    values: dict[str, Any] = {
        "inventory_hostname": "n1",
        "peer_memory_way": {"module": method},
        "peer_memory_choice": {"method": method},
        "peer_memory_journal": {"stdout_lines": journal},
        "ansible_failed_result": {"msg": "Unable to restart the service"},
    }
    for name in ("peer_memory_why", "peer_memory_rebuild", "peer_memory_advice"):
        values[name] = ENVIRONMENT.from_string(task["vars"][name]).render(values)
    return ENVIRONMENT.from_string(task["ansible.builtin.fail"]["msg"]).render(values)


@pytest.mark.parametrize(
    ("method", "journal", "advice"),
    [
        ("nvidia_peermem", [NO_SYMBOL], "dkms build --force nvidia/VERSION"),
        ("nvidia_peermem", ["FATAL: Module nvidia-peermem not found"], "dkms build --force nvidia/VERSION"),
        ("nvidia_peermem", ["modprobe: ERROR: No such device"], "Read dmesg on the node"),
        # The driver does not contain the module of this method.
        ("nv_peer_mem", [NO_SYMBOL], "Read dmesg on the node"),
        ("nv_peer_mem", [], "Unable to restart the service"),
    ],
)
def test_the_driver_is_built_again_only_for_a_module_of_the_driver(
    root: Path, method: str, journal: list[str], advice: str
) -> None:
    message = reason_not_loaded(root, method, journal)
    assert message.startswith(f"n1: {method} cannot be loaded: ")
    assert advice in message
    assert ("nvidia/VERSION" in message) == ("nvidia/VERSION" in advice)
    assert all(line in message for line in journal)


def test_a_systemd_file_that_cannot_be_written_is_not_a_module_that_cannot_be_loaded(root: Path) -> None:
    (block,) = [task for task in tasks_of(root, "peer_memory/tasks/load.yml") if "rescue" in task]
    assert not [task["name"] for task in block["block"] if "rackproof_files" in task]


@pytest.mark.parametrize(
    ("result", "versions"),
    [
        # The facts have the version from before an installation, which installs the driver's.
        ({"changed": True}, "nvidia-imex 580.95.05 does not run with driver 580.95.05:"),
        ({"skipped": True}, "nvidia-imex 570.1-1 does not run with driver 580.95.05:"),
    ],
)
def test_imex_that_does_not_run_is_named_with_its_present_version(
    root: Path, result: dict[str, bool], versions: str
) -> None:
    (task,) = [one for one in tasks_of(root, "imex/tasks/setup.yml") if one["name"] == "Check that IMEX runs"]
    message = ENVIRONMENT.from_string(task["ansible.builtin.assert"]["fail_msg"]).render(
        inventory_hostname="n1",
        imex_installed=result,
        imex_installed_version="570.1-1",
        imex_driver="580.95.05",
        imex_started={},
        imex_state={"stdout_lines": ["failed", "no address"]},
        imex_config="/etc/imex",
    )
    assert message.startswith(f"n1: {versions}")
    assert "no address" in message
