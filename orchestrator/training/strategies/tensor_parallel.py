"""Tensor parallelism, which splits layers over ranks according to the task's plan. It adds a dimension to the device
mesh of the strategy fsdp.
"""

from fnmatch import fnmatch
from typing import Any

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_module, distribute_tensor
from torch.distributed.tensor.parallel import parallelize_module

from orchestrator.training.data.task import Task
from orchestrator.training.errors import UserError
from orchestrator.training.options import Options


def parallelize(model: nn.Module, mesh: DeviceMesh, task: Task, options: Options) -> None:
    """Split the layers that the task's plan names. Each rank of the mesh keeps the other layers whole.

    Raises UserError if the task has no plan, or if the plan names layers that the model does not have.
    """
    plan = task.plan(options) if task.plan else None
    if not plan:
        raise UserError(
            f"--tensor-ranks splits the layers that the task's plan names, and the task {task.name} has no plan: "
            'write plan(options), which returns {"*.first": ColwiseParallel(), "*.second": RowwiseParallel()}.'
        )
    names = [name for name, _ in model.named_modules()]
    if unknown := [pattern for pattern in plan if not any(fnmatch(name, pattern) for name in names)]:
        raise UserError(f"The plan of the task {task.name} names layers that its model lacks: {', '.join(unknown)}.")
    parallelize_module(model, mesh, dict(plan))
    # An optimizer updates all its weights together, and fails if some are on another mesh.
    for layer in model.modules():
        if any(not isinstance(each, DTensor) for each in layer.parameters(recurse=False)):
            distribute_module(layer, mesh, input_fn=_spread, output_fn=_local)


def _spread(_layer: nn.Module, inputs: Any, mesh: DeviceMesh) -> Any:
    return tuple(DTensor.from_local(each, mesh, [Replicate()]) if _is_plain(each) else each for each in inputs)


def _local(_layer: nn.Module, outputs: Any, _mesh: DeviceMesh) -> Any:
    return outputs.to_local() if isinstance(outputs, DTensor) else outputs


def _is_plain(value: Any) -> bool:
    return isinstance(value, Tensor) and not isinstance(value, DTensor)


def part_of(whole: Tensor, own: DTensor) -> DTensor:
    """Return this rank's part of a whole tensor, which is sharded in the same way as `own`."""
    mesh = own.device_mesh
    local = whole.to(mesh.device_type)
    plain = all(type(each) in (Shard, Replicate) for each in own.placements)
    if plain:
        return distribute_tensor(local, mesh, own.placements, src_data_rank=None)
    # FSDP has split parts that tensor parallelism had already split along the same dimension. So each dimension of the
    # mesh, from the last to the first, takes a part of the remaining part.
    for number in reversed(range(mesh.ndim)):
        along = getattr(own.placements[number], "dim", None)  # an attribute of Shard and of FSDP's own shards
        if along is not None:
            parts = local.tensor_split(_ends(local.shape[along], mesh.size(number)), along)
            local = parts[mesh.get_local_rank(number)]
    return DTensor.from_local(
        local.contiguous(), mesh, own.placements, run_check=False, shape=own.shape, stride=own.stride()
    )


def _ends(length: int, parts: int) -> list[int]:
    """Return the indices at which the parts of a dimension end, except the last part. The sizes are as in torch.chunk,
    but parts that torch.chunk omits are included as empty parts.
    """
    size = -(-length // parts)
    return [min(length, size * number) for number in range(1, parts)]
