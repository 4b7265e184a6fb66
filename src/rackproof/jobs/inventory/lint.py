"""Find mistakes in an inventory before a playbook runs, without contacting a node.

``rackproof lint-inventory`` and ``rackproof adopt`` call :func:`list_inventory`, which starts the program
``ansible-inventory``, and then :func:`lint_inventory`. Both functions return mistakes, for example a variable
that no role has, a value of a wrong type, or a node without a SKU. The caller can pass the checks with which
the jobs read nested values (:data:`ValueCheck`). ``rackproof evidence`` only lists the inventory. To add a
check, write a function that yields :class:`InventoryMistake`, and call the function in
:func:`lint_inventory`.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from ipaddress import IPv6Address
from pathlib import Path
from stat import S_ISCHR, S_ISDIR, S_ISREG
from typing import Any

import yaml

from rackproof.core import known_variables
from rackproof.core.child_environment import environment_of_inventory
from rackproof.core.errors import RackproofError
from rackproof.core.records import Record
from rackproof.core.text import sanitize
from rackproof.jobs.inventory.nodes import RESERVED_GROUPS, address_problem

_LIST_S = 600.0
"""Time limit for ansible-inventory in seconds. The program needed 8.3 s of a processor for 992 hosts of a
SKU, and an inventory may have 10,000 hosts."""
_NODES = "gpu_nodes"
"""Group of the nodes that the playbooks provision and judge."""
_SKU = "sku_"
"""Prefix of the group of a SKU."""
_UNIQUE = {
    "ansible_host": "address",
    "reimage_serial": "serial number",
    "reimage_bmc_address": "BMC address",
}
"""Variables whose values must differ between any two hosts, with their names in messages."""
_KINDS: Mapping[str, tuple[type, ...]] = {
    "bool": (bool,),
    "int": (int,),
    "float": (int, float),
    "list": (list,),
    "dict": (dict,),
}
"""Python's types of the values that each type of an argument spec allows. Any value fits a type that is not
listed here, such as ``str``."""
_NO_RACKS = (RESERVED_GROUPS | {"netboot"}) - {"cpu_nodes"}
"""Groups that are no racks.

A host that is only in cpu_nodes is in no group that the playbooks use, so cpu_nodes counts as a rack here.
"""
_CONNECTION = frozenset(
    f"ansible_{name}"
    for name in (
        *("host", "port", "user", "password", "connection", "python_interpreter", "shell_type"),
        *("become", "become_method", "become_user", "become_password", "become_exe", "become_flags"),
        *("ssh_private_key_file", "private_key_file", "ssh_common_args", "ssh_extra_args", "ssh_executable"),
        *("ssh_host", "ssh_port", "ssh_user", "ssh_pass", "ssh_timeout", "ssh_retries", "ssh_pipelining"),
        *("timeout", "remote_tmp", "pipelining", "host_key_checking", "ssh_host_key_checking"),
        *("docker_extra_args", "sftp_extra_args", "scp_extra_args", "ssh_transfer_method", "become_pass"),
    )
)
"""Ansible's own variables of a host. A name that is nearly one of these is a mistake that Ansible ignores."""
_HOST_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(?::[0-9]{1,5})?")
"""Pattern of a name that -l takes as one host. A number after a colon is a port. Any other colon separates
two hosts, except in an IPv6 address."""
_LEFT_OUT = re.compile(
    r"^\.|^(?:host_vars|group_vars|vars_plugins)$|(?:\.(?:pyc|pyo|swp|bak|rpm|md|txt|rst|orig|cfg|retry)|~)$"
)
"""Pattern of the names in the folder of an inventory that Ansible leaves out by default."""
_FORMS = re.compile(r"\.(?:ya?ml|json)$")
"""Pattern of the endings of files of variables. The rest of the name is the group."""
_SKIPPED = re.compile(r"\[WARNING\]: (Skipping .+)")
"""Pattern of Ansible's warning about a part of an inventory that it does not read."""
_VARIABLE_FOLDERS = ("group_vars", "host_vars")
_READ_FIRST = ("", ".yml", ".yaml", ".json")
"""Endings of the files of variables of one group or host. Ansible reads the first that exists."""
_FOUR_NUMBERS = re.compile(r"[0-9]+(?:\.[0-9]+){3}")
"""Pattern of a text that can only mean an IPv4 address."""
_TEMPLATE = re.compile(r"\{[{%]")
"""Pattern of the beginning of a template."""
_BOOLEANS = frozenset({"yes", "no", "true", "false", "on", "off", "1", "0"})
"""Texts that are accepted as a bool."""
ValueCheck = Callable[[str, Any], object]
"""A job's check of a variable's value on a host, which raises a RackproofError about an unusable value."""


class InventoryError(RackproofError):
    """An inventory that cannot be read. The message gives Ansible's error (file and line), or the remedy."""


class InventoryMistake(Record):
    """One mistake in the inventory: ``where`` is its place, and ``what`` describes it with the remedy."""

    where: str
    what: str


@dataclass(frozen=True)
class Inventory:
    """The inventory as Ansible reads it.

    Attributes:
        hosts: The variables of each host. Templates are not evaluated.
        groups: The hosts of each group, including the hosts of its child groups.
        files: The files and folders in group_vars, by the name of the group that each is for.
    """

    hosts: Mapping[str, Mapping[str, Any]]
    groups: Mapping[str, tuple[str, ...]]
    files: Mapping[str, Path]


def list_inventory(
    path: Path, environment: Mapping[str, str] | None = None
) -> tuple[Inventory, list[InventoryMistake]]:
    """Return an inventory from Ansible, and the mistakes in its files.

    The mistakes are duplicate keys, files named ``.yml`` or ``.yaml`` that are not YAML, and files and
    parts that Ansible skips. If such a file is not YAML, the inventory is empty.

    Args:
        path: The folder or file of the inventory.
        environment: The environment of Ansible. The default contains the secrets of the site, which a program
            of the inventory may need, but no secrets of Rackproof.

    Raises:
        InventoryError: There is no inventory, Ansible cannot read it or takes too long, or there is no
            ansible-inventory.
        OSError: A YAML file cannot be read.
    """
    if not path.exists():
        raise InventoryError(f"there is no inventory at {path}")
    if odd := _endless_file(path):
        raise InventoryError(
            f"{odd} is a pipe or a device: write the inventory to a file, because it is read more than once"
        )
    mistakes = [*_yaml_mistakes(path), *_unread_files(path)]
    if any("it is not YAML" in mistake.what for mistake in mistakes):
        # Ansible would leave the file out with a warning, or name the mistake without its file.
        return Inventory(hosts={}, groups={}, files={}), mistakes
    beside = Path(sys.executable).with_name("ansible-inventory")
    program = str(beside) if beside.is_file() else "ansible-inventory"
    try:
        process = subprocess.run(  # noqa: S603  (a fixed program, and no shell)
            [program, "-i", str(path), "--list"],
            capture_output=True,
            text=True,
            timeout=_LIST_S,
            check=False,
            env=environment_of_inventory() if environment is None else environment,
        )
    except FileNotFoundError:
        raise InventoryError("there is no ansible-inventory on PATH: run `make venv`") from None
    except subprocess.TimeoutExpired:
        raise InventoryError(f"ansible-inventory did not end within {_LIST_S:g} s on {path}") from None
    if process.returncode:
        error = sanitize(_first_error(process.stderr), 600)
        remedy = "; set ANSIBLE_VAULT_PASSWORD_FILE to the file of its password" if "vault" in error else ""
        raise InventoryError(error + remedy)
    mistakes += [
        InventoryMistake(where=str(path), what=sanitize(match[1], 300))
        for match in _SKIPPED.finditer(process.stderr)
    ]
    return read_inventory(json.loads(process.stdout), _variable_files(path)), mistakes


def _first_error(text: str) -> str:
    """Return the first error that Ansible printed, or else the last lines of its output."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line_index for line_index, line in enumerate(lines) if "ERROR" in line]
    return " ".join(lines[errors[0] : errors[0] + 3]) if errors else " ".join(lines[-3:])


def _endless_file(path: Path) -> Path | None:
    """Return the first file of an inventory that Ansible would read without an end, or None.

    Ansible waits for the other end of a pipe, and reads most devices without an end.
    """
    folder = path if path.is_dir() else path.parent
    variables = [file for name in _VARIABLE_FOLDERS for file in _entries(folder / name)]
    # In a folder of a group or host, Ansible itself leaves out pipes and devices.
    files = (*_sources(path, frozenset()), *(file for file in variables if not file.is_dir()))
    return next((file for file in files if _is_endless(file)), None)


def _entries(folder: Path) -> list[Path]:
    """Return the entries of a folder, sorted, or none if it is no folder or cannot be read."""
    try:
        return sorted(folder.iterdir()) if folder.is_dir() else []
    except OSError:  # Ansible's own error names a folder that Ansible cannot read.
        return []


def _sources(path: Path, above: frozenset[Path]) -> Iterator[Path]:
    """Yield the files that Ansible tries to read as inventories.

    ``above`` has the folders that contain ``path``, so that the search ends although links form a loop.
    """
    if not path.is_dir():
        yield path
    elif path.resolve() not in above:
        for entry in _entries(path):
            if not _LEFT_OUT.search(entry.name):
                yield from _sources(entry, above | {path.resolve()})


def _is_endless(path: Path) -> bool:
    """Return whether a file is a pipe, or a device other than /dev/null, which is empty."""
    try:
        status = path.stat()
    except OSError:  # Ansible's own error names a file that Ansible cannot read.
        return False
    is_null = S_ISCHR(status.st_mode) and status.st_rdev == os.stat(os.devnull).st_rdev
    return not (S_ISREG(status.st_mode) or S_ISDIR(status.st_mode) or is_null)


def _yaml_mistakes(path: Path) -> Iterator[InventoryMistake]:
    """Yield each file ``.yml`` or ``.yaml`` that is not YAML, and each duplicate key, with file and line.

    The files are the inventory itself or the files directly in its folder, and all files in group_vars and
    host_vars.
    """
    folder = path if path.is_dir() else path.parent
    # If the inventory is a file, Ansible reads the folders of variables beside it, and no other inventory.
    files = set(folder.glob("*.y*ml")) if path.is_dir() else {path}
    for pattern in ("group_vars/**/*.y*ml", "host_vars/**/*.y*ml"):
        files |= set(folder.glob(pattern))
    for file in sorted(
        source_file
        for source_file in files
        if source_file.suffix in (".yml", ".yaml") and source_file.is_file()
    ):
        try:
            # Compose the YAML without constructing values, because the tag of a vault is unknown here.
            tree = yaml.compose(file.read_text(encoding="utf-8"), Loader=yaml.SafeLoader)
        except RecursionError:
            yield InventoryMistake(where=str(file), what="it is not YAML: its values are nested too deep")
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            mark = getattr(error, "problem_mark", None)
            line = f":{mark.line + 1}" if mark is not None else ""
            text = getattr(error, "problem", None) or "it is not text in UTF-8"
            yield InventoryMistake(where=f"{file}{line}", what=f"it is not YAML: {sanitize(text, 200)}")
        else:
            yield from _doubled_keys(file, tree)


def _unread_files(path: Path) -> Iterator[InventoryMistake]:
    """Yield each file of variables that Ansible does not read, because another one is for the same name."""
    folder = path if path.is_dir() else path.parent
    for entries in (_entries(folder / name) for name in _VARIABLE_FOLDERS):
        by_name: dict[str, list[Path]] = {}
        for entry in entries:
            if not _LEFT_OUT.search(entry.name):
                by_name.setdefault(_FORMS.sub("", entry.name), []).append(entry)
        for name, files in by_name.items():
            first, *unread = sorted(files, key=lambda file: _READ_FIRST.index(file.name[len(name) :]))
            for file in unread:
                text = f"Ansible reads {first.name} beside it, and not this file: write all into one of them"
                yield InventoryMistake(where=str(file), what=text)


def _doubled_keys(file: Path, tree: yaml.Node | None) -> Iterator[InventoryMistake]:
    """Yield each key that is twice in a mapping, because only the later one counts."""
    queue, seen_nodes = [tree] if tree is not None else [], set()
    while queue:
        node = queue.pop()
        # An alias leads to a part of the file that was checked before.
        if id(node) in seen_nodes:
            continue
        seen_nodes.add(id(node))
        if isinstance(node, yaml.SequenceNode):
            queue += node.value
        elif isinstance(node, yaml.MappingNode):
            lines: dict[tuple[str, str], int] = {}
            for key, value in node.value:
                # The number 1 and the text "1" are two keys.
                line, name = key.start_mark.line + 1, (str(key.tag), str(key.value))
                if name in lines and name[1] != "<<":
                    text = f"{sanitize(name[1], 100)} is in line {lines[name]} already: the later one counts"
                    yield InventoryMistake(where=f"{file}:{line}", what=text)
                lines.setdefault(name, line)
                queue.append(value)


def _variable_files(path: Path) -> dict[str, Path]:
    """Return the files and folders in group_vars, by the name of the group.

    Notes, hidden files and backups are left out, because they are not meant for a group.
    """
    folder = path if path.is_dir() else path.parent
    return {
        _FORMS.sub("", entry.name): entry
        for entry in sorted(folder.glob("group_vars/*"))
        if not _LEFT_OUT.search(entry.name)
    }


def read_inventory(listed: Mapping[str, Any], files: Mapping[str, Path]) -> Inventory:
    """Return the inventory in the output of ``ansible-inventory --list``. No I/O.

    Args:
        listed: ``{"_meta": {"hostvars": {"n07": {…}}}, "r01": {"hosts": ["n07"], "children": […]}, …}``.
        files: The files in group_vars (:class:`Inventory`).
    """
    hostvars = listed.get("_meta", {}).get("hostvars", {})
    direct = {name: group for name, group in listed.items() if name != "_meta" and isinstance(group, Mapping)}

    names = {*direct, *(child for group in direct.values() for child in group.get("children", ()))}
    groups = {name: tuple(sorted(_hosts_below(name, direct))) for name in names}
    hosts = {host: hostvars.get(host, {}) for group in groups.values() for host in group}
    return Inventory(hosts=hosts, groups=groups, files=files)


def _hosts_below(name: str, direct: Mapping[str, Mapping[str, Any]]) -> set[str]:
    """Return the hosts of a group and of all groups below it. The groups may form a loop."""
    hosts: set[str] = set()
    queue, seen = [name], {name}
    while queue:
        group = direct.get(queue.pop(), {})
        hosts.update(group.get("hosts", ()))
        children = set(group.get("children", ())) - seen
        seen |= children
        queue += children
    return hosts


def lint_inventory(
    inventory: Inventory, root: Path, checks: Mapping[str, ValueCheck] | None = None
) -> list[InventoryMistake]:
    """Return the mistakes in the names, groups and variables of an inventory, without duplicates.

    Args:
        inventory: The inventory.
        root: The checkout, whose roles define the variables.
        checks: The check of each variable whose nested values a job reads, as in ``validate_expect``.
    """
    options = argument_options(root)
    kinds = {name: option.get("type", "str") for name, option in options.items()} | {"ansible_port": "int"}
    hidden = {name for name, option in options.items() if option.get("no_log")}
    mistakes = [
        *_unusable_names(inventory),
        *_shared_values(inventory),
        *_unknown_names(inventory, root),
        *_connection_names(inventory),
        *_wrong_addresses(inventory),
        *_wrong_kinds(inventory, kinds, hidden),
        *_wrong_nested_values(inventory, kinds, checks or {}),
        *_files_without_group(inventory),
        *_nodes_without_sku(inventory),
        *_no_nodes(inventory),
    ]
    return list(dict.fromkeys(mistakes))


def _unusable_names(inventory: Inventory) -> Iterator[InventoryMistake]:
    """Yield each host whose name -l cannot select, or is also the name of a group.

    Also yield the hosts whose names differ only in case.
    """
    for host in inventory.hosts:
        if not (_HOST_NAME.fullmatch(host) or _is_ipv6(host)):
            text = "no name of a host: use letters, digits, '.', '-' and '_'; its address is ansible_host"
            yield InventoryMistake(where=repr(sanitize(host, 100)), what=text)
        elif host in inventory.groups:
            text = "it is the name of a host and of a group, so that -l means both: rename one of them"
            yield InventoryMistake(where=host, what=text)
    by_lower: dict[str, list[str]] = {}
    for host in sorted(inventory.hosts):
        by_lower.setdefault(host.lower(), []).append(host)
    for hosts in by_lower.values():
        if len(hosts) > 1:
            text = "their names differ only in case, and mean one host to DNS: rename one of them"
            yield InventoryMistake(where=", ".join(hosts), what=text)


def _is_ipv6(name: str) -> bool:
    """Return whether a name is an IPv6 address that -l takes as one host."""
    try:
        return "." not in name and IPv6Address(name).scope_id is None
    except ValueError:
        return False


def _shared_values(inventory: Inventory) -> Iterator[InventoryMistake]:
    """Yield each value of :data:`_UNIQUE` that several hosts share."""
    for name, title in _UNIQUE.items():
        owners: dict[str, list[str]] = {}
        for host, variables in inventory.hosts.items():
            # Without an address, the host's name is its address.
            value = variables.get(name, host if name == "ansible_host" else None)
            if isinstance(value, str | int) and str(value).strip() and "{{" not in str(value):
                # Several hosts may share one address, if their ports differ.
                port = variables.get("ansible_port", 22) if name == "ansible_host" else ""
                owners.setdefault(f"{str(value).strip().lower()}:{port}", []).append(host)
        for key, hosts in owners.items():
            if len(hosts) > 1:
                hosts_text = ", ".join(sorted(hosts)[:5])
                yield InventoryMistake(
                    where=hosts_text,
                    what=f"the same {title} ({name}: {key.rpartition(':')[0]}): each host needs its own",
                )


def _unknown_names(inventory: Inventory, root: Path) -> Iterator[InventoryMistake]:
    """Yield each variable with a role's prefix, or nearly such a prefix, that no role defines."""
    known, prefixes = known_variables.known_variables(root), known_variables.role_prefixes(root)
    for name, hosts in _owners(inventory).items():
        for check in (known_variables.check_names, known_variables.check_misspelt_prefixes):
            try:
                check([name], known, prefixes)
            except known_variables.UnknownVariableError as error:
                yield InventoryMistake(where=_some(hosts), what=str(error).partition(". ")[0])


def _connection_names(inventory: Inventory) -> Iterator[InventoryMistake]:
    """Yield each ``ansible_…`` variable that is nearly one of Ansible's own, such as ``ansible_hots``."""
    for name, hosts in _owners(inventory).items():
        near = known_variables.nearest(name, _CONNECTION, 0.9) if name not in _CONNECTION else ""
        if near and name.startswith("ansible_"):
            text = f"Ansible has no variable {sanitize(name, 100)} (did you mean {near}?)"
            yield InventoryMistake(where=_some(hosts), what=text)


def _owners(inventory: Inventory) -> dict[str, list[str]]:
    """Return the names of the hosts that have each variable."""
    owners: dict[str, list[str]] = {}
    for host, variables in inventory.hosts.items():
        for name in variables:
            owners.setdefault(name, []).append(host)
    return owners


def _some(hosts: Iterable[str]) -> str:
    """Return the first of some hosts, and how many more there are: ``n01 and 7 more``."""
    names = sorted(hosts)
    return f"{names[0]} and {len(names) - 1} more" if len(names) > 1 else names[0]


def argument_options(root: Path) -> dict[str, Mapping[str, Any]]:
    """Return the option of each variable from the argument specs of the roles in a checkout."""
    options: dict[str, Mapping[str, Any]] = {}
    for path in sorted(root.glob("roles/*/meta/argument_specs.yml")):
        for spec in known_variables.read_yaml(path)["argument_specs"].values():
            options |= spec.get("options") or {}
    return options


def _wrong_kinds(
    inventory: Inventory, kinds: Mapping[str, str], hidden: Collection[str]
) -> Iterator[InventoryMistake]:
    """Yield each value that is not of its variable's type, and each number beyond its bounds.

    ``hidden`` has variables whose values are secret.
    """
    wrong: dict[str, list[str]] = {}
    for host, variables in inventory.hosts.items():
        for name, value in variables.items():
            if not fits_kind(value, kinds.get(name, "raw")):
                shown = known_variables.value_text(name, value, no_log=name in hidden)
                text = f"{name} {shown}: its type has to be {kinds[name]}"
                wrong.setdefault(text, []).append(host)
        for text in known_variables.numbers_beyond_bounds(variables):
            wrong.setdefault(text, []).append(host)
    for text, hosts in wrong.items():
        yield InventoryMistake(where=_some(hosts), what=text)


def _wrong_addresses(inventory: Inventory) -> Iterator[InventoryMistake]:
    """Yield each address of four numbers that is no IPv4 address, such as ``10.0.0.999``."""
    for host, variables in inventory.hosts.items():
        # Without an address, the host's name is its address.
        for name, default in (("ansible_host", host), ("reimage_bmc_address", "")):
            value = str(variables.get(name, default)).strip()
            if _FOUR_NUMBERS.fullmatch(value) and address_problem(value):
                text = f"{name} is {value[:60]!r}: an address has four numbers from 0 to 255"
                yield InventoryMistake(where=host, what=text)


def _wrong_nested_values(
    inventory: Inventory, kinds: Mapping[str, str], checks: Mapping[str, ValueCheck]
) -> Iterator[InventoryMistake]:
    """Yield the first mistake in each nested value that a job would refuse.

    A value of a wrong type is left out, because :func:`_wrong_kinds` yields it.
    """
    for name, check in checks.items():
        owners: dict[str, list[str]] = {}
        for host, variables in inventory.hosts.items():
            value = _without_templates(variables.get(name))
            if isinstance(value, dict | list) and fits_kind(value, kinds.get(name, "raw")):
                # Hosts of a SKU have equal values, which are checked once.
                owners.setdefault(json.dumps(value, sort_keys=True), []).append(host)
        for text, hosts in owners.items():
            try:
                check(min(hosts), json.loads(text))
            except RackproofError as error:
                yield InventoryMistake(where=_some(hosts), what=str(error))


def _without_templates(value: object) -> object:
    """Return a list or mapping without the entries that contain a template, because their value is unknown.

    Any other value is returned unchanged.
    """
    if isinstance(value, dict):
        return {key: entry for key, entry in value.items() if not _TEMPLATE.search(json.dumps([key, entry]))}
    if isinstance(value, list):
        return [entry for entry in value if not _TEMPLATE.search(json.dumps(entry))]
    return value


def fits_kind(value: object, kind: str) -> bool:
    """Return whether a value is of a type of an argument spec. No I/O.

    A template fits any type, and any value fits a type that is not in :data:`_KINDS`, such as ``str``. A text
    that is no template fits no list or mapping, although Ansible would convert it.
    """
    if kind not in _KINDS or (isinstance(value, str) and "{{" in value):
        return True
    if isinstance(value, str):
        return _text_fits(value.strip(), kind)
    if isinstance(value, bool):
        return kind == "bool"
    return isinstance(value, _KINDS[kind])


def _text_fits(text: str, kind: str) -> bool:
    """Return whether a text fits the type ``bool``, ``int`` or ``float``. A text fits no list or mapping."""
    if kind == "bool":
        return text.lower() in _BOOLEANS
    try:
        return kind in ("int", "float") and float(text if kind == "float" else int(text)) is not None
    except (ValueError, OverflowError):
        return False


def _files_without_group(inventory: Inventory) -> Iterator[InventoryMistake]:
    """Yield each file of variables whose group does not exist, so that nothing reads the file."""
    for name, path in inventory.files.items():
        if name not in inventory.groups and name != "all":
            near = known_variables.nearest(name, inventory.groups, 0.7)
            hint = f" (did you mean {near}?)" if near else ""
            yield InventoryMistake(
                where=str(path), what=f"there is no group {name}{hint}: nothing reads this file"
            )


def _nodes_without_sku(inventory: Inventory) -> Iterator[InventoryMistake]:
    """Yield nodes without a SKU or with several, and racks in ``slurm_racks`` without nodes.

    Nodes of the group new-nodes need no SKU yet. A slice and its whole machine count as one SKU.
    """
    skus = {name: set(hosts) for name, hosts in inventory.groups.items() if name.startswith(_SKU)}
    for host in inventory.groups.get(_NODES, ()):
        skus_of_host = [name for name, hosts in skus.items() if host in hosts]
        if not skus_of_host and host not in inventory.groups.get("new-nodes", ()):
            remedy = "put its rack below a group sku_NAME: its required parts are unknown"
            yield InventoryMistake(where=host, what=f"no SKU: {remedy}")
        elif len(_families(skus_of_host)) > 1:
            yield InventoryMistake(
                where=host, what=f"of several SKUs ({', '.join(sorted(skus_of_host))}): leave one"
            )
    for rack in sorted(_asked_racks(inventory.hosts.values())):
        if not inventory.groups.get(rack):
            yield InventoryMistake(
                where=rack, what="slurm_racks names it, and it has no nodes: correct the name"
            )


def _no_nodes(inventory: Inventory) -> Iterator[InventoryMistake]:
    """Yield a mistake if no host is in the inventory, or if hosts are in racks, but none is in gpu_nodes."""
    # An inventory that could not be read has no groups, either, and another mistake gives the reason.
    if inventory.groups and not inventory.hosts:
        yield InventoryMistake(where="all", what="no host is in this inventory: list the nodes below a rack")
    racks = [
        name
        for name, hosts in inventory.groups.items()
        if hosts and name not in _NO_RACKS and name not in inventory.hosts
    ]
    if racks and not inventory.groups.get(_NODES):
        yield InventoryMistake(
            where=", ".join(sorted(racks)[:5]),
            what=f"no host is in the group {_NODES}: "
            "provision.yml, validate.yml and reimage.yml have no nodes. "
            f"Put each rack below a group sku_NAME, and that below {_NODES}",
        )


def _families(names: Collection[str]) -> set[str]:
    """Return the groups of SKUs, each slice as its whole machine: ``sku_h200_x2`` as ``sku_h200``."""
    return {re.sub(r"_x[0-9]+$", "", name) for name in names}


def _asked_racks(hosts: Iterable[Mapping[str, Any]]) -> set[str]:
    """Return the racks that ``slurm_racks`` of any host names."""
    racks: set[str] = set()
    for variables in hosts:
        named = variables.get("slurm_racks")
        racks |= {str(name) for name in named} if isinstance(named, list) else set()
    return racks
