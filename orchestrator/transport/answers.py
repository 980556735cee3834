"""What each answer of a machine's server has to look like: a machine may be broken, or somebody else's by now. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

from orchestrator.errors import BackendError
from orchestrator.protocol.json_text import parse_json


@dataclass(frozen=True)
class Row:
    """A list with one thing of each of these shapes."""

    shapes: tuple[Any, ...]


# A type; a tuple for any one of several; [shape] for a list of such; {str: shape} for a mapping of any names; a dict of
# names, of which those with a `?` may be missing.
_HOLDER: Final = {
    "uid": (int, None), "user": (str, None), "run": (str, None), "since": (int, None), "program?": str,
}  # fmt: skip
_TICKET: Final = {
    "uid": int, "user": (str, None), "run": str, "needs": int, "number": int, "made": int, "age": float,
}  # fmt: skip
_LEFT: Final = {"folder": bool, "processes": [str], "agent": bool}
_INTERPRETER: Final = {
    "base": str, "version": str, "free_threaded": bool, "platform": str, "libc": str,
    "markers": {str: str}, "paths": [str], "packages": {str: str},
}  # fmt: skip
_GPU: Final = {
    "index": int, "uuid": str, "name": (str, None), "mig": (bool, None), "instances": [{"uuid": str}],
    "compute_mode": (str, None), "throttle_reasons": ([str], None), "ecc_volatile": (int, None),
    "ecc_aggregate": (int, None), "pending_retirement": (bool, None), "remap_failed": (bool, None),
}  # fmt: skip
SHAPES: Final[dict[str, Any]] = {
    "hello": {
        "host": str, "python": str, "uid": int, "home": str, "workdir": str, "cores": int, "gpus": int,
        "addresses": [str], "time": float, "free": int, "memory": int, "shm": int, "lacks_tls": str,
        "interface?": str,
        "devices": [{"name": str, "number": int, "card": str}], "visible": (str, None),
    },
    "interpreter": {"python?": str, "torch?": (str, None), "torchvision?": (str, None)},
    "write_file": {"size": int},
    "start_agent": {"pid": int, "started": int},
    "cancel": {"told": bool},
    "clean_up": {"host": str, "ended": int, "survivors": [str]},
    "remove": {"removed": bool},
    "prepare_array_run": {},
    "container": {"version": str, "rootless": bool, "image_id": (str, None)},
    "find_interpreter": {"found": _INTERPRETER},
    "find_environment": {"whole": bool, "folder": str},
    "install_environment": {"made": bool, "folder": str},
    "adopt_wheel": {},
    "hash_environments": {"environments": {str: Row((str, (str, None)))}},
    "missing": {},
    "unpack": {},
    "poll_changes": {
        "files": [Row((str, int, (int, None), str, bool))], "alive": (bool, None), "steps": [str], "more": bool
    },
    "read_files": {"files": [(Row((int, int, int, bool)), None)]},
    "steps": {"steps": [str]},
    "has_begun": {"begun": bool},
    "saved": {"newest": {"step?": (int, None), "saved?": float}, "given": bool},
    "put_in_place": {},
    "list_outputs": {
        "roots": {str: str}, "passed_over": [str], "unreadable": [Row((str, str))], "time_ns": int,
    },
    "examine_gpus": {
        "gpus": [_GPU], "driver": (str, None), "cuda": ([int], None), "used": {str: _HOLDER}, "topology": str,
        "hcas": [{"hca": str, "port": str, "state": str, "rate": str}], "memlock": (int, None), "removes_ipc": bool,
    },
    "try_gpus": {
        "torch": str, "cuda": (str, None), "nccl": (str, None), "gpus": [str],
        "copies": [{"one": int, "other": int, "direct": bool, "said": str}],
    },
    "lease": {"places": ([str], None), "why?": str},
    "still_held": {"places": [str]},
    "release": {"released": int},
    "look_at_queue": {"places": {str: (_HOLDER, None)}, "tickets": [_TICKET], "uid": int, "now": int},
    "take_ticket": {"taken": bool},
    "renew_ticket": {"renewed": bool},
    "drop_ticket": {"dropped": int},
    "leftovers": {"runs": {str: _LEFT}},
    "tidy_cache": {"removed": int, "freed": int},
    "listen": {"port": int},
    "probe": {"addr": (str, None), "own?": str, "interface?": (str, None), "problems?": [str]},
    "run_program": {"code": (int, None), "err": str},
    "missing_programs": {"missing": [str]},
}  # fmt: skip


# Requests whose answers are followed by bytes of JSON. The bytes after all other answers are a file's contents.
DATA: Final[dict[str, Any]] = {
    "missing": [str],
    "list_outputs": [Row((str, str, int, int, bool))],
}


def data_of(host: str, do: str, data: bytes) -> Any:
    """Return the value that follows an answer as JSON. Raises BackendError with the host for any other value."""
    try:
        value = parse_json(data)
    except ValueError as error:
        raise BackendError(f"{host}: what it answers to {do} can't be read: {error}") from error
    if not _fits(value, DATA[do]):
        raise BackendError(f"{host}: what it answers to {do} is not what was asked for")
    return value


def is_answer(values: Any, do: str) -> bool:
    """Return whether this is what the server answers to such a request, or the reason why it does not."""
    if isinstance(values, dict) and "error" in values:
        return isinstance(values["error"], str)
    return _fits(values, SHAPES[do])


def _fits(value: Any, shape: Any) -> bool:
    if isinstance(shape, tuple):
        return any(_fits(value, each) for each in shape)
    if isinstance(shape, list):
        return isinstance(value, list) and all(_fits(each, shape[0]) for each in value)
    if isinstance(shape, Row):
        return isinstance(value, list) and len(value) == len(shape.shapes) and all(map(_fits, value, shape.shapes))
    if isinstance(shape, dict) and str in shape:
        return isinstance(value, dict) and all(_fits(each, shape[str]) for each in value.values())
    if isinstance(shape, dict):
        return isinstance(value, dict) and all(_has(value, name, inner) for name, inner in shape.items())
    if shape is float:
        return type(value) in (int, float) and math.isfinite(value)
    return value is None if shape is None else type(value) is shape


def _has(values: dict[str, Any], name: str, shape: Any) -> bool:
    known = name.removesuffix("?")
    return _fits(values[known], shape) if known in values else name.endswith("?")
