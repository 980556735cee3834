"""Trainings in this very process, one after the other: for what is compared by numbers and takes long by submits."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.gpu.lab import PROGRAMS, Lab, environ

Weights = Mapping[str, Any]


def train(lab: Lab, name: str, *arguments: str, device: str = "", grouped: bool = True, **variables: str) -> Weights:
    """Train programs/mlp.py in a folder of its own, and return the weights of its newest checkpoint, as float64."""
    from orchestrator.training import train as trainer
    from orchestrator.training.checkpoint import format as checkpoints
    from orchestrator.training.checkpoint.resume import Loaded, whole
    from orchestrator.training.options import parse, read_places

    folder = lab.folder / name
    folder.mkdir(parents=True, exist_ok=True)
    places = {"ORCH_CHECKPOINT_DIR": str(folder / "checkpoints"), "ORCH_METRICS_FILE": str(folder / "metrics.jsonl")}
    if grouped:
        places |= {
            "RANK": "0",
            "WORLD_SIZE": "1",
            "LOCAL_RANK": "0",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": free_port(),
        }
    argv = ["--task", str(PROGRAMS / "mlp.py"), "--global-batch", "32", "--device", device or lab.device, *arguments]
    with environ(**places, **variables):
        code = trainer.train(parse(argv), read_places())
    assert code == 0, f"{name} ended with {code}"
    found = checkpoints.newest(folder / "checkpoints")
    assert found is not None, f"{name} has left no checkpoint"
    state = whole(Loaded(checkpoints.load(found.path)[0], found.path))
    return {key: value.double() for key, value in state["model"].items()}


def free_port() -> str:
    """Return a port of loopback that nobody listens at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def distance(one: Weights, other: Weights) -> float:
    """Return the largest difference between two models' weights."""
    assert one.keys() == other.keys(), f"{sorted(one)} and {sorted(other)}"
    return max(float((one[name] - other[name]).abs().max()) for name in one)


def copy_checkpoints(lab: Lab, source: str, target: str) -> None:
    """Begin a training where another has saved."""
    shutil.copytree(lab.folder / source / "checkpoints", lab.folder / target / "checkpoints")


def keep_only(lab: Lab, name: str, step: int) -> None:
    """Remove the checkpoints after a step, so that a training goes on from it."""
    for path in Path(lab.folder / name / "checkpoints").glob("step_*"):
        if int(path.name.split("_")[1]) > step:
            shutil.rmtree(path)


os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # for what is deterministic; read when CUDA is first used
