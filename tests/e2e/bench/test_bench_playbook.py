"""Test bench.yml on this machine with a toy workload, as an operator runs it.

The toy (workloads/toy.py) trains nothing. It writes an MLPerf log in a second, or fails in the way that a
parameter requests. The tests show the verdict and the record of each kind of run, and the refusals of bad
input. They also show that an interrupted playbook continues its job, that secrets are only in the job's own
process, and that other users cannot read the results.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from rackproof.core.records import Run
from rackproof.jobs.bench.planning import PLAN_FILE
from rackproof.store.run_folder import iter_runs

HERE = Path(__file__).resolve().parent
pytestmark = pytest.mark.playbook


@dataclass
class Bench:
    """A runner of bench.yml on this machine, with the toy's definitions and a separate results folder.

    A call runs the playbook, and returns its status and output.
    """

    root: Path
    folder: Path
    environment: dict[str, str] = field(default_factory=dict)
    definitions: Path = HERE / "definitions"
    umask: int = -1  # -1 is the umask of this process

    @property
    def results(self) -> Path:
        return self.folder / "results"

    def command(self, *arguments: str, **variables: Any) -> list[str]:
        """Return the command line of the playbook, with variables as with `-e`."""
        given = {
            "bench_definitions": str(self.definitions),
            "bench_workloads": str(self.folder / "workloads"),
            "bench_workload_source": str(self.folder / "workloads"),
            "bench_home": str(self.folder / "home"),
            # Speeds do not matter here, so runs need neither an idle machine nor a lock of the whole machine.
            "bench_machine_lock": str(self.folder / "machine.lock"),
            "bench_require_idle": False,
            "bench_results": str(self.results),
            "bench_pythons": {"plain": sys.executable},
            **variables,
        }
        playbook = str(Path(sys.executable).with_name("ansible-playbook"))
        return [playbook, "bench.yml", "-l", "localhost", "-e", json.dumps(given), *arguments]

    def start(self, *arguments: str, **variables: Any) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self.command(*arguments, **variables),
            cwd=self.root,
            env={**os.environ, "ANSIBLE_NOCOLOR": "1", "COLUMNS": "160", **self.environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            umask=self.umask,
        )

    def __call__(self, *arguments: str, **variables: Any) -> tuple[int, str]:
        process = self.start(*arguments, **variables)
        output, _ = process.communicate(timeout=300)
        return process.returncode, output

    def runs(self) -> list[Run]:
        return list(iter_runs(self.results))


@pytest.fixture
def bench(root: Path, tmp_path: Path) -> Bench:
    """Return a runner of bench.yml with a copy of the toy."""
    shutil.copytree(HERE / "workloads", tmp_path / "workloads")
    for name in ("make_runtime.py", "lock_file.py"):
        shutil.copy(root / "workloads" / name, tmp_path / "workloads")
    return Bench(root, tmp_path)


def wait_for(condition: Callable[[], bool], seconds: float = 300) -> None:
    """Wait until a condition holds. If it does not hold after ``seconds``, the test fails."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "what the test waits for did not happen"
        time.sleep(0.1)


def table(output: str) -> str:
    """Return the table that the callback prints, without the parts that differ from run to run."""
    text = output[output.index("RESULT *") :]
    text = re.sub(r"\*+", "*", text)
    text = re.sub(r"plan-\w+-\w+", "plan-ID", text)
    text = re.sub(r"Report: .*/results/", "Report: results/", text)
    return "\n".join(line.rstrip() for line in text.strip().splitlines()) + "\n"


def test_a_good_run_passes_shows_progress_and_names_the_report(bench: Bench) -> None:
    status, output = bench("-e", "suite=toys")
    assert status == 0, output
    assert table(output) == (HERE / "golden.txt").read_text()
    assert re.search(r"localhost · .*epoch 1/1 · loss", output), output
    (run,) = bench.runs()
    assert (run.verdict, run.exit_status, run.seeds) == ("pass", 0, (1,))
    assert [judgement.verdict for judgement in run.judgements] == ["pass", "unproven"]
    assert run.nodes[0].name == "localhost"
    assert run.nodes[0].software["kernel"]
    assert run.command[0] == sys.executable
    folder = bench.results / run.run_id
    assert {path.name for path in folder.iterdir()} >= {"run.json", "logs", "report.html", "report.md"}
    (plan,) = bench.results.glob(f"plan-*/{PLAN_FILE}")
    assert (plan.parent / "report.html").is_file()
    assert (bench.results / "history.sqlite").is_file()


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_other_users_read_nothing_of_the_results(bench: Bench, umask: int) -> None:
    bench.umask = umask
    status, output = bench("-e", "suite=toys")
    assert status == 0, output
    open_to_others = [
        f"{path.relative_to(bench.results)} {path.stat().st_mode & 0o777:o}"
        for path in [bench.results, *bench.results.rglob("*")]
        if not path.is_symlink()
        if path.stat().st_mode & (0o027 if path.is_dir() else 0o137)
    ]
    assert open_to_others == []


def command_lines() -> set[bytes]:
    """Return the arguments of every process of this machine."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            found.add(path.read_bytes())
    return found


def test_a_secret_of_the_job_is_in_no_argument_and_no_file(bench: Bench) -> None:
    canary = f"canary-{uuid.uuid4().hex}"
    bench.environment["TOY_CANARY"] = canary
    given = {"TOY_TOKEN": "{{ lookup('ansible.builtin.env', 'TOY_CANARY') }}"}
    process = bench.start("-e", "suite=toys", "-vvv", bench_secret_environment=given)
    seen: set[bytes] = set()
    reader = threading.Thread(target=lambda: output.append(process.communicate(timeout=300)[0]))
    output: list[str] = []
    reader.start()
    while reader.is_alive():
        seen |= command_lines()
        reader.join(0.05)
    assert process.returncode == 0, output
    assert any(b"toy.py" in line for line in seen)
    assert not any(canary.encode() in line for line in seen)
    assert canary not in output[0]
    files = [path for path in bench.folder.rglob("*") if path.is_file()]
    # The job got the secret.
    had = f"the token has {len(canary)} characters".encode()
    assert any(had in path.read_bytes() for path in files)
    assert [path for path in files if canary.encode() in path.read_bytes()] == []


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("HF_TOKEN", "{}"),
        ("AWS_SECRET_ACCESS_KEY", "{}"),
        ("HTTPS_PROXY", "http://user:{}@proxy.example:3128"),
    ],
)
def test_a_secret_among_the_other_variables_is_refused_and_not_shown(
    bench: Bench, name: str, value: str
) -> None:
    canary = f"canary-{uuid.uuid4().hex}"
    status, output = bench("-e", "suite=toys", bench_environment={name: value.format(canary)})
    assert status != 0
    assert f"bench_environment: {name}: a secret" in " ".join(output.split())
    assert "bench_secret_environment" in output
    assert canary not in output
    assert not any(canary.encode() in path.read_bytes() for path in bench.folder.rglob("*") if path.is_file())


def test_each_run_of_a_suite_gets_its_verdict_despite_the_faults_of_others(bench: Bench) -> None:
    status, output = bench("-e", "suite=each")
    assert status == 2, output
    by_mode = {run.parameters["mode"]: run for run in bench.runs()}
    assert {mode: run.verdict.value for mode, run in by_mode.items()} == {
        "good": "pass",
        "nan": "fail",
        "cut": "unproven",
        "killed": "fail",
        "escape": "pass",
    }
    assert "signal 9" in " ".join(by_mode["killed"].reasons)
    assert any("logs/localhost.log" in reason for reason in by_mode["nan"].reasons), by_mode["nan"].reasons
    # Hostile text of a log is shown as text, on the terminal and in a page.
    assert "\x1b" not in output
    page = (bench.results / by_mode["escape"].run_id / "report.html").read_text()
    assert "<script" not in page
    assert "\x1b" not in page


def test_a_hanging_job_is_ended_and_fails(bench: Bench) -> None:
    status, output = bench("-e", "suite=toys", bench_parameters={"mode": "hang"})
    assert status == 2, output
    (run,) = bench.runs()
    assert run.verdict == "fail"
    assert "did not grow for 3 s" in run.reasons[0]


def test_on_racks_a_missing_reference_gates_and_a_given_one_judges(bench: Bench) -> None:
    status, output = bench("-e", "suite=toys", bench_require_references=True)
    assert status == 2
    # The table shortens the reason to its column.
    assert "no reference yet" in output
    reference = {"metric": "samples_per_second", "low": -0.05, "unit": "samples/s", "source": "test"}
    for value, expected in ((1000, 0), (2000, 2)):
        status, output = bench(
            "-e",
            "suite=toys",
            bench_require_references=True,
            bench_sku_references=[{**reference, "value": value}],
        )
        assert status == expected, output
    assert [run.verdict.value for run in bench.runs()] == ["unproven", "pass", "fail"]


# Each request has a spelling mistake. The message names the mistake, and mostly the right name.
@pytest.mark.parametrize(
    ("arguments", "variables", "words"),
    [
        (["-e", "benchmark=toi"], {}, ["no benchmark `toi`", "did you mean `toy`"]),
        (["-e", "suite=toi"], {}, ["no suite `toi`", "did you mean `toys`"]),
        (["-e", "suite=toys"], {"bench_parameters": {"spede": 1}}, ["no parameter `spede`", "`speed`"]),
        (
            ["-e", "suite=toys"],
            {"bench_sku_references": [{"metric": "x", "valu": 1}]},
            ["bench_sku_references", "value"],
        ),
    ],
)
def test_a_mistaken_request_stops_before_anything_is_touched(
    bench: Bench, arguments: list[str], variables: dict[str, Any], words: list[str]
) -> None:
    status, output = bench(*arguments, **variables)
    assert status == 2
    for word in words:
        assert word in output
    assert not bench.results.exists()
    assert not (bench.folder / "home").exists()


def test_a_wrong_key_is_named_with_file_and_line(bench: Bench) -> None:
    bench.definitions = bench.folder / "definitions"
    shutil.copytree(HERE / "definitions", bench.definitions)
    path = bench.definitions / "toy.yml"
    path.write_text(path.read_text().replace("timeout_s:", "timout_s:"))
    status, output = bench("-e", "suite=toys")
    assert status == 2
    line = next(n for n, text in enumerate(path.read_text().splitlines(), 1) if "timout_s" in text)
    assert f"{path}:{line}: launch.timout_s: unknown key; did you mean `timeout_s`" in " ".join(
        output.split()
    )


def test_no_limit_is_refused(bench: Bench) -> None:
    command = bench.command("-e", "suite=toys")
    del command[2:4]
    done = subprocess.run(command, cwd=bench.root, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "Name the hosts to benchmark" in done.stdout


def test_a_gpu_that_is_absent_is_unproven(bench: Bench) -> None:
    status, output = bench("-e", "suite=toys", bench_parameters={"gpus": 64})
    assert status == 2
    assert "64 GPUs requested" in output
    (run,) = bench.runs()
    assert run.verdict == "unproven"


def test_a_results_folder_that_cannot_be_written_reports_it(bench: Bench) -> None:
    bench.results.parent.mkdir(exist_ok=True)
    bench.results.write_text("a file, not a folder")
    status, output = bench("-e", "suite=toys")
    assert status == 2
    assert "bench_results=FOLDER" in output


def test_an_interpreter_that_cannot_be_used_makes_the_run_unproven(bench: Bench) -> None:
    status, output = bench("-e", "suite=toys", bench_pythons={"plain": "/nonexistent/python"})
    assert status == 2
    (run,) = bench.runs()
    assert run.verdict == "unproven"
    assert "bench_pythons names /nonexistent/python for plain, which does not exist" in run.reasons[0]
    assert "/nonexistent/python" in output


def test_check_mode_shows_the_plan_and_keeps_nothing(bench: Bench) -> None:
    status, output = bench("-e", "suite=pair", "--check")
    assert status == 0, output
    assert "pair: 2 runs" in output
    assert "speed=2000" in output
    assert not bench.results.exists()


def starts(path: Path) -> int:
    """Return how often the toy was started. It writes a line to this file at each start."""
    return len(path.read_text().splitlines()) if path.exists() else 0


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGKILL], ids=["Ctrl-C", "kill -9"])
def test_interrupted_and_started_again_nothing_is_lost_or_done_twice(
    bench: Bench, end: signal.Signals
) -> None:
    started = bench.folder / "starts"
    variables = {"bench_parameters": {"seconds": 12, "started": str(started)}}
    first = bench.start("-e", "suite=toys", **variables)
    wait_for(lambda: starts(started) == 1)

    # While it runs, a second playbook on the same host is refused.
    status, output = bench("-e", "suite=toys", **variables)
    assert status == 2
    assert f"pid {first.pid}" in output

    # Ctrl-C reaches the whole foreground group, as from a terminal.
    os.killpg(first.pid, end)
    first.communicate(timeout=60)
    assert first.returncode != 0

    status, output = bench("-e", "suite=toys", **variables)
    assert status == 0, output
    assert "Going on with plan-" in output
    assert starts(started) == 1
    (run,) = bench.runs()
    assert run.verdict == "pass"


def test_after_ctrl_c_what_is_advised_can_be_typed(bench: Bench) -> None:
    started = bench.folder / "starts"
    rackproof = str(Path(sys.executable).with_name("rackproof"))

    def play(command: list[str]) -> subprocess.Popen[str]:
        return subprocess.Popen(
            command,
            cwd=bench.root,
            env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    parameters = {"seconds": 50, "started": str(started)}
    words = bench.command("-e", "suite=toys", bench_parameters=parameters)[2:]
    first = play([rackproof, "bench", *words])
    wait_for(lambda: starts(started) == 1)
    assert first.stdout is not None
    shown = [first.stdout.readline()]
    # After the first line of its progress, the command has the job's name for its advice.
    while " · step " not in shown[-1]:
        assert shown[-1], shown
        shown.append(first.stdout.readline())
    first.send_signal(signal.SIGINT)
    text = first.communicate()[0]
    assert first.returncode == 99, text
    assert "TASK" not in "".join(shown)
    assert re.search(r"(?m)^Interrupted\. \S+-toy-\w+ still runs on localhost\.$", text)
    again, end = (
        shlex.split(re.search(rf"(?m)^{what}: +(rackproof .*)$", text)[1])  # type: ignore[index]
        for what in ("Continue it", "End the jobs")
    )
    for command, status, said in (
        (end, 0, "-toy-.* was ended"),
        (end, 0, "no job runs"),
        (again, 2, "unproven"),
    ):
        done = play(command)
        output = done.communicate()[0]
        assert done.returncode == status, output
        assert re.search(said, output), output
    assert starts(started) == 1
    (run,) = bench.runs()
    assert "stopped" in run.reasons[0]


def test_a_job_that_could_not_be_followed_is_followed_by_the_next_playbook(bench: Bench) -> None:
    started = bench.folder / "starts"
    variables = {"bench_parameters": {"seconds": 15, "started": str(started)}}
    first = bench.start("-e", "suite=toys", **variables)
    wait_for(lambda: starts(started) == 1)
    (state,) = bench.folder.glob("home/runs/*/state.json")
    hidden = state.with_name("hidden")
    time.sleep(1)
    state.rename(hidden)
    output, _ = first.communicate(timeout=60)
    assert first.returncode == 2, output
    if not state.exists():  # otherwise the job has ended meanwhile, and wrote a new state
        hidden.rename(state)
    (run,) = bench.runs()
    assert run.verdict == "unproven"
    assert "start the playbook again" in " ".join(run.reasons)

    status, output = bench("-e", "suite=toys", **variables)
    assert status == 0, output
    assert starts(started) == 1
    (run,) = bench.runs()
    assert run.verdict == "pass"


def test_a_database_that_is_down_loses_no_run(bench: Bench) -> None:
    bench.environment["RACKPROOF_DATABASE_URL"] = "postgresql://rackproof:sesame@127.0.0.1:9/history"
    status, output = bench("-e", "suite=toys")
    # The history may have a reference that the run does not reach. It cannot be read, so the run is unproven.
    assert status == 2, output
    assert "WARNING" in output
    assert "sesame" not in output
    (run,) = bench.runs()
    assert run.verdict == "unproven"
    assert "the history could not be queried" in run.reasons[0]
    assert list((bench.results / ".spool").iterdir())
