"""List the evidence that the score of a folder needs, and find what a run lacks. No I/O.

:mod:`.worker` calls :func:`score_lacks` with the traces of all runs. The table has one row for each field of
:class:`.repeats.RunTrace`, and a test compares the two.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from rackproof.analysis.mlperf.repeats import RunTrace
from rackproof.core.evidence import RequiredEvidence, lacking_evidence, state_of_value
from rackproof.core.records import Finding, Source

_EARLIER_ROUNDS = "the meaning of its absence depends on the round, and on the other runs: `_seed_findings`"
_SOME_HAVE_NONE = "benchmarks and submitters log different values; the other comparisons remain"


def _scores(trace: RunTrace) -> bool:
    """Return whether the run counts as measured. A failed run may lack any evidence."""
    return trace.scores


def _has_stop(trace: RunTrace) -> bool:
    """Return whether a log must have its own start and end: the log of a run that counts, except minigo's."""
    # minigo's evaluation, made later, shows when its target was reached.
    return trace.scores and trace.benchmark != "minigo"


def _row(
    name: str, code: str, needed: Callable[[RunTrace], bool] = _scores, harmless: str = ""
) -> RequiredEvidence[RunTrace]:
    """Return the row of a field of :class:`.repeats.RunTrace`.

    Args:
        name: The name of the field.
        code: The code of the finding on a run that lacks the field.
        needed: A function that returns whether a run needs the field.
        harmless: The reason why a run may lack the field, or "". With a reason, there is no finding.
    """
    return RequiredEvidence(
        name,
        "the log's events",
        lambda trace: state_of_value(getattr(trace, name)),
        code,
        "copy the whole log from its node again",
        needed,
        harmless=harmless,
    )


RUN_OF_SCORE: tuple[RequiredEvidence[RunTrace], ...] = (
    _row("file", "not_read"),
    _row("benchmark", "not_proven"),
    _row("start", "no_duration", _has_stop),
    _row("stop", "no_duration", _has_stop),
    _row("seeds", "no_seed", harmless=_EARLIER_ROUNDS),
    _row("times", "not_proven", _has_stop),
    _row("values", "not_proven", harmless=_SOME_HAVE_NONE),
    _row("neighbours", "not_proven", harmless=_SOME_HAVE_NONE),
    _row("course", "not_proven", _has_stop),
    _row("amounts", "not_proven", harmless=_SOME_HAVE_NONE),
    _row("amount_kind", "course_incomplete", harmless="compared where more than half of the runs state it"),
    _row("early", "training_before_run_start", harmless="it only shows faults of a run"),
    _row("train_samples", "not_proven", harmless=_SOME_HAVE_NONE),
    _row("throughput", "course_incomplete", harmless="compared where more than half of the runs state it"),
    _row("nodes", "nodes_differ", harmless="most published logs name none; runs that do are compared"),
    _row("node_count", "nodes_differ", harmless="compared where more than half of the runs state it"),
    _row("stated_nodes", "system_contradicts", harmless="compared with the description if it is stated"),
    _row("system", "systems_differ", harmless="MLCommons' checker requires it; here the runs are compared"),
    _row("printed", "system_contradicts", harmless="compared with the description if it is printed"),
    _row("settings", "hyperparameters_differ", harmless="compared where it is stated; parse requires them"),
    _row("scores", "not_proven", harmless="one that does not counts as the slowest"),
)
"""The evidence for each run of a score. Compliance, convergence and the number of runs are checked for the
whole folder, in :mod:`.worker` and :mod:`.score`."""


def score_lacks(traces: Iterable[RunTrace]) -> Iterator[Finding]:
    """Yield a finding for each piece of evidence that a run needs and lacks."""
    for trace in traces:
        for lack in lacking_evidence(RUN_OF_SCORE, trace):
            source = Source(file=trace.file or None)
            yield Finding(code=lack.code, verdict=lack.verdict, message=lack.message, source=source)
