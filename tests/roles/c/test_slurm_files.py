"""Test the files that role slurm makes from an inventory, and the prolog and epilog that it installs.

Slurm runs the prolog on a node before each job, and the epilog after it. A prolog that fails drains the node.
The tests compare the files with those in the folder golden, and run both scripts with a fake nvidia-smi.
RENEW_GOLDEN=1 writes the files of that folder again.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import yaml

from .conftest import FACTS, Renderer

pytestmark = pytest.mark.playbook

Files = dict[str, dict[str, dict[str, Any]]]
"""The files by case and path."""

GOLDEN = Path(__file__).with_name("golden")
# The hardware of two node models, and of a node without GPUs.
GB300 = {
    "bench_sku_gpus": 4,
    "slurm_sku_cpus": 144,
    "slurm_sku_sockets": 2,
    "slurm_sku_cores_per_socket": 72,
    "slurm_sku_threads": 1,
    "slurm_sku_real_memory_mb": 880000,
    "slurm_sku_gpu_type": "gb300",
}
H100 = {
    "bench_sku_gpus": 8,
    "slurm_sku_cpus": 224,
    "slurm_sku_sockets": 2,
    "slurm_sku_cores_per_socket": 56,
    "slurm_sku_threads": 2,
    "slurm_sku_real_memory_mb": 2000000,
    "slurm_sku_gpu_type": "h100",
}
PLAIN = {**H100, "bench_sku_gpus": 0}
GROUPS = {
    "rack-a": {"hosts": {"a1": GB300, "a2": GB300}},
    "rack-b": {"hosts": {"b1": H100, "b2": PLAIN}},
    "slurm_controller": {"hosts": {"head": {}}},
}
CLUSTER = {"slurm_controller_host": "head", "slurm_racks": ["rack-a", "rack-b"]}
CONTROLLER_UNITS = [f"{name}.service" for name in ("munge", "slurmctld", "slurmdbd", "mariadb")]
ASKED = ["slurm_cluster_files", "slurm_accounting_files", "slurm_node_files"]
OUTDATED = ["slurm_outdated", "slurm_controller_outdated"]


def system(root: Path, name: str) -> dict[str, Any]:
    """Return the role's values for a controller with this operating system."""
    known = yaml.safe_load((root / "roles/slurm/vars" / f"{name}.yml").read_text())
    return {"slurm_controller_os": known["slurm_os"]}


@pytest.fixture(scope="module")
def values(
    render: Renderer, root: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, dict[str, Any]]:
    """Return the values of ASKED and OUTDATED, by case."""
    scratch = str(tmp_path_factory.mktemp("scratch") / "jobs")
    cases: dict[str, dict[str, Any]] = {
        "two-racks": {**CLUSTER, **GB300, **system(root, "debian-12")},
        "alternative": {
            **CLUSTER,
            **GB300,
            **system(root, "ubuntu-24.04"),
            "slurm_racks": ["rack-a"],
            "slurm_cluster_name": "other",
            "slurm_partitions": [
                {"name": "all", "default": True},
                {"name": "a", "racks": ["rack-a"], "options": {"MaxTime": "1-0", "OverSubscribe": "NO"}},
            ],
            "slurm_topology": "none",
            "slurm_accounting": False,
            "slurm_proctrack": "proctrack/linuxproc",
            "slurm_task_plugins": ["task/none"],
            "slurm_cgroup": {"ConstrainCores": "no"},
            "slurm_slurmd_parameters": ["config_overrides"],
            "slurm_slurmd_options": ["-v"],
            "slurm_options": {"UnkillableStepTimeout": 180},
            "slurm_plugstack": ["required /opt/x.so"],
            "slurm_scratch": "",
            "slurm_prolog_gpu_timeout_s": 0,
        },
        "blocks": {**CLUSTER, **GB300, **system(root, "ubuntu-24.04"), "slurm_topology": "block"},
        "old": {**CLUSTER, **GB300, **system(root, "ubuntu-22.04")},
        "scripts": {
            **CLUSTER,
            **GB300,
            **system(root, "debian-12"),
            "slurm_scratch": scratch,
            "slurm_prolog_gpu_timeout_s": 1,
            "slurm_prolog_files": [f"{scratch}-plugin"],
            "slurm_prolog_mounts": ["/proc"],
        },
        "unmounted": {
            **CLUSTER,
            **PLAIN,
            **system(root, "debian-12"),
            "slurm_scratch": scratch,
            "slurm_prolog_mounts": ["/nothing/here"],
        },
        "mounted": {
            **CLUSTER,
            **PLAIN,
            **system(root, "debian-12"),
            "slurm_scratch": scratch,
            "slurm_prolog_mounts": ["/mnt/my data", "/mnt/v1.0"],
        },
        # Playbooks ended before their handlers restarted slurmd, and on the controller munge and slurmdbd.
        "outdated": {
            **CLUSTER,
            **GB300,
            **system(root, "debian-12"),
            "rackproof_node": {
                **FACTS,
                "unit_starts": {"munge.service": 20.0, "slurmd.service": 20.0},
                "changed_at": {"/etc/munge/munge.key": 10.0, "/etc/default/slurmd": 30.0},
            },
            "slurm_controller_state": {
                **FACTS,
                "unit_starts": dict.fromkeys(CONTROLLER_UNITS, 20.0),
                "changed_at": {
                    "/etc/munge/munge.key": 30.0,
                    "/etc/slurm/slurm.conf": 10.0,
                    "/etc/slurm/slurmdbd.conf": 30.0,
                    "/etc/mysql/mariadb.conf.d/60-rackproof-slurm.cnf": 10.0,
                },
            },
        },
    }
    # The role reads the controller's fact from hostvars, by the controller's name.
    groups = json.loads(json.dumps(GROUPS))
    groups["slurm_controller"]["hosts"]["head"] = {"rackproof_node": FACTS}
    return render("slurm", ASKED + OUTDATED, cases, groups)


@pytest.fixture(scope="module")
def files(values: dict[str, dict[str, Any]]) -> Files:
    """Return, by case, the files by their paths."""
    return {
        case: {file["path"]: file for asked in ASKED[:3] for file in found[asked]}
        for case, found in values.items()
    }


def test_services_that_a_killed_playbook_did_not_restart_are_found(values: dict[str, dict[str, Any]]) -> None:
    assert values["outdated"]["slurm_outdated"] == ["slurmd.service"]
    assert values["outdated"]["slurm_controller_outdated"] == ["munge.service", "slurmdbd.service"]
    assert values["two-racks"]["slurm_outdated"] == values["two-racks"]["slurm_controller_outdated"] == []


GOLDEN_FILES = [
    "slurm.conf",
    "gres.conf",
    "topology.conf",
    "cgroup.conf",
    "plugstack.conf",
    "slurmdbd.conf",
    "slurmd",
    "rackproof.conf",
    "prolog.sh",
    "epilog.sh",
]


@pytest.mark.parametrize("case", ["two-racks", "alternative"])
@pytest.mark.parametrize("name", GOLDEN_FILES)
def test_files_are_as_agreed(files: Files, case: str, name: str) -> None:
    (content,) = (file["content"] for path, file in files[case].items() if path.rpartition("/")[2] == name)
    golden = GOLDEN / case / name
    if os.environ.get("RENEW_GOLDEN"):
        golden.parent.mkdir(parents=True, exist_ok=True)
        golden.write_text(content)
    assert content == golden.read_text()


def test_no_line_of_slurm_conf_says_a_thing_twice(files: Files) -> None:
    for case, found in files.items():
        lines = [line.partition("=")[0] for line in found["/etc/slurm/slurm.conf"]["content"].splitlines()]
        keys = [
            key
            for key in lines
            if key and key[0] != "#" and key not in ("NodeName", "NodeSet", "PartitionName")
        ]
        assert len(keys) == len(set(keys)), case


def test_an_old_slurm_gets_what_it_knows(files: Files) -> None:
    assert "ProctrackType=proctrack/linuxproc" in files["old"]["/etc/slurm/slurm.conf"]["content"]
    assert "CgroupPlugin" not in files["old"]["/etc/slurm/cgroup.conf"]["content"]


def test_the_database_has_no_password_to_leak(files: Files) -> None:
    file = files["two-racks"]["/etc/slurm/slurmdbd.conf"]
    assert "StoragePass" not in file["content"]
    assert (file["mode"], file["owner"]) == ("0600", "slurm")


class Script:
    """A script that runs with fakes of some commands, such as nvidia-smi and logger, first on its path.

    Its lock, its temporary file and its shared memory are in the folder, because the epilog removes a user's
    files, and only root may write to /run.
    """

    def __init__(self, folder: Path, content: str, name: str) -> None:
        self.folder = folder
        self.memory = folder / "shm"
        self.memory.mkdir(exist_ok=True)
        self.path = folder / name
        self.variables: dict[str, str] = {}
        content = content.replace("/run/rackproof-scratch.lock", f"{folder}/scratch.lock")
        content = content.replace("/run/rackproof-prolog.", f"{folder}/answer.")
        # The temporary files of the tests may be in /dev/shm, too, so only this command is changed.
        content = content.replace("find /dev/shm ", f"find {self.memory} ")
        self.path.write_text(content.replace("PATH=/usr/local/sbin", f"PATH={folder}:/usr/local/sbin"))
        self.tool("logger", f'echo "$@" >>{folder}/said')
        self.tool("chown", "exit 0")  # only root may call the real one, and the tests need not run as root
        (folder / "said").write_text("")

    def tool(self, name: str, script: str) -> None:
        """Write a fake of a command that the script calls."""
        (self.folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (self.folder / name).chmod(0o755)

    def __call__(self, job: str = "7", user: str = str(os.getuid())) -> tuple[int, str]:
        """Run the script for a job of a user. Return its exit status and its messages to the system log."""
        done = subprocess.run(
            ["bash", self.path],
            env={"SLURM_JOB_ID": job, "SLURM_JOB_UID": user, **self.variables},
            check=False,
            capture_output=True,
        )
        return done.returncode, (self.folder / "said").read_text()


@pytest.fixture
def prolog(files: Files, tmp_path: Path) -> Script:
    """Return the prolog of a healthy node with four GPUs."""
    content = files["scripts"]["/etc/slurm/prolog.sh"]["content"]
    assert "  list_gpus 3\n" in content
    # The first call may take 1 s, which a busy test machine may exceed. The second call may take a minute.
    script = Script(tmp_path, content.replace("  list_gpus 3\n", "  list_gpus 60\n"), "prolog.sh")
    script.tool("nvidia-smi", 'for n in 0 1 2 3; do echo "GPU $n: NVIDIA GB300 (UUID: GPU-$n)"; done')
    scratch(files, "").parent.joinpath("jobs-plugin").write_text("")
    return script


def scratch(files: Files, job: str) -> Path:
    """Return the folder of a job."""
    content = files["scripts"]["/etc/slurm/epilog.sh"]["content"]
    (line,) = (line for line in content.splitlines() if line.startswith("scratch="))
    return Path(line.partition("=")[2]) / job


def test_the_prolog_makes_the_jobs_folder_and_the_epilog_removes_it(
    files: Files, prolog: Script, tmp_path: Path
) -> None:
    assert prolog() == (0, "")
    folder = scratch(files, "7")
    assert folder.stat().st_mode & 0o7777 == 0o700
    (folder / "left").mkdir()
    (folder / "left" / "behind").write_text("x")
    outside = tmp_path / "outside"
    outside.write_text("kept")
    (folder / "link").symlink_to(outside)
    epilog = Script(tmp_path, files["scripts"]["/etc/slurm/epilog.sh"]["content"], "epilog.sh")
    assert epilog("8") == (0, "")
    assert folder.exists()
    assert epilog("7") == (0, "")
    assert not folder.exists()
    assert outside.read_text() == "kept"


def test_the_epilog_of_a_users_last_job_removes_only_that_users_shared_memory(
    files: Files, prolog: Script, tmp_path: Path
) -> None:
    # Only root may give a file to another user, and the epilog cleans for no system user.
    is_root = os.getuid() < 1000
    user = "1234" if is_root else str(os.getuid())
    epilog = Script(tmp_path, files["scripts"]["/etc/slurm/epilog.sh"]["content"], "epilog.sh")
    own, other = epilog.memory / "own", epilog.memory / "other"
    for path in (own, other) if is_root else (own,):
        path.write_text("x")
    scratch(files, "").mkdir(exist_ok=True)
    running = scratch(files, "8")
    running.mkdir()
    if is_root:
        os.chown(own, 1234, -1)
        os.chown(running, 1234, -1)
    assert epilog("7", user) == (0, "")
    assert own.exists()
    running.rmdir()
    assert epilog("8", user) == (0, "")
    assert not own.exists()
    assert other.exists() == is_root


def test_a_job_that_begins_keeps_its_shared_memory(files: Files, prolog: Script, tmp_path: Path) -> None:
    """The epilog of a user's last job found no other job, and is about to remove the user's shared memory."""
    user = str(os.getuid()) if os.getuid() >= 1000 else "1234"
    epilog = Script(tmp_path, files["scripts"]["/etc/slurm/epilog.sh"]["content"], "epilog.sh")
    order, release = tmp_path / "order", tmp_path / "release"
    os.mkfifo(release)
    epilog.tool("find", f'case "$1" in {epilog.memory}) read x <{release}; echo removed >>{order};; esac')
    prolog.tool("install", f"echo made >>{order}")
    scratch(files, "").mkdir(exist_ok=True)
    with ThreadPoolExecutor(2) as pool:
        ended = pool.submit(epilog, "7", user)
        with open(release, "w") as stream:  # this waits until the epilog reads
            begun = pool.submit(prolog, "8", user)
            # The prolog has called nvidia-smi, and would make its folder now.
            time.sleep(1)
            assert not order.exists()
            stream.write("go\n")
        assert (ended.result(), begun.result()) == ((0, ""), (0, ""))
    assert order.read_text() == "removed\nmade\n"
    assert (tmp_path / "scratch.lock").stat().st_mode & 0o7777 == 0o600


@pytest.mark.parametrize(
    ("tool", "said"),
    [
        # The fake nvidia-smi, and the message. The second fake is late at first, and fails when it is called
        # again. The prolog of these tests first waits for 1 s.
        ("trap '' TERM INT HUP; sleep 60", "nvidia-smi did not answer within 1 s, nor then within 3 s"),
        ("[ -e $0.late ] && exit 4; touch $0.late; exec sleep 60", "nvidia-smi failed: "),
        (
            "echo 'Driver/library version mismatch'; exit 18",
            "nvidia-smi failed: Driver/library version mismatch",
        ),
        ("echo 'GPU 0: NVIDIA GB300'", "nvidia-smi lists 1 instead of 4 GPUs"),
        ("exit 0", "nvidia-smi lists 0 instead of 4 GPUs"),
    ],
)
def test_a_node_whose_gpus_are_not_well_takes_no_job(
    files: Files, prolog: Script, tool: str, said: str
) -> None:
    prolog.tool("nvidia-smi", tool)
    if "then within 3 s" in said:
        prolog.path.write_text(prolog.path.read_text().replace("list_gpus 60", "list_gpus 3"))
    rc, log = prolog("9")
    assert rc == 1
    assert f"job 9: {said}" in log
    assert not scratch(files, "9").exists()


def test_one_late_answer_drains_no_node(prolog: Script) -> None:
    listed = (prolog.folder / "nvidia-smi").read_text()
    prolog.tool("nvidia-smi", f"[ -e $0.late ] || {{ touch $0.late; exec sleep 60; }}\n{listed}")
    assert prolog() == (0, "")
    assert (prolog.folder / "nvidia-smi.late").exists()


def test_a_tool_that_is_stuck_in_the_driver_is_not_run_again(prolog: Script) -> None:
    prolog.tool("nvidia-smi", "echo x >>$0.runs; exec sleep 10")
    # Each signal succeeds and has no effect, as with a process that hangs in the driver.
    prolog.variables["BASH_FUNC_kill%%"] = "() { return 0; }"
    rc, log = prolog("9")
    assert rc == 1
    assert "nvidia-smi did not answer within 1 s, and cannot be killed" in log
    assert (prolog.folder / "nvidia-smi.runs").read_text() == "x\n"


def test_a_node_without_the_plugin_takes_no_job(files: Files, prolog: Script) -> None:
    scratch(files, "").parent.joinpath("jobs-plugin").unlink()
    rc, log = prolog("10")
    assert rc == 1
    assert "jobs-plugin is not there" in log


def test_a_node_without_its_mount_takes_no_job(files: Files, tmp_path: Path) -> None:
    script = Script(tmp_path, files["unmounted"]["/etc/slurm/prolog.sh"]["content"], "prolog.sh")
    assert script("11") == (
        1,
        "-t rackproof-prolog -p daemon.err -- job 11: nothing is mounted at /nothing/here\n",
    )


@pytest.mark.parametrize(
    ("mount", "rc", "message"),
    [
        ("/mnt/v1.0", 0, ""),
        ("/mnt/v1x0", 1, "-t rackproof-prolog -p daemon.err -- job 11: nothing is mounted at /mnt/v1.0\n"),
    ],
)
def test_the_prolog_takes_a_mount_point_literally(
    files: Files, tmp_path: Path, mount: str, rc: int, message: str
) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(f"head:/a /mnt/my\\040data nfs4 rw 0 0\nhead:/b {mount} nfs4 rw 0 0\n")
    content = files["mounted"]["/etc/slurm/prolog.sh"]["content"]
    script = Script(tmp_path, content.replace("/proc/self/mounts", str(mounts)), "prolog.sh")
    assert script("11") == (rc, message)


@pytest.mark.parametrize("name", ["prolog.sh", "epilog.sh"])
@pytest.mark.parametrize("job", ["", "../../etc", "7 8", "7;id"])
def test_a_job_id_that_is_none_removes_nothing(files: Files, tmp_path: Path, name: str, job: str) -> None:
    script = Script(tmp_path, files["scripts"][f"/etc/slurm/{name}"]["content"], name)
    assert script(job)[0] == 1


@pytest.mark.parametrize("case", ["two-racks", "alternative", "scripts", "unmounted"])
def test_scripts_call_nothing_of_slurm(files: Files, case: str) -> None:
    for name in ("prolog.sh", "epilog.sh"):
        code = [
            line
            for line in files[case][f"/etc/slurm/{name}"]["content"].splitlines()
            if not line.lstrip().startswith("#")
        ]
        assert not [
            line for line in code for word in ("scontrol", "squeue", "sinfo", "sacct") if word in line
        ]


def test_each_nvlink_domain_is_a_block(files: Files) -> None:
    assert "TopologyPlugin=topology/block\n" in files["blocks"]["/etc/slurm/slurm.conf"]["content"]
    assert files["blocks"]["/etc/slurm/topology.conf"]["content"].splitlines()[1:] == [
        "BlockName=rack-a Nodes=a1,a2",
        "BlockName=rack-b Nodes=b1,b2",
        "BlockSizes=2",
    ]
    assert "TopologyPlugin" not in files["alternative"]["/etc/slurm/slurm.conf"]["content"]
