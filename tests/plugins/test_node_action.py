"""What a node's module answers is checked before it is used: one sentence, and not Python's own."""

from __future__ import annotations

from typing import Any

import pytest

from rackproof_ansible.action import ModuleFailedError, NodeAction


class Asking(NodeAction):
    """An action whose node answers what it is given."""

    def __init__(self, answer: dict[str, Any]) -> None:
        self.answer = answer
        self.task_vars = {"inventory_hostname": "n1"}

    def run_action(self, options: dict[str, Any]) -> dict[str, Any]:
        """Ask the node."""
        return self.execute_module("rackproof_facts", "gathered")

    def execute_module_unchecked(self, name: str, **arguments: Any) -> dict[str, Any]:
        """Return the answer."""
        return self.answer


@pytest.mark.parametrize("answer", [{}, {"gathered": None}, {"gathered": "x"}, {"gathered": [1]}])
def test_an_answer_without_what_was_asked_for_is_a_failure_of_that_node(answer: dict[str, Any]) -> None:
    with pytest.raises(ModuleFailedError, match="n1 answered rackproof_facts without") as caught:
        Asking(answer).run_action({})
    assert caught.value.result["failed"]


@pytest.mark.parametrize("answer", [{"unreachable": True, "msg": "no route"}, {"failed": True}])
def test_a_failure_or_a_node_that_cannot_be_reached_stays_what_it_is(answer: dict[str, Any]) -> None:
    with pytest.raises(ModuleFailedError) as caught:
        Asking(answer).run_action({})
    assert caught.value.result == answer


def test_an_answer_is_returned() -> None:
    assert Asking({"gathered": {"a": 1}}).run_action({}) == {"gathered": {"a": 1}}
