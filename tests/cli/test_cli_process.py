"""Test ``rackproof`` as a process: its start, pipes, memory, exit status, and a terminal without UTF-8.

Other tests call the command in-process. These test what only a process has, such as the modules that it
imports, a full disk behind standard output, or a file name that is not UTF-8.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path

import pytest

from .conftest import EVENTS

PROGRAM = Path(sysconfig.get_path("scripts")) / "rackproof"
# Modules whose import takes long. A command must not import them unless it needs them.
HEAVY = {
    "pandas",
    "numpy",
    "scipy",
    "matplotlib",
    "sqlalchemy",
    "mlperf_logging",
    "pydantic",
    "jinja2",
}


def start(*arguments: object, **more: object) -> subprocess.CompletedProcess[bytes]:
    """Run ``rackproof`` as a process."""
    command = [str(PROGRAM), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, timeout=300, check=False, **more)  # type: ignore[call-overload,no-any-return]


def imported(code: str) -> set[str]:
    """Return the top-level modules that a program imports."""
    command = [sys.executable, "-X", "importtime", "-c", code]
    report = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True).stderr
    return {line.rpartition("|")[2].strip().partition(".")[0] for line in report.splitlines()}


def test_help_imports_nothing_heavy() -> None:
    found = imported("from rackproof.cli.main import main; main(['--help'], standalone_mode=False)")
    assert "click" in found
    assert not found & HEAVY


def test_parsing_imports_no_charts_and_no_database() -> None:
    assert not imported("import rackproof.logs, rackproof.report, rackproof.cli.parse") & (
        HEAVY - {"pydantic"}
    )


@pytest.mark.parametrize(("events", "status"), [(len(EVENTS), 0), (7, 3)])
def test_a_log_can_come_through_a_pipe(events: int, status: int, log: Callable[..., Path]) -> None:
    done = start("parse", "-", input=log(events=events).read_bytes())
    assert (done.returncode, done.stderr) == (status, b"")


@pytest.mark.parametrize(("kind", "form"), [("curve", ["--json"]), ("table", ["--json"]), ("table", [])])
def test_memory_does_not_grow_with_the_number_of_logs(kind: str, form: list[str], tmp_path: Path) -> None:
    """45 more logs may take 8 MiB more, whether they have points of curves or measurements."""
    path = tmp_path / "a.log"
    path.write_text(large_log(kind))
    few, many = (peak_mb(*[path] * count, *form) for count in (5, 50))
    assert many < few + 8


def large_log(kind: str) -> str:
    """Return a log with as many curve points or measurements as are kept of any log."""
    if kind == "table":
        rows = [f" {size} 5000 395.10 394.20 0.751895\n" for size in range(1, 400)]
        header = " #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]\n"
        return header + "".join(rows) + "-" * 87 + "\n"
    return "".join(
        f':::MLLOG {{"time_ms": {1_700_000_000_000 + at}, "key": "tracked_stats", '
        f'"value": {{"train_loss": {1 + at / 7e3}, "throughput": {9 + at / 7e3}}}, "metadata": {{}}}}\n'
        for at in range(1900)
    )


def peak_mb(*arguments: object) -> float:
    """Return the peak of resident memory of ``rackproof parse`` in MiB."""
    code = (
        "import atexit, resource as r, sys; from rackproof.cli.main import main; "
        "atexit.register(lambda: print(r.getrusage(r.RUSAGE_SELF).ru_maxrss, file=sys.stderr)); main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "parse", *map(str, arguments)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        timeout=120,
        check=False,
    )
    return int(done.stderr.split()[-1]) / 1024


def test_a_pipe_whose_reader_ends_causes_no_traceback(log: Callable[..., Path]) -> None:
    command = f"{PROGRAM} parse {log()} --json | true"
    done = subprocess.run(["bash", "-c", command], capture_output=True, timeout=300, check=False)
    assert b"Traceback" not in done.stderr


def test_output_to_a_terminal_without_utf8_is_no_error(log: Callable[..., Path]) -> None:
    environment = {**os.environ, "PYTHONIOENCODING": "latin-1", "PYTHONUTF8": "0"}
    done = start("parse", log(), env=environment)
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"??????" in done.stdout  # the line below the headings


def test_a_log_whose_name_is_not_utf8_is_read(log: Callable[..., Path]) -> None:
    odd = os.fsencode(log().parent) + b"/\xff\xfe.log"
    os.rename(log(), odd)
    for form in ([], ["--json"]):
        done = subprocess.run([PROGRAM, "parse", odd, *form], capture_output=True, timeout=300, check=False)
        assert (done.returncode, done.stderr) == (0, b"")
    done = subprocess.run(
        [PROGRAM, "import", "--old", odd], capture_output=True, timeout=300, check=False, cwd=log().parent
    )
    assert done.returncode == 0, done.stderr


def test_an_error_is_one_line_on_standard_error() -> None:
    done = start("parse", "gone.log")
    assert (done.returncode, done.stdout) == (1, b"")
    assert done.stderr == b"rackproof: cannot read gone.log: No such file or directory; check the path\n"


def test_a_database_url_is_not_repeated_in_an_error(tmp_path: Path) -> None:
    url = "postgresql://operator:hunter2@127.0.0.1:9/none"
    done = start("history", env={**os.environ, "RACKPROOF_DATABASE_URL": url}, cwd=tmp_path)
    assert done.returncode == 1
    assert b"hunter2" not in done.stderr + done.stdout
    assert b"Traceback" not in done.stderr


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["schema"], ["explain", "ecc_off"]])
def test_a_full_disk_behind_standard_output_gives_a_one_line_error(arguments: list[str]) -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [str(PROGRAM), *arguments], stdout=full, stderr=subprocess.PIPE, timeout=300, check=False
        )
    assert done.stderr == b"rackproof: the output cannot be written: No space left on device\n"
    assert done.returncode == 1
