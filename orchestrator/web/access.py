"""Who may ask the page's server for what: rules over a request's headers, and the sessions that were opened.

Any user of this machine, and any page in a browser, can send a request to a port of 127.0.0.1. So all that tells
something of a run asks for a session. A code that stands in a file of the user's alone opens one, once. A cookie alone
is not enough: browsers send it to every port of 127.0.0.1, also to another user's server; the data asks in addition
for a token in a header, which the page keeps for its own port.
"""

from __future__ import annotations

import hmac
import re
import secrets
from dataclasses import dataclass, field
from http.cookies import CookieError, SimpleCookie
from typing import Final

SESSION_HEADER: Final = "x-orch-session"
MOST_SESSIONS: Final = 64
# The port may be one that ssh -L forwards. Another name that leads here is of a page that rebinds its own to 127.0.0.1.
_HOST: Final = re.compile(r"(127\.0\.0\.1|localhost)(:[0-9]{1,5})?")
_OPEN: Final = frozenset({"/enter", "/static/enter.js", "/static/icon.svg", "/static/style.css"})  # they tell nothing
_SAFE: Final = frozenset({"GET", "HEAD"})


@dataclass(frozen=True)
class Asked:
    """What of a request decides whether it is answered; empty where a header is not there."""

    method: str
    path: str
    host: str = ""
    origin: str = ""
    cookie: str = ""
    session: str = ""
    authorization: str = ""


@dataclass(frozen=True)
class Refusal:
    """Why a request is not answered."""

    status: int
    reason: str


@dataclass(frozen=True)
class Session:
    """What a browser was given for a code: a cookie, and a token that its page sends in a header."""

    cookie: str
    token: str


@dataclass
class Access:
    """The codes and sessions of one server; `key` is for orch's own programs, `metrics_token` for Prometheus."""

    metrics_token: str
    key: str = field(default_factory=secrets.token_urlsafe)
    cookie_name: str = field(default_factory=lambda: f"orch_ui_{secrets.token_hex(4)}")
    _code: str | None = None
    _sessions: list[Session] = field(default_factory=list)

    def new_code(self) -> str:
        """Return a code that opens one session; the one before it opens none any more."""
        self._code = secrets.token_urlsafe()
        return self._code

    def redeem(self, code: str) -> Session | None:
        """Return a new session for the code, which is then used up; None for any other."""
        if self._code is None or not _same(code, self._code):
            return None
        self._code = None
        self._sessions.append(Session(secrets.token_urlsafe(), secrets.token_urlsafe()))
        del self._sessions[:-MOST_SESSIONS]
        return self._sessions[-1]

    def refusal(self, asked: Asked) -> Refusal | None:
        """Return why a request is not answered; None for one that is."""
        if _HOST.fullmatch(asked.host) is None:
            return Refusal(421, "this server answers at 127.0.0.1 alone")
        if asked.origin and asked.origin != f"http://{asked.host}":
            return Refusal(403, "another page may not ask this server")
        if asked.path == "/codes":
            return None if self._has_bearer(asked, self.key) else Refusal(401, "the key of this server is missing")
        if asked.method not in _SAFE and not asked.origin:
            return Refusal(403, "a request that changes something has to come from the page")
        if asked.path in _OPEN:
            return None
        if asked.path == "/metrics" and self._has_bearer(asked, self.metrics_token):
            return None
        session = self._session_of(asked.cookie)
        if session is None:
            return Refusal(401, "no session: open the page by orch ui")
        if asked.path.startswith("/api/") and not _same(asked.session, session.token):
            return Refusal(403, "the session's token is missing: open the page by orch ui")
        return None

    def _session_of(self, header: str) -> Session | None:
        try:
            morsel = SimpleCookie(header).get(self.cookie_name)
        except CookieError:
            return None
        value = morsel.value if morsel is not None else ""
        return next((each for each in self._sessions if _same(value, each.cookie)), None)

    @staticmethod
    def _has_bearer(asked: Asked, token: str) -> bool:
        kind, _, given = asked.authorization.partition(" ")
        return kind.lower() == "bearer" and _same(given.strip(), token)


def _same(given: str, wanted: str) -> bool:
    return hmac.compare_digest(given.encode(errors="surrogatepass"), wanted.encode())
