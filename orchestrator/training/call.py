"""The program that a rank of `orch.launch` runs, and the format in which the rank stores its result.

`python -m orchestrator.training.call PICKLE LIBRARY PYTHON` calls the function in the file PICKLE. LIBRARY is the
folder of orch's own code. PYTHON is the version of Python that pickled the function; other versions can't read the
pickle, and report that in one sentence. So this file has Python 3.9 syntax, and imports only the standard library until
it has compared the versions.
"""

from __future__ import annotations

import json
import os
import pickle
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from orchestrator.protocol.layout import attempt_folder, node_folder
from orchestrator.protocol.ranks import EXIT_NO_RETRY

MOST_BYTES = 1 << 30  # bytes of a result, which is copied as a whole at the run's end; use a checkpoint for more


class ResultError(TypeError):
    """A rank returned a value that can't be sent back. The message names the value's path in the result, and its
    type.
    """


class PythonVersionError(Exception):
    """The function was pickled by another minor version of Python, so this version can't run its code."""


def main() -> int:
    """Call the function as this rank and write its result. Return the exit code, which is 93 if a restart can't help.

    Loading the pickle is safe: the user's own orch.launch wrote it, and it was sent with the run's code into a private
    folder of the user.
    """
    pickled, library, version = sys.argv[1:]
    if version != python_version():
        return _refuse(
            PythonVersionError(
                f"the function was sent by Python {version}, and {sys.executable} here is Python {python_version()}; "
                f"set `python` in the profile to a Python {version}"
            )
        )
    sys.path.append(os.path.abspath(library))  # at the end of the path, so that an installed orch takes precedence
    with open(pickled, "rb") as file:
        function, arguments = pickle.load(file)  # noqa: S301 (see above)
    result = function(*arguments)
    folder = attempt_folder(
        node_folder(os.environ["ORCH_RUN_DIR"], int(os.environ["ORCH_NODE_RANK"])), int(os.environ["ORCH_ATTEMPT"])
    )
    try:
        write_result(Path(folder), int(os.environ["RANK"]), result)
    except ResultError as error:
        return _refuse(error)
    if (dist := sys.modules.get("torch.distributed")) is not None and dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()
    return 0


def python_version() -> str:
    """Return this interpreter's major and minor version, such as `3.11`. Other versions can't read its pickles."""
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def _refuse(error: Exception) -> int:
    """Report why this rank ends, in its log and in the error file, from which orch takes the reason of the run's
    failure. Return the exit code.
    """
    print(f"error: {error}", file=sys.stderr, flush=True)
    record = {"type": type(error).__name__, "message": str(error), "traceback": ""}
    with open(os.environ["TORCHELASTIC_ERROR_FILE"], "w", encoding="utf-8") as file:
        json.dump(record, file)
    return EXIT_NO_RETRY


# -- results


def write_result(folder: Path, rank: int, result: Any) -> Path:
    """Atomically write a rank's result and return the file's path. The format is JSON or, if the result has tensors,
    torch's.

    Raises ResultError if the result is too large, or if it contains a value of a type that can't be stored.
    """
    leaves = list(_leaves(result))
    is_json = not any(map(_is_tensor, leaves))
    path = folder / f"result_{rank}.{'json' if is_json else 'pt'}"
    partial = path.with_name(f".{path.name}.partial")
    if is_json:
        partial.write_text(json.dumps(result), encoding="utf-8")
    else:
        sys.modules["torch"].save(_on_cpu(result), partial)
    if (size := partial.stat().st_size) > MOST_BYTES:
        partial.unlink()
        raise ResultError(
            f"the result takes {size >> 20} MiB, and at most {MOST_BYTES >> 20} MiB are copied back: return less, or "
            "save a checkpoint"
        )
    os.replace(partial, path)
    return path


def read_result(folder: Path, rank: int) -> Any:
    """Return the result that `write_result` wrote, with tensors on the CPU.

    Tensors are read with `weights_only`, so reading a result never runs code from the rank. Raises FileNotFoundError if
    there is no result, and ModuleNotFoundError if torch is needed and missing.
    """
    path = folder / f"result_{rank}.pt"
    if path.exists():
        import torch

        return torch.load(path, map_location="cpu", weights_only=True)
    return json.loads((folder / f"result_{rank}.json").read_bytes())


def _leaves(value: Any, place: str = "") -> Iterator[Any]:
    """Yield every number, text and tensor in a result. Raises ResultError at the first value of an unsupported type."""
    if isinstance(value, Mapping):
        for key, each in value.items():
            if not isinstance(key, str):
                raise ResultError(
                    f"the function returned a dict with the key {key!r}, and keys must be text: write str({key!r})"
                )
            yield from _leaves(each, f"{place}[{key!r}]")
    elif isinstance(value, (list, tuple)):
        for index, each in enumerate(value):
            yield from _leaves(each, f"{place}[{index}]")
    elif value is None or isinstance(value, (bool, int, float, str)) or _is_tensor(value):
        yield value
    else:
        where = f" at result{place}" if place else ""
        raise ResultError(
            f"the function returned a {type(value).__module__}.{type(value).__qualname__}{where}, but only numbers, "
            "text, lists, dicts and tensors can be returned: return those parts of it that are needed"
        )


def _is_tensor(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def _on_cpu(value: Any) -> Any:
    """Return the result with its tensors on the CPU, without autograd graph. A view gets storage of its own size."""
    if isinstance(value, Mapping):
        return {key: _on_cpu(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_on_cpu(each) for each in value]
    return value.detach().cpu().clone() if _is_tensor(value) else value


if __name__ == "__main__":
    sys.exit(main())
