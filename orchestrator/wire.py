"""What crosses machines: NodeTask, Hello, exit codes, bind(). Standard library, Python 3.9 syntax, pure."""

from __future__ import annotations

import dataclasses
import hashlib
from dataclasses import dataclass, field
from typing import Any

WIRE_VERSION = 1

EXIT_NO_RETRY = 93  # a rank's way to say: starting me again will not help
EXIT_REQUEUE = 95  # stopped at a step boundary with a checkpoint; start me again from there

GANG_PORT_COUNT = 16
# Below Linux' ephemeral range, so that no client socket sits on one by chance.
GANG_PORT_RANGE = (15_000, 32_767)

# torchrun's names; whatever the shell holds of them belongs to another launcher.
RANK_VARIABLES = (
    "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE",
    "ROLE_RANK", "ROLE_WORLD_SIZE", "ROLE_NAME", "MASTER_ADDR", "MASTER_PORT",
    "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS",
    "TORCHELASTIC_ERROR_FILE", "TORCHELASTIC_USE_AGENT_STORE",
    "TORCHELASTIC_SIGNALS_TO_HANDLE",
)  # fmt: skip


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
    """Everything one agent is told. The plan holds it without `token` and `secrets`."""

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
    ports: tuple[int, ...]
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
    grace: float = 30.0
    log_limit: int = 1 << 30
    token: str = ""
    secrets: dict[str, str] = field(default_factory=dict)
    version: int = WIRE_VERSION

    @property
    def host(self) -> str:
        """What the plan calls this node."""
        return self.hosts[self.node_rank]

    @property
    def only_loopback(self) -> bool:
        """Is the whole gang on this machine, so that nothing needs to listen to the network?"""
        return bool(self.leader_addrs) and all(addr.startswith("127.") for addr in self.leader_addrs)

    def to_json(self) -> dict[str, Any]:
        """The task as JSON types."""
        return dataclasses.asdict(self)

    @staticmethod
    def from_json(data: dict[str, Any]) -> NodeTask:
        """The task that `to_json` gave; ValueError when another version of orch wrote it."""
        if data.get("version") != WIRE_VERSION:
            raise ValueError(f"this task has format {data.get('version')}, this agent reads {WIRE_VERSION}")
        values = {**data, "program": Program(**{**data["program"], "args": tuple(data["program"]["args"])})}
        values["inputs"] = tuple(Input(**item) for item in data["inputs"])
        if data["container"] is not None:
            mounts = tuple(Mount(**mount) for mount in data["container"]["mounts"])
            cap_add = tuple(data["container"]["cap_add"])
            values["container"] = Container(**{**data["container"], "mounts": mounts, "cap_add": cap_add})
        for name in ("hosts", "leader_addrs", "ports", "setup", "warm_imports"):
            values[name] = tuple(data[name])
        return NodeTask(**values)


def at_home(task: NodeTask, home: str) -> NodeTask:
    """The task with `~` replaced by the home folder of the machine that it is for."""

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


@dataclass(frozen=True)
class Hello:
    """What a node says of itself when it joins."""

    node_rank: int
    host: str
    nproc: int
    addrs: tuple[str, ...] = ()
    dial_port: int = 0  # where its neighbour can test the way to it


@dataclass(frozen=True)
class Binding:
    """The ranks of one node: rank_offset <= rank < rank_offset + nproc."""

    node_rank: int
    nnodes: int
    nproc: int
    rank_offset: int
    world_size: int


def bind(nproc_by_node: list[int]) -> list[Binding]:
    """The binding of every node: its ranks follow those of the nodes before it, whatever each one's nproc."""
    world_size, nnodes = sum(nproc_by_node), len(nproc_by_node)
    bindings, offset = [], 0
    for node_rank, nproc in enumerate(nproc_by_node):
        bindings.append(Binding(node_rank, nnodes, nproc, offset, world_size))
        offset += nproc
    return bindings


def gang_ports(run_id: str, low: int = GANG_PORT_RANGE[0], high: int = GANG_PORT_RANGE[1]) -> tuple[int, ...]:
    """Up to 16 distinct ports in [low, high] that every node of a run derives alike, without talking."""
    span, counter = high - low + 1, 0
    ports: list[int] = []
    while len(ports) < min(GANG_PORT_COUNT, span):
        digest = hashlib.sha256(f"{run_id}/{counter}".encode()).digest()
        port = low + int.from_bytes(digest[:8], "big") % span
        if port not in ports:
            ports.append(port)
        counter += 1
    return tuple(ports)


def rank_environment(
    task: NodeTask,
    binding: Binding,
    local_rank: int,
    *,
    attempt: int,
    master_addr: str,
    master_port: int | str,
    serves_store: bool,
) -> dict[str, str]:
    """The variables of one rank: torchrun's own, name by name, and orch's."""
    rank = binding.rank_offset + local_rank
    node_dir = node_folder(task.run_dir, task.node_rank)
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(local_rank),
        "WORLD_SIZE": str(binding.world_size),
        "LOCAL_WORLD_SIZE": str(binding.nproc),
        "GROUP_RANK": str(binding.node_rank),
        "GROUP_WORLD_SIZE": str(binding.nnodes),
        "ROLE_RANK": str(rank),
        "ROLE_WORLD_SIZE": str(binding.world_size),
        "ROLE_NAME": "default",
        "MASTER_ADDR": master_addr,
        "MASTER_PORT": str(master_port),
        "TORCHELASTIC_RUN_ID": task.run_id,
        "TORCHELASTIC_RESTART_COUNT": str(attempt),
        "TORCHELASTIC_MAX_RESTARTS": str(task.retry.get("infra") or 0),
        "TORCHELASTIC_ERROR_FILE": f"{attempt_folder(node_dir, attempt)}/error_{rank}.json",
        "TORCHELASTIC_USE_AGENT_STORE": str(serves_store),
        "TORCHELASTIC_SIGNALS_TO_HANDLE": "SIGTERM,SIGINT,SIGHUP,SIGQUIT",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
        "ORCH_RUN_ID": task.run_id,
        "ORCH_RUN_DIR": task.run_dir,
        "ORCH_ATTEMPT": str(attempt),
        "ORCH_NODE_RANK": str(binding.node_rank),
        "ORCH_NNODES": str(binding.nnodes),
        "ORCH_BACKEND": task.backend,
        "ORCH_CHECKPOINT_DIR": task.checkpoint_dir,
        "ORCH_CHECKPOINT_KEEP": str(task.checkpoint_keep),
        "ORCH_RESUME": task.resume,
        "ORCH_METRICS_FILE": f"{task.run_dir}/metrics.jsonl",
        "ORCH_RESULT_FILE": f"{task.run_dir}/result.json",
        "ORCH_BEAT_FILE": f"{attempt_folder(node_dir, attempt)}/beat_{rank}",
        **({"ORCH_SECOND_COPY": second_copy_file(task.run_dir)} if copies_checkpoints(task) and rank == 0 else {}),
    }


def rank_argv(task: NodeTask) -> list[str]:
    """The argv by which an exec'd rank starts; a forked one runs the same program in the same way."""
    program = task.program
    if program.kind == "module":
        return [task.python, "-m", program.target, *program.args]
    if program.kind == "script":
        return [task.python, program.target, *program.args]
    return [program.target, *program.args]


def node_folder(run_dir: str, node_rank: int) -> str:
    """The folder that only this node's agent, launcher and ranks write."""
    return f"{run_dir}/nodes/{node_rank}"


def copies_checkpoints(task: NodeTask) -> bool:
    """Is there to be a second copy of each checkpoint, and a node to keep it?"""
    return task.second_copy and task.nnodes > 1


def second_copy_file(run_dir: str) -> str:
    """Where node 0's agent says which checkpoint node 1 has; rank 0 waits for it before it saves the next one."""
    return f"{node_folder(run_dir, 0)}/second_copy.json"


def attempt_folder(node_dir: str, attempt: int) -> str:
    """The folder of one attempt: rank logs, errors, beats."""
    return f"{node_dir}/attempt_{attempt}"
