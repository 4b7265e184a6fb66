"""Gather a node's facts for reimage.yml, and store or check them.

Before the node is imaged, its hardware is stored. After that, its first boot is checked, and its hardware is
compared with the stored one.
"""

from __future__ import annotations

from typing import Any

from rackproof.core.errors import RackproofError
from rackproof.jobs.reimage import bmc, hardware, run_files, tasks
from rackproof_ansible.action import NodeAction


class ActionModule(NodeAction):
    """The module rackproof_reimage_record documents the options of this action."""

    operator_errors = (RackproofError, ValueError)

    def run_action(self, options: dict[str, Any]) -> dict[str, Any]:
        """Return remarks on the node. Its facts are not returned."""
        facts = None
        if options["answers"]:
            timeout_s = options["tool_timeout_s"]
            facts = self.execute_module(
                "rackproof_facts", "facts", subset="record", tool_timeout_s=timeout_s
            )["facts"]
        run = run_files.ReimageContext(**options["run"])
        expected = hardware.parse_expectation(self.node, options["expect"])
        if options["which"] == "booted":
            remarks = hardware.check_first_boot(run, self.node, facts or {})
        else:
            remarks = hardware.record_hardware(
                run,
                self.node,
                options["which"],
                facts,
                sku=options["sku"],
                serial=options["serial"],
                expected_gpus=options["gpus"],
                settings=self._bmc_settings(options["bmc"] or {}, expected),
                expected=expected,
            )
        return {"changed": False, "remarks": list(remarks)}

    def _bmc_settings(
        self, options: dict[str, Any], expected: hardware.HardwareExpectation
    ) -> bmc.Settings | None:
        """Return BIOS settings and firmware from the BMC, or None if the BMC is not queried.

        IPMI offers neither. If values are expected, they count as unknown for a BMC with IPMI.
        """
        if not options.get("address"):
            return None
        if options["protocol"] == "ipmi" and expected == hardware.HardwareExpectation():
            return None
        return tasks.read_settings(self.node, bmc.Access.from_options(options))
