"""What the output of a Slurm job shows beside its MLPerf events: where it ran, what was slow, what failed.

The job's own run script prints markers with the time, the node list, the table of the NCCL preflight and
what clearing the caches said; workloads/slurm_run.py adds lines `:::RACKPROOF {JSON}`. All is nodes' text.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import Field

from rackproof.core.records import Direction, Finding, Measurement, Record, Source, Verdict, worst
from rackproof.core.text import sanitize
from rackproof.logs import parse

MARK = ":::RACKPROOF "
_MARKER = re.compile(
    r"\b(PROLOG_START|NCCL_TEST_START|NCCL_TEST_STOP|PROLOG_STOP|EXPERIMENT_START|RUNANDTIME_START|"
    r"RUNANDTIME_STOP|EXPERIMENT_STOP) (\d{9,11})\b"
)
_DLPAL = re.compile(r"^:::DLPAL (\S+) (\S*) (\d+) (\S+)")
_CLEARING = re.compile(r"Clearing cache on ")
_CLEARED = re.compile(r"vm\.drop_caches = \d")
_RANKS = re.compile(r"Starting with (\d{1,6}) processes")
_LABEL = re.compile(r"^\s*(\d{1,6}): ")
_MPI = re.compile(
    r"mpi/\w+: .{0,100}(?:not load|not found)|[Cc]ouldn't find the specified plugin name for mpi/"
)
_DIED = re.compile(r"srun: error: (\S+: tasks? [\d,\-]+: (?!Exited with exit code 0).{1,100})")
_RANK = re.compile(r"\[rank:? ?(\d{1,6})\]")
_SLOW = re.compile(r"Rank=(\d+) Node=(\S+) Score=([0-9.]+)")
_SAMPLES = re.compile(r'"samples_count": ?(\d{1,15})')
_RANGE = re.compile(r"\[([0-9,\-]+)\]")
MAX_NCCL = 1 << 20
SLOW_SCORE = 0.7
"""A node whose work takes so much longer than the others' that it holds them up: NeMo's own threshold."""
SLOW_REPEAT, REMARKABLE_REPEAT = 0.1, 0.04
"""By so much slower than the median of those before it, a repeat is degraded; by so much remarked on."""


class SlurmLog(Record):
    """What was read, without a verdict."""

    said: dict[str, Any] = Field(default={}, description="Keys of `:::RACKPROOF` lines, the last of each.")
    times: dict[str, int] = {}  # noqa: RUF012  (pydantic copies defaults)
    node_list: tuple[str, ...] = ()
    clearings: int = 0
    cleared: int = 0
    clear_errors: tuple[str, ...] = ()
    ranks: int = 0
    slow: dict[str, float] = {}  # noqa: RUF012
    died: tuple[str, ...] = ()
    memory: tuple[int, ...] = ()
    mount_errors: tuple[str, ...] = ()
    mpi_errors: tuple[str, ...] = ()
    samples: int | None = None
    """Samples trained until the last evaluation."""
    nccl_asked: bool | None = None
    nccl: str = ""

    @property
    def end(self) -> dict[str, Any]:
        """How the job ended, by Slurm."""
        end = self.said.get("end")
        return end if isinstance(end, dict) else {}

    @property
    def phases(self) -> dict[str, float]:
        """Seconds of each phase that has begun and ended."""
        pairs = {
            "prolog": ("PROLOG_START", "PROLOG_STOP"),
            "nccl_preflight": ("NCCL_TEST_START", "NCCL_TEST_STOP"),
            "caches": ("EXPERIMENT_START", "RUNANDTIME_START"),
            "run_and_time": ("RUNANDTIME_START", "RUNANDTIME_STOP"),
        }
        return {
            name: float(self.times[stop] - self.times[start])
            for name, (start, stop) in pairs.items()
            if start in self.times and stop in self.times and self.times[stop] >= self.times[start]
        }


def expand(text: str) -> tuple[str, ...]:
    """Return the hosts of a Slurm host list: ``n[01-03,07],m1`` are five."""
    hosts: list[str] = []
    for part in re.findall(r"[^,\[\]]+(?:\[[^\]]*\][^,\[\]]*)*", text[:100_000]):
        found = _RANGE.search(part)
        if not found:
            hosts.append(part)
            continue
        for piece in found[1].split(","):
            low, _, high = piece.partition("-")
            if not low.isdigit() or (high and not high.isdigit()) or len(hosts) > 100_000:
                continue
            numbers = range(int(low), min(int(high or low), int(low) + 10_000) + 1)
            head, tail = part[: found.start()], part[found.end() :]
            hosts += [f"{head}{number:0{len(low)}}{tail}" for number in numbers]
    return tuple(hosts)


def read(path: Path) -> SlurmLog:
    """Read a log. Nothing in it raises."""
    said: dict[str, Any] = {}
    times: dict[str, int] = {}
    nodes: tuple[str, ...] = ()
    clearings = cleared = ranks = 0
    labels: set[int] = set()
    errors: list[str] = []
    mounts: list[str] = []
    mpi: list[str] = []
    slow: dict[str, float] = {}
    died: list[str] = []
    memory: set[int] = set()
    nccl: list[str] = []
    in_nccl = False
    nccl_bytes = 0
    asked: bool | None = None
    samples: int | None = None
    with path.open("rb") as stream:
        for raw in stream:
            line = raw[:20_000].decode("utf-8", "replace").rstrip("\r\n")
            if line.startswith(MARK):
                try:
                    told = json.loads(line[len(MARK) :])
                except (ValueError, RecursionError):
                    continue
                if isinstance(told, dict):
                    said.update({sanitize(key, 40): value for key, value in told.items()})
                continue
            if "_ST" in line and (found := _MARKER.search(line)):
                times.setdefault(found[1], int(found[2]))
                if found[1] == "NCCL_TEST_START":
                    in_nccl = True
                elif found[1] == "NCCL_TEST_STOP":
                    in_nccl = False
                continue
            if in_nccl and nccl_bytes < MAX_NCCL:
                nccl_bytes += len(line)
                nccl.append(line)
            if line.startswith("NCCL_TEST = "):
                asked = line.endswith("= 1")
            elif line.startswith(":::DLPAL") and (found := _DLPAL.match(line)):
                nodes = expand(found[4])
            elif "Clearing cache on " in line:
                clearings += len(_CLEARING.findall(line))
            elif "drop_caches" in line and not line.lstrip().startswith("+"):
                if _CLEARED.search(line):
                    cleared += len(_CLEARED.findall(line))
                else:
                    errors.append(sanitize(line, 200))
            elif line.startswith("Error: ") and "incorrect" in line:
                mounts.append(sanitize(line, 300))
            elif "mpi/" in line and _MPI.search(line):
                mpi.append(sanitize(line, 200))
            elif '"eval_accuracy"' in line and (found := _SAMPLES.search(line)):
                samples = int(found[1])
            elif "RUNANDTIME_START" in times and "RUNANDTIME_STOP" not in times:
                if found := _LABEL.match(line):
                    labels.add(int(found[1]))
                if found := _DIED.search(line):
                    died.append(sanitize(found[1], 200))
                elif "ut of memory" in line and (found := _RANK.search(line)):
                    memory.add(int(found[1]))
                if found := _RANKS.search(line):
                    ranks = int(found[1])
                elif found := _SLOW.search(line):
                    score = float(found[3]) if re.fullmatch(r"\d*\.?\d+", found[3]) else 1.0
                    node = sanitize(found[2], 100)
                    slow[node] = min(score, slow.get(node, 1.0))
    return SlurmLog(
        said=said,
        times=times,
        node_list=nodes,
        clearings=clearings,
        cleared=cleared,
        clear_errors=tuple(errors[:20]),
        ranks=ranks or len(labels),
        slow=slow,
        died=tuple(died[:20]),
        memory=tuple(sorted(memory)[:20]),
        mount_errors=tuple(mounts[:20]),
        mpi_errors=tuple(mpi[:20]),
        samples=samples,
        nccl_asked=asked,
        nccl="\n".join(nccl),
    )


def findings(log: SlurmLog, nodes: Sequence[str], gpus: int) -> list[Finding]:
    """Return what the output says against the run.

    Args:
        log: What was read.
        nodes: The nodes that were asked for.
        gpus: GPUs of each; 0 where nobody said.
    """
    found = []
    refused = log.said.get("refused")
    if refused:
        found.append(_finding("refused", Verdict.UNPROVEN, sanitize(refused, 2000)))
        return found
    if log.mpi_errors:
        message = (
            f"Slurm could not start ranks with the MPI that run.sub asks for: {log.mpi_errors[0]}; install "
            "its library on all nodes, or name another kind with bench_environment: {SLURM_MPI_TYPE: ...}"
        )
        found.append(_finding("no_mpi", Verdict.UNPROVEN, message))
    found += _end_findings(log)
    if "RUNANDTIME_START" not in log.times:
        return found
    found += _node_findings(log, nodes, gpus)
    found += _cache_findings(log, nodes)
    found += nccl_findings(log)
    for text in log.mount_errors:
        found.append(_finding("mount_check", Verdict.UNPROVEN, f"run.sub's check of the mounts says: {text}"))
    for node, score in sorted(log.slow.items()):
        if score < SLOW_SCORE:
            message = f"{node} is slow and holds up the others: relative performance {score:g}"
            found.append(_finding("slow_node", Verdict.FAIL, message))
    return found


def _end_findings(log: SlurmLog) -> list[Finding]:
    end, hang = log.end, log.said.get("hang")
    # The first to die is the cause; the others lose their peer.
    found = [_finding("task_died", Verdict.FAIL, f"a task died: {text}") for text in log.died[:1]]
    for rank in log.memory:
        where = f" on {node}" if (node := node_of(log, rank)) else ""
        found.append(_finding("out_of_memory", Verdict.FAIL, f"rank {rank}{where} ran out of memory"))
    if isinstance(hang, dict):
        where = sanitize(hang.get("step") or "before the first step", 60)
        phase = sanitize(hang.get("phase") or "start", 60)
        silent = sanitize(hang.get("silent_s"), 20)
        message = f"hung at {where} (phase {phase}): no output for {silent} s; cancelled"
        if hang.get("last"):
            message += f"; the last line was: {sanitize(hang['last'], 200)}"
        found.append(_finding("hung_at_step", Verdict.FAIL, message))
    if not end:
        found.append(_finding("no_end", Verdict.UNPROVEN, "nobody saw how the Slurm job ended"))
        return found
    state, code = sanitize(end.get("state"), 40), sanitize(end.get("exit_code") or "", 20)
    if state != "COMPLETED" or code not in ("", "0:0"):
        bad = [
            f"step {sanitize(step.get('step'), 10)} on {sanitize(step.get('nodes'), 200)}: "
            f"{sanitize(step.get('state'), 40)} {sanitize(step.get('exit_code'), 20)}"
            for step in _steps(end)
            if step.get("state") not in ("COMPLETED", "")
        ]
        detail = f" ({'; '.join(bad[:3])})" if bad else ""
        message = f"Slurm job {sanitize(end.get('job'), 20)} ended as {state or 'unknown'} {code}{detail}"
        verdict = Verdict.FAIL if state else Verdict.UNPROVEN
        found.append(_finding("slurm_state", verdict, message.strip()))
    return found


def node_of(log: SlurmLog, rank: int) -> str:
    """Return the node of a rank, empty if that cannot be told: ranks fill nodes in the order of names."""
    nodes = log.node_list
    if not nodes or not log.ranks or log.ranks % len(nodes) or rank >= log.ranks:
        return ""
    return nodes[rank * len(nodes) // log.ranks]


def _steps(end: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    steps = end.get("steps")
    return [one for one in steps if isinstance(one, dict)] if isinstance(steps, list) else []


def _training_step(log: SlurmLog) -> Mapping[str, Any] | None:
    """Return the step that trained: the longest of those that began while the script was at it."""
    first, last = log.times.get("RUNANDTIME_START", 0), log.times.get("RUNANDTIME_STOP", 0)
    during = [
        one
        for one in _steps(log.end)
        if isinstance(one.get("start"), int) and first <= one["start"] and (not last or one["start"] < last)
    ]
    return max(during, key=lambda one: one.get("elapsed_s") or 0, default=None)


def _node_findings(log: SlurmLog, nodes: Sequence[str], gpus: int) -> list[Finding]:
    """Compare the nodes asked for with those of the job, of the log, and of the training's own step."""
    found = []
    claims = [("Slurm", log.end.get("nodes")), ("the log", list(log.node_list))]
    training = _training_step(log)
    if training:
        claims.append(("the training's step", list(expand(str(training.get("nodes") or "")))))
    for who, claimed in claims:
        if not isinstance(claimed, list) or not claimed:
            continue
        there, asked = {str(one) for one in claimed}, set(nodes)
        words = [f"{sanitize(name, 100)} took no part" for name in sorted(asked - there)]
        words += [f"{sanitize(name, 100)} was not asked for" for name in sorted(there - asked)]
        if words:
            message = f"other nodes than asked for, by {who}: {', '.join(words)}"
            found.append(_finding("wrong_nodes", Verdict.UNPROVEN, message))
    # Implementations start one process a GPU or one a node.
    if log.ranks and log.ranks not in (len(nodes), len(nodes) * gpus):
        message = f"{log.ranks} ranks trained, {len(nodes)} nodes with {gpus or '?'} GPUs each were asked for"
        found.append(_finding("wrong_ranks", Verdict.UNPROVEN, message))
    if not log.node_list and not log.end.get("nodes"):
        message = "neither Slurm nor the log says on which nodes it ran"
        found.append(_finding("nodes_unknown", Verdict.UNPROVEN, message))
    return found


def _cache_findings(log: SlurmLog, nodes: Sequence[str]) -> list[Finding]:
    """An event that says True proves nothing: what `sysctl` answered on each node does."""
    if log.cleared >= len(nodes) and not log.clear_errors:
        return []
    if not log.clearings and not log.cleared:
        message = "no sign in the log that the page caches were cleared"
    else:
        message = f"the page cache was cleared on {log.cleared} of {len(nodes)} nodes"
        if log.clear_errors:
            message += f": {log.clear_errors[0]}"
    return [_finding("cache_not_cleared", Verdict.UNPROVEN, message)]


def nccl_findings(log: SlurmLog) -> list[Finding]:
    """Return what the NCCL preflight says, which the run script itself ignores."""
    if "NCCL_TEST_START" not in log.times:
        asked = "was switched off" if log.nccl_asked is False else "did not begin"
        return [_finding("nccl_preflight", None, f"the NCCL preflight {asked}")]
    parsed = parse(io.BytesIO(log.nccl.encode()), format="nccl_tests", name="NCCL preflight")
    bad = [one for one in parsed.findings if one.verdict is not None and one.verdict.gates]
    found = []
    if bad:
        more = f" (and {len(bad) - 1} more)" if len(bad) > 1 else ""
        message = f"NCCL preflight: {bad[0].message}{more}"
        found.append(_finding("nccl_preflight", worst(one.verdict for one in bad if one.verdict), message))
    if not any(one.name.endswith("busbw") for one in parsed.measurements):
        found.append(_finding("nccl_preflight", Verdict.UNPROVEN, "the NCCL preflight printed no result"))
    return found


def measurements(log: SlurmLog, file: str) -> list[Measurement]:
    """Return phases and the preflight's bandwidth as measurements."""
    source = Source(file=file)
    found = [
        Measurement(name="phase_time", value=value, unit="s", labels={"phase": name}, source=source)
        for name, value in log.phases.items()
    ]
    parsed = parse(io.BytesIO(log.nccl.encode()), format="nccl_tests") if log.nccl else None
    sizes = [
        (int(one.labels["size_bytes"]), one.value)
        for one in (parsed.measurements if parsed else ())
        if one.name.endswith("busbw") and one.labels.get("size_bytes", "").isdigit()
    ]
    if sizes:
        largest = max(size for size, _value in sizes)
        lowest = min(value for size, value in sizes if size == largest)
        labels = {"size_bytes": str(largest)}
        found.append(
            Measurement(
                name="nccl_preflight_busbw",
                value=lowest,
                unit="GB/s",
                direction=Direction.HIGHER,
                labels=labels,
                source=source,
            )
        )
    return found


def spread(own: Sequence[Measurement], earlier: Sequence[Sequence[Measurement]]) -> list[Finding]:
    """Compare a repeat with those before it, and name the phase that was slow.

    Args:
        own: The repeat's measurements.
        earlier: Those of the repeats before it that passed.
    """
    speed, before = _value(own, "samples_per_second"), _values(earlier, "samples_per_second")
    if speed is None or len(before) < 2:
        return []
    usual = sorted(before)[len(before) // 2]
    if usual <= 0 or speed >= usual * (1 - REMARKABLE_REPEAT):
        return []
    slowest, most = "", 0.0
    for one in own:
        if one.name != "phase_time":
            continue
        others = _values(earlier, "phase_time", one.labels)
        more = one.value - sorted(others)[len(others) // 2] if others else 0.0
        if more > most:
            slowest, most = one.labels.get("phase", ""), more
    where = f"; the phase {slowest} took {most:.0f} s more" if slowest else ""
    message = f"a slow repeat: {speed:.4g} samples/s, those before it {usual:.4g}{where}"
    verdict = Verdict.DEGRADED if speed < usual * (1 - SLOW_REPEAT) else None
    return [_finding("slow_repeat", verdict, message)]


def _value(of: Sequence[Measurement], name: str, labels: Mapping[str, str] | None = None) -> float | None:
    wanted = dict(labels or {})
    return next((one.value for one in of if one.name == name and wanted.items() <= one.labels.items()), None)


def _values(
    of: Sequence[Sequence[Measurement]], name: str, labels: Mapping[str, str] | None = None
) -> list[float]:
    return [value for one in of if (value := _value(one, name, labels)) is not None]


def _finding(code: str, verdict: Verdict | None, message: str) -> Finding:
    return Finding(code=code, verdict=verdict, message=message[:4000])
