"""A machine that answers anything: an answer, or an error that names the host; and the reader ends in order."""

from __future__ import annotations

import io
import json
import threading
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from orchestrator.errors import BackendError, PythonMissingError
from orchestrator.protocol.answers import ANSWERS, WithData
from orchestrator.transport.address import Address
from orchestrator.transport.answers import data_of, is_answer
from orchestrator.transport.rpc import MOST_BYTES, MOST_LINE, Session
from tests.patience import PATIENCE

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
HEADS = st.fixed_dictionaries({}, optional={
    "id": st.integers(-1, 3) | JSON, "bytes": st.integers(-1, 64) | st.just(10**13) | JSON, "error": JSON,
    "steps": JSON, "places": JSON, "files": JSON, "alive": JSON, "more": JSON,
})  # fmt: skip
SHAPES = {verb: shape for verbs in ANSWERS.values() for verb, shape in verbs.items()}
DATA = [verb for verb, shape in SHAPES.items() if isinstance(shape, WithData)]
LINES = st.binary(max_size=40) | HEADS.map(lambda head: json.dumps(head).encode() + b"\n")


class OtherEnd(io.BytesIO):
    """The other end of a session: says what it is told once it is asked, then hangs up."""

    def __init__(self, says: bytes, greeting: str = "3.11 have") -> None:
        super().__init__(says)
        self.greeting, self.greetings, self.asked = greeting, [b"welcome\n"], threading.Event()

    @property
    def stream(self) -> OtherEnd:
        return self

    def start(self, argv: list[str]) -> OtherEnd:
        self.greetings.append(f"{argv[5]} {self.greeting}\n".encode())
        return self

    def readline(self, size: int | None = -1, /) -> bytes:
        if self.greetings:
            return self.greetings.pop(0)
        self.asked.wait()
        return super().readline(size)

    def settle(self) -> None:
        pass

    def send(self, data: bytes) -> None:
        self.asked.set()

    def last_words(self) -> tuple[int, str]:
        return 1, "it said no"

    def close(self) -> None:
        self.asked.set()


def ask(says: bytes, do: str = "steps", **values: Any) -> Any:
    """Ask such a machine, and see that its reader has ended in order."""
    session = Session(Address("n1"), OtherEnd(says).start, "~/.orch")
    try:
        return session.call(do, timeout=PATIENCE, **values)
    finally:
        session.reader.join(PATIENCE)
        assert not session.reader.is_alive()
        assert not session.is_open


class BrokenPython(OtherEnd):
    """A machine on which a broken python3 comes first: the command ends before orch's server has said a word."""

    def __init__(self, code: int, said: str) -> None:
        super().__init__(b"")
        self.end = code, said
        self.asked.set()

    def start(self, argv: list[str]) -> OtherEnd:
        self.greetings.clear()
        return self

    def last_words(self) -> tuple[int, str]:
        return self.end


@pytest.mark.parametrize(
    ("code", "said", "words"),
    [
        (1, "", "n1: its python3 does not start orch's server: it ended with code 1 without a word"),
        (1, "libpython3.so: not found", "it ended with code 1 and printed: libpython3.so: not found"),
        (-1, "", "it was killed without a word"),
        (127, "", "n1: it has no python3"),
    ],
)
def test_a_python3_that_does_not_work_is_named_with_what_it_printed(code: int, said: str, words: str) -> None:
    with pytest.raises(PythonMissingError) as caught:
        Session(Address("n1"), BrokenPython(code, said).start, "~/.orch")
    assert words in caught.value.message
    assert caught.value.hint


def head(**values: Any) -> bytes:
    return json.dumps(values).encode() + b"\n"


@settings(max_examples=150)
@given(says=st.lists(LINES, max_size=4).map(b"".join), do=st.sampled_from([*SHAPES]))
def test_any_answer_is_one_or_an_error_that_names_the_host(says: bytes, do: str) -> None:
    error = None
    try:
        values, data = ask(says, do)
    except BackendError as raised:
        error = raised
    if error is not None:
        assert error.message.startswith("n1: ")
    else:
        assert is_answer(values, do)
        assert len(data) == values["bytes"]


@pytest.mark.parametrize(
    ("says", "words"),
    [
        (b"[1]\n", "lacks an id or a number of bytes"),
        (head(id=1, bytes=10**13), f"10000000000000 bytes, but at most {MOST_BYTES} were requested"),
        (head(id=1, bytes=-1, steps=[]), "-1 bytes"),
        (head(id=True, bytes=0), "lacks an id"),
        (head(id=7, bytes=0), "the answer belongs to no request"),
        (head(id=1, bytes=0, steps=[1]), "the answer is malformed for the request steps"),
        (head(id=1, bytes=0), "the answer is malformed for the request steps"),
        (head(id=1, bytes=0, error=["no"]), "the answer is malformed for the request steps"),
        (b"[" * 100_000 + b"\n", "it does not answer as orch's server would"),
        (b'{"id": 1' + b"0" * 5000 + b"}\n", "it does not answer as orch's server would"),
        (b"\xff\xfe\n", "it does not answer as orch's server would"),
        (head(id=1, bytes=9, steps=[]) + b"short", "the connection was closed"),
        (b"", "the connection was closed"),
        (head(id=1, bytes=0, error="no\x1b[2J" * 5000), "no\\x1b[2Jno"),
    ],
)
def test_what_is_no_answer_is_said(says: bytes, words: str) -> None:
    with pytest.raises(BackendError) as said:
        ask(says)
    assert said.value.message.startswith("n1: ")
    assert words in said.value.message
    assert len(said.value.message) < 20_000


def test_a_line_without_an_end_is_read_to_its_limit_and_no_further() -> None:
    with pytest.raises(BackendError, match=f"the server's line has no end after {MOST_LINE} bytes"):
        ask(b"x" * (MOST_LINE + (1 << 20)))


def test_no_more_is_taken_than_was_asked_for() -> None:
    taken: list[int] = []
    other = OtherEnd(head(id=1, bytes=100, files=[]) + b"x" * 100)
    session = Session(Address("n1"), other.start, "~/.orch")
    reply = session.ask("read_files", sink=lambda _, __, count: taken.append(count), most=99)
    with pytest.raises(BackendError, match="100 bytes, but at most 99 were requested"):
        reply.wait(PATIENCE)
    assert taken == []
    session.reader.join(PATIENCE)
    assert other.read() == b"x" * 100


@pytest.mark.parametrize("greeting", ["", "3 have", "3.x have", "9" * 5000 + ".1 have", "3.11 maybe", "3.11"])
def test_a_greeting_of_another_kind_is_refused(greeting: str) -> None:
    with pytest.raises(BackendError, match=r"^n1: "):
        Session(Address("n1"), OtherEnd(b"", greeting).start, "~/.orch")


@given(data=st.binary(max_size=40) | JSON.map(lambda value: json.dumps(value).encode()), do=st.sampled_from(DATA))
@example(data=b"[" * 200_000, do="list_outputs")
@example(data=b"NaN", do="list_outputs")
@example(data=b'[["code", "a", 1, 1, 1]]', do="list_outputs")
@example(data=b"1" * 5000, do="missing")
def test_the_bytes_after_an_answer_are_what_was_asked_for_or_an_error_that_names_the_host(data: bytes, do: str) -> None:
    said = ""
    try:
        found = data_of("n1", do, data)
    except BackendError as error:
        said = error.message
    assert said.startswith(f"n1: its answer to the request {do} ") if said else isinstance(found, list)
