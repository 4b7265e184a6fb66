"""Connect the ranks of training.py and preflight.py over TCP, and run their collectives.

Every rank is connected only to rank 0, which adds up and distributes the values.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

_HEAD = struct.Struct("!Q")
START_SECONDS = 90
"""Longest time that :meth:`Ranks.join` waits for another rank."""


class LostRankError(ConnectionError):
    """A rank that disappeared during a collective, or never connected."""


def first_of(node_list: str) -> str:
    """Return the first node of a Slurm list, such as ``n02`` for ``n[02-04,7],x1``."""
    head = node_list.split(",")[0] if "[" not in node_list.split(",")[0] else node_list
    if "[" not in head:
        return head
    prefix, rest = head.split("[", 1)
    return prefix + rest.split("]")[0].split(",")[0].split("-")[0]


@dataclass
class Ranks:
    """The rank of this process, and its connections to other ranks. :meth:`join` creates it."""

    rank: int
    size: int
    node: str
    sockets: dict[int, socket.socket] = field(default_factory=dict)
    """The connections by rank. Rank 0 has one to every other rank, and the others have only one to rank 0."""
    nodes: list[str] = field(default_factory=list)
    """The node of every rank."""

    @classmethod
    def join(cls, environment: Mapping[str, str] = os.environ, timeout: float = START_SECONDS) -> Ranks:
        """Connect to the other ranks of the job step that Slurm's variables describe.

        Raises:
            LostRankError: A rank does not connect within ``timeout`` seconds.
        """
        node = environment.get("SLURMD_NODENAME") or socket.gethostname()
        ranks = cls(
            int(environment.get("SLURM_PROCID", "0")), int(environment.get("SLURM_NTASKS", "1")), node
        )
        nodes = environment.get("SLURM_STEP_NODELIST") or environment.get("SLURM_NODELIST", "")
        address = environment.get("MASTER_ADDR") or first_of(nodes)
        address = address or environment.get("SLURM_LAUNCH_NODE_IPADDR") or "127.0.0.1"
        port = int(environment.get("MASTER_PORT") or 29500)
        if ranks.size > 1:
            if ranks.rank == 0:
                ranks._listen(port, timeout)
            else:
                ranks._connect(address, port, timeout)
        ranks.nodes = ranks.gather(node)
        return ranks

    def _listen(self, port: int, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        with socket.create_server(("", port), backlog=self.size) as server:
            while len(self.sockets) < self.size - 1:
                server.settimeout(max(0.01, deadline - time.monotonic()))
                try:
                    peer, _address = server.accept()
                    peer.settimeout(timeout)
                    rank = json.loads(_receive(peer))["rank"]
                except TimeoutError:
                    missing = sorted(set(range(1, self.size)) - set(self.sockets))
                    raise LostRankError(f"no word from ranks {missing} within {timeout:.0f} s") from None
                peer.settimeout(None)
                peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self.sockets[rank] = peer

    def _connect(self, address: str, port: int, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        while True:
            try:
                peer = socket.create_connection((address, port), timeout=timeout)
                break
            except OSError as error:
                if time.monotonic() > deadline:
                    raise LostRankError(
                        f"rank 0 at {address}:{port} does not answer within {timeout:.0f} s"
                    ) from error
                time.sleep(0.1)
        peer.settimeout(None)
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        _send(peer, json.dumps({"rank": self.rank}).encode())
        self.sockets[0] = peer

    def _exchange(self, rank: int, data: bytes | None = None) -> bytes:
        try:
            if data is None:
                return _receive(self.sockets[rank])
            _send(self.sockets[rank], data)
        except OSError as error:
            where = f" ({self.nodes[rank]})" if self.nodes else ""
            raise LostRankError(f"connection with rank {rank}{where} lost: {error}") from error
        return b""

    def sum(self, values: np.ndarray) -> np.ndarray:
        """Return the sum over all ranks, with the same bytes on each rank."""
        if self.size == 1:
            return values
        if self.rank:
            self._exchange(0, values.tobytes())
            return np.frombuffer(self._exchange(0), values.dtype).reshape(values.shape)
        total = values.copy()
        # Add in the order of ranks, so that a run with the same seed gives the same digits again.
        for rank in range(1, self.size):
            total += np.frombuffer(self._exchange(rank), values.dtype).reshape(values.shape)
        data = total.tobytes()
        for rank in range(1, self.size):
            self._exchange(rank, data)
        return total

    def gather(self, value: Any) -> list[Any]:
        """Return every rank's value, in order of rank."""
        if self.size == 1:
            return [value]
        if self.rank:
            self._exchange(0, json.dumps(value).encode())
            return list(json.loads(self._exchange(0)))
        everything = [value] + [json.loads(self._exchange(rank)) for rank in range(1, self.size)]
        data = json.dumps(everything).encode()
        for rank in range(1, self.size):
            self._exchange(rank, data)
        return everything

    def close(self) -> None:
        """Close the connections."""
        for peer in self.sockets.values():
            peer.close()


def _send(peer: socket.socket, data: bytes) -> None:
    peer.sendall(_HEAD.pack(len(data)) + data)


def _receive(peer: socket.socket) -> bytes:
    return _exactly(peer, _HEAD.unpack(_exactly(peer, _HEAD.size))[0])


def _exactly(peer: socket.socket, count: int) -> bytes:
    parts = []
    while count:
        part = peer.recv(min(count, 1 << 20))
        if not part:
            raise ConnectionResetError("closed by the other side")
        parts.append(part)
        count -= len(part)
    return b"".join(parts)
