"""Define ``rackproof lint-inventory``, which finds mistakes of an inventory before any playbook runs.

The checks are in :mod:`rackproof.jobs.inventory.lint`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import click

from rackproof.cli.errors import EXIT_FAIL
from rackproof.cli.options import inventory_option, json_option
from rackproof.cli.output import json_value, print_json
from rackproof.cli.playbooks import find_checkout
from rackproof.core.judging import read_sku_references
from rackproof.core.text import amount, sanitize
from rackproof.jobs.inventory.lint import ValueCheck, lint_inventory, list_inventory
from rackproof.jobs.validate.inventory import parse_limits, parse_node_expectation

VALUE_CHECKS: Mapping[str, ValueCheck] = {
    "validate_expect": parse_node_expectation,
    "validate_limits": parse_limits,
    "bench_sku_references": read_sku_references,
}
"""The functions with which the jobs read variables that have nested values."""


@click.command("lint-inventory")
@inventory_option
@click.option(
    "--checkout",
    type=click.Path(path_type=Path, file_okay=False),
    help="Checkout whose roles define the variables. The default is the current folder, or else the "
    "command's own.",
)
@json_option
def lint_inventory_command(inventory: Path, checkout: Path | None, as_json: bool) -> None:
    """List the mistakes of an inventory before any playbook runs, without access to its nodes.

    In hosts, the command finds addresses, serial numbers and BMC addresses that two hosts share, invalid
    IPv4 addresses, and nodes without a SKU or with two. In variables, it finds names that no role knows,
    misspelt ansible_* names, and values of a wrong type or beyond their bounds, also within validate_expect,
    validate_limits and bench_sku_references. In files, it finds text that is not YAML, keys that occur
    twice, and files of variables that Ansible does not read. It also finds racks without nodes. The exit
    status is 2 if there is a mistake.
    """
    listed, mistakes = list_inventory(inventory)
    root = find_checkout("validate.yml", checkout)
    mistakes = [*mistakes, *lint_inventory(listed, root, VALUE_CHECKS)]
    if as_json:
        print_json([json_value(mistake) for mistake in mistakes])
    else:
        for mistake in mistakes:
            click.echo(f"{sanitize(mistake.where, 200)}: {sanitize(mistake.what, 600)}")
        hosts, groups = amount(len(listed.hosts), "host"), amount(len(listed.groups), "group")
        click.echo(f"{sanitize(inventory, 400)}: {hosts}, {groups}: {amount(len(mistakes), 'mistake')}")
    if mistakes:
        raise click.exceptions.Exit(EXIT_FAIL)
