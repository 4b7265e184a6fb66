"""Judge a night of the fleet for validate.yml, and decide which nodes to drain and to resume.

roles/validate/tasks/judge.yml calls this action once, after the measurements.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rackproof.core.task_failures import answer_text
from rackproof.jobs.reimage import tasks as reimage_tasks
from rackproof.jobs.validate import judge, tasks
from rackproof.store.night_store import NightContext
from rackproof_ansible.action import RackproofAction, sanitize_lines


class ActionModule(RackproofAction):
    """The module rackproof_validate_judge documents the options of this action."""

    def run_action(self, options: dict[str, Any]) -> dict[str, Any]:
        """Return the nodes to drain and to resume. A bad node does not fail this task."""
        allowed = {"drain": options["drain"], "return": options["resume"]}
        slurm, remark = tasks.read_slurm_answer(options["slurm"], options["partitions"])
        night = NightContext(**options["night"])
        judged = judge.judge_fleet(
            night,
            asked={node: answer_text(answer) for node, answer in options["snapshots"].items()},
            slurm=slurm,
            members=str(options["partitions"].get("stdout", "")),
            slurm_remark=remark,
            share=options["share"],
            return_hours=options["return_hours"],
            acts=[act for act, is_allowed in allowed.items() if is_allowed],
            require_measurements=options["require_measurements"],
            policy=judge.night_policy(
                false_alarms=options["false_alarms"], require_references=options["require_references"]
            ),
            measuring=tasks.probing_failure(options["probed"]),
            benchmarks=Path(options["checkout"]) / "benchmarks",
            being_imaged=reimage_tasks.unfinished_imaging(Path(night.results), _drained_by_nights(slurm)),
            link=options["link"],
        )
        return {
            "changed": False,
            "drain": list(judged.drain),
            "resume": list(judged.resume),
            "message": list(judged.message),
            "health": {
                health.node: {
                    "verdict": health.verdict.value,
                    "gates": health.verdict.gates,
                    "reasons": sanitize_lines(health.reasons),
                    "remarks": sanitize_lines(health.remarks),
                }
                for health in judged.health
            },
        }


def _drained_by_nights(slurm: Mapping[str, Any] | None) -> list[str]:
    """Return the nodes that nights hold drained. Only these can be resumed."""
    return [
        node
        for node, state in (slurm or {}).items()
        if isinstance(state, Mapping) and state.get("drained_by") == "ours"
    ]
