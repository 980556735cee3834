"""A function as a job: what travels, what is refused, and what is read afterwards."""

from __future__ import annotations

import functools
import importlib
import io
import json
import pickle
import sys
import threading
import zipfile
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
import torch

from orchestrator.errors import OrchError, UsageError
from orchestrator.operations.submission.launch import results, write_job
from orchestrator.outcome.verdict import NodeState, Verdict
from orchestrator.runs.state import RunState
from orchestrator.runs.store import RunDir
from orchestrator.specs.documents.loader import load
from orchestrator.training.call import write_result

SUCCEEDED = Verdict("succeeded", attempt=1)


def double(number: int) -> int:
    return 2 * number


def test_the_job_holds_all_that_a_rank_needs(tmp_path: Path) -> None:
    loaded = load(write_job(tmp_path, functools.partial(double), (4,)), "local")
    assert (loaded.job.name, loaded.job.module) == ("double", "orchestrator.training.call")
    pickled, library, version = (str(argument) for argument in loaded.job.args)
    assert version == f"3.{sys.version_info.minor}"
    function, arguments = pickle.loads((loaded.code_dir / pickled).read_bytes())  # noqa: S301 (written above)
    assert function(*arguments) == 8
    assert (loaded.code_dir / pickled).stat().st_mode & 0o077 == 0
    with zipfile.ZipFile(io.BytesIO((loaded.code_dir / library).read_bytes())) as archive:
        assert "cloudpickle/cloudpickle.py" in archive.namelist()


def test_any_function_has_a_name_that_a_run_can_have(tmp_path: Path) -> None:
    class Step:
        def __call__(self) -> None: ...

    for number, (function, name) in enumerate(
        ((lambda: None, "lambda"), (Step(), "Step"), (torch.nn.Linear, "Linear"))
    ):
        folder = tmp_path / str(number)
        folder.mkdir()
        job = write_job(folder, function, ())
        assert json.loads(job.read_text())["name"] == name


def test_a_function_that_travels_names_its_file_whatever_cloudpickle_makes_of_that(tmp_path: Path) -> None:
    def outer() -> Any:
        def inner() -> None: ...

        return inner

    write_job(tmp_path, outer, ())
    function, _ = pickle.loads((tmp_path / "code" / "function.pkl").read_bytes())  # noqa: S301 (written above)
    assert function.__code__.co_filename == function().__code__.co_filename == __file__


def test_functions_of_own_modules_travel_and_those_of_installed_ones_do_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "own_model.py").write_text("def scale(x):\n    return 10 * x\n")
    (tmp_path / "here" / "own_train.py").write_text("from own_model import scale\ndef train(x):\n    return scale(x)\n")
    (tmp_path / "job").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.syspath_prepend(str(tmp_path / "here"))
    train: Any = importlib.import_module("own_train").train
    before = cloudpickle.list_registry_pickle_by_value()
    write_job(tmp_path / "job", train, (4, torch.nn.functional.relu))
    assert cloudpickle.list_registry_pickle_by_value() == before
    for name in ("own_train", "own_model"):
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.chdir(tmp_path)
    sys.path.remove(str(tmp_path / "here"))
    data = (tmp_path / "job" / "code" / "function.pkl").read_bytes()
    function, arguments = pickle.loads(data)  # noqa: S301 (written above)
    assert function(arguments[0]) == 40
    assert arguments[1] is torch.nn.functional.relu
    assert b"threshold" not in data  # torch's code stays where it is installed


def test_what_can_not_be_pickled_is_refused_in_a_sentence(tmp_path: Path) -> None:
    lock = threading.Lock()
    with pytest.raises(UsageError, match=r"<lambda> can't be sent: TypeError: cannot pickle '_thread.lock' object"):
        write_job(tmp_path, lambda: lock, ())


def a_run(folder: Path) -> tuple[RunDir, RunState]:
    """A run of three ranks on two nodes, whose second attempt has succeeded."""
    nodes = (NodeState(0, "n1", "ended", (0, 2)), NodeState(1, "n2", "ended", (2, 3)))
    for node, rank in ((0, 0), (0, 1), (1, 2)):
        attempt = folder / "nodes" / str(node) / "attempt_1"
        attempt.mkdir(parents=True, exist_ok=True)
        write_result(attempt, rank, {"rank": rank})
    return RunDir(folder), RunState("it", "it", "lab", 0.0, "succeeded", 1, 3, nodes=nodes, verdict=SUCCEEDED)


def test_results_are_in_the_order_of_the_ranks(tmp_path: Path) -> None:
    assert results(*a_run(tmp_path)) == [{"rank": 0}, {"rank": 1}, {"rank": 2}]


def test_a_result_that_did_not_come_home_is_named(tmp_path: Path) -> None:
    run, state = a_run(tmp_path)
    (tmp_path / "nodes/1/attempt_1/result_2.json").unlink()
    with pytest.raises(OrchError, match=r"the result of rank 2 on node 1 \(n2\) is not in "):
        results(run, state)


@pytest.mark.parametrize("content", [b"", b"{", b"\xff", pickle.dumps(threading.Event, protocol=2)], ids=repr)
@pytest.mark.parametrize("name", ["result_2.json", "result_2.pt"])
def test_a_damaged_result_is_named(tmp_path: Path, name: str, content: bytes) -> None:
    run, state = a_run(tmp_path)
    (tmp_path / "nodes/1/attempt_1" / name).write_bytes(content)
    with pytest.raises(OrchError, match=r"the result of rank 2 in .* can't be read"):
        results(run, state)


def test_tensors_where_there_is_no_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, state = a_run(tmp_path)
    write_result(tmp_path / "nodes/1/attempt_1", 2, torch.ones(1))
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(OrchError, match="the result of rank 2 holds tensors, and this Python has no torch"):
        results(run, state)
