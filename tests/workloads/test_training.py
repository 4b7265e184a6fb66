"""Test the trainings mnist_torch.py and mnist_mxnet.py of workloads/ on the CPU.

The tests train small networks on a small data set that they learn in seconds. They show what the log
contains, that the same seed gives the same result, and which exit status and message each failure has.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from .test_supervision import ending, events

# The measurements of a training, and their better direction, or None.
MEASURED = {
    "eval_accuracy": "higher",
    "best_accuracy": "higher",
    "samples_per_second": "higher",
    "samples_per_second_with_startup": "higher",
    "seconds_per_epoch": "lower",
    "startup_time": "lower",
    "epochs": None,
}


def run(python: str, root: Path, program: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a program of workloads/ as on a machine without GPUs."""
    # An empty list of devices makes every machine look like one without GPUs.
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "2"}
    command = [python, str(root / "workloads" / program), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)


def values(text: str, key: str) -> list[Any]:
    """Return the values of the events with a key."""
    return [event["value"] for event in events(text) if event["key"] == key]


@pytest.mark.torch
@pytest.mark.parametrize("network", ["lenet", "mlp"])
def test_training_logs_everything(root: Path, torch_python: str, small_data: Path, network: str) -> None:
    arguments = ("--data", small_data, "--network", network, "--batch-size", 64, "--num-epochs", 3)
    done = run(torch_python, root, "mnist_torch.py", *arguments, "--seed", 7)
    assert done.returncode == 0, done.stderr
    assert ending(done.stdout)["status"] == "success"
    measured = {one["name"]: one for one in values(done.stdout, "measurement")}
    assert {name: one["direction"] for name, one in measured.items()} == MEASURED
    assert measured["eval_accuracy"]["value"] > 0.95
    assert measured["epochs"]["value"] == 3
    assert measured["samples_per_second"]["value"] > measured["samples_per_second_with_startup"]["value"] > 0
    assert values(done.stdout, "submission_benchmark") == [f"mnist_{network}"]
    assert values(done.stdout, "seed") == [7]
    assert values(done.stdout, "global_batch_size") == [64]
    assert values(done.stdout, "train_samples") == [640]
    assert values(done.stdout, "dataset")[0]["objects"] == 740
    assert "torch" in values(done.stdout, "facts")[0]
    assert len(values(done.stdout, "eval_accuracy")) == 3
    assert all(
        set(one) == {"train_loss", "throughput", "train_step_time"}
        for one in values(done.stdout, "tracked_stats")
    )
    epochs = [event for event in events(done.stdout) if event["key"] in ("epoch_start", "epoch_stop")]
    assert [event["metadata"]["epoch_num"] for event in epochs] == [1, 1, 2, 2, 3, 3]  # type: ignore[index]


@pytest.mark.torch
def test_a_batch_that_does_not_divide_trains_as_on_one_device(
    root: Path, torch_python: str, small_data: Path
) -> None:
    """Ten images on three ranks are 3, 3 and 4. Each rank counts by its number of images."""
    arguments = ["--data", small_data, "--network", "mlp", "--batch-size", 10, "--num-epochs", 2, "--seed", 3]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        place = f"127.0.0.1:{free.getsockname()[1]}"
    words = [[*arguments, "--nodes", 3, "--node-rank", at, "--rendezvous", place] for at in range(3)]
    with ThreadPoolExecutor(3) as pool:
        three = list(
            pool.map(lambda one: run(torch_python, root, "mnist_torch.py", "--gpus", 0, *one), words)
        )
    alone = run(torch_python, root, "mnist_torch.py", "--gpus", 0, *arguments)
    assert [done.returncode for done in (alone, *three)] == [0, 0, 0, 0], three[0].stderr
    # The last entry of an epoch is the mean over all ranks. Longer epochs have more entries before it.
    losses = [
        {
            event["metadata"]["epoch_num"]: event["value"]["train_loss"]
            for event in events(done.stdout)
            if event["key"] == "tracked_stats"
        }
        for done in (alone, three[0])
    ]
    assert sorted(losses[0]) == [1, 2]
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)


@pytest.mark.torch
def test_the_same_seed_gives_the_same_result(root: Path, torch_python: str, small_data: Path) -> None:
    arguments = (
        "--data",
        small_data,
        "--network",
        "mlp",
        "--batch-size",
        64,
        "--num-epochs",
        1,
        "--lr",
        0.01,
    )
    one, two = (
        values(run(torch_python, root, "mnist_torch.py", *arguments).stdout, "tracked_stats")[-1][
            "train_loss"
        ]
        for _ in range(2)
    )
    assert one == pytest.approx(two, rel=1e-4)


@pytest.mark.torch
@pytest.mark.parametrize(
    ("arguments", "status", "reason"),
    [
        (["--lr", "1e12"], 3, "loss is nan"),
        (["--lr", "1e-9", "--num-epochs", "1", "--until", "target"], 6, "target 0.978 not reached"),
        (["--batch-size", "641"], 2, "more than the 640 samples"),
    ],
    ids=["diverged", "target missed", "batch too large"],
)
def test_a_failed_training_ends_as_aborted(
    root: Path, torch_python: str, small_data: Path, arguments: list[str], status: int, reason: str
) -> None:
    standard = ("--data", small_data, "--network", "mlp", "--batch-size", 64)
    done = run(torch_python, root, "mnist_torch.py", *standard, *arguments)
    assert done.returncode == status
    assert ending(done.stdout)["status"] == "aborted"
    assert reason in str(ending(done.stdout)["reason"])
    assert reason in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.torch
def test_until_target_stops_early(root: Path, torch_python: str, small_data: Path) -> None:
    arguments = ("--network", "mlp", "--batch-size", 64, "--until", "target", "--target", 0.5)
    done = run(torch_python, root, "mnist_torch.py", "--data", small_data, *arguments)
    assert done.returncode == 0, done.stderr
    assert len(values(done.stdout, "eval_accuracy")) < 12
    assert values(done.stdout, "eval_accuracy")[-1] >= 0.5
    (shown,) = {progress.get("target") for progress in values(done.stdout, "progress")}
    assert shown == 0.5, "the live line has to show the target"


@pytest.mark.torch
def test_damaged_data_is_refused_with_the_remedy(
    root: Path, torch_python: str, small_data: Path, tmp_path: Path
) -> None:
    shutil.copytree(small_data, tmp_path / "d")
    (tmp_path / "d" / "train-labels-idx1-ubyte").write_bytes(b"\0\0\x08\x01")
    done = run(torch_python, root, "mnist_torch.py", "--data", tmp_path / "d")
    assert done.returncode == 5
    assert "train-labels-idx1-ubyte is missing or damaged" in done.stderr
    assert "stage_mnist.py" in done.stderr
    assert ending(done.stdout)["status"] == "aborted"


@pytest.mark.torch
@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        # Arguments, the exit status (2 usage, 4 no GPU, 5 no data), and a part of the message.
        (["--data", "{data}", "--gpus", "2"], 4, "2 GPUs requested, 0 exist"),
        (["--data", "{data}", "--gpus", "all"], 4, "all GPUs requested, 0 exist"),
        (["--data", "{empty}"], 5, "stage_mnist.py --data"),
        ([], 2, "--data"),
        (["--data", "{data}", "--batch-size", "0"], 2, "not positive"),
        (["--data", "{data}", "--gpus", "-1"], 2, "neither a number nor 'all'"),
        (["--data", "{data}", "--network", "resnet"], 2, "invalid choice"),
    ],
)
def test_refuses_before_importing_torch(
    root: Path,
    torch_python: str,
    small_data: Path,
    tmp_path: Path,
    arguments: list[str],
    status: int,
    message: str,
) -> None:
    filled = [one.format(data=small_data, empty=tmp_path) for one in arguments]
    done = run(torch_python, root, "mnist_torch.py", *filled)
    assert done.returncode == status
    assert message in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("store", ["local", "device", "nccl"])
def test_mxnet_trains_and_prints_only_its_own_format(
    root: Path, mxnet_python: str, small_data: Path, store: str
) -> None:
    arguments = ("--network", "mlp", "--batch-size", 64, "--num-epochs", 2, "--disp-batches", 4, "--lr", 0.1)
    points = ("--gpu-count", 0, "--kv-store", store, "--lr-step-epochs", 13)
    done = run(mxnet_python, root, "mnist_mxnet.py", "--data", small_data, *arguments, *points)
    assert done.returncode == 0, done.stderr
    assert f"kv_store='{store}'" in done.stdout
    assert "INFO:root:Epoch[0] Batch [0-4]\tSpeed: " in done.stdout
    assert "INFO:root:Epoch[1] Validation-accuracy=" in done.stdout
    assert "num_epochs=2" in done.stdout
    assert ":::MLLOG" not in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("batch", [64, 150, 200])
def test_mxnet_states_a_speed_of_epochs_with_few_batches(
    root: Path, mxnet_python: str, small_data: Path, batch: int
) -> None:
    """MXNet's own Speedometer prints nothing if an epoch has no more batches than it waits for."""
    arguments = ("--network", "mlp", "--batch-size", batch, "--num-epochs", 1, "--disp-batches", 50)
    done = run(mxnet_python, root, "mnist_mxnet.py", "--data", small_data, *arguments, "--gpu-count", 0)
    assert done.returncode == 0, done.stderr
    assert re.search(r"Epoch\[0\] Batch \[0-\d+\]\tSpeed: \d", done.stdout), done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        # Arguments, the exit status (2 usage, 3 diverged, 4 no GPU, 5 no data), and a part of the message.
        (["--data", "{data}", "--gpus", "0,1"], 4, "GPUs 0,1 requested, 0 usable"),
        (["--data", "{data}", "--gpu-count", "3", "--batch-size", "64"], 4, "GPUs 0,1,2 requested, 0 usable"),
        (["--data", "{data}", "--gpu-count", "-1"], 2, "give --gpu-count (at least 0)"),
        (["--data", "{data}", "--gpu-count", "1", "--gpus", "0"], 2, "or --gpus, not both"),
        (["--data", "{data}", "--kv-store", "dist_sync"], 2, "invalid choice: 'dist_sync'"),
        (["--data", "{data}", "--gpus", "x"], 2, "not a comma-separated list"),
        (["--data", "{data}", "--num-epochs", "0"], 2, "at least 1"),
        (["--data", "{empty}"], 5, "stage_mnist.py --data"),
        (["--data", "{data}", "--lr", "1e30", "--num-epochs", "2"], 3, "not finite after epoch 0"),
    ],
)
def test_mxnet_reports_each_error_with_its_exit_status(
    root: Path,
    mxnet_python: str,
    small_data: Path,
    tmp_path: Path,
    arguments: list[str],
    status: int,
    message: str,
) -> None:
    filled = [one.format(data=small_data, empty=tmp_path) for one in arguments]
    done = run(mxnet_python, root, "mnist_mxnet.py", *filled)
    assert done.returncode == status, done.stderr
    assert message in done.stderr
    assert "Traceback" not in done.stderr
