"""What the launcher imports once for all the ranks of its node."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import sys
import time
from typing import Any

from orchestrator.protocol.task import NodeTask


def torch_is_there() -> bool:
    """Return whether this interpreter can import torch."""
    return "torch" in sys.modules or importlib.util.find_spec("torch") is not None


def warm_up(task: NodeTask) -> dict[str, Any]:
    """Import what the ranks will share; the answer is how long it took, or what failed and why."""
    begun, opened_gpu = time.monotonic(), None
    forks_torch = task.launcher == "fork" and torch_is_there()
    names = [*(["torch", "torch.distributed"] if forks_torch else []), *task.warm_imports]
    for name in names:
        try:
            importlib.import_module(name)
        except Exception as error:  # noqa: BLE001 (importing runs anyone's code)
            return {"failed": f"{task.python} can't import {name}: {type(error).__name__}: {error}"}
        if opened_gpu is None and open_gpus():
            opened_gpu = name
    torch = sys.modules.get("torch")
    seconds = round(time.monotonic() - begun, 3)
    return {"seconds": seconds, "torch": torch and str(torch.__version__), "opened_gpu": opened_gpu}


def open_gpus(folder: str = "/proc/self/fd", device: str = "/dev/nvidia") -> list[str]:
    """Return the GPU devices that this process has open: an import that woke CUDA makes forking unsafe."""
    targets = []
    for name in os.listdir(folder):
        with contextlib.suppress(OSError):  # the listing's own descriptor is closed by now
            targets.append(os.readlink(f"{folder}/{name}"))
    return sorted(target for target in targets if target.startswith(device))
