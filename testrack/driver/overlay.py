"""Link the test rack's variables into the inventory, where they override those that it ships for the rack.

``rack.py up`` and vms.py make the link, and ``rack.py down`` removes it.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from driver.layout import RACK_GROUP


def place(checkout: Path) -> Path:
    """Return the path from which Ansible reads the test rack's values, after the group's values."""
    return checkout / "inventory/group_vars" / RACK_GROUP / "test-rack.yml"


def lay(checkout: Path) -> bool:
    """Link the test rack's values into the inventory. Return False if the link exists already."""
    path, values = place(checkout), checkout / "testrack/overlay" / f"{RACK_GROUP}.yml"
    if path.is_symlink() and path.resolve() == values.resolve():
        return False
    path.unlink(missing_ok=True)
    path.symlink_to(Path("../../../testrack/overlay") / values.name)
    return True


def take_away(checkout: Path) -> bool:
    """Remove the link to the test rack's values. Return whether it was there."""
    path = place(checkout)
    there = path.is_symlink() or path.exists()
    path.unlink(missing_ok=True)
    return there


def take_away_left(homes: Iterable[str]) -> list[Path]:
    """Remove the links in the checkouts whose racks are removed, and return them.

    Without this, such a checkout would give the test rack's values to its next playbook. Only links are
    removed, because another file was not made by ``make rack``.

    Args:
        homes: The folders of the racks, ``CHECKOUT/.rackproof/rack``.
    """
    places = {place(Path(home).parents[1]) for home in homes if home}
    left = sorted(path for path in places if path.is_symlink())
    for path in left:
        path.unlink(missing_ok=True)
    return left
