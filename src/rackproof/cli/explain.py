"""``rackproof explain``: the state of one node."""

from __future__ import annotations

from pathlib import Path

import click

from rackproof.cli.options import json_option, results_option
from rackproof.cli.output import json_value, print_json, print_or_write
from rackproof.jobs.validate.explain import explain_node, explanation_text, rma_packet


@click.command("explain")
@click.argument("node", metavar="NODE")
@click.option("--rma", type=click.Path(path_type=Path), help="Write the packet for the vendor; - prints it.")
@results_option
@json_option
def explain_command(node: str, rma: Path | None, results: Path, as_json: bool) -> None:
    """Explain why a node is in its present state.

    NODE is a name of the inventory. Read from the records of validate.yml's nights: what is wrong, against
    what it was measured, what was tried, and the next command.
    """
    if rma is not None:
        print_or_write(rma_packet(results, node), rma)
        return
    explanation = explain_node(results, node)
    if as_json:
        print_json(json_value(explanation))
    else:
        click.echo(explanation_text(explanation), nl=False)
