"""Reads and checks a request as far as possible before anything is written or started. The result is a `Prepared`."""

from __future__ import annotations

import os
import shlex
import sys
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from orchestrator.backends import backend_of
from orchestrator.errors import UsageError
from orchestrator.protocol.task import Debug
from orchestrator.runs import dependencies
from orchestrator.runs.notifications import hidden_values
from orchestrator.runs.record import Dependency, notify_entries
from orchestrator.runs.store import RunDir, find_run
from orchestrator.runs.sweeps import find_sweep
from orchestrator.specs.kinds import kind_named
from orchestrator.transport.address import gateway_of

if TYPE_CHECKING:  # commands that only read runs must not load pydantic
    from orchestrator.environments.lock import Lock
    from orchestrator.prepare.interpreter import Interpreter
    from orchestrator.specs.documents.loaded import Loaded
    from orchestrator.specs.documents.yaml_source import Document
    from orchestrator.specs.environment import Environment
    from orchestrator.specs.job import Job, Notify
    from orchestrator.specs.plan import LaunchPlan, RunPaths
    from orchestrator.specs.profiles import AnyProfile
    from orchestrator.specs.spawning import Spawning

DRY_RUN_ID = "dryrun"
NOTIFY_VARIABLE = "ORCH_NOTIFY_WEBHOOK"


@dataclass(frozen=True)
class Request:
    """A job to submit or plan, and the options that the user gave."""

    job: str | Document
    profile: str
    sets: tuple[str, ...] = ()
    flags: dict[str, Any] = field(default_factory=dict)
    env: tuple[str, ...] = ()
    resume: str | None = None
    rehearse: bool = False
    waits: bool = False  # whether to wait for GPUs that other runs hold
    again: str | None = None  # the run to repeat; then `job` is empty, and an empty `profile` means the run's own
    after: str | None = None  # the run or sweep to wait for: RUN[:ok|:any], or SWEEP
    allow_code_dir: bool = False  # allow a code folder that is not the job's own
    args: tuple[str, ...] = ()  # arguments of the program, which follow the job's own arguments
    debug_rank: int | None = None  # the rank that waits for a debugger
    notify_on: tuple[str, ...] = ()  # events that cause a notification, in place of the events in the job
    # The program that starts Python in the command line that the user typed, such as torchrun. It is "" if the line
    # has no such program, and None if the user typed no command line.
    program: str | None = None
    keeps_ranks: bool = False  # keep the profile's number of ranks, even if the program starts its own ranks
    plans: bool = False  # only plan: start no program that job, profile or command line name


@dataclass(frozen=True)
class Prepared:
    """A request that has been read and checked. Nothing has been written or started yet."""

    loaded: Loaded
    profile: AnyProfile
    environment: Environment
    rehearsed: bool
    waits: bool = False
    given: tuple[str, ...] = ()  # variables of --env: `A=` if a value was given, `A` if the shell's value was taken
    repeats: RunDir | None = None
    hidden: dict[str, str] = field(default_factory=dict, repr=False)  # secret values of `notify` and `track`
    after: Dependency | None = None
    lock: Lock | None = None  # the lock of the job's Python environment
    debug_rank: int | None = None
    interpreter: Interpreter | None = None  # the interpreter on this machine, if the profile names none
    spawning: Spawning | None = None  # how the program starts its ranks, if it does that by itself

    @property
    def is_delegated(self) -> bool:
        """Return whether another machine must submit and supervise the run, because the profile names that machine
        as `supervisor`.
        """
        return getattr(self.profile, "supervisor", "here") != "here"


def prepare(root: Path, request: Request) -> Prepared:
    """Read and check everything that can be checked before anything is written.

    Raises SpecError or UsageError if there is a mistake in the request or in its files.
    """
    from orchestrator.specs.environment import excess, parse_env_options, resolve
    from orchestrator.specs.plan import rehearsal

    flags = dict(request.flags)
    if request.resume is not None:
        flags["job.checkpoint.resume"] = _checkpoint_of(root, request.resume)
    options, repeats, rehearsed = request.env, None, request.rehearse
    if request.again is not None:
        from orchestrator.prepare import repeat

        repeats = find_run(root, request.again)
        if not (request.sets or request.args):
            repeat.check_has_values(repeats)
        loaded = repeat.load_again(repeats, request.profile, request.sets, flags)
        options = (*repeat.env_options(repeats), *request.env)
        rehearsed = rehearsed or (not request.profile and repeat.was_rehearsal(repeats))
    else:
        loaded = _documents(root, request, flags)
    if request.args:
        loaded = replace(loaded, job=replace(loaded.job, args=(*loaded.job.args, *request.args)))
        if why := next(filter(None, (excess(word) for word in request.args)), ""):
            raise UsageError(f"an argument of the program {why}")
    if request.notify_on:
        loaded = replace(loaded, job=_notified_of(loaded.job, request.notify_on))
    if loaded.job.checkpoint.resume not in ("auto", "never"):
        from orchestrator.prepare.resuming import check_format

        check_format(loaded.job, loaded.code_dir)
    environment = resolve(loaded.job, os.environ, parse_env_options(options, os.environ))
    loaded, spawning = _with_one_rank_if_program_spawns(request, loaded, repeats)
    if loaded.job.local_rank_option is not None and repeats is None:
        from orchestrator.specs.here import with_known_option

        loaded = replace(loaded, job=with_known_option(loaded.job, loaded.code_dir))
    profile = rehearsal(loaded.profile) if request.rehearse else loaded.profile
    check_system(profile)
    given = dict.fromkeys("".join(option.partition("=")[:2]) for option in options)
    shell = {**os.environ, **environment.env, **environment.secrets}
    is_supervised_here = getattr(profile, "supervisor", "here") == "here"
    hidden = hidden_values(notify_entries(loaded.job.to_json()), shell, is_supervised_here=is_supervised_here)
    if loaded.job.track:
        from orchestrator.trackers import progress

        hidden |= progress.hidden_values(loaded.job.track, shell, is_supervised_here=is_supervised_here)
    after = _after(root, request.after) if request.after is not None else None
    lock = _lock(loaded, repeats)
    interpreter = _interpreter(request, loaded.job, profile, repeats)
    if not request.plans and (python := _tested_python(profile, interpreter)) is not None:
        from orchestrator.prepare.interpreter import check_starts

        check_starts(python, root / "cache" / "python")
    return Prepared(
        loaded, profile, environment, rehearsed, request.waits, tuple(given), repeats, hidden, after, lock,
        request.debug_rank, interpreter, spawning,
    )  # fmt: skip


def _with_one_rank_if_program_spawns(
    request: Request, loaded: Loaded, repeats: RunDir | None
) -> tuple[Loaded, Spawning | None]:
    """Change the profile to one rank per node if the program starts its ranks itself. Return (the documents, how the
    program starts its ranks). The second value is None if the profile was not changed. Raises UsageError if the
    processes of several nodes would not find each other.

    Numbers of nodes or ranks that the user gave (--nodes, --nproc-per-node, --set profile...) are kept. A repeated run
    keeps its numbers too.
    """
    if request.keeps_ranks or repeats is not None or _is_given(request, "nproc_per_node"):
        return loaded, None
    if loaded.job.command is not None and (launcher := _console_launcher(loaded)) is not None:
        if loaded.profile.nodes > 1:
            raise _on_several_nodes(loaded, launcher, "--nproc-per-node 1")
        job = replace(loaded.job, rank_variables="several")  # they would be taken for the variables of its own ranks
        return replace(loaded, job=job, profile=loaded.profile.with_one_rank(1)), launcher
    from orchestrator.specs.here import source_of

    script, text = source_of(loaded.job, loaded.code_dir)
    if b"multiprocessing" not in text or loaded.job.launcher in ("torchrun", "accelerate"):
        return loaded, None
    from orchestrator.specs.spawning import spawning_in

    if (spawning := spawning_in(text, script)) is None:
        return loaded, None
    if loaded.profile.nodes > 1 and not spawning.knows_nodes and not _is_given(request, "nodes"):
        raise _on_several_nodes(loaded, spawning, f"--nodes {loaded.profile.nodes}")
    return replace(loaded, profile=loaded.profile.with_one_rank(None)), spawning


def _on_several_nodes(loaded: Loaded, spawning: Spawning, options: str) -> UsageError:
    """Return the error of a program that starts its own ranks and does not say how they find each other on the nodes of
    the profile. orch does not use fewer nodes by itself, because the run would then succeed with fewer nodes than the
    profile requests.
    """
    return UsageError(
        f"{spawning}, which do not find each other on the {loaded.profile.nodes} nodes of profile "
        f"{loaded.profile.name}",
        "start the program on one node with --nodes 1, or write a script that passes $GROUP_RANK, $MASTER_ADDR and "
        f"$MASTER_PORT to the program's own options, and start the script with {options}",
    )


def check_system(profile: AnyProfile) -> None:
    """Raise UsageError if this machine would have to start the run's agents or a scheduler's job, and runs macOS."""
    if sys.platform == "darwin" and not backend_of(profile).is_remote:
        raise UsageError(
            f"this machine runs macOS, where orch starts no ranks, and profile {profile.name} starts them from here",
            "choose a profile of machines over SSH, or of a scheduler with `login:` (docs/from-laptop.md)",
        )


def _console_launcher(loaded: Loaded) -> Spawning | None:
    """Return how the job's command starts its ranks if it is a console script, such as `trl`, that is a launcher."""
    from orchestrator.specs.launchers import console_launcher

    assert loaded.job.command is not None
    python = loaded.profile.python or ""
    folders = [*([os.path.dirname(python)] if "/" in python else []), *os.get_exec_path()]
    return console_launcher([*loaded.job.command, *loaded.job.args], folders)


def _is_given(request: Request, field: str) -> bool:
    """Return whether a command-line option sets this field of the profile."""
    name = f"profile.{field}"
    return request.flags.get(name) is not None or any(each.partition("=")[0] == name for each in request.sets)


def _interpreter(request: Request, job: Job, profile: AnyProfile, repeats: RunDir | None) -> Interpreter | None:
    """Return the interpreter that trains on this machine. Return None if the profile, a container image or a lock
    decides which interpreter is used.
    """
    is_here = kind_named(profile.kind).on_this_machine
    if not is_here or profile.python or profile.runtime != "none" or job.environment is not None:
        return None
    from orchestrator.prepare.interpreter import Interpreter, of_shell

    if repeats is not None and repeats.record().kind == profile.kind:
        earlier = repeats.plan().first.python
        if earlier.startswith("/") and os.access(earlier, os.X_OK):
            return Interpreter(earlier, f"as in {repeats.run_id}")
    if request.program is None:
        return None
    # A job's file, whose name is a str, names no program, so an environment without torch can be skipped.
    return of_shell(request.program, os.environ, needs_torch=isinstance(request.job, str), starts=not request.plans)


def _tested_python(profile: AnyProfile, interpreter: Interpreter | None) -> str | None:
    """Return the interpreter that will train on this machine if a submit tests whether it starts."""
    python = profile.python if interpreter is None else interpreter.path
    is_here = kind_named(profile.kind).on_this_machine
    return None if not is_here or profile.runtime != "none" or python == sys.executable else python


def _documents(root: Path, request: Request, flags: dict[str, Any]) -> Loaded:
    """Load job and profile. They come from the cache, unless pydantic is already imported, for example for the
    points of a sweep.
    """
    sets, allowed = request.sets, request.allow_code_dir
    if "pydantic" in sys.modules:
        from orchestrator.specs.documents.loader import load

        return load(request.job, request.profile, sets=sets, flags=flags, allow_code_dir=allowed)
    from orchestrator.specs.documents import kept_documents

    return kept_documents.load(root, request.job, request.profile, sets=sets, flags=flags, allow_code_dir=allowed)


def _notified_of(job: Job, events: tuple[Any, ...]) -> Job:
    """Return the job with these events in all of its `notify` entries.

    If the job has no entries, add an entry whose receiver's address is in the environment variable with the name
    NOTIFY_VARIABLE.
    """
    if not (entries := job.notify):
        from orchestrator.specs.job import Notify

        entries = (Notify(webhook_env=NOTIFY_VARIABLE),)
    return replace(job, notify=tuple(replace(each, on=events) for each in entries))


def _lock(loaded: Loaded, repeats: RunDir | None) -> Lock | None:
    """Return the lock of the job's environment, or None if the job has none. A repeated run keeps its recorded lock.

    Raises UsageError if the lock can't be read.
    """
    wanted = loaded.job.environment
    if wanted is None:
        return None
    if repeats is not None and repeats.record().job.environment == wanted:
        from orchestrator.environments.packages import recorded_lock

        if (lock := recorded_lock(repeats)) is None:
            raise UsageError(
                f"run {repeats.run_id} has no copy of its lock file", "submit the job file instead of repeating the run"
            )
        return lock
    from orchestrator.environments.lock import read_lock

    return read_lock(wanted, repeats.submitted_code if repeats is not None else loaded.code_dir)


def _after(root: Path, text: str) -> Dependency | None:
    """Return the dependency that `--after NAME[:ok|:any]` names, or None if it is already satisfied.

    Raises UsageError if the dependency can't be satisfied any more.
    """
    name, colon, wants = text.rpartition(":")
    if not colon:
        name, wants = text, "ok"
    if wants not in ("ok", "any"):
        hint = (
            f"--after {name} starts the run when {name} has succeeded, --after {name}:any when it has ended in "
            "any state"
        )
        raise UsageError(f"--after {text}: '{wants}' is neither ok nor any", hint)
    after = Dependency(find_sweep(root, name) or find_run(root, name).run_id, succeeds=wants == "ok")
    wait = dependencies.wait_of(root, after)
    if wait is not None and wait.is_unsatisfiable:
        raise UsageError(
            f"--after {text}: {wait.reason}", f"to start the run however the other ended: --after {name}:any"
        )
    return after if wait is not None else None


def _checkpoint_of(root: Path, text: str) -> str:
    """Return the path of the checkpoint that `--resume RUN[:STEP|:best]` names.

    If neither STEP nor best is given, the result may be the folder of the run's checkpoints. Raises UsageError if there
    is no such checkpoint.
    """
    from orchestrator.protocol.checkpoints.checkpoint_dir import newest
    from orchestrator.runs.files.checkpoints import all_of, best, checkpoint_folder
    from orchestrator.runs.files.metrics import metric_of_checkpoints

    name, colon, step = text.rpartition(":")
    run = find_run(root, name if colon else text)
    folder = checkpoint_folder(run)
    if not colon and newest(folder) is not None:
        return str(folder)  # the run will load the newest checkpoint in this folder whose hashes match
    found = [each for each in all_of(run) if each.is_whole]
    chosen = [each for each in found if not colon or str(each.step) == step]
    if colon and step == "best":
        of_run = [each for each in found if each.run in ("", run.run_id)]
        if (rated := best(of_run, metric_of_checkpoints(run.read("run.json")))) is not None:
            return str(rated[0].path)
        if found:
            raise UsageError(f"no checkpoint of run {run.run_id} has a metric", "name a step, or leave ':best' out")
    if chosen:
        return str(max(chosen, key=lambda each: each.order).path)
    from orchestrator.runs.reducer import left_outputs

    if left_outputs(run.events()):
        raise UsageError(
            f"run {run.run_id} has no such checkpoint here, but its nodes still have outputs that were not copied",
            f"orch pull {run.run_id} --outputs copies these outputs",
        )
    if colon:
        steps = ", ".join(str(each.step) for each in found) or "none"
        raise UsageError(f"run {run.run_id} left no checkpoint of step {step}", f"available steps: {steps}")
    raise UsageError(f"run {run.run_id} left no checkpoint in {folder}", "submit without --resume, or name another run")


def can_read_code_folder(prepared: Prepared) -> bool:
    """Return whether the run can read the user's code folder, because it runs on this machine or shares this
    machine's disks.
    """
    return not backend_of(prepared.profile).is_remote and prepared.profile.runtime == "none"


def files_to_send(prepared: Prepared) -> tuple[str, ...] | None:
    """Return the files of the code folder that the job's command line names. They are shipped even if an ignore file
    excludes them.

    Return None if the run can read the code folder itself.
    """
    if can_read_code_folder(prepared):
        return None
    from orchestrator.runs.files.ignore_rules import named_files

    job = prepared.loaded.job
    return named_files(prepared.loaded.code_dir.resolve(), [job.script or "", *(job.command or ()), *job.args])


@dataclass(frozen=True)
class Shipment:
    """The files that `orch submit` would ship for a request, and the commands that it would run on this machine."""

    folder: str
    files: int
    bytes: int
    here: tuple[str, ...]
    left_out: str = ""  # a line about the files that an ignore file leaves out


def shipment(prepared: Prepared) -> Shipment:
    """Describe the files that `orch submit` would ship, and the commands that it would run on this machine.

    Raises UsageError if a file can't be shipped.
    """
    from orchestrator.runs.files.code_snapshot import left_out, measure
    from orchestrator.runs.files.ignore_rules import left_out_words

    code, left = prepared.loaded.job.code, ""
    if prepared.repeats is not None:
        folder = prepared.repeats.submitted_code
        listing = prepared.repeats.code_files()
        sizes = [(folder / path).lstat().st_size for path, (kind, _) in listing.items() if kind != "d"]
        files, size = len(sizes), sum(sizes)
    else:
        folder = prepared.loaded.code_dir
        named = files_to_send(prepared)
        files, size, outside = measure(folder, code.ignore, code.max_size, named)
        found = {} if named is None else asdict(left_out(folder, code.ignore, named))
        left = left_out_words({**found, "copied": outside})
    return Shipment(str(folder), files, size, programs_here(prepared), left)


def programs_here(prepared: Prepared) -> tuple[str, ...]:
    """Return a line for each program that `orch submit` would run on this machine, besides the ranks."""
    profile, here = prepared.profile, list[str]()
    if (python := _tested_python(profile, prepared.interpreter)) is not None:
        here.append(
            f"{python}, to test whether it starts; a plan does not start it, so it does not find a missing torch"
        )
    here += [f"notify {_how(each)}" for each in prepared.loaded.job.notify]
    folder = prepared.loaded.code_dir
    if prepared.repeats is None and any((each / ".git").exists() for each in (folder, *folder.parents)):
        here.append(f"git, for the commit and the changes of {folder}")
    if "wandb" in prepared.loaded.job.track:
        here.append(f"{sys.executable} with wandb's package, when the run has ended")
    if prepared.lock is not None:
        from orchestrator.environments.uv import find_uv

        here.append(f"{find_uv()} with {sys.executable}, which reads {prepared.lock.name}")
        here.append(f"the build programs of source distributions in {prepared.lock.name}, if it has any, started by uv")
    from orchestrator.specs.profile import SshProfile

    if isinstance(profile, SshProfile) and profile.supervisor != "here":
        way = gateway_of(profile.supervisor).ssh_command
        here = [f"{way} {profile.supervisor_orch} accept", *(f"{line} (there)" for line in here)]
    return tuple(here)


def _how(notify: Notify) -> str:
    """Describe how a notification is sent. Only the host of an address is shown, because the rest may be secret."""
    on = f"on {', '.join(notify.on)}"
    if notify.command is not None:
        return f"{on}: {shlex.join(notify.command)}"
    if notify.apprise_env is not None:
        return f"{on}: by apprise to the URLs in {notify.apprise_env}"
    where = urlsplit(notify.webhook).hostname if notify.webhook else f"the address in {notify.webhook_env}"
    return f"{on}: POST to {where}"


def plan_for(root: Path, prepared: Prepared, run_id: str | None = None) -> LaunchPlan:
    """Return the launch plan of a request. Without a run id, the plan gets the reserved id of a dry run."""
    from orchestrator.specs.plan import plan

    run_id = run_id or f"{prepared.loaded.job.name}-{DRY_RUN_ID}"
    paths = _paths(RunDir(root / "runs" / run_id), prepared.profile, prepared.interpreter)
    launch = plan(prepared.loaded.job, prepared.profile, run_id, paths, prepared.environment.env)
    own: dict[str, Any] = {}
    if prepared.debug_rank is not None:
        own["debug"] = Debug(prepared.debug_rank)
    if prepared.spawning is not None or _spawned_before(prepared, launch):
        own["all_gpus"] = True
    return replace(launch, tasks=tuple(replace(task, **own) for task in launch.tasks)) if own else launch


def _spawned_before(prepared: Prepared, launch: LaunchPlan) -> bool:
    """Return whether the run repeats an earlier run whose program started its ranks itself, and still has one rank per
    node.

    Such an earlier run is recognised by its tasks, in which a single rank has all GPUs of its node.
    """
    repeats = prepared.repeats
    return repeats is not None and repeats.plan().first.all_gpus and all(task.nproc == 1 for task in launch.tasks)


def shown_plan(root: Path, prepared: Prepared, *, contacts_login: bool = False) -> LaunchPlan:
    """Return the plan that `orch submit` would start. Without `contacts_login`, facts that only the login node has are
    missing.
    """
    launch = plan_for(root, prepared)
    if getattr(launch.profile, "login", None) and not contacts_login:
        return launch
    return backend_of(prepared.profile).advice.completed(launch, by_shell=True)


def _paths(run: RunDir, profile: AnyProfile, interpreter: Interpreter | None) -> RunPaths:
    """Return the run's paths on the machine on which it will run. The machine is not contacted, so that a dry run
    works offline.
    """
    python = profile.python if profile.runtime == "none" else None  # the interpreter in a container is not known yet
    python = interpreter.path if interpreter is not None else python
    return backend_of(profile).paths(run, profile.workdir, python)
