"""Provide fixtures for the tests of submissions: a results folder with ten good runs, and a system file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from rackproof.analysis.submission.description import SystemFile, load_system_file

from .corpus import SYSTEM, make_runs


@pytest.fixture(autouse=True)
def _own_history(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the environment variables that name another history or another results folder."""
    monkeypatch.delenv("RACKPROOF_DATABASE_URL", raising=False)
    monkeypatch.delenv("RACKPROOF_RESULTS", raising=False)


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """Return a results folder with ten good runs."""
    folder = tmp_path / "results"
    make_runs(folder)
    return folder


@pytest.fixture
def system_file(tmp_path: Path) -> Callable[..., Path]:
    """Return a function that writes a system file. A value of ``None`` leaves a key out."""

    def write(**changes: Any) -> Path:
        said = {key: value for key, value in (SYSTEM | changes).items() if value is not None}
        path = tmp_path / "system.yml"
        path.write_text(yaml.safe_dump(said))
        return path

    return write


@pytest.fixture
def system(system_file: Callable[..., Path]) -> SystemFile:
    """Return the content of the system file."""
    return load_system_file(system_file())
