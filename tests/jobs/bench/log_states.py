"""Make the statements of a supervisor on the log of an ended job."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any


def stated_log(log: bytes | Path) -> dict[str, Any]:
    """Return the size and digest of a log, as ``rackproof_job`` writes them. A missing file is empty."""
    if isinstance(log, Path):
        if not log.is_file():
            return {"log_bytes": 0, "log_sha256": None}
        log = log.read_bytes()
    return {"log_bytes": len(log), "log_sha256": hashlib.sha256(log).hexdigest()}
