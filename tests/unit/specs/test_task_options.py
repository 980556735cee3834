"""Which options a task may read, by its source alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.specs.task_options import words_of_task

TASK = """
import torch
from orchestrator.training.data import Data, digits
from parts.nets import Net

SHAPE = {"width": 64}

def data(options):
    return digits(options)

def model(options):
    if "deep" in options.extra:
        return Net(options)
    return Net(hidden=int(options.extra.get("hidden", 4)), **{name: options.extra[name] for name in SHAPE})

def optimizer(parameters, options):
    return torch.optim.SGD(parameters, lr=options.lr)
"""
NET = "class Net:\n    def __init__(self, options, dropout=0.1):\n        self.heads = options.extra['heads']\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "nets.py").write_text(NET)
    return tmp_path


def words(folder: Path, text: str) -> frozenset[str] | None:
    (folder / "task.py").write_text(text)
    return words_of_task(folder / "task.py")


def test_its_words_are_those_of_its_own_files(folder: Path) -> None:
    found = words(folder, TASK)
    assert found is not None
    assert {"deep", "hidden", "width", "dropout", "heads", "lr"} <= found
    assert not {"learning_rate", "batch", "depth"} & found


@pytest.mark.parametrize(
    "line",
    [
        "return torch.nn.Linear(**options.extra)",
        "found = options.extra",
        "return {name: value for name, value in options.extra.items()}",
        "return torch.build(options)",
        "return torch.build(given=options)",
        "return [options]",
        "return helper.build(options)\nimport helper",
        "this is no Python",
    ],
)
def test_what_hands_the_options_on_may_read_any(folder: Path, line: str) -> None:
    assert words(folder, TASK.replace("return Net(options)", line)) is None


def test_a_task_that_is_not_there_may_read_any(tmp_path: Path) -> None:
    assert words_of_task(tmp_path / "task.py") is None


def test_a_shipped_task_reads_what_its_text_names() -> None:
    jobs = Path(__file__).parents[3] / "jobs"
    for name, read in {"digits": "dropout", "gpt": "layers", "regression": "hidden", "cifar10": "augment"}.items():
        found = words_of_task(jobs / f"{name}.py")
        assert found is not None, name
        assert read in found
        assert "learning_rate" not in found
