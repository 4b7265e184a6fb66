"""Set the modes of files that Rackproof writes on the controller: its user and group may read them, no one
else.
"""

from __future__ import annotations

import os

_OTHERS = 0o027


def hide_from_others() -> None:
    """Prevent other users from reading anything that this process writes, for any umask.

    Files are made 0640 and folders 0750 at most: records, logs and the history name nodes, their programs,
    and variables.
    """
    os.umask(os.umask(_OTHERS) | _OTHERS)
