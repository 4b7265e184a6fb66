#!/usr/bin/env python3
"""Virtual machines with empty disks, BMCs that speak Redfish, a network of their own: for one command (root).

    molecule/vms/vms.py --nodes 2 --folder .rackproof/vms -- ansible-playbook reimage.yml -l vms

Everything runs in a network, mount and process namespace that ends with the command: libvirt and QEMU (no
KVM needed), sushy-emulator, the bridge, and what role netboot starts. What is left is the folder: disks,
consoles, journals. This machine's /etc, its libvirt and its network are not touched.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
INSIDE = "RACKPROOF_VMS_INSIDE"
BRIDGE, NETWORK, MASK = "vms0", "198.51.100", 24
"""TEST-NET-2: no route leads there, inside or outside."""
REDFISH_PORT, HTTP_PORT = 8000, 8080
MIB = 1024 * 1024
# Of this machine only what is hidden below would be written to.
HIDDEN = (
    "/run/libvirt",
    "/run/rackproof-vms",
    "/var/lib/libvirt",
    "/var/log/libvirt",
    "/var/cache/libvirt",
    "/var/log/nginx",
    "/var/lib/nginx",
)
QEMU_CONF = """user = "root"
group = "root"
security_driver = "none"
stdio_handler = "file"
cgroup_controllers = []
namespaces = []
remember_owner = 0
"""
LIBVIRTD_CONF = """auth_unix_rw = "none"
auth_unix_ro = "none"
"""
DOMAIN = """<domain type="qemu">
  <name>{name}</name>
  <uuid>{uuid}</uuid>
  <memory unit="MiB">{memory}</memory>
  <vcpu>1</vcpu>
  <sysinfo type="smbios"><system><entry name="serial">{serial}</entry></system></sysinfo>
  <os><type arch="x86_64" machine="pc">hvm</type><boot dev="hd"/><smbios mode="sysinfo"/></os>
  <features><acpi/></features>
  <cpu mode="maximum"/>
  <on_reboot>restart</on_reboot>
  <devices>
    <disk type="file" device="disk"><driver name="qemu" type="raw" cache="unsafe"/><source file="{disk}"/>
      <target dev="vda" bus="virtio"/><serial>{disk_serial}</serial></disk>
    <disk type="file" device="disk"><driver name="qemu" type="raw" cache="unsafe"/><source file="{scratch}"/>
      <target dev="vdb" bus="virtio"/><serial>{scratch_serial}</serial></disk>
    <interface type="ethernet"><target dev="{tap}" managed="no"/><mac address="{mac}"/>
      <model type="virtio"/></interface>
    <serial type="file"><source path="{console}" append="on"/><target port="0"/></serial>
    <rng model="virtio"><backend model="random">/dev/urandom</backend></rng>
    <memballoon model="none"/>
  </devices>
</domain>
"""


def machine(number: int, folder: Path) -> dict[str, str]:
    """Return what the program and the inventory have to know of a machine."""
    name = f"vm{number}"
    return {
        "name": name,
        "uuid": f"5f0ad3a1-0000-4000-8000-{number:012d}",
        "mac": f"52:54:00:78:00:{number:02x}",
        "address": f"{NETWORK}.{10 + number}",
        "serial": f"VM-{number:04d}",
        "disk_serial": f"DISK-{number:04d}",
        "scratch_serial": f"SCRATCH-{number:04d}",
        "tap": f"vm{number}",
        "disk": str(folder / f"{name}.raw"),
        "scratch": str(folder / f"{name}-scratch.raw"),
        "console": str(folder / f"{name}.console"),
    }


def inventory(machines: list[dict[str, str]], folder: Path, image: Path) -> dict[str, object]:
    """Return the inventory of the machines and of the host that boots them."""
    key = (folder / "key.pub").read_text().strip()
    known = folder / "known_hosts"
    built = json.loads((image / "netboot.json").read_text())
    hosts = {
        one["name"]: {
            "ansible_host": one["address"],
            "reimage_bmc_system": one["uuid"],
            "reimage_mac": one["mac"],
            "reimage_serial": one["serial"],
            "reimage_disk": {"serial": one["disk_serial"]},
            "reimage_network": {
                "version": 2,
                "ethernets": {
                    "rack": {
                        "match": {"macaddress": one["mac"]},
                        "addresses": [f"{one['address']}/{MASK}"],
                    }
                },
            },
        }
        for one in machines
    }
    return {
        "all": {
            "vars": {
                **built,
                "netboot_interface": BRIDGE,
                "netboot_address": f"{NETWORK}.1",
                "netboot_dhcp": "server",
                "netboot_range": f"{NETWORK}.100,{NETWORK}.199,255.255.255.0",
                "netboot_http_port": HTTP_PORT,
                "netboot_folder": str(folder / "netboot"),
                "netboot_kernel_arguments": "console=ttyS0,115200",
                "reimage_netboot_host": "boothost",
                # The emulator has no certificate here; a real BMC's is checked.
                "reimage_bmc_address": f"http://{NETWORK}.1:{REDFISH_PORT}",
                "reimage_authorized_keys": [key],
                "reimage_known_hosts": str(known),
                "reimage_results": str(folder / "results"),
            },
            "children": {
                "netboot": {
                    "hosts": {
                        "boothost": {
                            "ansible_connection": "local",
                            "ansible_python_interpreter": "/usr/bin/python3",
                        }
                    }
                },
                "gpu_nodes": {
                    "children": {
                        "vms": {
                            "hosts": hosts,
                            "vars": {
                                "ansible_user": "root",
                                "ansible_python_interpreter": "/usr/bin/python3",
                                "ansible_ssh_private_key_file": str(folder / "key"),
                                "ansible_ssh_common_args": f"-o UserKnownHostsFile={known} "
                                "-o StrictHostKeyChecking=yes -o ControlMaster=no",
                                "ansible_timeout": 60,
                            },
                        }
                    }
                },
            },
        }
    }


def run(*words: object, **more: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(one) for one in words], check=True, text=True, **more)  # type: ignore[call-overload,no-any-return]


def until(what: str, holds: object, seconds: float = 60) -> None:
    """Wait until something holds."""
    end = time.monotonic() + seconds
    while not holds():  # type: ignore[operator]
        if time.monotonic() > end:
            sys.exit(f"vms: {what} is not there after {seconds:.0f} s")
        time.sleep(0.3)


def succeeds(*words: object) -> bool:
    try:
        command = [str(one) for one in words]
        return subprocess.run(command, capture_output=True, check=False, timeout=30).returncode == 0
    except subprocess.TimeoutExpired:
        return False


def hide(folder: Path) -> None:
    """Let what is written to this machine's own places go nowhere."""
    run("mount", "--make-rprivate", "/")
    layer = folder / "etc"
    layer.mkdir()
    run("mount", "-t", "tmpfs", "tmpfs", layer)
    (layer / "upper").mkdir()
    (layer / "work").mkdir()
    run(
        "mount",
        "-t",
        "overlay",
        "overlay",
        "-o",
        f"lowerdir=/etc,upperdir={layer}/upper,workdir={layer}/work",
        "/etc",
    )
    for place in HIDDEN:
        Path(place).mkdir(parents=True, exist_ok=True)
        run("mount", "-t", "tmpfs", "tmpfs", place)
    Path("/var/lib/nginx/body").mkdir(mode=0o755)
    Path("/etc/libvirt/qemu.conf").write_text(QEMU_CONF)
    Path("/etc/libvirt/libvirtd.conf").write_text(LIBVIRTD_CONF)
    shutil.rmtree("/etc/libvirt/qemu", ignore_errors=True)


def start(words: list[str], log: Path, **more: object) -> None:
    with open(log, "ab") as stream:
        subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=stream, stderr=stream, **more)  # type: ignore[call-overload]


def services(folder: Path, machines: list[dict[str, str]], memory: int) -> None:
    """Start the network, libvirt, the machines' definitions and the BMCs."""
    run("ip", "link", "set", "lo", "up")
    run("ip", "link", "add", BRIDGE, "type", "bridge")
    run("ip", "addr", "add", f"{NETWORK}.1/{MASK}", "dev", BRIDGE)
    run("ip", "link", "set", BRIDGE, "up")
    for one in machines:
        run("ip", "tuntap", "add", "dev", one["tap"], "mode", "tap")
        run("ip", "link", "set", one["tap"], "master", BRIDGE, "up")
    for name in ("virtlogd", "libvirtd"):
        start([f"/usr/sbin/{name}", "--pid-file", f"/run/libvirt/{name}.pid"], folder / "libvirt.log")
    until("libvirt", lambda: succeeds("virsh", "-c", "qemu:///system", "version"))
    for one in machines:
        for name in ("disk", "scratch"):
            # What a disk holds already is what a second command starts from.
            if not Path(one[name]).exists():
                with open(one[name], "wb") as stream:
                    stream.truncate((32768 if name == "disk" else 64) * MIB)
        path = folder / f"{one['name']}.xml"
        path.write_text(DOMAIN.format(**one, memory=memory))
        run("virsh", "-q", "-c", "qemu:///system", "define", path)
    # libvirt's Python part is a package of the system, and the emulator one of the environment.
    borrowed = folder / "python"
    borrowed.mkdir()
    for found in Path("/usr/lib/python3/dist-packages").glob("libvirt*"):
        (borrowed / found.name).symlink_to(found)
    emulator = Path(sys.executable).with_name("sushy-emulator")
    (folder / "emulator.conf").write_text(
        f'SUSHY_EMULATOR_LISTEN_IP = "{NETWORK}.1"\nSUSHY_EMULATOR_LISTEN_PORT = {REDFISH_PORT}\n'
        f'SUSHY_EMULATOR_STATE_DIR = "{folder}/emulator"\n'
    )
    (folder / "emulator").mkdir()
    start(
        [str(emulator), "--config", str(folder / "emulator.conf"), "--libvirt-uri", "qemu:///system"],
        folder / "emulator.log",
        env={**os.environ, "PYTHONPATH": str(borrowed)},
    )
    until(
        "the Redfish emulator",
        lambda: succeeds("curl", "-fs", f"http://{NETWORK}.1:{REDFISH_PORT}/redfish/v1/"),
    )


def reap() -> None:
    """Go on in a child; the first process of a namespace takes leave of all that others leave behind.

    libvirt waits for a QEMU to be gone, and one that nobody takes leave of stays.
    """
    child = os.fork()
    if child == 0:
        return
    while True:
        pid, status = os.wait()
        if pid == child:
            os._exit(os.waitstatus_to_exitcode(status) & 0xFF)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, default=1)
    parser.add_argument("--memory", type=int, default=768, help="MiB of each machine")
    parser.add_argument(
        "--image", type=Path, default=ROOT / ".rackproof/image", help="what playbooks/image.yml made"
    )
    parser.add_argument(
        "--folder", type=Path, default=ROOT / ".rackproof/vms", help="disks, consoles, inventory, results"
    )
    parser.add_argument(
        "--keep", action="store_true", help="keep the folder of the command before, with its disks"
    )
    parser.add_argument("command", nargs="+", help="runs inside, with ANSIBLE_INVENTORY set")
    options = parser.parse_args()
    folder, image = options.folder.resolve(), options.image.resolve()
    if os.geteuid() != 0:
        sys.exit("vms: root makes namespaces; start it as root")
    if not os.environ.get(INSIDE):
        # A namespace of processes ends with the first of them, and so does all that was started in it.
        words = ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
        os.environ[INSIDE] = "1"
        os.execvp(words[0], [*words, sys.executable, str(HERE / "vms.py"), *sys.argv[1:]])
    reap()
    if not options.keep and (folder / "hosts.json").exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True, exist_ok=True)
    closed = [one for one in (folder, *folder.parents) if not one.stat().st_mode & 0o001]
    if closed:
        sys.exit(f"vms: dnsmasq and nginx may not look into {closed[-1]}: name another folder")
    for name in ("etc", "python", "emulator"):
        shutil.rmtree(folder / name, ignore_errors=True)
    machines = [machine(number, folder) for number in range(1, options.nodes + 1)]
    if not (folder / "key").exists():
        run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "vms", "-f", folder / "key")
    (folder / "hosts.json").write_text(json.dumps(inventory(machines, folder, image), indent=1))
    hide(folder)
    services(folder, machines, options.memory)
    tools = folder / "bin"
    tools.mkdir(exist_ok=True)
    shutil.copy(HERE / "systemctl", tools / "systemctl")
    environment = {
        **os.environ,
        "PATH": f"{tools}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "ANSIBLE_INVENTORY": str(folder / "hosts.json"),
    }
    environment.pop(INSIDE)
    done = subprocess.run(options.command, env=environment, check=False)
    for one in machines:
        succeeds("virsh", "-c", "qemu:///system", "destroy", one["name"])
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
