"""Test ``rackproof.jobs.bench.runtime_needs``, which finds what a node lacks for a runtime.

A runtime is a Python environment for a benchmark. It needs an interpreter of certain versions, and shared
libraries of the system. The tests check that everything that a node lacks is reported before an environment
is made, with the command that installs it on the node's distribution.
"""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest

from rackproof.jobs.bench.runtime_needs import (
    RuntimeNeeds,
    describe_lacking,
    packages_of_lacking_libraries,
    read_needs,
)

NEEDS = RuntimeNeeds(
    (3, 10), (3, 11), {"libgomp.so.1": "libgomp1", "libquadmath.so.0": "libquadmath0"}, ("numpy", "mxnet")
)
ROCKY = 'NAME="Rocky Linux"\nID="rocky"\nID_LIKE="rhel centos fedora"\nVERSION_ID="9.4"\n'
SUSE = 'NAME="SLES"\nID="sles"\nID_LIKE="suse"\nVERSION_ID="15.6"\n'
# Facts of a node that lacks nothing.
WHOLE = {"interpreters": ["3.11"], "loadable": {"libgomp.so.1": True, "libquadmath.so.0": True}}


@pytest.mark.parametrize(
    ("facts", "named"),
    [
        ({}, []),
        ({"interpreters": ["3.9", "3.11"]}, []),
        ({"interpreters": ["3.13"]}, ["n1: mxnet needs Python 3.10 to 3.11, and has 3.13"]),
        ({"interpreters": ["\x1b[2J", 3]}, ["needs Python"]),
        ({"interpreters": []}, ["needs Python"]),
        ({"loadable": {"libgomp.so.1": False}}, ["sudo apt-get install libgomp1"]),
        (
            {"loadable": {"libgomp.so.1": False, "libquadmath.so.0": False}, "interpreters": ["3.12"]},
            ["needs Python", "sudo apt-get install libgomp1 libquadmath0"],
        ),
        ({"loadable": "all", "interpreters": "3.11"}, []),
        (
            {"loadable": {"libgomp.so.1": False}, "files": {"os_release": ROCKY}},
            ["there: type: sudo dnf install 'libgomp.so.1()(64bit)'"],
        ),
        (
            {"loadable": {"libgomp.so.1": False}, "files": {"os_release": SUSE}},
            ["there: type: sudo zypper install 'libgomp.so.1()(64bit)'"],
        ),
        ({"interpreters": ["3.10.4"]}, []),
        ({"interpreters": ["3.12.4"]}, ["needs Python"]),
        ({"interpreters": ["3"]}, ["needs Python"]),
    ],
)
def test_a_lacking_interpreter_and_lacking_libraries_are_a_line_each(
    facts: dict[str, Any], named: list[str]
) -> None:
    lines = describe_lacking("n1", "mxnet", NEEDS, {**WHOLE, **facts})
    assert len(lines) == len(named)
    assert all(text in line for text, line in zip(named, lines, strict=True))
    assert all(line.isprintable() for line in lines)


def test_the_needs_of_the_shipped_runtimes_are_read(root: Path) -> None:
    needs = read_needs(root / "workloads", ["mxnet", "torch", "nothing"])
    assert set(needs) == {"mxnet", "torch"}
    assert needs["mxnet"] == NEEDS
    assert not packages_of_lacking_libraries(needs["torch"], {"loadable": {"libgomp.so.1": False}})


@pytest.mark.parametrize(
    "content",
    [
        '{"oldest": 3.10, "newest": "3.12"}',
        '{"oldest": "3.10", "newest": null}',
        '{"oldest": "3", "newest": "3.12"}',
        '{"oldest": ["3.10"], "newest": "3.12"}',
        '{"oldest": "3.10", "newest": "3.12", "libraries": 3}',
        '["3.10", "3.12"]',
        "{",
    ],
)
def test_a_damaged_description_of_a_runtime_is_left_out(tmp_path: Path, content: str) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "runtime.json").write_text(content)
    assert read_needs(tmp_path, ["mine"]) == {}


def test_the_module_looks_for_every_library_that_a_runtime_needs(root: Path) -> None:
    names = [path.parent.name for path in root.glob("workloads/*/runtime.json")]
    needed = {
        library for each in read_needs(root / "workloads", names).values() for library in each.libraries
    }
    module = (root / "plugins/module_utils/rackproof_facts_record.py").read_text()
    named = next(line for line in module.splitlines() if line.startswith("RUNTIME_LIBRARIES = "))
    assert needed == set(ast.literal_eval(named.partition(" = ")[2]))
