"""What is found of a run's outputs on a machine: what is new or changed, no link, none of orch's own checkpoints."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

import pytest

from orchestrator.node.server import outputs
from orchestrator.node.server.outputs import Found, baseline, find
from orchestrator.protocol.code_baseline import write_baseline
from orchestrator.protocol.layout import is_own_file
from orchestrator.protocol.outputs import OUTPUTS, OutputRules


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run's folder with its code, as it was sent."""
    folder = tmp_path / "r-1"
    for path in ("code/pkg", "outputs", "checkpoints"):
        (folder / path).mkdir(parents=True)
    (folder / "code/main.py").write_text("print()")
    (folder / "code/pkg/util.py").write_text("")
    code = str(folder / "code")
    write_baseline(code, baseline(code))
    return folder


def found(run: Path, checkpoints: Path | None = None, **rules: object) -> Found:
    return find(str(run), str(run / "code"), str(checkpoints or run / "checkpoints"), OutputRules(**rules))  # type: ignore[arg-type]


def names(run: Path, checkpoints: Path | None = None, **rules: object) -> list[tuple[str, str]]:
    return [(entry.root, entry.path) for entry in found(run, checkpoints, **rules).files]


def test_code_that_nobody_has_touched_is_no_output(run: Path) -> None:
    assert names(run) == []


def test_what_is_new_changed_or_in_the_output_folder_is(run: Path) -> None:
    (run / "code/model.pt").write_text("w")
    (run / "code/main.py").write_text("print(1)")
    (run / "outputs/x").write_text("")
    (run / "outputs/__pycache__").mkdir()
    (run / "outputs/__pycache__/kept").write_text("")
    (run / "checkpoints/notes").write_text("")
    assert names(run) == [
        ("code", "main.py"), ("code", "model.pt"), ("outputs", "__pycache__/kept"), ("outputs", "x"),
        ("checkpoints", "notes"),
    ]  # fmt: skip
    assert names(run, include=("*.pt",))[0] == ("code", "model.pt")


def test_a_change_that_keeps_the_size_is_one(run: Path) -> None:
    (run / "code/main.py").write_text("PRINT()")
    assert names(run) == [("code", "main.py")]


def test_without_a_baseline_nothing_counts_as_known(run: Path) -> None:
    (run / "code.baseline.json").write_text("torn")
    assert len(names(run)) == 2


def test_a_virtual_environment_is_left_out_whatever_its_name(run: Path) -> None:
    (run / "code/env/lib").mkdir(parents=True)
    (run / "code/env/pyvenv.cfg").write_text("")
    (run / "code/env/lib/x.pt").write_text("")
    assert names(run) == []


def test_checkpoints_of_orch_are_not_listed_others_in_their_folder_are(run: Path) -> None:
    for folder, file in (("step_00000001", "COMMIT"), ("step_00000002", "model.pt"), ("run-5", "COMMIT")):
        (run / "checkpoints" / folder).mkdir()
        (run / "checkpoints" / folder / file).write_text("")
    (run / "checkpoints/.tmp-step_00000003-12-ab@n1").mkdir()
    (run / "checkpoints/.tmp-step_00000003-12-ab@n1/state.pt").write_text("")
    assert names(run) == [("checkpoints", "run-5/COMMIT"), ("checkpoints", "step_00000002/model.pt")]


def test_a_checkpoint_folder_in_the_code_is_looked_through_once(run: Path) -> None:
    (run / "code/ckpts/step_00000001").mkdir(parents=True)
    (run / "code/ckpts/step_00000001/COMMIT").write_text("")
    (run / "code/ckpts/epoch=1.ckpt").write_text("")
    assert names(run, run / "code/ckpts") == [("code", "ckpts/epoch=1.ckpt")]


def test_in_a_checkpoint_folder_elsewhere_only_what_is_newer_than_the_run(run: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "data"
    elsewhere.mkdir()
    (elsewhere / "old.pt").write_text("")
    os.utime(elsewhere / "old.pt", (1, 1))
    (elsewhere / "new.pt").write_text("")
    assert names(run, elsewhere) == [("checkpoints", "new.pt")]


def test_links_are_not_followed_and_those_that_lead_out_are_named(run: Path) -> None:
    (run / "code/model.pt").write_text("w")
    (run / "code/last.pt").symlink_to("model.pt")
    (run / "code/out").symlink_to("/etc")
    (run / "code/up").symlink_to("../../other")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(f"{run}/code/s")
        here = found(run)
    assert [entry.path for entry in here.files] == ["model.pt"]
    assert here.passed_over == [f"{run}/code/{name}" for name in ("out", "s", "up")]


ORCHS = (
    "node.pyz", ".metrics.jsonl.12-34.partial", "cancel.json", "received.json", "rank0.done", "shared", "metrics.jsonl",
    "result.json", "given/step_00000001/COMMIT", "slurm/12.log", "slurm/1_0_log.out", "slurm/again.3",
    "nodes/0/agent.json", "nodes/0/attempt_0/rank_0.log", "nodes/12/start_3", "nodes/0/events.jsonl.reserve",
    ".cancel.json.01234567.89abcdef.12.tmp",
)  # fmt: skip


def write(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("x")


def test_files_of_orch_in_the_run_folder_are_no_outputs(run: Path) -> None:
    for name in ORCHS:
        write(run / name)
    assert names(run) == []


def test_secrets_that_orch_keeps_here_are_no_outputs() -> None:
    names = ("secrets.json", "held.json", "outbox_secrets.json")
    assert [name for name in names if not is_own_file(name, here=True)] == []


def test_files_beside_the_working_folder_are_outputs_wherever_they_are_in_the_run_folder(run: Path) -> None:
    written = ["log.txt", "nodes/0/mine.txt", "nodes/graph.json", "results/out.txt", "run.json", "slurm/mine.txt"]
    for name in (*written, "data/mnist", "results/__pycache__/x.pyc"):
        write(run / name)
    assert sorted(names(run)) == [("beside", name) for name in written]
    assert names(run, exclude=("results/", "*.json", "*mine*")) == [("beside", "log.txt")]
    here = find(str(run), str(run / "code"), str(run / "checkpoints"), OutputRules(), here=True)
    assert "run.json" not in [entry.path for entry in here.files]  # the record of the machine that submitted the run


def test_a_link_to_a_file_beside_the_working_folder_is_no_loss(run: Path) -> None:
    write(run / "results/out.txt")
    (run / "code/out").symlink_to("../results")
    assert (names(run), found(run).passed_over) == ([("beside", "results/out.txt")], [])


def test_files_above_the_run_folder_are_outputs_if_they_are_newer_than_the_run(run: Path) -> None:
    for name in ("old.txt", "new/out.txt", "other-abc234/code/theirs", "sweep-abc234.3/code/theirs"):
        write(run.parent / name)
    os.utime(run.parent / "old.txt", (1, 1))
    assert names(run) == [("above", "new/out.txt")]


def test_links_and_locked_folders_above_the_run_folder_are_no_loss_if_they_are_older_than_the_run(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.scandir

    def scandir(path: str) -> object:
        if "/shut_" in path:
            raise PermissionError(13, "Permission denied")
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    for age in ("old", "new"):
        (run.parent / f"shut_{age}").mkdir()
        (run.parent / f"link_{age}").symlink_to("/etc")
    for name in ("shut_old", "link_old"):
        os.utime(run.parent / name, (1, 1), follow_symlinks=False)
    listed = found(run)
    assert (listed.unreadable, listed.passed_over) == ([("above", "shut_new")], [f"{run.parent}/link_new"])


def test_files_that_a_container_saw_beside_its_working_folder_are_outputs(run: Path) -> None:
    for name in ("r-1/results/out.txt", "r-1/node.pyz", "r-1/nodes/0/attempt_0/x", "out.txt"):
        write(run / "container" / name)
    assert names(run) == [("beside_in_container", "results/out.txt"), ("above_in_container", "out.txt")]


def test_files_above_a_containers_working_folder_are_outputs_though_their_names_are_like_those_of_runs(
    run: Path,
) -> None:
    (run.parent / "other-abc234/checkpoints").mkdir(parents=True)
    for name in ("data-backup/out.txt", ".cfg/out.txt", "other-abc234/checkpoints/mounted.pt"):
        write(run / "container" / name)
    written = [".cfg/out.txt", "data-backup/out.txt"]
    assert names(run) == [("above_in_container", name) for name in written]


@pytest.mark.parametrize("place", ["container", "container/r-1"])
def test_a_link_in_the_place_of_a_containers_folders_is_passed_over(run: Path, tmp_path: Path, place: str) -> None:
    write(tmp_path / "private/r-1/key")
    write_baseline(str(run / "code"), baseline(str(run / "code")))
    (run / place).parent.mkdir(exist_ok=True)
    (run / place).symlink_to(tmp_path / "private/r-1" if "/" in place else tmp_path / "private")
    listed = found(run)
    assert [entry for entry in listed.files if "container" in entry.root] == []
    assert listed.passed_over == [str(run / place)]


def test_names_survive_whatever_their_encoding(run: Path) -> None:
    name = b"\xff\n \xe4"
    (run / "outputs" / os.fsdecode(name)).write_text("")
    _, data = outputs.list_outputs(
        {"run_dir": str(run), "code_dir": f"{run}/code", "checkpoints": "", "rules": {}}, b""
    )
    assert isinstance(data, bytes)
    assert os.fsencode(json.loads(data)[0][1]) == name


def test_a_link_in_the_place_of_the_output_folder_is_passed_over(run: Path, tmp_path: Path) -> None:
    (tmp_path / "private").mkdir()
    (tmp_path / "private/key").write_text("SECRET")
    (run / "outputs").rmdir()
    (run / "outputs").symlink_to(tmp_path / "private")
    listed = found(run)
    assert [entry for entry in listed.files if entry.root == OUTPUTS] == []
    assert listed.passed_over == [str(run / "outputs")]
