"""Build the command that polls a job on a node, read its answer, and choose the lines to show. No I/O.

The action plugin ``rackproof_bench_follow`` runs the command of :func:`poll_command` on the node. It reads
the answer with :func:`parse_poll`, and shows what :class:`ProgressPrinter` returns. A poll is a small shell
command, because a module call would take a hundred times as much of the node's time. An answer is::

    rackproof:state
    {"phase": "running", ...}    state.json, then the boot id, the up-time and the supervisor's stat
    rackproof:log 51234          the size of the log in bytes
    aGVsbG8K                     the new bytes in Base64
    rackproof:end
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from rackproof.core.text import duration, number, quantity, sanitize, size
from rackproof.core.untrusted import as_float, as_int
from rackproof.logs.progress import Progress

CHUNK_BYTES = 256 * 1024
"""Largest number of the log's bytes in one answer."""
BACKLOG_BYTES = 4 * 1024 * 1024
"""Largest number of unread bytes that a patient follower reads one after another. With more, it skips to the
newest chunk, so that it shows the current progress."""
KERNEL_TICKS_PER_S = 100
"""Number of ticks in a second of the start times in /proc. It is the same on all architectures with GPUs."""

_MARK = "rackproof:"
_BOOT_ID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_UPTIME = re.compile(r"(\d{1,12}\.\d+) \d+\.\d+")
_MOST = 1 << 63
"""Bound of process ids, start times and sizes of files."""
_INTEGERS = ("pid", "supervisor_pid", "supervisor_start_ticks")
"""Keys of state.json that must be integers from 0 to :data:`_MOST`."""


def poll_command(
    folder: str,
    offset: int,
    supervisor_pid: int = 0,
    *,
    job_pid: int = 0,
    wait_s: float = 0,
    limit: int = CHUNK_BYTES,
) -> str:
    """Return the POSIX shell command that reads the state of a job on a node.

    Args:
        folder: The folder of the job on the node.
        offset: The number of log bytes that were read before.
        supervisor_pid: The process id of the supervisor, or 0 if unknown.
        job_pid: The process id of the job's program, or 0 if unknown.
        wait_s: The largest number of seconds that the node waits before it answers. It answers sooner if the
            program ends, so that few polls notice the end at once. Without ``tail --pid``, the node does not
            wait.
        limit: The largest number of bytes of log in the answer.
    """
    wait = ""
    if wait_s > 0 and job_pid > 0:
        watch = f"tail --pid={int(job_pid)} -s 0.3 -f /dev/null"
        # After an early end, the supervisor still must record that end.
        wait = f"timeout {wait_s:.1f} {watch} >/dev/null 2>&1 </dev/null; [ $? -eq 124 ] || sleep 0.3; "
    # The state is read before the log. If the state is "ended", the log after it is complete. The log is
    # in Base64, because a terminal in between (become over SSH) would change line ends.
    return (
        f"{wait}cd {shlex.quote(folder)} 2>/dev/null || {{ echo {_MARK}nofolder; exit 0; }}; "
        f"echo {_MARK}state; "
        f"cat state.json /proc/sys/kernel/random/boot_id /proc/uptime "
        f"/proc/{int(supervisor_pid)}/stat 2>/dev/null; "
        f"n=$(wc -c 2>/dev/null <log.txt); echo {_MARK}log ${{n:-0}}; "
        f'if [ "${{n:-0}}" -gt {int(offset)} ]; then '
        f"tail -c +{int(offset) + 1} log.txt | head -c {int(limit)} | base64; fi; "
        f"echo {_MARK}end"
    )


@dataclass(frozen=True)
class PollResult:
    """A node's answer to :func:`poll_command`.

    Attributes:
        state: The state of the job (state.json) without its token, or None if no job was started.
        alive: Whether the supervisor is running. None means unknown: there is no job, or the command was for
            another process id.
        age_s: The seconds since the supervisor started, by the node's clock, or None if unknown.
        log_bytes: The size of the log on the node.
        data: The bytes of the log after the requested offset, up to the command's limit.
    """

    state: Mapping[str, Any] | None
    alive: bool | None
    age_s: float | None
    log_bytes: int
    data: bytes

    @property
    def ended(self) -> bool:
        """Return whether the job is over."""
        return self.state is not None and self.state["phase"] == "ended"


def parse_poll(text: str, supervisor_pid: int = 0) -> PollResult:
    """Read a node's answer.

    Args:
        text: The standard output of the command.
        supervisor_pid: The process id that was passed to :func:`poll_command`.

    Raises:
        ValueError: The answer is truncated or garbled, or state.json is damaged. Poll again.
    """
    # A terminal in between ends lines with CR LF.
    lines = text.replace("\r", "").splitlines()
    if f"{_MARK}nofolder" in lines:
        return PollResult(None, None, None, 0, b"")
    try:
        facts, log_lines = _answer_sections(lines)
    except (ValueError, StopIteration):
        raise ValueError(f"the node's answer is not whole: {sanitize(text[-200:])!r}") from None
    log_bytes, data = _new_log_bytes(log_lines)
    # `cat` skips missing files. Without state.json, the answer begins with boot_id.
    if not facts or not facts[0].startswith("{"):
        return PollResult(None, None, None, log_bytes, data)
    state, kernel_lines = _state(facts[0]), facts[1:]
    boot_id = next((line for line in kernel_lines if _BOOT_ID.fullmatch(line)), "")
    same_boot = boot_id == state.get("boot_id")
    alive = None
    # The poll read the stat of the requested process, which need not be this supervisor.
    if supervisor_pid == state["supervisor_pid"]:
        alive = same_boot and _runs("\n".join(kernel_lines), state["supervisor_start_ticks"])
    age_s = _age_s(kernel_lines, state["supervisor_start_ticks"]) if same_boot else None
    return PollResult(state, alive, age_s, log_bytes, data)


def _answer_sections(lines: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
    """Return the lines about the job, and the lines about its log, which begin with ``rackproof:log``.

    Raises:
        ValueError: The first or the last mark is missing.
        StopIteration: The mark of the log is missing.
    """
    begin = lines.index(f"{_MARK}state")
    middle = next(n for n, line in enumerate(lines) if n > begin and line.startswith(f"{_MARK}log "))
    end = lines.index(f"{_MARK}end", middle)
    return lines[begin + 1 : middle], lines[middle:end]


def _new_log_bytes(lines: Sequence[str]) -> tuple[int, bytes]:
    """Return the log's size on the node and its new bytes.

    Raises:
        ValueError: The lines are garbled.
    """
    try:
        log_bytes, data = int(lines[0].split()[1]), base64.b64decode("".join(lines[1:]), validate=True)
    except (ValueError, IndexError, binascii.Error) as error:
        raise ValueError(f"the node's answer is garbled: {error}") from error
    if not 0 <= log_bytes < _MOST:
        raise ValueError(f"the node's answer is garbled: a log has no {sanitize(log_bytes, 40)} bytes")
    return log_bytes, data


def _age_s(kernel_lines: Sequence[str], start_ticks: int) -> float | None:
    """Return the seconds since a process of this boot started, or None if unknown."""
    uptime = next((match for line in kernel_lines if (match := _UPTIME.fullmatch(line))), None)
    if uptime is None:
        return None
    age_s = float(uptime[1]) - start_ticks / KERNEL_TICKS_PER_S
    # A container with its own up-time does not share the clock of the start ticks.
    return None if age_s < 0 else age_s


def _is_count(value: object) -> bool:
    """Return whether a value is an integer that is not negative and below :data:`_MOST`."""
    count = as_int(value)
    return count is not None and 0 <= count < _MOST


def _state(line: str) -> Mapping[str, Any]:
    """Return the state that a line contains.

    Raises:
        ValueError: The line is not a job's state.
    """
    try:
        state = json.loads(line)
    except RecursionError:
        # A thousand nested brackets from a node must not end this process.
        state = None
    if (
        not isinstance(state, dict)
        or state.get("phase") not in ("running", "ended")
        or not all(_is_count(state.get(key)) for key in _INTEGERS)
    ):
        raise ValueError("state.json on the node is damaged")
    # The token stays on the node, which uses it to find the job's processes. Output must not show it.
    return {key: value for key, value in state.items() if key not in ("token", "version")}


def _runs(text: str, start_ticks: int) -> bool:
    """Return whether a /proc/PID/stat shows a live process that was started at the given time."""
    # The name in brackets may contain spaces and brackets, so count the fields from the last bracket.
    # The first one is then the process's state, and the twentieth its start time. A process id may be
    # reused, but not with the same start time. Z and X are dead processes that were not reaped.
    fields = text.rpartition(")")[2].split()
    return len(fields) > 19 and fields[0] not in ("Z", "X") and fields[19] == str(start_ticks)


def _float(value: float) -> float:
    """Return a number from a log as a float, infinite if it is too large for one."""
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _number(value: float) -> str:
    """Format a number from a log."""
    return number(_float(value))


def _bytes_text(received: int, total: int | None) -> str:
    """Write how much of a download is there: ``1.2 of about 7.4 GB``."""
    # If more was received than expected, the expected total is wrong and is left out.
    total_text = f" of about {total / 1e9:.1f}" if total and total > received else ""
    return f"{received / 1e9:.1f}{total_text} GB"


def next_offset(offset: int, answer: PollResult, patient: bool = False) -> int:
    """Return the offset for the next poll.

    The next poll starts after the new bytes or, if too many bytes are pending, near the end of the log.

    Args:
        offset: The offset of the first byte in the answer.
        answer: The answer of the node.
        patient: Whether to continue after the new bytes even if more than one chunk is pending. Only the
            first reading of a log is patient. Otherwise, a job with endless output would keep the node busy.
    """
    # The log is shorter than before, so it was truncated or replaced. Read only what is added from now
    # on.
    if answer.log_bytes < offset:
        return answer.log_bytes
    offset += len(answer.data)
    if answer.log_bytes - offset > (BACKLOG_BYTES if patient else CHUNK_BYTES):
        return answer.log_bytes - CHUNK_BYTES
    return offset


def next_pause(followed_s: float, poll_s: float) -> float:
    """Return the seconds to wait before the next poll.

    The first pause is half a second. Later pauses are an eighth of the time followed so far, and at most
    five seconds. A pause is at least ten times as long as the last poll, up to 30 seconds, so that slow polls
    do not keep the node busy.

    Args:
        followed_s: The seconds followed so far.
        poll_s: The duration of the last poll in seconds.
    """
    return min(max(followed_s / 8, 0.5, 10 * poll_s), max(5.0, min(10 * poll_s, 30.0)))


@dataclass
class Estimate:
    """The estimate of when a job ends, from its progress or else from earlier jobs.

    Attributes:
        expected_s: The duration of earlier jobs like this one in seconds, or None if unknown.
    """

    expected_s: float | None = None
    # Seconds since the start and progress (0 … 1), when the job began or restarted, and at its last change.
    _first: tuple[float, float] | None = field(default=None, init=False)
    _last: tuple[float, float] | None = field(default=None, init=False)

    def observe(self, elapsed_s: float, fraction: float | None) -> None:
        """Add the progress of the job (0 … 1) after ``elapsed_s`` seconds."""
        if fraction is None or not math.isfinite(fraction) or not 0 <= fraction <= 1:
            return
        if self._last is None or fraction < self._last[1]:
            self._first = self._last = (elapsed_s, fraction)
        elif fraction > self._last[1]:
            self._last = (elapsed_s, fraction)

    def left_s(self, elapsed_s: float, *, may_end_early: bool = False) -> float | None:
        """Return the expected seconds until the end, or None if unknown.

        The number is negative if the job is overdue.

        Args:
            elapsed_s: The seconds since the start of the job.
            may_end_early: Whether the job ends when it reaches a target. Its last epoch is then the
                latest end. The likely end is the duration of earlier jobs, if that is sooner and not over.
        """
        remaining_s = self._left_by_pace(elapsed_s)
        usual = None if self.expected_s is None else self.expected_s - elapsed_s
        if self._last is not None and self._last[1] >= 1:
            # All steps are done. The progress does not show how long the remaining output takes.
            return usual if usual is not None and usual > 0 else None
        if remaining_s is None or (may_end_early and usual is not None and 0 < usual < remaining_s):
            return usual
        return remaining_s

    def _left_by_pace(self, elapsed_s: float) -> float | None:
        """Return the seconds until the last step at the current pace, or None if too little is known."""
        if self._first is not None and self._last is not None and self._last[1] > 0:
            (since, low), (until, high) = self._first, self._last
            # Measure the pace between two points if there are two, because the start-up is not part of
            # it. Below a hundredth of the job, rounding in the log would dominate.
            pace = (until - since) / (high - low) if high - low >= 0.01 else until / high
            if high - low >= 0.01 or high >= 0.02:
                return (1 - high) * pace - (elapsed_s - until)
        return None


class ProgressPrinter:
    """The lines about one job, and the decision when the next one is due.

    Args:
        run_id: The name of the run.
        node: The name of the node.
        clock: A function that returns monotonic seconds.
        wall: A function that returns the time of day, to show the expected end.
        every_s: The shortest interval between lines in seconds. A new epoch or phase is shown sooner.
        expected_s: The duration of earlier jobs like this one in seconds.
    """

    def __init__(
        self,
        run_id: str,
        node: str,
        *,
        clock: Callable[[], float],
        wall: Callable[[], datetime],
        every_s: float = 10.0,
        expected_s: float | None = None,
    ) -> None:
        self._head = f"{sanitize(run_id, 130)} · {sanitize(node, 100)}"
        self._clock = clock
        self._wall = wall
        self._every_s = every_s
        self._soonest_s = min(every_s, max(1.0, every_s / 5))
        self._estimate = Estimate(expected_s)
        self._last_shown_s: float | None = None
        self._mark: tuple[object, ...] = ()
        self._log_bytes = -1
        self._grown = clock()
        self._silent_gap_s = every_s
        self._lost: float | None = None
        self.lines = 0

    def progress_line(
        self, progress: Progress, elapsed_s: float, log_bytes: int, hang_s: float = 0
    ) -> str | None:
        """Return the line to show now, or None.

        Args:
            progress: The progress shown by the log.
            elapsed_s: The seconds since the start of the job.
            log_bytes: The size of the log.
            hang_s: The seconds of silence after which the supervisor stops the job, or 0 if it never
                does.
        """
        now = self._clock()
        self._estimate.observe(elapsed_s, progress.fraction)
        if log_bytes != self._log_bytes:
            self._log_bytes, self._grown, self._silent_gap_s = log_bytes, now, self._every_s
        silent_s = now - self._grown
        mark = (progress.phase, progress.epoch)
        since_s = math.inf if self._last_shown_s is None else now - self._last_shown_s
        if since_s < (self._soonest_s if mark != self._mark else self._silent_gap_s):
            return None
        self._mark = mark
        parts = self._parts(progress)
        if silent_s >= max(self._every_s, 1.0):
            warning = f"no output for {duration(silent_s)}"
            parts.append(f"{warning} (stopped at {duration(hang_s)})" if hang_s else warning)
            # A job that is silent for hours does not need a line about it every ten seconds.
            self._silent_gap_s = min(self._silent_gap_s * 2, max(300.0, self._every_s))
        parts += [
            f"{duration(elapsed_s)} elapsed",
            *self._end(elapsed_s, may_end_early=progress.target is not None),
        ]
        return self._line(parts)

    def connection_lost(self, reason: str) -> str | None:
        """Return the line about a node that does not answer, or None if none is due. The job continues."""
        now = self._clock()
        if self._lost is None:
            self._lost = now
            self._silent_gap_s = self._every_s
        elif self._last_shown_s is not None and now - self._last_shown_s < self._silent_gap_s:
            return None
        else:
            self._silent_gap_s = min(self._silent_gap_s * 2, max(300.0, self._every_s))
        gone = duration(now - self._lost)
        return self._line(
            [f"no answer for {gone}, trying again (the job continues): {sanitize(reason, 200)}"]
        )

    def connection_restored(self) -> str | None:
        """Return the line about a node that answers again, or None if the last poll was answered, too."""
        if self._lost is None:
            return None
        gone_s, self._lost = self._clock() - self._lost, None
        self._silent_gap_s = self._every_s
        return self._line([f"answers again after {duration(gone_s)}"])

    def end_line(self, progress: Progress, state: Mapping[str, Any], log_bytes: int) -> str:
        """Return the line about the end of the job, from its state.json and the last progress in its log."""
        elapsed_s = as_float(state.get("elapsed_s"))
        parts = [sanitize(state.get("message", ""), 300)]
        # The job ended, so the last phase of its log does not matter.
        last = self._parts(replace(progress, phase="ended"))
        parts += [part for part in last if part.startswith(("epoch", "loss", "accuracy"))]
        if elapsed_s is not None:
            parts.append(f"{duration(elapsed_s)} elapsed")
        return self._line([*parts, f"log {size(log_bytes)}"])

    def _line(self, parts: list[str]) -> str:
        self._last_shown_s = self._clock()
        self.lines += 1
        return " · ".join([self._head, *parts])

    def _parts(self, progress: Progress) -> list[str]:
        """Return the texts of a line of progress: phase, counts, loss, accuracy, bytes and speed.

        The program's last message is used only if there are no others.
        """
        parts = [sanitize(progress.phase, 80)] if progress.phase else []
        parts += filter(None, (progress.count(name, _number) for name in ("epoch", "step")))
        if progress.loss is not None:
            parts.append(f"loss {_number(progress.loss)}")
        if progress.accuracy is not None:
            target = "" if progress.target is None else f" (target {_number(progress.target)})"
            parts.append(f"accuracy {_number(progress.accuracy)}{target}")
        if progress.done_bytes is not None:
            parts.append(_bytes_text(progress.done_bytes, progress.all_bytes))
        if progress.throughput is not None:
            parts.append(quantity(_float(progress.throughput), progress.throughput_unit))
        if not parts and progress.message:
            parts.append(sanitize(progress.message, 120))
        return parts

    def _end(self, elapsed_s: float, *, may_end_early: bool) -> list[str]:
        """Return when the job will end, from earlier runs and its progress, or nothing if that is unknown."""
        remaining_s = self._estimate.left_s(elapsed_s, may_end_early=may_end_early)
        if remaining_s is None:
            return []
        if remaining_s <= 0:
            return [f"expected to end {duration(-remaining_s)} ago"] if remaining_s < -1 else []
        try:
            when = self._wall() + timedelta(seconds=remaining_s)
        except (OverflowError, ValueError):  # An end after the year 9999 is no estimate.
            return []
        # If the job needs 20 hours or more, the time of day alone could mean today or tomorrow.
        moment = f"{when:{'%H:%M:%S' if remaining_s < 72000 else '%Y-%m-%d %H:%M'}}"
        # If no earlier job reached the target, only the last epoch is known.
        is_latest = may_end_early and self._estimate.expected_s is None
        return [
            f"{'ends at the latest' if is_latest else 'ends'} about {moment} (in {duration(remaining_s)})"
        ]
