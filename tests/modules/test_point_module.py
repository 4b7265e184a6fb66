"""Test the module rackproof_bench_setup, which sets up a node for one point of an experiment.

A point names a network (the host's, or an overlay network between the run's nodes) and a storage, whose cache
is cold or warm. The tests make a real VXLAN in a separate network namespace, and read real files. They show
that the next point removes an earlier overlay, that a started job keeps its network, that an impossible
request leaves nothing behind, that cold data leave the page cache and warm data are read, and that folders
that cannot be listed completely are reported.
"""

from __future__ import annotations

import fcntl
import importlib.machinery
import importlib.util
import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from .conftest import DRIVER

pytestmark = pytest.mark.slow

NODES = [{"name": "n1", "address": "192.0.2.1"}, {"name": "n2", "address": "192.0.2.2"}]


class Namespace:
    """A network namespace with an interface that has the address of n1.

    A call of the object runs the module in the namespace, and returns the module's answer.
    """

    def __init__(self, root: Path, folder: Path) -> None:
        self.module = root / "plugins/modules/rackproof_bench_setup.py"
        self.folder = folder / "run"
        ready = (
            "ip link set lo up && ip link add v0 type veth peer name v1 && ip addr add 192.0.2.1/24 dev v0"
        )
        ready += " && ip link set v0 up && ip link set v1 up && echo ready && exec sleep 100"
        self.holder = subprocess.Popen(
            ["unshare", "--net", "sh", "-c", ready],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert self.holder.stdout is not None
        if self.holder.stdout.readline() != "ready\n":
            pytest.skip("a network namespace with veth needs root on Linux")

    def run(self, *words: str, **more: Any) -> str:
        """Return the output of a command in the namespace."""
        done = subprocess.run(
            ["nsenter", f"--net=/proc/{self.holder.pid}/ns/net", *words],
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
            **more,
        )
        assert done.stdout.strip() or not more, done.stderr
        return done.stdout

    def __call__(self, **options: Any) -> dict[str, Any]:
        given = {"folder": str(self.folder), "node": "n1", "nodes": NODES, **options}
        return json.loads(self.run(sys.executable, "-c", DRIVER, str(self.module), input=json.dumps(given)))

    def links(self) -> str:
        """Return the network interfaces of the namespace."""
        return self.run("ip", "-br", "link")


@pytest.fixture
def node(root: Path, tmp_path: Path) -> Iterator[Namespace]:
    if os.geteuid() != 0 or sys.platform != "linux":
        pytest.skip("a network namespace needs root on Linux")
    made = Namespace(root, tmp_path)
    yield made
    made.holder.kill()
    made.holder.wait()


def test_an_overlay_is_made_shown_and_taken_away(node: Namespace) -> None:
    point = node(network="overlay", subnet="198.19.0.0/16")["point"]
    assert point["interface"] == "rackproof0"
    assert point["address"] == "198.19.0.1"
    assert point["peers"][1] == {"name": "n2", "address": "198.19.0.2"}
    assert point["link"]["kind"] == "vxlan"
    assert point["link"]["vni"] == 7117
    assert point["link"]["mtu"] == 1450
    assert point["routes"] == {"n2": "rackproof0"}
    assert "192.0.2.2" in node.run("bridge", "fdb", "show", "dev", "rackproof0")
    ended = node(state="absent")
    assert ended["changed"]
    assert ended["point"]["ended"]["kind"] == "vxlan"
    assert ended["point"]["removed"] is True
    assert "rackproof0" not in node.links()
    again = node(state="absent")
    assert not again["changed"]
    assert again["point"]["removed"] is True


def test_the_next_point_takes_away_what_an_earlier_one_left(node: Namespace) -> None:
    node(network="overlay")
    point = node(network="host")["point"]
    assert point["left_over"] is True
    assert point["interface"] == "v0"
    assert point["link"]["kind"] == "veth"
    assert "rackproof0" not in node.links()


@pytest.mark.parametrize("held", ["job.lock", "machine.lock"])
@pytest.mark.parametrize("options", [{"network": "overlay"}, {"network": "host"}])
def test_a_node_whose_job_runs_keeps_its_network(
    node: Namespace, tmp_path: Path, options: dict[str, str], held: str
) -> None:
    locks = [str(tmp_path / "absent"), "", str(tmp_path / "job.lock"), str(tmp_path / "machine.lock")]
    for path in locks[2:]:
        Path(path).write_text("")
    first = node(network="overlay", locks=locks)["point"]
    other = {**options, "folder": str(tmp_path / "other"), "locks": locks}
    with open(tmp_path / held) as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        refused = node(**other)
        assert refused["failed"] is True
        assert f"another job holds {tmp_path / held}" in refused["msg"]
        # The playbook then removes the setup of the run that was refused.
        assert node(**other, state="absent")["changed"] is False
        assert "rackproof0" in node.links()
    assert first["link"]["vni"] == 7117
    # Without a job, the next point removes the overlay.
    assert node(**other)["point"]["left_over"] is True


def test_a_point_whose_job_was_started_is_only_read(node: Namespace) -> None:
    first = node(network="overlay")["point"]
    (node.folder / "state.json").write_text("{}")
    again = node(network="overlay", storage="local", data="/nowhere", cache="cold")
    assert not again["changed"]
    assert again["point"] == first
    assert "rackproof0" in node.links()


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"network": "overlay", "subnet": "192.0.2.0/24"}, "192.0.2.0/24 is in use here (v0 has 192.0.2.1)"),
        ({"network": "overlay", "subnet": "198.19.0.0/31"}, "no room for 2 nodes"),
        (
            {"nodes": [{"name": "n1", "address": "203.0.113.9"}]},
            "no interface here has the address 203.0.113.9",
        ),
        ({"node": "n9"}, "n9 is none of the run's nodes (n1, n2)"),
        ({"storage": "local", "data": "/no/such/folder"}, "/no/such/folder is not a folder"),
        ({"folder": "relative"}, "an absolute path"),
    ],
)
def test_what_cannot_be_set_up_gives_the_reason_and_leaves_nothing(
    node: Namespace, options: dict[str, Any], why: str
) -> None:
    found = node(**options)
    assert found.get("failed") is True
    assert why in found["msg"]
    assert "rackproof0" not in node.links()
    assert not (node.folder / "point.json").exists()


def test_files_are_given_back_by_the_kernel_and_read_again(node: Namespace, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    for index in range(4):
        (data / f"{index}.bin").write_bytes(os.urandom(1 << 18))
    cold = node(storage="local", data=str(data), cache="cold")["point"]["storage"]
    if cold["mount"]["type"] == "tmpfs":
        pytest.skip("files of a tmpfs live in memory only")
    # The bytes in memory, and all bytes, of a sample of the files. Here, the sample is all files.
    assert cold["resident"] == [0, 1 << 20]
    warm = node(storage="local", data=str(data), cache="warm")["point"]["storage"]
    assert warm["read_bytes"] == 1 << 20


@pytest.fixture(scope="module")
def module(root: Path) -> Any:
    """Return rackproof_bench_setup as a Python module, so that tests can call its functions."""
    import ansible.module_utils

    ansible.module_utils.__path__.append(str(root / "plugins/module_utils"))
    loader = importlib.machinery.SourceFileLoader(
        "point", str(root / "plugins/modules/rackproof_bench_setup.py")
    )
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec is not None
    code = importlib.util.module_from_spec(spec)
    loader.exec_module(code)
    return code


@pytest.mark.parametrize("cache", ["cold", "warm"])
@pytest.mark.parametrize(
    ("most", "closed", "why"),
    [
        (6, "", ""),
        (6, "lost+found", ""),
        (5, "", "has more than 5 files"),
        (1, "", "has more than 1 files"),
        (6, "b", "/b cannot be read: Permission denied"),
    ],
)
def test_data_that_were_not_all_read_are_reported(
    module: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: str, most: int, closed: str, why: str
) -> None:
    for folder in ("a", "b", "lost+found"):
        (tmp_path / folder).mkdir()
        for index in range(0 if folder == "lost+found" else 3):
            (tmp_path / folder / f"{index}.bin").write_bytes(bytes(5000))
    real = os.scandir

    def scandir(path: str) -> Any:
        if closed and path.endswith(closed):
            raise PermissionError(13, "Permission denied", path)
        return real(path)

    monkeypatch.setattr(module.os, "scandir", scandir)
    monkeypatch.setattr(module, "MOST_FILES", most)
    monkeypatch.setattr(module, "mount_of", lambda path: {"point": "/"})
    monkeypatch.setattr(module, "unit_of", lambda point: ("", "", ""))
    storage = module.prepare_storage({"storage": "local", "data": str(tmp_path), "cache": cache})
    assert why in storage["trouble"]
    assert bool(storage["trouble"]) is bool(why)


def test_a_cache_that_cannot_be_emptied_is_reported(root: Path) -> None:
    text = textwrap.dedent(
        f"""
        import sys; sys.argv = ["x"]
        import ansible.module_utils
        ansible.module_utils.__path__.append({str(root / "plugins/module_utils")!r})
        source = open({str(root / "plugins/modules/rackproof_bench_setup.py")!r}).read()
        held = {{"__name__": "point"}}
        exec(compile(source, "point", "exec"), held)
        import tempfile, os, json
        with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
            path = os.path.join(folder, "kept"); open(path, "wb").write(bytes(1 << 16))
            held["drop_file_pages"]([path])
            print(json.dumps(held["resident_bytes"]([path])))
        """
    )
    done = subprocess.run(
        [sys.executable, "-c", text], capture_output=True, text=True, timeout=300, check=False
    )
    assert json.loads(done.stdout) == [1 << 16, 1 << 16], done.stderr
