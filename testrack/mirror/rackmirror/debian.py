"""Fetch the distribution's packages that roles install, with their dependencies, for build.py."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import tarfile
from pathlib import Path

# Only Debian's own archive uses these names in the host's apt sources, so other sources (of a cloud or a
# language) are ignored.
CODENAMES = ("bookworm", "trixie")
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")


class DebianError(Exception):
    """A package or root file system is not available. The message gives the reason and the remedy."""


def package_names(text: str, codename: str) -> list[str]:
    """Return the names in debian-packages.txt for a release, in order.

    A line is a name, or `name [codename]` if the package is only in that release.
    """
    lines = [line.split("#", 1)[0].split() for line in text.splitlines()]
    return [words[0] for words in lines if words and words[1:] in ([], [f"[{codename}]"])]


def read_rootfs(archive: Path) -> tuple[str, str]:
    """Return the codename of a node's root file system, and the text of its dpkg/status."""
    if not archive.is_file():
        raise DebianError(f"{archive} is missing: `make rack` makes the nodes' root file system first")
    found: dict[str, str] = {}
    with tarfile.open(archive) as tar:
        for member in tar:
            name = member.name.removeprefix("./")
            if name in {"usr/lib/os-release", "var/lib/dpkg/status"} and member.isfile():
                content = tar.extractfile(member)
                found[name] = content.read().decode() if content else ""
                if len(found) == 2:
                    break
    codename = re.search(r"^VERSION_CODENAME=(\w+)", found.get("usr/lib/os-release", ""), re.MULTILINE)
    if len(found) < 2 or not codename:
        raise DebianError(
            f"{archive} is not a root file system of Debian: remove it, and `make rack` makes it again"
        )
    return codename[1], found["var/lib/dpkg/status"]


def fingerprint(names: list[str], status: str) -> str:
    """Return a digest of what decides on the packages to fetch.

    It covers the names, and the packages that are on nodes already.
    """
    return hashlib.sha256("\n".join([*sorted(names), status]).encode()).hexdigest()


def fetch(names: list[str], codename: str, status: str, work: Path, pool: Path) -> int:
    """Download the packages and dependencies that a node lacks into pool. Return their number.

    It uses the host's own apt sources and proxies, but a separate state, so that the host's state does not
    change. All packages can be installed together, so any of them can be installed from this folder alone.
    """
    apt = _private_apt(codename, status, work)
    _run([*apt, "update", "-qq"], "the host's apt cannot read its sources")
    archives = work / "cache" / "archives"
    get = [*apt, "install", "--download-only", "--no-install-recommends", "--assume-yes", "-qq"]
    _run([*get, *names], "a package of debian-packages.txt cannot be downloaded")
    _run([*apt, "autoclean", "-qq"], "old packages cannot be removed")
    pool.mkdir(parents=True, exist_ok=True)
    # A package in apt's cache has the escaped epoch in its name. A package in an archive does not.
    wanted = {re.sub(r"_\d+%3a", "_", package.name): package for package in archives.glob("*.deb")}
    # Change files in place, because a node may be installing from here.
    for stale in {path.name for path in pool.iterdir()} - set(wanted):
        (pool / stale).unlink()
    for name, package in wanted.items():
        if not (pool / name).exists():
            (pool / name).hardlink_to(package)
    return len(wanted)


def one(package: str, codename: str, work: Path, pool: Path, folder: Path) -> Path:
    """Return the file of one package of a release, from the pool or else downloaded into folder once."""
    found = sorted(pool.glob(f"{package}_*.deb")) or sorted(folder.glob(f"{package}_*.deb"))
    if not found:
        apt = _private_apt(codename, "", work)
        folder.mkdir(parents=True, exist_ok=True)
        _run([*apt, "update", "-qq"], "the host's apt cannot read its sources")
        _run(
            [*apt, "download", "-qq", package], f"{package} of Debian {codename} cannot be downloaded", folder
        )
        found = sorted(folder.glob(f"{package}_*.deb"))
    return found[-1]


def headers(package: Path, target: Path) -> Path:
    """Unpack a development package. Return its folder of headers."""
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    _run(["dpkg-deb", "--extract", str(package), str(target)], f"{package.name} cannot be unpacked")
    return target / "usr" / "include"


def _private_apt(codename: str, status: str, work: Path) -> list[str]:
    """Make an apt state like that of a bare node, and return the command that uses it."""
    for folder in ("state/lists/partial", "cache/archives/partial", "etc"):
        (work / folder).mkdir(parents=True, exist_ok=True)
    (work / "state" / "status").write_text(status)
    sources = work / "etc" / "sources.list"
    sources.write_text("".join(f"{line}\n" for line in _debian_sources(codename)))
    options = {
        "Dir::State": work / "state",
        "Dir::State::Lists": work / "state" / "lists",
        "Dir::State::status": work / "state" / "status",
        "Dir::State::extended_states": work / "state" / "extended_states",
        "Dir::Cache": work / "cache",
        "Dir::Cache::archives": work / "cache" / "archives",
        # Container images switch these caches off, and then apt parses the whole index at every call.
        "Dir::Cache::pkgcache": work / "cache" / "pkgcache.bin",
        "Dir::Cache::srcpkgcache": work / "cache" / "srcpkgcache.bin",
        "Dir::Etc::sourcelist": sources,
        "Dir::Etc::sourceparts": "-",
        "Dir::Etc::preferencesparts": "-",
        # Machines where everything runs as root may lack a user _apt that could read a checkout.
        "APT::Sandbox::User": "root",
        "APT::Keep-Downloaded-Packages": "true",
        # Container images empty the cache after every installation. This cache must remain.
        "DPkg::Post-Invoke": "",
        "Acquire::Retries": "3",
        "Debug::NoLocking": "true",
    }
    return ["apt-get", *(word for name, value in options.items() for word in ("-o", f"{name}={value}"))]


def _debian_sources(codename: str) -> list[str]:
    """Return the host's sources of Debian's archive, with this codename."""
    done = subprocess.run(
        [
            "apt-get",
            "indextargets",
            "--format",
            "$(REPO_URI) $(RELEASE) $(COMPONENT)",
            "Created-By: Packages",
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    lines = {}
    for target in done.stdout.splitlines():
        uri, release, component = target.split()
        base, _, part = release.partition("-")
        if base in CODENAMES and component == "main":
            key = f"[signed-by={KEYRING}] " if KEYRING.is_file() else ""
            lines[f"deb {key}{uri} {'-'.join(filter(None, (codename, part)))} main"] = True
    if not lines:
        raise DebianError(
            "the host's apt has no source of Debian bookworm or trixie, or `apt-get update` was never run: "
            "build the mirror on Debian, or copy .rackproof/rack/mirror from a machine where it was built"
        )
    return list(lines)


def _run(command: list[str], complaint: str, folder: Path | None = None) -> None:
    done = subprocess.run(
        command,
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "LC_ALL": "C.UTF-8", "DEBIAN_FRONTEND": "noninteractive"},
    )
    if done.returncode:
        lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        raise DebianError("\n".join([f"{complaint}:", *lines[-12:]]))
