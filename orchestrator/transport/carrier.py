"""A command of this machine, such as ssh or srun, that carries the standard streams of a program on another machine."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import tempfile
import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Final

from orchestrator.errors import BackendError
from orchestrator.transport.address import Address

LEAVING_SECONDS: Final = 5.0
BUFFER: Final = 1 << 16


class Carrier(ABC):
    """A running command that carries the streams. If `seconds` is given, the command is killed after that time, unless
    `settle` is called before.

    environment: variables that the command gets in addition. Raises BackendError if the command can't be started.
    """

    def __init__(
        self,
        address: Address,
        argv: Sequence[str],
        seconds: float | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.address, self.errors = address, tempfile.TemporaryFile()  # noqa: SIM115 (open as long as the process)
        # Unlike a pipe, a socket can be shut while a thread reads from it. It is also faster.
        self.socket, theirs = socket.socketpair()
        try:
            self.process = subprocess.Popen(
                argv, stdin=theirs.fileno(), stdout=theirs.fileno(), stderr=self.errors,
                env={**os.environ, **(environment or {})},
                start_new_session=True,  # a Ctrl-C at the terminal must reach only this process
            )  # fmt: skip
        except OSError as error:
            self.errors.close()
            raise BackendError(f"{address.host}: {error.filename} can't be started: {error.strerror}") from error
        finally:
            theirs.close()
        self.stream = self.socket.makefile("rb", BUFFER)
        self.alarm = threading.Timer(seconds or 0.0, self.give_up)
        self.alarm.daemon = True
        if seconds is not None:
            self.alarm.start()

    def give_up(self) -> None:
        """Kill the command. Also shut the socket, because a child of the command may hold the socket's other end
        open.
        """
        with contextlib.suppress(OSError):  # the command runs as another user
            self.process.kill()
        self._shut()

    def _shut(self) -> None:
        """Shut the socket down, which also wakes the threads that wait to read from it."""
        with contextlib.suppress(OSError):  # it is shut already
            self.socket.shutdown(socket.SHUT_RDWR)

    def settle(self) -> None:
        """Remove the time limit, because the other end has answered."""
        self.alarm.cancel()

    def send(self, data: bytes) -> None:
        """Send all of the data. Raises OSError if the connection is lost."""
        self.socket.sendall(data)

    @abstractmethod
    def last_words(self) -> tuple[int, str]:
        """Return (exit code, standard error) of the ended program. Raises BackendError if the program was not
        started.
        """

    def end(self) -> tuple[int, str]:
        """End the command. Return its (exit code, standard error)."""
        self.alarm.cancel()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(LEAVING_SECONDS)
        self.process.kill()
        code = self.process.wait()
        self.errors.seek(0)
        return code, self.errors.read(4096).decode("utf-8", "replace").strip()

    def close(self) -> None:
        """Close the program's standard streams, which ends orch's server on the machine. The command itself may run
        until the agents on the machine end.
        """
        self.alarm.cancel()
        self._shut()
        for file in (self.stream, self.socket, self.errors):
            with contextlib.suppress(OSError):  # data could not be sent any more
                file.close()
        threading.Thread(target=self.process.wait, daemon=True).start()
