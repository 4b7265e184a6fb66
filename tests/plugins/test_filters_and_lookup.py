"""The filters and the lookup as playbooks use them: one playbook holds all cases."""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).resolve().parent
SPEED = "{'value': 55, 'low': -0.07, 'high': 0.3, 'warn': -0.035, 'unit': 'GB/s'}"
TOYS = f"definitions='{HERE}/bench/definitions'"

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
    # filter worst_verdict
    ("[] | worst_verdict", "unproven"),
    ("['pass', 'pass'] | worst_verdict", "pass"),
    ("['pass', 'degraded'] | worst_verdict", "degraded"),
    ("['pass', 'unproven', 'degraded'] | worst_verdict", "unproven"),
    ("['unproven', 'fail', 'pass'] | worst_verdict", "fail"),
    # filter scaling_efficiency
    (
        "{1: 326.58, 8: 2544.13} | scaling_efficiency | map(attribute='efficiency') | map('round', 4)",
        [1.0, 0.9738],
    ),
    ("{'4': 390, '1': 100} | scaling_efficiency | map(attribute='devices')", [1, 4]),
    ("{1: '100', 2: '190'} | scaling_efficiency | map(attribute='repeats')", [1, 1]),
    ("({1: [10, 12, 11], 2: [20, 22, 21]} | scaling_efficiency)[1].repeats", 3),
    ("{1: 10, 2: 19} | scaling_efficiency(base=2) | map(attribute='base')", [2, 2]),
    # lookup rackproof_benchmarks
    (f"query('rackproof_benchmarks', suite='toys', {TOYS}) | map(attribute='name')", ["toy"]),
    (f"query('rackproof_benchmarks', 'toy', {TOYS}) | map(attribute='launch.program')", ["toy.py"]),
    ("query('rackproof_benchmarks', suite='quick', definitions='benchmarks') | length > 3", True),
    ("query('rackproof_benchmarks', 'gemm', 'mnist-mlp', definitions='benchmarks') | length", 2),
]

BAD: list[tuple[str, list[str]]] = [
    ("5 | parse_log", ["parse_log needs the text of a log, not int"]),
    ("none | parse_log", ["parse_log needs the text of a log, not NoneType"]),
    ("'x' | parse_log('mlog')", ["parse_log: unknown log format 'mlog': did you mean mllog?"]),
    (f"'fast' | verdict({SPEED})", ["verdict: value: Input should be a valid number"]),
    (f"none | verdict({SPEED})", ["verdict: value: Input should be a valid number"]),
    (f"true | verdict({SPEED})", ["verdict needs a number, not a boolean"]),
    (f"52 | verdict({SPEED}, direction='up')", ["verdict: direction: Input should be 'higher' or 'lower'"]),
    ("52 | verdict(55)", ["verdict needs a reference: {value, low, high, warn, unit, source}"]),
    ("52 | verdict({'low': -0.1})", ["verdict: reference: value: Field required"]),
    ("52 | verdict({'value': 55, 'low': -0.1, 'hihg': 1})", ["verdict: reference: hihg: Extra inputs"]),
    ("52 | verdict({'value': 'nan', 'low': -0.1})", ["verdict: reference: value:", "finite number"]),
    ("52 | verdict({'value': 55})", ["give low or warn in the reference"]),
    ("52 | verdict({'value': 55, 'low': -0.1}, direction='lower')", ["give high or warn in the reference"]),
    ("'pass' | worst_verdict", ["worst_verdict needs a list of verdicts"]),
    ("none | worst_verdict", ["worst_verdict needs a list of verdicts"]),
    ("['good'] | worst_verdict", ["worst_verdict: 'good' is not a valid Verdict"]),
    ("[1, 2] | scaling_efficiency", ["scaling_efficiency needs a dict of GPUs to rate"]),
    ("{} | scaling_efficiency", ["scaling_efficiency: no rates"]),
    ("{1: 0} | scaling_efficiency", ["must be a positive number, not 0"]),
    ("{1: 'fast'} | scaling_efficiency", ["scaling_efficiency: could not convert string to float: 'fast'"]),
    ("{0: 4} | scaling_efficiency", ["must be at least 1, not 0"]),
    ("{1.5: 4} | scaling_efficiency", ["scaling_efficiency: invalid literal", "1.5"]),
    ("{1: 4, '1': 5} | scaling_efficiency", ["a number of GPUs is given twice"]),
    ("{1: 4} | scaling_efficiency(base=2)", ["the base 2 was not measured; there are 1"]),
    (f"query('rackproof_benchmarks', 'toi', {TOYS})", ["no benchmark `toi`", "did you mean `toy`"]),
    (f"query('rackproof_benchmarks', suite='toi', {TOYS})", ["no suite `toi`", "did you mean `toys`"]),
    ("query('rackproof_benchmarks', suite='toys')", ["definitions"]),
    ("query('rackproof_benchmarks', suite='toys', definitions='/nonexistent')", ["/nonexistent"]),
    (
        "query('rackproof_benchmarks', suite='toys', definitions=wrong)",
        ["toy.yml:", "launch.timout_s: unknown key; did you mean"],
    ),
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
    shutil.copytree(HERE / "bench" / "definitions", folder / "wrong")
    toy = folder / "wrong" / "toy.yml"
    toy.write_text(toy.read_text().replace("timeout_s:", "timout_s:"))
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
        "name": "Filters and lookup",
        "hosts": "localhost",
        "gather_facts": False,
        "vars": {
            "nccl": NCCL,
            "wrong": str(folder / "wrong"),
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
def test_bad_input_says_what_is_wrong(
    results: dict[str, dict[str, Any]], expression: str, words: list[str]
) -> None:
    result = results[expression]
    assert result["failed"]
    for word in words:
        assert word in result["msg"]
    assert "pydantic" not in result["msg"]
