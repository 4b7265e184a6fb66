"""What machines tell of themselves that booted without an order (``rackproof-write-image --tell``).

It lies in a folder of the host that they boot from, a file for each MAC address. Whoever is in that network
can write there: how many, how much and which characters is bounded here, and nothing read becomes a name.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from rackproof.core.errors import RackproofError
from rackproof.core.text import sanitize, size
from rackproof.jobs.reimage.bmc import About, BmcError

MOST = 1024
"""Machines that are read in one attempt."""
AT_ONCE = 16
"""Machines that are read by one command."""
MOST_BYTES = 64 * 1024
"""Of one machine; the host takes no more."""
MOST_SHOWN = 64
"""Disks, and interfaces, of one machine."""
_FILE = re.compile(r"((?:[0-9a-f]{2}-){5}[0-9a-f]{2})\.json")
_MAC = re.compile(r"[0-9a-f]{2}(?::[0-9a-f]{2}){5}")


class TellingError(RackproofError):
    """Nobody can tell; the message says why."""


@dataclass(frozen=True)
class Told:
    """What a machine told: who it is, and its disks in words."""

    about: About
    disks: tuple[str, ...] = ()


def list_command(folder: str) -> str:
    """Return the shell command that lists who has told."""
    return f"cd {shlex.quote(folder)} && ls -1 | head -n {4 * MOST}"


def listed(text: str) -> list[str]:
    """Return the MAC addresses that have told; what is called otherwise does not count."""
    names = (_FILE.fullmatch(line) for line in text.splitlines())
    return [found[1].replace("-", ":") for found in names if found]


def read_command(folder: str, macs: Iterable[str]) -> str:
    """Return the shell command that shows what machines told, one line for each."""
    names = " ".join(mac.replace(":", "-") for mac in macs)
    each = f'echo "$one" $(head -c {MOST_BYTES + 1} "$one.json" | base64 | tr -d "\\n")'
    return f"cd {shlex.quote(folder)} && for one in {names}; do {each}; done"


def told(text: str, macs: Iterable[str]) -> dict[str, Told | BmcError]:
    """Return what each of these machines told, or why it cannot be read."""
    lines = dict(line.split(" ", 1) for line in text.splitlines() if " " in line)
    return {mac: _one(mac, lines.get(mac.replace(":", "-"), "")) for mac in macs}


def _one(mac: str, encoded: str) -> Told | BmcError:
    try:
        data = base64.b64decode(encoded, validate=True)
        if len(data) > MOST_BYTES:
            return BmcError(f"{mac}: it tells more than {MOST_BYTES} bytes")
        return read(mac, json.loads(data))
    except (binascii.Error, ValueError, RecursionError):
        return BmcError(f"{mac}: what it tells cannot be read")


def read(mac: str, said: Any) -> Told | BmcError:
    """Return what a machine told that booted by this MAC address.

    Args:
        mac: The MAC address.
        said: Anything.
    """
    if not isinstance(said, dict):
        return BmcError(f"{mac}: what it tells cannot be read")
    macs = said.get("macs")
    links: dict[str, bool | None] = {}
    for name, up in list(macs.items())[:MOST_SHOWN] if isinstance(macs, dict) else []:
        if _MAC.fullmatch(name):
            links[name] = up if isinstance(up, bool) else None
    if mac not in links:
        return BmcError(f"{mac}: it tells of no network interface with this address")
    makers = (_word(said.get("manufacturer")), _word(said.get("model")))
    disks = said.get("disks")
    about = About(
        serial=_word(said.get("serial")), model=" ".join(one for one in makers if one), power="On", macs=links
    )
    shown = [_disk(one) for one in disks[:MOST_SHOWN]] if isinstance(disks, list) else []
    return Told(about, tuple(one for one in shown if one))


def _word(value: Any, limit: int = 100) -> str:
    return sanitize(value, limit).strip() if isinstance(value, str) else ""


def _disk(one: Any) -> str:
    """Return a disk as whoever writes ``reimage_disk`` has to know it."""
    if not isinstance(one, dict):
        return ""
    count, serial = one.get("bytes"), _word(one.get("serial"))
    large = size(count) if type(count) is int and 0 < count < 2**63 else "no size"
    parts = [f"serial {serial}" if serial else "no serial number", large]
    parts += [_word(one.get("by_path"), 200)]
    return f"{_word(one.get('path')) or 'no path'} ({', '.join(part for part in parts if part)})"


def links_in_words(about: About) -> str:
    """Return a machine's interfaces with their links."""
    words = {True: "link", False: "no link", None: "link not told"}
    return ", ".join(f"{mac} ({words[up]})" for mac, up in about.macs.items())
