"""What must hold between a job and its profile, and between a job and its code folder."""

from __future__ import annotations

import difflib
import os
from pathlib import Path
from typing import Final

from orchestrator.runs.code_snapshot import why_never_shipped
from orchestrator.specs.diagnostics import Problem
from orchestrator.specs.job import ONE_PROCESS, WHOLE_BATCH, Job, Training
from orchestrator.specs.profile import AnyProfile, SlurmProfile, SshProfile
from orchestrator.specs.runtimes import GPU_FLAGS
from orchestrator.training.choices import not_taken

MOST_RANKS: Final = 100_000  # a plan names each of them


def world_size(profile: AnyProfile) -> int | None:
    """Return how many ranks the profile asks for; None where the nodes themselves decide."""
    if isinstance(profile.nproc_per_node, tuple):
        per_node: list[int | str] = list(profile.nproc_per_node)
    else:
        per_node = [profile.nproc_per_node] * profile.nodes
    if isinstance(profile, SshProfile):
        own = [host.nproc_per_node for host in profile.hosts[: profile.nodes]]
        per_node = [mine if mine is not None else n for mine, n in zip(own, per_node, strict=True)]
    numbers = [n for n in per_node if isinstance(n, int)]
    return sum(numbers) if len(numbers) == len(per_node) else None


def check(job: Job, profile: AnyProfile) -> list[Problem]:
    """Return what can't work about this job on this profile, each at the job's field."""
    return [
        *_check_ranks(profile), *_check_batch(job, profile), *_check_min_nodes(job, profile), *_check_strategy(job),
        *_check_gpus(job, profile), *_check_runtime(job, profile),
    ]  # fmt: skip


def _check_ranks(profile: AnyProfile) -> list[Problem]:
    world = world_size(profile) or 0
    if world <= MOST_RANKS:
        return []
    return [Problem((), f"profile '{profile.name}' asks for {world} ranks, more than the {MOST_RANKS} that orch plans")]


def _check_batch(job: Job, profile: AnyProfile) -> list[Problem]:
    world = world_size(profile)
    if job.training is None or world is None or job.training.global_batch % world == 0:
        return []
    if job.training.strategy in WHOLE_BATCH:
        return []
    batch = job.training.global_batch
    near = [size for size in (batch // world * world, (batch // world + 1) * world) if size]
    message = (
        f"{batch} samples a step can't be shared equally by the {world} ranks of profile '{profile.name}'; "
        f"use {' or '.join(str(size) for size in near)}"
    )
    return [Problem(("training", "global_batch"), message)]


def _check_min_nodes(job: Job, profile: AnyProfile) -> list[Problem]:
    """Refuse fewer nodes where DistributedSampler would lose its place, which is that of one number of ranks."""
    least = profile.min_nodes if isinstance(profile, SshProfile) else None
    if least in (None, profile.nodes) or job.training is None or job.training.sampler == "exact":
        return []
    message = (
        f"profile '{profile.name}' lets a run go on with {least} of {profile.nodes} nodes (min_nodes), where "
        "DistributedSampler can't keep its place; use sampler: exact, or leave min_nodes out of the profile"
    )
    return [Problem(("training", "sampler"), message)]


def _check_strategy(job: Job) -> list[Problem]:
    """Return options of the training that its strategy would ignore; one with its default's value is none."""
    training = job.training
    if training is None:
        return []
    given = [name for name, each in Training.model_fields.items() if getattr(training, name) != each.default]
    refused = not_taken(training.strategy, given)
    return [
        Problem(("training", name), f"is not for strategy {training.strategy}: {why}") for name, why in refused.items()
    ]


def fit(job: Job, profile: AnyProfile) -> AnyProfile:
    """Return the part of the profile that the job takes: a training in one process takes one rank of one node."""
    if job.training is None or job.training.strategy not in ONE_PROCESS:
        return profile
    part: dict[str, object] = {"nodes": 1, "nproc_per_node": 1}
    if isinstance(profile, SshProfile):
        part["hosts"] = tuple(host.model_copy(update={"nproc_per_node": None}) for host in profile.hosts)
    return profile.model_copy(update=part)


def _check_gpus(job: Job, profile: AnyProfile) -> list[Problem]:
    if job.resources.gpus is None or not isinstance(profile, SlurmProfile) or _asks_gpus(profile):
        return []
    message = (
        f"asks for {job.resources.gpus} GPUs a node, but profile '{profile.name}' asks Slurm for none; "
        f"add 'gpus_per_node: {job.resources.gpus}' to the profile"
    )
    return [Problem(("resources", "gpus"), message)]


def _asks_gpus(profile: SlurmProfile) -> bool:
    options = [profile.gres or "", *(f"{key}={value}" for key, value in profile.sbatch.items())]
    return profile.gpus_per_node is not None or any("gpu" in option.lower() for option in options)


def _check_runtime(job: Job, profile: AnyProfile) -> list[Problem]:
    if job.container is not None and profile.runtime == "none":
        runtimes = "docker, podman, apptainer or pyxis" if profile.kind == "slurm" else "docker, podman or apptainer"
        message = (
            f"the job names a container image, but profile '{profile.name}' has runtime none; "
            f"set 'runtime' in the profile to {runtimes}, or leave the container out"
        )
        return [Problem(("container",), message)]
    if job.container is None and profile.runtime != "none":
        message = (
            f"profile '{profile.name}' runs jobs in {profile.runtime}, but the job names no image; "
            "add 'container: {image: ...}' to the job, or set 'runtime: none' in the profile"
        )
        return [Problem(("container",), message)]
    if profile.runtime == "pyxis" and profile.kind != "slurm":
        message = f"runtime pyxis is a part of Slurm, but profile '{profile.name}' is of kind {profile.kind}"
        return [Problem(("container",), message)]
    ways = GPU_FLAGS.get(profile.runtime, (profile.gpu_flag,))
    if profile.gpu_flag not in ("auto", *ways):
        message = (
            f"profile '{profile.name}' has gpu_flag {profile.gpu_flag}, which {profile.runtime} does not know; "
            f"leave it out, or set it to {' or '.join(ways)}"
        )
        return [Problem(("container",), message)]
    return _check_mounts(job, profile)


def _check_mounts(job: Job, profile: AnyProfile) -> list[Problem]:
    problems = []
    for index, mount in enumerate(job.container.mounts if job.container else ()):
        if not mount.source.startswith(("/", "~/")):
            message = f"'{mount.source}' is a folder of the nodes: write it from the root, or as ~/..."
            problems.append(Problem(("container", "mounts", index), message))
        elif not mount.target.startswith("/"):
            message = f"'{mount.target}' is a folder of the image: write it from the root"
            problems.append(Problem(("container", "mounts", index), message))
        elif "," in mount.source + mount.target and profile.runtime in ("apptainer", "pyxis"):
            message = f"{profile.runtime} takes the comma in '{mount.source}' for the end of a mount; rename the folder"
            problems.append(Problem(("container", "mounts", index), message))
    return problems


def check_code_place(code_dir: Path, job_file: Path, *, allowed: bool) -> list[Problem]:
    """Return what is wrong with shipping this folder for this job: it must be the job's own, or be allowed by the user.

    Its own are the job file's folder, its repository, and, where the folder is called jobs, the one around it.
    """
    if why := why_never_shipped(code_dir):
        return [Problem(("code", "dir"), f"{why}, and is never shipped; put job and code into a folder of their own")]
    own = job_file.resolve().parent
    roots = [own, *([own.parent] if own.name == "jobs" else [])]
    roots += [folder for folder in (own, *own.parents) if (folder / ".git").exists()][:1]
    if allowed or any(code_dir.is_relative_to(root) for root in roots if not why_never_shipped(root)):
        return []
    said = f"{code_dir} lies outside of the job file's folder and repository"
    return [Problem(("code", "dir"), f"{said}; to ship it all the same, add --allow-code-dir")]


def check_code(job: Job, code_dir: Path) -> list[Problem]:
    """Return what the job names and its code folder does not hold."""
    if not code_dir.is_dir():
        what = "is not a folder" if code_dir.exists() else "does not exist"
        return [Problem(("code", "dir"), f"the code folder {code_dir} {what}")]
    if job.script is not None:
        return _check_file(("script",), job.script, code_dir)
    if job.training is not None:
        return _check_file(("training", "task"), job.training.task, code_dir)
    if job.command is not None and job.command[0].startswith(("./", "../")):
        program = code_dir / job.command[0]
        if problems := _check_file(("command", 0), job.command[0], code_dir):
            return problems
        if not os.access(program, os.X_OK):
            return [Problem(("command", 0), f"{program} is not executable; run: chmod +x {program}")]
    return []


def _check_file(path: tuple[str | int, ...], name: str, code_dir: Path) -> list[Problem]:
    if os.path.isabs(name):
        if Path(name).is_relative_to(code_dir):
            inside = Path(name).relative_to(code_dir)
            return [Problem(path, f"write it relative to the code folder: {inside}")]
        return []  # a file of the nodes or of the image, which only they can tell
    if os.path.normpath(name).startswith(".."):
        hint = "set code.dir to a folder that holds it"
        return [Problem(path, f"'{name}' lies outside the code folder {code_dir}, so it is not shipped; {hint}")]
    if (code_dir / name).is_file():
        return []
    if (code_dir / name).is_dir():
        return [Problem(path, f"'{name}' is a folder, not a file")]
    return [Problem(path, f"there is no '{name}' in the code folder {code_dir}{_nearest(name, code_dir)}")]


def _nearest(name: str, folder: Path) -> str:
    """Suggest a file by its name, two levels down at most."""
    try:
        found = [p.relative_to(folder).as_posix() for pattern in ("*", "*/*") for p in folder.glob(pattern)][:2000]
    except OSError:
        return ""
    same = [p for p in found if Path(p).name == Path(name).name]
    close = same or difflib.get_close_matches(name, found, n=1, cutoff=0.6)
    return f"; did you mean '{close[0]}'?" if close else ""
