"""Run a playbook on this machine as an operator types it, for tests that check what it prints."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def play_on(inventory: Path, playbook: Path, root: Path, *options: str) -> str:
    """Run a playbook with the roles of a checkout, and return its output followed by its errors."""
    done = subprocess.run(
        [Path(sys.executable).with_name("ansible-playbook"), "-i", inventory, playbook, *options],
        cwd=root,
        env={**os.environ, "ANSIBLE_ROLES_PATH": str(root / "roles")},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout + done.stderr
