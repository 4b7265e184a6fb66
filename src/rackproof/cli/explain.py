"""Define ``rackproof explain``, which explains the state of a node or the meaning of a finding code."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import click

from rackproof.cli.errors import require_results
from rackproof.cli.options import json_option, results_option
from rackproof.cli.output import json_value, print_json, print_or_write
from rackproof.core.advised_commands import add_inventory
from rackproof.core.finding_codes import find_code, near_codes
from rackproof.core.near_names import near_names
from rackproof.core.text import moment, sanitize
from rackproof.jobs.fleet_status import read_rows
from rackproof.jobs.validate.explain import (
    ExplainError,
    Explanation,
    code_text,
    explain_node,
    explanation_text,
)
from rackproof.jobs.validate.rma import rma_packet
from rackproof.store.audit_log import ProvisionRecord, last_provisions, read_provisions
from rackproof.store.night_store import DRAIN_PREFIX, last_inventory


@click.command("explain")
@click.argument("name", metavar="NODE|CODE")
@click.option(
    "--rma", type=click.Path(path_type=Path), help="Write the packet for the vendor, or print it with -."
)
@results_option
@json_option
def explain_command(name: str, rma: Path | None, results: Path, as_json: bool) -> None:
    """Explain why a node is in its present state, or the meaning of a finding code.

    NODE is a name of the inventory. The records of validate.yml's nights give its findings, the references,
    the actions so far, and the next command. The last record of provision.yml with the node gives its user,
    its changes and its failure.

    CODE is the code of a finding, such as ecc_off, xid_79 or floor:gemm_best. Of a quoted reason of a night
    from Slurm (`rackproof-night: …`), the first code is explained. A code is explained without results.
    """
    name = _code_of_reason(name)
    if rma is not None:
        print_or_write(rma_packet(results, name), rma)
    elif (entry := find_code(name)) is not None:
        if as_json:
            print_json({**asdict(entry), "code": name, "family": entry.code})
        else:
            click.echo(code_text(name, entry), nl=False)
    else:
        _show_node(results, name, as_json)


def _code_of_reason(text: str) -> str:
    """Return the first code in a drain's reason, or the code of an XID or SXid in common notation.

    ``rackproof-night: ecc_off, clock`` gives ``ecc_off``, and ``XID 79`` gives ``xid_79``. Other text is
    returned unchanged.

    Raises:
        ExplainError: The reason of a night does not begin with a known code.
    """
    words = text.removeprefix(DRAIN_PREFIX).strip()
    if number := re.match(r"(s?xid)[ _:-]*([0-9]{1,6})\b", words, re.IGNORECASE):
        return f"{number[1].lower()}_{number[2]}"
    if not text.startswith(DRAIN_PREFIX):
        return text
    code = re.split(r"[ ,;]", words)[0]
    if find_code(code) is None:
        near = ", ".join(near_codes(code))
        raise ExplainError(
            f"{sanitize(text, 100)!r} does not begin with a known code{near and f'; codes like it: {near}'}. "
            "docs/using/codes.md lists all codes"
        )
    return code


def _show_node(results: Path, name: str, as_json: bool) -> None:
    """Print what the nights and the last provisioning recorded about a node."""
    provision = _last_provision(results, name)
    explanation = _explain_node(results, name, is_provisioned=provision is not None)
    if as_json:
        node_json = {"node": name} if explanation is None else json_value(explanation)
        print_json({**node_json, "provisioning": None if provision is None else json_value(provision)})
        return
    texts = [] if explanation is None else [explanation_text(explanation)]
    texts += [] if provision is None else [_provision_text(name, provision, last_inventory(results))]
    click.echo("\n".join(texts), nl=False)


def _last_provision(results: Path, name: str) -> ProvisionRecord | None:
    """Return a node's last provisioning without its other nodes, or None if there is none."""
    provision = last_provisions(read_provisions(results)[0]).get(name)
    return provision and provision.model_copy(update={"nodes": {name: provision.nodes[name]}})


def _provision_text(name: str, provision: ProvisionRecord, inventory: Sequence[str]) -> str:
    """Return the text about a node's last provisioning. ``inventory`` is the inventory of the last night."""
    outcome = provision.nodes[name]
    retry_command = f"ansible-playbook provision.yml -l {name}"
    lines = [
        f"{name}: provisioning {'failed' if outcome.failed else 'ended well'} ({moment(provision.ended)}); "
        f"{provision.actor}@{provision.host} ran {provision.playbook}"
    ]
    for title, texts in (
        ("Attention", outcome.attention),
        ("Changed", outcome.changed),
        ("Next", [add_inventory(retry_command, inventory)] if outcome.failed else []),
    ):
        lines += ["", title, *(f"  {sanitize(text, 600)}" for text in texts)] if texts else []
    return "\n".join(lines) + "\n"


def _explain_node(results: Path, name: str, *, is_provisioned: bool) -> Explanation | None:
    """Explain a node.

    If no night includes the node, return None if it was provisioned. Otherwise, raise an ExplainError, which
    suggests similar nodes or codes.
    """
    try:
        return explain_node(results, name)
    except ExplainError as error:
        if is_provisioned:
            return None
        if " " in name:
            raise ExplainError(
                f"{sanitize(name, 100)!r} is not a reason of a night. docs/using/drained.md lists the "
                "reasons of all jobs, each with its next command"
            ) from None
        if not near_codes(name):
            require_results(results)
        nodes = [row.node for row in read_rows(results, {}, ())[0]]
        if near_nodes := near_names(name, nodes):
            raise ExplainError(f"{error}; did you mean {near_nodes}?") from None
        near = near_codes(name)
        if not near:
            raise
        raise ExplainError(
            f"{sanitize(name, 100)} is no code; codes like it: {', '.join(near)}. If it is a node: {error}"
        ) from None
