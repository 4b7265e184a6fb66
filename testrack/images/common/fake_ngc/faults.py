"""Read which fault a fake program must show, to test the programs that watch a run.

training.py and preflight.py use this module. The fault is ``NAME`` or ``NAME@NODE`` in the environment
variable STANDIN_FAULT or, for a training, in the file STANDIN_FAULT of the data folder.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

IN_TRAINING = ("slow-node", "rank-killed", "nan", "hang", "oom-exit-0", "no-run-stop", "too-fast")
IN_RUN_SCRIPT = ("wrong-nodes", "cache-not-cleared", "bad-nccl", "slow-nccl")
NAMES = IN_TRAINING + IN_RUN_SCRIPT


@dataclass(frozen=True)
class Fault:
    """A fault and the rank that shows it. Without a fault, the name is empty."""

    name: str = ""
    rank: int = -1

    def here(self, name: str, rank: int) -> bool:
        """Return whether this fault has that name, and this rank must show it."""
        return self.name == name and self.rank == rank


def wanted(folder: Path | None, environment: Mapping[str, str] = os.environ) -> str:
    """Return the requested fault, or ""."""
    text = environment.get("STANDIN_FAULT", "")
    if not text and folder is not None and (folder / "STANDIN_FAULT").is_file():
        text = (folder / "STANDIN_FAULT").read_text()
    return text.strip()


def fault(text: str, nodes: list[str]) -> Fault:
    """Return the fault and its rank, which is the first of the given node, or else the last of all.

    Args:
        text: The result of :func:`wanted`.
        nodes: The node of each rank.

    Raises:
        SystemExit: There is no such fault or node.
    """
    if not text:
        return Fault()
    name, _, node = text.partition("@")
    if name not in NAMES:
        raise SystemExit(f"STANDIN_FAULT={text}: there is no such fault; there are {', '.join(NAMES)}")
    if node and node not in nodes:
        raise SystemExit(f"STANDIN_FAULT={text}: {node} is not among {', '.join(sorted(set(nodes)))}")
    return Fault(name, nodes.index(node) if node else len(nodes) - 1)
