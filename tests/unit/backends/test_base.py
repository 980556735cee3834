"""What a backend does not do is said once, in words that name the profile's kind."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.backends import backend, backend_of
from orchestrator.backends.base import BatchSubmitter, Relauncher, Ruling, Scheduler
from orchestrator.errors import UsageError
from orchestrator.prepare.prepare import Request, plan_for, prepare
from orchestrator.runs.store import RunDir
from orchestrator.specs.profile import PROFILE

LOCAL = PROFILE.validate_python({"kind": "local", "name": "here"})


@pytest.mark.parametrize(
    ("kind", "abilities"),
    [
        ("local", ()),
        ("ssh", (Relauncher,)),
        ("slurm", (Scheduler, BatchSubmitter)),
        ("slurm-login", (Scheduler,)),
    ],
)
def test_what_each_backend_can_do_besides(kind: str, abilities: tuple[type, ...]) -> None:
    found = backend(kind)
    assert tuple(each for each in (Relauncher, Scheduler, BatchSubmitter) if isinstance(found, each)) == abilities


def test_a_profile_without_machines_has_nothing_to_ask() -> None:
    with pytest.raises(UsageError, match="doctor needs an ssh or slurm profile"):
        backend_of(LOCAL).doctor(LOCAL, on_node=False)
    with pytest.raises(UsageError, match="nodes needs an ssh or slurm profile"):
        backend_of(LOCAL).holdings(LOCAL)
    with pytest.raises(UsageError, match="gc --profile needs an ssh profile") as refused:
        backend_of(LOCAL).collect_garbage(LOCAL, lambda *_: Ruling(True, ""), dry_run=False)
    assert refused.value.hint == "this one is of kind local: leave --profile out"


def test_a_profile_without_a_scheduler_has_nobody_to_take_its_script(tmp_path: Path) -> None:
    job = tmp_path / "hello.yaml"
    job.write_text("command: [hostname]\n")
    launch = plan_for(tmp_path, prepare(tmp_path, Request(str(job), "local")))
    with pytest.raises(UsageError, match="--check asks Slurm, and local is a profile of kind local"):
        backend("local").would_take(launch)
    assert backend("local").shared_folder(launch) is None
    assert backend("local").hosts(RunDir(tmp_path)) is None
