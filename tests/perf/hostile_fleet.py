"""One hostile node among a thousand: what the night costs, and who is harmed.

python tests/perf/hostile_fleet.py [--nodes 1000]

Each of the answers of tests/jobs/validate/test_hostile_nodes.py in a night of its own, after a sound one.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from rackproof.jobs.validate.judge import judge_fleet
from rackproof.jobs.validate.tasks import begin_night, close_night, store_snapshot
from rackproof.nodes.answer_seal import sealed_answer
from rackproof.store.night_store import NodeNight, night_folders, read_night
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

LIAR = 500
IDLE = {"known": True, "state_after": "IDLE", "drained_by": "none", "reason": "", "set_by": "", "jobs": []}


def everything(answer: dict[str, Any]) -> None:
    """Spoil an answer in every way at once, with 64 MB of text among it."""
    for spoil in (links, ports, units, many_lines, deep, not_text):
        spoil(answer)
    tool(answer, "nvlink_errors", "\x1b[2J\udcff" * (11 << 20))


def node_name(number: int) -> str:
    """Return the name of the node of a number."""
    return f"node{number:04d}"


def a_night(
    results: Path, count: int, hostile: Mapping[int, dict[str, Any]]
) -> tuple[dict[str, NodeNight], float]:
    """Return a night of so many nodes, and the seconds of CPU that it took."""
    begin = time.process_time()
    names = [node_name(number) for number in range(count)]
    begun = begin_night(results, names, owner_pid=os.getpid())
    for number, name in enumerate(names):
        answer = hostile.get(number) or gathered(number)
        answer["facts"]["hostname"] = answer["facts"].get("hostname", name)
        store_snapshot(
            begun,
            name,
            sealed_answer(answer),
            asked=EPOCH,
            answered=EPOCH + 1,
            sku="h200",
            expected={"gpus": 4, "hostname": name},
        )
    judge_fleet(
        begun,
        asked=dict.fromkeys(names, ""),
        being_imaged={},
        slurm=dict.fromkeys(names, IDLE),
        share=0.9,
    )
    close_night(begun, did={})
    night = {one.node: one for one in read_night(night_folders(results)[0]).nodes}
    return night, time.process_time() - begin


def main() -> None:
    """Print a line for each hostile answer."""
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--nodes", type=int, default=1000)
    count = asked.parse_args().nodes
    liar = min(LIAR, count - 1)
    print(f"{'answer':14} {'CPU s':>7}  its verdict; the others'")
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder) / "results"
        for _ in range(2):
            night, took = a_night(results, count, {})
        print(f"{'none':14} {took:7.1f}  {dict(Counter(one.verdict.value for one in night.values()))}")
        for spoil in (*HOSTILE, everything):
            answer = gathered(liar)
            spoil(answer)
            night, took = a_night(results, count, {liar: answer})
            its = night.pop(node_name(liar))
            others = dict(Counter(one.verdict.value for one in night.values()))
            print(f"{spoil.__name__:14} {took:7.1f}  {its.verdict.value}; {others}", flush=True)


if __name__ == "__main__":
    main()
