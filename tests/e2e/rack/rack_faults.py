"""Switch faults of a node of the test rack on and off, and list the findings that validate.yml must report.

The tests of nights on the rack use this table and these functions. docs/extending/rack.md describes the
faults.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable

from testrack.tests.on_rack import CONTROLLER, Command

MACHINE = ("full-disk", "clock-skew", "dead-sshd")
"""Faults of the machine, which `rack.py fault` switches. The others are faults of the fake hardware, which a
program on the node switches."""
BLINDING = ("hung-nvidia-smi", "version-mismatch", "dead-sshd")
"""Faults that hide the state of the GPUs."""
ON_HCA = ("hca-port-down",)
"""Faults of a network card (HCA). The other faults of one part strike a GPU."""
FOUND = {
    "missing-gpu": ("gpu_missing", "xid_79"),
    "ecc-uncorrectable": ("ecc_sram_uncorrectable", "recovery_needed", "xid_95", "xid_154"),
    "row-remap-pending": ("remap_pending", "recovery_needed", "xid_48", "xid_154"),
    "xid": ("xid_119",),
    "link-trained-down": ("pcie_width",),
    "nvlink-down": ("nvlink_down", "xid_74"),
    "throttling": ("throttled", "slowed_down", "temperature"),
    "hca-port-down": ("port_down",),
    "hung-nvidia-smi": ("tool_hung",),
    "version-mismatch": ("no_driver",),
    "full-disk": ("disk_full",),
    "clock-skew": ("clock",),
    "dead-sshd": (),
}
"""Each fault of one part or of the node, with the codes of all findings with verdict fail that it causes."""
_BOOT_ID = "/proc/sys/kernel/random/boot_id"

Fault = tuple[str, str, frozenset[tuple[str, str]]]
"""Name of a fault, the words that switch it on, and the code and place of each finding that fails."""


def fault(name: str, number: int = 0) -> Fault:
    """Return a fault of the GPU or network port with a number, or of the node."""
    if name in ON_HCA:
        words, place = f"{name} --hca {number}", f"mlx5_{number}/1"
    elif name in MACHINE or name in BLINDING:
        words, place = name, ""
    else:
        words, place = f"{name} --gpu {number}", f"GPU {number}"
    words += " --number 119" if name == "xid" else ""
    return name, words, frozenset((code, place) for code in FOUND[name])


def break_(rack: Command, driver: Command, node: str, faults: Iterable[Fault]) -> None:
    """Switch faults on. One call on the node switches all those of the hardware."""
    some = list(faults)
    switch(rack, node, [words for name, words, _ in some if name not in MACHINE])
    for name, _, _ in some:
        assert name not in MACHINE or driver("fault", node, name).returncode == 0


def mend(rack: Command, driver: Command, node: str, machine: Collection[str] = MACHINE) -> None:
    """Switch off all faults of the hardware, and the named faults of the machine.

    The order matters. The node must first be reachable. The faults of the hardware end before the clock is
    corrected, because this restarts slurmd. A hung tool would then make slurmd wait, and would delay the
    next shutdown by 90 seconds.
    """
    for name in [one for one in machine if one == "dead-sshd"]:
        assert driver("fault", node, name, "--off").returncode == 0
    switch(rack, node, [f"{name} --off" for name in FOUND if name not in MACHINE])
    for name in [one for one in machine if one != "dead-sshd"]:
        assert driver("fault", node, name, "--off").returncode == 0


def switch(rack: Command, node: str, words: Iterable[str]) -> None:
    """Switch faults of the fake hardware, in one call."""
    done = rack(node, " && ".join(f"/opt/rack/hardware --fault {one}" for one in words) or "true")
    assert done.returncode == 0, f"{node}: {done.stderr}"


def reboot(rack: Command, nodes: Collection[str]) -> None:
    """Reboot nodes at the same time, and wait until each has answered Slurm."""
    before = {node: rack(node, f"cat {_BOOT_ID}; systemctl reboot").stdout for node in nodes}
    deadline = time.monotonic() + 90
    for node, boot in before.items():
        while (now := rack(node, f"cat {_BOOT_ID}").stdout) in ("", boot):
            assert time.monotonic() < deadline, node
            time.sleep(0.5)
        assert now
        # In a container, systemd sometimes cannot create a unit's control group at boot (219/CGROUP). A unit
        # that failed is therefore started once more.
        rack(
            node,
            "systemctl is-system-running --wait;"
            " failed=$(systemctl --failed --plain --no-legend | cut -d' ' -f1);"
            ' [ -z "$failed" ] || systemctl restart $failed',
        )
    # validate.yml does not pass a node that has not answered Slurm yet. Such a state ends with "*".
    while (
        "*" in (state := rack(CONTROLLER, f"sinfo -hN -n {','.join(nodes)} -o %T").stdout) or "down" in state
    ):
        assert time.monotonic() < deadline + 60, state
        time.sleep(0.5)


def of_slurm(code: str) -> bool:
    """Return whether a finding is about Slurm. Each fault that keeps slurmd from answering may cause some."""
    return code.startswith("slurm_") or code in ("service_slurmd", "service_munge")
