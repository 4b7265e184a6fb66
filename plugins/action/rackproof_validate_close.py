"""Record the acts of a night, write its record and pages, and return its verdict.

Roles validate, reimage and provision call this action at the end of their nights.
"""

from __future__ import annotations

from typing import Any

from rackproof.core.text import sanitize
from rackproof.jobs.validate import tasks
from rackproof.store.night_store import NightContext
from rackproof_ansible.action import SHOWN_CHARACTERS, RackproofAction, sanitize_lines


class ActionModule(RackproofAction):
    """The module rackproof_validate_close documents the options of this action."""

    def run_action(self, options: dict[str, Any]) -> dict[str, Any]:
        """Return the verdict over all nodes and of each node, and whether it gates."""
        closed = tasks.close_night(
            NightContext(**options["night"]),
            did=tasks.collect_actions(options["drained"], options["returned"], options["resume"]),
            slurm=tasks.collect_states(options["drained"], options["returned"]),
            keep=not self.check_mode,
        )
        self.show_warning(closed.history)
        for line in closed.findings if options["list_findings"] else ():
            self.show_line(sanitize(line, SHOWN_CHARACTERS))
        return {
            "changed": not self.check_mode,
            "verdict": closed.verdict.value,
            "gates": closed.gates,
            "message": sanitize_lines(closed.message),
            "verdicts": {node: verdict.value for node, verdict in closed.verdicts.items()},
            "page": closed.page,
        }
