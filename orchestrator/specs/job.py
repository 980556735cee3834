"""The job document, which says what to run. profile.py defines the other document, the profile."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from orchestrator.protocol.outputs import MAX_SIZE
from orchestrator.protocol.training_options import TrainingOptions
from orchestrator.specs.python_environment import PythonEnvironment
from orchestrator.specs.search_space import SearchSpace
from orchestrator.specs.spec import FORMAT_VERSION, Spec, setting

if TYPE_CHECKING:  # the border reads the types of fields; a submission of cached documents loads no pydantic
    from pydantic import BeforeValidator, Field

    from orchestrator.specs.fields import (
        Also,
        Arg,
        Budget,
        Bytes,
        Count,
        EnvName,
        Line,
        Name,
        OutputPattern,
        Pattern,
        Percent,
        Seconds,
    )


class Training(TrainingOptions, Spec):
    """The options of the shared entrypoint `python -m orchestrator.training`. The task is a Python file."""

    task: Line
    workers: Literal["auto"] | int
    data: Line | None
    options: dict[Line, bool | int | float | str]

    @classmethod
    def before(cls, data: Mapping[str, Any]) -> Mapping[str, Any]:
        """Leave out `log_every: 0`, the default that earlier versions recorded."""
        return {name: value for name, value in data.items() if (name, value) != ("log_every", 0)}

    def check(self) -> None:
        """Raise ValueError if the length of the training is given in two ways."""
        if self.epochs and self.steps:
            raise ValueError("give epochs or steps, not both")


class Code(Spec):
    """The code folder. The ranks start in a copy of it."""

    dir: Line = setting("the code folder, relative to the job file", default=".")
    ignore: Line = setting("file of patterns to leave out, in addition to .gitignore", default=".orchignore")
    max_size: Bytes = setting("refuse to send more than this", default=100 * 1024**2)


class Mount(Spec):
    """A folder of the node that is mounted into the container."""

    source: Line
    target: Line
    read_only: bool = False


def _mount(value: object) -> object:
    """Convert the short form `source:target[:ro]`, as docker has it, into a mapping."""
    if not isinstance(value, str):
        return value
    parts = value.split(":")
    if len(parts) not in (2, 3) or (len(parts) == 3 and parts[2] not in ("ro", "rw")):
        raise ValueError(f"'{value}' is not a mount; write source:target or source:target:ro")
    return {"source": parts[0], "target": parts[1], "read_only": parts[2:] == ["ro"]}


class Container(Spec):
    """The image that the launcher and its ranks run in."""

    image: Line
    mounts: tuple[Annotated[Mount, BeforeValidator(_mount), Also("string")], ...] = setting(default=(), part=Mount)
    shm: Bytes | None = setting("size of /dev/shm; the host's is shared by default", default=None)
    pull: Literal["missing", "always", "never"] = "missing"
    user: Line | None = setting("uid:gid; the caller's own by default", default=None)
    cap_add: tuple[Annotated[str, Field(pattern=r"^[A-Z_]+$")], ...] = setting(
        "Linux capabilities, such as SYS_PTRACE; none by default", default=()
    )


class Checkpoint(Spec):
    """The folder of checkpoints, the number that is kept, and the checkpoint that a run starts from."""

    dir: Line | None = setting(
        "folder of the checkpoints on the nodes; by default a folder in the run directory", default=None
    )
    keep: Count = 3
    keep_best: Line | None = setting(
        "a metric: the checkpoint with its best value is kept too, and `best` means that checkpoint", default=None
    )
    resume: Line = setting("auto (the newest verified checkpoint) | never | a path", default="auto")
    format: Literal["auto", "orch", "hf", "lightning", "dcp", "deepspeed", "files"] = setting(
        "the format of the checkpoints; auto: any known format", default="auto"
    )
    glob: Pattern | None = setting(
        "a pattern as in .gitignore that selects checkpoints; with `format: files`, each matching file is a checkpoint",
        default=None,
    )


class Outputs(Spec):
    """Selects files below the ranks' working folder to copy back. All files in $ORCH_OUTPUT_DIR are copied back."""

    include: tuple[Pattern, ...] = setting("patterns as in .gitignore; all files by default", default=())
    exclude: tuple[OutputPattern, ...] = setting(
        "patterns that follow orch's own; the last match decides, and ! includes a file again", default=()
    )
    max_size: Bytes = setting(
        "most bytes of a run that are copied back; the rest stays until orch pull --outputs", default=MAX_SIZE
    )


class Retry(Spec):
    """The most restarts of all ranks, for each cause of failure. null means no limit while the run makes progress."""

    user_error: Budget = 0
    infra: Budget = 3
    preempted: Budget = None
    timeout: Budget = None


class Resources(Spec):
    """The resources that each node must have."""

    cpus: Count | None = setting("cores per node", default=None)
    mem: Bytes | None = setting("memory per node", default=None)
    time: Seconds | None = setting("time limit of the run", default=None)
    gpus: Count | None = setting("GPUs per node", default=None)


MIN_LINK: Final = 8  # four heartbeats, and longer than the 6.4 s after which TCP sends a lost packet for the sixth time


class Limits(Spec):
    """Time limits in seconds for nodes and ranks, and the size of a rank's log."""

    join: Seconds = setting("time for all nodes to join and be ready", default=300)
    link: Annotated[Seconds, Field(ge=MIN_LINK)] = setting(
        "time without a message after which a node counts as lost", default=10
    )
    grace: Seconds = setting("time from TERM to KILL, in which ranks can save a checkpoint", default=30)
    log: Bytes = setting("size of a rank's log at which it is rotated; two files are kept", default=1024**3)


class Hang(Spec):
    """The time without progress after which a rank counts as hanging, and the action that follows."""

    action: Literal["auto", "restart", "report", "off"] = setting(
        "auto: restart programs that send heartbeats, and only report others", default="auto"
    )
    train: Seconds = setting(
        "seconds without a step after which a rank hangs; never less than `medians` times the median step time",
        default=60,
    )
    medians: Count = 10
    other: Seconds = setting("time without progress in other phases, and before the first step", default=1800)


def _hang(value: object) -> object:
    """Convert the short form `hang: restart` into a mapping with this action."""
    return {"action": value} if value in ("auto", "restart", "report", "off") else value


class Idle(Spec):
    """The use of GPUs or cores below which a run counts as idle, and the action that follows."""

    gpu: Percent | None = setting("percent of mean GPU use below which a node is idle", default=5.0)
    cpu: Percent | None = setting(
        "percent of a core per rank below which a node without GPUs (or without their figures) is idle", default=None
    )
    after: Annotated[Seconds, Field(gt=0)] = setting("how long all nodes have to be idle", default=1800)
    do: Literal["report", "cancel"] = setting(
        "report: show it in orch status and orch why; cancel: end the run", default="report"
    )


class Input(Spec):
    """Data that is placed on each node once, before the ranks start, and is reused if its content is the same."""

    name: EnvName = setting("the path is given to the ranks as ORCH_INPUT_<NAME>")
    source: Line = setting("a URL, or a file that every node sees")
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class Notify(Spec):
    """The receivers of notifications about the run: a program on the submitting machine, or a web address."""

    on: tuple[Literal["failed", "succeeded", "cancelled", "restarted", "hung", "idle"], ...] = setting(
        "the events to notify of", default=("failed", "succeeded"), min_length=1
    )
    command: tuple[Arg, ...] | None = setting("a program; it reads JSON on stdin", default=None, min_length=1)
    webhook: Annotated[str, Field(pattern=r"^https?://[^\s@]+$")] | None = setting(
        "a URL that gets the JSON by POST", default=None
    )
    webhook_env: EnvName | None = setting("the variable or secret that holds the URL", default=None)
    apprise_env: EnvName | None = setting(
        "the variable or secret that holds URLs of apprise (mail, Slack, ntfy, ...), separated by spaces", default=None
    )

    def check(self) -> None:
        known = ("command", "webhook", "webhook_env", "apprise_env")
        ways = [key for key in known if getattr(self, key) is not None]
        if len(ways) != 1:
            what = f"{' and '.join(ways)} are given" if ways else "none is given"
            raise ValueError(f"give exactly one of {', '.join(known)} ({what})")


class Metric(Spec):
    """The metric by which the job's runs and checkpoints are judged."""

    name: Line = setting("the metric's name in the result, the metrics or the checkpoints")
    better: Literal["lower", "higher"] | None = setting(
        "whether lower or higher is better; by default guessed from the name", default=None
    )


def _metric(value: object) -> object:
    """Convert the short form `metric: wer` into a mapping with this name."""
    return {"name": value} if isinstance(value, str) else value


class BatchFile(Spec):
    """A batch file that `orch submit FILE` runs as it is. The job's `command` starts it on the first node.

    The file starts its ranks itself.
    """

    scheduler: Literal["slurm", "sge", "pbs"] = setting("the scheduler that the file is written for")
    options: tuple[Arg, ...] = setting("the options in the file's comments, for the scheduler", default=())


def _one_or_many(value: object) -> object:
    """Convert a single mapping into a list with this mapping."""
    return (value,) if isinstance(value, dict) else value


def _word_or_list(value: object) -> object:
    """Convert a single word into a list with this word."""
    return (value,) if isinstance(value, str) else value


class Job(Spec):
    """The job document: what to run."""

    version: Literal[1] = FORMAT_VERSION
    name: Name
    module: Line | None = setting("run as python -m MODULE", default=None)
    script: Line | None = setting("run as python SCRIPT", default=None)
    command: tuple[Arg, ...] | None = setting("run any program", default=None, min_length=1)
    training: Training | None = setting("run orch's own training program", default=None, part=Training)
    args: tuple[Arg, ...] = ()
    batch: BatchFile | None = setting(
        "set by `orch submit FILE` for a batch file that runs as it is", default=None, part=BatchFile
    )
    local_rank_option: Literal["--local_rank", "--local-rank"] | None = setting(
        "option that passes the local rank to each rank, as deepspeed and torch.distributed.launch do", default=None
    )
    rank_variables: Literal["always", "several"] = setting(
        "which runs get torchrun's variables (RANK, MASTER_PORT ...); several: only runs of several ranks",
        default="always",
    )
    env: dict[EnvName, Arg | None] = setting("null: the value must come from the shell or --env", default_factory=dict)
    pass_env: tuple[Line, ...] = setting("patterns of variables to copy from the shell", default=())
    secrets: tuple[EnvName, ...] = setting(
        "variables from the shell or --env that are never recorded, and masked in orch's messages", default=()
    )
    code: Code = Code()
    container: Container | None = setting(default=None, part=Container)
    environment: PythonEnvironment | None = setting(default=None, part=PythonEnvironment)
    checkpoint: Checkpoint = Checkpoint()
    outputs: Outputs = Outputs()
    retry: Retry = Retry()
    resources: Resources = Resources()
    limits: Limits = Limits()
    hang: Annotated[Hang, BeforeValidator(_hang)] = Hang()
    idle: Idle | None = setting("when a run counts as idle, and what is done then", default=None, part=Idle)
    sampling: bool = setting("measure every 2 s how busy the nodes are", default=True)
    inputs: tuple[Input, ...] = setting(default=(), part=Input)
    notify: Annotated[tuple[Notify, ...], BeforeValidator(_one_or_many), Also("object")] = setting(
        "receivers of notifications about the run; one or a list", default=(), part=Notify
    )
    track: Annotated[
        tuple[Literal["tensorboard", "mlflow", "wandb"], ...], BeforeValidator(_word_or_list), Also("string")
    ] = setting("trackers that receive parameters, metrics and the verdict; one or a list", default=())
    metric: Annotated[Metric | None, BeforeValidator(_metric), Also("string")] = setting(
        "the metric by which runs and checkpoints are compared; a plain text is the metric's name",
        default=None,
        part=Metric,
    )
    search: SearchSpace | None = setting("the values that orch submit --search tries", default=None, part=SearchSpace)
    launcher: Literal["auto", "fork", "exec", "torchrun", "accelerate"] = setting(
        "how ranks are started; auto: fork without GPUs, exec with GPUs", default="auto"
    )
    warm_imports: tuple[Line, ...] = setting("modules imported once per node, before the fork", default=())

    def check(self) -> None:
        given = [key for key in ("module", "script", "command", "training") if getattr(self, key) is not None]
        if len(given) != 1:
            what = f"{' and '.join(given)} are given" if given else "none is given"
            raise ValueError(f"give exactly one of module, script, command, training ({what})")
        if self.command and self.launcher == "fork":
            raise ValueError("a job with `command` can't use `launcher: fork`; remove `launcher` or set it to exec")
        if self.command and self.launcher in ("torchrun", "accelerate"):
            raise ValueError(f"launcher {self.launcher} runs a module or a script, not a command")
        if self.batch and (self.command is None or self.container):
            raise ValueError("a job with `batch` needs a command, and can't have a container")
        if self.local_rank_option and (self.launcher in ("torchrun", "accelerate") or self.training):
            what = "training" if self.training else f"launcher {self.launcher}"
            raise ValueError(f"local_rank_option can't be combined with {what}; leave one of them out")
        if clash := sorted(set(self.env) & set(self.secrets)):
            raise ValueError(f"{', '.join(clash)} can't be in both env and secrets")
