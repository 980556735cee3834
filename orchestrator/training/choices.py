"""The strategies by name, and the options that each ignores. Loads no torch, because a submit uses this too."""

from collections.abc import Iterable, Mapping

STRATEGIES = ("single", "dp", "dp-balanced", "ddp", "fsdp", "model-parallel", "pipeline", "accelerate")
PRECISIONS = ("auto", "fp32", "tf32", "bf16", "fp16", "fp8")
SCHEDULES = ("constant", "linear", "cosine")


def _only(*names: str) -> dict[str, str]:
    """Map every strategy except `names` to an error message: only these strategies take the option."""
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
"""Maps options, as named in Options and in a job's `training`, to the strategies that ignore them, with reasons."""


def not_taken(strategy: str, given: Iterable[str]) -> dict[str, str]:
    """Return those of the `given` options that the strategy would ignore or can't support, with reasons.

    `given` must not contain options that were left at their defaults.
    """
    return {name: NOT_TAKEN[name][strategy] for name in given if strategy in NOT_TAKEN.get(name, {})}
