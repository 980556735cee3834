"""A shell on a node of a run, or in its container: what to start for it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.backends import backend
from orchestrator.errors import UsageError
from orchestrator.node.container.argv import ENGINES
from orchestrator.node.system.processes import MARK
from orchestrator.protocol.events import EventKind
from orchestrator.runs.state import RunState
from orchestrator.runs.store import RunDir, check_own
from orchestrator.supervisor.reconcile import state_of

# The folder may be gone where the run has ended; a login shell, because `module` is a function that it defines.
_SCRIPT = 'cd -- "$1" 2>/dev/null; shift; [ $# -eq 0 ] || exec "$@"; exec "${SHELL:-/bin/sh}" -l'
_WITHIN = 'PATH="$1/bin:$PATH"; VIRTUAL_ENV=$1; export PATH VIRTUAL_ENV; shift; '


_OF_SHELL = re.compile(r"[\s;|&<>$`(){}*?~]")


@dataclass(frozen=True)
class Way:
    """What to start here, and where that leads, in words."""

    argv: tuple[str, ...]
    where: str
    is_live: bool = True
    note: str = ""  # on what is not there any more


def shell(run: RunDir, node: int, command: Sequence[str], *, terminal: bool) -> Way:
    """A shell where the ranks of a node are, or the command instead of one.

    That is their container while the run goes on and an engine can be asked into it, else the node, in the code folder.
    UsageError where the run has no such node, BackendError where it can't be entered, StoreError for another's run.
    """
    check_own(run.path.parent.parent, run)
    state = state_of(run)
    if len(command) == 1 and _OF_SHELL.search(command[0]):
        command = ("sh", "-c", command[0])  # ssh passes 'pwd; ls' to a shell too
    where = f"node {node} of {run.run_id} ({host_of(run, node)})"
    # From the home folder, in which every way to a node begins.
    code = run.plan().first.code_dir or "."
    argv = ["sh", "-c", _SCRIPT, "sh", code.removeprefix("~/"), *command]
    if folder := environment_of(run, node):
        argv = ["sh", "-c", _WITHIN + _SCRIPT, "sh", folder, *argv[4:]]
    if not state.is_final and (box := _container(run, node)) is not None:
        where += f", in its container {box['name']}"
        # Without the run's mark: what carries it is ended with an attempt.
        words = [box["runtime"], "exec", "--interactive", *(["--tty"] if terminal else []), "--env", f"{MARK}="]
        argv = [*words, box["id"], "sh", "-c", _SCRIPT, "sh", ".", *command]
    way = backend(run.record().kind).reach(run, node, argv, terminal=terminal)
    return Way(tuple(way), where, not state.is_final, _what_is_gone(run, state, node))


def _what_is_gone(run: RunDir, state: RunState, node: int) -> str:
    """Say that an ended run's folder was removed from its node, and where its record is; empty where it is there."""
    if not state.is_final or not run.record().is_elsewhere or any(each.node == node for each in state.left):
        return ""
    return (
        f"{run.run_id} has ended ({state.state}), and its folder was removed from there: this is the home folder\n"
        f"what it left is here, in {run.path}: orch logs, outputs, checkpoints or pull {run.run_id}"
    )


def _container(run: RunDir, node: int) -> Mapping[str, Any] | None:
    """The container in which the node's launcher was started last; None where there is none to be entered."""
    found = [event for event in run.events() if event["kind"] == EventKind.CONTAINER and event.get("node") == node]
    return found[-1] if found and found[-1].get("runtime") in ENGINES and found[-1].get("id") else None


def environment_of(run: RunDir, node: int) -> str:
    """Return the folder of the environment that the node's ranks were started in last; empty where they had none."""
    found = {each.get("of"): each for each in run.events() if each["kind"] == EventKind.ENVIRONMENT}
    return str(found.get(node, found.get(0, {})).get("folder", ""))


def host_of(run: RunDir, node: int) -> str:
    """What the node's machine is called; UsageError where the run has no such node."""
    nodes = state_of(run).nodes
    if not 0 <= node < len(nodes):
        raise UsageError(f"run {run.run_id} has no node {node}", f"its nodes are 0 to {len(nodes) - 1}: --node N")
    return nodes[node].host
