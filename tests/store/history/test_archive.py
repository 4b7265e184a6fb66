"""Test that the history stores runs, answers queries about them, and makes references of accepted ones.

The history (store/history) is a database of all measurements by hardware. `rackproof history` lists them, and
`rackproof accept RUN` makes the numbers of a run the references of later runs on the same hardware. The tests
protect these behaviours:

* a stored run is returned unchanged, is found by a prefix of its id, and is stored once;
* runs and measurements are listed newest first, and are filtered by benchmark, hardware, labels and time;
* measurements belong to the hardware (serial number, UUID), so they follow a moved GPU and a renamed node;
* references are the median of accepted runs, apply only to the same hardware, point and labels, and cannot
  come from a run with a fault;
* hostile text, many runs at once, and damaged records in the database cause no wrong result.

Each test with the fixture ``store`` runs on SQLite and on PostgreSQL. samples.py makes the runs.
"""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from rackproof.core.records import Direction, Finding, LogFile, Node, Run, Spread, Verdict
from rackproof.store.history import schema
from rackproof.store.history.store import HistoryError, Store, open_store

from . import samples
from .samples import START, measured, node, passed, run, unjudged, uuid

POINT = {"gpus": 2, "batch_size": 128}
"""The parameters of the runs that samples.py makes by default."""


@pytest.fixture
def store(where: str) -> Iterator[Store]:
    """Yield an empty history, on SQLite and on PostgreSQL."""
    with open_store(where) as opened:
        yield opened


def test_a_stored_run_is_returned_unchanged(store: Store) -> None:
    original = run(environment={"TEXT": "NUL \0, \x1b[31m, ü, 漢"})
    assert store.keep(original) is True
    assert store.run("run-1") == original


def test_the_history_stores_the_spread_of_a_speed(store: Store) -> None:
    spread = Spread(count=200, low=4.9, median=5.0, high=5.1)
    plain = run()
    spread_out = [one.model_copy(update={"spread": spread}) for one in plain.measurements]
    store.keep(plain.model_copy(update={"measurements": tuple(spread_out)}))
    assert {one.spread for one in store.run("run-1").measurements} == {spread}


def test_a_run_is_stored_once_and_a_changed_record_replaces_it(store: Store) -> None:
    assert store.keep(run()) is True
    assert store.keep(run()) is False
    changed = run(speed=5.0)
    assert store.keep(changed) is True
    assert store.run("run-1") == changed
    assert sorted(row.value for row in store.measurements(metric="memory_copy")) == [5.0, 5.01]
    assert len(store.runs()) == 1


# The ids of the runs are night-a1, night-a2 and night-b1. "_" and "%" would match any text in a pattern of
# SQL.
@pytest.mark.parametrize(
    ("prefix", "error"),
    [
        ("night-a", "several runs begin with 'night-a'"),
        ("night-c", "no run 'night-c'"),
        ("", "no run ''"),
        ("night_", "no run 'night_'"),
        ("%", "no run '%'"),
        ("\x1b[31m", "no run"),
    ],
)
def test_a_prefix_of_an_id_must_mean_one_run(store: Store, prefix: str, error: str) -> None:
    store.keep_many([run("night-a1"), run("night-a2"), run("night-b1")])
    assert store.run("night-b").run_id == "night-b1"
    with pytest.raises(HistoryError) as caught:
        store.run(prefix)
    assert error in str(caught.value)
    assert "\x1b" not in str(caught.value)


def test_a_whole_id_finds_its_run_although_another_id_begins_with_it(store: Store) -> None:
    store.keep_many([run("night-1"), run("night-10")])
    assert store.run("night-1").run_id == "night-1"


def test_runs_are_listed_newest_first_and_filtered(store: Store) -> None:
    store.keep_many(
        [
            run("a", night=0),
            run("b", night=1, nodes=(node(2),)),
            run("c", night=2, benchmark="other"),
            run("d", night=3, nodes=(node(1), node(2))),
        ]
    )

    def listed(**filters: object) -> list[str]:
        return [one.run_id for one in store.runs(**filters)]  # type: ignore[arg-type]

    assert listed() == ["d", "c", "b", "a"]
    assert listed(limit=2) == ["d", "c"]
    assert listed(benchmark="probe") == ["d", "b", "a"]
    assert listed(node="node02") == ["d", "b"]
    assert listed(node="SN0001") == ["d", "c", "a"]
    assert listed(node=uuid(201)) == ["d", "b"]
    assert listed(node="nobody") == []
    assert listed(since=START + timedelta(days=2)) == ["d", "c"]
    assert listed(since=datetime(2026, 11, 3, 2, 30)) == ["d", "c"]  # A time without a zone is in UTC.
    first = store.runs(limit=1)[0]
    assert first.nodes == ("node01", "node02")
    assert first.seconds == 100
    assert first.verdict is Verdict.PASS
    assert first.parameters == POINT
    assert first.reason == "unproven, does not count: memory_copy"


# A case has changes of a run and the time that counts: the end of the run, or else the time in its id.
@pytest.mark.parametrize(
    ("changes", "moment"),
    [
        ({"started": None}, START + timedelta(seconds=100)),
        ({"started": None, "ended": None, "run_id": "20251224T180000Z-x-1"}, datetime(2025, 12, 24, 18)),
    ],
)
def test_a_run_without_a_start_gets_the_best_known_time(
    store: Store, changes: dict[str, object], moment: datetime
) -> None:
    store.keep(run(**changes))  # type: ignore[arg-type]
    kept = store.runs()[0]
    assert kept.moment.replace(tzinfo=None) == moment.replace(tzinfo=None)
    assert kept.seconds is None


def test_the_numbers_of_a_gpu_stay_with_the_gpu_in_another_node(store: Store) -> None:
    moved = node(2, gpus=1).model_copy(update={"gpus": node(1).gpus[:1]})
    store.keep_many([run("before", night=0), run("after", night=20, nodes=(moved,))])
    rows = store.measurements(hardware=uuid(100))
    assert [(row.run_id, row.node, row.kind) for row in rows] == [
        ("after", "SN0002", "gpu"),
        ("before", "SN0001", "gpu"),
    ]
    # The first node's measurements are those from the time in which the GPU was in this node.
    assert {row.run_id for row in store.measurements(hardware="SN0001")} == {"before"}


def test_a_node_keeps_its_history_under_a_new_host_name(store: Store) -> None:
    store.keep_many([run("old", night=0), run("new", night=1, nodes=(node(1, name="renamed"),))])
    for name in ("node01", "renamed", "SN0001"):
        assert {row.run_id for row in store.measurements(hardware=name)} == {"old", "new"}


def test_measurements_are_filtered_by_metric_labels_parameters_and_time(store: Store) -> None:
    store.keep_many([run("a", night=0), run("b", night=1), run("c", night=2, parameters={"batch_size": 256})])

    def found(**filters: object) -> list[tuple[str, float]]:
        return [(row.run_id, row.value) for row in store.measurements(**filters)]  # type: ignore[arg-type]

    assert found(metric="eval_accuracy") == [("c", 0.991), ("b", 0.991), ("a", 0.991)]
    assert found(metric="eval_accuracy", parameters=POINT) == [("b", 0.991), ("a", 0.991)]
    assert found(metric="memory_copy", labels={"gpu": uuid(101)}, limit=1) == [("c", 4.21)]
    assert found(metric="memory_copy", labels={"dtype": "fp32"}, since=START + timedelta(days=2)) == [
        ("c", 4.2),
        ("c", 4.21),
    ]
    assert found(labels={"dtype": "fp64"}) == []
    assert found(labels={"gpu": "0"}) == []
    assert found(benchmark="nothing") == []
    assert len(found(limit=None)) == 12
    assert [name for name, _ in found(limit=5)] == ["c", "c", "c", "c", "b"]
    row = store.measurements(metric="seconds_per_epoch", limit=1)[0]
    assert (row.unit, row.direction, row.hardware, row.kind) == ("s", Direction.LOWER, "SN0001", "node")


@pytest.mark.parametrize("limit", [1, 3, 5, 7, None])
@pytest.mark.parametrize(
    ("labels", "count"),
    [({"node": "node01"}, 5), ({"node": "node02"}, 5), ({"gpu": uuid(100)}, 5), ({"dtype": "fp32"}, 20)],
)
def test_the_limit_counts_only_measurements_with_the_labels(
    store: Store, labels: dict[str, str], count: int, limit: int | None
) -> None:
    runs = []
    for night in range(10):
        # The nights of the first node are older than all those of the second.
        on = node(1 if night < 5 else 2)
        numbers = [
            measured("m", 1.0, "GB/s", node=on.name),
            *(measured("m", 1.0, "GB/s", gpu=gpu.uuid, dtype="fp32") for gpu in on.gpus),
        ]
        runs.append(run(f"r{night}", night=night, nodes=(on,), measurements=tuple(numbers), judgements=()))
    store.keep_many(runs)
    rows = store.measurements(metric="m", labels=labels, limit=limit)
    assert len(rows) == min(count, limit or count)
    assert all(labels.items() <= row.labels.items() for row in rows)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_nan_and_infinity_are_stored_but_never_become_references(store: Store, value: float) -> None:
    strange = measured("memory_copy", value, "TB/s")
    store.keep(run(measurements=(strange,), judgements=(unjudged(strange),)))
    (row,) = store.measurements(metric="memory_copy")
    assert repr(row.value) == repr(value)
    assert store.candidates() == []
    assert store.accept("run-1") == 0


def test_measurements_of_links_and_groups_have_their_own_hardware(store: Store) -> None:
    one, two = node(1), node(2)
    peer = measured("peer_copy", 396.0, "GB/s", **{"from": uuid(100), "to": uuid(101)})
    back = measured("peer_copy", 395.0, "GB/s", **{"from": uuid(101), "to": uuid(100)})
    wire = measured("write_bw", 48.0, "GB/s", **{"from": "node01", "to": "node02"})
    single = measured("latency", 5.0, "us", Direction.LOWER, node="node02")
    whole = measured("all_reduce_busbw", 480.0, "GB/s", size_bytes="8388608")
    store.keep(run(nodes=(two, one), measurements=(peer, back, wire, single, whole), judgements=()))

    by_metric = {row.metric: row for row in store.measurements(metric="write_bw")} | {
        row.metric: row for row in store.measurements() if row.metric not in ("write_bw", "peer_copy")
    }
    assert by_metric["write_bw"].labels == {"from": "node01", "to": "node02"}
    assert (by_metric["write_bw"].kind, by_metric["write_bw"].hardware) == ("link", "SN0001>SN0002")
    assert (by_metric["latency"].labels, by_metric["latency"].hardware) == ({"node": "node02"}, "SN0002")
    assert by_metric["all_reduce_busbw"].kind == "group"
    assert by_metric["all_reduce_busbw"].hardware == "SN0001+SN0002"
    directions = {tuple(row.labels.items()): row.value for row in store.measurements(metric="peer_copy")}
    assert directions == {
        (("from", uuid(100)), ("to", uuid(101))): 396.0,
        (("from", uuid(101)), ("to", uuid(100))): 395.0,
    }
    assert {row.metric for row in store.measurements(hardware=uuid(101))} == {"peer_copy"}
    assert {row.metric for row in store.measurements(hardware="node02")} == {"latency", "write_bw"}
    assert [row.value for row in store.measurements(labels={"from": uuid(101)})] == [395.0]


def test_a_metric_measured_on_many_gpus_is_stored_as_one_quantity(store: Store, where: str) -> None:
    store.keep_many(run(f"r{number}", nodes=(node(number),)) for number in range(1, 30))
    with store._reading() as connection:
        assert len(connection.execute(schema.quantities.select()).all()) == 3


class TestReferences:
    """Tests of the acceptance of runs as references, and of the withdrawal of references."""

    def test_numbers_become_references_only_when_their_run_is_accepted(self, store: Store) -> None:
        store.keep(run())
        labels = {"gpu": uuid(100), "dtype": "fp32"}
        assert store.baseline("probe", POINT, "memory_copy", labels, (node(),)) is None
        waiting = store.candidates(benchmark="probe", node="node01", run_id="run-1")
        assert [(one.metric, one.value, one.labels.get("gpu")) for one in waiting] == [
            ("memory_copy", 4.2, uuid(100)),
            ("memory_copy", 4.21, uuid(101)),
            ("seconds_per_epoch", 2.0, None),
        ]
        assert store.candidates(benchmark="other") == []
        assert store.candidates(run_id="run-2") == []

        assert store.accept("run") == 3
        assert store.candidates() == []
        reference = store.baseline("probe", POINT, "memory_copy", labels, (node(),))
        assert reference is not None
        assert (reference.value, reference.unit) == (4.2, "TB/s")
        assert (reference.low, reference.high, reference.warn) == (-0.07, 0.25, -0.035)
        assert reference.source == "own history, accepted run: run-1 (2026-11-01)"

    def test_bounds_are_mirrored_if_lower_is_better(self, store: Store) -> None:
        store.keep(run())
        store.accept("run-1", low=-0.1, high=0.5, warn=None)
        reference = store.baseline("probe", POINT, "seconds_per_epoch", {}, (node(),))
        assert reference is not None
        assert (reference.low, reference.high, reference.warn) == (-0.5, 0.1, None)

    def test_the_reference_is_the_median_of_several_accepted_runs(self, store: Store) -> None:
        store.keep_many(run(f"night-{night}", night=night, speed=4.0 + night / 50) for night in range(8))
        for night in (3, 1, 0):
            assert store.accept(f"night-{night}") == 3
        labels = {"gpu": uuid(100), "dtype": "fp32"}
        reference = store.baseline("probe", POINT, "memory_copy", labels, (node(),))
        assert reference is not None
        assert reference.value == 4.02
        assert reference.source == (
            "own history, median of 3 accepted runs: night-0 (2026-11-01), night-1 (2026-11-02), "
            "night-3 (2026-11-04)"
        )
        for night in (2, 4, 5, 6, 7):
            store.accept(f"night-{night}")
        reference = store.baseline("probe", POINT, "memory_copy", labels, (node(),))
        assert reference is not None
        assert reference.source.startswith(
            "own history, median of 8 accepted runs: night-0 (2026-11-01) … 3 more"
        )
        assert reference.source.endswith("night-7 (2026-11-08)")

    # Speeds of memory_copy in TB/s, one for each run. All runs of a series but the last one can be accepted.
    # The last one is near the accepted runs, but too far from the run that was accepted first.
    @pytest.mark.parametrize(
        "speeds", [(4.2, 3.98), (4.2, 4.1, 4.0, 3.95), (4.0, 4.5), (4.0, 4.19, 4.39, 4.39)]
    )
    def test_a_run_too_far_from_the_first_accepted_run_is_refused(
        self, speeds: tuple[float, ...], store: Store
    ) -> None:

        store.keep_many(run(f"night-{night}", night=night, speed=speed) for night, speed in enumerate(speeds))
        *fine, last = range(len(speeds))
        for night in fine:
            assert store.accept(f"night-{night}") == 3
        labels = {"gpu": uuid(100), "dtype": "fp32"}
        before = store.baseline("probe", POINT, "memory_copy", labels, (node(),))
        with pytest.raises(
            HistoryError, match=r"\(accepted first, from night-0\).*withdraw night-0 --reason"
        ):
            store.accept(f"night-{last}")
        assert store.baseline("probe", POINT, "memory_copy", labels, (node(),)) == before
        # The last run can be accepted after the earlier runs were withdrawn with a reason.
        for night in fine:
            store.withdraw(f"night-{night}")
        with pytest.raises(HistoryError, match=r"accepted first, from night-0"):
            store.accept(f"night-{last}")
        for night in fine:
            assert store.withdraw(f"night-{night}", reason="its board was changed") == 0
        assert store.accept(f"night-{last}") == 3

    def test_a_withdrawn_run_limits_others_until_it_has_a_reason(self, where: str) -> None:
        with open_store(where) as store:
            store.keep_many([run("a", night=0, speed=4.2), run("b", night=1, speed=3.98)])
            # Databases of earlier versions lack the table of withdrawn numbers.
            store._write(schema.withdrawn.drop)
            assert store.accept("a") == 3
            acts: list[int] = []
            assert (store.withdraw("a", note=acts.append), store.withdraw("a", note=acts.append)) == (3, 0)
            # A pruned run limits others, too, and so does one that was accepted and withdrawn again.
            assert store.accept("a") == store.withdraw("a", note=acts.append) == 3
            store.prune(START + timedelta(hours=1))
            with pytest.raises(HistoryError, match=r"5\.2% worse than 4\.2 \(accepted first, from a\)"):
                store.accept("b")

            def fail(_: int) -> None:
                raise OSError("the log cannot be written")

            with pytest.raises(OSError, match="cannot be written"):
                store.withdraw("a", note=fail, reason="a new board")
            with pytest.raises(HistoryError, match="accepted first, from a"):
                store.accept("b")
            assert store.withdraw("a", note=acts.append, reason="a new board") == 0
            assert store.withdraw("a", note=acts.append, reason="a new board") == 0
            assert acts == [3, 3, 0]
            assert store.accept("b") == 3

    @pytest.mark.parametrize("unit", ["TB/s ", " TB/s", "TB /  s", "TB\t/s", "TB/s\n"])
    def test_a_number_whose_unit_has_blanks_cannot_be_accepted(self, unit: str, store: Store) -> None:
        plain = run()
        changed = [
            one if one.reference else one.model_copy(update={"unit": unit}) for one in plain.judgements
        ]
        store.keep(plain.model_copy(update={"judgements": tuple(changed)}))
        with pytest.raises(HistoryError, match="has blanks"):
            store.accept("run-1")

    def test_a_reference_applies_only_to_its_hardware_point_and_labels(self, store: Store) -> None:
        store.keep(run())
        store.accept("run-1")
        labels = {"gpu": uuid(100), "dtype": "fp32"}
        ask = store.baseline
        assert ask("probe", POINT, "memory_copy", labels, (node(5),)) is not None  # The GPU moved.
        assert ask("probe", POINT, "memory_copy", {"gpu": uuid(500), "dtype": "fp32"}, (node(5),)) is None
        assert ask("probe", POINT, "memory_copy", {**labels, "dtype": "bf16"}, (node(),)) is None
        assert ask("probe", {"batch_size": 64, "gpus": 2}, "memory_copy", labels, (node(),)) is None
        assert ask("other", POINT, "memory_copy", labels, (node(),)) is None
        assert ask("probe", POINT, "seconds_per_epoch", {}, (node(name="renamed"),)) is not None
        assert ask("probe", POINT, "seconds_per_epoch", {}, (node(2),)) is None
        assert ask("probe", POINT, "seconds_per_epoch", {}, (node(1), node(2))) is None
        assert ask("probe", POINT, "seconds_per_epoch", {}, ()) is None

    def test_a_reference_is_never_computed_from_numbers_in_different_units(self, store: Store) -> None:
        for night, (value, unit) in enumerate([(4.2, "TB/s"), (4200.0, "GB/s")]):
            copy = measured("memory_copy", value, unit)
            store.keep(run(f"r{night}", night=night, measurements=(copy,), judgements=(unjudged(copy),)))
            store.accept(f"r{night}")
        reference = store.baseline("probe", POINT, "memory_copy", {}, (node(),))
        assert reference is not None
        assert (reference.value, reference.unit) == (4200.0, "GB/s")

    def test_all_gpus_are_accepted_although_only_the_lowest_was_judged(self, store: Store) -> None:
        whole = run()
        lowest = whole.judgements[:1]
        store.keep(whole.model_copy(update={"judgements": lowest}))
        assert store.accept("run-1") == 2
        labels = {"gpu": uuid(101), "dtype": "fp32"}
        reference = store.baseline("probe", POINT, "memory_copy", labels, (node(),))
        assert reference is not None
        assert reference.value == 4.21

    def test_a_run_that_was_judged_by_an_accepted_run_can_be_accepted_too(self, store: Store) -> None:
        first = measured("memory_copy", 4.0, "TB/s")
        store.keep(run("r0", measurements=(first,), judgements=(unjudged(first),)))
        store.accept("r0")
        reference = store.baseline("probe", POINT, "memory_copy", {}, (node(),))
        second = measured("memory_copy", 4.1, "TB/s")
        judged = passed(second, 4.0).model_copy(update={"reference": reference})
        store.keep(run("r1", night=1, measurements=(second,), judgements=(judged,)))
        assert store.accept("r1") == 1
        reference = store.baseline("probe", POINT, "memory_copy", {}, (node(),))
        assert reference is not None
        assert reference.value == pytest.approx(4.05)

    def test_numbers_judged_by_a_rule_are_not_accepted(self, store: Store) -> None:
        store.keep(run())
        store.accept("run-1")
        assert store.baseline("probe", POINT, "eval_accuracy", {}, (node(),)) is None

    @pytest.mark.parametrize(
        "bounds", [{"high": 0.0}, {"high": -0.1}, {"low": 0.0}, {"low": 0.1}, {"warn": 0.0}]
    )
    def test_a_bound_that_is_no_bound_is_refused(self, store: Store, bounds: dict[str, float]) -> None:
        store.keep(run())
        with pytest.raises(HistoryError, match="high is above 0"):
            store.accept("run-1", **bounds)
        assert store.accept("run-1", low=None, high=None, warn=None) == 3

    def test_a_second_acceptance_changes_the_bounds_and_a_withdrawal_removes_the_references(
        self, store: Store
    ) -> None:
        store.keep(run())
        assert store.accept("run-1") == 3
        assert store.accept("run-1", low=-0.02) == 3
        reference = store.baseline(
            "probe", POINT, "memory_copy", {"gpu": uuid(100), "dtype": "fp32"}, (node(),)
        )
        assert reference is not None
        assert reference.low == -0.02
        assert reference.source.startswith("own history, accepted run: ")
        assert store.withdraw("run-1") == 3
        assert store.withdraw("run-1") == 0
        assert len(store.candidates()) == 3

    def test_a_number_can_be_accepted_although_its_missing_reference_gates(self, store: Store) -> None:
        copy = measured("memory_copy", 4.2, "TB/s")
        gating = unjudged(copy, gating=True)
        store.keep(run(measurements=(copy,), judgements=(gating,), verdict=Verdict.UNPROVEN))
        assert store.accept("run-1") == 1

    # A case has changes of a good run, and a part of the message that refuses to accept the run.
    @pytest.mark.parametrize(
        ("changes", "reason"),
        [
            ({"verdict": Verdict.FAIL, "reasons": ("loss is NaN",)}, "loss is NaN"),
            (
                {
                    "findings": (Finding(code="cut_off", message="no run_stop", verdict=Verdict.UNPROVEN),),
                    "verdict": Verdict.UNPROVEN,
                },
                "no run_stop",
            ),
            (
                {"logs": (LogFile(path="logs/a.log", sha256="0", size_bytes=0),)},
                "its log logs/a.log is unproven",
            ),
            ({"exit_status": 137}, "ended with status 137"),
            ({"nodes": ()}, "has no nodes"),
            (
                {
                    "judgements": (
                        passed(measured("eval_accuracy", 0.5, ""), 0.99).model_copy(
                            update={"verdict": Verdict.UNPROVEN, "reason": "nobody evaluated it"}
                        ),
                        *run().judgements,
                    ),
                    "verdict": Verdict.UNPROVEN,
                },
                "eval_accuracy is unproven: nobody evaluated it",
            ),
        ],
    )
    def test_a_run_with_a_fault_cannot_be_accepted(
        self, store: Store, changes: dict[str, object], reason: str
    ) -> None:
        store.keep(run(**changes))  # type: ignore[arg-type]
        with pytest.raises(HistoryError, match=reason):
            store.accept("run-1")
        assert store.baseline("probe", POINT, "seconds_per_epoch", {}, (node(),)) is None

    # Bounds are fractions of the reference. For a speed, low and warn must be negative, and high positive.
    @pytest.mark.parametrize("bounds", [{"low": 0.07}, {"warn": 0.0}, {"high": -0.2}])
    def test_bounds_with_the_wrong_sign_are_refused(self, store: Store, bounds: dict[str, float]) -> None:
        store.keep(run())
        with pytest.raises(HistoryError, match="low and warn are below 0"):
            store.accept("run-1", **bounds)  # type: ignore[arg-type]

    def test_a_reference_remains_if_the_record_of_its_run_changes(self, store: Store) -> None:
        store.keep(run())
        store.accept("run-1")
        store.keep(run(notes="looked at again"))
        assert store.baseline("probe", POINT, "seconds_per_epoch", {}, (node(),)) is not None


def test_the_expected_duration_is_the_median_of_good_runs_on_the_same_hardware(store: Store) -> None:
    store.keep_many(
        [
            *(run(f"r{seconds}", night=seconds, seconds=seconds) for seconds in (10, 20, 90)),
            run("failed", night=3, seconds=5, exit_status=1, verdict=Verdict.FAIL),
            run("killed", night=4, seconds=5, exit_status=None),
            run("elsewhere", night=5, seconds=1000, nodes=(node(2),)),
            run("other-point", night=6, seconds=2000, parameters={"batch_size": 1}),
            run("no-end", night=7, ended=None),
        ]
    )
    assert store.estimate_seconds("probe", POINT, (node(),)) == 20
    assert store.estimate_seconds("probe", POINT, "SN0001") == 20
    assert store.estimate_seconds("probe", POINT, (node(3),)) is None
    assert store.estimate_seconds("probe", POINT, ()) is None
    assert store.estimate_seconds("unknown", POINT, (node(),)) is None


@pytest.mark.parametrize("field", ["benchmark", "host", "uuid", "label", "unit", "reason", "serial"])
def test_a_run_with_hostile_text_is_stored_and_can_be_accepted(store: Store, field: str) -> None:
    hostile = "\0\x1b[2J'; DROP TABLE runs; --\"" + "漢" * 150 + "<script>"
    long = hostile * 30
    gpu = node().gpus[0].model_copy(update={"uuid": long if field == "uuid" else uuid(100)})
    on = Node(
        name=hostile if field == "host" else "node01",
        serial=long if field == "serial" else "SN1",
        gpus=(gpu,),
    )
    one = measured(
        "m", 1.0, hostile if field == "unit" else "s", gpu=gpu.uuid, text=long if field == "label" else ""
    )
    judged = unjudged(one).model_copy(
        update={"reason": "no reference" + (hostile if field == "reason" else "")}
    )
    original = run(
        benchmark=hostile if field == "benchmark" else "probe",
        nodes=(on,),
        measurements=(one,),
        judgements=(judged,),
    )
    store.keep(original)
    assert store.run("run-1") == original
    assert len(store.measurements(metric="m")) == 1
    assert store.accept("run-1") == 1
    assert store.baseline(original.benchmark, POINT, "m", one.labels, (on,)) is not None
    assert len(store.measurements(hardware=on.hardware_key)) == 1


def test_trays_that_share_a_chassis_serial_within_a_run_are_distinguished(store: Store) -> None:
    trays = tuple(Node(name=f"tray{number}", chassis_serial="RACK-7") for number in range(3))
    store.keep(run(nodes=trays, measurements=(), judgements=()))
    assert store.runs()[0].nodes == ("tray0", "tray1", "tray2")


def test_bytes_that_are_not_utf_8_are_replaced_in_a_stored_run(store: Store) -> None:
    broken = Run(run_id="r", benchmark="b", environment={"PATH": "a\udc80b"}, reasons=("\udc80",))
    store.keep(broken)
    assert store.run("r").environment == {"PATH": "a\N{REPLACEMENT CHARACTER}b"}


@pytest.mark.parametrize("stored", ['{"run_id": 7}', "", "{"])
def test_the_error_about_a_damaged_record_names_the_run_and_the_remedy(store: Store, stored: str) -> None:
    store.keep(run())
    store._write(lambda connection: connection.execute(schema.records.update().values(record=stored)))
    with pytest.raises(HistoryError, match=r"record of run-1 is damaged.*rebuild the history"):
        store.run("run-1")


def test_the_error_about_a_record_that_cannot_be_unpacked_names_the_remedy(tmp_path: Path) -> None:
    path = tmp_path / "history.sqlite"
    with open_store(f"sqlite:///{path}") as store:
        store.keep(run())
        with sqlite3.connect(path) as direct:
            direct.execute("UPDATE records SET record = x'00ff00'")
        direct.close()
        with pytest.raises(HistoryError, match="rebuild the history"):
            store.run("run-1")


def test_many_runs_can_be_stored_at_once_and_are_stored_once(store: Store) -> None:
    many = [run(f"r{number:04d}", night=number % 7, nodes=(node(number % 50),)) for number in range(450)]
    assert len(store.keep_many(iter(many))) == 450
    assert store.keep_many(many) == []
    assert len(store.measurements(limit=None)) == 450 * 4
    assert len(store.runs(limit=1000)) == 450


def test_the_samples_equal_the_judgements_that_judging_makes() -> None:
    from rackproof.core.judging import judge

    copy = measured("memory_copy", 4.2, "TB/s")
    assert judge(copy, None, gating=False) == unjudged(copy)
    assert unjudged(copy).reason == samples.NO_REFERENCE
