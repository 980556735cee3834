"""Runs subcommands (verbs) of node.pyz, orch's program on the nodes, on the nodes of a live run."""

from __future__ import annotations

import secrets
import subprocess
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar

from orchestrator.backends import backend_for
from orchestrator.errors import BackendError, OrchError, UsageError
from orchestrator.looking.state import state_of
from orchestrator.operations.debugging.shell import host_of
from orchestrator.operations.export import plan_of
from orchestrator.protocol.json_text import parse_json
from orchestrator.protocol.layout import archive_file
from orchestrator.runs.store import RunDir, check_own

T = TypeVar("T")

AT_ONCE: Final = 8  # nodes that are contacted at a time; a login node's sshd drops connections if many begin at once
MOST_CHARS: Final = 300  # the most characters of an error message


def check_going_on(run: RunDir) -> None:
    """Raise UsageError if the run has ended, and StoreError if it belongs to another user."""
    check_own(run.root, run)
    state = state_of(run)
    if state.is_final:
        raise UsageError(
            f"run {run.run_id} has ended ({state.state}): it has no running processes", f"see: orch why {run.run_id}"
        )


def node_command(run: RunDir, node: int, verb: str, *args: str) -> list[str]:
    """Return the local command that starts `node.pyz VERB RUN_DIR ARGS` on a node.

    Raises UsageError if the run has no such node, and BackendError if the node can't be reached.
    """
    host_of(run, node)
    launch, backend = plan_of(run), backend_for(run.record().kind)
    folder = launch.tasks[0].run_dir
    # A command on a node starts in the home folder.
    argv = [launch.commands[0][0], "-I", "-S", archive_file(folder).removeprefix("~/"), verb, folder, *args]
    return backend.reach(run, node, backend.with_python(run, node, argv), terminal=False)


def on_every_node(
    run: RunDir, work: Callable[[int, str], list[T]], at_once: int | None = None
) -> tuple[list[T], list[str]]:
    """Call `work` with the number and the host of each node. Return the results, and the error messages of nodes that
    failed.

    At most `at_once` calls run at the same time. If `at_once` is None, all run at once. Raises UsageError if the run
    has ended or has started no ranks.
    """
    check_going_on(run)
    hosts = [node.host for node in state_of(run).nodes]

    def one(node: int) -> list[T] | str:
        try:
            return work(node, hosts[node])
        except OrchError as error:
            return f"node {node} ({hosts[node]}): {error.message}"

    with ThreadPoolExecutor(max(1, min(at_once or len(hosts), len(hosts)))) as pool:
        answers = list(pool.map(one, range(len(hosts))))
    results = [each for answer in answers if not isinstance(answer, str) for each in answer]
    problems = [answer for answer in answers if isinstance(answer, str)]
    if not results and not problems:
        raise UsageError(f"run {run.run_id} has started no rank yet", f"see: orch status {run.run_id}")
    return results, problems


def ask(
    run: RunDir, node: int, verb: str, seconds: float, read: Callable[[Mapping[str, Any]], T], *args: str
) -> list[T]:
    """Run a subcommand of node.pyz on a node, and return its answers, one for each rank. `read` converts an answer
    from JSON.

    Raises BackendError if the node does not answer in time, or if its answer is not valid.
    """
    boundary = secrets.token_hex(8)
    argv = node_command(run, node, verb, str(node), run.run_id, boundary, *args)
    try:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=seconds,
            check=False, start_new_session=True,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise BackendError(f"no answer within {seconds:.0f} s", transient=True) from error
    except OSError as error:
        raise BackendError(f"{argv[0]} can't be started: {error.strerror}") from error
    # The shell's start files may print other text before the answer, also in the same line.
    _, found, answer = done.stdout.partition(f"{boundary} ")
    if not found:
        why = done.stderr.strip()[-MOST_CHARS:] or f"the command exited with code {done.returncode}"
        raise BackendError(f"the node can't be reached: {why}")
    try:
        return [read(values) for values in parse_json(answer.partition("\n")[0])]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise BackendError(f"the node's answer can't be read: {error!r}") from error
