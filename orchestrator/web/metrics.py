"""Serves the port for Prometheus. The only path is /metrics, for every user who has the token."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse, Response

from orchestrator.web.access import has_bearer
from orchestrator.web.openmetrics import MEDIA_TYPE

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send


class Metrics:
    """Answers requests for /metrics with the result of `text`. If a client lacks the token, calls `refused` with the
    client's uid.
    """

    def __init__(self, token: str, text: Callable[[], str], refused: Callable[[int | None], None]) -> None:
        self.token, self.text, self.refused = token, text, refused

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        answer = await self._answer(scope)
        answer.headers["x-content-type-options"] = "nosniff"
        answer.headers["cache-control"] = "no-store"
        await answer(scope, receive, send)

    async def _answer(self, scope: Scope) -> Response:
        if not has_bearer(Headers(scope=scope).get("authorization", ""), self.token):
            self.refused(scope["state"]["visit"].owner)
            return PlainTextResponse("the token of /metrics is missing\n", 401)
        if scope["path"] != "/metrics":
            return PlainTextResponse("this port has /metrics alone\n", 404)
        if scope["method"] not in ("GET", "HEAD"):
            return PlainTextResponse("/metrics is read by GET\n", 405)
        return Response(await run_in_threadpool(self.text), media_type=MEDIA_TYPE)
