"""Computes the places (GPUs or slots) that each node's ranks need, and divides a machine's GPUs among its nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from orchestrator.errors import BackendError
from orchestrator.protocol.places.devices import VISIBLE, Device, named_by, why_not
from orchestrator.protocol.task import NodeTask

VISIBLE_HINT: Final = f"change {VISIBLE} in the job's `env`, or leave it out"


@dataclass(frozen=True)
class Need:
    """The number of places (GPUs or slots) that a machine's ranks need."""

    count: int = 0
    among: tuple[str, ...] | None = None  # the only places that they may have; None: any


def needs_of(
    tasks: tuple[NodeTask, ...], nodes: Sequence[int], name: str, hello: Mapping[str, Any], slots: int | None
) -> tuple[tuple[NodeTask, ...], Need]:
    """Return the tasks of these nodes, which are on one machine, and the places (GPUs or slots) that they need
    together.

    Several nodes divide the machine's GPUs, and each task gets its number of ranks. If there are fewer GPUs than nodes,
    all ranks compute on the CPU with gloo. Raises BackendError if the job contradicts itself or the machine, or if it
    requires nccl and the machine has too few GPUs.
    """
    mine = tuple(tasks[node] for node in nodes)
    try:
        if len(mine) == 1:
            return mine, need_of(mine[0], hello, slots)
        whole = need_of(replace(mine[0], nproc=None, gpus=None), hello, None)
        if mine[0].gpus is None and whole.count:
            share = max(1, whole.count // len(mine))
            mine = tuple(replace(task, nproc=task.nproc or share) for task in mine)
        counts = [need_of(task, hello, None).count for task in mine]
    except ValueError as error:
        raise BackendError(f"{name}: {error}", VISIBLE_HINT) from error
    if not whole.count or (all(counts) and sum(counts) <= whole.count):
        return mine, Need(sum(counts), whole.among)
    if "nccl" in mine[0].backend:
        asked = sum(task.gpus or task.nproc or 1 for task in mine)
        hint = "lower `nproc_per_node` or `nodes`, or set `backend: gloo`"
        raise BackendError(f"{name}: it has {whole.count} GPUs for {asked} ranks with nccl", hint)
    return tuple(replace(task, backend="gloo", uses_gpus=False, env={**task.env, VISIBLE: ""}) for task in mine), Need()


def need_of(task: NodeTask, hello: Mapping[str, Any], slots: int | None) -> Need:
    """Return the number of GPUs or slots that one node's ranks hold, and the GPUs that they may use. Raises ValueError
    if the job contradicts itself or the machine.

    Ranks that train on the CPU of a machine with GPUs hold no place.
    """
    devices = [Device(**each) for each in hello["devices"]]
    if not devices:
        return Need((task.nproc or slots) if slots else 0)
    asked = task.env.get(VISIBLE)
    if why := why_not(asked, hello["visible"], devices):
        raise ValueError(why)
    usable = named_by(hello["visible"] if asked is None else asked, devices)
    nproc = task.nproc or len(usable)
    count = task.gpus or (len(usable) if task.all_gpus else nproc)
    if task.gpus is not None and asked is not None and usable and task.gpus > len(usable):
        raise ValueError(f"the job requests {task.gpus} GPUs, but its {VISIBLE}={asked} names only {len(usable)}")
    fits = task.uses_gpus and count <= len(usable)
    return Need(count if fits else 0, tuple(each.name for each in usable) if asked is not None else None)


def divided(places: Sequence[str], tasks: Sequence[NodeTask]) -> list[list[str]]:
    """Divide the GPUs or slots that are held on one machine among the nodes of these tasks."""
    if len(tasks) == 1:
        return [list(places)]
    parts, rest = [], list(places)
    for task in tasks:
        count = task.gpus or task.nproc or 0
        parts.append(rest[:count])
        rest = rest[count:]
    return parts
