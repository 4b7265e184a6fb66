"""Plan the runs for the nodes that answered, or go on with the plan that was interrupted."""

from __future__ import annotations

from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

from rackproof.jobs.bench import tasks


class ActionModule(ActionBase):
    """Documented in plugins/modules/rackproof_bench_plan.py."""

    TRANSFERS_FILES = False
    _requires_connection = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the plan's id, and the runs still to be made by host."""
        super().run(tmp, task_vars)
        _, options = self.validate_argument_spec(
            {
                "choice": {"type": "dict", "required": True},
                "hosts": {"type": "list", "elements": "str", "required": True},
                "resume": {"type": "bool", "default": True},
            }
        )
        hostvars = (task_vars or {})["hostvars"]
        answered = {
            host: tasks.NodeAnswer(
                facts=hostvars[host]["bench_facts"]["facts"],
                variables=hostvars[host]["bench_variables"],
                pythons=hostvars[host]["bench_interpreters"],
                slurm=hostvars[host].get("bench_slurm", {}),
                experiment=hostvars[host].get("bench_experiment", {}),
            )
            for host in options["hosts"]
            if "bench_variables" in hostvars[host]
        }
        try:
            outcome = tasks.plan_runs(
                tasks.Choice.model_validate(options["choice"]),
                hosts=options["hosts"],
                answered=answered,
                resume=options["resume"],
                dry_run=self._task.check_mode,
            )
        except tasks.BenchError as error:
            raise AnsibleActionFail(str(error)) from error
        self._display.display(outcome.description)
        told = outcome.model_dump(mode="json")
        return {
            "changed": not (outcome.resumed or self._task.check_mode),
            "plan_id": outcome.plan.plan_id,
            "resumed": outcome.resumed,
            "runs": told["remaining"],
            "mounts": told["mounts"],
            "runtimes": told["runtimes"],
            "workers": list(outcome.workers),
        }
