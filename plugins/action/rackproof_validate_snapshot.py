"""Gather a node's health for validate.yml with one call of rackproof_facts, and store its snapshot.

roles/validate/tasks/snapshot.yml calls this action for each node.
"""

from __future__ import annotations

import time
from typing import Any

from rackproof.jobs.validate import tasks
from rackproof.store.night_store import NightContext
from rackproof_ansible.action import NodeAction


class ActionModule(NodeAction):
    """The module rackproof_validate_snapshot documents the options of this action."""

    def run_action(self, options: dict[str, Any]) -> dict[str, Any]:
        """Store the snapshot, and return only a summary, because the facts have hundreds of kilobytes."""
        night = NightContext(**options["night"])
        asked_s = time.time()
        answer = self.execute_module(
            "rackproof_facts",
            "gathered",
            subset="health",
            tool_timeout_s=options["tool_timeout_s"],
            paths=options["paths"],
            settle=tasks.settling(
                self.node,
                options["expected"] or {},
                seconds=options["settle_timeout_s"],
                after=options["settle_after"],
            ),
            units=tasks.units_to_ask(self.node, options["expected"] or {}),
            since=tasks.kernel_log_since(night, self.node),
        )
        summary = tasks.store_snapshot(
            night,
            self.node,
            answer["gathered"],
            asked=asked_s,
            answered=time.time(),
            sku=options["sku"],
            rack=options["rack"],
            expected=options["expected"],
            limits=options["limits"],
            references=options["references"],
            accept_identity=options["accept_identity"],
            harmless_kernel_lines=options["harmless_kernel_lines"],
        )
        waited = tasks.settling_summary(answer["gathered"])
        return {"changed": False, "msg": summary + waited, "waited": bool(waited)}
