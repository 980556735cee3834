"""The command line of `python -m orchestrator.training`, checked before torch is imported."""

import argparse
import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from orchestrator.protocol.metric import JobMetric, kept_by
from orchestrator.training.choices import PRECISIONS, SCHEDULES, STRATEGIES, not_taken
from orchestrator.training.errors import UserError


@dataclass(frozen=True)
class Options:
    """The options of a training; tasks receive them too. Sizes are in samples, intervals in optimizer steps."""

    task: Path
    epochs: int | None
    steps: int | None
    global_batch: int
    lr: float
    seed: int
    eval_every: int
    save_every: int
    log_every: int
    sampler: str
    workers: int | None
    worker_start: str
    clip: float | None
    schedule: str
    warmup: int
    deterministic: bool
    device: str
    precision: str
    channels_last: bool
    compile: str
    compile_mode: str
    compile_blocks: bool
    activation_checkpointing: bool
    fused: bool
    memory_history: bool
    offline: str | None
    offline_epochs: int | None
    data_dir: Path
    strategy: str
    accumulate: int
    gradient_as_bucket_view: bool
    static_graph: bool
    sync_batchnorm: bool
    bucket_cap_mb: int | None
    gradient_compression: str
    micro_batches: int
    reshard_after_forward: bool
    shard_ranks: int | None
    tensor_ranks: int
    init_method: str
    timeout: int
    step_timeout: int
    async_save: bool
    extra: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class Places:
    """The paths that a run reads and writes, from the ORCH_* variables. `resume` is auto, never or a path.

    `reports_metrics` tells whether the variable for the metrics' path is set; the user's own scripts write none by
    default.
    """

    checkpoints: Path
    keep: int
    keep_best: JobMetric | None
    resume: str
    attempt: int
    run_id: str
    metrics: Path
    reports_metrics: bool
    result: Path | None
    heartbeat: Path | None
    second_copy: Path | None
    backend: str
    device: str


def parse(arguments: Sequence[str] | None = None) -> Options:
    """Parse the command line. argparse exits with code 2 if it is wrong.

    Raises UserError for an option that the strategy does not take.
    """
    parser = argparse.ArgumentParser(
        prog="python -m orchestrator.training",
        description="Train a task file on one device or several; see docs/training.md.",
    )
    add = parser.add_argument
    add("--task", type=Path, required=True, metavar="FILE", help="the Python file that defines data and model")
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--epochs", type=_positive, help="passes over the training samples (default 1)")
    length.add_argument("--steps", type=_positive, help="optimizer steps in total, those before a resume included")
    add(
        "--global-batch",
        type=_positive,
        default=96,
        metavar="N",
        help="samples per step, all ranks together (default 96)",
    )
    add("--lr", type=_rate, default=1e-3, help="learning rate (default 0.001)")
    _add_rate(parser)
    add("--seed", type=int, default=0, help="seed of weights, sample order and dropout (default 0)")
    add(
        "--deterministic",
        action="store_true",
        help="use deterministic algorithms only; a resumed run then equals one without interruption",
    )
    add(
        "--eval-every",
        type=_not_negative,
        default=0,
        metavar="N",
        help="steps between evaluations; 0: each epoch's end",
    )
    add(
        "--save-every",
        type=_not_negative,
        default=0,
        metavar="N",
        help="steps between checkpoints; 0: each epoch's end",
    )
    add("--async-save", action="store_true", help="write checkpoints in the background, from a copy in memory")
    add("--log-every", type=_positive, default=10, metavar="N", help="steps between lines of metrics (default 10)")
    _add_speed(parser)
    add("--sampler", choices=("exact", "distributed"), default="exact", help="distributed: torch's, which pads")
    add(
        "--workers",
        type=_workers,
        default="auto",
        metavar="N",
        help="DataLoader workers of each rank; auto: its share of the cores, 4 at most (default auto)",
    )
    add(
        "--worker-start",
        choices=("fork", "spawn"),
        default="fork",
        help="spawn: start each worker as a new interpreter, for libraries that a fork breaks (default fork)",
    )
    add("--offline", choices=("digits",), help="data to train on if the task's data can't be downloaded")
    add("--offline-epochs", type=_positive, metavar="N", help="passes over that data (default: --epochs)")
    add("--data", type=Path, metavar="DIR", help="folder of the data (default $ORCH_DATA_DIR, then ~/.cache/orch/data)")
    add("--option", type=_pair, action="append", default=[], metavar="K=V", help="a value for the task; repeatable")
    _add_strategy(parser)
    found = parser.parse_args(arguments)
    given = [name for name, value in vars(found).items() if value != parser.get_default(name)]
    for name, why in not_taken(found.strategy, given).items():
        raise UserError(f"--{name.replace('_', '-')} is not for the strategy {found.strategy}: {why}.")
    values = vars(found)
    values["epochs"] = found.epochs if found.epochs or found.steps else 1
    values["data_dir"] = (values.pop("data") or cache_dir()).expanduser()
    values["extra"] = dict(values.pop("option"))
    return Options(**values)


def _add_rate(parser: argparse.ArgumentParser) -> None:
    """Add the options for the size of steps."""
    add = parser.add_argument
    add("--schedule", choices=SCHEDULES, default="constant", help="how the learning rate falls to 0 at the last step")
    add("--warmup", type=_not_negative, default=0, metavar="N", help="steps in which the learning rate rises from 0")
    add("--clip", type=_rate, metavar="NORM", help="clip the norm of all gradients to this value")


def _add_speed(parser: argparse.ArgumentParser) -> None:
    """Add the options for how a device computes."""
    add = parser.add_argument
    add(
        "--precision",
        choices=PRECISIONS,
        default="auto",
        help="bf16, fp16: forward in 16 bits, weights in float32; auto: tf32 on GPUs, fp32 on CPUs",
    )
    add("--device", choices=("auto", "cpu", "cuda"), default="auto", help="auto: GPUs, where the machine has any")
    add("--channels-last", action="store_true", help="use torch's channels_last memory format, for convolutions")
    add(
        "--compile",
        choices=("none", "inductor", "aot_eager"),
        default="none",
        help="torch.compile: inductor compiles the model, aot_eager only checks that it can be compiled",
    )
    add(
        "--compile-mode",
        choices=("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"),
        default="default",
        help="inductor: reduce-overhead replays CUDA graphs, max-autotune also tries kernels",
    )
    add(
        "--compile-blocks",
        action="store_true",
        help="compile each child of the model separately, which takes less time",
    )
    add(
        "--activation-checkpointing",
        action="store_true",
        help="recompute the model's blocks in the backward pass instead of keeping their activations",
    )
    add("--fused", action="store_true", help="use torch's fused optimizer")
    add(
        "--memory-history",
        action="store_true",
        help="record the GPU's memory use; if memory runs out, a snapshot becomes an output of the run",
    )


def _add_strategy(parser: argparse.ArgumentParser) -> None:
    """Add the options for how devices are used."""
    add = parser.add_argument
    add("--strategy", choices=STRATEGIES, default="ddp", help="how the devices are used; see docs/training.md")
    add(
        "--accumulate",
        type=_positive,
        default=1,
        metavar="N",
        help="accumulate gradients over N parts of a step, for less memory; they are exchanged once",
    )
    add(
        "--gradient-as-bucket-view",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="ddp: gradients are views of the communication buckets",
    )
    add("--static-graph", action="store_true", help="ddp: every step uses the same parameters in the same order")
    add("--sync-batchnorm", action="store_true", help="ddp: BatchNorm over the global batch; GPUs only")
    add(
        "--bucket-cap-mb",
        type=_positive,
        metavar="N",
        help="ddp: MiB of gradients in one all-reduce (default: torch's 25)",
    )
    add(
        "--gradient-compression",
        choices=("none", "fp16", "bf16"),
        default="none",
        help="ddp: all-reduce gradients in 16 bits",
    )
    add(
        "--micro-batches",
        type=_positive,
        default=4,
        metavar="N",
        help="pipeline: micro-batches of a batch (default 4)",
    )
    add(
        "--reshard-after-forward",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="fsdp: free a block's weights after its forward pass; without this, less traffic and more memory",
    )
    add(
        "--shard-ranks",
        type=_positive,
        metavar="N",
        help="fsdp: ranks that share one copy of the weights (default all)",
    )
    add(
        "--tensor-ranks",
        type=_positive,
        default=1,
        metavar="N",
        help="fsdp: ranks that share each layer, by the task's plan",
    )
    add(
        "--init-method",
        type=_meeting_point,
        default="env://",
        metavar="URL",
        help="where the ranks meet: env:// (default), or tcp://HOST:PORT, a free port of rank 0's host",
    )
    add(
        "--timeout",
        type=_positive,
        default=1800,
        metavar="S",
        help="seconds that ranks wait for each other while they start, evaluate and save (default 1800)",
    )
    add(
        "--step-timeout",
        type=_positive,
        default=600,
        metavar="S",
        help="seconds that ranks wait for each other in a step (default 600)",
    )


def read_places(environ: Mapping[str, str] = os.environ) -> Places:
    """Read the ORCH_* variables; the defaults suit a plain torchrun."""
    result, heartbeat = environ.get("ORCH_RESULT_FILE"), environ.get("ORCH_BEAT_FILE")
    second = environ.get("ORCH_SECOND_COPY")
    return Places(
        checkpoints=Path(environ.get("ORCH_CHECKPOINT_DIR") or "checkpoints"),
        keep=max(1, _whole(environ, "ORCH_CHECKPOINT_KEEP", 3)),
        keep_best=kept_by(environ.get("ORCH_CHECKPOINT_KEEP_BEST", ""), environ.get("ORCH_CHECKPOINT_BETTER", "")),
        resume=environ.get("ORCH_RESUME") or "auto",
        attempt=_whole(environ, "ORCH_ATTEMPT", 0),
        run_id=environ.get("ORCH_RUN_ID", ""),
        metrics=Path(environ.get("ORCH_METRICS_FILE") or "metrics.jsonl"),
        reports_metrics="ORCH_METRICS_FILE" in environ,
        result=Path(result) if result else None,
        heartbeat=Path(heartbeat) if heartbeat else None,
        second_copy=Path(second) if second else None,
        backend=environ.get("ORCH_BACKEND") or "auto",
        device=environ.get("ORCH_DEVICE") or "auto",
    )


def cache_dir(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the folder for data sets: $ORCH_DATA_DIR, else orch/data in the user's cache."""
    if environ.get("ORCH_DATA_DIR"):
        return Path(environ["ORCH_DATA_DIR"])
    return Path(environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "orch" / "data"


def check_batch(global_batch: int, world_size: int) -> None:
    """Raise UserError, with the nearest valid sizes, if the ranks can't share the global batch evenly."""
    if global_batch % world_size == 0:
        return
    below = global_batch // world_size * world_size
    nearest = f"{below} and {below + world_size}" if below else f"{world_size} and {2 * world_size}"
    raise UserError(
        f"A global batch of {global_batch} can't be shared evenly by {world_size} ranks: "
        f"the nearest that can are {nearest} (--global-batch)."
    )


def _whole(environ: Mapping[str, str], name: str, default: int) -> int:
    try:
        return int(environ.get(name) or default)
    except ValueError:
        raise UserError(f"{name} must be a whole number, not {environ[name]!r}.") from None


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be 1 or more")
    return value


def _workers(text: str) -> int | None:
    return None if text == "auto" else _not_negative(text)


def _not_negative(text: str) -> int:
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError("must be 0 or more")
    return value


def _meeting_point(text: str) -> str:
    url = urlsplit(text)
    try:
        is_tcp = url.scheme == "tcp" and bool(url.hostname and url.port) and not url.path
    except ValueError:
        is_tcp = False
    if text != "env://" and not is_tcp:
        raise argparse.ArgumentTypeError(f"{text!r} is neither env:// nor tcp://HOST:PORT")
    return text


def _rate(text: str) -> float:
    value = float(text)
    if not (math.isfinite(value) and value > 0):
        raise argparse.ArgumentTypeError("must be a positive number")
    return value


def _pair(text: str) -> tuple[str, object]:
    key, equals, value = text.partition("=")
    if not (key and equals):
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form key=value")
    try:
        return key, json.loads(value)
    except json.JSONDecodeError:
        return key, value
