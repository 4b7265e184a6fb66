"""Judge a night of the fleet, and say which nodes should be drained and which returned."""

from __future__ import annotations

from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

from rackproof.jobs.validate import tasks


class ActionModule(ActionBase):
    """Documented in plugins/modules/rackproof_validate_judge.py."""

    TRANSFERS_FILES = False
    _requires_connection = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return what should be done; a bad node is not a failure of this task."""
        super().run(tmp, task_vars)
        _, options = self.validate_argument_spec(
            {
                "night": {"type": "dict", "required": True},
                "looked": {"type": "dict", "required": True},
                "slurm": {"type": "dict", "default": {}},
                "partitions": {"type": "dict", "default": {}},
                "share": {"type": "float", "default": 0.15},
                "drain": {"type": "bool", "default": False},
                "give_back": {"type": "bool", "default": False},
                "require_measurements": {"type": "bool", "default": False},
                "require_references": {"type": "bool", "default": True},
                "probed": {"type": "dict", "default": {}},
                "link": {"type": "str", "default": ""},
            }
        )
        known, remark = tasks.slurm_answer(options["slurm"], options["partitions"])
        try:
            judged = tasks.judge(
                tasks.Begun(**options["night"]),
                asked={node: str(answer.get("msg", "")) for node, answer in options["looked"].items()},
                slurm=known,
                members=str(options["partitions"].get("stdout", "")),
                slurm_remark=remark,
                share=options["share"],
                acts=[
                    act
                    for act, allowed in (("drain", options["drain"]), ("return", options["give_back"]))
                    if allowed
                ],
                require_measurements=options["require_measurements"],
                require_references=options["require_references"],
                measuring=tasks.measuring_answer(options["probed"]),
                link=options["link"],
            )
        except tasks.ValidateError as error:
            raise AnsibleActionFail(str(error)) from error
        return {
            "changed": False,
            "drain": list(judged.drain),
            "give_back": list(judged.back),
            "message": list(judged.message),
        }
