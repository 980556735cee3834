"""Converts the options and the config file of `accelerate launch` to settings of a job and a profile.

accelerate passes most settings to the script as environment variables, so the job's `env` can contain them.
This module has no side effects.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from orchestrator.errors import UsageError

_GROUPS: Final = {  # sections of a config file, and the prefix by which their keys become names of options
    "fsdp_config": "fsdp_", "dynamo_config": "dynamo_", "fp8_config": "fp8_", "deepspeed_config": "",
    "megatron_lm_config": "", "parallelism_config": "", "mpirun_config": "",
}  # fmt: skip
_VARIABLES: Final = {
    "dynamo_mode": "ACCELERATE_DYNAMO_MODE",
    "dynamo_use_fullgraph": "ACCELERATE_DYNAMO_USE_FULLGRAPH",
    "dynamo_use_dynamic": "ACCELERATE_DYNAMO_USE_DYNAMIC",
    "dynamo_use_regional_compilation": "ACCELERATE_DYNAMO_USE_REGIONAL_COMPILATION",
    "num_cpu_threads_per_process": "OMP_NUM_THREADS",
}
_SWITCHES: Final = {  # (variable, the variable's value if the setting is true)
    "debug": ("ACCELERATE_DEBUG_MODE", "true"),
    "use_cpu": ("ACCELERATE_USE_CPU", "true"),
    "cpu": ("ACCELERATE_USE_CPU", "true"),
    "enable_cpu_affinity": ("ACCELERATE_CPU_AFFINITY", "1"),
}
_FSDP_DEFAULTS: Final = {  # settings that accelerate uses if neither the line nor the file has them
    "fsdp_version": "1", "fsdp_sharding_strategy": "FULL_SHARD", "fsdp_reshard_after_forward": "true",
    "fsdp_offload_params": "false", "fsdp_min_num_params": "100000000", "fsdp_forward_prefetch": "false",
    "fsdp_use_orig_params": "true", "fsdp_cpu_ram_efficient_loading": "true", "fsdp_sync_module_states": "true",
    "fsdp_activation_checkpointing": "false", "fsdp_activation_checkpointing_offload": "false",
}  # fmt: skip
_FSDP: Final = {
    **{name: name.upper() for name in (*_FSDP_DEFAULTS, "fsdp_auto_wrap_policy", "fsdp_backward_prefetch",
                                       "fsdp_state_dict_type", "fsdp_ignored_modules")},
    "fsdp_transformer_layer_cls_to_wrap": "FSDP_TRANSFORMER_CLS_TO_WRAP",
}  # fmt: skip
_DEEPSPEED: Final = {
    "zero_stage": "ACCELERATE_DEEPSPEED_ZERO_STAGE",
    "gradient_accumulation_steps": "ACCELERATE_GRADIENT_ACCUMULATION_STEPS",
    "gradient_clipping": "ACCELERATE_GRADIENT_CLIPPING",
    "offload_optimizer_device": "ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE",
    "offload_optimizer_nvme_path": "ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_NVME_PATH",
    "offload_param_device": "ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_DEVICE",
    "offload_param_nvme_path": "ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_NVME_PATH",
    "zero3_init_flag": "ACCELERATE_DEEPSPEED_ZERO3_INIT",
    "zero3_save_16bit_model": "ACCELERATE_DEEPSPEED_ZERO3_SAVE_16BIT_MODEL",
    "deepspeed_config_file": "ACCELERATE_DEEPSPEED_CONFIG_FILE",
    "deepspeed_moe_layer_cls_names": "ACCELERATE_DEEPSPEED_MOE_LAYER_CLS_NAMES",
}
_READ_HERE: Final = {
    "compute_environment", "distributed_type", "num_machines", "num_processes", "mixed_precision", "dynamo_backend",
    "gpu_ids", "multi_gpu", "use_fsdp", "use_deepspeed", "config_file", "main_training_function", "m", "module",
    "no_python", "quiet", "q",
}  # fmt: skip
_OF_ORCH: Final = {
    "machine_rank", "main_process_ip", "main_process_port", "rdzv_backend", "rdzv_conf", "same_network",
    "deepspeed_multinode_launcher", "deepspeed_hostfile",
}  # fmt: skip
_KINDS: Final = {
    "use_fsdp": "FSDP", "use_deepspeed": "DEEPSPEED", "use_megatron_lm": "MEGATRON_LM", "multi_gpu": "MULTI_GPU"
}  # fmt: skip


@dataclass(frozen=True)
class Settings:
    """The settings for a job and its profile, converted from accelerate's settings. `nproc` is per node, or None if
    unknown.
    """

    nodes: int | None
    nproc: int | None
    env: dict[str, str]
    notes: tuple[str, ...]


def settings_of(options: Mapping[str, str], config: Mapping[str, Any], place: str) -> Settings:
    """Return the settings in a launch line's options and in the config file at `place`. Options take precedence.

    Raises UsageError if the file is for SageMaker, or if a value has the wrong type.
    """
    found: dict[str, Any] = {**_flat(config, place), **{name: value or True for name, value in options.items()}}
    kind = _kind(found, options)
    asked = _number(found, "num_processes", place)
    if single := _is_single(found, kind, config):
        found["num_processes"] = found["num_machines"] = None
    nodes, total = _number(found, "num_machines", place), _number(found, "num_processes", place)
    if total and total % (nodes or 1):
        raise UsageError(f"--num_processes {total} is not the same number on each of {nodes} machines")
    env, taken = _variables(found, kind, config, options)
    left = sorted(name for name, value in found.items() if name not in taken | _READ_HERE and _is_set(value))
    ours = [name for name in left if name in _OF_ORCH and config]
    notes = [f"{', '.join(ours)} of accelerate left out, because orch sets these values itself"] if ours else []
    notes += [f"{name} of accelerate was left out: {found[name]}"[:200] for name in left if name not in _OF_ORCH]
    if "cpu" in options and single and (asked or 1) > 1:
        reason = "accelerate starts one process with --cpu; --nproc-per-node of orch starts more"
        notes.append(f"num_processes {asked} was left out, because {reason}")
    nproc = 1 if single else max(1, total // (nodes or 1)) if total else None
    return Settings(nodes, nproc, env, tuple(notes))


def _flat(config: Mapping[str, Any], place: str) -> dict[str, Any]:
    """Return the values of a config file, keyed by the names of the corresponding options."""
    if config.get("compute_environment", "LOCAL_MACHINE") != "LOCAL_MACHINE":
        hint = "orch runs only on machines that it reaches over SSH or through a scheduler"
        raise UsageError(f"{place}: compute_environment {config['compute_environment']} is not LOCAL_MACHINE", hint)
    found: dict[str, Any] = {}
    for name, value in config.items():
        if name not in _GROUPS:
            found[name] = value
        elif isinstance(value, Mapping):
            prefix = _GROUPS[name]
            found |= {key if key.startswith(prefix) else prefix + key: each for key, each in value.items()}
        elif value is not None:
            raise UsageError(f"{place}: {name} is not a mapping", "write it as `accelerate config` does")
    return found


def _kind(found: Mapping[str, Any], options: Mapping[str, str]) -> str:
    """Return accelerate's distributed_type. Flags such as --multi_gpu override the file's value."""
    return next((kind for flag, kind in _KINDS.items() if flag in options), str(found.get("distributed_type") or ""))


def _is_single(found: Mapping[str, Any], kind: str, config: Mapping[str, Any]) -> bool:
    """Return True if accelerate would start the script in only one process, whatever number of processes is set.

    `--cpu` means one process, except with mpirun. With the type MULTI_CPU, mpirun starts the processes.
    """
    by_mpirun = kind == "MULTI_CPU" or _is_set(found.get("mpirun_hostfile"))
    return (kind == "NO" and bool(config)) or (_is_set(found.get("cpu")) and not by_mpirun)


def _number(found: Mapping[str, Any], name: str, place: str) -> int | None:
    value = found.get(name)
    if value is None or value == -1 or (isinstance(value, str) and "$" in value):
        return None
    if isinstance(value, bool) or not re.fullmatch(r"[0-9]{1,6}", str(value)) or int(value) == 0:
        where = f"{place}: {name}:" if place else f"--{name}"
        raise UsageError(f"{where} {value} is not a number of at least 1")
    return int(value)


def _variables(
    found: Mapping[str, Any], kind: str, config: Mapping[str, Any], options: Mapping[str, str]
) -> tuple[dict[str, str], set[str]]:
    """Return the variables that accelerate would set for the script, and the settings that they represent."""
    env: dict[str, str] = {}
    names = dict(_VARIABLES)
    if "mixed_precision" in found:
        value = found["mixed_precision"]
        env["ACCELERATE_MIXED_PRECISION"] = "no" if value in (None, False) else str(value)
    if _is_set(backend := found.get("dynamo_backend")):
        env["ACCELERATE_DYNAMO_BACKEND"] = str(backend).upper()
    if _is_set(ids := found.get("gpu_ids")) and ids != "all":
        env["CUDA_VISIBLE_DEVICES"] = str(ids)
    if kind == "FSDP":
        names |= _FSDP
        env["ACCELERATE_USE_FSDP"] = "true"
        found = {**_FSDP_DEFAULTS, **found}
    elif kind == "DEEPSPEED":
        names |= _DEEPSPEED
        env["ACCELERATE_USE_DEEPSPEED"] = "true"
        given = [
            *(config.get("deepspeed_config") or ()),
            *(["mixed_precision"] if config.get("mixed_precision") else []),
        ]
        env["ACCELERATE_CONFIG_DS_FIELDS"] = ",".join(map(str, given)).lower()
    for name, variable in names.items():
        if (value := found.get(name)) is not None and not isinstance(value, (dict, list)):
            env[variable] = str(value).lower() if isinstance(value, bool) else str(value)
    switches = {name: pair for name, pair in _SWITCHES.items() if name in found}
    env |= {variable: text for name, (variable, text) in switches.items() if _is_set(found[name])}
    taken = {name for name in names if not isinstance(found.get(name), (dict, list))} | switches.keys()
    return env, taken


def _is_set(value: Any) -> bool:
    """Return True if a setting is on. accelerate's PyYAML reads `no` and `off` as false; YAML 1.2 reads them as
    text.
    """
    return bool(value) and str(value).lower() not in ("no", "false", "off", "none", "0")
