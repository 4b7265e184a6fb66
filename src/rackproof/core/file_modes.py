"""Restrict the files that Rackproof writes on the controller to its own user and group.

The commands of ``rackproof`` and the actions of the playbooks call :func:`hide_from_others` when they start.
The callback ``rackproof`` uses :func:`hidden_from_others`, because its process also writes files of Ansible.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

_OTHERS = 0o027
"""Bits that are removed from the mode of new files: writing by the group, and everything for other users."""


def hide_from_others() -> None:
    """Prevent other users from reading the files that this process writes.

    Files get at most mode 0640, and folders 0750, because records, logs and the history contain names of
    nodes, their programs and variables.
    """
    os.umask(os.umask(_OTHERS) | _OTHERS)


@contextmanager
def hidden_from_others() -> Iterator[None]:
    """Prevent other users from reading new files while the context lasts.

    Use this in a process that also writes files of other programs.
    """
    before = os.umask(_OTHERS)
    os.umask(before | _OTHERS)
    try:
        yield
    finally:
        os.umask(before)
