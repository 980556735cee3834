"""A request to submit becomes a Prepared: all that can be read and checked before anything is written or started."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator import holding, notify
from orchestrator.backends import backend, kind_of
from orchestrator.errors import UsageError
from orchestrator.store import RunDir, find_run
from orchestrator.sweeps import find_sweep

if TYPE_CHECKING:  # what only looks at runs must not wait for pydantic
    from orchestrator.environment import Environment
    from orchestrator.load import Loaded
    from orchestrator.plan import LaunchPlan, Place
    from orchestrator.profile import AnyProfile

DRY_RUN_ID = "dryrun"


@dataclass(frozen=True)
class Request:
    """What the user asked to submit or to plan."""

    job: str
    profile: str
    sets: tuple[str, ...] = ()
    flags: dict[str, Any] = field(default_factory=dict)
    env: tuple[str, ...] = ()
    resume: str | None = None
    rehearse: bool = False
    waits: bool = False  # for GPUs that others hold
    again: str | None = None  # the run to repeat; `job` is then empty, and `profile` where it stays the same
    after: str | None = None  # RUN[:ok|:any], or SWEEP


@dataclass(frozen=True)
class Prepared:
    """A request that has been read and checked: nothing is written or started yet."""

    loaded: Loaded
    profile: AnyProfile
    environment: Environment
    rehearsed: bool
    waits: bool = False
    given: tuple[str, ...] = ()  # the names of --env: `A=` had a value, `A` took the shell's
    repeats: RunDir | None = None
    hidden: dict[str, str] = field(default_factory=dict, repr=False)  # of notify: what must not be shown
    after: dict[str, str] | None = None  # the run or sweep to wait for; `if`: ok or any


def prepare(root: Path, request: Request) -> Prepared:
    """Read and check everything that can be checked before anything is written; SpecError or UsageError otherwise."""
    from orchestrator.environment import parse_env_options, resolve  # noqa: PLC0415 (loads pydantic)
    from orchestrator.load import load  # noqa: PLC0415 (loads pydantic and ruamel)
    from orchestrator.plan import rehearsal  # noqa: PLC0415 (loads pydantic)

    flags = dict(request.flags)
    if request.resume is not None:
        flags["job.checkpoint.resume"] = _checkpoints_of(find_run(root, request.resume))
    options, repeats, rehearsed = request.env, None, request.rehearse
    if request.again is not None:
        from orchestrator import repeat  # noqa: PLC0415 (loads pydantic)

        repeats = find_run(root, request.again)
        loaded = repeat.load_again(repeats, request.profile, request.sets, flags)
        options = (*repeat.env_options(repeats), *request.env)
        rehearsed = rehearsed or (not request.profile and repeat.was_rehearsal(repeats))
    else:
        loaded = load(request.job, request.profile, sets=request.sets, flags=flags)
    environment = resolve(loaded.job, os.environ, parse_env_options(options, os.environ))
    profile = rehearsal(loaded.profile) if request.rehearse else loaded.profile
    given = dict.fromkeys("".join(option.partition("=")[:2]) for option in options)
    shell = {**os.environ, **environment.env, **environment.secrets}
    hidden = notify.hidden_values(loaded.job.model_dump(), shell)
    after = _after(root, request.after) if request.after is not None else None
    return Prepared(loaded, profile, environment, rehearsed, request.waits, tuple(given), repeats, hidden, after)


def _after(root: Path, text: str) -> dict[str, str] | None:
    """What `--after NAME[:ok|:any]` asks for; None where it has come already, UsageError where it can't come."""
    name, colon, wants = text.rpartition(":")
    if not colon or wants not in ("ok", "any"):
        name, wants = text, "ok"
    after = {"run": find_sweep(root, name) or find_run(root, name).run_id, "if": wants}
    wait = holding.wait_of(root, after)
    if wait is not None and wait.is_vain:
        raise UsageError(f"--after {text}: {wait.reason}", f"to start however it ended: --after {name}:any")
    return after if wait is not None else None


def _checkpoints_of(run: RunDir) -> str:
    """The folder of another run's checkpoints; UsageError when there is nothing to go on from."""
    from orchestrator.checkpoints import checkpoint_folder  # noqa: PLC0415 (only a submit needs it)

    folder = checkpoint_folder(run)
    if not any(folder.glob("step_*/COMMIT")):
        raise UsageError(
            f"run {run.run_id} left no checkpoint in {folder}", "submit without --resume, or name another run"
        )
    return str(folder)


def plan_for(root: Path, prepared: Prepared, run_id: str | None = None) -> LaunchPlan:
    """The launch plan of a request; for a dry run under an id that no run ever has."""
    from orchestrator.plan import plan  # noqa: PLC0415 (loads pydantic)

    run_id = run_id or f"{prepared.loaded.job.name}-{DRY_RUN_ID}"
    place = _place(RunDir(root / "runs" / run_id), prepared.profile)
    return plan(prepared.loaded.job, prepared.profile, run_id, place, prepared.environment.env)


def _place(run: RunDir, profile: AnyProfile) -> Place:
    """Where the run will live; asks no other machine, so that a dry run needs none."""
    python = profile.python if profile.runtime == "none" else None  # a container's is not the machine's
    return backend(kind_of(dict(profile))).place(run, profile.workdir, python)


def check(prepared: Prepared, launch: LaunchPlan) -> tuple[str, str, str]:
    """What Slurm says to the plan's batch script: ok or fail, its words, what to do. UsageError without a Slurm."""
    if prepared.profile.kind != "slurm":
        raise UsageError(
            f"--check asks Slurm, and {prepared.profile.name} is a profile of kind {prepared.profile.kind}"
        )
    from orchestrator.backends.slurm_cluster import would_take  # noqa: PLC0415 (only this asks)

    machine: Any = backend(kind_of(launch.profile))
    client = machine.client(launch.profile)
    client.need("sbatch")
    return would_take(client, machine.script(launch), launch.profile, launch.time_limit)
