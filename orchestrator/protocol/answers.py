"""Declares the requests that orch's server on a machine answers, and the shape of each answer.

The requests are grouped by the module of `node/server` that implements them.
"""

from __future__ import annotations

from typing import Any, NamedTuple


class Row(NamedTuple):
    """The shape of a list of fixed length, with one shape for each item."""

    shapes: tuple[Any, ...]


class WithData(NamedTuple):
    """The shape of an answer to which JSON data is attached: `values` is the shape of the answer itself, and `data` is
    the shape of the attached data.
    """

    values: dict[str, Any]
    data: Any


# A shape is a type, a tuple of alternatives, [shape] for a list, {str: shape} for a mapping with any names, or a dict
# of fields. A field whose name ends with `?` may be missing.
_HOLDER = {
    "uid": (int, None), "user": (str, None), "run": (str, None), "since": (int, None), "program?": str,
}  # fmt: skip
_TICKET = {
    "uid": int, "user": (str, None), "run": str, "needs": int, "number": int, "made": int, "age": float,
}  # fmt: skip
_LEFT = {"folder": bool, "processes": [str], "agent": bool}
_INTERPRETER = {
    "base": str, "version": str, "free_threaded": bool, "platform": str, "libc": str,
    "markers": {str: str}, "paths": [str], "packages": {str: str},
}  # fmt: skip
_GPU = {
    "index": int, "uuid": str, "name": (str, None), "mig": (bool, None), "instances": [{"uuid": str}],
    "compute_mode": (str, None), "throttle_reasons": ([str], None), "ecc_volatile": (int, None),
    "ecc_aggregate": (int, None), "pending_retirement": (bool, None), "remap_failed": (bool, None),
}  # fmt: skip
ANSWERS: dict[str, dict[str, Any]] = {
    "machine": {
        "hello": {
            "host": str, "python": str, "path": str, "uid": int, "home": str, "workdir": str, "cores": int, "gpus": int,
            "addresses": [str], "time": float, "free": int, "memory": int, "shm": int, "lacks_tls": str,
            "ends_processes?": bool,
            "interface?": str,
            "devices": [{"name": str, "number": int, "card": str}], "visible": (str, None),
        },
        "interpreter": {"python?": str, "path?": str, "torch?": (str, None), "torchvision?": (str, None)},
        "start_agent": {"pid": int, "started": int},
        "cancel": {"told": bool},
        "clean_up": {"host": str, "ended": int, "survivors": [str]},
        "remove": {"removed": bool},
    },
    "writing": {
        "write_file": {},
        "begin_file": {"size": int},
        "write_piece": {"is_wrong?": bool},
        "prepare_array_run": {},
    },
    "checkpoints": {
        "saved": {"newest": {"step?": (int, None), "saved?": float}, "given": bool},
        "commit_files": {},
    },
    "container": {
        "container": {"version": str, "rootless": bool, "image_id": (str, None)},
    },
    "code_cache": {
        "missing": WithData({}, [str]),
        "unpack": {},
    },
    "environments": {
        "find_interpreter": {"found": _INTERPRETER},
        "find_environment": {"whole": bool, "folder": str},
        "install_environment": {"made": bool, "folder": str},
        "hash_environments": {"environments": {str: Row((str, (str, None)))}},
    },
    "files": {
        "poll_changes": {
            "files": [Row((str, int, (int, None), str, bool))], "alive": (bool, None), "steps": [str], "more": bool
        },
        "steps": {"steps": [str]},
        "has_begun": {"begun": bool},
    },
    "gpus": {
        "examine_gpus": {
            "gpus": [_GPU], "driver": (str, None), "cuda": ([int], None), "used": {str: _HOLDER}, "topology": str,
            "hcas": [{"hca": str, "port": str, "state": str, "rate": str}], "memlock": (int, None), "removes_ipc": bool,
        },
        "try_gpus": {
            "torch": str, "cuda": (str, None), "nccl": (str, None), "gpus": [str],
            "copies": [{"one": int, "other": int, "direct": bool, "said": str}],
        },
    },
    "leases": {
        "lease": {"places": ([str], None), "why?": str},
        "release": {"released": int},
        "still_held": {"places": [str]},
    },
    "tickets": {
        "look_at_queue": {"places": {str: (_HOLDER, None)}, "tickets": [_TICKET], "uid": int, "now": int},
        "take_ticket": {"taken": bool},
        "renew_ticket": {"renewed": bool},
        "drop_ticket": {"dropped": int},
    },
    "outputs": {
        "list_outputs": WithData({
            "roots": {str: str}, "passed_over": [str], "unreadable": [Row((str, str))],
        }, [Row((str, str, int, int, bool))]),
    },
    "sending": {
        "read_files": {"files": [(Row((int, int, int, bool)), None)]},
    },
    "leftovers": {
        "leftovers": {"runs": {str: _LEFT}},
        "tidy_cache": {"removed": int, "freed": int},
    },
    "reachability": {
        "listen": {"port": int},
        "probe": {"addr": (str, None), "own?": str, "interface?": (str, None), "problems?": [str]},
    },
    "run_program": {
        "run_program": {"code": (int, None), "err": str},
        "missing_programs": {"missing": [str]},
    },
}  # fmt: skip
