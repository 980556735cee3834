"""Controls access to the page's server, by rules for a request's headers and by sessions.

Any page in a browser can send a request to a port of 127.0.0.1. So every answer about a run needs
a session. A code in a file that only the user can read opens one session. A cookie alone is not enough, because
browsers send it to every port of its host. So the data also needs a token in a header, which the page keeps for its
own origin.

Each server has a random host name under `localhost`, which browsers resolve to this machine. So no other server has
used its origin before. Anything that another server has left in the browser (a service worker, cookies, stored data)
belongs to another origin and has no access to this origin.
"""

from __future__ import annotations

import hmac
import secrets
from dataclasses import dataclass, field
from typing import Final

SESSION_HEADER: Final = "x-orch-session"
MOST_SESSIONS: Final = 64
# paths that need no session, because they reveal nothing
_OPEN: Final = frozenset({"/enter", "/static/enter.js", "/static/icon.svg", "/static/style.css"})
_SAFE: Final = frozenset({"GET", "HEAD"})


@dataclass(frozen=True)
class Asked:
    """The parts of a request that decide whether it is allowed. A missing header is empty."""

    method: str
    path: str
    host: str = ""
    origin: str = ""
    cookie: str = ""
    session: str = ""
    authorization: str = ""


@dataclass(frozen=True)
class Refusal:
    """The reason why a request is refused."""

    status: int
    reason: str


@dataclass(frozen=True)
class Session:
    """The cookie and the token that a browser received in exchange for a code. The page sends the token in a header."""

    cookie: str
    token: str


@dataclass
class Access:
    """The host name, codes and sessions of one server. orch's own programs authenticate with `key`."""

    host_name: str = field(default_factory=lambda: f"orch-{secrets.token_hex(8)}.localhost")
    key: str = field(default_factory=secrets.token_urlsafe)
    cookie_name: str = field(default_factory=lambda: f"orch_ui_{secrets.token_hex(4)}")
    _code: str | None = None
    _sessions: list[Session] = field(default_factory=list)

    def new_code(self) -> str:
        """Return a code that opens one session. The previous code becomes invalid."""
        self._code = secrets.token_urlsafe(16)
        return self._code

    def redeem(self, code: str) -> Session | None:
        """Return a new session for the code, which can't be used again; None if the code is not the newest."""
        if self._code is None or not _same(code, self._code):
            return None
        self._code = None
        self._sessions.append(Session(secrets.token_urlsafe(), secrets.token_urlsafe()))
        del self._sessions[:-MOST_SESSIONS]
        return self._sessions[-1]

    def refusal(self, asked: Asked) -> Refusal | None:
        """Return the reason why a request is refused, or None if it is allowed."""
        if not self._is_own(asked.host):
            return Refusal(421, "this server answers at its own address alone: open the page by orch ui")
        if asked.origin and asked.origin != f"http://{asked.host}":
            return Refusal(403, "another page may not ask this server")
        if asked.path == "/codes":
            has_key = has_bearer(asked.authorization, self.key)
            return None if has_key else Refusal(401, "the key of this server is missing")
        if asked.method not in _SAFE and not asked.origin:
            return Refusal(403, "a request that changes something has to come from the page")
        if asked.path in _OPEN:
            return None
        session = self._session_of(asked.cookie)
        if session is None:
            return Refusal(401, "no session: open the page by orch ui")
        if asked.path.startswith("/api/") and not _same(asked.session, session.token):
            return Refusal(403, "the session's token is missing: open the page by orch ui")
        return None

    def _is_own(self, host: str) -> bool:
        """Return True if a Host header has this server's name. Any port is accepted, because ssh -L may forward
        another port.
        """
        name, _, port = host.partition(":")
        return name == self.host_name and (port.isascii() and port.isdigit() if ":" in host else True)

    def _session_of(self, header: str) -> Session | None:
        """Return the session of a Cookie header. Other cookies in the header may have any form (RFC 6265, section
        5).
        """
        parts = (part.partition("=") for part in header.split(";"))
        values = [value.strip() for name, _, value in parts if name.strip() == self.cookie_name]
        return next((each for each in self._sessions for value in values if _same(value, each.cookie)), None)


def has_bearer(authorization: str, token: str) -> bool:
    """Return True if an Authorization header has the form `Bearer TOKEN` with this token."""
    kind, _, given = authorization.partition(" ")
    return kind.lower() == "bearer" and _same(given.strip(), token)


def _same(given: str, wanted: str) -> bool:
    return hmac.compare_digest(given.encode(errors="surrogatepass"), wanted.encode())
