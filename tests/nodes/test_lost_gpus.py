"""Test that a GPU which nvidia-smi does not reach is named by records, nights and parse.

nvidia-smi prints a line with its address, alone or beside its answer, and ends with a status that is not 0.
"""

from __future__ import annotations

import copy
import io

import pytest

from rackproof import logs
from rackproof.core.records import Verdict
from rackproof.logs._nvidia_smi import lost_address
from rackproof.nodes.facts import findings_from_facts
from rackproof.nodes.health_checks import check_node
from rackproof.nodes.health_subjects import Expectation
from rackproof.nodes.snapshot import build_snapshot
from tests.fuzz.samples import healthy_answer

LINES = {
    "Unable to determine the device handle for GPU0000:4E:00.0: Unknown Error": "0000:4E:00.0",
    "Unable to determine the device handle for GPU 0000:4E:00.0: GPU is lost.  Reboot the system to recover "
    "this GPU": "0000:4E:00.0",
    "Unable to determine the device handle for gpu 00000000:4E:00.0: Unknown Error": "00000000:4E:00.0",
    "Unable to determine the device handle for GPU3: 0000:4E:00.0: Unknown Error": "0000:4E:00.0",
    "GPU is lost. Reboot the system to recover this GPU": "",
}


@pytest.mark.parametrize(("line", "address"), LINES.items())
def test_the_address_is_read_from_each_form(line: str, address: str) -> None:
    assert lost_address(line) == address
    assert lost_address("GPU 00000000:4E:00.0 is fine") is None


@pytest.mark.parametrize("line", LINES)
@pytest.mark.parametrize(("place", "rc"), [("alone", 255), ("stderr", 15), ("above", 255), ("below", 0)])
def test_a_lost_gpu_fails_its_node_and_is_named(line: str, place: str, rc: int) -> None:
    answer = copy.deepcopy(healthy_answer(0))
    smi = answer["facts"]["tools"]["nvidia_smi_xml"]
    xml = {"alone": "", "stderr": ""}.get(place, smi["stdout"])
    texts = {"below": f"{xml}{line}\n", "stderr": ""}
    smi |= {
        "rc": rc,
        "status": "failed" if rc else "ok",
        "stdout": texts.get(place, f"{line}\n{xml}"),
        "stderr": line if place == "stderr" else "",
    }
    snapshot = build_snapshot("n1", answer, sku="h200")
    found = [one for one in check_node(snapshot, expected=Expectation(gpus=2)) if one.code == "gpu_lost"]
    recorded = [
        one for one in findings_from_facts("n1", answer["facts"], expected_gpus=2) if one.code == "gpu_lost"
    ]
    address = LINES[line]
    assert [(one.verdict, one.place) for one in found] == [(Verdict.FAIL, address)]
    assert [one.verdict for one in recorded] == [Verdict.FAIL]
    assert address in recorded[0].message
    assert not [
        one
        for one in findings_from_facts("n1", answer["facts"], expected_gpus=2)
        if one.code == "gpus_missing" and place in ("alone", "stderr")
    ]


def test_a_lost_gpu_without_an_address_is_not_taken_for_one_whose_address_was_not_read() -> None:
    snapshot = build_snapshot("n1", healthy_answer(0), sku="h200")
    unread = snapshot.gpus[0].model_copy(update={"bus_id": ""})
    remark = "GPU is lost. Reboot the system to recover this GPU"
    tonight = snapshot.model_copy(update={"gpus": (unread, *snapshot.gpus[1:]), "smi_remarks": (remark,)})
    (found,) = (one for one in check_node(tonight, expected=Expectation(gpus=2)) if one.code == "gpu_lost")
    assert (found.name, found.place) == ("", "")


def test_parse_names_the_lost_gpu() -> None:
    parsed = logs.parse(io.BytesIO(f"{next(iter(LINES))}\n".encode()))
    assert parsed.verdict is Verdict.FAIL
    assert "the GPU at 0000:4E:00.0 does not answer" in [one.message for one in parsed.findings]
