"""Select benchmarks for bench.yml, check the request, and claim the hosts. No node is contacted.

roles/bench/tasks/select.yml calls this action once, before facts are gathered.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ansible.utils.vars import load_extra_vars

from rackproof.jobs.bench import tasks
from rackproof_ansible.action import RackproofAction


class ActionModule(RackproofAction):
    """The module rackproof_bench_select documents the options of this action."""

    def run_action(self, options: dict[str, Any]) -> dict[str, Any]:
        """Return the checked choice."""
        choice = tasks.select_benchmarks(
            Path(options.pop("definitions")),
            Path(options.pop("results")),
            owner_pid=self.owner_pid,
            variables=load_extra_vars(self._loader),
            workloads=self.root / "workloads",
            **options,
        )
        return {"changed": False, "choice": choice.model_dump(mode="json")}
