"""Test that a bundle installs Rackproof on a machine without network, up to a judged run.

A bundle is one file with the program, all wheels and a list of checksums (tools/make-bundle). The machine is
an empty Debian in a chroot and a network namespace without routes. The tests install the bundle there and run
two benchmarks. They also show that an altered, cut or incomplete bundle, or a full disk, ends the
installation with an error, and that no environment then counts as complete.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from driver.cache import folder
from driver.console import Console
from driver.engine import install_packages
from driver.images import Images

PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
RELEASES = {"3.11": "bookworm", "3.13": "trixie"}
"""The release of Debian with each Python. The wheels are for the Python that runs the tests."""
EMPTY = ("python3", "python3-venv", "make")
"""The only packages of the machine beside the base system. An operator needs them for the installation."""
# Enters the machine ($1) and runs a command there ($2).
ENTER = r"""
ip link set lo up
mount -t proc proc "$1/proc" && mount --bind /dev "$1/dev" && mount -t tmpfs tmpfs "$1/dev/shm"
exec chroot "$1" env -i HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin bash -c "cd /root; $2"
"""
# A benchmark that needs no runtime and no data.
DD = r"""---
name: dd
summary: Copy of zeros in memory
launch: {with: local, command: [dd, if=/dev/zero, of=/dev/null, bs=1M, count=500]}
result:
  format: lines
  lines:
    good_end: "^500\\+0 records out"
    metrics:
      copied: {pattern: "([0-9.]+) GB/s$", unit: GB/s, direction: higher}
  judge:
    - {metric: copied, at_least: 0.001}
"""
Machine = Callable[..., subprocess.CompletedProcess[str]]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]


@pytest.fixture(scope="module")
def empty_root(root: Path) -> Path:
    """Return the tar of an empty Debian with this Python. The racks on this machine use the same file."""
    if os.geteuid() != 0:
        pytest.skip("a network namespace needs root on Linux")
    release = RELEASES.get(PYTHON)
    if release is None:
        pytest.skip(f"no release of Debian has Python {PYTHON}")
    console = Console(folder() / "timings.json")
    # On a new machine, no rack may have installed the programs that make a root file system.
    install_packages(console)
    return Images(root, folder(), console, release).root_tar("empty", EMPTY, release)[0]


def index_of(wheels: str, target: Path) -> str:
    """Write a package index with the wheels of some folders (with spaces between them). Return its address.

    pip prefers the links of this index to those of other indexes, because they have a hash.
    """
    links: dict[str, list[str]] = {}
    for path in [path for place in wheels.split() for path in Path(place).glob("*.whl")]:
        checksum = hashlib.sha256(path.read_bytes()).hexdigest()
        link = f'<a href="{path.resolve().as_uri()}#sha256={checksum}">{path.name}</a>'
        links.setdefault(path.name.partition("-")[0].lower(), []).append(link)
    for name, found in links.items():
        (target / name).mkdir(parents=True)
        (target / name / "index.html").write_text("\n".join(found))
    return target.as_uri()


@pytest.fixture(scope="module")
def bundle(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a bundle of the commit, with PyTorch: a build for CPUs if PIP_FIND_LINKS has one."""
    target = tmp_path_factory.mktemp("bundle")
    index = index_of(os.environ.get("PIP_FIND_LINKS", ""), target / "index")
    indexes = subprocess.run(
        [sys.executable, "-m", "pip", "config", "get", "global.extra-index-url"],
        capture_output=True,
        text=True,
        check=False,
    ).stdout.split()
    subprocess.run(
        [sys.executable, root / "tools/make-bundle", target, "--runtimes", "torch"],
        env=os.environ | {"PIP_EXTRA_INDEX_URL": " ".join([index, *indexes])},
        check=True,
    )
    (found,) = target.glob("*.tar")
    return found


@pytest.fixture(scope="module")
def machine(empty_root: Path, bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """Return a function that runs a command on the machine, with the bundle in its home folder."""
    home = tmp_path_factory.mktemp("machine")
    subprocess.run(["tar", "-xf", empty_root, "-C", home], check=True)
    for path in (bundle, bundle.with_name(f"{bundle.name}.sha256")):
        shutil.copy2(path, home / "root")

    def run(command: str, timeout_s: float = 1800) -> subprocess.CompletedProcess[str]:
        namespaces = ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--"]
        return subprocess.run(
            [*namespaces, "bash", "-euc", ENTER, "enter", home, command],
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    yield run
    subprocess.run(["rm", "-rf", "--one-file-system", home], check=True)


def unpacked(bundle: Path, place: str) -> str:
    """Return the commands that unpack the bundle into a new folder, and enter it."""
    return f"rm -rf {place}; mkdir {place}; cd {place}; tar -xf /root/{bundle.name}; cd {bundle.stem}"


def test_the_machine_is_empty_and_without_network(machine: Machine) -> None:
    assert machine("! command -v git && ! command -v pip3 && ! command -v ssh").returncode == 0
    # The table of routes has only its heading.
    assert machine("wc -l < /proc/net/route").stdout.strip() == "1"
    done = machine("python3 -c 'import socket; socket.create_connection((\"192.0.2.1\", 443), 5)'")
    assert "Network is unreachable" in done.stderr


def test_from_nothing_to_a_judged_run(machine: Machine, bundle: Path) -> None:
    done = machine(f"sha256sum -c {bundle.name}.sha256 && tar -xf {bundle.name}")
    assert done.returncode == 0, done.stderr
    done = machine(f"cd {bundle.stem} && tools/install-bundle")
    assert done.returncode == 0, done.stdout + done.stderr
    # Other suites may use the processors at the same time.
    play = f"cd {bundle.stem} && . .venv/bin/activate && ansible-playbook bench.yml -l localhost"
    play += " -e bench_require_idle=false"
    done = machine(f"cat > {bundle.stem}/benchmarks/dd.yml <<'END'\n{DD}END\n{play} -e benchmark=dd")
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"\bdd\b.*\bpass\b", done.stdout), done.stdout
    # The runtime and the data set come from the bundle's wheels.
    goal = '{"bench_parameters": {"until": "target", "target": 0.9, "num_epochs": 2, "compile": "off"}}'
    done = machine(f"{play} -e benchmark=mnist-lenet -e '{goal}'")
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"\bmnist-lenet\b.*\bpass\b", done.stdout), done.stdout


def test_pip_takes_no_wheel_that_was_altered_added_or_removed(machine: Machine, bundle: Path) -> None:
    """Pip checks the wheels by itself. The variable skips the check of the manifest by install-bundle."""
    past = (
        f"{unpacked(bundle, 'past')}; export PIP_NO_INDEX=1 PIP_FIND_LINKS=$PWD/bundle/wheels"
        " RACKPROOF_BUNDLE=verified; cd bundle/wheels; wheel=$(echo click-*.whl); "
    )
    for damage, words in [
        ('printf x | dd of="$wheel" bs=1 seek=900 conv=notrunc 2>/dev/null', "DO NOT MATCH THE HASHES"),
        ('rm "$wheel"', "No matching distribution found for click"),
    ]:
        done = machine(f"{past}{damage}; cd ../..; make venv")
        assert done.returncode != 0
        assert words in done.stdout + done.stderr
    newer = 'cp "$wheel" click-99.0-py3-none-any.whl; cp "$wheel" "${wheel%-py3*}-1-py3-none-any.whl"'
    done = machine(f"{past}{newer}; cd ../..; make venv && .venv/bin/python -m pip list; rm -rf ../../past")
    assert done.returncode == 0, done.stderr
    assert re.search(r"(?m)^click +(?!99)", done.stdout)


def test_a_bundle_that_was_cut_off_installs_nothing(machine: Machine, bundle: Path) -> None:
    size = bundle.stat().st_size // 3
    cut = f"head -c {size} {bundle.name} > cut.tar; rm -rf cut; mkdir cut; cd cut; tar -xf ../cut.tar"
    done = machine(
        f"{cut}; cd {bundle.stem}; tools/install-bundle; echo ended with $?; ls -d .venv; rm -rf ../../cut*"
    )
    assert "ended with 1" in done.stdout
    assert "is missing" in done.stderr
    assert ".venv" not in done.stdout.splitlines()


def test_a_full_disk_leaves_no_environment_that_counts_as_made(machine: Machine, bundle: Path) -> None:
    # A file system that is too small for the environment.
    small = "mkdir -p small; mount -t tmpfs -o size=700m tmpfs small; "
    done = machine(
        f"{small}{unpacked(bundle, 'small/x')}; tools/install-bundle; echo ended with $?; ls .venv/.ready"
    )
    assert "No space left on device" in done.stderr
    assert "ended with 0" not in done.stdout
    assert ".venv/.ready" not in done.stdout
