"""Write lines to a terminal, a pipe or a file, above lines that are updated in place.

The commands that run playbooks print the lines of :mod:`rackproof.cli.live_lines` with a
:class:`Screen`.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from typing import TextIO

_ROWS_LEFT = 3
"""Number of a terminal's rows that the updated lines leave free."""


class Screen:
    """One output stream of a command. If its reader ended or its disk is full, further output is lost.

    Args:
        stream: Standard output or standard error.

    Attributes:
        moves: Whether lines are updated in place, which needs a suitable terminal.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._drawn: list[str] = []
        self.moves = stream.isatty() and os.environ.get("TERM", "dumb") != "dumb"

    def size(self) -> tuple[int, int]:
        """Return the columns and rows for lines that are updated in place."""
        size = shutil.get_terminal_size()
        return max(size.columns - 1, 1), max(size.lines - _ROWS_LEFT, 1)

    def show(self, lines: Sequence[str], drawn: Sequence[str]) -> None:
        """Write lines that stay, and below them the lines ``drawn``, which the next call replaces."""
        if not lines and list(drawn) == self._drawn:
            return
        # Write once, so that a terminal does not show the lines half drawn.
        self._write(self._erasure() + "".join(f"{line}\n" for line in (*lines, *drawn)))
        self._drawn = list(drawn)

    def erase(self) -> None:
        """Remove the lines that are updated in place."""
        if self._drawn:
            self._write(self._erasure())
            self._drawn = []

    def _erasure(self) -> str:
        """Return the control characters that remove the lines that are updated in place."""
        return f"\x1b[{len(self._drawn)}A\x1b[J" if self._drawn else ""

    def _write(self, text: str) -> None:
        """Write text. If the stream takes no more output, discard this text and all later texts."""
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):
            # With `| head -1`, the work continues, because nodes would otherwise remain half done.
            self._discard_output()

    def _discard_output(self) -> None:
        """Send all further output of the stream to the null device."""
        nowhere = os.open(os.devnull, os.O_WRONLY)
        try:
            os.dup2(nowhere, self._stream.fileno())
        finally:
            os.close(nowhere)
