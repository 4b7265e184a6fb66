"""Test that a lost log of acceptances does not lift the limit of the numbers that were accepted first.

Run ``first`` is accepted and withdrawn without a reason, so that it still limits later runs. Its log
(``results/acceptances.jsonl``) is then damaged or removed, or the database is lost. The slower run ``later``
stays refused as long as one of the two knows of ``first``.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from rackproof.store.acceptance_log import LOG_NAME
from rackproof.store.history import schema
from rackproof.store.history.store import open_store, rebuild_history
from rackproof.store.run_folder import write_run
from tests.store.history import samples

Call = Callable[..., Result]
FIRST, LATER = "20261101T000000Z-probe-aaaaaa", "20261102T000000Z-probe-bbbbbb"
REFUSED = f"accepted first, from {FIRST}"


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """Return a results folder with two runs of a machine, of which the later one is 5.2 % slower."""
    folder = tmp_path / "results"
    for night, (run_id, speed) in enumerate(((FIRST, 4.2), (LATER, 3.98))):
        write_run(samples.run(run_id, night=night, speed=speed), folder / run_id)
    rebuild_history(folder, folder / "history.sqlite")
    return folder


def change_byte(line: int) -> Callable[[Path], None]:
    """Return a function that damages a line of the log of acceptances."""

    def change(results: Path) -> None:
        log = results / LOG_NAME
        lines = log.read_bytes().splitlines(keepends=True)
        lines[line] = lines[line].replace(b'"act"', b'"ac"')
        log.write_bytes(b"".join(lines))

    return change


def remove_log(results: Path) -> None:
    (results / LOG_NAME).unlink()


def cut_log(results: Path) -> None:
    log = results / LOG_NAME
    log.write_bytes(log.read_bytes()[:60])


def lose_database(results: Path) -> None:
    for path in results.glob("history.sqlite*"):
        path.unlink()
    rebuild_history(results, results / "history.sqlite")


def lose_database_and_acceptance(results: Path) -> None:
    """Leave only the line of the withdrawal, which shows that the run was accepted."""
    change_byte(0)(results)
    lose_database(results)


@pytest.mark.parametrize(
    ("lose", "is_damaged"),
    [
        (lambda _: None, False),
        (change_byte(0), True),
        (change_byte(1), True),
        (cut_log, True),
        (remove_log, False),
        (lose_database, False),
        (lose_database_and_acceptance, True),
    ],
)
def test_a_withdrawn_run_limits_others_although_its_log_is_lost(
    run: Call, results: Path, lose: Callable[[Path], None], is_damaged: bool
) -> None:
    assert run("accept", FIRST).exit_code == 0
    assert run("withdraw", FIRST).exit_code == 0
    lose(results)
    refused = run("accept", LATER)
    assert (refused.exit_code, REFUSED in refused.output) == (1, True), refused.output
    assert ("1 damaged line of" in refused.stderr) == is_damaged
    # The advised command ends the limit.
    assert run("withdraw", FIRST, "--reason", "a new board").exit_code == 0
    accepted = run("accept", LATER)
    assert accepted.exit_code == 0, accepted.output
    assert run("withdraw", FIRST, "--reason", "a new board").exit_code == 1


def test_a_folder_of_a_version_without_the_log_and_the_table_is_no_obstacle(run: Call, results: Path) -> None:
    with open_store(results / "history.sqlite") as store:
        store._write(schema.withdrawn.drop)
        store.accept(FIRST)
    # An acceptance that only the database has limits others, and can be withdrawn.
    assert REFUSED in run("accept", LATER).output
    assert run("accept", FIRST).exit_code == 0
    assert run("withdraw", FIRST, "--reason", "a new board").exit_code == 0
    accepted = run("accept", LATER)
    assert (accepted.exit_code, accepted.stderr) == (0, ""), accepted.output
