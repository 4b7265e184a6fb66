"""Host lists of Slurm: expanded and compressed."""

from __future__ import annotations

import pytest

from rackproof.core.hostlist import expand_hostlist


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("n[01-03,07],m1", ("n01", "n02", "n03", "n07", "m1")),
        ("gb300-r01-n16", ("gb300-r01-n16",)),
        ("a[1-2]-ib,b", ("a1-ib", "a2-ib", "b")),
        ("", ()),
        ("n[" + "9" * 5000 + "]", ()),
        ("n[1-" + "9" * 5000 + "],m1", ("m1",)),
    ],
)
def test_a_host_list_is_expanded(text: str, hosts: tuple[str, ...]) -> None:
    assert expand_hostlist(text) == hosts
