"""Test workloads/imagenet_torch.py, which trains ResNet-50 and VGG16, or measures their speed.

The tests train a network of a sixteenth of the width on a CPU, with small pictures of four colours. They show
that accuracy is measured from the checkpoint, that processes and nodes train together, and that each wrong
option or damaged file ends with a message that names it.
"""

from __future__ import annotations

import os
import random
import shutil
import socket
import subprocess
from pathlib import Path

import pytest

from rackproof.analysis.scaling_study import devices_of
from rackproof.jobs.bench.import_logs import import_logs

from .test_supervision import ending
from .test_training import run, values

pytestmark = [pytest.mark.torch, pytest.mark.slow]

TINY = ("--gpus", 0, "--width", 0.0625, "--image-size", 32, "--batch-per-gpu", 8, "--precision", "fp32")
COLOURS = ((220, 30, 30), (30, 220, 30), (30, 30, 220), (200, 200, 40))


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with four classes of noisy colours, as PPM, which needs no decoder."""
    chance = random.Random(3)
    folder = tmp_path_factory.mktemp("pictures")
    for part, count in (("train", 24), ("val", 6)):
        for label, colour in enumerate(COLOURS):
            place = folder / part / f"class{label}"
            place.mkdir(parents=True)
            for index in range(count):
                width, height = chance.choice([(40, 36), (36, 48)])
                pixels = bytes(
                    max(0, min(255, one + chance.randrange(-25, 25)))
                    for _ in range(width * height)
                    for one in colour
                )
                (place / f"{index}.ppm").write_bytes(b"P6\n%d %d\n255\n" % (width, height) + pixels)
    return folder


def measured(text: str) -> dict[str, float]:
    """Return the value of each measurement in a log."""
    return {one["name"]: one["value"] for one in values(text, "measurement")}


@pytest.fixture(scope="module")
def trained(root: Path, torch_python: str, pictures: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a checkpoint, with the log of its training beside it."""
    folder = tmp_path_factory.mktemp("trained")
    options = ("--mode", "train", "--num-epochs", 4, "--lr", 0.05, "--workers", 0, "--processes", 2)
    done = run(
        torch_python,
        root,
        "imagenet_torch.py",
        *TINY,
        *options,
        *("--data", pictures, "--checkpoint", folder / "net.pt"),
    )
    assert done.returncode == 0, done.stderr
    (folder / "log").write_text(done.stdout)
    return folder


def test_training_ends_with_an_evaluation_of_the_checkpoint(trained: Path, pictures: Path) -> None:
    text = (trained / "log").read_text()
    found = measured(text)
    assert ending(text)["status"] == "success"
    # With four classes, guesses would reach 0.25 and 1.
    assert found["top_1_accuracy"] >= 0.7
    assert found["top_5_accuracy"] == 1
    assert found["images_per_second"] > 0
    assert values(text, "global_batch_size") == [16]
    assert values(text, "eval_samples") == [24]
    size = sum(path.stat().st_size for path in pictures.rglob("*.ppm"))
    assert (values(text, "dataset")[0]["objects"], values(text, "dataset")[0]["size_bytes"]) == (120, size)
    ranks = [one["labels"]["rank"] for one in values(text, "measurement") if one["name"] == "local_step_time"]
    assert ranks == ["0", "1"]


def test_evaluating_alone_gives_the_same(
    root: Path, torch_python: str, trained: Path, pictures: Path
) -> None:
    options = ("--mode", "evaluate", "--data", pictures, "--checkpoint", trained / "net.pt", "--workers", 0)
    done = run(torch_python, root, "imagenet_torch.py", *TINY, *options)
    assert done.returncode == 0, done.stderr
    then, now = measured((trained / "log").read_text()), measured(done.stdout)
    assert now["top_1_accuracy"] == pytest.approx(then["top_1_accuracy"])
    assert values(done.stdout, "checkpoint_sha256") == values(
        (trained / "log").read_text(), "checkpoint_sha256"
    )


@pytest.mark.parametrize("network", ["resnet50", "vgg16"])
def test_speed_with_synthetic_images(root: Path, torch_python: str, network: str) -> None:
    options = ("--network", network, "--classes", 10, "--steps", 4)
    done = run(torch_python, root, "imagenet_torch.py", *TINY, *options)
    assert done.returncode == 0, done.stderr
    found = measured(done.stdout)
    assert {"images_per_second", "step_time", "local_step_time", "data_wait_share", "train_loss"} <= set(
        found
    )
    assert "exchange_share" not in found, "one process exchanges nothing"
    assert values(done.stdout, "submission_benchmark") == [network]
    assert values(done.stdout, "dataset")[0]["name"] == "synthetic"
    times = next(line for line in done.stdout.splitlines() if '"step_times"' in line)
    assert times.count(".") >= 4


def test_both_exchanges_of_gradients_train_alike(root: Path, torch_python: str) -> None:
    losses = []
    for exchange in ("ddp", "flat"):
        options = ("--classes", 10, "--steps", 3, "--processes", 2, "--exchange", exchange)
        done = run(torch_python, root, "imagenet_torch.py", *TINY, *options)
        assert done.returncode == 0, done.stderr
        assert f"exchange {exchange}" in done.stdout
        losses.append(measured(done.stdout)["train_loss"])
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_the_networks_are_the_published_ones(root: Path, torch_python: str) -> None:
    code = (
        "import imagenet_networks as n\n"
        "for name in ('resnet50', 'vgg16'):\n"
        "    print(sum(one.numel() for one in n.build(name, 1000, 1.0).parameters()))\n"
    )
    done = subprocess.run(
        [torch_python, "-c", code], capture_output=True, text=True, cwd=root / "workloads", timeout=120
    )
    # The published numbers of parameters.
    assert done.stdout.split() == ["25557032", "138357544"], done.stderr


def test_what_cannot_be_done_is_refused_in_words(
    root: Path, torch_python: str, pictures: Path, trained: Path, tmp_path: Path
) -> None:
    (tmp_path / "train").mkdir()
    torn = tmp_path / "torn.pt"
    torn.write_bytes((trained / "net.pt").read_bytes()[:1000])
    other = tmp_path / "other"
    shutil.copytree(pictures, other)
    for part in ("train", "val"):
        (other / part / "class3").rename(other / part / "class9")
    evaluate = ("--mode", "evaluate", "--data")
    for options, status, words in (
        (("--mode", "train"), 5, "needs --data"),
        (("--data", tmp_path), 5, "has no val"),
        ((*evaluate, pictures, "--checkpoint", tmp_path / "none"), 5, "no checkpoint"),
        ((*evaluate, pictures, "--checkpoint", torn), 5, "cannot be used"),
        ((*evaluate, other, "--checkpoint", trained / "net.pt"), 5, "has others"),
    ):
        done = run(torch_python, root, "imagenet_torch.py", *TINY, *options)
        assert (done.returncode, words in done.stderr) == (status, True), (options, done.stderr)
        assert ending(done.stdout)["status"] == "aborted"
        assert "Traceback" not in done.stderr


def test_an_image_that_cannot_be_read_is_named(
    root: Path, torch_python: str, pictures: Path, tmp_path: Path
) -> None:
    damaged = tmp_path / "damaged"
    shutil.copytree(pictures, damaged)
    for path in (damaged / "train/class2").iterdir():
        path.write_bytes(path.read_bytes()[:100])
    options = ("--mode", "train", "--data", damaged, "--num-epochs", 1, "--workers", 1)
    done = run(torch_python, root, "imagenet_torch.py", *TINY, *options)
    assert done.returncode == 5, done.stderr
    assert f"{damaged / 'train/class2'}/" in str(ending(done.stdout)["reason"])
    assert "is cut off); fetch it again" in done.stderr


def test_a_loss_that_is_no_number_ends_the_run(root: Path, torch_python: str, pictures: Path) -> None:
    options = ("--mode", "train", "--data", pictures, "--num-epochs", 2, "--lr", 1e12, "--workers", 0)
    done = run(torch_python, root, "imagenet_torch.py", *TINY, *options)
    assert done.returncode == 3, done.stderr
    assert "training diverged" in done.stderr


def test_two_nodes_train_together(root: Path, torch_python: str, tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    environment |= {"SLURM_STEP_ID": "0", "SLURM_NNODES": "2"}
    command = [torch_python, str(root / "workloads/imagenet_torch.py"), *map(str, TINY)]
    command += ["--classes", "10", "--steps", "3", "--rendezvous", f"127.0.0.1:{port}"]
    # As srun starts them: with one command line for both nodes, and the node's number in the environment.
    nodes = [
        subprocess.Popen(
            command,
            env={**environment, "SLURM_NODEID": str(node)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for node in (0, 1)
    ]
    (first, error), (second, other) = (one.communicate(timeout=120) for one in nodes)
    assert [one.returncode for one in nodes] == [0, 0], error + other
    assert values(first, "global_batch_size") == [16]
    assert (values(first, "nodes"), values(first, "processes")) == ([2], [1])
    each = [one["labels"] for one in values(first, "measurement") if one["name"] == "local_step_time"]
    assert [(one["rank"], one["node_rank"]) for one in each] == [("0", "0"), ("1", "1")]
    assert not values(second, "measurement"), "only the first node logs"
    log = tmp_path / "two-nodes.log"
    log.write_text(first)
    (made,) = import_logs(log, tmp_path / "results").imported
    assert (made.run.verdict.value, devices_of(made.run)) == ("pass", 2)


def test_several_nodes_have_to_know_where_to_meet(root: Path, torch_python: str) -> None:
    for options, words in (
        (("--nodes", 2), "--rendezvous"),
        (("--nodes", 2, "--node-rank", 2), "must be at least 0"),
    ):
        done = run(torch_python, root, "imagenet_torch.py", *TINY, *options)
        assert (done.returncode, words in done.stderr) == (2, True), done.stderr
