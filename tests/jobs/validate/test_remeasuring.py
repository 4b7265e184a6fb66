"""Test ``rackproof.jobs.validate.fleet.retest``, which measures a suspect node again in the same night.

A single slow number may be chance, so no node is drained for one. A node that is slow twice fails, and one
that is slow once is degraded. If it cannot be measured again, it is unproven until a later night measures it.
The tests make whole nights of six nodes, in which one node's jobs have given speeds.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from rackproof.core.records import Direction, Measurement, Verdict
from rackproof.jobs.validate import judge, probes, tasks
from rackproof.jobs.validate.fleet.retest import better_values, retest_suspects
from rackproof.nodes.answer_seal import sealed_answer
from rackproof.nodes.probe_slurm_jobs import JobRunner, ProbePlan, classify_exit
from rackproof.store.night_store import NightReason, NodeNight, night_folders, read_night
from rackproof.store.probe_results import ProbeNight, read_probes
from rackproof.store.run_folder import read_run
from tests.jobs.validate.nights import uuid
from tests.jobs.validate.probes import RACK, ROOT, Slurm, node_says, plan, section
from tests.jobs.validate.test_validating import gathered
from tests.nodes.health.healthy import replace_gpu

SOME = RACK[:6]
BAD = SOME[2]
# The floor is 737.49 TFLOP/s. Healthy GPUs have 790 to 793, so 745 or 765 is an outlier above the floor.
REFERENCES = ({"metric": "gemm_best", "value": 793, "low": -0.07, "unit": "TFLOP/s", "source": "S"},)
BUSY = ("srun: error: Unable to allocate resources: Requested nodes are busy", 1, 2.0)
DIES = (section("python", "") + section("gemm", "CUDA error: 700", 1), 0, 20.0)
Answer = tuple[str, int | None, float]


def at(speed: float, **more: Any) -> Answer:
    """Return the answer of the bad node's job with this speed in TFLOP/s."""
    return node_says(BAD, speed=speed, **more), 0, 45.0


def states(**drained: str) -> dict[str, dict[str, Any]]:
    """Return Slurm's states of the nodes, and who drained some of them."""
    return {
        name: {
            "known": True,
            "state_after": "IDLE",
            "drained_by": drained.get(name[-3:], "none"),
            "jobs": [],
            "in_service": name[-3:] not in drained,
        }
        for name in SOME
    }


@pytest.fixture
def night(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[NodeNight, ProbeNight]]:
    """Return a function that makes a night, in which the bad node's jobs have these answers in turn."""
    day = [timedelta(0)]

    class Clock(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> datetime:
            return datetime.now(tz) + day[0]

    for module in ("tasks", "judge"):
        monkeypatch.setattr(f"rackproof.jobs.validate.{module}.datetime", Clock)
    monkeypatch.setattr(probes, "datetime", Clock)

    def make(
        *answers: Answer,
        how_: ProbePlan | None = None,
        slurm: dict[str, Any] | None = None,
        hours: int = 24,
        seconds: float = 45.0,
        measured: bool = True,
    ) -> tuple[NodeNight, ProbeNight]:
        left = list(answers)

        def answer(nodes: tuple[str, ...]) -> Answer:
            return left.pop(0) if nodes == (BAD,) else (node_says(nodes[0]), 0, seconds)

        begun = tasks.begin_night(tmp_path, SOME, owner_pid=os.getpid())
        for name in SOME:
            tasks.store_snapshot(
                begun, name, sealed_answer(gathered(int(name[-2:]))), asked=0, answered=2e9, sku="h200",
                expected={"gpus": 4}, references=REFERENCES,
            )  # fmt: skip
        host, how_ = Slurm(answer), how_ or plan(chosen=("gemm", "training-step"), share=1)
        members = "".join(f"{name}|batch|none\n" for name in SOME)
        if measured:
            probes.measure_night(
                begun, how_, slurm=slurm or states(), members=members, remark="", shell=host.shell,
                jobs=lambda *given: JobRunner(*given, clock=lambda: host.now, sleep=host.sleep),
            )  # fmt: skip
        judge.judge_fleet(
            begun, asked=dict.fromkeys(SOME, ""), benchmarks=ROOT / "benchmarks", being_imaged={},
            slurm=slurm or states(), members=members,
            share=0.4, measuring="" if measured else None,
        )  # fmt: skip
        assert not left
        folder = night_folders(tmp_path)[0]
        probed = read_probes(folder) or ProbeNight(asked=0)
        assert probed.spent <= how_.minutes
        kept = {one.node: one for one in read_night(folder).nodes}
        assert {one.verdict.value for one in kept.values() if one.node != BAD} == {"pass"}
        day[0] += timedelta(hours=hours)
        return kept[BAD], probed

    return make


SCANTY = plan(chosen=("gemm", "training-step"), share=1, minutes=6 * 4 * 3.0, node_limit_s=120)
"""A plan whose minutes are enough for six jobs of the longest time, but not for a seventh."""


@pytest.mark.parametrize(
    ("answers", "verdict", "drained", "words"),
    [
        pytest.param([at(790)], "pass", False, "", id="sound"),
        pytest.param(
            [at(600), at(601)], "fail", True, "600 TFLOP/s is below 737.49 (S); measured again: 601 TFLOP/s",
            id="slow twice",
        ),
        pytest.param(
            [at(600), at(790)], "degraded", False, "600 TFLOP/s is below 737.49 (S); measured again: 790",
            id="slow once",
        ),
        pytest.param(
            [at(765), at(790)], "degraded", False, "off the median of the fleet's h200, 790 TFLOP/s; measured"
            " again: 790", id="outlier once",
        ),
        pytest.param([at(765), at(766)], "degraded", False, "measured again: 766", id="outlier twice"),
        pytest.param([at(700), at(765)], "degraded", False, "measured again: 765", id="fail and outlier"),
        pytest.param([at(600), BUSY], "unproven", False, "not measured again: ", id="busy by then"),
        pytest.param([at(600), DIES], "unproven", False, "not measured again: ", id="dies the second time"),
        pytest.param(
            [at(600), at(float("nan"))], "unproven", False, "not measured again: ", id="no number"
        ),
        pytest.param([at(765), BUSY], "degraded", False, "not measured again: ", id="outlier, busy by then"),
        pytest.param([at(600), at(790, wrong=3)], "fail", True, "", id="wrong values the second time"),
    ],
)  # fmt: skip
def test_a_suspect_is_judged_on_both_measurements(
    night: Callable[..., tuple[NodeNight, ProbeNight]],
    answers: list[Answer],
    verdict: str,
    drained: bool,
    words: str,
) -> None:
    node, probed = night(*answers)
    assert (node.verdict.value, node.plan == "drain") == (verdict, drained), node.reason_texts()
    assert any(words in one for one in node.reason_texts()) or not words, node.reason_texts()
    assert probed.again == ((BAD,) if len(answers) > 1 and answers[1] is not BUSY else ())


def test_the_history_keeps_the_better_value_and_the_night_both(
    night: Callable[..., tuple[NodeNight, ProbeNight]], tmp_path: Path
) -> None:
    night(at(600), at(790))
    (folder,) = tmp_path.glob("*-probes-*")
    kept = [one.value for one in read_run(folder).measurements if one.name == "gemm_best"]
    assert min(kept) == 790
    assert len(kept) == 4 * len(SOME)


def test_a_used_up_budget_is_reported_and_no_node_is_drained_for_one_number(
    night: Callable[..., tuple[NodeNight, ProbeNight]],
) -> None:
    slow = (node_says(BAD, speed=600), 0, 178.0)
    node, probed = night(slow, how_=SCANTY, seconds=178.0)
    assert (node.verdict.value, node.plan) == ("unproven", "")
    said = "not measured again: the night's GPU-minutes are used up"
    assert any(said in one for one in node.reason_texts())
    assert probed.unconfirmed == (BAD,)
    # The unconfirmed failure counts in the next night that measures the node.
    node, probed = night(slow, how_=SCANTY, seconds=178.0)
    assert (node.verdict.value, node.plan) == ("fail", "drain"), node.reason_texts()
    assert any("when it was last measured: 600 TFLOP/s is below" in one for one in node.reason_texts())
    assert probed.unconfirmed == ()


def test_what_was_left_open_is_over_with_a_good_number(
    night: Callable[..., tuple[NodeNight, ProbeNight]],
) -> None:
    night(at(600), BUSY)
    assert night(at(790))[0].verdict.value == "pass"
    assert night(at(600), BUSY)[0].verdict.value == "unproven"


def test_two_nights_of_one_day_do_not_turn_one_bad_number_into_a_failure(
    night: Callable[..., tuple[NodeNight, ProbeNight]],
) -> None:
    """The second night judges the numbers of the last 24 hours, so also those of the first night."""
    night(at(600), BUSY, hours=1)
    node, _ = night(at(790))
    assert (node.verdict.value, node.plan) == ("unproven", "")


def test_a_node_that_a_night_drained_is_not_measured_again(
    night: Callable[..., tuple[NodeNight, ProbeNight]], monkeypatch: pytest.MonkeyPatch
) -> None:
    done = classify_exit(node_says(BAD, speed=600), "0", 4.0)
    monkeypatch.setattr(probes, "_direct_results", lambda *_: {BAD: done})
    node, probed = night(slurm=states(**{BAD[-3:]: "ours"}))
    assert (node.verdict.value, probed.again) == ("fail", ())
    assert node.why.startswith("stays drained: floor:gemm_best")


def test_one_good_measurement_counts_once_however_many_nights_there_are(
    night: Callable[..., tuple[NodeNight, ProbeNight]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second night of the same day has the same numbers, and is no further pass."""
    assert night(at(600), at(601))[0].plan == "drain"
    ours = states(**{BAD[-3:]: "ours"})
    good = classify_exit(node_says(BAD), "0", 4.0)
    monkeypatch.setattr(probes, "_direct_results", lambda *_: {BAD: good})
    node, _ = night(slurm=ours, hours=12)
    assert node.why == "stays drained: the failed checks have passed 1 of 2 times", node.reason_texts()
    assert {"gemm", "gemm_best dtype=bf16", "job", "training-step"} <= set(node.read_again)
    # It was compared with the fleet, but not with its own past, which is only the slow night.
    assert "fleet:gemm_best dtype=bf16" in node.read_again
    assert not any(one.startswith("drift:") for one in node.read_again)
    for _ in range(2):
        node, _ = night(slurm=ours, measured=False, hours=1)
        assert node.measured
        assert (node.plan, [one for one in node.read_again if not one.startswith("health:")]) == ("", [])
        assert "were not made again since the night before: floor:gemm_best dtype=bf16" in node.why
    assert night(slurm=ours)[0].plan == "return"


def number(value: float, direction: Direction | None = Direction.HIGHER, unit: str = "s") -> Measurement:
    return Measurement(name="m", value=value, unit=unit, direction=direction)


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ([number(1)], [number(2)], [2]),
        ([number(2)], [number(1)], [2]),
        ([number(2, Direction.LOWER)], [number(1, Direction.LOWER)], [1]),
        # If a measurement has several numbers, the worst is compared.
        ([number(1)], [number(3), number(2)], [2]),
        ([number(1), number(3)], [number(2)], [2, 3]),
        # If the better one is unknown, both remain, and the worst counts.
        ([number(1, None)], [number(2, None)], [1, 2]),
        ([number(1)], [number(2, unit="ms")], [1, 2]),
        ([number(1)], [number(float("inf"))], [1, float("inf")]),
        ([number(float("-inf"))], [number(1)], [float("-inf"), 1]),
        ([], [number(1)], [1]),
        ([number(1)], [], [1]),
    ],
)
def test_which_of_two_numbers_is_judged(
    first: list[Measurement], second: list[Measurement], expected: list[float]
) -> None:
    assert [one.value for one in better_values(first, second)] == expected


def test_without_a_suspect_nothing_is_measured() -> None:
    got = retest_suspects({"n1": (number(1),)}, lambda _: {}, lambda _: pytest.fail("measured"), {"n1"}, {})
    assert (got.numbers, got.reasons, got.again) == ({"n1": (number(1),)}, {}, [])


@pytest.mark.parametrize(
    ("expected", "is_measured"),
    [({"gpus": 4}, True), ({"gpus": 8}, True), ({}, True), ({"gpus": 3}, False), ({"gpus": 1}, False)],
)
def test_a_node_with_more_gpus_than_its_sku_uses_no_minutes(
    tmp_path: Path, expected: dict[str, Any], is_measured: bool
) -> None:
    begun = tasks.begin_night(tmp_path, SOME, owner_pid=os.getpid())
    for name in SOME:
        tasks.store_snapshot(
            begun, name, sealed_answer(gathered(int(name[-2:]))), asked=0, answered=2e9, sku="h200",
            expected=expected if name == BAD else {"gpus": 4},
        )  # fmt: skip
    host = Slurm(lambda nodes: (node_says(nodes[0]), 0, 45.0))
    probes.measure_night(
        begun, plan(chosen=("gemm", "training-step"), share=1), slurm=states(),
        members="".join(f"{name}|batch|none\n" for name in SOME), remark="", shell=host.shell,
        jobs=lambda *given: JobRunner(*given, clock=lambda: host.now, sleep=host.sleep),
    )  # fmt: skip
    night = read_probes(Path(begun.folder))
    assert night is not None
    assert set(night.measured) == set(SOME) - (set() if is_measured else {BAD})
    assert ("GPUs, and its SKU has" in night.left_out.get(BAD, "")) != is_measured


@pytest.mark.parametrize("claimed", [(0,), (0, 1, 2, 3), ("serial",), (0, "serial")])
def test_a_drained_node_that_reports_another_nodes_parts_is_not_measured(
    tmp_path: Path, claimed: tuple[int | str, ...]
) -> None:
    """Its numbers would be stored under the other node's GPUs, also if a night measures it without Slurm."""
    owner = 1
    for names in (SOME, SOME[1:]):
        begun = tasks.begin_night(tmp_path, names, owner_pid=os.getpid())
        for name in names:
            answer = gathered(int(name[-2:]))
            if len(names) < len(SOME) and name == BAD:
                for part in claimed:
                    if part == "serial":
                        answer["facts"]["dmi"] = gathered(owner)["facts"]["dmi"]
                    else:
                        replace_gpu(answer, uuid(int(BAD[-2:]), int(part)), uuid(owner, int(part)))
            tasks.store_snapshot(
                begun, name, sealed_answer(answer), asked=0, answered=2e9, sku="h200", expected={"gpus": 4}
            )  # fmt: skip
        if len(names) == len(SOME):
            judge.judge_fleet(
                begun, asked=dict.fromkeys(names, ""), benchmarks=ROOT / "benchmarks", being_imaged={}
            )  # fmt: skip
    probes.store_direct_output(begun, BAD, section("python", "") + node_says(SOME[0]), 0)
    host = Slurm(lambda nodes: (node_says(nodes[0]), 0, 45.0))
    probes.measure_night(
        begun, plan(chosen=("gemm", "training-step"), share=1), slurm=states(n03="ours"),
        members="".join(f"{name}|batch|none\n" for name in SOME), remark="", shell=host.shell,
        jobs=lambda *given: JobRunner(*given, clock=lambda: host.now, sleep=host.sleep),
    )  # fmt: skip
    night = read_probes(Path(begun.folder))
    assert night is not None
    assert night.left_out == {BAD: "not measured: it names parts of another node"}
    assert set(night.measured) == set(SOME[1:]) - {BAD}
    assert BAD not in night.sound


@pytest.mark.parametrize(
    ("earlier", "tonight", "verdict", "drained"),
    [
        pytest.param(700, 600, "fail", True, id="below its floor in both nights"),
        pytest.param(745, 600, "unproven", False, id="an outlier, and then below its floor"),
        pytest.param(600, 745, "degraded", False, id="below its floor, and then an outlier"),
    ],
)
def test_only_a_failure_of_the_last_night_confirms_a_failure_that_was_not_measured_again(
    night: Callable[..., tuple[NodeNight, ProbeNight]],
    earlier: float,
    tonight: float,
    verdict: str,
    drained: bool,
) -> None:
    night(at(earlier), BUSY)
    node, probed = night(at(tonight), BUSY)
    assert (node.verdict.value, node.plan == "drain") == (verdict, drained), node.reason_texts()
    assert probed.unconfirmed == ((BAD,) if verdict == "unproven" else ())
    assert any("when it was last measured: " in one for one in node.reason_texts()), node.reason_texts()


def test_a_failure_of_another_part_or_metric_confirms_nothing() -> None:
    reason = NightReason(check="floor", verdict=Verdict.FAIL, text="slow", metric="m", part="GPU 0")
    others = [
        reason.model_copy(update=update)
        for update in ({"part": "GPU 1"}, {"metric": "n"}, {"verdict": Verdict.DEGRADED})
    ]
    for earlier, unconfirmed in (*(([other], ["n1"]) for other in others), ([*others, reason], [])):
        got = retest_suspects(
            {"n1": (number(1),)}, lambda _: {0: reason}, lambda _: {"n1": "busy"}, {"n1"}, {"n1": earlier}
        )
        assert got.unconfirmed == unconfirmed
        (evidence,) = got.reasons["n1"]
        assert evidence.verdict is (Verdict.UNPROVEN if unconfirmed else Verdict.DEGRADED)
