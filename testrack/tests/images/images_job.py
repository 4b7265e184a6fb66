"""Run run.sub of a fake image without Slurm or containers. A fake srun starts its tasks on this machine."""

from __future__ import annotations

import os
import socket
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
IMAGES = ROOT / "testrack/images"
# Fakes of srun and, in PROGRAMS, of other programs, with the options that run.sub uses.
SRUN = r"""
import os, subprocess, sys, threading
words, options, label = sys.argv[1:], {}, False
while words and words[0].startswith("-"):
    word = words.pop(0)
    if word == "-l":
        label = True
    elif word.startswith("--"):
        name, _, value = word[2:].partition("=")
        options.setdefault(name, []).append(value)
    elif len(word) > 2:
        options[{"-N": "nodes", "-n": "ntasks"}[word[:2]]] = [word[2:]]
    else:
        options[{"-N": "nodes", "-n": "ntasks"}[word]] = [words.pop(0)]
nodes = os.environ["SLURM_JOB_NODELIST"].split(",")
count = int(options.get("ntasks", options.get("nodes", [len(nodes)]))[0])
nodes = nodes[:count]
root = os.environ["STANDIN_ROOT"]
for mount in ",".join(options.get("container-mounts", [])).split(","):
    if mount:
        source, target = mount.split(":")[:2]
        place = root + target
        os.makedirs(os.path.dirname(place), exist_ok=True)
        if os.path.islink(place):
            os.unlink(place)
        if not os.path.isdir(place):
            os.symlink(source, place)
inside = "container-image" in options
words = [root + word if inside and word.startswith("/results/") else word for word in words]
tasks = []
for rank in range(count):
    own = dict(os.environ, SLURM_PROCID=str(rank), SLURM_NTASKS=str(count), SLURMD_NODENAME=nodes[rank])
    own["MASTER_ADDR"] = "127.0.0.1"
    tasks.append(subprocess.Popen(words, env=own, cwd=root + options.get("container-workdir", [""])[0],
                 stdout=subprocess.PIPE, stderr=subprocess.STDOUT))
def relay(rank, task):
    for line in task.stdout:
        sys.stdout.buffer.write(b"%2d: " % rank + line if label else line)
        sys.stdout.buffer.flush()
threads = [threading.Thread(target=relay, args=pair) for pair in enumerate(tasks)]
for one in threads:
    one.start()
limit = float(options.get("time", ["60"])[0]) * float(os.environ.get("SECONDS_PER_MINUTE", "60"))
worst = 0
for rank, task in enumerate(tasks):
    try:
        status = task.wait(timeout=limit)
    except subprocess.TimeoutExpired:
        print(f"slurmstepd: error: *** STEP 7.5 ON {nodes[0]} CANCELLED AT 2026-01-01T00:00:00 "
              "DUE TO TIME LIMIT ***", flush=True)
        for other in tasks:
            other.terminate()
        status = 1
    if status < 0:
        print(f"srun: error: {nodes[rank]}: task {rank}: Killed", flush=True)
    elif status and status != 143:
        print(f"srun: error: {nodes[rank]}: task {rank}: Exited with exit code {status}", flush=True)
    worst = max(worst, abs(status))
for one in threads:
    one.join()
sys.exit(worst)
"""
PROGRAMS = {
    "scontrol": '#!/bin/bash\necho "$3" | tr , "\\n"\n',
    "hostname": '#!/bin/bash\necho "${SLURMD_NODENAME:-$(uname -n)}"\n',
}


def free_port() -> int:
    """Return a port that nothing listens on."""
    with socket.socket() as one:
        one.bind(("", 0))
        return int(one.getsockname()[1])


@dataclass
class Job:
    """The files and the output of an ended job."""

    status: int
    output: str
    logs: list[Path]
    folder: Path


@dataclass
class Cluster:
    """A folder with fake programs, an unpacked image for each benchmark, and staged data."""

    folder: Path
    staged: Path
    data: dict[str, dict[str, str]] = field(default_factory=dict)

    def image(self, benchmark: str) -> Path:
        """Return the root of a benchmark's image, without Debian's packages."""
        import build

        root = self.folder / f"image-{benchmark}"
        folder = next(place for place, name in build.IMAGES.values() if name == benchmark)
        if not root.is_dir():
            for path, (content, mode) in build.own_files(folder, benchmark).items():
                if not path.endswith("/"):
                    (root / path).parent.mkdir(parents=True, exist_ok=True)
                    (root / path).write_bytes(content)
                    (root / path).chmod(mode)
        return root

    def place(self, benchmark: str) -> Path:
        """Return the folder of the benchmark's scripts."""
        return next((self.image(benchmark) / "workspace").iterdir())

    def run(self, benchmark: str, config: str, nodes: int, **variables: str) -> Job:
        """Source a config and run run.sub as sbatch would. ``variables`` are added to the environment."""
        logs = self.folder / f"logs-{benchmark}-{free_port()}"
        names = ",".join(f"n{number:02}" for number in range(1, nodes + 1))
        environment = {
            **self.environment(),
            **self.data[benchmark],
            "STANDIN_ROOT": str(self.image(benchmark)),
            "CONT": "rack:5000/fake:1",
            "LOGDIR": str(logs),
            "SLURM_JOB_NODELIST": names,
            "SLURM_JOB_NUM_NODES": str(nodes),
            "SLURM_JOB_ID": "7",
            "MASTER_PORT": str(free_port()),
            "DROPCACHE_CMD": "echo vm.drop_caches = 3",
            "STANDIN_SECONDS": "0",
            **variables,
        }
        done = subprocess.run(
            ["bash", "-c", f"source {config} && ./run.sub"],
            cwd=self.place(benchmark),
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=400,
            check=False,
        )
        trials = sorted(path for path in logs.glob("*.log") if path.stem.split("_")[-1].isdigit())
        return Job(done.returncode, done.stdout, trials, logs)

    def environment(self) -> dict[str, str]:
        """Return the environment that all programs of the image need."""
        return {
            "PATH": f"{self.folder}/bin:{IMAGES}/common/bin:{os.environ['PATH']}",
            "PYTHONPATH": str(IMAGES / "common"),
            "PYTHONDONTWRITEBYTECODE": "1",
            "OPENBLAS_NUM_THREADS": "1",
            "HOME": str(self.folder),
        }
