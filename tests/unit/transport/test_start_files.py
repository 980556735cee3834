"""What a login prints before orch's server begins, how long that takes, and which interpreter the server gets."""

from __future__ import annotations

import contextlib
import socket
import subprocess
from collections.abc import Callable

import pytest

from orchestrator.errors import BackendError, PythonMissingError
from orchestrator.transport import rpc
from orchestrator.transport.address import Address
from orchestrator.transport.boundary import MOST_BEFORE, Boundary
from orchestrator.transport.openssh import Resolved
from orchestrator.transport.rpc import Session


class Shell:
    """A machine whose login shell runs this script. `$1` is the interpreter or sh, and `$B` is the boundary."""

    def __init__(self, script: str) -> None:
        self.script = script
        self.starts: list[list[str]] = []

    def start(self, argv: list[str]) -> Shell:
        self.starts.append(argv)
        self.ours, theirs = socket.socketpair()
        mark = argv[5] if argv[0] == "python3" else argv[4]
        env = {"B": mark, "PATH": "/usr/bin:/bin"}
        argv = ["sh", "-c", self.script, "sh", argv[0]]
        self.process = subprocess.Popen(argv, stdin=theirs, stdout=theirs, env=env)
        theirs.close()
        self.stream = self.ours.makefile("rb")
        return self

    def settle(self) -> None:
        pass

    def send(self, data: bytes) -> None:
        self.ours.sendall(data)

    def give_up(self) -> None:
        self.process.kill()
        self.ours.shutdown(socket.SHUT_RDWR)

    def last_words(self) -> tuple[int, str]:
        return self.process.wait(), ""

    def close(self) -> None:
        with contextlib.suppress(OSError):  # it is shut already
            self.give_up()
        self.process.kill()
        self.process.wait()
        self.stream.close()
        self.ours.close()


def session(script: str, **values: object) -> Session:
    made = Session(Address("n1", **values), Shell(script).start, "~/.orch")  # type: ignore[arg-type]
    made.close()
    return made


@pytest.mark.parametrize(
    "before",
    [
        r'printf "\033]0;me@n1\007"',  # a window title, without an end of line
        "seq 1 30000",
        'head -c 70000 /dev/zero | tr "\\0" x',  # the boundary begins in the middle of a piece
        'head -c 65530 /dev/zero | tr "\\0" x',  # and here it is in two of them
        'printf "%s" "$B"',  # a shell that shows the commands that it runs
    ],
)
def test_whatever_start_files_print_is_skipped(before: str) -> None:
    assert session(f'{before}; printf "%s 3.11 have\\n" "$B"').slow == ""


def test_start_files_that_are_slow_are_told_to_the_doctor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rpc, "SLOW_SECONDS", 0.0)
    assert "start files (.bashrc, .profile or .cshrc) delay each command" in session('echo "$B 3.11 have"').slow


def test_start_files_that_hang_are_named_after_the_users_own_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rpc, "START_SECONDS", 0.05)
    monkeypatch.setattr(rpc, "resolve", lambda _: Resolved("n1", reach_seconds=0.1))
    with pytest.raises(BackendError) as caught:
        session("printf waiting; exec sleep 600")
    assert "no command has begun within 0.1 s: the login shell's start files" in caught.value.message
    assert caught.value.message.endswith("they have printed: waiting")
    assert caught.value.transient


def test_start_files_without_an_end_of_output_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.transport.boundary.MOST_BEFORE", 100_000)
    monkeypatch.setattr(rpc, "MOST_BEFORE", 100_000)
    with pytest.raises(BackendError, match=r"print more than 0 MiB before a command begins: .*no end"):
        session('yes "no end"')


def test_a_boundary_is_found_in_any_two_pieces() -> None:
    for cut in range(60):
        boundary = Boundary()
        text = f"title{boundary.text} 3.11 have\n".encode()
        pieces = [piece for piece in (text[:cut], text[cut:]) if piece]
        found = [boundary.rest_of(piece) for piece in pieces]
        assert (found[-1], set(found[:-1]) <= {None}) == (b"3.11 have\n", True)
    assert boundary.before <= MOST_BEFORE


@pytest.mark.parametrize(
    ("first", "passed_over"),
    [
        ('echo "$B 3.6 have"', "its python3 is 3.6; 3.9 or newer is needed"),
        ("exit 127", "it has no python3"),
        ("exit 1", "its python3 does not start orch's server: it ended with code 1 without a word"),
    ],
)
def test_another_interpreter_is_taken_if_python3_does_not_serve(first: str, passed_over: str) -> None:
    script = f'if [ $1 = python3 ]; then {first}; else echo "$B old 3.6 python3"; echo "$B 3.11 have"; fi'
    machine = Shell(script)
    made = Session(Address("n1", python="~/venv/bin/python", setup=("module load x",)), machine.start, "~/.orch")
    made.close()
    assert made.passed_over == passed_over
    assert [argv[0] for argv in machine.starts] == ["python3", "sh"]
    assert "~/venv/bin/python" in machine.starts[1]


def test_if_all_interpreters_are_too_old_each_is_named() -> None:
    script = (
        'if [ $1 = python3 ]; then exit 127; else echo "$B old 3.6 /usr/bin/python3.6"; echo "$B old 3.8 /opt/p"; fi'
    )
    with pytest.raises(PythonMissingError) as caught:
        session(script)
    assert caught.value.message == "n1: its /usr/bin/python3.6 is 3.6 and /opt/p is 3.8; 3.9 or newer is needed"
    assert "set `python` in the profile" in caught.value.hint
    with pytest.raises(PythonMissingError, match="n1: it has no python3"):
        session("exit 127")


def test_profiles_that_differ_only_in_their_interpreter_share_a_connection() -> None:
    make: Callable[..., Address] = Address
    assert make("n1", python="a") == make("n1", python="b", setup=("x",))
