"""Separates the user name and password from an http address, so that no resolver, proxy or error message receives
them.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit


@dataclass(frozen=True)
class HttpAddress:
    """An http address in two parts: the address without credentials, which may be shown, and the credentials."""

    url: str
    user: str = ""
    password: str = field(default="", repr=False)

    @staticmethod
    def of(url: str) -> HttpAddress:
        """Return the parts of an address. Raises ValueError if it can't be parsed."""
        parts = urlsplit(url)
        plain = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
        return HttpAddress(plain, unquote(parts.username or ""), unquote(parts.password or ""))

    @property
    def headers(self) -> dict[str, str]:
        """Return the HTTP header with the credentials; empty if the address has no credentials."""
        return {"Authorization": basic(self.user, self.password)} if self.user or self.password else {}


def basic(user: str, password: str) -> str:
    """Return the value of an Authorization header."""
    return f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}"
