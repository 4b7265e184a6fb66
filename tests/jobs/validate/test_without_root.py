"""Test the remark of a night on nodes that were queried without root (``without_root_remarks``).

Without root, a node may not show its kernel log, its serial number and its limit of locked memory. The remark
names these nodes and the missing evidence, so that the operator can allow root.
"""

from __future__ import annotations

from typing import Any

from rackproof.core.records import Node
from rackproof.jobs.validate.messages import without_root_remarks
from rackproof.nodes.snapshot import NodeSnapshot, build_snapshot
from rackproof.store.night_store import StoredSnapshot


def stored(**about: Any) -> StoredSnapshot:
    about = {"tools": {"kernel_log": "ok"}, "serial": "S1"} | about
    snapshot = NodeSnapshot(node="n1", hardware_key="S1", **about)
    return StoredSnapshot(snapshot=snapshot, about=Node(name="n1"))


def test_nodes_that_root_was_asked_on_need_no_word() -> None:
    assert without_root_remarks({"n1": stored(), "n2": stored(asked_as_root=True)}) == []


def test_what_root_would_add_is_named_and_counted() -> None:
    (found,) = without_root_remarks(
        {
            "n1": stored(asked_as_root=False, tools={"kernel_log": "failed"}, serial=""),
            "n2": stored(asked_as_root=False, serial=""),
            "n3": stored(asked_as_root=True, tools={}),
        }
    )
    assert "queried without root: n[1-2]; root would add the kernel's log (1 of 2)" in found
    assert "serial number (2 of 2)" in found


def test_only_a_plain_answer_names_the_user() -> None:
    for answer, expected in ((True, True), (False, False), (0, None), ("no", None), (None, None)):
        assert build_snapshot("n1", {"node": {"root": answer}}).asked_as_root is expected
    assert build_snapshot("n1", {}).asked_as_root is None
