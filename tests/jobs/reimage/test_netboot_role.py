"""Test the files that role netboot makes for the boot host, and that the programs that read them accept them.

The role configures dnsmasq (DHCP and TFTP), nginx, the boot scripts of iPXE, the order of a node (an entry),
and the script that removes entries after their time (a lease). A playbook renders the files for three boot
hosts. The tests check the files, start dnsmasq with them, and run the script with leases of different ages.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from click.testing import CliRunner

from rackproof.cli.main import main
from rackproof.jobs.reimage.images import BLOCK_BYTES, describe_image

pytestmark = pytest.mark.playbook
ROOT = Path(__file__).resolve().parents[3]
ROLE = ROOT / "roles/netboot"
PLAYBOOK = """
- hosts: all
  gather_facts: false
  vars:
    mine: "{folder}/{{{{ inventory_hostname }}}}"
    role_path: "{role}"
  tasks:
    - ansible.builtin.include_vars: "{{{{ item }}}}"
      loop:
        - "{role}/defaults/main.yml"
        - "{role}/vars/main.yml"
        - "{role}/vars/entry.yml"
        - "{role}/vars/discover.yml"
        - "{{{{ mine }}}}/given.json"
    - ansible.builtin.template:
        src: "{role}/templates/{{{{ item }}}}.j2"
        dest: "{{{{ mine }}}}/{{{{ item }}}}"
        mode: "0644"
      loop: [dnsmasq.conf, boot.ipxe, node.ipxe, nginx.conf, entries, rackproof-netboot-entries.service,
        discover.conf, report.ipxe]
    - ansible.builtin.copy:
        content: "{{{{ {{'order': netboot_order, 'problems': netboot_problems,
          'entry_problems': netboot_entry_problems, 'report_file': netboot_boot_report_file,
          'files': netboot_instructions, 'lease': [netboot_lease_file, netboot_lease],
          'order_lease': [netboot_order_lease_file, netboot_order_lease],
          'discover_problems': netboot_discover_problems, 'discover_reports': netboot_discover_boot_reports,
          'discover_lease': netboot_discover_lease}} | to_json }}}}"
        dest: "{{{{ mine }}}}/rendered.json"
        mode: "0644"
"""
# Variables of a good inventory. The lease of an entry is 900 s, and that of a discovery 960 s.
GIVEN: dict[str, Any] = {
    "netboot_interface": "lo",
    "netboot_address": "192.0.2.1",
    "netboot_network": "192.0.2.0",
    "netboot_kernel": "vmlinuz",
    "netboot_initrd": "ramdisk",
    "netboot_image": "node.raw",
    "netboot_kernel_arguments": "console=ttyS0",
    "netboot_artefacts": [
        {"name": name, "url": f"file:///{name}", "checksum": "sha256:" + "0" * 64}
        for name in ("vmlinuz", "ramdisk", "node.raw")
    ],
    "netboot_entry": {
        "state": "present",
        "node": "n1",
        "mac": "52-54-00-AB-CD-EF",
        "serial": "M1",
        "disk": {"serial": "D1"},
        "hostname": "node-one",
        "user": "ops",
        "authorized_keys": ["ssh-ed25519 AAAA ops"],
        "seconds": 900,
        "token": "a" * 32,
    },
    "netboot_discover": {
        "state": "present",
        "known": ["52-54-00-00-00-02", "52:54:00:00:00:03", "none"],
        "seconds": 960,
        "token": "b" * 32,
    },
}


@pytest.fixture(scope="module")
def rendered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the files of good inventories (proxy/, installer/) and of a bad one (server/)."""
    folder = tmp_path_factory.mktemp("netboot")
    image = folder / "node.raw"
    image.write_bytes(b"boot" * 1000)
    assert CliRunner().invoke(main, ["reimage", "image", str(image)]).exit_code == 0
    changed = GIVEN["netboot_entry"] | {"mac": "nothing", "serial": " ", "disk": {"serial": "a", "path": "b"}}
    changed |= {"authorized_keys": []}
    bad = {
        "netboot_dhcp": "server",
        "netboot_uki": "boot.efi",
        "netboot_order_key": str(folder / "none.pem"),
        "netboot_range": "192.0.2.100,192.0.2.199,255.255.255.0",
        "netboot_router": "192.0.2.254",
        "netboot_entry": changed | {"token": "short", "node": "../n1"},
        "netboot_artefacts": [{"name": "vmlinuz", "url": "file:///x", "checksum": "md5:1"}],
        "netboot_discover": GIVEN["netboot_discover"]
        | {"macs": ["52:54:00:00:00:03", "x"], "seconds": 0, "token": "../x"},
    }
    subprocess.run(["openssl", "genpkey", "-algorithm", "ed25519", "-out", folder / "key.pem"], check=True)
    installer = {
        "netboot_order_key": "",
        "netboot_entry": GIVEN["netboot_entry"] | {"install": "autoinstall"},
        "netboot_installer_kernel": "casper-vmlinuz",
        "netboot_installer_initrd": "casper-initrd",
        "netboot_installer_iso": "server.iso",
        "netboot_autoinstall": {"packages": ["chrony"]},
    }
    for name, more in (("proxy", {}), ("server", bad), ("installer", installer)):
        mine = folder / name
        for part in ("dhcp-hosts", "tftp", "discover"):
            (mine / part).mkdir(parents=True)
        given = {
            "netboot_folder": str(mine),
            "netboot_image_description": f"{image}.json",
            "netboot_order_key": str(folder / "key.pem"),
        }
        (mine / "given.json").write_text(json.dumps(GIVEN | given | more))
    playbook = folder / "playbook.yml"
    playbook.write_text(PLAYBOOK.format(role=ROLE, folder=folder))
    done = subprocess.run(
        [
            Path(sys.executable).with_name("ansible-playbook"),
            "-i",
            "proxy,server,installer",
            "-c",
            "local",
            playbook,
        ],
        cwd=folder,
        env=os.environ
        | {
            "ANSIBLE_NOCOLOR": "1",
            "ANSIBLE_PYTHON_INTERPRETER": sys.executable,
            "ANSIBLE_FILTER_PLUGINS": str(ROOT / "plugins/filter"),
        },
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def proxy(rendered: Path) -> Path:
    return rendered / "proxy"


@pytest.fixture(scope="module")
def server(rendered: Path) -> Path:
    return rendered / "server"


def test_every_problem_of_an_entry_or_of_what_is_served_is_reported(proxy: Path, server: Path) -> None:
    good, bad = (json.loads((folder / "rendered.json").read_text()) for folder in (proxy, server))
    assert good["problems"] == good["entry_problems"] == []
    assert [one.split(":")[0] for one in bad["entry_problems"]] == [
        "mac is not a MAC address",
        "serial is empty",
        "disk needs either serial or path",
        "b is the name of another disk when the kernel finds them in another order",
        "authorized_keys is empty",
        "node cannot be the name of a file",
        "netboot_order_key",
        "token is too short",
    ]
    assert good["discover_problems"] == []
    assert bad["discover_problems"] == [
        "no MAC address: x",
        "seconds have to be between 1 and 86400",
        "token is too short",
    ]
    assert bad["problems"] == [
        "vmlinuz has no sha256:HEX for a checksum",
        "boot.efi is not among netboot_artefacts",
        "node.raw is not among netboot_artefacts",
        "ramdisk is not among netboot_artefacts",
    ]


def dnsmasq(folder: Path) -> str:
    program = shutil.which("dnsmasq") or "/usr/sbin/dnsmasq"
    if not Path(program).exists():
        pytest.skip("dnsmasq is not installed")
    done = subprocess.run(
        [program, "--test", f"--conf-file={folder}/dnsmasq.conf"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stderr


def test_dnsmasq_understands_both_ways_and_answers_only_known_machines(proxy: Path, server: Path) -> None:
    for folder in (proxy, server):
        assert "syntax check OK" in dnsmasq(folder)
        lines = (folder / "dnsmasq.conf").read_text().splitlines()
        assert "dhcp-ignore=tag:!rackproof,tag:!unknown" in lines
        assert "dhcp-ignore=tag:!rackproof,tag:known" in lines
        assert f"conf-dir={folder}/discover,*.conf" in lines
        assert f"dhcp-hostsdir={folder}/dhcp-hosts" in lines
        assert "port=0" in lines
        # Another dnsmasq of this host has its own file.
        assert "pid-file=/run/rackproof-netboot-dnsmasq.pid" in lines
    assert "dhcp-range=192.0.2.0,proxy" in (proxy / "dnsmasq.conf").read_text()
    assert f"dhcp-leasefile={server}/leases" in (server / "dnsmasq.conf").read_text()
    # Beside another DHCP server, no address is assigned.
    assert (proxy / "dnsmasq.conf").read_text().count("dhcp-range") == 1
    assert "dhcp-option=option:router,192.0.2.254" in (server / "dnsmasq.conf").read_text()


def test_firmware_gets_ipxe_or_what_its_secure_boot_can_check(proxy: Path, server: Path) -> None:
    plain, signed = ((folder / "dnsmasq.conf").read_text() for folder in (proxy, server))
    assert "dhcp-boot=tag:!ipxe,tag:efi,ipxe.efi\n" in plain
    assert plain.count("ipxe.efi") == 3
    assert "dhcp-boot=tag:!ipxe,tag:efi,boot.efi\n" in signed
    assert "ipxe.efi" not in signed
    # A BIOS checks nothing.
    assert "dhcp-boot=tag:!ipxe,tag:!efi,undionly.kpxe\n" in signed


def test_a_node_without_an_entry_boots_from_its_disk(proxy: Path) -> None:
    text = (proxy / "boot.ipxe").read_text()
    assert text.startswith("#!ipxe")
    chain = "chain --autofree http://192.0.2.1:8080/"
    places = ("nodes/${net0/mac:hexhyp}.ipxe", "nodes/${netX/mac:hexhyp}.ipxe", "discover/report.ipxe")
    assert " || ".join([*(f"{chain}{one}" for one in places), "exit"]) in text


def test_an_entry_expires_by_itself_also_without_a_readable_lease(proxy: Path, tmp_path: Path) -> None:
    given = json.loads((proxy / "rendered.json").read_text())
    lease, text = given["lease"]
    assert given["order_lease"] == [f"{proxy}/orders/n1", f"8100 52:54:00:ab:cd:ef {'a' * 32} image\n"]
    assert lease == f"{proxy}/entries/n1"
    assert text == f"900 52-54-00-ab-cd-ef.ipxe {'a' * 32}\n"
    folder, now = tmp_path / "netboot", time.time()
    for name in ("dhcp-hosts", "entries", "http/nodes"):
        (folder / name).mkdir(parents=True)
    leases = {  # content, and age in seconds
        "young": (text, 800),
        "old": (text.replace("-ef", "-01"), 901),
        "tomorrow": (text.replace("-ef", "-02"), -86400),
        "empty": ("", 0),
        "damaged": ("soon\n", 0),
        "without": None,
    }
    for node, entry in leases.items():
        (folder / "dhcp-hosts" / node).write_text("52:54:00:ab:cd:ef,set:rackproof\n")
        (folder / "http/nodes" / node).mkdir()
        (folder / "http/nodes" / node / "write.json").write_text("{}")
        if entry:
            path = folder / "entries" / node
            path.write_text(entry[0])
            os.utime(path, (now - entry[1], now - entry[1]))
    for end in ("ef", "01", "02"):
        (folder / f"http/nodes/52-54-00-ab-cd-{end}.ipxe").write_text("#!ipxe\n")
    (folder / "orders").mkdir()
    for node, ago in (("waits", 1400), ("reported", 8101), ("broken", 0)):
        path = folder / "orders" / node
        path.write_text("soon\n" if node == "broken" else given["order_lease"][1])
        os.utime(path, (now - ago, now - ago))
    (folder / "http/boot-reports").mkdir()
    for name, ago in (("n1-old.json", 8 * 86400), ("n1-old.alarms", 8 * 86400), ("n1-new.json", 6 * 86400)):
        (folder / "http/boot-reports" / name).write_text("{}")
        os.utime(folder / "http/boot-reports" / name, (now - ago, now - ago))
    # An entry that is being made has only its lease yet.
    (folder / "entries/coming").write_text(text)
    program = tmp_path / "bin/systemctl"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\necho "$*" >> {tmp_path}/called\n')
    program.chmod(0o755)
    script = (proxy / "entries").read_text().replace(str(proxy), str(folder))

    def passes() -> list[str]:
        path = f"{program.parent}:{os.environ['PATH']}"
        done = subprocess.run(
            ["sh", "-c", script], env={"PATH": path}, capture_output=True, text=True, check=True
        )
        return sorted(line.partition(":")[0] for line in done.stdout.splitlines())

    assert passes() == ["damaged", "empty", "old", "tomorrow", "without"]
    left = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    assert left == [
        "dhcp-hosts/young",
        "entries/coming",
        "entries/young",
        "http/boot-reports/n1-new.json",
        "http/nodes/52-54-00-ab-cd-ef.ipxe",
        "http/nodes/young/write.json",
        "orders/waits",
    ]
    assert passes() == []
    assert (tmp_path / "called").read_text() == "restart rackproof-netboot-dnsmasq.service\n"


def test_what_is_left_of_an_entry_ends_and_what_is_made_meanwhile_does_not(
    proxy: Path, tmp_path: Path
) -> None:
    _, text = json.loads((proxy / "rendered.json").read_text())["lease"]
    folder = tmp_path / "netboot"
    for name in ("dhcp-hosts", "entries", "http/nodes/left", "http/nodes/new", "bin"):
        (folder / name).mkdir(parents=True)
    # This entry was interrupted while it was made or removed. Its lease is old, and its order is still there.
    (folder / "entries/left").write_text(text)
    os.utime(folder / "entries/left", (0, 0))
    (folder / "http/nodes/left/write.json").write_text("{}")
    (folder / "http/nodes/52-54-00-ab-cd-ef.ipxe").write_text("#!ipxe\n")
    # The entry of a new run is written while the script runs: `date` waits and then renews the lease.
    (folder / "dhcp-hosts/new").write_text("52:54:00:ab:cd:01,set:rackproof\n")
    (folder / "entries/new").write_text(text.replace("-ef", "-01"))
    clock = f"#!/bin/sh\n/bin/date +%s\nsleep 1.1\ntouch {folder}/entries/new\n"
    for name, program in (("date", clock), ("systemctl", "#!/bin/sh\n")):
        (folder / "bin" / name).write_text(program)
        (folder / "bin" / name).chmod(0o755)
    script = (proxy / "entries").read_text().replace(str(proxy), str(folder))
    environment = {"PATH": f"{folder}/bin:{os.environ['PATH']}"}
    done = subprocess.run(["sh", "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert [line.partition(":")[0] for line in done.stdout.splitlines()] == ["left"], done.stderr
    left = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    assert left == ["bin/date", "bin/systemctl", "dhcp-hosts/new", "entries/new"]


# A DHCP request of each of these machines, as a network card sends it.
ASKS = """
import socket, struct, sys
line = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
line.bind(("b0", 0))
for word in sys.argv[1:]:
    mac = bytes.fromhex(word.replace(":", ""))
    asks = struct.pack("!4BI2H16x16s192x", 1, 1, 6, 0, mac[5], 0, 0x8000, mac)
    asks = (asks + bytes.fromhex("63825363350101ff")).ljust(300, bytes(1))
    udp = struct.pack("!4H", 68, 67, 8 + len(asks), 0) + asks
    ip = bytes.fromhex("4500") + struct.pack("!H", 20 + len(udp)) + bytes.fromhex("0000000040110000")
    ip += bytes(4) + bytes([255] * 4)
    total = sum(struct.unpack("!10H", ip))
    total = ~((total & 0xFFFF) + (total >> 16)) & 0xFFFF
    ip = ip[:10] + struct.pack("!H", total) + ip[12:]
    line.send(bytes([255] * 6) + mac + bytes.fromhex("0800") + ip + udp)
"""
NETWORK = """
ip link set lo up; ip link add a0 type veth peer name b0; ip addr add 192.0.2.1/24 dev a0
ip link set a0 up; ip link set b0 up
{dnsmasq} -k --log-facility=- --user=root --conf-file={folder}/d.conf > {folder}/log 2>&1 &
for try in $(seq 100); do grep -q 'sockets bound' {folder}/log && break; sleep 0.1; done
{python} -c "$ASKS" {macs}
for try in $(seq 100); do [ $(grep -c DHCPDISCOVER {folder}/log) -ge {count} ] && break; sleep 0.1; done
kill $!; wait
"""


@pytest.mark.parametrize(
    ("window", "answered"),
    [
        (None, [1]),
        # all unknown machines, and each machine that has an entry
        ("proxy", [1, 4]),
        # The machine that was named, known or not. (The other name was no MAC address.)
        ("server", [1, 3]),
    ],
)
def test_dnsmasq_answers_unknown_machines_only_while_boot_reports_are_accepted(
    server: Path, proxy: Path, tmp_path: Path, window: str | None, answered: list[int]
) -> None:
    program = shutil.which("dnsmasq") or "/usr/sbin/dnsmasq"
    allowed = subprocess.run(["unshare", "--net", "true"], capture_output=True, check=False)
    if not Path(program).exists() or allowed.returncode:
        pytest.skip("needs dnsmasq, and root for a network of its own")
    text = (server / "dnsmasq.conf").read_text().replace(str(server), str(tmp_path))
    text = text.replace("interface=lo", "interface=a0").replace("/run/rackproof", f"{tmp_path}/rackproof")
    (tmp_path / "d.conf").write_text(text)
    for name in ("dhcp-hosts", "discover", "tftp"):
        (tmp_path / name).mkdir()
    (tmp_path / "dhcp-hosts/n1").write_text("52:54:00:00:00:01,set:rackproof\n")
    if window:
        conf = ({"proxy": proxy, "server": server}[window] / "discover.conf").read_text()
        conf = conf.replace("dhcp-mac=set:unknown,x\n", "") + "dhcp-mac=set:known,52:54:00:00:00:01\n"
        (tmp_path / "discover/open.conf").write_text(conf)
    macs = [f"52:54:00:00:00:0{number}" for number in (1, 2, 3, 4)]
    script = NETWORK.format(
        dnsmasq=program, folder=tmp_path, python=sys.executable, macs=" ".join(macs), count=len(macs)
    )
    subprocess.run(
        ["unshare", "--net", "sh", "-c", script], env=os.environ | {"ASKS": ASKS}, timeout=300, check=True
    )
    log = (tmp_path / "log").read_text()
    assert log.count("DHCPDISCOVER") == len(macs), log
    offered = [number for number, mac in enumerate(macs, 1) if re.search(f"DHCPOFFER.* {mac}", log)]
    assert offered == answered, log


def test_a_discovery_ends_by_itself(proxy: Path, tmp_path: Path) -> None:
    """After its lease, or with a damaged one, a discovery ends: unknown machines get no more answer."""
    text = json.loads((proxy / "rendered.json").read_text())["discover_lease"]
    assert text == f"960 {'b' * 32}\n"
    program = tmp_path / "bin/systemctl"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\necho "$*" >> {tmp_path}/called\n')
    program.chmod(0o755)
    environment = {"PATH": f"{program.parent}:{os.environ['PATH']}"}
    now = time.time()
    for name, content, ago, over in (
        ("young", text, 900, False),
        ("old", text, 961, True),
        ("tomorrow", text, -86400, True),
        ("damaged", "soon\n", 0, True),
        ("without", None, 0, True),
        # The window was interrupted while it was opened, or while it was closed.
        ("begun", text, 961, True),
    ):
        folder = tmp_path / name
        for place in ("dhcp-hosts", "discover", "http/discover", f"http/boot-reports/discover-{'b' * 32}"):
            (folder / place).mkdir(parents=True)
        if name != "begun":
            (folder / "discover/open.conf").write_text("dhcp-mac=set:unknown,*:*:*:*:*:*\n")
        (folder / "http/discover/report.ipxe").write_text("#!ipxe\n")
        # The boot report of another node, whose image is being written.
        (folder / "http/boot-reports/n1-token.json").write_text("{}")
        if content:
            (folder / "discover/lease").write_text(content)
            os.utime(folder / "discover/lease", (now - ago, now - ago))
        script = (proxy / "entries").read_text().replace(str(proxy), str(folder))
        done = subprocess.run(
            ["sh", "-c", script], env=environment, capture_output=True, text=True, check=True
        )
        left = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
        kept = ["discover/lease", "discover/open.conf", "http/discover/report.ipxe"] * (not over)
        assert left == sorted([*kept, "http/boot-reports/n1-token.json"]), name
        assert any((folder / "http/boot-reports").glob("discover-*")) == (not over), name
        assert ("the time for boot reports from unknown machines is over" in done.stdout) == over, name
    assert (tmp_path / "called").read_text() == "restart rackproof-netboot-dnsmasq.service\n" * 5
    # Without a lease, old folders of reports are removed, and a new one stays, because its discovery begins.
    folder = tmp_path / "old/http/boot-reports"
    for name, ago in (("discover-past", 400), ("discover-now", 0)):
        (folder / name).mkdir()
        os.utime(folder / name, (now - ago, now - ago))
    script = (proxy / "entries").read_text().replace(str(proxy), str(tmp_path / "old"))
    subprocess.run(["sh", "-c", script], env=environment, check=True)
    assert sorted(path.name for path in folder.iterdir()) == ["discover-now", "n1-token.json"]


def test_a_machine_that_reports_gets_no_order(proxy: Path) -> None:
    script = (proxy / "report.ipxe").read_text()
    url = f"http://192.0.2.1:8080/boot-reports/discover-{'b' * 32}"
    assert f" rackproof.mac=${{netX/mac}} rackproof.report={url} " in script
    assert "rackproof.order" not in script
    assert script.endswith("boot || exit\n")


def test_the_script_has_the_place_of_the_order_and_nothing_that_would_prove_it(proxy: Path) -> None:
    served = json.loads((proxy / "rendered.json").read_text())
    script = (proxy / "node.ipxe").read_text()
    assert " rackproof.mac=52:54:00:ab:cd:ef " in script
    assert "rackproof.order=http://192.0.2.1:8080/nodes/n1/write.json console=ttyS0 " in script
    order = json.loads(served["order"])
    assert (order["serial"], order["disk"], order["wipe"]) == ("M1", {"serial": "D1"}, [])
    assert order["image"]["url"] == "http://192.0.2.1:8080/artefacts/node.raw"
    assert order["image"]["timeout_s"] == 21600
    assert order["report"].endswith(served["report_file"].rpartition("/")[2])
    # The program on the node accepts this order.
    from .test_write_image import load

    writer = load()
    writer.check_machine(order, "m1")
    writer.check_image(order["image"])


def test_the_seed_is_what_cloud_init_takes(proxy: Path) -> None:
    order = json.loads(json.loads((proxy / "rendered.json").read_text())["order"])
    seed = order["seed"]
    assert set(seed) == {"meta-data", "user-data", "network-config"}
    assert yaml.safe_load(seed["meta-data"]) == {"instance-id": "a" * 32, "local-hostname": "node-one"}
    assert seed["user-data"].startswith("#cloud-config\n")
    user = yaml.safe_load(seed["user-data"])
    assert user["hostname"] == "node-one"
    assert (user["ssh_deletekeys"], user["ssh_pwauth"], user["disable_root"]) == (False, False, True)
    (ops,) = user["users"]
    assert (ops["name"], ops["ssh_authorized_keys"]) == ("ops", ["ssh-ed25519 AAAA ops"])
    network = yaml.safe_load(seed["network-config"])["ethernets"]["provisioning"]
    assert network == {"match": {"macaddress": "52:54:00:ab:cd:ef"}, "dhcp4": True}
    # An order has no secret, because every machine in that network can read it.
    assert "PRIVATE" not in json.dumps(order)


def test_ubuntu_s_installer_is_booted_with_a_seed_that_both_of_its_readers_take(rendered: Path) -> None:
    from .test_autoinstall import SCHEMA

    served = json.loads((rendered / "installer/rendered.json").read_text())
    assert served["entry_problems"] == []
    # The installer's kernel, ramdisk and ISO are not among the artefacts, so they are reported.
    assert len(served["problems"]) == 3
    script = (rendered / "installer/node.ipxe").read_text()
    (kernel,) = [line for line in script.splitlines() if line.startswith("kernel")]
    assert " BOOTIF=01-52-54-00-ab-cd-ef url=http://192.0.2.1:8080/artefacts/server.iso " in kernel
    assert " autoinstall ds=nocloud-net;s=http://192.0.2.1:8080/nodes/n1/ console=ttyS0 " in kernel
    assert "rackproof.order" not in script
    assert script.endswith("boot || exit\n")
    files = {Path(one["path"]).name: one["content"] for one in served["files"]}
    assert set(files) == {"user-data", "meta-data", "vendor-data"}
    assert yaml.safe_load(files["meta-data"])["instance-id"] == "a" * 32
    instructions = yaml.safe_load(files["user-data"])["autoinstall"]
    assert instructions["packages"] == ["chrony"]
    assert instructions["network"]["ethernets"]["provisioning"]["match"] == {
        "macaddress": "52:54:00:ab:cd:ef"
    }
    system = instructions["user-data"]
    assert (system["hostname"], system["ssh_deletekeys"]) == ("node-one", False)
    if SCHEMA.exists():
        jsonschema.Draft4Validator(json.loads(SCHEMA.read_text())).validate(system)
    assert "PRIVATE" not in files["user-data"]


def test_an_image_is_described_block_by_block(tmp_path: Path) -> None:
    from .test_write_image import load

    assert load().BLOCK == BLOCK_BYTES
    image = tmp_path / "node.raw"
    image.write_bytes(b"a" * BLOCK_BYTES + bytes(BLOCK_BYTES) + b"b" * 10)
    found = describe_image(image)
    assert found.blocks == (
        hashlib.sha256(b"a" * BLOCK_BYTES).hexdigest(),
        "0",
        hashlib.sha256(b"b" * 10).hexdigest(),
    )
    assert found.sha256 == hashlib.sha256(image.read_bytes()).hexdigest()
    assert found.fetched_bytes == BLOCK_BYTES + 10


@pytest.mark.parametrize(("data", "why"), [(b"", "is empty"), (b"\x1f\x8b\x08rest", "is packed")])
def test_what_is_no_raw_image_is_refused(tmp_path: Path, data: bytes, why: str) -> None:
    (tmp_path / "x").write_bytes(data)
    done = CliRunner().invoke(main, ["reimage", "image", str(tmp_path / "x")])
    assert done.exit_code == 1
    assert why in done.output
    assert not (tmp_path / "x.json").exists()
