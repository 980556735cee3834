"""orch schema: print the JSON Schema of a document, for editors."""

from __future__ import annotations

import json

import click

from orchestrator.cli.group import orch


@orch.command(epilog="Example: orch schema job > job.schema.json")
@click.argument("document", type=click.Choice(["job", "profile"]))
def schema(document: str) -> int:
    """Print the JSON Schema of job or profile files."""
    from orchestrator.specs.json_schema import schema as schema_of

    click.echo(json.dumps(schema_of(document), indent=2, ensure_ascii=False))
    return 0
