"""What a backend does not do is said once, in words that name the profile's kind."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from orchestrator import backends
from orchestrator.backends import backend_for, backend_of
from orchestrator.backends.base import Backend, Ruling, Sight
from orchestrator.errors import UsageError
from orchestrator.prepare.prepare import Request, plan_for, prepare
from orchestrator.runs.store import RunDir
from tests.profiles import valid_profile

LOCAL = valid_profile({"kind": "local", "name": "here"})


def test_threads_that_ask_at_once_get_one_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each one made would open connections of its own."""
    monkeypatch.setattr(backends, "_made", {})
    began = threading.Barrier(16)

    class Slow:
        def __init__(self) -> None:
            time.sleep(0.02)  # for as long as an import takes

    def ask(_: int) -> Backend:
        began.wait()
        return backend_for("local")

    monkeypatch.setattr(backends, "named", lambda _: Slow)
    with ThreadPoolExecutor(16) as pool:
        assert len(set(pool.map(ask, range(16)))) == 1


@pytest.mark.parametrize(
    ("kind", "abilities"),
    [("local", (False, False)), ("ssh", (True, True)), ("slurm", (False, False)), ("slurm-login", (True, False))],
)
def test_what_each_backend_can_do_besides(kind: str, abilities: tuple[bool, bool]) -> None:
    found = backend_for(kind)
    assert (found.is_remote, found.relaunches) == abilities
    assert (found.pool is not None) == found.is_remote


def test_a_profile_without_machines_has_nothing_to_ask() -> None:
    with pytest.raises(UsageError, match="nodes needs a profile of other machines"):
        backend_of(LOCAL).holdings(LOCAL)
    with pytest.raises(UsageError, match="gc --profile needs an ssh profile") as refused:
        backend_of(LOCAL).collect_garbage(LOCAL, lambda *_: Ruling(True, ""), dry_run=False)
    assert refused.value.hint == "this profile is of kind local: leave --profile out"


def test_a_profile_without_a_scheduler_has_nobody_to_take_its_script(tmp_path: Path) -> None:
    job = tmp_path / "hello.yaml"
    job.write_text("command: [hostname]\n")
    launch = plan_for(tmp_path, prepare(tmp_path, Request(str(job), "local")))
    with pytest.raises(UsageError, match="--check needs a scheduler, and profile local is of kind local"):
        backend_for("local").advice.would_take(launch)
    assert backend_for("local").advice.script(launch) == ""
    assert backend_for("local").look(RunDir(tmp_path), recorded=True) == Sight()
