"""`python3 node.pyz replay ORDER`: runs one rank of a past run again, alone and at this terminal. At the end, all files
of the replay are removed.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from typing import Any

from orchestrator.node.agent.launcher_process import engine_environment, launcher_environment
from orchestrator.node.container.argv import ENGINES, replaying
from orchestrator.node.container.engine import EngineError, remove
from orchestrator.node.container.prepare import prepare
from orchestrator.node.environments.folder import BrokenEnvironmentError, hold
from orchestrator.node.system.gpus.devices import machine_devices
from orchestrator.node.system.host import cores
from orchestrator.node.system.inputs import InputError, place
from orchestrator.node.system.private import users_umask
from orchestrator.node.system.processes import end_marked
from orchestrator.node.system.setup_lines import after_setup
from orchestrator.protocol.layout import attempt_folder, node_folder, output_folder
from orchestrator.protocol.places.devices import VISIBLE, numbered, words_of
from orchestrator.protocol.ranks import Binding, rank_argv, rank_environment
from orchestrator.protocol.reading import MOST_RECORD, read_json
from orchestrator.protocol.task import NodeTask, at_home

LEAVING_MS = 5000
BY_TERMINAL = (signal.SIGINT, signal.SIGQUIT)  # the terminal sends these signals to the rank too
FORWARDED = (signal.SIGTERM, signal.SIGHUP)


def replay(path: str) -> int:
    """Run the rank that the order file describes, and return the program's exit code. If signal N ended the program,
    the code is 128 + N. If the program could not start, the code is 1.

    The order file is deleted at once because it contains secrets. Its folder is deleted at the end.
    """
    path = os.path.expanduser(path)
    try:
        order = read_json(path, MOST_RECORD)
        os.unlink(path)
        task = at_home(NodeTask.from_json(order["task"]), os.path.expanduser("~"))
        binding = Binding(**order["binding"])
    except (OSError, ValueError, TypeError, KeyError) as error:
        print(f"orch: can't take the order {path}: {error}", file=sys.stderr)
        return 1
    if order.get("inside"):
        return _rank(task, binding, order)
    try:
        if task.environment:
            hold(task.environment)
        for item in task.inputs:
            task = replace(task, env={**task.env, f"ORCH_INPUT_{item.name}": place(item, task.inputs_dir)})
        os.makedirs(attempt_folder(node_folder(task.run_dir, task.node_rank), task.attempt), exist_ok=True)
        os.makedirs(output_folder(task.run_dir), exist_ok=True)
        return _rank(task, binding, order) if task.container is None else _in_container(task, binding, order)
    except (InputError, EngineError, BrokenEnvironmentError) as error:
        print(f"orch: {error}", file=sys.stderr)
        return 1
    finally:
        end_marked(task.run_id)
        shutil.rmtree(task.run_dir, ignore_errors=True)  # orch gc removes what this leaves


def _rank(task: NodeTask, binding: Binding, order: dict[str, Any]) -> int:
    environment = {**launcher_environment(task, binding.nproc), **_variables(task, binding, order)}
    try:
        argv = after_setup(task.setup, rank_argv(task, order["rank"] - binding.rank_offset), task.environment)
        return _in_foreground(argv, environment, task.code_dir)
    except OSError as error:
        print(f"orch: rank {order['rank']} can't be started with {task.python}: {error}", file=sys.stderr)
        return 1


def _in_container(task: NodeTask, binding: Binding, order: dict[str, Any]) -> int:
    """Run the rank in its container. The order is passed in a mounted file, because all users can see the arguments of
    a command.
    """
    launch = prepare(task, task.attempt, max(1, cores() // binding.nproc))
    folder = attempt_folder(node_folder(task.run_dir, task.node_rank), task.attempt)
    inside, path = replace(launch.task, setup=()), f"{folder}/inside.json"
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        json.dump({**order, "task": inside.to_json(), "inside": True}, file)
    words = replaying(launch.argv, path, terminal=os.isatty(0) and os.isatty(1))
    try:
        return _in_foreground(after_setup(task.setup, words, task.environment), engine_environment(task), task.code_dir)
    except OSError as error:
        raise EngineError(f"{words[0]} can't be started: {error}") from error
    finally:
        if launch.record["runtime"] in ENGINES:
            remove(launch.record["runtime"], task.run_id)


def _variables(task: NodeTask, binding: Binding, order: dict[str, Any]) -> dict[str, str]:
    """Return the rank's environment variables and secrets. If the order has port 0, the rank's store listens on a free
    port.
    """
    environment = rank_environment(
        task,
        binding,
        order["local_rank"],
        attempt=task.attempt,
        master_addr=order["master_addr"],
        master_port=order["master_port"],
        serves_store=False,
    )
    if binding.world_size == 1:
        environment.update(_own_gpu(task, order["gpu"]))
    return {**environment, **task.secrets}


def _own_gpu(task: NodeTask, local_rank: int) -> dict[str, str]:
    """Return a dict with CUDA_VISIBLE_DEVICES for a rank that runs alone: the GPU of the rank among the node's GPUs. If
    the node has no such GPU, the dict is empty.
    """
    visible = task.env.get(VISIBLE, os.environ.get(VISIBLE))
    if visible is None:
        devices = machine_devices()
        names = [each.name for each in devices[local_rank : local_rank + 1]]
        return numbered(names, devices, {**os.environ, **task.env})
    seen = words_of(visible)
    return {VISIBLE: seen[local_rank]} if local_rank < len(seen) else {}


def _in_foreground(argv: list[str], environment: dict[str, str], folder: str) -> int:
    """Run the program until it ends. If the reader of its output disconnects, for example when ssh ends, end the
    program.

    The first Ctrl-C sends SIGINT to the program. The second Ctrl-C kills the program, because it may wait in native
    code for ranks that do not run.
    """
    child = subprocess.Popen(argv, env=environment, cwd=folder, umask=users_umask())
    interrupts = []

    def interrupted(*_: Any) -> None:
        interrupts.append(True)
        if len(interrupts) > 1:
            child.kill()
        else:
            os.write(2, b"\norch: the rank was asked to stop; Ctrl-C once more kills it\n")

    for number in BY_TERMINAL:
        signal.signal(number, interrupted)
    for number in FORWARDED:
        signal.signal(number, lambda received, _: child.send_signal(received))
    watched, poller = os.pidfd_open(child.pid), select.poll()
    poller.register(watched, select.POLLIN)
    poller.register(1, 0)  # only for the event that the reader of the output has disconnected
    patience = None
    try:
        while True:
            ready = [descriptor for descriptor, _ in poller.poll(patience)]
            if watched in ready:
                break
            if ready:
                poller.unregister(1)
                patience = LEAVING_MS
                child.terminate()
            else:
                child.kill()
    finally:
        os.close(watched)
        code = child.wait()
    return code if code >= 0 else 128 - code
