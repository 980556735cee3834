"""Modifies a module of the standard library or of torch right after the rank's program has imported it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Callable

Change = Callable[[ModuleType], None]


def after_import(name: str, change: Change) -> None:
    """Call `change` with the named module: at once if it is imported already, else right after its import."""
    if name in sys.modules:
        change(sys.modules[name])
    else:
        sys.meta_path.insert(0, _Finder(name, change))


class _Finder:
    """A finder for sys.meta_path that handles the import of one module once. After the module's code has run, it calls
    the function that modifies the module.
    """

    def __init__(self, name: str, change: Change) -> None:
        self.name, self.change = name, change

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Return the import spec of the module that must be modified, or None for any other module."""
        if name != self.name:
            return None
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                load(module)
                self.change(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
