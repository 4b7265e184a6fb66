"""Hear which machines tell who they are, and write down which is which node's."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail, AnsibleConnectionFailure
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from rackproof.core.hostlist import compress_hostlist
from rackproof.jobs.reimage import boot_reports, discovery
from rackproof.jobs.reimage.bmc import BmcError

PAUSE_S = 2.0
display = Display()


class ActionModule(ActionBase):
    """Documented in plugins/modules/rackproof_reimage_hear.py."""

    TRANSFERS_FILES = False
    _requires_connection = True

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the nodes that were matched, and what is to be seen to."""
        super().run(tmp, task_vars)
        _, options = self.validate_argument_spec(
            {
                "folder": {"type": "path", "required": True},
                "nodes": {"type": "list", "elements": "str", "required": True},
                "macs": {"type": "list", "elements": "str", "default": []},
                "file": {"type": "path", "required": True},
                "seconds": {"type": "int", "required": True},
            }
        )
        if self._task.check_mode:
            return {"changed": False, "skipped": True, "msg": "nobody is heard in check mode"}
        hosts = (task_vars or {})["hostvars"]
        nodes = {str(name): discovery.Known.of(hosts[name]) for name in options["nodes"]}
        named = {str(mac).lower().replace("-", ":") for mac in options["macs"]}
        try:
            # Before anybody is switched on for nothing.
            discovery.kept(Path(options["file"]))
            heard = self._hear(options["folder"], nodes, named, time.monotonic() + options["seconds"])
            found = _match(heard, nodes)
            changed = bool(found.variables) and discovery.keep(Path(options["file"]), found.variables)
        except discovery.DiscoveryError as error:
            raise AnsibleActionFail(str(error)) from error
        silent = sorted(named - set(heard))
        many = [f"more than {boot_reports.MOST} machines told: the others were not read"]
        plain = found.plain()
        plain["remarks"] += [f"did not tell who it is: {mac}" for mac in silent]
        plain["problems"] += many if len(heard) >= boot_reports.MOST else []
        plain["gates"] = plain["gates"] or len(heard) >= boot_reports.MOST
        return {"changed": changed, **plain, "hardware": _hardware(heard, found)}

    def _hear(
        self, folder: str, nodes: dict[str, discovery.Known], named: set[str], until: float
    ) -> dict[str, boot_reports.Told | BmcError]:
        """Ask the host who has told, until all that are awaited have, or until the time is over."""
        heard: dict[str, boot_reports.Told | BmcError] = {}
        while True:
            new = [
                mac
                for mac in boot_reports.listed(self._ask(boot_reports.list_command(folder)))
                if mac not in heard
            ]
            new = new[: min(boot_reports.AT_ONCE, boot_reports.MOST - len(heard))]
            if new:
                heard |= boot_reports.told(self._ask(boot_reports.read_command(folder, new)), new)
                left = _left(heard, nodes, named)
                for mac in new:
                    one = heard[mac]
                    words = str(one) if isinstance(one, BmcError) else f"{mac}: {_who(one)}"
                    display.display(f"told: {words}")
                display.display(f"left: {compress_hostlist(left)}" if left else "left: nobody")
                if not left or len(heard) >= boot_reports.MOST:
                    return heard
            elif time.monotonic() >= until:
                return heard
            else:
                time.sleep(PAUSE_S)

    def _ask(self, command: str) -> str:
        """Return what a command says on the host; nothing while the host cannot be reached."""
        try:
            done = self._low_level_execute_command(command)
        except AnsibleConnectionFailure as error:
            display.warning(f"cannot be asked who told: {error}")
            self._connection.close()
            return ""
        if done["rc"]:
            raise AnsibleActionFail(
                f"what machines tell cannot be read: {done['stderr'].strip()[-300:]}: is their time over?"
            )
        return str(done["stdout"])


def _match(
    heard: dict[str, boot_reports.Told | BmcError], nodes: dict[str, discovery.Known]
) -> discovery.Discovered:
    answers = {mac: one if isinstance(one, BmcError) else (one.about,) for mac, one in heard.items()}
    return discovery.match(answers, nodes, protocol="boot")


def _left(
    heard: dict[str, boot_reports.Told | BmcError], nodes: dict[str, discovery.Known], named: set[str]
) -> list[str]:
    """Return who is still awaited: the MAC addresses that were named, or else nodes."""
    if named:
        return sorted(named - set(heard))
    found = _match(heard, nodes).variables
    return [name for name in discovery.awaited(nodes) if name not in found]


def _who(one: boot_reports.Told) -> str:
    return ", ".join(
        part for part in (one.about.model, f"serial number {one.about.serial or 'none'}") if part
    )


def _hardware(heard: dict[str, boot_reports.Told | BmcError], found: discovery.Discovered) -> list[str]:
    """Return what whoever writes reimage_disk has to know, node by node."""
    lines = []
    for name, variables in sorted(found.variables.items()):
        one = heard[variables["reimage_mac"]]
        if isinstance(one, boot_reports.Told):
            lines.append(f"{name}: disks: {'; '.join(one.disks) or 'none'}")
            lines.append(f"{name}: interfaces: {boot_reports.links_in_words(one.about)}")
    return lines
