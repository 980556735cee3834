"""Adapts submitit's executor, which renders the batch script, writes the pickle, runs sbatch and reads the job's
number.

submitit itself runs sbatch and writes its files on this machine. In orch, sbatch and the job's folder may be on another
machine, so this executor does both by requests to that machine.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from submitit.core.core import Job
from submitit.core.utils import FailedSubmissionError
from submitit.slurm.slurm import SlurmExecutor, _make_sbatch_string

from orchestrator.backends.batch.scheduler import Order, Put, RefusedError
from orchestrator.backends.slurm.script import ARCHIVE, FOLDER, command_of, options_in, parameters, step
from orchestrator.errors import BackendError
from orchestrator.runs.store import state_root
from orchestrator.transport.node_archive import kept_submitit

if TYPE_CHECKING:
    from orchestrator.transport.machine import Output

Call = Callable[[Sequence[str]], "Output"]


def submit(order: Order, put: Put, call: Call) -> str:
    """Write the job's files, queue the job with sbatch, and return its number. Raises RefusedError if sbatch refuses
    the job.
    """
    argv = command_of(order.array, order.launch) if order.array else order.launch.commands[0]
    try:
        with tempfile.TemporaryDirectory(prefix="orch-") as scratch:
            return str(Executor(order, Path(scratch), put, call).submit(os.execvp, argv[0], list(argv)).job_id)
    except OSError as error:
        where = error.filename or tempfile.gettempdir()
        raise BackendError(
            f"{where} can't be written: {error.strerror}", "make room on that disk, or set TMPDIR to another folder"
        ) from error


def script(order: Order) -> str:
    """Return the batch script that orch would pass to sbatch for this job."""
    executor = Executor(order, Path(tempfile.gettempdir()), _unused, _unused)
    return executor._make_submission_file_text(executor._submitit_command_str, "")


def rendered(command: str, folder: str, asked: Mapping[str, Any]) -> str:
    """Return the batch script that runs this command."""
    text = str(_make_sbatch_string(command=command, folder=folder, **asked))
    removed = tuple(f"#SBATCH --{name}=" for name, value in asked["additional_parameters"].items() if value is None)
    return "\n".join(line for line in text.split("\n") if not removed or not line.startswith(removed))


def _unused(*_: Any) -> Any:
    raise AssertionError("an error in orch: a batch script must be rendered without contacting a machine")


class Executor(SlurmExecutor):
    """submitit's executor for a job whose folder and sbatch may be on another machine.

    scratch: the local folder into which submitit writes the pickle before it is sent. call: runs a program on the
    machine.
    """

    def __init__(self, order: Order, scratch: Path, put: Put, call: Call) -> None:
        super().__init__(folder=scratch)
        self.order, self.put, self.call = order, put, call
        self.update_parameters(**parameters(order.launch, order.array))

    @classmethod
    def affinity(cls) -> int:
        """Report to submitit that Slurm is available, although this machine may lack Slurm. `Batch` has already checked
        the machine that runs sbatch.
        """
        return 2

    @property
    def _submitit_command_str(self) -> str:
        return step(self.order.launch, self.order.array)

    def _make_submission_file_text(self, command: str, uid: str) -> str:
        return rendered(command, f"{self.order.folder}/{FOLDER}", self.parameters)

    def _submit_command(self, command: str) -> Job[Any]:
        top, text = f"{self.order.folder}/{FOLDER}", self._make_submission_file_text(command, "")
        path = f"{top}/submission.sh"
        for pickle in self.folder.glob("*.pkl"):  # one, whose name the batch script changes to the job's number
            self.put(f"{top}/{pickle.name}", pickle.read_bytes())
        self.put(f"{self.order.folder}/{ARCHIVE}", kept_submitit(state_root()))
        self.put(path, text.encode())
        # On the command line, the options override what the shell's variables and a site's own sbatch set.
        answer = self.call(["sbatch", *options_in(text), path])
        if answer.code != 0:
            raise RefusedError(answer.err or answer.out)
        try:
            number = self._get_job_id_from_submission_command(answer.out)
        except FailedSubmissionError as error:
            raise RefusedError(answer.err or answer.out) from error
        return self.job_class(folder=self.folder, job_id=number, tasks=list(range(self._num_tasks())))
