"""Plan the waves in which provision.yml takes nodes out of service.

roles/provision/tasks/plan.yml calls this action once, before the first wave.
"""

from __future__ import annotations

from typing import Any

from rackproof.core.text import sanitize
from rackproof.jobs.provision.waves import WaveLimits, describe_waves, plan_provision_waves
from rackproof.nodes.slurm_states import IN_SERVICE, read_partitions
from rackproof_ansible.action import RackproofAction


class ActionModule(RackproofAction):
    """The module rackproof_provision_plan documents the options of this action."""

    def run_action(self, options: dict[str, Any]) -> dict[str, Any]:
        """Return the order of the nodes, the sizes of the waves, and the plan in words."""
        nodes, partitions = options["nodes"], options["partitions"]
        limits = WaveLimits(
            batch=options["batch"],
            share=options["max_drain_fraction"],
            canary=options["canary"],
            failures=options["max_failures"],
        )
        remark = ""
        if partitions.get("failed") or partitions.get("unreachable"):
            reason = sanitize(partitions.get("stderr") or partitions.get("msg") or "no answer", 300)
            remark = f"Slurm did not answer, so all nodes count as one partition in service: {reason}"
            members = {"(unknown)": dict.fromkeys(nodes, IN_SERVICE)}
        else:
            members = read_partitions(str(partitions.get("stdout", "")))
        waves = plan_provision_waves(nodes, members, limits)
        return {
            "changed": False,
            "order": [node for wave in waves for node in wave.nodes],
            "sizes": [len(wave.nodes) for wave in waves],
            "message": describe_waves(waves, limits, remark),
        }
