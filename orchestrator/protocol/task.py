"""What one agent is told: NodeTask and its parts. Standard library, Python 3.9 syntax, pure."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

WIRE_VERSION = 2


@dataclass(frozen=True)
class Program:
    """What every rank runs; `kind` is module, script or command."""

    kind: str
    target: str
    args: tuple[str, ...] = ()


@dataclass(frozen=True)
class Input:
    """A file that is on the node before its ranks start."""

    name: str
    source: str
    sha256: str


@dataclass(frozen=True)
class Mount:
    """A folder of the node that its container sees."""

    source: str
    target: str
    read_only: bool = False


@dataclass(frozen=True)
class Container:
    """What the launcher and its ranks run in; what only the node knows is added there."""

    runtime: str  # docker | podman | apptainer | pyxis
    image: str
    gpu_flag: str = "none"  # none | gpus | cdi | nv
    mounts: tuple[Mount, ...] = ()
    shm: int | None = None  # None: the node's own
    pull: str = "missing"  # missing | always | never
    user: str | None = None
    cap_add: tuple[str, ...] = ()
    cpus: int | None = None
    mem: int | None = None


@dataclass(frozen=True)
class NodeTask:
    """Everything one agent is told. The plan holds it without `credentials` and `secrets`."""

    run_id: str
    node_rank: int
    nnodes: int
    hosts: tuple[str, ...]  # what the plan calls the nodes
    nproc: int | None  # None: decided on the node
    run_dir: str
    code_dir: str
    program: Program
    launcher: str  # auto | fork | exec | torchrun | accelerate
    backend: str
    python: str
    leader_addrs: tuple[str, ...]
    port_range: tuple[int, int]  # the first and the last port that the gang may use
    attempt: int = 0  # the first one of this start
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
    second_copy: bool = False  # does node 1 keep a copy of each checkpoint?
    resume: str = "auto"
    retry: dict[str, int | None] = field(default_factory=dict)
    time_limit: int | None = None
    hang: dict[str, Any] = field(default_factory=dict)  # action, train, medians, other
    join_timeout: float = 300.0
    link_timeout: float = 10.0  # seconds of silence after which a node counts as lost
    grace: float = 30.0
    log_limit: int = 1 << 30
    credentials: str = ""  # of this start: certificate and private key (PEM); none where there is one node
    secrets: dict[str, str] = field(default_factory=dict)
    version: int = WIRE_VERSION

    @property
    def host(self) -> str:
        """Return what the plan calls this node."""
        return self.hosts[self.node_rank]

    @property
    def only_loopback(self) -> bool:
        """Return whether the whole gang is on this machine, so that nothing needs to listen to the network."""
        return bool(self.leader_addrs) and all(addr.startswith("127.") for addr in self.leader_addrs)

    def to_json(self) -> dict[str, Any]:
        """Return the task as JSON types."""
        return dataclasses.asdict(self)

    @staticmethod
    def from_json(data: dict[str, Any]) -> NodeTask:
        """Return the task that `to_json` gave; ValueError when another version of orch wrote it."""
        if data.get("version") != WIRE_VERSION:
            raise ValueError(f"this task has format {data.get('version')}, this agent reads {WIRE_VERSION}")
        values = {**data, "program": Program(**{**data["program"], "args": tuple(data["program"]["args"])})}
        values["inputs"] = tuple(Input(**item) for item in data["inputs"])
        if data["container"] is not None:
            mounts = tuple(Mount(**mount) for mount in data["container"]["mounts"])
            cap_add = tuple(data["container"]["cap_add"])
            values["container"] = Container(**{**data["container"], "mounts": mounts, "cap_add": cap_add})
        for name in ("hosts", "leader_addrs", "port_range", "setup", "warm_imports"):
            values[name] = tuple(data[name])
        return NodeTask(**values)


def at_home(task: NodeTask, home: str) -> NodeTask:
    """Return the task with `~` replaced by the home folder of the machine that it is for."""

    def absolute(path: str) -> str:
        return home + path[1:] if path == "~" or path.startswith("~/") else path

    return dataclasses.replace(
        task,
        run_dir=absolute(task.run_dir),
        code_dir=absolute(task.code_dir),
        inputs_dir=absolute(task.inputs_dir),
        checkpoint_dir=absolute(task.checkpoint_dir),
        python=absolute(task.python),
        resume=absolute(task.resume),
    )


def copies_checkpoints(task: NodeTask) -> bool:
    """Return whether there is to be a second copy of each checkpoint, and a node to keep it."""
    return task.second_copy and task.nnodes > 1
