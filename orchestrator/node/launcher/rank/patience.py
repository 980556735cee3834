"""Raises the timeouts of torch.distributed, so that the other ranks wait while one rank is debugged."""

from __future__ import annotations

import functools
import inspect
import os
import sys
from datetime import timedelta
from types import ModuleType
from typing import Any, Callable

from orchestrator.node.launcher.rank.after_import import after_import

LONG = timedelta(days=7)
MODULE = "torch.distributed.distributed_c10d"
GROUPS = ("init_process_group", "new_group")


def stretch_timeouts() -> None:
    """Give every process group a timeout of 7 days, instead of the timeout that the program requests. This also works
    if torch is imported later.
    """
    os.environ.setdefault("TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC", str(int(LONG.total_seconds())))
    after_import(MODULE, _stretch)


def _stretch(module: ModuleType) -> None:
    package = sys.modules.get("torch.distributed")
    for name in GROUPS:
        longer = _longer(getattr(module, name))
        setattr(module, name, longer)
        if hasattr(package, name):  # the package may have copied the module's functions before
            setattr(package, name, longer)


def _longer(function: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(function)

    @functools.wraps(function)
    def stretched(*args: Any, **kwargs: Any) -> Any:
        given = signature.bind_partial(*args, **kwargs)
        given.arguments["timeout"] = LONG
        return function(*given.args, **given.kwargs)

    return stretched
