"""Test the boot host of role netboot: which machine gets an order, and whose boot report counts.

A node that boots over the network fetches its order (image, disk, secret) from nginx on the boot host, and
sends boot reports back. The program rackproof-boot-reports decides for each request, by the MAC address that
the kernel's table of neighbours has for the sender. The tests run both with several loopback addresses as
machines: two nodes, strangers, and a machine with a copied MAC address. A stranger must never get an order,
must not harm a node, and must be reported.
"""

from __future__ import annotations

import contextlib
import http.client
import importlib.machinery
import importlib.util
import json
import os
import re
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jinja2
import pytest

ROLE = Path(__file__).resolve().parents[3] / "roles/netboot"
PROGRAM = ROLE / "files/rackproof-boot-reports"
NGINX = shutil.which("nginx") or "/usr/sbin/nginx"
pytestmark = pytest.mark.skipif(
    not Path(NGINX).exists() or os.geteuid() != 0, reason="needs nginx, and root to start it"
)
# Made-up secrets of two orders, and the name of a discovery. The addresses are those of the machines below.
SECRET, OTHER_SECRET, ATTEMPT = "canary0secret0of0n1", "canary0secret0of0n2", "canary0attempt0name"
MACS = {
    "127.0.0.1": "52:54:00:00:00:01",
    "127.0.0.2": "52:54:00:00:00:02",
    "127.0.0.9": "52:54:00:00:00:99",
    # another machine that uses the MAC address of the first one
    "127.0.0.11": "52:54:00:00:00:01",
}
# `NOBODY` is an address without a MAC address in the table of neighbours.
N1, N2, STRANGER, TWIN, NOBODY = *MACS, "127.0.0.77"
ASKED = {"status": "asked", "node": "n1", "nonce": "0" * 32}
BEGUN = {"status": "begun", "node": "n1"}
WRITTEN = {"status": "written", "node": "n1", "host_keys": ["ssh-ed25519 AAAA"], "seconds": 9}
FORGED = WRITTEN | {"host_keys": ["ssh-ed25519 EVIL"]}


class BootHost:
    """nginx with the role's configuration, the program that it queries, and their folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("http/nodes/n1", "http/nodes/n2", "http/boot-reports", "http/artefacts", "orders"):
            (folder / name).mkdir(parents=True)
        for name in ("reports", "discover", f"http/boot-reports/discover-{ATTEMPT}"):
            (folder / name).mkdir(parents=True)
        (folder / "discover/open.conf").write_text("")
        (folder / "http/nodes/n1/write.json").write_text(json.dumps({"report": f"n1-{SECRET}.json"}))
        (folder / "http/nodes/n1/user-data").write_text(SECRET)
        (folder / "http/nodes/n2/write.json").write_text(json.dumps({"report": f"n2-{OTHER_SECRET}.json"}))
        (folder / "http/nodes/52-54-00-00-00-01.ipxe").write_text("#!ipxe\n")
        self.order("n1", MACS[N1], SECRET)
        self.order("n2", MACS[N2], OTHER_SECRET)
        rows = ["IP address HW type Flags HW address Mask Device"]
        rows += [f"{address} 0x1 0x2 {mac} * eth0" for address, mac in MACS.items()]
        # The kernel asked for this address and got no answer (flags 0x0).
        rows.append(f"{NOBODY} 0x1 0x0 {MACS[N1]} * eth0")
        (folder / "arp").write_text("\n".join(rows) + "\n")
        self.processes: list[subprocess.Popen[bytes]] = []

    def order(self, node: str, mac: str, secret: str, seconds: int = 900, install: str = "image") -> Path:
        path = self.folder / "orders" / node
        path.write_text(f"{seconds} {mac} {secret} {install}\n")
        return path

    def start(self) -> None:
        # Another program may take the port before nginx does.
        for _ in range(5):
            self.start_once()
            while all(one.poll() is None for one in self.processes):
                if self.answers():
                    return
                time.sleep(0.05)
            self.stop()
        raise AssertionError((self.folder / "log").read_text())

    def stop(self) -> None:
        for process in self.processes:
            process.terminate()
            process.wait()

    def start_once(self) -> None:
        with socket.socket() as one:
            one.bind(("127.0.0.1", 0))
            self.port = one.getsockname()[1]
        self.configure("127.0.0.1")
        program = [sys.executable, PROGRAM, self.folder]
        nginx = [NGINX, "-g", "daemon off;", "-c", self.folder / "nginx.conf"]
        with (self.folder / "log").open("w") as log:
            self.processes = [
                subprocess.Popen([*program, "--neighbours", self.folder / "arp"], stdout=log, stderr=log),
                # With the number of files that systemd allows a service.
                subprocess.Popen([*("/bin/sh", "-c", 'ulimit -Sn 1024; exec "$@"', "sh"), *nginx]),
            ]

    def configure(self, address: str) -> None:
        given = {
            "netboot_address": address,
            "netboot_http_port": self.port,
            "netboot_folder": str(self.folder),
        }
        text = jinja2.Template((ROLE / "templates/nginx.conf.j2").read_text(), trim_blocks=True).render(given)
        text = text.replace("/run/rackproof", f"{self.folder}/rackproof").replace(
            "user www-data;", "user root;"
        )
        text = text.replace("worker_processes auto;", "worker_processes 1;")
        # The slow clients of this file must not end by nginx's own timeouts.
        text, count = re.subn(r"(client_\w+_timeout) \d+s", r"\1 900s", text)
        assert count == 3
        # Without nginx's package, its default folders do not exist.
        kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        places = "".join(f"{kind}_temp_path {self.folder}/{kind};" for kind in kinds)
        text = text.replace("/var/log/nginx", str(self.folder)).replace("http {", f"http {{ {places}", 1)
        (self.folder / "nginx.conf").write_text(text)

    def answers(self) -> bool:
        try:
            # While the program does not listen yet, nginx answers with another error.
            return self.fetch(N1, "none/write.json") == 403
        except OSError:
            return False

    def ask(self, method: str, path: str, sender: str, data: bytes = b"", **more: str) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection(
            "127.0.0.1", self.port, timeout=200, source_address=(sender, 0)
        )
        try:
            connection.putrequest(method, path, skip_host=False, skip_accept_encoding=True)
            given = {name.replace("_", "-"): value for name, value in more.items()}
            for name, value in ({"Content-Length": str(len(data))} | given).items():
                connection.putheader(name, value)
            connection.endheaders(data)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def fetch(self, sender: str = N1, path: str = "n1/write.json") -> int:
        return self.ask("GET", f"/nodes/{path}", sender)[0]

    def put(self, report: Any, sender: str = N1, name: str = f"n1-{SECRET}.json") -> int:
        data = report if isinstance(report, bytes) else json.dumps(report).encode()
        return self.ask("PUT", f"/boot-reports/{name}", sender, data)[0]

    def discovered(self, data: bytes, sender: str = N1, mac: str = MACS[N1], attempt: str = ATTEMPT) -> int:
        """Send the report of an unknown machine, and return the status."""
        return self.put(data, sender, f"discover-{attempt}/{mac.replace(':', '-')}.json")

    def report(self, node: str = "n1", secret: str = SECRET) -> Any:
        path = self.folder / f"http/boot-reports/{node}-{secret}.json"
        return json.loads(path.read_text()) if path.exists() else None

    def alarms(self, kind: str, node: str = "n1", secret: str = SECRET) -> list[str]:
        """Return a node's alarms of this kind (``refused`` or ``conflict``)."""
        path = self.folder / f"http/boot-reports/{node}-{secret}.alarms"
        lines = path.read_text().splitlines() if path.exists() else []
        return [line.partition(" ")[2] for line in lines if line.startswith(kind)]

    def files(self) -> set[str]:
        place = self.folder / "http/boot-reports"
        return {str(path.relative_to(place)) for path in place.rglob("*") if path.is_file()}


@pytest.fixture
def host() -> Iterator[BootHost]:
    # pytest's own folders have long names, and the path of a socket has at most 107 characters.
    with tempfile.TemporaryDirectory(prefix="boot-") as folder:
        Path(folder).chmod(0o755)
        site = BootHost(Path(folder))
        try:
            site.start()
            yield site
        finally:
            site.stop()


def test_a_machine_gets_its_order_and_its_report_counts_once(host: BootHost) -> None:
    assert [host.fetch(), host.fetch()] == [200, 200]  # it requests again an answer that was cut off
    assert [host.put(ASKED), host.put(ASKED)] == [201, 412]
    assert host.report() == ASKED
    assert host.put(BEGUN) == 201
    assert host.put(BEGUN) == 412  # as if the first answer was lost
    assert host.put(WRITTEN) == 201
    assert host.put(WRITTEN) == 412
    assert host.report() == WRITTEN
    assert host.alarms("") == []
    assert host.ask("GET", "/nodes/52-54-00-00-00-01.ipxe", NOBODY)[0] == 200
    assert host.files() == {f"n1-{SECRET}.json", f"n1-{SECRET}.address"}


@pytest.mark.parametrize("sender", [N2, STRANGER, NOBODY])
@pytest.mark.parametrize(
    "path",
    [
        "/nodes/n1/write.json",
        "/nodes/n1/user-data",
        "//nodes//n1//write.json",
        "/nodes/x/../n1/write.json",
        "/nodes/%6e1/write.json",
        "/artefacts/../nodes/n1/./write.json",
        "/nodes/n1/write.json?node=n2",
        "/boot.ipxe/../nodes/n1%2fwrite.json",
    ],
)
def test_a_stranger_never_reads_the_secret(host: BootHost, sender: str, path: str) -> None:
    status, body = host.ask("GET", path, sender)
    assert status in (400, 403, 404), status
    assert SECRET.encode() not in body
    # A false name or address in its headers does not help the stranger either.
    more = {"X_Rackproof_Address": N1, "X_Forwarded_For": N1, "X_Rackproof_Name": "n2", "X_Real_IP": N1}
    status, body = host.ask("GET", path, sender, **more)
    assert SECRET.encode() not in body
    # The stranger harms no node: the node gets its order, and its report counts.
    assert [host.fetch(), host.put(WRITTEN)] == [200, 201]
    assert host.alarms("conflict") == []
    assert any("requested its order" in one for one in host.alarms("refused"))


@pytest.mark.parametrize(
    "end", ["%0d%0a", "%0a", "%0d", "%0d%0a%20", "%0b", "%0c", "%c2%85", "%e2%80%a8", "%00", "%1b"]
)
def test_a_name_in_an_address_becomes_no_header_and_no_alarm(host: BootHost, end: str) -> None:
    made_up = (
        f"n1{end}X-Rackproof-Address:%20{N1}",
        f"n1{end}X-Rackproof-Address:%20{N2}{end}conflict%20{N2}%20knows%20the%20secret",
        f"n1{end}conflict%20{N2}%20knows%20the%20secret",
    )
    for name in made_up:
        for path in (f"/nodes/{name}/write.json", f"/boot-reports/{name}.json"):
            assert host.ask("GET", path, STRANGER)[0] >= 400
            assert host.ask("PUT", path, STRANGER, b"{}")[0] >= 400
    # The node still gets its order, and its report counts.
    assert [host.fetch(), host.put(WRITTEN)] == [200, 201]
    assert host.alarms("conflict") == []


@pytest.mark.parametrize("path", ["/rackproof-order", "/reports/socket", "/orders/n1", "/../orders/n1"])
def test_the_files_and_the_socket_behind_nginx_cannot_be_reached(host: BootHost, path: str) -> None:
    for method in ("GET", "PUT", "POST"):
        status, body = host.ask(method, path, N1, b"{}")
        assert status >= 400
        assert SECRET.encode() not in body


def test_only_the_node_gets_the_signature_of_its_order(host: BootHost) -> None:
    assert host.fetch(path="n1/write.json.sig") == 404  # it is not there yet, so the ramdisk will ask again
    (host.folder / "http/nodes/n1/write.json.sig").write_text("AAAA")
    assert host.ask("GET", "/nodes/n1/write.json.sig", N1) == (200, b"AAAA")
    for sender in (N2, STRANGER, NOBODY, TWIN):
        assert host.fetch(sender, "n1/write.json.sig") == 403
    assert host.ask("PUT", "/nodes/n1/write.json.sig", N1, b"BBBB")[0] == 403
    assert (host.folder / "http/nodes/n1/write.json.sig").read_text() == "AAAA"


def test_two_machines_with_one_mac_address_are_an_alarm_in_either_order(host: BootHost) -> None:
    assert host.fetch(TWIN) == 200
    assert host.fetch(N1) == 403
    (alarm,) = host.alarms("conflict")
    assert alarm == f"{N1} requested its order with its MAC address, after {TWIN}"


@pytest.mark.parametrize("sender", [N2, STRANGER, NOBODY, TWIN])
def test_the_secret_from_another_machine_is_an_alarm(host: BootHost, sender: str) -> None:
    host.fetch()
    assert host.put(FORGED, sender) == 403
    assert host.report() is None
    (alarm,) = host.alarms("conflict")
    assert alarm.startswith(sender)
    assert "has the secret of its boot report" in alarm


@pytest.mark.parametrize(
    ("before", "second"),
    [
        ([BEGUN, WRITTEN], FORGED),
        ([ASKED], ASKED | {"nonce": "1" * 32}),
        ([ASKED, BEGUN], ASKED),
        ([ASKED, {"status": "refused", "node": "n1"}], BEGUN),
        ([WRITTEN], FORGED),
        ([WRITTEN], BEGUN),
        ([BEGUN], BEGUN | {"more": 1}),
        ([BEGUN, {"status": "refused", "node": "n1"}], WRITTEN),
        ([BEGUN, {"status": "failed", "node": "n1"}], WRITTEN),
    ],
)
def test_a_second_boot_report_never_replaces_the_first(
    host: BootHost, before: list[Any], second: Any
) -> None:
    host.fetch()
    assert [host.put(one) for one in before] == [201] * len(before)
    # The machine learns that it was not taken. Only the same report again is 412.
    assert host.put(second) == 409
    assert host.report() == before[-1]
    restarted = " (its console and BMC show if it restarted meanwhile)" if second["status"] == "asked" else ""
    assert host.alarms("conflict") == [f"second boot report, from {N1} ({MACS[N1]}): not trusted{restarted}"]


@pytest.mark.parametrize(
    "name",
    [
        f"n1-{OTHER_SECRET}.json",
        f"n2-{SECRET}.json",
        f"n1-{SECRET.upper()}.json",
        f"n1-{SECRET[:-1]}.json",
        "n1-.json",
        "n3-canary0secret0of0n3.json",
        "anything.json",
        f"n1-{SECRET}.address",
        f"n1-{SECRET}.alarms",
        f"../orders/n1-{SECRET}.json",
        f"..%2fn1-{SECRET}.json",
        f"%2e%2e/boot-reports/x/n1-{SECRET}.json",
        f"a/n1-{SECRET}.json",
        f"{'n' * 4000}-{SECRET}.json",
        f"discover-{ATTEMPT}.json",
    ],
)
def test_a_report_with_another_name_is_refused(host: BootHost, name: str) -> None:
    host.fetch()
    assert host.put(FORGED, STRANGER, name) >= 400
    assert host.put(FORGED, N1, name) >= 400
    assert not any(one.endswith(".json") for one in host.files())
    assert host.put(WRITTEN) == 201
    assert host.alarms("conflict") == []


def test_thousands_of_names_make_no_files_and_strangers_crowd_out_no_alarm(host: BootHost) -> None:
    host.fetch()
    for number in range(1000):
        assert host.put(FORGED, STRANGER, f"n1-{number:032}.json") == 403
        assert host.put(FORGED, STRANGER, f"n{number + 5}-{number:032}.json") == 403
    rows = "".join(f"127.0.1.{last} 0x1 0x2 52:54:00:00:01:{last:02x} * eth0\n" for last in range(1, 60))
    with (host.folder / "arp").open("a") as stream:
        stream.write(rows)
    for last in range(1, 60):
        assert host.put(FORGED, f"127.0.1.{last}", f"n1-{last:032}.json") == 403
    assert host.files() == {f"n1-{SECRET}.address", f"n1-{SECRET}.alarms"}
    assert len(host.alarms("refused")) == 20
    assert host.put(FORGED, STRANGER) == 403
    assert len(host.alarms("conflict")) == 1


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b"\xff\xfe",
        b"[" * 60000,
        json.dumps(WRITTEN | {"node": "n2"}).encode(),
        json.dumps(WRITTEN | {"status": "believe me"}).encode(),
        json.dumps(WRITTEN | {"status": ["written"]}).encode(),
    ],
)
def test_an_invalid_report_is_refused_and_not_stored(host: BootHost, data: bytes) -> None:
    host.fetch()
    assert host.put(data) == 400
    assert host.report() is None
    assert len(host.alarms("conflict")) == 1
    assert host.put(WRITTEN) == 201  # and the program still answers


@pytest.mark.parametrize("size", [64 * 1024 + 1, 10**6, 64 * 10**6])
def test_a_large_report_is_refused_before_it_is_read(host: BootHost, size: int) -> None:
    host.fetch()
    path = f"/boot-reports/n1-{SECRET}.json"
    assert host.ask("PUT", path, N1, Content_Length=str(size))[0] == 413
    assert host.report() is None


@pytest.mark.parametrize(
    "begin",
    [
        b"GET /boot",
        b"GET /boot.ipxe HTTP/1.1\r\nHost: x\r\nX-A: ",
        b"PUT /boot-reports/x.json HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n",
    ],
)
def test_thousands_of_requests_that_never_end_keep_no_machine_waiting(host: BootHost, begin: bytes) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 3000:
        pytest.skip("this process may open too few files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 3000), hard))
    with contextlib.ExitStack() as stack:
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        for _ in range(2000):
            address = ("127.0.0.1", host.port)
            slow = stack.enter_context(socket.create_connection(address, source_address=(STRANGER, 0)))
            slow.sendall(begin)
        assert [host.fetch(), host.put(WRITTEN)] == [200, 201]


@pytest.mark.parametrize("method", ["GET", "POST", "DELETE", "MOVE", "COPY", "MKCOL", "PATCH", "HEAD"])
def test_reports_can_neither_be_read_nor_moved(host: BootHost, method: str) -> None:
    host.fetch()
    host.put(WRITTEN)
    for name in (
        f"n1-{SECRET}.json",
        "",
        f"discover-{ATTEMPT}/52-54-00-00-00-01.json",
        f"n1-{SECRET}.alarms",
    ):
        status, body = host.ask(
            method, f"/boot-reports/{name}", N1, Destination=f"http://127.0.0.1:{host.port}/artefacts/x"
        )
        assert status >= 400
        assert b"host_keys" not in body
    assert host.report() == WRITTEN
    assert list((host.folder / "http/artefacts").iterdir()) == []


def test_a_report_before_the_order_or_after_its_end_is_refused(host: BootHost) -> None:
    assert host.put(WRITTEN) == 403  # it cannot know the secret
    assert len(host.alarms("conflict")) == 1
    path = host.order("n1", MACS[N1], SECRET)
    host.fetch()
    for content, ago in (("900", 901), ("900", -86400), ("soon", 0), ("", 0)):
        path.write_text(f"{content} {MACS[N1]} {SECRET} image\n")
        os.utime(path, (time.time() - ago,) * 2)
        assert [host.put(WRITTEN), host.fetch()] == [403, 403], content
    path.unlink()
    assert [host.put(WRITTEN), host.fetch()] == [403, 403]
    assert host.report() is None
    # A new attempt has its own secret, and a report with the old secret does not count.
    host.order("n1", MACS[N1], SECRET[::-1])
    assert host.fetch() == 200
    assert host.put(WRITTEN) == 403
    assert host.put(WRITTEN, name=f"n1-{SECRET[::-1]}.json") == 201


def test_an_installer_may_report_from_another_address_of_its_machine(host: BootHost) -> None:
    host.order("n1", MACS[N1], SECRET, install="autoinstall")
    assert host.fetch(path="n1/user-data") == 200
    assert host.put(WRITTEN, STRANGER) == 403
    assert host.put(WRITTEN, TWIN) == 201


def test_an_unknown_machine_reports_once_and_in_its_own_name(host: BootHost) -> None:
    assert host.discovered(b"forged", STRANGER) == 403
    assert host.discovered(b"forged", NOBODY) == 403
    assert host.discovered(b"first") == 201
    assert host.discovered(b"first") == 412
    folder = f"discover-{ATTEMPT}"
    assert host.files() == {f"{folder}/52-54-00-00-00-01.json"}
    assert host.discovered(b"second") == 412
    assert host.discovered(b"x" * 70000, N2, MACS[N2]) == 413
    assert host.discovered(b"x", N2, MACS[N2], "canary0other0attempt") == 403
    for name in (
        f"{folder}/x.json",
        f"{folder}/52-54-00-00-00-02.alarm",
        f"{folder}/../52-54-00-00-00-02.json",
    ):
        assert host.put(b"x", N2, name) == 403
    assert host.files() == {f"{folder}/52-54-00-00-00-01.json", f"{folder}/52-54-00-00-00-01.alarm"}
    assert (host.folder / "http/boot-reports" / folder / "52-54-00-00-00-01.json").read_bytes() == b"first"
    (host.folder / "discover/open.conf").unlink()
    assert host.discovered(b"late", N2, MACS[N2]) == 403


# A script that makes a boot host's bridge, a node and a stranger, each in its own network. The stranger
# requests the order, takes the node's IP address and sends a forged report. Each `ask` prints a status.
NETWORK = """
ip link set lo up; ip link add br0 type bridge; ip addr add 192.0.2.1/24 dev br0; ip link set br0 up
for last in 1 9; do
  ip link add v$last type veth peer name e0 address 52:54:00:00:00:0$last; ip link set v$last master br0 up
  unshare --net sleep 600 & eval machine$last=$!
  until [ "$(readlink /proc/$!/ns/net)" != "$(readlink /proc/$$/ns/net)" ]; do sleep 0.1; done
  eval ip link set e0 netns \\$machine$last
done
inside() { eval nsenter -n -t \\$machine$1 "$2"; }
for last in 1 9; do
  inside $last "ip addr add 192.0.2.1$last/24 dev e0"; inside $last "ip link set e0 up"
done
{python} {program} {folder} > {folder}/log 2>&1 & processes=$!
{nginx} -g 'daemon off;' -c {folder}/nginx.conf & processes="$processes $!"
again="--max-time 60 --retry 300 --retry-delay 1 --retry-connrefused"
ask() { inside $1 "curl -s -o {folder}/answer -w '%{http_code}\\n' $again $2"; }
order=http://192.0.2.1:{port}/nodes/n1/write.json; report=http://192.0.2.1:{port}/boot-reports/n1-{secret}.json
put="-X PUT -d @{folder}"
ask 9 $order; ask 1 $order; ask 9 "$put/forged $report"
inside 1 "ip link set e0 down"; ip neigh flush all
inside 9 "ip addr add 192.0.2.11/24 dev e0"; ask 9 "--interface 192.0.2.11 $put/forged $report"
inside 9 "ip addr del 192.0.2.11/24 dev e0"; ip neigh flush all
inside 1 "ip link set e0 up"; ask 1 "$put/written $report"
kill $processes $machine1 $machine9; wait
"""


def test_the_kernel_s_own_table_distinguishes_a_stranger_who_takes_the_node_s_address(host: BootHost) -> None:
    allowed = subprocess.run(["unshare", "--net", "true"], capture_output=True, check=False)
    if allowed.returncode or not shutil.which("curl") or not shutil.which("nsenter"):
        pytest.skip("needs curl, and root for a network of its own")
    host.stop()
    for name, content in (("forged", FORGED), ("written", WRITTEN)):
        (host.folder / name).write_text(json.dumps(content))
    host.configure("192.0.2.1")
    given = {"folder": host.folder, "python": sys.executable, "nginx": NGINX, "secret": SECRET}
    script = NETWORK
    for name, value in (given | {"program": PROGRAM, "port": host.port}).items():
        script = script.replace(f"{{{name}}}", str(value))
    done = subprocess.run(
        ["unshare", "--net", "bash", "-c", script], capture_output=True, text=True, check=False
    )
    # Only the node gets its order and is believed. The stranger is named with its own MAC address.
    assert done.stdout.split() == ["403", "200", "403", "403", "201"], done.stderr
    assert host.report() == WRITTEN
    assert [one.split(")")[0] for one in host.alarms("conflict")] == [
        f"192.0.2.19 ({MACS[STRANGER][:-2]}09",
        f"192.0.2.11 ({MACS[STRANGER][:-2]}09",
    ]


@pytest.mark.parametrize("function", ["replace", "create"])
@pytest.mark.parametrize("call", ["fchmod", "fdopen"])
def test_a_report_that_cannot_be_written_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: str, call: str
) -> None:
    # What is left would count for the largest number of unknown machines.
    loader = importlib.machinery.SourceFileLoader("rackproof_boot_reports", str(PROGRAM))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec is not None
    program = importlib.util.module_from_spec(spec)
    loader.exec_module(program)

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(program.os, call, full)
    with pytest.raises(OSError, match="No space"):
        getattr(program, function)(str(tmp_path / "report.json"), b"{}")
    assert list(tmp_path.iterdir()) == []
