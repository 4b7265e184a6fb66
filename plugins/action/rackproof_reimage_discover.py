"""Find each node's machine for reimage.yml, through the BMCs or in reports of machines that booted.

The files discover_by_bmc.yml and discover_by_boot.yml in roles/reimage/tasks call this action for
playbooks/discover.yml.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail, AnsibleConnectionFailure

from rackproof.jobs.reimage import bmc, boot_reports, discovery, tasks
from rackproof_ansible.action import NodeAction


class ActionModule(NodeAction):
    """The module rackproof_reimage_discover documents the options of this action."""

    required_if = (("by", "bmc", ["addresses"]), ("by", "boot", ["folder", "seconds"]))

    def run_action(self, options: dict[str, Any]) -> dict[str, Any]:
        """Return the matched nodes, and the problems to solve."""
        if options["by"] == "boot" and self.check_mode:
            return {"changed": False, "skipped": True, "msg": "check mode collects no boot reports"}
        nodes = {
            str(name): discovery.KnownNode.from_variables(self.hostvars[name]) for name in options["nodes"]
        }
        if options["by"] == "boot":
            return self._discover_by_boot(nodes, options)
        return self._discover_by_bmc(nodes, options)

    def _discover_by_bmc(
        self, nodes: dict[str, discovery.KnownNode], options: dict[str, Any]
    ) -> dict[str, Any]:
        """Query the BMCs, match their machines with the nodes, and write the nodes' variables."""
        addresses, ranged = discovery.expand_addresses(map(str, options["addresses"]))
        answers = discovery.ask_bmcs(
            addresses,
            bmc.Access.from_options(options),
            tasks.list_systems,
            parallel=max(1, options["parallel"]),
            timeout_s=options["timeout_s"],
        )
        discovered = discovery.match_machines(answers, nodes, protocol=options["protocol"], ranged=ranged)
        changed = False
        if discovered.variables and not self.check_mode:
            changed = discovery.write_discovered(Path(options["file"]), discovered.variables)
        return {"changed": changed, **discovered.plain()}

    def _discover_by_boot(
        self, nodes: dict[str, discovery.KnownNode], options: dict[str, Any]
    ) -> dict[str, Any]:
        """Collect the machines' reports from their boot host, and write the matched nodes' variables."""
        path = Path(options["file"])
        # Report an unusable file now, before machines are switched on in vain.
        discovery.read_discovered(path)
        awaited = boot_reports.Awaited(nodes, options["macs"])
        reports = boot_reports.collect(
            self._ask_host, options["folder"], awaited, options["seconds"], self.show_line
        )
        discovered = boot_reports.match_reports(reports, nodes)
        changed = bool(discovered.variables) and discovery.write_discovered(path, discovered.variables)
        return {"changed": changed, **boot_reports.summarize(reports, discovered, awaited)}

    def _ask_host(self, command: str) -> str:
        """Return the output of a command on the host, or "" if the host cannot be reached."""
        try:
            status, output, errors = self.run_command(command)
        except AnsibleConnectionFailure as error:
            self._display.warning(f"the boot reports cannot be listed: {error}")
            self.close_connection()
            return ""
        if status:
            raise AnsibleActionFail(
                f"the boot reports cannot be read: {errors.strip()[-300:]}. Start again if their time is over"
            )
        return output
