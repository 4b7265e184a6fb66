"""Write JUnit XML, so that a CI system shows verdicts.

:func:`junit` writes one suite per run, for ``report.junit.xml`` of runs and plans and for ``rackproof report
--format junit``. A night makes its own suites (:mod:`rackproof.jobs.validate.pages`). Each judgement is a
case. ``fail`` is a failure, and ``unproven`` an error. If such a case does not count for the run's verdict,
it is skipped instead. A degraded case passes with a note. The last case of a run is its verdict, because a
log that was cut off may have no failed judgement.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from xml.etree import ElementTree

from rackproof.core.records import Judgement, Run, Verdict
from rackproof.core.text import elapsed, quantity, sanitize
from rackproof.report import view

_TOTALS = ("tests", "failures", "errors", "skipped")


@dataclass(frozen=True)
class Case:
    """One judged case of a suite.

    Attributes:
        name: The name of the case.
        verdict: The verdict.
        reason: The reason for the verdict, as one line.
        details: The text of a failure or error, which may have several lines.
        gating: Whether the verdict counts. Otherwise, the case cannot fail.
        output: The text beside a case that passes or is degraded.
    """

    name: str
    verdict: Verdict
    reason: str = ""
    details: str = ""
    gating: bool = True
    output: str = ""


def junit_suite(
    name: str,
    cases: Sequence[Case],
    *,
    ident: str = "",
    properties: Sequence[tuple[str, str]] | None = None,
    seconds: str = "0",
) -> ElementTree.Element:
    """Return a suite with its cases counted.

    Args:
        name: The name of the suite. This and all other texts must be sanitized.
        cases: The cases, in their order.
        ident: The id of the suite, or empty for none.
        properties: The names and values of facts about the suite, or None to write none.
        seconds: The time of the suite in seconds, as text.
    """
    suite = ElementTree.Element("testsuite", {"name": name, **({"id": ident} if ident else {})})
    # In JUnit's schema, the properties come before the cases. Readers that validate refuse another
    # order.
    if properties is not None:
        parent = ElementTree.SubElement(suite, "properties")
        for key, value in properties:
            ElementTree.SubElement(parent, "property", name=key, value=value)
    totals = {"tests": len(cases), "failures": 0, "errors": 0, "skipped": 0}
    for case in cases:
        # A judgement itself takes no time. The suite states the time of the run.
        element = ElementTree.SubElement(suite, "testcase", classname=name, name=case.name, time="0")
        total = _add_outcome(element, case)
        if total:
            totals[total] += 1
    for key, count in totals.items():
        suite.set(key, str(count))
    suite.set("time", seconds)
    return suite


def junit_document(name: str, suites: Sequence[ElementTree.Element]) -> bytes:
    """Return suites (of :func:`junit_suite`) as one document in UTF-8, with their counts added up."""
    root = ElementTree.Element("testsuites", name=name)
    for key in _TOTALS:
        root.set(key, str(sum(int(suite.get(key, "0")) for suite in suites)))
    root.extend(suites)
    ElementTree.indent(root)
    content: bytes = ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)
    return content + b"\n"


def _add_outcome(element: ElementTree.Element, case: Case) -> str:
    """Add the outcome of a case to its element. Return the total that it adds to, or "" for a pass."""
    if case.verdict in (Verdict.PASS, Verdict.DEGRADED):
        if case.output:
            ElementTree.SubElement(element, "system-out").text = case.output
        return ""
    if not case.gating:
        message = f"{case.verdict.value}, does not count: {case.reason}"
        ElementTree.SubElement(element, "skipped", message=message)
        return "skipped"
    tag = "failure" if case.verdict is Verdict.FAIL else "error"
    outcome = ElementTree.SubElement(element, tag, message=case.reason, type=case.verdict.value)
    outcome.text = case.details
    return f"{tag}s"


def _details(judgement: Judgement) -> str:
    """Return the measured value, the reference, the allowed range and the place in a log, a line for each."""
    reference = judgement.reference
    lines = [f"measured: {quantity(judgement.value, judgement.unit)}"]
    if reference is not None:
        lines.append(
            f"reference: {quantity(reference.value, reference.unit)} ({sanitize(reference.source, 300)})"
        )
        lines.append(f"allowed: {view.bounds_text(reference) or 'anything'}")
    source = sanitize(judgement.source, 200)
    return "\n".join([*lines, f"read at: {source}"] if source else lines)


def _run_suite(run: Run) -> ElementTree.Element:
    """Return the suite of a run, which ends with a case for the run's verdict."""
    cases = []
    for judgement in run.judgements:
        labels = view.label_text(judgement.labels)
        name = sanitize(judgement.metric, 200) + (f" [{labels}]" if labels else "")
        reason = sanitize(judgement.reason, 1000)
        cases.append(_case(name, judgement.verdict, reason, _details(judgement), gating=judgement.gating))
    reasons = view.verdict_reasons(run)
    cases.append(_case("verdict of the run", run.verdict, reasons[0], "\n".join(reasons)))
    took = elapsed(run.started, run.ended)
    suite = junit_suite(
        sanitize(run.title, 300),
        cases,
        ident=run.run_id,
        properties=[(key, cell.text) for key, cell in view.fact_pairs(run)],
        seconds=f"{took.total_seconds():.3f}" if took is not None else "0",
    )
    if run.started is not None:
        suite.set("timestamp", run.started.isoformat())
    return suite


def _case(name: str, verdict: Verdict, reason: str, details: str, *, gating: bool = True) -> Case:
    """Return a case, with its reason as output if it is degraded."""
    # JUnit has nothing between pass and failure, so a degraded case passes with the reason beside it.
    output = f"degraded: {reason}" if verdict is Verdict.DEGRADED else ""
    return Case(name, verdict, reason, details, gating, output)


def _missing_suite(missing: Sequence[str]) -> ElementTree.Element:
    """Return a suite with an error for each missing run."""
    names = [sanitize(title, 300) for title in missing]
    return junit_suite(
        "missing runs", [Case(name, Verdict.UNPROVEN, "the run is missing", name) for name in names]
    )


def _scores_suite(scores: Sequence[tuple[str, Verdict]]) -> ElementTree.Element:
    """Return a suite with a case for the score of each result's repeats."""
    texts = [(sanitize(text, 300), verdict) for text, verdict in scores]
    return junit_suite("scores of repeats", [_case(text, verdict, text, text) for text, verdict in texts])


def junit(
    runs: Sequence[Run],
    title: str = "rackproof",
    missing: Sequence[str] = (),
    scores: Sequence[tuple[str, Verdict]] = (),
) -> bytes:
    """Return JUnit XML (UTF-8) of runs.

    Args:
        runs: The runs. If there are none, the file contains an error.
        title: The name of the document.
        missing: The titles of runs that are missing. Each is an error.
        scores: The scores of repeats as texts with their verdicts. Each is a case.
    """
    suites = [_run_suite(run) for run in runs]
    # A file without cases shows no failure in a CI system, so add an error if nothing ran.
    if missing or not runs:
        suites.append(_missing_suite(missing or ["every run: nothing ran, so nothing is proven"]))
    if scores:
        suites.append(_scores_suite(scores))
    return junit_document(sanitize(title, 200), suites)
