"""Test that a lost log of acceptances does not lift the limit of the numbers that were accepted first.

Run ``first`` is accepted and withdrawn without a reason, so that it still limits later runs. Its log
(``results/acceptances.jsonl``) is then damaged or removed, or the database is lost. The slower run ``later``
stays refused as long as one of the two knows of ``first``. The last tests show that no command reads a huge
log of acts.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from rackproof.store.acceptance_log import LOG_NAME
from rackproof.store.audit_log import LOG_NAME as AUDIT_LOG
from rackproof.store.history import schema
from rackproof.store.history.client import lost_acceptances
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


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        (LOG_NAME, ("accept", "--list")),
        (LOG_NAME, ("accept", LATER)),
        (LOG_NAME, ("withdraw", "no-run")),
        (LOG_NAME, ("audit",)),
        (LOG_NAME, ("history", "--rebuild")),
        (AUDIT_LOG, ("audit",)),
        (AUDIT_LOG, ("audit", "n1")),
        (AUDIT_LOG, ("status", "--no-slurm")),
    ],
)
def test_a_huge_log_of_acts_is_named_and_not_read(
    run: Call, results: Path, name: str, arguments: tuple[str, ...]
) -> None:
    with (results / name).open("wb") as log:
        log.truncate(3 << 30)
    answer = run(*arguments)
    assert answer.exit_code == 1
    assert f"results/{name} cannot be read: it has {3 << 30} bytes" in answer.output
    assert "Traceback" not in answer.output


def test_a_job_names_a_huge_log_of_acceptances(results: Path) -> None:
    with (results / LOG_NAME).open("wb") as log:
        log.truncate(3 << 30)
    with open_store(results / "history.sqlite") as store:
        assert "the accepted runs are unknown" in lost_acceptances(results, store)
