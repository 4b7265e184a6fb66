"""End a run of reimage.yml: write its record, and report every node.

roles/reimage/tasks/end.yml calls this action once.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rackproof.jobs.reimage import run_files, tasks
from rackproof.store.run_folder import RECORD_NAME
from rackproof_ansible.action import RackproofAction


class ActionModule(RackproofAction):
    """The module rackproof_reimage_end documents the options of this action."""

    def run_action(self, options: dict[str, Any]) -> dict[str, Any]:
        """Return the verdict over all nodes, and whether it gates."""
        run = run_files.ReimageContext(**options["run"])
        ended = tasks.end_run(run)
        self.show_warning(ended.history)
        return {
            "changed": True,
            "verdict": ended.verdict.value,
            "gates": ended.gates,
            "message": list(ended.message),
            "record": "reimaging",
            "page": str(Path(run.folder) / RECORD_NAME),
        }
