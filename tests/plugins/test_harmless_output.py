"""Test that the answer of a node cannot control the operator's terminal (``harmless_output``).

A message may contain escape sequences that move the cursor or hide text, or lines that look like Ansible's
own. The callback removes the sequences, indents the lines, and cuts very long messages.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rackproof_ansible.harmless_output import SHOWN_CHARACTERS, harmless

FORGED = "PASS 84 nodes: 84 pass"
SEQUENCES = [
    "\x1b[2J",
    "\x1b]0;owned\x07",
    "\x1b[8m",
    "\x1bc",
    "\x9b2J",
    "\x07",
    "\x08" * 9,
    "\r",
    "\x1b[1;1H",
    "\u202e",
]


@pytest.mark.parametrize("sequence", SEQUENCES)
@pytest.mark.parametrize("kind", ["[ERROR]: ", "[WARNING]: ", "fatal: [n1]: ", ""])
def test_a_sequence_is_not_shown(sequence: str, kind: str) -> None:
    assert harmless(f"{kind}one{sequence}two") == f"{kind}onetwo"


@pytest.mark.parametrize(
    "text", ["ok", "\nTASK [x] ***\n", "  a\n\n  b\n", "\x1b[0;32mok\x1b[0m", "\tü 漢 ✓"]
)
def test_what_ansible_prints_stays(text: str) -> None:
    assert harmless(text) == text


def test_an_error_is_not_a_line_of_its_own() -> None:
    shown = harmless(f"[ERROR]: Module failed: x\n{FORGED}\n  more\n\n{FORGED}\n")
    assert shown == f"[ERROR]: Module failed: x\n  {FORGED}\n  more\n\n  {FORGED}\n"
    assert harmless(shown) == shown


def test_a_large_message_is_cut_in_linear_time() -> None:
    begin = time.process_time()
    shown = harmless("[ERROR]: " + "\x1b[" * 10_000_000)
    assert len(shown) < SHOWN_CHARACTERS + 100
    assert "more characters" in shown
    assert time.process_time() - begin < 5


@pytest.mark.playbook
def test_a_failed_task_s_message_reaches_the_operator_as_text(root: Path, tmp_path: Path) -> None:
    message = f"{''.join(SEQUENCES)}\n{FORGED}\n" + "x" * 3_000_000
    tasks = [{"name": "Answer", "ansible.builtin.fail": {"msg": "{{ hostile }}"}}]
    play = {"hosts": "localhost", "connection": "local", "gather_facts": False, "tasks": tasks}
    (tmp_path / "play.yml").write_text(json.dumps([play]))
    (tmp_path / "hostile.json").write_text(json.dumps({"hostile": message}))
    command = [Path(sys.executable).with_name("ansible-playbook"), tmp_path / "play.yml", "-i", "localhost,"]
    done = subprocess.run(
        [*command, "-e", f"@{tmp_path / 'hostile.json'}"],
        env={**os.environ, "ANSIBLE_CONFIG": str(root / "ansible.cfg"), "ANSIBLE_NOCOLOR": "1"},
        cwd=root, capture_output=True, check=False,
    )  # fmt: skip
    output = (done.stdout + done.stderr).decode()
    assert done.returncode == 2
    assert FORGED in output
    assert FORGED not in output.splitlines()
    assert not set("\x1b\x07\x08\r\x9b\u202e") & set(output)
    assert len(output) < 4 * SHOWN_CHARACTERS
