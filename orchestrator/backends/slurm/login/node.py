"""A login node, reached over SSH: the session with it, and Slurm's programs run there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from orchestrator.backends.slurm.client import PATIENCE, PLAIN, Answer
from orchestrator.backends.slurm.environment import NEEDED, PRINT_FILLS, STRANGE
from orchestrator.errors import BackendError
from orchestrator.transport.address import parse_address
from orchestrator.transport.pool import ConnectionPool

if TYPE_CHECKING:  # loads fabric
    from orchestrator.transport.machine import Machine

TRAVEL_SECONDS: Final = 10.0
MOST_OUTPUT: Final = 64 << 20


class LoginNode:
    """One login node and orch's folder there; a command runner for Slurm's programs."""

    def __init__(self, pool: ConnectionPool, login: str, workdir: str, *, shared_parent: bool = False) -> None:
        self.pool, self.where, self.workdir, self.shared_parent = pool, login, workdir, shared_parent
        self.address = parse_address(login)
        self._user: int | None = None

    def session(self) -> Machine:
        """Return the open session; BackendError where the login node can't be reached."""
        return self.pool.session(self.address, self.workdir)

    def hello(self) -> dict[str, Any]:
        """Return what the machine says of itself: home, workdir, free space, the user's number."""
        return self.session().call("hello", workdir=self.workdir, shared_parent=self.shared_parent)[0]

    def run(self, argv: Sequence[str], stdin: str, timeout: float) -> Answer:
        """Run it there; see CommandRunner."""
        return self._run(argv, stdin, timeout, STRANGE)

    def _run(self, argv: Sequence[str], stdin: str, timeout: float, hide: Sequence[str]) -> Answer:
        reply, out = self.session().call(
            "run_program", stdin.encode(), timeout=timeout + TRAVEL_SECONDS, argv=list(argv), patience=timeout,
            env=PLAIN, hide=hide, keep=NEEDED, most=MOST_OUTPUT,
        )  # fmt: skip
        if reply["code"] is None:
            raise BackendError(f"{self.where}: {argv[0]} did not answer for {timeout:g} s", transient=True)
        return Answer(reply["code"], out.decode("utf-8", "replace"), reply["err"])

    def missing(self, names: Sequence[str]) -> list[str]:
        """Ask there; see CommandRunner."""
        return list(self.session().call("missing_programs", names=list(names))[0]["missing"])

    def user(self) -> int:
        """Ask there once; see CommandRunner."""
        if self._user is None:
            self._user = int(self.hello()["uid"])
        return self._user

    def environment(self) -> Mapping[str, str]:
        """Ask there; see CommandRunner."""
        lines = self._run(PRINT_FILLS, "", PATIENCE, ()).out.splitlines()
        return {name: value for name, equals, value in (line.partition("=") for line in lines) if equals}
