"""List the modules that a playbook ran on each host, so that tests/perf/provision.py can count them.

Each call of a module costs a start of Python, so the number of calls determines how long provisioning takes.
Some actions, such as copy, make several calls but have one result, which counts as one call.
"""

from __future__ import annotations

import collections
import json
import os
from typing import Any

from ansible.plugins.callback import CallbackBase

DOCUMENTATION = """
name: module_calls
type: aggregate
short_description: Count the modules that ran on each host
description: Writes the modules that ran, by host and task, into the file that C(MODULE_CALLS) names.
options: {}
"""


class CallbackModule(CallbackBase):
    """A callback that lists results with an `invocation`, which only the result of a module has."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "aggregate"
    CALLBACK_NAME = "module_calls"
    CALLBACK_NEEDS_ENABLED = True

    def __init__(self) -> None:
        super().__init__()
        self.calls: dict[str, list[str]] = collections.defaultdict(list)

    def _count(self, result: Any) -> None:
        for one in result._result.get("results", [result._result]):
            if isinstance(one, dict) and "invocation" in one:
                delegated = (one.get("_ansible_delegated_vars") or {}).get("ansible_host")
                host = delegated or result._host.get_name()
                self.calls[host].append(f"{result._task.get_name()} ({result._task.action})")

    v2_runner_on_ok = v2_runner_on_failed = _count

    def v2_playbook_on_stats(self, stats: Any) -> None:
        """Write the list as JSON into the file that ``MODULE_CALLS`` names."""
        with open(os.environ["MODULE_CALLS"], "w", encoding="utf-8") as stream:
            json.dump(self.calls, stream, indent=1)
