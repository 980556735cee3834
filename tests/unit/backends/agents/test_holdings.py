"""gc on machines of which one is unwell: the others are tidied, and everything that was done is listed."""

from __future__ import annotations

import pytest

from orchestrator.backends.agents.holdings import collect_garbage
from orchestrator.backends.base import Finding, Ruling
from orchestrator.backends.settings import AgentsSettings
from tests.machines import FakeMachine, FakePool, Health, Told
from tests.unit.profiles import profile_of

RUNS = ("r-222222", "r-333333")
LEFT = {"folder": True, "processes": [], "agent": False}
WELL: dict[str, Told] = {
    "hello": {}, "leftovers": {"runs": dict.fromkeys(RUNS, LEFT)}, "remove": {"removed": True},
    "clean_up": {"host": "", "ended": 0, "survivors": []}, "tidy_cache": {"removed": 0, "freed": 0},
}  # fmt: skip


def collected(second: FakeMachine) -> list[Finding]:
    """Collect the garbage of n1, which is well, and of n2."""
    settings = AgentsSettings.of(profile_of(workdir="/w", hosts=["n1", "n2"]))
    pool, ended = FakePool(FakeMachine("n1", dict(WELL)), second), Ruling(True, "it has ended")
    return collect_garbage(settings, pool, lambda *_: ended, dry_run=False)


def removed(host: str, *runs: str) -> list[Finding]:
    return [Finding("run", f"{host}: /w/runs/{run}", "removed", "it has ended") for run in runs]


@pytest.mark.parametrize("health", [Health.HUNG, Health.SLOW, Health.DEAD])
@pytest.mark.parametrize("since", ["", "leftovers", "clean_up", "remove"])
def test_a_machine_that_does_not_answer_is_listed_and_the_others_are_tidied(health: Health, since: str) -> None:
    found = collected(FakeMachine("n2", dict(WELL), health, since))
    why = "the connection was closed" if health is Health.DEAD else "no answer within 60 s"
    assert found == [*removed("n1", *RUNS), Finding("host", "n2", "kept", f"n2: {why}")]


def test_a_run_that_was_removed_before_the_machine_stopped_answering_is_listed() -> None:
    found = collected(FakeMachine("n2", dict(WELL), Health.HUNG, "tidy_cache"))
    assert found[2:] == [*removed("n2", *RUNS), Finding("host", "n2", "kept", "n2: no answer within 60 s")]


def test_a_full_machine_is_emptied_as_any_other() -> None:
    assert collected(FakeMachine("n2", dict(WELL), Health.FULL)) == [*removed("n1", *RUNS), *removed("n2", *RUNS)]
