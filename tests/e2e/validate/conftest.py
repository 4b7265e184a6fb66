"""Provide a fleet of four nodes on this machine, for the tests of playbooks.

A node is an interpreter that sees fake hardware (testrack/fakes), and Ansible reaches it by the connection
``local``. The Slurm cluster is a file, which fakes of scontrol, squeue, sinfo and srun read and write. So a
night with faults, drains and measurements takes seconds, and needs neither root nor a rack.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[3]
FAKES = ROOT / "testrack/fakes/hardware"
TOOLS = ("hardware", "nvidia-smi", "dmesg", "nv-fabricmanager", "modprobe")
NODES = ("n01", "n02", "n03", "n04")
# The program of the fakes of scontrol, squeue and sinfo. They answer from a file that tests may change.
SLURM = """#!{python}
import fcntl, json, os, sys
path = {state!r}
# One after the other, as Slurm's controller takes them: nodes are drained side by side.
lock = open(path + ".lock", "w")
fcntl.flock(lock, fcntl.LOCK_EX)
state = json.load(open(path))
tool, words = os.path.basename(sys.argv[0]), sys.argv[1:]
if state.get("down"):
    sys.exit("slurm_load_node error: Unable to contact slurm controller (connect failure)")
if tool == "squeue":
    # None of the jobs here is a night's, so a query by name finds none.
    for node, job in () if any(one.startswith("--name") for one in words) else state["jobs"].items():
        print(job, node)
elif tool == "sinfo":
    for node, reason in state["nodes"].items():
        print(f"{{node}}|batch|{{reason or 'none'}}")
elif "update" in words:
    values = dict(one.split("=", 1) for one in words if "=" in one)
    if values["State"] == "DRAIN":
        with open(path + ".drains", "a") as stream:
            print(values["NodeName"], file=stream)
    for node in values["NodeName"].split(","):
        state["nodes"][node] = values.get("Reason", "") if values["State"] == "DRAIN" else ""
    with open(path + ".new", "w") as stream:
        json.dump(state, stream)
    os.replace(path + ".new", path)
else:
    for node, reason in state["nodes"].items():
        drained = f"+DRAIN Reason={{reason}} [root@2026-11-22T00:00:00]" if reason else ""
        print(f"NodeName={{node}} Arch=x86_64 State=IDLE{{drained}}")
"""

PROBE_PYTHON = Path(__file__).with_name("probe_python.py")
# The interpreter for probes (validate_probe_python). It calls probe_python.py with the name of the node and
# the GPUs that nvidia-smi lists there.
MEASURE = """#!/bin/sh
export PROBED_NODE=${{SLURMD_NODENAME:-{node}}} PROBE_FAULTS={folder}/faults.json
export RACK_ROOT={folder}/$PROBED_NODE
export PROBED_GPUS=$({python} -I "$RACK_ROOT/usr/bin/nvidia-smi" -L | sed 's/.*UUID: //; s/)//' | paste -sd,)
exec {python} {program} "$@"
"""
# The program of the fake srun. It runs a job's script once for each node, and refuses drained and busy nodes.
# The file jobs.log has the nodes of each call.
SRUN = """#!{python}
import json, os, subprocess, sys
folder = {folder!r}
state = json.load(open(folder + "/slurm.json"))
nodes = next(one for one in sys.argv if one.startswith("--nodelist=")).split("=")[1].split(",")
with open(folder + "/jobs.log", "a") as log:
    log.write(" ".join(nodes) + chr(10))
if any(state["nodes"].get(one) or one in state["jobs"] for one in nodes):
    sys.exit("srun: error: Unable to allocate resources: Requested nodes are busy")
script = sys.stdin.read()
parts = [
    subprocess.Popen(
        ["bash", "-s"], stdin=subprocess.PIPE, text=True, env=dict(os.environ, SLURMD_NODENAME=one)
    )
    for one in nodes
]
for part in parts:
    part.stdin.write(script)
    part.stdin.close()
sys.exit(max(part.wait() for part in parts))
"""


@dataclass
class Fleet:
    """The fleet's folder, with methods that change hardware and Slurm, and run validate.yml."""

    folder: Path

    @property
    def results(self) -> Path:
        return self.folder / "results"

    @property
    def slurm(self) -> dict[str, dict[str, str]]:
        """Return Slurm's state: the reason of each node's drain ("" without one), and each node's job."""
        return json.loads((self.folder / "slurm.json").read_text())

    def set_slurm(self, **state: object) -> None:
        """Replace parts of Slurm's state. With ``down=True``, no command answers."""
        new = self.folder / "slurm.json.test"
        new.write_text(json.dumps(self.slurm | state))
        new.replace(self.folder / "slurm.json")

    def hardware(self, node: str, *words: str) -> None:
        """Switch a fault of a node's fake hardware (``--fault``), or boot the node (``--boot``)."""
        subprocess.run(
            [sys.executable, "-I", self.folder / node / "usr/bin/hardware", *words],
            env=os.environ | {"RACK_ROOT": str(self.folder / node)},
            check=True,
            capture_output=True,
        )

    def probes(self, **faults: object) -> None:
        """Set the faults of the probes by node, in the format of probe_python.py."""
        (self.folder / "faults.json").write_text(json.dumps(faults))

    @property
    def jobs(self) -> list[str]:
        """Return the nodes of each call of srun, in order, with blanks between them."""
        try:
            return (self.folder / "jobs.log").read_text().splitlines()
        except FileNotFoundError:
            return []

    def validate(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [
                Path(sys.executable).with_name("ansible-playbook"),
                "validate.yml",
                "-i",
                self.folder / "hosts.yml",
                *words,
            ],
            cwd=ROOT,
            # Slurm's host runs commands in a shell, which finds the fakes of Slurm here. Nodes have another
            # PATH.
            env=os.environ
            | {
                "ANSIBLE_NOCOLOR": "1",
                "COLUMNS": "300",
                "PATH": f"{self.folder}/ctl/usr/bin:{os.environ['PATH']}",
            },
            capture_output=True,
            text=True,
            timeout=180,
            check=False,
        )


def program(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


def make_node(root: Path, seed: str, kind: str = "gb300") -> None:
    """Make a node's folder with booted fake hardware. The seed determines serial numbers and UUIDs."""
    modules = root / "usr/lib/rack/modules"
    modules.mkdir(parents=True)
    (modules / "nvidia.json").write_text('{"version": "580.95.05", "depends": []}')
    for tool in TOOLS:
        (root / "usr/bin").mkdir(exist_ok=True, parents=True)
        (root / "usr/bin" / tool).symlink_to(FAKES)
    # These tools would show this machine's journal, units and clock, which are not the node's.
    for tool in ("journalctl", "systemctl", "timedatectl"):
        program(root / "usr/bin" / tool, "#!/bin/sh\n")
    for words in (
        ("hardware", "--init", kind, "--seed", seed),
        ("hardware", "--boot"),
        ("modprobe", "nvidia"),
    ):
        subprocess.run(
            [sys.executable, "-I", root / "usr/bin" / words[0], *words[1:]],
            env=os.environ | {"RACK_ROOT": str(root)},
            check=True,
            capture_output=True,
        )


@pytest.fixture(scope="session")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make the nodes once. Tests copy them."""
    folder = tmp_path_factory.mktemp("pristine")
    for name in NODES:
        make_node(folder / name, f"gb300-r01-{name}")
    return folder


@pytest.fixture
def fleet(pristine: Path, tmp_path: Path) -> Fleet:
    """Return four healthy nodes (n01 to n04), an unreachable one (gone), and their Slurm controller (ctl)."""
    folder = tmp_path / "fleet"
    shutil.copytree(pristine, folder, symlinks=True, ignore=shutil.ignore_patterns("dev"))
    hosts: dict[str, dict[str, object]] = {}
    for name in (*NODES, "ctl"):
        interpreter = folder / name / "python"
        path = f"{folder / name}/usr/bin:{os.environ['PATH']}"
        program(
            interpreter,
            f"#!/bin/sh\nexport RACK_ROOT={folder / name} PATH={path} SLURM_CONF={folder}/slurm.json\n"
            f'exec {sys.executable} "$@"\n',
        )
        hosts[name] = {"ansible_connection": "local", "ansible_python_interpreter": str(interpreter)}
    (folder / "slurm.json").write_text(json.dumps({"nodes": dict.fromkeys([*NODES, "gone"], ""), "jobs": {}}))
    for tool in ("scontrol", "squeue", "sinfo"):
        text = SLURM.format(python=sys.executable, state=str(folder / "slurm.json"))
        program(folder / "ctl/usr/bin" / tool, text)
    program(folder / "ctl/usr/bin/srun", SRUN.format(python=sys.executable, folder=str(folder)))
    program(folder / "ctl/usr/bin/scancel", "#!/bin/sh\n")
    (folder / "faults.json").write_text("{}")
    for name in NODES:
        text = MEASURE.format(python=sys.executable, folder=folder, node=name, program=PROBE_PYTHON)
        program(folder / name / "measure", text)
    hosts["gone"] = {"ansible_host": "192.0.2.1", "ansible_ssh_common_args": "-o ConnectTimeout=1"}
    inventory = {
        "all": {
            "vars": {
                "validate_results": str(folder / "results"),
                "slurm_controller_host": "ctl",
                "validate_max_drain_fraction": 0.2,
                "validate_probe_python": f"{folder}/{{{{ inventory_hostname }}}}/measure",
                "validate_probe_share": 1,
                "validate_probes": ["gemm", "training-step", "fabric"],
                # This machine need not be as large as a node.
                "validate_limits": {"memlock_bytes": 0, "shm_bytes": 0, "disk_free": 0.0, "tool_seconds": 60},
            },
            "hosts": {"ctl": hosts.pop("ctl")},
            "children": {
                "gpu_nodes": {"children": {"sku_gb300": None}},
                "sku_gb300": {
                    "vars": {
                        "bench_sku": "gb300",
                        "bench_sku_gpus": 4,
                        "validate_expect": {"nvlinks": 18, "power_limit_w": 1400},
                    },
                    "children": {"rack-one": {"hosts": hosts}},
                },
            },
        }
    }
    (folder / "hosts.yml").write_text(yaml.safe_dump(inventory))
    return Fleet(folder)
