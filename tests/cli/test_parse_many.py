"""Test that ``rackproof parse`` prints the same for many logs, whether one or several processes read them.

Several processes read them only if the logs are large enough and the machine has several processors. The
tests set both.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from rackproof.cli import parse


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_several_processes_print_what_one_prints(
    run: Callable[..., Result],
    log: Callable[..., Path],
    options: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = [log(f"result_{index}.txt", minutes=1 + index, status=("success", "aborted")[index == 3])
             for index in range(7)]  # fmt: skip
    alone = run("parse", *options, *names)
    monkeypatch.setattr(parse, "_WORTH_PROCESSES", 0)
    monkeypatch.setattr("os.sched_getaffinity", lambda _pid: {0, 1, 2})
    together = run("parse", *options, *names)
    assert together.output == alone.output
    assert (together.exit_code, alone.exit_code) == (2, 2)
    if options:
        assert [Path(one["file"]).name for one in json.loads(together.output)] == [one.name for one in names]


@pytest.mark.parametrize("wrong", ["gone.txt", "."])
def test_a_log_that_cannot_be_read_ends_them_all(
    run: Callable[..., Result], log: Callable[..., Path], wrong: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [log(f"result_{index}.txt") for index in range(4)]
    monkeypatch.setattr(parse, "_WORTH_PROCESSES", 0)
    monkeypatch.setattr("os.sched_getaffinity", lambda _pid: {0, 1})
    done = run("parse", "--json", *names, names[0].parent / wrong)
    assert done.exit_code == 1
    assert not done.stdout
    assert done.stderr.startswith("rackproof: ")
    assert done.stderr.endswith("; no verdict of the 5 logs is printed\n")
    assert "Traceback" not in done.stderr
