"""Fixtures that several suites share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent
pytest_plugins = ["testrack.tests.rack_fixtures"]


@pytest.fixture(scope="session")
def root() -> Path:
    """Return the root of the checkout."""
    return ROOT


@pytest.fixture(scope="session")
def shared() -> Path:
    """Return the folder of real logs beside the checkout; tests that need it skip without it."""
    folder = ROOT.parent / "shared"
    if not folder.is_dir():
        pytest.skip("../shared (real logs to test against) is not here")
    return folder


def _interpreter(root: Path, name: str) -> str:
    variable = f"RACKPROOF_{name.upper()}_PYTHON"
    path = Path(os.environ.get(variable, root / ".rackproof" / "runtimes" / name / "bin" / "python"))
    if not path.is_file():
        message = f"no Python with {name} at {path}; type `make runtimes` or set {variable}"
        if os.environ.get("CI") == "true":
            pytest.fail(message)
        pytest.skip(message)
    return str(path)


@pytest.fixture(scope="session")
def torch_python(root: Path) -> str:
    return _interpreter(root, "torch")


@pytest.fixture(scope="session")
def mxnet_python(root: Path) -> str:
    return _interpreter(root, "mxnet")
