"""Base class and parser of the frozen dataclasses that cross machines as JSON.

Other machines and processes may have written any JSON. So `read` checks the type and the bounds of each field, and
ignores fields that the class does not have. A class states bounds as `Annotated[int, Bounds(0, 10)]`. A subclass of
`Fields` needs no decorator: it becomes a dataclass when it is first used, because a process uses few of the classes.
"""

import contextlib
import dataclasses
import enum
import threading
import typing
from collections.abc import Mapping
from functools import cache, partial
from typing import TYPE_CHECKING, Annotated, Any, Callable, ClassVar, TypeVar, Union

from orchestrator.protocol.frozen import Frozen, default_of

if TYPE_CHECKING:
    from typing_extensions import dataclass_transform
else:
    from orchestrator.protocol.frozen import dataclass_transform


Made = TypeVar("Made")
Handler = TypeVar("Handler", bound=Callable[..., Any])
_Reader = Callable[[Any], Any]
_MISSING: Any = dataclasses.MISSING
_making = threading.RLock()


class DamagedError(ValueError):
    """A value does not have the type of its field, or is out of the field's bounds."""


class Bounds:
    """The least and the greatest value of a number, or the least and the greatest length of a text or a list."""

    def __init__(self, least: float, most: float) -> None:
        self.least, self.most = least, most


Count = Annotated[int, Bounds(0, 1 << 63)]
Rank = Annotated[int, Bounds(0, 1 << 24)]
Node = Annotated[int, Bounds(0, 1 << 20)]
Port = Annotated[int, Bounds(0, (1 << 16) - 1)]
Seconds = Annotated[float, Bounds(0.0, 1e300)]  # a job may set any limit


@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field,))
class Fields(Frozen):
    """The base of messages and events: a frozen dataclass that `read` parses and `to_json` writes."""

    def __init_subclass__(cls, **_: Any) -> None:
        """Leave the subclass as it is, because it becomes a dataclass only when it is first used."""

    def __init__(self, *first: Any, **values: Any) -> None:
        """Set the fields. Raises TypeError for a field that is unknown, or that is missing and has no default."""
        cls: Any = type(self)
        _plan_of(cls)
        super().__init__(*first, **values)


class _Field:
    def __init__(self, field: "dataclasses.Field[Any]", hint: Any) -> None:
        self.name, self.read, self.default = field.name, _reader_of(hint), default_of(field)
        self.is_stamp = not field.init  # whether the constructor does not take the field

    def is_told(self, value: Any) -> bool:
        return self.default is _MISSING or bool(value != self.default)


def read(cls: type[Made], data: Any, *, lenient: bool = False) -> Made:
    """Build an instance of a frozen dataclass from a JSON object.

    Raises DamagedError if a value does not fit its field. With `lenient`, a field with a default gets its default
    instead.
    """
    if not isinstance(data, Mapping):
        raise DamagedError(f"the value is not an object with the fields of {cls.__name__}")
    plan: Any = cls
    fields, defaults = _plan_of(plan)
    values = dict(defaults)  # in the order of the fields
    for name, value in data.items():
        if name not in fields:
            continue
        try:
            values[name] = fields[name].read(value)
        except DamagedError as error:
            if not lenient or fields[name].default is _MISSING:
                raise DamagedError(f"{name}: {error}") from None
    for name, value in values.items():
        if value is _MISSING:
            raise DamagedError(f"{name} is missing")
    made: Made = object.__new__(cls)
    made.__dict__.update(values)  # a frozen dataclass sets its fields one by one, which takes five times as long
    return made


def converted(value: Fields, cls: type[Made], **more: Any) -> Made:
    """Convert a value to another class. The result has the fields that both classes have, and the values in `more`."""
    target: Any = cls
    taken = {name for name, each in _plan_of(target)[0].items() if not each.is_stamp}
    return cls(**{**{name: held for name, held in vars(value).items() if name in taken}, **more})


def to_json(value: Any, *, stamps: bool = True, whole: bool = False) -> dict[str, Any]:
    """Return a dataclass as JSON types. Fields that equal their default are left out, because `read` restores them.

    Without `stamps`, the fields that are not parameters of the constructor are left out too. With `whole`, all
    parameters of the constructor are written, for readers that don't know the defaults.
    """
    found = {}
    for each in _plan_of(value.__class__)[0].values():
        held = getattr(value, each.name)
        if (stamps and each.is_told(held)) if each.is_stamp else (whole or each.is_told(held)):
            found[each.name] = _plain(held, whole)
    return found


def _plain(value: Any, whole: bool) -> Any:
    if value is None or isinstance(value, (str, int, float)):
        return value
    if isinstance(value, (tuple, list)):
        return [_plain(each, whole) for each in value]
    if isinstance(value, Mapping):
        return {str(name): _plain(each, whole) for name, each in value.items()}
    return to_json(value, whole=whole)


class OfKind(Fields):
    """A message or an event, whose JSON has the `kind` of its class. `kinds` maps each kind to its class."""

    kind: ClassVar[str] = ""
    kinds: ClassVar["Kinds[Any]"]

    def __init_subclass__(cls, kind: str = "", **more: Any) -> None:
        """Add the subclass to the table `kinds` if it has a kind."""
        super().__init_subclass__(**more)
        if kind:
            cls.kind = kind
            cls.kinds[kind] = cls

    def to_json(self) -> dict[str, Any]:
        """Return the message as JSON types, without the fields that equal their defaults."""
        return {"kind": self.kind, **to_json(self)}


class Kinds(dict[str, type[Made]]):
    """A table that maps each kind to its class. Orders, reports, requests and events have a table each."""

    def of(self, data: Any) -> "type[Made] | None":
        """Return the class for a JSON object, or None if its kind is unknown."""
        kind = data.get("kind") if isinstance(data, Mapping) else None
        return self.get(kind) if isinstance(kind, str) else None

    def read(self, data: Any, *, lenient: bool = False) -> "Made | None":
        """Parse a message or an event. Return None if its kind is unknown. Raises DamagedError if a field is
        damaged.
        """
        cls = self.of(data)
        return None if cls is None else read(cls, data, lenient=lenient)


class Handlers(dict[type, Callable[..., Any]]):
    """A table that maps the class of a message to its handler. The annotation of the handler's parameter names the
    class.
    """

    def __init__(self, base: type) -> None:
        super().__init__()
        self.base = base

    def add(self, handler: Handler) -> Handler:
        """Register a handler. Use this as a decorator."""
        hints = [each for name, each in handler.__annotations__.items() if name != "return"]
        found = [_named(each, handler.__globals__) if isinstance(each, str) else each for each in hints]
        (cls,) = [each for each in found if isinstance(each, type) and issubclass(each, self.base)]
        self[cls] = handler
        return handler


def _named(name: str, names: Mapping[str, Any]) -> Any:
    """Return the class with this name, which may be dotted; None if no class has this name."""
    first, *rest = name.split(".")
    found = names.get(first)
    for each in rest:
        found = getattr(found, each, None)
    return found


# -- the reader of each type


@cache
def _plan_of(cls: Any) -> tuple[dict[str, _Field], dict[str, Any]]:
    """Return (fields by name, defaults by name). The class and its bases are made dataclasses first if needed."""
    with _making:
        for each in reversed(cls.__mro__):
            if issubclass(each, Fields) and "__dataclass_fields__" not in vars(each):
                dataclasses.dataclass(init=False, repr=False, eq=False)(each)
    fields = dataclasses.fields(cls)
    if any(isinstance(each.type, str) for each in fields):
        hints = typing.get_type_hints(cls, include_extras=True)
    else:
        hints = {each.name: each.type for each in fields}
    plan = {each.name: _Field(each, hints[each.name]) for each in fields}
    return plan, {name: each.default for name, each in plan.items()}


@cache
def _reader_of(hint: Any) -> _Reader:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        return partial(_bounded, _reader_of(args[0]), args[1])
    if origin is Union:
        (inner,) = [each for each in args if each is not type(None)]
        return partial(_optional, _reader_of(inner))
    if origin is tuple:
        readers = tuple(_reader_of(each) for each in args if each is not Ellipsis)
        return partial(_items, readers[0]) if Ellipsis in args else partial(_row, readers)
    if origin is not None and issubclass(origin, Mapping):
        return partial(_mapping, _key if args[0] is int else _exactly(str), _reader_of(args[1]))
    if hint is Any:
        return lambda value: value
    if hint is float:
        return _float
    if dataclasses.is_dataclass(hint) or issubclass(hint, Fields):
        return partial(read, hint, lenient=True)
    return partial(_member, hint) if issubclass(hint, enum.Enum) else _exactly(hint)


def _exactly(cls: type) -> _Reader:
    def same(value: Any) -> Any:
        if type(value) is not cls:
            raise DamagedError(f"the value is not of type {cls.__name__}")
        return value

    return same


def _float(value: Any) -> float:
    if type(value) not in (int, float) or not -1e300 < value < 1e300:
        raise DamagedError("the value must be a finite number")
    return float(value)


def _member(cls: Any, value: Any) -> Any:
    try:
        return cls(value)
    except ValueError:
        raise DamagedError(f"the value is not of type {cls.__name__}") from None


def _bounded(reader: _Reader, bounds: Bounds, value: Any) -> Any:
    made = reader(value)
    size = made if isinstance(made, (int, float)) else len(made)
    if not bounds.least <= size <= bounds.most:
        raise DamagedError(f"the value, or its length, is not between {bounds.least:g} and {bounds.most:g}")
    return made


def _optional(reader: _Reader, value: Any) -> Any:
    return None if value is None else reader(value)


def _items(reader: _Reader, value: Any) -> tuple[Any, ...]:
    if not isinstance(value, (list, tuple)):
        raise DamagedError("the value is not a list")
    return tuple([reader(each) for each in value])


def _row(readers: tuple[_Reader, ...], value: Any) -> tuple[Any, ...]:
    if not isinstance(value, (list, tuple)) or len(value) != len(readers):
        raise DamagedError(f"the value is not a list of {len(readers)} values")
    return tuple([reader(each) for reader, each in zip(readers, value)])


def _mapping(key: _Reader, reader: _Reader, value: Any) -> dict[Any, Any]:
    """Parse a JSON object as a mapping. Damaged members are left out, because the other members do not depend on
    them.
    """
    if not isinstance(value, Mapping):
        raise DamagedError("the value is not an object")
    made = {}
    for name, each in value.items():
        with contextlib.suppress(DamagedError):
            made[key(name)] = reader(each)
    return made


def _key(value: Any) -> int:
    """Return the number that the name of a JSON object's member represents."""
    if type(value) is int:
        return value
    if not isinstance(value, str) or not value.isascii() or not value.isdecimal() or len(value) > 18:
        raise DamagedError("the value is not a number")
    return int(value)
