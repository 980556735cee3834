"""The examples of other people's frameworks without orch: the callbacks change nothing and leave nothing."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.local.conftest import REPO

PYTHON = REPO / ".venv-frameworks/bin/python"  # by `make test`
# As the interpreter would run it; then what TERM does.
PROGRAM = """
import runpy, signal, sys
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
print("on TERM:", signal.getsignal(signal.SIGTERM) is signal.SIG_DFL)
"""


@pytest.mark.parametrize(
    ("example", "option", "left"),
    [
        ("hf_trainer", "--steps=25", {"checkpoint-25", "final"}),
        pytest.param(
            "lightning_trainer",
            "--epochs=1",
            {"epoch=0-step=25.ckpt", "epoch=0-step=50.ckpt", "final.pt"},
            marks=pytest.mark.full("tests/local/test_frameworks.py::test_without_orch_the_callbacks_do_nothing"),
        ),
    ],
)
def test_without_orch_the_callbacks_do_nothing(tmp_path: Path, example: str, option: str, left: set[str]) -> None:
    ours = {name: value for name, value in os.environ.items() if not name.startswith("ORCH_")}
    done = subprocess.run(
        [PYTHON, "-c", PROGRAM, str(REPO / f"jobs/{example}.py"), option],
        env={**ours, "PYTHONPATH": str(REPO)}, cwd=tmp_path,
        capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "on TERM: True" in done.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["outputs"]
    assert {path.name for path in (tmp_path / "outputs").iterdir()} == left


# At each write of a checkpoint: the phase that the rank reports meanwhile.
IN_PHASES = """
import json, os, torch
write = torch.save

def tell(thing, file, *more, **named):
    print("wrote in", json.loads(open(os.environ["ORCH_BEAT_FILE"]).read())["phase"], flush=True)
    return write(thing, file, *more, **named)

torch.save = tell
"""
LIGHTNING = """
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.demos.boring_classes import BoringModel
from orchestrator.training.lightning import OrchCallback

kept = ModelCheckpoint("weights", every_n_train_steps=2, save_weights_only=True, save_top_k=-1)
trainer = Trainer(max_steps=4, limit_val_batches=0, accelerator="cpu", logger=False, enable_progress_bar=False,
                  enable_model_summary=False, callbacks=[OrchCallback(), kept])
trainer.fit(BoringModel())
trainer.save_checkpoint("all.ckpt")
"""
TRANSFORMERS = """
import torch
from transformers import Trainer, TrainingArguments
from orchestrator.training.hf import OrchCallback

class Line(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.line = torch.nn.Linear(1, 1)

    def forward(self, x):
        return {"loss": self.line(x).square().mean()}

asked = TrainingArguments("out", use_cpu=True, max_steps=4, save_steps=2, report_to="none", disable_tqdm=True)
Trainer(Line(), asked, train_dataset=[{"x": torch.ones(1)}] * 32, callbacks=[OrchCallback()]).train()
"""


@pytest.mark.parametrize("program", [LIGHTNING, TRANSFORMERS], ids=["lightning", "transformers"])
def test_a_rank_is_in_save_for_as_long_as_a_checkpoint_is_written(tmp_path: Path, program: str) -> None:
    ours = {"ORCH_RUN_ID": "r-1", "ORCH_BEAT_FILE": str(tmp_path / "beat"), "PYTHONPATH": str(REPO)}
    done = subprocess.run(
        [PYTHON, "-c", IN_PHASES + program],
        env={**os.environ, **ours}, cwd=tmp_path, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    told = [line for line in done.stdout.splitlines() if line.startswith("wrote in ")]
    assert len(told) >= 3
    assert set(told) == {"wrote in save"}, told
