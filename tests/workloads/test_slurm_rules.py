"""Test that workloads/slurm_run.py refuses a config that breaks a rule of its MLPerf round, before the job.

The rules are those of MLCommons' checker, for values that a config sets, such as the number of steps. A
result that breaks one could not be submitted. The tests show that published configs keep the rules, and that
the message names each broken one.
"""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from rackproof.analysis.mlperf.config_rules import config_rules

# Values of the published configs of 18 nodes with GB300, and of one of flux1.
LLAMA31 = {"MAX_STEPS": "1200000", "OPT_LR_DECAY_STEPS": "1200000", "WARMUP_STEPS": "96"}
LLAMA31 |= {"VAL_SAMPLES": "1024", "LR": "0.0008"}
LLAMA2 = {"MAX_STEPS": "800", "LR": "0.0005"}
FLUX1 = {"VAL_CHECK_INTERVAL": "262144", "BATCHSIZE": "2048", "LEARNING_RATE": "0.0005", "WARMUP_STEPS": "0"}


def rules_of(root: Path, benchmark: str, ruleset: str = "5.1.0") -> list[dict[str, Any]]:
    """Return the rules for a config of a benchmark as it is shipped."""
    definition = yaml.safe_load((root / "benchmarks" / f"{benchmark}.yml").read_text())
    return config_rules(benchmark, ruleset, definition["configs"]["logged"])


def check(
    slurm_run: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    rules: list[dict[str, Any]],
    variables: dict[str, str],
    ruleset: str = "5.1.0",
) -> list[str]:
    """Return what the program prints about the rules that a config keeps."""
    shown: list[str] = []
    monkeypatch.setattr(slurm_run, "print_event", lambda **what: shown.append(what["phase"]))
    spec: dict[str, Any] = {"repository": "a", "tag": "1", "shared": "/none", "benchmark": "big"}
    spec |= {"environment": {}, "rules": rules, "ruleset": ruleset}
    slurm_run.Work(spec).check_rules(Path("config_X.sh"), variables)
    return shown


@pytest.mark.parametrize(
    ("benchmark_name", "variables", "words"),
    [
        ("llama31_8b", LLAMA31, ["config_X.sh: keeps 3 rules of MLPerf 5.1.0"]),
        ("flux1", FLUX1, ["config_X.sh: keeps 4 rules of MLPerf 5.1.0"]),
        # The rules of this benchmark are about values that no config sets.
        ("llama2_70b_lora", LLAMA2, []),
    ],
)
def test_published_configs_keep_the_rules(
    root: Path,
    slurm_run: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    benchmark_name: str,
    variables: dict[str, str],
    words: list[str],
) -> None:
    assert check(slurm_run, monkeypatch, rules_of(root, benchmark_name), variables) == words


@pytest.mark.parametrize(
    ("benchmark_name", "variables", "named"),
    [
        ("llama31_8b", {**LLAMA31, "MAX_STEPS": "500"}, ["max_steps == 1200000, and it has MAX_STEPS=500"]),
        ("llama31_8b", {**LLAMA31, "VAL_SAMPLES": "5760"}, ["eval_samples == 1024"]),
        (
            "llama31_8b",
            {**LLAMA31, "OPT_LR_DECAY_STEPS": "800000"},
            [
                "opt_learning_rate_decay_steps == 1200000 - opt_learning_rate_warmup_steps",
                "OPT_LR_DECAY_STEPS=800000, WARMUP_STEPS=96",
            ],
        ),
        ("flux1", {**FLUX1, "VAL_CHECK_INTERVAL": "1024"}, ["evaluation_frequency == 262144"]),
        ("flux1", {**FLUX1, "LEARNING_RATE": "-1e-4"}, ["opt_base_learning_rate >= 0"]),
        ("flux1", {**FLUX1, "WARMUP_STEPS": "-1"}, ["opt_learning_rate_warmup_steps >= 0"]),
        ("llama2_70b_lora", {**LLAMA2, "SEED": "7"}, ["SEED=7 for every run"]),
        (
            "llama31_8b",
            {**LLAMA31, "MAX_STEPS": "500", "VAL_SAMPLES": "1", "SEED": "1"},
            ["max_steps", "eval_samples", "SEED=1"],
        ),
    ],
)
def test_a_config_that_breaks_rules_is_refused_with_all_of_them(
    root: Path,
    slurm_run: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    benchmark_name: str,
    variables: dict[str, str],
    named: list[str],
) -> None:
    with pytest.raises(slurm_run.Refusal) as refused:
        check(slurm_run, monkeypatch, rules_of(root, benchmark_name), variables)
    assert refused.value.status == slurm_run.EXIT_SLURM
    text = str(refused.value)
    assert all(one in text for one in ["config_X.sh", "5.1.0", "bench_config", *named]), text


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({}, "keeps 0 rules of MLPerf 5.1.0; known when the job runs: opt_learning_rate_decay_steps =="),
        (
            {**LLAMA31, "VAL_SAMPLES": ""},
            "keeps 2 rules of MLPerf 5.1.0; known when the job runs: eval_samples",
        ),
        ({**LLAMA31, "MAX_STEPS": "many"}, "keeps 2 rules"),
    ],
)
def test_a_rule_on_a_variable_that_is_not_set_is_left_to_the_log(
    root: Path, slurm_run: ModuleType, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], words: str
) -> None:
    (shown,) = check(slurm_run, monkeypatch, rules_of(root, "llama31_8b"), variables)
    assert words in shown


@pytest.mark.parametrize("ruleset", ["", "9.9.9", "../5.1.0"])
def test_a_round_without_rules_refuses_nothing(
    root: Path, slurm_run: ModuleType, monkeypatch: pytest.MonkeyPatch, ruleset: str
) -> None:
    rules = rules_of(root, "llama31_8b", ruleset)
    assert rules == []
    assert check(slurm_run, monkeypatch, rules, {"MAX_STEPS": "1"}, ruleset) == []


def test_the_rules_are_those_by_which_a_log_is_scored(root: Path) -> None:
    """The rules come from the installed checker, which applies the same expressions to a line of a log."""
    texts = {rule["rule"] for name in ("llama31_8b", "flux1") for rule in rules_of(root, name)}
    assert {"max_steps == 1200000", "eval_samples == 1024", "evaluation_frequency == 262144"} <= texts
    # Another round has its own rules.
    assert [rule["rule"] for rule in config_rules("gpt_oss_20b", "6.0.0", {"max_steps": "STEPS"})] != []


@pytest.mark.parametrize(
    ("expression", "rules"),
    [
        (" v['value'] == 0.1 ", ["x == 0.1"]),
        ("v['value'] > 0 and v['value'] <= 64", ["x > 0", "x <= 64"]),
        ("v['value'] == 2 * s['y']", ["x == 2 * y"]),
        # Any other expression is left to the log.
        ("v['value'] == 'adamw'", []),
        ("v['value'] in [1, 2]", []),
        ("'samples_count' in v['metadata']", []),
        ("v['value'] == s['unknown']", []),
        ("0 < v['value'] < 3", []),
        ("v['value'] == __import__('os').getpid()", []),
        ("v['value'] ==", []),
    ],
)
def test_expressions_are_read_and_never_executed(expression: str, rules: list[str]) -> None:
    from rackproof.analysis.mlperf.config_rules import _read_rules

    found = _read_rules("x", expression, {"x": "X", "y": "A - B"})
    assert [rule["rule"] for rule in found] == rules
