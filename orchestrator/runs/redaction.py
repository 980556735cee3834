"""Removes from texts everything that must not leave this machine: secrets, credentials, the user's name and home
folder.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

from orchestrator.protocol.json_text import parse_json
from orchestrator.protocol.masking import LONG, MASKED, looks_secret, masker, secret_values

# name=value, name: value, --name value, --name=value, and "--name", "value" as in a printed list. The lookbehinds keep
# a line of 10 MB from taking forever.
_ASSIGNED = (
    re.compile(r"(?<![\w.-])(?P<name>[A-Za-z_][\w.-]{0,99}+)[\"']?[ \t]*[=:][ \t]*"),
    re.compile(r"(?<![\w-])(?P<name>--[\w-]{1,99}+)(?:[ \t]+(?!-)|=|[\"'],[ \t]*(?![\"']-))"),
)
_VALUE = re.compile(r"\"[^\"\n]*\"|'[^'\n]*'|[^\s\"',;&]+")
_BEARER = re.compile(r"\b(Bearer|Basic)\s+[A-Za-z0-9._~+/=-]{8,}")
_USERINFO = re.compile(r"(?<=://)[^/\s@]+(?=@)")
# Tokens that are recognized by their form, with any name. Every repetition is bounded.
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


@dataclass(frozen=True)
class Redaction:
    """Removes secrets from texts: the given values, the path of the home folder, and the user's name."""

    values: frozenset[tuple[str, str]] = field(default_factory=frozenset, repr=False)
    home: str = ""
    user: str = ""

    def known(self, text: str) -> str:
        """Remove known secret values, and credentials that are recognised by their form.

        A value whose name merely looks secret is kept, so that commands and code are unchanged.
        """
        text = self._without_values(text)
        text = _PRIVATE_KEY.sub(lambda match: MASKED + "\n" * match[0].count("\n"), text)  # keeps the number of lines
        text = _HOOK.sub(MASKED, _TOKEN.sub(MASKED, text))
        text = _NETRC.sub(rf"\g<before>{MASKED}\g<after>", text)
        return _BEARER.sub(rf"\1 {MASKED}", _USERINFO.sub(MASKED, text))

    @cached_property
    def _without_values(self) -> Callable[[str], str]:
        return masker(self.values)

    def text(self, text: str) -> str:
        """Remove what `known` removes, all values whose names look secret, the home folder, and the user's name."""
        text = self.known(text)
        for pattern in _ASSIGNED:
            text = _without_assigned(text, pattern)
        if len(self.home) > 1:
            text = re.sub(rf"{re.escape(self.home)}(?![\w.-])", "~", text)
        if len(self.user) > 1 and self.user != "root":  # "root" identifies nobody, and many paths contain it
            text = re.sub(rf"(?<![A-Za-z0-9]){re.escape(self.user)}(?![A-Za-z0-9])", "USER", text)
        return text

    def json(self, value: Any, name: str = "") -> Any:
        """Redact a JSON value. The values of fields and options whose names look secret are removed."""
        if isinstance(value, dict):
            return {self.text(str(key)): self.json(item, str(key)) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return self._list(list(value), name)
        if isinstance(value, str):
            return MASKED if value and name not in _NAMES_ONLY and looks_secret(name) else self.text(value)
        return value

    def _list(self, value: list[Any], name: str) -> list[Any]:
        """Redact a list. Its items are also redacted as one text, because they may be the lines of one key."""
        shown = [self.json(item, name) for item in value]
        found = (item.get("text") if isinstance(item, dict) else item for item in value)
        texts = [text for text in found if isinstance(text, str) and "\n" not in text]
        together = self.text("\n".join(texts)).split("\n") if len(texts) == len(value) else []
        if len(together) == len(value):
            shown = [
                {**each, "text": text} if isinstance(each, dict) else MASKED if each == MASKED else text
                for each, text in zip(shown, together, strict=True)
            ]
        after_options = map(_is_secret_option, ["", *value[:-1]])
        return [MASKED if is_hidden else each for each, is_hidden in zip(shown, after_options, strict=False)]

    def lines(self, text: str) -> str:
        """Return the redacted text of a JSON Lines file. A line that is not JSON is redacted as plain text."""
        shown = []
        for line in text.split("\n"):
            try:
                shown.append(json.dumps(self.json(parse_json(line))) if line.strip() else line)
            except ValueError:
                shown.append(self.text(line))
        return "\n".join(shown)


def _is_secret_option(word: object) -> bool:
    """Return whether the word after this word is probably a secret: True for `--api-key`, False for `--api-key=...`."""
    return isinstance(word, str) and word.startswith("-") and "=" not in word and looks_secret(word)


def _without_assigned(text: str, assigned: re.Pattern[str]) -> str:
    """Mask each value that follows a name that looks secret. `assigned` is the pattern of such a name and value."""
    parts, position = [], 0
    while match := assigned.search(text, position):
        parts.append(text[position : match.end()])
        position = match.end()
        value = _VALUE.match(text, position) if looks_secret(match["name"]) else None
        if value is not None:
            parts.append(MASKED)
            position = value.end()
    return "".join([*parts, text[position:]])


def redaction(
    environments: Iterable[Mapping[str, str]], secrets: Iterable[str], home: str, user: str, more: Iterable[str] = ()
) -> Redaction:
    """Return a Redaction for the secret values in these environments, and for the long values in `more`.

    A value counts as secret if its variable is in `secrets`, or if it is long and the variable's name looks secret.
    """
    names = set(secrets)
    values = {("", value) for value in more if len(value) >= LONG}
    for environment in environments:
        values |= set(secret_values({name: environment[name] for name in names & set(environment)}, environment))
    return Redaction(frozenset(values), home, user)
