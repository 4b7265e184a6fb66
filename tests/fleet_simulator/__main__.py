"""Simulate fleets, let judges judge them, and print what each found (`make fleets`).

    python -m tests.fleet_simulator --fleets common,small --seeds 3
    python -m tests.fleet_simulator --judge package.module:make_judge --alarms fail --alarms fail,degraded

``--judge`` names a function without arguments that returns a judge, and may be repeated. A judge is a
function that is called with every night in turn, and returns a verdict per node. A night yields its
``Measurement``s, and has ``night.number``, ``night.nodes`` and ``night.retest(nodes)``. The scores of the
baselines are printed for comparison, unless ``--only`` is given. All judges see the same nights.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
from collections.abc import Callable
from pathlib import Path

import yaml

from tests.fleet_simulator.baselines import BASELINES, FLAGGED, Judge
from tests.fleet_simulator.faults import FaultMix, all_faults, mix_of
from tests.fleet_simulator.fleets import Fleet, fleet_of, fleets
from tests.fleet_simulator.scores import (
    Score,
    assess_all,
    detections,
    found_soon,
    smallest_losses,
    summary,
)
from tests.fleet_simulator.simulation import simulate


def parser() -> argparse.ArgumentParser:
    """Describe the command line."""
    arguments = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    arguments.add_argument("--fleets", help="comma-separated names (default: all)")
    arguments.add_argument("--fleets-file", type=Path, help="other fleets than fleets.yml")
    arguments.add_argument("--nodes", type=int, help="size of every fleet (default: its own)")
    arguments.add_argument("--faults-file", type=Path, help="another mix of faults than faults.yml")
    arguments.add_argument("--seed", type=int, default=1, help="first seed (default: %(default)s)")
    arguments.add_argument(
        "--seeds", type=int, default=1, help="simulations of each fleet (default: %(default)s)"
    )
    arguments.add_argument("--judge", action="append", default=[], help="module:function that makes a judge")
    arguments.add_argument(
        "--alarms", action="append", help="verdicts that flag a node (default: fail); repeatable"
    )
    arguments.add_argument("--only", action="store_true", help="leave the baselines out")
    arguments.add_argument("--tables", action="store_true", help="also print tables by kind, size and nights")
    return arguments


JudgeAndFlags = tuple[Callable[[], Judge], dict[str, set[str]]]
"""The function that makes a judge, and the verdicts that flag a node, by name."""


def scores_of(
    fleet: Fleet, faults: FaultMix, seeds: range, judges: dict[str, JudgeAndFlags]
) -> dict[str, dict[str, Score]]:
    """Return the scores of judges over several simulations of a fleet, added up."""
    scores = {title: dict.fromkeys(alarms, Score()) for title, (_, alarms) in judges.items()}
    for seed in seeds:
        afresh = {title: (make(), alarms) for title, (make, alarms) in judges.items()}
        for title, of_judge in assess_all(simulate(fleet, faults, seed), afresh).items():
            for name, score in of_judge.items():
                scores[title][name] = scores[title][name] + score
    return scores


def main() -> None:
    """Print a line, and with ``--tables`` three tables, for every fleet, judge and choice of alarms."""
    options = parser().parse_args()
    of_file = options.fleets_file and yaml.safe_load(options.fleets_file.read_text())
    known = {name: fleet_of(name, one) for name, one in of_file.items()} if of_file else fleets()
    if options.nodes:
        known = {name: dataclasses.replace(fleet, nodes=options.nodes) for name, fleet in known.items()}
    faults = mix_of(yaml.safe_load(options.faults_file.read_text())) if options.faults_file else all_faults()
    seeds = range(options.seed, options.seed + options.seeds)
    baseline = {FLAGGED: {FLAGGED}}
    judges: dict[str, JudgeAndFlags] = (
        {} if options.only else {name: (make, baseline) for name, make in BASELINES.items()}
    )
    alarms = {one: set(one.split(",")) for one in options.alarms or [FLAGGED]}
    for name in options.judge:
        module, function = name.split(":")
        judges[name] = (getattr(importlib.import_module(module), function), alarms)
    steps = [name for name, kind in faults.kinds.items() if kind.is_step]
    for name in options.fleets.split(",") if options.fleets else known:
        print(f"## {name}, seeds {seeds.start} to {seeds.stop - 1}\n", flush=True)
        for title, of_judge in scores_of(known[name], faults, seeds, judges).items():
            for flagged, score in of_judge.items():
                print(summary(f"- {title} ({flagged})", score), flush=True)
                if options.tables:
                    for table in (detections(score), found_soon(score, steps), smallest_losses(score, steps)):
                        print("\n" + "\n".join(table) + "\n", flush=True)
        print()


if __name__ == "__main__":
    main()
