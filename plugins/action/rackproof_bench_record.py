"""Fetch a run's log, parse and judge it, keep the record, write its report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rackproof.core.text import sanitize
from rackproof.jobs.bench import record, tasks
from rackproof_ansible.action import NodeAction, sanitize_lines
from rackproof_ansible.fetch import fetch_job_files, fetch_log

record.preload_libraries()


class ActionModule(NodeAction):
    """Documented in plugins/modules/rackproof_bench_record.py."""

    def run_action(self, options: dict[str, Any]) -> dict[str, Any]:
        """Return what became of the run; a bad verdict is not a failure of this task."""
        results = Path(options["results"])
        run_folder = results / options["run_id"]
        if options["log"]:
            fetch_log(self, options["log"], run_folder / "logs" / f"{self.node}.log")
        if options["code"]:
            fetch_job_files(self, options["code"], run_folder)
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
            require_references=options["require_references"],
            job=options["job"],
            failure=failure,
            command=options["argv"],
            points=options["points"],
            jobs=options["jobs"],
            texts={name: options[name] for name in ("description", "notes", "storage", "network")},
        )
        given_up = tasks.abandoned_results(results, options["plan_id"])
        run = recorded.run
        where = self.node if len(run.asked_nodes) < 2 else f"{len(run.asked_nodes)} nodes"
        line = f"{run.verdict.value.upper()}  {run.title} on {where}"
        self.show_line(sanitize("; ".join([line, *run.reasons[:2]]), limit=600))
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
            },
        }
