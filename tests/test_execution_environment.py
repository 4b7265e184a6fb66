"""Test execution-environment.yml, from which ansible-builder makes an image for AWX.

AWX runs playbooks in this container image. The tests check that the files for its build exist, and that they
are all that pip needs. The tests do not build the image, because that needs a registry.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

NAME = "execution-environment.yml"
STEPS = {
    "prepend_base", "append_base", "prepend_galaxy", "append_galaxy",
    "prepend_builder", "append_builder", "prepend_final", "append_final",
}  # fmt: skip
"""The names of build steps that ansible-builder accepts."""


@pytest.fixture
def description(root: Path) -> dict[str, Any]:
    """Return the content of execution-environment.yml."""
    loaded: dict[str, Any] = yaml.safe_load((root / NAME).read_text())
    return loaded


def test_the_files_of_the_image_are_there_and_make_the_package(
    root: Path, description: dict[str, Any]
) -> None:
    files = {one["src"]: one["dest"] for one in description["additional_build_files"]}
    assert [name for name in files if not (root / name).exists()] == []
    project = tomllib.loads((root / "pyproject.toml").read_text())
    # pip reads these files and folders to build the package.
    needed = {"pyproject.toml", project["project"]["readme"], "constraints.txt"}
    needed |= {
        where.partition("/")[0] for where in project["tool"]["setuptools"]["packages"]["find"]["where"]
    }
    assert needed == set(files)
    # `dest` is a folder. A file is copied into it. The folder src becomes it, so its `dest` ends in src.
    assert all(dest == ("rackproof/src" if src == "src" else "rackproof") for src, dest in files.items())


def test_the_package_is_installed_before_the_search_for_ansible(
    root: Path, description: dict[str, Any]
) -> None:
    steps = description["additional_build_steps"]
    assert set(steps) <= STEPS
    # The last stage starts from the first one, and begins with a search for ansible-core and ansible-runner.
    assert list(steps) == ["append_base"]
    copied = re.findall(r"^COPY _build/(\S+) (\S+)$", "\n".join(steps["append_base"]), re.M)
    assert copied == [("rackproof", "/opt/rackproof")]
    extras = tomllib.loads((root / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (extra,) = re.findall(r"/opt/rackproof\[(\w+)\]", "\n".join(steps["append_base"]))
    assert {"ansible-core", "ansible-runner"} <= set(extras[extra])


def test_the_base_image_has_the_package_manager_and_the_python(
    root: Path, description: dict[str, Any]
) -> None:
    # By default, ansible-builder installs packages with dnf. These distributions have it.
    image = description["images"]["base_image"]["name"]
    assert re.search(r"rockylinux|almalinux|centos|fedora|/ubi\d", image)
    python = description["dependencies"]["python_interpreter"]
    assert python["python_path"] == f"/usr/bin/{python['package_system']}"
    oldest = tomllib.loads((root / "pyproject.toml").read_text())["project"]["requires-python"]
    found = tuple(map(int, re.findall(r"\d+", python["package_system"])))
    assert found >= tuple(map(int, re.findall(r"\d+", oldest)))
