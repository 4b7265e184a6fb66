"""Test how provision.yml installs enroot and pyxis on a node whose package sources do not have them.

enroot runs containers, and pyxis is its plugin for Slurm. No vendor's repository has them, so an operator
gives the addresses of a release and the checksums of its files. Here, a web server on the rack's controller
has the files: the mirror's packages of enroot, and the sources of a fake pyxis, which the node compiles. The
tests show that nothing is installed without the right checksum, and that a node is refused before it is
drained.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from testrack.tests.on_rack import CONTROLLER, SERVICES, Command, Done, play, state_in_slurm

pytestmark = [pytest.mark.rack, pytest.mark.slow]
PACKAGES = ("enroot_4.0.1-1_amd64.deb", "enroot+caps_4.0.1-1_amd64.deb")
ARCHIVE = "v0.21.0.tar.gz"
URL = f"http://{CONTROLLER}:8099"
# The node uses all repositories of the mirror except enroot's. The Slurm controller keeps its plugin.
WITHOUT = {
    "apt_mirror_repositories": ["os", "lambda", "nvidia", "nvidia-container", "doca"],
    "slurm_controller_roles": [],
}
MAKEFILE = """\
install:
\tgcc -shared -fPIC -O1 -o spank_pyxis.so spank_pyxis.c
\tinstall -D -m 755 spank_pyxis.so $(libdir)/slurm/spank_pyxis.so
\tcp -r payload/. /
"""


@pytest.fixture(scope="module")
def release(root: Path, rack: Command, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Serve the files on the controller. Yield the SHA-256 of each by name."""
    folder = tmp_path_factory.mktemp("release")
    sources = folder / "pyxis-0.21.0"
    shutil.copytree(root / "testrack/mirror/payload/pyxis", sources / "payload")
    shutil.copy(root / "testrack/mirror/pyxis/spank_pyxis.c", sources)
    (sources / "Makefile").write_text(MAKEFILE)
    subprocess.run(["tar", "-czf", folder / ARCHIVE, "-C", folder, sources.name], check=True)
    for name in PACKAGES:
        mirror = f"http://{SERVICES}/enroot/pool/{name.replace('+', '%2b')}"
        subprocess.run(["curl", "-fsSL", "-o", folder / name, mirror], check=True)
    files = [folder / name for name in (*PACKAGES, ARCHIVE)]
    assert rack(CONTROLLER, "mkdir -p /srv/release").returncode == 0
    subprocess.run(["scp", "-q", *files, f"{CONTROLLER}:/srv/release/"], check=True)
    serve = "python3 -m http.server 8099 --directory /srv/release"
    assert rack(CONTROLLER, f"systemd-run --unit=release {serve}").returncode == 0
    yield {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
    rack(CONTROLLER, "systemctl stop release; rm -rf /srv/release")


@pytest.fixture(scope="module")
def node(root: Path, rack: Command, nodes: list[str]) -> Iterator[str]:
    """Yield a node without enroot and pyxis. After the tests, install the mirror's packages again."""
    node = nodes[1]
    purge = "apt-get -y -q --allow-change-held-packages purge enroot enroot+caps nvslurm-plugin-pyxis"
    assert rack(node, purge).returncode == 0
    yield node
    done = play(root, "provision.yml", [node], timeout=900)
    assert done.returncode == 0, done.stdout


def provision(root: Path, node: str, given: Mapping[str, Any]) -> Done:
    return play(root, "provision.yml", [node], "-e", json.dumps({**WITHOUT, **given}), timeout=900)


def pinned(release: Mapping[str, str]) -> dict[str, Any]:
    """Return the variables with the addresses and checksums of the release."""
    return {
        "enroot_pyxis_release_url": URL,
        "enroot_pyxis_release_checksums": {name: release[name] for name in PACKAGES},
        "enroot_pyxis_source_url": f"{URL}/{ARCHIVE}",
        "enroot_pyxis_source_checksum": release[ARCHIVE],
    }


def test_without_mirror_and_checksums_a_node_is_refused_before_it_is_drained(
    root: Path, rack: Command, node: str
) -> None:
    done = provision(root, node, {})
    assert done.returncode == 2
    said = " ".join(done.stdout.split())
    for word in (
        f"{node}: ",
        "No vendor's repository has enroot and pyxis",
        "enroot_pyxis_release_checksums",
    ):
        assert word in said, said[-3000:]
    assert state_in_slurm(rack, node).startswith("idle")


def test_a_file_without_its_checksum_is_refused_before_the_node_is_drained(
    root: Path, rack: Command, node: str, release: dict[str, str]
) -> None:
    given = pinned(release)
    del given["enroot_pyxis_release_checksums"][PACKAGES[1]]
    done = provision(root, node, given)
    assert done.returncode == 2
    said = " ".join(done.stdout.split())
    assert f"{node}: no checksum or signature proves these downloads: {PACKAGES[1]}" in said, said[-3000:]
    assert state_in_slurm(rack, node).startswith("idle")


def test_what_has_another_checksum_is_never_installed(
    root: Path, rack: Command, node: str, release: dict[str, str]
) -> None:
    given = pinned({**release, PACKAGES[0]: "0" * 64})
    done = provision(root, node, given)
    assert done.returncode == 2
    assert "checksum" in done.stdout.split("NODES ***", 1)[1]
    assert rack(node, "dpkg-query -W enroot").returncode != 0


def test_files_with_their_checksums_make_a_node_that_runs_containers(
    root: Path, rack: Command, node: str, release: dict[str, str]
) -> None:
    given = pinned(release)
    done = provision(root, node, given)
    assert done.returncode == 0, done.stdout
    held = rack(node, "apt-mark showhold").stdout.split()
    assert {"enroot", "enroot+caps"} <= set(held)
    assert rack(node, "dpkg-query -W nvslurm-plugin-pyxis").returncode != 0
    image = f"{SERVICES}:5000#nvdlfwea/mlperftv51/llama31_8b-amd:20251008"
    ran = rack(CONTROLLER, f"srun -w {node} --container-image={image} cat /etc/os-release", timeout=120)
    assert ran.returncode == 0, ran.stderr
    done = provision(root, node, given)
    assert done.returncode == 0, done.stdout
    assert "changed=0" in done.stdout.split("PLAY RECAP", 1)[1].split("\n")[1], done.stdout
