"""Find the files of a node that differ from the required ones, and units that started before a file changed.

Roles call :func:`lacking_files` and :func:`outdated_units` through the filters ``files_lacking`` and
``units_outdated``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any

# User and group id of the required files, because roles write these files as root.
OWNER = "0:0"


def lacking_files(
    wanted: Sequence[Mapping[str, Any]],
    checksums: Mapping[str, str | None],
    modes: Mapping[str, str] | None = None,
) -> list[Mapping[str, Any]]:
    """Return the required files that are absent, or whose content, mode or owner differ.

    The function does no I/O.

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


def outdated_units(
    files: Mapping[str, Sequence[str]], starts: Mapping[str, float], changed_at: Mapping[str, float]
) -> list[str]:
    """Return the units that started before one of their files changed, and use its old content.

    A playbook that ends between the change of a file and the restart of its unit leaves such a unit. The next
    playbook finds the file as wanted, and would not restart the unit. The function does no I/O.

    Args:
        files: The files that each unit reads when it starts, by the unit's name.
        starts: When each unit last became active, in seconds, as in ``rackproof_node.unit_starts``. A unit
            that was never active is not outdated.
        changed_at: When each file changed, in seconds, as in ``rackproof_node.changed_at``.
    """
    return [
        unit
        for unit, paths in files.items()
        if unit in starts and any(changed_at.get(path, starts[unit]) > starts[unit] for path in paths)
    ]


def _sha256(content: str) -> str:
    # Ansible decodes files with surrogateescape. This error handler gives the file's bytes back, UTF-8 or
    # not.
    return sha256(content.encode(errors="surrogateescape")).hexdigest()
