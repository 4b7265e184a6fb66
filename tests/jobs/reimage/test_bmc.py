"""Test power and boot of a node through a BMC with Redfish (``rackproof.jobs.reimage.bmc`` and ``redfish``).

A BMC is the small computer in a server that switches the server on and off. The tests use the emulator of
sushy-tools, and small servers that are silent or answer with errors. They check that each order is read back,
that an error names the node and a remedy, and that no password is shown.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from rackproof.jobs.reimage.bmc import (
    Access,
    BmcError,
    OpenMachine,
    read_power_status,
    set_boot,
    set_power,
)
from rackproof.jobs.reimage.tasks import open_machine

pytestmark = pytest.mark.slow
EMULATOR = Path(sys.executable).with_name("sushy-emulator")
CONFIG = """
SUSHY_EMULATOR_FAKE_DRIVER = True
SUSHY_EMULATOR_LISTEN_IP = "127.0.0.1"
SUSHY_EMULATOR_LISTEN_PORT = {port}
SUSHY_EMULATOR_STATE_DIR = {state!r}
SUSHY_EMULATOR_AUTH_FILE = {passwords!r}
SUSHY_EMULATOR_FAKE_SYSTEMS = [
    {{"uuid": uuid, "name": name, "power_state": "Off", "external_notifier": False,
      "nics": [{{"mac": "00:5c:52:31:3a:9c", "ip": "192.0.2.9"}}]}}
    for uuid, name in {systems!r}
]
"""
ONE = (("27946b59-9e44-4fa7-8e91-f3527a1ef094", "n1"),)
TWO = (*ONE, ("27946b59-9e44-4fa7-8e91-f3527a1ef095", "n2"))


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


class Emulator:
    """A process of sushy-tools' emulator with these systems (UUID and name)."""

    def __init__(self, folder: Path, systems: tuple[tuple[str, str], ...]) -> None:
        import bcrypt

        folder.mkdir()
        port = free_port()
        passwords = folder / "htpasswd"
        passwords.write_text("ops:" + bcrypt.hashpw(b"secret", bcrypt.gensalt(4)).decode() + "\n")
        config = folder / "emulator.conf"
        config.write_text(
            CONFIG.format(port=port, state=str(folder), passwords=str(passwords), systems=systems)
        )
        self.address = f"http://127.0.0.1:{port}"
        self.process = subprocess.Popen(
            [EMULATOR, "--fake", "--config", config],
            stdout=(folder / "log").open("w"),
            stderr=subprocess.STDOUT,
        )
        for _ in range(300):
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"{self.address}/redfish/v1/", timeout=5).close()
                return
            time.sleep(0.1)
        raise AssertionError((folder / "log").read_text())


@pytest.fixture(scope="module")
def bmcs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    folder = tmp_path_factory.mktemp("bmcs")
    made = {"one": Emulator(folder / "one", ONE), "two": Emulator(folder / "two", TWO)}
    yield {name: one.address for name, one in made.items()}
    for one in made.values():
        one.process.terminate()
        one.process.wait()


def access(address: str, **changed: Any) -> Access:
    return Access(**({"address": address, "user": "ops", "password": "secret"} | changed))


def opener(address: str, **changed: Any) -> OpenMachine:
    return partial(open_machine, "n1", access(address, **changed))


def test_a_node_boots_over_the_network_once_and_the_override_is_set_back(bmcs: dict[str, str]) -> None:
    way = opener(bmcs["one"])
    assert set_power("n1", way, "off", timeout_s=20).power == "Off"
    assert set_boot("n1", way, "pxe").boot == "Pxe"
    assert set_power("n1", way, "cycle", timeout_s=20).power == "On"
    assert set_power("n1", way, "on", timeout_s=20).power == "On"
    now = set_boot("n1", way, "disk")
    assert now.boot != "Pxe" or now.boot_enabled == "Disabled"
    assert read_power_status(way).power == "On"
    assert set_power("n1", way, "off", timeout_s=20).power == "Off"


def test_a_wrong_password_is_reported_and_is_nowhere_in_the_message(bmcs: dict[str, str]) -> None:
    with pytest.raises(BmcError, match=r"n1: its BMC at .* refuses the login of ops .*Vault") as caught:
        read_power_status(opener(bmcs["one"], password="hunter2"))
    assert "hunter2" not in str(caught.value)
    assert "hunter2" not in repr(access("a", password="hunter2"))


def test_of_several_systems_one_has_to_be_named(bmcs: dict[str, str]) -> None:
    with pytest.raises(BmcError, match=r"n1: its BMC lists 2 systems; .*reimage_bmc_system"):
        read_power_status(opener(bmcs["two"]))
    assert read_power_status(opener(bmcs["two"], system=TWO[1][0])).power in ("On", "Off")
    with pytest.raises(BmcError, match="no system n9"):
        read_power_status(opener(bmcs["two"], system="n9"))


def test_a_bmc_that_does_not_answer_is_named() -> None:
    with pytest.raises(BmcError, match=r"n1: its BMC at http://127.0.0.1:\d+ does not answer .*reset button"):
        read_power_status(opener(f"http://127.0.0.1:{free_port()}"))
    with pytest.raises(BmcError, match="no address of its BMC is known: set reimage_bmc_address"):
        read_power_status(opener(""))


@pytest.fixture
def faulty_bmc() -> Iterator[tuple[str, list[str]]]:
    """Yield the address of a BMC, and a list whose only entry is the BMC's fault, which a test may change."""
    how: list[str] = ["silent"]

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if how[0] == "silent":
                time.sleep(1.5)
                return
            if how[0] == "html":
                self.send_response(200)
                self.end_headers()
                self.wfile.write(b"<html>a printer</html>")
                return
            self.send_error(int(how[0]))

        def log_message(self, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", how
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        ("silent", "does not answer"),
        ("503", "refuses with status 503"),
        ("404", "refuses with status 404"),
        ("html", "does not answer with Redfish"),
    ],
)
def test_a_bmc_that_is_sick_is_distinguished_from_one_that_refuses(
    faulty_bmc: tuple[str, list[str]], fault: str, why: str
) -> None:
    address, how = faulty_bmc
    how[0] = fault
    limit_s = 0.3 if fault == "silent" else 60
    with pytest.raises(BmcError, match=f"n1: its BMC at .* {why}"):
        read_power_status(opener(address, user="", call_timeout_s=limit_s))


def test_a_node_that_does_not_become_what_was_wanted_is_reported(
    bmcs: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from sushy.resources.system.system import System

    way = opener(bmcs["one"])
    set_power("n1", way, "on", timeout_s=20)
    monkeypatch.setattr(System, "reset_system", lambda self, value: None)
    with pytest.raises(BmcError, match="accepted the order, but 0 s later the node is On and not Off"):
        set_power("n1", way, "off", timeout_s=0, sleep=lambda seconds: None)


def test_an_order_that_is_accepted_and_forgotten_is_found(
    bmcs: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from sushy.resources.system.system import System

    way = opener(bmcs["one"])
    set_boot("n1", way, "disk")
    monkeypatch.setattr(System, "set_system_boot_options", lambda self, **options: None)
    with pytest.raises(BmcError, match="accepted the order to boot over the network once, but reads back"):
        set_boot("n1", way, "pxe")


PLAYBOOK = """
- hosts: all
  gather_facts: false
  tasks:
    - rackproof_reimage_bmc:
        address: "{address}"
        user: ops
        password: "{{{{ lookup('ansible.builtin.env', 'BMC_PASSWORD') }}}}"
        boot: pxe
        power: "on"
"""


def test_the_task_sets_boot_and_power_and_shows_no_password(bmcs: dict[str, str], tmp_path: Path) -> None:
    playbook = tmp_path / "playbook.yml"
    playbook.write_text(PLAYBOOK.format(address=bmcs["one"]))

    def run(password: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [Path(sys.executable).with_name("ansible-playbook"), "-vvv", "-i", "n1,", playbook],
            cwd=Path(__file__).resolve().parents[3],
            env=os.environ | {"BMC_PASSWORD": password, "ANSIBLE_NOCOLOR": "1"},
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )

    done = run("secret")
    assert done.returncode == 0, done.stdout + done.stderr
    assert read_power_status(opener(bmcs["one"])).power == "On"
    assert "boot: Pxe" in done.stdout
    done = run("hunter2")
    assert done.returncode == 2
    assert "n1: its BMC at" in done.stdout
    assert "refuses the login of ops" in " ".join(done.stdout.split())
    assert "hunter2" not in done.stdout + done.stderr
