"""The profile of a PBS cluster."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Final, Literal

from orchestrator.specs.documents.problem import Problem
from orchestrator.specs.profile import QsubProfile
from orchestrator.specs.spec import setting

if TYPE_CHECKING:  # the border reads the types of fields; a submission of cached documents loads no pydantic
    from pydantic import AfterValidator

    from orchestrator.specs.fields import Bytes, Count, Line, LoginHost, Seconds, short_options
    from orchestrator.specs.job import Job

_OURS: Final = {
    **dict.fromkeys(("N", "o", "e", "j", "S", "J", "r", "V"), "set by orch"),
    "q": "a field of the profile: queue",
    "A": "a field: account",
    "l": "a field: select, time or place",
    **dict.fromkeys(("I", "X", "z", "f"), "not for a job that nobody waits for"),
}


class PbsProfile(QsubProfile):
    """A cluster of OpenPBS or PBS Professional. orch runs on its login node, or reaches the login node over SSH."""

    kind: Literal["pbs"]
    queue: Line | None = None
    account: Line | None = None
    time: Seconds | None = setting("the job's time limit, walltime", default=None)
    ncpus: Count | None = setting(
        "cores of each node; by default one for each rank, if the number of ranks is known", default=None
    )
    ngpus: Count | None = setting("GPUs of each node", default=None)
    mem: Bytes | None = setting("memory per node", default=None)
    select: dict[Line, Line | int] = setting(
        "other resources of each node: {host: n1, system: a}", default_factory=dict
    )
    place: Line | None = setting(
        "placement, as in qsub -l place=; by default scatter, which uses one host for each node", default=None
    )
    login: LoginHost | None = setting("user@host of a login node to submit through", default=None)
    qsub: Annotated[dict[Line, Line | int | bool], AfterValidator(short_options(_OURS))] = setting(
        "any other option of qsub, without its '-'", default_factory=dict
    )

    def problems(self, job: Job) -> Sequence[Problem]:
        """Return a problem if the job needs GPUs and the profile requests none from PBS."""
        asked = job.resources.gpus
        if asked is None or self.ngpus is not None or any("gpu" in name.lower() for name in self.select):
            return []
        message = (
            f"asks for {asked} GPUs per node, but profile '{self.name}' asks PBS for none; "
            f"add 'ngpus: {asked}' to the profile"
        )
        return [Problem(("resources", "gpus"), message)]
