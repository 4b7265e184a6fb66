"""Test role node_tuning: limits, sysctl, clock governor, kernel arguments, and sudo rights of benchmarks.

The role writes files on a node, and a profile is a named set of these settings. The tests render the files
for made-up nodes. They show that a container's kernel, which is the host's, is not changed, and that a user
of a benchmark may run no other command by sudo than those of MLPerf's run.sub.
"""

from __future__ import annotations

import fnmatch
import hashlib
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from .conftest import Renderer, node

ROLE = "node_tuning"
BY_OS = ""
SCRIPT = "/usr/local/sbin/rackproof-tuning"
SYSCTL = "/etc/sysctl.d/90-rackproof.conf"
GRUB = "/etc/default/grub.d/90-rackproof.cfg"
ASKED = ["node_tuning_files", "node_tuning_stale", "node_tuning_drift", "node_tuning_needs_reboot"]
ASKED += ["node_tuning_missing_arguments", "node_tuning_unfit_users", "node_tuning_packages_all"]
ASKED += ["node_tuning_leftover", "node_tuning_arguments", "node_tuning_unfit_arguments"]
TUNED = {
    "sysctl": {"kernel.numa_balancing": "0", "vm.nr_hugepages": "0"},
    "sysctl_files": {},
    "governors": ["performance"],
    "transparent_hugepages": "always [madvise] never",
}
# Kernel arguments. All but the last one are refused: no text, or with quotes, spaces or line ends.
UNFIT = {"spectre_v2": False, "init": 'x" rm', "iommu": "pt quiet", "a b": "c", "nosmt": "force\n", "numa": 0}

SUDOERS = "/etc/sudoers.d/rackproof-benchmarks"
# Entries that sudoers would not read as the name of one ordinary user or group.
NO_USERS = ["ALL", "a b", "x, y", "%sudo", "root", "%wheel", "#1000", "a\nALL", "!root", "+netgroup", ""]

pytestmark = pytest.mark.playbook


@pytest.fixture(scope="module")
def rendered(render: Renderer) -> dict[str, dict[str, Any]]:
    """Return the role's variables of each case, by its name."""
    profile = {"node_tuning_profile": "mlperf-0.6"}
    booted = "root=/dev/sda1 ro spectre_v2=off transparent_hugepage=madvise"
    other = node(tuning={**TUNED, "transparent_hugepages": "[always] madvise never"})
    both = {
        "node_tuning_mitigations": "auto,nosmt",
        "node_tuning_kernel_arguments": {"iommu": "pt", "quiet": ""},
    }
    own = {"fast": {"governor": "schedutil", "sysctl": {"vm.swappiness": 1}}}
    return render(
        {
            "metal": {"rackproof_node": node()},
            "container": {"rackproof_node": node(), "node_tuning_kernel": False, **profile},
            "profile": {"rackproof_node": node(), **profile},
            "tuned": {"rackproof_node": node(tuning=TUNED, kernel_command_line=booted), **profile},
            "half": {"rackproof_node": node(kernel_command_line="ro spectre_v2=off"), **profile},
            "always": {"rackproof_node": other, **profile},
            "pages": {"rackproof_node": node(), "node_tuning_hugepages": 1024, "node_tuning_kernel": False},
            "both": {"rackproof_node": node(), **both},
            "unfit": {"rackproof_node": node(), "node_tuning_kernel_arguments": UNFIT},
            "merged": {"rackproof_node": node(), "node_tuning_kernel_arguments": {"iommu": "pt"}, **profile},
            "mitigated": {"rackproof_node": node(), "node_tuning_mitigations": "off"},
            "unable": {"rackproof_node": node(tuning={**TUNED, "sysctl": {}, "governors": []})},
            "unknown": {
                "rackproof_node": node(
                    tuning={
                        **TUNED,
                        "sysctl": {"kernel.numa_balancing": None, "net.no": None, "vm.swappiness": "60"},
                        "sysctl_files": {"vm.swappiness": ["/etc/sysctl.d/99-site.conf"]},
                    }
                ),
                "node_tuning_sysctl": {"net.no": 1, "vm.swappiness": 1},
            },
            "own": {
                "rackproof_node": node(),
                "node_tuning_profile": "fast",
                "node_tuning_own_profiles": own,
                "node_tuning_persistence_mode": False,
                "node_tuning_memlock": "1024",
            },
            "sudo": {"rackproof_node": node(), "node_tuning_benchmark_users": ["mlperf", "%bench"]},
            "nosudo": {"rackproof_node": node(), "node_tuning_benchmark_users": NO_USERS},
            "sudo_left": {"rackproof_node": node(files={SUDOERS: "x"})},
            "left": {"rackproof_node": node(files={GRUB: "x", SYSCTL: "y"})},
        },
        ASKED,
    )


def test_files_of_a_machine(rendered: dict[str, dict[str, Any]]) -> None:
    files = rendered["metal"]["node_tuning_files"]
    assert "* - memlock unlimited\n" in files["/etc/security/limits.d/90-rackproof.conf"]
    assert "root - nofile 1048576\n" in files["/etc/security/limits.d/90-rackproof.conf"]
    assert "DefaultLimitMEMLOCK=infinity\n" in files["/etc/systemd/system.conf.d/90-rackproof.conf"]
    assert files[SYSCTL].splitlines()[1:] == ["-kernel.numa_balancing = 0"]
    assert "echo performance >" in files[SCRIPT]
    assert "nvidia-smi -pm 1" in files[SCRIPT]
    assert GRUB not in files
    said = json.loads(files["/etc/rackproof/tuning.json"])
    assert (said["profile"], said["kernel"], said["mitigations"]) == ("", True, "")


def test_a_shared_kernel_is_not_touched(rendered: dict[str, dict[str, Any]]) -> None:
    container = rendered["container"]
    files = container["node_tuning_files"]
    assert not [path for path in files if path.startswith("/etc/sysctl.d/")]
    kept = rendered["pages"]["node_tuning_files"]["/etc/rackproof/sysctl.conf"]
    assert "vm.nr_hugepages = 1024" in kept
    assert "/sys/" not in files[SCRIPT]
    assert "sysctl" not in files[SCRIPT]
    assert GRUB not in files
    assert container["node_tuning_drift"] == []
    assert container["node_tuning_needs_reboot"] is False
    said = json.loads(files["/etc/rackproof/tuning.json"])
    assert (said["profile"], said["kernel"]) == ("mlperf-0.6", False)


def test_the_profile_of_2019(rendered: dict[str, dict[str, Any]]) -> None:
    profile = rendered["profile"]
    added = [line for line in profile["node_tuning_files"][GRUB].splitlines() if line.startswith("GRUB_")]
    assert added == ['GRUB_CMDLINE_LINUX="$GRUB_CMDLINE_LINUX spectre_v2=off transparent_hugepage=madvise"']
    assert "echo madvise >" in profile["node_tuning_files"][SCRIPT]
    assert "echo performance >" in profile["node_tuning_files"][SCRIPT]
    assert "nr_hugepages" not in profile["node_tuning_files"][SYSCTL]
    assert profile["node_tuning_needs_reboot"] is True
    assert profile["node_tuning_drift"] == ["governor powersave", "kernel.numa_balancing 1"]
    assert rendered["always"]["node_tuning_drift"] == ["transparent hugepages [always] madvise never"]
    assert rendered["tuned"]["node_tuning_drift"] == []
    assert rendered["tuned"]["node_tuning_needs_reboot"] is False
    # One of the profile's two arguments is not enough.
    assert rendered["half"]["node_tuning_needs_reboot"] is True
    assert rendered["half"]["node_tuning_missing_arguments"] == ["transparent_hugepage=madvise"]


def test_arguments_of_the_kernel(rendered: dict[str, dict[str, Any]]) -> None:
    # An empty value leaves an argument out.
    assert rendered["both"]["node_tuning_arguments"] == ["mitigations=auto,nosmt", "iommu=pt"]
    merged = {"iommu=pt", "spectre_v2=off", "transparent_hugepage=madvise"}
    assert set(rendered["merged"]["node_tuning_arguments"]) == merged
    assert rendered["mitigated"]["node_tuning_arguments"] == ["mitigations=off"]
    assert rendered["metal"]["node_tuning_arguments"] == []
    assert rendered["container"]["node_tuning_arguments"] == []
    assert "mitigations=auto,nosmt iommu=pt" in rendered["both"]["node_tuning_files"][GRUB]
    assert rendered["mitigated"]["node_tuning_needs_reboot"] is True


def allows(text: str, words: str) -> bool:
    """Return whether sudo would permit a command: the program literally, its arguments by shell patterns."""
    aliases = re.findall(r"^Cmnd_Alias \w+ = (.*)$", text.replace("\\\n", " "), re.MULTILINE)
    commands = [one.strip() for alias in aliases for one in re.split(r"(?<!\\),", alias)]
    program, _, arguments = words.partition(" ")
    for command in commands:
        wanted, _, pattern = command.partition(" ")
        if program == wanted and fnmatch.fnmatchcase(arguments, re.sub(r"\\(.)", r"\1", pattern)):
            return True
    return False


@pytest.mark.parametrize(
    ("words", "allowed"),
    [
        # First commands of published run.sub files: drop the caches, set the GPU's clock (-lgc, MHz) and its
        # boost. Then commands that resemble them: other values, more arguments, or another program.
        ("/sbin/sysctl vm.drop_caches=3", True),
        ("/usr/bin/nvidia-smi -lgc 1410", True),
        ("/usr/bin/nvidia-smi -lgc 210,1980", True),
        ("/usr/bin/nvidia-smi -lgc 900", True),
        ("/usr/bin/nvidia-smi -rgc", True),
        ("/usr/bin/nvidia-smi boost-slider --vboost 1", True),
        ("/sbin/sysctl vm.drop_caches=1", False),
        ("/sbin/sysctl vm.drop_caches=3 kernel.core_pattern=|/tmp/x", False),
        ("/sbin/sysctl -p /tmp/x", False),
        ("/sbin/sysctl", False),
        ("/usr/bin/nvidia-smi -lgc 1410 -pl 100", False),
        ("/usr/bin/nvidia-smi -lgc", False),
        ("/usr/bin/nvidia-smi -lgc 1410 --filename=/etc/shadow", False),
        ("/usr/bin/nvidia-smi -r", False),
        ("/usr/bin/nvidia-smi", False),
        ("/usr/bin/nvidia-smi boost-slider --vboost 1 -r", False),
        ("/tmp/nvidia-smi -lgc 1410", False),
        ("/bin/sh -c id", False),
    ],
)
def test_a_job_s_user_may_do_by_sudo_what_run_sub_does_and_nothing_more(
    rendered: dict[str, dict[str, Any]], words: str, allowed: bool
) -> None:
    assert allows(rendered["sudo"]["node_tuning_files"][SUDOERS], words) is allowed


def test_users_of_sudo_are_a_list_of_names(rendered: dict[str, dict[str, Any]]) -> None:
    text = rendered["sudo"]["node_tuning_files"][SUDOERS]
    granted = [line.split(" ALL=")[0] for line in text.splitlines() if " ALL=" in line]
    assert granted == ["mlperf", "%bench"]
    assert "*" not in [letter for line in text.splitlines() if not line.startswith("#") for letter in line]
    modes = {one["path"]: one["mode"] for one in rendered["sudo"]["node_tuning_stale"]}
    assert modes[SUDOERS] == "0440"
    assert rendered["sudo"]["node_tuning_unfit_users"] == []
    assert set(rendered["nosudo"]["node_tuning_unfit_users"]) == set(NO_USERS)
    assert SUDOERS not in rendered["metal"]["node_tuning_files"]
    assert rendered["sudo_left"]["node_tuning_leftover"] == [SUDOERS]
    assert "sudo" in rendered["metal"]["node_tuning_packages_all"]


def test_what_is_no_argument_of_a_kernel_is_refused(rendered: dict[str, dict[str, Any]]) -> None:
    unfit = rendered["unfit"]["node_tuning_unfit_arguments"]
    assert set(unfit) == {"spectre_v2=False", 'init=x" rm', "iommu=pt quiet", "a b=c", "nosmt=force\n"}
    assert rendered["profile"]["node_tuning_unfit_arguments"] == []
    assert rendered["both"]["node_tuning_unfit_arguments"] == []


def test_a_kernel_without_numa_balancing_or_a_governor_is_no_drift(
    rendered: dict[str, dict[str, Any]],
) -> None:
    assert rendered["unable"]["node_tuning_drift"] == []


def test_a_setting_that_is_unknown_or_overridden_is_a_drift(rendered: dict[str, dict[str, Any]]) -> None:
    assert rendered["unknown"]["node_tuning_drift"] == [
        f"net.no, which its kernel does not know ({SYSCTL})",
        "vm.swappiness 60 (/etc/sysctl.d/99-site.conf sets it, too)",
    ]


def test_a_profile_of_ones_own(rendered: dict[str, dict[str, Any]]) -> None:
    files = rendered["own"]["node_tuning_files"]
    assert "echo schedutil >" in files[SCRIPT]
    assert "nvidia-smi" not in files[SCRIPT]
    assert "-vm.swappiness = 1\n" in files[SYSCTL]
    assert "DefaultLimitMEMLOCK=1024K\n" in files["/etc/systemd/system.conf.d/90-rackproof.conf"]


def test_what_an_earlier_run_left_goes(rendered: dict[str, dict[str, Any]]) -> None:
    assert rendered["left"]["node_tuning_leftover"] == [GRUB]


@pytest.mark.parametrize("case", ["metal", "container", "profile", "own"])
def test_the_script_is_one(rendered: dict[str, dict[str, Any]], case: str, tmp_path: Path) -> None:
    path = tmp_path / "script"
    path.write_text(rendered[case]["node_tuning_files"][SCRIPT])
    subprocess.run(["sh", "-n", path], check=True)


def test_modes_and_a_node_that_has_it_all(
    rendered: dict[str, dict[str, Any]], root: Path, tmp_path: Path
) -> None:
    modes = {one["path"]: one["mode"] for one in rendered["metal"]["node_tuning_stale"]}
    assert modes.pop(SCRIPT) == "0755"
    assert set(modes.values()) == {"0644"}
    sums = {
        path: hashlib.sha256(text.encode()).hexdigest()
        for path, text in rendered["metal"]["node_tuning_files"].items()
    }
    same = {"rackproof_node": node(files=sums)}
    said = "/etc/rackproof/tuning.json"
    applied = {"rackproof_node": node(files={**sums, "/run/rackproof/tuning.json": sums[said]})}
    older = {"rackproof_node": node(files={**sums, "/run/rackproof/tuning.json": "x"})}
    asked = ["node_tuning_stale", "node_tuning_leftover", "node_tuning_unapplied"]
    again = Renderer(root, tmp_path, ROLE, BY_OS)({"same": same, "applied": applied, "older": older}, asked)
    nothing = {"node_tuning_stale": [], "node_tuning_leftover": []}
    assert again["applied"] == {**nothing, "node_tuning_unapplied": False}
    # In `same`, the last run was killed before its handlers. In `older`, other values were applied last.
    assert again["same"] == {**nothing, "node_tuning_unapplied": True}
    assert again["older"] == {**nothing, "node_tuning_unapplied": True}
