"""The strategy fsdp. Each rank holds a part of every weight, gradient and optimizer state, and a layer's weights are
gathered on each rank when the layer is computed.
"""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from orchestrator.training.checkpoint import random_state, sharded
from orchestrator.training.data.sampler import Share
from orchestrator.training.data.samples import Tensors
from orchestrator.training.distributed import group
from orchestrator.training.errors import CheckpointError, UserError
from orchestrator.training.strategies import tensor_parallel, weights_from_main
from orchestrator.training.strategies.base import Setup, Strategy
from orchestrator.training.strategies.layers import blocks


class Fsdp(Strategy):
    """Shards each child of the model with FSDP2's `fully_shard`. Without a process group, the bare model is trained."""

    saves_shards = True
    # GradScaler detects overflows only in this rank's part, so ranks would disagree about skipping a step.
    refused: ClassVar[Mapping[str, str]] = {"fp16": "bf16, which needs no scaling"}

    def check(self) -> None:
        super().check()
        world_size, options = self.setup.ranks.world_size, self.setup.options
        for name, size, of in (
            ("--tensor-ranks", options.tensor_ranks, world_size),
            ("--shard-ranks", options.shard_ranks or 1, world_size // options.tensor_ranks),
        ):
            if size > of or of % size:
                raise UserError(f"{name} {size} does not divide the number of ranks, {of}: choose a divisor.")

    @classmethod
    def make(cls, setup: Setup) -> nn.Module:
        if not setup.grouped or group.leads():
            return super().make(setup)
        with weights_from_main.Undrawn():
            return super().make(setup)

    def place(self, model: nn.Module) -> nn.Module:
        if not self.setup.grouped:
            return super().place(model)
        tensors = weights_from_main.whole(model)
        self._cut(model)
        weights_from_main.take(model, tensors, self.setup.device)
        return model

    def _cut(self, model: nn.Module) -> None:
        """Shard the model: replace its weights by this rank's parts."""
        options = self.setup.options
        sizes = _dimensions(self.setup)
        self.mesh = init_device_mesh(self.setup.device.type, tuple(sizes.values()), mesh_dim_names=tuple(sizes))
        if options.tensor_ranks > 1:
            tensor_parallel.parallelize(model, self.mesh["tensor"], self.setup.task, options)
        # The model stays in host memory; each block is moved to the device and sharded at once.
        cut: dict[str, Any] = {"mesh": self._data_mesh(), "reshard_after_forward": options.reshard_after_forward}
        if self._casts(model):
            cut["mp_policy"] = MixedPrecisionPolicy(torch.bfloat16, torch.float32)
        for block in blocks(model):
            fully_shard(block, **cut)
        fully_shard(model, **cut)

    def _data_mesh(self) -> DeviceMesh:
        """Return the device mesh of the data-parallel ranks.

        If there is one copy of the weights, the mesh has one dimension, whose ranks hold the shards of the weights. If
        there are several copies, the mesh has two dimensions: the copies, and the shards of a copy.
        """
        names = tuple(name for name in self.mesh.mesh_dim_names or () if name != "tensor")
        return self.mesh if names == self.mesh.mesh_dim_names else self.mesh[names]

    def _casts(self, model: nn.Module) -> bool:
        """Return whether weights are gathered in bf16.

        Otherwise autocast makes bf16 copies of the weights, and keeps them until the backward pass. A model with
        BatchNorm uses autocast, because BatchNorm needs float32 weights.
        """
        self.casts = self.setup.options.precision in ("bf16", "fp8") and not any(
            isinstance(each, nn.modules.batchnorm._BatchNorm) for each in model.modules()
        )
        return self.casts

    @property
    def counts(self) -> bool:
        """Return whether this rank's loss and outputs count. If several ranks have the same samples, only the first of
        them counts.
        """
        return self.setup.ranks.rank % self.setup.options.tensor_ranks == 0

    def backward(self, data: Tensors, share: Share) -> Tensor:
        loss = super().backward(data, share)
        return loss if self.counts else torch.zeros_like(loss)

    def outputs(self, inputs: list[Tensor]) -> Any:
        return self.network(*inputs).float() if self._is_cast() else super().outputs(inputs)

    def predict(self, inputs: list[Tensor]) -> Any:
        outputs = self.model(*inputs).float() if self._is_cast() else super().predict(inputs)
        return outputs if self.counts else None

    def _is_cast(self) -> bool:
        return self.setup.grouped and self.casts

    def computed(self) -> list[nn.Module]:
        return [*blocks(self.model)]  # separately, as they are gathered

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

    def load_full(self, saved: Mapping[str, Any], source: str) -> None:
        weights, optimizer = (random_state.part(saved, name, source) for name in ("model", "optimizer"))
        own = self.model.state_dict()
        random_state.load_weights(
            self.model, {name: _like(value, own.get(name)) for name, value in weights.items()}, source
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
                    raise CheckpointError(f"The checkpoint {path} does not fit this model: {rest} {list(entry.size)}.")
                targets[name] = weights.pop(name)
            else:
                number, _, key = rest.partition(".")
                empty = torch.empty(entry.size, dtype=entry.properties.dtype)
                targets[name] = states.setdefault(int(number), {})[key] = _like(empty, params.get(int(number)))
        if weights:
            raise CheckpointError(
                f"The checkpoint {path} does not fit this model: it lacks {', '.join(sorted(weights))}."
            )
        sharded.read_into(path, targets)
        random_state.load_optimizer(self.optimizer, {**optimizer, "state": states})

    def _numbered(self) -> dict[int, Tensor]:
        """Return the parameters, keyed by their numbers in the optimizer's state."""
        return dict(enumerate(param for each in self.optimizer.param_groups for param in each["params"]))


@contextmanager
def _unsynchronised(model: nn.Module) -> Iterator[None]:
    if not isinstance(model, FSDPModule):
        yield
        return
    model.set_requires_gradient_sync(False)
    yield
    model.set_requires_gradient_sync(True)


def _whole(value: Any) -> Any:
    """Assemble a whole tensor on rank 0's CPU from all ranks' parts. If the tensor is sharded, all ranks must call
    this.
    """
    if isinstance(value, DTensor):
        value = value.full_tensor()
    return value.cpu() if isinstance(value, Tensor) and group.leads() else value


def _dimensions(setup: Setup) -> dict[str, int]:
    """Return a dict from the name of each dimension of the mesh to its size. The dimensions are copies of the weights,
    parts of a copy, and parts of a layer.
    """
    options, world_size = setup.options, setup.ranks.world_size
    shard = options.shard_ranks or world_size // options.tensor_ranks
    sizes = {"copies": world_size // options.tensor_ranks // shard, "shard": shard, "tensor": options.tensor_ranks}
    return {name: size for name, size in sizes.items() if size > 1 or name == "shard"}


def _like(value: Any, own: Any) -> Any:
    """Return the tensor that replaces `own`. This is this rank's part of the whole tensor if `own` is sharded, and
    otherwise the whole tensor.
    """
    if isinstance(own, DTensor) and isinstance(value, Tensor) and value.dim() and value.shape == own.shape:
        return tensor_parallel.part_of(value, own)
    return value
