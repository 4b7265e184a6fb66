"""Test the module rackproof_packages, which installs exact versions of packages with apt.

The module first lets apt simulate the change, and refuses a kernel or a removal that was not requested. It
also finishes an interrupted installation. Fakes of apt and dpkg answer from files here, so nothing is
installed. The tests show which commands are run, and that each failure of apt becomes a message with the
cause and the remedy.
"""

from __future__ import annotations

import importlib.util
import os
import time
import types
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from .conftest import Modules

# Each case starts processes. All of them together are too slow for `make check`.
pytestmark = pytest.mark.slow

# The output of a simulation that installs only the requested package.
SIMULATED = "Inst nvidia-open (580.95.05-1 NVIDIA:stable [amd64])\nConf nvidia-open (580.95.05-1)\n"


@pytest.fixture(scope="module")
def code(root: Path) -> types.ModuleType:
    """Return the module as a Python module, for tests of its functions."""
    import ansible.module_utils

    ansible.module_utils.__path__.append(str(root / "plugins" / "module_utils"))
    path = root / "plugins/modules/rackproof_packages.py"
    spec = importlib.util.spec_from_file_location("rackproof_packages", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Node:
    """A folder with fakes of apt and dpkg, which answer from files and log each call."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.answers("apt-get-update")
        self.answers("apt-get-simulate", SIMULATED)
        self.answers("apt-get-install")
        self.answers("apt-cache-madison")
        self.answers("apt-cache-show")
        for name in ("apt-get", "apt-cache", "apt-mark", "dpkg", "debconf-set-selections"):
            path = folder / name
            path.write_text(
                f'#!/bin/sh\necho "{name} $*" >> {folder}/calls\n'
                f"[ {name} != debconf-set-selections ] || cat >> {folder}/calls\n"
                'kind=none\nfor one in "$@"; do case "$one" in\n'
                "  update|madison|show) kind=$one ;; -s) kind=simulate ;;\n"
                "  install) [ $kind = simulate ] || kind=install ;;\nesac; done\n"
                f"answer={folder}/answer-{name}-$kind\n"
                'case "$*" in *" -s --fix-broken "*) answer=$answer-repair ;; esac\n'
                '[ -e "$answer" ] || exit 0\ncat "$answer"\nexit "$(cat "$answer.rc")"\n'
            )
            path.chmod(0o755)

    def answers(self, call: str, text: str = "", rc: int = 0) -> None:
        """Set the output and exit status of a call, for example apt-get-install."""
        (self.folder / f"answer-{call}").write_text(text)
        (self.folder / f"answer-{call}.rc").write_text(f"{rc}\n")

    def calls(self, containing: str = "") -> list[str]:
        """Return the logged calls that contain a text, in order."""
        path = self.folder / "calls"
        return [
            line for line in (path.read_text() if path.exists() else "").splitlines() if containing in line
        ]


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return Node(tmp_path)


def run(modules: Modules, **options: Any) -> dict[str, Any]:
    """Run the module, by default with one wanted package. Return its result."""
    options.setdefault("present", {"nvidia-open": "580.95.05-1"})
    options.setdefault("lock_timeout_s", 1)
    return modules("rackproof_packages", **options)


def test_without_work_no_tool_is_called(modules: Modules, node: Node) -> None:
    result = run(modules, present={"dpkg": "", "base-files": "*"}, absent=["no-such-package"])
    assert (result["changed"], result["packages"], result["held"]) == (False, {}, [])
    assert node.calls() == []


def test_only_a_hold_is_missing(modules: Modules, node: Node) -> None:
    result = run(modules, present={"dpkg": ""}, hold=True)
    assert result["held"] == ["dpkg"]
    assert node.calls() == ["apt-mark hold dpkg"]
    assert run(modules, present={"dpkg": ""}, hold=True, check=True)["held"] == ["dpkg"]


def test_lists_can_be_fetched_alone(modules: Modules, node: Node) -> None:
    assert run(modules, present={}, update="always")["changed"] is False
    assert len(node.calls(" update")) == 1


def test_a_prediction_changes_nothing(modules: Modules, node: Node) -> None:
    result = run(modules, check=True, hold=True)
    assert result["changed"] is True
    assert result["simulated"] is True
    assert result["packages"] == {"nvidia-open": [None, "580.95.05-1"]}
    assert result["diff"] == {"before": "", "after": "nvidia-open 580.95.05-1\n"}
    assert not node.calls(" update")
    assert all(" -s " in call for call in node.calls("apt-get"))


def test_a_question_fetches_the_lists_and_installs_nothing(modules: Modules, node: Node) -> None:
    result = run(modules, simulate=True, hold=True)
    assert (result["changed"], result["packages"], result["held"]) == (False, {}, [])
    assert len(node.calls(" update")) == 1
    assert all(" -s " in call or " update" in call for call in node.calls("apt-get"))
    assert not node.calls("apt-mark")


def test_a_question_about_what_is_there_asks_for_nothing(modules: Modules, node: Node) -> None:
    assert run(modules, simulate=True, present={"dpkg": ""})["changed"] is False
    assert node.calls() == []


@pytest.mark.parametrize(
    ("call", "text", "named"),
    [
        ("apt-get-update", "E: Failed to fetch http://m/x  Connection refused\n", "could not be fetched"),
        (
            "apt-get-simulate",
            "E: Unable to locate package nvidia-open\n",
            "no repository of this node has it",
        ),
        ("apt-get-simulate", "E: Version '9-1' for 'nvidia-open' was not found\n", "is not available"),
    ],
)
def test_a_question_refuses_what_cannot_be_installed(
    modules: Modules, node: Node, call: str, text: str, named: str
) -> None:
    node.answers(call, text, 100)
    result = run(modules, simulate=True)
    assert result["failed"] is True
    assert named in result["msg"]
    assert all(" -s " in one or " update" in one for one in node.calls("apt-get"))


def test_a_bare_node_predicts_without_lists(modules: Modules, node: Node) -> None:
    node.answers("apt-get-simulate", "E: Unable to locate package nvidia-open\n", 100)
    result = run(modules, check=True, present={"nvidia-open": "580.95.05-1", "dpkg": ""})
    assert result["changed"] is True
    assert result["simulated"] is False
    assert result["packages"] == {"nvidia-open": [None, "580.95.05-1"]}
    assert "fetches the lists first" in str(result["warnings"])
    # A real run that fetches no lists fails, too.
    refused = run(modules, check=True, update="never")
    assert "no repository of this node has it" in refused["msg"]


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("E: Packages were downgraded and -y was used without --allow-downgrades.\n", "older versions"),
        ("E: Unable to correct problems, you have held broken packages.\n", "cannot install these versions"),
        ("E: dpkg was interrupted, you must manually run 'dpkg --configure -a'\n", "dpkg was interrupted"),
    ],
)
def test_check_mode_refuses_what_new_lists_do_not_change(
    modules: Modules, node: Node, text: str, part: str
) -> None:
    node.answers("apt-get-simulate", text, 100)
    result = run(modules, check=True)
    assert result["failed"] is True
    assert part in result["msg"]


def test_check_mode_predicts_without_a_list_of_a_dependency(modules: Modules, node: Node) -> None:
    text = " enroot : Depends: jq but it is not installable\nE: Unable to correct problems, you have held x\n"
    node.answers("apt-get-simulate", text, 100)
    assert run(modules, check=True)["simulated"] is False


# Simulations that would also install a kernel, and remove two packages.
KERNEL = SIMULATED + "Inst linux-image-6.1.0-99-amd64 (6.1.999-1 NVIDIA:stable [amd64])\n"
REMOVAL = "Remv slurmd [22.05]\nRemv nvidia-driver [570]\n" + SIMULATED


@pytest.mark.parametrize("check", [False, True])
@pytest.mark.parametrize(
    ("simulated", "options", "parts"),
    [
        (KERNEL, {}, ["would install a kernel (linux-image-6.1.0-99-amd64)", os.uname().release]),
        (REMOVAL, {"allow_remove": ["nvidia-*"]}, ["would remove slurmd.", "by hand"]),
        (REMOVAL, {}, ["would remove nvidia-driver, slurmd."]),
    ],
)
def test_a_change_that_was_not_requested_is_refused(
    modules: Modules, node: Node, simulated: str, options: dict[str, Any], parts: list[str], check: bool
) -> None:
    node.answers("apt-get-simulate", simulated)
    result = run(modules, check=check, **options)
    assert result["failed"] is True
    assert result["msg"].startswith(f"{os.uname().nodename}: refused before anything was installed: ")
    assert all(part in result["msg"] for part in parts)
    assert all(" -s " in call or " update" in call for call in node.calls("apt-get"))


def test_a_kernel_may_be_asked_for(code: types.ModuleType) -> None:
    options = {"allow_kernel": True, "allow_remove": [], "remedy": "", "remedies": {}, "lock_timeout_s": 1}
    said = {"status": "ok", "stdout": KERNEL, "stderr": ""}
    changes = code.refuse_unrequested_changes(code.Apt(options), options, said, {"nvidia-open": ""}, [])
    assert changes["linux-image-6.1.0-99-amd64"] == "6.1.999-1"


@pytest.mark.parametrize(
    ("present", "refused"),
    [
        ("linux-image-6.1.0-99-amd64", False),
        ("linux-image-unsigned-6.1.0-99-amd64", False),
        ("linux-headers-6.1.0-99-amd64", True),
        ("linux-modules-6.1.0-99-amd64", True),
        ("linux-image-6.1.0-98-amd64", True),
        ("linux-image-amd64", True),
    ],
)
def test_a_kernel_that_was_installed_must_be_requested(
    code: types.ModuleType, monkeypatch: pytest.MonkeyPatch, present: str, refused: bool
) -> None:
    monkeypatch.setattr(code, "kernels", lambda: ["6.1.0-1-amd64", "6.1.0-99-amd64"])
    options = {"present": {present: ""}, "allow_kernel": False}
    with pytest.raises(code.RefusedError, match="neither requested") if refused else nullcontext():
        code.refuse_new_kernels(code.Apt(options), options, ["6.1.0-1-amd64"])


def test_a_missing_version_names_what_there_is(modules: Modules, node: Node) -> None:
    node.answers("apt-get-simulate", "E: Version '9.9-1' for 'nvidia-open' was not found\n", 100)
    node.answers(
        "apt-cache-madison",
        " nvidia-open | 580.95.05-1 | http://mirror/nvidia stable/main amd64 Packages\n"
        " nvidia-open | 570.172.08-1 | http://mirror/nvidia stable/main amd64 Packages\n",
    )
    result = run(modules, present={"nvidia-open": "9.9-1"}, remedy="Set x.")
    assert result["msg"] == (
        f"{os.uname().nodename}: nvidia-open 9.9-1 is not available: the repositories of this node have "
        "580.95.05-1, 570.172.08-1. Set x."
    )
    node.answers("apt-get-simulate", "E: Unable to locate package nvidia-open\n", 100)
    node.answers("apt-cache-madison")
    assert "no repository of this node has it" in run(modules)["msg"]


# The remedy for a missing package, by a pattern of its name.
REMEDIES = {"linux-headers-*": "Boot another kernel.", "nvidia-*": "Set the driver."}


@pytest.mark.parametrize(
    ("missing", "remedy"),
    [
        (("linux-headers-6.1.0-30-amd64",), "Boot another kernel."),
        (("nvidia-open",), "Set the driver."),
        (("nvidia-open", "nvidia-driver-cuda"), "Set the driver."),
        (("htop",), "Set x."),
        (("linux-headers-6.1.0-30-amd64", "nvidia-open"), "Boot another kernel. Set the driver."),
    ],
)
def test_the_remedy_is_that_of_the_package_that_is_missing(
    modules: Modules, node: Node, missing: tuple[str, ...], remedy: str
) -> None:
    text = "".join(f"E: Unable to locate package {name}\n" for name in missing)
    node.answers("apt-get-simulate", text, 100)
    node.answers("apt-cache-madison")
    result = run(modules, present=dict.fromkeys(missing, ""), remedy="Set x.", remedies=REMEDIES)
    assert result["msg"].endswith(f"no repository of this node has it. {remedy}")


def test_what_is_needed_in_one_version_comes_along(modules: Modules, node: Node) -> None:
    node.answers(
        "apt-cache-show",
        "Package: nvidia-open\nPre-Depends: dpkg (>= 1.17)\n"
        "Depends: nvidia-driver-cuda (= 580.95.05-1), a | b, nvidia-kernel-open-dkms:any (= 580.95.05-1), "
        "libc6 (>= 2)\n",
    )
    run(modules, check=True)
    (simulation,) = node.calls("apt-get")
    assert simulation.split("--allow-change-held-packages ")[1].split() == [
        "nvidia-driver-cuda=580.95.05-1",
        "nvidia-kernel-open-dkms=580.95.05-1",
        "nvidia-open=580.95.05-1",
    ]


def test_of_a_pattern_the_newest_is_taken(modules: Modules, node: Node) -> None:
    lines = [
        f" x | {version} | http://mirror/x stable/main amd64\n"
        for version in ("2:1.1-1", "1:1.0-2", "1:1.0-1")
    ]
    node.answers("apt-cache-madison", "".join(lines))
    run(modules, check=True, present={"x": "*:1.0-*"})
    assert "x=1:1.0-2" in node.calls(" -s ")[0].split()


def test_licences_are_accepted_before_the_installation(modules: Modules, node: Node) -> None:
    result = run(modules, debconf=["cudnn cudnn/license_preseed select ACCEPT"])
    # The fake installs nothing, which the module notices.
    assert "not installed as wanted: nvidia-open" in result["msg"]
    calls = node.calls()
    said = calls.index("cudnn cudnn/license_preseed select ACCEPT")
    (installed,) = [place for place, call in enumerate(calls) if " install " in call and " -s " not in call]
    assert said < installed


# A message of `apt-get update`, and a part of the module's message.
@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("E: The repository 'http://m/unsigned stable Release' is not signed.", "not signed by the key"),
        (
            "W: GPG error: http://m stable InRelease: The following signatures couldn't be verified",
            "not signed",
        ),
        ("W: Failed to fetch http://m/x  Could not connect to m:80 (198.18.0.1).", "does not answer"),
        ("W: Failed to fetch http://m/x  Temporary failure resolving 'm'", "does not resolve"),
        (
            "E: The repository 'http://m/x stable Release' does not have a Release file.",
            "is not where the node",
        ),
        ("E: Release file for http://m is not valid yet (invalid for another 3h)", "clock of the node"),
        ("Err:1 http://m stable/main amd64 Packages\n  Hash Sum mismatch", "being changed at this moment"),
        ("E: Failed to fetch http://m/x  503  Service Unavailable [IP: 198.18.0.1 80]", "error of its own"),
        ("E: Failed to fetch http://m/x  500  Internal Server Error [IP: 198.18.0.1 80]", "error of its own"),
        ("W: Failed to fetch http://m/x  429  Too Many Requests [IP: 198.18.0.1 80]", "error of its own"),
        ("E: Failed to fetch http://m/x  407  Proxy Authentication Required", "requires a login"),
        ("E: Failed to fetch http://m/x  401  Unauthorized [IP: 198.18.0.1 80]", "requires a login"),
        (
            "E: Failed to fetch http://m/x  Clearsigned file isn't valid, got 'NODATA' (does the network "
            "require authentication?)",
            "requires a login",
        ),
        (
            "E: Encountered a section with no Package: header\n"
            "E: Problem with MergeList /var/lib/apt/lists/m_dists_stable_main_binary-amd64_Packages\n"
            "E: The package lists or status file could not be parsed or opened.",
            "rm -r /var/lib/apt/lists/*",
        ),
        ("E: Unable to parse package file /var/lib/apt/lists/m_Packages (1)", "rm -r /var/lib/apt/lists/*"),
        ("E: Failed to fetch store:/x  Empty files can't be valid archives", "rm -r /var/lib/apt/lists/*"),
        (
            "E: Problem with MergeList /var/lib/dpkg/status\n"
            "E: The package lists or status file could not be parsed or opened.",
            "/var/backups/dpkg.status.*",
        ),
        ("E: Need to get 512 MB of archives, and 503 MB are there", "Output: E: Need"),
        ("E: Failed to write - write (28: No space left on device)", "disk is full"),
        ("E: something that nobody has seen before", "nobody has seen before"),
    ],
)
@pytest.mark.parametrize("rc", [0, 100])
def test_what_a_failed_update_reports(modules: Modules, node: Node, text: str, part: str, rc: int) -> None:
    # If a server is down, apt ends with status 0 and keeps its old lists. That is a failure, too.
    node.answers("apt-get-update", text + "\n", rc)
    result = run(modules)
    assert result["failed"] is True
    assert result["msg"].startswith(f"{os.uname().nodename}: The package lists could not be fetched. ")
    assert part in result["msg"]
    assert not node.calls(" install ")


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("E: Could not get lock /var/lib/dpkg/lock-frontend.", "Another process holds the lock"),
        (
            "cuDNN's licence was not accepted\ndpkg: error processing package x (--configure):\n"
            "E: Sub-process /usr/bin/dpkg returned an error code (1)",
            "licence was not accepted",
        ),
        ("E: Unable to correct problems, you have held broken packages.", "belong to one release"),
    ],
)
def test_what_a_failed_installation_reports(modules: Modules, node: Node, text: str, part: str) -> None:
    node.answers("apt-get-install", text + "\n", 100)
    result = run(modules)
    assert "apt could not install nvidia-open" in result["msg"]
    assert part in result["msg"]


def test_an_older_version_needs_leave(modules: Modules, node: Node) -> None:
    text = "E: Packages were downgraded and -y was used without --allow-downgrades.\n"
    node.answers("apt-get-simulate", text, 100)
    assert "replace packages with older versions" in run(modules)["msg"]
    run(modules, allow_downgrade=True)
    assert "--allow-downgrades" in node.calls("apt-get")[-1]


# An installed version, a pin with wildcards (empty for any version), and whether the version fits.
@pytest.mark.parametrize(
    ("version", "wanted", "fits"),
    [
        ("1.0-1", "", True),
        ("1.0-1", "1.0-1", True),
        ("1.0-1", "1.0-*", True),
        ("1:4.4.1-1", "*4.4.1*", True),
        ("1.0-2", "1.0-1", False),
        ("", "1.0-*", False),
        ("1.10-1", "1.1-*", False),
    ],
)
def test_versions(code: types.ModuleType, version: str, wanted: str, fits: bool) -> None:
    assert code.is_version(version, wanted) is fits


def test_interrupted_work_is_finished_first(
    code: types.ModuleType, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(code, "packages", lambda: ({"a": {"version": "1", "held": False}}, ["half"]))
    options = {"present": {"a": ""}, "absent": [], "hold": False, "update": "needed", "timeout_s": 60}
    options |= {"lock_timeout_s": 1, "allow_downgrade": False, "allow_kernel": False, "allow_remove": []}
    result = code.fulfil_request(options, check=False)
    assert (result["changed"], result["repaired"]) == (True, True)
    first, second, third = node.calls()
    assert first == "dpkg --force-confdef --force-confold --configure -a"
    assert " -s --fix-broken install" in second
    assert "--fix-broken install" in third
    assert " -s " not in third
    assert code.fulfil_request(options, check=True)["changed"] is True
    assert all(" -s " in call for call in node.calls()[3:])


@pytest.mark.parametrize("how", ["real", "check", "simulate"])
@pytest.mark.parametrize(
    ("simulated", "part"),
    [
        ("Inst linux-image-6.1.0-99-amd64 (6.1.999-1 Debian)\n", "install the kernel linux-image-6.1.0-99"),
        ("Remv slurmd [22.05]\nRemv old [1]\nRemv nvidia-x [1]\n", "would remove slurmd. Repair"),
    ],
)
def test_a_repair_makes_no_change_that_was_not_requested(
    code: types.ModuleType, node: Node, monkeypatch: pytest.MonkeyPatch, simulated: str, part: str, how: str
) -> None:
    monkeypatch.setattr(code, "packages", lambda: ({"a": {"version": "1", "held": False}}, ["half"]))
    node.answers("apt-get-simulate-repair", simulated)
    options = {"present": {"a": ""}, "absent": ["old"], "hold": False, "update": "needed", "timeout_s": 60}
    options |= {"lock_timeout_s": 1, "allow_downgrade": False, "allow_kernel": False}
    options["allow_remove"] = ["nvidia-*"]
    do = code.check_only if how == "simulate" else code.fulfil_request
    with pytest.raises(code.RefusedError, match="refused before anything was installed") as refusal:
        do(options, how == "check")
    assert part in str(refusal.value)
    assert all(" -s " in call for call in node.calls("apt-get"))


def test_a_kernel_of_the_repair_is_no_kernel_from_before(
    code: types.ModuleType, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(code, "packages", lambda: ({"a": {"version": "1", "held": False}}, ["half"]))
    found = [["6.1.0-1"], ["6.1.0-1", "6.1.0-99"]]
    monkeypatch.setattr(code, "kernels", lambda: found.pop(0) if len(found) > 1 else found[0])
    options = {"present": {"a": ""}, "absent": [], "hold": False, "update": "needed", "timeout_s": 60}
    options |= {"lock_timeout_s": 1, "allow_downgrade": False, "allow_kernel": False, "allow_remove": []}
    with pytest.raises(code.RefusedError, match=r"neither requested nor allowed: 6\.1\.0-99"):
        code.fulfil_request(options, check=False)


def test_work_of_another_process_is_waited_for_and_not_repaired(
    code: types.ModuleType, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = {"a": {"version": "1", "held": False}}
    states = [({}, ["a"]), ({}, ["a"]), (whole, []), (whole, [])]
    holders = ["apt-get (process 7)", "apt-get (process 7)", "", "", ""]
    monkeypatch.setattr(code, "packages", lambda: states.pop(0) if states else (whole, []))
    monkeypatch.setattr(code, "lock_holder", lambda: holders.pop(0) if holders else "")
    monkeypatch.setattr(code, "time", types.SimpleNamespace(monotonic=time.monotonic, sleep=lambda _: None))
    options = {"present": {"a": ""}, "absent": [], "hold": False, "update": "needed", "timeout_s": 60}
    options |= {"lock_timeout_s": 600, "allow_downgrade": False}
    result = code.fulfil_request(options, check=False)
    assert (result["changed"], result["repaired"]) == (False, False)
    assert not node.calls("--configure -a")


def test_dpkg_that_finds_its_lock_taken_tries_again(
    code: types.ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    locked = {
        "status": "failed",
        "stderr": "dpkg: error: dpkg frontend lock was locked by another process with pid 1067",
    }
    answers = [locked, locked, {"status": "ok"}]
    monkeypatch.setattr(code, "ask", lambda *_, **__: answers.pop(0))
    monkeypatch.setattr(code, "time", types.SimpleNamespace(monotonic=time.monotonic, sleep=lambda _: None))
    assert code.configure_all({"timeout_s": 60, "lock_timeout_s": 600})["status"] == "ok"
    answers[:] = [locked]
    assert code.configure_all({"timeout_s": 60, "lock_timeout_s": -1}) == locked


def test_a_journal_that_dpkg_left_is_finished_first(node: Node, modules: Modules, tmp_path: Path) -> None:
    updates = tmp_path / "updates"
    updates.mkdir()
    (updates / "0001").touch()
    node.answers(
        "apt-get-install", "E: dpkg was interrupted, you must manually run 'dpkg --configure -a'", 100
    )
    run(modules, _dpkg_updates=str(updates))
    assert node.calls("--configure -a")
