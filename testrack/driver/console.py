"""Print the driver's messages, with the time that each of its steps took the last time.

rack.py, the gate (tools/proof) and other modules of the driver use this module.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from pathlib import Path


class Console:
    """The progress lines of a command, with the time since its start, and each step's last duration.

    Args:
        timings: The JSON file with the last duration of each step in seconds. It need not exist.
    """

    def __init__(self, timings: Path) -> None:
        self.timings = timings
        self.begun = time.monotonic()

    @property
    def elapsed(self) -> float:
        """Return the seconds since this object was made, at the start of the command."""
        return time.monotonic() - self.begun

    def say(self, text: str) -> None:
        """Print one line."""
        # Write the line at once, because parts of the gate print at the same time.
        print(f"[{self.elapsed:5.1f} s] {text}\n", end="", flush=True)

    def _known(self) -> dict[str, float]:
        """Return the last duration of each step in seconds."""
        try:
            return dict(json.loads(self.timings.read_text()))
        except (OSError, ValueError):
            return {}

    def expected(self, step: str) -> float | None:
        """Return how many seconds the step took the last time, or None."""
        return self._known().get(step)

    @contextlib.contextmanager
    def step(self, name: str, text: str) -> Iterator[None]:
        """Print a step with its expected time, and store how long it took if it succeeds."""
        expected = self.expected(name)
        self.say(f"{text} ..." if expected is None else f"{text} (about {expected:.0f} s) ...")
        begun = time.monotonic()
        yield
        self.timings.parent.mkdir(parents=True, exist_ok=True)
        self.timings.write_text(json.dumps(self._known() | {name: round(time.monotonic() - begun, 1)}))
