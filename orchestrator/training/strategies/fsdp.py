"""fsdp: each rank holds a part of every weight, gradient and optimizer state, and gathers a layer to compute it."""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from orchestrator.training.checkpoint import random_state, sharded
from orchestrator.training.distributed import group
from orchestrator.training.errors import CheckpointError, UserError
from orchestrator.training.strategies.base import Strategy


class Fsdp(Strategy):
    """FSDP2's `fully_shard`, a child of the model at a time; in a plain process without a group the bare model."""

    saves_shards = True

    def check(self) -> None:
        super().check()
        if self.setup.options.precision == "fp16":
            # GradScaler looks for overflows in this rank's part only: ranks would disagree about a step.
            raise UserError("--precision fp16 is not for the strategy fsdp: choose bf16, which needs no scaling.")

    def place(self, model: nn.Module) -> nn.Module:
        model = super().place(model)
        if self.setup.grouped:
            mesh = init_device_mesh(self.setup.device.type, (self.setup.ranks.world_size,))
            for block in blocks(model):
                fully_shard(block, mesh=mesh)
            fully_shard(model, mesh=mesh)
        return model

    def computed(self) -> list[nn.Module]:
        return [*blocks(self.model)]  # apart, as they are gathered

    def unsynchronised(self) -> AbstractContextManager[Any]:
        return _unsynchronised(self.model)

    def own_weights(self) -> Iterator[Tensor]:
        for weight in self.model.parameters():
            yield weight.to_local() if isinstance(weight, DTensor) else weight

    def full_state(self) -> dict[str, Any] | None:
        weights = {name: _whole(value) for name, value in self.model.state_dict().items()}
        optimizer = self.optimizer.state_dict()
        states = {
            number: {key: _whole(value) for key, value in values.items()}
            for number, values in optimizer["state"].items()
        }
        return None if self.setup.ranks.rank else {"model": weights, "optimizer": {**optimizer, "state": states}}

    def load_full(self, saved: Mapping[str, Any], where: str) -> None:
        weights, optimizer = (random_state.part(saved, name, where) for name in ("model", "optimizer"))
        own = self.model.state_dict()
        random_state.load_weights(
            self.model, {name: _like(value, own.get(name)) for name, value in weights.items()}, where
        )
        params = self._numbered()
        states = {
            number: {key: _like(value, params.get(number)) for key, value in values.items()}
            for number, values in optimizer["state"].items()
        }
        random_state.load_optimizer(self.optimizer, {**optimizer, "state": states})

    def shards(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        optimizer = self.optimizer.state_dict()
        tensors, plain = {f"model.{name}": value for name, value in self.model.state_dict().items()}, {}
        for number, values in optimizer["state"].items():
            tensors |= {f"optimizer.{number}.{key}": v for key, v in values.items() if isinstance(v, Tensor)}
            plain[number] = {key: value for key, value in values.items() if not isinstance(value, Tensor)}
        return tensors, {"optimizer": {**optimizer, "state": plain}}

    def load_shards(self, saved: Mapping[str, Any], path: Path) -> None:
        optimizer = random_state.part(saved, "optimizer", str(path))
        params = self._numbered()
        weights = {f"model.{name}": value for name, value in self.model.state_dict().items()}
        states: dict[int, dict[str, Any]] = {number: dict(values) for number, values in optimizer["state"].items()}
        targets: dict[str, Any] = {}
        for name, entry in sharded.index(path).items():
            kind, _, rest = name.partition(".")
            if kind == "model":
                if name not in weights or weights[name].shape != entry.size:
                    raise CheckpointError(f"The checkpoint {path} is of another model: {rest} {list(entry.size)}.")
                targets[name] = weights.pop(name)
            else:
                number, _, key = rest.partition(".")
                empty = torch.empty(entry.size, dtype=entry.properties.dtype)
                targets[name] = states.setdefault(int(number), {})[key] = _like(empty, params.get(int(number)))
        if weights:
            raise CheckpointError(f"The checkpoint {path} is of another model: it lacks {', '.join(sorted(weights))}.")
        sharded.read_into(path, targets)
        random_state.load_optimizer(self.optimizer, {**optimizer, "state": states})

    def _numbered(self) -> dict[int, Tensor]:
        """Return the parameters by the numbers that the optimizer's state goes by."""
        return dict(enumerate(param for each in self.optimizer.param_groups for param in each["params"]))


def blocks(model: nn.Module) -> Iterator[nn.Module]:
    """Yield what is gathered at a time: the children that hold weights, those of a ModuleList one by one."""
    for child in model.children():
        if isinstance(child, nn.ModuleList | nn.ModuleDict):
            yield from blocks(child)
        elif any(True for _ in child.parameters()):
            yield child


@contextmanager
def _unsynchronised(model: nn.Module) -> Iterator[None]:
    if not isinstance(model, FSDPModule):
        yield
        return
    model.set_requires_gradient_sync(False)
    yield
    model.set_requires_gradient_sync(True)


def _whole(value: Any) -> Any:
    """Return a tensor with all ranks' parts of it, on the CPU of rank 0; collective for those that are sharded."""
    if isinstance(value, DTensor):
        value = value.full_tensor()
    return value.cpu() if isinstance(value, Tensor) and group.leads() else value


def _like(value: Any, own: Any) -> Any:
    """Return a whole value in the form of `own`: this rank's part of it where `own` is sharded and as large."""
    if isinstance(own, DTensor) and isinstance(value, Tensor) and value.dim() and value.shape == own.shape:
        local = value.to(own.device_mesh.device_type)
        return distribute_tensor(local, own.device_mesh, own.placements, src_data_rank=None)
    return value
