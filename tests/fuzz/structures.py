"""Damage inputs other than logs: ``python tests/fuzz/structures.py --inputs 200000 --seed 1``.

The structures are journals, boot reports, nights, outputs of run.sub, inventories, nodes' answers and
benchmark definitions. A reader may raise only the error that it promises. An input must not take much longer
than its size requires, must not change the result of another node, and must not give a better verdict with
less evidence. A failure is printed with the options that repeat it:
``--only NAME --seed S --start N --inputs 1``.
"""

from __future__ import annotations

import argparse
import base64
import json
import math
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

import yaml
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from rackproof.core import definitions
from rackproof.core.definitions import DefinitionError
from rackproof.core.judging import SkuReferenceError, sku_references
from rackproof.core.records import Node, Verdict, worst
from rackproof.jobs.bench import planning
from rackproof.jobs.bench import tasks as bench_tasks
from rackproof.jobs.bench.planning import PlannedRun
from rackproof.jobs.bench.required_evidence import SlurmJob, slurm_lacks
from rackproof.jobs.bench.tasks import BenchError
from rackproof.jobs.reimage import boot_reports, discovery, lifecycle, run_files
from rackproof.jobs.reimage.bmc import BmcError
from rackproof.jobs.reimage.boot_reports import BootReport
from rackproof.jobs.reimage.run_files import JournalError
from rackproof.jobs.validate.errors import ValidateError
from rackproof.jobs.validate.fleet.drain_policy import DrainPolicy, decide_drains, drained_by_partition
from rackproof.jobs.validate.fleet.healing import lacking_for
from rackproof.jobs.validate.inventory import parse_limits, parse_node_expectation
from rackproof.logs import FORMATS
from rackproof.logs.run_sub import RunScript, RunSubReader, run_sub_findings, run_sub_measurements
from rackproof.nodes.answer_seal import answer_is_whole
from rackproof.nodes.health_checks import check_node, check_sku, mark_fleetwide
from rackproof.nodes.health_subjects import Expectation, HealthFinding
from rackproof.nodes.snapshot import NodeSnapshot, build_snapshot
from rackproof.store.night_store import Hold, NightReason, NodeNight, SlurmState
from tests.fuzz.edits import Edit, draw_edits, draw_removals, edited
from tests.fuzz.samples import definition_of, healthy_answer, run_sub_log, with_faults

BATCH = 1000
SLOWEST_S = 2.0
"""Processor seconds. No input of a few kilobytes takes so long, even on a busy machine."""
CHECKS_OF_A_SLOW_INPUT = 3
GOOD_TO_BAD = (Verdict.PASS, Verdict.DEGRADED, Verdict.UNPROVEN, Verdict.FAIL)


def is_better(now: Verdict, before: Verdict) -> bool:
    """Return whether a verdict is better than another."""
    return GOOD_TO_BAD.index(now) < GOOD_TO_BAD.index(before)


# Health: a node's answer becomes a snapshot, and the snapshot gives findings.

EXPECTED = Expectation(gpus=2, nvlinks=2, ports=1, port_gbps=400, mounts=("/",), memory_bytes=1 << 40)
_HEALTHY = {name: healthy_answer(number) for number, name in enumerate(("n1", "n2"))}
BASES = [_HEALTHY["n1"], *with_faults(_HEALTHY["n1"])]


def _snapshot(name: str, answer: Any, previous: NodeSnapshot | None = None) -> NodeSnapshot:
    return build_snapshot(name, answer, sku="h200", previous=previous, whole=answer_is_whole(answer))


def _health(
    snapshot: NodeSnapshot, previous: NodeSnapshot | None = None
) -> tuple[Verdict, tuple[HealthFinding, ...]]:
    findings = (
        *check_sku(snapshot, EXPECTED),
        *check_node(snapshot, previous=previous, expected=EXPECTED, idle=True),
    )
    return worst([one.verdict for one in findings] or [Verdict.PASS]), findings


_PREVIOUS = _snapshot("n1", _HEALTHY["n1"])
_OTHER = _snapshot("n2", _HEALTHY["n2"], _snapshot("n2", _HEALTHY["n2"]))
_OTHERS_FINDINGS = _health(_OTHER, _OTHER)[1]
_KNOWN = [(answer, _health(_snapshot("n1", answer, _PREVIOUS), _PREVIOUS)[0]) for answer in BASES]


def draw_health(chance: Random) -> tuple[int, bool, list[Edit]]:
    """Return the number of a base, whether the edits only remove something, and the edits."""
    is_removal = chance.random() < 0.5
    return chance.randrange(len(BASES)), is_removal, (draw_removals if is_removal else draw_edits)(chance)


def check_health(drawn: tuple[int, bool, list[Edit]]) -> None:
    """Check the verdict of one node after its answer was damaged."""
    number, is_removal, edits = drawn
    base, known = _KNOWN[number]
    answer = edited(base, edits)
    if is_removal:
        # Keep the seal. An answer without one may be from another version, so its losses are not noticed.
        answer.setdefault("seal", base["seal"])
    snapshot = _snapshot("n1", answer, _PREVIOUS)
    verdict, findings = _health(snapshot, _PREVIOUS)
    if edits[0][0] % 4 == 0:
        # Store the snapshot, and judge the next night.
        assert NodeSnapshot.model_validate_json(snapshot.model_dump_json()).node == "n1"
        _health(_snapshot("n1", base, snapshot), snapshot)
    assert {one.node for one in findings} <= {"n1"}
    settled, _ = mark_fleetwide([*findings, *_OTHERS_FINDINGS], 2)
    assert tuple(one for one in settled if one.node == "n2") == _OTHERS_FINDINGS
    if is_removal and is_better(verdict, known):
        # The edits may have removed the failure, but the loss must be found, and the verdict is unproven.
        assert verdict is Verdict.UNPROVEN, (known, verdict, edits)
        assert "answer_cut" in {one.code for one in findings}, (known, verdict, edits)


# Decisions: the verdicts of nights become drains and resumes.

_NODES = tuple(f"n{number}" for number in range(6))
_CODES = ("xid_79", "floor:gemm bf16", "pair:fabric", "bits:training-step", "port_down", "", "job:")
_TEXTS = (
    "",
    " ",
    "0",
    "nan",
    "\x00",
    "\x1b[2J",
    "\u202e",
    "{{ x }}",
    "gemm bf16",
    "fabric",
    "IDLE",
    "ü" * 40,
)


def _draw_finding(chance: Random) -> HealthFinding:
    return HealthFinding(
        node="n0",
        code=chance.choice(("xid_79", "gpu_missing", "port_down")),
        verdict=chance.choice(GOOD_TO_BAD),
        action=chance.choice(("none", "watch", "reset", "reboot", "rma", "inspect")),
        confidence=chance.choice(("certain", "likely", "hint")),
        evidence=chance.choice(_TEXTS),
        fleetwide=chance.random() < 0.3,
    )


def _draw_reason(chance: Random) -> NightReason:
    return NightReason(
        check=chance.choice(("floor", "fleet", "bits", "pair", "history")),
        verdict=chance.choice(GOOD_TO_BAD),
        metric=chance.choice(_TEXTS),
        text="x",
        deviation=chance.choice((None, -0.1, math.nan, math.inf)),
        fleetwide=chance.random() < 0.3,
    )


def _draw_state(chance: Random) -> SlurmState | None:
    return chance.choice(
        (
            None,
            SlurmState(
                known=chance.random() < 0.8,
                state=chance.choice(_TEXTS),
                drained_by=chance.choice(("none", "ours", "ours", "other", "")),
                reason=chance.choice((*_TEXTS, "rackproof-night: xid_79 GPU 1; look")),
            ),
        )
    )


def _draw_codes(chance: Random) -> tuple[str, ...]:
    return tuple(chance.choice(_CODES) for _ in range(chance.randrange(4)))


def _draw_night(chance: Random, name: str) -> NodeNight:
    hold = Hold(
        since="20261121T020000Z-health-aaaaaa", codes=_draw_codes(chance), passes=chance.randint(-1, 5)
    )
    return NodeNight(
        node=name,
        verdict=chance.choice(GOOD_TO_BAD),
        findings=tuple(_draw_finding(chance) for _ in range(chance.randrange(3))),
        reasons=tuple(_draw_reason(chance) for _ in range(chance.randrange(3))),
        unreached=chance.choice(("", "", "no route")),
        read_again=_draw_codes(chance),
        slurm=_draw_state(chance),
        hold=chance.choice((None, hold)),
    )


def draw_decisions(chance: Random) -> tuple[Any, ...]:
    """Return a night of three nodes, their earlier nights, another night of the first, a line, and a share.

    The line is of sinfo's list of partitions. The share is that of a partition that may be drained.
    """
    lines = (*(f"{name}|batch|none" for name in _NODES), "n0|a|b|c", "|", "x", "\x00|\n|none")
    return (
        [_draw_night(chance, name) for name in _NODES[:3]],
        [chance.choice((None, _draw_night(chance, name))) for name in _NODES[:3]],
        _draw_night(chance, "n0"),
        chance.choice(lines),
        chance.choice((0.01, 0.15, 1.0)),
    )


_NOW = datetime(2026, 11, 21, tzinfo=UTC)


def check_decisions(drawn: tuple[Any, ...]) -> None:
    """Check the drains and returns of any nights of a few nodes.

    Only proven nodes of a drain by a night return, and only nodes that fail are drained.
    """
    tonight, earlier, other, line, share = drawn
    nodes = list(tonight)
    before = {one.node: one for one in earlier if one is not None}
    members = drained_by_partition("".join(f"{name}|batch|none\n" for name in _NODES) + line)
    decided, _ = decide_drains(nodes, before, members, "tonight", _NOW, DrainPolicy(share=share))
    assert [one.node for one in decided] == [one.node for one in nodes]
    for one, was in zip(decided, nodes, strict=True):
        assert one.verdict is was.verdict
        if one.plan == "return":
            assert not one.verdict.gates
            assert not one.unreached
            assert one.slurm is not None
            assert one.slurm.drained_by == "ours"
            assert one.hold is not None
            assert one.hold.codes
            assert all(lacking_for(code, was.read_again) == () for code in one.hold.codes)
        if one.plan == "drain":
            assert one.verdict is Verdict.FAIL
            assert not one.unreached
    # With room for all drains, the night of one node does not change the decisions on other nodes.
    free = DrainPolicy(share=1.0, unreachable_least=99)
    first, _ = decide_drains(nodes, before, members, "tonight", _NOW, free)
    again, _ = decide_drains([other, *nodes[1:]], before, members, "tonight", _NOW, free)
    assert first[1:] == again[1:]
    # With less evidence on a node, the decision on it is not better.
    unproven = nodes[0].model_copy(update={"verdict": Verdict.UNPROVEN, "findings": (), "reasons": ()})
    assert decide_drains([unproven, *nodes[1:]], before, members, "tonight", _NOW, free)[0][0].plan == ""
    no_slurm = nodes[0].model_copy(update={"slurm": None})
    assert decide_drains([no_slurm, *nodes[1:]], before, members, "tonight", _NOW, free)[0][0].plan == ""


# run.sub: lines of a job's log.

_RUN_SUB = [line.encode() for line in run_sub_log().splitlines(keepends=True)]
_RUN_SUB_NODES = ("n1", "n2", "n3")
_LINES = (
    b":::RACKPROOF {",
    b":::RACKPROOF []",
    b':::RACKPROOF {"end": []}',
    b':::RACKPROOF {"end": {"state": 3}}',
    b':::RACKPROOF {"hang": {"last": [1]}, "end": {"nodes": {"a": 1}, "steps": [{"start": "x"}]}}',
    b':::RACKPROOF {"end": {"steps": [{"start": 1700000021, "elapsed_s": "9", "nodes": 3, "state": []}]}}',
    b"RUNANDTIME_START 99999999999999999999999",
    b"RUNANDTIME_STOP 1",
    b"NCCL_TEST_STOP x",
    b":::DLPAL x 7 3 n[1-999999999] 'u' c",
    b":::DLPAL x 7 3 n[[1-3] 'u' c",
    b"Clearing cache on ",
    b"vm.drop_caches = ",
    b"0: Starting with 0 processes",
    b"srun: error: n1: task 4: Killed",
    b"1: CUDA out of memory",
    b"1" * 5000 + b": out of memory",
    b"slow: node n1 nan",
    b"\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00",
    b'"eval_accuracy" "samples_count": 99999999999999999999',
    b" 8 2 float sum -1 1 nan inf 3 1 2 3 0",
)


def draw_run_sub(chance: Random) -> tuple[Any, ...]:
    """Return edits of lines, and the lines that are then removed."""
    edits = [
        (chance.randrange(200), chance.randrange(4), chance.choice((*_LINES, chance.randbytes(20))))
        for _ in range(chance.randrange(7))
    ]
    return edits, [chance.randrange(200) for _ in range(chance.randrange(7))]


def _read_run_sub(lines: list[bytes]) -> tuple[Verdict, Any]:
    reader = RunSubReader()
    for number, line in enumerate(lines, 1):
        reader.line(number, line)
    output = reader.result()
    run_sub_measurements(output, "x")
    run = PlannedRun.model_construct(launcher="slurm", nodes=_RUN_SUB_NODES)
    findings = run_sub_findings(output, _RUN_SUB_NODES, 4)
    findings += slurm_lacks(SlurmJob(run, RunScript(), output))
    return worst([one.verdict for one in findings if one.verdict] or [Verdict.PASS]), output


def check_run_sub(drawn: tuple[Any, ...]) -> None:
    """Check that fewer lines of a log do not make the verdict better."""
    edits, gone = drawn
    lines = list(_RUN_SUB)
    for at, kind, line in edits:
        place = at % (len(lines) + 1)
        if kind == 0:
            lines.insert(place, line + b"\n")
        elif kind == 1 and place < len(lines):
            lines[place] = lines[place][: at % 30] + line
        elif kind == 2 and place < len(lines):
            lines.insert(place, lines[at * 7 % len(lines)])
        elif place < len(lines):
            lines.append(lines.pop(place))
    before, output = _read_run_sub(lines)
    # Lines that show a fault are not removed. A removal of any other line must not make the verdict better.
    # A line that the log has more often than a real log shows a fault, too.
    harmless = [number for number, line in enumerate(lines) if 0 < _RUN_SUB.count(line) >= lines.count(line)]
    dropped = {harmless[one % len(harmless)] for one in gone}
    after, less = _read_run_sub([line for number, line in enumerate(lines) if number not in dropped])
    # The failure's evidence is gone, and this loss is found (docs/using/verdicts.md).
    is_excepted = (before, after) == (Verdict.FAIL, Verdict.UNPROVEN)
    if is_better(after, before) and not is_excepted:
        raise AssertionError((before, after, [lines[one] for one in dropped], output.times, less.times))


# Boot reports: machines that are not in the inventory yet.

_MACS = ("52:54:00:00:00:01", "52:54:00:00:00:02", "52:54:00:00:00:03")
_REPORTS = {
    mac: {
        "serial": f"S{number}",
        "manufacturer": "ACME",
        "model": "G8",
        "macs": {mac: True, f"02:00:00:00:00:0{number}": None},
        "disks": [{"serial": "D1", "bytes": 2**40, "path": "/dev/nvme0n1", "by_path": "/dev/p1"}],
    }
    for number, mac in enumerate(_MACS)
}
_KNOWN_NODES = {
    "n0": discovery.KnownNode(serial="S0"),
    "n1": discovery.KnownNode(serial="S1", mac=_MACS[1]),
    "n2": discovery.KnownNode(mac=_MACS[2]),
}


def draw_boot_reports(chance: Random) -> tuple[Any, ...]:
    """Return the number of the damaged report, whether the edits only remove, the edits, bytes, and a place.

    A place below 100 is the percentage at which the report is cut off before the bytes. Otherwise, the edits
    are applied.
    """
    is_removal = chance.random() < 0.5
    edits = (draw_removals if is_removal else draw_edits)(chance)
    return (
        chance.randrange(3),
        is_removal,
        edits,
        chance.randbytes(chance.randrange(12)),
        chance.randrange(400),
    )


def _report_line(mac: str, data: bytes) -> str:
    return f"{mac.replace(':', '-')} {base64.b64encode(data).decode()}"


def check_boot_reports(drawn: tuple[Any, ...]) -> None:
    """Check that a damaged report of one machine changes no other report, and becomes no other node."""
    number, is_removal, edits, rubbish, cut = drawn
    mac = _MACS[number]
    lines = {one: _report_line(one, json.dumps(report).encode()) for one, report in _REPORTS.items()}
    whole = boot_reports.parse_reports("\n".join(lines.values()), _MACS)
    if cut < 100:
        line = lines[mac]
        lines[mac] = line[: cut * len(line) // 100] + rubbish.decode("latin-1").replace("\n", "")
    else:
        damaged = edited(_REPORTS[mac], edits)
        lines[mac] = _report_line(mac, json.dumps(damaged).encode("utf-8", "surrogatepass"))
    read = boot_reports.parse_reports("\n".join(lines.values()), _MACS)
    assert {one: report for one, report in read.items() if one != mac} == {
        one: report for one, report in whole.items() if one != mac
    }
    # A line whose name is damaged is no answer. The host is then asked again.
    assert mac not in read or isinstance(read[mac], BootReport | BmcError)
    found = boot_reports.match_reports(read, _KNOWN_NODES)
    boot_reports.summarize(read, found, boot_reports.Awaited(_KNOWN_NODES, _MACS))
    before = boot_reports.match_reports(whole, _KNOWN_NODES).variables
    mine = [name for name, known in found.variables.items() if known.get("reimage_mac") == mac]
    if is_removal or cut < 100:
        assert set(mine) <= {name for name, known in before.items() if known.get("reimage_mac") == mac}
    for name, known in before.items():
        if known.get("reimage_mac") != mac and is_removal and cut >= 100:
            assert found.variables.get(name) == known


# Journals, which show the completed steps of re-imaging a node.

_AT = datetime(2026, 11, 22, 2, tzinfo=UTC)


def _journal(returned: bool) -> tuple[bytes, ...]:
    entries = [lifecycle.Entry(at=_AT, event="adopted")]
    for step in lifecycle.STEPS:
        entries.append(lifecycle.Entry(at=_AT, event="begun", step=step, limit_s=60))
        if step is lifecycle.Step.VALIDATE and not returned:
            entries.append(lifecycle.Entry(at=_AT, event="failed", step=step, reason="XID 79"))
            break
        entries.append(lifecycle.Entry(at=_AT, event="done", step=step))
    return tuple(run_files.encode_entries(entries).splitlines(keepends=True))


_JOURNALS = (_journal(True), _journal(False))


def draw_journals(chance: Random) -> tuple[Any, ...]:
    """Return whether the journal is that of a returned node, and the edits of its lines."""
    edits = [
        (chance.randrange(40), chance.randrange(7), chance.randbytes(chance.randrange(12)))
        for _ in range(chance.randint(1, 4))
    ]
    return chance.random() < 0.5, edits


def check_journals(drawn: tuple[Any, ...]) -> None:
    """Check that damaged, lost, repeated or swapped lines of a journal never advance a node."""
    returned, edits = drawn
    lines = list(_JOURNALS[0 if returned else 1])
    for at, kind, rubbish in edits:
        place = at % len(lines) if lines else 0
        _damage_line(lines, place, kind, at, rubbish)
    data = b"".join(lines)
    try:
        entries = run_files.parse_journal(data, "n1.journal")
    except JournalError:
        return
    progress = lifecycle.replay(entries, alive=False)
    lifecycle.remaining_steps(progress)
    lifecycle.describe_progress(progress, _AT)
    assert returned or progress.state != "returned"
    whole = lifecycle.replay(run_files.parse_journal(b"".join(_JOURNALS[0 if returned else 1]), "x"), False)
    assert set(progress.done) <= set(whole.done), edits


def _damage_line(lines: list[bytes], place: int, kind: int, at: int, rubbish: bytes) -> None:
    if not lines or not lines[place]:
        return
    line = lines[place]
    if kind == 0:
        del lines[place]
    elif kind == 1:
        lines.insert(place, line)
    elif kind == 2:
        other = at * 5 % len(lines)
        lines[place], lines[other] = lines[other], line
    elif kind == 3:
        lines[place] = line[: at % len(line)] + rubbish
    elif kind == 4:
        lines[place] = line.replace(b"failed", b"done").replace(b"begun", b"done")
    elif kind == 5:
        lines[:] = lines[:place]
    else:
        lines.insert(place, rubbish)


# Definitions of benchmarks.

# If conftest.py set TMPDIR, it is in memory already.
_MEMORY = None if "TMPDIR" in os.environ or not os.path.isdir("/dev/shm") else "/dev/shm"


def draw_definitions(chance: Random) -> tuple[Any, ...]:
    """Return the number of a definition, its edits, and a text with its place in the file."""
    text = chance.choice(
        (None, None, chance.choice((": ", "\n", "&a ", "*a", "!!x ", "\t", "- ", "[" * 50, "\u2028")))
    )
    return chance.randrange(3), draw_edits(chance), text, chance.randrange(4000)


def check_definitions(drawn: tuple[Any, ...]) -> None:
    """Check that a damaged definition is refused with file and reason, or judges by finite bounds."""
    number, edits, text, cut = drawn
    base = definition_of(number)
    value = edited(base, edits)
    # JSON is valid YAML and is written faster. Every 16th definition is written as YAML.
    written = yaml.safe_dump(value, sort_keys=False) if cut % 16 == 0 else json.dumps(value, indent=1)
    if text is not None:
        written = written[:cut] + text + written[cut:]
    with tempfile.TemporaryDirectory(prefix="rackproof-fuzz-", dir=_MEMORY) as folder:
        path = Path(folder, "fuzzed.yml")
        path.write_bytes(written.encode("utf-8", "surrogatepass"))
        try:
            loaded = definitions.load_definition(path, log_formats=FORMATS)
        except DefinitionError as error:
            if str(path) not in str(error):
                raise AssertionError("the error does not name its file") from error
            return
    for rule in loaded.definition.result.judge:
        for bound in (rule.at_least, rule.at_most, rule.equals):
            assert not isinstance(bound, float) or math.isfinite(bound)
    node = Node(name="n1", serial="S1")
    try:
        plan = planning.make_plan([loaded], {"n1": node}, {"n1": {"bench_data": "/d"}})
    except DefinitionError:
        return
    for run in plan.runs:
        planning.PlannedRun.model_validate_json(run.model_dump_json())


# Values of the inventory.

_EXPECTATIONS = {
    "gpus": 4, "gpu_name": "H200", "ports": 2, "port_gbps": 400, "nvlinks": 18, "pcie_width": 16,
    "card_pcie_width": 16, "power_limit_w": 700, "memory_bytes": 1 << 40, "versions": {"driver": "580"},
    "mounts": ["/"], "gpu_readings": ["ecc"], "fabric": True,
}  # fmt: skip
_INVENTORY = {
    "expected": _EXPECTATIONS,
    "limits": {"tool_seconds": 5, "disk_free": 0.05, "clock_s": 2, "margin_c": 5},
    "references": [
        {"metric": "gemm", "labels": {"dtype": "bf16"}, "value": 700, "low": -0.07, "unit": "T",
         "source": "s"},
        {"metric": "lat", "benchmark": "b", "parameters": {"gpus": 4}, "value": 5, "high": 0.2, "unit": "us",
         "source": "s"},
    ],
    "limits_s": {"boot": 900, "image": 1800},
    "site": {"rack": "r1", "shared": "/shared", "repeats": 1, "size_factor": 1, "environment": {"A": "b"},
             "sku_gpus": 4},
    "experiment": {"storages": {}, "overlay_subnet": "198.19.0.0/16", "port": 29417},
    "parameters": {"gpus": 1, "batch": [1, 2]},
}  # fmt: skip


def draw_inventory(chance: Random) -> tuple[Any, ...]:
    """Return edits of the variables, and the name of their node."""
    return draw_edits(chance), chance.choice(("n1", "\x1b[2J", "a/b"))


def check_inventory(drawn: tuple[Any, ...]) -> None:
    """Check that a damaged value is refused with a message, or is a number that a check can use."""
    edits, node = drawn
    values = edited(_INVENTORY, edits)
    values = {name: values.get(name) for name in _INVENTORY}
    if isinstance(values["expected"], dict):
        _check_expectation(node, values["expected"])
    if isinstance(values["limits"], dict):
        _accepts(ValidateError, lambda: parse_limits(node, values["limits"]))
    if isinstance(values["references"], list):
        for one in _accepts(SkuReferenceError, lambda: sku_references("h200", values["references"])) or ():
            assert math.isfinite(one.reference.value)
            bounds = [
                bound
                for bound in (one.reference.low, one.reference.high, one.reference.warn)
                if bound is not None
            ]
            assert bounds
            assert all(-0.5 <= bound <= 1 for bound in bounds)
        _accepts(BenchError, lambda: bench_tasks._sku_references(values["references"]))
    if isinstance(values["limits_s"], dict):
        limits = _accepts(ValueError, lambda: lifecycle.step_limits(values["limits_s"])) or {}
        assert all(0 < seconds < 1e7 for seconds in limits.values())
    if isinstance(values["site"], dict):
        _accepts(BenchError, lambda: bench_tasks._site(node, values["site"]))
    if isinstance(values["experiment"], dict):
        _accepts(BenchError, lambda: bench_tasks._experiment(node, values["experiment"]))
    if isinstance(values["parameters"], dict):
        for name, value in values["parameters"].items():
            for one in (
                _accepts(BenchError, lambda name=name, value=value: bench_tasks._values(name, value)) or ()
            ):
                assert not isinstance(one, float) or math.isfinite(one)


def _check_expectation(node: str, values: dict[str, Any]) -> None:
    expected = _accepts(ValidateError, lambda: parse_node_expectation(node, values))
    if expected is None:
        return
    for name in ("gpus", "ports", "port_gbps", "nvlinks", "pcie_width", "power_limit_w", "memory_bytes"):
        number = getattr(expected, name)
        assert type(number) in (int, float)
        assert math.isfinite(number)
        assert number >= 0
    # An accepted expectation must be checked, so an empty node must have a finding.
    bare = NodeSnapshot(node="n1", sku="h200", hardware_key="k")
    if expected.gpus or expected.ports or expected.mounts or expected.versions:
        assert worst(one.verdict for one in check_node(bare, expected=expected)).gates


def _accepts(error: type[Exception], call: Callable[[], Any]) -> Any:
    try:
        return call()
    except error:
        return None


@dataclass(frozen=True)
class Structure:
    """A kind of input, with a function that draws one, and a function that checks one."""

    name: str
    draw: Callable[[Random], Any]
    check: Callable[[Any], None]

    def check_in_time(self, drawn: Any) -> None:
        """Check an input, and that this takes less than SLOWEST_S.

        An input that took longer is checked again, because the first input of a process may import modules.
        If the time is not linear in the size, the input takes long each time.
        """
        for _ in range(CHECKS_OF_A_SLOW_INPUT):
            begin = time.thread_time()
            self.check(drawn)
            if time.thread_time() - begin < SLOWEST_S:
                return
        raise AssertionError("an input took too long")

    def inputs(self) -> st.SearchStrategy[Any]:
        """Return the inputs for Hypothesis."""
        return st.integers(0, 2**64).map(lambda number: self.draw(Random(number)))


STRUCTURES = (
    Structure("journals", draw_journals, check_journals),
    Structure("boot_reports", draw_boot_reports, check_boot_reports),
    Structure("decisions", draw_decisions, check_decisions),
    Structure("run_sub", draw_run_sub, check_run_sub),
    Structure("inventory", draw_inventory, check_inventory),
    Structure("health", draw_health, check_health),
    Structure("definitions", draw_definitions, check_definitions),
)


def _batch(name: str, chosen: int, first: int, count: int) -> list[str]:
    structure = next(one for one in STRUCTURES if one.name == name)
    failures = []
    for number in range(first, first + count):
        try:
            structure.check_in_time(structure.draw(Random(f"{chosen}/{number}")))
        except Exception:  # any exception is a failure of the reader
            text = traceback.format_exc(limit=-5)[:4000]
            failures.append(f"--only {name} --seed {chosen} --start {number} --inputs 1\n{text}")
    return failures


def main() -> int:
    """Run and report. The exit status is 1 if an input failed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--inputs", type=int, default=200_000, help="of each structure")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--only", choices=[one.name for one in STRUCTURES])
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    options = parser.parse_args()
    failed = 0
    last = options.start + options.inputs
    with ProcessPoolExecutor(options.jobs) as pool:
        for structure in STRUCTURES:
            if options.only not in (None, structure.name):
                continue
            begin, failures = time.monotonic(), []
            starts = range(options.start, last, BATCH)
            counts = [min(BATCH, last - first) for first in starts]
            names, seeds = [structure.name] * len(starts), [options.seed] * len(starts)
            for some in pool.map(_batch, names, seeds, starts, counts):
                failures += some
            failed += len(failures)
            print(
                f"{structure.name}: {options.inputs:,} inputs in {time.monotonic() - begin:.0f} s, "
                f"{len(failures)} failures, seed {options.seed}",
                flush=True,
            )
            print("\n".join(failures[:3]), end="", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
