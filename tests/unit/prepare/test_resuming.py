"""What a run is given to start from: its format is checked before anything starts, and what is passed on is said."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import get_args

import pytest

from orchestrator.errors import UsageError
from orchestrator.prepare.notes import notes_on_request
from orchestrator.prepare.prepare import Request, prepare
from orchestrator.prepare.resuming import NAMES
from orchestrator.protocol.checkpoints.formats import Format
from orchestrator.specs.border import hints_of
from orchestrator.specs.job import Checkpoint

TRAINING = "training: {task: digits.py}\n"
SCRIPT = "script: train.py\n"


def test_each_format_has_a_name_in_messages_a_value_in_a_job_and_a_row_in_the_page() -> None:
    page = (Path(__file__).parents[3] / "docs" / "checkpoints.md").read_text()
    assert set(NAMES) == set(Format)
    assert set(get_args(hints_of(Checkpoint)["format"])) == {"auto", *Format}
    assert [each for each in Format if f"\n| `{each}` | " not in page] == []


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A code folder with a checkpoint of each of three formats."""
    folder = tmp_path / "project"
    for name in ("out/checkpoint-300", "own/step_00000300"):
        (folder / name).mkdir(parents=True)
    for name in ("train.py", "digits.py", "own/step_00000300/COMMIT"):
        (folder / name).write_text("x")
    for name in ("ckpt.pt", "out/checkpoint-300/optimizer.pt", "own/step_00000300/state.pt"):
        with zipfile.ZipFile(folder / name, "w") as file:
            file.writestr("weights", "x")
    (folder / "out/checkpoint-300/trainer_state.json").write_text(json.dumps({"global_step": 300}))
    monkeypatch.chdir(tmp_path)
    return folder


def notes(project: Path, job: str, resume: str) -> list[str]:
    (project / "job.yaml").write_text(job)
    request = Request(str(project / "job.yaml"), "local", flags={"job.checkpoint.resume": resume})
    found = notes_on_request(prepare(project.parent, request), request)
    return [note for note in found if "resume" in note]


@pytest.mark.parametrize(
    ("resume", "place", "said"),
    [
        ("ckpt.pt", "ckpt.pt", "a file of weights"),
        ("out", "out/checkpoint-300", "the format of Hugging Face's Trainer"),
        ("out/checkpoint-300", "out/checkpoint-300", "the format of Hugging Face's Trainer"),
    ],
)
def test_a_training_is_not_given_the_checkpoint_of_another_program(
    project: Path, resume: str, place: str, said: str
) -> None:
    for path in (resume, str(project / resume)):
        with pytest.raises(UsageError) as raised:
            notes(project, TRAINING, path)
        assert f"{project / place} is {said}, and `training:` loads orch's own format only" in raised.value.message
        assert "ORCH_RESUME_FROM" in raised.value.hint


def test_a_training_loads_its_own_format_beside_others(project: Path) -> None:
    with zipfile.ZipFile(project / "own" / "later.pt", "w") as file:
        file.writestr("weights", "x")
    (note,) = notes(project, TRAINING, "own")
    assert note == (
        f"note: the run resumes from {project}/own/step_00000300 of step 300 (orch's own format), "
        "which the training loads"
    )


@pytest.mark.parametrize(
    ("resume", "words"),
    [
        ("ckpt.pt", "ckpt.pt (a file of weights); its path"),
        ("out", "out/checkpoint-300 of step 300 (the format of Hugging Face's Trainer); its path"),
        ("own", "own/step_00000300 of step 300 (orch's own format); its path"),
    ],
)
def test_a_script_has_to_load_what_it_is_passed(project: Path, resume: str, words: str) -> None:
    (note,) = notes(project, SCRIPT, resume)
    assert words in note
    assert "is passed to every rank in ORCH_RESUME_FROM, and the script has to load the checkpoint" in note


def test_the_format_that_the_job_names_is_the_only_one(project: Path) -> None:
    job = f"{SCRIPT}checkpoint: {{format: lightning}}\n"
    with pytest.raises(UsageError, match=r"Hugging Face's Trainer, and checkpoint\.format is lightning"):
        notes(project, job, "out")


@pytest.mark.parametrize("job", [TRAINING, SCRIPT])
@pytest.mark.parametrize("resume", ["auto", "never", "/not/here", "s3/step_00000300"])
def test_nothing_is_said_of_what_is_not_here(project: Path, job: str, resume: str) -> None:
    assert notes(project, job, resume) == []
