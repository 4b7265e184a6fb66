"""Run the playbooks of ``rackproof bench``, ``provision``, ``validate``, ``reimage`` and ``stop``.

Each node gets a line on the screen. ansible-playbook runs as a child process, because this package never
imports Ansible. The callback ``rackproof_events`` reports the playbook's progress through a pipe. The command
ends with the playbook's exit status.

The commands are at the end of this module, except ``reimage``, which :mod:`rackproof.cli.reimage` makes with
:func:`playbook_command`. Begin with :func:`run_playbook`.
"""

from __future__ import annotations

import itertools
import json
import os
import queue
import re
import select
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import click

from rackproof.cli.errors import ToolError
from rackproof.cli.live_lines import LiveLines, interruption_lines
from rackproof.cli.options import json_option
from rackproof.cli.output import print_json, terminal_width
from rackproof.cli.playbook_outcome import PlaybookOutcome
from rackproof.cli.screen import Screen
from rackproof.core.child_environment import environment_of_playbook
from rackproof.core.text import sanitize, shell_command, shell_word

_TICK_S = 0.25
"""Seconds between two updates of the screen."""
_PIPE_END_S = 5.0
"""Seconds to wait for the end of the pipes after the playbook ended."""
_BLOCK = 1 << 16
"""Largest number of bytes that are read from a pipe at once."""
_OWN_OUTPUT_OPTIONS = frozenset(
    {"--verbose", "--list-hosts", "--list-tasks", "--list-tags", "--syntax-check", "--step", "--version"}
)
"""With one of these options, Ansible prints its own output instead of the lines of nodes."""
_SIGNALS = frozenset({signal.SIGINT, signal.SIGTERM})
"""Signals that request the end of the playbook."""


@dataclass(frozen=True)
class Playbook:
    """A playbook of a checkout, and the command that starts it.

    Attributes:
        name: The name of the playbook without its extension, such as ``bench``.
        argv: The command line of ansible-playbook.
        environment: The environment of ansible-playbook.
        typed: The user's own command, for messages that advise to type it again.
    """

    name: str
    argv: tuple[str, ...]
    environment: Mapping[str, str] = field(repr=False)
    typed: str


def playbook_command(name: str, file: str, summary: str, details: str) -> click.Command:
    """Return the command that starts one playbook.

    Args:
        name: The name of the command.
        file: The path of the playbook below the checkout.
        summary: The command's line in ``--help``.
        details: Additional text for the command's own help.
    """

    @click.command(
        name,
        help=f"{summary}\n\n{details}\n\n{_HELP}",
        context_settings={"ignore_unknown_options": True, "allow_interspersed_args": True},
    )
    @click.option(
        "--checkout",
        type=click.Path(path_type=Path, file_okay=False),
        help="Checkout of Rackproof. The default is the current folder, or else the command's own.",
    )
    @json_option
    @click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[OPTION OF ansible-playbook]...")
    @click.pass_context
    def command(ctx: click.Context, checkout: Path | None, as_json: bool, arguments: tuple[str, ...]) -> None:
        ctx.exit(run_playbook(file, checkout, arguments, as_json=as_json))

    return command


_HELP = (
    "Takes all options of ansible-playbook, such as -l, -e, --check and --diff, and all arguments after --. "
    "One line for each node shows its step, rate and expected end; -v shows Ansible's own output. "
    "With --json, standard output has one JSON object at the end, and all else goes to standard error. The "
    "exit status is the playbook's."
)


def run_playbook(file: str, checkout: Path | None, arguments: Sequence[str], *, as_json: bool = False) -> int:
    """Run a playbook to its end. Return its exit status.

    Args:
        file: The path of the playbook below the checkout.
        checkout: The folder that the user gave with ``--checkout``, or None.
        arguments: The options for ansible-playbook.
        as_json: Whether to print one JSON object at the end, and all other output on standard error.

    Raises:
        ToolError: There is no checkout, ansible-playbook is missing, or JSON is requested together with
            Ansible's own output.
    """
    is_quiet = not any(
        argument in _OWN_OUTPUT_OPTIONS or re.fullmatch("-v+", argument) for argument in arguments
    )
    if as_json and not is_quiet:
        raise ToolError(
            "--json does not go with an option by which Ansible prints its own output, such as -v"
        )
    folder = find_checkout(file, checkout)
    name = Path(file).stem
    argv = (_program("ansible-playbook"), _path_of(folder, file), *arguments)
    program = _own_name()
    started = Playbook(name, argv, _environment(folder), shell_command([program, name, *arguments]))
    screen = Screen(sys.stderr if as_json else sys.stdout)
    view = LiveLines(name, moves=screen.moves)
    outcome = PlaybookOutcome(name)
    status, was_interrupted = _Follower(started, view, outcome, screen, quiet=is_quiet).run()
    if was_interrupted:
        stop = shell_command([program, "stop", *_same_places(arguments)])
        lines = interruption_lines(name, started.typed, stop, view.nodes, view.running_jobs, program)
        if not is_quiet:
            lines = [f"Interrupted. A job that was started continues; {stop} -l HOSTS ends it.", *lines[1:]]
        screen.show(lines, [])
    elif view.named_program and program != "rackproof":
        screen.show([_how_to_type(program)], [])
    if as_json:
        print_json(outcome.as_json(status, was_interrupted, view.running_jobs))
    return status


def _same_places(arguments: Sequence[str]) -> list[str]:
    """Return the options that another command needs to find the same jobs.

    These are the inventory, and -e with a file or ``bench_home``.
    """
    kept_options: list[str] = []
    for argument, next_word in itertools.pairwise((*arguments, "")):
        option, value = _option_and_value(argument, next_word)
        if option in ("-i", "--inventory", "--inventory-file") or (
            option in ("-e", "--extra-vars") and (value.startswith("@") or "bench_home" in value)
        ):
            kept_options += [option, value]
    return kept_options


def _option_and_value(argument: str, next_word: str) -> tuple[str, str]:
    """Return an option and its value, which are two words or one (``-isite``, ``--inventory=site``).

    ``next_word`` is the value if ``argument`` contains none.
    """
    if argument.startswith("--"):
        option, equals, value = argument.partition("=")
        return option, value if equals else next_word
    if argument.startswith("-") and len(argument) > 2:
        return argument[:2], argument[2:].removeprefix("=")
    return argument, next_word


def find_checkout(file: str, named: Path | None) -> Path:
    """Return the checkout: the given folder, or else the current folder, or else this program's own checkout.

    A current folder that every user can write, such as /tmp, is not used. Ansible ignores the ansible.cfg of
    such a folder, too.

    Args:
        file: The path of a playbook that the checkout must contain.
        named: The folder that the user gave with ``--checkout``, or None.

    Raises:
        ToolError: There is no checkout.
    """
    own_checkout = Path(__file__).resolve().parents[3]
    current = [] if _all_users_write(Path()) else [Path()]
    is_passed_over = named is None and not current and _has_playbook(Path(), file)
    note = _why_not_used(Path.cwd()) if is_passed_over else ""
    for folder in [named] if named is not None else [*current, own_checkout]:
        if _has_playbook(folder, file):
            if note and folder.resolve() != Path.cwd():
                click.echo(f"note: {sanitize(note, 2000)}", err=True)
            return folder
    none = f"{named or Path.cwd()} has no {file}: name a checkout of Rackproof with --checkout"
    raise ToolError(note or none)


def _has_playbook(folder: Path, file: str) -> bool:
    """Return whether a folder has the playbook and an ansible.cfg, as a checkout has."""
    return (folder / file).is_file() and (folder / "ansible.cfg").is_file()


def _why_not_used(folder: Path) -> str:
    """Describe why a folder that every user can write is not used, and the remedy."""
    return (
        f"every user can write {folder}, so its playbook is not used: chmod o-w {shell_word(str(folder))}, "
        "or name it with --checkout ."
    )


def _all_users_write(folder: Path) -> bool:
    """Return whether every user can write a folder. A removed or unreadable folder counts as writable."""
    try:
        return bool(folder.stat().st_mode & stat.S_IWOTH)
    except OSError:
        return True


def _path_of(folder: Path, file: str) -> str:
    """Return the path of a playbook in a form that a user would type."""
    return file if folder == Path() else str(folder.resolve() / file)


def _program(name: str) -> str:
    """Return the path of a program of Ansible, beside this Python or else from PATH.

    Raises:
        ToolError: The program is not installed.
    """
    beside = Path(sys.executable).with_name(name)
    path = str(beside) if beside.exists() else shutil.which(name)
    if path is None:
        raise ToolError(f"{name} is not installed beside this Python: type `make venv` in the checkout")
    return path


def _own_name() -> str:
    """Return the name or path with which a user can start this program on this machine."""
    if shutil.which("rackproof"):
        return "rackproof"
    path = Path(sys.executable).with_name("rackproof")
    return os.path.relpath(path) if path.is_relative_to(Path.cwd()) else str(path)


def _how_to_type(program: str) -> str:
    """Return the hint that ``rackproof`` is not on PATH, for messages with commands of this name.

    ``program`` is the path of the program.
    """
    activate = shell_word(str(Path(program).with_name("activate")))
    return f"`rackproof` is {shell_word(program)} here, or type: source {activate}"


def _environment(folder: Path) -> dict[str, str]:
    """Return the environment of a playbook in a checkout. ``Path()`` is the current folder."""
    environment = environment_of_playbook()
    programs = str(Path(sys.executable).parent)
    environment["PATH"] = f"{programs}{os.pathsep}{environment.get('PATH', os.defpath)}"
    if folder != Path():
        environment.setdefault("ANSIBLE_CONFIG", str(folder.resolve() / "ansible.cfg"))
    return environment


def _let_signals_in() -> None:
    """Unblock, in the new process, the signals that are blocked in this one."""
    # Python's own handler would run here, before the program does, and print a traceback.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)


class _Follower:
    """A playbook's process and display, from start to end."""

    def __init__(
        self, playbook: Playbook, view: LiveLines, outcome: PlaybookOutcome, screen: Screen, *, quiet: bool
    ) -> None:
        self._playbook = playbook
        self._view = view
        self._outcome = outcome
        self._screen = screen
        self._is_quiet = quiet
        self._lines: queue.SimpleQueue[tuple[str, str]] = queue.SimpleQueue()

    def run(self) -> tuple[int, bool]:
        """Run the playbook to its end, and show its progress.

        Return the exit status as a shell reports it, and whether a signal requested the end.
        """
        # Block the signals before the reader's thread starts. Otherwise, that thread could receive a signal
        # for which this thread waits.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        was_interrupted = False
        try:
            child, descriptors = self._start()
            reader = threading.Thread(target=self._read, args=(descriptors,), daemon=True)
            reader.start()
            while child.poll() is None:
                signal_info = signal.sigtimedwait(_SIGNALS, _TICK_S)
                if signal_info is not None:
                    was_interrupted = True
                    self._pass_on(child, signal_info)
                self._show()
            # A process that the playbook left behind may keep a pipe open.
            reader.join(_PIPE_END_S)
            self._show()
            self._screen.show(self._view.finish(), [])
        finally:
            self._screen.erase()
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        status = child.returncode
        return (128 - status if status < 0 else status), was_interrupted

    @staticmethod
    def _pass_on(child: subprocess.Popen[bytes], signal_info: signal.struct_siginfo) -> None:
        """Pass a signal on to the playbook, unless the terminal already sent it."""
        # Ctrl-C in a terminal already reached the playbook. A second signal would interrupt its workers' end.
        if signal_info.si_signo != signal.SIGINT or signal_info.si_code <= 0:
            child.send_signal(signal_info.si_signo)

    def _start(self) -> tuple[subprocess.Popen[bytes], dict[int, str]]:
        """Start the playbook. Return its process, and the kind of lines in each descriptor.

        The kinds are ``event``, ``output`` and ``error``. If Ansible prints its own output, there are no
        descriptors.
        """
        argv, environment = self._playbook.argv, {**self._playbook.environment}
        if not self._is_quiet:
            return subprocess.Popen(argv, env=environment, preexec_fn=_let_signals_in), {}  # noqa: S603
        reads, writes = os.pipe()
        environment |= {
            "ANSIBLE_STDOUT_CALLBACK": "rackproof_events",
            "ANSIBLE_NOCOLOR": "1",
            "RACKPROOF_EVENTS_DESCRIPTOR": str(writes),
            "RACKPROOF_COLUMNS": str(terminal_width()),
        }
        child = subprocess.Popen(  # noqa: S603  (no shell)
            argv,
            env=environment,
            preexec_fn=_let_signals_in,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=(writes,),
        )
        os.close(writes)
        if child.stdout is None or child.stderr is None:
            raise AssertionError("both are pipes")
        return child, {reads: "event", child.stdout.fileno(): "output", child.stderr.fileno(): "error"}

    def _read(self, descriptors: Mapping[int, str]) -> None:
        """Put lines into the queue until all streams end, each event before the output that followed it."""
        partial_lines = dict.fromkeys(descriptors, b"")
        for descriptor in partial_lines:
            os.set_blocking(descriptor, False)
        while partial_lines:
            select.select(list(partial_lines), [], [])
            for descriptor in list(partial_lines):
                try:
                    data = os.read(descriptor, _BLOCK)
                except BlockingIOError:
                    continue
                *lines, partial_lines[descriptor] = (partial_lines[descriptor] + data).split(b"\n")
                if not data:
                    lines = [partial_lines.pop(descriptor)]
                for line in lines if data or lines[0] else ():
                    self._lines.put((descriptors[descriptor], line.decode(errors="replace")))

    def _show(self) -> None:
        """Show the lines that the playbook printed since the last call."""
        if not self._is_quiet:
            return
        now = time.monotonic()
        lines: list[str] = []
        while not self._lines.empty():
            kind, line = self._lines.get()
            lines += self._process_line(kind, line, now)
        lines += self._view.overdue(now)
        if not self._screen.moves:
            lines += self._view.long_steps(now)
        columns, rows = self._screen.size()
        drawn = self._view.lines(columns, rows, now) if self._screen.moves else []
        self._screen.show(lines, drawn)

    def _process_line(self, kind: str, line: str, now: float) -> list[str]:
        """Process one line of the playbook. Return the lines to print permanently.

        Args:
            kind: The kind of the line, as :meth:`_start` returns it.
            line: The line without its line feed.
            now: The present time of the monotonic clock in seconds.
        """
        if kind == "error":
            return self._view.add_error(line, now)
        if kind == "output":
            return self._view.add_output(line, now)
        try:
            event = json.loads(line)
        except ValueError:
            return []
        if not isinstance(event, dict):
            return []
        self._outcome.add_event(event)
        return self._view.add_event(event, now)


bench_command = playbook_command(
    "bench",
    "bench.yml",
    "Benchmark a machine or a rack and judge the result.",
    "rackproof bench -l localhost",
)
provision_command = playbook_command(
    "provision",
    "provision.yml",
    "Turn bare nodes into cluster nodes.",
    "rackproof provision -l RACK --check --diff",
)
validate_command = playbook_command(
    "validate",
    "validate.yml",
    "Find the bad nodes of a fleet.",
    "rackproof validate -l RACK",
)
stop_command = playbook_command(
    "stop",
    "playbooks/stop.yml",
    "End the benchmark jobs that run on nodes.",
    "rackproof stop -l RACK",
)
