"""A run's first start by the process that will follow it: each machine is dialled once, and not by its submit as well.

The submit starts the supervisor before it needs it, and hands it the plan over a pair of sockets. The supervisor names
the machines that are awaited, then says how the start ended. Where the submit is gone before that, the process begins
anew as a plain supervisor, which finds the run lost and ends what was started of it: as where a submit that starts a
run itself is killed.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from orchestrator.backends import backend, kind_of
from orchestrator.errors import BackendError, OrchError, PlacesTakenError, StoreError, UsageError
from orchestrator.node.system.processes import identify
from orchestrator.protocol.json_text import parse_json
from orchestrator.runs.store import RunDir
from orchestrator.supervisor.start import begin_again, continue_if_stopped, start_supervisor

if TYPE_CHECKING:  # a submit of files that were read before must not wait for pydantic
    from orchestrator.specs.plan import LaunchPlan

LOOK_SECONDS: Final = 1.0
QUIET_SECONDS: Final = 2.0  # a running supervisor writes a line each second
CHUNK: Final = 1 << 16
STDIN: Final = 0
ERRORS: Final = {each.__name__: each for each in (OrchError, UsageError, BackendError, PlacesTakenError, StoreError)}


class Handover:
    """A supervisor that waits for a run of this process's to start; closed, it looks after the live runs, if any."""

    def __init__(self, root: Path, kind: str, without: Iterable[str]) -> None:
        self.log = root / "supervisor.log"
        self.socket, its = socket.socketpair()
        with its:
            self.pid = start_supervisor(root, without, stdin=its.fileno(), starts=kind)

    def start(
        self, run: RunDir, plan: LaunchPlan, secrets: Mapping[str, str], on_awaited: Callable[[list[str]], None]
    ) -> None:
        """Have the agents of a recorded run started: `Backend.submit`, and its errors, in the other process.

        `on_awaited` is told each second whose first answer is awaited. BackendError where the supervisor has died.
        """
        asked = {"run": str(run.path), "plan": plan.to_json(), "secrets": dict(secrets)}
        with contextlib.suppress(ConnectionError):  # said below: the same as an end without an answer
            self.socket.sendall(json.dumps(asked).encode() + b"\n")
            for answer in map(json.loads, self._answers()):
                if "awaited" not in answer:
                    return _raise_if_refused(answer)
                on_awaited(answer["awaited"])
        raise BackendError("the supervisor ended before it had started the run", f"see {self.log}", transient=True)

    def _answers(self) -> Iterator[bytes]:
        """Yield the supervisor's lines. Continue a supervisor that was stopped (SIGSTOP)."""
        ready, buffered = select.poll(), b""
        ready.register(self.socket, select.POLLIN)
        while True:
            *lines, buffered = buffered.split(b"\n")
            yield from lines
            if not ready.poll(1000 * QUIET_SECONDS):
                continue_if_stopped(identify(self.pid))
            elif data := self.socket.recv(CHUNK):
                buffered += data
            else:
                return

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.socket.close()


def _raise_if_refused(answer: Mapping[str, Any]) -> None:
    if (refused := answer.get("refused")) is not None:
        error: OrchError = ERRORS[refused](answer["message"], answer["hint"])
        error.transient = answer["transient"]
        raise error


def start_what_is_asked_for(kind: str) -> None:
    """Start the run of the submit at the other end of the standard input; returns when that knows how it went.

    What is needed for it is loaded while the submit still plans. One that ends without a request wanted nothing.
    """
    machine = backend(kind)
    if machine.pool is not None:
        machine.pool.prepare()
    with socket.socket(fileno=os.dup(STDIN)) as submit:
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, STDIN)
        os.close(nothing)
        with submit.makefile("rb") as lines:
            asked = lines.readline()
        if not asked.endswith(b"\n"):
            return
        with _watched(submit, machine.pool.opening if machine.pool is not None else ()):
            answer = _start(parse_json(asked))
        if _tell(submit, answer) and answer.get("refused") not in (None, PlacesTakenError.__name__):
            with contextlib.suppress(ConnectionError):  # it was killed before it had read that
                submit.recv(1)  # until it has ended the run itself, and is gone


def _start(asked: Mapping[str, Any]) -> dict[str, Any]:
    from orchestrator.specs.plan import LaunchPlan
    from orchestrator.transport.credentials import credentials_for, entrusted

    plan = LaunchPlan.from_json(asked["plan"])
    tasks = entrusted(plan.tasks, credentials_for(plan.nnodes), asked["secrets"])
    try:
        backend(kind_of(plan.profile)).submit(plan, tasks, RunDir(Path(asked["run"])))
    except OrchError as error:
        known = next(each.__name__ for each in type(error).__mro__ if each.__name__ in ERRORS)
        return {"refused": known, "message": error.message, "hint": error.hint, "transient": error.transient}
    return {"started": True}


def _tell(submit: socket.socket, words: Mapping[str, Any]) -> bool:
    """Say something to the submit; False where that is gone."""
    with contextlib.suppress(TimeoutError):  # it is stopped (Ctrl-Z), and has much to read already
        try:
            submit.sendall(json.dumps(words).encode() + b"\n")
        except ConnectionError:
            return False
    return True


@contextlib.contextmanager
def _watched(submit: socket.socket, awaited: Collection[str]) -> Iterator[None]:
    """While it lasts, tell the submit each second who is awaited; begin anew where the submit is gone."""
    is_over, ended = os.pipe()
    looks = select.poll()
    for each in (submit.fileno(), is_over):
        looks.register(each, select.POLLIN)

    def watch() -> None:
        submit.settimeout(LOOK_SECONDS)
        while is_over not in (ready := dict(looks.poll(1000 * LOOK_SECONDS))):
            if ready or not _tell(submit, {"awaited": sorted(awaited)}):  # it says nothing more: it is gone
                begin_again()

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        os.close(ended)  # which wakes it
        watcher.join()
        os.close(is_over)
        submit.settimeout(None)
