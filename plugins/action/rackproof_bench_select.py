"""Choose benchmarks, check what the operator asked for, and claim the hosts; touches no node."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

from rackproof.jobs.bench import tasks


class ActionModule(ActionBase):
    """Documented in plugins/modules/rackproof_bench_select.py."""

    TRANSFERS_FILES = False
    _requires_connection = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the checked choice."""
        super().run(tmp, task_vars)
        _, options = self.validate_argument_spec(
            {
                "definitions": {"type": "path", "required": True},
                "results": {"type": "path", "required": True},
                "suite": {"type": "str", "default": ""},
                "benchmarks": {"type": "list", "elements": "str", "default": []},
                "parameters": {"type": "dict", "default": {}},
                "sku_references": {"type": "list", "elements": "dict", "default": []},
                "hosts": {"type": "list", "elements": "str", "required": True},
            }
        )
        # A worker's parent is the playbook's own process: the claim lasts as long as it lives.
        owner = None if self._task.check_mode else os.getppid()
        try:
            choice = tasks.select_benchmarks(
                Path(options["definitions"]),
                Path(options["results"]),
                suite=options["suite"],
                benchmarks=options["benchmarks"],
                parameters=options["parameters"],
                sku_references=options["sku_references"],
                hosts=options["hosts"],
                owner_pid=owner,
            )
        except tasks.BenchError as error:
            raise AnsibleActionFail(str(error)) from error
        return {"changed": False, "choice": choice.model_dump(mode="json")}
