"""Create, start, await and remove the containers, and make their names resolve on this host.

rack.py uses this module for every command that changes or shows hosts.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import TypeVar

from driver.console import Console
from driver.engine import RUNTIME, docker, docker_text, run, wrapper_needed
from driver.images import Entry, overlay_tar
from driver.layout import (
    BRIDGE,
    GATEWAY,
    NETWORK,
    SUBNET,
    Found,
    Host,
    Layout,
    RackError,
    hosts_lines,
    ssh_config,
    with_block,
)

LABEL = "rackproof.rack"
"""Label of the rack's containers and of its network."""
HOME_LABEL = "rackproof.rack.home"
"""Label of a container with the folder of the rack to which it belongs."""
SHARED_VOLUME = "rack-shared"
ETC_HOSTS = Path("/etc/hosts")
SSH_CONFIG = Path("/etc/ssh/ssh_config.d/rackproof-rack.conf")
INOTIFY = Path("/proc/sys/fs/inotify/max_user_instances")
INOTIFY_NEEDED = 2048
"""Number of inotify instances that a full rack needs."""
# More workers are not faster, because the engine and the nodes share the machine's cores.
WORKERS = max(4, os.cpu_count() or 1)
Result = TypeVar("Result")


def in_parallel(
    console: Console, what: str, hosts: Sequence[Host], work: Callable[[Host], Result]
) -> dict[str, Result]:
    """Do the same work for many hosts at once. Return the results by host.

    Raises:
        RackError: Work failed on at least one host. The text lists every failure.
    """
    results, failures = {}, []
    with ThreadPoolExecutor(WORKERS) as pool:
        jobs = {pool.submit(work, host): host for host in hosts}
        for number, job in enumerate(as_completed(jobs), 1):
            host = jobs[job]
            try:
                results[host.name] = job.result()
            except RackError as error:
                failures.append(f"{host.name}: {error}")
            if number % 6 == 0 or number == len(hosts):
                console.say(f"  {what}: {number} of {len(hosts)}")
    if failures:
        raise RackError(
            f"{what}: {len(failures)} of {len(hosts)} failed; the same command continues from here\n  "
            + "\n  ".join(sorted(failures))
        )
    return results


def answers(address: str, timeout: float = 2) -> bool:
    """Return whether an sshd greets at that address."""
    try:
        with socket.create_connection((address, 22), timeout=timeout) as connection:
            connection.settimeout(timeout)
            return connection.recv(4) == b"SSH-"
    except OSError:
        return False


class Nodes:
    """The rack's containers on this host's engine, with their keys, network and names."""

    def __init__(self, layout: Layout, state: Path, console: Console) -> None:
        self.layout, self.state, self.console = layout, state, console
        self.key = state / "id_ed25519"
        self.known_hosts = state / "known_hosts"

    # Present state

    def found(self) -> dict[str, Found]:
        """Return the rack's containers."""
        lines = docker_text(
            "ps",
            "--all",
            "--no-trunc",
            "--filter",
            f"label={LABEL}",
            "--format",
            f'{{{{.Names}}}}\t{{{{.State}}}}\t{{{{.Image}}}}\t{{{{.Label "{HOME_LABEL}"}}}}',
        )
        rows = [line.split("\t") for line in lines.splitlines()]
        return {row[0]: Found(*row) for row in rows}

    def present(self) -> list[Host]:
        """Return the hosts with a container."""
        names = set(self.found())
        return [host for host in self.layout.everyone if host.name in names]

    @staticmethod
    def mirror_of(host: Host) -> str:
        """Return the folder of the mirror that the services' host serves, or "" if it has none."""
        form = '{{range .Mounts}}{{if eq .Destination "/srv/mirror"}}{{.Source}}{{end}}{{end}}'
        return docker_text("inspect", "--format", form, host.name).strip()

    # Keys

    def make_keys(self, hosts: Iterable[Host]) -> None:
        """Make the ssh keys of the client and each host, and the registry's key, unless they exist.

        The keys outlive the containers.
        """
        folder = self.state / "hostkeys"
        folder.mkdir(parents=True, exist_ok=True)
        self._make_key(self.key, "rackproof rack")
        for host in hosts:
            self._make_key(folder / host.name, host.name)
        secret = self.state / "ngc_key"
        if not secret.exists():
            secret.touch(mode=0o600)
            secret.write_text(secrets.token_urlsafe(24))
        owner = os.environ.get("SUDO_UID")
        if owner:
            # With `sudo make rack`, the user still runs ansible under their own account.
            for path in (self.key, secret):
                os.chown(path, int(owner), -1)

    @staticmethod
    def _make_key(path: Path, comment: str) -> None:
        """Make an ssh key, unless it exists."""
        if not path.exists():
            run(["/usr/bin/ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", str(path)])

    def host_key(self, host: Host) -> Path:
        """Return the private half of a host's key."""
        return self.state / "hostkeys" / host.name

    def _public_key(self, host: Host) -> str:
        """Return a host's public key."""
        public = self.host_key(host).with_suffix(".pub")
        # If a checkout is removed and cloned again at the same place, its rack is left without keys.
        if not public.exists():
            raise RackError(
                f"{host.name} exists, but its key {public} does not: an earlier checkout at\n"
                "  this place made it; remove that rack: testrack/rack.py down"
            )
        return " ".join(public.read_text().split()[:2])

    # Making and starting

    def make_network(self) -> None:
        """Make the network, unless it exists. It has no route to other networks."""
        there = docker("network", "inspect", "--format", "{{json .IPAM.Config}}", NETWORK, check=False)
        if there.returncode == 0:
            subnets = [one.get("Subnet") for one in json.loads(there.stdout)]
            if subnets != [SUBNET]:
                raise RackError(f"a Docker network {NETWORK!r} exists already, with {subnets}: remove it")
            return
        docker(
            *(
                "network",
                "create",
                "--internal",
                "--subnet",
                SUBNET,
                "--gateway",
                GATEWAY,
                "--label",
                f"{LABEL}=rack",
            ),
            *("--opt", f"com.docker.network.bridge.name={BRIDGE}", NETWORK),
        )

    def raise_inotify(self) -> None:
        """Raise the limit of inotify instances, because 18 systemds need more than a host's default."""
        if int(INOTIFY.read_text()) < INOTIFY_NEEDED:
            INOTIFY.write_text(f"{INOTIFY_NEEDED}\n")

    def create(self, host: Host, image: str, mounts: Sequence[str] = ()) -> None:
        """Make a host's container, give it its keys, and start it."""
        arguments = [
            "create",
            "--name",
            host.name,
            "--hostname",
            host.name,
            "--label",
            f"{LABEL}={host.kind}",
            "--label",
            f"{HOME_LABEL}={self.state}",
        ]
        arguments += ["--network", NETWORK, "--ip", host.address, "--privileged", "--cgroupns", "private"]
        arguments += ["--restart", "always", "--stop-signal", "SIGRTMIN+3", "--stop-timeout", "20"]
        arguments += [
            "--tmpfs",
            "/run:exec,mode=755",
            "--tmpfs",
            "/run/lock",
            "--tmpfs",
            "/tmp:exec,mode=1777",
        ]
        arguments += [
            "--env",
            "container=docker",
            "--env",
            f"RACK_GATEWAY={GATEWAY}",
            "--env",
            f"RACK_NAME={host.name}",
        ]
        if host.sku:
            arguments += ["--env", f"RACK_SKU={host.sku}"]
        if host.kind != "services":
            # overlay2 does not work on overlay, so Docker on the node needs a file system of its own.
            arguments += ["--volume", f"{self.volume(host)}:/var/lib/docker"]
            # A folder that all nodes share fakes the rack's parallel file system.
            arguments += ["--volume", f"{SHARED_VOLUME}:/shared"]
        for mount in mounts:
            arguments += ["--mount", mount]
        for other in self.layout.everyone:
            if other != host:
                arguments += ["--add-host", f"{other.name}:{other.address}"]
        if wrapper_needed():
            arguments += ["--runtime", RUNTIME]
        docker(*arguments, image)
        self.put(host, overlay_tar(self._own_files(host)))
        docker("start", host.name)

    @staticmethod
    def put(host: Host, files: bytes) -> None:
        """Unpack a tar file on a host."""
        docker("cp", "-", f"{host.name}:/", data=files)

    def _own_files(self, host: Host) -> dict[str, Entry]:
        """Return the files that only this host has, such as its keys."""
        key = self.host_key(host)
        files = {
            "/root/.ssh/authorized_keys": Entry(self.key.with_suffix(".pub").read_bytes(), 0o600),
            "/etc/ssh/ssh_host_ed25519_key": Entry(key.read_bytes(), 0o600),
            "/etc/ssh/ssh_host_ed25519_key.pub": Entry(key.with_suffix(".pub").read_bytes()),
        }
        if host.kind == "services":
            files["/etc/rack/registry_password"] = Entry((self.state / "ngc_key").read_bytes(), 0o600)
        return files

    @staticmethod
    def volume(host: Host) -> str:
        """Return the name of a node's volume for its own Docker."""
        return f"rack-{host.name}-docker"

    def start(self, host: Host) -> None:
        """Start a stopped or paused container."""
        docker("unpause", host.name, check=False)
        docker("start", host.name)

    def remove(self, host: Host) -> None:
        """Remove a container with its volumes."""
        docker("rm", "--force", "--volumes", host.name, check=False)
        docker("volume", "rm", "--force", self.volume(host), check=False)

    def wait(self, hosts: Sequence[Host], seconds: float = 90) -> None:
        """Wait until every host's sshd answers, or raise RackError after this number of seconds."""
        begun, told = time.monotonic(), 0.0
        waiting = list(hosts)
        while waiting:
            waiting = [host for host in waiting if not answers(host.address)]
            gone = time.monotonic() - begun
            if waiting and gone > seconds:
                names = ", ".join(host.name for host in waiting)
                raise RackError(
                    f"no sshd answers after {seconds:.0f} s on: {names}\n"
                    f"  look with: testrack/rack.py exec {waiting[0].name} -- systemctl list-jobs\n"
                    f"  make it again with: testrack/rack.py renew {waiting[0].name}"
                )
            if waiting:
                if gone - told > 5:
                    told = gone
                    self.console.say(f"  waiting for sshd on {len(waiting)} of {len(hosts)}")
                time.sleep(0.25)

    # Names on this host

    def publish(self) -> bool:
        """Make the present hosts resolvable, and add them to ssh's configuration and known hosts.

        Return whether anything was changed.
        """
        hosts = self.present()
        known = "".join(f"{host.name},{host.address} {self._public_key(host)}\n" for host in hosts)
        config = ssh_config(hosts, str(self.key), str(self.known_hosts)) if hosts else ""
        block = with_block(ETC_HOSTS.read_text(), hosts_lines(hosts))
        return any(
            [self._put(self.known_hosts, known), self._put(SSH_CONFIG, config), self._put(ETC_HOSTS, block)]
        )

    @staticmethod
    def _put(path: Path, text: str) -> bool:
        """Write a file if its text differs. Remove an empty file."""
        before = path.read_text() if path.exists() else ""
        if before == text:
            return False
        if not text:
            path.unlink()
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            # Write in place, because /etc/hosts may be a mount, which a rename cannot replace.
            path.write_text(text)
        return True

    # Taking down

    def down(self) -> int:
        """Remove all containers, volumes and networks of the rack. Return the number of hosts."""
        names = list(self.found())
        if names:
            docker("rm", "--force", "--volumes", *names, check=False)
        volumes = docker_text("volume", "ls", "--quiet", "--filter", "name=rack-").splitlines()
        ours = [name for name in volumes if name in {SHARED_VOLUME, *map(self.volume, self.layout.everyone)}]
        if ours:
            docker("volume", "rm", "--force", *ours, check=False)
        docker("network", "rm", NETWORK, check=False)
        left = list(self.found())
        if left:
            raise RackError(f"Docker did not remove: {', '.join(left)}")
        return len(names)

    def withdraw(self) -> bool:
        """Remove the rack's names from this host. Return whether there were any."""
        block = with_block(ETC_HOSTS.read_text(), [])
        return any([self._put(ETC_HOSTS, block), self._put(SSH_CONFIG, ""), self._put(self.known_hosts, "")])

    def purge(self) -> None:
        """Remove the images that remain between racks."""
        for repository in ("rackproof-rack-node", "rackproof-rack-svc", "rackproof-rack-root"):
            for image in docker_text("images", "--quiet", repository).splitlines():
                docker("rmi", "--force", image, check=False)
