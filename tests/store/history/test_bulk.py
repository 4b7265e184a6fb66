"""Test how the history gives the numbers of many nights at once, by hardware, and forgets old ones.

A night is judged against earlier nights of the whole fleet. Store.readings returns their numbers as columns.
Pruning removes old numbers, and keeps runs, failures and accepted references.
"""

from __future__ import annotations

import math
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest

from rackproof.core.judging import NO_REFERENCE
from rackproof.core.records import Direction, Judgement, Measurement, Node, Run, Verdict
from rackproof.store.history.readings import Readings, readings_of
from rackproof.store.history.store import HistoryError, open_store

from .samples import START, node, uuid

UNTIL = START + timedelta(hours=20)


def night(number: int, on: Node, ago: int, value: float, verdict: Verdict = Verdict.PASS) -> Run:
    """Return a node's run ``ago`` days before START. ``value`` is the speed of its GPU 0 in TFLOP/s."""
    measurements = tuple(
        Measurement(
            name="gemm",
            value=value + gpu.index,
            unit="TFLOP/s",
            direction=Direction.HIGHER,
            labels={"gpu": gpu.uuid, "dtype": "bf16"},
        )
        for gpu in on.gpus
    )
    judged = tuple(
        Judgement(
            metric=one.name, labels=one.labels, value=one.value, unit=one.unit, verdict=verdict, reason="slow"
        )
        for one in measurements
    )
    return Run(
        run_id=f"run-{number}-{ago}",
        benchmark="nightly",
        parameters={"gpus": 2},
        started=START - timedelta(days=ago),
        nodes=(on,),
        measurements=measurements,
        judgements=judged,
        verdict=verdict,
    )


def rows(readings: Readings) -> list[tuple[object, ...]]:
    """Return readings as rows that do not depend on how hardware is numbered."""
    return sorted(
        (
            readings.quantities[q].metric,
            tuple(sorted(readings.quantities[q].labels.items())),
            readings.parts[p],
            readings.parts[n].key if n >= 0 else "",
            int(ago),
            repr(float(value)),
            bool(proven),
        )
        for q, p, n, ago, value, proven in zip(
            readings.quantity,
            readings.part,
            readings.node,
            readings.night,
            readings.value,
            readings.is_proven,
            strict=True,
        )
    )  # type: ignore[type-var]


def without_places(readings: Readings) -> list[tuple[object, ...]]:
    """Return the rows of readings without the number of a part's node."""
    return [(*one[:2], one[2]._replace(node=-1), *one[3:]) for one in rows(readings)]  # type: ignore[attr-defined]


def test_readings_from_the_database_are_those_of_the_runs(where: str) -> None:
    two = Run(
        run_id="pair",
        benchmark="pairs",
        started=START,
        nodes=(node(1), node(2)),
        measurements=(
            Measurement(name="busbw", value=40, unit="GB/s"),
            Measurement(name="send", value=math.inf, unit="GB/s", labels={"from": "node01", "to": "node02"}),
        ),
        judgements=(
            Judgement(metric="send", verdict=Verdict.PASS, reason="within its bounds"),
            Judgement(
                metric="busbw",
                value=40,
                unit="GB/s",
                verdict=Verdict.UNPROVEN,
                gating=False,
                reason=NO_REFERENCE,
            ),
        ),
        verdict=Verdict.PASS,
    )
    runs = [
        two,
        *(night(number, node(number), ago, 100.0 * number + ago) for number in (1, 2) for ago in range(3)),
    ]
    with open_store(where) as store:
        store.keep_many(runs)
        kept = store.readings(UNTIL, nights=2)
        only = store.readings(UNTIL, nights=2, benchmark="pairs")
    assert without_places(kept) == without_places(readings_of(runs, UNTIL, nights=2))
    assert len(kept) == 2 * 2 * 2 + 2
    assert sorted(only.value.tolist(), key=str) == [40.0, pytest.approx(math.nan, nan_ok=True)]
    sku = {part.kind: part.sku for part in kept.parts}
    assert sku["group"] == sku["link"] == sku["node"] == "h200"
    gpu = next(part for part in kept.parts if part.key == uuid(201))
    assert (kept.parts[gpu.node].key, gpu.slot) == ("SN0002", 1)


def test_an_empty_history_has_no_readings(tmp_path: Path) -> None:
    with open_store(f"sqlite:///{tmp_path}/history.sqlite") as store:
        assert len(store.readings(UNTIL, nights=15)) == 0
        assert store.failures_elsewhere(START - timedelta(days=60)) == []
        assert store.prune(START) == 0


# `hours` is the time from the run to the end of the newest night. The run is in that night (0), in the night
# before (1), or in neither of the two.
@pytest.mark.parametrize(
    ("hours", "night_of_the_run"),
    [(0.001, 0), (20, 0), (24, 0), (24.001, 1), (48, 1), (0, None), (48.001, None)],
)
def test_a_night_is_the_day_before_its_end(
    hours: float, night_of_the_run: int | None, tmp_path: Path
) -> None:
    with open_store(f"sqlite:///{tmp_path}/history.sqlite") as store:
        store.keep(night(1, node(1), 0, 100.0))
        found = store.readings(START + timedelta(hours=hours), nights=2)
    assert set(found.night.tolist()) == (set() if night_of_the_run is None else {night_of_the_run})


def test_a_gpu_that_failed_in_another_chassis_is_recognised(where: str) -> None:
    first, second = node(1), node(2)
    bad = first.gpus[1]
    now = second.model_copy(update={"gpus": (second.gpus[0], bad.model_copy(update={"index": 1}))})
    with open_store(where) as store:
        store.keep(night(1, first, 30, 50.0, Verdict.FAIL))
        store.keep(night(2, now, 0, 100.0))
        found = store.failures_elsewhere(START - timedelta(days=60))
        assert [(one.gpu, one.then, one.now, one.metric, one.reason) for one in found] == [
            (bad.uuid, "SN0001", "SN0002", "gemm", "slow")
        ]
        assert found[0].moment == START - timedelta(days=30)
        assert store.failures_elsewhere(START - timedelta(days=10)) == []


def test_a_gpu_that_failed_in_its_present_chassis_is_not_listed(where: str) -> None:
    with open_store(where) as store:
        store.keep(night(1, node(1), 30, 50.0, Verdict.FAIL))
        store.keep(night(1, node(1), 0, 100.0))
        assert store.failures_elsewhere(START - timedelta(days=60)) == []


def test_pruning_removes_numbers_and_keeps_failures_acceptances_and_runs(where: str) -> None:
    first, second = node(1), node(2)
    moved = second.model_copy(update={"gpus": (first.gpus[1].model_copy(update={"index": 0}),)})
    old = [night(1, first, ago, 50.0, Verdict.FAIL if ago == 70 else Verdict.PASS) for ago in range(61, 75)]
    with open_store(where) as store:
        store.keep_many([*old, night(2, moved, 0, 100.0)])
        assert store.prune(START - timedelta(days=60)) == 14
        assert store.prune(START - timedelta(days=60)) == 0
        assert len(store.readings(UNTIL, nights=100)) == 1
        assert len(store.runs()) == 15
        assert [one.gpu for one in store.failures_elsewhere(START - timedelta(days=90))] == [
            first.gpus[1].uuid
        ]
        with pytest.raises(HistoryError, match="no details of run-1-61"):
            store.run("run-1-61")
        assert store.keep(old[0]) is False
        assert store.run("run-2-0").measurements[0].value == 100.0
        np.testing.assert_array_equal(store.readings(UNTIL).value, [100.0])


def test_accepted_references_are_the_same_in_bulk_and_one_by_one(where: str) -> None:
    def candidate(ago: int, value: float) -> Run:
        run = night(1, node(1), ago, value)
        waiting = tuple(
            one.model_copy(
                update={"verdict": Verdict.UNPROVEN, "gating": False, "reason": "no reference yet"}
            )
            for one in run.judgements
        )
        return run.model_copy(update={"judgements": waiting})

    with open_store(where) as store:
        store.keep_many(
            [candidate(3, 98.0), candidate(2, 100.0), candidate(1, 102.0), night(2, node(2), 0, 80.0)]
        )
        readings = store.readings(UNTIL, nights=5)
        assert store.accepted(readings) == []
        for ago in (3, 2, 1):
            store.accept(f"run-1-{ago}")
        found = store.accepted(readings)
        assert len(found) == 2
        for one in found:
            what, part = readings.quantities[one.quantity], readings.parts[one.part]
            alone = store.baseline(
                what.benchmark, what.parameters, what.metric, {"gpu": part.key, "dtype": "bf16"}, [node(1)]
            )
            assert one.reference == alone
        assert {one.reference.value for one in found} == {100.0, 101.0}


@pytest.mark.parametrize("unit", ["MB/s", "", "gb/s"])
def test_a_number_in_another_unit_takes_no_reference_from_others(tmp_path: Path, unit: str) -> None:
    def candidate(number: int, unit: str) -> Run:
        run = night(number, node(number), 1, 100.0)
        return run.model_copy(
            update={
                "measurements": tuple(one.model_copy(update={"unit": unit}) for one in run.measurements),
                "judgements": tuple(
                    one.model_copy(
                        update={
                            "verdict": Verdict.UNPROVEN,
                            "gating": False,
                            "reason": "no reference yet",
                            "unit": unit,
                        }
                    )
                    for one in run.judgements
                ),
            }
        )

    with open_store(tmp_path / "history.sqlite") as store:
        store.keep_many([candidate(1, "GB/s"), candidate(2, unit)])
        assert store.accept("run-1-1")
        readings = store.readings(UNTIL, nights=5)
        found = store.accepted(readings)
        assert found
        assert {readings.quantities[one.quantity].unit for one in found} == {"GB/s"}
        assert {one.reference.unit for one in found} == {"GB/s"}
