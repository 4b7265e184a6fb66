"""Test the experiments of bench.yml on two provisioned nodes of the test rack, or on four.

An experiment compares points of one benchmark: one node with several nodes, the host's network with an
overlay network (VXLAN), a local disk with s3fs, or accuracies with a target. The trainings are real but tiny,
with PyTorch or tf_cnn_benchmarks on the CPU. The tests show that

* each point was measured on the network and storage that it names, and the accuracy on both nodes;
* a point that fails or cannot be set up does not prevent the other points;
* a second playbook continues the job of a killed one, and no overlay is left in any case;
* playbooks/openmpi.yml adds the ssh keys that mpirun needs, and removes them.

The nodes are the idle ones of RACK_TEST_NODES, or else of the first four (:func:`provisioned`). Tests marked
``proof`` take longer. One of them needs four nodes, and is skipped on fewer.
"""

from __future__ import annotations

import io
import os
import random
import signal
import subprocess
import tarfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rackproof.core.records import Run, Verdict
from rackproof.store.run_folder import iter_runs
from testrack.tests.on_rack import CONTROLLER, NAMED, SHARED, Command, changes, play, start

pytestmark = [pytest.mark.rack, pytest.mark.slow, pytest.mark.torch]

ENDPOINT = "http://gb300-r01-svc:9000"
"""URL of the fake S3 of the test rack."""
BUCKET = "rackproof"
"""Name of the bucket in the fake S3."""
PREFIX = "experiments/pictures"
"""Folder of the images in the bucket."""
LOCAL = "/var/lib/rackproof/data/pictures"
"""Folder of the same images on a node's disk."""
COLOURS = ((220, 30, 30), (30, 220, 30), (30, 30, 220), (200, 200, 40))
"""One colour (RGB) for each class of images."""
FOUR = [f"gb300-r01-n{number:02}" for number in range(1, 5)]
"""The first four nodes of the test rack."""
# The parameters make the network so small that two cores can train it on four nodes. Each process has one
# thread, because more threads than cores would wait for each other.
TINY = {
    "gpus": 0,
    "processes": 1,
    "threads": 1,
    "width": 0.05,
    "image_size": 32,
    "batch_per_gpu": 4,
    "precision": "fp32",
}
STORAGES = {
    "local": {"kind": "local", "folder": LOCAL},
    "s3fs": {
        "kind": "s3fs",
        "folder": f"/mnt/experiments/{PREFIX}",
        "mount": {"path": "/mnt/experiments", "kind": "s3fs", "source": BUCKET},
    },
    # This entry is a mistake in the inventory: the folder is on the system disk, and no s3fs is mounted
    # there.
    "lost": {"kind": "s3fs", "folder": LOCAL},
}
"""The value of ``bench_storages``: the storages that the parameter ``storage`` may name."""


def pictures() -> dict[str, bytes]:
    """Return images of four classes by path.

    The pixels of an image are its class's colour with noise. The format is PPM, which needs no decoder.
    """
    chance = random.Random(3)
    found = {}
    for part, count in (("train", 16), ("val", 4)):
        for label, colour in enumerate(COLOURS):
            for index in range(count):
                pixels = bytes(
                    max(0, min(255, one + chance.randrange(-25, 25)))
                    for _ in range(40 * 36)
                    for one in colour
                )
                found[f"{part}/class{label}/{index}.ppm"] = b"P6\n40 36\n255\n" + pixels
    return found


TfCnn = Callable[[dict[str, Any]], tuple[int, str]]
"""Type of a function that runs tf_cnn_benchmarks with parameters, and returns exit status and output of
bench.yml."""


class Lab:
    """Nodes and a results folder for bench.yml.

    A call runs bench.yml on the first ``count`` nodes to its end, and returns its exit status and output.

    Args:
        root: The path of the checkout.
        ssh: A function that runs a command on a node.
        nodes: The names of the nodes.
        python: The path of a Python with PyTorch on the nodes.
        results: The results folder.
    """

    def __init__(self, root: Path, ssh: Command, nodes: list[str], python: str, results: Path) -> None:
        self.root, self.ssh, self.nodes, self.python, self.results = root, ssh, nodes, python, results

    def given(self, benchmark: str, parameters: dict[str, Any], **variables: Any) -> dict[str, Any]:
        """Return the variables of bench.yml for a benchmark with parameters, and other given variables."""
        return {
            "benchmark": benchmark,
            "bench_parameters": parameters if benchmark == "tf-cnn-cpu" else {**TINY, **parameters},
            "bench_results": str(self.results),
            "bench_require_references": False,
            "bench_pythons": {"torch": self.python},
            "bench_follow_every_s": 3,
            "bench_storages": STORAGES,
            "storage_s3fs_url": ENDPOINT,
            "storage_s3fs_credentials": [{"access_key": "rack", "secret_key": "any"}],
            "storage_s3fs_cache_keep_free_mb": 100,
            **variables,
        }

    def __call__(
        self, benchmark: str, parameters: dict[str, Any], count: int = 2, **variables: Any
    ) -> tuple[int, str]:
        given = self.given(benchmark, parameters, **variables)
        done = play(self.root, "bench.yml", self.nodes[:count], given=given)
        return done.returncode, done.stdout

    def start(self, benchmark: str, parameters: dict[str, Any], count: int) -> subprocess.Popen[str]:
        """Start bench.yml without waiting for it."""
        return start(self.root, "bench.yml", self.nodes[:count], given=self.given(benchmark, parameters))

    @property
    def runs(self) -> list[Run]:
        """Return the runs in the order of their start. Runs that were never started come first."""
        return sorted(iter_runs(self.results), key=lambda run: run.started.isoformat() if run.started else "")

    def links(self) -> str:
        """Return the overlay networks on all nodes as ``ip`` prints them, or "" if there are none."""
        return "".join(self.ssh(node, "ip -oneline link show type vxlan").stdout for node in self.nodes)


def provisioned(ssh: Command) -> list[str]:
    """Return the nodes that can be used: the idle ones of RACK_TEST_NODES, or of the first four."""
    # Slurm's configuration has all 18 nodes. In a smaller rack, the others are down.
    states = ssh(CONTROLLER, "sinfo --noheader -N -o '%N %T'").stdout.splitlines()
    return [name for name in NAMED or FOUR if f"{name} idle" in states]


@pytest.fixture(scope="module")
def lab(root: Path, rack: Command, nodes: list[str], shared_torch: str, tmp_path_factory: Any) -> Lab:
    found = provisioned(rack)
    assert len(found) >= 2, nodes
    return Lab(root, rack, found, shared_torch, tmp_path_factory.mktemp("experiments"))


@pytest.fixture(scope="module")
def tf_cnn(lab: Lab, tf_cnn_archive: Path, shared_tensorflow: str) -> Iterator[TfCnn]:
    """Yield a function that runs the real tf_cnn_benchmarks on the last two nodes.

    Before, put its sources on the shared file system, and install Open MPI with ssh keys between the nodes.
    Afterwards, remove the keys.
    """
    pair = lab.nodes[-2:]
    own = Lab(lab.root, lab.ssh, pair, lab.python, lab.results)
    archive = f"{SHARED}/tf_cnn_benchmarks.tar"
    packed = subprocess.run(
        ["ssh", pair[0], f"cat > {archive}"], input=tf_cnn_archive.read_bytes(), timeout=60
    )
    assert packed.returncode == 0
    made = play(lab.root, "playbooks/openmpi.yml", pair)
    assert made.returncode == 0, made.stdout

    def run(parameters: dict[str, Any]) -> tuple[int, str]:
        given = {
            "bench_pythons": {"torch": lab.python, "tensorflow": shared_tensorflow},
            "bench_tf_cnn_sources": archive,
        }
        return own("tf-cnn-cpu", parameters, **given)

    yield run
    taken = play(lab.root, "playbooks/openmpi.yml", pair, "-e", "openmpi_keys=false")
    assert taken.returncode == 0, taken.stdout


@pytest.fixture(scope="module")
def four(lab: Lab) -> Lab:
    """Return the lab, or skip the test if there are fewer than four nodes."""
    if len(lab.nodes) < 4:
        pytest.skip("four provisioned nodes are needed: name them in RACK_TEST_NODES")
    return lab


@pytest.fixture(scope="module")
def data(lab: Lab) -> int:
    """Put the same images on every node's disk and into the bucket. Return their number."""
    found = pictures()
    for path, content in found.items():
        # Without a content type, urllib declares a form, for which the fake S3 would wait forever. The fake
        # accepts any key.
        request = urllib.request.Request(
            f"{ENDPOINT}/{BUCKET}/{PREFIX}/{path}",
            data=content,
            headers={"Content-Type": "application/octet-stream", "Authorization": "AWS rack:any"},
            method="PUT",
        )
        with urllib.request.urlopen(request, timeout=120) as answer:
            assert answer.status == 200
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as pack:
        for path, content in found.items():
            entry = tarfile.TarInfo(path)
            entry.size, entry.mode = len(content), 0o644
            pack.addfile(entry, io.BytesIO(content))
    for node in lab.nodes:
        unpack = f"rm -rf {LOCAL}; mkdir -p {LOCAL}; tar -C {LOCAL} -xf -"
        subprocess.run(["ssh", node, unpack], input=packed.getvalue(), timeout=120, check=True)
    return len(found)


def bandwidths(run: Run) -> list[float]:
    """Return the measured bandwidths of the links between a run's nodes, in Gbit/s."""
    return [one.value for one in run.measurements if one.name == "link_bandwidth"]


def check_networks(runs: list[Run], sizes: tuple[int, ...]) -> None:
    """Check that there is a good run on the host's network and on the overlay for each number of nodes.

    Each run passed, used the network that its point names, and measured the first node's links to all others
    in both directions, at more than 0.05 Gbit/s.
    """
    assert [(run.parameters["network"], run.parameters["nodes"]) for run in runs] == [
        (network, size) for network in ("host", "overlay") for size in sizes
    ]
    for run in runs:
        assert run.verdict is Verdict.PASS, (run.run_id, run.reasons, run.findings)
        size = int(run.parameters["nodes"])
        assert len(run.nodes) == size
        assert len(bandwidths(run)) == 2 * (size - 1)
        assert all(one > 0.05 for one in bandwidths(run))
        expected = "host (eth0" if run.parameters["network"] == "host" else "overlay (VXLAN 7117 over eth0"
        assert run.network.startswith(expected), run.network


def test_two_nodes_train_over_the_host_s_network_and_over_an_overlay(lab: Lab) -> None:
    before = {run.run_id for run in lab.runs}
    status, said = lab("resnet50", {"nodes": [1, 2], "network": ["host", "overlay"], "steps": 6})
    assert status == 0, said[-4000:]
    check_networks([run for run in lab.runs if run.run_id not in before], (1, 2))
    assert lab.links() == ""
    page = next(iter(lab.results.glob("plan-*/report.html"))).read_text()
    assert "Scaling of resnet50" in page
    assert "2 processes on 2 nodes" in page


@pytest.mark.proof
@pytest.mark.parametrize("network", ["resnet50", "vgg16"])
def test_four_nodes_scale_over_both_networks(four: Lab, network: str) -> None:
    before = {run.run_id for run in four.runs}
    points = {"nodes": [1, 2, 4], "network": ["host", "overlay"], "steps": 5}
    status, said = four(network, points, 4)
    assert status == 0, said[-4000:]
    check_networks([run for run in four.runs if run.run_id not in before], (1, 2, 4))
    assert four.links() == ""


def test_runs_on_s3fs_and_on_the_local_disk_read_the_same_data_from_a_cold_cache(lab: Lab, data: int) -> None:
    before = {run.run_id for run in lab.runs}
    points = {
        "nodes": 2,
        "storage": ["synthetic", "local", "s3fs"],
        "cache": ["cold"],
        "steps": 4,
        "workers": 1,
    }
    status, said = lab("resnet50", points)
    assert status == 0, said[-4000:]
    found = {run.parameters["storage"]: run for run in lab.runs if run.run_id not in before}
    assert {name: run.verdict for name, run in found.items()} == dict.fromkeys(
        ("synthetic", "local", "s3fs"), Verdict.PASS
    )
    for name in ("local", "s3fs"):
        dataset = found[name].dataset
        assert dataset is not None
        assert dataset.objects == data
        assert dataset.size_bytes == sum(map(len, pictures().values()))
    assert found["local"].dataset.sha256 == found["s3fs"].dataset.sha256
    assert found["local"].storage.startswith("local: ")
    s3fs = found["s3fs"].storage
    assert s3fs.startswith(f"s3fs: {BUCKET} at /mnt/experiments/{PREFIX}, cache cold; ")
    assert f"url={ENDPOINT}" in s3fs
    assert "use_cache=" in s3fs
    assert "any" not in s3fs.split("passwd_file")[0]


def test_accuracy_is_evaluated_on_two_nodes_and_a_miss_fails(lab: Lab, data: int) -> None:
    before = {run.run_id for run in lab.runs}
    points = {
        "nodes": 2,
        "storage": ["s3fs"],
        "num_epochs": 4,
        # With the second learning rate, the network learns nothing.
        "learning_rate": [0.05, 1e-9],
        "warmup_epochs": 0,
        "workers": 0,
        "target_top_1": 0.6,
        "target_top_5": 0.9,
        "width": 0.0625,
    }
    status, said = lab("resnet50-accuracy", points)
    assert status == 2, said[-4000:]
    reached, missed = [run for run in lab.runs if run.run_id not in before]
    assert reached.verdict is Verdict.PASS, (reached.reasons, reached.findings)
    assert missed.verdict is Verdict.FAIL
    accuracy = {one.name: one.value for one in reached.measurements if not one.labels}
    assert accuracy["top_1_accuracy"] >= 0.6
    assert accuracy["top_5_accuracy"] >= 0.9


@pytest.mark.proof
def test_a_point_that_cannot_be_set_up_does_not_end_the_other_points(lab: Lab, data: int) -> None:
    before = {run.run_id for run in lab.runs}
    points = {"nodes": 2, "storage": ["lost", "tape", "local"], "steps": 3, "workers": 0}
    status, _ = lab("resnet50", points)
    assert status == 2
    found = {run.parameters["storage"]: run for run in lab.runs if run.run_id not in before}
    assert found["local"].verdict is Verdict.PASS, found["local"].reasons
    assert found["lost"].verdict is Verdict.UNPROVEN
    assert any("was not s3fs but" in reason for reason in found["lost"].reasons), found["lost"].reasons
    assert found["tape"].verdict is Verdict.UNPROVEN
    assert any("no storage `tape`" in reason for reason in found["tape"].reasons)


@pytest.mark.proof
def test_a_second_playbook_continues_the_job_and_the_overlay_of_a_killed_one(lab: Lab) -> None:
    before = {run.run_id for run in lab.runs}
    points = {"nodes": [2, 1], "network": "overlay", "steps": 150, "seed": 7}
    first = lab.start("resnet50", points, 2)
    job = "cat /var/lib/rackproof/runs/*/state.json | grep -c running; ip -br link show rackproof0"
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and "rackproof0" not in lab.ssh(lab.nodes[1], job).stdout:
        time.sleep(1)
    while time.monotonic() < deadline and not lab.ssh(lab.nodes[0], job).stdout.startswith("1"):
        time.sleep(1)
    os.killpg(first.pid, signal.SIGKILL)
    first.communicate()
    assert "rackproof0" in lab.links()
    status, said = lab("resnet50", points)
    assert status == 0, said[-4000:]
    assert "Going on with plan-" in said
    found = [run for run in lab.runs if run.run_id not in before]
    assert [(run.parameters["nodes"], run.verdict) for run in found] == [(2, Verdict.PASS), (1, Verdict.PASS)]
    assert lab.links() == ""


@pytest.mark.proof
def test_a_killed_program_on_one_node_ends_the_run_and_leaves_no_overlay(lab: Lab) -> None:
    before = {run.run_id for run in lab.runs}
    points = {"nodes": 2, "network": "overlay", "steps": 3000, "seed": 8}
    playbook = lab.start("resnet50", points, 2)
    trains = "pgrep -f 'imagenet_torch.py.*--node-rank=1'"
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and lab.ssh(lab.nodes[1], trains).returncode:
        time.sleep(1)
    lab.ssh(lab.nodes[1], "kill -9 $(pgrep -f 'imagenet_torch.py.*--node-rank=1')")
    began = time.monotonic()
    said, _ = playbook.communicate(timeout=180)
    assert playbook.returncode == 2, said[-4000:]
    assert time.monotonic() - began < 120
    (run,) = [run for run in lab.runs if run.run_id not in before]
    assert run.verdict in (Verdict.FAIL, Verdict.UNPROVEN)
    assert any(f"{lab.nodes[1]}: its part of the job did not end well" in one.message for one in run.findings)
    assert lab.links() == ""


@pytest.mark.proof
def test_openmpi_adds_ssh_keys_between_nodes_once_and_removes_them(lab: Lab) -> None:
    pair = lab.nodes[-2:]
    there = f"ssh -o BatchMode=yes -o StrictHostKeyChecking=yes {pair[1]} true"
    for words, status in (((), 0), (("-e", "openmpi_keys=false"), 255)):
        done, again = (play(lab.root, "playbooks/openmpi.yml", pair, *words) for _ in range(2))
        assert done.returncode == 0, done.stdout
        assert [changes(again, node) for node in pair] == [0, 0], again.stdout
        assert lab.ssh(pair[0], there).returncode == status


SHORT = {"model": "resnet50", "batch_per_gpu": 1, "num_batches": 6, "display_every": 3, "warmup_batches": 1}
"""Parameters of a short run of tf_cnn_benchmarks: one batch to warm up, and six measured batches. The program
prints its speed after every third batch."""


@pytest.mark.proof
def test_tf_cnn_benchmarks_trains_over_both_networks(lab: Lab, tf_cnn: TfCnn) -> None:
    before = {run.run_id for run in lab.runs}
    status, said = tf_cnn({**SHORT, "nodes": [1, 2], "network": ["host", "overlay"], "rank_file": "on"})
    assert status == 0, said[-4000:]
    check_networks([run for run in lab.runs if run.run_id not in before], (1, 2))
    assert lab.links() == ""


@pytest.mark.proof
@pytest.mark.parametrize("way", ["distributed_replicated", "distributed_all_reduce"])
def test_tf_cnn_benchmarks_trains_with_its_other_variable_updates(lab: Lab, tf_cnn: TfCnn, way: str) -> None:
    before = {run.run_id for run in lab.runs}
    status, said = tf_cnn({**SHORT, "nodes": 2, "network": "overlay", "variable_update": way})
    assert status == 0, said[-4000:]
    check_networks([run for run in lab.runs if run.run_id not in before], (2,))


@pytest.mark.proof
@pytest.mark.parametrize(
    ("wrong", "word"),
    [
        ({"model": "resnet5O"}, "traceback"),
        ({"variable_update": "ddl"}, "exit_status"),
        ({"more": "--batch_size=0"}, "log_of_another_point"),
    ],
)
def test_tf_cnn_benchmarks_with_a_wrong_option_does_not_pass(
    lab: Lab, tf_cnn: TfCnn, wrong: dict[str, Any], word: str
) -> None:
    before = {run.run_id for run in lab.runs}
    status, _ = tf_cnn({**SHORT, "nodes": 2, "network": "host", **wrong})
    assert status == 2
    (run,) = [run for run in lab.runs if run.run_id not in before]
    assert run.verdict in (Verdict.FAIL, Verdict.UNPROVEN)
    assert word in {one.code for one in run.findings}, run.findings
