"""Name the results folder in commands that messages advise.

A command without ``--results`` reads the folder that RACKPROOF_RESULTS names, or else ``results`` in the
current folder. If a message is about another folder, such a command would find no run, or the wrong one.

Begin with :func:`add_results`.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from rackproof.core.text import shell_word

DEFAULT_RESULTS = "results"
RESULTS_VARIABLE = "RACKPROOF_RESULTS"
READERS = (
    "accept", "audit", "compare", "evidence make", "explain", "history", "import", "nightly", "references",
    "reimage status", "report", "status", "submission", "withdraw",
)  # fmt: skip
"""The commands that take ``--results``. A test compares them with the program."""
# Matches "rackproof explain" in "`rackproof explain n07`", unless `--results` follows in the command.
_COMMAND = re.compile(rf"\brackproof (?:{'|'.join(READERS)})(?![\w.-])(?![^`\n;]* --results\b)")


def add_results(text: str, results: Path) -> str:
    """Return a text in which each advised command names the results folder, if it would look elsewhere.

    ``rackproof explain n07`` becomes ``rackproof explain --results /srv n07``.
    """
    default = Path(os.environ.get(RESULTS_VARIABLE) or DEFAULT_RESULTS)
    return text if results.resolve() == default.resolve() else _named(text, results)


def add_results_everywhere(text: str, results: Path | None) -> str:
    """Return a text that is read in any folder, such as a page or Slurm's reason of a drain.

    Each advised command names the results folder by its absolute path. None leaves the text as it is.
    """
    return text if results is None else _named(text, results.resolve())


def _named(text: str, results: Path) -> str:
    """Return a text whose advised commands name the results folder."""
    option = f" --results {shell_word(str(results))}"
    return _COMMAND.sub(lambda found: found[0] + option, text)
