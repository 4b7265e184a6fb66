"""Store a night's own measurements, in its folder's ``probes.json``."""

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
"""The benchmark name of nights' measurements in the history."""
DIRECT = "direct"
"""Folder of drained nodes' output."""


class PairResult(Record):
    """Nodes that reduced together. ``value`` is the bus bandwidth at the largest size, in GB/s.

    ``passed`` means that they finished with right sums and without a finding against their speed; ``speed``
    is the judgment by a floor or other pairs, or None if it was compared with nothing.
    """

    nodes: tuple[str, ...]
    passed: bool
    value: float | None = None
    text: str = ""
    speed: Verdict | None = None


class ProbeNight(Record):
    """The measurements of a night by itself, as kept in ``probes.json``.

    ``asked`` is the budget in GPU-minutes, ``spent`` what was used, drained nodes not counted. ``left_out``
    has by node why it was not measured; those are not findings. ``digests`` are, by what has to be alike, the
    bits that most agreed on. ``sound`` are by node the programs that ended well and found nothing wrong, and
    ``job`` where all did. ``tests`` are by node the optional tests that it had, whatever came of them.
    ``again`` were measured a second time for suspect numbers; ``unconfirmed`` should have been and were not:
    nothing fails by their speed; ``suspected`` are the numbers that no second measurement took back.
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
    """Store a night's measurements, whole or not at all.

    Raises:
        ResultsError: It cannot be written.
    """
    night = night.model_copy(update={"night": folder.name})
    write_file(folder / PROBES_FILE, seal_json(night.model_dump_json(indent=1) + "\n"))


def read_probes(folder: Path) -> ProbeNight | None:
    """Return a night's measurements, or None if there are none, or they are damaged or another night's."""
    try:
        night = ProbeNight.model_validate_json(
            open_sealed(read_file(folder / PROBES_FILE, RECORD_LIMIT_BYTES))
        )
    except (OSError, ValueError):
        return None
    return night if night.night in ("", folder.name) else None


def probes_are_lost(folder: Path) -> bool:
    """Return whether a night measured something that cannot be read any more."""
    return (folder / PROBES_FILE).exists() and read_probes(folder) is None
