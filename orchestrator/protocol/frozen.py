"""The base of frozen dataclasses that have many fields and are made at the start of a command.

`dataclasses.dataclass` compiles methods of its own for each class, which takes 0.5 ms for a class with 8 fields. The
methods of a subclass of `Frozen` are written once, here, and making such a class takes 0.04 ms.
"""

from dataclasses import MISSING, Field, dataclass, field, fields
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing_extensions import dataclass_transform
else:

    def dataclass_transform(**_: Any) -> Any:
        """Tell type checkers that subclasses are dataclasses; at run time it does nothing."""
        return lambda decorated: decorated


def setting(description: str = "", *, default: Any = MISSING, default_factory: Any = MISSING, **about: Any) -> Any:
    """Return a field with its meaning. `about` says what its value may be, in pydantic's words (`ge`, `pattern`)."""
    about = {"description": description, **about} if description else about
    return field(default=default, default_factory=default_factory, metadata=about)


def default_of(each: "Field[Any]") -> Any:
    """Return the default of a field, or MISSING if the field must be given."""
    return each.default if each.default_factory is MISSING else each.default_factory()


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(setting, field))
class Frozen:
    """A frozen dataclass. Its subclasses state their fields as those of any dataclass, and are built by keyword."""

    def __init_subclass__(cls) -> None:
        """Make the subclass a dataclass that has the methods of this class.

        A field of which only the type is stated again keeps its default and its meaning.
        """
        inherited = getattr(cls, "__dataclass_fields__", {})
        for name in vars(cls).get("__annotations__", {}):
            if name in inherited and name not in vars(cls):
                default, factory = inherited[name].default, inherited[name].default_factory
                setattr(cls, name, field(default=default, default_factory=factory, metadata=inherited[name].metadata))
        dataclass(init=False, repr=False, eq=False)(cls)

    def __init__(self, *first: Any, **values: Any) -> None:
        """Set the fields. Raises TypeError for a field that is unknown, or that is missing and has no default."""
        known = {each.name: each for each in fields(self)}  # type: ignore[arg-type]
        values.update(zip(known, first))
        filled = {name: values[name] if name in values else default_of(each) for name, each in known.items()}
        missing = [name for name, value in filled.items() if value is MISSING]
        wrong = [*missing, *sorted(values.keys() - known.keys()), *map(repr, first[len(known) :])]
        if wrong:
            raise TypeError(f"{type(self).__name__}: missing, unknown or too many: {', '.join(wrong)}")
        vars(self).update(filled)

    def __setattr__(self, name: str, value: Any) -> None:
        """Raise AttributeError: the values are frozen."""
        raise AttributeError(f"{type(self).__name__}.{name} can't be set: it is frozen")

    def __eq__(self, other: object) -> bool:
        """Tell whether the other object is of the same class and has the same values."""
        return vars(self) == vars(other) if type(other) is type(self) else NotImplemented

    def __hash__(self) -> int:
        """Return a hash of the values, which must be hashable."""
        return hash((type(self), tuple(vars(self).values())))

    def __repr__(self) -> str:
        """Return the class with its values."""
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in vars(self).items())})"
