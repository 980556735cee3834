"""Finds out from a weight file's own format whether the file is complete, and which step it has.

Nothing is unpickled. The length of a file follows from the header of safetensors, or from the directory of a zip, which
torch.save writes last. Only the opcodes of a pickle are read.
"""

from __future__ import annotations

import os
import re
from typing import BinaryIO

from orchestrator.protocol.checkpoints.stat_cache import cached_by_stat
from orchestrator.protocol.json_text import parse_json
from orchestrator.protocol.reading import opened

SUFFIXES = (
    ".pt", ".pth", ".ckpt", ".safetensors", ".bin", ".npz", ".h5", ".msgpack", ".pkl", ".joblib", ".distcp",
    ".pth.tar", ".pt.tar", ".ckpt.tar", ".pyth", ".th", ".pdparams", ".pdopt", ".keras", ".hdf5", ".nemo",
)  # fmt: skip
MAX_HEADER = 100 << 20  # the limit of the safetensors library
FIRST_OPCODES = 4096  # bytes of a pickle that contain Lightning's epoch and step

_INTS = ("BININT", "BININT1", "BININT2", "LONG1")
_MEMOS = ("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE")
_ZIPPED = (".pt", ".pth", ".ckpt", ".npz", ".distcp", ".tar", ".pyth", ".th", ".keras")
_OTHER_NAMES = re.compile(
    r"(g|do|checkpoint|ckpt|waveglow|tacotron2?|snapshot)[_.-](ep\.)?\d+"  # hifigan, flax, tacotron2, ESPnet 1
    r"|.*(ckpt|checkpoint).*\.(index|meta|data-\d+-of-\d+)"  # TensorFlow, with .ckpt-1000.index
    r"|rl_model_\d+_steps\.zip"  # stable-baselines3
)
_ENDING = re.compile(r"(\.data-\d+-of-\d+|\.index|\.meta|\.zip)$")
_RANK = re.compile(r"[-_.]rank[-_.]?\d+$")


def names_weights(name: str) -> bool:
    """Return whether a file with this name is a weight file. Some repositories write weight files without a suffix."""
    return name.endswith(SUFFIXES) or _OTHER_NAMES.fullmatch(name) is not None


def stem_of(name: str) -> str:
    """Return the part of a file name that may contain a step: the name without its suffix and the rank's number."""
    suffix = max((each for each in SUFFIXES if name.endswith(each)), key=len, default="")
    stem = name[: -len(suffix)] if suffix else _ENDING.sub("", name)
    return _RANK.sub("", stem)


@cached_by_stat
def is_whole(path: str) -> bool:
    """Return whether a weight file has the full length that its format declares. Return True if the format declares
    no length.

    torch.save's older format (not a zip) and plain pickles declare no length. A zip's directory is written last.
    """
    try:
        with opened(path) as file:
            head = file.read(8)
            if path.endswith(".safetensors"):
                return _has_declared_length(file, head)
            if head[:2] == b"PK" or (path.endswith(_ZIPPED) and head[:1] == b"P"):
                import zipfile

                return zipfile.is_zipfile(file)
    except OSError:
        return False
    return head != b""


def _has_declared_length(file: BinaryIO, head: bytes) -> bool:
    """Return whether a safetensors file has the length that its header declares. `head` has the first bytes of the
    file.
    """
    size, count = os.fstat(file.fileno()).st_size, int.from_bytes(head, "little")
    if len(head) < 8 or not 0 < count <= min(MAX_HEADER, size - 8):
        return False
    try:
        entries = parse_json(file.read(count))
    except ValueError:
        return False
    if not isinstance(entries, dict):
        return False
    ends = [_end_of(entry) for name, entry in entries.items() if name != "__metadata__"]
    return bool(entries) and size == 8 + count + max(ends, default=0)


def _end_of(entry: object) -> int:
    """Return the offset at which a tensor's bytes end, from its entry in the header; -1 if the entry is not valid."""
    offsets = entry.get("data_offsets") if isinstance(entry, dict) else None
    return offsets[1] if isinstance(offsets, list) and [type(each) for each in offsets] == [int, int] else -1


@cached_by_stat
def global_step(path: str) -> int | None:
    """Return the `global_step` that Lightning stored in a file of torch.save, or None if there is none."""
    import zipfile

    try:
        with opened(path) as whole, zipfile.ZipFile(whole) as archive:
            name = next(each for each in archive.namelist() if each.rpartition("/")[2] == "data.pkl")
            with archive.open(name) as file:
                return _int_after("global_step", file.read(FIRST_OPCODES))
    except Exception:  # noqa: BLE001 (zipfile and pickletools raise many types for a file of another format)
        return None


def _int_after(key: str, pickled: bytes) -> int | None:
    """Return the number that follows the text `key` in a pickle's opcodes. The opcodes are read and never executed."""
    import pickletools

    is_next = False
    for opcode, value, _ in pickletools.genops(pickled):
        if is_next and opcode.name in _INTS:
            return value if type(value) is int else None
        is_next = value == key or (is_next and opcode.name in _MEMOS)
    return None
