"""Follow a job of bench.yml until it ends. The module of the same name documents this action."""

from __future__ import annotations

import sys
from pathlib import Path

try:
    import rackproof_ansible  # noqa: F401
except ImportError:
    # The callback does this for all plugins, but this action and rackproof_job are also used without it.
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "src"))

from rackproof_ansible.bench_follow import BenchFollow


class ActionModule(BenchFollow):
    """The module rackproof_bench_follow documents the options of this action."""
