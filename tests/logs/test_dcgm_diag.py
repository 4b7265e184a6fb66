"""Results of `dcgmi diag`, as DCGM 2 to 4 print them: faults, warnings, skipped tests, and what is missing.

The forms are those of NVIDIA/DCGM issues 55 (3.0), 139 (JSON) and 253 (4.2), of NVIDIA/deepops
(docs/slurm-cluster, 2.0), aws-samples/awsome-distributed-training (efa-cheatsheet, 3.3) and
facebookresearch/gcm (test_check_dcgmi.py).
"""

from __future__ import annotations

import io
import json

import pytest

from rackproof import logs
from rackproof.core.records import Verdict

from .log_samples import _DCGM_RULE, DCGM, dcgm_json

PASS, DEGRADED, UNPROVEN, FAIL = Verdict.PASS, Verdict.DEGRADED, Verdict.UNPROVEN, Verdict.FAIL
SOFTWARE = (
    *("NVML Library", "CUDA Main Library", "Permissions and OS Blocks", "Persistence Mode"),
    *("Environment Variables", "Page Retirement/Row Remap", "Graphics Processes", "Inforom"),
)


def judged(text: str | bytes) -> tuple[Verdict, set[str]]:
    parsed = logs.parse(io.BytesIO(text if isinstance(text, bytes) else text.encode()))
    assert parsed.format == "dcgmi_diag"
    return parsed.verdict, {one.code for one in parsed.findings if one.verdict is not None}


def table(first: str = "Denylist", **words: str) -> str:
    """Return the table of DCGM 3, in which tests have other words than Pass."""
    rows = [f"| {name:25} | {words.get(name.split()[0], 'Pass'):46} |\n" for name in (first, *SOFTWARE)]
    hardware = [
        f"| {name:25} | {words.get(name.split()[0], 'Pass - All'):46} |\n"
        for name in ("PCIe", "Memory", "EUD Test")
    ]
    return "".join(
        [
            "Successfully ran diagnostic for group.\n",
            _DCGM_RULE,
            f"| {'Diagnostic':25} | {'Result':46} |\n+{'=' * 27}+{'=' * 48}+\n",
            f"|-----  Deployment  --------+{'-' * 48}|\n",
            *rows,
            f"+-----  Integration  -------+{'-' * 48}+\n",
            *hardware,
            _DCGM_RULE,
        ]
    )


@pytest.mark.parametrize(
    "text", [DCGM, table(), table("Blacklist"), dcgm_json(), dcgm_json("DCGM GPU Diagnostic")]
)
def test_what_dcgm_says_of_a_healthy_node_passes(text: str | bytes) -> None:
    assert judged(text) == (PASS, set())


@pytest.mark.parametrize(
    ("text", "verdict", "code"),
    [
        (table(PCIe="Fail - GPU: 0"), FAIL, "dcgm_fault"),
        (table(Page="Fail"), FAIL, "dcgm_fault"),
        (table(Persistence="Warn"), DEGRADED, "dcgm_warning"),
        (table(Memory="Skip - All"), UNPROVEN, "dcgm_skipped"),
        (table(Memory="Not Run"), UNPROVEN, "dcgm_warning"),
        (DCGM.replace(b"GPU1: Pass", b"GPU1: Fail", 1), FAIL, "dcgm_fault"),
        (DCGM.replace(b"y                    | Pass", b"y                    | Fail"), FAIL, "dcgm_fault"),
        (dcgm_json(memory="Fail"), FAIL, "dcgm_fault"),
        (dcgm_json(memory="FAIL"), FAIL, "dcgm_fault"),
        (dcgm_json("DCGM GPU Diagnostic", pcie="Warn"), DEGRADED, "dcgm_warning"),
        (dcgm_json(pcie="Skip"), UNPROVEN, "dcgm_skipped"),
        # NVIDIA/DCGM issue 284: an error beside a test that passed.
        (dcgm_json().replace(b'"status": "Pass"}', b'"status": "Pass", "warnings": [{"warning": "x"}]}', 1),
         UNPROVEN, "dcgm_warning"),
        (table().replace("| PCIe ", f"| {'Warning':25} | {'GPU 0: MEMORY_ALLOC':46} |\n| PCIe "), UNPROVEN,
         "dcgm_warning"),
    ],
)  # fmt: skip
def test_faults_and_warnings_are_found(text: str | bytes, verdict: Verdict, code: str) -> None:
    found, codes = judged(text)
    assert (found, code in codes) == (verdict, True), codes


def test_a_test_that_needs_a_package_of_its_own_may_be_skipped() -> None:
    assert judged(table(EUD="Skip - All")) == (PASS, set())


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (table()[: -len(_DCGM_RULE)], "cut_off"),
        (table().partition("| Inforom")[0], "cut_off"),
        *((table().replace(f"| {name:25} | {'Pass':46} |\n", ""), "rows_missing") for name in SOFTWARE),
        (DCGM.replace(b"| " + b" " * 25 + b" | GPU1: Pass" + b" " * 36 + b" |\n", b"", 1), "gpu_missing"),
        (DCGM.replace(b"| " + b" " * 25 + b" | GPU1: Pass" + b" " * 36 + b" |\n", b""), "gpu_missing"),
        (table() + table(), "several_runs"),
        (dcgm_json()[:-20], "damaged_json"),
        (dcgm_json().replace(b'"entity_id": 1}]', b'"entity_id": 1}, {"entity_id": 2}]'), "gpu_missing"),
        (json.dumps({"DCGM Diagnostic": {"test_categories": [], "runtime_error": "no GPU"}}), "tool_error"),
    ],
)
def test_less_than_a_whole_result_proves_nothing(text: str | bytes, code: str) -> None:
    found, codes = judged(text)
    assert (found, code in codes) == (UNPROVEN, True), codes
