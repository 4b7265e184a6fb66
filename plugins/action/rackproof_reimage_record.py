"""Ask a node for its facts, and keep or compare what it is."""

from __future__ import annotations

from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

from rackproof.jobs.reimage import bmc, bmc_types, hardware_diff, tasks


class ActionModule(ActionBase):
    """Documented in plugins/modules/rackproof_reimage_record.py."""

    TRANSFERS_FILES = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return what is to be reported of the node; its facts go no further."""
        super().run(tmp, task_vars)
        _, options = self.validate_argument_spec(
            {
                "run": {"type": "dict", "required": True},
                "which": {"type": "str", "choices": ["before", "booted", "after"], "required": True},
                "answers": {"type": "bool", "default": True},
                "sku": {"type": "str", "default": ""},
                "serial": {"type": "str", "default": ""},
                "gpus": {"type": "int", "default": 0},
                "expect": {"type": "dict", "default": {}},
                "bmc": {
                    "type": "dict",
                    "options": {
                        "address": {"type": "str", "default": ""},
                        "protocol": {"type": "str", "choices": ["redfish", "ipmi"], "default": "redfish"},
                        "user": {"type": "str", "default": ""},
                        "password": {"type": "str", "default": "", "no_log": True},
                        "ca_file": {"type": "str", "default": ""},
                        "system": {"type": "str", "default": ""},
                    },
                },
                "tool_timeout_s": {"type": "float", "default": 20},
            }
        )
        facts = None
        if options["answers"]:
            answer = self._execute_module(
                module_name="rackproof_facts",
                module_args={"subset": "record", "tool_timeout_s": options["tool_timeout_s"]},
                task_vars=task_vars,
            )
            if answer.get("failed") or answer.get("unreachable") or "facts" not in answer:
                return answer
            facts = answer["facts"]
        run, node = tasks.ReimageContext(**options["run"]), (task_vars or {})["inventory_hostname"]
        try:
            expected = hardware_diff.parse_expectation(node, options["expect"])
            if options["which"] == "booted":
                remarks = tasks.check_first_boot(run, node, facts or {})
            else:
                remarks = tasks.record_hardware(
                    run,
                    node,
                    options["which"],
                    facts,
                    sku=options["sku"],
                    serial=options["serial"],
                    expected_gpus=options["gpus"],
                    told=_settings(node, options["bmc"] or {}, expected),
                    expected=expected,
                )
        except (tasks.ReimageError, ValueError) as error:
            raise AnsibleActionFail(str(error)) from error
        return {"changed": False, "remarks": list(remarks)}


def _settings(
    node: str, options: dict[str, Any], expected: hardware_diff.Expectation
) -> bmc_types.Settings | None:
    """Ask the BMC; that IPMI has nothing to tell counts only where something is expected."""
    if not options.get("address") or (
        options["protocol"] == "ipmi" and expected == hardware_diff.Expectation()
    ):
        return None
    access = bmc_types.Access.from_options(options)
    return bmc.read_settings(node, access)
