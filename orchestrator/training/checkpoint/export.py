"""The program `python -m orchestrator.training.checkpoint.export CHECKPOINT FILE`, which writes a safetensors file.

A safetensors file holds a checkpoint's weights and no code, and other libraries can read it. The package safetensors is
in the extra `train`.
"""

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from orchestrator.protocol.checkpoints.checkpoint_dir import Manifest
from orchestrator.protocol.files import replacing
from orchestrator.protocol.writing import named_file
from orchestrator.training.checkpoint import format as checkpoints
from orchestrator.training.checkpoint.resume import Loaded, whole
from orchestrator.training.errors import EXIT_USAGE, CheckpointError


def weights(path: Path) -> tuple[dict[str, Tensor], Manifest]:
    """Return a dict of a checkpoint's weights, keyed by name, and the checkpoint's manifest. Raises CheckpointError if
    the checkpoint has no weights.
    """
    state, manifest = checkpoints.load(path)
    state = whole(Loaded(state, path))
    objects = state.get("objects")
    model = state.get("model", objects.get("model") if isinstance(objects, dict) else None)
    if not isinstance(model, dict) or not all(isinstance(value, Tensor) for value in model.values()):
        raise CheckpointError(f"The checkpoint {path} holds no 'model', only {', '.join(sorted(state)) or 'nothing'}.")
    return {name.removeprefix("module."): value for name, value in model.items()}, manifest


def write(path: Path, tensors: Mapping[str, Tensor], notes: Mapping[str, str]) -> None:
    """Atomically write a safetensors file with tensors and with `notes`, which maps names to texts. The file is on the
    disk when this returns.

    Raises CheckpointError if safetensors is not installed or does not support a tensor's type, or if the file can't be
    written.
    """
    try:
        from safetensors import SafetensorError
        from safetensors.torch import save_file
    except ImportError as error:
        raise CheckpointError(
            f"safetensors is not installed for {sys.executable}: {sys.executable} -m pip install safetensors"
        ) from error
    try:
        with replacing(path) as partial:
            save_file(_apart(tensors), partial, dict(notes))
    except OSError as error:
        raise CheckpointError(f"{path} could not be written: {error.strerror or error}.") from error
    except KeyError as error:  # safetensors reports an unknown type this way
        odd = [name for name, tensor in tensors.items() if tensor.dtype in error.args]
        what = f"{', '.join(odd)} can't be written: safetensors has no numbers of type {error.args[0]}."
        raise CheckpointError(what) from error
    except SafetensorError as error:
        raise CheckpointError(f"{path} could not be written: {error}.") from error


def _apart(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors on the CPU, each with its own memory, because safetensors does not allow tensors that share
    memory.
    """
    apart: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, tensor in tensors.items():
        plain = tensor.detach().cpu().contiguous()
        place = plain.untyped_storage().data_ptr()
        apart[name] = plain.clone() if place in seen else plain
        seen.add(place)
    return apart


def main() -> int:
    """Export a checkpoint, the first argument, to a file, the second argument, and print the file's path. Return the
    exit code: 0, or 2 for an error.
    """
    source, target = (Path(argument) for argument in sys.argv[1:3])
    try:
        tensors, manifest = weights(source)
        notes = {"format": "pt", "step": str(manifest.step), "run": manifest.run}
        with named_file(target) as (folder, name):
            os.fchdir(folder.descriptor)  # safetensors takes only a path
            write(Path(name), tensors, {key: text for key, text in notes.items() if text})
            print(os.path.join(folder.path, name), flush=True)
    except CheckpointError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        return EXIT_USAGE
    except OSError as error:
        print(f"error: {target} could not be written: {error.strerror}.", file=sys.stderr, flush=True)
        return EXIT_USAGE
    return 0


if __name__ == "__main__":
    sys.exit(main())
