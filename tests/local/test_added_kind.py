"""A package that is installed beside orch adds a kind of profile, with a backend of its own."""

from __future__ import annotations

import json
import os
import sys
from importlib.metadata import EntryPoint, distribution
from pathlib import Path

import pytest

from orchestrator.errors import OrchError
from orchestrator.runs.store import create_run, remove_run
from orchestrator.specs import kinds
from orchestrator.specs.kinds import GROUP, OWN

from .conftest import Orch

PACKAGE = Path(__file__).parent / "added_kind"
PROFILE = "kind: nohup\nnodes: 2\nnproc_per_node: 2\nniceness: 3\n"
SAY = "import os; print('rank', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'], 'nice', os.nice(0), flush=True)"


@pytest.fixture
def installed(tmp_path: Path) -> str:
    """A folder of packages that has the package with its entry point, as pip installs it."""
    folder = tmp_path / "packages"
    folder.mkdir()
    for file in PACKAGE.glob("*.py"):
        (folder / file.name).write_bytes(file.read_bytes())
    info = folder / "orch_nohup-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: orch-nohup\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{GROUP}]\nnohup = orch_nohup_kind:NOHUP\n")
    return str(folder)


def test_a_run_of_an_added_kind_starts_is_shown_and_ends(orch: Orch, tmp_path: Path, installed: str) -> None:
    (tmp_path / "profile.yaml").write_text(PROFILE)
    (tmp_path / "job.yaml").write_text(f'command: [{json.dumps(sys.executable)}, "-c", {json.dumps(SAY)}]\n')
    words = ("submit", str(tmp_path / "job.yaml"), "-p", str(tmp_path / "profile.yaml"))
    added = {"PYTHONPATH": os.pathsep.join([installed, os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)}
    done = orch(*words, "--follow", **added)
    assert done.code == 0, done.err
    said = orch("logs", "last", "--all", **added).out
    assert sorted(line.partition(" ")[2] for line in said.splitlines()) == [
        f"rank {rank} of 4 nice {os.nice(0) + 3}" for rank in range(4)
    ]
    assert orch("status", "last", "--json", **added).json["state"] == "succeeded"
    schema = orch("schema", "profile", **added).json
    assert "NohupProfile" in schema["$defs"]
    wrong = orch(*words, "--set", "profile.niceness=20", "--dry-run", **added)
    assert (wrong.code, "niceness" in wrong.err) == (2, True), wrong.err
    greedy = orch(*words, "--set", "job.resources.cpus=99999", "--dry-run", **added)
    assert (greedy.code, "this machine has" in greedy.err) == (2, True), greedy.err
    gone = orch("status", "last")
    assert (gone.code, "install the package that adds this kind" in gone.err) == (1, True), gone
    without = orch(*words, "--dry-run")
    assert (without.code, "kind: expected one of local, ssh, slurm" in without.err) == (2, True), without.err


def test_a_run_of_an_added_kind_is_cancelled(orch: Orch, tmp_path: Path, installed: str) -> None:
    (tmp_path / "profile.yaml").write_text(PROFILE)
    (tmp_path / "job.yaml").write_text("command: [sleep, '600']\n")
    added = {"PYTHONPATH": os.pathsep.join([installed, os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)}
    run = orch.submit(str(tmp_path / "job.yaml"), "-p", str(tmp_path / "profile.yaml"), **added)
    done = orch("cancel", run.run_id, "--now", "--json", **added)
    assert done.code == 0, done.err
    assert orch("status", run.run_id, "--json", **added).json["state"] == "cancelled"


def test_orchs_own_kinds_are_entry_points_too() -> None:
    declared = {point.name: point for point in distribution("orchrun").entry_points if point.group == GROUP}
    assert {name: point.load() for name, point in declared.items()} == dict(OWN)


def test_a_package_that_can_not_be_loaded_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = EntryPoint("broken", "no_such_module:KIND", GROUP)
    monkeypatch.setattr("importlib.metadata.entry_points", lambda **_: [broken])
    with pytest.raises(OrchError, match="profiles of kind broken can't be used: no_such_module:KIND can't be loaded"):
        kinds.find("broken")


def test_a_run_whose_package_is_broken_hides_no_other_run(orch: Orch, tmp_path: Path, installed: str) -> None:
    _, theirs = (
        create_run(orch.home, name, {"run_id": name, "kind": kind, "nnodes": 1, "hosts": ["localhost"]})
        for name, kind in (("a-222222", "local"), ("b-333333", "nohup"))
    )
    (Path(installed) / "orch_nohup_kind.py").write_text("import no_such_module\n")
    shown = orch("status", PYTHONPATH=installed)
    assert "a-222222" in shown.out
    assert "can't be loaded: No module named 'no_such_module'" in shown.out + shown.err
    remove_run(orch.home, theirs)  # nothing here can end it
