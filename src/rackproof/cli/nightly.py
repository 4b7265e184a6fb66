"""Define ``rackproof nightly``, which runs one night of validate.yml within limits.

This module reads the options and shows the progress. :mod:`rackproof.jobs.validate.nightly` runs the night
and sends the messages.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from rackproof.cli.errors import EXIT_INTERRUPTED
from rackproof.cli.live_lines import LiveLines
from rackproof.cli.options import json_option, results_option
from rackproof.cli.output import print_json
from rackproof.cli.playbooks import find_checkout
from rackproof.cli.screen import Screen
from rackproof.core.text import sanitize
from rackproof.jobs.validate.nightly import NightlyOutcome, NightlySettings, run_nightly


@click.command("nightly")
@click.option(
    "--checkout",
    type=click.Path(path_type=Path, file_okay=False),
    help="Checkout of Rackproof whose validate.yml is run. The default is the current folder, or else the "
    "command's own.",
)
@click.option("--limit", default="", help="Nodes or groups, as for ansible-playbook -l.  [default: all]")
@click.option("--timeout", default=14_400.0, show_default=True, help="Seconds until the playbook is stopped.")
@click.option("--drain", is_flag=True, help="Drain nodes that fail.")
@click.option("--resume", is_flag=True, help="Resume nodes that have passed twice.")
@click.option("--share", default=0.15, show_default=True, help="Largest share of a partition to drain.")
@click.option("--link", default="", help="Web address of the results folder.")
@click.option(
    "--metrics", type=click.Path(path_type=Path), help="Text file for Prometheus, such as .../rackproof.prom."
)
@click.option(
    "--gpu-minutes",
    type=click.FloatRange(min=0),
    help="Budget for measuring idle nodes.  [default: the inventory's, or nothing is measured]",
)
@click.option("--mail-to", multiple=True, help="Address that gets the mail. May be repeated.")
@click.option("--mail-from", default="rackproof@localhost", show_default=True, help="Sender of the mail.")
@click.option("--smtp", default="localhost:25", show_default=True, help="Mail server and port.")
@click.option("-v", "--verbose", is_flag=True, help="Show Ansible's own output instead of a line per node.")
@results_option
@json_option
@click.pass_context
def nightly_command(
    ctx: click.Context,
    /,
    drain: bool,
    resume: bool,
    share: float,
    timeout: float,
    gpu_minutes: float | None,
    verbose: bool,
    as_json: bool,
    checkout: Path | None,
    **settings: Any,
) -> None:
    """Validate the fleet once and report the changes.

    Only one night runs at a time, within a time limit. After an interruption, start the command again.
    RACKPROOF_WEBHOOK_URL is the address of a webhook for messages in Slack's format. RACKPROOF_SMTP_USER and
    RACKPROOF_SMTP_PASSWORD are the login to the mail server. One line for each node shows its step on
    standard error.

    The exit status is 0 for a pass, 2 for a bad node, 3 for unproven, and 1 for a fault of the tool itself.
    """
    variables = {
        "validate_drain": drain,
        "validate_resume": resume,
        "validate_max_drain_fraction": share,
    }
    # Pass the budget only if it is given. An extra variable would override the inventory's budget.
    if gpu_minutes is not None:
        variables["validate_probe_gpu_minutes"] = gpu_minutes
    folder = checkout or find_checkout("validate.yml", None)
    night_settings = NightlySettings(timeout_s=timeout, variables=variables, checkout=folder, **settings)
    # Standard output is the summary that cron mails.
    view = _Night(Screen(sys.stderr), shows_ansible=verbose)
    try:
        outcome = run_nightly(night_settings, view)
    except KeyboardInterrupt:
        view.end(was_judged=True)
        click.echo("Interrupted; its playbook was ended. The same command finishes the night.", err=True)
        ctx.exit(EXIT_INTERRUPTED)
    view.end(was_judged=outcome.night is not None)
    if as_json:
        print_json(_outcome_json(outcome, night_settings.results))
    else:
        click.echo("\n".join(sanitize(line, 1000) for line in outcome.lines))
    ctx.exit(outcome.status)


class _Night:
    """The display of a night's playbook, with a line for each node or as Ansible's own output."""

    def __init__(self, screen: Screen, *, shows_ansible: bool) -> None:
        self._screen = screen
        self._shows_ansible = shows_ansible
        self._lines = LiveLines("validate", moves=screen.moves)
        self._new: list[str] = []
        self._verdict: list[str] = []

    def add_event(self, event: Mapping[str, Any]) -> None:
        """Keep the lines of an event until the next refresh, and lines about all nodes until the end."""
        if self._shows_ansible:
            return
        lines = self._lines.add_event(event, time.monotonic())
        if event.get("once"):
            self._verdict += lines
        else:
            self._new += lines

    def add_output(self, line: str) -> None:
        """Keep a line of Ansible's own output, if it is shown."""
        if self._shows_ansible:
            self._new.append(line)

    def refresh(self) -> None:
        """Print the new lines, and update the lines of the nodes."""
        now = time.monotonic()
        drawn: list[str] = []
        if not self._shows_ansible:
            self._new += self._lines.overdue(now)
            self._new += [] if self._screen.moves else self._lines.long_steps(now)
            columns, rows = self._screen.size()
            drawn = self._lines.lines(columns, rows, now) if self._screen.moves else []
        self._screen.show(self._new, drawn)
        self._new = []

    def end(self, *, was_judged: bool) -> None:
        """Show the last lines, and remove the lines of the nodes.

        Args:
            was_judged: Whether the command's own summary contains what the playbook reports about all
                nodes.
        """
        self._screen.show([*self._lines.finish(), *([] if was_judged else self._verdict)], [])


def _outcome_json(outcome: NightlyOutcome, results: Path) -> dict[str, Any]:
    """Return the outcome. Without a night, it has the same keys, with null or an empty list as value."""
    night = outcome.night
    return {
        "status": outcome.status,
        "night": night.night_id if night else None,
        "verdict": night.verdict.value if night else None,
        "folder": str(results / night.night_id) if night else None,
        "nodes": [
            {
                "node": node.node,
                "verdict": node.verdict.value,
                "reasons": node.reason_texts(),
                "plan": node.plan,
                "did": node.did,
            }
            for node in (night.nodes if night else ())
        ],
        "lines": [sanitize(line, 1000) for line in outcome.lines],
    }
