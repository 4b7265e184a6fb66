"""Test workloads/rendezvous.py, which starts one program on several nodes and ends it on all if one fails.

The nodes of these tests are addresses of this machine. The tests show that the nodes connect and measure
their network, and that the program gets the address of its ranks' rendezvous. If a node is lost or does not
connect, a message names it.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

ADDRESSES = ("127.0.0.1", "127.0.0.2", "127.0.0.3")
# A program that prints its arguments, and the interfaces that Gloo and NCCL are to use.
ECHO = (
    "import os, sys; print(sys.argv[1:], os.environ['GLOO_SOCKET_IFNAME'], os.environ['NCCL_SOCKET_IFNAME'])"
)


class Nodes:
    """Several nodes, each with a folder and an address. :meth:`start` runs rendezvous.py on one."""

    def __init__(self, root: Path, folder: Path, count: int, network: str = "host") -> None:
        self.root, self.folder, self.count = root, folder, count
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        peers = [{"name": f"n{rank}", "address": ADDRESSES[rank]} for rank in range(count)]
        self.started: list[subprocess.Popen[str]] = []
        for rank in range(count):
            place = folder / f"n{rank}"
            place.mkdir()
            point = {"node": f"n{rank}", "network": network, "interface": "lo", "address": ADDRESSES[rank]}
            (place / "point.json").write_text(json.dumps({**point, "peers": peers}))

    def start(self, rank: int, *program: str, options: tuple[str, ...] = ()) -> subprocess.Popen[str]:
        """Start rendezvous.py with a program on a node."""
        words = [
            f"--folder={self.folder / f'n{rank}'}",
            f"--node-rank={rank}",
            f"--port={self.port}",
            *options,
        ]
        started = subprocess.Popen(
            [sys.executable, str(self.root / "workloads/rendezvous.py"), *words, "--", *program],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.started.append(started)
        return started

    def ends(self, timeout: float = 300) -> list[tuple[int, str]]:
        """Wait for all started programs. Return the exit status and output of each."""
        found = []
        for one in self.started:
            output, _ = one.communicate(timeout=timeout)
            found.append((one.returncode, output))
        return found

    def noted(self, rank: int) -> dict[str, Any]:
        """Return the record that a node wrote."""
        return json.loads((self.folder / f"n{rank}" / "rendezvous.json").read_text())


def test_nodes_meet_measure_and_learn_where_their_ranks_meet(root: Path, tmp_path: Path) -> None:
    nodes = Nodes(root, tmp_path, 3, network="overlay")
    for rank in range(3):
        nodes.start(rank, sys.executable, "-c", ECHO + "; print(os.environ['NCCL_IB_DISABLE'])", "--own=1")
    ends = nodes.ends()
    assert [status for status, _ in ends] == [0, 0, 0], ends
    arguments = [output.splitlines()[-2] for _, output in ends]
    rendezvous = arguments[0].partition("--rendezvous=")[2].partition("'")[0]
    assert rendezvous.startswith("127.0.0.1:")
    for rank, line in enumerate(arguments):
        words = f"['--own=1', '--nodes=3', '--node-rank={rank}', '--rendezvous={rendezvous}'] lo =lo"
        assert line == words
        assert ends[rank][1].splitlines()[-1] == "1"
    ways = [(one["from"], one["to"]) for one in nodes.noted(0)["bandwidth"]]
    assert sorted(ways) == [("n0", "n1"), ("n0", "n2"), ("n1", "n0"), ("n2", "n0")]
    assert all(one["bytes_per_second"] > 1e6 for one in nodes.noted(0)["bandwidth"])
    assert "link n0 to n1: " in ends[0][1]
    for rank in range(3):
        noted = nodes.noted(rank)
        assert noted["status"] == 0
        assert noted["after"]["rx"] >= noted["before"]["rx"] > 0
    assert nodes.noted(0)["others"] == {"n1": 0, "n2": 0}


def test_one_node_alone_gets_nothing_but_its_interface(root: Path, tmp_path: Path) -> None:
    nodes = Nodes(root, tmp_path, 1)
    nodes.start(0, sys.executable, "-c", ECHO)
    assert nodes.ends() == [(0, "[] lo =lo\n")]
    assert nodes.noted(0)["bandwidth"] == []


@pytest.mark.parametrize("bad", [0, 1])
def test_a_program_that_fails_on_one_node_ends_that_of_the_other(
    root: Path, tmp_path: Path, bad: int
) -> None:
    nodes = Nodes(root, tmp_path, 2)
    for rank in range(2):
        nodes.start(
            rank,
            sys.executable,
            "-c",
            f"import sys, time; time.sleep({0 if rank == bad else 600}); sys.exit(5)",
        )
    ends = nodes.ends()
    assert ends[bad][0] == 5
    assert ends[1 - bad][0] == 1
    assert f"the program on n{bad} ended with status 5" in ends[1 - bad][1]


def test_a_node_that_is_lost_ends_the_run(root: Path, tmp_path: Path) -> None:
    nodes = Nodes(root, tmp_path, 2)
    ready = tmp_path / "ready"
    wait = f"import pathlib, time; pathlib.Path('{ready}').touch(); time.sleep(600)"
    nodes.start(0, sys.executable, "-c", wait)
    lost = nodes.start(1, sys.executable, "-c", "import time; time.sleep(600)")
    while not ready.exists():
        time.sleep(0.1)
    # Kill rendezvous.py and its program, as a loss of power would.
    children = Path(f"/proc/{lost.pid}/task/{lost.pid}/children").read_text().split()
    os.kill(lost.pid, signal.SIGKILL)
    for child in children:
        os.kill(int(child), signal.SIGKILL)
    ends = nodes.ends()
    assert ends[0][0] == 1
    assert "the program on n1 was lost" in ends[0][1]


def test_a_stop_reaches_the_program(root: Path, tmp_path: Path) -> None:
    nodes = Nodes(root, tmp_path, 1)
    ready = tmp_path / "ready"
    wait = f"import pathlib, time; pathlib.Path('{ready}').touch(); time.sleep(600)"
    one = nodes.start(0, sys.executable, "-c", wait)
    while not ready.exists():
        time.sleep(0.1)
    one.send_signal(signal.SIGTERM)
    assert nodes.ends()[0][0] == 128 + signal.SIGTERM
    assert nodes.noted(0)["status"] == 128 + signal.SIGTERM


def test_nodes_that_do_not_meet_name_the_missing_node(root: Path, tmp_path: Path) -> None:
    nodes = Nodes(root, tmp_path, 2)
    # Run a copy of the program that waits only a second for other nodes.
    program = root / "workloads/rendezvous.py"
    text = program.read_text().replace("MEET_S = 180.0", "MEET_S = 1.0")
    assert "MEET_S = 1.0" in text
    (tmp_path / "workloads").mkdir()
    (tmp_path / "workloads/rendezvous.py").write_text(text)
    nodes.root = tmp_path
    nodes.start(0, sys.executable, "-c", "print('never')")
    status, output = nodes.ends()[0]
    assert status == 8
    assert "n1 did not connect to 127.0.0.1" in output
    assert "never" not in output
    assert "n1 did not connect" in nodes.noted(0)["trouble"]


def test_a_launcher_is_started_on_the_first_node_only(root: Path, tmp_path: Path) -> None:
    nodes = Nodes(root, tmp_path, 2)
    for rank in range(2):
        nodes.start(rank, sys.executable, "-c", ECHO, options=("--only-first",))
    ends = nodes.ends()
    assert [status for status, _ in ends] == [0, 0], ends
    assert ends[0][1].splitlines()[-1] == "[] lo =lo"
    assert ends[1][1] == ""
    assert len(nodes.noted(0)["bandwidth"]) == 2


@pytest.mark.torch
def test_an_mlp_trains_on_two_nodes_as_on_one(
    root: Path, tmp_path: Path, torch_python: str, small_data: Path
) -> None:
    """Both runs use the same batches in the same order, so only rounding may change the loss."""
    options = (
        "--data",
        str(small_data),
        "--batch-size",
        "64",
        "--num-epochs",
        "1",
        "--gpus",
        "0",
        "--precision",
        "fp32",
    )
    losses = []
    for count in (1, 2):
        place = tmp_path / f"of-{count}"
        place.mkdir()
        nodes = Nodes(root, place, count)
        for rank in range(count):
            nodes.start(
                rank, torch_python, str(root / "workloads/mnist_torch.py"), "--network", "mlp", *options
            )
        ends = nodes.ends(280)
        assert [status for status, _ in ends] == [0] * count, ends
        lines = ends[0][1].splitlines()
        events = [json.loads(line.partition("MLLOG ")[2]) for line in lines if line.startswith(":::MLLOG ")]
        assert [event["value"] for event in events if event["key"] == "nodes"] == [count]
        losses.append(
            [event["value"]["train_loss"] for event in events if event["key"] == "tracked_stats"][-1]
        )
    assert losses[1] == pytest.approx(losses[0], rel=0.02)
