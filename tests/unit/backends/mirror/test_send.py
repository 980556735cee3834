"""A file that is handed over to a machine is resumed and verified, whoever else sends it and whatever happens."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from orchestrator.backends.mirror.send import give_file
from orchestrator.errors import BackendError
from orchestrator.node.server import writing
from orchestrator.protocol.arriving import PIECE
from tests.machines import FakeMachine
from tests.unit.backends.mirror.conftest import server_ends
from tests.unit.backends.mirror.session import LocalSession

SIZE = 10 * PIECE + 5


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "here"
    path.write_bytes(os.urandom(SIZE))
    return path


def interrupt(source: Path, target: Path, sha256: str = "") -> Path:
    """Break the transfer after six pieces and return the partial file that is left."""
    with pytest.raises(BackendError, match="connection was closed"):
        give_file(LocalSession(7), source, str(target), sha256)
    server_ends()
    (partial,) = target.parent.iterdir()
    return partial


def is_given(source: Path, target: Path) -> bool:
    return [path.name for path in target.parent.iterdir()] == [target.name] and (
        target.read_bytes() == source.read_bytes()
    )


class Counting(LocalSession):
    """A machine that counts the bytes that it is sent."""

    def __init__(self) -> None:
        super().__init__()
        self.got = 0

    def ask(self, verb: str, payload: bytes = b"", **values: object) -> object:  # type: ignore[override]
        self.got += len(payload)
        return super().ask(verb, payload, **values)  # type: ignore[arg-type]


@pytest.mark.parametrize("is_named", [True, False])
def test_an_interrupted_transfer_of_the_same_version_is_resumed(source: Path, tmp_path: Path, is_named: bool) -> None:
    target = tmp_path / "there" / "file"
    sha256 = hashlib.sha256(source.read_bytes()).hexdigest() if is_named else ""
    assert interrupt(source, target, sha256).stat().st_size == 6 * PIECE
    machine = Counting()
    give_file(machine, source, str(target), sha256)
    assert machine.got == SIZE - 6 * PIECE
    assert is_given(source, target)


def test_a_file_that_was_changed_since_is_sent_from_its_beginning(source: Path, tmp_path: Path) -> None:
    target, machine = tmp_path / "there" / "file", Counting()
    interrupt(source, target).unlink()
    source.write_bytes(os.urandom(SIZE - 7))
    give_file(machine, source, str(target))
    assert machine.got == SIZE - 7
    assert is_given(source, target)


def test_bytes_that_were_damaged_are_sent_again(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "there" / "file"
    with interrupt(source, target).open("r+b") as file:
        file.write(b"damaged")
    give_file(LocalSession(), source, str(target))
    assert is_given(source, target)


def test_a_file_that_shrinks_while_it_is_sent_is_refused(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "there" / "file"

    def begin(**values: object) -> dict[str, object]:
        os.truncate(source, 3 * PIECE)
        return writing.begin_file(dict(values), b"")[0]

    with pytest.raises(BackendError, match="was changed on the way"):
        give_file(FakeMachine(answers={"begin_file": begin}), source, str(target))
    assert not list(target.parent.iterdir())


def test_several_senders_of_one_file_do_not_disturb_one_another(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "there" / "file"
    with pytest.raises(BackendError):
        give_file(LocalSession(7), source, str(target))  # this sender's server is alive, and has half of the file
    give_file(LocalSession(), source, str(target))
    assert target.read_bytes() == source.read_bytes()
    (transfer,) = writing._transfers.values()
    for at in range(6 * PIECE, SIZE, PIECE):
        piece = source.read_bytes()[at : at + PIECE]
        writing.write_piece({"sender": next(iter(writing._transfers)), "offset": at}, piece)
    assert transfer.arriving.digest.hexdigest() == hashlib.sha256(source.read_bytes()).hexdigest()


def test_pieces_may_be_handled_in_any_order(tmp_path: Path) -> None:
    target, data = tmp_path / "there" / "file", os.urandom(50)
    writing.begin_file({"path": str(target), "version": "v", "size": 50, "sender": "s"}, b"")
    for at in (30, 10, 0, 40, 20):
        writing.write_piece({"sender": "s", "offset": at}, data[at : at + 10])
    writing.write_piece({"sender": "s", "offset": 50, "sha256": hashlib.sha256(data).hexdigest()}, b"")
    assert target.read_bytes() == data
    assert not writing._transfers
