"""Find the files of a node that differ from the wanted ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any

# Roles write the system's files as root.
OWNER = "0:0"


def lacking_files(
    wanted: Sequence[Mapping[str, Any]],
    checksums: Mapping[str, str | None],
    modes: Mapping[str, str] | None = None,
) -> list[Mapping[str, Any]]:
    """Return the wanted files that are absent, have other content, or another mode or owner. No I/O.

    Args:
        wanted: Files of ``path`` and ``content``, with modes of ``mode`` too, as in ``0644``.
        checksums: By path the SHA-256, as in ``rackproof_node.files``; None for an unreadable file.
        modes: By path the mode and owner, as in ``rackproof_node.modes``; without it they are not compared.
    """
    return [
        file
        for file in wanted
        if checksums.get(file["path"]) != _sha256(file["content"])
        or (modes is not None and modes.get(file["path"]) != f"{file['mode']} {OWNER}")
    ]


def _sha256(content: str) -> str:
    # Ansible decodes files so; bytes that are not UTF-8 are hashed as they were.
    return sha256(content.encode(errors="surrogateescape")).hexdigest()
