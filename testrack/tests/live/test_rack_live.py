"""Test a running rack through ssh and Ansible: hosts, reboots, services and faults.

Each test leaves the nodes as it found them.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request
from base64 import b64encode
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytestmark = [pytest.mark.rack, pytest.mark.slow]
Command = Callable[..., subprocess.CompletedProcess[str]]
ONE, OTHER, SERVICES = "gb300-r01-n01", "gb300-r01-n02", "gb300-r01-svc"
BOOT_ID = "/proc/sys/kernel/random/boot_id"


@pytest.fixture
def fault(driver: Command, rack: Command) -> Iterator[Callable[..., None]]:
    """Yield a function that switches a fault on. After the test, switch these faults off."""
    on: list[tuple[str, str]] = []

    def switch(host: str, name: str, *options: str) -> None:
        on.append((host, name))
        done = driver("fault", host, name, *options)
        assert done.returncode == 0, done.stderr

    yield switch
    for host, name in on:
        done = driver("fault", host, name, "--off")
        assert done.returncode == 0, done.stderr


def shown(driver: Command, host: str) -> dict[str, object]:
    """Return what `rack.py status` shows about a host."""
    done = driver("status", "--json")
    assert done.returncode == 0, done.stderr
    return next(row for row in json.loads(done.stdout)["hosts"] if row["name"] == host)


def test_up_a_second_time_has_nothing_to_do(driver: Command, rack: Command) -> None:
    done = driver("up", "--nodes", "2")
    assert done.returncode == 0, done.stderr
    assert "nothing to do: 4 hosts run" in done.stdout


def test_ansible_reaches_the_nodes_by_the_names_of_the_inventory(rack: Command, root: Path) -> None:
    done = subprocess.run(
        [Path(sys.executable).with_name("ansible"), f"{ONE}:{OTHER}", "-m", "ping", "-o"],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.stdout.count("SUCCESS") == 2, done.stdout + done.stderr


def test_a_host_is_itself_and_no_other(rack: Command) -> None:
    asked = (
        "hostname; cat /etc/machine-id /etc/ssh/ssh_host_ed25519_key.pub; systemctl is-system-running --wait"
    )
    said = [rack(host, asked).stdout.split("\n") for host in (ONE, OTHER)]
    assert [lines[0] for lines in said] == [ONE, OTHER]
    assert said[0][1] != said[1][1]
    assert re.fullmatch("[0-9a-f]{32}", said[0][1])
    assert said[0][2] != said[1][2]
    assert rack(ONE, f"getent hosts {OTHER}").stdout.split() == ["198.18.77.12", OTHER]


def test_a_reboot_is_a_new_boot_with_the_old_disk(rack: Command) -> None:
    marks = "touch /run/rack-test /var/tmp/rack-test"
    before = rack(OTHER, f"{marks}; cat {BOOT_ID}").stdout
    host = Path(BOOT_ID).read_text()
    assert before
    assert before != host
    rack(OTHER, "systemctl reboot")
    deadline = time.monotonic() + 300
    after = ""
    while time.monotonic() < deadline and after in ("", before):
        time.sleep(0.5)
        after = rack(OTHER, f"cat {BOOT_ID}").stdout
    assert after not in ("", before, host)
    found = rack(OTHER, "ls /run/rack-test /var/tmp/rack-test; rm -f /var/tmp/rack-test").stdout
    assert found == "/var/tmp/rack-test\n"


def test_a_nodes_settings_are_its_own(rack: Command) -> None:
    path = Path("/proc/sys/vm/swappiness")
    host = path.read_text()
    before = rack(ONE, "sysctl -n vm.swappiness").stdout.strip()
    other = rack(OTHER, "sysctl -n vm.swappiness").stdout
    try:
        assert rack(ONE, "sysctl -q -w vm.swappiness=7; sysctl -n vm.swappiness").stdout == "7\n"
        assert path.read_text() == host
        assert rack(OTHER, "sysctl -n vm.swappiness").stdout == other
    finally:
        rack(ONE, f"sysctl -q -w vm.swappiness={before}")


def test_a_node_has_neither_this_machines_disks_nor_a_way_out(rack: Command) -> None:
    disks = rack(ONE, "find /dev -type b -not -name 'loop*'; ls /dev/kmsg").stdout
    assert disks == ""
    # No host has 192.0.2.1, which is reserved for examples (RFC 5737). The rack's own host answers.
    connect = "python3 -c \"import socket; socket.create_connection(('{}', {}), 3)\""
    assert rack(ONE, connect.format("192.0.2.1", 80)).returncode != 0
    assert rack(ONE, connect.format(SERVICES, 80)).returncode == 0


def http_status(url: str, user: str = "", password: str = "") -> int:
    """Return the status of an HTTP request."""
    request = urllib.request.Request(url)
    if user:
        request.add_header("Authorization", "Basic " + b64encode(f"{user}:{password}".encode()).decode())
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def test_the_services_answer(rack: Command, root: Path) -> None:
    password = (root / ".rackproof/rack/ngc_key").read_text().strip()
    assert (root / ".rackproof/rack/ngc_key").stat().st_mode & 0o077 == 0
    registry = f"http://{SERVICES}:5000/v2/"
    assert http_status(registry) == 401
    assert http_status(registry, "$oauthtoken", "wrong") == 401
    assert http_status(registry, "$oauthtoken", password) == 200
    assert http_status(f"http://{SERVICES}/debian/dists/stable/InRelease") == 200
    assert http_status(f"http://{SERVICES}:9000/rackproof") == 200


def test_a_dead_sshd_is_silent_until_it_is_repaired(
    rack: Command, driver: Command, fault: Callable[..., None]
) -> None:
    fault(OTHER, "dead-sshd")
    assert rack(OTHER, "true").returncode == 255
    assert (shown(driver, OTHER)["ssh"], list(shown(driver, OTHER)["faults"])) == (False, ["dead-sshd"])
    done = driver("up", "--nodes", "2")
    assert done.returncode == 0, done.stderr
    assert f"no answer, because a fault is on: {OTHER}" in done.stdout
    assert driver("fault", OTHER, "dead-sshd", "--off").returncode == 0
    assert rack(OTHER, "true").returncode == 0


def test_a_full_disk_takes_nothing_and_this_machines_is_not_full(
    rack: Command, driver: Command, fault: Callable[..., None]
) -> None:
    free = os.statvfs("/").f_bavail
    fault(OTHER, "full-disk")
    wrote = rack(OTHER, "echo x > /var/rack-test")
    assert "No space left on device" in wrote.stderr
    assert rack(OTHER, "df --output=avail /var | tail -1; test -s /var/lib/dpkg/status").stdout.strip() == "0"
    assert (free - os.statvfs("/").f_bavail) * os.statvfs("/").f_frsize < 5e9
    assert driver("fault", OTHER, "full-disk", "--off").returncode == 0
    assert rack(OTHER, "echo x > /var/rack-test && rm /var/rack-test").returncode == 0


def test_a_fault_sets_the_clock_wrong_until_it_is_switched_off(
    rack: Command, driver: Command, fault: Callable[..., None]
) -> None:
    fault(OTHER, "clock-skew", "--seconds", "-3600")
    asks = "date +%s; systemd-run --quiet --pipe date +%s"
    for said in rack(OTHER, asks).stdout.split():
        assert int(said) - time.time() == pytest.approx(-3600, abs=30)
    assert driver("fault", OTHER, "clock-skew", "--off").returncode == 0
    for said in rack(OTHER, asks).stdout.split():
        assert int(said) - time.time() == pytest.approx(0, abs=30)


def test_a_slow_node_is_held_back_by_the_kernel(
    rack: Command, driver: Command, fault: Callable[..., None]
) -> None:
    # The test counts throttled periods, because time also depends on other processes of this machine.
    count = "cat /sys/fs/cgroup/cpu/cpu.stat /sys/fs/cgroup/cpu.stat 2>/dev/null | grep -m1 nr_throttled"
    work = f"{count}; python3 -c 'sum(range(20000000))'; {count}"

    def held_back() -> int:
        before, after = re.findall(r"nr_throttled (\d+)", rack(OTHER, work).stdout)
        return int(after) - int(before)

    fault(OTHER, "slow-node", "--cpus", "0.05")
    assert held_back() > 3
    assert driver("fault", OTHER, "slow-node", "--off").returncode == 0
    assert held_back() == 0


def test_the_hardwares_faults_are_switched_by_the_same_command(
    rack: Command, driver: Command, fault: Callable[..., None]
) -> None:
    """The fault of this test leaves nothing in the kernel's log, where an XID would fail the node later."""

    def narrow() -> int:
        return rack(OTHER, "lspci -vv").stdout.count("(downgraded)")

    before = narrow()
    fault(OTHER, "link-trained-down", "--gpu", "2")
    assert narrow() > before
    assert list(shown(driver, OTHER)["faults"]) == ["link-trained-down"]  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["fault", OTHER, "nonsense"], "nonsense: no such fault"),
        (["fault", "nobody", "xid"], "nobody: no host of the rack; there are gb300-r01-n01 to gb300-r01-n18"),
        (["fault", OTHER, "slow-node", "--gpu", "1"], "slow-node takes no --gpu; it takes --cpus"),
        (["up", "--nodes", "19"], "NODES=19: the inventory's gb300-rack has 1 to 18 nodes"),
        (["up", "--also", "dgx1"], "there are b200, h100"),
    ],
)
def test_a_mistaken_command_is_refused_with_the_reason(
    driver: Command, rack: Command, words: list[str], message: str
) -> None:
    done = driver(*words)
    assert done.returncode == 1
    assert message in done.stderr
    assert "Traceback" not in done.stderr
