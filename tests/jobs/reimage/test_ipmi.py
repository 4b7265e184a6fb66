"""Test power and boot of a node through a BMC with IPMI (``rackproof.jobs.reimage.ipmi``).

Rackproof runs the program ipmitool. Most of the tests use it with a fake BMC of the library pyghmi, and some
replace it by a script with a certain output. They check that each order is read back, that an error names the
node and a remedy, and that no password is in a command line or an output.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rackproof.jobs.reimage import tasks
from rackproof.jobs.reimage.bmc import (
    Access,
    BmcError,
    BmcSilentError,
    OpenMachine,
    read_power_status,
    set_boot,
    set_power,
)
from rackproof.jobs.reimage.ipmi import parse_boot_flags, parse_host_and_port

from .fake_ipmi import FakeIpmi


def needs_ipmitool(test: Any) -> Any:
    """Mark a test as slow, and skip it without ipmitool."""
    test = pytest.mark.slow(test)
    reason = "needs ipmitool (tools/install-test-packages)"
    return pytest.mark.skipif(not shutil.which("ipmitool"), reason=reason)(test)


@pytest.fixture
def node() -> FakeIpmi:
    with socket.socket(type=socket.SOCK_DGRAM) as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    return FakeIpmi(port)


def access(node: FakeIpmi, **changed: Any) -> Access:
    # pyghmi's server has no newer cipher suite.
    said = {"address": f"127.0.0.1:{node.port}", "user": "ops", "password": "secret", "protocol": "ipmi"}
    return Access(**(said | {"cipher_suite": 3} | changed))


def opener(node: FakeIpmi, **changed: Any) -> OpenMachine:
    return partial(tasks.open_machine, "n1", access(node, **changed))


@needs_ipmitool
def test_a_node_boots_over_the_network_once_and_the_override_is_set_back(node: FakeIpmi) -> None:
    way = opener(node)
    now = set_boot("n1", way, "pxe")
    assert (now.power, now.boot, now.boot_enabled, now.serial) == ("Off", "Pxe", "Once", "SN-1")
    # Valid, for the next boot only, by UEFI.
    assert node.flags[0] == 0b10100000
    assert set_power("n1", way, "cycle").power == "On"
    assert set_power("n1", way, "on").power == "On"
    assert node.orders == ["on"]
    set_power("n1", way, "cycle", sleep=lambda seconds: None)
    assert node.orders == ["on", "off", "on"]
    assert set_boot("n1", way, "disk").boot_enabled == "Disabled"
    set_boot("n1", opener(node, uefi=False), "pxe")
    assert node.flags[0] == 0b10000000


@needs_ipmitool
def test_a_serial_number_that_is_not_reported_is_empty(node: FakeIpmi) -> None:
    node.fru = b""
    assert read_power_status(opener(node)).serial == ""


@needs_ipmitool
@pytest.mark.parametrize(
    ("fault", "changed", "why"),
    [
        ("", {"password": "hunter2"}, r"refuses the login of ops: check reimage_bmc_user and .*Vault"),
        ("", {"password": "a" * 21}, "refuses the login of ops"),
        ("no privilege", {}, "does not let ops do that: give the account the privilege operator"),
        (
            "forgets",
            {},
            r"accepted the order to boot over the network once, but reads back None \(Disabled\)",
        ),
        (
            "silent",
            {"call_timeout_s": 1.5},
            r"does not answer by IPMI \(no answer within 2 s\).*reset button",
        ),
        ("hung", {"call_timeout_s": 1.5}, "does not answer by IPMI"),
        ("", {"cipher_suite": 17}, "does not do cipher suite 17: update .*reimage_bmc_cipher_suite: 3"),
    ],
)
def test_a_bmc_that_misbehaves_is_reported_with_what_to_do(
    node: FakeIpmi, fault: str, changed: dict[str, Any], why: str
) -> None:
    node.fault = fault
    with pytest.raises(BmcError, match=f"n1: its BMC .*{why}") as caught:
        set_boot("n1", opener(node, **changed), "pxe")
    assert "hunter2" not in str(caught.value)
    assert isinstance(caught.value, BmcSilentError) == (fault in ("silent", "hung"))


@needs_ipmitool
def test_a_slow_bmc_is_waited_for_and_one_that_does_not_switch_is_reported(node: FakeIpmi) -> None:
    node.fault = "slow"
    assert read_power_status(opener(node)).power == "Off"
    node.fault = "stuck"
    with pytest.raises(BmcError, match="accepted the order, but 0 s later the node is Off and not On"):
        set_power("n1", opener(node), "on", timeout_s=0, sleep=lambda seconds: None)


@needs_ipmitool
def test_without_a_listener_a_call_ends_before_its_time_limit(node: FakeIpmi) -> None:
    node.fault = "silent"
    with pytest.raises(BmcSilentError, match="Unable to establish IPMI"):
        read_power_status(opener(node, call_timeout_s=60))


# A fake ipmitool, which records its arguments, environment and input.
PROGRAM = """#!/bin/sh
echo "$*" >> {folder}/calls; env >> {folder}/calls; cat > {folder}/input
cat {folder}/said >&2
exit {status}
"""


@pytest.mark.parametrize(
    ("said", "status", "why"),
    [
        ("RAKP 2 message indicates an error : unauthorized name", 1, "refuses the login of ops"),
        (
            "Error in open session response message : no matching cipher suite\n\n"
            "Error: Unable to establish IPMI v2 / RMCP+ session",
            1,
            "does not do cipher suite 17: update its firmware",
        ),
        ("Get Auth Capabilities error\nError: Unable to establish", 1, "does not answer by IPMI"),
        (
            "Set Session Privilege Level to OPERATOR failed: Unknown (0x81)",
            1,
            "does not let ops do that",
        ),
        ("Get Chassis Boot Parameter 5 failed: Invalid command", 1, "refuses chassis bootparam get 5: Get"),
    ],
)
def test_what_ipmitool_says_is_distinguished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, status: int, why: str
) -> None:
    """Check the output of ipmitool 1.8.19 for BMCs that pyghmi cannot imitate."""
    program = tmp_path / "ipmitool"
    program.write_text(PROGRAM.format(folder=tmp_path, status=status))
    program.chmod(0o755)
    (tmp_path / "said").write_text(f"Loading IANA PEN Registry...\n{said}\n")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    way = Access("10.0.0.11", "ops", "hunter2", protocol="ipmi")
    with pytest.raises(BmcError, match=f"n1: its BMC at 10.0.0.11 {why}"):
        read_power_status(partial(tasks.open_machine, "n1", way))
    # Every user of the machine can read a command line, but only this user can read the environment.
    assert "hunter2" not in (tmp_path / "calls").read_text()
    assert (tmp_path / "input").read_text() == "hunter2\n"


def test_a_machine_without_the_program_reports_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BmcError, match=r"n1: the program ipmitool is not installed .* apt-get install"):
        read_power_status(partial(tasks.open_machine, "n1", Access("10.0.0.11", protocol="ipmi")))


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ("8004000000", ("Pxe", "Once")),
        ("a004000000", ("Pxe", "Once")),
        ("C004000000", ("Pxe", "Continuous")),
        # A boot device without the valid bit: the BMC no longer uses it.
        ("0004000000", ("Pxe", "Disabled")),
        ("8000000000", ("None", "Disabled")),
        ("e008000000", ("Hdd", "Continuous")),
        ("8014000000", ("IPMI device 5", "Once")),
        ("", ("", "")),
    ],
)
def test_boot_flags_are_read_by_their_bits(data: str, said: tuple[str, str]) -> None:
    text = f"Boot parameter version: 1\nBoot parameter data: {data}\n Boot Flags :\n" if data else "nothing"
    assert parse_boot_flags(text) == said


@pytest.mark.parametrize(
    ("address", "place"),
    [
        ("10.0.0.11", ("10.0.0.11", 623)),
        ("bmc17.example:6230", ("bmc17.example", 6230)),
        ("fd00::11", ("fd00::11", 623)),
        ("[fd00::11]:6230", ("fd00::11", 6230)),
        ("https://10.0.0.11", None),
        ("10.0.0.11:x", None),
        ("-oProxy", None),
        ("ops@10.0.0.11", None),
    ],
)
def test_addresses_are_names_or_ip_addresses(address: str, place: tuple[str, int] | None) -> None:
    if place:
        assert parse_host_and_port("n1", address) == place
    else:
        with pytest.raises(BmcError, match=r"n1: '.*' is not an address for IPMI"):
            parse_host_and_port("n1", address)


PLAYBOOK = """
- hosts: all
  gather_facts: false
  tasks:
    - rackproof_reimage_bmc:
        address: "127.0.0.1:{port}"
        protocol: ipmi
        cipher_suite: 3
        user: ops
        password: "{{{{ lookup('ansible.builtin.env', 'BMC_PASSWORD') }}}}"
        boot: pxe
        power: "on"
"""


@needs_ipmitool
@pytest.mark.playbook
def test_the_task_sets_boot_and_power_and_shows_no_password(node: FakeIpmi, tmp_path: Path) -> None:
    playbook = tmp_path / "playbook.yml"
    playbook.write_text(PLAYBOOK.format(port=node.port))
    for password, status, said in (("secret", 0, "boot: Pxe"), ("hunter2", 2, "refuses the login of ops")):
        done = subprocess.run(
            [Path(sys.executable).with_name("ansible-playbook"), "-vvv", "-i", "n1,", playbook],
            cwd=Path(__file__).resolve().parents[3],
            env=os.environ | {"BMC_PASSWORD": password, "ANSIBLE_NOCOLOR": "1"},
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        assert done.returncode == status, done.stdout + done.stderr
        assert said in " ".join(done.stdout.split())
        assert "hunter2" not in done.stdout + done.stderr
    assert node.power == "on"


# A fake systemctl on which every unit runs, and a playbook that images node n1.
SYSTEMCTL = "#!/bin/sh\necho LoadState=loaded; echo ActiveState=active; echo SubState=running\n"
BY_IMAGE = """
- hosts: all
  gather_facts: false
  tasks:
    - rackproof_reimage_begin: {{results: "{results}", nodes: {{n1: []}}, method: image}}
      register: reimage_started
    - block:
        - ansible.builtin.import_role: {{name: reimage, tasks_from: by_image}}
      rescue:
        - ansible.builtin.import_role: {{name: reimage, tasks_from: failed}}
"""


@needs_ipmitool
@pytest.mark.playbook
def test_a_machine_that_says_another_serial_number_by_ipmi_is_not_touched(
    node: FakeIpmi, tmp_path: Path
) -> None:
    root = Path(__file__).resolve().parents[3]
    (tmp_path / "playbook.yml").write_text(BY_IMAGE.format(results=tmp_path / "results", root=root))
    hosts = {
        "n1": {
            "ansible_connection": "local",
            "reimage_bmc_address": f"127.0.0.1:{node.port}",
            "reimage_bmc_protocol": "ipmi",
            "reimage_bmc_cipher_suite": 3,
            "reimage_bmc_user": "ops",
            "reimage_bmc_password": "secret",
            "reimage_serial": "SN-2",
            "reimage_mac": "52:54:00:00:00:01",
            "reimage_disk": {"serial": "D1"},
            "reimage_netboot_host": "n1",
            "reimage_authorized_keys": ["ssh-ed25519 AAAA ops"],
            "ansible_python_interpreter": sys.executable,
            "netboot_folder": str(tmp_path / "netboot"),
        }
    }
    (tmp_path / "hosts.json").write_text(json.dumps({"all": {"hosts": hosts}}))
    for name in ("bin", "netboot/dhcp-hosts", "netboot/http/nodes", "netboot/http/boot-reports"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "bin/systemctl").write_text(SYSTEMCTL)
    (tmp_path / "bin/systemctl").chmod(0o755)
    done = subprocess.run(
        [
            Path(sys.executable).with_name("ansible-playbook"),
            "-i",
            tmp_path / "hosts.json",
            tmp_path / "playbook.yml",
        ],
        cwd=root,
        env=os.environ | {"ANSIBLE_NOCOLOR": "1", "PATH": f"{tmp_path}/bin:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    (stood,) = tasks.read_progress(tmp_path / "results")
    assert "n1 is another machine: its BMC reports serial number SN-1" in stood.progress.reason, done.stdout
    # The machine was neither switched nor set to boot over the network.
    assert (node.orders, node.flags[1]) == ([], 0)
