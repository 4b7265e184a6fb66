"""Define the command ``rackproof`` with its group of commands and common options.

To add a command, write its module, and add the command to :data:`COMMANDS`.

The module of a command is imported when the command is used, so that module may import all it needs at its
top. This module must not, because the import of Pydantic or SQLAlchemy alone takes longer than ``rackproof
--help`` may take.
"""

from __future__ import annotations

import importlib
import signal
import sys
from collections.abc import Mapping
from types import FrameType
from typing import Any, NamedTuple

import click

from rackproof import __version__
from rackproof.cli.arguments import refuse_unfit_values
from rackproof.cli.errors import InterruptedCommand, ToolError, operator_message, usage_errors_end_with_1
from rackproof.cli.options import RESULTS_KEY
from rackproof.core.advised_commands import add_results
from rackproof.core.file_modes import hide_from_others

_EPILOG = """\b
Exit status of parse, score, import, submission, nightly and evidence:
  0  pass (degraded, too)
  1  usage error, or the tool itself failed
  2  fail
  3  unproven
Commands that run a playbook end with its status. lint-inventory ends with 2 for
a mistake in the inventory. The other commands end with 0, or with 1 on an error.
"""


class LazyCommand(NamedTuple):
    """A command by its place (``module:name``) and its line in ``--help``.

    The line is the first line of the command's own help.
    """

    location: str
    summary: str


COMMANDS: Mapping[str, LazyCommand] = {
    "accept": LazyCommand(
        "rackproof.cli.history:accept_command",
        "Make the numbers of a run, or of all runs of a plan, references for the hardware they ran on.",
    ),
    "adopt": LazyCommand(
        "rackproof.cli.adopt:adopt_command",
        "Make an inventory of an existing cluster without access to its nodes.",
    ),
    "audit": LazyCommand(
        "rackproof.cli.status:audit_command",
        "List every drain, resume, accept and withdraw with its user, time and reason.",
    ),
    "bench": LazyCommand(
        "rackproof.cli.playbooks:bench_command",
        "Benchmark a machine or a rack and judge the result.",
    ),
    "benchmarks": LazyCommand(
        "rackproof.cli.benchmarks:benchmarks_command",
        "List the benchmarks and the suites that they belong to.",
    ),
    "compare": LazyCommand(
        "rackproof.cli.compare:compare_command",
        "Compare systems over repeats, or two runs measurement by measurement.",
    ),
    "evidence": LazyCommand(
        "rackproof.cli.evidence:evidence_group",
        "Certify nodes by a catalogue of requirements, and verify or compare certificates.",
    ),
    "explain": LazyCommand(
        "rackproof.cli.explain:explain_command",
        "Explain why a node is in its present state, or the meaning of a finding code.",
    ),
    "history": LazyCommand(
        "rackproof.cli.history:history_command",
        "List runs in the history, newest first.",
    ),
    "import": LazyCommand(
        "rackproof.cli.import_logs:import_command",
        "Make runs from logs that were written elsewhere.",
    ),
    "lint-inventory": LazyCommand(
        "rackproof.cli.lint_inventory:lint_inventory_command",
        "List the mistakes of an inventory before any playbook runs, without access to its nodes.",
    ),
    "nightly": LazyCommand(
        "rackproof.cli.nightly:nightly_command",
        "Validate the fleet once and report the changes.",
    ),
    "parse": LazyCommand(
        "rackproof.cli.parse:parse_command",
        "Read logs and print their measurements, findings and verdict.",
    ),
    "provision": LazyCommand(
        "rackproof.cli.playbooks:provision_command",
        "Turn bare nodes into cluster nodes.",
    ),
    "references": LazyCommand(
        "rackproof.cli.references:references_command",
        "Propose a SKU's references, with bounds from the noise of repeated runs.",
    ),
    "reimage": LazyCommand(
        "rackproof.cli.reimage:reimage_group",
        "Re-image nodes, show their progress, or forecast a fleet.",
    ),
    "report": LazyCommand(
        "rackproof.cli.report:report_command",
        "Write the report of a run, or one report of several runs.",
    ),
    "schema": LazyCommand(
        "rackproof.cli.schema:schema_command",
        "Print the JSON Schema of run.json.",
    ),
    "score": LazyCommand(
        "rackproof.cli.score:score_command",
        "Score folders of MLPerf results by the rules of a round.",
    ),
    "status": LazyCommand(
        "rackproof.cli.status:fleet_status_command",
        "Show every node in one table, and the next command.",
    ),
    "stop": LazyCommand(
        "rackproof.cli.playbooks:stop_command",
        "End the benchmark jobs that run on nodes.",
    ),
    "submission": LazyCommand(
        "rackproof.cli.submission:submission_command",
        "Make a submission to an MLPerf round from runs of one system.",
    ),
    "validate": LazyCommand(
        "rackproof.cli.playbooks:validate_command",
        "Find the bad nodes of a fleet.",
    ),
    "withdraw": LazyCommand(
        "rackproof.cli.history:withdraw_command",
        "Withdraw the references that a run gave.",
    ),
}


class Program(click.Group):
    """The group of all commands: it imports them lazily, sets exit statuses, and shows errors as one line."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the commands."""
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command, or return ``None`` if there is none of this name."""
        if cmd_name not in COMMANDS:
            return None
        module, _, name = COMMANDS[cmd_name].location.partition(":")
        command: click.Command = getattr(importlib.import_module(module), name)
        refuse_unfit_values(command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find a command by the first argument. Return its name, the command, and the other arguments.

        Suggestions for an unknown name come from :data:`COMMANDS`, because no command is loaded.
        """
        try:
            return super().resolve_command(ctx, args)
        except click.NoSuchCommand as error:
            raise click.NoSuchCommand(error.command_name, possibilities=COMMANDS, ctx=ctx) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands in ``--help`` without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name].summary) for name in self.list_commands(ctx)])

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        """Read the program's own options."""
        with usage_errors_end_with_1():
            try:
                return super().make_context(*args, **kwargs)
            except BrokenPipeError:
                raise
            except OSError as error:
                # --help and --version print here.
                raise ToolError(operator_message(error)) from None

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command. Its error becomes one clear line, unless --debug is given."""
        with usage_errors_end_with_1():
            try:
                return super().invoke(ctx)
            except ToolError as error:
                raise ToolError(_named_results(ctx, error.message)) from None
            except KeyboardInterrupt:
                raise InterruptedCommand from None
            # Leave click's own exceptions to click. `| head` causes BrokenPipeError, and click then prints
            # nothing.
            except (click.ClickException, click.exceptions.Exit, click.Abort, BrokenPipeError):
                raise
            except Exception as error:
                if ctx.params.get("debug"):
                    raise
                raise ToolError(_named_results(ctx, operator_message(error))) from None


def _named_results(ctx: click.Context, text: str) -> str:
    """Return an error's text, with the results folder added to the commands in it."""
    results = ctx.meta.get(RESULTS_KEY)
    return text if results is None else add_results(text, results)


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Interrupt a command. A second Ctrl-C ends the process at once, without a traceback."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    raise KeyboardInterrupt


@click.group(
    cls=Program,
    epilog=_EPILOG,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
@click.version_option(__version__, prog_name="rackproof", message="%(prog)s %(version)s")
def main(debug: bool) -> None:
    """Read, score, judge and compare results of benchmarks on GPU nodes."""
    # The command is imported now, and may have to clean up after Ctrl-C.
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, _interrupt)
    hide_from_others()
    # A terminal without UTF-8 gets "?" for a character that it cannot show, not a traceback.
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")


if __name__ == "__main__":
    main()
