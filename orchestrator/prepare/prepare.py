"""A request to submit becomes a Prepared: all that can be read and checked before anything is written or started."""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from orchestrator.backends import backend_of
from orchestrator.errors import UsageError
from orchestrator.runs import dependencies, notification_ledger
from orchestrator.runs.record import Dependency, notify_entries
from orchestrator.runs.store import RunDir, find_run
from orchestrator.runs.sweeps import find_sweep

if TYPE_CHECKING:  # what only looks at runs must not wait for pydantic
    from orchestrator.backends.base import CheckResult
    from orchestrator.specs.environment import Environment
    from orchestrator.specs.job import Notify
    from orchestrator.specs.loader import Loaded
    from orchestrator.specs.plan import LaunchPlan, Place
    from orchestrator.specs.profile import AnyProfile

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
    allow_code_dir: bool = False  # one that is not the job's own


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
    after: Dependency | None = None


def prepare(root: Path, request: Request) -> Prepared:
    """Read and check everything that can be checked before anything is written; SpecError or UsageError otherwise."""
    from orchestrator.specs.environment import parse_env_options, resolve  # noqa: PLC0415 (loads pydantic)
    from orchestrator.specs.loader import load  # noqa: PLC0415 (loads pydantic and ruamel)
    from orchestrator.specs.plan import rehearsal  # noqa: PLC0415 (loads pydantic)

    flags = dict(request.flags)
    if request.resume is not None:
        flags["job.checkpoint.resume"] = _checkpoints_of(find_run(root, request.resume))
    options, repeats, rehearsed = request.env, None, request.rehearse
    if request.again is not None:
        from orchestrator.prepare import repeat  # noqa: PLC0415 (loads pydantic)

        repeats = find_run(root, request.again)
        loaded = repeat.load_again(repeats, request.profile, request.sets, flags)
        options = (*repeat.env_options(repeats), *request.env)
        rehearsed = rehearsed or (not request.profile and repeat.was_rehearsal(repeats))
    else:
        loaded = load(
            request.job, request.profile, sets=request.sets, flags=flags, allow_code_dir=request.allow_code_dir
        )
    environment = resolve(loaded.job, os.environ, parse_env_options(options, os.environ))
    profile = rehearsal(loaded.profile) if request.rehearse else loaded.profile
    given = dict.fromkeys("".join(option.partition("=")[:2]) for option in options)
    shell = {**os.environ, **environment.env, **environment.secrets}
    hidden = notification_ledger.hidden_values(notify_entries(loaded.job.model_dump()), shell)
    after = _after(root, request.after) if request.after is not None else None
    return Prepared(loaded, profile, environment, rehearsed, request.waits, tuple(given), repeats, hidden, after)


def _after(root: Path, text: str) -> Dependency | None:
    """What `--after NAME[:ok|:any]` asks for; None where it has come already, UsageError where it can't come."""
    name, colon, wants = text.rpartition(":")
    if not colon or wants not in ("ok", "any"):
        name, wants = text, "ok"
    after = Dependency(find_sweep(root, name) or find_run(root, name).run_id, succeeds=wants == "ok")
    wait = dependencies.wait_of(root, after)
    if wait is not None and wait.is_unsatisfiable:
        raise UsageError(f"--after {text}: {wait.reason}", f"to start however it ended: --after {name}:any")
    return after if wait is not None else None


def _checkpoints_of(run: RunDir) -> str:
    """The folder of another run's checkpoints; UsageError when there is nothing to go on from."""
    from orchestrator.protocol.checkpoint_dir import newest  # noqa: PLC0415 (only a submit needs it)
    from orchestrator.runs.checkpoints import checkpoint_folder  # noqa: PLC0415 (as above)

    folder = checkpoint_folder(run)
    if newest(folder) is None:
        raise UsageError(
            f"run {run.run_id} left no checkpoint in {folder}", "submit without --resume, or name another run"
        )
    return str(folder)


@dataclass(frozen=True)
class Shipment:
    """What a submit would send of this machine, and what it would run here beside orch itself."""

    folder: str
    files: int
    bytes: int
    here: tuple[str, ...]


def shipment(prepared: Prepared) -> Shipment:
    """Return what would be shipped, and the commands of `notify` and `supervisor`; UsageError where it can't be."""
    from orchestrator.runs.code_snapshot import measure  # noqa: PLC0415 (only a submit needs it)

    code, profile = prepared.loaded.job.code, prepared.profile
    if prepared.repeats is not None:
        folder = prepared.repeats.path / "code"
        listing = prepared.repeats.code_files()
        sizes = [(folder / path).lstat().st_size for path, (kind, _) in listing.items() if kind != "d"]
        files, size = len(sizes), sum(sizes)
    else:
        folder = prepared.loaded.code_dir
        files, size = measure(folder, code.ignore, code.max_size)
    here = [f"notify {_how(each)}" for each in prepared.loaded.job.notify]
    if profile.kind == "ssh" and profile.supervisor != "here":
        here = [f"ssh {profile.supervisor} {profile.supervisor_orch} accept", *(f"{line} (there)" for line in here)]
    return Shipment(str(folder), files, size, tuple(here))


def _how(notify: Notify) -> str:
    """Return how a notification is sent, in words; of an address, which may be a secret, no more than its host."""
    on = f"on {', '.join(notify.on)}"
    if notify.command is not None:
        return f"{on}: {shlex.join(notify.command)}"
    where = urlsplit(notify.webhook).hostname if notify.webhook else f"the address in {notify.webhook_env}"
    return f"{on}: POST to {where}"


def plan_for(root: Path, prepared: Prepared, run_id: str | None = None) -> LaunchPlan:
    """The launch plan of a request; for a dry run under an id that no run ever has."""
    from orchestrator.specs.plan import plan  # noqa: PLC0415 (loads pydantic)

    run_id = run_id or f"{prepared.loaded.job.name}-{DRY_RUN_ID}"
    place = _place(RunDir(root / "runs" / run_id), prepared.profile)
    return plan(prepared.loaded.job, prepared.profile, run_id, place, prepared.environment.env)


def _place(run: RunDir, profile: AnyProfile) -> Place:
    """Where the run will live; asks no other machine, so that a dry run needs none."""
    python = profile.python if profile.runtime == "none" else None  # a container's is not the machine's
    return backend_of(profile).place(run, profile.workdir, python)


def check(prepared: Prepared, launch: LaunchPlan) -> CheckResult:
    """Return what Slurm says to the plan's batch script, and what to do; UsageError without a Slurm."""
    return backend_of(prepared.profile).would_take(launch)
