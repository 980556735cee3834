"""Builds the command for a shell on a run's node, or in its container."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.backends import backend
from orchestrator.errors import UsageError
from orchestrator.looking.state import state_of
from orchestrator.node.container.argv import ENGINES
from orchestrator.node.system.processes import MARK
from orchestrator.protocol.events import Environment, InContainer, of
from orchestrator.runs.state import RunState
from orchestrator.runs.store import RunDir, check_own

# The folder may be gone if the run has ended. A login shell is used, because it defines the function `module`.
_SCRIPT = 'cd -- "$1" 2>/dev/null; shift; [ $# -eq 0 ] || exec "$@"; exec "${SHELL:-/bin/sh}" -l'
_WITHIN = 'PATH="$1/bin:$PATH"; VIRTUAL_ENV=$1; export PATH VIRTUAL_ENV; shift; '


_OF_SHELL = re.compile(r"[\s;|&<>$`(){}*?~]")


@dataclass(frozen=True)
class Way:
    """The command to start here, and a description of where it leads."""

    argv: tuple[str, ...]
    where: str
    is_live: bool = True
    note: str = ""  # about something that does not exist any more


def shell(run: RunDir, node: int, command: Sequence[str], *, terminal: bool) -> Way:
    """Return the command for a shell where the ranks of a node run, or for `command` instead of a shell.

    That is the ranks' container while the run is live, if its engine supports it, otherwise the node, in the code
    folder. Raises UsageError if the run has no such node, BackendError if it can't be entered, and StoreError for
    another user's run.
    """
    check_own(run.path.parent.parent, run)
    state = state_of(run)
    if len(command) == 1 and _OF_SHELL.search(command[0]):
        command = ("sh", "-c", command[0])  # because ssh also passes 'pwd; ls' to a shell
    where = f"node {node} of {run.run_id} ({host_of(run, node)})"
    # relative to the home folder, in which a connection to a node starts
    code = run.plan().first.code_dir or "."
    argv = ["sh", "-c", _SCRIPT, "sh", code.removeprefix("~/"), *command]
    if folder := environment_of(run, node):
        argv = ["sh", "-c", _WITHIN + _SCRIPT, "sh", folder, *argv[4:]]
    if not state.is_final and (box := _container(run, node)) is not None:
        where += f", in its container {box.name}"
        # Without the run's mark, because marked processes are ended with an attempt.
        words = [box.runtime, "exec", "--interactive", *(["--tty"] if terminal else []), "--env", f"{MARK}="]
        argv = [*words, box.id, "sh", "-c", _SCRIPT, "sh", ".", *command]
    way = backend(run.record().kind).reach(run, node, argv, terminal=terminal)
    return Way(tuple(way), where, not state.is_final, _what_is_gone(run, state, node))


def _what_is_gone(run: RunDir, state: RunState, node: int) -> str:
    """Say that an ended run's folder was removed from its node, and where its record is; empty if it still exists."""
    if not state.is_final or not run.record().is_elsewhere or any(each.node == node for each in state.left):
        return ""
    return (
        f"{run.run_id} has ended ({state.state}), and its folder was removed from there: this is the home folder\n"
        f"what it left is here, in {run.path}: orch logs, outputs, checkpoints or pull {run.run_id}"
    )


def _container(run: RunDir, node: int) -> InContainer | None:
    """Return the container in which the node's launcher last started, or None if there is none to enter."""
    found = [event for event in of(run.events(), InContainer) if event.node == node]
    return found[-1] if found and found[-1].runtime in ENGINES and found[-1].id else None


def environment_of(run: RunDir, node: int) -> str:
    """Return the folder of the Python environment in which the node's ranks last started; empty if they had none."""
    found = {each.of: each.folder for each in of(run.events(), Environment)}
    return found.get(node, found.get(0, ""))


def host_of(run: RunDir, node: int) -> str:
    """Return the name of the node's machine. Raises UsageError if the run has no such node."""
    nodes = state_of(run).nodes
    if not 0 <= node < len(nodes):
        raise UsageError(f"run {run.run_id} has no node {node}", f"its nodes are 0 to {len(nodes) - 1}: --node N")
    return nodes[node].host
