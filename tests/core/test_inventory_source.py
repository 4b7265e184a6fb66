"""Test which inventories a command without ``-i`` reads (core/inventory_source.py): the same as Ansible."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from rackproof.core.inventory_source import configured_inventories, default_inventories, same_inventories

HERE, THERE = "[defaults]\ninventory = hosts,more/hosts\n", "[defaults]\ninventory = cluster, /abs/x\n"


@pytest.fixture
def there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return another folder with a configuration. The current folder has one, too."""
    for name, text in (("here", HERE), ("there", THERE)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "ansible.cfg").write_text(text)
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("ANSIBLE_CONFIG", "ANSIBLE_INVENTORY"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "there"


@pytest.mark.parametrize("config", ["{there}/ansible.cfg", "{there}", "~/there/ansible.cfg", "../there"])
def test_the_file_of_ansible_config_goes_before_the_current_folder(
    there: Path, monkeypatch: pytest.MonkeyPatch, config: str
) -> None:
    monkeypatch.setenv("ANSIBLE_CONFIG", config.format(there=there))
    assert same_inventories(default_inventories(), (f"{there}/cluster", "/abs/x"))
    # A page is read in another environment.
    assert configured_inventories() == ("hosts", "more/hosts")


@pytest.mark.parametrize("config", ["", "/nonexistent.cfg", "ansible.cfg", "."])
def test_without_another_file_the_current_folder_decides(
    there: Path, monkeypatch: pytest.MonkeyPatch, config: str
) -> None:
    monkeypatch.setenv("ANSIBLE_CONFIG", config)
    assert same_inventories(default_inventories(), ("hosts", "more/hosts"))
    assert default_inventories()[0] in ("hosts", "./hosts")


@pytest.mark.parametrize("text", ["", "[defaults]\n", "[defaults\n", "[defaults]\ninventory =\n"])
def test_a_file_without_an_inventory_leaves_the_usual_one(
    there: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    (there / "ansible.cfg").write_text(text)
    monkeypatch.setenv("ANSIBLE_CONFIG", str(there))
    assert default_inventories() == ("inventory",)


def test_the_variable_with_inventories_goes_before_all(there: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANSIBLE_CONFIG", str(there))
    monkeypatch.setenv("ANSIBLE_INVENTORY", "a, b/c")
    assert default_inventories() == ("a", "b/c")


@pytest.mark.slow
@pytest.mark.parametrize("config", ["{there}/ansible.cfg", "{there}", "~/there/ansible.cfg", "", "/none.cfg"])
def test_ansible_itself_reads_the_same_inventories(
    there: Path, monkeypatch: pytest.MonkeyPatch, config: str
) -> None:
    monkeypatch.setenv("ANSIBLE_CONFIG", config.format(there=there))
    shown = subprocess.run(
        ["ansible-config", "dump", "--format", "json"], env=os.environ, capture_output=True, check=True
    )
    options = {option["name"]: option.get("value") for option in json.loads(shown.stdout) if "name" in option}
    assert same_inventories(default_inventories(), options["DEFAULT_HOST_LIST"])
