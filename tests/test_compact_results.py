"""Test tools/compact-results, which makes small records for docs/results from run folders.

A compact record keeps what was measured and judged, and the digests of the logs, but not the logs.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from rackproof.core.records import Gpu, Judgement, LogFile, Measurement, Node, Reference, Run, Verdict
from rackproof.store.run_folder import write_run


def test_a_compact_record_keeps_what_was_judged(root: Path, tmp_path: Path) -> None:
    """It keeps the worst value, every GPU's value and the log's digest. A second call changes nothing."""
    reference = Reference(value=100, low=-0.05, unit="TB/s", source="data sheet")
    values = {"0": 99.0, "1": 98.0}
    run = Run(
        run_id="20261121T100000Z-memory-000000",
        benchmark="memory",
        nodes=(Node(name="n1", gpus=(Gpu(index=0, uuid="GPU-0"),)),),
        software={"torch": "2.11.0", "gpus": "GPU-0"},
        measurements=tuple(
            Measurement(name="memory_copy", value=value, unit="TB/s", labels={"gpu_index": gpu})
            for gpu, value in values.items()
        ),
        judgements=(
            Judgement(
                metric="memory_copy", reference=reference, verdict=Verdict.PASS, reason="within bounds"
            ),
        ),
        verdict=Verdict.PASS,
        logs=(LogFile(path="logs/n1.log", sha256="0" * 64, size_bytes=1),),
    )
    write_run(run, tmp_path / "results" / run.run_id)
    path = tmp_path / "record.json"
    command = [sys.executable, root / "tools/compact-results", path, tmp_path / "results"]
    subprocess.run(command, check=True)
    written = path.read_text()
    record = json.loads(written)
    assert (
        record["runs"][0]
        | {
            "verdict": "pass",
            "nodes": [0],
            "software": 0,
            "measured": [
                {
                    "metric": "memory_copy",
                    "worst": 98,
                    "unit": "TB/s",
                    "values": values,
                    "verdict": "pass",
                    "reference": 0,
                }
            ],
            "logs": {"logs/n1.log": "0" * 64},
        }
        == record["runs"][0]
    )
    assert record["references"] == [{"value": 100, "low": -0.05, "unit": "TB/s", "source": "data sheet"}]
    assert record["software"] == [{"torch": "2.11.0"}]
    subprocess.run(command, check=True)
    assert path.read_text() == written
