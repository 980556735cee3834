"""The JSON Schemas of jobs and profiles, for editors and other tools."""

from __future__ import annotations

from typing import Annotated, Any, Final, Union

from pydantic import Field

from orchestrator.specs import border
from orchestrator.specs.job import Job
from orchestrator.specs.kinds import every, model_of

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
# pydantic leaves its own keywords for a bound that follows a before-validator.
_KEYWORDS: Final = {"ge": "minimum", "gt": "exclusiveMinimum", "le": "maximum", "lt": "exclusiveMaximum"}
_PROGRAMS: Final = ("module", "script", "command", "training")


def schema(what: str) -> dict[str, Any]:
    """Return the JSON Schema of a `job` or `profile` document, for editors."""
    return _job_schema() if what == "job" else _profile_schema()


def _job_schema() -> dict[str, Any]:
    """Return the JSON Schema of a job file. `name` is optional, because it defaults to the file's name."""
    body = _tidy(border.json_schema(Job))
    body["required"] = [name for name in body.pop("required", []) if name != "name"]
    one_program = [{"required": [name]} for name in _PROGRAMS]
    return {**_head("job", "orch job", "What to run."), **body, "oneOf": one_program}


def _profile_schema() -> dict[str, Any]:
    """Return the JSON Schema of a profile file of any kind, including the kinds that installed packages add. Its
    `defaults` may have any field of a job.
    """
    union: Any = Union[tuple(model_of(kind) for kind in every())]  # noqa: UP007 (the classes are not static)
    body = _tidy(border.json_schema(Annotated[union, Field(discriminator="kind")]))
    body.pop("discriminator", None)  # a keyword of OpenAPI, which JSON Schema does not have
    job = _tidy(border.json_schema(Job))
    definitions = {**job.pop("$defs"), **body["$defs"]}
    job.pop("required", None)
    definitions["JobDefaults"] = job
    for reference in body["oneOf"]:
        profile = definitions[reference["$ref"].rpartition("/")[2]]
        profile["required"] = [name for name in profile["required"] if name != "name"]
        text = profile["properties"]["defaults"].get("description", "")
        profile["properties"]["defaults"] = {"$ref": "#/$defs/JobDefaults", "description": text}
    return {**_head("profile", "orch profile", "Where to run."), **body, "$defs": definitions}


def _head(what: str, title: str, description: str) -> dict[str, Any]:
    return {"$schema": DIALECT, "$id": f"urn:orch:schema:{what}:1", "title": title, "description": description}


def _tidy(schema: dict[str, Any]) -> dict[str, Any]:
    """Remove the model's docstring from the top, and all titles that pydantic derives from field names."""
    schema.pop("description", None)
    found: dict[str, Any] = tidied(schema)
    return found


def tidied(value: Any, *, names: bool = False) -> Any:
    """Return a schema of pydantic with the keywords of JSON Schema, such as `minimum` for `ge`, and without the titles
    that pydantic derives from field names.
    """
    if isinstance(value, list):
        return [tidied(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        key if names else _KEYWORDS.get(key, key): tidied(item, names=key in ("properties", "$defs") and not names)
        for key, item in value.items()
        if names or key != "title"
    }
