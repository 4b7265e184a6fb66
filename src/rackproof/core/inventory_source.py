"""Find the inventories that a command without ``-i`` reads.

Ansible reads the inventories that ANSIBLE_INVENTORY names, or else those of ansible.cfg in the current
folder. Rackproof's own commands must read the same inventories. Otherwise, they would judge or certify the
nodes of another cluster. This module does not read ANSIBLE_CONFIG, nor an ansible.cfg in another folder. The
options of the commands, ``rackproof adopt``, and the commands in messages (:mod:`.advised_commands`) use this
module.

Begin with :func:`default_inventories`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from configparser import ConfigParser
from configparser import Error as ConfigError
from pathlib import Path

INVENTORY_VARIABLE = "ANSIBLE_INVENTORY"
"""Environment variable of Ansible with the inventories, separated by commas."""
UNNAMED_INVENTORY = "inventory"
"""The inventory, relative to the current folder, if ansible.cfg is missing, damaged or names no inventory."""


def default_inventories() -> tuple[str, ...]:
    """Return the inventories that a command without ``-i`` reads in the current folder."""
    named = split_inventories(os.environ.get(INVENTORY_VARIABLE, ""))
    return named or configured_inventories()


def configured_inventories() -> tuple[str, ...]:
    """Return the inventories that a command without ``-i`` and without ANSIBLE_INVENTORY reads."""
    config = ConfigParser(interpolation=None, strict=False, inline_comment_prefixes=(";",))
    try:
        config.read("ansible.cfg", encoding="utf-8")
    except (OSError, UnicodeDecodeError, ConfigError):  # Ansible itself reports the mistake.
        return (UNNAMED_INVENTORY,)
    return split_inventories(config.get("defaults", "inventory", fallback="")) or (UNNAMED_INVENTORY,)


def split_inventories(text: str) -> tuple[str, ...]:
    """Return the inventories in a list with commas, as Ansible writes them. No I/O."""
    return tuple(name for part in text.split(",") if (name := part.strip()))


def same_inventories(some: Sequence[str], others: Sequence[str]) -> bool:
    """Return whether two lists name the same files in the same order."""
    return [Path(name).resolve() for name in some] == [Path(name).resolve() for name in others]
