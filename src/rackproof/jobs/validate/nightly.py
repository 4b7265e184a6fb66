"""Run validate.yml once with a time limit, clean up after an earlier run, and send messages (a nightly).

``rackproof nightly`` calls :func:`run_nightly`, and ends with the returned exit status. The program
ansible-runner runs the playbook, because this package never imports Ansible or ansible-runner.

The exit status separates faults of the fleet from faults of the tool. It is 0 if the night's verdict is pass
or degraded, 2 for fail, and 3 for unproven. It is 1 if the playbook did not close the night, even if the
night was judged, and if :func:`run_nightly` raises an error, for example because another nightly runs. It is
also 1 after a pass or degraded night if a message could not be sent or the metrics could not be written.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import smtplib
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from email.message import EmailMessage
from http.client import HTTPException
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Any, Protocol
from urllib.parse import urlsplit

from rackproof.core.advised_commands import add_results_everywhere
from rackproof.core.child_environment import NIGHTLY_SECRETS, environment_of_playbook
from rackproof.core.errors import RackproofError
from rackproof.core.hostlist import compress_hostlist
from rackproof.core.records import Verdict
from rackproof.core.text import duration, sanitize
from rackproof.core.time_limits import answer_within
from rackproof.jobs.validate import errors, messages, tasks
from rackproof.jobs.validate.fleet import probe_scheduler
from rackproof.store import host_claims, night_store, probe_results
from rackproof.store.audit_log import AuditEntry, read_acts
from rackproof.store.night_store import NightRecord
from rackproof.store.plain_file import open_lock
from rackproof.store.run_folder import RECORD_NAME, ResultsError, write_file

EXIT_PASS, EXIT_TOOL, EXIT_FAIL, EXIT_UNPROVEN = 0, 1, 2, 3
"""Exit statuses of ``rackproof nightly``. EXIT_TOOL is a fault of the tool itself."""
LOCK = ".nightly.lock"
"""File in the results folder with the process id of the nightly that runs. It is empty if none runs."""
WEBHOOK, SMTP_USER, SMTP_PASSWORD = NIGHTLY_SECRETS
"""Names of the environment variables with the address of the webhook and the login for mail."""
_SEND_S, _WHOLE_S = 20, 120.0
"""Time limits in seconds for a server that takes messages: between two bytes, and for the whole call."""
_IDENT = "night"
"""Name of ansible-runner's folder for the output of the playbook."""
_PRIVATE = "rackproof-nightly-"
"""Prefix of the temporary folder of a nightly. The process id follows."""
_LATER_S = 300
"""Seconds after this process's own time limit at which ansible-runner ends the playbook."""
_SHOW_S = 0.25
"""Seconds after which new output of the playbook is shown."""
_PIPE_BYTES = 1 << 20
"""Size of the pipe of a playbook, which must hold a step of a thousand nodes."""
_KEPT_LINES = 8
"""Number of last lines of Ansible's output that a message shows, to explain a playbook that failed."""
_UNJUDGED = {
    *(night_store.SNAPSHOTS_FOLDER, night_store.EARLIER_SNAPSHOTS_FOLDER),
    *(probe_results.DIRECT, probe_results.PROBES_FILE, probe_results.PAIRS_LOCK),
}
"""Names of all files and folders in the folder of a night before its judgement."""
_SLACK = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})
"""The escapes of the characters that Slack would interpret."""
_MOST_TEXT = 3500
"""Largest number of characters of a message to a webhook. Slack recommends at most 4000, and escapes add
some."""


class NightlyError(RackproofError):
    """A fault that the operator must fix. The message gives the fault and the remedy."""


@dataclass(frozen=True)
class NightlySettings:
    """The settings of a nightly.

    Attributes:
        results: The results folder.
        checkout: The checkout whose validate.yml is run.
        limit: A pattern of hosts for Ansible's ``--limit``, or "" for all.
        timeout_s: The seconds after which the playbook is ended.
        variables: Extra variables for the playbook.
        metrics: The file for Prometheus, or None.
        mail_to: The recipients of a mail. If this is empty, no mail is sent.
        smtp: The mail server as ``HOST:PORT``, or ``[IPv6]:PORT``.
        link: The web address of the results folder, or "".
    """

    results: Path
    checkout: Path
    limit: str = ""
    timeout_s: float = 4 * 3600
    variables: Mapping[str, Any] = field(default_factory=dict)
    metrics: Path | None = None
    mail_to: tuple[str, ...] = ()
    mail_from: str = "rackproof@localhost"
    smtp: str = "localhost:25"
    link: str = ""


@dataclass(frozen=True)
class NightlyOutcome:
    """The outcome of a nightly: the exit status, the night if there is one, and the message's lines."""

    status: int
    night: NightRecord | None
    lines: tuple[str, ...]


class NightlyView(Protocol):
    """A display of a playbook while it runs."""

    def add_event(self, event: Mapping[str, Any]) -> None:
        """Take a step of a host. ``rackproof_ansible.playbook_events`` describes the form."""

    def add_output(self, line: str) -> None:
        """Take a line of Ansible's own output."""

    def refresh(self) -> None:
        """Show the output since the last call."""


def run_nightly(settings: NightlySettings, view: NightlyView) -> NightlyOutcome:
    """Run one night and send messages about it.

    Args:
        settings: The settings of the request.
        view: The display of the playbook during the run.

    Raises:
        NightlyError: Another nightly is running, or there is no checkout. The results folder cannot be
            written. A program of Ansible is not installed.
        ResultsError: The results folder or its claims cannot be read.

    If an error is raised, no message is sent.
    """
    if not (settings.checkout / "validate.yml").is_file():
        raise NightlyError(f"{settings.checkout} has no validate.yml: name a checkout with --checkout")
    with _single_nightly(settings.results):
        remarks = finish_interrupted(settings.results)
        _remove_private_folders()
        before = night_store.night_folders(settings.results)
        begin = time.monotonic()
        played = _run_playbook(settings, view)
        took = time.monotonic() - begin
        night, damage = None, ""
        try:
            own = _own_night(settings.results, before, played.night_id)
            night = night_store.read_night(own) if own is not None else None
        except ResultsError as error:
            # A night that cannot be read must still be reported.
            damage = str(error)
        outcome = _outcome(settings, night, played, remarks, took, damage)
        return _report_outcome(settings, outcome, took)


def _own_night(results: Path, before: Sequence[Path], night_id: str | None) -> Path | None:
    """Return the folder of the night that the playbook judged, or None if there is none.

    Another playbook may have judged a night of other nodes meanwhile, even a later one.

    Args:
        results: The results folder.
        before: The folders of the nights before the playbook.
        night_id: The id of the night that the playbook began, or "" if none. None if it reported no steps.

    Raises:
        ResultsError: The folder cannot be listed, or it is not known which of several nights is the own one.
    """
    new = [folder for folder in night_store.night_folders(results) if folder not in before]
    if night_id is not None:
        return next((folder for folder in new if folder.name == night_id), None)
    if len(new) > 1:
        raise ResultsError(
            f"which of {len(new)} new nights is its own is not known, because its callback reported no steps"
        )
    return next(iter(new), None)


def finish_interrupted(results: Path) -> list[str]:
    """Complete nights that were judged but have no ``run.json``, and remove nights without a judgement.

    A night without a judgement is left if its folder has files that no night makes. Return a remark about
    each completed, removed or left night. If a running playbook claims nodes for a night, change nothing.

    Args:
        results: The results folder.

    Raises:
        ResultsError: The claims of running playbooks cannot be read.
    """
    remarks: list[str] = []
    if not results.is_dir() or host_claims.claimed_hosts(results / night_store.NIGHT_CLAIMS):
        return []  # A playbook that an operator started is running.
    for folder in sorted(results.iterdir()):
        is_recorded = (folder / RECORD_NAME).is_file()
        if is_recorded or not night_store.is_night(folder.name) or folder.is_symlink():
            continue
        if not (folder / night_store.NIGHT_FILE).is_file():
            # Drafts left by a killed process start with a dot.
            if {path.name for path in folder.iterdir() if path.name[0] != "."} - _UNJUDGED:
                remarks.append(
                    f"{folder.name} is no whole night, and has files that no night makes; it was not removed"
                )
                continue
            shutil.rmtree(folder, ignore_errors=True)
            end = f"cannot be removed: remove {folder} by hand" if folder.exists() else "was removed"
            remarks.append(
                f"{folder.name} was interrupted before it was judged; it proved nothing, and {end}"
            )
        else:
            context = night_store.NightContext(night_id=folder.name, folder=str(folder), results=str(results))
            try:
                tasks.close_night(context, did={})
                remarks.append(f"{folder.name} was interrupted after it was judged; its record is whole now")
            except errors.ValidateError as error:
                remarks.append(f"{folder.name} was interrupted and cannot be finished: {error}")
    return remarks


@contextmanager
def _single_nightly(results: Path) -> Iterator[None]:
    """Hold a lock, so that only one nightly at a time uses a results folder.

    Raises:
        NightlyError: Another nightly holds the lock, or the results folder cannot be written.
    """
    try:
        results.mkdir(parents=True, exist_ok=True)
        lock = os.fdopen(open_lock(results / LOCK), "r+")
    except OSError as error:
        raise NightlyError(f"results folder {results} cannot be written: {error.strerror}") from error
    with lock:
        try:
            # The kernel releases the lock when this process ends, however it ends.
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            # The holder's pid is in the file, so that an operator can check whether it hangs.
            lock.seek(0)
            holder = sanitize(lock.read(40), 40) or "unknown"
            raise NightlyError(
                f"another nightly is running (pid {holder}) and ends by itself; try again later"
            ) from None
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        try:
            yield
        finally:
            # An empty file means that the nightly ended. If a reboot interrupts the nightly, the file is not
            # empty, and a unit of role nightly starts the nightly again.
            lock.truncate(0)


@dataclass(frozen=True)
class _PlaybookResult:
    """The end of the playbook: exit status (None after a timeout), last lines, and lost or failed hosts.

    ``night_id`` is the id of the night that it began, or "" if none. None if it reported no steps.
    """

    status: int | None
    tail: tuple[str, ...]
    hosts: tuple[str, ...]
    night_id: str | None = None


def _program(name: str) -> Path:
    """Return the path of a program of Ansible, beside this Python or else from PATH.

    Raises:
        NightlyError: The program is in neither place.
    """
    beside = Path(sys.executable).with_name(name)
    path = beside if beside.exists() else shutil.which(name)
    if path is None:
        raise NightlyError(
            f"{name} is not installed beside this Python; type `make venv` in the checkout, or install "
            "rackproof[ansible]"
        )
    return Path(path)


def _run_playbook(settings: NightlySettings, view: NightlyView) -> _PlaybookResult:
    """Run the playbook with ansible-runner and a time limit, and show the playbook's output."""
    runner, playbook = _program("ansible-runner"), _program("ansible-playbook")
    checkout = settings.checkout.resolve()
    variables = {"validate_results": str(settings.results.resolve()), "validate_link": settings.link}
    # Only the owner can access the folder, which is removed afterwards.
    with tempfile.TemporaryDirectory(prefix=f"{_PRIVATE}{os.getpid()}-") as folder:
        private = Path(folder)
        (private / "env").mkdir()
        (private / "env/extravars").write_text(json.dumps({**variables, **settings.variables}))
        # This process ends a playbook that is out of time. If this process was killed, ansible-runner does.
        bounds = {"job_timeout": int(settings.timeout_s + _LATER_S), "pexpect_timeout": 1}
        (private / "env/settings").write_text(json.dumps(bounds))
        events = _EventPipe(private / "events")
        argv = [str(runner), "run", folder, "--project-dir", str(checkout), "--playbook", "validate.yml"]
        argv += ["--ident", _IDENT, "--only-failed-event-data"]
        argv += [f"--limit={settings.limit}"] if settings.limit else []
        child = subprocess.Popen(  # noqa: S603  (our own playbook, no shell)
            argv,
            cwd=checkout,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            # A terminal's Ctrl-C reaches only this process, which then ends the playbook in an orderly way.
            start_new_session=True,
            env=_environment(checkout, playbook.parent) | {"RACKPROOF_EVENTS_PIPE": str(events.path)},
        )
        artifacts = private / "artifacts" / _IDENT
        lines: SimpleQueue[str] = SimpleQueue()
        tail: deque[str] = deque(maxlen=_KEPT_LINES)
        follower = Thread(target=_follow, args=(child, artifacts, lines), daemon=True)
        follower.start()
        failed: dict[str, set[str]] = {}
        night_id: str | None = None

        def show() -> None:
            """Show the events and lines that the playbook wrote since the last call."""
            nonlocal night_id
            for event in events.read():
                _note_failure(event, failed)
                is_begin = event.get("kind") == "night"
                night_id = sanitize(event.get("id") or "", 100) if is_begin else night_id or ""
                view.add_event(event)
            while not lines.empty():
                line = lines.get()
                view.add_output(line)
                if line.strip():
                    tail.append(line)
            view.refresh()

        try:
            status = _wait(child, settings.timeout_s, show)
        finally:
            _end(child)
            follower.join(_SEND_S)
            show()
            events.close()
        return _PlaybookResult(status, tuple(tail), tuple(_failure_lines(failed)), night_id)


def _wait(child: subprocess.Popen[str], timeout_s: float, show: Callable[[], None]) -> int | None:
    """Return the exit status of ansible-runner, or None if the playbook is out of time."""
    end = time.monotonic() + timeout_s
    while time.monotonic() < end:
        with suppress(subprocess.TimeoutExpired):
            return child.wait(_SHOW_S)
        show()
    return None


class _EventPipe:
    """A named pipe for the steps of a playbook, because ansible-runner passes no descriptors on.

    Args:
        path: The path of the pipe, in a private folder.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        os.mkfifo(path, 0o600)
        self._descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        # The playbook waits while the pipe is full, so the pipe should hold a step of a thousand nodes.
        with suppress(OSError):
            fcntl.fcntl(self._descriptor, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        self._rest = b""

    def read(self) -> Iterator[Mapping[str, Any]]:
        """Yield the events that came since the last call. A line that is no JSON object is left out."""
        while True:
            try:
                data = os.read(self._descriptor, 1 << 16)
            except BlockingIOError:
                return
            if not data:
                return
            *lines, self._rest = (self._rest + data).split(b"\n")
            for line in lines:
                with suppress(ValueError):
                    event = json.loads(line)
                    if isinstance(event, dict):
                        yield event

    def close(self) -> None:
        """Close the pipe. Later output of the playbook is lost."""
        os.close(self._descriptor)


def _remove_private_folders() -> None:
    """Remove this user's private folders of nightlies that were killed."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PRIVATE}*-*"):
        pid = folder.name.removeprefix(_PRIVATE).partition("-")[0]
        if pid.isdigit() and not Path(f"/proc/{pid}").exists() and folder.lstat().st_uid == os.geteuid():
            shutil.rmtree(folder, ignore_errors=True)


def _environment(checkout: Path, programs: Path) -> dict[str, str]:
    """Return the playbook's environment, without this process's own secrets and with host key checking."""
    environment = environment_of_playbook()
    # ansible-runner would replace the checkout's path with its own, and would not check host keys.
    environment.setdefault("ANSIBLE_CALLBACK_PLUGINS", str(checkout / "plugins/callback"))
    path = f"{programs}{os.pathsep}{environment.get('PATH', os.defpath)}"
    return environment | {"ANSIBLE_NOCOLOR": "1", "ANSIBLE_HOST_KEY_CHECKING": "True", "PATH": path}


def _follow(child: subprocess.Popen[str], artifacts: Path, lines: SimpleQueue[str]) -> None:
    """Put each line of the playbook's output into ``lines``, in a thread of its own until the output ends.

    At the first line, remove a file of ansible-runner that contains secrets.
    """
    for number, line in enumerate(child.stdout or ()):
        if number == 0:
            # This file contains the whole environment, including the history's address and password.
            (artifacts / "command").unlink(missing_ok=True)
        lines.put(sanitize(line, 500))


def _note_failure(event: Mapping[str, Any], failed: dict[str, set[str]]) -> None:
    """Add the host of a failure to ``failed``, by the task's name, or by "" if the host cannot be reached."""
    state = event.get("state")
    if event.get("kind") == "end" and state in ("failed", "unreachable"):
        step = sanitize(event.get("task") or "", 100) if state == "failed" else ""
        failed.setdefault(step, set()).add(sanitize(event.get("host") or "", 100))


def _failure_lines(failed: Mapping[str, set[str]]) -> Iterator[str]:
    """Yield a line with the unreachable hosts, and one for each failed task with its hosts."""
    for step, hosts in sorted(failed.items()):
        yield f"{f'failed: {step}' if step else 'unreachable'}: {compress_hostlist(sorted(hosts))}"


def _end(child: subprocess.Popen[str]) -> None:
    """End the playbook with all its processes, and then ansible-runner. Use force if necessary.

    Each of them has 20 seconds to end by itself. If ansible-runner ended already, do nothing.
    """
    for number, patience in ((signal.SIGTERM, 20.0), (signal.SIGKILL, 20.0)):
        # The playbook runs in a session of its own, so a signal to ansible-runner's group does not reach it.
        for pid in (*_children(child.pid), child.pid):
            if child.poll() is not None:
                return
            with suppress(ProcessLookupError):
                os.killpg(pid, number)
            with suppress(subprocess.TimeoutExpired):
                child.wait(patience)


def _children(pid: int) -> tuple[int, ...]:
    """Return the process ids of a process's children."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    except OSError:
        return ()
    return tuple(int(child) for child in children.split())


def _outcome(
    settings: NightlySettings,
    night: NightRecord | None,
    played: _PlaybookResult,
    remarks: Sequence[str],
    took: float,
    damage: str,
) -> NightlyOutcome:
    """Return the outcome of a night, or of a playbook that did not close a night (``took`` is in seconds).

    ``damage`` is the reason why the night's record cannot be read, or "".
    """
    if night is None or not night.closed:
        ending = (
            f"was stopped after {duration(settings.timeout_s)}"
            if played.status is None
            else f"ended with {played.status}"
        )
        phase = "before the night was judged" if night is None else "after the night was judged"
        if damage:
            phase = f"but {damage}"
        lines = [
            f"TOOL FAULT  validate.yml {ending}, {phase}; nothing is proven",
            *remarks,
            *played.hosts[:20],
        ]
        lines += played.tail
        return NightlyOutcome(EXIT_TOOL, night, tuple(lines))
    results = settings.results
    summary = messages.summarize_night(night, tasks.changes_since_last_night(results, night))
    lines = [add_results_everywhere(line, results) for line in summary]
    lines += probe_scheduler.describe_probes(probe_results.read_probes(results / night.night_id))
    page = f"{settings.link.rstrip('/')}/{night.night_id}/index.html" if settings.link else ""
    lines += [*(f"note: {remark}" for remark in remarks), f"took {duration(took)}"]
    lines.append(f"Report: {page or results / night.night_id / 'index.html'}")
    gate = {Verdict.FAIL: EXIT_FAIL, Verdict.UNPROVEN: EXIT_UNPROVEN}
    return NightlyOutcome(gate.get(night.verdict, EXIT_PASS), night, tuple(lines))


def _report_outcome(settings: NightlySettings, outcome: NightlyOutcome, took: float) -> NightlyOutcome:
    """Post the message, send the mail, write the metrics, and return the outcome with a note on each failure.

    If one failed, the exit status 0 becomes 1.
    """
    problems = []
    night = outcome.night
    probed = probe_results.read_probes(settings.results / night.night_id) if night else None
    url = os.environ.get(WEBHOOK, "").strip()
    text = "\n".join(outcome.lines)
    for name, send in (
        ("webhook", (lambda: post_webhook(url, text)) if url else None),
        ("mail", (lambda: send_mail(settings, outcome.lines)) if settings.mail_to else None),
        (
            "metrics",
            (
                lambda: write_file(
                    settings.metrics or Path(),
                    prometheus_metrics(outcome, took, probed, read_acts(settings.results)[0]),
                )
            )
            if settings.metrics
            else None,
        ),
    ):
        try:
            if send is not None:
                answer_within(_WHOLE_S, send)
        except TimeoutError:
            # The folder of the metrics may be on a file server that does not answer.
            what = "the file was not written" if name == "metrics" else "its server did not answer"
            problems.append(f"note: {name} failed: {what} in time")
        except (OSError, ValueError, HTTPException, smtplib.SMTPException, ResultsError) as error:
            # An address may contain a secret, so no message may repeat it.
            problems.append(f"note: {name} failed: {sanitize(_without(str(error), url), 300)}")
    # A bad night is more important than an undelivered message, so the night's exit status remains.
    status = outcome.status if not problems or outcome.status else EXIT_TOOL
    return NightlyOutcome(status, outcome.night, (*outcome.lines, *problems))


def _without(text: str, secret: str) -> str:
    """Return a text without the URL of the webhook, which is a secret."""
    return text.replace(secret, "(the webhook)") if secret else text


def post_webhook(url: str, text: str) -> None:
    """Post a text to a webhook in Slack's format.

    Raises:
        OSError: The server does not answer, or does not report success.
        ValueError: The URL is invalid, or does not begin with ``https://`` or ``http://``.
        http.client.HTTPException: The URL has an invalid port, or the answer is no HTTP.
    """
    # urllib would also open file:// and ftp://.
    if not url.startswith(("https://", "http://")):
        raise ValueError(f"{WEBHOOK} holds no URL that begins with https://")
    # In Slack, text in angle brackets notifies people and hides the targets of links. A node's text may
    # contain it.
    body = json.dumps({"text": text[:_MOST_TEXT].translate(_SLACK)}).encode()
    request = urllib.request.Request(  # noqa: S310  (the scheme was checked above)
        url, data=body, headers={"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=_SEND_S) as answer:  # noqa: S310  # nosec B310
            answer.read(1000)
    except urllib.error.HTTPError as error:
        raise OSError(f"it answered {error.code}") from None


def send_mail(settings: NightlySettings, lines: Sequence[str]) -> None:
    """Send a text by e-mail. If the environment names a user, log in over TLS.

    Raises:
        OSError: The server does not answer.
        ValueError: The server's name or port, or an address, is unusable.
        smtplib.SMTPException: The server refuses.
    """
    server_address = urlsplit(f"//{settings.smtp}")
    if not server_address.hostname:
        raise ValueError(f"{sanitize(settings.smtp, 100)} is no mail server: give HOST:PORT or [IPv6]:PORT")
    message = EmailMessage()
    message["Subject"] = sanitize(f"rackproof: {lines[0]}", 150)
    message["From"], message["To"] = settings.mail_from, ", ".join(settings.mail_to)
    message.set_content("\n".join(lines) + "\n")
    with smtplib.SMTP(server_address.hostname, server_address.port or 25, timeout=_SEND_S) as server:
        if user := os.environ.get(SMTP_USER, ""):
            # A password is sent only over TLS. A relay on this machine accepts mail without either.
            server.starttls(context=ssl.create_default_context())
            server.login(user, os.environ.get(SMTP_PASSWORD, ""))
        server.send_message(message)


def prometheus_metrics(
    outcome: NightlyOutcome,
    took: float,
    probed: probe_results.ProbeNight | None = None,
    acts: Sequence[AuditEntry] = (),
) -> bytes:
    """Return a night in the text format of Prometheus, for ``node_exporter``.

    A line is, for example, ``rackproof_nodes{verdict="pass"} 17``.

    Args:
        outcome: The outcome of the nightly.
        took: The duration in seconds.
        probed: The night's own measurements, or None if none were requested.
        acts: The audit log, oldest first.
    """
    night = outcome.night
    families: list[tuple[str, str, list[tuple[dict[str, str], float]]]] = [
        (
            "rackproof_nightly_exit_status",
            "Exit status of the last nightly; 1 is a fault of the tool.",
            [({}, outcome.status)],
        ),
        ("rackproof_nightly_end_timestamp_seconds", "When the last nightly ended.", [({}, time.time())]),
        ("rackproof_nightly_seconds", "How long it took.", [({}, took)]),
    ]
    if night is not None:
        counts = [
            ({"verdict": verdict.value}, float(sum(node.verdict is verdict for node in night.nodes)))
            for verdict in Verdict
        ]
        # One series per node that needs attention, so a healthy fleet adds none.
        bad_nodes = [
            ({"node": node.node, "rack": node.rack, "verdict": node.verdict.value}, 1.0)
            for node in night.nodes
            if node.verdict is not Verdict.PASS
        ]
        families += [
            ("rackproof_nodes", "Nodes by verdict in the last night.", counts),
            ("rackproof_node_attention", "Nodes that did not pass in the last night.", bad_nodes),
            (
                "rackproof_nodes_drained",
                "Nodes that Rackproof's nights keep drained, those outside a limited night included.",
                [({}, float(len(_drained_nodes(night, acts))))],
            ),
        ]
    if probed is not None:
        minutes = [({"kind": "budget"}, probed.asked), ({"kind": "used"}, probed.spent)]
        families += [
            ("rackproof_nightly_gpu_minutes", "GPU-minutes that the last night measured.", minutes),
            (
                "rackproof_nodes_measured",
                "Nodes that the last night measured by itself.",
                [({}, float(len(probed.measured)))],
            ),
        ]
    lines = []
    for name, help_text, samples in families:
        lines += [f"# HELP {name} {help_text}", f"# TYPE {name} gauge"]
        for labels, value in samples:
            labels_text = ",".join(f'{key}="{_label(text)}"' for key, text in labels.items())
            # Six digits (:g) would round a million GPU-minutes, and the timestamp to hours.
            lines.append(f"{name}{{{labels_text}}} {value:.15g}" if labels else f"{name} {value!r}")
    return ("\n".join(lines) + "\n").encode()


def _drained_nodes(night: NightRecord, acts: Sequence[AuditEntry]) -> set[str]:
    """Return the nodes that nights keep drained.

    A node of this night has the state of Slurm's answer, changed by later acts. The state of any other node
    comes from all acts in the audit log.
    """
    covered = {node.node for node in night.nodes}
    drained = {node.node for node in night.nodes if node.slurm and node.slurm.drained_by == "ours"}
    for act in acts:
        # An interrupted night has the states before its acts, and a limited night has only some nodes.
        if act.node not in covered or act.moment >= night.started:
            drained.discard(act.node)
            if act.act == "drain" and act.reason.startswith(night_store.DRAIN_PREFIX):
                drained.add(act.node)
    return drained


def _label(text: str) -> str:
    """Return a label's value in the notation of Prometheus."""
    # A line feed needs an escape, too, but sanitize removes line feeds.
    return sanitize(text, 200).replace("\\", "\\\\").replace('"', '\\"')
