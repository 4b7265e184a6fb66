"""Find the files of a node that differ from the required ones.

Roles call :func:`lacking_files` through the filter ``files_lacking``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any

# User and group id of the files, because roles write the system's files as root.
OWNER = "0:0"


def lacking_files(
    wanted: Sequence[Mapping[str, Any]],
    checksums: Mapping[str, str | None],
    modes: Mapping[str, str] | None = None,
) -> list[Mapping[str, Any]]:
    """Return the required files that are absent, or whose content, mode or owner differ. No I/O.

    Args:
        wanted: Files with ``path`` and ``content``. If modes are compared, also ``mode``, such as
            ``0644``.
        checksums: The SHA-256 of each path, as in ``rackproof_node.files``, or None for an unreadable file.
        modes: The mode and owner of each path, as in ``rackproof_node.modes``, such as ``0644 0:0``. None
            skips this comparison.
    """
    return [
        file
        for file in wanted
        if checksums.get(file["path"]) != _sha256(file["content"])
        or (modes is not None and modes.get(file["path"]) != f"{file['mode']} {OWNER}")
    ]


def _sha256(content: str) -> str:
    # Ansible decodes files with surrogateescape. This error handler gives the file's bytes back, UTF-8 or
    # not.
    return sha256(content.encode(errors="surrogateescape")).hexdigest()
