"""Define ``rackproof explain``: the state of one node, or the meaning of one finding code."""

from __future__ import annotations

import re
from dataclasses import asdict
from pathlib import Path

import click

from rackproof.cli.options import json_option, results_option
from rackproof.cli.output import json_value, print_json, print_or_write
from rackproof.core.finding_codes import find_code, near_codes
from rackproof.jobs.validate.explain import (
    ExplainError,
    Explanation,
    code_text,
    explain_node,
    explanation_text,
    rma_packet,
)
from rackproof.store.night_store import DRAIN_PREFIX


@click.command("explain")
@click.argument("name", metavar="NODE|CODE")
@click.option("--rma", type=click.Path(path_type=Path), help="Write the packet for the vendor; - prints it.")
@results_option
@json_option
def explain_command(name: str, rma: Path | None, results: Path, as_json: bool) -> None:
    """Explain why a node is in its present state, or the meaning of a finding code.

    NODE is a name of the inventory. The records of validate.yml's nights give its findings, the references,
    the actions so far, and the next command.

    CODE is that of a finding, such as ecc_off, xid_79 or floor:gemm_tflops, or a reason as Slurm has it,
    in quotes; no results are needed.
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
        explanation = _explain_node(results, name)
        if as_json:
            print_json(json_value(explanation))
        else:
            click.echo(explanation_text(explanation), nl=False)


def _code_of_reason(text: str) -> str:
    """Return the first code in a drain's reason, or of an XID in common notation; other text unchanged."""
    words = text.removeprefix(DRAIN_PREFIX).strip()
    if number := re.match(r"xid[ _:]+([0-9]{1,6})\b", words, re.IGNORECASE):
        return f"xid_{number[1]}"
    return re.split(r"[ ;]", words)[0] if text.startswith(DRAIN_PREFIX) else text


def _explain_node(results: Path, name: str) -> Explanation:
    """Explain a node; if no night includes it, list the codes that may have been meant."""
    try:
        return explain_node(results, name)
    except ExplainError as error:
        near = near_codes(name)
        if not near:
            raise
        raise ExplainError(f"{error}; codes like it: {', '.join(near)}") from None
