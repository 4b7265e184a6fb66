"""Test that less evidence never makes a better verdict.

    python tests/fuzz/monotonicity.py --mutations 10000

Each mutation removes or damages one file (artefact) of a recorded run, and judges the run again with the
functions that judged it. From good to bad, the verdicts are pass, degraded, unproven and fail. No verdict may
become better, with one exception: a failure whose evidence is gone can only be "unproven". This does not
count as better if the damage itself is among the reasons.

There are runs of bench.yml, nights of validate.yml, and runs of reimage.yml. Some were recorded, and others
are made from published logs or invented answers. The artefacts are the files from which a run is judged, such
as its plan, logs and records, its benchmark definition, or for a night also the files of the night before. No
mutation removes a whole folder.
"""

from __future__ import annotations

import hashlib
import json
import lzma
import os
import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from pathlib import Path
from random import Random
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from rackproof.core.records import Finding, Node, Verdict
from rackproof.jobs.bench import mlperf_checks, planning
from rackproof.jobs.bench.planning import PlannedRun
from rackproof.jobs.bench.record import job_seal, judge_folder
from rackproof.jobs.bench.required_evidence import Evidence
from rackproof.jobs.reimage import acceptance, lifecycle, run_files
from rackproof.jobs.reimage import tasks as reimage_tasks
from rackproof.jobs.reimage.run_files import ReimageContext, ReimageError, RunRequest
from rackproof.jobs.validate.errors import ValidateError
from rackproof.jobs.validate.judge import judge_fleet
from rackproof.jobs.validate.tasks import build_night_run, store_snapshot
from rackproof.store import night_store
from rackproof.store.history.client import History
from rackproof.store.night_store import NightContext, NightReason
from rackproof.store.probe_results import PairResult, ProbeNight, write_probes
from rackproof.store.run_folder import ResultsError, write_run
from rackproof.store.sealed_json import open_sealed, seal_json
from tests.fuzz.batches import read_options, try_in_batches
from tests.fuzz.edits import draw_removals, edited
from tests.fuzz.samples import healthy_answer, with_faults
from tests.jobs.bench.test_slurm_runs import NODES as SLURM_NODES
from tests.jobs.bench.test_slurm_runs import SlurmRun

ROOT = Path(__file__).resolve().parents[2]
REAL = ROOT / "tests/data/real"
SLURM_BENCHMARK = "llama2_70b_lora"
ORDER = (Verdict.PASS, Verdict.DEGRADED, Verdict.UNPROVEN, Verdict.FAIL)
DAMAGE = frozenset(
    {
        "answer_cut", "definition_changed", "definition_unreadable", "job_damaged", "log_differs", "no_job",
        "no_log", "snapshot_lost", "stray_log", "unreadable", "unreadable_log", "unreached", "unknown_end",
        "no_exit_status", "another_job", "still_running", "no_job_times",
    }
)  # fmt: skip
"""Codes of findings that name a damage, or what is missing."""


@dataclass(frozen=True)
class Judged:
    """Verdicts of a run by part, and the codes of findings, which may show the damage."""

    verdicts: dict[str, Verdict]
    damage: frozenset[str] = frozenset()


def improvements(before: Judged, after: Judged) -> list[str]:
    """Return the parts that became better, in words."""
    better = []
    for part, was in before.verdicts.items():
        now = after.verdicts.get(part, Verdict.UNPROVEN)
        if ORDER.index(now) >= ORDER.index(was):
            continue
        if (was, now) == (Verdict.FAIL, Verdict.UNPROVEN) and after.damage & DAMAGE:
            continue
        better.append(f"{part}: {was.value} became {now.value} ({', '.join(sorted(after.damage))})")
    return better


@dataclass(frozen=True)
class RecordedRun:
    """A function that makes the files of a run, and a function that judges these files."""

    name: str
    make: Callable[[Path], None]
    judge: Callable[[Path], Judged]
    artefacts: tuple[str, ...]
    """Patterns of the files of the run below its folder."""


def _read_record(folder: Path) -> Judged:
    """Return the verdict of the stored record, which the report of a plan and the history read."""
    try:
        (plan,) = folder.glob("results/plan-*")
        runs = planning.read_plan(folder / "results", plan.name).recorded(folder / "results")
        return Judged({"record": next(iter(runs.values())).verdict})
    except (ResultsError, StopIteration):
        return Judged({"record": Verdict.UNPROVEN}, frozenset({"unreadable"}))


def _both(one: Judged, other: Judged) -> Judged:
    return Judged({**one.verdicts, **other.verdicts}, one.damage | other.damage)


# Runs of bench.yml: local runs as they were recorded, and runs through Slurm and Docker with published logs.


_check_compliance = mlperf_checks.check_compliance
_compliance: dict[tuple[str, str], list[Finding]] = {}


def _checked_once(planned: PlannedRun, path: Path) -> list[Finding]:
    """Return the findings of MLCommons' checker. It is slow, so each log is checked only once."""
    key = (planned.result.ruleset, hashlib.sha256(path.read_bytes()).hexdigest())
    if key not in _compliance:
        _compliance[key] = _check_compliance(planned, path)
    return _compliance[key]


def folder_name(folder: Path) -> str:
    """Return the name of the run's folder. There is only one run."""
    (logs,) = folder.glob("results/*/logs")
    return logs.parent.name


def _judge_bench(folder: Path) -> Judged:
    mlperf_checks.check_compliance = _checked_once
    record = _read_record(folder)
    try:
        (place,) = folder.glob("results/plan-*")
        plan = planning.read_plan(folder / "results", place.name)
    except ResultsError:
        return _both(record, Judged({"run": Verdict.UNPROVEN}, frozenset({"unreadable"})))
    planned = plan.runs[0]
    try:
        job = json.loads((folder / "state.json").read_text())
    except (OSError, ValueError):
        job = {}
    known = Evidence(
        nodes=tuple(Node.model_validate(one) for one in json.loads((folder / ".nodes.json").read_text())),
        job=job if isinstance(job, dict) else {},
    )
    run, _ = judge_folder(
        planned,
        known,
        folder / "results" / folder_name(folder),
        History(folder / "results"),
        plan_id=place.name,
        require_references=False,
    )
    return _both(record, Judged({"run": run.verdict}, frozenset(one.code for one in run.findings)))


def _run_id(name: str) -> str:
    return f"20261123T010000Z-{name}"


def _keep(
    name: str,
    folder: Path,
    plan: dict[str, Any],
    state: dict[str, Any],
    nodes: list[Any],
    log: bytes,
    definition: str = "",
) -> None:
    (run,) = plan["runs"]
    results = folder / "results"
    run["run_id"] = _run_id(name)
    plan["plan_id"] = f"plan-{name}"
    (results / plan["plan_id"]).mkdir(parents=True)
    (results / run["run_id"] / "logs").mkdir(parents=True)
    shutil.copytree(REAL / "runs/definitions", folder / "definitions")
    if definition:
        copy = shutil.copy(ROOT / definition, folder / "definitions")
        run["definition_sha256"] = hashlib.sha256(Path(copy).read_bytes()).hexdigest()
    run["definition_path"] = str(folder / "definitions" / (Path(definition).name or "toy.yml"))
    run["definition_ctime_ns"] = 0
    (results / plan["plan_id"] / "plan.json").write_bytes(seal_json(json.dumps(plan, indent=1)))
    (results / run["run_id"] / f"logs/{run['lead']}.log").write_bytes(log)
    state = {
        **state,
        "id": run["run_id"],
        "log_bytes": len(log),
        "log_sha256": hashlib.sha256(log).hexdigest(),
    }
    (folder / "state.json").write_text(json.dumps({**state, "seal": job_seal(state)}))
    (folder / ".nodes.json").write_text(json.dumps(nodes))
    made = planning.read_plan(results, plan["plan_id"]).runs[0]
    known = Evidence(
        nodes=tuple(Node.model_validate(one) for one in nodes),
        job=json.loads((folder / "state.json").read_text()),
    )
    kept, _ = judge_folder(
        made,
        known,
        results / run["run_id"],
        History(results),
        plan_id=plan["plan_id"],
        require_references=False,
    )
    write_run(kept, results / run["run_id"])


def _recorded(place: Path, name: str = "", definition: str = "", **job: Any) -> RecordedRun:
    """Return a run as bench.yml recorded it, or with another end of its job."""

    def make(folder: Path) -> None:
        (log,) = (place / "logs").glob("*.log")
        read = [json.loads((place / file).read_text()) for file in ("plan.json", "state.json", "nodes.json")]
        _keep(name or place.name, folder, read[0], read[1] | job, read[2], log.read_bytes(), definition)

    return _bench(name or place.name, make)


def _bench(name: str, make: Callable[[Path], None]) -> RecordedRun:
    return RecordedRun(
        name,
        make,
        _judge_bench,
        (
            "results/plan-*/plan.json",
            "results/*/logs/*.log",
            "results/*/run.json",
            "state.json",
            "definitions/*",
        ),
    )


def _cluster(
    name: str,
    launcher: str,
    log: bytes,
    nodes: list[str],
    first: float,
    last: float,
    ruleset: str,
    **job: Any,
) -> RecordedRun:
    """Return a run on a cluster, from a published log and the records that Rackproof writes for it."""

    def make(folder: Path) -> None:
        plan = json.loads((REAL / "runs/local-01-pass/plan.json").read_text())
        (run,) = plan["runs"]
        run |= {"launcher": launcher, "lead": nodes[0], "nodes": nodes, "sku_gpus": 4, "timeout_s": 10_000}
        run["result"] = {
            "format": "auto",
            "ruleset": ruleset,
            "judge": [{"metric": "eval_accuracy", "at_least": 0.0}],
        }
        state = {
            "phase": "ended", "ended_by": "itself", "exit_status": 0, "signal": None, "succeeded": True,
            "started": first - 5, "ended": last + 5, "unkillable": [], **job,
        }  # fmt: skip
        _keep(name, folder, plan, state, [{"name": one} for one in nodes], log)

    return _bench(name, make)


def _open(name: str) -> bytes:
    data = (REAL / name).read_bytes()
    return lzma.decompress(data) if name.endswith(".xz") else data


def _slurm_run(name: str, change: Callable[[SlurmRun], None]) -> RecordedRun:
    """Return a run of 18 nodes through Slurm, from a published log with the lines that its copy lacks."""

    def make(folder: Path) -> None:
        made = SlurmRun(ROOT, folder / ".unused", SLURM_BENCHMARK)
        made.end["name"] = _run_id(name)
        change(made)
        plan = json.loads((REAL / "runs/local-01-pass/plan.json").read_text())
        plan["runs"] = [made.planned.model_dump(mode="json")]
        log = f"{made.log}:::RACKPROOF {json.dumps({'end': made.end})}\n"
        nodes = [{"name": one} for one in SLURM_NODES]
        state = {**made.job, "unkillable": made.job.get("unkillable", [])}
        _keep(name, folder, plan, state, nodes, log.encode(), f"benchmarks/{SLURM_BENCHMARK}.yml")

    return _bench(name, make)


def _node_failed(run: SlurmRun) -> None:
    run.end |= {"state": "NODE_FAIL", "exit_code": "1:0"}
    run.job |= {"exit_status": 1, "succeeded": False}


def _slurm_runs() -> Iterator[RecordedRun]:
    yield _slurm_run("slurm-complete", lambda run: None)
    yield _slurm_run("slurm-node-fail", _node_failed)
    yield _slurm_run("slurm-unkillable", lambda run: run.job.update(unkillable=[7]))
    aborted = _open("mlperf-hard/5.1-dlrm_dcnv2-aborted.txt.xz")
    yield _cluster("slurm-aborted", "slurm", aborted, SLURM_NODES[:1], 0, 4e9, "5.1.0")


def _docker_runs() -> Iterator[RecordedRun]:
    gnmt = "benchmarks/gnmt-0.6.yml"
    yield _recorded(REAL / "runs/docker-01-pass", definition=gnmt)
    killed = {"signal": 9, "exit_status": 137, "succeeded": False}
    yield _recorded(REAL / "runs/docker-01-pass", "docker-killed", gnmt, **killed)
    yield _recorded(REAL / "runs/docker-01-pass", "docker-unkillable", gnmt, unkillable=[7])
    for name, log in (
        ("docker-translation", "mlperf-0.6/translation/DGX1.log"),
        ("docker-maskrcnn-nan", "mlperf-hard/0.6-maskrcnn-nan.txt.xz"),
        ("docker-maskrcnn-memory", "mlperf-hard/0.6-maskrcnn-oom-ret_code-0.txt.xz"),
    ):
        yield _cluster(name, "docker", _open(log), ["n1"], 0, 4e9, "0.6.0")


# Nights of three nodes.

_NAMES = ("n1", "n2", "n3")
_SLURM = {
    name: {"known": True, "state_after": "IDLE", "drained_by": "none", "reason": "", "jobs": []}
    for name in _NAMES
}


def _context(folder: Path, night: str) -> NightContext:
    return NightContext(night_id=night, folder=str(folder / night), results=str(folder))


def _judge_tonight(folder: Path, night: str) -> night_store.NightRecord:
    judge_fleet(
        _context(folder, night),
        asked=dict.fromkeys(_NAMES, ""),
        benchmarks=ROOT / "benchmarks",
        being_imaged={},
        slurm=_SLURM,
        members="".join(f"{name}|batch|none\n" for name in _NAMES),
        share=1.0,
        measuring="",
    )
    return night_store.read_night(folder / night)


@dataclass(frozen=True)
class _Nodes:
    """Three healthy nodes, with their answers, and the expectations of the inventory."""

    answers: tuple[dict[str, Any], ...]
    sku: str
    expected: dict[str, Any]


def _made_up_nodes() -> _Nodes:
    expected = {"gpus": 2, "nvlinks": 2, "ports": 1, "port_gbps": 400, "mounts": ["/"]}
    return _Nodes(tuple(healthy_answer(place) for place in range(3)), "h200", expected)


@lru_cache
def recorded_answers() -> dict[str, dict[str, Any]]:
    """Return recorded answers of ``rackproof_facts`` on nodes of the test rack, by node and fault."""
    answers: dict[str, dict[str, Any]] = json.loads(_open("nights.json.xz"))
    return answers


def _recorded_nodes() -> _Nodes:
    answers = tuple(recorded_answers()[f"{name}-sound"] for name in _NAMES)
    expected = {"gpus": 4, "nvlinks": 18, "ports": 1, "port_gbps": 800, "mounts": ["/"]}
    return _Nodes(answers, "gb300", expected)


def _night(
    number: int,
    fault: Any | None,
    *,
    probes: Verdict = Verdict.PASS,
    before: Any | None = None,
    nodes: Callable[[], _Nodes] = _made_up_nodes,
) -> RecordedRun:
    earlier, tonight = (
        f"{moment}-health-{number:06x}" for moment in ("20261121T020000Z", "20261122T020000Z")
    )

    def make(folder: Path) -> None:
        known = nodes()
        for at, (night, answer) in enumerate(((earlier, before), (tonight, fault))):
            for place, name in enumerate(_NAMES):
                given = answer if answer is not None and place == 0 else known.answers[place]
                asked = given["health"]["begin"]
                store_snapshot(
                    _context(folder, night), name, given, asked=asked, answered=asked + 1, sku=known.sku,
                    rack="r1", expected=known.expected,
                )  # fmt: skip
            wrong = NightReason(
                check="value", verdict=probes, metric="wrong_values", part="n2", text="3 wrong values"
            )
            write_probes(
                folder / night,
                ProbeNight(
                    asked=10,
                    measured=_NAMES,
                    sound=dict.fromkeys(_NAMES, ("job",)),
                    reasons={"n2": (wrong,)} if at and probes is not Verdict.PASS else {},
                ),
            )
            write_run(build_night_run(_judge_tonight(folder, night), {}), folder / night)

    def judge(folder: Path) -> Judged:
        kept = _read_night_verdicts(folder / tonight, "kept ")
        try:
            again = _judge_tonight(folder, tonight)
        except ValidateError:
            # The night ends with an error, which gates.
            return _both(kept, Judged({}, frozenset({"unreadable"})))
        codes = {
            code
            for node in again.nodes
            for code in (*(one.code for one in node.findings), *(["unreached"] if node.unreached else []))
        }
        if any(
            reason.check == "measured" or "cannot be read" in reason.text
            for node in again.nodes
            for reason in node.reasons
        ):
            codes.add("unreadable")
        return _both(
            kept,
            Judged(
                {one.node: one.verdict for one in again.nodes} | {"night": again.verdict}, frozenset(codes)
            ),
        )

    artefacts = (
        f"{tonight}/snapshots/*",
        f"{tonight}/probes.json",
        f"{tonight}/night.json",
        f"{earlier}/snapshots/*",
        f"{earlier}/night.json",
    )
    return RecordedRun(f"night-{number:02d}", make, judge, artefacts)


def _read_night_verdicts(folder: Path, prefix: str) -> Judged:
    try:
        night = night_store.read_night(folder)
    except ResultsError:
        return Judged({}, frozenset({"unreadable"}))
    return Judged({prefix + one.node: one.verdict for one in night.nodes})


# Runs of reimage.yml, with journals, the request, and the night in which nodes were accepted.


def _reimaging(name: str, states: dict[str, str], accepted: dict[str, Verdict]) -> RecordedRun:
    at = datetime(2026, 11, 22, 2, tzinfo=UTC)
    run_id = f"20261122T010000Z-reimage-{sum(map(ord, name)):06x}"
    tonight = f"20261122T020000Z-health-{sum(map(ord, name)):06x}"

    def make(folder: Path) -> None:
        request = RunRequest(run_id=run_id, started=at, method="image", nodes=tuple(states))
        (folder / run_id).mkdir(parents=True)
        (folder / run_id / run_files.RUN_FILE).write_bytes(seal_json(request.model_dump_json(indent=1)))
        for node, state in states.items():
            run_files.append_entry(
                run_files.journal_path(folder / run_id, node),
                lifecycle.Entry(at=at, event="adopted", journal=f"{run_id}/{node}"),
            )
            for step in lifecycle.STEPS:
                for event in ("begun", "failed" if step.value == state else "done"):
                    entry = lifecycle.Entry(
                        at=at, event=event, step=step, remarks=("late",) if event == "done" else ()
                    )
                    run_files.append_entry(run_files.journal_path(folder / run_id, node), entry)
                if step.value == state:
                    break
        night = night_store.NightRecord(
            night_id=tonight, started=at, ended=at + timedelta(hours=1), verdict=Verdict.PASS,
            nodes=tuple(
                night_store.NodeNight(node=node, verdict=verdict, sku="h200")
                for node, verdict in accepted.items()
            ),
        )  # fmt: skip
        night_store.write_night(folder / tonight, night)
        write_probes(
            folder / tonight,
            ProbeNight(
                asked=1,
                measured=tuple(accepted),
                pairs=tuple(PairResult(nodes=(node, "x"), passed=True) for node in accepted),
            ),
        )

    return _of_reimaging(name, make, run_id, tonight, accepted)


def _recorded_reimaging(place: Path) -> RecordedRun:
    """Return the files of a run of reimage.yml on the test rack, with the night that measured the node."""
    (run_id,), (tonight,) = (
        [path.name for path in place.glob(f"*-{kind}-*")] for kind in ("reimage", "health")
    )

    def make(folder: Path) -> None:
        shutil.copytree(place, folder, dirs_exist_ok=True)

    nodes = [path.stem for path in (place / run_id / "journal").glob("*.journal")]
    return _of_reimaging(place.name, make, run_id, tonight, nodes)


def _of_reimaging(
    name: str, make: Callable[[Path], None], run_id: str, tonight: str, accepted: Collection[str]
) -> RecordedRun:
    def judge(folder: Path) -> Judged:
        verdicts, damage = {}, set()
        for node in accepted:
            try:
                acceptance.check_acceptance(folder / tonight, node, acceptance.ACCEPTANCE_CHECKS)
                verdicts[f"acceptance of {node}"] = Verdict.PASS
            except ReimageError as error:
                verdicts[f"acceptance of {node}"] = (
                    Verdict.FAIL if "is fail:" in str(error) else Verdict.UNPROVEN
                )
                if "was not proven" in str(error):
                    damage.add("unreadable")
        run = ReimageContext(run_id=run_id, folder=str(folder / run_id), results=str(folder))
        try:
            verdicts["run"] = reimage_tasks.end_run(run, keep_history=False).verdict
        except ReimageError:
            verdicts["run"] = Verdict.UNPROVEN
            damage.add("unreadable")
        return Judged(verdicts, frozenset(damage))

    return RecordedRun(
        name,
        make,
        judge,
        (
            f"{run_id}/journal/*.journal",
            f"{run_id}/{run_files.RUN_FILE}",
            f"{run_id}/before/*",
            f"{run_id}/after/*",
            f"{tonight}/*.json",
        ),
    )


def recorded_runs() -> list[RecordedRun]:
    """Return recorded runs of every kind."""
    runs = [_recorded(place) for place in sorted((REAL / "runs").glob("local-*"))]
    runs += [*_slurm_runs(), *_docker_runs()]
    healthy = healthy_answer(0)
    faults = [None, *with_faults(healthy)]
    runs += [_night(number, fault) for number, fault in enumerate(faults)]
    of_faults = [answer for name, answer in recorded_answers().items() if name.startswith("n1-")]
    runs += [_night(100 + number, fault, nodes=_recorded_nodes) for number, fault in enumerate(of_faults)]
    runs += [_night(120, None, before=fault, nodes=_recorded_nodes) for fault in of_faults[-1:]]
    xid = faults[1]
    runs += [
        _night(90, None, probes=Verdict.FAIL),
        _night(91, None, probes=Verdict.DEGRADED),
        _night(92, None, before=xid),
    ]
    runs += [_recorded_reimaging(place) for place in sorted((REAL / "runs").glob("reimage-*"))]
    runs += [
        _reimaging("reimage-returned", {"n1": "", "n2": ""}, {"n1": Verdict.PASS, "n2": Verdict.DEGRADED}),
        _reimaging("reimage-failed", {"n1": "", "n2": "validate"}, {"n1": Verdict.PASS, "n2": Verdict.FAIL}),
        _reimaging("reimage-image", {"n1": "image"}, {"n1": Verdict.UNPROVEN}),
    ]
    return runs


# Mutations.


def mutate(path: Path, chance: Random, others: list[Path]) -> str:
    """Remove or damage a file. Return the kind of damage."""
    data = path.read_bytes()
    lines = data.splitlines(keepends=True) or [b""]
    at, number = chance.randrange(len(data) + 1), chance.randrange(len(lines))
    kind = chance.choice(_JSON_KINDS if path.suffix == ".json" else _KINDS)
    if kind == "delete":
        path.unlink()
    elif kind == "folder":
        path.unlink()
        path.mkdir()
    elif kind == "older":
        os.utime(path, (1e9, 1e9))
    elif kind == "another run's":
        path.write_bytes(chance.choice(others).read_bytes())
    elif kind == "entry":
        path.write_text(json.dumps(edited(json.loads(data), draw_removals(chance)[:1]), indent=1))
    else:
        path.write_bytes(_damaged(kind, data, lines, at, number, chance))
    return kind


_KINDS = (
    "delete", "folder", "older", "another run's", "truncate", "empty", "line gone", "line gone", "line twice",
    "lines swapped", "byte flipped", "utf-16", "not text", "lines gone",
)  # fmt: skip
_JSON_KINDS = (*_KINDS, *["entry"] * 14)


def _damaged(kind: str, data: bytes, lines: list[bytes], at: int, number: int, chance: Random) -> bytes:
    if kind == "truncate":
        return data[:at]
    if kind == "empty":
        return b""
    if kind == "utf-16":
        return data.decode("utf-8", "replace").encode("utf-16")
    if kind == "not text":
        return data[:at] + b"\xff\xfe\x00" + data[at:]
    if kind == "byte flipped":
        return (
            data[:at] + bytes([data[at] ^ (1 << chance.randrange(8))]) + data[at + 1 :]
            if at < len(data)
            else data[:-1]
        )
    lines = list(lines)
    if kind == "line twice":
        lines.insert(number, lines[number])
    elif kind == "lines swapped":
        other = chance.randrange(len(lines))
        lines[number], lines[other] = lines[other], lines[number]
    else:
        del lines[number : number + (1 if kind == "line gone" else chance.randint(2, 30))]
    return b"".join(lines)


class Recordings:
    """The recorded runs as folders, and the verdicts of each before any damage."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.runs = recorded_runs()
        self.judged = []
        for run in self.runs:
            run.make(folder / run.name)
            self.judged.append(run.judge(self.copy(run)))
        verdicts = {verdict for judged in self.judged for verdict in judged.verdicts.values()}
        assert verdicts == set(Verdict), "the recorded runs do not have all verdicts"

    def copy(self, run: RecordedRun) -> Path:
        """Return a copy of a run. Copies are at one path, and the plan of a copy names files at this path."""
        place = self.folder / "copy"
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(self.folder / run.name, place)
        for plan in place.glob("results/plan-*/plan.json"):
            _point_to(plan, self.folder / run.name, place)
        return place

    def try_mutation(self, chance: Random) -> tuple[str, str]:
        """Return the kind of a mutation of a run, and what became better by it, in words."""
        number = chance.randrange(len(self.runs))
        run = self.runs[number]
        place = self.copy(run)
        files = sorted(path for pattern in run.artefacts for path in place.glob(pattern))
        path = chance.choice(files)
        relative = path.relative_to(place)
        others = [
            one for one in self.folder.glob(f"*/{relative}") if one.is_file() and place not in one.parents
        ]
        kind = mutate(path, chance, others or [path])
        better = improvements(self.judged[number], run.judge(place))
        return (
            f"{run.name.split('-')[0]}: {kind}",
            f"{run.name}: {relative}: {kind}: {'; '.join(better)}" if better else "",
        )


def _point_to(plan: Path, old: Path, new: Path) -> None:
    plan.write_bytes(
        seal_json(
            json.dumps(
                json.loads(open_sealed(plan.read_bytes()).replace(str(old).encode(), str(new).encode())),
                indent=1,
            )
        )
    )


def try_mutations(chosen: int, first: int, count: int) -> tuple[Counter[str], list[str]]:
    """Try mutations. Return the number of each kind, and the failures in words."""
    shm = Path("/dev/shm")
    kinds: Counter[str] = Counter()
    failures = []
    with tempfile.TemporaryDirectory(prefix="rackproof-runs-", dir=shm if shm.is_dir() else None) as folder:
        recordings = Recordings(Path(folder))
        for number in range(first, first + count):
            begin = time.thread_time()
            try:
                kind, better = recordings.try_mutation(Random(f"{chosen}/{number}"))
            except Exception:  # any exception is a failure of the reader
                kind, better = "error", traceback.format_exc(limit=-4)
            kinds[kind] += 1
            if better:
                failures.append(f"--seed {chosen} --start {number} --mutations 1: {better}")
            assert time.thread_time() - begin < 20
    return kinds, failures


def main() -> int:
    """Run and report. The exit status is 1 if a verdict became better."""
    options = read_options(__doc__)
    begin = time.monotonic()
    kinds, failures = try_in_batches(try_mutations, options, 500)
    print("\n".join(failures[:30]))
    print(", ".join(f"{kind} {count:,}" for kind, count in sorted(kinds.items())))
    print(
        f"{sum(kinds.values()):,} mutations of {len(recorded_runs())} recorded runs in "
        f"{time.monotonic() - begin:.0f} s, {len(failures)} better verdicts, seed {options.seed}"
    )
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
