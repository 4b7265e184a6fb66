"""Test the action ``rackproof_bench_runtime`` in a real playbook.

A runtime is a workload's Python environment, for example with PyTorch. The action finds it on the node, or
starts a job that makes it with make_runtime.py, and shows the progress of the downloads. Here,
make_runtime.py is a shell script.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from .conftest import Controller, Playbook

pytestmark = pytest.mark.playbook

PLAY = """
- hosts: all
  gather_facts: false
  tasks:
    - name: Prepare
      rackproof_bench_runtime: {task}
      register: runtime
    - name: Show
      ansible.builtin.debug:
        msg: "changed {{{{ runtime.changed }}}} python {{{{ runtime.python | default('none') }}}}"
"""
REPORT = ':::RACKPROOF {"phase": "fetching small", "bytes": 1200000000, "of_bytes": 7400000000}'
ANSWER = '{"changed": true, "python": "/env/bin/python"}'


def prepare(controller: Controller, script: str, *options: str) -> Playbook:
    """Start a playbook with this shell script as make_runtime.py. With --found ($2), it must only search."""
    workloads = controller.folder / "workloads"
    workloads.mkdir()
    (workloads / "make_runtime.py").write_text(script)
    task = {
        "name": "small",
        "python": "/bin/sh",
        "workloads": str(workloads),
        "home": str(controller.folder),
        "arguments": ["--folder=x y"],
        "every_s": 1,
    }
    play = controller.folder / "play.yml"
    play.write_text(PLAY.format(task=json.dumps(task)))
    program = str(Path(sys.executable).parent / "ansible-playbook")
    argv = [program, "-i", controller.inventory(), str(play), *options]
    controller.playbooks.append(Playbook(argv, controller.environment()))
    return controller.playbooks[-1]


def test_an_existing_runtime_starts_no_job(controller: Controller) -> None:
    playbook = prepare(controller, f"[ \"$2\" = --found ] && echo '{ANSWER}'".replace("true", "false"))
    assert playbook.wait() == 0, playbook.output
    assert "changed False python /env/bin/python" in playbook.output
    assert not (controller.folder / "runs").exists()


def test_a_missing_runtime_is_made_and_the_download_is_shown(controller: Controller) -> None:
    script = f"[ \"$2\" = --found ] && exit 3\necho '{REPORT}'; sleep 2; echo '{ANSWER}'"
    playbook = prepare(controller, script)
    assert playbook.wait() == 0, playbook.output
    shown = [line for line in playbook.lines if " · fetching small · 1.2 of about 7.4 GB" in line]
    assert shown
    assert shown[0].startswith("runtime-small-")
    assert playbook.lines.index(shown[0]) > playbook.lines.index(
        next(line for line in playbook.lines if line.startswith("TASK [Prepare]"))
    )
    assert "changed True python /env/bin/python" in playbook.output
    # The action removed the folder of the job.
    assert list((controller.folder / "runs").iterdir()) == []


@pytest.mark.parametrize(
    ("script", "words"),
    [
        (
            '[ "$2" = --found ] && exit 3\necho "make_runtime: the disk is full" >&2; exit 1',
            "the disk is full",
        ),
        ("echo 'make_runtime: not a Python' >&2; exit 1", "make_runtime: not a Python"),
        ('[ "$2" = --found ] && exit 3\necho half of it', "ended without an answer: half of it"),
    ],
)
def test_the_message_says_why_a_runtime_cannot_be_made(
    controller: Controller, script: str, words: str
) -> None:
    playbook = prepare(controller, script)
    assert playbook.wait() == 2
    assert words in playbook.output.replace("\n", " ")


def test_check_mode_starts_no_program(controller: Controller) -> None:
    playbook = prepare(controller, f"touch {controller.folder}/ran; exit 3", "--check")
    assert playbook.wait() == 0, playbook.output
    assert not (controller.folder / "ran").exists()
