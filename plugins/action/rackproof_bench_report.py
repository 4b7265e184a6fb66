"""Write the report over all runs of a plan and say what the verdict is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

from rackproof.core.text import sanitize
from rackproof.jobs.bench import tasks


class ActionModule(ActionBase):
    """Documented in plugins/modules/rackproof_bench_report.py."""

    TRANSFERS_FILES = False
    _requires_connection = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the verdict over all runs, and whether it gates."""
        super().run(tmp, task_vars)
        _, options = self.validate_argument_spec(
            {
                "plan_id": {"type": "str", "required": True},
                "results": {"type": "path", "required": True},
            }
        )
        try:
            report = tasks.report_plan(Path(options["results"]), options["plan_id"])
        except tasks.BenchError as error:
            raise AnsibleActionFail(str(error)) from error
        return {
            "changed": True,
            "verdict": report.verdict.value,
            "gates": report.gates,
            "message": [sanitize(line, limit=600) for line in report.message.splitlines()],
            "rackproof_report_file": report.report,
        }
