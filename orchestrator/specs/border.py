"""Validates user input with pydantic, and converts it to the dataclasses of job and profile."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from types import UnionType
from typing import Annotated, Any, Final, TypeVar, Union, get_args, get_origin, get_type_hints

from pydantic import Field, GetCoreSchemaHandler, TypeAdapter
from pydantic_core import CoreSchema, core_schema

from orchestrator.specs import fields as types
from orchestrator.specs.spec import Spec, names_of

S = TypeVar("S", bound=Spec)
BOUNDS: Final = {"least": "ge", "above": "gt", "matches": "pattern"}
"""Maps the names of bounds in `protocol/training_options.py` to pydantic's names."""


def read(spec: type[S], text: str) -> S:
    """Return the document (such as a job or a profile) that a JSON text describes. Raises pydantic's ValidationError,
    which `diagnostics` turns into sentences.
    """
    key: Any = spec  # mypy does not accept a class as hashable if its instances define __hash__
    made: S = _adapter(key).validate_json(text)
    return made


def valid(spec: type[S], values: Mapping[str, Any]) -> S:
    """Return the document with these values (JSON types). Raises pydantic's ValidationError if a value is invalid."""
    return read(spec, json.dumps(values))


def json_schema(spec: Any) -> dict[str, Any]:
    """Return the JSON Schema of a document, or of a union of documents."""
    return TypeAdapter(spec).json_schema(mode="validation")


def hints_of(spec: Any) -> dict[str, Any]:
    """Return the types of a document's fields, with their annotations for pydantic."""
    hints = get_type_hints(spec, localns=vars(types), include_extras=True)
    return {name: hints[name] for name in names_of(spec)}


@cache
def _adapter(spec: Any) -> TypeAdapter[Any]:
    return TypeAdapter(spec)


def schema_of(spec: type[Spec], handler: GetCoreSchemaHandler) -> CoreSchema:
    """Return pydantic's schema of a document, with its fields and its own hooks `before` and `check`."""
    for base in spec.__mro__:  # pydantic could not resolve all names in the text of a field's type
        if is_dataclass(base):
            hints = hints_of(base)
            for each in fields(base):
                each.type = _annotated(hints[each.name], each.metadata, is_mapping=each.default_factory is dict)

    def before(data: Any) -> Any:
        return spec.before(_tuples(data)) if isinstance(data, dict) else _tuples(data)

    def check(made: Spec) -> Spec:
        made.check()
        return made

    inner = core_schema.no_info_before_validator_function(before, handler(spec))
    return core_schema.no_info_after_validator_function(check, inner)


def _tuples(value: Any) -> Any:
    """Convert lists to tuples, because pydantic's strict mode refuses a list for a field that is a tuple."""
    if isinstance(value, list):
        return tuple(_tuples(item) for item in value)
    return {key: _tuples(item) for key, item in value.items()} if isinstance(value, dict) else value


def _annotated(hint: Any, about: Mapping[str, Any], *, is_mapping: bool) -> Any:
    """Return a field's type with its bounds. If the field's default is an empty mapping, the JSON Schema gets this
    default too.
    """
    bounds = {BOUNDS[word]: value for word, value in about.items() if word in BOUNDS}
    hint = _bounded(hint, bounds) if bounds else hint
    return Annotated[hint, Field(json_schema_extra={"default": {}})] if is_mapping else hint


def _bounded(hint: Any, bounds: Mapping[str, Any]) -> Any:
    if get_origin(hint) in (Union, UnionType):
        return Union[tuple(_bounded(part, bounds) for part in get_args(hint))]  # noqa: UP007 (the types are not static)
    return Annotated[hint, Field(**bounds)] if hint in (int, float, str) else hint
