"""Test the filters ``parse_log``, ``verdict`` and ``task_failure`` as playbooks use them.

``parse_log`` reads a benchmark's log, ``verdict`` compares a value with a reference, and ``task_failure``
shortens the output of a failed task to its reason. One playbook evaluates all expressions of the tables. The
last test runs the example of the documentation, docs/extending/judge-a-log.yml.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

# A reference: below 51.15 GB/s (-7 %) a speed fails, below 53.075 (-3.5 %) it is degraded, above 71.5 (+30 %)
# it is unproven.
SPEED = "{'value': 55, 'low': -0.07, 'high': 0.3, 'warn': -0.035, 'unit': 'GB/s'}"

# The output of a failed installation, and the reason that task_failure makes of it.
DPKG = """Setting up enroot (4.0.1-1) ...
mknod: /dev/x: Operation not permitted
dpkg: error processing package enroot (--configure):
 dependency problems - leaving unconfigured
Processing triggers for man-db (2.11.2-2) ...
Processing triggers for libc-bin (2.36-9) ...
Errors were encountered while processing:
 enroot
"""
DPKG_REASON = (
    "dpkg: error processing package enroot (--configure): / dependency problems - leaving unconfigured / "
    "Processing triggers for libc-bin (2.36-9) ... / Errors were encountered while processing: / enroot / "
    "E: broken"
)
FIRST_ERRORS = "E: a / ERROR / Error 3 / 1 / 2 / 3"
ONE_ERROR = "error / 2 / 3 / 4 / 1 / 2 / 3 / 4 / 5"

# Expressions and their values.
GOOD: list[tuple[str, Any]] = [
    # filter parse_log
    ("('' | parse_log).verdict", "unproven"),
    ("('' | parse_log).findings[0].message", "the log is empty"),
    ("('free text\\n' | parse_log).verdict", "unproven"),
    ("(nccl | parse_log('nccl_tests')).format", "nccl_tests"),
    ("(nccl | parse_log).format", "nccl_tests"),
    (
        "(nccl | parse_log).measurements | selectattr('unit', 'eq', 'GB/s') | map(attribute='value') | max",
        480.02,
    ),
    ("(nccl | replace('     0  ', '     7  ') | parse_log).verdict", "fail"),
    # filter verdict
    (f"55 | verdict({SPEED})", {"verdict": "pass", "reason": "within bounds"}),
    (f"'55' | verdict({SPEED})", {"verdict": "pass", "reason": "within bounds"}),
    (
        f"52.5 | verdict({SPEED})",
        {"verdict": "degraded", "reason": "52.5 GB/s is below 53.075, yet within the hard bound"},
    ),
    (f"40 | verdict({SPEED})", {"verdict": "fail", "reason": "40 GB/s is below 51.15"}),
    (f"(90 | verdict({SPEED})).verdict", "unproven"),
    (f"('nan' | float | verdict({SPEED})).verdict", "unproven"),
    (
        f"(55 | verdict({SPEED}, unit='MB/s'))",
        {"verdict": "unproven", "reason": "measured in MB/s, reference in GB/s"},
    ),
    ("(9 | verdict({'value': 10, 'high': 0.1}, direction='lower')).verdict", "pass"),
    ("(12 | verdict({'value': 10, 'high': 0.1}, direction='lower')).verdict", "fail"),
    # filter task_failure
    ("{'msg': 'no room'} | task_failure", "no room"),
    (
        "{'msg': 'non-zero return code', 'stdout': 'enroot : Depends: jq\n\n', 'stderr': 'E: broken'}"
        " | task_failure",
        "enroot : Depends: jq / E: broken",
    ),
    ("{'msg': 'All items', 'results': [{}] + [{'failed': true, 'msg': 'n2'}] * 2} | task_failure", "n2 / n2"),
    ("{} | task_failure", "no reason given"),
    ("{'msg': 'non-zero return code', 'stdout': dpkg, 'stderr': 'E: broken'} | task_failure", DPKG_REASON),
    ("{'stderr': dpkg + '\n7\n8'} | task_failure", DPKG_REASON.replace("E: broken", "7 / 8")),
    # An unindented E: is an error of apt. Of many errors, the first are the cause. No line is repeated.
    ("{'stdout': 'E: a\nb\nC: E: c\nERROR\nERROR\nError 3\nError 4\n1\n2\n3'} | task_failure", FIRST_ERRORS),
    ("{'stdout': 'error\n1\n2\n3\n4', 'stderr': 'error\n1\n2\n3\n4\n5'} | task_failure", ONE_ERROR),
    # An error that lies too far back may be one of another step.
    ("{'stdout': 'error\n' + 'line\n' * 39 + 'end'} | task_failure", "line / line / end"),
]

# Expressions with wrong input, and texts of the error.
BAD: list[tuple[str, list[str]]] = [
    ("5 | parse_log", ["parse_log needs the text of a log, not int"]),
    ("none | parse_log", ["parse_log needs the text of a log, not NoneType"]),
    ("'x' | parse_log('mlog')", ["parse_log: unknown log format 'mlog': did you mean mllog?"]),
    (f"'fast' | verdict({SPEED})", ["verdict: value: Input should be a valid number"]),
    (f"none | verdict({SPEED})", ["verdict: value: Input should be a valid number"]),
    (f"true | verdict({SPEED})", ["verdict needs a number, not a boolean"]),
    (f"52 | verdict({SPEED}, direction='up')", ["verdict: direction: Input should be 'higher' or 'lower'"]),
    ("'x' | task_failure", ["task_failure needs the result of a task, not str"]),
    ("52 | verdict(55)", ["verdict needs a reference: {value, low, high, warn, unit, source}"]),
    ("52 | verdict({'low': -0.1})", ["verdict: reference: value: Field required"]),
    ("52 | verdict({'value': 55, 'low': -0.1, 'hihg': 1})", ["verdict: reference: hihg: Extra inputs"]),
    ("52 | verdict({'value': 'nan', 'low': -0.1})", ["verdict: reference: value:", "finite number"]),
    ("52 | verdict({'value': 55})", ["give low or warn in the reference"]),
    ("52 | verdict({'value': 55, 'low': -0.1}, direction='lower')", ["give high or warn in the reference"]),
]

ROW = "8589934592    2147483648     float     sum      -1"
HEAD = "time   algbw   busbw #wrong"
TIMES = "31316  274.30  480.02      0"
NCCL = f"""# nThread 1 nGpus 8 minBytes 8589934592 maxBytes 8589934592 step: 2(factor)
#  Rank  0 Group  0 Pid   4242 on    node-01 device  0 [0000:18:00] NVIDIA H200
#       size         count      type   redop    root     {HEAD}     {HEAD}
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
  {ROW}    {TIMES}    {TIMES}
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 480.02
#
"""

pytestmark = pytest.mark.playbook


@pytest.fixture(scope="module")
def results(root: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Return the result of a debug task for every expression."""
    folder = tmp_path_factory.mktemp("filters")
    expressions = [expression for expression, _ in GOOD] + [expression for expression, _ in BAD]
    tasks: list[dict[str, Any]] = [
        {
            "name": f"Case {number}",
            "ansible.builtin.debug": {"msg": "{{ " + expression + " }}"},
            "ignore_errors": True,
            "register": f"case_{number}",
        }
        for number, expression in enumerate(expressions)
    ]
    every = ", ".join(f"case_{number}" for number in range(len(expressions)))
    keep = {"content": "{{ [" + every + "] | to_json }}", "dest": str(folder / "results"), "mode": "0600"}
    tasks.append({"name": "Keep", "ansible.builtin.copy": keep})
    play = {
        "name": "Filters",
        "hosts": "localhost",
        "gather_facts": False,
        "vars": {
            "nccl": NCCL,
            "dpkg": DPKG,
            "ansible_connection": "local",
            "ansible_python_interpreter": sys.executable,
        },
        "tasks": tasks,
    }
    playbook = folder / "playbook.yml"
    playbook.write_text(json.dumps([play]))
    done = subprocess.run(
        [Path(sys.executable).with_name("ansible-playbook"), "-i", "localhost,", playbook],
        cwd=root,
        env={**os.environ, "ANSIBLE_NOCOLOR": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "DEPRECATION" not in done.stdout + done.stderr
    return dict(zip(expressions, json.loads((folder / "results").read_text()), strict=True))


@pytest.mark.parametrize(("expression", "expected"), GOOD)
def test_good_input(results: dict[str, dict[str, Any]], expression: str, expected: Any) -> None:
    result = results[expression]
    assert not result.get("failed"), result["msg"]
    if isinstance(expected, float):
        assert math.isclose(result["msg"], expected)
    else:
        assert result["msg"] == expected


@pytest.mark.parametrize(("expression", "words"), BAD)
def test_bad_input_names_what_is_wrong(
    results: dict[str, dict[str, Any]], expression: str, words: list[str]
) -> None:
    result = results[expression]
    assert result["failed"]
    for word in words:
        assert word in result["msg"]
    assert "pydantic" not in result["msg"]


# The log's best bus bandwidth is 235.26 GB/s. The second case expects more, and the third one cuts the log
# off.
@pytest.mark.parametrize(
    ("busbw_gbps", "kept_bytes", "status", "message"),
    [
        (200, None, 0, "235.26 GB/s: within bounds"),
        (300, None, 2, "the best bus bandwidth is fail: 235.26 GB/s is below 279"),
        (200, 4000, 2, "log.txt is unproven: "),
    ],
    ids=["good", "slow", "cut off"],
)
def test_the_example_judges_a_log(
    root: Path, tmp_path: Path, busbw_gbps: int, kept_bytes: int | None, status: int, message: str
) -> None:
    log = tmp_path / "log.txt"
    log.write_bytes((root / "tests/data/real/nccl/a100-8gpu-all_reduce.txt").read_bytes()[:kept_bytes])
    done = subprocess.run(
        [
            Path(sys.executable).with_name("ansible-playbook"),
            "docs/extending/judge-a-log.yml",
            *("-e", f"log={log}", "-e", f"busbw_gbps={busbw_gbps}"),
        ],
        cwd=root,
        env={**os.environ, "ANSIBLE_NOCOLOR": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == status, done.stdout + done.stderr
    assert message in " ".join(done.stdout.split())
