"""What make vms starts: machines that differ, an inventory that lacks nothing, units that start and end."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import json
import re
import xml.etree.ElementTree as ET
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[3]


def load(name: str) -> ModuleType:
    loader = importlib.machinery.SourceFileLoader(
        f"vms_{name.partition('.')[0]}", str(ROOT / "molecule/vms" / name)
    )
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


vms = load("vms.py")


def test_no_two_machines_share_anything(tmp_path: Path) -> None:
    one, two = vms.machine(1, tmp_path), vms.machine(2, tmp_path)
    assert not set(one.values()) & set(two.values()) - {one["name"]}
    assert len({*one.values()}) == len(one) - 1  # its name is also its tap's


def test_libvirt_is_told_of_serial_numbers_and_disks(tmp_path: Path) -> None:
    about = vms.machine(1, tmp_path)
    domain = ET.fromstring(vms.DOMAIN.format(**about, memory=512))
    assert domain.findtext("./sysinfo/system/entry") == about["serial"]
    assert [disk.findtext("serial") for disk in domain.iter("disk")] == [
        about["disk_serial"],
        about["scratch_serial"],
    ]
    # As long as nobody asks for the network, it boots from its disk.
    assert [boot.get("dev") for boot in domain.iter("boot")] == ["hd"]


def test_the_inventory_says_all_that_imaging_asks_for(tmp_path: Path) -> None:
    (tmp_path / "key.pub").write_text("ssh-ed25519 AAAA vms\n")
    (tmp_path / "netboot.json").write_text(json.dumps({"netboot_kernel": "vmlinuz"}))
    found = vms.inventory([vms.machine(1, tmp_path)], tmp_path, tmp_path)["all"]
    host = found["vars"] | found["children"]["gpu_nodes"]["children"]["vms"]["hosts"]["vm1"]
    tasks = (ROOT / "playbooks/tasks/reimage_by_image.yml").read_text()
    needed = set(re.findall(r"\['(reimage_\w+)'\] if not", tasks))
    assert len(needed) == 6
    assert needed <= {name for name, value in host.items() if value}
    assert host["netboot_kernel"] == "vmlinuz"
    ssh = found["children"]["gpu_nodes"]["children"]["vms"]["vars"]["ansible_ssh_common_args"]
    assert "StrictHostKeyChecking=yes" in ssh


def test_a_unit_starts_once_is_told_to_reload_and_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    systemctl = load("systemctl")
    monkeypatch.setattr(systemctl, "UNITS", tmp_path / "units")
    monkeypatch.setattr(systemctl, "STATE", tmp_path / "state")
    (tmp_path / "units").mkdir()
    heard = tmp_path / "heard"
    (tmp_path / "units/one.service").write_text(
        f"[Service]\nExecStart=/bin/sh -c 'trap \"touch {heard}\" HUP; while :; do sleep 0.1; done'\n"
        "ExecReload=/bin/kill -HUP $MAINPID\n"
    )
    (tmp_path / "units/bad.service").write_text("[Service]\nExecStart=/bin/sh -c 'echo no; exit 1'\n")
    assert systemctl.main(["is-active", "one.service"]) == 3
    systemctl.main(["start", "one.service"])
    first = systemctl.pid("one.service")
    systemctl.main(["start", "one.service"])
    assert first
    assert systemctl.pid("one.service") == first
    systemctl.main(["reload", "one.service"])
    for _ in range(50):
        if heard.exists():
            break
        systemctl.time.sleep(0.1)
    assert heard.exists()
    systemctl.main(["show", "one.service"])
    assert "ActiveState=active" in capsys.readouterr().out
    systemctl.main(["stop", "one.service"])
    assert systemctl.pid("one.service") == 0
    systemctl.main(["show", "none.service"])
    assert "LoadState=not-found" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="no"):
        systemctl.main(["start", "bad.service"])
