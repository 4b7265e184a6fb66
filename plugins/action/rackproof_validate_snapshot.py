"""Gather a node's health with one call of rackproof_facts, and store its snapshot."""

from __future__ import annotations

import time
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

from rackproof.jobs.validate import tasks


class ActionModule(ActionBase):
    """Documented in plugins/modules/rackproof_validate_snapshot.py."""

    TRANSFERS_FILES = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return in a few words what answered: hundreds of kilobytes of a node's text go no further."""
        super().run(tmp, task_vars)
        _, options = self.validate_argument_spec(
            {
                "night": {"type": "dict", "required": True},
                "sku": {"type": "str", "default": ""},
                "rack": {"type": "str", "default": ""},
                "expected": {"type": "dict", "default": {}},
                "limits": {"type": "dict", "default": {}},
                "references": {"type": "list", "elements": "dict", "default": []},
                "tool_timeout_s": {"type": "float", "default": 15},
                "paths": {"type": "list", "elements": "str", "default": ["/", "/var"]},
            }
        )
        node = (task_vars or {})["inventory_hostname"]
        begun = tasks.Begun(**options["night"])
        asked = time.time()
        answer = self._execute_module(
            module_name="rackproof_facts",
            module_args={
                "subset": "health",
                "tool_timeout_s": options["tool_timeout_s"],
                "paths": options["paths"],
                "since": tasks.last_moment(begun, node),
            },
            task_vars=task_vars,
        )
        if answer.get("failed") or answer.get("unreachable") or "gathered" not in answer:
            return answer
        try:
            said = tasks.store_snapshot(
                begun,
                node,
                answer["gathered"],
                asked=asked,
                answered=time.time(),
                sku=options["sku"],
                rack=options["rack"],
                expected=options["expected"],
                limits=options["limits"],
                references=options["references"],
            )
        except tasks.ValidateError as error:
            raise AnsibleActionFail(str(error)) from error
        return {"changed": False, "msg": said}
