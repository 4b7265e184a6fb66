"""Test logs of tf_cnn_benchmarks under mpirun, where all ranks print into one log.

A rank may print the total of all ranks or only its own, and Open MPI mixes pieces of the ranks' lines. These
tests of :mod:`rackproof.logs.tf_cnn` check that the lowest total counts, that a log is unproven if it is
unknown which ranks a total covers, and that the accuracies of an evaluation are read.
"""

from __future__ import annotations

import io

import pytest

from rackproof.core.records import ParsedLog, Verdict
from rackproof.logs import parse

HEAD = """\
TensorFlow:  1.15
Model:       resnet50
Batch size:  512 global
             256 per device
Num batches: 10
Devices:     ['horovod/gpu:0', 'horovod/gpu:1']
Variables:   VARIABLES
"""
STEPS = (
    "1\timages/sec: 300.0 +/- 0.0 (jitter = 0.0)\t7.8\n10\timages/sec: 310.0 +/- 0.1 (jitter = 0.2)\t7.5\n"
)


def job(
    *totals: str, tag: str = "[1,{rank}]<stdout>:", variables: str = "horovod", steps: str = STEPS
) -> ParsedLog:
    """Return the parsed log of ranks that each print a heading, steps and a total."""
    text = ""
    for rank, total in enumerate(totals):
        lines = HEAD.replace("VARIABLES", variables) + steps + total
        text += "".join(f"{tag.format(rank=rank)}{line}\n" for line in lines.splitlines())
    return parse(io.BytesIO(text.encode()), format="tf_cnn", name="log")


def codes(log: ParsedLog) -> list[str]:
    return [one.code for one in log.findings]


@pytest.mark.parametrize("tag", ["[1,{rank}]<stdout>:", "{rank}: ", ""])
def test_the_total_of_ranks_with_similar_totals_is_the_lowest_or_the_last(tag: str) -> None:
    log = job("total images/sec: 640.00", "total images/sec: 638.50", tag=tag)
    assert log.verdict.value == "pass"
    rate = log.measurement("images_per_second")
    assert rate is not None
    assert rate.value == 638.5
    assert codes(log) == ([] if tag else ["several_runs"])
    (speed,) = (one for one in log.series if one.name == "images_per_second")
    assert speed.x == ((1, 10) if tag else (1, 10, 10, 10)), "with tags, only one rank's steps are stored"
    assert log.tags["devices"] == "2"


def test_a_rank_without_a_total_is_unproven() -> None:
    log = job("total images/sec: 640.00", "")
    assert (log.verdict.value, codes(log)) == ("unproven", ["ranks_without_total"])


def test_ranks_with_unlike_totals_are_unproven() -> None:
    log = job("total images/sec: 640.00", "total images/sec: 320.00")
    assert (log.verdict.value, codes(log)) == ("unproven", ["ranks_disagree"])


@pytest.mark.parametrize("variables", ["replicated", "parameter_server", "independent"])
def test_without_horovod_several_totals_are_unproven(variables: str) -> None:
    log = job("total images/sec: 640.00", "total images/sec: 640.00", variables=variables)
    assert (log.verdict.value, codes(log)) == ("unproven", ["several_totals"])


WORKER = """\
TensorFlow:  2.15
Model:       resnet50
Batch size:  GLOBAL global
             128 per device
Num batches: 10
Devices:     DEVICES
Variables:   parameter_server
1\timages/sec: 300.0 +/- 0.0 (jitter = 0.0)\t7.8
10\timages/sec: 310.0 +/- 0.1 (jitter = 0.2)\t7.5
"""


def workers(*totals: str, batch: int, devices: str | None = None) -> ParsedLog:
    """Return the parsed log of workers of TensorFlow's own distributed modes."""
    text = ""
    for rank, total in enumerate(totals):
        own = devices or f"['/job:worker/replica:0/task:{rank}/gpu:0']"
        lines = WORKER.replace("GLOBAL", str(batch)).replace("DEVICES", own)
        text += "".join(f"[1,{rank}]<stdout>:{line}\n" for line in (lines + total).splitlines())
    return parse(io.BytesIO(text.encode()), format="tf_cnn", name="log")


@pytest.mark.parametrize("device", ["gpu", "cpu"])
def test_workers_with_a_common_batch_state_the_total_of_all(device: str) -> None:
    for count in (2, 3):
        totals = [f"total images/sec: {310 * count + rank:.2f}" for rank in range(count)]
        log = workers(*totals, batch=128 * count, devices=f"['/job:worker/replica:0/task:0/{device}:0']")
        rate = log.measurement("images_per_second")
        assert rate is not None
        assert (log.verdict.value, rate.value, codes(log)) == ("pass", 310 * count, [])


@pytest.mark.parametrize(
    ("batch", "devices"),
    # With an empty text, the heading lists no devices.
    [(128, None), (384, None), (256, "['/gpu:0', '/gpu:1']"), (256, "")],
)
def test_a_batch_of_fewer_or_more_workers_than_ranks_is_unproven(batch: int, devices: str | None) -> None:
    totals = ("total images/sec: 620.00", "total images/sec: 620.00")
    found = workers(*totals, batch=batch, devices=devices)
    if devices == "":
        text = WORKER.replace("GLOBAL", "256").replace("Devices:     DEVICES\n", "") + totals[0]
        lines = [f"[1,{rank}]<stdout>:{line}" for rank in (0, 1) for line in text.splitlines()]
        found = parse(io.BytesIO("\n".join([*lines, ""]).encode()), format="tf_cnn", name="log")
    assert found.verdict.value == "unproven"
    assert "several_totals" in codes(found)


def test_a_tag_of_open_mpi_within_a_line_is_removed() -> None:
    # Open MPI 4.1 puts the tag before every piece that a rank writes, and a line may consist of two pieces.
    log = job("total images/sec: 640.00[1,0]<stdout>:", "total images/sec: 638.50[1,1]<stdout>:")
    rate = log.measurement("images_per_second")
    assert rate is not None
    assert (log.verdict.value, rate.value, codes(log)) == ("pass", 638.5, [])
    alone = HEAD.replace("VARIABLES", "horovod[1,0]<stdout>:") + STEPS + "total images/sec: 640.00"
    text = "".join(f"[1,0]<stdout>:{line}\n" for line in alone.splitlines())
    assert parse(io.BytesIO(text.encode()), format="tf_cnn", name="log").tags["variables"] == "horovod"
    mixed = job("total images/sec: 640.00[1,1]<stdout>:", "total images/sec: 638.50")
    assert mixed.verdict.value == "unproven", "a line without its end does not count"


def pieces(*lines: str) -> ParsedLog:
    """Return the parsed log of two ranks: their headings, and then these lines."""
    head = "".join(f"[1,{rank}]<stdout>:{line}\n" for rank in (0, 1) for line in HEAD.splitlines())
    text = head.replace("VARIABLES", "horovod") + "".join(f"{line}\n" for line in lines)
    return parse(io.BytesIO(text.encode()), format="tf_cnn", name="log")


FIRST, SECOND = "[1,0]<stdout>:", "[1,1]<stdout>:"
STEP_OF_A_RANK = "10\timages/sec: 310.0 +/- 0.1 (jitter = 0.2)\t7.5"


def test_pieces_of_lines_are_joined_by_rank() -> None:
    # Open MPI 4.1 writes such lines if two ranks write at once.
    log = pieces(
        f"{SECOND}{STEP_OF_A_RANK}{FIRST}{STEP_OF_A_RANK}",
        f"{FIRST}total images/sec: 64{SECOND}",
        f"{SECOND}total images/sec: 638.5{FIRST}0.00",
        f"{SECOND}0{FIRST}",
        f"{SECOND}",
    )
    rate = log.measurement("images_per_second")
    assert rate is not None
    assert (log.verdict.value, rate.value, codes(log)) == ("pass", 638.5, [])


def test_a_line_is_joined_from_one_stream_of_one_rank() -> None:
    log = pieces(
        f"{FIRST}{STEP_OF_A_RANK}",
        f"{SECOND}{STEP_OF_A_RANK}",
        f"{FIRST}total images/sec: 640.00",
        f"{SECOND}total images/sec: 640[1,1]<stderr>:a warning",
        "[1,1]<stderr>:another warning",
    )
    assert (log.verdict.value, codes(log)) == ("unproven", ["ranks_without_total"])
    broken = pieces(
        f"{FIRST}10\timages/sec: 310.0 +/- 0.1 (jitter = 0.2)\tn{SECOND}{STEP_OF_A_RANK}",
        f"{FIRST}an",
        f"{FIRST}total images/sec: 640.00",
        f"{SECOND}total images/sec: 640.00",
    )
    assert (broken.verdict.value, codes(broken)) == ("fail", ["nan"])


@pytest.mark.parametrize(
    ("lines", "variables", "count"),
    [
        (
            [
                "Created TensorFlow device (/job:localhost/replica:0/task:0/device:GPU:0 with 1 MB memory)",
                "Created TensorFlow device (/job:localhost/replica:0/task:0/device:GPU:1 with 1 MB memory)",
            ],
            "replicated",
            "2",
        ),
        (
            [
                f"{tag}2026-11-25 04:00:00.1: I tensorflow/core/gpu_device.cc:1929] Created device "
                f"/job:localhost/replica:0/task:0/device:GPU:{gpu} with 78000 MB memory:  -> device: 0"
                for tag in (FIRST, SECOND)
                for gpu in (0, 1)
            ],
            "horovod",
            "2",
        ),
        (
            [
                "server [1,0]<stderr>:Created device /job:ps/replica:0/task:0/device:GPU:0 with 1 MB memory",
                "[1,0]<stderr>:Created device /job:worker/replica:0/task:0/device:GPU:0 with 1 MB memory",
                "[1,0]<stderr>:Created device /job:worker/replica:0/task:0/device:GPU:0 with 1 MB memory",
            ],
            "parameter_server",
            "1",
        ),
        (["Devices:     ['/gpu:0']", "Could not find cuda drivers on your machine"], "replicated", None),
    ],
)
def test_gpus_are_counted_by_the_devices_that_tensorflow_created(
    lines: list[str], variables: str, count: str | None
) -> None:
    text = "".join(f"{line}\n" for line in [*lines, f"Variables:   {variables}"])
    log = parse(io.BytesIO(text.encode()), format="tf_cnn", name="log")
    assert log.tags.get("gpus_created") == count


def test_nan_on_any_rank_fails() -> None:
    text = b"[1,0]<stdout>:1\timages/sec: 300.0 +/- 0.0 (jitter = 0.0)\t7.8\n"
    text += b"[1,1]<stdout>:1\timages/sec: 300.0 +/- 0.0 (jitter = 0.0)\tnan\n"
    text += b"[1,0]<stdout>:total images/sec: 600.0\n[1,1]<stdout>:total images/sec: 600.0\n"
    log = parse(io.BytesIO(text), format="tf_cnn", name="log")
    assert log.verdict.value == "fail"
    assert "nan" in codes(log)


def test_an_evaluation_gives_top_1_and_top_5_accuracy() -> None:
    accuracy = "Accuracy @ 1 = 0.7318 Accuracy @ 5 = 0.9107 [50000 examples]\ntotal images/sec: 900.00"
    log = job(accuracy, tag="", steps="")
    assert (log.verdict.value, codes(log)) == ("pass", [])
    found = {one.name: one.value for one in log.measurements}
    assert found == {"images_per_second": 900, "top_1_accuracy": 0.7318, "top_5_accuracy": 0.9107}


@pytest.mark.parametrize(
    ("accuracy", "code"),
    [
        ("Accuracy @ 1 = nan Accuracy @ 5 = 0.9107 [50000 examples]", "damaged_line"),
        ("Accuracy @ 1 = 7.3 Accuracy @ 5 = 0.9107 [50000 examples]", "damaged_line"),
        ("Accuracy @ 1 = 0.73 Accur", "damaged_line"),
        ("Accuracy @ 1 = 0.7318 Accuracy @ 5 = 0.9107 [0 examples]", "no_examples"),
    ],
)
def test_a_damaged_or_empty_evaluation_is_unproven(accuracy: str, code: str) -> None:
    log = job(f"{accuracy}\ntotal images/sec: 900.00", tag="", steps="")
    assert log.verdict.value == "unproven"
    assert code in codes(log)


def steps(*numbers: int) -> str:
    """Return the lines of the steps with these numbers."""
    return "".join(f"{at}\timages/sec: 300.0 +/- 0.0 (jitter = 0.0)\t7.8\n" for at in numbers)


HALF_STEP = "15\timages/sec: 300.0 +/-\n"
HEAD_OF_ONE_GPU = (
    "Model:       resnet50\nBatch size:  256 global\n             256 per device\nNum batches: {}\n"
)


@pytest.mark.parametrize(
    ("batches", "lines", "verdict"),
    [
        (100, steps(1, *range(10, 101, 10)), Verdict.PASS),
        (100, steps(1, *range(10, 50, 10), *range(80, 101, 10)), Verdict.UNPROVEN),
        (500, steps(1, *range(10, 101, 10)), Verdict.UNPROVEN),
        (100, steps(1, *range(10, 101, 10), 90, 100), Verdict.UNPROVEN),
        (100, steps(*range(50, 101, 10)), Verdict.UNPROVEN),
    ],
)
def test_a_damaged_step_never_makes_a_verdict_better(batches: int, lines: str, verdict: Verdict) -> None:
    head, total = HEAD_OF_ONE_GPU.format(batches), "total images/sec: 300.00\n"
    verdicts = [
        parse(io.BytesIO((head + text + total).encode()), format="tf_cnn").verdict
        for text in (
            lines,
            lines.replace("80\t", HALF_STEP + "80\t", 1),
            lines + HALF_STEP,
            HALF_STEP + lines,
        )
    ]
    assert verdicts == [verdict, *[Verdict.UNPROVEN] * 3]


def test_missing_batches_are_found_beside_a_damaged_step() -> None:
    text = HEAD_OF_ONE_GPU.format(500) + steps(1, 10) + HALF_STEP + steps(20, 100)
    text += "total images/sec: 300.00\n"
    found = codes(parse(io.BytesIO(text.encode()), format="tf_cnn"))
    assert {"damaged_line", "rows_missing"} <= set(found)


@pytest.mark.parametrize("speed", ["nan", "inf", "-12.0", "-inf"])
def test_a_step_with_an_impossible_speed_is_unproven(speed: str) -> None:
    text = f"1\timages/sec: {speed} +/- 0.0 (jitter = 0.0)\t7.8\ntotal images/sec: 600.0\n"
    log = parse(io.BytesIO(text.encode()), format="tf_cnn", name="log")
    assert log.verdict.value == "unproven"
    assert "impossible_value" in codes(log)
