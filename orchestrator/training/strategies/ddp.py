"""The strategy ddp. Each rank has the whole model and a share of the batch, and the backward pass averages the
gradients.
"""

from contextlib import AbstractContextManager
from typing import Any

from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

from orchestrator.training.errors import UserError
from orchestrator.training.strategies.base import Strategy

_HOOKS = {"fp16": default_hooks.fp16_compress_hook, "bf16": default_hooks.bf16_compress_hook}


class Ddp(Strategy):
    """Trains with torch's DistributedDataParallel, or with the bare model if there is no process group."""

    def check(self) -> None:
        super().check()
        if self.setup.options.sync_batchnorm and self.setup.device.type != "cuda":
            raise UserError("SyncBatchNorm (--sync-batchnorm) computes on GPUs only, and this run is on the CPU.")
        if self.setup.options.static_graph and self.setup.options.accumulate > 1:
            # DDP learns the graph in its first backward pass, and fails by an assertion if that pass is in no_sync.
            raise UserError("DDP can't do both --static-graph and --accumulate: leave one of them out.")

    def place(self, model: nn.Module) -> nn.Module:
        if self.setup.options.sync_batchnorm:
            model = nn.SyncBatchNorm.convert_sync_batchnorm(model)  # type: ignore[no-untyped-call]
        return super().place(model)

    def wrap(self, model: nn.Module) -> nn.Module:
        if not self.setup.grouped:
            return model
        options = self.setup.options
        network = DistributedDataParallel(
            model,
            # As views, gradients are reduced in place instead of being copied to a bucket and back.
            gradient_as_bucket_view=options.gradient_as_bucket_view,
            static_graph=options.static_graph,
            bucket_cap_mb=options.bucket_cap_mb,
        )
        if options.gradient_compression != "none":
            network.register_comm_hook(None, _HOOKS[options.gradient_compression])
        return network

    def unsynchronised(self) -> AbstractContextManager[Any]:
        if isinstance(self.network, DistributedDataParallel):
            return self.network.no_sync()
        return super().unsynchronised()
