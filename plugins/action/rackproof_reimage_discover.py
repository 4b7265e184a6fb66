"""Find out which machine is which node's: by their BMCs, or by the reports of machines that booted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail, AnsibleConnectionFailure
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from rackproof.jobs.reimage import bmc_types, boot_reports, discovery

display = Display()


class ActionModule(ActionBase):
    """Documented in plugins/modules/rackproof_reimage_discover.py."""

    TRANSFERS_FILES = False
    _requires_connection = True

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the nodes that were matched, and what is to be seen to."""
        super().run(tmp, task_vars)
        _, options = self.validate_argument_spec(
            {
                "by": {"type": "str", "choices": ["bmc", "boot"], "default": "bmc"},
                "nodes": {"type": "list", "elements": "str", "required": True},
                "file": {"type": "path", "required": True},
                "addresses": {"type": "list", "elements": "str"},
                "protocol": {"type": "str", "choices": ["redfish", "ipmi"], "default": "redfish"},
                "user": {"type": "str", "default": ""},
                "password": {"type": "str", "default": "", "no_log": True},
                "ca_file": {"type": "path"},
                "parallel": {"type": "int", "default": 32},
                "timeout_s": {"type": "float", "default": 60},
                "folder": {"type": "path"},
                "macs": {"type": "list", "elements": "str", "default": []},
                "seconds": {"type": "int"},
            },
            required_if=[("by", "bmc", ["addresses"]), ("by", "boot", ["folder", "seconds"])],
        )
        if options["by"] == "boot" and self._task.check_mode:
            return {"changed": False, "skipped": True, "msg": "check mode collects no boot reports"}
        hosts = (task_vars or {})["hostvars"]
        nodes = {str(name): discovery.KnownNode.of(hosts[name]) for name in options["nodes"]}
        try:
            if options["by"] == "boot":
                return self._discover_by_boot(nodes, options)
            return self._discover_by_bmc(nodes, options)
        except (discovery.DiscoveryError, boot_reports.BootReportError) as error:
            raise AnsibleActionFail(str(error)) from error

    def _discover_by_bmc(
        self, nodes: dict[str, discovery.KnownNode], options: dict[str, Any]
    ) -> dict[str, Any]:
        """Ask the BMCs who they are."""
        addresses, ranged = discovery.expand_addresses(map(str, options["addresses"]))
        answers = discovery.ask_bmcs(
            addresses,
            bmc_types.Access.from_options(options),
            parallel=max(1, options["parallel"]),
            timeout_s=options["timeout_s"],
        )
        found = discovery.match_machines(answers, nodes, protocol=options["protocol"], ranged=ranged)
        changed = False
        if found.variables and not self._task.check_mode:
            changed = discovery.write_discovered(Path(options["file"]), found.variables)
        return {"changed": changed, **found.plain()}

    def _discover_by_boot(
        self, nodes: dict[str, discovery.KnownNode], options: dict[str, Any]
    ) -> dict[str, Any]:
        """Collect the reports that machines leave on the host that they boot from."""
        path = Path(options["file"])
        # A file that cannot be written has to be found out before anybody switches a machine on for nothing.
        discovery.read_discovered(path)
        awaited = boot_reports.Awaited(nodes, options["macs"])
        reports = boot_reports.collect(
            self._ask_host, options["folder"], awaited, options["seconds"], display.display
        )
        found = boot_reports.match_reports(reports, nodes)
        changed = bool(found.variables) and discovery.write_discovered(path, found.variables)
        return {"changed": changed, **boot_reports.summarize(reports, found, awaited)}

    def _ask_host(self, command: str) -> str:
        """Return what a command prints on the host; nothing while the host cannot be reached."""
        try:
            done = self._low_level_execute_command(command)
        except AnsibleConnectionFailure as error:
            display.warning(f"the boot reports cannot be listed: {error}")
            # The next command opens a connection of its own.
            self._connection.close()
            return ""
        if done["rc"]:
            raise AnsibleActionFail(
                f"the boot reports cannot be read: {done['stderr'].strip()[-300:]}: is their time over?"
            )
        return str(done["stdout"])
