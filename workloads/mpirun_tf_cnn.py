#!/usr/bin/env python3
"""Start tf_cnn_benchmarks by mpirun on the nodes of a run. Each line of the log states its rank.

    rendezvous.py --folder RUN_FOLDER --node-rank 0 --only-first -- mpirun_tf_cnn.py --model resnet50 ...

The benchmarks tf-cnn and tf-cnn-cpu start this program on the first node of a run. It needs only the standard
library of Python 3.8 or newer. --variable-update selects how the nodes share their work:

    horovod                                   a rank for each GPU, gradients over MPI or NCCL
    parameter_server, distributed_replicated  a worker and a parameter server on each node, over gRPC
    distributed_all_reduce                    a worker on each node, a controller on the first, over gRPC
    replicated, independent                   one process on one node

Parameter servers, and workers that a controller drives, never end by themselves. A second mpirun therefore
runs them, and is ended with the workers. Its lines begin with `server`. The host file and, with --rank-file
on, the rank file are written to the current folder. With GPUs, their states on all nodes are printed before
and after (state_gpus.py).

Nodes, their addresses and the interface come from rendezvous.py (RACKPROOF_NODES, RACKPROOF_ADDRESSES,
RACKPROOF_NETWORK, GLOO_SOCKET_IFNAME). mpirun reaches the other nodes by ssh, which must work without a
password (role openmpi).

The exit status is mpirun's, or 1 if a server ended before the workers, 2 for wrong arguments, and 9 if
mpirun, ssh or the program is missing.
"""

from __future__ import annotations

import argparse
import functools
import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import state_gpus

EXIT_ERROR = 1
EXIT_USAGE = 2
EXIT_CANNOT_LAUNCH = 9
PROGRAM = "scripts/tf_cnn_benchmarks/tf_cnn_benchmarks.py"
"""The path of the program in the sources of tensorflow/benchmarks."""
ONE_NODE = ("replicated", "independent")
SERVED = {"parameter_server": "ps", "distributed_replicated": "ps", "distributed_all_reduce": "worker"}
"""The job whose processes run until they are ended, by variable update, if there are several nodes."""
VARIABLE_UPDATES = ("horovod", *SERVED, *ONE_NODE)
"""The variable updates of tf_cnn_benchmarks that work."""
BROKEN_UPDATES = {
    "collective_all_reduce": "the program itself ends with an AttributeError in all of its last commits"
}
"""Variable updates of tf_cnn_benchmarks that do not work, each with the reason."""
FORWARDED = (
    "NCCL_SOCKET_IFNAME", "NCCL_IB_DISABLE", "GLOO_SOCKET_IFNAME", "RACKPROOF_NODES", "RACKPROOF_FIRST",
)  # fmt: skip
CORES = "lscpu --parse=core,socket | grep -v '^#' | sort -u | wc -l"
"""Command that prints the number of a node's cores. A rank file numbers cores, not hardware threads."""
WITH_RANK = ("sh", "-c", 'exec "$@" --task_index="$OMPI_COMM_WORLD_RANK"', "rank")
"""A script that passes its rank to each process of TensorFlow's own distributed modes."""
GRACE_S = 10.0
STATES_S = 120.0
"""Time limit for the states of a node's GPUs, which take up to 30 s, plus ssh and the driver's start."""
CHECK_S = 60.0
"""Time limit for a check of a node by ssh. ConnectTimeout does not limit a server that accepts and hangs."""
REMOTE = ("ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=15")


class Refusal(Exception):  # noqa: N818  (reads as what it is)
    """A reason why the program cannot be started, with the remedy. ``status`` is the exit status."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = arguments.add_argument
    add(
        "--command",
        default="",
        help="command that starts tf_cnn_benchmarks, with its container; replaces --sources",
    )
    add("--sources", default="", help=f"folder with {PROGRAM}, run by the interpreter of this program")
    add("--gpus", type=int, default=1, help="GPUs of each node; 0 means the CPU")
    add("--processes", type=int, default=1, help="workers of each node on the CPU (--gpus 0)")
    add("--model", default="resnet50", help="network to train")
    add("--batch-size", type=int, default=64, help="images a step on each GPU")
    add("--num-batches", type=int, default=100, help="steps that are measured")
    add("--warmup-batches", type=int, default=0, help="steps before them; 0 leaves it to the program")
    add("--display-every", type=int, default=10, help="steps between two lines")
    add("--variable-update", default="horovod", help=", ".join(VARIABLE_UPDATES))
    add("--precision", choices=("fp32", "fp16"), default="fp32", help="of products")
    add("--data", default="", help="folder of TFRecords; none: synthetic images")
    add("--port", type=int, default=29500, help="first port of TensorFlow's servers on each node")
    add("--more", default="", help="more options of tf_cnn_benchmarks, as one text")
    add(
        "--transport",
        choices=("tcp", "ucx", "auto"),
        default="tcp",
        help="of MPI; auto leaves it to Open MPI",
    )
    add("--ucx-devices", default="", help="UCX_NET_DEVICES, as in mlx5_0:1; empty leaves it to UCX")
    add(
        "--rank-file",
        choices=("on", "off"),
        default="off",
        help="bind each rank to its share of its node's cores",
    )
    add("--btl-tcp-sndbuf", type=int, default=0, help="bytes; 0 leaves it to Open MPI")
    add("--btl-tcp-rcvbuf", type=int, default=0, help="bytes; 0 leaves it to Open MPI")
    add("--btl-tcp-links", type=int, default=0, help="TCP connections between two ranks; 0 leaves it")
    add("--mca", default="", help="more of Open MPI's parameters, as in 'btl_openib_allow_ib 1, mtl ^ofi'")
    return arguments


def unknown_update(name: str) -> str:
    """Return a message that tf_cnn has no such variable update, or cannot do it, and the others' names."""
    known = f"choose one of {', '.join(VARIABLE_UPDATES)}"
    if any(part in name.lower() for part in ("ddl", "powerai")):
        return (
            f"--variable-update {name}: DDL is IBM's own library, a part of PowerAI, and not available; "
            f"horovod exchanges gradients in the same way; {known}"
        )
    if name in BROKEN_UPDATES:
        return f"--variable-update {name}: {BROKEN_UPDATES[name]}; {known}"
    return f"--variable-update {name}: tf_cnn_benchmarks has no such value; {known}"


def check_numbers(options: argparse.Namespace) -> None:
    """Refuse numbers that the program silently replaces, or with which it measures nothing.

    Raises:
        Refusal: A number is too small, or --display-every is larger than --num-batches.
    """
    least = {"gpus": 0, "processes": 1, "batch_size": 1, "num_batches": 1, "display_every": 1, "port": 1024}
    for name, lowest in least.items():
        if getattr(options, name) < lowest:
            option = f"--{name.replace('_', '-')} {getattr(options, name)}"
            raise Refusal(EXIT_USAGE, f"{option}: it has to be at least {lowest}")
    if options.display_every > options.num_batches:
        raise Refusal(
            EXIT_USAGE,
            f"--display-every {options.display_every} is more than --num-batches {options.num_batches}: "
            "the first step alone would be shown",
        )


def workers_of(options: argparse.Namespace, nodes: list[str]) -> int:
    """Return how many workers (ranks) run on each node.

    Raises:
        Refusal: The way of updating variables does not exist, or works on one node only.
    """
    way = options.variable_update
    if way not in VARIABLE_UPDATES:
        raise Refusal(EXIT_USAGE, unknown_update(way))
    if options.gpus == 0 and way not in ONE_NODE:
        return int(options.processes)
    if way == "horovod":
        return int(options.gpus)
    if way in ONE_NODE and len(nodes) > 1:
        several = ", ".join(name for name in VARIABLE_UPDATES if name not in ONE_NODE)
        raise Refusal(
            EXIT_USAGE, f"--variable-update {way} trains on one node; several need one of {several}"
        )
    return 1


def is_served(options: argparse.Namespace, workers: int) -> bool:
    """Return whether TensorFlow's own servers are used. With one worker, parameter_server needs none."""
    way = options.variable_update
    return way in SERVED and (workers > 1 or way == "distributed_replicated")


def core_ranges(cores: int, ranks: int) -> list[str]:
    """Return the cores of each rank of a node, in equal shares. If there are fewer cores, ranks share one."""
    share = cores / ranks
    ranges = []
    for rank in range(ranks):
        first = int(rank * share)
        last = max(first, int((rank + 1) * share) - 1)
        ranges.append(f"{first}-{last}" if last > first else f"{first}")
    return ranges


def write_files(nodes: list[str], each: int, cores: list[int]) -> None:
    """Write host file and rank file. If the numbers of cores are unknown, write no rank file."""
    with open("hostfile", "w") as stream:
        stream.writelines(f"{node} slots={each}\n" for node in nodes)
    if not cores:
        return
    with open("rankfile", "w") as stream:
        stream.writelines(
            f"rank {number * each + index}={node} slot={slots}\n"
            for number, node in enumerate(nodes)
            for index, slots in enumerate(core_ranges(cores[number], each))
        )


def transport(
    options: argparse.Namespace, interface: str, network: str
) -> tuple[dict[str, str], dict[str, str]]:
    """Return Open MPI's parameters and the variables that make MPI use the run's network."""
    wanted: dict[str, str] = {}
    variables: dict[str, str] = {}
    if options.transport == "tcp":
        wanted.update({"btl": "tcp,self", "pml": "ob1"})
    elif options.transport == "ucx":
        wanted["pml"] = "ucx"
        if network == "overlay" and interface:
            # InfiniBand and RoCE would bypass the overlay.
            variables = {"UCX_TLS": "tcp,self", "UCX_NET_DEVICES": interface}
        elif options.ucx_devices:
            variables = {"UCX_NET_DEVICES": options.ucx_devices}
    if interface and options.transport != "ucx":
        wanted["btl_tcp_if_include"] = interface
    for name in ("btl_tcp_sndbuf", "btl_tcp_rcvbuf", "btl_tcp_links"):
        if getattr(options, name):
            wanted[name] = str(getattr(options, name))
    for setting in filter(None, (part.strip() for part in options.mca.split(","))):
        name, _, value = setting.partition(" ")
        wanted[name] = value.strip()
    return wanted, variables


def mpirun(options: argparse.Namespace, count: int, *, bound: bool) -> list[str]:
    """Return the words of mpirun before the words of the program."""
    words = ["mpirun", "--allow-run-as-root", "--tag-output", "-np", str(count), "--hostfile", "hostfile"]
    words += ["--rankfile", "rankfile"] if bound else ["--bind-to", "none"]
    network = os.environ.get("RACKPROOF_NETWORK", "")
    wanted, variables = transport(options, os.environ.get("GLOO_SOCKET_IFNAME", ""), network)
    for name, value in wanted.items():
        words += ["--mca", name, value]
    for name in FORWARDED:
        words += ["-x", name] if name in os.environ else []
    for name, value in variables.items():
        words += ["-x", f"{name}={value}"]
    return words


def program(options: argparse.Namespace) -> list[str]:
    """Return the command with which a rank starts tf_cnn_benchmarks, with the arguments of all processes."""
    words = shlex.split(options.command) or [sys.executable, os.path.join(options.sources, PROGRAM)]
    words += [
        f"--model={options.model}",
        f"--batch_size={options.batch_size}",
        f"--num_batches={options.num_batches}",
        f"--display_every={options.display_every}",
        f"--variable_update={options.variable_update}",
        f"--num_gpus={1 if options.variable_update == 'horovod' else max(1, options.gpus)}",
    ]
    if options.variable_update == "distributed_all_reduce" and "all_reduce_spec" not in options.more:
        # The program has no default, and needs a value on a single node, too.
        words += ["--all_reduce_spec=pscpu"]
    words += [f"--num_warmup_batches={options.warmup_batches}"] if options.warmup_batches else []
    words += ["--device=cpu", "--data_format=NHWC"] if options.gpus == 0 else []
    words += ["--use_fp16=True"] if options.precision == "fp16" else []
    words += ["--data_name=imagenet", f"--data_dir={options.data}"] if options.data else []
    return words + shlex.split(options.more)


def cluster(options: argparse.Namespace, addresses: list[str], each: int) -> list[str]:
    """Return the options for TensorFlow's servers.

    Each node runs one server, and then its workers, by port.
    """
    port = options.port
    workers = [f"{address}:{port + 1 + index}" for address in addresses for index in range(each)]
    words = [f"--worker_hosts={','.join(workers)}"]
    if SERVED[options.variable_update] == "ps":
        return [*words, f"--ps_hosts={','.join(f'{address}:{port}' for address in addresses)}"]
    return [*words, f"--controller_host={addresses[0]}:{port}"]


def commands(
    options: argparse.Namespace, nodes: list[str], addresses: list[str]
) -> tuple[list[str], list[str]]:
    """Return the command line that trains, and the servers' command line, which is empty without servers."""
    each = workers_of(options, nodes)
    count = each * len(nodes)
    bound = options.rank_file == "on"
    start = program(options)
    if not is_served(options, count):
        return [*mpirun(options, count, bound=bound), *start], []
    start += cluster(options, addresses, each)
    if SERVED[options.variable_update] == "ps":
        servers = [
            *mpirun(options, len(nodes), bound=False),
            "--map-by",
            "node",
            *WITH_RANK,
            *start,
            "--job_name=ps",
        ]
        return [*mpirun(options, count, bound=bound), *WITH_RANK, *start, "--job_name=worker"], servers
    servers = [*mpirun(options, count, bound=bound), *WITH_RANK, *start, "--job_name=worker"]
    return [*mpirun(options, 1, bound=False), *start, "--job_name=controller"], servers


def check(options: argparse.Namespace, nodes: list[str]) -> list[int]:
    """Check what mpirun needs, because its own messages explain little.

    Return the number of each node's cores if there is a rank file, or else an empty list.

    Raises:
        Refusal: Something is missing.
    """
    if shutil.which("mpirun") is None:
        raise Refusal(
            EXIT_CANNOT_LAUNCH, "mpirun is not installed here: run playbooks/openmpi.yml on the nodes"
        )
    start = (shlex.split(options.command) or [sys.executable])[0]
    path = "" if options.command else os.path.join(options.sources, PROGRAM)
    if shutil.which(start) is None or (path and not os.path.isfile(path)):
        raise Refusal(EXIT_CANNOT_LAUNCH, f"{path or start} is not there: see bench_tf_cnn_command")
    wanted = options.rank_file == "on"
    cores = [cores_of([], nodes[0])] if wanted else []
    # Check for orted and for the program, because mpirun's message about a missing program is long and
    # unclear.
    look = "command -v orted >/dev/null || { echo 'Open MPI (orted) is not installed there' >&2; exit 1; }"
    if path:
        look += (
            f"; [ -f {shlex.quote(path)} ] || {{ echo {shlex.quote(path + ' is not there')} >&2; exit 1; }}"
        )
    for node in nodes[1:]:
        remote = [*REMOTE, node]
        _, why = answer_of([*remote, look], CHECK_S)
        if why:
            raise Refusal(EXIT_CANNOT_LAUNCH, f"mpirun does not reach {node} by ssh: {why}")
        cores += [cores_of(remote, node)] if wanted else []
    return cores


def cores_of(remote: list[str], node: str) -> int:
    """Return the number of a node's cores.

    Raises:
        Refusal: The node's output is unusable.
    """
    words = [*remote, CORES] if remote else ["sh", "-c", CORES]
    output, why = answer_of(words, CHECK_S)
    output = output.strip()
    if why or not output.isdecimal() or int(output) < 1:
        because = f" ({why})" if why else ""
        raise Refusal(
            EXIT_CANNOT_LAUNCH,
            f"{node}: lscpu does not print the number of cores{because}; take rank_file: off",
        )
    return int(output)


def print_states(nodes: list[str], gpus: int, moment: str) -> None:
    """Print what uses the first GPUs of each node, or the error of a node that cannot be asked.

    Args:
        nodes: The nodes. This program runs on the first one.
        gpus: The number of GPUs of each node.
        moment: ``begin`` or ``end`` of the run.
    """
    words = [sys.executable, os.path.abspath(state_gpus.__file__), f"--moment={moment}", f"--gpus={gpus}"]
    with ThreadPoolExecutor(len(nodes)) as pool:
        remote = [[*REMOTE, node, shlex.join(words)] for node in nodes[1:]]
        answers = pool.map(answer_of, [words, *remote])
        for node, (out, error) in zip(nodes, answers):  # noqa: B905  (Python 3.8)
            lines = [line for line in out.splitlines() if line.startswith(state_gpus.PREFIX)]
            print(*lines, sep="\n", end="\n" if lines else "", flush=True)
            if error:
                print(f"GPUs of {node}: {error}", file=sys.stderr, flush=True)


def answer_of(words: list[str], seconds: float = STATES_S) -> tuple[str, str]:
    """Return the output of a program, and why it did not end well in that time, or ""."""
    try:
        process = subprocess.run(
            words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=seconds, check=False
        )
    except subprocess.TimeoutExpired:
        return "", f"no answer within {seconds:g} s"
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        return "", str(error)
    why = process.stderr.strip().splitlines()[-1:] or ["no reason given"]
    return process.stdout, why[0] if process.returncode else ""


def end(process: subprocess.Popen[bytes]) -> None:
    """End an mpirun, which ends its processes on all nodes."""
    process.terminate()
    try:
        process.wait(GRACE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def start(
    words: list[str], mark: bytes, lock: threading.Lock
) -> tuple[subprocess.Popen[bytes], threading.Thread]:
    """Start an mpirun, and copy its lines to the log with a mark.

    Lines are written whole, because two processes would otherwise mix theirs.
    """
    process = subprocess.Popen(
        words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )

    def pass_on() -> None:
        for line in process.stdout or ():
            with lock:
                sys.stdout.buffer.write(mark + line.rstrip(b"\n") + b"\n")
                sys.stdout.buffer.flush()

    reader = threading.Thread(target=pass_on, daemon=True)
    reader.start()
    return process, reader


def run_served(words: list[str], servers: list[str]) -> int:
    """Run workers and their servers. Return the workers' status, or EXIT_ERROR if the servers ended first."""
    lock = threading.Lock()
    started: list[subprocess.Popen[bytes]] = []
    signals: list[int] = []

    def stop(number: int, _: object) -> None:
        signals.append(number)
        # The processes are waited for below.
        for process in started:
            process.terminate()

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, stop)
    # The servers' lines begin like those of the workers, so they are marked.
    serving, server_lines = start(servers, b"server ", lock)
    started.append(serving)
    working, worker_lines = start(words, b"", lock)
    started.append(working)
    # A signal may have come before both were in the list.
    if signals:
        stop(signals[0], None)
    while working.poll() is None and serving.poll() is None:
        time.sleep(0.2)
    early = working.poll() is None
    for process in (working, serving):
        if process.poll() is None:
            end(process)
    for reader in (worker_lines, server_lines):
        reader.join(GRACE_S)
    if early:
        status = serving.returncode
        print(f"error: a server ended with status {status} before the workers", file=sys.stderr, flush=True)
        return EXIT_ERROR
    return working.returncode if working.returncode >= 0 else 128 - working.returncode


def main() -> int:
    """Write the files, and start mpirun. Without GPUs and servers, mpirun replaces this process."""
    options = parser().parse_args()
    nodes = [name for name in os.environ.get("RACKPROOF_NODES", "").split(",") if name] or ["localhost"]
    addresses = [
        address for address in os.environ.get("RACKPROOF_ADDRESSES", "").split(",") if address
    ] or nodes
    try:
        check_numbers(options)
        words, servers = commands(options, nodes, addresses)
        write_files(nodes, workers_of(options, nodes), check(options, nodes))
    except Refusal as refusal:
        print(f"error: {refusal}", file=sys.stderr, flush=True)
        return refusal.status
    for command in filter(None, (servers, words)):
        print(shlex.join(command), flush=True)
    if servers:
        run = functools.partial(run_served, words, servers)
    elif options.gpus:
        run = functools.partial(state_gpus.run_child, words, os.environ)
    else:
        return os.execvp(words[0], words)  # noqa: S606  (mpirun in our place)
    if not options.gpus:
        return run()
    return state_gpus.run_between(run, functools.partial(print_states, nodes, options.gpus))


if __name__ == "__main__":
    sys.exit(main())
