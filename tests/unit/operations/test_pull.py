"""Results come back whole: incremental, resumable, verified, also from a run that goes on."""

from __future__ import annotations

import errno
import json
import os
import resource
import shutil
import threading
from pathlib import Path

import pytest

from orchestrator.cli.render.results import pulled_page
from orchestrator.errors import OrchError, UsageError
from orchestrator.node.server import sending
from orchestrator.operations import pull as collect
from orchestrator.operations.pull import RECEIPT, Pulled, pull
from orchestrator.protocol import reading
from orchestrator.protocol.checkpoints.checkpoint_dir import COMMIT, MANIFEST, STATE
from orchestrator.runs.files.checkpoints import check, listing
from orchestrator.runs.store import RunDir
from orchestrator.training.checkpoint import format as writer


def save(run: RunDir, step: int, **metric: float) -> Path:
    return writer.write(
        run.path / "checkpoints", {"step": step, "x": os.urandom(3000)},
        writer.Manifest(step=step, epoch=1, metric=metric, run=run.run_id),
    )  # fmt: skip


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    """Steps 1 to 3, the second the best, and two attempts of rank 0."""
    made = RunDir(tmp_path / "runs" / "job-abc")
    for attempt in (0, 1):
        folder = made.node(0) / f"attempt_{attempt}"
        folder.mkdir(parents=True)
        (folder / "rank_0.log").write_text(f"attempt {attempt}\n" * 10)
        (folder / "rank_1.log").write_text("other\n")
    (made.path / "metrics.jsonl").write_text('{"step": 1}\n')
    (made.path / "result.json").write_text('{"accuracy": 0.9}')
    for step, accuracy in ((1, 0.7), (2, 0.9), (3, 0.8)):
        save(made, step, accuracy=accuracy)
    return made


def how(pulled: Pulled) -> dict[str, str]:
    return {file.path: file.how for file in pulled.files}


def test_all_results_and_the_newest_checkpoint(run: RunDir, tmp_path: Path) -> None:
    pulled = pull(run, tmp_path / "out")
    assert pulled.step == 3
    assert how(pulled) == dict.fromkeys([
        "metrics.jsonl", "result.json", "logs/attempt_0/rank_0.log", "logs/attempt_1/rank_0.log",
        f"checkpoints/step_00000003/{STATE}", f"checkpoints/step_00000003/{MANIFEST}",
        f"checkpoints/step_00000003/{COMMIT}",
    ], "copied")  # fmt: skip
    for file in pulled.files:
        inside = file.path.replace("logs/", "nodes/0/")
        assert (tmp_path / "out" / file.path).read_bytes() == (run.path / inside).read_bytes()
    assert writer.load(tmp_path / "out/checkpoints/step_00000003")[0]["step"] == 3
    again = pull(run, tmp_path / "out")
    assert set(how(again).values()) == {"kept"}
    assert json.loads((tmp_path / "out" / RECEIPT).read_text()) == again.to_json()
    assert "kept" in pulled_page(again)


def test_best_says_by_what_and_a_step_is_found(run: RunDir, tmp_path: Path) -> None:
    said: list[str] = []
    assert pull(run, tmp_path / "out", "best", said.append).step == 2
    assert said == ["checkpoint step 2 (accuracy 0.9 is the largest of 3)"]
    assert pull(run, tmp_path / "out", "1").step == 1
    assert [each.step for each in listing(tmp_path / "out/checkpoints", verify=True)] == [1, 2]
    assert pull(run, tmp_path / "none", "none").step is None
    assert not (tmp_path / "none" / "checkpoints").exists()


def test_what_grows_is_continued_and_what_changed_is_copied_anew(run: RunDir, tmp_path: Path) -> None:
    pull(run, tmp_path / "out")
    with (run.path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 2}\n')
    (run.path / "result.json").write_text('{"accuracy": 0.95}')
    (run.node(0) / "attempt_1" / "rank_0.log").write_text("short\n")
    seen = how(pull(run, tmp_path / "out"))
    assert seen["metrics.jsonl"] == "continued"
    assert seen["result.json"] == "copied"
    assert seen["logs/attempt_1/rank_0.log"] == "copied"
    assert (tmp_path / "out/metrics.jsonl").read_text() == '{"step": 1}\n{"step": 2}\n'
    assert (tmp_path / "out/logs/attempt_1/rank_0.log").read_text() == "short\n"


def test_an_interrupted_copy_goes_on_and_commits_last(run: RunDir, tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))  # no file can grow beyond that
    try:
        with pytest.raises(OrchError, match="File too large"):
            pull(run, tmp_path / "out")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    target = tmp_path / "out/checkpoints/step_00000003"
    assert not (target / COMMIT).exists()
    assert listing(tmp_path / "out/checkpoints", verify=True)[0].verdict == "incomplete"
    assert [path.stat().st_size for path in target.glob(f".{STATE}.*.partial")] == [1000]
    assert how(pull(run, tmp_path / "out"))[f"checkpoints/step_00000003/{STATE}"] == "continued"
    assert check(target, verify=True).is_whole
    assert sorted(path.name for path in target.iterdir()) == [COMMIT, MANIFEST, STATE]


def test_many_small_files_are_synced_together(run: RunDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for attempt in range(2, 300):
        folder = run.node(0) / f"attempt_{attempt}"
        folder.mkdir()
        (folder / "rank_0.log").write_text(f"attempt {attempt}\n")
    syncs, real = list[int](), os.fsync
    monkeypatch.setattr(os, "fsync", lambda descriptor: syncs.append(descriptor) or real(descriptor))
    assert len(pull(run, tmp_path / "out", "none").files) == 302
    assert len(syncs) < 20


def test_a_partial_copy_with_wrong_bytes_starts_again(run: RunDir, tmp_path: Path) -> None:
    digest = check(run.path / "checkpoints/step_00000003", verify=False).files[STATE]
    target = tmp_path / "out/checkpoints/step_00000003"
    target.mkdir(parents=True)
    (tmp_path / "out" / RECEIPT).write_text(json.dumps({"run_id": run.run_id}))
    (target / f".{STATE}.{digest.hex[:16]}.partial").write_bytes(b"garbage" * 100)
    pull(run, tmp_path / "out")
    assert check(target, verify=True).is_whole


def test_a_corrupt_checkpoint_is_passed_over_or_refused(run: RunDir, tmp_path: Path) -> None:
    path = run.path / "checkpoints/step_00000003" / STATE
    content = bytearray(path.read_bytes())
    content[100] ^= 1
    path.write_bytes(content)
    (path.parent / "a folder of the user").mkdir()
    pulled = pull(run, tmp_path / "out")
    assert pulled.step == 2
    assert pulled.skipped == ("step 3 is corrupt: state.pt does not match its checksum",)
    assert [each.step for each in listing(tmp_path / "out/checkpoints", verify=True)] == [2]
    with pytest.raises(UsageError, match="step 3 is corrupt"):
        pull(run, tmp_path / "out", "3")
    with pytest.raises(UsageError, match="no checkpoint of step 9") as caught:
        pull(run, tmp_path / "out", "9")
    assert caught.value.hint == "available steps: 1, 2, 3"


def test_a_checkpoint_that_can_not_be_read_is_not_called_corrupt(
    run: RunDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: object, below: object = None) -> int:
        if str(path).endswith(STATE):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return real(str(path), str(below) if below is not None else None)

    real = reading.descriptor_of
    monkeypatch.setattr(reading, "descriptor_of", refuse)
    monkeypatch.setattr(sending, "descriptor_of", refuse)
    with pytest.raises(OrchError, match=f"step_00000003/{STATE}: Permission denied"):
        pull(run, tmp_path / "out")


def test_another_save_of_the_same_step_never_mixes(run: RunDir, tmp_path: Path) -> None:
    pull(run, tmp_path / "out")
    save(run, 3, accuracy=0.99)  # a restart came by the same step again
    assert how(pull(run, tmp_path / "out"))[f"checkpoints/step_00000003/{COMMIT}"] == "copied"
    target = tmp_path / "out/checkpoints/step_00000003"
    assert check(target, verify=True).metric == {"accuracy": 0.99}


def test_a_checkpoint_that_the_run_deletes_meanwhile(run: RunDir, tmp_path: Path, monkeypatch) -> None:
    real, calls = collect._copy_checkpoint, []

    def deleted_first(source, target):
        calls.append(source.step)
        if len(calls) == 1:
            save(run, 4)
            shutil.rmtree(source.path)
        return real(source, target)

    monkeypatch.setattr(collect, "_copy_checkpoint", deleted_first)
    assert pull(run, tmp_path / "out").step == 4
    assert calls == [3, 4]


def test_pulling_while_the_run_writes_and_prunes(run: RunDir, tmp_path: Path) -> None:
    stop = threading.Event()

    def train() -> None:
        step = 4
        while not stop.is_set():
            writer.prune(run.path / "checkpoints", save(run, step), keep=1)
            with (run.path / "metrics.jsonl").open("a") as file:
                file.write(json.dumps({"step": step}) + "\n")
            step += 1

    thread = threading.Thread(target=train)
    thread.start()
    try:
        for number in range(20):
            try:
                pulled = pull(run, tmp_path / f"out{number % 3}")
            except OrchError as error:
                assert "stood still" in error.message  # noqa: PT017 (one checkpoint kept, and a disk that flies)
                continue
            assert check(Path(pulled.folder) / "checkpoints" / f"step_{pulled.step:08d}", verify=True).is_whole
    finally:
        stop.set()
        thread.join()
    for number in range(3):
        assert all(each.is_whole for each in listing(tmp_path / f"out{number}/checkpoints", verify=True))
    pull(run, tmp_path / "out0")
    assert (tmp_path / "out0/metrics.jsonl").read_bytes() == (run.path / "metrics.jsonl").read_bytes()


def test_folders_of_others_are_not_touched(run: RunDir, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "result.json").write_text("mine")
    for folder, words in ((other, "other files"), (run.path / "here", "inside the run"), (tmp_path, "other files")):
        with pytest.raises(UsageError, match=words):
            pull(run, folder)
    assert (other / "result.json").read_text() == "mine"
    pull(run, tmp_path / "out")
    with pytest.raises(UsageError, match="holds the results of run job-abc"):
        pull(RunDir(tmp_path / "runs" / "job-xyz"), tmp_path / "out")
    (tmp_path / "a_file").touch()
    with pytest.raises(UsageError, match="can't be used"):
        pull(run, tmp_path / "a_file")


def test_a_run_that_left_nothing_yet(tmp_path: Path) -> None:
    empty = RunDir(tmp_path / "runs" / "job-new")
    empty.path.mkdir(parents=True)
    pulled = pull(empty, tmp_path / "out")
    assert pulled.files == ()
    assert "no checkpoint found" in pulled_page(pulled)
    with pytest.raises(UsageError, match="is not a checkpoint"):
        pull(empty, tmp_path / "out", "newest")


def test_others_checkpoints_in_a_shared_folder_are_left_alone(run: RunDir, tmp_path: Path) -> None:
    writer.write(run.path / "checkpoints", {"x": 1}, writer.Manifest(step=9, run="another-run"))
    assert pull(run, tmp_path / "out").step == 3
