"""Store a soak's samples on the node's disk, and decide whether a restarted soak continues from them.

With ``--notes``, probe_soak.py writes through a :class:`Keeper`, and decides with :func:`agree`. Each rank
writes a file of lines ``DIGEST JSON``. A line is the start of a session of the load, or about
:data:`LINE_S` of load. After a stall or with lowered clocks, a line ends earlier.

A digest covers its line and the digest before. A second file contains the number of lines and the last
digest. Together, they show whether a file was edited, cut or reordered. An incomplete last line, which a kill
may leave, does not count. The files do not show whether another program wrote both. The module needs only the
standard library.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import math
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import samples
from lock_file import open_lock
from soak_series import READINGS, StepTimes, Window, Windows, counted_seconds

FOLDER, FAULT = "soak-unfinished", "fault"
LINE_S = 10.0
"""Seconds of load after which a line of the file is written."""
GAP_S = 3600.0
"""Longest gap by default. A node that restarts is back by then, and the room's temperature has hardly
changed."""
ALIVE_EVERY_S = 5.0
"""Seconds between two signs of life of a load."""
SILENT_S = 60.0
"""Seconds between the last line and the last sign of life of a load, above which it was stuck at its end."""
CLOCK_S = 2.0
"""Seconds by which the node's clock may be set back between two sessions."""
DIGITS = 32
"""Length of a digest in the file."""
FAULTS = frozenset({1, 3, *(128 + signum for signum in (4, 6, 7, 8, 11))})
"""Exit statuses of a soak that failed by itself, with an error or a signal such as SIGABRT or SIGSEGV."""


class DamagedError(ValueError):
    """Samples that are not as they were written. The text gives the file, the line, and the fault."""


@dataclass
class Growth:
    """The growth of counters, added up over readings. A counter that is missing in a reading is left out.

    ``grown`` is the growth by counter, or None before the first reading. ``last`` is the last reading.
    """

    grown: dict[str, float] | None = None
    last: dict[str, float] = field(default_factory=dict)

    def begin(self, read: Mapping[str, float], same_boot: bool) -> None:
        """Take the first reading of a session. Errors in the gap count, unless the node restarted in it."""
        if self.grown is None:
            self.grown = dict.fromkeys(read, 0.0)
        self.take(read, samples.COUNTERS if same_boot else ())

    def take(self, read: Mapping[str, float], names: Iterable[str] | None = None) -> None:
        """Add the growth since the last reading. A counter that is lower started again at 0."""
        self.grown = {name: value for name, value in (self.grown or {}).items() if name in read}
        for name in self.grown.keys() & set(read if names is None else names):
            before, now = self.last.get(name, read[name]), read[name]
            self.grown[name] += now - before if now >= before else now
        self.last = dict(read)


@dataclass(frozen=True)
class Session:
    """One process's part of a load.

    Args:
        about: The process's hardware and software, by name.
        began: The start in Unix seconds.
        boot: The id of the node's boot.
        states: The states of the GPUs before the start, as logged.
        counters: The GPUs' counters at the start.
    """

    about: dict[str, str]
    began: float
    boot: str
    states: list[dict[str, Any]]
    counters: dict[str, float]


@dataclass
class Kept:
    """The samples of the sessions so far."""

    sessions: list[Session] = field(default_factory=list)
    ends: list[float] = field(default_factory=list)
    """The time of the last line of each session (Unix seconds)."""
    windows: Windows = field(default_factory=Windows)
    times: StepTimes = field(default_factory=StepTimes)
    wrong: int = 0
    """Number of values that differed in all sessions."""
    growth: Growth = field(default_factory=Growth)
    began_s: float = 0.0
    """Seconds of load before the last session."""
    starts: dict[float, float] = field(default_factory=dict)
    """The start of a session (Unix seconds), by the seconds of load before it."""

    def begin(self, session: Session) -> None:
        """Add a session.

        Raises:
            ValueError: The session is of another soak, or began before the last one ended.
        """
        last = self.sessions[-1] if self.sessions else None
        if last and (last.about != session.about or session.began < self.ends[-1] - CLOCK_S):
            raise ValueError("a session of another soak")
        self.growth.begin(session.counters, same_boot=last is not None and last.boot == session.boot)
        self.sessions.append(session)
        self.ends.append(session.began)
        self.began_s = self.loaded_s
        self.starts[self.began_s] = session.began

    def take(self, window: Window) -> None:
        """Add a window.

        Raises:
            ValueError: The window does not follow the last one.
        """
        follows = self.sessions and math.isclose(window.at_s, self.loaded_s + window.seconds, abs_tol=0.1)
        # Written so that NaN is wrong.
        if not (
            follows and window.seconds > 0 and 0 <= window.busy_s < math.inf and 0 <= window.work < math.inf
        ):
            raise ValueError("a window that does not follow the last one")
        self.windows.append(window)

    @property
    def loaded_s(self) -> float:
        """Return the seconds of load of all sessions."""
        return self.windows[-1].at_s if len(self.windows) else 0.0

    def elapsed_s(self, window: Window) -> float:
        """Return the seconds from the start of the first session to the end of a window, with the gaps."""
        return self.starts[window.began_s] - self.sessions[0].began + window.since_s

    def counted_s(self, settle_s: float) -> float:
        """Return the seconds that count as measured, for a load that settles in a number of seconds."""
        return sum(counted_seconds(window, settle_s) for window in self.windows)

    def gaps(self) -> list[tuple[float, bool]]:
        """Return the seconds between each two sessions, and whether the node restarted in them."""
        pairs = zip(self.ends, self.sessions, self.sessions[1:], strict=False)
        return [(max(0.0, new.began - end), new.boot != old.boot) for end, old, new in pairs]


def line_of(windows: Sequence[Window], times: StepTimes, kept: Kept, now: float) -> dict[str, Any]:
    """Return a line's value.

    The line contains windows, the times of their steps, counters, and the number of differing values.
    """
    rows = []
    for window in windows:
        figures = [
            float(f"{figure:.9g}") for figure in (window.at_s, window.seconds, window.work, window.busy_s)
        ]
        rows.append(
            [*figures, window.stalls, {key: window.read[key] for key in READINGS if key in window.read}]
        )
    counts = sorted(times.counts.items())
    return {"windows": rows, "times": counts, "wrong": kept.wrong, "counters": kept.growth.last, "time": now}


def finite(values: Mapping[str, Any]) -> dict[str, float]:
    """Return numbers by name.

    Raises:
        ValueError: A number is not finite.
    """
    numbers = {str(name): float(value) for name, value in values.items()}
    if not all(map(math.isfinite, numbers.values())):
        raise ValueError("a number that is not finite")
    return numbers


def take_line(kept: Kept, line: Mapping[str, Any]) -> None:
    """Add a line's value to the samples.

    Raises:
        ValueError, KeyError, TypeError: The line is not as this program writes it, or does not follow the
            last.
    """
    if "session" in line:
        stated = line["session"]
        figures = {"began": float(stated["began"]), "counters": finite(stated["counters"])}
        kept.begin(Session(**{**stated, **figures}))
        return
    wrong, now = int(line["wrong"]), finite({"time": line["time"]})["time"]
    if not kept.ends or now < kept.ends[-1] - CLOCK_S or wrong < kept.wrong:
        raise ValueError("a line that does not follow the last one")
    for at_s, seconds, work, busy_s, stalls, read in line["windows"]:
        stalled, readings = int(stalls), finite(read)
        window = Window(
            float(at_s), float(seconds), float(work), float(busy_s), stalled, readings, kept.began_s
        )
        kept.take(window)
    kept.times.counts.update({int(index): int(count) for index, count in line["times"]})
    kept.wrong = wrong
    kept.growth.take(finite(line["counters"]))
    kept.ends[-1] = now


def chained(digest: str, text: bytes) -> str:
    """Return the digest of a line after the digest before it."""
    return hashlib.sha256(digest.encode() + text).hexdigest()[:DIGITS]


@dataclass(frozen=True)
class End:
    """The number, bytes and last digest of the complete lines of a file."""

    lines: int = 0
    size: int = 0
    digest: str = ""


def read_lines(file: Iterable[bytes], stated: End | None, name: str) -> tuple[Kept, End]:
    """Return the samples of a file, and where its whole lines end.

    Args:
        file: The lines of the file.
        stated: The content of the head file, or None without one.
        name: The name of the file.

    Raises:
        DamagedError: The file is not as it was written.
    """
    kept, end = Kept(), End()
    for line in file:
        if not line.endswith(b"\n"):
            break
        digest, _, text = line[:-1].partition(b" ")
        end = End(end.lines + 1, end.size + len(line), chained(end.digest, text))
        if digest != end.digest.encode() or (stated and stated.lines == end.lines and stated != end):
            raise DamagedError(f"{name}, line {end.lines}: it was changed, repeated or moved")
        try:
            take_line(kept, json.loads(text))
        except (ValueError, KeyError, TypeError, OverflowError) as error:
            raise DamagedError(f"{name}, line {end.lines}: {error}") from error
    if end.lines < (stated.lines if stated else 0):
        raise DamagedError(
            f"{name} has {end.lines} whole lines of {stated.lines if stated else 0}: it was cut"
        )
    if stated is None and len(kept.windows):
        raise DamagedError(f"{name} has lost {Path(name).with_suffix('.head').name}, which lists its lines")
    return kept, end


@dataclass(frozen=True)
class Found:
    """The state of an earlier soak, as one rank found it.

    Args:
        damage: What is wrong with the soak's samples, or "".
        restart: Why the soak starts again at 0 s, or "".
        sessions: The number of the soak's sessions.
        loaded_s: The soak's seconds of load.
        counted_s: The seconds that count as measured.
    """

    damage: str = ""
    restart: str = ""
    sessions: int = 0
    loaded_s: float = 0.0
    counted_s: float = 0.0


def agree(states: Sequence[Found]) -> Found:
    """Combine the states that all ranks found. Return the first damage and reason, and the shortest times.

    No I/O.
    """
    restart = next((state.restart for state in states if state.restart), "")
    if not restart and len({state.sessions for state in states}) > 1:
        restart = "not all of its GPUs have samples"
    return Found(
        damage=next((state.damage for state in states if state.damage), ""),
        restart=restart,
        sessions=max(state.sessions for state in states),
        loaded_s=min(state.loaded_s for state in states),
        counted_s=min(state.counted_s for state in states),
    )


def why_restart(kept: Kept, alive: float, now: Session, limit_s: float, fault: str) -> str:
    """Return why a soak does not continue from an earlier one, or "" if it does. No I/O.

    Args:
        kept: The samples of the earlier one.
        alive: The time of its last sign of life (Unix seconds).
        now: The session that starts.
        limit_s: The longest gap.
        fault: How it failed, or "".
    """
    last, end = kept.sessions[-1], kept.ends[-1]
    others = [
        f"its {name} was {last.about.get(name)}, and is {now.about.get(name)}"
        for name in sorted(last.about.keys() | now.about.keys())
        if last.about.get(name) != now.about.get(name)
    ]
    gap_s, silent_s = now.began - end, alive - end
    if fault:
        return f"it failed with {fault}"
    if others:
        return "; ".join(others)
    if silent_s > SILENT_S:
        return f"it stood still for {silent_s:.0f} s before something ended it"
    if now.began < max(end, alive) - CLOCK_S:
        return "the node's clock was set back since then"
    if gap_s > limit_s:
        return f"that was {gap_s:.0f} s ago, more than {limit_s:g} s (gap_limit_s)"
    return ""


class Keeper:
    """A writer of one rank's samples, which keeps none without a folder or on a full disk.

    Raises:
        BlockingIOError: Another soak writes these samples.
    """

    def __init__(self, folder: Path | None, rank: int, line_s: float = LINE_S) -> None:
        self.place = (folder or Path()) / FOLDER / f"{rank}.jsonl"
        self.head = self.place.with_suffix(".head")
        """The file that has the number of lines and the last digest."""
        self._keeps = folder is not None
        self.kept, self.end, self.line_s = Kept(), End(), line_s
        self._waiting: list[Window] = []
        self._times = StepTimes()
        self._wrong_before = 0
        self._file: IO[bytes] | None = None
        self._ended = threading.Event()
        if not self._keeps:
            return
        try:
            self.place.parent.mkdir(exist_ok=True)
            self._lock = open_lock(self.place.with_suffix(".lock"))
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        print(f"the samples of this soak are not kept, and it cannot be continued: {error}", flush=True)
        # Samples that end before their load does must not be continued from.
        with contextlib.suppress(OSError):
            self.forget()
        self._keeps = False

    def read(self) -> tuple[Kept, float]:
        """Return the samples that an earlier soak left, and its last sign of life. Store where they end.

        Raises:
            DamagedError: The samples are not as they were written.
        """
        # A head alone is what a kill within forget() leaves.
        if not (self._keeps and self.place.exists()):
            return Kept(), 0.0
        try:
            stated, alive = None, 0.0
            if self.head.exists():
                stated, alive = End(**json.loads(self.head.read_text())), self.head.stat().st_mtime
            # The file is opened for writing. If the disk became read-only, the stored samples may lack the
            # end.
            with self.place.open("r+b") as file:
                lines, self.end = read_lines(file, stated, str(self.place))
        except (OSError, TypeError, json.JSONDecodeError) as error:
            raise DamagedError(f"{self.place}: {error}") from error
        return lines, alive

    def set_aside(self) -> None:
        """Rename damaged samples, for a person to read. The next soak starts from the beginning."""
        if self._keeps:
            with contextlib.suppress(OSError):
                self.place.replace(self.place.with_suffix(".damaged"))

    def forget(self) -> None:
        """Remove the samples, because the load ended well, or a new load begins."""
        self._ended.set()
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()
            self._file = None
        if self._keeps:
            self.place.unlink(missing_ok=True)
            self.head.unlink(missing_ok=True)
        self.end = End()

    def begin(self, kept: Kept, session: Session) -> None:
        """Start a session after the sessions of an earlier soak, or as the first one."""
        self.kept, self._wrong_before = kept, kept.wrong
        kept.begin(session)
        if not self._keeps:
            return
        try:
            if len(kept.sessions) == 1:
                self.forget()
            self._ended.clear()
            self._file = self.place.open("ab")
            self._file.truncate(self.end.size)
        except OSError as error:
            self._give_up(error)
        self._write({"session": vars(session)})
        threading.Thread(target=self._live, args=(self._ended,), name="alive", daemon=True).start()

    def _live(self, ended: threading.Event) -> None:
        while not ended.wait(ALIVE_EVERY_S):
            with contextlib.suppress(OSError):
                os.utime(self.head)

    def take(
        self, window: Window, steps_s: Sequence[float], read: Callable[[], tuple[int, dict[str, float]]]
    ) -> None:
        """Add a window. Write a line when it is long enough, or at once after a stall or with lowered clocks.

        Args:
            window: The window.
            steps_s: The times of its steps.
            read: A function that returns how many values of the session differed, and the counters.
        """
        self.kept.take(window)
        self.kept.times.add(steps_s)
        if self._file is None:
            return
        self._waiting.append(window)
        self._times.add(steps_s)
        waited_s = sum(one.seconds for one in self._waiting)
        if waited_s >= self.line_s or window.stalls or window.slowed:
            self.flush(*read())

    def flush(self, wrong: int, counters: Mapping[str, float]) -> None:
        """Write the windows that wait, with the counters and how many values of the session differed."""
        self.kept.wrong = self._wrong_before + wrong
        self.kept.growth.take(counters)
        self.kept.ends[-1] = time.time()
        if self._waiting:
            self._write(line_of(self._waiting, self._times, self.kept, self.kept.ends[-1]))
        self._waiting, self._times = [], StepTimes()

    def _write(self, value: Mapping[str, Any]) -> None:
        """Append a line, and then state it in the head. Both are on the disk when this returns."""
        if self._file is None:
            return
        text = json.dumps(value, separators=(",", ":")).encode()
        digest = chained(self.end.digest, text)
        line = digest.encode() + b" " + text + b"\n"
        new = self.head.with_suffix(".new")
        try:
            self._file.write(line)
            self._file.flush()
            os.fsync(self._file.fileno())
            self.end = End(self.end.lines + 1, self.end.size + len(line), digest)
            with new.open("w") as head:
                json.dump(vars(self.end), head)
                head.flush()
                os.fsync(head.fileno())
            new.replace(self.head)
        except OSError as error:
            self._give_up(error)


def boot_id() -> str:
    """Return the id of the node's boot, or "" if the kernel does not state it."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def digest_of_programs(names: Iterable[str]) -> str:
    """Return a digest of the programs next to this one."""
    whole = hashlib.sha256()
    for name in names:
        whole.update(Path(__file__).with_name(name).read_bytes())
    return whole.hexdigest()[:DIGITS]


def note_fault(folder: Path | None, status: int, started: float) -> None:
    """Record that a soak failed by itself after its session began, so that no later soak continues it.

    Args:
        folder: The folder that contains the samples' folder, or None.
        status: The exit status of the soak.
        started: When it started (Unix seconds).
    """
    if folder is not None and status in FAULTS:
        with contextlib.suppress(OSError):
            if (folder / FOLDER / "0.head").stat().st_mtime >= started:
                (folder / FOLDER / FAULT).write_text(f"exit status {status}")


def read_fault(folder: Path | None) -> str:
    """Return how the last soak failed, or ""."""
    try:
        return (folder / FOLDER / FAULT).read_text() if folder else ""
    except OSError:
        return ""


def forget_fault(folder: Path | None) -> None:
    """Remove the record of the last soak's failure, because another soak begins."""
    if folder is not None:
        with contextlib.suppress(OSError):
            (folder / FOLDER / FAULT).unlink(missing_ok=True)
