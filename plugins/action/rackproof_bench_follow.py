"""Follow a job until it ends; the module of the same name documents it."""

from __future__ import annotations

import math
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail, AnsibleConnectionFailure
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

try:
    import rackproof  # noqa: F401
except ImportError:  # not installed: use the checkout that this plugin belongs to
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "src"))

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

CATCH_UP_POLLS = 16
"""How often a follower that met a long log asks without a pause."""

display = Display()


class ActionModule(ActionBase):
    """Asks the node every few seconds, shows what comes back."""

    _requires_connection = True
    _supports_check_mode = True

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Follow the job; see the module's documentation."""
        super().run(tmp, task_vars)
        self._task_vars = task_vars or {}
        self._node_waits = True
        _, options = self.validate_argument_spec(
            {
                "id": {"type": "str", "required": True},
                "folder": {"type": "str", "required": True},
                "format": {"type": "str", "default": "auto"},
                "every_s": {"type": "float", "default": 10},
                "expected_s": {"type": "float"},
                "deadline_s": {"type": "float", "default": 120, "aliases": ["deadline"]},
                "patience_s": {"type": "float", "default": 900},
            }
        )
        if self._task.check_mode:
            return {"changed": False, "skipped": True, "msg": "nothing is followed in check mode"}
        if options["format"] not in ("auto", *FORMATS):
            known = ", ".join(["auto", *FORMATS])
            raise AnsibleActionFail(
                f"format: no log format is called {options['format']!r}; there are {known}"
            )
        self._follower = Follower(options["format"])
        return self._follow(options)

    def _follow(self, options: dict[str, Any]) -> dict[str, Any]:
        begin = heard = time.monotonic()
        printer = ProgressPrinter(
            options["id"],
            self._task_vars.get("inventory_hostname", "?"),
            clock=time.monotonic,
            wall=lambda: datetime.now().astimezone(),
            every_s=options["every_s"] or math.inf,
            expected_s=options["expected_s"] or None,
        )
        show = self._show if options["every_s"] > 0 else _be_quiet
        progress = self._follower.feed(b"")
        offset = supervisor = job = polls = deaths = 0
        pause_s = 0.0
        patience = CATCH_UP_POLLS
        job_began: float | None = None
        while True:
            polls += 1
            try:
                answer, poll_s = self._ask(options["folder"], offset, supervisor, job, pause_s)
            except (AnsibleConnectionFailure, ValueError) as error:
                show(printer.connection_lost(str(error)))
                silent_s = time.monotonic() - heard
                self._give_up_if(silent_s > options["patience_s"], options, "gives no answer")
                pause_s = 0.0
                time.sleep(next_pause(silent_s, 0.0))
                continue
            heard = now = time.monotonic()
            show(printer.connection_restored())
            state = self._check(answer, options)
            supervisor, job = state["supervisor_pid"], state["pid"]
            if job_began is None:
                job_began = now - (answer.age_s or 0.0)
            if answer.data:
                progress = self._follower.feed(answer.data)
            read, offset = offset + len(answer.data), next_offset(offset, answer, patience > 0)
            if offset > read:
                self._follower.feed(b"\n")  # what follows does not belong to the last line
            behind = offset < answer.log_bytes
            patience -= behind
            # Once may be the moment between the supervisor's last word and its end; twice is a death.
            deaths = deaths + 1 if answer.alive is False and not answer.ended else 0
            if (answer.ended or deaths > 1) and not behind:
                state = state if answer.ended else self._settle(options)
                show(printer.end_line(progress, state, answer.log_bytes))
                return {
                    "changed": False,
                    "job": dict(state),
                    "log_bytes": answer.log_bytes,
                    "progress": _plain(asdict(progress)),
                    "progress_lines": printer.lines if options["every_s"] > 0 else 0,
                    "polls": polls,
                    "elapsed_s": round(time.monotonic() - begin, 3),
                }
            elapsed_s = now - job_began
            show(printer.progress_line(progress, elapsed_s, answer.log_bytes, state.get("hang_s") or 0))
            limit_s = sum(float(state.get(key) or 0) for key in ("timeout_s", "grace_s"))
            self._give_up_if(elapsed_s > limit_s + options["deadline_s"], options, "has not ended its job")
            hurry = deaths or answer.ended or (behind and patience > 0)
            pause_s = 0.0 if hurry else next_pause(now - begin, poll_s)

    def _ask(
        self, folder: str, offset: int, supervisor: int, job: int, pause_s: float
    ) -> tuple[PollResult, float]:
        """Wait, then ask the node once; returns its answer and the seconds that the asking took.

        Raises:
            AnsibleConnectionFailure: The node cannot be reached.
            ValueError: Its answer is not whole.
        """
        wait_s = pause_s if pause_s >= 1 and self._node_waits and job else 0.0
        if not wait_s:
            time.sleep(pause_s)
        asked = time.monotonic()
        try:
            result = self._low_level_execute_command(
                poll_command(folder, offset, supervisor, job_pid=job, wait_s=wait_s),
                encoding_errors="surrogateescape",
            )
        except AnsibleConnectionFailure:
            # What is left of a dead connection would fail the next try as well.
            self._connection.close()
            raise
        answer = parse_poll(result["stdout"], supervisor)
        took_s = time.monotonic() - asked
        if took_s < 0.8 * wait_s and answer.alive and not answer.ended:
            # Its tools cannot, or the program has ended and its supervisor is busy ending the rest.
            self._node_waits = False
        return answer, max(took_s - wait_s, 0.0)

    @staticmethod
    def _check(answer: PollResult, options: dict[str, Any]) -> Mapping[str, Any]:
        """Return the job's state; fails the task where there is none, or another run's."""
        if answer.state is None:
            raise AnsibleActionFail(
                f"no job was started in {options['folder']}: start it with rackproof_job first"
            )
        if answer.state.get("id") != options["id"]:
            raise AnsibleActionFail(
                f"{options['folder']} belongs to run {answer.state.get('id')!r}, not to {options['id']!r}"
            )
        return answer.state

    def _settle(self, options: dict[str, Any]) -> dict[str, Any]:
        """Let the module end what a dead supervisor left behind; returns the job's final state."""
        result = self._execute_module(
            module_name="rackproof_job",
            module_args={"id": options["id"], "folder": options["folder"], "state": "found"},
            task_vars=self._task_vars,
        )
        if "job" not in result:
            raise AnsibleActionFail(str(result.get("msg", "the job's supervisor died")))
        return result["job"]

    def _give_up_if(self, hopeless: bool, options: dict[str, Any], what: str) -> None:
        if hopeless:
            raise AnsibleActionFail(
                f"the node {what}; job {options['id']} in {options['folder']} was left as it is: run the "
                "playbook again to follow on, or stop the job with rackproof_job state=absent"
            )

    @staticmethod
    def _show(line: str | None) -> None:
        if line is None:
            return
        # ansible-core's worker hands a line over under a lock that all processes share. Ended by Ctrl-C
        # while it holds that lock, it leaves the playbook waiting for ever: the signal waits for the line.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
        try:
            display.display(line)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    """Return values that survive JSON: NaN and infinity as text."""
    return {
        key: str(value) if isinstance(value, float) and not math.isfinite(value) else value
        for key, value in values.items()
    }


def _be_quiet(line: str | None) -> None:
    """Show nothing."""
