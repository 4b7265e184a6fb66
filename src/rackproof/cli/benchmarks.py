"""Define ``rackproof benchmarks``, which lists the benchmarks of bench.yml."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from rackproof.cli.errors import EXIT_ERROR, refuse_unknown_names
from rackproof.cli.options import json_option
from rackproof.cli.output import print_json, terminal_width
from rackproof.core.definitions import benchmarks_by_suite, load_valid_definitions
from rackproof.core.text import sanitize
from rackproof.logs import FORMATS
from rackproof.report.terminal import text_table


@click.command("benchmarks")
@click.option(
    "--definitions",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("benchmarks"),
    show_default=True,
    help="Folder of the definitions (bench_definitions).",
)
@click.option("--suite", help="List only benchmarks of this suite.")
@click.option("--unpinned", is_flag=True, help="List only benchmarks with an unpinned image, and the images.")
@json_option
def benchmarks_command(definitions: Path, suite: str | None, unpinned: bool, as_json: bool) -> None:
    """List the benchmarks and the suites that they belong to.

    Pin an image with `bench_images` or `bench_image_tags`: REPOSITORY:TAG@sha256:DIGEST. An image that is
    built on the node is unpinned if its Dockerfile names base images by tag.

    Run one with `ansible-playbook bench.yml -l HOSTS -e benchmark=NAME`, a suite with `-e suite=NAME`.
    """
    loaded_definitions, mistakes = load_valid_definitions(definitions, log_formats=FORMATS)
    rows = [
        {
            "name": loaded.name,
            "summary": loaded.definition.summary,
            "suites": sorted(loaded.definition.suites),
            "parameters": sorted(loaded.definition.parameters),
            "unpinned_images": list(loaded.definition.unpinned_images),
        }
        for loaded in loaded_definitions.values()
        if (suite is None or suite in loaded.definition.suites)
        and (loaded.definition.unpinned_images or not unpinned)
    ]
    if as_json:
        print_json(rows)
    else:
        click.echo(_table(rows, unpinned=unpinned) if rows else "no such benchmarks")
    if suite is not None and not mistakes:
        refuse_unknown_names([suite], benchmarks_by_suite(loaded_definitions), "no such suite")
    for mistake in mistakes:
        click.echo(f"note: not listed: {sanitize(mistake, 2000, newlines=True)}", err=True)
    if mistakes:
        raise click.exceptions.Exit(EXIT_ERROR)


def _table(rows: Sequence[Mapping[str, Any]], *, unpinned: bool) -> str:
    """Return the table that the command prints, with the unpinned images or else suites and summary."""
    if unpinned:
        images = [(str(row["name"]), ", ".join(row["unpinned_images"])) for row in rows]
        return "\n".join(text_table(("Benchmark", "Images"), images, terminal_width(), (1,)))
    cells = [
        (str(row["name"]), ", ".join(row["suites"]) or "-", sanitize(row["summary"], 300)) for row in rows
    ]
    return "\n".join(text_table(("Benchmark", "Suites", "Summary"), cells, terminal_width(), (1, 2)))
