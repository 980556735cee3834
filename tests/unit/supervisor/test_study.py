"""What Optuna answers follows from the journal alone: a supervisor that was killed goes on as if it had not been."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import pytest

from orchestrator.errors import StoreError, UsageError
from orchestrator.protocol.metric import Better
from orchestrator.runs.searches import Asked, Dimension, End, Entry, Sampler, Search, Seen, Stop, Told, trials_of
from orchestrator.supervisor import study

SPACE = (
    Dimension("x", "job.args --x", -10.0, 10.0),
    Dimension("n", "job.env.N", 1, 64, is_log=True, is_whole=True),
    Dimension("kind", "job.env.KIND", choices=("a", "b")),
)
TPE = Search(Sampler.TPE, 16, "loss", Better.LOWER, SPACE, Stop.ASHA)


def searched(search: Search, loss: Callable[[float], float], steps: int = 8) -> list[Entry]:
    """The journal of a search whose trials run one after another."""
    entries: list[Entry] = []
    for number in range(search.trials):
        values = study.ask(search, trials_of(entries), number)
        entries.append(Asked(number, values))
        halving = replayed(search, entries)
        for step in range(1, steps + 1):
            entries.append(Seen(number, step, loss(float(values["x"])) + 1 / step))
            halving.take(entries[-1])
            if number in halving.stopped:
                entries.append(Told(number, End.STOPPED))
                break
        else:
            entries.append(Told(number, End.COMPLETE, loss(float(values["x"]))))
    return entries


def replayed(search: Search, entries: list[Entry]) -> study.Halving:
    halving = study.Halving(search)
    for entry in entries:
        halving.take(entry)
    return halving


def test_after_any_record_the_same_values_are_asked_for_and_the_same_trials_stopped() -> None:
    entries = searched(TPE, lambda x: (x - 3) ** 2)
    stopped = [entry.trial for entry in entries if isinstance(entry, Told) and entry.end is End.STOPPED]
    assert stopped
    for count, entry in enumerate(entries):
        if isinstance(entry, Asked):
            assert study.ask(TPE, trials_of(entries[:count]), entry.trial) == entry.values
            assert all(each.has(entry.values[each.word]) for each in SPACE)
        said = {each.trial for each in entries[: count + 1] if isinstance(each, Told) and each.end is End.STOPPED}
        if isinstance(entry, Told):
            assert set(replayed(TPE, entries[: count + 1]).stopped) == said
    trials = trials_of(entries)
    best = min((trial.value, trial.values["x"]) for trial in trials if trial.value is not None)
    assert best[0] is not None
    assert best[0] < 4.0


def test_random_values_differ_by_trial_and_by_seed() -> None:
    search = replace(TPE, sampler=Sampler.RANDOM)
    drawn = [study.ask(search, [], number) for number in range(4)]
    assert all(one != other for one, other in pairwise(drawn))
    assert drawn[0] == study.ask(search, [], 0) != study.ask(replace(search, seed=1), [], 0)


@pytest.mark.parametrize("better", list(Better))
def test_the_worse_of_two_at_a_rung_is_stopped(better: Better) -> None:
    search, sign = replace(TPE, better=better), 1 if better is Better.LOWER else -1
    point = {"x": 1.0, "n": 2, "kind": "a"}
    said = [Seen(0, step, sign * 5.0) for step in (1, 2, 4, 8)]
    first: list[Entry] = [Asked(0, point), *said, Told(0, End.COMPLETE, sign * 5.0)]  # which says how far trials go
    halving = replayed(search, [*first, Asked(1, point), Seen(1, 1, sign * 1.0), Asked(2, point)])
    assert halving.stopped == {}
    halving.take(Seen(2, 1, sign * 2.0))
    halving.take(Seen(2, 1, sign * 9.0))  # twice the same step
    assert halving.stopped == {2: Seen(2, 1, sign * 2.0)}
    halving.take(Told(2, End.STOPPED))
    halving.take(Seen(2, 4, sign * 2.0))  # on its way when it was stopped
    halving.take(Seen(7, 4, 2.0))  # never asked for
    assert set(halving.stopped) == {2}


def test_those_that_came_before_the_first_rung_was_known_count_at_it() -> None:
    point = {"x": 1.0, "n": 2, "kind": "a"}
    good: list[Entry] = [Asked(0, point), *(Seen(0, step, 1.0) for step in (1, 2, 4, 8))]
    bad: list[Entry] = [Asked(1, point), *(Seen(1, step, 2.0) for step in (1, 2, 4, 8))]
    ended = Told(0, End.COMPLETE, 1.0)
    assert replayed(TPE, [*good, *bad]).stopped == {}
    assert replayed(TPE, [*good, *bad, ended]).stopped.keys() == {1}
    assert replayed(TPE, [*good, ended, *bad]).stopped.keys() == {1}


def test_without_optuna_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UsageError) as error:
        study.ask(TPE, [], 0)
    assert (error.value.message, error.value.hint) == (
        "a search needs the package optuna, which is not installed", "pip install 'orchrun[search]'",
    )  # fmt: skip


def test_an_optuna_that_cannot_be_used_ends_the_trial(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(StoreError, match="optuna proposed no values for trial 3"):
        study.ask(replace(TPE, space=(Dimension("x", "job.args --x", 0, 10**400, is_whole=True),)), [], 3)
    monkeypatch.setitem(sys.modules, "optuna", None)
    monkeypatch.setattr(study, "check_installed", lambda: None)  # half of it is
    with pytest.raises(UsageError, match="optuna can't be used: import of optuna halted"):
        study.ask(TPE, [], 0)
