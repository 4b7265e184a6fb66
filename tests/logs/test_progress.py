"""Test the live progress of a job (:mod:`rackproof.logs.progress`).

While a job runs, job bench passes the new bytes of its log to a :class:`Follower` every few seconds, and
shows step, epoch, loss and throughput. These tests feed logs of many formats in pieces that split lines
anywhere. They check:

- the progress at the end of the log, and the fraction of the job that is done
- the name of the phase, and the message for the operator
- the bounds on memory and time for long lines.
"""

from __future__ import annotations

import time

import pytest

from rackproof.logs.progress import Follower, Progress
from tests.logs import log_samples as samples
from tests.logs.log_samples import event


def fed(data: bytes, size: int = 7, **options: int) -> Progress:
    """Return the progress after a log was fed in pieces of ``size`` bytes.

    ``options`` are those of :class:`Follower`: the known numbers of epochs and steps.
    """
    follower = Follower(**options)
    for start in range(0, len(data), size):
        follower.feed(data[start : start + size])
    return follower.progress


CASES: list[tuple[str, bytes, dict[str, object]]] = [
    (
        "mllog",
        samples.mllog(status=None),
        {
            "phase": "training",
            "step": 200,
            "loss": 1.2,
            "accuracy": 0.921,
            "target": 0.925,
            "throughput": pytest.approx(10.24),
        },
    ),
    ("mllog ended", samples.mllog(), {"phase": "success", "fraction": 1.0}),
    (
        "own workload",
        b"".join(
            line.encode()
            for line in (
                event("run_start"),
                event("progress", {"step": 50, "steps": 100, "epoch": 2, "epochs": 4, "phase": "train"}),
                event("tracked_stats", {"train_loss": 0.5, "throughput": 1000.0}, step=150, epoch_num=2),
            )
        ),
        {"step": 50, "steps": 100, "epoch": 2, "epochs": 4, "phase": "train", "fraction": 0.375, "loss": 0.5},
    ),
    ("mll06", samples.MLL06, {"phase": "success", "accuracy": 0.2305, "target": 0.23, "throughput": 4200.0}),
    (
        "tf_cnn",
        samples.TF_CNN[: samples.TF_CNN.index(b"100\t")],
        {"step": 1, "steps": 100, "loss": 7.931, "throughput": 325.8, "fraction": 0.01},
    ),
    ("tf_cnn ended", samples.TF_CNN, {"phase": "ended", "throughput": 326.58, "fraction": 1.0}),
    (
        "mxnet",
        samples.MXNET,
        {"epoch": 2, "epochs": 2, "accuracy": 0.983496, "throughput": 3400.0, "throughput_unit": "samples/s"},
    ),
    ("nccl_tests", samples.NCCL, {"phase": "measuring", "step": 2224200, "throughput": 222.42}),
    (
        "gpu_burn",
        samples.GPU_BURN[: samples.GPU_BURN.index(b"100.0%")],
        {"fraction": 0.5, "phase": "burning"},
    ),
    ("nothing", b"hello\n" * 10, {"phase": "", "fraction": None, "message": ""}),
]
"""Name of the case, log, and some fields of the progress at the log's end."""


@pytest.mark.parametrize(("data", "expected"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
@pytest.mark.parametrize("size", [1, 7, 1 << 20])
def test_progress_is_read_from_pieces_of_any_size(
    data: bytes, expected: dict[str, object], size: int
) -> None:
    progress = fed(data, size)
    assert {name: getattr(progress, name) for name in expected} == expected


def test_a_new_epoch_begins_at_step_0() -> None:
    follower = Follower()
    follower.feed(event("progress", {"step": 100, "steps": 100, "epoch": 1, "epochs": 4}).encode())
    before = follower.progress.fraction
    progress = follower.feed(event("epoch_start", None, 1, epoch_num=2).encode())
    assert (before, progress.fraction, progress.step) == (0.25, 0.25, 0)


def test_the_number_of_epochs_can_be_given_if_the_log_lacks_it() -> None:
    assert fed(b"INFO:root:Epoch[4] Batch [0-5]\tSpeed: 10.0 samples/sec\n", epochs=8).fraction == 0.5


def test_only_events_are_read_if_the_format_is_mllog() -> None:
    assert Follower("mllog").feed(samples.TF_CNN) == Progress()


def test_a_line_without_end_does_not_fill_memory() -> None:
    follower = Follower()
    for _ in range(100):
        follower.feed(b"x" * 100_000)
    assert len(follower._rest) <= 1 << 16
    # The end of the long line is dropped, too, and the next line is read.
    progress = follower.feed(b" total images/sec: 1\n" + samples.TF_CNN)
    assert progress.throughput == 326.58


@pytest.mark.parametrize(
    ("name", "stated", "begins", "goes_on"),
    [
        ("gemm", "gemm", "running", "gemm"),
        ("all-reduce", "all_reduce", "running", "all_reduce"),
        ("soak", None, "running", "running"),
        ("mnist-lenet", "train", "running", "train"),
        ("llama2_70b_lora", None, "training", "training"),
        (None, None, "training", "training"),
    ],
)
def test_a_phase_has_the_name_that_the_program_states(
    name: str | None, stated: str | None, begins: str, goes_on: str
) -> None:
    """Check that a measurement, for example of matrix products, is not called a training.

    ``begins`` is the phase after the start, and ``goes_on`` the phase after a progress event with ``stated``
    and after an evaluation.
    """
    follower = Follower()
    named = event("submission_benchmark", name) if name else ""
    assert follower.feed((named + event("run_start", None, 1)).encode()).phase == begins
    progress = event("progress", {"step": 1, "steps": 3, "phase": stated}) if stated else ""
    after = event("eval_start", None, 2) + event("eval_stop", None, 3)
    assert follower.feed((progress + after).encode()).phase == goes_on


def test_a_message_has_no_control_characters() -> None:
    value = {"step": 1, "steps": 10, "epoch": 1, "epochs": 2, "phase": "\x1b[31mtrain\x00"}
    assert fed(event("progress", value).encode()).message == "train, epoch 1/2, step 1/10"


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"epoch": 1, "epochs": 12, "step": 50, "steps": 468}, "epoch 1, at most 12, step 50/468"),
        ({"epoch": 12, "epochs": 12}, "epoch 12/12"),
        ({"step": 50, "steps": 468}, "step 50, at most 468"),
        ({"epoch": 3, "epochs": 12, "phase": "success"}, "success, epoch 3"),
    ],
)
def test_a_job_with_a_target_may_end_before_its_last_epoch(value: dict[str, object], message: str) -> None:
    assert fed(event("progress", {**value, "target": 0.985}).encode()).message == message


@pytest.mark.parametrize(
    "line",
    [b"TRAIN [1][1/1]", b"Iteration: 1, Loss function: 1,", b"TRAIN [0][1/2] Tok/s "],
)
def test_a_line_of_60000_bytes_takes_less_than_50_ms(line: bytes) -> None:
    start = time.process_time()
    Follower().feed(line * (60_000 // len(line)) + b"\n")
    assert time.process_time() - start < 0.05


def test_lines_of_ssd_and_gnmt_give_the_throughput() -> None:
    ssd = b"Iteration:     20, Loss function: 20.630, Average Loss: 0.446, avg. samples / sec: 3805.07\n"
    assert Follower().feed(ssd).throughput == 3805.07
    gnmt = (
        b"0: TRAIN [0][10/3880]\tTime 0.205 (0.310)\tData 2.29e-04 (3.02e-03)\tTok/s 86482 (80133)\t"
        b"Loss/tok 8.8 (9.6)\tLR 3.4e-05\n"
    )
    assert Follower().feed(gnmt).throughput == 86482
