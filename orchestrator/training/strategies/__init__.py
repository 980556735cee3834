"""The strategies of using several devices, each in a readable file that is imported on demand."""

from importlib import import_module
from typing import cast

from orchestrator.training.strategies.base import Setup, Strategy

__all__ = ["Setup", "Strategy", "find"]


def find(name: str) -> type[Strategy]:
    """Return the strategy with that name: `dp-balanced` is the class DpBalanced in dp_balanced.py."""
    module = import_module(f"{__name__}.{name.replace('-', '_')}")
    return cast(type[Strategy], getattr(module, "".join(map(str.capitalize, name.split("-")))))
