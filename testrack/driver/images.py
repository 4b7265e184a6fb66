"""Make the images from a cached root file system by mmdebstrap, with the rack's files on top.

rack.py uses this module to create hosts, and to refresh their fakes.
"""

from __future__ import annotations

import fcntl
import hashlib
import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from driver.cache import folder_for
from driver.console import Console
from driver.engine import docker, docker_text, run
from driver.layout import RackError

# A bare node can be reached, and Ansible works on it. Provisioning does everything else.
NODE_PACKAGES = (
    *("systemd", "systemd-sysv", "dbus", "openssh-server", "python3", "sudo"),
    *("iproute2", "iputils-ping", "ca-certificates", "procps"),
)
SERVICES_PACKAGES = (*NODE_PACKAGES, "nginx-light", "docker-registry", "apache2-utils")
# The release of the services' host, whatever the nodes run.
SERVICES_RELEASE, SERVICES_PYTHON = "bookworm", "3.11"
# Leave manuals out of every image and of later packages, because a node of the test rack needs none.
DPKG_OPTIONS = (
    "force-unsafe-io",
    *("path-exclude=/usr/share/man/*", "path-exclude=/usr/share/locale/*", "path-exclude=/usr/share/doc/*"),
    "path-include=/usr/share/doc/*/copyright",
)
# Units that a node does not start: terminals that do not exist, the kernel's list of fuse connections (which
# is the host's, and cannot always be mounted), timers that would wake 18 nodes at once on one machine, and
# devices and debugging of the kernel, which are also the host's.
MASKED = (
    *("getty@tty1.service", "console-getty.service", "getty-static.service"),
    "sys-fs-fuse-connections.mount",
    *(
        "apt-daily.timer",
        "apt-daily-upgrade.timer",
        "dpkg-db-backup.timer",
        "e2scrub_all.timer",
        "fstrim.timer",
    ),
    *(
        "systemd-udevd.service",
        "systemd-udev-trigger.service",
        "sys-kernel-debug.mount",
        "sys-kernel-tracing.mount",
    ),
    # Formats of executables are the host's, too.
    *("proc-sys-fs-binfmt_misc.automount", "proc-sys-fs-binfmt_misc.mount", "systemd-binfmt.service"),
)
RELEASES = ("bookworm", "trixie")
ROOT_IMAGE, NODE_IMAGE, SERVICES_IMAGE = "rackproof-rack-root", "rackproof-rack-node", "rackproof-rack-svc"


@dataclass(frozen=True)
class Entry:
    """A file of an image with the content `data`, a symbolic link to `link`, or an empty folder."""

    data: bytes = b""
    mode: int = 0o644
    link: str = ""
    folder: bool = False


Overlay = Mapping[str, Entry]


def digest(*parts: object) -> str:
    """Return a short name for these inputs."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:16]


def overlay_digest(overlay: Overlay) -> str:
    """Return a short name for an overlay's contents."""
    return digest(
        [
            (path, hashlib.sha256(one.data).hexdigest(), one.mode, one.link, one.folder)
            for path, one in sorted(overlay.items())
        ]
    )


def overlay_tar(overlay: Overlay) -> bytes:
    """Return an overlay as a tar file, without the folders of its files unless they are entries."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for path, entry in sorted(overlay.items()):
            info = tarfile.TarInfo(path.lstrip("/"))
            info.mode = entry.mode
            if entry.link:
                info.type, info.linkname = tarfile.SYMTYPE, entry.link
            elif entry.folder:
                info.type = tarfile.DIRTYPE
            info.size = len(entry.data)
            archive.addfile(info, io.BytesIO(entry.data))
    return buffer.getvalue()


def folder_overlay(folder: Path, target: str) -> dict[str, Entry]:
    """Return the files of a folder, except hidden ones, with their names below target on a node."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if "__pycache__" in path.parts or path.name.startswith("."):
            continue
        name = f"{target}/{path.relative_to(folder)}"
        if path.is_symlink():
            found[name] = Entry(link=os.readlink(path), mode=0o777)
        elif path.is_file():
            found[name] = Entry(path.read_bytes(), 0o755 if path.stat().st_mode & 0o100 else 0o644)
        elif not any(path.iterdir()):
            found[name] = Entry(mode=0o755, folder=True)
    return found


def units_overlay(enabled: Sequence[str] = ()) -> dict[str, Entry]:
    """Return the links that mask unneeded units and enable those given."""
    folder = "/etc/systemd/system"
    links = {f"{folder}/{unit}": Entry(link="/dev/null") for unit in MASKED}
    for unit in enabled:
        links[f"{folder}/multi-user.target.wants/{unit}"] = Entry(link=f"{folder}/{unit}")
    return links


def dpkg_status(tar: Path) -> str:
    """Return dpkg's list of the packages and versions that are installed in a root file system."""
    with tarfile.open(tar) as archive:
        for member in archive:
            if member.name.removeprefix("./") == "var/lib/dpkg/status":
                content = archive.extractfile(member)
                return content.read().decode() if content else ""
    raise RackError(f"{tar} has no dpkg status: remove it, and start the rack again")


class Images:
    """The images of the rack's hosts, made from reusable parts in the cache `state`."""

    def __init__(self, home: Path, state: Path, console: Console, release: str) -> None:
        self.home, self.state, self.console, self.release = home, state, console, release

    def root_tar(self, name: str, packages: Sequence[str], release: str) -> tuple[Path, str]:
        """Return a root file system with these packages, and its key, made once for all callers.

        The key contains the versions, because the mirror's packages fit the versions of this tar. An image
        from another checkout, or from before Debian's last update, contains other versions.
        """
        self.state.mkdir(parents=True, exist_ok=True)
        with (self.state / f"{name}-{release}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            return self._root_tar(name, packages, release)

    def _root_tar(self, name: str, packages: Sequence[str], release: str) -> tuple[Path, str]:
        """Return the tar and its key. The caller holds the lock."""
        path = self.state / f"{name}-{release}.tar"
        key_file = path.with_suffix(".key")
        mirror = os.environ.get("RACK_DEBIAN_MIRROR", "")
        recipe = digest(release, packages, DPKG_OPTIONS, mirror)
        if path.is_file() and key_file.is_file():
            made_by, _, key = key_file.read_text().strip().partition(" ")
            if made_by == recipe and key:
                return path, key
        draft = path.with_suffix(".draft.tar")
        command = ["/usr/bin/mmdebstrap", "--quiet", "--variant=minbase", f"--include={','.join(packages)}"]
        command += ['--aptopt=Acquire::Languages "none"']
        command += [f"--dpkgopt={option}" for option in DPKG_OPTIONS]
        command += [release, str(draft), *([mirror] if mirror else [])]
        with self.console.step(f"tar-{name}-{release}", f"making {path.name} (Debian {release})"):
            run(command, timeout=1200)
        key = digest(recipe, dpkg_status(draft))
        os.replace(draft, path)
        key_file.write_text(f"{recipe} {key}\n")
        return path, key

    def image(self, repository: str, tar: Path, tar_key: str, overlay: Overlay) -> str:
        """Return the name of an image that is the tar with the overlay on top, made once."""
        tag = f"{repository}:{tar.stem}-{digest(tar_key, overlay_digest(overlay), 1)}"
        if self._exists(tag):
            return tag
        root = f"{ROOT_IMAGE}:{tar.stem}-{tar_key}"
        if not self._exists(root):
            with self.console.step(f"import-{tar.stem}", f"importing {tar.name}"):
                docker("import", str(tar), root)
            self._drop_older(f"{ROOT_IMAGE}:{tar.stem}-", keep=root)
        with self.console.step(f"image-{repository}", f"making the image {tag}"):
            # Commit a container that never ran, which needs no builder and starts nothing.
            container = docker_text("create", root, "/opt/rack/boot")
            try:
                docker("cp", "-", f"{container}:/", data=overlay_tar(overlay))
                docker("commit", "--change", 'CMD ["/opt/rack/boot"]', container, tag)
            finally:
                docker("rm", "--volumes", container, check=False)
            self._drop_older(f"{repository}:{tar.stem}-", keep=tag)
        return tag

    @staticmethod
    def _exists(image: str) -> bool:
        """Return whether the engine has an image."""
        return docker("image", "inspect", "--format", "{{.Id}}", image, check=False).returncode == 0

    @staticmethod
    def _drop_older(prefix: str, keep: str) -> None:
        """Remove older images of the same release. Images of another release stay."""
        repository = prefix.partition(":")[0]
        for tag in docker_text("images", repository, "--format", "{{.Repository}}:{{.Tag}}").splitlines():
            if tag.startswith(prefix) and tag != keep:
                docker("rmi", tag, check=False)  # stays while a container uses it

    def node_tar(self) -> tuple[Path, str]:
        """Return the root file system of a bare node."""
        return self.root_tar("root", NODE_PACKAGES, self.release)

    def services_tar(self) -> tuple[Path, str]:
        """Return the root file system of the services' host."""
        return self.root_tar("svc", SERVICES_PACKAGES, SERVICES_RELEASE)

    def node(self) -> str:
        """Return the image of a bare node."""
        tar, key = self.node_tar()
        return self.image(NODE_IMAGE, tar, key, self.node_overlay())

    def node_overlay(self) -> dict[str, Entry]:
        """Return the files of a node beyond Debian's packages.

        The files are the fakes, and the programs with which the rack boots a node and gives it faults.
        """
        return {
            **self.rack_overlay(),
            "/etc/machine-id": Entry(),
            # No package source is set on nodes until provisioning.
            "/etc/apt/sources.list": Entry(b"# The role apt_mirror names this node's package sources.\n"),
            **units_overlay(),
        }

    def rack_overlay(self) -> dict[str, Entry]:
        """Return the rack's own files of a node, which can also be put onto a running node."""
        with tempfile.TemporaryDirectory() as folder:
            run(["sh", str(self.home / "fakes/install.sh"), folder])
            fakes = folder_overlay(Path(folder), "")
        runc = Entry((self.home / "node/runc-rack").read_bytes(), 0o755)
        return {**self.machine_overlay(), **fakes, "/usr/local/sbin/runc": runc}

    def machine_overlay(self) -> dict[str, Entry]:
        """Return the files with which every host boots and shows faults."""
        with tempfile.TemporaryDirectory() as folder:
            library = Path(folder) / "clock.so"
            options = ["-O2", "-shared", "-fPIC", "-Wl,--build-id=none"]
            run(["/usr/bin/gcc", *options, "-o", str(library), str(self.home / "node/clock.c"), "-ldl"])
            clock = library.read_bytes()
        return {
            "/opt/rack/boot": Entry((self.home / "node/boot").read_bytes(), 0o755),
            "/opt/rack/fault": Entry((self.home / "node/fault").read_bytes(), 0o755),
            "/opt/rack/lib/clock.so": Entry(clock),
        }

    def services(self) -> str:
        """Return the image of the services' host."""
        tar, key = self.services_tar()
        overlay = {
            **self.machine_overlay(),
            "/etc/machine-id": Entry(),
            "/etc/apt/sources.list": Entry(),
            **folder_overlay(self.home / "svc/files", ""),
            **folder_overlay(self.s3_packages(), "/opt/s3"),
            **units_overlay(enabled=("rack-s3.service",)),
        }
        return self.image(SERVICES_IMAGE, tar, key, overlay)

    def s3_packages(self) -> Path:
        """Return the folder with moto and its dependencies for the services' host's Python.

        It is made once.
        """
        requirements = self.home / "svc/requirements.txt"
        key = digest(requirements.read_text(), SERVICES_PYTHON)
        with folder_for(self.state, "s3-packages", key, copied=False) as folder:
            if not (folder / ".ready").exists():
                self._install_s3_packages(requirements, folder)
                (folder / ".ready").touch()
        return folder

    def _install_s3_packages(self, requirements: Path, folder: Path) -> None:
        """Install moto into a folder, for the services' host's Python."""
        command = [
            sys.executable,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--no-deps",
            "--upgrade",
            "--target",
            str(folder),
        ]
        command += ["--python-version", SERVICES_PYTHON, "--only-binary=:all:"]
        command += ["--require-hashes", "--requirement", str(requirements)]
        with self.console.step("s3-packages", "fetching moto, the fake of S3"):
            done = subprocess.run(command, capture_output=True, timeout=600, check=False)
        if done.returncode != 0:
            raise RackError(
                f"`{' '.join(command)}` failed: {done.stderr.decode(errors='replace').strip()[-1500:]}"
            )
