"""Provide nodes of fake hardware to the tests of health checks, with the answers gathered on them.

The fakes are those of the test rack (testrack/fakes). They run as processes, on files below a temporary
folder. test_fake_faults.py switches their faults on.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from .healthy import DRIVER, EPOCH, healthy_gathered
from .healthy_parts import SYSTEMD

FAKES = Path(__file__).resolve().parents[3] / "testrack/fakes/hardware"


@dataclass
class Rig:
    """A fake node. Its files are below ``root``, and its tools are links to the test rack's fake hardware."""

    root: Path

    def run(self, command: str, timeout_s: float = 30) -> dict[str, Any]:
        """Run a tool, and return its answer in the form of ``rackproof_tools.ask``."""
        words = command.split()
        link = self.root / "usr/bin" / words[0]
        link.parent.mkdir(parents=True, exist_ok=True)
        if not link.is_symlink():
            link.symlink_to(FAKES)
        begin = time.monotonic()
        child = subprocess.Popen(
            [sys.executable, "-I", str(link), *words[1:]],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "RACK_ROOT": str(self.root)},
        )
        try:
            out, err = child.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            child.kill()
            child.communicate()
            return {"status": "hung", "rc": None, "stdout": "", "stderr": "", "seconds": timeout_s}
        status = "ok" if child.returncode == 0 else "failed"
        if "Driver/library version mismatch" in out + err:
            status = "no_driver"
        seconds = time.monotonic() - begin
        return {"status": status, "rc": child.returncode, "stdout": out, "stderr": err, "seconds": seconds}

    def gather(self, *, boot_id: str = "boot-1", timeout_s: float = 30) -> dict[str, Any]:
        """Return what the module ``rackproof_facts`` would gather on the node."""
        tools = {
            "nvidia_smi_xml": self.run("nvidia-smi -q -x", timeout_s),
            "fabricmanager": self.run("nv-fabricmanager --version"),
        }
        more = {
            "kernel_log": self.run("dmesg"),
            "nvlink_status": self.run("nvidia-smi nvlink -s", timeout_s),
            "nvlink_errors": self.run("nvidia-smi nvlink -e", timeout_s),
            **SYSTEMD,
        }
        # A tool may take long only because the test machine is busy.
        for answer in (*tools.values(), *more.values()):
            answer["seconds"] = min(answer["seconds"], 1.0)
        answer = healthy_gathered(gpus=0)
        answer["facts"] |= {"boot_id": boot_id, "tools": tools}
        answer["facts"]["files"]["mountinfo"] += "30 22 0:40 / /shared rw - nfs4 nas:/export rw\n"
        answer["node"] |= {
            "clock": {"asked_at": EPOCH, "epoch": EPOCH + 0.2},
            "modules": {"nvidia": DRIVER, "nvidia_peermem": DRIVER},
        }
        answer["health"] |= {"epoch": EPOCH, "tools": more, "hca": self.hca()}
        return answer

    def hca(self) -> dict[str, Any]:
        """Return the ports that the fake ibstatus shows, in the form of /sys/class/infiniband."""
        shown: dict[str, Any] = {}
        device = ""
        for line in self.run("ibstatus")["stdout"].splitlines():
            key, _, value = (part.strip() for part in line.partition(":"))
            if line.startswith("Infiniband device"):
                device = line.split("'")[1]
                shown[device] = {"1": {"counters": {"symbol_error": 5, "port_rcv_errors": 10}}}
            elif device:
                name = {"phys state": "phys_state"}.get(key, key)
                shown[device]["1"][name] = value
        return shown


@pytest.fixture(scope="session")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Rig:
    """Return a healthy GB300 node, which tests copy."""
    rig = Rig(tmp_path_factory.mktemp("sound"))
    modules = rig.root / "usr/lib/rack/modules"
    modules.mkdir(parents=True)
    (modules / "nvidia.json").write_text(f'{{"version": "{DRIVER}", "depends": []}}')
    for command in ("hardware --init gb300 --seed gb300-r01-n01", "hardware --boot", "modprobe nvidia"):
        answer = rig.run(command)
        assert answer["rc"] == 0, answer
    return rig


@pytest.fixture
def rig(sound: Rig, tmp_path: Path) -> Rig:
    """Return a healthy node that only this test uses."""
    root = tmp_path / "node"
    # Device nodes cannot be copied, and no test opens one.
    shutil.copytree(sound.root, root, symlinks=True, ignore=shutil.ignore_patterns("dev"))
    return Rig(root)
