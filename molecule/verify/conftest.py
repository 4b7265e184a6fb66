"""Provide the checks of a provisioned node with the values that they expect.

The files test_*.py beside this one check a node of the test rack or a real node. Each scenario of Molecule
runs them in its step ``verify``. To check a rack of your own, type::

    pytest molecule/verify --hosts='ansible://gb300-rack' --ansible-inventory=inventory/hosts.yml

The expected values come from the scenario's vars.yml, else from the inventory, else from the roles' defaults.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
ROLE_DEFAULTS = {
    name: value
    for path in sorted(ROOT.glob("roles/*/defaults/main.yml"))
    for name, value in (yaml.safe_load(path.read_text()) or {}).items()
}
Expected = Callable[[str], Any]


@pytest.fixture
def expected(host: Any) -> Expected:
    """Return a function that gives the value of a variable on the host."""
    scenario = Path(os.environ.get("MOLECULE_SCENARIO_DIRECTORY", ROOT)) / "vars.yml"
    given = yaml.safe_load(scenario.read_text()) if scenario.exists() else {}
    inventory = host.ansible.get_variables()

    def of(name: str) -> Any:
        for known in (given, inventory, ROLE_DEFAULTS):
            if name in known:
                value = known[name]
                assert "{{" not in str(value), f"{name}: the value has to be plain, not {value}"
                return value
        raise KeyError(f"{name}: neither in vars.yml, nor in the inventory, nor a role's default")

    return of
