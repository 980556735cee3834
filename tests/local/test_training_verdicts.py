"""What a training that goes wrong leaves as its verdict, through the command line."""

import shutil
from pathlib import Path

import pytest

from tests.local.conftest import WARM, Orch
from tests.local.programs.ranks import PROGRAMS


def test_a_loss_that_is_no_number_is_the_verdict_and_is_not_tried_again(orch: Orch, tmp_path: Path) -> None:
    shutil.copy(PROGRAMS / "small.py", tmp_path)
    job = tmp_path / "job.yaml"
    job.write_text(
        "training: {task: small.py, epochs: 3, global_batch: 12, options: {poison: 20}}\nretry: {user_error: 3}\n"
        + WARM
    )
    done = orch.with_torch("submit", str(job), "-p", "local", "--nproc-per-node", "2", "-f")
    assert done.code == 100
    why = orch("why", "last").out
    assert "93" in why
    assert "error: The loss is nan at step" in why
    assert len(orch.events(orch.run(), "go")) == 1


def test_a_training_whose_final_weights_are_on_no_disk_has_failed_and_is_not_tried_again(
    orch: Orch, tmp_path: Path
) -> None:
    shutil.copy(PROGRAMS / "small.py", tmp_path)
    (tmp_path / "file").touch()
    job = tmp_path / "job.yaml"
    job.write_text(
        "training: {task: small.py, epochs: 2, global_batch: 12}\nretry: {user_error: 3, infra: 3}\n"
        f"checkpoint: {{dir: {tmp_path / 'file' / 'saved'}}}\n" + WARM
    )
    done = orch.with_torch("submit", str(job), "-p", "local", "--nproc-per-node", "2", "-f")
    assert done.code == 100
    verdict = orch("why", "last", "--json").json
    assert (verdict["outcome"], verdict["cause"]) == ("failed", "checkpoint")
    assert verdict["reason"].startswith("training is done, and its final weights are on no disk: ")
    assert verdict["reason"].endswith("could not be written: Not a directory.")
    assert len(orch.events(orch.run(), "go")) == 1


SCRIPT = """
import os
from pathlib import Path
import torch
from orchestrator.training import run
folder = Path(os.environ["ORCH_CHECKPOINT_DIR"])
model = torch.nn.Linear(2, 2)
run.resume(model=model)
for step in (1, 2, 3):
    if step == 2:
        folder.parent.rename(folder.parent.with_name("aside"))
        folder.parent.touch()
    if step == 3 and {mended}:
        folder.parent.unlink()
        folder.parent.with_name("aside").rename(folder.parent)
    run.after_step(step, 3, save_every=1, model=model)
"""


def _scripted(orch: Orch, folder: Path, *, mended: bool) -> int:
    (folder / "job.yaml").write_text(f"script: main.py\ncheckpoint: {{dir: {folder}/disk/saved}}\n")
    (folder / "main.py").write_text(SCRIPT.replace("{mended}", str(mended)))
    (folder / "disk").mkdir()
    return orch.with_torch("submit", str(folder / "job.yaml"), "-p", "local", "--nproc-per-node", "1", "-f").code


def test_a_script_whose_earlier_checkpoint_alone_was_refused_succeeds_with_a_note(orch: Orch, tmp_path: Path) -> None:
    assert _scripted(orch, tmp_path, mended=True) == 0
    note = "1 of 3 checkpoints could not be written, the last one was"
    assert orch("why", "last", "--json").json["reason"] == note
    assert all(note in orch(*page).out for page in (("why", "last"), ("status", "last"), ("status",)))


@pytest.mark.full(
    "tests/local/test_training_verdicts.py::"
    "test_a_training_whose_final_weights_are_on_no_disk_has_failed_and_is_not_tried_again",
    "tests/local/test_training_verdicts.py::"
    "test_a_script_whose_earlier_checkpoint_alone_was_refused_succeeds_with_a_note",
)
def test_a_script_whose_last_checkpoint_was_refused_has_failed(orch: Orch, tmp_path: Path) -> None:
    assert _scripted(orch, tmp_path, mended=False) == 100
    assert orch("why", "last", "--json").json["cause"] == "checkpoint"
