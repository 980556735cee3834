"""Sends an HTTP request and returns the complete answer within a total time limit. Redirects are not followed.

A redirect could send a token or a message to an address that the user has not given.
"""

from __future__ import annotations

import contextlib
import http.client
import socket
import ssl
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

SILENCE: Final = 15.0  # s, for each operation of the socket
MOST_ANSWER: Final = 1 << 22  # bytes


class NoAnswerError(Exception):
    """Raised if no complete answer arrived. The message continues a sentence about the server, and contains no
    address.
    """


@dataclass(frozen=True)
class Answer:
    """The answer of a server. If the status is 300 or higher, the body may be incomplete."""

    status: int
    body: bytes


def request(
    url: str, data: bytes | None, headers: Mapping[str, str], *, seconds: float, certificates: str = ""
) -> Answer:
    """Send a POST request with the data, or a GET request if there is no data. Raises NoAnswerError if no complete
    answer arrives.

    `certificates` is a file with trusted certificates, which replaces the system's.
    """
    try:
        asked = urllib.request.Request(url, data, dict(headers))  # noqa: S310 (callers check the scheme)
        with _Deadline(seconds, certificates) as deadline:
            answer = _answer(asked, deadline, min(SILENCE, seconds))
    except (OSError, http.client.HTTPException, ValueError) as error:
        reason = getattr(error, "reason", error)
        words = getattr(reason, "strerror", None) or type(reason).__name__
        raise NoAnswerError(f"can't be reached: {words}") from None
    if answer is None:
        raise NoAnswerError(f"has not answered within {seconds:g} s")
    return answer


def _answer(asked: urllib.request.Request, deadline: _Deadline, silence: float) -> Answer | None:
    """Return the answer, or None if the deadline has passed."""
    try:
        with urllib.request.build_opener(_NoRedirect, deadline).open(asked, timeout=silence) as response:
            answer = Answer(response.status, response.read(MOST_ANSWER))
    except urllib.error.HTTPError as error:  # a status of 300 or more
        with error:
            return Answer(error.code, _rest_of(error))
    except (OSError, http.client.HTTPException):
        if not deadline.is_over:
            raise
    return None if deadline.is_over else answer


def _rest_of(error: urllib.error.HTTPError) -> bytes:
    """Return the body of an error answer; empty if the body does not arrive."""
    try:
        return error.read(MOST_ANSWER)
    except (OSError, http.client.HTTPException):
        return b""


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        return None


class _Connection(http.client.HTTPConnection):
    """A connection that another thread can close, even during the TLS handshake or a slow answer."""

    on_socket: Callable[[socket.socket], None]

    def connect(self) -> None:
        super().connect()
        self.on_socket(self.sock)


class _TlsConnection(http.client.HTTPSConnection, _Connection):
    """A `_Connection` with TLS. Its `connect` calls `_Connection.connect`, and then starts TLS."""


class _Deadline(urllib.request.HTTPHandler, urllib.request.HTTPSHandler):
    """Ends a request after a total time, because a socket's own time-out restarts with each byte."""

    def __init__(self, seconds: float, certificates: str) -> None:
        context = ssl.create_default_context(cafile=certificates) if certificates else None
        urllib.request.HTTPSHandler.__init__(self, context=context)
        self._tls = context
        self._sockets: list[socket.socket] = []
        self._timer = threading.Timer(seconds, self._end)
        self._timer.daemon = True
        self.is_over = False

    def __enter__(self) -> _Deadline:
        self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
        self._timer.join()
        for each in self._sockets:
            each.close()

    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        """Open a request over a connection that another thread can close."""
        return self.do_open(lambda *given, **more: self._watched(_Connection(*given, **more)), req)

    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        """Open a request over a TLS connection that another thread can close."""
        return self.do_open(lambda *given, **more: self._watched(_TlsConnection(*given, **more)), req,
                            context=self._tls)  # fmt: skip

    def _watched(self, connection: _Connection) -> _Connection:
        connection.on_socket = self._keep
        return connection

    def _keep(self, found: socket.socket) -> None:
        self._sockets.append(found.dup())  # TLS takes over the original socket
        if self.is_over:  # the deadline passed while the connection was being made
            self._end()

    def _end(self) -> None:
        self.is_over = True
        for each in self._sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
