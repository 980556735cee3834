"""The base class of jobs, profiles and their parts, which are frozen dataclasses.

This module and the modules of the documents import no pydantic. `specs/border.py` reads the types of their fields, and
lets pydantic validate a document against these types. All other code gets plain dataclasses.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, Field, fields
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self, TypeVar

from orchestrator.protocol.frozen import Frozen, default_of, setting

if TYPE_CHECKING:  # a submission of cached documents must not load pydantic
    from pydantic import GetCoreSchemaHandler
    from pydantic_core import CoreSchema

__all__ = ["FORMAT_VERSION", "Spec", "names_of", "place_of", "restored", "setting", "to_json"]

S = TypeVar("S", bound="Spec")

FORMAT_VERSION: Final = 1
KNOWN: Final[dict[str, type[Spec]]] = {}
"""The classes of documents and their parts, by the names that `place_of` returns."""


class Spec(Frozen):
    """A document or a part of it. Unknown keys, and values of the wrong type, are refused.

    If a field's value is another part or a list of parts, `setting(part=...)` names the class of the parts, unless the
    default shows it. If the value maps names to parts, `by_name` is true too. `restored` reads both.
    """

    __pydantic_config__: ClassVar[Mapping[str, Any]] = {"extra": "forbid", "strict": True, "hide_input_in_errors": True}

    def __init_subclass__(cls) -> None:
        """Make the subclass a frozen dataclass, and register it in KNOWN."""
        super().__init_subclass__()
        KNOWN[place_of(cls)] = cls

    @classmethod
    def before(cls, data: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the mapping to validate in place of `data`. A subclass overrides this if a default depends on other
        fields.
        """
        return data

    def check(self) -> None:
        """Raise ValueError if fields contradict each other."""

    def given(self) -> dict[str, Any]:
        """Return the fields whose values differ from the defaults, in the order of their definition."""
        values = ((each, getattr(self, each.name)) for each in fields(self))
        return {each.name: value for each, value in values if value != default_of(each)}

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON types."""
        return {name: to_json(value) for name, value in vars(self).items()}

    @classmethod
    def __get_pydantic_core_schema__(cls, source: type[Self], handler: GetCoreSchemaHandler) -> CoreSchema:
        """Return the schema by which pydantic validates this part of a document. Only pydantic calls this."""
        from orchestrator.specs.border import schema_of

        return schema_of(source, handler)


def place_of(spec: type[Spec]) -> str:
    """Return the name of the class of a document, or of a part of it, as `module:Name`."""
    return f"{spec.__module__}:{spec.__qualname__}"


def names_of(spec: type[Spec]) -> tuple[str, ...]:
    """Return the names of a document's fields."""
    return tuple(each.name for each in fields(spec))


def to_json(value: Any) -> Any:
    """Return a value of a document as JSON types."""
    if isinstance(value, Spec):
        return value.to_json()
    if isinstance(value, dict):
        return {name: to_json(each) for name, each in value.items()}
    return [to_json(each) for each in value] if isinstance(value, tuple) else value


def restored(spec: type[S], data: Mapping[str, Any]) -> S:
    """Return the document that `to_json` wrote into a record. The document was validated before it was recorded.

    A field gets its default if it is missing, or if a damaged record has a value of another type. Unknown fields are
    ignored. Raises ValueError if a field without a default is missing.
    """
    values = {}
    for each in fields(spec):
        default = default_of(each)
        value = _restored(each, default, data[each.name]) if each.name in data else default
        if value is MISSING:
            raise ValueError(f"{spec.__name__} has no {each.name}")
        values[each.name] = value
    return spec(**values)


def _restored(each: Field[Any], default: Any, value: Any) -> Any:
    part = type(default) if isinstance(default, Spec) else each.metadata.get("part")
    try:
        if part is None:
            value = _with_tuples(value)
        elif each.metadata.get("by_name"):
            value = {name: restored(part, item) for name, item in value.items()}
        elif isinstance(value, list):
            value = tuple(restored(part, item) for item in value)
        elif value is not None:
            value = restored(part, value)
    except (ValueError, TypeError, AttributeError):  # the part is damaged
        return default
    return value if _may_replace(value, default) else default


def _with_tuples(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(map(_with_tuples, value))
    return {name: _with_tuples(item) for name, item in value.items()} if isinstance(value, dict) else value


def _may_replace(value: Any, default: Any) -> bool:
    """Return False if the type of a value shows that it is damaged. If the default is a text such as `auto`, a value of
    any type is accepted.
    """
    if default is MISSING:
        return value is not None
    if default is None or isinstance(default, str):
        return True
    if isinstance(default, Spec | tuple | dict | bool):
        return isinstance(value, type(default))
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))
