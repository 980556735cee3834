"""The training strategies: ways of using several devices. Each has a file of its own, which is imported on demand."""

from importlib import import_module
from typing import cast

from orchestrator.training.strategies.base import Setup, Strategy

__all__ = ["Setup", "Strategy", "find"]


def find(name: str) -> type[Strategy]:
    """Return the class of a strategy: for `dp-balanced`, the class DpBalanced in dp_balanced.py."""
    module = import_module(f"{__name__}.{name.replace('-', '_')}")
    return cast(type[Strategy], getattr(module, name.title().replace("-", "")))
