"""Start OpenStack Swift with its S3 interface on this machine, with four servers, one device and one user.

Tests of uploads use this real object store, which checks signatures and digests. moto, the fake of S3 for the
rack's nodes, checks neither.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from getpass import getuser
from pathlib import Path

import requests

from rackproof.store.object_store import Bucket, sign

ACCESS_KEY, SECRET_KEY = "rack:results", "swift-secret-0815"
START_S = 120
_RINGS = ("account", "container", "object")
_COMMON = """[DEFAULT]
bind_ip = 127.0.0.1
bind_port = {port}
swift_dir = {folder}
user = {user}
workers = 0
"""
_STORAGE = """devices = {folder}/devices
mount_check = false
[pipeline:main]
pipeline = {name}-server
[app:{name}-server]
use = egg:swift#{name}
fallocate_reserve = 0
"""
_PROXY = """[pipeline:main]
pipeline = catch_errors s3api tempauth copy slo {name}-server
[app:{name}-server]
use = egg:swift#proxy
account_autocreate = true
[filter:catch_errors]
use = egg:swift#catch_errors
[filter:s3api]
use = egg:swift#s3api
location = us-east-1
[filter:tempauth]
use = egg:swift#tempauth
user_{account} = {key} .admin
[filter:copy]
use = egg:swift#copy
[filter:slo]
use = egg:swift#slo
"""


@dataclass
class Swift:
    """A running store: its address, and its servers, which can be stopped and started again."""

    folder: Path
    python: Path
    ports: dict[str, int]
    servers: dict[str, subprocess.Popen[bytes]]

    @property
    def url(self) -> str:
        """Return the store's address."""
        return f"http://127.0.0.1:{self.ports['proxy']}"

    def ask(self, method: str, path: str) -> requests.Response:
        """Send a request without a body. Return the response.

        Raises:
            requests.HTTPError: The status of the response is an error.
        """
        bucket = Bucket(self.url, "", "", "us-east-1", ACCESS_KEY, SECRET_KEY)
        headers = sign(bucket, method, path, {}, hashlib.sha256(b"").hexdigest(), datetime.now(UTC))
        answer = requests.request(method, self.url + path, headers=headers, timeout=60)
        answer.raise_for_status()
        return answer

    def make_bucket(self, name: str) -> None:
        """Make a bucket."""
        self.ask("PUT", f"/{name}")

    def start(self, name: str) -> None:
        """Start a server by its name, and wait until it listens.

        Raises:
            RuntimeError: The server ended, or did not listen in time. The message has the end of its log.
        """
        with (self.folder / f"{name}.log").open("ab") as log:
            self.servers[name] = subprocess.Popen(
                [self.python.with_name(f"swift-{name}-server"), self.folder / f"{name}.conf"],
                env={**os.environ, "SWIFT_DIR": str(self.folder)},
                stdout=log,
                stderr=log,
            )
        end = time.monotonic() + START_S
        while time.monotonic() < end and self.servers[name].poll() is None:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.ports[name]), 1):
                return
            time.sleep(0.1)
        raise RuntimeError(f"swift-{name}-server: {(self.folder / f'{name}.log').read_text()[-2000:]}")

    def stop(self, name: str) -> None:
        """Stop a server by its name."""
        self.servers[name].terminate()
        self.servers[name].wait(30)


def make_python(root: Path) -> Path:
    """Return the interpreter with Swift. If it is missing, make it from the package index."""
    done = subprocess.run(
        [
            sys.executable,
            root / "workloads/make_runtime.py",
            f"--runtime={root / 'testrack/swift'}",
            f"--folder={root / '.rackproof/runtimes/swift'}",
        ],
        stdout=subprocess.PIPE,
        check=True,
    )
    return Path(json.loads(done.stdout.splitlines()[-1])["python"])


@contextlib.contextmanager
def running_swift(root: Path, folder: Path) -> Iterator[Swift]:
    """Yield a store without buckets, and stop it afterwards.

    Its folder must be on a file system with extended attributes.
    """
    python = make_python(root)
    (folder / "devices/d1").mkdir(parents=True)
    (folder / "swift.conf").write_text(
        "[swift-hash]\nswift_hash_path_prefix = rack\nswift_hash_path_suffix = proof\n"
        "[storage-policy:0]\nname = one\ndefault = yes\n"
    )
    swift = Swift(folder, python, {name: _free_port() for name in (*_RINGS, "proxy")}, {})
    for name, port in swift.ports.items():
        text = _COMMON + (_PROXY if name == "proxy" else _STORAGE)
        (folder / f"{name}.conf").write_text(
            text.format(
                port=port,
                folder=folder,
                user=getuser(),
                name=name,
                key=SECRET_KEY,
                account=ACCESS_KEY.replace(":", "_"),
            )
        )
    for name in _RINGS:
        for words in ("create 4 1 0", f"add r1z1-127.0.0.1:{swift.ports[name]}/d1 1", "rebalance"):
            subprocess.run(
                [python.with_name("swift-ring-builder"), folder / f"{name}.builder", *words.split()],
                check=True,
                stdout=subprocess.DEVNULL,
            )
    try:
        for name in swift.ports:
            swift.start(name)
        yield swift
    finally:
        for name in swift.servers:
            swift.stop(name)


def _free_port() -> int:
    """Return a port that nothing listens on."""
    with socket.socket() as asked:
        asked.bind(("127.0.0.1", 0))
        return int(asked.getsockname()[1])
