"""Test the measurements of a night: ``probe_scheduler``, ``node_readings`` and the probes' job scripts.

A night measures idle nodes with short programs (probes) and pairs of nodes, as Slurm jobs within a budget of
GPU-minutes. The tests use a simulated Slurm. They check which nodes are measured, which node, GPU or link is
blamed for a fault, that other nodes are not blamed, that the budget is never exceeded, and that hostile
output of one node is not used for others.
"""

from __future__ import annotations

import ast
import base64
import io
import random
import re
import tarfile
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations

import pytest

from rackproof.analysis.pair_speeds import read_pair
from rackproof.core.records import Verdict
from rackproof.jobs.validate.errors import ValidateError
from rackproof.jobs.validate.fleet.node_readings import (
    ProbeTarget,
    compare_digests,
    read_digests,
    read_node_probes,
    wanted_probes,
)
from rackproof.jobs.validate.fleet.pair_runner import _fabric_reasons, _PairRunner
from rackproof.jobs.validate.fleet.probe_scheduler import describe_probes, probe_night
from rackproof.jobs.validate.probes import check_budget
from rackproof.nodes.probe_slurm_jobs import (
    MARK,
    PROBES,
    SHARED_FILES,
    Job,
    ProbeError,
    ProbePlan,
    classify_exit,
    job_script,
    probe_arguments,
    split_sections,
)
from rackproof.store.probe_results import PairResult, ProbeNight
from tests.jobs.validate.probes import (
    GPUS,
    RACK,
    ROOT,
    Answer,
    Slurm,
    digest,
    gpu,
    line,
    log,
    measurement,
    node_says,
    pair_says,
    plan,
    runner,
    section,
    sound,
)


def targets(nodes: tuple[str, ...] = RACK, **busy: str) -> list[ProbeTarget]:
    return [
        ProbeTarget(name, GPUS, "h200", "r1", ("batch",), busy=busy.get(name.replace("-", "_"), ""))
        for name in nodes
    ]


def night(
    answer: Answer = sound,
    past: tuple[ProbeNight, ...] = (),
    how_: ProbePlan | None = None,
    some: list[ProbeTarget] | None = None,
) -> tuple[ProbeNight, Slurm]:
    """Measure a night of a rack whose jobs have these answers."""
    slurm, how_, some = Slurm(answer), how_ or plan(), some or targets()
    got, _ = probe_night(how_, some, past, runner(slurm, how_, tuple(one.name for one in some)))
    return got, slurm


def failing(*bad: str, links: tuple[frozenset[str], ...] = (), hang: bool = False) -> Answer:
    """Return answers in which pairs with a bad node or link have wrong sums, or hang."""

    def answer(nodes: tuple[str, ...]) -> tuple[str, int | None, float]:
        if len(nodes) > 1 and (set(bad) & set(nodes) or any(link <= set(nodes) for link in links)):
            return (section("fabric", "", None), None, 1e9) if hang else (pair_says(wrong=3), 0, 30.0)
        return sound(nodes)

    return answer


def verdicts(one: ProbeNight, verdict: Verdict = Verdict.FAIL) -> dict[str, list[str]]:
    """Return the codes of each node's reasons that have this verdict."""
    found = {name: [why.code for why in mine if why.verdict is verdict] for name, mine in one.reasons.items()}
    return {name: codes for name, codes in found.items() if codes}


def test_a_sound_rack_is_measured_and_no_node_is_blamed() -> None:
    got, slurm = night()
    assert got.measured == RACK
    assert not got.reasons
    assert not got.between
    assert len(got.pairs) == 9
    assert slurm.most <= 4  # a quarter of 18
    # 18 jobs of a node and 9 of two nodes, of 45 s each, rounded up to the next poll.
    assert got.spent == pytest.approx((18 + 9 * 2) * GPUS * 48 / 60, rel=0.1)
    assert describe_probes(got)[0].startswith("measured: 18 nodes, 9 pairs, ")


@pytest.mark.parametrize(
    ("asked", "text"), [(2000.0, "2000"), (1_234_567.0, "1234567"), (104.5, "104.5"), (9e6, "9000000")]
)
def test_a_large_budget_is_shown_with_all_digits(asked: float, text: str) -> None:
    assert describe_probes(ProbeNight(asked=asked))[0].endswith(f" of {text} GPU-minutes")


def test_in_seventeen_nights_every_two_nodes_have_met() -> None:
    past: tuple[ProbeNight, ...] = ()
    for _ in range(17):
        got, _ = night(past=past, how_=plan(chosen=("fabric",)))
        past = (got, *past)
    met = {one.nodes for one in past for one in one.pairs}
    assert met == set(combinations(RACK, 2))


def test_a_node_without_a_partner_meets_the_node_that_it_met_longest_ago() -> None:
    how_ = plan(chosen=("fabric",), share=0.5)
    first, _ = night(how_=how_, some=targets(RACK[:5], r1_n02="at work"))
    assert {name for one in first.pairs for name in one.nodes} == {RACK[0], *RACK[2:5]}
    assert len(first.pairs) == 2


@pytest.mark.parametrize("hang", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_the_bad_node_of_a_pair_is_distinguished_from_its_partner(seed: int, hang: bool) -> None:
    bad = random.Random(seed).sample(RACK, 1 + seed % 2)
    got, slurm = night(failing(*bad, hang=hang))
    assert verdicts(got) == {name: ["pair:fabric"] for name in sorted(bad)}
    assert not verdicts(got, Verdict.UNPROVEN)
    assert not got.between
    assert bool(slurm.cancelled) == hang


def test_two_bad_nodes_that_met_each_other_are_both_found() -> None:
    first, _ = night()
    bad = first.pairs[0].nodes
    got, _ = night(failing(*bad))
    assert verdicts(got) == {name: ["pair:fabric"] for name in bad}


def test_a_link_between_two_sound_nodes_is_the_links() -> None:
    first, _ = night()
    link = first.pairs[3].nodes
    got, _ = night(failing(links=(frozenset(link),)))
    assert not verdicts(got)
    assert [(one.part, one.verdict) for one in got.between] == [("+".join(link), Verdict.FAIL)]


class Rounds(_PairRunner):
    """A runner of pairs without jobs. Pairs with a bad node fail, and others each time in the first round."""

    def __init__(self, bad: set[str], flaky: set[str]) -> None:
        self.bad, self.flaky, self.met, self.remarks = bad, flaky, [], []

    def meet(self, groups: Sequence[tuple[str, ...]]) -> list[PairResult]:
        first = not self.met
        self.met += groups
        return [
            PairResult(
                nodes=nodes, passed=not self.bad & set(nodes) and not (first and self.flaky >= set(nodes))
            )
            for nodes in groups
        ]


@pytest.mark.parametrize(("bad", "flaky"), [(4, 4), (4, 6), (4, 8), (4, 12), (2, 12)])
def test_nodes_of_a_larger_group_that_passed_are_not_suspects(bad: int, flaky: int) -> None:
    """With one good pair and many suspects, halves of the suspects are measured."""
    names = {kind: [f"{kind}{number:02d}" for number in range(1, 13)] for kind in "abg"}
    bad_nodes, good = set(names["a"][:bad]), names["b"][:flaky]
    pairs = [("g01", "g02"), *zip(names["a"][:bad:2], names["a"][1 : bad + 1 : 2], strict=True)]
    pairs += zip(good[::2], good[1::2], strict=True)
    rounds = Rounds(bad_nodes, set(good))
    results = rounds.measure_rack(pairs, [])
    reasons, between = _fabric_reasons(results)
    larger = {name for one in results if len(one.nodes) > 2 and one.passed for name in one.nodes}
    assert larger
    assert not larger & reasons.keys()
    # Each bad node meets both good nodes once, instead of one of them twice.
    assert {name for name, why in reasons.items() if why.verdict is Verdict.FAIL} == bad_nodes
    assert {pair for pair in rounds.met if rounds.met.count(pair) > 1 and {"g01", "g02"} & set(pair)} == set()
    # The link of a failed pair is at fault if both nodes pass with others.
    known = {"+".join(pair) for pair in pairs if set(pair) <= set(good) - reasons.keys()}
    assert {one.part for one in between} == known


def test_if_no_node_passes_no_node_is_called_bad() -> None:
    got, _ = night(failing(*RACK))
    assert not verdicts(got)
    assert set(verdicts(got, Verdict.UNPROVEN)) == set(RACK)


def test_one_slow_pair_among_many_is_found_and_noise_is_not() -> None:
    dice = random.Random(3)

    def answer(nodes: tuple[str, ...]) -> tuple[str, int | None, float]:
        slow = 0.8 if RACK[4] in nodes else 1.0
        said_ = pair_says(380 * slow * dice.gauss(1, 0.006))
        return (said_, 0, 30.0) if len(nodes) > 1 else sound(nodes)

    got, _ = night(answer)
    assert verdicts(got) == {RACK[4]: ["pair:fabric"]}
    assert "off the median of tonight's pairs" in got.reasons[RACK[4]][0].text


def test_wrong_values_fail_and_name_the_gpu() -> None:
    def answer(nodes: tuple[str, ...]) -> tuple[str, int | None, float]:
        return (node_says(nodes[0], wrong=7), 0, 45.0) if nodes == (RACK[2],) else sound(nodes)

    got, _ = night(answer)
    assert verdicts(got) == {RACK[2]: ["probe:gemm wrong_values"]}
    assert got.reasons[RACK[2]][0].part == gpu(RACK[2], 2)
    assert all(RACK[2] not in one.nodes for one in got.pairs)


def test_other_bits_than_the_fleet_are_silent_corruption() -> None:
    def answer(nodes: tuple[str, ...]) -> tuple[str, int | None, float]:
        if nodes == (RACK[7],):
            return node_says(nodes[0], bits={1: "b" * 64}), 0, 45.0
        return sound(nodes)

    got, _ = night(answer)
    assert verdicts(got) == {RACK[7]: ["bits:training step"]}
    (why,) = got.reasons[RACK[7]]
    assert why.part == gpu(RACK[7], 1)
    assert "71 devices" in why.text
    assert got.digests == {"H200, torch 2": "a" * 64}


def test_two_nodes_that_disagree_need_known_bits() -> None:
    found = {"n1": [("H200", "g1", "a" * 64)], "n2": [("H200", "g2", "b" * 64)]}
    reasons, agreed, _ = compare_digests(found, {})
    assert [one.verdict for mine in reasons.values() for one in mine] == [Verdict.UNPROVEN] * 2
    assert not agreed
    reasons, _, _ = compare_digests(found, {"H200": "b" * 64})
    assert {name: mine[0].verdict for name, mine in reasons.items()} == {"n1": Verdict.FAIL}


def test_a_fleet_that_changes_its_bits_together_is_reported_and_not_failed() -> None:
    found = {f"n{one}": [("H200", f"g{one}", "c" * 64)] for one in range(4)}
    reasons, agreed, remarks = compare_digests(found, {"H200": "a" * 64})
    assert not reasons
    assert agreed == {"H200": "c" * 64}
    assert "other bits than in earlier nights on 4 of 4" in remarks[0]


@pytest.mark.parametrize(("changed", "kept"), [(3, 1), (17, 1), (5, 4)])
def test_most_devices_against_one_that_still_gives_the_known_bits_prove_nothing(
    changed: int, kept: int
) -> None:
    bits = ["a" * 64] * changed + ["b" * 64] * kept
    found = {f"n{one}": [("H200", f"g{one}", mine)] for one, mine in enumerate(bits)}
    reasons, agreed, remarks = compare_digests(found, {"H200": "b" * 64})
    assert {name: [one.verdict for one in mine] for name, mine in reasons.items()} == {
        name: [Verdict.UNPROVEN] for name in found
    }
    assert agreed == {"H200": "b" * 64}
    assert f"other bits than in earlier nights on {changed} of {len(bits)}" in remarks[0]


def test_a_node_that_differs_from_a_fleet_that_changed_its_bits_together_fails() -> None:
    found = {f"n{one}": [("H200", f"g{one}", ("c" if one else "d") * 64)] for one in range(5)}
    reasons, agreed, _ = compare_digests(found, {"H200": "a" * 64})
    assert {name: mine[0].verdict for name, mine in reasons.items()} == {"n0": Verdict.FAIL}
    assert agreed == {"H200": "c" * 64}


@pytest.mark.parametrize(
    "text",
    [
        "",
        ":::MLLOG {",
        ':::MLLOG {"value": 3} "training_digest"',
        digest("n01", 1, "x"),
        "x " + digest("n01", 1),
        ':::MLLOG {"x":"training_digest","value":' + "[" * 100_000,
        ':::MLLOG {"x":"training_digest","value":{"labels":{},"digest":' + '{"a":' * 50_000,
        ':::MLLOG {"x":"training_digest","value":' + "9" * 5000 + "}",
    ],
    ids=range(8),
)
def test_other_text_is_not_read_as_a_digest(text: str) -> None:
    assert read_digests(text) == []


def crash(times: int, status: int = 1, name: str = "gemm") -> Answer:
    """Return answers in which a program of one node crashes so many times."""
    left = [times]

    def answer(nodes: tuple[str, ...]) -> tuple[str, int | None, float]:
        if nodes == (RACK[5],) and left[0]:
            left[0] -= 1
            text = section("python", "", status if name == "python" else 0)
            return (text if name == "python" else text + section(name, "CUDA error: 700", status), 0, 20.0)
        return sound(nodes)

    return answer


def test_a_program_that_dies_is_tried_again_before_its_node_is_called_bad() -> None:
    once, _ = night(crash(1))
    assert verdicts(once, Verdict.DEGRADED) == {RACK[5]: ["probe:job"]}
    assert not verdicts(once)
    twice, _ = night(crash(2))
    assert verdicts(twice) == {RACK[5]: ["probe:job"]}
    assert "CUDA error: 700" in twice.reasons[RACK[5]][-1].text


@pytest.mark.parametrize(
    "second",
    [
        ("", 1),
        ("srun: error: Unable to allocate resources: Invalid account", 1),
        ("srun: error: Unable to allocate resources: Requested nodes are busy", 1),
    ],
    ids=["lost", "refused", "busy"],
)
@pytest.mark.parametrize(
    ("fault", "code"),
    [({"wrong": 3}, "probe:gemm wrong_values"), ({"bits": {1: "b" * 64}}, "bits:training step")],
)
def test_a_second_job_that_measured_nothing_hides_no_fault_of_the_first(
    second: tuple[str, int], fault: dict[str, object], code: str
) -> None:
    tries = [0]

    def answer(nodes: tuple[str, ...]) -> tuple[str, int | None, float]:
        if nodes != (RACK[5],):
            return sound(nodes)
        tries[0] += 1
        return (node_says(RACK[5], **fault), 1, 20.0) if tries[0] == 1 else (*second, 2.0)  # type: ignore[arg-type]

    got, _ = night(answer)
    assert tries == [2]
    assert verdicts(got) == {RACK[5]: [code]}


def test_two_jobs_that_slurm_lost_are_unproven() -> None:
    got, _ = night(lambda nodes: ("", 1, 2.0) if nodes == (RACK[5],) else sound(nodes))
    assert not verdicts(got)
    assert verdicts(got, Verdict.UNPROVEN) == {RACK[5]: ["probe:job"]}
    assert "Slurm started nothing" in got.reasons[RACK[5]][0].text


def test_a_node_without_the_interpreter_is_unproven_and_not_bad() -> None:
    got, _ = night(crash(2, 1, "python"))
    assert not verdicts(got)
    assert set(verdicts(got, Verdict.UNPROVEN)) == {RACK[5]}


def test_where_every_program_dies_the_tool_is_at_fault() -> None:
    dead = section("python", "") + section("gemm", "no module", 1)
    got, _ = night(lambda nodes: (dead, 0, 20.0))
    assert not verdicts(got)
    assert set(verdicts(got, Verdict.UNPROVEN)) == set(RACK)


def test_a_busy_node_is_not_measured_and_is_no_finding() -> None:
    busy = "srun: error: Unable to allocate resources: Requested nodes are busy"

    def answer(nodes: tuple[str, ...]) -> tuple[str, int | None, float]:
        return (busy, 1, 2.0) if RACK[1] in nodes else sound(nodes)

    got, slurm = night(answer, some=targets(r1_n01="at work"))
    assert (RACK[0],) not in slurm.started
    assert set(got.left_out) == {RACK[0], RACK[1]}
    assert not got.reasons
    assert len(got.measured) == 16


def test_drained_nodes_are_measured_beside_the_budget() -> None:
    how_ = plan(minutes=4 * 4 * 11.0, chosen=("gemm",), share=1)
    names = RACK[:5]
    slurm, some = Slurm(sound), targets(names, r1_n01="drained")
    direct = {RACK[0]: classify_exit(section("python", "") + node_says(RACK[0]), "0", 500.0)}
    got, _ = probe_night(how_, some, (), runner(slurm, how_, names), direct)
    assert got.measured == names
    assert got.spent <= how_.minutes


def test_a_device_that_no_other_is_like_proves_nothing_by_its_bits() -> None:
    _, agreed, remarks = compare_digests({"n1": [("H200", "g1", "a" * 64)]}, {})
    assert not agreed
    assert "the training step of n1 was compared with nothing" in remarks[0]
    assert compare_digests({"n1": [("H200", "g1", "a" * 64)]}, {"H200": "a" * 64})[2] == ()
    reasons, _, _ = compare_digests({"n1": [("H200", "g1", "b" * 64)]}, {"H200": "a" * 64})
    assert "as in earlier nights gave other bits" in reasons["n1"][0].text


def test_a_drained_node_that_could_not_be_measured_is_unproven_and_gives_the_reason() -> None:
    slurm, how_, some = Slurm(sound), plan(), targets(r1_n01="drained")
    lost = {RACK[0]: classify_exit("no route to host", "255", 4.0)}
    got, _ = probe_night(how_, some, (), runner(slurm, how_, RACK), lost)
    assert set(verdicts(got, Verdict.UNPROVEN)) == {RACK[0]}
    assert got.reasons[RACK[0]][0].text == "it could not be measured: no route to host"
    assert (RACK[0],) not in slurm.started


def test_the_budget_is_never_exceeded_and_no_node_is_left_out_for_ever() -> None:
    past: tuple[ProbeNight, ...] = ()
    how_ = plan(minutes=60.0, chosen=("gemm", "training-step"), node_limit_s=300)
    for _ in range(3):
        got, _ = night(past=past, how_=how_)
        assert got.spent <= 60.0
        assert got.left_out
        assert set(got.left_out.values()) == {"the night's GPU-minutes are used up"}
        past = (got, *past)
    assert {name for one in past for name in one.measured} == set(RACK)


@pytest.mark.parametrize("minutes", [1.0, 10.0, 43.9])
def test_a_budget_that_measures_nothing_names_what_it_needs(minutes: float) -> None:
    got, slurm = night(how_=plan(minutes=minutes, chosen=("gemm",)))
    assert (slurm.started, got.spent) == ([], 0)
    reasons = set(got.left_out.values())
    assert all(f"validate_probe_gpu_minutes is {minutes:g}: set it to 44 at least" in one for one in reasons)
    assert len(got.left_out) == len(RACK)
    # The named minutes are enough for one node.
    assert night(how_=plan(minutes=44.0, chosen=("gemm",)))[0].measured


@pytest.mark.parametrize(
    ("minutes", "chosen", "gpus", "needed"),
    [
        # A node's job takes 11 minutes at most, and that of a pair 4 minutes on each node.
        (43.9, ("gemm",), {"a": 4, "b": 8}, 44),
        (1, ("gemm", "training-step", "fabric"), {"a": 8}, 88),
        (10, ("gemm",), {"a": "{{ gpus }}", "b": None}, 11),
        (60, ("soak",), {"a": 4}, 104),
        (31, ("fabric",), {"a": 4, "b": 8}, 32),
        (44, ("gemm",), {"a": 4, "b": 8}, 0),
        (11, ("gemm",), {"a": 8, "b": None}, 0),
        # These need another node or another GPU, so no number of minutes would help.
        (1, ("fabric",), {"a": 4}, 0),
        (1, ("peer",), {"a": 1}, 0),
    ],
)
def test_a_budget_that_fits_no_job_is_refused_with_the_number_that_is_enough(
    minutes: float, chosen: tuple[str, ...], gpus: dict[str, object], needed: int
) -> None:
    how_ = plan(minutes=minutes, chosen=chosen)
    if not needed:
        check_budget(how_, gpus)
        return
    with pytest.raises(ValidateError, match=f"set it to {needed} at least, or to 0 to measure nothing"):
        check_budget(how_, gpus)
    check_budget(replace(how_, minutes=needed), gpus)


def test_the_budget_is_not_passed_even_where_all_hangs() -> None:
    got, slurm = night(lambda _: (section("python", "", None), None, 1e9), how_=plan(minutes=100.0))
    assert slurm.cancelled
    assert 0 < got.spent <= 100.0


def test_a_partition_too_small_for_pairs_reports_it() -> None:
    got, _ = night(some=targets(RACK[:4]))
    assert got.measured == RACK[:4]
    assert not got.pairs
    assert "validate_probe_share" in got.remarks[0]


def test_a_silent_controller_ends_the_measuring_and_not_the_night() -> None:
    slurm, how_ = Slurm(sound), plan()
    jobs = runner(slurm, how_)
    slurm.silent_from = 10.0
    with pytest.raises(ProbeError, match="Connection timed out"):
        probe_night(how_, targets(), (), jobs)
    jobs.end()
    assert slurm.now < 120


def test_a_script_holds_no_more_than_bash_needs() -> None:
    text = job_script(plan(), [], ["n1", "it's"], 100)
    assert "'it'\"'\"'s') rank=1;;" in text
    assert "--rendezvous" not in text


@pytest.mark.parametrize(
    ("text", "status", "expected"),
    [
        ("", "1", "lost"),
        ("srun: error: gb300: task 0: Killed", "137", "lost"),
        ("srun: error: Unable to allocate resources: Requested nodes are busy", "1", "busy"),
        ("srun: job 5 queued and waiting for resources", "1", "busy"),
        ("srun: Required node not available (down, drained or reserved)", "1", "busy"),
        # These are mistakes in the request, and not busy nodes. Every night would repeat them.
        ("srun: error: Unable to allocate resources: Invalid account", "1", "lost"),
        (
            "srun: error: Unable to allocate resources: Requested node configuration is not available",
            "1",
            "lost",
        ),
        ("mktemp: failed to create directory: Device or resource busy", "1", "lost"),
        (section("gemm", "x", None), "1", "hung"),
        (section("gemm", "x", 124), "0", "hung"),
        (section("gemm", "x", 3), "0", "failed"),
        (section("gemm", "x"), "1", "failed"),
        (section("gemm", "x"), "0", "ok"),
    ],
)
def test_how_a_job_ended(text: str, status: str, expected: str) -> None:
    assert classify_exit(text, status, 1.0).how == expected


def test_what_names_no_gpu_is_the_nodes_and_links_stay_links() -> None:
    """The record has the numbers of all nodes in one run, so each number needs a label of its node."""
    ends = {"from": gpu(RACK[0], 0), "to": gpu(RACK[0], 1)}
    wrong = measurement("wrong_values", 0, "1", "lower")
    peer = log(measurement("peer_copy", 395.0, "GB/s", "higher", **ends), wrong)
    size = {"size_bytes": "8388608"}
    reduced = log(measurement("all_reduce_busbw", 160.0, "GB/s", "higher", **size), wrong)
    text = "\n".join([section("python", ""), section("peer", peer), section("all-reduce", reduced)])
    how_ = plan(chosen=("peer", "all-reduce"))
    got = read_node_probes(how_, ProbeTarget(RACK[0], 2), classify_exit(text, "0", 1.0))
    assert [one.labels for one in got.measurements] == [ends, size | {"node": RACK[0]}]


def test_marks_inside_a_programs_text_do_not_end_it() -> None:
    (one,) = split_sections(f"{MARK}begin gemm\nsaid {MARK}end 0\n{MARK}end 5")
    assert (one.name, one.status) == ("gemm", 5)


def test_a_jobs_longest_time_is_what_it_is_counted_with() -> None:
    assert Job(("a", "b"), "", 4, 90).minutes == 20.0
    assert Job(("a",), "", 0, 60).minutes == 2.0


def test_a_job_that_fails_after_its_programs_ended_well_is_no_pass() -> None:
    got, _ = night(lambda nodes: (sound(nodes)[0], 1, 45.0), how_=plan(chosen=("gemm", "training-step")))
    assert not got.measured
    assert verdicts(got, Verdict.UNPROVEN) == {name: ["probe:job"] for name in RACK}


def test_a_node_that_failed_once_without_a_second_measurement_is_not_called_bad() -> None:
    """A second try is impossible, because the budget is used up."""
    how_ = plan(chosen=("gemm",), minutes=18 * 4 * 3.0, node_limit_s=180, share=1)

    def answer(nodes: tuple[str, ...]) -> tuple[str, int | None, float]:
        if nodes == (RACK[5],):
            return section("python", "") + section("gemm", "CUDA error: 700", 1), 0, 170.0
        return (sound(nodes)[0], 0, 178.0)

    got, slurm = night(answer, how_=how_)
    assert got.spent <= how_.minutes
    assert slurm.started.count((RACK[5],)) == 1
    assert not verdicts(got)
    assert set(verdicts(got, Verdict.UNPROVEN)) == {RACK[5]}


@pytest.mark.parametrize("value", [float("nan"), 0.0, -1.0])
def test_a_bandwidth_that_is_none_does_not_pass(value: float) -> None:
    labels = {"nodes": "2"}
    numbers = [
        measurement("fabric_busbw", number, "GB/s", "higher", size_bytes=str(size), **labels)
        for number, size in ((380.0, 1 << 26), (value, 1 << 30))
    ]
    text = section("python", "") + section(
        "fabric", log(*numbers, measurement("wrong_values", 0, "1", "lower", **labels))
    )
    assert not read_pair(("n1", "n2"), classify_exit(text, "0", 1.0), ()).passed


def test_a_small_budget_lets_other_pairs_meet_every_time_round() -> None:
    """Four nodes have six pairs. The budget is enough for one pair a night, so all meet in six nights."""
    nodes = RACK[:4]
    how_ = plan(chosen=("fabric",), minutes=32.0, share=1)
    past: tuple[ProbeNight, ...] = ()
    for _ in range(6):
        got, _ = night(lambda _: (pair_says(), 0, 170.0), past=past, how_=how_, some=targets(nodes))
        assert len(got.pairs) == 1
        past = (got, *past)
    assert {one.nodes for one in past for one in one.pairs} == set(combinations(nodes, 2))


@pytest.mark.parametrize(("speeds", "checked"), [(3, 4), (4, 3)])
def test_a_gpu_that_said_nothing_has_not_passed(speeds: int, checked: int) -> None:
    """No other node is measured, so the node's own number of GPUs shows that one result is missing."""
    name = RACK[0]
    gemm = [
        measurement("gemm_best", 790.0, "TFLOP/s", "higher", dtype="bf16", gpu=gpu(name, slot))
        for slot in range(speeds)
    ]
    wrong = [measurement("wrong_values", 0, "1", "lower", gpu=gpu(name, slot)) for slot in range(checked)]
    text = section("python", "") + section("gemm", log(*gemm, *wrong))
    got = read_node_probes(
        plan(chosen=("gemm",)), ProbeTarget(name, GPUS, "h200"), classify_exit(text, "0", 1.0)
    )
    (why,) = got.reasons
    assert why.verdict is Verdict.UNPROVEN
    assert "3 of 4 GPUs gave a result" in why.text


@pytest.mark.parametrize(("used_percent", "shared"), [(0, False), (45, True)])
def test_a_gpu_that_something_else_uses_proves_nothing(used_percent: int, shared: bool) -> None:
    name = RACK[0]
    gemm = [
        measurement("gemm_best", 790.0, "TFLOP/s", "higher", dtype="bf16", gpu=gpu(name, slot))
        for slot in range(GPUS)
    ]
    right = [measurement("wrong_values", 0, "1", "lower", gpu=gpu(name, slot)) for slot in range(GPUS)]
    state = {"moment": "begin", "gpu": gpu(name, 2), "memory_used_mib": 4, "processes": []}
    stated = line("gpu_state", {**state, "utilisation_percent": used_percent})
    text = section("python", "") + section("gemm", log(stated, *gemm, *right))
    got = read_node_probes(plan(chosen=("gemm",)), own_target(), classify_exit(text, "0", 1.0))
    assert [one.verdict for one in got.reasons] == [Verdict.UNPROVEN] * shared
    assert all(gpu(name, 2) in one.text and "busy 45 %" in one.text for one in got.reasons)


def test_numbers_of_a_gpu_that_was_not_seen_in_the_node_prove_nothing() -> None:
    name = RACK[0]
    target = ProbeTarget(name, GPUS, "h200", uuids=frozenset(gpu(name, slot) for slot in range(1, GPUS + 1)))
    text = section("python", "") + node_says(name)
    got = read_node_probes(plan(chosen=("gemm",)), target, classify_exit(text, "0", 1.0))
    assert [one.verdict for one in got.reasons] == [Verdict.UNPROVEN]
    assert f"{gpu(name, 0)}: not a GPU of this node" in got.reasons[0].text


def own_target(name: str = RACK[0]) -> ProbeTarget:
    return ProbeTarget(name, GPUS, "h200", uuids=frozenset(gpu(name, slot) for slot in range(GPUS)))


@pytest.mark.parametrize(
    "lie",
    [
        measurement("gemm_best", 1.0, "TFLOP/s", "higher", dtype="bf16", gpu=gpu(RACK[1], 0)),
        measurement("gemm_best", 1.0, "TFLOP/s", "higher", dtype="bf16", node=RACK[1]),
        measurement("gemm_best", 1.0, "TFLOP/s", "higher", dtype="bf16", host=RACK[1], gpu=gpu(RACK[0], 0)),
        measurement(
            "gemm_best", 1.0, "TFLOP/s", "higher", **{"from": gpu(RACK[0], 0), "to": gpu(RACK[1], 0)}
        ),
        measurement("wrong_values", 7, "1", "lower", gpu=gpu(RACK[1], 3)),
    ],
)
def test_numbers_about_other_nodes_are_dropped(lie: str) -> None:
    name = RACK[0]
    gemm = [
        measurement("gemm_best", 790.0, "TFLOP/s", "higher", dtype="bf16", gpu=gpu(name, slot))
        for slot in range(GPUS)
    ]
    right = [measurement("wrong_values", 0, "1", "lower", gpu=gpu(name, slot)) for slot in range(GPUS)]
    text = section("python", "") + section("gemm", log(*gemm, *right, lie))
    got = read_node_probes(plan(chosen=("gemm",)), own_target(), classify_exit(text, "0", 1.0))
    assert {one.labels["gpu"] for one in got.measurements} == {gpu(name, slot) for slot in range(GPUS)}
    assert {one.value for one in got.measurements} == {790.0}
    assert Verdict.FAIL not in {one.verdict for one in got.reasons}


SDC_PATHS = ("fp8", "bf16", "fp16", "tf32", "fp32", "fp64", "special", "atomics")


def sdc_says(wrong: dict[int, int], fewest: float = 5000, leave: str = "") -> str:
    """Return the output of probe sdc (silent data corruption).

    Args:
        wrong: The number of wrong bf16 words by slot.
        fewest: The smallest number of launches of a path. The bound is 4603.
        leave: A path whose measurement odd_answers is missing.
    """
    events = [
        measurement(
            "wrong_copied_words", 0, "1", "lower", **{"from": gpu(RACK[0], one), "to": gpu(RACK[0], two)}
        )
        for one in range(GPUS)
        for two in range(GPUS)
        if one != two
    ]
    for slot in range(GPUS):
        own = {"gpu": gpu(RACK[0], slot)}
        events += [measurement("memory_share", 0.93, "1", "higher", **own)]
        events += [measurement("untested_paths", 0, "1", "lower", **own)]
        for path in SDC_PATHS:
            count = wrong.get(slot, 0) if path == "bf16" else 0
            values = {"wrong_words": count, "lost_blocks": 0, "odd_answers": 0}
            events += [
                measurement(name, value, "1", "lower", path=path, **own)
                for name, value in values.items()
                if (name, path) != ("odd_answers", leave)
            ]
            events += [measurement("fewest_launches", fewest, "1", "higher", path=path, **own)]
    return section("python", "") + section("sdc", log(*events))


@pytest.mark.parametrize(
    ("text", "verdict", "part"),
    [
        (sdc_says({}), None, ""),
        (sdc_says({2: 7}), Verdict.FAIL, gpu(RACK[0], 2)),
        (sdc_says({}, fewest=10), Verdict.UNPROVEN, gpu(RACK[0], 0)),
        (sdc_says({}, leave="special"), Verdict.UNPROVEN, RACK[0]),
        (section("python", ""), Verdict.UNPROVEN, RACK[0]),
    ],
    ids=["clean", "wrong words", "few launches", "no reference", "not run"],
)
def test_silent_corruption_is_judged_by_its_benchmarks_rules(
    text: str, verdict: Verdict | None, part: str
) -> None:
    got = read_node_probes(plan(chosen=("sdc",)), own_target(), classify_exit(text, "0", 1.0))
    assert got.sound == (() if verdict else ("sdc",))
    assert not got.measurements
    assert {one.verdict for one in got.reasons} == ({verdict} if verdict else set())
    assert not verdict or part in {one.part for one in got.reasons}


@pytest.mark.parametrize(
    ("name", "program", "more"),
    [("sdc", "probe_sdc", "sdc_*"), ("soak", "probe_soak", ""), ("llm", "llm_torch", "")],
)
def test_an_optional_test_runs_where_it_is_named_and_carries_its_files(
    name: str, program: str, more: str
) -> None:
    named = plan(chosen=(name,))
    assert [one.name for one in wanted_probes(named, own_target())] == [name]
    assert bool(wanted_probes(plan(chosen=(name,), device="cpu"), own_target())) == (name != "sdc")
    assert name not in ProbePlan(1.0, 0.25, "python3", ROOT, ROOT).chosen
    script = job_script(named, wanted_probes(named, own_target()), ["n1"], 100)
    packed = base64.b64decode(script.split("<<'END'", 1)[1].split("\n", 1)[1].split("\nEND\n", 1)[0])
    with tarfile.open(fileobj=io.BytesIO(packed)) as tar:
        carried = set(tar.getnames())
    files = {path.name for path in (ROOT / "workloads").glob(more)} if more else set()
    assert carried >= imported_with(program) | files
    assert carried <= imported_with(program) | files | set(SHARED_FILES)


def test_a_program_is_given_only_options_that_it_has() -> None:
    """An unknown option would end the program every night."""
    for probe in PROBES:
        source = (ROOT / "workloads" / probe.program).read_text()
        source += (ROOT / "workloads/common.py").read_text() * ("common.probe_parser" in source)
        for device in ("gpu", "cpu"):
            given = probe_arguments(probe, device)
            script = job_script(plan(device=device), [probe], ["n1"], 100).splitlines()
            (command,) = [one for one in script if f"/{probe.program} " in one]
            options = re.findall(r" (--[a-z-]+)", command) if given is not None else []
            assert all(f'"{option}"' in source or option == "--time-limit" for option in options), options


def imported_with(program: str) -> set[str]:
    """Return the files of a program and of the workloads that it imports, also indirectly."""
    files, left = set(), [program]
    while left:
        path = ROOT / f"workloads/{left.pop()}.py"
        if path.name in files or not path.exists():
            continue
        files.add(path.name)
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                left += [one.name for one in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                left.append(node.module)
    return files


@pytest.mark.parametrize(
    ("listed", "odd", "known"),
    [(64, 64, True), (64, 64, False), (512, 512, True), (64, 60, True), (64, 33, False)],
)
def test_a_node_that_lists_many_gpus_has_one_vote(listed: int, odd: int, known: bool) -> None:
    right, wrong = "a" * 64, "b" * 64
    found = {name: [("H200", gpu(name, slot), right) for slot in range(GPUS)] for name in RACK[1:4]}
    found[RACK[0]] = [("H200", f"GPU-{slot}", wrong if slot < odd else right) for slot in range(listed)]
    reasons, agreed, _ = compare_digests(found, {"H200": right} if known else {})
    assert {name: {one.verdict for one in mine} for name, mine in reasons.items()} == {
        RACK[0]: {Verdict.FAIL}
    }
    assert agreed == {"H200": right}


@pytest.mark.parametrize(
    "lies",
    [
        [digest(RACK[1], 0, "b" * 64)],
        [digest(RACK[number], slot, "b" * 64) for number in range(1, 18) for slot in range(GPUS)],
        [digest(RACK[0], slot % GPUS, "b" * 64) for slot in range(200)],
    ],
    ids=["another's", "everybody's", "more than devices"],
)
def test_no_node_votes_with_digests_of_others(lies: list[str]) -> None:
    steps = [digest(RACK[0], slot, "b" * 64) for slot in range(GPUS)]
    text = section("python", "") + section("training-step", log(*lies, *steps))
    got = read_node_probes(plan(chosen=("training-step",)), own_target(), classify_exit(text, "0", 1.0))
    assert sorted(part for _, part, _ in got.digests) == [gpu(RACK[0], slot) for slot in range(GPUS)]
    others = {name: read_digests(node_says(name)) for name in RACK[1:4]}
    reasons, _, _ = compare_digests({RACK[0]: got.digests, **others}, {})
    assert list(reasons) == [RACK[0]]


@pytest.mark.parametrize("mark", ["²", "9" * 5000, "٣", "-1", "1000", "0 0", ""])
def test_an_end_without_a_status_is_no_end(mark: str) -> None:
    (got,) = split_sections(f"{MARK}begin gemm\ntext\n{MARK}end {mark}\n")
    assert (got.name, got.status) == ("gemm", None)
    assert classify_exit(f"{MARK}begin gemm\ntext\n{MARK}end {mark}\n", "0", 1.0).how == "hung"


@pytest.mark.parametrize("status", [0, 1, 98, 137, 255])
def test_an_end_with_a_status_is_one(status: int) -> None:
    (got,) = split_sections(section("gemm", "text", status))
    assert got.status == status
