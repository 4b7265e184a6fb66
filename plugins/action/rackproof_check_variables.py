"""Refuse variables with a prefix of Rackproof's that no role knows; touches no node."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

from rackproof_ansible import known_variables
from rackproof_ansible.action import RackproofAction


class ActionModule(RackproofAction):
    """Documented in plugins/modules/rackproof_check_variables.py."""

    def run_action(self, options: dict[str, Any]) -> dict[str, Any]:
        """Return how many names were checked."""
        root = Path(inspect.getfile(type(self))).resolve().parents[2]
        folders = [Path(str(self.task_vars.get(name, ""))) for name in ("inventory_dir", "playbook_dir")]
        own_files = {path.name.split(".y")[0] for folder in folders for path in folder.glob("host_vars/*")}
        hosts = known_variables.hosts_to_check(options["hosts"], self.task_vars["groups"], own_files)
        given = {str(name) for host in hosts for name in self.raw_variables(host)}
        known_variables.check_names(
            given, known_variables.known_variables(root), known_variables.role_prefixes(root)
        )
        return {"changed": False, "checked": len(given)}
