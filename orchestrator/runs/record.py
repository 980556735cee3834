"""What a submit recorded of a run, with types: run.json as a RunRecord, and of plan.json what a look at a run needs.

A field that can't be what was written has been damaged: it counts as lost, and its default holds. That is decided here
alone. The job and the profile stay documents, as their own packages wrote them; what is read of them has a name here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from orchestrator.runs.state import drop_invalid_fields

if TYPE_CHECKING:
    from orchestrator.protocol.outputs import OutputRules

LOCAL: Final = "local"
MOST_NODES: Final = 100_000
UNKNOWN: Final = "?"
_NONE: Final = type(None)


@dataclass(frozen=True)
class Submitter:
    """The process that recorded the run."""

    host: str = ""
    pid: int = 0
    started: int = 0

    @staticmethod
    def from_json(data: object) -> Submitter:
        """Return what was recorded of it."""
        return Submitter(**drop_invalid_fields(data, {"host": (str,), "pid": (int,), "started": (int,)}))


@dataclass(frozen=True)
class Dependency:
    """The run or sweep that has to end before this one is started: well, or in any way."""

    run: str
    succeeds: bool

    def to_json(self) -> dict[str, str]:
        """Return the dependency as run.json holds it."""
        return {"run": self.run, "if": "ok" if self.succeeds else "any"}

    @staticmethod
    def from_json(data: object) -> Dependency | None:
        """Return what `to_json` gave; None for a run that waits for no other."""
        if not isinstance(data, Mapping):
            return None
        known = drop_invalid_fields(data, {"run": (str,), "if": (str,)})  # a lost name reads as that of a removed run
        return Dependency(known.get("run") or UNKNOWN, known.get("if") == "ok")


@dataclass(frozen=True)
class SweepPoint:
    """A run's place in a sweep: its number, the value of each key, and how many points may go at a time."""

    sweep: str = ""
    index: int = 0
    values: Mapping[str, str] = field(default_factory=dict)
    parallel: int | None = None
    is_trial: bool = False  # of a search, which gives it its values when it is started

    @property
    def at_a_time(self) -> int:
        """Return how many points orch itself may have going."""
        return self.parallel or 1

    def to_json(self) -> dict[str, Any]:
        """Return the point as run.json holds it."""
        kept = {"id": self.sweep, "index": self.index, "values": dict(self.values), "parallel": self.parallel}
        return {**kept, "is_trial": True} if self.is_trial else kept

    @staticmethod
    def from_json(data: object) -> SweepPoint | None:
        """Return what `to_json` gave; None for a run that is no point."""
        if not isinstance(data, Mapping):
            return None
        kinds = {"id": (str,), "index": (int,), "values": (dict,), "parallel": (int, _NONE), "is_trial": (bool,)}
        known = drop_invalid_fields(data, kinds)
        values = {str(word): str(value) for word, value in known.get("values", {}).items()}
        return SweepPoint(
            known.get("id", ""), known.get("index", 0), values, known.get("parallel"), known.get("is_trial", False)
        )


@dataclass(frozen=True)
class NotifyEntry:
    """One of the job's `notify` entries: of which events it is told, and by what."""

    on: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    webhook: str = ""
    webhook_env: str = ""  # the variable of the submitting shell that holds the address
    apprise_env: str = ""  # the same of apprise's URLs

    @property
    def variable(self) -> str:
        """Return the variable of the submitting shell that says where it goes; "" where none does."""
        return self.webhook_env or self.apprise_env

    @staticmethod
    def from_json(data: object) -> NotifyEntry:
        """Return the entry; a damaged one is told of nothing."""
        if not isinstance(data, Mapping):
            return NotifyEntry()
        known = drop_invalid_fields(data, dict.fromkeys(("webhook", "webhook_env", "apprise_env"), (str,)))
        return NotifyEntry(_words(data.get("on")), _words(data.get("command")), **known)


def notify_entries(job: Mapping[str, Any]) -> tuple[NotifyEntry, ...]:
    """Return a job document's `notify` entries, in order."""
    entries = job.get("notify")
    return tuple(map(NotifyEntry.from_json, entries)) if isinstance(entries, list | tuple) else ()


# The fields of run.json that are taken as they are.
_KINDS: Final[dict[str, tuple[type, ...]]] = {
    "name": (str,), "profile_name": (str,), "kind": (str,), "created": (int, float), "nnodes": (int,),
    "world_size": (int, _NONE), "grace": (int, float), "job": (dict,), "profile": (dict,), "job_file": (str, _NONE),
    "profile_file": (str, _NONE), "code_dir": (str, _NONE), "waits": (bool,), "repeats": (str, _NONE),
    "orch": (str, _NONE), "python": (str, _NONE), "scheduler": (str,),
}  # fmt: skip


@dataclass(frozen=True)
class RunRecord:
    """All that a submit recorded of a run in run.json."""

    run_id: str
    name: str = UNKNOWN
    profile_name: str = UNKNOWN
    kind: str = LOCAL  # of its backend; one that this version doesn't know is kept, and refused where it is looked up
    created: float = 0.0
    nnodes: int = 0
    hosts: tuple[str, ...] = ()  # as the plan calls the nodes
    world_size: int | None = None
    grace: float = 30.0
    submitter: Submitter = Submitter()
    job: Mapping[str, Any] = field(default_factory=dict)
    profile: Mapping[str, Any] = field(default_factory=dict)
    job_file: str | None = None
    profile_file: str | None = None
    code_dir: str | None = None  # where the code came from
    given: tuple[str, ...] = ()  # the names of --env: `A=` had a value, `A` took the shell's
    waits: bool = False  # for GPUs that others hold
    after: Dependency | None = None
    point: SweepPoint | None = None
    repeats: str | None = None  # the run whose job, profile and code it has
    orch: str | None = None
    python: str | None = None
    is_lost: bool = False  # there is no run.json: all else is a default
    scheduler: str = ""  # the name of the scheduler that chooses the nodes; "" if orch chooses them

    @property
    def retry(self) -> dict[str, int | None]:
        """Return the budgets of relaunches by cause; None is without end."""
        budgets = self.job.get("retry")
        known = budgets if isinstance(budgets, Mapping) else {}
        return {str(cause): left for cause, left in known.items() if left is None or type(left) is int}

    @property
    def notify(self) -> tuple[NotifyEntry, ...]:
        """Return the job's `notify` entries, in order."""
        return notify_entries(self.job)

    @property
    def secrets(self) -> tuple[str, ...]:
        """Return the names of the variables that the job calls secret."""
        return _words(self.job.get("secrets"))

    @property
    def login(self) -> str | None:
        """Return the login node that the profile goes through; None where it goes through none."""
        login = self.profile.get("login")
        return login if isinstance(login, str) and login else None

    @property
    def is_elsewhere(self) -> bool:
        """Tell whether its nodes write elsewhere, and what is here of that are copies."""
        return self.kind == "ssh" or self.login is not None

    @property
    def values(self) -> Mapping[str, str]:
        """Return the values of a sweep's point by their keys; empty for a run that is no point."""
        return self.point.values if self.point is not None else {}

    @staticmethod
    def from_json(run_id: str, data: Mapping[str, Any] | None) -> RunRecord:
        """Return what run.json says of the run; without the file, a record that is lost."""
        if data is None:
            return RunRecord(run_id, is_lost=True)
        known = drop_invalid_fields(data, _KINDS)
        if not 0 <= known.get("nnodes", 0) <= MOST_NODES:
            del known["nnodes"]
        kind = known.get("kind", LOCAL)
        if "scheduler" not in known and kind not in (LOCAL, "ssh"):  # written by orch 0.1, or damaged
            known["scheduler"] = kind.partition("-")[0].capitalize()
        return RunRecord(
            run_id,
            **known,
            hosts=_words(data.get("hosts")),
            given=_words(data.get("given")),
            submitter=Submitter.from_json(data.get("submitter")),
            after=Dependency.from_json(data.get("after")),
            point=SweepPoint.from_json(data.get("sweep")),
        )


_TASK_KINDS: Final[dict[str, tuple[type, ...]]] = {
    "code_dir": (str,), "checkpoint_dir": (str,), "checkpoint_keep": (int,), "checkpoint_best": (str,),
    "checkpoint_better": (str,), "checkpoint_format": (str,), "checkpoint_glob": (str,), "resume": (str,),
    "env": (dict,), "python": (str,), "all_gpus": (bool,),
}  # fmt: skip


@dataclass(frozen=True)
class PlannedTask:
    """What is read of one node's task in plan.json by those that start none."""

    code_dir: str = ""
    checkpoint_dir: str = ""
    checkpoint_keep: int = 3
    checkpoint_best: str = ""
    checkpoint_better: str = ""
    checkpoint_format: str = "auto"
    checkpoint_glob: str = ""
    resume: str = "auto"
    env: Mapping[str, str] = field(default_factory=dict)
    python: str = ""
    all_gpus: bool = False

    @staticmethod
    def from_json(data: object) -> PlannedTask:
        """Return what is known of the task."""
        known = drop_invalid_fields(data, _TASK_KINDS)
        env = {str(name): str(value) for name, value in known.pop("env", {}).items()}
        return PlannedTask(**known, env=env)


@dataclass(frozen=True)
class PlanRecord:
    """What is read of plan.json by those that start nothing: who starts something reads a LaunchPlan from it."""

    document: Mapping[str, Any] = field(default_factory=dict)
    tasks: tuple[PlannedTask, ...] = ()
    secret_names: tuple[str, ...] = ()

    @property
    def first(self) -> PlannedTask:
        """Return node 0's task; what it says of folders and checkpoints holds for all nodes."""
        return self.tasks[0] if self.tasks else PlannedTask()

    @property
    def outputs(self) -> OutputRules:
        """Return what the job says of its outputs."""
        from orchestrator.protocol.outputs import OutputRules  # noqa: PLC0415 (a table of runs does without)

        job = self.document.get("job")
        return OutputRules.from_json(job.get("outputs") if isinstance(job, Mapping) else None)

    @staticmethod
    def from_json(data: Mapping[str, Any] | None) -> PlanRecord:
        """Return what plan.json says; an empty plan without the file."""
        document = data if data is not None else {}
        shared, tasks = document.get("shared"), document.get("tasks")
        alike = shared if isinstance(shared, Mapping) else {}
        own = [task if isinstance(task, Mapping) else {} for task in tasks] if isinstance(tasks, list) else []
        known = tuple(PlannedTask.from_json({**alike, **task}) for task in own)
        return PlanRecord(document, known, _words(document.get("secret_names")))


def _words(value: object) -> tuple[str, ...]:
    """Return a list's items as words; none for what is no list."""
    return tuple(map(str, value)) if isinstance(value, list | tuple) else ()
