"""Follow a job on a node for the action ``rackproof_bench_follow``.

Begin with :class:`JobFollower`, which polls the node every few seconds, shows the job's progress, and returns
the job's end. :mod:`rackproof_ansible.bench_runtime` uses it, too.
"""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Mapping
from dataclasses import asdict
from datetime import datetime
from typing import Any

from ansible.errors import AnsibleActionFail, AnsibleConnectionFailure
from ansible.utils.display import Display

from rackproof.core.line_rules import FORMAT as LINES
from rackproof.core.untrusted import as_float
from rackproof.jobs.bench.job_follow import (
    PollResult,
    ProgressPrinter,
    next_offset,
    next_pause,
    parse_poll,
    poll_command,
)
from rackproof.logs import FORMATS
from rackproof.logs.progress import Follower
from rackproof_ansible.action import NodeAction

# Sixteen chunks of 256 KiB are the 4 MiB of backlog beyond which a follower skips ahead anyway.
CATCH_UP_POLLS = 16
"""Largest number of polls without a pause in which a long log is read."""

display = Display()


class BenchFollow(NodeAction):
    """The action that follows a job until it ends."""

    def run_action(self, options: dict[str, Any]) -> dict[str, Any]:
        """Return the job's final state. The task does not fail if the job ended badly."""
        if self.check_mode:
            return {"changed": False, "skipped": True, "msg": "nothing is followed in check mode"}
        formats = ("auto", *FORMATS, LINES)
        if options["format"] not in formats:
            raise AnsibleActionFail(
                f"format: no log format is called {options['format']!r}; there are {', '.join(formats)}"
            )
        return JobFollower(self, options).follow()


class JobFollower:
    """The follower of one job on one node, from the first poll until the job ends.

    Args:
        action: The action on whose host the job runs.
        options: The options of the action.
    """

    def __init__(self, action: NodeAction, options: Mapping[str, Any]) -> None:
        self._action = action
        self._id: str = options["id"]
        self._folder: str = options["folder"]
        # The node's own limit may be wrong, so the caller's limit replaces it.
        self._limit_s: float | None = options["limit_s"]
        self._deadline_s: float = options["deadline_s"]
        self._patience_s: float = options["patience_s"]
        self._shows = options["every_s"] > 0
        self._printer = ProgressPrinter(
            self._id,
            action.node,
            clock=time.monotonic,
            wall=lambda: datetime.now().astimezone(),
            every_s=options["every_s"] or math.inf,
            expected_s=options["expected_s"] or None,
        )
        self._log = Follower(options["format"])
        # A job without output shows progress too, because the first line may be due before its log.
        self._progress = self._log.feed(b"")
        self._offset = 0
        self._supervisor_pid = 0
        self._job_pid = 0
        self._catch_up_polls = CATCH_UP_POLLS
        self._node_waits = True
        self._deaths = 0

    def follow(self) -> dict[str, Any]:
        """Poll until the job ends, and return the task's result.

        Raises:
            AnsibleActionFail: There is no such job, its folder belongs to another run, the node gives no
                answer, or the job does not end.
        """
        began = last_answer = time.monotonic()
        job_began: float | None = None
        polls = 0
        pause_s = 0.0
        while True:
            polls += 1
            try:
                answer, poll_s = self._poll(pause_s)
            except (AnsibleConnectionFailure, ValueError) as error:
                self._wait_for_node(error, time.monotonic() - last_answer)
                pause_s = 0.0
                continue
            last_answer = now = time.monotonic()
            self._show(self._printer.connection_restored())
            state = self._check_state(answer)
            # Set this once, at the first answer, because the node's clock may be set while the job runs.
            if job_began is None:
                job_began = now - (answer.age_s or 0.0)
            is_behind = self._read_log(answer)
            # Read the whole log first, because its last lines often explain the end of the job.
            if self._is_over(answer) and not is_behind:
                result = self._result(answer, state if answer.ended else self._settle())
                return {**result, "polls": polls, "elapsed_s": round(time.monotonic() - began, 3)}
            self._show_progress(answer, state, now - job_began)
            pause_s = 0.0 if self._hurries(answer, is_behind) else next_pause(now - began, poll_s)

    def _is_over(self, answer: PollResult) -> bool:
        """Return whether the job ended, or its supervisor was found dead twice in a row."""
        # A single such poll may be between the supervisor's last write and its end. Two mean that it died.
        self._deaths = self._deaths + 1 if answer.alive is False and not answer.ended else 0
        return answer.ended or self._deaths > 1

    def _hurries(self, answer: PollResult, is_behind: bool) -> bool:
        """Return whether to poll again at once.

        Poll at once if the job may have ended, and for up to :data:`CATCH_UP_POLLS` while a long log is read.
        """
        return self._deaths > 0 or answer.ended or (is_behind and self._catch_up_polls > 0)

    def _poll(self, pause_s: float) -> tuple[PollResult, float]:
        """Wait, and poll the node once. Return its answer and the seconds that the poll took.

        Raises:
            AnsibleConnectionFailure: The node cannot be reached.
            ValueError: Its answer is incomplete.
        """
        # If the node waits, it notices the end of a job at once. For a short pause, this is not
        # worthwhile.
        wait_s = pause_s if pause_s >= 1 and self._node_waits and self._job_pid else 0.0
        if not wait_s:
            time.sleep(pause_s)
        asked_s = time.monotonic()
        command = poll_command(
            self._folder, self._offset, self._supervisor_pid, job_pid=self._job_pid, wait_s=wait_s
        )
        answer = parse_poll(self._ask(command), self._supervisor_pid)
        took_s = time.monotonic() - asked_s
        if took_s < 0.8 * wait_s and answer.alive and not answer.ended:
            # The node's tools cannot wait, or the program ended and its supervisor is busy ending the rest.
            self._node_waits = False
        return answer, max(took_s - wait_s, 0.0)

    def _ask(self, command: str) -> str:
        """Return the output of a command on the node.

        Raises:
            AnsibleConnectionFailure: The node cannot be reached.
        """
        try:
            _, output, _ = self._action.run_command(command)
        except AnsibleConnectionFailure:
            # The remains of a dead connection would make the next try fail as well.
            self._action.close_connection()
            raise
        return output

    def _wait_for_node(self, error: Exception, silent_s: float) -> None:
        """Pause after a poll without an answer.

        Raises:
            AnsibleActionFail: The node was silent for too long.
        """
        self._show(self._printer.connection_lost(str(error)))
        if silent_s > self._patience_s:
            raise self._give_up("gives no answer")
        time.sleep(next_pause(silent_s, 0.0))

    def _check_state(self, answer: PollResult) -> Mapping[str, Any]:
        """Return the job's state, and note its process ids for the next poll.

        Raises:
            AnsibleActionFail: There is no job, or the state is another run's.
        """
        if answer.state is None:
            raise AnsibleActionFail(
                f"no job was started in {self._folder}: start it with rackproof_job first"
            )
        if answer.state.get("id") != self._id:
            raise AnsibleActionFail(
                f"{self._folder} belongs to run {answer.state.get('id')!r}, not to {self._id!r}"
            )
        self._supervisor_pid, self._job_pid = answer.state["supervisor_pid"], answer.state["pid"]
        return answer.state

    def _read_log(self, answer: PollResult) -> bool:
        """Process the new bytes of the log. Return whether there are more to fetch."""
        if answer.data:
            self._progress = self._log.feed(answer.data)
        read_to = self._offset + len(answer.data)
        self._offset = next_offset(self._offset, answer, self._catch_up_polls > 0)
        if self._offset > read_to:
            # Bytes were skipped, so the next bytes do not belong to the last line.
            self._log.feed(b"\n")
        is_behind = self._offset < answer.log_bytes
        self._catch_up_polls -= is_behind
        return is_behind

    def _show_progress(self, answer: PollResult, state: Mapping[str, Any], elapsed_s: float) -> None:
        """Show a line if one is due.

        Raises:
            AnsibleActionFail: The job exceeds its limits, and its supervisor did not end it.
        """
        hang_s = as_float(state.get("hang_s")) or 0
        self._show(self._printer.progress_line(self._progress, elapsed_s, answer.log_bytes, hang_s))
        # A supervisor that does not end a job at its limit is broken, and the job would be followed forever.
        limit_s = self._limit_s
        if limit_s is None:
            limit_s = sum(as_float(state.get(key)) or 0 for key in ("timeout_s", "grace_s"))
        if elapsed_s > limit_s + self._deadline_s:
            raise self._give_up("has not ended its job")

    def _settle(self) -> dict[str, Any]:
        """Let the module clean up after a dead supervisor. Return the job's final state.

        Raises:
            AnsibleActionFail: The module returns no state.
        """
        result = self._action.execute_module_unchecked(
            "rackproof_job", id=self._id, folder=self._folder, state="found"
        )
        if "job" not in result:
            raise AnsibleActionFail(str(result.get("msg", "the job's supervisor died")))
        job: dict[str, Any] = result["job"]
        return job

    def _result(self, answer: PollResult, state: Mapping[str, Any]) -> dict[str, Any]:
        """Print the last line, and return the task's result with the job's state and progress."""
        self._show(self._printer.end_line(self._progress, state, answer.log_bytes))
        return {
            "changed": False,
            "job": dict(state),
            "log_bytes": answer.log_bytes,
            "progress": _json_values(asdict(self._progress)),
            "progress_lines": self._printer.lines if self._shows else 0,
        }

    def _give_up(self, reason: str) -> AnsibleActionFail:
        return AnsibleActionFail(
            f"the node {reason}; job {self._id} in {self._folder} was left as it is: run the "
            "playbook again to follow on, or stop the job with rackproof_job state=absent"
        )

    def _show(self, line: str | None) -> None:
        if line is not None and self._shows:
            show_whole_line(line)


def show_whole_line(line: str) -> None:
    """Show a line, and delay signals until it is complete."""
    # ansible-core's worker passes a line on under a lock that all processes share. If Ctrl-C ended it
    # while it holds that lock, the playbook would wait forever. The signal therefore waits for the line.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
    try:
        display.display(line)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _json_values(values: dict[str, Any]) -> dict[str, Any]:
    """Return values that survive JSON: NaN and infinity as text."""
    return {
        key: str(value) if isinstance(value, float) and not math.isfinite(value) else value
        for key, value in values.items()
    }
