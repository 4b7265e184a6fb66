"""Check that other processes did not use a machine during a run. No I/O.

The supervisors of the job measure the use in windows of ten seconds (docs/using/verdicts.md). When a run is
recorded, :mod:`rackproof.jobs.bench.tasks` calls :func:`read_machine_use` with the state of each job, and
stores the result in the record.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import dropwhile
from pathlib import PurePosixPath
from typing import Any

from pydantic import ValidationError

from rackproof.core.records import Finding, MachineUse
from rackproof.core.text import amount, sanitize
from rackproof.core.untrusted import as_float

_DISTURBED = 0.1
"""Share of a run's time. Slowdowns in a smaller share do not move its speeds beyond their bounds."""
_STOLEN = 0.05
"""Share of a machine's processors, averaged over a run. If the hypervisor takes this share, speeds move
beyond their bounds, even if no window of the run stands out. On a machine with fewer than four processors,
it must take :data:`_STOLEN_CPUS` of a processor."""
_STOLEN_CPUS = 0.2
"""Processors, averaged over a run. A hypervisor may always take less."""
_FEWEST_S = 1.0
"""Processor seconds. If others use fewer, they do not slow even a short run. A login and a timer's script
use about as much."""
_WATCHED = 0.5
"""Smallest share of the job's time for which its supervisor must measure the use.

With less, the machine is not known to be idle.
"""
_LONGER_S = 10.0
"""Seconds by which the measured time may exceed the job's, because the supervisor measures earlier."""
_MOST_CPUS = 1 << 20
"""Largest plausible number of processors of a machine."""
_ELSEWHERE = frozenset({"docker", "slurm", "podman", "nerdctl", "srun", "sbatch"})
"""Launchers and programs that run a job outside the supervisor's processes.

The job's own time would count as use by others, so such a job is not checked.
"""
_SHELLS = frozenset({"sh", "bash", "dash"})
_STARTERS = _SHELLS | {
    *("sudo", "env", "exec", "time", "nice", "ionice", "nohup", "setsid", "stdbuf", "timeout"),
    *("numactl", "taskset"),
}
"""Programs that start the program in their arguments."""
_NO_PROGRAM = re.compile(r"-.*|\w+=.*|[0-9.,-]+[smhd]?", re.DOTALL)
"""Options, variables and numbers before the program in the arguments of :data:`_STARTERS`."""
_COMMAND = "--command="
"""Option of Rackproof's workloads with the command that they start."""


def read_machine_use(jobs: Mapping[str, Mapping[str, Any]]) -> dict[str, MachineUse]:
    """Return the use of each node from the states of a job. A node without a valid use is left out.

    Args:
        jobs: The job's state (state.json) on each node. Its key ``machine`` has the use.
    """
    uses = {}
    for node, job in jobs.items():
        try:
            use = MachineUse.model_validate(_with_clean_texts(job.get("machine")))
        except (ValidationError, TypeError, ValueError, OverflowError):
            continue
        if _is_possible(use):
            uses[node] = use
    return uses


def _is_possible(use: MachineUse) -> bool:
    """Return whether all numbers of a use are finite and not negative, and the processors not too many."""
    numbers = [as_float(value) for value in (use.seconds, use.disturbed_s, use.others_s, use.stolen_s)]
    return 0 <= use.cpus <= _MOST_CPUS and all(value is not None and value >= 0 for value in numbers)


def _with_clean_texts(raw: object) -> dict[str, Any]:
    """Return the use that a node states, with texts that are safe to show.

    Raises:
        TypeError: The value is not a mapping.
    """
    if not isinstance(raw, Mapping):
        raise TypeError("no mapping")
    names = raw.get("names")
    cleaned = [sanitize(name, 40) for name in names[:8]] if isinstance(names, list | tuple) else []
    return {**raw, "names": cleaned, "begin": _moment(raw.get("begin")), "end": _moment(raw.get("end"))}


def _moment(raw: object) -> dict[str, Any] | None:
    """Return a machine's state before or after a run with safe text, or None if it is not a mapping."""
    if not isinstance(raw, Mapping):
        return None
    governor = raw.get("governor")
    return {**raw, "governor": sanitize(governor, 40) if governor is not None else None}


def runs_elsewhere(launcher: str, arguments: Sequence[str]) -> bool:
    """Return whether a job's work is done by processes that its supervisor did not start.

    Only the launcher and the programs of the command count, not the other arguments.
    """
    commands = [arguments, *(word.removeprefix(_COMMAND).split() for word in arguments if _COMMAND in word)]
    return launcher in _ELSEWHERE or any(
        name in _ELSEWHERE for command in commands for name in _program_names(command)
    )


def _program_names(words: Sequence[str]) -> Iterator[str]:
    """Yield the names of the programs that a command starts: ``sudo docker …`` starts sudo and docker."""
    before = ""
    for position, word in enumerate(words):
        name = "" if _NO_PROGRAM.fullmatch(word) else PurePosixPath(word).name
        yield name
        if name in _SHELLS:
            # The script of `sh -c` is one word or several, with a program after each separator.
            script = dropwhile(lambda option: option.startswith("-"), words[position + 1 :])
            for part in re.split(r"[;&|\n]+", " ".join(script)):
                yield from _program_names(part.split())
            return
        # The word after an option may be its value: sudo -u ada docker.
        if name and name not in _STARTERS and not before.startswith("-"):
            return
        before = word


def busy_reason(uses: Mapping[str, MachineUse], jobs: Mapping[str, Mapping[str, Any]] | None = None) -> str:
    """Return why no speed of a run counts, or "".

    The reasons are nodes that other processes used during the run, and nodes whose supervisor did not
    state their use.

    Args:
        uses: The use of each node by others.
        jobs: The job's state on each node whose supervisor measures the use.
    """
    reasons = [_reason(node, use) for node, use in uses.items() if was_busy(use)]
    reasons += [
        f"{node} is not known to have been idle: its supervisor states {reason}; check "
        "that /proc can be read there, then run the benchmark again, or judge it as it is: "
        "-e bench_require_idle=false"
        for node, job in (jobs or {}).items()
        if (reason := _unwatched(uses.get(node), job))
    ]
    return "; ".join(reasons)[:3000]


def _unwatched(use: MachineUse | None, job: Mapping[str, Any]) -> str:
    """Return what a supervisor states if that is not enough (``no valid use by other processes``), or "".

    Return "" if the supervisor states enough, or if the job did not end by itself.
    """
    # A job without a known end is unproven for that reason already.
    if job.get("phase") != "ended" or job.get("ended_by") != "itself":
        return ""
    if use is None:
        return "no valid use by other processes"
    took_s = as_float(job.get("elapsed_s"))
    if took_s is None or took_s < 0:
        return "no duration of the job"
    if use.seconds > took_s + _LONGER_S:
        return f"the use by other processes for {use.seconds:g} s, but the job took {took_s:g} s"
    # The supervisor rounds the seconds to a tenth.
    is_enough = use.cpus > 0 and use.seconds + 0.1 >= _WATCHED * took_s
    return "" if is_enough else f"the use by other processes for only {use.seconds:g} of {took_s:g} s"


def was_busy(use: MachineUse) -> bool:
    """Return whether others slowed a run down for a share of its time that affects its speeds."""
    used_s = use.others_s + use.stolen_s
    seconds = max(use.seconds, 0.1)
    stolen_limit_s = max(_STOLEN_CPUS, _STOLEN * use.cpus) * seconds
    few = use.disturbed_s < _DISTURBED * seconds and use.stolen_s < stolen_limit_s
    return not (few or used_s < _FEWEST_S)


def _reason(node: str, use: MachineUse) -> str:
    """Return the sentence about a busy node, with the cause and the remedy."""
    names = f" ({', '.join(use.names)})" if use.names else ""
    mean = use.others_s / max(use.seconds, 0.1)
    cause = f"processes outside the job{names} used {mean:.1f} of its {amount(use.cpus, 'processor')}"
    if use.stolen_s > use.others_s:
        cause = f"its hypervisor took {use.stolen_s:.0f} processor seconds for other machines"
    load = ""
    if use.begin is not None and use.begin.load is not None:
        load = f", load {use.begin.load:.1f} when it began"
    return (
        f"{node} was not idle: {cause} and slowed the run down for {use.disturbed_s:.0f} of "
        f"{use.seconds:.0f} s{load}; run the benchmark again when it is idle, "
        "or judge it as it is: -e bench_require_idle=false"
    )


def busy_findings(reason: str) -> list[Finding]:
    """Return a remark that no speed of a run counts, or nothing without a reason.

    The remark has no verdict, because the quality of the result still counts.
    """
    return (
        [Finding(code="machine_busy", message=f"no speed of this run counts: {reason}"[:4000])]
        if reason
        else []
    )
