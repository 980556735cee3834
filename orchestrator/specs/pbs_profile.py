"""The profile of a PBS cluster."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Final, Literal

from pydantic import AfterValidator, Field

from orchestrator.specs.documents.problem import Problem
from orchestrator.specs.fields import Bytes, Count, Line, LoginHost, Seconds, short_options
from orchestrator.specs.profile import ProfileBase

if TYPE_CHECKING:
    from orchestrator.specs.job import Job

_OURS: Final = {
    **dict.fromkeys(("N", "o", "e", "j", "S", "J", "r", "V"), "set by orch"),
    "q": "a field of the profile: queue",
    "A": "a field: account",
    "l": "a field: select, time or place",
    **dict.fromkeys(("I", "X", "z", "f"), "not for a job that nobody waits for"),
}


class PbsProfile(ProfileBase):
    """A cluster of OpenPBS or PBS Professional, from its login node or through one."""

    kind: Literal["pbs"]
    queue: Line | None = None
    account: Line | None = None
    time: Seconds | None = Field(None, description="the job's time limit, walltime")
    ncpus: Count | None = Field(None, description="cores of each node; one for each rank if their number is known")
    ngpus: Count | None = Field(None, description="GPUs of each node")
    mem: Bytes | None = Field(None, description="memory per node")
    select: dict[Line, Line | int] = Field({}, description="other resources of each node: {host: n1, system: a}")
    place: Line | None = Field(None, description="as of qsub -l place=; scatter, a host for each node, by default")
    login: LoginHost | None = Field(None, description="user@host of a login node to submit through")
    qsub: Annotated[dict[Line, Line | int | bool], AfterValidator(short_options(_OURS))] = Field(
        {}, description="any other option of qsub, without its '-'"
    )

    def problems(self, job: Job) -> Sequence[Problem]:
        """Return a problem if the job asks for GPUs that PBS is not asked for; the job replaces `ngpus`."""
        asked = job.resources.gpus
        if asked is None or self.ngpus is not None or any("gpu" in name.lower() for name in self.select):
            return []
        message = (
            f"asks for {asked} GPUs per node, but profile '{self.name}' asks PBS for none; "
            f"add 'ngpus: {asked}' to the profile"
        )
        return [Problem(("resources", "gpus"), message)]
