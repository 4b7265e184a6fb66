#!/usr/bin/env python3
"""Run a test of perftest between two nodes, for bench.yml.

    perftest_pair.py --test ib_write_bw [--device mlx5_0] --nodes 2 --node-rank I --rendezvous ADDRESS:PORT

rendezvous.py starts this program on both nodes, and its variable RACKPROOF_ADDRESSES has their addresses. The
second node is the server. The first node is the client, which prints the table that is judged. The client is
started again until the server listens. This program needs only the standard library of Python 3.8 or newer.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time

from run_command import MISSING, digest_of

CONNECT_S = 60.0
"""Seconds in which the client tries to reach the server."""
NOT_CONNECTED = "Couldn't connect to"
"""Text of perftest if no server listens."""
TESTS = ("ib_write_bw", "ib_read_bw", "ib_send_bw", "ib_write_lat", "ib_read_lat", "ib_send_lat")


def parsed_options(arguments: list[str]) -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--test", required=True, choices=TESTS, help="program of perftest")
    parser.add_argument("--device", default="", help="RDMA device on both nodes (default: the first one)")
    parser.add_argument("--seconds", type=int, default=10, help="measuring time (default: %(default)s)")
    parser.add_argument("--size", type=int, help="size of a message in bytes (default: perftest's)")
    parser.add_argument(
        "--port", type=int, default=18515, help="TCP port of the server (default: %(default)s)"
    )
    parser.add_argument("--nodes", type=int, required=True, help="number of nodes, which must be 2")
    parser.add_argument("--node-rank", type=int, required=True, help="0 for the client, 1 for the server")
    parser.add_argument("--rendezvous", help="ignored; perftest connects by itself")
    options = parser.parse_args(arguments)
    if options.nodes != 2:
        parser.error(f"perftest measures between 2 nodes, not {options.nodes}: set nodes to 2")
    return options


def command_of(options: argparse.Namespace) -> list[str]:
    """Return the server's command of perftest. The client's has the server's address in addition."""
    # -F: a CPU that changes its frequency is not an error.
    command = [options.test, "-F", "-D", str(options.seconds), "-p", str(options.port)]
    if options.test.endswith("_bw"):
        command.append("--report_gbits")
    if options.device:
        command += ["-d", options.device]
    if options.size:
        command += ["-s", str(options.size)]
    return command


def run_client(command: list[str]) -> int:
    """Run the client until it reaches the server or the time is up.

    Print its output, and return its exit status.
    """
    deadline = time.monotonic() + CONNECT_S
    while True:
        ended = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
        )
        output = ended.stdout.decode("utf-8", "replace")
        if ended.returncode == 0 or NOT_CONNECTED not in output or time.monotonic() > deadline:
            print(output, end="", flush=True)
            return ended.returncode
        time.sleep(1)


def main(arguments: list[str]) -> int:
    """Run this node's half of the test. Return 0, 1 if it failed, or :data:`run_command.MISSING`."""
    options = parsed_options(arguments)
    program = shutil.which(options.test)
    if program is None:
        print(f"rackproof: {options.test} is not on this node: install perftest", flush=True)
        return MISSING
    path = os.path.realpath(program)
    print(f"rackproof: program {path}, sha256 {digest_of(path)}", flush=True)
    command = command_of(options)
    if options.node_rank == 0:
        status = run_client([*command, os.environ["RACKPROOF_ADDRESSES"].split(",")[1]])
    else:
        status = subprocess.call(command, stdin=subprocess.DEVNULL)
    if status:
        print(f"rackproof: {path} ended with exit status {status}", flush=True)
    return 1 if status else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
