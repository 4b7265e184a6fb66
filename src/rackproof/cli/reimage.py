"""Define ``rackproof reimage``, with the progress of nodes, the forecast of a fleet, and images."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from rackproof.cli.errors import ToolError, refuse_unknown_names, require_results
from rackproof.cli.options import json_option, results_option
from rackproof.cli.output import json_value, print_json, terminal_width
from rackproof.cli.playbooks import playbook_command
from rackproof.core.advised_commands import add_inventory
from rackproof.core.hostlist import expand_names
from rackproof.core.text import duration, number, percent, sanitize, size
from rackproof.jobs.reimage.forecast import GBIT, GIB, Assumptions, Forecast, forecast, saturation_nodes
from rackproof.jobs.reimage.images import describe_image
from rackproof.jobs.reimage.tasks import NodeStatus, read_progress
from rackproof.report.terminal import text_table
from rackproof.store.night_store import last_inventory
from rackproof.store.run_folder import write_file

_FORECAST_SIZES = (8, 16, 32, 64, 128)
"""Numbers of nodes at a time, without ``--at-once``."""


class _ReimageGroup(click.Group):
    """The commands about re-imaging. If an option comes in place of a command, the playbook runs with it."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read arguments that begin with an option other than ``--help`` as arguments of ansible-playbook."""
        if args and args[0].startswith("-") and args[0] not in ctx.help_option_names:
            args = [_PLAYBOOK, *args]
        return super().parse_args(ctx, args)


@click.group("reimage", cls=_ReimageGroup)
def reimage_group() -> None:
    """Re-image nodes, show their progress, or forecast a fleet.

    With options of ansible-playbook (rackproof reimage -l NODES), the command runs reimage.yml and shows one
    line for each node. Command status reads the journals that reimage.yml writes, the newest one of each
    node.
    """


_PLAYBOOK = "run"
"""Name of the command that runs reimage.yml."""
reimage_group.add_command(
    playbook_command(
        _PLAYBOOK,
        "reimage.yml",
        "Re-image nodes, and resume those that pass their acceptance.",
        "rackproof reimage -l NODES is the same.",
    )
)


@reimage_group.command("status")
@click.argument("nodes", nargs=-1, metavar="[NODE...]")
@click.option("--all", "show_all", is_flag=True, help="Also list nodes that are back in service.")
@results_option
@json_option
def status_command(nodes: tuple[str, ...], show_all: bool, results: Path, as_json: bool) -> None:
    """Print the step of every node with its duration, and the next command."""
    names = expand_names(nodes)
    if names:
        require_results(results)
    statuses = read_progress(results, names or None)
    if as_json:
        print_json([json_value(node) for node in statuses])
    # A node that was named explicitly is shown in any state.
    elif shown := [node for node in statuses if show_all or names or _is_in_progress(node)]:
        _print_status(shown, last_inventory(results))
    elif not names:
        place = sanitize(results, 4000)
        click.echo("no node is being imaged" if statuses else f"no node was ever imaged from {place}")
    refuse_unknown_names(names, [node.node for node in read_progress(results)], "never imaged from here")


def _is_in_progress(status: NodeStatus) -> bool:
    """Return whether the imaging of a node is not finished."""
    return status.progress.state != "returned"


def _print_status(statuses: Sequence[NodeStatus], inventory: Sequence[str]) -> None:
    """Print a row for each node, and the command that continues all of them.

    ``inventory`` is the inventory of the last night.
    """
    rows = [
        (node.node, node.text, str(node.progress.attempt), sanitize(node.progress.reason, 200) or "-")
        for node in statuses
    ]
    lines = text_table(("Node", "Progress", "Attempt", "Reason"), rows, terminal_width(), (0, 1, 3))
    click.echo("\n".join(lines))
    # One command is enough, because the playbook continues each node from its own step.
    waiting = [node.node for node in statuses if node.next_command]
    if waiting:
        command = f"ansible-playbook reimage.yml -l {','.join(waiting)}"
        click.echo(f"next: {add_inventory(command, inventory)}")


@reimage_group.command("plan")
@click.option("--nodes", default=1000, show_default=True, type=click.IntRange(1, 100_000), help="Fleet size.")
@click.option("--at-once", multiple=True, type=click.IntRange(1), help="Nodes at a time. May be repeated.")
@click.option("--image-gib", default=8.0, show_default=True, help="Size of the image that a node fetches.")
@click.option("--server-gbit", default=25.0, show_default=True, help="Bandwidth of the image server.")
@click.option("--node-mb", default=500.0, show_default=True, help="MB/s that a node can receive and write.")
@click.option("--idle", default=0.5, show_default=True, help="Share of nodes that run no job when drained.")
@click.option("--job-minutes", default=60.0, show_default=True, help="Longest time that a job still runs.")
@click.option("--cores", default=16.0, show_default=True, help="Cores of the machine that runs the playbook.")
@click.option("--seed", default=1, show_default=True, help="Seed of the random times.")
@json_option
def plan_command(
    nodes: int,
    at_once: tuple[int, ...],
    image_gib: float,
    server_gbit: float,
    node_mb: float,
    idle: float,
    job_minutes: float,
    cores: float,
    seed: int,
    as_json: bool,
) -> None:
    """Simulate how long a fleet takes with N nodes at a time, and which resource is exhausted first."""
    try:
        assumptions = Assumptions(
            image_bytes=image_gib * GIB,
            server_rate=server_gbit * GBIT,
            # Disks and links are sold in powers of ten. Images are counted in powers of two.
            node_rate=node_mb * 1e6,
            idle=idle,
            job_s=job_minutes * 60,
            controller_cores=cores,
        )
        # Use the same seed for each size, so that the forecasts differ only by the size.
        forecasts = [forecast(nodes, count, assumptions, seed=seed) for count in at_once or _FORECAST_SIZES]
    except ValueError as error:
        raise ToolError(str(error)) from None
    if as_json:
        print_json([json_value(result) for result in forecasts])
        return
    heads = ("At once", "In waves", "Rolling", "Image", "Server peak", "Cores", "Node hours", "Limited by")
    rows = [_forecast_row(result) for result in forecasts]
    click.echo("\n".join(text_table(heads, rows, terminal_width(), (7,))))
    click.echo(f"the image server can serve {saturation_nodes(assumptions)} nodes at full speed")


def _forecast_row(result: Forecast) -> tuple[str, ...]:
    """Return a forecast as a row of the table."""
    return (
        str(result.at_once),
        duration(result.waves_s),
        duration(result.rolling_s),
        duration(result.image_s),
        f"{number(result.server_peak / GBIT)} Gbit/s",
        percent(result.controller_busy, sign=False),
        number(result.out_of_service_node_hours),
        result.limited_by,
    )


@reimage_group.command("image")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--output", type=click.Path(path_type=Path), help="The file to write.  [default: FILE.json]")
def image_command(file: Path, output: Path | None) -> None:
    """Describe the blocks of a raw image, so that nodes can check what they wrote."""
    try:
        image = describe_image(file)
    except ValueError as error:
        raise ToolError(str(error)) from None
    place = output or file.with_name(f"{file.name}.json")
    write_file(place, image.model_dump_json(indent=1).encode() + b"\n")
    click.echo(f"{place}: {size(image.bytes)}; a node fetches {size(image.fetched_bytes)}")
    click.echo(f"checksum: sha256:{image.sha256}")
