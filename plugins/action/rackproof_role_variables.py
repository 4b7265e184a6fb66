"""Check the variables of several roles on a host, in one task. No node is contacted.

roles/provision calls this action in check.yml and variables.yml.
"""

from __future__ import annotations

from typing import Any

from ansible.errors import AnsibleError

from rackproof_ansible.action import RackproofAction
from rackproof_ansible.role_variables import read_defaults, read_specs, role_problems

SHOWN_PROBLEMS = 5


class ActionModule(RackproofAction):
    """The module rackproof_role_variables documents the options of this action."""

    def run_action(self, options: dict[str, Any]) -> dict[str, Any]:
        """Return success, or one message about all variables that are wrong."""
        roles = self.root / "roles"
        raw = {**read_defaults(roles, options["roles"], self._loader), **self.task_vars}
        every = sorted(path.parent.name for path in roles.glob("*/defaults"))

        def evaluate(value: Any) -> Any:
            try:
                return self._templar.copy_with_new_env(available_variables=raw).template(value)
            except AnsibleError:
                # A site's template may read a variable of a role that only a later play has.
                known = {**read_defaults(roles, every, self._loader), **raw}
                return self._templar.copy_with_new_env(available_variables=known).template(value)

        problems = list(role_problems(read_specs(roles, options["roles"]), raw, evaluate))
        if not problems:
            return {"changed": False}
        shown = "; ".join(problems[:SHOWN_PROBLEMS])
        more = len(problems) - SHOWN_PROBLEMS
        return {
            "failed": True,
            "msg": f"{self.node}: {shown}{f'; and {more} more' if more > 0 else ''}",
        }
