"""Test the parts of the mirror that differ between releases of Debian, and its wait for another apt.

pyxis is compiled against the Slurm of each release, so the mirror needs the headers of each. A release that
is added later must not change pyxis.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
from rackmirror import debian

MIRROR = Path(__file__).resolve().parents[3] / "testrack/mirror"

NAME = "libslurm-dev"


@pytest.fixture
def archive(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Fake Debian's archive. Return its versions by codename. A test can remove a release."""
    has = {"bookworm": "22.05.8-4", "trixie": "24.11.5-4"}

    def run(command: list[str], complaint: str, folder: Path | None = None) -> None:
        codename = command[0]
        if codename not in has:
            raise debian.DebianError(complaint)
        if folder:
            (folder / f"{NAME}_{has[codename]}_amd64.deb").touch()

    monkeypatch.setattr(debian, "_private_apt", lambda codename, status, work: [codename])
    monkeypatch.setattr(debian, "_run", run)
    return has


@pytest.fixture
def builder() -> ModuleType:
    """Return testrack/mirror/build.py as a module."""
    spec = importlib.util.spec_from_file_location("mirror_build", MIRROR / "build.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    "lock",
    [
        "E: Could not get lock /var/lib/dpkg/lock-frontend. It is held by process 2879 (apt-get)",
        "E: Unable to lock directory /var/lib/apt/lists/",
        "E: Unable to acquire the dpkg frontend lock, is another process using it?",
    ],
)
def test_another_apt_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, builder: ModuleType, lock: str
) -> None:
    held = tmp_path / "held"
    held.touch()
    apt = tmp_path / "apt-get"
    apt.write_text(f'#!/bin/sh\nif [ -e {held} ]; then echo "{lock}" >&2; exit 100; fi\n')
    apt.chmod(0o755)
    monkeypatch.setattr(builder.time, "sleep", lambda _: held.unlink())
    assert builder.run_apt([str(apt), "update"], {}).returncode == 0
    assert not held.exists()


def test_a_package_is_the_pools_else_downloaded_once(tmp_path: Path, archive: dict[str, str]) -> None:
    pool, kept = tmp_path / "pool", tmp_path / "kept"
    found = debian.one(NAME, "trixie", tmp_path, pool, kept)
    assert found == kept / f"{NAME}_24.11.5-4_amd64.deb"
    archive.clear()
    assert debian.one(NAME, "trixie", tmp_path, pool, kept) == found
    pool.mkdir()
    (pool / f"{NAME}_24.11.6-1_amd64.deb").touch()
    assert debian.one(NAME, "trixie", tmp_path, pool, kept).parent == pool


def test_a_release_that_comes_later_is_compiled_for_from_the_first(
    tmp_path: Path, archive: dict[str, str], builder: ModuleType
) -> None:
    mirror = builder.Mirror(tmp_path / "mirror")
    before = {codename: path.name for codename, path in mirror._slurm_headers().items()}
    assert list(before) == ["bookworm", "trixie"]
    pool = tmp_path / "mirror/debian/pool/trixie"
    pool.mkdir(parents=True)
    (pool / f"{NAME}_24.11.5-4_amd64.deb").touch()
    assert {codename: path.name for codename, path in mirror._slurm_headers().items()} == before


def test_only_a_release_that_nodes_have_must_be_there(
    tmp_path: Path, archive: dict[str, str], builder: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    mirror = builder.Mirror(tmp_path / "mirror")
    del archive["trixie"]
    assert list(mirror._slurm_headers()) == ["bookworm"]
    assert "no pyxis for Debian trixie" in capsys.readouterr().err
    (tmp_path / "mirror/debian/pool/trixie").mkdir(parents=True)
    with pytest.raises(debian.DebianError):
        mirror._slurm_headers()
