"""Heartbeats, resume and a clean stop for the user's own training script, in three lines.

    from orchestrator.training import run
    ...
    first = run.resume(model=model, optimizer=optimizer)          # 0, or the step to continue from
    for step in range(first, total):
        ...
        run.after_step(step + 1, total, loss, save_every=100, model=model, optimizer=optimizer)

The other functions are parts of these two, for scripts that need more. If orch has not started the process,
checkpoints are saved in ./checkpoints, and no heartbeat is sent.
"""

import copy
import functools
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, Protocol

import torch
from torch import Tensor, nn

from orchestrator.protocol.checkpoints.checkpoint_dir import Manifest, step_of
from orchestrator.training.checkpoint import random_state
from orchestrator.training.checkpoint.resume import Loaded, load_for_all, path_for_all
from orchestrator.training.checkpoint.saver import Saver
from orchestrator.training.distributed import group, stop
from orchestrator.training.errors import EXIT_REQUEUE
from orchestrator.training.options import read_places
from orchestrator.training.progress.heartbeat import PHASES, Heartbeat, HeartbeatFile
from orchestrator.training.progress.report import Meter, Reporter
from orchestrator.training.together import is_main

__all__ = [
    "EXIT_REQUEUE",
    "after_step",
    "begin",
    "is_main",
    "latest",
    "leave",
    "load_latest",
    "metric",
    "phase",
    "result",
    "resume",
    "save",
    "started_by_orch",
    "step",
    "stop_requested",
    "watch_signals",
]


class Stateful(Protocol):
    """An object with a state, such as a model, optimizer or scheduler."""

    def state_dict(self) -> Any: ...

    def load_state_dict(self, state_dict: Any, /) -> Any: ...


class _Session:
    """The state that all calls in this process share. The first call creates it."""

    def __init__(self) -> None:
        self.places = read_places()
        self.report = Reporter(
            self.places.metrics if self.places.reports_metrics else None,
            self.places.result,
            speaks=group.rank() == 0,
            attempt=self.places.attempt,
        )
        self.heartbeats = HeartbeatFile(self.places.heartbeat)
        self.heartbeat = Heartbeat()
        self.meter = Meter()
        self.agreement = stop.Agreement()

    @functools.cached_property
    def saver(self) -> Saver:
        return Saver(self.places, self.report, self.heartbeats)


@functools.cache
def _session() -> _Session:
    return _Session()


def started_by_orch() -> bool:
    """Return whether orch started this process. Otherwise heartbeats, metrics and the result are not written."""
    return bool(_session().places.run_id)


def begin(n: int, total: int | None = None) -> None:
    """Report that earlier starts did `n` of `total` steps. These steps do not count in the speed of this start."""
    session = _session()
    if n > 0:
        session.heartbeats.resumed(n)
    session.heartbeat = Heartbeat(step=n, total=total)
    session.heartbeats.write(session.heartbeat)
    session.meter.reset()


def step(
    n: int,
    total: int | None = None,
    loss: float | Tensor | None = None,
    *,
    samples: int | None = None,
    epoch: int | None = None,
) -> None:
    """Report that `n` of `total` steps are done. At most ten heartbeats are sent per second.

    `loss` may be a tensor. It is read only for a heartbeat, because reading it waits for the device. `samples` is the
    number of samples per step over all ranks, from which the rate follows.
    """
    session = _session()
    session.meter.count(max(0, n - session.heartbeat.step))
    session.heartbeats.stepped(n)
    epoch = session.heartbeat.epoch if epoch is None else epoch
    if not session.heartbeats.due("train"):
        session.heartbeat = Heartbeat(step=n, total=total, epoch=epoch, phase="train")
        return
    pace = session.meter.rate  # steps per second, because only the script knows what a step contains
    session.heartbeat = Heartbeat(
        step=n,
        total=total,
        epoch=epoch,
        phase="train",
        loss=loss.item() if isinstance(loss, Tensor) else loss,  # float() would warn about a tensor with a gradient
        rate=pace * samples if pace and samples else None,
        eta=(total - n) / pace if total is not None and pace else None,
    )
    session.heartbeats.write(session.heartbeat)


class phase:  # noqa: N801 - reads as a verb: run.phase("eval")
    """Reports the current phase of the process: start, compile, train, eval, save or done.

    As a context manager, it reports the previous phase again at the end of the block.
    """

    def __init__(self, name: str) -> None:
        if name not in PHASES:
            raise ValueError(f"a phase must be one of {', '.join(PHASES)}, not {name!r}")
        self._before = _session().heartbeat
        self._enter(name)

    @staticmethod
    def _enter(name: str) -> None:
        session = _session()
        now = session.heartbeat
        session.heartbeat = Heartbeat(step=now.step, total=now.total, epoch=now.epoch, phase=name)
        session.heartbeats.write(session.heartbeat)
        session.meter.reset()

    def __enter__(self) -> "phase":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._enter(self._before.phase)


@functools.cache
def watch_signals() -> None:
    """Catch SIGTERM, SIGUSR1 and SIGUSR2 in this process, but not in forked workers.

    The first call of `resume` or `stop_requested` also does this. A script that calls `watch_signals` must call
    `stop_requested` or `after_step` after each step. Otherwise SIGTERM does not end the script.
    """
    stop.install()
    stop.protect_forks()


def stop_requested() -> bool:
    """Return whether all ranks must stop after the present step.

    Every rank must call this once per step. All ranks get True at the same call, about half a second after a signal.
    The script then saves a checkpoint and calls `run.leave(n)`.
    """
    watch_signals()
    return _session().agreement()


def save(state: Mapping[str, Any], step: int, *, epoch: int = 0, metric: Mapping[str, float] | None = None) -> None:
    """Save a dict of tensors and plain values as the checkpoint of `step` on global rank 0. Other ranks do nothing.

    The other ranks may wait for rank 0 in their next step, and do not count as hung meanwhile. If the checkpoint can't
    be written, the reason is printed to stderr, training continues, and earlier checkpoints are kept. If the run's last
    checkpoint can't be written, the run counts as failed.
    """
    if not is_main():
        return
    session = _session()
    with phase("save"):
        session.saver.save(
            state,
            Manifest(step=step, epoch=epoch, world_size=group.world_size(), metric=_numbers(metric or {})),
        )


def latest() -> Path | None:
    """Return rank 0's path of the checkpoint to resume from (see ORCH_RESUME), or None if there is none.

    If there is a process group, all ranks must call this.
    """
    session = _repaired()
    return path_for_all(session.places, session.report.warn)


def load_latest() -> dict[str, Any] | None:
    """Return the contents of the checkpoint to resume from, on every rank's CPU, or None if there is none.

    If there is a process group, all ranks must call this.
    """
    loaded = _load()
    if loaded is None:
        return None
    session = _session()
    session.heartbeats.resumed(step_of(loaded.path.name) or 0)
    session.heartbeats.write(session.heartbeat)
    return loaded.state


def _repaired() -> _Session:
    """Return the session. If a killed writer had renamed a checkpoint, the session's saver restores it first."""
    session = _session()
    assert session.saver is not None  # the saver is created here, and cleans its folder at first
    return session


def _load() -> Loaded | None:
    session = _repaired()
    return load_for_all(session.places, session.report.warn)


def metric(step: int, **values: float) -> None:
    """Append a line to the run's metrics file on global rank 0. Does nothing if ORCH_METRICS_FILE is not set."""
    _session().report.metric("train", step=step, **values)


def result(**values: Any) -> None:
    """Write the run's final result on global rank 0. Does nothing if ORCH_RESULT_FILE is not set."""
    _session().report.result(values)


def resume(**objects: Stateful) -> int:
    """Load the checkpoint to resume from into `objects` (model=..., optimizer=...). Return its step, or 0 if there is
    no checkpoint.

    Random generators are restored too. Call this when the model is on its device. If there is a process group, all
    ranks must call this.
    """
    watch_signals()
    loaded = _load()
    if loaded is None:
        return 0
    source = str(loaded.path)
    saved = random_state.part(loaded.state, "objects", source)
    for name, target in objects.items():
        contents = random_state.part(saved, name, source)
        if isinstance(target, nn.Module):
            random_state.load_weights(target, contents, source)
        else:
            # a copy, because the tensors of the checkpoint would keep its file open
            target.load_state_dict(copy.deepcopy(contents))
    states = random_state.part(loaded.state, "random", source)
    done = int(random_state.part(loaded.state, "step", source))
    if len(states) == group.world_size():
        random_state.restore_random(states[group.rank()], _device())
    else:
        random_state.seed_everything(random_state.seed_for(torch.initial_seed(), done, group.rank()))
    _session().saver.last_step = done
    _session().heartbeats.resumed(done)
    begin(done)
    _session().report.say(f"resumed from {loaded.path} at step {done}")
    return done


def after_step(
    n: int,
    total: int | None = None,
    loss: float | Tensor | None = None,
    *,
    samples: int | None = None,
    save_every: int = 0,
    metric: Mapping[str, float] | None = None,
    **objects: Stateful,
) -> None:
    """Finish step `n`, counted from 1: send a heartbeat, save if a save is due, and exit with code 95 after a stop
    signal. All ranks must call this.

    `objects` are saved every `save_every` steps, at the last step, which is `total`, and before a stop. `metric`
    describes the current weights, such as {"accuracy": 0.93}. If this call saves, rank 0's `metric` is stored in the
    checkpoint.
    """
    session = _session()
    step(n, total, loss, samples=samples)
    stopping = stop_requested()
    if stopping or n == total or (save_every and n % save_every == 0):
        _save_objects(n, objects, metric)
    if stopping:
        session.saver.close()
        leave(n)


def leave(n: int) -> NoReturn:
    """Exit with code 95 after a stop at step `n`. All ranks must call this. The checkpoint of this step must have been
    saved.
    """
    _session().report.say(f"stopped by a signal at step {n}; start the training again to resume from there")
    phase("done")
    group.barrier()
    group.leave()
    sys.exit(EXIT_REQUEUE)


def _save_objects(n: int, objects: Mapping[str, Stateful], metric: Mapping[str, float] | None) -> None:
    """Save the objects' states with every rank's random generators. All ranks must call this.

    All ranks are in the phase `save` until rank 0 has written. Otherwise the other ranks would seem to hang in their
    next step.
    """
    if _session().saver.last_step == n:
        return
    _session().saver.last_step = n
    states = group.gathered(random_state.random_state(_device()))
    with phase("save"):
        if states is not None:
            contents = {name: source.state_dict() for name, source in objects.items()}
            save({"step": n, "objects": contents, "random": states}, n, metric=metric)
        group.barrier()


def _numbers(metric: Mapping[str, float]) -> dict[str, float]:
    """Convert a metric's values to floats, because JSON can't store tensors and numpy's numbers."""
    return {str(name): float(value) for name, value in metric.items()}


def _device() -> torch.device:
    """Return the GPU that this script uses, or the CPU if it has used no GPU. This check does not initialize CUDA."""
    is_on_gpu = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return torch.device("cuda", torch.cuda.current_device()) if is_on_gpu else torch.device("cpu")
