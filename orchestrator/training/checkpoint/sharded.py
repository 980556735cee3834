"""Sharded checkpoints: every rank writes its part of the weights with torch's DCP into the checkpoint's folder.

DCP itself computes no hashes, has no commit, and unpickles its index. In this module, each rank hashes its files while
it writes them. Rank 0 collects all hashes in the manifest, and commits the folder when all ranks have written. The
index is read by an unpickler that accepts only the classes that an index contains. All ranks must see the folder.
"""

import os
import pickle
import warnings
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystem, FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.tensor import DTensor

from orchestrator.protocol.checkpoints.checkpoint_dir import Manifest, name_of
from orchestrator.training.checkpoint import format as checkpoints
from orchestrator.training.checkpoint import hashing
from orchestrator.training.checkpoint.staging import Staging
from orchestrator.training.distributed import group
from orchestrator.training.errors import CheckpointError

INDEX = ".metadata"
_INDEX_IS_MADE_OF = {
    "torch.distributed.checkpoint.metadata": {
        "Metadata", "TensorStorageMetadata", "TensorProperties", "ChunkStorageMetadata", "MetadataIndex",
        "StorageMeta", "_MEM_FORMAT_ENCODING",
    },
    "torch.distributed.checkpoint.filesystem": {"_StorageInfo"},
    "torch.serialization": {"_get_layout"},
    "pathlib": {"Path", "PosixPath"},
    "collections": {"OrderedDict"},
}  # fmt: skip


def on_host(shards: Mapping[str, Tensor], staging: Staging) -> dict[str, Tensor]:
    """Copy this rank's parts to host memory, where training does not change them."""
    own = {name: each.to_local() if isinstance(each, DTensor) else each for name, each in shards.items()}
    # DTensor's constructor is used as in torch's own stagers. from_local would move the copy back to the mesh's device.
    return {
        name: DTensor(copied, each._spec, requires_grad=False) if isinstance(each := shards[name], DTensor) else copied
        for name, copied in staging.copy(own).items()
    }


def write(
    folder: Path,
    shards: Mapping[str, Tensor],
    state: Mapping[str, Any],
    manifest: Manifest,
    members: dist.ProcessGroup | None = None,
) -> Path:
    """Write and commit a checkpoint with the `shards` of all ranks and the state of rank 0. All ranks must call this.

    `members` is the group for the collectives, if this thread can't use the default group. The checkpoint is on the
    disk when this returns. If a rank fails, CheckpointError is raised on all ranks.
    """
    temp = Path(group.done_by_main(lambda: str(checkpoints.begin(folder, manifest.step)), CheckpointError, members))
    answers = group.everyones(_write_mine(temp, dict(shards), members), members)

    def commit() -> str:
        if problem := "; ".join(sorted({trouble for _, trouble in answers if trouble})):
            checkpoints.discard(temp)
            path = temp.with_name(name_of(manifest.step))
            raise CheckpointError(f"The checkpoint {path} could not be written: {problem}.")
        files = {name: entry for written, _ in answers for name, entry in written.items()}
        return str(checkpoints.commit(temp, state, replace(manifest, files=files)))

    return Path(group.done_by_main(commit, CheckpointError, members))


def _write_mine(
    temp: Path, shards: dict[str, Any], members: dist.ProcessGroup | None
) -> tuple[dict[str, dict[str, Any]], str]:
    """Write this rank's part of the checkpoint. Return the manifest's entries for the written files, and an error
    message ("" after a success).
    """
    try:
        writer = FileSystemWriter(temp, sync_files=False)  # `files` flushes each file to the disk
        writer.fs = files = _HashedFiles()
        with _alone_or_not() as alone, hashing.without_crc32():
            state_dict_saver.save(shards, storage_writer=writer, no_dist=alone, process_group=members)
        return files.written, ""
    except CheckpointException as error:
        return {}, _reasons(error)
    except OSError as error:
        return {}, error.strerror or str(error)


class _HashedFiles(FileSystem):
    """A DCP file system that also hashes each file while DCP writes it, and flushes the file to the disk.

    `written` maps the names of files to their entries for the manifest.
    """

    def __init__(self) -> None:
        self.written: dict[str, dict[str, Any]] = {}

    @contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Generator[Any]:
        with hashing.hashed(Path(path)) as writer:
            yield writer
            self.written[Path(path).name] = writer.finish()

    def rename(self, path: str | os.PathLike[str], new_path: str | os.PathLike[str]) -> None:
        super().rename(path, new_path)
        self.written[Path(new_path).name] = self.written.pop(Path(path).name)


class _Reader(FileSystemReader):
    """A DCP reader that does not run code that the index names."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        with open(Path(self.path) / INDEX, "rb") as file:
            metadata = _IndexUnpickler(file).load()
        if not isinstance(metadata, Metadata):
            raise pickle.UnpicklingError(f"it contains a {type(metadata).__name__} instead of an index")
        return metadata


class _IndexUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        is_plain_torch = module == "torch" and (name == "Size" or isinstance(getattr(torch, name, None), torch.dtype))
        if is_plain_torch or name in _INDEX_IS_MADE_OF.get(module, ()):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"an index must not contain {module}.{name}")


def index(path: Path) -> dict[str, TensorStorageMetadata]:
    """Return a dict from the name of each sharded tensor of a checkpoint to the tensor's size and type.

    Raises CheckpointError if the checkpoint's index can't be read.
    """
    try:
        found = _Reader(path).read_metadata().state_dict_metadata
    except FileNotFoundError as error:
        raise CheckpointError(
            f"The checkpoint {path} is sharded, and not every rank can see {error.filename}: put the checkpoint into "
            "a folder that all nodes share."
        ) from error
    except Exception as error:
        # For a damaged stream, pickle can raise any error.
        raise CheckpointError(f"The index of the checkpoint {path} can't be read: {error}.") from error
    return {name: entry for name, entry in found.items() if isinstance(entry, TensorStorageMetadata)}


def read_into(path: Path, targets: dict[str, Any]) -> None:
    """Fill tensors from a checkpoint. The tensors may be sharded or whole, and each rank reads only the parts that
    it needs.
    """
    try:
        with _alone_or_not() as alone:
            state_dict_loader.load(targets, storage_reader=_Reader(path), no_dist=alone)
    except CheckpointException as error:
        raise CheckpointError(f"The checkpoint {path} can't be loaded: {_reasons(error)}.") from error


@contextmanager
def _alone_or_not() -> Iterator[bool]:
    """Yield whether this process has no process group. During the block, DCP does not warn about a missing group."""
    if group.is_joined():
        yield False
        return
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        yield True


def _reasons(error: CheckpointException) -> str:
    """Return the reasons of all ranks' errors in one text. DCP raises the same CheckpointException on every rank."""
    found = {getattr(failure[0], "strerror", None) or str(failure[0]) for failure in error.failures.values()}
    return " and ".join(sorted(" ".join(reason.split()).rstrip(".") for reason in found))


def read_whole(path: Path) -> dict[str, Tensor]:
    """Return all sharded tensors of a checkpoint as whole tensors on this rank's CPU. In a process group, all ranks
    must call this.
    """
    whole: dict[str, Tensor] = {
        name: torch.empty(entry.size, dtype=entry.properties.dtype) for name, entry in index(path).items()
    }
    read_into(path, whole)
    return whole
