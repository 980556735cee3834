"""The types of fields in jobs and profiles, such as checked text and numbers with units, with pydantic's validators."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    GetJsonSchemaHandler,
)
from pydantic_core import CoreSchema

from orchestrator.protocol.patterns import problem_of
from orchestrator.protocol.schedulers import SCHEDULERS, STARTERS
from orchestrator.specs.units import percent, seconds, size

if TYPE_CHECKING:
    Way = str
else:
    Way = Literal[("ssh", *STARTERS)]
JobNumber = Annotated[str, Field(pattern=rf"^({'|'.join(SCHEDULERS)}):\S+$")]

_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,39}")
_HOST = re.compile(r"[A-Za-z0-9._:%][A-Za-z0-9._:%-]*")
_HOP = re.compile(rf"(\[{_HOST.pattern}\]|[A-Za-z0-9._%][A-Za-z0-9._%-]*)(:\d{{1,5}})?")
_USER = re.compile(r"[A-Za-z0-9._][A-Za-z0-9._@+\\-]*")  # also me@example.org and DOMAIN\me
LOGIN: Final = r"([A-Za-z0-9._][A-Za-z0-9._+\\-]*@)?[A-Za-z0-9._%][A-Za-z0-9._%-]*(:[0-9]{1,5})?"
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def _one_line(text: str) -> str:
    """Refuse control characters, because a newline in a scheduler field would add a line to the batch script."""
    if found := _CONTROL.search(text):
        raise ValueError(f"contains a control character ({found[0]!r}), which is not allowed here")
    return text


def _plain_name(text: str) -> str:
    if not _NAME.fullmatch(text):
        raise ValueError("must be 1 to 40 letters, digits, '_', '.' or '-', and start with a letter or digit")
    return text


def _text_value(value: object) -> object:
    """Convert a number to the text that a command line or an environment would show.

    Raises ValueError for a boolean.
    """
    if isinstance(value, bool):
        raise ValueError(f"is a YAML boolean; put quotes around it to pass it as text ('{str(value).lower()}')")
    return str(value) if isinstance(value, int | float) else value


def host_name(text: str) -> str:
    """Return a host's name or address unchanged. Raises ValueError if a shell or ssh could misread the text."""
    if not _HOST.fullmatch(text):
        raise ValueError(f"'{text}' is not the name or address of a host: letters, digits, '.', '-', '_', ':' and '%'")
    return text


def _user_name(text: str) -> str:
    if not _USER.fullmatch(text):
        raise ValueError(f"'{text}' is not the name of a user")
    return text


def _jumps(text: str) -> str:
    for hop in text.split(","):
        user, at, host = hop.removeprefix("ssh://").rpartition("@")
        if at:
            _user_name(user)
        if not _HOP.fullmatch(host):
            raise ValueError(f"'{hop}' is not a jump host; write host, user@host or user@host:port")
    return text


def _login(text: str) -> str:
    if not re.fullmatch(LOGIN, text):
        raise ValueError(f"'{text}' is not a host; write host, user@host or user@host:port")
    return text


def _no_nul(text: str) -> str:
    if "\0" in text:
        raise ValueError("contains a NUL byte, which can't be passed to a program")
    return text


def _env_name(text: str) -> str:
    if not _ENV_NAME.fullmatch(text):
        raise ValueError(f"'{text}' can't be the name of an environment variable")
    return text


def _output_pattern(text: str) -> str:
    if problem := problem_of(text):
        raise ValueError(f"the pattern '{text}' {problem}")
    return text


def _no_lift(text: str) -> str:
    if text.startswith("!"):
        raise ValueError(f"'{text}' has no effect under include; write it under exclude")
    return text


class Also:
    """Adds a type to a field's JSON Schema, because the field's before-validator also accepts that type."""

    def __init__(self, json_type: str) -> None:
        self.json_type = json_type

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"anyOf": [handler(core), {"type": self.json_type}]}


def short_options(ours: Mapping[str, str]) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Return a validator for a mapping of qsub's options. Their names are written without `-`.

    The keys of `ours` are the options that a profile may not set in this mapping. Each value is the end of the error
    message.
    """

    def check(options: dict[str, Any]) -> dict[str, Any]:
        for name in options:
            if not re.fullmatch(r"[A-Za-z_]+", name):
                raise ValueError(f"'{name}' is not an option of qsub; write it without the '-'")
            if name in ours:
                raise ValueError(f"-{name} is {ours[name]}")
        return options

    return check


Name = Annotated[str, AfterValidator(_plain_name)]
Line = Annotated[str, Field(min_length=1), AfterValidator(_one_line)]
Arg = Annotated[str, BeforeValidator(_text_value), AfterValidator(_no_nul), Also("number")]
UserName = Annotated[Line, AfterValidator(_user_name)]
LoginHost = Annotated[Line, AfterValidator(_login)]
Jumps = Annotated[Line, AfterValidator(_jumps)]
EnvName = Annotated[str, AfterValidator(_env_name)]
Seconds = Annotated[
    int, BeforeValidator(lambda v: seconds(v) if isinstance(v, str) else v), Field(ge=0), Also("string")
]
Bytes = Annotated[int, BeforeValidator(lambda v: size(v) if isinstance(v, str) else v), Field(gt=0), Also("string")]
Percent = Annotated[
    float,
    BeforeValidator(lambda v: percent(v) if isinstance(v, str) else v),
    Field(gt=0, le=100),
    Also("string"),
]
Count = Annotated[int, Field(ge=1, le=100_000)]
Budget = Annotated[int, Field(ge=0)] | None
Natural = Annotated[int, Field(ge=0)]
Nproc = Annotated[int, Field(ge=1, le=1024)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
OutputPattern = Annotated[Line, AfterValidator(_output_pattern)]
Pattern = Annotated[OutputPattern, AfterValidator(_no_lift)]
