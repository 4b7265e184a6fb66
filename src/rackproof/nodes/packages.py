"""Which packages of a node are not as they are pinned."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any


def lacking_packages(
    wanted: Mapping[str, str], installed: Mapping[str, Mapping[str, Any]], hold: bool
) -> list[str]:
    """Return the names of packages that are absent, of another version, or not held.

    Args:
        wanted: By name the version, a pattern as in ``3.1.0*``, or empty for any.
        installed: The packages of the fact rackproof_node: by name ``version`` and ``held``.
        hold: Whether they are to be held.
    """
    return [name for name, version in wanted.items() if not _is_as_wanted(installed.get(name), version, hold)]


def _is_as_wanted(package: Mapping[str, Any] | None, version: str, hold: bool) -> bool:
    if package is None or (hold and not package["held"]):
        return False
    return not version or fnmatchcase(package["version"], version)
