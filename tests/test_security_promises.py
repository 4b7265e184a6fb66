"""Each promise of SECURITY.md names the test that holds it, and that test is there."""

from __future__ import annotations

import re
from pathlib import Path

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


def test_the_tests_that_promises_name_are_there(root: Path) -> None:
    named = re.findall(
        r"`((?:tests|testrack/tests)/[\w/.-]+\.py)(?:::(\w+))?`", (root / "SECURITY.md").read_text()
    )
    assert len(named) >= 12
    for path, test in named:
        assert (root / path).is_file(), path
        assert not test or f"def {test}(" in (root / path).read_text(), f"{path}::{test}"
