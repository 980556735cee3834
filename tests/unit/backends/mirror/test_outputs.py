"""What is on a machine comes here once, as it is, within the limit; what goes there goes here, and nothing else."""

from __future__ import annotations

import json
import os
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.backends.mirror.fetch import MOST_FILES
from orchestrator.backends.mirror.output_record import Left
from orchestrator.backends.mirror.outputs import Outputs, _Listing
from orchestrator.backends.mirror.watching import Source, bring_outputs, finish
from orchestrator.errors import BackendError
from orchestrator.node.server import outputs, sending
from orchestrator.protocol.outputs import Entry
from orchestrator.runs.files.checkpoints import not_here
from orchestrator.runs.reducer import left_outputs
from orchestrator.runs.store import RunDir
from tests.machines import FakeMachine

LARGE = os.urandom(3 << 20)


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    here = RunDir(tmp_path / "here" / "runs" / "r-1")
    here.path.mkdir(parents=True)
    here.write("run.json", {"nnodes": 1, "kind": "ssh", "profile": {"workdir": str(tmp_path / "orch")}})
    plan(here)
    (there(here) / "code").mkdir(parents=True)
    (there(here) / "outputs").mkdir()
    return here


def plan(run: RunDir, **outputs: object) -> None:
    run.write("plan.json", {"tasks": [{"code_dir": str(there(run) / "code")}], "job": {"outputs": outputs}})


def there(run: RunDir) -> Path:
    return run.path.parents[2] / "orch" / "runs" / "r-1"


def write(run: RunDir, name: str, data: bytes) -> Path:
    path = there(run) / "code" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def here(run: RunDir) -> dict[str, bytes]:
    folder = run.path / "outputs"
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def bring(run: RunDir, *, final: bool = True, name: str = "n1", calls: int | None = None) -> Left:
    return Outputs(run, 0).bring(FakeMachine(name, left=calls), final=final)


def test_small_and_large_files_come_private_with_their_bit_and_time(run: RunDir) -> None:
    write(run, "a/b", b"small").chmod(0o755)
    large = write(run, "model.pt", LARGE)
    assert bring(run) == Left()
    assert here(run) == {"a/b": b"small", "model.pt": LARGE}
    assert [oct((run.path / "outputs" / name).stat().st_mode & 0o777) for name in ("a/b", "model.pt")] == [
        "0o700",
        "0o600",
    ]
    assert (run.path / "outputs/model.pt").stat().st_mtime_ns == large.stat().st_mtime_ns


def test_while_it_goes_on_only_what_was_seen_twice_comes(run: RunDir) -> None:
    follower, machine = Outputs(run, 0), FakeMachine("n1")
    write(run, "model", b"w")
    follower.bring(machine, final=False)
    assert here(run) == {}
    write(run, "log", b"1")
    follower.bring(machine, final=False)
    assert here(run) == {"model": b"w"}
    write(run, "log", b"123")
    assert bring(run) == Left()
    assert here(run)["log"] == b"123"


def test_a_file_that_changes_from_look_to_look_is_copied_between_two_changes(
    run: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sending, "PATIENCE", 0.0)
    follower, machine = Outputs(run, 0), FakeMachine("n1")
    now = time.time_ns()
    for number in range(4):
        ages = {"last.pt": 2.0, "busy.pt": 0.0, "g_00000005": 0.0, "checkpoint-5/a.bin": 2.0, "large.pt": 2.0}
        for name, age in ages.items():
            data = LARGE if name == "large.pt" else b"weights"
            when = now - int(age * 1e9) + number  # the time of a file that is being written is that of now
            os.utime(write(run, name, data + bytes([number])), ns=(when, when))
        write(run, "log", b"line\n" * (number + 1))
        for name in ("busy.pt", "g_00000005"):  # HiFi-GAN writes weights to files without a suffix
            os.utime(there(run) / f"code/{name}", (now / 1e9 + 3600 + number,) * 2)
        follower.bring(machine, final=False)  # type: ignore[arg-type]
        assert sorted(here(run)) == ([] if number < 1 else ["large.pt", "last.pt", "log"])
    assert here(run) == {"last.pt": b"weights\3", "large.pt": LARGE + b"\3", "log": b"line\n" * 4}
    assert [(each.host, each.name) for each in not_here(run)] == [
        ("n1", name) for name in ("busy.pt", "checkpoint-5", "g_00000005")
    ]


def test_a_file_that_changes_while_it_is_copied_does_not_come(run: RunDir) -> None:
    path = write(run, "last.pt", LARGE)

    def overwrite(piece: int) -> None:
        path.write_bytes(LARGE[::-1] + bytes([piece]))
        os.utime(path, ns=(piece, piece))

    follower = Outputs(run, 0)
    for _ in range(4):
        follower.bring(Changing(overwrite), final=False)
        overwrite(99)
    assert here(run) == {}


def test_what_is_deleted_there_is_deleted_here_also_where_a_folder_takes_its_name(run: RunDir) -> None:
    write(run, "a/b", b"1")
    write(run, "c", b"2")
    bring(run)
    (there(run) / "code/a/b").unlink()
    (there(run) / "code/a").rmdir()
    (there(run) / "code/c").unlink()
    write(run, "c/d", b"3")
    write(run, "a", b"4")
    assert bring(run) == Left()
    assert here(run) == {"a": b"4", "c/d": b"3"}


def test_what_can_not_be_seen_stays(run: RunDir) -> None:
    write(run, "a", b"1")
    bring(run)
    os.rename(there(run) / "code", there(run).parents[1] / "elsewhere")  # as a disk that is not mounted
    bring(run)
    assert here(run) == {"a": b"1"}


def test_what_another_machine_has_brought_stays_when_a_new_one_takes_its_place(run: RunDir) -> None:
    write(run, "a", b"1")
    write(run, "b", b"1")
    bring(run)
    (there(run) / "code/a").unlink()
    write(run, "b", b"2")
    bring(run, name="spare")
    assert here(run) == {"a": b"1", "b": b"2"}


def test_a_copy_that_broke_off_goes_on(run: RunDir) -> None:
    write(run, "model.pt", LARGE)
    with pytest.raises(BackendError, match="closed"):
        bring(run, calls=3)  # the listing, and two pieces
    partial = next((run.path / "outputs").glob(".model.pt.*.partial"))
    assert partial.read_bytes() == LARGE[: 2 << 20]
    calls = FakeMachine("n1", left=10)
    assert Outputs(run, 0).bring(calls, final=True) == Left()  # type: ignore[arg-type]
    assert calls.left == 10 - 3  # the listing, the last piece, and the comparison of the whole
    assert here(run) == {"model.pt": LARGE}


def test_of_an_earlier_version_nothing_stays_once_the_output_is_here(run: RunDir) -> None:
    write(run, "a/model.pt", LARGE)
    write(run, "a/.own.1-2.partial", b"a program's own file")
    with pytest.raises(BackendError, match="closed"):
        bring(run, calls=4)
    assert [path.name[:9] for path in (run.path / "outputs/a").glob(".model.pt.*")] == [".model.pt"]
    write(run, "a/model.pt", LARGE[:5])
    assert bring(run) == Left()
    assert here(run) == {"a/model.pt": LARGE[:5], "a/.own.1-2.partial": b"a program's own file"}


def test_a_copy_that_fills_the_disk_here_gives_its_room_back(run: RunDir) -> None:
    write(run, "model.pt", LARGE)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2 << 20, hard))
    try:
        with pytest.raises(BackendError, match="File too large"):
            bring(run)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert here(run) == {}


class Changing(FakeMachine):
    """A machine on which something happens before each piece of a file is read there."""

    def __init__(self, change: Callable[[int], None]) -> None:
        super().__init__("n1")
        self.change, self.pieces = change, 0

    def carry_out(self, verb: str, payload: bytes, values: dict[str, Any]) -> Any:
        if verb != "list_outputs":
            self.pieces += 1
            self.change(self.pieces)
        return super().carry_out(verb, payload, values)


def test_a_file_that_grows_while_it_is_copied_comes_as_it_is_in_the_end(run: RunDir) -> None:
    path = write(run, "model.pt", LARGE)

    def grow(piece: int) -> None:
        if piece == 2:
            with open(path, "ab") as file:
                file.write(b"more")

    assert Outputs(run, 0).bring(Changing(grow), final=True) == Left()
    assert here(run) == {"model.pt": LARGE + b"more"}


def test_a_file_that_never_stands_still_stays_there_and_is_named(run: RunDir) -> None:
    path = write(run, "log", b"x")

    def change(piece: int) -> None:
        path.write_bytes(b"x" * (piece + 1))

    left = Outputs(run, 0).bring(Changing(change), final=True)
    assert (left.files, left.reason) == (1, "changed while they were copied: log")


def test_a_file_that_is_renamed_while_it_is_copied_comes_under_its_new_name(run: RunDir) -> None:
    path = write(run, "model.pt.tmp", LARGE)

    def rename(piece: int) -> None:
        if piece == 2:
            path.rename(path.with_name("model.pt"))

    assert Outputs(run, 0).bring(Changing(rename), final=True) == Left()
    assert here(run) == {"model.pt": LARGE}


def test_nothing_is_copied_twice(run: RunDir) -> None:
    write(run, "a", b"1")
    write(run, "model.pt", LARGE)
    bring(run)
    again = FakeMachine("n1", left=10)
    Outputs(run, 0).bring(again, final=True)  # type: ignore[arg-type]
    assert again.left == 9  # the listing


def test_what_was_lost_here_is_brought_again_before_it_is_removed_there(run: RunDir) -> None:
    write(run, "a", b"1")
    write(run, "b", b"2")
    bring(run)
    (run.path / "outputs/a").unlink()
    (run.path / "outputs/b").write_bytes(b"")  # as a power cut leaves it
    assert bring(run) == Left()
    assert here(run) == {"a": b"1", "b": b"2"}


def test_over_the_limit_the_rest_is_said_and_kept_and_comes_when_asked_for(run: RunDir) -> None:
    plan(run, max_size=100)
    write(run, "checkpoint-1/w", b"1" * 60)
    write(run, "checkpoint-2/w", b"2" * 60)
    write(run, "log", b"3")
    source = Source("n1", (0,), lambda: FakeMachine("n1"))
    finish(run, [source])
    run.write("verdict.json", {"outcome": "succeeded"})
    assert set(here(run)) == {"checkpoint-2/w", "log"}
    assert there(run).exists()
    left = left_outputs(run.events())
    assert [(each.node, each.host, each.files, each.bytes) for each in left] == [(0, "n1", 1, 60)]
    assert left[0].reason == "1 over outputs.max_size of the job"
    bring_outputs(run, [source])
    assert set(here(run)) == {"checkpoint-1/w", "checkpoint-2/w", "log"}
    assert not there(run).exists()
    assert left_outputs(run.events()) == ()


def test_a_newer_checkpoint_takes_the_place_of_an_older_one_within_the_limit(run: RunDir) -> None:
    plan(run, max_size=100)
    os.utime(write(run, "checkpoint-1/w", b"1" * 60), (1, 1))
    assert bring(run) == Left()
    write(run, "checkpoint-2/w", b"2" * 60)
    assert bring(run).files == 1
    assert set(here(run)) == {"checkpoint-2/w"}


@pytest.mark.parametrize(
    "listed",
    [
        [["code", "../../escaped", 1, 1, False]], [["code", "/tmp/escaped", 1, 1, False]],
        [["code", "a", -1, 1, False]],
        [["home", "a", 1, 1, False]], [["code", "a", 1, 1 << 70, False]], [["code", "a", 1 << 70, 1, False]],
        [["code", "a"]], [3], {}, b"[" * 200_000, b"[NaN]", b"[[",
    ],
)  # fmt: skip
def test_a_machine_that_names_what_is_no_file_of_the_run_is_refused(
    run: RunDir, monkeypatch: pytest.MonkeyPatch, listed: object
) -> None:
    honest = outputs.list_outputs
    data = listed if isinstance(listed, bytes) else json.dumps(listed).encode()
    monkeypatch.setattr(outputs, "list_outputs", lambda *args: (honest(*args)[0], data))
    write(run, "a", b"1")
    with pytest.raises(BackendError, match="n1: "):
        bring(run)
    assert here(run) == {}


def test_a_machine_that_names_a_folder_which_no_run_has_is_refused(
    run: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    roots = {"code": str(there(run) / "code"), "home": "/root"}
    answer = {"roots": roots, "passed_over": [], "unreadable": []}, b'[["home", "a", 1, 1, false]]'
    monkeypatch.setattr(outputs, "list_outputs", lambda *_: answer)
    with pytest.raises(BackendError, match="n1: its list of outputs is not valid: 'home' is not a folder of a run"):
        bring(run)


@pytest.mark.parametrize("rows", [[], [None, None], [[1 << 40, 1, 1, False]], [[-1, 1, 1, False]]])
def test_a_machine_that_sends_other_files_than_it_was_asked_for_is_refused(
    run: RunDir, monkeypatch: pytest.MonkeyPatch, rows: list[Any]
) -> None:
    monkeypatch.setattr(sending, "read_files", lambda *_: ({"files": rows}, b"something"))
    write(run, "model.pt", LARGE)
    with pytest.raises(BackendError, match="n1: it sends other files than those that were requested"):
        bring(run)
    assert here(run) == {}


def test_a_run_whose_machine_answers_nonsense_ends_all_the_same(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its outputs are said to be left there: the run was "stopping" for ever, and could not be cancelled."""
    honest = outputs.list_outputs
    monkeypatch.setattr(outputs, "list_outputs", lambda *args: (honest(*args)[0], b"[" * 200_000))
    write(run, "a", b"1")
    finish(run, [Source("n1", (0,), lambda: FakeMachine("n1"))])
    (left,) = left_outputs(run.events())
    assert (left.node, left.host) == (0, "n1")
    assert "n1: its answer to the request list_outputs can't be read: the JSON is nested too deeply" in left.reason


def test_a_folder_that_becomes_a_link_after_it_was_listed_gives_nobody_elses_file(run: RunDir, tmp_path: Path) -> None:
    """A container sees the folder in which its ranks write, and can swap what is in it at any moment."""
    private = tmp_path / "private"
    private.mkdir()
    for name, data in (("small", b"SECRET"), ("large", os.urandom(3 << 20))):
        (private / name).write_bytes(data)
        write(run, f"folder/{name}", bytes(len(data)))

    def swap(_: int) -> None:
        folder = there(run) / "code/folder"
        if not folder.is_symlink():
            os.rename(folder, folder.with_name("before"))
            folder.symlink_to(private)

    Outputs(run, 0).bring(Changing(swap), final=True)
    assert (there(run) / "code/folder").is_symlink()
    assert not any(b"SECRET" in data or data == (private / "large").read_bytes() for data in here(run).values())


def test_more_files_than_a_request_takes_beside_the_working_folder_come_here(run: RunDir) -> None:
    results = there(run) / "results"
    results.mkdir()
    for number in range(MOST_FILES + 10):
        (results / f"{number}").touch()
    assert bring(run) == Left()
    assert len(os.listdir(run.path / "outputs/beside/results")) == MOST_FILES + 10


def test_many_files_come_in_few_requests_and_each_is_read_once(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    opened, syncs, real = list[str](), list[int](), sending.descriptor_of
    monkeypatch.setattr(sending, "descriptor_of", lambda path, below: opened.append(path) or real(path, below))
    monkeypatch.setattr(os, "fsync", syncs.append)
    for number in range(5 * MOST_FILES):
        write(run, f"{number % 7}/{number}", b"%d" % number)
    write(run, "large", LARGE)
    machine = FakeMachine()
    machine.is_own = True
    assert Outputs(run, 0).bring(machine, final=True) == Left()
    assert machine.verbs() == ["list_outputs", *["read_files"] * 6]
    assert len(opened) == len(set(opened)) == 5 * MOST_FILES + 1
    assert syncs == []  # one sync of the file system is for all
    assert len(here(run)) == 5 * MOST_FILES + 1


def test_of_another_node_only_what_differs_comes_and_apart(run: RunDir) -> None:
    write(run, "config", b"same")
    write(run, "rank", b"0")
    bring(run)
    write(run, "rank", b"1")
    Outputs(run, 1).bring(FakeMachine("n2"), final=True)
    assert here(run) == {"config": b"same", "rank": b"0", "node_1/rank": b"1"}


def test_a_file_of_a_container_is_read_below_the_run_s_folder_and_not_below_a_folder_that_it_can_replace() -> None:
    roots = {"code": "/r/code", "beside": "/r", "beside_in_container": "/r/container/r-1"}
    listing = _Listing({}, roots, (), [])
    assert listing.below(Entry("beside_in_container", "a", 1, 1, False)) == "/r"
    assert listing.below(Entry("code", "a", 1, 1, False)) == "/r/code"
