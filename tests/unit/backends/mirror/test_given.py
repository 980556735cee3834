"""Checkpoints of other formats that came with the outputs: which are whole here, and where they go on a machine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from orchestrator.backends.mirror import given
from orchestrator.backends.mirror.given import (
    checkpoint_to_give,
    give,
    newest_here,
    newest_there,
    with_given_checkpoint,
)
from orchestrator.backends.mirror.outputs import Outputs
from orchestrator.cli.render.results import checkpoints_page
from orchestrator.errors import BackendError, UsageError
from orchestrator.operations.pull import pull
from orchestrator.prepare.prepare import Request, prepare
from orchestrator.protocol.progress import Progress
from orchestrator.protocol.task import NodeTask, Program
from orchestrator.runs.files.checkpoints import all_of, saved_by
from orchestrator.runs.store import RunDir
from tests.machines import FakeMachine

LARGE = 1 << 20


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    here = RunDir(tmp_path / "here/runs/r-1")
    here.path.mkdir(parents=True)
    profile = {"workdir": str(tmp_path / "orch")}
    here.write("run.json", {"run_id": "r-1", "nnodes": 1, "kind": "ssh", "profile": profile})
    plan(here)
    return here


def plan(run: RunDir, **fields: object) -> None:
    folder = there(run)
    run.write("plan.json", {"tasks": [{"code_dir": f"{folder}/code", "checkpoint_dir": f"{folder}/ckpt", **fields}]})


def there(run: RunDir, name: str = "") -> Path:
    return run.path.parents[2] / f"orch{name}/runs/r-1"


def task(folder: Path, resume: str = "auto") -> NodeTask:
    return NodeTask(
        "r-1", 0, 1, ("n1",), 1, str(folder), f"{folder}/code", Program("script", "t.py"), "exec", "gloo", "python3",
        (), (1, 2), resume=resume,
    )  # fmt: skip


def save(folder: Path, step: int) -> Path:
    """A checkpoint as Hugging Face's Trainer lays it, more of it than comes at once."""
    path = folder / f"checkpoint-{step}"
    path.mkdir(parents=True)
    torch.save(torch.zeros(LARGE // 4) + step, path / "optimizer.pt")
    log = [{"eval_loss": 1 / step}]
    (path / "trainer_state.json").write_text(json.dumps({"global_step": step, "log_history": log}))
    return path


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def steps(run: RunDir) -> list[int]:
    return [each.step for each in all_of(run)]


def test_one_that_has_come_in_part_is_none(run: RunDir) -> None:
    save(there(run) / "code/out", 100)
    with pytest.raises(BackendError):
        Outputs(run, 0).bring(FakeMachine(left=3), final=True)
    # Its small file came first, and by itself looks like a checkpoint without an optimizer.
    assert (run.path / "outputs/out/checkpoint-100/trainer_state.json").exists()
    torch.save(1, run.path / "outputs/out/checkpoint-100/model.bin")
    assert steps(run) == []
    Outputs(run, 0).bring(FakeMachine(), final=True)
    assert steps(run) == [100]


@pytest.mark.parametrize("record", ["{", "[]", '{"lacking": 3}'])
def test_where_it_is_not_known_what_has_come_none_counts(run: RunDir, record: str) -> None:
    save(run.path / "outputs", 100)
    assert steps(run) == [100]  # as an earlier version recorded it
    (run.path / "nodes/0").mkdir(parents=True)
    (run.path / "nodes/0/outputs.json").write_text(record)
    assert steps(run) == []


def test_a_copied_file_counts_while_its_machine_has_a_newer_one(run: RunDir) -> None:
    (there(run) / "code").mkdir(parents=True, exist_ok=True)
    for name, value in (("last.pt", 1), ("last.pt", 2)):
        torch.save(value, there(run) / "code" / name)
        if value == 1:
            Outputs(run, 0).bring(FakeMachine(), final=True)
    Outputs(run, 0).bring(FakeMachine(), final=False)  # it may be written just now
    assert [Path(each.path).name for each in saved_by(run)] == ["last.pt"]
    assert torch.load(run.path / "outputs/last.pt", weights_only=True) == 1


def test_what_came_home_is_given_back_in_its_place(run: RunDir) -> None:
    for step in (100, 200):
        save(there(run) / "code/out", step)
    save(there(run) / "ckpt", 50)
    Outputs(run, 0).bring(FakeMachine(), final=True)
    assert newest_here(run) == newest_there(FakeMachine(), run) == Progress(200)
    given = checkpoint_to_give(run, task(there(run)))
    assert given is not None
    assert given.target == f"{there(run)}/code/out/checkpoint-200"
    before = contents(there(run) / "code/out")
    (there(run) / "code/out/checkpoint-200/optimizer.pt").write_bytes(b"PK torn")
    give(FakeMachine(), run, given)
    assert contents(there(run) / "code/out") == before
    save(there(run) / "code/out", 300)
    (there(run) / "code/out/checkpoint-200/optimizer.pt").unlink()
    give(FakeMachine(), run, given)  # it has a newer one
    assert not (there(run) / "code/out/checkpoint-200/optimizer.pt").exists()


def test_a_new_run_is_given_another_s_in_a_folder_of_its_own(run: RunDir, tmp_path: Path) -> None:
    source = save(tmp_path / "old", 700)
    plan(run, resume=str(source))
    (asked,) = with_given_checkpoint((task(there(run), str(source)),))
    assert asked.resume == f"{there(run)}/given/checkpoint-700"
    given = checkpoint_to_give(run, asked)
    assert given is not None
    give(FakeMachine(), run, given)
    assert contents(Path(asked.resume)) == contents(source)
    give(FakeMachine(left=2), run, given)  # it is there


def test_a_file_is_given_as_one(run: RunDir, tmp_path: Path) -> None:
    source = tmp_path / "old/last.ckpt"
    source.parent.mkdir()
    torch.save({"epoch": 1, "global_step": 9}, source)
    plan(run, resume=str(source))
    (asked,) = with_given_checkpoint((task(there(run), str(source)),))
    given = checkpoint_to_give(run, asked)
    assert given is not None
    give(FakeMachine(), run, given)
    assert contents(there(run) / "given") == {"last.ckpt": source.read_bytes()}


def test_a_pull_says_where_it_is_and_a_page_lists_it(run: RunDir, tmp_path: Path) -> None:
    for step in (100, 200):
        save(there(run) / "code/out", step)
    Outputs(run, 0).bring(FakeMachine(), final=True)
    pulled = pull(run, tmp_path / "pulled", "best")
    assert pulled.step == 200
    assert pulled.choice == "hf outputs/out/checkpoint-200 (eval_loss 0.005 is the smallest of 2)"
    assert contents(tmp_path / "pulled/outputs/out") == contents(there(run) / "code/out")
    page = checkpoints_page(all_of(run), str(run.path / "checkpoints")).split("\n")
    assert page[0].split() == ["FORMAT", "STEP", "SAVED", "SIZE", "METRIC", "PATH"]
    assert page[1].split()[:2] == ["hf", "100"]
    assert page[2].endswith(f"1.0 MiB  eval_loss 0.005  {run.path}/outputs/out/checkpoint-200")


def test_the_job_says_which_count(run: RunDir) -> None:
    save(there(run) / "code/out", 100)
    Outputs(run, 0).bring(FakeMachine(), final=True)
    plan(run, checkpoint_format="lightning")
    assert steps(run) == []
    plan(run, checkpoint_format="hf", checkpoint_glob="out/checkpoint-1*")
    assert steps(run) == [100]


@pytest.mark.parametrize(
    ("asked", "step"),
    [("r-1", 200), ("r-1:100", 100), ("r-1:300", "available steps: 100, 200"), ("r-1:x", "available steps")],
)
def test_resume_names_a_run_and_a_step(run: RunDir, tmp_path: Path, asked: str, step: int | str) -> None:
    for each in (100, 200):
        save(there(run) / "code/out", each)
    Outputs(run, 0).bring(FakeMachine(), final=True)
    (tmp_path / "job.yaml").write_text("command: ['true']\n")
    request = Request(str(tmp_path / "job.yaml"), "local", resume=asked)
    if isinstance(step, str):
        with pytest.raises(UsageError) as caught:
            prepare(run.path.parents[1], request)
        assert step in str(caught.value.hint)
    else:
        found = prepare(run.path.parents[1], request).loaded.job.checkpoint.resume
        assert found == str(run.path / f"outputs/out/checkpoint-{step}")


def test_a_checkpoint_here_is_named_by_its_whole_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    saved = save(tmp_path / "out", 100)
    for nowhere in ("auto", "out/checkpoint-100", str(tmp_path / "gone")):  # words and paths of the nodes
        assert given._asked_for(nowhere) is None
    found = given._asked_for(str(saved))
    assert found is not None
    assert (found.path, found.step) == (str(saved), 100)
