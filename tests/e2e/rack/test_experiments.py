"""Experiments on the test rack: nodes together, overlay against host, s3fs against local, accuracy.

The short part has each class of experiment on two nodes. The proofs want four provisioned ones, which
RACK_TEST_NODES names.
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
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rackproof.core.records import Run, Verdict
from rackproof.store.run_folder import iter_runs
from testrack.tests.on_rack import CONTROLLER, NAMED, SHARED, Command, distrust, play, start, trust

pytestmark = [pytest.mark.rack, pytest.mark.slow, pytest.mark.torch]

ENDPOINT = "http://gb300-r01-svc:9000"
BUCKET = "rackproof"
PREFIX = "experiments/pictures"
LOCAL = "/var/lib/rackproof/data/pictures"
COLOURS = ((220, 30, 30), (30, 220, 30), (30, 30, 220), (200, 200, 40))
FOUR = [f"gb300-r01-n{number:02}" for number in range(1, 5)]
# So little that two cores train it on four nodes; more threads than cores wait for each other.
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
    # What a wrong name in the inventory leads to: a folder of the system disk.
    "lost": {"kind": "s3fs", "folder": LOCAL},
}


MARK = "rackproof-test-mpi"


def pictures() -> dict[str, bytes]:
    """Return four classes of noisy colours as PPM, which needs no decoder, by path."""
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


class Lab:
    """Nodes, their results, and bench.yml on them."""

    def __init__(self, root: Path, ssh: Command, nodes: list[str], python: str, results: Path) -> None:
        self.root, self.ssh, self.nodes, self.python, self.results = root, ssh, nodes, python, results

    def given(self, benchmark: str, parameters: dict[str, Any], **variables: Any) -> dict[str, Any]:
        return {
            "benchmark": benchmark,
            "bench_parameters": parameters if benchmark == "tf-cnn" else {**TINY, **parameters},
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
        """The runs in the order in which they were made; those that were not are the first."""
        return sorted(iter_runs(self.results), key=lambda run: run.started.isoformat() if run.started else "")

    def links(self) -> str:
        return "".join(self.ssh(node, "ip -oneline link show type vxlan").stdout for node in self.nodes)


def provisioned(ssh: Command) -> list[str]:
    """Return the nodes that can be used: of those named, or of the first four, those that Slurm has idle."""
    # A smaller rack has the others in its configuration only: they are down.
    states = ssh(CONTROLLER, "sinfo --noheader -N -o '%N %T'").stdout.splitlines()
    return [name for name in NAMED or FOUR if f"{name} idle" in states]


@pytest.fixture(scope="module")
def lab(root: Path, rack: Command, nodes: list[str], shared_torch: str, tmp_path_factory: Any) -> Lab:
    found = provisioned(rack)
    assert len(found) >= 2, nodes
    return Lab(root, rack, found, shared_torch, tmp_path_factory.mktemp("experiments"))


@pytest.fixture
def mpi(lab: Lab) -> Iterator[str]:
    """Put Open MPI and the fake of tf_cnn_benchmarks on the last two nodes; let ssh go between them."""
    pair = lab.nodes[-2:]
    first = pair[0]
    program = f"{SHARED}/tf_cnn_benchmarks.py"
    content = (lab.root / "testrack/fakes/tf_cnn_benchmarks.py").read_bytes()
    subprocess.run(
        ["ssh", first, f"mkdir -p {SHARED}; cat > {program}"], input=content, timeout=60, check=True
    )
    for node in pair:
        install = "command -v mpirun || DEBIAN_FRONTEND=noninteractive apt-get install -y -q openmpi-bin"
        done = lab.ssh(node, f"{install} --no-install-recommends", timeout=300)
        assert done.returncode == 0, done.stdout + done.stderr
    trust(lab.ssh, MARK, pair)
    yield program
    distrust(lab.ssh, MARK, pair)


@pytest.fixture(scope="module")
def four(lab: Lab) -> Lab:
    if len(lab.nodes) < 4:
        pytest.skip("four provisioned nodes are needed: name them in RACK_TEST_NODES")
    return lab


@pytest.fixture(scope="module")
def data(lab: Lab) -> int:
    """Put the same images on every node's disk and into the bucket; return how many."""
    found = pictures()
    for path, content in found.items():
        # As a form, which urllib calls it by itself, the fake waits for it for ever; it takes any key.
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
    return [one.value for one in run.measurements if one.name == "link_bandwidth"]


def check_networks(runs: list[Run], sizes: tuple[int, ...]) -> None:
    """Check the points of host and overlay: each passed on the network that it says, measured."""
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


def test_s3fs_against_the_local_disk_with_a_cold_cache(lab: Lab, data: int) -> None:
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
        "learning_rate": 0.05,
        "warmup_epochs": 0,
        "workers": 0,
        "target_top_1": [0.6, 1.01],
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
def test_a_point_that_cannot_be_loses_no_other_one(lab: Lab, data: int) -> None:
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
def test_a_playbook_that_was_killed_goes_on_with_its_job_and_its_overlay(lab: Lab) -> None:
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
def test_a_node_that_dies_ends_the_run_and_leaves_no_overlay(lab: Lab) -> None:
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
def test_tf_cnn_benchmarks_by_mpirun_over_both_networks(lab: Lab, mpi: str) -> None:
    before = {run.run_id for run in lab.runs}
    own = Lab(lab.root, lab.ssh, lab.nodes[-2:], lab.python, lab.results)
    points = {
        "nodes": [1, 2],
        "network": ["host", "overlay"],
        "model": "resnet50",
        "gpus": 1,
        "batch_per_gpu": 2,
        "num_batches": 80,
        "btl_tcp_links": 2,
    }
    status, said = own("tf-cnn", points, bench_tf_cnn_command=f"python3 {mpi}")
    assert status == 0, said[-4000:]
    check_networks([run for run in lab.runs if run.run_id not in before], (1, 2))
    assert own.links() == ""
