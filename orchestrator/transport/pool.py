"""The connection pool of one process. It has one connection for each pair of machine and gateway, which is opened at
the first use.
"""

from __future__ import annotations

import contextlib
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from orchestrator.errors import BackendError, JobOverError, PythonMissingError
from orchestrator.node.system.open_files import allow_connections
from orchestrator.transport.address import HERE, SSH, Address, gateway_of
from orchestrator.transport.boundary import START_SECONDS
from orchestrator.transport.carrier import BUFFER
from orchestrator.transport.logins import Logins
from orchestrator.transport.machine import LocalMachine, Machine
from orchestrator.transport.openssh import (
    LoginRefusedError,
    Resolved,
    SshProcess,
    has_master,
    hops_to,
    over_ssh,
    resolve,
)

if TYPE_CHECKING:  # fabric is loaded with the first connection
    from fabric import Connection

    from orchestrator.transport.rpc import Session

AT_ONCE: Final = 32  # handshakes at a time; with more, each would exceed its time-out
FILES_EACH: Final = 4  # files that a connection to a machine may keep open
OWN: Final = "orch's own connection"
OPEN: Final = "it uses the connection that you have opened (ControlMaster)"
RETRY_SECONDS: Final = 5.0  # seconds until a machine that could not be reached is tried again


def _new_archive() -> bytes:
    from orchestrator.transport.node_archive import node_archive

    return node_archive()


def _by(way: str, address: Address) -> Address:
    """Return the address with only this command for starting programs on the machine, such as ssh or srun."""
    return replace(address, by=() if way == SSH else (way,))


class Handshake:
    """Limits the number of SSH handshakes that are in progress at the same time. Each object manages the turn of one
    machine.

    The turn begins when the machine has accepted the connection, and ends with the `with` block. A machine that does
    not answer takes no turn. Otherwise many dead machines would delay all others.
    """

    def __init__(self, pool: ConnectionPool, host: str) -> None:
        self.pool, self.host, self.has_turn = pool, host, False

    def begin(self) -> None:
        """Wait for the turn. Return at once if the machine already has its turn, because several tries count as one
        handshake.
        """
        if not self.has_turn:
            self.pool.opening.discard(self.host)  # it has answered, and waits for us
            self.pool.turns.acquire()
            self.pool.opening.add(self.host)
            self.has_turn = True

    def __enter__(self) -> Self:
        self.pool.opening.add(self.host)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.pool.opening.discard(self.host)
        if self.has_turn:
            self.pool.turns.release()


@dataclass
class ConnectionPool:
    """Open sessions with machines, usable from any thread. `make_archive` returns the archive that the machines'
    servers run.
    """

    make_archive: Callable[[], bytes] = _new_archive
    logins: Logins = field(default_factory=Logins)
    sessions: dict[Address, Session] = field(default_factory=dict)
    gateways: dict[str, Connection] = field(default_factory=dict)
    found: dict[tuple[tuple[str, ...], str], str] = field(default_factory=dict)  # the command that works in a job
    jobs: dict[str, tuple[float, bool]] = field(default_factory=dict)  # when a job was checked; whether it has ended
    failures: dict[Address, tuple[float, BackendError]] = field(default_factory=dict)
    tried: set[str] | None = None  # after `try_again`: the configurations whose refusals have been forgotten
    opening: set[str] = field(default_factory=set)  # the machines whose answer is awaited now
    locks: dict[Any, threading.Lock] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)
    _archive: bytes | None = None
    turns: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(AT_ONCE))

    @property
    def archive(self) -> bytes:
        """Return the archive that the servers run. It is built once, even if many connections are opened at the same
        time.
        """
        with self.lock:
            if self._archive is None:
                self._archive = self.make_archive()
            return self._archive

    def prepare(self) -> None:
        """Import the modules that the first connection needs, and make the archive."""
        import orchestrator.transport.connection
        import orchestrator.transport.rpc  # noqa: F401

        _ = self.archive

    def try_again(self) -> None:
        """From now on, try each login once more that was refused before."""
        self.tried = set()

    def session(self, address: Address, workdir: str) -> Machine:
        """Return the session with the machine at this address. A connection is opened if there is none yet.

        Raises BackendError with the reason if no connection can be opened.
        """
        if address.host == HERE:
            return LocalMachine()
        with self._own_lock(address):
            session = self.sessions.get(address)
            if session is not None and session.is_open:
                return session
            when, error = self.failures.get(address, (0.0, None))
            if error is not None and time.monotonic() - when < RETRY_SECONDS:
                raise error
            try:
                with Handshake(self, address.host) as handshake:
                    session = self.sessions[address] = self._open(address, workdir, handshake)
            except BackendError as problem:
                self.failures[address] = (time.monotonic(), problem)
                raise
            return session

    def way(self, address: Address, workdir: str) -> Address:
        """Return the address with only the command that can start programs on the machine, such as ssh or srun. If the
        address lists several commands, connect to find the one that works.
        """
        of_job = address.by, address.job
        if len(address.by) < 2 or of_job in self.found:
            return _by(self.found.get(of_job, address.by[0]), address) if address.by else address
        self.session(address, workdir)
        return self.sessions[address].address

    def _open(self, address: Address, workdir: str, handshake: Handshake) -> Session:
        """Open a connection by trying the commands of the address (such as ssh, then srun) in order. The first command
        that works is also used for the job's other machines.
        """
        if address.job:
            self._check_job(address)
        of_job, failed = (address.by, address.job), dict[str, BackendError]()
        for way in [self.found[of_job]] if of_job in self.found else address.by or (SSH,):
            try:
                session = self._open_by(_by(way, address), workdir, handshake)
            except PythonMissingError:  # the command itself works
                raise
            except BackendError as error:
                failed[way] = error
            else:
                if address.by:
                    from orchestrator.transport.in_job import is_here

                    if not is_here(address.host):  # this machine may allow a command that others refuse
                        self.found[of_job] = way
                    session.way = "; ".join([way, *(f"not by {each}: {failed[each].message}" for each in failed)])
                return session
        if len(failed) == 1:
            raise next(iter(failed.values()))
        said = "; ".join(f"{way}: {error.message.removeprefix(f'{address.host}: ')}" for way, error in failed.items())
        hint = "; ".join(error.hint for error in failed.values() if error.hint)
        is_transient = any(error.transient for error in failed.values())
        raise BackendError(
            f"{address.host}: none of {', '.join(failed)} starts a program on this host: {said}",
            hint,
            transient=is_transient,
        )

    def _check_job(self, address: Address) -> None:
        """Raise JobOverError if the machine's job has ended. The scheduler is queried at most once every few
        seconds.
        """
        from orchestrator.transport.in_job import ended, is_over

        with self._own_lock(address.job):
            at, is_known_over = self.jobs.get(address.job, (0.0, False))
            if not is_known_over and time.monotonic() - at > RETRY_SECONDS:
                is_known_over = is_over(address.job)
                self.jobs[address.job] = time.monotonic(), is_known_over
        if is_known_over:
            raise JobOverError(f"{address.host}: {ended(address.job)}")

    def _open_by(self, address: Address, workdir: str, handshake: Handshake) -> Session:
        from orchestrator.transport.connection import Channel, NeedsOpenSshError
        from orchestrator.transport.rpc import Session

        if not address.is_by_ssh:
            from orchestrator.transport.in_job import StartedInJob

            handshake.begin()
            return Session(address, lambda argv: StartedInJob(address, argv), workdir, archive=self.archive)
        with contextlib.suppress(OSError):  # if the hard limit is too low, a later connection reports that
            allow_connections(0, FILES_EACH * (len(self.sessions) + len(self.opening) + AT_ONCE))
        try:
            connection = self._connect(address, handshake.begin)
        except NeedsOpenSshError as error:  # for the machine itself, or for a gateway
            if shutil.which("ssh") is None:
                raise
            handshake.begin()
            return self._open_by_program(address, workdir, error.why)
        session = Session(address, lambda argv: Channel(connection, argv), workdir, connection.close, self.archive)
        session.connection = OWN
        return session

    def _open_by_program(self, address: Address, workdir: str, why: str) -> Session:
        """Open a connection by the user's ssh program, over connections that the user has opened, if there are any."""
        from orchestrator.transport.connection import patiently
        from orchestrator.transport.rpc import Session

        self.check_logins(address)
        with self._remembering():
            session = patiently(
                lambda: Session(address, partial(SshProcess, address), workdir, archive=self.archive)
            )  # fmt: skip
        session.shares, session.connection = True, f"your ssh program: {why}"
        return session

    @contextlib.contextmanager
    def _remembering(self) -> Iterator[None]:
        """If the `with` block raises LoginRefusedError, remember that the machine has refused the login."""
        try:
            yield
        except LoginRefusedError as error:
            self.logins.refuse(error)
            raise

    def check_logins(self, address: Address) -> None:
        """Raise LoginRefusedError if the machine, or a gateway to it, has refused the login before."""
        for who, resolved in hops_to(address):
            if has_master(who, resolved):
                break  # ssh logs in to none of the gateways before it
            self._check_login(resolved)

    def _check_login(self, resolved: Resolved) -> None:
        if self.tried is not None and resolved.configuration not in self.tried:
            self.tried.add(resolved.configuration)
            self.logins.forget(resolved)
        self.logins.check(resolved)

    def over_ssh(self, address: Address, argv: Sequence[str], *, terminal: bool) -> list[str]:
        """Return the argv that runs a command on a machine by the user's own ssh.

        Raises BackendError if ssh can't run a command there. That is tried first if orch's own connection has not yet
        logged in there: ssh could print an error that explains nothing, or repeat a refused login, and a ProxyCommand
        could prompt at the terminal.
        """
        hops = hops_to(address)
        if all(self.logins.works(resolved) for _, resolved in hops):
            return over_ssh(hops, argv, terminal=terminal, shares=False)
        self.check_logins(address)
        with self._remembering(), contextlib.closing(SshProcess(address, ["true"], seconds=START_SECONDS)) as process:
            while process.stream.read(BUFFER):  # what start files print
                pass
            process.last_words()
        return over_ssh(hops, argv, terminal=terminal, shares=True)

    def _own_lock(self, key: Any) -> threading.Lock:
        with self.lock:
            return self.locks.setdefault(key, threading.Lock())

    def _gateway(self, jump: str) -> Connection:
        """Return the shared connection to the last of the gateways `a,b,c`, which is reached through the gateways
        before it.
        """
        with self._own_lock(jump):
            found = self.gateways.get(jump)
            if found is None or not found.is_connected:
                found = self.gateways[jump] = self._connect(gateway_of(jump))
            return found

    def _connect(self, address: Address, on_answer: Callable[[], None] = lambda: None) -> Connection:
        from orchestrator.transport.connection import NeedsOpenSshError, connect

        resolved = resolve(address)
        if resolved.needs_program:
            what = resolved.needs_program
            raise NeedsOpenSshError(f"{address.host}: {what} needs ssh, and this machine has no ssh", why=what)
        if not self.logins.works(resolved) and has_master(address, resolved):
            raise NeedsOpenSshError(f"{address.host}: it needs ssh, and this machine has no ssh", why=OPEN)
        self._check_login(resolved)
        gateway = self._gateway(resolved.jump) if resolved.jump else None
        with self._remembering():
            connection = connect(address, resolved, gateway, on_answer)
        self.logins.accept(resolved)
        return connection

    def close(self) -> None:
        """Close all connections."""
        for session in self.sessions.values():
            session.close()
        for gateway in self.gateways.values():
            gateway.close()
