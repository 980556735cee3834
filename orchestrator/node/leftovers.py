"""What runs have left on this machine: folders, agents, marked processes, containers, contents that nothing uses."""

from __future__ import annotations

import glob
import os
import time
from typing import Any

from orchestrator.node.engine import everywhere
from orchestrator.node.machine import agent_of
from orchestrator.node.processes import MARK, identify, is_alive
from orchestrator.node.request import Answer, Request, at_user


def leftovers(request: Request, _: bytes) -> Answer:
    """For each run with a folder, process or container of this user here: these, and whether an agent of it lives."""
    folder = f"{at_user(request['workdir'])}/runs"
    found: dict[str, dict[str, Any]] = {
        name: {"folder": True, "processes": [], "agent": _has_agent(f"{folder}/{name}")} for name in _names(folder)
    }
    for run_id, process in _marked():
        entry = found.setdefault(run_id, {"folder": False, "processes": [], "agent": False})
        entry["processes"].append(process)
    for box in everywhere(glob.glob(f"{glob.escape(folder)}/*/nodes/*")):
        new = {"folder": False, "processes": [], "agent": _has_agent(box.run_dir)}
        found.setdefault(box.run_id, new)["processes"].append(f"container {box.id[:12]}")
    return {"runs": found}, b""


def _has_agent(run_dir: str) -> bool:
    nodes = [int(name) for name in _names(f"{run_dir}/nodes") if name.isdigit()]
    return any((agent := agent_of(run_dir, node)) is not None and is_alive(agent) for node in nodes)


def _marked() -> list[tuple[str, str]]:
    """(run, process in words) of every living process of this user that carries a run's mark."""
    found = []
    for name in _names("/proc"):
        try:
            if not name.isdigit() or os.stat(f"/proc/{name}").st_uid != os.getuid():
                continue
            with open(f"/proc/{name}/environ", "rb") as environ:
                entries = environ.read().split(b"\0")
        except OSError:  # gone meanwhile
            continue
        marks = [entry.decode("utf-8", "replace") for entry in entries if entry.startswith(f"{MARK}=".encode())]
        process = identify(int(name))
        if marks and process is not None:
            found.append((marks[0].partition("=")[2].rpartition("/")[0], f"{process.pid} ({process.command})"))
    return found


def _names(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def tidy_cache(request: Request, _: bytes) -> Answer:
    """Remove the cached files that nothing has used for `days`; how many they were, and their bytes."""
    top, oldest = f"{at_user(request['workdir'])}/cache", time.time() - float(request["days"]) * 86_400
    count = size = 0
    for folder in (top, f"{top}/code"):
        for name in _names(folder):
            path = f"{folder}/{name}"
            info = os.stat(path)
            if os.path.isfile(path) and info.st_mtime < oldest:
                os.unlink(path)
                count, size = count + 1, size + info.st_size
    return {"removed": count, "bytes": size}, b""
