"""Chooses the values of a search's next trial, and the trials to stop, with optuna and from the search's journal alone.

No optuna study is stored. Each study is rebuilt from the journal, and the trial's number determines the sampler's seed.
So the same journal always gives the same values.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

from orchestrator.errors import StoreError, UsageError
from orchestrator.protocol.metric import Better
from orchestrator.runs.searches import Asked, Dimension, End, Entry, Sampler, Search, Seen, Told, Trial, Value


def check_installed() -> None:
    """Raise UsageError if optuna is not installed."""
    from importlib.util import find_spec

    if find_spec("optuna") is None:
        raise UsageError("a search needs the package optuna, which is not installed", "pip install 'orchrun[search]'")


def ask(search: Search, trials: Iterable[Trial], number: int) -> dict[str, Value]:
    """Return values for a new trial. The sampler chooses them from the results of the given trials."""
    try:
        study = _study(search, _sampler(search, number))
        for trial in trials:
            study.add_trial(_frozen(search, trial))
        asked = study.ask(_distributions(search))
    except (ArithmeticError, TypeError, ValueError) as error:  # the trial fails with this error message
        raise StoreError(
            f"optuna proposed no values for trial {number}: {error}", "submit the job with another search.space"
        ) from error
    return {each.word: each.rounded(asked.params[each.word]) for each in search.space}


class Halving:
    """Asynchronous successive halving (ASHA), which stops bad trials early.

    A rung is a step at which trials are compared. A trial continues after a rung if it is among the best quarter of the
    trials at this rung. `take` gets the journal's entries in order. `stopped` is a dict from each trial that must be
    stopped to the metric value that decided this.

    The first rung is at one hundredth of the number of steps of the first completed trial. Values that were reported
    before the end of that trial are compared at its end. optuna's setting "auto" would ignore these values.
    """

    def __init__(self, search: Search) -> None:
        self._search = search
        self._study: Any = None  # None until the first rung is known
        self._before: list[Entry] = []
        self._numbers: dict[int, int] = {}  # optuna's number of each trial of the search
        self._ended: set[int] = set()
        self.last: dict[int, int] = {}  # the newest step of each trial
        self.stopped: dict[int, Seen] = {}

    def take(self, entry: Entry) -> None:
        """Process the next entry of the journal."""
        if self._study is not None:
            self._take(entry)
            return
        self._before.append(entry)
        if isinstance(entry, Seen):
            self.last[entry.trial] = max(entry.step, self.last.get(entry.trial, -1))
        elif isinstance(entry, Told) and entry.end is End.COMPLETE:
            first_rung = max(1, self.last.get(entry.trial, 0) // 100)
            # optuna requires a sampler, but this study chooses no values
            self._study = _study(self._search, _optuna().samplers.RandomSampler(0), first_rung)
            self.last = {}
            for each in self._before:
                self._take(each)

    def _take(self, entry: Entry) -> None:
        if isinstance(entry, Asked):
            if entry.trial not in self._numbers:
                self._numbers[entry.trial] = len(self._numbers)
                self._study.add_trial(_frozen(self._search, Trial(entry.trial, entry.values)))
        elif entry.trial not in self._numbers or entry.trial in self._ended:
            return
        elif isinstance(entry, Seen):
            self._see(entry)
        else:
            self._ended.add(entry.trial)
            value = entry.value if entry.end is End.COMPLETE else None
            self._study.tell(self._numbers[entry.trial], value, state=_state(entry.end))

    def _see(self, entry: Seen) -> None:
        if entry.step <= self.last.get(entry.trial, -1):
            return
        self.last[entry.trial] = entry.step
        optuna = _optuna()
        frozen = self._study.get_trials(deepcopy=False)[self._numbers[entry.trial]]
        trial = optuna.trial.Trial(self._study, frozen._trial_id)
        trial.report(entry.value, entry.step)
        if trial.should_prune():
            self.stopped.setdefault(entry.trial, entry)


def _optuna() -> Any:
    check_installed()
    try:
        import optuna
    except ImportError as error:
        raise UsageError(f"optuna can't be used: {error}", "pip install 'orchrun[search]'") from error

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna


def _study(search: Search, sampler: Any, first_rung: int = 1) -> Any:
    optuna = _optuna()
    direction = "minimize" if search.better is Better.LOWER else "maximize"
    pruner = optuna.pruners.SuccessiveHalvingPruner(min_resource=first_rung)
    return optuna.create_study(sampler=sampler, direction=direction, pruner=pruner, study_name="search")


def _sampler(search: Search, number: int) -> Any:
    """Return the sampler of one trial. Each trial gets a new sampler with a seed of its own, because equal seeds
    would draw equal values.
    """
    samplers = _optuna().samplers
    seed = random.Random(f"{search.seed}/{number}").getrandbits(32)  # noqa: S311 (nothing secret)
    return samplers.RandomSampler(seed) if search.sampler is Sampler.RANDOM else samplers.TPESampler(seed=seed)


def _distributions(search: Search) -> dict[str, Any]:
    return {each.word: _distribution(each) for each in search.space}


def _distribution(dimension: Dimension) -> Any:
    kinds = _optuna().distributions
    if dimension.low is None or dimension.high is None:
        return kinds.CategoricalDistribution(dimension.choices)
    if dimension.is_whole:
        return kinds.IntDistribution(int(dimension.low), int(dimension.high), log=dimension.is_log)
    return kinds.FloatDistribution(dimension.low, dimension.high, log=dimension.is_log)


def _frozen(search: Search, trial: Trial) -> Any:
    """Return the trial as a FrozenTrial of optuna."""
    return _optuna().trial.create_trial(
        state=_state(trial.end),
        params=dict(trial.values),
        distributions=_distributions(search),
        intermediate_values=dict(trial.seen),
        value=trial.value if trial.end is End.COMPLETE else None,
    )


def _state(end: End | None) -> Any:
    states = _optuna().trial.TrialState
    if end is None:
        return states.RUNNING
    return {End.COMPLETE: states.COMPLETE, End.STOPPED: states.PRUNED, End.FAILED: states.FAIL}[end]
