"""Provide helpers for tests on a running test rack: names of hosts, playbooks, and ssh between nodes."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

Done = subprocess.CompletedProcess[str]
Command = Callable[..., Done]

CONTROLLER, SERVICES = "gb300-r01-ctl", "gb300-r01-svc"
SHARED = "/shared/experiments"
"""The folder for tests on the file system that all nodes share."""
NAMED = [name for name in os.environ.get("RACK_TEST_NODES", "").split(",") if name]
"""Nodes for trainings on a rack that other users share. The rack is used as it is."""
PROVISIONED = NAMED or ["gb300-r01-n01", "gb300-r01-n02"]
"""Nodes that the tests of provision.yml leave provisioned. Scenarios may use all others."""


def start(
    root: Path,
    playbook: str,
    nodes: Sequence[str],
    *words: str,
    given: Mapping[str, Any] | None = None,
    **environment: str,
) -> subprocess.Popen[str]:
    """Start a playbook on nodes as an operator does, in a separate process group."""
    variables = ["-e", json.dumps(given)] if given else []
    return subprocess.Popen(
        [
            Path(sys.executable).with_name("ansible-playbook"),
            playbook,
            "-l",
            ",".join(nodes),
            *variables,
            *words,
        ],
        cwd=root,
        env=os.environ | {"ANSIBLE_NOCOLOR": "1", "COLUMNS": "400", "PYTHONUNBUFFERED": "1"} | environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def play(
    root: Path,
    playbook: str,
    nodes: Sequence[str],
    *words: str,
    given: Mapping[str, Any] | None = None,
    timeout: float = 1500,
    **environment: str,
) -> Done:
    """Run a playbook to its end. All of its output is in stdout."""
    process = start(root, playbook, nodes, *words, given=given, **environment)
    try:
        said, _ = process.communicate(timeout=timeout)
    finally:
        # A playbook that goes on would keep its claim on the nodes, and the next tests would fail.
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    return subprocess.CompletedProcess(process.args, process.returncode, said, "")


def changes(done: Done, node: str) -> int:
    """Return the number of tasks of a playbook that changed a node."""
    found = re.search(rf"^{node}\s+: ok=\d+\s+changed=(\d+)", done.stdout, re.MULTILINE)
    assert found, done.stdout
    return int(found[1])


def state_in_slurm(rack: Command, node: str) -> str:
    """Return a node's state in Slurm and its reason, as sinfo prints them."""
    return rack(CONTROLLER, f"sinfo --noheader --Node --nodes {node} --format '%T %E'").stdout.strip()


def trust(ssh: Command, mark: str, nodes: Sequence[str]) -> None:
    """Let root log in by ssh from the first node to all of them, with a new key whose comment is ``mark``."""
    hosts = " ".join(nodes)
    made = ssh(
        nodes[0],
        f"""
        set -e; cd /root/.ssh; rm -f {mark}*; ssh-keygen -q -t ed25519 -N '' -C {mark} -f {mark}
        ssh-keyscan -t ed25519 {hosts} > {mark}.hosts 2> /dev/null
        printf '# {mark}\\nHost {hosts}\\n  IdentityFile ~/.ssh/{mark}\\n' >> config
        printf '  UserKnownHostsFile ~/.ssh/{mark}.hosts\\n# end\\n' >> config
        cat {mark}.pub
        """,
    )
    key = made.stdout.strip()
    assert key.endswith(mark), made.stdout + made.stderr
    for node in nodes:
        assert ssh(node, f"echo '{key}' >> /root/.ssh/authorized_keys").returncode == 0


def distrust(ssh: Command, mark: str, nodes: Sequence[str]) -> None:
    """Remove the key and the settings that :func:`trust` added."""
    for node in nodes:
        done = ssh(
            node,
            f"""
            rm -f /root/.ssh/{mark}*; cd /root/.ssh
            [ ! -f config ] || sed -i '/^# {mark}$/,/^# end$/d' config; sed -i '/ {mark}$/d' authorized_keys
            """,
        )
        assert done.returncode == 0, done.stderr
