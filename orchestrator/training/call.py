"""`python -m orchestrator.training.call PICKLE LIBRARY PYTHON`: a rank of orch.launch; and the format of its result.

Python 3.9 syntax, and no import but the standard library's until PYTHON, the version that pickled the function, is
known to be this one's: another could not read it, and is to be told so in a sentence.
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

MOST_BYTES = 1 << 30  # a result comes home whole, at the run's end; what is larger is a checkpoint


class ResultError(TypeError):
    """A rank returned what can't be brought home; names the place in the result and the type."""


class PythonVersionError(Exception):
    """The function was pickled by another minor version of Python, whose code this one can't run."""


def main() -> int:
    """Call the function as this rank and leave its result; 93 where another start could not help either.

    The file was pickled by the user's own orch.launch and came the same way as all of the run's code, into a folder
    that is the user's alone: to load it is to load the program that this rank was started for.
    """
    pickled, library, version = sys.argv[1:]
    if version != python_version():
        return _refuse(
            PythonVersionError(
                f"the function was sent by Python {version}, and {sys.executable} here is Python {python_version()}; "
                f"set python: in the profile to a Python {version}"
            )
        )
    sys.path.append(os.path.abspath(library))  # behind an installed one
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
    """Return this interpreter's version as far as pickled functions depend on it: `3.11`."""
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def _refuse(error: Exception) -> int:
    """Say why this rank ends, in its log and where the verdict looks for it; the exit code."""
    print(f"error: {error}", file=sys.stderr, flush=True)
    record = {"type": type(error).__name__, "message": str(error), "traceback": ""}
    with open(os.environ["TORCHELASTIC_ERROR_FILE"], "w", encoding="utf-8") as file:
        json.dump(record, file)
    return EXIT_NO_RETRY


# -- results


def write_result(folder: Path, rank: int, result: Any) -> Path:
    """Write a rank's result and return its file: JSON, or torch's format where there are tensors in it.

    ResultError names what is neither. The file appears whole or not at all.
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
        raise ResultError(f"the result takes {size >> 20} MiB, more than the {MOST_BYTES >> 20} that are brought home; "
                          "return less, or save a checkpoint")  # fmt: skip
    os.replace(partial, path)
    return path


def read_result(folder: Path, rank: int) -> Any:
    """Return what `write_result` wrote; tensors are on the CPU. FileNotFoundError where there is none.

    Runs no code of the rank's: tensors are read with `weights_only`. ModuleNotFoundError where they need torch.
    """
    path = folder / f"result_{rank}.pt"
    if path.exists():
        import torch  # noqa: PLC0415 (only tensors need it)

        return torch.load(path, map_location="cpu", weights_only=True)
    return json.loads((folder / f"result_{rank}.json").read_bytes())


def _leaves(value: Any, place: str = "") -> Iterator[Any]:
    """Every number, text and tensor of a result; ResultError at the first that is nothing of the kind."""
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
            f"the function returned a {type(value).__module__}.{type(value).__qualname__}{where}; what comes home is "
            "numbers, text, lists, dicts and tensors: return those of it that are needed"
        )


def _is_tensor(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def _on_cpu(value: Any) -> Any:
    """The result with plain tensors that hold no graph, no device and no larger storage than their own."""
    if isinstance(value, Mapping):
        return {key: _on_cpu(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_on_cpu(each) for each in value]
    return value.detach().cpu().clone() if _is_tensor(value) else value


if __name__ == "__main__":
    sys.exit(main())
