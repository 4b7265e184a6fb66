"""Test ``rackproof.analysis.pair_speeds``, which judges the all-reduce of two nodes (a pair).

The bandwidth of a pair shows the network between its nodes. It is compared with the floor of the SKU, with
the other pairs of tonight, or with pairs of earlier nights of the same rack. If none of these exists, the
speed is unproven, even if the sums are right. The tests check each comparison, and what it means for the
nodes.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rackproof.analysis.pair_speeds import compare_pairs, read_pair
from rackproof.core.judging import SkuReference
from rackproof.core.records import Reference, Verdict
from rackproof.jobs.validate.fleet.node_readings import ProbeTarget
from rackproof.jobs.validate.fleet.pair_runner import measure_pairs, unproven_pairs
from rackproof.jobs.validate.fleet.probe_scheduler import probe_night
from rackproof.jobs.validate.judge import judge_fleet, night_policy
from rackproof.jobs.validate.tasks import begin_night
from rackproof.nodes.probe_slurm_jobs import Job, JobResult, classify_exit
from rackproof.store.night_store import night_folders, read_night
from rackproof.store.probe_results import PairResult, ProbeNight, write_probes
from tests.jobs.validate.probes import GPUS, RACK, ROOT, Answer, Slurm, pair_says, plan, runner, sound
from tests.jobs.validate.test_validating import NODES, look_at

FABRIC_ONLY = plan(chosen=("fabric",), share=1)


def floor(unit: str = "GB/s", **labels: str) -> SkuReference:
    """Return a reference of 380. A speed fails below 353.4, warns below 368.6, and is unproven above 456."""
    bounds = Reference(value=380, low=-0.07, warn=-0.03, high=0.2, unit=unit, source="S")
    return SkuReference(metric="fabric_busbw", labels=labels, reference=bounds)


@pytest.mark.parametrize(
    ("value", "references", "passed", "speed"),
    [
        (380, [floor()], True, "pass"),
        (365, [floor()], True, "degraded"),
        (300, [floor()], False, "fail"),
        # A speed above the upper bound or in another unit proves nothing, although the sums are right.
        (600, [floor()], True, "unproven"),
        (380, [floor("Gbit/s")], True, "unproven"),
        (380, [], True, None),
        # The reference is for a size that was not measured.
        (300, [floor(size_bytes="1")], True, None),
        # The worst of several counts.
        (365, [floor(), floor("Gbit/s")], True, "unproven"),
    ],
)
def test_a_pair_is_judged_by_the_floor(
    value: float, references: list[SkuReference], passed: bool, speed: str | None
) -> None:
    got = read_pair(("n1", "n2"), classify_exit(pair_says(value), "0", 1.0), references)
    assert (got.passed, got.speed and got.speed.value) == (passed, speed)


@pytest.mark.parametrize("size", ["abc", "1e9", "", "²", "9" * 5000, "-1", "1_0"])
def test_a_message_size_that_is_no_number_proves_nothing(size: str) -> None:
    text = pair_says().replace(f'"size_bytes": "{1 << 30}"', f'"size_bytes": "{size}"')
    got = read_pair(("n1", "n2"), classify_exit(text, "0", 1.0), [])
    assert (got.passed, got.value) == (False, None)
    assert got.text.startswith("its log proves nothing")
    wrong = pair_says(wrong=2).replace(f'"size_bytes": "{1 << 30}"', f'"size_bytes": "{size}"')
    got = read_pair(("n1", "n2"), classify_exit(wrong, "0", 1.0), [])
    assert got.text == "sums of values were wrong"


def pairs(*values: float) -> list[PairResult]:
    return [
        PairResult(nodes=(f"a{number}", f"b{number}"), passed=True, value=value, text=f"{value:g} GB/s")
        for number, value in enumerate(values)
    ]


# Bandwidths in GB/s. Five pairs are enough for a comparison.
@pytest.mark.parametrize(
    ("tonight", "before", "expected"),
    [
        ([380] * 5, [], ["pass"] * 5),
        ([380] * 4 + [300], [], ["pass"] * 4 + ["fail"]),
        # Few pairs: those of earlier nights of the same kind count, too.
        ([380], [379, 381, 380, 382], ["pass"]),
        ([300], [379, 381, 380, 382], ["fail"]),
        # With enough pairs tonight, earlier nights do not count. Other checks find a fleet that is slower.
        ([300] * 5, [380] * 50, ["pass"] * 5),
        # With too few pairs altogether, the right speed is unknown.
        ([380], [], [None]),
        ([380, 300], [380], [None, None]),
        ([380] * 4, [], [None] * 4),
    ],
)
def test_with_what_the_speed_of_pairs_is_compared(
    tonight: list[float], before: list[float], expected: list[str | None]
) -> None:
    got = compare_pairs(pairs(*tonight), before)
    assert [one.speed and one.speed.value for one in got] == expected
    assert [one.passed for one in got] == [one != "fail" for one in expected]


def test_what_a_floor_leaves_unproven_other_pairs_do_not_prove() -> None:
    some = [one.model_copy(update={"speed": Verdict.UNPROVEN}) for one in pairs(*[600.0] * 5)]
    assert {one.speed for one in compare_pairs(some)} == {Verdict.UNPROVEN}


@pytest.mark.parametrize(
    ("speed", "passed", "required", "gates", "remarked"),
    [
        (Verdict.PASS, True, True, False, False),
        (Verdict.DEGRADED, True, True, False, False),
        (None, True, True, True, False),
        (None, True, False, False, True),
        # A floor exists, so this is not a missing reference.
        (Verdict.UNPROVEN, True, False, True, False),
        # A failed pair has its own reasons.
        (Verdict.FAIL, False, True, False, False),
        (None, False, True, False, False),
    ],
)
def test_what_an_unproven_speed_means_for_the_nodes(
    speed: Verdict | None, passed: bool, required: bool, gates: bool, remarked: bool
) -> None:
    one = PairResult(nodes=("n1", "n2"), passed=passed, value=380, text="380 GB/s", speed=speed)
    reasons, remarks = unproven_pairs(ProbeNight(asked=1, pairs=(one,)), required)
    assert {name: [why.verdict for why in mine] for name, mine in reasons.items()} == (
        {"n1": [Verdict.UNPROVEN], "n2": [Verdict.UNPROVEN]} if gates else {}
    )
    assert ["n1+n2" in text for text in remarks] == ([True] if remarked else [])


def rack(
    count: int,
    past: tuple[ProbeNight, ...] = (),
    slow: tuple[str, ...] = (),
    floors: tuple[SkuReference, ...] = (),
) -> ProbeNight:
    """Return a night in which the pairs of a small rack met. Pairs with a node of ``slow`` have 300 GB/s."""
    targets = [ProbeTarget(name, GPUS, "h200", "r1", ("batch",), references=floors) for name in RACK[:count]]

    def answer(nodes: tuple[str, ...]) -> Answer:
        return (
            (pair_says(300 if set(slow) & set(nodes) else 380), 0, 45.0) if len(nodes) > 1 else sound(nodes)
        )

    slurm = Slurm(answer)
    return probe_night(FABRIC_ONLY, targets, past, runner(slurm, FABRIC_ONLY, RACK[:count]))[0]


class Jobs:
    """A runner of jobs that stores their scripts, and answers that the nodes are busy."""

    def __init__(self) -> None:
        self.started: dict[tuple[str, ...], str] = {}

    def run(self, jobs: list[Job]) -> list[JobResult]:
        self.started |= {one.nodes: one.script for one in jobs}
        return [JobResult("busy", "at work") for _ in jobs]


@pytest.mark.parametrize(
    ("domains", "asked"),
    [((True, True), True), ((True, False), False), ((False, True), False), ((False, False), False)],
)
def test_a_pair_of_an_nvlink_domain_has_to_meet_by_nvlink(domains: tuple[bool, bool], asked: bool) -> None:
    targets = [
        ProbeTarget(name, GPUS, "gb300", "r1", ("batch",), nvlink_domain=domain)
        for name, domain in zip(RACK[:2], domains, strict=True)
    ]
    jobs = Jobs()
    measure_pairs(FABRIC_ONLY, targets, RACK[:2], (), jobs)  # type: ignore[arg-type]
    (script,) = jobs.started.values()
    assert (" --mnnvl" in script) == asked
    assert "--sizes-mib 64,1024" in script


def test_two_nodes_alone_prove_their_speed_after_four_nights_and_a_fall_is_seen() -> None:
    past: tuple[ProbeNight, ...] = ()
    for number in range(6):
        got = rack(2, past)
        assert [one.speed for one in got.pairs] == [None if number < 4 else Verdict.PASS]
        past = (got, *past)
    got = rack(2, past, slow=RACK[:1])
    assert not got.pairs[0].passed
    assert "and those of earlier nights" in got.pairs[0].text
    # Without a third node, the faulty one of the two is unknown.
    assert {name: [one.verdict for one in mine] for name, mine in got.reasons.items()} == {
        name: [Verdict.UNPROVEN] for name in RACK[:2]
    }


def test_a_pair_below_its_warning_bound_degrades_the_pair_and_blames_no_node() -> None:
    got = rack(
        2,
        floors=(
            floor().model_copy(update={"reference": floor().reference.model_copy(update={"value": 395.0})}),
        ),
    )
    assert [(one.part, one.verdict.value) for one in got.between] == [("+".join(RACK[:2]), "degraded")]
    assert not got.reasons


def test_pairs_of_another_rack_prove_nothing_here() -> None:
    elsewhere = ProbeNight(
        asked=1,
        pairs=tuple(
            one.model_copy(update={"nodes": ("r2-n01", "r2-n02")}) for one in pairs(380, 380, 380, 380, 380)
        ),
    )
    assert [one.speed for one in rack(2, (elsewhere,)).pairs] == [None]


@pytest.mark.parametrize("required", [True, False])
def test_nodes_whose_pair_was_compared_with_nothing_are_no_pass(tmp_path: Path, required: bool) -> None:
    night = begin_night(tmp_path, NODES, owner_pid=os.getpid())
    for number in range(3):
        look_at(night, number)
    met = PairResult(nodes=NODES[:2], passed=True, value=380, text="380 GB/s")
    write_probes(Path(night.folder), ProbeNight(asked=1, pairs=(met,)))
    judge_fleet(
        night,
        asked=dict.fromkeys(NODES, ""),
        benchmarks=ROOT / "benchmarks",
        being_imaged={},
        measuring="",
        policy=night_policy(require_references=required),
    )
    kept = read_night(night_folders(tmp_path)[0])
    bare = "unproven" if required else "pass"
    said = [one.reason_texts() for one in kept.nodes]
    assert [one.verdict.value for one in kept.nodes] == [bare, bare, "pass"], said
    assert any("r1-n01+r1-n02" in one for one in kept.remarks) is not required
    assert not any(one.plan for one in kept.nodes)
