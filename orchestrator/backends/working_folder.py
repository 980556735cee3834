"""Creates the working folder of a sweep's run on this machine, when the run is started."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.errors import BackendError

if TYPE_CHECKING:  # `orch status` loads the backends, and must load little else
    from orchestrator.runs.store import RunDir


def lay_here(run: RunDir) -> None:
    """If the run belongs to a sweep, copy the sweep's code into the run's own working folder.

    A folder from an earlier start is kept. The working folder of any other run was created by its submit. Raises
    BackendError if the folder can't be created. Nothing of it is then left.
    """
    submitted, code_dir = run.submitted_code, run.path / "code"
    if submitted == code_dir:
        return
    from orchestrator.node.server.working_folder import copy_code, failure

    try:
        copy_code(str(submitted), str(code_dir))
    except OSError as error:
        raise BackendError(failure(str(code_dir), error), "make room on that disk, then repeat the run") from error
