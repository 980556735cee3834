"""Base classes of frozen dataclasses that are cheap to define, because every command defines many at its start.

`dataclasses.dataclass` compiles new methods for each class, which takes 0.5 ms for a class with 8 fields. `Frozen` has
the methods once for all its subclasses, so defining a subclass takes 0.04 ms.
"""

from collections.abc import KeysView
from dataclasses import MISSING, Field, dataclass, field, fields
from functools import cache
from typing import TYPE_CHECKING, Any, Callable

if TYPE_CHECKING:
    from typing_extensions import dataclass_transform
else:

    def dataclass_transform(**_: Any) -> Any:
        """Tell type checkers that subclasses are dataclasses; at run time it does nothing."""
        return lambda decorated: decorated


def setting(description: str = "", *, default: Any = MISSING, default_factory: Any = MISSING, **about: Any) -> Any:
    """Return a dataclass field with a description. `about` has the bounds of the field's value under pydantic's names
    (`ge`, `pattern`).
    """
    about = {"description": description, **about} if description else about
    return field(default=default, default_factory=default_factory, metadata=about)


def default_of(each: "Field[Any]") -> Any:
    """Return the default of a field, or MISSING if the field has none."""
    return each.default if each.default_factory is MISSING else each.default_factory()


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(setting, field))
class Frozen:
    """A frozen dataclass. Its subclasses declare fields like any dataclass, and take them by keyword."""

    def __init_subclass__(cls) -> None:
        """Make the subclass a dataclass that uses the methods of this class.

        If the subclass declares an inherited field again with only a type, the field keeps its default and description.
        """
        inherited = getattr(cls, "__dataclass_fields__", {})
        for name in vars(cls).get("__annotations__", {}):
            if name in inherited and name not in vars(cls):
                default, factory = inherited[name].default, inherited[name].default_factory
                setattr(cls, name, field(default=default, default_factory=factory, metadata=inherited[name].metadata))
        dataclass(init=False, repr=False, eq=False)(cls)

    def __init__(self, *first: Any, **values: Any) -> None:
        """Set the fields. Raises TypeError for a field that is unknown, or that is missing and has no default."""
        cls: Any = type(self)
        taken, defaults, factories = _plan_of(cls)
        held = {**defaults, **dict(zip(taken, first)), **values}
        for name, factory in factories.items():
            if held[name] is MISSING:
                held[name] = factory()
        missing = [name for name, value in held.items() if value is MISSING]
        if missing or len(first) > len(taken) or not values.keys() <= taken:
            wrong = [*missing, *sorted(values.keys() - taken), *map(repr, first[len(taken) :])]
            raise TypeError(f"{type(self).__name__}: fields are missing, unknown or too many: {', '.join(wrong)}")
        self.__dict__.update(held)

    def __setattr__(self, name: str, value: Any) -> None:
        """Raise AttributeError, because the values are frozen."""
        raise AttributeError(f"{type(self).__name__}.{name} can't be set: it is frozen")

    def __eq__(self, other: object) -> bool:
        """Return whether the other object is of the same class and has the same values."""
        return _compared(self) == _compared(other) if type(other) is type(self) else NotImplemented

    def __hash__(self) -> int:
        """Return a hash of the values, which must be hashable."""
        return hash((type(self), *_compared(self)))

    def __repr__(self) -> str:
        """Return the name of the class with the values."""
        shown = ((each.name, getattr(self, each.name)) for each in fields(self) if each.repr)  # type: ignore[arg-type]
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in shown)})"


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
class Value(Frozen):
    """A frozen dataclass whose fields can be given by position as well as by name."""


@cache
def _plan_of(cls: Any) -> "tuple[KeysView[str], dict[str, Any], dict[str, Callable[[], Any]]]":
    """Return (names of the constructor's parameters, defaults of all fields, default factories by field)."""
    every = fields(cls)
    factories: dict[str, Any] = {
        each.name: each.default_factory for each in every if each.default_factory is not MISSING
    }
    taken = {each.name: None for each in every if each.init}
    return taken.keys(), {each.name: each.default for each in every}, factories


def _compared(value: Any) -> list[Any]:
    return [getattr(value, each.name) for each in fields(value) if each.compare]
