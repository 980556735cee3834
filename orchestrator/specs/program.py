"""Describes the program that each rank runs, and lists the training strategies that run in a single process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:  # a submission of cached documents must not load pydantic
    from orchestrator.specs.job import Job, Training

MANY_GPUS: Final = ("dp", "dp-balanced", "model-parallel")  # strategies that use several GPUs in one process
ONE_PROCESS: Final = ("single", *MANY_GPUS)
"""Training strategies that use one process with any number of devices."""
WHOLE_BATCH: Final = (*ONE_PROCESS, "pipeline")
"""Strategies in which all ranks work on the same samples."""


def program_of(job: Job) -> tuple[str, str, list[str]]:
    """Return (kind, target, args) of the program that each rank runs; kind is module, script or command."""
    if job.command is not None:
        return "command", job.command[0], [*job.command[1:], *job.args]
    if job.module is not None:
        return "module", job.module, list(job.args)
    if job.script is not None:
        return "script", job.script, list(job.args)
    assert job.training is not None
    return "module", "orchestrator.training", [*_training_args(job.training), *job.args]


def _training_args(training: Training) -> list[str]:
    args = ["--task", training.task]
    for name, value in training.given().items():
        if value is not None and name not in ("task", "options"):
            flag = name.replace("_", "-")
            if isinstance(value, bool):
                args.append(f"--{flag}" if value else f"--no-{flag}")
            else:
                args += [f"--{flag}", str(value)]
    if "--global-batch" not in args:
        args += ["--global-batch", str(training.global_batch)]
    for key, option in training.options.items():
        args += ["--option", f"{key}={str(option).lower() if isinstance(option, bool) else option}"]
    return args
