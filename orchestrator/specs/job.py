"""The job says what to run. It is the first of the two documents that a user writes; profile.py has the second."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import BeforeValidator, Field, model_validator

from orchestrator.specs.fields import (
    FORMAT_VERSION,
    Also,
    Arg,
    Budget,
    Bytes,
    Count,
    EnvName,
    Line,
    Name,
    Percent,
    Seconds,
    Spec,
)
from orchestrator.specs.outputs import Outputs, Pattern
from orchestrator.specs.python_environment import PythonEnvironment
from orchestrator.specs.sweeps.search_space import SearchSpace


class Training(Spec):
    """Options of the shared entrypoint `python -m orchestrator.training`; its task is a Python file."""

    task: Line = Field(description="the task's Python file, relative to the code folder")
    epochs: Count | None = Field(None, description="how often to go through the training data")
    steps: Count | None = Field(None, description="stop after this many optimizer steps")
    global_batch: Count = Field(96, description="samples per step over all ranks; the world size must divide it")
    lr: Annotated[float, Field(gt=0)] | None = Field(None, description="learning rate; the task's own by default")
    seed: Annotated[int, Field(ge=0)] = Field(0, description="seed of weights, order and augmentation")
    eval_every: Annotated[int, Field(ge=0)] = Field(0, description="steps between evaluations; 0: each epoch")
    save_every: Annotated[int, Field(ge=0)] = Field(0, description="steps between checkpoints; 0: each epoch")
    log_every: Annotated[int, Field(ge=0)] = Field(0, description="steps between log lines; 0: every few seconds")
    clip: Annotated[float, Field(gt=0)] | None = Field(
        None, description="clip the norm of all gradients to this value; none by default"
    )
    schedule: Literal["constant", "linear", "cosine"] = Field(
        "constant", description="how the learning rate falls to 0 at the last step"
    )
    warmup: Annotated[int, Field(ge=0)] = Field(0, description="steps in which the learning rate rises from 0")
    deterministic: bool = Field(False, description="use deterministic algorithms only")
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="auto: GPUs, where the machine has any")
    precision: Literal["auto", "fp32", "tf32", "bf16", "fp16", "fp8"] = Field(
        "auto", description="bf16, fp16: forward in 16 bits, weights in float32; auto: tf32 on GPUs, fp32 on CPUs"
    )
    channels_last: bool = Field(False, description="use torch's channels_last memory format, for convolutions")
    compile: Literal["none", "inductor", "aot_eager"] = Field(
        "none", description="torch.compile: inductor compiles the model, aot_eager only checks that it can be compiled"
    )
    compile_mode: Literal["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"] = Field(
        "default", description="inductor: reduce-overhead replays CUDA graphs, max-autotune also tries kernels"
    )
    compile_blocks: bool = Field(False, description="compile each child of the model separately, which takes less time")
    activation_checkpointing: bool = Field(
        False, description="recompute blocks in the backward pass instead of keeping their activations"
    )
    fused: bool = Field(False, description="use torch's fused optimizer")
    memory_history: bool = Field(
        False, description="record the GPU's memory use; a snapshot is an output if memory runs out"
    )
    sampler: Literal["exact", "distributed"] = Field("exact", description="exact never pads the last batch")
    workers: Literal["auto"] | Annotated[int, Field(ge=0)] = Field(
        "auto", description="DataLoader workers of each rank; auto: its share of the cores, 4 at most"
    )
    worker_start: Literal["fork", "spawn"] = Field("fork", description="spawn: start each worker as a new interpreter")
    offline: Literal["digits"] | None = Field(None, description="data to train on if the task's can't be downloaded")
    offline_epochs: Count | None = Field(None, description="passes over that data; epochs by default")
    data: Line | None = Field(None, description="folder of the data")
    strategy: Literal[
        "single", "dp", "dp-balanced", "ddp", "fsdp", "model-parallel", "pipeline", "accelerate"
    ] = Field("ddp", description="how the devices are used")  # fmt: skip
    accumulate: Count = Field(1, description="accumulate gradients over this many parts of a step, for less memory")
    gradient_as_bucket_view: bool = Field(True, description="ddp: gradients are views of the communication buckets")
    static_graph: bool = Field(False, description="ddp: every step uses the same parameters in the same order")
    sync_batchnorm: bool = Field(False, description="ddp: BatchNorm over the global batch; GPUs only")
    bucket_cap_mb: Count | None = Field(None, description="ddp: MiB of gradients in one all-reduce; torch's 25")
    gradient_compression: Literal["none", "fp16", "bf16"] = Field(
        "none", description="ddp: all-reduce gradients in 16 bits"
    )
    async_save: bool = Field(False, description="write checkpoints in the background, from a copy in memory")
    micro_batches: Count = Field(4, description="pipeline: micro-batches of a batch")
    reshard_after_forward: bool = Field(True, description="fsdp: free a block's weights after its forward pass")
    shard_ranks: Count | None = Field(None, description="fsdp: ranks that share one copy of the weights; all")
    tensor_ranks: Count = Field(1, description="fsdp: ranks that share each layer, by the task's plan")
    timeout: Count = Field(1800, description="seconds that ranks wait for each other at the start and around saves")
    step_timeout: Count = Field(600, description="seconds that ranks wait for each other in a step")
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
    """The folder that is shipped; the ranks start in a snapshot of it."""

    dir: Line = Field(".", description="the folder, relative to the job file")
    ignore: Line = Field(".orchignore", description="file of patterns to leave out, in addition to .gitignore")
    max_size: Bytes = Field(100 * 1024**2, description="refuse to ship more than this")


class Mount(Spec):
    """A folder of the node that is mounted into the container."""

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
    mounts: tuple[Annotated[Mount, BeforeValidator(_mount), Also("string")], ...] = ()
    shm: Bytes | None = Field(None, description="size of /dev/shm; the host's is shared by default")
    pull: Literal["missing", "always", "never"] = "missing"
    user: Line | None = Field(None, description="uid:gid; the caller's own by default")
    cap_add: tuple[Annotated[str, Field(pattern=r"^[A-Z_]+$")], ...] = Field(
        (), description="Linux capabilities, such as SYS_PTRACE; none by default"
    )


class Checkpoint(Spec):
    """The folder of checkpoints, the number that is kept, and the checkpoint that a run starts from."""

    dir: Line | None = Field(None, description="a folder on the nodes; the run directory's by default")
    keep: Count = 3
    keep_best: Line | None = Field(
        None, description="a metric of the checkpoints: the best by it stays beside the newest `keep`, and `best` is it"
    )
    resume: Line = Field("auto", description="auto (newest that verifies) | never | a path")
    format: Literal["auto", "orch", "hf", "lightning", "dcp", "deepspeed", "files"] = Field(
        "auto", description="whose checkpoints count; auto: all that are known"
    )
    glob: Pattern | None = Field(
        None, description="which of them, by a pattern as in .gitignore; with format files any file that it matches"
    )


class Retry(Spec):
    """How often all ranks are started again, by cause of failure; null is unlimited while progress is made."""

    user_error: Budget = 0
    infra: Budget = 3
    preempted: Budget = None
    timeout: Budget = None


class Resources(Spec):
    """The resources that each node must have."""

    cpus: Count | None = Field(None, description="cores per node")
    mem: Bytes | None = Field(None, description="memory per node")
    time: Seconds | None = Field(None, description="time limit of the run")
    gpus: Count | None = Field(None, description="GPUs per node")


MIN_LINK: Final = 8  # four heartbeats, and longer than the 6.4 s after which TCP sends a lost packet for the sixth time


class Limits(Spec):
    """How long orch waits before it reports what is missing, and how much a rank may log."""

    join: Seconds = Field(300, description="for all nodes to join and be ready")
    link: Annotated[Seconds, Field(ge=MIN_LINK)] = Field(
        10, description="silence between two nodes after which one counts as lost"
    )
    grace: Seconds = Field(30, description="from TERM to KILL, enough to save a checkpoint")
    log: Bytes = Field(1024**3, description="size of a rank's log at which it is rotated; the newest two files stay")


class Hang(Spec):
    """When a rank counts as hanging, and what is done about it."""

    action: Literal["auto", "restart", "report", "off"] = Field(
        "auto", description="auto: restart all ranks of a program that sends heartbeats, only report others"
    )
    train: Seconds = Field(60, description="silence in training; at least `medians` median steps")
    medians: Count = 10
    other: Seconds = Field(1800, description="silence in any other phase, and before the first step")


def _hang(value: object) -> object:
    """Read `hang: restart` as its action."""
    return Hang(action=value) if value in ("auto", "restart", "report", "off") else value


class Idle(Spec):
    """When a run counts as idle, and what is done about it."""

    gpu: Percent | None = Field(5.0, description="mean use of each node's GPUs below which it is idle")
    cpu: Percent | None = Field(
        None, description="the same of a core for each rank, on nodes whose GPUs tell nothing, or that have none"
    )
    after: Annotated[Seconds, Field(gt=0)] = Field(1800, description="how long all nodes have to be idle")
    do: Literal["report", "cancel"] = Field(
        "report", description="report: say so in status and why; cancel: end the run"
    )


class Input(Spec):
    """Data that is placed on each node once, before the ranks start, and is reused if its content is the same."""

    name: EnvName = Field(description="the path is given to the ranks as ORCH_INPUT_<NAME>")
    source: Line = Field(description="a URL, or a file that every node sees")
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class Notify(Spec):
    """The receivers of notifications about the run: a program on the submitting machine, or a web address."""

    on: tuple[Literal["failed", "succeeded", "cancelled", "restarted", "hung", "idle"], ...] = Field(
        ("failed", "succeeded"), min_length=1, description="which events"
    )
    command: tuple[Arg, ...] | None = Field(None, min_length=1, description="a program; it reads JSON on stdin")
    webhook: Annotated[str, Field(pattern=r"^https?://[^\s@]+$")] | None = Field(
        None, description="a URL that gets the JSON by POST"
    )
    webhook_env: EnvName | None = Field(None, description="the variable or secret that holds such a URL")
    apprise_env: EnvName | None = Field(
        None, description="the variable or secret that holds URLs of apprise (mail, Slack, ntfy, ...), spaces between"
    )

    @model_validator(mode="after")
    def _one_way(self) -> Notify:
        known = ("command", "webhook", "webhook_env", "apprise_env")
        ways = [key for key in known if getattr(self, key) is not None]
        if len(ways) != 1:
            what = f"{' and '.join(ways)} are given" if ways else "none is given"
            raise ValueError(f"say how to notify by exactly one of {', '.join(known)} ({what})")
        return self


class Metric(Spec):
    """The metric by which the job's runs and checkpoints are judged."""

    name: Line = Field(description="as the result, the metrics or the checkpoints call it")
    better: Literal["lower", "higher"] | None = Field(
        None, description="which way it is better; by the words of its name by default"
    )


def _metric(value: object) -> object:
    """Read `metric: wer` as its name."""
    return {"name": value} if isinstance(value, str) else value


def _one_or_many(value: object) -> object:
    """Read one mapping as a list with that mapping."""
    return (value,) if isinstance(value, dict) else value


def _word_or_list(value: object) -> object:
    """Read one word as a list with that word."""
    return (value,) if isinstance(value, str) else value


class Job(Spec):
    """The job document: what to run."""

    version: Literal[1] = FORMAT_VERSION
    name: Name
    module: Line | None = Field(None, description="run as python -m MODULE")
    script: Line | None = Field(None, description="run as python SCRIPT")
    command: tuple[Arg, ...] | None = Field(None, min_length=1, description="run any program")
    training: Training | None = Field(None, description="run the shared training entrypoint")
    args: tuple[Arg, ...] = ()
    local_rank_option: Literal["--local_rank", "--local-rank"] | None = Field(
        None,
        description="option that passes the local rank to each rank, as deepspeed and torch.distributed.launch do",
    )
    env: dict[EnvName, Arg | None] = Field({}, description="null: must come from the shell or --env")
    pass_env: tuple[Line, ...] = Field((), description="patterns of variables to copy from the shell")
    secrets: tuple[EnvName, ...] = Field(
        (), description="variables from the shell or --env: in no record, and masked in what orch itself says"
    )
    code: Code = Code()
    container: Container | None = None
    environment: PythonEnvironment | None = None
    checkpoint: Checkpoint = Checkpoint()
    outputs: Outputs = Outputs()
    retry: Retry = Retry()
    resources: Resources = Resources()
    limits: Limits = Limits()
    hang: Annotated[Hang, BeforeValidator(_hang)] = Hang()
    idle: Idle | None = Field(None, description="what is done about a run that uses next to nothing of its machines")
    sampling: bool = Field(True, description="measure every 2 s how busy the nodes are")
    inputs: tuple[Input, ...] = ()
    notify: Annotated[tuple[Notify, ...], BeforeValidator(_one_or_many), Also("object")] = Field(
        (), description="whom to tell what became of the run; one or a list"
    )
    track: Annotated[
        tuple[Literal["tensorboard", "mlflow", "wandb"], ...], BeforeValidator(_word_or_list), Also("string")
    ] = Field((), description="trackers that are told of parameters, metrics and the verdict; one or a list")
    metric: Annotated[Metric | None, BeforeValidator(_metric), Also("string")] = Field(
        None, description="the metric by which runs and checkpoints are judged; a word alone is its name"
    )
    search: SearchSpace | None = Field(None, description="what --search looks through")
    launcher: Literal["auto", "fork", "exec", "torchrun", "accelerate"] = Field(
        "auto", description="auto: fork without GPUs, exec with them"
    )
    warm_imports: tuple[Line, ...] = Field((), description="modules imported once per node, before the fork")

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
        if self.local_rank_option and (self.launcher in ("torchrun", "accelerate") or self.training):
            what = "training" if self.training else f"launcher {self.launcher}"
            raise ValueError(f"local_rank_option is not for {what}; leave one of both out")
        if clash := sorted(set(self.env) & set(self.secrets)):
            raise ValueError(f"{', '.join(clash)} can't be in both env and secrets")
        return self
