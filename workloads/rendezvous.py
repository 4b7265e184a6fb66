#!/usr/bin/env python3
"""Start one program on several nodes at once, and end all parts if one fails.

    rendezvous.py --folder RUN_FOLDER --node-rank I [--port P] [--only-first] -- PROGRAM ...

bench.yml starts this program on each node of a point with `nodes`, `network` or `storage`, under Rackproof's
supervisor. It needs only the standard library of Python 3.8 or newer. The module rackproof_bench_setup wrote
interface and addresses to point.json in the run's folder.

All nodes connect to the first one, which measures the TCP bandwidth to and from each other node. Then each
node starts the program. NCCL's and Gloo's variables name the interface. If there are several nodes, the
program gets --nodes, --node-rank and --rendezvous. With --only-first, only the first node starts it, without
these options. The measurements, and the traffic of the interface during the program, are written to
rendezvous.json.

The exit status is the program's, or 1 if another node's program failed. It is 8 if the nodes did not connect
to each other, or if point.json or the program cannot be used.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time

EXIT_ERROR = 1
EXIT_USAGE = 2
EXIT_NOT_MET = 8

PORT = 29417
MEET_S = 180.0
"""Longest wait of the nodes for each other."""
MEASURE_S = 0.5
"""Seconds of measurement for each direction of each pair."""
ANSWER_S = 120.0
"""Seconds in which a node states the rate that it measured."""
STREAMS = 4
"""Number of TCP streams of a measurement, because one stream does not fill a fast link."""
CHUNK = 1 << 20
GRACE_S = 10.0
"""Seconds between SIGTERM and SIGKILL for the program, and for the other nodes to state their end."""


class NotMet(Exception):  # noqa: N818  (the name states the fact)
    """A rendezvous that failed. The text gives the missing nodes and the remedy."""


class Line:
    """A connection for JSON objects, one on each line."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self._rest = b""
        # A node that loses power sends nothing, so only keepalive notices its loss.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in (("TCP_KEEPIDLE", 20), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 4)):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)

    def send_message(self, **words: object) -> None:
        """Send an object with these fields."""
        self.connection.sendall(json.dumps(words).encode() + b"\n")

    def receive_message(self, seconds: float | None) -> dict[str, object]:
        """Return the next message, or {} if the other side is gone or sends something that is not an object.

        Raises:
            socket.timeout: No message came in time.
            ValueError: The message is not JSON.
        """
        self.connection.settimeout(seconds)
        while b"\n" not in self._rest:
            try:
                data = self.connection.recv(65536)
            except socket.timeout:  # noqa: UP041  (its own class before Python 3.10)
                raise
            except OSError:
                return {}
            if not data or len(self._rest) > 1 << 20:
                return {}
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\n")
        message = json.loads(line.decode())
        return message if isinstance(message, dict) else {}


def carried(interface: str) -> dict[str, int | None]:
    """Return the number of bytes that an interface received and sent so far, or None if it is not listed."""
    # Do not read /sys, which may belong to another network namespace.
    with open("/proc/net/dev") as stream:
        for line in stream:
            name, colon, rest = line.partition(":")
            fields = rest.split()
            if colon and name.strip() == interface and len(fields) > 8:
                return {"rx": int(fields[0]), "tx": int(fields[8])}
    return {"rx": None, "tx": None}


def listen(address: str, port: int) -> socket.socket:
    """Return a socket that listens at an address and port."""
    server = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    server.bind((address, port))
    server.listen(64)
    return server


def pour(connection: socket.socket, until: float) -> None:
    """Send until a time of the monotonic clock."""
    data = bytes(CHUNK)
    with contextlib.suppress(OSError):
        while time.monotonic() < until:
            connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)


def drain(connection: socket.socket, counts: list[int], times: list[float]) -> None:
    """Receive until the other side ends. Append the number of bytes and the time of the end to the lists."""
    buffer = bytearray(CHUNK)
    got = 0
    with contextlib.suppress(OSError):
        while True:
            read = connection.recv_into(buffer)
            if not read:
                break
            got += read
    counts.append(got)
    times.append(time.monotonic())


def in_threads(work: list[threading.Thread]) -> None:
    """Run all threads, and wait for the end of each for at most :data:`MEET_S`."""
    for thread in work:
        thread.start()
    for thread in work:
        thread.join(MEET_S)


def receive(connections: list[socket.socket]) -> float:
    """Receive over all connections. Return their total rate in bytes per second."""
    counts: list[int] = []
    times: list[float] = []
    began = time.monotonic()
    in_threads(
        [
            threading.Thread(target=drain, args=(connection, counts, times), daemon=True)
            for connection in connections
        ]
    )
    return sum(counts) / max(1e-9, max(times, default=began) - began)


def send(connections: list[socket.socket], seconds: float) -> None:
    """Send over connections for a number of seconds."""
    until = time.monotonic() + seconds
    in_threads(
        [threading.Thread(target=pour, args=(connection, until), daemon=True) for connection in connections]
    )


def connections_to(address: str, port: int, own: str) -> list[socket.socket]:
    """Return connections to a node that measures the bandwidth."""
    return [
        socket.create_connection((address, port), timeout=30, source_address=(own, 0)) for _ in range(STREAMS)
    ]


def accepted(server: socket.socket) -> list[socket.socket]:
    """Return the connections of a node whose bandwidth is measured."""
    server.settimeout(30)
    sockets = [server.accept()[0] for _ in range(STREAMS)]
    for connection in sockets:
        connection.settimeout(60)
    return sockets


def closed(connections: list[socket.socket]) -> None:
    """Close connections."""
    for connection in connections:
        with contextlib.suppress(OSError):
            connection.close()


class First:
    """The first node, which waits for the others, measures, and lets them start."""

    def __init__(self, point: dict[str, object], port: int) -> None:
        self.peers = list(point["peers"])  # type: ignore[call-overload]
        self.own = str(point["address"])
        self.port = port
        self.lines: dict[str, Line] = {}

    def meet(self) -> None:
        """Wait for the other nodes.

        Raises:
            NotMet: A node did not connect in time.
        """
        wanted = {peer["name"] for peer in self.peers[1:]}
        deadline = time.monotonic() + MEET_S
        with listen(self.own, self.port) as server:
            while wanted - set(self.lines):
                server.settimeout(max(0.1, deadline - time.monotonic()))
                try:
                    line = Line(server.accept()[0])
                    name = str(line.receive_message(10).get("node", ""))
                except (socket.timeout, ValueError):  # noqa: UP041
                    if time.monotonic() < deadline:
                        continue
                    absent = ", ".join(sorted(wanted - set(self.lines)))
                    raise NotMet(
                        f"{absent} did not connect to {self.own}:{self.port} within {MEET_S:g} s: see its "
                        "log, and whether the network lets that port through"
                    ) from None
                if name in wanted:
                    self.lines[name] = line

    def measure(self) -> list[dict[str, object]]:
        """Return the bandwidth to and from each other node in bytes per second.

        Raises:
            NotMet: A node was lost before or during its measurement.
        """
        results: list[dict[str, object]] = []
        first = self.peers[0]["name"]
        for name, line in self.lines.items():
            try:
                their_rate, back = self.measure_with(line)
            except (OSError, ValueError) as error:
                raise NotMet(f"{name} cannot be measured: {error}; see its log") from error
            results.append({"from": first, "to": name, "bytes_per_second": their_rate, "streams": STREAMS})
            results.append({"from": name, "to": first, "bytes_per_second": back, "streams": STREAMS})
        return results

    def measure_with(self, line: Line) -> tuple[object, float]:
        """Return the bandwidth to and from the node of a connection in bytes per second.

        Raises:
            OSError: The node did not connect or answer in time, or was lost.
            ValueError: Its message is not JSON.
        """
        with listen(self.own, 0) as server:
            line.send_message(measure=server.getsockname()[1])
            streams = accepted(server)
            send(streams, MEASURE_S)
            answer = line.receive_message(ANSWER_S)
            if "rate" not in answer:
                raise OSError("its connection was lost")
            back = receive(streams)
            closed(streams)
        return answer["rate"], back

    def go(self) -> str:
        """Signal all nodes to start. Return the address of their ranks' rendezvous.

        Raises:
            NotMet: A node was lost.
        """
        with listen(self.own, 0) as server:
            port = server.getsockname()[1]
        for name, line in self.lines.items():
            try:
                line.send_message(go=True, rendezvous=f"{self.own}:{port}")
            except OSError as error:
                raise NotMet(f"{name} was lost ({error}); see its log") from error
        return f"{self.own}:{port}"


class Other:
    """A node other than the first."""

    def __init__(self, point: dict[str, object], port: int) -> None:
        self.first = next(iter(point["peers"]))  # type: ignore[call-overload]
        self.own = str(point["address"])
        self.node = str(point["node"])
        self.port = port
        self.line: Line

    def meet(self) -> str:
        """Connect to the first node, and take part in the measurement.

        Return the address of the ranks' rendezvous.

        Raises:
            NotMet: The first node cannot be reached, or its connection ended.
        """
        deadline = time.monotonic() + MEET_S
        while True:
            try:
                connection = socket.create_connection(
                    (self.first["address"], self.port), timeout=5, source_address=(self.own, 0)
                )
                break
            except OSError as error:
                if time.monotonic() > deadline:
                    raise NotMet(
                        f"{self.first['name']} is not reached at {self.first['address']}:{self.port}: {error}"
                    ) from error
                time.sleep(0.3)
        self.line = Line(connection)
        self.line.send_message(node=self.node)
        while True:
            try:
                answer = self.line.receive_message(MEET_S)
            except socket.timeout:  # noqa: UP041
                answer = {}
            if answer.get("go"):
                return str(answer["rendezvous"])
            if "measure" not in answer:
                raise NotMet(f"{self.first['name']} was lost; see its log for the reason")
            try:
                streams = connections_to(self.first["address"], int(str(answer["measure"])), self.own)
                self.line.send_message(rate=receive(streams))
            except OSError as error:
                raise NotMet(f"{self.first['name']} cannot be measured: {error}; see its log") from error
            send(streams, MEASURE_S)
            closed(streams)


class Program:
    """The program on this node. It is ended if another node fails, or if this process gets a signal."""

    def __init__(self, argv: list[str], environment: dict[str, str]) -> None:
        self.process = subprocess.Popen(argv, env=environment)
        self.why = ""

    def end(self, why: str) -> None:
        """End the program for a reason, such as a failure of another node. The first reason counts."""
        if self.process.poll() is None and not self.why:
            self.why = why
            self.process.terminate()
            timer = threading.Timer(GRACE_S, self.process.kill)
            # This process waits for the program, and then need not wait for the timer.
            timer.daemon = True
            timer.start()


def watch(name: str, line: Line, program: Program, ends: dict[str, object]) -> None:
    """Receive how another node ends. End this node's program if the other one failed."""
    try:
        answer = line.receive_message(None)
    except (OSError, ValueError):
        answer = {}
    status = answer.get("status")
    ends[name] = status
    if status != 0:
        how = "was lost" if status is None else f"ended with status {status}"
        program.end(f"the program on {name} {how}; see its log")


def environment(point: dict[str, object]) -> dict[str, str]:
    """Return the program's environment, in which NCCL and Gloo use the run's network."""
    variables = dict(os.environ)
    interface = str(point["interface"])
    variables["GLOO_SOCKET_IFNAME"] = interface
    variables["NCCL_SOCKET_IFNAME"] = f"={interface}"
    if point["network"] == "overlay":
        # InfiniBand and RoCE would bypass the overlay.
        variables["NCCL_IB_DISABLE"] = "1"
    peers = list(point["peers"])  # type: ignore[call-overload]
    variables["RACKPROOF_NODES"] = ",".join(peer["name"] for peer in peers)
    variables["RACKPROOF_ADDRESSES"] = ",".join(str(peer["address"]) for peer in peers)
    variables["RACKPROOF_FIRST"] = str(peers[0]["address"])
    variables["RACKPROOF_NETWORK"] = str(point["network"])
    return variables


def work(options: argparse.Namespace, point: dict[str, object], noted: dict[str, object]) -> int:
    """Meet, measure and run. Return the exit status."""
    nodes = len(list(point["peers"]))  # type: ignore[call-overload]
    rendezvous, lines = meet_others(options, point, noted) if nodes > 1 else ("", {})
    argv = list(options.program)
    if nodes > 1 and not options.only_first:
        argv += [f"--nodes={nodes}", f"--node-rank={options.node_rank}", f"--rendezvous={rendezvous}"]
    noted["before"] = carried(str(point["interface"]))
    if options.only_first and options.node_rank > 0:
        # The launcher on the first node starts the processes here.
        return stand_by(lines, noted, point)
    program = Program(argv, environment(point))
    end_on_signals(program)
    ends: dict[str, object] = {}
    watches = [] if options.only_first else start_watches(lines, program, ends)
    status = program.process.wait()
    status = 128 - status if status < 0 else status
    noted["after"] = carried(str(point["interface"]))
    noted["status"] = status
    for line in lines.values():
        with contextlib.suppress(OSError):
            line.send_message(status=status)
    for watcher in watches:
        watcher.join(GRACE_S if status == 0 else 0.5)
    noted["others"] = ends
    if program.why:
        print(f"ended: {program.why}", file=sys.stderr, flush=True)
        return EXIT_ERROR if "stopped by" not in program.why else status
    return status


def meet_others(
    options: argparse.Namespace, point: dict[str, object], noted: dict[str, object]
) -> tuple[str, dict[str, Line]]:
    """Return the address of the ranks' rendezvous, and the connections to the other nodes.

    The first node also measures these.
    """
    if options.node_rank != 0:
        other = Other(point, options.port)
        rendezvous = other.meet()
        return rendezvous, {str(other.first["name"]): other.line}
    first = First(point, options.port)
    first.meet()
    noted["bandwidth"] = measured = first.measure()
    for result in measured:
        gigabits = float(str(result["bytes_per_second"])) * 8 / 1e9
        print(f"link {result['from']} to {result['to']}: {gigabits:.4g} Gbit/s", flush=True)
    return first.go(), first.lines


def end_on_signals(program: Program) -> None:
    """End the program when this process gets a signal to end."""

    def stop(number: int, _: object) -> None:
        program.end(f"stopped by {signal.Signals(number).name}")

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, stop)


def start_watches(
    lines: dict[str, Line], program: Program, ends: dict[str, object]
) -> list[threading.Thread]:
    """Watch each other node in a thread, and store in ``ends`` how each one ended."""
    watches = [
        threading.Thread(target=watch, args=(name, line, program, ends), daemon=True)
        for name, line in lines.items()
    ]
    for watcher in watches:
        watcher.start()
    return watches


def stand_by(lines: dict[str, Line], noted: dict[str, object], point: dict[str, object]) -> int:
    """Wait until the first node's launcher ends. Return 0 if it succeeded, or else :data:`EXIT_ERROR`."""
    line = next(iter(lines.values()))
    answer = line.receive_message(None)
    noted["after"] = carried(str(point["interface"]))
    noted["status"] = answer.get("status")
    if answer.get("status") == 0:
        return 0
    print(
        "ended: the first node's launcher failed or was lost; its log says why", file=sys.stderr, flush=True
    )
    return EXIT_ERROR


def main() -> int:
    """Meet the other nodes, run the program, and write the measurements. Return the exit status."""
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument("--folder", required=True, help="the run's folder, which holds point.json")
    arguments.add_argument("--node-rank", type=int, required=True, help="number of this node, from 0")
    arguments.add_argument("--port", type=int, default=PORT, help="port of node 0 (default: %(default)s)")
    arguments.add_argument(
        "--only-first", action="store_true", help="the program is a launcher: only the first node starts it"
    )
    arguments.add_argument("program", nargs="+", help="program to start, after --")
    options = arguments.parse_args()
    noted: dict[str, object] = {"bandwidth": []}
    try:
        with open(os.path.join(options.folder, "point.json")) as stream:
            point = json.load(stream)
        return work(options, point, noted)
    except (OSError, ValueError, KeyError, NotMet) as error:
        noted["trouble"] = f"{error}"
        print(f"error: {error}", file=sys.stderr, flush=True)
        return EXIT_NOT_MET
    finally:
        path = os.path.join(options.folder, "rendezvous.json")
        with contextlib.suppress(OSError):
            with open(path + ".part", "w") as stream:
                json.dump(noted, stream)
            os.replace(path + ".part", path)


if __name__ == "__main__":
    sys.exit(main())
