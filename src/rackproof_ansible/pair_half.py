"""Run one half of a pair on a drained node, because Slurm gives such a node no job.

The action ``rackproof_reimage_acceptance`` calls :func:`start_half` and later :func:`finish_half`. The half
runs in a folder and session of its own on the node. ``timeout`` on the node limits its time, so that it ends
even if the playbook was killed.
"""

from __future__ import annotations

import re
import shlex
import time

from ansible.errors import AnsibleActionFail

from rackproof.core.text import sanitize
from rackproof_ansible.action import NodeAction

_OUTPUT_BYTES = 4_000_000
"""Number of bytes that are read at the end of a half's output."""
# Names of folders come from a task's registered result. Nothing else may be removed on the node.
_FOLDER = re.compile(r"/[\w./-]*rackproof-night\.[\w.-]+")

# A half of a killed playbook would answer the partner, and hold the port. Another user can make a folder of
# that name, with a pipe in it that is read without an end.
_END_OLD_HALVES = """\
for old in "${TMPDIR:-/tmp}"/NAME*; do
  [ -O "$old" ] && [ ! -L "$old" ] || continue
  pid=$(cat "$old/pid" 2>/dev/null) && [ "$(readlink "/proc/$pid/cwd")" = "$old" ] && pkill -s "$pid"
  rm -rf "$old"
done; true"""


def start_half(action: NodeAction, script: str, limit_s: float) -> str:
    """Start the node's half in the background, and return its folder.

    Args:
        action: The action whose host is the node.
        script: The program of the half, which waits for its partner.
        limit_s: Seconds after which ``timeout`` ends it on the node.

    Raises:
        AnsibleActionFail: The node refuses a command.
    """
    name = shlex.quote(f"rackproof-night.{action.node}.")
    _run(action, _END_OLD_HALVES.replace("NAME", name))
    folder = _run(action, f"mktemp -d --tmpdir {name}XXXXXX").strip()
    action.write_file(f"{folder}/measure.sh", script)
    # rc is created by a rename, so that a poll never finds it empty.
    inner = (
        # The script chooses its part by SLURMD_NODENAME, which nothing sets outside a job. TMPDIR makes
        # sure that files of a half are removed with its folder.
        f"cd {folder} && echo $$ > pid; TMPDIR={folder} SLURMD_NODENAME={shlex.quote(action.node)} "
        f"timeout -k 10 {limit_s} bash measure.sh > out 2>&1; echo $? > new; mv new rc"
    )
    # Ansible's ssh opens a terminal, whose end stops processes that did not leave it.
    _run(action, f"cd / && trap '' HUP && (setsid sh -c {shlex.quote(inner)} </dev/null >/dev/null 2>&1 &)")
    return folder


def finish_half(action: NodeAction, folder: str, wait_s: float) -> tuple[str, str]:
    """Wait for the node's half, end it, and remove its folder. Return its output and exit status.

    The status is "" if the half did not end within ``wait_s``. Without a half, the output is "", too.

    Args:
        action: The action whose host is the node.
        folder: The result of :func:`start_half`, or "" if no half was started.
        wait_s: The longest time to wait in seconds, or 0 if there was no partner.

    Raises:
        AnsibleActionFail: The node refuses a command.
    """
    if not _FOLDER.fullmatch(folder):
        return "", ""
    end = time.monotonic() + wait_s
    while not (status := _run(action, f"cat {folder}/rc 2>/dev/null || true").strip()):
        if time.monotonic() > end:
            break
        time.sleep(1)
    output = _run(action, f"tail -c {_OUTPUT_BYTES} {folder}/out 2>/dev/null || true")
    # End a half that still waits for a partner, by its own session.
    _run(action, f"pkill -s $(cat {folder}/pid) >/dev/null 2>&1; rm -rf {folder}")
    return output, status


def _run(action: NodeAction, command: str) -> str:
    status, output, errors = action.run_command_of_playbook(command)
    if status != 0:
        raise AnsibleActionFail(sanitize(errors or output, 300) or f"exit status {status}")
    return output
