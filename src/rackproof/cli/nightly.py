"""Define ``rackproof nightly``: one night of validate.yml within limits."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from rackproof.cli.options import results_option
from rackproof.core.text import sanitize
from rackproof.jobs.validate.nightly import NightlySettings, run_nightly


@click.command("nightly")
@click.option(
    "--checkout",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path(),
    help="Checkout of Rackproof whose validate.yml is run; by default the present folder.",
)
@click.option("--limit", default="", help="Nodes or groups, as for ansible-playbook -l; by default all.")
@click.option("--timeout", default=14_400.0, show_default=True, help="Seconds until the playbook is stopped.")
@click.option("--drain", is_flag=True, help="Let it drain nodes that fail.")
@click.option("--resume", is_flag=True, help="Let it resume nodes that have passed twice.")
@click.option("--share", default=0.15, show_default=True, help="Largest share of a partition to drain.")
@click.option("--link", default="", help="Where the results folder is on the web.")
@click.option(
    "--metrics", type=click.Path(path_type=Path), help="Text file for Prometheus, such as .../rackproof.prom."
)
@click.option(
    "--gpu-minutes",
    type=click.FloatRange(min=0),
    help="Budget for measuring idle nodes.  [default: the inventory's, or nothing is measured]",
)
@click.option("--mail-to", multiple=True, help="Address to write to; may be repeated.")
@click.option("--mail-from", default="rackproof@localhost", show_default=True)
@click.option("--smtp", default="localhost:25", show_default=True, help="Mail server and port.")
@results_option
@click.pass_context
def nightly_command(
    ctx: click.Context,
    checkout: Path,
    limit: str,
    timeout: float,
    drain: bool,
    resume: bool,
    share: float,
    link: str,
    metrics: Path | None,
    gpu_minutes: float | None,
    mail_to: tuple[str, ...],
    mail_from: str,
    smtp: str,
    results: Path,
) -> None:
    """Validate the fleet once and report the changes.

    One at a time, bounded, and after an interruption simply started again. A webhook that takes Slack's
    messages is named by RACKPROOF_WEBHOOK_URL, a login to the mail server by RACKPROOF_SMTP_USER and
    RACKPROOF_SMTP_PASSWORD. Exit status: 0 pass, 2 a bad node, 3 unproven, 1 a fault of the tool itself.
    """
    variables = {
        "validate_drain": drain,
        "validate_resume": resume,
        "validate_max_drain_fraction": share,
    }
    # Left out unless it is given: an extra variable would override the inventory's budget.
    if gpu_minutes is not None:
        variables["validate_probe_gpu_minutes"] = gpu_minutes
    settings = NightlySettings(
        results=results,
        checkout=checkout,
        limit=limit,
        timeout_s=timeout,
        variables=variables,
        metrics=metrics,
        mail_to=mail_to,
        mail_from=mail_from,
        smtp=smtp,
        link=link,
    )
    # The playbook's output goes to standard error; standard output is the summary that cron mails.
    outcome = run_nightly(settings, sys.stderr)
    click.echo("\n".join(sanitize(line, 1000) for line in outcome.lines))
    ctx.exit(outcome.status)
