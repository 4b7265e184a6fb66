"""Upload recorded results to an object store. A failed upload does not fail the task.

roles/bench/tasks/upload.yml calls this action, after each run, after the report, or for all results.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rackproof.jobs.bench.upload import upload_results
from rackproof_ansible.action import RackproofAction


class ActionModule(RackproofAction):
    """The module rackproof_bench_upload documents the options of this action."""

    def run_action(self, options: dict[str, Any]) -> dict[str, Any]:
        """Upload the results, return the outcome, and show a warning if it is incomplete."""
        if self.check_mode:
            return {"changed": False, "skipped": True, "msg": "nothing is uploaded in check mode"}
        outcome = upload_results(
            Path(options["results"]),
            options["folders"],
            source=options["source"],
            url=options["url"],
            region=options["region"],
            credentials=options["credentials"],
        )
        if not outcome.whole:
            self.show_warning(outcome.message)
        return {"changed": outcome.new > 0, **outcome.model_dump()}
