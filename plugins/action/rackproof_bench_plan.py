"""Plan the runs of bench.yml for the nodes that answered, or continue the interrupted plan.

roles/bench/tasks/plan.yml calls this action once, on the controller.
"""

from __future__ import annotations

from typing import Any

from rackproof.jobs.bench import tasks
from rackproof_ansible.action import RackproofAction


class ActionModule(RackproofAction):
    """The module rackproof_bench_plan documents the options of this action."""

    def run_action(self, options: dict[str, Any]) -> dict[str, Any]:
        """Return the plan's id, and for each host the remaining runs with their mounts and runtimes."""
        known = {
            host: self._answer(self.hostvars[host])
            for host in options["hosts"]
            if "bench_variables" in self.hostvars[host]
        }
        outcome = tasks.plan_runs(
            tasks.Choice.model_validate(options["choice"]),
            hosts=options["hosts"],
            answered={host: answer for host, answer in known.items() if answer.facts},
            # A dry run also plans for nodes that did not answer.
            assumed={host: answer for host, answer in known.items() if self.check_mode and not answer.facts},
            racks={
                host: str(answer.slurm["rack"]) for host, answer in known.items() if "rack" in answer.slurm
            },
            sku_references=options["sku_references"],
            resume=options["resume"],
            dry_run=self.check_mode,
            workloads=self.root / "workloads",
        )
        self.show_line(outcome.description)
        plain = outcome.model_dump(mode="json")
        return {
            "changed": not (outcome.resumed or self.check_mode),
            "plan_id": outcome.plan.plan_id,
            "resumed": outcome.resumed,
            "runs": plain["remaining"],
            "mounts": plain["mounts"],
            "runtimes": plain["runtimes"],
            "workers": list(outcome.workers),
            "lacking": list(outcome.lacking),
        }

    @staticmethod
    def _answer(variables: Any) -> tasks.NodeAnswer:
        """Return the facts that the role bench collected about a host."""
        return tasks.NodeAnswer(
            facts=variables.get("bench_facts", {}).get("facts", {}),
            variables=variables["bench_variables"],
            pythons=variables["bench_interpreters"],
            slurm=variables.get("bench_slurm", {}),
            experiment=variables.get("bench_experiment", {}),
        )
