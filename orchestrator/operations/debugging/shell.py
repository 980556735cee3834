"""Builds the command for a shell on a node of a run, or in the container of its ranks."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.backends import backend_for
from orchestrator.looking.state import state_of
from orchestrator.node.container.argv import ENGINES
from orchestrator.node.system.processes import MARK
from orchestrator.operations.export import check_number
from orchestrator.protocol.events import Environment, InContainer, of
from orchestrator.runs.state import RunState
from orchestrator.runs.store import RunDir, check_own

# An error of `cd` is ignored, because the folder of a run that has ended may be removed. The shell is a login shell,
# because only a login shell has the function `module`.
_SCRIPT = 'cd -- "$1" 2>/dev/null; shift; [ $# -eq 0 ] || exec "$@"; exec "${SHELL:-/bin/sh}" -l'
_WITHIN = 'PATH="$1/bin:$PATH"; VIRTUAL_ENV=$1; export PATH VIRTUAL_ENV; shift; '


_OF_SHELL = re.compile(r"[\s;|&<>$`(){}*?~]")


@dataclass(frozen=True)
class Way:
    """A command to start on this machine, and a description of where its shell runs."""

    argv: tuple[str, ...]
    where: str
    is_live: bool = True
    note: str = ""  # tells the user that the run's folder was removed, if it was


def shell(run: RunDir, node: int, command: Sequence[str], *, terminal: bool) -> Way:
    """Return the command that opens a shell on a node of the run or, if `command` is given, runs it on the node.

    While the run is live, the shell runs in the ranks' container, if the container engine supports that. Otherwise it
    runs in the code folder on the node. Raises UsageError if the run has no such node, BackendError if the node is
    unreachable, and StoreError if the run belongs to another user.
    """
    check_own(run.root, run)
    state = state_of(run)
    if len(command) == 1 and _OF_SHELL.search(command[0]):
        command = ("sh", "-c", command[0])  # `orch shell RUN -- 'pwd; ls'` works as with ssh
    where = f"node {node} of {run.run_id} ({host_of(run, node)})"
    # The path is relative to the home folder, in which a connection to a node starts.
    code = run.plan().first.code_dir or "."
    argv = ["sh", "-c", _SCRIPT, "sh", code.removeprefix("~/"), *command]
    if folder := environment_of(run, node):
        argv = ["sh", "-c", _WITHIN + _SCRIPT, "sh", folder, *argv[4:]]
    if not state.is_final and (box := _container(run, node)) is not None:
        where += f", in its container {box.name}"
        # The run's mark is removed from the shell, because marked processes are killed at the end of an attempt.
        words = [box.runtime, "exec", "--interactive", *(["--tty"] if terminal else []), "--env", f"{MARK}="]
        argv = [*words, box.id, "sh", "-c", _SCRIPT, "sh", ".", *command]
    way = backend_for(run.record().kind).reach(run, node, argv, terminal=terminal)
    return Way(tuple(way), where, not state.is_final, _note_on_removal(run, state, node))


def _note_on_removal(run: RunDir, state: RunState, node: int) -> str:
    """Return a note that the folder of an ended run was removed from its node; empty if the folder still exists."""
    if not state.is_final or not run.record().is_remote or any(each.node == node for each in state.left):
        return ""
    return (
        f"{run.run_id} has ended ({state.state}), and its folder was removed: the shell is in the home folder\n"
        f"the run's files are on this machine, in {run.path}: orch logs, outputs, checkpoints or pull {run.run_id}"
    )


def _container(run: RunDir, node: int) -> InContainer | None:
    """Return the last container that the node's launcher has started; None if there is no container to enter."""
    found = [event for event in of(run.events(), InContainer) if event.node == node]
    return found[-1] if found and found[-1].runtime in ENGINES and found[-1].id else None


def environment_of(run: RunDir, node: int) -> str:
    """Return the folder of the Python environment that the node's ranks used in their last start; empty if they used
    none.
    """
    found = {each.of: each.folder for each in of(run.events(), Environment)}
    return found.get(node, found.get(0, ""))


def host_of(run: RunDir, node: int) -> str:
    """Return the name of the node's machine. Raises UsageError if the run has no such node."""
    nodes = state_of(run).nodes
    check_number(f"run {run.run_id}", "node", node, len(nodes))
    return nodes[node].host
