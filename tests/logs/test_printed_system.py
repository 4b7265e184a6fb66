"""Test the descriptions of systems that run scripts print (:mod:`rackproof.logs.printed_system`).

A run script of MLPerf prints its system as JSON on a line ``:::SYSJSON``. Scores and submissions compare it
with the system description. These tests check that a nested or deep value does not hide the other values.
"""

from __future__ import annotations

import pytest

from rackproof.logs.printed_system import printed_systems_of


@pytest.mark.parametrize("levels", [9, 150, 600, 5000])
@pytest.mark.parametrize("inner", ['"x"', "{}", "[1]"])
def test_a_deeply_nested_value_does_not_hide_the_other_values(levels: int, inner: str) -> None:
    nested = '{"a": ' * levels + inner + "}" * levels
    line = f':::SYSJSON {{"number_of_nodes": "2", "hw_notes": {nested}}}'
    found = printed_systems_of(line.encode())
    # The JSON parser may refuse the deepest value, and with it the whole line.
    assert found in ([{"number_of_nodes": "2"}], [])
    assert found or levels == 5000


def test_software_of_a_description_is_read() -> None:
    line = (
        b'0: :::SYSJSON {"framework": "PyTorch", "other_software_stack": {"cuda_version": "13.0", "x": []}}'
    )
    assert printed_systems_of(line) == [
        {"framework": "PyTorch", "other_software_stack": {"cuda_version": "13.0"}}
    ]
