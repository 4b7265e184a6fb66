"""Test role enroot_pyxis without a mirror of apt packages.

The role then installs enroot from the packages of its release, and builds pyxis, Slurm's plugin for
containers, from its sources. A server on this machine offers both. The tests show that each file needs a
known checksum, and that a file that is absent, replaced or not installable is reported before a node is
changed.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import subprocess
import sys
import tarfile
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from .conftest import node

pytestmark = pytest.mark.playbook
PLAYBOOK = """
- hosts: all
  gather_facts: false
  connection: local
  tasks:
    - ansible.builtin.include_role:
        name: enroot_pyxis
        tasks_from: "{{ part }}"
      loop: "{{ parts }}"
      loop_control:
        loop_var: part
"""
# A Makefile that only records how it was called.
MAKEFILE = 'install:\n\tmkdir -p "{out}"\n\techo "$(prefix) $(libdir)" > "{out}/built"\n'
# The files of enroot's release, as GitHub names them.
ENROOT = {f"{name}_4.0.1-1_{arch}.deb" for name in ("enroot", "enroot+caps") for arch in ("amd64", "arm64")}


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


class Site:
    """A release on a server of this machine, and a host whose apt-get and apt-mark only log their calls."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder, self.url = folder, url
        self.requests: list[str] = []
        (folder / "www").mkdir()
        for name in ENROOT:
            (folder / "www" / name).write_bytes(name.encode())
        with tarfile.open(folder / "www/pyxis.tar.gz", "w:gz") as archive:
            text = MAKEFILE.format(out=folder / "out").encode()
            member = tarfile.TarInfo("pyxis-0.21.0/Makefile")
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text))
        (folder / "bin").mkdir()
        for tool in ("apt-get", "apt-mark"):
            path = folder / "bin" / tool
            path.write_text(f'#!/bin/sh\necho "{tool} $*" >> {folder}/apt.log\n')
            path.chmod(0o755)

    @property
    def apt(self) -> str:
        """Return the log of the calls of apt-get and apt-mark."""
        path = self.folder / "apt.log"
        return path.read_text() if path.exists() else ""

    def variables(self, **changes: Any) -> dict[str, Any]:
        """Return the variables of a site without a mirror, and the paths and facts that the tests need."""
        archive = (self.folder / "www/pyxis.tar.gz").read_bytes()
        return {
            "rackproof_node": {**node(), "machine": "x86_64"},
            "enroot_pyxis_api_key": "",
            "enroot_pyxis_release_checksums": {name: digest(name.encode()) for name in ENROOT},
            "enroot_pyxis_release_url": self.url,
            "enroot_pyxis_source_checksum": digest(archive),
            "enroot_pyxis_source_url": f"{self.url}/pyxis.tar.gz",
            "enroot_pyxis_cache": str(self.folder / "cache"),
            "enroot_pyxis_stamp_file": str(self.folder / "stamps/pyxis.json"),
            # Install no package on the machine of the tests.
            "enroot_pyxis_build_packages": {},
        } | changes

    def play(self, root: Path, parts: list[str], **changes: Any) -> subprocess.CompletedProcess[str]:
        """Run these task files of the role on this machine. ``changes`` replace variables."""
        playbook, given = self.folder / "playbook.yml", self.folder / "given.json"
        playbook.write_text(PLAYBOOK)
        given.write_text(json.dumps(self.variables(**changes) | {"parts": parts}))
        return subprocess.run(
            [
                Path(sys.executable).with_name("ansible-playbook"),
                "-i",
                "host,",
                "-e",
                f"@{given}",
                "-e",
                f"ansible_python_interpreter={sys.executable}",
                playbook,
            ],
            cwd=root,
            env=os.environ
            | {
                "ANSIBLE_NOCOLOR": "1",
                "ANSIBLE_ROLES_PATH": str(root / "roles"),
                "PATH": f"{self.folder}/bin:{os.environ['PATH']}",
                "no_proxy": "*",
            },
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """Serve a release until the test ends."""
    requests: list[str] = []

    class Handler(SimpleHTTPRequestHandler):
        def log_message(self, *_words: object) -> None:
            requests.append(f"{self.command} {self.path}")

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(tmp_path / "www")))
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    site = Site(tmp_path, f"http://127.0.0.1:{server.server_port}")
    site.requests = requests
    yield site
    server.shutdown()


@pytest.mark.parametrize("architecture", ["amd64", "arm64"])
def test_enroot_comes_from_its_release_and_pyxis_is_built(root: Path, site: Site, architecture: str) -> None:
    of_node = {
        **node(),
        "architecture": architecture,
        "machine": {"amd64": "x86_64"}.get(architecture, "aarch64"),
    }
    done = site.play(root, ["resolve", "release", "build"], rackproof_node=of_node)
    assert done.returncode == 0, done.stdout + done.stderr
    *simulated, install, hold = site.apt.splitlines()
    cache = site.folder / "cache"
    files = [f"{cache}/enroot_4.0.1-1_{architecture}.deb", f"{cache}/enroot+caps_4.0.1-1_{architecture}.deb"]
    assert [line.endswith(f"install --simulate {' '.join(files)}") for line in simulated] == [True, True]
    assert install.endswith(f"install {' '.join(files)}")
    # The role changes enroot.conf, and dpkg would ask about it at an upgrade.
    assert "--force-confold" in install
    assert hold == "apt-mark hold enroot enroot+caps"
    assert (site.folder / "out/built").read_text() == f"/usr /usr/lib/{of_node['machine']}-linux-gnu\n"
    stamp = json.loads((site.folder / "stamps/pyxis.json").read_text())
    assert stamp["pyxis"] == digest((site.folder / "www/pyxis.tar.gz").read_bytes())


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        (
            {"enroot_pyxis_release_checksums": {"enroot_4.0.1-1_amd64.deb": "0" * 64}},
            "enroot+caps_4.0.1-1_amd64.deb",
        ),
        (
            {"enroot_pyxis_release_checksums": dict.fromkeys(ENROOT, "not a checksum")},
            "enroot_4.0.1-1_amd64.deb",
        ),
        ({"enroot_pyxis_source_checksum": "abc"}, "pyxis.tar.gz"),
    ],
    ids=["one file without a checksum", "no valid checksum", "sources"],
)
def test_files_without_a_checksum_are_refused_before_any_request(
    root: Path, site: Site, changes: dict[str, Any], named: str
) -> None:
    done = site.play(root, ["resolve"], **changes)
    assert done.returncode == 2, done.stdout + done.stderr
    assert "no checksum or signature proves these downloads" in done.stdout
    assert named in done.stdout
    assert (site.requests, site.apt) == ([], "")


def test_a_release_that_apt_cannot_install_is_reported_before_a_drain(root: Path, site: Site) -> None:
    (site.folder / "bin/apt-get").write_text(
        "#!/bin/sh\necho ' enroot : Depends: bsdmainutils but it is not installable'\n"
        "echo 'E: Unable to correct problems, you have held broken packages.' >&2\nexit 100\n"
    )
    done = site.play(root, ["resolve"])
    assert done.returncode == 2, done.stdout + done.stderr
    output = " ".join(done.stdout.split())
    assert "enroot 4.0.1-1 cannot be installed: enroot : Depends: bsdmainutils but it is not" in output
    assert "held broken packages. Put the packages that it depends on" in output


def test_a_missing_file_is_reported_before_a_node_is_changed(root: Path, site: Site) -> None:
    (site.folder / "www/enroot+caps_4.0.1-1_amd64.deb").unlink()
    done = site.play(root, ["resolve"])
    assert done.returncode == 2, done.stdout + done.stderr
    assert "404" in done.stdout
    assert all(request.startswith("HEAD ") for request in site.requests)


@pytest.mark.parametrize(
    ("part", "altered"), [("release", "enroot_4.0.1-1_amd64.deb"), ("build", "pyxis.tar.gz")]
)
def test_a_file_that_was_replaced_is_not_installed(root: Path, site: Site, part: str, altered: str) -> None:
    given = site.variables()
    (site.folder / "www" / altered).write_bytes(b"replaced")
    kept = {name: given[name] for name in ("enroot_pyxis_release_checksums", "enroot_pyxis_source_checksum")}
    done = site.play(root, [part], **kept)
    assert done.returncode == 2, done.stdout + done.stderr
    assert "checksum" in done.stdout
    assert site.apt == ""
    assert not (site.folder / "out/built").exists()
