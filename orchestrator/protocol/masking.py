"""Masks secret values in text, in all forms in which programs print them."""

from __future__ import annotations

import base64
import json
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Callable
from urllib.parse import quote, quote_plus

MASKED = "***"
LONG = 8  # characters; a shorter value of a variable that is secret only by its name may be part of an ordinary word
_SHORT = 4  # characters; a shorter secret may be part of an ordinary word, so it is masked only behind its name
_SECRET_NAME = re.compile(
    r"(TOKEN(?!IZER)|SECRET|PASSW|PASSPHRASE|CREDENTIAL|API_?KEY|ACCESS_?KEY|PRIVATE_?KEY|WEBHOOK)"
    r"|(^|[_.-])(KEY|KEYS|AUTH|PAT|DSN|COOKIE|PASS|JWT)($|[_.-])",
    re.IGNORECASE,
)
Pairs = Iterable["tuple[str, str]"]


def looks_secret(name: str) -> bool:
    """Return whether a variable, field or option of this name probably holds a secret."""
    return _SECRET_NAME.search(name) is not None


def secret_values(secrets: Mapping[str, str], env: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Return (name, value) of each value to mask: the secrets, and long values of variables whose names look secret."""
    likely = ((name, value) for name, value in env.items() if looks_secret(name) and len(value) >= LONG)
    return (*secrets.items(), *likely)


def mask(text: str, secrets: Mapping[str, str], shortest: int = _SHORT) -> str:
    """Return the text with every secret value replaced by ***. `masker` describes the details."""
    return masker(secrets.items(), shortest)(text)


def masker(secrets: Pairs, shortest: int = _SHORT) -> Callable[[str], str]:
    """Return a function that replaces every secret value in a text by ***.

    It finds a value as plain text and in its JSON, shell, URL, hexadecimal and base64 forms. A value of less than
    `shortest` characters is replaced only if its name precedes it.
    """
    hidden = {form: shown for name, value in secrets if value for form, shown in _forms(name, value, shortest)}
    if not hidden:
        return lambda text: text
    longest_first = sorted(hidden, key=len, reverse=True)
    pattern = re.compile("|".join(map(re.escape, longest_first)))
    return lambda text: pattern.sub(lambda match: hidden[match[0]], text)


def masked_json(value: Any, masked: Callable[[str], str]) -> Any:
    """Return a JSON value with every string masked, except the names of fields."""
    if isinstance(value, dict):
        return {key: masked_json(item, masked) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [masked_json(item, masked) for item in value]
    return masked(value) if isinstance(value, str) else value


def _forms(name: str, value: str, shortest: int) -> Iterator[tuple[str, str]]:
    """Yield (text that reveals the value, replacement) for each form of the value."""
    if len(value) < shortest:
        for form in (value, shlex.quote(value)):
            yield f"{name}={form}", f"{name}={MASKED}"
        yield f'"{name}": {json.dumps(value)}', f'"{name}": "{MASKED}"'
        return
    lines = [line for line in value.splitlines() if len(line) >= 2 * _SHORT]
    for form in (value, json.dumps(value)[1:-1], shlex.quote(value), repr(value)[1:-1], *lines, *_encoded(value)):
        yield form, MASKED


def _encoded(value: str) -> Iterator[str]:
    """Yield a value in URL form, in hexadecimal, and in the base64 forms that it can have within a longer text. A short
    value has no such forms.
    """
    if len(value) < LONG:
        return
    raw = value.encode("utf-8", "surrogateescape")
    yield from (quote(raw), quote(raw, safe=""), quote_plus(raw), raw.hex())
    for before, dropped in ((0, 0), (1, 2), (2, 3)):
        whole = (before + len(raw)) * 8 // 6  # later characters also encode bits of the text behind the value
        found = base64.b64encode(bytes(before) + raw).decode()[dropped:whole]
        yield from (found, found.translate(str.maketrans("+/", "-_")))
