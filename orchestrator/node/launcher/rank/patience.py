"""Longer time-outs of torch.distributed, so that ranks wait for one of them that somebody debugs."""

from __future__ import annotations

import functools
import inspect
import os
import sys
from collections.abc import Sequence
from datetime import timedelta
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any, Callable

LONG = timedelta(days=7)
MODULE = "torch.distributed.distributed_c10d"
GROUPS = ("init_process_group", "new_group")


def stretch_timeouts() -> None:
    """Give every process group a long time-out, whatever the program asks for; also where torch is imported later."""
    os.environ.setdefault("TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC", str(int(LONG.total_seconds())))
    if MODULE in sys.modules:
        _stretch(sys.modules[MODULE])
    else:
        sys.meta_path.insert(0, _Finder())


def _stretch(module: ModuleType) -> None:
    package = sys.modules.get("torch.distributed")
    for name in GROUPS:
        longer = _longer(getattr(module, name))
        setattr(module, name, longer)
        if hasattr(package, name):  # which has its functions by then
            setattr(package, name, longer)


def _longer(function: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(function)

    @functools.wraps(function)
    def stretched(*args: Any, **kwargs: Any) -> Any:
        given = signature.bind_partial(*args, **kwargs)
        given.arguments["timeout"] = LONG
        return function(*given.args, **given.kwargs)

    return stretched


class _Finder:
    """Finds the one module, and has it changed as soon as it has been loaded."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Return the module's spec, once."""
        if name != MODULE:
            return None
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                load(module)
                _stretch(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
