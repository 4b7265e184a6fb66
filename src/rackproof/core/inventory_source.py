"""Find the inventory that a command without ``-i`` reads.

Ansible reads the inventory that ANSIBLE_INVENTORY names, or else that of ansible.cfg. Rackproof's own
commands must read the same one. Otherwise, they would judge or certify the nodes of another cluster.

Begin with :func:`default_inventories`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from configparser import ConfigParser
from configparser import Error as ConfigError
from pathlib import Path

INVENTORY_VARIABLE = "ANSIBLE_INVENTORY"
UNNAMED_INVENTORY = "inventory"
"""The inventory below a folder whose ansible.cfg names none."""


def default_inventories() -> tuple[str, ...]:
    """Return the inventories that a command without ``-i`` reads in the current folder."""
    named = split_inventories(os.environ.get(INVENTORY_VARIABLE, ""))
    return named or configured_inventories()


def configured_inventories() -> tuple[str, ...]:
    """Return the inventories that a command without ``-i`` and without ANSIBLE_INVENTORY reads."""
    config = ConfigParser(interpolation=None, strict=False, inline_comment_prefixes=(";",))
    try:
        config.read("ansible.cfg", encoding="utf-8")
    except (OSError, UnicodeDecodeError, ConfigError):  # Ansible names the mistake.
        return (UNNAMED_INVENTORY,)
    return split_inventories(config.get("defaults", "inventory", fallback="")) or (UNNAMED_INVENTORY,)


def split_inventories(text: str) -> tuple[str, ...]:
    """Return the inventories in a list with commas, as Ansible writes them. No I/O."""
    return tuple(name for part in text.split(",") if (name := part.strip()))


def same_inventories(some: Sequence[str], others: Sequence[str]) -> bool:
    """Return whether two lists name the same files."""
    return [Path(name).resolve() for name in some] == [Path(name).resolve() for name in others]
