"""Test ``rackproof.jobs.reimage.acceptance``, the checks and measurements of a node with a new image.

A node is resumed only after it was measured, alone and with a partner: a healthy node with which it runs an
all-reduce (the pair). The tests check the choice of the partner, the result of the pair and its bounds, and
that a node without the required measurements is unproven.
"""

from __future__ import annotations

import json
import os
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from rackproof.core.records import Node, Verdict
from rackproof.jobs.reimage import acceptance
from rackproof.jobs.reimage.acceptance import (
    PartnerHalf,
    check_acceptance,
    find_own_failure,
    find_partners,
    record_pair,
    run_partner,
)
from rackproof.jobs.reimage.run_files import ReimageError
from rackproof.nodes.probe_slurm_jobs import Job, JobResult, JobRunner, classify_exit
from rackproof.nodes.snapshot import GpuSnapshot, NodeSnapshot
from rackproof.store.night_store import (
    NightContext,
    NightReason,
    NightRecord,
    NodeNight,
    StoredSnapshot,
    write_night,
    write_snapshot,
)
from rackproof.store.probe_results import PairResult, ProbeNight, read_probes, write_probes
from tests.jobs.validate import probes

# Ids of the night before and of the night in which the node is measured.
EARLIER, TONIGHT = "20261121T020000Z-health-aaaaaa", "20261122T020000Z-health-bbbbbb"
FLOOR = {
    "metric": "fabric_busbw",
    "value": 380,
    "low": -0.1,
    "high": 0.1,
    "unit": "GB/s",
    "source": "measured",
}
BOTH = ("probes", "pair")


def node_night(name: str, verdict: Verdict = Verdict.PASS, sku: str = "h200", rack: str = "r1") -> NodeNight:
    return NodeNight(node=name, verdict=verdict, sku=sku, rack=rack)


def night(results: Path, name: str, *nodes: NodeNight) -> Path:
    now = datetime.now(UTC)
    (results / name).mkdir(parents=True, exist_ok=True)
    write_night(
        results / name,
        NightRecord(night_id=name, started=now, ended=now, verdict=Verdict.PASS, nodes=nodes),
    )
    return results / name


def begun(results: Path, *nodes: NodeNight, gpus: int = 4, references: tuple[Any, ...] = ()) -> NightContext:
    """Return the night in which n1 is measured. The other nodes are known from the night before."""
    night(results, EARLIER, *nodes)
    folder = night(results, TONIGHT, node_night("n1"))
    snapshot = NodeSnapshot(
        node="n1",
        sku="h200",
        hardware_key="n1",
        gpus=tuple(GpuSnapshot(uuid=f"GPU-{slot}") for slot in range(gpus)),
    )
    about = Node(name="n1", sku="h200")
    kept = StoredSnapshot(
        snapshot=snapshot, about=about, rack="r1", references=references, expected={"gpus": gpus}
    )
    write_snapshot(folder, "n1", kept)
    return NightContext(night_id=TONIGHT, folder=str(folder), results=str(results))


def listed(**nodes: str) -> str:
    """Return the nodes as sinfo lists them: name, partition and the reason of a drain."""
    return "\n".join(f"{name}|{said if '|' in said else said + '|none'}" for name, said in nodes.items())


@pytest.mark.parametrize(
    ("other", "sinfo", "why"),
    [
        (node_night("n2"), "batch", ""),
        (node_night("n2"), "batch|rackproof-night: xid", "it is drained"),
        (node_night("n2"), "other", "another partition"),
        (node_night("n2", Verdict.FAIL), "batch", "it failed"),
        (node_night("n2", Verdict.UNPROVEN), "batch", "it was not proven"),
        (node_night("n2", Verdict.DEGRADED), "batch", "it was degraded"),
        (node_night("n2", sku="h100"), "batch", "another SKU"),
        (node_night("n3"), "batch", "no night knows it"),
    ],
)
def test_a_partner_is_in_service_alike_and_known_to_be_good(
    tmp_path: Path, other: NodeNight, sinfo: str, why: str
) -> None:
    one = begun(tmp_path, other)
    assert find_partners(one, "n1", listed(n1="batch|rackproof-reimage: gets a new image", n2=sinfo)) == (
        () if why else ("n2",)
    )


def test_the_rack_s_own_come_first_and_not_all_ask_the_same(tmp_path: Path) -> None:
    names = ["n2", "n3", "n4", "n5"]
    one = begun(tmp_path, *(node_night(name, rack="r2" if name in ("n2", "n3") else "r1") for name in names))
    said = listed(n1="batch", **dict.fromkeys(names, "batch"))
    found = find_partners(one, "n1", said)
    assert set(found[:2]) == {"n4", "n5"}
    assert set(found) == set(names)


def test_the_first_node_that_slurm_allocates_becomes_the_partner() -> None:
    """The partner's half has to end well. The node's half has the result of the pair."""

    def answer(nodes: tuple[str, ...]) -> tuple[str, int | None, float]:
        if nodes == ("n2",):
            return "srun: error: Unable to allocate resources: Requested nodes are busy", 1, 30
        return probes.section("half", ""), 0, 40

    slurm = probes.Slurm(answer)
    how = acceptance.without_budget(probes.plan(minutes=0.0))
    half = run_partner(
        how, "n1", ["n2", "n3", "n4"], 4, JobRunner(slurm.shell, how, {}, {}, lambda: slurm.now, slurm.sleep)
    )
    assert half == PartnerHalf("n3")
    assert slurm.started == [("n2",), ("n3",)]


@pytest.mark.parametrize(
    ("answer", "partner", "text"),
    [
        (("srun: error: Requested nodes are busy", 1, 1), "", "n2: srun: error: Requested nodes are busy"),
        (("srun: error: Invalid account", 1, 1), "", "n2: srun: error: Invalid account"),
        ((probes.section("half", "No module named torch", 98), 98, 1), "n2", "failed: half ended with 98"),
        ((probes.section("half", "", None), None, 1e6), "n2", "hung: did not end in time"),
    ],
)
def test_a_half_that_did_not_come_or_not_to_its_end_reports_it(
    answer: tuple[str, int | None, float], partner: str, text: str
) -> None:
    slurm = probes.Slurm(lambda _: answer)
    how = acceptance.without_budget(probes.plan())
    half = run_partner(
        how, "n1", ["n2"], 4, JobRunner(slurm.shell, how, {}, {}, lambda: slurm.now, slurm.sleep)
    )
    assert half.partner == partner
    assert half.text.startswith(text)
    # Slurm is asked again as long as the node's half waits for a partner, and no longer.
    assert len(slurm.started) == 1 if partner else len(slurm.started) > 5
    assert partner or slurm.now < acceptance.WAIT_S


def test_without_anybody_known_to_be_good_it_names_what_to_do() -> None:
    how = acceptance.without_budget(probes.plan())
    slurm = probes.Slurm(probes.sound)
    half = run_partner(how, "n1", [], 4, JobRunner(slurm.shell, how, {}, {}))
    assert (half.partner, slurm.started) == ("", [])
    assert "run validate.yml, or leave the pair out" in half.text
    # Slurm's host does not answer.
    slurm.silent_from = 0
    assert (
        "Connection timed out" in run_partner(how, "n1", ["n2"], 4, JobRunner(slurm.shell, how, {}, {})).text
    )


def kept_of(one: NightContext) -> ProbeNight:
    kept = read_probes(Path(one.folder))
    assert kept is not None
    return kept


@pytest.mark.parametrize(
    ("half", "said", "passed", "speed", "reason"),
    [
        (PartnerHalf("n2"), probes.pair_says(), True, Verdict.PASS, ""),
        (PartnerHalf("n2"), probes.pair_says(value=300), False, Verdict.FAIL, "all-reduce failed with n2"),
        (PartnerHalf("n2"), probes.pair_says(wrong=3), False, None, "sums of values were wrong"),
        (PartnerHalf("n2"), probes.section("python", ""), False, None, "its log proves nothing"),
        (PartnerHalf("n2"), "", False, None, "lost"),
        (PartnerHalf("n2", "failed: torch"), probes.pair_says(), False, None, "half failed: torch"),
        (PartnerHalf("", "n2: busy"), "", None, None, "it had no partner: n2: busy"),
    ],
)
def test_the_result_of_a_node_and_its_partner_is_recorded(
    tmp_path: Path, half: PartnerHalf, said: str, passed: bool | None, speed: Verdict | None, reason: str
) -> None:
    one = begun(tmp_path, references=(FLOOR,))
    write_probes(Path(one.folder), ProbeNight(asked=1, measured=("n1",)))
    record_pair(one, "n1", half, said, "0")
    kept = kept_of(one)
    # What the night measured by itself stays.
    assert kept.measured == ("n1",)
    assert [(pair.passed, pair.speed) for pair in kept.pairs] == ([] if passed is None else [(passed, speed)])
    told = kept.reasons.get("n1", ())
    assert [why.verdict for why in told] == ([Verdict.UNPROVEN] if reason else [])
    assert all(reason in why.text for why in told)


@pytest.mark.parametrize(
    ("value", "pairs", "rack", "speed"),
    [
        (380.0, 4, "r1", Verdict.PASS),
        (300.0, 4, "r1", Verdict.FAIL),
        # Too few pairs, or none of its rack: the sums are right, but the speed cannot be compared.
        (380.0, 3, "r1", None),
        (380.0, 8, "r2", None),
    ],
)
def test_a_speed_without_a_floor_is_compared_with_the_rack_s_pairs_of_earlier_nights(
    tmp_path: Path, value: float, pairs: int, rack: str, speed: Verdict | None
) -> None:
    names = [f"n{number}" for number in range(2, 2 + 2 * pairs)]
    one = begun(tmp_path, *(node_night(name, rack=rack) for name in names))
    met = tuple(
        PairResult(nodes=(first, second), passed=True, value=380.0 + number / 10, speed=Verdict.PASS)
        for number, (first, second) in enumerate(zip(names[::2], names[1::2], strict=True))
    )
    write_probes(tmp_path / EARLIER, ProbeNight(asked=1, pairs=met))
    record_pair(one, "n1", PartnerHalf("n2"), probes.pair_says(value=value), "0")
    (found,) = kept_of(one).pairs
    assert (found.passed, found.speed) == (speed is not Verdict.FAIL, speed)


LACKS = NightReason(check="probe", verdict=Verdict.UNPROVEN, metric="gemm", part="n1", text="no PyTorch")
PASSED = PairResult(nodes=("n1", "n2"), passed=True, value=380.0, text="380 GB/s")


@pytest.mark.parametrize(
    ("kept", "proofs", "gpus", "said"),
    [
        (None, (), 4, "reimage_acceptance leaves probes, pair out"),
        (ProbeNight(asked=1, measured=("n1",)), ("probes",), 4, "reimage_acceptance leaves pair out"),
        (ProbeNight(asked=1, measured=("n1",), pairs=(PASSED,)), BOTH, 4, ""),
        (ProbeNight(asked=1, pairs=(PASSED,)), BOTH, 0, "it has no GPU that could be measured"),
    ],
)
def test_what_was_left_out_is_reported(
    tmp_path: Path, kept: ProbeNight | None, proofs: tuple[str, ...], gpus: int, said: str
) -> None:
    folder = Path(begun(tmp_path, gpus=gpus).folder)
    if kept is not None:
        write_probes(folder, kept)
    remarks = check_acceptance(folder, "n1", proofs)
    assert len(remarks) == bool(said)
    assert said in "".join(remarks)


@pytest.mark.parametrize(
    ("kept", "proofs", "said"),
    [
        (None, ("probes",), "it was not measured"),
        (None, ("pair",), "it reduced with no partner"),
        (ProbeNight(asked=1, left_out={"n1": "out of service"}), BOTH, "out of service"),
        (ProbeNight(asked=1, measured=("n2",)), BOTH, "it was not measured"),
        (ProbeNight(asked=1, measured=("n1",)), BOTH, "it reduced with no partner"),
        (
            ProbeNight(asked=1, measured=("n1",), pairs=(PASSED.model_copy(update={"passed": False}),)),
            BOTH,
            "it reduced with no partner",
        ),
        (
            ProbeNight(asked=1, measured=("n1",), pairs=(PairResult(nodes=("n2", "n3"), passed=True),)),
            BOTH,
            "it reduced with no partner",
        ),
    ],
)
def test_what_was_to_be_proven_and_was_not_is_no_pass(
    tmp_path: Path, kept: ProbeNight | None, proofs: tuple[str, ...], said: str
) -> None:
    folder = Path(begun(tmp_path).folder)
    if kept is not None:
        write_probes(folder, kept)
    with pytest.raises(ReimageError, match=f"n1 is unproven: {said}"):
        check_acceptance(folder, "n1", proofs)


def test_a_node_that_is_bad_alone_meets_no_partner(tmp_path: Path) -> None:
    one = begun(tmp_path)
    assert find_own_failure(one, "n1") == ""
    slow = LACKS.model_copy(update={"verdict": Verdict.DEGRADED})
    write_probes(Path(one.folder), ProbeNight(asked=1, reasons={"n1": (slow,), "n2": (LACKS,)}))
    assert find_own_failure(one, "n1") == ""
    write_probes(Path(one.folder), ProbeNight(asked=1, reasons={"n1": (slow, LACKS)}))
    assert find_own_failure(one, "n1") == "gemm n1: no PyTorch"


def test_what_is_kept_is_one_file_of_the_night(tmp_path: Path) -> None:
    one = begun(tmp_path)
    for name in ("n1", "n4"):
        record_pair(one, name, PartnerHalf("", "busy"), "", "")
    kept = json.loads((Path(one.folder) / "probes.json").read_text())
    assert set(kept["reasons"]) == {"n1", "n4"}


class Here:
    """A runner of jobs in the place of JobRunner. It runs the partner's half on this machine, as node n2."""

    def __init__(self) -> None:
        self.said = ""

    def begin(self) -> None:
        pass

    end = begin

    def clock(self) -> float:
        return 0.0

    def run(self, jobs: list[Job]) -> list[JobResult]:
        (job,) = jobs
        done = subprocess.run(
            ["bash", "-s"],
            input=job.script,
            env=os.environ | {"SLURMD_NODENAME": "n2"},
            capture_output=True,
            text=True,
            timeout=150,
            check=False,
        )
        self.said = done.stdout + done.stderr
        return [classify_exit(self.said, str(done.returncode), 1.0)]


@pytest.mark.torch
def test_both_halves_reduce_with_each_other(tmp_path: Path, torch_python: Path) -> None:
    """The real scripts of both halves run on this machine with PyTorch and gloo."""
    plan = acceptance.without_budget(probes.plan(device="cpu", python=str(torch_python), pair_limit_s=90))
    # The partner finds rank 0 by the node's name.
    node = "localhost"
    mine = subprocess.Popen(
        ["bash", "-s"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=os.environ | {"SLURMD_NODENAME": node},
        text=True,
    )
    assert mine.stdin is not None
    mine.stdin.write(acceptance.node_script(plan, node))
    mine.stdin.close()
    mine.stdin = None
    here = Here()
    half = run_partner(plan, node, ["n2"], 0, here)  # type: ignore[arg-type]
    said = mine.communicate(timeout=150)[0]
    assert half == PartnerHalf("n2"), here.said
    one = begun(tmp_path)
    record_pair(one, "n1", half, said, str(mine.returncode))
    (pair,) = kept_of(one).pairs
    assert pair.passed, said
    assert pair.value is not None
    assert pair.value > 0
