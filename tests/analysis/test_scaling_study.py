"""Test studies of one benchmark on different numbers of GPUs (:mod:`rackproof.analysis.scaling_study`).

A study shows the throughput and efficiency of each size. For a size that scales badly, it shows the cause
that the samples of the run show: waiting for data, the network, a slow rank, or low clocks. These tests
check which runs count, the efficiency, the causes, and the tables and charts of the report.
"""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from rackproof.analysis.scaling_study import ScalingExplanation, devices_of, explain, studies
from rackproof.core.records import Dataset, Direction, Finding, Measurement, Node, Run, Series, Verdict
from rackproof.jobs.bench.import_logs import import_logs
from rackproof.report import render
from rackproof.report.study import (
    cause_table,
    environment_table,
    experiment_table,
    scaling_charts,
    scaling_tables,
    tables,
)


def training(gpus: int, rate: float, number: int = 1, **changes: object) -> Run:
    """Return a run with a number of GPUs and its images per second."""
    name = f"run-{gpus}-{number}"
    values: dict[str, object] = {
        "run_id": name,
        "benchmark": "resnet50",
        "parameters": {"gpus": gpus, "batch_per_gpu": 256},
        "measurements": (
            Measurement(name="images_per_second", value=rate, unit="images/s", direction=Direction.HIGHER),
        ),
        "asked_nodes": ("node-01",),
        "verdict": Verdict.PASS,
    }
    return Run.model_validate(values | changes)


def measured(name: str, value: float, **labels: str) -> Measurement:
    return Measurement(name=name, value=value, unit="s", labels=labels)


def curve(name: str, *values: float, **labels: str) -> Series:
    """Return samples of a run, one per second."""
    return Series(
        name=name, unit="", x_unit="s", x=tuple(map(float, range(len(values)))), y=values, labels=labels
    )


def the_cause(run: Run, base: Run | None = None) -> ScalingExplanation:
    """Return the only explanation of a run."""
    (found,) = explain(run, base)
    return found


def test_efficiency_states_its_base_and_its_interval_over_repeats() -> None:
    runs = [training(1, rate, number) for number, rate in enumerate((99, 100, 101))]
    runs += [training(4, rate, number) for number, rate in enumerate((388, 390, 392))]
    (study,) = studies(runs)
    assert (study.benchmark, study.where, study.base, study.scales) == ("resnet50", "node-01", 1, True)
    one, four = study.rows
    assert one.scaling is not None
    assert one.scaling.efficiency == 1
    assert four.scaling is not None
    assert (four.devices, four.scaling.base, four.scaling.repeats) == (4, 1, 3)
    assert four.scaling.efficiency == pytest.approx(0.975)
    assert four.scaling.low is not None
    assert four.scaling.low < 0.975 < (four.scaling.high or 0)


def test_a_run_that_does_not_count_has_a_row_but_no_efficiency() -> None:
    nan = Finding(code="nan", message="the loss is nan", verdict=Verdict.FAIL)
    runs = [training(1, 100), training(2, 500, findings=(nan,), verdict=Verdict.FAIL), training(4, math.nan)]
    (study,) = studies(runs)
    assert [row.rate for row in study.rows] == [100, None, None]
    assert [row.scaling is None for row in study.rows] == [False, True, True]
    assert study.rows[1].left_out == ("the loss is nan",)
    assert study.rows[2].left_out == ("it has no throughput that counts",)
    assert not study.scales
    assert tables(runs) == ()


def test_a_failed_run_is_no_base() -> None:
    broken = training(1, 100, verdict=Verdict.FAIL, exit_status=1)
    (study,) = studies([broken, training(2, 190), training(4, 361)])
    assert study.base == 2
    assert study.rows[2].scaling is not None
    assert study.rows[2].scaling.efficiency == pytest.approx(0.95)


def test_points_that_differ_in_more_than_size_are_other_studies() -> None:
    runs = [training(1, 100), training(2, 190), training(1, 50, parameters={"gpus": 1, "batch_per_gpu": 64})]
    runs.append(training(1, 101, asked_nodes=("node-02",)))
    assert [(one.where, one.point, len(one.rows)) for one in studies(runs)] == [
        ("node-01", {"batch_per_gpu": "256"}, 2),
        ("node-01", {"batch_per_gpu": "64"}, 1),
        ("node-02", {"batch_per_gpu": "256"}, 1),
    ]
    # The batch over all GPUs grows with their number, and does not make another point.
    weak = [training(n, 100, parameters={"gpus": n, "batch_per_gpu": 8, "batch_size": 8 * n}) for n in (1, 2)]
    assert len(studies(weak)) == 1


def test_a_cpu_is_no_size_of_a_study_of_gpus() -> None:
    found = studies(
        [training(0, 3, parameters={"gpus": 0, "batch_per_gpu": 256}), training(1, 100), training(2, 190)]
    )
    assert [(one.point.get("device"), [row.rate for row in one.rows]) for one in found] == [
        ("CPU", [3]),
        (None, [100, 190]),
    ]


def test_devices_of_several_nodes_are_counted_together() -> None:
    names = ("node-01", "node-02")
    both = training(4, 700, asked_nodes=names, nodes=tuple(Node(name=name) for name in names))
    assert devices_of(both) == 8
    assert devices_of(training(0, 1, parameters={"gpus": 0, "nodes": 2})) == 2
    (study,) = studies([training(4, 360), both])
    assert [(row.devices, row.nodes) for row in study.rows] == [(4, 1), (8, 2)]


def test_waiting_for_data_is_distinguished_from_a_slow_host() -> None:
    waits = (measured("data_wait_share", 0.02, rank="0"), measured("data_wait_share", 0.4, rank="1"))
    real = training(
        2, 100, measurements=waits, storage="s3fs", series=(curve("gpu_utilisation", 40, 60, gpu="1"),)
    )
    found = the_cause(real)
    assert found.cause == "waiting for data"
    assert "data arrives too slowly" in found.text
    assert found.evidence == (
        "rank 1 had nothing to do for 40% of the time",
        "GPU 1: utilisation 50 % on average",
        "storage: s3fs",
    )
    synthetic = real.model_copy(update={"dataset": Dataset(name="synthetic")})
    assert "host launches work too slowly" in the_cause(synthetic).text


def test_a_network_limit_is_shown_with_its_evidence() -> None:
    run = training(8, 100, measurements=(measured("exchange_share", 0.3),), network="overlay")
    found = the_cause(run)
    assert found.cause == "network limit"
    assert found.evidence == ("30% of a step is exchange that no work hides", "network: overlay")
    full = training(8, 100, series=(curve("link_use", 95, 97, 96, interface="eth0"),))
    assert the_cause(full).evidence == ("interface eth0 used to 96 % on average, 97 % at most",)


def test_one_slow_rank_is_named() -> None:
    each = [measured("local_step_time", 0.1, rank=str(rank), gpu=f"GPU-{rank}") for rank in range(3)]
    each.append(measured("local_step_time", 0.13, rank="3", gpu="GPU-3"))
    found = the_cause(training(4, 100, measurements=tuple(each)))
    assert found.cause == "slow rank"
    assert found.text.endswith("rank 3 GPU GPU-3")
    assert found.evidence == ("alone it takes 130 ms a step, the median rank 100 ms",)


def test_low_clocks_are_shown_with_their_evidence() -> None:
    hot = training(4, 100, series=(curve("gpu_throttle", 0, 0x40, 0x40, 0, gpu="2"),))
    assert the_cause(hot).evidence == ("GPU 2: temperature (hardware) in 50% of the samples",)
    # At full load, these GPUs always run at their power cap, which alone explains nothing.
    capped = training(4, 100, series=(curve("gpu_throttle", 4, 4, 4, 4, gpu="2"),))
    assert the_cause(capped).cause == "unknown"
    base = training(1, 30, series=(curve("gpu_clock", 1980, 1980, gpu="0"),))
    slow = training(
        4, 100, series=(curve("gpu_clock", 1500, 1500, gpu="0"), curve("gpu_throttle", 4, 4, gpu="0"))
    )
    assert the_cause(slow, base).evidence == (
        "GPU 0: power cap in 100% of the samples",
        "GPU 0 ran at 1500 MHz, the base run at 1980 MHz",
    )


def test_the_strongest_cause_comes_first_and_a_symptom_only_alone() -> None:
    low = curve("gpu_utilisation", 30, 30, gpu="0")
    run = training(
        4,
        100,
        measurements=(measured("data_wait_share", 0.2, rank="0"), measured("exchange_share", 0.5)),
        series=(low,),
    )
    assert [one.cause for one in explain(run)] == ["network limit", "waiting for data"]
    assert the_cause(training(4, 100, series=(low,))).cause == "not busy"


def test_without_samples_the_cause_is_not_known() -> None:
    assert the_cause(training(4, 100)).text == "nothing was sampled, so the cause is not known"
    fine = training(4, 100, measurements=(measured("data_wait_share", 0.01),))
    assert the_cause(fine).text == "the samples show no cause"


def test_a_bad_point_is_explained_in_the_tables_and_a_good_one_is_not() -> None:
    waits = (training(2, 110).measurements[0], measured("data_wait_share", 0.4, rank="0"))
    runs = [training(1, 100), training(2, 110, measurements=waits), training(4, 390)]
    (why,) = cause_table(runs).rows
    assert [cell.text for cell in why[1:3]] == ["0.550", "GPU waiting for data: data arrives too slowly"]
    (table,) = scaling_tables(runs)
    assert ["waiting for data" in row[-1].text for row in table.rows] == [False, True, False]
    (chart,) = scaling_charts(runs)
    assert chart.lines[0].x == (1, 2, 4)
    assert chart.lines[0].y == pytest.approx((1, 0.55, 0.975))


def test_the_environment_shows_values_that_are_not_known() -> None:
    node = Node(name="n", software={"os": "Ubuntu 24.04", "driver": "580.1"}, firmware={"vbios": "96.0"})
    other = Node(name="m", software={"os": "Ubuntu 24.04", "driver": "580.2"})
    runs = [training(1, 1, nodes=(node,), software={"torch": "2.13"}), training(2, 2, nodes=(other,))]
    shown = {row[0].text: row[1].text for row in environment_table(runs).rows}
    assert shown["NVIDIA driver"] == "580.1; 580.2"
    assert (shown["OS"], shown["Firmware"], shown["Framework"]) == (
        "Ubuntu 24.04",
        "vbios 96.0",
        "torch 2.13",
    )
    assert shown["OFED"] == "not known"


def test_the_experiment_record_has_every_field() -> None:
    run = training(
        2,
        190.5,
        storage="s3fs, https://s3.example",
        network="host",
        notes="next: more readers",
        description="2 GPUs with s3fs",
        dataset=Dataset(name="imagenet", source="bucket imagenet-tfrecord", objects=1024, size_bytes=1 << 30),
        nodes=(Node(name="node-01", addresses=("10.0.0.1",), cpu_count=8, memory_bytes=1 << 36),),
    )
    table = experiment_table([run])
    shown = {name: cell.text for name, cell in zip(table.columns, table.rows[0], strict=True)}
    assert shown["Description"] == "2 GPUs with s3fs"
    assert shown["Storage and endpoint"] == "s3fs, https://s3.example"
    assert shown["Input data (objects, size)"] == "imagenet, bucket imagenet-tfrecord, 1,024 objects, 1 GiB"
    assert shown["Addresses"] == "10.0.0.1"
    assert shown["Node hardware"] == "node-01: 8 CPUs, 64 GiB, 0 GPUs"
    assert (shown["Servers"], shown["Network"], shown["Expected results"]) == ("1", "host", "none stated")
    assert shown["Summary"].endswith("next: more readers")


def test_the_published_logs_of_tf_cnn_give_the_published_table(real_logs: Path, tmp_path: Path) -> None:
    made = import_logs(real_logs / "tf_cnn", tmp_path / "results", old=True)
    runs = [one.run for one in made.imported]
    study = next(one for one in studies(runs) if one.scales)
    found = [(row.devices, row.rate, round(row.scaling.efficiency, 3)) for row in study.rows if row.scaling]
    assert found == [(1, 326.58, 1.0), (2, 639.52, 0.979), (4, 1277.06, 0.978), (8, 2544.13, 0.974)]
    verdicts = {Path(run.description).name: run.verdict.value for run in runs}
    assert verdicts["nan-vgg16-8gpu.log"] == "fail"
    assert verdicts["traceback-no-total.log"] == "fail"
    assert verdicts["oom-text.log"] == "pass"
    (oom,) = (run for run in runs if run.description.endswith("oom-text.log"))
    assert [one.code for one in oom.findings if one.verdict is None] == ["memory_text"]
    page = render(runs, "html", "tf_cnn").decode()
    text = render(runs, "md", "tf_cnn").decode()
    for said in (page, text):
        assert all(number in said for number in ("326.58", "639.52", "1,277.06", "2,544.13", "0.974"))
    assert "2,886.73" not in text, "a run that failed has no rate in the table"


def test_hostile_text_does_not_leave_its_cell() -> None:
    evil = "<script>alert(1)</script>"
    runs = [
        training(
            n, 100 * n, parameters={"gpus": n, "model": f"{evil}{'x' * (n - 1)}"}, storage=evil, notes=evil
        )
        for n in (1, 2)
    ] + [training(n, 90 * n, 2) for n in (1, 2)]
    assert evil not in render(runs, "html").decode()
    assert "<script" not in render(runs, "md").decode()


def test_more_than_ideal_is_not_believed() -> None:
    (study,) = studies([training(1, 100), training(2, 300)])
    (found,) = study.rows[1].explanations
    assert found.cause == "too good to be true"
    assert "the base of 1 was slowed down" in found.text
