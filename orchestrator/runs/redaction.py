"""Taking out of a text what must not leave this machine: secrets, credentials, the user's name and home. Pure."""

from __future__ import annotations

import base64
import json
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote, quote_plus

from orchestrator.protocol.json_text import parse_json

LONG: Final = 8  # a shorter value of a variable that only looks secret stands in too many innocent words
_SECRET_NAME = re.compile(
    r"(TOKEN(?!IZER)|SECRET|PASSW|PASSPHRASE|CREDENTIAL|API_?KEY|ACCESS_?KEY|PRIVATE_?KEY|WEBHOOK)"
    r"|(^|[_.-])(KEY|KEYS|AUTH|PAT|DSN|COOKIE|PASS|JWT)($|[_.-])",
    re.IGNORECASE,
)
# name=value, name: value, --name value, --name=value; the lookbehinds keep a line of 10 MB from taking forever
_ASSIGNED = (
    re.compile(r"(?<![\w.-])(?P<name>[A-Za-z_][\w.-]{0,99}+)[\"']?[ \t]*[=:][ \t]*"),
    re.compile(r"(?<![\w-])(?P<name>--[\w-]{1,99}+)(?:[ \t]+(?!-)|=)"),
)
_VALUE = re.compile(r"\"[^\"\n]*\"|'[^'\n]*'|[^\s\"',;&]+")
_BEARER = re.compile(r"\b(Bearer|Basic)\s+[A-Za-z0-9._~+/=-]{8,}")
_USERINFO = re.compile(r"(?<=://)[^/\s@]+(?=@)")
# Tokens that tell by their form what they are, under whatever name they stand. Every repetition has an end.
_TOKEN = re.compile(
    r"(?<![A-Za-z0-9_])("
    r"gh[pousr]_[A-Za-z0-9]{16,255}|github_pat_[A-Za-z0-9_]{20,255}|glpat-[\w-]{16,255}|hf_[A-Za-z0-9]{16,255}"
    r"|sk-(?=[A-Za-z_-]{0,60}\d)[\w-]{20,300}|xox[a-z]-[A-Za-z0-9-]{10,255}|(AKIA|ASIA)[A-Z0-9]{16}(?![A-Z0-9])"
    r"|eyJ[\w-]{8,4000}+\.eyJ[\w-]{8,4000}+\.[\w-]{0,4000}+)"
)
_PRIVATE_KEY = re.compile(
    r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY-----"
    r"(((?!-----)[\s\S]){0,20000}+-----END [A-Z0-9 ]{0,40}PRIVATE KEY-----|[A-Za-z0-9+/=\s\\]{0,20000}+)"
)
_HOOK = re.compile(r"(?<=hooks\.slack\.com/)[^\s\"'<>]+")
_NETRC = re.compile(
    r"(?P<before>\b(?:login|account)\s{1,20}[^\s=:]{1,200}\s{1,20}password\s{1,20}|^[ \t]{0,20}password[ \t]{1,20})"
    r"[^\s=:]\S{0,300}(?P<after>[ \t]*$|\s)",
    re.MULTILINE,
)
_NAMES_ONLY: Final = ("secrets", "secret_names")


def looks_secret(name: str) -> bool:
    """Tell whether a variable, field or option of this name probably holds a secret."""
    return _SECRET_NAME.search(name) is not None


@dataclass(frozen=True)
class Redaction:
    """What to take out: `values` by the names they go by, the home folder and the user's name."""

    values: Mapping[str, str] = field(default_factory=dict, repr=False)
    home: str = ""
    user: str = ""

    def text(self, text: str) -> str:
        """Return the text without any of it."""
        text = mask(text, {name: value for name, value in self.values.items() if value})
        for pattern in (_PRIVATE_KEY, _TOKEN, _HOOK):
            text = pattern.sub(MASKED, text)
        text = _NETRC.sub(rf"\g<before>{MASKED}\g<after>", text)
        text = _BEARER.sub(rf"\1 {MASKED}", _USERINFO.sub(MASKED, text))
        for pattern in _ASSIGNED:
            text = _without_values(text, pattern)
        if len(self.home) > 1:
            text = re.sub(rf"{re.escape(self.home)}(?![\w.-])", "~", text)
        if len(self.user) > 1 and self.user != "root":  # which names nobody, and stands in many paths
            text = re.sub(rf"(?<![A-Za-z0-9]){re.escape(self.user)}(?![A-Za-z0-9])", "USER", text)
        return text

    def json(self, value: Any, name: str = "") -> Any:
        """Return the same for JSON types: fields and options whose names look secret lose their values."""
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
        """Return the same for a file of JSON objects, one a line; what is none is taken for plain text."""
        shown = []
        for line in text.split("\n"):
            try:
                shown.append(json.dumps(self.json(parse_json(line))) if line.strip() else line)
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
    """Return what is to be taken out, from every environment that is known and the names of the job's secrets."""
    values: dict[str, str] = {}
    for environment in environments:
        for name, value in environment.items():
            if name in secrets or (looks_secret(name) and len(value) >= LONG):
                values[f"{name}" if values.get(name, value) == value else f"{name} "] = value
    return Redaction(values, home, user)


MASKED: Final = "***"


# Shorter values stand in too many innocent words; they are masked only where their name stands before them.
_SHORT: Final = 4


def mask(text: str, secrets: Mapping[str, str], shortest: int = _SHORT) -> str:
    """Return the text with every secret value replaced by ***: as it is, or as JSON, a shell, a URL or base64 has it.

    A value of less than `shortest` characters is replaced only where its name stands before it.
    """
    hidden: dict[str, str] = {}
    for name, value in secrets.items():
        if not value:
            continue
        if len(value) < shortest:
            for form in (value, shlex.quote(value)):
                hidden[f"{name}={form}"] = f"{name}={MASKED}"
            hidden[f'"{name}": {json.dumps(value)}'] = f'"{name}": "{MASKED}"'
            continue
        lines = [line for line in value.splitlines() if len(line) >= 2 * _SHORT]
        for form in (value, json.dumps(value)[1:-1], shlex.quote(value), repr(value)[1:-1], *lines, *_encoded(value)):
            hidden[form] = MASKED
    if not hidden:
        return text
    longest_first = sorted(hidden, key=len, reverse=True)
    return re.sub("|".join(map(re.escape, longest_first)), lambda match: hidden[match[0]], text)


def _encoded(value: str) -> Iterator[str]:
    """Yield a long value as a URL has it, in hexadecimal, and as it looks inside of base64 wherever it begins there."""
    if len(value) < LONG:
        return
    raw = value.encode("utf-8", "surrogateescape")
    yield from (quote(raw), quote(raw, safe=""), quote_plus(raw), raw.hex())
    for before, dropped in ((0, 0), (1, 2), (2, 3)):
        whole = (before + len(raw)) * 8 // 6  # the characters beyond hold bits of what follows
        found = base64.b64encode(bytes(before) + raw).decode()[dropped:whole]
        yield from (found, found.translate(str.maketrans("+/", "-_")))
