"""A checkpoint's weights as a safetensors file: `python -m orchestrator.training.export CHECKPOINT FILE`.

The format: 8 bytes with the header's length (little-endian), the header as JSON (for each name its type, shape and
place), then the numbers of all tensors one after the other. It holds no code.
"""

import json
import os
import struct
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from orchestrator.training import checkpoints
from orchestrator.training.errors import EXIT_USAGE, CheckpointError
from orchestrator.training.resume import Loaded, whole

TYPES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16",
    torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
    torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2",
}  # fmt: skip


def weights(path: Path) -> tuple[dict[str, Tensor], checkpoints.Manifest]:
    """Return a checkpoint's weights by name and its manifest; CheckpointError where it holds no model."""
    state, manifest = checkpoints.load(path)
    state = whole(Loaded(state, path))
    objects = state.get("objects")
    model = state.get("model", objects.get("model") if isinstance(objects, dict) else None)
    if not isinstance(model, dict) or not all(isinstance(value, Tensor) for value in model.values()):
        raise CheckpointError(f"The checkpoint {path} holds no 'model', only {', '.join(sorted(state)) or 'nothing'}.")
    return {name.removeprefix("module."): value for name, value in model.items()}, manifest


def write(path: Path, tensors: Mapping[str, Tensor], notes: Mapping[str, str]) -> None:
    """Write tensors and notes (text by name), on the disk when this returns; `path` is there as a whole or not at all.

    CheckpointError for a type that the format doesn't know, and where the disk refuses.
    """
    header: dict[str, Any] = {"__metadata__": dict(notes)} if notes else {}
    # The widest numbers first, so that each begins at a multiple of its size.
    names = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    end = 0
    for name in names:
        tensor = tensors[name]
        if tensor.dtype not in TYPES:
            raise CheckpointError(f"{name} can't be written: safetensors has no numbers of type {tensor.dtype}.")
        begin, end = end, end + tensor.numel() * tensor.element_size()
        header[name] = {"dtype": TYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [begin, end]}
    encoded = json.dumps(header, separators=(",", ":")).encode()
    encoded += b" " * (-len(encoded) % 8)
    temp = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temp.open("xb") as file:
            file.write(struct.pack("<Q", len(encoded)) + encoded)
            for name in names:
                flat = tensors[name].detach().cpu().contiguous().reshape(-1)
                file.write(flat.view(torch.uint8).numpy().data)
            file.flush()
            os.fsync(file.fileno())
        temp.replace(path)
    except OSError as error:
        temp.unlink(missing_ok=True)
        raise CheckpointError(f"{path} could not be written: {error.strerror or error}.") from error


def main() -> int:
    """Export as the two arguments say; returns 0, or 2 for what can't be done."""
    source, target = (Path(argument) for argument in sys.argv[1:3])
    try:
        tensors, manifest = weights(source)
        notes = {"format": "pt", "step": str(manifest.step), "run": manifest.run}
        write(target, tensors, {name: text for name, text in notes.items() if text})
    except CheckpointError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        return EXIT_USAGE
    return 0


if __name__ == "__main__":
    sys.exit(main())
