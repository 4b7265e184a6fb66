"""Measure idle nodes by jobs of Slurm, or a drained one without; the module of the same name documents it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

from rackproof.core.text import sanitize
from rackproof.jobs.validate import probes, tasks
from rackproof.store.night_store import NightContext


class ActionModule(ActionBase):
    """Documented in plugins/modules/rackproof_validate_probe.py."""

    TRANSFERS_FILES = True

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return what was measured, in a few lines."""
        super().run(tmp, task_vars)
        _, options = self.validate_argument_spec(
            {
                "night": {"type": "dict", "required": True},
                "checkout": {"type": "path", "required": True},
                "minutes": {"type": "float", "required": True},
                "python": {"type": "str", "required": True},
                "share": {"type": "float", "default": 0.25},
                "probes": {"type": "list", "elements": "str", "default": []},
                "device": {"type": "str", "default": "gpu"},
                "node_s": {"type": "int", "default": 600},
                "pair_s": {"type": "int", "default": 180},
                "srun": {"type": "list", "elements": "str", "default": []},
                "slurm": {"type": "dict", "default": {}},
                "partitions": {"type": "dict", "default": {}},
                "drained": {"type": "bool", "default": False},
            }
        )
        if self._task.check_mode:
            return {"changed": False, "skipped": True, "msg": "nothing is measured in check mode"}
        self._playbook = os.getppid()
        begun = NightContext(**options["night"])
        try:
            how = probes.plan(
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
            if options["drained"]:
                return self._drained(begun, how, (task_vars or {})["inventory_hostname"])
            known, remark = tasks.slurm_answer(options["slurm"], options["partitions"])
            said = probes.measure(
                begun,
                how,
                slurm=known,
                members=str(options["partitions"].get("stdout", "")),
                remark=remark,
                shell=self._shell,
            )
        except tasks.ValidateError as error:
            raise AnsibleActionFail(str(error)) from error
        return {"changed": True, "message": [sanitize(line, 600) for line in said]}

    def _shell(self, command: str) -> tuple[int, str, str]:
        if os.getppid() != self._playbook:
            # A playbook that is killed leaves its workers: this one would measure beside the next night.
            os._exit(1)
        done = self._low_level_execute_command(command, encoding_errors="surrogateescape")
        return done["rc"], done["stdout"], done["stderr"]

    def _drained(self, begun: NightContext, how: probes.Plan, node: str) -> dict[str, Any]:
        """Measure this host, bounded on it as well as here."""
        script = probes.direct_script(begun, how, node)
        if not script:
            return {"changed": False, "message": []}
        try:
            place = self._connection._shell.join_path(self._make_tmp_path(), "measure.sh")
            self._transfer_data(place, script)
            done = self._low_level_execute_command(
                f"timeout -k 10 {how.node_limit_s} bash {place}", encoding_errors="surrogateescape"
            )
        except BaseException as error:  # a task out of time is none of the ordinary ones
            probes.keep_direct(begun, node, sanitize(error, 300) or type(error).__name__, 255)
            raise
        probes.keep_direct(begun, node, done["stdout"], done["rc"])
        self._remove_tmp_path(self._connection._shell.tmpdir)
        return {"changed": True, "message": [f"measured without Slurm, status {done['rc']}"]}
