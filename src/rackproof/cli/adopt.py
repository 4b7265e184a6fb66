"""Define ``rackproof adopt``, which makes an inventory from the data of an existing cluster."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from pathlib import Path

import click

from rackproof import __version__
from rackproof.cli.options import json_option
from rackproof.cli.output import SHOWN_FINDINGS, more_line, print_json, terminal_width
from rackproof.cli.playbooks import find_checkout
from rackproof.core.hostlist import compress_hostlist
from rackproof.core.inventory_source import INVENTORY_VARIABLE
from rackproof.core.text import amount, sanitize, shell_word
from rackproof.jobs.inventory.ansible_source import read_ansible_nodes
from rackproof.jobs.inventory.csv_source import read_csv_nodes
from rackproof.jobs.inventory.folder import (
    InventoryChange,
    add_missing_nodes,
    check_folder,
    lint_change,
    plan_change,
    skeleton_groups,
    write_change,
)
from rackproof.jobs.inventory.inventory_files import AdoptedCluster, build_cluster, render_files
from rackproof.jobs.inventory.netbox_source import read_netbox_nodes, read_token
from rackproof.jobs.inventory.nodes import (
    BY_NAME,
    AdoptedNode,
    AdoptedSource,
    AdoptError,
    alias_remarks,
    differing_gpu_remarks,
    join_sources,
    select_nodes,
)
from rackproof.jobs.inventory.read_file import read_text
from rackproof.jobs.inventory.sku_guess import guess_sku, read_shipped_skus, read_sku_rules
from rackproof.jobs.inventory.slurm_source import ask_slurm_listing, read_slurm_files
from rackproof.report.terminal import text_table

_FILE = click.Path(path_type=Path, dir_okay=False)


@click.command("adopt")
@click.option("--slurm", is_flag=True, help="Read from scontrol on this machine. It needs no root.")
@click.option(
    "--slurm-file",
    "slurm_files",
    multiple=True,
    type=_FILE,
    help="slurm.conf, gres.conf, topology.conf, or saved output of scontrol show. May be repeated.",
)
@click.option(
    "--csv",
    "csv_files",
    multiple=True,
    type=_FILE,
    help="Table with a line of column names. May be repeated.",
)
@click.option("--netbox", "netbox_url", help="Address of a NetBox, such as https://netbox.example.org.")
@click.option("--netbox-filter", "netbox_filters", multiple=True, help="NAME=VALUE, such as role=gpu-node.")
@click.option(
    "--netbox-token-file",
    type=_FILE,
    help="File of mode 0600 with the token. The default is the environment variable NETBOX_TOKEN.",
)
@click.option(
    "--ansible",
    "inventories",
    multiple=True,
    type=click.Path(path_type=Path),
    help="An Ansible inventory, or a .json that `ansible-inventory --list` printed.",
)
@click.option("--sku", "sku_rules", multiple=True, help="PATTERN=SKU, for names or descriptions that match.")
@click.option(
    "--exclude", multiple=True, help="Leave out nodes whose names match a pattern, such as 'login*'."
)
@click.option(
    "--output",
    "-o",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("cluster"),
    show_default=True,
    help="Folder of the inventory.",
)
@click.option("--write", is_flag=True, help="Write the shown changes to a folder that adopt made earlier.")
@click.option("--remove-missing", is_flag=True, help="Remove nodes that no source has any more.")
@click.option(
    "--checkout",
    type=click.Path(path_type=Path, file_okay=False),
    help="Checkout with the shipped SKUs. The default is the current folder, or else the command's own.",
)
@json_option
def adopt_command(
    slurm: bool,
    slurm_files: Sequence[Path],
    csv_files: Sequence[Path],
    netbox_url: str | None,
    netbox_filters: Sequence[str],
    netbox_token_file: Path | None,
    inventories: Sequence[Path],
    sku_rules: Sequence[str],
    exclude: Sequence[str],
    output: Path,
    write: bool,
    remove_missing: bool,
    checkout: Path | None,
    as_json: bool,
) -> None:
    """Make an inventory of an existing cluster without access to its nodes.

    Sources are Slurm, CSV, NetBox and Ansible. Several sources describe the same nodes together. The
    inventory gets groups for racks, partitions and SKUs. adopt guesses the SKU from facts, with reason and
    doubts.

    The command writes a new folder. For an existing folder it only shows the difference, unless --write is
    given. Lines that were changed there by hand stay.
    """
    root = find_checkout("validate.yml", checkout)
    rules, shipped = read_sku_rules(sku_rules), read_shipped_skus(root)
    is_known = check_folder(output)
    sources = [
        *_slurm_sources(slurm, slurm_files),
        *map(read_csv_nodes, csv_files),
        *_netbox_source(netbox_url, netbox_token_file, netbox_filters),
        *map(read_ansible_nodes, inventories),
    ]
    if not sources:
        raise AdoptError("name a source: --slurm, --slurm-file, --csv, --netbox or --ansible")
    # Exclude nodes before the sources are joined, because an excluded node may be the wrong one.
    sources = [source.model_copy(update={"nodes": select_nodes(source.nodes, exclude)}) for source in sources]
    nodes, missing = add_missing_nodes(output, join_sources(sources), remove=remove_missing, excluded=exclude)
    guesses = {node.name: guess_sku(node, shipped, rules) for node in nodes}
    cluster = build_cluster(nodes, guesses, *_controller_of(sources))
    shipped_all = read_text(root / "inventory/group_vars/all.yml")
    change = plan_change(output, render_files(cluster, shipped, shipped_all, __version__))
    mistakes = lint_change(output, change, root)
    is_written = bool(change.files) and (write or not is_known)
    if is_written or (write and is_known):
        write_change(output, change, nodes)
    remarks = [
        *(remark for source in sources for remark in source.remarks),
        *differing_gpu_remarks(sources),
        *alias_remarks(nodes),
        *_guessed_remarks(nodes, cluster),
        *_unknown_remarks(cluster),
        *missing,
        *change.remarks,
        *(f"{mistake.where}: {mistake.what}" for mistake in mistakes),
    ]
    if as_json:
        print_json(_json(cluster, change, remarks, written=is_written))
    else:
        skeletons = skeleton_groups(output, change)
        click.echo(_text(output, cluster, skeletons, change, remarks, written=is_written))


def _slurm_sources(runs_here: bool, files: Sequence[Path]) -> list[AdoptedSource]:
    """Return the sources that Slurm's options name."""
    listed = [ask_slurm_listing()] if runs_here else []
    return [*listed, read_slurm_files(files)] if files else listed


def _controller_of(sources: Sequence[AdoptedSource]) -> tuple[str, str]:
    """Return the host of slurmctld and its address from the first source that has it, or "" for each."""
    controllers = [(source.controller, source.controller_address) for source in sources if source.controller]
    return controllers[0] if controllers else ("", "")


def _netbox_source(url: str | None, token_file: Path | None, filters: Sequence[str]) -> list[AdoptedSource]:
    """Return NetBox's devices as a source, if its address is given."""
    if not url:
        return []
    return [read_netbox_nodes(url, read_token(token_file, os.environ), filters)]


def _guessed_remarks(nodes: Sequence[AdoptedNode], cluster: AdoptedCluster) -> list[str]:
    """Return remarks about racks that only names suggest, and about a controller that is not a node."""
    names = [node.name for node in cluster.nodes if node.rack_from == BY_NAME]
    names_text = sanitize(compress_hostlist(names), 200)
    guessed = f"racks are guessed by the nodes' names: no source states that of {names_text}"
    left_out = f"{cluster.controller} is the Slurm controller, and no GPU node: it is in no rack, not judged"
    return [*([guessed] if names else []), *([left_out] if len(nodes) > len(cluster.nodes) else [])]


def _unknown_remarks(cluster: AdoptedCluster) -> list[str]:
    """Return remarks about facts that no source states."""
    if not cluster.has_slurm:
        return [
            "the nodes' own host names are unknown, and not checked (validate_hostname in group_vars/all.yml)"
        ]
    if cluster.controller:
        return []
    return [
        "the host of slurmctld is not known, so Slurm is not queried: put it into the group "
        "slurm_controller, or add the output of scontrol show config"
    ]


def _json(
    cluster: AdoptedCluster, change: InventoryChange, remarks: Sequence[str], *, written: bool
) -> dict[str, object]:
    """Return the result as JSON data."""
    return {
        "nodes": {name: guess.model_dump(mode="json") for name, guess in sorted(cluster.guesses.items())},
        "racks": {name: list(hosts) for name, hosts in cluster.racks.items()},
        "partitions": {name: list(hosts) for name, hosts in cluster.partitions.items()},
        "remarks": [sanitize(remark, 1000) for remark in remarks],
        "changed": sorted(change.files),
        "diff": change.diff,
        "written": written,
    }


def _text(
    output: Path,
    cluster: AdoptedCluster,
    skeletons: Collection[str],
    change: InventoryChange,
    remarks: Sequence[str],
    *,
    written: bool,
) -> str:
    """Return the result as text for a terminal."""
    lines = [
        ", ".join(
            amount(len(members), noun)
            for members, noun in (
                (cluster.nodes, "node"),
                (cluster.racks, "rack"),
                (cluster.partitions, "partition"),
            )
        )
    ]
    lines += _sku_table(cluster, skeletons)
    lines += [f"note: {sanitize(remark, 600)}" for remark in remarks[:SHOWN_FINDINGS]]
    lines += more_line(len(remarks) - SHOWN_FINDINGS, "notes")
    if not change.files:
        return "\n".join([*lines, f"{output} matches the sources: nothing to write"])
    if not written:
        # If each line were sanitized alone, the indentation of unchanged lines would be lost.
        diff = sanitize(change.diff, len(change.diff), newlines=True).splitlines()
        return "\n".join(
            [*lines, "", *diff, "", "nothing was written: add --write to the command to write this"]
        )
    return "\n".join([*lines, f"written: {output}/ ({', '.join(sorted(change.files))})", "", _next(output)])


def _next(output: Path) -> str:
    """Return the text about the next commands."""
    return (
        "Next, which changes nothing on the nodes, and may run beside jobs:\n"
        f"    rackproof lint-inventory -i {shell_word(str(output))}\n"
        f"    rackproof validate -i {shell_word(str(output))} --check\n"
        "Without --check, the night and its pages are written. No command needs -i after:\n"
        f"    export {INVENTORY_VARIABLE}={shell_word(str(output.absolute()))}"
    )


def _sku_table(cluster: AdoptedCluster, skeletons: Collection[str]) -> list[str]:
    """Return a row for each SKU and reason, with the nodes and doubts.

    ``skeletons`` are the groups of SKUs whose files are incomplete.
    """
    rows: dict[tuple[str, ...], list[str]] = {}
    for node in cluster.nodes:
        guess = cluster.guesses[node.name]
        group = guess.group or "(no GPU: not judged)"
        marked = f"{group} UNPROVEN" if group in skeletons else group
        rows.setdefault((marked, guess.why, "; ".join(guess.unsure) or "-"), []).append(node.name)
    cells = [
        (group, str(len(names)), sanitize(compress_hostlist(names), 60), why, unsure)
        for (group, why, unsure), names in sorted(rows.items())
    ]
    columns = ("SKU", "Nodes", "Names", "Why", "Not sure")
    return text_table(columns, cells, terminal_width(), (2, 3, 4))
