"""Lets the supervisor start a run for the submit command, so that only the supervisor connects to the machines.

The submit command starts the supervisor early, while it still makes the plan. Then it sends the plan, the secrets and
the lock of the run's start over a socket pair. The supervisor reports the machines that have not answered yet, and
finally the result. Both processes hold the lock. So the start continues if the submit command dies, and the command
ends the run if the supervisor dies.
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

from orchestrator.backends import backend_for
from orchestrator.errors import BackendError, OrchError, StoreError, UsageError
from orchestrator.node.system.processes import identify
from orchestrator.protocol.events import SubmitFailed
from orchestrator.protocol.json_text import parse_json
from orchestrator.runs.store import RunDir
from orchestrator.supervisor import starting
from orchestrator.supervisor.background import continue_if_stopped, start_supervisor
from orchestrator.supervisor.surroundings import own_folder

if TYPE_CHECKING:  # a submission of files that were read before must not wait for pydantic
    from orchestrator.specs.plan import LaunchPlan

REPORT_SECONDS: Final = 1.0
QUIET_SECONDS: Final = 2.0  # a supervisor writes a line each second unless it is stopped
CHUNK: Final = 1 << 16
STDIN: Final = 0
ERRORS: Final = {each.__name__: each for each in (OrchError, UsageError, BackendError, StoreError)}


class Handover:
    """A new supervisor that waits for the request to start one run. After that run's start, it supervises all live
    runs.
    """

    def __init__(self, root: Path, kind: str, without: Iterable[str]) -> None:
        self.log = root / "supervisor.log"
        self.socket, its = socket.socketpair()
        with its:
            self.pid = start_supervisor(root, without, stdin=its.fileno(), starts=kind)

    def start(
        self,
        run: RunDir,
        plan: LaunchPlan,
        secrets: Mapping[str, str],
        lock: int,
        on_awaited: Callable[[list[str]], None],
    ) -> None:
        """Have the supervisor call `starting.start`. An error of that call is raised in this process.

        `lock` is the file descriptor of the lock of the run's start. `on_awaited` is called each second with the
        machines that have not answered yet. Raises BackendError if the supervisor has died.
        """
        asked = {"run": str(run.path), "plan": plan.to_json(), "secrets": dict(secrets), "folder": own_folder()}
        with contextlib.suppress(ConnectionError):  # the error below reports it
            request = json.dumps(asked).encode() + b"\n"
            sent = socket.send_fds(self.socket, [request], [lock])
            self.socket.sendall(request[sent:])
            for answer in map(json.loads, self._answers()):
                if "awaited" not in answer:
                    return _raise_if_refused(answer)
                on_awaited(answer["awaited"])
        raise BackendError("the supervisor ended before it had started the run", f"see {self.log}", transient=True)

    def _answers(self) -> Iterator[bytes]:
        """Yield the lines that the supervisor sends. A supervisor that was stopped (SIGSTOP) gets SIGCONT."""
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


def start_requested_run(kind: str) -> None:
    """Start the run that the submit command requests over standard input, a socket. Return once the result is known.

    The code for the start is imported while the submit command still makes the plan. If the plan is refused, the
    command ends without a request.
    """
    backend = backend_for(kind)
    if backend.pool is not None:
        backend.pool.prepare()
    with socket.socket(fileno=os.dup(STDIN)) as submit:
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, STDIN)
        os.close(nothing)
        request, *locks = _received(submit)
        if request is not None:
            run, opening = RunDir(Path(request["run"])), backend.pool.opening if backend.pool is not None else ()
            with _reported(submit, opening):
                answer = _start(run, request)
            is_told = _tell(submit, answer)
            if is_told and "refused" in answer:
                with contextlib.suppress(ConnectionError):  # the submit command was killed before it read the answer
                    submit.recv(1)  # wait until the submit command has ended the run and exited
            elif "refused" in answer:
                run.append_event(SubmitFailed(answer["message"]))
        for lock in locks:
            os.close(lock)


def _received(submit: socket.socket) -> tuple[Any, ...]:
    """Return the request and the file descriptors that came with it. The request is None if the submit command ended
    before it sent the whole request.
    """
    data, locks, *_ = socket.recv_fds(submit, CHUNK, 1)
    chunks = [data]
    while data and not data.endswith(b"\n"):
        chunks.append(data := submit.recv(CHUNK))
    return parse_json(b"".join(chunks)) if data else None, *locks


def _start(run: RunDir, asked: Mapping[str, Any]) -> dict[str, Any]:
    from orchestrator.specs.plan import LaunchPlan

    try:
        starting.start([run], [LaunchPlan.from_json(asked["plan"])], asked["secrets"], folder=asked["folder"])
    except OrchError as error:
        known = next(each.__name__ for each in type(error).__mro__ if each.__name__ in ERRORS)
        return {"refused": known, "message": error.message, "hint": error.hint, "transient": error.transient}
    return {"started": True}


def _tell(submit: socket.socket, words: Mapping[str, Any]) -> bool:
    """Send a message to the waiting submit command. Return False if the command has ended."""
    with contextlib.suppress(TimeoutError):  # the command is stopped (Ctrl-Z), and has not read earlier messages
        try:
            submit.sendall(json.dumps(words).encode() + b"\n")
        except ConnectionError:
            return False
    return True


@contextlib.contextmanager
def _reported(submit: socket.socket, awaited: Collection[str]) -> Iterator[None]:
    """Within the block, send the submit command once a second the machines that have not answered yet."""
    is_over = threading.Event()

    def report() -> None:
        submit.settimeout(REPORT_SECONDS)
        while not is_over.wait(REPORT_SECONDS) and _tell(submit, {"awaited": sorted(awaited)}):
            pass

    reporter = threading.Thread(target=report, daemon=True)
    reporter.start()
    try:
        yield
    finally:
        is_over.set()
        reporter.join()
        submit.settimeout(None)
