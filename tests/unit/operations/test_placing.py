"""Outputs are copied to where the script would have written them by hand, and nothing of the user's is lost."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from orchestrator.cli.render.results import placed_page
from orchestrator.errors import UsageError
from orchestrator.operations.placing import place
from orchestrator.runs.store import RunDir

OUTPUTS = {
    "model.pt": "new", "logs/a.txt": "one\ntwo\n", "beside/results/out.txt": "x", "above/far.txt": "y",
    "beside/.ssh/authorized_keys": "key", "above/me/.ssh/authorized_keys": "key", ".git/hooks/post-checkout": "rm",
    "node_2/model.pt": "other", "renamed/code/z": "z", "tool.sh": "#!/bin/sh\n",
}  # fmt: skip


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    """A run over SSH whose outputs are here, and whose code came from home/proj/code."""
    made = RunDir(tmp_path / "runs/r-1")
    for name, text in OUTPUTS.items():
        file = made.path / "outputs" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    (made.path / "outputs/tool.sh").chmod(0o755)
    (tmp_path / "home/proj/code").mkdir(parents=True)
    made.write("run.json", {"kind": "ssh", "code_dir": str(tmp_path / "home/proj/code")})
    return made


def files_below(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


def test_each_output_goes_to_its_place(run: RunDir, tmp_path: Path) -> None:
    placed = place(run)
    assert files_below(tmp_path / "home") == {
        "proj/code/model.pt": "new",
        "proj/code/logs/a.txt": "one\ntwo\n",
        "proj/code/tool.sh": "#!/bin/sh\n",
        "proj/results/out.txt": "x",
        "far.txt": "y",
    }
    assert os.access(tmp_path / "home/proj/code/tool.sh", os.X_OK)
    assert sorted(each.partition(":")[0] for each in placed.left_out) == [
        ".git/hooks/post-checkout", "above/me/.ssh/authorized_keys", "beside/.ssh/authorized_keys", "node_2/model.pt",
        "renamed/code/z",
    ]  # fmt: skip
    assert f"copied {tmp_path}/home/far.txt" in placed_page(placed)
    assert place(run) == placed


def test_other_content_is_kept_unless_it_is_to_be_replaced(run: RunDir, tmp_path: Path) -> None:
    code = tmp_path / "home/proj/code"
    (code / "model.pt").write_text("mine")
    (code / "logs").mkdir()
    (code / "logs/a.txt").write_text("one\n")  # a log that has grown
    os.mkfifo(code / "tool.sh")
    placed = place(run)
    assert ((code / "model.pt").read_text(), (code / "logs/a.txt").read_text()) == ("mine", "one\ntwo\n")
    assert f"{code}/model.pt is there with other content; --force replaces it" in placed.left_out
    assert f"{code}/tool.sh is there and is no file" in placed.left_out
    place(run, force=True)
    assert (code / "model.pt").read_text() == "new"


def test_a_file_in_the_place_of_a_folder_is_kept(run: RunDir, tmp_path: Path) -> None:
    code = tmp_path / "home/proj/code"
    (code / "logs").write_text("mine")
    assert f"{code}/logs/a.txt: {code}/logs: Not a directory" in place(run, force=True).left_out
    assert ((code / "logs").read_text(), (code / "tool.sh").exists()) == ("mine", True)


def test_a_code_folder_that_is_not_here_is_named(run: RunDir) -> None:
    run.write("run.json", {"kind": "ssh", "code_dir": "/gone"})
    with pytest.raises(UsageError, match=r"the code of r-1 came from is not on this machine\n.*orch pull r-1 --to DIR"):
        place(run)
