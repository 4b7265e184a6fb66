"""Variables that Rackproof's roles know, and those of an inventory that only look like one of them."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from rackproof.core.errors import RackproofError

_DEFINING_KEYS = ("register", "loop_var", "index_var")
_MAPPING_KEYS = ("vars", "ansible.builtin.set_fact", "set_fact")
_WORD = re.compile(r"\b[a-z][a-z0-9]*_[a-z0-9_]+\b")
ALL_HOSTS = 200
"""Of more hosts only one of each set of groups is asked, and those with a file in host_vars."""


class UnknownVariableError(RackproofError):
    """The inventory has a variable that no role knows; the message names it and the one that may be meant."""


def check_names(given: Iterable[str], known: Collection[str], prefixes: tuple[str, ...]) -> None:
    """Check that names with a role's prefix are variables of a role. No I/O.

    Args:
        given: Names of variables of hosts.
        known: Names that roles know or define.
        prefixes: The roles' prefixes.

    Raises:
        UnknownVariableError: Some are none.
    """
    unknown = sorted({name for name in given if name.startswith(prefixes)} - set(known))
    if unknown:
        raise UnknownVariableError(
            f"unknown variables in the inventory or given with -e: {', '.join(_with_near(unknown, known))}. "
            "Correct or remove them; roles/ROLE/README.md lists what there is"
        )


def _with_near(names: Iterable[str], known: Collection[str]) -> Iterator[str]:
    for name in names:
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.7)
        yield f"{name} (did you mean {near[0]}?)" if near else name


def role_prefixes(root: Path) -> tuple[str, ...]:
    """Return what the variables of the roles of a checkout begin with."""
    roles = sorted(path.name for path in (root / "roles").iterdir() if path.is_dir())
    return tuple(f"{role}_" for role in roles)


def hosts_to_check(
    hosts: Sequence[str], groups: Mapping[str, Iterable[str]], own_files: Collection[str]
) -> list[str]:
    """Return the hosts whose variables have every name that group_vars and host_vars give. No I/O.

    Args:
        hosts: The hosts of the play.
        groups: The hosts of each group.
        own_files: Hosts with a file of variables of their own.
    """
    if len(hosts) <= ALL_HOSTS:
        return list(hosts)
    members: dict[str, list[str]] = {}
    for group, names in groups.items():
        for name in names:
            members.setdefault(name, []).append(group)
    chosen = {tuple(sorted(members.get(host, ()))): host for host in hosts}
    return sorted({*chosen.values(), *(host for host in hosts if host in own_files)})


def known_variables(root: Path) -> set[str]:
    """Return the variables that the roles of a checkout take, set or register."""
    names: set[str] = set()
    for path in sorted(root.glob("roles/*/defaults/*.yml")) + sorted(root.glob("roles/*/vars/*.yml")):
        names |= set(_load(path) or {})
    for path in root.glob("roles/*/meta/argument_specs.yml"):
        for spec in _load(path)["argument_specs"].values():
            names |= set(spec.get("options") or {})
    for pattern in ("roles/*/tasks/**/*.yml", "roles/*/handlers/*.yml", "playbooks/*.yml"):
        for path in root.glob(pattern):
            names |= set(_defined_in(_load(path)))
    # A template asks other hosts for theirs, by name: slurm.conf has the hardware of each SKU.
    for path in root.glob("roles/*/templates/**/*"):
        if path.is_file():
            names |= set(_WORD.findall(path.read_text()))
    return names


def _load(path: Path) -> Any:
    # The reader in C: some hundred files are read at the start of a playbook.
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return yaml.load(path.read_text(), Loader=loader)  # noqa: S506  (a safe loader)


def _defined_in(value: Any) -> Iterator[str]:
    """Yield the names that tasks define: registered, facts, loop variables and vars."""
    if isinstance(value, Mapping):
        yield from (str(value[key]) for key in _DEFINING_KEYS if key in value)
        for key in _MAPPING_KEYS:
            if isinstance(value.get(key), Mapping):
                yield from value[key]
        if isinstance(included := value.get("ansible.builtin.include_vars"), Mapping):
            yield str(included.get("name", ""))
        for entry in value.values():
            yield from _defined_in(entry)
    elif isinstance(value, list):
        for entry in value:
            yield from _defined_in(entry)
