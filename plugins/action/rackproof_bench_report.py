"""Write the report over all runs of a plan of bench.yml, and return the plan's verdict.

roles/bench/tasks/report.yml calls this action once, after the last run.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rackproof.jobs.bench import tasks
from rackproof_ansible.action import RackproofAction, sanitize_lines


class ActionModule(RackproofAction):
    """The module rackproof_bench_report documents the options of this action."""

    def run_action(self, options: dict[str, Any]) -> dict[str, Any]:
        """Write the report. Return the verdict on all runs, and whether it gates."""
        report = tasks.report_plan(Path(options["results"]), options["plan_id"])
        return {
            "changed": True,
            "verdict": report.verdict.value,
            "gates": report.gates,
            "message": sanitize_lines(report.message.splitlines()),
            "rackproof_report_file": report.report,
            "rackproof_report_runs": {
                run_id: str(Path(options["results"]) / run_id) for run_id in report.runs
            },
        }
