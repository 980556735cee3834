"""A conversation with orch's own server on a machine, over one SSH channel; and all those of this process."""

from __future__ import annotations

import contextlib
import hashlib
import json
import secrets
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from orchestrator.address import Address
from orchestrator.archive import node_archive
from orchestrator.errors import BackendError
from orchestrator.remote import CONNECT_SECONDS, LOST, connect, open_channel, resolve

if TYPE_CHECKING:
    from fabric import Connection

CALL_SECONDS: Final = 60.0
BANNER_LINES: Final = 200
MIN_PYTHON: Final = (3, 9)
SMALL: Final = 1 << 16
SLOWEST: Final = 50_000  # bytes a second of a connection that is still worth waiting for
PATIENCE_SECONDS: Final = 5.0  # for so long a machine that could not be reached is not tried again

# One line without `!`, so that every login shell passes it on as it is: says whether the server is here already, takes
# it from the standard input where it is not, and becomes it.
_BOOTSTRAP: Final = (
    "import os,sys\\nb,p,n=sys.argv[1:]\\np=os.path.expanduser(p)\\nn=int(n)\\nh=os.path.exists(p)\\n"
    "v='.'.join(map(str,sys.version_info[:2]))\\n"
    "w=lambda s:os.write(1,(b+' '+v+' '+s+chr(10)).encode())\\n"
    "try:\\n"
    "  os.makedirs(os.path.dirname(p),0o700,exist_ok=True)\\n"
    "  t=p+'.'+str(os.getpid())\\n"
    "  f=h or open(t,'wb')\\n"
    "except OSError as e:\\n"
    "  w('error '+str(e))\\n"
    "  sys.exit(1)\\n"
    "w('have' if h else 'need')\\n"
    "while n and not h:\\n"
    "  d=os.read(0,min(n,65536))\\n"
    "  if not d: sys.exit(1)\\n"
    "  f.write(d)\\n"
    "  n-=len(d)\\n"
    "if not h:\\n"
    "  f.close()\\n"
    "  os.rename(t,p)\\n"
    "os.execv(sys.executable,[sys.executable,'-I','-S',p,'serve'])"
)


class Session:
    """The conversation with orch's server on one machine: requests in any thread, one channel for all of them."""

    def __init__(self, address: Address, connection: Connection, workdir: str) -> None:
        self.address, self.connection, self.workdir = address, connection, workdir
        self.waiting: dict[int, tuple[threading.Event, list[Any]]] = {}
        self.lock, self.writing, self.number = threading.Lock(), threading.Lock(), 0
        self.problem = ""
        self.channel = self._start()
        self.reader = threading.Thread(target=self._read, daemon=True, name=f"ssh {address.host}")
        self.reader.start()

    @property
    def is_open(self) -> bool:
        """May requests be sent?"""
        return not self.problem

    def call(
        self, do: str, payload: bytes = b"", *, timeout: float | None = CALL_SECONDS, **values: Any
    ) -> tuple[dict[str, Any], bytes]:
        """The server's answer; BackendError with its sentence, or transient when the machine is out of reach."""
        arrived = threading.Event()
        answer: list[Any] = []
        with self.lock:
            self.number += 1
            number = self.number
            self.waiting[number] = (arrived, answer)
        head = json.dumps({"id": number, "do": do, **values, "bytes": len(payload)}).encode() + b"\n"
        try:
            with self.writing:
                self.channel.sendall(head + payload if len(payload) < SMALL else head)
                if len(payload) >= SMALL:
                    self.channel.sendall(payload)
        except LOST as error:
            self._fail(str(error) or "the connection is closed")
        patience = None if timeout is None else timeout + len(payload) / SLOWEST
        if self.problem or not arrived.wait(patience) or not answer:
            self.waiting.pop(number, None)
            if not self.problem:
                self._fail(f"no answer within {timeout:g} s")
            raise BackendError(f"{self.address.host}: {self.problem}", transient=True)
        reply, data = answer
        if "error" in reply:
            raise BackendError(f"{self.address.host}: {reply['error']}")
        return reply, data

    def close(self) -> None:
        """Close the connection; what was started there goes on."""
        self._fail("closed")

    def _start(self) -> Any:
        archive = node_archive()
        path = f"{self.workdir}/cache/node-{hashlib.sha256(archive).hexdigest()[:16]}.pyz"
        boundary = secrets.token_hex(16)
        code = f'exec("{_BOOTSTRAP}")'
        try:
            channel = open_channel(
                self.connection, ["python3", "-I", "-S", "-c", code, boundary, path, str(len(archive))]
            )
            channel.settimeout(CONNECT_SECONDS)
            self.stream = channel.makefile("rb", SMALL)
            version, word, rest = self._boundary(boundary)
            if word == "error":
                raise BackendError(
                    f"{self.address.host}: {self.workdir} can't be used: {rest}", "set workdir in the profile"
                )
            if tuple(map(int, version.split("."))) < MIN_PYTHON:
                raise BackendError(f"{self.address.host}: its python3 is {version}; 3.9 or newer is needed")
            if word == "need":
                channel.sendall(archive)
            channel.settimeout(None)
        except LOST as error:
            raise BackendError(
                f"{self.address.host}: logged in, but no command can be run: {str(error) or type(error).__name__}",
                f"try: ssh {self.address.host} true",
                transient=True,
            ) from error
        return channel

    def _boundary(self, boundary: str) -> tuple[str, str, str]:
        """What the bootstrap says; whatever a login banner or a .bashrc prints stands before it."""
        seen = []
        for _ in range(BANNER_LINES):
            line = self.stream.readline()
            if not line:
                break
            if line.startswith(boundary.encode()):
                version, word, *rest = line.decode().split(None, 3)[1:]
                return version, word, "".join(rest).strip()
            seen.append(line.decode("utf-8", "replace").strip())
        channel = self.stream.channel
        said = channel.makefile_stderr("rb").read(4096).decode("utf-8", "replace").strip() or " ".join(seen)
        if channel.recv_exit_status() == 127:
            raise BackendError(
                f"{self.address.host}: it has no python3", "install it (3.9 or newer); orch needs nothing else there"
            )
        raise BackendError(f"{self.address.host}: orch's server does not start there: {said[-300:]}")

    def _read(self) -> None:
        problem = "the connection was closed"
        try:
            while line := self.stream.readline():
                reply = json.loads(line)
                data = self.stream.read(reply["bytes"])
                if found := self.waiting.pop(reply["id"], None):  # nobody waits any more for one that came too late
                    found[1].extend([reply, data])
                    found[0].set()
        except (*LOST, ValueError, KeyError) as error:
            problem = str(error) or problem
        self._fail(problem)

    def _fail(self, problem: str) -> None:
        self.problem = self.problem or problem
        with contextlib.suppress(Exception):  # what is broken already can't be closed in order
            self.connection.close()
        while self.waiting:
            with contextlib.suppress(KeyError):
                self.waiting.popitem()[1][0].set()


@dataclass
class Ways:
    """The connections of one process: one a machine, one a gateway, opened when first asked for and kept open."""

    sessions: dict[Address, Session] = field(default_factory=dict)
    gateways: dict[str, Connection] = field(default_factory=dict)
    failures: dict[Address, tuple[float, BackendError]] = field(default_factory=dict)
    locks: dict[Any, threading.Lock] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def session(self, address: Address, workdir: str) -> Session:
        """The session with this machine, opened unless it is; BackendError says in a sentence what is in the way."""
        with self._own_lock(address):
            session = self.sessions.get(address)
            if session is not None and session.is_open:
                return session
            when, error = self.failures.get(address, (0.0, None))
            if error is not None and time.monotonic() - when < PATIENCE_SECONDS:
                raise error
            try:
                session = self.sessions[address] = Session(address, self._connect(address), workdir)
            except BackendError as problem:
                self.failures[address] = (time.monotonic(), problem)
                raise
            return session

    def _own_lock(self, key: Any) -> threading.Lock:
        with self.lock:
            return self.locks.setdefault(key, threading.Lock())

    def _gateway(self, jump: str) -> Connection:
        """The connection to the last of `a,b,c`, through those before it; shared by all that go through it."""
        with self._own_lock(jump):
            found = self.gateways.get(jump)
            if found is None or not found.is_connected:
                before, _, last = jump.rpartition(",")
                user, _, rest = last.rpartition("@")
                host, _, port = rest.partition(":")
                way = Address(host, user or None, int(port) if port else None, jump=before or None)
                found = self.gateways[jump] = self._connect(way)
            return found

    def _connect(self, address: Address) -> Connection:
        resolved = resolve(address)
        return connect(address, resolved, self._gateway(resolved.jump) if resolved.jump else None)

    def close(self) -> None:
        """Close everything that is open."""
        for session in self.sessions.values():
            session.close()
        for gateway in self.gateways.values():
            gateway.close()
