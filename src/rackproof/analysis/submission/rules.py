"""List the issues of a submission's runs by the rules of a round, for :mod:`.building`. No I/O.

:func:`judge_runs` judges the runs of a benchmark by their score, and :func:`judge_answer` the answer of the
official package checker. Each issue names its remedy.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence

from rackproof.analysis.mlperf.score import FolderScore, RcpResult, RunScore, allowed_failures
from rackproof.analysis.submission.description import SystemFile
from rackproof.analysis.submission.models import CheckerAnswer, ChosenRun, Issue
from rackproof.core.records import Verdict
from rackproof.core.text import amount, sanitize

_WRONG_COUNT, _NO_RCP = "Incorrect number of files in dir", "RCP Test Failed"
"""Beginnings of the package checker's errors that a wrong number of runs causes."""
_PACKED_LOG = re.compile(r"results/[^/]+/([^/]+)/result_(\d{1,4})\.txt")
"""The path of a log in the checker's messages, with its benchmark and its number."""


def judge_runs(
    chosen: Sequence[ChosenRun], score: FolderScore, system: SystemFile, *, ruleset: str
) -> list[Issue]:
    """Return the issues about the runs of one benchmark, for missing or wrong contents.

    Args:
        chosen: The runs, in the order of ``result_<i>.txt``.
        score: The score of the folder with their logs under these names.
        system: The operator's statements about the system.
        ruleset: The ruleset of the round.
    """
    benchmark = chosen[0].benchmark
    by_file = {f"result_{index}.txt": run for index, run in enumerate(chosen)}
    scored = {run.file: run for run in score.runs}
    issues: list[Issue] = []
    if score.runs:
        issues += _count(benchmark, len(chosen), score.runs_needed, ruleset)
    issues += _failed(benchmark, by_file, scored)
    issues += _shared(by_file, scored, system)
    issues += _convergence(benchmark, score, len(chosen))
    issues += _gating_findings(benchmark, by_file, score)
    # Without a gating issue, a score that gates would not block the package.
    if score.verdict.gates and not any(issue.verdict and issue.verdict.gates for issue in issues):
        issues.append(
            Issue(
                code="score",
                verdict=score.verdict,
                file=benchmark,
                message="; ".join(score.reasons[:3]) or "the runs make no score",
                remedy="see docs/using/scoring.md; a higher --timeout helps if the checks were stopped",
            )
        )
    return issues


def _gating_findings(benchmark: str, by_file: Mapping[str, ChosenRun], score: FolderScore) -> Iterator[Issue]:
    """Yield the score's findings that forbid a submission, with the run if it is known."""
    for finding in score.findings:
        if finding.verdict is None or not finding.verdict.gates:
            continue
        chosen_run = by_file.get(finding.source.file or "")
        yield Issue(
            code=finding.code,
            verdict=finding.verdict,
            run=chosen_run.run.run_id if chosen_run else "",
            file=chosen_run.log.path if chosen_run else benchmark,
            message=finding.message,
            remedy="choose another run in its place",
        )


def _count(benchmark: str, count: int, needed: int | None, ruleset: str) -> Iterator[Issue]:
    """Yield an issue if the number of runs is not the required one."""
    if needed is None:
        yield Issue(
            code="unknown_benchmark",
            verdict=Verdict.UNPROVEN,
            file=benchmark,
            message=f"the rules {ruleset} give no number of runs for {benchmark}",
            remedy="choose runs of a benchmark of the round",
        )
    elif count != needed:
        more = f"make {needed - count} more" if count < needed else f"leave {count - needed} out"
        yield Issue(
            code="run_count",
            verdict=Verdict.UNPROVEN,
            file=benchmark,
            message=f"{count} run{'s' * (count != 1)} where the rules require exactly {needed}",
            remedy=f"{more}; `--latest {needed} --benchmark {benchmark}` takes the newest {needed}",
        )


def _failed(
    benchmark: str, by_file: Mapping[str, ChosenRun], scored: Mapping[str, RunScore]
) -> Iterator[Issue]:
    """Yield an issue about each run that is not good.

    The issue is only a remark if at most as many runs are not good as the score drops at each end.
    """
    bad = []
    for file, chosen_run in by_file.items():
        run = scored.get(file)
        against = _reasons_against(chosen_run, run)
        if against:
            bad.append((chosen_run, "; ".join(against), _verdict_against(chosen_run, run)))
    allowed = allowed_failures(benchmark)
    for chosen_run, reasons, verdict in bad:
        if len(bad) <= allowed:
            yield chosen_run.issue(
                code="run_counts_as_slowest",
                message=f"{reasons}; the rules let {allowed} of the runs fail, and drop the slowest",
            )
        else:
            yield chosen_run.issue(
                code="run_refused",
                verdict=verdict,
                message=f"{reasons}; {amount(len(bad), 'run is', 'runs are')} not good, "
                f"at most {allowed} may be",
                remedy="make new runs and hand in the newest; read this one's report first",
            )


def _reasons_against(chosen_run: ChosenRun, run: RunScore | None) -> list[str]:
    """Return the objections to a run from its score and its record, or none if it is good."""
    reasons = [] if run is None or run.scores else [_why_not(run)]
    if chosen_run.run.verdict is not Verdict.PASS:
        first_reason = f" ({sanitize(chosen_run.run.reasons[0], 200)})" if chosen_run.run.reasons else ""
        reasons.append(f"its verdict is {chosen_run.run.verdict.value}{first_reason}")
    return reasons


def _verdict_against(chosen_run: ChosenRun, run: RunScore | None) -> Verdict:
    """Return ``fail`` if a run proves a fault, and ``unproven`` if not."""
    # A run that did not end, or could not be checked, does not prove a fault of the system.
    proven = chosen_run.run.verdict is Verdict.FAIL or (run is not None and run.compliant is False)
    return Verdict.FAIL if proven else Verdict.UNPROVEN


def _why_not(run: RunScore) -> str:
    """Return why the log of a run that does not count as measured does not count."""
    if not run.events:
        return "its log has no readable MLPerf event"
    if run.status != "success":
        return f"its log ends with status {run.status!r}" if run.status else "its log has no run_stop"
    if run.minutes is None:
        return "its log shows no possible duration"
    reason = f": {run.messages[0]}" if run.messages else ""
    return (
        f"its log is not compliant{reason}" if run.compliant is False else f"it could not be checked{reason}"
    )


def _shared(
    by_file: Mapping[str, ChosenRun], scored: Mapping[str, RunScore], system: SystemFile
) -> Iterator[Issue]:
    """Yield the differences between the runs of one result, and between them and the description."""
    first_size: tuple[float, str] | None = None
    first_runs: dict[str, str] = {}
    for file, chosen_run in by_file.items():
        run = scored.get(file)
        # A log without events states nothing to compare.
        if run is None or not run.events:
            continue
        yield from _other_division(chosen_run, run, system)
        if run.global_batch_size:
            first_size = first_size or (run.global_batch_size, chosen_run.run.run_id)
            yield from _other_batch_size(chosen_run, run.global_batch_size, first_size)
        yield from _same_run(chosen_run, first_runs.setdefault(run.digest, chosen_run.run.run_id))


def _other_division(chosen_run: ChosenRun, run: RunScore, system: SystemFile) -> Iterator[Issue]:
    division = system.values["division"]
    if run.division and run.division != division:
        yield chosen_run.issue(
            code="division",
            verdict=Verdict.FAIL,
            message=f"the log is of the division {run.division!r}, the description of {division!r}",
            remedy=f"correct division in {system.file}, or choose runs of that division",
        )


def _other_batch_size(chosen_run: ChosenRun, size: float, first: tuple[float, str]) -> Iterator[Issue]:
    first_size, first_run = first
    if size != first_size:
        yield chosen_run.issue(
            code="batch_size",
            verdict=Verdict.FAIL,
            message=f"its global batch size is {size:g}, that of run {first_run} {first_size:g}",
            remedy="choose runs of one batch size",
        )


def _same_run(chosen_run: ChosenRun, owner: str) -> Iterator[Issue]:
    """Yield an issue if another run, ``owner``, was the first with these events."""
    if owner != chosen_run.run.run_id:
        yield chosen_run.issue(
            code="same_run_twice",
            verdict=Verdict.FAIL,
            message=f"its log has the same events as that of run {owner}: a copy proves nothing",
            remedy="choose another run in its place",
        )


def _convergence(benchmark: str, score: FolderScore, count: int) -> Iterator[Issue]:
    """Yield an issue if a complete set of runs converged too fast, or could not be compared."""
    rcp = score.rcp
    if rcp is None or not rcp.applies or count != score.runs_needed:
        return
    if rcp.passed is False:
        yield Issue(
            code="convergence",
            verdict=Verdict.FAIL,
            file=benchmark,
            message=f"the reference convergence points rule the runs out: {_too_fast(rcp) or rcp.message}",
            remedy="use a global batch size that has reference points, and the reference's hyperparameters; "
            "in place of failed runs make new ones",
        )
    elif rcp.passed is None:
        yield Issue(
            code="convergence",
            verdict=Verdict.UNPROVEN,
            file=benchmark,
            message=f"convergence was not compared: {rcp.message}",
            remedy="see docs/using/scoring.md",
        )


def _too_fast(rcp: RcpResult) -> str:
    """Return by how much the runs converge too fast, or "" if they do not."""
    mean, least = rcp.submission_mean, rcp.smallest_allowed
    if mean is None or least is None or rcp.reference_mean is None or mean >= least:
        return ""
    return (
        f"they need {mean:g} {rcp.unit} on average, the reference {rcp.reference_mean:g}; "
        f"less than {least:g} is too fast to be true"
    )


def judge_answer(
    answer: CheckerAnswer,
    groups: Mapping[str, Sequence[ChosenRun]],
    scores: Mapping[str, FolderScore],
    system: SystemFile,
    *,
    ruleset: str,
) -> list[Issue]:
    """Return the issues that the package checker found, and an issue for each check that it did not make.

    The checker accepts contents that it does not read. For example, it skips benchmarks that are not of the
    round. The answer must therefore show that the checker read every benchmark and the description.
    """
    if answer.accepted is None:
        return [_no_answer(answer, groups)]
    issues: list[Issue] = []
    for benchmark in groups:
        issues += _coverage(benchmark, answer, ruleset)
        issues += _scaling(benchmark, answer, scores[benchmark])
    if answer.accepted is False:
        issues.append(_rejection(answer))
    elif system.values["system_name"] not in answer.described and _describes(ruleset):
        issues.append(
            Issue(
                code="not_checked",
                verdict=Verdict.UNPROVEN,
                file=f"systems/{system.system}.json",
                message="the official checker did not check the system description",
                remedy="report this: it is a fault of Rackproof or of the checker",
            )
        )
    return issues


def _no_answer(answer: CheckerAnswer, groups: Mapping[str, Sequence[ChosenRun]]) -> Issue:
    before = f"; before that it reported: {'; '.join(answer.errors[:3])}" if answer.errors else ""
    reason = f"{answer.error or 'it printed nothing'}{before}"
    return Issue(
        code="checker_gave_no_answer",
        verdict=Verdict.UNPROVEN,
        run=_run_named(reason, groups),
        message=f"the official package checker gave no verdict: {reason}",
        remedy="choose another run in place of one whose log it cannot read; "
        "a higher --timeout helps if it was stopped",
    )


def _coverage(benchmark: str, answer: CheckerAnswer, ruleset: str) -> Iterator[Issue]:
    """Yield an issue if the checker skipped a benchmark, which it does without a message."""
    if answer.allowed and benchmark not in answer.allowed:
        yield Issue(
            code="benchmark_not_in_round",
            verdict=Verdict.FAIL,
            file=benchmark,
            message=f"the round {ruleset} has no {benchmark}; it has {', '.join(answer.allowed)}",
            remedy="name the round of these runs with --ruleset",
        )
    elif benchmark not in answer.checked:
        yield Issue(
            code="not_checked",
            verdict=Verdict.UNPROVEN,
            file=benchmark,
            message="the official package checker did not check this benchmark",
            remedy="report this: it is a fault of Rackproof or of the checker",
        )


def _rejection(answer: CheckerAnswer) -> Issue:
    """Return the issue with the errors of a checker that rejects the package."""
    errors = "; ".join(answer.errors[:5]) or "it named no error"
    wrong_count = any(error.startswith(_WRONG_COUNT) for error in answer.errors)
    only_count = wrong_count and all(error.startswith((_WRONG_COUNT, _NO_RCP)) for error in answer.errors)
    return Issue(
        code="checker_rejects",
        # Errors that follow from a wrong number of runs prove nothing against the runs. Other errors are
        # proven.
        verdict=Verdict.UNPROVEN if only_count else Verdict.FAIL,
        message=f"the official package checker rejects the package: {errors}",
        remedy="repair the listed problems, then run the same command again",
    )


def _run_named(text: str, groups: Mapping[str, Sequence[ChosenRun]]) -> str:
    """Return the id of the run whose log is in a text of the checker, or "" unless there is exactly one."""
    names = {(match[1], int(match[2])) for match in _PACKED_LOG.finditer(text)}
    run_ids = {groups[name][index].run.run_id for name, index in names if index < len(groups.get(name, ()))}
    return run_ids.pop() if len(run_ids) == 1 else ""


def _describes(ruleset: str) -> bool:
    """Return whether the checker checks descriptions in this round, which it does from 1.0 on."""
    return not ruleset.startswith("0.")


def scaling_factor(answer: CheckerAnswer, benchmark: str) -> float | None:
    """Return the factor in the checker's ``scaling.json``, or ``None`` if it is missing or not a number."""
    match = re.fullmatch(r'\{"scaling_factor": ([0-9.eE+-]+)\}', answer.scaling.get(benchmark, ""))
    try:
        return float(match[1]) if match else None
    except ValueError:
        return None


def _scaling(benchmark: str, answer: CheckerAnswer, score: FolderScore) -> Iterator[Issue]:
    """Yield an issue if the factor in the checker's ``scaling.json`` (1 without it) is not the score's."""
    score_factor = score.rcp.scaling_factor if score.rcp is not None and score.rcp.passed else None
    checker_factor = scaling_factor(answer, benchmark)
    if score_factor is not None and not math.isclose(
        score_factor, 1.0 if checker_factor is None else checker_factor, rel_tol=1e-9
    ):
        yield Issue(
            code="scaling_differs",
            verdict=Verdict.UNPROVEN,
            file=f"{benchmark}/scaling.json",
            message=f"the package checker writes {checker_factor}, the score has {score_factor:.9g}",
            remedy="report this: one of the two reads the logs differently",
        )
