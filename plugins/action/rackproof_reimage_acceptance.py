"""Measure a drained node together with a partner in service, for the acceptance in reimage.yml.

The two nodes run one all-reduce, and each of them runs one half of it. Three tasks call this action, with the
parts begin, partner and end. The module of the same name documents the options, and
:mod:`rackproof.jobs.reimage.acceptance` makes the scripts and judges the result.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rackproof.core.text import sanitize
from rackproof.jobs.reimage import acceptance
from rackproof.jobs.validate import probes
from rackproof.nodes.probe_slurm_jobs import JobRunner, ProbePlan
from rackproof.store.night_store import NightContext
from rackproof_ansible.action import SHOWN_CHARACTERS, NodeAction
from rackproof_ansible.pair_half import finish_half, start_half


class ActionModule(NodeAction):
    """The action of the module rackproof_reimage_acceptance."""

    # The action writes a script to the node.
    TRANSFERS_FILES = True

    def run_action(self, options: dict[str, Any]) -> dict[str, Any]:
        """Do one part of the measurement.

        The part begin returns the folder of the node's half, the part partner returns the partner and how its
        half ended, and the part end returns a message about the pair.
        """
        night = NightContext(**options["night"])
        # minutes and share are placeholders, because without_budget replaces both.
        plan = acceptance.without_budget(
            probes.check_probe_plan(
                minutes=0,
                share=1,
                python=options["python"],
                checkout=Path(options["checkout"]),
                device=options["device"],
                pair_limit_s=options["pair_s"],
                srun=options["srun"],
            )
        )
        match options["part"]:
            case "begin":
                return self._start_node(night, plan)
            case "partner":
                return self._run_partner(night, plan, options)
        return self._record_pair(night, plan, options)

    def _start_node(self, night: NightContext, plan: ProbePlan) -> dict[str, Any]:
        """Start the node's half, which waits for its partner.

        If the node alone already failed, start nothing, and return the reason.
        """
        if reason := acceptance.find_own_failure(night, self.node):
            return {"changed": False, "folder": "", "message": reason}
        script = acceptance.node_script(plan, self.node)
        return {"changed": True, "folder": start_half(self, script, acceptance.node_limit_s(plan))}

    def _run_partner(self, night: NightContext, plan: ProbePlan, options: dict[str, Any]) -> dict[str, Any]:
        """Run the other half as a Slurm job on a node in service."""
        members = str(options["partitions"].get("stdout", ""))
        partners = acceptance.find_partners(night, self.node, members)
        # Without a budget, the numbers of nodes in the partitions are not needed.
        jobs = JobRunner(self.run_command_of_playbook, plan, {}, {})
        half = acceptance.run_partner(plan, self.node, partners, options["gpus"], jobs)
        return {"changed": True, "partner": half.partner, "text": sanitize(half.text, SHOWN_CHARACTERS)}

    def _record_pair(self, night: NightContext, plan: ProbePlan, options: dict[str, Any]) -> dict[str, Any]:
        """End the node's half, after a wait if there was a partner.

        Store the result of the pair, and return a message about it.
        """
        started, partner = options["started"], options["partner"]
        text = partner.get("text") or started.get("msg") or partner.get("msg") or ""
        half = acceptance.PartnerHalf(str(partner.get("partner", "")), str(text))
        wait_s = acceptance.node_limit_s(plan) if half.partner else 0
        output, status = finish_half(self, str(started.get("folder", "")), wait_s)
        message = acceptance.record_pair(night, self.node, half, output, status)
        return {"changed": True, "message": message}
