"""Find the inventories that a command without ``-i`` reads.

Ansible reads the inventories that ANSIBLE_INVENTORY names, or else those of its configuration, which is the
file of ANSIBLE_CONFIG, or else ansible.cfg in the current folder. Rackproof's own commands must read the same
ones. Otherwise, they would judge or certify the nodes of another cluster. The options of the commands,
``rackproof adopt``, and the commands in messages (:mod:`.advised_commands`) use this module.

Begin with :func:`default_inventories`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from configparser import ConfigParser
from configparser import Error as ConfigError
from pathlib import Path

CONFIG_VARIABLE = "ANSIBLE_CONFIG"
"""Environment variable of Ansible with the path of its configuration, or of the configuration's folder."""
_CONFIG = "ansible.cfg"
INVENTORY_VARIABLE = "ANSIBLE_INVENTORY"
"""Environment variable of Ansible with the inventories, separated by commas."""
UNNAMED_INVENTORY = "inventory"
"""The inventory, relative to the current folder, if ansible.cfg is missing, damaged or names no inventory."""


def default_inventories() -> tuple[str, ...]:
    """Return the inventories that a command without ``-i`` reads in the current folder."""
    if named := split_inventories(os.environ.get(INVENTORY_VARIABLE, "")):
        return named
    path = os.path.expanduser(os.environ.get(CONFIG_VARIABLE) or _CONFIG)
    if os.path.isdir(path):
        path = os.path.join(path, _CONFIG)
    # Ansible ignores the variable if there is no such file.
    if not os.path.isfile(path):
        return configured_inventories()
    names = _inventories_of(path)
    # Ansible reads relative names from the folder of the file that has them.
    folder = os.path.dirname(path)
    return tuple(os.path.join(folder, os.path.expanduser(name)) for name in names) or (UNNAMED_INVENTORY,)


def configured_inventories() -> tuple[str, ...]:
    """Return the inventories that a command without ``-i`` reads in an environment without such variables."""
    return _inventories_of(_CONFIG) or (UNNAMED_INVENTORY,)


def _inventories_of(path: str) -> tuple[str, ...]:
    """Return the inventories that a file of Ansible's configuration names, or none."""
    config = ConfigParser(interpolation=None, strict=False, inline_comment_prefixes=(";",))
    try:
        config.read(path, encoding="utf-8")
    except (OSError, UnicodeDecodeError, ConfigError):  # Ansible itself reports the mistake.
        return ()
    return split_inventories(config.get("defaults", "inventory", fallback=""))


def split_inventories(text: str) -> tuple[str, ...]:
    """Return the inventories in a list with commas, as Ansible writes them, without I/O."""
    return tuple(name for part in text.split(",") if (name := part.strip()))


def same_inventories(some: Sequence[str], others: Sequence[str]) -> bool:
    """Return whether two lists name the same files in the same order."""
    return [Path(name).resolve() for name in some] == [Path(name).resolve() for name in others]
