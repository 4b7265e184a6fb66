"""Test the subset ``health`` of the module rackproof_facts on a node of fake hardware.

validate.yml gathers this subset on each node, builds a snapshot from it, and checks the snapshot. The tests
show that one call has all that a snapshot needs. Most of them are about the kernel log, which has the XIDs
(error numbers of NVIDIA's driver): no fault may be lost or counted twice, whether journald or the
kernel's ring buffer has it.
"""

from __future__ import annotations

import importlib
import json
import os
import runpy
import shutil
import threading
import time
from pathlib import Path
from typing import Any

import ansible.module_utils
import pytest

from rackproof.nodes.answer_seal import answer_is_whole
from rackproof.nodes.health_checks import check_node
from rackproof.nodes.health_subjects import Expectation
from rackproof.nodes.snapshot import build_snapshot
from tests.nodes.health.conftest import FAKES, Rig

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[2]
TOOLS = ("nvidia-smi", "dmesg", "ofed_info", "nv-fabricmanager")


def sysfs(root: Path) -> Path:
    """Make a sysfs with one network card and the module nvidia, as a kernel shows them. Return it."""
    port = root / "class/infiniband/mlx5_0/ports/1"
    (port / "counters").mkdir(parents=True)
    for name, text in {
        "state": "4: ACTIVE",
        "phys_state": "5: LinkUp",
        "rate": "800 Gb/sec (4X XDR)",
    }.items():
        (port / name).write_text(text + "\n")
    (port / "counters/symbol_error").write_text("7\n")
    card = root / "bus/pci/devices/0000:03:00.0"
    card.mkdir(parents=True)
    for name, text in {"vendor": "0x15b3", "class": "0x020700", "current_link_width": "8"}.items():
        (card / name).write_text(text + "\n")
    (card / "max_link_width").write_text("16\n")
    (root / "module/nvidia").mkdir(parents=True)
    (root / "module/nvidia/version").write_text("580.95.05\n")
    return root


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Rig:
    """Return a node with four fake GB300 GPUs. Tests copy it."""
    rig = Rig(tmp_path_factory.mktemp("node"))
    folder = rig.root / "usr/lib/rack/modules"
    folder.mkdir(parents=True)
    (folder / "nvidia.json").write_text('{"version": "580.95.05", "depends": []}')
    for command in ("hardware --init gb300 --seed gb300-r01-n07", "hardware --boot", "modprobe nvidia"):
        assert rig.run(command)["rc"] == 0
    for tool in TOOLS:
        (rig.root / "usr/bin" / tool).exists() or (rig.root / "usr/bin" / tool).symlink_to(FAKES)
    # The machine's own journal is not the node's.
    quiet = rig.root / "usr/bin/journalctl"
    quiet.write_text("#!/bin/sh\necho '-- No entries --'\n")
    quiet.chmod(0o755)
    return rig


@pytest.fixture
def gather(modules: Any, node: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that runs the module on a copy of the node. Its ``rig`` changes the hardware."""
    root = tmp_path / "copy"
    shutil.copytree(node.root, root, symlinks=True, ignore=shutil.ignore_patterns("dev"))
    monkeypatch.setenv("RACK_ROOT", str(root))
    monkeypatch.setenv("PATH", f"{root}/usr/bin", prepend=":")
    made = sysfs(tmp_path / "sys")

    def run(**options: Any) -> dict[str, Any]:
        return modules("rackproof_facts", subset="health", sysfs=str(made), paths=["/"], **options)

    run.rig = Rig(root)  # type: ignore[attr-defined]
    return run


def test_one_call_gives_a_whole_snapshot(gather: Any) -> None:
    gather.rig.run("hardware --fault xid --gpu 1 --number 119")
    answer = gather(check=True)
    assert answer["changed"] is False
    seen = build_snapshot("n07", answer["gathered"], sku="gb300")
    assert (len(seen.gpus), {len(gpu.links) for gpu in seen.gpus}) == (4, {18})
    assert [(one.device, one.state, one.rate_gbps, one.counters) for one in seen.ports] == [
        ("mlx5_0", "active", 800.0, {"symbol_error": 7})
    ]
    assert seen.links["0000:03:00.0"]["max_link_width"] == "16"
    assert [(one.xid, one.uuid) for one in seen.xids] == [(119, seen.gpus[1].uuid)]
    assert seen.versions["module.nvidia"] == seen.versions["driver"] == "580.95.05"
    assert seen.mounts
    assert "/" in seen.mounts
    assert seen.memory_bytes > 1 << 30
    assert {one.code for one in check_node(seen, expected=Expectation(gpus=4))} >= {"xid_119", "link_width"}


def test_the_bridges_of_nvswitches_are_told_from_network_cards(gather: Any, tmp_path: Path) -> None:
    root = tmp_path / "sys"
    bridge = root / "bus/pci/devices/0000:05:00.0"
    shutil.copytree(root / "bus/pci/devices/0000:03:00.0", bridge)
    (bridge / "vpd").write_bytes(b"\x82\x1a\0ConnectX-7\x90\x0a\0SMDL=SW_MNG\x78")
    shutil.copytree(root / "class/infiniband/mlx5_0", root / "class/infiniband/mlx5_1")
    (root / "class/infiniband/mlx5_1/device").symlink_to(bridge)
    shutil.copytree(root / "class/infiniband/mlx5_0", root / "class/infiniband/mlx5_2")
    (root / "class/infiniband/mlx5_2/device").mkdir()
    # Product data that cannot be read say nothing, as without root.
    (root / "class/infiniband/mlx5_2/device/vpd").touch()
    seen = build_snapshot("n07", gather()["gathered"])
    assert [one.nvswitch for one in seen.ports] == [False, True, None]
    assert list(seen.links) == ["0000:03:00.0"]


def test_the_module_asks_for_inodes(gather: Any) -> None:
    found = os.statvfs("/")
    answer = gather()["gathered"]
    assert answer["health"]["disk"]["/"]["total_inodes"] == found.f_files
    assert answer["facts"]["hostname"] == os.uname().nodename


def test_a_controller_that_is_away_for_seconds_is_asked_again(gather: Any) -> None:
    assert build_snapshot("n", gather()["gathered"]).reaches_slurm is None
    scontrol = gather.rig.root / "usr/bin/scontrol"
    scontrol.write_text(
        "#!/bin/sh\n"
        "# A fake: down when it is asked first, up from then on.\n"
        'state=UP; [ -e "$0.asked" ] || state=DOWN; : >"$0.asked"\n'
        'echo "Slurmctld(primary) at ctl is $state"; [ $state = UP ]\n'
    )
    scontrol.chmod(0o755)
    assert build_snapshot("n", gather()["gathered"]).reaches_slurm is True


def test_messages_from_before_the_last_snapshot_are_not_repeated(gather: Any) -> None:
    gather.rig.run("hardware --fault xid --gpu 1 --number 31")
    answer = gather()["gathered"]
    assert [one.xid for one in build_snapshot("n", answer).xids] == [31]
    answer["health"]["since"] = answer["health"]["epoch"] + 3600
    assert build_snapshot("n", answer).xids == ()


def test_an_empty_journal_is_not_taken_for_a_silent_kernel(gather: Any) -> None:
    before = gather()["gathered"]["health"]["epoch"]
    gather.rig.run("hardware --fault xid --gpu 1 --number 79")
    answer = gather(since=before)["gathered"]
    # The fake's log has the seconds since the fake's boot. This machine has run for longer.
    answer["facts"]["files"]["uptime"] = "0"
    assert [one.xid for one in build_snapshot("n", answer).xids] == [79]
    # If the journal has older messages of the kernel, it counts as complete without new ones.
    (gather.rig.root / "usr/bin/journalctl").write_text(
        "#!/bin/sh\ncase \"$*\" in *--since*) ;; *) echo '1795000000.1 n kernel: Linux version';; esac\n"
    )
    answer = gather(since=before)["gathered"]
    assert answer["health"]["tools"]["kernel_log"]["stdout"] == ""


# The newest message of the journal, and the XIDs that must be found. The kernel's ring has an XID 90 s after
# the boot. The journal's time stamps are in microseconds since the boot.
@pytest.mark.parametrize(
    ("newest", "seen"),
    [
        ('{"_SOURCE_MONOTONIC_TIMESTAMP":"50000000","MESSAGE":"eth0: link up"}', [79]),
        # The journal has no message of this boot.
        ("", [79]),
        # The journal has all messages, so the ring repeats them.
        ('{"_SOURCE_MONOTONIC_TIMESTAMP":"90000000","MESSAGE":"NVRM: Xid"}', []),
        # The message has no time stamp of the kernel, so the two logs cannot be compared.
        ('{"MESSAGE":"eth0: link up"}', []),
    ],
)
def test_what_a_stuck_journal_does_not_take_is_read_from_the_kernel(
    gather: Any, newest: str, seen: list[int]
) -> None:
    programs = gather.rig.root / "usr/bin"
    line = "1795000000.1 n kernel: eth0: link up"
    (programs / "journalctl").write_text(
        f"#!/bin/sh\ncase \"$*\" in *json*) echo '{newest}';; *) echo '{line}';; esac\n"
    )
    fault = "[   90.000000] NVRM: Xid (PCI:0008:06:00): 79, GPU has fallen off the bus."
    # dmesg is a link to the program of all fakes, which must not be overwritten.
    (programs / "dmesg").unlink()
    (programs / "dmesg").write_text(f"#!/bin/sh\necho '[    0.000000] Linux version'; echo '{fault}'\n")
    (programs / "dmesg").chmod(0o755)
    answer = gather()["gathered"]
    assert [one.xid for one in build_snapshot("n", answer).xids] == seen


OLDEST = '{"_SOURCE_MONOTONIC_TIMESTAMP":"%d","__REALTIME_TIMESTAMP":"1795000050000000"}'


# Seconds from the boot to the journal's oldest message, and to the ring's. The XID is in the ring, at 30 s or
# with the ring's first message. A journal removes its oldest messages if its space is used up.
@pytest.mark.parametrize(
    ("oldest_s", "ring_s", "seen", "is_lost"),
    [
        # The journal has all of this boot, so the ring repeats it.
        (0, 0, [], False),
        # The ring still has the fault that the journal lost.
        (50, 0, [79], False),
        # The ring, too, lacks the first messages, so the log is incomplete.
        (500, 20, [79], True),
        (500, 600, [], True),
    ],
)
def test_what_the_journal_lost_is_read_from_the_kernel(
    gather: Any, oldest_s: int, ring_s: int, seen: list[int], is_lost: bool
) -> None:
    programs = gather.rig.root / "usr/bin"
    newest, oldest = (OLDEST % (seconds * 1_000_000) for seconds in (900, oldest_s))
    # The journal is long, and the gatherer reads only its beginning.
    (programs / "journalctl").write_text(
        f"#!/bin/sh\ncase \"$*\" in *'-n 1'*json*) echo '{newest}';;"
        f" *json*) echo '{oldest}'; exec yes '{newest}';; *) echo '1795000900.1 n kernel: link up';; esac\n"
    )
    fault = f"[{max(ring_s, 30):5}.000000] NVRM: Xid (PCI:0008:06:00): 79, GPU has fallen off the bus."
    (programs / "dmesg").unlink()
    (programs / "dmesg").write_text(f"#!/bin/sh\necho '[{ring_s:5}.000000] Linux'; echo '{fault}'\n")
    (programs / "dmesg").chmod(0o755)
    answer = gather(tool_timeout_s=20)["gathered"]
    assert answer["health"]["tools"]["kernel_log"]["oldest"] == oldest
    # This machine may be a container, which is younger than its kernel.
    answer["node"]["container"] = False
    state = build_snapshot("n", answer)
    assert [one.xid for one in state.xids] == seen
    assert ("kernel_log" in state.truncated) == is_lost


# Without an earlier snapshot (0), only this boot is read.
@pytest.mark.parametrize(
    ("since", "which"), [(0, "-k"), (1795000000, "--since=@1795000000 _TRANSPORT=kernel")]
)
def test_since_the_last_snapshot_earlier_boots_are_read_too(gather: Any, since: int, which: str) -> None:
    program = gather.rig.root / "usr/bin/journalctl"
    program.write_text('#!/bin/sh\necho "1795000000.1 n kernel: $*"\n')
    health = gather(since=since)["gathered"]["health"]
    said = health["tools"]["kernel_log"]["stdout"]
    assert {one for one in said.split() if one in ("-k", "_TRANSPORT=kernel") or "since" in one} == set(
        which.split()
    )
    # Seconds since 1970 at which this machine was booted.
    assert 0 < health["booted"] <= time.time()


@pytest.mark.parametrize("lines", [20_000, 200_000])
def test_no_number_of_other_messages_hides_a_fault(gather: Any, lines: int) -> None:
    program = gather.rig.root / "usr/bin/journalctl"
    fault = "1795000000.1 n kernel: NVRM: Xid (PCI:0008:06:00): 79, GPU has fallen off the bus."
    message = "1795000001.1 n kernel: veth1: entered promiscuous mode"
    program.write_text(
        f"#!/usr/bin/env python3\nprint({fault!r})\nfor _ in range({lines}): print({message!r})\n"
    )
    answer = gather(since=1794999999)["gathered"]
    log = answer["health"]["tools"]["kernel_log"]
    assert (log["lines"], log["truncated"]) == (lines + 1, False)
    assert [event.xid for event in build_snapshot("n", answer).xids] == [79]


def test_more_faults_than_an_answer_holds_are_not_kept_back(gather: Any) -> None:
    program = gather.rig.root / "usr/bin/journalctl"
    fault = "1795000000.1 n kernel: NVRM: Xid (PCI:0008:06:00): 31, " + "x" * 400
    program.write_text(f"#!/usr/bin/env python3\nfor _ in range(20000): print({fault!r})\n")
    state = build_snapshot("n", gather(since=1794999999)["gathered"])
    assert "kernel_log" in state.truncated


def test_a_hung_driver_is_bounded_and_asked_once(gather: Any) -> None:
    gather.rig.run("hardware --fault hung-nvidia-smi")
    answer = gather(tool_timeout_s=1)["gathered"]
    asked = {"nvidia_smi_xml": answer["facts"]["tools"]["nvidia_smi_xml"], **answer["health"]["tools"]}
    assert asked["nvidia_smi_xml"]["status"] == "hung"
    assert {asked[name]["status"] for name in ("nvlink_status", "nvlink_errors")} == {"not_asked"}
    assert "tool_hung" in {
        one.code for one in check_node(build_snapshot("n", answer), expected=Expectation(gpus=4))
    }


def test_a_mount_that_answers_late_disturbs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()
    ansible.module_utils.__path__.append(str(ROOT / "plugins/module_utils"))
    health = importlib.import_module("ansible.module_utils.rackproof_facts_health")

    class Path(str):
        """A path whose late answer comes while the result is made."""

        def __format__(self, _: str) -> str:
            release.set()
            while any("late" in thread.name for thread in threading.enumerate()):
                time.sleep(0.01)
            return str(self)

    def usage(path: str) -> dict[str, int]:
        if "late" in path:
            threading.current_thread().name = path
            release.wait()
        return {"total": 1}

    monkeypatch.setattr(health, "disk_usage", usage)
    found, hung = health.disk_usages([Path("/a"), Path("/late-1"), Path("/late-2"), Path("/b")], 0.3)
    assert set(found) == {"/a", "/b"}
    assert set(hung) == {"statfs /late-1", "statfs /late-2"}


def test_the_answer_is_sealed_as_the_controller_reads_it() -> None:
    # The module and the package each have this function, because nodes do not have the package.
    tools = runpy.run_path(str(ROOT / "plugins/module_utils/rackproof_tools.py"))
    for answer in (
        {"names": "a\udcff \ufffd \U0001f600", "numbers": [1.5, 1e-7, 3, True, None]},
        {"facts": {"tools": {"x": {"stdout": "\x00\x1b[2J\u202e"}}}, "health": {"epoch": 1795000000.123456}},
    ):
        sealed = tools["sealed"](answer)
        assert answer_is_whole(json.loads(json.dumps(sealed)))
        assert not answer_is_whole({**sealed, "more": 1})
