#!/usr/bin/env python3
"""Run a command beside virtual machines with empty disks and Redfish BMCs in the test rack's network.

    make rack NODES=1
    testrack/vms/vms.py --nodes 2 --folder .rackproof/vms -- ansible-playbook reimage.yml -l vm1,vm2

It needs root. libvirt and QEMU (without KVM), sushy-emulator, a name server, and the programs of role netboot
run in a network, mount and process namespace that ends with the command. A pair of interfaces joins its
bridge to the rack's. After the command, the folder (disks, consoles, journals) remains, and the machines'
names remain in /etc/hosts of the rack's hosts. This machine's own /etc, libvirt and network do not change.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
RACK = ROOT / "testrack"
sys.path[:0] = [str(RACK), str(RACK / "fakes")]

from driver import layout as rack  # noqa: E402  (they lie where the rack has them)
from driver import overlay  # noqa: E402
from driver.engine import docker, docker_text  # noqa: E402
from driver.nodes import LABEL  # noqa: E402
from rackhardware.state import make as make_hardware  # noqa: E402

INSIDE = "RACKPROOF_VMS_INSIDE"
"""Variable with the descriptor of the network namespace in which the command was started."""
BRIDGE, UPLINK = "vms0", "vms-rack"
NETWORK, MASK = rack.SUBNET.partition(".0/")[0], 24
HOST, SITE_DHCP, MACHINES_FROM, RAMDISKS = f"{NETWORK}.50", f"{NETWORK}.200", 50, (101, 199)
"""Addresses, or their last numbers, that no host of the rack has. HOST is boot host and name server."""
RANGE = f"{NETWORK}.{RAMDISKS[0]},{NETWORK}.{RAMDISKS[1]},255.255.255.0"
OVMF = Path("/usr/share/OVMF")
DOMAIN_NAME = "rack"
SKU = "gb300"
REDFISH_PORT, HTTP_PORT = 8000, 8080
MIB = 1024 * 1024
# Folders of this machine to which the programs would write. :func:`hide` replaces them by empty ones.
HIDDEN = (
    "/run/libvirt",
    "/run/netns",
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
  <sysinfo type="smbios">
    <system><entry name="serial">{serial}</entry><entry name="sku">{sku}</entry></system>
    <chassis><entry name="asset">{name}</entry></chassis>
  </sysinfo>
  <os><type arch="x86_64" machine="pc">hvm</type>{firmware}<boot dev="hd"/><smbios mode="sysinfo"/></os>
  <features><acpi/></features>
  <cpu mode="custom" match="exact" check="none"><model fallback="forbid">Nehalem</model></cpu>
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
UEFI = """<loader readonly="yes" {secure}type="pflash">{code}</loader>
  <nvram template="{variables}">{nvram}</nvram>"""


def machine(number: int, folder: Path, uefi: str = "") -> dict[str, str]:
    """Return a machine's data, from which this program makes the machine and its inventory.

    Its firmware and BMC report its fake hardware (rack-machine.service).
    """
    nvram = folder / f"vm{number}.nvram"
    # This firmware accepts a well-known key for tests.
    code, variables = (".secboot", ".snakeoil") if uefi == "secure" else ("", "")
    firmware = UEFI.format(
        secure='secure="yes" ' if uefi == "secure" else "",
        code=OVMF / f"OVMF_CODE_4M{code}.fd",
        variables=OVMF / f"OVMF_VARS_4M{variables}.fd",
        nvram=nvram,
    )
    name = f"vm{number}"
    hardware = make_hardware(SKU, name)["machine"]
    return {
        "name": name,
        "uuid": hardware["uuid"],
        "mac": f"52:54:00:78:00:{number:02x}",
        "address": f"{NETWORK}.{MACHINES_FROM + number}",
        "serial": hardware["product_serial"],
        "disk_serial": f"DISK-{number:04d}",
        "scratch_serial": f"SCRATCH-{number:04d}",
        "tap": f"vm{number}",
        "disk": str(folder / f"{name}.raw"),
        "scratch": str(folder / f"{name}-scratch.raw"),
        "console": str(folder / f"{name}.console"),
        "firmware": firmware if uefi else "",
    }


def domain(one: dict[str, str], memory: int) -> str:
    """Return a machine's definition for libvirt."""
    text = DOMAIN.format(**one, sku=SKU, memory=memory)
    if "secure=" in one["firmware"]:
        # Only on this machine type, the system cannot write to the firmware's keys.
        text = text.replace('machine="pc"', 'machine="q35"').replace("<acpi/>", '<acpi/><smm state="on"/>')
    return text


def bmc_certificate(folder: Path) -> tuple[Path, str]:
    """Return the file of the emulator's certificate and key, made once, and the certificate's SHA-256."""
    path = folder / "bmc.pem"
    if not path.exists():
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "bmc")])
        now = datetime.datetime.now(datetime.UTC)
        made = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        made = made.not_valid_before(now).not_valid_after(now + datetime.timedelta(days=30))
        signed = made.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        path.write_bytes(private + signed)
    certificate = x509.load_pem_x509_certificate(path.read_bytes())
    return path, certificate.fingerprint(hashes.SHA256()).hex(":")


def inventory(
    machines: list[dict[str, str]],
    folder: Path,
    image: Path,
    proxy: bool = False,
    secrets: Path = ROOT / ".rackproof/rack",
) -> dict[str, object]:
    """Return the inventory of the machines and of their boot host, to be used with the rack's own.

    Args:
        machines: The machines, as `machine` describes them.
        folder: The folder with the machines' public key.
        image: The folder with the boot files and their description (netboot.json).
        proxy: Whether another server hands out the addresses.
        secrets: The folder with the rack's keys and its mirror.
    """
    key = (folder / "key.pub").read_text().strip()
    known = folder / "known_hosts"
    built = json.loads((image / "netboot.json").read_text())
    check_image = (secrets / "mirror/images/SHA256SUMS").read_text().split()[0]
    if not any("secure=" in one["firmware"] for one in machines):
        # Without Secure Boot, the machines boot by iPXE, as at most sites.
        built["netboot_uki"] = ""
    hosts = {
        one["name"]: {
            "ansible_host": one["address"],
            # These differ from the rack's values: paths, and settings for a shared kernel or a GB300.
            "apt_mirror_key_file": str(secrets / "mirror.asc"),
            "ngc_api_key": f"{{{{ lookup('ansible.builtin.file', '{secrets / 'ngc_key'}') }}}}",
            "nvidia_container_check_image_checksum": f"sha256:{check_image}",
            "node_tuning_kernel": True,
            "peer_memory_dmabuf_kernel": "",
            "imex_enabled": False,
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
                        "nameservers": {"addresses": [HOST], "search": [DOMAIN_NAME]},
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
                "netboot_address": HOST,
                "netboot_dhcp": "proxy" if proxy else "server",
                **({"netboot_network": f"{NETWORK}.0"} if proxy else {"netboot_range": RANGE}),
                "netboot_http_port": HTTP_PORT,
                "netboot_folder": str(folder / "netboot"),
                "netboot_kernel_arguments": "console=ttyS0,115200 mitigations=off",
                "reimage_netboot_host": "boothost",
                # Like the certificates of most BMCs, its certificate is self-signed.
                "reimage_bmc_address": f"https://{HOST}:{REDFISH_PORT}",
                "reimage_bmc_fingerprint": bmc_certificate(folder)[1],
                "reimage_authorized_keys": [key],
                "reimage_known_hosts": str(known),
                "reimage_results": str(folder / "results"),
                # The machines' GPUs are fakes, so nothing can be measured.
                "reimage_acceptance": [],
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
                rack.RACK_GROUP: {
                    "children": {
                        "vms": {
                            "hosts": hosts,
                            "vars": {
                                "ansible_user": "root",
                                "ansible_python_interpreter": "/usr/bin/python3",
                                "ansible_ssh_private_key_file": str(folder / "key"),
                                "ansible_ssh_common_args": f"-o UserKnownHostsFile={known} "
                                "-o StrictHostKeyChecking=yes",
                                "ansible_timeout": 60,
                            },
                        }
                    }
                },
            },
        }
    }


def names(machines: list[dict[str, str]]) -> str:
    """Return a hosts file with every host of the rack, running or not, for the name server."""
    known = rack.read_layout((ROOT / "inventory/hosts.yml").read_text()).everyone
    lines = [f"{one.address} {one.name}" for one in known]
    return "".join(f"{line}\n" for line in (*lines, *host_lines(machines)))


def host_lines(machines: list[dict[str, str]]) -> list[str]:
    """Return the machines' lines for a file of hosts."""
    return [f"{one['address']} {one['name']}" for one in machines]


def introduce(machines: list[dict[str, str]]) -> None:
    """Add the machines to /etc/hosts of the rack's hosts, which use no name server."""
    if not Path(f"/sys/class/net/{rack.BRIDGE}").exists():
        sys.exit("vms: the test rack does not run: make rack NODES=1")
    for host in docker_text("ps", "--filter", f"label={LABEL}", "--format", "{{.Names}}").split():
        for line in host_lines(machines):
            docker("exec", host, "sh", "-c", f"grep -qxF '{line}' /etc/hosts || echo '{line}' >> /etc/hosts")


def run(*words: object, **more: object) -> subprocess.CompletedProcess[str]:
    """Run a command, which must succeed."""
    return subprocess.run([str(one) for one in words], check=True, text=True, **more)  # type: ignore[call-overload,no-any-return]


def until(what: str, holds: object, seconds: float = 60) -> None:
    """Wait until something holds. End this program if it does not hold in time."""
    end = time.monotonic() + seconds
    while not holds():  # type: ignore[operator]
        if time.monotonic() > end:
            sys.exit(f"vms: {what} is not there after {seconds:.0f} s")
        time.sleep(0.3)


def succeeds(*words: object) -> bool:
    """Return whether a command succeeds within 30 s."""
    try:
        command = [str(one) for one in words]
        return subprocess.run(command, capture_output=True, check=False, timeout=30).returncode == 0
    except subprocess.TimeoutExpired:
        return False


def hide(folder: Path) -> None:
    """Redirect writes to /etc and the folders of HIDDEN to temporary file systems."""
    # In a container, /etc/hosts is a separate mount, and the overlay would show an older file below it.
    known = Path("/etc/hosts").read_text()
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
    Path("/etc/hosts").write_text(known)
    for place in HIDDEN:
        Path(place).mkdir(parents=True, exist_ok=True)
        run("mount", "-t", "tmpfs", "tmpfs", place)
    Path("/var/lib/nginx/body").mkdir(mode=0o755)
    Path("/etc/libvirt/qemu.conf").write_text(QEMU_CONF)
    Path("/etc/libvirt/libvirtd.conf").write_text(LIBVIRTD_CONF)
    shutil.rmtree("/etc/libvirt/qemu", ignore_errors=True)


def start(words: list[str], log: Path, **more: object) -> int:
    """Start a program whose output goes to a log. Return its process id."""
    with open(log, "ab") as stream:
        process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=stream, stderr=stream, **more)  # type: ignore[call-overload]
    return int(process.pid)


def network(machines: list[dict[str, str]]) -> None:
    """Make the machines' network, which disappears when this namespace ends."""
    run("ip", "link", "set", "lo", "up")
    run("ip", "link", "add", BRIDGE, "type", "bridge")
    run("ip", "addr", "add", f"{HOST}/{MASK}", "dev", BRIDGE)
    run("ip", "link", "set", BRIDGE, "up")
    for one in machines:
        run("ip", "tuntap", "add", "dev", one["tap"], "mode", "tap")
        run("ip", "link", "set", one["tap"], "master", BRIDGE, "up")


def join_rack(outside: int) -> None:
    """Connect the bridge of the machines to the bridge of the rack."""
    there = ("nsenter", f"--net=/proc/self/fd/{outside}", "ip", "link")
    peer = ("type", "veth", "peer", "name", "rack", "netns", os.getpid())
    # A run that just ended may have left this interface, because the kernel removes namespaces with a delay.
    subprocess.run([*there, "del", UPLINK], check=False, capture_output=True, pass_fds=[outside])
    run(*there, "add", UPLINK, *peer, pass_fds=[outside])
    run(*there, "set", UPLINK, "master", rack.BRIDGE, "up", pass_fds=[outside])
    run("ip", "link", "set", "rack", "master", BRIDGE, "up")


def site_dhcp(folder: Path) -> None:
    """Start a DHCP server of the site in a separate network namespace. It only assigns addresses."""
    run("ip", "netns", "add", "site")
    run("ip", "link", "add", "site", "type", "veth", "peer", "name", "eth0", "netns", "site")
    run("ip", "link", "set", "site", "master", BRIDGE, "up")
    run("ip", "-n", "site", "addr", "add", f"{SITE_DHCP}/{MASK}", "dev", "eth0")
    run("ip", "-n", "site", "link", "set", "eth0", "up")
    words = ["dnsmasq", "--keep-in-foreground", "--conf-file=/dev/null", "--pid-file=", "--user=root"]
    words += ["--port=0", f"--dhcp-range={RANGE},1h", "--dhcp-option=option:router", "--log-dhcp"]
    start(
        ["ip", "netns", "exec", "site", *words, f"--dhcp-leasefile={folder}/site.leases"], folder / "site.log"
    )


def services(folder: Path, machines: list[dict[str, str]], memory: int) -> None:
    """Start the name server, libvirt, the machines' definitions and the BMCs."""
    # The machines are in the rack's group, and get the test rack's values.
    overlay.lay(ROOT)
    (folder / "names").write_text(names(machines))
    words = ["dnsmasq", "--keep-in-foreground", "--conf-file=/dev/null", "--pid-file=", "--user=root"]
    words += [
        "--no-resolv",
        "--no-hosts",
        f"--addn-hosts={folder}/names",
        "--expand-hosts",
        f"--domain={DOMAIN_NAME}",
    ]
    words += [f"--local=/{DOMAIN_NAME}/", f"--listen-address={HOST}", "--bind-interfaces"]
    start(words, folder / "names.log")
    for name in ("virtlogd", "libvirtd"):
        start([f"/usr/sbin/{name}", "--pid-file", f"/run/libvirt/{name}.pid"], folder / "libvirt.log")
    until("libvirt", lambda: succeeds("virsh", "-c", "qemu:///system", "version"))
    for one in machines:
        for name in ("disk", "scratch"):
            # With --keep, a second command continues with the contents of the disks.
            if not Path(one[name]).exists():
                with open(one[name], "wb") as stream:
                    stream.truncate((32768 if name == "disk" else 64) * MIB)
        path = folder / f"{one['name']}.xml"
        path.write_text(domain(one, memory))
        run("virsh", "-q", "-c", "qemu:///system", "define", path)
    # libvirt's Python library is installed in the system, and the emulator in the virtual environment.
    borrowed = folder / "python"
    borrowed.mkdir()
    for found in Path("/usr/lib/python3/dist-packages").glob("libvirt*"):
        (borrowed / found.name).symlink_to(found)
    emulator = Path(sys.executable).with_name("sushy-emulator")
    (folder / "emulator.conf").write_text(
        f'SUSHY_EMULATOR_LISTEN_IP = "{HOST}"\nSUSHY_EMULATOR_LISTEN_PORT = {REDFISH_PORT}\n'
        f'SUSHY_EMULATOR_STATE_DIR = "{folder}/emulator"\n'
        f'SUSHY_EMULATOR_SSL_CERT = SUSHY_EMULATOR_SSL_KEY = "{bmc_certificate(folder)[0]}"\n'
    )
    (folder / "emulator").mkdir()
    bmcs = start(
        [str(emulator), "--config", str(folder / "emulator.conf"), "--libvirt-uri", "qemu:///system"],
        folder / "emulator.log",
        env={**os.environ, "PYTHONPATH": str(borrowed)},
    )
    (folder / "emulator.pid").write_text(f"{bmcs}\n")
    until(
        "the Redfish emulator",
        lambda: succeeds("curl", "-fsk", f"https://{HOST}:{REDFISH_PORT}/redfish/v1/"),
    )


def reap() -> None:
    """Continue in a child. The first process of the namespace then reaps processes that lost their parent.

    libvirt waits until a QEMU is gone, and a process that is not reaped remains.
    """
    child = os.fork()
    if child == 0:
        return
    while True:
        pid, status = os.wait()
        if pid == child:
            os._exit(os.waitstatus_to_exitcode(status) & 0xFF)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--nodes", type=int, default=1)
    parser.add_argument("--memory", type=int, default=1536, help="MiB of each machine")
    parser.add_argument(
        "--image", type=Path, default=ROOT / ".rackproof/image", help="folder that playbooks/image.yml made"
    )
    parser.add_argument(
        "--folder", type=Path, default=ROOT / ".rackproof/vms", help="disks, consoles, inventory, results"
    )
    parser.add_argument("--uefi", action="store_const", const="plain", help="machines with UEFI, not a BIOS")
    parser.add_argument(
        "--secure-boot",
        dest="uefi",
        action="store_const",
        const="secure",
        help="also with Secure Boot",
    )
    parser.add_argument(
        "--proxy", action="store_true", help="start a DHCP server of the site, and boot beside it"
    )
    parser.add_argument("--alone", action="store_true", help="without a rack: image the machines only")
    parser.add_argument(
        "--keep", action="store_true", help="keep the previous command's folder, with its disks"
    )
    parser.add_argument("command", nargs="+", help="command to run inside, with ANSIBLE_INVENTORY set")
    options = parser.parse_args()
    folder, image = options.folder.resolve(), options.image.resolve()
    if os.geteuid() != 0:
        sys.exit("vms: only root can make namespaces; start it as root")
    machines = [machine(number, folder, options.uefi) for number in range(1, options.nodes + 1)]
    if not os.environ.get(INSIDE):
        options.alone or introduce(machines)
        # When the first process of a process namespace ends, all others in the namespace end, too.
        words = ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
        outside = os.open("/proc/self/ns/net", os.O_RDONLY)
        os.set_inheritable(outside, True)
        os.environ[INSIDE] = str(outside)
        os.execvp(words[0], [*words, sys.executable, str(HERE / "vms.py"), *sys.argv[1:]])
    reap()
    outside = int(os.environ.pop(INSIDE))
    if not options.keep and (folder / "hosts.json").exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True, exist_ok=True)
    closed = [one for one in (folder, *folder.parents) if not one.stat().st_mode & 0o001]
    if closed:
        sys.exit(f"vms: dnsmasq and nginx may not read {closed[-1]}: name another folder")
    for name in ("etc", "python", "emulator"):
        shutil.rmtree(folder / name, ignore_errors=True)
    if not (folder / "key").exists():
        run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "vms", "-f", folder / "key")
    (folder / "hosts.json").write_text(
        json.dumps(inventory(machines, folder, image, options.proxy), indent=1)
    )
    hide(folder)
    network(machines)
    options.alone or join_rack(outside)
    os.close(outside)
    options.proxy and site_dhcp(folder)
    services(folder, machines, options.memory)
    tools = folder / "bin"
    tools.mkdir(exist_ok=True)
    shutil.copy(HERE / "systemctl", tools / "systemctl")
    environment = {
        **os.environ,
        "PATH": f"{tools}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "ANSIBLE_INVENTORY": f"{ROOT / 'inventory/hosts.yml'},{folder / 'hosts.json'}",
        # A persistent connection of ssh ends with this namespace, so its socket must not be shared.
        "ANSIBLE_SSH_CONTROL_PATH_DIR": "/run/rackproof-vms/ssh",
    }
    done = subprocess.run(options.command, env=environment, check=False)
    for one in machines:
        succeeds("virsh", "-c", "qemu:///system", "destroy", one["name"])
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
