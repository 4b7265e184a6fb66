"""Make the packet for an RMA, the return of a part to its vendor.

``rackproof explain NODE --rma FILE`` writes the text of :func:`rma_packet`, all from the nights' records and
snapshots. The node is not contacted. A vendor reads an empty cell as an answer, so the packet says of each
missing value that it was not read.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rackproof.core.evidence import EvidenceState
from rackproof.core.text import amount, sanitize
from rackproof.jobs.validate.explain import explain_node
from rackproof.nodes.night_evidence import WITHOUT_ROOT, tool_state
from rackproof.nodes.snapshot_records import GpuSnapshot, NodeSnapshot
from rackproof.store import night_store
from rackproof.store.night_store import NightRecord, NodeNight, StoredSnapshot

_NOT_READ = "not read"
"""Text in place of a value that no tool reported."""
_PARTNERS_SHOWN = 200
"""Largest number of results with partners in a packet."""


def rma_packet(results: Path, node: str) -> str:
    """Return the data for a vendor's RMA in Markdown.

    The packet lists serial numbers, versions, a timeline of XIDs, results, and partners in measurements.

    Args:
        results: The results folder.
        node: The name in the inventory.

    Raises:
        ExplainError: No readable night includes the node.
        ResultsError: The results cannot be listed.
    """
    explanation = explain_node(results, node)
    folders = night_store.night_folders(results)
    nights = list(night_store.nights_of_node(folders, node))
    stored = night_store.last_snapshot(folders, node)
    rows = _partner_rows(folders, nights, node)
    lines = [
        f"# RMA packet: {_markdown_cell(node)}",
        "",
        f"Made from the night {explanation.night_id} ({explanation.when}).",
        *_snapshot_remark(stored, explanation.night_id),
        "",
        *_hardware_lines(stored, nights[0][1]),
        "## Findings tonight",
        "",
        *_list(explanation.wrong, "nothing was found"),
        "## XIDs",
        "",
        *_xid_lines(folders, {night.night_id for night, _ in nights}, node),
        "## Nights",
        "",
        *_markdown_table(
            ("night", "verdict", "failures", "actions"),
            [
                (night.night_id, node_night.verdict.value, "; ".join(node_night.codes()), node_night.did)
                for night, node_night in nights
            ],
        ),
        *(f"- {_NOT_READ}: {_markdown_cell(text)}" for text in explanation.damaged),
        *([""] if explanation.damaged else []),
        "## Results with partners",
        "",
        *_markdown_table(("night", "with", "verdict", "result"), rows, "no result is stored"),
        "## Actions so far",
        "",
        *_list(explanation.tried, "nothing yet"),
    ]
    return "\n".join(lines)


def _snapshot_remark(stored: StoredSnapshot | None, night_id: str) -> list[str]:
    """Return a line if the parts and versions are from an earlier night than the findings."""
    if stored is None or stored.night in ("", night_id):
        return []
    return [f"The node gave no answer then: the last snapshot is that of {stored.night}."]


def _hardware_lines(stored: StoredSnapshot | None, node_night: NodeNight) -> list[str]:
    """Return the sections on the machine, its GPUs, their errors and links, and its versions."""
    if stored is None:
        return ["## GPUs", "", f"{_NOT_READ}: no night has a snapshot of the node", ""]
    snapshot = stored.snapshot
    gpus = (*snapshot.gpus, *snapshot.gone_gpus)
    none = "none" if _is_read(snapshot, "nvidia_smi_xml") else _unread(snapshot, "nvidia_smi_xml")
    return [
        *_markdown_table(("what", "value"), _machine_rows(stored)),
        "## GPUs",
        "",
        *_markdown_table(
            ("suspect", "slot", "bus", "UUID", "serial", "VBIOS", "module"),
            [(_suspect(snapshot, node_night, gpu), gpu.index, *_names_of(gpu)) for gpu in gpus],
            none,
        ),
        "## ECC and NVLinks",
        "",
        *_markdown_table(
            ("slot", "ECC", "SRAM uncorrectable", "DRAM uncorrectable", "NVLinks up", "NVLink errors"),
            [_counter_row(snapshot, gpu) for gpu in snapshot.gpus],
            none,
        ),
        "## Versions",
        "",
        *_markdown_table(("what", "version"), sorted(snapshot.versions.items()), _NOT_READ),
    ]


def _machine_rows(stored: StoredSnapshot) -> list[tuple[str, str]]:
    """Return the rows on the machine: its product, serial numbers, SKU and rack."""
    hardware = stored.about
    return [
        ("product", hardware.product or _NOT_READ),
        ("node's serial", hardware.serial or _without_root(stored.snapshot)),
        ("chassis' serial", hardware.chassis_serial or _without_root(stored.snapshot)),
        ("SKU", hardware.sku or "not in the inventory"),
        ("rack", stored.rack or "not in the inventory"),
    ]


def _names_of(gpu: GpuSnapshot) -> list[str]:
    """Return a GPU's bus address, UUID, serial number, VBIOS and module."""
    return [name or _NOT_READ for name in (gpu.bus_id, gpu.uuid, gpu.serial, gpu.vbios, gpu.module)]


def _suspect(snapshot: NodeSnapshot, node_night: NodeNight, gpu: GpuSnapshot) -> str:
    """Return "is missing" for a missing GPU, "yes" for one with a finding of its own, and "" for others."""
    if any(gone.uuid == gpu.uuid for gone in snapshot.gone_gpus):
        return "is missing"
    # What the whole fleet shows is a fault of the tool or of an expectation, and no part for a vendor.
    bad_parts = {
        finding.name for finding in node_night.findings if finding.part == "gpu" and not finding.fleetwide
    }
    # The part of a measurement begins with the GPU's UUID, before its slot.
    bad_parts |= {reason.part.partition(" ")[0] for reason in node_night.reasons if not reason.fleetwide}
    return "yes" if gpu.uuid in bad_parts else ""


def _counter_row(snapshot: NodeSnapshot, gpu: GpuSnapshot) -> tuple[Any, ...]:
    """Return a GPU's slot, ECC mode, error counters, and how many of its NVLinks are up.

    A missing value is shown as not read, and not as 0.
    """
    ecc: Mapping[bool | None, str] = {True: "on", False: "off", None: _NOT_READ}
    links = f"{sum(gpu.links.values())} of {len(gpu.links)}"
    if not gpu.links:
        links = "none" if _is_read(snapshot, "nvlink_status") else _unread(snapshot, "nvlink_status")
    counters = (gpu.sram_uncorrectable, gpu.dram_uncorrectable)
    errors = gpu.link_errors if gpu.links else links
    return (
        gpu.index,
        ecc[gpu.ecc_enabled],
        *(_NOT_READ if count is None else count for count in counters),
        links,
        _NOT_READ if errors is None else errors,
    )


def _is_read(snapshot: NodeSnapshot, tool: str) -> bool:
    """Return whether a tool's whole answer was received."""
    return tool_state(snapshot, tool) is EvidenceState.THERE and tool not in snapshot.truncated


def _unread(snapshot: NodeSnapshot, tool: str) -> str:
    """Return why an answer is missing, such as ``not read: failed``."""
    return f"{_NOT_READ}: {_why_unread(snapshot, tool)}"


def _why_unread(snapshot: NodeSnapshot, tool: str) -> str:
    """Return the state of a missing or incomplete answer, and whether root was missing."""
    state = tool_state(snapshot, tool)
    if state is EvidenceState.THERE:
        return "only a part of it"
    return f"{state.value}, {WITHOUT_ROOT}" if snapshot.asked_as_root is False else state.value


def _without_root(snapshot: NodeSnapshot) -> str:
    """Return the text in place of a missing serial number, which the firmware gives only to root."""
    return f"{_NOT_READ}, {WITHOUT_ROOT}" if snapshot.asked_as_root is False else _NOT_READ


def _xid_lines(folders: Sequence[Path], nights: Collection[str], node: str) -> list[str]:
    """Return the timeline of XIDs, and remarks on the nights in which the node's kernel log was not read.

    Args:
        folders: The folders of all nights, newest first.
        nights: The ids of the nights whose record includes the node.
        node: The name in the inventory.
    """
    # A night with a damaged record may have a snapshot, too.
    snapshots = {
        folder.name: stored
        for folder in folders
        if (stored := night_store.read_snapshot(folder, node)) is not None or folder.name in nights
    }
    unread = _nights_without_log(snapshots)
    nothing_read = sum(map(len, unread.values())) == len(snapshots)
    none = _NOT_READ if nothing_read else "none in the logs that were read" if unread else "none"
    rows = _xid_rows(snapshots)
    remarks = [
        f"- {_NOT_READ} in {amount(len(names), 'night')} ({_span(names)}): {_markdown_cell(why)}"
        for why, names in unread.items()
    ]
    return [
        *_markdown_table(("night", "GPU", "XID", "times", "text"), rows, none),
        *remarks,
        *([""] if remarks else []),
    ]


def _nights_without_log(snapshots: Mapping[str, StoredSnapshot | None]) -> dict[str, list[str]]:
    """Return the nights, newest first, in which the kernel log was not read whole, by the reason."""
    nights: dict[str, list[str]] = {}
    for night_id, stored in snapshots.items():
        if stored is None:
            nights.setdefault("no snapshot of the node", []).append(night_id)
        elif not _is_read(stored.snapshot, "kernel_log"):
            nights.setdefault(_why_unread(stored.snapshot, "kernel_log"), []).append(night_id)
    return nights


def _span(nights: Sequence[str]) -> str:
    """Return the first and the last of some nights, which come newest first."""
    return nights[0] if len(nights) == 1 else f"{nights[-1]} to {nights[0]}"


def _xid_rows(snapshots: Mapping[str, StoredSnapshot | None]) -> list[tuple[Any, ...]]:
    """Return the XIDs (the GPU driver's errors) of all nights, the oldest first.

    A row has the night, the GPU, the number of the XID, how often it occurred, and the kernel's text.
    """
    rows: list[tuple[Any, ...]] = []
    # A vendor reads the timeline from the first error on.
    for night_id, stored in reversed(list(snapshots.items())):
        rows += [
            (night_id, xid.uuid or xid.bus_id, xid.xid, xid.times, xid.text)
            for xid in (stored.snapshot.xids if stored else ())
            # An event that is still open from an earlier night is in that night's rows.
            if not xid.carried
        ]
    return rows


def _partner_rows(
    folders: Sequence[Path], nights: Sequence[tuple[NightRecord, NodeNight]], node: str
) -> list[tuple[Any, ...]]:
    """Return the node's measurements with other nodes, and the links and groups with it that do not pass.

    A row has the night, the other nodes, the verdict, and the result. The newest night is first.
    """
    from rackproof.store.probe_results import read_probes

    rows: list[tuple[Any, ...]] = []
    between = {night.night_id: night.between for night, _ in nights}
    for folder in folders:
        night = read_probes(folder)
        for pair in night.pairs if night else ():
            if node in pair.nodes:
                partners = ", ".join(name for name in pair.nodes if name != node)
                rows.append((folder.name, partners, "pass" if pair.passed else "fail", pair.text))
        # A link is named A>B, a group A+B.
        for reason in between.get(folder.name, ()):
            if node in (ends := reason.part.replace(">", "+").split("+")):
                partners = ", ".join(name for name in ends if name != node)
                rows.append((folder.name, partners, reason.verdict.value, reason.text))
    return rows[:_PARTNERS_SHOWN]


def _list(texts: Sequence[str], none: str) -> Iterator[str]:
    """Yield texts as a list in Markdown, and an empty line."""
    yield from (f"- {_markdown_cell(text)}" for text in texts or (none,))
    yield ""


def _markdown_table(head: Sequence[str], rows: Sequence[Sequence[Any]], none: str = "none") -> list[str]:
    """Return the lines of a Markdown table, or ``none`` for a table without rows."""
    if not rows:
        return [none, ""]
    lines = [head, ["---"] * len(head), *rows]
    return [f"| {' | '.join(map(_markdown_cell, line))} |" for line in lines] + [""]


def _markdown_cell(value: Any) -> str:
    """Return text that stays in its table cell and is not HTML, because it comes from a node."""
    escaped = sanitize(value, 400).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\|`*_\[\]])", r"\\\1", escaped)
