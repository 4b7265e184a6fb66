"""Choose benchmarks, check the operator's request, and claim the hosts; no node is touched."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rackproof.jobs.bench import tasks
from rackproof_ansible.action import RackproofAction


class ActionModule(RackproofAction):
    """Documented in plugins/modules/rackproof_bench_select.py."""

    def run_action(self, options: dict[str, Any]) -> dict[str, Any]:
        """Return the checked choice."""
        choice = tasks.select_benchmarks(
            Path(options.pop("definitions")),
            Path(options.pop("results")),
            owner_pid=self.owner_pid,
            **options,
        )
        return {"changed": False, "choice": choice.model_dump(mode="json")}
