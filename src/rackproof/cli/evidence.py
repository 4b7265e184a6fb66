"""Define ``rackproof evidence``, which makes, verifies and compares certificates of nodes."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import click

from rackproof.analysis.certificate.catalogue import load_catalogue
from rackproof.analysis.certificate.changes import certificate_changes
from rackproof.analysis.certificate.making import make_certificate
from rackproof.analysis.certificate.measuring import NIGHT, Measuring, advise_measuring
from rackproof.analysis.certificate.models import Answer, Certificate, Requirement
from rackproof.analysis.certificate.page_parts import (
    PageParts,
    dump_certificate,
    fill_page,
    load_certificate,
    shell_digest,
    split_page,
)
from rackproof.analysis.certificate.signature import sign_bytes
from rackproof.analysis.certificate.verification import BESIDE, Verification, verify_certificate
from rackproof.cli.errors import ToolError, refuse_unknown_names
from rackproof.cli.find_run import history_path
from rackproof.cli.options import inventory_option, json_option, results_option
from rackproof.cli.output import exit_status, json_value, print_json, terminal_width
from rackproof.cli.playbooks import find_checkout
from rackproof.core.advised_commands import add_inventory, add_results
from rackproof.core.definitions import Definition, DefinitionError, load_definitions
from rackproof.core.hostlist import compress_hostlist, expand_hostlist
from rackproof.core.text import amount, sanitize, shell_word
from rackproof.jobs.inventory.lint import list_inventory
from rackproof.logs import FORMATS
from rackproof.report.certificate import certificate_shell, count_text, judged_text, reasons_text
from rackproof.report.certificate_limits import limits_text
from rackproof.report.terminal import text_table
from rackproof.store.history.store import open_store
from rackproof.store.night_store import interrupted_nights
from rackproof.store.run_folder import RECORD_LIMIT_BYTES, read_file, write_file

_MAKE = "make"
_SHOWN_REASONS = 3
"""Largest number of reasons of an answer in the printed table."""


class _EvidenceGroup(click.Group):
    """The group of commands for certificates. Names of nodes in place of a command make a certificate."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read arguments that begin with neither a command nor ``--help`` as arguments of ``make``."""
        if args and args[0] not in self.commands and args[0] not in ctx.help_option_names:
            args = [_MAKE, *args]
        return super().parse_args(ctx, args)


@click.group("evidence", cls=_EvidenceGroup)
def evidence_group() -> None:
    """Certify nodes by a catalogue of requirements, and verify or compare certificates.

    rackproof evidence NODES --catalogue NAME --out FILE runs the command make.
    """


@evidence_group.command(_MAKE)
@click.argument("names", nargs=-1, required=True, metavar="NODES|GROUP...")
@click.option("--catalogue", "catalogue_name", required=True, help="Name of a shipped catalogue, or a file.")
@click.option("--out", required=True, type=click.Path(path_type=Path), help="The page to write, FILE.html.")
@click.option(
    "--sign", "key", type=click.Path(path_type=Path, exists=True), help="SSH key that signs the page."
)
@inventory_option
@results_option
@json_option
@click.pass_context
def make_command(
    ctx: click.Context,
    names: tuple[str, ...],
    catalogue_name: str,
    out: Path,
    key: Path | None,
    inventory: Path,
    results: Path,
    as_json: bool,
) -> None:
    """Write the certificate of nodes as one page, with its JSON beside it.

    NODES are names as Slurm writes them (n[01-18]). GROUP is a group of the inventory.
    """
    if out.suffix != ".html":
        raise ToolError(f"--out {out}: name a page, FILE.html; the JSON is written beside it")
    catalogue = load_catalogue(catalogue_name)
    node_names, listed = _asked_nodes(names, inventory)
    with open_store(history_path(results)) as store:
        certificate = make_certificate(
            results, store, catalogue, node_names, now=datetime.now(UTC), command=("rackproof", *sys.argv[1:])
        )
    recorded = (node.name for piece in certificate.evidence if not piece.gone for node in piece.nodes)
    known_names = {*listed, *(node.name for node in certificate.nodes), *recorded}
    refuse_unknown_names(
        node_names, known_names, f"no such group or node in {inventory}, and no run of it in {results}"
    )
    _refuse_without_evidence(certificate, inventory, results)
    for remark in interrupted_nights(results, node_names):
        click.echo(f"note: {sanitize(remark, 600)}", err=True)
    certificate = _write(certificate, out, key)
    if as_json:
        print_json(json_value(certificate))
    else:
        title = sanitize(catalogue.title, 300)
        click.echo(f"{certificate.verdict.value}: {title}, {amount(len(node_names), 'node')}: {out}")
        click.echo(f"inventory: {_inventory_text(inventory)}")
        click.echo(_answer_text(certificate, certificate.answers))
        for line in _measuring_lines(certificate, names, inventory, results):
            click.echo(line)
    ctx.exit(exit_status(certificate.verdict))


def _refuse_without_evidence(certificate: Certificate, inventory: Path, results: Path) -> None:
    """Refuse a certificate without any evidence, which a wrong inventory gives, for example.

    A lost or damaged record is no evidence here, because it does not show which nodes were judged.

    Raises:
        ToolError: No readable night or run has any of the requested nodes.
    """
    if certificate.nodes or any(not piece.gone for piece in certificate.evidence):
        return
    names_text = sanitize(compress_hostlist(certificate.asked), 200)
    raise ToolError(
        f"no readable night or run in {results} has any of {names_text}, so no certificate is made: the "
        f"inventory is {_inventory_text(inventory)}; name another with -i, or other results with --results"
    )


def _inventory_text(inventory: Path) -> str:
    """Return the inventory that was read, for the operator."""
    return (
        sanitize(inventory, 400)
        if inventory.exists()
        else f"none ({sanitize(inventory, 400)} does not exist)"
    )


def _asked_nodes(names: Sequence[str], inventory: Path) -> tuple[list[str], list[str]]:
    """Return the nodes for names of nodes and of groups, and all names in the inventory.

    Raises:
        ToolError: A name belongs to an empty group, or names no node.
    """
    listed_inventory = list_inventory(inventory)[0] if inventory.exists() else None
    groups = listed_inventory.groups if listed_inventory else {}
    node_names: dict[str, None] = {}
    for name in names:
        hosts = groups.get(name) or expand_hostlist(name)
        if not hosts or (name in groups and not groups[name]):
            raise ToolError(f"{name} names no node")
        node_names |= dict.fromkeys(hosts)
    return list(node_names), [*groups, *(listed_inventory.hosts if listed_inventory else ())]


def _write(certificate: Certificate, out: Path, key: Path | None) -> Certificate:
    """Write page, JSON and signature. Return the certificate with the digest of its page."""
    shell = certificate_shell(certificate)
    certificate = certificate.model_copy(update={"page_sha256": shell_digest(shell)})
    certificate_json = dump_certificate(certificate)
    signature = sign_bytes(certificate_json, key) if key else ""
    write_file(out, fill_page(PageParts(shell, certificate_json, signature)))
    for suffix, copy in zip(BESIDE, (certificate_json, signature.encode()), strict=True):
        if copy:
            write_file(out.with_suffix(suffix), copy)
        else:
            # Remove the signature of an earlier certificate, which does not belong to this one.
            out.with_suffix(suffix).unlink(missing_ok=True)
    return certificate


def _answer_text(certificate: Certificate, answers: Sequence[Answer]) -> str:
    """Return the number of each answer, and a table of the requirements that are measured."""
    texts = {row.id: _requirement_text(row) for row in certificate.catalogue.requirements if row.is_measured}
    rows = [
        (
            answer.id,
            answer.verdict.value,
            f"{answer.until:%Y-%m-%d}" if answer.until else "-",
            reasons_text(answer, _SHOWN_REASONS, 300) or sanitize(texts[answer.id], 300),
        )
        for answer in answers
        if answer.id in texts
    ]
    columns = ("Requirement", "Answer", "Until", "Why")
    judged = f"Judged: {judged_text(certificate)}."
    notes = filter(None, (limits_text(certificate),))
    lines = [
        count_text(certificate, answers),
        judged,
        *notes,
        *text_table(columns, rows, terminal_width(), (3,)),
    ]
    if len(rows) < len(answers):
        lines.append("The page lists the requirements that Rackproof does not measure.")
    return "\n".join(lines)


def _requirement_text(row: Requirement) -> str:
    """Return a requirement in words, with its codes and their sources if only these count."""
    return f"{row.text} Judged by: {row.basis}" if row.codes else row.text


def _measuring_lines(
    certificate: Certificate, names: Sequence[str], inventory: Path, results: Path
) -> list[str]:
    """Return the playbooks that measure what is unproven, and what needs more GPUs, or an empty list."""
    playbooks, too_large = advise_measuring(certificate, _known_definitions(certificate))
    inventories = [str(inventory)] if inventory.exists() else []
    lines = [
        add_inventory(_playbook_command(measuring, certificate, names, results), inventories)
        for measuring in playbooks
    ]
    if lines:
        lines.insert(0, "Unproven for want of a measurement, if the reasons do not say otherwise:")
    if too_large:
        lines.append("These need more GPUs than a node has. A catalogue for such nodes leaves out the rows:")
    for measuring in too_large:
        nodes_text = sanitize(compress_hostlist(measuring.nodes), 200)
        needs = f"{', '.join(measuring.names)} on {nodes_text} ({amount(measuring.gpus or 0, 'GPU')})"
        lines.append(f"  {needs}  # {', '.join(measuring.ids)}")
    return lines


def _playbook_command(
    measuring: Measuring, certificate: Certificate, names: Sequence[str], results: Path
) -> str:
    """Return the command of a playbook that measures, with its requirements as a comment."""
    # Ansible reads n[01-18] as another pattern.
    is_whole = len(measuring.nodes) == len(certificate.asked) and not any("[" in name for name in names)
    nodes = (name for name in certificate.asked if name in measuring.nodes)
    limit = shell_word(",".join(names if is_whole else nodes))
    (name,) = measuring.names
    is_night = name == NIGHT
    playbook = NIGHT if is_night else f"bench.yml -e benchmark={name}"
    variables: dict[str, object] = {"bench_parameters": {"gpus": measuring.gpus}} if measuring.gpus else {}
    # add_results leaves the usual folder out.
    if add_results("rackproof history", results) != "rackproof history":
        variables["validate_results" if is_night else "bench_results"] = str(results)
    # Ansible splits key=value at blanks.
    option = f" -e {shell_word(json.dumps(variables))}" if variables else ""
    return f"  ansible-playbook {playbook} -l {limit}{option}  # {', '.join(measuring.ids)}"


def _known_definitions(certificate: Certificate) -> dict[str, Definition]:
    """Return the definitions of a catalogue's benchmarks that the checkout has."""
    names = {name for row in certificate.catalogue.requirements for name in row.benchmarks}
    try:
        folder = find_checkout("bench.yml", None) / "benchmarks"
    except ToolError:
        return {}
    definitions = {}
    for name in names:
        # A site may have its definitions elsewhere. The advice then does not know how many GPUs they need.
        with suppress(DefinitionError):
            loaded = load_definitions(folder, log_formats=FORMATS, names=[name])
            definitions[name] = loaded[name].definition
    return definitions


@evidence_group.command("verify")
@click.argument("file", type=click.Path(path_type=Path, exists=True, dir_okay=False), metavar="FILE")
@click.option(
    "--signers", type=click.Path(path_type=Path), help="File of allowed signers, as for ssh-keygen -Y."
)
@click.option("--unsigned", is_flag=True, help="Accept a page without a signature.")
@json_option
@click.pass_context
def verify_command(
    ctx: click.Context, file: Path, signers: Path | None, unsigned: bool, as_json: bool
) -> None:
    """Verify a certificate offline.

    The checks cover the signature, the page and its JSON, the answers, and the age. FILE is the page. The
    results folder is not needed.
    """
    beside = {suffix: path for suffix in BESIDE if (path := file.with_suffix(suffix)).exists()}
    verification = verify_certificate(
        _read(file),
        {suffix: _read(path) for suffix, path in beside.items()},
        datetime.now(UTC),
        signers,
        allow_unsigned=unsigned,
        render=certificate_shell,
    )
    if as_json:
        print_json(json_value(verification))
    else:
        click.echo(_verification_text(verification))
    ctx.exit(exit_status(verification.verdict))


def _read(file: Path) -> bytes:
    """Return the content of a file.

    Raises:
        ToolError: The file cannot be read.
    """
    try:
        return read_file(file, RECORD_LIMIT_BYTES)
    except OSError as error:
        raise ToolError(f"cannot read {file}: {error.strerror}") from None


def _verification_text(verification: Verification) -> str:
    """Return the text that the command prints about a verified certificate."""
    nameless = "no signer is proven" if verification.objections else "unsigned"
    signer = f"signed by {verification.signer}" if verification.signer else nameless
    # A page may also be unproven because evidence is missing, so the first line states whether
    # it was altered.
    refused = "; do not rely on this page, because" if verification.objections else ""
    lines = [f"{verification.verdict.value}: {signer}{refused}"]
    lines += [f"  {objection}" for objection in verification.objections]
    lines += [f"  expired: {expired}" for expired in verification.expired]
    lines += [f"note: {remark}" for remark in verification.remarks]
    tables = []
    if verification.certificate is not None:
        title = verification.certificate.catalogue.title
        lines.append(f"{title}, made {verification.certificate.made:%Y-%m-%d %H:%M} UTC")
        lines.append(f"nodes: {sanitize(compress_hostlist(verification.certificate.asked), 400)}")
        if not verification.objections:
            tables.append(_answer_text(verification.certificate, verification.answers))
    return "\n".join([*(sanitize(line, 600) for line in lines), *tables])


@evidence_group.command("compare")
@click.argument("old", type=click.Path(path_type=Path, exists=True, dir_okay=False), metavar="OLD")
@click.argument("new", type=click.Path(path_type=Path, exists=True, dir_okay=False), metavar="NEW")
@json_option
def compare_certificates_command(old: Path, new: Path, as_json: bool) -> None:
    """Show the changes of parts, versions, speeds, rules and answers between two certificates.

    OLD and NEW are pages. Verify them first, because this command does not check signatures.
    """
    before, after = (load_certificate(split_page(_read(file)).json) for file in (old, new))
    changes = certificate_changes(before, after)
    if as_json:
        print_json([json_value(change) for change in changes])
    elif changes:
        columns = ("What", "Where", "Which", "Before", "Now")
        rows = [
            tuple(
                sanitize(text, 200) or "-"
                for text in (change.kind, change.where, change.what, change.old, change.new)
            )
            for change in changes
        ]
        click.echo("\n".join(text_table(columns, rows, terminal_width(), (1, 2))))
    else:
        click.echo(
            "nothing changed: same parts, same versions, speeds within their bounds, same answers, and the "
            "same requirements, limits, expectations and references"
        )
