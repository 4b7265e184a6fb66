"""Write and read the nights of a fleet, each in a folder of its own.

A night is one run of validate.yml. Job validate writes a folder such as
``results/20260131T020000Z-health-0a1b2c``, which also has the night's ``run.json``. Later nights, jobs bench
and reimage, certificates and several commands read it. This module handles these files:

* ``snapshots/NODE.json``, the snapshot of a node, written when the node answers;
* ``conditions.json``, the firmware and rack of each node, by its hardware key, written with ``night.json``;
* ``night.json``, the judgements, written when all nodes are judged, and again when all acts are done.

A folder that has neither ``night.json`` nor ``run.json`` is an unfinished night, which no comparison uses.

Begin with :func:`night_folders`, :func:`read_night` and :func:`read_snapshot`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from pydantic import AliasChoices, Field, ValidationError

from rackproof.core.hostlist import compress_hostlist
from rackproof.core.judging import SkuReference, sku_references
from rackproof.core.records import KEPT_RECORD, WORST_FIRST, LogFile, Node, Record, Verdict
from rackproof.core.text import sanitize
from rackproof.nodes.health_subjects import HealthFinding
from rackproof.nodes.snapshot_records import NodeSnapshot
from rackproof.store.host_claims import claimed_hosts
from rackproof.store.run_evidence import digest_file
from rackproof.store.run_folder import RECORD_NAME, ResultsError, read_file, stamp_of, write_file
from rackproof.store.sealed_json import SealError, open_sealed, seal_json

NIGHT_FILE = "night.json"
"""File of a night's record in its folder."""
CONDITIONS_FILE = "conditions.json"
"""File with the firmware and rack of a night's nodes in its folder."""
SNAPSHOTS_FOLDER = "snapshots"
"""Folder of the nodes' snapshots in a night's folder."""
EARLIER_SNAPSHOTS_FOLDER = "looks"
"""Folder of the nodes' snapshots in the nights of earlier versions. The files there have the key ``look``
instead of ``snapshot``. Rackproof reads the files, and does not rename anything."""
NIGHT_CLAIMS = ".nights"
"""Folder of the claims of running nights in the results folder."""
BENCHMARK = "health"
"""Benchmark of a night in the history and in its id."""
DRAIN_PREFIX = "rackproof-night:"
"""Prefix of the reasons with which nights drain.

Provisioning uses other prefixes, and nights do not change its drains.
"""
NIGHTS_BACK = 60
"""Number of nights, newest first, in which a node is searched. A node that is in none of them counts as
new."""
_LARGEST = 512 << 20
"""Largest size in bytes of a night's file that is read."""
MOST_SEARCHED = 20_000
"""Largest number of snapshots, newest first, in which a part is searched. Without this limit, the search for
a part that is new from the vendor would read all snapshots."""
_QUOTED = re.compile(rb'"([^"\\]*(?:\\.[^"\\]*)*)"?', re.DOTALL)
"""A text between two quotation marks of a snapshot's file, such as a serial number, with its escapes.

Every text must match. After a text that does not, the marks would be paired wrongly. The last mark is
optional, so that the search takes linear time in a damaged file, too.
"""
# Matches the name of a night's folder, such as "20260131T020000Z-health-0a1b2c".
_NIGHT_NAME = re.compile(rf"\d{{8}}T\d{{6}}Z-{BENCHMARK}-[0-9a-f]{{6}}")


class NightContext(Record):
    """The handle of a night in progress, which the playbook passes from task to task.

    Attributes:
        night_id: The id of the night, which is the name of its folder in the results folder.
        folder: The path of the night's folder. In a dry run, this is a temporary folder.
        results: The path of the results folder.
        prefix: The beginning of the reasons with which this night drains.
        inventory: The inventories that the playbook reads.
    """

    night_id: str
    folder: str
    results: str
    prefix: str = DRAIN_PREFIX
    inventory: tuple[str, ...] = ()


class StoredSnapshot(Record):
    """A node's snapshot, and the inventory's expectations of the node at that time."""

    snapshot: NodeSnapshot = Field(validation_alias=AliasChoices("snapshot", "look"))
    about: Node
    rack: str = ""
    expected: dict[str, Any] = Field(
        default={}, description="Fields of `rackproof.nodes.health_subjects.Expectation`, with their values."
    )
    limits: dict[str, float] = Field(
        default={}, description="Fields of `rackproof.nodes.health_subjects.Limits`, with their values."
    )
    references: tuple[dict[str, Any], ...] = Field(
        default=(), description="The SKU's references as in `bench_sku_references`."
    )
    night: str = Field(
        default="", description="Name of the folder of the night in which the snapshot was taken."
    )
    sha256: str = Field(
        default="",
        exclude=True,
        description="Unused: the digest in the file is checked and removed when the file is read.",
    )

    def sku_references(self) -> list[SkuReference]:
        """Return the references of the node's SKU, as the inventory had them at that time.

        Raises:
            SkuReferenceError: A reference cannot be used.
        """
        return sku_references(self.snapshot.sku, self.references)


class NightReason(Record):
    """A measurement that does not pass.

    Attributes:
        check: The comparison that did not pass, such as ``floor`` or ``drift``.
        verdict: The verdict on the measurement.
        metric: The name of the measurement, or "" if no single measurement is meant.
        part: The part that was measured: a GPU or another part of a node, the node, or the nodes of a pair,
            joined by ``+``. Empty if the reason is for no single part.
        text: The reason, for operators.
        deviation: The relative deviation from the reference, such as -0.1 for 10 % less, or None if unknown.
        fleetwide: Whether the whole fleet deviates, so that the node itself is not at fault.
    """

    check: str
    verdict: Verdict
    metric: str = ""
    part: str = ""
    text: str
    deviation: float | None = None
    fleetwide: bool = False

    @property
    def code(self) -> str:
        """Return the code that identifies the reason from night to night."""
        return f"{self.check}:{self.metric}".rstrip(":")


class SlurmState(Record):
    """The state of a node in Slurm.

    Attributes:
        known: Whether Slurm lists the node.
        state: The state as Slurm writes it, such as ``IDLE+DRAIN``.
        drained_by: The owner of the drain: ``none``, ``ours`` (nights) or ``other``.
        reason: The reason that Slurm stores.
        set_by: The user who set the reason, and the time.
        jobs: The ids of the jobs on the node, at most 50.
    """

    known: bool = False
    state: str = ""
    drained_by: str = "none"
    reason: str = ""
    set_by: str = ""
    jobs: tuple[str, ...] = ()


def slurm_state(slurm: Mapping[str, Any] | None, name: str) -> SlurmState | None:
    """Return the state of a node in an answer of ``rackproof_slurm_node``, or None if it lacks the state.

    If the jobs are no list, the answer is damaged. The node must not count as idle then.
    """
    if slurm is None or not isinstance(about := slurm.get(name), Mapping):
        return None
    jobs = about.get("jobs")
    if not isinstance(jobs, list | tuple | None):
        return None
    return SlurmState(
        known=about.get("known") is True,
        state=sanitize(about.get("state_after") or "", 100),
        drained_by=sanitize(about.get("drained_by") or "none", 10),
        reason=sanitize(about.get("reason") or "", 300),
        set_by=sanitize(about.get("set_by") or "", 100),
        jobs=tuple(sanitize(job, 40) for job in jobs or ())[:50],
    )


class Hold(Record):
    """A drain by nights.

    Attributes:
        since: The night that drained the node.
        before: The night with the last snapshot of the node before the drain, or empty if the node had none.
            None if that is unknown, because no stored night made the drain or an earlier version stored it.
        failed: The last night in which the node failed, or empty if that is ``since``.
        codes: The codes of the failures.
        is_incomplete: Whether a later night is lost, so that ``codes`` may lack a failure of it.
        passes: The number of nights since the last failure that count as a pass.
        passed: The time of the last pass that was counted.
    """

    since: str
    before: str | None = None
    failed: str = ""
    codes: tuple[str, ...] = ()
    is_incomplete: bool = False
    passes: int = 0
    passed: datetime | None = None


class NodeNight(Record):
    """One node in one night: its findings, reasons, state in Slurm, and what the night plans and did.

    Attributes:
        findings: The findings of the health checks.
        reasons: The measurements that do not pass.
        measured: Whether there are numbers of the last 24 hours.
        read_again: The evidence about a drained node that this night read. An entry is a metric, a program
            that found no fault, a comparison (``fleet:METRIC``, ``drift:METRIC``), or a reading of the node's
            health (``health:NAME``).
        unreached: The reason why the node did not answer, or empty.
        asked_as_root: Whether the node was queried as root, or None if unknown.
        slurm: The state in Slurm after the night's own act, or None if Slurm did not answer.
        hold: The drain by nights, if there is one.
        plan: The planned action. ``return`` means to resume the node.
        why: The reason for the plan, or why nothing is planned.
        did: The action that was done, or empty if none was done.
    """

    node: str
    sku: str = ""
    rack: str = ""
    hardware_key: str = ""
    verdict: Verdict
    findings: tuple[HealthFinding, ...] = ()
    reasons: tuple[NightReason, ...] = ()
    measured: bool = False
    # Nights of earlier versions use the name `anew`.
    read_again: tuple[str, ...] = Field(default=(), validation_alias=AliasChoices("read_again", "anew"))
    unreached: str = ""
    asked_as_root: bool | None = None
    slurm: SlurmState | None = None
    hold: Hold | None = None
    plan: Literal["", "drain", "return"] = ""
    why: str = ""
    did: str = ""

    @property
    def is_health_only(self) -> bool:
        """Return whether the node was reached and has no measurement, so that its speed is not proven."""
        return not self.measured and not self.unreached

    def codes(self) -> tuple[str, ...]:
        """Return the codes of failures that affect only this node."""
        failed = [finding.code for finding in self.findings if _is_certain_failure(finding)]
        failed += [
            reason.code for reason in self.reasons if reason.verdict is Verdict.FAIL and not reason.fleetwide
        ]
        return tuple(dict.fromkeys(failed))

    def reason_texts(self) -> tuple[str, ...]:
        """Return why the node does not pass, as texts.

        The first text is why the node did not answer, if it did not. Then come the findings and the
        measurements, the node's own before those of the whole fleet, and the worst first.
        """
        texts = tuple(text for _, text in self.reason_texts_by_part())
        return ((self.unreached,) if self.unreached else ()) + texts

    def reason_texts_by_part(self) -> list[tuple[tuple[str, str], str]]:
        """Return code and part of each finding and measurement with its text.

        The order is that of :meth:`reason_texts`.
        """
        texts = [
            (
                not finding.is_own,
                finding.verdict,
                (finding.code, finding.name),
                f"{part_prefix(finding)}{finding.evidence}",
            )
            for finding in self.findings
        ]
        texts += [
            (
                reason.fleetwide,
                reason.verdict,
                (reason.code, reason.part),
                f"{reason.metric or reason.check} {reason.part}: {reason.text}".strip(),
            )
            for reason in self.reasons
        ]
        # The first text is often the only one that is shown. A finding that the whole fleet has would hide
        # the fault of this node.
        texts.sort(key=lambda entry: (entry[0], WORST_FIRST.index(entry[1])))
        return [(key, text) for *_, key, text in texts]


class NightRecord(Record):
    """A night of a fleet, as stored in ``night.json``. ``remarks`` are lines about the whole night."""

    schema_version: Literal[1] = 1
    night_id: str
    started: datetime
    ended: datetime
    verdict: Verdict
    nodes: tuple[NodeNight, ...] = ()
    between: tuple[NightReason, ...] = Field(default=(), description="Findings on pairs and groups.")
    remarks: tuple[str, ...] = ()
    acts: tuple[str, ...] = Field(default=(), description="The allowed acts: drain, return.")
    inventory: tuple[str, ...] = Field(default=(), description="Inventories that the playbook read.")
    closed: bool = Field(default=False, description="Whether all acts were done when this was written.")
    sha256: str = Field(
        default="",
        exclude=True,
        description="Unused: the digest in the file is checked and removed when the file is read.",
    )


def _is_certain_failure(finding: HealthFinding) -> bool:
    """Return whether a finding is a failure of this node alone, and more than a hint.

    A night drains the node for such a finding.
    """
    return finding.verdict is Verdict.FAIL and not finding.fleetwide and finding.confidence != "hint"


def part_prefix(finding: HealthFinding) -> str:
    """Return the name and place of a finding's part, as the beginning of a text, or "" for a node."""
    if finding.part == "node":
        return ""
    location = f" ({finding.place})" if finding.place else ""
    return f"{finding.name}{location}: "


def snapshot_path(folder: Path, node: str) -> Path:
    """Return the path of a node's snapshot.

    Raises:
        ResultsError: The name of the node cannot be used for a file.
    """
    if not node or "/" in node or node.startswith(".") or len(node) > 200:
        raise ResultsError(
            f"{sanitize(node, 100)!r}: not usable as the name of a file; rename it in the inventory"
        )
    return snapshots_folder(folder) / f"{node}.json"


def snapshots_folder(folder: Path) -> Path:
    """Return the folder of a night's snapshots.

    If only the folder with the name of earlier versions exists, return that folder.
    """
    earlier_folder, present_folder = folder / EARLIER_SNAPSHOTS_FOLDER, folder / SNAPSHOTS_FOLDER
    return earlier_folder if earlier_folder.is_dir() and not present_folder.is_dir() else present_folder


def write_snapshot(folder: Path, node: str, kept: StoredSnapshot) -> None:
    """Store a snapshot, completely or not at all.

    Raises:
        ResultsError: The snapshot cannot be written.
    """
    kept = kept.model_copy(update={"night": folder.name})
    write_file(snapshot_path(folder, node), seal_json(kept.model_dump_json(by_alias=True)))


def read_snapshot(folder: Path, node: str) -> StoredSnapshot | None:
    """Return a node's snapshot, or None if it is missing, damaged or another node's."""
    try:
        stored = StoredSnapshot.model_validate_json(
            open_sealed(read_file(snapshot_path(folder, node), _LARGEST))
        )
    except (OSError, ValueError):
        return None
    is_own = stored.snapshot.node == node and stored.night in ("", folder.name)
    return stored if is_own else None


def nodes_seen(folder: Path) -> frozenset[str]:
    """Return the nodes that answered in a night, or an empty set if its record is missing or damaged."""
    try:
        return frozenset(node.node for node in read_night(folder).nodes if not node.unreached)
    except ResultsError:
        return frozenset()


def write_night(folder: Path, night: NightRecord) -> None:
    """Store a night, completely or not at all.

    Raises:
        ResultsError: The night cannot be written.
    """
    write_file(folder / NIGHT_FILE, seal_json(night.model_dump_json(indent=1) + "\n"))


def night_files(folder: Path, nodes: Iterable[str]) -> tuple[LogFile, ...]:
    """Return the digests of a night's record and of these nodes' snapshots, for its ``run.json``.

    Raises:
        OSError: A file is missing or cannot be read.
    """
    paths = (folder / NIGHT_FILE, *(snapshot_path(folder, node) for node in nodes))
    return tuple(_digested(folder, path) for path in paths)


def _digested(folder: Path, path: Path) -> LogFile:
    """Return a file of a night with its digest."""
    digest, length = digest_file(path)
    name = str(path.relative_to(folder))
    return LogFile(path=name, sha256=digest, size_bytes=length, format=KEPT_RECORD, verdict=Verdict.PASS)


def read_night(folder: Path) -> NightRecord:
    """Return a stored night.

    Raises:
        ResultsError: The record does not exist, or is damaged.
    """
    path = folder / NIGHT_FILE
    try:
        night = NightRecord.model_validate_json(open_sealed(read_file(path, _LARGEST)))
    except SealError as error:
        raise ResultsError(f"{path} is damaged: {error}; the night before it counts") from None
    except OSError as error:
        raise ResultsError(f"cannot read {path}: {error.strerror}") from None
    except ValidationError as error:
        first_error = error.errors()[0]
        field = ".".join(map(str, first_error["loc"]))
        raise ResultsError(
            f"{path} is damaged: {field}: {first_error['msg']}; the night before it counts"
        ) from None
    # The name of a dry run's folder is temporary, so compare only the names of stored nights.
    if is_night(folder.name) and night.night_id != folder.name:
        raise ResultsError(f"{path} is damaged: it is that of {night.night_id}; the night before it counts")
    return night


def write_conditions(folder: Path, snapshots: Iterable[StoredSnapshot]) -> None:
    """Store the firmware and rack of a night's nodes by hardware key, for the groups of later nights.

    Raises:
        ResultsError: The file cannot be written.
    """
    conditions = {
        stored.about.hardware_key: (firmware_of(stored.snapshot), stored.rack) for stored in snapshots
    }
    write_file(folder / CONDITIONS_FILE, json.dumps(conditions).encode() + b"\n")


def firmware_of(snapshot: NodeSnapshot) -> str:
    """Return the versions of driver, VBIOS and GSP as one text, because they set the speed of the GPUs."""
    versions = [snapshot.versions.get(name, "") for name in ("driver", "vbios", "gsp")]
    return "/".join(versions) if any(versions) else ""


def read_conditions(
    folders: Iterable[Path], tonight: Iterable[StoredSnapshot], now: datetime, nights: int
) -> list[dict[str, tuple[str, str]]]:
    """Return pairs of firmware and rack by hardware key, one mapping per day of 24 hours, tonight first.

    The mapping of a day without a night, or whose record is lost, is empty. If a day has several nights, the
    newest one with a record counts.

    Args:
        folders: The folders of earlier nights, newest first.
        tonight: Tonight's snapshots.
        now: The end of tonight.
        nights: The number of days before tonight.
    """
    conditions: list[dict[str, tuple[str, str]]] = [{} for _ in range(nights + 1)]
    conditions[0] = {
        stored.about.hardware_key: (firmware_of(stored.snapshot), stored.rack) for stored in tonight
    }
    for folder in folders:
        stamp = stamp_of(folder.name)
        ago = (now - stamp) // timedelta(days=1) if stamp else 0
        if ago > nights:
            break
        if ago > 0 and not conditions[ago]:
            conditions[ago] = _stored_conditions(folder)
    return conditions


def _stored_conditions(folder: Path) -> dict[str, tuple[str, str]]:
    """Return the firmware and rack that a night stored, or nothing if they are lost."""
    try:
        conditions = json.loads(read_file(folder / CONDITIONS_FILE, _LARGEST))
        return {str(key): (str(firmware), str(rack)) for key, (firmware, rack) in conditions.items()}
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):
        # The file is damaged or missing. The comparison of nights then uses the conditions of the next night.
        return {}


def is_night(name: str) -> bool:
    """Return whether a name is the name of a night's folder. Folders of runs are named similarly."""
    return _NIGHT_NAME.fullmatch(name) is not None


def night_folders(results: Path, *, before: str = "") -> list[Path]:
    """Return the folders of finished nights, newest first, at most :data:`NIGHTS_BACK`.

    Args:
        results: The results folder.
        before: The name of a night, to return only earlier nights.

    Raises:
        ResultsError: The folder cannot be listed.
    """
    names = _night_names(results)
    if before:
        names = [name for name in names if name < before]
    # Check only as many folders as needed, because there may be years of nights.
    finished_folders = (results / name for name in names if _is_finished(results / name))
    return list(islice(finished_folders, NIGHTS_BACK))


def _night_names(results: Path) -> list[str]:
    """Return the names of all nights, newest first. Raise ResultsError if the folder cannot be listed."""
    try:
        # Names start with the time, so they sort by time.
        return sorted((entry.name for entry in results.iterdir() if is_night(entry.name)), reverse=True)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise ResultsError(f"cannot list the results in {results}: {error.strerror}") from None


def interrupted_nights(results: Path, wanted: Collection[str] = ()) -> list[str]:
    """Return a remark on each interrupted night with nodes that no later night judged, newest first.

    Such a night took snapshots, and an earlier night counts in its place. A night that runs on this machine
    is not interrupted. The nights are as old as those of :func:`night_folders` at most.

    Args:
        results: The results folder.
        wanted: The nodes that matter. Without any, all nodes do.

    Raises:
        ResultsError: The folder or the claims of running nights cannot be read.
    """
    finished = {folder.name for folder in night_folders(results)}
    oldest = min(finished) if len(finished) == NIGHTS_BACK else ""
    names = [name for name in _night_names(results) if name >= oldest]
    last = min({*names} - finished, default=None)
    if last is None:
        return []
    judged = claimed_hosts(results / NIGHT_CLAIMS)
    # It is not known which nodes a night without snapshots was to judge, so only the newest one matters.
    is_newest, remarks = not judged, []
    for name in names[: names.index(last) + 1]:
        if name in finished:
            judged |= _nodes_judged(results / name)
            is_newest = False
            continue
        snapshots = {path.stem for path in snapshots_folder(results / name).glob("*.json")}
        nodes = (snapshots & set(wanted) if wanted else snapshots) - judged
        if nodes or (is_newest and not snapshots):
            remarks.append(_interrupted_text(name, nodes))
    return remarks


def _nodes_judged(folder: Path) -> frozenset[str]:
    """Return the nodes of a night, or an empty set if its record is missing or damaged."""
    try:
        return frozenset(node.node for node in read_night(folder).nodes)
    except ResultsError:
        return frozenset()


def _interrupted_text(name: str, nodes: Iterable[str]) -> str:
    """Return the remark on an interrupted night with snapshots of these nodes."""
    names_text = sanitize(compress_hostlist(nodes), 200)
    lost = f"its snapshots of {names_text} are not judged" if names_text else "it took no snapshot"
    return (
        f"night {name} was interrupted, or runs on another machine: {lost}, and an earlier night counts; "
        "run validate.yml again"
    )


def last_inventory(results: Path) -> tuple[str, ...]:
    """Return the inventories of the newest night that can be read, or none.

    Raises:
        ResultsError: The folder cannot be listed.
    """
    for folder in night_folders(results):
        try:
            return read_night(folder).inventory
        except ResultsError:  # Other callers report the damaged night.
            continue
    return ()


def _is_finished(folder: Path) -> bool:
    """Return whether a night is finished, which one of its two records shows if the other is lost."""
    return (folder / NIGHT_FILE).exists() or (folder / RECORD_NAME).exists()


def last_snapshot(folders: Iterable[Path], node: str) -> StoredSnapshot | None:
    """Return a node's latest snapshot in some nights (given newest first), or None if there is none."""
    return next((kept for folder in folders if (kept := read_snapshot(folder, node)) is not None), None)


def last_known(folders: Iterable[Path], names: Iterable[str]) -> tuple[dict[str, NodeNight], list[str]]:
    """Return the last known state of each node, and a remark on each damaged night that was read.

    The folders of nights are given newest first, and are read until all nodes are found. If a newer night is
    damaged, a node has no passes.
    """
    node_nights: dict[str, NodeNight] = {}
    missing, remarks = set(names), []
    for folder in folders:
        if not missing:
            break
        try:
            night = read_night(folder)
        except ResultsError as error:
            remarks.append(str(error))
            continue
        for node in night.nodes:
            if node.node in missing:
                node_nights[node.node] = _without_passes(node) if remarks else node
                missing.discard(node.node)
    return node_nights, remarks


def earlier_states(
    night: NightRecord, before: NightRecord | None, folders: Sequence[Path]
) -> dict[str, NodeNight]:
    """Return the last states of the nodes that the night before left out.

    Args:
        night: The night.
        before: The night before, or None if there is none.
        folders: The folders of the nights before that one, newest first.
    """
    known = {node.node for node in before.nodes} if before else set()
    return last_known(folders, {node.node for node in night.nodes} - known)[0]


def _without_passes(node_night: NodeNight) -> NodeNight:
    """Return a state without its passes, because the node may have failed in a lost night."""
    if node_night.hold is None:
        return node_night
    update = {"passes": 0, "passed": None, "is_incomplete": True}
    return node_night.model_copy(update={"hold": node_night.hold.model_copy(update=update)})


def nights_of_node(
    folders: Iterable[Path], node: str, damaged: list[str] | None = None
) -> Iterator[tuple[NightRecord, NodeNight]]:
    """Yield the nights that include a node. Skip damaged nights, and add a remark on each to ``damaged``."""
    for folder in folders:
        try:
            night = read_night(folder)
        except ResultsError as error:
            if damaged is not None:
                damaged.append(str(error))
            continue
        own_night = next((node_night for node_night in night.nodes if node_night.node == node), None)
        if own_night is not None:
            yield night, own_night


def strange_parts(kept: StoredSnapshot, previous: StoredSnapshot | None) -> tuple[str, ...]:
    """Return the serial number and UUIDs that are new in a node.

    Args:
        kept: The node's present snapshot.
        previous: The node's snapshot of an earlier night, or None if there is none. Then all parts are new.
    """
    snapshot = kept.snapshot
    if previous is None:
        return tuple(filter(None, (snapshot.serial, *(gpu.uuid for gpu in snapshot.gpus))))
    before = previous.snapshot
    # An identity that was not accepted is as unknown as in the node's first night.
    known_parts = set(before.identity_gpus) or {gpu.uuid for gpu in (*before.gone_gpus, *before.gpus)}
    known_parts.add(before.identity_serial or before.serial or snapshot.serial)
    return tuple(
        part
        for part in (snapshot.serial, *(gpu.uuid for gpu in snapshot.gpus))
        if part and part not in known_parts
    )


def find_last_places(folders: Sequence[Path], parts: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """Return for each part the last other node that reported it, with the day (``2026-01-31``).

    A part that no other node reported is not in the result.

    Args:
        folders: The folders of nights, newest first.
        parts: The serial numbers and UUIDs, each with its present node.
    """
    places: dict[str, tuple[str, str]] = {}
    for folder, path in islice(_snapshot_files(folders), MOST_SEARCHED):
        missing = parts.keys() - places.keys()
        if not missing:
            break
        for part in _parts_in(folder, path, missing):
            if path.stem != parts[part]:
                moment = stamp_of(folder.name)
                places[part] = (path.stem, f"{moment:%Y-%m-%d}" if moment else folder.name)
    return places


def _snapshot_files(folders: Sequence[Path]) -> Iterator[tuple[Path, Path]]:
    """Yield the snapshots of all nodes, each with its night's folder, newest night first."""
    for folder in folders:
        for path in sorted(snapshots_folder(folder).glob("*.json")):
            yield folder, path


def _parts_in(folder: Path, path: Path, parts: Collection[str]) -> list[str]:
    """Return the wanted parts that a node reported in a night, or none from a damaged snapshot."""
    try:
        # Search the texts first. To parse the whole snapshot takes a hundred times as long.
        words = _quoted_words(read_file(path, _LARGEST))
    except OSError:
        return []
    if words.isdisjoint(parts):
        return []
    stored = read_snapshot(folder, path.stem)
    if stored is None:
        return []
    has = {stored.about.serial, *(gpu.uuid for gpu in stored.snapshot.gpus)}
    return sorted(part for part in parts if part in has)


def _quoted_words(data: bytes) -> set[str]:
    """Return the texts of a snapshot's file, without their escapes."""
    return {
        _without_escapes(word) if b"\\" in word else word.decode("utf-8", "replace")
        for word in _QUOTED.findall(data)
    }


def _without_escapes(word: bytes) -> str:
    """Return a text of a JSON file as it was before it was written, or "" if it is damaged."""
    try:
        return str(json.loads(b'"' + word + b'"'))
    except ValueError:
        return ""
