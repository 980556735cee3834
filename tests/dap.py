"""A debugger as an editor is one, in its smallest form: the Debug Adapter Protocol over a connection."""

from __future__ import annotations

import contextlib
import json
import socket
from types import TracebackType
from typing import Any, Self

from tests.patience import PATIENCE


class Client:
    """A connection to a debugger; what comes between the answers is kept."""

    def __init__(self, host: str, port: int) -> None:
        self.connection = socket.create_connection((host, port), timeout=PATIENCE)
        self.stream = self.connection.makefile("rb")
        self.number, self.events = 0, list[dict[str, Any]]()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stream.close()
        self.connection.close()

    def send(self, command: str, **arguments: Any) -> int:
        """Send a request and return its number."""
        self.number += 1
        body = json.dumps({"seq": self.number, "type": "request", "command": command, "arguments": arguments}).encode()
        self.connection.sendall(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
        return self.number

    def answer(self, number: int) -> dict[str, Any]:
        """Return the body of the answer to a request, which must be a success."""
        while True:
            message = self._receive()
            if message["type"] == "response" and message["request_seq"] == number:
                assert message["success"], message
                return dict(message.get("body") or {})

    def request(self, command: str, **arguments: Any) -> dict[str, Any]:
        """Send a request and return the body of its answer."""
        return self.answer(self.send(command, **arguments))

    def event(self, name: str) -> dict[str, Any]:
        """Return the body of the next event of this name, also of one that has come already."""
        while True:
            for event in self.events:
                if event["event"] == name:
                    self.events.remove(event)
                    return dict(event.get("body") or {})
            self._receive()

    def attach(self, configuration: dict[str, Any], breakpoints: dict[str, list[int]]) -> None:
        """Attach as an editor does by a launch.json, with breakpoints in files here; the program then goes on."""
        self.request("initialize", adapterID="debugpy", clientID="test", linesStartAt1=True, columnsStartAt1=True,
                     pathFormat="path")  # fmt: skip
        attached = self.send("attach", **configuration)
        self.event("initialized")
        for path, lines in breakpoints.items():
            self.request("setBreakpoints", source={"path": path}, breakpoints=[{"line": line} for line in lines])
        self.request("configurationDone")
        self.answer(attached)

    def stopped(self) -> list[dict[str, Any]]:
        """Return the frames of the thread that stops next, innermost first."""
        self.thread = self.event("stopped")["threadId"]
        return list(self.request("stackTrace", threadId=self.thread)["stackFrames"])

    def evaluate(self, expression: str, frame: int) -> str:
        """Return what an expression is in a frame."""
        return str(self.request("evaluate", expression=expression, frameId=frame, context="repl")["result"])

    def go_on(self) -> None:
        """Let the program go on."""
        self.request("continue", threadId=self.thread)

    def leave(self) -> None:
        """Let the program go on without a debugger; it may have ended by now, and its adapter with it."""
        with contextlib.suppress(EOFError, ConnectionError):
            self.request("disconnect", terminateDebuggee=False)

    def _receive(self) -> dict[str, Any]:
        size = 0
        while line := self.stream.readline():
            if line == b"\r\n":
                break
            name, _, value = line.partition(b":")
            size = int(value) if name.lower() == b"content-length" else size
        if not line:
            raise EOFError
        message: dict[str, Any] = json.loads(self.stream.read(size))
        if message["type"] == "event":
            self.events.append(message)
        return message


def main() -> None:
    """Attach by the configuration on the standard input, stop at its lines, and print what they are.

    Of each stop: the function, the path here, and what an expression is there.
    """
    import sys
    import time

    order = json.loads(sys.stdin.read())
    found = order["configuration"]
    with Client(found["connect"]["host"], found["connect"]["port"]) as client:
        client.attach(found, order["breakpoints"])
        for expression in order["stops"]:
            frame = client.stopped()[0]
            value = client.evaluate(expression, frame["id"])
            print(json.dumps([frame["name"], frame["source"]["path"], frame["line"], value]), flush=True)
            time.sleep(order.get("pause", 0))
            client.go_on()
        client.leave()


if __name__ == "__main__":
    main()
