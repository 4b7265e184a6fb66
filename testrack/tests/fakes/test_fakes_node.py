"""Test a node's fake kernel and machine: identities, kernel modules, device nodes, kernel log and boots.

The nodes of the test rack are containers, which share the host's kernel. Tools such as lsmod, dmesg and lspci
are therefore fakes that read the node's state file.
"""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from testrack.tests.fakes.fake_paths import FAKES

# The number of GPUs and of network cards of each SKU.
SKUS = {"gb300": (4, 4), "b200": (8, 12), "h100": (8, 8), "h200": (8, 8)}


@pytest.mark.parametrize(("sku", "counts"), SKUS.items())
def test_the_same_seed_gives_the_same_hardware_and_another_another(
    sku: str, counts: tuple[int, int], bare: Callable
) -> None:
    from rackhardware.state import make

    first, second, again = (make(sku, seed) for seed in ("r01-n01", "r01-n02", "r01-n01"))
    assert first == again
    assert (len(first["gpus"]), len(first["hcas"])) == counts
    for key in ("uuid", "serial", "pdi", "fabric_guid"):
        of_both = [gpu[key] for state in (first, second) for gpu in state["gpus"]]
        assert len(set(of_both)) == 2 * counts[0], key
    assert len({hca["guid"] for state in (first, second) for hca in state["hcas"]}) == 2 * counts[1]
    assert first["machine"]["product_serial"] != second["machine"]["product_serial"]


def test_a_rack_of_nodes_shares_its_chassis_and_nothing_else(bare: Callable) -> None:
    from rackhardware.state import make

    states = [make("gb300", f"gb300-r01-n{number:02d}") for number in range(1, 19)]
    uuids = [gpu["uuid"] for state in states for gpu in state["gpus"]]
    serials = [gpu["serial"] for state in states for gpu in state["gpus"]]
    assert len(set(uuids)) == len(set(serials)) == 72
    assert len({state["machine"]["rack_serial"] for state in states}) == 1
    assert len({state["machine"]["cluster_uuid"] for state in states}) == 1
    assert [state["machine"]["tray"] for state in states] == list(range(1, 19))
    other = make("gb300", "gb300-r02-n01")
    assert other["machine"]["rack_serial"] != states[0]["machine"]["rack_serial"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "there is no hardware state"),
        ("", "not a hardware state"),
        ("{", "not a hardware state"),
        ("[]", "unknown sku None"),
        ("7", "not a hardware state"),
        ('{"sku": "tpu"}', "unknown sku 'tpu'"),
        ('{"sku": "h100"}', "gpus is missing or damaged"),
        (
            '{"sku": "h100", "gpus": [1], "hcas": [], "faults": {}, "machine": {}, "kernel_log": []}',
            "a GPU lacks",
        ),
        (
            '{"sku": "h100", "gpus": [], "hcas": 3, "faults": {}, "machine": {}, "kernel_log": []}',
            "hcas is missing",
        ),
    ],
)
def test_a_damaged_state_is_reported_with_its_remedy(text: str | None, said: str, bare: Callable) -> None:
    path = bare.root / "var/lib/rack/hardware.json"
    path.parent.mkdir(parents=True)
    if text is not None:
        path.write_text(text)
    for tool in (
        "nvidia-smi -L",
        "lspci",
        "ibstat",
        "dmidecode -s system-serial-number",
        "hardware --faults",
    ):
        answer = bare(tool)
        assert answer.rc == 70, tool
        assert said in answer.err, tool
        assert "--init" in answer.err, tool
        assert "Traceback" not in answer.both, tool


def test_the_state_may_lie_elsewhere(bare: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RACK_STATE", str(tmp_path / "elsewhere.json"))
    bare.ok("hardware --init h100 --seed n1")
    assert json.loads((tmp_path / "elsewhere.json").read_text())["sku"] == "h100"
    assert not (bare.root / "var/lib/rack/hardware.json").exists()


def test_init_requires_a_seed_and_a_known_sku(bare: Callable) -> None:
    assert "--seed" in bare("hardware --init h100").err
    assert "gb300" in bare("hardware --init dgx1 --seed n1").err


def test_a_module_is_loaded_with_what_it_needs(bare: Callable, kernel_files: bool) -> None:
    node = bare.init()
    node.install("nvidia", "580.95.05")
    node.install("nvidia-peermem", "580.95.05", ("nvidia", "ib_core"))
    before = node.ok("lsmod")
    assert before.splitlines()[0] == "Module                  Size  Used by"
    assert "nvidia" not in before
    node.ok("modprobe nvidia-peermem")
    lines = {line.split()[0]: line.split()[2:] for line in node.ok("lsmod").splitlines()[1:]}
    assert lines["nvidia_peermem"] == ["0"]
    assert lines["nvidia"] == ["1", "nvidia_peermem"]
    assert "nvidia_peermem" in lines["ib_core"][1].split(",")
    assert node.ok("modprobe nvidia_peermem") == ""
    for name in ("nvidia", "nvidia_peermem"):
        assert (node.root / f"sys/module/{name}/version").read_text() == "580.95.05\n"
    kept = json.loads((node.root / "run/rack/modules.json").read_text())
    assert kept["nvidia"]["version"] == "580.95.05"


RELEASE = os.uname().release


@pytest.mark.parametrize(
    ("command", "rc", "said"),
    [
        ("modprobe foo", 1, f"modprobe: FATAL: Module foo not found in directory /lib/modules/{RELEASE}\n"),
        ("modprobe -q foo", 1, ""),
        ("modprobe", 1, "modprobe: FATAL: missing parameters. See -h.\n"),
        ("modprobe -r nvidia", 1, "modprobe: FATAL: Module nvidia is in use.\n"),
        (
            "modprobe -r foo",
            1,
            f"modprobe: FATAL: Module foo not found in directory /lib/modules/{RELEASE}\n",
        ),
        ("modprobe -r nvidia-peermem", 0, ""),
        ("modprobe -Z nvidia", 1, "modprobe: invalid option -- 'Z'\n"),
        ("modprobe nvidia NVreg_EnableStreamMemOPs=1", 0, ""),
        (
            "modprobe -n foo",
            1,
            f"modprobe: FATAL: Module foo not found in directory /lib/modules/{RELEASE}\n",
        ),
        ("rmmod nvidia", 1, "rmmod: ERROR: Module nvidia is in use by: nvidia_uvm\n"),
        ("rmmod foo", 1, "rmmod: ERROR: Module foo is not currently loaded\n"),
        ("rmmod", 1, "rmmod: ERROR: missing module name.\n"),
        ("modinfo foo", 1, "modinfo: ERROR: Module foo not found.\n"),
        ("modinfo", 1, "modinfo: ERROR: missing module or filename.\n"),
    ],
)
def test_errors_of_the_modules_tools_are_the_real_ones(
    command: str, rc: int, said: str, bare: Callable
) -> None:
    node = bare.init().drive()
    node.ok("modprobe nvidia-uvm")
    answer = node(command)
    assert (answer.rc, answer.out, answer.err) == (rc, "", said)


def test_a_module_that_a_daemon_holds_cannot_be_removed(bare: Callable) -> None:
    node = bare.init().drive()
    node.runs("nvidia-persistenced")
    node.ok("nvidia-smi -pm 1")
    assert node("rmmod nvidia").err == "rmmod: ERROR: Module nvidia is in use\n"
    assert node("modprobe -r nvidia").err == "modprobe: FATAL: Module nvidia is in use.\n"
    # A daemon that has ended no longer uses the driver.
    (node.root / "run/rack/holds-nvidia/nvidia-persistenced").write_text("999999999\n")
    assert node("rmmod nvidia").rc == 0


def test_removing_the_driver_takes_its_traces(bare: Callable, kernel_files: bool) -> None:
    node = bare.init().drive()
    assert (node.root / "dev/nvidia3").exists()
    assert "580.95.05" in (node.root / "proc/driver/nvidia/version").read_text()
    assert "Kernel driver in use: nvidia\n" in node.ok("lspci -k -d 10de:")
    node.ok("modprobe -r nvidia")
    assert not list((node.root / "dev").glob("nvidia*"))
    assert not (node.root / "proc/driver/nvidia").exists()
    assert not (node.root / "sys/module/nvidia").exists()
    assert "driver in use: nvidia" not in node.ok("lspci -k -d 10de:")
    answer = node("nvidia-smi")
    assert (answer.rc, "couldn't communicate with the NVIDIA driver" in answer.out) == (9, True)


def test_a_virtual_machines_own_devices_give_way_and_are_not_written(
    bare: Callable, kernel_files: bool
) -> None:
    device = bare.root / "sys/devices/virtual/dmi/id"
    device.mkdir(parents=True)
    (device / "product_name").write_text("Standard PC\n")
    (bare.root / "sys/class/dmi").mkdir(parents=True)
    (bare.root / "sys/class/dmi/id").symlink_to("../../devices/virtual/dmi/id")
    name = bare.init().root / "sys/class/dmi/id/product_name"
    assert name.read_text() != (device / "product_name").read_text() == "Standard PC\n"


def test_modinfo_shows_the_installed_file_and_not_the_loaded_one(bare: Callable, kernel_files: bool) -> None:
    node = bare.init().drive("570.172.08")
    node.install("nvidia", "580.95.05")
    assert node.ok("modinfo -F version nvidia") == "580.95.05\n"
    assert node.ok("modinfo -F license nvidia") == "Dual MIT/GPL\n"
    assert (node.root / "sys/module/nvidia/version").read_text() == "570.172.08\n"
    fields = dict(re.findall(r"^(\w+):\s+(.*)$", node.ok("modinfo nvidia-peermem"), re.M))
    assert (fields["name"], fields["depends"]) == ("nvidia_peermem", "nvidia,ib_core")


@pytest.mark.parametrize(
    ("version", "given", "license_reported", "title"),
    [
        ("580.95.05", None, "Dual MIT/GPL", "NVIDIA UNIX Open Kernel Module for "),
        ("418.87.01", None, "NVIDIA", f"NVIDIA UNIX {os.uname().machine} Kernel Module  418.87.01"),
        ("570.172.08", "NVIDIA", "NVIDIA", f"NVIDIA UNIX {os.uname().machine} Kernel Module  570.172.08"),
    ],
)
def test_open_and_proprietary_drivers_call_themselves_otherwise(
    version: str, given: str | None, license_reported: str, title: str, bare: Callable, kernel_files: bool
) -> None:
    node = bare.init()
    node.install("nvidia", version)
    if given:
        path = node.root / "usr/lib/rack/modules/nvidia.json"
        path.write_text(json.dumps({"version": version, "license": given}))
    node.ok("modprobe nvidia")
    assert node.ok("modinfo -F license nvidia") == f"{license_reported}\n"
    assert f"NVRM version: {title}" in (node.root / "proc/driver/nvidia/version").read_text()
    assert f"NVRM: loading {title}" in node.ok("dmesg")


def test_new_programs_with_an_old_module_mismatch_until_the_reboot(bare: Callable) -> None:
    node = bare.init().drive("570.172.08")
    assert (
        node.ok("nvidia-smi --query-gpu=driver_version --format=csv,noheader").split() == ["570.172.08"] * 4
    )
    node.install("nvidia", "580.95.05")
    answer = node("nvidia-smi")
    said = "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 580.95\n"
    assert (answer.rc, answer.out) == (18, said)
    node.ok("hardware --boot")
    assert node.ok("nvidia-smi --query-gpu=driver_version --format=csv,noheader").split() == ["580.95.05"] * 4


def test_a_boot_loads_what_is_there_and_then_what_is_configured(bare: Callable) -> None:
    node = bare.init().drive()
    node.install("nvidia-fs", "2.26.6", ("nvidia",))
    folder = node.root / "etc/modules-load.d"
    folder.mkdir(parents=True)
    (folder / "rack.conf").write_text("# GPUDirect\n\nnvidia-peermem\n; not this\nnvidia_fs\n")
    hidden = node.root / "usr/lib/modules-load.d"
    hidden.mkdir(parents=True)
    (hidden / "rack.conf").write_text("no-such-module\n")
    node.ok("hardware --boot")
    assert "nvidia_uvm" in node.ok("lsmod")
    assert "nvidia_peermem" not in node.ok("lsmod")
    node.ok("hardware --load-modules")
    assert {"nvidia_peermem", "nvidia_fs"} <= {line.split()[0] for line in node.ok("lsmod").splitlines()}
    (folder / "wrong.conf").write_text("nvidia-gone\n")
    answer = node("hardware --load-modules")
    assert (answer.rc, answer.err) == (1, "Failed to find module 'nvidia-gone'\n")


def test_a_bare_node_has_its_hardware_and_no_driver(bare: Callable, kernel_files: bool) -> None:
    node = bare.init()
    assert len(node.ok("lspci -d 10de:").splitlines()) == 4
    assert "nvidia" not in node.ok("lsmod")
    assert node("nvidia-smi").rc == 9
    assert node("modprobe nvidia").rc == 1
    assert sorted(path.name for path in (node.root / "sys/class/infiniband").iterdir()) == [
        f"mlx5_{index}" for index in range(4)
    ]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes device nodes")
def test_device_nodes_are_character_devices_of_the_drivers_numbers(
    bare: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    probe = bare.root / "probe"
    monkeypatch.undo()
    try:
        os.mknod(probe, 0o600 | stat.S_IFCHR, os.makedev(1, 3))
    except OSError:
        pytest.skip("no device nodes may be made here")
    bare.process(["hardware", "--init", "gb300", "--seed", "n1"]).communicate()
    bare.install("nvidia", "580.95.05")
    assert bare.process(["modprobe", "nvidia"]).wait() == 0
    for name, minor in (("nvidia0", 0), ("nvidia3", 3), ("nvidiactl", 255)):
        found = (bare.root / "dev" / name).stat()
        assert stat.S_ISCHR(found.st_mode)
        assert (os.major(found.st_rdev), os.minor(found.st_rdev)) == (195, minor)
        assert stat.S_IMODE(found.st_mode) == 0o666


def test_the_driver_is_loaded_by_its_own_helper(bare: Callable) -> None:
    node = bare.init()
    assert node("nvidia-modprobe -u -c=0").rc == 1
    node.install("nvidia", "580.95.05")
    node.install("nvidia-uvm", "580.95.05", ("nvidia",))
    node.ok("nvidia-modprobe -u -c=0")
    assert (node.root / "dev/nvidia-uvm").exists()


@pytest.mark.parametrize(
    ("keyword", "form"),
    [
        ("system-product-name", r"ARS-121GL-NB3B-LCC\n"),
        ("system-serial-number", r"S\d{9}X\d{4}\n"),
        ("chassis-serial-number", r"C\d{9}\n"),
        ("bios-version", r"02\.04\.12\n"),
        ("system-uuid", r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-a[0-9a-f]{3}-[0-9a-f]{12}\n"),
    ],
)
def test_dmidecode_shows_the_machine(keyword: str, form: str, bare: Callable) -> None:
    node = bare.init()
    said = node.ok(f"dmidecode -s {keyword}")
    assert re.fullmatch(form, said)
    assert said.strip() in node.ok("dmidecode -t 0,1,2,3")


def test_dmidecode_refuses_what_it_does_not_know(bare: Callable) -> None:
    node = bare.init()
    assert node("dmidecode -s nonsense").err.startswith(
        "Invalid string keyword: nonsense\nValid string keywords are:\n"
    )
    assert node("dmidecode -t nonsense").err.startswith("Invalid type keyword: nonsense\n")
    assert node("dmidecode --nonsense").rc == 2
    kinds = re.findall(r"DMI type (\d+)", node.ok("dmidecode -t memory"))
    assert set(kinds) == {"17"}


@pytest.mark.parametrize(
    ("arguments", "lines"),
    [
        (
            "-Dn -d 10de:",
            [r"0008:06:00\.0 0302: 10de:31c2 \(rev a1\)"] + [r".* 0302: 10de:31c2 \(rev a1\)"] * 3,
        ),
        (
            "-nn -s 0008:06:00.0",
            [r"0008:06:00\.0 3D controller \[0302\]: NVIDIA Corporation Device \[10de:31c2\] \(rev a1\)"],
        ),
        ("-d ::0207", [r".* Infiniband controller: Mellanox Technologies MT2921 Family \[ConnectX-8\]"] * 4),
        ("-d 15b3:1023 -s 10:", []),
        (
            "-mm -d 10de:31c2 -s 0019:06:00.0",
            [r'0019:06:00\.0 "3D controller" "NVIDIA Corporation" "Device 31c2" -ra1 .*'],
        ),
    ],
)
def test_lspci_lists_what_is_asked(arguments: str, lines: list[str], bare: Callable) -> None:
    found = bare.init().ok(f"lspci {arguments}").splitlines()
    assert len(found) == len(lines), found
    for line, form in zip(found, lines, strict=True):
        assert re.fullmatch(form, line), line


def test_lspci_of_an_x86_node_needs_no_domain(bare: Callable) -> None:
    found = bare.init("h100", "n1").ok("lspci -d 10de:").splitlines()
    assert len(found) == 8 + 4
    gpu = "3D controller: NVIDIA Corporation GH100 [H100 SXM5 80GB] (rev a1)"
    assert found[0].startswith("05:00.0 Bridge: ")
    assert f"1b:00.0 {gpu}" in found
    assert bare("lspci --nonsense").rc == 1


def test_infiniband_needs_its_driver(bare: Callable, kernel_files: bool) -> None:
    node = bare.init()
    assert "CA type: MT4131" in node.ok("ibstat mlx5_3")
    assert node.ok("ibv_devinfo -l").splitlines()[0] == "4 HCAs found:"
    assert node("ibv_devinfo -d mlx5_9").err == "IB device 'mlx5_9' wasn't found\n"
    node.ok("modprobe -r ib_umad")
    node.ok("modprobe -r mlx5_ib")
    # The tools of Debian 12 give the answers below.
    assert (node("ibstat").rc, node("ibstat").both) == (0, "")
    answer = node("ibstatus")
    assert answer.rc == 255
    assert answer.err == "Fatal error:  device '*': sys files not found (/sys/class/infiniband/*/ports)\n"
    assert "'mlx5_9' IB device can't be found: Success" in node("ibstat mlx5_9").err
    assert node("ibstat --nonsense").rc == 2
    assert node("ibv_devinfo").err == "No IB devices found\n"
    assert not (node.root / "sys/class/infiniband").exists() or not list(
        (node.root / "sys/class/infiniband").iterdir()
    )


def test_ofed_info_shows_what_the_package_put_there(bare: Callable) -> None:
    node = bare.init()
    assert "no OFED package is installed" in node("ofed_info -s").err
    path = node.root / "usr/lib/rack/ofed.json"
    path.parent.mkdir(parents=True)
    about = {
        "name": "MLNX_OFED_LINUX-24.10-3.2.5.0",
        "version": "24.10-3.2.5.0",
        "packages": {"mlnx-tools": "24.10"},
    }
    path.write_text(json.dumps(about))
    assert node.ok("ofed_info -s") == "MLNX_OFED_LINUX-24.10-3.2.5.0:\n"
    assert node.ok("ofed_info -n") == "24.10-3.2.5.0\n"
    assert "mlnx-tools:\n24.10\n" in node.ok("ofed_info")
    assert node("ofed_info --nonsense").rc == 1


def test_the_log_is_read_as_dmesg_is_read(node: Callable) -> None:
    node.ok("hardware --fault xid --gpu 0 --number 79")
    (line,) = [one for one in node.ok("dmesg").splitlines() if "Xid" in one]
    assert re.fullmatch(r"\[ *\d+\.\d{6}\] NVRM: Xid \(PCI:0008:06:00\): 79, .*", line)
    assert "Xid" in node.ok("dmesg --level=err")
    assert "Xid" not in node.ok("dmesg -l info,notice")
    assert "kern  :err   : [" in node.ok("dmesg -xT")
    assert node("dmesg --nonsense").rc == 1
    assert "unknown level 'loud'" in node("dmesg -l loud").err
    node.ok("dmesg -C")
    assert node.ok("dmesg") == ""


# Each case: the caller's options, and the options with which the fake starts the real journalctl.
@pytest.mark.parametrize(
    ("arguments", "passed_on"),
    [
        ("-k", ["-b", "-t", "kernel"]),
        ("--dmesg -n 5", ["-b", "-t", "kernel", "-n", "5"]),
        ("-kb --no-pager", ["-b", "-t", "kernel", "-b", "--no-pager"]),
        ("-u slurmd -n 3", ["-u", "slurmd", "-n", "3"]),
        ("_TRANSPORT=kernel -o json", ["-t", "kernel", "-o", "json"]),
        ("-ukubelet", ["-ukubelet"]),
    ],
)
def test_journalctl_shows_messages_of_the_fakes_as_those_of_the_kernel(
    arguments: str, passed_on: list[str], bare: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    called = []

    class Journal:
        returncode = 0
        stdout = ("Nov 21 16:26:42 n11 kernel[871]: NVRM: Xid (PCI:0009:06:00): 79, pid=1\n",)

        def __init__(self, words: list[str], **_: object) -> None:
            called.append(words)

        def __enter__(self) -> Journal:
            return self

        def __exit__(self, *_: object) -> None:
            pass

    def execute(_path: str, words: list[str]) -> None:
        called.append(words)
        sys.exit(0)

    monkeypatch.setattr(os, "execv", execute)
    monkeypatch.setattr(subprocess, "Popen", Journal)
    answer = bare(f"journalctl {arguments}")
    assert called == [["/usr/bin/journalctl", *passed_on]]
    # The journal shows lines of the real kernel in this form, which has no process id.
    assert answer.out in ("", "Nov 21 16:26:42 n11 kernel: NVRM: Xid (PCI:0009:06:00): 79, pid=1\n")
    assert bool(answer.out) == ("kernel" in passed_on)


def test_journalctl_states_the_kernel_s_own_time_of_a_message(bare: Callable) -> None:
    from rackhardware import kernel

    booted = bare.root / "run/rack/booted"
    booted.parent.mkdir(parents=True, exist_ok=True)
    booted.write_text("1795000000.5\n")
    line = '{"_BOOT_ID":"1","__REALTIME_TIMESTAMP":"1795000002000000"}\n'
    assert json.loads(kernel._of_kernel(line)) == {
        **json.loads(line), "_SOURCE_MONOTONIC_TIMESTAMP": "1500000"
    }  # fmt: skip


def test_the_distributions_infiniband_tools_get_a_stand_in_before_them(bare: Callable) -> None:
    tool, link = bare.root / "usr/bin/ibv_devinfo", bare.root / "usr/local/bin/ibv_devinfo"
    bare.ok("hardware --link-tools")
    assert not link.is_symlink()
    tool.parent.mkdir(parents=True)
    tool.write_text("real")
    bare.ok("hardware --link-tools")
    assert os.readlink(link) == "/opt/rack/hardware"
    tool.unlink()
    bare.ok("hardware --link-tools")
    assert not link.is_symlink()


def test_daemons_hold_the_driver_until_they_are_stopped(make: Callable) -> None:
    node = make("h100")
    shutil.rmtree(node.root / "run/rack/holds-nvidia")
    daemon = node.process(["nv-fabricmanager", "-c", "fabricmanager.cfg"])
    daemon.communicate()
    assert daemon.returncode == 0
    # The daemon is registered as soon as the program that starts it has ended.
    pid = int((node.root / "run/rack/holds-nvidia/nv-fabricmanager").read_text())
    fabric = "nvidia-smi --query-gpu=fabric.state --format=csv"
    try:
        assert node("rmmod nvidia").rc == 1
        assert "Completed" in node.ok(fabric)
    finally:
        os.kill(pid, 15)
    while "Completed" in node.ok(fabric):
        subprocess.run(["sleep", "0.05"], check=True)
    assert node("rmmod nvidia").rc == 0


def test_the_driver_makes_an_imex_channel_only_when_it_is_loaded_with_the_option(make: Callable) -> None:
    node = make("gb300")
    channel, option = (
        node.root / "dev/nvidia-caps-imex-channels/channel0",
        node.root / "etc/modprobe.d/imex.conf",
    )
    option.parent.mkdir(parents=True, exist_ok=True)
    for text, there in (
        ("options nvidia NVreg_CreateImexChannel0=1\n", True),
        ("options nvidia NVreg_CreateImexChannel0=0\n", False),
        ("options nvidia_drm NVreg_CreateImexChannel0=1\n", False),
    ):
        before = channel.exists()
        option.write_text(text)
        node.ok("hardware --fault xid --gpu 0 --number 13")
        assert channel.exists() == before
        shutil.rmtree(node.root / "run/rack/holds-nvidia", ignore_errors=True)
        for module in ("nvidia_modeset", "nvidia_uvm", "nvidia_peermem", "nvidia"):
            node(f"rmmod {module}")
        node.ok("modprobe nvidia")
        assert channel.exists() == there, text


@pytest.mark.parametrize(
    ("version", "listed", "words"),
    [
        ("580.95.04", "own", "IMEX version 580.95.04 is not compatible with driver version 580.95.05"),
        ("580.95.05", "10.9.9.9\n10.9.9.8\n", "None of the 2 addresses"),
        ("580.95.05", "", "None of the 0 addresses"),
    ],
)
def test_imex_refuses_another_driver_and_a_list_without_this_node(
    make: Callable, version: str, listed: str, words: str
) -> None:
    node = make("gb300")
    (node.root / "usr/lib/rack/modules/nvidia-imex.json").write_text(
        f'{{"version": "{version}", "depends": []}}'
    )
    nodes = node.root / "etc/nvidia-imex/nodes_config.cfg"
    nodes.parent.mkdir(parents=True)
    nodes.write_text("127.0.0.1\n" if listed == "own" else listed)
    answer = node("nvidia-imex -c config.cfg")
    assert (answer.rc, words in answer.both) == (1, True), answer
    assert node("nvidia-imex-ctl -q").rc == 1
    assert version in node.ok("nvidia-imex --version")


def test_a_node_without_a_place_in_the_domain_shows_it_in_few_fields(make: Callable) -> None:
    for sku, changes in (("gb300", True), ("h100", False), ("b200", False)):
        node = make(sku)
        before = node.ok("nvidia-smi -q")
        node.ok("hardware --fault no-nvlink-domain")
        now = node.ok("nvidia-smi -q")
        assert ("Insufficient Resources" in now) == changes
        assert ("State                                          : Completed" in now) == (
            ": Completed" in before
        )
        lines = zip(before.splitlines(), now.splitlines(), strict=True)
        changed = {new.split(":")[0].strip() for old, new in lines if old != new} - {"Timestamp"}
        assert changed == ({"Status", "CliqueId", "ClusterUUID"} if changes else set())


def test_an_unknown_name_is_reported(bare: Callable) -> None:
    answer = bare("nvidia-settings")
    assert (answer.rc, "no fake of that name" in answer.err) == (2, True)


def test_the_image_gets_all_that_is_needed(tmp_path: Path) -> None:
    subprocess.run(["sh", str(FAKES / "install.sh"), str(tmp_path)], check=True)
    assert os.access(tmp_path / "opt/rack/hardware", os.X_OK)
    modules = {path.name for path in (FAKES / "rackhardware").glob("*.py")}
    assert {path.name for path in (tmp_path / "opt/rack/rackhardware").iterdir()} == modules
    for tool in ("lspci", "dmidecode", "lsmod", "modprobe", "rmmod", "modinfo", "dmesg", "journalctl"):
        assert os.readlink(tmp_path / "usr/local/sbin" / tool) == "/opt/rack/hardware"
    assert (tmp_path / "etc/systemd/system/multi-user.target.wants/rack-settling.service").exists()
    for unit in ("rack-hardware.service", "systemd-modules-load.service"):
        assert (tmp_path / "etc/systemd/system/sysinit.target.wants" / unit).exists()
    done = subprocess.run(
        [sys.executable, "-I", str(tmp_path / "opt/rack/hardware"), "--init", "h100", "--seed", "n1"],
        env={"RACK_ROOT": str(tmp_path / "node")},
        check=True,
        capture_output=True,
        text=True,
    )
    assert "h100, seed n1" in done.stdout


@pytest.mark.parametrize("path", sorted((FAKES / "rackhardware").glob("*.py")), ids=lambda path: path.stem)
def test_the_program_needs_no_newer_python_than_nodes_have(path: Path) -> None:
    tree = ast.parse(path.read_text(), feature_version=(3, 8))
    newer = {"removeprefix", "removesuffix"}
    used = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    assert not used & newer
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        if isinstance(call.func, ast.Name) and call.func.id == "zip":
            assert not call.keywords
    imported = {
        (node.module or "").split(".")[0] if isinstance(node, ast.ImportFrom) else name.name.split(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom) and not getattr(node, "level", 0)
        for name in node.names
    }
    assert imported <= sys.stdlib_module_names


QUERY = "nvidia-smi --query-gpu=persistence_mode --format=csv,noheader"


@pytest.mark.parametrize(("options", "mode"), [([], "Enabled"), (["--no-persistence-mode"], "Disabled")])
def test_the_persistence_daemon_turns_the_mode_on_only_without_its_option(
    options: list[str], mode: str, bare: Callable
) -> None:
    """Packages of Debian and Ubuntu start the daemon with that option."""
    node = bare.init().drive()
    node.process(["nvidia-persistenced", "--verbose", *options]).communicate()
    pid = int((node.root / "run/rack/holds-nvidia/nvidia-persistenced").read_text())
    try:
        assert node.ok(QUERY).split() == [mode] * 4
        assert (node("rmmod nvidia").rc == 1) == (mode == "Enabled")
        node.ok("modprobe nvidia")
        node.ok("nvidia-smi -pm 1")
        assert node.ok(QUERY).split() == ["Enabled"] * 4
        assert node.process(["nvidia-persistenced"]).wait() == 1
    finally:
        os.kill(pid, signal.SIGKILL)
    # The mode ends with the daemon that keeps it.
    for _try in range(100):
        if node.ok(QUERY).split() == ["Disabled"] * 4:
            break
        time.sleep(0.05)
    assert node.ok(QUERY).split() == ["Disabled"] * 4


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--persistence"], 'unrecognized option: "--persistence"'),
        (["--user", "no-such-user"], "failed to initialize"),
    ],
)
def test_the_persistence_daemon_refuses_what_the_real_one_refuses(
    options: list[str], words: str, bare: Callable
) -> None:
    daemon = bare.init().drive().process(["nvidia-persistenced", *options])
    assert words in daemon.communicate()[1]
    assert daemon.returncode == 1


@pytest.mark.parametrize(
    ("share", "state", "fabric"),
    [(0.2, "1: DOWN", "In Progress"), (0.7, "2: INIT", "In Progress"), (1.1, "4: ACTIVE", "Completed")],
)
def test_ports_and_fabric_are_ready_some_time_after_a_boot(
    share: float, state: str, fabric: str, bare: Callable, kernel_files: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = bare.init().drive()
    monkeypatch.setenv("RACK_SETTLE_S", "1000")
    booted = time.monotonic() - 1000 * share
    (node.root / "run/rack/booted-monotonic").write_text(f"{booted}\n")
    node.ok("hardware --settle")
    port = node.root / "sys/class/infiniband/mlx5_0/ports/1"
    assert (port / "state").read_text().strip() == state
    assert (port / "counters/link_downed").read_text().strip() == "0"
    assert state in node.ok("ibstatus mlx5_0")
    assert state.partition(": ")[2].title()[:4] in node.ok("ibstat mlx5_0")
    assert f"PORT_{state.partition(': ')[2]} (" in node.ok("ibv_devinfo -d mlx5_0")
    states = node.ok("nvidia-smi --query-gpu=fabric.state --format=csv,noheader")
    assert states == f"{fabric}\n" * 4
    assert ("<clusterUuid>N/A" in node.ok("nvidia-smi -q -x")) == (fabric != "Completed")
    node.ok("hardware --boot")
    node.drive()
    assert "In Progress" in node.ok("nvidia-smi --query-gpu=fabric.state --format=csv,noheader")


def test_the_fabric_manager_of_a_b200_needs_nvlsm_and_ib_umad(bare: Callable) -> None:
    node = bare.init("b200", "b200-r01-n01").drive()
    node.ok("modprobe mlx5_ib")

    def start() -> tuple[int, str]:
        daemon = node.process(["nv-fabricmanager", "-c", "fabricmanager.cfg"])
        words = daemon.communicate()[1]
        return daemon.returncode, words

    status, words = start()
    assert (status, "is ib_umad module loaded?" in words) == (1, True)
    node.ok("modprobe ib_umad")
    status, words = start()
    assert (status, "NV_WARN_NOTHING_TO_DO" in words) == (1, True)
    node.install("nvlsm", "2025.06.11")
    assert start() == (0, "")
    # A restart of openibd would fail, or take the fabric down.
    assert node("rmmod ib_umad").err == "rmmod: ERROR: Module ib_umad is in use\n"
    os.kill(int((node.root / "run/rack/holds-nvidia/nv-fabricmanager").read_text()), signal.SIGKILL)


def test_the_bridges_of_a_b200_are_marked_in_their_product_data(bare: Callable, kernel_files: bool) -> None:
    node = bare.init("b200", "b200-r01-n01").drive()
    node.ok("modprobe mlx5_ib")
    cards = node.root / "sys/class/infiniband"
    marked = [path.name for path in cards.iterdir() if "SW_MNG" in (path / "device/vpd").read_text()]
    assert sorted(marked) == ["mlx5_10", "mlx5_11", "mlx5_8", "mlx5_9"]
    assert "SMDL=SW_MNG" in (node.root / "sys/bus/pci/devices/0000:05:00.2/vpd").read_text()


@pytest.mark.parametrize(
    ("command", "rc", "words"),
    [
        ("modprobe --forse nvidia-uvm", 1, "unrecognized option '--forse'"),
        ("rmmod --all nvidia", 1, "unrecognized option '--all'"),
        ("dcgmi diag -r 1 --jsn", 255, "Couldn't find match for argument for arg Argument: --jsn"),
        ("dcgmi discovery -l --all", 255, "Argument: --all"),
        ("nv-hostengine --foreground", 1, "PARSE ERROR: Argument: --foreground"),
        ("nv-fabricmanager --debug", 1, "unrecognized option '--debug'"),
    ],
)
def test_an_option_that_the_real_tool_does_not_have_is_refused(
    command: str, rc: int, words: str, node: Callable
) -> None:
    answer = node(command)
    assert (answer.rc, answer.out) == (rc, "")
    assert words in answer.err


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("dmidecode -s system-serial-number", "/dev/mem: Permission denied"),
        ("dmesg", "read kernel buffer failed: Operation not permitted"),
        ("modprobe nvidia-uvm", "could not insert 'nvidia_uvm': Operation not permitted"),
        ("modprobe -r nvidia", "could not remove 'nvidia': Operation not permitted"),
        ("rmmod nvidia", "could not remove 'nvidia': Operation not permitted"),
    ],
)
def test_only_root_may_read_and_change_the_machine(
    command: str, words: str, bare: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rackhardware import kernel, machine

    node = bare.init().drive()
    for module in (kernel, machine):
        monkeypatch.setattr(module, "is_root", lambda: False)
    answer = node(command)
    assert (answer.rc, answer.out) == (1, "")
    assert words in answer.err
    assert "<access denied>" in node.ok("lspci -v -d 10de:")


def test_ib_umad_is_loaded_at_boot_only_with_rdma_core(bare: Callable) -> None:
    node = bare.init()
    node.ok("hardware --boot")
    assert "mlx5_ib" in node.ok("lsmod")
    assert "ib_umad" not in node.ok("lsmod")
    rules = node.root / "etc/rdma/modules/infiniband.conf"
    rules.parent.mkdir(parents=True)
    rules.write_text("ib_ipoib\nib_umad\n")
    node.ok("hardware --boot")
    assert "ib_umad" in node.ok("lsmod")
