"""Check whether Slurm of one release works with a controller of another.

Role slurm calls :func:`incompatibility` through the filter ``slurm_misfit``. A release is a pair of year and
month, such as (24, 11). The rule is from https://slurm.schedmd.com/upgrades.html, section "Compatibility
Window": a node may be a few releases older than its controller, and never newer.
"""

from __future__ import annotations

import re

_NINE_MONTHLY = (
    *((16, 5), (17, 2), (17, 11), (18, 8), (19, 5)),
    *((20, 2), (20, 11), (21, 8), (22, 5), (23, 2), (23, 11), (24, 5)),
)
"""The releases of the years in which one came out every nine months, oldest first."""
_HALF_YEARLY_FROM = 24
_THREE_BACK_FROM = (24, 11)
"""First release whose controllers work with nodes up to three releases older. Earlier controllers work with
nodes up to two releases older."""
_RELEASE = re.compile(r"(?:\d+:)?(\d\d)\.(\d\d)(?!\d)")


def parse_release(version: str) -> tuple[int, int] | None:
    """Return the release of a version, or None if there is none: (22, 5) for ``22.05.8-4+deb12u2``."""
    match = _RELEASE.match(version)
    return (int(match[1]), int(match[2])) if match else None


def _ordinal(release: tuple[int, int]) -> int:
    """Return a release's number. It is 1 for 16.05, and 0 for every release before.

    Until 24.05, there was a release every nine months. Since then, there is one each May and November.
    """
    if release <= _NINE_MONTHLY[-1]:
        return sum(nine_monthly <= release for nine_monthly in _NINE_MONTHLY)
    year, month = release
    return len(_NINE_MONTHLY) + 2 * (year - _HALF_YEARLY_FROM) + (1 if month >= 11 else 0)


def incompatibility(node: str, controller: str) -> str:
    """Return why slurmd, or the commands of a login host, cannot work with a slurmctld, or "".

    The result is "" if they work together, or if a version names no recognizable release.

    Args:
        node: The version of the node's Slurm, or a pattern that begins with the release.
        controller: The version of the controller's Slurm, in the same form.
    """
    node_release, controller_release = parse_release(node), parse_release(controller)
    if node_release is None or controller_release is None:
        return ""
    if node_release > controller_release:
        return "it is newer than its controller"
    allowed = 3 if controller_release >= _THREE_BACK_FROM else 2
    behind = _ordinal(controller_release) - _ordinal(node_release)
    if behind <= allowed:
        return ""
    return f"it is {behind} releases older than its controller, and {allowed} are allowed"
