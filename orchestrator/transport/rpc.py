"""Requests to orch's own server on a machine, over one channel of SSH or of a scheduler's command."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Final, Protocol

from orchestrator.errors import BackendError, PythonMissingError
from orchestrator.node.system.interpreter import MIN_PYTHON, first_python
from orchestrator.protocol.json_text import parse_json
from orchestrator.transport.address import Address
from orchestrator.transport.answers import is_answer
from orchestrator.transport.boundary import MOST_BEFORE, START_SECONDS, Boundary
from orchestrator.transport.connection import LOST
from orchestrator.transport.machine import (
    CALL_SECONDS,
    MOST_BYTES,
    MOST_WORDS,
    OTHER_FOLDER,
    SLOWEST,
    Answer,
    Machine,
    Sink,
    check_refusal,
)
from orchestrator.transport.node_archive import node_archive
from orchestrator.transport.openssh import SshProcess, resolve

SLOW_SECONDS: Final = 5.0  # start files that take longer are named by the doctor
SMALL: Final = 1 << 16
MANY: Final = 16 << 20  # bytes for which a connection of the system's ssh is worth its handshake
MOST_LINE: Final = 4 << 20  # bytes of an answer's first line
NEEDED: Final = ".".join(map(str, MIN_PYTHON))
WANTED: Final = (
    f"install python3 ({NEEDED} or newer) on that host, or set `python` in the profile to such an interpreter there, "
    "with `setup` lines if they make it available; orch needs nothing else there"
)
_OLD: Final = re.compile(rb"old (\d{1,3}\.\d{1,3}) (.*)\n")
_GREETING: Final = re.compile(r"(\d{1,3}\.\d{1,3}) (have|need|error)(?: (.*))?", re.DOTALL)

# The bootstrap is one line without `!`, so that every login shell passes it on unchanged. It reports whether the
# machine has the server's archive, reads the archive from the standard input if it is missing or incomplete, and then
# runs it. The bytes that were hashed are run from memory. The file is only a cache, so a user who can write the file
# can't change what is run.
_BOOTSTRAP: Final = (
    "import hashlib,os,sys\\nb,p,h,n,a=sys.argv[1:]\\np=os.path.expanduser(p)\\nn=int(n)\\nd=t=b''\\n"
    "v='.'.join(map(str,sys.version_info[:2]))\\n"
    "w=lambda s:os.write(1,(b+' '+v+' '+s+chr(10)).encode())\\n"
    "u=os.umask(63)\\n"
    "try:\\n"
    "  os.makedirs(os.path.dirname(p),0o700,exist_ok=True)\\n"
    "  try:\\n"
    "    f=os.open(p,os.O_RDONLY|os.O_NOFOLLOW|os.O_NONBLOCK)\\n"
    "    with open(f,'rb') as f: d=f.read(n+1)\\n"
    "  except OSError: pass\\n"
    "  k=hashlib.sha256(d).hexdigest()==h\\n"
    "  if not k:\\n"
    "    t=p+'.'+os.urandom(8).hex()\\n"
    "    f=open(os.open(t,os.O_WRONLY|os.O_CREAT|os.O_EXCL|os.O_NOFOLLOW,0o600),'wb')\\n"
    "except OSError as e:\\n"
    "  w('error '+str(e))\\n"
    "  sys.exit(1)\\n"
    "w('have' if k else 'need')\\n"
    "if not k:\\n"
    "  d=b''\\n"
    "  while len(d)<n:\\n"
    "    c=os.read(0,min(n-len(d),65536))\\n"
    "    if not c:\\n"
    "      os.unlink(t)\\n"
    "      sys.exit(1)\\n"
    "    d+=c\\n"
    "  try:\\n"
    "    f.write(d)\\n"
    "    f.flush()\\n"
    "    os.fsync(f.fileno())\\n"
    "    os.rename(t,p)\\n"
    "  except OSError: os.unlink(t)\\n"  # the disk is full, which the first request reports
    "os.umask(u)\\n"
    "try: m=os.memfd_create('node.pyz',0)\\n"
    "except OSError: m=os.memfd_create('node.pyz',8)\\n"  # a kernel may require MFD_NOEXEC_SEAL
    "with open(m,'wb',closefd=False) as f: f.write(d)\\n"
    "d=b''\\n"
    "sys.argv=['/proc/self/fd/%d'%m,a]\\n"  # in this interpreter, because starting another one takes time
    "sys.path.insert(0,sys.argv[0])\\n"
    "from orchestrator.node.__main__ import main\\n"
    "sys.exit(main())"
)


class AnyChannel(Protocol):
    """A command on a machine with its standard streams, over paramiko, the system's ssh, or a scheduler's command."""

    stream: Any

    def settle(self) -> None: ...
    def give_up(self) -> None: ...
    def send(self, data: bytes) -> None: ...
    def last_words(self) -> tuple[int, str]: ...
    def close(self) -> None: ...


class _Alarm:
    """Closes a channel if the machine has not begun the command in time: START_SECONDS, or the user's ConnectTimeout
    if that is longer. Reading the user's configuration takes time, so it is read only if the machine is slow.
    """

    def __init__(self, channel: AnyChannel, address: Address) -> None:
        self.channel, self.address, self.seconds = channel, address, START_SECONDS
        self.is_over = self.is_stopped = False
        self.lock = threading.Lock()
        self._set(START_SECONDS)

    def _set(self, seconds: float) -> None:
        self.timer = threading.Timer(seconds, self._ring)
        self.timer.daemon = True
        self.timer.start()

    def _ring(self) -> None:
        more = max(START_SECONDS, resolve(self.address).reach_seconds) - self.seconds
        with self.lock:
            if self.is_stopped:
                return
            self.is_over = more <= 0
            if not self.is_over:
                self.seconds += more
                self._set(more)
                return
        self.channel.give_up()

    def stop(self) -> None:
        """Cancel the alarm, because the machine has answered."""
        with self.lock:
            self.is_stopped = True
            self.timer.cancel()


class Session(Machine):
    """The connection to orch's server on one machine. Requests from all threads share one channel.

    start: starts a command on the machine. hang_up: called when the session ends. archive: the archive that the server
    runs. The default is made by this process.
    """

    shares = False  # True if the connection is one of the user's ssh program, which may use an open connection

    def __init__(
        self,
        address: Address,
        start: Callable[[list[str]], AnyChannel],
        workdir: str,
        hang_up: Callable[[], None] = lambda: None,
        archive: bytes | None = None,
    ) -> None:
        self.address, self.name, self.workdir, self.hang_up = address, address.host, workdir, hang_up
        self.archive = archive if archive is not None else node_archive()
        self.waiting: dict[int, Reply] = {}
        self.lock, self.writing, self.number = threading.Lock(), threading.Lock(), 0
        self.problem = ""
        self.channel = self._start(start)
        self.reader = threading.Thread(target=self._read, daemon=True, name=f"ssh {address.host}")
        self.reader.start()

    @property
    def is_open(self) -> bool:
        """Return True if requests may be sent."""
        return not self.problem

    def ask(
        self, verb: str, payload: bytes = b"", *, sink: Sink | None = None, most: int = MOST_BYTES, **values: Any
    ) -> Reply:
        """Send a request without waiting for its answer. Any thread may call this."""
        with self.lock:
            self.number += 1
            reply = Reply(self, self.number, verb, len(payload), most, sink)
            self.waiting[reply.number] = reply
        head = json.dumps({"id": reply.number, "do": verb, **values, "bytes": len(payload)}).encode() + b"\n"
        try:
            with self.writing:
                self.channel.send(head + payload if len(payload) < SMALL else head)
                if len(payload) >= SMALL:
                    self.channel.send(payload)
        except LOST as error:
            self._fail(str(error) or "the connection is closed")
        return reply

    @contextlib.contextmanager
    def bulk(self, count: int) -> Iterator[Session]:
        """Yield this session. For many bytes, yield a faster session over the system's own ssh, if ssh can connect."""
        fast = None
        if count >= MANY and self.address.is_by_ssh:
            with contextlib.suppress(BackendError):  # if ssh is missing or has no key, this session is used
                start = partial(SshProcess, self.address, shares=self.shares)
                fast = Session(self.address, start, self.workdir, archive=self.archive)
                fast.is_own = True
        try:
            yield fast or self
        finally:
            if fast is not None:
                fast.close()

    def close(self) -> None:
        """Close the connection. Agents that were started on the machine continue."""
        self._fail("closed")

    def _start(self, start: Callable[[list[str]], AnyChannel]) -> AnyChannel:
        """Start the server with python3, or with another interpreter if python3 is missing, broken or too old."""
        digest = hashlib.sha256(self.archive).hexdigest()
        path = f"{self.workdir}/cache/node-{digest[:16]}.pyz"
        boundary = Boundary()
        code, verb = f'exec("{_BOOTSTRAP}")', "serve" if self.address.is_by_ssh else "stay"
        argv = ["-I", "-S", "-c", code, boundary.text, path, digest, str(len(self.archive)), verb]
        try:
            return self._started(start, ["python3", *argv], boundary)
        except PythonMissingError as error:
            self.passed_over = error.message.removeprefix(f"{self.name}: ")
            other = first_python(argv, self.address.python, self.address.setup, boundary.text)
            try:
                return self._started(start, other, boundary)
            except PythonMissingError as last:
                said = last.message if self._old else error.message
                raise PythonMissingError(said, last.hint, transient=last.transient) from error

    def _started(self, start: Callable[[list[str]], AnyChannel], argv: list[str], boundary: Boundary) -> AnyChannel:
        self._old: dict[str, str] = {}  # interpreters that are too old, and their versions
        begun = time.monotonic()
        try:
            channel = start(argv)
            alarm = _Alarm(channel, self.address)
            try:
                self._greet(channel, boundary)
            except (BackendError, *LOST) as error:
                channel.close()
                is_explained = isinstance(error, BackendError) and not isinstance(error, PythonMissingError)
                if alarm.is_over and not is_explained:
                    raise self._hangs(alarm.seconds, boundary) from None
                raise
            finally:
                alarm.stop()
        except LOST as error:
            raise BackendError(
                f"{self.name}: logged in, but no command can be run: {str(error) or type(error).__name__}",
                f"try: {self.address.ssh_command} true",
                transient=True,
            ) from error
        if self.address.is_by_ssh and (took := time.monotonic() - begun) > SLOW_SECONDS:
            self.slow = f"its start files (.bashrc, .profile or .cshrc) delay each command by {took:.0f} s"
        return channel

    def _hangs(self, seconds: float, boundary: Boundary) -> BackendError:
        """Return the error for start files that have not ended in time."""
        printed = f"; they have printed: {seen[-300:]}" if (seen := boundary.seen) else ""
        return BackendError(
            f"{self.name}: logged in, but no command has begun within {seconds:g} s: the login shell's start files "
            f"(.bashrc, .profile or .cshrc) hang or are slow{printed}",
            f"try: time {self.address.ssh_command} true; end these files early if the shell is not interactive, or set "
            f"ConnectTimeout in ~/.ssh/config to more than {seconds:g}",
            transient=True,
        )

    def _greet(self, channel: AnyChannel, boundary: Boundary) -> None:
        """Read the first line that the bootstrap program on the machine prints, and send the archive if the machine
        lacks it. After that, requests may be sent.
        """
        version, word, rest = self._greeting(channel, boundary)
        if word == "error":
            raise BackendError(f"{self.name}: {self.workdir} can't be used: {rest}", OTHER_FOLDER)
        if tuple(map(int, version.split("."))) < MIN_PYTHON:
            raise self._too_old({"python3": version})
        if word == "need":
            channel.send(self.archive)
        channel.settle()

    def _greeting(self, channel: AnyChannel, boundary: Boundary) -> tuple[str, str, str]:
        """Return the three parts of the bootstrap's first line: Python's version, a word (have, need or error), and the
        rest. Earlier output, from a login banner or a .bashrc, is skipped, and so are interpreters that are too old.
        """
        while (line := boundary.rest_of(channel.stream.readline(SMALL))) is None or (older := _OLD.fullmatch(line)):
            if line and older is not None:
                self._old[older[2].decode("utf-8", "replace")] = older[1].decode()
        if line:
            greeting = _GREETING.fullmatch(line.decode("utf-8", "replace").strip())
            if greeting is None:
                raise BackendError(f"{self.name}: another program answers instead of orch's server")
            return greeting[1], greeting[2], greeting[3] or ""
        if boundary.before > MOST_BEFORE:
            raise BackendError(
                f"{self.name}: the start files of the login shell print more than {MOST_BEFORE >> 20} MiB before a "
                f"command begins: {boundary.seen[-300:]}",
                f"try: {self.address.ssh_command} true; end these files early if the shell is not interactive",
            )
        if self._old:
            raise self._too_old(self._old)
        code, said = channel.last_words()
        if code == 127:
            raise PythonMissingError(f"{self.name}: it has no python3", WANTED)
        said = said or boundary.seen
        how = f"ended with code {code}" if code >= 0 else "was killed"
        words = f" and printed: {said[-300:]}" if said else " without a word"
        raise PythonMissingError(
            f"{self.name}: its python3 does not start orch's server: it {how}{words}",
            f"try: {self.address.ssh_command} python3 -c 'print(1)'; the PATH there decides which python3 is used",
            transient=code < 0,
        )

    def _too_old(self, found: Mapping[str, str]) -> PythonMissingError:
        said = " and ".join(f"{python} is {version}" for python, version in found.items())
        return PythonMissingError(f"{self.name}: its {said}; {NEEDED} or newer is needed", WANTED)

    def _read(self) -> None:
        """Receive answers until the connection ends, or until an invalid answer arrives.

        Whatever arrives, this thread ends cleanly, and all waiting threads get the error at once.
        """
        problem = "the connection was closed"
        try:
            while line := self.channel.stream.readline(MOST_LINE):
                self._take(line)
        except LOST as error:
            problem = str(error) or problem
        except Exception as error:  # noqa: BLE001 (an invalid answer can raise any error)
            problem = f"it does not answer as orch's server would: {str(error)[:MOST_WORDS] or type(error).__name__}"
        self._fail(problem)

    def _take(self, line: bytes) -> None:
        """Receive one answer, which begins with this line. If the line is not the beginning of an answer to a request,
        raise ValueError and read no more bytes.
        """
        if not line.endswith(b"\n"):
            raise ValueError(f"the server's line has no end after {len(line)} bytes")
        values = parse_json(line)
        if not isinstance(values, dict) or type(values.get("id")) is not int or type(values.get("bytes")) is not int:
            raise ValueError("the server's line lacks an id or a number of bytes")
        reply, count = self.waiting.get(values["id"]), values["bytes"]
        if reply is None:
            raise ValueError("the answer belongs to no request")
        if not 0 <= count <= reply.most:
            raise ValueError(f"the answer has {count} bytes, but at most {reply.most} were requested")
        if not is_answer(values, reply.do):
            raise ValueError(f"the answer is malformed for the request {reply.do}")
        data = b""
        if reply.sink is not None:
            reply.sink(values, self.channel.stream, count)
        elif len(data := self.channel.stream.read(count)) < count:
            raise EOFError
        if self.waiting.pop(reply.number, None) is not None:
            reply.arrive(values, data)

    def _fail(self, problem: str) -> None:
        self.problem = self.problem or problem
        with contextlib.suppress(Exception):  # a broken connection may fail to close
            self.channel.close()
        with contextlib.suppress(Exception):
            self.hang_up()
        while self.waiting:
            with contextlib.suppress(KeyError):
                self.waiting.popitem()[1].arrived.set()


class Reply:
    """The answer to one request, which may not have arrived yet."""

    def __init__(self, session: Session, number: int, do: str, sent: int, most: int, sink: Sink | None) -> None:
        self.session, self.number, self.do, self.sent, self.most = session, number, do, sent, most
        self.sink = sink
        self.arrived = threading.Event()
        self.answer: Answer | None = None

    def arrive(self, values: dict[str, Any], data: bytes) -> None:
        """Store the answer, and wake the waiting thread."""
        self.answer = values, data
        self.arrived.set()

    def wait(self, timeout: float | None = CALL_SECONDS) -> Answer:
        """Return the server's answer. Raises BackendError as `Machine.call` does."""
        session = self.session
        patience = None if timeout is None else timeout + self.sent / SLOWEST
        in_time = self.answer is not None or (not session.problem and self.arrived.wait(patience))
        if self.answer is None:
            session.waiting.pop(self.number, None)
            if not in_time and not session.problem:
                session._fail(f"no answer within {timeout:g} s")
            raise BackendError(f"{session.name}: {session.problem}", transient=True)
        check_refusal(session.name, self.answer[0])
        return self.answer
