"""Test ``rackproof bench`` and the other commands that run a playbook, as processes.

A fake of ansible-playbook prints its arguments and sends events. The tests show which options are passed on,
the exit status, what Ctrl-C prints, and that no playbook is used from a folder that every user can write.
"""

from __future__ import annotations

import json
import os
import pty
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rackproof.cli import adopt, output, playbooks
from rackproof.cli.errors import ToolError

# A fake of ansible-playbook. It ends with its last argument as status, waits for a signal, or kills itself.
FAKE = """#!{python}
import json, os, signal, sys, time
arguments = sys.argv[1:]
events = int(os.environ.get("RACKPROOF_EVENTS_DESCRIPTOR", -1))

def write(**event):
    os.write(events, json.dumps(event).encode() + b"\\n")

def end(number, frame):
    print("signal", number, flush=True)
    sys.exit(99)

for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, end)
print("given", arguments[1:], flush=True)
if events >= 0:
    write(kind="task", host="n1", task="bench : Follow the job", path="follow.yml:1")
    write(kind="job", host="n1", id="run-1", on="n1", runs="wait" in arguments)
    write(kind="verdicts", nodes={{"n2": "fail"}} if "n2" in arguments else {{}})
print("\\x1b[2Jrun-1 \\u00b7 n1 \\u00b7 epoch 1/3", flush=True)
while "wait" in arguments:
    time.sleep(0.1)
os.kill(os.getpid(), 9) if "die" in arguments else sys.exit(int(arguments[-1]))
"""
# ``rackproof`` with that fake, which is its first argument.
MAIN = """import sys
from rackproof.cli.main import main
from rackproof.cli import adopt, playbooks
fake = sys.argv.pop(1)
playbooks._program = lambda name: fake
main(prog_name="rackproof")
"""


@pytest.fixture
def command(root: Path, tmp_path: Path) -> Callable[..., list[str]]:
    """Return the command line of ``rackproof`` with a fake of ansible-playbook."""
    fake = tmp_path / "fake"
    fake.write_text(FAKE.format(python=sys.executable))
    fake.chmod(0o755)
    return lambda *arguments: [sys.executable, "-c", MAIN, str(fake), *arguments]


@pytest.mark.parametrize(
    ("arguments", "status", "given"),
    [
        (("-l", "n1", "-e", "a=b", "--check", "0"), 0, ["-l", "n1", "-e", "a=b", "--check", "0"]),
        (("--forks", "3", "4"), 4, ["--forks", "3", "4"]),
        (("--", "--flush-cache", "2"), 2, ["--flush-cache", "2"]),
        (("die",), 137, ["die"]),
    ],
)
def test_options_and_the_status_of_the_playbook_are_passed_on(
    root: Path, command: Callable[..., list[str]], arguments: tuple[str, ...], status: int, given: list[str]
) -> None:
    done = subprocess.run(command("bench", *arguments), cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == status, done.stderr
    assert done.stdout == f"given {given}\nrun-1 · n1 · epoch 1/3\n"


@pytest.mark.parametrize("environment", [{"LC_ALL": "C"}, {"LANG": "xx_YY.UTF-8"}, {"LC_ALL": "de_DE"}, {}])
def test_the_playbook_has_a_locale_that_ansible_starts_in(
    root: Path, command: Callable[..., list[str]], tmp_path: Path, environment: dict[str, str]
) -> None:
    argv = command("stop")
    (tmp_path / "fake").write_text("#!/bin/sh\nlocale charmap\n")
    environment = {"PATH": os.environ["PATH"], **environment}
    done = subprocess.run(argv, cwd=root, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["UTF-8"]


def test_v_shows_ansibles_own_output(root: Path, command: Callable[..., list[str]]) -> None:
    done = subprocess.run(command("bench", "-v", "0"), cwd=root, capture_output=True, text=True, check=False)
    assert done.stdout == "given ['-v', '0']\n\x1b[2Jrun-1 · n1 · epoch 1/3\n"


def test_in_json_standard_output_is_one_object(root: Path, command: Callable[..., list[str]]) -> None:
    done = subprocess.run(
        command("bench", "--json", "-l", "n1", "2"), cwd=root, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert json.loads(done.stdout) == {
        "command": "bench",
        "status": 2,
        "interrupted": False,
        "playbook_states": {"n1": "unfinished"},
        "verdicts": {"n1": None},
        "failures": [],
        "records": [],
        "running_jobs": {},
    }
    assert done.stderr == "given ['-l', 'n1', '2']\nrun-1 · n1 · epoch 1/3\n"


def test_in_json_a_script_finds_the_verdict_of_each_node(
    root: Path, command: Callable[..., list[str]]
) -> None:
    argv = command("validate", "--json", "-l", "n2", "2")
    done = subprocess.run(argv, cwd=root, capture_output=True, text=True, check=False)
    # The playbook judged n2, and not n1.
    assert json.loads(done.stdout)["verdicts"] == {"n1": None, "n2": "fail"}
    assert "n2:" not in done.stderr


@pytest.mark.parametrize("own", ["-v", "-vvv", "--list-hosts"])
def test_json_with_the_output_of_ansible_is_refused(
    root: Path, command: Callable[..., list[str]], own: str
) -> None:
    done = subprocess.run(
        command("bench", "--json", own, "0"), cwd=root, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert "--json does not go with" in done.stderr


@pytest.mark.parametrize("output", ["closed", "full"])
def test_a_playbook_goes_on_if_its_output_cannot_be_written(
    root: Path, command: Callable[..., list[str]], output: str, tmp_path: Path
) -> None:
    argv = command("bench", "3")
    text = (
        (tmp_path / "fake").read_text().replace("os.kill(os", "open(arguments[-2], 'w').close()\nos.kill(os")
    )
    (tmp_path / "fake").write_text(text)
    argv.insert(-1, str(tmp_path / "done"))
    with (
        open("/dev/full", "w") as full,
        subprocess.Popen(
            argv, cwd=root, stdout=full if output == "full" else subprocess.PIPE, stderr=subprocess.PIPE
        ) as child,
    ):
        if child.stdout is not None:
            child.stdout.close()
        assert child.stderr is not None
        said = child.stderr.read().decode()
    assert (child.returncode, said) == (3, "")
    assert (tmp_path / "done").exists()


@contextmanager
def interrupted(command: list[str], root: Path, number: int) -> Iterator[subprocess.Popen[str]]:
    """Start a command, and send it a signal once its job is known."""
    with subprocess.Popen(
        command,
        cwd=root,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
    ) as child:
        assert child.stdout is not None
        # After both lines, the signal has a handler, and the job is known.
        for _ in range(2):
            child.stdout.readline()
        child.send_signal(number)
        yield child


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_is_passed_on_once_and_running_jobs_are_named(
    root: Path, command: Callable[..., list[str]], number: int
) -> None:
    with interrupted(command("bench", "-l", "n1", "-i", "my hosts", "wait"), root, number) as child:
        assert child.stdout is not None
        assert child.stdout.read().splitlines() == [
            f"signal {int(number)}",
            "Interrupted. run-1 still runs on n1.",
            "Continue it:           rackproof bench -l n1 -i 'my hosts' wait",
            "End the jobs:          rackproof stop -i 'my hosts' -l n1",
        ]
    assert child.returncode == 99


def test_lines_on_a_terminal_are_redrawn_and_removed_at_the_end(
    root: Path, command: Callable[..., list[str]]
) -> None:
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        command("bench", "0"), cwd=root, stdout=theirs, env={**os.environ, "TERM": "xterm"}
    ) as child:
        os.close(theirs)
        shown = b""
        while data := read_or_end(ours):
            shown += data
    os.close(ours)
    assert child.returncode == 0
    text = shown.decode().replace("\r", "")
    assert "\x1b[2J" not in text
    assert "n1  run-1 · epoch 1/3\n" in text
    assert text.endswith("\x1b[1A\x1b[J")


def read_or_end(descriptor: int) -> bytes:
    """Return what a terminal shows, or b"" at its end."""
    try:
        return os.read(descriptor, 65536)
    except OSError:  # no process has the other side open
        return b""


@pytest.mark.parametrize("file", ["bench.yml", "provision.yml", "validate.yml", "reimage.yml"])
@pytest.mark.parametrize("mode", [0o1777, 0o777, 0o757])
def test_no_playbook_of_a_folder_that_every_user_can_write_is_started(
    file: str,
    mode: int,
    tmp_path: Path,
    root: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / file).write_text("- hosts: localhost\n")
    (tmp_path / "ansible.cfg").touch()
    monkeypatch.chdir(tmp_path)
    assert playbooks.find_checkout(file, None) == Path()
    tmp_path.chmod(mode)
    # A folder that the user names is used.
    assert playbooks.find_checkout(file, tmp_path) == tmp_path
    assert capsys.readouterr().err == ""
    assert playbooks.find_checkout(file, None) == root
    why = (
        f"every user can write {tmp_path}, so its playbook is not used: chmod o-w {tmp_path}, "
        "or name it with --checkout ."
    )
    assert capsys.readouterr().err == f"note: {why}\n"
    # An installed program has no checkout of its own.
    monkeypatch.setattr(playbooks, "__file__", str(tmp_path / "a/lib/rackproof/cli/playbooks.py"))
    with pytest.raises(ToolError, match=re.escape(why)):
        playbooks.find_checkout(file, None)


@pytest.mark.parametrize("holds", ["nothing", "another file", "the program itself"])
def test_no_note_names_a_writable_folder_that_would_not_be_used_anyway(
    holds: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if holds == "another file":
        (tmp_path / "bench.yml").touch()
    if holds == "the program itself":
        for name in ("bench.yml", "ansible.cfg"):
            (tmp_path / name).touch()
        monkeypatch.setattr(playbooks, "__file__", str(tmp_path / "src/rackproof/cli/playbooks.py"))
    monkeypatch.chdir(tmp_path)
    tmp_path.chmod(0o777)
    playbooks.find_checkout("bench.yml", None)
    assert capsys.readouterr().err == ""


def test_a_checkout_without_the_playbook_is_refused_and_the_own_checkout_is_found(
    command: Callable[..., list[str]], tmp_path: Path, root: Path
) -> None:
    lacking = command("bench", "--checkout", str(tmp_path), "0")
    done = subprocess.run(lacking, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, "has no bench.yml" in done.stderr) == (1, True)
    done = subprocess.run(command("stop", "0"), cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0
    environment = playbooks._environment(root)
    assert environment["ANSIBLE_CONFIG"] == str(root / "ansible.cfg")


@pytest.mark.parametrize(
    ("arguments", "kept"),
    [
        (["-l", "n1", "-e", "suite=x", "--check"], []),
        (
            ["-i", "a", "-e", "@v.yml", "-e", "bench_home=/x"],
            ["-i", "a", "-e", "@v.yml", "-e", "bench_home=/x"],
        ),
        (["--inventory=site", "-l", "n1"], ["--inventory", "site"]),
        (["-isite", "-ln1"], ["-i", "site"]),
        (["-i=site"], ["-i", "site"]),
        (["-e@v.yml", "--extra-vars=bench_home=/x"], ["-e", "@v.yml", "--extra-vars", "bench_home=/x"]),
        (["-esuite=x", "--extra-vars=a=1", "--check"], []),
        (["--inventory-file", "a=b"], ["--inventory-file", "a=b"]),
    ],
)
def test_stop_gets_the_options_by_which_it_finds_the_same_jobs(arguments: list[str], kept: list[str]) -> None:
    assert playbooks._same_places(arguments) == kept


@pytest.mark.parametrize("name", ["bench", "provision", "validate", "stop", "reimage"])
def test_each_playbook_of_a_command_exists(root: Path, name: str) -> None:
    assert (root / ("playbooks/stop.yml" if name == "stop" else f"{name}.yml")).is_file()


@pytest.mark.parametrize("folder", ["/opt/rackproof", "/home/ada/my rack proof", "/srv/ada's"])
def test_advised_commands_can_be_typed_in_any_folder(folder: str) -> None:
    hint = playbooks._how_to_type(f"{folder}/.venv/bin/rackproof")
    assert shlex.split(hint.partition("type: ")[2]) == ["source", f"{folder}/.venv/bin/activate"]
    assert f"{folder}/.venv/bin/rackproof" in shlex.split(hint)
    assert str(Path(folder) / "inventory") in shlex.split(adopt._next(Path(folder) / "inventory"))


@pytest.mark.parametrize("offset", [0, 1, 2, 3])
@pytest.mark.parametrize("character", ["é", "…", "😀", "\udcff"])
def test_a_held_line_longer_than_a_block_is_printed_whole(
    offset: int, character: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "x" * ((1 << 18) - offset) + character * 5 + "y" * (1 << 18) + "\nend"
    printed: list[str] = []
    monkeypatch.setattr("click.echo", lambda text, nl: printed.append(text))
    with output.HeldOutput() as held:
        held.write(text)
        held.print()
    assert "".join(printed) == text
