"""The training strategies, which are ways of using several devices. Each strategy has its own file, which is
imported only if it is used.
"""

from importlib import import_module
from typing import cast

from orchestrator.training.strategies.base import Setup, Strategy

__all__ = ["Setup", "Strategy", "find"]


def find(name: str) -> type[Strategy]:
    """Return the class of a strategy, for example DpBalanced in dp_balanced.py for the name `dp-balanced`."""
    module = import_module(f"{__name__}.{name.replace('-', '_')}")
    return cast(type[Strategy], getattr(module, name.title().replace("-", "")))
