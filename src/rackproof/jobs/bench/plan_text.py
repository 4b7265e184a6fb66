"""Describe a plan for the operator, with its runs, its references, and the obstacles on its nodes. No I/O.

Task ``plan`` of bench.yml prints the text of :func:`describe_plan`: title, then a line ``NODE: BENCHMARK``
for each run, with indented lines about its actions and references. In check mode, the playbook then ends with
the list of :func:`lacking` and with the nodes' answers (filter ``dry_run_answers``).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rackproof.analysis.mlperf.rounds import reference_points
from rackproof.core.definitions import JudgeRule
from rackproof.core.hostlist import compress_hostlist
from rackproof.core.judging import SkuReference
from rackproof.core.records import Measurement
from rackproof.core.text import amount, duration
from rackproof.jobs.bench.launch_slurm import SILENT
from rackproof.jobs.bench.log_checks import BY_ITSELF
from rackproof.jobs.bench.mlperf_checks import published_references
from rackproof.jobs.bench.planning import Plan, PlannedRun
from rackproof.logs.run_sub import MARK

_FIRST = "unproven until a run of these nodes is accepted (rackproof accept)"


def describe_plan(plan: Plan, baselines: Sequence[SkuReference] = ()) -> str:
    """Describe a plan's runs, their nodes, duration and references, and what has no run.

    Args:
        plan: The plan.
        baselines: The references of the SKU.
    """
    count = amount(len(plan.runs), "run")
    lines = [f"{plan.title}: {count}{_expected_time_text(plan.runs)}"]
    for run in plan.runs:
        lines += _run_lines(run, baselines)
    lines += [f"  left out on {point.node}: {point.benchmark}: {point.reason}" for point in plan.skipped]
    if plan.unreached:
        lines.append(f"  not reached: {compress_hostlist(plan.unreached)}")
    return "\n".join([*lines, *(f"  {text}" for text in idle_lines(plan))])


def idle_lines(plan: Plan) -> list[str]:
    """Return a line with the nodes that have no run because their rack has more nodes than the runs need."""
    if not plan.idle:
        return []
    return [f"without a run: {compress_hostlist(plan.idle)}, because `nodes` needs only the first of a rack"]


def lacking(plan: Plan) -> list[str]:
    """Return the obstacles to the plan's runs, each listed once.

    Each line states one reason and its benchmarks. The reasons with the most benchmarks come first. A last
    line names the hosts that did not answer, unless another line names them.
    """
    lacking_by_node: dict[str, dict[str, None]] = {}
    for run in plan.runs:
        for why in run.obstacles or filter(None, [run.unproven_because]):
            lacking_by_node.setdefault(why, {})[run.benchmark] = None
    ordered = sorted(lacking_by_node.items(), key=lambda entry: -len(entry[1]))
    lines = [f"{', '.join(names)}: {why}" for why, names in ordered]
    # An obstacle to a rack's run names all nodes of the rack that did not answer.
    named = {name for run in plan.runs if SILENT in run.unproven_because for name in run.nodes}
    silent = [name for name in plan.unreached if name not in named]
    return [*lines, *([f"{compress_hostlist(silent)} {SILENT}"] if silent else [])]


def dry_run_answers(results: Iterable[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Return the answers of nodes to a dry run's query whether their runs are possible, each answer once.

    Args:
        results: Results of ``slurm_run.py check``. A result without output was skipped. A line of output
            with :data:`~rackproof.logs.run_sub.MARK` states a phase, and the last line is ``{"lacking":
            […]}``.

    Returns:
        ``phases`` lists the checks that were made, and ``lacking`` the missing things, first those that most
        benchmarks lack.

    Raises:
        AttributeError, KeyError, TypeError, ValueError: The output has another form, or is cut off.
    """
    phases: dict[str, None] = {}
    missing: Counter[str] = Counter()
    for result in results:
        lines = result.get("stdout_lines") or []
        reports = [json.loads(line.removeprefix(MARK)) for line in lines if line.startswith(MARK)]
        phases.update(dict.fromkeys(str(report["phase"]) for report in reports if "phase" in report))
        if lines:
            missing.update(json.loads(lines[-1])["lacking"])
    return {"phases": list(phases), "lacking": [text for text, _ in missing.most_common()]}


def _expected_time_text(runs: Sequence[PlannedRun]) -> str:
    """Return the expected duration of runs from their history, or else from their time limits."""
    # A run that cannot be made takes no time.
    possible = [run for run in runs if not run.unproven_because]
    expected_s = [run.expected_s for run in possible if run.expected_s is not None]
    limits_s = [run.timeout_s for run in possible if run.expected_s is None]
    text = ""
    if expected_s:
        share = f" for {len(expected_s)} of them" if limits_s else ""
        text = f", about {sum(expected_s):.0f} s{share} by earlier runs"
    if limits_s:
        limit = duration(sum(limits_s))
        have, take = ("has", "takes") if len(limits_s) == 1 else ("have", "take")
        text += (
            f"; {len(limits_s)} {have} no successful run here yet and {take} at most {limit} by "
            f"{'its limit' if len(limits_s) == 1 else 'their limits'}"
        )
    return text


def _run_lines(run: PlannedRun, baselines: Sequence[SkuReference]) -> list[str]:
    """Return the lines about one run. Only the first of its repeats has lines about details."""
    takes_time = run.expected_s is not None and not run.unproven_because
    expected = f" (about {run.expected_s:.0f} s)" if takes_time else ""
    # The reasons against a run under Slurm get a line each.
    why = "" if run.obstacles else f": {run.unproven_because}"
    note = f"  UNPROVEN{why}" if run.unproven_because else ""
    place = run.lead if len(run.nodes) == 1 else f"{len(run.nodes)} nodes, from {run.lead}"
    lines = [f"  {place}: {run.title}{expected}{note}"]
    # All repeats have the same obstacles, so only the first one lists them.
    lines += [f"    lacks   {why}" for why in run.obstacles if run.repeat <= 1]
    if run.expected_s is None and not run.unproven_because and _lacks_every_reference(run, baselines):
        lines.append(
            "    judges speed alone, so its first run cannot pass without a reference of the SKU or of an "
            "accepted run; look at that run, then `rackproof accept` it"
        )
    if run.repeat <= 1 and run.would:
        lines += [f"    {line}" for line in (*run.would, *_judge_lines(run, baselines))]
    return lines


def _lacks_every_reference(run: PlannedRun, baselines: Sequence[SkuReference]) -> bool:
    """Return whether a run has no rules of MLPerf, no rule with a bound, and no reference of the SKU."""
    rules = run.result.judge
    if run.result.ruleset or any((rule.at_least, rule.at_most, rule.equals) != (None,) * 3 for rule in rules):
        return False
    metrics = {one.metric for one in baselines if one.applies(run.benchmark, run.parameters)}
    return metrics.isdisjoint(rule.metric for rule in rules)


def _judge_lines(run: PlannedRun, baselines: Sequence[SkuReference]) -> list[str]:
    """Return a line for each reference that judges a run, and for each metric without reference."""
    lines = []
    sizes = sorted(reference_points(run.benchmark, run.result.ruleset)) if run.result.ruleset else []
    if sizes:
        listed = ", ".join(f"{size:g}" for size in sizes)
        lines.append(f"judge   convergence by MLCommons' points for global batch sizes {listed}")
    fitting = [baseline for baseline in baselines if baseline.applies(run.benchmark, run.parameters)]
    for rule in run.result.judge:
        named = [reference for reference in fitting if reference.metric == rule.metric]
        reference_texts = [*_bound_texts(rule), *_published_texts(run, rule.metric)]
        lines += [
            f"judge   {rule.metric} {text}"
            for text in [*reference_texts, *_baseline_texts(named, bool(reference_texts))]
        ]
    return lines


def _bound_texts(rule: JudgeRule) -> list[str]:
    """Return a rule's own bounds."""
    bounds = (("at least", rule.at_least), ("at most", rule.at_most), ("exactly", rule.equals))
    return [f"{bound_text} {bound}, by its definition" for bound_text, bound in bounds if bound is not None]


def _baseline_texts(references: Sequence[SkuReference], has_others: bool) -> list[str]:
    """Return texts about the SKU's references of a metric.

    If no reference judges every value of the metric, the last text states this.

    Args:
        references: The SKU's references of the metric.
        has_others: Whether a bound or a published result judges the metric, too.
    """
    texts = [_baseline_text(reference) for reference in references]
    if has_others or not all(reference.labels for reference in references):
        return texts
    return [*texts, f"{'of another case ' if texts else ''}has no reference: {_FIRST}"]


def _baseline_text(sku_reference: SkuReference) -> str:
    """Return a reference of the SKU with its case: ``2.1 TB/s at gpus=1, by SOURCE``."""
    labels = " ".join(
        f"{name}={value}"
        for name, value in (*sku_reference.parameters.items(), *sku_reference.labels.items())
    )
    reference = sku_reference.reference
    return f"{reference.value:g} {reference.unit}{f' at {labels}' if labels else ''}, by {reference.source}"


def _published_texts(run: PlannedRun, metric: str) -> list[str]:
    """Return the published results that judge a metric of a run."""
    if run.launcher in BY_ITSELF or not run.published_references:
        return []
    references = published_references(run, Measurement(name=metric, value=1, unit=""))
    return [f"{reference.value:g} {reference.unit}, by {reference.source}" for reference in references]
