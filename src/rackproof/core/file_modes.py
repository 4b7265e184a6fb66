"""Modes of what Rackproof writes on the controller: its user and group may read it, no one else may."""

from __future__ import annotations

import os

_OTHERS = 0o027


def hide_from_others() -> None:
    """Prevent other users from reading anything that this process writes, whatever its umask was.

    Files are made 0640 and folders 0750 at most: records, logs and the history name nodes, what runs on them,
    and with which variables.
    """
    os.umask(os.umask(_OTHERS) | _OTHERS)
