"""Read the states of GPUs in a log, which show whether another program used a GPU.

The module does no I/O.

Rackproof's probes and trainings log the state of each GPU before their ranks start and after the ranks ended,
so anything that uses the GPU then is another program. A missing reading never counts as idle. The parser of
MLPerf events passes the value of each such event to :func:`note_gpu_state`. For programs with another log
format (MXNet, tf_cnn_benchmarks, tools of the node), the launcher prints the same value on a line, which
:func:`take_state_lines` reads::

    :::RACKPROOF gpu_state {"gpu": "GPU-1a2b", "moment": "begin", "processes": [], "memory_used_mib": 0,
    "utilisation_percent": 0, "throttle": 0}
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

import orjson

from rackproof.core.records import Verdict
from rackproof.logs._reading import Log, number, text_of
from rackproof.logs.clock_reasons import slowdowns_of

MOMENTS = {"begin": "before the run", "end": "after the run"}
"""Names of a state's moments in events, and their names in messages."""
STATE_LINE = ":::RACKPROOF gpu_state "
"""Beginning of a line of ``workloads/state_gpus.py``. The value of the event follows as JSON."""
_STATE_PATTERN = re.compile(rb"(?m)^%s([^\r\n]*)" % re.escape(STATE_LINE.encode()))
BUSY_PERCENT = 5.0
"""Smallest utilisation that counts as use by another program. An idle GPU shows 0 %. A program that takes a
tenth of the time causes 10 %."""
IDLE_MEMORY_MIB = 256.0
"""Largest memory in use, without the driver's reserve, of a GPU that no other program uses. An idle H100 or
H200 shows 0 MiB. With another program's context, it shows 714 to 723 MiB."""
_EVIDENCE = {
    "processes": "its compute processes",
    "memory_used_mib": "its memory in use",
    "utilisation_percent": "its utilisation",
}
"""Evidence of use by another program: the keys of an event's value, and their names in messages."""
_MOST_NAMED = 4
"""Largest number of processes that a message names."""


@dataclass(frozen=True)
class GpuState:
    """The state of one GPU at one moment: missing evidence, use by other programs, and lowered clocks.

    ``gpu`` is its UUID and ``moment`` a key of :data:`MOMENTS`. ``missing`` names the evidence that
    could not be read, ``shared`` the evidence that another program used the GPU, and ``slowdowns``
    the reasons why its clocks were lowered, if they are a fault of cooling or power.
    """

    gpu: str
    moment: str
    missing: tuple[str, ...]
    shared: tuple[str, ...]
    slowdowns: tuple[str, ...]


def read_gpu_state(value: object) -> GpuState | None:
    """Return the state in a ``gpu_state`` event's value, or None if it names no GPU or no known moment."""
    if not isinstance(value, Mapping):
        return None
    gpu, moment = value.get("gpu"), value.get("moment")
    if not isinstance(gpu, str) or not gpu or not isinstance(moment, str) or moment not in MOMENTS:
        return None
    memory_mib, used_percent = _reading(value, "memory_used_mib"), _reading(value, "utilisation_percent")
    processes = value.get("processes")
    is_known = {
        "processes": isinstance(processes, list),
        "memory_used_mib": memory_mib is not None,
        "utilisation_percent": used_percent is not None and used_percent <= 100,
    }
    shared = _process_evidence(processes)
    if memory_mib is not None and memory_mib > IDLE_MEMORY_MIB:
        shared.append(f"{memory_mib:g} MiB of its memory were in use")
    if used_percent is not None and used_percent >= BUSY_PERCENT:
        shared.append(f"it was busy {used_percent:g} % of the time")
    return GpuState(
        gpu=text_of(gpu, 60),
        moment=moment,
        missing=tuple(text for key, text in _EVIDENCE.items() if not is_known[key]),
        shared=tuple(shared),
        slowdowns=_slowdowns(value.get("throttle")),
    )


def note_gpu_state(log: Log, value: object, line: int | None, rank: int | None = None) -> None:
    """Add the findings about a GPU's state: use by another program, missing evidence, lowered clocks.

    A value that is no state gives an unproven finding. A state with all evidence becomes a tag of the log.

    Args:
        log: The log.
        value: The event's value.
        line: The event's line.
        rank: The rank that wrote it.
    """
    state = read_gpu_state(value)
    if state is None:
        message = "a GPU's state names no GPU, or no known moment (begin or end)"
        log.find("gpu_use_unknown", message, Verdict.UNPROVEN, line=line, rank=rank)
        return
    where = f"GPU {state.gpu} {MOMENTS[state.moment]}"
    if state.shared:
        message = (
            f"{where}: {'; '.join(state.shared)}. Another process used this GPU, so its speed proves "
            "nothing: end that process, then run the benchmark again"
        )
        log.find("gpu_shared", message, Verdict.UNPROVEN, line=line, rank=rank)
    if state.missing:
        message = (
            f"{where}: nvidia-smi did not give {', '.join(state.missing)}, so it is not known whether "
            "another process used this GPU. Run nvidia-smi on the node, and cure the error that it prints"
        )
        log.find("gpu_use_unknown", message, Verdict.UNPROVEN, line=line, rank=rank)
    else:
        log.tag(f"gpu_state.{state.moment}.{state.gpu}", "read")
    if state.slowdowns:
        reasons = ", ".join(state.slowdowns)
        message = f"{where}: its clocks were lowered by {reasons}; check its cooling and power"
        log.find("gpu_slowed", message, line=line, rank=rank)


def take_state_lines(log: Log, block: bytes) -> bytes:
    """Read the lines with a GPU's state in the next block of a log, and return the block without their text.

    Empty lines replace them, so that line numbers stay right. No parser may read their text, because a
    process may have any name. A damaged line gives an unproven finding.
    """
    if STATE_LINE.encode() not in block:
        return block
    line, counted_to = log.lines + 1, 0
    for match in _STATE_PATTERN.finditer(block):
        line += block.count(b"\n", counted_to, match.start())
        counted_to = match.start()
        try:
            value = orjson.loads(match[1])
        except ValueError:
            value = None
        note_gpu_state(log, value, line)
    return _STATE_PATTERN.sub(b"", block)


def gpus_with_states(tags: Mapping[str, str]) -> set[str]:
    """Return the UUIDs of the GPUs of which a log's tags show a complete state at one moment or more."""
    marks = [f"gpu_state.{moment}." for moment in MOMENTS]
    return {key[len(mark) :] for key in tags for mark in marks if key.startswith(mark)}


def _reading(value: Mapping[str, object], key: str) -> float | None:
    """Return a finite reading of 0 or more, or None. Text does not count as a reading."""
    raw = value.get(key)
    value_read = None if isinstance(raw, str) else number(raw)
    return value_read if value_read is not None and math.isfinite(value_read) and value_read >= 0 else None


def _process_evidence(processes: object) -> list[str]:
    """Return a list with one text about the processes on the GPU, or []. Any entry counts as a process."""
    if not isinstance(processes, list) or not processes:
        return []
    named = ", ".join(_process_text(process) for process in processes[:_MOST_NAMED])
    more = f" and {len(processes) - _MOST_NAMED} more" if len(processes) > _MOST_NAMED else ""
    return [f"it had compute processes: {named}{more}"]


def _process_text(process: object) -> str:
    if not isinstance(process, Mapping):
        return text_of(process, 60)
    return f"{text_of(process.get('pid'), 20)} ({text_of(process.get('name'), 60)})"


def _slowdowns(raw: object) -> tuple[str, ...]:
    """Return the faults among NVML's reasons for low clocks, in words. Invalid bits give no reason."""
    bits = None if isinstance(raw, str) else number(raw)
    if bits is None or not math.isfinite(bits) or not 0 <= bits < 2**63:
        return ()
    return tuple(reason.words for reason in slowdowns_of(int(bits)))
