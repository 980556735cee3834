"""The strategy accelerate: Hugging Face Accelerate prepares model and optimizer for the same training loop."""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any, ClassVar

from torch import Tensor, nn

from orchestrator.training.errors import UserError
from orchestrator.training.strategies.base import Setup, Strategy


class Accelerate(Strategy):
    """Trains the model that `Accelerator.prepare` returns: DDP for several ranks, and the bare model for one rank."""

    refused: ClassVar[Mapping[str, str]] = {"fp8": "ddp, or bf16"}

    def __init__(self, setup: Setup, model: nn.Module) -> None:
        try:
            from accelerate import Accelerator
            from accelerate.utils import DistributedDataParallelKwargs
        except ImportError as error:
            raise UserError("The strategy accelerate needs its package: pip install accelerate.") from error
        super().__init__(setup, model)
        ddp = DistributedDataParallelKwargs(gradient_as_bucket_view=setup.options.gradient_as_bucket_view)
        self.accelerator = Accelerator(
            cpu=setup.device.type == "cpu",
            mixed_precision=setup.options.precision if setup.options.precision in ("bf16", "fp16") else "no",
            dynamo_backend="no" if setup.options.compile == "none" else setup.options.compile,
            kwargs_handlers=[ddp],
        )
        self.network, self.optimizer = self.accelerator.prepare(self.model, self.optimizer)
        if self.accelerator.scaler is not None:
            self.scaler = self.accelerator.scaler

    def computed(self) -> list[nn.Module]:
        return []  # Accelerator.prepare compiles the model

    def unsynchronised(self) -> AbstractContextManager[Any]:
        context: AbstractContextManager[Any] = self.accelerator.no_sync(self.network)
        return context

    def outputs(self, inputs: list[Tensor]) -> Any:
        return self.network(*inputs)

    def differentiate(self, loss: Tensor) -> None:
        self.accelerator.backward(loss)

    def step(self) -> None:
        if self.setup.options.clip is not None:
            self.accelerator.clip_grad_norm_(self.model.parameters(), self.setup.options.clip)
        self.optimizer.step()  # with fp16 it scales and skips steps itself

    def predict(self, inputs: list[Tensor]) -> Any:
        return self.model(*inputs)  # prepare() has added autocast to its forward
