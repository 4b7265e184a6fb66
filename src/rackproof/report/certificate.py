"""Build the page of a certificate without its JSON and its signature.

:func:`rackproof.analysis.certificate.page_parts.fill_page` adds these two.
``rackproof evidence make`` calls :func:`certificate_shell`. A certificate answers a catalogue of requirements
with runs and nights as evidence.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rackproof.analysis.certificate.models import Answer, Certificate, EvidencePiece, Requirement
from rackproof.analysis.reference_bounds import judges_speed
from rackproof.core.records import Verdict
from rackproof.core.text import amount, moment, number, quantity, sanitize, shell_command, size
from rackproof.report.certificate_limits import expectation_table, limit_table
from rackproof.report.html import environment, style
from rackproof.report.view import WORDS, Cell, Table, build_table, label_text, verdict_cell

_SHOWN_REASONS = 40
"""Largest number of reasons of an answer on the page."""


def certificate_shell(certificate: Certificate) -> str:
    """Return the HTML page of a certificate, with empty places for its JSON and its signature."""
    catalogue = certificate.catalogue
    return (
        environment()
        .get_template("certificate.html.j2")
        .render(
            kind="Certificate",
            when=moment(certificate.made),
            style=style(),
            title=sanitize(catalogue.title, 200),
            asked=sanitize(", ".join(certificate.asked), 4000),
            verdict=certificate.verdict,
            meaning=_meaning(certificate),
            judged=judged_text(certificate),
            source=sanitize(catalogue.source, 600),
            counts=count_text(certificate, certificate.answers),
            answers=_answer_table(certificate),
            unmeasured=_unmeasured_tables(certificate),
            left_out=[sanitize(text, 600) for text in catalogue.left_out],
            nodes=_hardware_table(certificate),
            pieces=_piece_table(certificate),
            has_nights=any(piece.expected for piece in certificate.evidence),
            limits=limit_table(certificate),
            expected=expectation_table(certificate),
            measured=_judgement_table(certificate),
            files=_file_table(certificate),
            made_by=sanitize(certificate.made_by, 200),
            command=sanitize(shell_command(certificate.command), 600),
            version=sanitize(certificate.rackproof_version, 60),
        )
    )


def _meaning(certificate: Certificate) -> str:
    """Return the meaning of the verdict in one sentence, without a claim of speeds that were not measured."""
    words, measured = WORDS[certificate.verdict], _measured_text(certificate)
    if certificate.verdict.gates or not measured:
        return words
    begin = "Proven good" if certificate.verdict is Verdict.PASS else "Usable, but weaker than it should be,"
    return f"{begin} by health checks. {measured[0].upper()}{measured[1:]}."


def judged_text(certificate: Certificate) -> str:
    """Return what the evidence of the answers consists of, in words."""
    used = _used_pieces(certificate)
    runs, nights = (sum(piece.kind == kind for piece in used) for kind in ("run", "night"))
    parts = [
        *(["health checks"] if nights else []),
        *([amount(runs, "benchmark run")] if runs else []),
    ]
    measured = _measured_text(certificate)
    return "; ".join(filter(None, [" and ".join(parts) or "nothing", measured]))


def _measured_text(certificate: Certificate) -> str:
    """Return on how many nodes a speed was measured, or "" if runs or nights measured one on each node.

    Only the evidence of the answers counts. A run measured a speed on all its nodes if one of its judgements
    is not about quality (:func:`judges_speed`).
    """
    used = _used_pieces(certificate)
    measured = {name for piece in used for name in piece.measured}
    measured |= {
        node.name for piece in used if any(map(judges_speed, piece.judgements)) for node in piece.nodes
    }
    count = len(measured & set(certificate.asked))
    if not count:
        return "no speed was measured"
    asked = len(certificate.asked)
    return "" if count == asked else f"speeds were measured on {count} of {amount(asked, 'node')}"


def _used_pieces(certificate: Certificate) -> list[EvidencePiece]:
    """Return the pieces of evidence that answer a requirement."""
    ids = {piece_id for answer in certificate.answers for piece_id in answer.by}
    return [piece for piece in certificate.evidence if piece.id in ids]


def reasons_text(answer: Answer, most: int, limit: int) -> str:
    """Return the first reasons of an answer in one text, and the number of the others.

    ``most`` is the largest number of reasons, and ``limit`` their largest number of characters together.
    """
    more = max(len(answer.reasons) - most, 0) + answer.more_reasons
    text = sanitize("; ".join(answer.reasons[:most]), limit)
    return f"{text}; and {more} more" if more else text


def count_text(certificate: Certificate, answers: Sequence[Answer]) -> str:
    """Return the numbers of answers by verdict, and of requirements that Rackproof does not measure."""
    counts = Counter(answer.verdict for answer in answers)
    text = ", ".join(f"{counts[verdict]} {verdict.value}" for verdict in Verdict if counts[verdict])
    nothing = len(unmeasured_requirements(certificate))
    unmeasured = f"; Rackproof does not measure {nothing} of the unproven" if nothing else ""
    return f"{amount(len(answers), 'requirement')}: {text}{unmeasured}"


def unmeasured_requirements(certificate: Certificate) -> list[Requirement]:
    """Return the requirements that Rackproof does not measure at all."""
    return [requirement for requirement in certificate.catalogue.requirements if not requirement.is_measured]


def _text(value: object, limit: int = 400) -> Cell:
    """Return a cell of sanitized text."""
    return Cell(sanitize(value, limit))


def _code(value: object, limit: int = 200) -> Cell:
    """Return a cell of sanitized text in a fixed-width font."""
    return Cell(sanitize(value, limit), "code")


def _answer_table(certificate: Certificate) -> Table:
    """Return the table of answers to the requirements that are measured."""
    answers = {answer.id: answer for answer in certificate.answers}
    rows = [
        (
            verdict_cell(answers[requirement.id].verdict),
            Cell(sanitize(requirement.id, 200), "code", note=sanitize(requirement.area, 100)),
            _text(requirement.text, 1000),
            _text(requirement.basis, 1000),
            Cell(reasons_text(answers[requirement.id], _SHOWN_REASONS, 2000)),
            _text(", ".join(answers[requirement.id].by), 1000),
            Cell(moment(until) if (until := answers[requirement.id].until) else ""),
        )
        for requirement in certificate.catalogue.requirements
        if requirement.id in answers and requirement.is_measured
    ]
    columns = ("Answer", "Requirement", "Text", "Judged by", "Why", "Answered by", "Holds until")
    return build_table("The answer to each requirement that is measured, whole or in part", columns, rows)


def _unmeasured_tables(certificate: Certificate) -> list[Table]:
    """Return a table for each area, with the requirements that Rackproof does not measure."""
    areas: dict[str, list[Requirement]] = {}
    for requirement in unmeasured_requirements(certificate):
        areas.setdefault(sanitize(requirement.area, 100) or "Other requirements", []).append(requirement)
    columns = ("Answer", "Requirement", "Text", "Evidence that it needs")
    return [
        build_table(
            area,
            columns,
            [
                (
                    verdict_cell(Verdict.UNPROVEN),
                    _code(row.id),
                    _text(row.text, 1000),
                    _text(row.unmeasured, 500),
                )
                for row in rows
            ],
        )
        for area, rows in areas.items()
    ]


def _hardware_table(certificate: Certificate) -> Table:
    """Return the table of the certified nodes' hardware."""
    rows = [
        (
            _text(node.name),
            _code(node.serial),
            _text(", ".join(f"{gpu.uuid} {gpu.serial}".strip() for gpu in node.gpus), 4000),
            _text(
                ", ".join(
                    f"{name} {value}" for name, value in sorted((node.software | node.firmware).items())
                ),
                1000,
            ),
        )
        for node in certificate.nodes
    ]
    return build_table(
        "Nodes in their last snapshot", ("Node", "Serial number", "GPUs", "Software and firmware"), rows
    )


def _piece_table(certificate: Certificate) -> Table:
    """Return the table of runs and nights that serve as evidence."""
    rows = [
        (
            verdict_cell(piece.verdict),
            _code(piece.id),
            _text(piece.point if piece.kind == "run" else "night"),
            _text(", ".join(node.name for node in piece.nodes), 1000),
            Cell(moment(piece.moment)),
            _code(shell_command(piece.command), 600),
            _text("; ".join([*piece.objections, *_finding_texts(piece)]), 2000),
        )
        for piece in certificate.evidence
    ]
    columns = ("Verdict", "Run or night", "What", "Nodes", "Ended", "Command", "Against it")
    return build_table("Runs and nights", columns, rows)


def _finding_texts(piece: EvidencePiece) -> list[str]:
    """Return the findings of a piece of evidence that are not a pass, each with its node and code."""
    findings = (finding for finding in piece.findings if finding.verdict is not Verdict.PASS)
    return [f"{finding.node} {finding.code}: {finding.text}".strip() for finding in findings]


def _judgement_table(certificate: Certificate) -> Table:
    """Return the table of the judged measurements that count for their run's verdict."""
    rows = [
        (
            verdict_cell(judgement.verdict),
            _code(piece.id),
            _text(f"{judgement.metric} {label_text(judgement.labels)}"),
            Cell(quantity(judgement.value, judgement.unit), "number"),
            Cell(number(judgement.reference.value) if judgement.reference else "", "number"),
        )
        for piece in certificate.evidence
        for judgement in piece.judgements
        if judgement.gating
    ]
    return build_table("Measurements", ("Verdict", "Run", "Measurement", "Value", "Reference"), rows)


def _file_table(certificate: Certificate) -> Table:
    """Return the table of the files behind the evidence."""
    rows = [
        (_code(file.path, 300), _code(file.sha256), Cell(size(file.size_bytes), "number"))
        for piece in certificate.evidence
        for file in piece.files
    ]
    return build_table("Raw files, below the results folder", ("File", "SHA-256", "Size"), rows)
