"""Declares the options of the training program, each in one place.

The job's `training:` section, the command line of `python -m orchestrator.training`, the JSON Schema and the tables of
docs/job.md and docs/training.md follow from these fields. Each field has some of these properties:

* `description`: its meaning. `more` continues that sentence in `--help` and in docs/training.md.
* `unset`: what None means, if None is the default.
* `least`, `above`, `matches`: the bounds of a number, and the pattern of a text.
* `unit`: the word for the value in `--help`.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal, Optional, Union, get_args

from orchestrator.protocol.frozen import Frozen, setting

Precision = Literal["auto", "fp32", "tf32", "bf16", "fp16", "fp8"]
Strategy = Literal["single", "dp", "dp-balanced", "ddp", "fsdp", "model-parallel", "pipeline", "accelerate"]
STRATEGIES: tuple[str, ...] = get_args(Strategy)


class TrainingOptions(Frozen):
    """The options of a training. Sizes are in samples, intervals in optimizer steps."""

    task: Union[str, Path] = setting("the task's Python file, relative to the code folder", unit="FILE")
    epochs: Optional[int] = setting(
        "how many times to pass over the training data", default=None, least=1, unset="1 without steps"
    )
    steps: Optional[int] = setting(
        "stop after this many optimizer steps", default=None, least=1, more="steps before a resume count too"
    )
    global_batch: int = setting("samples per step over all ranks; the world size must divide it", default=96, least=1)
    lr: Optional[float] = setting("learning rate", default=1e-3, above=0, unit="RATE")
    seed: int = setting("seed of weights, order and augmentation", default=0, least=0)
    eval_every: int = setting("steps between evaluations; 0: once per epoch", default=0, least=0)
    save_every: int = setting("steps between checkpoints; 0: once per epoch", default=0, least=0)
    log_every: int = setting("steps between log lines", default=10, least=1)
    clip: Optional[float] = setting(
        "clip the norm of all gradients to this value; none by default", default=None, above=0, unit="NORM"
    )
    schedule: Literal["constant", "linear", "cosine"] = setting(
        "how the learning rate changes: it stays constant, or falls to 0 at the last step", default="constant"
    )
    warmup: int = setting("number of warm-up steps, in which the learning rate rises from 0", default=0, least=0)
    deterministic: bool = setting(
        "use deterministic algorithms only",
        default=False,
        more="a resumed run then gives the result of an uninterrupted one",
    )
    device: Literal["auto", "cpu", "cuda"] = setting("auto: GPUs, if the machine has any", default="auto")
    precision: Precision = setting(
        "bf16, fp16: compute the forward pass in 16 bits, keep the weights in float32; auto: tf32 on GPUs, "
        "fp32 on CPUs",
        default="auto",
    )
    channels_last: bool = setting("use torch's channels_last memory format, for convolutions", default=False)
    compile: Literal["none", "inductor", "aot_eager"] = setting(
        "torch.compile: inductor compiles the model, aot_eager only checks that it can be compiled", default="none"
    )
    compile_mode: Literal["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"] = setting(
        "inductor: reduce-overhead replays CUDA graphs, max-autotune also tries kernels", default="default"
    )
    compile_blocks: bool = setting(
        "compile each child of the model separately, which takes less time",
        default=False,
        more="equal children are compiled once",
    )
    activation_checkpointing: bool = setting(
        "recompute blocks in the backward pass instead of keeping their activations", default=False
    )
    fused: bool = setting("use torch's fused optimizer", default=False, more="the task must pass fused=options.fused")
    memory_history: bool = setting(
        "record the GPU's memory use, and add a snapshot to the outputs if memory runs out", default=False
    )
    sampler: Literal["exact", "distributed"] = setting(
        "exact: never pads the last batch", default="exact", more="distributed: torch's sampler, which pads it"
    )
    workers: Union[Literal["auto"], int, None] = setting(
        "DataLoader workers of each rank; auto: the rank's share of the cores, at most 4", default="auto", least=0
    )
    worker_start: Literal["fork", "spawn"] = setting(
        "spawn: start each worker as a new interpreter", default="fork", more="some libraries do not work after a fork"
    )
    offline: Optional[Literal["digits"]] = setting(
        "data to train on if the task's data can't be downloaded", default=None
    )
    offline_epochs: Optional[int] = setting(
        "passes over the offline data; as many as epochs by default", default=None, least=1
    )
    data: Union[str, Path, None] = setting(
        "folder of the data", default=None, unit="DIR", unset="$ORCH_DATA_DIR, then ~/.cache/orch/data"
    )
    strategy: Strategy = setting(
        "how the ranks share the model and the work", default="ddp", more="see docs/training.md"
    )
    accumulate: int = setting(
        "accumulate gradients over this many parts of a step, for less memory",
        default=1,
        least=1,
        more="gradients are exchanged once per step",
    )
    gradient_as_bucket_view: bool = setting("ddp: gradients are views of the communication buckets", default=True)
    static_graph: bool = setting(
        "ddp: promise that every step uses the same parameters in the same order", default=False
    )
    sync_batchnorm: bool = setting("ddp: BatchNorm over the global batch; GPUs only", default=False)
    bucket_cap_mb: Optional[int] = setting(
        "ddp: MiB of gradients in one all-reduce; 25 by default, as in torch", default=None, least=1
    )
    gradient_compression: Literal["none", "fp16", "bf16"] = setting(
        "ddp: all-reduce gradients in 16 bits", default="none"
    )
    async_save: bool = setting("write checkpoints in the background, from a copy in memory", default=False)
    micro_batches: int = setting("pipeline: number of micro-batches per batch", default=4, least=1)
    reshard_after_forward: bool = setting(
        "fsdp: free a block's weights after its forward pass",
        default=True,
        more="without it, training needs less traffic and more memory",
    )
    shard_ranks: Optional[int] = setting(
        "fsdp: number of ranks that share one copy of the weights; all by default", default=None, least=1
    )
    tensor_ranks: int = setting(
        "fsdp: number of ranks that split each layer as the task's plan says", default=1, least=1
    )
    timeout: int = setting(
        "seconds that ranks wait for each other at the start and around saves", default=1800, least=1, unit="S"
    )
    step_timeout: int = setting("seconds that ranks wait for each other in a step", default=600, least=1, unit="S")
    init_method: str = setting(
        "address where the ranks meet; tcp://HOST:PORT needs a free port of rank 0's host",
        default="env://",
        matches=r"^(env://|tcp://[^/\s]+:\d{1,5})$",
        unit="URL",
    )
    options: dict[str, Union[bool, int, float, str]] = setting(
        "options that are passed on to the task", default_factory=dict, unit="K=V"
    )


def _only(*names: str) -> dict[str, str]:
    """Map each strategy except `names` to an error message, for an option that only `names` support."""
    why = f"only {' and '.join(names)} {'takes' if len(names) == 1 else 'take'} it"
    return {name: why for name in STRATEGIES if name not in names}


_COPIED = "the model is copied to the GPUs at every step"
NOT_TAKEN: Mapping[str, Mapping[str, str]] = {
    "gradient_as_bucket_view": _only("ddp", "accelerate"),
    "static_graph": _only("ddp"),
    "sync_batchnorm": _only("ddp"),
    "bucket_cap_mb": _only("ddp"),
    "gradient_compression": _only("ddp"),
    "micro_batches": _only("pipeline"),
    "reshard_after_forward": _only("fsdp"),
    "shard_ranks": _only("fsdp"),
    "tensor_ranks": _only("fsdp"),
    "compile_mode": dict.fromkeys(("dp", "dp-balanced"), _COPIED) | {"accelerate": "Accelerator.prepare compiles"},
    "compile_blocks": dict.fromkeys(("dp", "dp-balanced"), _COPIED) | {"accelerate": "Accelerator.prepare compiles"},
    "activation_checkpointing": dict.fromkeys(("dp", "dp-balanced"), _COPIED),
    "channels_last": {
        "fsdp": "FSDP shards only weights that lie in the usual order",
        "pipeline": "what travels between the ranks lies in the usual order",
    },
    "compile": dict.fromkeys(("dp", "dp-balanced"), _COPIED),
}
"""Maps each option to the strategies that ignore it, each with the reason."""


def not_taken(strategy: str, given: Iterable[str]) -> dict[str, str]:
    """Return a dict from option to reason, for each of the `given` options that the strategy ignores or can't support.

    `given` must contain only options that the user has set.
    """
    return {name: NOT_TAKEN[name][strategy] for name in given if strategy in NOT_TAKEN.get(name, {})}
