"""Read the use of GPUs before and after a run: processes, memory, utilisation and clocks.

The supervisor in common.py and the program state_gpus.py call :func:`read_states` before a run uses its GPUs
and after it ended. Any use is therefore by other programs. In a container, processes outside of it are not
listed, and only used memory and utilisation show that they exist. The module needs only the standard library
of Python 3.8 or newer.
"""

from __future__ import annotations

import math
import statistics
import subprocess
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    # Python 3.8 cannot evaluate it.
    Ask = Callable[[list[str], float], str]
"""A function that runs nvidia-smi with options for at most a number of seconds, and returns its output.

Raises:
    OSError: nvidia-smi is not there, or does not start.
    subprocess.SubprocessError: nvidia-smi ended badly or not in time.
"""

READINGS = 5
"""Number of readings at one moment."""
FEWEST_READINGS = 3
"""Least number of readings at one moment if nvidia-smi is slow."""
BETWEEN_S = 0.2
"""Seconds between two readings."""
SETTLE_S = 1.2
"""Seconds after a run in which the utilisation may still be the run's. nvidia-smi averages over up to a
second."""
SLOW_S = 4.0
"""Seconds after which :data:`FEWEST_READINGS` are enough. Without persistence mode, a call takes a second for
each GPU."""
TIME_LIMIT_S = 30.0
"""The longest time for all calls of one moment together."""
MOST_PROCESSES = 16
"""Largest number of processes that are listed for a GPU."""
KEYS = ("memory_used_mib", "utilisation_percent", "sm_clock_mhz", "temperature_c", "power_w", "throttle")
"""The fields of a GPU's state, in the order of the cells; ``throttle`` has NVML's bits."""
_FORM = "--format=csv,noheader,nounits"
_FIELDS = "uuid,memory.used,utilization.gpu,clocks.sm,temperature.gpu,power.draw"
GPU_QUERIES = (
    [f"--query-gpu={_FIELDS},clocks_event_reasons.active", _FORM],
    [f"--query-gpu={_FIELDS},clocks_throttle_reasons.active", _FORM],
)
"""Two forms of one query, of which the first is for drivers from 535 on. Only the name of the last field
differs."""
PROCESS_QUERY = ["--query-compute-apps=gpu_uuid,pid,used_memory,process_name", _FORM]


def ask_nvidia_smi(options: list[str], seconds: float) -> str:
    """Return the output of nvidia-smi.

    Raises:
        OSError: nvidia-smi is not there, or does not start.
        subprocess.SubprocessError: nvidia-smi ended badly or not in time.
    """
    process = subprocess.run(
        ["nvidia-smi", *options],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=max(seconds, 0.1),
        check=True,
    )
    return process.stdout.decode("utf-8", "replace")


def number_of_cell(text: str) -> float | None:
    """Return the number of a cell, or None for a text such as "[N/A]", or a number below 0."""
    text = text.strip()
    try:
        # Bits are printed as 0x0000000000000001.
        value = float(int(text, 16)) if text.lower().startswith("0x") else float(text)
    except (ValueError, OverflowError):
        return None
    return value if math.isfinite(value) and value >= 0 and "_" not in text else None


def read_gpu_rows(text: str) -> dict[str, dict[str, float | None]]:
    """Return the fields of each GPU by UUID. If a row is damaged or repeated, its GPU's fields are None."""
    rows: dict[str, dict[str, float | None]] = {}
    nothing: dict[str, float | None] = dict.fromkeys(KEYS)
    for line in text.splitlines():
        uuid, *cells = (cell.strip() for cell in line.split(","))
        if len(cells) != len(KEYS) or uuid in rows:
            rows[uuid] = dict(nothing)
            continue
        rows[uuid] = {key: number_of_cell(cells[at]) for at, key in enumerate(KEYS)}
    return rows


def read_processes(text: str) -> list[dict[str, Any]] | None:
    """Return the compute processes with their GPUs, or None if a line is not a process."""
    processes = []
    for line in text.splitlines():
        # The name is last, because it may contain commas.
        cells = [cell.strip() for cell in line.split(",", 3)]
        if not line.strip():
            continue
        if len(cells) != 4 or not cells[0].startswith("GPU-") or not cells[1].isdecimal():
            return None
        uuid, pid, memory, name = cells
        processes.append(
            {"gpu": uuid, "pid": int(pid), "memory_mib": number_of_cell(memory), "name": name[:100]}
        )
    return processes


def read_states(
    uuids: Iterable[str],
    ask: Ask = ask_nvidia_smi,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> list[dict[str, Any]]:
    """Return the state of each GPU, read for about a second.

    Utilisation is the median of :data:`READINGS` readings, or of at least :data:`FEWEST_READINGS` if calls
    are slow. All other values are from the last reading. ``processes`` are the compute processes on the GPU,
    at most :data:`MOST_PROCESSES`. Values that could not be read are None. The call takes at most
    :data:`TIME_LIMIT_S`, and never raises an error, whatever nvidia-smi does.

    Args:
        uuids: The UUIDs of the GPUs.
        ask: A function that runs nvidia-smi.
        sleep: A function that waits between readings.
        clock: A function that returns monotonic seconds.
    """
    begin = clock()
    end = begin + TIME_LIMIT_S

    def answer(options: list[str]) -> str | None:
        if clock() >= end:
            return None
        try:
            return ask(options, end - clock())
        except (OSError, subprocess.SubprocessError):
            return None

    readings: list[dict[str, dict[str, float | None]]] = []
    queries = list(GPU_QUERIES)
    while queries and len(readings) < READINGS:
        text = answer(queries[0])
        if text is None:
            # The driver has no field of this name, or the tool is missing or hangs, so later calls fail
            # too.
            queries.pop(0)
            continue
        readings.append(read_gpu_rows(text))
        if len(readings) >= FEWEST_READINGS and clock() - begin > SLOW_S:
            break
        if len(readings) < READINGS:
            sleep(BETWEEN_S)
    listed = answer(PROCESS_QUERY) if readings else None
    processes = None if listed is None else read_processes(listed)
    return [_state(uuid, readings, processes) for uuid in uuids]


def _state(
    uuid: str, readings: list[dict[str, dict[str, float | None]]], processes: list[dict[str, Any]] | None
) -> dict[str, Any]:
    """Return the state of one GPU from all readings."""
    state: dict[str, Any] = {"gpu": uuid}
    last = readings[-1].get(uuid, {}) if readings else {}
    for key in KEYS:
        state[key] = last.get(key)
    used = [reading.get(uuid, {}).get("utilisation_percent") for reading in readings]
    known = [number for number in used if number is not None]
    enough = len(known) == len(used) >= FEWEST_READINGS
    state["utilisation_percent"] = statistics.median_high(known) if enough else None
    state["processes"] = None
    if processes is not None:
        own = [process for process in processes if process["gpu"] == uuid][:MOST_PROCESSES]
        state["processes"] = [{key: process[key] for key in ("pid", "memory_mib", "name")} for process in own]
    return state
