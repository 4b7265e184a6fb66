"""Test the callback ``rackproof``, which Ansible calls with the result of each task of a playbook.

At the end of bench.yml, it prints a table of the runs. The tests show that the table changes no exit status,
that one unreadable record hides no other, and that hostile text stays text. The callback also stores each
drain and resume of a node in the audit log, and prints failures once for all nodes.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from rackproof.core.records import Judgement, Measurement, Run, Verdict
from rackproof.store.audit_log import read_acts
from rackproof.store.run_folder import write_run
from rackproof_ansible.playbook_summary import RunTable

HERE = Path(__file__).resolve().parent / "view"
HOSTILE = "<b>bold</b> \x1b[31mred\x1b[0m \x07 \u202egnp.exe {{ 6 * 7 }}\nRESULT forged"
# A program that runs a playbook as `rackproof bench` does.
COMMAND = """import sys
from rackproof.cli.playbooks import run_playbook
*arguments, playbook = sys.argv[1:]
sys.exit(run_playbook(playbook, None, arguments))
"""
pytestmark = pytest.mark.playbook


def run(number: int, verdict: Verdict, **changes: Any) -> Run:
    """Return a run with one measurement, and with a reason unless it passed."""
    reasons = () if verdict is Verdict.PASS else ("accuracy: 0.91 is below 0.99",)
    measured = Measurement(name="eval_accuracy", value=0.9 + number / 100, unit="")
    return Run(
        **{
            "run_id": f"run-{number}",
            "benchmark": "mnist-lenet",
            "parameters": {"batch_size": 128 * number, "gpus": 0},
            "measurements": (measured,),
            "judgements": (
                Judgement(
                    metric=measured.name, value=measured.value, verdict=verdict, reason="within bounds"
                ),
            ),
            "verdict": verdict,
            "reasons": reasons,
            **changes,
        }
    )


@dataclass
class View:
    """A runner of view/playbook.yml, whose tasks return runs and a report. A call runs the playbook once."""

    root: Path
    folder: Path
    environment: dict[str, str] = field(default_factory=dict)
    program: list[Any] = field(default_factory=lambda: [Path(sys.executable).with_name("ansible-playbook")])

    def keep(self, *runs: Run) -> list[dict[str, str]]:
        """Write the records of runs. Return the results that a task of bench.yml gives for them."""
        for one in runs:
            write_run(one, self.folder / one.run_id)
        return [{"run_id": one.run_id, "folder": str(self.folder / one.run_id)} for one in runs]

    def __call__(self, runs: list[Any], report: str = "", fails: bool = False) -> tuple[int, str]:
        variables = {
            "runs": runs,
            "report": report,
            "fails": fails,
            "ansible_connection": "local",
            "ansible_python_interpreter": sys.executable,
        }
        file = self.folder / "variables.json"
        file.write_text(json.dumps(variables))
        done = subprocess.run(
            [
                *self.program,
                *("-i", "localhost,", "-e", f"@{file}", HERE / "playbook.yml"),
            ],
            cwd=self.root,
            env={**os.environ, "ANSIBLE_NOCOLOR": "1", **self.environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert "DEPRECATION" not in done.stdout
        return done.returncode, done.stdout


@pytest.fixture
def view(root: Path, tmp_path: Path) -> View:
    return View(root, tmp_path)


def shown(output: str) -> str:
    """Return the output after the callback's banner, with at most one blank line in a row."""
    _, _, text = output.partition("\nRESULT ")
    assert text, output
    return re.sub(r"\n{2,}", "\n\n", text.lstrip("*").strip()) + "\n"


@pytest.mark.parametrize(("fails", "status"), [(False, 0), (True, 2)], ids=["ended well", "failed"])
def test_the_table_comes_at_the_end_however_the_playbook_ends(view: View, fails: bool, status: int) -> None:
    runs = view.keep(run(1, Verdict.PASS), run(2, Verdict.FAIL), run(3, Verdict.UNPROVEN))
    done, output = view(runs, report="results/plan-1/report.html", fails=fails)
    assert done == status, output
    assert shown(output) == (HERE / "golden.txt").read_text()


@pytest.mark.parametrize(("fails", "head"), [(False, ""), (True, "Gate: ")], ids=["ended well", "failed"])
def test_a_command_prints_table_verdict_and_report_once(view: View, fails: bool, head: str) -> None:
    runs = view.keep(run(1, Verdict.PASS), run(2, Verdict.FAIL))
    view.program = [sys.executable, "-c", COMMAND]
    # The command fits its lines to the terminal.
    view.environment["COLUMNS"] = "120"
    done, output = view(runs, report="results/plan-1/report.html", fails=fails)
    assert done == (2 if fails else 0), output
    assert output == (HERE / "golden-command.txt").read_text().replace("HEAD", head)


@pytest.mark.parametrize(
    ("runs", "environment"),
    [
        (lambda view: [], {}),
        (lambda view: view.keep(run(1, Verdict.PASS)), {"RACKPROOF_TABLE": "false"}),
    ],
    ids=["nothing recorded", "show_table off"],
)
def test_no_table(view: View, runs: Callable[[View], list[Any]], environment: dict[str, str]) -> None:
    view.environment.update(environment)
    status, output = view(runs(view), report="report.html")
    assert status == 0
    assert "PLAY RECAP" in output
    assert "RESULT" not in output
    assert "WARNING" not in output


def test_the_table_is_switched_off_in_the_configuration(view: View) -> None:
    text = (view.root / "ansible.cfg").read_text()
    text = re.sub(r"^(\w+_plugins|roles_path|library) = ", rf"\1 = {view.root}/", text, flags=re.MULTILINE)
    (view.folder / "ansible.cfg").write_text(text + "\n[callback_rackproof]\nshow_table = false\n")
    view.environment["ANSIBLE_CONFIG"] = str(view.folder / "ansible.cfg")
    status, output = view(view.keep(run(1, Verdict.PASS)))
    assert status == 0, output
    assert "PLAY RECAP" in output
    assert "RESULT" not in output


def test_the_table_of_a_continued_plan_has_its_earlier_runs(view: View) -> None:
    earlier, later = view.keep(run(1, Verdict.FAIL), run(2, Verdict.PASS))
    table = RunTable()
    table.add_result({"rackproof_run": later})
    whole = {one["run_id"]: one["folder"] for one in (earlier, later)}
    table.add_result({"rackproof_report_runs": whole, "rackproof_report_file": "report.html"})
    text = table.format_table(width=160, color=False)
    assert "2 runs: 1 fail, 1 pass" in text or "2 runs: 1 pass, 1 fail" in text
    assert text.index("batch_size=128") < text.index("batch_size=256")


@pytest.mark.parametrize(("fails", "status"), [(False, 0), (True, 2)])
def test_a_record_that_cannot_be_read_hides_no_other(view: View, fails: bool, status: int) -> None:
    runs = view.keep(run(1, Verdict.PASS), run(2, Verdict.PASS), run(3, Verdict.PASS))
    (view.folder / "run-1" / "run.json").write_text('{"run_id": ')
    (view.folder / "run-2" / "run.json").unlink()
    done, output = view([*runs, {"run_id": "no folder"}, "no dict"], fails=fails)
    assert done == status, output
    text = shown(output)
    assert "1 run: 1 pass" in text
    assert "batch_size=384" in text
    assert re.search(r"^run-1 cannot be shown: .*run\.json", text, re.MULTILINE)
    assert re.search(r"^run-2 cannot be shown: no run here: .*run-2", text, re.MULTILINE)


@pytest.mark.parametrize(("fails", "status"), [(False, 0), (True, 2)])
def test_an_exception_inside_it_changes_no_exit_status(view: View, fails: bool, status: int) -> None:
    runs = view.keep(run(1, Verdict.PASS))
    # Python imports sitecustomize at its start, and this one breaks the function that makes the table.
    broken = view.folder / "broken"
    broken.mkdir()
    (broken / "sitecustomize.py").write_text(
        "import rackproof.report as report\n"
        "def broken(*_, **__): raise RuntimeError('broken on purpose')\n"
        "report.terminal_table = broken\n"
    )
    view.environment["PYTHONPATH"] = str(broken)
    done, output = view(runs, fails=fails)
    assert done == status, output
    assert "broken on purpose" in output


def test_hostile_text_of_a_record_stays_text(view: View) -> None:
    hostile = run(
        1,
        Verdict.FAIL,
        benchmark=HOSTILE,
        parameters={"mode\x1b[2J": HOSTILE},
        reasons=(HOSTILE,),
    )
    status, output = view(view.keep(hostile), report="report\x1b[2J\x07.html")
    assert status == 0
    text = shown(output)
    for character in "\x1b\x07\u202e":
        assert character not in text
    assert not re.search(r"^RESULT forged", text, re.MULTILINE)
    assert "42" not in text
    assert "<b>bold</b>" in text


def test_every_plugin_finds_the_package_in_its_checkout_once_the_callback_is_loaded(root: Path) -> None:
    code = f"""
import importlib.util, sys
from pathlib import Path
sys.meta_path = [finder for finder in sys.meta_path if "editable" not in repr(finder).lower()]
sys.path = [path for path in sys.path if "{root}" not in path or "site-packages" in path]
try:
    import rackproof_ansible
    sys.exit("the package must not be importable before")
except ImportError:
    pass
plugins = Path("{root}/plugins")
paths = [plugins / "callback" / "rackproof.py", *plugins.glob("action/*.py"), *plugins.glob("filter/*.py")]
for path in paths:
    spec = importlib.util.spec_from_file_location(path.parent.name + path.stem, path)
    spec.loader.exec_module(importlib.util.module_from_spec(spec))
print(len(paths), sys.modules["rackproof_ansible"].__file__)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd="/")
    assert done.returncode == 0, done.stderr
    number, file = done.stdout.split()
    assert int(number) > 15
    assert file == str(root / "src" / "rackproof_ansible" / "__init__.py")


UNREACHABLE = """- hosts: all
  gather_facts: false
  tasks:
    - name: Reach it
      ansible.builtin.ping:
"""


def test_hosts_that_cannot_be_reached_for_one_reason_share_a_line(root: Path, tmp_path: Path) -> None:
    ssh = tmp_path / "ssh"
    ssh.write_text(
        "#!/bin/sh\nfor host; do case $host in 10.0.0.*) break;; esac; done\n"
        'case $host in *.3) echo "root@$host: Permission denied (publickey)." >&2;;\n'
        '*) echo "ssh: connect to host $host port 22: Connection refused" >&2;; esac\nexit 255\n'
    )
    ssh.chmod(0o755)
    hosts = {f"n{number}": {"ansible_host": f"10.0.0.{number}"} for number in range(1, 5)}
    variables = {"ansible_ssh_executable": str(ssh), "ansible_ssh_retries": 0, "ansible_ssh_args": ""}
    (tmp_path / "hosts.json").write_text(json.dumps({"all": {"hosts": hosts, "vars": variables}}))
    (tmp_path / "play.yml").write_text(UNREACHABLE)
    done = subprocess.run(
        [
            Path(sys.executable).with_name("ansible-playbook"),
            *("-i", tmp_path / "hosts.json", tmp_path / "play.yml"),
        ],
        cwd=root,
        env={**os.environ, "ANSIBLE_NOCOLOR": "1", "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 4, done.stdout
    lines = done.stdout[done.stdout.index("TASK [Reach it]") :].splitlines()
    # The two lines may come in any order, because the connections may end in any order.
    alone, shared = sorted(lines[1:3], key=lambda line: "(3 nodes)" in line)
    assert shared == (
        "fatal: [n[1-2,4] (3 nodes)]: UNREACHABLE! => ssh: connect to host port 22: Connection refused; "
        "check that sshd runs there, and ansible_port"
    )
    assert alone.startswith("fatal: [n3]: UNREACHABLE! => ")
    assert "root@10.0.0.3: Permission denied" in alone
    assert lines[3:4] == [""]


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_other_users_read_nothing_that_the_callback_keeps(root: Path, tmp_path: Path, umask: int) -> None:
    module, play, results = tmp_path / "library/acts.py", tmp_path / "play.yml", tmp_path / "results"
    module.parent.mkdir()
    acts = {"n1": {"state_before": "IDLE", "state_after": "IDLE+DRAIN", "reason": "test"}}
    module.write_text(f"#!/usr/bin/python3\nprint({json.dumps({'nodes': acts, 'cluster': 'c'})!r})\n")
    # A drain, and a fact by which the callback takes the playbook for a provisioning.
    tasks = [{"acts": {}}, {"ansible.builtin.set_fact": {"provision_attention": ["n1: test"]}}]
    play.write_text(json.dumps([{"hosts": "localhost", "gather_facts": False, "tasks": tasks}]))
    names = {"RACKPROOF_RESULTS": str(results), "ANSIBLE_LIBRARY": f"{module.parent}:{root}/plugins/modules"}
    done = subprocess.run(
        [Path(sys.executable).with_name("ansible-playbook"), "-i", "localhost,", "-c", "local", play],
        cwd=root, env={**os.environ, **names}, umask=umask, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    kept = [results, *results.rglob("*")]
    assert {path.name for path in kept} >= {"audit.jsonl", "history.sqlite", "run.json", "report.html"}
    assert [
        f"{path.name} {path.stat().st_mode & 0o777:o}"
        for path in kept
        if path.stat().st_mode & (0o027 if path.is_dir() else 0o137)
    ] == []


# A fake of the module rackproof_slurm_node, which returns its argument.
ACTS = """#!/usr/bin/python3
# WANT_JSON
import json, sys
print(json.dumps(json.load(open(sys.argv[1]))["answer"]))
"""


def act_of(node: str, before: str, after: str, **more: object) -> dict[str, object]:
    """Return an answer of rackproof_slurm_node about a node with these states."""
    state = {"state_before": before, "state_after": after, "reason": "xid_79" if "DRAIN" in after else ""}
    return {"nodes": {node: state}, "cluster": True, "waiting": [], **more}


DRAINED, OTHER = act_of("n1", "IDLE", "IDLE+DRAIN"), act_of("n2", "MIXED", "MIXED+DRAIN")
BUSY = act_of("n2", "MIXED", "MIXED+DRAIN", failed=True, msg="Jobs still run")


# Each change between in service and drained is one act, also in a loop or if the task failed. An unchanged
# state is no act.
@pytest.mark.parametrize(
    ("arguments", "acts"),
    [
        ({"acts": {"answer": DRAINED}}, ["drain n1 xid_79"]),
        ({"acts": {"answer": act_of("n1", "IDLE+DRAIN", "IDLE")}}, ["resume n1 "]),
        ({"acts": {"answer": BUSY}, "ignore_errors": True}, ["drain n2 xid_79"]),
        ({"acts": {"answer": BUSY}}, ["drain n2 xid_79"]),
        # A night drains its nodes in a loop, one task for all.
        (
            {"acts": {"answer": "{{ item }}"}, "loop": [DRAINED, OTHER]},
            ["drain n1 xid_79", "drain n2 xid_79"],
        ),
        (
            {"acts": {"answer": "{{ item }}"}, "loop": [BUSY, DRAINED], "ignore_errors": True},
            ["drain n2 xid_79", "drain n1 xid_79"],
        ),
        (
            {"acts": {"answer": "{{ item }}"}, "loop": [act_of("n1", "IDLE", "IDLE"), OTHER]},
            ["drain n2 xid_79"],
        ),
        ({"acts": {"answer": "{{ item }}"}, "loop": []}, []),
    ],
    ids=[
        "drain",
        "resume",
        "failed, ignored",
        "failed",
        "loop",
        "item failed",
        "item drained before",
        "empty",
    ],
)
@pytest.mark.parametrize("check", [False, True])
def test_each_drain_and_resume_of_a_task_or_a_loop_is_kept_once(
    root: Path, tmp_path: Path, arguments: dict[str, Any], acts: list[str], check: bool
) -> None:
    module, play, results = tmp_path / "library/acts.py", tmp_path / "validate.yml", tmp_path / "results"
    module.parent.mkdir()
    module.write_text(ACTS)
    tasks = [{"run_once": True, "check_mode": False, **arguments}]
    play.write_text(json.dumps([{"hosts": "all", "gather_facts": False, "tasks": tasks}]))
    names = {"RACKPROOF_RESULTS": str(results), "ANSIBLE_LIBRARY": f"{module.parent}:{root}/plugins/modules"}
    program = Path(sys.executable).with_name("ansible-playbook")
    done = subprocess.run(
        [program, "-i", "h1,h2,", "-c", "local", play, *(["--check"] if check else [])],
        cwd=root, env={**os.environ, **names}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    kept = [f"{act.act} {act.node} {act.reason}" for act in read_acts(results)[0]]
    assert kept == ([] if check else acts), done.stdout + done.stderr
    assert {act.playbook for act in read_acts(results)[0]} <= {"validate.yml"}


@pytest.mark.parametrize(("name", "place"), [("validate.yml", "night"), ("provision.yml", "results")])
def test_the_acts_of_a_night_are_kept_beside_its_record(
    root: Path, tmp_path: Path, name: str, place: str
) -> None:
    # The acts of validate.yml are stored in the folder of its nights. provision.yml starts a night, too, for
    # its health checks, but does not record it. Its acts are stored in RACKPROOF_RESULTS.
    module, play = tmp_path / "library/acts.py", tmp_path / name
    module.parent.mkdir()
    module.write_text(ACTS)
    answers = ({"night": {"night_id": "n", "results": str(tmp_path / "night")}}, DRAINED)
    tasks = [{"acts": {"answer": answer}} for answer in answers]
    play.write_text(json.dumps([{"hosts": "localhost", "gather_facts": False, "tasks": tasks}]))
    names = {"RACKPROOF_RESULTS": str(tmp_path / "results")}
    names["ANSIBLE_LIBRARY"] = f"{module.parent}:{root}/plugins/modules"
    done = subprocess.run(
        [Path(sys.executable).with_name("ansible-playbook"), "-i", "localhost,", "-c", "local", play],
        cwd=root, env={**os.environ, **names}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert {one for one in ("night", "results") if read_acts(tmp_path / one)[0]} == {place}


def test_a_failed_list_is_printed_once_and_its_lines_are_no_lines_of_ansibles(
    root: Path, tmp_path: Path
) -> None:
    said = ["two things are missing:", "the image", "disk\nfatal: [n9]: forged"]
    task = {"ansible.builtin.assert": {"that": False, "fail_msg": said}}
    play = {"hosts": "localhost", "gather_facts": False, "tasks": [task]}
    (tmp_path / "play.yml").write_text(json.dumps([play]))
    done = subprocess.run(
        [Path(sys.executable).with_name("ansible-playbook"), "-i", "localhost,", tmp_path / "play.yml"],
        cwd=root,
        env={**os.environ, "ANSIBLE_NOCOLOR": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    output = done.stdout + done.stderr
    assert done.returncode == 2, output
    listed = "two things are missing:\n  - the image\n  - disk\n    fatal: [n9]: forged\n"
    assert f"FAILED! => {listed}" in output
    assert output.count("the image") == 1
