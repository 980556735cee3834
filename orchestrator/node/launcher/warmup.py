"""Imports modules once in the launcher, so that all ranks forked from it share them."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import sys
import time
from collections.abc import Iterator
from typing import Any

from orchestrator.node.system.gpus.devices import gpus
from orchestrator.protocol.task import NodeTask

NVML_CHECK = "PYTORCH_NVML_BASED_CUDA_CHECK"


def needs_torch(task: NodeTask) -> bool:
    """Return whether the job's settings show that every rank needs torch. The program itself is not inspected."""
    program = task.program
    by_module = program.kind == "module" and program.target.startswith(("torch.", "orchestrator.training"))
    return by_module or task.launcher in ("torchrun", "accelerate")


def is_there(module: str) -> bool:
    """Return whether this interpreter can find a top-level module. The module is not imported."""
    try:
        return module in sys.modules or importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):  # a finder refuses the module's name
        return False


def torch_version() -> str:
    """Return the version of this interpreter's torch without importing torch; "" if the version is unknown."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("torch")
    except PackageNotFoundError:
        return ""


def warm_up(task: NodeTask) -> dict[str, Any]:
    """Import the modules that forked ranks will share. Return a dict that describes the result.

    After a success, the dict has the time that the imports took, the version of torch, and `opened_gpu`. If this is not
    None, this import has opened a GPU, and then a forked rank could not use its GPU. After a failure, the dict has only
    `missing`, a module that the ranks need and this interpreter lacks, or `failed`, an error message.
    """
    begun, opened_gpu, has_torch = time.monotonic(), None, is_there("torch")
    if needs_torch(task) and not has_torch:
        return {"missing": "torch"}
    forks = task.launcher == "fork" and task.program.kind != "command"
    names = [*(["torch", "torch.distributed"] if has_torch else []), *task.warm_imports] if forks else []
    with _asking_nvml():
        for name in names:
            try:
                importlib.import_module(name)
            except ModuleNotFoundError as error:
                return {"missing": error.name or name}
            except Exception as error:  # noqa: BLE001 (importing runs anyone's code)
                from orchestrator.node.launcher.rank.missing_module import others_in_words

                words = f"{type(error).__name__}: {error}"
                return {"failed": f"{task.python} can't import {name}: {words}{others_in_words(words)}"}
            if opened_gpu is None and (open_gpus() or (gpus() and is_cuda_broken_by_a_fork())):
                opened_gpu = name
    torch = sys.modules.get("torch")
    seconds = round(time.monotonic() - begun, 3)
    return {"seconds": seconds, "torch": torch and str(torch.__version__), "opened_gpu": opened_gpu}


@contextlib.contextmanager
def _asking_nvml() -> Iterator[None]:
    """Make torch.cuda.is_available() use NVML within the block, because NVML does not initialize CUDA.

    If the job sets torch's variable PYTORCH_NVML_BASED_CUDA_CHECK, the job's value is kept.
    """
    if NVML_CHECK in os.environ:
        yield
        return
    os.environ[NVML_CHECK] = "1"
    try:
        yield
    finally:
        del os.environ[NVML_CHECK]


def open_gpus(folder: str = "/proc/self/fd", devices: tuple[str, ...] = ("/dev/nvidia", "/dev/dxg")) -> list[str]:
    """Return the GPU devices that this process has open. If the list is not empty, the process must not fork ranks."""
    targets = []
    for name in os.listdir(folder):
        with contextlib.suppress(OSError):  # the descriptor by which the folder was listed is closed by now
            targets.append(os.readlink(f"{folder}/{name}"))
    return sorted(target for target in targets if target.startswith(devices))


def is_cuda_broken_by_a_fork() -> bool:
    """Return whether torch would refuse CUDA in a fork of this process. This is tested in a fork."""
    torch = sys.modules.get("torch")
    asks = getattr(getattr(torch, "_C", None), "_cuda_isInBadFork", None)
    if asks is None:  # there is no torch, or torch has no CUDA
        return False
    child = os.fork()
    if child == 0:
        os._exit(int(asks()))
    return os.waitpid(child, 0)[1] != 0
