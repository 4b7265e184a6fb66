"""Test the one line by which a message explains why a task of a playbook failed.

core/task_failures.py makes it from Ansible's result. If a module gave no answer at all, the reason is in what
the node printed, for example that Python is missing.
"""

from __future__ import annotations

from typing import Any

import pytest

from rackproof.core.task_failures import answer_text

LOST = "Module result deserialization failed: No start of json char found"


@pytest.mark.parametrize(
    ("result", "text"),
    [
        ({"msg": "8 GPUs"}, "8 GPUs"),
        ({"failed": True, "msg": "no such tool"}, "no such tool"),
        (
            {"failed": True, "msg": LOST, "module_stderr": "pyenv: python3.13: command not found\n\n"},
            "pyenv: python3.13: command not found",
        ),
        (
            {"failed": True, "msg": "MODULE FAILURE", "module_stdout": "bash: python3:\n not found\r\n"},
            "bash: python3: not found",
        ),
        ({"failed": True, "msg": LOST, "module_stderr": ""}, LOST),
        ({"unreachable": True, "msg": "ssh: no route"}, "ssh: no route"),
        ({}, ""),
    ],
)
def test_the_reason_is_the_message_or_the_output_of_the_node(result: dict[str, Any], text: str) -> None:
    assert answer_text(result) == text
