"""Test the Debian release of a rack's hosts, and the images and mirror that it needs.

Nodes and controller have the release that `rack.py --release` names. The services' host always has Debian 12.
"""

from __future__ import annotations

import contextlib
import io
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import rack as program
from driver import images
from driver.layout import Host


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty cache, which the driver uses for this test."""
    monkeypatch.setattr(program, "STATE", tmp_path / "state")
    monkeypatch.setattr(program, "CACHE", tmp_path)
    return tmp_path


@pytest.mark.parametrize("release", images.RELEASES)
def test_nodes_and_controller_are_of_one_release(
    state: Path, monkeypatch: pytest.MonkeyPatch, release: str
) -> None:
    made: dict[str, str] = {}
    rack = program.Rack(release)
    monkeypatch.setattr(
        rack.images, "root_tar", lambda name, packages, wanted: (state / f"{name}-{wanted}.tar", wanted)
    )
    monkeypatch.setattr(
        images.Images, "image", lambda self, repository, tar, key, overlay: f"{repository}:{tar.stem}"
    )
    monkeypatch.setattr(rack.images, "node_overlay", dict)
    monkeypatch.setattr(rack.images, "machine_overlay", dict)
    monkeypatch.setattr(rack.images, "s3_packages", lambda: state)
    for nothing in ("make_keys", "remove"):
        monkeypatch.setattr(rack.nodes, nothing, lambda hosts: None)
    monkeypatch.setattr(rack.nodes, "make_network", lambda: None)

    def create(host: Host, image: str, mounts: list[str]) -> None:
        made[host.kind] = image

    monkeypatch.setattr(rack.nodes, "create", create)
    rack._bring_up(rack.layout.wanted(2), [])
    assert made == {
        "node": f"rackproof-rack-node:root-{release}",
        "controller": f"rackproof-rack-node:root-{release}",
        "services": "rackproof-rack-svc:svc-bookworm",
    }


def test_the_mirror_serves_every_release_that_is_whole(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rack = program.Rack("trixie")
    for name in ("root-trixie.tar", "root-bookworm.draft.tar", "root-other.tar"):
        (state / name).touch()
    (state / "root-trixie.key").write_text("recipe key")
    commands: list[list[str]] = []
    monkeypatch.setattr(rack.images, "node_tar", lambda: None)

    def run(command: list[str], check: bool) -> subprocess.CompletedProcess[str]:
        commands.append(command)
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(program.subprocess, "run", run)
    rack.build_mirror()
    assert [word for word in commands[0] if word.endswith(".tar")] == [str(state / "root-trixie.tar")]


@pytest.mark.parametrize(
    ("release", "steps"),
    [("trixie", ["mirror", "locked", "renew"]), ("bookworm", ["locked", "renew"])],
)
def test_what_takes_minutes_is_made_before_the_rack_is_locked(
    state: Path, monkeypatch: pytest.MonkeyPatch, release: str, steps: list[str]
) -> None:
    seen: list[str] = []

    @contextlib.contextmanager
    def changing(console: object) -> Iterator[None]:
        seen.append("locked")
        yield

    def renew(rack: program.Rack, names: list[str]) -> int:
        seen.append("renew")
        return 0

    monkeypatch.setattr(program, "check_machine", lambda: None)
    monkeypatch.setattr(program, "refuse_if_claimed", lambda: None)
    monkeypatch.setattr(program, "install_packages", lambda console: None)
    monkeypatch.setattr(program, "changing", changing)
    monkeypatch.setattr(program.Rack, "build_mirror", lambda rack: seen.append("mirror"))
    monkeypatch.setattr(program.Rack, "renew", renew)
    assert program.main(["--release", release, "renew", "gb300-r01-n18"]) == 0
    assert seen == steps


def test_an_image_replaces_only_those_of_its_release(monkeypatch: pytest.MonkeyPatch) -> None:
    removed: list[str] = []
    tags = ["node:root-bookworm-1", "node:root-bookworm-2", "node:root-trixie-1", "node:0123"]
    monkeypatch.setattr(images, "docker_text", lambda *words: "\n".join(tags))
    monkeypatch.setattr(images, "docker", lambda *words, check: removed.append(words[-1]))
    images.Images._drop_older("node:root-bookworm-", keep="node:root-bookworm-2")
    assert removed == ["node:root-bookworm-1"]


def test_root_file_systems_with_other_versions_have_other_images(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = "Package: libc6\nVersion: 2.41-12+deb13u4\n"
    made: list[Path] = []

    def run(command: list[str], timeout: float) -> None:
        (draft,) = (Path(word) for word in command if word.endswith(".draft.tar"))
        made.append(draft)
        with tarfile.open(draft, "w") as tar:
            entry = tarfile.TarInfo("./var/lib/dpkg/status")
            entry.size = len(installed)
            tar.addfile(entry, io.BytesIO(installed.encode()))

    monkeypatch.setattr(images, "run", run)

    def key_in(checkout: str) -> str:
        tree = program.Rack("trixie").images
        tree.state = state / checkout
        return tree.node_tar()[1]

    first = key_in("first")
    assert key_in("first") == first
    assert key_in("same day") == first
    assert len(made) == 2
    # Debian updates a package between the builds of two checkouts that share a Docker engine.
    installed = installed.replace("u4", "u5")
    assert key_in("a day later") != first
    assert key_in("first") == first
    # A key file of an older driver has only the recipe.
    (state / "first/root-trixie.key").write_text((state / "first/root-trixie.key").read_text().split()[0])
    assert key_in("first") == key_in("a day later")
    assert len(made) == 4
