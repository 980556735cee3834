"""A durable, checksummed checkpoint against torch.distributed.checkpoint.save, in one process; 512 MB and 128 MB.

Beside them the disk's own rate: as many bytes written and synced, and nothing else. Checksums are blake3's, where the
package is installed, and sha256 in the rows that say so.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import torch
from pairs import Load, Target, how_many, interleave, print_pairs, print_row
from torch import Tensor
from torch.distributed import checkpoint as dcp

from orchestrator.protocol.checkpoints.checksum import VARIABLE, Algorithm, chosen
from orchestrator.training.checkpoint import format as checkpoints
from orchestrator.training.checkpoint import sharded
from orchestrator.training.checkpoint.staging import Staging

TENSORS = 8
AGAINST = "`torch.distributed.checkpoint.save`: files synced, no checksum of the data, no rename"
State = Mapping[str, Tensor]


@contextlib.contextmanager
def hashed_with(algorithm: Algorithm) -> Iterator[None]:
    """What is saved within is hashed with this."""
    os.environ[VARIABLE] = algorithm
    try:
        yield
    finally:
        del os.environ[VARIABLE]


def state_of(size: int) -> dict[str, Tensor]:
    """Tensors of so many bytes in all."""
    return {f"layer{number}": torch.randn(size // TENSORS // 4) for number in range(TENSORS)}


def timed(save: Callable[[], Path]) -> float:
    """How long the save takes, whose folder is removed after it."""
    begun = time.monotonic()
    path = save()
    seconds = time.monotonic() - begun
    shutil.rmtree(path)
    return seconds


def compare(place: Path, size: int, count: int) -> None:
    """Print the rows of one size."""
    state, load = state_of(size), Load()

    def whole() -> float:
        return timed(lambda: checkpoints.save(place / "ours", state, checkpoints.Manifest(step=1)))

    def in_parts() -> float:
        return timed(lambda: sharded.write(place / "ours", state, {}, checkpoints.Manifest(step=1)))

    def of_sha256() -> float:
        with hashed_with(Algorithm.SHA256):
            return whole()

    def theirs() -> float:
        def save() -> Path:
            dcp.save(dict(state), checkpoint_id=place / "theirs", no_dist=True)
            return place / "theirs"

        return timed(save)

    name = f"{size // 1_000_000} MB checkpoint"
    whole(), of_sha256(), in_parts(), theirs()  # each pays for its imports once
    for what, ours in (
        (f"{name}, until training goes on (`checkpoints.save`: durable, {chosen(os.environ)}, committed)", whole),
        (f"{name}, hashed with sha256", of_sha256),
        (f"{name} as a rank of `fsdp` writes its part (DCP's own files, hashed while they are written)", in_parts),
    ):
        pairs = interleave(ours, theirs, count)
        print_pairs(what, AGAINST, Target(1.2), pairs, pairs.medians("s"), load)
    print_rate(place / "plain", size, count)


def print_rate(path: Path, size: int, count: int) -> None:
    """Print how fast the disk takes so many bytes."""
    load, block, rates = Load(), memoryview(os.urandom(4_000_000)), list[float]()
    for _ in range(count):
        begun = time.monotonic()
        with path.open("xb", buffering=0) as file:
            for _ in range(size // len(block)):
                file.write(block)
            os.fsync(file.fileno())
        rates.append(size / (time.monotonic() - begun) / 1e6)
        path.unlink()
    shown = f"{sorted(rates)[count // 2]:,.0f} MB/s ({min(rates):,.0f}-{max(rates):,.0f})"
    what = f"the disk's own rate: {size // 1_000_000} MB written and synced"
    print_row(what, "-", "-", shown, str(count), "-", "no target", str(load))


def compare_aside(place: Path, size: int, count: int) -> None:
    """Print the row of a save that goes on beside the training."""
    state, staging, load = state_of(size), Staging(), Load()

    def aside() -> float:
        begun = time.monotonic()
        copied = staging.copy(state)
        seconds = time.monotonic() - begun
        checkpoints.discard(checkpoints.write(place / "ours", copied, checkpoints.Manifest(step=1)))
        return seconds

    def saved_in_the_loop() -> float:
        begun = time.monotonic()
        torch.save(state, place / "theirs.pt")
        seconds = time.monotonic() - begun
        (place / "theirs.pt").unlink()
        return seconds

    aside(), saved_in_the_loop()
    waited = interleave(aside, saved_in_the_loop, count)
    what = f"{size // 1_000_000} MB checkpoint, until training goes on with `async_save` (a copy in memory)"
    print_pairs(what, "`torch.save` in the loop, not synced", Target(0.2), waited, waited.medians("s", 3), load)


def main() -> None:
    count = how_many(10)
    with tempfile.TemporaryDirectory(prefix="orch-bench-") as folder:
        compare(Path(folder), 512_000_000, count)
        compare(Path(folder), 128_000_000, count)
        compare_aside(Path(folder), 512_000_000, count)


if __name__ == "__main__":
    main()
