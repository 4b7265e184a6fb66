"""Build the user-data of Ubuntu's installer (subiquity) for a node, and check it before the node boots.

Role netboot calls :func:`build_user_data` through the filter ``autoinstall_user_data``, and puts the text on
the boot host. User-data is the file that cloud-init downloads. An order names the machine to install and
its disk. User-data looks like this::

    #cloud-config
    {"autoinstall": {"early-commands": [...], "network": {...}, "storage": {...}, "version": 1, ...}}

The installer's own schema accepts any storage and ignores unknown keys. This module therefore allows only a
few keys, and one disk. The first early command unpacks a program. The second, ``check``, compares the machine
with the order, and finds the disk by its serial number or path. Until then, the instructions name no real
disk, so an installer that skips the commands writes nothing.
"""

from __future__ import annotations

import base64
import io
import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, model_validator

from rackproof.core.records import Record

DISK: Literal["/dev/rackproof-names-this-disk"] = "/dev/rackproof-names-this-disk"
"""Placeholder for the disk's path. The program on the machine finds the disk, and writes its path there.

The path contains no wildcard such as ``*``, because the installer would match it with other disks.
"""
PLACE = "/run/rackproof"
"""Folder on the machine into which the installer's first early command puts the program."""
PROGRAMS = {"__main__.py": "rackproof-autoinstall", "write_image.py": "rackproof-write-image"}
"""The archive's programs: the name in the archive, and the file of role netboot with its content."""

_Text = Annotated[str, Field(min_length=1)]
_Commands = tuple[str | tuple[_Text, ...], ...]


class _Part(Record):
    """The base of an autoinstall file's parts, whose keys are written with hyphens."""

    model_config = ConfigDict(alias_generator=lambda name: name.replace("_", "-"), populate_by_name=True)


class Match(_Part):
    """The selection of the disk that the installer writes."""

    path: Literal["/dev/rackproof-names-this-disk"] = DISK


class Layout(_Part):
    """The layout of the one disk, with a partition for firmware and the rest for the system."""

    name: Literal["direct"] = "direct"
    match: Match = Match()


class StorageLayout(_Part):
    """The layout of the machine's storage."""

    layout: Layout = Layout()


class Ssh(_Part):
    """The SSH settings. The keys are in user-data, for each user."""

    install_server: Literal[True] = True
    allow_pw: Literal[False] = False


class Network(_Part):
    """The network settings, in netplan's notation, during and after the installation."""

    version: Literal[2]
    renderer: Literal["networkd", "NetworkManager"] = "networkd"
    ethernets: dict[str, dict[str, Any]] = Field(default={})
    bonds: dict[str, dict[str, Any]] = Field(default={})
    bridges: dict[str, dict[str, Any]] = Field(default={})
    vlans: dict[str, dict[str, Any]] = Field(default={})


class Kernel(_Part):
    """The kernel, as a package or a flavor."""

    package: _Text | None = None
    flavor: _Text | None = None

    @model_validator(mode="after")
    def _one(self) -> Kernel:
        """Refuse a kernel with both a package and a flavor, or with neither."""
        if (self.package is None) == (self.flavor is None):
            raise ValueError("give either package or flavor")
        return self


class UbuntuSource(_Part):
    """The source on the medium from which the system is installed."""

    id: _Text
    # This is the only key in this module that subiquity spells with an underscore.
    search_drivers: bool = Field(default=False, alias="search_drivers")


class Drivers(_Part):
    """The switch for the installer's drivers. It is off by default: provision.yml installs drivers."""

    install: bool = False


class ExtraOptions(_Part):
    """The keys of Ubuntu's format that an operator may add (``netboot_autoinstall``).

    They choose, for example, packages, drivers, kernel and locale. Any other key is refused. Disk layout,
    network, users, commands and the address for reports come only from Rackproof.
    """

    apt: dict[str, Any] | None = None
    debconf_selections: _Text | None = None
    drivers: Drivers | None = None
    kernel: Kernel | None = None
    locale: _Text | None = None
    packages: tuple[_Text, ...] | None = None
    proxy: _Text | None = None
    source: UbuntuSource | None = None
    timezone: _Text | None = None
    updates: Literal["security", "all"] | None = None


class Autoinstall(ExtraOptions):
    """The complete instructions for the installer."""

    version: Literal[1] = 1
    early_commands: _Commands
    late_commands: _Commands
    error_commands: _Commands
    # The machine must not reboot. The controller waits until it is off, and switches it on.
    shutdown: Literal["poweroff"] = "poweroff"
    storage: StorageLayout = StorageLayout()
    ssh: Ssh = Ssh()
    network: Network
    user_data: dict[str, Any]


def build_program(files: Path, order: Mapping[str, Any]) -> bytes:
    """Return the archive that Python runs on the machine. The same order and programs give the same bytes.

    Args:
        files: The files of role netboot.
        order: The keys ``node``, ``serial`` and ``disk`` of the machine, ``placeholder`` (:data:`DISK`), and
            ``report``, the URL for reports.

    Raises:
        OSError: A file cannot be read.
    """
    contents = {name: (files / source).read_bytes() for name, source in PROGRAMS.items()}
    contents["order.json"] = json.dumps(dict(order), sort_keys=True).encode()
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in sorted(contents):
            # ZipInfo uses the year 1980. With the current time, the same order would give other bytes.
            archive.writestr(zipfile.ZipInfo(name), contents[name], zipfile.ZIP_DEFLATED, 9)
    return packed.getvalue()


def build_user_data(
    *,
    entry: Mapping[str, Any],
    report: str,
    system: Mapping[str, Any],
    network: Mapping[str, Any],
    files: Path,
    more: Mapping[str, Any] | None = None,
) -> str:
    """Return the user-data of a node's installer in the form that cloud-init downloads.

    Args:
        entry: The node's entry of role netboot, with ``node`` (name), ``serial``, ``disk`` (the properties
            that select the disk) and ``wipe``, which must be empty.
        report: The URL for the node's boot report.
        system: The user-data for the first boot of the new system.
        network: The network settings of the node.
        files: The files of role netboot.
        more: The operator's additions, in the form of :class:`ExtraOptions`.

    Raises:
        ValueError: The instructions contain a key that is not allowed (the message names the key), or other
            disks should be emptied (``wipe``).
        OSError: A program cannot be read.
    """
    if entry.get("wipe"):
        raise ValueError(
            "the installer empties no other disk: remove reimage_wipe, or set reimage_method=image"
        )
    order = {"node": entry["node"], "serial": entry["serial"], "disk": dict(entry["disk"])}
    packed = base64.b64encode(build_program(files, order | {"placeholder": DISK, "report": report})).decode()
    run = ("/usr/bin/python3", f"{PLACE}/program")
    instructions = Autoinstall(
        **ExtraOptions.model_validate(dict(more or {})).model_dump(by_alias=True, exclude_none=True),
        early_commands=(
            f"mkdir -p {PLACE} && printf %s {packed} | base64 -d > {PLACE}/program",
            (*run, "check"),
        ),
        late_commands=("curtin in-target -- ssh-keygen -A", (*run, "installed")),
        error_commands=((*run, "failed"),),
        network=Network.model_validate(dict(network)),
        user_data=dict(system),
    )
    content = instructions.model_dump(mode="json", by_alias=True, exclude_none=True)
    content["network"] = {name: value for name, value in content["network"].items() if value}
    # Cloud-init reads YAML, and every JSON text is YAML.
    return "#cloud-config\n" + json.dumps({"autoinstall": content}, sort_keys=True) + "\n"
