"""Test workloads/perftest_pair.py, which runs a test of perftest between two nodes.

A script imitates perftest: its server listens on a TCP port, and its client connects to it.
"""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

PERFTEST = """\
#!{python}
import socket, sys, time
arguments = sys.argv[1:]
port = int(arguments[arguments.index("-p") + 1])
if arguments[-2:-1] == ["-p"] or not arguments[-1].startswith("127."):
    time.sleep(2)
    with socket.create_server(("127.0.0.1", port)) as server:
        server.accept()
    print("server", *arguments)
else:
    try:
        socket.create_connection((arguments[-1], port))
    except OSError:
        print(f"Couldn't connect to {{arguments[-1]}}:{{port}}", file=sys.stderr)
        sys.exit(1)
    print("client", *arguments)
"""


@pytest.fixture
def port() -> int:
    """Return a free TCP port."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def start(root: Path, folder: Path, rank: int, *options: str) -> subprocess.Popen[str]:
    """Start the program as one of the two nodes."""
    command = ["--test", "ib_write_bw", "--nodes=2", f"--node-rank={rank}", "--rendezvous=127.0.0.1:1"]
    return subprocess.Popen(
        [sys.executable, root / "workloads/perftest_pair.py", *command, *options],
        env={"PATH": str(folder), "RACKPROOF_ADDRESSES": "127.0.0.9,127.0.0.1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def place(folder: Path, text: str) -> None:
    """Write the script that imitates perftest."""
    program = folder / "ib_write_bw"
    program.write_text(text)
    program.chmod(0o755)


def test_the_client_waits_for_the_server_of_the_second_node(root: Path, tmp_path: Path, port: int) -> None:
    place(tmp_path, PERFTEST.format(python=sys.executable))
    options = ("--device", "mlx5_3", "--seconds", "5", "--size", "65536", "--port", str(port))
    client, server = start(root, tmp_path, 0, *options), start(root, tmp_path, 1, *options)
    printed = [process.communicate(timeout=300)[0].splitlines() for process in (client, server)]
    words = f"-F -D 5 -p {port} --report_gbits -d mlx5_3 -s 65536"
    assert printed[0][1:] == [f"client {words} 127.0.0.1"]
    assert printed[1][1:] == [f"server {words}"]
    assert printed[0][0].startswith(f"rackproof: program {tmp_path}/ib_write_bw, sha256 ")
    assert (client.returncode, server.returncode) == (0, 0)


@pytest.mark.parametrize("rank", [0, 1])
def test_an_error_of_perftest_is_a_failure(root: Path, tmp_path: Path, rank: int) -> None:
    place(tmp_path, "#!/bin/sh\necho ' Unable to find device'\nexit 3\n")
    process = start(root, tmp_path, rank)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 1
    assert "Unable to find device" in output
    assert "ended with exit status 3" in output


def test_without_perftest_the_message_advises_to_install_it(root: Path, tmp_path: Path) -> None:
    process = start(root, tmp_path, 0)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 9
    assert "ib_write_bw is not on this node: install perftest" in output


def test_another_number_of_nodes_is_refused(root: Path, tmp_path: Path) -> None:
    process = start(root, tmp_path, 0, "--nodes=3")
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 2
    assert "between 2 nodes, not 3" in output
