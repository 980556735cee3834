"""What a submit refuses, what is kept of the shell, and how far a tracker has been told."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from orchestrator.errors import UsageError
from orchestrator.runs.store import RunDir
from orchestrator.trackers import progress
from orchestrator.trackers.mlflow import Server, _name
from orchestrator.trackers.progress import Progress


@pytest.mark.parametrize(
    ("address", "said"),
    [
        (None, "needs MLFLOW_TRACKING_URI"), ("", "needs"), ("sqlite:///x.db", "not an http or https address"),
        ("./mlruns", "not an http"), ("http://", "not an http"), ("http://h:x", "not an http"),
        ("http://a b", "not an http"), ("databricks", "not an http"),
    ],
)  # fmt: skip
def test_an_address_that_is_none_is_refused_unsaid(address: str | None, said: str) -> None:
    shell = {} if address is None else {"MLFLOW_TRACKING_URI": address}
    with pytest.raises(UsageError, match=said) as raised:
        progress.hidden_values(["mlflow"], shell, is_supervised_here=True)
    assert not address or address not in str(raised.value)


def test_what_is_kept_of_the_shell() -> None:
    shell = {"MLFLOW_TRACKING_URI": "https://h/x", "MLFLOW_TRACKING_TOKEN": "t", "HOME": "/", "MLFLOW_RUN_ID": "no"}
    kept = progress.hidden_values(["mlflow", "tensorboard"], shell, is_supervised_here=True)
    assert kept == {"MLFLOW_TRACKING_URI": "https://h/x", "MLFLOW_TRACKING_TOKEN": "t"}
    assert progress.hidden_values(["tensorboard"], shell, is_supervised_here=True) == {}


def test_wandb_is_asked_for_where_it_is_to_run() -> None:
    if importlib.util.find_spec("wandb") is None:
        with pytest.raises(UsageError, match="is not installed"):
            progress.hidden_values(["wandb"], {}, is_supervised_here=True)
    assert progress.hidden_values(["wandb"], {}, is_supervised_here=False) == {}


def test_who_we_are_at_a_server_is_not_in_its_address() -> None:
    server = Server.from_variables({"MLFLOW_TRACKING_URI": "https://me:p%40ss@[::1]:5000/mlflow/"})
    assert (server.address, server.authorization) == ("https://[::1]:5000/mlflow", "Basic bWU6cEBzcw==")
    assert "bWU6" not in repr(server)
    named = {"MLFLOW_TRACKING_USERNAME": "me", "MLFLOW_TRACKING_PASSWORD": "p@ss", "MLFLOW_TRACKING_TOKEN": "t"}
    assert Server.from_variables(named).authorization == "Basic bWU6cEBzcw=="  # as MLflow's own client has it
    assert Server.from_variables({"MLFLOW_TRACKING_TOKEN": "t"}).authorization == "Bearer t"


@pytest.mark.parametrize(
    ("name", "taken"),
    [
        ("train/loss", "train/loss"),
        ("a%b\n", "a_b_"),
        ("../x/", "x"),
        ("", "_"),
        ("é", "é"),
        ("a//b", "a/b"),
        ("a/../b/./c", "a/b/c"),
        ("/..", "_"),
        ("..x", "x"),
        ("a:b@c", "a_b_c"),
        ("x" * 999, "x" * 250),
        ("x" * 249 + "/y", "x" * 249),
    ],
)
def test_names_that_a_server_takes(name: str, taken: str) -> None:
    assert _name(name) == taken


def test_progress_that_was_damaged_begins_anew(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "runs/r-1")
    (run.path / "outbox").mkdir(parents=True)
    progress.save_progress(run, "mlflow", Progress(is_begun=True, offset=7))
    assert progress.progress_of(run, "mlflow") == Progress(is_begun=True, offset=7)
    (run.path / "outbox/mlflow.json").write_text("{")
    assert progress.progress_of(run, "mlflow") == Progress()
    (run.path / "outbox/mlflow.json").write_text('{"offset": "7", "id": "x", "more": 1}')
    assert progress.progress_of(run, "mlflow") == Progress(id="x")
