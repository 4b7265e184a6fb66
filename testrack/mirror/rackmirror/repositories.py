"""Write and sign the mirror's apt repositories for build.py, with the component `main`."""

from __future__ import annotations

import contextlib
import gzip
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

KEY_OWNER = "Rack mirror (fake of the vendors' keys) <mirror@rack.invalid>"


class RepositoryError(Exception):
    """A repository that cannot be made. The message gives the command and its error output."""


class SigningKey:
    """The test rack's own key, which is generated once. Its private half never leaves its folder."""

    def __init__(self, home: Path) -> None:
        self.home = home

    def ensure(self) -> bytes:
        """Generate the key if it is missing. Return its armored public half."""
        self.home.mkdir(parents=True, exist_ok=True)
        self.home.chmod(0o700)
        with self._agent():
            if not self._gpg("--list-secret-keys", "--with-colons"):
                self._gpg("--passphrase", "", "--quick-generate-key", KEY_OWNER, "ed25519", "sign", "never")
            return self._gpg("--armor", "--export")

    def sign(self, release: Path) -> None:
        """Write InRelease and Release.gpg next to a Release file."""
        with self._agent():
            folder = release.parent
            self._gpg("--yes", "--clearsign", "--output", str(folder / "InRelease"), str(release))
            detached = ("--yes", "--armor", "--detach-sign", "--output", str(folder / "Release.gpg"))
            self._gpg(*detached, str(release))

    def _gpg(self, *arguments: str) -> bytes:
        command = ["gpg", "--homedir", str(self.home), "--batch", "--quiet", "--pinentry-mode", "loopback"]
        return _output([*command, *arguments])

    @contextlib.contextmanager
    def _agent(self) -> Iterator[None]:
        """Stop gpg's agent for this home at the end, because it must not outlive the build."""
        try:
            yield
        finally:
            subprocess.run(
                ["gpgconf", "--homedir", self.home, "--kill", "all"], check=False, capture_output=True
            )


def index(folder: Path, label: str, pool: Path, architecture: str, suite: str, codename: str) -> Path:
    """Write dists/SUITE for the packages in pool, which is in folder. Return the unsigned Release file."""
    dists = folder / "dists" / suite
    binary = dists / "main" / f"binary-{architecture}"
    binary.mkdir(parents=True, exist_ok=True)
    packages = _output(["apt-ftparchive", "packages", str(pool.relative_to(folder))], folder)
    (binary / "Packages").write_bytes(packages)
    (binary / "Packages.gz").write_bytes(gzip.compress(packages, mtime=0))
    for old in ("Release", "InRelease", "Release.gpg"):
        (dists / old).unlink(missing_ok=True)
    fields = {
        "Origin": label,
        "Label": label,
        "Suite": suite,
        "Codename": codename,
        "Architectures": architecture,
        "Components": "main",
        "Description": f"Test rack fake of {label}",
    }
    options = [f"-oAPT::FTPArchive::Release::{name}={value}" for name, value in fields.items()]
    release = _output(["apt-ftparchive", *options, "release", f"dists/{suite}"], folder)
    (dists / "Release").write_bytes(release)
    return dists / "Release"


def _output(command: list[str], folder: Path | None = None) -> bytes:
    done = subprocess.run(
        command, cwd=folder, capture_output=True, check=False, env={**os.environ, "LC_ALL": "C.UTF-8"}
    )
    if done.returncode:
        raise RepositoryError(f"{' '.join(command)}: {done.stderr.decode(errors='replace').strip()}")
    return done.stdout
