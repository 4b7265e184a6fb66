"""Test that tasks hide the secrets that they use, and that no task requires a login as root.

Ansible prints a task's options with -v and if the task fails. A task with a secret therefore has ``no_log``,
or gives the secret only to options that the module itself hides. The tests read the tasks of all roles.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
TASKS = sorted(
    path
    for pattern in ("roles/*/tasks/**/*.yml", "roles/*/handlers/*.yml", "playbooks/*.yml")
    for path in ROOT.glob(pattern)
)
# Options that the modules themselves hide: of ansible.builtin.uri and of Rackproof's own.
HIDDEN_OPTIONS = {"url_password", "secret", "secret_base64", "password", "secret_environment", "bmc"}
BLOCKS = ("block", "rescue", "always", "tasks", "pre_tasks", "post_tasks", "handlers")
# Keys of a task that are not its module.
KEYWORDS = re.compile(
    r"name|when|vars|register|loop.*|until|retries|delay|tags|delegate_.*|.*_when|become.*|no_log|notify|args"
)


def tasks_in(entries: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield each task of a file, also those in blocks and plays."""
    for entry in entries:
        yield entry
        for key in BLOCKS:
            yield from tasks_in(entry.get(key) or [])


@cache
def secret_variables() -> set[str]:
    """Return the secret options of all roles, and the variables that roles make from them."""
    names: set[str] = {"ngc_api_key"}
    for path in ROOT.glob("roles/*/meta/argument_specs.yml"):
        for spec in yaml.safe_load(path.read_text())["argument_specs"].values():
            names |= {name for name, option in (spec.get("options") or {}).items() if option.get("no_log")}
    made = {
        name: str(value)
        for path in ROOT.glob("roles/*/vars/main.yml")
        for name, value in (yaml.safe_load(path.read_text()) or {}).items()
    }
    # These variables have only a secret's length or hash.
    harmless = re.compile(r"\w+_(?:login|login_due|due|sum)")
    while True:
        more = {
            name
            for name, value in made.items()
            if not harmless.fullmatch(name)
            and (uses(value, names) or "credentials.j2" in value or "passwd-s3fs.j2" in value)
        }
        if more <= names:
            return names
        names |= more


def uses(value: object, names: set[str]) -> bool:
    """Return whether a value contains one of the names as a word."""
    return not names.isdisjoint(re.findall(r"\w+", str(value)))


def shown(value: Any, names: set[str]) -> bool:
    """Return whether options of a module use a secret in one that the module does not hide."""
    if isinstance(value, dict):
        return any(shown(one, names) for key, one in value.items() if key not in HIDDEN_OPTIONS)
    if isinstance(value, list):
        return any(shown(one, names) for one in value)
    return uses(value, names)


@pytest.mark.parametrize("path", TASKS, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_task_with_a_secret_hides_it(path: Path) -> None:
    names = secret_variables()
    for task in tasks_in(yaml.safe_load(path.read_text()) or []):
        options = {
            key: value for key, value in task.items() if not KEYWORDS.fullmatch(key) and key not in BLOCKS
        }
        for module, value in options.items():
            # Ansible shows no values of an assertion. The named task of role bench publishes only the names
            # and the lengths of secrets.
            harmless = (
                module in ("ansible.builtin.assert", "ansible.builtin.fail")
                or task["name"] == "Publish the variables that the plan needs"
            )
            assert task.get("no_log") or harmless or not shown(value, names), f"{path.name}: {task['name']}"


def test_a_variable_that_is_made_from_a_secret_is_secret() -> None:
    assert {
        "storage_secret",
        "enroot_pyxis_auth",
        "enroot_pyxis_secrets",
        "reimage_bmc_password",
    } <= secret_variables()


@pytest.mark.parametrize("path", [*TASKS, ROOT / "ansible.cfg"], ids=lambda path: str(path.relative_to(ROOT)))
def test_no_task_requires_a_login_as_root(path: Path) -> None:
    text = path.read_text()
    assert not re.search(r"remote_user|become: *(?:false|no)|ansible_user *==|\$HOME|~root", text)
