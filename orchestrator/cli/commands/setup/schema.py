"""orch schema: print the JSON Schema of a document or of a command's JSON, for editors and programs."""

from __future__ import annotations

import json

import click

from orchestrator.cli.group import orch
from orchestrator.errors import UsageError


@orch.command(epilog="Example: orch schema job > job.schema.json")
@click.argument("document", type=click.Choice(["job", "profile", "output"]))
@click.argument("command", required=False)
def schema(document: str, command: str | None) -> int:
    """Print the JSON Schema of jobs, profiles or a command's JSON.

    orch schema output COMMAND prints the schema of the JSON that COMMAND prints with --json.
    """
    if (document == "output") == (command is None):
        raise UsageError("COMMAND is only allowed with `orch schema output`", "orch schema output status")
    click.echo(json.dumps(_schema(document, command), indent=2, ensure_ascii=False))
    return 0


def _schema(document: str, command: str | None) -> dict[str, object]:
    if command is None:
        from orchestrator.specs.json_schema import schema as schema_of

        return schema_of(document)
    from orchestrator.cli.output_schemas import OUTPUTS, output_schema

    if command not in OUTPUTS:
        raise UsageError(f"orch {command} has no --json", f"these commands have it: {', '.join(OUTPUTS)}")
    return output_schema(command)
