"""Test the health checks of nights on a simulated rack with 18 nodes and the usual noise.

Healthy nodes get hot, count corrected errors, and log XIDs of users' programs. In more than 1,000 nights of
single nodes, none of them may be drained. In 50 nights, one or two nodes get a real fault. Each fault must be
found in its first night, on the right GPU, and drain only this node.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rackproof.core.records import Verdict
from rackproof.jobs.validate.judge import judge_fleet
from rackproof.jobs.validate.tasks import begin_night, store_snapshot
from rackproof.nodes.answer_seal import sealed_answer
from rackproof.store.night_store import NodeNight, night_folders, read_night
from tests.jobs.validate.nights import uuid
from tests.jobs.validate.probes import ROOT
from tests.nodes.health.healthy import gpu_xml, healthy_gathered

pytestmark = pytest.mark.slow
RACK = tuple(f"r1-n{number:02d}" for number in range(1, 19))
HEALTHY_NIGHTS, FAULTY_NIGHTS = 56, 50
DAY = 86_400.0
# The Unix time of the first night. Nights are a day apart.
START = 1_795_000_000.0


@pytest.fixture(autouse=True)
def no_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace fsync, because flushing thousands of files would take longer than judging the nights."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


class Rack:
    """A rack in many nights. Wear, such as corrected errors, grows, and noise differs every night."""

    def __init__(self, results: Path, seed: int) -> None:
        self.results, self.dice, self.night = results, random.Random(seed), 0
        self.corrected = {
            (number, slot): self.dice.randrange(1000) for number in range(18) for slot in range(4)
        }

    def gathered(
        self, number: int, fault: Callable[[dict[str, Any], dict[str, Any]], None] | None, slot: int
    ) -> Any:
        dice, epoch = self.dice, START + self.night * DAY
        log, chips, tools = [], [], {}
        for place in range(4):
            self.corrected[number, place] += dice.choice((0, 0, 0, 1, 7))
            temperature = dice.gauss(55, 8)
            values: dict[str, Any] = {
                "dram_correctable": self.corrected[number, place],
                "replay_counter": self.night // 3,
                "gpu_temp": f"{round(temperature)} C",
                "gpu_temp_tlimit": f"{round(92 - min(temperature, 84))} C",
            }
            extra: dict[str, Any] = {"log": log, "tools": tools, "gone": False, "slot": place}
            if fault is not None and place == slot:
                fault(values, extra)
            if dice.random() < 0.005:
                # Users' programs cause XIDs of their own, about every third night on some GPU.
                log.append(
                    f"NVRM: Xid (PCI:000{place}:06:00): {dice.choice((13, 31, 43))}, pid=1, name=python3"
                )
            if not extra["gone"]:
                chips.append(gpu_xml(number, place, **values))
        lines = "".join(f"{epoch}0 n kernel: {line}\n" for line in log)
        answer = healthy_gathered(number, gpus=chips, epoch=epoch, log=lines)
        answer["facts"] |= {
            "boot_id": f"boot-{number}-{self.night}",
            "files": answer["facts"]["files"] | {"mountinfo": "1 0 0:1 / /shared rw - nfs a rw"},
        }
        answer["facts"]["tools"]["nvidia_smi_xml"]["seconds"] = dice.uniform(0.2, 3)
        answer["facts"]["tools"] |= tools
        answer["health"]["epoch"] = epoch + dice.uniform(1, 30)
        answer["health"]["hca"]["mlx5_0"]["1"]["counters"] = {
            "symbol_error": 3,
            "port_rcv_errors": self.night,
        }
        answer["health"]["disk"]["/"] |= {
            "total_bytes": 1000,
            "free_bytes": dice.randrange(200, 900),
            "free_inodes": dice.randrange(20, 90),
        }
        return answer

    def make_night(self, faults: dict[int, tuple[Any, int]], lost: float = 0.002) -> dict[str, NodeNight]:
        """Make a night with faults by node (the fault and the slot of its GPU).

        Each healthy node does not answer with the probability ``lost``.
        """
        night = begin_night(self.results, RACK, owner_pid=os.getpid())
        epoch = START + self.night * DAY
        for number, name in enumerate(RACK):
            fault, slot = faults.get(number, (None, -1))
            answer = sealed_answer(self.gathered(number, fault, slot))
            if number in faults or self.dice.random() >= lost:
                store_snapshot(
                    night,
                    name,
                    answer,
                    asked=epoch - self.dice.uniform(0, 20),
                    answered=epoch + 60,
                    sku="h200",
                    expected={"gpus": 4, "ports": 1, "port_gbps": 400, "mounts": ["/shared"]},
                )
        self.night += 1
        slurm = {name: {"known": True, "state_after": "IDLE", "drained_by": "none"} for name in RACK}
        members = "".join(f"{name}|batch|none\n" for name in RACK)
        judge_fleet(
            night,
            asked=dict.fromkeys(RACK, "timed out"),
            benchmarks=ROOT / "benchmarks",
            being_imaged={},
            slurm=slurm,
            members=members,
            acts=["drain"],
        )
        return {one.node: one for one in read_night(night_folders(self.results)[0]).nodes}


def gone(values: dict[str, Any], more: dict[str, Any]) -> None:
    more["gone"] = True


def hung(values: dict[str, Any], more: dict[str, Any]) -> None:
    more["tools"]["nvidia_smi_xml"] = {"status": "hung", "stdout": "", "seconds": 15}


def xid(number: int) -> Callable[[dict[str, Any], dict[str, Any]], None]:
    def happen(values: dict[str, Any], more: dict[str, Any]) -> None:
        more["log"].append(f"NVRM: Xid (PCI:000{more['slot']}:06:00): {number}, pid='<unknown>'")

    return happen


def value(**changed: Any) -> Callable[[dict[str, Any], dict[str, Any]], None]:
    return lambda values, _: values.update(changed)


# The fault, the code that finds it, and whether the GPU can be identified.
FAULTS = {
    "a GPU is gone": (gone, "gpu_missing", True),
    "SRAM error": (value(sram_uncorrectable_parity=1), "ecc_sram_uncorrectable", True),
    "row waits for a reset": (value(remapped_row_pending="Yes"), "remap_pending", True),
    "half the PCIe lanes": (value(current_link_width="8x"), "pcie_width", True),
    "too hot": (value(clocks_event_reason_hw_thermal_slowdown="Active"), "throttled", True),
    "power limit": (value(current_power_limit="500.00 W"), "power_limit", True),
    "fell off the bus": (xid(79), "xid_79", True),
    "GSP does not answer": (xid(119), "xid_119", True),
    "nvidia-smi hangs": (hung, "tool_hung", False),
}


def test_no_healthy_node_is_drained_in_a_thousand_node_nights(tmp_path: Path) -> None:
    rack, seen = Rack(tmp_path, 1), 0
    verdicts: dict[Verdict, int] = {}
    for _ in range(HEALTHY_NIGHTS):
        for one in rack.make_night({}).values():
            assert one.plan == "", one.reason_texts()
            assert one.verdict is not Verdict.FAIL, one.reason_texts()
            assert one.unreached or one.verdict is not Verdict.UNPROVEN, one.reason_texts()
            verdicts[one.verdict] = verdicts.get(one.verdict, 0) + 1
            seen += 1
    assert seen > 1000
    # There is noise, but it fails no node.
    assert 0 < verdicts[Verdict.DEGRADED] < 0.1 * seen
    assert verdicts[Verdict.UNPROVEN] > 0


def test_every_fault_is_found_in_its_first_night_alone_and_in_pairs(tmp_path: Path) -> None:
    dice, rack = random.Random(2), Rack(tmp_path, 2)
    for trial in range(FAULTY_NIGHTS):
        # Make a night without faults in between, as after a repair, so that each fault is new.
        rack.make_night({}, lost=0)
        count = 1 + trial % 2
        where = dice.sample(range(18), count)
        what = dice.sample(sorted(FAULTS), count) if trial >= len(FAULTS) else [sorted(FAULTS)[trial]] * count
        slots = [dice.randrange(4) for _ in where]
        found = rack.make_night(
            {number: (FAULTS[name][0], slot) for number, name, slot in zip(where, what, slots, strict=True)}
        )
        for number, name, slot in zip(where, what, slots, strict=True):
            _, code, part = FAULTS[name]
            mine = found[RACK[number]]
            (one,) = [finding for finding in mine.findings if finding.code == code]
            assert mine.verdict is Verdict.FAIL
            assert not part or one.name == uuid(number, slot), (name, one)
            assert mine.plan == "drain"
        bad = {RACK[number] for number in where}
        assert {name for name, one in found.items() if one.plan} == bad
        assert {name for name, one in found.items() if one.verdict is Verdict.FAIL} == bad
