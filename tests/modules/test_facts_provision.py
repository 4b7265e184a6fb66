"""Test the subset ``provision`` of the module rackproof_facts, which gathers the facts that roles need.

provision.yml gathers them in one call for each node. Roles then compare the facts with the wanted state. The
tests show that the facts are right, also on a bare node, and that a tool which fails or hangs stops neither
the module nor the playbook.
"""

from __future__ import annotations

import importlib
import os
import sys
import time
import types
from pathlib import Path
from typing import Any

import pytest

from .conftest import Modules

# Each case starts processes. All of them together are too slow for `make check`.
pytestmark = pytest.mark.slow

# All keys of the facts.
ASKED = {"hostname", "os", "machine", "architecture", "container", "kernel", "kernel_command_line", "kernels"}
ASKED |= {"boot_id", "cores", "memory_bytes", "pci", "packages", "dpkg_broken", "dpkg_interrupted"}
ASKED |= {"dpkg_locked_by", "unattended_upgrades", "reboot_required", "reboot_required_by", "modules"}
ASKED |= {
    "silent_servers",
    "services",
    "mounts",
    "space",
    "groups",
    "commands",
    "files",
    "modes",
    "changed_at",
    "unit_starts",
    "imex_channel",
    "names",
    "tuning",
    "clock",
}


@pytest.fixture(scope="module")
def dpkg(root: Path) -> types.ModuleType:
    """Return the code that reads the state of dpkg, which several modules share."""
    import ansible.module_utils

    ansible.module_utils.__path__.append(str(root / "plugins" / "module_utils"))
    return importlib.import_module("ansible.module_utils.rackproof_dpkg")


@pytest.fixture(scope="module")
def node(root: Path) -> types.ModuleType:
    """Return the subset's code, for tests of the functions that read texts."""
    import ansible.module_utils

    ansible.module_utils.__path__.append(str(root / "plugins" / "module_utils"))
    return importlib.import_module("ansible.module_utils.rackproof_facts_provision")


def state(modules: Modules, **options: Any) -> dict[str, Any]:
    """Return the facts of this machine. Gathering them changes nothing."""
    result = modules("rackproof_facts", subset="provision", **options)
    assert result["changed"] is False
    return result["ansible_facts"]["rackproof_node"]


def test_this_machine(modules: Modules, tmp_path: Path) -> None:
    (tmp_path / "a.conf").write_text("text\n")
    (tmp_path / "a.conf").chmod(0o640)
    found = state(
        modules,
        check=True,
        files=[f"{tmp_path}/*.conf", f"{tmp_path}/gone"],
        paths=["/", str(tmp_path / "not" / "yet")],
        resolve=["localhost", "no-such-name.invalid"],
        commands={"echo": ["echo", "said"]},
        controller_epoch=time.time(),
    )
    assert found.keys() == ASKED
    assert found["packages"]["dpkg"]["version"]
    assert found["packages"]["dpkg"]["held"] is False
    assert found["os"]["id"] in ("debian", "ubuntu")
    assert found["architecture"] in ("amd64", "arm64")
    assert found["mounts"]["/proc"]["type"] == "proc"
    assert found["groups"]["root"] == []
    assert found["commands"]["echo"]["stdout"] == "said\n"
    assert found["commands"]["echo"]["rc"] == 0
    sha256 = "b9e68e1bea3e5b19ca6b2f98b73a54b73daafaa250484902e09982e07a12e733"
    assert found["files"][f"{tmp_path}/a.conf"] == sha256
    assert found["files"][f"{tmp_path}/gone"] is None
    assert found["modes"][f"{tmp_path}/a.conf"] == f"0640 {os.getuid()}:{os.getgid()}"
    assert abs(found["changed_at"][f"{tmp_path}/a.conf"] - time.time()) < 3600
    assert found["space"][str(tmp_path / "not" / "yet")]["free_bytes"] > 0
    assert "127.0.0.1" in found["names"]["localhost"] or "::1" in found["names"]["localhost"]
    assert found["names"]["no-such-name.invalid"] == []
    assert 0 <= found["clock"]["epoch"] - found["clock"]["asked_at"] < 60
    assert found["clock"]["asked_at"] <= found["clock"]["begin"] <= found["clock"]["epoch"]
    assert found["memory_bytes"] > 2**28


def test_tools_that_hang_are_a_fact(modules: Modules, tools: Any) -> None:
    for name in ("nvidia-smi", "systemctl", "lsmod", "lspci", "getent", "ofed_info", "apt-config"):
        tools(name, "sleep 300")
    found = state(modules, tool_timeout_s=1, resolve=["localhost"])
    assert found["commands"]["nvidia_smi_list"]["status"] == "hung"
    assert found["services"] == {}
    assert found["names"] == {"localhost": []}


def test_what_a_driverless_node_says(modules: Modules, tools: Any) -> None:
    said = "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."
    tools("nvidia-smi", f'echo "{said}"; exit 9')
    tools("lspci", 'echo "0000:19:00.0 0302: 10de:2901 (rev a1)"; echo "0000:00:02.0 0300: 8086:0046"')
    found = state(modules)
    assert found["commands"]["nvidia_smi_list"]["status"] == "no_driver"
    assert found["commands"]["nvidia_smi_list"]["rc"] == 9
    assert found["pci"] == [{"slot": "0000:19:00.0", "class": "0302", "vendor": "10de", "device": "2901"}]


def test_much_output_is_cut(modules: Modules) -> None:
    found = state(modules, commands={"much": [sys.executable, "-c", "print('x' * 100000)"]})
    assert len(found["commands"]["much"]["stdout"]) == 65536
    assert found["commands"]["much"]["truncated"] is True


# An error of apt's downloader, and the addresses that apt-get would read: two repositories of one server, one
# of another server, and a local folder.
DENIED = "E: Failed to fetch http://m/a/InRelease  Could not connect to m:80\nE: Download Failed\n"
URIS = """\
'http://m/a/dists/x/InRelease' m_a_dists_x_InRelease 0
'http://m/b/InRelease' m_b_InRelease 0
'https://n:8/c/InRelease' n_c_InRelease 0
'http://m/a/dists/x/main/binary-amd64/Packages.xz' m_a_Packages 0
'file:/srv/d/InRelease' srv_d_InRelease 0
"""
# The server answers, although it lacks the file.
OLD = "E: Failed to fetch http://m/a/dists/x/InRelease  404  Not Found"


# The list of addresses with apt-get's status, the answers of addresses (a text is an error), and the servers
# that do not answer with the reason. LIST is the path of the list of sources.
@pytest.mark.parametrize(
    ("listed", "answers", "expected"),
    [
        ((URIS, "ok"), {}, {}),
        ((URIS, "ok"), {"http://m/": DENIED}, {"http://m": DENIED[3:].partition("\n")[0]}),
        ((URIS, "ok"), {"http://m/a/dists/x/InRelease": OLD}, {}),
        (
            (URIS, "ok"),
            {"https://n:8/": "hung"},
            {"https://n:8": "Failed to fetch https://n:8/c/Release  No answer within 7 s"},
        ),
        (
            (URIS, "ok"),
            {"http": "absent"},
            dict.fromkeys(("http://m", "https://n:8"), "apt-helper is missing"),
        ),
        # If the list cannot be read, no server is known to answer. Without a list, there is no server.
        (("E: Malformed entry 1", "failed"), {}, {"LIST": "cannot read LIST: E: Malformed entry 1"}),
        (("", "hung"), {}, {"LIST": "cannot read LIST: hung"}),
        ((None, "ok"), {}, {}),
    ],
)
def test_servers_of_package_sources_that_do_not_answer(
    node: types.ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    listed: tuple[str | None, str],
    answers: dict[str, str],
    expected: dict[str, str],
) -> None:
    def ask(argv: list[str], timeout_s: float) -> dict[str, Any]:
        text, status = listed
        if argv[0] != "apt-get":
            text = next((said for url, said in answers.items() if argv[2].startswith(url)), "")
            status = text if text in ("hung", "absent") else "failed" if text else "ok"
        return {"status": status, "stdout": text, "stderr": text if status == "failed" else ""}

    path = tmp_path / "list.sources"
    if listed[0] is not None:
        path.write_text("Types: deb\n")
    monkeypatch.setattr(node, "ask", ask)
    found = node.silent_servers(str(path), 7)
    assert found.keys() == {str(path) if key == "LIST" else key for key in expected}
    for key, text in expected.items():
        assert found[str(path) if key == "LIST" else key].endswith(text.replace("LIST", str(path)))


NO_METHOD = "Reading...\nE: The method driver /usr/lib/apt/methods/https could not be found.\n"
LOGIN = "'https://user:pw@m.example/a/InRelease' m 0\n'http://user@n/b/InRelease' n 0\n"


# The status of apt-helper with its error, and what is reported of https://m.example.
@pytest.mark.parametrize(
    ("status", "said", "reported"),
    [
        ("failed", NO_METHOD, "E: The method driver /usr/lib/apt/methods/https could not be found."),
        ("failed", "Permission denied", "Permission denied"),
        ("failed", "E: Failed to fetch https://user:pw@m.example/a/Release  401\nE: x", "401"),
        ("failed", "", "No answer within 7 s"),
        ("hung", "W: one attempt failed", "No answer within 7 s"),
    ],
)
def test_the_error_of_apt_is_shown_without_logins(
    node: types.ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    status: str,
    said: str,
    reported: str,
) -> None:
    asked = []

    def ask(argv: list[str], timeout_s: float) -> dict[str, Any]:
        if argv[0] == "apt-get":
            return {"status": "ok", "stdout": LOGIN}
        asked.append(argv[2])
        return {"status": status, "stdout": "", "stderr": said}

    (tmp_path / "list.sources").write_text("Types: deb\n")
    monkeypatch.setattr(node, "ask", ask)
    found = node.silent_servers(str(tmp_path / "list.sources"), 7)
    assert set(found) == {"https://m.example", "http://n"}
    assert found["https://m.example"].endswith(f"https://m.example/a/Release  {reported}")
    assert "pw" not in str(found)
    # apt itself needs the login.
    assert "https://user:pw@m.example/a/Release" in asked


# A list of dpkg with a package on hold, a removed one, two incomplete ones, and one of another architecture.
STATUS = """\
Package: held
Status: hold ok installed
Architecture: amd64
Version: 1:2.3-4~bookworm1
Description: a package
 Version: of something else

Package: gone
Status: deinstall ok config-files
Architecture: all
Version: 1

Package: half
Status: install ok half-configured
Architecture: all
Version: 1

Package: again
Status: install reinstreq installed
Architecture: all
Version: 1

Package: held
Status: install ok installed
Architecture: i386
Version: 9
"""


def test_packages_are_read(dpkg: types.ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dpkg, "architecture", lambda: "amd64")
    (tmp_path / "status").write_text(STATUS)
    installed, broken = dpkg.packages(str(tmp_path / "status"))
    assert installed == {
        "held": {"version": "1:2.3-4~bookworm1", "held": True},
        "held:i386": {"version": "9", "held": False},
    }
    assert broken == ["again", "half"]


def test_a_system_without_dpkg_has_no_broken_package(dpkg: types.ModuleType, tmp_path: Path) -> None:
    # Rocky Linux, for example, has no dpkg. A lost or empty list of dpkg is another case, and an error.
    assert dpkg.packages(str(tmp_path / "none/status")) == ({}, [])
    # The list of a system with dpkg is empty here.
    (tmp_path / "status").write_text("")
    assert dpkg.packages(str(tmp_path / "status")) == ({}, ["all (dpkg's list is missing or empty)"])


def test_services(node: types.ModuleType) -> None:
    listed = (
        "munge.service loaded active running MUNGE authentication\n"
        "\u25cf slurmd.service loaded failed failed Slurm\n"
        "gone.service not-found inactive dead gone.service\n"
        "once.service loaded active exited Once\n"
    )
    files = "munge.service enabled enabled\nslurmd.service disabled enabled\nidle.service static -\n"
    assert node.service_units(listed, files) == {
        "munge.service": {"active": True, "enabled": True, "failed": False},
        "slurmd.service": {"active": False, "enabled": False, "failed": True},
        "idle.service": {"active": False, "enabled": False, "failed": False},
        "once.service": {"active": True, "enabled": False, "failed": False},
    }


def test_mounts(node: types.ModuleType) -> None:
    text = (
        "22 1 0:20 / / rw,relatime shared:1 - overlay overlay rw\n"
        "40 22 0:33 / /mnt/a\\040b ro,nosuid - nfs4 server:/data\\040set ro,vers=4.2\n"
        "41 22 0:34 / / rw - ext4 /dev/sda1 rw,errors=remount-ro\n"
        "not a line\n"
    )
    assert node.mounts_by_path(text) == {
        "/": {"source": "/dev/sda1", "type": "ext4", "options": "rw,errors=remount-ro"},
        "/mnt/a b": {"source": "server:/data set", "type": "nfs4", "options": "ro,nosuid,vers=4.2"},
    }


# Upgrades are unattended if the package is installed, apt's setting is 1, and the timer is active or enabled.
@pytest.mark.parametrize(
    ("installed", "setting", "unit", "says"),
    [
        (True, "1", {"active": True}, True),
        (True, "1", {"enabled": True}, True),
        (True, "0", {"active": True}, False),
        (True, "", {"active": True}, False),
        (False, "1", {"active": True}, False),
        (True, "1", {}, False),
    ],
)
def test_unattended_upgrades(
    node: types.ModuleType, installed: bool, setting: str, unit: dict[str, bool], says: bool
) -> None:
    found = node.upgrades_unattended(
        {"unattended-upgrades": {}} if installed else {},
        f'APT::Periodic "";\nAPT::Periodic::Unattended-Upgrade "{setting}";\n',
        {"apt-daily-upgrade.timer": unit},
    )
    assert found is says


def test_the_holder_of_the_lock_of_dpkg_is_named(dpkg: types.ModuleType, tmp_path: Path) -> None:
    import fcntl

    path = tmp_path / "lock"
    assert dpkg.lock_holder(str(path)) == ""
    with path.open("w") as stream:
        assert dpkg.lock_holder(str(path)) == ""
        fcntl.lockf(stream, fcntl.LOCK_EX)
        assert f"(process {os.getpid()})" in dpkg.lock_holder(str(path))


def test_modules_and_their_versions(node: types.ModuleType, tmp_path: Path) -> None:
    (tmp_path / "nvidia").mkdir()
    (tmp_path / "nvidia" / "version").write_text("580.95.05\n")
    listed = "Module                  Size  Used by\nnvidia  1 0\nib_core 2 1 mlx5_core\n"
    assert node.loaded_modules(listed, str(tmp_path)) == {"nvidia": "580.95.05", "ib_core": ""}


def test_devices_without_lspci(node: types.ModuleType, tmp_path: Path) -> None:
    slot = tmp_path / "0008:01:00.0"
    slot.mkdir()
    for name, value in {"class": "0x030200", "vendor": "0x10de", "device": "0x2941"}.items():
        (slot / name).write_text(value + "\n")
    found = [{"slot": "0008:01:00.0", "class": "0302", "vendor": "10de", "device": "2941"}]
    assert node.pci_devices("", str(tmp_path)) == found
    assert node.pci_devices("", str(tmp_path / "none")) == []


def test_the_start_of_a_unit_counts_from_the_boot(node: types.ModuleType) -> None:
    shown = (
        "Id=a.service\nActiveEnterTimestampMonotonic=2500000\n\n"
        "Id=never.service\nActiveEnterTimestampMonotonic=0\n\n"
        "ActiveEnterTimestampMonotonic=4000000\nId=mnt-a\\x2db.mount\n\nId=half.service\n"
    )
    assert node.unit_starts(shown, 1000.0, 10.0) == {"a.service": 992.5, "mnt-a\\x2db.mount": 994.0}
    assert node.unit_starts("", 1000.0, 10.0) == {}


def test_settings_of_a_file_of_sysctl(node: types.ModuleType, tmp_path: Path) -> None:
    text = "# c\n-vm.swappiness = 1\nnet.ipv4.conf.*.rp_filter=2\n;x=1\n  net/ipv4/x =3\n-y\n"
    assert node.sysctl_names(text) == ["vm.swappiness", "net.ipv4.conf.*.rp_filter", "net/ipv4/x"]
    for name, value in {"all": "1", "eth0": "1", "eth0.100": "0\t 0"}.items():
        (tmp_path / "net/ipv4/conf" / name).mkdir(parents=True)
        (tmp_path / "net/ipv4/conf" / name / "rp_filter").write_text(value + "\n")

    def value(name: str) -> str | None:
        return node.sysctl_value(node.sysctl_paths(name, str(tmp_path)))

    assert value("net.ipv4.conf.eth0/100.rp_filter") == value("net/ipv4/conf/eth0.100/rp_filter") == "0 0"
    assert value("net.ipv4.conf.*.rp_filter") == "0 0 | 1"
    assert value("net.ipv4.no") is None
    # Only root could read this file, and a test as root would read a file without rights, too.
    (tmp_path / "net/flush").write_text("1")
    (tmp_path / "net/flush").chmod(0o200)
    assert value("net.flush") == ""


def test_other_files_that_set_a_name_of_sysctl(node: types.ModuleType, tmp_path: Path) -> None:
    (tmp_path / "99-site.conf").write_text("vm.swappiness = 60\nvm.other = 1\n")
    (tmp_path / "README").write_text("vm.swappiness = 60\n")
    found = node.sysctl_files(["vm.swappiness", "vm.no"], (str(tmp_path),))
    assert found == {"vm.swappiness": [str(tmp_path / "99-site.conf")]}


def test_a_name_that_the_kernel_does_not_know_is_listed_if_the_role_sets_it(
    node: types.ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "90-rackproof.conf").write_text("net.rackproof_no = 1\nkernel.ostype = x\n")
    monkeypatch.setattr(node, "SYSCTL_FILE", str(tmp_path / "90-rackproof.conf"))
    monkeypatch.setattr(node, "SYSCTLS", ("kernel.rackproof_no", "kernel.panic"))
    found = node.kernel_tuning()["sysctl"]
    assert found.keys() == {"kernel.panic", "net.rackproof_no", "kernel.ostype"}
    assert (found["net.rackproof_no"], found["kernel.ostype"]) == (None, "Linux")


def test_a_file_of_the_future_restarts_a_unit_only_after_its_time(
    node: types.ModuleType, tmp_path: Path
) -> None:
    now = time.time()
    for name, at in (("past", now - 60), ("future", now + 3600)):
        (tmp_path / name).write_text("text\n")
        os.utime(tmp_path / name, (at, at))
    sums, modes, times = node.file_checksums([f"{tmp_path}/*"])
    assert len(sums) == len(modes) == 2
    assert list(times) == [str(tmp_path / "past")]


def test_the_driver_s_parameters_show_an_imex_channel(node: types.ModuleType) -> None:
    if Path(node.IMEX_CHANNEL).exists():
        pytest.skip("this machine has nvidia-smi")
    assert node.imex_channel("ImexChannelCount: 2048\nCreateImexChannel0: 1\n")
    assert not node.imex_channel("ImexChannelCount: 2048\nCreateImexChannel0: 0\n")
    assert not node.imex_channel("")
