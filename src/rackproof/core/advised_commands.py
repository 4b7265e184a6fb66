"""Name the results folder and the inventory in commands that messages advise.

A command without ``--results`` reads the folder that RACKPROOF_RESULTS names, or else ``results`` in the
current folder. If a message is about another folder, such a command would find no run, or the wrong one. A
playbook without ``-i`` reads only the hosts of the usual inventory.

The commands of ``rackproof``, the reports, and the jobs bench, validate and reimage pass their messages
through this module. Begin with :func:`add_results` and :func:`add_inventory`, for messages on a terminal. For
texts that are stored, there are :func:`add_results_everywhere` and :func:`add_inventory_everywhere`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from rackproof.core.inventory_source import configured_inventories, default_inventories, same_inventories
from rackproof.core.text import shell_word

DEFAULT_RESULTS = "results"
"""The results folder without ``--results`` and the variable, relative to the current folder."""
RESULTS_VARIABLE = "RACKPROOF_RESULTS"
"""Environment variable with the results folder of commands without ``--results``."""
READERS = (
    "accept", "audit", "compare", "evidence make", "explain", "history", "import", "nightly", "references",
    "reimage status", "report", "status", "submission", "withdraw",
)  # fmt: skip
"""The commands that take ``--results``. tests/core/test_advised_commands.py compares this list with the
options of the commands."""
# Matches "rackproof explain" in "`rackproof explain n07`", unless `--results` follows in the command.
_COMMAND = re.compile(rf"\brackproof (?:{'|'.join(READERS)})(?![\w.-])(?![^`\n;]* --results\b)")

# Matches a command that runs a playbook, unless `-i` follows in it.
_PLAYBOOK = re.compile(
    r"\b(?:ansible-playbook (?:bench|provision|reimage|validate)\.yml|rackproof (?:bench|provision|validate))"
    r"(?![\w.-])(?![^`\n;]* (?:-i|--inventory)\b)"
)


def add_results(text: str, results: Path) -> str:
    """Return a text in which each advised command names the results folder, unless this is the default.

    ``rackproof explain n07`` becomes ``rackproof explain --results /srv n07``.
    """
    default = Path(os.environ.get(RESULTS_VARIABLE) or DEFAULT_RESULTS)
    return text if results.resolve() == default.resolve() else _named(text, results)


def add_results_everywhere(text: str, results: Path | None) -> str:
    """Return a text that is read in any folder, such as a page or Slurm's reason of a drain.

    Each advised command names the results folder by its absolute path. If ``results`` is None, the text stays
    as it is.
    """
    return text if results is None else _named(text, results.resolve())


def _named(text: str, results: Path) -> str:
    """Return a text whose advised commands name the results folder."""
    option = f" --results {shell_word(str(results))}"
    return _COMMAND.sub(lambda found: found[0] + option, text)


def add_inventory(text: str, inventories: Sequence[str]) -> str:
    """Return a text in which each advised playbook names these inventories, unless they are the default.

    ``ansible-playbook validate.yml -l n07`` becomes ``ansible-playbook validate.yml -i cluster -l n07``. A
    path below the current folder is shown relative to this folder.

    Args:
        text: The text.
        inventories: The inventories of the night that the text is about. Older nights have none, and then the
            text stays as it is.
    """
    if same_inventories(inventories, default_inventories()):
        return text
    return _on(text, [os.path.relpath(name) if _is_below(name) else name for name in inventories])


def add_inventory_everywhere(text: str, inventories: Sequence[str]) -> str:
    """Return a text that is read in any environment, such as a page.

    Each advised playbook names the inventories, unless ansible.cfg names the same ones. Playbooks are started
    in the folder of ansible.cfg, so they read these inventories without ``-i``.
    """
    return text if same_inventories(inventories, configured_inventories()) else _on(text, inventories)


def _is_below(name: str) -> bool:
    """Return whether an absolute path is below the current folder."""
    return Path(name).is_absolute() and Path(name).is_relative_to(Path.cwd())


def _on(text: str, inventories: Sequence[str]) -> str:
    """Return a text whose advised playbooks name inventories."""
    options = "".join(f" -i {shell_word(name)}" for name in inventories)
    return _PLAYBOOK.sub(lambda found: found[0] + options, text)
