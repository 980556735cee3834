"""Commands that write into a folder that the user names, in a shared folder in which an attacker was first."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.runs.store import RunDir
from tests.result import Result

OTHER = 54321
Orch = Callable[..., Result]
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "home").mkdir()
    (tmp_path / "home/.profile").write_text("mine")
    monkeypatch.setenv("ORCH_HOME", str(tmp_path / "state"))
    return tmp_path / "home"


@pytest.fixture
def run(tmp_path: Path, home: Path) -> RunDir:
    made = RunDir(tmp_path / "state/runs/job-20261128-abcdef")
    folder = made.node(0) / "attempt_0"
    folder.mkdir(parents=True)
    (folder / "rank_0.log").write_text("results\n")
    (made.path / "metrics.jsonl").write_text('{"step": 1}\n')
    for each in (tmp_path / "state", tmp_path / "state/runs", made.path):
        each.chmod(0o700)
    made.write("run.json", {"run_id": made.run_id, "kind": "local", "job": {"name": "job"}, "submitted_at": 1.0})
    return made


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(0o777)
    monkeypatch.chdir(folder)
    return folder


def bait(folder: Path, run: RunDir, home: Path) -> None:
    """What the attacker lays out: a receipt, and a link at the place of a file."""
    folder.joinpath("logs/attempt_0").mkdir(parents=True)
    (folder / "pull.json").write_text(json.dumps({"run_id": run.run_id}))
    (folder / "logs/attempt_0/rank_0.log").symlink_to(home / ".profile")
    (folder / "metrics.jsonl").symlink_to(home / ".profile")


def give_away(top: Path) -> None:
    for each in (top, *top.rglob("*")):
        os.chown(each, OTHER, OTHER, follow_symlinks=False)


def all_of(folder: Path) -> dict[str, bytes]:
    return {str(each): each.read_bytes() for each in folder.rglob("*") if each.is_file() and not each.is_symlink()}


def test_a_pull_into_a_folder_that_another_user_made_is_refused(
    run: RunDir, shared: Path, home: Path, in_process: Orch
) -> None:
    bait(shared / run.run_id, run, home)
    give_away(shared / run.run_id)
    before = all_of(shared)
    refused = in_process("pull", run.run_id)
    assert refused.code == 2
    assert f"can't be used: the folder belongs to user {OTHER}" in refused.err
    assert (home / ".profile").read_text() == "mine"
    assert all_of(shared) == before


def test_a_foreign_receipt_in_the_user_s_own_folder_proves_nothing(
    run: RunDir, shared: Path, home: Path, in_process: Orch
) -> None:
    bait(shared / run.run_id, run, home)
    give_away(shared / run.run_id / "pull.json")
    refused = in_process("pull", run.run_id)
    assert refused.code == 2
    assert f"{run.run_id} holds other files" in refused.err
    assert (home / ".profile").read_text() == "mine"


def test_links_in_the_user_s_own_folder_are_not_followed(
    run: RunDir, shared: Path, home: Path, in_process: Orch
) -> None:
    assert in_process("pull", run.run_id).code == 0
    out = shared / run.run_id
    for name in ("logs/attempt_0/rank_0.log", "metrics.jsonl"):
        (out / name).unlink()
        (out / name).symlink_to(home / ".profile")
    assert in_process("pull", run.run_id).code == 0
    assert ((home / ".profile").read_text(), (out / "metrics.jsonl").read_text()) == ("mine", '{"step": 1}\n')
    (out / "logs").rename(out / "aside")
    (out / "logs").symlink_to(home)
    assert "a folder in the path is a symbolic link, which orch does not follow" in in_process("pull", run.run_id).err
    assert os.listdir(home) == [".profile"]


COMMANDS: dict[str, Callable[[RunDir, str], list[str]]] = {
    "pull": lambda run, to: ["pull", run.run_id, "--to", f"{to}/new"],
    "bundle": lambda run, to: ["bundle", run.run_id, "-o", f"{to}/bundle.tar.gz"],
    "ui": lambda run, to: ["ui", run.run_id, "--export", f"{to}/pages"],
    "init": lambda run, to: ["init", "train", "python", "train.py"],
}


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_refuses_a_folder_and_a_link_of_another_user(
    run: RunDir,
    shared: Path,
    home: Path,
    name: str,
    in_process: Orch,
) -> None:
    (shared / "train.py").touch()
    (shared / "results").symlink_to(home)
    os.chown(shared / "results", OTHER, OTHER, follow_symlinks=False)
    if name == "init":
        (shared / "train.yaml").symlink_to(home / "new.yaml")
        os.chown(shared / "train.yaml", OTHER, OTHER, follow_symlinks=False)
    command = COMMANDS[name](run, "results")
    assert f"the link belongs to user {OTHER}" in in_process(*command).err
    (shared / "results").unlink()
    (shared / "results").mkdir(mode=0o777)
    (shared / "train.yaml").unlink(missing_ok=True)
    os.chown(shared / "results" if name != "init" else shared, OTHER, OTHER)
    assert f"the folder belongs to user {OTHER}" in in_process(*command).err
    assert os.listdir(home) == [".profile"]
