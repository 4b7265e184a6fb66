"""tf_cnn_benchmarks under mpirun, where every rank writes into one log, and its evaluations."""

from __future__ import annotations

import io

import pytest

from rackproof.core.records import ParsedLog
from rackproof.logs import parse

HEAD = """\
TensorFlow:  1.15
Model:       resnet50
Batch size:  512 global
             256 per device
Devices:     ['horovod/gpu:0', 'horovod/gpu:1']
Variables:   VARIABLES
"""
STEPS = (
    "1\timages/sec: 300.0 +/- 0.0 (jitter = 0.0)\t7.8\n10\timages/sec: 310.0 +/- 0.1 (jitter = 0.2)\t7.5\n"
)


def job(
    *totals: str, tag: str = "[1,{rank}]<stdout>:", variables: str = "horovod", steps: str = STEPS
) -> ParsedLog:
    text = ""
    for rank, total in enumerate(totals):
        lines = HEAD.replace("VARIABLES", variables) + steps + total
        text += "".join(f"{tag.format(rank=rank)}{line}\n" for line in lines.splitlines())
    return parse(io.BytesIO(text.encode()), format="tf_cnn", name="log")


def codes(log: ParsedLog) -> list[str]:
    return [one.code for one in log.findings]


@pytest.mark.parametrize("tag", ["[1,{rank}]<stdout>:", "{rank}: ", ""])
def test_ranks_in_step_give_the_lowest_total(tag: str) -> None:
    log = job("total images/sec: 640.00", "total images/sec: 638.50", tag=tag)
    assert log.verdict.value == "pass"
    rate = log.measurement("images_per_second")
    assert rate is not None
    assert rate.value == 638.5
    assert codes(log) == ([] if tag else ["several_runs"])
    (speed,) = (one for one in log.series if one.name == "images_per_second")
    assert speed.x == (1, 10) if tag else (1, 10, 1, 10), "one rank's steps, not both one after the other"
    assert log.tags["devices"] == "2"


def test_a_rank_without_total_proves_nothing() -> None:
    log = job("total images/sec: 640.00", "")
    assert (log.verdict.value, codes(log)) == ("unproven", ["ranks_without_total"])


def test_ranks_out_of_step_prove_nothing() -> None:
    log = job("total images/sec: 640.00", "total images/sec: 320.00")
    assert (log.verdict.value, codes(log)) == ("unproven", ["ranks_disagree"])


def test_without_horovod_nobody_knows_of_how_many_a_total_is() -> None:
    log = job("total images/sec: 640.00", "total images/sec: 640.00", variables="replicated")
    assert (log.verdict.value, codes(log)) == ("unproven", ["several_totals"])


def test_open_mpi_s_tag_within_a_line_is_no_part_of_it() -> None:
    """Open MPI 4.1 puts it before every piece that a rank writes, and a line may come in two."""
    log = job("total images/sec: 640.00[1,0]<stdout>:", "total images/sec: 638.50[1,1]<stdout>:")
    rate = log.measurement("images_per_second")
    assert rate is not None
    assert (log.verdict.value, rate.value, codes(log)) == ("pass", 638.5, [])
    alone = HEAD.replace("VARIABLES", "horovod[1,0]<stdout>:") + STEPS + "total images/sec: 640.00"
    text = "".join(f"[1,0]<stdout>:{line}\n" for line in alone.splitlines())
    assert parse(io.BytesIO(text.encode()), format="tf_cnn", name="log").tags["variables"] == "horovod"
    mixed = job("total images/sec: 640.00[1,1]<stdout>:", "total images/sec: 638.50")
    assert mixed.verdict.value == "unproven", "the line of two ranks is nobody's"


def test_nan_on_any_rank_fails() -> None:
    text = b"[1,0]<stdout>:1\timages/sec: 300.0 +/- 0.0 (jitter = 0.0)\t7.8\n"
    text += b"[1,1]<stdout>:1\timages/sec: 300.0 +/- 0.0 (jitter = 0.0)\tnan\n"
    text += b"[1,0]<stdout>:total images/sec: 600.0\n[1,1]<stdout>:total images/sec: 600.0\n"
    log = parse(io.BytesIO(text), format="tf_cnn", name="log")
    assert log.verdict.value == "fail"
    assert "nan" in codes(log)


def test_an_evaluation_gives_top_1_and_top_5() -> None:
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
def test_an_accuracy_that_is_none_proves_nothing(accuracy: str, code: str) -> None:
    log = job(f"{accuracy}\ntotal images/sec: 900.00", tag="", steps="")
    assert log.verdict.value == "unproven"
    assert code in codes(log)
