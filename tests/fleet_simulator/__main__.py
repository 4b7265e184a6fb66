"""Simulate fleets, let judges judge them, and print what each found: ``make fleets``.

    python -m tests.fleet_simulator --fleets common,small --seeds 3
    python -m tests.fleet_simulator --judge package.module:make_judge --alarms fail --alarms fail,degraded

``--judge`` names a function without arguments that returns a judge: a function that is called with every
night in turn (iterate over it for its ``Measurement``s; ``night.number``, ``night.nodes``,
``night.retest(nodes)``) and returns a verdict per node. The baselines are always there for comparison,
unless ``--only`` is given.
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Callable
from pathlib import Path

import yaml

from tests.fleet_simulator.baselines import BASELINES, FLAGGED, Judge
from tests.fleet_simulator.faults import FaultMix, all_faults, mix_of
from tests.fleet_simulator.fleets import Fleet, fleet_of, fleets
from tests.fleet_simulator.scores import Score, assess, detections, summary
from tests.fleet_simulator.simulation import simulate


def parser() -> argparse.ArgumentParser:
    """Describe the command line."""
    arguments = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    arguments.add_argument("--fleets", help="comma-separated names (default: all)")
    arguments.add_argument("--fleets-file", type=Path, help="other fleets than fleets.yml")
    arguments.add_argument("--faults-file", type=Path, help="another mix of faults than faults.yml")
    arguments.add_argument("--seed", type=int, default=1, help="first seed (default: %(default)s)")
    arguments.add_argument(
        "--seeds", type=int, default=1, help="simulations of each fleet (default: %(default)s)"
    )
    arguments.add_argument("--judge", help="module:function that makes a judge")
    arguments.add_argument(
        "--alarms", action="append", help="verdicts that flag a node (default: fail); repeatable"
    )
    arguments.add_argument("--only", action="store_true", help="no baselines")
    arguments.add_argument("--tables", action="store_true", help="a table of kinds and sizes for each")
    return arguments


def scores_of(
    fleet: Fleet, faults: FaultMix, seeds: range, make: Callable[[], Judge], alarms: dict[str, set[str]]
) -> dict[str, Score]:
    """Return the scores of a judge over several simulations of a fleet, added up."""
    scores = dict.fromkeys(alarms, Score())
    for seed in seeds:
        for name, score in assess(simulate(fleet, faults, seed), make(), alarms).items():
            scores[name] = scores[name] + score
    return scores


def main() -> None:
    """Print a line, and if asked a table, for every fleet and judge."""
    options = parser().parse_args()
    of_file = options.fleets_file and yaml.safe_load(options.fleets_file.read_text())
    known = {name: fleet_of(name, one) for name, one in of_file.items()} if of_file else fleets()
    faults = mix_of(yaml.safe_load(options.faults_file.read_text())) if options.faults_file else all_faults()
    seeds = range(options.seed, options.seed + options.seeds)
    baseline = {FLAGGED: {FLAGGED}}
    judges = {} if options.only else {name: (make, baseline) for name, make in BASELINES.items()}
    if options.judge:
        module, function = options.judge.split(":")
        asked = options.alarms or [FLAGGED]
        alarms = {one: set(one.split(",")) for one in asked}
        judges[options.judge] = (getattr(importlib.import_module(module), function), alarms)
    for name in options.fleets.split(",") if options.fleets else known:
        print(f"## {name}, seeds {seeds.start} to {seeds.stop - 1}\n", flush=True)
        for title, (make, alarms) in judges.items():
            for flagged, score in scores_of(known[name], faults, seeds, make, alarms).items():
                print(summary(f"- {title} ({flagged})", score), flush=True)
                if options.tables:
                    print("\n" + "\n".join(detections(score)) + "\n", flush=True)
        print()


if __name__ == "__main__":
    main()
