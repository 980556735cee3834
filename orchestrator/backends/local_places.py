"""The GPUs of this machine that a local run's nodes hold: each node a part of its own, of which it knows alone."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from orchestrator.backends.places.leases import VISIBLE_HINT, leased, need_of
from orchestrator.backends.places.waiting import Need, Waiting
from orchestrator.backends.settings import SshSettings
from orchestrator.errors import BackendError
from orchestrator.protocol.places.devices import VISIBLE, shown
from orchestrator.protocol.task import NodeTask
from orchestrator.runs.store import RunDir
from orchestrator.transport.pool import ConnectionPool

HERE: Final = ConnectionPool()  # its only machine is this one
Held = tuple[tuple[NodeTask, ...], Mapping[int, list[int]]]


def waiting_here(run: RunDir) -> Waiting | None:
    """Return what a run waits for on this machine; None for one that is in no queue."""
    return Waiting.recorded(HERE, run)


@contextlib.contextmanager
def leased_here(run: RunDir, profile: Mapping[str, Any], tasks: tuple[NodeTask, ...], *, began: bool) -> Iterator[Held]:
    """Yield the tasks, which name each node's GPUs, and the descriptors that hold them; none without GPUs.

    PlacesTakenError for a run that was put into the queue for them.
    """
    from orchestrator.node.server.leases import hand_over  # noqa: PLC0415 (only a submit needs it)

    settings = SshSettings.of(profile)
    tasks, need = divided(tasks, _hello()) if settings.leases else (tasks, Need())
    hosts = dict(enumerate(settings.hosts[:1]))
    with leased(HERE, run, settings, hosts, tasks[0].start, {0: need}, began=began) as found:
        sockets = hand_over(run.run_id, found[0])
        try:
            parts = _parts(tasks, found[0])
            yield (
                tuple(replace(task, env={**task.env, **shown(part)}) for task, part in zip(tasks, parts, strict=True)),
                {node: [each.fileno() for name in part for each in sockets[name]] for node, part in enumerate(parts)},
            )
        finally:
            for each in (each for taken in sockets.values() for each in taken):
                each.close()  # the agents have their own by now


def divided(tasks: tuple[NodeTask, ...], hello: Mapping[str, Any]) -> tuple[tuple[NodeTask, ...], Need]:
    """Return the tasks, told how many ranks each node has, and what they need together of this machine's GPUs.

    Nodes that don't all find GPUs compute on the CPU, over gloo; BackendError where they are told to use nccl.
    """
    try:
        whole = need_of(replace(tasks[0], nproc=None, gpus=None), hello, None)
        if len(tasks) > 1 and tasks[0].gpus is None:
            share = max(1, whole.count // len(tasks))
            tasks = tuple(replace(task, nproc=task.nproc or share) for task in tasks) if whole.count else tasks
        needs = [need_of(task, hello, None) for task in tasks]
    except ValueError as error:
        raise BackendError(f"this machine: {error}", VISIBLE_HINT) from error
    counts = [need.count for need in needs]
    if len(tasks) == 1 or not whole.count or (all(counts) and sum(counts) <= whole.count):
        return tasks, Need(sum(counts), whole.among)
    if "nccl" in tasks[0].backend:
        asked = sum(task.gpus or task.nproc or 1 for task in tasks)
        hint = "lower nproc_per_node or nodes, or set backend: gloo"
        raise BackendError(f"this machine: it has {whole.count} GPUs for {asked} ranks with nccl", hint)
    on_cpu = tuple(replace(task, backend="gloo", uses_gpus=False, env={**task.env, VISIBLE: ""}) for task in tasks)
    return on_cpu, Need()


def _hello() -> dict[str, Any]:
    from orchestrator.node.system.gpus.devices import machine_devices  # noqa: PLC0415 (as above)

    return {"devices": [each._asdict() for each in machine_devices()], "visible": os.environ.get(VISIBLE)}


def _parts(tasks: tuple[NodeTask, ...], names: list[str]) -> list[list[str]]:
    """Return the part of each node: as many as its ranks are, or as they share; of one node all."""
    if len(tasks) == 1:
        return [names]
    parts, rest = [], list(names)
    for task in tasks:
        count = min(task.gpus or task.nproc or 0, len(rest))
        parts.append(rest[:count])
        rest = rest[count:]
    return parts
