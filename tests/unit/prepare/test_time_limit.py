"""A time limit costs a script that saves nothing all it has done: said where its source shows that."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.prepare.time_limit import MOST_FILES, note_on_time_limit
from orchestrator.specs.border import valid
from orchestrator.specs.job import Job
from orchestrator.specs.profile import LocalProfile
from orchestrator.specs.slurm_profile import SlurmProfile

HERE = LocalProfile(kind="local", name="here")
SLURM = valid(SlurmProfile, {"kind": "slurm", "name": "big", "time": "1h30m", "partition": "main"})
TRAINS = "import torch\nfor step in range(1000):\n    print(step)\n"


def note(folder: Path, text: str = TRAINS, profile: LocalProfile | SlurmProfile = SLURM, **job: object) -> str:
    (folder / "train.py").write_text(text)
    values = {"name": "train", "script": "train.py", **job}
    return note_on_time_limit(valid(Job, values), profile, folder)


def test_a_script_that_writes_nothing_is_told_of_its_limit(tmp_path: Path) -> None:
    assert "train.py saves no checkpoint" in note(tmp_path)
    assert "(1:30:00)" in note(tmp_path)
    assert "(0:01:00)" in note(tmp_path, profile=HERE, resources={"time": "1m"})
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv/pyvenv.cfg").touch()
    (tmp_path / ".venv/torch.py").write_text("torch.save")
    assert note(tmp_path)


@pytest.mark.parametrize(
    "text",
    [
        "torch.save(model, p)",
        "L.Trainer(max_epochs=3).fit(model)",
        "from orchestrator.training import run",
        "open(p, 'w')",
    ],
)
def test_one_that_may_save_is_not(tmp_path: Path, text: str) -> None:
    assert note(tmp_path, TRAINS + text) == ""


def test_nothing_is_said_where_nothing_is_known(tmp_path: Path) -> None:
    assert note(tmp_path, profile=HERE) == ""  # no limit
    assert note(tmp_path, script=None, command=["./train.sh"]) == ""
    (tmp_path / "model").mkdir()
    (tmp_path / "model/io.py").write_text("def keep(): torch.save(1, 'x')")  # what it imports may save
    assert note(tmp_path) == ""
    (tmp_path / "model/io.py").write_text("")
    assert note(tmp_path)
    for number in range(MOST_FILES):
        (tmp_path / f"model/m{number}.py").touch()
    assert note(tmp_path) == ""
    (tmp_path / "train.py").unlink()
    assert note_on_time_limit(Job(name="train", script="gone.py"), SLURM, tmp_path / "none") == ""
