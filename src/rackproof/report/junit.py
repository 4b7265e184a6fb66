"""JUnit XML, so that a CI system shows verdicts: one suite per run, one case per judgement.

``fail`` is a failure and ``unproven`` an error. What does not gate and is not a pass is skipped.
Each run ends with a case for its own verdict: a cut-off log has no judgement that could fail.
"""

from __future__ import annotations

from collections.abc import Sequence
from xml.etree import ElementTree

from rackproof.core.records import Judgement, Run, Verdict
from rackproof.core.text import elapsed, quantity, sanitize
from rackproof.report import view


def _outcome(case: ElementTree.Element, verdict: Verdict, reason: str, details: str, gating: bool) -> str:
    """Add what happened to a case; return the name of the count it raises, empty for a pass."""
    if verdict in (Verdict.PASS, Verdict.DEGRADED):
        if verdict is Verdict.DEGRADED:
            ElementTree.SubElement(case, "system-out").text = f"degraded: {reason}"
        return ""
    if not gating:
        ElementTree.SubElement(case, "skipped", message=f"{verdict.value}, does not count: {reason}")
        return "skipped"
    tag = "failure" if verdict is Verdict.FAIL else "error"
    ElementTree.SubElement(case, tag, message=reason, type=verdict.value).text = details
    return f"{tag}s"


def _details(one: Judgement) -> str:
    reference = one.reference
    said = [f"measured: {quantity(one.value, one.unit)}"]
    if reference is not None:
        said.append(
            f"reference: {quantity(reference.value, reference.unit)} ({sanitize(reference.source, 300)})"
        )
        said.append(f"allowed: {view.bounds_text(reference) or 'anything'}")
    place = sanitize(one.source, 200)
    return "\n".join([*said, f"read at: {place}"] if place else said)


def _suite(run: Run) -> ElementTree.Element:
    took = elapsed(run.started, run.ended)
    name = sanitize(run.title, 300)
    suite = ElementTree.Element("testsuite", name=name, id=run.run_id)
    totals = {"tests": 0, "failures": 0, "errors": 0, "skipped": 0}
    properties = ElementTree.SubElement(suite, "properties")
    for key, cell in view.fact_pairs(run):
        ElementTree.SubElement(properties, "property", name=key, value=cell.text)

    def case(title: str, verdict: Verdict, reason: str, details: str, gating: bool) -> None:
        element = ElementTree.SubElement(suite, "testcase", classname=name, name=title, time="0")
        count = _outcome(element, verdict, reason, details, gating)
        totals["tests"] += 1
        if count:
            totals[count] += 1

    for one in run.judgements:
        labels = view.label_text(one.labels)
        title = sanitize(one.metric, 200) + (f" [{labels}]" if labels else "")
        case(title, one.verdict, sanitize(one.reason, 1000), _details(one), one.gating)
    why = view.reasons(run)
    case("verdict of the run", run.verdict, why[0], "\n".join(why), True)
    for key, value in totals.items():
        suite.set(key, str(value))
    suite.set("time", f"{took.total_seconds():.3f}" if took is not None else "0")
    if run.started is not None:
        suite.set("timestamp", run.started.isoformat())
    return suite


def _missing_suite(missing: Sequence[str]) -> ElementTree.Element:
    count = str(len(missing))
    suite = ElementTree.Element("testsuite", name="missing runs", tests=count, failures="0", errors=count)
    suite.set("skipped", "0")
    suite.set("time", "0")
    for one in missing:
        name = sanitize(one, 300)
        case = ElementTree.SubElement(suite, "testcase", classname="missing runs", name=name, time="0")
        _outcome(case, Verdict.UNPROVEN, "the run is missing", name, True)
    return suite


def junit(runs: Sequence[Run], title: str = "rackproof", missing: Sequence[str] = ()) -> bytes:
    """Return JUnit XML (UTF-8) of one or several runs; a missing run is an error."""
    root = ElementTree.Element("testsuites", name=sanitize(title, 200))
    suites = [_suite(run) for run in runs]
    if missing or not runs:
        suites.append(_missing_suite(missing or ["every run: nothing ran, so nothing is proven"]))
    for key in ("tests", "failures", "errors", "skipped"):
        root.set(key, str(sum(int(suite.get(key, "0")) for suite in suites)))
    root.extend(suites)
    ElementTree.indent(root)
    content: bytes = ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)
    return content + b"\n"
