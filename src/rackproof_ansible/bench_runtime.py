"""Find or make a runtime on a node, which is a Python environment for workloads.

The action ``rackproof_bench_runtime`` is :class:`BenchRuntime`. It starts make_runtime.py on the node, shows
the progress of downloads, and returns the path of the environment's interpreter.
"""

from __future__ import annotations

import json
import secrets
import shlex
from typing import Any

from ansible.errors import AnsibleActionFail

from rackproof.core.text import sanitize
from rackproof_ansible.action import NodeAction
from rackproof_ansible.bench_follow import JobFollower

_NOT_MADE = 3
"""Exit status of make_runtime.py --found if there is no such environment yet."""
_HANG_S = 3600.0
"""Seconds without output after which the job that makes a runtime counts as hung."""
_GRACE_S = 10.0
"""Default of ``grace_s`` of rackproof_job, which counts for the job that makes a runtime."""
_PATIENCE_S = 900.0
"""Seconds without an answer of the node after which the task fails."""
_DEADLINE_S = 120.0
"""Seconds after the job's limit at which the task fails, because the supervisor did not end the job."""


class BenchRuntime(NodeAction):
    """The action that finds an environment in milliseconds, or makes it in a job that it follows."""

    def run_action(self, options: dict[str, Any]) -> dict[str, Any]:
        """Return the runtime's interpreter, and whether it was made.

        Raises:
            AnsibleActionFail: The runtime can neither be found nor made.
        """
        if self.check_mode:
            return {"changed": False, "skipped": True, "msg": "no runtime is made in check mode"}
        argv = [options["python"], f"{options['workloads']}/make_runtime.py", *options["arguments"]]
        status, output, error = self.run_command_of_playbook(shlex.join([*argv, "--found"]))
        if status == _NOT_MADE:
            return self._make(argv, options)
        if status:
            raise AnsibleActionFail(_last_line(error or output))
        return self._answer(output)

    def _make(self, argv: list[str], options: dict[str, Any]) -> dict[str, Any]:
        """Make the runtime in a job, which continues even if this playbook ends.

        Raises:
            AnsibleActionFail: The runtime could not be made.
        """
        # Each attempt is its own job. If two run at once, make_runtime.py lets the second find the
        # runtime of the first.
        job = f"runtime-{options['name']}-{secrets.token_hex(2)}"
        folder = f"{options['home']}/runs/{job}"
        limits = {"timeout_s": options["timeout_s"], "hang_s": _HANG_S}
        self.execute_module("rackproof_job", "job", id=job, folder=folder, argv=argv, **limits)
        follow = {
            "id": job,
            "folder": folder,
            "format": "auto",
            "every_s": options["every_s"],
            "expected_s": None,
            "limit_s": options["timeout_s"] + _GRACE_S,
            "deadline_s": _DEADLINE_S,
            "patience_s": _PATIENCE_S,
        }
        ended = JobFollower(self, follow).follow()["job"]
        _, output, _ = self.run_command(
            f"tail -n 20 {shlex.quote(folder)}/log.txt; rm -rf {shlex.quote(folder)}"
        )
        if not ended.get("succeeded"):
            raise AnsibleActionFail(_last_line(output) or sanitize(ended.get("message", ""), 300))
        return self._answer(output)

    def _answer(self, output: str) -> dict[str, Any]:
        """Return the answer in the last line of make_runtime.py's output.

        Raises:
            AnsibleActionFail: The last line is not a complete answer.
        """
        try:
            answer = json.loads(output.strip().splitlines()[-1])
            return {"changed": bool(answer["changed"]), "python": str(answer["python"])}
        except (ValueError, IndexError, KeyError, TypeError):
            raise AnsibleActionFail(
                f"{self.node}: make_runtime.py ended without an answer: {_last_line(output)}"
            ) from None


def _last_line(output: str) -> str:
    """Return the last line of an output that is not blank, sanitized, or "" if there is none."""
    lines = [line for line in output.splitlines() if line.strip()]
    return sanitize(lines[-1], 1000) if lines else ""
