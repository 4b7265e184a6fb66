#!/usr/bin/env python3
"""Start tf_cnn_benchmarks by mpirun on the nodes of a run; all ranks write one log, each line with its rank.

    rendezvous.py --folder RUN_FOLDER --node-rank 0 --only-first -- mpirun_tf_cnn.py --model resnet50 ...

Standard library only. With --variable-update horovod there is one rank for each GPU; the other ways are
one process with all GPUs of one node. Host file and rank file are written to the present folder. Nodes
and interface come from rendezvous.py (RACKPROOF_NODES, GLOO_SOCKET_IFNAME). mpirun reaches the other nodes
by ssh, which has to work without a password. Exit status: mpirun's; 2 wrong arguments, 9 mpirun, ssh or
the program is missing.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import subprocess
import sys

EXIT_USAGE = 2
EXIT_CANNOT_LAUNCH = 9
VARIABLE_UPDATES = (
    "horovod",
    "parameter_server",
    "replicated",
    "distributed_replicated",
    "independent",
    "distributed_all_reduce",
    "collective_all_reduce",
)
"""What tf_cnn_benchmarks knows."""


class Refusal(Exception):  # noqa: N818  (reads as what it is)
    """It cannot be started. The text says why and what to do; ``status`` is the exit status."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


def parser() -> argparse.ArgumentParser:
    """Describe the command line."""
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = arguments.add_argument
    add("--command", required=True, help="how a rank starts tf_cnn_benchmarks, container and all")
    add("--gpus", type=int, default=1, help="GPUs of each node; 0 means the CPU, one process a node")
    add("--model", default="resnet50", help="what is trained")
    add("--batch-size", type=int, default=64, help="images a step on each GPU")
    add("--num-batches", type=int, default=100, help="steps that are measured")
    add("--display-every", type=int, default=10, help="steps between two lines")
    add("--variable-update", default="horovod", help="horovod, replicated, parameter_server, independent ...")
    add("--precision", choices=("fp32", "fp16"), default="fp32", help="of products")
    add("--data", default="", help="folder of TFRecords; none: synthetic images")
    add("--more", default="", help="more options of tf_cnn_benchmarks, as one text")
    add("--rank-file", choices=("on", "off"), default="off", help="bind each rank to a slot of its node")
    add("--btl-tcp-sndbuf", type=int, default=0, help="bytes; 0 leaves it to Open MPI")
    add("--btl-tcp-rcvbuf", type=int, default=0, help="bytes; 0 leaves it to Open MPI")
    add("--btl-tcp-links", type=int, default=0, help="TCP connections between two ranks; 0 leaves it")
    add("--mca", default="", help="more of Open MPI's parameters, as in 'btl_openib_allow_ib 1, mtl ^ofi'")
    return arguments


def unknown_update(name: str) -> str:
    """Say that tf_cnn_benchmarks does not know a way to update variables, and what there is."""
    known = f"choose one of {', '.join(VARIABLE_UPDATES)}"
    if any(part in name.lower() for part in ("ddl", "powerai")):
        return (
            f"--variable-update {name}: DDL is IBM's own library, a part of PowerAI, and cannot be had; "
            f"horovod exchanges gradients in the same way; {known}"
        )
    return f"--variable-update {name}: tf_cnn_benchmarks has no such way; {known}"


def ranks_of(options: argparse.Namespace, nodes: list[str]) -> int:
    """Return how many ranks each node has.

    Raises:
        Refusal: The way in which variables are updated does not exist, or knows one node only.
    """
    if options.variable_update not in VARIABLE_UPDATES:
        raise Refusal(EXIT_USAGE, unknown_update(options.variable_update))
    if options.variable_update == "horovod":
        return max(1, options.gpus)
    if len(nodes) > 1:
        raise Refusal(
            EXIT_USAGE,
            f"--variable-update {options.variable_update} trains on one node; several nodes need horovod",
        )
    return 1


def write_files(nodes: list[str], each: int) -> None:
    """Write host file and rank file."""
    with open("hostfile", "w") as stream:
        stream.writelines(f"{node} slots={each}\n" for node in nodes)
    with open("rankfile", "w") as stream:
        stream.writelines(
            f"rank {number * each + slot}={node} slot={slot}\n"
            for number, node in enumerate(nodes)
            for slot in range(each)
        )


def mpirun(options: argparse.Namespace, nodes: list[str], interface: str) -> list[str]:
    """Return the command line."""
    each = ranks_of(options, nodes)
    words = [
        "mpirun",
        "--allow-run-as-root",
        "--tag-output",
        "-np",
        str(each * len(nodes)),
        "--hostfile",
        "hostfile",
    ]
    words += ["--rankfile", "rankfile"] if options.rank_file == "on" else ["--bind-to", "none"]
    wanted = {"btl": "tcp,self", "pml": "ob1"}
    if interface:
        wanted["btl_tcp_if_include"] = interface
    for name in ("btl_tcp_sndbuf", "btl_tcp_rcvbuf", "btl_tcp_links"):
        if getattr(options, name):
            wanted[name] = str(getattr(options, name))
    for one in filter(None, (part.strip() for part in options.mca.split(","))):
        name, _, value = one.partition(" ")
        wanted[name] = value.strip()
    for name, value in wanted.items():
        words += ["--mca", name, value]
    for name in (
        "NCCL_SOCKET_IFNAME",
        "NCCL_IB_DISABLE",
        "GLOO_SOCKET_IFNAME",
        "RACKPROOF_NODES",
        "RACKPROOF_FIRST",
    ):
        words += ["-x", name] if name in os.environ else []
    words += shlex.split(options.command)
    words += [
        f"--model={options.model}",
        f"--batch_size={options.batch_size}",
        f"--num_batches={options.num_batches}",
    ]
    words += [f"--display_every={options.display_every}", f"--variable_update={options.variable_update}"]
    words += [
        f"--num_gpus={max(1, options.gpus) if each == 1 and options.variable_update != 'horovod' else 1}"
    ]
    words += ["--device=cpu", "--data_format=NHWC"] if options.gpus == 0 else []
    words += ["--use_fp16=True"] if options.precision == "fp16" else []
    words += ["--data_name=imagenet", f"--data_dir={options.data}"] if options.data else []
    return words + shlex.split(options.more)


def check(options: argparse.Namespace, nodes: list[str]) -> None:
    """Check what mpirun needs, for it says little by itself.

    Raises:
        Refusal: Something is missing.
    """
    if shutil.which("mpirun") is None:
        raise Refusal(EXIT_CANNOT_LAUNCH, "mpirun is not installed here: install Open MPI on every node")
    program = (shlex.split(options.command) or [""])[0]
    if shutil.which(program) is None:
        raise Refusal(
            EXIT_CANNOT_LAUNCH, f"{program or 'the command'} is not there: see bench_tf_cnn_command"
        )
    for node in nodes[1:]:
        done = subprocess.run(
            ["ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=15", node, "command -v orted"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            why = done.stderr.strip().splitlines()[-1:] or ["Open MPI (orted) is not installed there"]
            raise Refusal(EXIT_CANNOT_LAUNCH, f"mpirun does not reach {node} by ssh: {why[0]}")


def main() -> int:
    """Write the files, start mpirun in place of this process."""
    options = parser().parse_args()
    nodes = [one for one in os.environ.get("RACKPROOF_NODES", "").split(",") if one] or ["localhost"]
    try:
        words = mpirun(options, nodes, os.environ.get("GLOO_SOCKET_IFNAME", ""))
        check(options, nodes)
    except Refusal as refusal:
        print(f"error: {refusal}", file=sys.stderr, flush=True)
        return refusal.status
    write_files(nodes, ranks_of(options, nodes))
    print(shlex.join(words), flush=True)
    sys.stdout.flush()
    return os.execvp(words[0], words)  # noqa: S606  (mpirun in our place)


if __name__ == "__main__":
    sys.exit(main())
