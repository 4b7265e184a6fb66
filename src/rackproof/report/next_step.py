"""Choose the next step after a run or a plan of benchmarks, as one command to type. No I/O.

The HTML and Markdown reports show the result of :func:`step_after_run` or :func:`step_after_plan` below the
verdict. The command accepts the measured numbers as references (``rackproof accept PLAN``, after a run
``rackproof accept RUN``), or repeats runs (``rackproof bench -l n07 -e benchmark=gemm``).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from rackproof.core.advised_commands import add_results_everywhere
from rackproof.core.judging import NO_REFERENCE
from rackproof.core.records import Run, Verdict
from rackproof.core.text import sanitize, shell_command

_LONGEST = 10_000
"""Largest number of characters of a ``rackproof bench`` command, which is enough for some 1,000 nodes.

A part of a command would do something else, so there is none for more nodes."""


def step_after_run(run: Run, results: Path | None = None) -> tuple[str, str]:
    """Return advice and the command to type after a run.

    Both are "" after a pass or degraded, and for a run that ``rackproof bench`` did not make. If only
    references are missing, the command accepts the run's numbers. Otherwise, the command repeats the run's
    point, because other runs of its plan may be good.

    Args:
        run: The run.
        results: The results folder that the command names, or None.
    """
    if not _can_be_repeated(run) or not run.verdict.gates:
        return "", ""
    if _lacks_a_reference_alone(run):
        return _accept(run.run_id, results)
    options: dict[str, object] = {"benchmark": run.benchmark}
    point = {name: value for name, value in run.parameters.items() if value not in ("", None)}
    if point:
        options["bench_parameters"] = point
    return _again(_nodes([run]), options)


def step_after_plan(runs: Sequence[Run], verdict: Verdict, results: Path | None = None) -> tuple[str, str]:
    """Return advice and the command to type after a plan, as :func:`step_after_run` does.

    Both are "" if ``rackproof bench`` did not make all of the runs that failed or are unproven. If only
    references are missing in these runs, the command accepts the plan's numbers. Otherwise, a single such run
    is repeated. If there are several, and all runs are of one suite, the command repeats the suite. Without a
    common suite, the command repeats only the benchmarks of those runs.
    """
    gating_runs = [run for run in runs if run.verdict.gates]
    if not verdict.gates or not gating_runs or not all(map(_can_be_repeated, gating_runs)):
        return "", ""
    plan_id = gating_runs[0].plan_id
    if len(gating_runs) == 1:
        advice, command = step_after_run(gating_runs[0], results)
        return advice, command.replace(gating_runs[0].run_id, plan_id or gating_runs[0].run_id)
    if plan_id and all(map(_lacks_a_reference_alone, gating_runs)):
        return _accept(plan_id, results)
    return _again_after_several(runs, gating_runs)


def _again_after_several(runs: Sequence[Run], gating_runs: Sequence[Run]) -> tuple[str, str]:
    """Return advice and the command that repeats the common suite of runs, or the bad runs' benchmarks."""
    suites = {run.suite for run in runs}
    if len(suites) == 1 and "" not in suites:
        return _again(_nodes(runs), {"suite": suites.pop()})
    return _again(
        _nodes(gating_runs), {"benchmark": list(dict.fromkeys(run.benchmark for run in gating_runs))}
    )


def _can_be_repeated(run: Run) -> bool:
    """Return whether ``rackproof bench`` made the run, so that the same command can make it again."""
    # The records of nights and of re-imaging have no launcher.
    return run.provenance == "ran" and bool(run.launcher) and bool(run.asked_nodes)


def _lacks_a_reference_alone(run: Run) -> bool:
    """Return whether a run is not a pass only because references of some of its speeds are missing."""
    has_findings = any(finding.verdict not in (None, Verdict.PASS) for finding in run.findings)
    open_ones = [judgement for judgement in run.judgements if judgement.verdict is not Verdict.PASS]
    waiting = [
        judgement
        for judgement in open_ones
        if judgement.reason.startswith(NO_REFERENCE) and judgement.value is not None
    ]
    return (
        not has_findings
        and bool(waiting)
        and all(judgement in waiting or not judgement.gating for judgement in open_ones)
    )


def _accept(name: str, results: Path | None) -> tuple[str, str]:
    """Return advice and the command that accepts the numbers of a run or plan as references."""
    command = add_results_everywhere(f"rackproof accept {sanitize(name, 130)}", results)
    return "If the machine was idle and the numbers are good:", command


def _again(nodes: Sequence[str], options: dict[str, object]) -> tuple[str, str]:
    """Return advice and the command that runs benchmarks on nodes again, with these variables (``-e``)."""
    arguments = ["rackproof", "bench", "-l", ",".join(nodes)]
    (name, value), *_ = options.items()
    if len(options) == 1 and isinstance(value, str):
        arguments += ["-e", f"{name}={value}"]
    else:
        arguments += ["-e", json.dumps(options)]
    command = sanitize(shell_command(arguments), _LONGEST + 1)
    if len(command) > _LONGEST:
        return "", ""
    return "Once the reason is removed, run it again:", command


def _nodes(runs: Sequence[Run]) -> list[str]:
    """Return the requested nodes of some runs."""
    return sorted({name for run in runs for name in run.asked_nodes})
