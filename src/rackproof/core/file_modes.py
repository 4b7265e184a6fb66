"""Restrict the files that Rackproof writes on the controller to its own user and group."""

from __future__ import annotations

import os

_OTHERS = 0o027


def hide_from_others() -> None:
    """Prevent other users from reading the files that this process writes.

    Files get at most mode 0640, and folders 0750, because records, logs and the history contain names of
    nodes, their programs and variables.
    """
    os.umask(os.umask(_OTHERS) | _OTHERS)
