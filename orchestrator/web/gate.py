"""Refuses requests that `Access` does not allow. Adds headers to every answer, which restrict what the browser may do
with the answer.

The gate is plain ASGI, so that a stream of events is passed on piece by piece.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse

from orchestrator.web.access import SESSION_HEADER, Access, Asked

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

HEADERS: Final = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
        "img-src 'self' blob:; media-src blob:; "  # only the page's own script can create blob: addresses
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; "
        "trusted-types 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}


class Gate:
    """Refuses requests that `access` does not allow, and adds HEADERS to every answer."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self.app, self.access = app, access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or refuse it."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
            await send(message)

        refusal = self.access.refusal(_asked(scope))
        if refusal is None:
            await self.app(scope, receive, send_with_headers)
        else:
            answer = PlainTextResponse(f"{refusal.reason}\n", refusal.status)
            await answer(scope, receive, send_with_headers)


def _asked(scope: Scope) -> Asked:
    headers = Headers(scope=scope)
    hosts = headers.getlist("host")
    return Asked(
        scope["method"],
        scope["path"],
        host=hosts[0] if len(hosts) == 1 else "",
        origin=headers.get("origin", ""),
        cookie="; ".join(headers.getlist("cookie")),
        session=headers.get(SESSION_HEADER, ""),
        authorization=headers.get("authorization", ""),
    )
