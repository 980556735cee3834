"""Serves the port for Prometheus. The only path is /metrics, for every user who has the token. The answer counts the
runs in each state and describes the live runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Final

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse, Response

from orchestrator.runs.state import RunStatus
from orchestrator.views.reader import Reader
from orchestrator.views.runs import RunRow, RunsView
from orchestrator.web.access import has_bearer
from orchestrator.web.answers import ALL_SECONDS

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

MEDIA_TYPE: Final = "application/openmetrics-text; version=1.0.0; charset=utf-8"


class Metrics:
    """Answers requests for /metrics. If a client lacks the token, calls `refused` with the client's uid."""

    def __init__(self, token: str, reader: Reader, refused: Callable[[int | None], None]) -> None:
        self.token, self.reader, self.refused = token, reader, refused

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
        return Response(await run_in_threadpool(self._text), media_type=MEDIA_TYPE)

    def _text(self) -> str:
        return text_of(self.reader.runs(seconds=ALL_SECONDS))


def text_of(view: RunsView) -> str:
    """Return OpenMetrics text about the runs in the table `view`."""
    live = [row for row in view.rows if not row.is_final]
    lines = _family(
        "orch_runs", "Runs by their state.", [({"state": each}, view.states.get(each, 0)) for each in RunStatus]
    )
    lines += _family("orch_run_ranks", "Ranks of a run that goes on.", [(_labels(row), row.world_size) for row in live])
    lines += _family(
        "orch_run_restarts", "Restarts of a run that goes on.", [(_labels(row), row.restarts) for row in live]
    )
    started = [(_labels(row), row.started) for row in live]
    lines += _family("orch_run_start_seconds", "When the ranks of a run that goes on were started.", started)
    return "\n".join([*lines, "# EOF", ""])


def _labels(row: RunRow) -> dict[str, str]:
    return {"run": row.run_id, "name": row.name, "profile": row.profile}


def _family(name: str, text: str, samples: Iterable[tuple[Mapping[str, str], object]]) -> list[str]:
    lines = [f"# TYPE {name} gauge", f"# HELP {name} {text}"]
    for labels, value in samples:
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            words = ",".join(f'{key}="{_escaped(word)}"' for key, word in labels.items())
            lines.append(f"{name}{{{words}}} {value}")
    return lines


def _escaped(word: str) -> str:
    return word.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
