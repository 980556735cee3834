"""What is removed and cancelled by several at once, and what is asked before at a terminal."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from orchestrator.outcome.verdict import Verdict
from orchestrator.protocol.files import write_json
from orchestrator.runs.store import RunDir, create_run, retire
from tests.events import event
from tests.local.conftest import Orch
from tests.local.test_runs import SLOW
from tests.terminal import terminal
from tests.unit.protocol.test_checkpoint_dir import commit

DAY = 86400.0


def ended(home: Path, name: str, outcome: str = "succeeded", days: float = 0.0) -> RunDir:
    """A run that ended so long ago."""
    record = {"run_id": name, "name": name[0], "kind": "local", "nnodes": 1, "hosts": ["localhost"],
              "profile_name": "local", "created": 1.0, "world_size": 1}  # fmt: skip
    run = create_run(home, name, record)
    run.append_event(event("submitted"))
    run.write("verdict.json", {**Verdict(outcome).to_json(), "ended": time.time() - days * DAY})
    write_json(run.path / "plan.json", {})
    retire(home, run)
    return run


def there(orch: Orch) -> list[str]:
    return sorted(path.name for path in (orch.home / "runs").iterdir())


def test_rm_chooses_by_state_age_and_number_and_tells_what_would_go(orch: Orch) -> None:
    for name, outcome, days in (
        ("a-1", "failed", 9), ("b-1", "succeeded", 9), ("c-1", "failed", 2), ("d-1", "failed", 1),
        ("e-1", "succeeded", 0),
    ):  # fmt: skip
        ended(orch.home, name, outcome, days)
    create_run(orch.home, "f-1", {"run_id": "f-1", "kind": "local", "nnodes": 1, "hosts": ["localhost"]})
    listed = orch("rm", "--dry-run", "--state", "failed", "--older", "36h")
    assert [line.split()[0] for line in listed.out.splitlines()] == ["RUN", "c-1", "a-1"]
    assert (listed.code, "nothing was removed" in listed.err) == (0, True)
    assert orch("rm", "--dry-run", "--state", "failed", "--older", "20d").out == "no run would be removed\n"
    assert orch("rm", "d", "e", "--state", "succeeded").err == "removed e-1\n"
    assert orch("rm", "--state", "failed", "--older", "5d").err == "removed a-1\n"
    assert orch("rm", "--keep", "1").err == "removed c-1, b-1\n"
    assert there(orch) == ["d-1", "f-1"]
    assert "write it like" in orch("rm", "--older", "long").err
    refused = orch("rm", "d", "f")
    assert (refused.code, "f-1 has not ended" in refused.err, there(orch)) == (2, True, ["d-1", "f-1"])  # all or none


def test_rm_asks_at_a_terminal_and_says_what_is_the_only_copy(orch: Orch, tmp_path: Path) -> None:
    run = ended(orch.home, "a-1")
    commit(run.path / "checkpoints", 3)
    (run.path / "code").mkdir()
    (run.path / "code/best.pt").write_bytes(b"weights")
    asked = ["rm", "a"]
    with terminal(orch.argv(*asked), orch.environment()) as screen:
        assert "1 checkpoint, 1 output file" in screen.until("remove 1 run")
        screen.type("n\n")
        assert (screen.code(), "nothing was removed" in screen.text) == (0, True)
    pulled = orch("pull", "a", "--to", str(tmp_path / "copy"))
    assert pulled.code == 0, pulled.err
    with terminal(orch.argv(*asked), orch.environment()) as screen:
        assert "checkpoint" not in screen.until("remove 1 run")
        screen.type("\x03")
        assert screen.code() == 130
    (tmp_path / "copy/outputs/best.pt").unlink()
    with terminal(orch.argv(*asked), orch.environment()) as screen:
        assert "  1 output file\n" in screen.until("remove 1 run")
        screen.type("y\n")
        assert screen.code() == 0
    assert there(orch) == []
    ended(orch.home, "b-1")
    with terminal(orch.argv("rm", "b", "--yes"), orch.environment()) as screen:
        assert (screen.code(), screen.text) == (0, "removed b-1\n")


def test_several_runs_are_cancelled_and_all_of_them_after_a_question(orch: Orch, project: Callable[..., Path]) -> None:
    job = str(project(slow_py=SLOW, slow_yaml="script: slow.py\n") / "slow.yaml")
    first, second, third = (orch.submit(job, "-p", "local", "--nproc-per-node", "1") for _ in range(3))
    done = orch("cancel", first.run_id, second.run_id, "--now", "--json")
    assert [(each["run_id"], each["state"]) for each in done.json] == [
        (run.run_id, "cancelled") for run in (first, second)
    ]
    with terminal(orch.argv("cancel", "--all"), orch.environment()) as screen:
        assert first.run_id not in screen.until("cancel 1 run?")
        assert third.run_id in screen.text
        screen.type("n\n")
        assert (screen.code(), "nothing was cancelled" in screen.text) == (0, True)
    assert orch("cancel", "--all", "--now").code == 0
    assert third.ending() is not None
    assert "no run is active" in orch("cancel", "--all").err
    assert orch("cancel").code == orch("cancel", "last", "--all").code == 2
