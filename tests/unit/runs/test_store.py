"""Run directories: what is written is whole, what is lost heals, and many may write at once."""

from __future__ import annotations

import builtins
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import RunNotFoundError, StoreError, UsageError
from orchestrator.looking.run import grouped
from orchestrator.looking.state import state_of
from orchestrator.operations.runs import cancel, remove
from orchestrator.protocol.events import Clock, Slept, of
from orchestrator.runs import store
from orchestrator.runs.run_id import new_run_id
from orchestrator.runs.store import (
    RunDir,
    create_run,
    find_run,
    live_runs,
    make_state_folder,
    newest_ids,
    newest_runs,
    read_lines,
    remove_run,
    retire,
    state_root,
    write_durably,
)
from orchestrator.runs.sweeps import find_runs, find_sweep, make_sweep
from orchestrator.supervisor.reconcile import reconcile
from orchestrator.supervisor.supervisor import supervise
from tests.events import event
from tests.patience import PATIENCE


def ids(runs: list[RunDir]) -> list[str]:
    return [run.run_id for run in runs]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in ("a-111111", "b-222222", "b-333333"):
        create_run(tmp_path, name, {"run_id": name, "nnodes": 1, "kind": "local", "created": 1.0})
    return tmp_path


def test_a_created_run_is_known_and_live(root: Path) -> None:
    assert ids(newest_runs(root)) == ["b-333333", "b-222222", "a-111111"]
    assert newest_ids(root) == ids(newest_runs(root))
    assert sorted(ids(live_runs(root))) == ["a-111111", "b-222222", "b-333333"]
    assert (find_run(root, "a-111111").read("run.json") or {})["run_id"] == "a-111111"
    assert (root / "runs" / "a-111111").stat().st_mode & 0o077 == 0  # logs and code are the user's own


def test_run_ids_are_short_and_unlike_each_other() -> None:
    made = {new_run_id("mnist") for _ in range(1_000)}
    assert len(made) == 1_000
    assert all(len(name) == len("mnist-") + 6 for name in made)


def test_the_root_is_where_the_environment_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ORCH_HOME", "here")
    assert state_root() == tmp_path / "here"
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setenv("ORCH_HOME", "~/orch")
    assert state_root() == Path("/home/me/orch")


@pytest.mark.parametrize(
    ("reference", "found"),
    [("a-111111", "a-111111"), ("a", "a-111111"), ("b-2", "b-222222"), ("last", "b-333333")],
)
def test_finding_a_run(root: Path, reference: str, found: str) -> None:
    assert find_run(root, reference).run_id == found


def test_a_name_means_its_newest_run_but_to_those_who_remove(tmp_path: Path) -> None:
    for name in ("train-bbbbbb", "train-aaaaaa", "train2-cccccc", "train-dddddd.0", "train-dddddd.1", "train-eeeeee"):
        create_run(tmp_path, name, {})
    assert find_run(tmp_path, "train").run_id == "train-eeeeee"
    assert find_sweep(tmp_path, "train") is None
    assert [run.run_id for run in find_runs(tmp_path, "train")] == ["train-eeeeee"]  # as in a comparison
    for find in (find_runs, find_run):
        with pytest.raises(RunNotFoundError, match="6 run ids start with 'train'"):
            find(tmp_path, "train", newest=False)
    with pytest.raises(RunNotFoundError, match="6 run ids start with 'trai'"):
        find_run(tmp_path, "trai")
    remove_run(tmp_path, RunDir(tmp_path / "runs" / "train-eeeeee"))
    assert find_sweep(tmp_path, "train") == "train-dddddd"
    with pytest.raises(RunNotFoundError, match="train-dddddd is a sweep of 2 runs"):
        find_run(tmp_path, "train")
    create_run(tmp_path, "train", {})  # an id of its own
    assert find_run(tmp_path, "train").run_id == "train"


def test_a_whole_id_wins_over_a_longer_one(root: Path) -> None:
    create_run(root, "b-222222-more", {})
    assert find_run(root, "b-222222").run_id == "b-222222"


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("b-", "2 run ids start with 'b-': b-222222, b-333333"),
        ("c", "no run is called 'c'"),
        ("", "no run is called ''"),
        ("../runs/a-111111", "no run is called"),
    ],
)
def test_what_is_not_one_run_is_said(root: Path, reference: str, message: str) -> None:
    with pytest.raises(RunNotFoundError) as caught:
        find_run(root, reference)
    assert message in caught.value.message
    assert caught.value.exit_code == 102


def test_no_runs_at_all(tmp_path: Path) -> None:
    assert newest_ids(tmp_path / "none") == []
    assert newest_runs(tmp_path / "none") == live_runs(tmp_path / "none") == []
    with pytest.raises(RunNotFoundError, match="there are no runs yet"):
        find_run(tmp_path / "none", "last")


# -- the index


def test_a_lost_index_is_rebuilt_by_age(root: Path) -> None:
    (root / "index").unlink()
    for age, name in enumerate(["b-333333", "a-111111", "b-222222"]):
        os.utime(root / "runs" / name, (1000 - age, 1000 - age))
    assert ids(newest_runs(root)) == ["b-333333", "a-111111", "b-222222"]
    assert newest_ids(root) == ids(newest_runs(root))


@pytest.mark.parametrize("kept", range(0, 27, 3))
def test_a_cut_index_hides_no_run(root: Path, kept: int) -> None:
    whole = (root / "index").read_bytes()
    (root / "index").write_bytes(whole[:kept])
    assert sorted(ids(newest_runs(root))) == ["a-111111", "b-222222", "b-333333"]
    assert newest_ids(root) == ids(newest_runs(root))
    create_run(root, "c-444444", {})
    assert ids(newest_runs(root, 1)) == ["c-444444"]
    assert len(newest_runs(root)) == 4


def test_garbage_in_the_index_is_no_run(root: Path) -> None:
    with open(root / "index", "ab") as file:
        file.write(b"\xff\xfe ghost-555555\n\n a-111111\n")
    assert sorted(ids(newest_runs(root))) == ["a-111111", "b-222222", "b-333333"]
    assert newest_ids(root) == ids(newest_runs(root))


def test_listing_ten_thousand_runs_opens_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "runs").mkdir()
    names = [f"r-{number:06}" for number in range(10_000)]
    for name in names:
        os.mkdir(tmp_path / "runs" / name)
    (tmp_path / "index").write_text("\n".join(names) + "\n")
    opened: list[str] = []
    real_open, real_stat = builtins.open, os.stat

    def watched_open(path, *args, **kwargs):  # type: ignore[no-untyped-def]
        opened.append(str(path))
        return real_open(path, *args, **kwargs)

    def watched_stat(path, *args, **kwargs):  # type: ignore[no-untyped-def]
        opened.append(str(path))
        return real_stat(path, *args, **kwargs)

    monkeypatch.setattr("io.open", watched_open)
    monkeypatch.setattr(builtins, "open", watched_open)
    monkeypatch.setattr(os, "stat", watched_stat)
    assert ids(newest_runs(tmp_path, 2)) == ["r-009999", "r-009998"]
    assert find_run(tmp_path, "last").run_id == "r-009999"
    assert sum("/runs/" in path for path in opened) == 3  # a look whether each run that is asked for is still there
    assert len(opened) < 10


# -- live marks


def test_retiring_takes_the_mark_away_and_keeps_the_run(root: Path) -> None:
    retire(root, find_run(root, "a"))
    retire(root, find_run(root, "a"))
    assert sorted(ids(live_runs(root))) == ["b-222222", "b-333333"]
    assert "a-111111" in ids(newest_runs(root))


def test_a_mark_whose_run_was_never_recorded_is_not_live(root: Path) -> None:
    (root / "live" / "ghost-555555").touch()
    assert "ghost-555555" not in ids(live_runs(root))


def test_removing_a_run_forgets_it(root: Path) -> None:
    remove_run(root, find_run(root, "a"))
    assert "a-111111" not in [*ids(newest_runs(root)), *ids(live_runs(root))]


def test_a_sweeps_own_files_are_removed_with_its_last_run(root: Path) -> None:
    points = [create_run(root, f"tune-777777.{index}", {}) for index in range(2)]
    folder = make_sweep(root, "tune-777777", None, {})
    remove_run(root, points[0])
    assert folder.exists()
    remove_run(root, points[1])
    assert not folder.exists()


def test_a_run_is_removed_while_others_write_to_it(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, real = find_run(root, "a"), os.rmdir

    def late(*args: Any, **options: Any) -> None:
        with pytest.raises(RunNotFoundError):
            run.write("verdict.json", {})
        real(*args, **options)

    monkeypatch.setattr(os, "rmdir", late)
    remove_run(root, run)
    assert [path for path in (root / "runs").iterdir() if "a-111111" in path.name] == []


def test_what_a_link_leads_to_is_removed_with_it(root: Path, tmp_path: Path) -> None:
    run, elsewhere = find_run(root, "a"), tmp_path / "elsewhere"
    run.path.rename(elsewhere)
    run.path.symlink_to(elsewhere)
    remove_run(root, run)
    assert not elsewhere.exists()
    assert not run.path.is_symlink()


# -- records


def test_a_failed_write_leaves_the_old_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "plan.json"
    write_durably(path, b"old")

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    for name in ("fsync", "replace", "open"):
        with monkeypatch.context() as patch:
            patch.setattr(os, name, full)
            with pytest.raises(StoreError, match=r"plan.json can't be written: No space left on device"):
                write_durably(path, b"new")
        assert path.read_bytes() == b"old"
        assert os.listdir(tmp_path) == ["plan.json"]
    write_durably(path, b"new")
    assert path.read_bytes() == b"new"


def test_what_is_written_is_synced_before_it_is_renamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda descriptor: (order.append("fsync"), fsync(descriptor)))
    monkeypatch.setattr(os, "replace", lambda *args, **at: (order.append("replace"), replace(*args, **at)))
    write_durably(tmp_path / "x", b"x")
    assert order == ["fsync", "replace", "fsync"]


def test_private_files_are_the_users_alone(tmp_path: Path) -> None:
    write_durably(tmp_path / "task.json", b"{}", private=True)
    assert (tmp_path / "task.json").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("text", ["", "{", "[1]", "null", "\xff", '{"a": 1}}'])
def test_a_broken_record_is_a_sentence(root: Path, text: str) -> None:
    run = find_run(root, "a")
    (run.path / "plan.json").write_text(text, encoding="latin-1")
    with pytest.raises(StoreError, match=r"a-111111/plan\.json") as caught:
        run.read("plan.json")
    assert "orch cancel a-111111" in caught.value.hint
    assert run.read("other.json") is None


# -- events


def test_sixteen_processes_append_at_once_and_nothing_is_lost(root: Path) -> None:
    run = find_run(root, "a")
    program = (
        "import sys; from pathlib import Path; from orchestrator.runs.store import RunDir\n"
        "from orchestrator.protocol.events import Clock\n"
        "for n in range(50): RunDir(Path(sys.argv[1])).append_event(Clock(int(sys.argv[2]), n, host='y' * 300))"
    )
    writers = [subprocess.Popen([sys.executable, "-c", program, str(run.path), str(who)]) for who in range(16)]
    assert [writer.wait(PATIENCE) for writer in writers] == [0] * 16
    found = [(each.of, each.ahead) for each in of(run.events(), Clock)]
    assert sorted(found) == [(who, n) for who in range(16) for n in range(50)]
    assert [n for who, n in found if who == 3] == list(range(50))


def test_a_torn_line_costs_only_itself(root: Path) -> None:
    run = find_run(root, "a")
    run.append_event(event("submitted"))
    path = run.path / "events.jsonl"
    path.write_bytes(path.read_bytes() + b'{"kind": "torn", "ti')
    run.append_event(event("cancel", now=True))
    assert [event.kind for event in run.events()] == ["submitted", "cancel"]


def test_events_of_all_nodes_in_their_own_order(root: Path) -> None:
    run = find_run(root, "a")
    for node in (10, 2):
        run.node(node).mkdir(parents=True)
        (run.node(node) / "events.jsonl").write_text(
            "".join(json.dumps({"kind": "slept", "node": node, "seconds": n}) + "\n" for n in range(2))
        )
    run.append_event(event("submitted"))
    assert [each.node for each in run.events()] == [None, 2, 2, 10, 10]
    assert [each.seconds for each in of(run.events(), Slept)] == [0, 1, 0, 1]


def test_a_node_speaks_for_itself_alone(root: Path) -> None:
    run = find_run(root, "a")
    for node in (0, 1):
        run.node(node).mkdir(parents=True)
        lines = [{"kind": "slept", "node": said, "seconds": node} for said in (0, 1, None, "0")]
        (run.node(node) / "events.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert [(each.node, each.seconds) for each in of(run.events(), Slept)] == [(0, 0), (1, 1)]


def test_lines_that_are_no_objects_are_skipped(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b'{"a": 1}\n\n[1]\n"x"\nnull\n\x00\x00\n{"b"\n' + b"[" * 100_000 + b'\n\xff\xfe\n{"c": 3}')
    assert list(read_lines(path)) == [{"a": 1}, {"c": 3}]
    assert list(read_lines(tmp_path / "none")) == []


def test_a_folder_that_cannot_be_made_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("a file where a folder should be")
    with pytest.raises(StoreError, match="can't be created"):
        create_run(tmp_path, "a-111111", {})
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(StoreError, match=f"^{file} can't be created: File exists") as caught:
        create_run(tmp_path / "home", "a-111111", {}, folder=f"{file}/runs/a-111111")
    assert "or workdir: in the profile" in caught.value.hint


# -- one bad run among good ones


@pytest.mark.parametrize("record", ['{"nnodes"', '{"kind": "lobal", "nnodes": 1}'])
def test_one_unreadable_run_hides_no_other_and_can_be_removed(root: Path, record: str) -> None:
    (root / "runs" / "b-222222" / "run.json").write_text(record)
    found = {run.run_id: state.state for ((run, state),) in grouped(root, everything=True, limit=20)}
    assert found["b-222222"] == "unreadable"
    assert len(found) == 3
    remove(root, find_run(root, "b-222222"))
    assert len(newest_runs(root)) == 2


def test_a_run_without_its_record_has_ended_and_can_be_removed(root: Path) -> None:
    (root / "runs" / "a-111111" / "run.json").unlink()
    run = find_run(root, "a")
    state = state_of(run)
    assert (state.state, state.is_final) == ("failed", True)
    assert cancel(root, run, now=True).record_is_lost  # it has ended what was left here
    remove(root, run)


def test_a_live_run_is_not_removed(root: Path) -> None:
    run = find_run(root, "a")
    run.append_event(event("submitted"))
    with pytest.raises(UsageError, match="is pending"):
        remove(root, run)


@pytest.mark.parametrize("record", ["{", '{"kind": "lobal", "nnodes": 1}'])
def test_the_supervisor_finishes_what_nobody_will_ever_report_on(
    root: Path, capfd: pytest.CaptureFixture[str], record: str
) -> None:
    """Two runs whose submit died, and one whose record is broken: all that can be finished is."""
    (root / "runs" / "b-222222" / "run.json").write_text(record)
    supervise(root)
    assert [state_of(find_run(root, name)).state for name in ("a", "b-3")] == ["failed", "failed"]
    assert ids(live_runs(root)) == ["b-222222"]
    assert capfd.readouterr().err.count("b-222222") >= 1
    assert reconcile(root, find_run(root, "a")) is not None  # again does no harm


def test_names_in_the_runs_folder_vanish_while_it_is_listed(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (root / "index").unlink()
    real = store.names_in
    monkeypatch.setattr(store, "names_in", lambda folder: [*real(folder), "gone-999999"])
    assert "a-111111" in ids(newest_runs(root))


@pytest.mark.parametrize("below", ["", "runs", "a/b"])
def test_a_state_folder_at_or_below_a_file_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, below: str
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("ORCH_HOME", str(tmp_path / "file" / below))
    with pytest.raises(StoreError, match=rf"ORCH_HOME is {tmp_path}/file.* is not a folder\n"):
        state_root()


def test_the_state_folder_is_made_private_and_never_where_others_may_write(tmp_path: Path) -> None:
    make_state_folder(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").stat().st_mode & 0o777 == 0o700
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(StoreError, match="may be written by others"):
        make_state_folder(tmp_path / "open")
    with pytest.raises(StoreError, match="can't be created: No such file or directory"):
        make_state_folder(Path("/proc/none"))
