"""Typed access to the records that `orch submit` writes: a run's run.json, and the parts of plan.json that readers
need.

Only this module decides what happens to damaged fields: a field with an impossible value gets its default.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from orchestrator.protocol.frozen import Frozen, Value
from orchestrator.protocol.schedulers import SCHEDULERS
from orchestrator.runs.state import drop_invalid_fields

if TYPE_CHECKING:
    from orchestrator.protocol.outputs import OutputRules
    from orchestrator.specs.job import Job
    from orchestrator.specs.profiles import AnyProfile

LOCAL: Final = "local"
MOST_NODES: Final = 100_000
UNKNOWN: Final = "?"
_NONE: Final = type(None)


class Dependency(Value):
    """The run or sweep that must end, or succeed, before this run is started."""

    run: str
    succeeds: bool

    def to_json(self) -> dict[str, str]:
        """Return the dependency in the form of run.json."""
        return {"run": self.run, "if": "ok" if self.succeeds else "any"}

    @staticmethod
    def from_json(data: object) -> Dependency | None:
        """Parse the dependency that `to_json` wrote. Return None if the run waits for no other run."""
        if not isinstance(data, Mapping):
            return None
        # a damaged name is treated like the name of a removed run
        known = drop_invalid_fields(data, {"run": (str,), "if": (str,)})
        return Dependency(known.get("run") or UNKNOWN, known.get("if") == "ok")


class SweepPoint(Value):
    """The point of its sweep that a run executes: the point's number, the value of each key, and how many points may
    run at the same time.
    """

    sweep: str = ""
    index: int = 0
    values: Mapping[str, str] = field(default_factory=dict)
    parallel: int | None = None
    is_trial: bool = False  # whether the point is a trial of a search, which chooses its values when it starts

    @property
    def at_a_time(self) -> int:
        """Return how many points orch itself may run at the same time."""
        return self.parallel or 1

    def to_json(self) -> dict[str, Any]:
        """Return the point in the form of run.json."""
        kept = {"id": self.sweep, "index": self.index, "values": dict(self.values), "parallel": self.parallel}
        return {**kept, "is_trial": True} if self.is_trial else kept

    @staticmethod
    def from_json(data: object) -> SweepPoint | None:
        """Parse the point that `to_json` wrote. Return None if the run is not a point of a sweep."""
        if not isinstance(data, Mapping):
            return None
        kinds = {"id": (str,), "index": (int,), "values": (dict,), "parallel": (int, _NONE), "is_trial": (bool,)}
        known = drop_invalid_fields(data, kinds)
        values = {str(word): str(value) for word, value in known.get("values", {}).items()}
        return SweepPoint(
            known.get("id", ""), known.get("index", 0), values, known.get("parallel"), known.get("is_trial", False)
        )


class NotifyEntry(Value):
    """One of the job's `notify` entries: the events, and the receiver."""

    on: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    webhook: str = ""
    webhook_env: str = ""  # the environment variable with the address
    apprise_env: str = ""  # the environment variable with apprise's URLs

    @property
    def variable(self) -> str:
        """Return the name of the submitting shell's variable that contains the receiver's address; empty if the
        entry names no variable.
        """
        return self.webhook_env or self.apprise_env

    @staticmethod
    def from_json(data: object) -> NotifyEntry:
        """Parse an entry. A damaged entry has no events, so nothing is sent for it."""
        if not isinstance(data, Mapping):
            return NotifyEntry()
        known = drop_invalid_fields(data, dict.fromkeys(("webhook", "webhook_env", "apprise_env"), (str,)))
        return NotifyEntry(_words(data.get("on")), _words(data.get("command")), **known)


def notify_entries(job: Mapping[str, Any]) -> tuple[NotifyEntry, ...]:
    """Return a job document's `notify` entries, in order."""
    entries = job.get("notify")
    return tuple(map(NotifyEntry.from_json, entries)) if isinstance(entries, list | tuple) else ()


# The fields of run.json that need no conversion.
_KINDS: Final[dict[str, tuple[type, ...]]] = {
    "name": (str,), "profile_name": (str,), "kind": (str,), "created": (int, float), "nnodes": (int,),
    "world_size": (int, _NONE), "grace": (int, float), "job_file": (str, _NONE),
    "profile_file": (str, _NONE), "code_dir": (str, _NONE), "waits": (bool,), "repeats": (str, _NONE),
    "orch": (str, _NONE), "python": (str, _NONE), "scheduler": (str,), "is_remote": (bool,),
}  # fmt: skip


class RunRecord(Frozen):
    """The contents of run.json: everything that was recorded about a run when it was submitted."""

    run_id: str
    name: str = UNKNOWN
    profile_name: str = UNKNOWN
    kind: str = LOCAL  # the kind of its backend; an unknown kind is kept, and is refused only if the backend is needed
    created: float = 0.0
    nnodes: int = 0
    hosts: tuple[str, ...] = ()  # the nodes' names in the plan
    world_size: int | None = None
    grace: float = 30.0
    job_document: Mapping[str, Any] = field(default_factory=dict)  # as JSON types, to show or to compare all fields
    profile_document: Mapping[str, Any] = field(default_factory=dict)
    job_file: str | None = None
    profile_file: str | None = None
    code_dir: str | None = None  # the folder from which the code came
    given: tuple[str, ...] = ()  # the options --env: `A=` if a value was given, `A` if the shell's value was taken
    waits: bool = False  # whether the run waits for GPUs that other runs hold
    after: Dependency | None = None
    point: SweepPoint | None = None
    repeats: str | None = None  # the run whose job, profile and code it repeats
    orch: str | None = None
    python: str | None = None
    is_lost: bool = False  # whether run.json is missing, so that all other fields have their defaults
    scheduler: str = ""  # the name of the scheduler that chooses the nodes; "" if orch chooses them
    is_remote: bool = False  # whether the run's files are written on other machines, so that this machine has copies
    home: str = ""  # the machine on which the run was submitted; "" if that is not known

    @cached_property
    def job(self) -> Job:
        """Return the job. Damaged fields have their defaults.

        The properties below read single fields from the document instead, because `orch status` needs only these, and
        need not import the classes of the job and the profile for them.
        """
        from orchestrator.specs.job import Job
        from orchestrator.specs.spec import restored

        return restored(Job, {"name": self.name, **self.job_document})

    @cached_property
    def profile(self) -> AnyProfile:
        """Return the profile, an instance of the class of its kind. Damaged fields have their defaults.

        Raises OrchError if the package that defines the kind is no longer installed.
        """
        from orchestrator.specs.kinds import LOGIN, kind_named, model_of
        from orchestrator.specs.spec import restored

        kind, document = self.kind.removesuffix(LOGIN), self.profile_document
        model, needed = model_of(kind_named(kind)), {"name": self.profile_name, "kind": kind, "hosts": []}
        nodes = {} if type(document.get("nodes")) is int else {"nodes": self.nnodes or 1}
        try:
            return restored(model, {**needed, **document, **nodes, "kind": kind})
        except (ValueError, TypeError):  # a field without a default is damaged
            return restored(model, {**document, **nodes, **needed})

    @property
    def retry(self) -> dict[str, int | None]:
        """Return how many relaunches the job allows for each cause of a failure; None means unlimited."""
        budgets = self.job_document.get("retry")
        known = budgets if isinstance(budgets, Mapping) else {}
        return {str(cause): left for cause, left in known.items() if left is None or type(left) is int}

    @property
    def notify(self) -> tuple[NotifyEntry, ...]:
        """Return the job's `notify` entries, in order."""
        return notify_entries(self.job_document)

    @property
    def secrets(self) -> tuple[str, ...]:
        """Return the names of the job's secret variables."""
        return _words(self.job_document.get("secrets"))

    @property
    def track(self) -> tuple[str, ...]:
        """Return the trackers that the job names."""
        return _words(self.job_document.get("track"))

    @property
    def login(self) -> str | None:
        """Return the profile's login node, or None."""
        login = self.profile_document.get("login")
        return login if isinstance(login, str) and login else None

    @property
    def values(self) -> Mapping[str, str]:
        """Map each key of the run's sweep to the value for this run. The result is empty if the run is not a point of a
        sweep.
        """
        return self.point.values if self.point is not None else {}

    @staticmethod
    def from_json(run_id: str, data: Mapping[str, Any] | None) -> RunRecord:
        """Parse run.json. If the file is missing, return a record that is marked as lost."""
        if data is None:
            return RunRecord(run_id=run_id, is_lost=True)
        known = drop_invalid_fields(data, _KINDS)
        if not 0 <= known.get("nnodes", 0) <= MOST_NODES:
            del known["nnodes"]
        kind = known.get("kind", LOCAL)
        if "scheduler" not in known and kind not in (LOCAL, "ssh"):  # written by orch 0.1, or damaged
            scheduler = kind.partition("-")[0]
            facts = SCHEDULERS.get(scheduler)
            known["scheduler"] = facts.title if facts else scheduler.capitalize()
        known.setdefault("is_remote", kind == "ssh" or kind.endswith("-login"))  # in a record without this fact
        submitter = data.get("submitter")
        return RunRecord(
            run_id=run_id,
            **known,
            job_document=_mapping(data.get("job")),
            profile_document=_mapping(data.get("profile")),
            hosts=_words(data.get("hosts")),
            given=_words(data.get("given")),
            after=Dependency.from_json(data.get("after")),
            point=SweepPoint.from_json(data.get("sweep")),
            home=str(submitter.get("host", "")) if isinstance(submitter, Mapping) else "",
        )


_TASK_KINDS: Final[dict[str, tuple[type, ...]]] = {
    "code_dir": (str,), "checkpoint_dir": (str,), "checkpoint_keep": (int,), "checkpoint_best": (str,),
    "checkpoint_better": (str,), "checkpoint_format": (str,), "checkpoint_glob": (str,), "resume": (str,),
    "env": (dict,), "python": (str,), "all_gpus": (bool,),
}  # fmt: skip


class PlannedTask(Value):
    """The fields of a node's task in plan.json that are needed to show a run. They do not suffice to start a run."""

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
        """Parse a task. Damaged fields get their defaults."""
        known = drop_invalid_fields(data, _TASK_KINDS)
        env = {str(name): str(value) for name, value in known.pop("env", {}).items()}
        return PlannedTask(**known, env=env)


class PlanRecord(Value):
    """The parts of plan.json that are needed to show a run. Code that starts a run reads a LaunchPlan instead."""

    document: Mapping[str, Any] = field(default_factory=dict)
    tasks: tuple[PlannedTask, ...] = ()
    secret_names: tuple[str, ...] = ()

    @property
    def first(self) -> PlannedTask:
        """Return node 0's task. Its folders and checkpoint settings are the same for all nodes."""
        return self.tasks[0] if self.tasks else PlannedTask()

    @property
    def outputs(self) -> OutputRules:
        """Return the job's rules for outputs."""
        from orchestrator.protocol.outputs import OutputRules

        job = self.document.get("job")
        return OutputRules.from_json(job.get("outputs") if isinstance(job, Mapping) else None)

    @staticmethod
    def from_json(data: Mapping[str, Any] | None) -> PlanRecord:
        """Parse plan.json. If the file is missing, return an empty plan."""
        document = data if data is not None else {}
        shared, tasks = document.get("shared"), document.get("tasks")
        alike = shared if isinstance(shared, Mapping) else {}
        own = [task if isinstance(task, Mapping) else {} for task in tasks] if isinstance(tasks, list) else []
        known = tuple(PlannedTask.from_json({**alike, **task}) for task in own)
        return PlanRecord(document, known, _words(document.get("secret_names")))


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _words(value: object) -> tuple[str, ...]:
    """Return a list's items as texts; empty if the value is not a list."""
    return tuple(map(str, value)) if isinstance(value, list | tuple) else ()
