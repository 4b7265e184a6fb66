"""Run parts of the gate, or suites, side by side.

`python -m tools.proof` uses this module. Each part has a time limit, and its progress is printed. If one
fails, the others are ended, unless they are to continue.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

HEARTBEAT_S = 30
"""Seconds between two lines that list the running parts."""
GRACE_S = 15
"""Seconds between SIGTERM and SIGKILL for the processes of a part."""
SHOWN_LINES = 200
"""Number of the last lines of a red part's log that are printed."""
END_WITH_PARENT = ("setpriv", "--pdeathsig", "KILL")
"""Beginning of a command that the kernel ends when the program that started it ends or is killed."""
COUNT = re.compile(r"^(?:=+ )?.*?\b(\d+) passed", re.MULTILINE)
"""Pattern of the number of passed tests in pytest's last line."""

Say = Callable[[str], None]


@dataclass
class Part:
    """A part of the gate or a suite, as a sequence of shell commands.

    A part that calls pytest is green only if a test passed. pytest itself succeeds if it skipped every test.
    ``limit_s`` is the time limit, ``expected_s`` the time on the last green run, or 0, and ``begun`` the
    start by the monotonic clock. ``tests`` is the number of passed tests, and ``problem`` the reason if the
    part is red.
    """

    name: str
    commands: Sequence[str]
    limit_s: float
    expected_s: float = 0
    log: Path = Path(os.devnull)
    state: str = "waits"  # waits, runs, green, red, ended
    seconds: float = 0
    tests: int = 0
    begun: float = 0
    problem: str = ""

    def finish(self, state: str) -> None:
        """Store the result of the part, its time, and the number of its tests that passed."""
        self.state = state
        self.seconds = time.monotonic() - self.begun
        self.tests = sum(int(number) for number in COUNT.findall(read_end(self.log, 1 << 20)))
        if state == "green" and not self.tests and any("pytest " in command for command in self.commands):
            self.state, self.problem = "red", "no test passed, because all were skipped"


def read_end(path: Path, size: int) -> str:
    """Return the last bytes of a file as text, or "" if it cannot be read."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - size))
            return file.read().decode(errors="replace")
    except OSError:
        return ""


class Lanes:
    """Lists of parts that run side by side. The parts of one lane run one after another.

    A red part ends all others, or none if they must continue.
    """

    def __init__(self, root: Path, environment: dict[str, str], say: Say, *, go_on: bool = False) -> None:
        self.root, self.environment, self.say, self.go_on = root, environment, say, go_on
        self.failed = threading.Event()
        self.running: list[Part] = []

    def run(self, lanes: Iterable[Sequence[Part]], after: Callable[[Part], None] = lambda part: None) -> bool:
        """Run the lanes, and call ``after`` with each ended part. Return whether every part was green."""
        lanes = [list(lane) for lane in lanes]
        threads = [
            threading.Thread(target=self._run_lane, args=(lane, after), daemon=True) for lane in lanes if lane
        ]
        for thread in threads:
            thread.start()
        try:
            self._watch(threads)
        except BaseException:
            self.failed.set()
            for thread in threads:
                thread.join(GRACE_S * 3)
            raise
        return all(part.state == "green" for lane in lanes for part in lane)

    def _watch(self, threads: Sequence[threading.Thread]) -> None:
        shown = time.monotonic()
        while any(thread.is_alive() for thread in threads):
            time.sleep(0.2)
            if time.monotonic() - shown > HEARTBEAT_S:
                shown = time.monotonic()
                self.say("; ".join(_progress(part) for part in list(self.running)) or "waiting")

    def _run_lane(self, lane: Sequence[Part], after: Callable[[Part], None]) -> None:
        """Run the parts of a lane in order. A red part stops all lanes, unless ``go_on`` is set."""
        for part in lane:
            if self.failed.is_set():
                return
            self._run_part(part)
            after(part)
            if part.state != "green" and not self.go_on:
                self.failed.set()
                return

    def _run_part(self, part: Part) -> None:
        """Run a part's commands until one fails, with their output in the part's log."""
        part.state, part.begun = "runs", time.monotonic()
        part.log.parent.mkdir(parents=True, exist_ok=True)
        about = f", about {part.expected_s:.0f} s" if part.expected_s else ""
        self.say(f"{part.name} begins{about} (its output: {part.log})")
        self.running.append(part)
        state = "green"
        with part.log.open("wb") as log:
            for command in part.commands:
                state = self._run_command(part, command, log)
                if state != "green":
                    break
        part.finish(state)
        self.running.remove(part)
        self._print_end(part)

    def _run_command(self, part: Part, command: str, log: IO[bytes]) -> str:
        """Run one command of a part, and return its state."""
        # For a single command, the command replaces the shell, so it ends with this process.
        process = subprocess.Popen(
            [*END_WITH_PARENT, "bash", "-c", command],
            cwd=self.root,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        while (status := process.poll()) is None:
            if self.failed.is_set():
                end_tree(process)
                return "ended"
            if time.monotonic() - part.begun > part.limit_s:
                self.say(f"{part.name} did not end within {part.limit_s / 60:.0f} min")
                end_tree(process)
                return "red"
            time.sleep(0.2)
        return "green" if status == 0 else "red"

    def _print_end(self, part: Part) -> None:
        """Print a part's state, with the last lines of its log."""
        if part.state == "ended":
            self.say(f"{part.name} was ended after {part.seconds:.0f} s")
            return
        why = f": {part.problem}" if part.problem else ""
        self.say(f"{part.name} is {part.state} after {part.seconds:.0f} s{why}")
        lines = read_end(part.log, 1 << 20).splitlines()
        for line in lines[-SHOWN_LINES:] if part.state == "red" else lines[-1:]:
            print(f"  {line}", flush=True)


def _progress(part: Part) -> str:
    spent = time.monotonic() - part.begun
    return f"{part.name}: {spent:.0f} s" + (f" of about {part.expected_s:.0f}" if part.expected_s else "")


def end_tree(process: subprocess.Popen[bytes]) -> None:
    """End a process and its children, first with time to clean up and then without."""
    children = descendants(process.pid)
    for number in (signal.SIGINT, signal.SIGKILL):
        for pid in [process.pid, *children]:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_S)
        children = [pid for pid in children if is_alive(pid)]
        if not children and process.poll() is not None:
            return
    process.wait()


def is_alive(pid: int) -> bool:
    """Return whether a process runs. A zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (OSError, IndexError):
        return False


def descendants(pid: int) -> list[int]:
    """Return the ids of all descendants of a process."""
    parents: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
    pids = [pid]
    for process in pids:
        pids += [child for child, parent in parents.items() if parent == process]
    return pids[1:]


def end_leftovers(variable: str) -> list[str]:
    """End processes of a killed gate or suite. Return the names of the programs.

    Args:
        variable: Environment variable with the process id of the gate or suite, which is set in all that it
            starts. The container engine is left, because it serves others, too, and the rack's own command
            stops it.
    """
    ended = []
    # In another namespace, the number means another process, because a container may run its own gate.
    namespace = os.readlink("/proc/self/ns/pid")
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if os.readlink(path.with_name("ns") / "pid") != namespace:
                continue
            match = re.search(rb"(?:^|\0)%s=(\d+)\0" % variable.encode(), path.read_bytes())
            name = path.with_name("comm").read_text().strip()
            if match and not name.startswith(("dockerd", "containerd")) and not _is_proof(int(match[1])):
                os.kill(int(path.parent.name), signal.SIGKILL)
                ended.append(name)
    return sorted(ended)


def _is_proof(pid: int) -> bool:
    """Return whether that process lives and is a gate or `make prove`."""
    try:
        return b"tools.proof" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def format_table(parts: Sequence[Part], total_s: float) -> str:
    """Return the table of parts with name, state, seconds and tests."""
    rows = [(part.name, part.state, f"{part.seconds:.0f}", str(part.tests or "")) for part in parts]
    rows.append(("in all", "", f"{total_s:.0f}", str(sum(part.tests for part in parts))))
    width = max(len(name) for name, *_ in rows) + 2
    heading = f"{'part':<{width}}{'result':<8}{'seconds':>8}{'tests':>8}"
    lines = [f"{name:<{width}}{state:<8}{seconds:>8}{tests:>8}" for name, state, seconds, tests in rows]
    return "\n".join([heading, *lines])
