"""Compiles existing modules with torch.compile, so that the modules and their names in checkpoints stay the same."""

import os
import shlex
import shutil
import sysconfig
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import nn

from orchestrator.training.distributed import group
from orchestrator.training.errors import UserError


def check(backend: str, mode: str, device: torch.device) -> None:
    """Raise UserError on all ranks if any rank's machine can't compile. All ranks must call this."""
    if mode != "default" and backend != "inductor":
        raise UserError(f"--compile-mode {mode} needs --compile inductor: add it, or leave --compile-mode out.")
    if backend != "inductor":
        return
    for rank, lack in enumerate(group.everyones(lacking(device))):
        if lack:
            raise UserError(
                f"Rank {rank} can't compile with inductor: its machine has no {lack}, or leave --compile out."
            )


def lacking(device: torch.device) -> str:
    """Return the name of a program or package that this machine lacks to compile for the device, and how to install it.
    Return "" if nothing is missing.
    """
    if device.type == "cuda":
        return "" if find_spec("triton") else "Triton, which writes the code for GPUs: pip install triton"
    compiler = shlex.split(os.environ.get("CXX") or "g++")[0]
    if shutil.which(compiler) is None:
        return f"C++ compiler {compiler!r}: install g++, name another one in CXX"
    if not Path(sysconfig.get_path("include"), "Python.h").is_file():
        return "Python.h, which the compiled code includes: install python3-dev"
    return ""


def compile_in_place(modules: Sequence[nn.Module], backend: str, mode: str = "default") -> None:
    """Mark each module for compilation at its first call. Do nothing if the backend is "none"."""
    if backend != "none":
        for module in modules:
            module.compile(backend=backend, mode=None if mode == "default" else mode)
