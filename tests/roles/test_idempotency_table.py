"""Test the table in CONTRIBUTING.md that names for each role the test that runs it a second time.

A second run of a role must change nothing. These tests show that the table has every role, and that each
named test exists.
"""

from __future__ import annotations

import re
from pathlib import Path

import yaml


def table(root: Path) -> dict[str, str]:
    """Return the table's second column, by role."""
    section = (root / "CONTRIBUTING.md").read_text().split("## Add a role")[1].split("\n## ")[0]
    rows = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("| ")][2:]
    found = [(role, proof) for roles, proof in rows for role in roles.split(", ")]
    assert len(dict(found)) == len(found), "a role is in two rows"
    return dict(found)


def test_each_role_has_a_row(root: Path) -> None:
    assert set(table(root)) == {path.name for path in (root / "roles").iterdir() if path.is_dir()}


def test_each_row_names_a_test_that_exists(root: Path) -> None:
    for role, proof in table(root).items():
        tests = re.findall(r"`([^`]+\.py)(?:::(\w+))?`", proof)
        assert tests, role
        for path, name in tests:
            assert f"def {name}" in (root / path).read_text(), (role, path, name)
        assert all(name for _, name in tests), role


def test_molecules_roles_are_those_that_its_scenarios_run(root: Path) -> None:
    """Check that the rows of Molecule have the roles that provision.yml includes.

    Every scenario must run provision.yml, and none may leave out the step `idempotence`.
    """
    folder = root / "roles/provision/tasks"
    tasks = "".join((folder / name).read_text() for name in ("check.yml", "install.yml"))
    included = set(re.findall(r"_role:\n\s+name: (\w+)", tasks)) | {"provision"}
    assert {role for role, proof in table(root).items() if "Molecule" in proof} == included
    for converge in root.glob("molecule/*/converge.yml"):
        assert "provision.yml" in converge.read_text()
        scenario = yaml.safe_load((converge.parent / "molecule.yml").read_text())
        sequence = scenario.get("scenario", {}).get("test_sequence", ["idempotence"])
        assert "idempotence" in sequence, converge.parent.name
