"""Job (what to run) and Profile (where): the two documents a user writes, frozen and without unknown keys."""

from __future__ import annotations

import re
from typing import Annotated, Any, Final, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    TypeAdapter,
    field_validator,
    model_validator,
)
from pydantic_core import CoreSchema

from orchestrator.sbatch import known_options
from orchestrator.units import expand_hosts, seconds, size

FORMAT_VERSION: Final = 1
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,39}")
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def _one_line(text: str) -> str:
    """Refuse control characters: a newline in a scheduler field would become a line of the batch script."""
    if found := _CONTROL.search(text):
        raise ValueError(f"contains a control character ({found[0]!r}), which is not allowed here")
    return text


def _plain_name(text: str) -> str:
    if not _NAME.fullmatch(text):
        raise ValueError("must be 1 to 40 letters, digits, '_', '.' or '-', and start with a letter or digit")
    return text


def _text_value(value: object) -> object:
    """Take a number for text where a command line or an environment would show the same characters."""
    if isinstance(value, bool):
        raise ValueError(f"is a YAML boolean; put quotes around it to pass it as text ('{str(value).lower()}')")
    return str(value) if isinstance(value, int | float) else value


def _no_nul(text: str) -> str:
    if "\0" in text:
        raise ValueError("contains a NUL byte, which no program can be given")
    return text


def _env_name(text: str) -> str:
    if not _ENV_NAME.fullmatch(text):
        raise ValueError(f"'{text}' can't be the name of an environment variable")
    return text


def _expand(value: object) -> object:
    return tuple(expand_hosts(value)) if isinstance(value, str) else value


class _Also:
    """Tells editors, through the JSON Schema, of the other type that a before-validator reads."""

    def __init__(self, json_type: str) -> None:
        self.json_type = json_type

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"anyOf": [handler(core), {"type": self.json_type}]}


Name = Annotated[str, AfterValidator(_plain_name)]
Line = Annotated[str, Field(min_length=1), AfterValidator(_one_line)]
Arg = Annotated[str, BeforeValidator(_text_value), AfterValidator(_no_nul), _Also("number")]
EnvName = Annotated[str, AfterValidator(_env_name)]
Seconds = Annotated[
    int, BeforeValidator(lambda v: seconds(v) if isinstance(v, str) else v), Field(ge=0), _Also("string")
]
Bytes = Annotated[int, BeforeValidator(lambda v: size(v) if isinstance(v, str) else v), Field(gt=0), _Also("string")]
Count = Annotated[int, Field(ge=1, le=100_000)]
Budget = Annotated[int, Field(ge=0)] | None


def _tuples(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_tuples(item) for item in value)
    return {key: _tuples(item) for key, item in value.items()} if isinstance(value, dict) else value


class Spec(BaseModel):
    """A frozen document that refuses keys it doesn't know."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, hide_input_in_errors=True)

    @model_validator(mode="before")
    @classmethod
    def _lists_as_tuples(cls, data: Any) -> Any:
        """Take lists for tuples: strict mode refuses them in Python, and a before-validator makes JSON Python too."""
        return _tuples(data)


ONE_PROCESS: Final = ("single", "dp", "dp-balanced", "model-parallel")
"""Strategies of training that are one process, however many devices it uses."""
WHOLE_BATCH: Final = (*ONE_PROCESS, "pipeline")
"""Strategies whose ranks, if several, all work on the same samples."""


class Training(Spec):
    """Options of the shared entrypoint `python -m orchestrator.training`; its task is a Python file."""

    task: Line = Field(description="the task's Python file, relative to the code folder")
    epochs: Count | None = Field(None, description="how often to go through the training data")
    steps: Count | None = Field(None, description="stop after this many optimizer steps")
    global_batch: Count = Field(96, description="samples a step over all ranks; the world size must divide it")
    lr: Annotated[float, Field(gt=0)] | None = Field(None, description="learning rate; the task's own by default")
    seed: Annotated[int, Field(ge=0)] = Field(0, description="seed of weights, order and augmentation")
    eval_every: Annotated[int, Field(ge=0)] = Field(0, description="steps between evaluations; 0: each epoch")
    save_every: Annotated[int, Field(ge=0)] = Field(0, description="steps between checkpoints; 0: each epoch")
    log_every: Annotated[int, Field(ge=0)] = Field(0, description="steps between log lines; 0: every few seconds")
    precision: Literal["fp32", "bf16", "fp16"] = Field(
        "fp32", description="bf16, fp16: forward in 16 bits, weights in float32; fp16 on GPUs only"
    )
    sampler: Literal["exact", "distributed"] = Field("exact", description="exact never pads the last batch")
    offline: Literal["digits"] | None = Field(None, description="the data to use where the task's can't be had")
    data: Line | None = Field(None, description="a folder that holds the data")
    strategy: Literal[
        "single", "dp", "dp-balanced", "ddp", "fsdp", "model-parallel", "pipeline", "accelerate"
    ] = Field("ddp", description="how the devices are used")  # fmt: skip
    accumulate: Count = Field(1, description="parts in which a rank takes its share of a step, for less memory")
    gradient_as_bucket_view: bool = Field(True, description="ddp: reduce gradients where they lie")
    static_graph: bool = Field(False, description="ddp: every step uses the same weights in the same way")
    sync_batchnorm: bool = Field(False, description="ddp: BatchNorm over the global batch; GPUs only")
    bucket_cap_mb: Count | None = Field(None, description="ddp: MiB of gradients in one exchange; torch's 25")
    gradient_compression: Literal["none", "fp16", "bf16"] = Field(
        "none", description="ddp: exchange gradients in 16 bits"
    )
    async_save: bool = Field(False, description="write checkpoints beside the training, from a copy in memory")
    micro_batches: Count = Field(4, description="pipeline: parts of a batch that follow one another")
    init_method: Annotated[str, Field(pattern=r"^(env://|tcp://[^/\s]+:\d{1,5})$")] = Field(
        "env://", description="where the ranks meet; tcp://HOST:PORT needs a free port of rank 0's host"
    )
    options: dict[Line, bool | int | float | str] = Field({}, description="passed on to the task")

    @model_validator(mode="after")
    def _length(self) -> Training:
        if self.epochs and self.steps:
            raise ValueError("give epochs or steps, not both")
        return self


class Code(Spec):
    """Which folder is shipped; the ranks start in its snapshot."""

    dir: Line = Field(".", description="the folder, relative to the job file")
    ignore: Line = Field(".orchignore", description="a file of patterns (as in .gitignore) that are left out")
    max_size: Bytes = Field(100 * 1024**2, description="refuse to ship more than this")


class Mount(Spec):
    """A folder of the node that the container sees."""

    source: Line
    target: Line
    read_only: bool = False


def _mount(value: object) -> object:
    """Read `source:target[:ro]` as docker does."""
    if not isinstance(value, str):
        return value
    parts = value.split(":")
    if len(parts) not in (2, 3) or (len(parts) == 3 and parts[2] not in ("ro", "rw")):
        raise ValueError(f"'{value}' is not a mount; write source:target or source:target:ro")
    return Mount(source=parts[0], target=parts[1], read_only=parts[2:] == ["ro"])


class Container(Spec):
    """The image that the launcher and its ranks run in."""

    image: Line
    mounts: tuple[Annotated[Mount, BeforeValidator(_mount), _Also("string")], ...] = ()
    shm: Bytes | None = Field(None, description="size of /dev/shm; the host's is shared by default")
    pull: Literal["missing", "always", "never"] = "missing"
    user: Line | None = Field(None, description="uid:gid; the caller's own by default")


class Checkpoint(Spec):
    """Where checkpoints go, how many stay, and what a run starts from."""

    dir: Line | None = Field(None, description="a folder on the nodes; the run directory's by default")
    keep: Count = 3
    resume: Line = Field("auto", description="auto (newest that verifies) | never | a path")


class Retry(Spec):
    """How often the gang is started again, by cause; null is unlimited while progress is made."""

    user_error: Budget = 0
    infra: Budget = 3
    preempted: Budget = None
    timeout: Budget = None


class Resources(Spec):
    """What each node must give."""

    cpus: Count | None = Field(None, description="cores a node")
    mem: Bytes | None = Field(None, description="memory a node")
    time: Seconds | None = Field(None, description="time limit of the run")
    gpus: Count | None = Field(None, description="GPUs a node; refused on a profile that has none")


class Limits(Spec):
    """How long orch waits before it names what is missing, and how much a rank may write."""

    join: Seconds = Field(300, description="for all nodes to join and be ready")
    grace: Seconds = Field(30, description="from TERM to KILL, enough to save a checkpoint")
    log: Bytes = Field(1024**3, description="size of a rank's log at which it is rotated, once")


class Hang(Spec):
    """When a rank counts as standing still, and what is done about it."""

    action: Literal["auto", "restart", "report", "off"] = Field(
        "auto", description="auto: restart the gang of a program that beats, only report one that doesn't"
    )
    train: Seconds = Field(60, description="silence in training; at least `medians` median steps")
    medians: Count = 10
    other: Seconds = Field(1800, description="silence in any other phase, and before the first step")


def _hang(value: object) -> object:
    """Read `hang: restart` as its action."""
    return Hang(action=value) if value in ("auto", "restart", "report", "off") else value


class Input(Spec):
    """Data placed on each node before the ranks start, once a node, found again by its content."""

    name: EnvName = Field(description="the path is given to the ranks as ORCH_INPUT_<NAME>")
    source: Line = Field(description="a URL, or a file that every node sees")
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class Notify(Spec):
    """Whom to tell what became of the run: a program on the submitting machine, or a web address."""

    on: tuple[Literal["failed", "succeeded", "cancelled", "restarted", "hung"], ...] = Field(
        ("failed", "succeeded"), min_length=1, description="which events"
    )
    command: tuple[Arg, ...] | None = Field(None, min_length=1, description="a program; it reads JSON on stdin")
    webhook: Annotated[str, Field(pattern=r"^https?://[^\s@]+$")] | None = Field(
        None, description="a URL that gets the JSON by POST"
    )
    webhook_env: EnvName | None = Field(None, description="the variable or secret that holds such a URL")

    @model_validator(mode="after")
    def _one_way(self) -> Notify:
        ways = [key for key in ("command", "webhook", "webhook_env") if getattr(self, key) is not None]
        if len(ways) != 1:
            what = f"{' and '.join(ways)} are given" if ways else "none is given"
            raise ValueError(f"say how to notify by exactly one of command, webhook, webhook_env ({what})")
        return self


def _one_or_many(value: object) -> object:
    """Read one mapping as a list of it."""
    return (value,) if isinstance(value, dict) else value


class Job(Spec):
    """What to run."""

    version: Literal[1] = FORMAT_VERSION
    name: Name
    module: Line | None = Field(None, description="run as python -m MODULE")
    script: Line | None = Field(None, description="run as python SCRIPT")
    command: tuple[Arg, ...] | None = Field(None, min_length=1, description="run any program")
    training: Training | None = Field(None, description="run the shared training entrypoint")
    args: tuple[Arg, ...] = ()
    env: dict[EnvName, Arg | None] = Field({}, description="null: must come from the shell or --env")
    pass_env: tuple[Line, ...] = Field((), description="patterns of variables to copy from the shell")
    secrets: tuple[EnvName, ...] = Field((), description="variables from the shell or --env, never shown")
    code: Code = Code()
    container: Container | None = None
    checkpoint: Checkpoint = Checkpoint()
    retry: Retry = Retry()
    resources: Resources = Resources()
    limits: Limits = Limits()
    hang: Annotated[Hang, BeforeValidator(_hang)] = Hang()
    inputs: tuple[Input, ...] = ()
    notify: Annotated[tuple[Notify, ...], BeforeValidator(_one_or_many), _Also("object")] = Field(
        (), description="whom to tell what became of the run; one or a list"
    )
    launcher: Literal["auto", "fork", "exec", "torchrun", "accelerate"] = Field(
        "auto", description="auto: fork without GPUs, exec with them"
    )
    warm_imports: tuple[Line, ...] = Field((), description="modules imported once a node, before the fork")

    @model_validator(mode="after")
    def _one_program(self) -> Job:
        given = [key for key in ("module", "script", "command", "training") if getattr(self, key) is not None]
        if len(given) != 1:
            what = f"{' and '.join(given)} are given" if given else "none is given"
            raise ValueError(f"say what to run by exactly one of module, script, command, training ({what})")
        if self.command and self.launcher == "fork":
            raise ValueError("a command is not forked from Python; leave launcher out or set it to exec")
        if self.command and self.launcher in ("torchrun", "accelerate"):
            raise ValueError(f"launcher {self.launcher} runs a module or a script, not a command")
        if clash := sorted(set(self.env) & set(self.secrets)):
            raise ValueError(f"{', '.join(clash)} can't be in both env and secrets")
        return self


Nproc = Annotated[int, Field(ge=1, le=1024)]


class ProfileBase(Spec):
    """What every kind of profile has."""

    version: Literal[1] = FORMAT_VERSION
    name: Name
    nodes: Count = 1
    nproc_per_node: Nproc | Literal["auto"] | tuple[Nproc, ...] = Field(
        "auto", description="ranks a node; auto: its GPUs, else its cores; a list: one number a node"
    )
    backend: Literal["auto", "nccl", "gloo", "mpi"] = Field("auto", description="of torch.distributed")
    runtime: Literal["none", "docker", "podman", "apptainer", "pyxis"] = "none"
    gpu_flag: Literal["auto", "none", "gpus", "cdi", "nv"] = Field("auto", description="how the runtime is given GPUs")
    python: Line | None = Field(None, description="the interpreter that trains, on the nodes")
    workdir: Line | None = Field(None, description="orch's folder on the nodes")
    shared: bool = Field(False, description="is workdir the same folder on all nodes?")
    setup: tuple[Line, ...] = Field((), description="shell lines run before the launcher: module load cuda")
    interface: Line | None = Field(None, description="network interface of the ranks; found by the route")
    ports: Annotated[str, Field(pattern=r"^\d{1,5}-\d{1,5}$")] | None = Field(
        None, description="the gang's ports, for firewalls: 20000-20100"
    )
    defaults: dict[str, Any] = Field({}, description="job fields that hold where the job says nothing")

    @field_validator("ports")
    @classmethod
    def _port_range(cls, text: str | None) -> str | None:
        if text is not None:
            low, high = (int(part) for part in text.split("-"))
            if not 1024 <= low <= high <= 65535:
                raise ValueError(f"'{text}' is not a range of ports between 1024 and 65535")
        return text

    @model_validator(mode="after")
    def _one_nproc_a_node(self) -> ProfileBase:
        if isinstance(self.nproc_per_node, tuple) and len(self.nproc_per_node) != self.nodes:
            raise ValueError(f"nproc_per_node lists {len(self.nproc_per_node)} numbers for {self.nodes} nodes")
        return self


class LocalProfile(ProfileBase):
    """This machine; several nodes are several agents on it."""

    kind: Literal["local"]


class Host(Spec):
    """One SSH host; a range such as `n[1-3]` stands for several."""

    host: Line
    user: Line | None = None
    port: Annotated[int, Field(ge=1, le=65535)] | None = None
    key: Line | None = Field(None, description="private key file on the submitting machine")
    jump: Line | None = Field(None, description="the host to go through")
    addr: Line | None = Field(None, description="what the other nodes call this one")
    nproc_per_node: Nproc | Literal["auto"] | None = None
    python: Line | None = None


def _host(value: object) -> object:
    """Read `host`, `user@host` or `user@host:port`."""
    if not isinstance(value, str):
        return value
    user, at, rest = value.rpartition("@")
    host, colon, port = rest.partition(":")
    if (at and not user) or not host or (colon and not port.isdigit()):
        raise ValueError(f"'{value}' is not a host; write host, user@host or user@host:port")
    return Host(host=host, user=user or None, port=int(port) if colon else None)


HostEntry = Annotated[Host, BeforeValidator(_host), _Also("string")]


def _expanded(hosts: tuple[Host, ...]) -> tuple[Host, ...]:
    out: list[Host] = []
    for entry in hosts:
        names = expand_hosts(entry.host)
        addrs = expand_hosts(entry.addr) if entry.addr else [None] * len(names)
        if len(addrs) != len(names):
            raise ValueError(f"host '{entry.host}' names {len(names)} hosts, addr '{entry.addr}' {len(addrs)}")
        out += [entry.model_copy(update={"host": n, "addr": a}) for n, a in zip(names, addrs, strict=True)]
    seen: set[tuple[str, int | None]] = set()
    for entry in out:
        if (entry.host, entry.port) in seen:
            raise ValueError(f"host '{entry.host}' is listed twice")
        seen.add((entry.host, entry.port))
    return tuple(out)


class SshProfile(ProfileBase):
    """Machines reached over SSH, with python3 and nothing of ours."""

    kind: Literal["ssh"]
    hosts: Annotated[tuple[HostEntry, ...], Field(min_length=1), AfterValidator(_expanded)]
    spares: Annotated[tuple[HostEntry, ...], AfterValidator(_expanded)] = ()
    user: Line | None = None
    port: Annotated[int, Field(ge=1, le=65535)] | None = None
    key: Line | None = None
    jump: Line | None = None
    slots: Count | None = Field(None, description="ranks that a host without GPUs takes at a time, of all its users")
    node_wait: Seconds = Field(1800, description="how long a lost host is waited for where no spare is left")

    @model_validator(mode="before")
    @classmethod
    def _all_hosts_by_default(cls, data: Any) -> Any:
        """Take every host as a node where `nodes` is left out."""
        if isinstance(data, dict) and "nodes" not in data and isinstance(data.get("hosts"), list | tuple):
            names = [h if isinstance(h, str) else h.get("host", "") for h in data["hosts"] if isinstance(h, str | dict)]
            try:
                count = sum(len(expand_hosts(str(name))) for name in names)
            except ValueError:
                return data  # the field itself reports the broken range
            return {**data, "nodes": max(count, 1)}
        return data

    @model_validator(mode="after")
    def _enough_hosts(self) -> SshProfile:
        if len(self.hosts) < self.nodes:
            raise ValueError(f"nodes is {self.nodes}, but only {len(self.hosts)} hosts are listed")
        return self


class SlurmProfile(ProfileBase):
    """A Slurm cluster, from its login node or through one."""

    kind: Literal["slurm"]
    partition: Line | None = None
    account: Line | None = None
    qos: Line | None = None
    time: Seconds | None = Field(None, description="the job's time limit")
    gres: Line | None = None
    gpus_per_node: Count | None = None
    cpus_per_task: Count | None = None
    mem: Bytes | None = Field(None, description="memory a node")
    constraint: Line | None = None
    exclude: Line | None = None
    login: Line | None = Field(None, description="user@host of a login node to submit through")
    sbatch: Annotated[dict[Line, Line | int | bool], AfterValidator(known_options)] = Field(
        {}, description="any other option of sbatch"
    )


Profile = Annotated[LocalProfile | SshProfile | SlurmProfile, Field(discriminator="kind")]
PROFILE: TypeAdapter[LocalProfile | SshProfile | SlurmProfile] = TypeAdapter(Profile)
AnyProfile = LocalProfile | SshProfile | SlurmProfile


def program_of(job: Job) -> tuple[str, str, list[str]]:
    """(kind, target, args) of what each rank runs; kind is module, script or command."""
    if job.command is not None:
        return "command", job.command[0], [*job.command[1:], *job.args]
    if job.module is not None:
        return "module", job.module, list(job.args)
    if job.script is not None:
        return "script", job.script, list(job.args)
    assert job.training is not None
    return "module", "orchestrator.training", [*_training_args(job.training), *job.args]


def _training_args(training: Training) -> list[str]:
    args = ["--task", training.task]
    flags = {name: getattr(training, name) for name in Training.model_fields if name not in ("task", "options")}
    for name, value in flags.items():
        if value is not None and value != Training.model_fields[name].default:
            flag = name.replace("_", "-")
            if isinstance(value, bool):
                args.append(f"--{flag}" if value else f"--no-{flag}")
            else:
                args += [f"--{flag}", str(value)]
    if "--global-batch" not in args:
        args += ["--global-batch", str(training.global_batch)]
    for key, option in training.options.items():
        args += ["--option", f"{key}={str(option).lower() if isinstance(option, bool) else option}"]
    return args
