"""Test ``rackproof.jobs.validate.nightly``, which runs validate.yml from a timer every night.

A fake ansible-playbook makes the night. The tests check the exit status (0 pass or degraded, 2 bad node, 3
unproven, 1 fault of the tool), the messages to a webhook and by mail, the metrics, time limits, and what
happens to an interrupted night. Messages must show no secret, and no markup from a node.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from io import StringIO
from pathlib import Path
from typing import Any, ClassVar

import pytest

from rackproof.jobs.validate import nightly
from rackproof.jobs.validate.judge import judge_fleet
from rackproof.jobs.validate.nightly import NightlyError, NightlySettings, finish_interrupted, run_nightly
from rackproof.jobs.validate.tasks import begin_night
from rackproof.store.night_store import night_folders, read_night
from rackproof.store.probe_results import ProbeNight
from tests.jobs.validate.probes import ROOT
from tests.jobs.validate.test_validating import NODES, a_night, gathered, look_at
from tests.workloads.test_slow_servers import DrippingServer

# The fake ansible-playbook. It makes the night that the variable DO names, or fails.
PLAYBOOK = """#!{python}
import json, os, sys, time
sys.path[:0] = {path!r}
from pathlib import Path
from tests.jobs.validate import test_validating
from tests.jobs.validate.test_validating import a_night, gathered
given = sys.argv[sys.argv.index("-e") + 1]
results = Path(json.loads(Path(given.removeprefix("@")).read_text())["validate_results"])
Path(os.environ["SEEN"]).write_text(json.dumps(dict(os.environ)))
do = os.environ["DO"]
print("TASK [Take snapshots of the nodes]", flush=True)
while do == "hang" and not Path(os.environ["SEEN"] + ".end").exists():
    time.sleep(0.05)
for host in ("n2", "n1"):
    end = {{"kind": "end", "host": host, "state": "unreachable", "task": "validate : Take snapshots"}}
    with open(os.environ["RACKPROOF_EVENTS_PIPE"], "w") as pipe:
        pipe.write(json.dumps(end) + "\\n")
if do == "die":
    sys.exit("ERROR! the inventory cannot be read")
def begin_night(*args, **more):
    night = test_validating.tasks.begin_night(*args, **more)
    with open(os.environ["RACKPROOF_EVENTS_PIPE"], "w") as pipe:
        pipe.write(json.dumps({{"kind": "night", "host": "n1", "id": night.night_id}}) + "\\n")
    return night
test_validating.begin_night = begin_night
a_night(results, {{1: gathered(1, gone=2)}} if do == "bad" else {{1: None}} if do == "lost" else {{}})
sys.exit(2 if do != "good" else 0)
"""


class View(StringIO):
    """A view that stores the events and the output of a night."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[Any] = []

    def add_event(self, event: Mapping[str, Any]) -> None:
        self.events.append(event)

    def add_output(self, line: str) -> None:
        self.write(line + "\n")

    def refresh(self) -> None:
        """Draw nothing."""


class Hook(BaseHTTPRequestHandler):
    """A webhook that stores messages in ``said``, and answers with ``status``."""

    said: ClassVar[list[str]] = []
    status = 200

    def do_POST(self) -> None:
        length = int(self.headers["Content-Length"])
        Hook.said.append(json.loads(self.rfile.read(length))["text"])
        self.send_response(Hook.status)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Log nothing."""


@pytest.fixture
def hook(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Hook]]:
    server = HTTPServer(("127.0.0.1", 0), Hook)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    Hook.said, Hook.status = [], 200
    monkeypatch.setenv(nightly.WEBHOOK, f"http://127.0.0.1:{server.server_port}/services/S3CRET")
    yield Hook
    server.shutdown()
    server.server_close()


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> NightlySettings:
    checkout = tmp_path / "checkout"
    checkout.mkdir()
    (checkout / "validate.yml").touch()
    here = [str(Path(__file__).resolve().parents[3])]
    program = tmp_path / "bin/ansible-playbook"
    program.parent.mkdir()
    program.write_text(PLAYBOOK.format(python=sys.executable, path=here))
    program.chmod(0o755)
    program.with_name("ansible-runner").symlink_to(Path(sys.executable).with_name("ansible-runner"))
    monkeypatch.setenv("SEEN", str(tmp_path / "seen.json"))
    monkeypatch.setattr(sys, "executable", str(program.with_name("python")))
    return NightlySettings(
        results=tmp_path / "results", checkout=checkout, timeout_s=300, link="https://example.org/r"
    )


pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("do", "status", "first"),
    [
        ("good", 0, "PASS  3 nodes: 3 pass"),
        ("bad", 2, "FAIL  3 nodes: 1 fail, 2 pass"),
        ("lost", 3, "UNPROVEN  3 nodes: 1 unproven, 2 pass"),
        ("die", 1, "TOOL FAULT  validate.yml ended with 1, before the night was judged"),
    ],
)
def test_the_exit_status_separates_the_fleets_faults_from_the_tools(
    do: str,
    status: int,
    first: str,
    settings: NightlySettings,
    hook: type[Hook],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DO", do)
    file = settings.results / "rackproof.prom"
    done = run_nightly(NightlySettings(**(vars(settings) | {"metrics": file})), View())
    assert done.status == status
    assert done.lines[0].startswith(first)
    (said,) = hook.said
    assert said.startswith(first)
    if status == 1:
        assert "the inventory cannot be read" in said
        assert "unreachable: n[1-2]" in said
    else:
        assert f"https://example.org/r/{night_folders(settings.results)[0].name}/index.html" in said
    text = file.read_text()
    assert f"\nrackproof_nightly_exit_status {status}\n" in text
    assert ('rackproof_node_attention{node="r1-n02"' in text) == (do in ("bad", "lost"))


def test_what_changed_is_reported_before_what_is_wrong(
    settings: NightlySettings, hook: type[Hook], monkeypatch: pytest.MonkeyPatch
) -> None:
    for do in ("good", "bad"):
        monkeypatch.setenv("DO", do)
        run_nightly(settings, View())
    said = hook.said[1]
    assert said.index("changed: r1-n02: pass → fail") < said.index("fail r1-n02:")


def test_a_playbook_that_hangs_is_stopped(settings: NightlySettings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DO", "hang")
    done = run_nightly(NightlySettings(**(vars(settings) | {"timeout_s": 1.5})), View())
    assert done.status == 1
    assert "was stopped after" in done.lines[0]


@pytest.mark.parametrize(
    ("unit", "said"),
    [
        ("<!channel>", "&lt;!channel&gt;"),
        ("<https://evil.example|Report>.service", "&lt;https://evil.example|Report&gt;.service"),
        ("<@U123> a&b", "&lt;@U123&gt; a&amp;b"),
    ],
)
def test_markup_in_what_a_node_says_is_shown_and_not_followed(hook: type[Hook], unit: str, said: str) -> None:
    nightly.post_webhook(os.environ[nightly.WEBHOOK], f"node1: failed: {unit}")
    assert hook.said == [f"node1: failed: {said}"]


def test_a_webhook_that_refuses_is_a_fault_of_the_tool_and_stays_secret(
    settings: NightlySettings, hook: type[Hook], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DO", "good")
    hook.status = 500
    done = run_nightly(settings, View())
    assert done.status == 1
    assert done.lines[-1] == "note: webhook failed: it answered 500"
    monkeypatch.setenv(nightly.WEBHOOK, "file:///etc/S3CRET")
    done = run_nightly(settings, View())
    assert "holds no URL" in done.lines[-1]
    assert not any("S3CRET" in line for line in done.lines)


@pytest.mark.parametrize(
    ("way", "at_once", "drip", "message"),
    [
        ("webhook", b"HTTP/1.1 200 OK\r\nX: ", b"0", "did not answer in time"),
        ("webhook", b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n", b"0", "did not answer in time"),
        ("webhook", b"HTTP/1.1 \x1b[31m S3CRET\r\n\r\n", b"", "failed: HTTP/1.1"),
        ("mail", b"220-hello", b"0", "did not answer in time"),
    ],
)  # fmt: skip
def test_a_server_of_messages_that_never_finishes_holds_no_night(
    settings: NightlySettings,
    monkeypatch: pytest.MonkeyPatch,
    way: str,
    at_once: bytes,
    drip: bytes,
    message: str,
) -> None:
    monkeypatch.setenv("DO", "good")
    if drip:
        monkeypatch.setattr(nightly, "_WHOLE_S", 0.5)
    with DrippingServer(at_once, drip) as server:
        if way == "webhook":
            monkeypatch.setenv(nightly.WEBHOOK, server.url)
        else:
            settings = replace(settings, mail_to=("ops@site",), smtp=server.url.split("/")[2])
        done = run_nightly(settings, View())
    assert done.status == 1
    assert done.lines[-1].startswith(f"note: {way} ")
    assert message in done.lines[-1]
    assert done.lines[-1].isprintable()


def test_mail_goes_to_a_server_that_takes_it(
    settings: NightlySettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = []

    class Server:
        def __init__(self, host: str, port: int, timeout: float) -> None:
            self.place = (host, port)

        def __enter__(self) -> Server:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def send_message(self, message: object) -> None:
            sent.append((self.place, message))

    monkeypatch.setattr("smtplib.SMTP", Server)
    nightly.send_mail(
        NightlySettings(**(vars(settings) | {"mail_to": ("ops@example.org",), "smtp": "mx:2525"})),
        ["FAIL", "b"],
    )
    ((place, message),) = sent
    assert place == ("mx", 2525)
    assert message["Subject"] == "rackproof: FAIL"
    assert message["To"] == "ops@example.org"
    monkeypatch.undo()
    refused = NightlySettings(**(vars(settings) | {"mail_to": ("ops@example.org",), "smtp": "127.0.0.1:1"}))
    with pytest.raises(OSError, match="refused"):
        nightly.send_mail(refused, ["FAIL"])


@pytest.mark.parametrize(
    ("smtp", "place"),
    [
        ("[::1]:25", ("::1", 25)),
        ("[::1]", ("::1", 25)),
        ("mx", ("mx", 25)),
        ("mx:", ("mx", 25)),
        ("10.0.0.1:587", ("10.0.0.1", 587)),
        ("::1", None),
        ("", None),
        (":25", None),
        ("mx:99999", None),
        ("[::1", None),
        ("mx:²", None),
    ],
)
def test_a_mail_server_may_have_any_address(
    settings: NightlySettings, monkeypatch: pytest.MonkeyPatch, smtp: str, place: tuple[str, int] | None
) -> None:
    tried = []

    def connect(host: str, port: int, timeout: float) -> None:
        tried.append((host, port))
        raise OSError("refused")

    monkeypatch.setattr("smtplib.SMTP", connect)
    with pytest.raises(OSError if place else ValueError):
        nightly.send_mail(replace(settings, smtp=smtp, mail_to=("ops@example.org",)), ["FAIL"])
    assert tried == ([place] if place else [])


# Nights that other playbooks judged before and after this one's, as answers of the nodes.
@pytest.mark.parametrize("others", [(0, 1), (1, 0), (1, 1), (2, 3)])
@pytest.mark.parametrize(("fault", "status"), [({1: gathered(1, gone=2)}, 2), ({1: None}, 3), ({}, 0)])
def test_a_night_of_another_playbook_is_not_reported(
    settings: NightlySettings,
    hook: type[Hook],
    monkeypatch: pytest.MonkeyPatch,
    others: tuple[int, int],
    fault: dict[int, Any],
    status: int,
) -> None:
    """The fault of this night is not in the other ones, and theirs are not in this one."""
    other = {2: gathered(2, gone=1)} if not status else {}

    def play(*_: object) -> nightly._PlaybookResult:
        for answers in [other] * others[0]:
            a_night(settings.results, answers)
        a_night(settings.results, fault)
        own = night_folders(settings.results)[0].name
        for answers in [other] * others[1]:
            a_night(settings.results, answers)
        return nightly._PlaybookResult(0, (), (), own)

    monkeypatch.setattr(nightly, "_run_playbook", play)
    monkeypatch.setattr(os, "fsync", lambda *_: None)
    done = run_nightly(settings, View())
    assert (done.status, done.night and done.night.night_id in Hook.said[0]) == (status, True)


@pytest.mark.parametrize(
    ("night_id", "nights", "status", "said"),
    [
        ("", 0, 1, "before the night was judged"),
        ("", 1, 1, "before the night was judged"),
        ("20261121T100000Z-health-3f2a91", 1, 1, "before the night was judged"),
        # Without the callback, only one night can be the own one.
        (None, 0, 1, "before the night was judged"),
        (None, 1, 0, "PASS  3 nodes"),
        (None, 2, 1, "but which of 2 new nights is its own is not known"),
    ],
)
def test_a_playbook_that_began_no_night_reports_none(
    settings: NightlySettings,
    monkeypatch: pytest.MonkeyPatch,
    night_id: str,
    nights: int,
    status: int,
    said: str,
) -> None:
    def play(*_: object) -> nightly._PlaybookResult:
        for _ in range(nights):
            a_night(settings.results, {})
        return nightly._PlaybookResult(0, (), (), night_id)

    monkeypatch.setattr(nightly, "_run_playbook", play)
    monkeypatch.setattr(os, "fsync", lambda *_: None)
    done = run_nightly(settings, View())
    assert (done.status, said in done.lines[0]) == (status, True)


@pytest.mark.parametrize("content", [b"{", b"", b"[" * 9000])
def test_a_damaged_new_night_is_a_fault_of_the_tool_and_sends_messages(
    settings: NightlySettings,
    hook: type[Hook],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    content: bytes,
) -> None:
    def play(*_: object) -> nightly._PlaybookResult:
        folder = settings.results / "20261121T100000Z-health-3f2a91"
        folder.mkdir()
        (folder / "night.json").write_bytes(content)
        return nightly._PlaybookResult(0, (), ())

    monkeypatch.setattr(nightly, "_run_playbook", play)
    done = run_nightly(replace(settings, metrics=tmp_path / "night.prom"), View())
    assert done.lines[0].startswith("TOOL FAULT  validate.yml ended with 0, but ")
    assert done.lines[0].endswith("; nothing is proven")
    assert "20261121T100000Z-health-3f2a91" in done.lines[0]
    assert Hook.said == ["\n".join(done.lines)]
    assert "rackproof_nightly_exit_status 1" in (tmp_path / "night.prom").read_text()


@pytest.mark.parametrize("minutes", [1234567.0, 0.25, 17.0, 123456789.5, 0.1])
def test_a_metric_keeps_its_digits(minutes: float) -> None:
    outcome = nightly.NightlyOutcome(0, None, ())
    text = nightly.prometheus_metrics(outcome, 1.0, ProbeNight(asked=minutes, spent=minutes)).decode()
    values = [
        line.split()[-1] for line in text.splitlines() if line.startswith("rackproof_nightly_gpu_minutes{")
    ]
    assert [float(value) for value in values] == [minutes, minutes]
    assert not any("e" in value for value in values)


def test_two_nightlies_at_once_are_refused_and_a_killed_one_is_not_in_the_way(
    settings: NightlySettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DO", "good")
    settings.results.mkdir()
    hold = (
        "import fcntl, os, time; lock = open('.nightly.lock', 'a+'); fcntl.flock(lock, fcntl.LOCK_EX);"
        " lock.write(str(os.getpid())); lock.flush(); print('held', flush=True); time.sleep(600)"
    )
    python = os.path.realpath("/proc/self/exe")
    with subprocess.Popen([python, "-I", "-c", hold], cwd=settings.results, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        with pytest.raises(NightlyError, match=rf"another nightly is running \(pid {other.pid}\)"):
            run_nightly(settings, View())
        other.kill()
        other.wait()
    # The lock of the killed nightly has its process id. A nightly that ends empties the lock.
    assert (settings.results / nightly.LOCK).read_text() == str(other.pid)
    assert run_nightly(settings, View()).status == 0
    assert (settings.results / nightly.LOCK).read_text() == ""


def test_an_interrupted_night_is_finished_or_removed_by_the_next(settings: NightlySettings) -> None:
    results = settings.results
    owner = subprocess.Popen(["sleep", "600"])
    unjudged = begin_night(results, NODES, owner_pid=owner.pid)
    look_at(unjudged, 0)
    judged = begin_night(results, NODES, owner_pid=owner.pid)
    look_at(judged, 1, gathered(1, gone=2))
    judge_fleet(
        judged, asked=dict.fromkeys(NODES, "no answer"), benchmarks=ROOT / "benchmarks", being_imaged={}
    )
    # Another benchmark may have a similar name. Its runs must stay, complete or not.
    alike = [
        results / name for name in ("20261121T100000Z-health-check-3f2a91", "20261121T100000Z-health-3f2a9")
    ]
    whole = results / "20261121T100000Z-health-3f2a91"
    for folder in (*alike, whole):
        folder.mkdir()
    (whole / "run.json").touch()
    # While the playbook runs, its night is left alone.
    assert finish_interrupted(results) == []
    owner.kill()
    owner.wait()
    remarks = finish_interrupted(results)
    assert len(remarks) == 2
    assert not any("checked" in remark for remark in remarks)
    assert not Path(unjudged.folder).exists()
    assert all(folder.is_dir() for folder in (*alike, whole))
    assert read_night(Path(judged.folder)).closed
    assert (Path(judged.folder) / "run.json").is_file()
    assert finish_interrupted(results) == []


@pytest.mark.parametrize(
    "files", [("snapshots",), ("probes.json", "snapshots"), ("direct",), ("snapshots", "pairs.lock")]
)
@pytest.mark.parametrize("is_removed", [True, False])
def test_a_night_that_cannot_be_removed_is_not_called_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: tuple[str, ...], is_removed: bool
) -> None:
    folder = tmp_path / "20261121T100000Z-health-3f2a91"
    for name in files:
        (folder / name).mkdir(parents=True)
    if not is_removed:
        monkeypatch.setattr("shutil.rmtree", lambda *_, **__: None)
    (remark,) = finish_interrupted(tmp_path)
    assert ("and was removed" in remark, f"cannot be removed: remove {folder}" in remark) == (
        is_removed,
        not is_removed,
    )


def test_metrics_on_a_server_that_does_not_answer_are_named_as_a_file(
    settings: NightlySettings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def wait(*_: object) -> None:
        raise TimeoutError

    monkeypatch.setattr(nightly, "_run_playbook", lambda *_: nightly._PlaybookResult(1, (), ()))
    monkeypatch.setattr(nightly, "answer_within", wait)
    done = run_nightly(replace(settings, metrics=tmp_path / "night.prom"), View())
    assert done.lines[-1] == "note: metrics failed: the file was not written in time"


def test_a_folder_without_a_playbook_is_refused(settings: NightlySettings, tmp_path: Path) -> None:
    with pytest.raises(NightlyError, match="has no validate"):
        run_nightly(NightlySettings(results=tmp_path, checkout=tmp_path), View())


def test_the_playbook_gets_no_secret_that_it_does_not_need(
    settings: NightlySettings, hook: type[Hook], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DO", "good")
    monkeypatch.setenv(nightly.SMTP_PASSWORD, "S3CRET")
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setattr("tempfile.tempdir", None)
    (tmp_path / "tmp").mkdir()
    # The folder of a nightly that was killed is removed, and that of a living process remains.
    for pid in (2**22 + 1, os.getppid()):
        (tmp_path / f"tmp/rackproof-nightly-{pid}-x").mkdir()
    said = View()
    assert run_nightly(settings, said).status == 0
    assert "TASK [Take snapshots of the nodes]" in said.getvalue()
    seen = json.loads((tmp_path / "seen.json").read_text())
    assert "S3CRET" not in str(seen)
    assert seen["ANSIBLE_HOST_KEY_CHECKING"] == "True"
    assert seen["ANSIBLE_CALLBACK_PLUGINS"].split(":")[0] == str(settings.checkout / "plugins/callback")
    assert [one.name for one in (tmp_path / "tmp").iterdir()] == [f"rackproof-nightly-{os.getppid()}-x"]


def test_what_the_playbook_says_is_there_while_it_runs(
    settings: NightlySettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DO", "hang")
    said = View()
    thread = threading.Thread(target=run_nightly, args=(settings, said), daemon=True)
    thread.start()
    while "TASK [Take snapshots of the nodes]" not in said.getvalue():
        assert thread.is_alive(), said.getvalue()
        time.sleep(0.05)
    assert thread.is_alive()
    (tmp_path / "seen.json.end").touch()
    thread.join()
