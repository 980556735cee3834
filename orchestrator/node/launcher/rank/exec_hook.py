"""Sets up an exec'd rank when its interpreter starts. (A forked rank is set up after the fork.)

Python imports a module `sitecustomize` at its start. The rank's PYTHONPATH begins with the folder of orch's own
`sitecustomize`. That module restores PYTHONPATH, sets up the rank, and then imports the user's own `sitecustomize`.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from typing import Any

from orchestrator.node.launcher.rank.error_file import note_end_at_exit, write_error_at_end
from orchestrator.node.launcher.rank.setup import set_up
from orchestrator.node.system.private import file_mode
from orchestrator.protocol.json_text import parse_json

VARIABLE = "ORCH_EXEC_RANK"
NAME = "sitecustomize"


def with_hook(environment: Mapping[str, str], archive: str, setup: Mapping[str, Any]) -> dict[str, str]:
    """Return an environment with which a new Python interpreter that is exec'd first sets up its rank.

    If the interpreter runs another launcher, such as torchrun, the processes that torchrun starts are set up instead.
    """
    path, hook = environment.get("PYTHONPATH"), f"{archive}/orchestrator/node/launcher/rank/site"
    order = json.dumps({"setup": setup, "pid": os.getpid(), "hook": hook, "path": path, "mode": file_mode()})
    return {**environment, VARIABLE: order, "PYTHONPATH": os.pathsep.join([hook, *filter(None, [path])])}


def begin() -> None:
    """Restore PYTHONPATH, set up the rank, and import the user's own `sitecustomize`, if there is one."""
    order = parse_json(os.environ[VARIABLE])
    setup, is_started_by_orch = order["setup"], order["pid"] == os.getpid()
    sys.path[:] = [folder for folder in sys.path if folder != order["hook"]]
    if not (is_started_by_orch and setup["folder"]):
        _restore_environment(order["path"])
    # This process is the rank, and not a program that the rank's command has started.
    if is_started_by_orch and not setup["folder"]:
        _set_up_rank(setup, order["mode"])
    elif order["pid"] == os.getppid() and setup["folder"] and os.environ.get("RANK", "").isdigit():
        _set_up_rank({**setup, **files_of(setup["folder"], int(os.environ["RANK"]))}, order["mode"])
        os.environ["ORCH_BEAT_FILE"] = f"{setup['folder']}/beat_{os.environ['RANK']}"
    _import_users_own()


def files_of(folder: str, rank: int) -> dict[str, str]:
    """Return the paths to which a rank of this attempt writes its stacks and its error. The keys are fields of
    RankStart.
    """
    return {"stack_file": f"{folder}/stacks_{rank}.txt", "error_file": f"{folder}/error_{rank}.json"}


def _restore_environment(path: str | None) -> None:
    del os.environ[VARIABLE]
    if path is None:
        del os.environ["PYTHONPATH"]
    else:
        os.environ["PYTHONPATH"] = path


def _set_up_rank(setup: Mapping[str, Any], mode: int) -> None:
    write_error_at_end(setup["error_file"], mode)
    note_end_at_exit(setup["error_file"], mode)
    set_up(setup)


def _import_users_own() -> None:
    spec = PathFinder.find_spec(NAME)
    if spec is not None and spec.loader is not None:
        sys.modules[NAME] = module_from_spec(spec)
        spec.loader.exec_module(sys.modules[NAME])
