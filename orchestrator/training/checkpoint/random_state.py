"""Saves and restores random generators, weights and optimizers, so that a resumed run gives the same results as an
uninterrupted run.
"""

import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from orchestrator.training.errors import CheckpointError

RandomState = dict[str, Any]


def seed_everything(seed: int) -> None:
    """Seed torch on all devices, Python's `random` and, if it is imported, numpy."""
    torch.manual_seed(seed)
    seed_host(seed)


def seed_host(seed: int) -> None:
    """Seed the generators of the CPU: torch's, Python's `random` and, if it is imported, numpy's."""
    torch.default_generator.manual_seed(seed)
    random.seed(seed)
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed(seed % 2**32)


def seed_for(seed: int, step: int, rank: int) -> int:
    """Return a seed for the steps of `rank` from `step` on. The seed differs between ranks and steps, but is the same
    in every start of the run.
    """
    return ((seed * 1_000_003 + step) * 65_537 + rank) % 2**62


def random_state(*devices: torch.device) -> RandomState:
    """Return the states of this process's random generators as tensors and plain values, which torch.load accepts
    with `weights_only`.
    """
    states: RandomState = {"torch": torch.get_rng_state(), "python": random.getstate()}
    for name, device in _generators(devices):
        states[name] = torch.cuda.get_rng_state(device)
    if numpy := sys.modules.get("numpy"):
        kind, keys, *rest = numpy.random.get_state()
        states["numpy"] = [kind, keys.tolist(), *rest]
    return states


def _generators(devices: Sequence[torch.device]) -> list[tuple[str, torch.device]]:
    """Return (name in checkpoints, GPU) for each GPU in `devices`. The names are cuda, cuda1, cuda2, ..."""
    gpus = [device for device in devices if device.type == "cuda"]
    return [("cuda" if number == 0 else f"cuda{number}", device) for number, device in enumerate(gpus)]


def restore_random(states: RandomState, *devices: torch.device) -> None:
    """Restore this process's generators from `states`."""
    torch.set_rng_state(states["torch"])
    version, numbers, gauss = states["python"]
    random.setstate((version, tuple(numbers), gauss))
    for name, device in _generators(devices):
        if name in states:
            torch.cuda.set_rng_state(states[name], device)
    if "numpy" in states and (numpy := sys.modules.get("numpy")):
        numpy.random.set_state(tuple(states["numpy"]))


@contextmanager
def preserved() -> Iterator[None]:
    """Restore the states of the CPU's random generators at the end of the block."""
    before = random_state()
    try:
        yield
    finally:
        restore_random(before)


def load_optimizer(optimizer: torch.optim.Optimizer, saved: Mapping[str, Any]) -> None:
    """Load an optimizer's state, but keep the implementation (fused or foreach) that this run has chosen."""
    ways = ("fused", "foreach")
    groups = [
        {**theirs, **{way: own[way] for way in ways if way in own}}
        for theirs, own in zip(saved["param_groups"], optimizer.param_groups, strict=False)
    ]
    complete = len(groups) == len(saved["param_groups"])  # otherwise torch's own error describes the difference
    optimizer.load_state_dict({**saved, "param_groups": groups} if complete else dict(saved))
    # On CPUs load_state_dict keeps the given tensors themselves. They are mapped from a file, which must be closed.
    for values in optimizer.state.values():
        values |= {key: value.clone() for key, value in values.items() if isinstance(value, Tensor) and value.is_cpu}


def part(contents: Mapping[str, Any], name: str, source: str) -> Any:
    """Return the entry `name` of a checkpoint. If the entry is missing, raises CheckpointError with the name `source`
    of the checkpoint.
    """
    if name not in contents:
        raise CheckpointError(
            f"The checkpoint {source} holds no {name!r}, only {', '.join(sorted(contents)) or 'nothing'}."
        )
    return contents[name]


def load_weights(model: nn.Module, weights: Mapping[str, Any], source: str) -> None:
    """Load weights into `model`. DDP's prefix `module.` is added or removed if necessary. `source` is the checkpoint's
    name in error messages.
    """
    prefixed = any(name.startswith("module.") for name in model.state_dict())
    fitted = {name.removeprefix("module."): value for name, value in weights.items()}
    if prefixed:
        fitted = {f"module.{name}": value for name, value in fitted.items()}
    try:
        model.load_state_dict(fitted)
    except RuntimeError as error:
        reason = " ".join(str(error).split())
        raise CheckpointError(f"The checkpoint {source} does not fit this model: {reason}") from error
