"""The class Machine, which is the interface to a computer that carries out orch's requests.

There are three implementations: `LocalMachine` (this process), `orchestrator.transport.rpc.Session` (orch's server on
another computer, over SSH or a scheduler's command), and `tests.machines.FakeMachine`. httpx's transports are the
model: one small interface with an implementation for tests.
"""

from __future__ import annotations

import io
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Protocol

from orchestrator.errors import BackendError
from orchestrator.transport.address import HERE, Address

CALL_SECONDS: Final = 60.0
TRAVEL_SECONDS: Final = 10.0  # added to a program's own time limit, for the transfer in both directions
OTHER_FOLDER: Final = "set `workdir` in the profile to another folder"
SLOWEST: Final = 50_000  # bytes a second of a connection that is still worth waiting for
MOST_BYTES: Final = 1 << 20  # the default limit of the bytes that follow an answer
MOST_WORDS: Final = 2000  # characters of a machine's own message in an error
MOST_OUTPUT: Final = 64 << 20  # bytes that a program may print

Answer = tuple[dict[str, Any], bytes]
"""The JSON values of an answer, and the bytes that follow them."""
Sink = Callable[[Mapping[str, Any], Any, int], None]
"""A function that receives the values of an answer, a stream, and the number of bytes that it must read from the
stream.
"""


class Reply(Protocol):
    """An answer that may not have arrived yet."""

    def wait(self, timeout: float | None = CALL_SECONDS) -> Answer:
        """Wait for the answer and return it. Raises BackendError as `Machine.call` does."""


@dataclass(frozen=True)
class Output:
    """The exit code of a program and the text that it printed."""

    code: int
    out: str
    err: str


class Machine(ABC):
    """A computer that carries out orch's requests.

    The verb of a request names a function of `orchestrator.node.server`, and `values` are its arguments. Any thread may
    call any method. Every method raises BackendError, which begins with the machine's name, if the machine refuses a
    request. The error is transient if the machine can't be reached or does not answer in time.
    """

    name: str = HERE
    way: str = ""  # the command that starts programs on it, and why others failed; "" if there is only one
    connection: str = ""  # how it is connected, and why; "" for a machine without a connection
    is_own: bool = False  # True if no other thread uses this connection
    slow: str = ""  # a sentence about start files that delay each command; "" if they don't
    check: ClassVar[Callable[[], object]] = staticmethod(lambda: None)
    """Called before each request. It raises BackendError if this process must not act any more."""
    passed_over: str = ""  # why orch's server does not run with python3 of PATH; "" if it does

    @abstractmethod
    def ask(
        self, verb: str, payload: bytes = b"", *, sink: Sink | None = None, most: int = MOST_BYTES, **values: Any
    ) -> Reply:
        """Send a request without waiting for its answer. Several requests may be in progress at once.

        sink: receives the answer's bytes as they arrive. It must read all of them, and may raise only EOFError. most:
        the maximum number of bytes in the answer. A larger answer closes the connection.
        """

    def call(
        self,
        verb: str,
        payload: bytes = b"",
        *,
        timeout: float | None = CALL_SECONDS,
        most: int = MOST_BYTES,
        **values: Any,
    ) -> Answer:
        """Send a request, wait at most `timeout` seconds, and return its answer."""
        Machine.check()
        return self.ask(verb, payload, most=most, **values).wait(timeout)

    def hello(self, workdir: str, *, shared_parent: bool, **more: Any) -> dict[str, Any]:
        """Return the machine's facts. Raises BackendError if orch's folder there can't be used."""
        try:
            return self.call("hello", workdir=workdir, shared_parent=shared_parent, **more)[0]
        except BackendError as error:
            if error.transient or error.hint:
                raise
            raise BackendError(error.message, OTHER_FOLDER) from error

    def bulk(self, count: int) -> AbstractContextManager[Machine]:
        """Yield the fastest connection to the same machine for a transfer of `count` bytes."""
        return nullcontext(self)

    def run(
        self,
        argv: Sequence[str],
        stdin: bytes = b"",
        *,
        patience: float,
        env: Mapping[str, str] | None = None,
        hide: Sequence[str] = (),
        keep: Sequence[str] = (),
    ) -> Output:
        """Run a program on the machine and return its output.

        patience: the program's time limit in seconds. env: environment variables to set. hide: environment variables to
        remove. Each entry is a prefix of names, or one exact name followed by `=`. keep: variables that are not removed
        although they have such a prefix. Raises a transient BackendError at the time limit.
        """
        reply, out = self.call(
            "run_program", stdin, timeout=patience + TRAVEL_SECONDS, argv=list(argv), patience=patience,
            env=dict(env or {}), hide=list(hide), keep=list(keep), most=MOST_OUTPUT,
        )  # fmt: skip
        if reply["code"] is None:
            raise BackendError(f"{self.name}: {argv[0]} did not answer for {patience:g} s", transient=True)
        return Output(reply["code"], out.decode("utf-8", "replace"), reply["err"])


class LocalMachine(Machine):
    """The machine of this process. A request is a function call. A program gets this process's environment
    variables.
    """

    def ask(
        self, verb: str, payload: bytes = b"", *, sink: Sink | None = None, most: int = MOST_BYTES, **values: Any
    ) -> Reply:
        """Carry out the request at once."""
        from orchestrator.node.server.server import answer

        reply, data = answer({"do": verb, **values}, payload)
        content = data if isinstance(data, bytes) else data.read()
        if sink is not None:
            sink(reply, io.BytesIO(content), len(content))
            content = b""
        return Done(self.name, reply, content)


class Machines(Protocol):
    """The interface that returns the machine at an address. A connection pool and `OnlyHere` implement it."""

    def session(self, address: Address, workdir: str) -> Machine:
        """Return the machine. Raises BackendError if it can't be reached."""


class OnlyHere:
    """Returns this machine, which needs no connection."""

    def session(self, address: Address, workdir: str) -> Machine:
        """Return this machine."""
        return LocalMachine()


@dataclass(frozen=True)
class Done:
    """An answer that has arrived."""

    name: str
    values: dict[str, Any]
    data: bytes

    def wait(self, timeout: float | None = CALL_SECONDS) -> Answer:
        """Return the answer. Raises BackendError if the machine refused the request."""
        check_refusal(self.name, self.values)
        return self.values, self.data


def check_refusal(name: str, values: Mapping[str, Any]) -> None:
    """Raise BackendError if an answer is a refusal."""
    if "error" in values:
        raise BackendError(f"{name}: {values['error'][:MOST_WORDS]}", transient=values.get("transient") is True)
