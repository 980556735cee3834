"""What a rank of orch.launch may return, how it comes home, and what it refuses."""

from __future__ import annotations

import json
import math
import os
import pickle
import subprocess
import sys
from fractions import Fraction
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
import torch

from orchestrator.training import call
from orchestrator.training.call import ResultError, read_result, write_result
from orchestrator.transport.node_archive import cloudpickle_archive
from tests.patience import PATIENCE


@pytest.mark.parametrize("value", [None, 1, 0.1, "ä\n", True, [], {"a": [1, {"b": None}]}], ids=repr)
def test_json_comes_back_as_it_was(tmp_path: Path, value: Any) -> None:
    assert write_result(tmp_path, 3, value) == tmp_path / "result_3.json"
    assert read_result(tmp_path, 3) == value
    assert [path.name for path in tmp_path.iterdir()] == ["result_3.json"]


def test_tuples_come_back_as_lists_and_numbers_that_are_none_stay() -> None:
    assert call._on_cpu((1, (2,))) == [1, [2]]


def test_a_number_that_is_none(tmp_path: Path) -> None:
    write_result(tmp_path, 0, {"loss": (math.nan, math.inf)})
    loss = read_result(tmp_path, 0)["loss"]
    assert math.isnan(loss[0])
    assert loss[1] == math.inf


def test_tensors_come_back_without_their_graph_and_their_storage(tmp_path: Path) -> None:
    weight = torch.nn.Linear(4, 2).weight
    large = torch.arange(1_000_000)
    write_result(tmp_path, 0, {"weight": weight, "some": (large[5:7], 1), "half": torch.ones(1, dtype=torch.bfloat16)})
    assert (tmp_path / "result_0.pt").stat().st_size < 100_000
    result = read_result(tmp_path, 0)
    assert torch.equal(result["weight"], weight)
    assert not result["weight"].requires_grad
    assert result["some"][0].tolist() == [5, 6]
    assert result["some"][1] == 1
    assert result["half"].dtype == torch.bfloat16


def test_nothing_of_a_rank_is_unpickled(tmp_path: Path) -> None:
    (tmp_path / "result_0.pt").write_bytes(pickle.dumps(Fraction(1, 3), protocol=2))
    with pytest.raises(pickle.UnpicklingError):
        read_result(tmp_path, 0)


def test_no_result(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_result(tmp_path, 0)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (Fraction(1, 3), "returned a fractions.Fraction,"),
        ({"a": [1, {2}]}, "returned a builtins.set at result['a'][1]"),
        ({"a": torch.ones(1), "model": torch.nn.Linear(1, 1)}, "torch.nn.modules.linear.Linear at result['model']"),
        ({"a": {1: 2}}, "write str(1)"),
        (b"bytes", "builtins.bytes"),
    ],
    ids=lambda value: value[-20:] if isinstance(value, str) else "",
)
def test_other_types_are_refused_by_name_and_place(tmp_path: Path, value: Any, words: str) -> None:
    with pytest.raises(ResultError) as caught:
        write_result(tmp_path, 0, value)
    assert words in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_what_is_too_large_is_refused_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call, "MOST_BYTES", 1 << 20)
    with pytest.raises(ResultError, match="takes 2 MiB, and at most 1 MiB"):
        write_result(tmp_path, 0, "x" * (2 << 20))
    assert list(tmp_path.iterdir()) == []


def rank(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The program as a rank without site-packages, and so without cloudpickle, starts it."""
    (folder / "nodes" / "1" / "attempt_2").mkdir(parents=True, exist_ok=True)
    here = {"ORCH_RUN_DIR": str(folder), "ORCH_NODE_RANK": "1", "ORCH_ATTEMPT": "2", "RANK": "5"}
    return subprocess.run(
        [sys.executable, "-S", "-m", "orchestrator.training.call", *arguments],
        capture_output=True, text=True, timeout=PATIENCE, check=False, cwd=folder,
        env={**os.environ, **here, "TORCHELASTIC_ERROR_FILE": str(folder / "error.json"),
             "PYTHONPATH": str(Path(call.__file__).parents[2])},
    )  # fmt: skip


def test_the_function_is_called_where_there_is_no_cloudpickle(tmp_path: Path) -> None:
    factor = 3
    (tmp_path / "function.pkl").write_bytes(cloudpickle.dumps((lambda x: {"x": factor * x}, (7,))))
    (tmp_path / "cloudpickle.zip").write_bytes(cloudpickle_archive())
    done = rank(tmp_path, "function.pkl", "cloudpickle.zip", call.python_version())
    assert (done.returncode, done.stderr) == (0, "")
    assert read_result(tmp_path / "nodes" / "1" / "attempt_2", 5) == {"x": 21}


def test_another_python_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    done = rank(tmp_path, "none.pkl", "none.zip", "3.8")
    said = json.loads((tmp_path / "error.json").read_text())
    assert done.returncode == 93
    assert said["type"] == "PythonVersionError"
    assert f"was sent by Python 3.8, and {sys.executable} here is Python {call.python_version()}" in said["message"]
    assert done.stderr == f"error: {said['message']}\n"
