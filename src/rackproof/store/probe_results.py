"""Write and read a night's own measurements, which are ``probes.json`` in the night's folder.

Job validate writes the file after the probes of a night, which measure single nodes and pairs of nodes. Later
nights read it to choose and compare pairs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from rackproof.core.records import Record, Verdict
from rackproof.store.night_store import NightReason
from rackproof.store.run_folder import RECORD_LIMIT_BYTES, read_file, write_file
from rackproof.store.sealed_json import open_sealed, seal_json

PROBES_FILE = "probes.json"
BENCHMARK = "probes"
"""Name of the benchmark of nights' measurements in the history."""
DIRECT = "direct"
"""Folder for the output of drained nodes."""


class PairResult(Record):
    """The result of nodes that ran an all-reduce together.

    Attributes:
        passed: Whether the nodes finished with right sums and no failure of their speed.
        value: The bus bandwidth at the largest size, in GB/s.
        text: The measured value, or the reason for a failure.
        speed: The verdict of a floor or of other pairs, or None if there was no comparison.
    """

    nodes: tuple[str, ...]
    passed: bool
    value: float | None = None
    text: str = ""
    speed: Verdict | None = None


class ProbeNight(Record):
    """A night's own measurements, as in ``probes.json``.

    Attributes:
        asked: The budget in GPU-minutes.
        spent: The GPU-minutes used, without those of drained nodes.
        measured: The nodes whose jobs ended well.
        sound: The programs of each node that ended well and found no fault, and ``job`` if the whole job
            ended well.
        again: The nodes whose suspect numbers were measured again.
        unconfirmed: The nodes that should have been measured again, but were not. No speed fails them.
        suspected: The suspicions about each node that no second measurement withdrew.
        left_out: The reason why a node was not measured. This is not a finding.
        reasons: The reasons why a node does not pass.
        between: The failures and warnings about links between two nodes.
        digests: The digests on which most devices agreed, by kind.
    """

    schema_version: Literal[1] = 1
    asked: float
    spent: float = 0.0
    turns: dict[str, int] = Field(default={}, description="By rack how many nights of pairs there were.")
    measured: tuple[str, ...] = ()
    sound: dict[str, tuple[str, ...]] = Field(default={})
    tests: dict[str, tuple[str, ...]] = Field(default={}, description="By node the optional tests it had.")
    again: tuple[str, ...] = ()
    unconfirmed: tuple[str, ...] = ()
    suspected: dict[str, tuple[NightReason, ...]] = Field(default={})
    left_out: dict[str, str] = Field(default={})
    reasons: dict[str, tuple[NightReason, ...]] = Field(default={})
    between: tuple[NightReason, ...] = ()
    pairs: tuple[PairResult, ...] = ()
    digests: dict[str, str] = Field(default={})
    remarks: tuple[str, ...] = ()
    night: str = Field(default="", description="Folder of the night that it was measured in.")
    sha256: str = Field(default="", exclude=True, description="Digest of the file, read by its readers.")


def write_probes(folder: Path, night: ProbeNight) -> None:
    """Store a night's measurements, completely or not at all.

    Raises:
        ResultsError: The measurements cannot be written.
    """
    night = night.model_copy(update={"night": folder.name})
    write_file(folder / PROBES_FILE, seal_json(night.model_dump_json(indent=1) + "\n"))


def read_probes(folder: Path) -> ProbeNight | None:
    """Return a night's measurements, or None if they are missing, damaged or another night's."""
    try:
        night = ProbeNight.model_validate_json(
            open_sealed(read_file(folder / PROBES_FILE, RECORD_LIMIT_BYTES))
        )
    except (OSError, ValueError):
        return None
    return night if night.night in ("", folder.name) else None


def probes_are_lost(folder: Path) -> bool:
    """Return whether a night made measurements that can no longer be read."""
    return (folder / PROBES_FILE).exists() and read_probes(folder) is None
