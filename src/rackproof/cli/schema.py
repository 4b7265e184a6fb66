"""Define ``rackproof schema``, which prints the format of run.json."""

from __future__ import annotations

import json

import click

from rackproof.core.records import json_schema


@click.command("schema")
def schema_command() -> None:
    """Print the JSON Schema of run.json."""
    click.echo(json.dumps(json_schema(), indent=2))
