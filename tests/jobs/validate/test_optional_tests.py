"""Test ``rackproof.jobs.validate.fleet.optional_tests``, which plans the long tests of a night.

The tests ``sdc``, ``soak`` and ``llm`` take minutes of each GPU, so a night runs only some of them, within
half of its budget in GPU-minutes. The test that ran longest ago on its node is the first, and a suspect node
gets its turn sooner. The tests check the plans, and that every test runs on every node within a number of
nights.
"""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from rackproof.core.records import Verdict
from rackproof.jobs.validate import probes
from rackproof.jobs.validate.fleet.node_readings import ProbeTarget
from rackproof.jobs.validate.fleet.optional_tests import (
    BUDGET_SHARE,
    SUSPECT_FACTOR,
    oversized_tests,
    plan_optional_tests,
)
from rackproof.jobs.validate.fleet.probe_scheduler import describe_probes, probe_night
from rackproof.nodes.probe_slurm_jobs import PROBES, Job, ProbePlan, classify_exit
from rackproof.store.probe_results import ProbeNight
from tests.jobs.validate.probes import (
    GPUS,
    Slurm,
    gpu,
    log,
    measurement,
    node_says,
    plan,
    runner,
    section,
)

OPTIONAL = {one.name: one for one in PROBES if one.optional}
EVERY_NIGHT = ("gemm", "training-step")


def night_with(**tests: tuple[str, ...]) -> ProbeNight:
    """Return a night with the optional tests that each node ran."""
    return ProbeNight(asked=1000.0, tests=tests)


def planned(how: ProbePlan, nodes: list[ProbeTarget], past: list[ProbeNight]) -> dict[str, tuple[str, ...]]:
    got = plan_optional_tests(how, nodes, past)
    return {name: tuple(one.name for one in tests) for name, tests in got.items()}


def nodes_named(names: str, suspect: str = "", gpus: int = 1) -> list[ProbeTarget]:
    return [ProbeTarget(name, gpus, "h200", "r1", ("batch",), suspect=name in suspect) for name in names]


# Nodes a, b and c have one GPU each. `minutes` is the budget, and `past` are earlier nights, newest first.
@pytest.mark.parametrize(
    ("chosen", "minutes", "suspect", "past", "expected"),
    [
        # A job without an optional test may take 11 minutes; sdc adds 3, llm 10, soak 15.
        ("sdc", 100, "", [], {"a": ("sdc",), "b": ("sdc",), "c": ("sdc",)}),
        ("sdc", 14, "", [], {"a": ("sdc",), "b": ("sdc",)}),
        ("sdc", 13, "", [], {}),  # no job with it fits
        ("sdc", 14, "", [{"a": ("sdc",), "b": ("sdc",)}], {"c": ("sdc",), "a": ("sdc",)}),
        ("soak", 26, "", [], {"a": ("soak",)}),  # more than half of the budget, and the most urgent
        ("soak", 26, "", [{"a": ("soak",)}], {"b": ("soak",)}),
        ("soak", 26, "", [{"c": ("soak",)}, {"a": ("soak",)}], {"b": ("soak",)}),
        ("soak", 26, "", [{"c": ("soak",)}, {"b": ("soak",)}, {"a": ("soak",)}], {"a": ("soak",)}),
        ("soak", 26, "c", [{"c": ("soak",)}, {"b": ("soak",)}, {"a": ("soak",)}], {"a": ("soak",)}),
        ("soak", 26, "b", [{"c": ("soak",)}, {"b": ("soak",)}, {"a": ("soak",)}], {"b": ("soak",)}),
        # A test that is too long for the rest of the budget does not prevent shorter ones.
        ("sdc soak", 40, "", [], {"a": ("sdc", "soak")}),
        ("sdc soak", 44, "", [], {"a": ("sdc", "soak"), "b": ("sdc",)}),
        ("sdc soak llm", 200, "", [{"a": ("sdc", "soak", "llm")}], {
            "b": ("llm", "sdc", "soak"), "c": ("llm", "sdc", "soak"), "a": ("llm", "sdc", "soak"),
        }),
        ("gemm", 1000, "abc", [], {}),
    ],
)  # fmt: skip
def test_optional_tests_are_planned_within_the_budget_for_the_most_urgent_nodes(
    chosen: str,
    minutes: float,
    suspect: str,
    past: list[dict[str, tuple[str, ...]]],
    expected: dict[str, tuple[str, ...]],
) -> None:
    how = plan(chosen=tuple(chosen.split()), minutes=float(minutes))
    nights = [night_with(**tests) for tests in past]
    assert planned(how, nodes_named("abc", suspect), nights) == expected


def test_nodes_are_suspect_by_their_last_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    """An unproven node is not suspect. Otherwise a node that was not measured would be first every night."""
    known = {one.value: SimpleNamespace(verdict=one) for one in Verdict}
    asked: list[int] = []

    def last_known(
        folders: list[Path], names: dict[str, object]
    ) -> tuple[dict[str, SimpleNamespace], list[str]]:
        asked.append(len(folders))
        return {name: known[name] for name in names}, []

    monkeypatch.setattr(probes.night_store, "last_known", last_known)
    assert probes._suspect_nodes([Path("night")] * 100, known) == {"fail", "degraded"}
    assert asked == [14]


def test_a_test_that_no_budget_holds_is_reported() -> None:
    how = plan(chosen=("sdc", "soak"), minutes=60.0)
    some = nodes_named("a", gpus=4) + nodes_named("b", gpus=1)
    assert oversized_tests(how, some) == (
        "soak never runs on a: its job may take 104 GPU-minutes, and validate_probe_gpu_minutes is 60",
    )
    assert not oversized_tests(replace(how, minutes=104.0), some)


def test_a_test_that_no_budget_holds_is_reported_with_its_own_minutes() -> None:
    how = plan(chosen=("sdc", "soak", "llm"), minutes=150.0)
    assert [remark.split(", ")[0] for remark in oversized_tests(how, nodes_named("a", gpus=8))] == [
        "llm never runs on a: its job may take 168 GPU-minutes",
        "soak never runs on a: its job may take 208 GPU-minutes",
    ]
    # The minutes are those of the largest node.
    two = nodes_named("a", gpus=4) + nodes_named("b", gpus=8)
    assert [remark.split(", ")[0] for remark in oversized_tests(replace(how, minutes=60.0), two)] == [
        "llm never runs on a,b: its job may take 168 GPU-minutes",
        "sdc never runs on b: its job may take 112 GPU-minutes",
        "soak never runs on a,b: its job may take 208 GPU-minutes",
    ]


@pytest.mark.parametrize("seed", range(40))
def test_every_test_of_every_node_runs_within_some_nights_and_suspects_sooner(seed: int) -> None:
    """The bound is the GPU-minutes of all tests, divided by the least GPU-minutes of them in one night."""
    dice = random.Random(seed)
    nodes = [
        ProbeTarget(f"n{number:02d}", dice.choice([1, 2, 4, 8]), suspect=number < 2)
        for number in range(dice.randint(4, 12))
    ]
    chosen = tuple(dice.sample(sorted(OPTIONAL), dice.randint(1, len(OPTIONAL))))
    turns = [(node, name) for node in nodes for name in chosen]
    added = {turn: OPTIONAL[turn[1]].adds_s / 60 * max(turn[0].gpus, 1) for turn in turns}
    longest = max(
        Job((node.name,), "", node.gpus, 600 + sum(OPTIONAL[name].adds_s for name in chosen)).minutes
        for node in nodes
    )
    how = plan(chosen=chosen, minutes=longest * dice.uniform(1, 6))
    at_least = BUDGET_SHARE * how.minutes - max(added.values())
    # A suspect's test repeats when it waited a third as long. These are its most repeats while another waits.
    repeats = 2 + math.log(len(turns) * SUSPECT_FACTOR, SUSPECT_FACTOR / (SUSPECT_FACTOR - 1))
    total = sum(added[turn] * (repeats if turn[0].suspect else 1) for turn in turns)
    # At least one test runs each night.
    one_by_one = sum(repeats if node.suspect else 1 for node, _ in turns)
    bound = math.ceil(min(total / at_least, one_by_one) if at_least > 0 else one_by_one)
    past: list[ProbeNight] = []
    ran: dict[tuple[str, str], list[int]] = {(node.name, name): [] for node, name in turns}
    for night in range(4 * bound + 4):
        tonight = planned(how, nodes, past)
        spent = sum(added[turn] for turn in turns if turn[1] in tonight.get(turn[0].name, ()))
        assert spent <= max(BUDGET_SHARE * how.minutes, max(added.values()))
        for name, tests in tonight.items():
            for test in tests:
                ran[name, test].append(night)
        past.insert(0, night_with(**tonight))
    waits = {turn: _waits(nights) for turn, nights in ran.items()}
    assert max(max(some) for some in waits.values()) <= bound
    # A small test may fill the rest of a night, so only equal tests on equal nodes are compared.
    for (suspect, test), (other, same) in itertools.product(turns, turns):
        if suspect.suspect and not other.suspect and (test, suspect.gpus) == (same, other.gpus):
            assert len(ran[suspect.name, test]) >= len(ran[other.name, test])


def _waits(nights: list[int]) -> list[int]:
    return [after - before for before, after in zip([-1, *nights], nights, strict=False)]


def soak_says(node: str, seconds: float = 600.5, sag: float = 0.002, speed: float = 650.0) -> str:
    quiet = {
        "wrong_values": 0, "soak_seconds": seconds, "soak_stalls": 0, "soak_sag": 0.002, "slowed_seconds": 0,
        "unread_share": 0, "temperature_margin": 12, "soak_lag": 0.01,
    }  # fmt: skip
    events = []
    for slot in range(GPUS):
        own = {"gpu": gpu(node, slot)}
        figures = quiet | ({"soak_sag": sag} if slot == 1 else {})
        events += [measurement(name, value, "1", "lower", **own) for name, value in figures.items()]
        events += [
            measurement("counter_growth", 0, "1", "lower", counter=counter, **own)
            for counter in ("ecc_uncorrected", "pcie_replay", "nvlink")
        ]
        events.append(measurement("soak", speed, "TFLOP/s", "higher", **own))
    return section("soak", log(*events))


def test_a_night_runs_what_is_planned_and_the_next_one_the_rest() -> None:
    names = ("r1-n01", "r1-n02")
    how = plan(chosen=(*EVERY_NIGHT, "soak"), minutes=104.0 + 15, share=1)
    some = [ProbeTarget(name, GPUS, "h200", "r1", ("batch",)) for name in names]
    past: tuple[ProbeNight, ...] = ()
    for expected in ("r1-n01", "r1-n02", "r1-n01"):

        def answer(nodes: tuple[str, ...], soaked: str = expected) -> tuple[str, int | None, float]:
            more = soak_says(nodes[0]) if nodes[0] == soaked else ""
            return node_says(nodes[0]) + "\n" + more, 0, 700.0 if more else 80.0

        slurm = Slurm(answer)
        got, numbers = probe_night(how, some, past, runner(slurm, how, names))
        assert got.tests == {expected: ("soak",)}
        assert not got.reasons, got.reasons
        assert slurm.started[0] == (expected,)
        assert f"soak: {expected}" in describe_probes(got)
        assert "soak" in got.sound[expected]
        assert sum(one.name == "soak" for one in numbers) == GPUS
        assert got.spent <= how.minutes
        past = (got, *past)


def test_a_planned_test_that_did_not_run_is_unproven_and_one_that_was_left_out_keeps_its_turn() -> None:
    how = plan(chosen=(*EVERY_NIGHT, "soak"), minutes=2000.0)
    name = "r1-n01"
    some = [ProbeTarget(name, GPUS, "h200", "r1", ("batch",))]
    got, _ = probe_night(how, some, (), runner(Slurm(lambda _: (node_says(name), 0, 80.0)), how, (name,)))
    assert [one.code for one in got.reasons[name]] == ["probe:soak"]
    assert got.reasons[name][0].verdict.value == "unproven"
    busy = "srun: error: Unable to allocate resources: Requested nodes are busy"
    got, _ = probe_night(how, some, (), runner(Slurm(lambda _: (busy, 1, 2.0)), how, (name,)))
    assert not got.tests


@pytest.mark.parametrize(
    ("said", "wrong"),
    [
        ({}, set()),
        ({"sag": 0.03}, {"soak soak_sag"}),
        ({"seconds": 590.0}, {"soak soak_seconds"}),
    ],
)
def test_a_drained_node_has_every_named_test_and_its_bounds_are_the_benchmarks(
    said: dict[str, float], wrong: set[str]
) -> None:
    """This is how the acceptance of reimage.yml measures a drained node: through ssh, without a budget."""
    name = "r1-n01"
    how = plan(chosen=("soak",), minutes=0.0)
    some = [ProbeTarget(name, GPUS, "h200", "r1", ("batch",), busy="out of service")]
    direct = {name: classify_exit(section("python", "") + soak_says(name, **said), "0", 700.0)}
    got, _ = probe_night(how, some, (), runner(Slurm(lambda _: ("", 1, 1.0)), how, (name,)), direct)
    assert got.measured == (name,)
    assert got.tests == {name: ("soak",)}
    assert {one.metric for mine in got.reasons.values() for one in mine} == wrong
    parts = {one.part for mine in got.reasons.values() for one in mine}
    assert parts == (
        {gpu(name, 1)} if "sag" in said else {gpu(name, slot) for slot in range(GPUS if said else 0)}
    )


@pytest.mark.parametrize(
    ("role", "variable"), [("validate", "validate_probes"), ("reimage", "reimage_probes")]
)
def test_the_roles_wait_as_long_as_optional_tests_take(root: Path, role: str, variable: str) -> None:
    known = yaml.safe_load((root / "roles/validate/vars/main.yml").read_text())["validate_optional_tests_s"]
    assert known == 60 + sum(one.adds_s for one in OPTIONAL.values())
    tasks = "probe.yml" if role == "validate" else "steps/validate.yml"
    measuring = [
        one
        for one in yaml.safe_load((root / f"roles/{role}/tasks/{tasks}").read_text())
        if "rackproof_validate_probe" in one
    ]
    assert {one["rackproof_validate_probe"]["probes"] for one in measuring} == {f"{{{{ {variable} }}}}"}
    (drained,) = [one for one in measuring if one["rackproof_validate_probe"].get("drained")]
    assert "validate_optional_tests_s" in drained["timeout"]
