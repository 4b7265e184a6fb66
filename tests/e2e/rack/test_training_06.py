"""Test bench.yml with the suite of MLPerf Training 0.6 on two provisioned nodes of the test rack.

In this round, each benchmark's run.sub starts a Docker container on one node, or one container on each of
several nodes of Slurm, which then are one system. The benchmarks here are fake sources that print real logs.
The tests show that two nodes run side by side or as one system, that a failure that run.sub hides is found,
and that no container is left.
"""

from __future__ import annotations

import base64
import concurrent.futures
import functools
import http.server
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from driver.layout import GATEWAY

from rackproof.core.records import Run
from rackproof.store.run_folder import iter_runs
from testrack.tests.on_rack import Command, distrust, play, trust
from tests.workloads.imagenet_miniature import Miniature

pytestmark = [pytest.mark.rack, pytest.mark.slow]
BASE = "gb300-r01-svc:5000/nvdlfwea/mlperftv51/llama2_70b_lora-amd:20251008"
PROOF = pytest.mark.proof
# All six benchmarks of the suite. The shorter test cases have one or two of them.
MODELS = ("ssd", "maskrcnn", "resnet", "gnmt", "translation", "minigo")
MARK = "rackproof-test-06"


@dataclass
class Pair:
    """Two provisioned nodes, the variables of the fake sources, and a results folder.

    A call runs benchmarks with bench.yml, and returns its status and output. ``only`` is the number of nodes,
    ``fault`` a fault of the fake training, and ``seconds`` the time that it takes.
    """

    root: Path
    nodes: list[str]
    ssh: Command
    given: dict[str, Any]
    results: Path

    def __call__(
        self, *names: str, only: int = 2, fault: str = "", seconds: int = 6, **variables: Any
    ) -> tuple[int, str]:
        environment = {"STANDIN_SECONDS": str(seconds), **({"STANDIN_FAULT": fault} if fault else {})}
        what = {"benchmark": [f"{name}-0.6" for name in names]}
        given = {
            **self.given,
            **({"suite": "mlperf-training-0.6"} if names == MODELS else what),
            "bench_results": str(self.results),
            "bench_environment": environment,
            **variables,
        }
        done = play(self.root, "bench.yml", self.nodes[:only], given=given, timeout=1500)
        return done.returncode, done.stdout

    def runs(self) -> list[Run]:
        return list(iter_runs(self.results))

    def imagenet(self, folder: str, *nodes: str) -> dict[str, str]:
        """Put a miniature of ImageNet's archives onto nodes. Return the variables that name the folder.

        The real archives need an account, so an operator has to put them there, too.
        """
        with tempfile.TemporaryDirectory() as made:
            Miniature(classes=3, train_each=4, val_count=6).write(Path(made))
            packed = subprocess.run(["tar", "-cz", "-C", made, "."], capture_output=True, check=True).stdout
        text = base64.b64encode(packed).decode()
        for node in nodes:
            done = self.ssh(node, f"mkdir -p {folder} && echo {text} | base64 -d | tar -xz -C {folder}")
            assert done.returncode == 0, done.stderr
        return {"bench_imagenet_archives": folder, "bench_imagenet_pins": f"{folder}/pins.json"}

    def containers(self, name: str = "") -> list[str]:
        """Return the ids of all containers on the nodes, or of those with a name."""
        command = f"docker ps --all --quiet --filter name={name}"
        return [line for node in self.nodes for line in self.ssh(node, command).stdout.split()]


class Quiet(http.server.SimpleHTTPRequestHandler):
    """A file server that logs no request."""

    def log_message(self, *_words: Any) -> None:
        pass


@pytest.fixture(scope="module")
def sources(root: Path, tmp_path_factory: pytest.TempPathFactory, rack: Command) -> Iterator[dict[str, Any]]:
    """Serve the fake sources of the round by HTTP, as an archive of one commit."""
    sys.path.insert(0, str(root / "testrack/images/round06"))
    import pack

    folder = tmp_path_factory.mktemp("sources")
    commit, archive = pack.pack(folder, BASE, gpus=4)
    handler = functools.partial(Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer((GATEWAY, 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield {
            "bench_mlperf06_ref": commit,
            "bench_mlperf06_sources": f"http://{GATEWAY}:{server.server_port}/{archive.name}",
            "bench_config": "LambdaHyperplaneBasic",
        }
        server.shutdown()


@pytest.fixture
def pair(root: Path, nodes: list[str], rack: Command, sources: dict[str, Any], tmp_path: Path) -> Pair:
    return Pair(root, nodes, rack, sources, tmp_path / "results")


@pytest.fixture(scope="module")
def one_system(root: Path, nodes: list[str], rack: Command) -> Iterator[None]:
    """Install what a run.sub on several nodes needs: nvidia-docker, and ssh for root between the nodes."""
    shim = root / "testrack/mirror/payload/nvidia-docker2/usr/bin/nvidia-docker"

    def untouched() -> None:
        distrust(rack, MARK, nodes)
        for node in nodes:
            assert rack(node, "rm -f /usr/local/bin/nvidia-docker").returncode == 0

    untouched()
    trust(rack, MARK, nodes)
    for node in nodes:
        put = "cat > /usr/local/bin/nvidia-docker && chmod 755 /usr/local/bin/nvidia-docker"
        subprocess.run(["ssh", node, put], input=shim.read_bytes(), check=True)
    yield
    untouched()


def apart(one: Run, other: Run) -> bool:
    """Return whether one run started after the end of the other, or whether a time is unknown."""
    starts, ends = [one.started, other.started], [one.ended, other.ended]
    return None in starts + ends or max(starts) > min(ends)


@pytest.mark.parametrize("models", [("ssd", "translation"), pytest.param(MODELS, marks=PROOF)], ids=len)
def test_models_run_on_two_nodes_at_once(pair: Pair, models: tuple[str, ...]) -> None:
    given = pair.imagenet("/var/lib/rackproof/archives", *pair.nodes) if "resnet" in models else {}
    status, output = pair(*models, **given)
    assert status == 0, output
    runs = pair.runs()
    assert sorted((run.benchmark, run.nodes[0].name) for run in runs) == sorted(
        (f"{name}-0.6", node) for name in models for node in pair.nodes
    )
    assert {run.verdict.value for run in runs} == {"pass"}, [run.reasons for run in runs]
    for name in models:
        one, other = (run for run in runs if run.benchmark == f"{name}-0.6")
        assert not apart(one, other), "one waited for the other"
    (page,) = pair.results.glob("plan-*/comparison.html")
    assert all(node in page.read_text() for node in pair.nodes)
    assert not pair.containers()


@pytest.mark.proof
@pytest.mark.parametrize(
    ("fault", "words"), [("oom-exit-0", "ran out of memory"), ("hang", "hung at epoch 2: no output for")]
)
def test_what_run_sub_hides_is_a_failure(pair: Pair, fault: str, words: str) -> None:
    status, output = pair("ssd", only=1, fault=fault, bench_hang_s=20)
    assert status == 2, output
    (run,) = pair.runs()
    assert run.verdict == "fail"
    assert words in run.reasons[0], run.reasons
    assert not pair.containers()


@pytest.mark.proof
def test_a_container_that_a_killed_launcher_left_is_ended_by_the_next_run(pair: Pair) -> None:
    kill = """
    for _ in $(seq 300); do
      name=$(docker ps --filter name=cont_ --format '{{.Names}}')
      [ -n "$name" ] && docker top "$name" | grep -q 'training.py ssd train' && break
      sleep 0.2
    done
    launcher=$(cat "/var/lib/rackproof/docker/containers/$name")
    # Also kill run.sub, which would end the container when it exits.
    echo "$name"; kill -KILL "$launcher" -- "-$(pgrep -P "$launcher" -f run.sub)"
    """
    with concurrent.futures.ThreadPoolExecutor(1) as other:
        killed = other.submit(pair.ssh, pair.nodes[0], kill, timeout=120)
        status, output = pair("ssd", only=1, seconds=60)
    left = killed.result().stdout.split()
    assert (status, len(left)) == (2, 1), output
    assert pair.containers() == pair.containers(left[0]) != []
    (run,) = pair.runs()
    assert run.verdict != "pass"
    status, output = pair("ssd", only=1)
    assert status == 0, output
    assert not pair.containers()


@pytest.mark.parametrize("models", [("gnmt",), pytest.param(MODELS, marks=PROOF)], ids=len)
def test_two_nodes_are_one_system_by_slurm(pair: Pair, one_system: None, models: tuple[str, ...]) -> None:
    given = pair.imagenet("/shared/rackproof/archives", pair.nodes[0]) if "resnet" in models else {}
    status, output = pair(*models, bench_config="2xLambdaHyperplaneBasic", bench_together=True, **given)
    assert status == 0, output
    runs = pair.runs()
    assert sorted(run.benchmark for run in runs) == sorted(f"{name}-0.6" for name in models)
    for run in runs:
        assert (run.verdict.value, [node.name for node in run.nodes]) == ("pass", pair.nodes), run.reasons
        log = (pair.results / run.run_id / "logs" / f"{pair.nodes[0]}.log").read_text()
        assert "--ntasks-per-node 4" in log
        assert all(f"Launching on node {node}" in log for node in pair.nodes)
    assert not pair.containers()
