"""Test the subset ``record`` of the module rackproof_facts, which gathers facts for a benchmark's record.

The facts state GPUs, processors, memory, and the versions of drivers and packages. The tests show that a tool
which fails, hangs or writes without end gives a status and a finding, and never stops the module. A tool that
is absent gives only a status.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from rackproof.nodes.facts import findings_from_facts, node_from_facts

from .conftest import Modules

# Each case starts processes. All of them together are too slow for `make check`.
pytestmark = pytest.mark.slow


def test_this_machine(modules: Modules, tmp_path: Path) -> None:
    result = modules(
        "rackproof_facts",
        subset="record",
        check=True,
        pythons={"own": sys.executable, "gone": "/no/such/python"},
        packages={"own": ["pydantic", "no-such-package"]},
        paths=[str(tmp_path / "not" / "there" / "yet")],
    )
    facts = result["facts"]
    assert result["changed"] is False
    said = facts["pythons"]["own"]["said"]
    assert said["version"] == ".".join(map(str, sys.version_info[:3]))
    assert said["packages"]["pydantic"]
    assert said["packages"]["no-such-package"] is None
    assert facts["pythons"]["gone"] == {"status": "absent"}
    assert facts["paths"][str(tmp_path / "not" / "there" / "yet")]["free_bytes"] > 0
    node = node_from_facts("here", facts)
    assert node.memory_bytes > 2**28
    assert node.cpu_count >= 1
    assert node.cpu
    assert {"os", "kernel", "python.own", "own.pydantic"} <= node.software.keys()


# A fake nvidia-smi, the status of its answer, and the codes of the findings that count against the node.
@pytest.mark.parametrize(
    ("script", "status", "codes"),
    [
        ("exit 0", "ok", ["no_gpus"]),
        (
            'echo "NVIDIA-SMI has failed because it couldn\'t communicate with the NVIDIA driver."; exit 9',
            "no_driver",
            ["no_driver"],
        ),
        ("echo 'No devices were found'; exit 6", "no_driver", ["no_driver"]),
        (
            "echo 'Failed to initialize NVML: Driver/library version mismatch'; exit 18",
            "no_driver",
            ["no_driver"],
        ),
        ("echo oops >&2; exit 3", "failed", ["tool_failed"]),
        ("sleep 300", "hung", ["tool_hung"]),
        ("trap '' TERM; sleep 300 & wait; sleep 300", "hung", ["tool_hung"]),
        ("sleep 300 & exit 4", "failed", ["tool_failed"]),
        ("exec yes", "failed", ["tool_failed"]),
    ],
)
def test_what_is_reported_of_a_tool(
    modules: Modules, tools: Any, script: str, status: str, codes: list[str]
) -> None:
    tools("nvidia-smi", f'[ "$1" = -q ] || exit 0\n{script}')
    facts = modules("rackproof_facts", subset="record", tool_timeout_s=2)["facts"]
    answer = facts["tools"]["nvidia_smi_xml"]
    assert answer["status"] == status
    assert answer["seconds"] < 15
    assert len(answer["stdout"]) <= 4 * 2**20
    assert [f.code for f in findings_from_facts("here", facts) if f.verdict] == codes


def test_absent_gpus_are_a_fact(modules: Modules, tools: Any) -> None:
    facts = modules("rackproof_facts", subset="record")["facts"]
    if facts["tools"]["nvidia_smi_xml"]["status"] != "absent":
        pytest.skip("this machine has nvidia-smi")
    assert findings_from_facts("here", facts) == ()


def test_a_real_answer_arrives_whole(modules: Modules, tools: Any, real_logs: Path) -> None:
    tools("nvidia-smi", f'[ "$1" = -q ] && exec cat {real_logs.resolve()}/nvidia-smi/qx-b200.xml')
    facts = modules("rackproof_facts", subset="record")["facts"]
    assert len(node_from_facts("here", facts).gpus) == 8


@pytest.mark.parametrize(
    ("script", "status"),
    [
        ("sleep 300", "hung"),
        ("echo not json", "failed"),
        ("exit 1", "failed"),
    ],
)
def test_an_interpreter_that_misbehaves(
    modules: Modules, tools: Any, tmp_path: Path, script: str, status: str
) -> None:
    tools("strange", script)
    facts = modules(
        "rackproof_facts",
        subset="record",
        tool_timeout_s=0.5,
        pythons={"strange": str(tmp_path / "bin" / "strange")},
    )["facts"]
    assert facts["pythons"]["strange"]["status"] == status


def test_programs_and_modules_that_are_there(modules: Modules, tools: Any) -> None:
    tools("here", "exit 0")
    facts = modules(
        "rackproof_facts",
        subset="record",
        pythons={"own": sys.executable},
        imports={"own": ["json", "xml.dom", "no_such.module"], "another": ["json"]},
        programs=["here", "/bin/sh", "no-such-program", "/no/such/program"],
    )["facts"]
    assert facts["programs"] == {
        "here": True, "/bin/sh": True, "no-such-program": False, "/no/such/program": False,
    }  # fmt: skip
    assert set(facts["pythons"]) == {"own"}
    assert facts["pythons"]["own"]["said"]["imports"] == {
        "json": True, "xml.dom": True, "no_such.module": False,
    }  # fmt: skip
