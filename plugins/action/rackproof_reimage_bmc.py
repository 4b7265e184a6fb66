"""Ask a node's BMC, set what it boots from, switch it on or off."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

from rackproof.jobs.reimage import bmc, bmc_types


class ActionModule(ActionBase):
    """Documented in plugins/modules/rackproof_reimage_bmc.py."""

    TRANSFERS_FILES = False
    _requires_connection = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return what the BMC says in the end."""
        super().run(tmp, task_vars)
        _, options = self.validate_argument_spec(
            {
                "address": {"type": "str", "required": True},
                "protocol": {"type": "str", "choices": ["redfish", "ipmi"], "default": "redfish"},
                "user": {"type": "str", "default": ""},
                "password": {"type": "str", "default": "", "no_log": True},
                "ca_file": {"type": "path"},
                "system": {"type": "str", "default": ""},
                "uefi": {"type": "bool", "default": True},
                "boot": {"type": "str", "choices": ["pxe", "disk"]},
                "power": {"type": "str", "choices": ["on", "off", "cycle"]},
                "timeout_s": {"type": "float", "default": 120},
            }
        )
        node = (task_vars or {})["inventory_hostname"]
        access = bmc_types.Access.from_options(options)
        try:
            before = now = bmc.read_power_status(node, access)
            if options["boot"] and not self._task.check_mode:
                now = bmc.set_boot(node, access, options["boot"])
            if options["power"] and not self._task.check_mode:
                now = bmc.set_power(node, access, options["power"], timeout_s=options["timeout_s"])
        except bmc_types.BmcError as error:
            raise AnsibleActionFail(str(error)) from error
        return {"changed": now != before or options["power"] == "cycle", "bmc": asdict(now)}
