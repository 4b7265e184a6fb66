"""Fixtures that several suites share."""

from __future__ import annotations

import lzma
import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def root() -> Path:
    """Return the root of the checkout."""
    return ROOT


@pytest.fixture(scope="session")
def real_logs(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the real logs of tests/data/real; the compressed ones are unpacked."""
    data = root / "tests" / "data" / "real"
    folder = tmp_path_factory.mktemp("real")
    for source in data.glob("*/**/*"):
        if source.is_file():
            packed = source.suffix == ".xz"
            target = folder / (source.with_suffix("") if packed else source).relative_to(data)
            target.parent.mkdir(parents=True, exist_ok=True)
            content = source.read_bytes()
            target.write_bytes(lzma.decompress(content) if packed else content)
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
