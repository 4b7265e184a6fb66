"""Fake the module ``callbacks`` of NVIDIA's mlperf-common. run.sub uses only its ``mllogger``.

run.sub logs with it that a node's page cache was cleared. As in the original, only rank 0 logs. MLCommons'
mllog writes the lines. The other parts of the original module are left out.
"""

from __future__ import annotations

import os
from typing import Any

from mlperf_logging import mllog


class _Logger:
    """The logger, with the one method that run.sub calls."""

    constants = mllog.constants
    """Names of the keys of events."""

    def event(self, **words: Any) -> None:
        """Log an event with the key and value in ``words``, on rank 0 only. Without RANK, the rank is 0."""
        if os.environ.get("RANK", "0") == "0":
            mllog.get_mllogger().event(**words)


mllogger = _Logger()
"""The object that run.sub imports."""
