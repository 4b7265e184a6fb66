"""Test how rendezvous.py names a node that is lost while the nodes measure their network.

test_rendezvous.py starts whole programs. These tests call the functions of the first node, and play another
node.
"""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest

from tests.workloads.programs import load_program


@pytest.fixture(scope="module")
def rendezvous() -> Any:
    """Return the module."""
    return load_program("rendezvous")


class Pair:
    """The first node, and a connection that plays node n1."""

    def __init__(self, rendezvous: ModuleType) -> None:
        peers = [{"name": "n0", "address": "127.0.0.1"}, {"name": "n1", "address": "127.0.0.1"}]
        self.first = rendezvous.First({"peers": peers, "address": "127.0.0.1"}, 0)
        with socket.create_server(("127.0.0.1", 0)) as server:
            self.other = socket.create_connection(server.getsockname())
            self.accepted = server.accept()[0]
        self.first.lines["n1"] = rendezvous.Line(self.accepted)

    def streams(self) -> list[socket.socket]:
        """Connect for the measurement, as n1 does."""
        message = json.loads(self.other.makefile().readline())
        return [socket.create_connection(("127.0.0.1", message["measure"])) for _ in range(4)]


@pytest.fixture
def pair(rendezvous: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pair]:
    monkeypatch.setattr(rendezvous, "MEASURE_S", 0.02)
    monkeypatch.setattr(rendezvous, "ANSWER_S", 0.2)
    both = Pair(rendezvous)
    yield both
    both.other.close()
    both.accepted.close()


def read_all(stream: socket.socket) -> None:
    """Read until the other side ends, and then end this side."""
    while stream.recv(1 << 20):
        pass
    stream.close()


def silent(pair: Pair) -> None:
    for stream in pair.streams():
        read_all(stream)


def lost(pair: Pair) -> None:
    silent(pair)
    pair.other.close()


def without_rate(pair: Pair) -> None:
    silent(pair)
    pair.other.sendall(b'{"node": "n1"}\n')


def no_json(pair: Pair) -> None:
    silent(pair)
    pair.other.sendall(b"not JSON\n")


@pytest.mark.parametrize(
    ("play", "why"),
    [
        (silent, "n1 cannot be measured: timed out; see its log"),
        (lost, "n1 cannot be measured: its connection was lost"),
        (without_rate, "n1 cannot be measured: its connection was lost"),
        (no_json, "n1 cannot be measured: .*; see its log"),
    ],
)
def test_a_node_that_does_not_answer_is_named(
    rendezvous: ModuleType, pair: Pair, play: Callable[[Pair], None], why: str
) -> None:
    playing = threading.Thread(target=play, args=(pair,))
    playing.start()
    with pytest.raises(rendezvous.NotMet, match=why):
        pair.first.measure()
    playing.join()


def test_both_rates_are_stated(rendezvous: ModuleType, pair: Pair) -> None:
    def answer() -> None:
        streams = pair.streams()
        for stream in streams:
            while stream.recv(1 << 20):
                pass
        pair.other.sendall(b'{"rate": 7}\n')
        for stream in streams:
            stream.sendall(b"x" * 1000)
            stream.close()

    playing = threading.Thread(target=answer)
    playing.start()
    there, back = pair.first.measure()
    playing.join()
    assert (there["to"], there["bytes_per_second"]) == ("n1", 7)
    assert (back["from"], back["bytes_per_second"] > 0) == ("n1", True)


def test_a_node_that_was_lost_before_the_start_is_named(rendezvous: ModuleType, pair: Pair) -> None:
    pair.accepted.shutdown(socket.SHUT_WR)
    with pytest.raises(rendezvous.NotMet, match="n1 was lost"):
        pair.first.go()


def test_the_end_of_a_program_waits_for_no_timer(rendezvous: ModuleType) -> None:
    program = rendezvous.Program(["sleep", "600"], {"PATH": "/usr/bin:/bin"})
    before = set(threading.enumerate())
    program.end("the program on n1 was lost")
    assert program.process.wait() == -15
    assert all(thread.daemon for thread in set(threading.enumerate()) - before)
