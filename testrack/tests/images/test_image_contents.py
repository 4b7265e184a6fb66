"""Test the configs, run scripts and data scripts of the fake images, the image layout, and push.py.

The images (testrack/images) are fakes of NVIDIA's images of MLPerf Training 5.1, for the test rack.
"""

from __future__ import annotations

import functools
import http.server
import json
import os
import re
import signal
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

import pytest

from testrack.tests.images.images_job import Cluster

# Every case starts processes. Together, they take longer than `make check` may.
pytestmark = pytest.mark.slow

NAMES = ("llama2_70b_lora", "llama31_8b", "flux1")


def sourced(cluster: Cluster, command: str, folder: Path, **variables: str) -> dict[str, str]:
    """Return the environment after some commands in bash."""
    done = subprocess.run(
        ["bash", "-ec", f"{command}; env -0"],
        cwd=folder,
        env={"PATH": os.environ["PATH"], **variables},
        capture_output=True,
        text=True,
        check=True,
    )
    return dict(one.split("=", 1) for one in done.stdout.split("\0") if "=" in one)


@pytest.mark.parametrize("name", NAMES)
def test_every_config_asks_for_a_batch_that_has_reference_points(cluster: Cluster, name: str) -> None:
    from fake_ngc.benchmarks import BENCHMARKS
    from fake_ngc.training import global_batch_size

    points = BENCHMARKS[name].reference
    configs = [path for path in cluster.place(name).glob("config_*.sh") if path.name != "config_common.sh"]
    assert len(configs) >= 10
    for path in configs:
        found = sourced(cluster, f"source ./{path.name}", path.parent, NEXP="10")
        if path.stem.endswith("_big"):
            # The batch of this config is too large, so that tests can show that it is refused.
            assert global_batch_size(found) > max(points)
            continue
        assert min(points) <= global_batch_size(found) <= max(points), path.name
        assert found["DGXSYSTEM"] == path.stem.removeprefix("config_")
        nodes, gpus = re.findall(r"_0*(\d+)x0*(\d+)x", path.name)[0]
        assert (found["DGXNNODES"], found["DGXNGPU"]) == (nodes, gpus)
        assert int(found["WALLTIME"]) == 5 + 10 * (int(found["WALLTIME_RUNANDTIME"]) + 5)


def test_the_system_takes_its_name_from_the_file_that_sources(cluster: Cluster, tmp_path: Path) -> None:
    folder = cluster.place("llama2_70b_lora")
    (tmp_path / "launch.sh").write_text(f"source {folder}/config_GB300_2x4x1xtp1pp1cp1.sh; echo $DGXSYSTEM\n")
    done = subprocess.run(
        ["bash", str(tmp_path / "launch.sh")],
        capture_output=True,
        text=True,
        check=True,
        env=dict(os.environ),
    )
    assert done.stdout == "launch\n"


@pytest.mark.parametrize("name", NAMES)
def test_run_scripts_are_whole(cluster: Cluster, name: str) -> None:
    text = (cluster.place(name) / "run.sub").read_text()
    assert not re.findall(r"@[A-Z]+@", text)
    subprocess.run(["bash", "-n"], input=text, text=True, check=True)
    wide = "$(seq -w 1" in text
    assert wide is (name != "llama2_70b_lora")
    assert ("WALLTIME:=?" in text) is (name == "llama31_8b")


def script(cluster: Cluster, name: str, *words: str, **variables: str) -> subprocess.Popen[str]:
    """Start a script of an image."""
    return subprocess.Popen(
        [sys.executable, *words],
        cwd=cluster.place(name),
        env={**cluster.environment(), **variables},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_an_interrupted_download_goes_on(cluster: Cluster, tmp_path: Path) -> None:
    command = ("scripts/download_dataset.py", "--data_dir", str(tmp_path / "gov_report"))
    partial = tmp_path / "gov_report/train.npy.partial"
    first = script(cluster, "llama2_70b_lora", *command, STANDIN_RATE="100000")
    deadline = time.monotonic() + 300
    while not (partial.is_file() and partial.stat().st_size) and time.monotonic() < deadline:
        time.sleep(0.05)
    first.send_signal(signal.SIGKILL)
    first.communicate()
    assert partial.stat().st_size
    assert not (tmp_path / "gov_report/train.npy").exists()
    output = script(cluster, "llama2_70b_lora", *command).communicate()[0]
    assert "train.npy: resumed" in output
    subprocess.run(
        ["md5sum", "--check", "--quiet", ".gov_report.md5"], cwd=tmp_path / "gov_report", check=True
    )
    assert "train.npy: present" in script(cluster, "llama2_70b_lora", *command).communicate()[0]


def test_a_partial_file_of_something_else_is_not_continued(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "train.npy.partial").write_bytes(b"junk" * 100)
    output = script(
        cluster, "llama2_70b_lora", "scripts/download_dataset.py", "--data_dir", str(tmp_path)
    ).communicate()[0]
    assert "train.npy: complete" in output
    subprocess.run(["md5sum", "--check", "--quiet", ".gov_report.md5"], cwd=tmp_path, check=True)


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_arguments: object) -> None:
        pass


@pytest.fixture(scope="module")
def storage(images: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Serve fake files of MLCommons' storage, and yield the address."""
    import downloads

    folder = tmp_path_factory.mktemp("storage")
    downloads.write(folder)
    handler = functools.partial(_Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def test_the_8b_data_arrive_in_the_layout_that_is_mounted(
    cluster: Cluster, storage: str, tmp_path: Path
) -> None:
    environment = {**cluster.environment(), "DATADIR": str(tmp_path), "MLC_DOWNLOADS": storage}
    command = ["bash", "data_scripts/download_8b.sh"]
    place = cluster.place("llama31_8b")
    subprocess.run(command, cwd=place, env=environment, check=True, capture_output=True)
    for path in (
        "c4-train.en_6_text_document.bin",
        "c4-train.en_6_text_document.idx",
        "tokenizer/tokenizer.json",
    ):
        assert (tmp_path / "8b" / path).read_bytes() == (cluster.staged / "8b" / path).read_bytes()
    (tmp_path / "8b/tokenizer/tokenizer.json").write_text("damaged")
    again = subprocess.run(
        command, cwd=place, env=environment, check=True, capture_output=True, text=True
    ).stdout
    assert "tokenizer.json: downloaded" in again
    assert "c4-train.en_6_text_document.bin: there already" in again


def prepare(cluster: Cluster, folder: Path, answers: str) -> tuple[int, str]:
    """Run ``energon prepare`` with answers on its standard input. Return its status and output."""
    words = ["-m", "fake_ngc.energon", "prepare", "--split-parts", "train:train/.*"]
    process = script(cluster, "flux1", *words, "--split-parts", "val:val/.*", str(folder))
    output = process.communicate(answers, timeout=300)[0]
    return process.returncode, output


def test_energon_asks_three_questions(cluster: Cluster, tmp_path: Path) -> None:
    from fake_ngc import data, flux_data

    flux_data.lay_out(tmp_path)
    (tmp_path / ".nv-meta/dataset.yaml").unlink()
    assert prepare(cluster, tmp_path, "")[0] == 1  # standard input is empty
    assert prepare(cluster, tmp_path, "y\ny\n")[0] == 1
    assert prepare(cluster, tmp_path, "y\ny\n1\n")[0] == 1
    assert not (tmp_path / ".nv-meta/dataset.yaml").exists()
    status, output = prepare(cluster, tmp_path, "y\ny\n11\n")
    assert status == 0, output
    assert "CrudeWebdataset" in (tmp_path / ".nv-meta/dataset.yaml").read_text()
    assert "- val/shard_000001.tar" in (tmp_path / ".nv-meta/split.yaml").read_text()
    assert len(data.cc12m()) == 6


def test_layers_and_digests_depend_on_the_contents_alone(images: Path, tmp_path: Path) -> None:
    import oci

    files = {
        "workspace/x/run.sub": (b"echo\n", 0o755),
        "usr/bin/python": (b"-> python3", 0o777),
        "data/": (b"", 0),
    }
    digests = []
    for name in ("one", "two"):
        layout = oci.Layout(tmp_path / name)
        (tmp_path / name / "blobs/sha256").mkdir(parents=True)
        (tmp_path / name / "blobs/sha256/0000").write_bytes(b"of an earlier build")
        layer = layout.layer(oci.tar_of(files))
        digests.append(layout.image("a/b:1", [layer], {"WorkingDir": "/"}))
        layout.close()
        assert not (tmp_path / name / "blobs/sha256/0000").exists()
    assert digests[0] == digests[1]
    with tarfile.open(fileobj=BytesIO(oci.tar_of(files))) as archive:
        kinds = {member.name: (member.isdir(), member.linkname, member.mode) for member in archive}
    assert kinds["data"] == (True, "", 0o755)
    assert kinds["usr/bin/python"][1] == "python3"
    assert kinds["workspace/x/run.sub"] == (False, "", 0o755)


class _Registry(http.server.BaseHTTPRequestHandler):
    """A registry with the requests that push.py sends."""

    blobs: dict[str, bytes] = {}  # noqa: RUF012
    tags: dict[str, bytes] = {}  # noqa: RUF012
    key = "right"
    uploads = 0

    def answer(self, status: int, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def allowed(self) -> bool:
        import base64

        wanted = base64.b64encode(f"$oauthtoken:{self.key}".encode()).decode()
        if self.headers.get("Authorization") == f"Basic {wanted}":
            return True
        self.answer(401)
        return False

    def do_GET(self) -> None:
        if self.allowed():
            self.answer(200)

    def do_HEAD(self) -> None:
        import oci

        if not self.allowed():
            return
        if "/manifests/" in self.path and self.path in self.tags:
            self.answer(200, Docker_Content_Digest=oci.sha256(self.tags[self.path]))
        else:
            self.answer(200 if self.path in self.blobs else 404)

    def do_POST(self) -> None:
        if self.allowed():
            self.answer(202, Location=self.path.split("?")[0] + "7?_state=x")

    def do_PUT(self) -> None:
        import oci

        data = self.rfile.read(int(self.headers["Content-Length"]))
        if not self.allowed():
            return
        if "/manifests/" in self.path:
            self.tags[self.path] = data
        else:
            digest = self.path.split("digest=")[1]
            assert oci.sha256(data) == digest
            type(self).uploads += 1
            self.blobs[f"{self.path.split('/blobs/')[0]}/blobs/{digest}"] = data
        self.answer(201, Docker_Content_Digest=oci.sha256(data))

    def log_message(self, *_arguments: object) -> None:
        pass


def test_push_sends_only_what_is_missing_and_no_key_is_shown(images: Path, tmp_path: Path) -> None:
    import oci

    layout = oci.Layout(tmp_path / "images")
    shared = layout.layer(oci.tar_of({"base": (b"x" * 1000, 0o644)}))
    for number in (1, 2):
        own = layout.layer(oci.tar_of({"own": (b"%d" % number, 0o644)}))
        layout.image(f"nv/image{number}:1", [shared, own], {})
    layout.close()
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Registry) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        command = [
            sys.executable,
            str(images / "push.py"),
            "--registry",
            f"127.0.0.1:{server.server_address[1]}",
        ]
        command += ["--images", str(tmp_path / "images"), "--key-file", str(tmp_path / "key")]
        (tmp_path / "key").write_text("right\n")
        first = subprocess.run(command, capture_output=True, text=True, check=True)
        sent = _Registry.uploads
        second = subprocess.run(command, capture_output=True, text=True, check=True)
        (tmp_path / "key").write_text("wrong-and-secret\n")
        third = subprocess.run(command, capture_output=True, text=True, check=False)
        server.shutdown()
    assert "2 images pushed" in first.stdout
    assert sent >= 5
    assert "0 images pushed" in second.stdout
    assert _Registry.uploads == sent
    assert third.returncode == 1
    assert "401 Unauthorized" in third.stderr
    assert "wrong-and-secret" not in third.stdout + third.stderr
    manifest = json.loads(_Registry.tags["/v2/nv/image1/manifests/1"])
    assert manifest["layers"][0]["digest"] == shared.digest


def test_push_waits_for_a_registry_that_starts_late(images: Path) -> None:
    import push

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Registry, bind_and_activate=False)
    server.server_bind()  # it accepts no connection yet

    def start_late() -> None:
        time.sleep(1)
        server.server_activate()
        server.serve_forever()

    began = time.monotonic()
    thread = threading.Thread(target=start_late, daemon=True)
    with server:
        address = f"127.0.0.1:{server.server_address[1]}"
        with pytest.raises(push.PushError, match="Connection refused; try `make rack-status`"):
            push.Registry(address, "right").wait_until_started(0.3)
        thread.start()
        push.Registry(address, "right").wait_until_started()
        server.shutdown()
    assert time.monotonic() - began > 1


def test_push_does_not_wait_for_a_registry_that_refuses_the_key(images: Path) -> None:
    import push

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Registry) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        with pytest.raises(push.PushError, match="401 Unauthorized"):
            push.Registry(f"127.0.0.1:{server.server_address[1]}", "wrong").wait_until_started()
        server.shutdown()
