"""Use the host's Docker engine if it answers. Otherwise, start one and stop it later.

rack.py and vms.py use :class:`Engine`. Other modules of the driver call :func:`docker`.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from driver.console import Console
from driver.layout import RackError

# Use the full path, because another client of that name may come first in PATH.
DOCKER = "/usr/bin/docker"
DOCKERD = "/usr/sbin/dockerd"
SOCKET = "unix:///var/run/docker.sock"
RUNTIME = "runc-rack"
"""Name of the runtime of a rack's containers on a machine without :data:`CAP_SYS_RESOURCE`."""
CAP_SYS_RESOURCE = 24
"""The kernel's number of the capability that runc needs for privileged containers."""
# A program or file, and the package that contains it.
NEEDED = {
    DOCKER: "docker.io",
    DOCKERD: "docker.io",
    "/usr/sbin/iptables": "iptables",
    "/usr/bin/mmdebstrap": "mmdebstrap",
    "/usr/bin/tini": "tini",
    "/usr/bin/gcc": "gcc",
    "/usr/include/stdio.h": "libc6-dev",
    "/usr/bin/ssh": "openssh-client",
    "/usr/bin/ssh-keygen": "openssh-client",
}


def run(
    command: Sequence[str], *, data: bytes | None = None, check: bool = True, timeout: float = 300
) -> subprocess.CompletedProcess[bytes]:
    """Run a command. If it fails, its output is part of the error."""
    try:
        done = subprocess.run(command, input=data, capture_output=True, timeout=timeout, check=False)
    except subprocess.TimeoutExpired as error:
        raise RackError(f"`{' '.join(command)}` did not end within {timeout:.0f} s") from error
    except OSError as error:
        raise RackError(f"`{command[0]}` does not start: {error}") from error
    if check and done.returncode != 0:
        words = (done.stderr or done.stdout).decode(errors="replace").strip()
        raise RackError(f"`{' '.join(command)}` failed ({done.returncode}): {words[-2000:]}")
    return done


def docker(
    *arguments: str, data: bytes | None = None, check: bool = True, timeout: float = 300
) -> subprocess.CompletedProcess[bytes]:
    """Run the Docker client against this host's engine, ignoring DOCKER_HOST."""
    return run([DOCKER, "--host", SOCKET, *arguments], data=data, check=check, timeout=timeout)


def docker_text(*arguments: str, check: bool = True) -> str:
    """Return the output of a Docker command."""
    return docker(*arguments, check=check).stdout.decode(errors="replace").strip()


def install_packages(console: Console, extra: Sequence[str] = ()) -> None:
    """Install missing packages on the host, with the host's own package manager."""
    missing = sorted({package for path, package in NEEDED.items() if not os.path.exists(path)} | set(extra))
    if not missing:
        return
    if not shutil.which("apt-get"):
        raise RackError(f"missing: {', '.join(missing)}; there is no apt-get here: install them yourself")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    with console.step("packages", f"installing on this host: {', '.join(missing)}"):
        # Unattended upgrades of this host may hold dpkg's lock for minutes.
        wait = ["-o", "DPkg::Lock::Timeout=300"]
        install = ["apt-get", "install", "-qq", "-y", "--no-install-recommends", *wait, *missing]
        for command in (install, ["apt-get", "update", "-qq"], install):
            done = subprocess.run(command, env=environment, capture_output=True, timeout=600, check=False)
            if done.returncode == 0 and command is install:
                return
        words = done.stderr.decode(errors="replace").strip()
        raise RackError(f"apt-get cannot install {', '.join(missing)}: {words[-1500:]}")


def wrapper_needed() -> bool:
    """Return whether root here lacks the capability that runc needs for privileged containers."""
    status = Path("/proc/self/status").read_text()
    bounding = next(line.split()[1] for line in status.splitlines() if line.startswith("CapBnd"))
    return not int(bounding, 16) >> CAP_SYS_RESOURCE & 1


class Engine:
    """The host's Docker engine, with the files of an engine that this program started."""

    def __init__(self, state: Path, runtime: Path, options: Sequence[str] = ()) -> None:
        self.runtime_source = runtime
        # The copy is beside the engine's files, because a checkout may be removed while its containers exist.
        self.runtime = state / runtime.name
        self.options = options  # additional options for a dockerd that is started here
        self.exec_root = Path("/var/run/docker")
        self.config = state / "daemon.json"
        self.log = state / "dockerd.log"
        self.pid_file = state / "dockerd.pid"

    def answers(self) -> bool:
        """Return whether an engine answers on this host's socket."""
        if not os.path.exists(DOCKER):
            return False
        return docker("version", "--format", "{{.Server.Version}}", check=False, timeout=20).returncode == 0

    def own_pid(self) -> int | None:
        """Return the process id of the dockerd that this program started, if it still runs."""
        try:
            pid = int(self.pid_file.read_text())
        except (OSError, ValueError):
            return None
        return pid if self._runs(pid) else None

    def _runs(self, pid: int) -> bool:
        """Return whether a process is this program's dockerd and is running."""
        try:
            return str(self.config).encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            return False

    def start(self, console: Console) -> None:
        """Start an engine for this rack's containers, unless one runs that can start them."""
        self._put_runtime()
        if not self.answers():
            self._launch(console)
        if wrapper_needed():
            runtimes = json.loads(docker_text("info", "--format", "{{json .Runtimes}}"))
            if RUNTIME not in runtimes:
                raise RackError(
                    "root has no CAP_SYS_RESOURCE here, and the running engine lacks the runtime that works "
                    "without it. Add to its daemon.json and restart it:\n"
                    f'  {{"runtimes": {{"{RUNTIME}": {{"path": "{self.runtime}"}}}}}}\n'
                    "or stop it: this program then starts its own"
                )

    def _put_runtime(self) -> None:
        """Copy the runtime to the folder where every checkout's engine finds it."""
        self.runtime.parent.mkdir(parents=True, exist_ok=True)
        draft = self.runtime.with_suffix(".new")
        shutil.copy(self.runtime_source, draft)
        draft.replace(self.runtime)

    def _launch(self, console: Console) -> None:
        """Start dockerd with the rack's own files, and wait until it answers."""
        self.config.write_text(
            json.dumps({"log-level": "warn", "runtimes": {RUNTIME: {"path": str(self.runtime)}}}, indent=1)
            + "\n"
        )
        if self.own_pid() is None:
            # After a crash its number may belong to another process, and dockerd would refuse to start.
            self.pid_file.unlink(missing_ok=True)
            self._forget_dead_containerd()
        with console.step("dockerd", f"starting dockerd (its log: {self.log})"), self.log.open("ab") as log:
            process = subprocess.Popen(
                [
                    DOCKERD,
                    "--config-file",
                    str(self.config),
                    "--pidfile",
                    str(self.pid_file),
                    "--host",
                    SOCKET,
                    "--exec-root",
                    str(self.exec_root),
                    # A killed rack stays down until a command starts it. Its nodes can still reboot.
                    "--restart=false",
                    *self.options,
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                cwd="/",
            )
            deadline = time.monotonic() + 60
            while not self.answers():
                if process.poll() is not None or time.monotonic() > deadline:
                    tail = "\n  ".join(self.log.read_text(errors="replace").splitlines()[-8:])
                    raise RackError(f"dockerd does not answer; the end of {self.log}:\n  {tail}")
                time.sleep(0.2)

    def _forget_dead_containerd(self) -> None:
        """Remove containerd's old pid file.

        dockerd would wait for that process, even if it is a zombie or another program.
        """
        pid_file = self.exec_root / "containerd" / "containerd.pid"
        try:
            command = Path(f"/proc/{int(pid_file.read_text())}/cmdline").read_bytes()
        except (OSError, ValueError):
            command = b""
        if b"containerd" not in command:
            pid_file.unlink(missing_ok=True)

    def stop(self, console: Console) -> None:
        """Stop the engine if this program started it, unless it has other containers than the rack's."""
        pid = self.own_pid()
        if pid is None:
            return
        others = docker_text("ps", "--quiet")
        if others:
            console.say("dockerd is left running: it has containers that are not the rack's")
            return
        os.kill(pid, signal.SIGTERM)
        deadline = time.monotonic() + 60
        # Check the process, because its pid file disappears earlier, and dockerd hangs if its folders
        # are removed then.
        while self._runs(pid):
            if time.monotonic() > deadline:
                raise RackError(
                    f"dockerd (process {pid}) did not end within 60 s after SIGTERM; see {self.log}"
                )
            time.sleep(0.2)
        console.say("dockerd, which this program had started, is stopped")
