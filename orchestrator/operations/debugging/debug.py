"""Submits runs in which one rank waits for a debugger, and connects a debugger to that rank."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final

from orchestrator.errors import BackendError, UsageError
from orchestrator.looking.run import states
from orchestrator.looking.state import state_of
from orchestrator.node.launcher.rank.argv import is_python
from orchestrator.operations.export import check_number
from orchestrator.prepare.prepare import Prepared, Request
from orchestrator.runs.state import RunState
from orchestrator.runs.store import RunDir
from orchestrator.specs.program import program_of
from orchestrator.specs.validation import world_size
from orchestrator.transport.forwarding import LOOPBACK, Forwarding

SETTINGS: Final[Mapping[str, Any]] = MappingProxyType(
    {
        "job.hang": "off",
        "job.limits.link": 600,
        **{f"job.retry.{cause}": 0 for cause in ("user_error", "infra", "preempted", "timeout")},
    }
)
"""Settings of a debugged run. A paused rank does not count as hung, and there is only one attempt."""


def debug_request(request: Request, rank: int) -> Request:
    """Return the request, changed so that this rank of the run waits for a debugger."""
    return replace(request, flags={**request.flags, **SETTINGS}, debug_rank=rank)


def check_debug(prepared: Prepared) -> None:
    """Raise UsageError if the requested rank can't be debugged."""
    job, rank = prepared.loaded.job, prepared.debug_rank
    if rank is not None and (count := world_size(prepared.profile)) is not None:
        check_number("the run", "rank", rank, count)
    if job.launcher in ("torchrun", "accelerate"):
        raise UsageError(
            f"{job.launcher} starts the ranks itself, so orch can't make one of them wait for a debugger",
            "let orch start them: --set job.launcher=exec",
        )
    kind, target, _ = program_of(job)
    if kind == "command" and not is_python(target):
        raise UsageError(
            f"the job runs the command {target}, and only a Python program can be debugged",
            "set `script` or `module` in the job to it",
        )


def node_of_rank(state: RunState, rank: int) -> int | None:
    """Return the node that started the rank, or None if no node has started it yet."""
    return next((node.node for node in state.nodes if node.ranks and node.ranks[0] <= rank < node.ranks[1]), None)


def wait_for_node(run: RunDir, rank: int, say: Callable[[str], None]) -> int | None:
    """Wait until the rank has been started, and return its node. Return None if the run ends before that.

    `say` is called with the reason whenever the run waits for something new. Raises UsageError if the run has no such
    rank.
    """
    last = ""
    for state in states(run):
        if state.is_final:
            return None
        if (node := node_of_rank(state, rank)) is not None:
            return node
        if state.world_size is not None:
            check_number("the run", "rank", rank, state.world_size)
        if state.detail and state.detail != last:
            last = state.detail
            say(f"{state.state}: {last}")
    return None


def configuration(run: RunDir, prepared: Prepared, port: int, folder: str) -> dict[str, Any]:
    """Return the configuration with which VS Code attaches to the rank. `folder` is the rank's folder on its node.

    VS Code shows the source files of the job or, if the run repeats an earlier run, the run's own copy of the code.
    """
    local = run.path / "code" if prepared.repeats is not None else prepared.loaded.code_dir
    return {
        "name": f"rank {prepared.debug_rank} of {run.run_id}", "type": "debugpy", "request": "attach",
        "connect": {"host": LOOPBACK, "port": port},
        "pathMappings": [{"localRoot": str(local), "remoteRoot": folder}], "justMyCode": False,
    }  # fmt: skip


def attach(run: RunDir, prepared: Prepared, way: Forwarding) -> dict[str, Any] | None:
    """Wait until the rank's debugger answers through `way`, the forwarding of a local port. Then return VS Code's
    configuration, and store it in a launch.json in the run's folder.

    If the run ends earlier, return None.
    """
    assert prepared.debug_rank is not None
    try:
        found = way.reach(lambda: state_of(run).is_final)
    except BackendError:
        if not state_of(run).is_final:
            raise
        found = None
    if found is None:
        return None
    made = configuration(run, prepared, way.port, str(found.get("folder", "")))
    run.write("launch.json", {"version": "0.2.0", "configurations": [made]})
    return made
