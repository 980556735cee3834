"""Heartbeats, resume and a stop at a step boundary for a training script of your own, in three lines.

    from orchestrator.training import run
    ...
    first = run.resume(model=model, optimizer=optimizer)          # 0, or the step to go on from
    for step in range(first, total):
        ...
        run.after_step(step + 1, total, loss, save_every=100, model=model, optimizer=optimizer)

The other functions are the parts of these two, for scripts that need more. Started by something else than orch
they do the same with defaults: checkpoints in ./checkpoints, and no heartbeat.
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
    """A model, optimizer, scheduler, ...: whatever can give and take its state."""

    def state_dict(self) -> Any: ...

    def load_state_dict(self, state_dict: Any, /) -> Any: ...


class _Session:
    """What this process's calls share; made by the first of them."""

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


def is_main() -> bool:
    """Return whether this is global rank 0, the one that prints and writes."""
    return group.rank() == 0


def started_by_orch() -> bool:
    """Return whether orch has started this process; else heartbeats, metrics and the result go nowhere."""
    return bool(_session().places.run_id)


def begin(n: int, total: int | None = None) -> None:
    """Say that `n` steps of `total` were done by earlier starts, so that they do not count for this one's speed."""
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
    """Say that `n` steps of `total` are done; a heartbeat goes out ten times a second at most.

    `loss` may be a tensor: it is read, which waits for the device, only when a heartbeat is due. `samples` is how
    many samples all ranks together take in a step, for the rate.
    """
    session = _session()
    session.meter.count(max(0, n - session.heartbeat.step))
    session.heartbeats.stepped(n)
    epoch = session.heartbeat.epoch if epoch is None else epoch
    if not session.heartbeats.due("train"):
        session.heartbeat = Heartbeat(step=n, total=total, epoch=epoch, phase="train")
        return
    pace = session.meter.rate  # steps a second: what a step holds, only the script knows
    session.heartbeat = Heartbeat(
        step=n,
        total=total,
        epoch=epoch,
        phase="train",
        loss=loss.item() if isinstance(loss, Tensor) else loss,  # float() warns of a tensor with a gradient
        rate=pace * samples if pace and samples else None,
        eta=(total - n) / pace if total is not None and pace else None,
    )
    session.heartbeats.write(session.heartbeat)


class phase:  # noqa: N801 - reads as a verb: run.phase("eval")
    """Say what the process does from now on: start, compile, train, eval, save or done.

    As a context manager it goes back to the phase before at the end of the block.
    """

    def __init__(self, name: str) -> None:
        if name not in PHASES:
            raise ValueError(f"a phase is one of {', '.join(PHASES)}, not {name!r}")
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


def watch_signals() -> None:
    """Catch SIGTERM and SIGUSR2, and keep them from forked workers; the first `resume` or `stop_requested` does it too.

    A script that calls this must ask `stop_requested` (or call `after_step`) at its step boundaries, or it will not
    end on SIGTERM.
    """
    _watch_once()


@functools.cache
def _watch_once() -> None:
    stop.install()
    stop.protect_forks()


def stop_requested() -> bool:
    """Return whether all ranks stop here: true about half a second after a signal, at the same call on every rank.

    Collective: every rank calls it once a step. Save, then `run.leave(n)`.
    """
    watch_signals()
    return _session().agreement()


def save(state: Mapping[str, Any], step: int, *, epoch: int = 0, metric: Mapping[str, float] | None = None) -> None:
    """Save a dict of tensors and plain values as the checkpoint of `step`, on global rank 0; the others do nothing.

    The other ranks may wait for rank 0 in their next step. Their wait does not count as a hang while rank 0 saves.
    If the disk refuses the checkpoint, the reason is printed on stderr, training continues, and earlier checkpoints are
    kept. If the disk refuses the last checkpoint, the run counts as failed.
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
    """Return rank 0's path of the checkpoint to resume from, as ORCH_RESUME says; collective within a group."""
    session = _repaired()
    return path_for_all(session.places, session.report.warn)


def load_latest() -> dict[str, Any] | None:
    """Return what the checkpoint to resume from holds, on the CPU of every rank, or None; collective within a group."""
    loaded = _load()
    if loaded is None:
        return None
    session = _session()
    session.heartbeats.resumed(step_of(loaded.path.name) or 0)
    session.heartbeats.write(session.heartbeat)
    return loaded.state


def _repaired() -> _Session:
    """The session, after what a killed writer has left was put right: a step that it had moved aside is back."""
    session = _session()
    assert session.saver is not None
    return session


def _load() -> Loaded | None:
    session = _repaired()
    return load_for_all(session.places, session.report.warn)


def metric(step: int, **values: float) -> None:
    """Append a line to the run's metrics file, on global rank 0; nothing where ORCH_METRICS_FILE is not set."""
    _session().report.metric("train", step=step, **values)


def result(**values: Any) -> None:
    """Write the run's final result, on global rank 0; nothing where ORCH_RESULT_FILE is not set."""
    _session().report.result(values)


def resume(**objects: Stateful) -> int:
    """Load the checkpoint to resume from into `objects` (model=..., optimizer=...) and return the steps done so far.

    Random generators are restored as well. Call it after the model is on its device; collective within a group.
    """
    watch_signals()
    loaded = _load()
    if loaded is None:
        return 0
    where = str(loaded.path)
    saved = random_state.part(loaded.state, "objects", where)
    for name, target in objects.items():
        contents = random_state.part(saved, name, where)
        if isinstance(target, nn.Module):
            random_state.load_weights(target, contents, where)
        else:
            target.load_state_dict(copy.deepcopy(contents))  # what it keeps of this must not keep the checkpoint's file
    states, done = random_state.part(loaded.state, "random", where), int(random_state.part(loaded.state, "step", where))
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
    """Finish step `n` (counted from 1): heartbeat, save where due, and leave with code 95 where a signal asked to stop.

    Saves `objects` every `save_every` steps, at the last step of `total`, and before a stop; collective. `metric` says
    how good these weights are ({"accuracy": 0.93}): rank 0's is put into the checkpoint, where this call saves one.
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
    """Leave with exit code 95 after a stop at step `n`, whose checkpoint is on the disk; collective."""
    _session().report.say(f"stopped by a signal at step {n}; start again to resume from there")
    phase("done")
    group.barrier()
    group.leave()
    sys.exit(EXIT_REQUEUE)


def _save_objects(n: int, objects: Mapping[str, Stateful], metric: Mapping[str, float] | None) -> None:
    """Save the objects' states together with every rank's random generators; collective.

    All ranks enter `save` together, once every rank has finished the step before, and leave it together. So no rank
    seems to be stalled in its next step while rank 0 writes.
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
    """Return a metric's values as JSON can hold them: a tensor, or a number of numpy, as a float."""
    return {str(name): float(value) for name, value in metric.items()}


def _device() -> torch.device:
    return torch.device("cuda", torch.cuda.current_device()) if _on_cuda() else torch.device("cpu")


def _on_cuda() -> bool:
    """Return whether this script computes on a GPU; asking must not start CUDA in one that does not."""
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]
