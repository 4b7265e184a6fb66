"""Prepare the content of reports as tables of sanitized text, for HTML, Markdown, JUnit and the terminal.

A report calls one function for each part, such as :func:`overview_table` and :func:`measurement_table`, which
return a :class:`Table`. The texts in a record come from nodes and logs, so they pass through
:func:`rackproof.core.text.sanitize` here. They may still contain markup, which the modules that write a
format escape. Jobs validate and bench and some commands also use these functions.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from urllib.parse import quote

from rackproof.analysis.intervals import mean
from rackproof.analysis.representative import SIZE_LABEL, pick_representative
from rackproof.core.judging import NO_REFERENCE
from rackproof.core.records import (
    Dataset,
    Direction,
    Finding,
    Judgement,
    Measurement,
    Node,
    Reference,
    Run,
    Spread,
    Verdict,
    worst,
)
from rackproof.core.secret_names import hide_secrets
from rackproof.core.text import (
    NOTHING,
    amount,
    duration,
    elapsed,
    moment,
    number,
    percent,
    quantity,
    sanitize,
    shell_command,
    size,
    unit_text,
    whole_number,
)

MAX_ROWS = 400
"""Largest number of rows in a table. Pages and Markdown state how many rows are left out."""

_MAX_REASONS = 12
"""Largest number of reasons, or of descriptions of runs, at the top of a plan's report."""

SYMBOLS = {Verdict.PASS: "✓", Verdict.DEGRADED: "▲", Verdict.FAIL: "✕", Verdict.UNPROVEN: "?"}
WORDS = {
    Verdict.PASS: "Proven good: everything that counts was measured and lies within its bounds.",
    Verdict.DEGRADED: "Usable, but weaker than it should be.",
    Verdict.FAIL: "Not good: at least one thing that counts is wrong.",
    Verdict.UNPROVEN: "Not proven: something needed for a verdict is missing or cannot be trusted.",
}

# A run with one of these measurements trains nothing. The time to train in its log is the probe's duration.
_PROBED = ("gemm_best", "memory_copy", "host_to_device", "peer_copy", "all_reduce_busbw", "wrong_values")
# Metrics that are shown first, in this order, if a run measured them.
_PRINCIPAL = (
    *_PROBED,
    "time_to_train",
    "samples_per_second",
    "images_per_second",
    "tokens_per_second",
    "iterations_per_second",
    "batches_per_second",
    "epochs_per_minute",
    "eval_accuracy",
    "seconds_per_epoch",
    "epochs",
    "train_loss",
    "startup_time",
)


@dataclass(frozen=True)
class Cell:
    """One cell of a table.

    Attributes:
        text: The sanitized text.
        kind: The style: ``text``, ``number``, ``code`` or ``verdict``.
        verdict: The verdict to show in place of the text, with its symbol.
        href: The target of a link, or "".
        note: A remark in small print, or in brackets.
        gauge: The positions for a bullet chart, which only pages show.
    """

    text: str = ""
    kind: str = "text"
    verdict: Verdict | None = None
    href: str = ""
    note: str = ""
    gauge: Gauge | None = None


@dataclass(frozen=True)
class Gauge:
    """The positions of a value, its reference and its bounds, in per cent (0 to 100) of the drawn width."""

    value: float
    reference: float
    low: float
    high: float


@dataclass(frozen=True)
class Table:
    """A table of a report, with a caption.

    ``omitted`` is the number of rows beyond :data:`MAX_ROWS`, which ``rows`` lacks. ``numeric`` has the
    indices of the columns that are aligned as numbers.
    """

    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    omitted: int = 0
    numeric: frozenset[int] = field(default_factory=frozenset)


def build_table(caption: str, columns: Sequence[str], rows: Iterable[Sequence[Cell]]) -> Table:
    """Build a table of at most :data:`MAX_ROWS` rows.

    A column is numeric if at least one of its cells is a number, and the others are numbers or empty.
    """
    every = [tuple(row) for row in rows]
    shown_rows = tuple(every[:MAX_ROWS])
    numeric = frozenset(
        index
        for index in range(len(columns))
        if any(row[index].kind == "number" for row in shown_rows)
        and all(row[index].kind == "number" or not row[index].text for row in shown_rows)
    )
    return Table(caption, tuple(columns), shown_rows, len(every) - len(shown_rows), numeric)


def _text(value: object, limit: int = 300) -> Cell:
    """Return a cell of sanitized text."""
    return Cell(sanitize(value, limit))


def _code(value: object, limit: int = 600) -> Cell:
    """Return a cell of sanitized text that is shown in a fixed-width font."""
    return Cell(sanitize(value, limit), "code")


def _number(text: str) -> Cell:
    """Return a cell with a formatted number."""
    return Cell(text, "number")


def verdict_cell(verdict: Verdict, note: str = "") -> Cell:
    """Return the cell of a verdict, with only the word. The page, Markdown or terminal adds the symbol."""
    return Cell(verdict.value, "verdict", verdict, note=note)


def metric_words(name: str) -> str:
    """Turn a metric's name into words: ``seconds_per_epoch`` into ``seconds per epoch``."""
    return sanitize(name, 200).replace("_", " ")


def label_text(labels: dict[str, str], limit: int = 160) -> str:
    """Format labels on one line: ``gpu 3, 8 MiB``. A size in bytes is shown with a unit."""
    parts = []
    for key, value in labels.items():
        value_text = sanitize(value, 80)
        if key == SIZE_LABEL and (size_bytes := whole_number(value_text)) is not None:
            parts.append(size(size_bytes))
        else:
            parts.append(f"{sanitize(key, 40)} {value_text}")
    return sanitize(", ".join(parts), limit)


def point_text(run: Run, limit: int = 160) -> str:
    """Format a run's point of the matrix on one line: ``batch_size=128 gpus=1``."""
    return sanitize(" ".join(f"{key}={value}" for key, value in run.parameters.items()), limit)


def relative_deviation(judgement: Judgement) -> float | None:
    """Return the distance of a value from its reference as a fraction of the reference's absolute value.

    The result is None if it is undefined: without a finite value, without a reference, and for a reference
    of 0.
    """
    reference = judgement.reference
    if judgement.value is None or reference is None or not reference.value:
        return None
    if not math.isfinite(judgement.value):
        return None
    return (judgement.value - reference.value) / abs(reference.value)


def bounds_text(reference: Reference) -> str:
    """Format the allowed range in the reference's unit: ``≥ 744``, ``744 to 944``, or "" without bounds."""
    # A fraction is of the absolute value. The lower bound is below the reference even if that is
    # negative.
    low = None if reference.low is None else reference.value + abs(reference.value) * reference.low
    high = None if reference.high is None else reference.value + abs(reference.value) * reference.high
    if low is not None and low == high:
        return f"exactly {number(low)}"
    if low is not None and high is not None:
        return f"{number(low)} to {number(high)}"
    if low is not None:
        return f"≥ {number(low)}"
    return "" if high is None else f"≤ {number(high)}"


def judgement_gauge(judgement: Judgement) -> Gauge | None:
    """Return the position of the value relative to its bounds, or None if that cannot be drawn."""
    reference, off = judgement.reference, relative_deviation(judgement)
    if reference is None or off is None:
        return None
    low, high = _drawn_bounds(reference, off)
    if not (math.isfinite(low) and math.isfinite(high)) or high <= low:
        return None
    # Add a quarter on either side, so that a value just outside its bounds is drawn outside.
    margin = (high - low) * 0.25
    start, end = low - margin, high + margin

    def x_of(fraction: float) -> float:
        return round(min(max((fraction - start) / (end - start), 0.0), 1.0) * 100, 2)

    shown_low = 0.0 if reference.low is None else x_of(low)
    shown_high = 100.0 if reference.high is None else x_of(high)
    return Gauge(x_of(off), x_of(0.0), shown_low, shown_high)


def _drawn_bounds(reference: Reference, off: float) -> tuple[float, float]:
    """Return both bounds as distances from the reference, as fractions of it.

    ``off`` is this distance of the value. An open side is drawn so far away that the value is not at its end.
    """
    room = max(3 * abs(off), 0.03)
    low = reference.low if reference.low is not None else (reference.high or 0.0) - room
    high = reference.high if reference.high is not None else (reference.low or 0.0) + room
    return low, high


def spread_text(spread: Spread | None) -> str:
    """Write the spread of a measurement's samples (``98 to 104 (200 samples)``), or "" if there is none."""
    if spread is None:
        return ""
    return f"{number(spread.low)} to {number(spread.high)} ({amount(spread.count, 'sample')})"


def _short_spread(spread: Spread | None) -> str:
    """Write half the width of a spread in per cent of its median (``±3 %``), or "" if it is below 0.5 %."""
    if spread is None or not spread.median:
        return ""
    half = (spread.high - spread.low) / 2 / abs(spread.median)
    return f"±{100 * half:.0f} %" if half >= 0.005 else ""


def _sort_key(judgement: Judgement) -> tuple[int, int]:
    """Return the sort key of judgements: first whether they count, then how bad they are."""
    order = {Verdict.FAIL: 0, Verdict.UNPROVEN: 1, Verdict.DEGRADED: 2, Verdict.PASS: 3}
    return (0 if judgement.gating else 1, order[judgement.verdict])


def judgement_table(run: Run) -> Table:
    """Return the table of judgements, with measurement, reference, verdict and reason."""
    rows = []
    for judgement in sorted(run.judgements, key=_sort_key):
        reference = judgement.reference
        rows.append(
            (
                verdict_cell(judgement.verdict, "" if judgement.gating else "does not count"),
                Cell(metric_words(judgement.metric), note=label_text(judgement.labels)),
                Cell(quantity(judgement.value, judgement.unit), "number", note=spread_text(judgement.spread)),
                _number(quantity(reference.value, reference.unit) if reference else "none"),
                _number(bounds_text(reference) if reference else ""),
                Cell(percent(relative_deviation(judgement)), "number", gauge=judgement_gauge(judgement)),
                _text(judgement.reason, 600),
                _text(reference.source if reference else ""),
                _code(judgement.source, 200),
            )
        )
    columns = (
        "Verdict",
        "Metric",
        "Measured",
        "Reference",
        "Allowed",
        "Deviation",
        "Reason",
        "Reference from",
        "Read at",
    )
    return build_table("Every measurement that was judged, worst first", columns, rows)


def measurement_table(run: Run) -> Table:
    """Return the table of measurements with unit, direction and place in the log."""
    better = {Direction.HIGHER: "higher", Direction.LOWER: "lower", None: ""}
    rows = [
        (
            _text(metric_words(measurement.name)),
            _text(label_text(measurement.labels)),
            Cell(
                quantity(measurement.value, measurement.unit), "number", note=spread_text(measurement.spread)
            ),
            _text(better[measurement.direction]),
            _code(measurement.source, 200),
        )
        for measurement in run.measurements
    ]
    return build_table("Everything that was measured", ("Metric", "Of", "Value", "Better", "Read at"), rows)


def finding_table(run: Run) -> Table:
    """Return the table of findings from logs and nodes, the worst first and remarks last."""
    order = {Verdict.FAIL: 0, Verdict.UNPROVEN: 1, Verdict.DEGRADED: 2, Verdict.PASS: 3, None: 4}

    def weight(finding: Finding) -> str:
        return {
            Verdict.FAIL: "fails the run",
            Verdict.UNPROVEN: "rules out a pass",
            Verdict.DEGRADED: "weakens a pass",
        }.get(finding.verdict or Verdict.PASS, "a remark")

    rows = [
        (
            verdict_cell(finding.verdict, weight(finding)) if finding.verdict else Cell("remark"),
            Cell(sanitize(finding.message, 1000), note=sanitize(finding.code, 80)),
            _code(finding.source, 200),
            _code(finding.excerpt),
        )
        for finding in sorted(run.findings, key=lambda item: order[item.verdict])
    ]
    return build_table(
        "What the logs and nodes show besides numbers", ("Weight", "Finding", "Place", "Excerpt"), rows
    )


def _node_name(node: Node) -> str:
    """Return a node's name, with its hostname if that differs, because ``localhost`` may be any machine."""
    has_other_name = node.hostname and node.hostname.partition(".")[0] != node.name.partition(".")[0]
    return f"{node.name} ({node.hostname})" if has_other_name else node.name


def node_table(run: Run) -> Table:
    """Return the table of nodes as they were when the run started."""
    rows = [
        (
            _text(_node_name(node)),
            _text(node.sku),
            _text(node.product),
            _code(node.serial or node.chassis_serial, 100),
            _text(", ".join(node.addresses), 200),
            _text(
                f"{node.cpu_count} \N{MULTIPLICATION SIGN} {node.cpu}"
                if node.cpu_count and node.cpu
                else node.cpu or ""
            ),
            _number(size(node.memory_bytes) if node.memory_bytes else NOTHING),
            _number(str(len(node.gpus))),
        )
        for node in run.nodes
    ]
    columns = ("Node", "SKU", "Product", "Serial", "Addresses", "CPU", "Memory", "GPUs")
    return build_table("Nodes", columns, rows)


def gpu_table(run: Run) -> Table:
    """Return the table of all GPUs of a run's nodes, with their UUIDs."""
    rows = [
        (
            _text(node.name),
            _number(str(gpu.index)),
            _text(gpu.name),
            _code(gpu.uuid, 100),
            _code(gpu.serial, 60),
            _code(gpu.bus_id, 40),
            _code(gpu.vbios, 40),
            _number(size(gpu.memory_bytes) if gpu.memory_bytes else NOTHING),
            _number(quantity(gpu.power_limit_w, "W")),
        )
        for node in run.nodes
        for gpu in node.gpus
    ]
    columns = ("Node", "GPU", "Name", "UUID", "Serial", "Bus", "VBIOS", "Memory", "Power limit")
    return build_table("GPUs", columns, rows)


def software_table(run: Run) -> Table:
    """Return the table of software and firmware versions.

    If nodes differ, the table names each version's nodes.
    """
    rows = [
        (_text("workload"), _text(name), _code(version, 200), _text("as the workload reports"))
        for name, version in sorted(run.software.items())
        if version
    ]
    for (kind, name), versions in sorted(_nodes_by_version(run.nodes).items()):
        # The most common value comes first, and then the exceptions.
        for version, nodes in sorted(versions.items(), key=lambda item: -len(item[1])):
            place = _where_text(nodes, len(run.nodes))
            rows.append((_text(kind), _text(name), _code(version, 200), _text(place)))
    return build_table("Versions as found when the run started", ("Kind", "Name", "Version", "Where"), rows)


def _nodes_by_version(nodes: Iterable[Node]) -> dict[tuple[str, str], dict[str, list[str]]]:
    """Return the nodes with each version of a software, by its kind and name."""
    hosts: dict[tuple[str, str], dict[str, list[str]]] = {}
    for node in nodes:
        for kind, facts in (("node", node.software), ("firmware", node.firmware)):
            for name, version in facts.items():
                hosts.setdefault((kind, name), {}).setdefault(version, []).append(node.name)
    return hosts


def _where_text(nodes: Sequence[str], total: int) -> str:
    """Return the names of the nodes with a version, or "every node". A single node is named."""
    if len(nodes) != total:
        return f"{len(nodes)} of {total}: " + sanitize(", ".join(nodes), 200)
    return "every node" if len(nodes) > 1 else sanitize(nodes[0], 80)


def log_href(path: str) -> str:
    """Return a relative link to a raw log beside the report, or "" if the path leads elsewhere."""
    parts = PurePosixPath(path).parts
    # The path is from a record, which may be from anywhere. No link may lead out of the folder.
    if not parts or path.startswith(("/", "\\")) or ".." in parts or sanitize(path, 1000) != path:
        return ""
    return "./" + quote(path)


def log_table(run: Run) -> Table:
    """Return the table of the raw logs that are stored with the run."""
    rows = [
        (
            Cell(sanitize(log.path, 300), "code", href=log_href(log.path)),
            _text(log.format),
            verdict_cell(log.verdict),
            _number(size(log.size_bytes)),
            _code(log.sha256, 80),
        )
        for log in run.logs
    ]
    return build_table(
        "Raw logs, kept beside this report", ("Log", "Format", "Own verdict", "Size", "SHA-256"), rows
    )


def _environment_text(run: Run) -> str:
    """Return a run's environment variables on one line, without the values of secrets."""
    return " ".join(f"{key}={value}" for key, value in hide_secrets(run.environment).items())


def fact_pairs(run: Run) -> tuple[tuple[str, Cell], ...]:
    """Return the names and values of a run's facts that are not empty: ``("Suite", Cell("quick"))``."""
    pairs = (
        ("Description", _text(run.description, 1000)),
        ("Benchmark", _text(run.benchmark)),
        ("Suite", _text(run.suite)),
        ("Point", _text(point_text(run))),
        *_time_pairs(run),
        *_node_pairs(run),
        ("Launched with", _text(run.launcher)),
        # Quoted for a shell, so that it can be pasted there.
        ("Command", _code(shell_command(run.command), 2000)),
        ("Environment", _code(_environment_text(run), 2000)),
        ("Container", _code(container_text(run), 400)),
        ("Configuration", _code(run.configuration, 1000)),
        *_data_pairs(run.dataset),
        ("Storage", _text(run.storage)),
        ("Network", _text(run.network)),
        ("Seeds", _text(", ".join(str(seed) for seed in run.seeds))),
        ("Exit status", _text("" if run.exit_status is None else run.exit_status)),
        ("Provenance", _text("ran by Rackproof" if run.provenance == "ran" else "imported: made elsewhere")),
        ("Run", _code(run.run_id)),
        ("Plan", _code(run.plan_id)),
        ("Definition SHA-256", _code(run.definition_sha256, 80)),
        ("Rackproof", _text(run.rackproof_version)),
        ("Notes", _text(run.notes, 2000)),
    )
    return tuple((name, cell) for name, cell in pairs if cell.text)


def _time_pairs(run: Run) -> tuple[tuple[str, Cell], ...]:
    """Return the names and values of a run's times."""
    took = elapsed(run.started, run.ended)
    return (
        ("Started", _text(moment(run.started) if run.started else "")),
        ("Ended", _text(moment(run.ended) if run.ended else "")),
        ("Took", _text(duration(took.total_seconds()) if took is not None else "")),
    )


def _node_pairs(run: Run) -> tuple[tuple[str, Cell], ...]:
    """Return the names and values of the nodes that a run used, and of requested nodes not used by it."""
    hosts = [_node_name(node) for node in run.nodes]
    names = {node.name for node in run.nodes}
    missing = [name for name in run.asked_nodes if name not in names]
    return (
        ("Nodes used", _text(f"{len(hosts)}: {', '.join(hosts)}" if hosts else "", 600)),
        ("Requested, not used", _text(", ".join(missing), 600)),
    )


def _data_pairs(dataset: Dataset | None) -> tuple[tuple[str, Cell], ...]:
    """Return the names and values of a run's dataset."""
    if dataset is None:
        return ()
    amount = ", ".join(data_amount(dataset))
    data = "; ".join(part for part in (dataset.name, dataset.source, amount) if part)
    return (("Dataset", _text(data, 600)), ("Dataset SHA-256", _code(dataset.sha256, 80)))


def data_amount(dataset: Dataset) -> list[str]:
    """Return a dataset's number of objects and its size as texts. An unknown value has no text."""
    amount = []
    if dataset.objects is not None:
        amount.append(f"{dataset.objects:,} objects")
    if dataset.size_bytes is not None:
        amount.append(size(dataset.size_bytes))
    return amount


def container_text(run: Run) -> str:
    """Return a run's container and digest on one line, or "" if it ran without a container."""
    # A tag, or the base image of a build, may refer to another image the next time.
    unpinned = "(image not pinned)" if run.container and "sha256:" not in run.container else ""
    return " ".join(part for part in (run.container, run.container_digest, unpinned) if part)


def verdict_reasons(run: Run) -> tuple[str, ...]:
    """Return the reasons for the verdict as sanitized texts, at least one, the most important first.

    If the record states none, they are the first judgements that count and are not a pass, or one sentence.
    """
    stated = tuple(sanitize(reason, 1000) for reason in run.reasons if sanitize(reason))
    if stated:
        return stated
    counted = [
        judgement
        for judgement in run.judgements
        if judgement.gating and judgement.verdict is not Verdict.PASS
    ]
    if counted:
        return tuple(
            f"{metric_words(judgement.metric)}: {sanitize(judgement.reason, 600)}"
            for judgement in counted[:5]
        )
    if run.verdict is Verdict.PASS:
        return (verdict_meaning(run),)
    return (f"{WORDS[run.verdict]} The record gives no reason.",)


def verdict_meaning(run: Run) -> str:
    """Describe the meaning of a run's verdict in one sentence."""
    if run.verdict is Verdict.PASS and not run.judgements and not run.logs and run.provenance == "ran":
        return "The work ended well on all nodes. Nothing was measured."
    if run.verdict is Verdict.PASS and not run.judgements:
        return "The log shows a run that ended well. Nothing in it was judged against a reference."
    return plan_meaning([run], run.verdict, run.run_id)


def plan_meaning(runs: Sequence[Run], verdict: Verdict, name: str) -> str:
    """Describe the meaning of a verdict over several runs in one sentence.

    For a pass, the sentence mentions speeds that were not judged.

    Args:
        runs: The runs that the verdict covers.
        verdict: The verdict that is shown.
        name: The run or plan, as `rackproof accept` takes it.
    """
    open_speeds = speeds_not_judged(runs, name)
    return f"Correct; {open_speeds}" if verdict is Verdict.PASS and open_speeds else WORDS[verdict]


def speeds_not_judged(runs: Iterable[Run], name: str) -> str:
    """Describe how many speeds were not judged, why, and the remedy, or return "". No I/O.

    Measured values whose judgement is unproven and does not count are such speeds. ``name`` is the run or
    plan, as `rackproof accept` takes it.
    """
    no_reference, causes = 0, list[str]()
    for run in runs:
        for judgement in run.judgements:
            if judgement.verdict is Verdict.UNPROVEN and judgement.value is not None and not judgement.gating:
                if judgement.reason.startswith(NO_REFERENCE):
                    no_reference += 1
                else:
                    causes.append(_cause_of(judgement.reason))
    parts = []
    if no_reference:
        parts.append(
            f"{amount(no_reference, 'speed')} not judged: no reference. "
            f"If the machine was idle, run `rackproof accept {name}`."
        )
    if causes:
        more = ", and other causes" if len({*causes}) > 1 else ""
        parts.append(
            f"{amount(len(causes), 'speed')} not judged: {causes[0]}{more}. See the reasons, then run again."
        )
    return " ".join(parts)


def _cause_of(reason: str) -> str:
    """Return the beginning of a reason, which names the cause. The rest has figures and remedies."""
    return sanitize(re.split("[:;] ", reason)[0], 200)


@dataclass(frozen=True)
class Headline:
    """A number at the top of a report.

    ``figure`` is the number as text, and ``spread`` is half the spread of its samples, such as ``±3 %``.
    ``verdict`` is None if the number was not judged.
    """

    name: str
    figure: str
    unit: str = ""
    note: str = ""
    verdict: Verdict | None = None
    spread: str = ""

    @property
    def amount(self) -> str:
        """Return number and unit on one line."""
        return f"{self.figure} {self.unit}".strip()

    @property
    def value(self) -> str:
        """Return figure, unit and spread on one line."""
        return f"{self.amount} {self.spread}".strip()

    @property
    def brief(self) -> str:
        """Return name and value on one line, or the value alone if the name repeats its unit."""
        if self.name in (self.unit, self.unit.replace("/", " per ").replace(" per s", " per second")):
            return self.value
        return f"{self.name} {self.value}"


def _headline(
    name: str, judgement: Judgement | Measurement, note: str = "", verdict: Verdict | None = None
) -> Headline:
    """Return the headline of a measurement or judgement. Unit and figure are separate if possible."""
    figure, spread = quantity(judgement.value, judgement.unit), _short_spread(judgement.spread)
    unit_shown = unit_text(judgement.unit)
    if unit_shown and figure.endswith(f" {unit_shown}"):
        return Headline(
            metric_words(name), figure.removesuffix(f" {unit_shown}"), unit_shown, note, verdict, spread
        )
    return Headline(metric_words(name), figure, "", note, verdict, spread)


def main_measurements(run: Run, limit: int = 4) -> tuple[Headline, ...]:
    """Return the few numbers that represent a run.

    Judged numbers come first. Both judged and other numbers are in the order of :data:`_PRINCIPAL`.

    The worst judgement that counts represents a metric with several judgements. For other measurements
    with one name, :func:`~rackproof.analysis.representative.pick_representative` chooses.
    """
    judged = _judged_headlines(run)
    unjudged = _other_headlines(run, judged.keys())
    ordered = (*_in_principal_order(judged), *_in_principal_order(unjudged))
    return ordered[:limit]


def _judged_headlines(run: Run) -> dict[str, Headline]:
    """Return the worst judgement that counts, by metric."""
    judged: dict[str, Headline] = {}
    for judgement in sorted(run.judgements, key=_sort_key):
        if judgement.gating and judgement.value is not None and judgement.metric not in judged:
            note = label_text(judgement.labels, 80)
            judged[judgement.metric] = _headline(judgement.metric, judgement, note, judgement.verdict)
    return judged


def _other_headlines(run: Run, judged: Collection[str]) -> dict[str, Headline]:
    """Return the measurements that were not judged, by name."""
    groups: dict[str, list[Measurement]] = {}
    is_probe = any(measured.name in _PROBED for measured in run.measurements)
    for measured in run.measurements:
        if measured.name not in judged and not (is_probe and measured.name == "time_to_train"):
            groups.setdefault(measured.name, []).append(measured)
    headlines = {}
    for name, group in groups.items():
        chosen = pick_representative(group)
        note = label_text(chosen.labels, 80)
        if len(group) > 1:
            note = sanitize(f"of {len(group)}: {note}" if note else f"of {len(group)}", 100)
        headlines[name] = _headline(name, chosen, note)
    return headlines


def _in_principal_order(headlines: Mapping[str, Headline]) -> list[Headline]:
    """Return headlines in the order of _PRINCIPAL. All others follow by name."""
    rank = {name: index for index, name in enumerate(_PRINCIPAL)}
    names = sorted(headlines, key=lambda name: (rank.get(name, len(rank)), name))
    return [headlines[name] for name in names]


def hardware_text(run: Run) -> str:
    """Describe a run's hardware briefly, as its nodes by SKU with their GPUs or CPU, or return ""."""
    kinds = Counter(_node_kind(node) for node in run.nodes)
    kind_texts = [_times(count, kind) if count > 1 else kind for kind, count in kinds.items()]
    return sanitize(", ".join(kind_texts), 200)


def _node_kind(node: Node) -> str:
    """Describe a node by its SKU, if it has one, and its GPUs or else its CPU."""
    names = Counter(gpu.name or "GPU" for gpu in node.gpus)
    inside = " + ".join(_times(count, name) for name, count in names.items()) or node.cpu or "CPU"
    return f"{node.sku} ({inside})" if node.sku else inside


def _times(count: int, name: str) -> str:
    """Return a name with its number in front."""
    return f"{count} \N{MULTIPLICATION SIGN} {name}"


def overview_table(runs: Sequence[Run], link: Callable[[Run], str] | None = None) -> Table:
    """Return a table of all runs of a plan, one row each, in plan order."""
    rows = []
    for run in runs:
        took = elapsed(run.started, run.ended)
        main = "; ".join(measurement.brief for measurement in main_measurements(run, 2))
        plain = run.verdict is Verdict.PASS and not run.reasons
        rows.append(
            (
                verdict_cell(run.verdict),
                Cell(sanitize(run.benchmark, 200), href=link(run) if link else "", note=point_text(run)),
                Cell(sanitize(", ".join(map(_node_name, run.nodes)), 120), note=hardware_text(run)),
                _text(main),
                _text("" if plain else verdict_reasons(run)[0], 300),
                _number(duration(took.total_seconds()) if took is not None else NOTHING),
            )
        )
    columns = ("Verdict", "Benchmark", "Ran on", "Main measurements", "Reason", "Took")
    return build_table("All runs, in the order of the plan", columns, rows)


def first_measurement(run: Run, *names: str) -> Measurement | None:
    """Return a run's measurement of the first name that it measured, or None.

    If there are several, the first one without labels is returned, or else the first.
    """
    for name in names:
        values = [measurement for measurement in run.measurements if measurement.name == name]
        if values:
            # A measurement without labels is for the whole run. Labels mean a part, such as one GPU.
            return next((measurement for measurement in values if not measurement.labels), values[0])
    return None


_FABRICS = ("host", "overlay")
"""Values of the parameter ``network`` that mean a network between nodes, not a trained (neural) network."""


def _model(run: Run) -> str:
    """Return the name of the trained model, or else the benchmark's."""
    network = run.parameters.get("network")
    stated = run.parameters.get("model") or (network if network not in _FABRICS else None)
    return str(stated) if stated else run.benchmark


def is_training_sweep(runs: Sequence[Run]) -> bool:
    """Return whether runs cover at least two points with a batch size, so that there is a sweep table."""
    points = {
        (run.benchmark, *sorted(f"{key}={value}" for key, value in run.parameters.items()))
        for run in runs
        if "batch_size" in run.parameters
    }
    return len(points) >= 2


def _natural(value: object) -> tuple[int, float, str]:
    """Return a sort key that puts numbers in ascending order before texts."""
    if isinstance(value, int | float) and abs(value) <= 1e300:  # An int may be too large for a float.
        return (0, float(value), "")
    return (1, 0.0, str(value))


def sweep_table(runs: Sequence[Run]) -> Table:
    """Return the table of a training sweep, with one row per run, by model, batch size and number of GPUs.

    Published MNIST comparisons have these columns. Times with and without start-up are separate.
    """
    points = [run for run in runs if "batch_size" in run.parameters]
    columns = (
        "Verdict",
        "Infrastructure",
        "Model",
        "Batch size",
        "GPUs",
        "Accuracy (validation)",
        "Epochs",
        "s/epoch",
        "samples/s",
        "times CPU",
        "samples/s with start-up",
        "Start-up (s)",
    )
    cpu_rates = _cpu_rates(points)
    rows = [_sweep_row(run, _times_cpu(run, cpu_rates)) for run in sorted(points, key=_sweep_place)]
    return build_table("The sweep, point by point", columns, rows)


def _sweep_place(run: Run) -> tuple[object, ...]:
    """Return the key by which the runs of a sweep are sorted."""
    batch, gpus = run.parameters["batch_size"], run.parameters.get("gpus")
    return (_model(run), _natural(batch), _natural(gpus))


def _cpu_rates(points: Sequence[Run]) -> dict[object, list[float]]:
    """Return the rates of the CPU runs that count, by the key that they share with other runs.

    A run with ``gpus=0`` is a CPU run.
    """
    rates: dict[object, list[float]] = {}
    for run in points:
        rate = _counted_rate(run)
        if rate and run.parameters.get("gpus") == 0:
            rates.setdefault(_cpu_key(run), []).append(rate)
    return rates


def _cpu_key(run: Run) -> object:
    """Return the key that a run shares with its CPU counterpart.

    The key is the nodes, the benchmark, and all parameters except ``gpus``, ``kvstore`` and ``seed``.
    """
    apart = ("gpus", "kvstore", "seed")
    shared = frozenset((key, str(value)) for key, value in run.parameters.items() if key not in apart)
    return (run.benchmark, tuple(node.name for node in run.nodes), shared)


def _counted_rate(run: Run) -> float | None:
    """Return the rate of a run that passed or is degraded, or None for any other run or without a rate."""
    measured = first_measurement(run, "samples_per_second", "images_per_second")
    return measured.value if measured and run.verdict in (Verdict.PASS, Verdict.DEGRADED) else None


def _times_cpu(run: Run, cpu_rates: Mapping[object, Sequence[float]]) -> Cell:
    """Return the cell with the ratio of a run's rate to the CPU's. Several CPU runs are averaged."""
    rate, base = _counted_rate(run), cpu_rates.get(_cpu_key(run))
    middle = mean(base) if base else 0.0
    return _number(f"{rate / middle:.1f}" if rate and middle > 0 else NOTHING)


def _sweep_row(run: Run, times_cpu: Cell) -> tuple[Cell, ...]:
    """Return a run's row of the sweep table."""
    named_parameters = ("network", "model", "batch_size", "gpus")
    variant = " ".join(
        f"{key}={value}" for key, value in run.parameters.items() if key not in named_parameters
    )
    hosts = ", ".join(node.name for node in run.nodes)
    return (
        verdict_cell(run.verdict),
        Cell(hardware_text(run) or NOTHING, note=sanitize(hosts, 80)),
        Cell(sanitize(_model(run), 80), note=sanitize(variant, 120)),
        _number(sanitize(run.parameters["batch_size"], 40)),
        _number(_gpu_count_text(run)),
        *(_value_cell(run, *names) for names in _SWEEP_MEASUREMENTS[:_BEFORE_TIMES_CPU]),
        times_cpu,
        *(_value_cell(run, *names) for names in _SWEEP_MEASUREMENTS[_BEFORE_TIMES_CPU:]),
    )


def _gpu_count_text(run: Run) -> str:
    """Return the number of GPUs of a run, with a remark if it ran on the CPU."""
    gpus = run.parameters.get("gpus")
    if gpus == 0:
        return "0 (CPU)"
    return sanitize(NOTHING if gpus is None else gpus, 40)


def _value_cell(run: Run, *names: str) -> Cell:
    """Return the cell of the first measurement with one of the names."""
    measured = first_measurement(run, *names)
    return _number(number(measured.value) if measured else NOTHING)


_BEFORE_TIMES_CPU = 4
"""Number of columns of measurements before the column of :func:`_times_cpu`."""
# The columns in order. For each, use the first name that a run measured, because workloads differ.
_SWEEP_MEASUREMENTS = (
    ("eval_accuracy", "best_accuracy"),
    ("epochs",),
    ("seconds_per_epoch",),
    ("samples_per_second", "images_per_second"),
    ("samples_per_second_with_startup",),
    ("startup_time",),
)


def verdict_counts(runs: Sequence[Run]) -> str:
    """Return the number of runs by verdict: ``12 pass, 1 fail``."""
    totals = {verdict: sum(run.verdict is verdict for run in runs) for verdict in Verdict}
    return ", ".join(f"{count} {verdict.value}" for verdict, count in totals.items() if count) or "no runs"


def run_total(runs: Sequence[Run]) -> str:
    """Return the number of runs, in all and by verdict."""
    return f"{amount(len(runs), 'run')}: {verdict_counts(runs)}"


def summary_line(runs: Sequence[Run]) -> str:
    """Return the number of runs by verdict, and the runs' descriptions, if they have any."""
    texts = list(dict.fromkeys(sanitize(run.description, 200) for run in runs if run.description))
    more = ["…"] if len(texts) > _MAX_REASONS else []
    return " · ".join([run_total(runs), *texts[:_MAX_REASONS], *more])


def overall_verdict(
    runs: Sequence[Run], missing: Sequence[str] = (), scores: Sequence[tuple[str, Verdict]] = ()
) -> Verdict:
    """Return the worst verdict of several runs, and of the scores of repeats.

    Without runs, or if one is missing, it is at best ``unproven``.
    """
    verdicts = [*(run.verdict for run in runs), *([Verdict.UNPROVEN] * (bool(missing) or not runs))]
    return worst([*verdicts, *(verdict for _, verdict in scores)])


def plan_reasons(
    runs: Sequence[Run], missing: Sequence[str] = (), scores: Sequence[tuple[str, Verdict]] = ()
) -> tuple[str, ...]:
    """Return the reason why each run is missing or not a plain pass, worst first. Scores are before runs."""
    order = {Verdict.FAIL: 0, Verdict.UNPROVEN: 1, Verdict.DEGRADED: 2}
    ordered = sorted((run for run in runs if run.verdict in order), key=lambda run: order[run.verdict])
    lines = [f"{sanitize(run.title, 160)}: {run.verdict.value}: {verdict_reasons(run)[0]}" for run in ordered]
    bad_scores = sorted((one for one in scores if one[1] in order), key=lambda one: order[one[1]])
    # Missing runs and scores come first, because no table of the report contains them.
    lines[:0] = [
        *(f"missing: {sanitize(text, 300)}" for text in missing),
        *(f"{verdict.value}: {sanitize(text, 300)}" for text, verdict in bad_scores),
    ]
    if len(lines) > _MAX_REASONS:
        lines[_MAX_REASONS:] = [f"… and {len(lines) - _MAX_REASONS} more"]
    if not runs and not lines:
        return ("Nothing ran, so nothing is proven.",)
    return tuple(lines) or ("The run passes." if len(runs) == 1 else f"All {len(runs)} runs pass.",)
