"""Fetch a run's log, parse and judge it, keep the record, write its report."""

from __future__ import annotations

import base64
import re
import shlex
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail, AnsibleError
from ansible.plugins.action import ActionBase

from rackproof.core.text import sanitize
from rackproof.jobs.bench import record, tasks

record.preload_libraries()


class ActionModule(ActionBase):
    """Documented in plugins/modules/rackproof_bench_record.py."""

    TRANSFERS_FILES = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return what became of the run; a bad verdict is not a failure of this task."""
        super().run(tmp, task_vars)
        _, options = self.validate_argument_spec(
            {
                "plan_id": {"type": "str", "required": True},
                "run_id": {"type": "str", "required": True},
                "results": {"type": "path", "required": True},
                "facts": {"type": "dict", "default": {}},
                "sku": {"type": "str", "default": ""},
                "sku_gpus": {"type": "int", "default": 0},
                "sku_references": {"type": "list", "elements": "dict", "default": []},
                "require_references": {"type": "bool", "default": True},
                "description": {"type": "str", "default": ""},
                "notes": {"type": "str", "default": ""},
                "storage": {"type": "str", "default": ""},
                "network": {"type": "str", "default": ""},
                "log": {"type": "str", "default": ""},
                "code": {"type": "str", "default": ""},
                "job": {"type": "dict", "default": {}},
                "points": {"type": "dict", "default": {}},
                "jobs": {"type": "dict", "default": {}},
                "argv": {"type": "list", "elements": "str", "default": []},
                "failed_task": {"type": "str", "default": ""},
                "failed_result": {"type": "dict", "default": {}},
            }
        )
        host = (task_vars or {})["inventory_hostname"]
        results = Path(options["results"])
        failure = (
            tasks.failure_message(options["failed_task"], options["failed_result"])
            if options["failed_task"]
            else ""
        )
        if options["log"]:
            self._fetch(options["log"], results / options["run_id"] / "logs" / f"{host}.log")
        if options["code"]:
            self._fetch_code(options["code"], results / options["run_id"])
        try:
            recorded = tasks.record_run(
                results,
                options["plan_id"],
                options["run_id"],
                facts=options["facts"],
                sku=options["sku"],
                sku_gpus=options["sku_gpus"],
                sku_references=options["sku_references"],
                require_references=options["require_references"],
                job=options["job"],
                failure=failure,
                command=options["argv"],
                points=options["points"],
                jobs=options["jobs"],
                texts={name: options[name] for name in ("description", "notes", "storage", "network")},
            )
            given_up = tasks.abandoned_results(results, options["plan_id"])
        except tasks.BenchError as error:
            raise AnsibleActionFail(str(error)) from error
        run = recorded.run
        where = host if len(run.asked_nodes) < 2 else f"{len(run.asked_nodes)} nodes"
        line = f"{run.verdict.value.upper()}  {run.title} on {where}"
        self._display.display(sanitize("; ".join([line, *run.reasons[:2]]), limit=600))
        if recorded.history:
            self._display.warning(sanitize(recorded.history, limit=600))
        return {
            "changed": True,
            "given_up": given_up,
            "rackproof_run": {
                "run_id": run.run_id,
                "verdict": run.verdict.value,
                "reasons": [sanitize(reason, limit=600) for reason in run.reasons],
                "folder": recorded.folder,
                "report": recorded.report,
            },
        }

    def _fetch_code(self, remote: str, folder: Path) -> None:
        """Copy the config and the run script that a job was started with to the run folder."""
        command = (
            f"cd {shlex.quote(remote)} 2>/dev/null && for f in config_*.sh run.sub; do "
            '[ -f "$f" ] && [ "$(wc -c <"$f")" -lt 262144 ] && echo "$f $(base64 -w0 "$f")"; done; true'
        )
        folder.mkdir(parents=True, exist_ok=True)
        for line in self._low_level_execute_command(command)["stdout"].splitlines():
            name, _, data = line.strip().partition(" ")
            if re.fullmatch(r"config_[A-Za-z0-9_.-]{1,100}\.sh|run\.sub", name):
                try:
                    (folder / name).write_bytes(base64.b64decode(data, validate=True))
                except (ValueError, OSError) as error:
                    self._display.warning(f"{name} of the run could not be kept: {error}")

    def _fetch(self, remote: str, local: Path) -> None:
        """Copy the job's log to the run folder, whole or not at all; without it the run is unproven."""
        local.parent.mkdir(parents=True, exist_ok=True)
        draft = local.with_name(f".{local.name}.part")
        try:
            self._connection.fetch_file(remote, str(draft))
            draft.replace(local)
        except (AnsibleError, OSError) as error:
            self._display.warning(f"the log {remote} could not be fetched: {error}")
