"""What the output of a run of MLPerf Training 0.6 shows beside its events.

run.sub of that round ends with the status of its own tidying up, and counts no failed step; its text is
what tells. All of it is nodes' text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from rackproof.core.records import Finding, Record, Source, Verdict
from rackproof.core.text import sanitize
from rackproof.logs.run_sub import MARK, SlurmLog

_CLEARED = re.compile(r":::MLL \S+ cache_clear: .*\"value\": *true", re.IGNORECASE)
_NODE = re.compile(r"Launching on node (\S{1,200})")


class Round06Log(Record):
    """What was read, without a verdict."""

    cleared: int = 0
    """Nodes whose page cache was cleared: the event comes after the clearing, and only where it worked."""
    trained: bool = False
    nodes: tuple[str, ...] = ()
    """Nodes that run.sub says it started the training on, as they call themselves."""
    errors: tuple[tuple[int, str], ...] = ()
    """Line number and text of what run.sub complains about."""


def read(path: Path) -> Round06Log:
    """Read a log. Nothing in it raises."""
    cleared, trained = 0, False
    nodes: list[str] = []
    errors: list[tuple[int, str]] = []
    with path.open("rb") as stream:
        for number, raw in enumerate(stream, 1):
            line = raw[:20_000].decode("utf-8", "replace").strip()
            if line.startswith(MARK):
                continue
            if ":::MLL " in line:
                trained = trained or " run_start: " in line
                cleared += bool(_CLEARED.search(line))
            elif found := _NODE.match(line):
                nodes.append(sanitize(found[1], 200))
            elif line.startswith(("ERR:", "Unknown system")) and len(errors) < 20:
                errors.append((number, sanitize(line, 300)))
    return Round06Log(cleared=cleared, trained=trained, nodes=tuple(nodes), errors=tuple(errors))


def findings(seen: Round06Log, log: SlurmLog, asked: Sequence[str]) -> list[Finding]:
    """Return what the output says against the run.

    Args:
        seen: What was read here.
        log: What :mod:`rackproof.logs.run_sub` read: the lines of the launcher.
        asked: The nodes that were asked for.
    """
    refused, hang, end = log.said.get("refused"), log.said.get("hang"), log.end
    if refused:
        return [_finding("refused", Verdict.UNPROVEN, sanitize(refused, 2000))]
    found = []
    if isinstance(hang, dict):
        where = sanitize(hang.get("step") or "before the first epoch", 60)
        message = f"hung at {where}: no output for {sanitize(hang.get('silent_s'), 20)} s; ended"
        if hang.get("last"):
            message += f"; the last line was: {sanitize(hang['last'], 200)}"
        found.append(_finding("hung_at_step", Verdict.FAIL, message))
    for line, text in seen.errors:
        found.append(_finding("run_sub_error", Verdict.FAIL, f"run.sub says: {text}", line))
    if not end:
        found.append(_finding("no_end", Verdict.UNPROVEN, "nobody saw how run.sub ended"))
    elif end.get("status") not in (0, None):
        found.append(
            _finding("run_sub_status", Verdict.FAIL, f"run.sub ended with {sanitize(end['status'], 20)}")
        )
    elif "state" in end and end.get("state") != "COMPLETED":
        message = (
            f"Slurm job {sanitize(end.get('job'), 20)} ended as {sanitize(end.get('state') or 'unknown', 40)}"
        )
        found.append(_finding("slurm_state", Verdict.FAIL, message))
    there = end.get("nodes")
    if len(asked) > 1 and isinstance(there, list) and {str(one) for one in there} != set(asked):
        named = sanitize(", ".join(str(one) for one in there), 300) or "none"
        found.append(
            _finding("wrong_nodes", Verdict.UNPROVEN, f"other nodes than asked for, by Slurm: {named}")
        )
    if seen.trained and seen.nodes and len(set(seen.nodes)) != len(asked):
        message = f"run.sub trained on {len(set(seen.nodes))} nodes, {len(asked)} were asked for"
        found.append(_finding("wrong_nodes", Verdict.UNPROVEN, message))
    if seen.trained and seen.cleared < len(asked):
        message = f"the page cache was cleared on {seen.cleared} of {len(asked)} nodes"
        found.append(_finding("cache_not_cleared", Verdict.UNPROVEN, message))
    return found


def _finding(code: str, verdict: Verdict, message: str, line: int | None = None) -> Finding:
    return Finding(code=code, verdict=verdict, message=message[:4000], source=Source(line=line))
