"""Makes the LaunchPlan of a job and a profile: every rank, address and command, before anything is started. This module
has no side effects.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator.protocol.frozen import Frozen
from orchestrator.protocol.gang import GANG_PORT_RANGE
from orchestrator.protocol.hostlist import in_words
from orchestrator.protocol.layout import node_folder
from orchestrator.protocol.metric import better_of, kept_by
from orchestrator.protocol.ranks import Binding, bind, rank_argv, rank_environment
from orchestrator.protocol.task import Input, NodeTask, Program, apart, in_common
from orchestrator.specs import runtimes
from orchestrator.specs.job import Job
from orchestrator.specs.kinds import kind_named, model_of
from orchestrator.specs.profile import LocalProfile, ProfileBase
from orchestrator.specs.program import MANY_GPUS, program_of
from orchestrator.specs.spec import restored

PLAN_VERSION = 2
ON_THE_NODES = "decided on the nodes"
BOUND_LATER = "bound on node 0 at start"


@dataclass(frozen=True)
class RunPaths:
    """The paths of the run's folders and interpreters on the nodes, which the backend determines."""

    run_dir: str
    code_dir: str
    inputs_dir: str
    agent_python: str  # the interpreter that starts the agent
    python: str  # the interpreter that trains, if the profile names none


@dataclass(frozen=True)
class RankPlan:
    """The environment and the command of one rank. A forked rank runs the command without a new interpreter."""

    rank: int
    node_rank: int
    local_rank: int
    host: str
    environment: dict[str, str]
    argv: tuple[str, ...]


class LaunchPlan(Frozen):
    """All data that the nodes receive, except credentials and the values of secrets, which are added at the start."""

    run_id: str
    name: str
    job: Job
    profile: ProfileBase
    tasks: tuple[NodeTask, ...]
    # For each node, the command of its agent. A scheduler's job runs it. Without a scheduler, orch's server on the node
    # (`node/server/machine.py`) makes the same command.
    commands: tuple[tuple[str, ...], ...]
    master_addr: str
    secret_names: tuple[str, ...] = ()
    version: int = PLAN_VERSION

    @property
    def nnodes(self) -> int:
        """Return the number of nodes."""
        return len(self.tasks)

    @property
    def world_size(self) -> int | None:
        """Return the number of ranks, or None if the nodes decide it."""
        counts = [task.nproc for task in self.tasks]
        return sum(count for count in counts if count) if all(counts) else None

    @property
    def time_limit(self) -> int | None:
        """Return the time limit of the run in seconds (on Slurm, of each start); None if there is no limit."""
        return self.job.resources.time or getattr(self.profile, "time", None)

    @property
    def global_batch(self) -> int | None:
        """Return the number of samples per step over all ranks, or None if the program decides it."""
        return self.job.training.global_batch if self.job.training else None

    def to_json(self) -> dict[str, Any]:
        """Return the plan as JSON types. `shared` has the fields that are equal for all tasks, and `tasks` has the
        other fields.
        """
        shared, own = in_common(self.tasks)
        values = {each.name: getattr(self, each.name) for each in dataclasses.fields(self)}
        documents = {"job": self.job.to_json(), "profile": self.profile.to_json()}
        return {**values, **documents, "shared": shared, "tasks": own}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> LaunchPlan:
        """Return the plan that `to_json` wrote. Raises ValueError if it is damaged or its format is unknown to this
        version of orch, and OrchError if no installed package has profiles of this kind.
        """
        try:
            return LaunchPlan._from_json(data)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"this plan is damaged: {error}") from error

    @staticmethod
    def _from_json(data: Mapping[str, Any]) -> LaunchPlan:
        if data.get("version") != PLAN_VERSION:
            raise ValueError(f"this plan has format {data.get('version')}, but this orch reads {PLAN_VERSION}")
        values = dict(data)
        values["job"] = restored(Job, data["job"])
        values["profile"] = restored(model_of(kind_named(data["profile"]["kind"])), data["profile"])
        values["tasks"] = apart(values.pop("shared", {}), data["tasks"])
        values["commands"] = tuple(tuple(argv) for argv in data["commands"])
        values["secret_names"] = tuple(data["secret_names"])
        return LaunchPlan(**values)


def plan(
    job: Job, profile: ProfileBase, run_id: str, paths: RunPaths, env: Mapping[str, str] | None = None
) -> LaunchPlan:
    """Return the launch plan. `env` is the job's environment with the values from the shell.

    Raises UsageError if the job and the profile can't work together.
    """

    kind = kind_named(profile.kind)
    nodes = kind.nodes(profile)
    container = runtimes.container(job, profile)
    trains = profile.python or (paths.python if container is None else "python3")  # an image has its own interpreter
    shared: dict[str, Any] = {
        "run_id": run_id,
        "nnodes": profile.nodes,
        "hosts": nodes.names,
        "run_dir": paths.run_dir,
        "code_dir": paths.code_dir,
        "program": Program(
            *_program(job),
            local_rank_option=job.local_rank_option or "",
            runs_alone=job.rank_variables == "several",
            own_ranks=job.batch is not None,
        ),
        "launcher": job.launcher,
        "backend": profile.backend,
        "leader_addrs": nodes.leader_addresses,
        "port_range": port_range(profile.ports),
        "env": {
            **profile.env,
            **(env if env is not None else {k: v for k, v in job.env.items() if v is not None}),
        },
        "container": container,
        "setup": profile.setup,
        "interface": profile.interface,
        "warm_imports": job.warm_imports,
        "inputs": tuple(Input(item.name, item.source, item.sha256) for item in job.inputs),
        "inputs_dir": paths.inputs_dir,
        "checkpoint_dir": job.checkpoint.dir or f"{paths.run_dir}/checkpoints",
        "checkpoint_keep": job.checkpoint.keep,
        **_keep_best(job),
        "checkpoint_format": job.checkpoint.format,
        "checkpoint_glob": job.checkpoint.glob or "",
        "uses_gpus": _uses_gpus(job, profile),
        "gpus": job.resources.gpus,
        "all_gpus": job.training is not None and job.training.strategy in MANY_GPUS,
        "second_copy": getattr(profile, "second_copy", False) and not profile.shared,
        "resume": job.checkpoint.resume,
        "retry": job.retry.to_json(),
        "has_spares": bool(getattr(profile, "spares", ())),
        "hang": job.hang.to_json(),
        "idle": job.idle.to_json() if job.idle is not None else {},
        "sampling": job.sampling,
        # A scheduler ends its jobs itself, and signals them first. Their ranks then request another start.
        "time_limit": None if kind.scheduler else job.resources.time,
        "join_timeout": float(job.limits.join),
        "link_timeout": float(job.limits.link),
        "grace": float(job.limits.grace),
        "log_limit": job.limits.log,
    }
    tasks = tuple(
        NodeTask(node_rank=rank, nproc=nproc, python=python or trains, **shared)
        for rank, (python, nproc) in enumerate(zip(nodes.pythons, nproc_by_node(profile), strict=True))
    )
    return LaunchPlan(
        run_id=run_id,
        name=job.name,
        job=job,
        profile=profile,
        tasks=tasks,
        commands=tuple(_agent_argv(kind.verb, task, paths) for task in tasks),
        master_addr=nodes.master,
        secret_names=job.secrets,
    )


def _uses_gpus(job: Job, profile: ProfileBase) -> bool:
    """Return True if the ranks compute on GPUs on each node that has GPUs. If the profile's backend is gloo, they
    compute on CPUs, unless the job sets the device `cuda`.
    """
    device = getattr(job.training, "device", "auto")
    return bool(device == "cuda" or (device == "auto" and profile.backend != "gloo"))


def _keep_best(job: Job) -> dict[str, str]:
    """Return the fields of a task that name the metric of the best checkpoint, and whether higher or lower is better;
    empty if the job does not keep a best checkpoint.
    """
    if (name := job.checkpoint.keep_best) is None:
        return {}
    named = None if job.metric is None else kept_by(job.metric.name, job.metric.better or "")
    return {"checkpoint_best": name, "checkpoint_better": better_of(name, named)}


def _program(job: Job) -> tuple[str, str, tuple[str, ...]]:
    kind, target, args = program_of(job)
    return kind, target, tuple(args)


def _agent_argv(verb: str, task: NodeTask, paths: RunPaths) -> tuple[str, ...]:
    if verb != "agent":  # the scheduler tells each agent which node it is on
        return (paths.agent_python, f"{task.run_dir}/node.pyz", verb, task.run_dir)
    folder = node_folder(task.run_dir, task.node_rank)
    return (paths.agent_python, "-I", "-S", f"{task.run_dir}/node.pyz", "agent", f"{folder}/task.json")


def nproc_by_node(profile: ProfileBase) -> list[int | None]:
    """Return the number of ranks of each node; None for a node that decides its number itself."""
    counts = kind_named(profile.kind).ranks(profile)
    return [count if isinstance(count, int) else None for count in counts]


def port_range(ports: str | None) -> tuple[int, int]:
    """Return the first and the last port of a range such as `20000-20100`; orch's default range for None."""
    if ports is None:
        return GANG_PORT_RANGE
    low, high = (int(part) for part in ports.split("-"))
    return low, high


def bindings_of(launch: LaunchPlan) -> list[Binding] | None:
    """Return each node's ranks, or None if a node decides its number of ranks itself."""
    counts = [task.nproc for task in launch.tasks]
    known = [count for count in counts if count is not None]
    return bind(known) if len(known) == len(counts) else None


def ranks_of(launch: LaunchPlan) -> Iterator[RankPlan]:
    """Yield every rank of the plan, in order; yields nothing if the nodes decide the number of ranks."""
    for task, binding in zip(launch.tasks, bindings_of(launch) or [], strict=False):
        for local_rank in range(binding.nproc):
            yield _rank(launch, task, binding, local_rank)


def _rank(launch: LaunchPlan, task: NodeTask, binding: Binding, local_rank: int) -> RankPlan:
    environment = rank_environment(
        task,
        binding,
        local_rank,
        attempt=task.attempt,
        master_addr=launch.master_addr,
        master_port=BOUND_LATER,
        serves_store=task.launcher not in ("torchrun", "accelerate"),
    )
    rank = binding.rank_offset + local_rank
    return RankPlan(rank, task.node_rank, local_rank, task.host, environment, tuple(rank_argv(task, local_rank)))


def own_variables(launch: LaunchPlan) -> list[str]:
    """Return the names of the variables that differ between ranks, by comparing the last rank with rank 0."""
    bindings = bindings_of(launch) or []
    if not bindings:
        return []
    last = _rank(launch, launch.tasks[-1], bindings[-1], bindings[-1].nproc - 1).environment
    first = _rank(launch, launch.tasks[0], bindings[0], 0).environment
    return sorted(name for name, value in first.items() if last.get(name) != value)


def rehearsal(profile: ProfileBase) -> LocalProfile:
    """Return a local profile with the same number of nodes and ranks. Each node becomes an agent on this machine.

    If a node would decide its number of ranks itself, the number is the profile's GPUs per node, or 1.
    """
    fallback = getattr(profile, "gpus_per_node", None) or 1
    counts = tuple(count or fallback for count in nproc_by_node(profile))
    return LocalProfile(
        kind="local",
        name=profile.name,
        nodes=profile.nodes,
        nproc_per_node=counts,
        backend="auto" if "nccl" in profile.backend else profile.backend,  # GPUs may be missing here
        python=None,
    )


def differences(one: LaunchPlan, other: LaunchPlan) -> list[tuple[str, str, str]]:
    """Return (name, value in `one`, value in `other`) for each setting in which two plans of the same job differ."""
    pairs: dict[str, tuple[Any, Any]] = {
        "nodes": (one.nnodes, other.nnodes),
        "world size": (one.world_size or ON_THE_NODES, other.world_size or ON_THE_NODES),
        "samples per rank and step": (_per_rank(one), _per_rank(other)),
        "MASTER_ADDR": (one.master_addr, other.master_addr),
    }
    profiles, jobs = (
        [each.to_json() for each in both] for both in ((one.profile, other.profile), (one.job, other.job))
    )
    for key in sorted({*profiles[0], *profiles[1]} - {"name", "version", "nodes", "defaults"}):
        first, second = (each.get(key) for each in profiles)
        is_of_hosts = key in ("hosts", "spares")
        pairs[f"profile.{key}"] = (_folded(first), _folded(second)) if is_of_hosts else (first, second)
    pairs |= {f"job.{section}": (jobs[0][section], jobs[1][section]) for section in sorted(jobs[0])}
    for key in sorted(set(one.tasks[0].env) | set(other.tasks[0].env)):
        pairs[f"env {key}"] = (one.tasks[0].env.get(key), other.tasks[0].env.get(key))
    worded = [(what, _word(a), _word(b)) for what, (a, b) in pairs.items()]
    return [row for row in worded if row[1] != row[2]]


def _per_rank(launch: LaunchPlan) -> Any:
    if launch.global_batch is None:
        return "decided by the program"
    return launch.global_batch // launch.world_size if launch.world_size else ON_THE_NODES


def _folded(value: Any) -> Any:
    return in_words(map(_word, value)) if isinstance(value, list | tuple) else value


def _word(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(map(_word, value)) or "-"
    if isinstance(value, dict):
        return " ".join(f"{key}={_word(each)}" for key, each in value.items() if each not in (None, [], {})) or "-"
    return "-" if value is None else str(value)
