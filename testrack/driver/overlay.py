"""Put the test rack's values over those that the inventory ships for the rack.

``rack.py up`` puts them there, and ``rack.py down`` removes them.
"""

from __future__ import annotations

from pathlib import Path

from driver.layout import RACK_GROUP


def place(checkout: Path) -> Path:
    """Return where Ansible reads the test rack's values, after those of the group."""
    return checkout / "inventory/group_vars" / RACK_GROUP / "test-rack.yml"


def lay(checkout: Path) -> bool:
    """Put the test rack's values over the inventory's. Return whether they were new."""
    path, values = place(checkout), checkout / "testrack/overlay" / f"{RACK_GROUP}.yml"
    if path.is_symlink() and path.resolve() == values.resolve():
        return False
    path.unlink(missing_ok=True)
    path.symlink_to(Path("../../../testrack/overlay") / values.name)
    return True


def take_away(checkout: Path) -> bool:
    """Remove the test rack's values. Return whether they were there."""
    path = place(checkout)
    there = path.is_symlink() or path.exists()
    path.unlink(missing_ok=True)
    return there
