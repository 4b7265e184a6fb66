"""Test the options of the module rackproof_facts, which gathers a node's raw state in one call.

The required option ``subset`` is record, provision or health. The tests show that an option of another
subset, or an unusable value, is refused with its name.
"""

from __future__ import annotations

from typing import Any

import pytest

from .conftest import Modules

# Each case starts a process. All of them together are too slow for `make check`.
pytestmark = pytest.mark.slow


# Options with one mistake, and a part of the message.
@pytest.mark.parametrize(
    ("subset", "options", "part"),
    [
        ("record", {"tool_timeout_s": 0}, "tool_timeout_s"),
        ("record", {"packages": {"torch": ["torch"]}}, "not an interpreter"),
        ("record", {"pythons": {"torch": "/x"}, "packages": {"torch": "torch"}}, "a list"),
        ("record", {"resolve": ["localhost"]}, "resolve: no option of subset record"),
        ("provision", {"tool_timeout_s": 0}, "tool_timeout_s"),
        ("provision", {"commands": {"x": "true"}}, "commands"),
        ("provision", {"commands": {"x": []}}, "commands"),
        ("provision", {"files": ["relative"]}, "not an absolute path"),
        ("provision", {"paths": ["relative"]}, "not an absolute path"),
        ("provision", {"since": 1.0}, "since: no option of subset provision"),
        ("health", {"tool_timeout_s": 0}, "0 to 600"),
        ("health", {"paths": ["var"]}, "not an absolute path"),
        ("health", {"pythons": {"torch": "/x"}}, "pythons: no option of subset health"),
    ],
)
def test_wrong_options(modules: Modules, subset: str, options: dict[str, Any], part: str) -> None:
    result = modules("rackproof_facts", subset=subset, **options)
    assert result["failed"] is True
    assert part in result["msg"]


def test_a_subset_is_required(modules: Modules) -> None:
    assert "subset" in modules("rackproof_facts")["msg"]
