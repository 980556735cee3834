"""The points of a sweep as one array of Slurm's: one submission, one task of it for each run.

What they share lies in the sweep's folder: script, pickle, agent, and the handle with the array's number. A run's own
handle says only that it is a task of that array, and its id which one; so nothing is written for each when sbatch has
answered.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from orchestrator.backends.slurm.script import FOLDER, Array, parameters
from orchestrator.errors import UsageError
from orchestrator.protocol.task import task_json
from orchestrator.runs.state import HandleStatus
from orchestrator.runs.store import RunDir, write_durably

if TYPE_CHECKING:
    from orchestrator.protocol.task import NodeTask
    from orchestrator.specs.plan import LaunchPlan

AT_ONCE: Final = 16  # files are synced: several runs at a time share the disk's work
OF_EACH: Final = ("job_name", "comment", "setup", "teardown")  # what may differ between the runs of an array


def check_alike(launches: Sequence[LaunchPlan]) -> None:
    """Raise UsageError where two of the runs would ask sbatch for different things."""
    first = _asked(launches[0])
    for launch in launches[1:]:
        if different := [name for name, value in _asked(launch).items() if value != first[name]]:
            raise UsageError(
                f"the runs of the sweep need different resources of Slurm, but share one array: {', '.join(different)}",
                "submit one sweep for each of them, with --set",
            )


def _asked(launch: LaunchPlan) -> dict[str, Any]:
    return {name: value for name, value in parameters(launch).items() if name not in OF_EACH}


def prepare_runs(array: Array, runs: Sequence[RunDir], tasks: Sequence[tuple[NodeTask, ...]]) -> None:
    """Write what the array's tasks will find: the agent, and for each run its nodes' tasks and its handle."""
    from orchestrator.transport.node_archive import node_archive  # noqa: PLC0415 (only a submit needs it)

    folder = Path(array.folder)
    (folder / FOLDER).mkdir(exist_ok=True)
    write_durably(folder / "node.pyz", node_archive())

    def one(run: RunDir, its: tuple[NodeTask, ...]) -> None:
        (run.path / FOLDER).mkdir(exist_ok=True)
        (run.path / "node.pyz").hardlink_to(folder / "node.pyz")
        for task in its:
            run.node(task.node_rank).mkdir(parents=True, exist_ok=True)
            path = run.node(task.node_rank) / "task.json"
            write_durably(path, task_json(task), private=True)
        run.write("handle.json", {"state": HandleStatus.INTENT, "array": array.folder})

    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(one, runs, tasks))
