"""Refuse misspelt or unusable variables of Rackproof, and a missing ssh client.

Every job calls this action before it contacts a node. A variable is refused if it has a prefix of a role
and no role has it, if its value is out of bounds or contains a secret, or if ``-e`` may not set it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ansible import context
from ansible.errors import AnsibleError
from ansible.utils.vars import load_extra_vars

from rackproof.core import known_variables
from rackproof_ansible.action import RackproofAction
from rackproof_ansible.connections import check_ssh_client


class ActionModule(RackproofAction):
    """The module rackproof_check_variables documents the options of this action."""

    def run_action(self, options: dict[str, Any]) -> dict[str, Any]:
        """Return the number of names that were checked."""
        root = self.root
        folders = [Path(str(self.task_vars.get(name, ""))) for name in ("inventory_dir", "playbook_dir")]
        own_files = {
            known_variables.host_of_file(path) for folder in folders for path in folder.glob("host_vars/*")
        }
        extra = load_extra_vars(self._loader)
        known_variables.check_no_stray_words(extra)
        known_variables.check_given(extra, root, str(self.task_vars.get("ansible_role_name", "")))
        known_variables.check_not_empty(extra, root)
        hosts = known_variables.hosts_to_check(options["hosts"], self.task_vars["groups"], own_files)
        check_ssh_client(
            {host: self.raw_variables(host) for host in hosts},
            str(context.CLIARGS.get("connection") or "ssh"),
        )
        names = {str(name) for host in hosts for name in self.raw_variables(host)}
        for host in hosts:
            known_variables.check_bounds(self.raw_variables(host))
            known_variables.check_environment(
                {**self.raw_variables(host), "bench_environment": self._environment(host)}
            )
        variables = known_variables.known_variables(root)
        prefixes = known_variables.role_prefixes(root)
        known_variables.check_names(names, variables, prefixes)
        known_variables.check_misspelt_prefixes(names, variables, prefixes)
        known_variables.check_settable(extra, known_variables.task_results(root))
        return {"changed": False, "checked": len(names)}

    def _environment(self, host: str) -> Any:
        """Return the environment of a host's jobs (bench_environment), evaluated if possible.

        A template in it may put a secret there.
        """
        written = self.raw_variables(host).get("bench_environment")
        try:
            return self.hostvars[host]["bench_environment"] if written else written
        except AnsibleError:
            # Planning reports variables that cannot be evaluated. Other jobs do not need them.
            return written
