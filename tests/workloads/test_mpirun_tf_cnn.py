"""Test workloads/mpirun_tf_cnn.py, which starts tf_cnn_benchmarks with mpirun on the nodes of a run.

The tests show the command line of each way to share the work (Horovod, parameter servers and others), the
files for Open MPI, and that a signal to the launcher ends all its processes. A fake of mpirun records its
arguments and runs scripts of a test, and a fake of ssh imitates the other node. No fake imitates
tf_cnn_benchmarks: its real output is in tests/data/real/tf_cnn.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.workloads.programs import load_program

launcher = load_program("mpirun_tf_cnn")


def lines(*words: str, nodes: str = "n1,n2") -> tuple[str, str]:
    """Return the command lines of the training and of the servers, as texts."""
    options = launcher.parser().parse_args(["--sources=/s", *words])
    names = nodes.split(",")
    addresses = [f"10.0.0.{number}" for number in range(1, len(names) + 1)]
    launcher.check_numbers(options)
    trained, served = launcher.commands(options, names, addresses)
    return " ".join(trained), " ".join(served)


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the variables in which rendezvous.py passes the run's network."""
    for name in ("GLOO_SOCKET_IFNAME", "RACKPROOF_NETWORK", "NCCL_SOCKET_IFNAME"):
        monkeypatch.delenv(name, raising=False)


def test_horovod_has_a_rank_for_each_gpu_and_no_server() -> None:
    trained, served = lines("--gpus=4", "--batch-size=64")
    assert "-np 8 --hostfile hostfile --bind-to none" in trained
    assert "--num_gpus=1" in trained
    assert f"{sys.executable} /s/scripts/tf_cnn_benchmarks/tf_cnn_benchmarks.py --model=resnet50" in trained
    assert "task_index" not in trained
    assert served == ""


@pytest.mark.parametrize("way", ["parameter_server", "distributed_replicated"])
def test_parameter_servers_and_workers_are_named_by_the_run_s_addresses(way: str) -> None:
    trained, served = lines(f"--variable-update={way}", "--gpus=4", "--port=30000")
    for one in (trained, served):
        assert "--worker_hosts=10.0.0.1:30001,10.0.0.2:30001" in one
        assert "--ps_hosts=10.0.0.1:30000,10.0.0.2:30000" in one
        assert "-np 2 " in one
        assert "--num_gpus=4" in one
        assert '--task_index="$OMPI_COMM_WORLD_RANK"' in one
    assert trained.endswith("--job_name=worker")
    assert served.endswith("--job_name=ps")


def test_a_controller_drives_the_workers_of_a_distributed_all_reduce() -> None:
    trained, served = lines("--variable-update=distributed_all_reduce", "--gpus=2")
    assert trained.endswith("--job_name=controller")
    assert "-np 1 " in trained
    assert "task_index" not in trained
    assert served.endswith("--job_name=worker")
    assert "-np 2 " in served
    for one in (trained, served):
        assert "--controller_host=10.0.0.1:29500" in one
        assert one.count("--all_reduce_spec=pscpu") == 1
    for nodes in ("n1", "n1,n2"):
        alone, _ = lines("--variable-update=distributed_all_reduce", nodes=nodes)
        assert "--all_reduce_spec=pscpu" in alone
        own, _ = lines(
            "--variable-update=distributed_all_reduce", "--more=--all_reduce_spec=xring", nodes=nodes
        )
        assert "pscpu" not in own


def test_on_one_node_an_update_has_servers_only_if_it_needs_them() -> None:
    for way, served in (
        ("parameter_server", False),
        ("replicated", False),
        ("independent", False),
        ("distributed_all_reduce", False),
        ("distributed_replicated", True),
    ):
        trained, servers = lines(f"--variable-update={way}", "--gpus=2", nodes="n1")
        assert bool(servers) == served, way
        assert ("job_name" in trained) == served, way
        assert "--num_gpus=2" in trained
    _, servers = lines("--variable-update=parameter_server", "--gpus=0", "--processes=2", nodes="n1")
    assert "--worker_hosts=10.0.0.1:29501,10.0.0.1:29502" in servers


@pytest.mark.parametrize("way", ["replicated", "independent"])
def test_an_update_for_one_node_is_refused_on_two(way: str) -> None:
    with pytest.raises(launcher.Refusal, match="trains on one node; several need one of horovod"):
        lines(f"--variable-update={way}")


@pytest.mark.parametrize("name", ["ddl", "DDL", "ibm_ddl", "powerai-ddl"])
def test_ddl_is_refused_and_horovod_is_named(name: str) -> None:
    with pytest.raises(launcher.Refusal, match="not available; horovod"):
        lines(f"--variable-update={name}")


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("horovd", "no such value"),
        ("nccl", "no such value"),
        ("", "no such value"),
        ("Replicated", "no such value"),
        ("collective_all_reduce", "ends with an AttributeError"),
    ],
)
def test_an_unknown_or_broken_update_is_refused(name: str, why: str) -> None:
    with pytest.raises(launcher.Refusal, match=f"{why}.*choose one of horovod, parameter_server"):
        lines(f"--variable-update={name}")


@pytest.mark.parametrize(
    "word", ["--batch-size=0", "--batch-size=-1", "--num-batches=0", "--display-every=0", "--processes=0"]
)
def test_a_number_that_the_program_would_replace_is_refused(word: str) -> None:
    """With a batch size of 0 or -1, for example, the real program would train with 32 and succeed."""
    with pytest.raises(launcher.Refusal, match="it has to be at least 1"):
        lines(word)


def test_a_display_interval_longer_than_the_run_is_refused() -> None:
    with pytest.raises(launcher.Refusal, match="the first step alone would be shown"):
        lines("--num-batches=5", "--display-every=10")


# The transport: how MPI sends data between nodes.

BUFFERS = ("--btl-tcp-sndbuf=13107200", "--btl-tcp-rcvbuf=13107200", "--btl-tcp-links=16")


@pytest.mark.parametrize(
    ("words", "network", "there", "absent"),
    [
        # The options, the run's network (host: the node's own; overlay: a virtual one, which InfiniBand
        # would bypass), and words that mpirun's command line must have and must not have.
        ([], "host", ["--mca btl tcp,self", "--mca pml ob1", "btl_tcp_if_include eth7"], ["ucx", "UCX"]),
        (
            BUFFERS,
            "host",
            ["btl_tcp_sndbuf 13107200", "btl_tcp_rcvbuf 13107200", "btl_tcp_links 16"],
            ["UCX"],
        ),
        (["--transport=ucx"], "host", ["--mca pml ucx"], ["tcp", "UCX_"]),
        (
            ["--transport=ucx", "--ucx-devices=mlx5_0:1"],
            "host",
            ["--mca pml ucx", "-x UCX_NET_DEVICES=mlx5_0:1"],
            ["btl", "UCX_TLS"],
        ),
        (
            ["--transport=ucx", "--ucx-devices=mlx5_0:1"],
            "overlay",
            ["--mca pml ucx", "-x UCX_NET_DEVICES=eth7", "-x UCX_TLS=tcp,self"],
            ["mlx5"],
        ),
        (["--transport=auto"], "host", ["btl_tcp_if_include eth7"], ["pml", "--mca btl "]),
        (["--mca=pml cm, mtl ^ofi"], "host", ["--mca pml cm", "--mca mtl ^ofi"], ["ob1"]),
    ],
)
def test_each_transport_has_its_options_for_the_run_s_network(
    monkeypatch: pytest.MonkeyPatch, words: list[str], network: str, there: list[str], absent: list[str]
) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth7")
    monkeypatch.setenv("RACKPROOF_NETWORK", network)
    trained, _ = lines(*words)
    of_mpi = trained.split(sys.executable)[0]
    for one in there:
        assert one in of_mpi
    for one in absent:
        assert one not in of_mpi
    assert "-x GLOO_SOCKET_IFNAME" in of_mpi


def test_data_precision_and_the_cpu_are_options_of_the_program() -> None:
    trained, _ = lines("--data=/records", "--precision=fp16", "--gpus=0", "--warmup-batches=3")
    for one in ("--data_dir=/records", "--data_name=imagenet", "--use_fp16=True", "--device=cpu"):
        assert one in trained
    assert "--data_format=NHWC" in trained
    assert "--num_warmup_batches=3" in trained


# Host file and rank file.


@pytest.mark.parametrize(
    ("cores", "ranks", "ranges"),
    [
        (8, 2, ["0-3", "4-7"]),
        (8, 8, [str(one) for one in range(8)]),
        (7, 2, ["0-2", "3-6"]),
        (72, 4, ["0-17", "18-35", "36-53", "54-71"]),
        (2, 4, ["0", "0", "1", "1"]),
        (1, 1, ["0"]),
    ],
)
def test_cores_of_a_node_are_divided_among_its_ranks(cores: int, ranks: int, ranges: list[str]) -> None:
    assert launcher.core_ranges(cores, ranks) == ranges


def test_the_rank_file_has_each_node_s_own_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    launcher.write_files(["n1", "n2"], 2, [8, 4])
    assert (tmp_path / "hostfile").read_text() == "n1 slots=2\nn2 slots=2\n"
    assert (tmp_path / "rankfile").read_text().splitlines() == [
        "rank 0=n1 slot=0-3",
        "rank 1=n1 slot=4-7",
        "rank 2=n2 slot=0-1",
        "rank 3=n2 slot=2-3",
    ]


# The processes that the launcher starts.

# Fakes of mpirun and ssh. This mpirun records its arguments and runs a script of the test. By ssh, lscpu
# reports 6 cores.
MPIRUN = f"""#!{sys.executable}
import json, os, sys
words = sys.argv[1:]
name = "servers" if words[-1] in ("--job_name=ps",) else "workers"
json.dump(words, open(name + ".json", "w"))
os.execv("/bin/sh", ["sh", "-c", open(name + ".sh").read()])
"""
SSH = """#!/bin/sh
case "$*" in
*lscpu*) echo 6; exit;;
*state_gpus.py*) cat states; exit $(cat states.status);;
esac
[ -e refuse ] && { echo 'Permission denied (publickey).' >&2; exit 255; }
exit 0
"""


def start(
    root: Path, folder: Path, *words: str, servers: str = "", workers: str = "", lacks: str = ""
) -> subprocess.Popen[str]:
    """Start the launcher as rendezvous.py does, without the program ``lacks``. mpirun runs the scripts."""
    (folder / "bin").mkdir()
    (folder / "servers.sh").write_text(servers)
    (folder / "workers.sh").write_text(workers)
    program = folder / launcher.PROGRAM
    program.parent.mkdir(parents=True)
    program.touch()
    for name, text in (("mpirun", MPIRUN), ("ssh", SSH)):
        if name != lacks:
            (folder / "bin" / name).write_text(text)
            (folder / "bin" / name).chmod(0o755)
    for name in ("sh", "cat", "grep", "sort", "wc", "lscpu", "sleep", "echo"):
        (folder / "bin" / name).symlink_to(f"/usr/bin/{name}")
    return subprocess.Popen(
        [sys.executable, str(root / "workloads/mpirun_tf_cnn.py"), f"--sources={folder}", *words],
        cwd=folder,
        env={"PATH": f"{folder}/bin", "RACKPROOF_NODES": "n1,n2", "RACKPROOF_ADDRESSES": "10.0.0.1,10.0.0.2"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


# The options of a variable update with servers.
SERVED = ("--variable-update=parameter_server", "--gpus=0")


@pytest.mark.parametrize("status", [0, 1, 137])
def test_servers_end_with_the_workers_and_the_workers_status_is_returned(
    root: Path, tmp_path: Path, status: int
) -> None:
    servers, workers = "echo up; echo > up; exec sleep 600", "while [ ! -e up ]; do sleep 0.1; done"
    process = start(root, tmp_path, *SERVED, servers=servers, workers=f"{workers}; exit {status}")
    said, _ = process.communicate()
    assert process.returncode == status, said
    assert "server up\n" in said
    assert "a server ended" not in said


@pytest.mark.parametrize("status", [0, 1, 137])
def test_a_server_that_ends_first_fails_the_run(root: Path, tmp_path: Path, status: int) -> None:
    process = start(root, tmp_path, *SERVED, servers=f"echo why; exit {status}", workers="exec sleep 600")
    said, _ = process.communicate()
    assert process.returncode == 1
    assert "server why\n" in said
    assert f"a server ended with status {status} before the workers" in said


def handles(pid: int, number: int) -> bool:
    """Return whether a process has a handler for a signal."""
    caught = re.search(r"^SigCgt:\s*(\w+)$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return caught is not None and bool(int(caught[1], 16) >> (number - 1) & 1)


def test_a_signal_to_the_launcher_ends_workers_and_servers(root: Path, tmp_path: Path) -> None:
    scripts = {name: f"echo $$ > {name}.pid; exec sleep 600" for name in ("servers", "workers")}
    process = start(root, tmp_path, *SERVED, **scripts)
    files = [tmp_path / f"{name}.pid" for name in scripts]
    while not (
        handles(process.pid, signal.SIGTERM) and all(one.exists() and one.read_text() for one in files)
    ):
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    process.communicate()
    assert process.returncode != 0
    for one in files:
        with pytest.raises(ProcessLookupError):
            os.kill(int(one.read_text()), 0)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
@pytest.mark.parametrize("started", [1, 2])
def test_a_signal_during_the_starts_leaves_nothing_running(
    number: int, started: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    processes: list[subprocess.Popen[bytes]] = []
    start_one = launcher.start

    def start_and_stop(*words: Any) -> Any:
        process, reader = start_one(*words)
        processes.append(process)
        if len(processes) == started:
            signal.raise_signal(number)
        return process, reader

    monkeypatch.setattr(launcher, "start", start_and_stop)
    before = {
        one: signal.signal(one, lambda *_: None) for one in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    }
    try:
        assert launcher.run_served(["sleep", "15"], ["sleep", "15"]) != 0
        assert processes
        assert all(one.poll() == -signal.SIGTERM for one in processes)
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


STATE = ':::RACKPROOF gpu_state {"moment": "?", "gpu": "GPU-1"}'


@pytest.mark.parametrize(
    ("gpus", "status", "answered", "expected"),
    [
        (2, 0, 0, [STATE, "trained", STATE]),
        # After a failed training, the GPUs' states are not read again.
        (2, 3, 0, [STATE, "trained"]),
        # A node that does not answer has no state, and the log says why.
        (2, 0, 255, [STATE, "GPUs of n2: no reason given", "trained", STATE, "GPUs of n2: no reason given"]),
        (0, 0, 0, ["trained"]),
    ],
)
def test_each_node_states_its_gpus_before_mpirun_and_after_it(
    root: Path, tmp_path: Path, gpus: int, status: int, answered: int, expected: list[str]
) -> None:
    (tmp_path / "states").write_text(f"Warning: a banner\n{STATE}\n")
    (tmp_path / "states.status").write_text(str(answered))
    process = start(root, tmp_path, f"--gpus={gpus}", workers=f"echo trained; exit {status}")
    said, _ = process.communicate()
    assert process.returncode == status, said
    assert said.splitlines()[1:] == expected


def test_a_signal_to_the_launcher_ends_a_training_on_gpus(root: Path, tmp_path: Path) -> None:
    process = start(root, tmp_path, "--gpus=2", workers="echo begun; echo $$ > pid; exec sleep 600")
    assert process.stdout is not None
    while process.stdout.readline() not in ("begun\n", ""):
        pass
    process.send_signal(signal.SIGTERM)
    process.communicate()
    assert process.returncode == 128 + signal.SIGTERM


def test_the_rank_file_has_the_cores_that_lscpu_prints_on_another_node(root: Path, tmp_path: Path) -> None:
    process = start(root, tmp_path, "--gpus=2", "--rank-file=on")
    said, _ = process.communicate()
    assert process.returncode == 0, said
    assert (tmp_path / "rankfile").read_text().splitlines()[2:] == [
        "rank 2=n2 slot=0-2",
        "rank 3=n2 slot=3-5",
    ]
    words = json.loads((tmp_path / "workers.json").read_text())
    assert words[words.index("--rankfile") + 1] == "rankfile"


@pytest.mark.parametrize(
    ("lacks", "refuses", "text"),
    [
        ("", True, "mpirun does not reach n2 by ssh: Permission denied (publickey)."),
        ("mpirun", False, "mpirun is not installed here: run playbooks/openmpi.yml"),
    ],
)
def test_what_is_missing_is_reported_before_mpirun_is_started(
    root: Path, tmp_path: Path, lacks: str, refuses: bool, text: str
) -> None:
    if refuses:
        (tmp_path / "refuse").touch()
    process = start(root, tmp_path, lacks=lacks)
    said, _ = process.communicate()
    assert process.returncode == 9
    assert text in said
    assert not (tmp_path / "workers.json").exists()


@pytest.mark.parametrize(
    ("hangs_at", "rank_file", "why"),
    [
        ("orted", "off", "mpirun does not reach n2 by ssh: no answer within"),
        ("orted", "on", "mpirun does not reach n2 by ssh: no answer within"),
        ("lscpu", "on", r"n2: lscpu does not print the number of cores \(no answer within"),
    ],
)
def test_a_node_whose_ssh_hangs_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hangs_at: str, rank_file: str, why: str
) -> None:
    for name, script in {
        "mpirun": "",
        "ssh": f'case "$*" in *{hangs_at}*) exec sleep 600;; esac; echo 4',
        "lscpu": "echo 0,0",
    }.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(launcher, "CHECK_S", 0.3)
    options = launcher.parser().parse_args(["--command=sh", f"--rank-file={rank_file}"])
    with pytest.raises(launcher.Refusal, match=why) as refused:
        launcher.check(options, ["n1", "n2"])
    assert refused.value.status == 9
