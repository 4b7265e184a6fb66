"""Test ``rackproof explain`` for codes of findings, and its message if nothing can be explained.

A code, such as xid_79 or ecc_off, names a fault or remark of a check. The command prints the code's meaning,
verdict, sources and action, and the key of validate_limits if the code compares with one. The tests also pass
reasons of drains as Slurm shows them, other spellings, and names that are no code. An XID is the number of a
GPU error in the kernel log.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rackproof.core.finding_codes import find_code, registry
from tests.cli.test_cli_commands import Call, output_of


@pytest.mark.parametrize(
    "code", [*(code for code in registry() if "*" not in code), "xid_79", "floor:gemm_best"]
)
def test_a_code_is_explained_without_results(code: str, run: Call, tmp_path: Path) -> None:
    entry = find_code(code)
    assert entry is not None
    result = run("explain", code, "--results", tmp_path / "none")
    assert result.exit_code == 0
    lines = result.output.splitlines()
    assert lines[0] == f"{code}: {entry.meaning}"
    verdicts = "fail: by itself it drains a node" if code == "xid_79" else ", ".join(entry.verdicts)
    assert f"Verdict:   {verdicts}" in lines
    assert f"Read from: {entry.reads}" in lines


@pytest.mark.parametrize(
    ("code", "action"),
    [
        ("ecc_off", "configure (certain)"),
        ("xid_79", "reboot, unless"),
        ("xid_74", "reset, unless"),
        ("xid_54", "isolate, unless"),
        ("xid_999999", "no documented action for this XID, unless"),
        ("xid_99999999999", "watch, reset, reboot, isolate, inspect (certain, likely, hint)"),
    ],
)
def test_a_code_of_a_health_finding_has_an_action(code: str, action: str, run: Call) -> None:
    assert f"Action:    {action}" in run("explain", code).output


@pytest.mark.parametrize(
    ("code", "verdict"),
    [("xid_94", "degraded"), ("xid_31", "degraded"), ("xid_48", "fail"), ("xid_999999", "unproven")],
)
def test_an_xid_has_the_verdict_of_its_number(code: str, verdict: str, run: Call) -> None:
    drains = "drains" if verdict == "fail" else "does not drain"
    assert f"Verdict:   {verdict}: by itself it {drains} a node" in run("explain", code).output


def test_the_line_of_xid_154_decides_on_its_verdict(run: Call) -> None:
    text = run("explain", "xid_154").output
    assert "Verdict:   that of the recovery action that the line itself states" in text
    assert "does not drain" not in text


@pytest.mark.parametrize(
    ("typed", "code"),
    [
        ("xid 94", "xid_94"),
        ("xid79", "xid_79"),
        ("XID79", "xid_79"),
        ("XID_79", "xid_79"),
        ("Xid: 48", "xid_48"),
        ("XID-79", "xid_79"),
        ("xid - 79", "xid_79"),
        ("SXid 20034", "sxid_20034"),
        ("sxid-20034", "sxid_20034"),
        ("rackproof-night: xid_79 gpu 3; rackproof explain gb300-r01-n03", "xid_79"),
        ("rackproof-night: gpu_missing; ...", "gpu_missing"),
        ("rackproof-night: tool_slow, port_down; x", "tool_slow"),
    ],
)
def test_a_spelling_of_an_xid_or_a_reason_of_a_night_is_explained_by_its_first_code(
    typed: str, code: str, run: Call, tmp_path: Path
) -> None:
    result = run("explain", typed, "--results", tmp_path)
    assert result.exit_code == 0, output_of(result)
    assert result.output.startswith(f"{code}: ")


@pytest.mark.parametrize(
    "typed",
    ["rackproof: provisioning", "rackproof: health: tool_slow", "Kill task failed", "rackproof: a, b"],
)
def test_the_answer_to_a_reason_of_another_job_names_the_page_of_reasons(
    typed: str, run: Call, tmp_path: Path
) -> None:
    result = run("explain", typed, "--results", tmp_path)
    assert result.exit_code == 1
    assert "is not a reason of a night. docs/using/drained.md" in output_of(result)
    assert "ansible-playbook" not in output_of(result)


@pytest.mark.parametrize(
    ("typed", "near"),
    [
        ("rackproof-night: ecc_of GPU 0; x", "; codes like it: ecc_off"),
        ("rackproof-night: @", "known code. docs/using/codes.md"),
        ("rackproof-night:", "known code. docs/using/codes.md"),
    ],
)
def test_a_reason_without_a_known_code_is_not_taken_for_a_node(
    typed: str, near: str, run: Call, tmp_path: Path
) -> None:
    result = run("explain", typed, "--results", tmp_path)
    assert result.exit_code == 1
    assert f"'{typed}' does not begin with a known code" in output_of(result)
    assert near in output_of(result)
    assert "no night in" not in output_of(result)


@pytest.mark.parametrize(
    ("code", "limit"),
    [
        ("memlock", "memlock_bytes of validate_limits (default 34359738368, 32 GiB)"),
        ("shm", "shm_bytes of validate_limits (default 8589934592, 8 GiB)"),
        ("clock", "clock_s of validate_limits (default 2)"),
        ("port_symbolerrorcounter", "symbol_errors of validate_limits (default 10)"),
        ("ecc_dram_correctable", "dram_correctable of validate_limits (default 20000000)"),
    ],
)
def test_a_code_with_a_limit_names_the_key_and_where_to_set_it(code: str, limit: str, run: Call) -> None:
    (line,) = [line for line in run("explain", code).output.splitlines() if line.startswith("Limit:")]
    assert line.startswith(f"Limit:     {limit}")
    assert "group_vars/all.yml for all nodes" in line
    assert "Other keys keep their defaults" in line


def test_a_code_without_a_limit_names_none(run: Call) -> None:
    assert "Limit:" not in run("explain", "xid_79").output


def test_a_code_without_an_action_in_the_registry_has_no_line_for_it(run: Call) -> None:
    assert "Action:" not in run("explain", "cut_off").output


def test_json_has_the_family_and_all_verdicts_of_a_code(run: Call) -> None:
    answer = json.loads(run("explain", "xid_79", "--json").output)
    assert (answer["code"], answer["family"]) == ("xid_79", "xid_*")
    assert answer["verdicts"] == ["fail", "degraded", "unproven"]


@pytest.mark.parametrize(
    ("typed", "near"), [("ecc_of", "ecc_off"), ("nvlinkdown", "nvlink_down"), ("xidd", "xid")]
)
def test_an_unknown_code_names_near_ones(typed: str, near: str, run: Call, tmp_path: Path) -> None:
    result = run("explain", typed, "--results", tmp_path)
    assert result.exit_code == 1
    assert near in output_of(result).partition("codes like it: ")[2]


@pytest.mark.parametrize("folder", ["none", "."])
def test_the_message_about_a_node_without_results_names_the_option_for_results(
    folder: str, run: Call, tmp_path: Path
) -> None:
    result = run("explain", "gb300-r01-n03", "--results", tmp_path / folder)
    assert result.exit_code == 1
    assert "--results" in output_of(result)
    assert "codes like it" not in output_of(result)


def test_the_argument_of_rma_is_a_node_even_if_it_resembles_a_code(run: Call, tmp_path: Path) -> None:
    result = run("explain", "memory", "--rma", "-", "--results", tmp_path)
    assert result.exit_code == 1
    assert "no night in" in output_of(result)
