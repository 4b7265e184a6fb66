"""Read a node's power and boot device from its BMC for reimage.yml, and change them if requested.

roles/reimage/tasks/by_image.yml calls this action.
"""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from typing import Any

from rackproof.jobs.reimage import bmc, tasks
from rackproof_ansible.action import RackproofAction


class ActionModule(RackproofAction):
    """The module rackproof_reimage_bmc documents the options of this action."""

    def run_action(self, options: dict[str, Any]) -> dict[str, Any]:
        """Return the power and boot device that the BMC reports at the end."""
        access = bmc.Access.from_options(options)
        open_machine = partial(tasks.open_machine, self.node, access)
        before = after = bmc.read_power_status(open_machine)
        if options["boot"] and not self.check_mode:
            after = bmc.set_boot(self.node, open_machine, options["boot"])
        if options["power"] and not self.check_mode:
            after = bmc.set_power(self.node, open_machine, options["power"], timeout_s=options["timeout_s"])
        return {
            "changed": after != before or options["power"] == "cycle",
            "bmc": asdict(after),
            "warnings": sorted(set(access.remarks)),
        }
