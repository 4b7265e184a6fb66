"""Define the logger with which run.sub logs cleared caches. Only rank 0 logs, as in the original."""

from __future__ import annotations

import os
from typing import Any

from mlperf_logging import mllog


class _Logger:
    constants = mllog.constants

    def event(self, **words: Any) -> None:
        """Write a point in time, on the first task only."""
        if os.environ.get("RANK", "0") == "0":
            mllog.get_mllogger().event(**words)


mllogger = _Logger()
