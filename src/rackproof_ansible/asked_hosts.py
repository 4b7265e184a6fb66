"""Find tasks and hosts that a command line leaves out of a playbook.

The filter ``refuse_partial_runs`` calls :func:`check_hosts`, which raises :class:`PartialRunError`. The
filter is in a play's pattern, which is evaluated even if the command line limits the play. At the end of a
playbook, the callback ``rackproof`` calls :func:`hosts_left_out`.

Ansible ends with status 0 if tags leave no task, or if the task to start at is not found. It also does so if
a host of ``--limit`` is in no play.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from ansible.inventory.manager import InventoryManager
from ansible.parsing.dataloader import DataLoader

from rackproof.core.errors import RackproofError
from rackproof.core.hostlist import compress_hostlist
from rackproof.core.text import sanitize

EVERY_HOST = ("all", "*")
"""Terms of a limit that name no single host. They mean all hosts of the playbook."""

_SKIPPING_TAGS = frozenset({"all", "always", "tagged", "untagged"})
"""Tags with a special meaning in Ansible. Rackproof's tasks have no other tags, so no other tag can
skip them."""

_asked: list[str] = []
"""Requested hosts of this process's plays, in order. The callback counts them."""


class PartialRunError(RackproofError):
    """Tasks or hosts that the command line leaves out of a playbook."""


def asked_hosts() -> tuple[str, ...]:
    """Return the hosts that this process's playbooks requested so far."""
    return tuple(_asked)


def hosts_left_out(asked: Iterable[str], stats: Any) -> list[str]:
    """Return the requested hosts on which no task did anything.

    Args:
        asked: The requested hosts of the playbooks.
        stats: Ansible's numbers of tasks by host. A skipped task was not done.
    """
    counts = (stats.ok, stats.failures, stats.dark, stats.rescued, stats.ignored)
    return [host for host in asked if not any(count.get(host) for count in counts)]


def check_hosts(pattern: str, groups: Mapping[str, Sequence[str]], options: Mapping[str, Any]) -> None:
    """Check that a play does all its tasks on every host of the command line, and store these hosts.

    Args:
        pattern: The hosts of the play.
        groups: The inventory's groups and their hosts.
        options: The options of Ansible's command line.

    Raises:
        PartialRunError: The command line would leave out tasks or hosts.
    """
    if any(options.get(name) for name in ("listhosts", "listtasks", "listtags", "syntax")):
        return
    check_tasks(options)
    limit = options.get("subset")
    hosts = hosts_to_do(pattern, groups, limit)
    # A play before the main one may be for all hosts of the inventory.
    if limit is not None or pattern not in EVERY_HOST:
        _asked.extend(sorted(set(hosts) - set(_asked), key=hosts.index))


def check_tasks(options: Mapping[str, Any]) -> None:
    """Check that a command line leaves out no task. No I/O.

    Raises:
        PartialRunError: The command line leaves a task out.
    """
    tags = [str(tag) for tag in options.get("tags") or ("all",)]
    skipped = sorted(_SKIPPING_TAGS & {str(tag) for tag in options.get("skip_tags") or ()})
    names = {
        "--tags": ",".join(tags) if "all" not in tags else "",
        "--skip-tags": ",".join(skipped),
        "--start-at-task": options.get("start_at_task") or "",
        "--step": "yes" if options.get("step") else "",
    }
    for option, value in names.items():
        if value:
            given = "" if option == "--step" else f" {sanitize(value, 100)}"
            raise PartialRunError(
                f"{option}{given} leaves out tasks, so their results would not be proven. This playbook does "
                "all of its tasks, and goes on by itself where it was interrupted: leave the option out"
            )


def hosts_to_do(pattern: str, groups: Mapping[str, Sequence[str]], limit: str | None) -> list[str]:
    """Return the requested hosts of a play.

    Args:
        pattern: The hosts of the play.
        groups: The inventory's groups and their hosts.
        limit: The limit of the command line, or None.

    Raises:
        PartialRunError: A term of the limit matches nothing, or a host that is not in the play. The limit is
            empty, or no host is left. A host's name contains invisible characters.
    """
    inventory = _inventory(groups)
    covered = [str(host.name) for host in inventory.get_hosts(pattern)]
    _check_names(covered)
    terms = _terms(inventory, limit)
    if limit is not None and not terms:
        # Ansible ignores an empty limit, so an empty variable or file would select every host.
        raise PartialRunError(
            f"-l {sanitize(limit, 200) or repr(limit)} names no host, and would not limit anything: name the "
            "hosts, or leave -l out to select all"
        )
    if not terms:
        if not covered:
            raise PartialRunError(
                f"the inventory has no host in {_groups_of(pattern)}, so nothing would be done: check -i and "
                "the groups of its hosts"
            )
        return covered
    _check_terms(inventory, terms, groups)
    requested_hosts = _names(inventory, terms)
    positive = [term for term in terms if term[0] not in "!&"]
    if not set(positive) <= set(EVERY_HOST):
        _check_covered(requested_hosts, covered, pattern)
    hosts = [host for host in covered if host in set(requested_hosts)]
    if not hosts:
        raise PartialRunError(
            f"-l {sanitize(limit, 200)} leaves no host of {_groups_of(pattern)}, so nothing would be done: "
            "check it"
        )
    return hosts


def _check_names(hosts: Iterable[str]) -> None:
    """Refuse host names with invisible characters."""
    # Two names that appear equal are two nodes for the history, for a drain, and for an order to write
    # a disk.
    for host in hosts:
        if not host.isprintable():
            raise PartialRunError(
                f"the inventory's host {ascii(host)[:200]} has invisible characters; type its name again"
            )


def _inventory(groups: Mapping[str, Sequence[str]]) -> InventoryManager:
    """Return an inventory with these groups, so that Ansible evaluates the patterns."""
    inventory = InventoryManager(loader=DataLoader(), sources=[], parse=False)
    known_hosts: set[str] = set()
    for group, hosts in groups.items():
        inventory.add_group(str(group))
        for host in map(str, hosts):
            if host not in known_hosts:
                inventory.add_host(host)
            known_hosts.add(host)
            if group != "all":
                inventory.add_host(host, str(group))
    # This makes the groups children of `all`.
    inventory.reconcile_inventory()
    return inventory


def _terms(inventory: InventoryManager, limit: str | None) -> list[str]:
    """Return the terms of a limit. A term that begins with @ is the name of a file with terms."""
    inventory.subset(limit)
    terms = [str(term) for term in inventory._subset or () if term]
    # The next evaluation of the terms must not be limited by them.
    inventory.subset(None)
    return terms


def _names(inventory: InventoryManager, terms: list[str]) -> list[str]:
    """Return the hosts that terms select.

    As Ansible does, split no line of a file at commas.
    """
    return [str(host.name) for host in inventory._evaluate_patterns(terms)]


def _check_terms(
    inventory: InventoryManager, terms: Iterable[str], groups: Mapping[str, Sequence[str]]
) -> None:
    """Check that each term of a limit selects a host. A term with ! or & may be an empty group."""
    for term in terms:
        name = term.lstrip("!&")
        hosts = _names(inventory, [name]) if name else []
        if hosts or (term[0] in "!&" and name in groups):
            continue
        text = (
            "is a group without hosts" if name in groups else "is neither a host nor a group of the inventory"
        )
        raise PartialRunError(
            f"{sanitize(name, 200) or 'an empty name'} {text}, so nothing would be done for it: correct it "
            "in -l, or leave it out"
        )


def _check_covered(requested_hosts: Iterable[str], covered: Collection[str], pattern: str) -> None:
    """Refuse requested hosts that are not among the hosts of the play."""
    strangers = sorted(set(requested_hosts) - set(covered))
    if strangers:
        names = ", ".join(strangers) if len(strangers) <= 3 else compress_hostlist(strangers)
        verb, them = ("is", "it") if len(strangers) == 1 else ("are", "them")
        raise PartialRunError(
            f"{sanitize(names, 400)} {verb} not in {_groups_of(pattern)}, so nothing would be done or proven "
            f"there: leave {them} out of -l, or put {them} into one of these groups of the inventory"
        )


def _groups_of(pattern: str) -> str:
    return " or ".join(pattern.replace(",", ":").split(":"))
