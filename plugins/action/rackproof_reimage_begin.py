"""Begin a run of reimage.yml: claim the nodes, read their journals, and plan their steps and their order.

The file tasks/begin.yml of role reimage calls this action once, on the controller.
:func:`rackproof.jobs.reimage.tasks.begin_run` does the work. The later tasks of the role get its result.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rackproof.core.errors import RackproofError
from rackproof.core.text import sanitize
from rackproof.jobs.reimage import hardware, tasks
from rackproof_ansible.action import RackproofAction


class ActionModule(RackproofAction):
    """The module rackproof_reimage_begin documents the options of this action."""

    operator_errors = (RackproofError, ValueError)

    def run_action(self, options: dict[str, Any]) -> dict[str, Any]:
        """Return the result of the task, which the module of the same name documents.

        It consists of the run (``run``), all nodes in the order in which they are imaged (``order``), the
        number of nodes in each wave (``sizes``), and the plan in words (``message``).
        """
        # Report a mistake in the inventory now, before nodes are drained.
        for node, values in options["expect"].items():
            hardware.parse_expectation(node, values)
        partitions = options["partitions"]
        run = tasks.begin_run(
            Path(options["results"]),
            options["nodes"],
            method=options["method"],
            owner_pid=self.owner_pid,
            at_once=options["at_once"],
            per_rack=options["per_rack"],
            per_partition=options["per_partition"],
            canary=options["canary"],
            max_failures=options["max_failures"],
            members=str(partitions.get("stdout", "")),
            remark=self._partitions_remark(partitions),
            limits_s=options["limits"],
            images={node: digest for node, digest in options["images"].items() if digest},
            again=options["again"],
        )
        return {
            "changed": False,
            "run": run.model_dump(mode="json", exclude={"message"}),
            "order": [node for wave in run.waves for node in wave],
            "sizes": [len(wave) for wave in run.waves],
            "message": list(run.message),
        }

    @staticmethod
    def _partitions_remark(partitions: dict[str, Any]) -> str:
        """Return a remark if the partitions of Slurm could not be read, or "" if they were read.

        ``partitions`` is the result of the task that runs sinfo.
        """
        if not (partitions.get("failed") or partitions.get("unreachable")):
            return ""
        reason = partitions.get("stderr") or partitions.get("msg") or "no answer"
        return f"Slurm's partitions are unknown, so all nodes count as one partition: {sanitize(reason, 300)}"
