"""Copying what a job left on a node to the run folder on the controller."""

from __future__ import annotations

import base64
import re
import shlex
from pathlib import Path

from ansible.errors import AnsibleError

from rackproof_ansible.action import NodeAction

_JOB_FILE = re.compile(r"config_[A-Za-z0-9_.-]{1,100}\.sh|run\.sub")


def fetch_job_files(action: NodeAction, remote: str, folder: Path) -> None:
    """Copy the config and the run script that a job was started with to a folder."""
    # One command for all of them; a file of 256 KiB or more is none that a job was started with.
    # -w0: base64 would break lines at 76 characters, and a file is one line here.
    command = (
        f"cd {shlex.quote(remote)} 2>/dev/null && for f in config_*.sh run.sub; do "
        '[ -f "$f" ] && [ "$(wc -c <"$f")" -lt 262144 ] && echo "$f $(base64 -w0 "$f")"; done; true'
    )
    folder.mkdir(parents=True, exist_ok=True)
    _, output, _ = action.run_command(command)
    for line in output.splitlines():
        name, _, data = line.strip().partition(" ")
        # The name comes from the node: it must not lead out of the folder.
        if not _JOB_FILE.fullmatch(name):
            continue
        try:
            (folder / name).write_bytes(base64.b64decode(data, validate=True))
        except (ValueError, OSError) as error:
            action.show_warning(f"{name} of the run could not be kept: {error}")


def fetch_log(action: NodeAction, remote: str, local: Path) -> None:
    """Copy a job's log, whole or not at all; without it the run is unproven."""
    local.parent.mkdir(parents=True, exist_ok=True)
    # Hidden files are never taken for logs: half a copy leaves the run unproven, not misread.
    draft = local.with_name(f".{local.name}.part")
    try:
        action.fetch_file(remote, draft)
        draft.replace(local)
    except (AnsibleError, OSError) as error:
        action.show_warning(f"the log {remote} could not be fetched: {error}")
