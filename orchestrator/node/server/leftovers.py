"""Lists what runs have left on this machine: folders, agents, other processes, containers and unused cache files."""

from __future__ import annotations

import glob
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from orchestrator.node.container.engine import Found, everywhere
from orchestrator.node.environments.unused import find_old, remove
from orchestrator.node.server.machine import agent_of
from orchestrator.node.server.request import Answer, Request, at_user
from orchestrator.node.system import processes
from orchestrator.node.system.processes import Process, is_alive
from orchestrator.protocol.reading import names_in


@dataclass
class Leftovers:
    """The processes and containers that one run has left on this machine."""

    processes: list[Process] = field(default_factory=list)
    containers: list[Found] = field(default_factory=list)
    run_dirs: set[str] = field(default_factory=set)

    @property
    def has_agent(self) -> bool:
        """Return whether an agent of the run is alive, according to the record in the run's folder."""
        return any(_has_agent(each) for each in self.run_dirs)


def find_leftovers(node_dirs: Iterable[str]) -> dict[str, Leftovers]:
    """Find this user's processes and containers that belong to runs. Return a dict from run id to the run's leftovers.

    Processes are found by the variable ORCH_MARK, and containers by their labels. `node_dirs` are folders of nodes. The
    records in these folders name the container engines that were used.
    """
    found: dict[str, Leftovers] = {}
    for each in processes.marked_processes():
        if each.owner == os.getuid():  # root can see the processes of all users, so keep only this user's
            here = found.setdefault(each.run_id, Leftovers())
            here.processes.append(each.process)
            here.run_dirs.update(filter(None, [each.run_dir]))
    for box in everywhere(node_dirs):
        here = found.setdefault(box.run_id, Leftovers())
        here.containers.append(box)
        here.run_dirs.update(filter(None, [box.run_dir]))
    return found


def leftovers(request: Request, _: bytes) -> Answer:
    """Return the leftovers of each run that has a folder, process or container on this machine, and whether an agent
    of the run is alive.
    """
    folder = f"{at_user(request['workdir'])}/runs"
    folders, found = names_in(folder), find_leftovers(glob.glob(f"{glob.escape(folder)}/*/nodes/*"))
    for name in folders:
        found.setdefault(name, Leftovers()).run_dirs.add(f"{folder}/{name}")
    return {"runs": {run_id: _to_json(here, run_id in folders) for run_id, here in found.items()}}, b""


def _to_json(here: Leftovers, has_folder: bool) -> dict[str, object]:
    words = [f"{process.pid} ({process.command})" for process in here.processes]
    words += [f"container {box.id[:12]}" for box in here.containers]
    return {"folder": has_folder, "processes": words, "agent": here.has_agent}


def _has_agent(run_dir: str) -> bool:
    nodes = [int(name) for name in names_in(f"{run_dir}/nodes") if name.isdigit()]
    return any((agent := agent_of(run_dir, node)) is not None and is_alive(agent) for node in nodes)


def tidy_cache(request: Request, _: bytes) -> Answer:
    """Remove cached files and environments that were unused for `days`. Return the number of removed items and
    bytes.
    """
    top, oldest = f"{at_user(request['workdir'])}/cache", time.time() - float(request["days"]) * 86_400
    count = size = 0
    for folder in (top, f"{top}/code"):
        for name in names_in(folder):
            path = f"{folder}/{name}"
            info = os.stat(path)
            if os.path.isfile(path) and info.st_mtime < oldest:
                os.unlink(path)
                count, size = count + 1, size + info.st_size
    for old in find_old(top, oldest):
        if remove(old):
            count, size = count + 1, size + old.bytes
    return {"removed": count, "freed": size}, b""
