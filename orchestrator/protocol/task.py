"""NodeTask and its parts, which are all that a machine sends to an agent at its start."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from orchestrator.protocol.frozen import Frozen
from orchestrator.protocol.hostlist import expand, fold

WIRE_VERSION = 2


@dataclass(frozen=True)
class Program:
    """The program of every rank; `kind` is module, script or command."""

    kind: str
    target: str
    args: tuple[str, ...] = ()
    local_rank_option: str = ""  # the option that passes the local rank; empty if LOCAL_RANK is enough
    runs_alone: bool = False  # whether a single rank gets no variables of torchrun, as under plain `python`
    own_ranks: bool = False  # whether the program starts its ranks itself, so it gets no variables of a rank


@dataclass(frozen=True)
class Input:
    """A file that must be on the node before its ranks start."""

    name: str
    source: str
    sha256: str


@dataclass(frozen=True)
class Mount:
    """A folder of the node that is mounted into the container."""

    source: str
    target: str
    read_only: bool = False


class Container(Frozen):
    """The container in which a node's launcher and ranks run. The node adds settings that only the node knows."""

    runtime: str  # docker | podman | apptainer | pyxis
    image: str
    gpu_flag: str = "none"  # how the container gets the GPUs: none | gpus | cdi | nv
    mounts: tuple[Mount, ...] = ()
    shm: int | None = None  # None: the node's default
    pull: str = "missing"  # when to pull the image: missing | always | never
    user: str | None = None
    cap_add: tuple[str, ...] = ()
    cpus: int | None = None
    mem: int | None = None


@dataclass(frozen=True)
class Debug:
    """The rank that waits for a debugger."""

    rank: int
    user: int = -1  # the agent's uid, from which the rank accepts a debugger; filled in on the node


class NodeTask(Frozen):
    """Everything that is sent to one agent at its start. The plan stores it without `credentials` and `secrets`."""

    run_id: str
    node_rank: int
    nnodes: int
    hosts: tuple[str, ...]  # the nodes' names in the plan; see task_json
    nproc: int | None  # None: decided on the node
    run_dir: str
    code_dir: str
    program: Program
    launcher: str  # auto | fork | exec | torchrun | accelerate
    backend: str
    python: str
    leader_addrs: tuple[str, ...]
    port_range: tuple[int, int]  # the first and the last port that the gang may use
    attempt: int = 0  # the first attempt of this start
    start: int = 0  # how many times the run's agents were started before
    env: dict[str, str] = field(default_factory=dict)
    container: Container | None = None
    setup: tuple[str, ...] = ()
    interface: str | None = None
    warm_imports: tuple[str, ...] = ()
    inputs: tuple[Input, ...] = ()
    inputs_dir: str = ""
    checkpoint_dir: str = ""
    checkpoint_keep: int = 3
    checkpoint_best: str = ""  # the metric whose best checkpoint is kept too; empty: only the newest are kept
    checkpoint_better: str = ""  # lower | higher
    checkpoint_format: str = "auto"  # auto | orch | hf | lightning | dcp | deepspeed | files
    checkpoint_glob: str = ""  # which paths count; empty: all
    second_copy: bool = False  # whether node 1 keeps a copy of each checkpoint
    environment: str = ""  # folder of the ranks' Python environment; empty: the interpreter without an environment
    resume: str = "auto"
    uses_gpus: bool = True  # whether the ranks compute on GPUs if there are any
    gpus: int | None = None  # the number of GPUs that the ranks of a node share; None: one GPU for each rank
    all_gpus: bool = False  # if `gpus` is None, the ranks share all GPUs that they may use
    reserved: tuple[str, ...] = ()  # the names of the GPUs that the run holds on this node; empty: it holds none
    retry: dict[str, int | None] = field(default_factory=dict)
    has_spares: bool = False  # whether there is a host to replace one whose GPU fails
    time_limit: int | None = None
    hang: dict[str, Any] = field(default_factory=dict)  # keys: action, train, medians, other
    idle: dict[str, Any] = field(default_factory=dict)  # keys: gpu, cpu (percent), after, do; empty: ignore idleness
    sampling: bool = True  # whether the agent measures the use of the node
    join_timeout: float = 300.0
    link_timeout: float = 10.0  # seconds of silence after which a node counts as lost
    grace: float = 30.0
    log_limit: int = 1 << 30
    debug: Debug | None = None
    credentials: str = ""  # the certificate and private key (PEM) of this start; empty for a single node
    secrets: dict[str, str] = field(default_factory=dict)
    version: int = WIRE_VERSION

    @property
    def host(self) -> str:
        """Return this node's name in the plan."""
        return self.hosts[self.node_rank] if len(self.hosts) == self.nnodes else self.hosts[-1]

    @property
    def only_loopback(self) -> bool:
        """Return whether all agents are on one machine, so that they need not listen on the network."""
        return bool(self.leader_addrs) and all(addr.startswith("127.") for addr in self.leader_addrs)

    def to_json(self) -> dict[str, Any]:
        """Return the task as JSON types, with the hosts folded."""
        return {**dataclasses.asdict(dataclasses.replace(self, hosts=())), "hosts": _folded(self.hosts)}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> NodeTask:
        """Return the task that `to_json` wrote. Raises ValueError if its format is unknown to this version of orch."""
        if data.get("version") != WIRE_VERSION:
            raise ValueError(f"this task has format {data.get('version')}, but this agent reads {WIRE_VERSION}")
        values = {**data, "program": Program(**{**data["program"], "args": tuple(data["program"]["args"])})}
        values["inputs"] = tuple(Input(**item) for item in data["inputs"])
        if data["container"] is not None:
            mounts = tuple(Mount(**mount) for mount in data["container"]["mounts"])
            cap_add = tuple(data["container"]["cap_add"])
            values["container"] = Container(**{**data["container"], "mounts": mounts, "cap_add": cap_add})
        if data.get("debug") is not None:
            values["debug"] = Debug(**data["debug"])
        values["hosts"] = tuple(expand(data["hosts"]) if isinstance(data["hosts"], str) else data["hosts"])
        for name in ("leader_addrs", "port_range", "setup", "warm_imports"):
            values[name] = tuple(data[name])
        values["reserved"] = tuple(data.get("reserved", ()))  # plans of older versions lack it
        return NodeTask(**values)


def task_json(task: NodeTask) -> bytes:
    """Return the task as it is sent to its node.

    Only node 0, which leads, gets the names of all nodes. Other nodes get only node 0's name and their own, because the
    total size would otherwise grow quadratically with the number of nodes.
    """
    told = task if task.node_rank == 0 else dataclasses.replace(task, hosts=(task.hosts[0], task.host))
    return json.dumps(told.to_json()).encode()


def in_common(tasks: Sequence[NodeTask]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return (the values that all tasks share, the other values of each task) as JSON types. The size grows linearly
    with the number of nodes.
    """
    first = tasks[0].to_json()
    own = [name for name in first if name != "hosts" and not _are_alike([getattr(task, name) for task in tasks])]
    shared = {name: value for name, value in first.items() if name not in own}
    return shared, [{name: _as_json(task, name) for name in own} for task in tasks]


def apart(shared: Mapping[str, Any], own: Sequence[Mapping[str, Any]]) -> tuple[NodeTask, ...]:
    """Rebuild the tasks from the result of `in_common`. Raises ValueError if their format is unknown."""
    if not own:
        return ()
    hosts = NodeTask.from_json({**shared, **own[0]}).hosts
    return tuple(dataclasses.replace(NodeTask.from_json({**shared, **each, "hosts": ()}), hosts=hosts) for each in own)


def _are_alike(values: Sequence[Any]) -> bool:
    return all(value is values[0] or value == values[0] for value in values)


def _as_json(task: NodeTask, name: str) -> Any:
    value = getattr(task, name)
    return value if value is None or isinstance(value, (str, int, float)) else task.to_json()[name]


def _folded(hosts: tuple[str, ...]) -> str | list[str]:
    """Return the names folded into one text. Return them as a list if the text would not expand to the same names."""
    text = fold(hosts)
    try:
        return text if expand(text) == list(hosts) else list(hosts)
    except ValueError:
        return list(hosts)


def at_home(task: NodeTask, home: str) -> NodeTask:
    """Return the task with `~` replaced by `home`, the home folder on the machine on which the task will run."""

    def absolute(path: str) -> str:
        return home + path[1:] if path == "~" or path.startswith("~/") else path

    return dataclasses.replace(
        task,
        run_dir=absolute(task.run_dir),
        code_dir=absolute(task.code_dir),
        inputs_dir=absolute(task.inputs_dir),
        checkpoint_dir=absolute(task.checkpoint_dir),
        python=absolute(task.python),
        environment=absolute(task.environment),
        resume=absolute(task.resume),
    )


def copies_checkpoints(task: NodeTask) -> bool:
    """Return whether each checkpoint is copied to a second node. Return False if the run has only one node."""
    return task.second_copy and task.nnodes > 1
