"""Measure what one hostile node among a thousand costs a night, and check that it harms no other node.

python tests/perf/hostile_fleet.py [--nodes 250 500 1000]

After a healthy night, there are three kinds of nights. In the first, a node gives all hostile answers at
once, in fleets of these sizes. In the second, it gives one of the answers of
tests/jobs/validate/test_hostile_nodes.py, in the smallest fleet at a quarter, half and all of its size, and
in the largest fleet. In the third, every fourth node has a value of another type in one place of its answer.
The exit status is 1 if another node is harmed, or if the only hostile node passes.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from rackproof.jobs.validate.judge import judge_fleet
from rackproof.jobs.validate.tasks import begin_night, close_night, store_snapshot
from rackproof.nodes.answer_seal import sealed_answer
from rackproof.store.night_store import NodeNight, night_folders, read_night
from tests.jobs.validate.probes import ROOT
from tests.jobs.validate.test_hostile_nodes import (
    HOSTILE,
    deep,
    links,
    many_lines,
    not_text,
    ports,
    tool,
    units,
)
from tests.jobs.validate.test_validating import EPOCH, gathered

LIAR = 100
"""Number of the first hostile node."""
IDLE = {"known": True, "state_after": "IDLE", "drained_by": "none", "reason": "", "set_by": "", "jobs": []}
OTHER_VALUES = (None, 7, math.nan, 10**400, "text", "\x1b[2J\udcff", "9" * 5000, [[["x"]]], {"a": {"b": 1}})
"""Values of other types or of extreme size, each of which may be in any place of an answer."""


def everything(answer: dict[str, Any], size: float = 1) -> None:
    """Spoil an answer in every way at once, with 64 MB of text among it."""
    for spoil in (links, ports, units, many_lines, deep, not_text):
        spoil(answer, size)
    tool(answer, "nvlink_errors", "\x1b[2J\udcff" * int((11 << 20) * size))


def other_types(number: int, which: slice = slice(None)) -> list[dict[str, Any]]:
    """Return the answers of a node with one of OTHER_VALUES in one place. ``which`` selects some of them."""
    kinds = [
        (place, value)
        for place, kept in _places(healthy(number))
        for value in OTHER_VALUES
        if type(kept) is not type(value)
    ]
    return [_with_value(healthy(number), place, value) for place, value in kinds[which]]


def _with_value(answer: dict[str, Any], place: Sequence[str], value: object) -> dict[str, Any]:
    """Return the answer with another value in a place."""
    part = answer
    for key in place[:-1]:
        part = part[key]
    part[place[-1]] = value
    return answer


def _places(part: Mapping[str, Any], above: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], object]]:
    """Yield each place of an answer, as keys from outside in, with its value."""
    for name, value in part.items():
        yield (*above, name), value
        if isinstance(value, Mapping):
            yield from _places(value, (*above, name))


def node_name(number: int) -> str:
    """Return the name of the node with this number."""
    return f"node{number:04d}"


def healthy(number: int) -> dict[str, Any]:
    """Return the answer of the healthy node with this number, which the caller may change."""
    answer = deepcopy(gathered(number))
    answer["facts"]["hostname"] = node_name(number)
    return answer


def a_night(
    results: Path, count: int, hostile: Mapping[int, dict[str, Any]]
) -> tuple[dict[str, NodeNight], float]:
    """Make a night of ``count`` nodes. Return its record of each node, and the CPU seconds that it took."""
    begin = time.process_time()
    names = [node_name(number) for number in range(count)]
    begun = begin_night(results, names, owner_pid=os.getpid())
    for number, name in enumerate(names):
        store_snapshot(
            begun,
            name,
            sealed_answer(hostile[number] if number in hostile else healthy(number)),
            asked=EPOCH,
            answered=EPOCH + 1,
            sku="h200",
            expected={"gpus": 4, "hostname": name},
        )
    judge_fleet(
        begun,
        asked=dict.fromkeys(names, ""),
        benchmarks=ROOT / "benchmarks",
        being_imaged={},
        slurm=dict.fromkeys(names, IDLE),
        share=0.9,
    )
    close_night(begun, did={})
    night = {one.node: one for one in read_night(night_folders(results)[0]).nodes}
    return night, time.process_time() - begin


def harm(night: Mapping[str, NodeNight], hostile: Sequence[int], earlier: Sequence[int] = ()) -> str:
    """Return in words which healthy nodes do not pass, and which hostile ones have no snapshot."""
    names = {node_name(number) for number in hostile}
    # An XID or a port of an earlier night counts against its node until an operator acts.
    known = names | {node_name(number) for number in earlier}
    harmed = Counter(one.verdict.value for one in night.values() if one.node not in known)
    lost = [name for name in sorted(names) if night[name].unreached]
    return f"others: {dict(harmed)}, lost: {lost[:5]}" if set(harmed) != {"pass"} or lost else ""


def _print_night(
    what: str,
    took_s: float,
    night: Mapping[str, NodeNight],
    hostile: Sequence[int],
    earlier: Sequence[int] = (),
) -> bool:
    """Print a line of a night. Return whether a node was harmed, or the only hostile one passes."""
    verdicts = Counter(night[node_name(number)].verdict.value for number in hostile)
    wrong = harm(night, hostile, earlier) or ("it passes" if len(hostile) == 1 and verdicts["pass"] else "")
    print(f"{what:28} {took_s:7.1f}  {dict(verdicts)}; {wrong or 'all others pass'}", flush=True)
    return bool(wrong)


def _nights(results: Path, counts: Sequence[int]) -> Iterator[bool]:
    """Make the nights. Yield for each whether it harmed a node."""
    largest = counts[-1]
    for count in counts:
        for what in ("healthy, first night", "healthy"):
            night, took_s = a_night(results / str(count), count, {})
            yield _print_night(f"{count}: {what}", took_s, night, ())
        answer = healthy(LIAR)
        everything(answer)
        night, took_s = a_night(results / str(count), count, {LIAR: answer})
        yield _print_night(f"{count}: everything", took_s, night, (LIAR,))
    # Each hostile answer is that of another node, because parts that it adds would be missing a night later.
    for liar, spoil in enumerate(HOSTILE, LIAR + 1):
        for count, size in ((counts[0], 1 / 4), (counts[0], 1 / 2), (counts[0], 1.0), (largest, 1.0)):
            answer = healthy(liar)
            spoil(answer, size)
            night, took_s = a_night(results / str(count), count, {liar: answer})
            yield _print_night(
                f"{count}: {spoil.__name__} x {size}", took_s, night, (liar,), range(LIAR, liar)
            )
    liars = range(1, largest, 4)
    for first in range(0, len(other_types(0)), len(liars)):
        hostile = {
            number: answer
            for at, number in enumerate(liars, first)
            for answer in other_types(number, slice(at, at + 1))
        }
        night, took_s = a_night(results / str(largest), largest, hostile)
        yield _print_night(
            f"{largest}: {len(hostile)} other types",
            took_s,
            night,
            tuple(hostile),
            range(LIAR, LIAR + len(HOSTILE) + 1),
        )


def main() -> int:
    """Print a line for each night. Return the exit status."""
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--nodes", type=int, nargs="+", default=[250, 500, 1000])
    print(f"{'night':28} {'CPU s':>7}  verdicts of the hostile nodes; of the others")
    with tempfile.TemporaryDirectory() as folder:
        harmed = list(_nights(Path(folder), sorted(asked.parse_args().nodes)))
    return 1 if any(harmed) else 0


if __name__ == "__main__":
    sys.exit(main())
