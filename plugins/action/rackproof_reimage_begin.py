"""Begin a run of reimage.yml: claim the nodes, see where each stands, put them in order."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

from rackproof.core.text import sanitize
from rackproof.jobs.reimage import hardware_diff, tasks


class ActionModule(ActionBase):
    """Documented in plugins/modules/rackproof_reimage_begin.py."""

    TRANSFERS_FILES = False
    _requires_connection = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the run, and the nodes in the order in which they are taken."""
        super().run(tmp, task_vars)
        _, options = self.validate_argument_spec(
            {
                "results": {"type": "path", "required": True},
                "nodes": {"type": "dict", "required": True},
                "method": {"type": "str", "required": True},
                "partitions": {"type": "dict", "default": {}},
                "at_once": {"type": "int", "default": 8},
                "per_rack": {"type": "int", "default": 4},
                "per_partition": {"type": "int", "default": 4},
                "limits": {"type": "dict", "default": {}},
                "images": {"type": "dict", "default": {}},
                "again": {"type": "bool", "default": False},
                "expect": {"type": "dict", "default": {}},
            }
        )
        listed, remark = options["partitions"], ""
        if listed.get("failed") or listed.get("unreachable"):
            said = listed.get("stderr") or listed.get("msg") or "no answer"
            remark = f"Slurm's partitions are not known, all nodes count as one: {sanitize(said, 300)}"
        try:
            # A typing error is told before a node is drained for it.
            for name, values in options["expect"].items():
                hardware_diff.parse_expectation(name, values)
            run = tasks.begin_run(
                Path(options["results"]),
                options["nodes"],
                method=options["method"],
                # A worker's parent is the playbook's own process: the claim lasts as long as it lives.
                owner_pid=None if self._task.check_mode else os.getppid(),
                at_once=options["at_once"],
                per_rack=options["per_rack"],
                per_partition=options["per_partition"],
                members=str(listed.get("stdout", "")),
                remark=remark,
                limits_s=options["limits"],
                images={name: digest for name, digest in options["images"].items() if digest},
                again=options["again"],
            )
        except (tasks.ReimageError, ValueError) as error:
            raise AnsibleActionFail(str(error)) from error
        return {
            "changed": False,
            "run": run.model_dump(mode="json", exclude={"message"}),
            "order": [name for wave in run.waves for name in wave],
            "sizes": [len(wave) for wave in run.waves],
            "message": list(run.message),
        }
