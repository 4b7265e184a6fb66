"""Write the pages of a night, and its JUnit file.

:mod:`rackproof.jobs.validate.tasks` calls :func:`write_night_pages` when a night closes. One page shows the
fleet as racks and nodes, with changes at the top. Nodes get a page, too: all nodes of a small fleet, or else
the nodes that did not pass. The functions below make the tables, and the templates ``night.html.j2`` and
``night_node.html.j2`` of the report place them on the pages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

from rackproof import __version__
from rackproof.core.advised_commands import add_inventory_everywhere, add_results_everywhere
from rackproof.core.records import WORST_FIRST, Direction, Verdict
from rackproof.core.text import amount, moment, quantity, sanitize, unit_text
from rackproof.jobs.validate import explain
from rackproof.jobs.validate.fleet.probe_scheduler import describe_probes
from rackproof.jobs.validate.messages import ACT_NAMES, HEALTH_ONLY, describe_unmeasured
from rackproof.report import view
from rackproof.report.charts import Chart, Drawn, Line, draw
from rackproof.report.html import environment, style
from rackproof.report.junit import Case, junit_document, junit_suite
from rackproof.report.view import Cell, Table, build_table
from rackproof.store import night_store
from rackproof.store.night_store import NightRecord, NodeNight, StoredSnapshot
from rackproof.store.probe_results import read_probes
from rackproof.store.run_folder import ResultsError, write_file

PAGE = "index.html"
JUNIT = "report.junit.xml"
"""Names of the fleet's page and of the JUnit file in the night's folder."""
NODE_PAGES = 64
"""Largest number of nodes of a night in which each node gets a page. In a larger night, only nodes that did
not pass get one."""
CHART_NIGHTS = 30
"""Number of nights in a chart."""
_CHARTS = 6
"""Largest number of charts on a node's page."""
_LINES = 8
"""Largest number of lines in a chart, one for each GPU or link."""
_CHANGES = 40
"""Largest number of changes on the fleet's page."""
_WORDS = {
    Verdict.PASS: "Every node passed all required checks.",
    Verdict.DEGRADED: "Nodes work, and something about them needs attention.",
    Verdict.FAIL: "At least one node is bad.",
    Verdict.UNPROVEN: "Something could not be proven; that is not a pass.",
}
"""The sentence about a night's verdict on the fleet's page."""


def write_night_pages(results: Path, night: NightRecord, changes: Sequence[str]) -> Path:
    """Write the pages of a night and its JUnit file into its folder. Return the path of the fleet's page.

    Args:
        results: The results folder.
        night: The night, whose folder exists.
        changes: Texts about the changes since the previous night.

    Raises:
        ResultsError: The night's folder cannot be written, or the results folder cannot be listed.
    """
    folder = results / night.night_id
    # An interrupted night may be closed after later ones, which its pages do not show.
    folders = [folder, *night_store.night_folders(results, before=night.night_id)]
    shown_nodes = [
        node for node in night.nodes if len(night.nodes) <= NODE_PAGES or node.verdict is not Verdict.PASS
    ]
    pages = {node.node: f"nodes/{node.node}.html" for node in shown_nodes}
    series = _Series(results, night) if shown_nodes else None
    history = _histories(folders, {node.node for node in shown_nodes})
    for judged in shown_nodes:
        stored = night_store.read_snapshot(folder, judged.node)
        page = node_page(
            night,
            judged,
            stored,
            history[judged.node],
            series.charts(judged, stored) if series else (),
            results,
        )
        write_file(folder / pages[judged.node], page.encode())
    write_file(folder / JUNIT, night_junit(night))
    path = folder / PAGE
    write_file(path, night_page(night, changes, pages, describe_probes(read_probes(folder))).encode())
    return path


def night_junit(night: NightRecord) -> bytes:
    """Return a night as JUnit XML. Each rack is a suite, each node a case, and unproven an error."""
    by_rack: dict[str, list[Case]] = {}
    for node in night.nodes:
        lines = [sanitize(line, 1000) for line in node.reason_texts()]
        text, reason = "\n".join(lines), lines[0] if lines else node.verdict.value
        by_rack.setdefault(node.rack, []).append(Case(node.node, node.verdict, reason, text, output=text))
    suites = [junit_suite(sanitize(rack, 60) or "no rack", cases) for rack, cases in sorted(by_rack.items())]
    return junit_document(f"night {night.night_id}", suites)


def night_page(
    night: NightRecord, changes: Sequence[str], pages: Mapping[str, str], measured: Sequence[str] = ()
) -> str:
    """Return the page of a fleet's night.

    Args:
        night: The record of the night.
        changes: Texts about the changes since the previous night.
        pages: The path of each node's page, relative to this page. The cells of other nodes have no link.
        measured: Texts about the night's own measurements.
    """
    counts = [(verdict, sum(node.verdict is verdict for node in night.nodes)) for verdict in WORST_FIRST]
    more = len(changes) - _CHANGES
    return (
        environment()
        .get_template("night.html.j2")
        .render(
            kind="Night of the fleet",
            when=moment(night.ended),
            style=style(),
            title=amount(len(night.nodes), "node"),
            point=", ".join(f"{count} {verdict.value}" for verdict, count in counts if count),
            verdict=night.verdict,
            meaning=_WORDS[night.verdict],
            # Lines that begin with "! " are left out, because the night's remarks contain them already.
            remarks=[sanitize(remark, 500) for remark in night.remarks]
            + [sanitize(line, 500) for line in measured if not line.startswith("! ")]
            + [sanitize(line, 500) for line in describe_unmeasured(night)],
            changes=[sanitize(change, 400) for change in changes[:_CHANGES]]
            + ([f"and {more} more"] if more > 0 else []),
            racks=_racks(night, pages),
            bad=_bad(night, pages),
            acts=_acts(night),
            between=_between(night),
            night_id=night.night_id,
            unpaged=len(night.nodes) - len(pages),
            version=__version__,
        )
    )


def node_page(
    night: NightRecord,
    mine: NodeNight,
    stored: StoredSnapshot | None,
    nights: Sequence[tuple[NightRecord, NodeNight]],
    charts: Sequence[Drawn] = (),
    results: Path | None = None,
) -> str:
    """Return the page of a node in a night.

    Args:
        night: The record of the night.
        mine: The node in this night.
        stored: The snapshot of the node, or None if there is none.
        nights: The nights that include the node, newest first. The newest one is explained. If there are
            none, ``night`` is.
        charts: The charts of the node's measurements over the nights.
        results: The results folder that commands on the page name, or None.
    """
    explained_nights = nights or [(night, mine)]
    explanation = explain.build_explanation(explained_nights)
    inventory = explained_nights[0][0].inventory
    steps = tuple(
        add_inventory_everywhere(add_results_everywhere(step, results), inventory)
        for step in explanation.next
    )
    explanation = explanation.model_copy(update={"next": steps})
    return (
        environment()
        .get_template("night_node.html.j2")
        .render(
            kind="Node in a night",
            when=moment(night.ended),
            style=style(),
            title=sanitize(mine.node, 200),
            point=" · ".join(
                sanitize(part, 60)
                for part in (mine.rack, mine.sku, mine.hardware_key, _health_only_mark(mine))
                if part
            ),
            verdict=mine.verdict,
            explained=explanation,
            findings=_findings(mine),
            reasons=_reasons(mine.reasons, "Measurements that do not pass"),
            drawn=charts,
            gpus=_gpus(stored),
            versions=_versions(stored),
            nights=_nights(nights),
            night_id=night.night_id,
            version=__version__,
        )
    )


def _health_only_mark(node_night: NodeNight) -> str:
    """Return the mark of a node that was not measured, or ""."""
    return HEALTH_ONLY if node_night.is_health_only else ""


def _short(names: Sequence[str]) -> dict[str, str]:
    """Return a short form of each name, without the prefix that all have: ``n07`` for ``gpu-r1-n07``.

    The names are sorted. The prefix ends with a dash or dot.
    """
    # Names are sorted, so a prefix of the first and the last name is a prefix of all.
    pairs = zip(names[0], names[-1], strict=False) if len(names) > 1 else ()
    common = "".join(letter for letter, _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    cut = max(common.rfind("-"), common.rfind(".")) + 1
    return {name: sanitize(name[cut:], 40) or sanitize(name, 40) for name in names}


def _racks(night: NightRecord, pages: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the racks of the fleet for the template: name, counts by verdict, and a cell for each node.

    ``out`` in a cell means that the node is out of service, or that the night drains it.
    """
    by_rack: dict[str, list[NodeNight]] = {}
    for node in night.nodes:
        by_rack.setdefault(node.rack, []).append(node)
    racks = []
    for name in sorted(by_rack):
        nodes = sorted(by_rack[name], key=lambda member: member.node)
        short = _short([member.node for member in nodes])
        counts = ", ".join(
            f"{count} {verdict.value}"
            for verdict in WORST_FIRST
            if (count := sum(member.verdict is verdict for member in nodes))
        )
        racks.append(
            {
                "name": sanitize(name, 60) or "no rack",
                "counts": counts,
                "nodes": [
                    {
                        "name": short[member.node],
                        "verdict": member.verdict,
                        "href": pages.get(member.node, ""),
                        "title": sanitize(
                            "; ".join(
                                filter(
                                    None,
                                    (
                                        member.node,
                                        member.verdict.value,
                                        _health_only_mark(member),
                                        *member.reason_texts()[:2],
                                    ),
                                )
                            ),
                            300,
                        ),
                        "out": bool(member.slurm and member.slurm.drained_by != "none")
                        or member.plan == "drain",
                    }
                    for member in nodes
                ],
            }
        )
    return racks


def _bad(night: NightRecord, pages: Mapping[str, str]) -> Table:
    """Return the table of nodes that did not pass."""
    nodes = sorted(
        (node for node in night.nodes if node.verdict is not Verdict.PASS),
        key=lambda node: (WORST_FIRST.index(node.verdict), node.node),
    )
    rows = []
    for judged in nodes:
        reasons = judged.reason_texts()
        more = f"and {len(reasons) - 1} more" if len(reasons) > 1 else ""
        rows.append(
            (
                view.verdict_cell(judged.verdict),
                Cell(sanitize(judged.node, 100), href=pages.get(judged.node, "")),
                Cell(sanitize(reasons[0] if reasons else "", 300), note=more),
                Cell(
                    ", ".join(
                        dict.fromkeys(
                            finding.action for finding in judged.findings if finding.action != "none"
                        )
                    )
                ),
            )
        )
    return build_table("Nodes that did not pass, the worst first", ("Verdict", "Node", "What", "To do"), rows)


def _acts(night: NightRecord) -> Table:
    """Return the table of planned and executed drains and resumes."""
    rows = []
    for node in night.nodes:
        if node.plan or node.why or node.did:
            allowed = node.plan in night.acts
            act = ACT_NAMES[node.plan] + ("" if allowed or not node.plan else " (dry run)")
            rows.append(
                (
                    Cell(sanitize(node.node, 100)),
                    Cell(act),
                    Cell(sanitize(node.why, 400)),
                    Cell(sanitize(node.did, 300)),
                )
            )
    return build_table("Drains and resumes", ("Node", "Plan", "Why", "What was done"), rows)


def _between(night: NightRecord) -> Table:
    """Return the table of pairs and groups that do not pass."""
    return _reasons(night.between, "Pairs and groups that do not pass")


def _reasons(reasons: Sequence[night_store.NightReason], caption: str) -> Table:
    """Return a table of reasons."""
    return build_table(
        caption,
        ("Verdict", "Measurement", "Part", "Compared with"),
        [
            (
                view.verdict_cell(reason.verdict, "fleet-wide" if reason.fleetwide else ""),
                Cell(sanitize(f"{reason.metric} ({reason.check})".strip(), 120)),
                Cell(sanitize(reason.part, 120), "code"),
                Cell(sanitize(reason.text, 400)),
            )
            for reason in reasons
        ],
    )


def _findings(node_night: NodeNight) -> Table:
    """Return the table of a node's findings."""
    return build_table(
        "What health checks found",
        ("Verdict", "Part", "Evidence", "To do", "Confidence"),
        [
            (
                view.verdict_cell(finding.verdict, "fleet-wide" if finding.fleetwide else ""),
                Cell(sanitize(finding.name or "node", 80), "code", note=sanitize(finding.place, 80)),
                Cell(sanitize(finding.evidence, 400), note=finding.code),
                Cell(finding.action),
                Cell(finding.confidence),
            )
            for finding in node_night.findings
        ],
    )


def _gpus(stored: StoredSnapshot | None) -> Table:
    """Return the table of a node's GPUs."""

    def shown(value: float | None, unit: str) -> Cell:
        """Return a value with its unit as a cell, which is empty if the value is unknown."""
        return Cell("" if value is None else quantity(value, unit), "number")

    return build_table(
        "GPUs",
        ("Slot", "UUID", "Serial", "Bus", "VBIOS", "Temperature", "Left", "Power limit", "NVLinks up"),
        [
            (
                Cell(str(gpu.index), "number"),
                Cell(sanitize(gpu.uuid, 60), "code"),
                Cell(sanitize(gpu.serial, 60), "code"),
                Cell(sanitize(gpu.bus_id, 30), "code"),
                Cell(sanitize(gpu.vbios, 30), "code"),
                shown(gpu.temperature_c, "°C"),
                shown(gpu.margin_c, "°C"),
                shown(gpu.power_limit_w, "W"),
                Cell(f"{sum(gpu.links.values())} of {len(gpu.links)}" if gpu.links else "", "number"),
            )
            for gpu in (stored.snapshot.gpus if stored else ())
        ],
    )


def _versions(stored: StoredSnapshot | None) -> Table:
    """Return the table of a node's versions."""
    return build_table(
        "Versions",
        ("What", "Version"),
        [
            (Cell(sanitize(name, 80)), Cell(sanitize(value, 200), "code"))
            for name, value in sorted(stored.snapshot.versions.items() if stored else ())
        ],
    )


def _nights(nights: Sequence[tuple[NightRecord, NodeNight]]) -> Table:
    """Return the table of a node's nights."""
    return build_table(
        "Nights, newest first",
        ("Verdict", "When (UTC)", "What", "What was done"),
        [
            (
                view.verdict_cell(node_night.verdict, _health_only_mark(node_night)),
                Cell(moment(night.ended)),
                Cell(sanitize((node_night.reason_texts() or ("",))[0], 300)),
                Cell(sanitize(node_night.did, 300)),
            )
            for night, node_night in nights
        ],
    )


def _histories(folders: Sequence[Path], names: set[str]) -> dict[str, list[tuple[NightRecord, NodeNight]]]:
    """Return the nights of nodes, newest first. Each night is read only once."""
    histories: dict[str, list[tuple[NightRecord, NodeNight]]] = {name: [] for name in names}
    for folder in folders if names else ():
        try:
            night = night_store.read_night(folder)
        except ResultsError:
            continue
        for node in night.nodes:
            if node.node in histories:
                histories[node.node].append((night, node))
    return histories


class _Series:
    """The measurements of nodes in this night and earlier ones, from the history if there is one.

    Without a history, there are no charts. ``_nodes`` has the number of each node in the readings, by the
    node's hardware key.
    """

    def __init__(self, results: Path, night: NightRecord) -> None:
        from datetime import timedelta

        from rackproof.store.history.store import HistoryError, open_store

        self._readings: Any = None
        self._nodes: dict[str, int] = {}
        try:
            with open_store(results / "history.sqlite") as store:
                self._readings = store.readings(night.ended + timedelta(seconds=1), nights=CHART_NIGHTS)
        except HistoryError:
            return
        self._nodes = {
            part.key: index for index, part in enumerate(self._readings.parts) if part.kind == "node"
        }

    def charts(self, mine: NodeNight, stored: StoredSnapshot | None) -> tuple[Drawn, ...]:
        """Return charts of a node's measurements. Measurements that do not pass come first.

        The result is empty without a history, or if the history or the night has no data of the node.
        """
        readings = self._readings
        if readings is None or stored is None or mine.hardware_key not in self._nodes:
            return ()
        values = self._values_of(self._nodes[mine.hardware_key])
        bad_metrics = {reason.metric.partition(" ")[0] for reason in mine.reasons}
        # A chart needs the values of two nights or more.
        shown_numbers = [
            number for number, parts in values.items() if any(len(series) > 1 for series in parts.values())
        ]
        shown_numbers.sort(
            key=lambda number: (
                readings.quantities[number].metric not in bad_metrics,
                readings.quantities[number][2],
            )
        )
        return tuple(
            draw(self._chart(number, values[number]), f"chart{index}")
            for index, number in enumerate(shown_numbers[:_CHARTS])
        )

    def _values_of(self, node: int) -> dict[int, dict[int, dict[int, float]]]:
        """Return a node's values by quantity, part and night (0 is this one), each the worst one."""
        readings = self._readings
        values: dict[int, dict[int, dict[int, float]]] = {}
        for row in (readings.node == node).nonzero()[0]:
            number, part, ago = int(readings.quantity[row]), int(readings.part[row]), int(readings.night[row])
            by_night = values.setdefault(number, {}).setdefault(part, {})
            worse = max if readings.quantities[number].direction is Direction.LOWER else min
            value = float(readings.value[row])
            # Use the worst value, because a mean of several runs would hide one that failed.
            by_night[ago] = worse(value, by_night.get(ago, value))
        return values

    def _chart(self, number: int, values: Mapping[int, Mapping[int, float]]) -> Chart:
        """Return the chart of one quantity over the nights."""
        readings = self._readings
        measured = readings.quantities[number]
        lines = []
        for part, points in sorted(values.items(), key=lambda entry: readings.parts[entry[0]].slot)[:_LINES]:
            order = sorted(points, reverse=True)
            shown_part = readings.parts[part]
            label = f"GPU {shown_part.slot}" if shown_part.kind == "gpu" else sanitize(shown_part.name, 40)
            # Nights are counted backwards from this one, and the chart needs time from left to right.
            lines.append(
                Line(label, tuple(float(-ago) for ago in order), tuple(points[ago] for ago in order))
            )
        return Chart(
            sanitize(view.metric_words(measured.metric), 80),
            "night (0 is this one)",
            unit_text(measured.unit),
            tuple(lines),
            markers=True,
        )
