"""A machine hangs, answers too late or has a full disk while files travel: it is named, and a second try completes."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.backends.mirror.checkpoints import bring_newest
from orchestrator.backends.mirror.contents import send_contents
from orchestrator.backends.mirror.given import Given, give
from orchestrator.backends.mirror.growing import Copy, update_all
from orchestrator.backends.mirror.outputs import Outputs
from orchestrator.backends.mirror.send import give_checkpoint, give_files
from orchestrator.backends.mirror.watching import Source, finish
from orchestrator.errors import BackendError
from orchestrator.protocol.checkpoints.formats import Format
from orchestrator.protocol.checkpoints.search import Saved
from orchestrator.runs.store import RunDir
from tests.machines import FakeMachine, Health
from tests.unit.backends.mirror.test_checkpoints import checkpoint
from tests.unit.backends.mirror.test_cuts import GROWING, files

LARGE = os.urandom(2_500_000)
WRITING = "write_file write_piece"
LATE = [Health.HUNG, Health.SLOW]
UNWELL = [*LATE, Health.FULL]
WORDS = {Health.HUNG: "no answer within", Health.SLOW: "no answer within", Health.FULL: "No space left on device"}


def refused(work: Callable[[FakeMachine], object], health: Health, since: str) -> None:
    """Do the work with a machine that is unwell from this request on, and check the error."""
    machine = FakeMachine("n1", health=health, since=since)
    with pytest.raises(BackendError, match=f"^n1: {WORDS[health]}") as error:
        work(machine)
    assert machine.since == ""
    assert error.value.transient == (health is not Health.FULL)


def whole(folder: Path) -> dict[str, bytes]:
    """Return the files of a folder, without those that a later try resumes."""
    return {name: data for name, data in files(folder).items() if not name.endswith(".partial")}


# -- to the machine


@pytest.mark.parametrize("since", ["unpack", WRITING])
@pytest.mark.parametrize("health", UNWELL)
def test_contents_are_sent_again(tmp_path: Path, health: Health, since: str) -> None:
    paths = {}
    for name, data in (("small", b"small"), ("large", LARGE * 4)):
        (tmp_path / name).write_bytes(data)
        paths[hashlib.sha256(data).hexdigest()] = tmp_path / name
    cache = tmp_path / "there/cache/wheels"

    def send(machine: FakeMachine) -> object:
        return send_contents(machine, str(tmp_path / "there"), "wheels", paths)

    refused(send, health, since)
    known = {digest: path.read_bytes() for digest, path in paths.items()}
    assert whole(cache).items() <= known.items()
    send(FakeMachine())
    assert whole(cache) == known


@pytest.mark.parametrize("health", UNWELL)
def test_a_checkpoint_that_was_given_in_part_has_no_commit_and_is_given_again(tmp_path: Path, health: Health) -> None:
    source, target = checkpoint(tmp_path / "here", 7, LARGE), tmp_path / "there/step_00000007"
    refused(lambda machine: give_checkpoint(machine, source, str(target)), health, WRITING)
    assert not (target / "COMMIT").exists()
    give_checkpoint(FakeMachine(), source, str(target))
    assert whole(target) == files(source)


@pytest.mark.parametrize("since", ["saved", WRITING, "commit_files"])
@pytest.mark.parametrize("health", LATE)
def test_a_foreign_checkpoint_appears_whole_or_not_at_all(tmp_path: Path, health: Health, since: str) -> None:
    run = run_with(tmp_path)
    source, target = tmp_path / "old/checkpoint-7", tmp_path / "orch/runs/r-1/given/checkpoint-7"
    source.mkdir(parents=True)
    (source / "optimizer.pt").write_bytes(LARGE)
    (source / "trainer_state.json").write_text('{"global_step": 7}')
    given = Given(Saved(Format.HF, str(source), 7, 0.0), str(target), is_own=False)
    refused(lambda machine: give(machine, run, given), health, since)
    assert not target.exists() or whole(target) == files(source)
    give(FakeMachine(), run, given)
    assert whole(target.parent) == {f"checkpoint-7/{name}": data for name, data in files(source).items()}


@pytest.mark.parametrize("health", UNWELL)
def test_a_file_gets_its_name_only_when_it_is_whole(tmp_path: Path, health: Health) -> None:
    (tmp_path / "metrics.jsonl").write_bytes(LARGE)
    target = tmp_path / "there/metrics.jsonl"
    refused(lambda machine: give_files(machine, {tmp_path / "metrics.jsonl": str(target)}), health, WRITING)
    assert not target.exists()
    give_files(FakeMachine(), {tmp_path / "metrics.jsonl": str(target)})
    assert whole(target.parent) == {"metrics.jsonl": LARGE}


# -- from the machine


def run_with(tmp_path: Path, nodes: int = 1) -> RunDir:
    """Return a run whose folder on its machines has files of every kind."""
    run, there = RunDir(tmp_path / "here/runs/r-1"), tmp_path / "orch/runs/r-1"
    run.path.mkdir(parents=True)
    run.write("run.json", {"nnodes": nodes, "kind": "ssh", "profile": {"workdir": str(tmp_path / "orch")}})
    task = {"code_dir": str(there / "code"), "checkpoint_dir": str(there / "checkpoints")}
    run.write("plan.json", {"tasks": [task] * nodes, "job": {"outputs": {}}})
    for name in ("nodes/0/attempt_0", "code", "outputs"):
        (there / name).mkdir(parents=True)
    for name in GROWING:
        (there / name).write_bytes(LARGE[:5000])
    (there / "outputs/model.pt").write_bytes(LARGE)
    checkpoint(there / "checkpoints", 1, LARGE)
    return run


def logs(run: RunDir, machine: FakeMachine) -> None:
    update_all([Copy(run, 0, str(there_of(run)), str(there_of(run) / "checkpoints"), None)], machine)


def checkpoints(run: RunDir, machine: FakeMachine) -> None:
    bring_newest(run, machine, str(there_of(run) / "checkpoints"), ["step_00000001"])


def outputs(run: RunDir, machine: FakeMachine) -> None:
    Outputs(run, 0).bring(machine, final=True)


def there_of(run: RunDir) -> Path:
    return run.path.parents[2] / "orch/runs/r-1"


@pytest.mark.parametrize("health", LATE)
@pytest.mark.parametrize(
    ("bring", "since"),
    [(logs, "poll_changes"), (checkpoints, "read_files"), (outputs, "list_outputs"), (outputs, "read_files")],
)
def test_what_did_not_come_leaves_nothing_half_here_and_comes_later(
    tmp_path: Path, bring: Callable[[RunDir, FakeMachine], None], health: Health, since: str
) -> None:
    run = run_with(tmp_path)
    before = files(run.path)
    refused(lambda machine: bring(run, machine), health, since)
    records = ("lock", "nodes/0/outputs.json")
    assert {name: data for name, data in files(run.path).items() if not name.endswith(records)} == before
    for bring_all in (logs, checkpoints, outputs):
        bring_all(run, FakeMachine())
    for name in GROWING:
        assert (run.path / name).read_bytes() == LARGE[:5000]
    assert files(run.path / "checkpoints") == files(there_of(run) / "checkpoints")
    assert files(run.path / "outputs") == {"model.pt": LARGE}


@pytest.mark.parametrize("health", LATE)
@pytest.mark.parametrize("since", ["poll_changes", "list_outputs", "read_files", "remove"])
def test_an_ended_run_gets_its_result_without_the_machine_and_says_what_is_left_there(
    tmp_path: Path, health: Health, since: str
) -> None:
    run = run_with(tmp_path, nodes=2)
    machines = [FakeMachine("n1"), FakeMachine("n2", health=health, since=since)]
    machines[0].answers["remove"] = {"removed": True}  # the other machine has its files in the same folder
    finish(run, [Source(each.name, (node,), lambda each=each: each) for node, each in enumerate(machines)])
    left = [line for line in run.event_lines() if line["kind"] == "left_behind"]
    assert [(line["left"], line["host"]) for line in left] == [(1, "n2")]
    assert left[0]["reason"].startswith("n2: no answer within ")
    assert files(run.path / "outputs").get("model.pt") == LARGE
    assert machines[0].verbs()[-1] == "remove"
