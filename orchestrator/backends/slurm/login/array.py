"""The points of a sweep as one array behind a login node: what all share is sent once, and each run has its own folder.

As on the login node itself (`slurm.array`), a run's handle says only that it is a task of the array, and its id
which one.
The sweep's folder there goes with the folder of its last run.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from secrets import token_hex
from typing import TYPE_CHECKING

from orchestrator.backends.remote.given import checkpoint_to_give, give
from orchestrator.backends.remote.hosts import all_of, on_all
from orchestrator.backends.remote.upload import send_code
from orchestrator.backends.slurm.backend import batch_script, pickled
from orchestrator.backends.slurm.script import FOLDER, Array, command_of, options_in
from orchestrator.protocol.task import NodeTask
from orchestrator.runs.store import RunDir
from orchestrator.transport.node_archive import kept_archive, submitit_archive

if TYPE_CHECKING:
    from orchestrator.specs.plan import LaunchPlan
    from orchestrator.transport.machine import Machine


def array_of(launches: Sequence[LaunchPlan], sweep: str, parallel: int | None) -> Array:
    """Return the array of these runs, whose shared folder is beside theirs."""
    top = PurePosixPath(launches[0].tasks[0].run_dir).parent.parent
    return Array(sweep, str(top / "sweeps" / sweep), len(launches), parallel)


def send_array(session: Machine, array: Array, launch: LaunchPlan, root: Path) -> list[str]:
    """Send the files that all tasks of the array share; return the words for sbatch. `launch` may be any task's."""
    argv, script = command_of(array, launch), f"{array.folder}/{FOLDER}/submission.sh"
    submitit = f"{array.folder}/submitit.pyz"
    text = batch_script(launch, argv[:1], (submitit,), array)
    for path, data in {
        f"{array.folder}/node.pyz": kept_archive(root),
        submitit: submitit_archive(),
        # submitit's name for the pickle of a job that has no number yet: each task links it, see `script`.
        f"{array.folder}/{FOLDER}/{token_hex(16)}.pkl": pickled(argv),
        script: text.encode(),
    }.items():
        session.call("write_file", data, path=path)
    return [*options_in(text), script]


def send_runs(
    session: Machine, array: Array, runs: Sequence[RunDir], tasks: Sequence[tuple[NodeTask, ...]], workdir: str
) -> None:
    """Send what each run has for itself: its code, its nodes' tasks, the checkpoint that it goes on from."""

    def one(index: int, run: RunDir) -> None:
        its = tasks[index]
        send_code(session, run, workdir, its[0].code_dir)
        if (given := checkpoint_to_give(run, its[0])) is not None:
            give(session, run, given)
        payload = json.dumps([task.to_json() for task in its]).encode()
        session.call(
            "prepare_array_run", payload, run_dir=its[0].run_dir, folder=FOLDER, archive=f"{array.folder}/node.pyz"
        )

    one(0, runs[0])  # after which the code is there, to be copied
    _, failed = on_all(one, dict(list(enumerate(runs))[1:]))
    if failed:
        raise all_of(failed)
