"""Test that Ctrl-C ends ``rackproof`` and its tools without a traceback, also while modules are imported.

The imports of a command take up to a second, in which an operator often types Ctrl-C. The tests send the
signal when a certain module is imported, during the work, twice, and after the end.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rackproof.cli.live_lines import LiveLines

ROOT = Path(__file__).parents[2]
# A program that sends itself SIGINT when it imports a module.
_INTERRUPT_AT = """
import os, runpy, signal, sys

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)

signal.signal(signal.SIGINT, signal.default_int_handler)
sys.meta_path.insert(0, Finder())
sys.argv = {arguments!r}
{start}
"""


def interrupt_at(module: str, arguments: list[str], start: str) -> subprocess.CompletedProcess[str]:
    """Start a program that gets SIGINT when it imports a module."""
    code = _INTERRUPT_AT.format(module=module, arguments=arguments, start=start)
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False)


@pytest.mark.parametrize(
    ("module", "arguments"),
    [
        ("typing", ["--version"]),
        ("click", ["--help"]),
        ("rackproof.cli.main", ["--version"]),
        ("rackproof.cli.history", ["history"]),
        ("rackproof.cli.playbooks", ["bench", "-l", "localhost"]),
        ("rackproof.core.records", ["status"]),
        ("pydantic", ["explain", "ecc_off"]),
        ("sqlalchemy", ["accept", "x"]),
    ],
)
def test_ctrl_c_during_imports_ends_the_command_at_once(module: str, arguments: list[str]) -> None:
    done = interrupt_at(module, ["rackproof", *arguments], "from rackproof.cli.entry import run; run()")
    assert (done.returncode, done.stderr, done.stdout) == (-signal.SIGINT, "", "")


def test_ctrl_c_during_the_work_ends_with_a_message() -> None:
    start = "from rackproof.cli.entry import run; import rackproof.cli.status as one; import os, signal\n"
    start += "one.ask_slurm = lambda: os.kill(os.getpid(), signal.SIGINT)\nrun()"
    done = interrupt_at("none", ["rackproof", "status", "--results", str(ROOT)], start)
    assert (done.returncode, done.stderr) == (130, "interrupted\n")


def test_a_second_interruption_and_one_after_the_end_show_no_traceback() -> None:
    twice = (
        "import atexit, os, signal\nfrom rackproof.cli.entry import run\nimport rackproof.cli.status as one\n"
    )
    twice += "def again():\n    try:\n        os.kill(os.getpid(), signal.SIGINT)\n    finally:\n"
    twice += "        os.kill(os.getpid(), signal.SIGINT)\none.ask_slurm = again\nrun()"
    done = interrupt_at("none", ["rackproof", "status", "--results", str(ROOT)], twice)
    assert (done.returncode, done.stderr) == (-signal.SIGINT, "")
    late = "import atexit, os, signal\natexit.register(os.kill, os.getpid(), signal.SIGINT)\n"
    late += "from rackproof.cli.entry import run; run()"
    done = interrupt_at("none", ["rackproof", "--debug", "schema"], late)
    assert (done.returncode, done.stderr) == (-signal.SIGINT, "")


def test_processes_that_read_logs_show_no_traceback() -> None:
    start = "import os, signal\nos.setsid()\nimport rackproof.cli.parse as parse\n"
    start += "from rackproof.cli.entry import run\n"
    start += "def interrupt_all(name, **_):\n    os.killpg(0, signal.SIGINT)\n    signal.pause()\n"
    start += "parse._WORTH_PROCESSES, parse._read_one = 0, interrupt_all\n"
    start += "os.sched_getaffinity = lambda pid: {0, 1}\nrun()"
    done = interrupt_at("none", ["rackproof", "parse", "a.log", "b.log"], start)
    assert (done.returncode, done.stderr) == (130, "interrupted\n")


def test_nothing_slow_is_imported_before_ctrl_c_is_handled() -> None:
    code = "import sys; old = set(sys.modules); import rackproof.cli.entry; print(*set(sys.modules) - old)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert set(done.stdout.split()) <= {"rackproof", "rackproof.cli", "rackproof.cli.entry"}
    script = Path(sys.executable).with_name("rackproof").read_text()
    assert re.findall("^(?:import|from) .*", script, re.MULTILINE)[-1].startswith("from rackproof.cli.entry")
    assert "import re\n" not in script


@pytest.mark.parametrize("tool", ["compact-results", "make-docs", "read-source-logs"])
def test_a_tool_reports_that_it_was_interrupted(tool: str) -> None:
    start = f"sys.path.insert(0, 'tools'); runpy.run_path('tools/{tool}', run_name='__main__')"
    done = interrupt_at("pydantic", [tool], start)
    assert (done.returncode, done.stderr) == (-signal.SIGINT, "interrupted\n")


@pytest.mark.parametrize(
    ("last", "shown"),
    [("KeyboardInterrupt", False), ("KeyboardInterrupt: ", False), ("ImportError: no yaml", True)],
)
def test_of_the_tracebacks_of_a_playbook_only_those_of_ctrl_c_are_hidden(last: str, shown: bool) -> None:
    view = LiveLines("bench", moves=False)
    trace = ["Traceback (most recent call last):", '  File "ansible", line 1, in <module>', "    import yaml"]
    lines = [line for one in [*trace, last] for line in view.add_error(one, 1)] + view.finish()
    assert lines == ([*trace, last] if shown else [])
    unfinished = LiveLines("bench", moves=False)
    assert [*(line for one in trace for line in unfinished.add_error(one, 1)), *unfinished.finish()] == trace


def test_a_program_that_ignores_sigint_goes_on_doing_so() -> None:
    start = "signal.signal(signal.SIGINT, signal.SIG_IGN)\nfrom rackproof.cli.entry import run; run()"
    done = interrupt_at("click", ["rackproof", "--version"], start)
    assert (done.returncode, done.stderr) == (0, "")
    assert os.linesep in done.stdout
