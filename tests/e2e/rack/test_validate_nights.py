"""Run validate.yml for fifty nights on the test rack, each with one fault or two on random nodes.

Each night must report exactly these faults. Suite `proofs` runs this test. RACK_TEST_NODES names four or more
provisioned nodes, RACK_TEST_SEED repeats a run, and RACK_TEST_NIGHTS sets the number of nights.
"""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import pytest

from rackproof.store.night_store import NodeNight, night_folders, read_night, read_snapshot
from testrack.tests.on_rack import CONTROLLER, NAMED, Command, play
from tests.e2e.rack.rack_faults import BLINDING, FOUND, ON_HCA, Fault, break_, fault, mend, of_slurm, reboot

pytestmark = [pytest.mark.rack, pytest.mark.slow, pytest.mark.proof]
NIGHTS = int(os.environ.get("RACK_TEST_NIGHTS", "50"))
GPUS, HCAS = 4, 4
"""GPUs and network cards of a node."""
# A wrong clock restarts slurmd, which would wait for a hanging nvidia-smi.
NEVER_TOGETHER = {"hung-nvidia-smi", "clock-skew"}


def plan_faults(number: int, chance: random.Random) -> dict[str, list[Fault]]:
    """Return the faults of a night by node.

    The first nights have one fault each. Later nights have two, on one node or on two.
    """
    names = list(FOUND)[number : number + 1] or chance.sample(list(FOUND), 2)
    while set(names) == NEVER_TOGETHER:
        names = chance.sample(list(FOUND), 2)
    parts = chance.sample(range(min(GPUS, HCAS)), len(names))
    placed: dict[str, list[Fault]] = {}
    for name, part in zip(names, parts, strict=True):
        placed.setdefault(chance.choice(NAMED), []).append(fault(name, part))
    return placed


def expected(faults: list[Fault]) -> tuple[set[tuple[str, str]], set[tuple[str, str]]]:
    """Return the findings that a night must report for these faults, and those that it may report.

    A fault that hides the GPUs makes the findings of the GPUs optional.
    """
    everything = set().union(*(found for _, _, found in faults))
    blind = [name for name, _, _ in faults if name in BLINDING]
    seen = [
        found
        for name, _, found in faults
        if not blind or name in blind or name in (*ON_HCA, "full-disk", "clock-skew")
    ]
    return set().union(*seen), everything


def test_each_of_fifty_nights_reports_exactly_the_planned_faults(
    root: Path, tmp_path: Path, driver: Command, rack: Command
) -> None:
    if len(NAMED) < 4:
        pytest.skip("four provisioned nodes are needed: name them in RACK_TEST_NODES")
    seed = int(os.environ.get("RACK_TEST_SEED") or random.SystemRandom().randrange(10**6))
    chance, results, took = random.Random(seed), tmp_path / "results", []
    print(f"RACK_TEST_SEED={seed}")

    def night() -> dict[str, NodeNight]:
        began = time.monotonic()
        done = play(
            root,
            "validate.yml",
            NAMED,
            "-e",
            f"validate_results={results}",
            "-e",
            "validate_tool_timeout_s=4",
        )
        took.append(time.monotonic() - began)
        assert night_folders(results), done.stdout + done.stderr
        return {one.node: one for one in read_night(night_folders(results)[0]).nodes}

    assert {one.verdict.value for one in night().values()} == {"pass"}
    first = night_folders(results)[0]
    slots = {
        gpu.uuid: f"GPU {gpu.index}"
        for node in NAMED
        if (kept := read_snapshot(first, node)) is not None
        for gpu in kept.snapshot.gpus
    }
    assert len(slots) == GPUS * len(NAMED)
    # Messages that an unreachable node logged before its boot are reported in the next night only.
    late: set[str] = set()
    faults = healthy = 0
    for number in range(NIGHTS):
        placed = plan_faults(number, chance)
        for node, node_faults in placed.items():
            break_(rack, driver, node, node_faults)
        try:
            found = night()
        finally:
            for node in placed:
                mend(rack, driver, node)
            reboot(rack, placed)
        for node, one in found.items():
            context = f"night {number + 1} of seed {seed}: {placed.get(node)}: {one.reason_texts()}"
            new_failures = {
                (bad.code, slots.get(bad.name, bad.name))
                for bad in one.findings
                if bad.verdict.value == "fail" and not (node in placed and of_slurm(bad.code))
            }
            node_faults = placed.get(node, [])
            if any(name == "dead-sshd" for name, _, _ in node_faults):
                assert (one.verdict.value, bool(one.unreached)) == ("unproven", True), context
                if any(code.startswith("xid_") for _, _, codes in node_faults for code, _ in codes):
                    late.add(node)
                continue
            needed, possible = expected(node_faults)
            assert needed <= new_failures <= possible, context
            assert one.verdict.value == ("fail" if node_faults else "degraded" if node in late else "pass"), (
                context
            )
            late.discard(node)
            assert node_faults or not one.plan, context
            healthy += not node_faults
        faults += sum(map(len, placed.values()))
    assert {one.verdict.value for one in night().values()} == {"pass"}
    rack(CONTROLLER, f"scontrol update nodename={','.join(NAMED)} state=resume")
    print(
        f"{faults} faults found in {NIGHTS} nights on {len(NAMED)} nodes, {healthy} healthy node-nights "
        f"passed; a night took {sorted(took)[len(took) // 2]:.1f} s"
    )
