"""Let a drained node reduce with a partner that is in service; the module of the same name documents it."""

from __future__ import annotations

import os
import re
import shlex
import time
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

from rackproof.core.text import sanitize
from rackproof.jobs.reimage import acceptance
from rackproof.jobs.reimage import tasks as reimage_tasks
from rackproof.jobs.validate import probes, tasks
from rackproof.nodes.probe_slurm_jobs import Jobs, Plan
from rackproof.store.night_store import NightContext


class ActionModule(ActionBase):
    """Documented in plugins/modules/rackproof_reimage_acceptance.py."""

    TRANSFERS_FILES = True

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return where the node's half runs, who came, or what they came to."""
        super().run(tmp, task_vars)
        _, options = self.validate_argument_spec(
            {
                "part": {"type": "str", "choices": ["begin", "partner", "end"], "required": True},
                "night": {"type": "dict", "required": True},
                "checkout": {"type": "path", "required": True},
                "python": {"type": "str", "required": True},
                "device": {"type": "str", "default": "gpu"},
                "pair_s": {"type": "int", "default": 180},
                "srun": {"type": "list", "elements": "str", "default": []},
                "gpus": {"type": "int", "default": 0},
                "partitions": {"type": "dict", "default": {}},
                "begun": {"type": "dict", "default": {}},
                "partner": {"type": "dict", "default": {}},
            }
        )
        self._playbook = os.getppid()
        night, node = NightContext(**options["night"]), (task_vars or {})["inventory_hostname"]
        try:
            how = acceptance.without_budget(
                probes.plan(
                    minutes=0,
                    share=1,
                    python=options["python"],
                    checkout=Path(options["checkout"]),
                    device=options["device"],
                    pair_limit_s=options["pair_s"],
                    srun=options["srun"],
                )
            )
            if options["part"] == "begin":
                if why := acceptance.find_own_failure(night, node):
                    return {"changed": False, "folder": "", "message": why}
                return self._begin(how, node)
            if options["part"] == "partner":
                some = acceptance.find_partners(night, node, str(options["partitions"].get("stdout", "")))
                half = acceptance.run_partner(
                    how, node, some, options["gpus"], Jobs(self._shell, how, {}, {})
                )
                return {"changed": True, "partner": half.partner, "text": sanitize(half.text, 600)}
            return self._end(night, how, node, options)
        except (tasks.ValidateError, reimage_tasks.ReimageError) as error:
            raise AnsibleActionFail(str(error)) from error

    def _shell(self, command: str) -> tuple[int, str, str]:
        if os.getppid() != self._playbook:
            # A playbook that is killed leaves its workers: this one would start jobs beside the next run's.
            os._exit(1)
        done = self._low_level_execute_command(command, encoding_errors="surrogateescape")
        return done["rc"], done["stdout"], done["stderr"]

    def _ask(self, command: str) -> str:
        status, out, err = self._shell(command)
        if status != 0:
            raise AnsibleActionFail(sanitize(err or out, 300) or f"exit status {status}")
        return out

    def _begin(self, how: Plan, node: str) -> dict[str, Any]:
        """Start the node's half, bounded on the node itself: it waits for whoever comes."""
        script = acceptance.node_script(how, node)
        name = shlex.quote(f"rackproof-night.{node}.")
        # What a playbook left that was killed would answer the partner, and hold the port.
        self._ask(
            f'for old in "${{TMPDIR:-/tmp}}"/{name}*; do pid=$(cat "$old/pid" 2>/dev/null) && '
            '[ "$(readlink "/proc/$pid/cwd")" = "$old" ] && pkill -s "$pid"; rm -rf "$old"; done; true'
        )
        folder = self._ask(f"mktemp -d --tmpdir {name}XXXXXX").strip()
        self._transfer_data(f"{folder}/measure.sh", script)
        inner = (
            # What a half leaves that is ended goes with its folder.
            f"cd {folder} && echo $$ > pid; TMPDIR={folder} SLURMD_NODENAME={shlex.quote(node)} "
            f"timeout -k 10 {acceptance.node_limit_s(how)} bash measure.sh > out 2>&1; echo $? > new; mv "
            f"new rc"
        )
        # Ansible's ssh brings a terminal along, whose end hangs up on what has not left it yet.
        self._ask(f"cd / && trap '' HUP && (setsid sh -c {shlex.quote(inner)} </dev/null >/dev/null 2>&1 &)")
        return {"changed": True, "folder": folder}

    def _end(self, night: NightContext, how: Plan, node: str, options: dict[str, Any]) -> dict[str, Any]:
        """Wait for the node's half where somebody came, and keep what the two came to."""
        folder, partner = str(options["begun"].get("folder", "")), options["partner"]
        why = partner.get("text") or options["begun"].get("msg") or partner.get("msg") or ""
        half = acceptance.PartnerHalf(str(partner.get("partner", "")), str(why))
        said = status = ""
        if re.fullmatch(r"/[\w./-]*rackproof-night\.[\w.-]+", folder):
            end = time.monotonic() + (acceptance.node_limit_s(how) if half.partner else 0)
            while not (status := self._ask(f"cat {folder}/rc 2>/dev/null || true").strip()):
                if time.monotonic() > end:
                    break
                time.sleep(1)
            said = self._ask(f"tail -c 4000000 {folder}/out 2>/dev/null || true")
            # Who waits for nobody goes; the session is the half's own.
            self._ask(f"pkill -s $(cat {folder}/pid) >/dev/null 2>&1; rm -rf {folder}")
        text = acceptance.record_pair(night, node, half, said, status)
        return {"changed": True, "message": text}
