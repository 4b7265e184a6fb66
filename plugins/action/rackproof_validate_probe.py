"""Measure idle nodes with Slurm jobs, or a drained node without Slurm, for validate.yml and reimage.yml.

The module of the same name documents this action.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rackproof.core.text import sanitize
from rackproof.jobs.validate import probes, tasks
from rackproof.nodes.probe_slurm_jobs import ProbePlan
from rackproof.store.night_store import NightContext
from rackproof_ansible.action import NodeAction, sanitize_lines


class ActionModule(NodeAction):
    """The module rackproof_validate_probe documents the options of this action."""

    TRANSFERS_FILES = True
    required_if: tuple[tuple[str, object, list[str]], ...] = (("hosts", [], ["night"]),)

    def run_action(self, options: dict[str, Any]) -> dict[str, Any]:
        """Return a short summary of the measurements."""
        plan = probes.check_probe_plan(
            minutes=options["minutes"],
            share=options["share"],
            python=options["python"],
            checkout=Path(options["checkout"]),
            chosen=options["probes"],
            device=options["device"],
            node_limit_s=options["node_s"],
            pair_limit_s=options["pair_s"],
            srun=options["srun"],
        )
        if options["hosts"]:
            probes.check_budget(plan, {host: self._expected_gpus(host) for host in options["hosts"]})
            return {"changed": False, "message": []}
        if self.check_mode:
            return {"changed": False, "skipped": True, "msg": "nothing is measured in check mode"}
        night = NightContext(**options["night"])
        if options["drained"]:
            return self._measure_drained(night, plan)
        slurm, remark = tasks.read_slurm_answer(options["slurm"], options["partitions"])
        lines = probes.measure_night(
            night,
            plan,
            slurm=slurm,
            members=str(options["partitions"].get("stdout", "")),
            remark=remark,
            shell=self.run_command_of_playbook,  # nosec B604
        )
        return {"changed": True, "message": sanitize_lines(lines)}

    def _expected_gpus(self, host: str) -> object:
        """Return the number of GPUs that the inventory states, perhaps a template, or None."""
        variables = self.raw_variables(host)
        expect = variables.get("validate_expect")
        own = expect.get("gpus") if isinstance(expect, Mapping) else None
        return variables.get("bench_sku_gpus") if own is None else own

    def _measure_drained(self, night: NightContext, plan: ProbePlan) -> dict[str, Any]:
        """Measure this host without Slurm, which gives a drained node no job."""
        script = probes.direct_script(night, plan, self.node)
        if not script:
            return {"changed": False, "message": []}
        try:
            status, output = self.run_script(script, plan.longest_job_s)
        except BaseException as error:
            # Catch more than Exception, because Ansible ends a late task by an error of another kind.
            probes.store_direct_output(night, self.node, sanitize(error, 300) or type(error).__name__, 255)
            raise
        probes.store_direct_output(night, self.node, output, status)
        return {"changed": True, "message": [f"measured without Slurm, status {status}"]}
