"""Test that ``lacking_packages`` returns the packages that a role has to install or hold on a node.

A package is returned if it is absent, does not match its pin, or must be held and is not. apt does not
upgrade a held package.
"""

from __future__ import annotations

import pytest

from rackproof.nodes.packages import lacking_packages

INSTALLED = {
    "held": {"version": "1.18.0-1", "held": True},
    "free": {"version": "1.18.0-1", "held": False},
    "odd": {"version": "1:2.0[x]~a", "held": True},
}


@pytest.mark.parametrize(
    ("wanted", "hold", "names"),
    [
        # Each row has the pins, whether packages must be held, and the result. "" matches any version.
        ({}, True, []),
        ({"held": "1.18.0-1"}, True, []),
        ({"held": ""}, True, []),
        ({"held": "1.18.*"}, True, []),
        ({"held": "1.18"}, True, ["held"]),
        ({"held": "1.17.9-1"}, False, ["held"]),
        ({"free": "1.18.0-1"}, False, []),
        ({"free": "1.18.0-1"}, True, ["free"]),
        ({"odd": "1:2.0*"}, True, []),
        ({"absent": ""}, False, ["absent"]),
        ({"absent": "", "held": "2", "free": ""}, True, ["absent", "held", "free"]),
    ],
)
def test_packages_to_install_or_hold_are_found(wanted: dict[str, str], hold: bool, names: list[str]) -> None:
    assert lacking_packages(wanted, INSTALLED, hold) == names
