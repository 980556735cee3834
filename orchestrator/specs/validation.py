"""Checks the rules within a job, and between a job and its profile. This module has no side effects."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from orchestrator.protocol.training_options import not_taken
from orchestrator.specs.documents.problem import Problem
from orchestrator.specs.environment import excess, long_variables
from orchestrator.specs.job import Job
from orchestrator.specs.kinds import OWN, kind_named
from orchestrator.specs.program import ONE_PROCESS, WHOLE_BATCH
from orchestrator.specs.runtimes import GPU_FLAGS

if TYPE_CHECKING:
    from orchestrator.specs.profiles import AnyProfile

MOST_RANKS: Final = 100_000  # limited because a plan lists every rank


def world_size(profile: AnyProfile) -> int | None:
    """Return the number of ranks that the profile requests, or None if the nodes decide it."""
    per_node = kind_named(profile.kind).ranks(profile)
    numbers = [n for n in per_node if isinstance(n, int)]
    return sum(numbers) if len(numbers) == len(per_node) else None


def check(job: Job, profile: AnyProfile) -> list[Problem]:
    """Return a problem for each field of the job that can't work on this profile."""
    return [
        *_check_ranks(profile), *_check_batch(job, profile), *_check_min_nodes(job, profile), *_check_strategy(job),
        *profile.problems(job), *_check_runtime(job, profile), *_check_environment(job),
        *_check_lengths(job, profile), *_check_batch_file(job, profile),
    ]  # fmt: skip


def _check_batch_file(job: Job, profile: AnyProfile) -> list[Problem]:
    """Return a problem if a batch file can't run as it is with this profile."""
    if job.batch is None:
        return []
    asked = kind_named(job.batch.scheduler).scheduler
    if profile.kind != job.batch.scheduler:
        said = f"the file has options of {asked}, and profile '{profile.name}' is of kind {profile.kind}"
        return [Problem(("batch",), f"{said}; name a profile of {asked}, or convert the file: orch init NAME FILE")]
    if profile.runtime != "none":
        said = f"profile '{profile.name}' runs programs in {profile.runtime}, where a file can't start its own ranks"
        return [Problem(("batch",), f"{said}; set runtime: none")]
    return []


def _check_lengths(job: Job, profile: AnyProfile) -> list[Problem]:
    """Return a problem for each variable and argument that is too long for the kernel to pass to a program."""
    where = f"profile '{profile.name}'"
    found = [Problem((), f"{where}: env.{name} {why}") for name, why in long_variables(profile.env)]
    found += [Problem(("env", name), why) for name, why in long_variables(job.env)]
    for field, words in (("command", job.command or ()), ("args", job.args)):
        found += [Problem((field, index), why) for index, word in enumerate(words) if (why := excess(word))]
    options = job.training.options if job.training is not None else {}
    for name, value in options.items():
        if why := excess(f"{name}={value}"):
            found.append(Problem(("training", "options", name), why))
    return found


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
        f"{batch} samples per step can't be shared equally by the {world} ranks of profile '{profile.name}'; "
        f"use {' or '.join(str(size) for size in near)}"
    )
    return [Problem(("training", "global_batch"), message)]


def _check_min_nodes(job: Job, profile: AnyProfile) -> list[Problem]:
    """Return a problem if a job with DistributedSampler sets min_nodes. This sampler can't resume with a different
    number of ranks.
    """
    least = getattr(profile, "min_nodes", None)
    if least in (None, profile.nodes) or job.training is None or job.training.sampler == "exact":
        return []
    message = (
        f"profile '{profile.name}' lets a run go on with {least} of {profile.nodes} nodes (min_nodes), where "
        "DistributedSampler can't keep its place; use sampler: exact, or leave min_nodes out of the profile"
    )
    return [Problem(("training", "sampler"), message)]


def _check_strategy(job: Job) -> list[Problem]:
    """Return a problem for each training option that the strategy would ignore.

    Options with default values are accepted.
    """
    training = job.training
    if training is None:
        return []
    refused = not_taken(training.strategy, list(training.given()))
    return [
        Problem(("training", name), f"is not for strategy {training.strategy}: {why}") for name, why in refused.items()
    ]


def fit(job: Job, profile: AnyProfile) -> AnyProfile:
    """Return the profile, reduced to one rank on one node if the job's training strategy uses a single process, or if
    the job is a batch file, which starts its own ranks.
    """
    if job.batch is None and (job.training is None or job.training.strategy not in ONE_PROCESS):
        return profile
    return profile.with_one_rank(1)


def _check_runtime(job: Job, profile: AnyProfile) -> list[Problem]:
    if job.container is not None and profile.runtime == "none":
        *most, last = kind_named(profile.kind).runtimes
        runtimes = f"{', '.join(most)} or {last}"
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
    if profile.runtime not in ("none", *kind_named(profile.kind).runtimes):
        owners = [kind.scheduler for kind in OWN.values() if profile.runtime in kind.runtimes]
        message = (
            f"runtime {profile.runtime} is a part of {' or '.join(owners)}, but profile '{profile.name}' is of kind "
            f"{profile.kind}"
        )
        return [Problem(("container",), message)]
    ways = GPU_FLAGS.get(profile.runtime, (profile.gpu_flag,))
    if profile.gpu_flag not in ("auto", *ways):
        message = (
            f"profile '{profile.name}' has gpu_flag {profile.gpu_flag}, which {profile.runtime} does not know; "
            f"leave it out, or set it to {' or '.join(ways)}"
        )
        return [Problem(("container",), message)]
    return _check_mounts(job, profile)


def _check_environment(job: Job) -> list[Problem]:
    """Return the problems of the job's `environment` section, such as a lock file for a job with a container image."""
    environment = job.environment
    if environment is None:
        return []
    problems = []
    if job.container is not None:
        message = "the job names a container, whose image is its environment; leave one of the two out"
        problems.append(Problem(("environment",), message))
    for key in ("extras", "groups"):
        if getattr(environment, key) and environment.lock.endswith(".txt"):
            problems.append(
                Problem(("environment", key), f"a requirements file has no {key}; use uv.lock or pylock.toml")
            )
    path = environment.system_packages
    if path is not None and not path.startswith(("/", "~/")):
        message = f"'{path}' is an interpreter of the nodes: write it from the root, or as ~/..."
        problems.append(Problem(("environment", "system_packages"), message))
    return problems


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
