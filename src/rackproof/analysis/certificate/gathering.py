"""Gather the evidence for :mod:`.making` from a results folder and its history.

The results folder has the records (``run.json``, ``night.json``), and the history is the database made from
them. If the record of a run is missing from the results folder, or differs from the history, the run counts
with the verdict in the history, and at best as unproven. Otherwise, an operator could delete or alter a
failed run to get a pass.

A machine may have had another name before or may have one now, and its parts may be in another node now. Runs
and nights of other nodes are therefore evidence, too, if a part of a requested node was in these nodes.

Begin with :class:`Gathered`, which :mod:`.making` makes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any

from rackproof.analysis.certificate.machines import (
    PartIndex,
    common_part,
    is_same_machine,
    shared_serials,
)
from rackproof.analysis.certificate.models import (
    EARLIEST,
    LATEST,
    Catalogue,
    ChangedLimit,
    EvidencePiece,
    PieceFinding,
    RawFile,
    hardware_doubt,
    uuids_of,
)
from rackproof.core.records import Node, Run, Verdict, worst
from rackproof.core.text import sanitize
from rackproof.nodes.health_subjects import Limits
from rackproof.nodes.night_evidence import tool_state
from rackproof.store import night_store
from rackproof.store.history.database import HistoryError
from rackproof.store.history.repository import Store
from rackproof.store.history.rows import RunRow
from rackproof.store.known_parts import parts_of
from rackproof.store.night_store import NightRecord, NodeNight, StoredSnapshot
from rackproof.store.run_evidence import digest_file, record_objection
from rackproof.store.run_folder import (
    RECORD_NAME,
    ResultsError,
    dump_run,
    new_run_id,
    read_run,
    run_folders,
    slug_of,
    stamp_of,
)

_MOST_RUNS = 100_000
"""Number of the history's newest runs that are searched for missing records."""
_REMEMBERED = 64
"""Number of the history's records that are kept in memory."""
_LONGEST = 500
"""Number of characters to which texts are cut here. The text of a health finding is limited already."""
_MOST_REASONS = 3
"""Largest number of reasons of a run."""


class Gathered:
    """The evidence on some nodes, and their hardware as last seen.

    Hardware is seen in records that the history proves. A node in an unproven record has only claimed
    hardware (:meth:`_present`).

    Attributes:
        evidence: The runs and nights, oldest first.
        nodes: The present hardware of each node for which it is known.
    """

    def __init__(
        self, results: Path, store: Store, catalogue: Catalogue, asked: Sequence[str], now: datetime
    ) -> None:
        self._results, self._store, self._asked, self._now = results, store, frozenset(asked), now
        self._benchmarks = {name for requirement in catalogue.requirements for name in requirement.benchmarks}
        self._wanted = self._asked | store.names_sharing_parts(self._asked)
        self._shared_serials: set[str] = set()
        self._fake_gpus: set[str] = set()
        self._places: dict[str, tuple[datetime, list[Node]]] = {}
        self._seen: dict[str, tuple[datetime, Node]] = {}
        self._claimed: dict[str, tuple[datetime, Node]] = {}
        self._unchanged: set[str] = set()
        # A record of the history is read up to three times in short succession, so the last ones are kept.
        self._known = lru_cache(_REMEMBERED)(self._read_known)
        self._damaged_runs: list[EvidencePiece] = []
        runs, index = self._newest_runs(), self._index()
        runs = [run for run in runs if self._concerns(_nodes_of(run), index)]
        pieces = [*map(self._run_piece, runs), *self._damaged_runs, *self._newest_nights(index)]
        pieces += self._gone(pieces)
        index = self._index()
        self.evidence = tuple(
            sorted((piece for piece in pieces if self._concerns(piece.nodes, index)), key=_order)
        )
        names = sorted(self._asked & {*self._seen, *self._claimed})
        self.nodes = tuple(filter(None, map(self._present, names)))

    def _see(self, moment: datetime, nodes: Iterable[Node], *, is_proven: bool) -> None:
        """Keep the newest hardware of each wanted node, and the newest place of each of its parts.

        The hardware is kept separately for proven and unproven records.
        """
        newest = self._seen if is_proven else self._claimed
        for node in nodes:
            if node.name not in self._wanted:
                continue
            newest_node = newest.get(node.name)
            if newest_node is None or newest_node[0] <= moment:
                newest[node.name] = (moment, node)
            for part in parts_of(node):
                newest_moment, places = self._places.get(part, (EARLIEST, []))
                if not places or newest_moment <= moment:
                    self._places[part] = (moment, [node, *(places if newest_moment == moment else ())])

    def _present(self, name: str) -> Node | None:
        """Return the present hardware of a node, or None if another record contradicts it.

        A record that the history does not have may be forged, so it cannot hide that parts were swapped.
        """
        seen_node, claimed_node = self._seen.get(name), self._claimed.get(name)
        newest = seen_node or claimed_node
        if newest is None or self._is_elsewhere(*newest):
            return None
        if seen_node is None or claimed_node is None:
            return newest[1]
        is_contradicted = claimed_node[0] > seen_node[0] and hardware_doubt(claimed_node[1], seen_node[1])
        return None if is_contradicted else seen_node[1]

    def _is_elsewhere(self, moment: datetime, node: Node) -> bool:
        """Return whether a part of a node was in another machine since, or at the same time."""
        places = (self._places[part] for part in parts_of(node) - self._shared_serials)
        others = (
            other
            for newest_moment, found in places
            if newest_moment >= moment
            for other in found
            if other.name != node.name
        )
        return any(common_part(node, other) and not is_same_machine(other, node) for other in others)

    def _index(self) -> PartIndex:
        """Return the newest hardware of the requested nodes, by its parts."""
        newest = (kept[name][1] for kept in (self._seen, self._claimed) for name in self._asked & kept.keys())
        return PartIndex(newest, self._shared_serials)

    def _concerns(self, nodes: Sequence[Node], index: PartIndex) -> bool:
        """Return whether a requested node, or a node with a part of one, is among some nodes."""
        return any(node.name in self._asked or index.related(node) for node in nodes)

    # Runs.

    def _newest_runs(self) -> list[Run]:
        """Return the newest run of each point of the catalogue's benchmarks on each set of equal nodes.

        Nodes are equal if name, serial number and GPUs are. All runs show the hardware of their nodes.
        """
        newest: dict[object, Run] = {}
        for run in sorted(self._runs(), key=lambda run: (_moment_of(run), run.run_id)):
            self._see(_moment_of(run), run.nodes, is_proven=run.run_id in self._unchanged)
            if run.benchmark in self._benchmarks:
                parts = frozenset(
                    (node.name, node.serial, *(gpu.uuid for gpu in node.gpus)) for node in _nodes_of(run)
                )
                newest[(run.benchmark, repr(sorted(run.parameters.items())), parts)] = run
        return list(newest.values())

    def _runs(self) -> Iterator[Run]:
        """Yield the runs on wanted nodes, except imported runs and nights, and keep the nights' hardware.

        Altered records are left out, because the history's rows count instead (:meth:`_gone`). Unreadable
        records are added to ``_damaged_runs``.
        """
        for folder in run_folders(self._results):
            try:
                run = read_run(folder)
            except ResultsError as error:
                self._damaged_runs += self._damaged_run(folder.name, str(error))
                continue
            recorded_run = self._known(run.run_id)
            if recorded_run and dump_run(recorded_run) == dump_run(run):
                self._unchanged.add(run.run_id)
            elif recorded_run:
                continue
            else:
                # The history does not know whether its nodes have parts of requested nodes.
                self._wanted |= {node.name for node in run.nodes}
            self._shared_serials |= shared_serials([run.nodes])
            if run.is_of_test_rack:
                self._fake_gpus.update(*map(uuids_of, run.nodes))
            is_mine = bool(self._wanted & {node.name for node in _nodes_of(run)})
            if not is_mine or run.provenance != "ran":
                continue
            if run.benchmark != night_store.BENCHMARK:
                yield run
            else:
                self._see(_moment_of(run), run.nodes, is_proven=run.run_id in self._unchanged)

    def _damaged_run(self, name: str, why: str) -> Iterator[EvidencePiece]:
        """Yield the evidence of a run with an unreadable record, unless the history has its row.

        The name of its folder contains its benchmark. A run of a benchmark that the catalogue does not need
        is left out. A folder whose name has no time may be of any benchmark.
        """
        if self._known(name) or night_store.is_night(name):
            return
        benchmarks = [known for known in self._benchmarks if slug_of(new_run_id(known)) == slug_of(name)]
        if benchmarks or stamp_of(name) is None:
            damaged = self._damaged(name, why)
            yield damaged.model_copy(update={"kind": "run", "benchmark": next(iter(benchmarks), "")})

    def _run_piece(self, run: Run) -> EvidencePiece:
        """Return a run as a piece of evidence, with objections to its files."""
        folder = self._results / run.run_id
        return EvidencePiece(
            id=run.run_id,
            kind="run",
            benchmark=run.benchmark,
            parameters=run.parameters,
            moment=_bounded(_moment_of(run)),
            command=run.command,
            nodes=_nodes_of(run),
            verdict=run.verdict,
            reasons=tuple(sanitize(reason, _LONGEST) for reason in run.reasons[:_MOST_REASONS]),
            judgements=run.judgements,
            findings=tuple(
                PieceFinding(
                    code=finding.code, verdict=finding.verdict, text=sanitize(finding.message, _LONGEST)
                )
                for finding in run.findings
                if finding.verdict is not None
            ),
            files=tuple(_files(folder, run)),
            objections=(
                *_doubts(self._known(run.run_id), folder),
                *_no_logs(run),
                *self._fakes(run.nodes, run),
            ),
        )

    def _fakes(self, nodes: Iterable[Node], run: Run | None = None) -> Iterator[str]:
        """Yield an objection if a run or night was on the test rack, or on GPUs of a run on it."""
        is_fake = any(uuids_of(node) & self._fake_gpus for node in nodes)
        if is_fake or (run is not None and run.is_of_test_rack):
            yield "it was on the test rack, whose hardware is fake"

    def _read_known(self, run_id: str) -> Run | None:
        """Return a run as it is in the history, or None if the history lacks it."""
        try:
            recorded_run = self._store.run(run_id)
        except HistoryError:
            return None
        return recorded_run if recorded_run.run_id == run_id else None

    # Nights.

    def _newest_nights(self, index: PartIndex) -> Iterator[EvidencePiece]:
        """Yield nights, the newest first, until each requested node was in one, and damaged nights.

        Only as many nights are searched as :func:`.night_store.night_folders` returns. A node that its newest
        night did not reach is also in the last night that did, if the node failed there. Each night also has
        the nodes with parts of requested nodes (``index``).
        """
        missing, unreached = set(self._asked), set[str]()
        for folder in night_store.night_folders(self._results):
            if not (missing or unreached):
                return
            try:
                night = night_store.read_night(folder)
            except ResultsError as error:
                yield self._damaged(folder.name, str(error))
                continue
            newest = [node for node in night.nodes if node.node in missing]
            failed = [node for node in night.nodes if node.node in unreached and _failed(node)]
            lost = self._lost_nodes(folder, night, missing)
            moved, machines = self._moved_nodes(folder, night, index)
            moved = [node for node in moved if node not in newest and node not in failed]
            if newest or lost or failed or moved:
                yield self._night_piece(folder, night, [*newest, *failed, *moved], sorted(lost))
            reached = _names(filter(_is_reached, night.nodes)) | machines
            unreached = (unreached | _names(newest)) - reached
            missing -= lost | _names(newest) | machines

    def _moved_nodes(
        self, folder: Path, night: NightRecord, index: PartIndex
    ) -> tuple[list[NodeNight], set[str]]:
        """Return the nodes of a night that have parts of a requested node of another name.

        The second value has the requested nodes that the night reached under another name.
        """
        moved, machines = set(), set()
        for node in self._nodes_of_night(folder, night):
            for owner in index.related(node) if node.name in self._wanted else ():
                if owner.name != node.name:
                    moved.add(node.name)
                    machines |= {owner.name} if is_same_machine(node, owner) else set()
        return [node_night for node_night in night.nodes if node_night.node in moved], machines

    def _nodes_of_night(self, folder: Path, night: NightRecord) -> Sequence[Node]:
        """Return the hardware of a night's nodes by its record, or nothing if the record cannot be read."""
        recorded_run = self._known(night.night_id)
        try:
            return (recorded_run or read_run(folder)).nodes
        except ResultsError:
            return ()

    def _lost_nodes(self, folder: Path, night: NightRecord, missing: set[str]) -> set[str]:
        """Return the nodes that a night may have lost when it was altered.

        An older night must not count for them. ``missing`` are the nodes that no newer night has.
        """
        recorded_run = self._known(night.night_id)
        is_altered = recorded_run is not None and record_objection(recorded_run, folder)
        return missing - _names(night.nodes) if is_altered else set()

    def _night_piece(
        self, folder: Path, night: NightRecord, node_nights: Sequence[NodeNight], lost: Sequence[str]
    ) -> EvidencePiece:
        """Return a night as a piece of evidence about some of its nodes.

        ``node_nights`` are these nodes. ``lost`` are requested nodes that the night may have had before it
        was altered. These are unproven.
        """
        verdicts = {node_night.node: node_night.verdict for node_night in node_nights}
        snapshots = ((name, night_store.read_snapshot(folder, name)) for name in verdicts)
        nodes = {name: snapshot for name, snapshot in snapshots if snapshot}
        recorded_run = self._known(night.night_id)
        objections = (
            *_night_doubts(recorded_run, node_nights, nodes),
            *_doubts(recorded_run, folder),
            *self._fakes([snapshot.about for snapshot in nodes.values()]),
        )
        recorded = {node.name: node for node in self._nodes_of_night(folder, night)}
        self._see(night.ended, [snapshot.about for snapshot in nodes.values()], is_proven=not objections)
        return EvidencePiece(
            id=night.night_id,
            kind="night",
            moment=_bounded(night.ended),
            command=("ansible-playbook", "validate.yml"),
            nodes=tuple(
                nodes[name].about if name in nodes else recorded.get(name, Node(name=name))
                for name in (*verdicts, *lost)
            ),
            verdict=worst(
                [*(node_night.verdict for node_night in node_nights), *[Verdict.UNPROVEN] * len(lost)]
            ),
            verdicts=verdicts,
            findings=tuple(chain.from_iterable(map(_night_findings, node_nights))),
            **_snapshot_fields(nodes),
            measured=tuple(node_night.node for node_night in node_nights if node_night.measured),
            files=tuple(
                _files(folder, recorded_run, [folder / night_store.NIGHT_FILE, *_snapshots(folder, nodes)])
            ),
            objections=objections,
        )

    # Missing records.

    def _gone(self, pieces: Sequence[EvidencePiece]) -> Iterator[EvidencePiece]:
        """Yield the history's entries whose record is lost or unreadable, and altered runs."""
        piece_ids = {piece.id for piece in pieces}
        oldest = min((piece.moment for piece in pieces if piece.kind == "night"), default=None)
        for row in self._store.runs(limit=_MOST_RUNS):
            self._see_row(row)
            moment = row.ended or row.moment
            # An earlier night does not matter, because a newer one replaced it.
            is_newer = row.benchmark in self._benchmarks or oldest is None or moment > oldest
            if row.run_id not in piece_ids and is_newer and self._counts(row) and self._is_lost(row.run_id):
                yield self._gone_piece(row, moment)

    def _see_row(self, row: RunRow) -> None:
        """Keep the nodes' hardware in a history's row whose record is not known to be unchanged."""
        names = self._wanted & set(row.nodes)
        # The rows come newest first, and an older record shows no newer hardware.
        is_older = row.ended and all(name in self._seen and self._seen[name][0] > row.ended for name in names)
        if row.run_id in self._unchanged or not names or is_older:
            return
        recorded_run = self._known(row.run_id)
        if recorded_run and recorded_run.provenance == "ran":
            self._see(_moment_of(recorded_run), recorded_run.nodes, is_proven=True)

    def _counts(self, row: RunRow) -> bool:
        """Return whether a run in the history concerns the requested nodes and the catalogue."""
        if row.benchmark == night_store.BENCHMARK:
            # The history does not name the nodes that a night did not reach.
            return True
        is_mine = not row.nodes or bool(self._wanted & set(row.nodes))
        return is_mine and row.provenance == "ran" and row.benchmark in self._benchmarks

    def _is_lost(self, run_id: str) -> bool:
        """Return whether a run's record is missing or altered, or a night's record cannot be read."""
        if run_id in self._unchanged:
            return False
        if not night_store.is_night(run_id):
            return True
        try:
            folder = self._results / run_id
            _ = night_store.read_night(folder)
        except ResultsError:
            return True
        return False

    def _gone_piece(self, row: RunRow, moment: datetime) -> EvidencePiece:
        """Return a run or night as the history has it, at best unproven, for a lost or altered record."""
        is_night = row.benchmark == night_store.BENCHMARK
        names = sorted({*row.nodes, *self._asked}) if is_night or not row.nodes else row.nodes
        verdict = worst([row.verdict, Verdict.UNPROVEN])
        # A requested node counts whatever its hardware was. Another one counts if it had a requested part.
        recorded_run = None if is_night else self._known(row.run_id)
        recorded = {node.name: node for node in recorded_run.nodes} if recorded_run else {}
        return EvidencePiece(
            id=row.run_id,
            kind="night" if is_night else "run",
            benchmark="" if is_night else row.benchmark,
            parameters=row.parameters,
            moment=_bounded(moment),
            nodes=tuple(
                Node(name=name) if name in self._asked else recorded.get(name, Node(name=name))
                for name in names
            ),
            verdict=verdict,
            verdicts=dict.fromkeys(names, Verdict.UNPROVEN) if is_night else {},
            objections=(f"the history has it as {row.verdict.value}; its folder is gone or was altered",),
            gone=True,
        )

    def _damaged(self, name: str, why: str) -> EvidencePiece:
        """Return an unreadable record as the evidence of a night, which may have included every node."""
        return EvidencePiece(
            id=name,
            kind="night",
            moment=_bounded(stamp_of(name) or self._now),
            nodes=tuple(Node(name=node_name) for node_name in sorted(self._asked)),
            verdict=Verdict.UNPROVEN,
            objections=(sanitize(why, _LONGEST),),
            gone=True,
        )


def _order(piece: EvidencePiece) -> tuple[datetime, str]:
    return piece.moment, piece.id


def _names(node_nights: Iterable[NodeNight]) -> set[str]:
    """Return the names of the nodes."""
    return {node_night.node for node_night in node_nights}


def _snapshot_fields(nodes: Mapping[str, StoredSnapshot]) -> dict[str, Any]:
    """Return the fields of a piece of evidence that come from the snapshots of nodes, each by node."""
    return {
        "reads": {name: _reads(snapshot) for name, snapshot in nodes.items()},
        "expected": {name: snapshot.expected for name, snapshot in nodes.items()},
        "limits": {name: _changed_limits(snapshot) for name, snapshot in nodes.items()},
    }


def _is_reached(node_night: NodeNight) -> bool:
    """Return whether a night reached a node."""
    return not node_night.unreached


def _failed(node_night: NodeNight) -> bool:
    """Return whether a night reached a node, and the node failed."""
    return _is_reached(node_night) and node_night.verdict is Verdict.FAIL


def _moment_of(run: Run) -> datetime:
    """Return the end of a run, or else its start, the time in its id, or the year 1970."""
    moment = run.ended or run.started or stamp_of(run.run_id) or datetime.fromtimestamp(0, UTC)
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _bounded(moment: datetime) -> datetime:
    """Return a time, or the bound of a certificate's times beyond which it is."""
    return min(max(moment, EARLIEST), LATEST)


def _nodes_of(run: Run) -> tuple[Node, ...]:
    """Return the nodes of a run. A node that did not answer has only its name."""
    described_names = {node.name for node in run.nodes}
    return (*run.nodes, *(Node(name=name) for name in run.asked_nodes if name not in described_names))


def _doubts(known: Run | None, folder: Path) -> Iterator[str]:
    """Yield why a run or night is not proven: the history lacks it, or its folder was changed."""
    if known is None:
        yield "the history lacks it: enter it with `rackproof history --rebuild`"
    elif objection := record_objection(known, folder):
        yield sanitize(objection, _LONGEST)


def _no_logs(run: Run) -> Iterator[str]:
    if not run.logs:
        yield "it has no raw log"


def _night_doubts(
    known: Run | None, node_nights: Sequence[NodeNight], snapshots: Mapping[str, StoredSnapshot]
) -> Iterator[str]:
    """Yield the missing snapshots, and the reasons why existing ones prove nothing."""
    for node_night in node_nights:
        if not node_night.unreached and node_night.node not in snapshots:
            yield f"the snapshot of {node_night.node} is gone or was changed"
    if known and not known.logs:
        yield "its record has no digests of its files: it was made before nights kept them"


def _snapshots(folder: Path, names: Iterable[str]) -> list[Path]:
    return [night_store.snapshot_path(folder, name) for name in names]


def _night_findings(node_night: NodeNight) -> Iterator[PieceFinding]:
    """Yield a night's findings and reasons about a node, and a finding if it was not reached."""
    for health in node_night.findings:
        yield PieceFinding(
            node=node_night.node, code=health.code, verdict=health.verdict, text=health.evidence
        )
    for reason in node_night.reasons:
        text = sanitize(reason.text, _LONGEST)
        yield PieceFinding(node=node_night.node, code=reason.code, verdict=reason.verdict, text=text)
    if node_night.unreached:
        text = sanitize(node_night.unreached, _LONGEST)
        yield PieceFinding(node=node_night.node, code="unreached", verdict=Verdict.UNPROVEN, text=text)


def _reads(kept: StoredSnapshot) -> dict[str, str]:
    """Return the state of each tool's answer, and whether the node has GPUs, ports and disks."""
    snapshot = kept.snapshot
    states = {tool: tool_state(snapshot, tool).value for tool in snapshot.tools}
    states |= dict.fromkeys(snapshot.truncated, "cut")
    for name, parts in (("gpus", snapshot.gpus), ("ports", snapshot.ports), ("disk", snapshot.disk)):
        states[name] = "there" if parts else "absent"
    return states


def _changed_limits(stored: StoredSnapshot) -> tuple[ChangedLimit, ...] | None:
    """Return the limits that differ from the defaults, or None if the snapshot does not have them."""
    if "limits" not in stored.model_fields_set:
        return None
    defaults = asdict(Limits())
    return tuple(
        ChangedLimit(name=name, value=value, default=defaults[name])
        for name, value in sorted(stored.limits.items())
        if name in defaults and value != defaults[name]
    )


def _files(folder: Path, record: Run | None, paths: Collection[Path] = ()) -> Iterator[RawFile]:
    """Yield the record of a run or night, and its other files, with their recorded digests.

    If ``paths`` is not empty, only these of the other files are yielded.
    """
    # A missing or different file is already among the objections.
    with contextlib.suppress(OSError):
        digest, length = digest_file(folder / RECORD_NAME)
        yield RawFile(path=f"{folder.name}/{RECORD_NAME}", sha256=digest, size_bytes=length)
    for log in record.logs if record else ():
        if not paths or folder / log.path in paths:
            yield RawFile(path=f"{folder.name}/{log.path}", sha256=log.sha256, size_bytes=log.size_bytes)
