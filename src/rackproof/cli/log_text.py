"""Show a parsed log as text, with its verdict, measurements and findings.

``rackproof parse`` prints the text for each log.
"""

from __future__ import annotations

from rackproof.cli.output import SHOWN_FINDINGS, more_line, terminal_width
from rackproof.core.records import Finding, Measurement, ParsedLog, Source
from rackproof.core.text import quantity, sanitize, size
from rackproof.report.terminal import text_table
from rackproof.report.view import label_text

_SHOWN_MEASUREMENTS = 40
"""Largest number of measurements in the table."""


def log_text(log: ParsedLog) -> str:
    """Return the text of a log, its measurements in a table."""
    count = f"{log.lines:,} {'line' if log.lines == 1 else 'lines'}"
    facts = f"{sanitize(log.format, 60)}, {size(log.size_bytes)}, {count}"
    lines = [f"{sanitize(log.file, 300) or 'log'}: {log.verdict.value} ({facts})"]
    if log.measurements:
        # A sweep over message sizes gives hundreds of measurements. --json prints them all.
        measurements = log.measurements[:_SHOWN_MEASUREMENTS]
        rows = [_measurement_row(measurement) for measurement in measurements]
        lines += text_table(("Metric", "Of", "Value", "Read at"), rows, terminal_width(), (0, 1, 3))
        lines += more_line(len(log.measurements) - len(measurements), "measurements")
    lines += [_finding_line(finding) for finding in log.findings[:SHOWN_FINDINGS]]
    lines += more_line(len(log.findings) - SHOWN_FINDINGS, "findings")
    return "\n".join(lines) + "\n"


def _measurement_row(measurement: Measurement) -> tuple[str, ...]:
    """Return a measurement's row of the table."""
    return (
        sanitize(measurement.name),
        label_text(measurement.labels),
        quantity(measurement.value, measurement.unit),
        _line_and_rank(measurement.source),
    )


def _finding_line(finding: Finding) -> str:
    """Return a finding as a line: ``fail: MESSAGE (line 12)``."""
    weight = finding.verdict.value if finding.verdict else "remark"
    place = _line_and_rank(finding.source)
    return f"{weight}: {sanitize(finding.message, 400)}" + (f" ({place})" if place else "")


def _line_and_rank(source: Source) -> str:
    """Return line and rank without the file, which is in the first line of the output."""
    return str(source.model_copy(update={"file": None}))
