"""The strategies of using several devices, each in a readable file that is imported on demand."""

from importlib import import_module
from typing import cast

from orchestrator.protocol.training_options import STRATEGIES
from orchestrator.training.strategies.base import Setup, Strategy

__all__ = ["Setup", "Strategy", "find"]

_CLASSES = {
    "single": "Single",
    "dp": "Dp",
    "dp-balanced": "DpBalanced",
    "ddp": "Ddp",
    "fsdp": "Fsdp",
    "model-parallel": "ModelParallel",
    "pipeline": "Pipeline",
    "accelerate": "Accelerate",
}
assert tuple(_CLASSES) == STRATEGIES


def find(name: str) -> type[Strategy]:
    """Return the strategy with that name, one of options.STRATEGIES."""
    module = import_module(f"{__name__}.{name.replace('-', '_')}")
    return cast(type[Strategy], getattr(module, _CLASSES[name]))
