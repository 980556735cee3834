"""Checkpoints that others' frameworks write, found in a folder: which step, and is it whole. Python 3.9, no torch.

Nothing is unpickled and nothing trusted: a step comes out of a name or a JSON file, and a file counts as whole where
its container says so (zip's directory, which torch.save writes last; safetensors' header).

    checkpoint-500/trainer_state.json         Hugging Face Trainer
    epoch=3-step=400.ckpt                     Lightning
    .../.metadata, __0_0.distcp               torch.distributed.checkpoint
    latest, global_step50/*_states.pt         DeepSpeed
    model.pt, epoch_3.safetensors             a file of weights, with or without a number in its name
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import zipfile
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

from orchestrator.protocol import checkpoint_dir
from orchestrator.protocol.json_text import parse_json
from orchestrator.protocol.str_enum import StrEnum

MAX_DEPTH = 5
MAX_ENTRIES = 50_000  # of a walk: a folder of a million samples must not hold a restart up
MAX_JSON = 64 << 20  # trainer_state.json holds the log of all steps
MAX_HEADER = 100 << 20  # as safetensors itself limits it

_WEIGHTS = (".pt", ".pth", ".ckpt", ".safetensors", ".bin", ".npz", ".h5", ".msgpack", ".pkl", ".joblib")
_ZIPPED = (".pt", ".pth", ".ckpt", ".npz")
_HF_NAME = re.compile(r"checkpoint-\d+")
_OF_TRAINER = re.compile(
    r"trainer_state\.json|training_args\.bin|optimizer\.(pt|bin)|scheduler\.pt|rng_state.*\.pth|"
    r"(adapter_)?model.*\.safetensors|pytorch_model.*\.bin"
)
_LIGHTNING_STEP = re.compile(r"(?:^|-)step=(\d+)")
_LAST_NUMBER = re.compile(r"(\d+)(?!.*\d)", re.DOTALL)
_NOT_SEARCHED = frozenset({"__pycache__", "data", "node_modules", "site-packages"})


class Format(StrEnum):
    """Whose layout a checkpoint has."""

    ORCH = "orch"
    """`orchestrator.training`: step_00000100/COMMIT."""
    HF = "hf"
    """Hugging Face Trainer: checkpoint-100/trainer_state.json."""
    LIGHTNING = "lightning"
    """Lightning: one .ckpt file."""
    DCP = "dcp"
    """torch.distributed.checkpoint: a folder with .metadata."""
    DEEPSPEED = "deepspeed"
    """DeepSpeed: a folder for each tag, beside `latest`."""
    FILES = "files"
    """Any other file of weights."""


@dataclass(frozen=True)
class Saved:
    """One whole checkpoint; its step is -1 where nothing tells it, its time its last file's, by the wall clock."""

    format: Format
    path: str
    step: int
    time: float


def find_saved(folders: Iterable[str], since: float = 0.0) -> list[Saved]:
    """Return the whole checkpoints below these folders of which a file was written after `since`, in no order.

    A torn one is left out, and so is what can't be read; links are not followed.
    """
    left = [MAX_ENTRIES]
    found = {each.path: each for folder in folders if folder for each in _search(folder, MAX_DEPTH, left)}
    return [each for each in found.values() if each.time > since]


def _search(folder: str, depth: int, left: list[int]) -> Iterator[Saved]:
    files, folders = _entries(folder, left)
    if (kind := _format_of(os.path.basename(folder), files)) is not None:
        if (saved := _of_folder(folder, kind, files)) is not None:
            yield saved
        return
    for name in files:
        if (saved := _of_file(f"{folder}/{name}", files[name])) is not None:
            yield saved
    for name in folders if depth else ():
        if name not in _NOT_SEARCHED and "pyvenv.cfg" not in os.listdir(f"{folder}/{name}"):
            yield from _search(f"{folder}/{name}", depth - 1, left)


def _entries(folder: str, left: list[int]) -> tuple[dict[str, os.stat_result], list[str]]:
    """Return (the plain files with what stat says of them, the folders that can be read)."""
    files: dict[str, os.stat_result] = {}
    folders: list[str] = []
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            left[0] -= 1
            if left[0] < 0:
                break
            with contextlib.suppress(OSError):
                info = entry.stat(follow_symlinks=False)
                if stat.S_ISREG(info.st_mode):
                    files[entry.name] = info
                elif stat.S_ISDIR(info.st_mode) and not entry.name.startswith(".") and os.access(entry.path, os.R_OK):
                    folders.append(entry.name)
    return files, sorted(folders)


def _format_of(name: str, files: Collection[str]) -> Format | None:
    """Return whose checkpoint a folder with these files is as a whole, also where it is torn; None where it is none."""
    if checkpoint_dir.step_of(name) is not None:
        return Format.ORCH
    if _HF_NAME.fullmatch(name) and any(_OF_TRAINER.fullmatch(each) for each in files):
        return Format.HF
    if any(each.endswith("_model_states.pt") for each in files):
        return Format.DEEPSPEED
    return Format.DCP if any(each == ".metadata" or each.endswith(".distcp") for each in files) else None


def _of_folder(folder: str, kind: Format, files: Mapping[str, os.stat_result]) -> Saved | None:
    """Return the checkpoint that a folder is; None where it is torn."""
    step = _number_in(os.path.basename(folder))
    if kind is Format.ORCH:
        whole = checkpoint_dir.COMMIT in files
    elif kind is Format.HF:
        whole = step == _step_of_trainer(folder) and _are_whole(folder, files) and _has_all_shards(folder, files)
    elif kind is Format.DEEPSPEED:
        whole = _are_whole(folder, files)
    else:
        whole = ".metadata" in files and files[".metadata"].st_size > 0
    return Saved(kind, folder, step, max(info.st_mtime for info in files.values())) if whole else None


def _of_file(path: str, info: os.stat_result) -> Saved | None:
    """Return the checkpoint that one file is; None where it holds no weights, or is torn."""
    name = os.path.basename(path)
    if name.startswith(".") or not name.endswith(_WEIGHTS) or info.st_size == 0 or not is_whole(path):
        return None
    if name.endswith(".ckpt"):
        match = _LIGHTNING_STEP.search(name)
        return Saved(Format.LIGHTNING, path, int(match[1]) if match else _number_in(name), info.st_mtime)
    return Saved(Format.FILES, path, _number_in(os.path.splitext(name)[0]), info.st_mtime)


def _number_in(name: str) -> int:
    """Return the last number of a name; -1 where it has none, or one that is no step's."""
    match = _LAST_NUMBER.search(name)
    return int(match[1]) if match and len(match[1]) <= 15 else -1


def _step_of_trainer(folder: str) -> object:
    """Return the step that Hugging Face's Trainer recorded; None where its file is missing or torn."""
    return _json_in(f"{folder}/trainer_state.json").get("global_step")


def _has_all_shards(folder: str, files: Collection[str]) -> bool:
    """Are all files here that an index of shards names?"""
    for name in files:
        if name.endswith(".index.json"):
            shards = _json_in(f"{folder}/{name}").get("weight_map")
            if not isinstance(shards, dict) or not set(map(str, shards.values())) <= set(files):
                return False
    return True


def _are_whole(folder: str, files: Collection[str]) -> bool:
    return all(is_whole(f"{folder}/{name}") for name in files if name.endswith(_WEIGHTS))


def is_whole(path: str) -> bool:
    """Return whether a file of weights ends where its own container says; True for one that doesn't say.

    torch.save's older format (not a zip) and plain pickles don't say; a zip's directory is written last.
    """
    try:
        with open(path, "rb") as file:
            head = file.read(8)
            if path.endswith(".safetensors"):
                return _ends_as_told(path, head)
    except OSError:
        return False
    if path.endswith(_ZIPPED) and head[:1] == b"P":
        return zipfile.is_zipfile(path)
    return head != b""


def _ends_as_told(path: str, head: bytes) -> bool:
    """Is a safetensors file as long as its header says?"""
    size, count = os.path.getsize(path), int.from_bytes(head, "little")
    if len(head) < 8 or not 0 < count <= min(MAX_HEADER, size - 8):
        return False
    with open(path, "rb") as file:
        file.seek(8)
        entries = _object(file.read(count))
    ends = [_end_of(entry) for name, entry in entries.items() if name != "__metadata__"]
    return bool(entries) and size == 8 + count + max(ends, default=0)


def _end_of(entry: object) -> int:
    """Return where a tensor's bytes end, by its entry in the header; -1 where that doesn't say."""
    offsets = entry.get("data_offsets") if isinstance(entry, dict) else None
    return offsets[1] if isinstance(offsets, list) and [type(each) for each in offsets] == [int, int] else -1


def _json_in(path: str) -> dict[str, object]:
    """Return the object of a JSON file; empty where it can't be read."""
    try:
        with open(path, "rb") as file:
            return _object(file.read(MAX_JSON))
    except OSError:
        return {}


def _object(text: bytes) -> dict[str, object]:
    try:
        value = parse_json(text)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
