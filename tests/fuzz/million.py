"""Damage logs of every format, many times: ``python tests/fuzz/million.py --inputs 1000000 --seed 1``.

No parser of ``rackproof.logs`` may raise an exception, or accept a log as a success after damage that rules
out a success (mutations.py). A failure is printed with the options that repeat it: ``--seed S --start N
--inputs 1``. ``make fuzz`` runs this program.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import time
import traceback
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from tests.fuzz.mutations import Case, all_cases, check, real_cases

BATCH = 1000


def run_batch(seed: int, first: int, count: int) -> tuple[Counter[str], list[str]]:
    """Try ``count`` inputs. Return the number of each kind, and the failures in words."""
    cases: list[Case] = all_cases() + real_cases()
    kinds: Counter[str] = Counter()
    failures = []
    for index in range(first, first + count):
        chance = random.Random(f"{seed}/{index}")
        case = cases[index % len(cases)]
        try:
            kinds[check(case, chance)] += 1
        except Exception:  # any exception is a failure of the parser
            failures.append(f"--seed {seed} --start {index}: {case.name}\n{traceback.format_exc(limit=-4)}")
    return kinds, failures


def main() -> int:
    """Run and report. The exit status is 1 if an input failed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--inputs", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    options = parser.parse_args()
    kinds: Counter[str] = Counter()
    failures: list[str] = []
    began = shown = time.monotonic()
    starts = range(options.start, options.start + options.inputs, BATCH)
    with ProcessPoolExecutor(options.jobs) as pool:
        last = options.start + options.inputs
        jobs = (pool.submit(run_batch, options.seed, first, min(BATCH, last - first)) for first in starts)
        waiting = []
        for number, job in enumerate(jobs, 1):
            waiting.append(job)
            # Limit the number of batches that wait for a process.
            if len(waiting) < 4 * options.jobs and number < len(starts):
                continue
            for done in waiting:
                some, bad = done.result()
                kinds += some
                failures += bad
            waiting = []
            total, now = sum(kinds.values()), time.monotonic()
            if now - shown > 5 or number == len(starts):
                shown = now
                rate = total / (now - began)
                print(f"{total:>9,} inputs, {len(failures)} failures, {rate:,.0f}/s", flush=True)
            if len(failures) > 20:
                break
    print("\n".join(failures[:20]))
    print(", ".join(f"{kind} {count:,}" for kind, count in kinds.most_common()))
    print(f"{sum(kinds.values()):,} inputs without failure, {len(failures)} failures, seed {options.seed}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
