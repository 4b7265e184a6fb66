"""Test the parts of a release: one version, the wheel, the tarball and their digests.

The wheel must have all files that the package needs without a checkout.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

import pytest

import rackproof

HEADING = re.compile(r"^## (?:(Unreleased)|(\d+\.\d+\.\d+) \((\d{4}-\d{2}-\d{2})\))$", re.MULTILINE)


def project(root: Path) -> dict[str, object]:
    """Return the table `project` of pyproject.toml."""
    found: dict[str, object] = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    return found


def problem_of_headings(headings: Sequence[str], version: str) -> str:
    """Return what is wrong with the headings of a changelog for a version, or ""."""
    found = [HEADING.fullmatch(one) for one in headings]
    wrong = [one for one, match in zip(headings, found, strict=True) if match is None]
    if wrong or not found:
        return f"neither Unreleased nor VERSION (DATE): {wrong}"
    released = [match[2] for match in found if match and match[2]]
    if [match for match in found[1:] if match and match[1]]:
        return "Unreleased is not the first"
    numbers = [tuple(map(int, one.split("."))) for one in released]
    if numbers != sorted(numbers, reverse=True) or len(set(numbers)) < len(numbers):
        return "releases are not in order"
    own = tuple(map(int, version.split(".")))
    is_open = bool(found[0] and found[0][1])
    if is_open:
        # An unreleased version has to be newer than all releases.
        return f"{version} was released already" if numbers and own <= numbers[0] else ""
    return "" if own == numbers[0] else f"the version is {version}, the newest release {released[0]}"


def test_the_changelog_has_the_version(root: Path) -> None:
    headings = re.findall(r"(?m)^## .*$", (root / "CHANGELOG.md").read_text())
    assert not problem_of_headings(headings, str(project(root)["version"]))


@pytest.mark.parametrize(
    ("headings", "version", "is_right"),
    [
        (["## Unreleased"], "0.1.0", True),
        (["## Unreleased", "## 0.1.0 (2026-12-01)"], "0.2.0", True),
        (["## 0.1.0 (2026-12-01)"], "0.1.0", True),
        (["## Unreleased", "## 0.1.0 (2026-12-01)"], "0.1.0", False),
        (["## 0.2.0 (2027-01-01)", "## 0.1.0 (2026-12-01)"], "0.1.0", False),
        (["## 0.1.0 (2026-12-01)", "## 0.2.0 (2027-01-01)"], "0.1.0", False),
        (["## 0.1.0 (2026-12-01)", "## Unreleased"], "0.1.0", False),
        (["## 0.1.0"], "0.1.0", False),
        ([], "0.1.0", False),
    ],
)
def test_a_changelog_that_does_not_fit_is_found(headings: list[str], version: str, is_right: bool) -> None:
    assert (problem_of_headings(headings, version) == "") is is_right


def test_the_installed_package_and_the_command_have_the_version(root: Path) -> None:
    version = project(root)["version"]
    assert metadata.version("rackproof") == rackproof.__version__ == version
    done = subprocess.run(
        [Path(sys.executable).with_name("rackproof"), "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout == f"rackproof {version}\n"


def test_a_checkout_that_is_not_installed_has_a_version_too(root: Path, tmp_path: Path) -> None:
    """With ``PYTHONPATH=src`` and without the package's metadata, there is no traceback."""
    shutil.copytree(root / "src/rackproof", tmp_path / "rackproof")
    program = (
        "import importlib.metadata as m\n"
        "def absent(name): raise m.PackageNotFoundError(name)\n"
        "m.version = absent\n"
        "from rackproof.cli.main import main\nmain(['--version'])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout.startswith("rackproof")) == (0, True), done.stderr


@pytest.fixture(scope="module")
def wheel(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a wheel that was built from a copy of the tree, because building leaves folders behind."""
    folder = tmp_path_factory.mktemp("wheel")
    tree = folder / "tree"
    ignored = shutil.ignore_patterns("*.egg-info", "__pycache__")
    shutil.copytree(root / "src", tree / "src", ignore=ignored)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(root / name, tree)
    subprocess.run(
        [
            *(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"),
            *("--no-index", "--wheel-dir", folder, tree),
        ],
        check=True,
        capture_output=True,
    )
    (found,) = folder.glob("*.whl")
    return found


@pytest.mark.slow
def test_the_wheel_has_all_files_of_the_packages_and_no_others(root: Path, wheel: Path) -> None:
    version = project(root)["version"]
    assert wheel.name == f"rackproof-{version}-py3-none-any.whl"
    listed = subprocess.run(
        ["git", "ls-files", "src", "--cached", "--others", "--exclude-standard"],
        cwd=root, capture_output=True, text=True, check=True,
    ).stdout.split()  # fmt: skip
    wanted = {path.removeprefix("src/") for path in listed if (root / path).exists()}
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        info = f"rackproof-{version}.dist-info"
        about = archive.read(f"{info}/METADATA").decode()
        scripts = archive.read(f"{info}/entry_points.txt").decode()
    assert {name for name in names if not name.startswith(info)} == wanted
    assert f"\nVersion: {version}\n" in about
    assert f"rackproof = {project(root)['scripts']['rackproof']}\n" in scripts
    assert f"{info}/licenses/LICENSE" in names


@pytest.mark.slow
def test_the_wheel_works_without_a_checkout(wheel: Path, tmp_path: Path) -> None:
    """Templates, tables and catalogues come from the wheel."""
    place = tmp_path / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(place)  # noqa: S202  (built here)
    (tmp_path / "empty").mkdir()
    for words, expected in (
        (["--version"], "rackproof "),
        (["explain", "ecc_off"], "ecc_off"),
        (["schema"], '"title"'),
        (["parse", "--list-formats"], "nccl"),
        (["adopt", "--csv", "x"], "no validate.yml"),
    ):
        done = subprocess.run(
            [
                sys.executable,
                "-c",
                "import sys; from rackproof.cli.main import main; sys.exit(main())",
                *words,
            ],
            cwd=tmp_path / "empty",
            env={"PATH": os.environ["PATH"], "PYTHONPATH": str(place), "LC_ALL": "C.UTF-8"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert expected in done.stdout + done.stderr, (words, done.stderr)
        assert "Traceback" not in done.stderr
    where = subprocess.run(
        [sys.executable, "-c", "import rackproof; print(rackproof.__file__)"],
        cwd=tmp_path / "empty",
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(place)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert where.stdout.startswith(str(place))


@pytest.mark.slow
def test_a_release_has_the_wheel_the_whole_and_their_digests(root: Path, tmp_path: Path) -> None:
    version = project(root)["version"]
    # Links that another user put in the place of the files are not followed, and no other user may write the
    # files.
    (tmp_path / "dist").mkdir()
    for name in ("SHA256SUMS", f"rackproof-{version}.tar.gz", f"rackproof-{version}-py3-none-any.whl"):
        (tmp_path / "dist" / name).symlink_to(tmp_path / "victim")
    done = subprocess.run(
        [root / "tools/make-dist", tmp_path / "dist"],
        env=os.environ | {"PYTHON": sys.executable},
        umask=0,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    names = {path.name for path in (tmp_path / "dist").iterdir()}
    whole = f"rackproof-{version}.tar.gz"
    assert names == {whole, f"rackproof-{version}-py3-none-any.whl", "SHA256SUMS"}
    assert not (tmp_path / "victim").exists()
    modes = {path.name: path.lstat().st_mode & 0o7777 for path in (tmp_path / "dist").iterdir()}
    assert modes == dict.fromkeys(names, 0o644)
    subprocess.run(["sha256sum", "--check", "--quiet", "SHA256SUMS"], cwd=tmp_path / "dist", check=True)
    with tarfile.open(tmp_path / "dist" / whole) as archive:
        held = set(archive.getnames())
        assert [member.name for member in archive if member.mode & 0o022 and not member.issym()] == []
    for name in (
        "ansible.cfg",
        "validate.yml",
        "roles/validate/tasks/main.yml",
        "inventory/hosts.yml",
        "Makefile",
    ):
        assert f"rackproof-{version}/{name}" in held
