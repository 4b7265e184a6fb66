"""Real answers of nvidia-smi, of six models: healthy GPUs have no finding that asks for anything."""

from __future__ import annotations

import lzma
from pathlib import Path

import pytest

from rackproof.nodes.health_checks import Expectation, check_node
from rackproof.nodes.snapshot import build_snapshot

REAL = Path(__file__).resolve().parents[2] / "data" / "real"
ANSWERS = sorted([*REAL.glob("nvidia-smi/qx-*.xml*"), REAL / "h200-x4" / "nvidia-smi-q.xml.xz"])


@pytest.mark.parametrize("path", ANSWERS, ids=lambda path: path.name)
def test_a_real_answer_holds_every_reading(path: Path) -> None:
    raw = lzma.decompress(path.read_bytes()) if path.suffix == ".xz" else path.read_bytes()
    answer = {"facts": {"tools": {"nvidia_smi_xml": {"status": "ok", "stdout": raw.decode()}}}}
    snapshot = build_snapshot("n1", answer)
    # The fabric of an A100 is set up without a state that its driver shows.
    expected = Expectation(gpus=len(snapshot.gpus), fabric="a100" not in path.name)
    found = [finding for finding in check_node(snapshot, expected=expected) if finding.part == "gpu"]
    assert snapshot.gpus
    assert [(finding.code, finding.evidence) for finding in found] == []
