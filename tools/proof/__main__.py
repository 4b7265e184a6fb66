"""Run the gate or the suites, or show which of them are green for the present files.

    python -m tools.proof gate      run the checks that every change must pass (`make test`)
    python -m tools.proof prove     run the suites that are not green (`make prove`)
    python -m tools.proof suites    print the state of each suite (`make suites`)

For `prove`, the variable SUITE=NAME,NAME selects suites, and FORCE=1 repeats green ones. For `gate`, PYTEST
adds options to the fast tests, and no result is stored, because only a part of them may have run.
"""

from __future__ import annotations

import datetime
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.proof.runner import Lanes, Part, end_leftovers, format_table
from tools.proof.suites import (
    RECORDS,
    ROOT,
    Suite,
    digest_inputs,
    files_with_tests,
    read_record,
    read_table,
    state_of,
    tree_hash,
    write_record,
)

sys.path.insert(0, str(ROOT / "testrack"))
from driver.claim import USER_VARIABLE, claim
from driver.console import Console

FREE_GIB = 6
"""Disk space in GiB that a run needs at most, for the rack's caches, images and containers, and for the
environment."""
LIMIT_FACTOR = 10
"""Multiple of a part's time on two idle cores after which the part is ended."""
LIMIT_MAX_S = 75 * 60
"""Largest limit in seconds, because CI ends after 90 minutes. A long suite has a larger one (see below)."""
LEAST_LIMIT_FACTOR = 3
"""Multiple of its time on idle cores that a long part may take in any case."""
LOW_PRIORITY = "nice -n 5"
"""Beginning of the commands of lint and tests, which then use the processors while the four jobs wait."""
RACK = ".venv/bin/python testrack/rack.py"


def main(argv: Sequence[str]) -> int:
    """Run one command, and return its exit status."""
    commands: dict[str, Callable[[], int]] = {"gate": run_gate, "prove": run_suites, "suites": show_suites}
    if len(argv) != 1 or argv[0] not in commands:
        print(__doc__, file=sys.stderr)
        return 2
    # SIGTERM has the effect of Ctrl-C: the parts are ended, and the rack is left as it is.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.default_int_handler)
    try:
        return commands[argv[0]]()
    except KeyboardInterrupt:
        print("interrupted; `make prove` skips green suites, `make test` repeats all", file=sys.stderr)
        return 130


class Proof:
    """One call of the gate or of `make prove`."""

    def __init__(self) -> None:
        began = os.environ.get("PROOF_BEGAN", "")
        self.began = float(began) if began.isdecimal() else time.time()
        self.console = Console(RECORDS / "timings.json")
        self.environment = os.environ | {
            "PATH": f"{ROOT / '.venv/bin'}{os.pathsep}{os.environ['PATH']}",
            "PYTHONUNBUFFERED": "1",
            USER_VARIABLE: str(os.getpid()),
        }
        # Hundreds of processes load the package. Without its bytecode, each would compile it. The others may
        # leave out tests or scenarios.
        for variable in ("PYTHONDONTWRITEBYTECODE", "PYTEST_ADDOPTS", "MAKEFLAGS", "MAKEOVERRIDES"):
            self.environment.pop(variable, None)
        self.lanes = Lanes(ROOT, self.environment, self.console.say)
        if ended := end_leftovers(USER_VARIABLE):
            self.console.say(f"ended processes of a killed gate or suite: {', '.join(ended)}")

    @property
    def seconds(self) -> float:
        """Return the seconds since `make test` (PROOF_BEGAN) or else this process began."""
        return time.time() - self.began

    def check_disk(self) -> None:
        """Exit if the disk is too full to finish the run."""
        for path in (ROOT, Path("/var/lib")):
            free = shutil.disk_usage(path).free / 2**30
            if free < FREE_GIB:
                sys.exit(
                    f"{free:.1f} GiB are free on the disk of {path}; {FREE_GIB} GiB are needed. "
                    "`make clean-cache` removes the files kept for racks; old clones are the usual reason"
                )

    def part(self, name: str, *commands: str, minutes: float) -> Part:
        """Return a part with its time limit, and with the time that it took when it was last green."""
        expected = float(read_record("timings").get(name, 0))
        limit = min(minutes * 60 * LIMIT_FACTOR, max(LIMIT_MAX_S, minutes * 60 * LEAST_LIMIT_FACTOR))
        return Part(name, commands, limit, expected, RECORDS / f"{name}.log")

    def take_rack_down(self) -> None:
        """Take the rack down with new lanes, because a red part stops the lanes of the gate."""
        Lanes(ROOT, self.environment, self.console.say).run(
            [[self.part("rack down", f"{RACK} down", minutes=1)]]
        )


def run_gate() -> int:
    """Run the checks that every change must pass, print the table, and store the record.

    Return the exit status.
    """
    proof = Proof()
    proof.check_disk()
    tree = tree_hash()
    suite = read_table()["four-jobs"]
    inputs = Inputs(digest_inputs(suite), tree)
    installation = proof.part("environment", minutes=1)
    installation.state, installation.seconds = "green", proof.seconds
    tests = f"{LOW_PRIORITY} .venv/bin/pytest -q --numprocesses=auto --suite fast"
    packages = proof.part("packages", "tools/install-test-packages fast", minutes=2)
    lint = proof.part("lint", f"{LOW_PRIORITY} make --no-print-directory lint", minutes=3)
    options = os.environ.get("PYTEST", "").strip()
    fast = proof.part("fast tests", f"{tests} {options}".rstrip(), minutes=6)
    jobs = [
        proof.part("rack", f"{RACK} down", f"{RACK} up --nodes {suite.rack}", minutes=4),
        # Stop at the first failure (-x), because each job needs the state that the previous one left.
        proof.part("four jobs", f"{pytest_command(suite)} -x", f"{RACK} down", minutes=suite.minutes),
    ]
    parts = [packages, lint, fast, *jobs]
    try:
        with claim(ROOT, proof.console):
            green = proof.lanes.run([[packages]]) and proof.lanes.run([[lint], [fast], jobs])
            if not green:
                proof.take_rack_down()
    finally:
        result = "green" if all(part.state == "green" for part in parts) else "red"
        if options:
            print(f"PYTEST={options}: no result of the gate is stored", file=sys.stderr)
        else:
            store_result("gate", Inputs(tree, tree), result, proof.seconds, parts)
        if jobs[-1].state in ("green", "red"):
            store_result(suite.name, inputs, jobs[-1].state, jobs[-1].seconds, [])
    print(
        f"\n{format_table([installation, *parts], proof.seconds)}\n\nthe gate is {result}: {tree}", flush=True
    )
    print(f"{sum(part.tests for part in parts)} passed, {int(result != 'green')} failed", flush=True)
    return int(result != "green")


@dataclass(frozen=True)
class Inputs:
    """The inputs of a run: the digest of its input files, and git's hash of the tree."""

    digest: str
    tree: str


def store_result(name: str, inputs: Inputs, result: str, seconds: float, parts: Sequence[Part]) -> None:
    """Store the record of a suite or the gate, and how long its green parts took.

    If files changed while a suite ran, the result counts for neither the old nor the new files. Its record
    then names no inputs.
    """
    record = {"inputs": inputs.digest, "tree": inputs.tree}
    if tree_hash() != inputs.tree:
        record = {"inputs": "", "tree": ""}
        print(f"files changed while {name} ran, so its result does not count: run it again", file=sys.stderr)
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    write_record(name, {**record, "result": result, "seconds": round(seconds), "at": now})
    took = {part.name: round(part.seconds) for part in parts if part.state == "green"}
    write_record("timings", read_record("timings") | took)


def pytest_command(suite: Suite) -> str:
    """Return the command that runs a suite's tests. If the suite consists of files, no other file is read."""
    files = " ".join(files_with_tests(suite))
    return f".venv/bin/pytest -v --durations=10 --suite {suite.name} {files}".rstrip()


def suite_part(proof: Proof, suite: Suite) -> Part:
    """Return the part that runs a suite, with its rack."""
    rack = [f"{RACK} down"] if suite.fresh else []
    rack += [f"{RACK} up --nodes {suite.rack}"] if suite.rack else []
    commands = [command.replace("{tests}", pytest_command(suite)) for command in suite.run]
    return proof.part(suite.name, *rack, *commands, minutes=suite.minutes)


def chosen_suites(table: dict[str, Suite]) -> list[Suite]:
    """Return the suites to run.

    They are the suites in SUITE or, without it, all but those that are only_named. Green ones are left out,
    unless FORCE is set.
    """
    words = [word for word in os.environ.get("SUITE", "").replace(",", " ").split() if word]
    unknown = sorted(set(words) - set(table))
    if unknown:
        sys.exit(f"SUITE={unknown[0]}: no such suite; there are {', '.join(table)}")
    named = [table[word] for word in words] or [suite for suite in table.values() if not suite.only_named]
    if os.environ.get("FORCE"):
        return named
    return [suite for suite in named if state_of(suite) != "green"]


def run_suites() -> int:
    """Run the suites that are not green, with the rack's suites and the others side by side.

    Return the exit status.
    """
    proof = Proof()
    proof.check_disk()
    suites = [suite for suite in chosen_suites(read_table()) if not suite.lacking or print_lacking(suite)]
    if not suites:
        print("nothing to do: all selected suites are green or cannot run here; FORCE=1 repeats green ones")
        return 0
    proof.lanes.go_on = True
    tree = tree_hash()
    inputs = {suite.name: Inputs(digest_inputs(suite), tree) for suite in suites}

    def after(part: Part) -> None:
        if part.state in ("green", "red"):
            store_result(part.name, inputs[part.name], part.state, part.seconds, [part])

    # Install packages before the suites, because apt serves one call at a time, and both lanes would
    # call it.
    packages = proof.part("packages", "tools/install-test-packages", minutes=5)
    if not proof.lanes.run([[packages]]):
        return 1
    lanes = [
        [suite_part(proof, suite) for suite in suites if not suite.rack],
        [suite_part(proof, suite) for suite in suites if suite.rack],
    ]
    green = run_lanes(proof, lanes, after)
    parts = [packages, *(part for lane in lanes for part in lane)]
    print(f"\n{format_table(parts, proof.seconds)}\n", flush=True)
    if not green:
        print("a suite is red: `make prove` continues with those that are not green", file=sys.stderr)
    return int(not green)


def run_lanes(proof: Proof, lanes: list[list[Part]], after: Callable[[Part], None]) -> bool:
    """Run two lanes side by side, and return whether all suites are green. The second lane uses the rack."""
    if not lanes[1]:
        return proof.lanes.run(lanes, after)
    with claim(ROOT, proof.console):
        green = proof.lanes.run(lanes, after)
        proof.take_rack_down()
    return green


def print_lacking(suite: Suite) -> bool:
    """Print that a suite cannot run here, and return False."""
    print(f"{suite.name} was not run: it needs {suite.lacking}, which this machine lacks", file=sys.stderr)
    return False


def show_suites() -> int:
    """Print the state of every suite, and return 0."""
    row = "{:<22}{:<18}{:<27}{:>8}  {}"
    print(row.format("suite", "state", "when", "seconds", "proof"))
    record = read_record("gate")
    state = record.get("result", "never")
    if state == "green" and record.get("tree") != tree_hash():
        state = "stale"
    print(
        row.format(
            "gate", state, record.get("at", ""), record.get("seconds", ""), "lint, fast tests, four-jobs"
        )
    )
    for suite in read_table().values():
        record = read_record(suite.name)
        when, seconds = record.get("at", ""), record.get("seconds", f"~{suite.minutes * 60:.0f}")
        named = " (only with SUITE=)" if suite.only_named else ""
        print(row.format(suite.name, state_of(suite), when, seconds, suite.proves + named))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
