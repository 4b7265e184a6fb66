"""Ask BMCs who they are, and write down which is which node's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

from rackproof.jobs.reimage import bmc, discovery


class ActionModule(ActionBase):
    """Documented in plugins/modules/rackproof_reimage_discover.py."""

    TRANSFERS_FILES = False
    _requires_connection = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the nodes that were matched, and what is to be seen to."""
        super().run(tmp, task_vars)
        _, options = self.validate_argument_spec(
            {
                "addresses": {"type": "list", "elements": "str", "required": True},
                "nodes": {"type": "list", "elements": "str", "required": True},
                "file": {"type": "path", "required": True},
                "protocol": {"type": "str", "choices": ["redfish", "ipmi"], "default": "redfish"},
                "user": {"type": "str", "default": ""},
                "password": {"type": "str", "default": "", "no_log": True},
                "ca_file": {"type": "path"},
                "parallel": {"type": "int", "default": 32},
                "timeout_s": {"type": "float", "default": 60},
            }
        )
        hosts = (task_vars or {})["hostvars"]
        nodes = {str(name): discovery.Known.of(hosts[name]) for name in options["nodes"]}
        access = bmc.Access.of(options)
        try:
            addresses, ranged = discovery.expand(map(str, options["addresses"]))
            answers = discovery.ask(
                addresses, access, parallel=max(1, options["parallel"]), timeout_s=options["timeout_s"]
            )
            found = discovery.match(answers, nodes, protocol=options["protocol"], ranged=ranged)
            changed = False
            if found.variables and not self._task.check_mode:
                changed = discovery.keep(Path(options["file"]), found.variables)
        except discovery.DiscoveryError as error:
            raise AnsibleActionFail(str(error)) from error
        return {"changed": changed, **found.plain()}
