"""The JSON that a test reads from a command is compared with that command's schema, without room for other fields."""

from __future__ import annotations

from functools import cache
from typing import Any

from jsonschema import Draft202012Validator

from orchestrator.cli.group import ALIASES
from orchestrator.cli.output_schemas import OUTPUTS, output_schema


def closed(schema: Any) -> Any:
    """The schema that refuses fields which it does not name, except where it says that there may be others."""
    if isinstance(schema, list):
        return [closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    found = {name: closed(each) for name, each in schema.items()}
    return {"additionalProperties": False, **found} if isinstance(schema.get("properties"), dict) else found


@cache
def validator(command: str) -> Draft202012Validator:
    return Draft202012Validator(closed(output_schema(command)))


def problems(command: str, printed: Any) -> list[str]:
    """What a command has printed against its schema."""
    return [
        f"{each.json_path}: {each.message}" for each in validator(ALIASES.get(command, command)).iter_errors(printed)
    ]


def check(argv: tuple[str, ...], printed: Any) -> None:
    """Compare what a command line has printed with the schema of its command."""
    if argv and "--json" in argv and ALIASES.get(argv[0], argv[0]) in OUTPUTS:
        assert problems(argv[0], printed) == []
