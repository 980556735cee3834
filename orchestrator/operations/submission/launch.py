"""orch.launch: turns a function of this process into a job, and reads the ranks' results after the run."""

from __future__ import annotations

import contextlib
import functools
import io
import json
import os
import pickle
import re
import sys
import sysconfig
from collections import ChainMap
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, ClassVar, Final

from orchestrator.errors import OrchError, UsageError
from orchestrator.outcome.verdict import NodeState
from orchestrator.protocol.layout import attempt_folder
from orchestrator.runs.state import RunState
from orchestrator.runs.store import RunDir, write_durably
from orchestrator.training.call import python_version, read_result
from orchestrator.transport.node_archive import cloudpickle_archive

PICKLE: Final = "function.pkl"
NO_FILE: Final = "<dynamic-code>"  # cloudpickle 3.1.3 uses this instead of the name of a function's file
LIBRARY: Final = "cloudpickle.zip"  # nodes don't have cloudpickle, but need it to load the pickle


def write_job(folder: Path, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Path:
    """Write a job whose ranks call the function, and the files that the job needs, into an empty folder. Return the
    path of the job file.

    Raises UsageError if the function or an argument can't be pickled.
    """
    name, code = _name_of(function), folder / "code"
    code.mkdir(mode=0o700)
    write_durably(code / PICKLE, _pickled(name, function, arguments), private=True)
    (code / LIBRARY).write_bytes(cloudpickle_archive())
    job = {
        "name": re.sub(r"[^A-Za-z0-9_.-]+", "-", name).strip("_.-")[:40] or "function",
        "module": "orchestrator.training.call",
        "args": [PICKLE, LIBRARY, python_version()],
        "code": {"dir": "code"},
    }
    path = folder / "job.json"
    path.write_text(json.dumps(job), encoding="utf-8")
    return path


def results(run: RunDir, state: RunState) -> list[Any]:
    """Return the results of a successful run in the order of ranks. Raises OrchError if a result can't be read."""
    assert state.verdict is not None
    found: dict[int, Any] = {}
    for node in state.nodes:
        folder = Path(attempt_folder(str(run.node(node.node)), state.verdict.attempt))
        for rank in range(*(node.ranks or (0, 0))):
            found[rank] = _result(folder, rank, node)
    return [found[rank] for rank in sorted(found)]


def _result(folder: Path, rank: int, node: NodeState) -> Any:
    try:
        return read_result(folder, rank)
    except FileNotFoundError as error:
        raise OrchError(
            f"the result of rank {rank} on node {node.node} ({node.host}) is not in {folder}",
            "the machine was lost before the result was copied, or the function ended the process: launch it again",
        ) from error
    except ModuleNotFoundError as error:
        raise OrchError(
            f"the result of rank {rank} holds tensors, and this Python has no {error.name}",
            f"install {error.name} here, or read {folder / f'result_{rank}.pt'} with a Python that has it",
        ) from error
    except (OSError, ValueError, EOFError, RuntimeError, pickle.UnpicklingError) as error:
        raise OrchError(f"the result of rank {rank} in {folder} can't be read: {error}") from error


# -- pickling


def _name_of(function: Callable[..., Any]) -> str:
    while isinstance(function, functools.partial):
        function = function.func
    return str(getattr(function, "__name__", type(function).__name__))


def _pickled(name: str, function: Callable[..., Any], arguments: tuple[Any, ...]) -> bytes:
    import cloudpickle

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
        """A pickler that keeps the names of source files, so that tracebacks show source lines. Newer versions of
        cloudpickle drop these names.
        """

        dispatch_table: ClassVar[Any] = ChainMap(
            {CodeType: _with_file(cloudpickle.Pickler)}, cloudpickle.Pickler.dispatch_table
        )

    with _by_value(cloudpickle), io.BytesIO() as data:
        try:
            Pickler(data).dump((function, arguments))
        except (pickle.PicklingError, TypeError, AttributeError, ValueError, RecursionError) as error:
            raise UsageError(
                f"{name} can't be sent: {type(error).__name__}: {error}",
                "open files, connections, locks and running generators can't be sent: create them inside the function",
            ) from error
        return data.getvalue()


def _with_file(pickler: Any) -> Callable[[CodeType], tuple[Any, ...]]:
    """Return a function that reduces code objects as cloudpickle does, but keeps the name of the source file."""
    reduce = pickler.dispatch_table[CodeType]

    def reduced(code: CodeType) -> tuple[Any, ...]:
        made, arguments = reduce(code)
        return made, tuple(code.co_filename if each == NO_FILE else each for each in arguments)

    return reduced


@contextlib.contextmanager
def _by_value(cloudpickle: Any) -> Iterator[None]:
    """Within the block, pickle functions and classes of the user's own modules by value, because the nodes lack
    these modules.
    """
    kept = cloudpickle.list_registry_pickle_by_value()
    own = [module for module in _own_modules() if module.__name__ not in kept]
    for module in own:
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in own:
            cloudpickle.unregister_pickle_by_value(module)


def _own_modules() -> list[ModuleType]:
    """Return the user's own modules, whose files are below the current folder or the running script's folder."""
    script = getattr(sys.modules["__main__"], "__file__", None)
    places = {os.getcwd(), *([os.path.dirname(os.path.abspath(script))] if script else [])}
    library = sysconfig.get_paths()["stdlib"]
    found = []
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if not file or name != getattr(module, "__name__", None) or name.split(".")[0] in ("__main__", "orchestrator"):
            continue
        path = Path(file)
        installed = path.is_relative_to(library) or {"site-packages", "dist-packages"} & set(path.parts)
        if not installed and any(path.is_relative_to(place) for place in places):
            found.append(module)
    return found
