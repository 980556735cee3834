"""Handles requests about a machine: describe it, start or cancel an agent, kill a run's processes, and delete a
run's folder.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time

from orchestrator.node.server.request import Answer, RefusedError, Request, at_user
from orchestrator.node.system.gpus.devices import gpu_facts, gpus
from orchestrator.node.system.host import addresses, cores, interface_problem, lacks_tls, memory
from orchestrator.node.system.logind import applies_at_logout
from orchestrator.node.system.private import make_private, remedy, users_umask, why_unsafe
from orchestrator.node.system.processes import Process, end_marked, identify, is_alive, marked, send_signal, wait_gone
from orchestrator.protocol.cancelling import record_cancel
from orchestrator.protocol.files import PRIVATE, remove_tree, write_atomic, write_json
from orchestrator.protocol.json_text import parse_json
from orchestrator.protocol.layout import node_folder
from orchestrator.protocol.reading import MOST_RECORD, open_own, read_json, read_regular
from orchestrator.protocol.task import NodeTask, at_home

OWN_FOLDERS = ("cache", "cache/code", "cache/wheels", "cache/env", "inputs", "runs", "sweeps")  # in orch's folder
KILL_SECONDS = 5.0
LEAVING_SECONDS = 1.0  # the time in which an agent ends after its last event
CUT_OFF_SECONDS = 60.0  # if a start has recorded no agent after this time, the server was killed during the start
_unnamed: dict[str, float] = {}  # markers of starts without a recorded agent -> when they were first seen
ASK_VERSION = "import json, sys; print(json.dumps({'python': '%d.%d' % sys.version_info[:2]}))"
# torch's version is read from its metadata, because importing torch takes seconds.
ASK_INTERPRETER = """
import json, sys
found = {"python": sys.version.split()[0], "path": sys.executable}
try:
    import ssl
    found["tls"] = getattr(ssl, "HAS_TLSv1_3", False)
except ImportError:
    found["tls"] = False
for name in ("torch", "torchvision"):
    try:
        from importlib import metadata
        found[name] = metadata.version(name)
    except Exception:  # an old Python has no importlib.metadata
        found[name] = None
print(json.dumps(found))
"""


def hello(request: Request, _: bytes) -> Answer:
    """Return the facts about this machine. Raises RefusedError if orch's folder can't be used, or if other users can
    write to it.

    shared_parent: whether users who can write to the parent folders are trusted.
    """
    workdir = os.path.abspath(at_user(request["workdir"]))
    make_private(workdir, exist_ok=True)
    for name in ("", *OWN_FOLDERS):
        said = why_unsafe(f"{workdir}/{name}".rstrip("/"), shared_parent=bool(name or request.get("shared_parent")))
        if said is not None:
            raise RefusedError(f"{said}: files that orch sends there would not be safe; {remedy(said)}")
    if not os.access(workdir, os.W_OK):
        raise RefusedError(f"{workdir} is not writable for {os.environ.get('USER', os.getuid())}")
    disk, shm = os.statvfs(workdir), os.statvfs("/dev/shm")  # noqa: S108 (its size is what is asked)
    return {
        "host": socket.gethostname(), "python": ".".join(map(str, sys.version_info[:3])), "path": sys.executable,
        "uid": os.getuid(),
        "home": at_user("~"), "workdir": workdir, "cores": cores(), "gpus": gpus(),
        **gpu_facts(),
        "addresses": addresses(),
        "ends_processes": applies_at_logout("KillUserProcesses", default=False),
        "lacks_tls": lacks_tls(), "interface": interface_problem(request.get("interface")), "time": time.time(),
        "free": disk.f_bavail * disk.f_frsize if disk.f_blocks else sys.maxsize,  # 0 blocks: the size is not known
        "memory": memory(), "shm": shm.f_blocks * shm.f_frsize,
    }, b""  # fmt: skip


def interpreter(request: Request, _: bytes) -> Answer:
    """Return the versions of the training interpreter and its torch, and the interpreter's path, after the profile's
    setup lines. If `versions` is false, only check that the interpreter starts and is new enough.
    """
    from orchestrator.node.system.interpreter import MIN_PYTHON, InterpreterError, ask_interpreter

    python, setup = at_user(request["python"]), request.get("setup", ())
    argv = ["-c", ASK_INTERPRETER] if request.get("versions", True) else ["-I", "-S", "-c", ASK_VERSION]
    try:
        found = ask_interpreter(python, *argv, setup=setup)
        version = str(found["python"])
        if tuple(map(int, version.split(".")[:2])) < MIN_PYTHON:
            raise InterpreterError(f"is Python {version}; {'.'.join(map(str, MIN_PYTHON))} or newer is needed")
    except (InterpreterError, KeyError, ValueError) as error:
        after = " after the setup lines" if setup else ""
        raise RefusedError(f"the training interpreter {python}{after} {error}") from error
    return found, b""


def start_agent(request: Request, payload: bytes) -> Answer:
    """Start the agent of a task. If the agent of this start was started before, only return that agent.

    places: the GPUs or slots that the agent holds from now on. If they were lost, the agent is not started. archive:
    the file that the agent runs; by default the archive from which this server runs.
    """
    task = at_home(NodeTask.from_json(parse_json(payload)), at_user("~"))
    folder = node_folder(task.run_dir, task.node_rank)
    os.makedirs(folder, mode=0o700, exist_ok=True)
    marker = f"{folder}/start_{task.start}"
    try:
        os.close(os.open(marker, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    except FileExistsError:
        agent = agent_of(task.run_dir, task.node_rank, task.start)
        return {"pid": agent.pid if agent else 0, "started": agent.started if agent else 0, "again": True}, b""
    try:
        held = _places(task.run_id, request.get("places"))
        try:
            process = _start(task, folder, request.get("archive") or sys.argv[0], [each.fileno() for each in held])
        finally:
            for each in held:  # the agent has inherited its own copies of the sockets
                each.close()
    except (OSError, RefusedError):
        os.unlink(marker)
        raise
    write_json(marker, {"pid": process.pid, "started": process.started}, durable=False)
    return {"pid": process.pid, "started": process.started}, b""


def _places(run_id: str, names: list[str] | None) -> list[socket.socket]:
    """Return the sockets by which this server holds the named places (GPUs or slots) for an agent of the run."""
    if not names:
        return []
    from orchestrator.node.server import leases

    return [each for sockets in leases.hand_over(run_id, names).values() for each in sockets]


def _start(task: NodeTask, folder: str, program: str, descriptors: list[int]) -> Process:
    """Start the agent with this process's environment, umask, limits, affinity and cgroup.

    The agent does not inherit the variables that orch sets for ranks. It does not inherit secrets either, because the
    task contains them.
    """
    from orchestrator.protocol.ranks import RANK_VARIABLES

    archive, hidden = f"{task.run_dir}/node.pyz", {*RANK_VARIABLES, *task.secrets}
    if program != archive:
        with open(program, "rb") as file:  # the archive's hash was checked before this server was started from it
            own = file.read()
        if _content(archive) != own:  # missing or truncated; if nodes share the folder, all of them write it
            write_atomic(archive, own, durable=False)
    path = f"{folder}/task.json"
    write_json(path, task.to_json(), mode=PRIVATE, durable=False)
    with open(open_own(f"{folder}/agent.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND), "ab") as log:
        child = subprocess.Popen(
            [sys.executable, "-I", "-S", archive, "agent", path],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=task.run_dir, start_new_session=True,
            pass_fds=descriptors, umask=users_umask(),
            env={key: text for key, text in os.environ.items() if key not in hidden and not key.startswith("ORCH_")},
        )  # fmt: skip
    child.returncode = 0  # the agent outlives this process, so do not wait for the agent
    return identify(child.pid) or Process(child.pid, 0)


def _content(path: str) -> bytes | None:
    try:
        return read_regular(path, MOST_RECORD)
    except OSError:
        return None


def agent_of(run_dir: str, node_rank: int, start: int | None = None) -> Process | None:
    """Return the agent process of the given start, or of the newest start if `start` is None. Return None if the
    process is unknown.
    """
    folder, newest = node_folder(run_dir, node_rank), start
    if newest is None:
        numbers = [name[6:] for name in _names(folder) if name.startswith("start_") and name[6:].isdigit()]
        newest = max(map(int, numbers), default=0)
    found = _identity(f"{folder}/start_{newest}")
    return found if found is not None else _identity(f"{folder}/agent.json", start)


def lives(request: Request) -> bool | None:
    """Return whether the agent of the request's run, node and start is alive; None if the start has not recorded its
    agent yet.

    The agent of an earlier start is ignored. It has ended, so the answer would be False, and the run would be started
    again by mistake.
    """
    agent, start = recorded_agent(request), request.get("start")
    marker = f"{node_folder(at_user(request['run_dir']), request['node'])}/start_{start}"
    if agent is None and start is not None and os.path.exists(marker):
        # The file's own time is not used, because a file server's clock may be wrong.
        since = _unnamed.setdefault(marker, time.monotonic())
        return False if time.monotonic() - since > CUT_OFF_SECONDS else None
    _unnamed.pop(marker, None)
    if agent is not None:
        return is_alive(agent)
    return (
        False if start is not None and request.get("agent") else None
    )  # the requester's record has no pid, so the agent was not started


def recorded_agent(request: Request) -> Process | None:
    """Return the agent of the request's run and node. If the request names a start, return the agent of that start.

    If this machine has no record of the agent, the record in the request is used.
    """
    found = agent_of(at_user(request["run_dir"]), request["node"], request.get("start"))
    if found is None and request.get("agent"):
        pid, started = request["agent"]
        return Process(int(pid), int(started)) if pid else None
    return found


def _identity(path: str, start: int | None = None) -> Process | None:
    """Return the process that a file names; None if the file is missing, damaged, or from another start."""
    try:
        values = read_json(path, MOST_RECORD, os.path.dirname(os.path.dirname(path)))
        if start is not None and values.get("start", start) != start:
            return None
        return Process(int(values["pid"]), int(values["started"]))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []


def cancel(request: Request, _: bytes) -> Answer:
    """Record the cancel in a file that the agents read. Then send SIGTERM to the node's agent.

    If `node` is null, SIGTERM is sent to all of the run's agents on this machine. If `cancel` is null, the cancel is
    already recorded.
    """
    run_dir = at_user(request["run_dir"])
    if not os.path.isdir(run_dir):
        return {"told": False}, b""
    if request["cancel"] is not None:
        record_cancel(run_dir, request["cancel"], durable=False)
    told = [send_signal(agent, signal.SIGTERM) for agent in _agents(request)[1]]
    return {"told": any(told)}, b""


def _agents(request: Request) -> tuple[list[int], list[Process]]:
    """Return the numbers of the requested nodes, and the known agents of these nodes. If the request's `node` is null,
    all nodes of the run are requested.

    The request's `agents` is a dict from node number to the agent in the requester's record. Such an agent is used if
    this machine has no record of it.
    """
    known, nodes = request.get("agents") or {}, [request["node"]]
    if nodes == [None]:
        here = _names(f"{at_user(request['run_dir'])}/nodes")
        nodes = sorted({int(name) for name in (*here, *known) if name.isdigit()})
    found = [recorded_agent({**request, "node": node, "agent": known.get(str(node))}) for node in nodes]
    return nodes, [agent for agent in found if agent is not None]


def clean_up(request: Request, _: bytes) -> Answer:
    """Kill the agent and all other processes of the run on this node, or on any node if `node` is null. Return the
    processes that still run.

    anywhere: whether to search container engines that no agent has recorded. By default this is done only if `node` is
    null. undo: the number of a start whose marker is removed, so that this machine may repeat the start.
    """
    run_dir, node = at_user(request["run_dir"]), request["node"]
    nodes, agents = _agents(request)
    leaving, folders = wait_gone(agents, LEAVING_SECONDS), [node_folder(run_dir, each) for each in nodes]
    anywhere = request.get("anywhere", node is None)
    ended, survivors = end_run(request["run_id"], leaving, folders, node, anywhere=anywhere)
    for folder in folders:
        with contextlib.suppress(OSError):
            os.unlink(f"{folder}/task.json")
        if "undo" in request:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(f"{folder}/start_{int(request['undo'])}")
    return {"host": socket.gethostname(), "ended": ended, "survivors": survivors}, b""


def end_run(
    run_id: str, agents: list[Process], node_dirs: list[str], node: int | None = None, *, anywhere: bool = False
) -> tuple[int, list[str]]:
    """Kill the run's living agents, its processes that have ORCH_MARK, and its containers. Return (number killed, names
    of the survivors).

    node: limits this to the processes of one node. node_dirs: the folders of the run's nodes, whose records name the
    container engines. anywhere: whether other engines are searched too.
    """
    from orchestrator.node.container.engine import end_containers

    living = [agent for agent in agents if is_alive(agent)]
    for agent in living:
        send_signal(agent, signal.SIGKILL)
    stuck = wait_gone(living, KILL_SECONDS)
    ended, survivors = end_marked(run_id, node, timeout=KILL_SECONDS)
    removed, boxes = end_containers(run_id, node_dirs, node, anywhere=anywhere)
    names = [f"{process.pid} ({process.command})" for process in (*stuck, *survivors)]
    return len(living) - len(stuck) + ended + removed, [*names, *boxes]


def remove(request: Request, _: bytes) -> Answer:
    """Delete the folder of an ended run on this machine. Raises RefusedError while a process of the run still runs.

    If the run is the last one of its array, the folder that the array's runs share is deleted too.
    """
    run_dir = at_user(request["run_dir"])
    if os.path.basename(run_dir) != request["run_id"]:
        raise RefusedError(f"{run_dir} is not the folder of run {request['run_id']}")
    if marked(request["run_id"]):
        raise RefusedError(f"processes of run {request['run_id']} still run on this host")
    there = os.path.isdir(run_dir)
    remove_tree(run_dir)  # if nodes share the folder, several servers may remove it at once
    runs, (sweep, _, index) = os.path.dirname(run_dir), request["run_id"].rpartition(".")
    if sweep and index.isdigit() and not any(name.startswith(f"{sweep}.") for name in _names(runs)):
        remove_tree(f"{os.path.dirname(runs)}/sweeps/{sweep}")
    return {"removed": there}, b""
