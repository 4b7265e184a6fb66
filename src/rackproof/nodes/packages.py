"""Find the packages of a node that differ from their pins, which are the versions that a role requires.

Roles call :func:`lacking_packages` through the filter ``packages_lacking``, and install the result.
"""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any


def lacking_packages(
    wanted: Mapping[str, str],
    installed: Mapping[str, Mapping[str, Any]],
    hold: bool,
    exact: bool = False,
) -> list[str]:
    """Return the names of packages that are absent, not held, or of another version.

    The function does no I/O.

    Args:
        wanted: The version of each package, as a pattern such as ``3.1.0*``. Empty means any version.
        installed: The packages of the fact rackproof_node, with ``version`` and ``held`` of each.
        hold: Whether they must be held, so that apt does not upgrade them.
        exact: Whether versions are literal. No package then satisfies an empty version.
    """
    return [
        name
        for name, version in wanted.items()
        if not _is_as_wanted(installed.get(name), version, hold=hold, exact=exact)
    ]


def _is_as_wanted(package: Mapping[str, Any] | None, version: str, hold: bool, exact: bool) -> bool:
    """Return whether an installed package has the wanted version and hold. None means not installed."""
    # For a package without a version, dpkg lists only the name.
    if not package or not package.get("version") or (hold and not package.get("held")):
        return False
    if exact:
        return bool(package["version"] == version)
    return not version or fnmatchcase(package["version"], version)
