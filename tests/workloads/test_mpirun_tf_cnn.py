"""tf_cnn_benchmarks by mpirun: the command line, what stops it, and several ranks in one log.

mpirun and ssh are doubles here: they note their words and start the ranks on this machine.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rackproof import logs
from rackproof.core.records import Verdict

pytestmark = pytest.mark.slow

MPIRUN = f"""#!{sys.executable}
import json, os, subprocess, sys, threading
words = sys.argv[1:]
json.dump(words, open("mpirun.json", "w"))
count = int(words[words.index("-np") + 1])
program = words[words.index("PROGRAM") + 1:]
def run(rank):
    told = {{**os.environ, "OMPI_COMM_WORLD_RANK": str(rank), "OMPI_COMM_WORLD_SIZE": str(count)}}
    ran = subprocess.Popen(program, env=told, stdout=subprocess.PIPE, text=True)
    for line in ran.stdout:
        sys.stdout.write(f"[1,{{rank}}]<stdout>:{{line}}")
    ends.append(ran.wait())
ends = []
threads = [threading.Thread(target=run, args=(rank,)) for rank in range(count)]
for one in threads: one.start()
for one in threads: one.join()
sys.exit(max(ends))
"""
SSH = "#!/bin/sh\n[ -e refuse ] && { echo 'Permission denied (publickey).' >&2; exit 255; }\nexit 0\n"
PROGRAM = '#!/bin/sh\nshift\nexec "$@"\n'


def start(
    root: Path, folder: Path, *options: str, nodes: str = "n1,n2", tools: tuple[str, ...] = ("mpirun", "ssh")
) -> subprocess.CompletedProcess[str]:
    """Start the launcher where rendezvous.py would have."""
    programs = folder / "bin"
    programs.mkdir(exist_ok=True)
    for name, text in (("mpirun", MPIRUN), ("ssh", SSH), ("PROGRAM", PROGRAM)):
        if name in (*tools, "PROGRAM"):
            (programs / name).write_text(text)
            (programs / name).chmod(0o755)
    command = f"PROGRAM {sys.executable} {root}/testrack/fakes/tf_cnn_benchmarks.py"
    return subprocess.run(
        [sys.executable, str(root / "workloads/mpirun_tf_cnn.py"), f"--command={command}", *options],
        cwd=folder,
        env={
            "PATH": f"{programs}:/usr/bin:/bin",
            "RACKPROOF_NODES": nodes,
            "RACKPROOF_FIRST": "127.0.0.1",
            "GLOO_SOCKET_IFNAME": "rackproof0",
            "HOME": os.environ.get("HOME", "/"),
        },
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_ranks_of_two_nodes_train_and_write_one_log(root: Path, tmp_path: Path) -> None:
    options = ["--gpus=2", "--batch-size=2", "--num-batches=10", "--display-every=5", "--rank-file=on"]
    options += [
        "--btl-tcp-sndbuf=13107200",
        "--btl-tcp-rcvbuf=13107200",
        "--btl-tcp-links=16",
        "--mca=mtl ^ofi",
    ]
    done = start(root, tmp_path, *options)
    assert done.returncode == 0, done.stderr
    words = json.loads((tmp_path / "mpirun.json").read_text())
    said = " ".join(words)
    assert "-np 4 --hostfile hostfile --rankfile rankfile" in said
    for one in (
        "btl tcp,self",
        "btl_tcp_if_include rackproof0",
        "btl_tcp_sndbuf 13107200",
        "btl_tcp_rcvbuf 13107200",
        "btl_tcp_links 16",
        "mtl ^ofi",
    ):
        assert f"--mca {one}" in said
    assert "-x GLOO_SOCKET_IFNAME" in said
    assert "--num_gpus=1" in words
    assert (tmp_path / "hostfile").read_text() == "n1 slots=2\nn2 slots=2\n"
    assert (tmp_path / "rankfile").read_text().splitlines()[2] == "rank 2=n2 slot=0"
    parsed = logs.parse(io.BytesIO(done.stdout.encode()), format="auto", name="log")
    assert parsed.format == "tf_cnn"
    assert parsed.verdict is Verdict.PASS, parsed.findings
    found = {one.name: one.value for one in parsed.measurements}
    totals = [float(line.split()[-1]) for line in done.stdout.splitlines() if "total images/sec" in line]
    assert len(totals) == 4
    assert found["images_per_second"] == min(totals)
    assert found["train_loss"] < 2.5  # ln 10 = 2.30, and it was learnt from
    assert parsed.tags["global_batch_size"] == "8"


def test_without_horovod_one_process_has_all_gpus_of_one_node(root: Path, tmp_path: Path) -> None:
    done = start(root, tmp_path, "--gpus=4", "--variable-update=replicated", "--num-batches=2", nodes="n1")
    assert done.returncode == 0, done.stderr
    words = json.loads((tmp_path / "mpirun.json").read_text())
    assert words[words.index("-np") + 1] == "1"
    assert "--num_gpus=4" in words
    two = start(root, tmp_path, "--variable-update=replicated")
    assert two.returncode == 2
    assert "several nodes need horovod" in two.stderr


@pytest.mark.parametrize("name", ["ddl", "DDL", "ibm_ddl", "powerai-ddl"])
def test_ddl_cannot_be_had_and_horovod_is_named(root: Path, tmp_path: Path, name: str) -> None:
    done = start(root, tmp_path, f"--variable-update={name}", nodes="n1,n2")
    assert done.returncode == 2
    assert "cannot be had; horovod" in done.stderr
    assert not (tmp_path / "hostfile").exists()


@pytest.mark.parametrize("name", ["horovd", "nccl", "Replicated", ""])
def test_a_way_that_the_program_does_not_know_is_refused(root: Path, tmp_path: Path, name: str) -> None:
    done = start(root, tmp_path, f"--variable-update={name}", nodes="n1")
    assert done.returncode == 2
    assert "tf_cnn_benchmarks has no such way; choose one of horovod, parameter_server" in done.stderr


def test_what_is_missing_is_reported_before_mpirun_is_started(root: Path, tmp_path: Path) -> None:
    (tmp_path / "refuse").touch()
    done = start(root, tmp_path)
    assert done.returncode == 9
    assert "mpirun does not reach n2 by ssh: Permission denied (publickey)." in done.stderr
    (tmp_path / "bin/mpirun").unlink()
    done = start(root, tmp_path, tools=("ssh",))
    if "mpirun is not installed" not in done.stderr:
        assert Path("/usr/bin/mpirun").exists()
    assert done.returncode == 9
    assert not (tmp_path / "mpirun.json").exists()
