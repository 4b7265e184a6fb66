"""Test that each promise in SECURITY.md names an existing test that a suite runs.

SECURITY.md has a table of promises for each adversary, such as a hostile node.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ADVERSARIES = (
    "A node",
    "A user of the controller or of a node",
    "A host of the provisioning network",
    "A supplier",
)


def test_every_adversary_has_promises_with_tests_and_what_is_not_defended(root: Path) -> None:
    text = (root / "SECURITY.md").read_text()
    for name in ADVERSARIES:
        section = text.split(f"### {name}\n", 1)[1].split("\n### ", 1)[0].split("\n## ", 1)[0]
        assert "Not defended" in section, name
        rows = [
            line
            for line in section.splitlines()
            if line.startswith("| ") and not line.startswith(("| promise", "| ---"))
        ]
        assert len(rows) >= 3, name
        assert [
            row for row in rows if "`tests/" not in row and "`testrack/" not in row and "`make " not in row
        ] == []


def problems(root: Path, text: str) -> list[str]:
    """Return the tests that a text names in backquotes and that do not exist, or that no suite runs."""
    found = []
    suites = (root / "tools/proof/suites.toml").read_text()
    for named in re.findall(r"`((?:tests|testrack)/[^`]*)`", text):
        path, _, test = named.partition("::")
        code = (root / path).read_text() if (root / path).is_file() else ""
        if not code:
            found.append(f"{named}: no such file")
        elif not Path(path).name.startswith("test_"):
            found += [] if f"python {path}" in suites else [f"{named}: no suite runs it"]
        elif not re.search(rf"^def {test}\(" if test else r"^def test_", code, re.M):
            found.append(f"{named}: no such test")
    return found


def test_the_tests_that_promises_name_exist(root: Path) -> None:
    text = (root / "SECURITY.md").read_text()
    assert len(re.findall(r"`(?:tests|testrack)/", text)) >= 40
    assert problems(root, text) == []


@pytest.mark.parametrize(
    ("named", "problem"),
    [
        ("tests/test_no_such.py", "no such file"),
        ("tests/jobs/validate", "no such file"),
        ("tests/test_downloads.py::test_no_such", "no such test"),
        ("tests/test_security_promises.py::problem", "no such test"),
        ("tests/perf/bench_fleet.py", "no suite runs it"),
        ("tests/perf/hostile_fleet.py", ""),
        ("tests/test_downloads.py", ""),
    ],
)
def test_a_test_that_does_not_exist_or_is_not_run_is_found(root: Path, named: str, problem: str) -> None:
    assert problems(root, f"| a promise | `{named}` |") == ([f"{named}: {problem}"] if problem else [])
