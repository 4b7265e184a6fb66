"""Fetch the log of a run of bench.yml, parse and judge it, store the record, and write the report.

roles/bench/tasks/run.yml calls this action after each run.
"""

from __future__ import annotations

import base64
import re
import shlex
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleError

from rackproof.core.records import Verdict
from rackproof.core.text import sanitize
from rackproof.jobs.bench import record, tasks
from rackproof.logs.opening import MOST_UNPACKED
from rackproof_ansible.action import NodeAction, sanitize_lines

record.preload_libraries()

_JOB_FILE = re.compile(r"config_[A-Za-z0-9_.-]{1,100}\.sh|run\.sub")
_MOST_JOB_FILE_BYTES = 262_144
"""Size from which a file is left out. The config and the run script of a job are far smaller."""


class ActionModule(NodeAction):
    """The module rackproof_bench_record documents the options of this action."""

    def run_action(self, options: dict[str, Any]) -> dict[str, Any]:
        """Return the outcome of the run. A bad verdict does not fail this task."""
        results = Path(options["results"])
        run_folder = results / options["run_id"]
        if options["log"]:
            self._fetch_log(options["log"], run_folder / "logs" / f"{self.node}.log")
        if options["code"]:
            self._fetch_job_files(options["code"], run_folder)
        failure = ""
        if options["failed_task"]:
            failure = tasks.failure_message(options["failed_task"], options["failed_result"])
        recorded = tasks.record_run(
            results,
            options["plan_id"],
            options["run_id"],
            facts=options["facts"],
            sku=options["sku"],
            sku_gpus=options["sku_gpus"],
            sku_references=options["sku_references"],
            required=tasks.Requirements(options["require_references"], options["require_idle"]),
            job=options["job"],
            failure=failure,
            command=options["argv"],
            reports=options["points"],
            jobs=options["jobs"],
            texts={name: options[name] for name in ("description", "notes", "storage", "network")},
        )
        given_up = tasks.abandoned_results(results, options["plan_id"])
        run = recorded.run
        nodes_text = self.node if len(run.asked_nodes) < 2 else f"{len(run.asked_nodes)} nodes"
        line = f"{run.verdict.value.upper()}  {run.title} on {nodes_text}"
        # The table at the end lists the reasons of all runs. Until then, only the page shows them.
        page = f": {recorded.report}" if run.verdict is not Verdict.PASS and recorded.report else ""
        self.show_line(sanitize(f"{line}{page}", limit=600))
        self.show_warning(recorded.history)
        return {
            "changed": True,
            "given_up": given_up,
            "rackproof_run": {
                "run_id": run.run_id,
                "verdict": run.verdict.value,
                "reasons": sanitize_lines(run.reasons),
                "folder": recorded.folder,
                "report": recorded.report,
                "nodes": list(run.asked_nodes),
            },
        }

    def _fetch_job_files(self, remote: str, folder: Path) -> None:
        """Copy the config and the run script of a job to the run's folder on the controller."""
        # Use one command for all files. The option -w0 keeps each file on one line. Without this option,
        # base64 breaks lines after 76 characters.
        command = (
            f"cd {shlex.quote(remote)} 2>/dev/null && for f in config_*.sh run.sub; do "
            f'[ -f "$f" ] && [ "$(wc -c <"$f")" -lt {_MOST_JOB_FILE_BYTES} ] && '
            'echo "$f $(base64 -w0 "$f")"; done; true'
        )
        folder.mkdir(parents=True, exist_ok=True)
        _, output, _ = self.run_command(command)
        for line in output.splitlines():
            name, _, data = line.strip().partition(" ")
            # The name is from the node, so it must not lead out of the folder.
            if not _JOB_FILE.fullmatch(name):
                continue
            try:
                (folder / name).write_bytes(base64.b64decode(data, validate=True))
            except (ValueError, OSError) as error:
                self.show_warning(
                    f"{self.node}: {name} of the run could not be stored in {folder}: {error}. The record "
                    "lacks this file, and the verdict does not change."
                )

    def _fetch_log(self, remote: str, local: Path) -> None:
        """Copy a job's log completely or not at all. Without its log, the run is unproven."""
        local.parent.mkdir(parents=True, exist_ok=True)
        # The name of the draft begins with a dot, because hidden files are not read as logs. An incomplete
        # copy is therefore never judged.
        draft = local.with_name(f".{local.name}.part")
        try:
            self.fetch_file(remote, draft, MOST_UNPACKED)
            draft.replace(local)
        except (AnsibleError, OSError) as error:
            draft.unlink(missing_ok=True)
            self.show_warning(
                f"{self.node}: the log {remote} could not be fetched, so the run is unproven: {error}"
            )
