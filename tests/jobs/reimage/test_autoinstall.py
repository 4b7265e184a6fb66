"""Test the instructions for Ubuntu's installer, and the program that checks the machine before it writes.

``rackproof.jobs.reimage.autoinstall`` builds the instructions (autoinstall.yaml) of a node. They have a
placeholder instead of a disk. On the node, roles/netboot/files/rackproof-autoinstall compares the machine
with the order, and replaces the placeholder by the ordered disk. The tests check that an operator's keys
cannot change the disk or the commands, that nothing is written on a wrong machine or disk, and the reports to
the controller.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import json
import subprocess
import sys
import threading
import zipfile
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from rackproof.jobs.reimage import autoinstall

from .test_write_image import writer

# The schema of cloud-init, with which the user-data of the new system is checked.
SCHEMA = Path("/usr/local/share/rackproof-tests/cloud-config.json")
FILES = Path(__file__).resolve().parents[3] / "roles/netboot/files"
ENTRY = {"node": "n1", "serial": "M1", "disk": {"serial": "D1"}, "wipe": []}
REPORT = "http://192.0.2.1:8080/boot-reports/n1-x.json"
SYSTEM = {"hostname": "node-one", "users": [{"name": "ops", "ssh_authorized_keys": ["ssh-ed25519 AAAA ops"]}]}
NETWORK = {"version": 2, "ethernets": {"p": {"match": {"macaddress": "52:54:00:ab:cd:ef"}, "dhcp4": True}}}


def instructions_of(more: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    """Return the instructions for node n1. ``more`` are the operator's own keys."""
    given = {
        "entry": ENTRY,
        "report": REPORT,
        "system": SYSTEM,
        "network": NETWORK,
        "files": FILES,
        "more": more,
    }
    text = autoinstall.build_user_data(**given | changes)  # type: ignore[arg-type]
    assert text.startswith("#cloud-config\n")
    return dict(yaml.safe_load(text)["autoinstall"])


def packed(instructions: dict[str, Any], folder: Path) -> Path:
    """Let a shell imitate the installer's first command. Return the program."""
    shell = instructions["early-commands"][0].replace(autoinstall.PLACE, str(folder))
    subprocess.run(["sh", "-c", shell], check=True)
    return folder / "program"


def test_the_instructions_have_exactly_these_keys_and_values() -> None:
    instructions = instructions_of()
    assert set(instructions) == {
        "version", "early-commands", "late-commands", "error-commands", "shutdown", "storage", "ssh",
        "network", "user-data",
    }  # fmt: skip
    assert instructions["version"] == 1
    assert instructions["storage"] == {"layout": {"name": "direct", "match": {"path": autoinstall.DISK}}}
    assert instructions["ssh"] == {"install-server": True, "allow-pw": False}
    assert instructions["network"] == NETWORK | {"renderer": "networkd"}
    assert instructions["user-data"] == SYSTEM
    # The controller switches the machine on again after it is off.
    assert instructions["shutdown"] == "poweroff"
    run = ["/usr/bin/python3", "/run/rackproof/program"]
    assert instructions["early-commands"][1:] == [[*run, "check"]]
    assert instructions["late-commands"] == ["curtin in-target -- ssh-keygen -A", [*run, "installed"]]
    assert instructions["error-commands"] == [[*run, "failed"]]
    assert instructions_of() == instructions


def test_the_first_command_unpacks_the_programs_and_the_order(tmp_path: Path) -> None:
    instructions = instructions_of()
    with zipfile.ZipFile(packed(instructions, tmp_path)) as archive:
        order = json.loads(archive.read("order.json"))
        for name, source in autoinstall.PROGRAMS.items():
            assert archive.read(name) == (FILES / source).read_bytes()
    assert order == {
        "node": "n1", "serial": "M1", "disk": {"serial": "D1"}, "report": REPORT,
        "placeholder": autoinstall.DISK,
    }  # fmt: skip
    # Linux limits one argument of a command to 128 KiB.
    assert len(instructions["early-commands"][0]) < 100_000
    # The placeholder is there once, where the program replaces it.
    assert yaml.safe_dump(instructions).count(autoinstall.DISK) == 1


# Keys that an operator may add.
MORE = {
    "apt": {"mirror-selection": {"primary": [{"uri": "http://mirror.example/ubuntu"}]}, "fallback": "abort"},
    "packages": ["chrony"],
    "kernel": {"flavor": "generic"},
    "locale": "C.UTF-8",
    "timezone": "UTC",
    "updates": "security",
    "proxy": "http://proxy.example:3128",
    "source": {"id": "ubuntu-server-minimal"},
    "drivers": {"install": False},
    "debconf-selections": "a b boolean true",
}


def test_an_operator_s_own_keys_are_added() -> None:
    instructions = instructions_of(MORE)
    assert {name: instructions[name] for name in MORE} == MORE | {
        "source": {"id": "ubuntu-server-minimal", "search_drivers": False}
    }


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        # An operator cannot change the disk, the commands, the questions or the reports.
        ({"more": {"storage": {"layout": {"name": "lvm"}}}}, "storage"),
        ({"more": {"early-commands": ["true"]}}, "early-commands"),
        ({"more": {"late-commands": []}}, "late-commands"),
        ({"more": {"error-commands": []}}, "error-commands"),
        ({"more": {"interactive-sections": ["*"]}}, "interactive-sections"),
        ({"more": {"shutdown": "reboot"}}, "shutdown"),
        ({"more": {"identity": {"username": "a", "hostname": "b", "password": "c"}}}, "identity"),
        ({"more": {"reporting": {"hook": {"type": "webhook"}}}}, "reporting"),
        ({"more": {"refresh-installer": {"update": True}}}, "refresh-installer"),
        ({"more": {"updates": "none"}}, "updates"),
        ({"more": {"packages": "chrony"}}, "packages"),
        ({"more": {"kernel": {"flavor": "a", "package": "b"}}}, "kernel"),
        ({"more": {"kernel": {}}}, "kernel"),
        ({"network": {"version": 1}}, "version"),
        ({"network": NETWORK | {"wifis": {}}}, "wifis"),
        ({"entry": ENTRY | {"wipe": [{"serial": "D2"}]}}, "reimage_wipe"),
    ],
)
def test_a_key_that_the_instructions_cannot_have_is_refused_with_its_name(
    changes: dict[str, Any], why: str
) -> None:
    with pytest.raises(ValueError, match=why):
        instructions_of(**changes)


def test_cloud_init_accepts_the_new_system_s_user_data() -> None:
    """Check the user-data by the schema of cloud-init, which tools/install-test-packages fetches."""
    if not SCHEMA.exists():
        pytest.skip("cloud-init's schema is not here: tools/install-test-packages fetches it")
    schema = json.loads(SCHEMA.read_text())
    jsonschema.Draft4Validator(schema).validate({"autoinstall": instructions_of(MORE)})
    jsonschema.Draft4Validator(schema).validate(instructions_of()["user-data"])
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft4Validator(schema).validate(SYSTEM | {"ssh_deletekeys": "never"})


def load() -> Any:
    """Return the installer's program as a module. It imports the ramdisk's program as write_image."""
    sys.modules["write_image"] = writer
    loader = importlib.machinery.SourceFileLoader(
        "rackproof_autoinstall", str(FILES / "rackproof-autoinstall")
    )
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


program = load()
GIB = 1024**3
ORDER = {
    "node": "n1",
    "serial": "M1",
    "disk": {"serial": "D1"},
    "placeholder": autoinstall.DISK,
    "report": "",
}


def disk(path: str = "/dev/vda", serial: str = "D1", **changes: Any) -> dict[str, Any]:
    about = {
        "path": path,
        "names": [path, f"/dev/disk/by-path/{path[-3:]}"],
        "serial": serial,
        "bytes": 50 * GIB,
    }
    return about | {"read_only": False, "removable": False, "held": []} | changes


class Machine:
    """A machine on which the installer runs. The instructions are in the folder that it reads."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.instructions = folder / "autoinstall.yaml"
        self.instructions.write_text(yaml.safe_dump(instructions_of()))
        self.reports: list[dict[str, Any]] = []
        monkeypatch.setattr(writer, "report", lambda _, report: self.reports.append(report))

    def run(
        self,
        part: str,
        *found: dict[str, Any],
        serial: str = "m1",
        mounted: tuple[str, ...] = (),
        order: dict[str, Any] | None = None,
    ) -> int:
        place = str(self.folder / "run")
        if part != "check":
            more = {"target": str(self.folder)} if part == "installed" else {}
            return int(program.main(part, order or ORDER, place, **more))
        return int(
            program.main(
                "check",
                order or ORDER,
                place,
                disks=lambda: list(found),
                serial=lambda: serial,
                mounted=lambda: list(mounted),
                autoinstall=str(self.instructions),
            )
        )


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(tmp_path, monkeypatch)


@pytest.mark.parametrize(
    ("found", "wanted", "path"),
    [
        ((disk(), disk("/dev/vdb", "D10")), {"serial": "d1"}, "/dev/vda"),
        ((disk("/dev/vdb", "D10"), disk()), {"serial": "D1"}, "/dev/vda"),
        ((disk(), disk("/dev/vdb", "D2")), {"path": "/dev/disk/by-path/vdb"}, "/dev/vdb"),
        # Volumes of the old system do not matter, because the installer removes them.
        ((disk(held=["dm-0"]),), {"serial": "D1"}, "/dev/vda"),
    ],
)
def test_the_placeholder_is_replaced_by_the_path_of_the_ordered_disk(
    machine: Machine, found: tuple[dict[str, Any], ...], wanted: dict[str, str], path: str
) -> None:
    before = machine.instructions.read_text()
    assert machine.run("check", *found, order=ORDER | {"disk": wanted}) == 0
    assert machine.instructions.read_text() == before.replace(autoinstall.DISK, path)
    assert yaml.safe_load(machine.instructions.read_text())["storage"]["layout"]["match"] == {"path": path}
    assert machine.reports == [{"status": "begun", "node": "n1"}]


@pytest.mark.parametrize(
    ("found", "options", "why"),
    [
        ((disk(),), {"serial": "M2"}, "this machine's serial number is M2, the order is for M1"),
        ((disk(),), {"serial": ""}, "not readable"),
        ((disk(),), {"order": ORDER | {"serial": " "}}, "names no serial number"),
        ((disk(serial="D2"),), {}, "there is no disk D1"),
        ((), {}, "there is no disk D1"),
        ((disk(), disk("/dev/vdb")), {}, "2 disks have the name D1"),
        ((disk(read_only=True),), {}, "write-protected"),
        ((disk(bytes=GIB),), {}, "has 1073741824 bytes"),
        ((disk(),), {"mounted": ("/dev/vda1",)}, "/dev/vda is in use"),
        ((disk(),), {"order": ORDER | {"disk": {"serial": "D1", "path": "/dev/vda"}}}, "or else by its path"),
        ((disk(),), {"order": ORDER | {"placeholder": "other"}}, "does not name the disk once"),
    ],
)
def test_a_wrong_machine_or_disk_stops_before_anything_is_written(
    machine: Machine, found: tuple[dict[str, Any], ...], options: dict[str, Any], why: str
) -> None:
    before = machine.instructions.read_text()
    assert machine.run("check", *found, **options) == 2
    # The instructions still have the placeholder, which is no disk.
    assert machine.instructions.read_text() == before
    (report,) = machine.reports
    assert report["status"] == "refused"
    assert why in report["reason"]
    # The installer then runs its error command, which does not replace the reported reason.
    assert machine.run("failed") == 0
    assert len(machine.reports) == 1


def test_an_installed_system_is_reported_with_its_host_keys(machine: Machine) -> None:
    assert machine.run("check", disk()) == 0
    keys = machine.folder / "etc/ssh"
    keys.mkdir(parents=True)
    (keys / "ssh_host_ed25519_key.pub").write_text("ssh-ed25519 AAAA root@installer\n")
    assert machine.run("installed") == 0
    report = machine.reports[-1]
    assert report.pop("seconds") >= 0
    assert report == {
        "status": "written", "disk": "/dev/vda", "disk_serial": "D1", "host_keys": ["ssh-ed25519 AAAA"],
        "node": "n1",
    }  # fmt: skip


def test_an_installation_that_does_not_end_well_is_reported_as_failed(machine: Machine) -> None:
    # First without a chosen disk, then without keys.
    assert machine.run("installed") == 3
    assert machine.run("check", disk()) == 0
    assert machine.run("installed") == 3
    assert [one["status"] for one in machine.reports] == ["failed", "begun", "failed"]
    assert "no ssh host keys" in machine.reports[-1]["reason"]


def test_an_installer_that_gives_up_reports_a_failure(machine: Machine) -> None:
    assert machine.run("check", disk()) == 0
    assert machine.run("failed") == 0
    assert machine.reports[-1]["status"] == "failed"
    assert "/var/log/installer" in machine.reports[-1]["reason"]


def test_the_archive_runs_as_it_is_unpacked(tmp_path: Path) -> None:
    """The program refuses this machine, because its serial number is not in the order, and reports that."""
    got: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            got.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(201)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        report = f"http://127.0.0.1:{server.server_port}/boot-reports"
        instructions = instructions_of(entry=ENTRY | {"serial": "no machine has this"}, report=report)
        done = subprocess.run(
            [sys.executable, packed(instructions, tmp_path), "check"],
            capture_output=True,
            text=True,
            check=False,
        )
    finally:
        server.shutdown()
        server.server_close()
    assert done.returncode == 2, done.stderr
    assert [one["status"] for one in got] == ["refused"]
    assert "the order is for no machine has this" in got[0]["reason"]
