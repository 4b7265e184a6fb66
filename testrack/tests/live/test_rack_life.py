"""Test `rack.py up` and `down` from the first start to the removal of a rack.

The rack has its own Docker engine, network and host files, so a rack that runs on this machine does not
change. The tests build on each other, and run in this order.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import rack as program
from driver import engine, layout, nodes

pytestmark = [pytest.mark.rack, pytest.mark.slow]
HOSTS = "127.0.0.1 localhost\n# mine\n"
NAMES = ["gb300-r01-ctl", "gb300-r01-svc", "gb300-r01-n01", "gb300-r01-n02"]


@pytest.fixture(scope="module")
def life(
    rack: Callable[..., object], root: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[program.Rack]:
    """Yield a rack that does not exist yet, with copies of parts that take minutes to make."""
    place = tmp_path_factory.mktemp("life")
    state = place / "state"
    state.mkdir()
    cache = place / "cache"
    cache.mkdir()
    images = program.Rack("bookworm").images
    for tar, _ in (images.node_tar(), images.services_tar()):
        # Temporary files may be on another file system, to which no file can be linked.
        shutil.copy2(tar, cache / tar.name)
        shutil.copy(tar.with_suffix(".key"), cache)
    shutil.copytree(images.s3_packages(), cache / images.s3_packages().name)
    (place / "hosts").write_text(HOSTS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "SOCKET", f"unix://{place}/docker.sock")
        patch.setattr(program, "STATE", state)
        patch.setattr(program, "CACHE", cache)
        patch.setattr(nodes, "ETC_HOSTS", place / "hosts")
        patch.setattr(nodes, "SSH_CONFIG", place / "ssh_config.d/rack.conf")
        for module in (layout, nodes):
            patch.setattr(module, "SUBNET", "198.18.78.0/24")
            patch.setattr(module, "GATEWAY", "198.18.78.1")
            patch.setattr(module, "NETWORK", "life")
            patch.setattr(module, "BRIDGE", "br-life")
        rack = program.Rack("bookworm")
        # The firewall rules of this engine would replace those of the other engine.
        rack.engine.options = ("--iptables=false", "--bridge=none")
        rack.engine.options += (f"--data-root={place}/data",)
        rack.engine.exec_root = place / "exec"
        # Other tests cover the mirror.
        patch.setattr(rack, "build_mirror", lambda: rack.mirror.mkdir(exist_ok=True))
        patch.setattr(rack, "fill_registry", lambda: None)
        yield rack
        # Failed tests may leave containers, which outlive their engine.
        rack.engine.start(rack.console)
        pid = rack.engine.own_pid()
        rack.down(purge=True)
        assert pid
        assert not Path(f"/proc/{pid}/exe").exists(), "its dockerd still runs"
        mounts = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
        for mount in reversed([one for one in mounts if one.startswith(f"{place}/")]):
            subprocess.run(["umount", "--lazy", mount], check=True)
        shutil.rmtree(place)


def started(rack: program.Rack) -> dict[str, str]:
    """Return the id and the start time of each container, by host."""
    form = "{{.Name}}\t{{.Id}} {{.State.StartedAt}}"
    lines = engine.docker_text("inspect", "--format", form, *rack.nodes.found()).splitlines()
    return dict(line.lstrip("/").split("\t") for line in lines)


def everyone_answers(rack: program.Rack) -> None:
    """Check that all hosts answer with the keys that ssh knows."""
    assert sorted(rack.nodes.found()) == sorted(NAMES)
    for host in rack.layout.wanted(2):
        assert nodes.answers(host.address), host.name
        keys = subprocess.run(
            ["ssh-keyscan", "-t", "ed25519", host.address], capture_output=True, text=True, check=True
        ).stdout.split()[1:]
        known = rack.nodes.known_hosts.read_text()
        assert f"{host.name},{host.address} {' '.join(keys)}\n" in known


def test_up_starts_a_whole_rack_from_nothing(life: program.Rack, capsys: pytest.CaptureFixture[str]) -> None:
    assert life.status(as_json=False) == 3
    assert "no rack runs here" in capsys.readouterr().out
    assert life.up(2, []) == 0
    assert "the rack is up: 4 hosts" in capsys.readouterr().out
    everyone_answers(life)
    assert nodes.ETC_HOSTS.read_text().startswith(HOSTS)
    assert "198.18.78.11\tgb300-r01-n01\n" in nodes.ETC_HOSTS.read_text()
    assert "Host gb300-r01-ctl gb300-r01-svc gb300-r01-n01 gb300-r01-n02\n" in nodes.SSH_CONFIG.read_text()


def test_a_second_up_changes_nothing(life: program.Rack, capsys: pytest.CaptureFixture[str]) -> None:
    files = (nodes.ETC_HOSTS, nodes.SSH_CONFIG, life.nodes.known_hosts)
    before = started(life), [file.stat().st_mtime_ns for file in files]
    assert life.up(2, []) == 0
    assert "nothing to do: 4 hosts run" in capsys.readouterr().out
    assert (started(life), [file.stat().st_mtime_ns for file in files]) == before


def test_a_smaller_rack_is_not_made_by_asking_for_less(
    life: program.Rack, capsys: pytest.CaptureFixture[str]
) -> None:
    assert life.up(1, []) == 0
    assert "not requested, but kept: gb300-r01-n02" in capsys.readouterr().out
    everyone_answers(life)


def test_a_half_started_rack_is_completed(life: program.Rack) -> None:
    before = started(life)
    engine.docker("rm", "--force", "gb300-r01-n01")
    engine.docker("stop", "--time", "1", "gb300-r01-ctl")
    # An interrupted start leaves such a host. It was created, but has no keys and was never started.
    engine.docker("create", "--name", "gb300-r01-n01", "--label", f"{nodes.LABEL}=node", life.images.node())
    assert life.up(2, []) == 0
    everyone_answers(life)
    after = started(life)
    same = [name for name in NAMES if after[name] == before[name]]
    assert same == ["gb300-r01-svc", "gb300-r01-n02"]


def test_a_dead_engine_and_a_lost_hosts_file_are_repaired(life: program.Rack) -> None:
    pid = life.engine.own_pid()
    assert pid
    os.kill(pid, signal.SIGKILL)
    nodes.ETC_HOSTS.write_text(HOSTS)
    assert life.up(2, []) == 0
    assert life.engine.own_pid() not in (None, pid)
    everyone_answers(life)
    assert "gb300-r01-n02" in nodes.ETC_HOSTS.read_text()


def test_a_rack_that_was_killed_does_not_start_by_itself(life: program.Rack) -> None:
    pid = life.engine.own_pid()
    assert pid
    os.kill(pid, signal.SIGKILL)
    life.engine.start(life.console)
    assert {one.state for one in life.nodes.found().values()} == {"exited"}
    assert life.up(2, []) == 0
    everyone_answers(life)


def test_a_rack_that_another_checkout_left_is_taken_away(
    life: program.Rack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = started(life)
    monkeypatch.setattr(life.nodes, "state", tmp_path)
    monkeypatch.setattr(life.nodes, "key", tmp_path / "id_ed25519")
    monkeypatch.setattr(life.nodes, "known_hosts", tmp_path / "known_hosts")
    in_use = socket.create_connection((life.layout.nodes[0].address, 22))
    with pytest.raises(layout.RackError, match="is in use: there is a connection to gb300-r01-n01"):
        life.up(2, [])
    in_use.close()
    assert started(life) == before
    assert life.up(2, []) == 0
    assert "removing 4 hosts that another checkout left" in capsys.readouterr().out
    everyone_answers(life)
    assert not set(before.items()) & set(started(life).items())


def test_a_rack_whose_checkout_is_gone_is_made_again(
    life: program.Rack, capsys: pytest.CaptureFixture[str]
) -> None:
    # The previous test left the rack of another checkout.
    assert life.up(2, []) == 0
    before = started(life)
    life.nodes.key.unlink()
    shutil.rmtree(life.nodes.state / "hostkeys")
    assert life.up(2, []) == 0
    assert "removing 4 hosts that an earlier checkout at this place left" in capsys.readouterr().out
    everyone_answers(life)
    assert not set(before.items()) & set(started(life).items())


def test_one_host_is_removed(life: program.Rack) -> None:
    assert life.down(purge=False, names=["gb300-r01-n02"]) == 0
    assert sorted(life.nodes.found()) == sorted(NAMES[:3])
    assert "gb300-r01-n02" not in nodes.ETC_HOSTS.read_text() + nodes.SSH_CONFIG.read_text()


def test_down_leaves_no_trace(life: program.Rack, capsys: pytest.CaptureFixture[str]) -> None:
    assert life.down(purge=False) == 0
    assert "the rack is down: 3 hosts removed" in capsys.readouterr().out
    assert nodes.ETC_HOSTS.read_text() == HOSTS
    assert not nodes.SSH_CONFIG.exists()
    assert life.engine.own_pid() is None
    assert not life.engine.answers()
    links = subprocess.run(["ip", "-brief", "link"], capture_output=True, text=True, check=True).stdout
    assert "br-life" not in links
    assert life.down(purge=False) == 0
    assert "there was no rack" in capsys.readouterr().out
