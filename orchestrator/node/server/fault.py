"""`python3 node.pyz fault RUN_DIR NODE FAULT SECONDS`: kills or freezes processes of a run on this node, to test
recovery.

Only this user's processes are signalled: the agent in the run's record, and processes whose variable ORCH_MARK names
the run and this node.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
from dataclasses import dataclass

from orchestrator.node.server.machine import agent_of
from orchestrator.node.system.event_log import events_in
from orchestrator.node.system.processes import Process, identify, marked, owner_of, parent_of, pid_inside, send_signal
from orchestrator.protocol.debugging.fault import Fault
from orchestrator.protocol.events import LauncherStarted, last_of
from orchestrator.protocol.layout import node_folder

ROUNDS = 100  # the maximum number of searches for processes that were forked while others were stopped
ENDS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)


class NoTargetError(Exception):
    """There is no process for this fault to hit. The text is a sentence without the host's name."""


@dataclass(frozen=True)
class Targets:
    """The processes that a fault hits. If the fault hits one rank, `rank` is its number."""

    processes: tuple[Process, ...]
    rank: int | None = None


def inject(run_dir: str, node_rank: str, fault_name: str, seconds: str) -> int:
    """Print the targets as a line of JSON, kill or freeze them, and return the exit code."""
    folder, node, fault = os.path.expanduser(run_dir), int(node_rank), Fault(fault_name)
    try:
        targets = find_targets(folder, node, fault)
    except NoTargetError as error:
        print(json.dumps({"error": str(error)}), flush=True)
        return 1
    names = [f"{process.pid} ({process.command})" for process in targets.processes]
    print(json.dumps({"host": socket.gethostname(), "processes": names, "rank": targets.rank}), flush=True)
    if fault == Fault.FREEZE:
        _freeze(folder, node, targets, float(seconds))
        return 0
    if fault == Fault.NODE:  # as if the machine were switched off: no process may notice that another has ended
        _send(targets, signal.SIGSTOP)
    _send(targets, signal.SIGKILL)
    return 0


def find_targets(run_dir: str, node: int, fault: Fault) -> Targets:
    """Return the run's processes on this node that the fault hits. Raises NoTargetError if there are none."""
    agents, others = _agents(run_dir, node), _marked(os.path.basename(run_dir), node)
    found: dict[Fault, list[Process]] = {Fault.AGENT: agents, Fault.NODE: [*agents, *others]}
    found[Fault.FREEZE] = found[Fault.NODE]
    if fault in found:
        if not found[fault]:
            raise NoTargetError(f"no {fault if fault == Fault.AGENT else 'process'} of node {node} runs on this host")
        return Targets(tuple(found[fault]))
    ranks = _ranks(run_dir, node, others)
    if not ranks:
        raise NoTargetError(f"the launcher of node {node} has recorded no rank that runs on this host")
    rank = max(ranks)
    if fault == Fault.RANK:
        return Targets((ranks[rank],), rank)
    parent = parent_of(ranks[rank].pid)
    launchers = tuple(process for process in others if process.pid == parent)
    if not launchers:
        raise NoTargetError(f"no launcher of node {node} runs on this host")
    return Targets(launchers)


def _agents(run_dir: str, node: int) -> list[Process]:
    recorded = agent_of(run_dir, node)
    if recorded is None or owner_of(recorded.pid) != os.getuid():
        return []
    found = identify(recorded.pid)  # the record lacks the process's command, which the report contains
    return [found] if found is not None and found.started == recorded.started else []


def _marked(run_id: str, node: int) -> list[Process]:
    return [each for each in marked(run_id, node) if owner_of(each.pid) == os.getuid()]


def _ranks(run_dir: str, node: int, processes: list[Process]) -> dict[int, Process]:
    """Return a dict from rank to process, with the ranks that the node's launcher has started in its newest attempt.

    The launcher may have reported the pids that are valid in its container, so they are converted to the host's pids.
    """
    inside = {pid_inside(process.pid): process for process in processes}
    try:
        recorded = last_of(events_in(f"{node_folder(run_dir, node)}/events.jsonl"), LauncherStarted)
    except OSError:
        return {}
    pids = recorded.pids if recorded is not None else {}
    return {rank: inside[pid] for rank, pid in pids.items() if pid in inside}


def _freeze(run_dir: str, node: int, targets: Targets, seconds: float) -> None:
    """Stop the processes for `seconds`, and then let them continue. Processes that they fork meanwhile are stopped too.
    If this process is terminated, they continue at once.
    """
    for number in ENDS:
        signal.signal(number, lambda *_: sys.exit(1))
    stopped: set[Process] = set()
    found = set(targets.processes)
    try:
        for _ in range(ROUNDS):
            if not found - stopped:
                break
            _send(Targets(tuple(found - stopped)), signal.SIGSTOP)
            stopped |= found
            found = {*_agents(run_dir, node), *_marked(os.path.basename(run_dir), node)}
        time.sleep(seconds)  # during this time the processes stay stopped
    finally:
        _send(Targets(tuple(stopped | found)), signal.SIGCONT)


def _send(targets: Targets, number: int) -> None:
    for process in targets.processes:
        send_signal(process, number)
