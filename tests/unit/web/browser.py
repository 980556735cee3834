"""What a browser with a session asks of the page's application, without a socket."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.cli.render.runs import note
from orchestrator.web.access import SESSION_HEADER, Access
from orchestrator.web.app import Page

PORT = 8001


@dataclass(frozen=True)
class Answer:
    """What came back."""

    status: int
    text: str
    headers: dict[str, str]

    @property
    def found(self) -> Any:
        return json.loads(self.text)


class Browser:
    """Asks one page's application; what it does not catch is raised here."""

    def __init__(self, root: Path) -> None:
        self.access = Access()
        self.page = Page(root, note, self.access)
        session = self.access.redeem(self.access.new_code())
        assert session is not None
        host = f"{self.access.host_name}:{PORT}"
        self.headers = {"host": host, "cookie": f"{self.access.cookie_name}={session.cookie}",
                        "origin": f"http://{host}", SESSION_HEADER: session.token}  # fmt: skip

    def get(self, path: str) -> Answer:
        return asyncio.run(self._ask("GET", path, b""))

    def post(self, path: str, body: str) -> Answer:
        return asyncio.run(self._ask("POST", path, body.encode()))

    async def _ask(self, method: str, address: str, body: bytes) -> Answer:
        path, _, query = address.partition("?")
        headers = [(name.encode(), value.encode()) for name, value in self.headers.items()]
        scope = {"type": "http", "method": method, "path": path, "query_string": query.encode(), "headers": headers}
        sent: list[Any] = []

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: Any) -> None:
            sent.append(message)

        await self.page.app()(scope, receive, send)
        headers = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
        return Answer(sent[0]["status"], b"".join(each.get("body", b"") for each in sent[1:]).decode(), headers)
