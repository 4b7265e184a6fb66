"""Test that a bare node of a running rack can install packages from the rack's mirror.

apt on the node uses lists and sources of the test, and only simulates installations, so the node stays bare.
"""

from __future__ import annotations

import base64
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from rackmirror import debian

MIRROR = Path(__file__).resolve().parents[3] / "testrack/mirror"

pytestmark = [pytest.mark.slow, pytest.mark.rack]

NODE = "gb300-r01-n02"
NAMES = debian.package_names((MIRROR / "debian-packages.txt").read_text(), "bookworm")
VENDORS = ("lambda", "nvidia", "nvidia-container", "doca", "enroot")
SERVER = "http://gb300-r01-svc"
# apt uses other lists and sources than the node's own, but the node's database of installed packages.
SCRIPT = f"""
set -e
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/lists/partial" "$work/cache/archives/partial"
python3 - > "$work/mirror.asc" <<END
import sys, urllib.request
sys.stdout.buffer.write(urllib.request.urlopen("{SERVER}/mirror.asc", timeout=30).read())
END
for name in $1; do
  echo "deb [signed-by=$work/mirror.asc] {SERVER}/$name stable main"
done > "$work/sources.list"
shift
apt="apt-get -q -o Dir::State::Lists=$work/lists -o Dir::Cache=$work/cache -o APT::Sandbox::User=root"
apt="$apt -o Dir::Etc::sourcelist=$work/sources.list -o Dir::Etc::sourceparts=-"
apt="$apt -o Dir::Etc::preferencesparts=$work/lists/partial"
$apt update
for words in "$@"; do
  $apt --simulate --no-install-recommends install $words
done
"""


@pytest.fixture(scope="module")
def apt(
    rack: Callable[..., subprocess.CompletedProcess[str]],
    driver: Callable[..., subprocess.CompletedProcess[str]],
) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Return a function that simulates the installation of groups of packages on a bare node.

    It reads the named repositories first.
    """
    done = driver("renew", NODE)
    assert done.returncode == 0, done.stdout + done.stderr

    def run(repositories: tuple[str, ...], *groups: str) -> subprocess.CompletedProcess[str]:
        words = " ".join(shlex.quote(one) for one in (" ".join(repositories), *groups))
        script = base64.b64encode(SCRIPT.encode()).decode()
        return rack(NODE, f"bash <(echo {script} | base64 -d) {words}", timeout=300)

    return run


def test_a_node_can_install_all_that_roles_install(
    apt: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    alone = ("slurmd", "docker.io", "rdma-core", "mariadb-server", "s3fs", "build-essential", "python3-apt")
    done = apt(("debian",), " ".join(NAMES), *alone)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr
    assert "Inst slurmctld" in done.stdout


def test_a_node_takes_the_vendors_from_the_mirror_alone(
    apt: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    done = apt(
        ("debian", *VENDORS), "lambda-stack-cuda", "nvidia-open", "nvidia-docker2", "doca-ofed", "enroot+caps"
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr
    assert "Inst linux-image-6.1.0-99-amd64" in done.stdout


def test_a_node_refuses_the_unsigned_repository(apt: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    done = apt(("unsigned",), "lambda-stack-cuda")
    assert done.returncode != 0
    assert "is not signed" in done.stderr
    assert "Inst" not in done.stdout
