#!/usr/bin/env python3
"""Start, stop and disturb the test rack, a small datacentre of containers on this machine."""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from driver import cache, overlay
from driver.claim import changing, connected_addresses, refuse_if_claimed
from driver.console import Console
from driver.engine import Engine, docker, install_packages
from driver.faults import (
    MACHINE,
    hardware_faults,
    read_faults,
    silent_on_purpose,
    switch_hardware,
    switch_machine,
)
from driver.images import RELEASES, Images, overlay_tar
from driver.layout import RACK_GROUP, Found, Host, RackError, foreign_hosts, plan, read_layout
from driver.nodes import Nodes, answers, in_parallel

HOME = Path(__file__).resolve().parent
CHECKOUT = HOME.parent
STATE = CHECKOUT / ".rackproof" / "rack"
CACHE = cache.folder()


class Rack:
    """The commands of rack.py, one method for each."""

    def __init__(self, release: str) -> None:
        self.console = Console(STATE / "timings.json")
        self.layout = read_layout((CHECKOUT / "inventory" / "hosts.yml").read_text())
        self.mirror = STATE / "mirror"  # a link into the cache
        self.engine = Engine(CACHE / "engine", HOME / "node" / "runc-rack")
        self.nodes = Nodes(self.layout, STATE, self.console)
        self.images = Images(HOME, CACHE, self.console, release)

    def up(self, nodes: int | None, also: list[str]) -> int:
        """Start the missing hosts."""
        wanted = self.layout.wanted(nodes, also)
        # pip fetches moto. Debian's Python lacks pip, and the Python of `make venv` includes it.
        install_packages(self.console, () if importlib.util.find_spec("pip") else ("python3-pip",))
        self.engine.start(self.console)
        self.nodes.raise_inotify()
        found = self._found()
        self.build_mirror()
        faults = read_faults(list(found))
        silent = {name for name, one in found.items() if silent_on_purpose(faults[name], one.state)}
        todo = plan(wanted, found, silent)
        expected = self.console.expected(f"create-{len(todo.create)}")
        if expected is not None:
            self.console.say(f"{len(todo.create)} hosts to start, about {expected:.0f} s")
        outdated = self._outdated_services(found)
        new = {host.name: host for host in [*todo.create, *todo.recreate, *outdated]}
        self._bring_up([*new.values()], [host for host in todo.start if host.name not in new])
        published = self.nodes.publish()
        if overlay.lay(CHECKOUT):
            path = overlay.place(CHECKOUT).relative_to(CHECKOUT)
            self.console.say(f"{path} has the test rack's values, until `make rack-down`")
        self.nodes.wait([host for host in wanted if host.name not in silent])
        self.fill_registry()
        if todo.beyond:
            self.console.say(f"not requested, but kept: {', '.join(todo.beyond)}")
        if silent:
            self.console.say(f"no answer, because a fault is on: {', '.join(sorted(silent))}")
        self._report_older(found)
        if todo.complete and not published and not outdated:
            self.console.say(f"nothing to do: {len(wanted)} hosts run")
        else:
            self.console.say(f"the rack is up: {len(wanted)} hosts; try `ansible {RACK_GROUP} -m ping`")
        return 0

    def _found(self) -> dict[str, Found]:
        """Return this checkout's containers. Remove the containers of another checkout.

        Raises:
            RackError: This machine is connected to a container of another checkout.
        """
        found = self.nodes.found()
        home = str(self.nodes.state)
        foreign = foreign_hosts(found, home)
        if foreign:
            self._refuse_if_connected(foreign)
            words = f"removing {len(foreign)} hosts that another checkout left ({foreign[0].home})"
        elif found and not self.nodes.key.exists():
            words = f"removing {len(found)} hosts that an earlier checkout at this place left"
        else:
            return found
        self.console.say(f"{words} ...")
        self.nodes.down()
        self.nodes.withdraw()
        self._take_away_left(foreign)
        return {}

    def _take_away_left(self, hosts: list[Found]) -> bool:
        """Remove the values from the checkouts of removed hosts. Return whether there were any."""
        left = overlay.take_away_left(one.home for one in hosts)
        for path in left:
            self.console.say(f"removed {path}, the values of the rack that is gone")
        return bool(left)

    def _outdated_services(self, found: dict[str, Found]) -> list[Host]:
        """Return the services' host if it serves another mirror than the present one.

        Its mount stays the folder of the mirror with which it was made, which lacks newer packages.
        """
        hosts = [host for host in self.layout.everyone if host.kind == "services" and host.name in found]
        outdated = [host for host in hosts if self.nodes.mirror_of(host) != str(self.mirror.resolve())]
        for host in outdated:
            self.console.say(
                f"{host.name} serves an older mirror, so it is made again: its registry is filled, "
                "and what its S3 held is lost"
            )
        return outdated

    def _refuse_if_connected(self, hosts: list[Found]) -> None:
        """Raise RackError if this machine is connected to a host, because the rack is then in use."""
        names = {self.layout.host(one.name).address: one.name for one in hosts if self.layout.has(one.name)}
        open_to = connected_addresses(Path("/proc/net/tcp").read_text(), names)
        if open_to:
            raise RackError(
                f"the rack of another checkout ({hosts[0].home}) is in use: there is a connection to "
                f"{names[open_to[0]]}. End what runs there and wait a minute, as ssh keeps connections; "
                "or remove the rack: make rack-down"
            )

    def _report_older(self, found: dict[str, Found]) -> None:
        """Print a message if nodes have older fakes, or another release, than a new node would have."""
        image = self.images.node()
        older = sorted(
            name
            for name, one in found.items()
            if self.layout.host(name).kind == "node" and one.image != image
        )
        if older:
            self.console.say(
                f"{len(older)} nodes have older fakes or another release than a new one would have, from "
                f"{older[0]} on: `rack.py refresh` renews the fakes, `rack.py renew {older[0]}` the node"
            )

    def _bring_up(self, create: list[Host], start: list[Host]) -> None:
        """Make the hosts in ``create``, and start the stopped hosts in ``start``."""
        if create:
            self.nodes.make_keys(create)
            images = {"node": self.images.node()}
            images["controller"] = images["node"]
            mounts = {}
            if any(host.kind == "services" for host in create):
                images["services"] = self.images.services()
                mounts["services"] = [f"type=bind,source={self.mirror.resolve()},target=/srv/mirror,readonly"]
            self.nodes.make_network()

            def make(host: Host) -> None:
                self.nodes.remove(host)
                self.nodes.create(host, images[host.kind], mounts.get(host.kind, []))

            with self.console.step(f"create-{len(create)}", f"starting {len(create)} new hosts"):
                in_parallel(self.console, "started", create, make)
        if start:
            with self.console.step(f"start-{len(start)}", f"starting {len(start)} hosts that had stopped"):
                in_parallel(self.console, "started", start, self.nodes.start)

    def build_mirror(self) -> None:
        """Build the outdated parts of the mirror, which the services' host serves on port 80."""
        self.images.node_tar()
        tars = [tar for tar in (CACHE / f"root-{release}.tar" for release in RELEASES) if tar.is_file()]
        # The folder is the same for all releases, because the running services' host mounts it.
        with cache.folder_for(CACHE, "mirror", cache.tree_digest(HOME / "mirror")) as kept:
            command = [sys.executable, str(HOME / "mirror" / "build.py"), "--out", str(kept / "mirror")]
            for tar in tars:
                command += ["--rootfs", str(tar)]
            with self.console.step("mirror", "building the mirror where it is out of date"):
                if subprocess.run(command, check=False).returncode != 0:
                    raise RackError("the mirror cannot be built; see its builder's output above")
            for name in ("mirror", "mirror.asc"):
                cache.link(STATE / name, kept / name)

    def fill_registry(self) -> None:
        """Push the fakes of NGC's images, and serve the files that their data scripts fetch."""
        services = next(host.name for host in self.layout.everyone if host.kind == "services")
        with cache.folder_for(CACHE, "images", cache.tree_digest(HOME / "images")) as images:
            steps = [
                ("build.py", "--out", str(images)),
                ("push.py", "--registry", f"{services}:5000", "--images", str(images)),
            ]
            with self.console.step("images", "filling the registry where it lacks an image"):
                for program, *words in steps:
                    command = [sys.executable, str(HOME / "images" / program), *words]
                    if subprocess.run(command, check=False).returncode != 0:
                        raise RackError(
                            f"the registry cannot be filled; see the output of images/{program} above"
                        )
                cache.link(STATE / "images", images)
                shutil.copytree(images / "downloads", self.mirror / "mlcommons", dirs_exist_ok=True)

    def prepare(self) -> None:
        """Make the missing parts of a release other than the default.

        This takes minutes, so it is done before the rack is locked.
        """
        if self.images.release != RELEASES[0]:
            install_packages(self.console)
            self.build_mirror()

    def renew(self, names: list[str]) -> int:
        """Replace hosts by new ones, on which nothing is installed."""
        hosts = [self.layout.host(name) for name in names]
        install_packages(self.console)
        self.engine.start(self.console)
        self.nodes.raise_inotify()
        self._found()
        self._bring_up(hosts, [])
        self.nodes.publish()
        self.nodes.wait(hosts)
        self.console.say(f"bare again: {', '.join(names)}")
        return 0

    def refresh(self) -> int:
        """Copy this checkout's fakes onto the running nodes and controllers, which continue to run."""
        files = overlay_tar(self.images.rack_overlay())
        hosts = [host for host in self.nodes.present() if host.kind != "services"]
        in_parallel(self.console, "refreshed", hosts, lambda host: self.nodes.put(host, files))
        return 0

    def down(self, purge: bool, names: Sequence[str] = ()) -> int:
        """Remove the rack, with ``purge`` also the kept files. With ``names``, remove only these hosts."""
        hosts = [self.layout.host(name) for name in names]
        if hosts:
            in_parallel(self.console, "removed", hosts, self.nodes.remove)
            self.nodes.publish()
            return 0
        number, foreign = 0, []
        if self.engine.answers():
            foreign = foreign_hosts(self.nodes.found(), str(self.nodes.state))
            number = self.nodes.down()
        changed = self.nodes.withdraw()
        changed |= self._take_away_left(foreign)
        changed |= overlay.take_away(CHECKOUT)
        self.console.say(
            f"the rack is down: {number} hosts removed" if number or changed else "there was no rack"
        )
        if self.engine.answers():
            if purge:
                self.nodes.purge()
            self.engine.stop(self.console)
        if purge:
            # Remove root file systems, mirror and keys last, because the engine's folder is among them.
            shutil.rmtree(self.nodes.state, ignore_errors=True)
            shutil.rmtree(CACHE, ignore_errors=True)
        return 0

    def status(self, as_json: bool) -> int:
        """Show every host with a container. Return 3 if there is none."""
        found = self.nodes.found() if self.engine.answers() else {}
        faults = read_faults(list(found))
        hosts = [host for host in self.layout.everyone if host.name in found]
        with ThreadPoolExecutor(max(1, len(hosts))) as pool:
            heard = list(pool.map(lambda host: answers(host.address), hosts))
        rows = [
            dataclasses.asdict(host)
            | {"state": found[host.name].state, "ssh": ssh, "faults": faults.get(host.name, {})}
            for host, ssh in zip(hosts, heard, strict=True)
        ]
        if as_json:
            print(json.dumps({"hosts": rows}, indent=1))
        elif rows:
            form = "{:<16}{:<15}{:<12}{:<8}{:<12}{:<9}{}"
            print(form.format("host", "address", "kind", "sku", "state", "ssh", "faults"))
            for row in rows:
                ssh = "answers" if row["ssh"] else "SILENT"
                words = ", ".join(sorted(row["faults"])) or "-"
                sku = row["sku"] or "-"
                print(form.format(row["name"], row["address"], row["kind"], sku, row["state"], ssh, words))
        else:
            print("no rack runs here; `make rack` starts one")
        return 0 if rows else 3

    def fault(self, options: argparse.Namespace) -> int:
        """Switch a fault of a host, list its faults, or list all faults that exist."""
        if options.list or not options.name:
            list_faults()
            return 0
        host = self.layout.host(options.name)
        if options.fault is None:
            list_faults_of(host)
            return 0
        if host.name not in self.nodes.found():
            raise RackError(f"{host.name} does not exist; `make rack-status` lists the hosts")
        switch_fault(host, options)
        self.console.say(f"{host.name}: {options.fault} is {'off' if options.off else 'on'}")
        return 0

    def execute(self, name: str, command: list[str]) -> int:
        """Run a command on a host without ssh."""
        host = self.layout.host(name)
        done = docker("exec", host.name, *command, check=False, timeout=600)
        sys.stdout.buffer.write(done.stdout)
        sys.stderr.buffer.write(done.stderr)
        return done.returncode


def list_faults() -> None:
    """Print the name and description of every fault."""
    for name, text in {**hardware_faults(HOME), **{name: one.text for name, one in MACHINE.items()}}.items():
        print(f"{name:<18} {text}")


def list_faults_of(host: Host) -> None:
    """Print the faults that are on at a host."""
    for name, settings in sorted(read_faults([host.name])[host.name].items()):
        print(f"{name:<18} {json.dumps(settings)}")


def switch_fault(host: Host, options: argparse.Namespace) -> None:
    """Switch a fault of a host (MACHINE) or of its fake hardware.

    Raises:
        RackError: The fault does not exist.
    """
    given = {
        name: value
        for name in ("gpu", "hca", "number", "component", "cpus", "seconds")
        if (value := getattr(options, name)) is not None
    }
    if options.fault in MACHINE:
        switch_machine(host, options.fault, not options.off, given)
    elif options.fault in hardware_faults(HOME):
        words = [word for name, value in given.items() for word in (f"--{name}", str(value))]
        switch_hardware(host, options.fault, not options.off, words)
    else:
        raise RackError(f"{options.fault}: no such fault; `rack.py fault --list` shows them")


def arguments() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(prog="rack.py", description=__doc__)
    parser.add_argument("--release", choices=RELEASES, default=RELEASES[0], help="Debian of new nodes")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    up = commands.add_parser("up", help="start the rack, or complete a partial one")
    up.add_argument(
        "--nodes", type=int, metavar="N", help="the first N nodes only (default: the inventory's)"
    )
    up.add_argument("--also", default="", metavar="SKU,SKU", help="also nodes of other SKUs: b200, h100")
    renew = commands.add_parser("renew", help="remove hosts and start them bare")
    renew.add_argument("names", nargs="+", metavar="HOST")
    commands.add_parser("refresh", help="install this checkout's fakes on running hosts")
    down = commands.add_parser("down", help="remove the rack and its names from this machine")
    down.add_argument("names", nargs="*", metavar="HOST", help="only these")
    down.add_argument("--purge", action="store_true", help="also remove the files kept for the next rack")
    status = commands.add_parser("status", help="show the hosts")
    status.add_argument("--json", action="store_true", dest="as_json")
    fault = commands.add_parser("fault", help="switch a fault on or off; without one, show those that are on")
    fault.add_argument("name", nargs="?", metavar="HOST")
    fault.add_argument("fault", nargs="?", metavar="FAULT")
    fault.add_argument("--off", action="store_true", help="switch it off")
    fault.add_argument("--list", action="store_true", help="list all faults")
    fault.add_argument(
        "--gpu", type=int, metavar="I", help="the GPU with the fault (default: 0, or with --off all)"
    )
    fault.add_argument(
        "--hca", type=int, metavar="I", help="the network card with the fault (default: 0, or with --off all)"
    )
    fault.add_argument("--number", type=int, help="number of the XID (default 79)")
    fault.add_argument(
        "--component", choices=("driver", "fabricmanager"), help="component that is older (default driver)"
    )
    fault.add_argument("--cpus", type=float, help="CPUs that slow-node leaves (default 0.25)")
    fault.add_argument("--seconds", type=float, help="offset of clock-skew (default 300; may be negative)")
    execute = commands.add_parser("exec", help="run a command on a host without ssh")
    execute.add_argument("name", metavar="HOST")
    execute.add_argument("words", nargs=argparse.REMAINDER, metavar="-- COMMAND")
    return parser


def check_machine() -> None:
    """Raise RackError if this machine cannot run a rack."""
    if sys.platform != "linux":
        raise RackError("the rack is made of Linux containers: it needs a Linux machine")
    if os.geteuid() != 0:
        raise RackError("the rack needs root (containers, /etc/hosts): sudo make rack")


def main(argv: list[str]) -> int:
    """Run the command of the command line. Return the exit status."""
    options = arguments().parse_args(argv)
    try:
        check_machine()
        rack = Rack(options.release)
        if options.command == "status":
            return rack.status(options.as_json)
        if options.command == "exec":
            words = options.words[1:] if options.words[:1] == ["--"] else options.words
            return rack.execute(options.name, words or ["true"])
        work: dict[str, Callable[[], int]] = {
            "up": lambda: rack.up(options.nodes, [sku for sku in options.also.split(",") if sku]),
            "renew": lambda: rack.renew(options.names),
            "fault": lambda: rack.fault(options),
            "refresh": rack.refresh,
            "down": lambda: rack.down(options.purge, options.names),
        }
        refuse_if_claimed()
        if options.command == "renew":
            rack.prepare()
        with changing(rack.console):
            return work[options.command]()
    except RackError as error:
        print(f"rack: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("rack: interrupted; the same command continues from here", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
