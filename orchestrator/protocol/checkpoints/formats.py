"""Detects the format of a checkpoint (folder or file), whether it is complete, and its step and metric.

No file is unpickled or trusted. A step comes from a name, a JSON file or the opcodes of a file's header. A file
counts as complete if it has the length that its header declares (see weight_files).

    checkpoint-500/trainer_state.json         Hugging Face Trainer
    epoch=3-step=400.ckpt                     Lightning, a file, or a folder if the strategy shards
    .../.metadata, __0_0.distcp               torch.distributed.checkpoint
    latest, global_step50/*_states.pt         DeepSpeed
    random_states_0.pkl, model.safetensors    accelerate's save_state, a folder of files
    model.safetensors.index.json              shards of Hugging Face's save_pretrained, a folder of files
    iter_0000010/mp_rank_00/*.pt              Megatron, beside latest_checkpointed_iteration.txt
    _CHECKPOINT_METADATA, CKPT.yaml           folders of orbax and of SpeechBrain
    model.pt, epoch_3.safetensors             a file of weights, with or without a number in its name
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Collection, Mapping
from typing import Any

from orchestrator.protocol.checkpoints import checkpoint_dir
from orchestrator.protocol.checkpoints.stat_cache import cached_by_stat
from orchestrator.protocol.checkpoints.weight_files import global_step, is_whole, names_weights, stem_of
from orchestrator.protocol.reading import read_object, read_part
from orchestrator.protocol.str_enum import StrEnum

STATE_OF_TRAINER = "trainer_state.json"
_OF_DEEPSPEED, _OF_MEGATRON = "latest", "latest_checkpointed_iteration.txt"
TRACKERS = (_OF_DEEPSPEED, _OF_MEGATRON)
"""Files beside the folders of checkpoints that name the newest checkpoint. The framework writes such a file last, and
does not find the checkpoint without it.
"""
MAX_TEXT = 64 << 20  # bytes; enough for a JSON file with an entry for each step

_HF_NAME = re.compile(r"checkpoint-\d+")
_OF_TRAINER = re.compile(
    r"trainer_state\.json|training_args\.bin|optimizer\.(pt|bin)|scheduler\.pt|rng_state.*\.pth|"
    r"(adapter_)?model.*\.safetensors|pytorch_model.*\.bin"
)
_OF_ACCELERATE = re.compile(r"random_states_\d+\.pkl")
_MEGATRON_NAME = re.compile(r"iter_\d{7}")
_SHARDS = (".safetensors.index.json", ".bin.index.json")
_ORBAX = ("_CHECKPOINT_METADATA", "_METADATA")
_TORN_ORBAX = ".orbax-checkpoint-tmp"
_PART_OF_DCP = re.compile(rb"__\d+_\d+\.distcp")
_IN_NAME = re.compile(r"(?:^|-)([^=-]+)=(-?\d+(?:\.\d+)?(?:e[+-]?\d+)?)(?=-|$)")
_LAST_NUMBER = re.compile(r"(\d+)(?!.*\d)", re.DOTALL)
_NO_METRIC = ("runtime", "samples_per_second", "steps_per_second", "jit_compilation_time")

Sizes = Mapping[str, int]  # sizes of a folder's files by relative path


class Format(StrEnum):
    """The framework whose layout a checkpoint has."""

    ORCH = "orch"
    """`orchestrator.training`: step_00000100/COMMIT."""
    HF = "hf"
    """Hugging Face Trainer: checkpoint-100/trainer_state.json."""
    LIGHTNING = "lightning"
    """Lightning: a .ckpt file, or a folder whose name ends in .ckpt."""
    DCP = "dcp"
    """torch.distributed.checkpoint: a folder with .metadata."""
    DEEPSPEED = "deepspeed"
    """DeepSpeed: a folder for each tag, beside `latest`."""
    FILES = "files"
    """Other files of weights, folders of accelerate, orbax, Megatron etc., and matches of a job's glob."""


def format_of(folder: str, files: Collection[str], folders: Collection[str]) -> Format | None:
    """Return the format of the checkpoint in a folder with these entries, complete or not. Return None if the folder
    is not a checkpoint.
    """
    name = os.path.basename(folder)
    if checkpoint_dir.step_of(name) is not None:
        return Format.ORCH
    if name.endswith(".ckpt") and (files or folders):
        return Format.LIGHTNING
    if _HF_NAME.fullmatch(name) and any(_OF_TRAINER.fullmatch(each) for each in files):
        return Format.HF
    if any(each.endswith("_model_states.pt") for each in files):
        return Format.DEEPSPEED
    if any(each == ".metadata" or each.endswith(".distcp") for each in files):
        return Format.DCP
    return Format.FILES if _is_folder_of_files(name, files, folders) else None


def _is_folder_of_files(name: str, files: Collection[str], folders: Collection[str]) -> bool:
    """Return whether a folder with these entries is one checkpoint, complete or not, of a library that saves several
    files per folder (accelerate, Megatron and others).
    """
    if any(_OF_ACCELERATE.fullmatch(each) for each in files) or "CKPT.yaml" in files:
        return True
    if name.endswith(".orbax") or _TORN_ORBAX in name or any(each in files for each in _ORBAX):
        return True
    if _MEGATRON_NAME.fullmatch(name) and any(each.startswith("mp_rank_") for each in folders):
        return True
    is_model_alone = not folders and not any(each.endswith(".py") for each in files)
    return is_model_alone and any(each.endswith(_SHARDS) for each in files)


def step_of_folder(folder: str, kind: Format) -> int:
    """Return the step in a folder's name, or -1 if there is none."""
    name = os.path.basename(folder)
    return _step_in(name[: -len(".ckpt")]) if kind is Format.LIGHTNING else _number_in(name)


def is_whole_folder(folder: str, kind: Format, sizes: Sizes) -> bool:
    """Return whether a folder with these files is a complete checkpoint."""
    if kind is Format.ORCH:
        return checkpoint_dir.COMMIT in sizes
    name = os.path.basename(folder)
    if kind is Format.FILES and (name.endswith(".orbax") or any(each in sizes for each in _ORBAX)):
        return _TORN_ORBAX not in name and any(sizes.values())  # orbax renames a folder when it is complete
    weights = [name for name in sizes if names_weights(os.path.basename(name))]
    if not weights or not all(sizes[name] and is_whole(f"{folder}/{name}") for name in weights):
        return False
    if kind is Format.HF:
        is_told = _trained_steps(f"{folder}/{STATE_OF_TRAINER}") == step_of_folder(folder, kind)
        return is_told and _has_all_shards(folder, sizes)
    if kind is Format.DEEPSPEED:
        return _is_tracked(folder, _OF_DEEPSPEED)
    # Lightning's FSDP strategy writes the format of torch.distributed.checkpoint, and its DeepSpeed strategy
    # DeepSpeed's
    if kind is Format.LIGHTNING:
        inside = sorted({os.path.dirname(name) for name in weights})
        return _has_all_parts(folder, sizes) or any(
            _is_tracked(f"{folder}/{name}", _OF_DEEPSPEED) for name in inside if name
        )
    if kind is Format.FILES:
        tracker = tracker_of(folder, kind)
        return _has_all_shards(folder, sizes) and (not tracker or _is_tracked(folder, tracker))
    return _has_all_parts(folder, sizes)


def tracker_of(folder: str, kind: Format) -> str:
    """Return the name of the file beside a checkpoint's folder to which the framework writes which checkpoint is the
    newest. Return "" if the framework writes no such file.
    """
    if kind is Format.DEEPSPEED:
        return _OF_DEEPSPEED
    is_megatron = kind is Format.FILES and _MEGATRON_NAME.fullmatch(os.path.basename(folder))
    return _OF_MEGATRON if is_megatron else ""


def _has_all_parts(folder: str, files: Collection[str]) -> bool:
    """Return whether all files exist that `.metadata` of torch.distributed.checkpoint names. torch writes
    `.metadata` last.
    """
    try:
        metadata = read_part(f"{folder}/.metadata", 0, MAX_TEXT)
    except OSError:
        return False
    return metadata.endswith(b".") and {os.fsdecode(each) for each in _PART_OF_DCP.findall(metadata)} <= set(files)


def _is_tracked(folder: str, tracker: str) -> bool:
    """Return whether the file `tracker` beside a folder names this folder or a later one. The framework writes this
    file last. DeepSpeed writes the folder's name into it, and Megatron writes only the number.
    """
    try:
        latest = read_part(f"{os.path.dirname(folder)}/{tracker}", 0, 4096).decode().strip()
    except (OSError, ValueError):
        return False
    name = os.path.basename(folder)
    return name in (latest, f"iter_{latest:0>7}") or 0 <= _number_in(name) < _number_in(latest)


def _has_all_shards(folder: str, files: Collection[str]) -> bool:
    """Return whether all shards exist that the index files (`*.index.json`) in the folder list."""
    for name in files:
        if name.endswith(".index.json"):
            shards = _json_in(f"{folder}/{name}").get("weight_map")
            if not isinstance(shards, dict) or not set(map(str, shards.values())) <= set(files):
                return False
    return True


def step_of_file(path: str, kind: Format) -> int:
    """Return the step of a complete file: the step that Lightning stored in it, else the number in its name, else
    -1.
    """
    name = stem_of(os.path.basename(path))
    if kind is not Format.LIGHTNING:
        return _number_in(name)
    step = global_step(path)
    return _step_in(name) if step is None else step


def _step_in(name: str) -> int:
    """Return the step that Lightning put into a name. Without a step, return the epoch, else the last number in the
    name, else -1.
    """
    told = dict(_IN_NAME.findall(name))
    number = told.get("step", told.get("epoch"))
    if number is None:
        return -1 if told else _number_in(name)
    return int(number) if number.isdecimal() and len(number) <= 15 else -1


def _number_in(name: str) -> int:
    """Return the last number in a name, or -1 if there is none or it is too long for a step."""
    match = _LAST_NUMBER.search(name)
    return int(match[1]) if match and len(match[1]) <= 15 else -1


# -- metrics


def metric_of(path: str, kind: Format) -> dict[str, float]:
    """Return the metrics in a checkpoint's text file or name."""
    name = os.path.basename(path)
    if kind is Format.HF:
        return _metric_of_trainer(name, _json_in(f"{path}/{STATE_OF_TRAINER}"))
    told = _IN_NAME.findall(name[: -len(".ckpt")]) if kind is Format.LIGHTNING else ()
    return _numbers({key.strip(): float(value) for key, value in told if key.strip() not in ("epoch", "step")})


def _metric_of_trainer(name: str, state: Mapping[str, Any]) -> dict[str, float]:
    """Return the metrics of the last evaluation. If there are none and this checkpoint is the best one, return the best
    metric.
    """
    log = state.get("log_history")
    for entry in reversed(log if isinstance(log, list) else []):
        found = _numbers(entry, "eval_") if isinstance(entry, dict) else {}
        if found:
            return found
    best, where = state.get("best_metric"), state.get("best_model_checkpoint")
    is_this = isinstance(where, str) and os.path.basename(where) == name
    return _numbers({"best_metric": best}) if is_this else {}


def _numbers(entry: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    found = {}
    for name, value in entry.items():
        if name.startswith(prefix) and type(value) in (int, float) and not name.endswith(_NO_METRIC):
            with contextlib.suppress(OverflowError):
                found[name] = float(value)
    return found


@cached_by_stat
def _trained_steps(path: str) -> object:
    """Return the step in the state of Hugging Face's Trainer, or None if the state is missing or damaged."""
    return _json_in(path).get("global_step")


def _json_in(path: str) -> Mapping[str, Any]:
    """Return the object in a JSON file, or an empty object if the file can't be read."""
    return read_object(path, MAX_TEXT) or {}
