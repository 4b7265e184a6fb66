"""Write and read a night's own measurements, which are ``probes.json`` in the night's folder.

Job validate writes the file after the probes of a night, which measure single nodes and pairs of nodes. Job
reimage writes it after the acceptance of a node. The judgement and the page of the night read the file, and
later nights read it to choose tests, to choose and compare pairs, and to confirm suspicions. Begin with
:class:`ProbeNight`.
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
"""File of the measurements in a night's folder."""
PAIRS_LOCK = "pairs.lock"
"""File in a night's folder, which the writer of a pair's measurement locks."""
BENCHMARK = "probes"
"""Name of the benchmark of nights' measurements in the history."""
DIRECT = "direct"
"""Folder in a night's folder for the output of probes on drained nodes, which run without Slurm."""


class PairResult(Record):
    """The result of nodes that ran an all-reduce together.

    Attributes:
        nodes: The names of the nodes.
        passed: Whether the nodes finished with right sums and no failure of their speed.
        value: The bus bandwidth at the largest size, in GB/s, or None if it was not measured.
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
        turns: The number of nights with pairs so far, by rack and SKU.
        measured: The nodes whose jobs ended well.
        sound: The programs of each node that ended well and found no fault, and ``job`` if the whole job
            ended well.
        tests: The optional tests that ran on a node, by node.
        again: The nodes whose suspect numbers were measured again.
        unconfirmed: The nodes with a failed number that neither a second measurement nor an earlier failure
            confirmed. No speed fails them.
        suspected: The suspicions about each node that no second measurement withdrew.
        left_out: The reason why a node was not measured, by node. This is not a finding.
        reasons: The reasons why a node does not pass, by node.
        between: The failures and warnings about links between two nodes.
        pairs: The results of pairs of nodes.
        digests: The digests on which most devices agreed, by kind.
        remarks: Lines about the measurements, for operators.
    """

    schema_version: Literal[1] = 1
    asked: float
    spent: float = 0.0
    turns: dict[str, int] = Field(default={})
    measured: tuple[str, ...] = ()
    sound: dict[str, tuple[str, ...]] = Field(default={})
    tests: dict[str, tuple[str, ...]] = Field(default={})
    again: tuple[str, ...] = ()
    unconfirmed: tuple[str, ...] = ()
    suspected: dict[str, tuple[NightReason, ...]] = Field(default={})
    left_out: dict[str, str] = Field(default={})
    reasons: dict[str, tuple[NightReason, ...]] = Field(default={})
    between: tuple[NightReason, ...] = ()
    pairs: tuple[PairResult, ...] = ()
    digests: dict[str, str] = Field(default={})
    remarks: tuple[str, ...] = ()
    night: str = Field(default="", description="Name of the folder of this night.")
    sha256: str = Field(
        default="",
        exclude=True,
        description="Unused: the digest in the file is checked and removed when the file is read.",
    )


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
    """Return whether the file of a night's measurements exists, but is damaged or another night's."""
    return (folder / PROBES_FILE).exists() and read_probes(folder) is None
