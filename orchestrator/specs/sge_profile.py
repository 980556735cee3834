"""The profile of a Grid Engine cluster."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Final, Literal

from orchestrator.specs.documents.problem import Problem
from orchestrator.specs.profile import QsubProfile
from orchestrator.specs.spec import setting

if TYPE_CHECKING:  # the border reads the types of fields; a submission of cached documents loads no pydantic
    from pydantic import AfterValidator

    from orchestrator.specs.fields import Count, Line, LoginHost, Seconds, short_options
    from orchestrator.specs.job import Job

_OURS: Final = {
    **dict.fromkeys(("N", "o", "e", "j", "S", "t", "tc", "r", "notify", "terse", "b", "cwd", "wd", "V"), "set by orch"),
    "pe": "a field of the profile: pe",
    "q": "a field: queue",
    "P": "a field: project",
    "l": "a field: request",
    **dict.fromkeys(("now", "sync", "w", "verify", "i"), "not for a job that nobody waits for"),
}


class SgeProfile(QsubProfile):
    """A Grid Engine cluster. orch runs on its submit host, or reaches the submit host over SSH."""

    kind: Literal["sge"]
    pe: Line | None = setting("the parallel environment, which gives a job several slots or hosts", default=None)
    slots: Count | None = setting(
        "slots of each node; by default one for each rank, if the number of ranks is known", default=None
    )
    queue: Line | None = None
    project: Line | None = None
    time: Seconds | None = setting("the job's time limit, h_rt", default=None)
    request: dict[Line, Line | int] = setting(
        "resources for each slot, as in qsub -l: {gpu: 1, h_vmem: 4G}", default_factory=dict
    )
    login: LoginHost | None = setting("user@host of a submit host to submit through", default=None)
    qsub: Annotated[dict[Line, Line | int | bool], AfterValidator(short_options(_OURS))] = setting(
        "any other option of qsub, without its '-'", default_factory=dict
    )

    def check(self) -> None:
        super().check()
        if self.pe is None and (self.nodes > 1 or (self.slots or 1) > 1):
            what = f"nodes is {self.nodes}" if self.nodes > 1 else f"slots is {self.slots}"
            raise ValueError(f"{what}, so `pe` must name a parallel environment; qconf -spl lists them")

    def problems(self, job: Job) -> Sequence[Problem]:
        """Return a problem for each resource that the job requests and whose name on this cluster is not in the
        profile.
        """
        asked, found = job.resources, []
        if asked.gpus is not None and not any("gpu" in name.lower() for name in self.request):
            found.append(_unnamed("gpus", f"asks for {asked.gpus} GPUs per node", "gpu", self.name))
        if asked.mem is not None:
            found.append(_unnamed("mem", "asks for memory", "h_vmem", self.name))
        return found


def _unnamed(field: str, what: str, example: str, profile: str) -> Problem:
    message = (
        f"{what}, and each Grid Engine has its own name for that: leave it out, and add it to 'request' of profile "
        f"'{profile}', as {example}; qconf -sc lists the names"
    )
    return Problem(("resources", field), message)
