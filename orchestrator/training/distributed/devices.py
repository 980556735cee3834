"""Chooses the backend of the process group, and the device on which this rank computes."""

import os
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.distributed as dist

from orchestrator.protocol.places.devices import GIVEN, VISIBLE, words_of
from orchestrator.training.distributed.ranks import Ranks
from orchestrator.training.errors import UserError

BOTH = "cpu:gloo,cuda:nccl"
"""torch's name for two backends in one group: gloo for host memory, NCCL for GPU memory."""
BACKENDS = ("auto", "gloo", "nccl", BOTH, "mpi")
ON_GPUS = ("nccl", BOTH)
_NODES = re.compile(r"nvidia\d+|dxg")


@dataclass(frozen=True)
class Choice:
    """The choice of a rank: its backend ("" if there is no process group), its device, and the reason for both."""

    backend: str
    device: torch.device
    reason: str


@dataclass(frozen=True)
class Gpus:
    """The number of GPUs that torch can use (`visible`) and that this machine has (`here`).

    If the machine has GPUs and torch can use none of them, `problem` is the reason.
    """

    visible: int
    here: int
    problem: str = ""


def look(environ: Mapping[str, str] = os.environ, folder: str = "/dev") -> Gpus:
    """Count the GPUs of this machine, and the GPUs that torch can use."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the warnings describe the problem, which is reported if a GPU is needed
        visible = torch.cuda.device_count() if torch.cuda.is_available() else 0
    given = words_of(environ.get(GIVEN, ""))  # may include MIG instances
    shown = environ.get(VISIBLE)
    hidden = shown is not None and not words_of(shown)
    try:
        here = sum(1 for name in os.listdir(folder) if _NODES.fullmatch(name))
    except OSError:
        here = 0
    return Gpus(visible, max(here, visible, len(given)), "" if visible or not here else _problem(hidden))


def _problem(hidden: bool) -> str:
    """Return why torch can't use a GPU, in torch's own words if torch gives a reason."""
    if hidden:
        return "CUDA_VISIBLE_DEVICES hides them"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.cuda.init()  # type: ignore[no-untyped-call]
    except (RuntimeError, AssertionError) as error:
        return (str(error).splitlines() or [type(error).__name__])[0].rstrip(". ")
    return "torch finds none"


def choose(wanted: str, ranks: Ranks, on: str = "auto", gpus: Gpus | None = None) -> Choice:
    """Choose backend and device for ORCH_BACKEND=`wanted` and --device `on`.

    Raises UserError if this machine or torch does not support the request. Also raises UserError if a node with GPUs
    would train on its CPUs, and the user has not requested that.
    """
    gpus = look() if gpus is None else gpus
    if wanted not in BACKENDS:
        raise UserError(f"ORCH_BACKEND must be one of {' | '.join(BACKENDS)}, not {wanted!r}.")
    if wanted == "mpi" and not dist.is_mpi_available():
        raise UserError(
            "This torch was built without MPI: choose ORCH_BACKEND=gloo or nccl, or install a torch that was built "
            "from source with MPI."
        )
    if wanted in ON_GPUS and on == "cpu":
        raise UserError(f"The {wanted} backend needs GPUs, and --device cpu excludes them: choose ORCH_BACKEND=gloo.")
    device = (
        torch.device("cpu")
        if on == "cpu" or wanted == "mpi"
        else _device(ranks, gpus, sharing=wanted == "gloo" and on == "cuda")
    )
    if wanted in ON_GPUS and not (device.type == "cuda" and dist.is_nccl_available()):
        raise UserError(
            f"The {wanted} backend needs a GPU for each of the {ranks.local_world_size} ranks of a node, and this "
            f"process sees {_seen(gpus)}: choose ORCH_BACKEND=gloo and --device cpu to train on CPUs, or start fewer "
            "ranks per node."
        )
    if device.type == "cpu" and (on == "cuda" or (on == "auto" and wanted == "auto" and gpus.here)):
        raise UserError(_no_gpu(ranks, gpus))
    return Choice(_backend(wanted, ranks, device), device, _reason(wanted, on, ranks, device, gpus))


def _device(ranks: Ranks, gpus: Gpus, *, sharing: bool) -> torch.device:
    """Return this rank's own GPU or, with `sharing`, a GPU that it shares with other ranks. Without GPUs, return the
    CPU.
    """
    if gpus.visible >= ranks.local_world_size:
        return torch.device("cuda", ranks.local_rank)
    if gpus.visible == 1 and gpus.here >= ranks.local_world_size:
        # Slurm or torchrun --virtual-local-rank shows each rank only its own GPU.
        return torch.device("cuda", 0)
    if sharing and gpus.visible:
        return torch.device("cuda", ranks.local_rank % gpus.visible)
    return torch.device("cpu")


def _backend(wanted: str, ranks: Ranks, device: torch.device) -> str:
    if not ranks.grouped:
        return ""
    if wanted != "auto":
        return wanted
    return BOTH if device.type == "cuda" and dist.is_nccl_available() else "gloo"


def _reason(wanted: str, on: str, ranks: Ranks, device: torch.device, gpus: Gpus) -> str:
    if not ranks.grouped:
        return "single process"
    if wanted != "auto":
        return "set by ORCH_BACKEND"
    if device.type == "cuda" and not dist.is_nccl_available():
        return "this torch is built without NCCL"
    if on == "cpu":
        return "set by --device"
    return f"{_counted(gpus.visible)} visible for {ranks.local_world_size} local ranks"


def _no_gpu(ranks: Ranks, gpus: Gpus) -> str:
    """Return the error message for a rank that needs a GPU and has none."""
    if not gpus.here:
        return "This machine has no GPU, and --device cuda needs one: leave --device out to train on the CPUs."
    fewer = "" if gpus.visible == 0 else f", or start {gpus.visible} per node"
    return (
        f"This machine has {_counted(gpus.here)}, and this process, one of {ranks.local_world_size} on it, sees "
        f"{_seen(gpus)}: repair that{fewer}, or use --device cpu to train on the CPUs."
    )


def _seen(gpus: Gpus) -> str:
    return f"{gpus.visible} ({gpus.problem})" if gpus.problem else str(gpus.visible)


def _counted(number: int) -> str:
    return f"{number} GPU{'s' * (number != 1)}"
