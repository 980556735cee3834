"""Where to start: the one checkpoint that all ranks load, found by rank 0 and sent to the others.

Rank 0 reads it and the others receive its bytes, so that hosts without a shared file system resume too.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.training.checkpoint import format as checkpoints
from orchestrator.training.distributed import group
from orchestrator.training.errors import CheckpointError, UserError
from orchestrator.training.options import Places

Report = Callable[[str], None]
SHARDED = "sharded"
"""The entry of a state whose tensors lie beside it, as the ranks wrote them."""


@dataclass(frozen=True)
class Loaded:
    """A checkpoint's contents, and rank 0's path to it."""

    state: dict[str, Any]
    path: Path


def find(places: Places, report: Report) -> Path | None:
    """Return the checkpoint to resume from as ORCH_RESUME says, if any; UserError where a given path has none."""
    if places.resume == "never" and places.attempt == 0:
        return None
    run = places.run_id if places.resume == "never" else ""
    own = checkpoints.newest(places.checkpoints, run=run, report=report)
    if own or places.resume in ("auto", "never"):
        return own.path if own else None
    given = Path(places.resume).expanduser()
    if checkpoints.is_checkpoint(given):
        found = checkpoints.check(given)
        if found.problem:
            raise UserError(found.problem)
        return given
    other = checkpoints.newest(given, report=report)
    if other is None:
        raise UserError(f"There is no checkpoint to resume from in {given}.")
    return other.path


def path_for_all(places: Places, report: Report) -> Path | None:
    """Return rank 0's `find` on all ranks, its UserError included; collective."""
    found, problem = None, ""
    if group.leads():
        try:
            found = find(places, report)
        except UserError as error:
            problem = str(error)
    path, problem = group.from_main((None if found is None else str(found), problem))
    if problem:
        raise UserError(problem)
    return path if path is None else Path(path)


def load_for_all(places: Places, report: Report) -> Loaded | None:
    """Load the checkpoint to resume from on all ranks, or None to start afresh; collective."""
    path = path_for_all(places, report)
    if path is None:
        return None
    if not group.is_joined():
        return Loaded(checkpoints.load(path)[0], path)
    content, problem = None, ""
    if group.leads():
        try:
            content, _ = checkpoints.read_verified(path)
        except CheckpointError as error:
            problem = str(error)
    if problem := group.from_main(problem):
        raise CheckpointError(problem)
    received = group.bytes_from_main(content)
    assert received is not None
    return Loaded(checkpoints.decode(received, path), path)


def whole(loaded: Loaded) -> dict[str, Any]:
    """Return a state with "model" and "optimizer" in it, also where the ranks wrote them in parts; collective."""
    if not loaded.state.get(SHARDED):
        return loaded.state
    from orchestrator.training.checkpoint import sharded  # noqa: PLC0415 - DCP is slow to import, and few need it

    model: dict[str, Any] = {}
    optimizer = dict(loaded.state["optimizer"])
    states = {number: dict(values) for number, values in optimizer["state"].items()}
    for name, value in sharded.read_whole(loaded.path).items():
        kind, _, rest = name.partition(".")
        if kind == "model":
            model[rest] = value
        else:
            number, _, key = rest.partition(".")
            states.setdefault(int(number), {})[key] = value
    return {**loaded.state, "model": model, "optimizer": {**optimizer, "state": states}}
