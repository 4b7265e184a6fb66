"""Define ``rackproof score``, which scores MLPerf results by the rules of a round."""

from __future__ import annotations

from pathlib import Path

import click

from rackproof.analysis.mlperf.score import FolderScore, score_folder
from rackproof.cli.errors import ToolError
from rackproof.cli.options import json_option, ruleset_option
from rackproof.cli.output import exit_status, one_or_all, print_json, terminal_width
from rackproof.core.records import worst
from rackproof.core.text import amount, sanitize
from rackproof.report.terminal import text_table


@click.command("score")
@click.argument("folders", nargs=-1, required=True, metavar="DIR...", type=click.Path(path_type=Path))
@ruleset_option
@click.option(
    "--usage",
    default="training",
    show_default=True,
    type=click.Choice(["training", "hpc"]),
    help="MLPerf suite of the logs.",
)
@click.option("--timeout", default=300.0, show_default=True, help="Seconds until the checks are stopped.")
@json_option
@click.pass_context
def score_command(
    ctx: click.Context,
    folders: tuple[Path, ...],
    ruleset: str | None,
    usage: str,
    timeout: float,
    as_json: bool,
) -> None:
    """Score folders of MLPerf results by the rules of a round.

    DIR holds the result logs of one benchmark on one system. Compliance and convergence are checked by
    mlperf-logging, on a copy. The exit status is that of the worst folder.
    """
    scores = []
    for folder in folders:
        try:
            scores.append(score_folder(folder, ruleset=ruleset, usage=usage, timeout_s=timeout))
        # Catch this here, where the folder's name is known. One bad folder ends the command before any
        # output.
        except NotADirectoryError:
            raise ToolError(f"{folder} is not a folder; name one that holds result logs") from None
        except ValueError as error:
            raise ToolError(str(error)) from None
    if as_json:
        print_json(one_or_all(scores))
    else:
        click.echo("\n".join(_score_text(score) for score in scores), nl=False)
    ctx.exit(exit_status(worst(score.verdict for score in scores)))


def _score_text(score: FolderScore) -> str:
    """Return the text that the command prints about a folder."""
    lines = [f"{sanitize(score.folder, 300)}: {score.verdict.value}"]
    if score.runs:
        # Cells quote the result logs.
        head, *rows = [[sanitize(cell, 200) for cell in row] for row in score.rows()]
        lines += text_table(head, rows, terminal_width(), (0,))
    lines.append(_facts_line(score))
    if score.olympic_mean_minutes is not None:
        mean = f"olympic mean {score.olympic_mean_minutes:.3f} min"
        lines.append(f"{mean}, RCP scaling {score.scaling_factor:.6g}")
    if score.rcp is not None and score.rcp.message:
        lines.append(f"convergence: {sanitize(score.rcp.message, 400)}")
    lines.append(f"score: {score.minutes:.3f} min" if score.minutes is not None else "score: none")
    lines += [f"- {sanitize(reason, 600)}" for reason in score.reasons]
    return "\n".join(lines) + "\n"


def _facts_line(score: FolderScore) -> str:
    """Describe the scored result, with benchmark, rules, and the number of runs."""
    benchmark = sanitize(score.benchmark or "unknown benchmark", 100)
    needed = "?" if score.runs_needed is None else str(score.runs_needed)
    rules = f"rules {sanitize(score.ruleset, 20)}" if score.ruleset else "rules unknown"
    if score.ruleset_origin:
        rules += f" (by {score.ruleset_origin})"
    return f"{benchmark}, {rules}, {amount(score.runs_found, 'run')} of {needed} needed"
