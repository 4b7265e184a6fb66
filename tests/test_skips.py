"""Test that in CI a test is skipped only for a reason that conftest.py allows.

Otherwise a missing tool could silently skip a whole suite. Elsewhere, any reason is allowed.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

KNOWN = "this machine has nvidia-smi"
OTHER = "the data are not here"
KINDS = {
    "called": "def test_it():\n    pytest.skip({!r})\n",
    "fixture": "@pytest.fixture\ndef data():\n    pytest.skip({!r})\ndef test_it(data):\n    pass\n",
    "mark": "@pytest.mark.skipif(True, reason={!r})\ndef test_it():\n    pass\n",
    "module": "pytest.skip({!r}, allow_module_level=True)\n",
    "xfail": "@pytest.mark.xfail(reason={!r})\ndef test_it():\n    assert False\n",
}
"""A test file for each way to skip a test, with a place for the reason."""


def outcomes(root: Path, folder: Path, reason: str, ci: str) -> tuple[dict[str, str], str]:
    """Skip in every way below a copy of the tests' conftest.py. Return each outcome, and pytest's output."""
    hooks = (root / "conftest.py").read_text()
    (folder / "conftest.py").write_text(re.sub(r"^pytest_plugins = .*$", "", hooks, flags=re.MULTILINE))
    (folder / "pytest.ini").write_text("[pytest]\n")
    for kind, text in KINDS.items():
        (folder / f"test_{kind}.py").write_text("import pytest\n" + text.format(reason))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-rA", "-p", "no:cacheprovider", "--continue-on-collection-errors"],
        cwd=folder,
        env={**os.environ, "CI": ci, "PYTEST_ADDOPTS": "", "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        check=False,
    )
    summary = re.findall(r"^([A-Z]+) (?:\[1\] )?test_(\w+)\.py", done.stdout, re.MULTILINE)
    return {kind: outcome for outcome, kind in summary}, done.stdout


def test_a_skip_for_another_reason_fails_in_ci(root: Path, tmp_path: Path) -> None:
    found, said = outcomes(root, tmp_path, OTHER, "true")
    expected = {"called": "FAILED", "fixture": "ERROR", "mark": "ERROR", "module": "ERROR", "xfail": "XFAIL"}
    assert found == expected, said
    assert said.count(f"skipped in CI, for a reason that ALLOWED_SKIPS does not have: {OTHER}") >= 4


@pytest.mark.parametrize(("reason", "ci"), [(KNOWN, "true"), (f"{KNOWN} and two GPUs", "true"), (OTHER, "")])
def test_an_allowed_reason_skips_in_ci_and_any_reason_skips_elsewhere(
    root: Path, tmp_path: Path, reason: str, ci: str
) -> None:
    found, said = outcomes(root, tmp_path, reason, ci)
    assert found == {**dict.fromkeys(KINDS, "SKIPPED"), "xfail": "XFAIL"}, said


def test_every_allowed_reason_is_used(root: Path) -> None:
    source = (root / "conftest.py").read_text()
    listed = re.findall(r'^    "([^"]+)",$', source[: source.index("def ")], re.MULTILINE)
    assert listed
    texts = [
        path.read_text()
        for folder in ("tests", "testrack/tests")
        for path in (root / folder).rglob("*.py")
        if path.name != "test_skips.py"
    ]
    texts.append(source)
    unused = [one for one in listed if sum(text.count(f'"{one}') for text in texts) < 2]
    assert unused == []
