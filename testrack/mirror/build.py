"""Build the test rack's apt mirror, a tree that any web server can serve at its root.

    build.py --out .rackproof/rack/mirror --rootfs .rackproof/rack/root-bookworm.tar

rack.py starts this program. A part whose inputs did not change is left as it is, so a second call takes a
moment. README.md describes the parts.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from rackmirror import debian, images, packages, repositories, sources, tarballs

HERE = Path(__file__).resolve().parent
# Programs that building needs, and the Debian packages that contain them.
TOOLS = {
    "apt-ftparchive": "apt-utils",
    "dpkg-deb": "dpkg",
    "gcc": "gcc libc6-dev",
    "git": "git",
    "gpg": "gnupg",
}
UNSIGNED = "unsigned"
ERRORS = (
    debian.DebianError,
    images.ImageError,
    packages.SpecError,
    repositories.RepositoryError,
    sources.SourceError,
    OSError,
)
VENDOR_PARTS = ("packages", "repositories", "sources", "tarballs")
# The source files that build each part. If one changes, the part is built again.
BUILDERS = {
    "debian": ("rackmirror/debian.py", "rackmirror/repositories.py"),
    "images": ("rackmirror/images.py",),
    "vendors": ("build.py", *(f"rackmirror/{name}.py" for name in VENDOR_PARTS)),
}
FOLDERS = ("payload", "scripts", "ofed", "nv_peer_memory", "pyxis")
"""Folders from which part vendors is built."""
SLURM_HEADERS = "libslurm-dev"
LOCK_WAIT_S = 600
"""Longest wait for apt's locks, which the host's unattended upgrades may hold for minutes."""
LOCKED = re.compile(r"(?i)could not get lock|unable to (?:lock|acquire)|is held by process")
PEER_MEMORY_TAG = "1.0-8"


def main() -> int:
    """Build missing or outdated parts."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="the tree to serve; keys are kept beside it")
    parser.add_argument(
        "--rootfs",
        type=Path,
        action="append",
        default=[],
        help="a node's root file system as a tar: /debian gets its missing packages; without one it stays as "
        "it is",
    )
    arguments = parser.parse_args()
    try:
        install_tools()
        Mirror(arguments.out.resolve()).build([path.resolve() for path in arguments.rootfs])
    except ERRORS as error:
        print(f"mirror: {error}", file=sys.stderr)
        return 1
    return 0


def install_tools() -> None:
    """Install the programs that building needs, from the host's distribution, or name the missing ones."""
    missing = " ".join(sorted(names for tool, names in TOOLS.items() if not shutil.which(tool))).split()
    if not missing:
        return
    command = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *missing]
    if os.geteuid() != 0:
        raise OSError(f"building the mirror needs {' '.join(missing)}; type: sudo {' '.join(command)}")
    print(f"mirror: installing {' '.join(missing)}", file=sys.stderr)
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    command[1:1] = ["-o", f"DPkg::Lock::Timeout={LOCK_WAIT_S}"]
    for step in (["apt-get", "update", "-qq"], command):
        done = run_apt(step, environment)
        if done.returncode:
            raise OSError(f"{' '.join(step)} failed: {done.stderr.strip()}")


def run_apt(command: list[str], environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run apt-get. If another process locks its lists, wait until they are free."""
    deadline = time.monotonic() + LOCK_WAIT_S
    while True:
        done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment)
        # apt itself waits only for dpkg's lock.
        if done.returncode == 0 or not LOCKED.search(done.stderr) or time.monotonic() > deadline:
            return done
        print(f"mirror: waiting for another apt: {done.stderr.strip().splitlines()[0]}", file=sys.stderr)
        time.sleep(5)


class Mirror:
    """The mirror's tree, the files next to it, and the digests of each part's inputs."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self.work = out.parent / "mirror-work"
        self.key = repositories.SigningKey(out.parent / "gnupg")
        self.stamps_path = out.parent / "mirror-stamps.json"
        self.stamps: dict[str, str] = {}
        self.architecture = subprocess.run(
            ["dpkg", "--print-architecture"], capture_output=True, text=True, check=True
        ).stdout.strip()

    def build(self, rootfs: list[Path]) -> None:
        """Build every part that is out of date. If two builds run at once, one waits."""
        self.out.mkdir(parents=True, exist_ok=True)
        with (self.out.parent / "mirror.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self._build(rootfs)

    def _build(self, rootfs: list[Path]) -> None:
        self._read_stamps()
        self._public_key()
        for archive in rootfs:
            self._debian(archive)
        self._images()
        self._vendors()

    def _read_stamps(self) -> None:
        if self.stamps_path.is_file() and any(self.out.iterdir()):
            self.stamps = json.loads(self.stamps_path.read_text())

    def _public_key(self) -> None:
        """Export the public key into the tree and next to the tree, if it is missing."""
        public = self.out / "mirror.asc"
        beside = self.out.parent / "mirror.asc"
        if not (self.key.home.is_dir() and public.is_file() and beside.is_file()):
            armored = self.key.ensure()
            public.write_bytes(armored)
            beside.write_bytes(armored)

    def _part(self, name: str, inputs: str, products: set[str], make: Callable[[], str]) -> None:
        """Make a part unless its products exist from the same inputs. make() returns a summary to print."""
        key = (self.out / "mirror.asc").read_bytes()
        builders = _digests(*BUILDERS[name.partition("-")[0]])
        digest = hashlib.sha256(key + (builders + inputs).encode()).hexdigest()
        if self.stamps.get(name) == digest and all((self.out / one).exists() for one in products):
            return
        # An interrupted build must not pass for the old one.
        self.stamps.pop(name, None)
        self._keep_stamps()
        print(f"mirror: {name}: {make()}", file=sys.stderr)
        self.stamps[name] = digest
        self._keep_stamps()

    def _keep_stamps(self) -> None:
        new = self.stamps_path.with_suffix(".new")
        new.write_text(json.dumps(self.stamps, indent=1, sort_keys=True) + "\n")
        new.replace(self.stamps_path)

    def _debian(self, archive: Path) -> None:
        """Fetch the distribution's packages for the release of a root file system, if they are outdated."""
        codename, status = debian.read_rootfs(archive)
        names = debian.package_names((HERE / "debian-packages.txt").read_text(), codename)
        folder = self.out / "debian"
        # Bookworm is `stable` as well, like every vendor's suite here.
        suite = "stable" if codename == "bookworm" else codename

        def make() -> str:
            pool = folder / "pool" / codename
            count = debian.fetch(names, codename, status, self.work / codename, pool)
            self.key.sign(repositories.index(folder, "Debian", pool, self.architecture, suite, codename))
            size = sum(path.stat().st_size for path in pool.iterdir())
            return f"{count} packages of Debian {codename}, {size / 1e6:.0f} MB"

        products = {f"debian/pool/{codename}", f"debian/dists/{suite}/InRelease"}
        self._part(f"debian-{codename}", debian.fingerprint(names, status), products, make)
        by_codename = folder / "dists" / codename
        if not by_codename.exists():
            by_codename.symlink_to(suite)

    def _images(self) -> None:
        """Write the container images that the mirror serves, if they are outdated."""
        # The images are made from the distribution's packages, which are missing before the first --rootfs.
        pools = [self.out / "debian" / "pool" / codename for codename in debian.CODENAMES]
        pool = next((one for one in pools if one.is_dir()), None)
        if pool:
            busybox = " ".join(sorted(path.name for path in pool.glob("busybox-static_*.deb")))
            self._part("images", busybox, {"images"}, lambda: images.shell(pool, self.out / "images").name)

    def _slurm_headers(self) -> dict[str, Path]:
        """Return by codename the package with the headers that pyxis is compiled with.

        It is also returned for a release that the mirror does not have. Otherwise, the vendors' packages
        would change when that release is added, while nodes install them.
        """
        found = {}
        for codename in debian.CODENAMES:
            pool = self.out / "debian" / "pool" / codename
            kept = self.work / "headers" / f"{codename}-package"
            try:
                found[codename] = debian.one(SLURM_HEADERS, codename, self.work / codename, pool, kept)
            except debian.DebianError as error:
                if pool.is_dir() or (codename == debian.CODENAMES[-1] and not found):
                    raise
                print(f"mirror: no pyxis for Debian {codename}: {error}", file=sys.stderr)
        return found

    def _vendors(self) -> None:
        """Build the vendors' fake packages, tarballs and git repository, if they are outdated."""
        specs = packages.read(HERE / "packages.toml", self.architecture)
        ofed = tarballs.read(HERE / "ofed.toml")
        of_tarballs = {tarball.repository for tarball in ofed}

        slurm = self._slurm_headers()
        names = sorted({name for spec in specs for name in spec.repositories} - of_tarballs)

        def of(repository: str) -> list[Path]:
            return [self.work / "built" / spec.file_name for spec in specs if repository in spec.repositories]

        def make() -> str:
            shutil.rmtree(self.work / "built", ignore_errors=True)
            headers = {
                codename: debian.headers(package, self.work / "headers" / codename)
                for codename, package in slurm.items()
            }
            for spec in specs:
                packages.build(spec, HERE, self.work / "trees", self.work / "built", headers)
            for name in names:
                self._publish(name, of(name))
            shutil.rmtree(self.out / "mlnx", ignore_errors=True)
            for tarball in ofed:
                installer = HERE / "ofed" / "mlnxofedinstall"
                tarballs.make(
                    tarball, os.uname().machine, installer, of(tarball.repository), self.out / "mlnx"
                )
            bare = self.out / "git" / "nv_peer_memory.git"
            commit = sources.publish(HERE / "nv_peer_memory", PEER_MEMORY_TAG, bare)
            return (
                f"{len(specs)} fake packages in {', '.join(names)}; {len(ofed)} tarballs of MLNX_OFED; "
                f"nv_peer_memory {PEER_MEMORY_TAG} is {commit[:12]}"
            )

        products = {*names, "mlnx/SHA256SUMS", "git/nv_peer_memory.git"}
        inputs = ",".join(package.name for package in slurm.values())
        self._part("vendors", inputs + _digests("packages.toml", "ofed.toml", *FOLDERS), products, make)

    def _publish(self, name: str, files: list[Path]) -> None:
        """Make one vendor's repository, and replace the old one by it."""
        new = self.out / f".{name}.new"
        shutil.rmtree(new, ignore_errors=True)
        pool = new / "pool"
        pool.mkdir(parents=True)
        for file in files:
            (pool / file.name).hardlink_to(file)
        release = repositories.index(new, name, pool, self.architecture, "stable", "stable")
        # A test shows that apt refuses the repository without a signature.
        if name != UNSIGNED:
            self.key.sign(release)
        shutil.rmtree(self.out / name, ignore_errors=True)
        new.rename(self.out / name)


def _digests(*names: str) -> str:
    """Return digests of these files and folders, as text."""
    files = sorted(
        path for name in names for path in [HERE / name, *(HERE / name).rglob("*")] if path.is_file()
    )
    lines = []
    for path in files:
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        lines.append(f"{path.relative_to(HERE)} {path.stat().st_mode & 0o100} {digest}\n")
    return "".join(lines)


if __name__ == "__main__":
    sys.exit(main())
