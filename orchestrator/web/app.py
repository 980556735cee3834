"""The routes of the web page: its static files, its answers as JSON, the stream of changes, and the actions on runs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.responses import FileResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from orchestrator.errors import OrchError, RunNotFoundError, StoreError, UsageError
from orchestrator.protocol.json_text import parse_json
from orchestrator.views.reader import Note, Reader
from orchestrator.web import actions, answers, contents, saved_views
from orchestrator.web.access import Access
from orchestrator.web.gate import Gate
from orchestrator.web.watcher import Watcher

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.types import ASGIApp

STATIC: Final = Path(__file__).parent / "static"
MOST_BYTES: Final = 64 << 10  # the most bytes of a request's body
BODY_SECONDS: Final = 20.0  # the time limit for the body of a request
_STATUS: Final = ((RunNotFoundError, 404), (UsageError, 400), (StoreError, 409))  # 409: the stored files conflict
_PING_SECONDS: Final = 15.0  # a proxy or an SSH tunnel closes a connection on which nothing is sent


class Page:
    """The state of one server: its sessions, its table of runs, and the watcher of files."""

    def __init__(self, root: Path, note: Note, access: Access) -> None:
        self.root, self.access, self.reader = root, access, Reader(root, note, has_facts=True)
        self.watcher = Watcher(self.reader)

    def app(self) -> ASGIApp:
        """Return the ASGI application, wrapped in the `Gate` that checks each request."""
        root, reader = self.root, self.reader
        read: dict[str, Callable[[Request], Any]] = {
            **{f"/api/runs/{{run}}/{name}": self._of_run(answer) for name, answer in answers.OF_RUN.items()},
            "/api/runs": lambda _: answers.rows(reader),
            "/api/runs/{run}": lambda ask: answers.run_page(
                reader, ask.path_params["run"], is_first="first" in ask.query_params
            ),
            "/api/runs/{run}/use": lambda ask: answers.use(
                reader, ask.path_params["run"], ask.query_params.get("measure")
            ),
            "/api/runs/{run}/log": lambda ask: answers.watched_log(reader, ask.path_params["run"], ask.query_params),
            "/api/views/{kind}": lambda ask: saved_views.views_of(root, ask.path_params["kind"]),
            "/api/curves": lambda ask: answers.curves(
                reader, ask.query_params.getlist("run"), ask.query_params.getlist("metric"), ask.query_params
            ),
            "/api/trends": lambda ask: answers.trends(reader, ask.query_params.getlist("run")),
            "/api/diff": lambda ask: answers.diff_page(reader, _text(ask, "one"), _text(ask, "other")),
            "/api/sweeps/{sweep}": lambda ask: answers.sweep_page(
                reader, ask.path_params["sweep"], ask.query_params.get("metric")
            ),
        }
        act: dict[str, Callable[[str, Mapping[str, Any]], Any]] = {
            "cancel": lambda run, _: actions.cancel(root, run),
            "repeat": lambda run, _: actions.repeat(root, run),
            "pull": lambda run, given: actions.pull(root, run, str(given.get("to", ""))),
            "labels": lambda run, given: actions.label(root, run, given),
        }
        routes = [
            *(Route(path, _answered(answer, _json)) for path, answer in read.items()),
            *(Route(f"/api/runs/{{run}}/{name}", _acted(do), methods=["POST"]) for name, do in act.items()),
            Route("/api/views/{kind}", self._save_view, methods=["POST"]),
            Route("/", _file("index.html")),
            Route("/enter", _file("enter.html"), methods=["GET"]),
            Route("/enter", self._enter, methods=["POST"]),
            Route("/codes", self._code, methods=["POST"]),
            Route("/api/events", self._events),
            Route(
                "/api/runs/{run}/content",
                _answered(lambda ask: contents.part_of(reader, ask.path_params["run"], ask.query_params), _download),
            ),
            *(Route(f"/static/{each.name}", _file(each.name)) for each in sorted(STATIC.iterdir())),
        ]
        return Gate(Starlette(routes=routes), self.access)

    def _of_run(self, answer: Callable[[Reader, str], Any]) -> Callable[[Request], Any]:
        return lambda ask: answer(self.reader, ask.path_params["run"])

    async def _enter(self, request: Request) -> Response:
        session = self.access.redeem(str((await _body(request)).get("code", "")))
        if session is None:
            return PlainTextResponse("this code was used before: run orch ui once more\n", 403)
        answer = _json({"token": session.token})
        answer.set_cookie(self.access.cookie_name, session.cookie, httponly=True, samesite="strict")
        return answer

    async def _code(self, _: Request) -> Response:
        return _json({"code": self.access.new_code()})

    async def _save_view(self, request: Request) -> Response:
        kind, given = request.path_params["kind"], await _body(request)
        name = str(given.get("name", ""))
        return await _said(lambda: _json(saved_views.save(self.root, kind, name, given.get("query"))))

    async def _events(self, request: Request) -> Response:
        asked = dict(request.query_params)
        run = asked.pop("run", None)
        changes = self.watcher.listen(run, asked)
        headers = {"x-accel-buffering": "no"}
        return StreamingResponse(_stream(changes), media_type="text/event-stream", headers=headers)


async def _stream(changes: AsyncIterator[dict[str, Any]]) -> AsyncIterator[str]:
    """Yield server-sent events. While nothing changes, yield a comment from time to time."""
    yield ": hello\n\n"
    following = asyncio.ensure_future(anext(changes, None))
    try:
        while True:
            await asyncio.wait({following}, timeout=_PING_SECONDS)
            if not following.done():
                yield ": still here\n\n"
                continue
            if (change := following.result()) is None:
                return
            yield f"data: {_dumps(change)}\n\n"
            following = asyncio.ensure_future(anext(changes, None))
    finally:
        following.cancel()


def _answered(answer: Callable[[Request], Any], respond: Callable[[Any], Response]) -> Callable[[Request], Any]:
    async def endpoint(request: Request) -> Response:
        return await _said(lambda: respond(answer(request)))

    return endpoint


def _acted(do: Callable[[str, Mapping[str, Any]], Any]) -> Callable[[Request], Any]:
    async def endpoint(request: Request) -> Response:
        given = await _body(request)
        return await _said(lambda: _json(do(request.path_params["run"], given)))

    return endpoint


def _download(part: contents.Part) -> Response:
    """Return a file's bytes. A browser that opens the address downloads the file and never displays it."""
    headers = {"content-disposition": "attachment", "x-orch-size": str(part.size)}
    return Response(part.data, media_type="application/octet-stream", headers=headers)


async def _said(make: Callable[[], Response]) -> Response:
    """Return the response that the function `make` creates. If `make` fails, return the error message and the hint as
    JSON.
    """
    try:
        return await run_in_threadpool(make)
    except OrchError as error:
        status = next((number for kind, number in _STATUS if isinstance(error, kind)), 500)
        return _json({"error": error.message, "hint": error.hint}, status)
    except OSError as error:
        return _json({"error": f"{error.filename}: {error.strerror}", "hint": ""}, 500)


async def _body(request: Request) -> Mapping[str, Any]:
    """Return the JSON object in a request's body; empty if there is no JSON object, or if the body is too large."""
    data = b""
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for chunk in request.stream():
                data += chunk
                if len(data) > MOST_BYTES:
                    return {}
    except TimeoutError:
        raise HTTPException(408, "the request has not arrived in time") from None
    try:
        found = parse_json(data or b"{}")
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _text(request: Request, name: str) -> str:
    value = request.query_params.get(name, "")
    if not value:
        raise UsageError(f"{name} is missing")
    return value


def _file(name: str) -> Callable[[Request], Any]:
    async def endpoint(_: Request) -> Response:
        return FileResponse(STATIC / name)

    return endpoint


def _json(value: Any, status: int = 200) -> Response:
    return Response(_dumps(value), status, media_type="application/json")


def _dumps(value: Any) -> str:
    return json.dumps(value, allow_nan=False)
