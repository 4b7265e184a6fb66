"""Build a submission package from runs, for ``rackproof submission``.

:func:`build_submission` examines the runs, writes a draft beside the output folder, scores the results in the
draft, asks the official checker about the draft, and renames it if every issue is only a remark. The package
is a folder as MLCommons requires it: ``SUBMITTER/results/SYSTEM/BENCHMARK/result_0.txt``,
``SUBMITTER/systems/SYSTEM.json``, and the code.
"""

from __future__ import annotations

import re
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from rackproof import __version__
from rackproof.analysis.mlperf.rounds import read_evidence, refusal, round_of
from rackproof.analysis.mlperf.score import known_rulesets, score_folder
from rackproof.analysis.submission.checking import ask_checker
from rackproof.analysis.submission.description import SystemFile, describe_system
from rackproof.analysis.submission.models import (
    BenchmarkPart,
    CheckerAnswer,
    ChosenRun,
    Issue,
    Submission,
    SubmissionError,
)
from rackproof.analysis.submission.packaging import (
    MANIFEST,
    draft_beside,
    is_run_folder,
    lay_out,
    manifest_of,
    put_in_place,
    refuse_strangers,
    write_draft,
)
from rackproof.analysis.submission.rules import judge_answer, judge_runs, scaling_factor
from rackproof.analysis.submission.runs import by_benchmark, examine_run, result_log
from rackproof.core.records import Run, Verdict, worst

_BENCHMARK = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}")
"""A benchmark's name that may be the name of a folder."""


def build_submission(
    runs: Sequence[tuple[Run, Path]],
    system: SystemFile,
    out: Path,
    *,
    ruleset: str | None = None,
    timeout_s: float = 300,
    known_issues: Sequence[Issue] = (),
) -> Submission:
    """Build the package of one system's runs, check it, and put it at ``out`` if it passes.

    The package is written beside ``out`` and then renamed. If anything is missing or wrong, nothing is
    written to ``out``, and the outcome lists every issue.

    Args:
        runs: The records with their folders, of one or several benchmarks.
        system: The operator's statements about the system.
        out: The output folder, which is absent, empty, or a package that Rackproof wrote.
        ruleset: The round's rules, one of ``known_rulesets()``. Without a ruleset, the logs or their folder
            must show the round.
        timeout_s: Seconds after which each of the official checks is stopped.
        known_issues: Issues that were found when the runs were chosen.

    Raises:
        SubmissionError: No package can be built, because there are no runs, a run is named twice, the logs
            show no round, the output is not a folder, contains other files or lies in the folder of a run, a
            file changed meanwhile, or the disk is full.
        ValueError: The ruleset is unknown (the message lists the known ones), or the time limit is not
            positive.
        ModuleNotFoundError: The package ``mlperf-logging`` is not installed.
    """
    out = out.absolute()
    ruleset = _refuse_arguments(runs, out, ruleset, timeout_s)
    chosen, issues = _examine_runs(runs)
    groups = by_benchmark(chosen)
    unfit_names = _unfit_names(groups)
    description, problems = describe_system(system, chosen)
    issues += [*known_issues, *unfit_names, *problems]
    parts: tuple[BenchmarkPart, ...] = ()
    answer = CheckerAnswer(error="none of the chosen runs can be packed")
    draft = draft_beside(out)
    folder = ""
    try:
        # A benchmark's name becomes the name of a folder, so nothing is written if a name is unfit.
        if groups and not unfit_names:
            files, problems = lay_out(system, description, groups, ruleset=ruleset)
            issues += problems
            write_draft(files, draft)
            parts, answer, problems = _check_draft(
                draft / system.submitter_folder, groups, system, ruleset, timeout_s
            )
            issues += problems
        verdict = _verdict(issues)
        # A pass is not enough, because without a run that can be packed, the checker does not run.
        if verdict is Verdict.PASS and answer.accepted is True:
            _add_results(draft, system, parts, answer, ruleset)
            put_in_place(draft, out)
            folder = str(out / system.submitter_folder)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return Submission(
        verdict=verdict,
        ruleset=ruleset,
        submitter=system.values["submitter"],
        system=system.system,
        division=system.values["division"],
        folder=folder,
        benchmarks=parts,
        description=description,
        issues=tuple(_worst_issues_first(issues)),
        checker=answer,
    )


def _examine_runs(runs: Sequence[tuple[Run, Path]]) -> tuple[list[ChosenRun], list[Issue]]:
    """Return the runs that can be packed, and an issue for each of the others."""
    examined = [examine_run(run, folder) for run, folder in runs]
    return (
        [item for item in examined if isinstance(item, ChosenRun)],
        [item for item in examined if isinstance(item, Issue)],
    )


def _verdict(issues: Sequence[Issue]) -> Verdict:
    """Return the worst verdict of the issues, or a pass if there are only remarks."""
    return worst(issue.verdict or Verdict.PASS for issue in issues) if issues else Verdict.PASS


def _refuse_arguments(
    runs: Sequence[tuple[Run, Path]], out: Path, ruleset: str | None, timeout_s: float
) -> str:
    """Check the arguments and return the ruleset. :func:`build_submission` lists the errors."""
    rulesets = known_rulesets()
    if ruleset is not None and ruleset not in rulesets:
        raise ValueError(f"unknown ruleset {ruleset!r}; known: {', '.join(rulesets)}")
    # `<= 0` would accept NaN.
    if not timeout_s > 0:
        raise ValueError(f"the time limit must be more than 0 s, not {timeout_s}")
    refuse_strangers(out)
    if is_run_folder(out):
        raise SubmissionError(f"{out} lies in the folder of a run; name another folder with --out")
    counts = Counter(run.run_id for run, _ in runs)
    for run_id, count in counts.items():
        if count > 1:
            raise SubmissionError(f"run {run_id} is named more than once; name every run once")
    if not runs:
        raise SubmissionError("no runs were chosen; name them, or use --latest with --benchmark")
    return ruleset or _ruleset_of(runs, rulesets)


def _ruleset_of(runs: Sequence[tuple[Run, Path]], known: Sequence[str]) -> str:
    """Return the ruleset of the round that the runs' logs show.

    Raises:
        SubmissionError: The logs show no round or more than one, or are not of MLPerf Training.
    """
    named = [folder / log.path for run, folder in runs if (log := result_log(run)) is not None]
    evidence = read_evidence(runs[0][1], [path for path in named if path.is_file()])
    chosen = round_of(evidence, known)
    problem = refusal(evidence, "training") or chosen.problem
    if problem:
        raise SubmissionError(problem)
    return chosen.ruleset


def _check_draft(
    package: Path,
    groups: Mapping[str, Sequence[ChosenRun]],
    system: SystemFile,
    ruleset: str,
    timeout_s: float,
) -> tuple[tuple[BenchmarkPart, ...], CheckerAnswer, list[Issue]]:
    """Score each benchmark of a draft, run the official checker, and return the issues of both."""
    issues: list[Issue] = []
    scores = {}
    for benchmark in groups:
        results = package / "results" / system.system / benchmark
        scores[benchmark] = score_folder(results, ruleset=ruleset, timeout_s=timeout_s)
    for benchmark, group in groups.items():
        issues += judge_runs(group, scores[benchmark], system, ruleset=ruleset)
    answer = _answer(package, ruleset, timeout_s)
    issues += judge_answer(answer, groups, scores, system, ruleset=ruleset)
    parts = []
    for benchmark, group in groups.items():
        part = BenchmarkPart(
            benchmark=benchmark,
            runs=tuple(run.run.run_id for run in group),
            runs_needed=scores[benchmark].runs_needed,
            minutes=scores[benchmark].minutes,
            scaling_factor=scaling_factor(answer, benchmark),
        )
        parts.append(part)
    return tuple(parts), answer, issues


def _answer(package: Path, ruleset: str, timeout_s: float) -> CheckerAnswer:
    """Return the official checker's answer, or raise a SubmissionError if the package cannot be copied."""
    try:
        return ask_checker(package, ruleset=ruleset, timeout_s=timeout_s)
    except (OSError, shutil.Error) as error:
        raise SubmissionError(
            f"cannot copy the package for the official checker: {error}; free space for temporary files"
        ) from None


def _unfit_names(groups: Mapping[str, Sequence[ChosenRun]]) -> list[Issue]:
    """Return an issue for each benchmark whose name in the log cannot be a folder's name."""
    return [
        Issue(
            code="benchmark_name",
            verdict=Verdict.FAIL,
            run=group[0].run.run_id,
            file=group[0].log.path,
            message=f"{benchmark!r} is not the name of a benchmark",
            remedy="choose another run",
        )
        for benchmark, group in groups.items()
        if not _BENCHMARK.fullmatch(benchmark)
    ]


def _add_results(
    draft: Path,
    system: SystemFile,
    parts: Sequence[BenchmarkPart],
    answer: CheckerAnswer,
    ruleset: str,
) -> None:
    """Add the files that need the check's result: ``scaling.json`` and the manifest."""
    results = f"{system.submitter_folder}/results/{system.system}"
    write_draft(
        {f"{results}/{name}/scaling.json": text.encode() for name, text in answer.scaling.items()}, draft
    )
    facts = {
        "rackproof_version": __version__,
        "ruleset": ruleset,
        "checked_by": answer.version,
        "runs": {part.benchmark: list(part.runs) for part in parts},
    }
    write_draft({MANIFEST: manifest_of(draft, facts)}, draft)


def _worst_issues_first(issues: Sequence[Issue]) -> list[Issue]:
    """Return the issues with proven faults first and remarks last."""
    weights = {Verdict.FAIL: 0, Verdict.UNPROVEN: 1}
    return sorted(issues, key=lambda issue: 2 if issue.verdict is None else weights.get(issue.verdict, 2))
