"""Read and judge the parts of the output of an MLPerf Training 0.6 run that are not its events.

Job bench reads the text with :class:`RunSub06Reader` and judges it with :func:`run_sub06_findings`. run.sub
of that round ends with the status of its own cleanup and does not count failed steps, so only its text shows
a failure, such as ``ERR: …``. The launcher adds ``:::RACKPROOF {"end": {"status": 0}}`` on a single node, and
Slurm's record on several nodes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rackproof.core.records import Finding, Record, Source, Verdict
from rackproof.core.text import amount, sanitize
from rackproof.logs._reading import observe_path
from rackproof.logs.run_sub import (
    MARK,
    MAX_KEPT,
    MAX_LINE_BYTES,
    RunScript,
    RunSubOutput,
    slurm_record_findings,
    state_findings,
)

_CLEARED = re.compile(
    r"(?:(\d{1,6}): )?.{0,200}?:::MLL \S{1,40} cache_clear: .{0,2000}\"value\": *true", re.IGNORECASE
)
"""Pattern of the event of a cleared page cache, with the number that srun writes before it."""
_MOST_NODES = 100_000
"""Largest number of nodes that are stored."""
# With several nodes, resnet's run script lets each print this, after the number that srun adds.
_NODE = re.compile(r"(?:\d{1,6}: )?Launching on node (\S{1,200})")


class RunSub06Output(Record):
    """The contents of the output as read, without a verdict."""

    caches_cleared: int = 0
    """Number of nodes with an event of a cleared page cache. A node logs it after the clearing, and only if
    it worked. Without srun's numbers, each event counts as one node."""
    trained: bool = False
    """True if the log has a ``run_start``."""
    nodes: tuple[str, ...] = ()
    """Nodes on which run.sub started the training, by their own names, if the script prints them."""
    errors: tuple[tuple[int, str], ...] = ()
    """Line number and text of error messages by run.sub."""


class RunSub06Reader:
    """A line observer for :func:`rackproof.logs.parse`, for round 0.6. No line raises an error."""

    def __init__(self) -> None:
        self._caches_cleared = 0
        """Number of events of a cleared page cache before which srun writes no number."""
        self._cleared_by: set[str] = set()
        """Numbers that srun writes before the others."""
        self._trained = False
        self._nodes: dict[str, None] = {}
        self._errors: list[tuple[int, str]] = []

    def line(self, number: int, raw: bytes) -> None:
        """Read one line."""
        text = raw[:MAX_LINE_BYTES].decode("utf-8", "replace").strip()
        if text.startswith(MARK):
            return
        if ":::MLL " in text:
            self._trained = self._trained or " run_start: " in text
            if cleared := _CLEARED.match(text):
                self._take_clearing(cleared[1])
        elif (node := _NODE.match(text)) and len(self._nodes) < _MOST_NODES:
            self._nodes.setdefault(sanitize(node[1], 200))
        elif text.startswith(("ERR:", "Unknown system")) and len(self._errors) < MAX_KEPT:
            self._errors.append((number, sanitize(text, 300)))

    def _take_clearing(self, label: str | None) -> None:
        """Count the node of an event of a cleared page cache, once for each number of srun."""
        if label is None:
            # Two nodes may write the same text, because the time has three digits.
            self._caches_cleared += 1
        elif len(self._cleared_by) < _MOST_NODES:
            self._cleared_by.add(label)

    def result(self) -> RunSub06Output:
        """Return the result of the lines read so far."""
        return RunSub06Output(
            caches_cleared=self._caches_cleared + len(self._cleared_by),
            trained=self._trained,
            nodes=tuple(self._nodes),
            errors=tuple(self._errors),
        )


def read_run_sub06(path: Path) -> RunSub06Output:
    """Read only run.sub's lines of a log. No text in the log raises an error.

    Raises:
        OSError: The log cannot be read.
    """
    reader = RunSub06Reader()
    observe_path(path, [reader])
    return reader.result()


def run_sub06_findings(
    output: RunSub06Output,
    launcher: RunSubOutput,
    asked_nodes: Sequence[str],
    *,
    run_id: str = "",
    script: RunScript = RunScript(),  # noqa: B008  (it cannot be changed)
) -> list[Finding]:
    """Return the findings from the output. Missing lines are findings of ``jobs.bench.required_evidence``.

    Args:
        output: The output as read here.
        launcher: The lines of the launcher, as :mod:`rackproof.logs.run_sub` read them.
        asked_nodes: The requested nodes.
        run_id: The id of the run, which is the name of its Slurm job on several nodes. If it is empty, the
            names are not compared.
        script: What the run script prints.
    """
    refused, hang = launcher.launcher_report.get("refused"), launcher.launcher_report.get("hang")
    if refused:
        return [_finding("refused", Verdict.UNPROVEN, sanitize(refused, 2000))]
    findings = []
    if isinstance(hang, dict):
        findings.append(_hang_finding(hang))
    for line, text in output.errors:
        findings.append(_finding("run_sub_error", Verdict.FAIL, f"run.sub reports: {text}", line))
    by_slurm = len(asked_nodes) > 1
    if by_slurm:
        ended = slurm_record_findings(launcher.end, asked_nodes, run_id)
    else:
        ended = _end_findings(launcher.end)
    if ended_before_training06(output, launcher, by_slurm=by_slurm):
        # Faults of nodes and caches are only consequences of the cause of the run's end.
        return [*findings, *ended]
    findings += [*_node_findings(output, asked_nodes), *ended]
    none_cleared = "cache_clearing" in script.lacks and not output.caches_cleared
    if output.caches_cleared < len(asked_nodes) and not none_cleared:
        message = (
            f"the page cache was cleared on {output.caches_cleared} of {amount(len(asked_nodes), 'node')}"
        )
        findings.append(_finding("cache_not_cleared", Verdict.UNPROVEN, message))
    return findings


def _hang_finding(hang: Mapping[str, Any]) -> Finding:
    """Return the finding on a run that was ended because it printed nothing for too long."""
    step = sanitize(hang.get("step") or "before the first epoch", 60)
    message = f"hung at {step}: no output for {sanitize(hang.get('silent_s'), 20)} s; ended"
    if hang.get("last"):
        message += f"; the last line was: {sanitize(hang['last'], 200)}"
    return _finding("hung_at_step", Verdict.FAIL, message)


def ended_before_training06(output: RunSub06Output, launcher: RunSubOutput, *, by_slurm: bool) -> bool:
    """Return whether a run ended before its training started, for a cause that fails it.

    Args:
        output: The output of the run script.
        launcher: The output of the launcher.
        by_slurm: Whether Slurm ran it, as it does with several nodes.
    """
    if output.trained:
        return False
    ended = state_findings(launcher.end) if by_slurm else _end_findings(launcher.end)
    hang = isinstance(launcher.launcher_report.get("hang"), dict)
    return hang or bool(output.errors) or any(finding.verdict is Verdict.FAIL for finding in ended)


def _end_findings(end: Mapping[str, Any]) -> list[Finding]:
    """Return a finding if the launcher of a run on one node reported a bad end."""
    status, state = end.get("status", 0), end.get("state")
    if state is not None and state != "COMPLETED":
        message = f"Slurm job {sanitize(end.get('job'), 20)} ended as {sanitize(state, 40) or 'unknown'}"
        return [_finding("slurm_state", Verdict.FAIL, message)]
    if type(status) is int and status != 0:
        return [_finding("run_sub_status", Verdict.FAIL, f"run.sub ended with {sanitize(status, 20)}")]
    return []


def _node_findings(output: RunSub06Output, asked_nodes: Sequence[str]) -> list[Finding]:
    """Return a finding if run.sub started the training on another number of nodes than requested."""
    started = len(set(output.nodes))
    if started in (0, len(asked_nodes)):
        return []
    # Compare only the numbers of nodes, because the nodes choose these names themselves.
    message = f"run.sub trained on {started} nodes, {len(asked_nodes)} were requested"
    return [_finding("wrong_nodes", Verdict.UNPROVEN, message)]


def _finding(code: str, verdict: Verdict, message: str, line: int | None = None) -> Finding:
    return Finding(code=code, verdict=verdict, message=message[:4000], source=Source(line=line))
