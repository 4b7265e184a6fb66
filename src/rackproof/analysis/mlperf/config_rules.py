"""Read the rules of a round that job bench checks against a config before it launches the Slurm job.

The rules are in MLCommons' compliance checker, and are for the lines of a log: the line ``lora_rank`` has the
rule ``v['value'] == 16``. The definition of a benchmark states which variable of its config such a line shows
(``configs.logged``: ``opt_base_learning_rate: LR``), so the rule also applies to the config. No code of the
checker is executed. Expressions that only compare numbers are read, and all others are left to the check of
the log.

:mod:`rackproof.jobs.bench.launch_slurm` calls :func:`config_rules`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import yaml

Tree = float | str | list[Any]
"""One side of a rule: a number, the name of a config's variable, or ``[operator, left, right]``."""

_COMPARISONS = {ast.Eq: "==", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">="}
_OPERATORS = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*"}
_TERM = re.compile(r"([A-Z][A-Z0-9_]*)(?: ([-+*]) ([A-Z][A-Z0-9_]*))?")
"""A value of ``configs.logged``: ``LR``, or two variables with an operator, such as ``GPUS * BATCHSIZE``."""


class _UnreadableError(Exception):
    """An expression that is more than a comparison of numbers."""


def config_rules(benchmark: str, ruleset: str, logged: Mapping[str, str]) -> list[dict[str, object]]:
    """Return the rules of a round that can be checked against a config.

    Args:
        benchmark: The name that MLCommons uses.
        ruleset: The ruleset of the round, such as ``5.1.0``. The rules of the closed division count.
        logged: The config's variable that each log line shows, by the line's key, or two variables with
            ``-``, ``+`` or ``*`` between them.

    Returns:
        A dictionary for each rule: its text ``rule``, the sides ``left`` and ``right`` (:data:`Tree`), and
        the operator ``comparison``. Equal rules occur once. The list is empty if MLCommons' package is not
        installed or has no readable rules.
    """
    rules: list[dict[str, object]] = []
    for key, checks in _read_checks(benchmark, ruleset):
        if key in logged:
            for text in checks:
                rules += _read_rules(key, text, logged)
    return list({str(rule["rule"]): rule for rule in rules}.values())


def _read_checks(benchmark: str, ruleset: str) -> Iterator[tuple[str, Sequence[str]]]:
    """Yield the key of each line with rules, and their expressions. Rules for all benchmarks come first."""
    spec = find_spec("mlperf_logging")
    # The names become parts of a path.
    named = re.fullmatch(r"[a-z0-9_]+", benchmark) and re.fullmatch(r"\d+\.\d+\.\d+", ruleset)
    if spec is None or not spec.submodule_search_locations or not named:
        return
    place = Path(next(iter(spec.submodule_search_locations))) / "compliance_checker" / f"training_{ruleset}"
    for name in ("common", "closed_common", f"closed_{benchmark}"):
        try:
            entries = yaml.safe_load((place / f"{name}.yaml").read_text())
        except (OSError, yaml.YAMLError):
            continue
        for entry in entries or ():
            rule = entry.get("KEY") if isinstance(entry, dict) else None
            if isinstance(rule, dict) and "CHECK" in rule:
                checks = rule["CHECK"]
                yield str(rule.get("NAME")), checks if isinstance(checks, list) else [str(checks)]


def _read_rules(key: str, text: str, logged: Mapping[str, str]) -> list[dict[str, object]]:
    """Return the comparisons of an expression, which ``and`` may join, as rules for a config.

    A comparison that needs more than numbers is left out.
    """
    try:
        tree = ast.parse(str(text).strip(), mode="eval").body
    except (SyntaxError, ValueError):
        return []
    parts = tree.values if isinstance(tree, ast.BoolOp) and isinstance(tree.op, ast.And) else [tree]
    rules: list[dict[str, object]] = []
    for part in parts:
        try:
            rules.append(_read_comparison(key, part, logged))
        except _UnreadableError:
            continue
    return rules


def _read_comparison(key: str, part: ast.expr, logged: Mapping[str, str]) -> dict[str, object]:
    """Return one comparison as a rule, or raise :class:`_UnreadableError`."""
    if not isinstance(part, ast.Compare) or len(part.ops) != 1:
        raise _UnreadableError
    comparison = _COMPARISONS.get(type(part.ops[0]))
    if comparison is None:
        raise _UnreadableError
    left, left_text = _read_value(key, part.left, logged)
    right, right_text = _read_value(key, part.comparators[0], logged)
    return {
        "rule": f"{left_text} {comparison} {right_text}",
        "left": left,
        "comparison": comparison,
        "right": right,
    }


def _read_value(key: str, node: ast.expr, logged: Mapping[str, str]) -> tuple[Tree, str]:
    """Return one side of a comparison, and its text with the keys of log lines in place of variables.

    Raises:
        _UnreadableError: The side has more than numbers, values of log lines, and their sums, differences and
            products.
    """
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        return float(node.value), f"{node.value:g}" if isinstance(node.value, float) else str(node.value)
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        sign = _OPERATORS[type(node.op)]
        (left, left_text), (right, right_text) = (
            _read_value(key, side, logged) for side in (node.left, node.right)
        )
        return [sign, left, right], f"{left_text} {sign} {right_text}"
    name = _line_of(key, node)
    match = _TERM.fullmatch(logged.get(name, ""))
    if not match:
        raise _UnreadableError
    return ([match[2], match[1], match[3]] if match[2] else match[1]), name


def _line_of(key: str, node: ast.expr) -> str:
    """Return the key of the log line that an expression uses, or raise :class:`_UnreadableError`.

    ``v['value']`` is the value of the rule's own line, and ``s['KEY']`` is the value of an earlier line.
    """
    if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name):
        index = node.slice.value if isinstance(node.slice, ast.Constant) else None
        if node.value.id == "v" and index == "value":
            return key
        # A value that the checker stores for later rules is named after its line.
        if node.value.id == "s" and isinstance(index, str):
            return index
    raise _UnreadableError
