"""A durable, checksummed checkpoint against torch.distributed.checkpoint.save, in one process; 512 MB."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from pairs import Load, Target, how_many, interleave, print_pairs
from torch.distributed import checkpoint as dcp

from orchestrator.training.checkpoint import format as checkpoints
from orchestrator.training.checkpoint import sharded
from orchestrator.training.checkpoint.staging import Staging

TENSORS, TENSOR_BYTES = 8, 64_000_000


def main() -> None:
    load, count = Load(), how_many(10)
    state = {f"layer{number}": torch.randn(TENSOR_BYTES // 4) for number in range(TENSORS)}
    with tempfile.TemporaryDirectory(prefix="orch-bench-") as folder:
        place = Path(folder)

        def ours(save: Callable[[Path, checkpoints.Manifest], Path]) -> float:
            begun = time.monotonic()
            path = save(place / "ours", checkpoints.Manifest(step=1))
            seconds = time.monotonic() - begun
            shutil.rmtree(path)
            return seconds

        def whole() -> float:
            return ours(lambda folder, manifest: checkpoints.save(folder, state, manifest))

        def in_parts() -> float:
            return ours(lambda folder, manifest: sharded.write(folder, state, {}, manifest))

        def theirs() -> float:
            begun = time.monotonic()
            dcp.save(state, checkpoint_id=place / "theirs", no_dist=True)
            seconds = time.monotonic() - begun
            shutil.rmtree(place / "theirs")
            return seconds

        staging = Staging()

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
        whole(), in_parts(), theirs()  # each pays for its imports once
        saved = interleave(whole, theirs, count)
        shared = interleave(in_parts, theirs, count)
    against = "`torch.distributed.checkpoint.save`: files synced, no checksum of the data, no rename"
    for what, pairs in (
        ("512 MB checkpoint, until training goes on (`checkpoints.save`: durable, sha256, committed)", saved),
        ("the same as a rank of `fsdp` writes its part (DCP's own files, hashed while they are written)", shared),
    ):
        print_pairs(what, against, Target(1.2), pairs, pairs.medians("s"), load)
    what = "512 MB checkpoint, until training goes on with `async_save` (a copy in memory)"
    print_pairs(what, "`torch.save` in the loop, not synced", Target(0.2), waited, waited.medians("s", 3), load)


if __name__ == "__main__":
    main()
