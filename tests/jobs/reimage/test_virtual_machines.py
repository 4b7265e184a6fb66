"""Test the programs of testrack/vms, which make the virtual machines of the suite vms.

That suite re-images virtual machines as if they were nodes. These tests start no machine. They check that no
two machines share a serial number or an address, the libvirt domains, the inventory, and the fake systemctl.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import json
import os
import re
import shlex
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

ROOT = Path(__file__).resolve().parents[3]


def load(name: str) -> ModuleType:
    loader = importlib.machinery.SourceFileLoader(
        f"vms_{name.partition('.')[0]}", str(ROOT / "testrack/vms" / name)
    )
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


vms = load("vms.py")


def test_no_two_machines_share_anything(tmp_path: Path) -> None:
    one, two = vms.machine(1, tmp_path), vms.machine(2, tmp_path)
    assert set(one.values()) & set(two.values()) == {""}  # neither has UEFI
    one, two = vms.machine(1, tmp_path, uefi="plain"), vms.machine(2, tmp_path, uefi="plain")
    assert not set(one.values()) & set(two.values())
    assert len({*one.values()}) == len(one) - 1  # the tap has the machine's name


def test_libvirt_gets_serial_numbers_and_disks(tmp_path: Path) -> None:
    about = vms.machine(1, tmp_path)
    domain = ET.fromstring(vms.DOMAIN.format(**about, sku=vms.SKU, memory=512))
    entries = {one.get("name"): one.text for one in domain.iterfind("./sysinfo//entry")}
    assert entries == {"serial": about["serial"], "sku": "gb300", "asset": "vm1"}
    assert [disk.findtext("serial") for disk in domain.iter("disk")] == [
        about["disk_serial"],
        about["scratch_serial"],
    ]
    # Unless a network boot is requested, the machine boots from its disk.
    assert [boot.get("dev") for boot in domain.iter("boot")] == ["hd"]


def test_a_machine_with_uefi_keeps_its_variables_beside_its_disk(tmp_path: Path) -> None:
    domain = ET.fromstring(
        vms.DOMAIN.format(**vms.machine(1, tmp_path, uefi="plain"), sku=vms.SKU, memory=512)
    )
    assert domain.findtext("os/nvram") == str(tmp_path / "vm1.nvram")
    assert domain.find("os/loader").attrib == {"readonly": "yes", "type": "pflash"}


def test_secure_boot_has_a_firmware_that_the_system_cannot_write_to(tmp_path: Path) -> None:
    domain = ET.fromstring(vms.domain(vms.machine(1, tmp_path, uefi="secure"), 512))
    loader, kind = domain.find("os/loader"), domain.find("os/type")
    assert (loader.get("secure"), loader.text) == ("yes", "/usr/share/OVMF/OVMF_CODE_4M.secboot.fd")
    assert domain.find("os/nvram").get("template") == "/usr/share/OVMF/OVMF_VARS_4M.snakeoil.fd"
    assert (kind.get("machine"), domain.find("features/smm").get("state")) == ("q35", "on")
    for uefi in ("", "plain"):
        plain = ET.fromstring(vms.domain(vms.machine(1, tmp_path, uefi=uefi), 512))
        assert (plain.find("os/type").get("machine"), plain.find("features/smm")) == ("pc", None)


def test_a_machine_makes_its_fake_hardware_from_the_values_of_its_firmware(tmp_path: Path) -> None:
    about = vms.machine(1, tmp_path)
    unit = (ROOT / "testrack/vms/rack-machine.service").read_text()
    command = shlex.split(re.search(r"^ExecStart=(.*)$", unit, re.MULTILINE)[1])
    firmware = tmp_path / "firmware"
    firmware.mkdir()
    (firmware / "product_sku").write_text("gb300\n")
    (firmware / "chassis_asset_tag").write_text("vm1\n")
    hardware = ROOT / "testrack/fakes/hardware"
    said = command[-1].replace("/opt/rack/hardware", f"{sys.executable} {hardware}")
    said = said.replace("/sys/class/dmi/id", str(firmware))
    state = tmp_path / "hardware.json"
    subprocess.run([*command[:-1], said], env=os.environ | {"RACK_STATE": str(state)}, check=True)
    machine = json.loads(state.read_text())["machine"]
    assert (machine["product_serial"], machine["uuid"]) == (about["serial"], about["uuid"])


def test_the_image_has_the_fakes_and_no_timer_of_apt(tmp_path: Path) -> None:
    subprocess.run([ROOT / "testrack/vms/overlay", tmp_path / "over"], check=True)
    units = tmp_path / "over/etc/systemd/system"
    assert (tmp_path / "over/opt/rack/hardware").stat().st_mode & 0o100
    for name in ("rack-machine.service", "rack-hardware.service"):
        assert (units / "sysinit.target.wants" / name).resolve() == units / name
    assert (units / "apt-daily.timer").readlink() == Path("/dev/null")


def test_no_address_is_the_racks_own_and_every_name_is_known(tmp_path: Path) -> None:
    machines = [vms.machine(number, tmp_path) for number in (1, 2)]
    known = dict(reversed(line.split()) for line in vms.names(machines).splitlines())
    assert {"gb300-r01-ctl", "gb300-r01-svc", "gb300-r01-n18", "vm1", "vm2"} <= set(known)
    first, last = vms.RAMDISKS
    ramdisks = {f"{vms.NETWORK}.{number}" for number in range(first, last + 1)}
    every = [*known.values(), vms.HOST, vms.rack.GATEWAY]
    assert len(every) == len(set(every))
    assert ramdisks.isdisjoint(every)
    assert all(one.startswith(f"{vms.NETWORK}.") for one in every)


def test_the_inventory_has_all_variables_that_imaging_needs(tmp_path: Path) -> None:
    (tmp_path / "key.pub").write_text("ssh-ed25519 AAAA vms\n")
    (tmp_path / "netboot.json").write_text(json.dumps({"netboot_kernel": "vmlinuz"}))
    # The checkout may have no test rack, so the test makes the files of its mirror.
    (tmp_path / "mirror/images").mkdir(parents=True)
    (tmp_path / "mirror/images/SHA256SUMS").write_text("5d0c  check.sqsh\n")
    found = vms.inventory([vms.machine(1, tmp_path)], tmp_path, tmp_path, secrets=tmp_path)["all"]
    group = found["children"]["gb300-rack"]["children"]["vms"]
    host = found["vars"] | group["hosts"]["vm1"]
    tasks = (ROOT / "roles/reimage/tasks/by_image.yml").read_text()
    needed = set(re.findall(r"\['(reimage_\w+)'\] if not", tasks))
    assert len(needed) == 6
    assert needed <= {name for name, value in host.items() if value}
    assert host["netboot_kernel"] == "vmlinuz"
    assert host["nvidia_container_check_image_checksum"] == "sha256:5d0c"
    assert "StrictHostKeyChecking=yes" in group["vars"]["ansible_ssh_common_args"]


def appears(path: Path, within_s: float = 300) -> bool:
    """Return whether a file appears in time. A busy machine takes seconds to start a shell."""
    deadline = time.monotonic() + within_s
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    return path.exists()


def test_a_unit_starts_once_reloads_and_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    systemctl = load("systemctl")
    monkeypatch.setattr(systemctl, "UNITS", tmp_path / "units")
    monkeypatch.setattr(systemctl, "STATE", tmp_path / "state")
    (tmp_path / "units").mkdir()
    reloaded, ready = tmp_path / "reloaded", tmp_path / "ready"
    # A signal that comes before its trap is set would end the shell.
    script = f'trap "touch {reloaded}" USR1; touch {ready}; while :; do sleep 0.1; done'
    # A minimal system has no program kill. USR1 is used, because nohup makes the shell ignore SIGHUP.
    kill = "import os, signal, sys; os.kill(int(sys.argv[1]), signal.SIGUSR1)"
    (tmp_path / "units/one.service").write_text(
        f"[Service]\nExecStart=/bin/sh -c '{script}'\nExecReload={sys.executable} -c '{kill}' $MAINPID\n"
    )
    (tmp_path / "units/bad.service").write_text("[Service]\nExecStart=/bin/sh -c 'echo no; exit 1'\n")
    assert systemctl.main(["is-active", "one.service"]) == 3
    systemctl.main(["start", "one.service"])
    first = systemctl.pid("one.service")
    systemctl.main(["start", "one.service"])
    assert first
    assert systemctl.pid("one.service") == first
    assert appears(ready)
    systemctl.main(["reload", "one.service"])
    assert appears(reloaded)
    systemctl.main(["show", "one.service"])
    assert "ActiveState=active" in capsys.readouterr().out
    systemctl.main(["stop", "one.service"])
    assert systemctl.pid("one.service") == 0
    systemctl.main(["show", "none.service"])
    assert "LoadState=not-found" in capsys.readouterr().out

    def until_it_ends(seconds: float) -> None:
        while systemctl.pid("bad.service"):
            time.sleep(0.05)

    # The fake waits half a second, which is too short for a busy machine, so the test waits for the end.
    monkeypatch.setattr(systemctl, "time", SimpleNamespace(sleep=until_it_ends))
    with pytest.raises(SystemExit, match="no"):
        systemctl.main(["start", "bad.service"])
