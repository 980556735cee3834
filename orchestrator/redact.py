"""Taking out of a text what must not leave this machine: secrets, credentials, the user's name and home. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from orchestrator.environment import MASKED, mask

_LONG: Final = 8  # a shorter value of a variable that only looks secret stands in too many innocent words
_SECRET_NAME = re.compile(
    r"(TOKEN(?!IZER)|SECRET|PASSW|PASSPHRASE|CREDENTIAL|API_?KEY|ACCESS_?KEY|PRIVATE_?KEY|WEBHOOK)"
    r"|(^|[_.-])(KEY|KEYS|AUTH|PAT|DSN|COOKIE|PASS|JWT)($|[_.-])",
    re.IGNORECASE,
)
# name=value, name: value, --name value; the lookbehinds keep a line of 10 MB from taking forever
_ASSIGNED = (
    re.compile(r"(?<![\w.-])(?P<name>[A-Za-z_][\w.-]{0,99}+)[\"']?[ \t]*[=:][ \t]*"),
    re.compile(r"(?<![\w-])(?P<name>--[\w-]{1,99}+)[ \t]+(?!-)"),
)
_VALUE = re.compile(r"\"[^\"\n]*\"|'[^'\n]*'|[^\s\"',;&]+")
_BEARER = re.compile(r"\b(Bearer|Basic)\s+[A-Za-z0-9._~+/=-]{8,}")
_USERINFO = re.compile(r"(?<=://)[^/\s@]+(?=@)")
_NAMES_ONLY: Final = ("secrets", "secret_names")


def looks_secret(name: str) -> bool:
    """Does a variable, field or option of this name probably hold a secret?"""
    return _SECRET_NAME.search(name) is not None


@dataclass(frozen=True)
class Redaction:
    """What to take out: `values` by the names they go by, the home folder and the user's name."""

    values: Mapping[str, str] = field(default_factory=dict, repr=False)
    home: str = ""
    user: str = ""

    def text(self, text: str) -> str:
        """The text without any of it."""
        text = mask(text, {name: value for name, value in self.values.items() if value})
        text = _BEARER.sub(rf"\1 {MASKED}", _USERINFO.sub(MASKED, text))
        for pattern in _ASSIGNED:
            text = _without_values(text, pattern)
        if len(self.home) > 1:
            text = re.sub(rf"{re.escape(self.home)}(?![\w.-])", "~", text)
        if len(self.user) > 1 and self.user != "root":  # which names nobody, and stands in many paths
            text = re.sub(rf"(?<![A-Za-z0-9]){re.escape(self.user)}(?![A-Za-z0-9])", "USER", text)
        return text

    def json(self, value: Any, name: str = "") -> Any:
        """The same for JSON types: fields and options whose names look secret lose their values."""
        if isinstance(value, dict):
            return {self.text(str(key)): self.json(item, str(key)) for key, item in value.items()}
        if isinstance(value, list):
            shown = [self.json(item, name) for item in value]
            for number, item in enumerate(value[:-1]):
                if isinstance(item, str) and item.startswith("-") and "=" not in item and looks_secret(item):
                    shown[number + 1] = MASKED
            return shown
        if isinstance(value, str):
            return MASKED if value and name not in _NAMES_ONLY and looks_secret(name) else self.text(value)
        return value

    def lines(self, text: str) -> str:
        """The same for a file of JSON objects, one a line; what is none is taken for plain text."""
        shown = []
        for line in text.split("\n"):
            try:
                shown.append(json.dumps(self.json(json.loads(line))) if line.strip() else line)
            except ValueError:
                shown.append(self.text(line))
        return "\n".join(shown)


def _without_values(text: str, assigned: re.Pattern[str]) -> str:
    """The text with what stands behind a telling name masked."""
    parts, position = [], 0
    while match := assigned.search(text, position):
        parts.append(text[position : match.end()])
        position = match.end()
        value = _VALUE.match(text, position) if looks_secret(match["name"]) else None
        if value is not None:
            parts.append(MASKED)
            position = value.end()
    return "".join([*parts, text[position:]])


def redaction(environments: list[Mapping[str, str]], secrets: list[str], home: str, user: str) -> Redaction:
    """What is to be taken out, from every environment that is known and the names of the job's secrets."""
    values: dict[str, str] = {}
    for environment in environments:
        for name, value in environment.items():
            if name in secrets or (looks_secret(name) and len(value) >= _LONG):
                values[f"{name}" if values.get(name, value) == value else f"{name} "] = value
    return Redaction(values, home, user)
