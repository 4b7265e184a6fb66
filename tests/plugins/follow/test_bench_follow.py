"""Test the action ``rackproof_bench_follow`` in real playbooks.

The action polls a job on a node every few seconds, shows lines with its progress, and returns its end. The
tests show that the lines appear while the job runs, and that the job's end is right after something was
killed or lost: the playbook, the job, its supervisor, or the connection.
"""

from __future__ import annotations

import json
import os
import py_compile
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from .conftest import Controller, until

pytestmark = pytest.mark.playbook

# All Pythons of this machine from 3.8 on, by version. Nodes may have any of these versions.
INTERPRETERS = {
    f"{match[1]}.{match[2]}": path
    for path in sorted(Path.home().glob(".pyenv/versions/*/bin/python3.*"))
    + sorted(Path("/usr/bin").glob("python3.*"))
    if (match := re.fullmatch(r"python(3)\.(\d+)", path.name)) and int(match[2]) >= 8
}


def event(key: str, value: Any = None, kind: str = "POINT_IN_TIME", **metadata: Any) -> str:
    """Return a shell command that logs an MLPerf event."""
    line = {
        "namespace": "",
        "time_ms": 1,
        "event_type": kind,
        "key": key,
        "value": value,
        "metadata": {"file": "x.py", "lineno": 1, **metadata},
    }
    return f"echo ':::MLLOG {json.dumps(line)}'"


def script(*lines: str) -> dict[str, Any]:
    """Return the argument of a job that is a shell script."""
    return {"argv": ["sh", "-c", "\n".join(lines)]}


def plain(line: str) -> str:
    """Return a line of progress without its times."""
    line = re.sub(r"ends about [\d:]+ \(in [^)]*\)", "ends about T", line)
    return re.sub(r"\d+\.\d s elapsed", "T elapsed", line)


def test_progress_is_shown_while_the_job_runs(controller: Controller) -> None:
    job = script(
        event("run_start", kind="INTERVAL_START"),
        event("epoch_start", kind="INTERVAL_START", epoch_num=1),
        event("progress", {"step": 10, "steps": 100, "epoch": 1, "epochs": 2, "phase": "training"}),
        event("tracked_stats", {"train_loss": 0.5, "throughput": 1234.5}, step=10),
        controller.wait_for("one"),
        event("progress", {"step": 60, "steps": 100, "epoch": 2, "epochs": 2, "phase": "training"}),
        event("eval_accuracy", 0.975, epoch_num=2),
        event("tracked_stats", {"train_loss": 0.125, "throughput": 2345.6}, step=60),
        "printf '\\033[2J\\033]0;owned\\007hostile line\\n'",
        controller.wait_for("two"),
        event("run_stop", kind="INTERVAL_END", status="success"),
    )
    playbook = controller(job, {"format": "mllog", "every_s": 5})
    playbook.until(r"epoch 1/2 · step 10/100 · loss 0\.5 · 1,234 samples/s|epoch 1/2 .*1,235 samples/s")
    controller.release("one")
    playbook.until(r"epoch 2/2 · step 60/100 · loss 0\.125 · accuracy 0\.975")
    assert playbook.process.poll() is None, "shown in the middle of the task"
    controller.release("two")
    assert playbook.wait() == 0
    assert "\x1b" not in playbook.output
    last = plain(playbook.shown[-1])
    assert re.fullmatch(
        r"run-1 · node-1 · ended with exit status 0 · epoch 2/2 · loss 0\.125 · accuracy 0\.975"
        r"( \(target [\d.]+\))? · T elapsed · log \d+\.?\d* (B|KiB)",
        last,
    )
    result = controller.result
    assert result["job"]["succeeded"] is True
    assert result["log_bytes"] == (controller.run / "log.txt").stat().st_size
    assert result["progress_lines"] == len(playbook.shown)
    assert result["progress"]["accuracy"] == 0.975
    assert result["elapsed_s"] > 0


def test_progress_comes_under_the_heading_of_its_own_task(controller: Controller) -> None:
    playbook = controller(script("echo one; sleep 1"), {"every_s": 1})
    assert playbook.wait() == 0, playbook.output
    heads = [line for line in playbook.lines if line.startswith(("TASK [", "run-1 · "))]
    begin = next(number for number, line in enumerate(heads) if line.startswith("TASK [Follow]"))
    of_job = [number for number, line in enumerate(heads) if line.startswith("run-1 · ")]
    assert of_job
    assert of_job == list(range(begin + 1, begin + 1 + len(of_job)))
    # The heading is printed once, and not again with the task's result.
    assert sum(line.startswith("TASK [Follow]") for line in heads) == 1


def test_every_action_that_shows_lines_gets_its_heading_early(root: Path) -> None:
    source = (root / "plugins" / "callback" / "rackproof_output.py").read_text()
    named = set(re.findall(r'"(rackproof_\w+)"', source))
    shows = {
        path.stem
        for path in (root / "plugins" / "action").glob("*.py")
        if re.search(r"show_line|bench_follow|bench_runtime", path.read_text())
    }
    assert shows == named - {"rackproof_output"}
    assert "stdout_callback = rackproof_output" in (root / "ansible.cfg").read_text().splitlines()


OTHERS = [version for version in ("3.8", "3.9", "3.13") if version in INTERPRETERS]
"""The other versions of Python that are installed. Without any, the test uses one of the system."""


@pytest.mark.parametrize("version", OTHERS or sorted(INTERPRETERS)[:1])
def test_a_node_with_another_python(controller: Controller, version: str) -> None:
    playbook = controller(script("echo $RACKPROOF_JOB_TOKEN; exit 3"), python=str(INTERPRETERS[version]))
    assert playbook.wait() == 0, playbook.output
    assert controller.result["job"]["exit_status"] == 3
    assert "TASK [Follow]" in playbook.output, "a job that ended badly is not a failure of this task"


@pytest.mark.parametrize("module", ["rackproof_job", "rackproof_facts", "rackproof_bench_follow"])
def test_modules_are_documented_and_compile_everywhere(
    controller: Controller, root: Path, module: str
) -> None:
    file = root / "plugins" / "modules" / f"{module}.py"
    for version, interpreter in INTERPRETERS.items():
        code = "import ast, sys; ast.parse(open(sys.argv[1]).read())"
        done = subprocess.run([interpreter, "-c", code, file], capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{version}: {done.stderr}"
    py_compile.compile(str(file), cfile=str(controller.folder / "compiled"), doraise=True)
    doc = subprocess.run(
        [Path(sys.executable).parent / "ansible-doc", "-t", "module", "--json", module],
        env=controller.environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    said = json.loads(doc.stdout)[module]
    assert said["doc"]["short_description"]
    assert said["examples"]
    assert said["return"]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT], ids=["killed", "Ctrl-C"])
def test_an_interrupted_playbook_started_again_follows_on(controller: Controller, number: int) -> None:
    job = script(
        f"echo run >>{controller.folder}/runs",
        event("progress", {"step": 1, "steps": 4, "phase": "training"}),
        controller.wait_for("go"),
        event("progress", {"step": 4, "steps": 4, "phase": "training"}),
        "exit 0",
    )
    first = controller(job, {"every_s": 1})
    first.until(r"step 1/4")
    pid = controller.state["pid"]
    first.signal(number)
    assert first.wait() != 0
    assert controller.alive()
    second = controller(job, {"every_s": 1})
    second.until(r"step 1/4")
    controller.release("go")
    assert second.wait() == 0, second.output
    assert (controller.folder / "runs").read_text() == "run\n"
    assert controller.result["job"]["pid"] == pid
    assert controller.result["job"]["succeeded"] is True
    assert re.search(r"^ok: \[node-1\]", second.output, re.MULTILINE), "the second start found the first job"


def test_a_playbook_started_after_the_end_returns_the_result(controller: Controller) -> None:
    job = script("exit 4")
    assert controller(job).wait() == 0
    again = controller(job)
    assert again.wait() == 0
    assert controller.result["job"]["exit_status"] == 4
    assert controller.result["polls"] == 1


@pytest.mark.parametrize(
    ("job", "ended_by"),
    [
        ({"argv": ["sh", "-c", "kill -9 $$"]}, "itself"),
        ({"argv": ["sleep", "60"], "timeout_s": 2}, "timeout"),
        ({"argv": ["sleep", "60"], "hang_s": 2}, "hang"),
    ],
)
def test_a_bad_end_is_reported_not_raised(controller: Controller, job: dict[str, Any], ended_by: str) -> None:
    playbook = controller(job)
    assert playbook.wait() == 0, playbook.output
    result = controller.result["job"]
    assert (result["ended_by"], result["succeeded"]) == (ended_by, False)
    assert result["message"] in playbook.shown[-1]


def test_a_supervisor_killed_while_followed(controller: Controller) -> None:
    playbook = controller(script("trap '' TERM; echo ready; while :; do sleep 1; done"), {"every_s": 1})
    playbook.until(r"elapsed")
    os.kill(controller.state["supervisor_pid"], signal.SIGKILL)
    assert playbook.wait() == 0, playbook.output
    assert controller.result["job"]["ended_by"] == "supervisor_died"
    assert controller.result["job"]["succeeded"] is False
    assert not controller.alive()


def test_a_lost_connection_is_waited_for(controller: Controller) -> None:
    job = script("echo ready", controller.wait_for("go"))
    playbook = controller(job, {"every_s": 1}, connection="flaky")
    playbook.until(r"elapsed")
    controller.release("lost")
    line = playbook.until(r"no answer for")
    assert line.endswith("trying again (the job continues): the cable is out")
    controller.release("go")
    until(lambda: controller.state["phase"] == "ended")
    (controller.folder / "lost").unlink()
    assert playbook.wait() == 0, playbook.output
    assert "answers again after" in playbook.output
    assert controller.result["job"]["succeeded"] is True


def test_a_connection_lost_for_good(controller: Controller) -> None:
    job = script("echo ready", controller.wait_for("go"))
    playbook = controller(job, {"every_s": 1, "patience_s": 2}, connection="flaky")
    playbook.until(r"elapsed")
    controller.release("lost")
    assert playbook.wait() == 2
    assert "gives no answer" in playbook.output
    assert "was left as it is" in playbook.output
    assert controller.alive(), "the job is untouched"


def test_a_job_whose_supervisor_does_nothing_is_given_up(controller: Controller) -> None:
    playbook = controller(
        {"argv": ["sleep", "60"], "timeout_s": 3, "grace_s": 0}, {"every_s": 1, "deadline_s": 1}
    )
    playbook.until(r"elapsed")
    os.kill(controller.state["supervisor_pid"], signal.SIGSTOP)
    assert playbook.wait() == 2
    assert "has not ended its job" in playbook.output


def test_a_job_that_talks_without_end_is_not_slowed_by_listening(controller: Controller) -> None:
    shout = "head -c 300000 /dev/zero | tr '\\0' x | fold -w 99"
    last = event("tracked_stats", {"train_loss": 0.25}, step=1)
    playbook = controller(script(f"for i in $(seq 100); do {shout}; sleep 0.1; done", last))
    assert playbook.wait() == 0, playbook.output
    result = controller.result
    assert result["log_bytes"] > 25_000_000
    assert result["polls"] < 16 + 40 + result["elapsed_s"], "the task polls at its own pace, not at the job's"
    assert result["progress"]["loss"] == 0.25, "the end is read in any case"


@pytest.mark.parametrize(
    ("follow", "part"),
    [
        ({"folder": "/no/such/folder"}, "no job was started in /no/such/folder"),
        ({"id": "run-2"}, "belongs to run 'run-1', not to 'run-2'"),
        ({"format": "mlog"}, "no log format is called 'mlog'"),
        ({"every": 3}, "Unsupported parameters"),
    ],
)
def test_what_cannot_be_followed(controller: Controller, follow: dict[str, Any], part: str) -> None:
    playbook = controller(follow=follow)
    assert playbook.wait() == 2
    assert part in playbook.output


def test_check_mode_follows_nothing(controller: Controller) -> None:
    playbook = controller(check=True)
    assert playbook.wait() == 0, playbook.output
    assert not controller.run.exists()
    assert controller.result["skipped"] is True


def test_silence_on_request(controller: Controller) -> None:
    playbook = controller(script("echo hello"), {"every_s": 0})
    assert playbook.wait() == 0
    assert playbook.shown == []
    assert controller.result["progress_lines"] == 0


def test_the_plugin_finds_the_package_in_its_checkout(root: Path) -> None:
    code = f"""
import importlib.util, sys
sys.meta_path = [one for one in sys.meta_path if "editable" not in repr(one).lower()]
sys.path = [one for one in sys.path if "{root}" not in one or "site-packages" in one]
try:
    import rackproof
    sys.exit("the package must not be importable before")
except ImportError:
    pass
spec = importlib.util.spec_from_file_location("follow", "{root}/plugins/action/rackproof_bench_follow.py")
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
import rackproof
print(rackproof.__file__)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd="/")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(root / "src" / "rackproof" / "__init__.py")


def test_an_interrupt_waits_until_a_line_is_through(root: Path) -> None:
    # Otherwise, the worker may end while it holds the lock of ansible-core's queue, and the playbook never
    # ends.
    code = """
import os, signal
from rackproof_ansible import bench_follow
said = []
signal.signal(signal.SIGINT, lambda *_: said.append("interrupted"))
def display(line):
    os.kill(os.getpid(), signal.SIGINT)
    said.append(line)
bench_follow.display.display = display
bench_follow.show_whole_line("step 1")
print(said)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=root)
    assert done.stdout.strip() == "['step 1', 'interrupted']", done.stderr
