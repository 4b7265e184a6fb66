"""Limit the answer of a node to one command over ssh.

The callback ``rackproof`` calls :func:`bound_answers` once. Ansible collects an answer of any size, and
copies all of it with each part that arrives. An answer of 200 MB took 100 s and up to 1.8 GB of memory. An
endless answer continued until the task's time limit.
"""

from __future__ import annotations

import functools
import subprocess
from typing import Any

from ansible.errors import AnsibleError
from ansible.plugins.action import ActionBase
from ansible.plugins.connection import ssh

MOST_BYTES = 64 << 20
"""Largest number of bytes of an answer's output, and of its error output. The facts of a large node have less
than 1 MB."""


class _BoundedPipe:
    """The reading end of a pipe, which kills the process and raises AnsibleError after :data:`MOST_BYTES`."""

    def __init__(self, pipe: Any, process: subprocess.Popen[bytes]) -> None:
        self._pipe = pipe
        self._process = process
        self._left = MOST_BYTES

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pipe, name)

    def read(self, size: int = -1) -> Any:
        data = self._pipe.read(size)
        self._left -= len(data or b"")
        if self._left < 0:
            self._process.kill()
            raise AnsibleError(
                f"it answered a command with more than {MOST_BYTES >> 20} MiB, which no healthy node does"
            )
        return data


class _BoundedProcess(subprocess.Popen[bytes]):
    """A program of OpenSSH that runs a command on a node."""

    is_command = False
    """True if the next program runs a command. Programs that copy files are not limited."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        if _BoundedProcess.is_command:
            pipes: list[Any] = [pipe and _BoundedPipe(pipe, self) for pipe in (self.stdout, self.stderr)]
            self.stdout, self.stderr = pipes


class _Subprocess:
    """The module ``subprocess`` as Ansible's ssh connection sees it."""

    Popen = _BoundedProcess

    def __getattr__(self, name: str) -> Any:
        return getattr(subprocess, name)


def bound_answers() -> None:
    """Limit the answers to commands and modules in this process and its workers."""
    original = ActionBase._low_level_execute_command
    if hasattr(original, "__wrapped_by_rackproof__"):
        return

    @functools.wraps(original)
    def execute(self: ActionBase, *args: Any, **options: Any) -> Any:
        _BoundedProcess.is_command = True
        try:
            return original(self, *args, **options)
        finally:
            _BoundedProcess.is_command = False

    execute.__wrapped_by_rackproof__ = True  # type: ignore[attr-defined]
    ActionBase._low_level_execute_command = execute
    ssh.subprocess = _Subprocess()
